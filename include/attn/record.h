// record: recorded attention (queries, keys, lse and options of a call), and recorders that a running model calls.
//
// Queries, keys and lse are O(n D) numbers per head. Any part of the attention matrix P can be computed from them
// later, without the values: by attention_weights(), attention_statistics(), the measures of attn/heads.h and the
// pictures of attn/view.h.
//
// ```cpp
// #include "attn/record.h"
// int main() {
//   attn::Tensor<float, 4> x({1, 2, 5, 8}), out({1, 2, 5, 8}), weights({1, 2, 5, 5});  // 2 heads, 5 tokens, D = 8
//   attn::Tensor<float, 3> lse({1, 2, 5});
//   attn::attention(x, x, x, out, lse, {.causal = true});
//   attn::TextRecorder recorder;
//   recorder.record(0, 0, {"layer 0", x, x, lse, {.causal = true}});
//   const attn::RecordedAttention layer = recorder.layers()[0];
//   attn::attention_weights(layer.q, layer.k, layer.lse, weights, 0, 0, layer.options);
//   return weights[0] == 1 ? 0 : 1;  // token 0 attends to itself alone
// }
// ```
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "attn/attention.h"

#pragma GCC visibility push(default)
namespace attn {

/// One call of attention(), without the values. It borrows the memory of its views and of the spans in `options`; the
/// function that returns it documents for how long they are valid.
struct RecordedAttention {
  std::string name = {};          ///< of the layer, such as "layer 0"
  ConstView<4> q = {};            ///< [B, H, Lq, D], after rotary positions
  ConstView<4> k = {};            ///< [B, Hk, Lk, D], after rotary positions
  ConstView<3> lse = {};          ///< [B, H, Lq], of attention(); float32, or float64 where q is
  AttentionOptions options = {};  ///< of the call, as attention_weights() takes them
};

/// Which tokens attend to which in a model.
enum class AttentionKind {
  self,    ///< the tokens of a text, or of a decoder, to one another
  cross,   ///< the tokens of a decoder to those of its encoder
  encoder  ///< the tokens of an encoder to one another
};

/// Some heads of some layers: each head of `heads` in each layer of `layers`, in this order, numbered from 0. An empty
/// list means all. A number that does not exist, or occurs twice, is an Error that names the valid numbers.
struct Selection {
  std::vector<int64_t> layers = {};
  std::vector<int64_t> heads = {};
};

/// What a model hands to a Recorder.
struct RecorderOptions {
  AttentionKind kind = AttentionKind::self;
  Selection selection = {};
  int64_t sequence = 0;  ///< index in the batch, padded or packed, of the one sequence that is recorded
};

/// Receives the attention of a model while it runs. Model::forward() and generate() take a pointer to a Recorder and
/// call record() once for each selected layer of options().kind.
class Recorder {
 public:
  /// Throws Error if a number in `options` is negative.
  explicit Recorder(RecorderOptions options = {});
  virtual ~Recorder();

  const RecorderOptions& options() const { return options_; }
  /// True if the selection has this layer of this kind.
  bool wants(AttentionKind kind, int64_t layer) const;
  /// Receives one sequence, B = 1, without padding: its tokens from number `first` on. With a cache, `call` has the
  /// keys of these tokens alone; for AttentionKind::cross it has all keys of the encoder. `call` is valid until
  /// record() returns.
  virtual void record(int64_t layer, int64_t first, const RecordedAttention& call) = 0;

 protected:
  Recorder(Recorder&&) noexcept = default;
  Recorder& operator=(Recorder&&) noexcept = default;

 private:
  RecorderOptions options_;
};

/// Which tokens a TextRecorder keeps, and where.
struct TextRecorderOptions {
  int64_t first_query = 0;  ///< queries are kept from this token on,
  int64_t queries = -1;     ///<   this many of them; -1 = all. The keys of all tokens that these attend to are kept
  std::string folder = {};  ///< the arrays are kept in unnamed files in this folder, mapped; empty = in memory
};

/// Keeps a copy of the attention of one text: of a prompt at once, then token by token as generation continues. A call
/// whose first token is 0 replaces the text before it.
///
/// It keeps scale, softcap, causal, window, alibi_slopes, and a bias that is a function of the distance alone. A sink
/// is part of lse.
class TextRecorder : public Recorder {
 public:
  /// Throws Error if a number is negative, except queries = -1.
  explicit TextRecorder(RecorderOptions options = {}, TextRecorderOptions kept = {});
  ~TextRecorder() override;
  TextRecorder(TextRecorder&&) noexcept;
  TextRecorder& operator=(TextRecorder&&) noexcept;

  /// Keeps the call, and drops earlier records of tokens from `first` on. Ignores layers that are not selected. Throws
  /// Error, and keeps nothing, if the call has another mask or position option, differs in shape from the calls
  /// before it, or skips a token.
  void record(int64_t layer, int64_t first, const RecordedAttention& call) override;
  /// The kept layers, in the order of their numbers; the views are valid until the next call of record().
  std::vector<RecordedAttention> layers() const;

 private:
  class [[gnu::visibility("hidden")]] KeptLayer;
  TextRecorderOptions kept_;
  std::vector<std::unique_ptr<KeptLayer>> layers_;  // by their numbers; null where nothing is kept
};

}  // namespace attn
#pragma GCC visibility pop
