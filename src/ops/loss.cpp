// Cross entropy of logits and target indices.
//
// Kernels sum the exponentials of a row in the arithmetic of the logits; the logarithm and what depends on the target
// alone are one number a row, and done in double.
#include <cmath>

#include "attn/ops.h"
#include "ops/blocks.h"
#include "ops/check.h"
#include "ops/work.h"

namespace attn::ops {
namespace {

void require_targets(Checker& checker, const ConstView<2>& logits, std::span<const int64_t> targets) {
  checker.require(static_cast<int64_t>(targets.size()) == logits.size[0], [&] {
    return "there are " + std::to_string(targets.size()) + " targets for " + std::to_string(logits.size[0]) + " rows";
  });
  for (size_t r = 0; r < targets.size(); ++r) {
    if (!checker.require(targets[r] == kIgnoreIndex || (targets[r] >= 0 && targets[r] < logits.size[1]), [&] {
          return "targets[" + std::to_string(r) + "] is " + std::to_string(targets[r]) + ", must be in [0, " +
                 std::to_string(logits.size[1]) + ") or " + std::to_string(kIgnoreIndex);
        }))
      return;
  }
}

double load(DType dtype, const void* p) {
  switch (dtype) {
    case DType::float32: return *static_cast<const float*>(p);
    case DType::bfloat16: return *static_cast<const bfloat16*>(p);
    case DType::float16: return *static_cast<const float16*>(p);
    default: return *static_cast<const double*>(p);
  }
}

void store(DType dtype, void* p, double value) {
  switch (dtype) {
    case DType::float32: *static_cast<float*>(p) = static_cast<float>(value); break;
    case DType::bfloat16: *static_cast<bfloat16*>(p) = bfloat16(static_cast<float>(value)); break;
    case DType::float16: *static_cast<float16*>(p) = float16(static_cast<float>(value)); break;
    default: *static_cast<double*>(p) = value;
  }
}

}  // namespace

double cross_entropy(ConstView<2> logits, std::span<const int64_t> targets, View<1> loss, View<1> lse) {
  Checker checker("cross_entropy");
  require_type(checker, "logits", logits.dtype);
  require_input(checker, "logits", logits, logits.dtype, logits.size);
  checker.require(logits.size[1] >= 1 || logits.size[0] == 0, "the rows of logits must have at least one element");
  require_targets(checker, logits, targets);
  const DType sum_type = parameter_type(logits.dtype);
  require_vector(checker, "loss", loss, sum_type, logits.size[0]);
  require_vector(checker, "lse", lse, sum_type, logits.size[0]);
  require_apart(checker, "loss", as_row(loss), "lse", as_row(lse), Sharing::none);
  checker.done();
  const ProfileSpan span("cross_entropy", [&] { return work_on(logits.size, logits, loss, lse); });
  const kernels::ElementKernels& k = kernels_for(logits.dtype);
  for_row_blocks(logits.size[0], logits.size[1], [&](const RowBlock& b) {
    // Until they hold what they are for: the reference and the sum of exponentials of each row.
    k.exp_sum({.rows = b.rows,
               .columns = b.columns,
               .x = rows_at(logits, b),
               .reference = element_at(lse, b.row),
               .sum = element_at(loss, b.row)});
    for (int64_t r = b.row; r < b.row + b.rows; ++r) {
      const int64_t target = targets[static_cast<size_t>(r)];
      void *row_lse = element_at(lse, r), *row_loss = element_at(loss, r);
      const double value = load(sum_type, row_lse) + std::log(load(sum_type, row_loss));
      store(sum_type, row_lse, value);
      const double taken =
          target == kIgnoreIndex ? value : load(logits.dtype, rows_at(logits, {.row = r, .column = target}).data);
      store(sum_type, row_loss, target == kIgnoreIndex ? 0 : value - taken);
    }
  });
  double sum = 0;
  int64_t count = 0;
  for (int64_t r = 0; r < logits.size[0]; ++r) {
    if (targets[static_cast<size_t>(r)] == kIgnoreIndex) continue;
    sum += load(sum_type, element_at(loss, r));
    ++count;
  }
  return count == 0 ? 0 : sum / static_cast<double>(count);
}

void cross_entropy_backward(ConstView<2> logits, std::span<const int64_t> targets, ConstView<1> lse, double factor,
                            View<2> dlogits, std::span<const double> weights) {
  Checker checker("cross_entropy_backward");
  require_type(checker, "logits", logits.dtype);
  require_input(checker, "logits", logits, logits.dtype, logits.size);
  require_targets(checker, logits, targets);
  require_vector(checker, "lse", lse, parameter_type(logits.dtype), logits.size[0]);
  require_output(checker, "dlogits", dlogits, logits.dtype, logits.size);
  require_apart(checker, "dlogits", dlogits, "logits", logits, Sharing::same);
  checker.require(weights.empty() || weights.size() == targets.size(), [&] {
    return "there are " + std::to_string(weights.size()) + " weights for " + std::to_string(targets.size()) +
           " targets";
  });
  checker.done();
  const ProfileSpan span("cross_entropy_backward", [&] { return work_on(logits.size, logits, lse, dlogits); });
  const kernels::ElementKernels& k = kernels_for(logits.dtype);
  for_row_blocks(logits.size[0], logits.size[1], [&](const RowBlock& b) {
    for (int64_t r = b.row; r < b.row + b.rows; ++r) {
      const RowBlock row{r, 1, 0, b.columns};
      const int64_t target = targets[static_cast<size_t>(r)];
      if (target == kIgnoreIndex) {
        fill_zero(dlogits, row);
        continue;
      }
      const double own = weights.empty() ? factor : factor * weights[static_cast<size_t>(r)];
      // Before the row is overwritten; p - 1 without cancellation.
      const double taken = load(logits.dtype, rows_at(logits, {.row = r, .column = target}).data);
      const double at_target = own * std::expm1(taken - load(lse.dtype, element_at(lse, r)));
      k.softmax_grad({.rows = 1,
                      .columns = b.columns,
                      .x = rows_at(logits, row),
                      .lse = element_at(lse, r),
                      .factor = own,
                      .y = rows_at(dlogits, row)});
      store(dlogits.dtype, rows_at(dlogits, {.row = r, .column = target}).data, at_target);
    }
  });
}

}  // namespace attn::ops
