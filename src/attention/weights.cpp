// attention_weights: P = 2^(S - lse) for any rectangle of the matrix, from q, k and lse. Nothing else is stored.
#include <algorithm>

#include "attention/states.h"
#include "attention/task.h"
#include "attention/tile.h"
#include "attn/profile.h"

namespace attn::detail {
namespace {

/// The epilogue that stores P.
class WeightsWorker {
 public:
  WeightsWorker(const Problem& p, const TileKernels& tk, const ConstView<3>& lse, const View<4>& weights,
                const Rectangle& area)
      : p_(p), tk_(tk), lse_(lse), weights_(weights), area_(area), scores_(p, tk) {}

  int64_t layout(void* base) {
    Arena arena(base);
    query_ = arena.take(tk_.query_bytes(p_.D, tk_.panel));
    row_lse_ = arena.take(kernels::kMaxWidth * tk_.acc_bytes);
    tile_ = arena.take(tk_.block_keys * tk_.panel * tk_.acc_bytes);
    allowed_ = arena.take<uint64_t>(tk_.block_keys * int64_t{sizeof(uint64_t)});
    scores_.layout(arena, tk_.block_keys, false);
    return arena.used();
  }

  /// Queries first .. first + rows of head h against the rectangle's keys; first is inside the sequence.
  void run(const Sequence& s, int64_t h, int64_t first, int64_t rows) {
    s_ = &s;
    fill_head_panel(panel_, p_, s, h, first, rows, tk_.lanes);
    keys_ = KeyRows::keys(p_, s, h / p_.G);
    pack_query(tk_, p_.q, s, panel_, score_scale(p_), query_);
    load_lse(tk_, lse_, s, panel_, row_lse_);
    const int64_t begin = std::max<int64_t>(area_.key_begin - s.key_begin, 0);
    walk_keys({p_, s, tk_, tk_.block_keys, allowed_, begin, area_.key_end - s.key_begin}, 1, *this);
  }

  // What walk_keys() calls.
  const Panel& panel(int) const { return panel_; }
  void start_block(int64_t begin, int64_t end) { scores_.start_block(keys_, begin, end); }
  void tile(int, const Tile& tile) {
    scores_.start_tile(*s_, tile);
    scores_.probabilities(query_, row_lse_, tile_);
    const int64_t begin = std::max(tile.begin, area_.key_begin - s_->key_begin);
    const int64_t end = std::min(tile.begin + tile.count, area_.key_end - s_->key_begin);
    void* rows[kernels::kMaxWidth];
    for (int r = 0; r < panel_.rows; ++r)
      rows[r] = at(weights_, s_->batch, panel_.head[r], panel_.query[r] - area_.query_begin,
                   s_->key_begin + begin - area_.key_begin);
    kernels::RowsArgs args = rows_args(rows, panel_.rows, last_stride(weights_), weights_.dtype, end - begin);
    args.dense = static_cast<char*>(tile_) + (begin - tile.begin) * panel_.width * tk_.acc_bytes;
    args.dense_stride = panel_.width;
    tk_.unpack_panel(args);
  }
  void end_block() {}

 private:
  const Problem& p_;
  const TileKernels& tk_;
  const ConstView<3>& lse_;
  const View<4>& weights_;
  const Rectangle& area_;
  const Sequence* s_ = nullptr;
  TileScores scores_;
  Panel panel_;
  KeyRows keys_;
  void *query_ = nullptr, *row_lse_ = nullptr, *tile_ = nullptr;
  uint64_t* allowed_ = nullptr;
};

void run_weights(const Problem& p, const ConstView<3>& lse, const View<4>& weights, const Rectangle& area) {
  struct Task {
    const Sequence* sequence;
    int64_t head, first, rows;
  };
  std::vector<Task> tasks;
  int64_t bytes = 0;
  for (const Sequence& s : p.sequences) {
    const int64_t begin = std::max<int64_t>(area.query_begin - s.query_begin, 0);
    const int64_t end = std::min(area.query_end - s.query_begin, s.query_count);
    const TileKernels& tk = row_kernels(p, s);
    bytes = std::max(bytes, WeightsWorker(p, tk, lse, weights, area).layout(nullptr));
    for (int64_t h = 0; h < p.H; ++h)
      for (int64_t first = begin; first < end; first += tk.panel)
        tasks.push_back({&s, h, first, std::min<int64_t>(tk.panel, end - first)});
  }
  parallel_for(static_cast<int64_t>(tasks.size()), [&](int64_t t) {
    const Task& task = tasks[t];
    const TileKernels& tk = row_kernels(p, *task.sequence);
    const InKernels kernels(tk);
    for (int64_t r = 0; r < task.rows; ++r)
      fill_zero_row(weights, task.sequence->batch, task.head,
                    task.sequence->query_begin + task.first - area.query_begin + r);
    WeightsWorker worker(p, tk, lse, weights, area);
    worker.layout(thread_scratch(bytes));
    worker.run(*task.sequence, task.head, task.first, task.rows);
  });
}

}  // namespace
}  // namespace attn::detail

namespace attn {

void attention_weights(ConstView<4> q, ConstView<4> k, ConstView<3> lse, View<4> weights, int64_t first_query,
                       int64_t first_key, const AttentionOptions& options) {
  Checker checker("attention_weights");
  const detail::Problem p = detail::make_problem(checker, q, k, k, options);
  detail::check_row_values(checker, "lse", lse, p);
  checker.require(lse.data != nullptr || lse.empty(), "lse must have data");
  const int64_t rows = weights.size[2], columns = weights.size[3];
  detail::check_tensor(checker, "weights", weights, {p.B, p.H, rows, columns});
  checker.require(first_query >= 0 && rows <= p.Lq && first_query <= p.Lq - rows, [&] {
    return "queries " + std::to_string(first_query) + " + " + std::to_string(rows) +
           " exceed Lq = " + std::to_string(p.Lq);
  });
  checker.require(first_key >= 0 && columns <= p.Lk && first_key <= p.Lk - columns, [&] {
    return "keys " + std::to_string(first_key) + " + " + std::to_string(columns) +
           " exceed Lk = " + std::to_string(p.Lk);
  });
  checker.require(weights.data != nullptr || weights.empty(), "weights must have data");
  if (checker.ok())
    detail::check_overlap(checker, {detail::region("weights", weights)},
                          {detail::region("q", q), detail::region("k", k), detail::region("lse", lse)});
  checker.done();
  const ProfileSpan span("attention_weights", [&] {
    return OperationWork{{p.B, p.H, rows, columns, p.D},
                         2 * static_cast<double>(p.B * p.H * rows) * static_cast<double>(columns * p.D),
                         bytes_of(p.q) + bytes_of(p.k) + bytes_of(weights)};
  });
  detail::run_weights(p, lse, weights, {first_query, first_query + rows, first_key, first_key + columns});
}

}  // namespace attn
