// models: removes attention heads from a model. Heads are key/value heads: one is removed with the query heads that
// share it. attn/train_prune.h chooses them.
//
// ```cpp
// #include "attn/models_prune.h"
// using namespace attn;
// int main() {
//   models::Config config = models::family("gpt");
//   config.vocab_size = 50, config.layers = 2;
//   const models::Model model(config, nn::Precision::float32, 1);
//   const models::Model smaller = models::remove_heads(model, {{0, 3}, {}});  // heads 0 and 3 of layer 0
// }
// ```
#pragma once

#include "attn/models.h"

#pragma GCC visibility push(default)
namespace attn::models {

/// For each of attention_layers() a list of its key/value heads, from 0.
using HeadLists = std::vector<std::vector<int64_t>>;

/// The configuration without these heads. A relative bias that layers share becomes one per layer. Throws Error for
/// lists that do not fit, for a layer that would keep no head, and for models whose heads cannot be separated:
/// selfhead, and query_key_norm rows.
Config without_heads(const Config& config, const HeadLists& removed);
/// A copy of the model without these heads. It computes what the whole model computes with gates of 0 on them.
Model remove_heads(const Model& model, const HeadLists& removed, nn::Purpose purpose = nn::Purpose::training);

/// Gates for ForwardOptions: 0 for these heads, 1 for the others, in the type of the parameters of a model that
/// computes in `type`.
std::vector<Value> gates_without(const Config& config, const HeadLists& removed, DType type = DType::float32);

}  // namespace attn::models
#pragma GCC visibility pop
