// Forward: out = softmax(scores) V, one group of rows against all its keys.
//
//   for each group of rows (panels in lanes)                    a task
//     for each chunk of 2048 keys                               a task too when there are few groups
//       for each block of 256 keys, for each panel
//         S = K Q^T;  S <- options, mask;  P = 2^(S - reference);  O += V^T P
//       state (out, lse) of the chunk <- O / sum
//       state of the rows <- merge(state of the rows, state of the chunk)
//     sink: merge with the state (0, sink)
#include "attention/forward.h"

#include <algorithm>
#include <cstring>

#include "core/scratch.h"
#include "core/subnormals.h"

namespace attn::detail {
namespace {

// Panels that share one pass over a block of keys: 3 panels of 48 read K and V once per 144 queries (72 flop a byte).
constexpr int kGroupPanels = 3;
// Up to twice as many where the pass widens K and V from 16 bits first: that is 2 to 4 % of a call with 3 panels of 48,
// and within 1 % of nothing with 6 (attn_bench --parts).
constexpr int kMaxGroupPanels = 6;
// A row's reference may lag its maximum so that weights reach 2^8: far from overflow, and blocks after the first are
// almost never redone.
constexpr double kReferenceSlack = 4;
// Slices of a tile that options pass over: 32 keys x 48 floats are 6 KiB, and stay in a 32 KiB first-level cache with
// their bias.
constexpr int64_t kSliceKeys = 32;

bool is_few(const Problem& p, const Sequence& s) { return p.rows(s) <= few_rows(p.q.dtype); }

/// Everything one task works on, in the scratch of its thread.
class GroupWorker {
 public:
  GroupWorker(const Problem& p, const TileKernels& tk, int group_panels)
      : p_(p), tk_(tk), group_panels_(group_panels) {}

  int64_t layout(void* base) {
    Arena arena(base);
    const int64_t lanes = tk_.panel * tk_.acc_bytes;
    key_depth_ = round_up(p_.D, tk_.depth_multiple);
    row_stride_ = round_up(std::max<int64_t>(p_.Dv, 1), tk_.lanes);
    const int64_t panel_out = tk_.row_major ? tk_.panel * row_stride_ : p_.Dv * tk_.panel;
    for (int i = 0; i < group_panels_; ++i) {
      PanelState& state = panels_[i];
      state.query = arena.take(key_depth_ * tk_.panel * tk_.query_bytes);
      state.out = arena.take(panel_out * tk_.acc_bytes);
      state.reference = arena.take(lanes);
      state.sum = arena.take(lanes);
    }
    maximum_ = arena.take(lanes);
    alpha_ = arena.take(lanes);
    trial_sum_ = arena.take(lanes);
    inverse_ = arena.take(lanes);
    scores_ = arena.take(kBlockKeys * lanes);
    weights_ = tk_.weight_bytes == tk_.acc_bytes ? scores_ : arena.take(kBlockKeys * tk_.panel * tk_.weight_bytes);
    keys_ = arena.take(kBlockKeys * key_depth_ * tk_.operand_bytes);
    values_ = arena.take(kBlockKeys * row_stride_ * tk_.operand_bytes);
    allowed_ = arena.take<uint64_t>(kBlockKeys * int64_t{sizeof(uint64_t)});
    for (RowStates* states : {&total_, &chunk_})
      *states = RowStates::take(arena, group_rows(), row_stride_, tk_.acc_bytes);
    options_.layout(arena, p_, tk_);
    return arena.used();
  }

  int64_t group_rows() const { return int64_t{group_panels_} * tk_.panel; }
  int64_t row_stride() const { return row_stride_; }

  void start(const Sequence& s, const ForwardPlan::Group& group) {
    s_ = &s;
    group_ = &group;
    panel_count_ = static_cast<int>(div_up(group.rows, tk_.panel));
    low_ = s.key_count;
    high_ = 0;
    for (int i = 0; i < panel_count_; ++i) {
      PanelState& state = panels_[i];
      const int64_t first = i * tk_.panel, rows = std::min<int64_t>(tk_.panel, group.rows - first);
      state.panel = make_panel(p_, s, group.kv_head, group.first_row + first, rows, tk_.lanes);
      low_ = std::min(low_, state.panel.low);
      high_ = std::max(high_, state.panel.high);
      void* rows_of_q[kernels::kMaxWidth];
      row_pointers(p_.q, s, state.panel, rows_of_q);
      kernels::RowsArgs args = rows_args(rows_of_q, rows, p_.D == 1 ? 1 : p_.q.stride[3], p_.q.dtype, p_.D);
      args.scale = tk_.scale_in_scores ? 1 : p_.scale * kScoreUnit;
      args.dense = state.query;
      args.dense_stride = tk_.row_major ? key_depth_ : state.panel.width;
      tk_.pack_query(args);
    }
  }

  /// The state of the group's rows over the keys of one chunk.
  void run_chunk(int64_t chunk, const RowStates& states) {
    run_blocks(chunk);
    for (int i = 0; i < panel_count_; ++i) finish(panels_[i], i * tk_.panel, states);
  }

  /// The panels' accumulators over the keys of one chunk.
  void run_blocks(int64_t chunk) {
    const KeyReader reader(p_, *s_, group_->kv_head);
    for (int i = 0; i < panel_count_; ++i) reset(panels_[i]);
    const int64_t begin = std::max(chunk * kChunkKeys, low_ / kBlockKeys * kBlockKeys);
    const int64_t end = std::min({(chunk + 1) * kChunkKeys, s_->key_count, high_});
    for (int64_t block = begin; block < end; block += kBlockKeys) run_block(reader, block);
  }

  /// All chunks of a group, then its outputs.
  void run_all(const View<4>& out, const View<3>& lse) {
    const int64_t chunks = div_up(high_, kChunkKeys);
    const int64_t first = std::min(low_ / kChunkKeys, std::max<int64_t>(chunks - 1, 0));
    if (first + 1 >= chunks && p_.options->sink.empty()) {
      run_blocks(first);
      for (int i = 0; i < panel_count_; ++i) write(panels_[i], out, lse);
      return;
    }
    run_chunk(first, total_);
    for (int64_t chunk = first + 1; chunk < chunks; ++chunk) {
      run_chunk(chunk, chunk_);
      merge_states(tk_, total_, chunk_, group_->rows, p_.Dv, row_stride_);
    }
    write(total_, out, lse);
  }

  /// The states of all chunks, in order, then the group's outputs.
  void fold(const RowStates* chunks, int64_t count, const View<4>& out, const View<3>& lse) {
    for (int64_t i = 1; i < count; ++i) merge_states(tk_, chunks[0], chunks[i], group_->rows, p_.Dv, row_stride_);
    write(chunks[0], out, lse);
  }

  /// Adds the sinks and stores the rows.
  void write(const RowStates& states, const View<4>& out, const View<3>& lse) {
    const int64_t rows = group_->rows;
    if (!p_.options->sink.empty()) {
      std::memset(chunk_.out, 0, rows * row_stride_ * tk_.acc_bytes);
      for (int64_t r = 0; r < rows; ++r) {
        const double sink = p_.options->sink[group_->kv_head * p_.G + (group_->first_row + r) % p_.G];
        chunk_.reference[r] = sink * kScoreUnit;
        chunk_.sum[r] = 1;
      }
      merge_states(tk_, states, chunk_, rows, p_.Dv, row_stride_);
    }
    for (int i = 0; i < panel_count_; ++i) {
      const Panel& panel = panels_[i].panel;
      const int64_t first = i * tk_.panel;
      void* target[kernels::kMaxWidth];
      row_pointers(out, *s_, panel, target);
      kernels::RowsArgs args = rows_args(target, panel.rows, p_.Dv == 1 ? 1 : out.stride[3], out.dtype, p_.Dv);
      args.dense = static_cast<char*>(states.out) + first * row_stride_ * tk_.acc_bytes;
      args.dense_stride = row_stride_;
      tk_.store_rows(args);
      if (!lse) continue;
      for (int r = 0; r < panel.rows; ++r)
        store_row_value(lse, s_->batch, panel.head[r], panel.query[r],
                        natural_lse(tk_, states.reference[first + r], states.sum[first + r]));
    }
  }

 private:
  struct PanelState {
    Panel panel;
    void *query = nullptr, *out = nullptr, *reference = nullptr, *sum = nullptr;
  };

  void reset(PanelState& state) {
    const int64_t out = tk_.row_major ? tk_.panel * row_stride_ : p_.Dv * state.panel.width;
    std::memset(state.out, 0, out * tk_.acc_bytes);
    std::memset(state.sum, 0, tk_.panel * tk_.acc_bytes);
    for (int lane = 0; lane < state.panel.width; ++lane)
      set(tk_, state.reference, lane, -std::numeric_limits<double>::infinity());
  }

  void run_block(const KeyReader& reader, int64_t block) {
    block_ = block;
    block_end_ = std::min(block + kBlockKeys, s_->key_count);
    keys_packed_ = values_packed_ = values_sanitised_ = finite_known_ = false;
    for (int i = 0; i < panel_count_; ++i) {
      PanelState& state = panels_[i];
      // Whole groups of 8 keys keep the micro-tiles and the pairs of the 16-bit layouts aligned.
      const int64_t begin = std::max(block, state.panel.low / 8 * 8);
      const int64_t end = std::min(block_end_, round_up(std::min(state.panel.high, block_end_), tk_.key_pair));
      if (begin >= end) continue;
      const TileKind kind = tile_mask(p_, *s_, state.panel, tk_, begin, end, allowed_);
      if (kind == TileKind::empty) continue;
      options_.set_panel(p_, *s_, state.panel, tk_);
      run_tile(reader, state, begin, end, kind == TileKind::full);
    }
  }

  void run_tile(const KeyReader& reader, PanelState& state, int64_t begin, int64_t end, bool full) {
    const int64_t count = end - begin;
    options_.start_tile(tk_, begin, count);
    width_ = state.panel.width;
    keep_ = options_.dropout(tk_, begin, count);
    masked_ = !full || p_.options->bias;
    if (full && masked_) std::fill(allowed_, allowed_ + count, all_lanes(state.panel.rows));
    // Against the reference as it stands: right unless some row's maximum has outgrown it, which is rare after the
    // first block of a chunk. Both ways give a row the same bits.
    const bool plain = !masked_ && !keep_ && TileOptions::plain(p_);
    if (!(has_references(state) &&
          (plain ? fused(reader, state, begin, count) : in_slices(reader, state, begin, count))))
      in_two_passes(reader, state, begin, count);
    values(reader, state, begin, count);
  }

  bool has_references(const PanelState& state) const {
    for (int lane = 0; lane < state.panel.rows; ++lane)
      if (get(tk_, state.reference, lane) == -std::numeric_limits<double>::infinity()) return false;
    return true;
  }

  void in_two_passes(const KeyReader& reader, PanelState& state, int64_t begin, int64_t count) {
    reset_maximum(state);
    const bool plain = !masked_ && TileOptions::plain(p_);
    scores(reader, state, begin, count, 0, plain ? maximum_ : nullptr);
    if (!plain) tk_.transform(transform_args(begin, count, 0));
    if (tk_.update(state.reference, maximum_, state.sum, alpha_, state.panel.width, kReferenceSlack))
      tk_.rescale(state.out, alpha_, state.panel.width, state.panel.rows, p_.Dv);
    tk_.softmax(softmax_args(state, count, 0, state.sum));
  }

  /// Scores, options and softmax on slices that stay in the first-level cache.
  bool in_slices(const KeyReader& reader, PanelState& state, int64_t begin, int64_t count) {
    reset_maximum(state);
    std::memcpy(trial_sum_, state.sum, state.panel.width * tk_.acc_bytes);
    for (int64_t done = 0; done < count; done += kSliceKeys) {
      const int64_t n = std::min(kSliceKeys, count - done);
      scores(reader, state, begin + done, n, done, nullptr);
      tk_.transform(transform_args(begin + done, n, done));
      if (tk_.exceeds(state.reference, maximum_, state.panel.rows, kReferenceSlack)) return false;
      tk_.softmax(softmax_args(state, n, done, trial_sum_));
    }
    std::memcpy(state.sum, trial_sum_, state.panel.width * tk_.acc_bytes);
    return true;
  }

  /// Scores and softmax in one kernel.
  bool fused(const KeyReader& reader, PanelState& state, int64_t begin, int64_t count) {
    if (!tk_.scores_softmax || (keys_in_place(reader) && reader.run(begin) < count)) return false;
    std::memcpy(trial_sum_, state.sum, state.panel.width * tk_.acc_bytes);
    bool ok = false;
    for_key_runs(reader, begin, count, [&](const void* keys, int64_t stride, int64_t, int64_t n) {
      ok = tk_.scores_softmax({.in = scores_args(state, keys, stride, n),
                               .reference = state.reference,
                               .sum = trial_sum_,
                               .weights = weights_},
                              kReferenceSlack);
    });
    if (ok) std::memcpy(state.sum, trial_sum_, state.panel.width * tk_.acc_bytes);
    return ok;
  }

  void reset_maximum(const PanelState& state) {
    for (int lane = 0; lane < state.panel.width; ++lane)
      set(tk_, maximum_, lane, -std::numeric_limits<double>::infinity());
  }

  /// The tile's row of scores (and of weights, where they share the array) for the key `done` keys after its first.
  void* tile_scores(int64_t done) const { return static_cast<char*>(scores_) + done * width_ * tk_.acc_bytes; }

  kernels::TransformArgs transform_args(int64_t begin, int64_t count, int64_t done) {
    uint64_t* allowed = masked_ ? allowed_ + done : nullptr;
    return options_.transform(tk_, tile_scores(done), begin, count, allowed, nullptr, maximum_);
  }

  kernels::SoftmaxArgs softmax_args(const PanelState& state, int64_t count, int64_t done, void* sum) const {
    return {.scores = tile_scores(done),
            .width = state.panel.width,
            .count = count,
            .reference = state.reference,
            .sum = sum,
            .keep = keep_ ? keep_ + done : nullptr,
            .keep_scale = options_.keep_scale(),
            .weights = static_cast<char*>(weights_) + done * width_ * tk_.weight_bytes};
  }

  // ------------------------------------------------------------------------------------------------------- operands

  bool keys_in_place(const KeyReader& reader) const {
    return reader.key_stride() == 1 && static_cast<int>(p_.k.dtype) == tk_.operand && p_.D % tk_.depth_multiple == 0;
  }

  bool values_in_place(const KeyReader& reader) const {
    return reader.value_stride() == 1 && static_cast<int>(p_.v.dtype) == tk_.operand && tk_.values_in_place;
  }

  void pack_keys(const KeyReader& reader) {
    if (keys_packed_) return;
    void* rows[kBlockKeys];
    reader.key_rows(block_, block_end_, rows);
    kernels::RowsArgs args = rows_args(rows, block_end_ - block_, reader.key_stride(), p_.k.dtype, p_.D);
    args.dense = keys_;
    args.dense_stride = key_depth_;
    tk_.pack_keys(args);
    keys_packed_ = true;
  }

  void pack_values(const KeyReader& reader, bool finite_only) {
    if (values_packed_ && values_sanitised_ == finite_only) return;
    void* rows[kBlockKeys];
    reader.value_rows(block_, block_end_, rows);
    kernels::RowsArgs args = rows_args(rows, block_end_ - block_, reader.value_stride(), p_.v.dtype, p_.Dv);
    args.dense = values_;
    args.dense_stride = p_.Dv;
    args.finite_only = finite_only;
    tk_.pack_values(args);
    values_packed_ = true;
    values_sanitised_ = finite_only;
  }

  /// Calls body(operand, stride, first key, count) for runs of keys that lie one stride apart.
  template <class Body>
  void for_key_runs(const KeyReader& reader, int64_t begin, int64_t count, const Body& body) {
    if (!keys_in_place(reader)) {
      pack_keys(reader);
      body(static_cast<const char*>(keys_) + (begin - block_) * key_depth_ * tk_.operand_bytes, key_depth_, begin,
           count);
      return;
    }
    for (int64_t key = begin, end = begin + count; key < end;) {
      const int64_t n = std::min(end - key, reader.run(key));
      body(reader.key(key), reader.key_row_stride(), key, n);
      key += n;
    }
  }

  // ------------------------------------------------------------------------------------------------------- products

  kernels::ScoresArgs scores_args(const PanelState& state, const void* keys, int64_t stride, int64_t count) const {
    return {.query = state.query,
            .width = state.panel.width,
            .rows = state.panel.rows,
            .keys = keys,
            .key_stride = stride,
            .count = count,
            .depth = key_depth_,
            .scale = tk_.scale_in_scores ? p_.scale * kScoreUnit : 1,
            .highest = highest_score(tk_),
            .scores = nullptr,
            .maximum = nullptr};
  }

  void scores(const KeyReader& reader, const PanelState& state, int64_t begin, int64_t count, int64_t done,
              void* maximum) {
    for_key_runs(reader, begin, count, [&](const void* keys, int64_t stride, int64_t first, int64_t n) {
      kernels::ScoresArgs args = scores_args(state, keys, stride, n);
      args.scores = tile_scores(done + first - begin);
      args.maximum = maximum;
      tk_.scores(args);
    });
  }

  void values(const KeyReader& reader, PanelState& state, int64_t begin, int64_t count) {
    const bool finite = !masked_ || block_is_finite(reader);
    kernels::ValuesArgs product{.weights = weights_,
                                .width = state.panel.width,
                                .rows = state.panel.rows,
                                .values = nullptr,
                                .value_stride = p_.Dv * tk_.key_pair,
                                .count = count,
                                .depth = p_.Dv,
                                .out = state.out};
    const bool runs_hold_pairs = reader.run(begin) >= count || s_->pages.page_size % tk_.key_pair == 0;
    if (finite && values_in_place(reader) && runs_hold_pairs) {
      product.value_stride = reader.value_row_stride();
      for (int64_t key = begin, end = begin + count; key < end;) {
        product.count = std::min(end - key, reader.run(key));
        product.values = reader.value(key);
        product.weights = static_cast<const char*>(weights_) + (key - begin) * state.panel.width * tk_.weight_bytes;
        tk_.values(product);
        key += product.count;
      }
      return;
    }
    pack_values(reader, !finite);
    if (tk_.values_in_place) product.value_stride = p_.Dv;  // plain rows, not pairs
    product.values = static_cast<const char*>(values_) + (begin - block_) * p_.Dv * tk_.operand_bytes;
    tk_.values(product);
    if (finite) return;
    void* rows[kBlockKeys];
    reader.value_rows(begin, begin + count, rows);
    add_non_finite(tk_, rows, reader.value_stride(), p_.v.dtype, p_.Dv, weights_, state.panel.width, state.panel.rows,
                   count, allowed_, state.out, tk_.row_major ? row_stride_ : state.panel.width);
  }

  /// Masked rows must not meet non-finite values: 0 * NaN is NaN. Looked up once a block.
  bool block_is_finite(const KeyReader& reader) {
    if (!finite_known_) {
      void* rows[kBlockKeys];
      reader.value_rows(block_, block_end_, rows);
      finite_ = tk_.all_finite(rows_args(rows, block_end_ - block_, reader.value_stride(), p_.v.dtype, p_.Dv));
      finite_known_ = true;
    }
    return finite_;
  }

  /// The panel's part of the states of the chunk.
  void finish(PanelState& state, int64_t first, const RowStates& states) {
    char* base = static_cast<char*>(states.out) + first * row_stride_ * tk_.acc_bytes;
    void* rows[kernels::kMaxWidth];
    for (int r = 0; r < state.panel.rows; ++r) {
      rows[r] = base + r * row_stride_ * tk_.acc_bytes;
      states.reference[first + r] = get(tk_, state.reference, r);
      states.sum[first + r] = get(tk_, state.sum, r);
    }
    unpack(state, rows_args(rows, state.panel.rows, 1, tk_.acc_bytes == 8 ? DType::float64 : DType::float32, p_.Dv));
  }

  /// The panel's rows where its accumulators are all there is: one chunk, no sink.
  void write(PanelState& state, const View<4>& out, const View<3>& lse) {
    void* rows[kernels::kMaxWidth];
    row_pointers(out, *s_, state.panel, rows);
    unpack(state, rows_args(rows, state.panel.rows, p_.Dv == 1 ? 1 : out.stride[3], out.dtype, p_.Dv));
    for (int r = 0; lse && r < state.panel.rows; ++r)
      store_row_value(lse, s_->batch, state.panel.head[r], state.panel.query[r],
                      natural_lse(tk_, get(tk_, state.reference, r), get(tk_, state.sum, r)));
  }

  /// Normalised accumulators -> rows.
  void unpack(PanelState& state, kernels::RowsArgs args) {
    tk_.inverse(state.sum, inverse_, state.panel.width);
    args.lane_scale = inverse_;
    args.dense = state.out;
    args.dense_stride = tk_.row_major ? row_stride_ : state.panel.width;
    tk_.unpack_out(args);
  }

  const Problem& p_;
  const TileKernels& tk_;
  const Sequence* s_ = nullptr;
  const ForwardPlan::Group* group_ = nullptr;
  const int group_panels_;
  PanelState panels_[kMaxGroupPanels];
  int panel_count_ = 0;
  int64_t low_ = 0, high_ = 0;              // keys that some row may see
  int64_t key_depth_ = 0, row_stride_ = 0;  // D and Dv padded
  int64_t block_ = 0, block_end_ = 0;
  bool keys_packed_ = false, values_packed_ = false, values_sanitised_ = false;
  bool finite_known_ = false, finite_ = true;  // of the block's values
  void *maximum_ = nullptr, *alpha_ = nullptr, *trial_sum_ = nullptr, *inverse_ = nullptr;
  const uint64_t* keep_ = nullptr;
  bool masked_ = false;  // `allowed_` holds for the tile
  int width_ = 0;
  void *scores_ = nullptr, *weights_ = nullptr, *keys_ = nullptr, *values_ = nullptr;
  uint64_t* allowed_ = nullptr;
  RowStates total_, chunk_;
  TileOptions options_;
};

/// Panels in a group: where rows are widened, as many as leave groups for every thread.
int group_panels(const Problem& p) {
  int64_t panels = 0;
  for (const Sequence& s : p.sequences) {
    const TileKernels& tk = select_kernels(p.q.dtype, is_few(p, s));
    if (tk.operand != static_cast<int>(p.k.dtype)) panels += p.Hk * div_up(p.rows(s), tk.panel);
  }
  return static_cast<int>(std::clamp<int64_t>(panels / ForwardPlan::kFewGroups, kGroupPanels, kMaxGroupPanels));
}

}  // namespace

ForwardPlan plan_forward(const Problem& p) {
  ForwardPlan plan;
  int acc_bytes = 4;
  plan.group_panels = group_panels(p);
  for (size_t t = 0; t < p.sequences.size(); ++t) {
    const Sequence& s = p.sequences[t];
    const TileKernels& tk = select_kernels(p.q.dtype, is_few(p, s));
    GroupWorker worker(p, tk, plan.group_panels);
    plan.thread_bytes = std::max(plan.thread_bytes, worker.layout(nullptr));
    plan.row_stride = worker.row_stride();
    acc_bytes = tk.acc_bytes;
    plan.chunks = std::max(plan.chunks, div_up(s.key_count, kChunkKeys));
    for (int64_t kv_head = 0; kv_head < p.Hk; ++kv_head)
      for (int64_t row = 0; row < p.rows(s); row += worker.group_rows())
        plan.groups.push_back({static_cast<int32_t>(t), kv_head, row, std::min(worker.group_rows(), p.rows(s) - row)});
  }
  // Longest first: with causal masks the last rows have the most keys.
  std::reverse(plan.groups.begin(), plan.groups.end());
  const auto groups = static_cast<int64_t>(plan.groups.size());
  plan.split = groups < ForwardPlan::kFewGroups && plan.chunks > 1;
  plan.tasks = plan.split ? groups * plan.chunks : groups;
  if (plan.split) {
    for (const ForwardPlan::Group& group : plan.groups) plan.partial_rows += group.rows * plan.chunks;
    // Each state as RowStates::take() lays it out: rows, references and sums, each part in whole cache lines.
    const int64_t states = groups * plan.chunks;
    plan.partial_bytes =
        plan.partial_rows * (plan.row_stride * acc_bytes + 2 * int64_t{sizeof(double)}) + states * 3 * 64;
  }
  return plan;
}

void run_forward(const Problem& p, const ForwardPlan& plan, const View<4>& out, const View<3>& lse) {
  const auto worker_for = [&](const ForwardPlan::Group& group) {
    const Sequence& s = p.sequences[group.sequence];
    GroupWorker worker(p, select_kernels(p.q.dtype, is_few(p, s)), plan.group_panels);
    worker.layout(thread_scratch(plan.thread_bytes));
    worker.start(s, group);
    return worker;
  };
  const auto groups = static_cast<int64_t>(plan.groups.size());
  if (!plan.split) {
    parallel_for_flushed(groups, [&](int64_t g) { worker_for(plan.groups[g]).run_all(out, lse); });
    return;
  }
  const Buffer memory(plan.partial_bytes);
  Arena arena(memory.data());
  std::vector<RowStates> states(groups * plan.chunks);
  const int acc_bytes = p.q.dtype == DType::float64 ? 8 : 4;
  for (int64_t task = 0; task < groups * plan.chunks; ++task)
    states[task] = RowStates::take(arena, plan.groups[task / plan.chunks].rows, plan.row_stride, acc_bytes);
  parallel_for_flushed(groups * plan.chunks, [&](int64_t task) {
    worker_for(plan.groups[task / plan.chunks]).run_chunk(task % plan.chunks, states[task]);
  });
  parallel_for_flushed(groups, [&](int64_t g) {
    GroupWorker worker = worker_for(plan.groups[g]);
    worker.fold(&states[g * plan.chunks], plan.chunks, out, lse);
  });
}

}  // namespace attn::detail

namespace attn {

void attention(ConstView<4> q, ConstView<4> k, ConstView<4> v, View<4> out, View<3> lse,
               const AttentionOptions& options) {
  Checker checker("attention");
  const detail::Problem p = detail::make_problem(checker, q, k, v, options);
  detail::check_tensor(checker, "out", out, {p.B, p.H, p.Lq, p.Dv});
  checker.require(out.dtype == q.dtype, [&] {
    return "out is " + std::string(name_of(out.dtype)) + ", must have q's type " + std::string(name_of(q.dtype));
  });
  checker.require(out.data != nullptr || out.empty(), "out must have data");
  if (lse) detail::check_row_values(checker, "lse", lse, p);
  if (checker.ok()) {
    detail::check_overlap(checker, {detail::region("out", out), detail::region("lse", lse)},
                          {detail::region("q", q), detail::region("k", k), detail::region("v", v),
                           detail::region("mask", options.mask), detail::region("bias", options.bias)});
  }
  checker.done();
  detail::run_forward(p, detail::plan_forward(p), out, lse);
}

}  // namespace attn
