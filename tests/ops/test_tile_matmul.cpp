// ops: products of float32 on matrix tiles, on every instruction set that has them: the hardware's and their twin.
#include "ops/tile_matmul.h"
#include "support/ops.h"

namespace attn::test {
namespace {

using namespace attn::ops;

void for_each_tile_isa(const std::function<void()>& body) {
  for_each_isa([&](const std::string&) {
    if (pays_on_tiles(1024, 1024, 1024)) body();
  });
}

Operand factor(int64_t rows, int64_t columns, bool transposed, uint64_t seed, DType dtype = DType::float32) {
  return {dtype, rows, columns, transposed, seed};
}

ConstView<2> rows_of(const Operand& x, int64_t first, int64_t count) {
  return {static_cast<const float*>(x.view.data) + first * x.view.stride[0],
          x.view.dtype,
          {count, x.view.size[1]},
          x.view.stride};
}

/// float32 numbers in order, for long sums: rows of a, or columns of b.
std::vector<float> lines_of(const Operand& x, int line_axis) {
  std::vector<float> all;
  for (int64_t n = 0; n < x.view.size[line_axis]; ++n)
    for (int64_t k = 0; k < x.view.size[1 - line_axis]; ++k)
      all.push_back(static_cast<float>(line_axis == 0 ? x.get(n, k) : x.get(k, n)));
  return all;
}

struct Case {
  int64_t M, N, K;
  bool a_transposed = false, b_transposed = false, with_bias = false, accumulate = false;
  Float32Precision precision = Float32Precision::full;
  DType in = DType::float32, out = DType::float32;
};

void expect_product(const Case& t) {
  const Operand a = factor(t.M, t.K, t.a_transposed, 1, t.in), b = factor(t.K, t.N, t.b_transposed, 2, t.in);
  const std::vector<float> rows = lines_of(a, 0), columns = lines_of(b, 1);
  Random random(3);
  Matrix bias(DType::float32, 1, t.N), c(t.out, t.M, t.N, 2);
  bias.fill_normal(random);
  if (t.accumulate) c.fill_normal(random);
  const Matrix before = c.copy();
  MatmulOptions options{.accumulate = t.accumulate, .precision = t.precision};
  if (t.with_bias) options.bias = bias.row();
  multiply_on_tiles(a.view, b.view, c, options);
  EXPECT_TRUE(holds(c,
                    [&](int64_t i, int64_t j) {
                      Expected e{0, 0, static_cast<double>(t.K)};
                      const auto add_term = [&e](double term) {
                        e.value += term;
                        e.magnitude += std::abs(term);
                      };
                      for (int64_t k = 0; k < t.K; ++k) add_term(double{rows[i * t.K + k]} * columns[j * t.K + k]);
                      e.roundings += lost_by(t.precision) / kUnit32;
                      if (t.with_bias) add_term(bias.get(j));
                      if (t.accumulate) add_term(before.get(i, j));
                      return e;
                    }))
      << "M " << t.M << ", N " << t.N << ", K " << t.K << ", transposed " << t.a_transposed << t.b_transposed
      << ", bias " << t.with_bias << ", accumulate " << t.accumulate << ", precision " << int(t.precision) << ", "
      << name_of(t.in) << " to " << name_of(t.out);
}

Case case_of(const Shape<3>& size, int choice) {
  return {size[0], size[1], size[2], (choice & 1) != 0, (choice & 2) != 0, (choice & 4) != 0, (choice & 8) != 0};
}

/// Around tiles and panels, all ways to store the factors and to add.
TEST(OpsTileMatmul, IsTheSumOfProducts) {
  for_each_tile_isa([] {
    for (int choice = 0; choice < 16; ++choice)
      for (Shape<3> size :
           {Shape<3>{1, 1, 1}, Shape<3>{2, 70, 5}, Shape<3>{16, 15, 16}, Shape<3>{17, 33, 31}, Shape<3>{31, 32, 32},
            Shape<3>{33, 31, 33}, Shape<3>{64, 64, 64}, Shape<3>{65, 49, 95}, Shape<3>{70, 1, 97}})
        expect_product(case_of(size, choice));
  });
}

void expect_addend_and_activations(const Operand& a, const Operand& b, DType out) {
  const int64_t M = a.view.size[0], N = b.view.size[1];
  const std::string name = std::string(name_of(a.view.dtype)) + ' ' + to_string(Shape<3>{M, N, a.view.size[1]});
  Random random(5);
  Matrix addend(out, M, N, 2), bias(DType::float32, 1, N), sum = Matrix::like(addend);
  addend.fill_normal(random);
  bias.fill_normal(random);
  multiply_on_tiles(a.view, b.view, sum, {.bias = bias.row(), .addend = addend});
  Matrix added = addend.copy();
  multiply_on_tiles(a.view, b.view, added, {.bias = bias.row(), .accumulate = true});
  EXPECT_TRUE(sum.same_bits(added)) << name;
  for (const Activation f :
       {Activation::relu, Activation::gelu, Activation::gelu_tanh, Activation::silu, Activation::tanh}) {
    Matrix activated = Matrix::like(added), expected = Matrix::like(added);
    activate(f, added, expected);
    multiply_on_tiles(a.view, b.view, activated, {.bias = bias.row(), .addend = addend, .activation = f});
    EXPECT_TRUE(activated.same_bits(expected)) << name;
  }
}

/// Of products in several parts, f is applied to the whole sum, and the addend counts once. Whole blocks of bfloat16
/// are activated row by row beside the products, with at most 512 terms and with more; others by a pass of their own.
TEST(OpsTileMatmul, AddendsAndActivations) {
  for (const DType in : {DType::float32, DType::bfloat16, DType::float16})
    for (const Shape<3>& size : {Shape<3>{33, 31, 33}, Shape<3>{35, 70, 2049}, Shape<3>{2050, 3, 1030},
                                 Shape<3>{70, 100, 96}, Shape<3>{70, 100, 600}}) {
      const Operand a = factor(size[0], size[2], false, 1, in), b = factor(size[2], size[1], true, 2, in);
      for_each_tile_isa([&] {
        for (const DType out : {in, DType::float32}) expect_addend_and_activations(a, b, out);
      });
    }
}

/// Sums of several parts are not rounded to 16 bits on the way.
TEST(OpsTileMatmul, SixteenBits) {
  for_each_tile_isa([] {
    for (const DType in : {DType::bfloat16, DType::float16})
      for (const DType out : {in, DType::float32})
        for (int choice = 0; choice < 16; ++choice)
          for (Shape<3> size : {Shape<3>{1, 1, 1}, Shape<3>{17, 33, 31}, Shape<3>{65, 49, 95}, Shape<3>{35, 70, 2049},
                                Shape<3>{2050, 3, 1030}}) {
            if (size[2] > 1000 && choice % 5 != 0) continue;
            Case t = case_of(size, choice);
            t.in = in;
            t.out = out;
            expect_product(t);
          }
  });
}

/// Rows of 40 terms in rows of 96 numbers: a tile has 64 bytes of a row, but the numbers after the terms do not count.
TEST(OpsTileMatmul, WhatIsBesideRowsOfBfloat16DoesNotCount) {
  for_each_tile_isa([] {
    Matrix wide(DType::bfloat16, 64, 96);
    Random random(7);
    wide.fill_normal(random);
    Matrix narrow(DType::bfloat16, 64, 40);
    convert(wide.columns(0, 40), narrow);
    for (int64_t r = 0; r < 64; ++r)
      for (int64_t column = 40; column < 96; ++column) wide.set(r, column, kNaN);
    const Operand b = factor(40, 34, true, 2, DType::bfloat16);
    Matrix among(DType::bfloat16, 64, 34), alone = among.copy();
    multiply_on_tiles(wide.columns(0, 40), b.view, among, {});
    multiply_on_tiles(narrow, b.view, alone, {});
    EXPECT_TRUE(among.same_bits(alone));
  });
}

/// Dense rows of bfloat16 are multiplied where they are, rows that are a multiple of 2 KiB apart are packed. Sums have
/// one part, or two.
TEST(OpsTileMatmul, RowsOfBfloat16InPlaceHaveTheBitsOfPackedOnes) {
  for_each_tile_isa([] {
    for (const Shape<3>& size : {Shape<3>{32, 33, 32}, Shape<3>{70, 40, 96}, Shape<3>{67, 70, 1024},
                                 Shape<3>{35, 70, 1056}, Shape<3>{40, 34, 1568}}) {
      Random random(7);
      Matrix wide(DType::bfloat16, size[0], 2048), narrow(DType::bfloat16, size[0], size[2]);
      wide.fill_normal(random);
      const ConstView<2> apart = wide.columns(0, size[2]);
      convert(apart, narrow);
      const Operand b = factor(size[2], size[1], true, 2, DType::bfloat16);
      for (const DType out : {DType::bfloat16, DType::float32}) {
        Matrix packed(out, size[0], size[1]), in_place = packed.copy();
        multiply_on_tiles(apart, b.view, packed, {});
        multiply_on_tiles(narrow, b.view, in_place, {});
        EXPECT_TRUE(packed.same_bits(in_place)) << to_string(size) << ' ' << name_of(out);
        EXPECT_TRUE(holds(in_place,
                          [&](int64_t i, int64_t j) {
                            Expected e{0, 0, static_cast<double>(size[2])};
                            for (int64_t k = 0; k < size[2]; ++k) {
                              e.value += narrow.get(i, k) * b.get(k, j);
                              e.magnitude += std::abs(narrow.get(i, k) * b.get(k, j));
                            }
                            return e;
                          }))
            << to_string(size) << ' ' << name_of(out);
      }
    }
  });
}

TEST(OpsTileMatmul, EverySizeUpToTwoPanels) {
  for_each_tile_isa([] {
    const int64_t step = by_effort(9, 3, 1);
    for (int64_t n = 1; n <= 70; n += step)
      for (Shape<3> size : {Shape<3>{n, 71 - n, 33}, Shape<3>{n, 32, 71 - n}, Shape<3>{33, n, n}})
        expect_product(case_of(size, static_cast<int>(n % 16)));
  });
}

/// Parts of the sum, with a rest: their edges are elsewhere with every length.
TEST(OpsTileMatmul, SumsOfSeveralParts) {
  for_each_tile_isa([] {
    for (int64_t K : {1023, 1024, 1025, 1056, 2048, 2049, 3111})
      for (int64_t choice = K % 3; choice < 16; choice += by_effort(7, 3, 1))
        expect_product(case_of({35, 21, K}, static_cast<int>(choice)));
  });
}

/// Several blocks of far panels, of which there are more than of near ones, and the other way round.
TEST(OpsTileMatmul, ManyBlocks) {
  for_each_tile_isa([] {
    for (int choice : {0, 7, 9, 14})
      for (Shape<3> size : {Shape<3>{530, 70, 40}, Shape<3>{70, 530, 40}}) expect_product(case_of(size, choice));
  });
}

/// The stride of an axis of one element may be anything.
TEST(OpsTileMatmul, StridesOfOneElement) {
  for_each_tile_isa([] {
    for (int64_t stride : {0, 1, 2, 90}) {
      Random random(4);
      Matrix a(DType::float32, 40, 5), b(DType::float32, 1, 37), c(DType::float32, 40, 37),
          square(DType::float32, 1, 1);
      ConstView<2> column = a.fill_normal(random).columns(3, 1), row = b.fill_normal(random);
      column.stride[1] = row.stride[0] = stride;
      multiply_on_tiles(column, row, c, {});
      EXPECT_TRUE(holds(c, [&](int64_t i, int64_t j) {
        const double product = a.get(i, 3) * b.get(j);
        return Expected{product, std::abs(product)};
      })) << stride;
      const ConstView<2> lying(column.data, column.dtype, {1, 40}, {stride, column.stride[0]});
      multiply_on_tiles(lying, column, square, {});
      Expected sum{0, 0, 40};
      for (int64_t i = 0; i < 40; ++i) sum.value += a.get(i, 3) * a.get(i, 3);
      sum.magnitude = sum.value;
      EXPECT_TRUE(holds(square, [&](int64_t, int64_t) { return sum; })) << stride;
    }
  });
}

/// Of more near lines than are packed at a time, rows of a or columns of b: some rows by themselves.
TEST(OpsTileMatmul, ManyNearLines) {
  for_each_tile_isa([] {
    const MatmulOptions fast{.precision = Float32Precision::fast};
    for (const auto& [M, N] : {Shape<2>{4100, 4110}, Shape<2>{4110, 4100}}) {
      const Operand a = factor(M, 5, false, 1), b = factor(5, N, false, 2);
      Matrix all(DType::float32, M, N), some(DType::float32, 8, N);
      multiply_on_tiles(a.view, b.view, all, fast);
      for (int64_t first : {int64_t{0}, int64_t{4092}}) {
        multiply_on_tiles(rows_of(a, first, 8), b.view, some, fast);
        for (int64_t r = 0; r < 8; ++r)
          for (int64_t j = 0; j < N; ++j) ASSERT_EQ(all.get(first + r, j), some.get(r, j)) << first + r << ' ' << j;
      }
    }
  });
}

// ----------------------------------------------------------------------------------------------------- whose bits

TEST(OpsTileMatmul, AnyNumberOfThreadsGivesTheSameBits) {
  for_each_tile_isa([] {
    for (Shape<3> size : {Shape<3>{290, 70, 70}, Shape<3>{40, 260, 1100}})
      for (bool accumulate : {false, true}) {
        const Operand a = factor(size[0], size[2], true, 7), b = factor(size[2], size[1], true, 8);
        Matrix before(DType::float32, size[0], size[1]);
        Random random(9);
        before.fill_normal(random);
        Matrix one = before.copy();
        set_thread_count(1);
        multiply_on_tiles(a.view, b.view, one, {.accumulate = accumulate});
        for (int threads : {2, 3, 7}) {
          Matrix many = before.copy();
          set_thread_count(threads);
          multiply_on_tiles(a.view, b.view, many, {.accumulate = accumulate});
          EXPECT_TRUE(one.same_bits(many)) << to_string(size) << ", threads " << threads;
        }
        set_thread_count(0);
      }
  });
}

/// Whether its factor is near or far, stored this way or that, among others or not.
TEST(OpsTileMatmul, ElementsDoNotDependOnTheirNeighbours) {
  for_each_tile_isa([] {
    const int64_t M = 100, N = 70, K = 1100;
    const Operand a = factor(M, K, false, 5), b = factor(K, N, false, 6);
    Operand turned = factor(K, N, true, 6);
    for (int64_t k = 0; k < K; ++k)
      for (int64_t j = 0; j < N; ++j) turned.stored.set(j, k, b.get(k, j));
    for (Float32Precision precision : {Float32Precision::full, Float32Precision::high, Float32Precision::fast}) {
      Matrix all(DType::float32, M, N), same(DType::float32, M, N), alone(DType::float32, 1, N);
      multiply_on_tiles(a.view, b.view, all, {.precision = precision});
      multiply_on_tiles(a.view, turned.view, same, {.precision = precision});
      EXPECT_TRUE(all.same_bits(same));
      for (int64_t i : {0, 31, 99}) {
        multiply_on_tiles(rows_of(a, i, 1), b.view, alone, {.precision = precision});
        for (int64_t j = 0; j < N; ++j) EXPECT_EQ(all.get(i, j), alone.get(j)) << i << ' ' << j;
      }
    }
  });
}

/// The hardware gives the bits of its twin, where there is hardware.
TEST(OpsTileMatmul, TheHardwareGivesTheBitsOfItsTwin) {
  const Operand a = factor(70, 1100, false, 1), b = factor(1100, 50, false, 2);
  for (Float32Precision precision : {Float32Precision::full, Float32Precision::high, Float32Precision::fast}) {
    std::vector<Matrix> results;
    for_each_tile_isa([&] {
      multiply_on_tiles(a.view, b.view, results.emplace_back(DType::float32, 70, 50), {.precision = precision});
      EXPECT_TRUE(results.back().same_bits(results.front())) << active_isa();
    });
  }
}

// ------------------------------------------------------------------------------------------------------------ range

/// A sum of at most 1024 terms in float32, term by term.
float plain_sum(const Operand& a, const Operand& b, int64_t i, int64_t j) {
  float sum = 0;
  for (int64_t k = 0; k < a.view.size[1]; ++k)
    sum = std::fma(static_cast<float>(a.get(i, k)), static_cast<float>(b.get(k, j)), sum);
  return sum;
}

bool same(double x, double y) { return x == y || (std::isnan(x) && std::isnan(y)); }

/// One number of a row of a, or a column of b, replaced: that row is multiplied in float32, and nothing else changes.
void expect_only_its_own(double poison, bool in_a, bool transposed, bool accumulate, Float32Precision precision) {
  const int64_t M = 70, N = 50, K = 45, line = 37, term = 33;
  Operand a = factor(M, K, transposed, 1), b = factor(K, N, !transposed, 2);  // lines are stored as rows, or not
  Random random(3);
  Matrix before(DType::float32, M, N);
  before.fill_normal(random);
  Matrix clean = before.copy(), poisoned = before.copy();
  const MatmulOptions options{.accumulate = accumulate, .precision = precision};
  multiply_on_tiles(a.view, b.view, clean, options);
  (in_a ? a : b).stored.set(transposed ? term : line, transposed ? line : term, poison);
  multiply_on_tiles(a.view, b.view, poisoned, options);
  for (int64_t i = 0; i < M; ++i)
    for (int64_t j = 0; j < N; ++j) {
      double expected = clean.get(i, j);
      if ((in_a ? i : j) == line)
        expected = accumulate ? static_cast<float>(before.get(i, j)) + plain_sum(a, b, i, j) : plain_sum(a, b, i, j);
      ASSERT_TRUE(same(poisoned.get(i, j), expected))
          << i << ' ' << j << " is " << poisoned.get(i, j) << ", not " << expected << "; poison " << poison << ", in a "
          << in_a << ", transposed " << transposed << ", accumulate " << accumulate;
    }
}

TEST(OpsTileMatmul, WhatTilesCannotHoldStaysInItsOwnRowAndColumn) {
  for_each_tile_isa([] {
    for (double poison : {kInf, -kInf, kNaN, 0x1p127, -0x1.fffffep127, 0x1p60})
      for (int choice = 0; choice < 8; ++choice)
        expect_only_its_own(poison, choice & 1, choice & 2, choice & 4,
                            choice < 4 ? Float32Precision::full : Float32Precision::fast);
  });
}

/// x times 2^power.
void scale(Matrix& x, int power) {
  x.fill_with([&](int64_t r, int64_t c) { return std::ldexp(x.get(r, c), power); });
}

/// A row of any magnitude, times columns that make ordinary numbers of it if they can: float32 to the bit where either
/// is irregular, and as accurate elsewhere.
TEST(OpsTileMatmul, FactorsOfAnyMagnitude) {
  for_each_tile_isa([] {
    const int64_t M = 3, N = 40, K = 100;
    for (int power : {-149, -130, -126, -118, -110, -105, -100, -60, -52, -44, 0, 55, 63, 100, 120})
      for (int choice = 0; choice < 8; ++choice) {
        Operand a = factor(choice & 4 ? N : M, K, choice & 1, 1), b = factor(K, choice & 4 ? M : N, choice & 2, 2);
        scale((choice & 4 ? b : a).stored, power);
        scale((choice & 4 ? a : b).stored, std::clamp(-power, -120, 55));
        Matrix c(DType::float32, a.view.size[0], b.view.size[1]);
        multiply_on_tiles(a.view, b.view, c, {});
        if (power < -44 || power > 55) {
          for (int64_t i = 0; i < c.rows(); ++i)
            for (int64_t j = 0; j < c.columns(); ++j) ASSERT_EQ(c.get(i, j), plain_sum(a, b, i, j)) << "2^" << power;
          continue;
        }
        EXPECT_TRUE(holds(c,
                          [&](int64_t i, int64_t j) {
                            Expected e{0, 0, static_cast<double>(K)};
                            for (int64_t k = 0; k < K; ++k) {
                              e.value += a.get(i, k) * b.get(k, j);
                              e.magnitude += std::abs(a.get(i, k) * b.get(k, j));
                            }
                            return e;
                          }))
            << "2^" << power << ", choice " << choice;
      }
  });
}

TEST(OpsTileMatmul, EdgesOfTheRange) {
  for_each_tile_isa([] {
    // A regular line multiplies tiles, with fewer parts to less; an irregular one always to float32's last bit.
    for (const auto& [value, regular] : {std::pair{0x1p-48, true}, std::pair{0x1.fffffep-49, false},
                                         std::pair{0x1.fffffep59, true}, std::pair{0x1p60, false}})
      for (bool in_a : {false, true}) {
        Operand a = factor(33, 40, false, 1), b = factor(40, 34, false, 2);
        Matrix& x = in_a ? a.stored : b.stored;
        for (int64_t n = 0; n < 40; ++n) x.set(in_a ? 32 : n, in_a ? n : 32, value * (1 - 0x1p-12 * double(n)));
        Matrix c(DType::float32, 33, 34);
        multiply_on_tiles(a.view, b.view, c, {.precision = Float32Precision::fast});
        int64_t plain = 0;
        for (int64_t n = 0; n < 33; ++n)
          plain += in_a ? c.get(32, n) == plain_sum(a, b, 32, n) : c.get(n, 32) == plain_sum(a, b, n, 32);
        EXPECT_EQ(plain == 33, !regular) << value << ", in a " << in_a << ": " << plain;
      }
  });
}

// --------------------------------------------------------------------------------------------------------- accuracy

/// Root of the mean of squares of the errors, next to the sums of magnitudes.
double relative_error(const Matrix& c, const Operand& a, const Operand& b) {
  const std::vector<float> rows = lines_of(a, 0), columns = lines_of(b, 1);
  const int64_t K = a.view.size[1];
  double squares = 0;
  for (int64_t i = 0; i < c.rows(); ++i)
    for (int64_t j = 0; j < c.columns(); ++j) {
      double sum = 0, magnitude = 0;
      for (int64_t k = 0; k < K; ++k) {
        const double term = double{rows[i * K + k]} * columns[j * K + k];
        sum += term;
        magnitude += std::abs(term);
      }
      const double error = (c.get(i, j) - sum) / magnitude;
      squares += error * error;
    }
  return std::sqrt(squares / static_cast<double>(c.rows() * c.columns()));
}

/// One chain in the tiles would be several times worse than vectors, whose sums are cut too.
TEST(OpsTileMatmul, LongSumsOfOneSign) {
  for_each_tile_isa([] {
    Operand a = factor(34, 5000, false, 1), b = factor(5000, 33, false, 2);
    for (Matrix* x : {&a.stored, &b.stored}) x->fill_with([&](int64_t r, int64_t c) { return std::abs(x->get(r, c)); });
    Matrix tiles(DType::float32, 34, 33), vectors(DType::float32, 34, 33);
    multiply_on_tiles(a.view, b.view, tiles, {});
    matmul(a.view, b.view, vectors);  // too small for tiles
    EXPECT_LE(relative_error(tiles, a, b), kLikeAccuracy * relative_error(vectors, a, b));
  });
}

TEST(OpsTileMatmul, LessPrecisionLosesWhatItMay) {
  for_each_tile_isa([] {
    for (int choice = 0; choice < 16; choice += 5) {
      Case t = case_of({67, 50, 300}, choice);
      for (Float32Precision precision : {Float32Precision::full, Float32Precision::high, Float32Precision::fast}) {
        t.precision = precision;
        expect_product(t);
      }
    }
    const Operand a = factor(67, 300, false, 1), b = factor(300, 50, false, 2);
    double error[3];
    for (int n = 0; n < 3; ++n) {
      Matrix c(DType::float32, 67, 50);
      multiply_on_tiles(a.view, b.view, c, {.precision = Float32Precision{static_cast<uint8_t>(n)}});
      error[n] = relative_error(c, a, b);
    }
    EXPECT_LT(error[0], kUnit32);
    EXPECT_GT(error[1], 4 * error[0]);  // 30 times, and 500
    EXPECT_GT(error[2], 64 * error[1]);
  });
}

// ----------------------------------------------------------------------------------------------------------- matmul()

struct Products {
  Operand a = factor(130, 260, false, 1), b = factor(260, 130, true, 2);

  Matrix by_matmul(std::optional<Float32Precision> precision = {}) const {
    Matrix c(DType::float32, 130, 130);
    matmul(a.view, b.view, c, {.precision = precision});
    return c;
  }
  Matrix on_tiles(Float32Precision precision) const {
    Matrix c(DType::float32, 130, 130);
    multiply_on_tiles(a.view, b.view, c, {.precision = precision});
    return c;
  }
};

TEST(OpsTileMatmul, TheDefaultPrecisionAndTheOption) {
  for_each_tile_isa([] {
    const Products p;
    EXPECT_EQ(matmul_precision(), Float32Precision::full);
    EXPECT_TRUE(p.by_matmul().same_bits(p.on_tiles(Float32Precision::full)));
    for (Float32Precision precision : {Float32Precision::high, Float32Precision::fast}) {
      EXPECT_TRUE(p.by_matmul(precision).same_bits(p.on_tiles(precision)));
      EXPECT_FALSE(p.by_matmul(precision).same_bits(p.by_matmul()));
      set_matmul_precision(precision);
      EXPECT_EQ(matmul_precision(), precision);
      EXPECT_TRUE(p.by_matmul().same_bits(p.on_tiles(precision)));
      EXPECT_TRUE(p.by_matmul(Float32Precision::full).same_bits(p.on_tiles(Float32Precision::full)));
      set_matmul_precision(Float32Precision::full);
    }
  });
}

/// Large products only, and not those of other types; other instruction sets know one precision.
TEST(OpsTileMatmul, OnlyLargeFloat32ProductsUseTiles) {
  for_each_isa([](const std::string& isa) {
    const bool tiles = isa.rfind("amx", 0) == 0;
    EXPECT_EQ(pays_on_tiles(768, 128, 128), tiles) << isa;
    EXPECT_FALSE(pays_on_tiles(1, 4096, 4096));
    EXPECT_FALSE(pays_on_tiles(4096, 32, 4096));
    EXPECT_FALSE(pays_on_tiles(128, 128, 16));
    EXPECT_EQ(pays_on_tiles(int64_t{1} << 31, int64_t{1} << 31, int64_t{1} << 31), tiles);
    if (tiles) return;
    const Products p;
    EXPECT_TRUE(p.by_matmul().same_bits(p.by_matmul(Float32Precision::fast))) << isa;
  });
}

/// Numbers of float16 are not what the default is about.
TEST(OpsTileMatmul, Float16StaysExact) {
  for_each_tile_isa([] {
    Random random(1);
    Matrix a(DType::float16, 130, 260), b(DType::float16, 260, 130), full(DType::float32, 130, 130);
    a.fill_normal(random);
    b.fill_normal(random);
    Matrix same = full.copy();
    matmul(a, b, full);
    set_matmul_precision(Float32Precision::fast);
    matmul(a, b, same);
    set_matmul_precision(Float32Precision::full);
    EXPECT_TRUE(full.same_bits(same));
  });
}

/// Near or far, in one part of the sum or two, with lines that tiles cannot hold; and where it does not fit any more.
TEST(OpsTileMatmul, APackedMatrixHasTheBitsOfTheMatrix) {
  for_each_tile_isa([] {
    for (const Shape<3>& size : {Shape<3>{130, 300, 260}, Shape<3>{300, 130, 1100}, Shape<3>{90, 1100, 70}}) {
      Operand a = factor(size[0], size[2], false, 1), b = factor(size[2], size[1], true, 2);
      b.stored.set(7, 3, kInf);
      Matrix c(DType::float32, size[0], size[1]), same = c.copy();
      const PackedMatrix packed(b.view);
      EXPECT_GE(packed.bytes(), 6 * size[1] * size[2]);
      const auto expect_same = [&](const MatmulOptions& options) {
        matmul(a.view, b.view, c, options);
        matmul_packed(a.view, packed, same, options);
        EXPECT_TRUE(c.same_bits(same)) << to_string(size);
      };
      expect_same({});
      expect_same({.accumulate = true});
      expect_same({.precision = Float32Precision::high});
      set_matmul_precision(Float32Precision::fast);
      expect_same({});
      set_matmul_precision(Float32Precision::full);
      const std::string isa = active_isa();
      set_isa("baseline");
      expect_same({});
      set_isa(isa);
    }
  });
}

TEST(OpsTileMatmul, PrecisionsThatDoNotExist) {
  const auto none = static_cast<Float32Precision>(3);
  EXPECT_TRUE(contains(error_of([&] { set_matmul_precision(none); }), "[set_matmul_precision] unknown precision 3"));
  Matrix x(DType::float32, 1, 1), y(DType::float32, 1, 1);
  EXPECT_TRUE(contains(error_of([&] { matmul(x, x, y, {.precision = none}); }), "[matmul] unknown precision 3"));
}

}  // namespace
}  // namespace attn::test
