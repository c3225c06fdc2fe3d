// At each place of a text, the longest added token counts.
#include "text/added_tokens.h"

#include <algorithm>
#include <utility>

#include "attn/core.h"
#include "text/regex.h"
#include "text/unicode.h"

namespace attn::text {
namespace {

/// The class \w of regular expressions.
bool is_word_character(Character c) {
  if (c < 0x80) return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
  static const Regex kWord("[\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}\\p{Join_Control}]");
  std::string text;
  append_character(text, c);
  return Matches(kWord, text).next();
}

/// The character that ends at `end`. Sets `begin` to its beginning.
Character character_before(std::string_view text, size_t end, size_t& begin) {
  begin = end - 1;
  while (begin > 0 && (static_cast<uint8_t>(text[begin]) & 0xC0) == 0x80) --begin;
  size_t at = begin;
  return next_character(text, at);
}

size_t skip_spaces_backward(std::string_view text, size_t end) {
  for (size_t begin; end > 0 && is_space(character_before(text, end, begin));) end = begin;
  return end;
}

size_t skip_spaces(std::string_view text, size_t at) {
  for (size_t next = at; next < text.size() && is_space(next_character(text, next));) at = next;
  return at;
}

bool is_single_word(std::string_view text, size_t begin, size_t end) {
  size_t at = end, before;
  if (begin > 0 && is_word_character(character_before(text, begin, before))) return false;
  return end == text.size() || !is_word_character(next_character(text, at));
}

}  // namespace

/// Adds the entries in order, as the package `tokenizers` does: a later entry replaces an earlier one with its content.
AddedTokens::AddedTokens(const JsonFields& root, const Vocabulary& vocabulary, const Normalizer* normalizer)
    : splits_specials_(root.boolean("split_special_tokens", false)) {
  if (!root.has("added_tokens")) return;
  for (const JsonFields& fields : root.list("added_tokens")) {
    const AddedToken token = read_added_token(fields);
    if (token.content.empty()) continue;
    const int64_t id = id_for(fields, token.content, vocabulary);
    Entry& entry = tokens_[id];
    ids_[token.content] = id;
    if (entry.text.empty() || token.is_normalized()) entry.text = token.content;
    entry.token = token;
    size_t ignored = 0;
    if (token.is_normalized() && normalizer) normalizer->apply(entry.text, ignored);
    if (token.special) specials_.insert(token.content);
    size_ = std::max(size_, id + 1);
  }
  plain_ = search_for(false);
  normalized_ = search_for(true);
}

/// The entry's id, which must be free or already be the id of the content.
int64_t AddedTokens::id_for(const JsonFields& fields, const std::string& content, const Vocabulary& vocabulary) const {
  const int64_t id = fields.number("id", kMaxTokens - 1);
  const auto refuse = [&](const std::string& why) { fields.refuse("id is " + std::to_string(id) + why); };
  if (const auto known = ids_.find(content); known != ids_.end() && known->second != id)
    fields.refuse("content is " + io::in_quotes(content) + ", which already has the id " +
                  std::to_string(known->second));
  const auto own = vocabulary.id_of(content);
  if (own && *own != id)
    refuse(", must be " + std::to_string(*own) + ", the id of " + io::in_quotes(content) + " in the vocabulary");
  if (!own && vocabulary.has(id)) refuse(", which is the id of " + io::in_quotes(vocabulary.token(id)));
  if (const auto taken = tokens_.find(id); taken != tokens_.end() && taken->second.token.content != content)
    refuse(", which is the id of " + io::in_quotes(taken->second.token.content));
  return id;
}

AddedTokens::TokenSearch AddedTokens::search_for(bool normalized) const {
  TokenSearch search;
  std::vector<std::pair<std::string_view, uint32_t>> entries;
  for (const auto& [id, entry] : tokens_) {
    if (entry.token.is_normalized() != normalized || entry.text.empty()) continue;
    const std::string& text = normalized ? entry.text : entry.token.content;
    entries.emplace_back(text, static_cast<uint32_t>(id));
    search.begins[static_cast<uint8_t>(text[0])] = true;
  }
  std::sort(entries.begin(), entries.end(), [](const auto& a, const auto& b) { return a.second > b.second; });
  search.trie = Trie(std::move(entries));  // of two equal texts, the smaller id counts
  return search;
}

std::vector<AddedTokens::Segment> AddedTokens::split(std::string_view text, bool is_normalized) const {
  std::vector<Segment> segments;
  const TokenSearch& search = is_normalized ? normalized_ : plain_;
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
    const AddedToken& token = tokens_.at(id).token;
    size_t begin = at, end = at + length;
    at = end;
    if (splits_specials_ && specials_.contains(token.content)) continue;
    if (token.single_word && !is_single_word(text, begin, end)) continue;
    if (token.lstrip) begin = std::max(skip_spaces_backward(text, begin), done);
    if (token.rstrip) end = skip_spaces(text, end);
    if (begin >= end) continue;  // the token before has absorbed these spaces
    if (done < begin) segments.push_back({done, begin, -1});
    segments.push_back({begin, end, id});
    done = end;
  }
  if (done < text.size()) segments.push_back({done, text.size(), -1});
  return segments;
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
