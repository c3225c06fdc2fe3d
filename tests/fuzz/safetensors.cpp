// A safetensors file in memory: every tensor that it tells of is there.
#include "attn/io.h"
#include "target.h"

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace attn;
  fuzz::read_or_refuse([&] {
    const io::Safetensors file = io::Safetensors::parse(fuzz::bytes_of(data, size), "fuzz");
    for (const auto& [name, info] : file.tensors()) {
      std::string copy(file.bytes(name).size(), '\0');
      file.copy(name, info.dtype, info.shape, copy.data());
      fuzz::require(copy == file.bytes(name));
    }
  });
  return 0;
}
