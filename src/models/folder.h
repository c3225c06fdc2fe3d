// folder: the config.json of a model's folder, of the hub or of `attn train`.
#pragma once

#include <string>
#include <string_view>

#include "attn/models.h"
#include "io/json.h"

namespace attn::models {

/// The config.json of a folder: transformers', or one that a training wrote. Throws Error that says what the folder is
/// instead.
io::Json read_model_file(std::string_view operation, const std::string& folder);
/// True for config.json of transformers, which names its model_type.
bool is_of_transformers(const io::Json& config);

/// "a, b"
std::string joined(const std::vector<std::string>& names);
/// Sets one field. Returns what is wrong with the value, "" if nothing is. "model" sets all fields to the defaults of
/// the family, unless `family_defaults` is false.
std::string assign(Config& config, const std::string& name, const io::Json& value, bool family_defaults = true);
/// apply_json() of what is parsed.
void apply_fields(Config& config, const io::Json& object, const std::string& source, bool family_defaults = true);
/// A configuration that `attn train` wrote, checked. Errors name the file.
Config own_config(const io::Json& object, const std::string& source);
/// read_config(), open() and load_model() of a folder whose config.json is parsed.
Config config_of(const io::Json& json, const std::string& folder, const std::string& task);
Loaded open_parsed(const std::string& folder, const io::Json& json, const OpenOptions& options);
Loaded load_parsed(const std::string& directory, const io::Json& json, const OpenOptions& options);
nn::Parameters::Options parameter_options(const OpenOptions& options);
/// True for a parameter that a fine-tuning may add: of the head, or of an adapter.
bool may_be_new(std::string_view parameter);
/// The defaults of a family, ours or, where we have none of this name, one of the hub.
Config defaults_named(const std::string& family);

}  // namespace attn::models
