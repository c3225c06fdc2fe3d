// models: the tokens that fit the masks of a text.
//
//   const attn::models::MaskFiller fill("bert-base-uncased");  // a folder of the Hugging Face hub
//   for (const auto& mask : fill("Paris is the [MASK] of France."))
//     std::printf("%s %.3f\n", mask.tokens[0].text.c_str(), mask.tokens[0].probability);
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
  std::string text;  ///< as Tokenizer::label() shows it
};

struct FilledMask {
  int64_t position = 0;             ///< of the mask among the tokens of the text, special tokens included
  std::vector<FilledToken> tokens;  ///< by falling probability, of equals the smaller id first
};

/// A masked language model, used as the fill-mask pipeline of transformers does.
class MaskFiller {
 public:
  /// Opens a folder. Throws Error as open_with_tokenizer(), and for a model that is no masked language model.
  explicit MaskFiller(const std::string& folder, const OpenOptions& how = {});
  /// Throws Error for such a model, for a model without a tokenizer, and for a tokenizer without a mask token.
  explicit MaskFiller(Loaded loaded);

  const Loaded& loaded() const { return loaded_; }
  /// The token that stands for a mask: "[MASK]" or "<mask>".
  const std::string& mask() const { return mask_; }
  /// One result for each mask of the text, with its `top_k` most probable tokens. Throws Error for a text without a
  /// mask.
  std::vector<FilledMask> operator()(std::string_view text, int64_t top_k = 5) const;

 private:
  Loaded loaded_;
  std::string mask_;
  int64_t mask_id_ = -1;
};

}  // namespace attn::models
#pragma GCC visibility pop
