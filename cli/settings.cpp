// training.json, and the folder around it.
#include "settings.h"

#include <filesystem>

#include "attn/models_finetune.h"
#include "commands.h"

namespace cli {

std::string settings_json(Settings settings) {
  for (std::string* path : {&settings.data, &settings.validation, &settings.from, &settings.tokenizer})
    if (!path->empty() && *path != "-") *path = std::filesystem::absolute(*path).lexically_normal().string();
  nlohmann::ordered_json object;
  each_saved(settings, [&](const char* name, const auto& field, WhenResumed) { object[name] = field; });
  return object.dump(2) + "\n";
}

const std::vector<std::string>& own_files() {
  static const std::vector<std::string> names = {kConfigFile,
                                                 kTokenizerFile,
                                                 attn::models::kSourceTokenizerFile,
                                                 kSettingsFile,
                                                 kLogFile,
                                                 attn::models::kLabelsFile,
                                                 attn::models::kPretrainedFile};
  return names;
}

void require_free(const std::string& out, bool overwrite, const std::string& advice) {
  const attn::models::Checkpoints directory(out);
  if (const std::string reason = directory.obstacle(own_files(), true); !reason.empty())
    throw UsageError(reason + ": --out must name a new directory, an empty one, or that of an earlier training");
  const std::string taken = overwrite ? "" : directory.obstacle(own_files(), false);
  if (!taken.empty())
    throw UsageError(taken + ": " + advice + "--overwrite replaces it, --out names another directory");
}

void hold_folder(const std::string& out, FolderLock& lock) {
  if (attn::io::exists(out)) lock.emplace(out);
}

void begin_directory(const Settings& settings, const attn::models::Config& config, const Prepared& prepared,
                     bool overwrite, FolderLock& lock, const std::string& pretrained) {
  attn::io::make_directory(settings.out);
  if (!lock) lock.emplace(settings.out);
  std::map<std::string, std::string> files = {{kConfigFile, attn::models::to_json(config)},
                                              {kTokenizerFile, prepared.tokenizer->to_json()},
                                              {kSettingsFile, settings_json(settings)}};
  if (prepared.source_tokenizer) files[attn::models::kSourceTokenizerFile] = prepared.source_tokenizer->to_json();
  if (config.classes) files[attn::models::kLabelsFile] = attn::models::labels_to_json(prepared.labels);
  if (!pretrained.empty()) files[attn::models::kPretrainedFile] = pretrained;
  attn::models::Checkpoints(settings.out).begin(files, own_files(), overwrite);
}

}  // namespace cli
