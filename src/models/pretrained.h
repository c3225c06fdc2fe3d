// pretrained: what the folder of a fine-tuned model keeps of the folder that it started from.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "attn/models_finetune.h"
#include "io/json.h"

namespace attn::models {

struct Pretrained {
  io::Json config = {};                                      ///< config.json
  std::string task = {};                                     ///< as OpenOptions::task
  std::map<std::string, std::vector<int64_t>> tensors = {};  ///< shapes by name
  std::map<std::string, std::string> files = {};             ///< content of other files by name

  /// What says how the model generates: generation_config.json or, without one, config.json. Throws Error.
  io::Json generation() const;
};
/// From the content of such a file, which errors call `source`. Throws Error.
Pretrained parse_pretrained(const std::string& content, const std::string& source);
/// Nothing where the directory has no such file. Throws Error that names the file.
std::optional<Pretrained> read_pretrained(const std::string& directory);

}  // namespace attn::models
