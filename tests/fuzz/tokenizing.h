// tokenizing: what a tokenizer that was loaded has to do without a crash.
#pragma once

#include "attn/text.h"
#include "target.h"

namespace attn::fuzz {

inline void use(const text::Tokenizer& tokenizer) {
  for (const char* text : {"", "Hello, w\xc3\xb6rld! 1234", "  two  spaces\n\xe4\xbd\xa0 a\xcc\x81 [MASK]</s>"})
    read_or_refuse([&] {
      const std::vector<int64_t> ids = tokenizer.encode(text).ids;
      for (const int64_t id : ids) require(id >= 0 && id < tokenizer.vocab_size());
      const std::string whole = tokenizer.decode(ids);
      text::TextStream stream(tokenizer);
      std::string pieces;
      for (const int64_t id : ids) pieces += stream.push(id);
      require(pieces + stream.finish() == whole);
    });
  for (const int64_t id : {int64_t{0}, tokenizer.vocab_size() - 1}) read_or_refuse([&] { tokenizer.label(id); });
}

}  // namespace attn::fuzz
