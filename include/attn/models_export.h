// models: writes a model as a folder of the Hugging Face hub, which transformers opens.
//
// ```cpp
// #include "attn/models_export.h"
// int main(int argc, char** argv) {
//   if (argc < 3) return 0;  // give the folder of a model and a new folder
//   attn::models::export_folder(argv[1], argv[2]);
// }
// ```
#pragma once

#include <string>
#include <string_view>

#include "attn/models.h"

#pragma GCC visibility push(default)
namespace attn::models {

struct ExportOptions {
  nn::Precision precision = nn::Precision::float32;  ///< type of the weights; float64 is not supported
  std::string_view which = "best";                   ///< checkpoint of a training
  std::string adapter = {};                          ///< of export_folder(): a LoRA folder of PEFT to merge
  /// Of export_folder(): weights of linear layers but for the head in 8 or 4 bits, in the format pack-quantized of
  /// compressed-tensors, which transformers and vLLM open. Of families whose layers are torch.nn.Linear.
  std::optional<Quantization> quantization = {};
  int64_t file_bytes =
      5'000'000'000;  ///< the most bytes of tensors in one safetensors file, unless one tensor has more
};

/// What export_folder() has written.
struct Exported {
  std::string architecture = {};        ///< the class of transformers, as "BertForSequenceClassification"
  int64_t tensors = 0, bytes = 0;       ///< of the weights
  std::vector<std::string> files = {};  ///< names in the folder
  std::vector<std::string> notes = {};  ///< what the folder lacks, a line each
};

/// Writes the model of a folder as config.json, model.safetensors (or several with an index), tokenizer.json and
/// the small files that belong to them. A fine-tuned model keeps the config.json of its original; its adapters are
/// merged. A model that `attn train` made from the start becomes a GPT-2 or a LLaMA, if one of them computes the same.
/// `to` must not exist or be empty. Throws Error, before anything is written, for a model that no class of
/// transformers computes, and names what differs. Weights that the folder has in 4 or 8 bits are written as numbers.
Exported export_folder(const std::string& folder, const std::string& to, const ExportOptions& options = {});

/// Writes a model that continues texts, of the families llama, qwen2, qwen3 or gemma2, as a GGUF file with its
/// tokenizer, which llama.cpp opens: with weights of `precision`, or with `quantization` in its types Q8_0 and Q4_0.
/// `to` must not exist. Throws Error, and leaves no file, for a model or a tokenizer that such a file has no place for.
Exported export_gguf(const std::string& folder, const std::string& to, const ExportOptions& options = {});

/// Writes the adapters of a model that was fine-tuned from a folder of the hub, and its head if it classifies, as a
/// LoRA folder of PEFT. `base` is the name of the original in adapter_config.json. Throws Error, before anything is
/// written, for a model without adapters.
Exported export_adapter(const std::string& folder, const std::string& to, const std::string& base,
                        const ExportOptions& options = {});

}  // namespace attn::models
#pragma GCC visibility pop
