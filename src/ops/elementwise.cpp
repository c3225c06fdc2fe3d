// add, scale, convert, add_rows and dropout.
#include <cmath>

#include "attn/ops.h"
#include "ops/blocks.h"
#include "ops/check.h"
#include "ops/work.h"

namespace attn::ops {
namespace {

void run_scale(const ConstView<2>& x, double factor, const View<2>& y) {
  const DType wider = x.dtype == DType::float64 ? x.dtype : y.dtype;
  const kernels::ElementKernels& k = kernels_for(wider);
  for_blocks(x.size, is_dense(x) && is_dense(y), [&](const RowBlock& b) {
    k.scale({.rows = b.rows, .columns = b.columns, .x = rows_at(x, b), .factor = factor, .y = rows_at(y, b)});
  });
}

}  // namespace

void add(ConstView<2> a, ConstView<2> b, View<2> y) {
  Checker checker("add");
  require_type(checker, "a", a.dtype);
  require_input(checker, "a", a, a.dtype, a.size);
  require_input(checker, "b", b, a.dtype, a.size);
  require_output(checker, "y", y, a.dtype, a.size);
  require_apart(checker, "y", y, "a", a, Sharing::same);
  require_apart(checker, "y", y, "b", b, Sharing::same);
  checker.done();
  const ProfileSpan span("add", [&] { return work_on(a.size, a, b, y); });
  const kernels::ElementKernels& k = kernels_for(a.dtype);
  for_blocks(a.size, is_dense(a) && is_dense(b) && is_dense(y), [&](const RowBlock& block) {
    k.add({.rows = block.rows,
           .columns = block.columns,
           .a = rows_at(a, block),
           .b = rows_at(b, block),
           .y = rows_at(y, block)});
  });
}

void scale(ConstView<2> x, double factor, View<2> y) {
  Checker checker("scale");
  require_type(checker, "x", x.dtype);
  require_input(checker, "x", x, x.dtype, x.size);
  require_output(checker, "y", y, x.dtype, x.size);
  require_apart(checker, "y", y, "x", x, Sharing::same);
  checker.done();
  const ProfileSpan span("scale", [&] { return work_on(x.size, x, y); });
  run_scale(x, factor, y);
}

void convert(ConstView<2> x, View<2> y) {
  Checker checker("convert");
  const auto require_floating = [&](const char* name, DType dtype) {
    checker.require(is_floating(dtype), [&] {
      return std::string(name) + " is " + std::string(name_of(dtype)) + ", must be a floating type";
    });
  };
  require_floating("x", x.dtype);
  require_floating("y", y.dtype);
  require_input(checker, "x", x, x.dtype, x.size);
  require_output(checker, "y", y, y.dtype, x.size);
  require_apart(checker, "y", y, "x", x, Sharing::same);
  checker.done();
  const ProfileSpan span("convert", [&] { return work_on(x.size, x, y); });
  run_scale(x, 1, y);
}

void add_rows(ConstView<2> x, View<1> total) {
  Checker checker("add_rows");
  require_type(checker, "x", x.dtype);
  require_input(checker, "x", x, x.dtype, x.size);
  require_vector(checker, "total", total, parameter_type(x.dtype), x.size[1]);
  checker.done();
  const ProfileSpan span("add_rows", [&] { return work_on(x.size, x, total); });
  const kernels::ElementKernels& k = kernels_for(x.dtype);
  const ColumnSums sums(x.size[0], x.size[1], total.dtype, 1);
  parallel_for(sums.slabs(), [&](int64_t slab) {
    const RowBlock b = sums.slab(slab);
    sums.clear(slab);
    k.add_rows({.rows = b.rows, .columns = b.columns, .x = rows_at(x, b), .total = sums.partial(slab, 0)});
  });
  sums.finish(0, total.data);
}

void dropout(ConstView<2> x, double probability, uint64_t seed, uint64_t stream, View<2> y) {
  Checker checker("dropout");
  require_type(checker, "x", x.dtype);
  require_input(checker, "x", x, x.dtype, x.size);
  checker.require(probability >= 0 && probability < 1,
                  [&] { return "probability is " + std::to_string(probability) + ", must be in [0, 1)"; });
  require_output(checker, "y", y, x.dtype, x.size);
  require_apart(checker, "y", y, "x", x, Sharing::same);
  checker.done();
  const ProfileSpan span("dropout", [&] { return work_on(x.size, x, y); });
  const kernels::ElementKernels& k = kernels_for(x.dtype);
  const int64_t C = x.size[1];
  for_blocks(x.size, is_dense(x) && is_dense(y), [&](const RowBlock& b) {
    k.drop({.rows = b.rows,
            .columns = b.columns,
            .x = rows_at(x, b),
            .y = rows_at(y, b),
            .seed = seed,
            .stream = stream,
            .first = b.row * C + b.column,
            .index_stride = C,
            .threshold = static_cast<uint64_t>(std::floor(probability * 0x1p32)),
            .factor = 1 / (1 - probability)});
  });
}

}  // namespace attn::ops
