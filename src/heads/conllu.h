// Files of CoNLL-U, read once for what is asked of them.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "attn/heads.h"

namespace attn::heads {

/// A line that is a word, or an empty node, which is not written.
struct ConlluNode {
  int64_t word = -1;  ///< in its sentence
  std::string upos, misc;
  int64_t line = 0;
};

struct ConlluSentence {
  Sentence sentence = {};
  std::vector<ConlluNode> nodes = {};
  bool begins_document = false;
};

struct ConlluFile {
  std::vector<ConlluSentence> sentences = {};
  std::string entity_fields = {};  ///< of "# global.Entity = eid-etype-head-other"; empty: the file does not say
};

/// What is wrong with a file, line by line, as far as anybody reads it.
class ConlluReasons {
 public:
  explicit ConlluReasons(std::string source) : source_(std::move(source)) {}
  const std::string& source() const { return source_; }
  void wrong(int64_t line, const std::string& reason);
  /// Throws Error if there was something.
  void done() const;
  /// Fit for a terminal.
  static std::string quoted(std::string_view text);

 private:
  std::string source_;
  std::vector<std::string> reasons_;
};

/// A whole number that is not negative.
std::optional<int64_t> whole_number(std::string_view text);
std::vector<std::string_view> fields_of(std::string_view line, char separator);

/// Throws Error for what is no CoNLL-U.
ConlluFile read_conllu_file(std::string_view text, ConlluReasons& reasons);

}  // namespace attn::heads
