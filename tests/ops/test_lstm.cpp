// ops: the recurrence of an LSTM against loops in float64, forward and backward, for sequences of different lengths.
#include "attn/ops_lstm.h"

#include <cmath>
#include <vector>

#include "support/ops.h"

namespace attn::test {
namespace {

using namespace attn::ops;

/// One call with its arrays.
struct Lstm {
  int64_t H;
  std::vector<int64_t> starts;
  Matrix x, weight, dout;
  Matrix out, gates, cells, dx, dweight;

  Lstm(DType dtype, int64_t H_, std::vector<int64_t> starts_, uint64_t seed = 1)
      : H(H_),
        starts(std::move(starts_)),
        x(dtype, starts.back(), 4 * H, 3),
        weight(dtype, 4 * H, H, 1),
        dout(dtype, starts.back(), H, 2),
        out(dtype, starts.back(), H, 1),
        gates(parameter_of(dtype), starts.back(), 4 * H, 1),
        cells(parameter_of(dtype), starts.back(), H),
        dx(dtype, starts.back(), 4 * H, 1),
        dweight(parameter_of(dtype), 4 * H, H, 2) {
    Random random(seed);
    for (Matrix* m : {&x, &dout}) m->fill_normal(random);
    weight.fill_normal(random, 1 / std::sqrt(static_cast<double>(H)));
    dweight.fill(0);
  }

  void forward() { lstm(x, weight, starts, out, {gates, cells}); }
  void backward() { lstm_backward(weight, starts, out, {gates, cells}, dout, dx, dweight); }
};

using Values = std::vector<double>;

double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

/// The recurrence and its derivative as they are written, in float64.
struct Loops {
  const Lstm& call;
  int64_t H;
  Values out, cells, gates, dx, dweight;

  explicit Loops(const Lstm& of)
      : call(of),
        H(of.H),
        out(static_cast<size_t>(of.x.rows() * H)),
        cells(out.size()),
        gates(4 * out.size()),
        dx(gates.size()),
        dweight(static_cast<size_t>(4 * H * H)) {
    for (size_t b = 0; b + 1 < call.starts.size(); ++b) {
      for (int64_t r = call.starts[b]; r < call.starts[b + 1]; ++r) step(r, r == call.starts[b]);
      Values dh(static_cast<size_t>(H)), dc(dh);
      for (int64_t r = call.starts[b + 1] - 1; r >= call.starts[b]; --r) step_back(r, r == call.starts[b], dh, dc);
    }
  }

  double& at(Values& values, int64_t row, int64_t column, int64_t width) const {
    return values[static_cast<size_t>(row * width + column)];
  }

  void step(int64_t r, bool first) {
    for (int64_t j = 0; j < 4 * H; ++j) {
      double sum = call.x.get(r, j);
      for (int64_t k = 0; k < H && !first; ++k) sum += call.weight.get(j, k) * at(out, r - 1, k, H);
      at(gates, r, j, 4 * H) = j / H == 2 ? std::tanh(sum) : sigmoid(sum);
    }
    for (int64_t n = 0; n < H; ++n) {
      const auto gate = [&](int64_t of) { return at(gates, r, of * H + n, 4 * H); };
      at(cells, r, n, H) = gate(0) * gate(2) + (first ? 0 : gate(1) * at(cells, r - 1, n, H));
      at(out, r, n, H) = gate(3) * std::tanh(at(cells, r, n, H));
    }
  }

  void step_back(int64_t r, bool first, Values& dh, Values& dc) {
    for (int64_t n = 0; n < H; ++n) {
      const auto gate = [&](int64_t of) { return at(gates, r, of * H + n, 4 * H); };
      const double d = call.dout.get(r, n) + dh[static_cast<size_t>(n)], t = std::tanh(at(cells, r, n, H));
      const double c = dc[static_cast<size_t>(n)] + d * gate(3) * (1 - t * t);
      const double before = first ? 0 : at(cells, r - 1, n, H);
      at(dx, r, n, 4 * H) = c * gate(2) * gate(0) * (1 - gate(0));
      at(dx, r, H + n, 4 * H) = c * before * gate(1) * (1 - gate(1));
      at(dx, r, 2 * H + n, 4 * H) = c * gate(0) * (1 - gate(2) * gate(2));
      at(dx, r, 3 * H + n, 4 * H) = d * t * gate(3) * (1 - gate(3));
      dc[static_cast<size_t>(n)] = c * gate(1);
    }
    for (int64_t k = 0; k < H; ++k) {
      double sum = 0;
      for (int64_t j = 0; j < 4 * H; ++j) {
        sum += at(dx, r, j, 4 * H) * call.weight.get(j, k);
        if (!first) at(dweight, j, k, H) += at(dx, r, j, 4 * H) * at(out, r - 1, k, H);
      }
      dh[static_cast<size_t>(k)] = sum;
    }
  }

  /// `steps` roundings of sums over H, each of which later steps pass on.
  testing::AssertionResult agrees(const Matrix& actual, const Values& expected, double terms) const {
    const auto width = static_cast<size_t>(actual.columns());
    double largest = 1;
    for (const double value : expected) largest = std::max(largest, std::abs(value));
    int64_t longest = 0;
    for (size_t b = 0; b + 1 < call.starts.size(); ++b)
      longest = std::max(longest, call.starts[b + 1] - call.starts[b]);
    return holds(actual, [&](int64_t r, int64_t c) {
      return Expected{expected[static_cast<size_t>(r) * width + static_cast<size_t>(c)], largest,
                      terms * static_cast<double>(longest)};
    });
  }
};

/// Below eight sequences products take other paths than above.
std::vector<std::vector<int64_t>> batches() {
  return {{0, 1}, {0, 5}, {0, 2, 9, 10}, {0, 3, 4, 8, 13, 15, 16, 19, 21, 24, 30, 31}};
}

TEST(OpsLstm, IsTheRecurrenceAndItsDerivative) {
  for_each_isa_of_elements([&](const std::string& isa) {
    for (const DType dtype : {DType::float64, DType::float32})
      for (const int64_t H : {1, 7, 33})
        for (const std::vector<int64_t>& starts : batches()) {
          Lstm call(dtype, H, starts);
          call.forward();
          call.backward();
          const Loops loops(call);
          const double terms = 8 + static_cast<double>(H);
          SCOPED_TRACE(std::string(name_of(dtype)) + ", H = " + std::to_string(H) + ", " +
                       std::to_string(starts.size() - 1) + " sequences on " + isa);
          EXPECT_TRUE(loops.agrees(call.out, loops.out, terms)) << "out";
          EXPECT_TRUE(loops.agrees(call.cells, loops.cells, terms)) << "cells";
          EXPECT_TRUE(loops.agrees(call.gates, loops.gates, terms)) << "gates";
          EXPECT_TRUE(loops.agrees(call.dx, loops.dx, terms)) << "dx";
          EXPECT_TRUE(loops.agrees(call.dweight, loops.dweight, terms * 4)) << "dweight";
        }
  });
}

/// A rounded h enters each step: errors of 16 bits pass on as those of the arithmetic do.
TEST(OpsLstm, SixteenBitsAreNear) {
  for (const DType dtype : {DType::bfloat16, DType::float16}) {
    Lstm call(dtype, 17, {0, 4, 9, 10});
    call.forward();
    call.backward();
    const Loops loops(call);
    const double unit = dtype == DType::bfloat16 ? std::exp2(-8) : std::exp2(-11);
    const auto far = [](const Matrix& actual, const Values& expected) {
      double most = 0;
      for (int64_t r = 0; r < actual.rows(); ++r)
        for (int64_t c = 0; c < actual.columns(); ++c)
          most = std::max(most, std::abs(actual.get(r, c) - expected[static_cast<size_t>(r * actual.columns() + c)]));
      return most;
    };
    EXPECT_LE(far(call.out, loops.out), 5 * unit);               // |h| < 1, five steps
    EXPECT_LE(far(call.dx, loops.dx), 5 * 8 * unit);             // gradients of a few units, five steps
    EXPECT_LE(far(call.dweight, loops.dweight), 10 * 8 * unit);  // of ten rows
  }
}

TEST(OpsLstm, GoesOnFromAState) {
  Lstm whole(DType::float64, 6, {0, 7, 14});
  whole.forward();
  Matrix state(DType::float64, 4, 6);
  state.fill(0);
  const View<2> rows = state;
  const View<3> kept(rows.data, rows.dtype, {2, 2, 6}, {12, 6, 1});
  for (int64_t t = 0; t < 7; ++t) {
    Matrix x(DType::float64, 2, 24), out(DType::float64, 2, 6);
    x.fill_with([&](int64_t b, int64_t c) { return whole.x.get(7 * b + t, c); });
    lstm(x, whole.weight, std::vector<int64_t>{0, 1, 2}, out, {}, kept);
    EXPECT_TRUE(holds(out, [&](int64_t b, int64_t c) { return Expected{whole.out.get(7 * b + t, c), 1, 100}; })) << t;
  }
  for (int64_t c = 0; c < 6; ++c) EXPECT_NEAR(state.get(3, c), whole.cells.get(13, c), 1e-12);
}

TEST(OpsLstm, ThreadsChangeNothing) {
  expect_same_on_all_threads([] {
    Lstm call(DType::float32, 160, {0, 3, 4, 8, 13, 15, 16, 19, 21, 24, 30, 31});
    call.forward();
    call.backward();
    return std::vector<Matrix>{call.out, call.dx, call.dweight};
  });
}

TEST(OpsLstm, SaysWhatIsWrong) {
  Lstm call(DType::float32, 4, {0, 3, 5});
  const auto of = [&](std::vector<int64_t> starts) {
    return error_of([&] { lstm(call.x, call.weight, starts, call.out); });
  };
  EXPECT_EQ(of({0, 3, 4}), "[lstm] cu_seqlens has 3 numbers, must rise from 0 to the 5 rows, with at least two");
  EXPECT_EQ(of({0, 3, 3, 5}), "[lstm] cu_seqlens has 4 numbers, must rise from 0 to the 5 rows, with at least two");
  EXPECT_EQ(of({}), "[lstm] cu_seqlens has 0 numbers, must rise from 0 to the 5 rows, with at least two");
  EXPECT_EQ(error_of([&] { lstm(call.x, call.x, call.starts, call.out); }),
            "[lstm] weight is [5, 16], must be [4 H, H]");
  EXPECT_EQ(error_of([&] { lstm(call.dout, call.weight, call.starts, call.out); }),
            "[lstm] x is float32 [5, 4], must be float32 [5, 16]");
  EXPECT_EQ(error_of([&] {
              lstm(call.x, call.weight, call.starts, call.out, {call.gates, {}});
            }),
            "[lstm] cells is float32 [0, 0], must be float32 [5, 4]");
  Matrix state(DType::float32, 2, 4);
  const View<2> rows = state;
  EXPECT_EQ(error_of([&] {
              lstm(call.x, call.weight, call.starts, call.out, {}, View<3>(rows.data, rows.dtype, {2, 1, 4}));
            }),
            "[lstm] state must have rows of float32 [2, 2, 4], is float32 [2, 1, 4]");
}

}  // namespace
}  // namespace attn::test
