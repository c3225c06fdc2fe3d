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

/// Rows that share the passes over w: a power of two.
template <class V>
inline int64_t matvec_panel(int64_t rows) {
  int64_t panel = 1;
  while (panel < rows && panel < V::kFewRows) panel *= 2;
  return panel;
}

template <class V>
int64_t matvec_bytes(int64_t rows, int64_t terms) {
  constexpr int64_t most = V::kFewRows;
  const int64_t padded = rows / most * most + (rows % most ? matvec_panel<V>(rows % most) : 0);
  return padded * whole_steps(terms, V::W) * int64_t{sizeof(float)};
}

template <class V>
void matvec_pack(const MatvecPackArgs& args) {
  float* packed = static_cast<float*>(args.packed);
  for (int64_t first = 0; first < args.rows; first += V::kFewRows) {
    const int64_t panel = matvec_panel<V>(args.rows - first);
    for_columns<V>(0, args.terms, [&](int64_t k, auto lanes) {
      for (int64_t r = first; r < first + panel; ++r, packed += V::W)
        V::store(packed, r < args.rows ? lanes.load(row_of(args.x, r), k) : V::zero());
    });
  }
}

/// NC columns of w from `w` on, times the RT rows at `x`.
template <class V, int kType, int RT, int NC>
inline void matvec_sums(const float* x, const typename Stored<kType>::Type* w, int64_t stride, int64_t terms,
                        float (&sums)[RT][NC]) {
  using Reg = typename V::Reg;
  constexpr int64_t kLine = kCacheLine / int64_t{sizeof(*w)};  // terms
  const uintptr_t next = reinterpret_cast<uintptr_t>(w + NC * stride);
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
    for (int c = 0; c < NC; ++c) sums[r][c] = V::sum(acc[r][c]);
  }
}

/// Columns n .. n + NC - 1 of the panel that begins with row `first`.
template <class V, int kType, int RT, int NC>
inline void matvec_group(const MatvecArgs& args, int64_t first, const float* x, int64_t n) {
  using Weight = typename Stored<kType>::Type;
  float sums[RT][NC];
  matvec_sums<V, kType>(x, static_cast<const Weight*>(args.w.data) + n * args.w.stride, args.w.stride, args.terms,
                        sums);
  for (int r = 0; r < RT && first + r < args.rows; ++r) {
    const Row y = row_of(args.y, first + r);
    for (int c = 0; c < NC; ++c) {
      float value = sums[r][c];
      if (args.bias) value += args.bias[n + c];
      if (args.add) value += load_element<float>(y.type, y.data, n + c);
      store_element<float>(y.type, y.data, n + c, value);
    }
  }
}

template <class V, int kType, int RT>
void matvec_columns(const MatvecArgs& args, int64_t first, const float* x) {
  constexpr int kColumns = V::kFewAccumulators / RT < 8 ? V::kFewAccumulators / RT : 8;
  int64_t n = 0;
  for (; n + kColumns <= args.columns; n += kColumns) matvec_group<V, kType, RT, kColumns>(args, first, x, n);
  for (; n < args.columns; ++n) matvec_group<V, kType, RT, 1>(args, first, x, n);
}

template <class V, int kType>
void matvec_of(const MatvecArgs& args) {
  const float* x = static_cast<const float*>(args.packed);
  for (int64_t first = 0; first < args.rows; first += V::kFewRows) {
    const int64_t panel = matvec_panel<V>(args.rows - first);
    if (panel == 1) matvec_columns<V, kType, 1>(args, first, x);
    else if (panel == 2) matvec_columns<V, kType, 2>(args, first, x);
    else if (panel == 4) matvec_columns<V, kType, 4>(args, first, x);
    if constexpr (V::kFewRows == 8)
      if (panel == 8) matvec_columns<V, kType, 8>(args, first, x);
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
