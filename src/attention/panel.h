// What the forward, backward and weights schedules share: rows in lanes, keys in blocks, and the mask of a tile.
#pragma once

#include <cstdint>
#include <numbers>

#include "attention/problem.h"
#include "kernels/table.h"

namespace attn::detail {

using kernels::TileKernels;

// Absolute blocks and chunks: a row meets the same keys in the same groups whoever computes it, which is what makes its
// bits independent of the schedule. Block: the forward is flat within 1 % from 192 to 512 keys. Chunk: the unit that
// threads may split; a merge every 2048 keys costs under 0.5 % of the arithmetic.
constexpr int64_t kBlockKeys = 256;
constexpr int64_t kChunkKeys = 2048;

// Scores are kept as kScoreUnit * score, so that a weight is 2^(2 (s - reference)). The whole log2(e) would be the
// simpler unit, but a finite score beyond 2.3e38 would overflow in it; doubling the difference costs no multiplication.
constexpr double kScoreUnit = std::numbers::log2e / 2;

inline int64_t round_up(int64_t n, int64_t multiple) { return (n + multiple - 1) / multiple * multiple; }
inline int64_t div_up(int64_t n, int64_t divisor) { return (n + divisor - 1) / divisor; }

/// Hands out 64-byte aligned parts of one scratch area; over a null base it only counts.
class Arena {
 public:
  explicit Arena(void* base) : base_(static_cast<char*>(base)) {}
  template <class T = void>
  T* take(int64_t bytes) {
    char* part = base_ ? base_ + used_ : nullptr;
    used_ += round_up(bytes, 64);
    return static_cast<T*>(static_cast<void*>(part));
  }
  int64_t used() const { return used_; }

 private:
  char* base_;
  int64_t used_ = 0;
};

/// Element i of an array of the arithmetic's type.
inline double get(const TileKernels& tk, const void* array, int64_t i) {
  return tk.acc_bytes == 8 ? static_cast<const double*>(array)[i] : static_cast<const float*>(array)[i];
}
inline void set(const TileKernels& tk, void* array, int64_t i, double value) {
  if (tk.acc_bytes == 8) static_cast<double*>(array)[i] = value;
  else static_cast<float*>(array)[i] = static_cast<float>(value);
}

/// A score of +infinity is computed as the largest finite number, so that it wins alone instead of giving inf - inf.
inline double highest_score(const TileKernels& tk) {
  return tk.acc_bytes == 8 ? std::numeric_limits<double>::max() : std::numeric_limits<float>::max();
}

/// The state of a block of rows, see kernels::MergeArgs.
struct RowStates {
  void* out = nullptr;  // acc [rows][stride]
  double* reference = nullptr;
  double* sum = nullptr;

  static RowStates take(Arena& arena, int64_t rows, int64_t stride, int acc_bytes) {
    RowStates states;
    states.out = arena.take(rows * stride * acc_bytes);
    states.reference = arena.take<double>(rows * int64_t{sizeof(double)});
    states.sum = arena.take<double>(rows * int64_t{sizeof(double)});
    return states;
  }
};

/// a += b for `rows` rows.
inline void merge_states(const TileKernels& tk, const RowStates& a, const RowStates& b, int64_t rows, int64_t depth,
                         int64_t stride) {
  tk.merge({.out = a.out,
            .reference = a.reference,
            .sum = a.sum,
            .out_b = b.out,
            .reference_b = b.reference,
            .sum_b = b.sum,
            .rows = rows,
            .depth = depth,
            .stride = stride});
}

/// The natural log of sum * 2^(2 reference). The largest float stands for a score of +infinity.
double natural_lse(const TileKernels& tk, double reference, double sum);

/// `count` rows of n elements; the caller adds the dense side.
inline kernels::RowsArgs rows_args(void* const* rows, int64_t count, int64_t stride, DType dtype, int64_t n) {
  kernels::RowsArgs args{};
  args.row = rows;
  args.rows = count;
  args.stride = stride;
  args.type = static_cast<int>(dtype);
  args.n = n;
  args.scale = 1;
  return args;
}

/// Up to kMaxWidth rows of one sequence and key/value head.
struct Panel {
  int rows = 0, width = 0;
  int64_t query[kernels::kMaxWidth];  // i, absolute
  int64_t head[kernels::kMaxWidth];   // h
  int64_t place[kernels::kMaxWidth];  // p_i, inside the sequence
  int64_t begin[kernels::kMaxWidth];  // allowed keys by length, causal and window, inside the sequence
  int64_t end[kernels::kMaxWidth];
  int64_t low = 0, high = 0;            // union of the intervals
  int64_t full_low = 0, full_high = 0;  // their intersection
};

/// Rows first .. first + rows of the sequence.
Panel make_panel(const Problem& p, const Sequence& s, int64_t kv_head, int64_t first, int64_t rows, int lanes);
/// The same for `rows` consecutive queries of one head, whatever shares its keys.
Panel make_head_panel(const Problem& p, const Sequence& s, int64_t head, int64_t first_query, int64_t rows, int lanes);

/// Pointers to the rows of a [B, H, Lq, *] tensor that the panel stands for.
template <class Pointer>
void row_pointers(const BasicView<Pointer, 4>& view, const Sequence& s, const Panel& panel, void** rows) {
  for (int r = 0; r < panel.rows; ++r)
    rows[r] = const_cast<char*>(static_cast<const char*>(at(view, s.batch, panel.head[r], panel.query[r])));
}

/// The lane mask of a panel in which everybody is allowed.
inline uint64_t all_lanes(int rows) { return rows >= 64 ? ~uint64_t{0} : (uint64_t{1} << rows) - 1; }

enum class TileKind { empty, full, mixed };

/// Who is allowed in panel x keys [begin, end): all, nobody, or what `allowed` says, one lane mask a key.
TileKind tile_mask(const Problem& p, const Sequence& s, const Panel& panel, const TileKernels& tk, int64_t begin,
                   int64_t end, uint64_t* allowed);

/// The keys and values of one sequence and key/value head, contiguous or in pages.
class KeyReader {
 public:
  KeyReader(const Problem& p, const Sequence& s, int64_t kv_head);
  const void* key(int64_t j) const { return locate(keys_, sequence_.pages.keys, j); }
  const void* value(int64_t j) const { return locate(values_, sequence_.pages.values, j); }
  /// How many keys from j on lie one row stride apart.
  int64_t run(int64_t j) const;
  void key_rows(int64_t begin, int64_t end, void** rows) const;
  void value_rows(int64_t begin, int64_t end, void** rows) const;
  int64_t key_row_stride() const { return keys_.row_stride; }  // elements
  int64_t value_row_stride() const { return values_.row_stride; }
  int64_t key_stride() const { return keys_.stride; }  // elements within a row
  int64_t value_stride() const { return values_.stride; }

 private:
  struct Side {
    const char* base = nullptr;
    int64_t row_stride = 0, stride = 1;  // elements
    int64_t row_bytes = 0;
    int64_t page_offset = 0;  // of the head inside a page
  };
  Side side(const ConstView<4>& view, int64_t depth, const void* const* pages, int64_t kv_head) const;
  const void* locate(const Side& side, const void* const* pages, int64_t j) const;

  const Sequence& sequence_;
  Side keys_, values_;
};

/// The element-wise options of a call, prepared for one panel.
class TileOptions {
 public:
  /// Scratch: takes what it needs for tiles of kBlockKeys from the arena.
  void layout(Arena& arena, const Problem& p, const TileKernels& tk);
  void set_panel(const Problem& p, const Sequence& s, const Panel& panel, const TileKernels& tk);
  /// True if a tile that is full needs no element-wise work between the two products.
  static bool plain(const Problem& p);
  /// Brings the bias of a tile into scratch, if there is one.
  void start_tile(const TileKernels& tk, int64_t begin, int64_t count);
  /// softcap, bias, ALiBi and mask on scores [count][width] of keys inside the tile; `allowed` may be null if it is
  /// full.
  kernels::TransformArgs transform(const TileKernels& tk, void* scores, int64_t begin, int64_t count, uint64_t* allowed,
                                   void* factor, void* maximum);
  /// Lane masks of dropout for the keys, or null without dropout.
  const uint64_t* dropout(const TileKernels& tk, int64_t begin, int64_t count);
  double keep_scale() const;

 private:
  const Problem* problem_ = nullptr;
  const Sequence* sequence_ = nullptr;
  const Panel* panel_ = nullptr;
  int64_t tile_begin_ = 0;
  void *bias_ = nullptr, *slope_ = nullptr, *position_ = nullptr;
  uint64_t* keep_ = nullptr;
};

/// Adds what non-finite elements contribute: out[d][lane] += w[key][lane] x[key][d] where x is not finite and the lane
/// is allowed. The finite part has been added with those elements as 0, so that masked lanes never meet them.
void add_non_finite(const TileKernels& tk, void* const* rows, int64_t stride, DType dtype, int64_t depth,
                    const void* weights, int width, int panel_rows, int64_t count, const uint64_t* allowed, void* out,
                    int64_t out_stride);

/// The kernels for a call: few = the decode variant.
const TileKernels& select_kernels(DType dtype, bool few);
/// Rows up to which the decode kernels serve: up to 8 of 16 lanes they beat the panel kernels on Zen 4.
int64_t few_rows(DType dtype);

}  // namespace attn::detail
