// attention_backward() against the oracle and against finite differences.
#include <gtest/gtest.h>

#include <utility>

#include "support/checks.h"

namespace attn::test {
namespace {

TEST(Backward, EveryOptionInEveryType) {
  sample_every_option(200, [](const Case& c) { Oracle(c).expect_on_every_isa(); });
}

TEST(Backward, LongRows) {
  for (int64_t length : {int64_t{129}, int64_t{257}, by_effort(400, 600, 600)})
    for (DType dtype : {DType::float32, DType::bfloat16}) {
      const Dims dims = {.B = 1, .H = 2, .Hk = 1, .Lq = length, .Lk = length, .D = 40, .Dv = 40};
      for (const char* feature : {"none", "causal top_left", "documents", "bias keys"})
        Oracle(make_case(feature_named(feature), dims, dtype, length)).expect_on_every_isa();
    }
}

TEST(Backward, HeadWidths) {
  for (auto [D, Dv] : {std::pair<int64_t, int64_t>{1024, 1024}, {300, 3}, {3, 300}, {1, 1}}) {
    const Dims dims = {.B = 1, .H = 4, .Hk = 2, .Lq = 20, .Lk = 40, .D = D, .Dv = Dv};
    for (DType dtype : {DType::float32, DType::float16})
      Oracle(make_case(feature_named("causal bottom_right"), dims, dtype, D)).expect_on_every_isa();
  }
}

/// x as the first elements of rows that are a kilobyte and more apart, NaN between them.
struct FarApart {
  explicit FarApart(const Array<4>& x) : memory(x.dtype(), {x.size()[0], x.size()[1], x.size()[2], x.size()[3] + 600}) {
    memory.fill_with_nan();
    const int64_t n = x.size()[3];
    for (int64_t i = 0; i < x.count(); ++i) memory.set(i / n * (n + 600) + i % n, x.get(i));
    rows = part_of(std::as_const(memory).view(), 3, 0, n);
  }
  Array<4> memory;
  ConstView<4> rows;
};

/// Where rows are changes no bit, although those far apart are packed: once for all groups of rows, of which there are
/// several here, and anew for each key/value head. One key is not finite.
TEST(Backward, RowsFarApart) {
  const Dims dims = {.B = 2, .H = 4, .Hk = 2, .Lq = 160, .Lk = 300, .D = 20, .Dv = 12};
  for_each_isa([&](const std::string& isa) {
    sample(2 * feature_count(), {.quick = 12, .normal = 40, .seconds = 60}, [&](int64_t n) {
      const DType dtype = n % 2 == 0 ? DType::float32 : DType::bfloat16;
      Case c = make_case(features()[n / 2], dims, dtype, 900 + n);
      const Dims& d = c.dims;  // as the feature left them
      c.k.set({d.B - 1, d.Hk - 1, d.Lk - 10, 3}, kInf);
      c.v.set({d.B - 1, d.Hk - 1, d.Lk - 10, 5}, kInf);
      const FarApart k(c.k), v(c.v);
      const Results near = run(c);
      Results far = near;
      far.dk.fill_with_nan();
      far.dv.fill_with_nan();
      attention(c.q.view(), k.rows, v.rows, far.out.view(), far.lse.view(), c.options());
      attention_backward(c.q.view(), k.rows, v.rows, far.out.view(), far.lse.view(), c.dout.view(), gradients_of(far),
                         c.options(), c.dlse.view());
      EXPECT_TRUE(same_results(near, far)) << c.name() << ", " << isa;
    });
  });
}

/// The fused kernel itself in float64, differentiated numerically.
TEST(Gradcheck, EveryOption) {
  const int64_t samples = by_effort(4, 12, 60);
  const Dims dims = {.B = 4, .H = 2, .Hk = 2, .Lq = 17, .Lk = 17, .D = 16, .Dv = 16};
  const Dims ragged = {.B = 1, .H = 4, .Hk = 1, .Lq = 5, .Lk = 11, .D = 7, .Dv = 3};
  const int64_t grid = 2 * feature_count();
  sample(grid, {.quick = grid, .normal = grid, .seconds = 60}, [&](int64_t n) {
    const Case c = make_case(features()[n / 2], n % 2 == 0 ? dims : ragged, DType::float64, 300 + n);
    for_each_isa([&](const std::string& isa) {
      SCOPED_TRACE(isa);
      check_gradients(c, run, samples);
    });
  });
}

/// Where tanh is 1 to all digits, its slope is small and not 0.
TEST(Backward, SaturatedSoftcap) {
  for (DType dtype : {DType::float64, DType::float32}) {
    Case c = make_case(feature_named("softcap"), {.Lq = 5, .Lk = 9, .D = 4, .Dv = 4}, dtype, 8);
    c.q.fill(20);
    for (int64_t n = 0; n < c.k.count(); ++n) c.k.set(n, 1 + 0.01 * static_cast<double>(n));
    EXPECT_GT(max_abs(run_reference(c).dq.values()), 0);
    Oracle(std::move(c)).expect_on_every_isa();
  }
}

// ------------------------------------------------------------------------------------------------ what may be left out

/// Asking for fewer gradients changes no bit of those that are given.
TEST(Backward, AnyGradientMayBeMissing) {
  for_each_isa([](const std::string& isa) {
    for (const char* name : {"none", "everything", "bias full", "sink", "packed causal"}) {
      const Case c = make_case(feature_named(name), small_dims()[0], DType::float32, 5);
      const Results all = run(c);
      for (int missing = 0; missing < 31; ++missing) {
        Results some = all;
        AttentionGradients gradients = gradients_of(some);
        if (missing & 1) gradients.dq = {};
        if (missing & 2) gradients.dk = {};
        if (missing & 4) gradients.dv = {};
        if (missing & 8) gradients.dbias = {};
        if (missing & 16) gradients.dsink = {};
        for (auto* gradient : {&some.dq, &some.dk, &some.dv, &some.dbias}) gradient->fill(0);
        some.dsink.fill(0);
        Results expected = all;
        if (missing & 1) expected.dq.fill(0);
        if (missing & 2) expected.dk.fill(0);
        if (missing & 4) expected.dv.fill(0);
        if (missing & 8) expected.dbias.fill(0);
        if (missing & 16) expected.dsink.fill(0);
        attention_backward(c.q.view(), c.k.view(), c.v.view(), all.out.view(), all.lse.view(), c.dout.view(), gradients,
                           c.options(), c.dlse.view());
        EXPECT_TRUE(same_results(some, expected)) << c.name() << " without " << missing << " on " << isa;
      }
    }
  });
}

TEST(Backward, NoDlseIsZeroDlse) {
  for_each_isa([](const std::string& isa) {
    Case c = make_case(feature_named("everything"), small_dims()[1], DType::float32, 6);
    c.dlse.fill(0);
    const Results zero = run(c);
    Results none = zero;
    attention_backward(c.q.view(), c.k.view(), c.v.view(), none.out.view(), none.lse.view(), c.dout.view(),
                       gradients_of(none), c.options());
    EXPECT_TRUE(same_results(zero, none)) << isa;
  });
}

/// 16-bit inputs with float32 gradients: the same gradients, not rounded.
TEST(Backward, Float32GradientsOf16BitInputs) {
  for_each_isa([](const std::string& isa) {
    for (DType dtype : {DType::bfloat16, DType::float16}) {
      const Case c = make_case(feature_named("causal bottom_right"), small_dims()[1], dtype, 7);
      const Results narrow = run(c);
      Results wide = narrow;
      wide.dq = Array<4>(DType::float32, c.q.size()).fill_with_nan();
      wide.dk = Array<4>(DType::float32, c.k.size()).fill_with_nan();
      wide.dv = Array<4>(DType::float32, c.v.size()).fill_with_nan();
      attention_backward(c.q.view(), c.k.view(), c.v.view(), wide.out.view(), wide.lse.view(), c.dout.view(),
                         gradients_of(wide), c.options(), c.dlse.view());
      EXPECT_TRUE(same_bits(wide.dq.as(dtype), narrow.dq)) << isa;
      EXPECT_TRUE(same_bits(wide.dk.as(dtype), narrow.dk)) << isa;
      EXPECT_TRUE(same_bits(wide.dv.as(dtype), narrow.dv)) << isa;
    }
  });
}

/// Keys split in two, each half with the out and lse of the whole: the parts add up. Ring attention rests on it.
TEST(Backward, HalvesAddUp) {
  const Case c =
      make_case(feature_named("none"), {.H = 2, .Hk = 2, .Lq = 9, .Lk = 40, .D = 16, .Dv = 16}, DType::float64, 8);
  for_each_isa([&](const std::string& isa) {
    const Results whole = run(c);
    Results sum = whole;
    sum.dq.fill(0);
    for (int64_t first_key : {0, 20}) {
      const auto half = [&](const auto& view) { return part_of(view, 2, first_key, 20); };
      Array<4> dq = sum.dq;
      attention_backward(c.q.view(), half(c.k.view()), half(c.v.view()), whole.out.view(), whole.lse.view(),
                         c.dout.view(), {.dq = dq.view(), .dk = half(sum.dk.view()), .dv = half(sum.dv.view())}, {},
                         c.dlse.view());
      for (int64_t n = 0; n < dq.count(); ++n) sum.dq.set(n, sum.dq.get(n) + dq.get(n));
    }
    EXPECT_TRUE(close_float64(sum.dq.values(), whole.dq.values())) << isa;
    EXPECT_TRUE(close_float64(sum.dk.values(), whole.dk.values())) << isa;
    EXPECT_TRUE(close_float64(sum.dv.values(), whole.dv.values())) << isa;
  });
}

}  // namespace
}  // namespace attn::test
