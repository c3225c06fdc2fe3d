// The recurrence of an LSTM on the tape.
#include "attn/autograd_linear.h"
#include "attn/ops_lstm.h"
#include "autograd/check.h"

namespace attn::autograd {
namespace {

View<2> rows_of(const Array& x) {
  return x ? View<2>(x.data(), x.dtype(), {x.shape()[0] * x.shape()[1], x.shape()[2]}) : View<2>();
}

/// The given sequences, or those of a batch [B, L].
std::vector<int64_t> sequences_of(std::span<const int64_t> cu_seqlens, int64_t B, int64_t L) {
  std::vector<int64_t> all(cu_seqlens.begin(), cu_seqlens.end());
  for (int64_t b = 0; cu_seqlens.empty() && b <= B; ++b) all.push_back(b * L);
  return all;
}

}  // namespace

Value lstm(Tape& tape, const Value& x, const Value& weight, std::span<const int64_t> cu_seqlens, View<3> state) {
  Checker checker("lstm");
  require_rank(checker, "x", x, 3, "[B, L, 4 H]");
  require_rank(checker, "weight", weight, 2, "[4 H, H]");
  checker.require(!state || !tape.recording(), "a state is for inference, and the tape records");
  checker.done();
  const int64_t B = x.shape()[0], L = x.shape()[1], H = weight.shape()[1];
  const DType wide = x.dtype() == DType::float64 ? DType::float64 : DType::float32;
  const std::vector<int64_t> sequences = sequences_of(cu_seqlens, B, L);
  const Array out = tape.array(x.dtype(), {B, L, H});
  const bool records = tape.recording() && (x.wants_gradient() || weight.wants_gradient());
  const Array gates = records ? tape.array(wide, {B, L, 4 * H}) : Array();
  const Array cells = records ? tape.array(wide, {B, L, H}) : Array();
  ops::lstm(rows_of(x.data()), weight.data(), sequences, rows_of(out), {rows_of(gates), rows_of(cells)}, state);
  Value y = tape.result("lstm", out, {x, weight});
  tape.record(y, [=, &tape] {
    const Array dx = tape.array(x.dtype(), x.shape());
    const Array dweight = weight.wants_gradient() ? tape.gradient_memory(weight) : Array(wide, weight.shape());
    ops::lstm_backward(weight.data(), sequences, rows_of(y.data()), {rows_of(gates), rows_of(cells)},
                       rows_of(y.gradient()), rows_of(dx), dweight);
    if (x.wants_gradient()) tape.add_gradient(x, dx);
  });
  return y;
}

}  // namespace attn::autograd
