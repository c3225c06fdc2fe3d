// models: texts as vectors.
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "attn/models.h"

#pragma GCC visibility push(default)
namespace attn::models {

/// What becomes of a text's rows [L, C].
enum class RowPooling {
  mean,   ///< of all rows
  first,  ///< the first, of [CLS]
  last,   ///< the last
  max,    ///< column by column
  pooler  ///< what the model's pooler makes of the first, as BertModel's pooler_output
};

struct EmbedOptions {
  RowPooling pooling = RowPooling::mean;
  bool normalise = false;        ///< to length 1
  int64_t longest = 0;           ///< tokens of a text, those around it among them; the rest is cut off. 0 = the context
  int64_t tokens_a_step = 2048;  ///< of the packed batches that texts are computed in
};

/// A model without a head that makes a vector of each text. Texts are sorted by length and packed: no row of a batch is
/// padding, whatever their lengths.
class Embedder {
 public:
  /// From a folder of the hub, whose task is the embedder's to choose. What modules.json of sentence-transformers and
  /// the files it names say of pooling, length and normalisation is taken; without them it is the mean. `pooling`
  /// stands above what they say; a pooler is loaded for it alone. Throws Error as open(), and for modules that are not
  /// served.
  explicit Embedder(const std::string& folder, OpenOptions how = {}, std::optional<RowPooling> pooling = {});

  EmbedOptions options;
  const Loaded& loaded() const { return loaded_; }
  /// Columns of the result.
  int64_t width() const { return loaded_.model->config().embed_dim; }
  /// [texts, C] in float32; zeros for a text without tokens. on_progress, if given, hears of the texts done so far, and
  /// ends the work by false: then `missing` is told the texts whose turn had not come, in order, and their vectors are
  /// zero. It hears of 0 while texts become tokens. Throws Error that names the text for one that is not UTF-8.
  nn::Array operator()(std::span<const std::string> texts, const std::function<bool(int64_t done)>& on_progress = {},
                       std::vector<int64_t>* missing = nullptr) const;

 private:
  Loaded loaded_;
};

}  // namespace attn::models
#pragma GCC visibility pop
