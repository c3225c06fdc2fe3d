// Checkpoints on the disk: what is written in which order, how damage is found, and which files are the training's own.
//
// A file carries the CRC-32 of all its tensors' names and bytes and of the trainer's state in its metadata, so it can
// be judged alone, even where checkpoints.json is lost. That file lists all that the training wrote: a name is added
// before its file is made and taken off after it is gone, so a crash never leaves a file of ours that looks like
// somebody else's, and nothing of somebody else's is ever on the list.
#include <algorithm>
#include <charconv>
#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "attn/models.h"
#include "models/folder.h"
#include "models/hub.h"
#include "models/pretrained.h"
#include "models/quantization.h"

namespace attn::models {
namespace {

namespace fs = std::filesystem;
using io::Json;
using FileNames = std::vector<std::string>;

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

struct Sum {
  uint32_t crc = 0;
  int64_t length = 0;
};

/// Of the state, then of names and bytes in order of names.
uint32_t checksum(const std::string& state, const std::map<std::string, Sum>& tensors) {
  uint32_t sum = io::crc32(state);
  for (const auto& [name, bytes] : tensors) sum = io::crc32_combined(io::crc32(name, sum), bytes.crc, bytes.length);
  return sum;
}

/// One checkpoint's file. Its tensors can be read before all of them are known to be whole: verify() says so.
class File {
 public:
  File(std::string path, io::Safetensors file) : path_(std::move(path)), file_(std::move(file)) {
    if (field("format") != kFormat)
      throw Error("checkpoint", {path_ + ": the format is '" + field("format") + "', not '" + kFormat + "'"});
  }
  const std::string& field(const char* name) const {
    const auto found = file_.metadata().find(name);
    if (found == file_.metadata().end()) throw Error("checkpoint", {path_ + ": the metadata lack '" + name + "'"});
    return found->second;
  }
  int64_t step() const { return step_of(fs::path(path_).filename().string()); }
  io::Safetensors& tensors() { return file_; }

  bool fits(const nn::Variable& wanted) const {
    const auto found = file_.tensors().find(wanted.name);
    return found != file_.tensors().end() && found->second.shape == wanted.shape;
  }
  /// In float32, or float64, or of frozen parameters in 16 bits: as it was saved.
  Array read(const nn::Variable& wanted) {
    const auto found = file_.tensors().find(wanted.name);
    const bool narrow_file = found != file_.tensors().end() && is_floating(found->second.dtype) &&
                             size_of(found->second.dtype) < size_of(wanted.dtype);
    const DType saved = narrow_file                      ? found->second.dtype
                        : wanted.dtype == DType::float64 ? DType::float64
                                                         : DType::float32;
    const Array to(saved, wanted.shape, false);
    file_.copy(wanted.name, saved, to.shape(), to.data());
    const int64_t length = to.count() * size_of(saved);
    sums_[wanted.name] = {io::crc32({static_cast<const char*>(to.data()), static_cast<size_t>(length)}), length};
    if (saved == wanted.dtype) return to;
    const Array narrow(wanted.dtype, wanted.shape, false);
    ops::convert(to.flat(), narrow.flat());
    return narrow;
  }
  /// Throws Error if anything is damaged; reads what has not been read.
  void verify() {
    for (const auto& [name, info] : file_.tensors())
      if (!sums_.contains(name)) sums_[name] = {file_.crc32(name), info.end - info.begin};
    if (const std::string sum = hex(checksum(field("state"), sums_)); sum != field("crc32"))
      throw Error("checkpoint", {path_ + ": damaged: the checksum is " + sum + ", must be " + field("crc32")});
  }

 private:
  std::string path_;
  io::Safetensors file_;
  std::map<std::string, Sum> sums_;
};

// ------------------------------------------------------------------------------------------------- checkpoints.json

/// A file of the directory itself.
bool is_plain(const std::string& name) {
  return !name.empty() && name != "." && name != ".." && name != kManifest && name.find('/') == std::string::npos;
}

bool contains(const FileNames& names, const std::string& name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

void add(FileNames& names, const std::string& name) {
  if (!contains(names, name)) names.push_back(name);
}

struct Manifest {
  std::string last, previous, best;
  FileNames kept;   // checkpoints that stay
  FileNames files;  // all that the training wrote, but this list
  bool names(const std::string& file) const {
    return file == last || file == previous || file == best || contains(kept, file);
  }
};

/// Throws Error if there is something that no training wrote. An empty manifest if there is nothing.
Manifest read_manifest(const std::string& directory) {
  const std::string path = directory + "/" + kManifest;
  Manifest manifest;
  std::error_code unknown;  // then reading says why
  if (fs::symlink_status(path, unknown).type() == fs::file_type::not_found) return manifest;
  const Json object = io::read_json("checkpoint", path);
  if (!object.is_object() || !(object.contains("files") || object.contains("last")))
    throw Error("checkpoint", {path + " is not a list of checkpoints"});
  const auto is_step = [](const std::string& name) { return step_of(name) >= 0; };
  for (auto [key, to] : {std::pair("last", &manifest.last), std::pair("previous", &manifest.previous),
                         std::pair("best", &manifest.best)}) {
    if (!object.contains(key)) continue;
    if (!object[key].is_string() || !is_step(object[key].get<std::string>()))
      throw Error("checkpoint", {path + ": '" + key + "' does not name a checkpoint"});
    *to = object[key].get<std::string>();
  }
  for (auto [key, to, fits] : {std::tuple("kept", &manifest.kept, +is_step), {"files", &manifest.files, &is_plain}}) {
    for (const Json& name : object.value(key, Json::array())) {
      if (!name.is_string() || !fits(name.get<std::string>()))
        throw Error("checkpoint", {path + ": '" + key + "' does not list files"});
      add(*to, name.get<std::string>());
    }
  }
  return manifest;
}

void write_manifest(const std::string& directory, const Manifest& manifest) {
  Json object = Json::object();
  for (const auto& [key, name] :
       {std::pair("last", manifest.last), {"previous", manifest.previous}, {"best", manifest.best}})
    if (!name.empty()) object[key] = name;
  object["kept"] = manifest.kept;
  object["files"] = manifest.files;
  io::write_file(directory + "/" + kManifest, object.dump(2) + "\n");
}

/// What a crash of write_file() leaves after.
bool is_temporary(const std::string& name) { return name.starts_with(".attn-") && name.ends_with(".tmp"); }

FileNames files_of(const std::string& directory) {
  FileNames names;
  std::error_code failed;
  for (fs::directory_iterator entry(directory, failed), end; !failed && entry != end; entry.increment(failed))
    if (const std::string name = entry->path().filename().string(); !is_temporary(name)) names.push_back(name);
  std::sort(names.begin(), names.end());
  return names;
}

FileNames checkpoints_newest_first(const std::string& directory) {
  FileNames names = files_of(directory);
  std::erase_if(names, [](const std::string& name) { return step_of(name) < 0; });
  std::stable_sort(names.begin(), names.end(), [](const auto& a, const auto& b) { return step_of(a) > step_of(b); });
  return names;
}

/// "a, b, c and 4 more"
std::string listed(const FileNames& names) {
  constexpr size_t kShown = 3;
  std::string text;
  for (size_t n = 0; n < std::min(kShown, names.size()); ++n) text += (n > 0 ? ", " : "") + names[n];
  return names.size() > kShown ? text + " and " + std::to_string(names.size() - kShown) + " more" : text;
}

}  // namespace

Checkpoints::Checkpoints(std::string directory) : directory_(std::move(directory)) {
  if (directory_.empty()) throw Error("checkpoint", {"the directory has no name"});
}

std::optional<int64_t> Checkpoints::last_step() const {
  const FileNames names = checkpoints_newest_first(directory_);
  return names.empty() ? std::nullopt : std::optional(step_of(names.front()));
}

std::string Checkpoints::obstacle(std::span<const std::string> names, bool replace) const {
  std::error_code error;
  const fs::file_status status = fs::status(directory_, error);
  if (!fs::exists(status)) {
    const bool dangles = fs::is_symlink(fs::symlink_status(directory_, error));
    return dangles ? directory_ + " is a symbolic link to nothing" : "";
  }
  if (!fs::is_directory(status)) return directory_ + " is a file, not a directory";
  const FileNames there = files_of(directory_);
  if (there.empty()) return "";
  if (!contains(there, kManifest)) return directory_ + " is not empty and holds no training, but " + listed(there);
  Manifest manifest;
  try {
    manifest = read_manifest(directory_);
  } catch (const Error& failure) {
    return failure.reasons().front() + "; so it is not known which files of " + directory_ + " a training wrote";
  }
  FileNames foreign, checkpoints;
  for (const std::string& name : there) {
    const bool own = contains(manifest.files, name);
    if (own && step_of(name) >= 0) checkpoints.push_back(name);
    if (!own && std::find(names.begin(), names.end(), name) != names.end()) foreign.push_back(name);
  }
  if (!foreign.empty()) return directory_ + " holds " + listed(foreign) + ", which the training there did not write";
  if (!replace && !checkpoints.empty()) return directory_ + " holds a model already: " + listed(checkpoints);
  return "";
}

void Checkpoints::begin(const std::map<std::string, std::string>& files, std::span<const std::string> others,
                        bool replace) {
  FileNames names(others.begin(), others.end());
  for (const auto& [name, content] : files) add(names, name);
  for (const std::string& name : names)
    if (!is_plain(name)) throw Error("checkpoint", {"'" + name + "' is not the name of a file in " + directory_});
  if (const std::string reason = obstacle(names, replace); !reason.empty()) throw Error("checkpoint", {reason});
  io::make_directory(directory_);
  const FileNames old = read_manifest(directory_).files;
  Manifest manifest;
  manifest.files = old;
  for (const std::string& name : names) add(manifest.files, name);
  write_manifest(directory_, manifest);
  for (const std::string& name : old) {
    std::error_code error;
    fs::remove(directory_ + "/" + name, error);
    if (error) throw Error("checkpoint", {directory_ + "/" + name + " cannot be removed: " + error.message()});
  }
  for (const auto& [name, content] : files) io::write_file(directory_ + "/" + name, content);
  manifest.files = names;
  write_manifest(directory_, manifest);
}

void Checkpoints::claim(std::span<const std::string> names) {
  Manifest manifest = read_manifest(directory_);
  for (const std::string& name : names) add(manifest.files, name);
  write_manifest(directory_, manifest);
}

void Checkpoints::save(int64_t step, std::span<const io::NamedTensor> tensors, const std::string& state, bool best,
                       bool keep) {
  if (step < 0) throw Error("checkpoint", {"the step is " + std::to_string(step) + ", must not be negative"});
  std::map<std::string, Sum> sums;
  for (const io::NamedTensor& tensor : tensors) {
    const std::string_view content = io::bytes_of(tensor);
    sums[tensor.name] = {io::crc32(content), static_cast<int64_t>(content.size())};
  }
  const std::map<std::string, std::string> metadata = {
      {"format", kFormat}, {"state", state}, {"crc32", hex(checksum(state, sums))}};
  io::format_safetensors({}, metadata);  // throws for a state that no file can hold, before anything is written
  const auto path_of = [&](const std::string& name) { return directory_ + "/" + name; };
  const auto is_there = [&](const std::string& name) {
    std::error_code unknown;
    return fs::exists(fs::symlink_status(path_of(name), unknown));
  };
  Manifest manifest;
  try {
    manifest = read_manifest(directory_);
  } catch (const Error&) {  // a new one is begun, and this one is kept
    std::string aside = std::string(kManifest) + ".damaged";
    while (is_there(aside)) aside += ".damaged";
    std::error_code failed;
    fs::rename(path_of(kManifest), path_of(aside), failed);
    if (failed) throw Error("checkpoint", {path_of(kManifest) + " cannot be set aside: " + failed.message()});
  }
  std::string name = file_name(step);
  while (is_there(name) && !contains(manifest.files, name)) name.insert(sizeof "step-" - 1, "0");  // somebody else's
  if (!contains(manifest.files, name)) {
    manifest.files.push_back(name);
    write_manifest(directory_, manifest);
  }
  io::write_safetensors(path_of(name), tensors, metadata);
  if (manifest.last != name) manifest.previous = manifest.last;
  manifest.last = name;
  if (best || manifest.best.empty()) manifest.best = name;
  if (keep) add(manifest.kept, name);
  write_manifest(directory_, manifest);

  const size_t listed_before = manifest.files.size();
  std::erase_if(manifest.files, [&](const std::string& file) {
    std::error_code failed;  // a file too many does no harm
    return step_of(file) >= 0 && !manifest.names(file) && (fs::remove(path_of(file), failed) || !failed);
  });
  if (manifest.files.size() < listed_before) write_manifest(directory_, manifest);
}

namespace {

void require_choice(std::string_view which) {
  if (which != "last" && which != "best")
    throw Error("checkpoint", {"which is " + io::in_quotes(which) + ", must be \"last\" or \"best\""});
}

/// What read(path) makes of the first checkpoint in order of preference at which it does not throw Error.
template <class Read>
auto read_first(const std::string& directory, std::string_view which, std::vector<std::string>* notes,
                const Read& read) {
  require_choice(which);
  FileNames names, failures;
  try {
    const Manifest manifest = read_manifest(directory);
    for (const std::string& name : {which == "best" ? manifest.best : "", manifest.last, manifest.previous})
      if (!name.empty()) add(names, name);
  } catch (const Error& error) {
    failures.push_back(error.what());
  }
  for (const std::string& name : checkpoints_newest_first(directory)) add(names, name);
  for (const std::string& name : names) {
    try {
      auto result = read(directory + "/" + name);
      if (notes && !failures.empty()) {
        notes->insert(notes->end(), failures.begin(), failures.end());
        notes->push_back("taking " + name + " instead");
      }
      return result;
    } catch (const Error& error) {
      failures.push_back(error.what());
    }
  }
  if (failures.empty()) failures.push_back(directory + " holds no checkpoint");
  throw Error("checkpoint", std::move(failures));
}

}  // namespace

Checkpoint Checkpoints::load(std::string_view which, std::vector<std::string>* notes) const {
  return read_first(directory_, which, notes, [](const std::string& path) {
    File file(path, io::Safetensors::open(path));
    file.verify();
    const std::string state = file.field("state");  // before the tensors are moved, and the metadata with them
    return Checkpoint{path, file.step(), std::move(file.tensors()), state};
  });
}

namespace {

/// A pretrained model may have embeddings for more tokens than its tokenizer.
std::unique_ptr<text::Tokenizer> read_own_tokenizer(const std::string& directory, const char* name, int64_t tokens,
                                                    bool exactly = true) {
  const std::string path = directory + "/" + name;
  auto tokenizer = text::load_tokenizer(io::read_file(path, 1 << 28), path);
  if (exactly ? tokenizer->vocab_size() != tokens : tokenizer->vocab_size() > tokens)
    throw Error("load", {path + " has " + std::to_string(tokenizer->vocab_size()) + " tokens, must have " +
                         (exactly ? "" : "at most ") + std::to_string(tokens) + " by " + directory + "/config.json"});
  return tokenizer;
}

}  // namespace

Loaded load_model(const std::string& directory, std::string_view which, nn::Precision precision, nn::Purpose purpose) {
  require_choice(which);
  return load_parsed(directory, read_model_file("load", directory),
                     {.precision = precision, .purpose = purpose, .which = which});
}

Loaded load_parsed(const std::string& directory, const Json& json, const OpenOptions& options) {
  Config config = own_config(json, directory + "/config.json");
  if (options.adapt) options.adapt(config);
  Loaded loaded;
  const std::optional<Pretrained> pretrained = read_pretrained(directory);
  const bool answers = config.encoder_layers > 0 && !pretrained;  // with a last token of its own
  loaded.tokenizer = read_own_tokenizer(directory, "tokenizer.json", config.vocab_size - answers, !pretrained);
  if (pretrained && config.causal)
    read_generation_fields(pretrained->generation(), directory + "/" + kPretrainedFile, config, loaded);
  if (config.source_vocab_size)
    loaded.source_tokenizer = read_own_tokenizer(directory, kSourceTokenizerFile, config.source_vocab_size);
  if (answers) loaded.eos_token_ids = loaded.decoder_start_token_ids = {config.vocab_size - 1};
  if (!options.adapt) loaded.labels = load_labels(directory, config.classes);
  std::vector<std::string> misfits;  // of a whole checkpoint: it belongs to another model
  read_first(directory, options.which, &loaded.notes, [&](const std::string& path) {
    File file(path, io::Safetensors::open(path));
    misfits.clear();
    loaded.new_parameters.clear();
    const auto read = [&](const nn::Variable& wanted, const auto& draw) -> nn::ParameterData {
      const bool replaced = options.new_head && wanted.name.starts_with("head.");
      if (options.adapt && may_be_new(wanted.name) && (replaced || !file.fits(wanted))) {
        loaded.new_parameters.push_back(wanted.name);
        return nn::random_parameter(wanted, draw);
      }
      try {
        return quantized(wanted, file.read(wanted), config, options);
      } catch (const Error& error) {
        misfits.insert(misfits.end(), error.reasons().begin(), error.reasons().end());
        return Array(wanted.dtype, wanted.shape, false);
      }
    };
    loaded.model = std::make_unique<Model>(config, parameter_options(options), read);
    file.verify();
    loaded.step = file.step();
    return true;
  });
  if (!misfits.empty()) throw Error("load", std::move(misfits));
  return loaded;
}

}  // namespace attn::models
