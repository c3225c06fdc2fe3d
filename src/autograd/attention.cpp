// attention() on the tape: the operator in place on the heads inside [B, L, C], and its backward.
#include "autograd/attention.h"

namespace attn::autograd {
namespace {

void check_arguments(const Heads& q, const Heads& k, const Heads& v, const Value& bias) {
  Checker checker("attention");
  if (require_value(checker, "q", q.array)) require_inside(checker, "q: ", q, q.array.data());
  if (require_value(checker, "k", k.array)) require_inside(checker, "k: ", k, k.array.data());
  if (require_value(checker, "v", v.array)) require_inside(checker, "v: ", v, v.array.data());
  if (bias) require_rank(checker, "bias", bias, 4, "[B|1, H|1, Lq|1, Lk|1]");
  checker.done();
}

}  // namespace

View<4> Heads::view() const {
  Checker checker("Heads");
  require_value(checker, "the array", array);
  checker.done();
  return view_of(array.data());
}

View<4> Heads::view_of(const Array& of) const {
  Checker checker("Heads");
  require_inside(checker, "", *this, of);
  checker.done();
  return of.view<3>().slice(2, first, first + heads * width).heads(heads);
}

Value attention(Tape& tape, const Heads& q, const Heads& k, const Heads& v, AttentionOptions options, const Value& bias,
                Array* lse, const Value& sink) {
  check_arguments(q, k, v, bias);
  const DType type = q.array.dtype();
  const int64_t B = q.array.shape()[0], Lq = q.array.shape()[1];
  const LearnedScores learned(tape, bias, sink, options);
  if (!tape.training()) options.dropout = 0;
  if (options.dropout > 0) {
    const uint64_t stream = tape.next_stream();
    const std::array<uint32_t, 4> words =
        philox(tape.options().seed, {static_cast<uint32_t>(stream), static_cast<uint32_t>(stream >> 32), 0, 1});
    options.seed = uint64_t{words[1]} << 32 | words[0];
  }

  Array data = tape.array(type, {B, Lq, q.heads * v.width});
  const Array row_lse = tape.array(type == DType::float64 ? DType::float64 : DType::float32, {B, q.heads, Lq});
  const auto lse_view = [=] { return View<3>(row_lse.data(), row_lse.dtype(), {B, q.heads, Lq}); };  // owns row_lse
  const Heads out_heads{{}, 0, q.heads, v.width};
  attn::attention(q.view(), k.view(), v.view(), out_heads.view_of(data), lse_view(), options);
  if (lse) *lse = row_lse;

  Value y = tape.result("attention", data, {q.array, k.array, v.array, bias, sink});
  tape.record(y, [=, &tape] {
    HeadGradients gradients(tape);
    AttentionGradients to;
    to.dq = gradients.of(q, covered(q, {&q, &k, &v}));
    to.dk = gradients.of(k, covered(k, {&q, &k, &v}));
    to.dv = gradients.of(v, covered(v, {&q, &k, &v}));
    const LearnedScores::Gradients others = learned.gradients(tape, to);
    attention_backward(q.view(), k.view(), v.view(), out_heads.view_of(y.data()), lse_view(),
                       out_heads.view_of(y.gradient()), to, options);
    gradients.hand_over();
    learned.hand_over(tape, others);
  });
  return y;
}

}  // namespace attn::autograd
