// The public boundary: every condition of linear_attention(), checked before anything is computed.
#include <cmath>
#include <limits>
#include <string>

#include "core/layout.h"
#include "core/overlap.h"
#include "linear/largest.h"
#include "linear/problem.h"

namespace attn::linear {
namespace {

constexpr int64_t kMaxDepth = 1024;

using detail::check_layout;
using detail::region;

std::string text(int64_t value) { return std::to_string(value); }

template <class Pointer>
void check_state(Checker& checker, const char* name, const BasicView<Pointer, 4>& view, const LinearProblem& p,
                 bool any_type) {
  if (!view) return;
  const bool more = p.options->normalize;
  check_array(checker, name, view, p.states(), more ? "[N, Hv, Dk, Dv + 1]" : "[N, Hv, Dk, Dv]");
  if (!any_type) check_type(checker, name, view.dtype, p.state_type, "");
}

void check_decay(Checker& checker, LinearProblem& p) {
  const ConstView<4>& decay = p.options->log_decay;
  if (!decay) return;
  const Shape<4> full = {p.B, p.Hv, p.L, p.Dk};
  bool fits = true;
  for (int axis = 0; axis < 4; ++axis) fits = fits && (decay.size[axis] == full[axis] || decay.size[axis] == 1);
  checker.require(is_floating(decay.dtype),
                  [&] { return "log_decay is " + std::string(name_of(decay.dtype)) + ", must be a floating type"; });
  checker.require(fits, [&] {
    return "log_decay has size " + to_string<4>(decay.size) + ", must be [B, Hv, L, Dk] = " + to_string<4>(full) +
           kAxesMayBeOne;
  });
  check_layout(checker, "log_decay", decay);
  p.decay_per_row = decay.size[3] > 1;
  if (!checker.ok()) return;
  const double largest = largest_element(decay);
  checker.require(!(largest > 0), [&] {
    return "log_decay has the element " + std::to_string(largest) +
           ", must be at most 0: it is the logarithm of the factor on the state";
  });
}

void check_numbers(Checker& checker, const LinearAttentionOptions& o) {
  checker.require(!o.scale || std::isfinite(*o.scale),
                  [&] { return "scale is " + std::to_string(*o.scale) + ", must be finite"; });
  checker.require(o.l2norm_epsilon >= 0 && std::isfinite(o.l2norm_epsilon), [&] {
    return "l2norm_epsilon is " + std::to_string(o.l2norm_epsilon) + ", must be finite and at least 0";
  });
}

}  // namespace

LinearProblem make_problem(Checker& checker, const ConstView<4>& q, const ConstView<4>& k, const ConstView<4>& v,
                           const LinearAttentionOptions& options) {
  LinearProblem p{q, k, v, &options, q.size[0], q.size[1], v.size[1], q.size[2], q.size[3], v.size[3]};
  p.columns = p.Dv + options.normalize;
  p.scale = options.scale.value_or(p.Dk == 0 ? 1 : 1 / std::sqrt(static_cast<double>(p.Dk)));
  p.state_type = q.dtype == DType::float64 ? DType::float64 : DType::float32;
  check_array(checker, "q", q, q.size, "[B, H, L, Dk]");
  check_array(checker, "k", k, q.size, "q's size");
  check_array(checker, "v", v, {p.B, p.Hv, p.L, p.Dv}, "[B, Hv, L, Dv]");
  check_type(checker, "k", k.dtype, q.dtype, ", q's type");
  check_type(checker, "v", v.dtype, q.dtype, ", q's type");
  checker.require(p.H > 0 ? p.Hv % p.H == 0 : p.Hv == 0,
                  [&] { return "v has " + text(p.Hv) + " heads, must have a multiple of q's " + text(p.H); });
  p.group = p.H > 0 ? p.Hv / p.H : 1;
  checker.require(p.Dk <= kMaxDepth && p.Dv <= kMaxDepth, [&] {
    return "q has " + text(p.Dk) + " features and v " + text(p.Dv) + ", must have at most " + text(kMaxDepth);
  });
  check_numbers(checker, options);
  if (options.beta) check_array(checker, "beta", options.beta, {p.B, p.Hv, p.L}, "[B, Hv, L]");
  p.sequences = checked_sequences(checker, options.cu_seqlens, "q", p.B, p.L);
  check_state(checker, "initial_state", options.initial_state, p, false);
  check_decay(checker, p);
  return p;
}

void check_forward(Checker& checker, const LinearProblem& p, const View<4>& out, const View<4>& final_state,
                   bool any_type) {
  check_array(checker, "out", out, {p.B, p.Hv, p.L, p.Dv}, "[B, Hv, L, Dv]");
  if (!any_type) check_type(checker, "out", out.dtype, p.q.dtype, ", q's type");
  check_state(checker, "final_state", final_state, p, any_type);
  if (!checker.ok()) return;
  const LinearAttentionOptions& o = *p.options;
  const bool in_place = final_state.data == o.initial_state.data && final_state.stride == o.initial_state.stride;
  const ConstView<4> other_initial = in_place ? ConstView<4>() : o.initial_state;
  detail::check_overlap(checker, {region("out", out), region("final_state", final_state)},
                        {region("q", p.q), region("k", p.k), region("v", p.v), region("log_decay", o.log_decay),
                         region("beta", o.beta), region("initial_state", other_initial)});
}

void check_backward(Checker& checker, const LinearProblem& p, const ConstView<4>& dout,
                    const LinearAttentionGradients& g, const ConstView<4>& dfinal_state) {
  const LinearAttentionOptions& o = *p.options;
  const auto check = [&](const char* name, const auto& view, const auto& size, const char* axes) {
    if (view) check_array(checker, name, view, size, axes);
  };
  check_array(checker, "dout", dout, {p.B, p.Hv, p.L, p.Dv}, "[B, Hv, L, Dv]");
  check_state(checker, "dfinal_state", dfinal_state, p, false);
  check("dq", g.dq, p.q.size, "q's size");
  check("dk", g.dk, p.q.size, "q's size");
  check("dv", g.dv, p.v.size, "v's size");
  if (checker.require(!g.dlog_decay || o.log_decay, "dlog_decay is given, but log_decay is not"))
    check("dlog_decay", g.dlog_decay, o.log_decay.size, "log_decay's size");
  if (checker.require(!g.dbeta || o.beta, "dbeta is given, but beta is not"))
    check("dbeta", g.dbeta, o.beta.size, "beta's size");
  check_state(checker, "dinitial_state", g.dinitial_state, p, true);
  if (!checker.ok()) return;
  detail::check_overlap(
      checker,
      {region("dq", g.dq), region("dk", g.dk), region("dv", g.dv), region("dlog_decay", g.dlog_decay),
       region("dbeta", g.dbeta), region("dinitial_state", g.dinitial_state)},
      {region("q", p.q), region("k", p.k), region("v", p.v), region("dout", dout), region("log_decay", o.log_decay),
       region("beta", o.beta), region("initial_state", o.initial_state), region("dfinal_state", dfinal_state)});
}

}  // namespace attn::linear
