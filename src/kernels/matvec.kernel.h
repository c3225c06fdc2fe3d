// Few rows times a matrix that lies column by column, y = x W^T (+ bias) (+ y): reading W takes the time.
//
//   y[r][n] = sum over k of x[r][k] w[n][k]  (+ bias[n])  (+ y[r][n])      x [rows, terms], w [columns, terms]
// Loops: panels of rows; groups of columns; vectors of terms, in order, in one vector of sums an element, whose lanes
// are added at the end. So an element's bits depend on its row of x, its row of w and `terms` alone.
// Requires: terms >= 1; x packed by matvec_pack: [panel][vector of terms][rows of the panel][W], with zeros where there
// is no term or no row. w and y are user memory; nothing beyond a row's terms is read.
#pragma once

#include "kernels/columns.kernel.h"

namespace attn::kernels {
namespace {

constexpr int64_t kCacheLine = 64;
// More rows pass over w again, which then lies in the second cache. Eight at once, with two columns, take 1.1 to 1.5
// times as long there (AVX-512, Zen 4), in 16 bits also from memory (bfloat16, K 3072, GB/s of 6 and 8 rows: 19, 19
// instead of 27, 22; float32 28, 28 instead of 29, 26).
constexpr int64_t kMatvecRows = 4;
// Whose sums wait for each other, so that bias, addition and rounding work on vectors.
constexpr int64_t kMatvecColumns = 64;

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

/// NC columns of w from `w` on, times the RT rows at `x`, into rows of kMatvecColumns sums.
template <class V, int kType, int RT, int NC>
inline void matvec_sums(const float* x, const typename Stored<kType>::Type* w, int64_t stride, int64_t terms,
                        float* sums) {
  using Reg = typename V::Reg;
  constexpr int64_t kLine = kCacheLine / int64_t{sizeof(*w)};                                 // terms
  const uintptr_t next = reinterpret_cast<uintptr_t>(w) + NC * stride * int64_t{sizeof(*w)};  // beyond w at its end
  Reg acc[RT][NC];
  ATTN_UNROLL
  for (int r = 0; r < RT; ++r) {
    ATTN_UNROLL
    for (int c = 0; c < NC; ++c) acc[r][c] = V::zero();
  }
  const auto step = [&](int64_t k, auto lanes) __attribute__((always_inline)) {
    const auto column = [&](int c) { return lanes.load(ConstRow{w + c * stride, kType}, k); };
    const auto row = [&](int r) { return V::load(x + k * RT + r * V::W); };
    if constexpr (RT < NC) {  // in registers are those of which there are fewer
      Reg rows[RT];
      ATTN_UNROLL
      for (int r = 0; r < RT; ++r) rows[r] = row(r);
      ATTN_UNROLL
      for (int c = 0; c < NC; ++c) {
        const Reg w_c = column(c);
        ATTN_UNROLL
        for (int r = 0; r < RT; ++r) acc[r][c] = V::fma(w_c, rows[r], acc[r][c]);
      }
    } else {
      Reg columns[NC];
      ATTN_UNROLL
      for (int c = 0; c < NC; ++c) columns[c] = column(c);
      ATTN_UNROLL
      for (int r = 0; r < RT; ++r) {
        const Reg x_r = row(r);
        ATTN_UNROLL
        for (int c = 0; c < NC; ++c) acc[r][c] = V::fma(columns[c], x_r, acc[r][c]);
      }
    }
  };
  int64_t k = 0;
  ATTN_KEEP_LOOP
  for (; k + kLine <= terms; k += kLine) {
    // The next group's lines, each asked for where this group has it, into the second cache: the processor's own
    // prefetcher follows eight rows at once too late (K 768, two Zen 4 cores, GB/s without, with, and with prefetches
    // into the first cache: float32 30, 39, 34; bfloat16 17, 31, 20; 16 to 64 KiB ahead is no better).
    ATTN_UNROLL
    for (int c = 0; c < NC; ++c)
      __builtin_prefetch(reinterpret_cast<const void*>(next + (c * stride + k) * int64_t{sizeof(*w)}), 0, 2);
    ATTN_UNROLL
    for (int64_t at = 0; at < kLine; at += V::W) step(k + at, Whole<V>{});
  }
  ATTN_KEEP_LOOP
  for (; k + V::W <= terms; k += V::W) step(k, Whole<V>{});
  if (k < terms) step(k, Part<V>{terms - k});
  ATTN_UNROLL
  for (int r = 0; r < RT; ++r) {
    ATTN_UNROLL
    for (int c = 0; c < NC; ++c) sums[r * kMatvecColumns + c] = V::sum(acc[r][c]);
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
  constexpr int NC = V::kFewAccumulators / RT < 8 ? V::kFewAccumulators / RT : 8;
  const int64_t stride = args.w.stride;
  const auto* w = static_cast<const typename Stored<kType>::Type*>(args.w.data);
  alignas(64) float sums[RT][kMatvecColumns];
  for (int64_t n = 0; n < args.columns; n += kMatvecColumns) {
    const int64_t count = args.columns - n < kMatvecColumns ? args.columns - n : kMatvecColumns;
    int64_t j = 0;
    for (; j + NC <= count; j += NC, w += NC * stride)
      matvec_sums<V, kType, RT, NC>(x, w, stride, args.terms, &sums[0][j]);
    for (; j < count; ++j, w += stride) matvec_sums<V, kType, RT, 1>(x, w, stride, args.terms, &sums[0][j]);
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
