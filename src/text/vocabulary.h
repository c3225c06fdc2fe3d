// vocabulary: hash tables of tokens, of merges, and of words with their ids. Each is flat: a lookup touches one or two
// cache lines.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "text/fields.h"

namespace attn::text {

constexpr int64_t kMaxTokens = int64_t{1} << 22;  // sixteen times the largest vocabulary in common use
constexpr size_t kMaxTokenBytes = 4096;           // bounds the search for the longest token at each place of a text

/// Equal for equal texts within a process. The author of a vocabulary cannot predict it, and so cannot force
/// collisions.
uint64_t hash_of(std::string_view text);

/// Tokens by id and ids by token. Ids may have gaps. If two ids have the same token, find() returns the later.
class Vocabulary {
 public:
  static constexpr uint32_t kNone = UINT32_MAX;

  /// Reads the field "vocab", {"token": id, ...}.
  static Vocabulary read(const JsonFields& model);
  /// Throws Error, through `place`, if the id or the length of the token is too large.
  void add(std::string_view token, int64_t id, const JsonFields& place);

  /// One more than the largest id.
  int64_t size() const { return static_cast<int64_t>(tokens_.size()); }
  bool has(int64_t id) const { return id >= 0 && id < size() && tokens_[id].length != kNone; }
  /// "" if the id has no token.
  std::string_view token(int64_t id) const;
  /// The token's id, or kNone.
  uint32_t find(std::string_view token) const;
  std::optional<int64_t> id_of(std::string_view token) const;

 private:
  struct TokenSpan {
    size_t begin = 0;  ///< in bytes_
    uint32_t length = kNone;
  };
  struct TokenSlot {
    uint32_t tag = 0, id = kNone;
  };
  void grow();
  void place(std::string_view token, uint32_t id);

  std::string bytes_;
  std::vector<TokenSpan> tokens_;
  std::vector<TokenSlot> slots_;
  size_t used_ = 0;
};

/// The token that two adjacent tokens merge to, and the rank of the merge: lower ranks merge first.
struct PairMerge {
  uint32_t rank, id;
};

class MergeTable {
 public:
  /// Reserves room for `count` merges.
  explicit MergeTable(size_t count = 0);
  /// Replaces an earlier merge of the same pair.
  void set(uint32_t left, uint32_t right, PairMerge merge);
  const PairMerge* find(uint32_t left, uint32_t right) const {
    const uint64_t key = uint64_t{left} << 32 | right;
    for (size_t n = start(key);; n = (n + 1) & mask_) {
      if (slots_[n].key == key) return &slots_[n].merge;
      if (slots_[n].key == kEmpty) return nullptr;
    }
  }

 private:
  static constexpr uint64_t kEmpty = UINT64_MAX;
  struct MergeSlot {
    uint64_t key = kEmpty;
    PairMerge merge = {};
  };
  size_t start(uint64_t key) const { return static_cast<size_t>((key * 0x9E3779B97F4A7C15) >> shift_); }
  std::vector<MergeSlot> slots_;
  size_t mask_;
  int shift_;
};

/// The ids of words that occurred before. A full cache drops all words.
class WordCache {
 public:
  /// Appends the ids of the word if the cache has it, and returns true. Sets `hash` to the word's hash for remember().
  bool append(std::string_view word, std::vector<int64_t>& ids, uint64_t& hash) const {
    hash = hash_of(word);
    for (size_t n = hash & ~uint64_t{1} & mask();; n = (n + 1) & mask()) {
      const WordSlot& slot = slots_[n];
      if (slot.hash == 0) return false;
      if (slot.hash != (hash | 1) || std::string_view(bytes_).substr(slot.begin, slot.length) != word) continue;
      ids.insert(ids.end(), ids_.begin() + slot.first, ids_.begin() + slot.first + slot.count);
      return true;
    }
  }
  void remember(std::string_view word, uint64_t hash, const int64_t* ids, size_t count);

 private:
  static constexpr size_t kFirstSlots = size_t{1} << 10, kMaxSlots = size_t{1} << 16;
  static constexpr size_t kMaxWord = 256, kMaxBytes = size_t{1} << 20, kMaxIds = size_t{1} << 18;
  struct WordSlot {
    uint64_t hash = 0;  ///< odd; 0 is empty
    uint32_t begin = 0, length = 0, first = 0, count = 0;
  };
  size_t mask() const { return slots_.size() - 1; }
  void place(const WordSlot& word);
  std::vector<WordSlot> slots_ = std::vector<WordSlot>(kFirstSlots);
  std::string bytes_;
  std::vector<uint32_t> ids_;
  size_t used_ = 0;
};

}  // namespace attn::text
