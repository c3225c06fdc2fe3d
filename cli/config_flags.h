// Flags of a model's configuration, one for each field, and of the precision that a subcommand computes with.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "attn/models.h"

namespace CLI {
class App;
}

namespace cli {

/// "--embed-dim" for the field "embed_dim".
std::string flag_of(std::string field);

/// The flags of a configuration: --embed-dim 128 and so on, one for each field.
struct ConfigOptions {
  std::string family, file, mixer, mixer_every;
  std::vector<std::pair<std::string, std::string>> fields;
  void add(CLI::App& command);
  /// The defaults of the family, changed by the file, the mixers and the fields. Throws UsageError for a model that
  /// cannot be built.
  attn::models::Config build(const std::string& default_family) const;
};

void add_precision(CLI::App& command, std::string& name, const std::string& description = "type of the computation");
attn::nn::Precision precision_named(const std::string& name);
/// The same for a command that only reads a model, whose weights may be int8 and int4 too; then layers compute in
/// float32.
void add_model_precision(CLI::App& command, std::string& name);
void set_precision(attn::models::OpenOptions& options, const std::string& name);

/// How float32 enters products and attention of this process, by name: an option of all subcommands.
void add_float32_precision(CLI::App& app, std::string& name);
void set_float32_precision(const std::string& name);
std::string float32_precision();

}  // namespace cli
