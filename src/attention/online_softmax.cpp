#include "attention/online_softmax.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace attn::detail {

void PanelState::layout(Arena& arena, const Problem& p, const TileKernels& tk) {
  query = arena.take(tk.query_bytes(p.D, tk.panel));
  out = arena.take(tk.accumulator_bytes(p.Dv, tk.panel));
  reference = arena.take(tk.panel * tk.acc_bytes);
  sum = arena.take(tk.panel * tk.acc_bytes);
}

void PanelState::reset(const Problem& p, const TileKernels& tk) {
  std::memset(out, 0, tk.accumulator_bytes(p.Dv, panel.width));
  std::memset(sum, 0, panel.width * tk.acc_bytes);
  set_all(tk, reference, panel.width, -kInfinity);
  waiting = all_lanes(panel.rows);
}

void PanelState::follow(const Problem& p, const TileKernels& tk, const void* maximum, void* alpha) {
  if (tk.update(reference, maximum, sum, alpha, panel.width, kReferenceSlack))
    tk.rescale(out, alpha, panel.width, panel.rows, p.Dv);
  if (waiting == 0) return;
  waiting = 0;
  for (int lane = 0; lane < panel.rows; ++lane)
    if (get(tk, reference, lane) == -kInfinity) waiting |= uint64_t{1} << lane;
}

void PanelState::begin(const Problem& p, const TileKernels& tk, void* maximum, void* alpha) {
  for (int lane = 0; waiting != all_lanes(panel.rows) && lane < panel.rows; ++lane)
    if (!(waiting >> lane & 1)) set(tk, maximum, lane, -kInfinity);
  follow(p, tk, maximum, alpha);
}

void PanelState::raise(const Problem& p, const TileKernels& tk, const void* sums, void* maximum, void* alpha) {
  for (int lane = 0; lane < panel.rows; ++lane) {
    // The keys that made the sum large may all be after: then 2^-16 of it is as good.
    const double top = std::max(get(tk, maximum, lane), get(tk, reference, lane) + 2 * kReferenceSlack);
    set(tk, maximum, lane, get(tk, sums, lane) > kLargestSum ? top : -kInfinity);
  }
  follow(p, tk, maximum, alpha);
}

void OnlineSoftmax::layout(Arena& arena, int64_t keys) {
  const int64_t lanes = tk_.panel * tk_.acc_bytes;
  maximum_ = arena.take(lanes);
  alpha_ = arena.take(lanes);
  trial_sum_ = arena.take(lanes);
  scores_ = arena.take(keys * lanes);
  weights_ = tk_.one_format ? scores_ : arena.take(tk_.weights_bytes(keys, tk_.panel));
  other_weights_ = tk_.late_values ? arena.take(tk_.weights_bytes(keys, tk_.panel)) : weights_;
}

void OnlineSoftmax::run(TileScores& tile, PanelState& state, LateProduct& late) {
  width_ = state.panel.width;
  std::swap(weights_, other_weights_);
  if (by_sums_) return by_sums(tile, state, late);
  // Against the reference as it is: right unless some row's maximum has outgrown it, which is rare after the
  // first block of a chunk. Both ways give a row the same bits. One row's scores cost nothing to keep.
  const bool plain = tile.options().plain() && !tile.options().keep();
  const bool one_pass = tk_.scores_softmax && state.waiting == 0;
  if (!(one_pass && (plain ? fused(tile, state, late, kReferenceSlack) : in_slices(tile, state))))
    in_two_passes(tile, state);
  late.add(tk_);
}

/// In one pass, and again if a sum has outgrown its limit: then its row's reference is raised.
void OnlineSoftmax::by_sums(TileScores& tile, PanelState& state, LateProduct& late) {
  const int64_t count = tile.tile().count;
  const uint64_t* allowed = tile.tile().allowed;
  for (int64_t done = 0; state.waiting != 0 && done < count; done += kSliceKeys) {
    const int64_t n = std::min(kSliceKeys, count - done);
    const auto seen = [&](uint64_t lanes) { return (lanes & state.waiting) != 0; };
    if (allowed && std::none_of(allowed + done, allowed + done + n, seen)) continue;
    maxima(tile, state, done, n);
    state.begin(p_, tk_, maximum_, alpha_);
  }
  if (!fused(tile, state, late, kLargestSum)) {
    maxima(tile, state, 0, count);
    state.raise(p_, tk_, trial_sum_, maximum_, alpha_);
    fused(tile, state, late, kInfinity);
  }
  late.add(tk_);
}

/// Of the scores of `count` keys of the tile, `done` keys after its first, which are at scores_at(done) then.
void OnlineSoftmax::maxima(TileScores& tile, const PanelState& state, int64_t done, int64_t count) {
  const bool plain = tile.options().plain();
  set_all(tk_, maximum_, width_, -kInfinity);
  tile.scores(state.query, done, count, scores_at(done), plain ? maximum_ : nullptr);
  if (!plain) tk_.transform(tile.options().transform(scores_at(done), done, count, nullptr, maximum_));
}

void OnlineSoftmax::in_two_passes(TileScores& tile, PanelState& state) {
  const int64_t count = tile.tile().count;
  maxima(tile, state, 0, count);
  state.follow(p_, tk_, maximum_, alpha_);
  tk_.softmax(softmax_args(tile, state, 0, count, state.sum));
}

/// Scores, options and softmax on slices that stay in the first-level cache.
bool OnlineSoftmax::in_slices(TileScores& tile, PanelState& state) {
  set_all(tk_, maximum_, width_, -kInfinity);
  std::memcpy(trial_sum_, state.sum, width_ * tk_.acc_bytes);
  for (int64_t done = 0; done < tile.tile().count; done += kSliceKeys) {
    const int64_t n = std::min(kSliceKeys, tile.tile().count - done);
    tile.scores(state.query, done, n, scores_at(done), nullptr);
    tk_.transform(tile.options().transform(scores_at(done), done, n, nullptr, maximum_));
    if (tk_.exceeds(state.reference, maximum_, state.panel.rows, kReferenceSlack)) return false;
    tk_.softmax(softmax_args(tile, state, done, n, trial_sum_));
  }
  std::memcpy(state.sum, trial_sum_, width_ * tk_.acc_bytes);
  return true;
}

/// Scores and softmax in one kernel.
bool OnlineSoftmax::fused(TileScores& tile, PanelState& state, LateProduct& late, double limit) {
  std::memcpy(trial_sum_, state.sum, width_ * tk_.acc_bytes);
  const int64_t first = tile.tile().begin;
  const uint64_t* allowed = tile.tile().allowed;
  bool ok = true;
  const kernels::ValuesArgs* on_the_way = late.take();
  tile.keys().for_runs(first, tile.tile().count, [&](const KeyRun& run) {
    const kernels::FusedArgs args{
        .in = score_args(p_, tk_, state.panel, state.query, run),
        .reference = state.reference,
        .allowed = allowed ? allowed + (run.first - first) : nullptr,
        .sum = trial_sum_,
        .weights = static_cast<char*>(weights_) + tk_.weights_bytes(run.first - first, width_),
        .late = std::exchange(on_the_way, nullptr)};
    ok = tk_.scores_softmax(args, limit) && ok;
  });
  if (ok) std::memcpy(state.sum, trial_sum_, width_ * tk_.acc_bytes);
  return ok;
}

kernels::SoftmaxArgs OnlineSoftmax::softmax_args(TileScores& tile, const PanelState& state, int64_t done, int64_t count,
                                                 void* sum) const {
  const uint64_t* keep = tile.options().keep();
  return {.scores = scores_at(done),
          .width = width_,
          .count = count,
          .reference = state.reference,
          .sum = sum,
          .keep = keep ? keep + done : nullptr,
          .keep_scale = tile.options().keep_scale(),
          .weights = static_cast<char*>(weights_) + tk_.weights_bytes(done, width_)};
}

}  // namespace attn::detail
