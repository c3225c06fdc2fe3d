// The public boundary: every condition of causal_convolution(), checked before anything is computed.
#include <string>

#include "core/overlap.h"
#include "linear/convolution.h"

namespace attn::linear {
namespace {

using detail::region;

template <class Pointer>
void check_taps(Checker& checker, const char* name, const BasicView<Pointer, 3>& view, const Convolution& c) {
  if (view) check_array(checker, name, view, c.states(), "[N, C, W - 1]");
}

/// A state, which holds tokens of x, W - 1 or more.
template <class Pointer>
void check_tokens(Checker& checker, const char* name, const BasicView<Pointer, 3>& view, const Convolution& c,
                  bool any_type) {
  if (!view) return;
  const auto [N, C, tokens] = c.states();
  checker.require(view.size[0] == N && view.size[1] == C && view.size[2] >= tokens, [&] {
    return std::string(name) + " has size " + to_string(view.size) +
           ", must be [N, C, W - 1 or more] = " + to_string(c.states());
  });
  check_array(checker, name, view, view.size, "");
  if (!any_type) check_type(checker, name, view.dtype, c.x.dtype, ", x's type");
}

void check_segments(Checker& checker, const Convolution& c) {
  const ConstView<2>& ids = c.options->segment_ids;
  if (!ids) return;
  const Shape<2> expected = {c.B, c.L};
  checker.require(ids.dtype == DType::int32 || ids.dtype == DType::int64,
                  [&] { return "segment_ids is " + std::string(name_of(ids.dtype)) + ", must be int32 or int64"; });
  checker.require(ids.size == expected, [&] {
    return "segment_ids has size " + to_string(ids.size) + ", must be [B, L] = " + to_string(expected);
  });
  detail::check_layout(checker, "segment_ids", ids);
}

}  // namespace

Convolution make_convolution(Checker& checker, const ConstView<3>& x, const ConstView<2>& weight,
                             const CausalConvolutionOptions& options) {
  Convolution c{x, weight, &options, x.size[0], x.size[1], x.size[2], weight.size[1]};
  check_array(checker, "x", x, x.size, "[B, L, C]");
  checker.require(c.W >= 1 && c.W <= kMaxTaps, [&] {
    return "weight has a width of " + std::to_string(c.W) + ", must be 1 to " + std::to_string(kMaxTaps);
  });
  check_array(checker, "weight", weight, {c.C, c.W}, "[C, W]");
  if (options.bias) check_array(checker, "bias", options.bias, {c.C}, "[C]");
  c.sequences = checked_sequences(checker, options.cu_seqlens, "x", c.B, c.L);
  check_tokens(checker, "initial_state", options.initial_state, c, false);
  check_segments(checker, c);
  checker.require(!options.segment_ids || !options.initial_state, "initial_state cannot be given with segment_ids");
  c.initial_state = options.initial_state;
  const int64_t tokens = c.initial_state.size[2];
  if (checker.ok() && c.initial_state) c.initial_state = c.initial_state.slice(2, tokens - (c.W - 1), tokens);
  return c;
}

void check_convolution(Checker& checker, const Convolution& c, const View<3>& out, const View<3>& final_state,
                       bool any_type) {
  const CausalConvolutionOptions& o = *c.options;
  check_array(checker, "out", out, c.x.size, "x's size");
  if (!any_type) check_type(checker, "out", out.dtype, c.x.dtype, ", x's type");
  check_tokens(checker, "final_state", final_state, c, any_type);
  checker.require(!o.segment_ids || !final_state, "final_state cannot be given with segment_ids");
  if (!checker.ok()) return;
  detail::check_overlap(
      checker, {region("out", out), region("final_state", final_state)},
      {region("x", c.x), region("weight", c.weight), region("bias", o.bias), region("segment_ids", o.segment_ids)});
  const bool in_place = final_state.data == o.initial_state.data && final_state.size == o.initial_state.size &&
                        final_state.stride == o.initial_state.stride;
  detail::check_overlap(checker, {region("out", out)}, {region("initial_state", o.initial_state)});
  if (!in_place)
    detail::check_overlap(checker, {region("final_state", final_state)}, {region("initial_state", o.initial_state)});
}

void check_convolution_backward(Checker& checker, const Convolution& c, const ConstView<3>& dout,
                                const CausalConvolutionGradients& g, const ConstView<3>& dfinal_state) {
  const CausalConvolutionOptions& o = *c.options;
  check_array(checker, "dout", dout, c.x.size, "x's size");
  check_type(checker, "dout", dout.dtype, c.x.dtype, ", x's type");
  check_taps(checker, "initial_state", o.initial_state, c);
  check_taps(checker, "dfinal_state", dfinal_state, c);
  if (g.dx) check_array(checker, "dx", g.dx, c.x.size, "x's size");
  if (g.dweight) check_array(checker, "dweight", g.dweight, c.weight.size, "weight's size");
  if (g.dbias) check_array(checker, "dbias", g.dbias, {c.C}, "[C]");
  checker.require(!g.dbias || o.bias, "dbias is given, but bias is not");
  check_taps(checker, "dinitial_state", g.dinitial_state, c);
  checker.require(!o.segment_ids || !dfinal_state, "dfinal_state cannot be given with segment_ids");
  checker.require(!o.segment_ids || !g.dinitial_state, "dinitial_state cannot be given with segment_ids");
  if (!checker.ok()) return;
  detail::check_overlap(checker,
                        {region("dx", g.dx), region("dweight", g.dweight), region("dbias", g.dbias),
                         region("dinitial_state", g.dinitial_state)},
                        {region("x", c.x), region("weight", c.weight), region("dout", dout), region("bias", o.bias),
                         region("initial_state", o.initial_state), region("segment_ids", o.segment_ids),
                         region("dfinal_state", dfinal_state)});
}

}  // namespace attn::linear
