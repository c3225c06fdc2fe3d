// How the products take rows of user memory, and the few sums that the products leave out.
//
//   Plain    packed rows as they are in memory, or padded with zeros to a multiple of kStep elements
//   Paired   rows 2t and 2t + 1 interleaved, [rows/2][stride][2]
//   values_non_finite, outer_non_finite   the contributions of infinities and NaN, element by element
// Loops: rows, elements, lanes. Requires: what NonFiniteArgs says; `index` names the place of an element in a panel's
// accumulator.
#pragma once

#include "kernels/grad.kernel.h"

namespace attn::kernels {
namespace {

inline int64_t stride_as_is(int64_t n) { return n; }

template <int kStep>
int64_t stride_padded(int64_t n) {
  return whole_steps(n, kStep);
}

/// As stride_padded, and one step for rows of no elements: accumulators have the same stride.
template <int kStep>
int64_t stride_of_sums(int64_t n) {
  return n > 0 ? whole_steps(n, kStep) : kStep;
}

template <int kBytes, int64_t (*stride)(int64_t), int kRowStep>
int64_t packed_bytes(int64_t rows, int64_t n) {
  return whole_steps(rows, kRowStep) * stride(n) * kBytes;
}

template <int kType, int kStep>
bool in_place(int type, int64_t n, int64_t stride, int64_t /*row_stride*/) {
  return type == kType && stride == 1 && n % kStep == 0;
}

/// The same, for rows that are read again and again and should be near each other.
template <int kType, int kStep, int kFarBytes>
bool in_place_near(int type, int64_t n, int64_t stride, int64_t row_stride) {
  return in_place<kType, kStep>(type, n, stride, row_stride) && row_stride * kElementBytes<kType> <= kFarBytes;
}

inline bool never_in_place(int, int64_t, int64_t, int64_t) { return false; }

template <int kBytes, int64_t (*stride)(int64_t), int kRowStep>
constexpr Operand operand(bool (*in_place)(int, int64_t, int64_t, int64_t), void (*pack)(const RowsArgs&)) {
  return {.row_step = kRowStep,
          .in_place = in_place,
          .pack = pack,
          .stride = stride,
          .bytes = packed_bytes<kBytes, stride, kRowStep>};
}

/// Of kInt8 rows.
template <int kStep>
int64_t stride_of_int8(int64_t n) {
  return whole_steps(n, kStep) + kRowScaleBytes;
}

template <int kBytes, int kStep>
int64_t query_bytes(int64_t n, int width) {
  return whole_steps(n, kStep) * width * kBytes;
}

template <int kBytes, int kKeyStep>
int64_t weights_bytes(int64_t keys, int width) {
  return whole_steps(keys, kKeyStep) * width * kBytes;
}

template <int kBytes, int kStep>
int64_t accumulator_bytes(int64_t depth, int width) {
  return whole_steps(depth, kStep) * width * kBytes;
}

/// Where element d of a row's sum is in the accumulator of a panel.
using AccumulatorIndex = int64_t (*)(int64_t d, int64_t row, int64_t depth, int64_t width);

inline int64_t index_in_lanes(int64_t d, int64_t row, int64_t /*depth*/, int64_t width) { return d * width + row; }

/// The elements that products of a Dot take.
template <class Dot>
struct ElementRange {
  static bool has(double x) { return x - x == 0; }
};

template <class Dot, AccumulatorIndex index>
void values_non_finite(const NonFiniteArgs& args) {
  using T = typename Dot::Acc::T;
  T* out = static_cast<T*>(args.out);
  for (int64_t key = 0; key < args.count; ++key) {
    double scale = 1;
    if (args.x.type == kInt8)
      scale = row_scale(static_cast<const int8_t*>(args.x.row[key]) + stride_of_int8<1>(args.x.n));
    for (int64_t d = 0; d < args.x.n; ++d) {
      const double x = scale * load_element<double>(args.x.type, args.x.row[key], d * args.x.stride);
      if (ElementRange<Dot>::has(x)) continue;
      for (int lane = 0; lane < args.rows; ++lane) {
        if (args.allowed && !(args.allowed[key] >> lane & 1)) continue;
        T& sum = out[index(d, lane, args.x.n, args.width)];
        sum = static_cast<T>(sum + WeightFormat<Dot>::load(args.weights, key, args.width, lane) * x);
      }
    }
  }
}

template <class Dot>
void outer_non_finite(const NonFiniteArgs& args) {
  using T = typename Dot::Acc::T;
  T* out = static_cast<T*>(args.out);
  for (int lane = 0; lane < args.rows; ++lane) {
    for (int64_t d = 0; d < args.x.n; ++d) {
      const double x = load_element<double>(args.x.type, args.x.row[lane], d * args.x.stride);
      if (ElementRange<Dot>::has(x)) continue;
      for (int64_t key = 0; key < args.count; ++key) {
        if (args.allowed && !(args.allowed[key] >> lane & 1)) continue;
        T& sum = out[key * args.out_stride + d];
        sum = static_cast<T>(sum + OuterFormat<Dot>::load(args.weights, key, args.width, lane) * x);
      }
    }
  }
}

}  // namespace
}  // namespace attn::kernels
