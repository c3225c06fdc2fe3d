// The recurrence of an LSTM: step by step, all sequences that still have a row at once, so that a step is one product.
#include "attn/ops_lstm.h"

#include <algorithm>
#include <numeric>
#include <vector>

#include "attn/core_array.h"
#include "attn/ops.h"
#include "ops/blocks.h"
#include "ops/check.h"
#include "ops/work.h"

namespace attn::ops {
namespace {

/// Sequences, the longest first, so that those which have a row at step t are the first ones.
class Steps {
 public:
  explicit Steps(std::span<const int64_t> cu_seqlens) : cu_seqlens_(cu_seqlens), order_(cu_seqlens.size() - 1) {
    std::iota(order_.begin(), order_.end(), int64_t{0});
    std::stable_sort(order_.begin(), order_.end(), [&](int64_t a, int64_t b) { return length(a) > length(b); });
  }
  int64_t count() const { return std::ssize(order_); }
  int64_t longest() const { return length(order_[0]); }
  int64_t running(int64_t t) const {
    return std::partition_point(order_.begin(), order_.end(), [&](int64_t b) { return length(b) > t; }) -
           order_.begin();
  }
  int64_t sequence(int64_t place) const { return order_[static_cast<size_t>(place)]; }
  int64_t row(int64_t place, int64_t t) const { return cu_seqlens_[static_cast<size_t>(sequence(place))] + t; }

 private:
  int64_t length(int64_t b) const {
    return cu_seqlens_[static_cast<size_t>(b) + 1] - cu_seqlens_[static_cast<size_t>(b)];
  }
  std::span<const int64_t> cu_seqlens_;
  std::vector<int64_t> order_;
};

/// One row from one array to another of any type.
void copy_row(const kernels::ElementKernels& k, const ConstView<2>& from, int64_t row, const View<2>& to,
              int64_t place) {
  const int64_t columns = from.size[1];
  k.scale({.rows = 1,
           .columns = columns,
           .x = rows_at(from, {.row = row, .columns = columns}),
           .factor = 1,
           .y = rows_at(to, {.row = place, .columns = columns})});
}

void apply_tanh(const kernels::ElementKernels& k, void* x, int64_t columns, DType dtype) {
  const kernels::Rows row{x, columns, static_cast<int>(dtype)};
  k.activate(
      {.function = kernels::kTanh, .rows = 1, .columns = columns, .x = {x, columns, row.type}, .up = {}, .y = row});
}

template <class T>
T* row_of(const View<2>& x, int64_t row) {
  return static_cast<T*>(x.data) + row * x.stride[0];
}

/// The gates of a step, before their functions; afterwards with them. c and h become the new ones.
template <class T>
void step_row(const kernels::ElementKernels& k, DType wide, int64_t H, T* gates, T* c, T* h) {
  // sigmoid(x) = (1 + tanh(x / 2)) / 2
  for (int64_t n = 0; n < 2 * H; ++n) gates[n] *= T(0.5);
  for (int64_t n = 3 * H; n < 4 * H; ++n) gates[n] *= T(0.5);
  apply_tanh(k, gates, 4 * H, wide);
  for (int64_t n = 0; n < 2 * H; ++n) gates[n] = T(0.5) * gates[n] + T(0.5);
  for (int64_t n = 3 * H; n < 4 * H; ++n) gates[n] = T(0.5) * gates[n] + T(0.5);
  for (int64_t n = 0; n < H; ++n) h[n] = c[n] = gates[H + n] * c[n] + gates[n] * gates[2 * H + n];
  apply_tanh(k, h, H, wide);
  for (int64_t n = 0; n < H; ++n) h[n] *= gates[3 * H + n];
}

/// The gradients of the gates before their functions. dh: of h; dc: of c, which becomes that of the step before, whose
/// cell is c_before, or null: zeros. th: tanh(c).
template <class T>
void step_back_row(int64_t H, const T* gates, const T* th, const T* c_before, const T* dh, T* dc, T* dgates) {
  for (int64_t n = 0; n < H; ++n) {
    const T i = gates[n], f = gates[H + n], g = gates[2 * H + n], o = gates[3 * H + n];
    const T d = dc[n] + dh[n] * o * (1 - th[n] * th[n]);
    dgates[n] = d * g * i * (1 - i);
    dgates[H + n] = c_before ? d * c_before[n] * f * (1 - f) : T(0);
    dgates[2 * H + n] = d * i * (1 - g * g);
    dgates[3 * H + n] = dh[n] * th[n] * o * (1 - o);
    dc[n] = d * f;
  }
}

ConstView<2> transposed(const ConstView<2>& x) {
  return {x.data, x.dtype, {x.size[1], x.size[0]}, {x.stride[1], x.stride[0]}};
}
/// The first rows of a dense array.
View<2> first_rows(const Array& x, int64_t rows) { return {x.data(), x.dtype(), {rows, x.shape()[1]}}; }

template <class T>
void forward(const ConstView<2>& x, const ConstView<2>& weight, const Steps& steps, const View<2>& out,
             const LstmTrace& trace, const View<3>& state) {
  const int64_t H = out.size[1], n = steps.count();
  const DType wide = parameter_type(x.dtype);
  const kernels::ElementKernels& k = kernels_for(wide);
  const Array gates(wide, {n, 4 * H}, false), c(wide, {n, H}), h(wide, {n, H}), factor(x.dtype, {n, H});
  const View<2> all_gates = gates, all_c = c, all_h = h, all_factors = factor;
  const auto kept = [&](int64_t part, int64_t place) {
    return static_cast<T*>(state.data) + part * state.stride[0] + steps.sequence(place) * state.stride[1];
  };
  for (int64_t place = 0; state && place < n; ++place) {
    std::copy_n(kept(0, place), H, row_of<T>(all_h, place));
    std::copy_n(kept(1, place), H, row_of<T>(all_c, place));
    copy_row(k, all_h, place, all_factors, place);
  }
  const PackedMatrix packed(transposed(weight));
  for (int64_t t = 0; t < steps.longest(); ++t) {
    const int64_t running = steps.running(t);
    for (int64_t place = 0; place < running; ++place) copy_row(k, x, steps.row(place, t), all_gates, place);
    if (t > 0 || state)
      matmul_packed(first_rows(factor, running), packed, first_rows(gates, running), {.accumulate = true});
    for_row_blocks(running, 4 * H, [&](const RowBlock& block) {
      for (int64_t place = block.row; place < block.row + block.rows; ++place) {
        const int64_t row = steps.row(place, t);
        step_row(k, wide, H, row_of<T>(all_gates, place), row_of<T>(all_c, place), row_of<T>(all_h, place));
        copy_row(k, all_h, place, out, row);
        copy_row(k, all_h, place, all_factors, place);
        if (trace.gates) std::copy_n(row_of<T>(all_gates, place), 4 * H, row_of<T>(trace.gates, row));
        if (trace.cells) std::copy_n(row_of<T>(all_c, place), H, row_of<T>(trace.cells, row));
      }
    });
  }
  for (int64_t place = 0; state && place < n; ++place) {
    std::copy_n(row_of<T>(all_h, place), H, kept(0, place));
    std::copy_n(row_of<T>(all_c, place), H, kept(1, place));
  }
}

template <class T>
void backward(const ConstView<2>& weight, const Steps& steps, const LstmTrace& trace, const ConstView<2>& dout,
              const View<2>& dx) {
  const int64_t H = dout.size[1], n = steps.count();
  const DType wide = parameter_type(dout.dtype);
  const kernels::ElementKernels& k = kernels_for(wide);
  // Per sequence: gradients of h and c that the next step left, of the gates, and the latter in the type of the weight.
  const Array dh(wide, {n, H}), dc(wide, {n, H}), dgates(wide, {n, 4 * H}, false), factor(dout.dtype, {n, 4 * H}),
      work(wide, {n, 2 * H}, false);
  const View<2> all_dh = dh, all_dc = dc, all_dgates = dgates, all_factors = factor, all_work = work;
  const PackedMatrix packed(weight);
  for (int64_t t = steps.longest() - 1; t >= 0; --t) {
    const int64_t running = steps.running(t);
    for_row_blocks(running, 4 * H, [&](const RowBlock& block) {
      for (int64_t place = block.row; place < block.row + block.rows; ++place) {
        const int64_t row = steps.row(place, t);
        T *th = row_of<T>(all_work, place), *own = th + H, *carried = row_of<T>(all_dh, place);
        std::copy_n(row_of<T>(trace.cells, row), H, th);
        apply_tanh(k, th, H, wide);
        copy_row(k, dout, row, {own, wide, {1, H}}, 0);
        for (int64_t m = 0; m < H; ++m) own[m] += carried[m];
        step_back_row(H, row_of<T>(trace.gates, row), th, t > 0 ? row_of<T>(trace.cells, row - 1) : nullptr, own,
                      row_of<T>(all_dc, place), row_of<T>(all_dgates, place));
        copy_row(k, all_dgates, place, all_factors, place);
        copy_row(k, all_dgates, place, dx, row);
      }
    });
    if (t > 0) matmul_packed(first_rows(factor, running), packed, first_rows(dh, running));
  }
}

/// The rows of out, each one later, with zeros where a sequence begins.
Array shifted(const ConstView<2>& out, std::span<const int64_t> cu_seqlens) {
  Array before(out.dtype, {out.size[0], out.size[1]});
  const kernels::ElementKernels& k = kernels_for(out.dtype);
  for (size_t b = 0; b + 1 < cu_seqlens.size(); ++b) {
    const int64_t first = cu_seqlens[b], rows = cu_seqlens[b + 1] - first - 1, columns = out.size[1];
    if (rows > 0)
      k.scale({.rows = rows,
               .columns = columns,
               .x = rows_at(out, {.row = first, .columns = columns}),
               .factor = 1,
               .y = rows_at(View<2>(before), {.row = first + 1, .columns = columns})});
  }
  return before;
}

// ------------------------------------------------------------------------------------------------------------- checks

void require_sequences(Checker& checker, std::span<const int64_t> cu_seqlens, int64_t rows) {
  const bool rises =
      std::adjacent_find(cu_seqlens.begin(), cu_seqlens.end(), std::greater_equal<>()) == cu_seqlens.end();
  checker.require(cu_seqlens.size() >= 2 && cu_seqlens.front() == 0 && cu_seqlens.back() == rows && rises, [&] {
    return "cu_seqlens has " + std::to_string(cu_seqlens.size()) + " numbers, must rise from 0 to the " +
           std::to_string(rows) + " rows, with at least two";
  });
}

/// H of weight [4 H, H]; 0 where it has another shape.
int64_t require_weight(Checker& checker, const ConstView<2>& weight) {
  const int64_t H = weight.size[1];
  const bool fits = checker.require(H >= 1 && H < int64_t{1} << 30 && weight.size[0] == 4 * H, [&] {
    return "weight is [" + std::to_string(weight.size[0]) + ", " + std::to_string(H) + "], must be [4 H, H]";
  });
  if (fits) require_input(checker, "weight", weight, weight.dtype, weight.size);
  return fits ? H : 0;
}

void require_trace(Checker& checker, const LstmTrace& trace, DType wide, int64_t rows, int64_t H) {
  require_output(checker, "gates", trace.gates, wide, {rows, 4 * H});
  require_output(checker, "cells", trace.cells, wide, {rows, H});
}

OperationWork work_of(const ConstView<2>& x, const ConstView<2>& weight, const View<2>& out) {
  return {{x.size[0], x.size[1]}, 0, bytes_of(x) + bytes_of(weight) + bytes_of(out)};
}

}  // namespace

void lstm(ConstView<2> x, ConstView<2> weight, std::span<const int64_t> cu_seqlens, View<2> out, const LstmTrace& trace,
          View<3> state) {
  Checker checker("lstm");
  require_type(checker, "x", x.dtype);
  const int64_t R = x.size[0], H = require_weight(checker, weight);
  const DType wide = parameter_type(x.dtype);
  require_sequences(checker, cu_seqlens, R);
  if (checker.ok()) {
    require_input(checker, "x", x, x.dtype, {R, 4 * H});
    require_input(checker, "weight", weight, x.dtype, weight.size);
    require_output(checker, "out", out, x.dtype, {R, H});
    require_apart(checker, "out", out, "x", x, Sharing::none);
    require_apart(checker, "out", out, "weight", weight, Sharing::none);
    if (trace.gates || trace.cells) require_trace(checker, trace, wide, R, H);
    const Shape<3> size{2, std::ssize(cu_seqlens) - 1, H};
    checker.require(!state || (state.dtype == wide && state.size == size && state.stride[2] == 1), [&] {
      return "state must have rows of " + std::string(name_of(wide)) + " " + to_string(size) + ", is " +
             std::string(name_of(state.dtype)) + " " + to_string(state.size);
    });
  }
  checker.done();
  const ProfileSpan span("lstm", [&] { return work_of(x, weight, out); });
  const Steps steps(cu_seqlens);
  if (wide == DType::float64) forward<double>(x, weight, steps, out, trace, state);
  else forward<float>(x, weight, steps, out, trace, state);
}

void lstm_backward(ConstView<2> weight, std::span<const int64_t> cu_seqlens, ConstView<2> out, const LstmTrace& trace,
                   ConstView<2> dout, View<2> dx, View<2> dweight) {
  Checker checker("lstm_backward");
  require_type(checker, "out", out.dtype);
  const int64_t R = out.size[0], H = require_weight(checker, weight);
  const DType wide = parameter_type(out.dtype);
  require_sequences(checker, cu_seqlens, R);
  if (checker.ok()) {
    require_input(checker, "weight", weight, out.dtype, weight.size);
    require_input(checker, "out", out, out.dtype, {R, H});
    require_input(checker, "dout", dout, out.dtype, {R, H});
    require_trace(checker, trace, wide, R, H);
    require_output(checker, "dx", dx, out.dtype, {R, 4 * H});
    require_output(checker, "dweight", dweight, dweight.dtype == out.dtype ? out.dtype : wide, weight.size);
    require_apart(checker, "dx", dx, "dout", dout, Sharing::none);
    require_apart(checker, "dx", dx, "out", out, Sharing::none);
    require_apart(checker, "dx", dx, "gates", trace.gates, Sharing::none);
  }
  checker.done();
  const ProfileSpan span("lstm backward", [&] { return work_of(dx, weight, dx); });
  const Steps steps(cu_seqlens);
  if (wide == DType::float64) backward<double>(weight, steps, trace, dout, dx);
  else backward<float>(weight, steps, trace, dout, dx);
  matmul(transposed(dx), shifted(out, cu_seqlens), dweight, {.accumulate = true});
}

}  // namespace attn::ops
