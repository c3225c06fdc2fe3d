// Added tokens: at each place of a text the longest one counts.
#include "text/added_tokens.h"

#include <utility>

#include "text/regex.h"
#include "text/unicode.h"

namespace attn::text {
namespace {

/// What a regular expression calls \w.
bool is_word_character(Character c) {
  if (c < 0x80) return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
  static const Regex kWord("[\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}\\p{Join_Control}]");
  std::string text;
  append_character(text, c);
  return Matches(kWord, text).next();
}

/// The character that ends at `end`, whose beginning is put into `begin`.
Character character_before(std::string_view text, size_t end, size_t& begin) {
  begin = end - 1;
  while (begin > 0 && (static_cast<uint8_t>(text[begin]) & 0xC0) == 0x80) --begin;
  size_t at = begin;
  return next_character(text, at);
}

size_t without_blanks_before(std::string_view text, size_t end) {
  for (size_t begin; end > 0 && is_space(character_before(text, end, begin));) end = begin;
  return end;
}

size_t behind_blanks(std::string_view text, size_t at) {
  for (size_t next = at; next < text.size() && is_space(next_character(text, next));) at = next;
  return at;
}

bool is_single_word(std::string_view text, size_t begin, size_t end) {
  size_t at = end, before;
  if (begin > 0 && is_word_character(character_before(text, begin, before))) return false;
  return end == text.size() || !is_word_character(next_character(text, at));
}

}  // namespace

AddedTokens::AddedTokens(const Fields& root, const Vocabulary& vocabulary, const Normalizer* normalizer) {
  if (!root.has("added_tokens")) return;
  for (const Fields& fields : root.list("added_tokens")) {
    const std::string content = fields.text("content");
    if (content.empty()) continue;
    const int64_t id = fields.number("id", kMaxTokens - 1);
    fields.require(content.size() <= kMaxTokenBytes, "content", "shorter");
    const auto own = vocabulary.id_of(content);
    if (own && *own != id)
      fields.refuse("id is " + std::to_string(id) + ", but the vocabulary has " + io::in_quotes(content) + " as " +
                    std::to_string(*own));
    if (!own && vocabulary.has(id))
      fields.refuse("id is " + std::to_string(id) + ", which is that of " + io::in_quotes(vocabulary.token(id)));
    const bool special = fields.boolean("special", false);
    const Token token = {content,
                         fields.boolean("single_word", false),
                         fields.boolean("lstrip", false),
                         fields.boolean("rstrip", false),
                         fields.boolean("normalized", !special),
                         special,
                         ""};
    if (const auto [place, is_new] = tokens_.emplace(id, token); !is_new && place->second.content != content)
      fields.refuse("id is " + std::to_string(id) + ", which is that of " + io::in_quotes(place->second.content));
    if (const auto [place, is_new] = ids_.emplace(content, id); !is_new && place->second != id)
      fields.refuse("content is " + io::in_quotes(content) + ", which has the id " + std::to_string(place->second));
    size_ = std::max(size_, id + 1);
  }
  for (auto& [id, token] : tokens_) {
    token.text = token.content;
    bool ignored = true;
    if (token.is_normalized && normalizer) normalizer->apply(token.text, ignored);
  }
  plain_ = search_for(false);
  normalized_ = search_for(true);
}

AddedTokens::Search AddedTokens::search_for(bool normalized) const {
  Search search;
  std::vector<std::pair<std::string_view, uint32_t>> entries;
  for (const auto& [id, token] : tokens_) {
    if (token.is_normalized != normalized || token.text.empty()) continue;
    entries.emplace_back(token.text, static_cast<uint32_t>(id));
    search.begins[static_cast<uint8_t>(token.text[0])] = true;
  }
  std::sort(entries.begin(), entries.end(), [](const auto& a, const auto& b) { return a.second > b.second; });
  search.trie = Trie(std::move(entries));  // of two with one text that with the smaller id
  return search;
}

std::vector<AddedTokens::Part> AddedTokens::parts(std::string_view text, bool is_normalized) const {
  std::vector<Part> parts;
  const Search& search = is_normalized ? normalized_ : plain_;
  size_t done = 0;
  for (size_t at = 0; at < text.size();) {
    if (!search.begins[static_cast<uint8_t>(text[at])]) {
      ++at;
      continue;
    }
    size_t length = 0;
    int64_t id = -1;
    search.trie.walk(text.substr(at), [&](size_t longest, uint32_t token) {
      length = longest;
      id = token;
    });
    if (id < 0) {
      ++at;
      continue;
    }
    const Token& token = tokens_.at(id);
    size_t begin = at, end = at + length;
    at = end;
    if (token.single_word && !is_single_word(text, begin, end)) continue;
    if (token.takes_left) begin = std::max(without_blanks_before(text, begin), done);
    if (token.takes_right) end = behind_blanks(text, end);
    if (done < begin) parts.push_back({done, begin, -1});
    parts.push_back({begin, end, id});
    done = end;
  }
  if (done < text.size()) parts.push_back({done, text.size(), -1});
  return parts;
}

const std::string* AddedTokens::text(int64_t id) const {
  const auto found = tokens_.find(id);
  return found == tokens_.end() ? nullptr : &found->second.text;
}

bool AddedTokens::is_special(int64_t id) const {
  const auto found = tokens_.find(id);
  return found != tokens_.end() && found->second.is_special;
}

std::optional<int64_t> AddedTokens::find(std::string_view content) const {
  const auto found = ids_.find(std::string(content));
  return found == ids_.end() ? std::nullopt : std::optional(found->second);
}

}  // namespace attn::text
