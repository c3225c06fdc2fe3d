// Integer helpers: whole multiples, and sums and products that stop at the limits of their type.
#pragma once

#include <cstdint>
#include <limits>

namespace attn {

inline int64_t div_up(int64_t n, int64_t divisor) { return (n + divisor - 1) / divisor; }
inline int64_t round_up(int64_t n, int64_t multiple) { return div_up(n, multiple) * multiple; }
inline int64_t round_down(int64_t n, int64_t multiple) { return n / multiple * multiple; }

inline int64_t saturating_add(int64_t a, int64_t b) {
  int64_t sum = 0;
  return __builtin_add_overflow(a, b, &sum) ? std::numeric_limits<int64_t>::max() : sum;
}
inline int64_t saturating_sub(int64_t a, int64_t b) {
  int64_t difference = 0;
  return __builtin_sub_overflow(a, b, &difference) ? std::numeric_limits<int64_t>::min() : difference;
}
/// Of numbers that are not negative.
inline int64_t saturating_mul(int64_t a, int64_t b) {
  int64_t product = 0;
  return __builtin_mul_overflow(a, b, &product) ? std::numeric_limits<int64_t>::max() : product;
}

}  // namespace attn
