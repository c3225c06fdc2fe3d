// gguf: the tokenizer that a GGUF file contains.
#pragma once

#include "io/gguf.h"

namespace attn::text {

/// The tokenizer.json that encodes as the file's tokenizer does. Throws Error for a kind that is not supported.
io::Json gguf_tokenizer(const io::Gguf& file);

/// The entries "tokenizer.ggml..." of a file for a model of `vocab_size` tokens, from a tokenizer.json. Throws Error
/// for a tokenizer that llama.cpp has no name for.
io::Json gguf_entries(const io::Json& tokenizer, int64_t vocab_size);

}  // namespace attn::text
