// ops: matrix products of every type.
#include "support/ops.h"

namespace attn::test {
namespace {

using namespace attn::ops;

struct Types {
  DType in, out;
};
constexpr Types kTypes[] = {{DType::float32, DType::float32},   {DType::float64, DType::float64},
                            {DType::bfloat16, DType::bfloat16}, {DType::bfloat16, DType::float32},
                            {DType::float16, DType::float16},   {DType::float16, DType::float32}};

void expect_product(Types types, int64_t M, int64_t N, int64_t K, bool a_transposed, bool b_transposed, bool with_bias,
                    bool accumulate) {
  const Operand a(types.in, M, K, a_transposed, 1), b(types.in, K, N, b_transposed, 2);
  Random random(3);
  Matrix bias(parameter_of(types.in), 1, N), c(types.out, M, N, 2);
  bias.fill_normal(random);
  if (accumulate) c.fill_normal(random);
  const Matrix before = c.copy();
  MatmulOptions options{.accumulate = accumulate};
  if (with_bias) options.bias = bias.row();
  matmul(a.view, b.view, c, options);
  EXPECT_TRUE(holds(c,
                    [&](int64_t i, int64_t j) {
                      Expected e{0, 0, static_cast<double>(K)};
                      const auto add_term = [&e](double term) {
                        e.value += term;
                        e.magnitude += std::abs(term);
                      };
                      for (int64_t k = 0; k < K; ++k) add_term(a.get(i, k) * b.get(k, j));
                      if (with_bias) add_term(bias.get(j));
                      if (accumulate) add_term(before.get(i, j));
                      return e;
                    }))
      << name_of(types.in) << " to " << name_of(types.out) << ", M " << M << ", N " << N << ", K " << K
      << ", transposed " << a_transposed << b_transposed << ", bias " << with_bias << ", accumulate " << accumulate;
}

TEST(OpsMatmul, IsTheSumOfProducts) {
  for (Types types : kTypes)
    for (int64_t size : {1, 2, 7, 16, 33})
      for (int choice = 0; choice < 16; ++choice)
        expect_product(types, size, size + 3, 2 * size - 1, choice & 1, choice & 2, choice & 4, choice & 8);
}

/// Vectors: one of the strides then means nothing.
TEST(OpsMatmul, OneRowOneColumnOneTerm) {
  for (Types types : kTypes)
    for (int choice = 0; choice < 16; ++choice)
      for (Shape<3> size : {Shape<3>{1, 9, 5}, Shape<3>{9, 1, 5}, Shape<3>{9, 5, 1}, Shape<3>{1, 1, 5},
                            Shape<3>{1, 5, 1}, Shape<3>{5, 1, 1}})
        expect_product(types, size[0], size[1], size[2], choice & 1, choice & 2, choice & 4, choice & 8);
}

/// Columns of a matrix, standing and lying, and a row: the stride of an axis of one element may be anything.
TEST(OpsMatmul, StridesOfOneElement) {
  for (Types types : kTypes)
    for (int64_t stride : {0, 1, 2, 9}) {
      Random random(4);
      Matrix a(types.in, 6, 5), b(types.in, 1, 7), c(types.out, 6, 7), squares(types.out, 1, 1);
      a.fill_normal(random);
      b.fill_normal(random);
      ConstView<2> column = a.columns(3, 1), row = b;
      column.stride[1] = row.stride[0] = stride;
      matmul(column, row, c);
      EXPECT_TRUE(holds(c,
                        [&](int64_t i, int64_t j) {
                          const double product = a.get(i, 3) * b.get(j);
                          return Expected{product, std::abs(product)};
                        }))
          << name_of(types.in) << ", stride " << stride;
      const ConstView<2> lying(column.data, column.dtype, {1, 6}, {stride, column.stride[0]});
      matmul(lying, column, squares);
      Expected sum{0, 0, 6};
      for (int64_t i = 0; i < 6; ++i) sum.value += a.get(i, 3) * a.get(i, 3);
      sum.magnitude = sum.value;
      EXPECT_TRUE(holds(squares, [&](int64_t, int64_t) { return sum; })) << name_of(types.in) << ", stride " << stride;
    }
}

/// More terms than one cut has, b packed as a whole or task by task; as 16-bit numbers that are widened too.
TEST(OpsMatmul, ManyCutsAndPanels) {
  for (DType out : {DType::float16, DType::float32, DType::float64})
    for (bool transposed : {false, true})
      for (Shape<3> size : {Shape<3>{1030, 1027, 2}, Shape<3>{514, 3, 2060}, Shape<3>{3, 520, 2060}})
        expect_product({out == DType::float32 ? DType::bfloat16 : out, out}, size[0], size[1], size[2], transposed,
                       !transposed, true, transposed);
}

/// 4097 - 4096, of which float16 would keep 4096 - 4096.
TEST(OpsMatmul, SumsOfFloat16AreInFloat32) {
  for (int64_t gap : {0, 1}) {  // a row of weights, and a column of a matrix, which goes another way
    Matrix a(DType::float16, 1, 4096), b(DType::float16, 4096, 1, gap), c(DType::float16, 1, 1);
    b.fill_with([](int64_t k, int64_t) { return k == 0 ? 3 : k < 2048 ? 2 : -2; });
    matmul(a.fill(1), b, c);
    EXPECT_EQ(c.get(0), 1);
  }
}

/// A sum of no terms is zero, and the bias is still added.
TEST(OpsMatmul, EmptyShapes) {
  for (Types types : kTypes)
    for (int choice = 0; choice < 16; ++choice)
      for (Shape<3> size : {Shape<3>{3, 4, 0}, Shape<3>{0, 4, 5}, Shape<3>{3, 0, 5}, Shape<3>{0, 0, 0}})
        expect_product(types, size[0], size[1], size[2], choice & 1, choice & 2, choice & 4, choice & 8);
}

TEST(OpsMatmul, TheSameTwice) {
  for (Types types : kTypes) {
    const Operand a(types.in, 65, 130, false, 4), b(types.in, 130, 97, true, 5);
    Matrix once(types.out, 65, 97), again = Matrix::like(once);
    matmul(a.view, b.view, once);
    matmul(a.view, b.view, again);
    EXPECT_TRUE(once.same_bits(again)) << name_of(types.in);
  }
}

/// Sizes around the edges of tasks: one, several by rows, by columns, by both, and rest blocks.
TEST(OpsMatmul, AnyNumberOfThreadsGivesTheSameBits) {
  for (Types types : kTypes)
    for (Shape<3> size :
         {Shape<3>{768, 384, 128}, Shape<3>{1, 1100, 513}, Shape<3>{530, 1030, 67}, Shape<3>{9, 40, 3000}})
      for (bool accumulate : {false, true}) {
        const Operand a(types.in, size[0], size[2], false, 7), b(types.in, size[2], size[1], true, 8);
        Random random(9);
        Matrix bias(parameter_of(types.in), 1, size[1]), one(types.out, size[0], size[1]);
        bias.fill_normal(random);
        one.fill_normal(random);
        const Matrix before = one.copy();
        const MatmulOptions options{.bias = bias.row(), .accumulate = accumulate};
        set_thread_count(1);
        matmul(a.view, b.view, one, options);
        for (int threads : {2, 3, 7}) {
          Matrix many = before.copy();
          set_thread_count(threads);
          matmul(a.view, b.view, many, options);
          EXPECT_TRUE(one.same_bits(many)) << name_of(types.in) << ' ' << to_string(size) << ", threads " << threads;
        }
        set_thread_count(0);
      }
}

/// Every block is where it belongs, with its own part of the bias.
TEST(OpsMatmul, ManyTasks) {
  for (Types types : kTypes)
    for (Shape<3> size : {Shape<3>{2, 1100, 300}, Shape<3>{300, 530, 40}, Shape<3>{700, 70, 130}})
      for (int choice = 0; choice < 16; choice += 3)
        expect_product(types, size[0], size[1], size[2], choice & 1, choice & 2, choice & 4, choice & 8);
}

// ---------------------------------------------------------------------------------------------- addend and activation

/// More terms than a cut, several panels and blocks of rows, rests of all of them; no terms; and few rows, which go
/// another way where nothing is packed.
constexpr Shape<3> kEnds[] = {{9, 20, 33}, {70, 131, 40}, {67, 130, 2101}, {3, 70, 30}, {1, 33, 2100}, {12, 7, 0}};

template <class Multiply>
void expect_ends(Types types, const Shape<3>& size, const std::string& name, const Multiply& multiply) {
  Random random(6);
  Matrix addend(types.out, size[0], size[1], 3), bias(parameter_of(types.in), 1, size[1]), c = Matrix::like(addend);
  addend.fill_normal(random);
  bias.fill_normal(random);
  const Matrix before = addend.copy();
  Matrix sum = addend.copy();
  multiply(c, {.bias = bias.row(), .addend = addend});
  multiply(sum, {.bias = bias.row(), .accumulate = true});
  EXPECT_TRUE(c.same_bits(sum)) << name << ": an addend is not what c += gives";
  EXPECT_TRUE(addend.same_bits(before)) << name;
  Matrix in_place = addend.copy();
  multiply(in_place, {.bias = bias.row(), .addend = in_place});
  EXPECT_TRUE(in_place.same_bits(sum)) << name << ": c as its own addend";

  for (const Activation f :
       {Activation::relu, Activation::gelu, Activation::gelu_tanh, Activation::silu, Activation::tanh}) {
    Matrix expected = sum.copy(), actual = Matrix::like(c);
    activate(f, expected, expected);
    multiply(actual, {.bias = bias.row(), .addend = addend, .activation = f});
    EXPECT_TRUE(actual.same_bits(expected)) << name << ", activation " << static_cast<int>(f);
  }
}

TEST(OpsMatmul, AddendsAndActivationsHaveTheBitsOfPassesOfTheirOwn) {
  for_each_isa([](const std::string& isa) {
    for (const Types types : kTypes)
      for (const Shape<3>& size : kEnds) {
        const Operand a(types.in, size[0], size[2], false, 1), b(types.in, size[2], size[1], true, 2);
        const PackedMatrix packed(b.view);
        const std::string name = isa + ", " + std::string(name_of(types.in)) + " " + to_string(size);
        expect_ends(types, size, name, [&](View<2> c, const MatmulOptions& o) { matmul(a.view, b.view, c, o); });
        expect_ends(types, size, name + ", packed",
                    [&](View<2> c, const MatmulOptions& o) { matmul_packed(a.view, packed, c, o); });
      }
  });
}

TEST(OpsMatmul, ErrorsListEveryReason) {
  Matrix a(DType::float32, 2, 3), b(DType::float64, 4, 5), c(DType::bfloat16, 2, 5), bias(DType::bfloat16, 1, 4);
  const std::string what = error_of([&] { matmul(a, b, c, {.bias = bias.row()}); });
  for (const char* part : {"[matmul] b is float64, must have a's type", "c is bfloat16, must have a's type",
                           "shapes a [2, 3], b [4, 5], c [2, 5] must be [M, K], [K, N], [M, N]", "bias must be float32",
                           "bias must be dense, [N]"})
    EXPECT_TRUE(contains(what, part)) << what;
  View<2> whole(nullptr, DType::int32, {2, 3});
  EXPECT_TRUE(
      contains(error_of([&] { matmul(whole, whole, whole); }), "a is int32, must be float32, float64, bfloat16"));
  Matrix right(DType::float32, 3, 5), out(DType::float32, 2, 5);
  ConstView<2> wide = a;
  wide.stride = {6, 2};
  EXPECT_TRUE(contains(error_of([&] { matmul(wide, right, out); }),
                       "a has strides [6, 2] for size [2, 3], must be 1 along one axis"));
  ConstView<2> absent = a;
  absent.data = nullptr;
  EXPECT_TRUE(contains(error_of([&] { matmul(absent, right, out); }), "a has no data"));
  View<2> turned = out;
  turned.stride = {1, 2};
  EXPECT_TRUE(contains(error_of([&] { matmul(a, right, turned); }), "c has last stride 2, must be 1"));
  Matrix narrow(DType::float32, 2, 4), shared(DType::float32, 3, 5);
  EXPECT_TRUE(contains(error_of([&] { matmul(a, right, out, {.addend = narrow}); }),
                       "addend is float32 [2, 4], must be float32 [2, 5]"));
  EXPECT_TRUE(contains(error_of([&] { matmul(a, right, out, {.accumulate = true, .addend = out}); }),
                       "accumulate and addend must not both be given"));
  const View<2> rows = shared, first(rows.data, rows.dtype, {2, 5}, rows.stride);
  ConstView<2> later = first;
  later.data = static_cast<float*>(first.data) + 5;
  EXPECT_TRUE(contains(error_of([&] { matmul(a, right, first, {.addend = later}); }),
                       "c overlaps addend without being the same"));
  EXPECT_TRUE(contains(error_of([&] { matmul(a, right, out, {.activation = static_cast<Activation>(9)}); }),
                       "unknown activation 9; known are: relu, gelu, gelu_tanh, silu, tanh"));
}

// ------------------------------------------------------------------------------------------------------------- packed

struct PackedProduct {
  Operand a, b;
  Matrix bias, before;

  PackedProduct(DType dtype, const Shape<3>& size, bool b_transposed = true)
      : a(dtype, size[0], size[2], false, 1),
        b(dtype, size[2], size[1], b_transposed, 2),
        bias(parameter_of(dtype), 1, size[1]),
        before(dtype, size[0], size[1], 2) {
    Random random(3);
    bias.fill_normal(random);
    before.fill_normal(random);
  }
  Matrix times(const ConstView<2>& by, MatmulOptions options = {}) const {
    Matrix c = before.copy();
    options.bias = bias.row();
    matmul(a.view, by, c, options);
    return c;
  }
  Matrix times(const PackedMatrix& by, MatmulOptions options = {}) const {
    Matrix c = before.copy();
    options.bias = bias.row();
    matmul_packed(a.view, by, c, options);
    return c;
  }
};

/// Several panels with a rest, several blocks of rows, several cuts of the terms.
TEST(OpsMatmul, APackedMatrixGivesTheSumOfProducts) {
  for_each_isa([](const std::string& isa) {
    for (const DType dtype : kStorage)
      for (const Shape<3>& size : {Shape<3>{9, 20, 33}, Shape<3>{70, 400, 40}, Shape<3>{300, 201, 129},
                                   Shape<3>{67, 130, 1101}, Shape<3>{1, 70, 30}, Shape<3>{40, 1, 30}}) {
        const PackedProduct p(dtype, size, dtype != DType::float64);
        const PackedMatrix packed(p.b.view);
        EXPECT_GE(packed.bytes(), size[1] * size[2] * size_of(dtype)) << isa;
        const Matrix c = p.times(packed, {.accumulate = true});
        EXPECT_TRUE(holds(c,
                          [&](int64_t i, int64_t j) {
                            Expected e{p.bias.get(j) + p.before.get(i, j), 0, static_cast<double>(size[2])};
                            e.magnitude = std::abs(p.bias.get(j)) + std::abs(p.before.get(i, j));
                            for (int64_t k = 0; k < size[2]; ++k) {
                              const double term = p.a.get(i, k) * p.b.get(k, j);
                              e.value += term;
                              e.magnitude += std::abs(term);
                            }
                            return e;
                          }))
            << name_of(dtype) << ' ' << to_string(size) << " on " << isa;
        for (const int threads : {1, 3}) {
          set_thread_count(threads);
          EXPECT_TRUE(p.times(packed, {.accumulate = true}).same_bits(c)) << to_string(size) << " on " << isa;
        }
        set_thread_count(0);
      }
  });
}

/// Packed or not, a row has the bits that it has alone, if that is wanted; packed, on vectors, in any case.
TEST(OpsMatmul, APackedMatrixGivesARowItsBitsAmongAnyRows) {
  for_each_isa([](const std::string& isa) {
    for (const DType dtype : kStorage) {
      const PackedProduct all(dtype, {83, 150, 1100});
      const PackedMatrix packed(all.b.view);
      const bool on_tiles = isa.starts_with("amx") && (dtype == DType::float32 || dtype == DType::float16);
      const MatmulOptions options{.accumulate = true, .batch_invariant = on_tiles};
      const Matrix whole = all.times(packed, options);
      for (const int64_t rows : {1, 2, 3, 5, 8, 9, 17, 64, 66}) {
        const int64_t first = 83 - rows;
        Matrix c = all.before.copy();
        ConstView<2> a = all.a.view;
        View<2> out = c;
        a.data = static_cast<const char*>(a.data) + first * a.stride[0] * size_of(dtype);
        out.data = static_cast<char*>(out.data) + first * out.stride[0] * size_of(dtype);
        a.size[0] = out.size[0] = rows;
        MatmulOptions own = options;
        own.bias = all.bias.row();
        matmul_packed(a, packed, out, own);
        for (int64_t i = first; i < 83; ++i)
          for (int64_t j = 0; j < 150; ++j)
            ASSERT_EQ(c.get(i, j), whole.get(i, j)) << name_of(dtype) << ", " << rows << " rows on " << isa;
      }
    }
  });
}

/// A matrix that is packed for other kernels, or of no terms, is read itself.
TEST(OpsMatmul, APackedMatrixOfOtherKernels) {
  for (const DType dtype : kStorage) {
    const PackedProduct p(dtype, {50, 60, 70});
    std::optional<PackedMatrix> first;
    for_each_isa([&](const std::string& isa) {
      if (!first) first.emplace(p.b.view);
      EXPECT_TRUE(holds(p.times(*first),
                        [&](int64_t i, int64_t j) {
                          Expected e{p.bias.get(j), std::abs(p.bias.get(j)), 70};
                          for (int64_t k = 0; k < 70; ++k) {
                            e.value += p.a.get(i, k) * p.b.get(k, j);
                            e.magnitude += std::abs(p.a.get(i, k) * p.b.get(k, j));
                          }
                          return e;
                        }))
          << name_of(dtype) << " on " << isa;
    });
  }
  const PackedProduct none(DType::float32, {5, 4, 0});
  EXPECT_TRUE(none.times(PackedMatrix(none.b.view)).same_bits(none.times(none.b.view)));
}

/// A NaN or an infinity of one row or column stays in its row or column, whatever is packed beside it.
TEST(OpsMatmul, NonFiniteNumbersStayInTheirLines) {
  for_each_isa([](const std::string& isa) {
    for (const DType dtype : kStorage)
      for (const double odd : {std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity()}) {
        PackedProduct p(dtype, {37, 53, 45});
        p.a.stored.set(11, 44, odd);
        p.b.stored.set(50, 3, odd);
        for (const Matrix& c : {p.times(p.b.view), p.times(PackedMatrix(p.b.view))})
          for (int64_t i = 0; i < 37; ++i)
            for (int64_t j = 0; j < 53; ++j)
              ASSERT_EQ(std::isfinite(c.get(i, j)), i != 11 && j != 50)
                  << name_of(dtype) << " (" << i << ", " << j << ") on " << isa;
      }
  });
}

TEST(OpsMatmul, WrongPackedMatricesAreErrors) {
  const PackedProduct p(DType::float32, {20, 30, 40});
  EXPECT_FALSE(PackedMatrix());
  EXPECT_EQ(PackedMatrix().bytes(), 0);
  EXPECT_TRUE(contains(error_of([&] { p.times(PackedMatrix()); }), "[matmul] b is an empty PackedMatrix"));
  ConstView<2> wrong = p.b.view;
  wrong.stride = {2, 90};
  EXPECT_TRUE(contains(error_of([&] { PackedMatrix{wrong}; }), "[PackedMatrix] b"));
  wrong = p.b.view;
  wrong.size[0] = 39;
  EXPECT_TRUE(contains(error_of([&] { p.times(PackedMatrix(wrong)); }), "must be [M, K], [K, N], [M, N]"));
}

}  // namespace
}  // namespace attn::test
