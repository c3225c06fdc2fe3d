// models: predicts masked tokens, as the fill-mask pipeline of transformers does.
//
// ```cpp
// #include "attn/models_fill.h"
// int main(int argc, char** argv) {
//   if (argc < 2) return 0;  // give the folder of a masked language model
//   const attn::models::MaskFiller fill(argv[1]);
//   const auto masks = fill("Paris is the " + fill.mask() + " of France.");
//   return masks[0].tokens[0].probability > 0 ? 0 : 1;  // masks[0].tokens[0].text: the most probable token
// }
// ```
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "attn/models.h"

#pragma GCC visibility push(default)
namespace attn::models {

struct FilledToken {
  int64_t id = 0;
  double probability = 0;
  std::string text = {};  ///< the token as Tokenizer::label() shows it
};

struct FilledMask {
  int64_t position = 0;                  ///< of the mask among the tokens of the text, special tokens included
  std::vector<FilledToken> tokens = {};  ///< by falling probability, of equals the smaller id first
};

/// A masked language model.
class MaskFiller {
 public:
  /// Opens a folder. Throws Error as open_with_tokenizer(), and as the other constructor.
  explicit MaskFiller(const std::string& folder, const OpenOptions& how = {});
  /// Throws Error for a model that is no masked language model or has no tokenizer, and for a tokenizer without a mask
  /// token.
  explicit MaskFiller(Loaded loaded);

  const Loaded& loaded() const { return loaded_; }
  /// The mask token: "[MASK]" or "<mask>".
  const std::string& mask() const { return mask_; }
  /// For each mask of the text its `top_k` most probable tokens. Throws Error for a text without a mask, and as
  /// Tokenizer::encode().
  std::vector<FilledMask> operator()(std::string_view text, int64_t top_k = 5) const;

 private:
  Loaded loaded_;
  std::string mask_;
  int64_t mask_id_ = -1;
};

}  // namespace attn::models
#pragma GCC visibility pop
