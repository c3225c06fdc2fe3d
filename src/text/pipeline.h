// pipeline: the tokenizer that a tokenizer.json describes.
#pragma once

#include <memory>
#include <string_view>

#include "attn/text.h"
#include "text/fields.h"

namespace attn::text {

/// `json` is the text of `root`. Throws by `root` for what is not known.
std::unique_ptr<Tokenizer> read_pipeline(const JsonFields& root, std::string_view json);

}  // namespace attn::text
