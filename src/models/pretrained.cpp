// pretrained.json: written when a training begins with a folder of the hub, read when its model is opened or exported.
#include "models/pretrained.h"

#include <algorithm>

#include "models/hub.h"

namespace attn::models {
namespace {

using io::Json;

constexpr int64_t kMostBytes = 1 << 26;
constexpr const char* kGeneration = "generation_config.json";
/// The files that export_folder() writes again as they were. The tokenizer itself is in tokenizer.json.
constexpr auto kKeptFiles = std::to_array<const char*>(
    {kGeneration, "tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja"});

/// modules.json, and the config.json of the modules that it names; the weights of modules are not kept.
std::vector<std::string> module_files(const std::string& folder) {
  std::vector<std::string> names;
  const std::string path = folder + "/modules.json";
  if (!io::exists(path)) return names;
  names.emplace_back("modules.json");
  for (const char* name : {"sentence_bert_config.json", "config_sentence_transformers.json"}) names.emplace_back(name);
  const Json modules = io::read_json("open", path);
  for (const Json& each : modules.is_array() ? modules : Json::array())
    if (const Json place = each.is_object() ? each.value("path", Json()) : Json(); place.is_string() && place != "")
      names.push_back(place.get<std::string>() + "/config.json");
  return names;
}

/// True for a name within the folder: no empty part, no "..".
bool is_inside(const std::string& name) {
  for (size_t begin = 0, end = 0; end != std::string::npos; begin = end + 1) {
    end = name.find('/', begin);
    const std::string part = name.substr(begin, end == std::string::npos ? end : end - begin);
    if (part.empty() || part == "." || part == "..") return false;
  }
  return true;
}

bool is_shape(const Json& value) {
  return value.is_array() &&
         std::all_of(value.begin(), value.end(), [](const Json& each) { return io::whole_number(each).has_value(); });
}

std::string json_of(const Json& config, const std::string& task,
                    const std::map<std::string, std::vector<int64_t>>& tensors,
                    const std::map<std::string, std::string>& files) {
  return Json({{"config", config}, {"task", task}, {"tensors", tensors}, {"files", files}}).dump(1) + "\n";
}

}  // namespace

Json Pretrained::generation() const {
  const auto own = files.find(kGeneration);
  return own == files.end() ? config : io::parse_json("load", kGeneration, own->second);
}

std::optional<Pretrained> read_pretrained(const std::string& directory) {
  const std::string path = directory + "/" + kPretrainedFile;
  if (!io::exists(path)) return {};
  return parse_pretrained(io::read_file(path, kMostBytes), path);
}

Pretrained parse_pretrained(const std::string& content, const std::string& path) {
  const Json json = io::parse_json("load", path, content);
  const auto part = [&](const char* name) { return json.is_object() ? json.value(name, Json()) : Json(); };
  const Json config = part("config"), task = part("task"), tensors = part("tensors"), files = part("files");
  const auto is_text = [](const Json& each) { return each.is_string(); };
  if (!config.is_object() || !task.is_string() || !tensors.is_object() || !files.is_object() ||
      !std::all_of(tensors.begin(), tensors.end(), is_shape) || !std::all_of(files.begin(), files.end(), is_text))
    throw Error("load", {path + " must have the objects config, tensors and files and the text task, as attn train "
                                "writes them"});
  for (const auto& file : files.items())
    if (!is_inside(file.key()))
      throw Error("load", {path + ": files has " + io::in_quotes(file.key()) + ", which is not inside a folder"});
  return Pretrained{config, task, tensors, files};
}

std::string pretrained_json(const std::string& folder, const std::string& task) {
  const Json config = read_model_file("open", folder);
  if (!is_of_transformers(config)) {
    const std::optional<Pretrained> own = read_pretrained(folder);
    return own ? json_of(own->config, task, own->tensors, own->files) : std::string();
  }
  HubModel hub = read_hub_config(config, folder + "/config.json", task);
  std::map<std::string, std::string> files;
  std::vector<std::string> kept(kKeptFiles.begin(), kKeptFiles.end());
  for (std::string& name : module_files(folder)) kept.push_back(std::move(name));
  for (const std::string& name : kept)
    if (const std::string path = folder + "/" + name; is_inside(name) && io::exists(path)) {
      const std::string content = io::read_file(path, kMostBytes);
      if (!io::json_string(content)) throw Error("open", {path + " is not UTF-8"});
      files[name] = content;
    }
  return json_of(config, task, HubWeights(folder, hub).shapes(), files);
}

}  // namespace attn::models
