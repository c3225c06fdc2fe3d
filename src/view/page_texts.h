// The check of tokens that belong to recorded attention.
#pragma once

#include <string>
#include <vector>

#include "record/recorded.h"

namespace attn::view {

/// Checks layers of one text, and records reasons where there are tokens, but not one for each key, where there are
/// tokens of queries, but not one for each query, and where `second` is neither -1 nor a token after the first one.
void check_tokens(Checker& checker, const std::vector<RecordedAttention>& layers,
                  const std::vector<std::string>& tokens, const std::vector<std::string>& queries, int64_t second);

}  // namespace attn::view
