// The convolution along the tokens: the cut into tasks, and the forward.
#include "linear/convolution.h"

#include "core/subnormals.h"
#include "linear/convolution_rows.h"

namespace attn::linear {

// Tokens of a slab: the weight of a tile is converted once for them, and their sums are one partial result.
constexpr int64_t kSlabTokens = 512;
constexpr int64_t kMostSlabs = 64;        // partial results of a sum
constexpr int64_t kStagedChannels = 64;   // of a tile that is transposed on the way in or out
constexpr int64_t kTaskElements = 16384;  // next to 2 us that waking the threads costs

ConvolutionPlan::ConvolutionPlan(const Convolution& c) {
  int64_t tokens = 0;
  for (size_t n = 0; n < c.sequences.size(); ++n) {
    const int64_t count = c.sequences[n].count;
    tokens += count;
    blocks.push_back({static_cast<int64_t>(n), 0, std::min(kBlockTokens, count)});  // also of an empty sequence
    for (int64_t t = kBlockTokens; t < count; t += kBlockTokens)
      blocks.push_back({static_cast<int64_t>(n), t, std::min(kBlockTokens, count - t)});
  }
  const int64_t slab_tokens = std::max(kSlabTokens, div_up(tokens, kMostSlabs));
  int64_t in_slab = slab_tokens;
  for (size_t n = 0; n < blocks.size(); ++n) {
    if (in_slab >= slab_tokens) {
      slab_starts.push_back(static_cast<int64_t>(n));
      in_slab = 0;
    }
    in_slab += std::max<int64_t>(blocks[n].count, 1);
  }
  slab_starts.push_back(static_cast<int64_t>(blocks.size()));
  tile_channels = c.x.stride[2] == 1 ? kTileChannels : kStagedChannels;
  tile_channels = std::min(tile_channels, round_up(std::max<int64_t>(c.C, 1), 16));
  tiles = div_up(c.C, tile_channels);
  tiles_a_task =
      std::max<int64_t>(1, kTaskElements / (std::min(std::max<int64_t>(tokens, 1), slab_tokens) * tile_channels));
}

void for_convolution_tiles(const ConvolutionPlan& plan, TaskRef body) {
  const int64_t groups = plan.tile_groups();
  parallel_for_flushed(plan.slabs() * groups, [&](int64_t task) {
    const int64_t slab = task / groups, first = task % groups * plan.tiles_a_task;
    for (int64_t tile = first; tile < std::min(first + plan.tiles_a_task, plan.tiles); ++tile)
      body(slab * plan.tiles + tile);
  });
}

void clear_tokens_of_none(const Convolution& c, const View<3>& y) {
  if (!y || c.options->cu_seqlens.empty()) return;
  const int64_t begin = c.options->cu_seqlens.front(), end = c.options->cu_seqlens.back();
  for (int64_t t = 0; t < c.L; ++t) {
    if (t == begin) t = end;
    if (t >= c.L) break;
    for (int64_t n = 0; n < c.C; ++n) reference::store(y.data, y.dtype, t * y.stride[1] + n * y.stride[2], 0);
  }
}

namespace {

template <class T>
class ForwardTile {
 public:
  ForwardTile(const Convolution& c, const ConvolutionPlan& plan, const View<3>& out, Arena& arena)
      : c_(c), plan_(plan), window_(c, plan, arena, kBlockTokens), out_(out, arena, kBlockTokens, plan.tile_channels) {}

  void run(int64_t slab, int64_t tile) {
    const int64_t channel = tile * plan_.tile_channels;
    window_.select_tile(channel, std::min(plan_.tile_channels, c_.C - channel));
    for (int64_t n = plan_.slab_starts[slab]; n < plan_.slab_starts[slab + 1]; ++n) run_block(plan_.blocks[n]);
  }

 private:
  void run_block(const ConvolutionBlock& block) {
    const TokenRange& s = c_.sequences[block.sequence];
    window_.select_tokens(block.sequence, block.first, block.count);
    out_.select(s.batch, s.first + block.first, block.count, window_.channel(), window_.channels());
    kernels::ConvolveArgs args = window_.args(0, block.count);
    args.y = out_.row(0);
    args.y_row = out_.row_stride();
    args.y_type = out_.type();
    linear_kernels<T>().convolve(args);
    for (int64_t t = 0; window_.ids && t < block.count; ++t)
      if (window_.ids.is_padding(block.first + t)) out_.clear(t);
    out_.store();
  }

  const Convolution& c_;
  const ConvolutionPlan& plan_;
  ConvolutionWindow<T> window_;
  ConvolutionRows<T> out_;
};

template <class T>
void run_convolution(const Convolution& c, const View<3>& out) {
  const ConvolutionPlan plan(c);
  for_convolution_tiles(plan, [&](int64_t task) {
    Arena counted(nullptr);
    ForwardTile<T>(c, plan, out, counted);
    Arena arena(thread_scratch(counted.used()));
    ForwardTile<T>(c, plan, out, arena).run(task / plan.tiles, task % plan.tiles);
  });
}

/// The last tokens of a sequence, bits as they are, for channels begin .. end - 1. `to` may be the memory of the
/// initial state, whose elements go to lower places: what is written is not read after.
template <class Bits>
void copy_last_tokens(const Convolution& c, int64_t sequence, int64_t begin, int64_t end, const View<3>& to) {
  const TokenRange& s = c.sequences[sequence];
  const ConstView<3>& initial = c.options->initial_state;
  const int64_t kept = to.size[2], before = initial ? initial.size[2] : 0;
  for (int64_t n = begin; n < end; ++n)
    for (int64_t i = 0; i < kept; ++i) {
      const int64_t t = s.count - kept + i;
      Bits token = 0;
      if (t >= 0)
        token = static_cast<const Bits*>(
            c.x.data)[s.batch * c.x.stride[0] + (s.first + t) * c.x.stride[1] + n * c.x.stride[2]];
      else if (before + t >= 0)
        token = static_cast<const Bits*>(
            initial.data)[sequence * initial.stride[0] + n * initial.stride[1] + (before + t) * initial.stride[2]];
      static_cast<Bits*>(to.data)[sequence * to.stride[0] + n * to.stride[1] + i * to.stride[2]] = token;
    }
}

void store_last_tokens(const Convolution& c, const View<3>& to) {
  if (!to || to.size[2] == 0) return;
  const int64_t parts = div_up(c.C, kTaskElements);
  parallel_for(static_cast<int64_t>(c.sequences.size()) * parts, [&](int64_t task) {
    const int64_t sequence = task / parts, begin = task % parts * kTaskElements;
    const int64_t end = std::min(begin + kTaskElements, c.C);
    if (size_of(to.dtype) == 8) copy_last_tokens<uint64_t>(c, sequence, begin, end, to);
    else if (size_of(to.dtype) == 4) copy_last_tokens<uint32_t>(c, sequence, begin, end, to);
    else copy_last_tokens<uint16_t>(c, sequence, begin, end, to);
  });
}

}  // namespace
}  // namespace attn::linear

namespace attn {

void causal_convolution(ConstView<3> x, ConstView<2> weight, View<3> out, const CausalConvolutionOptions& options,
                        View<3> final_state) {
  Checker checker("causal_convolution");
  const linear::Convolution c = linear::make_convolution(checker, x, weight, options);
  linear::check_convolution(checker, c, out, final_state, false);
  checker.done();
  const ProfileSpan span("causal_convolution", [&] { return linear::work_of(c, 1, bytes_of(out)); });
  linear::clear_tokens_of_none(c, out);
  if (x.dtype == DType::float64) linear::run_convolution<double>(c, out);
  else linear::run_convolution<float>(c, out);
  linear::store_last_tokens(c, final_state);
}

}  // namespace attn
