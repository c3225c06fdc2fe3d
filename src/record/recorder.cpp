// A TextRecorder keeps one row a token: [tokens, H, D] of queries and keys and [tokens, H] of lse, which grow at the
// end.
#include <algorithm>
#include <cstring>
#include <limits>
#include <numeric>

#include "attn/record.h"
#include "core/checker.h"
#include "record/growing.h"

namespace attn {
namespace {

using detail::GrowingBytes;

/// 0 .. count - 1.
std::vector<int64_t> all_of(int64_t count) {
  std::vector<int64_t> all(static_cast<size_t>(count));
  std::iota(all.begin(), all.end(), 0);
  return all;
}

/// Appends tokens `first` .. `last` of the given heads of x [1, heads, tokens, D].
void append(GrowingBytes& to, const ConstView<4>& x, int64_t first, int64_t last, const std::vector<int64_t>& heads) {
  const int64_t element = size_of(x.dtype), D = x.size[3];
  const auto count = static_cast<int64_t>(heads.size());
  const int64_t before = to.size();
  to.resize(before + (last - first) * count * D * element);
  char* at = to.data() + before;
  for (int64_t token = first; token < last; ++token)
    for (int64_t head : heads) {
      const char* from = static_cast<const char*>(x.data) + (head * x.stride[1] + token * x.stride[2]) * element;
      if (x.stride[3] == 1) std::memcpy(at, from, static_cast<size_t>(D * element));
      else
        for (int64_t d = 0; d < D; ++d)
          std::memcpy(at + d * element, from + d * x.stride[3] * element, static_cast<size_t>(element));
      at += D * element;
    }
}

/// The rows [tokens, heads, D] as [1, heads, tokens, D].
ConstView<4> view_of(const GrowingBytes& rows, DType type, int64_t heads, int64_t tokens, int64_t D) {
  return {rows.data(), type, {1, heads, tokens, D}, {0, D, heads * D, 1}};
}

/// lse [1, H, Lq] as [1, H, Lq, 1].
ConstView<4> with_width(const ConstView<3>& x) {
  return {x.data, x.dtype, {x.size[0], x.size[1], x.size[2], 1}, {x.stride[0], x.stride[1], x.stride[2], 1}};
}

/// True if the bias is one number for each head and distance.
bool is_by_distance(const ConstView<4>& bias, int64_t queries, int64_t keys) {
  return bias.size[2] == queries && bias.size[3] == keys && bias.stride[2] == -bias.stride[3];
}

}  // namespace

// --------------------------------------------------------------------------------------------------------- one layer

/// What is kept of one layer.
class TextRecorder::KeptLayer {
 public:
  KeptLayer(const RecorderOptions& options, const TextRecorderOptions& kept, int64_t number,
            const RecordedAttention& call)
      : wanted_(kept),
        is_cross_(options.kind == AttentionKind::cross),
        number_(number),
        all_heads_(call.q.size[1]),
        all_kv_heads_(call.k.size[1]),
        D_(call.q.size[3]),
        type_(call.q.dtype),
        lse_type_(call.lse.dtype),
        heads_(options.selection.heads),
        name_(call.name),
        q_(kept.folder),
        k_(kept.folder),
        lse_(kept.folder) {
    if (heads_.empty()) {
      heads_ = all_of(all_heads_);
      kv_heads_ = all_of(all_kv_heads_);
    } else {  // each head with a copy of the keys that it reads
      for (int64_t head : heads_) kv_heads_.push_back(head / (all_heads_ / all_kv_heads_));
    }
    options_.scale = call.options.scale;
    options_.softcap = call.options.softcap;
    options_.causal = call.options.causal;
    options_.window = call.options.window;
    if (call.options.alibi_slopes.size() == static_cast<size_t>(all_heads_))
      for (int64_t head : heads_) slopes_.push_back(call.options.alibi_slopes[static_cast<size_t>(head)]);
  }

  void record(int64_t first, const RecordedAttention& call) {
    check(first, call);
    const int64_t Lq = call.q.size[2], end = wanted_.queries < 0 ? first + Lq : wanted_.first_query + wanted_.queries;
    const auto kept_of = [&](int64_t token) { return std::max<int64_t>(token - wanted_.first_query, 0); };
    rows_ = std::min(rows_, kept_of(first));
    q_.resize(rows_ * query_bytes());
    lse_.resize(rows_ * heads() * size_of(lse_type_));
    const int64_t from = std::max(wanted_.first_query, first), to = std::min(end, first + Lq);
    if (from < to) {
      append(q_, call.q, from - first, to - first, heads_);
      append(lse_, with_width(call.lse), from - first, to - first, heads_);
      rows_ += to - from;
    }
    record_keys(first, call);
    if (call.options.bias) read_distances(first, call);
    tokens_ = first + Lq;
  }

  bool is_empty() const { return rows_ == 0; }

  RecordedAttention recorded() const {
    RecordedAttention layer;
    layer.name = name_;
    layer.q = view_of(q_, type_, heads(), rows_, D_);
    layer.k = view_of(k_, type_, kv_heads(), keys_, D_);
    layer.lse = {lse_.data(), lse_type_, {1, heads(), rows_}, {0, 1, heads()}};
    layer.options = options_;
    layer.options.alibi_slopes = slopes_;
    layer.options.alignment = Alignment::top_left;
    if (wanted_.first_query > 0 && !is_cross_) {
      layer.options.alignment = Alignment::offset;
      layer.options.offset = {&wanted_.first_query, 1};
    }
    if (!distances_.empty()) {
      const int64_t zero = nearest_ - wanted_.first_query;
      layer.options.bias = {distances_.data() + zero * size_of(bias_type_),
                            bias_type_,
                            {1, heads(), rows_, keys_},
                            {0, static_cast<int64_t>(distances_.size()) / (heads() * size_of(bias_type_)), -1, 1}};
    }
    return layer;
  }

 private:
  int64_t heads() const { return static_cast<int64_t>(heads_.size()); }
  int64_t kv_heads() const { return static_cast<int64_t>(kv_heads_.size()); }
  int64_t query_bytes() const { return heads() * D_ * size_of(type_); }
  int64_t key_bytes() const { return kv_heads() * D_ * size_of(type_); }

  void check(int64_t first, const RecordedAttention& call) const {
    const AttentionOptions& given = call.options;
    const int64_t Lq = call.q.size[2], Lk = call.k.size[2];
    Checker checker("TextRecorder");
    const std::string where = "layer " + std::to_string(number_) + ": ";
    checker.require(call.q.data && call.k.data && call.lse.data, where + "q, k and lse must have data");
    const Shape<4> q = {1, all_heads_, Lq, D_}, k = {1, all_kv_heads_, is_cross_ && first > 0 ? keys_ : Lk, D_};
    checker.require(
        call.q.size == q && call.k.size == k && call.lse.size == Shape<3>{1, all_heads_, Lq} &&
            (is_cross_ || Lq == Lk) && call.q.dtype == type_ && call.k.dtype == type_ && call.lse.dtype == lse_type_,
        [&] {
          return where + "q " + to_string<4>(call.q.size) + ", k " + to_string<4>(call.k.size) + " and lse " +
                 to_string<3>(call.lse.size) + " do not continue " + to_string<4>({1, all_heads_, tokens_, D_}) + ", " +
                 to_string<4>({1, all_kv_heads_, keys_, D_}) + " in " + std::string(name_of(type_));
        });
    checker.require(first >= 0 && first <= tokens_, [&] {
      return where + "the call begins at token " + std::to_string(first) + ", but " + std::to_string(tokens_) +
             " tokens are recorded";
    });
    checker.require(!given.mask && !given.query_segment_ids && !given.blocks.given() && given.cu_seqlens_q.empty() &&
                        given.key_length.empty() && given.query_length.empty() && given.offset.empty(),
                    where + "masks, segment ids, blocks, packed sequences, lengths and offsets are not recorded");
    checker.require(!given.bias || (!is_cross_ && is_by_distance(given.bias, Lq, first + Lk)),
                    where + "only a bias that is a function of the distance is recorded");
    checker.require(given.alibi_slopes.empty() || static_cast<int64_t>(given.alibi_slopes.size()) == all_heads_,
                    where + "alibi_slopes must have one slope for each head");
    checker.done();
  }

  void record_keys(int64_t first, const RecordedAttention& call) {
    if (is_cross_) {
      if (first > 0) return;
      keys_ = 0;
      k_.resize(0);
      append(k_, call.k, 0, call.k.size[2], kv_heads_);
      keys_ = call.k.size[2];
      return;
    }
    const int64_t last = std::min(first + call.k.size[2], last_seen(call.options));
    keys_ = std::min(keys_, first);
    k_.resize(keys_ * key_bytes());
    if (last <= first) return;
    append(k_, call.k, 0, last - first, kv_heads_);
    keys_ = last;
  }

  /// The number of keys that the kept queries can attend to.
  int64_t last_seen(const AttentionOptions& options) const {
    const int64_t right = options.causal ? 0 : options.window.right;
    if (wanted_.queries < 0 || right < 0) return std::numeric_limits<int64_t>::max();
    return wanted_.first_query + wanted_.queries + right;
  }

  /// Copies the bias of every distance. The last row of this call has those to earlier keys, the first row those to
  /// later ones.
  void read_distances(int64_t first, const RecordedAttention& call) {
    const ConstView<4>& bias = call.options.bias;
    const int64_t Lq = bias.size[2], Lk = bias.size[3], element = size_of(bias.dtype);
    const int64_t nearest = first + Lq - 1, count = nearest + Lk;
    bias_type_ = bias.dtype;
    nearest_ = nearest;
    distances_.assign(static_cast<size_t>(heads() * count * element), 0);
    char* to = distances_.data();
    for (int64_t head : heads_)
      for (int64_t d = -nearest; d < Lk; ++d, to += element) {
        const bool before = d + nearest < Lk;
        const int64_t row = before ? Lq - 1 : 0, column = d + (before ? nearest : first);
        if (column >= Lk) continue;  // a distance that no pair of this call has
        const int64_t along = bias.size[1] == 1 ? 0 : head * bias.stride[1];
        const int64_t offset = along + row * bias.stride[2] + column * bias.stride[3];
        std::memcpy(to, static_cast<const char*>(bias.data) + offset * element, static_cast<size_t>(element));
      }
  }

  TextRecorderOptions wanted_;
  bool is_cross_;
  int64_t number_, all_heads_, all_kv_heads_, D_;
  DType type_, lse_type_, bias_type_ = DType::float32;
  std::vector<int64_t> heads_, kv_heads_;
  std::string name_;
  GrowingBytes q_, k_, lse_;
  int64_t tokens_ = 0, rows_ = 0, keys_ = 0;  // tokens of all calls, and how many queries and keys of them are kept
  AttentionOptions options_;                  // borrows nothing
  std::vector<float> slopes_;
  std::vector<char> distances_;  // [heads, distances], that of distance 0 at `nearest_`
  int64_t nearest_ = 0;
};

// ------------------------------------------------------------------------------------------------------- all layers

Recorder::Recorder(RecorderOptions options) : options_(std::move(options)) {
  Checker checker("Recorder");
  const auto positive = [](const std::vector<int64_t>& all) {
    return std::all_of(all.begin(), all.end(), [](int64_t n) { return n >= 0; });
  };
  checker.require(positive(options_.selection.layers) && positive(options_.selection.heads),
                  "layers and heads must not be negative");
  checker.require(options_.sequence >= 0,
                  [&] { return "sequence is " + std::to_string(options_.sequence) + ", must not be negative"; });
  checker.done();
}
Recorder::~Recorder() = default;

bool Recorder::wants(AttentionKind kind, int64_t layer) const {
  const std::vector<int64_t>& named = options_.selection.layers;
  return kind == options_.kind && (named.empty() || std::find(named.begin(), named.end(), layer) != named.end());
}

TextRecorder::TextRecorder(RecorderOptions options, TextRecorderOptions kept)
    : Recorder(std::move(options)), kept_(std::move(kept)) {
  Checker checker("TextRecorder");
  checker.require(kept_.first_query >= 0,
                  [&] { return "first_query is " + std::to_string(kept_.first_query) + ", must not be negative"; });
  checker.require(kept_.queries >= -1,
                  [&] { return "queries is " + std::to_string(kept_.queries) + ", must be -1 (all) or not negative"; });
  checker.done();
}
TextRecorder::~TextRecorder() = default;
TextRecorder::TextRecorder(TextRecorder&&) noexcept = default;
TextRecorder& TextRecorder::operator=(TextRecorder&&) noexcept = default;

void TextRecorder::record(int64_t number, int64_t first, const RecordedAttention& call) {
  if (!wants(options().kind, number)) return;
  const int64_t heads = call.q.size[1], kv_heads = call.k.size[1];
  Checker checker("TextRecorder");
  checker.require(number >= 0,
                  [&] { return "the number of the layer is " + std::to_string(number) + ", must not be negative"; });
  checker.require(heads > 0 && kv_heads > 0 && heads % kv_heads == 0, [&] {
    return "there are " + std::to_string(heads) + " query heads, must be a multiple of " + std::to_string(kv_heads) +
           " key/value heads";
  });
  for (int64_t head : options().selection.heads)
    checker.require(head < heads, [&] {
      return "the head is " + std::to_string(head) + ", must be from 0 to " + std::to_string(heads - 1);
    });
  checker.done();
  if (static_cast<size_t>(number) >= layers_.size()) layers_.resize(static_cast<size_t>(number) + 1);
  std::unique_ptr<KeptLayer>& layer = layers_[static_cast<size_t>(number)];
  if (!layer || first == 0) layer = std::make_unique<KeptLayer>(options(), kept_, number, call);
  layer->record(first, call);
}

std::vector<RecordedAttention> TextRecorder::layers() const {
  std::vector<RecordedAttention> all;
  for (const auto& layer : layers_)
    if (layer && !layer->is_empty()) all.push_back(layer->recorded());
  return all;
}

}  // namespace attn
