// Activations, plain and gated, forward and backward.
//
//   activate       y = f(x)        gated: y = f(x) up
//   activate_grad  dx = dy f'(x)   gated: dx = dy up f'(x), dup = dy f(x)
//
// relu: max(0, x).  gelu: x Phi(x).  silu: x sigmoid(x).  tanh: softcap with cap 1.  gelu_tanh: x sigmoid(2 u), u =
// sqrt(2/pi) (x + 0.044715 x^3), the same as x / 2 (1 + tanh u) with neither a tanh nor a cancellation.
//
// Largest errors against long double on [-6, 6], in units of the last place, float / double: gelu 6.1 / 5.7, silu 4.1 /
// 3.1, tanh 2.2 / 1.9, gelu_tanh 12 / 15: its cubic is inexact before it becomes an exponent. Where results have 16
// bits, gelu, silu and gelu_tanh are computed to fewer places, see math.kernel.h. x = -infinity gives NaN, as 0 times
// infinity, where the limit is 0 (silu and gelu_tanh).
//
// Loops: rows, vectors of columns; the function is chosen outside.
#pragma once

#include "kernels/columns.kernel.h"
#include "kernels/math.kernel.h"
#include "kernels/softmax.kernel.h"

namespace attn::kernels {
namespace {

// Each has value(x), and value(x, slope) that gives the derivative as well.

template <class V, Places = Places::all>
struct Relu {
  using Reg = typename V::Reg;
  static Reg value(Reg x) { return V::max(V::zero(), x); }
  static Reg value(Reg x, Reg& slope) {
    slope = V::select(V::greater(x, V::zero()), V::set1(1), V::zero());
    return value(x);
  }
};

template <class V, Places kPlaces = Places::all>
struct Gelu {
  using Reg = typename V::Reg;
  static Reg value(Reg x) {
    Reg bell;
    const Reg a = limited(x);
    return V::sub(V::max(V::zero(), x), V::mul(a, tail(a, bell)));
  }
  static Reg value(Reg x, Reg& slope) {
    constexpr double kInverseRoot2Pi = 0.39894228040143267794;
    Reg bell;
    const Reg other = tail(limited(x), bell);
    const Reg phi = V::select(V::greater(x, V::zero()), V::sub(V::set1(1), other), other);
    slope = V::fma(V::mul(x, constant<V>(kInverseRoot2Pi)), bell, phi);
    return V::mul(x, phi);
  }

 private:
  /// |x|, but no more than where the tail has become 0.
  static Reg limited(Reg x) { return V::min(constant<V>(sizeof(typename V::T) == 4 ? 14.5 : 39), V::abs(x)); }
  static Reg tail(Reg a, Reg& bell) {
    if constexpr (kPlaces == Places::all) return normal_tail<V>(a, bell);
    else return short_normal_tail<V>(a, bell);
  }
};

template <class V, Places kPlaces = Places::all>
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
    s = sigmoid<V, kPlaces>(V::mul(x, factor), mirrored);
    return square;
  }
};

template <class V, Places kPlaces = Places::all>
struct Silu {
  using Reg = typename V::Reg;
  static Reg value(Reg x) {
    Reg mirrored;
    return V::mul(x, sigmoid<V, kPlaces>(x, mirrored));
  }
  static Reg value(Reg x, Reg& slope) {
    Reg mirrored;
    const Reg s = sigmoid<V, kPlaces>(x, mirrored);
    const Reg y = V::mul(x, s);
    slope = V::fma(y, mirrored, s);
    return y;
  }
};

template <class V, Places = Places::all>
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

/// use(f), where f is of the class of a Function.
template <class V, Places kPlaces, class Use>
auto with_function(int function, const Use& use) {
  switch (function) {
    case kRelu: return use(Relu<V, kPlaces>{});
    case kGelu: return use(Gelu<V, kPlaces>{});
    case kGeluTanh: return use(GeluTanh<V, kPlaces>{});
    case kSilu: return use(Silu<V, kPlaces>{});
    default: return use(Tanh<V, kPlaces>{});
  }
}

/// Results of 16 bits need fewer places.
template <class V, class Use>
void with_function_for(int type, int function, const Use& use) {
  if constexpr (sizeof(typename V::T) == 4)
    if (type != kFloat32) return with_function<V, Places::sixteen_bits>(function, use);
  with_function<V, Places::all>(function, use);
}

template <class V>
void activate(const ActivateArgs& args) {
  with_function_for<V>(args.y.type, args.function, [&](auto f) { activate_with<V, decltype(f)>(args); });
}

template <class V>
void activate_grad(const ActivateGradArgs& args) {
  with_function_for<V>(args.dx.type, args.function, [&](auto f) { activate_grad_with<V, decltype(f)>(args); });
}

}  // namespace
}  // namespace attn::kernels
