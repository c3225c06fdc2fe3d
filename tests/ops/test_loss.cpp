// ops: cross entropy, the optimiser's update, the sum of squares.
#include "support/ops.h"

namespace attn::test {
namespace {

using namespace attn::ops;

// ------------------------------------------------------------------------------------------------------ cross entropy

/// ln sum exp of a row in double.
double lse_of(const Matrix& x, int64_t r) {
  double maximum = -kInf, sum = 0;
  for (int64_t c = 0; c < x.columns(); ++c) maximum = std::max(maximum, x.get(r, c));
  for (int64_t c = 0; c < x.columns(); ++c) sum += std::exp(x.get(r, c) - maximum);
  return maximum + std::log(sum);
}

struct Loss {
  Matrix logits, loss, lse, dlogits;
  std::vector<int64_t> targets;
  double mean = 0;

  Loss(DType dtype, int64_t R, int64_t V, int64_t gap, double deviation = 3)
      : logits(dtype, R, V, gap),
        loss(parameter_of(dtype), 1, R),
        lse(parameter_of(dtype), 1, R),
        dlogits(dtype, R, V, gap + 2) {
    Random random(static_cast<uint64_t>(R * 100 + V));
    logits.fill_normal(random, deviation);
    for (int64_t r = 0; r < R; ++r) targets.push_back(r % 4 == 3 ? kIgnoreIndex : random.below(V));
  }

  void expect_forward(const std::string& what) {
    mean = cross_entropy(logits, targets, loss.row(), lse.row());
    const double V = static_cast<double>(logits.columns());
    double sum = 0;
    int64_t count = 0;
    const auto lse_error = [&](double value) { return std::abs(value) + 1; };  // 1: the logarithm of a rounded sum
    EXPECT_TRUE(holds(lse,
                      [&](int64_t, int64_t r) {
                        const double value = lse_of(logits, r);
                        return Expected{value, lse_error(value), V};
                      }))
        << "lse, " << what;
    EXPECT_TRUE(holds(loss,
                      [&](int64_t, int64_t r) {
                        if (targets[r] == kIgnoreIndex) return Expected{0, 0};
                        const double value = lse_of(logits, r), taken = logits.get(r, targets[r]);
                        sum += loss.get(r);
                        ++count;
                        return Expected{value - taken, lse_error(value) + std::abs(taken), V};
                      }))
        << "loss, " << what;
    EXPECT_DOUBLE_EQ(mean, count == 0 ? 0 : sum / static_cast<double>(count)) << what;
  }

  void expect_backward(const std::string& what) {
    const double factor = -0.125;
    cross_entropy_backward(logits, targets, lse.row(), factor, dlogits);
    EXPECT_TRUE(holds(dlogits,
                      [&](int64_t r, int64_t c) {
                        if (targets[r] == kIgnoreIndex) return Expected{0, 0};
                        const double exponent = logits.get(r, c) - lse.get(r), p = std::exp(exponent);
                        const double size = std::abs(factor) * p, hot = c == targets[r] ? 1 : 0;
                        return Expected{factor * (p - hot), size + std::abs(factor) * hot, 2 * std::abs(exponent)};
                      }))
        << "dlogits, " << what;
    Matrix in_place = logits.copy();
    cross_entropy_backward(in_place, targets, lse.row(), factor, in_place);
    for (int64_t r = 0; r < logits.rows(); ++r)
      for (int64_t c = 0; c < logits.columns(); ++c) EXPECT_EQ(in_place.get(r, c), dlogits.get(r, c)) << what;
  }
};

TEST(OpsLoss, CrossEntropy) {
  for_each_layout([](DType dtype, int64_t V, int64_t gap, const std::string& what) {
    Loss l(dtype, 6, V, gap);
    l.expect_forward(what);
    l.expect_backward(what);
  });
}

/// Rows of several blocks, of which each raises the maximum; and magnitudes whose exponentials overflow.
TEST(OpsLoss, LongRowsAndLargeLogits) {
  for_each_isa_of_elements([](const std::string& isa) {
    for (DType dtype : kStorage) {
      Loss rising(dtype, 3, 7001, 1);
      rising.logits.fill_with(
          [](int64_t r, int64_t c) { return static_cast<double>(r - 1) * 1e-2 * static_cast<double>(c); });
      rising.expect_forward(isa);
      rising.expect_backward(isa);
      Loss large(dtype, 5, 77, 0, 1000);
      large.expect_forward(isa);
      large.expect_backward(isa);
    }
  });
}

TEST(OpsLoss, GradientIsTheDifference) {
  for_each_isa_of_elements([](const std::string&) {
    Loss l(DType::float64, 5, 9, 0);
    cross_entropy(l.logits, l.targets, l.loss.row(), l.lse.row());
    cross_entropy_backward(l.logits, l.targets, l.lse.row(), 1.0 / 4, l.dlogits);  // 4 targets of 5 count
    expect_gradient("dlogits", l.logits, l.dlogits,
                    [&] { return cross_entropy(l.logits, l.targets, l.loss.row(), l.lse.row()); });
  });
}

TEST(OpsLoss, InfiniteLogits) {
  for_each_isa_of_elements([](const std::string& isa) {
    for (DType dtype : kStorage) {
      Loss l(dtype, 3, 40, 0);
      for (int64_t c = 0; c < 40; ++c) l.logits.set(0, c, c == 17 ? 2 : -kInf);
      l.logits.set(1, 3, kNaN);
      for (int64_t c = 0; c < 40; ++c) l.logits.set(2, c, -kInf);
      l.targets = {17, 0, 0};
      cross_entropy(l.logits, l.targets, l.loss.row(), l.lse.row());
      EXPECT_EQ(l.loss.get(0), 0) << isa;
      EXPECT_EQ(l.lse.get(0), 2) << isa;
      EXPECT_TRUE(std::isnan(l.loss.get(1))) << isa;
      EXPECT_EQ(l.lse.get(2), -kInf) << isa;
      cross_entropy_backward(l.logits, l.targets, l.lse.row(), 1, l.dlogits);
      for (int64_t c = 0; c < 40; ++c) EXPECT_EQ(l.dlogits.get(0, c), 0) << isa;
      l.targets.assign(3, kIgnoreIndex);
      EXPECT_EQ(cross_entropy(l.logits, l.targets, l.loss.row(), l.lse.row()), 0) << isa;
      for (int64_t r = 0; r < 3; ++r) EXPECT_EQ(l.loss.get(r), 0) << isa;
    }
  });
}

// ---------------------------------------------------------------------------------------------------------- optimiser

TEST(OpsLoss, AdamWIsItsFormula) {
  for_each_layout([](DType dtype, int64_t C, int64_t gap, const std::string& what) {
    if (size_of(dtype) == 2) return;
    for (int64_t step : {1, 10}) {
      const AdamWOptions o{.learning_rate = 0.01,
                           .beta1 = 0.8,
                           .beta2 = 0.99,
                           .epsilon = 1e-6,
                           .weight_decay = 0.1,
                           .gradient_factor = 0.5,
                           .step = step};
      Random random(11);
      Matrix p(dtype, 3, C, gap), g(dtype, 3, C, gap), m(dtype, 3, C, gap), v(dtype, 3, C, 0);
      for (Matrix* x : {&p, &g, &m}) x->fill_normal(random);
      v.fill_with([&](int64_t, int64_t) { return random.uniform(); });
      if (step == 1) {
        m.fill(0);
        v.fill(0);
      }
      const Matrix p0 = p.copy(), m0 = m.copy(), v0 = v.copy();
      Matrix copy(DType::bfloat16, 3, C, gap), rounded = Matrix::like(copy);
      const bool wide = dtype == DType::float32;
      adamw(p, g, m, v, o, wide ? View<2>(copy) : View<2>());
      if (wide) {
        convert(p, rounded);
        EXPECT_TRUE(copy.same_bits(rounded)) << what;
      }
      const auto first = [&](int64_t r, int64_t c) {
        return o.beta1 * m0.get(r, c) + (1 - o.beta1) * 0.5 * g.get(r, c);
      };
      const auto second = [&](int64_t r, int64_t c) {
        return o.beta2 * v0.get(r, c) + (1 - o.beta2) * std::pow(0.5 * g.get(r, c), 2);
      };
      EXPECT_TRUE(holds(m,
                        [&](int64_t r, int64_t c) {
                          return Expected{first(r, c), std::abs(m0.get(r, c)) + std::abs(g.get(r, c))};
                        }))
          << "m, " << what;
      EXPECT_TRUE(holds(v,
                        [&](int64_t r, int64_t c) {
                          return Expected{second(r, c), second(r, c)};
                        }))
          << "v, " << what;
      EXPECT_TRUE(holds(p,
                        [&](int64_t r, int64_t c) {
                          const double t = static_cast<double>(step);
                          const double mhat = first(r, c) / (1 - std::pow(o.beta1, t)),
                                       vhat = second(r, c) / (1 - std::pow(o.beta2, t));
                          const double kept = p0.get(r, c) * (1 - o.learning_rate * o.weight_decay);
                          const double moments =
                              std::abs(m0.get(r, c)) + std::abs(g.get(r, c));  // whose difference mhat is
                          const double gain = o.learning_rate / (std::sqrt(vhat) + o.epsilon);
                          return Expected{kept - gain * mhat, std::abs(kept) + gain * moments / (1 - o.beta1)};
                        }))
          << "p, " << what;
    }
  });
}

TEST(OpsLoss, SumOfSquares) {
  for_each_layout([](DType dtype, int64_t C, int64_t gap, const std::string& what) {
    Random random(12);
    Matrix x(dtype, 7, C, gap);
    x.fill_normal(random);
    double sum = 0;
    for (int64_t r = 0; r < 7; ++r)
      for (int64_t c = 0; c < C; ++c) sum += x.get(r, c) * x.get(r, c);
    EXPECT_LE(std::abs(sum_of_squares(x) - sum), reordering_bound(sum)) << what;
    x.set(6, C - 1, kInf);
    EXPECT_EQ(sum_of_squares(x), kInf) << what;
    x.set(0, 0, kNaN);
    EXPECT_TRUE(std::isnan(sum_of_squares(x))) << what;
  });
}

/// Squares that float32 cannot hold, and sums whose small terms it would lose.
TEST(OpsLoss, SumOfSquaresIsInDouble) {
  for_each_isa_of_elements([](const std::string& isa) {
    Matrix x(DType::float32, 1, 40000);
    x.fill(1e25);
    EXPECT_LE(std::abs(sum_of_squares(x) / (40000 * std::pow(x.get(0), 2)) - 1), reordering_bound(1)) << isa;
    x.fill(1);
    x.set(0, 0, 0x1p13);
    EXPECT_EQ(sum_of_squares(x), 0x1p26 + 39999) << isa;
  });
}

/// Ranks that have the pieces of an array find its norm.
TEST(OpsLoss, SumOfSquaresIsThatOfThePiecesInOrder) {
  for_each_isa_of_elements([](const std::string& isa) {
    attn::Array x(DType::float32, {1, 3 * kSumPiece + 5});
    Random random(3);
    float* element = x.data<float>();
    for (int64_t n = 0; n < x.count(); ++n) element[n] = static_cast<float>(random.normal());
    double sum = 0;
    for (int64_t first = 0; first < x.count(); first += kSumPiece)
      sum += sum_of_squares(View<2>(element + first, {1, std::min(kSumPiece, x.count() - first)}));
    EXPECT_EQ(sum_of_squares(x.flat()), sum) << isa;
  });
}

// -------------------------------------------------------------------------------------------------------------- others

TEST(OpsLoss, ThreadsDoNotMatter) {
  expect_same_on_all_threads([] {
    std::vector<Matrix> results;
    for (DType dtype : kStorage)
      for (int64_t gap : {0, 3}) {
        Loss l(dtype, 300, 205, gap);
        Matrix scalars(DType::float64, 1, 2);
        scalars.set(0, 0, cross_entropy(l.logits, l.targets, l.loss.row(), l.lse.row()));
        scalars.set(0, 1, sum_of_squares(l.logits));
        cross_entropy_backward(l.logits, l.targets, l.lse.row(), 0.5, l.dlogits);
        for (const Matrix& m : {scalars, l.loss, l.lse, l.dlogits}) results.push_back(m);
        if (size_of(dtype) == 2) continue;
        Matrix p = l.logits.copy(), m = Matrix::like(p), v = Matrix::like(p);
        adamw(p, l.logits, m.fill(0), v.fill(0), {});
        for (const Matrix& x : {p, m, v}) results.push_back(x);
      }
    return results;
  });
}

TEST(OpsLoss, ErrorsListEveryReason) {
  Loss l(DType::bfloat16, 4, 5, 0);
  l.targets = {0, 5, 0};
  const std::string what = error_of([&] { cross_entropy(l.logits, l.targets, l.logits.row(), l.lse.row()); });
  EXPECT_TRUE(contains(what, "[cross_entropy] there are 3 targets for 4 rows")) << what;
  EXPECT_TRUE(contains(what, "targets[1] is 5, must be in [0, 5) or -1")) << what;
  EXPECT_TRUE(contains(what, "loss is bfloat16 [5], must be float32 [4]")) << what;
  l.targets = {0, -2, 0, 0};
  EXPECT_TRUE(contains(error_of([&] { cross_entropy_backward(l.logits, l.targets, l.lse.row(), 1, l.dlogits); }),
                       "targets[1] is -2"));

  Matrix p(DType::float32, 2, 3), g = Matrix::like(p), m = Matrix::like(p), v = Matrix::like(p),
                                  half(DType::bfloat16, 2, 3);
  const std::string update = error_of([&] {
    adamw(p, half, m, m,
          {.beta1 = 1, .beta2 = -1, .epsilon = -1, .weight_decay = kInf, .gradient_factor = kNaN, .step = 0});
  });
  for (const char* part : {"[adamw] gradient is bfloat16 [2, 3], must be float32 [2, 3]", "beta1 is 1", "beta2 is -1",
                           "epsilon is -1", "decay is inf", "gradient_factor is nan", "step is 0, must be at least 1"})
    EXPECT_TRUE(contains(update, part)) << update;
  EXPECT_TRUE(contains(error_of([&] { adamw(p, g, m, m, {}); }), "first_moment overlaps second_moment"));
  EXPECT_TRUE(contains(error_of([&] { adamw(half, half, half, half, {}); }), "parameter is bfloat16"));
  EXPECT_TRUE(contains(error_of([&] { adamw(p, p, m, v, {}); }), "parameter overlaps gradient"));
  EXPECT_TRUE(contains(error_of([&] { adamw(p, g, m, v, {}, g); }),
                       "copy is float32, must be bfloat16 or float16 beside a float32 parameter"));
}

}  // namespace
}  // namespace attn::test
