// ops: weights of 8 and 4 bits, and products with them.
#include "attn/ops_quantized.h"

#include "support/ops.h"

namespace attn::test {
namespace {

using namespace attn::ops;

struct Form {
  int bits;
  int64_t group;
  bool offsets;
  int zero;
};
constexpr Form kForms[] = {{8, 32, false, 128}, {8, 16, true, 0}, {8, 0, false, 128}, {8, 64, false, 100},
                           {4, 32, false, 8},   {4, 32, true, 0}, {4, 16, false, 3},  {4, 0, true, 8}};

std::string name_of(const Form& form) {
  return std::to_string(form.bits) + " bits, group " + std::to_string(form.group) + (form.offsets ? ", offsets" : "");
}

/// Any codes of a form, with scales of several magnitudes.
QuantizedMatrix random_matrix(const Form& form, int64_t N, int64_t K, uint64_t seed) {
  QuantizedMatrix w{.rows = N, .terms = K, .bits = form.bits, .zero = form.zero, .group = form.group ? form.group : K};
  Random random(seed);
  for (int64_t n = 0; n < N * K; ++n)
    w.codes.push_back(static_cast<uint8_t>(random.uniform() * (form.bits == 8 ? 256 : 16)));
  for (int64_t n = 0; n < N * w.groups(); ++n) {
    w.scales.push_back(static_cast<float>(random.normal() * static_cast<double>(1 + n % 3) * 1e-3));
    if (form.offsets) w.offsets.push_back(static_cast<float>(random.normal() * 1e-2));
  }
  return w;
}

/// The numbers that a packed matrix multiplies by, [N, K].
Matrix numbers_of(const PackedMatrix& packed) {
  Matrix rows(DType::float32, packed.size()[1], packed.size()[0]);
  std::vector<int64_t> ids(static_cast<size_t>(rows.rows()));
  for (size_t n = 0; n < ids.size(); ++n) ids[n] = static_cast<int64_t>(n);
  embedding(ids, packed, rows);
  return rows;
}

/// A row of x in whole numbers, as products take it.
struct QuantizedRow {
  std::vector<double> codes, scales;  // of each term

  QuantizedRow(const Matrix& x, int64_t row, int64_t group) {
    for (int64_t first = 0; first < x.columns(); first += group) {
      const int64_t end = std::min(first + group, x.columns());
      float largest = 0;
      for (int64_t k = first; k < end; ++k) largest = std::max(largest, std::abs(static_cast<float>(x.get(row, k))));
      const float unit = largest > 0 ? 127 / largest : 0;
      for (int64_t k = first; k < end; ++k) {
        codes.push_back(std::nearbyint(static_cast<float>(x.get(row, k)) * unit));
        scales.push_back(largest / 127);
      }
    }
  }
};

struct Product {
  Matrix x, bias, before;
  QuantizedMatrix w;
  PackedMatrix packed;

  Product(DType dtype, const Form& form, int64_t M, int64_t N, int64_t K)
      : x(dtype, M, K, 3),
        bias(DType::float32, 1, N),
        before(dtype, M, N, 2),
        w(random_matrix(form, N, K, 5)),
        packed(w) {
    Random random(7);
    x.fill_normal(random, 2), bias.fill_normal(random, 0.01), before.fill_normal(random, 0.1);
  }
  Matrix times(MatmulOptions options = {}) const {
    Matrix c = before.copy();
    matmul_packed(x, packed, c, options);
    return c;
  }
};

/// Sums of whole numbers are exact: what is left are roundings of scales and of a sum over the groups.
TEST(OpsQuantized, IsTheSumOfProductsOfWholeNumbers) {
  for_each_isa([](const std::string& isa) {
    for (const Form& form : kForms)
      for (const Shape<3>& size : {Shape<3>{1, 3, 5}, Shape<3>{2, 33, 32}, Shape<3>{3, 40, 96}, Shape<3>{5, 70, 131},
                                   Shape<3>{13, 65, 200}, Shape<3>{100, 31, 64}})
        for (const DType dtype : {DType::float32, DType::bfloat16, DType::float16}) {
          const Product p(dtype, form, size[0], size[1], size[2]);
          const Matrix numbers = numbers_of(p.packed);
          const Matrix c = p.times({.bias = p.bias.row(), .addend = p.before});
          std::vector<QuantizedRow> rows;
          for (int64_t i = 0; i < size[0]; ++i) rows.emplace_back(p.x, i, p.w.group);
          EXPECT_TRUE(holds(c,
                            [&](int64_t i, int64_t j) {
                              Expected e{p.bias.get(j) + p.before.get(i, j), 0, static_cast<double>(p.w.groups() + 4)};
                              e.magnitude = std::abs(p.bias.get(j)) + std::abs(p.before.get(i, j));
                              const QuantizedRow& row = rows[static_cast<size_t>(i)];
                              for (int64_t k = 0; k < size[2]; ++k) {
                                const double x = row.codes[static_cast<size_t>(k)] * row.scales[static_cast<size_t>(k)];
                                const auto g = static_cast<size_t>(j * p.w.groups() + k / p.w.group);
                                const double offset = form.offsets ? std::abs(p.w.offsets[g]) : 0;
                                e.value += x * numbers.get(j, k);
                                // Codes and offsets are added apart, and may cancel.
                                e.magnitude += std::abs(x) * (std::abs(numbers.get(j, k)) + 2 * offset);
                              }
                              return e;
                            }))
              << attn::name_of(dtype) << ' ' << to_string(size) << ", " << name_of(form) << " on " << isa;
        }
  });
}

/// A scale or offset has the 11 bits of float16 next to the largest of its row.
TEST(OpsQuantized, PackingKeepsCodesAndElevenBitsOfScales) {
  for_each_isa([](const std::string& isa) {
    for (const Form& form : kForms) {
      const QuantizedMatrix w = random_matrix(form, 37, 150, 3);
      Matrix exact(DType::float64, 37, 150);
      dequantize(w, exact);
      const Matrix packed = numbers_of(PackedMatrix(w));
      for (int64_t n = 0; n < 37; ++n) {
        double largest = 0;
        for (int64_t g = n * w.groups(); g < (n + 1) * w.groups(); ++g)
          largest = std::max({largest, std::abs(static_cast<double>(w.scales[static_cast<size_t>(g)])),
                              form.offsets ? std::abs(static_cast<double>(w.offsets[static_cast<size_t>(g)])) : 0});
        for (int64_t k = 0; k < 150; ++k) {
          const auto g = static_cast<size_t>(n * w.groups() + k / w.group);
          const double offset = form.offsets ? std::abs(w.offsets[g]) : 0;
          const double magnitude = std::abs(exact.get(n, k)) + 2 * offset;
          EXPECT_LE(std::abs(packed.get(n, k) - exact.get(n, k)),
                    (unit_of(DType::float16) + 4 * kUnit32) * magnitude + 0x1p-25 * 256 * largest)
              << name_of(form) << " (" << n << ", " << k << ") on " << isa;
        }
      }
    }
  });
}

TEST(OpsQuantized, ARowHasItsBitsAmongAnyRowsAndThreads) {
  for_each_isa([](const std::string& isa) {
    for (const Form& form : kForms) {
      const Product p(DType::float32, form, 103, 150, 96);
      const Matrix whole = p.times();
      for (const int threads : {1, 3}) {
        set_thread_count(threads);
        EXPECT_TRUE(p.times().same_bits(whole)) << name_of(form) << ", " << threads << " threads on " << isa;
      }
      set_thread_count(0);
      for (const int64_t rows : {1, 2, 3, 4, 5, 6, 7, 96, 97}) {
        ConstView<2> x = p.x;
        x.data = static_cast<const char*>(x.data) + (103 - rows) * x.stride[0] * size_of(DType::float32);
        x.size[0] = rows;
        Matrix c(DType::float32, rows, 150);
        matmul_packed(x, p.packed, c, {.batch_invariant = true});
        for (int64_t i = 0; i < rows; ++i)
          for (int64_t j = 0; j < 150; ++j)
            ASSERT_EQ(c.get(i, j), whole.get(103 - rows + i, j)) << name_of(form) << ", " << rows << " rows on " << isa;
      }
    }
  });
}

TEST(OpsQuantized, AnActivationIsThatOfTheResult) {
  const Product p(DType::bfloat16, kForms[0], 9, 80, 64);
  Matrix c = p.times({.bias = p.bias.row()});
  activate(Activation::gelu, c, c);
  EXPECT_TRUE(p.times({.bias = p.bias.row(), .activation = Activation::gelu}).same_bits(c));
}

TEST(OpsQuantized, SixteenBitRowsMayGiveFloat32) {
  const Product p(DType::bfloat16, kForms[4], 5, 50, 64);
  Matrix wide(DType::float32, 5, 50);
  matmul_packed(p.x, p.packed, wide);
  const Matrix narrow = p.times();
  for (int64_t i = 0; i < 5; ++i)
    for (int64_t j = 0; j < 50; ++j)
      EXPECT_LE(std::abs(wide.get(i, j) - narrow.get(i, j)), unit_of(DType::bfloat16) * std::abs(wide.get(i, j)));
}

/// Rows of zeros, of numbers that are too small to have a scale, and of the largest.
TEST(OpsQuantized, RowsOfAnyMagnitude) {
  for_each_isa([](const std::string& isa) {
    Product p(DType::float32, kForms[0], 4, 40, 64);
    for (int64_t k = 0; k < 64; ++k) {
      p.x.set(0, k, 0), p.x.set(1, k, 0x1p-130);
      p.x.set(2, k, p.x.get(3, k) * 0x1p+100);
    }
    const Matrix c = p.times();
    for (int64_t j = 0; j < 40; ++j) {
      EXPECT_EQ(c.get(0, j), 0) << isa;
      EXPECT_LE(std::abs(c.get(1, j)), 0x1p-117) << isa;
      EXPECT_EQ(c.get(2, j), c.get(3, j) * 0x1p+100) << isa;
    }
  });
}

TEST(OpsQuantized, ARowThatIsNotFiniteIsNaNAlone) {
  for_each_isa([](const std::string& isa) {
    for (const double bad : {kNaN, kInf, -kInf}) {
      Product p(DType::float32, kForms[4], 7, 40, 96);
      const Matrix good = p.times();
      p.x.set(3, 70, bad);
      const Matrix c = p.times();
      for (int64_t i = 0; i < 7; ++i)
        for (int64_t j = 0; j < 40; ++j) {
          if (i == 3) EXPECT_TRUE(std::isnan(c.get(i, j))) << bad << " on " << isa;
          else EXPECT_EQ(c.get(i, j), good.get(i, j)) << bad << " on " << isa;
        }
    }
  });
}

// --------------------------------------------------------------------------------------------------------- quantizing

TEST(OpsQuantized, QuantizedNumbersAreHalfAStepAway) {
  for (const DType dtype : kStorage)
    for (const QuantizeOptions& options :
         {QuantizeOptions{8, 0}, QuantizeOptions{8, 32}, QuantizeOptions{4, 32}, QuantizeOptions{4, 0}}) {
      Random random(2);
      Matrix w(dtype, 9, 77, 4), back(DType::float64, 9, 77);
      w.fill_normal(random);
      for (int64_t k = 0; k < 77; ++k) w.set(4, k, 0);
      const QuantizedMatrix q = quantize(w, options);
      dequantize(q, back);
      for (int64_t n = 0; n < 9; ++n)
        for (int64_t k = 0; k < 77; ++k) {
          const double scale = std::abs(q.scales[static_cast<size_t>(n * q.groups() + k / q.group)]);
          // Of 4 bits the largest may be cut off.
          const double step = options.bits == 8 ? 0.5 : 1.5;
          EXPECT_LE(std::abs(back.get(n, k) - w.get(n, k)), step * scale * (1 + 256 * kUnit32)) << n << ' ' << k;
        }
    }
}

/// No worse than the scale that the largest magnitude has alone.
TEST(OpsQuantized, FourBitsHaveTheScaleOfTheLeastError) {
  Random random(3);
  Matrix w(DType::float32, 20, 64), back(DType::float32, 20, 64);
  w.fill_normal(random);
  dequantize(quantize(w, {.bits = 4, .group = 32}), back);
  double error = 0, plain = 0;
  for (int64_t n = 0; n < 20; ++n)
    for (int64_t first : {0, 32}) {
      double extreme = 0;
      for (int64_t k = first; k < first + 32; ++k)
        if (std::abs(w.get(n, k)) > std::abs(extreme)) extreme = w.get(n, k);
      for (int64_t k = first; k < first + 32; ++k) {
        const double scale = -extreme / 8, code = std::clamp(std::nearbyint(w.get(n, k) / scale), -8.0, 7.0);
        plain += std::pow(w.get(n, k) - scale * code, 2);
        error += std::pow(w.get(n, k) - back.get(n, k), 2);
      }
    }
  EXPECT_LT(error, 0.95 * plain);
}

TEST(OpsQuantized, Errors) {
  Matrix w(DType::float32, 4, 64), out(DType::float32, 4, 64);
  w.fill(1);
  const auto said = [](const std::function<void()>& call, const std::string& what) {
    EXPECT_TRUE(contains(error_of(call), what)) << error_of(call);
  };
  said([&] { quantize(w, {.bits = 5}); }, "[quantize] bits is 5, must be 8 or 4");
  said([&] { quantize(w, {.group = 24}); }, "group is 24, must be a multiple of 16");
  said([&] { quantize(w, {.group = -16}); }, "group is -16");
  const QuantizedMatrix good = quantize(w, {.bits = 4, .group = 32});
  w.set(2, 3, kInf);
  said([&] { quantize(w); }, "numbers that are not finite");
  const auto refuses = [&](const std::function<void(QuantizedMatrix&)>& spoil, const std::string& what) {
    QuantizedMatrix q = good;
    spoil(q);
    said([&] { PackedMatrix{q}; }, what);
    said([&] { dequantize(q, out); }, what);
  };
  refuses([](QuantizedMatrix& q) { q.bits = 3; }, "bits is 3");
  refuses([](QuantizedMatrix& q) { q.zero = 16; }, "zero is 16, must be in [0, 15]");
  refuses([](QuantizedMatrix& q) { q.group = 0; }, "group is 0");
  refuses([](QuantizedMatrix& q) { q.rows = 0; }, "rows and terms must be positive");
  refuses([](QuantizedMatrix& q) { q.codes.pop_back(); }, "codes must be [rows, terms]");
  refuses([](QuantizedMatrix& q) { q.codes[5] = 16; }, "codes of 4 bits must be in [0, 15]");
  refuses([](QuantizedMatrix& q) { q.scales.pop_back(); }, "scales must be [rows, groups]");
  refuses([](QuantizedMatrix& q) { q.offsets.push_back(1); }, "offsets must be [rows, groups], or none");
  refuses([](QuantizedMatrix& q) { q.scales[1] = std::numeric_limits<float>::infinity(); }, "must be finite");

  const PackedMatrix packed(good);
  EXPECT_TRUE(packed.is_quantized());
  EXPECT_FALSE(packed.reads_matrix());
  EXPECT_EQ(packed.size(), (Shape<2>{64, 4}));
  Matrix x(DType::float64, 2, 64), y(DType::float64, 2, 4), turned(DType::float32, 64, 2), narrow(DType::float32, 2, 4);
  x.fill(1), turned.fill(1);
  said([&] { matmul_packed(x, packed, y); }, "a is float64, must be float32, bfloat16 or float16 as b is quantized");
  said(
      [&] {
        matmul_packed({turned.row().data, DType::float32, {2, 64}, {1, 2}}, packed, narrow);
      },
      "must have dense rows as b is quantized");
  said([&] { matmul_packed(turned, packed, narrow); }, "must be [M, K], [K, N], [M, N]");
  const std::vector<int64_t> ids = {0, 4};
  Matrix rows(DType::float32, 2, 64);
  said([&] { embedding(ids, packed, rows); }, "ids[1] is 4, must be in [0, 4)");
  said([&] { embedding(ids, PackedMatrix(), rows); }, "the table is not a packed quantized matrix");
}

}  // namespace
}  // namespace attn::test
