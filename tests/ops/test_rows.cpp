// ops: rotary positions, embedding, pooling: what moves rows about.
#include <numeric>

#include "support/ops.h"

namespace attn::test {
namespace {

using namespace attn::ops;

// ------------------------------------------------------------------------------------------------------------- rotary

/// Where feature d of a head finds its partner, the angle of the pair, and which of the two it is.
struct Turn {
  int64_t partner;
  double cosine, sine;  // y = x cosine + x[partner] sine
};

Turn turn_of(int64_t d, int64_t n, double position, const RopeOptions& o) {
  if (d >= n) return {d, 1, 0};
  const int64_t pair = o.interleaved ? d / 2 : d % (n / 2);
  const bool first = o.interleaved ? d % 2 == 0 : d < n / 2;
  const int64_t step = o.interleaved ? 1 : n / 2;
  const double angle = position * std::pow(o.theta, -2.0 * static_cast<double>(pair) / static_cast<double>(n));
  const double sine = o.inverse ? -std::sin(angle) : std::sin(angle);
  return {first ? d + step : d - step, std::cos(angle), first ? -sine : sine};
}

const std::vector<int64_t> kPositions = {0, 1, 2, 5, 1000, 123456, -7};

TEST(OpsRows, RopeTurnsPairs) {
  for_each_isa_of_elements([](const std::string& isa) {
    for (DType dtype : kStorage)
      for (int64_t D : {2, 6, 8, 16, 32, 34, 64, 66})
        for (bool interleaved : {false, true})
          for (int64_t n : {int64_t{0}, D / 4 * 2})
            for (bool inverse : {false, true}) {
              const RopeOptions o{.theta = 500, .interleaved = interleaved, .inverse = inverse, .rotary_dim = n};
              const int64_t heads = 3, rotary_dim = n == 0 ? D : n;
              Random random(1);
              Matrix x(dtype, 7, heads * D, 5), y = Matrix::like(x);
              x.fill_normal(random);
              rope(x, heads, kPositions, y, o);
              EXPECT_TRUE(holds(y,
                                [&](int64_t r, int64_t c) {
                                  const Turn t = turn_of(c % D, rotary_dim, static_cast<double>(kPositions[r]), o);
                                  const double a = x.get(r, c), b = x.get(r, c / D * D + t.partner);
                                  return Expected{a * t.cosine + b * t.sine, std::abs(a) + std::abs(b)};
                                }))
                  << D << " wide, " << n << " turned, " << name_of(dtype) << " on " << isa;
              Matrix in_place = x.copy();
              rope(in_place, heads, kPositions, in_place, o);
              EXPECT_TRUE(in_place.same_bits(y));
            }
  });
}

/// A rotation keeps lengths: the inverse is the backward.
TEST(OpsRows, RopeGradientIsTheInverse) {
  for (bool interleaved : {false, true}) {
    Random random(2);
    Matrix x(DType::float64, 2, 12), weights = Matrix::like(x), y = Matrix::like(x), dx = Matrix::like(x);
    x.fill_normal(random);
    weights.fill_normal(random);
    const std::vector<int64_t> positions = {3, 11};
    rope(weights, 2, positions, dx, {.interleaved = interleaved, .inverse = true, .rotary_dim = 4});
    expect_gradient("dx", x, dx, [&] {
      rope(x, 2, positions, y, {.interleaved = interleaved, .rotary_dim = 4});
      return product(weights, y);
    });
  }
}

// ---------------------------------------------------------------------------------------------------------- embedding

std::vector<int64_t> random_ids(int64_t count, int64_t bound, uint64_t seed) {
  Random random(seed);
  std::vector<int64_t> ids(count);
  for (int64_t& id : ids) id = random.below(bound);
  return ids;
}

TEST(OpsRows, Embedding) {
  for_each_layout([](DType dtype, int64_t C, int64_t gap, const std::string& what) {
    const int64_t V = 9, R = 20;
    Random random(3);
    Matrix table(dtype, V, C, gap), out(dtype, R, C, 2), dout(dtype, R, C, gap), dtable(parameter_of(dtype), V, C, 1);
    table.fill_normal(random);
    dout.fill_normal(random);
    dtable.fill_normal(random);
    const Matrix before = dtable.copy();
    const std::vector<int64_t> ids = random_ids(R, V, 4);
    embedding(ids, table, out);
    EXPECT_TRUE(holds(out, [&](int64_t r, int64_t c) { return Expected{table.get(ids[r], c), 0}; })) << what;
    embedding_backward(ids, dout, dtable);
    EXPECT_TRUE(holds(dtable, [&](int64_t v, int64_t c) {
      Expected e{before.get(v, c), std::abs(before.get(v, c)), static_cast<double>(R)};
      for (int64_t r = 0; r < R; ++r) {
        if (ids[r] != v) continue;
        e.value += dout.get(r, c);
        e.magnitude += std::abs(dout.get(r, c));
      }
      return e;
    })) << what;
  });
}

/// Gradients of one id are added in order of the rows, on any thread: a one that comes between two large numbers is
/// lost, one that comes after they have cancelled is not. Enough elements for three tasks.
TEST(OpsRows, EmbeddingGradientsComeInOrder) {
  for_each_isa_of_elements([](const std::string& isa) {
    const int64_t C = 8192;
    Matrix dout(DType::float32, 6, C), dtable(DType::float32, 5, C);
    dout.fill_with([](int64_t r, int64_t) { return r % 3 == 0 ? 0x1p30 : r % 3 == 1 ? -0x1p30 : 1; });
    dtable.fill(0);
    const std::vector<int64_t> ids(6, 4);
    embedding_backward(ids, dout, dtable);
    for (int64_t c = 0; c < C; ++c) {
      ASSERT_EQ(dtable.get(4, c), 1) << isa;
      ASSERT_EQ(dtable.get(3, c), 0) << isa;
    }
  });
}

// ------------------------------------------------------------------------------------------------------------ pooling

TEST(OpsRows, MeanPool) {
  for_each_layout([](DType dtype, int64_t C, int64_t gap, const std::string& what) {
    const std::vector<int64_t> lengths = {1, 5, 3};
    Random random(5);
    Matrix x(dtype, 15, C, gap), out(dtype, 3, C, 2), dout(dtype, 3, C, gap), dx(dtype, 15, C, 1);
    x.fill_normal(random);
    for (int64_t r = 1; r < 5; ++r) x.set(r, 0, kNaN);  // beyond the first length: never read
    dout.fill_normal(random);
    mean_pool(x, lengths, out);
    EXPECT_TRUE(holds(out, [&](int64_t b, int64_t c) {
      const double length = static_cast<double>(lengths[b]);
      Expected e{0, 0, length};
      for (int64_t l = 0; l < lengths[b]; ++l) {
        e.value += x.get(5 * b + l, c) / length;
        e.magnitude += std::abs(x.get(5 * b + l, c)) / length;
      }
      return e;
    })) << what;
    mean_pool_backward(dout, lengths, dx);
    EXPECT_TRUE(holds(dx, [&](int64_t r, int64_t c) {
      const double length = static_cast<double>(lengths[r / 5]);
      const double value = r % 5 < lengths[r / 5] ? dout.get(r / 5, c) / length : 0;
      return Expected{value, std::abs(value)};
    })) << what;
  });
}

TEST(OpsRows, MeanPoolGradient) {
  Random random(6);
  Matrix x(DType::float64, 8, 5), out(DType::float64, 2, 5), weights = Matrix::like(out), dx = Matrix::like(x);
  x.fill_normal(random);
  weights.fill_normal(random);
  const std::vector<int64_t> lengths = {3, 4};
  mean_pool_backward(weights, lengths, dx);
  expect_gradient("dx", x, dx, [&] {
    mean_pool(x, lengths, out);
    return product(weights, out);
  });
}

// -------------------------------------------------------------------------------------------------------------- gates

/// Two sequences of three rows, three heads; gates of each sequence, and gates of both.
TEST(OpsRows, ScaleHeads) {
  for_each_layout([](DType dtype, int64_t D, int64_t gap, const std::string& what) {
    Random random(8);
    for (const int64_t G : {2, 1}) {
      Matrix x(dtype, 6, 3 * D, gap), y(dtype, 6, 3 * D, 1), dy(dtype, 6, 3 * D, gap);
      Matrix gates(parameter_of(dtype), G, 3, gap), dgates(parameter_of(dtype), G, 3, 2);
      x.fill_normal(random);
      dy.fill_normal(random);
      gates.fill_normal(random);
      const auto sequence = [&](int64_t r) { return G == 1 ? 0 : r / 3; };
      scale_heads(x, gates, y);
      EXPECT_TRUE(holds(y, [&](int64_t r, int64_t c) {
        const double value = x.get(r, c) * gates.get(sequence(r), c / D);
        return Expected{value, std::abs(value)};
      })) << what;
      dgates.fill(1);
      scale_heads_backward(x, dy, dgates);
      EXPECT_TRUE(holds(dgates, [&](int64_t g, int64_t h) {
        Expected e{1, 1, static_cast<double>(6 / G * D)};  // added to what was there
        for (int64_t r = 0; r < 6; ++r)
          for (int64_t c = h * D; sequence(r) == g && c < (h + 1) * D; ++c) {
            e.value += x.get(r, c) * dy.get(r, c);
            e.magnitude += std::abs(x.get(r, c) * dy.get(r, c));
          }
        return e;
      })) << what;
    }
  });
}

TEST(OpsRows, GatesThatDoNotFit) {
  Matrix x(DType::float32, 6, 12), y = Matrix::like(x), three(DType::float32, 4, 3), five(DType::float32, 1, 5),
                                   wide(DType::float64, 1, 3), none(DType::float32, 0, 3);
  for (auto* gates : {&three, &five, &none})
    EXPECT_TRUE(contains(error_of([&] { scale_heads(x, *gates, y); }), "must divide the rows and columns of x"));
  EXPECT_TRUE(contains(error_of([&] { scale_heads(x, wide, y); }), "gates is float64 [1, 3], must be float32"));
  EXPECT_TRUE(contains(error_of([&] { scale_heads_backward(x, three, five); }),
                       "[scale_heads_backward] dy is float32 [4, 3], must be float32 [6, 12]"));
}

// -------------------------------------------------------------------------------------------------------------- others

TEST(OpsRows, ThreadsDoNotMatter) {
  expect_same_on_all_threads([] {
    std::vector<Matrix> results;
    for (DType dtype : kStorage) {
      const int64_t R = 300, C = 192, V = 11;
      Random random(7);
      Matrix x(dtype, R, C, 1), y = Matrix::like(x), table(dtype, V, C), out(dtype, R, C);
      Matrix dtable(parameter_of(dtype), V, C), pooled(dtype, 20, C), dx(dtype, R, C);
      x.fill_normal(random);
      table.fill_normal(random);
      dtable.fill(0);
      std::vector<int64_t> positions(R), lengths(20, 15);
      std::iota(positions.begin(), positions.end(), 0);
      const std::vector<int64_t> ids = random_ids(R, V, 8);
      rope(x, 3, positions, y);
      embedding(ids, table, out);
      embedding_backward(ids, x, dtable);
      mean_pool(x, lengths, pooled);
      mean_pool_backward(pooled, lengths, dx);
      Matrix gates(parameter_of(dtype), 20, 6), gated(dtype, R, C), dgates = Matrix::like(gates);
      gates.fill_normal(random);
      dgates.fill(0);
      scale_heads(x, gates, gated);
      scale_heads_backward(x, out, dgates);
      for (const Matrix& m : {y, out, dtable, pooled, dx, gated, dgates}) results.push_back(m);
    }
    return results;
  });
}

TEST(OpsRows, ErrorsListEveryReason) {
  Matrix x(DType::float32, 4, 12), out(DType::float32, 2, 12);
  const std::vector<int64_t> two = {0, 3}, four = {0, 1, 2, 3};
  const std::string turn = error_of([&] { rope(x, 5, two, out, {.theta = -1}); });
  EXPECT_TRUE(contains(turn, "[rope] x has 12 columns, must be a multiple of 5 heads")) << turn;
  EXPECT_TRUE(contains(turn, "theta is -1")) << turn;
  EXPECT_TRUE(contains(turn, "there are 2 positions for 4 rows")) << turn;
  EXPECT_TRUE(contains(turn, "y is float32 [2, 12], must be float32 [4, 12]")) << turn;
  for (int64_t n : {3, 8, -2})
    EXPECT_TRUE(contains(error_of([&] { rope(x, 2, four, x, {.rotary_dim = n}); }),
                         "the rotated width is " + std::to_string(n) + ", must be even and at most 6"));
  EXPECT_TRUE(contains(error_of([&] { rope(x, 4, four, x); }), "the rotated width is 3"));
  EXPECT_TRUE(contains(error_of([&] { rope(x, 0, four, x); }), "must be a multiple of 0 heads"));

  Matrix table(DType::float32, 3, 12);
  EXPECT_TRUE(contains(error_of([&] { embedding(two, table, out); }), "ids[1] is 3, must be in [0, 3)"));
  EXPECT_TRUE(contains(error_of([&] { embedding(four, x, out); }), "there are 4 ids for 2 rows"));
  const std::vector<int64_t> below = {-1, 0};
  EXPECT_TRUE(contains(error_of([&] { embedding_backward(below, out, table); }), "ids[0] is -1"));
  EXPECT_TRUE(contains(error_of([&] { mean_pool(x, two, out); }), "lengths[0] is 0, must be from 1 to 2"));
  EXPECT_TRUE(contains(error_of([&] { mean_pool(x, four, out); }), "there are 4 lengths for 2 sequences"));
  EXPECT_TRUE(contains(error_of([&] { mean_pool_backward(out, two, table); }),
                       "x has 3 rows, must be a multiple of 2 sequences"));
}

}  // namespace
}  // namespace attn::test
