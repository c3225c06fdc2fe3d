// Few rows times a matrix that is column by column, y = x W^T (+ bias) (+ y): reading W takes the time.
//
//   y[r][n] = sum over k of x[r][k] w[n][k]  (+ bias[n])  (+ y[r][n])      x [rows, terms], w [columns, terms]
// Loops: panels of rows; columns one after the other, so that W is read in the order of memory (with four rows, whose x
// would not stay in the first-level cache, blocks of terms before); vectors of terms. These take turns in a few vectors
// of sums, which are added at the end of a block, then their lanes. So an element's bits depend on its row of x, its
// row of w and `terms` alone.
// Requires: terms >= 1; x packed by matvec_pack: [panel][vector of terms][rows of the panel][W], with zeros where there
// is no term or no row. w and y are user memory; nothing beyond a row's terms is read.
#pragma once

#include "kernels/columns.kernel.h"
#include "kernels/prefetch.h"

namespace attn::kernels {
namespace {

// More rows pass over w again, which then is in the second cache. Eight at once take 1.1 to 1.5 times as long there
// (AVX-512, Zen 4).
constexpr int64_t kMatvecRows = 4;
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

/// Adds one column of w, times the RT rows at `x`, to a sum for each row, kMatvecColumns apart, and prefetches what is
/// `ahead` elements beyond.
template <class V, int kType, int RT>
inline void matvec_sums(const float* x, const typename Stored<kType>::Type* w, int64_t ahead, int64_t terms,
                        float* sums) {
  using Reg = typename V::Reg;
  constexpr int kChains = kMatvecChains<V>;
  constexpr int64_t kStep = kChains * V::W, kElement = sizeof(*w);  // terms, bytes
  const uintptr_t next = reinterpret_cast<uintptr_t>(w) + ahead * kElement;
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
  for (; k + kStep <= terms; k += kStep) {
    prefetch_rows(next + k * kElement, kStep * kElement, 0, 0, 1);
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

/// The panel of RT rows that begins with row `first`, packed at `x`.
template <class V, int kType, int RT>
void matvec_columns(const MatvecArgs& args, int64_t first, const float* x) {
  using Weight = typename Stored<kType>::Type;
  constexpr int64_t kAhead = kMatvecAheadBytes / int64_t{sizeof(Weight)};
  const int64_t stride = args.w.stride, terms = args.terms;
  const int64_t run = RT > 2 && terms > kMatvecBlock ? kMatvecBlock : terms;  // terms read before the next column
  const int64_t ahead = run >= kAhead ? kAhead : (kAhead + run - 1) / run * stride;
  const auto* w = static_cast<const Weight*>(args.w.data);
  alignas(64) float sums[RT][kMatvecColumns];
  for (int64_t n = 0; n < args.columns; n += kMatvecColumns, w += kMatvecColumns * stride) {
    const int64_t count = args.columns - n < kMatvecColumns ? args.columns - n : kMatvecColumns;
    for (int r = 0; r < RT; ++r)
      for (int64_t j = 0; j < count; ++j) sums[r][j] = 0;
    for (int64_t begin = 0; begin < terms; begin += run)
      for (int64_t j = 0; j < count; ++j)
        for (int64_t k = begin; k < begin + run && k < terms; k += kMatvecBlock) {
          const int64_t part = terms - k < kMatvecBlock ? terms - k : kMatvecBlock;
          matvec_sums<V, kType, RT>(x + k * RT, w + j * stride + k, ahead, part, &sums[0][j]);
        }
    for (int r = 0; r < RT && first + r < args.rows; ++r) matvec_finish<V>(args, first + r, n, count, sums[r]);
  }
}

template <class V, int kType>
void matvec_of(const MatvecArgs& args) {
  const float* x = static_cast<const float*>(args.packed);
  for (int64_t first = 0; first < args.rows; first += kMatvecRows) {
    const int64_t panel = matvec_panel(args.rows - first);
    if (panel == 1) matvec_columns<V, kType, 1>(args, first, x);
    else if (panel == 2) matvec_columns<V, kType, 2>(args, first, x);
    else matvec_columns<V, kType, 4>(args, first, x);
    x += panel * whole_steps(args.terms, V::W);
  }
}

template <class V>
void matvec(const MatvecArgs& args) {
  if (args.w.type == kFloat32) matvec_of<V, kFloat32>(args);
  else if (args.w.type == kBfloat16) matvec_of<V, kBfloat16>(args);
  else matvec_of<V, kFloat16>(args);
}

}  // namespace
}  // namespace attn::kernels
