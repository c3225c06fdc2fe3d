// Layer norm and RMS norm: two settings of one pair of kernels.
//
// Tasks are groups of rows. The gradients of weight and bias are sums over rows: one partial sum a slab, added in
// order.
#include <cmath>

#include "attn/ops.h"
#include "ops/blocks.h"
#include "ops/check.h"
#include "ops/work.h"

namespace attn::ops {
namespace {

struct Arguments {
  bool centred;
  ConstView<2> x;
  ConstView<1> weight, bias;
};

void require_row(Checker& checker, const ConstView<2>& x) {
  checker.require(x.size[1] >= 1 || x.size[0] == 0, "the rows of x must have at least one element");
}

void run_norm(Checker& checker, const Arguments& in, double epsilon, const View<2>& y, const View<1>& mean,
              const View<1>& rstd) {
  const ConstView<2>& x = in.x;
  const DType parameter = parameter_type(x.dtype);
  require_type(checker, "x", x.dtype);
  require_input(checker, "x", x, x.dtype, x.size);
  require_row(checker, x);
  require_vector(checker, "weight", in.weight, parameter, x.size[1]);
  if (in.bias) require_vector(checker, "bias", in.bias, parameter, x.size[1]);
  checker.require(std::isfinite(epsilon) && epsilon >= 0,
                  [&] { return "epsilon is " + std::to_string(epsilon) + ", must not be negative"; });
  require_output(checker, "y", y, x.dtype, x.size);
  if (mean) require_vector(checker, "mean", mean, parameter, x.size[0]);
  if (rstd) require_vector(checker, "rstd", rstd, parameter, x.size[0]);
  require_apart(checker, "y", y, "x", x, Sharing::same);
  require_apart(checker, "mean", as_row(mean), "rstd", as_row(rstd), Sharing::none);
  checker.done();
  const ProfileSpan span(in.centred ? "layer_norm" : "rms_norm",
                         [&] { return work_on(x.size, x, in.weight, in.bias, y, mean, rstd); });
  const kernels::ElementKernels& k = kernels_for(x.dtype);
  for_row_blocks(x.size[0], x.size[1], [&](const RowBlock& b) {
    k.norm({.rows = b.rows,
            .columns = b.columns,
            .centred = in.centred,
            .epsilon = epsilon,
            .x = rows_at(x, b),
            .weight = in.weight.data,
            .bias = in.bias.data,
            .y = rows_at(y, b),
            .mean = element_at(mean, b.row),
            .rstd = element_at(rstd, b.row)});
  });
}

void run_backward(Checker& checker, const Arguments& in, const ConstView<1>& mean, const ConstView<1>& rstd,
                  const ConstView<2>& dy, const View<2>& dx, const View<1>& dweight, const View<1>& dbias) {
  const ConstView<2>& x = in.x;
  const DType parameter = parameter_type(x.dtype);
  require_type(checker, "x", x.dtype);
  require_input(checker, "x", x, x.dtype, x.size);
  require_row(checker, x);
  require_vector(checker, "weight", in.weight, parameter, x.size[1]);
  if (in.centred) require_vector(checker, "mean", mean, parameter, x.size[0]);
  require_vector(checker, "rstd", rstd, parameter, x.size[0]);
  require_input(checker, "dy", dy, x.dtype, x.size);
  require_output(checker, "dx", dx, x.dtype, x.size);
  require_vector(checker, "dweight", dweight, parameter, x.size[1]);
  if (dbias) require_vector(checker, "dbias", dbias, parameter, x.size[1]);
  require_apart(checker, "dx", dx, "x", x, Sharing::same);
  require_apart(checker, "dx", dx, "dy", dy, Sharing::same);
  checker.done();
  const ProfileSpan span(in.centred ? "layer_norm_backward" : "rms_norm_backward",
                         [&] { return work_on(x.size, x, in.weight, mean, rstd, dy, dx, dweight, dbias); });
  const kernels::ElementKernels& k = kernels_for(x.dtype);
  const ColumnSums sums(x.size[0], x.size[1], parameter, dbias ? 2 : 1);
  parallel_for(sums.slabs(), [&](int64_t slab) {
    const RowBlock b = sums.slab(slab);
    sums.clear(slab);
    k.norm_grad({.rows = b.rows,
                 .columns = b.columns,
                 .centred = in.centred,
                 .x = rows_at(x, b),
                 .dy = rows_at(dy, b),
                 .weight = in.weight.data,
                 .mean = element_at(mean, b.row),
                 .rstd = element_at(rstd, b.row),
                 .dx = rows_at(dx, b),
                 .dweight = sums.partial(slab, 0),
                 .dbias = dbias ? sums.partial(slab, 1) : nullptr});
  });
  sums.finish(0, dweight.data);
  if (dbias) sums.finish(1, dbias.data);
}

}  // namespace

void layer_norm(ConstView<2> x, ConstView<1> weight, ConstView<1> bias, double epsilon, View<2> y, View<1> mean,
                View<1> rstd) {
  Checker checker("layer_norm");
  run_norm(checker, {true, x, weight, bias}, epsilon, y, mean, rstd);
}

void layer_norm_backward(ConstView<2> x, ConstView<1> weight, ConstView<1> mean, ConstView<1> rstd, ConstView<2> dy,
                         View<2> dx, View<1> dweight, View<1> dbias) {
  Checker checker("layer_norm_backward");
  run_backward(checker, {true, x, weight, {}}, mean, rstd, dy, dx, dweight, dbias);
}

void rms_norm(ConstView<2> x, ConstView<1> weight, double epsilon, View<2> y, View<1> rstd) {
  Checker checker("rms_norm");
  run_norm(checker, {false, x, weight, {}}, epsilon, y, {}, rstd);
}

void rms_norm_backward(ConstView<2> x, ConstView<1> weight, ConstView<1> rstd, ConstView<2> dy, View<2> dx,
                       View<1> dweight) {
  Checker checker("rms_norm_backward");
  run_backward(checker, {false, x, weight, {}}, {}, rstd, dy, dx, dweight, {});
}

}  // namespace attn::ops
