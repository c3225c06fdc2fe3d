// ops: layer norm and RMS norm, forward and backward.
#include "support/ops.h"

namespace attn::test {
namespace {

using namespace attn::ops;

constexpr double kEpsilon = 1e-5;

/// One norm with its arrays; centred: layer norm.
struct Norm {
  bool centred;
  Matrix x, weight, bias, dy;
  Matrix y, mean, rstd, dx, dweight, dbias;

  Norm(bool centred_, DType dtype, int64_t R, int64_t C, int64_t gap)
      : centred(centred_),
        x(dtype, R, C, gap),
        weight(parameter_of(dtype), 1, C),
        bias(parameter_of(dtype), 1, C),
        dy(dtype, R, C, gap + 1),
        y(dtype, R, C, gap),
        mean(parameter_of(dtype), 1, R),
        rstd(parameter_of(dtype), 1, R),
        dx(dtype, R, C, gap),
        dweight(parameter_of(dtype), 1, C),
        dbias(parameter_of(dtype), 1, C) {
    Random random(static_cast<uint64_t>(R * 1000 + C));
    for (Matrix* m : {&x, &weight, &bias, &dy, &dweight, &dbias}) m->fill_normal(random);
    x.fill_with([&](int64_t, int64_t) { return 0.5 + random.normal(); });
    mean.fill(0);
  }

  void forward() {
    if (centred) layer_norm(x, weight.row(), bias.row(), kEpsilon, y, mean.row(), rstd.row());
    else rms_norm(x, weight.row(), kEpsilon, y, rstd.row());
  }
  void backward() {
    if (centred) {
      layer_norm_backward(x, weight.row(), mean.row(), rstd.row(), dy, dx, dweight.row(), dbias.row());
    } else {
      rms_norm_backward(x, weight.row(), rstd.row(), dy, dx, dweight.row());
    }
  }

  double size() const { return static_cast<double>(x.columns()); }
  /// sum of f(c) over the columns
  template <class F>
  double over_columns(const F& f) const {
    double sum = 0;
    for (int64_t c = 0; c < x.columns(); ++c) sum += f(c);
    return sum;
  }
  double true_mean(int64_t r) const {
    return centred ? over_columns([&](int64_t c) { return x.get(r, c); }) / size() : 0;
  }
  double true_rstd(int64_t r) const {
    const double middle = true_mean(r);
    const double squares = over_columns([&](int64_t c) { return std::pow(x.get(r, c) - middle, 2); });
    return 1 / std::sqrt(squares / size() + kEpsilon);
  }
  /// The sum of magnitudes of which a row's mean, and every x - mean, is a difference.
  double spread(int64_t r) const {
    return over_columns([&](int64_t c) { return std::abs(x.get(r, c)); }) / size();
  }
};

void expect_forward(const Norm& n, const std::string& what) {
  const double size = n.size();
  std::vector<double> mean, rstd;
  for (int64_t r = 0; r < n.x.rows(); ++r) {
    mean.push_back(n.true_mean(r));
    rstd.push_back(n.true_rstd(r));
  }
  EXPECT_TRUE(holds(n.y, [&](int64_t r, int64_t c) {
    const double scaled = (n.x.get(r, c) - mean[r]) * rstd[r] * n.weight.get(c);
    const double terms = (std::abs(n.x.get(r, c)) + n.spread(r)) * rstd[r] * std::abs(n.weight.get(c));
    const double bias = n.centred ? n.bias.get(c) : 0;
    return Expected{scaled + bias, terms + std::abs(bias), size};
  })) << what;
  EXPECT_TRUE(holds(n.rstd,
                    [&](int64_t, int64_t r) {
                      return Expected{rstd[r], rstd[r] * (1 + n.spread(r)), size};
                    }))
      << "rstd, " << what;
  if (n.centred) {
    EXPECT_TRUE(holds(n.mean,
                      [&](int64_t, int64_t r) {
                        return Expected{mean[r], n.spread(r), size};
                      }))
        << "mean, " << what;
  }
}

/// Against the statistics as they were rounded: their error is the forward's.
void expect_backward(const Norm& n, const Norm& before, const std::string& what) {
  const double size = n.size(), rows = static_cast<double>(n.x.rows());
  const auto normal = [&](int64_t r, int64_t c) { return (n.x.get(r, c) - n.mean.get(r)) * n.rstd.get(r); };
  const auto terms = [&](int64_t r, int64_t c) {
    return (std::abs(n.x.get(r, c)) + std::abs(n.mean.get(r))) * n.rstd.get(r);
  };
  const auto g = [&](int64_t r, int64_t c) { return n.dy.get(r, c) * n.weight.get(c); };
  std::vector<double> mean_g, mean_gn, size_g, size_gn;
  for (int64_t r = 0; r < n.x.rows(); ++r) {
    mean_g.push_back(n.centred ? n.over_columns([&](int64_t c) { return g(r, c); }) / size : 0);
    mean_gn.push_back(n.over_columns([&](int64_t c) { return g(r, c) * normal(r, c); }) / size);
    size_g.push_back(n.over_columns([&](int64_t c) { return std::abs(g(r, c)); }) / size);
    size_gn.push_back(n.over_columns([&](int64_t c) { return std::abs(g(r, c)) * terms(r, c); }) / size);
  }
  EXPECT_TRUE(holds(n.dx,
                    [&](int64_t r, int64_t c) {
                      const double rstd = n.rstd.get(r);
                      return Expected{rstd * (g(r, c) - mean_g[r] - normal(r, c) * mean_gn[r]),
                                      rstd * (std::abs(g(r, c)) + size_g[r] + terms(r, c) * size_gn[r]), size};
                    }))
      << "dx, " << what;
  EXPECT_TRUE(holds(n.dweight,
                    [&](int64_t, int64_t c) {
                      Expected e{before.dweight.get(c), std::abs(before.dweight.get(c)), rows};
                      for (int64_t r = 0; r < n.x.rows(); ++r) {
                        e.value += n.dy.get(r, c) * normal(r, c);
                        e.magnitude += std::abs(n.dy.get(r, c)) * terms(r, c);
                      }
                      return e;
                    }))
      << "dweight, " << what;
  EXPECT_TRUE(holds(n.dbias,
                    [&](int64_t, int64_t c) {
                      Expected e{before.dbias.get(c), std::abs(before.dbias.get(c)), rows};
                      for (int64_t r = 0; n.centred && r < n.x.rows(); ++r) {
                        e.value += n.dy.get(r, c);
                        e.magnitude += std::abs(n.dy.get(r, c));
                      }
                      return e;
                    }))
      << "dbias, " << what;
}

TEST(OpsNorm, IsItsDefinition) {
  for_each_layout([](DType dtype, int64_t C, int64_t gap, const std::string& what) {
    for (bool centred : {true, false}) {
      Norm n(centred, dtype, 3, C, gap);
      const Norm before(centred, dtype, 3, C, gap);
      n.forward();
      expect_forward(n, what);
      n.backward();
      expect_backward(n, before, what);
    }
  });
}

TEST(OpsNorm, GradientsOfManyRows) {
  for_each_isa_of_elements([](const std::string& isa) {
    for (DType dtype : kStorage)
      for (bool centred : {true, false}) {
        Norm n(centred, dtype, 200, 130, 0);
        const Norm before(centred, dtype, 200, 130, 0);
        n.forward();
        n.backward();
        expect_backward(n, before, isa);
      }
  });
}

TEST(OpsNorm, GradientsAreDifferences) {
  for_each_isa_of_elements([](const std::string&) {
    for (bool centred : {true, false}) {
      Norm n(centred, DType::float64, 3, 7, 0);
      n.dweight.fill(0);
      n.dbias.fill(0);
      n.forward();
      n.backward();
      const auto loss = [&] {
        n.forward();
        return product(n.dy, n.y);
      };
      expect_gradient("dx", n.x, n.dx, loss);
      expect_gradient("dweight", n.weight, n.dweight, loss);
      if (centred) expect_gradient("dbias", n.bias, n.dbias, loss);
    }
  });
}

TEST(OpsNorm, InPlaceAndWithoutStatistics) {
  for_each_isa_of_elements([](const std::string& isa) {
    for (DType dtype : kStorage)
      for (bool centred : {true, false}) {
        Norm n(centred, dtype, 5, 37, 2);
        n.forward();
        n.backward();
        Matrix y = n.x.copy(), dx = n.x.copy(), dweight = n.weight.copy();
        if (centred) {
          layer_norm(y, n.weight.row(), n.bias.row(), kEpsilon, y);
          layer_norm_backward(dx, n.weight.row(), n.mean.row(), n.rstd.row(), n.dy, dx, dweight.row());
        } else {
          rms_norm(y, n.weight.row(), kEpsilon, y);
          rms_norm_backward(dx, n.weight.row(), n.rstd.row(), n.dy, dx, dweight.row());
        }
        EXPECT_TRUE(y.same_bits(n.y)) << isa;
        EXPECT_TRUE(dx.same_bits(n.dx)) << isa;
      }
  });
}

TEST(OpsNorm, WithoutBiasItIsZero) {
  for_each_isa_of_elements([](const std::string& isa) {
    Norm n(true, DType::float32, 5, 37, 0);
    n.bias.fill(0);
    n.forward();
    Matrix y = Matrix::like(n.x);
    layer_norm(n.x, n.weight.row(), {}, kEpsilon, y);
    EXPECT_TRUE(y.same_bits(n.y)) << isa;
  });
}

TEST(OpsNorm, ThreadsDoNotMatter) {
  expect_same_on_all_threads([] {
    std::vector<Matrix> results;
    for (DType dtype : kStorage)
      for (bool centred : {true, false}) {
        Norm n(centred, dtype, 333, 301, 1);
        n.forward();
        n.backward();
        for (const Matrix& m : {n.y, n.mean, n.rstd, n.dx, n.dweight, n.dbias}) results.push_back(m);
      }
    return results;
  });
}

TEST(OpsNorm, ErrorsListEveryReason) {
  Norm n(true, DType::bfloat16, 3, 4, 0);
  Matrix wrong(DType::bfloat16, 2, 4);
  const std::string what =
      error_of([&] { layer_norm(n.x, wrong.row(), n.bias.row(), -1, wrong, n.mean.row(), wrong.row()); });
  EXPECT_TRUE(contains(what, "[layer_norm] weight is bfloat16 [4], must be float32 [4]")) << what;
  EXPECT_TRUE(contains(what, "epsilon is -1")) << what;
  EXPECT_TRUE(contains(what, "y is bfloat16 [2, 4], must be bfloat16 [3, 4]")) << what;
  EXPECT_TRUE(contains(what, "rstd is bfloat16 [4], must be float32 [3]")) << what;
  const std::string back =
      error_of([&] { rms_norm_backward(n.x, n.weight.row(), n.rstd.row(), wrong, wrong, n.mean.row()); });
  EXPECT_TRUE(contains(back, "[rms_norm_backward] dy is bfloat16 [2, 4], must be bfloat16 [3, 4]")) << back;
  EXPECT_TRUE(contains(back, "dx is bfloat16 [2, 4]")) << back;
  EXPECT_TRUE(contains(back, "dweight is float32 [3], must be float32 [4]")) << back;
  Matrix narrow(DType::float32, 3, 0);
  EXPECT_TRUE(contains(error_of([&] { rms_norm(narrow, narrow.row(), 0, narrow); }), "must have at least one element"));
  Matrix none(DType::float32, 0, 4), weight(DType::float32, 1, 4), empty(DType::float32, 1, 0), total = weight.copy();
  EXPECT_EQ(error_of([&] {
              layer_norm(none, weight.row(), weight.row(), 0, none);
              layer_norm_backward(none, weight.row(), empty.row(), empty.row(), none, none, total.row(), total.row());
            }),
            "");
  EXPECT_TRUE(total.same_bits(weight));
}

}  // namespace
}  // namespace attn::test
