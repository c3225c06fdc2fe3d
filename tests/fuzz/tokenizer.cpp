// tokenizer.json, of Hugging Face's tokenizers and of our own.
#include "tokenizing.h"

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace attn;
  fuzz::read_or_refuse([&] {
    const auto tokenizer = text::load_tokenizer(fuzz::bytes_of(data, size), "fuzz");
    fuzz::use(*tokenizer);
    fuzz::use(*text::load_tokenizer(tokenizer->to_json(), "again"));
  });
  return 0;
}
