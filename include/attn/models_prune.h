// models: removing heads for real. What attention layers have, and which heads go, is counted in key/value heads: one
// of them with the heads that share it is what can be removed. Without grouped heads that is a head.
#pragma once

#include "attn/models.h"

#pragma GCC visibility push(default)
namespace attn::models {

/// Of each of attention_layers() some of its key/value heads, counted from 0 among those that it has.
using HeadLists = std::vector<std::vector<int64_t>>;

/// The configuration of the model without these heads. Tables of relative positions that layers share become one a
/// layer. Throws Error for lists that do not fit, where a layer would keep no head, and of models whose heads cannot be
/// told apart: selfhead, and query_key_norm rows.
Config without_heads(const Config& config, const HeadLists& removed);
/// The model without these heads: smaller matrices that give what gates of 0 give in the whole one. The rest is copied.
Model remove_heads(const Model& model, const HeadLists& removed, nn::Purpose purpose = nn::Purpose::training);

/// Gates for ForwardOptions that are 0 for these heads and otherwise 1, for all sequences alike, in the type that the
/// parameters have beside this one.
std::vector<Value> gates_without(const Config& config, const HeadLists& removed, DType type = DType::float32);

}  // namespace attn::models
#pragma GCC visibility pop
