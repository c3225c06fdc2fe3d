// gguf: models of llama.cpp's files, in terms of transformers: a config.json, names of tensors, and their content.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "io/gguf.h"
#include "models/folder.h"

namespace attn::models {

/// Throws Error: the tensor is of a type that is not read.
[[noreturn]] void refuse_type(const io::Gguf& file, const std::string& tensor);
/// The config.json that a folder of the hub would have. Throws Error for an architecture and for entries that are not
/// supported.
io::Json gguf_config(const io::Gguf& file);
/// The entries of a file "ARCHITECTURE.KEY", of a model whose config.json has this model_type. Throws Error for a type
/// that is not written.
io::Json gguf_model_entries(const std::string& model_type, const Config& config);
/// What Llama 3 divides the frequency of each of width / 2 pairs by.
std::vector<double> llama3_divisors(double theta, int64_t width, const nn::RopeScalingOptions& scaling);
/// The name of a tensor of transformers in the file; "" if it has none. `sandwiches`: norms before and after a branch.
std::string gguf_name(std::string_view theirs, bool sandwiches);
/// llama.cpp's "llama" stores the rows of a query or key by pairs that rotate together, transformers by halves. For
/// each of `rows` rows of theirs, in heads of `width`, the row of the file.
std::vector<int64_t> order_of_pairs(int64_t rows, int64_t width);
/// open() and read_config() of a GGUF file.
Loaded open_gguf(const std::string& path, const OpenOptions& options);
Config read_gguf_config(const std::string& path);

}  // namespace attn::models
