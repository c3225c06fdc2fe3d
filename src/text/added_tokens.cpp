// Added tokens: at each place of a text the longest one counts.
#include "text/added_tokens.h"

#include <algorithm>
#include <utility>

#include "attn/core.h"
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

/// One after the other, as the package adds them: a later entry of the same content changes what the token is.
AddedTokens::AddedTokens(const JsonFields& root, const Vocabulary& vocabulary, const Normalizer* normalizer)
    : splits_specials_(root.boolean("split_special_tokens", false)) {
  if (!root.has("added_tokens")) return;
  for (const JsonFields& fields : root.list("added_tokens")) {
    const AddedToken token = read_added_token(fields);
    if (token.content.empty()) continue;
    const int64_t id = id_for(fields, token.content, vocabulary);
    Token& entry = tokens_[id];
    ids_[token.content] = id;
    if (entry.text.empty() || token.is_normalized()) entry.text = token.content;
    entry.is = token;
    size_t ignored = 0;
    if (token.is_normalized() && normalizer) normalizer->apply(entry.text, ignored);
    if (token.special) specials_.insert(token.content);
    size_ = std::max(size_, id + 1);
  }
  plain_ = search_for(false);
  normalized_ = search_for(true);
}

/// The entry's own id, which must be free or already that of the content.
int64_t AddedTokens::id_for(const JsonFields& fields, const std::string& content, const Vocabulary& vocabulary) const {
  const int64_t id = fields.number("id", kMaxTokens - 1);
  const auto refuse = [&](const std::string& why) { fields.refuse("id is " + std::to_string(id) + why); };
  if (const auto known = ids_.find(content); known != ids_.end() && known->second != id)
    fields.refuse("content is " + io::in_quotes(content) + ", which has the id " + std::to_string(known->second));
  const auto own = vocabulary.id_of(content);
  if (own && *own != id) refuse(", but the vocabulary has " + io::in_quotes(content) + " as " + std::to_string(*own));
  if (!own && vocabulary.has(id)) refuse(", which is that of " + io::in_quotes(vocabulary.token(id)));
  if (const auto taken = tokens_.find(id); taken != tokens_.end() && taken->second.is.content != content)
    refuse(", which is that of " + io::in_quotes(taken->second.is.content));
  return id;
}

AddedTokens::Search AddedTokens::search_for(bool normalized) const {
  Search search;
  std::vector<std::pair<std::string_view, uint32_t>> entries;
  for (const auto& [id, token] : tokens_) {
    if (token.is.is_normalized() != normalized || token.text.empty()) continue;
    const std::string& text = normalized ? token.text : token.is.content;
    entries.emplace_back(text, static_cast<uint32_t>(id));
    search.begins[static_cast<uint8_t>(text[0])] = true;
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
    const AddedToken& token = tokens_.at(id).is;
    size_t begin = at, end = at + length;
    at = end;
    if (splits_specials_ && specials_.contains(token.content)) continue;
    if (token.single_word && !is_single_word(text, begin, end)) continue;
    if (token.lstrip) begin = std::max(without_blanks_before(text, begin), done);
    if (token.rstrip) end = behind_blanks(text, end);
    if (begin >= end) continue;  // the token before has swallowed it
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

bool AddedTokens::is_special(std::string_view content) const { return specials_.contains(content); }

std::optional<int64_t> AddedTokens::find(std::string_view content) const {
  const auto found = ids_.find(std::string(content));
  return found == ids_.end() ? std::nullopt : std::optional(found->second);
}

}  // namespace attn::text
