// The rows of tokens that the kernels of a convolution read and write: in user memory, or in scratch where the channels
// of a token do not follow each other there.
#pragma once

#include <algorithm>
#include <cstring>

#include "core/plain.h"
#include "core/scratch.h"
#include "linear/convolution.h"
#include "linear/rows.h"

namespace attn::linear {

/// A view [B, L, C] whose rows of channels are taken in a block of tokens and a tile of channels.
template <class T>
class ConvolutionRows {
 public:
  /// `staged`: rows are in scratch in any case.
  template <class Pointer>
  ConvolutionRows(const BasicView<Pointer, 3>& x, Arena& arena, int64_t rows, int64_t channels, bool staged = false)
      : x_(const_cast<void*>(static_cast<const void*>(x.data)), x.dtype, x.size, x.stride) {
    constexpr bool kIsDouble = std::is_same_v<T, double>;
    in_place_ = !staged && x.stride[2] == 1 && (x.dtype == DType::float64) == kIsDouble;
    if (in_place_ || !x) return;
    tile_ = {nullptr, round_up(channels, 64 / int64_t{sizeof(T)})};
    tile_.data = arena.take<T>(rows * tile_.row * int64_t{sizeof(T)});
    channel_ = arena.take<void*>(channels * int64_t{sizeof(void*)});
  }
  bool in_place() const { return in_place_; }
  int type() const { return static_cast<int>(in_place_ ? x_.dtype : kArithmetic); }
  int64_t row_stride() const { return in_place_ ? x_.stride[1] : tile_.row; }
  const Matrix<T>& tile() const { return tile_; }

  /// Tokens first .. first + count - 1 and this tile of channels are meant from now on.
  void select(int64_t batch, int64_t first, int64_t count, int64_t channel, int64_t channels) {
    count_ = count;
    channels_ = channels;
    base_ = static_cast<char*>(x_.data) +
            (batch * x_.stride[0] + first * x_.stride[1] + channel * x_.stride[2]) * size_of(x_.dtype);
  }
  void* row(int64_t n) const {
    if (!in_place_) return tile_[n];
    return base_ + n * x_.stride[1] * size_of(x_.dtype);
  }
  void load() {
    if (!in_place_ && count_ > 0) row_kernels<T>().pack_panel(channels());
  }
  void store() {
    if (!in_place_ && count_ > 0) row_kernels<T>().unpack_panel(channels());
  }
  /// Row n becomes zeros.
  void clear(int64_t n) {
    const int64_t bytes = in_place_ ? size_of(x_.dtype) : int64_t{sizeof(T)};
    std::memset(row(n), 0, static_cast<size_t>(channels_ * bytes));
  }

 private:
  static constexpr DType kArithmetic = std::is_same_v<T, double> ? DType::float64 : DType::float32;

  /// Channels as rows: the tile is the panel of them.
  kernels::RowsArgs channels() {
    for (int64_t c = 0; c < channels_; ++c) channel_[c] = base_ + c * x_.stride[2] * size_of(x_.dtype);
    kernels::RowsArgs args{};
    args.row = channel_;
    args.rows = channels_;
    args.stride = x_.stride[1];
    args.type = static_cast<int>(x_.dtype);
    args.n = count_;
    args.scale = 1;
    args.dense = tile_.data;
    args.dense_stride = tile_.row;
    args.far = true;
    return args;
  }

  View<3> x_;
  bool in_place_ = false;
  Matrix<T> tile_;
  void** channel_ = nullptr;
  char* base_ = nullptr;
  int64_t count_ = 0, channels_ = 0;
};

/// A view [N, C, W - 1] of states as tokens: [N, W - 1, C].
template <class Pointer>
BasicView<Pointer, 3> states_as_tokens(const BasicView<Pointer, 3>& states) {
  return states ? states.permute({0, 2, 1}) : states;
}

/// The ids of segments of a sequence.
class SegmentIds {
 public:
  explicit SegmentIds(const ConstView<2>& ids) : ids_(ids) {}
  void select(const TokenRange& s) { offset_ = s.batch * ids_.stride[0] + s.first * ids_.stride[1]; }
  explicit operator bool() const { return static_cast<bool>(ids_); }
  bool is_padding(int64_t t) const { return ids_ && at(t) < 0; }
  /// Whether token t reads token p <= t.
  bool reads(int64_t t, int64_t p) const { return !ids_ || (at(t) == at(p) && at(t) >= 0); }

 private:
  int64_t at(int64_t t) const { return reference::load<int64_t>(ids_.data, ids_.dtype, offset_ + t * ids_.stride[1]); }
  ConstView<2> ids_;
  int64_t offset_ = 0;
};

/// The weight of a tile of channels, and for the tokens of a block the rows that their taps read.
template <class T>
class ConvolutionWindow {
 public:
  ConvolutionWindow(const Convolution& c, const ConvolutionPlan& plan, Arena& arena, int64_t tokens)
      : ids(c.options->segment_ids),
        c_(c),
        x_(c.x, arena, tokens + c.W - 1, plan.tile_channels),
        state_(states_as_tokens(c.initial_state), arena, c.W - 1, plan.tile_channels, true) {
    const int64_t row = round_up(plan.tile_channels, 16);
    weight_ = {arena.take<T>(c.W * row * int64_t{sizeof(T)}), row};
    bias_ = {arena.take<T>(row * int64_t{sizeof(T)}), row};
    zeros_ = arena.take(row * 8);
    if (is_narrow()) narrow_ = {arena.take<uint16_t>((c.W - 1) * row * 2), row};
    taps_ = arena.take<const void*>(std::max(tokens * c.W, tokens + c.W - 1) * int64_t{sizeof(void*)});
  }

  /// To be called before anything else.
  void select_tile(int64_t channel, int64_t channels) {
    channel_ = channel;
    channels_ = channels;
    const Convolution& c = c_;
    const int64_t wide = size_of(c.weight.dtype);
    void* rows[kTileChannels];
    for (int64_t n = 0; n < channels; ++n)
      rows[n] = const_cast<char*>(static_cast<const char*>(c.weight.data)) + (channel + n) * c.weight.stride[0] * wide;
    kernels::RowsArgs args{};
    args.row = rows;
    args.rows = channels;
    args.stride = c.weight.stride[1];
    args.type = static_cast<int>(c.weight.dtype);
    args.n = c.W;
    args.scale = 1;
    args.dense = weight_.data;
    args.dense_stride = weight_.row;
    row_kernels<T>().pack_panel(args);
    std::memset(zeros_, 0, static_cast<size_t>(weight_.row * 8));
    if (const ConstView<1>& bias = c.options->bias)
      for (int64_t n = 0; n < channels; ++n)
        bias_.data[n] = reference::load<T>(bias.data, bias.dtype, (channel + n) * bias.stride[0]);
  }

  /// Tokens first .. first + count - 1 of a sequence.
  void select_tokens(int64_t sequence, int64_t first, int64_t count) {
    const TokenRange& s = c_.sequences[sequence];
    ids.select(s);
    before_ = std::min(first, c_.W - 1);
    first_ = first;
    x_.select(s.batch, s.first + first - before_, before_ + count, channel_, channels_);
    x_.load();
    if (first < c_.W - 1) load_state(sequence);
    if (!ids) {
      step_ = 1;
      for (int64_t n = 0; n < count + c_.W - 1; ++n) taps_[n] = token(first - (c_.W - 1) + n);
      return;
    }
    step_ = c_.W;
    for (int64_t n = 0; n < count; ++n)
      for (int64_t j = 0; j < c_.W; ++j) {
        const int64_t t = first + n, p = t - (c_.W - 1) + j;
        taps_[n * c_.W + j] = p >= 0 && ids.reads(t, p) ? token(p) : zeros_;
      }
  }

  /// The arguments of the kernels for `rows` of the tokens from the given one on; y is not set.
  kernels::ConvolveArgs args(int64_t token, int64_t rows) const {
    return {.x = {taps_ + token * step_, step_, x_.type()},
            .weight = weight_,
            .taps = c_.W,
            .bias = c_.options->bias ? bias_.data : nullptr,
            .silu = c_.options->silu,
            .rows = rows,
            .columns = channels_,
            .y = nullptr,
            .y_row = 0,
            .y_type = 0};
  }
  const Matrix<T>& weight() const { return weight_; }
  const void* zeros() const { return zeros_; }  // a row, in any type
  int64_t channel() const { return channel_; }
  int64_t channels() const { return channels_; }

  SegmentIds ids;

 private:
  bool is_narrow() const { return x_.in_place() && size_of(c_.x.dtype) == 2; }
  /// The row of a token of the sequence, of the state before it, or zeros.
  const void* token(int64_t p) const {
    if (p >= 0) return x_.row(p - (first_ - before_));
    if (!c_.initial_state) return zeros_;
    return is_narrow() ? static_cast<const void*>(narrow_.data + (c_.W - 1 + p) * narrow_.row)
                       : state_.row(c_.W - 1 + p);
  }
  void load_state(int64_t sequence) {
    if (!c_.initial_state) return;
    state_.select(sequence, 0, c_.W - 1, channel_, channels_);
    state_.load();
    if (!is_narrow()) return;
    void* rows[kMaxTaps];
    for (int64_t j = 0; j < c_.W - 1; ++j) rows[j] = narrow_.data + j * narrow_.row;
    kernels::RowsArgs args{};
    args.row = rows;
    args.rows = c_.W - 1;
    args.stride = 1;
    args.type = static_cast<int>(c_.x.dtype);
    args.n = channels_;
    args.scale = 1;
    args.dense = state_.tile().data;
    args.dense_stride = state_.tile().row;
    row_kernels<T>().store_rows(args);
  }

  struct Narrow {
    uint16_t* data = nullptr;
    int64_t row = 0;
  };
  const Convolution& c_;
  ConvolutionRows<T> x_, state_;
  Matrix<T> weight_, bias_;
  Narrow narrow_;  // the state in x's type of 16 bits
  void* zeros_ = nullptr;
  const void** taps_ = nullptr;
  int64_t step_ = 1, before_ = 0, first_ = 0, channel_ = 0, channels_ = 0;
};

}  // namespace attn::linear
