// attn heads: texts as a model sees them, and the attention of its layers on each.
#pragma once

#include <functional>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "attn/heads.h"
#include "attn/models.h"
#include "model_flags.h"

namespace cli {

/// The tokens of one text, with what is around it.
struct HeadsText {
  std::vector<int64_t> ids = {}, kinds = {};  ///< attn::heads::TokenKind
};

/// "2.5" for head 5 of layer 2: a name for each head of all layers.
std::vector<std::string> head_names(const std::vector<attn::RecordedAttention>& layers);

/// What a model reads: the tokenizer and the context of its encoder, where it has one.
class HeadsReader {
 public:
  explicit HeadsReader(const attn::models::Loaded& loaded, const ContextOption& context = {});
  const attn::text::Tokenizer& tokenizer() const { return *tokenizer_; }
  int64_t context() const { return context_; }
  const attn::models::Config& config() const { return loaded_.model->config(); }

  /// Cut to the context; `cut` counts what was.
  HeadsText of_text(const std::string& text, int64_t& cut) const;
  /// Of tokens that are a whole text, with what is around it.
  HeadsText with_kinds(std::vector<int64_t> ids) const;
  /// Around `ids` what the tokenizer has around a text.
  HeadsText of_ids(const std::vector<int64_t>& ids) const;
  /// A sentence of these words, and the word of each token [n], -1 for those around the text. Nothing where it is
  /// longer than the context, where a word has no token, or where a token is of two words.
  std::optional<std::pair<HeadsText, std::vector<int64_t>>> of_words(const std::vector<std::string>& words) const;
  /// Tokens that of_ids() adds.
  int64_t marks() const { return static_cast<int64_t>(marks_.size()); }
  /// The tokens that are text.
  std::vector<int64_t> usable() const;

  using Look = std::function<void(const std::vector<attn::RecordedAttention>&, const attn::heads::Texts&)>;
  /// Layers of the model on a text; of a model with an encoder, those of the encoder.
  void look(const HeadsText& text, const Look& at) const;

 private:
  const attn::models::Loaded& loaded_;
  const attn::text::Tokenizer* tokenizer_;
  int64_t context_;
  std::vector<int64_t> marks_;  // of an empty text
  std::set<int64_t> words_;     // special tokens that mean words
};

}  // namespace cli
