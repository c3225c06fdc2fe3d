// foreign: what is given in place of a model or a tokenizer, named for what it is, with what to do instead.
#pragma once

#include <string>
#include <string_view>

namespace attn::io {

/// "a GGUF file of llama.cpp", by the first bytes of a file; "" for bytes of no kind that is known here.
std::string kind_of_bytes(std::string_view bytes);
/// A vocabulary of SentencePiece, by its first piece.
bool is_sentencepiece(std::string_view bytes);
/// Throws Error "[operation] source: is a ..." for bytes of another kind that is known here.
void require_vocabulary(std::string_view operation, const std::string& source, std::string_view bytes);

/// What a folder has in place of the weights or of the tokenizer's files that are read: ", but model.gguf, a GGUF file
/// of llama.cpp, which is not read: ..."; "" where it has nothing that is known here.
enum class Content { weights, tokenizer };
std::string instead_in(const std::string& folder, Content wanted);

/// Why there is nothing to open at a path that somebody gave as a model or a tokenizer; "" if there is something.
std::string why_missing(const std::string& path);

/// Throws Error "[operation] path: ..." unless the path is a folder with a config.json that is no adapter's.
void require_model(std::string_view operation, const std::string& path);

}  // namespace attn::io
