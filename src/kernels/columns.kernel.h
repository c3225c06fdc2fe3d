// Loops over the columns of a row: whole vectors, then one vector of which only the lanes that exist are touched.
//
//   for_columns    body(j, lanes) for every vector of columns j .. j + W - 1
//   fold_columns   sums over the columns, in four interleaved partial sums that hide the latency of an addition
// `lanes` loads and stores at column j; lanes that do not exist are loaded as 0. A body is the same code for both, so
// an element's arithmetic does not depend on the place it has in its row.
#pragma once

#include "kernels/elements_table.h"
#include "kernels/rows.kernel.h"

namespace attn::kernels {
namespace {

struct ConstRow {
  const void* data;
  int type;
};
struct Row {
  void* data;
  int type;
};

inline int64_t stored_bytes(int type, int64_t n) { return n * element_bytes(type); }

inline ConstRow row_of(const ConstRows& rows, int64_t r) {
  return {static_cast<const char*>(rows.data) + stored_bytes(rows.type, r * rows.stride), rows.type};
}
inline Row row_of(const Rows& rows, int64_t r) {
  return {static_cast<char*>(rows.data) + stored_bytes(rows.type, r * rows.stride), rows.type};
}

/// Columns j .. j + W - 1.
template <class V>
struct Whole {
  using T = typename V::T;
  using Reg = typename V::Reg;
  static Reg load(const T* p, int64_t j) { return V::loadu(p + j); }
  static void store(T* p, int64_t j, Reg value) { V::storeu(p + j, value); }
  static Reg load(const ConstRow& row, int64_t j) { return load_vector<V>(row.type, row.data, j); }
  static void store(const Row& row, int64_t j, Reg value) { store_vector<V>(row.type, row.data, j, value); }
  /// `value` where a column exists, `otherwise` elsewhere.
  static Reg pick(Reg value, Reg) { return value; }
};

/// Columns j .. j + count - 1, count < W.
template <class V>
struct Part {
  using T = typename V::T;
  using Reg = typename V::Reg;
  int64_t count;
  Reg load(const T* p, int64_t j) const { return V::load_part(p + j, count); }
  void store(T* p, int64_t j, Reg value) const { V::store_part(p + j, count, value); }
  Reg load(const ConstRow& row, int64_t j) const {
    if constexpr (sizeof(T) == 4) {
      if (row.type != kFloat32) {
        const uint16_t* p = static_cast<const uint16_t*>(row.data) + j;
        uint16_t part[V::W] = {};
        for (int64_t i = 0; i < count; ++i) part[i] = p[i];
        return load_vector<V>(row.type, part, 0);
      }
    }
    return load(static_cast<const T*>(row.data), j);
  }
  void store(const Row& row, int64_t j, Reg value) const {
    if constexpr (sizeof(T) == 4) {
      if (row.type != kFloat32) {
        uint16_t* p = static_cast<uint16_t*>(row.data) + j;
        uint16_t part[V::W];
        store_vector<V>(row.type, part, 0, value);
        for (int64_t i = 0; i < count; ++i) p[i] = part[i];
        return;
      }
    }
    store(static_cast<T*>(row.data), j, value);
  }
  Reg pick(Reg value, Reg otherwise) const { return V::select(V::mask((uint64_t{1} << count) - 1), value, otherwise); }
};

template <class V, class Body>
inline __attribute__((always_inline)) void for_columns(int64_t first, int64_t end, const Body& body) {
  int64_t j = first;
  for (; j + V::W <= end; j += V::W) body(j, Whole<V>{});
  if (j < end) body(j, Part<V>{end - j});
}

/// sums[n] = what step(partial, j, lanes) adds up in partial[n].
template <class V, int N, class Step>
inline __attribute__((always_inline)) void fold_columns(int64_t columns, typename V::T (&sums)[N], const Step& step) {
  constexpr int kChains = 4;
  typename V::Reg partial[kChains][N];
  ATTN_UNROLL
  for (int chain = 0; chain < kChains; ++chain) {
    ATTN_UNROLL
    for (int n = 0; n < N; ++n) partial[chain][n] = V::zero();
  }
  int64_t j = 0;
  for (; j + kChains * V::W <= columns; j += kChains * V::W) {
    ATTN_UNROLL
    for (int chain = 0; chain < kChains; ++chain) step(partial[chain], j + chain * V::W, Whole<V>{});
  }
  for_columns<V>(j, columns, [&](int64_t at, auto lanes) { step(partial[0], at, lanes); });
  ATTN_UNROLL
  for (int n = 0; n < N; ++n)
    sums[n] = V::sum(V::add(V::add(partial[0][n], partial[1][n]), V::add(partial[2][n], partial[3][n])));
}

}  // namespace
}  // namespace attn::kernels
