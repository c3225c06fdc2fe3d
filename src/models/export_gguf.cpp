// export_gguf(): a model that continues texts as one file for llama.cpp. What is written is read back, and must give
// the same model and the same tokens.
#include <algorithm>
#include <filesystem>

#include "attn/core_names.h"
#include "io/gguf.h"
#include "models/export.h"
#include "models/export_config.h"
#include "models/gguf.h"
#include "models/gguf_blocks.h"
#include "models/hub_tensors.h"
#include "models/shape.h"
#include "text/gguf.h"
#include "text/pipeline.h"

namespace attn::models {
namespace {

using io::GgufContent;
using io::GgufType;
using io::Json;

/// llama.cpp's number for what most weights of a file are.
int64_t file_type_of(GgufType type) {
  switch (type) {
    case GgufType::f16: return 1;
    case GgufType::q4_0: return 2;
    case GgufType::q8_0: return 7;
    case GgufType::bf16: return 32;
    default: return 0;
  }
}

GgufType weight_type(const ExportOptions& options) {
  if (options.quantization) return *options.quantization == Quantization::int8 ? GgufType::q8_0 : GgufType::q4_0;
  switch (options.precision) {
    case nn::Precision::float16: return GgufType::f16;
    case nn::Precision::bfloat16: return GgufType::bf16;
    default: return GgufType::f32;
  }
}

/// Tokens of texts and the logits' table keep 8 bits where other weights have 4, as in llama.cpp.
GgufType type_of(const std::string& name, int64_t width, GgufType wanted) {
  constexpr int64_t kBlock = 32;
  const bool is_table = name == "token_embd.weight" || name == "output.weight";
  if (wanted == GgufType::q4_0 && is_table) wanted = GgufType::q8_0;
  const bool in_blocks = wanted == GgufType::q4_0 || wanted == GgufType::q8_0;
  return in_blocks && width % kBlock ? GgufType::f16 : wanted;
}

/// The rows of a tensor in float32, in the order of the file. Gemma's gains are stored without their distance from 1.
Array rows_of(const io::NamedTensor& tensor, const std::string& model_type, int64_t head_width) {
  const bool is_vector = tensor.shape.size() == 1;
  const int64_t rows = tensor.shape.front(), width = is_vector ? 1 : tensor.shape.back();
  const Array theirs(DType::float32, {rows, width}, false);
  ops::convert(ConstView<2>(tensor.data, tensor.dtype, {rows, width}), theirs.rows());
  auto* x = static_cast<float*>(theirs.data());
  if (is_vector && model_type == "gemma2")
    for (int64_t n = 0; n < rows; ++n) x[n] += 1;
  const bool turns =
      tensor.name.find(".q_proj.") != std::string::npos || tensor.name.find(".k_proj.") != std::string::npos;
  if (!turns || model_type != "llama") return theirs;
  const std::vector<int64_t> order = order_of_pairs(rows, head_width);
  const Array ours(DType::float32, {rows, width}, false);
  for (int64_t row = 0; row < rows; ++row)
    std::copy_n(x + row * width, width, static_cast<float*>(ours.data()) + order[static_cast<size_t>(row)] * width);
  return ours;
}

/// The special tokens around a text, and the one that ends it.
void add_special_tokens(const Loaded& loaded, Json& entries) {
  const std::vector<std::string> word = {"a"};
  const text::EncodedWords around = text::encode_words(*loaded.tokenizer, word);
  const bool begins = around.word_of.front() < 0, ends = around.word_of.back() < 0;
  entries["tokenizer.ggml.add_bos_token"] = begins;
  entries["tokenizer.ggml.add_eos_token"] = ends;
  if (begins) entries["tokenizer.ggml.bos_token_id"] = around.ids.front();
  const std::vector<int64_t>& known = loaded.eos_token_ids;
  if (ends) entries["tokenizer.ggml.eos_token_id"] = around.ids.back();
  else if (!known.empty()) entries["tokenizer.ggml.eos_token_id"] = known.front();
  if (known.size() > 1) entries["tokenizer.ggml.eot_token_id"] = known[1];
  if (!loaded.chat_template.empty()) entries["tokenizer.chat_template"] = loaded.chat_template;
}

/// That the file's tokenizer and numbers are the model's.
void require_same(const std::string& to, const Loaded& loaded) {
  const io::Gguf file = io::Gguf::map(to);
  constexpr double kFloat32 = 1e-6;  // as which the file has numbers
  Json config = gguf_config(file);
  config["architectures"] = {"ForCausalLM"};
  if (std::vector<std::string> wrong = differences(config, loaded.model->config(), kFloat32); !wrong.empty()) {
    wrong.insert(wrong.begin(), "a GGUF file has no place for all that this model is");
    throw Error("export", std::move(wrong));
  }
  if (!loaded.tokenizer) return;
  const auto read = text::read_pipeline(text::gguf_tokenizer(file), to);
  for (const char* sample :
       {"Hello, world!", " two  spaces and\n\nlines\t", "it's 1234567 x=y+z; caf\u00e9 \u4f60\u597d \U0001f600"})
    if (read->encode(sample).ids != loaded.tokenizer->encode(sample).ids)
      throw Error("export",
                  {"the tokenizer, as llama.cpp understands it, gives other tokens for " + io::in_quotes(sample)});
}

}  // namespace

Exported export_gguf(const std::string& folder, const std::string& to, const ExportOptions& options) {
  if (options.precision == nn::Precision::float64)
    throw Error("export", {"precision is float64, must be float32, bfloat16 or float16"});
  if (io::exists(to)) throw Error("export", {to + " exists: export needs a new file"});
  ExportSource source = open_for_export(folder, options);
  if (source.loaded.model->config().lora_rank) *source.loaded.model = merge_adapters(*source.loaded.model);
  const Loaded& loaded = source.loaded;
  const Json config = config_for_hub(*loaded.model, loaded, source.original ? &*source.original : nullptr);
  const HubModel hub = read_hub_config(config, "config.json", "");
  const std::string model_type = config.at("model_type");
  Json entries = gguf_model_entries(model_type, hub.config);
  HubTensors tensors(hub, source.original ? source.original->tensors : decltype(Pretrained::tensors)());
  for (const nn::Parameter& parameter : loaded.model->parameters().all()) tensors.put(parameter);

  const GgufType wanted = weight_type(options);
  entries["general.file_type"] = file_type_of(wanted);
  entries["general.quantization_version"] = 2;
  if (loaded.tokenizer) {
    const Json tokenizer = io::parse_json("export", "tokenizer.json", tokenizers_json(*loaded.tokenizer));
    entries.update(text::gguf_entries(tokenizer, hub.config.vocab_size));
    add_special_tokens(loaded, entries);
  }
  Exported exported{.architecture = "GGUF " + model_type};
  const int64_t head_width = attention_shape(hub.config).key_width;
  const bool sandwiches = hub.config.norm_placement == nn::NormPlacement::sandwich;
  const std::vector<io::NamedTensor> all = tensors.tensors();
  std::vector<GgufContent> content;
  for (const io::NamedTensor& tensor : all) {
    const std::string name = gguf_name(tensor.name, sandwiches);
    if (name.empty()) throw Error("export", {tensor.name + " has no place in a GGUF file"});
    const GgufType type = tensor.shape.size() == 1 ? GgufType::f32 : type_of(name, tensor.shape.back(), wanted);
    content.push_back({name, type, tensor.shape,
                       [&, type] { return gguf_content(type, rows_of(tensor, model_type, head_width).rows()); }});
    exported.bytes += io::gguf_bytes(type, tensor.shape);
  }
  if (hub.config.rope_scaling == RopeScaling::llama3) {
    const Config& c = hub.config;
    const Array divisors(llama3_divisors(c.rope_theta, head_width,
                                         {.kind = RopeScaling::llama3,
                                          .factor = c.rope_factor,
                                          .context = c.rope_context,
                                          .low = c.rope_low,
                                          .high = c.rope_high}),
                         {1, head_width / 2});
    content.push_back({"rope_freqs.weight", GgufType::f32, {head_width / 2}, [divisors] {
                         return gguf_content(GgufType::f32, divisors.rows());
                       }});
  }
  exported.tensors = std::ssize(content);
  const std::string part = to + ".part";  // which takes its name once it is right
  io::write_gguf(part, entries, content);
  try {
    require_same(part, loaded);
  } catch (...) {
    std::filesystem::remove(part);
    throw;
  }
  std::filesystem::rename(part, to);
  if (!loaded.tokenizer) exported.notes.push_back("no tokenizer: the folder has none");
  exported.files.push_back(to);
  return exported;
}

}  // namespace attn::models
