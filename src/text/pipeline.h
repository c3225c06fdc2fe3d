// pipeline: builds the tokenizer that a tokenizer.json describes.
#pragma once

#include <memory>
#include <string>

#include "attn/text.h"
#include "io/json.h"

namespace attn::text {

/// `root` is the object of a tokenizer.json, and `source` its name in messages. to_json() of the tokenizer returns
/// `text` or, if that is empty, `root` as text. Throws Error for fields that are not supported or contradict each
/// other.
std::unique_ptr<Tokenizer> read_pipeline(const io::Json& root, const std::string& source, std::string text = "");

}  // namespace attn::text
