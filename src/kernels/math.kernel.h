// exp, the logistic function and the normal distribution function, lane by lane.
//
//   exp(y) = 2^n exp(y - n ln 2), n = y / ln 2 rounded; ln 2 in two parts, of which the first times n is exact
//   sigmoid(y) = 1 / (1 + exp(-y)) for y > 0, otherwise exp(y) / (1 + exp(y)): no cancellation on either side
//   tail(a) = Phi(-a) = erfc(a / sqrt 2) / 2 = exp(-a^2 / 2) P(t) / (a + k), t = (a - k) / (a + k), for a >= 0
//
// P is the polynomial of least relative error, by Remez exchange in 60 digits: for float on 0 <= a <= 13.5, k = 3.5,
// degree 9, error 5.7e-9; for double on 0 <= a <= 39, k = 5, degree 21, error 1.4e-17. Beyond, the exponential is 0.
// The factor 1 / (a + k) carries the decay, so that the terms of P do not cancel.
//
// Largest errors against long double, in units of the last place, float / double: exp 2.2 / 1.1, sigmoid 3.7 / 2.7,
// tail 6.5 / 7.5. Without fused multiply-add (SSE2) exp 2.4 / 1.3; and tail, which then cannot know what a^2 loses,
// 10 / 8 up to a = 4 and a^2 / 2 more beyond.
//
// Of float there are short forms of sigmoid and tail, for results that are rounded to 16 bits. The exponent of sigmoid
// is rounded once, and tail is 2^Q(a), where Q is a polynomial of degree 9 near log2 Phi(-a). Relative errors are at
// most 2^-16 up to |y| = 20 and a = 6, and 2^-12 up to a = 13.5; the rounding to bfloat16 has 2^-9, that to float16
// 2^-12.
//
// Loops: none.
#pragma once

#include "kernels/portable.h"

namespace attn::kernels {
namespace {

/// How exact a function is: as its type allows, or as a result that is rounded to 16 bits needs.
enum class Places { all, sixteen_bits };

template <class V>
inline typename V::Reg constant(double x) {
  return V::set1(static_cast<typename V::T>(x));
}

/// c[0] + c[1] x + ... Double, of whose many constants few would find a register, reads them as it goes.
template <class V, int N>
inline __attribute__((always_inline)) typename V::Reg polynomial(typename V::Reg x, const double (&c)[N]) {
  typename V::Reg p = constant<V>(c[N - 1]);
  if constexpr (sizeof(typename V::T) == 4) {
    ATTN_UNROLL
    for (int i = N - 2; i >= 0; --i) p = V::fma(p, x, constant<V>(c[i]));
  } else {
    ATTN_KEEP_LOOP
    for (int i = N - 2; i >= 0; --i) p = V::fma(p, x, constant<V>(c[i]));
  }
  return p;
}

/// exp(high + low) for high <= 88 (708) and |low| < 1e-3: 0 where the result would not be a normal number, NaN for NaN.
template <class V>
inline __attribute__((always_inline)) typename V::Reg exp(typename V::Reg high, typename V::Reg low) {
  constexpr bool kSingle = sizeof(typename V::T) == 4;
  const typename V::Reg least = constant<V>(kSingle ? -87.33654 : -708.39641853226408);
  const typename V::Reg y = V::max(least, high);
  const typename V::Reg n = V::round(V::mul(y, constant<V>(kLog2e)));
  constexpr double kLn2High = kSingle ? 0x1.63p-1 : 0x1.62e42feep-1;
  constexpr double kLn2Low = kSingle ? -2.12194440054690582e-4 : 1.90821492927058770e-10;
  typename V::Reg r = V::fma(n, constant<V>(-kLn2High), y);
  r = V::fma(n, constant<V>(-kLn2Low), V::add(r, low));
  const typename V::Reg e = V::scale_by_power(exp2_polynomial<V>(V::mul(r, constant<V>(kLog2e))), n);
  return V::select(V::greater(least, high), V::zero(), e);
}

template <class V>
inline __attribute__((always_inline)) typename V::Reg exp(typename V::Reg y) {
  return exp<V>(y, V::zero());
}

/// sigmoid(y), and sigmoid(-y) beside it.
template <class V, Places kPlaces>
inline __attribute__((always_inline)) typename V::Reg sigmoid(typename V::Reg y, typename V::Reg& mirrored) {
  typename V::Reg e;
  if constexpr (kPlaces == Places::all) e = exp<V>(V::sub(V::zero(), V::abs(y)));
  else e = V::exp2(V::max(constant<V>(-151), V::mul(constant<V>(-kLog2e), V::abs(y))));
  const typename V::Reg large = V::div(V::set1(1), V::add(V::set1(1), e));
  const typename V::Reg small = V::mul(e, large);
  const auto positive = V::greater(y, V::zero());
  mirrored = V::select(positive, small, large);
  return V::select(positive, large, small);
}

/// Phi(-a), and exp(-a^2 / 2) beside it, to 16 bits; 0 <= a <= 14.5, where both are 0.
template <class V>
inline __attribute__((always_inline)) typename V::Reg short_normal_tail(typename V::Reg a, typename V::Reg& bell) {
  static constexpr double c[] = {-0.9999902819,   -1.151368788,   -0.4580266664,   -0.05456474162, 0.008911842579,
                                 -0.001076228259, 9.092485267e-5, -5.017148387e-6, 1.610185993e-7, -2.26606126e-9};
  bell = V::exp2(V::mul(V::mul(constant<V>(-0.5 * kLog2e), a), a));
  return V::exp2(polynomial<V>(a, c));
}

/// The same to all places; 0 <= a <= 14.5, or 39 for double.
template <class V>
inline __attribute__((always_inline)) typename V::Reg normal_tail(typename V::Reg a, typename V::Reg& bell) {
  constexpr bool kSingle = sizeof(typename V::T) == 4;
  constexpr double kMiddle = kSingle ? 3.5 : 5;
  // a^2 / 2 with what its rounding loses: exp() would make that a relative error of a^2 / 2 units.
  const typename V::Reg half = V::mul(constant<V>(-0.5), a);
  const typename V::Reg square = V::mul(half, a);
  bell = exp<V>(square, V::fma(half, a, V::sub(V::zero(), square)));
  const typename V::Reg r = V::div(V::set1(1), V::add(a, constant<V>(kMiddle)));
  const typename V::Reg t = V::fma(constant<V>(-2 * kMiddle), r, V::set1(1));
  typename V::Reg p;
  if constexpr (kSingle) {
    static constexpr double c[] = {0.7444160751,   -0.5655617578,   0.3154249747,     -0.1160527376,   0.01740740913,
                                   0.006491602679, -0.003180270805, -0.0004941455059, 0.0004296168803, 0.0001148333626};
    p = polynomial<V>(t, c);
  } else {
    constexpr double c[] = {
        0.769193049750062956,     -0.6653825028900566,     0.495305615969976999,      -0.313533156671315732,
        0.165020366170361531,     -0.0691186387059519627,  0.0207950668002427191,     -0.00299337677569623031,
        -0.000797869401483298402, 0.000544899105870110579, -0.0000593757112639137417, -0.000049763010241780247,
        0.0000166811447757234367, 3.98149123665966072e-6,  -2.76905508147957663e-6,   -3.37743106473935106e-7,
        4.3268626895649413e-7,    4.36122922011795822e-8,  -6.53197123277494031e-8,   -1.02108467582344651e-8,
        7.1819325542826612e-9,    2.01389695291751675e-9};
    p = polynomial<V>(t, c);
  }
  return V::mul(bell, V::mul(r, p));
}

}  // namespace
}  // namespace attn::kernels
