// linear_attention(): its oracle against sums by hand and finite differences, and what must hold whatever the numbers.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "linear_case.h"
#include "support/checks.h"

namespace attn::test {
namespace {

/// The options that take every path: no decay, one a token and one a row, with and without the delta rule.
std::vector<LinearCase> paths(const LinearDims& dims, DType dtype = DType::float32) {
  std::vector<LinearCase> all;
  for (Decay decay : {Decay::none, Decay::token, Decay::row})
    for (bool delta : {false, true}) {
      LinearCase c{dims, dtype};
      c.decay = decay;
      c.delta = c.l2norm = delta;
      all.push_back(c.draw(50 + all.size()));
    }
  return all;
}

// ------------------------------------------------------------------------------------------------------- the reference

TEST(LinearReference, IsTheRecurrenceByHand) {
  // One feature, one value: S1 = 1/2 4 + 2 u1, u1 = 3 - 2 2 = -1, S1 = 0; S2 = 3 u2, u2 = 1/4 (5 - 0), o = 2 S q.
  LinearCase c{{1, 1, 1, 2, 1, 1}, DType::float64};
  c.delta = true;
  c.draw(1);
  const auto set = [](auto& x, std::vector<double> values) {
    for (size_t n = 0; n < values.size(); ++n) x.set(n, values[n]);
  };
  set(c.q, {1, 2});
  set(c.k, {2, 3});
  set(c.v, {3, 5});
  set(c.log_decay, {-std::log(2.0), 0});
  set(c.beta_values, {1, 0.25});
  set(c.initial_state, {4});
  LinearAttentionOptions options = c.options();
  options.scale = 2;
  Array<4> out(DType::float64, c.v.size()), state(DType::float64, c.state_size());
  reference::linear_attention(c.q.view(), c.k.view(), c.v.view(), out.view(), options, state.view());
  EXPECT_NEAR(out.get(0), 0, 1e-15);
  EXPECT_DOUBLE_EQ(out.get(1), 15);
  EXPECT_DOUBLE_EQ(state.get(0), 3.75);
}

/// <out, dout> + <final state, dfinal_state>
double loss(const LinearCase& c) {
  Array<4> out(DType::float64, c.v.size()), state(DType::float64, c.state_size());
  reference::linear_attention(c.q.view(), c.k.view(), c.v.view(), out.view(), c.options(), state.view());
  double sum = 0;
  for (int64_t n = 0; n < out.count(); ++n) sum += out.get(n) * c.dout.get(n);
  for (int64_t n = 0; n < state.count(); ++n) sum += state.get(n) * c.dfinal_state.get(n);
  return sum;
}

/// Central differences have an error of h^2 / 6 of the third derivative and a rounding of unit / h: with h = 2^-17,
/// near the cube root of the unit, both are below 2^-30 of numbers of size 10.
template <class Array>
void expect_differences(LinearCase c, Array LinearCase::*argument, const Values& gradient, const char* name) {
  constexpr double kStep = 0x1p-17, kBound = 0x1p-26;
  for (int64_t n = 0; n < (c.*argument).count(); ++n) {
    const double x = (c.*argument).get(n);
    (c.*argument).set(n, x + kStep);
    const double above = loss(c);
    (c.*argument).set(n, x - kStep);
    const double below = loss(c);
    (c.*argument).set(n, x);
    EXPECT_NEAR(gradient[n], (above - below) / (2 * kStep), kBound * (1 + std::abs(gradient[n])))
        << name << "[" << n << "] of " << c.name();
  }
}

TEST(LinearReference, HasTheGradientsOfFiniteDifferences) {
  for (int bits = 0; bits < 8; ++bits)
    for (Decay decay : {Decay::none, Decay::head, Decay::token, Decay::row}) {
      LinearCase c{{2, 1, 2, 4, 3, 2}, DType::float64};
      c.delta = bits & 1;
      c.l2norm = bits & 2;
      c.normalize = bits & 4;
      c.decay = decay;
      c.slowest = 0.1;  // a step of the difference stays below 0
      c.draw(bits * 4 + static_cast<int>(decay));
      if (c.delta && c.normalize) continue;  // sums of weights that may be 0
      const std::vector<Values> r = run_reference(c).values();
      expect_differences(c, &LinearCase::q, r[2], "dq");
      expect_differences(c, &LinearCase::k, r[3], "dk");
      expect_differences(c, &LinearCase::v, r[4], "dv");
      if (decay != Decay::none) expect_differences(c, &LinearCase::log_decay, r[5], "dlog_decay");
      expect_differences(c, &LinearCase::beta_values, r[6], "dbeta");
      expect_differences(c, &LinearCase::initial_state, r[7], "dinitial_state");
    }
}

// ------------------------------------------------------------------------------------------------------ cuts and bits

/// Tokens begin .. end - 1 of a call with one row in the batch, from `state` on.
LinearCase tokens_of(const LinearCase& c, int64_t begin, int64_t end, const Array<4>& state, const Array<4>& dstate) {
  LinearCase part = c;
  part.dims.L = end - begin;
  const auto cut = [&](auto& x) {
    if (!x.given() || x.size()[2] != c.dims.L) return;
    auto size = x.size();
    size[2] = end - begin;
    std::decay_t<decltype(x)> kept(x.dtype(), size);
    const int64_t width = x.count() / (size[0] * size[1] * c.dims.L);
    for (int64_t n = 0; n < kept.count(); ++n) {
      const int64_t row = n / (size[2] * width);
      kept.set(n, x.get((row * c.dims.L + begin) * width + n % (size[2] * width)));
    }
    x = kept;
  };
  for (Array<4>* x : {&part.q, &part.k, &part.v, &part.dout, &part.log_decay}) cut(*x);
  cut(part.beta_values);
  part.initial_state = state;
  part.dfinal_state = dstate;
  return part;
}

void append(Values& all, const Array<4>& part) {
  const Values values = part.values();
  all.insert(all.end(), values.begin(), values.end());
}

/// The call in two parts that hand over the state, and its gradient on the way back, is the whole call.
TEST(LinearProperties, ASequenceInPartsIsTheSequence) {
  for (const LinearCase& c : paths({1, 1, 1, 140, 16, 24})) {
    const LinearResults whole = run_kernels(c);
    const NaiveLinear<float> naive(c);
    const std::vector<Values> reference = run_reference(c).values(), naive_values = naive.values();
    for (int64_t cut : {1, 3, 4, 5, 8, 63, 64, 65, 72, 128, 139}) {
      SCOPED_TRACE(c.name() + ", cut at " + std::to_string(cut));
      const Array<4> nothing = Array<4>(c.state_type(), c.state_size());
      const LinearResults first = run_kernels(tokens_of(c, 0, cut, c.initial_state, nothing));
      const LinearResults second = run_kernels(tokens_of(c, cut, c.dims.L, first.final_state, c.dfinal_state));
      const LinearResults back = run_kernels(tokens_of(c, 0, cut, c.initial_state, second.dinitial_state));
      const auto expect = [&](int n, const Array<4>& begin, const Array<4>& end) {
        Values parts = begin.values();
        append(parts, end);
        const Yardstick yardstick({naive_values[n]}, reference[n], 0, 1);
        EXPECT_LE(max_abs_error(parts, reference[n]), float32_bound(yardstick, max_abs(reference[n])))
            << LinearResults::names[n];
      };
      expect(0, first.out, second.out);
      expect(2, back.dq, second.dq);
      expect(3, back.dk, second.dk);
      expect(4, back.dv, second.dv);
    }
  }
}

TEST(LinearProperties, TokenByTokenIsTheSequence) {
  for (const LinearCase& c : paths({1, 1, 2, 70, 16, 37})) {
    const std::vector<Values> reference = run_reference(c).values(), naive = NaiveLinear<float>(c).values();
    Array<4> state = c.initial_state;
    Array<4> out(DType::float32, c.v.size());
    for (int64_t t = 0; t < c.dims.L; ++t) {
      const LinearCase token = tokens_of(c, t, t + 1, state, state);
      LinearAttentionOptions options = token.options();
      options.initial_state = state.view();  // in place
      linear_attention(token.q.view(), token.k.view(), token.v.view(), part_of(out.view(), 2, t, 1), options,
                       state.view());
    }
    const Yardstick yardstick({naive[0]}, reference[0], 0, 2);
    EXPECT_LE(max_abs_error(out.values(), reference[0]), float32_bound(yardstick, max_abs(reference[0]))) << c.name();
  }
}

TEST(LinearProperties, BitsDoNotDependOnThreads) {
  for (const LinearCase& c : paths({2, 2, 4, 100, 24, 20})) {
    set_thread_count(1);
    const LinearResults serial = run_kernels(c);
    for (int threads : {2, 3, 7}) {
      set_thread_count(threads);
      EXPECT_TRUE(serial.same_bits_as(run_kernels(c))) << c.name() << ", " << threads << " threads";
    }
    set_thread_count(0);
  }
}

/// Rows of a batch as packed sequences of one row: the same bits.
TEST(LinearProperties, BitsDoNotDependOnPacking) {
  for (LinearCase c : paths({3, 1, 2, 67, 12, 20})) {
    const LinearResults apart = run_kernels(c);
    LinearCase packed = c;
    packed.dims.B = 1;
    packed.dims.L = 3 * 67;
    packed.cu_seqlens = {0, 67, 134, 201};
    const auto pack = [](auto x) {  // [3, H, 67, n] to [1, H, 201, n]
      if (!x.given() || x.size()[0] == 1) return x;
      auto size = x.size();
      const int64_t row = x.count() / (size[0] * size[1]);
      size[0] = 1;
      size[2] *= 3;
      decltype(x) to(x.dtype(), size);
      for (int64_t n = 0; n < x.count(); ++n) {
        const int64_t b = n / (row * size[1]), h = n / row % size[1];
        to.set((h * 3 + b) * row + n % row, x.get(n));
      }
      return to;
    };
    for (Array<4>* x : {&packed.q, &packed.k, &packed.v, &packed.dout, &packed.log_decay}) *x = pack(*x);
    packed.beta_values = pack(packed.beta_values);
    const LinearResults together = run_kernels(packed);
    EXPECT_TRUE(same_bits(together.out, pack(apart.out))) << c.name();
    EXPECT_TRUE(same_bits(together.dq, pack(apart.dq))) << c.name();
    EXPECT_TRUE(same_bits(together.dk, pack(apart.dk))) << c.name();
    EXPECT_TRUE(same_bits(together.dv, pack(apart.dv))) << c.name();
    EXPECT_TRUE(same_bits(together.dbeta, pack(apart.dbeta))) << c.name();
    EXPECT_TRUE(same_bits(together.final_state, apart.final_state)) << c.name();
  }
}

/// [B, L, H, D] in memory, as models have it, and elements apart: the same bits.
TEST(LinearProperties, BitsDoNotDependOnStrides) {
  for (const LinearCase& c : paths({2, 2, 2, 70, 20, 12})) {
    const LinearResults dense = run_kernels(c);
    const auto strided = [](const Array<4>& x) {  // element (b, h, t, d) at 2 (((b L + t) H + h) D + d)
      Array<4> memory(x.dtype(), {x.size()[0], x.size()[2], x.size()[1], 2 * x.size()[3]});
      return memory;
    };
    const auto view_of = [](auto memory, const Array<4>& x) {
      const auto [B, H, L, D] = x.size();
      return decltype(memory){memory.data, memory.dtype, x.size(), {2 * L * H * D, 2 * D, 2 * H * D, 2}};
    };
    Array<4> q = strided(c.q), k = strided(c.k), v = strided(c.v), out = strided(c.v);
    for (auto [from, to] : {std::pair{&c.q, &q}, {&c.k, &k}, {&c.v, &v}}) {
      const View<4> view = view_of(to->view(), *from);
      for (int64_t n = 0; n < from->count(); ++n) {
        const auto [B, H, L, D] = from->size();
        const int64_t b = n / (H * L * D), h = n / (L * D) % H, t = n / D % L, d = n % D;
        static_cast<float*>(view.data)[b * view.stride[0] + h * view.stride[1] + t * view.stride[2] + 2 * d] =
            static_cast<float>(from->get(n));
      }
    }
    const ConstView<4> results = view_of(ConstView<4>(out.view()), c.v);
    linear_attention(view_of(q.view(), c.q), view_of(k.view(), c.k), view_of(v.view(), c.v), view_of(out.view(), c.v),
                     c.options());
    for (int64_t n = 0; n < c.v.count(); ++n) {
      const auto [B, H, L, D] = c.v.size();
      const int64_t b = n / (H * L * D), h = n / (L * D) % H, t = n / D % L, d = n % D;
      ASSERT_EQ(static_cast<const float*>(
                    results.data)[b * results.stride[0] + h * results.stride[1] + t * results.stride[2] + 2 * d],
                dense.out.get(n))
          << c.name();
    }
  }
}

/// More chunks than a backward holds states of.
TEST(LinearProperties, LongSequencesGoInSegments) {
  for (LinearCase c : paths({1, 1, 1, 2 * 256 * 64 + 100, 16, 2})) {
    if (effort() == Effort::quick && c.decay == Decay::row) continue;
    const NaiveLinear<float> naive(c);
    const std::vector<Values> reference = run_reference(c).values(), naive_values = naive.values(),
                              values = run_kernels(c).values();
    for (size_t n = 0; n < values.size(); ++n) {
      if (reference[n].empty() || std::string(LinearResults::names[n]) == "dlog_decay") continue;
      const Yardstick yardstick({naive_values[n]}, reference[n], 0, 1);
      EXPECT_LE(max_abs_error(values[n], reference[n]), float32_bound(yardstick, max_abs(reference[n])))
          << LinearResults::names[n] << " of " << c.name();
    }
  }
}

// ----------------------------------------------------------------------------------------------------- extreme numbers

TEST(LinearProperties, NaNStaysInItsSequenceAndBeforeNothing) {
  for (const LinearCase& clean : paths({2, 1, 2, 100, 8, 8})) {
    const LinearResults expected = run_kernels(clean);
    LinearCase c = clean;
    const int64_t bad = 71;
    for (int64_t h = 0; h < 2; ++h) c.v.set({1, h, bad, 3}, kNaN);
    c.q.set({1, 0, bad, 2}, kNaN);
    const LinearResults r = run_kernels(c);
    const auto same = [](const Array<4>& a, const Array<4>& b, int64_t n) {
      return std::isfinite(a.get(n)) && a.get(n) == b.get(n);
    };
    for (int64_t n = 0; n < c.v.count(); ++n) {
      const int64_t b = n / (2 * 100 * 8), t = n / 8 % 100;
      if (b == 0 || t < bad) {
        EXPECT_TRUE(same(r.out, expected.out, n)) << c.name() << " out of token " << t;
      }
      if (b == 0) {
        EXPECT_TRUE(same(r.dv, expected.dv, n)) << c.name();
      }
    }
    EXPECT_TRUE(std::isnan(r.out.get({1, 0, 99, 3}))) << c.name();
    for (int64_t n = 0; n < c.q.count() / 2; ++n) EXPECT_TRUE(same(r.dq, expected.dq, n)) << c.name();
  }
}

/// A product of decays below the smallest normal number counts as 0: so much of what it multiplies is lost.
double flushed(const LinearCase& c) {
  const double most = max_abs(c.q.values()) * max_abs(c.dout.values()) + max_abs(c.dfinal_state.values());
  return double{std::numeric_limits<float>::min()} * static_cast<double>(c.dims.L) * most;
}

TEST(LinearProperties, DecaysMayForgetEverything) {
  for (LinearCase c : paths({1, 1, 1, 150, 8, 8})) {
    if (c.decay == Decay::none) continue;
    for (double forget : {-kInf, -1e4, -200.0, -80.0}) {
      const int64_t width = c.log_decay.size()[3];
      for (int64_t t : {0, 63, 64, 70, 149})
        for (int64_t d = 0; d < width; ++d) c.log_decay.set({0, 0, t, d}, forget);
      const std::vector<Values> reference = run_reference(c).values(), naive = NaiveLinear<float>(c).values(),
                                values = run_kernels(c).values();
      for (size_t n = 0; n < values.size(); ++n) {
        if (std::string(LinearResults::names[n]) == "dlog_decay") {
          for (double x : values[n]) ASSERT_TRUE(std::isfinite(x)) << c.name();
          continue;
        }
        const Yardstick yardstick({naive[n]}, reference[n], 0, 1);
        EXPECT_LE(max_abs_error(values[n], reference[n]), float32_bound(yardstick, max_abs(reference[n])) + flushed(c))
            << LinearResults::names[n] << " of " << c.name() << ", log decay " << forget;
      }
    }
  }
}

TEST(LinearProperties, AnOutputWithoutWeightIsZero) {
  LinearCase c{{1, 1, 1, 70, 8, 8}};
  c.normalize = true;
  c.initial = false;
  c.decay = Decay::none;
  c.draw(3);
  for (int64_t n = 0; n < 10 * 8; ++n) c.k.set(n, 0);  // the first ten tokens write nothing
  const LinearResults r = run_kernels(c);
  for (int64_t n = 0; n < c.v.count(); ++n) {
    if (n < 10 * 8) {
      EXPECT_EQ(r.out.get(n), 0);
    } else {
      EXPECT_TRUE(std::isfinite(r.out.get(n)));
    }
  }
  for (double x : r.dq.values()) EXPECT_TRUE(std::isfinite(x));
}

}  // namespace
}  // namespace attn::test
