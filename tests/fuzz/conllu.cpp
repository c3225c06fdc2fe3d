// Sentences with dependency arcs, and documents with entities.
#include "attn/heads.h"

#include "target.h"

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace attn;
  const std::string text = fuzz::bytes_of(data, size);
  fuzz::read_or_refuse([&] {
    for (const heads::Sentence& sentence : heads::read_conllu(text, "seed")) {
      const auto words = static_cast<int64_t>(sentence.words.size());
      fuzz::require(words > 0 && sentence.line >= 1);
      fuzz::require(sentence.governors.size() == sentence.words.size());
      fuzz::require(sentence.relations.size() == sentence.words.size());
      for (int64_t word = 0; word < words; ++word) {
        const int64_t governor = sentence.governors[static_cast<size_t>(word)];
        fuzz::require(governor >= -1 && governor < words && governor != word);
      }
    }
  });
  fuzz::read_or_refuse([&] {
    for (const heads::Document& document : heads::read_coreference(text, "seed")) {
      const auto words = static_cast<int64_t>(document.words.size());
      fuzz::require(!document.ends.empty() && document.ends.back() == words);
      for (const heads::Mention& mention : document.mentions)
        fuzz::require(mention.word >= 0 && mention.word < words && !mention.entity.empty());
    }
  });
  return 0;
}
