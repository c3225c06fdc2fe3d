// Files and folders that other programs wrote, known by their first bytes, or by their names.
#include "io/foreign.h"

#include <sys/stat.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <filesystem>
#include <vector>

#include "attn/io.h"
#include "io/reader.h"

namespace attn::io {

/// The first piece: field 1 with a text, which is field 1 of it, and a score after that.
bool is_sentencepiece(std::string_view b) {
  if (b.size() < 4 || b[0] != '\n' || b[2] != '\n' || b[3] < 0 || b[3] > b[1]) return false;
  const size_t behind = 4 + static_cast<size_t>(b[3]);
  return behind < b.size() && b[behind] == 0x15;
}

namespace {

namespace fs = std::filesystem;
using Bytes = std::string_view;

constexpr const char* kModel =
    "a model is a folder that attn train wrote, or one of the Hugging Face hub, with config.json, model.safetensors "
    "(or model.safetensors.index.json and the files that it names) and the tokenizer's files";
constexpr const char* kOriginal = "take the folder that it was made from, with config.json and model.safetensors";
constexpr const char* kSave =
    "save the model once more, model.save_pretrained(folder) of transformers writes model.safetensors";
constexpr const char* kFolder = "give the folder that it belongs to";
constexpr const char* kTokenizer =
    "AutoTokenizer.from_pretrained(...).save_pretrained(folder) of transformers writes a tokenizer.json";

// ----------------------------------------------------------------------------------------------------- the first bytes

bool is_pickle(Bytes b) { return b.size() > 1 && b[0] == '\x80' && b[1] >= 2 && b[1] <= 5; }
bool is_zip(Bytes b) { return b.starts_with("PK\3\4"); }
/// A version, then the name of the program that wrote the graph.
bool is_onnx(Bytes b) {
  return b.size() > 4 && b[0] == 8 && b[1] > 0 && b[1] < 32 && b[2] == 0x12 && b[3] > 0 && std::isalpha(b[4] & 0x7F);
}
/// A version of four bytes, the length of a name in two, the name: "TransformerSpec".
bool is_ctranslate2(Bytes b) {
  return b.size() > 10 && b[1] == 0 && b[5] == 0 && b.substr(6, b[4]).ends_with(Bytes("Spec", 5));
}
/// "IQ== 0", then "Ig== 1": a token in base 64 and its rank.
bool is_tiktoken(Bytes b) {
  for (const char* rank : {" 0", " 1"}) {
    const size_t end = b.find('\n');
    if (end == Bytes::npos || end < 6 || (end - 2) % 4 != 0 || !b.substr(0, end).ends_with(rank)) return false;
    b.remove_prefix(end + 1);
  }
  return true;
}
bool is_page(Bytes b) {
  return b.starts_with("<!DOCTYPE html") || b.starts_with("<!doctype html") || b.starts_with("<html");
}

enum class Holds { weights, tokenizer, part, nothing };

struct Kind {
  Holds holds;
  const char* names;  // with blanks between: .ending, beginning*, or a whole name
  bool (*fits)(Bytes);
  const char *what, *advice;
};

bool no_bytes(Bytes) { return false; }

/// Of several that a folder has the first one counts.
constexpr Kind kKinds[] = {
    {Holds::nothing, "", [](Bytes b) { return b.empty(); }, "an empty file", "fetch or copy it once more"},
    {Holds::nothing, "", [](Bytes b) { return b.starts_with("version https://git-lfs"); },
     "a pointer of git-lfs in place of a file", "git lfs pull in its repository fetches the file itself"},
    {Holds::nothing, "", is_page, "a page of HTML", "what was downloaded is a page about the file, or an error"},
    {Holds::weights, ".gguf", [](Bytes b) { return b.starts_with("GGUF"); },
     "a GGUF file of llama.cpp, which is read for inference alone",
     "give its own path to generate, evaluate or see; otherwise take the folder that it was made from"},
    {Holds::weights, ".ggml", [](Bytes b) { return b.starts_with("lmgg") || b.starts_with("tjgg"); },
     "a GGML file of llama.cpp", kOriginal},
    {Holds::weights, ".llamafile", [](Bytes b) { return b.starts_with("MZqFpD"); },
     "a llamafile, a program with a model inside", kOriginal},
    {Holds::weights, "model.bin", is_ctranslate2, "a model of CTranslate2", kOriginal},
    {Holds::weights, "pytorch_model* .pt .pth .ckpt .pkl .pickle", is_pickle, "a pickle, which is code and is not run",
     kSave},
    {Holds::weights, ".npz", [](Bytes b) { return is_zip(b) && b.find(".npy") != Bytes::npos; },
     "an archive of NumPy, as older versions of MLX write weights", kOriginal},
    {Holds::weights, ".zip", is_zip, "a zip archive, as PyTorch's .pt and .bin are", kSave},
    {Holds::weights, ".h5 .hdf5 .keras", [](Bytes b) { return b.starts_with("\x89HDF\r\n"); },
     "an HDF5 file, as TensorFlow and Keras write weights", kSave},
    {Holds::weights, ".pb model.ckpt*", no_bytes, "a file of TensorFlow", kSave},
    {Holds::weights, ".msgpack", no_bytes, "a msgpack file, as Flax writes weights", kSave},
    {Holds::weights, ".onnx .ort", is_onnx, "an ONNX file", kOriginal},
    {Holds::weights, ".tflite .mlmodel .mlpackage openvino_model*", no_bytes,
     "a model of TensorFlow Lite, Core ML or OpenVINO", kOriginal},
    {Holds::weights, ".mlx", no_bytes, "a file of MLX", kOriginal},
    {Holds::tokenizer, ".tiktoken tekken.json tiktoken.model", is_tiktoken, "a vocabulary of tiktoken", kTokenizer},
    {Holds::part, ".spm .model", is_sentencepiece, "a SentencePiece vocabulary, which is a tokenizer alone", kFolder},
    {Holds::part, ".safetensors", no_bytes, "a safetensors file, which has tensors alone", kFolder},
    {Holds::part,
     "config.json generation_config.json model.safetensors.index.json training.json checkpoints.json tokenizer.json "
     "tokenizer_config.json special_tokens_map.json added_tokens.json vocab.json merges.txt encoder.json vocab.bpe "
     "vocab.txt adapter_config.json modules.json",
     no_bytes, "one file of several", kFolder},
};

bool has_name(const Kind& kind, std::string_view name) {
  std::string_view names = kind.names;
  while (!names.empty()) {
    const size_t end = std::min(names.find(' '), names.size());
    const std::string_view each = names.substr(0, end);
    const bool fits = each.front() == '.'  ? name.ends_with(each)
                      : each.back() == '*' ? name.starts_with(each.substr(0, each.size() - 1))
                                           : name == each;
    if (fits) return true;
    names.remove_prefix(std::min(end + 1, names.size()));
  }
  return false;
}

const Kind* find_by_bytes(Bytes bytes) {
  for (const Kind& kind : kKinds)
    if (kind.fits(bytes)) return &kind;
  return nullptr;
}

/// Null for unknown files and for files that cannot be read; the function that opens them reports the error.
const Kind* kind_of_start(const std::string& path) {
  try {
    return find_by_bytes(Reader(path).start());
  } catch (const Error&) {
    return nullptr;
  }
}

/// llama2.c calls its models model.bin too: there the bytes decide.
bool is_of_kind(const Kind& kind, const std::string& path) {
  return has_name(kind, fs::path(path).filename().native()) &&
         (kind.fits != is_ctranslate2 || kind_of_start(path) == &kind);
}

const Kind* kind_of_file(const std::string& path) {
  if (const Kind* kind = kind_of_start(path)) return kind;
  for (const Kind& kind : kKinds)
    if (is_of_kind(kind, path)) return &kind;
  return nullptr;
}

std::string said(const Kind& kind) {
  const std::string what = kind.what;
  const bool says_why = kind.holds > Holds::tokenizer || what.find(", which") != std::string::npos;
  return what + (says_why ? ": " : ", which is not read: ") + kind.advice;
}

// ------------------------------------------------------------------------------------------------------------- folders

/// Names of what is in a folder, in order, and of what is in its folder onnx.
std::vector<std::string> names_in(const std::string& folder) {
  std::vector<std::string> names;
  for (const std::string inside : {"", "onnx/"}) {
    std::error_code failed;
    for (fs::directory_iterator entry(folder + "/" + inside, failed), end; !failed && entry != end;
         entry.increment(failed))
      names.push_back(inside + entry->path().filename().native());
  }
  std::sort(names.begin(), names.end());
  return names;
}

/// A folder with a config.json in this one, or one further down: "snapshots/1a2b".
std::string model_below(const std::string& folder, int levels = 2) {
  std::vector<std::string> names;
  std::error_code failed;
  for (fs::directory_iterator entry(folder, failed), end; !failed && entry != end; entry.increment(failed))
    if (std::error_code unknown; entry->is_directory(unknown)) names.push_back(entry->path().filename().native());
  std::sort(names.begin(), names.end());
  for (const std::string& name : names)
    if (exists(folder + "/" + name + "/config.json")) return name;
  for (const std::string& name : names)
    if (const std::string below = levels > 1 ? model_below(folder + "/" + name, levels - 1) : ""; !below.empty())
      return name + "/" + below;
  return "";
}

/// "gpt2", "sentence-transformers/all-MiniLM-L6-v2"
bool could_be_of_hub(const std::string& path) {
  const auto is_part = [](unsigned char c) { return std::isalnum(c) || c == '-' || c == '_' || c == '.' || c == '/'; };
  return std::isalnum(static_cast<unsigned char>(path.front())) && path.back() != '/' &&
         std::count(path.begin(), path.end(), '/') <= 1 && std::all_of(path.begin(), path.end(), is_part);
}

}  // namespace

std::string kind_of_bytes(std::string_view bytes) {
  const Kind* kind = find_by_bytes(bytes);
  return kind ? said(*kind) : "";
}

void require_vocabulary(std::string_view operation, const std::string& source, std::string_view bytes) {
  const std::string kind = is_sentencepiece(bytes) ? "" : kind_of_bytes(bytes);
  if (!kind.empty()) throw Error(operation, {source + ": is " + kind});
}

std::string describe_foreign(const std::string& path) {
  const Kind* kind = kind_of_file(path);
  return kind ? said(*kind) : "";
}

std::string instead_in(const std::string& folder, Content wanted) {
  const Holds holds = wanted == Content::weights ? Holds::weights : Holds::tokenizer;
  const std::vector<std::string> names = names_in(folder);
  for (const Kind& kind : kKinds)
    for (const std::string& name : names)
      if (kind.holds == holds && is_of_kind(kind, folder + "/" + name)) return ", but " + name + ", " + said(kind);
  return "";
}

std::string why_missing(const std::string& path) {
  struct stat status = {};
  const bool is_there = ::stat(path.c_str(), &status) == 0;
  const std::string inside = path + "/.";  // of a folder that may not be looked into everything seems to be missing
  if (is_there && (!S_ISDIR(status.st_mode) || ::stat(inside.c_str(), &status) == 0)) return "";
  const int error = errno;
  const bool could_be = error == ENOENT && could_be_of_hub(path);
  return path + ": " + why_not_opened(path, error) +
         (could_be ? "; a name of the Hugging Face hub is not looked up, nothing is downloaded: " + std::string(kModel)
                   : "");
}

void require_model(std::string_view operation, const std::string& path) {
  require_path(operation, path);
  const auto refuse = [&](const std::string& reason) { throw Error(operation, {reason}); };
  if (const std::string reason = why_missing(path); !reason.empty()) refuse(reason);
  std::error_code unknown;
  if (!fs::is_directory(path, unknown)) {
    const std::string what = describe_foreign(path);
    refuse(path + ": is " + (what.empty() ? "a file, not a folder: " + std::string(kModel) : what));
  }
  struct stat status = {};
  if (exists(path + "/adapter_config.json"))
    refuse(path +
           ": is an adapter (LoRA or another of PEFT), not a whole model: merge it into its model, "
           "merge_and_unload() and save_pretrained(folder) of peft do so");
  if (::lstat((path + "/config.json").c_str(), &status) == 0) return;
  std::string instead = instead_in(path, Content::weights);
  if (const std::string below = model_below(path); !below.empty()) instead = "; its folder " + below + " has one";
  refuse(path + ": is not a folder of a model: it has no config.json" +
         (instead.empty() ? std::string("; ") + kModel : instead));
}

}  // namespace attn::io
