// attn eval of pairs: how far a model's answers are from those that are wanted.
#pragma once

#include "attn/models.h"

namespace cli {

/// Answers each source of the file once, greedily, and prints the share of tokens that are wrong and of answers that
/// are right. Of several targets of one source the nearest counts.
void evaluate_pairs(const attn::models::Loaded& loaded, const std::string& file);

}  // namespace cli
