// ops: matrix products, through oneDNN and in float64. Apart from the others: the thread sanitizer cannot look into the
// OpenMP team that oneDNN runs on.
#include "ops.h"

namespace attn::test {
namespace {

using namespace attn::ops;

struct Types {
  DType in, out;
};
constexpr Types kTypes[] = {{DType::float32, DType::float32},
                            {DType::float64, DType::float64},
                            {DType::bfloat16, DType::bfloat16},
                            {DType::bfloat16, DType::float32}};

/// A matrix that is stored as it is or transposed, in rows with a gap.
struct Operand {
  Matrix stored;
  ConstView<2> view;

  Operand(DType dtype, int64_t rows, int64_t columns, bool transposed, uint64_t seed)
      : stored(dtype, transposed ? columns : rows, transposed ? rows : columns, 3), view(stored) {
    Random random(seed);
    stored.fill_normal(random);
    view = stored;
    if (transposed) view = {view.data, dtype, {rows, columns}, {view.stride[1], view.stride[0]}};
  }
  double get(int64_t r, int64_t c) const {
    return load_element(view.data, view.dtype, r * view.stride[0] + c * view.stride[1]);
  }
};

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

/// A sum of no terms is zero, and the bias is still added.
TEST(OpsMatmul, EmptyShapes) {
  for (Types types : kTypes)
    for (int choice = 0; choice < 16; ++choice)
      for (Shape<3> size : {Shape<3>{3, 4, 0}, Shape<3>{0, 4, 5}, Shape<3>{3, 0, 5}, Shape<3>{0, 0, 0}})
        expect_product(types, size[0], size[1], size[2], choice & 1, choice & 2, choice & 4, choice & 8);
}

TEST(OpsMatmul, MoreShapesThanAreKept) {
  for (int64_t rows = 1; rows <= 1100; ++rows) expect_product(kTypes[0], rows, 2, 3, false, false, false, false);
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

/// Attention on the team of the products gives what it gives on the library's own.
TEST(OpsMatmul, TheTeamRunsOtherTasksToo) {
  Random random(6);
  Matrix x(DType::float32, 300, 200), here = Matrix::like(x), there = Matrix::like(x);
  x.fill_normal(random);
  activate(Activation::silu, x, here);
  set_executor(&matmul_executor());
  activate(Activation::silu, x, there);
  EXPECT_GE(thread_count(), 1);
  set_executor(nullptr);
  EXPECT_TRUE(here.same_bits(there));
}

TEST(OpsMatmul, ErrorsListEveryReason) {
  Matrix a(DType::float32, 2, 3), b(DType::float64, 4, 5), c(DType::bfloat16, 2, 5), bias(DType::bfloat16, 1, 4);
  const std::string what = complaint([&] { matmul(a, b, c, {.bias = bias.row()}); });
  for (const char* part : {"[matmul] b is float64, must have a's type", "c is bfloat16, must have a's type",
                           "shapes a [2, 3], b [4, 5], c [2, 5] must be [M, K], [K, N], [M, N]", "bias must be float32",
                           "bias must be dense, [N]"})
    EXPECT_TRUE(contains(what, part)) << what;
  Matrix half(DType::float16, 2, 3);
  EXPECT_TRUE(contains(complaint([&] { matmul(half, half, half); }), "a is float16, must be"));
  Matrix right(DType::float32, 3, 5), out(DType::float32, 2, 5);
  ConstView<2> wide = a;
  wide.stride = {6, 2};
  EXPECT_TRUE(contains(complaint([&] { matmul(wide, right, out); }),
                       "a has strides [6, 2] for size [2, 3], must be 1 along one axis"));
  ConstView<2> absent = a;
  absent.data = nullptr;
  EXPECT_TRUE(contains(complaint([&] { matmul(absent, right, out); }), "a has no data"));
  View<2> turned = out;
  turned.stride = {1, 2};
  EXPECT_TRUE(contains(complaint([&] { matmul(a, right, turned); }), "c has last stride 2, must be 1"));
}

}  // namespace
}  // namespace attn::test
