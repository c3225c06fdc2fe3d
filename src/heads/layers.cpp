#include "heads/layers.h"

#include <algorithm>
#include <string>

#include "attention/problem.h"

namespace attn::heads {
namespace {

constexpr int64_t kBandRows = 64;

bool is_whole(const ConstView<2>& view) { return view.dtype == DType::int32 || view.dtype == DType::int64; }

void check_array(Checker& checker, const char* name, const ConstView<2>& view, int64_t B, int64_t n) {
  checker.require(is_whole(view) && view.size == Shape<2>{B, n}, [&] {
    return std::string(name) + " are " + std::string(name_of(view.dtype)) + " " + to_string<2>(view.size) +
           ", must be int32 or int64 " + to_string<2>({B, n});
  });
}

}  // namespace

void for_each_band(const RecordedAttention& layer, const BandSink& sink) {
  const int64_t n = layer.q.size[2];
  for (int64_t first = 0; first < n; first += kBandRows) {
    const int64_t count = std::min(kBandRows, n - first);
    const Array weights(layer.lse.dtype, {layer.q.size[0], layer.q.size[1], count, n});
    attention_weights(layer.q, layer.k, layer.lse, weights, first, 0, layer.options);
    sink(first, count, weights);
  }
}

std::vector<int64_t> check_texts(Checker& checker, const Texts& texts, int64_t B, int64_t n) {
  check_array(checker, "ids", texts.ids, B, n);
  checker.require(texts.ids.data != nullptr, "ids must have data");
  if (texts.kinds) check_array(checker, "kinds", texts.kinds, B, n);
  std::vector<int64_t> lengths(static_cast<size_t>(B), n);
  if (!checker.ok() || !texts.kinds) return lengths;
  const auto where = [](int64_t b, int64_t i) {
    return "kinds[" + std::to_string(b) + ", " + std::to_string(i) + "] is ";
  };
  for (int64_t b = 0; b < B; ++b) {
    int64_t& length = lengths[static_cast<size_t>(b)];
    while (length > 0 && detail::id_at(texts.kinds, b, length - 1) == static_cast<int>(TokenKind::padding)) --length;
    for (int64_t i = 0; i < length; ++i) {
      const int64_t kind = detail::id_at(texts.kinds, b, i);
      const bool is_padding = kind == static_cast<int>(TokenKind::padding);
      if (!checker.require(!is_padding, [&] { return where(b, i) + "padding, which must be after the text"; }) ||
          !checker.require(kind >= 0 && kind <= static_cast<int>(TokenKind::separator),
                           [&] { return where(b, i) + std::to_string(kind) + ", must be from -1 to 3"; }))
        break;  // one reason a text is enough
    }
  }
  return lengths;
}

}  // namespace attn::heads
