// WordPiece takes the longest token that a word begins with, and does so again for the rest of the word. WordLevel
// takes whole words.
#include <utility>

#include "attn/core.h"
#include "text/model.h"
#include "text/trie.h"
#include "text/unicode.h"

namespace attn::text {
namespace {

/// The token for words that are not in the vocabulary. Throws Error if the vocabulary lacks that token too.
class UnknownToken {
 public:
  UnknownToken(const JsonFields& fields, const Vocabulary& vocabulary)
      : source_(fields.source()), token_(fields.text("unk_token")), id_(vocabulary.id_of(token_)) {}

  int64_t id(std::string_view word) const {
    if (!id_)
      throw Error("encode", {source_ + ": the vocabulary has no token for " + io::in_quotes(word) +
                             ", and unk_token, which is " + io::in_quotes(token_) + ", is not in it"});
    return *id_;
  }

 private:
  std::string source_, token_;
  std::optional<int64_t> id_;
};

class WordPieceModel final : public TokenModel {
 public:
  explicit WordPieceModel(const JsonFields& fields)
      : TokenModel(Vocabulary::read(fields)),
        unknown_(fields, vocabulary_),
        max_characters_(fields.number("max_input_chars_per_word", INT64_MAX, 100)) {
    const std::string prefix = fields.text("continuing_subword_prefix", "##");
    std::vector<std::pair<std::string_view, uint32_t>> first, later;
    for (int64_t id = 0; id < vocabulary_.size(); ++id) {
      const std::string_view token = vocabulary_.token(id);
      if (vocabulary_.find(token) != id || token.empty()) continue;
      first.emplace_back(token, static_cast<uint32_t>(id));
      if (token.starts_with(prefix) && token.size() > prefix.size())
        later.emplace_back(token.substr(prefix.size()), static_cast<uint32_t>(id));
    }
    first_ = Trie(std::move(first));
    later_ = Trie(std::move(later));
  }

  std::string kind() const override { return "wordpiece"; }

  void encode(std::string_view piece, WordCache&, std::vector<int64_t>& ids) const override {
    const size_t before = ids.size();
    if (has_more_characters(piece)) return ids.push_back(unknown_.id(piece));
    for (size_t at = 0; at < piece.size();) {
      size_t longest = 0;
      uint32_t id = 0;
      (at == 0 ? first_ : later_).walk(piece.substr(at), [&](size_t length, uint32_t token) {
        longest = length;
        id = token;
      });
      if (longest == 0) {
        ids.resize(before);
        return ids.push_back(unknown_.id(piece));
      }
      ids.push_back(id);
      at += longest;
    }
  }

 private:
  bool has_more_characters(std::string_view piece) const {
    if (static_cast<int64_t>(piece.size()) <= max_characters_) return false;
    int64_t count = 0;
    for (char byte : piece) count += (static_cast<uint8_t>(byte) & 0xC0) != 0x80;
    return count > max_characters_;
  }

  UnknownToken unknown_;
  int64_t max_characters_;
  Trie first_, later_;
};

class WordLevelModel final : public TokenModel {
 public:
  explicit WordLevelModel(const JsonFields& fields)
      : TokenModel(Vocabulary::read(fields)), unknown_(fields, vocabulary_) {}
  std::string kind() const override { return "wordlevel"; }
  void encode(std::string_view piece, WordCache&, std::vector<int64_t>& ids) const override {
    const uint32_t id = vocabulary_.find(piece);
    ids.push_back(id == Vocabulary::kNone ? unknown_.id(piece) : id);
  }

 private:
  UnknownToken unknown_;
};

}  // namespace

std::unique_ptr<TokenModel> read_wordpiece(const JsonFields& fields) {
  return std::make_unique<WordPieceModel>(fields);
}

std::unique_ptr<TokenModel> read_wordlevel(const JsonFields& fields) {
  return std::make_unique<WordLevelModel>(fields);
}

}  // namespace attn::text
