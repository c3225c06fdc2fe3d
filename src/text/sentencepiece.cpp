// SentencePiece's models.
#include "attn/core.h"
#include "text/tokenizers.h"

namespace attn::text {

std::unique_ptr<Tokenizer> load_sentencepiece(std::string_view, const std::string& source) {
  throw Error("load_sentencepiece", {source + ": SentencePiece models are not read"});
}

}  // namespace attn::text
