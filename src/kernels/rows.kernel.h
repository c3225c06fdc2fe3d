// Rows of user memory, of any type and stride, into the dense layouts of the kernels and back.
//
//   pack_panel    panel[j][r] = scale row_r[j]             transposed: rows become lanes
//   unpack_panel  row_r[j] = scale lane_scale_r panel[j][r]
//   load_rows     dense[r][j] = scale row_r[j]             store_rows: the way back
//   copy_rows     dense[r][j] = row_r[j]                   16-bit numbers as they are
//   dot_rows      sums[r] = sum_j a_r[j] b_r[j]            in double, whatever the type
//   decode_rows   dense[r][j] = scale_r row_r[j]           of kInt8 rows, into any type
// Each is compiled for every type of element, which no loop asks for. Loops: W x W blocks are transposed in registers
// where the row is contiguous; everything else goes element by element. Never touches an element outside a row's n.
// Dense layouts are padded with zeros to whole vectors.
#pragma once

#include "kernels/dot.h"
#include "kernels/prefetch.h"

namespace attn::kernels {
namespace {

// Rows taken one at a time are asked for before so many bytes of others: half as many cost 1 to 4 % of a causal call
// over 512 tokens of [B, L, H, D] (bfloat16, D = 64; Zen 4), which takes 8 to 11 % longer where nothing is asked for.
constexpr int64_t kAskBytes = 4096;

/// Asks for rows [begin, end), as many as there are. Rows of models are on pages of their own, which the processor does
/// not foresee, and often in one set of the first-level cache, which holds back who reads many of them at once.
template <int kType>
__attribute__((always_inline)) inline void ask_rows(const RowsArgs& args, int64_t begin, int64_t end) {
  if (!args.far || args.stride != 1) return;
  for (int64_t r = begin; r < end && r < args.rows; ++r)
    prefetch_rows(reinterpret_cast<uintptr_t>(args.row[r]), args.n * kElementBytes<kType>, 0, 0, 1);
}

/// Asks for rows while a loop takes them one after the other.
template <int kType>
class RowsAhead {
 public:
  explicit RowsAhead(const RowsArgs& args) : args_(args), next_(kAskBytes / (args.n * kElementBytes<kType> + 1) + 1) {
    ask_rows<kType>(args, 0, next_);
  }
  /// `rows` more have been taken.
  void step(int64_t rows = 1) {
    ask_rows<kType>(args_, next_, next_ + rows);
    next_ += rows;
  }

 private:
  const RowsArgs& args_;
  int64_t next_;
};

template <class V, int kType>
void pack_panel_of(const RowsArgs& args) {
  using T = typename V::T;
  T* panel = static_cast<T*>(args.dense);
  const int64_t width = args.dense_stride;
  const bool vectors = args.stride == 1 && has_vector_access<V>(kType);
  const int64_t whole = vectors ? args.n / V::W * V::W : 0;
  const typename V::Reg scale = V::set1(static_cast<T>(args.scale));
  ask_rows<kType>(args, 0, args.rows);
  for (int64_t r0 = 0; r0 < width; r0 += V::W) {
    for (int64_t j = 0; j < whole; j += V::W) {
      typename V::Reg block[V::W];
      ATTN_UNROLL
      for (int r = 0; r < V::W; ++r)
        block[r] = r0 + r < args.rows ? load_vector<V>(kType, args.row[r0 + r], j) : V::zero();
      V::transpose(block);
      ATTN_UNROLL
      for (int i = 0; i < V::W; ++i) V::store(panel + (j + i) * width + r0, V::mul(scale, block[i]));
    }
    for (int64_t r = r0; r < r0 + V::W; ++r) {
      for (int64_t j = whole; j < args.n; ++j) {
        T value = 0;
        if (r < args.rows) value = static_cast<T>(args.scale) * load_element<T>(kType, args.row[r], j * args.stride);
        panel[j * width + r] = value;
      }
    }
  }
}

template <class V>
void pack_panel(const RowsArgs& args) {
  with_type(args.type, [&](auto type) { pack_panel_of<V, decltype(type)::kElement>(args); });
}

template <class V, int kType>
void unpack_panel_of(const RowsArgs& args) {
  using T = typename V::T;
  const T* panel = static_cast<const T*>(args.dense);
  const T* lane_scale = static_cast<const T*>(args.lane_scale);
  const int64_t width = args.dense_stride;
  const bool vectors = args.stride == 1 && has_vector_access<V>(kType);
  const int64_t whole = vectors ? args.n / V::W * V::W : 0;
  ask_rows<kType>(args, 0, args.rows);
  for (int64_t r0 = 0; r0 < args.rows; r0 += V::W) {
    typename V::Reg scale = V::set1(static_cast<T>(args.scale));
    if (lane_scale) scale = V::mul(scale, V::load(lane_scale + r0));
    for (int64_t j = 0; j < whole; j += V::W) {
      typename V::Reg block[V::W];
      ATTN_UNROLL
      for (int i = 0; i < V::W; ++i) block[i] = V::mul(scale, V::load(panel + (j + i) * width + r0));
      V::transpose(block);
      ATTN_UNROLL
      for (int r = 0; r < V::W; ++r)
        if (r0 + r < args.rows) store_vector<V>(kType, args.row[r0 + r], j, block[r]);
    }
    alignas(64) T factor[V::W];
    V::store(factor, scale);
    for (int r = 0; r < V::W && r0 + r < args.rows; ++r)
      for (int64_t j = whole; j < args.n; ++j)
        store_element<T>(kType, args.row[r0 + r], j * args.stride, factor[r] * panel[j * width + r0 + r]);
  }
}

template <class V>
void unpack_panel(const RowsArgs& args) {
  with_type(args.type, [&](auto type) { unpack_panel_of<V, decltype(type)::kElement>(args); });
}

template <class V>
inline typename V::Reg without_non_finite(typename V::Reg x) {
  return V::select(V::equal(V::sub(x, x), V::zero()), x, V::zero());
}

/// The first `whole` elements of every row: a widened block of 256 keys must not cost more than the way from one cache
/// to the next.
template <class V, int kType>
void load_whole_vectors(const RowsArgs& args, int64_t whole) {
  using T = typename V::T;
  const typename V::Reg scale = V::set1(static_cast<T>(args.scale));
  const bool finite_only = args.finite_only;
  RowsAhead<kType> ahead(args);
  for (int64_t r = 0; r < args.rows; ++r) {
    ahead.step();
    const void* in = args.row[r];
    T* out = static_cast<T*>(args.dense) + r * args.dense_stride;
    for (int64_t j = 0; j < whole; j += V::W) {
      const typename V::Reg x = V::mul(scale, load_vector<V>(kType, in, j));
      V::storeu(out + j, finite_only ? without_non_finite<V>(x) : x);
    }
  }
}

template <class V, int kType>
void load_rows_of(const RowsArgs& args) {
  using T = typename V::T;
  const bool vectors = args.stride == 1 && has_vector_access<V>(kType);
  const int64_t whole = vectors ? args.n / V::W * V::W : 0;
  load_whole_vectors<V, kType>(args, whole);
  for (int64_t r = 0; whole < args.dense_stride && r < args.rows; ++r) {
    T* out = static_cast<T*>(args.dense) + r * args.dense_stride;
    int64_t j = whole;
    for (; j < args.n; ++j) {
      const T x = static_cast<T>(args.scale) * load_element<T>(kType, args.row[r], j * args.stride);
      out[j] = args.finite_only && x - x != 0 ? 0 : x;
    }
    for (; j < args.dense_stride; ++j) out[j] = 0;
  }
}

template <class V>
void load_rows(const RowsArgs& args) {
  with_type(args.type, [&](auto type) { load_rows_of<V, decltype(type)::kElement>(args); });
}

/// A 16-bit number as it is, or 0 for what is not finite and not wanted.
template <int kType>
inline uint16_t finite_bits(const RowsArgs& args, uint16_t x) {
  constexpr uint16_t kExponent = kType == kBfloat16 ? 0x7f80 : 0x7c00;
  return args.finite_only && (x & kExponent) == kExponent ? uint16_t{0} : x;
}

template <int kType>
void copy_rows(const RowsArgs& args) {
  const int64_t whole = args.stride == 1 && !args.finite_only ? args.n : 0;
  RowsAhead<kType> ahead(args);
  for (int64_t r = 0; r < args.rows; ++r) {
    ahead.step();
    const uint16_t* in = static_cast<const uint16_t*>(args.row[r]);
    uint16_t* out = static_cast<uint16_t*>(args.dense) + r * args.dense_stride;
    __builtin_memcpy(out, in, static_cast<size_t>(whole) * sizeof *in);
    int64_t j = whole;
    for (; j < args.n; ++j) out[j] = finite_bits<kType>(args, in[j * args.stride]);
    for (; j < args.dense_stride; ++j) out[j] = 0;
  }
}

/// kInt8 rows as they are, padded with zeros; the scale of what is not finite and not wanted becomes 0.
inline void copy_int8_rows(const RowsArgs& args) {
  const int64_t padding = args.dense_stride - args.n - kRowScaleBytes;
  RowsAhead<kInt8> ahead(args);
  for (int64_t r = 0; r < args.rows; ++r) {
    ahead.step();
    const auto* in = static_cast<const int8_t*>(args.row[r]);
    auto* out = static_cast<int8_t*>(args.dense) + r * args.dense_stride;
    const float scale = row_scale(in + args.n + kRowScaleBytes);
    const float kept = args.finite_only && scale - scale != 0 ? 0 : scale;
    __builtin_memcpy(out, in, static_cast<size_t>(args.n));
    __builtin_memset(out + args.n, 0, static_cast<size_t>(padding));
    __builtin_memcpy(out + args.n + padding, &kept, sizeof kept);
  }
}

inline bool all_finite_int8(const RowsArgs& args) {
  for (int64_t r = 0; r < args.rows; ++r) {
    const float scale = row_scale(static_cast<const int8_t*>(args.row[r]) + args.n + kRowScaleBytes);
    if (scale - scale != 0) return false;
  }
  return true;
}

template <class V, int kType>
void decode_rows_to(const RowsArgs& args) {
  const int64_t whole = has_vector_access<V>(kType) ? args.n / V::W * V::W : 0;
  RowsAhead<kInt8> ahead(args);
  for (int64_t r = 0; r < args.rows; ++r) {
    ahead.step();
    const auto* in = static_cast<const int8_t*>(args.row[r]);
    char* out = static_cast<char*>(args.dense) + r * args.dense_stride * kElementBytes<kType>;
    const float scale = row_scale(in + args.n + kRowScaleBytes);
    int64_t j = 0;
    for (; j < whole; j += V::W) store_vector<V>(kType, out, j, V::mul(V::set1(scale), V::load_int8(in + j)));
    for (; j < args.n; ++j) store_element<float>(kType, out, j, scale * static_cast<float>(in[j]));
  }
}

/// V: vectors of float.
template <class V>
void decode_rows(const RowsArgs& args, int type) {
  with_type(type, [&](auto to) { decode_rows_to<V, decltype(to)::kElement>(args); });
}

template <class V, int kType>
void store_rows_of(const RowsArgs& args) {
  using T = typename V::T;
  const T* lane_scale = static_cast<const T*>(args.lane_scale);
  const bool vectors = args.stride == 1 && has_vector_access<V>(kType);
  const int64_t whole = vectors ? args.n / V::W * V::W : 0;
  RowsAhead<kType> ahead(args);
  for (int64_t r = 0; r < args.rows; ++r) {
    ahead.step();
    const T* in = static_cast<const T*>(args.dense) + r * args.dense_stride;
    const T scale = static_cast<T>(args.scale) * (lane_scale ? lane_scale[r] : T{1});
    int64_t j = 0;
    for (; j < whole; j += V::W) store_vector<V>(kType, args.row[r], j, V::mul(V::set1(scale), V::loadu(in + j)));
    for (; j < args.n; ++j) store_element<T>(kType, args.row[r], j * args.stride, scale * in[j]);
  }
}

template <class V>
void store_rows(const RowsArgs& args) {
  with_type(args.type, [&](auto type) { store_rows_of<V, decltype(type)::kElement>(args); });
}

/// Elements j .. j + W - 1 of a row in vectors of double, 0 from n on: the same numbers for any type and stride.
template <class D, int kType>
inline typename D::Reg load_doubles(const RowsArgs& args, const void* row, int64_t j) {
  if (args.stride == 1 && j + D::W <= args.n) return load_as_double<D>(kType, row, j);
  alignas(64) double part[D::W] = {};
  for (int64_t i = j; i < args.n && i < j + D::W; ++i) part[i - j] = load_element<double>(kType, row, i * args.stride);
  return D::load(part);
}

template <class D, int kType>
void dot_rows_of(const RowsArgs& a, const RowsArgs& b, double* sums) {
  RowsAhead<kType> ahead_a(a);
  RowsAhead<kType> ahead_b(b);
  for (int64_t r = 0; r < a.rows; ++r) {
    ahead_a.step();
    ahead_b.step();
    typename D::Reg even = D::zero(), odd = D::zero();
    for (int64_t j = 0; j < a.n; j += 2 * D::W) {
      even = D::fma(load_doubles<D, kType>(a, a.row[r], j), load_doubles<D, kType>(b, b.row[r], j), even);
      odd = D::fma(load_doubles<D, kType>(a, a.row[r], j + D::W), load_doubles<D, kType>(b, b.row[r], j + D::W), odd);
    }
    sums[r] = D::sum(D::add(even, odd));
  }
}

/// D: vectors of double.
template <class D>
void dot_rows(const RowsArgs& a, const RowsArgs& b, double* sums) {
  with_type(a.type, [&](auto type) { dot_rows_of<D, decltype(type)::kElement>(a, b, sums); });
}

template <class V, int kType>
bool all_finite_of(const RowsArgs& args) {
  using T = typename V::T;
  const bool vectors = args.stride == 1 && has_vector_access<V>(kType);
  const int64_t whole = vectors ? args.n / V::W * V::W : 0;
  typename V::Reg residue = V::zero();  // x - x is 0, or NaN for what is not finite
  T rest = 0;
  RowsAhead<kType> ahead(args);
  for (int64_t r = 0; r < args.rows; ++r) {
    ahead.step();
    int64_t j = 0;
    for (; j < whole; j += V::W) {
      const typename V::Reg x = load_vector<V>(kType, args.row[r], j);
      residue = V::add(residue, V::sub(x, x));
    }
    for (; j < args.n; ++j) {
      const T x = load_element<T>(kType, args.row[r], j * args.stride);
      rest += x - x;
    }
  }
  constexpr uint64_t all = (uint64_t{1} << V::W) - 1;
  return rest == 0 && V::bits(V::equal(residue, V::zero())) == all;
}

template <class V>
bool all_finite(const RowsArgs& args) {
  bool result = false;
  with_type(args.type, [&](auto type) { result = all_finite_of<V, decltype(type)::kElement>(args); });
  return result;
}

}  // namespace
}  // namespace attn::kernels
