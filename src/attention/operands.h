// A block of keys or values as the kernels want it: in place, or packed, or packed without what is not finite.
//
// Everything that reads keys and values goes through here. Whether rows serve in place is the kernels' answer
// (kernels::Operand). Packing happens once per block, by the first of a group that needs it, or once for all
// groups of rows that walk over a sequence.
#pragma once

#include "attention/rows.h"
#include "core/scratch.h"

namespace attn::detail {

/// The keys, or the values, of one sequence and key/value head: rows of a view, or of KV pages.
class KeyRows {
 public:
  KeyRows() = default;
  /// Rows of n numbers that follow each other, from row `first` on at `rows`.
  KeyRows(const void* rows, int64_t first, DType dtype, int64_t n);
  static KeyRows keys(const Problem& p, const Sequence& s, int64_t kv_head) {
    return KeyRows(p, p.k, p.D, s, s.pages.keys, kv_head);
  }
  static KeyRows values(const Problem& p, const Sequence& s, int64_t kv_head) {
    return KeyRows(p, p.v, p.Dv, s, s.pages.values, kv_head);
  }

  const void* row(int64_t j) const;
  /// How many rows from j on are one stride apart.
  int64_t run(int64_t j) const {
    return pages_ ? page_size_ - (first_ + j) % page_size_ : std::numeric_limits<int64_t>::max();
  }
  int64_t row_stride() const { return row_stride_; }  // elements
  int64_t row_size() const { return n_; }             // elements
  /// Rows [begin, end), whose addresses go to `rows`.
  kernels::RowsArgs list(int64_t begin, int64_t end, void** rows) const;
  /// True if they serve as they are.
  bool in_place(const kernels::Operand& operand) const;
  /// True if only kernels of that type read them.
  bool is_int8() const { return type_ == kernels::kInt8; }

 private:
  KeyRows(const Problem& p, const ConstView<4>& view, int64_t n, const Sequence& s, const void* const* pages,
          int64_t kv_head);

  const char* base_ = nullptr;
  const void* const* pages_ = nullptr;
  int64_t page_size_ = 0;
  int64_t first_ = 0;                    // rows before key 0, of the first KV page or from base_ on
  int64_t page_offset_ = 0;              // bytes to the head inside a KV page
  int64_t row_stride_ = 0, stride_ = 1;  // elements: from row to row, inside a row
  int64_t row_bytes_ = 0;
  int64_t n_ = 0;
  int type_ = kernels::kFloat32;
  bool far_ = false;
};

/// Rows of a block that are one stride apart.
struct KeyRun {
  const void* rows;
  int64_t stride;  // the stride that the product takes
  int64_t first, count;
};

/// One block of keys or values as one of the products takes it. Rows of 8 bits are decoded first, into the type of the
/// queries, unless the kernels are those of such rows.
class BlockOperand {
 public:
  /// Scratch for blocks of `keys` rows of n elements; `kept` > 0: for all blocks of a sequence of so many rows, which
  /// stay packed until reset().
  void layout(Arena& arena, const Problem& p, const kernels::Operand& operand, const TileKernels& tk, int64_t keys,
              int64_t n, int64_t kept = 0);
  /// Another sequence comes.
  void reset();
  /// Rows [begin, end) of `source`, which outlives the block; all of one block of the walk.
  void start(const KeyRows& source, int64_t begin, int64_t end);

  /// Calls body(run) for the rows first .. first + count of the block, in order. finite_only: non-finite elements
  /// count as 0.
  template <class Body>
  void for_runs(int64_t first, int64_t count, const Body& body, bool finite_only = false) {
    if (in_place_ && !finite_only) {
      decode();
      for (int64_t row = first, end = first + count; row < end;) {
        const int64_t n = std::min(end - row, source_->run(row));
        body(KeyRun{source_->row(row), source_->row_stride(), row, n});
        row += n;
      }
      return;
    }
    pack(finite_only);
    body(packed_run(first, count));
  }

  /// The same rows as one run, packed in place in several.
  KeyRun run(int64_t first, int64_t count);

  /// No element of the block is infinite or NaN; looked up once.
  bool finite();
  /// The rows first .. first + count as they are in memory.
  kernels::RowsArgs list(int64_t first, int64_t count, void** rows) {
    decode();
    return source_->list(first, first + count, rows);
  }

 private:
  enum class State : uint8_t { not_packed, packed, packed_finite_only };

  void decode();
  void pack(bool finite_only);
  KeyRun packed_run(int64_t first, int64_t count) const;

  const kernels::Operand* operand_ = nullptr;
  const TileKernels* tk_ = nullptr;
  const KeyRows* source_ = nullptr;
  const KeyRows* coded_ = nullptr;  // what is still to be decoded into source_
  KeyRows decoded_;
  char* decoded_rows_ = nullptr;
  DType decoded_type_ = DType::float32;
  int64_t n_ = 0, begin_ = 0, end_ = 0;
  int64_t block_keys_ = 0, kept_ = 0;
  int64_t pack_begin_ = 0, pack_end_ = 0;  // the rows at dense_
  char *base_ = nullptr, *dense_ = nullptr;
  State *states_ = nullptr, *state_ = nullptr;  // of all blocks that are kept; of this one
  bool in_place_ = false;
  bool finite_known_ = false, finite_ = true;
};

/// As layout() wants `kept`, where a sequence is walked over more than once: all rows, if they have to be packed and
/// are no more than a thread may keep.
int64_t kept_rows(const KeyRows& rows, const kernels::Operand& operand, int64_t count, int64_t n);

}  // namespace attn::detail
