// vocabulary: tokens and their ids, pairs that merge, words whose ids are known: flat tables that a lookup reads in one
// or two places of memory.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "text/fields.h"

namespace attn::text {

constexpr int64_t kMaxTokens = int64_t{1} << 22;  // sixteen times the largest vocabulary in common use
constexpr size_t kMaxTokenBytes = 4096;           // what the search for the longest token may look at from each place

/// The same for the same text within a process, and unpredictable for the author of a vocabulary.
uint64_t hash_of(std::string_view text);

/// Tokens by id and ids by token. Ids may have gaps; of two ids with one token the later is found.
class Vocabulary {
 public:
  static constexpr uint32_t kNone = UINT32_MAX;

  /// From {"token": id, ...} at "vocab".
  static Vocabulary read(const JsonFields& model);
  /// Throws by `place` for what is too much: ids, bytes of a token.
  void add(std::string_view token, int64_t id, const JsonFields& place);

  /// One more than the largest id.
  int64_t size() const { return static_cast<int64_t>(tokens_.size()); }
  bool has(int64_t id) const { return id >= 0 && id < size() && tokens_[id].length != kNone; }
  /// "" where the id has no token.
  std::string_view token(int64_t id) const;
  /// kNone for what is no token.
  uint32_t find(std::string_view token) const;
  std::optional<int64_t> id_of(std::string_view token) const;

 private:
  struct Token {
    size_t begin = 0;  ///< of bytes_
    uint32_t length = kNone;
  };
  struct Slot {
    uint32_t tag = 0, id = kNone;
  };
  void grow();
  void place(std::string_view token, uint32_t id);

  std::string bytes_;
  std::vector<Token> tokens_;
  std::vector<Slot> slots_;
  size_t used_ = 0;
};

/// What two neighbours merge to, and before which others.
struct Merge {
  uint32_t rank, id;
};

class Merges {
 public:
  /// Room for so many.
  explicit Merges(size_t count = 0);
  /// Of two with the same pair the later counts.
  void set(uint32_t left, uint32_t right, Merge merge);
  const Merge* find(uint32_t left, uint32_t right) const {
    const uint64_t key = uint64_t{left} << 32 | right;
    for (size_t n = start(key);; n = (n + 1) & mask_) {
      if (slots_[n].key == key) return &slots_[n].merge;
      if (slots_[n].key == kEmpty) return nullptr;
    }
  }

 private:
  static constexpr uint64_t kEmpty = UINT64_MAX;
  struct Slot {
    uint64_t key = kEmpty;
    Merge merge = {};
  };
  size_t start(uint64_t key) const { return static_cast<size_t>((key * 0x9E3779B97F4A7C15) >> shift_); }
  std::vector<Slot> slots_;
  size_t mask_;
  int shift_;
};

/// Ids of words that were met before. When it is full it forgets them all.
class WordCache {
 public:
  /// True if the word is known; its ids are appended. Otherwise `hash` is what remember() wants.
  bool append(std::string_view word, std::vector<int64_t>& ids, uint64_t& hash) const {
    hash = hash_of(word);
    for (size_t n = hash & ~uint64_t{1} & mask();; n = (n + 1) & mask()) {
      const Slot& slot = slots_[n];
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
  struct Slot {
    uint64_t hash = 0;  ///< odd; 0 is empty
    uint32_t begin = 0, length = 0, first = 0, count = 0;
  };
  size_t mask() const { return slots_.size() - 1; }
  void place(const Slot& word);
  std::vector<Slot> slots_ = std::vector<Slot>(kFirstSlots);
  std::string bytes_;
  std::vector<uint32_t> ids_;
  size_t used_ = 0;
};

}  // namespace attn::text
