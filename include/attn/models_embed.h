// models: embeds texts as vectors, as sentence-transformers does.
//
// ```cpp
// #include "attn/models_embed.h"
// int main(int argc, char** argv) {
//   if (argc < 2) return 0;  // give the folder of a sentence encoder
//   const attn::models::Embedder embed(argv[1]);
//   const attn::Array vectors = embed({{"A cat sits on a mat.", "A kitten rests on a rug."}});  // [2, C]
// }
// ```
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "attn/models.h"

#pragma GCC visibility push(default)
namespace attn::models {

/// How the token embeddings [L, C] of a text become one vector.
enum class Pooling {
  mean,       ///< of all tokens
  mean_root,  ///< their sum divided by sqrt(L)
  weighted,   ///< the mean with weights 1, 2, ..., L
  first,      ///< the first token, as [CLS]
  last,       ///< the last token
  max,        ///< the maximum of each feature
  pooler      ///< the model's pooler, as BertModel's pooler_output
};
/// As sentence-transformers has them in its files, and "pooler".
constexpr auto enum_names(Pooling) {
  return std::to_array<std::string_view>(
      {"mean", "mean_sqrt_len_tokens", "weightedmean", "cls", "lasttoken", "max", "pooler"});
}

struct EmbedOptions {
  std::string prompt = {};   ///< put before every text; an Embedder starts with the folder's default prompt
  bool normalize = false;    ///< normalise to length 1, even if no module of the folder does
  int64_t truncate_dim = 0;  ///< keep only the first features, before normalisation; 0 = all
  /// Longer texts are truncated; special tokens and the prompt count. An Embedder starts with the folder's value; 0 =
  /// the context. It may exceed the context if positions are not learned.
  int64_t max_length = 0;
  int64_t tokens_a_step = 2048;  ///< of one packed batch
  /// The name of a text in errors; absent: "text 0".
  std::function<std::string(int64_t text)> name = {};
};

/// Embeds texts with a model without a head. It sorts texts by length and packs them: batches have no padding.
class Embedder {
 public:
  /// Opens a folder of the hub; the embedder chooses options.task. It follows the files of sentence-transformers in the
  /// folder and throws Error with file and field for what it does not support (docs/sentence-encoders.md). Without
  /// modules.json the pooling is mean, for decoders last. `pooling` overrides the folder. Throws Error as open().
  explicit Embedder(const std::string& folder, OpenOptions how = {}, std::optional<Pooling> pooling = {});
  Embedder(Embedder&&) noexcept;
  Embedder& operator=(Embedder&&) noexcept;
  ~Embedder();

  EmbedOptions options;
  const Loaded& loaded() const { return loaded_; }
  /// The folder's prompts by name.
  const std::map<std::string, std::string>& prompts() const { return prompts_; }
  /// The number of features of a vector.
  int64_t width() const;
  /// Embeds texts: returns [texts, C] in float32, zeros for a text without tokens. on_progress(done), if given, is
  /// called with 0 while texts are tokenized and then after each batch. Return false to stop: the vectors of the texts
  /// not embedded are then zero, and their indices are written to `missing`. Throws Error that names the text for text
  /// that is not UTF-8, or that has more tokens than the model has learned positions.
  Array operator()(std::span<const std::string> texts, const std::function<bool(int64_t done)>& on_progress = {},
                   std::vector<int64_t>* missing = nullptr) const;

 private:
  class Pipeline;
  std::vector<text::Encoding> encoded(std::span<const std::string> texts, int64_t first, int64_t count) const;
  int64_t prompt_tokens() const;
  void check() const;
  Loaded loaded_;
  std::map<std::string, std::string> prompts_;
  std::unique_ptr<const Pipeline> pipeline_;
};

}  // namespace attn::models
#pragma GCC visibility pop
