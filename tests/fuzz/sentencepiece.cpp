// A SentencePiece model, which is a protocol buffer.
#include "tokenizing.h"

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace attn;
  fuzz::read_or_refuse([&] { fuzz::use(*text::load_sentencepiece(fuzz::bytes_of(data, size), "fuzz")); });
  return 0;
}
