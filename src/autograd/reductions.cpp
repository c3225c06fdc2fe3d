// Sums, softmax and the losses that are a mean: the loops of the tape's own over rows of wide numbers.
#include <cmath>
#include <limits>

#include "attn/autograd_operations.h"
#include "attn/autograd_statistics.h"
#include "autograd/wide.h"

namespace attn::autograd {
namespace {

void check_floating(const char* operation, const Value& x) {
  Checker checker(operation);
  require_floating(checker, "x", x);
  checker.done();
}

/// A new array of x's shape whose rows are made by body(const T* x, const T* second, T* y, width).
template <class Body>
Array mapped_rows(const Tape& tape, const Array& x, const Array& second, const Body& body) {
  const Array from = widened(tape, x), beside = widened(tape, second), y = tape.array(from.dtype(), x.shape());
  const ProfileSpan span("rows", [&] { return work_on({&from, &beside, &y}); });
  const int64_t width = y.width();
  if (y.count() == 0) return y;
  with_wide(y.dtype(), [&](auto zero) {
    using T = decltype(zero);
    for_ranges(y.count() / width, 16 * width, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row)
        body(static_cast<const T*>(elements<T>(from)) + row * width,
             static_cast<const T*>(elements<T>(beside)) + row * width, elements<T>(y) + row * width, width);
    });
  });
  return y;
}

/// y = exp(x - its maximum), unless `logarithm`: then x less that and the log of the sum.
template <class T>
void softmax_row(const T* x, T* y, int64_t width, bool logarithm) {
  double maximum = -std::numeric_limits<double>::infinity(), sum = 0;
  for (int64_t c = 0; c < width; ++c) maximum = x[c] > maximum || std::isnan(x[c]) ? x[c] : maximum;
  for (int64_t c = 0; c < width; ++c) sum += std::exp(x[c] - maximum);
  const double lse = std::log(sum);
  for (int64_t c = 0; c < width; ++c) {
    const double shifted = x[c] - maximum;
    y[c] = static_cast<T>(logarithm ? shifted - lse : std::exp(shifted) / sum);
  }
}

Value softmax_of(Tape& tape, const char* name, const Value& x, bool logarithm) {
  check_floating(name, x);
  const Array wide = mapped_rows(tape, x.data(), x.data(), [&]<class T>(const T* from, const T*, T* to, int64_t width) {
    softmax_row(from, to, width, logarithm);
  });
  Value y = tape.result(name, narrowed(tape, wide, x.dtype()), {x});
  tape.record(y, [=, &tape] {
    // With P the softmax: P (dy - sum P dy), and for the logarithm dy - P sum dy.
    const auto step = [&]<class T>(const T* out, const T* dy, T* dx, int64_t width) {
      double sum = 0;
      for (int64_t c = 0; c < width; ++c) sum += logarithm ? dy[c] : out[c] * double{dy[c]};
      for (int64_t c = 0; c < width; ++c)
        dx[c] = static_cast<T>(logarithm ? dy[c] - std::exp(double{out[c]}) * sum : out[c] * (dy[c] - sum));
    };
    tape.add_gradient(x, mapped_rows(tape, wide, y.gradient(), step));
  });
  return y;
}

/// One element of this type.
Array number(const Tape& tape, DType dtype, double value) {
  const Array one = tape.array(dtype, {1});
  with_wide(dtype, [&](auto zero) { *elements<decltype(zero)>(one) = static_cast<decltype(zero)>(value); });
  return one;
}

Value along(Tape& tape, const char* name, const Value& x, int64_t axis, bool mean) {
  Checker checker(name);
  if (require_floating(checker, "x", x) && require_axis(checker, x, axis))
    checker.require(!mean || x.shape()[static_cast<size_t>(axis)] > 0,
                    [&] { return "axis " + std::to_string(axis) + " of x, " + x.data().describe() + ", is empty"; });
  checker.done();
  std::vector<int64_t> shape = x.shape();
  int64_t& extent = shape[static_cast<size_t>(axis)];
  const double factor = mean ? 1 / static_cast<double>(extent) : 1;
  extent = 1;
  Value y = tape.result(name, narrowed(tape, summed_to(tape, x.data(), shape, factor), x.dtype()), {x});
  tape.record(y, [=, &tape] { tape.add_gradient(x, spread_to(tape, y.gradient(), x.shape(), factor)); });
  return y;
}

}  // namespace

Value sigmoid(Tape& tape, const Value& x) {
  check_floating("sigmoid", x);
  const auto sigmoid_of = [](auto value) {
    const double small = std::exp(-std::abs(double{value}));  // never overflows
    return (value < 0 ? small : 1) / (1 + small);
  };
  const auto forward = [=]<class T>(const T* from, const T*, T* to, int64_t width) {
    for (int64_t c = 0; c < width; ++c) to[c] = static_cast<T>(sigmoid_of(from[c]));
  };
  Value y = tape.result("sigmoid", narrowed(tape, mapped_rows(tape, x.data(), x.data(), forward), x.dtype()), {x});
  tape.record(y, [=, &tape] {
    const auto backward = [=]<class T>(const T* from, const T* dy, T* dx, int64_t width) {
      for (int64_t c = 0; c < width; ++c) dx[c] = static_cast<T>(dy[c] * sigmoid_of(from[c]) * sigmoid_of(-from[c]));
    };
    tape.add_gradient(x, mapped_rows(tape, x.data(), y.gradient(), backward));
  });
  return y;
}

Value softmax(Tape& tape, const Value& x) { return softmax_of(tape, "softmax", x, false); }
Value log_softmax(Tape& tape, const Value& x) { return softmax_of(tape, "log_softmax", x, true); }

Value sum(Tape& tape, const Value& x) {
  check_floating("sum", x);
  Value y = tape.result("sum", summed_to(tape, x.data(), {1}), {x});
  tape.record(y, [=, &tape] { tape.add_gradient(x, spread_to(tape, y.gradient(), x.shape())); });
  return y;
}

Value sum_over(Tape& tape, const Value& x, int64_t axis) { return along(tape, "sum_over", x, axis, false); }
Value mean_over(Tape& tape, const Value& x, int64_t axis) { return along(tape, "mean_over", x, axis, true); }

Value mean_squared_error(Tape& tape, const Value& x, const Value& target) {
  Checker checker("mean_squared_error");
  const bool has_x = require_floating(checker, "x", x), has_target = require_floating(checker, "target", target);
  if (has_x && has_target) {
    require_same_type(checker, "target", target, x.dtype());
    if (target.shape() != x.shape())
      refuse_form(checker, "target", target, to_string(x.shape().data(), static_cast<int>(x.shape().size())));
    checker.require(x.data().count() > 0, [&] { return "x is " + x.data().describe() + ", must not be empty"; });
  }
  checker.done();
  const Array left = widened(tape, x.data()), right = widened(tape, target.data());
  const double count = static_cast<double>(left.count());
  const double squares = with_wide(left.dtype(), [&](auto zero) {
    double total = 0;
    for (int64_t n = 0; n < left.count(); ++n) {
      const double error = double{elements<decltype(zero)>(left)[n]} - elements<decltype(zero)>(right)[n];
      total += error * error;
    }
    return total;
  });
  Value y = tape.result("mean_squared_error", number(tape, left.dtype(), squares / count), {x, target});
  tape.record(y, [=, &tape] {
    const double factor =
        with_wide(y.dtype(), [&](auto zero) { return 2 / count * *elements<decltype(zero)>(y.gradient()); });
    const auto pass_on = [&](const Value& to, double sign) {
      if (!to.wants_gradient()) return;
      const auto step = [&]<class T>(const T* from, const T* beside, T* dx, int64_t width) {
        for (int64_t c = 0; c < width; ++c) dx[c] = static_cast<T>(sign * factor * (double{from[c]} - beside[c]));
      };
      tape.add_gradient(to, mapped_rows(tape, left, right, step));
    };
    pass_on(x, 1);
    pass_on(target, -1);
  });
  return y;
}

}  // namespace attn::autograd
