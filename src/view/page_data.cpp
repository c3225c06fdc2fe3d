// Packing for the page. page/weights.js unpacks.
#include "view/page_data.h"

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "attention/elements.h"
#include "attn/core_base64.h"

namespace attn::view {
namespace {

static_assert(std::endian::native == std::endian::little, "numbers go into the page as they are in memory");

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kElementUnit = (1 << 23) - 1, kWeightUnit = (1 << 24) - 1;

template <class T>
void append(std::vector<uint8_t>& bytes, T value) {
  const auto* first = reinterpret_cast<const uint8_t*>(&value);
  bytes.insert(bytes.end(), first, first + sizeof value);
}

void append_24_bits(std::vector<uint8_t>& bytes, int64_t code) {
  for (int shift = 0; shift < 24; shift += 8) bytes.push_back(static_cast<uint8_t>(code >> shift));
}

/// The element at [0, head, row, column]; an axis of extent 1 is broadcast.
double element(const ConstView<4>& x, int64_t head, int64_t row, int64_t column) {
  const auto along = [&](int axis, int64_t index) { return x.size[axis] == 1 ? 0 : index * x.stride[axis]; };
  const int64_t offset = along(1, head) + along(2, row) + along(3, column);
  return detail::load_element(x.dtype, static_cast<const char*>(x.data) + offset * size_of(x.dtype));
}

/// The largest magnitude of a row, NaN if it is not finite.
double magnitude(const ConstView<4>& x, int64_t head, int64_t row) {
  double largest = 0;
  for (int64_t d = 0; d < x.size[3]; ++d) {
    const double value = std::abs(element(x, head, row, d));
    if (!std::isfinite(value)) return std::numeric_limits<double>::quiet_NaN();
    largest = std::max(largest, value);
  }
  return largest;
}

/// Numbers of a matrix, row by row, as pack_added() says.
class AddedStream {
 public:
  explicit AddedStream(int64_t columns) : above_(static_cast<size_t>(columns)), row_(above_) {}

  /// The next row, column by column.
  void put(int64_t column, float value) {
    const float before = column > 0 ? (first_row_ ? row_[column - 1] : above_[column - 1]) : above_[0];
    row_[column] = value;
    if (value == before) {
      if (!others_.empty()) flush();
      ++foretold_;
    } else {
      others_.push_back(value);
    }
  }

  void end_row() {
    above_.swap(row_);
    first_row_ = false;
  }

  std::string text() {
    flush();
    return base64(bytes_.data(), bytes_.size());
  }

 private:
  void flush() {
    append(bytes_, foretold_);
    append(bytes_, static_cast<uint32_t>(others_.size()));
    for (float value : others_) append(bytes_, value);
    foretold_ = 0;
    others_.clear();
  }

  std::vector<float> above_, row_, others_;
  bool first_row_ = true;
  uint32_t foretold_ = 0;
  std::vector<uint8_t> bytes_;
};

}  // namespace

std::string pack_vectors(const ConstView<4>& x, int64_t head) {
  const int64_t n = x.size[2], D = x.size[3];
  std::vector<uint8_t> bytes;
  bytes.reserve(static_cast<size_t>(n * (8 + 3 * D)));
  for (int64_t row = 0; row < n; ++row) append(bytes, magnitude(x, head, row));
  for (int64_t row = 0; row < n; ++row) {
    const double m = magnitude(x, head, row);
    for (int64_t d = 0; d < D; ++d) {
      const double part = m > 0 ? element(x, head, row, d) / m : 0;
      append_24_bits(bytes, (1 << 23) + std::llround(part * kElementUnit));
    }
  }
  return base64(bytes.data(), bytes.size());
}

double largest_magnitude(const ConstView<4>& x, int64_t head) {
  double largest = 0;
  for (int64_t row = 0; row < x.size[2]; ++row) largest = std::fmax(largest, magnitude(x, head, row));
  return largest;
}

std::string pack_lse(const ConstView<3>& lse, int64_t head) {
  std::vector<uint8_t> bytes;
  for (int64_t row = 0; row < lse.size[2]; ++row) {
    const int64_t offset = head * lse.stride[1] + row * lse.stride[2];
    append(bytes, detail::load_element(lse.dtype, static_cast<const char*>(lse.data) + offset * size_of(lse.dtype)));
  }
  return base64(bytes.data(), bytes.size());
}

std::string pack_weights(const std::vector<float>& weights) {
  std::vector<uint8_t> bytes;
  for (float weight : weights) append_24_bits(bytes, std::llround(static_cast<double>(weight) * kWeightUnit));
  return base64(bytes.data(), bytes.size());
}

/// The operator itself is asked: where queries and keys are zero and lse is 0, weights are exp(added). A bias, which
/// may be large and is at hand, is left out of this and added as it is.
std::vector<std::string> pack_added(const RecordedAttention& layer, int64_t index, const std::vector<int64_t>& heads) {
  const double zero = 0;
  RecordedAttention silent = layer;
  silent.q = ConstView<4>(&zero, DType::float64, layer.q.size);
  silent.k = ConstView<4>(&zero, DType::float64, layer.k.size);
  silent.lse = ConstView<3>(&zero, DType::float64, layer.lse.size);
  silent.q.size[3] = silent.k.size[3] = 1;
  silent.q.stride = silent.k.stride = {};
  silent.lse.stride = {};
  silent.options.bias = {};
  const ConstView<4>& bias = layer.options.bias;
  const int64_t Lk = layer.k.size[2];
  std::vector<AddedStream> streams(heads.size(), AddedStream(Lk));
  for_each_row("html_page", silent, index, heads, [&](int64_t row, const double* weights) {
    for (size_t h = 0; h < heads.size(); ++h) {
      for (int64_t column = 0; column < Lk; ++column) {
        const double weight = weights[static_cast<int64_t>(h) * Lk + column];
        double added = weight > 0 ? std::log(weight) : -kInfinity;
        if (bias.data && weight > 0) added += element(bias, heads[h], row, column);
        streams[h].put(column, static_cast<float>(added));
      }
      streams[h].end_row();
    }
  });
  std::vector<std::string> texts;
  for (AddedStream& stream : streams) texts.push_back(stream.text());
  return texts;
}

}  // namespace attn::view
