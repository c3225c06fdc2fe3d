// explain(): the plan of a call, computed without running it.
#include <algorithm>

#include "attention/backward.h"
#include "attention/forward.h"
#include "attention/walk.h"
#include "kernels/dispatch.h"

namespace attn {
namespace {

using namespace detail;

/// Counts the allowed pairs of the tiles of a walk.
struct CountPairs {
  Panel rows;
  double pairs = 0;

  const Panel& panel(int) const { return rows; }
  void start_block(int64_t, int64_t) {}
  void tile(int, const Tile& tile) {
    if (!tile.allowed) pairs += static_cast<double>(tile.count * rows.rows);
    else
      for (int64_t j = 0; j < tile.count; ++j) pairs += __builtin_popcountll(tile.allowed[j]);
  }
  void end_block() {}
};

/// (query, key) pairs that the intervals, the mask, documents and blocks allow.
double allowed_pairs(const Problem& p) {
  const TileKernels& tk = row_kernels(p);
  CountPairs count;
  uint64_t allowed[kernels::kMaxBlockKeys];
  const int64_t heads = p.has_key_masks() ? p.H : std::min<int64_t>(p.H, 1);  // intervals are those of all heads
  for (const Sequence& s : p.sequences) {
    for (int64_t h = 0; h < heads; ++h) {
      for (int64_t first = 0; first < s.query_count; first += kernels::kMaxWidth) {
        const int64_t rows = std::min<int64_t>(kernels::kMaxWidth, s.query_count - first);
        fill_head_panel(count.rows, p, s, h, first, rows, 1);
        if (p.has_key_masks()) walk_keys({p, s, tk, tk.block_keys, allowed}, 1, count);
        else
          for (int r = 0; r < rows; ++r) count.pairs += static_cast<double>(count.rows.end[r] - count.rows.begin[r]);
      }
    }
  }
  return heads > 0 ? count.pairs * static_cast<double>(p.H / heads) : 0;
}

/// The kernels of the longest sequence, and the words for them.
struct Kernels {
  Kernels(const Problem& p, bool backward) {
    int64_t rows = 0, few = 0;
    for (const Sequence& s : p.sequences) {
      rows = std::max(rows, p.rows(s));
      few += !backward && is_few(p.q.dtype, p.rows(s), *p.options);
    }
    tk = backward ? &gradient_kernels(p.q.dtype, rows, *p.options) : &forward_kernels(p.q.dtype, rows, *p.options);
    const bool all_few = few > 0 && few == static_cast<int64_t>(p.sequences.size());
    text = std::string(active_kernels().name) + ": fused, " + tk->name;
    if (tk->unit_type == static_cast<int>(DType::float32) && p.q.dtype != DType::float32)
      text += " of " + std::string(name_of(p.q.dtype)) + " widened block by block";
    text += all_few ? ", head dims in lanes" : ", " + std::to_string(tk->panel) + " queries in lanes";
    if (few > 0 && !all_few) text += " (short sequences: head dims in lanes)";
    text += ", blocks of " + std::to_string(backward ? tk->gradient_keys : tk->block_keys) + " keys";
  }

  /// What the plan says of multiply-adds, `score_products` and `sum_products` for each allowed pair.
  void count(const Problem& p, int64_t score_products, int64_t sum_products, AttentionPlan& plan) const {
    const double pairs = allowed_pairs(p);
    const double scores = 2 * pairs * static_cast<double>(score_products);
    const double sums = 2 * pairs * static_cast<double>(sum_products);
    plan.flops = scores + sums;
    plan.unit_type = static_cast<DType>(tk->unit_type);
    plan.unit_flops = scores * tk->score_products + sums * tk->sum_products;
  }

  const TileKernels* tk;
  std::string text;
};

OperationWork work_of(const Problem& p, double flops_per_pair, double bytes) {
  return {{p.B, p.H, p.Lq, p.Lk, p.D}, flops_per_pair * allowed_pairs(p), bytes};
}

Problem checked(std::string_view operation, const ConstView<4>& q, const ConstView<4>& k, const ConstView<4>& v,
                const AttentionOptions& options) {
  Checker checker(operation);
  Problem p = make_problem(checker, q, k, v, options);
  checker.done();
  return p;
}

}  // namespace

namespace detail {

OperationWork forward_work(const Problem& p, const View<4>& out, const View<3>& lse) {
  const double keys = static_cast<double>(p.key_bytes);
  return work_of(p, 2 * static_cast<double>(p.D + p.Dv),
                 bytes_of(p.q) + keys + bytes_of(p.options->bias) + bytes_of(out) + bytes_of(lse));
}

OperationWork backward_work(const Problem& p, const BackwardInputs& in, const AttentionGradients& to) {
  const double keys = static_cast<double>(p.key_bytes);
  const double read =
      bytes_of(p.q) + keys + bytes_of(p.options->bias) + bytes_of(in.out) + bytes_of(in.dout) + bytes_of(in.lse);
  return work_of(p, 2 * static_cast<double>(3 * p.D + 2 * p.Dv),
                 read + bytes_of(to.dq) + bytes_of(to.dk) + bytes_of(to.dv) + bytes_of(to.dbias));
}

OperationWork scores_work(const Problem& p) {
  return work_of(p, 2 * static_cast<double>(p.D), bytes_of(p.q) + bytes_of(p.k));
}

}  // namespace detail

AttentionPlan explain(ConstView<4> q, ConstView<4> k, ConstView<4> v, const AttentionOptions& options) {
  const Problem p = checked("explain", q, k, v, options);
  const ForwardPlan plan = plan_forward(p);
  const Kernels kernels(p, false);
  AttentionPlan result;
  result.isa = active_isa();
  result.path = kernels.text + (plan.split ? ", keys split in chunks of " + std::to_string(plan.chunk_keys) : "");
  result.tasks = plan.tasks;
  const int64_t workers = std::min<int64_t>(thread_count(), std::max<int64_t>(plan.tasks, 1));
  result.scratch_bytes = workers * plan.thread_bytes + plan.partial_bytes;
  kernels.count(p, p.D, p.Dv, result);
  return result;
}

AttentionPlan explain_backward(ConstView<4> q, ConstView<4> k, ConstView<4> v, const AttentionOptions& options,
                               bool with_dbias) {
  const Problem p = checked("explain_backward", q, k, v, options);
  AttentionGradients gradients;
  if (with_dbias && options.bias)
    gradients.dbias = View<4>(const_cast<void*>(options.bias.data), options.bias.dtype, options.bias.size);
  const BackwardPlan plan = plan_backward(p, {}, gradients);
  const Kernels kernels(p, true);
  const bool extra_pass = with_dbias && options.bias && !bias_is_dense(p);
  AttentionPlan result;
  result.isa = active_isa();
  result.path = kernels.text + ", " + std::to_string(plan.slabs_per_unit) + " slab(s) of queries a key/value head";
  if (extra_pass) result.path += ", a second pass for the broadcast bias";
  result.tasks = static_cast<int64_t>(plan.slabs.size());
  const int64_t workers = std::min<int64_t>(thread_count(), std::max<int64_t>(result.tasks, 1));
  const int64_t bias_bytes = extra_pass ? bias_gradient_bytes(p, {}) : 0;
  const int64_t accumulators = plan.slabs_per_unit == 1 ? workers * plan.accumulator_bytes : plan.partial_bytes;
  result.scratch_bytes = workers * std::max(plan.thread_bytes, bias_bytes) + accumulators;
  kernels.count(p, (extra_pass ? 2 : 1) * (p.D + p.Dv), 2 * p.D + p.Dv, result);
  return result;
}

}  // namespace attn
