// Checkpoints on the disk: what is written in which order, and how damage is found.
//
// A file carries the CRC-32 of all its tensors' names and bytes and of the trainer's state in its metadata, so it can
// be judged alone, even where checkpoints.json is lost.
#include <algorithm>
#include <charconv>
#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "attn/models.h"
#include "io/json.h"

namespace attn::models {
namespace {

namespace fs = std::filesystem;
using io::Json;

constexpr const char* kFormat = "attention.cpp checkpoint 1";
constexpr const char* kManifest = "checkpoints.json";

std::string file_name(int64_t step) { return "step-" + std::to_string(step) + ".safetensors"; }

/// The step of "step-<n>.safetensors"; -1 for any other name.
int64_t step_of(std::string_view name) {
  constexpr std::string_view head = "step-", tail = ".safetensors";
  if (name.size() <= head.size() + tail.size() || !name.starts_with(head) || !name.ends_with(tail)) return -1;
  const char *begin = name.data() + head.size(), *end = name.data() + name.size() - tail.size();
  int64_t step = -1;
  const auto [stop, error] = std::from_chars(begin, end, step);
  return error == std::errc() && stop == end ? step : -1;
}

std::string hex(uint32_t value) {
  char text[16];
  std::snprintf(text, sizeof text, "%08x", value);
  return text;
}

/// Of the state, then of names and bytes in order of names.
uint32_t checksum(const std::string& state, const std::map<std::string, std::string_view>& tensors) {
  uint32_t sum = io::crc32(state);
  for (const auto& [name, bytes] : tensors) sum = io::crc32(bytes, io::crc32(name, sum));
  return sum;
}

/// Throws Error for anything that is not a whole checkpoint of ours.
Checkpoint read_checked(const std::string& path) {
  Checkpoint checkpoint{path, 0, io::Safetensors::read(path), ""};
  const auto& metadata = checkpoint.file.metadata();
  const auto field = [&](const char* name) {
    const auto found = metadata.find(name);
    if (found == metadata.end()) throw Error("checkpoint", {path + ": the metadata lack '" + name + "'"});
    return found->second;
  };
  if (field("format") != kFormat)
    throw Error("checkpoint", {path + ": the format is '" + field("format") + "', not '" + kFormat + "'"});
  checkpoint.state = field("state");
  std::map<std::string, std::string_view> tensors;
  for (const auto& [name, info] : checkpoint.file.tensors()) tensors[name] = checkpoint.file.bytes(name);
  if (const std::string sum = hex(checksum(checkpoint.state, tensors)); sum != field("crc32"))
    throw Error("checkpoint", {path + ": damaged: the checksum is " + sum + ", must be " + field("crc32")});
  checkpoint.step = step_of(fs::path(path).filename().string());
  return checkpoint;
}

Json read_manifest(const std::string& directory) {
  const std::string path = directory + "/" + kManifest;
  std::error_code unknown;  // then reading says why
  if (!fs::exists(path, unknown) && !unknown) return Json::object();
  const Json manifest = io::parse_json("checkpoint", path, io::read_file(path, 1 << 20));
  if (!manifest.is_object()) throw Error("checkpoint", {path + " is not a JSON object"});
  for (const char* name : {"last", "previous", "best"})
    if (manifest.contains(name) && (!manifest[name].is_string() || step_of(manifest[name].get<std::string>()) < 0))
      throw Error("checkpoint", {path + ": '" + name + "' does not name a checkpoint"});
  return manifest;
}

std::vector<std::string> files_newest_first(const std::string& directory) {
  std::vector<std::string> names;
  std::error_code failed;
  for (fs::directory_iterator entry(directory, failed), end; !failed && entry != end; entry.increment(failed))
    if (step_of(entry->path().filename().string()) >= 0) names.push_back(entry->path().filename().string());
  std::sort(names.begin(), names.end(), [](const auto& a, const auto& b) { return step_of(a) > step_of(b); });
  return names;
}

}  // namespace

Checkpoints::Checkpoints(std::string directory) : directory_(std::move(directory)) {
  if (directory_.empty()) throw Error("checkpoint", {"the directory has no name"});
}

bool Checkpoints::empty() const { return files_newest_first(directory_).empty(); }

void Checkpoints::save(int64_t step, std::span<const io::NamedTensor> tensors, const std::string& state, bool best,
                       bool keep) {
  if (step < 0) throw Error("checkpoint", {"the step is " + std::to_string(step) + ", must not be negative"});
  std::map<std::string, std::string_view> views;
  for (const io::NamedTensor& tensor : tensors) views[tensor.name] = io::bytes_of(tensor);
  const std::string name = file_name(step);
  io::write_file(
      directory_ + "/" + name,
      io::format_safetensors(tensors, {{"format", kFormat}, {"state", state}, {"crc32", hex(checksum(state, views))}}));

  Json manifest = Json::object();
  try {
    manifest = read_manifest(directory_);
  } catch (const Error&) {  // it is written anew
  }
  if (manifest.contains("last") && manifest["last"] != name) manifest["previous"] = manifest["last"];
  manifest["last"] = name;
  if (best || !manifest.contains("best")) manifest["best"] = name;
  if (!manifest.contains("kept") || !manifest["kept"].is_array()) manifest["kept"] = Json::array();
  if (keep && std::find(manifest["kept"].begin(), manifest["kept"].end(), name) == manifest["kept"].end())
    manifest["kept"].push_back(name);
  io::write_file(directory_ + "/" + kManifest, manifest.dump(2) + "\n");

  for (const std::string& file : files_newest_first(directory_)) {
    const bool named = file == manifest["last"] || file == manifest.value("previous", "") || file == manifest["best"] ||
                       std::find(manifest["kept"].begin(), manifest["kept"].end(), file) != manifest["kept"].end();
    std::error_code ignored;  // a file too many does no harm
    if (!named) fs::remove(directory_ + "/" + file, ignored);
  }
}

namespace {

void require_choice(std::string_view which) {
  if (which != "last" && which != "best")
    throw Error("checkpoint", {"which is " + io::in_quotes(which) + ", must be \"last\" or \"best\""});
}

}  // namespace

Checkpoint Checkpoints::load(std::string_view which, std::vector<std::string>* notes) const {
  require_choice(which);
  std::vector<std::string> names, failures;
  const auto offer = [&](const std::string& name) {
    if (!name.empty() && std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
  };
  try {
    const Json manifest = read_manifest(directory_);
    if (which == "best") offer(manifest.value("best", ""));
    offer(manifest.value("last", ""));
    offer(manifest.value("previous", ""));
  } catch (const Error& error) {
    failures.push_back(error.what());
  }
  for (const std::string& name : files_newest_first(directory_)) offer(name);
  for (const std::string& name : names) {
    try {
      Checkpoint checkpoint = read_checked(directory_ + "/" + name);
      if (notes && !failures.empty()) {
        notes->insert(notes->end(), failures.begin(), failures.end());
        notes->push_back("taking " + name + " instead");
      }
      return checkpoint;
    } catch (const Error& error) {
      failures.push_back(error.what());
    }
  }
  if (failures.empty()) failures.push_back(directory_ + " holds no checkpoint");
  throw Error("checkpoint", std::move(failures));
}

Loaded load_model(const std::string& directory, std::string_view which, nn::Precision precision) {
  require_choice(which);
  Config config;
  const std::string config_path = directory + "/config.json", tokenizer_path = directory + "/tokenizer.json";
  apply_json(config, io::read_file(config_path, 1 << 20), config_path);
  Loaded loaded;
  loaded.tokenizer = text::load_tokenizer(io::read_file(tokenizer_path, 1 << 28), tokenizer_path);
  if (loaded.tokenizer->size() != config.vocab_size)
    throw Error("load", {tokenizer_path + " has " + std::to_string(loaded.tokenizer->size()) + " tokens, " +
                         config_path + " says " + std::to_string(config.vocab_size)});
  const Checkpoint checkpoint = Checkpoints(directory).load(which, &loaded.notes);
  loaded.model = std::make_unique<Model>(config, precision);
  loaded.model->load(checkpoint.file);
  loaded.step = checkpoint.step;
  return loaded;
}

}  // namespace attn::models
