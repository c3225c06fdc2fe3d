// Activations, plain and gated, forward and backward.
//
//   activate       y = f(x)        gated: y = f(x) up
//   activate_grad  dx = dy f'(x)   gated: dx = dy up f'(x), dup = dy f(x)
//
// relu: max(0, x).  gelu: x Phi(x).  silu: x sigmoid(x).  tanh: softcap with cap 1.  gelu_tanh: x sigmoid(2 u), u =
// sqrt(2/pi) (x + 0.044715 x^3), the same as x / 2 (1 + tanh u) with neither a tanh nor a cancellation.
//
// Largest errors against long double on [-6, 6], in units of the last place, float / double: gelu 6.1 / 5.7, silu 4.1 /
// 3.1, tanh 2.2 / 1.9, gelu_tanh 12 / 15: its cubic is inexact before it becomes an exponent. x = -infinity gives NaN,
// as 0 times infinity, where the limit is 0 (all but relu and tanh).
//
// Loops: rows, vectors of columns; the function is chosen outside.
#pragma once

#include "kernels/columns.kernel.h"
#include "kernels/math.kernel.h"
#include "kernels/softmax.kernel.h"

namespace attn::kernels {
namespace {

// Each has value(x), and value(x, slope) that gives the derivative as well.

template <class V>
struct Relu {
  using Reg = typename V::Reg;
  static Reg value(Reg x) { return V::max(V::zero(), x); }
  static Reg value(Reg x, Reg& slope) {
    slope = V::select(V::greater(x, V::zero()), V::set1(1), V::zero());
    return value(x);
  }
};

template <class V>
struct Gelu {
  using Reg = typename V::Reg;
  static Reg value(Reg x) {
    Reg slope;
    return value(x, slope);
  }
  static Reg value(Reg x, Reg& slope) {
    constexpr double kInverseRoot2Pi = 0.39894228040143267794;
    Reg bell;
    const Reg tail = normal_tail<V>(V::abs(x), bell);
    const Reg phi = V::select(V::greater(x, V::zero()), V::sub(V::set1(1), tail), tail);
    slope = V::fma(V::mul(x, constant<V>(kInverseRoot2Pi)), bell, phi);
    return V::mul(x, phi);
  }
};

template <class V>
struct GeluTanh {
  using Reg = typename V::Reg;
  static constexpr double kRoot2OverPi = 0.79788456080286535588;
  static constexpr double kCubic = 0.044715;
  static Reg value(Reg x) {
    Reg s, mirrored;
    prepare(x, s, mirrored);
    return V::mul(x, s);
  }
  static Reg value(Reg x, Reg& slope) {
    Reg s, mirrored;
    const Reg square = prepare(x, s, mirrored);
    const Reg rise = V::fma(square, constant<V>(6 * kRoot2OverPi * kCubic), constant<V>(2 * kRoot2OverPi));
    const Reg y = V::mul(x, s);
    slope = V::fma(V::mul(y, mirrored), rise, s);
    return y;
  }

 private:
  static Reg prepare(Reg x, Reg& s, Reg& mirrored) {
    const Reg square = V::mul(x, x);
    const Reg factor = V::fma(square, constant<V>(2 * kRoot2OverPi * kCubic), constant<V>(2 * kRoot2OverPi));
    s = sigmoid<V>(V::mul(x, factor), mirrored);
    return square;
  }
};

template <class V>
struct Silu {
  using Reg = typename V::Reg;
  static Reg value(Reg x) {
    Reg mirrored;
    return V::mul(x, sigmoid<V>(x, mirrored));
  }
  static Reg value(Reg x, Reg& slope) {
    Reg mirrored;
    const Reg s = sigmoid<V>(x, mirrored);
    const Reg y = V::mul(x, s);
    slope = V::fma(y, mirrored, s);
    return y;
  }
};

template <class V>
struct Tanh {
  using Reg = typename V::Reg;
  static Reg value(Reg x) {
    Reg slope;
    return value(x, slope);
  }
  static Reg value(Reg x, Reg& slope) { return softcap<V>(x, 1, slope); }
};

template <class V, class F>
void activate_with(const ActivateArgs& args) {
  for (int64_t r = 0; r < args.rows; ++r) {
    const ConstRow x = row_of(args.x, r), up = row_of(args.up, r);
    const Row y = row_of(args.y, r);
    if (args.up.data) {
      for_columns<V>(0, args.columns, [&](int64_t j, auto lanes) {
        lanes.store(y, j, V::mul(F::value(lanes.load(x, j)), lanes.load(up, j)));
      });
    } else {
      for_columns<V>(0, args.columns, [&](int64_t j, auto lanes) { lanes.store(y, j, F::value(lanes.load(x, j))); });
    }
  }
}

template <class V, class F>
void activate_grad_with(const ActivateGradArgs& args) {
  for (int64_t r = 0; r < args.rows; ++r) {
    const ConstRow x = row_of(args.x, r), dy = row_of(args.dy, r), up = row_of(args.up, r);
    const Row dx = row_of(args.dx, r), dup = row_of(args.dup, r);
    if (args.up.data) {
      for_columns<V>(0, args.columns, [&](int64_t j, auto lanes) {
        typename V::Reg slope;
        const auto y = F::value(lanes.load(x, j), slope);
        const auto d = lanes.load(dy, j);
        const auto dgate = V::mul(V::mul(d, lanes.load(up, j)), slope);
        lanes.store(dx, j, dgate);
        lanes.store(dup, j, V::mul(d, y));
      });
    } else {
      for_columns<V>(0, args.columns, [&](int64_t j, auto lanes) {
        typename V::Reg slope;
        F::value(lanes.load(x, j), slope);
        lanes.store(dx, j, V::mul(lanes.load(dy, j), slope));
      });
    }
  }
}

template <class V>
void activate(const ActivateArgs& args) {
  switch (args.function) {
    case kRelu: return activate_with<V, Relu<V>>(args);
    case kGelu: return activate_with<V, Gelu<V>>(args);
    case kGeluTanh: return activate_with<V, GeluTanh<V>>(args);
    case kSilu: return activate_with<V, Silu<V>>(args);
    default: return activate_with<V, Tanh<V>>(args);
  }
}

template <class V>
void activate_grad(const ActivateGradArgs& args) {
  switch (args.function) {
    case kRelu: return activate_grad_with<V, Relu<V>>(args);
    case kGelu: return activate_grad_with<V, Gelu<V>>(args);
    case kGeluTanh: return activate_grad_with<V, GeluTanh<V>>(args);
    case kSilu: return activate_grad_with<V, Silu<V>>(args);
    default: return activate_grad_with<V, Tanh<V>>(args);
  }
}

}  // namespace
}  // namespace attn::kernels
