// What is applied before linear attention: learned decays, positive features. Plain loops over wide numbers.
#include <cmath>

#include "attn/autograd_linear.h"
#include "autograd/wide.h"

namespace attn::autograd {
namespace {

/// A new wide array of x's shape: body(n) is element n.
template <class Body>
Array computed(const Tape& tape, const std::vector<int64_t>& shape, DType dtype, const Body& body) {
  const Array y = tape.array(wide_type(dtype), shape);
  with_wide(dtype, [&](auto zero) {
    using T = decltype(zero);
    for_ranges(y.count(), 16, [&](int64_t begin, int64_t end) {
      for (int64_t n = begin; n < end; ++n) elements<T>(y)[n] = static_cast<T>(body(n));
    });
  });
  return y;
}

double softplus(double x) { return x > 0 ? x + std::log1p(std::exp(-x)) : std::log1p(std::exp(x)); }
double logistic(double x) { return 1 / (1 + std::exp(-x)); }

}  // namespace

Value decay_logarithm(Tape& tape, const Value& x, const Value& rate, const Value& offset) {
  Checker checker("decay_logarithm");
  if (require_rows(checker, "x", x) && require_floating(checker, "x", x)) {
    require_vector(checker, "offset", offset, x.data().width());
    if (require_rank(checker, "rate", rate, 1, "[H]"))
      checker.require(rate.data().count() > 0 && x.data().width() % rate.data().count() == 0, [&] {
        return "rate is " + rate.data().describe() + ", must have a divisor of x's " +
               std::to_string(x.data().width()) + " columns";
      });
  }
  checker.done();
  const int64_t C = x.data().width(), share = C / rate.data().count();
  const auto input = [=](int64_t n) { return x.data().number(n) + offset.data().number(n % C); };
  const auto speed = [=](int64_t n) { return std::exp(rate.data().number(n % C / share)); };
  Value y = tape.result("decay_logarithm",
                        computed(tape, x.shape(), x.dtype(), [&](int64_t n) { return -speed(n) * softplus(input(n)); }),
                        {x, rate, offset});
  tape.record(y, [=, &tape] {
    const Array dy = y.gradient();
    const Array dinput =
        computed(tape, x.shape(), x.dtype(), [&](int64_t n) { return -dy.number(n) * speed(n) * logistic(input(n)); });
    if (x.wants_gradient()) tape.add_gradient(x, narrowed(tape, dinput, x.dtype()));
    if (offset.wants_gradient())
      tape.add_gradient(offset, narrowed(tape, summed_to(tape, dinput, offset.shape()), offset.dtype()));
    if (!rate.wants_gradient()) return;
    // d y / d rate = y, summed over rows and the columns of a head.
    std::vector<double> sums(static_cast<size_t>(rate.data().count()));
    for (int64_t n = 0; n < dy.count(); ++n) sums[n % C / share] += dy.number(n) * y.data().number(n);
    const Array drate = computed(tape, rate.shape(), rate.dtype(), [&](int64_t h) { return sums[h]; });
    tape.add_gradient(rate, narrowed(tape, drate, rate.dtype()));
  });
  return y;
}

Value elu_plus_one(Tape& tape, const Value& x) {
  Checker checker("elu_plus_one");
  require_floating(checker, "x", x);
  checker.done();
  const Array wide = computed(tape, x.shape(), x.dtype(), [&](int64_t n) {
    const double number = x.data().number(n);
    return number > 0 ? number + 1 : std::exp(number);
  });
  Value y = tape.result("elu_plus_one", narrowed(tape, wide, x.dtype()), {x});
  tape.record(y, [=, &tape] {
    const Array dy = y.gradient();
    const Array dx = computed(tape, x.shape(), x.dtype(), [&](int64_t n) {
      return dy.number(n) * std::fmin(wide.number(n), 1);  // exp(x) below 0, 1 above
    });
    tape.add_gradient(x, narrowed(tape, dx, x.dtype()));
  });
  return y;
}

Value positive_features(Tape& tape, const Value& x, const Value& projection) {
  Checker checker("positive_features");
  if (require_rank(checker, "x", x, 3, "[B, L, H D]") && require_rank(checker, "projection", projection, 2, "[m, D]")) {
    require_floating(checker, "x", x);
    require_same_type(checker, "projection", projection, x.dtype());
    const int64_t D = projection.shape()[1];
    checker.require(D > 0 && x.data().width() % D == 0, [&] {
      return "projection is " + projection.data().describe() + ", must have a divisor of x's " +
             std::to_string(x.data().width()) + " columns";
    });
  }
  checker.done();
  const int64_t D = projection.shape()[1], m = projection.shape()[0], H = x.data().width() / D;
  const int64_t rows = x.data().count() / D;
  const Value heads = Value(x.data().reshaped({rows, D}));
  // Of each row: |y|^2 / 2, and the products with the projection, which D^(-1/4) scales.
  const double factor = std::pow(static_cast<double>(D), -0.25);
  const Array products = tape.array(wide_type(x.dtype()), {rows, m});
  const View<2> p = projection.data();
  ops::matmul(heads.data(), View<2>(p.data, p.dtype, {D, m}, {p.stride[1], p.stride[0]}), products);
  std::vector<double> halves(static_cast<size_t>(rows));
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t d = 0; d < D; ++d) halves[r] += 0.5 * std::pow(factor * x.data().number(r * D + d), 2);
  const Array wide = computed(tape, {x.shape()[0], x.shape()[1], H * m}, x.dtype(), [&](int64_t n) {
    return std::exp(factor * products.number(n) - halves[n / m]) / std::sqrt(static_cast<double>(m));
  });
  Value y = tape.result("positive_features", narrowed(tape, wide, x.dtype()), {x});
  tape.record(y, [=, &tape] {
    // With g = dy y: dx = factor (projection^T g) - factor^2 x sum(g).
    const Array dy = y.gradient();
    const Array g = computed(tape, {rows, m}, x.dtype(), [&](int64_t n) { return dy.number(n) * wide.number(n); });
    const Array back = tape.array(g.dtype(), {rows, D}), matrix = widened(tape, projection.data());
    ops::matmul(g, matrix, back);
    std::vector<double> sums(static_cast<size_t>(rows));
    for (int64_t n = 0; n < g.count(); ++n) sums[n / m] += g.number(n);
    const Array dx = computed(tape, x.shape(), x.dtype(), [&](int64_t n) {
      return factor * back.number(n) - factor * factor * x.data().number(n) * sums[n / D];
    });
    tape.add_gradient(x, narrowed(tape, dx, x.dtype()));
  });
  return y;
}

Array orthogonal_projection(int64_t m, int64_t D, DType dtype, uint64_t seed) {
  Checker checker("orthogonal_projection");
  checker.require(m > 0 && D > 0, [&] {
    return "m is " + std::to_string(m) + " and D is " + std::to_string(D) + ", must be positive";
  });
  checker.require(is_floating(dtype),
                  [&] { return "dtype is " + std::string(name_of(dtype)) + ", must be a floating type"; });
  checker.done();
  Random random(seed);
  Tensor<double, 2> rows({m, D});
  for (int64_t r = 0; r < m; ++r) {
    double* row = &rows(r, 0);
    double length = 0, norm = 0;
    for (int64_t d = 0; d < D; ++d) row[d] = random.normal();
    for (int64_t d = 0; d < D; ++d) length += std::pow(random.normal(), 2);
    for (int64_t before = r / D * D; before < r; ++before) {  // Gram-Schmidt inside the block of D rows
      const double* other = &rows(before, 0);
      double product = 0, square = 0;
      for (int64_t d = 0; d < D; ++d) {
        product += row[d] * other[d];
        square += other[d] * other[d];
      }
      for (int64_t d = 0; d < D; ++d) row[d] -= product / square * other[d];
    }
    for (int64_t d = 0; d < D; ++d) norm += row[d] * row[d];
    for (int64_t d = 0; d < D; ++d) row[d] *= std::sqrt(length / norm);
  }
  const Array result(dtype, {m, D});
  ops::convert(rows.view(), result.view<2>());
  return result;
}

}  // namespace attn::autograd
