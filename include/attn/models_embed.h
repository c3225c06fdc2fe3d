// models: texts as vectors.
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

/// What becomes of a text's rows [L, C].
enum class RowPooling {
  mean,       ///< of all rows
  mean_root,  ///< their sum by the square root of their number
  weighted,   ///< the mean by weights 1, 2, ..., L
  first,      ///< the first, of [CLS]
  last,       ///< the last
  max,        ///< column by column
  pooler      ///< what the model's pooler makes of the first, as BertModel's pooler_output
};

struct EmbedOptions {
  std::string prompt = {};  ///< stands before every text; an Embedder begins with the folder's default prompt
  bool normalise = false;   ///< to length 1, even where no module of the folder does
  int64_t dimensions = 0;   ///< columns that are kept, before that; 0 = all
  /// Tokens of a text, those around it and the prompt among them; the rest is cut off. An Embedder begins with what the
  /// folder says; 0 = the context. It may be above the context: texts may be so long where positions are not learned.
  int64_t longest = 0;
  int64_t tokens_a_step = 2048;  ///< of the packed batches that texts are computed in
  /// What errors call a text; absent: "text 0".
  std::function<std::string(int64_t text)> name = {};
};

/// A model without a head that makes a vector of each text. Texts are sorted by length and packed: no row of a batch is
/// padding, whatever their lengths.
class Embedder {
 public:
  /// From a folder of the hub, whose task is the embedder's to choose. What the files of sentence-transformers in it
  /// say is obeyed, or refused by an Error that names file and field, but for the fields that have no effect
  /// (docs/sentence-encoders.md); without modules.json it is the mean, of a decoder the last row. `pooling` stands
  /// above what the folder says; a pooler is loaded for it alone. Throws Error as open().
  explicit Embedder(const std::string& folder, OpenOptions how = {}, std::optional<RowPooling> pooling = {});
  Embedder(Embedder&&) noexcept;
  Embedder& operator=(Embedder&&) noexcept;
  ~Embedder();

  EmbedOptions options;
  const Loaded& loaded() const { return loaded_; }
  /// The folder's prompts, by name.
  const std::map<std::string, std::string>& prompts() const { return prompts_; }
  /// Columns of the result.
  int64_t width() const;
  /// [texts, C] in float32; zeros for a text without tokens. on_progress, if given, hears of the texts done so far, and
  /// ends the work by false: then `missing` is told the texts whose turn had not come, in order, and their vectors are
  /// zero. It hears of 0 while texts become tokens. Throws Error that names the text for one that is not UTF-8, or that
  /// has more tokens than the model has learned positions.
  nn::Array operator()(std::span<const std::string> texts, const std::function<bool(int64_t done)>& on_progress = {},
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
