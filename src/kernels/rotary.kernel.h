// Rotary positions: pairs of features turn by an angle of the position.
//
//   angles  cosine, sine [r][i] of position[r] frequency[i], in double
//   rotate  (a, b) <- (a cos - b sin, b cos + a sin) in every head; pairs (i, i + n / 2), interleaved (2 i, 2 i + 1)
//
// An angle loses its multiples of pi / 2, which has three parts of 33 bits each: products with up to 2^20 multiples are
// exact. The rest, at most pi / 4, goes into Taylor series to x^17 and x^16, whose remainders are below 1e-16. Measured
// against libm on angles up to 1e6: 2.3e-16.
//
// Loops: rows, heads, vectors of pairs. x and y may be the same memory.
#pragma once

#include "kernels/columns.kernel.h"
#include "kernels/math.kernel.h"

namespace attn::kernels {
namespace {

// sin(x) / x and cos(x) by powers of x^2.
constexpr double kSine[] = {1.0,
                            -1.0 / 6,
                            1.0 / 120,
                            -1.0 / 5040,
                            1.0 / 362880,
                            -1.0 / 39916800,
                            1.0 / 6227020800,
                            -1.0 / 1307674368000,
                            1.0 / 355687428096000};
constexpr double kCosine[] = {1.0,
                              -1.0 / 2,
                              1.0 / 24,
                              -1.0 / 720,
                              1.0 / 40320,
                              -1.0 / 3628800,
                              1.0 / 479001600,
                              -1.0 / 87178291200,
                              1.0 / 20922789888000};

/// floor(n / 2) of a whole n.
template <class V>
inline typename V::Reg half_of(typename V::Reg n) {
  return V::round(V::fma(n, constant<V>(0.5), constant<V>(-0.25)));
}

template <class V>
void angles(const AnglesArgs& args) {
  using Reg = typename V::Reg;
  for (int64_t r = 0; r < args.rows; ++r) {
    const Reg position = V::set1(static_cast<double>(args.position[r]));
    double *cosines = args.cosine + r * args.pairs, *sines = args.sine + r * args.pairs;
    for_columns<V>(0, args.pairs, [&](int64_t i, auto lanes) {
      const Reg angle = V::mul(position, lanes.load(args.frequency, i));
      const Reg n = V::round(V::mul(angle, constant<V>(0x1.45f306dc9c883p-1)));
      Reg x = V::fma(n, constant<V>(-0x1.921fb544p+0), angle);
      x = V::fma(n, constant<V>(-0x1.0b4611a6p-34), x);
      x = V::fma(n, constant<V>(-0x1.3198a2e0p-69), x);
      const Reg square = V::mul(x, x);
      const Reg s = V::mul(x, polynomial<V>(square, kSine)), c = polynomial<V>(square, kCosine);
      // Bit 0 of n exchanges sine and cosine, bit 1 turns both by half a circle.
      const Reg half = half_of<V>(n);
      const Reg bit0 = V::fma(constant<V>(-2), half, n), bit1 = V::fma(constant<V>(-2), half_of<V>(half), half);
      const Reg turn = V::fma(constant<V>(-2), bit1, V::set1(1));
      const Reg swap = V::fma(constant<V>(-2), bit0, V::set1(1));
      const auto odd = V::greater(bit0, V::zero());
      lanes.store(sines, i, V::mul(turn, V::select(odd, c, s)));
      lanes.store(cosines, i, V::mul(V::mul(turn, swap), V::select(odd, s, c)));
    });
  }
}

template <class V>
void rotate(const RotateArgs& args) {
  using T = typename V::T;
  using Reg = typename V::Reg;
  const int64_t pairs = args.rotated / 2, table = args.interleaved ? args.rotated : pairs;
  for (int64_t r = 0; r < args.rows; ++r) {
    const T* cosine = static_cast<const T*>(args.cosine) + r * table;
    const T* sine = static_cast<const T*>(args.sine) + r * table;
    const ConstRow x = row_of(args.x, r);
    const Row y = row_of(args.y, r);
    for (int64_t head = 0; head < args.heads; ++head) {
      const int64_t first = head * args.width;
      if (args.interleaved) {
        for_columns<V>(0, args.rotated, [&](int64_t i, auto lanes) {
          const Reg a = lanes.load(x, first + i);
          const Reg turned = V::mul(V::swap_pairs(a), lanes.load(sine, i));
          lanes.store(y, first + i, V::fma(a, lanes.load(cosine, i), turned));
        });
      } else {
        for_columns<V>(0, pairs, [&](int64_t i, auto lanes) {
          const Reg a = lanes.load(x, first + i), b = lanes.load(x, first + pairs + i);
          const Reg c = lanes.load(cosine, i), s = lanes.load(sine, i);
          lanes.store(y, first + i, V::sub(V::mul(a, c), V::mul(b, s)));
          lanes.store(y, first + pairs + i, V::fma(b, c, V::mul(a, s)));
        });
      }
      if (x.data == y.data) continue;
      for_columns<V>(first + args.rotated, first + args.width,
                     [&](int64_t j, auto lanes) { lanes.store(y, j, lanes.load(x, j)); });
    }
  }
}

}  // namespace
}  // namespace attn::kernels
