// gguf: models of llama.cpp's files, in terms of transformers: a config.json, names of tensors, and their content.
#pragma once

#include <string>

#include "io/gguf.h"
#include "models/folder.h"

namespace attn::models {

/// Throws Error: the tensor is of a type that is not read.
[[noreturn]] void refuse_type(const io::Gguf& file, const std::string& tensor);
/// The config.json that a folder of the hub would have. Throws Error for an architecture and for entries that are not
/// supported.
io::Json gguf_config(const io::Gguf& file);
/// open() and read_config() of a GGUF file.
Loaded open_gguf(const std::string& path, const OpenOptions& options);
Config read_gguf_config(const std::string& path);

}  // namespace attn::models
