// The convolution in float64, term by term, as plainly as it can be written: the oracle of the kernels.
//
//   forward    z_t = bias + sum_j weight_j x_p     p = t - (W - 1) + j, where t reads p     out_t = act(z_t)
//   backward   dz_t = act'(z_t) dout_t     dx_p += weight_j dz_t     dweight_j += dz_t x_p     dbias += dz_t
#include <cmath>

#include "core/plain.h"
#include "linear/convolution.h"

namespace attn::reference {
namespace {

using linear::Convolution;
using linear::TokenRange;

/// One channel of one sequence: its tokens, and before them those of the state.
class Channel {
 public:
  Channel(const Convolution& c, int64_t sequence, int64_t channel)
      : c_(c), s_(c.sequences[sequence]), sequence_(sequence), channel_(channel) {}

  double token(int64_t p) const {
    if (p >= 0) return at<double, 3>(c_.x, {s_.batch, s_.first + p, channel_});
    const ConstView<3>& initial = c_.options->initial_state;
    const int64_t before = initial ? initial.size[2] : 0;
    return before + p >= 0 ? at<double, 3>(initial, {sequence_, channel_, before + p}) : 0;
  }
  bool reads(int64_t t, int64_t p) const {
    const ConstView<2>& ids = c_.options->segment_ids;
    if (!ids) return true;
    return p >= 0 && id(t) >= 0 && id(t) == id(p);
  }
  bool is_padding(int64_t t) const { return c_.options->segment_ids && id(t) < 0; }
  double sum(int64_t t) const {
    double z = c_.options->bias ? at<double, 1>(c_.options->bias, {channel_}) : 0;
    for (int64_t j = 0; j < c_.W; ++j) {
      const int64_t p = t - (c_.W - 1) + j;
      if (reads(t, p)) z += at<double, 2>(c_.weight, {channel_, j}) * token(p);
    }
    return z;
  }

 private:
  int64_t id(int64_t t) const { return at<int64_t, 2>(c_.options->segment_ids, {s_.batch, s_.first + t}); }
  const Convolution& c_;
  const TokenRange& s_;
  int64_t sequence_, channel_;
};

double logistic(double z) { return 1 / (1 + std::exp(-z)); }

template <class Body>
void for_each_channel(const Convolution& c, const Body& body) {
  for (size_t n = 0; n < c.sequences.size(); ++n)
    for (int64_t channel = 0; channel < c.C; ++channel)
      body(static_cast<int64_t>(n), c.sequences[n], channel, Channel(c, static_cast<int64_t>(n), channel));
}

}  // namespace

void causal_convolution(ConstView<3> x, ConstView<2> weight, View<3> out, const CausalConvolutionOptions& options,
                        View<3> final_state) {
  Checker checker("reference::causal_convolution");
  const Convolution c = linear::make_convolution(checker, x, weight, options);
  linear::check_convolution(checker, c, out, final_state, true);
  checker.done();
  Tensor<double, 3> y(x.size), last(final_state.size);
  for_each_channel(c, [&](int64_t n, const TokenRange& s, int64_t channel, const Channel& tokens) {
    for (int64_t t = 0; t < s.count; ++t) {
      const double z = tokens.sum(t);
      y(s.batch, s.first + t, channel) = tokens.is_padding(t) ? 0 : options.silu ? z * logistic(z) : z;
    }
    const int64_t kept = final_state ? final_state.size[2] : 0;
    for (int64_t i = 0; i < kept; ++i) last(n, channel, i) = tokens.token(s.count - kept + i);
  });
  write(y, out);
  write(last, final_state);
}

void causal_convolution_backward(ConstView<3> x, ConstView<2> weight, ConstView<3> dout,
                                 const CausalConvolutionGradients& gradients, const CausalConvolutionOptions& options,
                                 ConstView<3> dfinal_state) {
  Checker checker("reference::causal_convolution_backward");
  const Convolution c = linear::make_convolution(checker, x, weight, options);
  linear::check_convolution_backward(checker, c, dout, gradients, dfinal_state);
  checker.done();
  Tensor<double, 3> dx(x.size), dinitial(c.states());
  Tensor<double, 2> dweight(weight.size);
  Tensor<double, 1> dbias({c.C});
  for_each_channel(c, [&](int64_t n, const TokenRange& s, int64_t channel, const Channel& tokens) {
    const auto dtoken = [&](int64_t p) -> double& {
      return p >= 0 ? dx(s.batch, s.first + p, channel) : dinitial(n, channel, p + c.W - 1);
    };
    for (int64_t i = 0; i < c.W - 1 && dfinal_state; ++i)
      dtoken(s.count - (c.W - 1) + i) += at<double, 3>(dfinal_state, {n, channel, i});
    for (int64_t t = 0; t < s.count; ++t) {
      if (tokens.is_padding(t)) continue;
      const double z = tokens.sum(t), g = logistic(z);
      const double slope = options.silu ? g * (1 + z * (1 - g)) : 1;
      const double dz = slope * at<double, 3>(dout, {s.batch, s.first + t, channel});
      dbias[channel] += dz;
      for (int64_t j = 0; j < c.W; ++j) {
        const int64_t p = t - (c.W - 1) + j;
        if (!tokens.reads(t, p)) continue;
        dtoken(p) += at<double, 2>(weight, {channel, j}) * dz;
        dweight(channel, j) += tokens.token(p) * dz;
      }
    }
  });
  write(dx, gradients.dx);
  write(dweight, gradients.dweight);
  write(dbias, gradients.dbias);
  write(dinitial, gradients.dinitial_state);
}

}  // namespace attn::reference
