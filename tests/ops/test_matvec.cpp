// ops: products of few rows with rows of weights, which have kernels of their own; test_ops_matmul.cpp has the others.
#include "ops/matvec.h"

#include <list>

#include "support/ops.h"

namespace attn::test {
namespace {

using namespace attn::ops;

struct Types {
  DType in, out;
};
constexpr Types kTypes[] = {{DType::float32, DType::float32},
                            {DType::bfloat16, DType::bfloat16},
                            {DType::bfloat16, DType::float32},
                            {DType::float16, DType::float16},
                            {DType::float16, DType::float32}};

struct Product {
  Operand a, b;
  Matrix bias, c;

  Product(Types types, const Shape<3>& size)
      : a(types.in, size[0], size[2], false, 1),
        b(types.in, size[2], size[1], true, 2),
        bias(DType::float32, 1, size[1]),
        c(types.out, size[0], size[1], 2) {
    Random random(3);
    bias.fill_normal(random);
    c.fill_normal(random);
  }

  MatmulOptions options(bool with_bias, bool accumulate) const {
    MatmulOptions options{.accumulate = accumulate};
    if (with_bias) options.bias = bias.row();
    return options;
  }

  testing::AssertionResult is_the_sum(bool with_bias, bool accumulate) const {
    Matrix y = c.copy();
    matmul(a.view, b.view, y, options(with_bias, accumulate));
    return holds(y, [&](int64_t i, int64_t j) {
      Expected e{0, 0, static_cast<double>(a.view.size[1])};
      const auto add_term = [&e](double term) {
        e.value += term;
        e.magnitude += std::abs(term);
      };
      for (int64_t k = 0; k < a.view.size[1]; ++k) add_term(a.get(i, k) * b.get(k, j));
      if (with_bias) add_term(bias.get(j));
      if (accumulate) add_term(c.get(i, j));
      return e;
    });
  }
};

/// Every number of rows, one more than take this way; vectors and blocks of terms with a rest.
TEST(OpsMatvec, IsTheSumOfProducts) {
  for_each_isa_of_elements([](const std::string& isa) {
    for (Types types : kTypes)
      for (int64_t M = 1; M <= kMostMatvecRows + 1; ++M)
        for (int64_t N : {1, 19})
          for (int64_t K : {1, 7, 33, 64, 139, 2083}) {
            const Product product(types, {M, N, K});
            for (int choice = 0; choice < 4; ++choice)
              EXPECT_TRUE(product.is_the_sum(choice & 1, choice & 2))
                  << name_of(types.in) << " to " << name_of(types.out) << ' ' << to_string(Shape<3>{M, N, K})
                  << ", bias and accumulate " << choice << " on " << isa;
          }
  });
}

/// Asked for the same bits, many rows are what each of them is alone; float64 is so in any case.
TEST(OpsMatvec, ManyRowsWithTheBitsOfEachAlone) {
  for_each_isa_of_elements([](const std::string& isa) {
    for (Types types : {kTypes[0], kTypes[1], kTypes[4], Types{DType::float64, DType::float64}}) {
      const int64_t M = 2 * kMostMatvecRows + 3, N = 150, K = 300;
      Product product(types, {M, N, K});
      if (types.in == DType::float64) product.bias = Matrix(DType::float64, 1, N).fill(0.5);
      MatmulOptions options = product.options(true, true);
      Matrix all = product.c.copy(), alone = product.c.copy();
      options.batch_invariant = true;
      matmul(product.a.view, product.b.view, all, options);
      options.batch_invariant = false;
      for (int64_t row = 0; row < M; ++row) {
        ConstView<2> a = product.a.view;
        View<2> c = alone;
        a.data = static_cast<const char*>(a.data) + row * a.stride[0] * size_of(a.dtype);
        c.data = static_cast<char*>(c.data) + row * c.stride[0] * size_of(c.dtype);
        a.size[0] = c.size[0] = 1;
        matmul(a, product.b.view, c, options);
      }
      EXPECT_TRUE(all.same_bits(alone)) << name_of(types.in) << " to " << name_of(types.out) << " on " << isa;
    }
  });
}

TEST(OpsMatvec, BatchInvarianceNeedsDenseLines) {
  const Operand a(DType::float32, 20, 30, false, 1), turned(DType::float32, 20, 30, true, 1),
      b(DType::float32, 30, 40, true, 2), rows(DType::float32, 30, 40, false, 2);
  Matrix c(DType::float32, 20, 40);
  for (const auto& [left, right] : {std::pair{a.view, rows.view}, std::pair{turned.view, b.view}})
    EXPECT_TRUE(contains(error_of([&, l = left, r = right] { matmul(l, r, c, {.batch_invariant = true}); }),
                         "[matmul] batch_invariant needs dense rows of a and dense columns of b"));
}

/// Every task writes its own columns, with its own part of the bias.
TEST(OpsMatvec, ManyTasks) {
  for (Types types : kTypes)
    for (int64_t M : {int64_t{1}, int64_t{3}, kMostMatvecRows})
      EXPECT_TRUE(Product(types, {M, 2101, 131}).is_the_sum(true, true)) << name_of(types.in) << ", M " << M;
}

/// Columns [column, column + columns) of rows [row, row + rows) of the product.
Matrix part_of(const Product& product, Types types, int64_t row, int64_t rows, int64_t column, int64_t columns) {
  ConstView<2> a = product.a.view, b = product.b.view;
  a.data = static_cast<const char*>(a.data) + row * a.stride[0] * size_of(types.in);
  b.data = static_cast<const char*>(b.data) + column * b.stride[1] * size_of(types.in);
  a.size[0] = rows;
  b.size[1] = columns;
  Matrix part(types.out, rows, columns);
  matmul(a, b, part);
  return part;
}

/// A row alone and a column alone have the bits that they have among others; with several blocks of terms too.
TEST(OpsMatvec, ElementsDoNotDependOnTheirNeighbours) {
  for_each_isa_of_elements([](const std::string& isa) {
    for (Types types : kTypes)
      for (int64_t terms : {203, 2203}) {
        const Product product(types, {kMostMatvecRows, 21, terms});
        const Matrix whole = part_of(product, types, 0, kMostMatvecRows, 0, 21);
        for (int64_t rows = 1; rows < kMostMatvecRows; ++rows)
          for (int64_t columns : {1, 5, 20}) {
            const int64_t row = kMostMatvecRows - rows, column = 21 - columns;
            const Matrix part = part_of(product, types, row, rows, column, columns);
            for (int64_t i = 0; i < rows; ++i)
              for (int64_t j = 0; j < columns; ++j)
                EXPECT_EQ(part.get(i, j), whole.get(row + i, column + j))
                    << name_of(types.in) << ", row " << i << " of " << rows << ", column " << j << " of " << columns
                    << ", " << terms << " terms on " << isa;
          }
      }
  });
}

TEST(OpsMatvec, AnyNumberOfThreadsGivesTheSameBits) {
  std::list<Product> products;  // their views stay valid
  for (Types types : kTypes)
    for (int64_t M : {int64_t{1}, kMostMatvecRows}) products.emplace_back(types, Shape<3>{M, 3001, 131});
  expect_same_on_all_threads([&] {
    std::vector<Matrix> results;
    for (const Product& product : products) {
      Matrix y = product.c.copy();
      matmul(product.a.view, product.b.view, y, product.options(true, true));
      results.push_back(y);
    }
    return results;
  });
}

/// What is not finite reaches its own row or column, also in the last vector of terms, and the zeros that fill that
/// vector make no NaN of an infinity.
TEST(OpsMatvec, NonFiniteNumbersStayInTheirRowAndColumn) {
  constexpr int64_t M = 3, N = 11, K = 37;
  const double inf = std::numeric_limits<double>::infinity(), nan = std::numeric_limits<double>::quiet_NaN();
  for_each_isa_of_elements([&](const std::string& isa) {
    for (Types types : kTypes)
      for (int64_t at : {int64_t{0}, int64_t{20}, K - 1}) {
        Matrix a(types.in, M, K), w(types.in, N, K), c(types.out, M, N);
        a.fill(1).set(1, at, nan);
        w.fill(1).set(4, at, inf);
        const ConstView<2> rows = w;
        matmul(a, {rows.data, rows.dtype, {K, N}, {1, K}}, c);
        for (int64_t i = 0; i < M; ++i)
          for (int64_t j = 0; j < N; ++j) {
            const double actual = c.get(i, j), expected = j == 4 ? inf : static_cast<double>(K);
            EXPECT_TRUE(i == 1 ? std::isnan(actual) : actual == expected)
                << '(' << i << ", " << j << ") is " << actual << ", " << name_of(types.in) << " on " << isa;
          }
      }
  });
}

}  // namespace
}  // namespace attn::test
