// A GGUF file of llama.cpp as a model with its tokenizer.
#include <unistd.h>

#include <cstdio>
#include <filesystem>

#include "attn/io.h"
#include "attn/models.h"
#include "target.h"

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace attn;
  static const std::string path =
      std::filesystem::temp_directory_path() / ("attn_fuzz_gguf." + std::to_string(getpid()));
  io::write_file(path, "GGUF" + fuzz::bytes_of(data, size));
  fuzz::read_or_refuse([&] { text::open_tokenizer(path); });
  fuzz::read_or_refuse([&] { models::open(path); });
  std::remove(path.c_str());
  return 0;
}
