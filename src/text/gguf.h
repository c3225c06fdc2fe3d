// gguf: the tokenizer that a GGUF file contains.
#pragma once

#include "io/gguf.h"

namespace attn::text {

/// The tokenizer.json that encodes as the file's tokenizer does. Throws Error for a kind that is not supported.
io::Json gguf_tokenizer(const io::Gguf& file);

}  // namespace attn::text
