// view: records the attention of running models.
//
// ```cpp
// #include "attn/models.h"
// using namespace attn;
// int main() {
//   models::Config config = models::family("gpt");
//   config.vocab_size = 50;
//   const models::Model model(config, nn::Precision::float32, 1);
//   view::Recorder recorder;
//   autograd::Tape tape;
//   model.forward(tape, {.tokens = {1, 2, 3}, .sequences = 1, .length = 3}, {.recorder = &recorder});
//   return recorder.layers().size() == 4 ? 0 : 1;
// }
// ```
//
// A recorder keeps the query, key and lse of each token and head, O(n D) in all. attention_weights(),
// attention_statistics() and every picture of attn/view.h compute any part of the attention matrix from them.
#pragma once

#include "attn/view.h"

#pragma GCC visibility push(default)
namespace attn::view {

/// Which attention: self-attention of the (decoder) layers, cross-attention, or self-attention of the encoder.
enum class Part { own, cross, encoder };

struct RecorderOptions {
  Part part = Part::own;
  Selection selection = {};  ///< layers and heads to record; empty = all
  int64_t sequence = 0;      ///< which sequence of a batch, padded or packed
  int64_t first_query = 0;   ///< record `queries` rows from this token on; -1 = all. Keys are recorded of
  int64_t queries = -1;      ///<   every token that these rows can attend to
  std::string folder = {};   ///< store the arrays in unnamed files in this folder instead of in memory
};

/// Records the attention of one text in Model::forward() or generate(): of the prompt at once, then token by token. A
/// call that starts at token 0 again replaces the recording.
///
/// It records scale, softcap, causality, window, ALiBi and a bias that depends on the distance. Throws Error for a call
/// with another option or another shape than before, and for a call that skips a token.
class Recorder {
 public:
  /// Throws Error for negative numbers.
  explicit Recorder(RecorderOptions options = {});
  ~Recorder();
  Recorder(Recorder&&) noexcept;
  Recorder& operator=(Recorder&&) noexcept;

  const RecorderOptions& options() const { return options_; }
  bool wants(int64_t layer) const;
  /// Models call this: `call` has the tokens from `first` on and replaces what was recorded of them. Its keys are those
  /// tokens', or, for Part::cross, all keys.
  void record(int64_t layer, int64_t first, const Layer& call);

  /// The recorded layers, in order, for attn/view.h. They borrow from the recorder until the next record().
  std::vector<Layer> layers() const;
  /// Writes a file for read_attention() and `attn see FILE`, in one step. `tokens` has one entry per key, or none;
  /// `queries` one per query, if they are other tokens. Throws Error as saved_attention() does.
  void save(const std::string& path, const std::vector<std::string>& tokens = {},
            const std::vector<std::string>& queries = {}) const;

 private:
  class Kept;
  RecorderOptions options_;
  std::vector<std::unique_ptr<Kept>> layers_;  // by their numbers; null where nothing is kept
};

}  // namespace attn::view
#pragma GCC visibility pop
