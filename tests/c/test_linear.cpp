// Linear attention and the short convolution in C: the bits of C++ in every field, decode in place, and what is
// refused.
#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>

#include "attn/c_linear.h"
#include "attn/linear_attention.h"
#include "attn/linear_convolution.h"
#include "support/c_tensors.h"

namespace attn::test {
namespace {

constexpr int64_t B = 2, H = 2, Hv = 4, L = 70, Dk = 8, Dv = 5;

struct Inputs {
  Array<4> q{DType::float32, {B, H, L, Dk}}, k = q, v{DType::float32, {B, Hv, L, Dv}}, dout = v;
  Array<4> log_decay{DType::float32, {B, Hv, L, 1}}, initial{DType::float32, {B, Hv, Dk, Dv}}, dfinal = initial;
  Array<3> beta{DType::float32, {B, Hv, L}};
  double scale = 0.5, epsilon = 1e-3;

  Inputs() {
    Random random(4);
    for (Array<4>* x : {&q, &k, &v, &dout, &initial, &dfinal}) x->fill_normal(random);
    for (int64_t n = 0; n < beta.count(); ++n) beta.set(n, random.uniform()), log_decay.set(n, -random.uniform());
  }
  LinearAttentionOptions options() const {
    return {.scale = scale,
            .log_decay = log_decay.view(),
            .beta = beta.view(),
            .delta = true,
            .l2norm = true,
            .l2norm_epsilon = epsilon,
            .initial_state = initial.view()};
  }
};

struct Results {
  Array<4> out{DType::float32, {B, Hv, L, Dv}}, final_state{DType::float32, {B, Hv, Dk, Dv}};
  Array<4> dq{DType::float32, {B, H, L, Dk}}, dk = dq, dv = out, dlog_decay{DType::float32, {B, Hv, L, 1}};
  Array<4> dinitial = final_state;
  Array<3> dbeta{DType::float32, {B, Hv, L}};

  std::vector<std::vector<std::byte>> bytes() const {
    std::vector<std::vector<std::byte>> all = {dbeta.bytes()};
    for (const Array<4>* x : {&out, &final_state, &dq, &dk, &dv, &dlog_decay, &dinitial}) all.push_back(x->bytes());
    return all;
  }
};

/// The arguments of C that point into `in` and `r`.
struct Call {
  Call(Inputs& in, Results& r)
      : q(tensor(in.q)),
        k(tensor(in.k)),
        v(tensor(in.v)),
        dout(tensor(in.dout)),
        dfinal(tensor(in.dfinal)),
        log_decay(tensor(in.log_decay)),
        beta(tensor(in.beta)),
        initial(tensor(in.initial)),
        out(tensor(r.out)),
        final_state(tensor(r.final_state)),
        dq(tensor(r.dq)),
        dk(tensor(r.dk)),
        dv(tensor(r.dv)),
        dlog_decay(tensor(r.dlog_decay)),
        dbeta(tensor(r.dbeta)),
        dinitial(tensor(r.dinitial)) {
    options.struct_size = sizeof options;
    options.scale = &in.scale, options.l2norm_epsilon = &in.epsilon;
    options.log_decay = &log_decay, options.beta = &beta, options.initial_state = &initial;
    options.delta = options.l2norm = 1;
    gradients = {sizeof gradients, &dq, &dk, &dv, &dlog_decay, &dbeta, &dinitial};
  }
  attn_status forward() { return attn_linear_attention(&q, &k, &v, &out, &final_state, &options); }
  attn_status backward() { return attn_linear_attention_backward(&q, &k, &v, &dout, &dfinal, &gradients, &options); }

  attn_tensor q, k, v, dout, dfinal, log_decay, beta, initial, out, final_state;
  attn_tensor dq, dk, dv, dlog_decay, dbeta, dinitial;
  attn_linear_options options{};
  attn_linear_gradients gradients{};
};

TEST(CLinear, EveryFieldHasTheBitsOfCpp) {
  Inputs in;
  Results expected, r;
  linear_attention(in.q.view(), in.k.view(), in.v.view(), expected.out.view(), in.options(),
                   expected.final_state.view());
  linear_attention_backward(in.q.view(), in.k.view(), in.v.view(), in.dout.view(),
                            {.dq = expected.dq.view(),
                             .dk = expected.dk.view(),
                             .dv = expected.dv.view(),
                             .dlog_decay = expected.dlog_decay.view(),
                             .dbeta = expected.dbeta.view(),
                             .dinitial_state = expected.dinitial.view()},
                            in.options(), in.dfinal.view());
  Call c(in, r);
  ASSERT_EQ(c.forward(), ATTN_OK) << attn_last_error();
  ASSERT_EQ(c.backward(), ATTN_OK) << attn_last_error();
  EXPECT_TRUE(r.bytes() == expected.bytes());
}

/// An option that is mistaken for another one changes the bits of its own case.
TEST(CLinear, EveryOptionAlone) {
  struct Setting {
    const char* name;
    void (*set)(Inputs&, Call&, LinearAttentionOptions&);
  };
  const Setting settings[] = {
      {"scale",
       [](Inputs& in, Call& c, LinearAttentionOptions& cpp) { c.options.scale = &in.scale, cpp.scale = in.scale; }},
      {"scale 0", [](Inputs& in, Call& c,
                     LinearAttentionOptions& cpp) { in.scale = 0, c.options.scale = &in.scale, cpp.scale = 0; }},
      {"log_decay",
       [](Inputs& in, Call& c, LinearAttentionOptions& cpp) {
         c.options.log_decay = &c.log_decay, cpp.log_decay = in.log_decay.view();
       }},
      {"beta",
       [](Inputs& in, Call& c, LinearAttentionOptions& cpp) { c.options.beta = &c.beta, cpp.beta = in.beta.view(); }},
      {"delta", [](Inputs&, Call& c, LinearAttentionOptions& cpp) { c.options.delta = 1, cpp.delta = true; }},
      {"l2norm", [](Inputs&, Call& c, LinearAttentionOptions& cpp) { c.options.l2norm = 1, cpp.l2norm = true; }},
      {"l2norm_epsilon",
       [](Inputs& in, Call& c, LinearAttentionOptions& cpp) {
         c.options.l2norm = 1, cpp.l2norm = true;
         c.options.l2norm_epsilon = &in.epsilon, cpp.l2norm_epsilon = in.epsilon;
       }},
      {"normalize",
       [](Inputs&, Call& c, LinearAttentionOptions& cpp) { c.options.normalize = 1, cpp.normalize = true; }},
      {"initial_state",
       [](Inputs& in, Call& c, LinearAttentionOptions& cpp) {
         c.options.initial_state = &c.initial, cpp.initial_state = in.initial.view();
       }},
  };
  std::vector<std::vector<std::byte>> outs;
  for (const Setting& setting : settings) {
    Inputs in;
    Results expected, r;
    Call c(in, r);
    LinearAttentionOptions cpp;
    c.options = {}, c.options.struct_size = sizeof c.options;
    setting.set(in, c, cpp);
    linear_attention(in.q.view(), in.k.view(), in.v.view(), expected.out.view(), cpp);
    ASSERT_EQ(attn_linear_attention(&c.q, &c.k, &c.v, &c.out, nullptr, &c.options), ATTN_OK)
        << setting.name << ": " << attn_last_error();
    linear_attention_backward(in.q.view(), in.k.view(), in.v.view(), in.dout.view(),
                              {.dq = expected.dq.view(), .dk = expected.dk.view(), .dv = expected.dv.view()}, cpp);
    c.gradients = {sizeof c.gradients, &c.dq, &c.dk, &c.dv, nullptr, nullptr, nullptr};
    ASSERT_EQ(attn_linear_attention_backward(&c.q, &c.k, &c.v, &c.dout, nullptr, &c.gradients, &c.options), ATTN_OK)
        << setting.name << ": " << attn_last_error();
    EXPECT_TRUE(r.bytes() == expected.bytes()) << setting.name;
    for (const std::vector<std::byte>& other : outs) EXPECT_NE(r.out.bytes(), other) << setting.name;
    outs.push_back(r.out.bytes());
  }
}

TEST(CLinear, DefaultsNormalizeAndPackedSequences) {
  Inputs in;
  for (Array<4>* x : {&in.q, &in.k})
    for (int64_t n = 0; n < x->count(); ++n) x->set(n, std::abs(x->get(n)));
  Results expected, r;
  Call c(in, r);
  linear_attention(in.q.view(), in.k.view(), in.v.view(), expected.out.view());
  ASSERT_EQ(attn_linear_attention(&c.q, &c.k, &c.v, &c.out, nullptr, nullptr), ATTN_OK) << attn_last_error();
  EXPECT_EQ(r.out.bytes(), expected.out.bytes());

  Array<4> x(DType::float32, {1, 1, 10, 4}), y = x, y_expected = x;
  Random random(2);
  x.fill_normal(random);
  const std::vector<int64_t> starts = {0, 3, 3, 9};
  Array<4> state(DType::float32, {3, 1, 4, 5}), state_expected = state;
  linear_attention(x.view(), x.view(), x.view(), y_expected.view(), {.normalize = true, .cu_seqlens = starts},
                   state_expected.view());
  const attn_tensor cx = tensor(x), cy = tensor(y), cstate = tensor(state);
  attn_linear_options options{};
  options.struct_size = sizeof options, options.normalize = 1, options.cu_seqlens = list(starts);
  ASSERT_EQ(attn_linear_attention(&cx, &cx, &cx, &cy, &cstate, &options), ATTN_OK) << attn_last_error();
  EXPECT_EQ(y.bytes(), y_expected.bytes());
  EXPECT_EQ(state.bytes(), state_expected.bytes());
}

TEST(CLinear, DecodesInPlace) {
  Inputs in;
  Results expected, r;
  const View<4> cpp_state = expected.final_state.view();
  Call c(in, r);
  c.options = {};
  c.options.struct_size = sizeof c.options, c.options.initial_state = &c.final_state;
  c.q.size[2] = c.k.size[2] = c.v.size[2] = c.out.size[2] = 1;  // the first token, again and again
  for (int n = 0; n < 3; ++n) {
    linear_attention(in.q.view().slice(2, 0, 1), in.k.view().slice(2, 0, 1), in.v.view().slice(2, 0, 1),
                     expected.out.view().slice(2, 0, 1), {.initial_state = cpp_state}, cpp_state);
    ASSERT_EQ(c.forward(), ATTN_OK) << attn_last_error();
  }
  EXPECT_EQ(r.out.bytes(), expected.out.bytes());
  EXPECT_EQ(r.final_state.bytes(), expected.final_state.bytes());
}

TEST(CLinear, SaysAllThatIsWrong) {
  Inputs in;
  Results r;
  Call c(in, r);
  attn_tensor flat = c.beta;
  flat.rank = 2;
  c.out.size[3] = 4;
  c.options.beta = &flat, c.options.delta = 2, c.options.reserved = 1;
  c.options.cu_seqlens = {nullptr, 3};
  in.epsilon = -1;
  EXPECT_EQ(c.forward(), ATTN_INVALID_ARGUMENT);
  const std::string said = attn_last_error();
  for (const char* reason :
       {"[attn_linear_attention] ", "options.beta has rank 2, must be 3", "options.delta is 2, must be 0 or 1",
        "options.reserved must be 0", "options.cu_seqlens has no data and count 3",
        "l2norm_epsilon is -1.000000, must be finite and at least 0", "out has size [2, 4, 70, 4], must be"})
    EXPECT_NE(said.find(reason), std::string::npos) << reason << " in " << said;
  EXPECT_EQ(r.out.bytes(), Results().out.bytes()) << "nothing is written";
  EXPECT_EQ(attn_linear_attention_backward(nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr),
            ATTN_INVALID_ARGUMENT);
  EXPECT_STREQ(attn_last_error(),
               "[attn_linear_attention_backward] q is a null pointer; k is a null pointer; v is a null pointer; "
               "dout is a null pointer; gradients is a null pointer");
}

TEST(CLinear, NullPointers) {
  EXPECT_EQ(attn_linear_attention(nullptr, nullptr, nullptr, nullptr, nullptr, nullptr), ATTN_INVALID_ARGUMENT);
  EXPECT_STREQ(attn_last_error(),
               "[attn_linear_attention] q is a null pointer; k is a null pointer; v is a null pointer; out is a null "
               "pointer");
  EXPECT_EQ(attn_causal_convolution(nullptr, nullptr, nullptr, nullptr, nullptr), ATTN_INVALID_ARGUMENT);
  EXPECT_STREQ(attn_last_error(),
               "[attn_causal_convolution] x is a null pointer; weight is a null pointer; out is a null pointer");
  EXPECT_EQ(attn_causal_convolution_backward(nullptr, nullptr, nullptr, nullptr, nullptr, nullptr),
            ATTN_INVALID_ARGUMENT);
  EXPECT_STREQ(attn_last_error(),
               "[attn_causal_convolution_backward] x is a null pointer; weight is a null pointer; dout is a null "
               "pointer; gradients is a null pointer");
}

TEST(CLinear, StructsGrow) {
  Inputs in;
  Results expected, r;
  Call c(in, r);
  LinearAttentionOptions cpp = in.options();
  cpp.delta = cpp.l2norm = false;
  linear_attention(in.q.view(), in.k.view(), in.v.view(), expected.out.view(), cpp);
  // Fields of an older header's struct: what comes later is not given.
  c.options.struct_size = offsetof(attn_linear_options, delta);
  ASSERT_EQ(attn_linear_attention(&c.q, &c.k, &c.v, &c.out, nullptr, &c.options), ATTN_OK) << attn_last_error();
  EXPECT_EQ(r.out.bytes(), expected.out.bytes());
  c.gradients.struct_size = offsetof(attn_linear_gradients, dv);
  c.options.struct_size = sizeof c.options;
  ASSERT_EQ(c.backward(), ATTN_OK) << attn_last_error();
  EXPECT_NE(r.dk.bytes(), Results().dk.bytes());
  EXPECT_EQ(r.dv.bytes(), Results().dv.bytes());
  // Those of a newer one must be zero.
  struct {
    attn_linear_options options;
    size_t more;
  } newer{c.options, 0};
  newer.options.struct_size = sizeof newer;
  const auto call = [&] { return attn_linear_attention(&c.q, &c.k, &c.v, &c.out, nullptr, &newer.options); };
  EXPECT_EQ(call(), ATTN_OK) << attn_last_error();
  newer.more = 1;
  EXPECT_EQ(call(), ATTN_INVALID_ARGUMENT);
  EXPECT_NE(std::string(attn_last_error()).find("options sets a field beyond the"), std::string::npos);
  newer.options.struct_size = 0;
  EXPECT_EQ(call(), ATTN_INVALID_ARGUMENT);
  EXPECT_NE(std::string(attn_last_error()).find("options.struct_size is 0, must be the sizeof"), std::string::npos);
}

TEST(CLinear, TheConvolutionHasTheBitsOfCpp) {
  constexpr int64_t C = 6, W = 4;
  Random random(8);
  Array<3> x(DType::float32, {B, L, C}), dout = x, out = x, out_expected = x, dx = x, dx_expected = x;
  Array<3> initial(DType::float32, {B, C, W - 1}), last = initial, last_expected = initial, dinitial = initial;
  Array<3> dinitial_expected = initial;
  Array<2> weight(DType::float32, {C, W}), dweight = weight, dweight_expected = weight;
  Array<1> bias(DType::float32, {C}), dbias = bias, dbias_expected = bias;
  x.fill_normal(random), dout.fill_normal(random), initial.fill_normal(random), weight.fill_normal(random);
  bias.fill_normal(random);
  const CausalConvolutionOptions cpp{.bias = bias.view(), .silu = true, .initial_state = initial.view()};
  causal_convolution(x.view(), weight.view(), out_expected.view(), cpp, last_expected.view());
  causal_convolution_backward(x.view(), weight.view(), dout.view(),
                              {.dx = dx_expected.view(),
                               .dweight = dweight_expected.view(),
                               .dbias = dbias_expected.view(),
                               .dinitial_state = dinitial_expected.view()},
                              cpp, last_expected.view());

  const attn_tensor cx = tensor(x), cweight = tensor(weight), cout = tensor(out), clast = tensor(last);
  const attn_tensor cbias = tensor(bias), cinitial = tensor(initial), cdout = tensor(dout), cdx = tensor(dx);
  const attn_tensor cdweight = tensor(dweight), cdbias = tensor(dbias), cdinitial = tensor(dinitial);
  attn_convolution_options options{};
  options.struct_size = sizeof options, options.bias = &cbias, options.initial_state = &cinitial, options.silu = 1;
  const attn_convolution_gradients gradients{sizeof gradients, &cdx, &cdweight, &cdbias, &cdinitial};
  ASSERT_EQ(attn_causal_convolution(&cx, &cweight, &cout, &clast, &options), ATTN_OK) << attn_last_error();
  ASSERT_EQ(attn_causal_convolution_backward(&cx, &cweight, &cdout, &clast, &gradients, &options), ATTN_OK)
      << attn_last_error();
  EXPECT_EQ(out.bytes(), out_expected.bytes());
  EXPECT_EQ(last.bytes(), last_expected.bytes());
  EXPECT_EQ(dx.bytes(), dx_expected.bytes());
  EXPECT_EQ(dweight.bytes(), dweight_expected.bytes());
  EXPECT_EQ(dbias.bytes(), dbias_expected.bytes());
  EXPECT_EQ(dinitial.bytes(), dinitial_expected.bytes());

  Array<2> ids(DType::int32, {B, L});
  for (int64_t n = 0; n < ids.count(); ++n) ids.set(n, static_cast<double>(n % L / 30));
  causal_convolution(x.view(), weight.view(), out_expected.view(), {.segment_ids = ids.view()});
  const attn_tensor cids = tensor(ids);
  options = {};
  options.struct_size = sizeof options, options.segment_ids = &cids;
  ASSERT_EQ(attn_causal_convolution(&cx, &cweight, &cout, nullptr, &options), ATTN_OK) << attn_last_error();
  EXPECT_EQ(out.bytes(), out_expected.bytes());

  options.silu = -1, options.reserved = 4;
  EXPECT_EQ(attn_causal_convolution(&cx, nullptr, &cout, nullptr, &options), ATTN_INVALID_ARGUMENT);
  EXPECT_STREQ(attn_last_error(),
               "[attn_causal_convolution] weight is a null pointer; options.reserved must be 0; options.silu is -1, "
               "must be 0 or 1");
}

}  // namespace
}  // namespace attn::test
