// Few rows times a matrix that is column by column, y = x W^T (+ bias) (+ y): reading W takes the time.
//
//   y[r][n] = sum over k of x[r][k] w[n][k]  (+ bias[n])  (+ y[r][n])      x [rows, terms], w [columns, terms]
// Loops: 64 columns; blocks of terms, if x of more than two rows would not stay in the first-level cache otherwise;
// groups of columns; panels of four rows; the columns of a group, in the order of memory; vectors of terms.
//
// Vectors of terms are added to a few vectors of sums in turn. At the end of a block the kernel adds these vectors,
// then the lanes of the result. So an element's bits depend on its row of x, its row of w and `terms` alone.
//
// Requires: 1 to 8 rows; terms >= 1; x packed by matvec_pack: [panel][vector of terms][rows of the panel][W], with
// zeros where there is no term or no row. w and y are user memory; nothing beyond a row's terms is read.
#pragma once

#include "kernels/columns.kernel.h"
#include "kernels/prefetch.h"

namespace attn::kernels {
namespace {

// Of a panel. Eight at once take 1.1 to 1.5 times as long as two panels (AVX-512, Zen 4).
constexpr int64_t kMatvecRows = 4;
// Of w, which the first panel loads into the first-level cache for the second one. Meanwhile the next group is
// prefetched, half of it by each panel. 64 KiB are 7 % slower for float32 (Sapphire Rapids class).
constexpr int64_t kMatvecGroupBytes = 16384;
// Whose sums wait for each other, so that bias, addition and rounding work on vectors.
constexpr int64_t kMatvecColumns = 64;
// W is prefetched this far ahead, into the second cache: the first holds x. Of 50,257 columns of 768 terms this reads
// 81 to 97 % of a core's rate for one to four rows where the first cache read 76 to 97 % (Sapphire Rapids class), and
// 65 to 86 % for two and four rows where it read 37 to 43 % (Zen 4).
constexpr int64_t kMatvecAheadBytes = 8192;

// Of terms: 4 rows of x take 16 KiB (bfloat16, K = 4096, 4 rows: 41 % of the read bandwidth without blocks).
constexpr int64_t kMatvecBlock = 1024;

/// Sums that a row has on its way: a single one would wait for its own latency.
template <class V>
constexpr int kMatvecChains = V::kFewAccumulators / kMatvecRows;

/// Rows that share the passes over w: a power of two.
inline int64_t matvec_panel(int64_t rows) {
  int64_t panel = 1;
  while (panel < rows && panel < kMatvecRows) panel *= 2;
  return panel;
}

template <class V>
int64_t matvec_bytes(int64_t rows, int64_t terms) {
  const int64_t padded = rows / kMatvecRows * kMatvecRows + (rows % kMatvecRows ? matvec_panel(rows % kMatvecRows) : 0);
  return padded * whole_steps(terms, V::W) * int64_t{sizeof(float)};
}

template <class V>
void matvec_pack(const MatvecPackArgs& args) {
  float* packed = static_cast<float*>(args.packed);
  for (int64_t first = 0; first < args.rows; first += kMatvecRows) {
    const int64_t panel = matvec_panel(args.rows - first);
    for_columns<V>(0, args.terms, [&](int64_t k, auto lanes) {
      for (int64_t r = first; r < first + panel; ++r, packed += V::W)
        V::store(packed, r < args.rows ? lanes.load(row_of(args.x, r), k) : V::zero());
    });
  }
}

/// Adds one column of w, times the RT rows at `x`, to a sum for each row, kMatvecColumns apart. Prefetches as many
/// bytes from `next` on, or half as many where two panels read the column.
template <class V, int kType, int RT, int kPanels>
inline void matvec_sums(const float* x, const typename Stored<kType>::Type* w, uintptr_t next, int64_t terms,
                        float* sums) {
  using Reg = typename V::Reg;
  constexpr int kChains = kMatvecChains<V>;
  constexpr int64_t kStep = kChains * V::W, kShare = kStep * sizeof(*w) / kPanels;  // terms, bytes
  Reg acc[kChains][RT];
  ATTN_UNROLL
  for (int chain = 0; chain < kChains; ++chain) {
    ATTN_UNROLL
    for (int r = 0; r < RT; ++r) acc[chain][r] = V::zero();
  }
  const auto step = [&](int64_t k, auto lanes, Reg(&sum)[RT]) __attribute__((always_inline)) {
    const Reg column = lanes.load(ConstRow{w, kType}, k);
    ATTN_UNROLL
    for (int r = 0; r < RT; ++r) sum[r] = V::fma(column, V::load(x + k * RT + r * V::W), sum[r]);
  };
  int64_t k = 0;
  ATTN_KEEP_LOOP
  for (; k + kStep <= terms; k += kStep, next += kShare) {
    prefetch_rows(next, kShare, 0, 0, 1);
    ATTN_UNROLL
    for (int chain = 0; chain < kChains; ++chain) step(k + chain * V::W, Whole<V>{}, acc[chain]);
  }
  ATTN_UNROLL
  for (int chain = 0; chain < kChains; ++chain, k += V::W) {
    if (k + V::W <= terms) step(k, Whole<V>{}, acc[chain]);
    else if (k < terms) step(k, Part<V>{terms - k}, acc[chain]);
  }
  ATTN_UNROLL
  for (int r = 0; r < RT; ++r) {
    Reg sum = acc[0][r];
    ATTN_UNROLL
    for (int chain = 1; chain < kChains; ++chain) sum = V::add(sum, acc[chain][r]);
    sums[r * kMatvecColumns] += V::sum(sum);
  }
}

/// y (+)= sums (+ bias) for `count` columns from n on.
template <class V>
inline void matvec_finish(const MatvecArgs& args, int64_t row, int64_t n, int64_t count, const float* sums) {
  const Row y = row_of(args.y, row);
  const ConstRow before = {y.data, y.type};
  for_columns<V>(n, n + count, [&](int64_t j, auto lanes) {
    typename V::Reg value = lanes.load(sums, j - n);
    if (args.bias) value = V::add(value, lanes.load(args.bias, j));
    if (args.add) value = V::add(value, lanes.load(before, j));
    lanes.store(y, j, value);
  });
}

/// The products of one call. One panel of rows passes over 64 columns at a time. Two panels pass over groups of columns
/// in turn, so that the second one finds them in the first-level cache.
template <class V, int kType>
class MatvecColumns {
 public:
  explicit MatvecColumns(const MatvecArgs& args)
      : args_(args), panels_(args.rows > kMatvecRows ? 2 : 1), block_(args.terms) {
    constexpr int64_t kAhead = kMatvecAheadBytes / int64_t{sizeof(Weight)};
    if (args.rows > 2) block_ = at_most(block_, kMatvecBlock);
    if (panels_ == 1) {
      group_ = kMatvecColumns;
      ahead_ = block_ >= kAhead ? kAhead : (kAhead + block_ - 1) / block_ * args.w.stride;
    } else {
      while (group_ < kMatvecColumns && 2 * group_ * block_ * int64_t{sizeof(Weight)} <= kMatvecGroupBytes) group_ *= 2;
      ahead_ = group_ * args.w.stride;
    }
  }

  void run() {
    for (int64_t n = 0; n < args_.columns; n += kMatvecColumns) {
      const int64_t end = at_most(args_.columns, n + kMatvecColumns);
      __builtin_memset(sums_, 0, sizeof sums_);
      for (int64_t k = 0; k < args_.terms; k += block_)
        for (int64_t j = n; j < end; j += group_)
          add_group({j, at_most(end, j + group_), k, at_most(args_.terms, k + block_)});
      for (int64_t r = 0; r < args_.rows; ++r) matvec_finish<V>(args_, r, n, end - n, sums_[r]);
    }
  }

 private:
  using Weight = typename Stored<kType>::Type;
  /// Columns [column, columns_end) of w, of which the terms [term, terms_end).
  struct Group {
    int64_t column, columns_end, term, terms_end;
  };

  void add_group(const Group& group) {
    if (panels_ == 1) return add_panel<1>(group, 0);
    add_panel<2>(group, 0);
    add_panel<2>(group, 1);
  }

  template <int kPanels>
  void add_panel(const Group& group, int panel) {
    const int64_t rows = matvec_panel(args_.rows - panel * kMatvecRows);
    if (rows == 1) add_columns<1, kPanels>(group, panel);
    else if (rows == 2) add_columns<2, kPanels>(group, panel);
    else add_columns<4, kPanels>(group, panel);
  }

  template <int RT, int kPanels>
  void add_columns(const Group& group, int panel) {
    const float* x = static_cast<const float*>(args_.packed) + panel * kMatvecRows * whole_steps(args_.terms, V::W);
    const Weight* w = static_cast<const Weight*>(args_.w.data) + group.column * args_.w.stride;
    float* sums = &sums_[panel * kMatvecRows][group.column % kMatvecColumns];
    for (int64_t j = group.column; j < group.columns_end; ++j, ++sums, w += args_.w.stride)
      for (int64_t k = group.term; k < group.terms_end; k += kMatvecBlock) {
        const int64_t terms = at_most(group.terms_end - k, kMatvecBlock);
        const int64_t ahead = ahead_ + panel * terms / kPanels;
        const uintptr_t next = reinterpret_cast<uintptr_t>(w + k) + ahead * int64_t{sizeof(Weight)};
        matvec_sums<V, kType, RT, kPanels>(x + k * RT, w + k, next, terms, sums);
      }
  }

  const MatvecArgs& args_;
  const int panels_;
  int64_t block_;      // terms that are read before the next column
  int64_t group_ = 1;  // columns
  int64_t ahead_;      // elements from those that are read to those that are prefetched
  alignas(64) float sums_[2 * kMatvecRows][kMatvecColumns];
};

template <class V>
void matvec(const MatvecArgs& args) {
  if (args.w.type == kFloat32) MatvecColumns<V, kFloat32>(args).run();
  else if (args.w.type == kBfloat16) MatvecColumns<V, kBfloat16>(args).run();
  else MatvecColumns<V, kFloat16>(args).run();
}

}  // namespace
}  // namespace attn::kernels
