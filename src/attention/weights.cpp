// attention_weights: P = 2^(S - lse) for any rectangle of the matrix, from q, k and lse. Nothing else is stored.
#include <algorithm>
#include <cstring>

#include "attention/panel.h"
#include "core/scratch.h"
#include "core/subnormals.h"

namespace attn::detail {
namespace {

struct Rectangle {
  int64_t query_begin = 0, query_end = 0, key_begin = 0, key_end = 0;
};

class WeightsWorker {
 public:
  WeightsWorker(const Problem& p, const TileKernels& tk) : p_(p), tk_(tk) {}

  int64_t layout(void* base) {
    Arena arena(base);
    key_depth_ = round_up(p_.D, tk_.depth_multiple);
    query_ = arena.take(key_depth_ * tk_.panel * tk_.operand_bytes);
    keys_ = arena.take(kBlockKeys * key_depth_ * tk_.operand_bytes);
    lse_ = arena.take(kernels::kMaxWidth * tk_.acc_bytes);
    scores_ = arena.take(kBlockKeys * tk_.panel * tk_.acc_bytes);
    allowed_ = arena.take<uint64_t>(kBlockKeys * int64_t{sizeof(uint64_t)});
    options_.layout(arena, p_, tk_);
    return arena.used();
  }

  /// Queries first .. first + rows of head h against the rectangle's keys; first is inside the sequence.
  void run(const Sequence& s, int64_t h, int64_t first, int64_t rows, const ConstView<3>& lse, const View<4>& weights,
           const Rectangle& area) {
    const Panel panel = make_head_panel(p_, s, h, first, rows, tk_.lanes);
    void* pointers[kBlockKeys];
    row_pointers(p_.q, s, panel, pointers);
    kernels::RowsArgs args = rows_args(pointers, rows, p_.D == 1 ? 1 : p_.q.stride[3], p_.q.dtype, p_.D);
    args.scale = tk_.scale_in_scores ? 1 : p_.scale * kScoreUnit;
    args.dense = query_;
    args.dense_stride = panel.width;
    tk_.pack_query(args);
    for (int r = 0; r < panel.width; ++r) {
      double value = std::numeric_limits<double>::infinity();
      if (r < panel.rows) value = load_row_value(lse, s.batch, h, panel.query[r]) * kScoreUnit;
      set(tk_, lse_, r, value == -std::numeric_limits<double>::infinity() ? -value : value);
    }
    const KeyReader reader(p_, s, h / p_.G);
    const int64_t end = std::min(area.key_end - s.key_begin, s.key_count);
    for (int64_t key = std::max<int64_t>(area.key_begin - s.key_begin, 0); key < end; key += kBlockKeys) {
      const int64_t count = std::min(kBlockKeys, end - key);
      const TileKind kind = tile_mask(p_, s, panel, tk_, key, key + count, allowed_);
      if (kind == TileKind::empty) continue;
      compute(s, reader, panel, key, count, kind);
      for (int r = 0; r < panel.rows; ++r)
        pointers[r] = at(weights, s.batch, h, panel.query[r] - area.query_begin, s.key_begin + key - area.key_begin);
      args = rows_args(pointers, rows, last_stride(weights), weights.dtype, count);
      args.dense = scores_;
      args.dense_stride = panel.width;
      tk_.unpack_panel(args);
    }
  }

 private:
  void compute(const Sequence& s, const KeyReader& reader, const Panel& panel, int64_t key, int64_t count,
               TileKind kind) {
    void* rows[kBlockKeys];
    reader.key_rows(key, key + count, rows);
    kernels::RowsArgs pack = rows_args(rows, count, reader.key_stride(), p_.k.dtype, p_.D);
    pack.dense = keys_;
    pack.dense_stride = key_depth_;
    tk_.pack_keys(pack);
    kernels::ScoresArgs product{};
    product.query = query_;
    product.width = panel.width;
    product.rows = panel.rows;
    product.keys = keys_;
    product.key_stride = key_depth_;
    product.count = count;
    product.depth = key_depth_;
    product.scale = tk_.scale_in_scores ? p_.scale * kScoreUnit : 1;
    product.highest = highest_score(tk_);
    product.scores = scores_;
    tk_.scores(product);
    options_.set_panel(p_, s, panel, tk_);
    options_.start_tile(tk_, key, count);
    uint64_t* allowed = kind == TileKind::mixed ? allowed_ : nullptr;
    tk_.transform(options_.transform(tk_, scores_, key, count, allowed, nullptr, nullptr));
    kernels::SoftmaxArgs softmax{};
    softmax.scores = softmax.weights = scores_;
    softmax.width = panel.width;
    softmax.count = count;
    softmax.reference = lse_;
    tk_.probabilities(softmax);
  }

  const Problem& p_;
  const TileKernels& tk_;
  int64_t key_depth_ = 0;
  void *query_ = nullptr, *keys_ = nullptr, *lse_ = nullptr, *scores_ = nullptr;
  uint64_t* allowed_ = nullptr;
  TileOptions options_;
};

void run_weights(const Problem& p, const ConstView<3>& lse, const View<4>& weights, const Rectangle& area) {
  const TileKernels& tk = select_kernels(p.q.dtype, false);
  struct Task {
    const Sequence* sequence;
    int64_t head, first, rows;
  };
  std::vector<Task> tasks;
  for (const Sequence& s : p.sequences) {
    const int64_t begin = std::max<int64_t>(area.query_begin - s.query_begin, 0);
    const int64_t end = std::min(area.query_end - s.query_begin, s.query_count);
    for (int64_t h = 0; h < p.H; ++h)
      for (int64_t first = begin; first < end; first += tk.panel)
        tasks.push_back({&s, h, first, std::min<int64_t>(tk.panel, end - first)});
  }
  const int64_t bytes = WeightsWorker(p, tk).layout(nullptr);
  parallel_for_flushed(static_cast<int64_t>(tasks.size()), [&](int64_t t) {
    const Task& task = tasks[t];
    for (int64_t r = 0; r < task.rows; ++r)
      fill_zero_row(weights, task.sequence->batch, task.head,
                    task.sequence->query_begin + task.first - area.query_begin + r);
    WeightsWorker worker(p, tk);
    worker.layout(thread_scratch(bytes));
    worker.run(*task.sequence, task.head, task.first, task.rows, lse, weights, area);
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
  detail::run_weights(p, lse, weights, {first_query, first_query + rows, first_key, first_key + columns});
}

}  // namespace attn
