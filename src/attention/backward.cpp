// Backward: dq, dk, dv (dbias, dsink) from dout, with P recomputed from lse.
//
//   delta_i = <dout_i, out_i> - dlse_i                                        for every row
//   for each slab of rows of one sequence and key/value head                  a task, with its own dK and dV
//     for each group of rows (panels in lanes), for each block of 128 keys
//       for each panel   P, dS of the tile;  dQ^T += K^T dS
//       dV += P^T dO;  dK += dS^T Q       of all panels together, which load and store dK and dV once
//   where a unit has several slabs: dK, dV <- their sum, slab by slab in order
// No element is ever written by two tasks: there is nothing to lock, and the bits do not depend on the threads.
#include "attention/backward.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "attention/elements.h"
#include "core/scratch.h"
#include "core/subnormals.h"

namespace attn::detail {
namespace {

// Panels that share one pass over a block of keys, dK and dV (3 x 48 rows: dK and dV move once per 144 rows).
constexpr int kPassPanels = 3;
// Fewer (sequence, head) units than this are cut into slabs of rows, so that threads find work; a slab has at least so
// many rows, because summing its dK and dV costs 2.5 % of its products at 1024 rows (5 % at 512). A unit that is alone
// is halved earlier: a second thread is worth more.
constexpr int64_t kFewUnits = 16;
constexpr int64_t kSlabRows = 1024;
constexpr int64_t kHalvedRows = 512;
// Sums of dK and dV that a thread keeps between calls; fresh pages cost 4 % of a call over 512 tokens.
constexpr int64_t kKeptBytes = int64_t{4} << 20;

int64_t round_rows(const TileKernels& tk) { return int64_t{kPassPanels} * tk.panel; }

class SlabWorker {
 public:
  SlabWorker(const Problem& p, const BackwardInputs& in, const AttentionGradients& gradients, const TileKernels& tk)
      : p_(p), in_(in), gradients_(gradients), tk_(tk), tile_(p, in, tk, gradients.dbias && bias_is_dense(p)) {}

  int64_t layout(void* base) {
    Arena arena(base);
    key_stride_ = round_up(std::max<int64_t>(p_.D, 1), tk_.lanes);
    value_stride_ = round_up(std::max<int64_t>(p_.Dv, 1), tk_.lanes);
    tile_.layout(arena);
    const int64_t rows = round_up(tk_.panel, 2);
    for (Rows& rows_of_panel : panels_) {
      tile_.layout_rows(arena, rows_of_panel.lanes);
      tile_.layout_tile(arena, rows_of_panel.tile);
      rows_of_panel.q_outer = arena.take(rows * key_stride_ * tk_.operand_bytes);
      rows_of_panel.dout_outer = arena.take(rows * value_stride_ * tk_.operand_bytes);
      rows_of_panel.dq = arena.take(std::max<int64_t>(p_.D, 1) * tk_.panel * tk_.acc_bytes);
    }
    key_values_ = arena.take(kGradBlockKeys * key_stride_ * tk_.operand_bytes);
    return arena.used();
  }

  int64_t key_stride() const { return key_stride_; }
  int64_t value_stride() const { return value_stride_; }

  /// dk, dv: acc [key_count][stride], zero at the start.
  void run(const Sequence& s, const BackwardPlan::Slab& slab, void* dk, void* dv) {
    s_ = &s;
    dk_ = dk;
    dv_ = dv;
    const KeyReader reader(p_, s, slab.kv_head);
    for (int64_t row = 0; row < slab.rows; row += round_rows(tk_))
      run_group(reader, slab.kv_head, slab.first_row + row, std::min(round_rows(tk_), slab.rows - row));
  }

 private:
  struct Rows {
    GradRows lanes;
    GradTile tile;                                   // of the block
    void *q_outer = nullptr, *dout_outer = nullptr;  // rows of q and dout as the outer kernel wants them
    void* dq = nullptr;                              // acc [D][width]
    bool q_finite = true, dout_finite = true;
  };

  void run_group(const KeyReader& reader, int64_t kv_head, int64_t first, int64_t rows) {
    const int count = static_cast<int>(div_up(rows, tk_.panel));
    int64_t low = s_->key_count, high = 0;
    for (int i = 0; i < count; ++i) {
      const int64_t offset = int64_t{i} * tk_.panel;
      panels_[i].lanes.panel =
          make_panel(p_, *s_, kv_head, first + offset, std::min<int64_t>(tk_.panel, rows - offset), tk_.lanes);
      low = std::min(low, panels_[i].lanes.panel.low);
      high = std::max(high, panels_[i].lanes.panel.high);
      load(panels_[i]);
    }
    for (int64_t block = low / kGradBlockKeys * kGradBlockKeys; block < high; block += kGradBlockKeys) {
      block_ = block;
      block_end_ = std::min(block + kGradBlockKeys, s_->key_count);
      keys_packed_ = keys_sanitised_ = false;
      tile_.start_block(*s_, reader, block, block_end_);
      const Rows* computed[kPassPanels];
      int computed_count = 0;
      for (int i = 0; i < count; ++i) {
        if (!tile_.compute(panels_[i].lanes, panels_[i].tile)) continue;
        accumulate(reader, panels_[i]);
        computed[computed_count++] = &panels_[i];
      }
      add_outer(computed, computed_count);
    }
    for (int i = 0; i < count; ++i) store_dq(panels_[i]);
  }

  void load(Rows& rows) {
    const Panel& panel = rows.lanes.panel;
    tile_.load(*s_, rows.lanes);
    void* pointers[kernels::kMaxWidth];
    row_pointers(p_.q, *s_, panel, pointers);
    kernels::RowsArgs args = rows_args(pointers, panel.rows, p_.D == 1 ? 1 : p_.q.stride[3], p_.q.dtype, p_.D);
    rows.q_finite = pack_outer(args, rows.q_outer, key_stride_);
    row_pointers(in_.dout, *s_, panel, pointers);
    args = rows_args(pointers, panel.rows, p_.Dv == 1 ? 1 : in_.dout.stride[3], in_.dout.dtype, p_.Dv);
    rows.dout_finite = pack_outer(args, rows.dout_outer, value_stride_);
    std::memset(rows.dq, 0, p_.D * panel.width * tk_.acc_bytes);
  }

  /// Non-finite rows enter the product as 0; accumulate() adds them where they are allowed.
  bool pack_outer(kernels::RowsArgs& args, void* dense, int64_t stride) const {
    const bool finite = tk_.all_finite(args);
    args.finite_only = !finite;
    args.dense = dense;
    args.dense_stride = stride;
    tk_.pack_outer(args);
    return finite;
  }

  /// What a tile gives besides the products of add_outer().
  void accumulate(const KeyReader& reader, Rows& rows) {
    if (gradients_.dbias && bias_is_dense(p_)) store_dbias(rows);
    if (!rows.dout_finite) add_non_finite_rows(rows, in_.dout, p_.Dv, rows.tile.weights, dv_, value_stride_);
    if (!rows.q_finite) add_non_finite_rows(rows, p_.q, p_.D, rows.tile.ds, dk_, key_stride_);
    add_dq(reader, rows);
  }

  /// dV += P^T dO and dK += dS^T Q. Panels that see the same keys, as all do but at the edges of a mask, go together: 3
  /// of 48 rows run at 96 % of the peak, one at 90 (Cascade Lake, D = 64).
  void add_outer(const Rows* const* rows, int count) {
    for (int first = 0, end = 0; first < count; first = end) {
      kernels::OuterPanel weights[kPassPanels], ds[kPassPanels];
      const GradTile& tile = rows[first]->tile;
      for (; end < count && rows[end]->tile.begin == tile.begin && rows[end]->tile.count == tile.count; ++end) {
        const Rows& r = *rows[end];
        const int width = r.lanes.panel.width, lanes = r.lanes.panel.rows;
        weights[end - first] = {.weights = r.tile.weights, .width = width, .rows = lanes, .x = r.dout_outer};
        ds[end - first] = {.weights = r.tile.ds, .width = width, .rows = lanes, .x = r.q_outer};
      }
      add_outer(weights, end - first, tile, dv_, value_stride_);
      add_outer(ds, end - first, tile, dk_, key_stride_);
    }
  }

  void add_outer(const kernels::OuterPanel* panels, int count, const GradTile& tile, void* out, int64_t stride) {
    tk_.outer({.panels = panels,
               .panel_count = count,
               .count = tile.count,
               .x_stride = stride,
               .out = static_cast<char*>(out) + tile.begin * stride * tk_.acc_bytes});
  }

  /// out[key][d] += w[key][lane] x[lane][d] for the non-finite x of allowed pairs.
  void add_non_finite_rows(const Rows& rows, const ConstView<4>& x, int64_t depth, const void* weights, void* out,
                           int64_t stride) {
    const Panel& panel = rows.lanes.panel;
    const GradTile& tile = rows.tile;
    for (int lane = 0; lane < panel.rows; ++lane) {
      for (int64_t d = 0; d < depth; ++d) {
        const double value = load_element(x.dtype, at(x, s_->batch, panel.head[lane], panel.query[lane], d));
        if (std::isfinite(value)) continue;
        for (int64_t key = 0; key < tile.count; ++key) {
          if (tile_.allowed() && !(tile_.allowed()[key] >> lane & 1)) continue;
          const int64_t index = (tile.begin + key) * stride + d;
          const double weight = outer_weight(weights, key * panel.width + lane);
          set(tk_, out, index, get(tk_, out, index) + weight * value);
        }
      }
    }
  }

  double outer_weight(const void* weights, int64_t index) const {
    if (tk_.weight_bytes == tk_.acc_bytes) return get(tk_, weights, index);
    return static_cast<const bfloat16*>(weights)[index];
  }

  void add_dq(const KeyReader& reader, Rows& rows) {
    const Panel& panel = rows.lanes.panel;
    void* pointers[kGradBlockKeys];
    const int64_t begin = rows.tile.begin, count = rows.tile.count;
    kernels::RowsArgs args = rows_args(pointers, count, reader.key_stride(), p_.k.dtype, p_.D);
    bool finite = true;
    if (tile_.allowed()) {
      reader.key_rows(begin, begin + count, pointers);
      finite = tk_.all_finite(args);
    }
    kernels::ValuesArgs product{.weights = tile_.ds_values(),
                                .width = panel.width,
                                .rows = panel.rows,
                                .values = nullptr,
                                .value_stride = p_.D * tk_.key_pair,
                                .count = count,
                                .depth = p_.D,
                                .out = rows.dq};
    const bool in_place =
        tk_.values_in_place && reader.key_stride() == 1 && static_cast<int>(p_.k.dtype) == tk_.operand;
    if (finite && in_place) {
      product.values = reader.key(begin);
      product.value_stride = reader.key_row_stride();
    } else {
      pack_keys(reader, !finite);
      product.values = static_cast<const char*>(key_values_) + (begin - block_) * p_.D * tk_.operand_bytes;
    }
    tk_.values(product);
    if (!finite)
      add_non_finite(tk_, pointers, reader.key_stride(), p_.k.dtype, p_.D, tile_.ds_values(), panel.width, panel.rows,
                     count, tile_.allowed(), rows.dq, panel.width);
  }

  void pack_keys(const KeyReader& reader, bool finite_only) {
    if (keys_packed_ && keys_sanitised_ == finite_only) return;
    void* pointers[kGradBlockKeys];
    reader.key_rows(block_, block_end_, pointers);
    kernels::RowsArgs args = rows_args(pointers, block_end_ - block_, reader.key_stride(), p_.k.dtype, p_.D);
    args.finite_only = finite_only;
    args.dense = key_values_;
    args.dense_stride = p_.D;
    tk_.pack_values(args);
    keys_packed_ = true;
    keys_sanitised_ = finite_only;
  }

  void store_dbias(const Rows& rows_of_panel) {
    const Panel& panel = rows_of_panel.lanes.panel;
    const GradTile& tile = rows_of_panel.tile;
    const View<4>& dbias = gradients_.dbias;
    void* rows[kernels::kMaxWidth];
    for (int r = 0; r < panel.rows; ++r)
      rows[r] = at(dbias, s_->batch, panel.head[r], panel.query[r], s_->key_begin + tile.begin);
    kernels::RowsArgs args = rows_args(rows, panel.rows, last_stride(dbias), dbias.dtype, tile.count);
    args.dense = const_cast<void*>(tile_.ds());
    args.dense_stride = panel.width;
    tk_.unpack_panel(args);
  }

  void store_dq(const Rows& rows) {
    if (!gradients_.dq) return;
    const Panel& panel = rows.lanes.panel;
    void* pointers[kernels::kMaxWidth];
    row_pointers(gradients_.dq, *s_, panel, pointers);
    kernels::RowsArgs args =
        rows_args(pointers, panel.rows, p_.D == 1 ? 1 : gradients_.dq.stride[3], gradients_.dq.dtype, p_.D);
    args.scale = p_.scale;
    args.dense = rows.dq;
    args.dense_stride = panel.width;
    tk_.unpack_panel(args);
  }

  const Problem& p_;
  const BackwardInputs& in_;
  const AttentionGradients& gradients_;
  const TileKernels& tk_;
  TileGradient tile_;
  const Sequence* s_ = nullptr;
  void *dk_ = nullptr, *dv_ = nullptr;
  Rows panels_[kPassPanels];
  int64_t key_stride_ = 0, value_stride_ = 0;
  int64_t block_ = 0, block_end_ = 0;
  void* key_values_ = nullptr;  // the block's keys as operand of `values`
  bool keys_packed_ = false, keys_sanitised_ = false;
};

/// Rows [begin, end) of dK or dV from their accumulator.
void store_keys(const TileKernels& tk, const Sequence& s, int64_t kv_head, const View<4>& view, int64_t begin,
                int64_t end, const void* accumulator, int64_t stride, double scale) {
  if (!view) return;
  for (int64_t key = begin; key < end; key += kGradBlockKeys) {
    const int64_t count = std::min(kGradBlockKeys, end - key);
    void* rows[kGradBlockKeys];
    for (int64_t j = 0; j < count; ++j) rows[j] = at(view, s.batch, kv_head, s.key_begin + key + j);
    kernels::RowsArgs args = rows_args(rows, count, view.size[3] == 1 ? 1 : view.stride[3], view.dtype, view.size[3]);
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

/// delta = <dout, out> - dlse for every row.
std::vector<double> row_deltas(const Problem& p, const BackwardInputs& in) {
  const TileKernels& tk = select_kernels(p.q.dtype, false);
  std::vector<double> delta(p.B * p.H * p.Lq);
  const auto rows = static_cast<int64_t>(delta.size());
  constexpr int64_t kRows = 256;
  parallel_for(div_up(rows, kRows), [&](int64_t task) {
    const int64_t first = task * kRows, count = std::min(kRows, rows - first);
    void *dout[kRows], *out[kRows];
    int64_t b = first / (p.H * p.Lq), h = first / p.Lq % p.H, i = first % p.Lq;
    for (int64_t r = 0; r < count; ++r) {
      dout[r] = const_cast<char*>(at(in.dout, b, h, i));
      out[r] = const_cast<char*>(at(in.out, b, h, i));
      delta[first + r] = in.dlse ? load_row_value(in.dlse, b, h, i) : 0;
      if (++i < p.Lq) continue;
      i = 0;
      if (++h < p.H) continue;
      h = 0;
      ++b;
    }
    double sums[kRows];
    tk.dot_rows(rows_args(dout, count, in.dout.stride[3], in.dout.dtype, p.Dv),
                rows_args(out, count, in.out.stride[3], in.out.dtype, p.Dv), sums);
    for (int64_t r = 0; r < count; ++r) delta[first + r] = sums[r] - delta[first + r];
  });
  return delta;
}

/// dsink_h = - sum over rows of P(sink) delta, in a fixed order.
void sink_gradient(const Problem& p, const BackwardInputs& in, const View<1>& dsink) {
  parallel_for(p.H, [&](int64_t h) {
    double sum = 0;
    for (int64_t b = 0; b < p.B; ++b) {
      for (int64_t i = 0; i < p.Lq; ++i) {
        const double weight = std::exp(p.options->sink[h] - load_row_value(in.lse, b, h, i));
        sum -= weight * in.delta[(b * p.H + h) * p.Lq + i];
      }
    }
    store_element(dsink.dtype, static_cast<char*>(dsink.data) + h * dsink.stride[0] * size_of(dsink.dtype), sum);
  });
}

void run_backward(const Problem& p, const BackwardInputs& in, const AttentionGradients& gradients) {
  const TileKernels& tk = select_kernels(p.q.dtype, false);
  const BackwardPlan plan = plan_backward(p, gradients);
  if (!every_key_has_a_sequence(p)) {
    fill_zero(gradients.dk);
    fill_zero(gradients.dv);
  }
  if (gradients.dbias && bias_is_dense(p)) fill_zero(gradients.dbias);
  const auto run = [&](char* scratch, const BackwardPlan::Slab& slab, char* dk, char* dv) {
    SlabWorker worker(p, in, gradients, tk);
    worker.layout(scratch);
    worker.run(p.sequences[slab.sequence], slab, dk, dv);
  };
  const auto slabs = static_cast<int64_t>(plan.slabs.size());
  const int64_t key_row = plan.key_stride * tk.acc_bytes, value_row = plan.value_stride * tk.acc_bytes;
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
      store_keys(tk, s, slab.kv_head, gradients.dk, 0, s.key_count, dk, plan.key_stride, p.scale);
      store_keys(tk, s, slab.kv_head, gradients.dv, 0, s.key_count, dv, plan.value_stride, 1);
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
  const int64_t blocks = div_up(plan.accumulator_bytes / (key_row + value_row), kGradBlockKeys);
  parallel_for_flushed(slabs / plan.slabs_per_unit * blocks, [&](int64_t task) {
    const BackwardPlan::Slab* unit = &plan.slabs[task / blocks * plan.slabs_per_unit];
    const Sequence& s = p.sequences[unit->sequence];
    const int64_t begin = task % blocks * kGradBlockKeys, end = std::min(begin + kGradBlockKeys, s.key_count);
    if (begin >= end) return;
    char* dk = part(unit[0]) + begin * key_row;
    char* dv = part(unit[0]) + s.key_count * key_row + begin * value_row;
    for (int64_t i = 1; i < plan.slabs_per_unit; ++i) {
      add_arrays(tk, dk, part(unit[i]) + begin * key_row, (end - begin) * plan.key_stride);
      add_arrays(tk, dv, part(unit[i]) + s.key_count * key_row + begin * value_row, (end - begin) * plan.value_stride);
    }
    store_keys(tk, s, unit->kv_head, gradients.dk, begin, end, dk, plan.key_stride, p.scale);
    store_keys(tk, s, unit->kv_head, gradients.dv, begin, end, dv, plan.value_stride, 1);
  });
}

}  // namespace

BackwardPlan plan_backward(const Problem& p, const AttentionGradients& gradients) {
  BackwardPlan plan;
  const TileKernels& tk = select_kernels(p.q.dtype, false);
  const BackwardInputs none;
  SlabWorker worker(p, none, gradients, tk);
  plan.thread_bytes = worker.layout(nullptr);
  plan.key_stride = worker.key_stride();
  plan.value_stride = worker.value_stride();
  plan.delta_bytes = p.B * p.H * p.Lq * int64_t{sizeof(double)};
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
    const int64_t slab_rows = round_up(div_up(std::max<int64_t>(p.rows(s), 1), plan.slabs_per_unit), round_rows(tk));
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
  if (gradients.dq) detail::check_tensor(checker, "dq", gradients.dq, q.size);
  if (gradients.dk) detail::check_tensor(checker, "dk", gradients.dk, k.size);
  if (gradients.dv) detail::check_tensor(checker, "dv", gradients.dv, v.size);
  if (checker.require(!gradients.dbias || options.bias, "dbias is wanted, but there is no bias") && gradients.dbias)
    detail::check_tensor(checker, "dbias", gradients.dbias, options.bias.size);
  if (checker.require(!gradients.dsink || !options.sink.empty(), "dsink is wanted, but there is no sink") &&
      gradients.dsink) {
    checker.require(gradients.dsink.size[0] == p.H && is_floating(gradients.dsink.dtype),
                    [&] { return "dsink must be floating of size [H] = [" + std::to_string(p.H) + "]"; });
    detail::check_layout(checker, "dsink", gradients.dsink);
  }
  if (checker.ok()) {
    detail::check_overlap(
        checker,
        {region("dq", gradients.dq), region("dk", gradients.dk), region("dv", gradients.dv),
         region("dbias", gradients.dbias), region("dsink", gradients.dsink)},
        {region("q", q), region("k", k), region("v", v), region("out", out), region("lse", lse), region("dout", dout),
         region("dlse", dlse), region("mask", options.mask), region("bias", options.bias)});
  }
  checker.done();
  detail::BackwardInputs in{out, dout, lse, dlse, nullptr};
  const std::vector<double> delta = detail::row_deltas(p, in);
  in.delta = delta.data();
  detail::run_backward(p, in, gradients);
  if (gradients.dbias && !detail::bias_is_dense(p)) detail::run_bias_gradient(p, in, gradients.dbias);
  if (gradients.dsink) detail::sink_gradient(p, in, gradients.dsink);
}

}  // namespace attn
