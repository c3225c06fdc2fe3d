// models: what a training needs that begins with a folder; models::open() with OpenOptions::adapt opens its model.
// it.
//
// ```cpp
// #include "attn/models_finetune.h"
// using namespace attn;
// int main(int argc, char** argv) {
//   if (argc < 2) return 0;  // give the folder of a model
//   const auto with_adapters = [](models::Config& config) { config.lora_rank = 8; };
//   const auto trains = [](std::string_view name) { return name.find(".lora.") != std::string_view::npos; };
//   models::Loaded loaded =
//       models::open(argv[1], {.purpose = nn::Purpose::training, .adapt = with_adapters, .trains = trains});
// }
// ```
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "attn/models_embed.h"

#pragma GCC visibility push(default)
namespace attn::models {

/// True for the name of a parameter of an adapter, "blocks.0.attention.qkv.lora.query.a"; of the head.
bool is_adapter(std::string_view parameter);
bool is_in_head(std::string_view parameter);
/// The names of the classes of a folder's classifier; none for another model. Throws Error.
std::vector<std::string> read_labels(const std::string& folder);
/// The pooling of a sentence encoder's folder: mean or first. Throws Error for modules that a training would leave out.
Pooling sentence_pooling(const std::string& folder);
/// The tokenizer of a folder of `attn train` or of the hub. Throws Error.
std::unique_ptr<text::Tokenizer> read_tokenizer(const std::string& folder);

/// The first token that the decoder of a folder's encoder-decoder reads, and the one that ends what it writes.
struct DecoderTokens {
  int64_t start = -1, eos = -1;
};
/// Throws Error for a folder that does not name them.
DecoderTokens read_decoder_tokens(const std::string& folder);

/// The file in the folder of a fine-tuned model that keeps what the original folder says about it: config.json, names
/// and shapes of tensors, small files of tokenizer and generation. export_folder() and open() read it.
inline constexpr const char* kPretrainedFile = "pretrained.json";
/// The content of that file for a training that begins with `folder`, opened with this task; "" if it begins with a
/// model that `attn train` made from the start. Throws Error.
std::string pretrained_json(const std::string& folder, const std::string& task = "");

/// The same model without adapters: W + s B A in place of each W. Its parameters are for inference. Throws Error for
/// weights that packing has freed.
Model merge_adapters(const Model& model);

}  // namespace attn::models
#pragma GCC visibility pop
