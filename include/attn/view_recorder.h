// view: attention of running models, kept as it is computed.
//
// What is kept of a token is its query, key and lse a head, O(n D) in all: any part of the attention matrix can be
// computed from them later, by attention_weights(), attention_statistics() and every picture of attn/view.h.
#pragma once

#include "attn/view.h"

#pragma GCC visibility push(default)
namespace attn::view {

/// Whose attention: of a text on itself, of an answer on what the encoder has read, or of that on itself.
enum class Part { own, cross, encoder };

struct RecorderOptions {
  Part part = Part::own;
  Selection selection = {};  ///< layers and heads that are kept; empty = all
  int64_t sequence = 0;      ///< which text of a batch, padded or packed
  int64_t first_query = 0;   ///< tokens whose look is kept: `queries` from this one on; -1 = all. Keys are kept of
  int64_t queries = -1;      ///<   every token that these can see
  std::string folder = {};   ///< keeps the arrays in files without a name there, of which memory holds what it can
};

/// Given to Model::forward() or generate(), it keeps one text's attention: of a prompt at once, then token by token. A
/// text that begins anew takes the place of the one before.
///
/// Scale, softcap, causality, window, ALiBi and a bias that is a function of the distance come along. Throws Error for
/// a call with another option, of another shape than the calls before, or that leaves out a token.
class Recorder {
 public:
  /// Throws Error for numbers that are negative.
  explicit Recorder(RecorderOptions options = {});
  ~Recorder();
  Recorder(Recorder&&) noexcept;
  Recorder& operator=(Recorder&&) noexcept;

  const RecorderOptions& options() const { return options_; }
  bool wants(int64_t layer) const;
  /// What a model calls: `call` is of the tokens from `first` on, and what was kept of these is forgotten. Its keys are
  /// of the same tokens, or, of Part::cross, all that there are.
  void record(int64_t layer, int64_t first, const Layer& call);

  /// The kept layers, in order, for attn/view.h; valid until the next call of record().
  std::vector<Layer> layers() const;
  /// Writes what read_attention() reads, and `attn see FILE` draws: the old file is replaced when the new one is whole.
  /// `tokens` are one a key, or none; `queries`, where they are other tokens, one a query. Throws Error for what such a
  /// file has no place for, as saved_attention() does.
  void save(const std::string& path, const std::vector<std::string>& tokens = {},
            const std::vector<std::string>& queries = {}) const;

 private:
  class Kept;
  RecorderOptions options_;
  std::vector<std::unique_ptr<Kept>> layers_;  // by their numbers; null where nothing is kept
};

}  // namespace attn::view
#pragma GCC visibility pop
