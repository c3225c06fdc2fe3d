// The keys that a block layout lists for the rows of a panel, found without a visit to the blocks between them.
#pragma once

#include <cstdint>
#include <limits>

#include "attention/problem.h"
#include "kernels/table.h"

namespace attn::detail {

/// Keys [begin, end) of a sequence; none as it is made.
struct KeyRange {
  int64_t begin = std::numeric_limits<int64_t>::max(), end = 0;
  void add(const KeyRange& other) {
    begin = std::min(begin, other.begin);
    end = std::max(end, other.end);
  }
};

/// Lists of key blocks that a walk reads once, from front to back: a call passes the blocks that end at or before its
/// first argument, and later calls do not find them until start(). Keys are counted inside the sequence.
class KeyLists {
 public:
  /// The lists of rows (head[r], query[r]); none where the call has no lists. Rows with one list share it.
  void set(const Problem& p, const Sequence& s, const int64_t* head, const int64_t* query, int rows);
  bool given() const { return layout_ != nullptr; }

  /// Goes to the first blocks that do not end before `key`.
  void start(int64_t key) const;
  /// The first listed key from `key` on; the largest integer if there is none.
  int64_t next(int64_t key) const;
  /// The first listed key of [begin, end), to the last one.
  KeyRange within(int64_t begin, int64_t end) const;
  /// allowed[key - begin] &= the rows whose list has the key, for keys in [begin, end).
  void mask(int64_t begin, int64_t end, uint64_t* allowed) const;

 private:
  struct List {
    int64_t begin, end;  // in the layout's indices
    mutable int64_t at;  // blocks before it have been passed
    uint64_t rows;
  };

  void pass(const List& list, int64_t key) const;
  int64_t block_begin(int64_t n) const;
  int64_t block_end(int64_t n) const;

  const BlockLayout* layout_;
  int64_t key_begin_;  // of the sequence, in the whole
  int count_;
  List lists_[kernels::kMaxWidth];
};

}  // namespace attn::detail
