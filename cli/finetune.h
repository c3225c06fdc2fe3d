// attn train --from: the model that a training begins with.
#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "attn/models_finetune.h"
#include "config_flags.h"
#include "prepare.h"
#include "settings.h"

namespace CLI {
class App;
}

namespace cli {

/// --from and what belongs to it.
void add_finetune_options(CLI::App& command, Settings& settings);

/// Whether a parameter is trained, as --tune says; null where all are.
std::function<bool(std::string_view)> trained_by(const std::string& tune, const attn::models::Config& config);

/// A training that begins with the model of a folder.
class FineTuning {
 public:
  /// Reads the folder's configuration and sets the settings that the command line does not give to values that suit
  /// fine-tuning. Throws UsageError for fields of the model that the folder decides.
  FineTuning(Settings& settings, const ConfigOptions& given, const CLI::App& command);
  const attn::models::Config& config() const { return config_; }
  /// The folder's tokenizer, and the names of its classes, for prepare().
  Origin origin() const;
  /// Opens the model for the data that were prepared with this configuration.
  attn::models::Loaded open(const Settings& settings, const attn::models::Config& prepared, const Prepared& data,
                            const Job& job) const;
  /// The content of pretrained.json; empty for a model that attn train made from the start.
  std::string pretrained() const { return attn::models::pretrained_json(folder_, head_); }

 private:
  void check_flags(const Settings& settings, const ConfigOptions& given, const CLI::App& command) const;
  std::string folder_, head_;  // the end of the name of transformers' class with the head that is trained
  attn::models::Config config_;
  std::vector<std::string> labels_;
  attn::models::ProblemType had_problem_ = attn::models::ProblemType::single_label;  // of the folder's classifier
};

}  // namespace cli
