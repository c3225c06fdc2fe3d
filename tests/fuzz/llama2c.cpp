// A model of llama2.c: seven numbers, then all weights.
#include "../../cli/llama2c.h"
#include "attn/io.h"
#include "target.h"

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace attn;
  fuzz::read_or_refuse([&] {
    cli::Llama2c file("fuzz", fuzz::bytes_of(data, size));
    file.read();
    io::Safetensors::parse(file.tensors(), "again");
  });
  return 0;
}
