// model: turns the pieces of a text into token ids.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "text/vocabulary.h"

namespace attn::text {

class TokenModel {
 public:
  explicit TokenModel(Vocabulary vocabulary) : vocabulary_(std::move(vocabulary)) {}
  virtual ~TokenModel() = default;
  virtual std::string kind() const = 0;
  /// Appends the ids of a piece, which must not be empty. `parts` caches parts of long pieces between calls.
  virtual void encode(std::string_view piece, WordCache& parts, std::vector<int64_t>& ids) const = 0;
  const Vocabulary& vocabulary() const { return vocabulary_; }

 protected:
  Vocabulary vocabulary_;
};

std::unique_ptr<TokenModel> read_bpe(const JsonFields& fields);
std::unique_ptr<TokenModel> read_wordpiece(const JsonFields& fields);
std::unique_ptr<TokenModel> read_wordlevel(const JsonFields& fields);
std::unique_ptr<TokenModel> read_unigram(const JsonFields& fields);

}  // namespace attn::text
