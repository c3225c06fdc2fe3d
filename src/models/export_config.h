// export_config: what an exported folder says of its model, in the words of transformers.
#pragma once

#include <string>
#include <vector>

#include "io/json.h"
#include "models/hub.h"
#include "models/pretrained.h"

namespace attn::models {

/// config.json: that of the original with what fine-tuning has changed, or, where `original` is null, that of the
/// family of the hub that computes the same. Throws Error that names the fields that differ.
io::Json config_for_hub(const Model& model, const Loaded& loaded, const Pretrained* original);
/// The fields in which a folder of this config.json and the model differ: "causal is true, not false".
/// Numbers may differ by this share.
std::vector<std::string> differences(const io::Json& config, const Config& model, double tolerance = 1e-12);
/// tokenizer.json of the package `tokenizers`; empty for a kind that it does not have.
std::string tokenizers_json(const text::Tokenizer& tokenizer);

}  // namespace attn::models
