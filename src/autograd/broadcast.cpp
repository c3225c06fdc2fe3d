// Arithmetic of two arrays with broadcasting, and the sums that its gradients and sum() are.
#include <algorithm>

#include "attn/autograd_operations.h"
#include "autograd/wide.h"

namespace attn::autograd {
namespace {

/// Strides of an array of shape `part` on the axes of `shape`; 0 where it repeats.
std::vector<int64_t> strides_on(const std::vector<int64_t>& part, const std::vector<int64_t>& shape) {
  std::vector<int64_t> strides(shape.size(), 0);
  int64_t next = 1;
  for (size_t back = 1; back <= part.size(); ++back) {
    const int64_t extent = part[part.size() - back];
    if (extent != 1) strides[shape.size() - back] = next;
    next *= extent;
  }
  return strides;
}

/// Where element n of an array of this shape is by other strides.
int64_t offset_on(int64_t n, const std::vector<int64_t>& shape, const std::vector<int64_t>& strides) {
  int64_t offset = 0;
  for (size_t axis = shape.size(); axis-- > 0; n /= shape[axis]) offset += n % shape[axis] * strides[axis];
  return offset;
}

/// The shape of a op b; false if they do not match.
bool broadcast(const std::vector<int64_t>& a, const std::vector<int64_t>& b, std::vector<int64_t>& shape) {
  shape.assign(std::max(a.size(), b.size()), 1);
  for (size_t back = 1; back <= shape.size(); ++back) {
    const int64_t of_a = back <= a.size() ? a[a.size() - back] : 1, of_b = back <= b.size() ? b[b.size() - back] : 1;
    if (of_a != of_b && of_a != 1 && of_b != 1) return false;
    shape[shape.size() - back] = of_a == 1 ? of_b : of_a;
  }
  return true;
}

/// y[n] = f(a[n], b[n]), a and b broadcast to y's shape; all wide.
template <class Function>
Array combined(const Tape& tape, const Array& a, const Array& b, const std::vector<int64_t>& shape, Function f) {
  const Array y = tape.array(a.dtype(), shape);
  const ProfileSpan span("broadcast", [&] { return work_on({&a, &b, &y}); });
  const std::vector<int64_t> stride_a = strides_on(a.shape(), shape), stride_b = strides_on(b.shape(), shape);
  const int64_t width = y.width(), step_a = shape.empty() ? 0 : stride_a.back(),
                step_b = shape.empty() ? 0 : stride_b.back();
  if (y.count() == 0) return y;
  with_wide(y.dtype(), [&](auto zero) {
    using T = decltype(zero);
    for_ranges(y.count() / width, width, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        const T* from_a = elements<T>(a) + offset_on(row * width, shape, stride_a);
        const T* from_b = elements<T>(b) + offset_on(row * width, shape, stride_b);
        T* to = elements<T>(y) + row * width;
        for (int64_t c = 0; c < width; ++c) to[c] = f(from_a[c * step_a], from_b[c * step_b]);
      }
    });
  });
  return y;
}

Array computed(const Tape& tape, Arithmetic op, const Array& a, const Array& b, const std::vector<int64_t>& shape) {
  if (op == Arithmetic::add) return combined(tape, a, b, shape, [](auto x, auto y) { return x + y; });
  if (op == Arithmetic::subtract) return combined(tape, a, b, shape, [](auto x, auto y) { return x - y; });
  return combined(tape, a, b, shape, [](auto x, auto y) { return x * y; });
}

}  // namespace

Array summed_to(const Tape& tape, const Array& of, const std::vector<int64_t>& shape, double factor) {
  const Array x = widened(tape, of), y = tape.array(x.dtype(), shape);
  const ProfileSpan span("sum", [&] { return work_on({&x, &y}); });
  const std::vector<int64_t> strides = strides_on(x.shape(), x.shape());
  std::vector<int64_t> kept = x.shape(), summed = x.shape();  // each is 1 on the axes of the other
  const size_t missing = x.shape().size() - shape.size();
  int64_t run = 1, step = 1;  // the last axis that is summed
  for (size_t axis = 0; axis < kept.size(); ++axis) {
    const bool stays = axis >= missing && shape[axis - missing] == x.shape()[axis];
    if (!stays) run = x.shape()[axis], step = strides[axis];
    (stays ? summed : kept)[axis] = 1;
  }
  const int64_t terms = count_of(summed.data(), static_cast<int>(summed.size()));
  with_wide(x.dtype(), [&](auto zero) {
    using T = decltype(zero);
    for_ranges(y.count(), terms, [&](int64_t begin, int64_t end) {
      for (int64_t n = begin; n < end; ++n) {
        const T* first = elements<T>(x) + offset_on(n, kept, strides);
        double sum = 0;
        for (int64_t term = 0; term < terms; term += run) {
          const T* from = first + offset_on(term, summed, strides);
          for (int64_t i = 0; i < run; ++i) sum += from[i * step];
        }
        elements<T>(y)[n] = static_cast<T>(factor * sum);
      }
    });
  });
  return y;
}

Array spread_to(const Tape& tape, const Array& x, const std::vector<int64_t>& shape, double factor) {
  const Array wide = widened(tape, x);
  return combined(tape, wide, wide, shape,
                  [factor](auto value, auto) { return static_cast<decltype(value)>(factor * value); });
}

Value arithmetic(Tape& tape, const char* name, Arithmetic op, const Value& a, const Value& b) {
  Checker checker(name);
  const bool has_a = require_floating(checker, "a", a), has_b = require_floating(checker, "b", b);
  std::vector<int64_t> shape;
  if (has_a && has_b) {
    require_same_type(checker, "b", b, a.dtype());
    checker.require(broadcast(a.shape(), b.shape(), shape), [&] {
      return "a is " + a.data().describe() + " and b is " + b.data().describe() +
             ": their axes, matched from the last one on, must be equal or 1";
    });
  }
  checker.done();
  const Array wide = computed(tape, op, widened(tape, a.data()), widened(tape, b.data()), shape);
  Value y = tape.result(name, narrowed(tape, wide, a.dtype()), {a, b});
  tape.record(y, [=, &tape] {
    const Array dy = widened(tape, y.gradient());
    const auto pass_on = [&](const Value& to, const Value& other, double sign) {
      if (!to.wants_gradient()) return;
      Array full = op == Arithmetic::multiply ? computed(tape, op, dy, widened(tape, other.data()), shape) : dy;
      if (sign != 1) full = spread_to(tape, dy, shape, sign);
      tape.add_gradient(to, to.shape() == shape ? full : summed_to(tape, full, to.shape()));
    };
    pass_on(a, b, 1);
    pass_on(b, a, op == Arithmetic::subtract ? -1 : 1);
  });
  return y;
}

Value subtract(Tape& tape, const Value& a, const Value& b) {
  return arithmetic(tape, "subtract", Arithmetic::subtract, a, b);
}

Value multiply(Tape& tape, const Value& a, const Value& b) {
  return arithmetic(tape, "multiply", Arithmetic::multiply, a, b);
}

}  // namespace attn::autograd
