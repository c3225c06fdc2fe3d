// Calls of linear_attention(): variants, forward and backward, beside dense products of this library; steps of decoding
// beside a read and a write of the states; and the exponent of the time against the length. One thread.
#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "attn/attn.h"
#include "modes.h"
#include "timer.h"

namespace bench {
namespace {

using attn::DType;

constexpr int64_t kHeads = 4, kDepth = 128, kTokens = 4096, kCheckedTokens = 150, kChunk = 64;
constexpr double kSeconds = 3;  // for each figure, unless --seconds says otherwise

struct Variant {
  const char* name;
  bool decay_per_token, decay_per_row, delta;
};
constexpr Variant kVariants[] = {{"linear attention", false, false, false},
                                 {"Mamba 2", true, false, false},
                                 {"GLA", false, true, false},
                                 {"DeltaNet", false, false, true},
                                 {"gated DeltaNet", true, false, true},
                                 {"Kimi delta attention", false, true, true}};

/// The arguments and results of one call, of `heads` heads.
class LinearCall {
 public:
  LinearCall(const Variant& variant, DType dtype, int64_t heads, int64_t tokens)
      : variant_(variant), heads_(heads), tokens_(tokens) {
    const std::vector<int64_t> rows = {1, heads, tokens, kDepth};
    for (attn::Array* x : {&q_, &k_, &v_, &dout_, &out_, &dq_, &dk_, &dv_}) *x = attn::Array(dtype, rows);
    decay_ = attn::Array(DType::float32, {1, heads, tokens, variant.decay_per_row ? kDepth : 1});
    ddecay_ = attn::Array(DType::float32, decay_.shape());
    beta_ = attn::Array(DType::float32, {1, heads, tokens});
    dbeta_ = attn::Array(DType::float32, {1, heads, tokens});
    state_ = attn::Array(DType::float32, {1, heads, kDepth, kDepth});
    attn::Random random(1);
    for (const attn::Array& x : {q_, k_, v_, dout_}) attn::fill_normal(x, random);
    float* decay = decay_.data<float>();
    for (int64_t n = 0; n < decay_.count(); ++n) decay[n] = static_cast<float>(-0.1 * random.uniform());
    float* beta = beta_.data<float>();
    for (int64_t n = 0; n < beta_.count(); ++n) beta[n] = static_cast<float>(random.uniform());
  }

  void forward() { attn::linear_attention(q_, k_, v_, out_, options()); }
  /// Goes on from the state that the call before it left.
  void step() {
    attn::LinearAttentionOptions o = options();
    o.initial_state = state_;
    attn::linear_attention(q_, k_, v_, out_, o, state_);
  }
  void backward() { attn::linear_attention_backward(q_, k_, v_, dout_, gradients(), options()); }
  void reference() {
    attn::reference::linear_attention(q_, k_, v_, out_, options());
    attn::reference::linear_attention_backward(q_, k_, v_, dout_, gradients(), options());
  }
  std::vector<attn::Array> results() const { return {out_, dq_, dk_, dv_}; }
  int64_t state_bytes() const { return state_.count() * 4; }

  /// Of the products that a call makes, each multiply-add counted as two. A triangle of a chunk counts half.
  double forward_flops() const {
    const double state = kDepth * kDepth, triangle = 0.5 * kChunk * kDepth;
    return tokens() * 2 * (2 * state + 2 * triangle + (variant_.delta ? state + 2 * triangle : 0));
  }
  double backward_flops() const {
    const double state = kDepth * kDepth, triangle = 0.5 * kChunk * kDepth;
    const double plain = 6 * state + 5 * triangle, delta = 4 * state + 8 * triangle;
    return tokens() * 2 * (plain + (variant_.delta ? delta : 0));
  }

 private:
  double tokens() const { return static_cast<double>(heads_ * tokens_); }
  attn::LinearAttentionOptions options() const {
    attn::LinearAttentionOptions o;
    if (variant_.decay_per_token || variant_.decay_per_row) o.log_decay = decay_;
    if (variant_.delta) o.beta = beta_;
    o.delta = o.l2norm = variant_.delta;
    return o;
  }
  attn::LinearAttentionGradients gradients() const {
    attn::LinearAttentionGradients g;
    g.dq = dq_;
    g.dk = dk_;
    g.dv = dv_;
    if (variant_.decay_per_token || variant_.decay_per_row) g.dlog_decay = ddecay_;
    if (variant_.delta) g.dbeta = dbeta_;
    return g;
  }

  const Variant& variant_;
  int64_t heads_, tokens_;
  attn::Array q_, k_, v_, dout_, out_, dq_, dk_, dv_, decay_, ddecay_, beta_, dbeta_, state_;
};

bool check(const Variant& variant, DType dtype) {
  LinearCall actual(variant, dtype, 2, kCheckedTokens), expected(variant, dtype, 2, kCheckedTokens);
  actual.forward();
  actual.backward();
  expected.reference();
  return are_close(actual.results(), expected.results(), dtype);
}

/// A dense product of this library in float32, of a size that it is good at: flop/s of one call.
class DenseProduct {
 public:
  DenseProduct()
      : x_(DType::float32, {kSize, kSize}), w_(DType::float32, {kSize, kSize}), y_(DType::float32, {kSize, kSize}) {
    attn::Random random(2);
    for (const attn::Array& x : {x_, w_}) attn::fill_normal(x, random);
  }
  double sample() const {
    const double seconds = seconds_of([&] { attn::ops::matmul(x_.view<2>(), w_.view<2>(), y_.view<2>()); });
    return 2.0 * kSize * kSize * kSize / seconds;
  }

 private:
  static constexpr int64_t kSize = 512;
  attn::Array x_, w_, y_;
};

/// The quickest samples of a call and of a dense product: other programs disturb every median.
void add_call(const char* what, const Variant& variant, DType dtype, double flops, const std::function<void()>& call,
              const DenseProduct& dense, double seconds, Report& report) {
  const auto taken = in_turn({[&] { return seconds_of(call); }, [&] { return dense.sample(); }}, 3, seconds);
  const double best = *std::min_element(taken[0].begin(), taken[0].end());
  const double product = *std::max_element(taken[1].begin(), taken[1].end());
  report.add({{"isa", attn::active_isa()},
              {"call", what},
              {"variant", variant.name},
              {"dtype", attn::name_of(dtype)},
              {"ms", best * 1e3},
              {"spread %", 100 * (median(taken[0]) / best - 1)},
              {"rate", flops / best * 1e-9},
              {"limit", product * 1e-9},
              {"% of limit", 100 * flops / best / product},
              {"in", "GFLOP/s of dense float32 products"}});
}

/// One token of so many heads that their states are in no cache.
void add_step(const Variant& variant, double seconds, Report& report) {
  constexpr int64_t kMany = 2048;  // 128 MiB of states
  LinearCall call(variant, DType::float32, kMany, 1);
  std::vector<float> from(call.state_bytes() / 4, 1), to(from.size());
  const auto taken =
      in_turn({[&] { return seconds_of([&] { call.step(); }); },
               [&] {
                 return seconds_of(
                     [&] { std::transform(to.begin(), to.end(), to.begin(), [](float x) { return x * 0.5f + 1; }); });
               }},
              3, seconds);
  const double bytes = 2.0 * static_cast<double>(call.state_bytes());
  const double rate = bytes / *std::min_element(taken[0].begin(), taken[0].end());
  const double limit = bytes / *std::min_element(taken[1].begin(), taken[1].end());
  report.add({{"isa", attn::active_isa()},
              {"call", "step"},
              {"variant", variant.name},
              {"dtype", "float32"},
              {"ms", bytes / rate * 1e3},
              {"spread %", 100 * (median(taken[0]) * rate / bytes - 1)},
              {"rate", rate * 1e-9},
              {"limit", limit * 1e-9},
              {"% of limit", 100 * rate / limit},
              {"in", "GB/s of states read and written"}});
}

/// The slope of log(time) against log(length).
void add_exponent(const Variant& variant, int64_t longest, Report& report) {
  double x = 0, y = 0, xx = 0, xy = 0, count = 0, last = 0;
  for (int64_t tokens = longest / 32; tokens <= longest; tokens *= 2, ++count) {
    LinearCall call(variant, DType::float32, 1, tokens);
    const auto taken = in_turn({[&] { return seconds_of([&] { call.forward(); }); }}, 3);
    last = *std::min_element(taken[0].begin(), taken[0].end());
    const double length = std::log(static_cast<double>(tokens)), time = std::log(last);
    x += length, y += time, xx += length * length, xy += length * time;
  }
  report.add({{"isa", attn::active_isa()},
              {"call", "forward of " + std::to_string(longest) + " tokens"},
              {"variant", variant.name},
              {"dtype", "float32"},
              {"ms", last * 1e3},
              {"spread %", NAN},
              {"rate", (count * xy - x * y) / (count * xx - x * x)},
              {"limit", 1.0},
              {"% of limit", NAN},
              {"in", "exponent of the time"}});
}

}  // namespace

bool run_linear(const Settings& settings, Report& report) {
  attn::set_thread_count(1);
  const double seconds = settings.seconds > 0 ? settings.seconds : kSeconds;
  const int64_t tokens = seconds < 0.1 ? kCheckedTokens : kTokens;
  const DenseProduct dense;
  for (const Variant& variant : kVariants)
    for (DType dtype : {DType::float32, DType::bfloat16}) {
      if (!check(variant, dtype)) {
        std::fprintf(stderr, "%s in %s: WRONG\n", variant.name, std::string(attn::name_of(dtype)).c_str());
        return false;
      }
      LinearCall call(variant, dtype, kHeads, tokens);
      add_call(
          "forward", variant, dtype, call.forward_flops(), [&] { call.forward(); }, dense, seconds, report);
      add_call(
          "backward", variant, dtype, call.backward_flops(), [&] { call.backward(); }, dense, seconds, report);
    }
  for (const Variant& variant : kVariants) add_step(variant, seconds, report);
  if (settings.long_text > 0) add_exponent(kVariants[4], settings.long_text / 32 * 32, report);
  return true;
}

}  // namespace bench
