// Forward: out = softmax(scores) V, one group of rows against all its keys.
//
//   for each group of rows (panels in lanes)                    a task
//     for each chunk of keys                                    a task too when there are few groups
//       for each block of keys, for each panel                  walk_keys
//         S = K Q^T;  S <- options, mask;  P = 2^(S - reference);  O += V^T P
//       state (out, lse) of the chunk <- O / sum
//       state of the rows <- merge(state of the rows, state of the chunk)
//     sink: merge with the state (0, sink)
// A group of several heads has a panel of each; see interleaved.h.
#include "attention/forward.h"

#include <algorithm>
#include <cstring>
#include <new>

#include "attention/interleaved.h"
#include "attention/online_softmax.h"
#include "attention/states.h"
#include "attention/task.h"

namespace attn::detail {
namespace {

/// Everything one task works on, in the scratch of its thread; the epilogue of the forward's walks.
class GroupWorker {
 public:
  GroupWorker(const Problem& p, const TileKernels& tk, const ForwardPlan& plan, int heads)
      : p_(p),
        tk_(tk),
        panels_at_most_(std::max(plan.group_panels, heads)),
        heads_at_most_(heads),
        heads_(p, tk),
        scores_(p, tk),
        softmax_(p, tk) {}

  int64_t layout(void* base) {
    Arena arena(base);
    Arena one(nullptr);
    one.take(sizeof(PanelState));
    PanelState state;
    state.layout(one, p_, tk_);
    panel_bytes_ = one.used();
    panels_ = arena.take<char>(panels_at_most_ * panel_bytes_);
    heads_.layout(arena, heads_at_most_, tk_.block_keys);
    inverse_ = arena.take(tk_.panel * tk_.acc_bytes);
    scores_.layout(arena, tk_.block_keys, false);
    softmax_.layout(arena, tk_.block_keys);
    values_.layout(arena, p_, tk_.value_rows, tk_, tk_.block_keys, p_.Dv);
    allowed_ = arena.take<uint64_t>(tk_.block_keys * int64_t{sizeof(uint64_t)});
    row_stride_ = state_stride(tk_, p_.Dv);
    for (RowStates* states : {&total_, &chunk_})
      *states = RowStates::take(arena, int64_t{panels_at_most_} * tk_.panel, row_stride_, tk_.acc_bytes);
    return arena.used();
  }

  void start(const Sequence& s, const ForwardPlan::Group& group) {
    s_ = &s;
    group_ = &group;
    panel_rows_ = group.heads > 1 ? group.rows / group.heads : panel_rows(p_, tk_);
    panel_count_ = static_cast<int>(div_up(group.rows, panel_rows_));
    for (int i = 0; i < panel_count_; ++i) {
      Arena arena(panels_ + i * panel_bytes_);
      PanelState& state = *new (arena.take(sizeof(PanelState))) PanelState;
      state.layout(arena, p_, tk_);
      const int head = group.heads > 1 ? i : 0;
      const int64_t first = group.first_row + (i - head) * panel_rows_;
      const int64_t rows = std::min(panel_rows_, group.rows - i * panel_rows_);
      fill_panel(state.panel, p_, s, group.kv_head + head, first, rows, tk_.lanes);
      pack_query(tk_, p_.q, s, state.panel, score_scale(p_), state.query);
      if (i == head)
        heads_.set(i, KeyRows::keys(p_, s, group.kv_head + i), KeyRows::values(p_, s, group.kv_head + i), state);
    }
  }

  /// The state of the group's rows over the keys of one chunk.
  void run_chunk(int64_t chunk, const RowStates& states) {
    gather(chunk);
    for (int i = 0; i < panel_count_; ++i) finish(state(i), i * panel_rows_, states);
  }

  /// All chunks of a group, then its outputs.
  void run_all(const View<4>& out, const View<3>& lse) {
    int64_t low = s_->key_count, high = 0;
    for (int i = 0; i < panel_count_; ++i) {
      low = std::min(low, state(i).panel.low);
      high = std::max(high, state(i).panel.high);
    }
    const int64_t chunks = div_up(high, tk_.chunk_keys);
    const int64_t first = std::min(low / tk_.chunk_keys, std::max<int64_t>(chunks - 1, 0));
    if (first + 1 >= chunks && p_.options->sink.empty()) {
      gather(first);
      for (int i = 0; i < panel_count_; ++i) write(state(i), out, lse);
      return;
    }
    run_chunk(first, total_);
    for (int64_t chunk = next_chunk(first + 1); chunk < chunks; chunk = next_chunk(chunk + 1)) {
      run_chunk(chunk, chunk_);
      merge_states(tk_, total_, chunk_, group_->rows, p_.Dv);
    }
    write(total_, out, lse);
  }

  /// The states of all chunks, in order, then the group's outputs.
  void fold(const RowStates* chunks, int64_t count, const View<4>& out, const View<3>& lse) {
    for (int64_t i = 1; i < count; ++i) merge_states(tk_, chunks[0], chunks[i], group_->rows, p_.Dv);
    write(chunks[0], out, lse);
  }

  // What walk_keys() calls.
  const Panel& panel(int i) const { return state(i).panel; }
  void start_block(int64_t begin, int64_t end) {
    begin_ = begin;
    end_ = end;
    together_ = {};
    if (group_->heads == 1) start_head(0);
  }
  void tile(int i, const Tile& tile) {
    if (group_->heads > 1 && !tile.allowed) {
      together_ = tile;  // of all heads
      return;
    }
    if (group_->heads > 1) {
      late_.add(tk_);
      start_head(i);
    }
    scores_.start_tile(*s_, tile);
    softmax_.run(scores_, state(i), late_);
    late_.set(p_, tk_, values_, p_.Dv, tile, softmax_.weights(), state(i).out);
  }
  void end_block() {
    if (together_.count > 0) heads_.run(panel_count_, together_);
    late_.add(tk_);  // before other values come
  }

 private:
  PanelState& state(int i) const { return *std::launder(reinterpret_cast<PanelState*>(panels_ + i * panel_bytes_)); }

  void start_head(int i) {
    scores_.start_block(heads_.keys(i), begin_, end_);
    values_.start(heads_.values(i), begin_, end_);
  }

  /// The first chunk from `chunk` on of which some row may see a key.
  int64_t next_chunk(int64_t chunk) const {
    start_lists(*this, panel_count_, chunk * tk_.chunk_keys);
    return next_key(*this, panel_count_, chunk * tk_.chunk_keys) / tk_.chunk_keys;
  }

  /// The panels' accumulators over the keys of one chunk.
  void gather(int64_t chunk) {
    for (int i = 0; i < panel_count_; ++i) state(i).reset(p_, tk_);
    walk_keys({p_, *s_, tk_, tk_.block_keys, allowed_, chunk * tk_.chunk_keys, (chunk + 1) * tk_.chunk_keys},
              panel_count_, *this);
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
    kernels::RowsArgs args = rows_args(rows, state.panel.rows, 1, acc_type(tk_), p_.Dv);
    args.dense = state.out;
    args.dense_stride = state.panel.width;
    unpack(state, args);
  }

  /// The panel's rows where its accumulators are all there is: one chunk, no sink.
  void write(PanelState& state, const View<4>& out, const View<3>& lse) {
    unpack(state, PanelRows(out, *s_, state.panel).with(state.out, state.panel.width));
    for (int r = 0; lse && r < state.panel.rows; ++r)
      store_row_value(lse, s_->batch, state.panel.head[r], state.panel.query[r],
                      natural_lse(tk_, get(tk_, state.reference, r), get(tk_, state.sum, r)));
  }

  /// Normalised accumulators -> rows.
  void unpack(const PanelState& state, kernels::RowsArgs args) {
    tk_.inverse(state.sum, inverse_, state.panel.width);
    args.lane_scale = inverse_;
    tk_.unpack_out(args);
  }

  /// Adds the sinks and stores the rows.
  void write(const RowStates& states, const View<4>& out, const View<3>& lse) {
    if (!p_.options->sink.empty()) add_sinks(states);
    for (int i = 0; i < panel_count_; ++i) {
      const Panel& panel = state(i).panel;
      const int64_t first = i * panel_rows_;
      const PanelRows rows(out, *s_, panel);
      tk_.store_rows(rows.with(static_cast<char*>(states.out) + first * row_stride_ * tk_.acc_bytes, row_stride_));
      for (int r = 0; lse && r < panel.rows; ++r)
        store_row_value(lse, s_->batch, panel.head[r], panel.query[r],
                        natural_lse(tk_, states.reference[first + r], states.sum[first + r]));
    }
  }

  /// A sink is a key without a value: the state (0, sink).
  void add_sinks(const RowStates& states) {
    std::memset(chunk_.out, 0, group_->rows * row_stride_ * tk_.acc_bytes);
    for (int64_t r = 0; r < group_->rows; ++r) {
      const int64_t head = state(static_cast<int>(r / panel_rows_)).panel.head[r % panel_rows_];
      chunk_.reference[r] = p_.options->sink[head] * kScoreUnit;
      chunk_.sum[r] = 1;
    }
    merge_states(tk_, states, chunk_, group_->rows, p_.Dv);
  }

  const Problem& p_;
  const TileKernels& tk_;
  const int panels_at_most_, heads_at_most_;
  const Sequence* s_ = nullptr;
  const ForwardPlan::Group* group_ = nullptr;
  char* panels_ = nullptr;  // PanelState and its memory, one after the other
  int64_t panel_bytes_ = 0;
  int panel_count_ = 0;
  int64_t panel_rows_ = 0;       // of a full one
  int64_t begin_ = 0, end_ = 0;  // the block
  InterleavedHeads heads_;
  Tile together_;
  TileScores scores_;
  OnlineSoftmax softmax_;
  BlockOperand values_;
  LateProduct late_;
  void* inverse_ = nullptr;
  uint64_t* allowed_ = nullptr;
  int64_t row_stride_ = 0;  // of states
  RowStates total_, chunk_;
};

/// True if a pass over the keys of the sequence packs them, or their values.
bool packs(const Problem& p, const Sequence& s, const TileKernels& tk) {
  return !KeyRows::keys(p, s, 0).in_place(tk.key_rows) || !KeyRows::values(p, s, 0).in_place(tk.value_rows);
}

/// Panels in a group at most: where keys are packed, as many as leave groups for every thread.
int group_panels(const Problem& p) {
  int64_t panels = 0;
  for (const Sequence& s : p.sequences) {
    const TileKernels& tk = forward_kernels(p, s);
    if (packs(p, s, tk)) panels += p.Hk * div_up(p.rows(s), tk.panel);
  }
  const TileKernels& tk = row_kernels(p);
  const int64_t groups = std::max(ForwardPlan::kFewGroups, ForwardPlan::kGroupsAThread * thread_count());
  return static_cast<int>(std::clamp<int64_t>(panels / groups, tk.group_panels, tk.wide_group_panels));
}

/// Heads in a group at most, where they go together: as many as leave two groups for every thread.
int group_heads(const Problem& p) {
  int64_t tasks = 0;
  for (const Sequence& s : p.sequences) tasks += p.Hk * div_up(s.key_count, forward_kernels(p, s).chunk_keys);
  constexpr int64_t kMost = InterleavedHeads::kMost;
  const int64_t heads = std::max<int64_t>(p.Hk, 1);  // without any there are no groups
  const int64_t groups = div_up(heads, std::clamp<int64_t>(tasks / (2 * thread_count()), 1, std::min(heads, kMost)));
  return static_cast<int>(div_up(heads, groups));
}

}  // namespace

ForwardPlan plan_forward(const Problem& p) {
  ForwardPlan plan;
  int acc_bytes = 4;
  plan.group_panels = group_panels(p);
  plan.group_heads = group_heads(p);
  for (size_t t = 0; t < p.sequences.size(); ++t) {
    const Sequence& s = p.sequences[t];
    const TileKernels& tk = forward_kernels(p, s);
    const int heads = InterleavedHeads::suits(p, s, tk) ? plan.group_heads : 1;
    GroupWorker worker(p, tk, plan, heads);
    plan.thread_bytes = std::max(plan.thread_bytes, worker.layout(nullptr));
    plan.row_stride = state_stride(tk, p.Dv);
    acc_bytes = tk.acc_bytes;
    plan.chunk_keys = tk.chunk_keys;
    plan.chunks = std::max(plan.chunks, div_up(s.key_count, tk.chunk_keys));
    if (heads > 1) {
      for (int64_t kv_head = 0; kv_head < p.Hk; kv_head += heads) {
        const int count = static_cast<int>(std::min<int64_t>(heads, p.Hk - kv_head));
        plan.groups.push_back({static_cast<int32_t>(t), kv_head, 0, count * p.rows(s), count});
      }
      continue;
    }
    // Groups of like size: a small one packs as much as a large one.
    const int64_t of_panel = panel_rows(p, tk);
    const int64_t panels = div_up(p.rows(s), of_panel), groups = div_up(panels, plan.group_panels);
    const int64_t rows = groups > 0 ? div_up(panels, groups) * of_panel : 0;
    for (int64_t kv_head = 0; kv_head < p.Hk; ++kv_head)
      for (int64_t row = 0; row < p.rows(s); row += rows)
        plan.groups.push_back({static_cast<int32_t>(t), kv_head, row, std::min(rows, p.rows(s) - row)});
  }
  // Longest first: with causal masks the last rows have the most keys.
  std::reverse(plan.groups.begin(), plan.groups.end());
  const auto groups = static_cast<int64_t>(plan.groups.size());
  plan.split = groups < ForwardPlan::kFewGroups && plan.chunks > 1;
  plan.tasks = plan.split ? groups * plan.chunks : groups;
  if (plan.split) {
    for (const ForwardPlan::Group& group : plan.groups)
      plan.partial_bytes += plan.chunks * RowStates::bytes(group.rows, plan.row_stride, acc_bytes);
  }
  return plan;
}

void run_forward(const Problem& p, const ForwardPlan& plan, const View<4>& out, const View<3>& lse) {
  const auto with_worker = [&](const ForwardPlan::Group& group, const auto& body) {
    const Sequence& s = p.sequences[group.sequence];
    const TileKernels& tk = forward_kernels(p, s);
    const InKernels kernels(tk);
    GroupWorker worker(p, tk, plan, group.heads);
    worker.layout(thread_scratch(plan.thread_bytes));
    worker.start(s, group);
    body(worker);
  };
  const auto groups = static_cast<int64_t>(plan.groups.size());
  if (!plan.split) {
    parallel_for(groups, [&](int64_t g) {
      with_worker(plan.groups[g], [&](GroupWorker& worker) { worker.run_all(out, lse); });
    });
    return;
  }
  const Buffer memory(plan.partial_bytes);
  Arena arena(memory.data());
  std::vector<RowStates> states(groups * plan.chunks);
  const int acc_bytes = p.q.dtype == DType::float64 ? 8 : 4;
  for (int64_t task = 0; task < groups * plan.chunks; ++task)
    states[task] = RowStates::take(arena, plan.groups[task / plan.chunks].rows, plan.row_stride, acc_bytes);
  // Chunk by chunk: where heads are between each other, threads stay in one part of memory.
  parallel_for(groups * plan.chunks, [&](int64_t task) {
    const int64_t group = task % groups, chunk = task / groups;
    with_worker(plan.groups[group],
                [&](GroupWorker& worker) { worker.run_chunk(chunk, states[group * plan.chunks + chunk]); });
  });
  parallel_for(groups, [&](int64_t g) {
    with_worker(plan.groups[g],
                [&](GroupWorker& worker) { worker.fold(&states[g * plan.chunks], plan.chunks, out, lse); });
  });
}

}  // namespace attn::detail

namespace attn {

void attention(ConstView<4> q, ConstView<4> k, ConstView<4> v, View<4> out, View<3> lse,
               const AttentionOptions& options) {
  Checker checker("attention");
  const detail::Problem p = detail::make_problem(checker, q, k, v, options);
  detail::check_tensor(checker, "out", out, {p.B, p.H, p.Lq, p.Dv});
  checker.require(out.dtype == q.dtype || (out.dtype == DType::float32 && size_of(q.dtype) == 2), [&] {
    return "out is " + std::string(name_of(out.dtype)) + ", must have q's type " + std::string(name_of(q.dtype)) +
           (size_of(q.dtype) == 2 ? ", or float32" : "");
  });
  checker.require(out.data != nullptr || out.empty(), "out must have data");
  if (lse) detail::check_row_values(checker, "lse", lse, p);
  if (checker.ok()) {
    detail::check_overlap(checker, {detail::region("out", out), detail::region("lse", lse)},
                          {detail::region("q", q), detail::region("k", k), detail::region("v", v),
                           detail::region("mask", options.mask), detail::region("bias", options.bias)});
  }
  checker.done();
  const ProfileSpan span("attention", [&] { return detail::forward_work(p, out, lse); });
  detail::run_forward(p, detail::plan_forward(p), out, lse);
}

}  // namespace attn
