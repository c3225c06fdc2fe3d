// folder: the config.json of a model's folder, of the hub or of `attn train`.
#pragma once

#include <string>
#include <string_view>

#include "attn/models_config.h"
#include "io/json.h"

namespace attn::models {

/// The config.json of a folder: transformers', or one that a training wrote. Throws Error that says what the folder is
/// instead.
io::Json read_model_file(std::string_view operation, const std::string& folder);
/// True for config.json of transformers, which names its model_type.
bool is_of_transformers(const io::Json& config);

/// apply_json() of what is parsed.
void apply_fields(Config& config, const io::Json& object, const std::string& source);
/// The defaults of a family, ours or, where we have none of this name, one of the hub.
Config defaults_named(const std::string& family);

}  // namespace attn::models
