// Gates of heads: each head's columns times a factor, and the factors' gradients.
#include "attn/ops.h"
#include "ops/blocks.h"
#include "ops/check.h"
#include "ops/work.h"

namespace attn::ops {
namespace {

/// The rows and columns that one gate multiplies.
struct Gated {
  int64_t rows, columns, heads;
  Gated(const Shape<2>& size, const Shape<2>& gates)
      : rows(size[0] / gates[0]), columns(size[1] / gates[1]), heads(gates[1]) {}
  RowBlock block(int64_t gate) const {
    return {.row = gate / heads * rows, .rows = rows, .column = gate % heads * columns, .columns = columns};
  }
};

/// gates [G, n] of the parameters' type: G sequences of one length, n runs of columns of one width.
void require_gates(Checker& checker, const ConstView<2>& gates, const ConstView<2>& x) {
  require_input(checker, "gates", gates, parameter_type(x.dtype), gates.size);
  checker.require(
      gates.size[0] > 0 && gates.size[1] > 0 && x.size[0] % gates.size[0] == 0 && x.size[1] % gates.size[1] == 0, [&] {
        return "gates are " + to_string(gates.size) + ", must divide the rows and columns of x " + to_string(x.size);
      });
}

double number_at(const ConstView<2>& x, int64_t row, int64_t column) {
  const kernels::ConstRows at = rows_at(x, {.row = row, .column = column});
  return x.dtype == DType::float64 ? *static_cast<const double*>(at.data)
                                   : static_cast<double>(*static_cast<const float*>(at.data));
}

/// The sum of a b, in float64: row after row, through a copy of each in the arithmetic's own type.
template <class T>
double product(const ConstView<2>& a, const ConstView<2>& b, const RowBlock& of) {
  const kernels::ElementKernels& k = kernels_for(a.dtype);
  T* const first = static_cast<T*>(thread_scratch(2 * of.columns * static_cast<int64_t>(sizeof(T))));
  T* const second = first + of.columns;
  const auto read = [&](const ConstView<2>& x, int64_t r, T* to) {
    k.scale({.rows = 1,
             .columns = of.columns,
             .x = rows_at(x, {.row = of.row + r, .column = of.column}),
             .factor = 1,
             .y = {to, of.columns, static_cast<int>(parameter_type(x.dtype))}});
  };
  double sum = 0;
  for (int64_t r = 0; r < of.rows; ++r) {
    read(a, r, first);
    read(b, r, second);
    for (int64_t c = 0; c < of.columns; ++c) sum += static_cast<double>(first[c]) * static_cast<double>(second[c]);
  }
  return sum;
}

}  // namespace

void scale_heads(ConstView<2> x, ConstView<2> gates, View<2> y) {
  Checker checker("scale_heads");
  require_type(checker, "x", x.dtype);
  require_input(checker, "x", x, x.dtype, x.size);
  require_gates(checker, gates, x);
  require_output(checker, "y", y, x.dtype, x.size);
  require_apart(checker, "y", y, "x", x, Sharing::same);
  require_apart(checker, "y", y, "gates", gates, Sharing::none);
  checker.done();
  const ProfileSpan span("scale_heads", [&] { return work_on(x.size, x, gates, y); });
  const Gated gated(x.size, gates.size);
  const kernels::ElementKernels& k = kernels_for(x.dtype);
  parallel_for_flushed(gates.count(), [&](int64_t gate) {
    const RowBlock b = gated.block(gate);
    k.scale({.rows = b.rows,
             .columns = b.columns,
             .x = rows_at(x, b),
             .factor = number_at(gates, gate / gated.heads, gate % gated.heads),
             .y = rows_at(y, b)});
  });
}

void scale_heads_backward(ConstView<2> x, ConstView<2> dy, View<2> dgates) {
  Checker checker("scale_heads_backward");
  require_type(checker, "x", x.dtype);
  require_input(checker, "x", x, x.dtype, x.size);
  require_input(checker, "dy", dy, x.dtype, x.size);
  require_gates(checker, dgates, x);
  require_output(checker, "dgates", dgates, parameter_type(x.dtype), dgates.size);
  require_apart(checker, "dgates", dgates, "x", x, Sharing::none);
  require_apart(checker, "dgates", dgates, "dy", dy, Sharing::none);
  checker.done();
  const ProfileSpan span("scale_heads_backward", [&] { return work_on(x.size, x, dy, dgates); });
  const Gated gated(x.size, dgates.size);
  parallel_for_flushed(dgates.count(), [&](int64_t gate) {
    void* const to = rows_at(dgates, {.row = gate / gated.heads, .column = gate % gated.heads}).data;
    const RowBlock b = gated.block(gate);
    if (dgates.dtype == DType::float64) *static_cast<double*>(to) += product<double>(x, dy, b);
    else *static_cast<float*>(to) += static_cast<float>(product<float>(x, dy, b));
  });
}

}  // namespace attn::ops
