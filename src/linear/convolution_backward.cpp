// Backward: a block recomputes what the activation took, for its tokens and the W - 1 after them, which read its last
// ones. dx is then a convolution of dz with the taps in reverse order. A block's sums for the weight are added in
// float64 to those of its slab, and these in order at the end.
#include "core/subnormals.h"
#include "linear/convolution_rows.h"

namespace attn::linear {
namespace {

/// Sums over the tokens for dweight and dbias: taps, then the bias, by channel; of every slab.
class ConvolutionSums {
 public:
  ConvolutionSums(const Convolution& c, const ConvolutionPlan& plan, const CausalConvolutionGradients& gradients)
      : c_(c), dweight_(gradients.dweight), dbias_(gradients.dbias) {
    if (*this) partial_ = Tensor<double, 3>({plan.slabs(), c.W + 1, c.C});
  }
  explicit operator bool() const { return dweight_ || dbias_; }

  template <class T>
  void add(int64_t slab, int64_t channel, int64_t channels, const Matrix<T>& sums) {
    for (int64_t j = 0; j <= c_.W; ++j) {
      double* to = partial_.data() + (slab * (c_.W + 1) + j) * c_.C + channel;
      for (int64_t n = 0; n < channels; ++n) to[n] += static_cast<double>(sums[j][n]);
    }
  }
  void finish() {
    if (!*this) return;
    const int64_t slabs = partial_.size()[0], rows = c_.W + 1;
    parallel_for(div_up(c_.C, kTileChannels), [&](int64_t task) {
      const int64_t first = task * kTileChannels, channels = std::min(kTileChannels, c_.C - first);
      for (int64_t j = 0; j < rows; ++j) {
        double total[kTileChannels] = {};
        for (int64_t slab = 0; slab < slabs; ++slab)
          reference::add_scaled(total, 1, partial_.data() + (slab * rows + j) * c_.C + first, channels);
        for (int64_t n = 0; n < channels; ++n) store(first + n, j, total[n]);
      }
    });
  }

 private:
  void store(int64_t channel, int64_t j, double sum) const {
    if (j < c_.W) {
      if (dweight_)
        reference::store(dweight_.data, dweight_.dtype, channel * dweight_.stride[0] + j * dweight_.stride[1], sum);
    } else if (dbias_) {
      reference::store(dbias_.data, dbias_.dtype, channel * dbias_.stride[0], sum);
    }
  }

  const Convolution& c_;
  View<2> dweight_;
  View<1> dbias_;
  Tensor<double, 3> partial_;
};

template <class T>
class BackwardTile {
 public:
  BackwardTile(const Convolution& c, const ConvolutionPlan& plan, const ConstView<3>& dout,
               const CausalConvolutionGradients& gradients, const ConstView<3>& dfinal, ConvolutionSums& sums,
               Arena& arena)
      : c_(c),
        plan_(plan),
        dfinal_(dfinal),
        sums_(sums),
        window_(c, plan, arena, kBlockTokens + c.W - 1),
        dout_(dout, arena, kBlockTokens + c.W - 1, plan.tile_channels),
        dx_(gradients.dx, arena, kBlockTokens, plan.tile_channels, static_cast<bool>(dfinal)),
        dinitial_(states_as_tokens(gradients.dinitial_state), arena, c.W - 1, plan.tile_channels, true),
        wants_dx_(gradients.dx),
        wants_dinitial_(gradients.dinitial_state && c.W > 1) {
    const int64_t row = round_up(plan.tile_channels, 16), tokens = kBlockTokens + c.W - 1;
    dz_ = {arena.take<T>(tokens * row * int64_t{sizeof(T)}), row};
    reversed_ = {arena.take<T>(c.W * row * int64_t{sizeof(T)}), row};
    block_sums_ = {arena.take<T>((c.W + 1) * row * int64_t{sizeof(T)}), row};
    dy_ = arena.take<const void*>(tokens * int64_t{sizeof(void*)});
    taps_ = arena.take<const void*>(tokens * c.W * int64_t{sizeof(void*)});
  }

  void run(int64_t slab, int64_t tile) {
    const int64_t channel = tile * plan_.tile_channels;
    window_.select_tile(channel, std::min(plan_.tile_channels, c_.C - channel));
    for (int64_t j = 0; j < c_.W; ++j) std::copy_n(window_.weight()[c_.W - 1 - j], window_.weight().row, reversed_[j]);
    for (int64_t n = plan_.slab_starts[slab]; n < plan_.slab_starts[slab + 1]; ++n) {
      const ConvolutionBlock& block = plan_.blocks[n];
      compute_dz(slab, block);
      if (wants_dx_) store_gradients(block, dx_, block.first, block.count);
      if (wants_dinitial_ && block.first == 0) store_gradients(block, dinitial_, -(c_.W - 1), c_.W - 1);
    }
  }

 private:
  /// dz of the block's tokens and of those that read them, and the sums over the block's.
  void compute_dz(int64_t slab, const ConvolutionBlock& block) {
    const TokenRange& s = c_.sequences[block.sequence];
    first_ = block.first;
    end_ = std::min(block.first + block.count + c_.W - 1, s.count);
    const int64_t tokens = end_ - first_;
    window_.select_tokens(block.sequence, block.first, tokens);
    dout_.select(s.batch, s.first + block.first, tokens, window_.channel(), window_.channels());
    dout_.load();
    for (int64_t t = 0; t < tokens; ++t)
      dy_[t] = window_.ids.is_padding(block.first + t) ? window_.zeros() : dout_.row(t);
    run_grad(0, block.count, static_cast<bool>(sums_));
    run_grad(block.count, tokens - block.count, false);
    if (sums_) sums_.add(slab, window_.channel(), window_.channels(), block_sums_);
  }
  void run_grad(int64_t token, int64_t rows, bool with_sums) {
    if (with_sums) std::fill_n(block_sums_.data, (c_.W + 1) * block_sums_.row, T{0});
    linear_kernels<T>().convolve_grad({.forward = window_.args(token, rows),
                                       .dy = dy_ + token,
                                       .dy_type = dout_.type(),
                                       .dz = dz_.from(token),
                                       .sums = with_sums ? block_sums_ : Matrix<T>()});
  }

  /// The gradients of tokens first .. first + count - 1 of the sequence; those before 0 are the initial state's.
  void store_gradients(const ConvolutionBlock& block, ConvolutionRows<T>& to, int64_t first, int64_t count) {
    const TokenRange& s = c_.sequences[block.sequence];
    if (first < 0) to.select(block.sequence, 0, count, window_.channel(), window_.channels());
    else to.select(s.batch, s.first + first, count, window_.channel(), window_.channels());
    const int64_t step = window_.ids ? c_.W : 1;
    if (window_.ids) {
      for (int64_t n = 0; n < count; ++n)
        for (int64_t i = 0; i < c_.W; ++i) taps_[n * c_.W + i] = dz_of(first + n + i, first + n);
    } else {
      for (int64_t n = 0; n < count + c_.W - 1; ++n) taps_[n] = dz_of(first + n, first + n);
    }
    constexpr DType kType = std::is_same_v<T, double> ? DType::float64 : DType::float32;
    linear_kernels<T>().convolve({.x = {taps_, step, static_cast<int>(kType)},
                                  .weight = reversed_,
                                  .taps = c_.W,
                                  .bias = nullptr,
                                  .silu = false,
                                  .rows = count,
                                  .columns = window_.channels(),
                                  .y = to.row(0),
                                  .y_row = to.row_stride(),
                                  .y_type = to.type()});
    add_dfinal(block.sequence, to, first, count);
    to.store();
  }
  /// The row dz of token t, or zeros where it has none or does not read token p.
  const void* dz_of(int64_t t, int64_t p) const {
    return t < first_ || t >= end_ || !window_.ids.reads(t, p) ? window_.zeros() : dz_[t - first_];
  }
  /// Adds the gradient of the final state, which holds the last W - 1 tokens.
  void add_dfinal(int64_t sequence, ConvolutionRows<T>& to, int64_t first, int64_t count) {
    const int64_t begin = c_.sequences[sequence].count - (c_.W - 1);
    for (int64_t p = std::max(first, begin); dfinal_ && p < std::min(first + count, begin + c_.W - 1); ++p)
      for (int64_t n = 0; n < window_.channels(); ++n)
        to.tile()[p - first][n] += reference::at<T, 3>(dfinal_, {sequence, window_.channel() + n, p - begin});
  }

  const Convolution& c_;
  const ConvolutionPlan& plan_;
  const ConstView<3> dfinal_;
  ConvolutionSums& sums_;
  ConvolutionWindow<T> window_;
  ConvolutionRows<T> dout_, dx_, dinitial_;
  bool wants_dx_, wants_dinitial_;
  Matrix<T> dz_, reversed_, block_sums_;
  const void** dy_ = nullptr;
  const void** taps_ = nullptr;
  int64_t first_ = 0, end_ = 0;  // tokens of dz_
};

template <class T>
void run_convolution_backward(const Convolution& c, const ConstView<3>& dout,
                              const CausalConvolutionGradients& gradients, const ConstView<3>& dfinal) {
  const ConvolutionPlan plan(c);
  ConvolutionSums sums(c, plan, gradients);
  for_convolution_tiles(plan, [&](int64_t task) {
    Arena counted(nullptr);
    BackwardTile<T>(c, plan, dout, gradients, dfinal, sums, counted);
    Arena arena(thread_scratch(counted.used()));
    BackwardTile<T>(c, plan, dout, gradients, dfinal, sums, arena).run(task / plan.tiles, task % plan.tiles);
  });
  sums.finish();
}

}  // namespace
}  // namespace attn::linear

namespace attn {

void causal_convolution_backward(ConstView<3> x, ConstView<2> weight, ConstView<3> dout,
                                 const CausalConvolutionGradients& gradients, const CausalConvolutionOptions& options,
                                 ConstView<3> dfinal_state) {
  Checker checker("causal_convolution_backward");
  const linear::Convolution c = linear::make_convolution(checker, x, weight, options);
  linear::check_convolution_backward(checker, c, dout, gradients, dfinal_state);
  checker.done();
  const ProfileSpan span("causal_convolution_backward",
                         [&] { return linear::work_of(c, 2, bytes_of(dout) + bytes_of(gradients.dx)); });
  linear::clear_tokens_of_none(c, gradients.dx);
  if (x.dtype == DType::float64) linear::run_convolution_backward<double>(c, dout, gradients, dfinal_state);
  else linear::run_convolution_backward<float>(c, dout, gradients, dfinal_state);
}

}  // namespace attn
