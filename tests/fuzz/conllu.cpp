// Sentences with dependency arcs.
#include "attn/heads.h"

#include "target.h"

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace attn;
  const std::string text = fuzz::bytes_of(data, size);
  fuzz::read_or_refuse([&] {
    for (const heads::Sentence& sentence : heads::read_conllu(text, "seed")) {
      const auto words = static_cast<int64_t>(sentence.words.size());
      fuzz::require(words > 0 && sentence.line >= 1);
      fuzz::require(sentence.heads.size() == sentence.words.size());
      fuzz::require(sentence.relations.size() == sentence.words.size());
      for (int64_t word = 0; word < words; ++word) {
        const int64_t head = sentence.heads[static_cast<size_t>(word)];
        fuzz::require(head >= -1 && head < words && head != word);
      }
    }
  });
  return 0;
}
