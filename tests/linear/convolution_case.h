// One call of causal_convolution(): its arguments in any layout, its results by the kernels and by the float64
// reference, and the magnitudes of the terms that add up, of which the errors are a part.
#pragma once

#include <cmath>
#include <string>
#include <vector>

#include "attn/linear_convolution.h"
#include "support/arrays.h"
#include "support/tolerance.h"

namespace attn::test {

/// Where the elements of [B, L, C] are: channels or tokens follow each other, or neither.
enum class ConvolutionLayout { channels, tokens, apart };

/// An array [B, L, C] in a layout.
class LaidOut {
 public:
  LaidOut() = default;
  LaidOut(DType dtype, const Shape<3>& size, ConvolutionLayout layout = ConvolutionLayout::channels)
      : layout_(layout), size_(size) {
    const auto [B, L, C] = size;
    if (layout == ConvolutionLayout::channels) memory_ = Array<3>(dtype, {B, L, C});
    if (layout == ConvolutionLayout::tokens) memory_ = Array<3>(dtype, {B, C, L});
    if (layout == ConvolutionLayout::apart) memory_ = Array<3>(dtype, {L, B, 2 * C});
  }
  View<3> view() { return laid_out(memory_.view()); }
  ConstView<3> view() const { return laid_out(memory_.view()); }
  bool given() const { return memory_.given(); }
  const Shape<3>& size() const { return size_; }
  Array<3>& memory() { return memory_; }

  double get(int64_t b, int64_t t, int64_t c) const {
    const ConstView<3> x = view();
    return load_element(x.data, x.dtype, b * x.stride[0] + t * x.stride[1] + c * x.stride[2]);
  }
  void set(int64_t b, int64_t t, int64_t c, double value) {
    const View<3> x = view();
    store_element(x.data, x.dtype, b * x.stride[0] + t * x.stride[1] + c * x.stride[2], value);
  }
  LaidOut& fill_normal(Random& random) {
    const auto [B, L, C] = size_;
    for (int64_t b = 0; b < B; ++b)
      for (int64_t t = 0; t < L; ++t)
        for (int64_t c = 0; c < C; ++c) set(b, t, c, random.normal());
    return *this;
  }
  LaidOut& fill_with_nan() {
    memory_.fill_with_nan();
    return *this;
  }
  /// In the order of [B, L, C].
  Values values() const {
    const auto [B, L, C] = size_;
    Values all;
    for (int64_t b = 0; b < B; ++b)
      for (int64_t t = 0; t < L; ++t)
        for (int64_t c = 0; c < C; ++c) all.push_back(get(b, t, c));
    return all;
  }

 private:
  template <class Pointer>
  BasicView<Pointer, 3> laid_out(BasicView<Pointer, 3> x) const {
    if (layout_ == ConvolutionLayout::tokens) return x.permute({0, 2, 1});
    if (layout_ == ConvolutionLayout::apart)
      return {x.data, x.dtype, size_, {x.stride[1], x.stride[0], 2 * x.stride[2]}};
    return x;
  }
  ConvolutionLayout layout_ = ConvolutionLayout::channels;
  Shape<3> size_{};
  Array<3> memory_;
};

struct ConvolutionCase {
  int64_t B = 1, L = 1, C = 1, W = 4;
  DType dtype = DType::float32;
  bool silu = true, bias = true, initial = false;
  ConvolutionLayout layout = ConvolutionLayout::channels;
  std::vector<int64_t> cu_seqlens = {};
  bool segments = false;

  LaidOut x = {}, dout = {};
  Array<2> weight = {}, ids = {};
  Array<1> bias_values = {};
  Array<3> initial_state = {}, dfinal_state = {};

  std::string name() const {
    const char* layouts[] = {"channels", "tokens", "apart"};
    return "[" + std::to_string(B) + ", " + std::to_string(L) + ", " + std::to_string(C) + "] width " +
           std::to_string(W) + " " + std::string(name_of(dtype)) + ", " + layouts[static_cast<int>(layout)] +
           (silu ? ", silu" : "") + (bias ? ", bias" : "") + (initial ? ", initial" : "") +
           (cu_seqlens.empty() ? "" : ", packed") + (segments ? ", segments" : "");
  }
  int64_t sequences() const { return cu_seqlens.empty() ? B : static_cast<int64_t>(cu_seqlens.size()) - 1; }
  Shape<3> state_size() const { return {sequences(), C, W - 1}; }

  ConvolutionCase& draw(uint64_t seed) {
    Random random(seed);
    x = LaidOut(dtype, {B, L, C}, layout).fill_normal(random);
    dout = LaidOut(dtype, {B, L, C}, layout).fill_normal(random);
    weight = Array<2>(dtype, {C, W}).fill_normal(random);
    if (bias) bias_values = Array<1>(dtype, {C}).fill_normal(random);
    if (initial) initial_state = Array<3>(dtype, state_size()).fill_normal(random);
    if (!segments) dfinal_state = Array<3>(dtype, state_size()).fill_normal(random);
    if (segments) ids = Array<2>(DType::int32, {B, L});
    int id = 0;
    for (int64_t n = 0; n < B * L && segments; ++n) {  // runs of up to five tokens, some of them padding
      if (random.below(3) == 0) id = static_cast<int>(random.below(4)) - 1;
      ids.set(n, id);
    }
    return *this;
  }
  CausalConvolutionOptions options() const {
    CausalConvolutionOptions o;
    if (bias) o.bias = bias_values.view();
    o.silu = silu;
    if (initial) o.initial_state = initial_state.view();
    o.cu_seqlens = cu_seqlens;
    if (segments) o.segment_ids = ids.view();
    return o;
  }
};

struct ConvolutionResults {
  LaidOut out, dx;
  Array<2> dweight;
  Array<1> dbias;
  Array<3> final_state, dinitial_state;

  static constexpr const char* names[] = {"out", "final_state", "dx", "dweight", "dbias", "dinitial_state"};
  std::vector<Values> values() const {
    return {out.values(), final_state.values(), dx.values(), dweight.values(), dbias.values(), dinitial_state.values()};
  }
  bool same_bits_as(const ConvolutionResults& other) const { return values() == other.values(); }
};

template <class Forward, class Backward>
ConvolutionResults run_convolution(const ConvolutionCase& c, DType dtype, const Forward& forward,
                                   const Backward& backward) {
  ConvolutionResults r{LaidOut(dtype, c.x.size(), c.layout).fill_with_nan(),
                       LaidOut(dtype, c.x.size(), c.layout).fill_with_nan(),
                       Array<2>(dtype, c.weight.size()).fill_with_nan(),
                       {},
                       {},
                       {}};
  CausalConvolutionGradients g{.dx = r.dx.view(), .dweight = r.dweight.view()};
  if (c.bias) r.dbias = Array<1>(dtype, {c.C}).fill_with_nan();
  if (c.bias) g.dbias = r.dbias.view();
  ConstView<3> dfinal;
  if (!c.segments) {
    r.final_state = Array<3>(dtype, c.state_size()).fill_with_nan();
    r.dinitial_state = Array<3>(dtype, c.state_size()).fill_with_nan();
    g.dinitial_state = r.dinitial_state.view();
    dfinal = c.dfinal_state.view();
  }
  forward(c.x.view(), c.weight.view(), r.out.view(), c.options(), r.final_state.view());
  backward(c.x.view(), c.weight.view(), c.dout.view(), g, c.options(), dfinal);
  return r;
}

inline ConvolutionResults run_kernels(const ConvolutionCase& c) {
  return run_convolution(
      c, c.dtype, [](auto&&... a) { attn::causal_convolution(a...); },
      [](auto&&... a) { attn::causal_convolution_backward(a...); });
}
inline ConvolutionResults run_reference(const ConvolutionCase& c) {
  return run_convolution(
      c, DType::float64, [](auto&&... a) { attn::reference::causal_convolution(a...); },
      [](auto&&... a) { attn::reference::causal_convolution_backward(a...); });
}

/// The sums of the magnitudes of the terms: the reference on absolute values, without the activation.
inline std::vector<Values> magnitudes(ConvolutionCase c) {
  const auto positive = [](auto& array) {
    for (int64_t n = 0; n < array.count() && array.given(); ++n) array.set(n, std::abs(array.get(n)));
  };
  positive(c.x.memory());
  positive(c.dout.memory());
  positive(c.weight);
  positive(c.bias_values);
  positive(c.initial_state);
  positive(c.dfinal_state);
  c.silu = false;
  std::vector<Values> all = run_reference(c).values();
  // The derivative of SiLU is at most 1.1 and changes by at most half of what its argument does: the error of z counts
  // in dz.
  const double z = max_abs(all[0]);
  for (size_t n = 0; n < all.size(); ++n)
    for (double& magnitude : all[n]) magnitude *= n < 2 ? 1.1 : 1.1 + z / 2;
  return all;
}

/// Roundings on the way to each of the results; a sum over tokens is one in float32 for 64 of them.
inline std::vector<double> convolution_roundings(int64_t W) {
  const double w = static_cast<double>(W);
  return {w + 1, 0, 3 * w + 1, 64 + w + 1, 64 + w + 1, 3 * w + 1};
}

}  // namespace attn::test
