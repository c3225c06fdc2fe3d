// Backward: dq, dk, dv (dbias, dsink) from dout, with P recomputed from lse.
//
//   for each slab of rows of one sequence and key/value head                  a task, with its own dK and dV
//     for each group of rows (panels in lanes), for each block of keys        walk_keys
//       for each panel   P, dS of the tile, delta_i = <dout_i, out_i> - dlse_i;  dQ^T += K^T dS
//       dV += P^T dO;  dK += dS^T Q       of all panels together, which load and store dK and dV once
//   where a unit has several slabs: dK, dV <- their sum, slab by slab in order
// No element is ever written by two tasks: there is nothing to lock, and the bits do not depend on the threads.
#include "attention/backward.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "attention/elements.h"
#include "attention/task.h"

namespace attn::detail {
namespace {

// Fewer (sequence, head) units than this are cut into slabs of rows, so that threads find work; a slab has at least so
// many rows, because summing its dK and dV costs 2.5 % of its products at 1024 rows (5 % at 512). A unit that is alone
// is halved earlier: a second thread is worth more.
constexpr int64_t kFewUnits = 16;
constexpr int64_t kSlabRows = 1024;
constexpr int64_t kHalvedRows = 512;
// Sums of dK and dV that a thread keeps between calls; fresh pages of the system cost 4 % of a call over 512 tokens.
constexpr int64_t kKeptBytes = int64_t{4} << 20;

// Rows that are summed and stored together, or whose delta is computed together.
constexpr int64_t kStoreRows = 128;

int64_t round_rows(const Problem& p, const TileKernels& tk) { return tk.gradient_panels * panel_rows(p, tk); }

/// The epilogue of the backward's walks.
class SlabWorker {
 public:
  SlabWorker(const Problem& p, const BackwardInputs& in, const AttentionGradients& gradients, const TileKernels& tk)
      : p_(p), in_(in), gradients_(gradients), tk_(tk), tile_(p, in, tk, gradients.dbias && bias_is_dense(p)) {}

  /// For the slabs of a sequence.
  int64_t layout(void* base, const Sequence& s) {
    Arena arena(base);
    const KeyRows keys = KeyRows::keys(p_, s, 0), values = KeyRows::values(p_, s, 0);
    const auto kept = [&](const KeyRows& rows, const kernels::Operand& operand, int64_t n) {
      return p_.rows(s) > round_rows(p_, tk_) ? kept_rows(rows, operand, s.key_count, n) : 0;
    };
    tile_.layout(arena, kept(keys, tk_.key_rows, p_.D), kept(values, tk_.key_rows, p_.Dv));
    for (int i = 0; i < tk_.gradient_panels; ++i) {
      Rows& rows = panels_[i];
      tile_.layout_rows(arena, rows.lanes);
      tile_.layout_tile(arena, rows.tile);
      rows.q_outer = arena.take(tk_.outer_rows.bytes(tk_.panel, p_.D));
      rows.dout_outer = arena.take(tk_.outer_rows.bytes(tk_.panel, p_.Dv));
      rows.dq = arena.take(tk_.accumulator_bytes(std::max<int64_t>(p_.D, 1), tk_.panel));
    }
    if (!tk_.one_row_format)
      key_values_.layout(arena, p_, tk_.value_rows, tk_, tk_.gradient_keys, p_.D, kept(keys, tk_.value_rows, p_.D));
    allowed_ = arena.take<uint64_t>(tk_.gradient_keys * int64_t{sizeof(uint64_t)});
    return arena.used();
  }

  /// dk, dv: acc [key_count][outer_rows.stride(D or Dv)], zero at the start.
  void run(const Sequence& s, const BackwardPlan::Slab& slab, void* dk, void* dv) {
    s_ = &s;
    dk_ = dk;
    dv_ = dv;
    keys_ = KeyRows::keys(p_, s, slab.kv_head);
    values_ = KeyRows::values(p_, s, slab.kv_head);
    tile_.reset();
    if (!tk_.one_row_format) key_values_.reset();
    for (int64_t row = 0; row < slab.rows; row += round_rows(p_, tk_))
      run_group(slab.kv_head, slab.first_row + row, std::min(round_rows(p_, tk_), slab.rows - row));
  }

  // What walk_keys() calls.
  const Panel& panel(int i) const { return panels_[i].lanes.panel; }
  void start_block(int64_t begin, int64_t end) {
    tile_.start_block(keys_, values_, begin, end);
    if (!tk_.one_row_format) key_values_.start(keys_, begin, end);
    computed_count_ = 0;
  }
  /// What a tile gives besides the products of add_outer().
  void tile(int i, const Tile& tile) {
    Rows& rows = panels_[i];
    tile_.compute(*s_, rows.lanes, tile, rows.tile);
    if (gradients_.dbias && bias_is_dense(p_)) store_dbias(rows);
    if (!rows.dout_finite) add_non_finite(tile, in_.dout, rows.tile.weights, dv_);
    if (!rows.q_finite) add_non_finite(tile, p_.q, rows.tile.ds, dk_);
    BlockOperand& keys = tk_.one_row_format ? tile_.keys() : key_values_;
    add_product(p_, tk_, keys, p_.D, tile, tile_.ds_values(), rows.dq);
    computed_[computed_count_++] = &rows;
  }
  /// dV += P^T dO and dK += dS^T Q. Panels that see the same keys, as all do but at the edges of a mask, go together: 3
  /// of 48 rows run at 96 % of the peak, one at 90 (Cascade Lake, D = 64).
  void end_block() {
    for (int first = 0, end = 0; first < computed_count_; first = end) {
      kernels::OuterPanel weights[kernels::kMaxGradientPanels], ds[kernels::kMaxGradientPanels];
      const GradTile& tile = computed_[first]->tile;
      for (; end < computed_count_ && same_keys(computed_[end]->tile, tile); ++end) {
        const Rows& r = *computed_[end];
        const int width = r.lanes.panel.width, rows = r.lanes.panel.rows;
        weights[end - first] = {.weights = r.tile.weights, .width = width, .rows = rows, .x = r.dout_outer};
        ds[end - first] = {.weights = r.tile.ds, .width = width, .rows = rows, .x = r.q_outer};
      }
      if (p_.Dv > 0) add_outer(weights, end - first, tile, dv_, tk_.outer_rows.stride(p_.Dv));
      add_outer(ds, end - first, tile, dk_, tk_.outer_rows.stride(p_.D));
    }
  }

 private:
  struct Rows {
    GradRows lanes;
    GradTile tile;                                   // of the block
    void *q_outer = nullptr, *dout_outer = nullptr;  // rows of q and dout as the outer kernel wants them
    void* dq = nullptr;                              // the kernels' accumulator
    bool q_finite = true, dout_finite = true;
  };

  static bool same_keys(const GradTile& a, const GradTile& b) { return a.begin == b.begin && a.count == b.count; }

  void run_group(int64_t kv_head, int64_t first, int64_t rows) {
    const int64_t of_panel = panel_rows(p_, tk_);
    const int count = static_cast<int>(div_up(rows, of_panel));
    for (int i = 0; i < count; ++i) {
      const int64_t offset = i * of_panel;
      fill_panel(panels_[i].lanes.panel, p_, *s_, kv_head, first + offset, std::min(of_panel, rows - offset),
                 tk_.lanes);
      load(panels_[i]);
    }
    walk_keys({p_, *s_, tk_, tk_.gradient_keys, allowed_}, count, *this);
    for (int i = 0; i < count; ++i) store_dq(panels_[i]);
  }

  void load(Rows& rows) {
    tile_.load(*s_, rows.lanes);
    rows.q_finite = pack_outer(PanelRows(p_.q, *s_, rows.lanes.panel), p_.D, rows.q_outer);
    rows.dout_finite = pack_outer(PanelRows(in_.dout, *s_, rows.lanes.panel), p_.Dv, rows.dout_outer);
    std::memset(rows.dq, 0, tk_.accumulator_bytes(p_.D, rows.lanes.panel.width));
  }

  /// Non-finite rows enter the product as 0; add_non_finite() adds them where they are allowed.
  bool pack_outer(const PanelRows& rows, int64_t n, void* packed) const {
    kernels::RowsArgs args = rows.with(packed, tk_.outer_rows.stride(n));
    const bool finite = tk_.all_finite(args);
    args.finite_only = !finite;
    tk_.outer_rows.pack(args);
    return finite;
  }

  void add_outer(const kernels::OuterPanel* panels, int count, const GradTile& tile, void* out, int64_t stride) {
    tk_.outer({.panels = panels,
               .panel_count = count,
               .count = tile.count,
               .x_stride = stride,
               .out = static_cast<char*>(out) + tile.begin * stride * tk_.acc_bytes});
  }

  /// What the non-finite elements of q or dout give to the sums of dK or dV.
  void add_non_finite(const Tile& tile, const ConstView<4>& x, const void* weights, void* out) {
    const int64_t stride = tk_.outer_rows.stride(x.size[3]);
    const PanelRows rows(x, *s_, *tile.panel);
    tk_.outer_non_finite({.x = rows.with(nullptr, 0),
                          .weights = weights,
                          .width = tile.panel->width,
                          .rows = tile.panel->rows,
                          .count = tile.count,
                          .allowed = tile.allowed,
                          .out = static_cast<char*>(out) + tile.begin * stride * tk_.acc_bytes,
                          .out_stride = stride});
  }

  /// dS of a pair is the gradient of its bias.
  void store_dbias(const Rows& rows) {
    const Panel& panel = rows.lanes.panel;
    const GradTile& tile = rows.tile;
    const View<4>& dbias = gradients_.dbias;
    void* pointers[kernels::kMaxWidth];
    for (int r = 0; r < panel.rows; ++r)
      pointers[r] = at(dbias, s_->batch, panel.head[r], panel.query[r], s_->key_begin + tile.begin);
    kernels::RowsArgs args = rows_args(pointers, panel.rows, last_stride(dbias), dbias.dtype, tile.count);
    args.dense = const_cast<void*>(tile_.ds());
    args.dense_stride = panel.width;
    tk_.unpack_panel(args);
  }

  void store_dq(const Rows& rows) {
    if (!gradients_.dq) return;
    const PanelRows target(gradients_.dq, *s_, rows.lanes.panel);
    tk_.unpack_out(target.with(rows.dq, rows.lanes.panel.width, p_.scale));
  }

  const Problem& p_;
  const BackwardInputs& in_;
  const AttentionGradients& gradients_;
  const TileKernels& tk_;
  TileGradient tile_;
  const Sequence* s_ = nullptr;
  KeyRows keys_, values_;
  void *dk_ = nullptr, *dv_ = nullptr;
  Rows panels_[kernels::kMaxGradientPanels];
  const Rows* computed_[kernels::kMaxGradientPanels];  // panels with a tile in the block
  int computed_count_ = 0;
  BlockOperand key_values_;  // the block's keys as operand of `values`, where that is another format
  uint64_t* allowed_ = nullptr;
};

/// Rows [begin, end) of dK or dV from their accumulator.
void store_keys(const TileKernels& tk, const Sequence& s, int64_t kv_head, const View<4>& view, int64_t begin,
                int64_t end, const void* accumulator, int64_t stride, double scale) {
  if (!view) return;
  for (int64_t key = begin; key < end; key += kStoreRows) {
    const int64_t count = std::min(kStoreRows, end - key);
    void* rows[kStoreRows];
    for (int64_t j = 0; j < count; ++j) rows[j] = at(view, s.batch, kv_head, s.key_begin + key + j);
    kernels::RowsArgs args = view_rows_args(rows, count, view);
    args.scale = scale;
    args.dense = static_cast<char*>(const_cast<void*>(accumulator)) + (key - begin) * stride * tk.acc_bytes;
    args.dense_stride = stride;
    tk.store_rows(args);
  }
}

void add_arrays(const TileKernels& tk, void* sum, const void* x, int64_t n) {
  if (tk.acc_bytes == 8)
    for (int64_t i = 0; i < n; ++i) static_cast<double*>(sum)[i] += static_cast<const double*>(x)[i];
  else
    for (int64_t i = 0; i < n; ++i) static_cast<float*>(sum)[i] += static_cast<const float*>(x)[i];
}

/// Zero in every element: what no task will write.
void fill_zero(const View<4>& view) {
  if (!view) return;
  const Shape<4>& n = view.size;
  constexpr int64_t kRows = 256;
  parallel_for(n[0] * n[1] * div_up(n[2], kRows), [&](int64_t task) {
    const int64_t parts = div_up(n[2], kRows), head = task / parts, first = task % parts * kRows;
    for (int64_t row = first; row < std::min(first + kRows, n[2]); ++row)
      fill_zero_row(view, head / n[1], head % n[1], row);
  });
}

/// Keys beyond a sequence's length, or between packed ones, get no gradient from any task.
bool every_key_has_a_sequence(const Problem& p) {
  return static_cast<int64_t>(p.sequences.size()) == p.B && p.Hk > 0 &&
         std::all_of(p.sequences.begin(), p.sequences.end(), [&](const Sequence& s) { return s.key_count == p.Lk; });
}

/// delta of the queries first .. first + count of a head.
void head_deltas(const Problem& p, const BackwardInputs& in, int64_t b, int64_t h, int64_t first, int64_t count,
                 double* delta) {
  if (in.loss) {
    for (int64_t r = 0; r < count; ++r) delta[r] = in.loss->delta(b, h, first + r);
    return;
  }
  void *dout[kStoreRows], *out[kStoreRows];
  for (int64_t r = 0; r < count; ++r) {
    dout[r] = const_cast<char*>(at(in.dout, b, h, first + r));
    out[r] = const_cast<char*>(at(in.out, b, h, first + r));
  }
  gradient_kernels(p).dot_rows(view_rows_args(dout, count, in.dout), view_rows_args(out, count, in.out), delta);
  for (int64_t r = 0; in.dlse && r < count; ++r) delta[r] -= load_row_value(in.dlse, b, h, first + r);
}

/// dsink_h = - sum over rows of P(sink) delta, in a fixed order.
void sink_gradient(const Problem& p, const BackwardInputs& in, const View<1>& dsink) {
  parallel_for(p.H, [&](int64_t h) {
    double sum = 0, delta[kStoreRows];
    for (int64_t b = 0; b < p.B; ++b) {
      for (int64_t i = 0; i < p.Lq; ++i) {
        if (i % kStoreRows == 0) head_deltas(p, in, b, h, i, std::min(kStoreRows, p.Lq - i), delta);
        const double weight = std::exp(p.options->sink[h] - load_row_value(in.lse, b, h, i));
        sum -= weight * delta[i % kStoreRows];
      }
    }
    store_element(dsink.dtype, static_cast<char*>(dsink.data) + h * dsink.stride[0] * size_of(dsink.dtype), sum);
  });
}

void run_slabs(const Problem& p, const BackwardInputs& in, const AttentionGradients& gradients) {
  const TileKernels& sums = gradient_kernels(p);  // dK and dV are alike in the kernels of all sequences
  const BackwardPlan plan = plan_backward(p, in, gradients);
  if (!every_key_has_a_sequence(p)) {
    fill_zero(gradients.dk);
    fill_zero(gradients.dv);
  }
  if (gradients.dbias && bias_is_dense(p)) fill_zero(gradients.dbias);
  const auto run = [&](char* scratch, const BackwardPlan::Slab& slab, char* dk, char* dv) {
    const Sequence& s = p.sequences[slab.sequence];
    const TileKernels& tk = gradient_kernels(p, s);
    const InKernels kernels(tk);
    SlabWorker worker(p, in, gradients, tk);
    worker.layout(scratch, s);
    worker.run(s, slab, dk, dv);
  };
  const auto slabs = static_cast<int64_t>(plan.slabs.size());
  const int64_t key_row = plan.key_stride * sums.acc_bytes, value_row = plan.value_stride * sums.acc_bytes;
  if (plan.slabs_per_unit == 1) {
    const bool keep = plan.accumulator_bytes <= kKeptBytes;
    parallel_for_flushed(slabs, [&](int64_t task) {
      const BackwardPlan::Slab& slab = plan.slabs[task];
      const Sequence& s = p.sequences[slab.sequence];
      char* scratch = static_cast<char*>(thread_scratch(plan.thread_bytes + (keep ? plan.accumulator_bytes : 0)));
      const int64_t bytes = s.key_count * (key_row + value_row);
      const Buffer large(keep ? 0 : bytes);
      char* dk = keep ? scratch + plan.thread_bytes : static_cast<char*>(large.data());
      char* dv = dk + s.key_count * key_row;
      if (bytes > 0) std::memset(dk, 0, bytes);
      run(scratch, slab, dk, dv);
      store_keys(sums, s, slab.kv_head, gradients.dk, 0, s.key_count, dk, plan.key_stride, p.scale);
      store_keys(sums, s, slab.kv_head, gradients.dv, 0, s.key_count, dv, plan.value_stride, 1);
    });
    return;
  }
  const Buffer partial(plan.partial_bytes, true);
  const auto part = [&](const BackwardPlan::Slab& slab) {
    return static_cast<char*>(partial.data()) + slab.partial * (key_row + value_row);
  };
  parallel_for_flushed(slabs, [&](int64_t task) {
    const BackwardPlan::Slab& slab = plan.slabs[task];
    const Sequence& s = p.sequences[slab.sequence];
    run(static_cast<char*>(thread_scratch(plan.thread_bytes)), slab, part(slab), part(slab) + s.key_count * key_row);
  });
  const int64_t blocks = div_up(plan.accumulator_bytes / (key_row + value_row), kStoreRows);
  parallel_for_flushed(slabs / plan.slabs_per_unit * blocks, [&](int64_t task) {
    const BackwardPlan::Slab* unit = &plan.slabs[task / blocks * plan.slabs_per_unit];
    const Sequence& s = p.sequences[unit->sequence];
    const int64_t begin = task % blocks * kStoreRows, end = std::min(begin + kStoreRows, s.key_count);
    if (begin >= end) return;
    char* dk = part(unit[0]) + begin * key_row;
    char* dv = part(unit[0]) + s.key_count * key_row + begin * value_row;
    for (int64_t i = 1; i < plan.slabs_per_unit; ++i) {
      add_arrays(sums, dk, part(unit[i]) + begin * key_row, (end - begin) * plan.key_stride);
      add_arrays(sums, dv, part(unit[i]) + s.key_count * key_row + begin * value_row,
                 (end - begin) * plan.value_stride);
    }
    store_keys(sums, s, unit->kv_head, gradients.dk, begin, end, dk, plan.key_stride, p.scale);
    store_keys(sums, s, unit->kv_head, gradients.dv, begin, end, dv, plan.value_stride, 1);
  });
}

}  // namespace

void run_backward(const Problem& p, const BackwardInputs& in, const AttentionGradients& gradients) {
  run_slabs(p, in, gradients);
  if (gradients.dbias && !bias_is_dense(p)) run_bias_gradient(p, in, gradients.dbias);
  if (gradients.dsink) sink_gradient(p, in, gradients.dsink);
}

BackwardPlan plan_backward(const Problem& p, const BackwardInputs& in, const AttentionGradients& gradients) {
  BackwardPlan plan;
  const TileKernels& tk = gradient_kernels(p);
  plan.key_stride = tk.outer_rows.stride(p.D);
  plan.value_stride = tk.outer_rows.stride(p.Dv);
  int64_t longest_rows = 0, longest_keys = 0;
  for (const Sequence& s : p.sequences) {
    longest_rows = std::max(longest_rows, p.rows(s));
    longest_keys = std::max(longest_keys, s.key_count);
  }
  const int64_t key_bytes = (plan.key_stride + plan.value_stride) * tk.acc_bytes;
  plan.accumulator_bytes = longest_keys * key_bytes;
  const int64_t units = static_cast<int64_t>(p.sequences.size()) * p.Hk;
  const int64_t least = units == 1 && longest_rows >= kHalvedRows ? 2 : 1;
  if (units > 0 && units < kFewUnits)
    plan.slabs_per_unit = std::clamp<int64_t>(longest_rows / kSlabRows, least, div_up(kFewUnits, units));
  int64_t partial = 0;
  for (size_t t = 0; t < p.sequences.size(); ++t) {
    const Sequence& s = p.sequences[t];
    const TileKernels& own = gradient_kernels(p, s);
    plan.thread_bytes = std::max(plan.thread_bytes, SlabWorker(p, in, gradients, own).layout(nullptr, s));
    const int64_t slab_rows =
        round_up(div_up(std::max<int64_t>(p.rows(s), 1), plan.slabs_per_unit), round_rows(p, own));
    for (int64_t kv_head = 0; kv_head < p.Hk; ++kv_head) {
      for (int64_t i = 0; i < plan.slabs_per_unit; ++i) {
        const int64_t first = std::min(i * slab_rows, p.rows(s));
        plan.slabs.push_back(
            {static_cast<int32_t>(t), kv_head, first, std::min(slab_rows, p.rows(s) - first), partial});
        partial += s.key_count;
      }
    }
  }
  if (plan.slabs_per_unit > 1) plan.partial_bytes = partial * key_bytes;
  return plan;
}

bool bias_is_dense(const Problem& p) { return p.options->bias.size == Shape<4>{p.B, p.H, p.Lq, p.Lk}; }

}  // namespace attn::detail

namespace attn {

void attention_backward(ConstView<4> q, ConstView<4> k, ConstView<4> v, ConstView<4> out, ConstView<3> lse,
                        ConstView<4> dout, const AttentionGradients& gradients, const AttentionOptions& options,
                        ConstView<3> dlse) {
  using detail::region;
  Checker checker("attention_backward");
  const detail::Problem p = detail::make_problem(checker, q, k, v, options);
  const Shape<4> rows = {p.B, p.H, p.Lq, p.Dv};
  detail::check_tensor(checker, "out", out, rows);
  detail::check_tensor(checker, "dout", dout, rows);
  checker.require(out.dtype == q.dtype && dout.dtype == q.dtype, "out and dout must have q's type");
  detail::check_row_values(checker, "lse", lse, p);
  checker.require((out.data && dout.data && lse.data) || dout.empty(), "out, lse and dout must have data");
  if (dlse) detail::check_row_values(checker, "dlse", dlse, p);
  detail::check_gradients(checker, p, gradients);
  if (checker.ok()) {
    detail::check_overlap(
        checker,
        {region("dq", gradients.dq), region("dk", gradients.dk), region("dv", gradients.dv),
         region("dbias", gradients.dbias), region("dsink", gradients.dsink)},
        {region("q", q), region("k", k), region("v", v), region("out", out), region("lse", lse), region("dout", dout),
         region("dlse", dlse), region("mask", options.mask), region("bias", options.bias)});
  }
  checker.done();
  const detail::BackwardInputs in{out, dout, lse, dlse};
  const ProfileSpan span("attention_backward", [&] { return detail::backward_work(p, in, gradients); });
  detail::run_backward(p, in, gradients);
}

}  // namespace attn
