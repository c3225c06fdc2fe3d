// model: what makes tokens of a piece.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "text/vocabulary.h"

namespace attn::text {

class Model {
 public:
  explicit Model(Vocabulary vocabulary) : vocabulary_(std::move(vocabulary)) {}
  virtual ~Model() = default;
  virtual std::string kind() const = 0;
  /// Appends the ids of a piece that is not empty. `parts` is for the parts of a piece that occur again.
  virtual void encode(std::string_view piece, WordCache& parts, std::vector<int64_t>& ids) const = 0;
  const Vocabulary& vocabulary() const { return vocabulary_; }

 protected:
  Vocabulary vocabulary_;
};

std::unique_ptr<Model> read_bpe(const Fields& fields);
std::unique_ptr<Model> read_wordpiece(const Fields& fields);
std::unique_ptr<Model> read_wordlevel(const Fields& fields);
std::unique_ptr<Model> read_unigram(const Fields& fields);

}  // namespace attn::text
