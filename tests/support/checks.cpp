// The comparison with the oracle, and with differences.
#include "checks.h"

#include <algorithm>
#include <cmath>

namespace attn::test {
namespace {

/// The sizes of what a Case adds up, which its errors are proportional to.
class Magnitudes {
 public:
  Magnitudes(const Case& c, const Results& reference) : c_(c), reference_(reference) {}

  double scale() const {
    return std::abs(c_.scalars.scale.value_or(1 / std::sqrt(static_cast<double>(std::max<int64_t>(1, c_.dims.D)))));
  }
  /// |q| |k| scale: at least the sum of magnitudes whose signed sum is a score, by Cauchy and Schwarz.
  double product_magnitude() const {
    return largest_norm(c_.q.values(), c_.dims.D) * largest_norm(c_.k.values(), c_.dims.D) * scale();
  }
  /// The same for dP and delta, whose difference is all that is left in dS.
  double gradient_magnitude() const {
    return largest_norm(c_.dout.values(), c_.dims.Dv) * largest_norm(c_.v.values(), c_.dims.Dv) * root_of_rows();
  }
  /// Rows that add up in dk, dv or dbias err independently, so that their errors add in squares.
  double root_of_rows() const { return std::sqrt(static_cast<double>(visible_rows())); }
  /// Rows that see a key, and keep one where weights are dropped: the others are exact zeros, which do not err.
  int64_t visible_rows() const { return nonzero_rows(reference_.out.values(), c_.dims.Dv); }

  static double largest_norm(const Values& rows, int64_t length) {
    double largest = 0;
    for (size_t first = 0; length > 0 && first < rows.size(); first += length) {
      double squares = 0;
      for (int64_t d = 0; d < length; ++d) squares += rows[first + d] * rows[first + d];
      if (std::isfinite(squares)) largest = std::max(largest, squares);
    }
    return std::sqrt(largest);
  }

  /// Rows of `row` elements that are not all zero.
  static int64_t nonzero_rows(const Values& values, int64_t row) {
    int64_t rows = 0;
    for (size_t first = 0; first < values.size(); first += std::max<int64_t>(row, 1)) {
      bool zero = true;
      for (int64_t n = 0; n < row; ++n) zero = zero && values[first + n] == 0;
      rows += !zero;
    }
    return rows;
  }

  /// Every error of a row comes from the weights of a visible row.
  int64_t independent_samples(const Values& expected, int64_t row) const {
    return std::min(nonzero_rows(expected, row), visible_rows());
  }

 private:
  const Case& c_;
  const Results& reference_;
};

}  // namespace

Oracle::Oracle(Case c, bool backward) : c_(std::move(c)), backward_(backward) {
  const Results reference = run_reference(c_, backward);
  std::vector<Results> naive;
  for (Way way : {Way::textbook, Way::reversed, Way::odd_even}) naive.push_back(run_naive(c_, way, backward));
  const Magnitudes sizes(c_, reference);
  const auto add = [&](const char* what, auto field, DType dtype, double score, int64_t row, double cancelled = 0) {
    const auto values_of = [field](const Results& results) { return (results.*field).values(); };
    std::vector<Values> ways;
    for (const Results& way : naive) ways.push_back(values_of(way));
    Values values = values_of(reference);
    const int64_t samples = sizes.independent_samples(values, row);
    const Yardstick yardstick(ways, values, score, samples, samples <= kLuckySamples ? cancelled : 0);
    expected_.push_back({what, values_of, std::move(values), yardstick, dtype});
  };
  // A sum of products is known to the sum of their magnitudes times the unit, what is added to it to its own size.
  const double score = std::max(max_abs(reference.lse.values()), sizes.product_magnitude());
  const double score_and_lse = 2 * score;  // the backward pass is given an lse that has been rounded as well
  const double ds = sizes.gradient_magnitude(), scaled = ds * sizes.scale();
  add("out", &Results::out, c_.dtype, score, c_.dims.Dv);
  add("lse", &Results::lse, lse_type(c_.dtype), 0, 1, sizes.product_magnitude());
  add("dq", &Results::dq, c_.dtype, score_and_lse, c_.dims.D, scaled * max_abs(c_.k.values()));
  add("dk", &Results::dk, c_.dtype, score_and_lse, c_.dims.D, scaled * max_abs(c_.q.values()));
  add("dv", &Results::dv, c_.dtype, score_and_lse, c_.dims.Dv, max_abs(c_.dout.values()) * sizes.root_of_rows());
  add("dbias", &Results::dbias, c_.dtype, score_and_lse, 1, ds);
  add("dsink", &Results::dsink, c_.dtype, score_and_lse, 1, ds);
}

void Oracle::expect(const Results& actual, const std::string& isa) const {
  for (const Expected& e : expected_)
    EXPECT_TRUE(close(e.values_of(actual), e.values, e.yardstick, e.dtype))
        << e.what << " of " << c_.name() << " on " << isa;
}

void Oracle::expect_on_every_isa() const {
  for_each_isa([&](const std::string& isa) { expect(run(c_, backward_), isa); });
}

testing::AssertionResult same_results(const Results& a, const Results& b) {
  const auto unlike = [](const char* what) { return testing::AssertionFailure() << what << " differs"; };
  if (!same_bits(a.out, b.out)) return unlike("out");
  if (!same_bits(a.lse, b.lse)) return unlike("lse");
  if (!same_bits(a.dq, b.dq)) return unlike("dq");
  if (!same_bits(a.dk, b.dk)) return unlike("dk");
  if (!same_bits(a.dv, b.dv)) return unlike("dv");
  if (!same_bits(a.dbias, b.dbias)) return unlike("dbias");
  if (!same_bits(a.dsink, b.dsink)) return unlike("dsink");
  return testing::AssertionSuccess();
}

namespace {

class GradientCheck {
 public:
  GradientCheck(const Case& c, Engine engine) : c_(c), engine_(engine), analytic_(engine(c, true)) {}

  void check_all(int64_t samples) {
    check("dq", c_.q, analytic_.dq, samples);
    check("dk", c_.k, analytic_.dk, samples);
    check("dv", c_.v, analytic_.dv, samples);
    if (c_.bias.given()) check("dbias", c_.bias, analytic_.dbias, samples);
    for (size_t h = 0; h < c_.sink.size(); ++h) check_sink(h);
  }

 private:
  void check(const char* what, Array<4>& input, const Array<4>& gradient, int64_t samples) {
    const int64_t stride = std::max<int64_t>(1, input.count() / samples);
    for (auto n = static_cast<int64_t>(run_seed() % stride); n < input.count(); n += stride) {
      const double value = input.get(n);
      if (std::isinf(value)) continue;  // a forbidding bias has no neighbourhood
      input.set(n, value + kDifferenceStep);
      const Results above = engine_(c_, false);
      input.set(n, value - kDifferenceStep);
      const Results below = engine_(c_, false);
      input.set(n, value);
      expect(what, n, gradient.get(n), slope(above, below, 2 * kDifferenceStep));
    }
  }

  /// Sinks are float32: the step is what the rounded values are apart.
  void check_sink(size_t h) {
    const float value = c_.sink[h], step = kDifferenceStep;
    const float high = value + step, low = value - step;
    c_.sink[h] = high;
    const Results above = engine_(c_, false);
    c_.sink[h] = low;
    const Results below = engine_(c_, false);
    c_.sink[h] = value;
    expect("dsink", static_cast<int64_t>(h), analytic_.dsink.get(h), slope(above, below, double{high} - double{low}));
  }

  /// Differences first, sum second: what the input does not touch cancels exactly.
  double slope(const Results& above, const Results& below, double step) const {
    double difference = 0;
    for (int64_t n = 0; n < c_.dout.count(); ++n) difference += c_.dout.get(n) * (above.out.get(n) - below.out.get(n));
    for (int64_t n = 0; n < c_.dlse.count(); ++n)
      if (above.lse.get(n) != below.lse.get(n)) difference += c_.dlse.get(n) * (above.lse.get(n) - below.lse.get(n));
    return difference / step;
  }

  void expect(const char* what, int64_t n, double analytic, double numeric) const {
    EXPECT_TRUE(std::abs(analytic - numeric) <= difference_bound(numeric))
        << c_.name() << ": " << what << "[" << n << "] is " << analytic << ", the difference quotient " << numeric;
  }

  Case c_;
  Engine engine_;
  Results analytic_;
};

}  // namespace

void check_gradients(const Case& c, Engine engine, int64_t samples) { GradientCheck(c, engine).check_all(samples); }

}  // namespace attn::test
