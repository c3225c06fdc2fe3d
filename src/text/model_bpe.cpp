// Byte-pair encoding: the two adjacent tokens whose merge has the lowest rank merge, until no merge is left. A long
// piece, such as a text that no pre-tokenizer has split, is split between two characters that are not adjacent in any
// token: tokens never merge across such a place. The parts are often words, which a cache then finds again.
#include <algorithm>
#include <cstdio>
#include <queue>
#include <utility>

#include "attn/core.h"
#include "text/model.h"
#include "text/unicode.h"

namespace attn::text {
namespace {

constexpr size_t kLong = 16;  // bytes up to which a piece is not split
constexpr size_t kFew = 32;   // symbols up to which a scan over all is faster than a heap

std::string byte_token(uint8_t byte) {
  char name[8];
  std::snprintf(name, sizeof name, "<0x%02X>", byte);
  return name;
}

/// The pairs of characters that are adjacent in a token that a merge gives.
class AdjacentCharacters {
 public:
  void add(std::string_view token) {
    Character before = -1;
    for (size_t at = 0; at < token.size();) {
      const Character character = next_character(token, at);
      if (before >= 0) pairs_.emplace_back(before, character);
      before = character;
    }
  }
  void done() {
    std::sort(pairs_.begin(), pairs_.end());
    pairs_.erase(std::unique(pairs_.begin(), pairs_.end()), pairs_.end());
    table_ = MergeTable(pairs_.size());
    for (const auto& [left, right] : pairs_)
      table_.set(static_cast<uint32_t>(left), static_cast<uint32_t>(right), {0, 0});
    pairs_ = {};
  }
  bool have(Character left, Character right) const {
    return table_.find(static_cast<uint32_t>(left), static_cast<uint32_t>(right)) != nullptr;
  }

 private:
  std::vector<std::pair<Character, Character>> pairs_;
  MergeTable table_;
};

class BpeModel final : public TokenModel {
 public:
  explicit BpeModel(const JsonFields& fields)
      : TokenModel(Vocabulary::read(fields)),
        source_(fields.source()),
        prefix_(fields.text("continuing_subword_prefix", "")),
        suffix_(fields.text("end_of_word_suffix", "")),
        fuses_unknown_(fields.boolean("fuse_unk", false)),
        takes_whole_words_(fields.boolean("ignore_merges", false)) {
    if (fields.has("dropout"))
      fields.require(fields.at("dropout").is_number() && fields.at("dropout").get<double>() == 0, "dropout",
                     "0 or null: ids would be random");
    if (fields.has("unk_token")) {
      unknown_ = vocabulary_.find(fields.text("unk_token"));
      lacks_unknown_ = unknown_ == Vocabulary::kNone;
    }
    if (fields.boolean("byte_fallback", false))
      for (int byte = 0; byte < 256; ++byte) bytes_.push_back(vocabulary_.find(byte_token(static_cast<uint8_t>(byte))));
    read_merges(fields);
    known_.resize(0x110000);
    for (int64_t id = 0; id < vocabulary_.size(); ++id) {
      size_t at = 0;
      const std::string_view token = vocabulary_.token(id);
      if (token.empty()) continue;
      const Character character = next_character(token, at);
      if (at == token.size()) known_[static_cast<size_t>(character)] = true;
    }
  }

  std::string kind() const override { return "bpe"; }

  void encode(std::string_view piece, WordCache& parts, std::vector<int64_t>& ids) const override {
    if (takes_whole_words_)
      if (const uint32_t id = vocabulary_.find(piece); id != Vocabulary::kNone) return ids.push_back(id);
    if (piece.size() <= kLong || !may_split_) return encode_part(piece, ids);
    size_t begin = 0, at = 0;
    Character before = next_character(piece, at);
    while (begin < piece.size()) {
      const size_t here = at;
      const Character character = at < piece.size() ? next_character(piece, at) : -1;
      const bool ends = character < 0 || (!neighbours_.have(before, character) && known_[static_cast<size_t>(before)] &&
                                          known_[static_cast<size_t>(character)]);
      before = character;
      if (!ends) continue;
      const std::string_view part = piece.substr(begin, here - begin);
      begin = here;
      uint64_t hash;
      if (parts.append(part, ids, hash)) continue;
      const size_t first = ids.size();
      encode_part(part, ids);
      parts.remember(part, hash, ids.data() + first, ids.size() - first);
    }
  }

 private:
  struct Symbol {
    uint32_t id;
    int64_t previous, next;  // -1 at the ends
    bool is_there;           // false once it has merged into the symbol before it
  };
  struct MergeCandidate {
    uint32_t rank;
    int64_t place;
    uint32_t id;
    bool operator<(const MergeCandidate& other) const {  // the top of the queue is the largest
      return rank != other.rank ? rank > other.rank : place > other.place;
    }
  };

  void read_merges(const JsonFields& fields) {
    const io::Json& list = fields.at("merges");
    fields.require(list.is_array(), "merges", "a list");
    merges_ = MergeTable(list.size());
    uint32_t rank = 0;
    for (const io::Json& entry : list) {
      const auto refuse = [&](const std::string& why) {
        fields.refuse("merge " + std::to_string(rank) + " is " + io::as_shown(entry) + ", " + why);
      };
      std::string left, right;
      if (entry.is_string()) {
        const std::string& text = entry.get_ref<const std::string&>();
        const size_t space = text.find(' ');
        if (space == std::string::npos || text.find(' ', space + 1) != std::string::npos)
          refuse("must be two tokens with one space between them");
        left = text.substr(0, space);
        right = text.substr(space + 1);
      } else if (entry.is_array() && entry.size() == 2 && entry[0].is_string() && entry[1].is_string()) {
        left = entry[0];
        right = entry[1];
      } else {
        refuse("must be two tokens");
      }
      if (right.size() < prefix_.size()) refuse("must have a second token with continuing_subword_prefix");
      const std::string merged = left + right.substr(prefix_.size());
      const uint32_t ids[] = {vocabulary_.find(left), vocabulary_.find(right), vocabulary_.find(merged)};
      for (size_t n = 0; n < 3; ++n)
        if (ids[n] == Vocabulary::kNone)
          refuse("but the vocabulary has no " + io::in_quotes(n == 0 ? left : n == 1 ? right : merged));
      merges_.set(ids[0], ids[1], {rank++, ids[2]});
      neighbours_.add(merged);
      may_split_ = may_split_ && !is_replacement(ids[0]) && !is_replacement(ids[1]);
    }
    neighbours_.done();
    may_split_ = may_split_ && prefix_.empty() && suffix_.empty();
  }

  /// True for the tokens that replace characters without a token of their own.
  bool is_replacement(uint32_t id) const {
    return id == unknown_ || std::find(bytes_.begin(), bytes_.end(), id) != bytes_.end();
  }

  /// The tokens of the characters. A character without a token becomes its bytes if each of them has a token, else the
  /// unknown token. As in the package `tokenizers`, the unknown token is emitted only before the next character with a
  /// token of its own, and thus after the bytes of characters in between.
  void symbols_of(std::string_view piece, std::vector<uint32_t>& symbols) const {
    bool is_pending = false;
    std::string changed;
    for (size_t at = 0; at < piece.size();) {
      const size_t begin = at;
      next_character(piece, at);
      std::string_view character = piece.substr(begin, at - begin);
      if ((begin > 0 && !prefix_.empty()) || (at == piece.size() && !suffix_.empty())) {
        changed = begin > 0 ? prefix_ : "";
        changed.append(character).append(at == piece.size() ? suffix_ : "");
        character = changed;
      }
      const uint32_t id = vocabulary_.find(character);
      if (id != Vocabulary::kNone) {
        if (std::exchange(is_pending, false)) symbols.push_back(unknown_);
        symbols.push_back(id);
        continue;
      }
      if (append_bytes(character, symbols)) continue;
      if (lacks_unknown_)
        throw Error("encode", {source_ + ": the vocabulary has no token for " + io::in_quotes(character) +
                               ", and unk_token is not in it"});
      if (unknown_ == Vocabulary::kNone) continue;
      if (is_pending && !fuses_unknown_) symbols.push_back(unknown_);
      is_pending = true;
    }
    if (is_pending) symbols.push_back(unknown_);
  }

  bool append_bytes(std::string_view character, std::vector<uint32_t>& symbols) const {
    if (bytes_.empty()) return false;
    const auto token_of = [&](char byte) { return bytes_[static_cast<uint8_t>(byte)]; };
    for (char byte : character)
      if (token_of(byte) == Vocabulary::kNone) return false;
    for (char byte : character) symbols.push_back(token_of(byte));
    return true;
  }

  void encode_part(std::string_view part, std::vector<int64_t>& ids) const {
    std::vector<uint32_t> symbols;
    symbols.reserve(part.size());
    symbols_of(part, symbols);
    if (symbols.size() <= kFew) merge_few(symbols);
    else merge_many(symbols);
    ids.insert(ids.end(), symbols.begin(), symbols.end());
  }

  void merge_few(std::vector<uint32_t>& symbols) const {
    PairMerge found[kFew];  // the merge of each symbol with the next
    constexpr PairMerge kNo = {UINT32_MAX, 0};
    const auto look = [&](size_t n) {
      const PairMerge* merge = n + 1 < symbols.size() ? merges_.find(symbols[n], symbols[n + 1]) : nullptr;
      found[n] = merge ? *merge : kNo;
    };
    for (size_t n = 0; n < symbols.size(); ++n) look(n);
    while (symbols.size() > 1) {
      size_t best = 0;
      for (size_t n = 1; n + 1 < symbols.size(); ++n)
        if (found[n].rank < found[best].rank) best = n;
      if (found[best].rank == UINT32_MAX) return;
      symbols[best] = found[best].id;
      symbols.erase(symbols.begin() + static_cast<int64_t>(best) + 1);
      std::copy(found + best + 2, found + symbols.size() + 1, found + best + 1);
      look(best);
      if (best > 0) look(best - 1);
    }
  }

  void merge_many(std::vector<uint32_t>& ids) const {
    const auto count = static_cast<int64_t>(ids.size());
    std::vector<Symbol> symbols;
    symbols.reserve(ids.size());
    for (int64_t n = 0; n < count; ++n) symbols.push_back({ids[n], n - 1, n + 1 < count ? n + 1 : -1, true});
    std::priority_queue<MergeCandidate> queue;
    const auto look = [&](int64_t place) {
      if (place < 0 || symbols[place].next < 0) return;
      if (const PairMerge* merge = merges_.find(symbols[place].id, symbols[symbols[place].next].id))
        queue.push({merge->rank, place, merge->id});
    };
    for (int64_t n = 0; n < count; ++n) look(n);
    while (!queue.empty()) {
      const MergeCandidate top = queue.top();
      queue.pop();
      Symbol& symbol = symbols[top.place];
      if (!symbol.is_there || symbol.next < 0) continue;
      Symbol& right = symbols[symbol.next];
      const PairMerge* merge = merges_.find(symbol.id, right.id);
      if (!merge || merge->id != top.id) continue;  // one of the two has merged in the meantime
      symbol.id = top.id;
      symbol.next = right.next;
      right.is_there = false;
      if (symbol.next >= 0) symbols[symbol.next].previous = top.place;
      look(symbol.previous);
      look(top.place);
    }
    ids.clear();
    for (const Symbol& symbol : symbols)
      if (symbol.is_there) ids.push_back(symbol.id);
  }

  std::string source_, prefix_, suffix_;
  bool fuses_unknown_, takes_whole_words_, lacks_unknown_ = false, may_split_ = true;
  uint32_t unknown_ = Vocabulary::kNone;
  std::vector<uint32_t> bytes_;  // the token of each byte; empty without byte_fallback
  MergeTable merges_;
  AdjacentCharacters neighbours_;
  std::vector<bool> known_;
};

}  // namespace

std::unique_ptr<TokenModel> read_bpe(const JsonFields& fields) { return std::make_unique<BpeModel>(fields); }

}  // namespace attn::text
