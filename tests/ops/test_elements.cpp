// ops: activations, plain and gated, sums, scaling, conversion, dropout.
#include "support/ops.h"

#include <numbers>

#include "ops/blocks.h"

namespace attn::test {
namespace {

using namespace attn::ops;

constexpr Activation kActivations[] = {Activation::relu, Activation::gelu, Activation::gelu_tanh, Activation::silu,
                                       Activation::tanh};

/// f(x) and f'(x), as plain formulas in double. An exponent is known to its own size only.
struct Curve {
  Expected value, slope;
};

Curve exact_curve(Activation f, double x) {
  const double root = std::sqrt(2 / std::numbers::pi);
  switch (f) {
    case Activation::relu: return {{std::max(0.0, x), std::max(0.0, x)}, {x > 0 ? 1.0 : 0.0, x > 0 ? 1.0 : 0.0}};
    case Activation::gelu: {
      const double phi = std::erfc(-x / std::numbers::sqrt2) / 2, bell = root / 2 * std::exp(-x * x / 2);
      return {{x * phi, std::abs(x * phi), x * x}, {phi + x * bell, phi + std::abs(x * bell), x * x}};
    }
    case Activation::gelu_tanh: {
      const double u = root * (x + 0.044715 * x * x * x), s = 1 / (1 + std::exp(-2 * u));
      const double bend = x * s / (1 + std::exp(2 * u)) * 2 * root * (1 + 3 * 0.044715 * x * x);
      return {{x * s, std::abs(x * s), 8 * std::abs(u)}, {s + bend, s + std::abs(bend), 8 * std::abs(u)}};
    }
    case Activation::silu: {
      const double s = 1 / (1 + std::exp(-x)), bend = x * s / (1 + std::exp(x));
      return {{x * s, std::abs(x * s), std::abs(x)}, {s + bend, s + std::abs(bend), std::abs(x)}};
    }
    case Activation::tanh: {
      const double t = std::tanh(x), c = std::cosh(x);
      return {{t, std::abs(t)}, {1 / (c * c), 1 / (c * c), 8 * std::abs(x)}};
    }
  }
  return {};
}

/// The error of the polynomial, which grows beyond 6, in roundings of float32; and an exponent whose terms are three
/// times as large as their sum.
Expected in_16_bits(Expected e, double x) {
  const double polynomial = 6.8e-6 * (std::abs(x) > 6 ? 32 : 1) / kUnit32;
  return {e.value, e.magnitude, polynomial + 3 * e.roundings};
}

/// The same for results of a type: gelu, silu and gelu_tanh have fewer places where they are rounded to 16 bits.
Curve curve(Activation f, double x, DType dtype) {
  const Curve exact = exact_curve(f, x);
  return size_of(dtype) == 2 ? Curve{in_16_bits(exact.value, x), in_16_bits(exact.slope, x)} : exact;
}

/// Dense near zero, and far out where the exponentials vanish.
double sample(Random& random, int64_t n) { return (n % 5 == 0 ? 12.0 : 1.5) * random.normal(); }

Matrix samples(DType dtype, int64_t rows, int64_t columns, int64_t gap, uint64_t seed) {
  Random random(seed);
  int64_t n = 0;
  Matrix x(dtype, rows, columns, gap);
  x.fill_with([&](int64_t, int64_t) { return sample(random, n++); });
  return x;
}

TEST(OpsElements, Activations) {
  for_each_layout([](DType dtype, int64_t C, int64_t gap, const std::string& what) {
    const Matrix x = samples(dtype, 3, C, gap, 1), dy = samples(dtype, 3, C, gap + 1, 2);
    for (Activation f : kActivations) {
      Matrix y(dtype, 3, C, gap), dx(dtype, 3, C, gap), in_place = x.copy(), dy_in_place = dy.copy();
      activate(f, x, y);
      EXPECT_TRUE(holds(y, [&](int64_t r, int64_t c) { return curve(f, x.get(r, c), dtype).value; }))
          << static_cast<int>(f) << ", " << what;
      activate_backward(f, x, dy, dx);
      EXPECT_TRUE(holds(dx,
                        [&](int64_t r, int64_t c) {
                          const Expected slope = curve(f, x.get(r, c), dtype).slope;
                          const double d = dy.get(r, c);
                          return Expected{d * slope.value, std::abs(d) * slope.magnitude, slope.roundings};
                        }))
          << static_cast<int>(f) << " backward, " << what;
      activate(f, in_place, in_place);
      EXPECT_TRUE(in_place.same_bits(y)) << what;
      activate_backward(f, x, dy_in_place, dy_in_place);
      for (int64_t r = 0; r < 3; ++r)
        for (int64_t c = 0; c < C; ++c) EXPECT_EQ(dy_in_place.get(r, c), dx.get(r, c)) << what;
    }
  });
}

/// Of all numbers from 2^-100 to 8 that 16 bits can hold, the results are the nearest ones, but for a few that are
/// near the middle between two: 2 errors of 2^-17 among steps of 2^-8 and 2^-11.
TEST(OpsElements, SixteenBitsAreTheNearest) {
  for_each_isa_of_elements([](const std::string& isa) {
    for (DType dtype : {DType::bfloat16, DType::float16}) {
      std::vector<double> numbers;
      for (int bits = 0; bits < 1 << 16; ++bits) {
        const auto stored = static_cast<uint16_t>(bits);
        const double x = load_element(reinterpret_cast<const std::byte*>(&stored), dtype, 0);
        if (std::abs(x) >= 0x1p-100 && std::abs(x) <= 8) numbers.push_back(x);
      }
      const int64_t count = std::ssize(numbers);
      Matrix x(dtype, 1, count), y(dtype, 1, count), nearest(dtype, 1, count);
      x.fill_with([&](int64_t, int64_t c) { return numbers[c]; });
      for (Activation f : {Activation::gelu, Activation::gelu_tanh, Activation::silu}) {
        activate(f, x, y);
        nearest.fill_with([&](int64_t, int64_t c) { return exact_curve(f, numbers[c]).value.value; });
        int64_t others = 0;
        for (int64_t c = 0; c < count; ++c) others += y.get(c) != nearest.get(c);
        const double most = static_cast<double>(count) * (dtype == DType::bfloat16 ? 0x1p-8 : 0x1p-5);
        EXPECT_LE(static_cast<double>(others), most) << static_cast<int>(f) << ", " << isa;
      }
    }
  });
}

TEST(OpsElements, GatedActivations) {
  for_each_layout([](DType dtype, int64_t C, int64_t gap, const std::string& what) {
    const Matrix x = samples(dtype, 3, 2 * C, gap, 3), dy = samples(dtype, 3, C, gap + 1, 4);
    for (Activation f : kActivations) {
      Matrix y(dtype, 3, C, gap), dx(dtype, 3, 2 * C, gap);
      activate_gated(f, x, y);
      const auto scaled = [](const Expected& e, double factor) {
        return Expected{e.value * factor, e.magnitude * std::abs(factor), e.roundings};
      };
      EXPECT_TRUE(
          holds(y, [&](int64_t r, int64_t c) { return scaled(curve(f, x.get(r, c), dtype).value, x.get(r, C + c)); }))
          << static_cast<int>(f) << ", " << what;
      activate_gated_backward(f, x, dy, dx);
      EXPECT_TRUE(holds(dx,
                        [&](int64_t r, int64_t c) {
                          if (c < C) return scaled(curve(f, x.get(r, c), dtype).slope, x.get(r, C + c) * dy.get(r, c));
                          return scaled(curve(f, x.get(r, c - C), dtype).value, dy.get(r, c - C));
                        }))
          << static_cast<int>(f) << " backward, " << what;
      Matrix in_place = x.copy();
      activate_gated_backward(f, in_place, dy, in_place);
      EXPECT_TRUE(in_place.same_bits(dx)) << what;
    }
  });
}

TEST(OpsElements, ActivationGradients) {
  for_each_isa_of_elements([](const std::string&) {
    for (Activation f : kActivations) {
      Random random(5);
      Matrix x(DType::float64, 2, 11), weights(DType::float64, 2, 11), y = Matrix::like(x), dx = Matrix::like(x);
      x.fill_normal(random, 2);
      weights.fill_normal(random);
      activate_backward(f, x, weights, dx);
      expect_gradient("dx", x, dx, [&] {
        activate(f, x, y);
        return product(weights, y);
      });
      Matrix gate_up(DType::float64, 2, 22), dgate_up(DType::float64, 2, 22);
      gate_up.fill_normal(random, 2);
      activate_gated_backward(f, gate_up, weights, dgate_up);
      expect_gradient("dgate_up", gate_up, dgate_up, [&] {
        activate_gated(f, gate_up, y);
        return product(weights, y);
      });
    }
  });
}

/// Where nothing is left to compute, nothing odd comes out.
TEST(OpsElements, ActivationsAtTheEnds) {
  for_each_isa_of_elements([](const std::string& isa) {
    for (DType dtype : kStorage)
      for (Activation f : kActivations) {
        Matrix x(dtype, 1, 8), y(dtype, 1, 8);
        const double large = dtype == DType::float16 ? 6e4 : 1e30;
        const double far[] = {0, 100, -100, large, -large, kInf, kNaN, -0.0};
        x.fill_with([&](int64_t, int64_t c) { return far[c]; });
        activate(f, x, y);
        const std::string what = std::to_string(static_cast<int>(f)) + " of " + std::string(name_of(dtype)) + isa;
        EXPECT_EQ(y.get(0), 0) << what;
        EXPECT_EQ(y.get(7), 0) << what;
        EXPECT_TRUE(std::isnan(y.get(6))) << what;
        for (int c : {1, 3, 5}) EXPECT_EQ(y.get(c), f == Activation::tanh ? 1 : x.get(c)) << what;
        EXPECT_LE(std::abs(y.get(2) - (f == Activation::tanh ? -1 : 0)), element_bound(0, 0x1p-64, 0, dtype)) << what;
        EXPECT_EQ(y.get(4), f == Activation::tanh ? -1 : 0) << what;
      }
  });
}

TEST(OpsElements, AddAndScale) {
  for_each_layout([](DType dtype, int64_t C, int64_t gap, const std::string& what) {
    const Matrix a = samples(dtype, 4, C, gap, 6), b = samples(dtype, 4, C, gap, 7);
    Matrix sum = Matrix::like(a), scaled = Matrix::like(a), into_a = a.copy(), into_b = b.copy();
    add(a, b, sum);
    EXPECT_TRUE(holds(sum, [&](int64_t r, int64_t c) {
      const double value = a.get(r, c) + b.get(r, c);
      return Expected{value, std::abs(value)};
    })) << what;
    add(into_a, b, into_a);
    add(a, into_b, into_b);
    EXPECT_TRUE(into_a.same_bits(sum) && into_b.same_bits(sum)) << what;
    scale(a, -0.75, scaled);
    EXPECT_TRUE(holds(scaled, [&](int64_t r, int64_t c) {
      return Expected{-0.75 * a.get(r, c), std::abs(a.get(r, c))};
    })) << what;
    Matrix in_place = a.copy();
    scale(in_place, -0.75, in_place);
    EXPECT_TRUE(in_place.same_bits(scaled)) << what;
  });
}

TEST(OpsElements, ConvertRoundsToNearestEven) {
  for_each_isa_of_elements([](const std::string& isa) {
    const DType types[] = {DType::float32, DType::float64, DType::bfloat16, DType::float16};
    for (DType from : types)
      for (DType to : types)
        for (int64_t C : widths()) {
          Matrix x = samples(from, 3, C, 2, 8), y(to, 3, C, 1);
          x.set(0, 0, 1 + 0x1p-8);  // a tie in bfloat16
          x.set(1, 0, kInf);
          x.set(2, 0, kNaN);
          convert(x, y);
          for (int64_t r = 0; r < 3; ++r)
            for (int64_t c = 0; c < C; ++c)
              EXPECT_TRUE(distance(y.get(r, c), rounded(x.get(r, c), to)) == 0 || std::isnan(x.get(r, c)))
                  << name_of(from) << " to " << name_of(to) << ": " << x.get(r, c) << ", " << y.get(r, c) << isa;
          EXPECT_TRUE(std::isnan(y.get(2, 0)) && y.gaps_are_untouched());
        }
  });
}

TEST(OpsElements, AddRows) {
  for_each_layout([](DType dtype, int64_t C, int64_t gap, const std::string& what) {
    for (int64_t R : {0, 1, 7, 300}) {
      const Matrix x = samples(dtype, R, C, gap, 9), before = samples(parameter_of(dtype), 1, C, 0, 10);
      Matrix total = before.copy();
      add_rows(x, total.row());
      EXPECT_TRUE(holds(total,
                        [&](int64_t, int64_t c) {
                          Expected e{before.get(c), std::abs(before.get(c)), static_cast<double>(R)};
                          for (int64_t r = 0; r < R; ++r) {
                            e.value += x.get(r, c);
                            e.magnitude += std::abs(x.get(r, c));
                          }
                          return e;
                        }))
          << R << " rows, " << what;
    }
  });
}

TEST(OpsElements, DropoutDrawsByElement) {
  for_each_layout([](DType dtype, int64_t C, int64_t gap, const std::string& what) {
    const uint64_t seed = 0x123456789abcdef0, stream = 0xfedcba9876543210;
    const double probability = 0.3;
    const Matrix x = samples(dtype, 5, C, gap, 11);
    Matrix y = Matrix::like(x), in_place = x.copy();
    dropout(x, probability, seed, stream, y);
    EXPECT_TRUE(holds(y, [&](int64_t r, int64_t c) {
      const uint64_t n = static_cast<uint64_t>(r * C + c);
      const auto words = philox(seed, {static_cast<uint32_t>(n / 4), static_cast<uint32_t>(n / 4 >> 32),
                                       static_cast<uint32_t>(stream), static_cast<uint32_t>(stream >> 32)});
      const bool kept = words[n % 4] >= std::floor(probability * 0x1p32);
      const double value = kept ? x.get(r, c) / (1 - probability) : 0;
      return Expected{value, std::abs(value)};
    })) << what;
    dropout(in_place, probability, seed, stream, in_place);
    EXPECT_TRUE(in_place.same_bits(y)) << what;
  });
}

/// The counter has 64 bits, which no array of a test can reach; rows that are long enough for several blocks.
TEST(OpsElements, DropoutOfFarElements) {
  for_each_isa_of_elements([](const std::string& isa) {
    const int64_t C = 9001, first = (int64_t{1} << 34) - 4500;
    Matrix x(DType::float32, 1, C), y = Matrix::like(x);
    x.fill(1);
    kernels_for(DType::float32)
        .drop({.rows = 1,
               .columns = C,
               .x = rows_at(ConstView<2>(x), {}),
               .y = rows_at(View<2>(y), {}),
               .seed = 7,
               .stream = 0,
               .first = first,
               .index_stride = 0,
               .threshold = uint64_t{1} << 31,
               .factor = 1});
    for (int64_t c = 0; c < C; ++c) {
      const uint64_t n = static_cast<uint64_t>(first + c);
      const auto words = philox(7, {static_cast<uint32_t>(n / 4), static_cast<uint32_t>(n / 4 >> 32), 0, 0});
      ASSERT_EQ(y.get(c), words[n % 4] >= (uint64_t{1} << 31) ? 1 : 0) << c << " on " << isa;
    }
  });
}

TEST(OpsElements, DropoutKeepsItsRate) {
  Matrix x(DType::float32, 100, 1000), y = Matrix::like(x);
  x.fill(1);
  for (double probability : {0.0, 0.1, 0.9}) {
    dropout(x, probability, 1, 2, y);
    int64_t dropped = 0;
    for (int64_t r = 0; r < 100; ++r)
      for (int64_t c = 0; c < 1000; ++c) dropped += y.get(r, c) == 0;
    EXPECT_LE(std::abs(static_cast<double>(dropped) / 1e5 - probability), rate_bound(probability, 100000));
  }
}

TEST(OpsElements, ThreadsDoNotMatter) {
  expect_same_on_all_threads([] {
    std::vector<Matrix> results;
    for (DType dtype : kStorage)
      for (int64_t gap : {0, 5}) {
        const Matrix x = samples(dtype, 150, 301, gap, 12);
        Matrix y = Matrix::like(x), sum = Matrix::like(x), dropped = Matrix::like(x);
        Matrix total = samples(parameter_of(dtype), 1, 301, 0, 13);
        activate(Activation::gelu, x, y);
        add(x, y, sum);
        add_rows(x, total.row());
        dropout(x, 0.5, 1, 2, dropped);
        for (const Matrix& m : {y, sum, total, dropped}) results.push_back(m);
      }
    return results;
  });
}

/// How an array is in memory changes no bit.
TEST(OpsElements, GapsDoNotMatter) {
  for_each_isa_of_elements([](const std::string& isa) {
    for (DType dtype : kStorage) {
      const Matrix dense = samples(dtype, 60, 301, 0, 14), apart = samples(dtype, 60, 301, 7, 14);
      Matrix a = Matrix::like(dense), b = Matrix::like(apart);
      for (Activation f : kActivations) {
        activate(f, dense, a);
        activate(f, apart, b);
        dropout(a, 0.5, 3, 4, a);
        dropout(b, 0.5, 3, 4, b);
        for (int64_t r = 0; r < 60; ++r)
          for (int64_t c = 0; c < 301; ++c) ASSERT_EQ(a.get(r, c), b.get(r, c)) << isa;
      }
    }
  });
}

TEST(OpsElements, ErrorsListEveryReason) {
  Matrix x(DType::float32, 3, 4), y(DType::float32, 3, 5), other(DType::float64, 3, 4);
  const std::string mismatch = error_of([&] { add(x, other, y); });
  EXPECT_TRUE(contains(mismatch, "[add] b is float64 [3, 4], must be float32 [3, 4]")) << mismatch;
  EXPECT_TRUE(contains(mismatch, "y is float32 [3, 5], must be float32 [3, 4]")) << mismatch;

  const View<2> whole(nullptr, DType::int32, {3, 4});
  EXPECT_TRUE(contains(error_of([&] { scale(whole, 2, whole); }), "x is int32, must be float32"));
  EXPECT_TRUE(contains(error_of([&] { dropout(x, 1, 0, 0, x); }), "probability is 1.0"));
  EXPECT_TRUE(contains(error_of([&] { dropout(x, kNaN, 0, 0, x); }), "probability is"));
  EXPECT_TRUE(contains(error_of([&] { add_rows(x, y.row()); }), "total is float32 [5], must be float32 [4]"));
  EXPECT_TRUE(contains(error_of([&] { activate(static_cast<Activation>(9), x, x); }), "unknown activation 9"));
  EXPECT_TRUE(contains(error_of([&] { activate_gated(Activation::silu, x, y); }),
                       "gate_up is float32 [3, 4], must be float32 [3, 10]"));
  Matrix integers(DType::int32, 3, 4);
  EXPECT_TRUE(contains(error_of([&] { convert(x, integers); }), "y is int32, must be a floating type"));

  View<2> crowded = x, wide = x, absent = x, negative = x;
  crowded.stride[0] = 3;
  wide.stride[1] = 2;
  absent.data = nullptr;
  negative.size[0] = -1;
  EXPECT_TRUE(contains(error_of([&] { scale(other, 2, crowded); }), "its rows of 4 overlap") ||
              contains(error_of([&] { scale(x, 2, crowded); }), "its rows of 4 overlap"));
  EXPECT_TRUE(contains(error_of([&] { scale(wide, 2, x); }), "x has last stride 2, must be 1"));
  EXPECT_TRUE(contains(error_of([&] { scale(absent, 2, x); }), "x has no data"));
  EXPECT_TRUE(contains(error_of([&] { scale(negative, 2, x); }), "x has the negative size [-1, 4]"));
}

TEST(OpsElements, OverlapIsRefusedUnlessItIsTheSame) {
  Matrix both(DType::float32, 6, 8);
  both.fill(1);
  const View<2> left = both.columns(0, 4), right = both.columns(4, 4), middle = both.columns(2, 4);
  EXPECT_EQ(error_of([&] { scale(left, 2, right); }), "");
  EXPECT_EQ(error_of([&] { scale(right, 2, left); }), "");
  EXPECT_EQ(error_of([&] { scale(left, 2, left); }), "");
  EXPECT_TRUE(contains(error_of([&] { scale(left, 2, middle); }), "y overlaps x without being the same"));
  EXPECT_TRUE(contains(error_of([&] { scale(middle, 2, left); }), "y overlaps x without being the same"));
  View<2> other_stride = left;
  other_stride.stride[0] = 5;
  EXPECT_TRUE(contains(error_of([&] { scale(left, 2, other_stride); }), "y overlaps x"));
  EXPECT_TRUE(contains(error_of([&] { activate_gated(Activation::silu, both, left); }), "y overlaps gate_up"));
}

TEST(OpsElements, NothingIsDoneToNothing) {
  for (Shape<2> size : {Shape<2>{0, 4}, Shape<2>{4, 0}, Shape<2>{0, 0}}) {
    const View<2> empty(nullptr, DType::float32, size);
    EXPECT_EQ(error_of([&] {
                activate(Activation::gelu, empty, empty);
                activate_backward(Activation::gelu, empty, empty, empty);
                add(empty, empty, empty);
                scale(empty, 2, empty);
                convert(empty, empty);
                dropout(empty, 0.5, 1, 2, empty);
              }),
              "");
  }
}

}  // namespace
}  // namespace attn::test
