// Activations, plain and gated.
#include "attn/ops.h"
#include "ops/blocks.h"
#include "ops/check.h"
#include "ops/work.h"

namespace attn::ops {
namespace {

static_assert(static_cast<int>(Activation::relu) == kernels::kRelu);
static_assert(static_cast<int>(Activation::gelu) == kernels::kGelu);
static_assert(static_cast<int>(Activation::gelu_tanh) == kernels::kGeluTanh);
static_assert(static_cast<int>(Activation::silu) == kernels::kSilu);
static_assert(static_cast<int>(Activation::tanh) == kernels::kTanh);

/// The width of gate and up together, or what no array has.
int64_t doubled(int64_t columns) {
  int64_t both = 0;
  return __builtin_mul_overflow(columns, 2, &both) ? -1 : both;
}

/// Columns first .. first + count - 1; nothing of what is not given.
template <class Pointer>
BasicView<Pointer, 2> columns_of(BasicView<Pointer, 2> x, int64_t first, int64_t count) {
  using Byte = std::conditional_t<std::is_const_v<std::remove_pointer_t<Pointer>>, const char, char>;
  if (x.data) x.data = static_cast<Byte*>(x.data) + first * size_of(x.dtype);
  x.size[1] = count;
  return x;
}

void run(Activation f, const ConstView<2>& x, const ConstView<2>& up, const View<2>& y) {
  const kernels::ElementKernels& k = kernels_for(x.dtype);
  for_blocks(y.size, is_dense(x) && is_dense(y) && !up, [&](const RowBlock& b) {
    k.activate({.function = static_cast<int>(f),
                .rows = b.rows,
                .columns = b.columns,
                .x = rows_at(x, b),
                .up = rows_at(up, b),
                .y = rows_at(y, b)});
  });
}

void run_backward(Activation f, const ConstView<2>& x, const ConstView<2>& up, const ConstView<2>& dy,
                  const View<2>& dx, const View<2>& dup) {
  const kernels::ElementKernels& k = kernels_for(x.dtype);
  for_blocks(dy.size, is_dense(x) && is_dense(dy) && is_dense(dx) && !up, [&](const RowBlock& b) {
    k.activate_grad({.function = static_cast<int>(f),
                     .rows = b.rows,
                     .columns = b.columns,
                     .x = rows_at(x, b),
                     .dy = rows_at(dy, b),
                     .up = rows_at(up, b),
                     .dx = rows_at(dx, b),
                     .dup = rows_at(dup, b)});
  });
}

}  // namespace

void activate(Activation f, ConstView<2> x, View<2> y) {
  Checker checker("activate");
  require_function(checker, f);
  require_type(checker, "x", x.dtype);
  require_input(checker, "x", x, x.dtype, x.size);
  require_output(checker, "y", y, x.dtype, x.size);
  require_apart(checker, "y", y, "x", x, Sharing::same);
  checker.done();
  const ProfileSpan span("activate", [&] { return work_on(x.size, x, y); });
  run(f, x, {}, y);
}

void activate_backward(Activation f, ConstView<2> x, ConstView<2> dy, View<2> dx) {
  Checker checker("activate_backward");
  require_function(checker, f);
  require_type(checker, "x", x.dtype);
  require_input(checker, "x", x, x.dtype, x.size);
  require_input(checker, "dy", dy, x.dtype, x.size);
  require_output(checker, "dx", dx, x.dtype, x.size);
  require_apart(checker, "dx", dx, "x", x, Sharing::same);
  require_apart(checker, "dx", dx, "dy", dy, Sharing::same);
  checker.done();
  const ProfileSpan span("activate_backward", [&] { return work_on(x.size, x, dy, dx); });
  run_backward(f, x, {}, dy, dx, {});
}

void activate_gated(Activation f, ConstView<2> gate_up, View<2> y) {
  Checker checker("activate_gated");
  const int64_t C = y.size[1];
  require_function(checker, f);
  require_type(checker, "gate_up", gate_up.dtype);
  require_output(checker, "y", y, gate_up.dtype, y.size);
  require_input(checker, "gate_up", gate_up, gate_up.dtype, {y.size[0], doubled(C)});
  require_apart(checker, "y", y, "gate_up", gate_up, Sharing::none);
  checker.done();
  const ProfileSpan span("activate_gated", [&] { return work_on(y.size, gate_up, y); });
  run(f, columns_of(gate_up, 0, C), columns_of(gate_up, C, C), y);
}

void activate_gated_backward(Activation f, ConstView<2> gate_up, ConstView<2> dy, View<2> dgate_up) {
  Checker checker("activate_gated_backward");
  const int64_t C = dy.size[1];
  require_function(checker, f);
  require_type(checker, "gate_up", gate_up.dtype);
  require_input(checker, "dy", dy, gate_up.dtype, dy.size);
  require_input(checker, "gate_up", gate_up, gate_up.dtype, {dy.size[0], doubled(C)});
  require_output(checker, "dgate_up", dgate_up, gate_up.dtype, {dy.size[0], doubled(C)});
  require_apart(checker, "dgate_up", dgate_up, "gate_up", gate_up, Sharing::same);
  require_apart(checker, "dgate_up", dgate_up, "dy", dy, Sharing::none);
  checker.done();
  const ProfileSpan span("activate_gated_backward", [&] { return work_on(dy.size, gate_up, dy, dgate_up); });
  run_backward(f, columns_of(gate_up, 0, C), columns_of(gate_up, C, C), dy, columns_of(dgate_up, 0, C),
               columns_of(dgate_up, C, C));
}

}  // namespace attn::ops
