// attention() on the tape: the operator in place on the heads inside [B, L, C], and its backward, over ranks too.
#include "autograd/attention.h"

#include "attn/autograd_ranks.h"

namespace attn::autograd {
namespace {

void check_arguments(const Heads& q, const Heads& k, const Heads& v, const Value& bias,
                     const SharedSequence* sequence) {
  Checker checker("attention");
  if (require_value(checker, "q", q.array)) require_inside(checker, "q: ", q, q.array.data());
  if (require_value(checker, "k", k.array)) require_inside(checker, "k: ", k, k.array.data());
  if (require_value(checker, "v", v.array)) require_inside(checker, "v: ", v, v.array.data());
  if (bias) require_rank(checker, "bias", bias, 4, "[B|1, H|1, Lq|1, Lk|1]");
  checker.require(!bias || !sequence, "there cannot be a bias in a sequence that ranks share");
  checker.done();
}

/// What the operator does, of this process alone or of the ranks that share a sequence.
void forward(const SharedSequence* sequence, const View<4>& q, const View<4>& k, const View<4>& v, const View<4>& out,
             const View<3>& lse, const AttentionOptions& options) {
  if (sequence)
    cluster::attention(sequence->ranks(), sequence->placement(), q, k, v, out, lse, options, sequence->schedule());
  else attn::attention(q, k, v, out, lse, options);
}
void backward(const SharedSequence* sequence, const View<4>& q, const View<4>& k, const View<4>& v, const View<4>& out,
              const View<3>& lse, const View<4>& dout, const AttentionGradients& gradients,
              const AttentionOptions& options) {
  if (sequence)
    cluster::attention_backward(sequence->ranks(), sequence->placement(), q, k, v, out, lse, dout, gradients, options,
                                {}, sequence->schedule());
  else attention_backward(q, k, v, out, lse, dout, gradients, options);
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

SharedSequence::SharedSequence(cluster::Communicator& ranks, cluster::Placement placement, uint64_t seed,
                               cluster::Schedule schedule)
    : ranks_(&ranks), placement_(std::move(placement)), seed_(seed), schedule_(schedule) {
  Checker checker("SharedSequence");
  if (checker.require(placement_.ranks() == ranks.size(), [&] {
        return "the placement is for " + std::to_string(placement_.ranks()) + " ranks, and there are " +
               std::to_string(ranks.size());
      }))
    for (const cluster::TokenRange& range : placement_.ranges(ranks.rank()))
      for (int64_t token = range.begin; token < range.end; ++token) positions_.push_back(token);
  checker.require(!positions_.empty() || placement_.ranks() != ranks.size(), [&] {
    return "rank " + std::to_string(ranks.rank()) + " has none of the " + std::to_string(placement_.tokens()) +
           " tokens: there are more ranks than chunks";
  });
  checker.done();
}

Value attention(Tape& tape, const Heads& q, const Heads& k, const Heads& v, AttentionOptions options, const Value& bias,
                Array* lse, const Value& sink, const SharedSequence* sequence) {
  check_arguments(q, k, v, bias, sequence);
  const DType type = q.array.dtype();
  const int64_t B = q.array.shape()[0], Lq = q.array.shape()[1];
  const LearnedScores learned(tape, bias, sink, options);
  if (!tape.training()) options.dropout = 0;
  if (options.dropout > 0) {
    const uint64_t stream = tape.next_stream();
    const std::array<uint32_t, 4> words =
        philox(sequence ? sequence->seed() : tape.options().seed,
               {static_cast<uint32_t>(stream), static_cast<uint32_t>(stream >> 32), 0, 1});
    options.seed = uint64_t{words[1]} << 32 | words[0];
  }

  Array data = tape.array(type, {B, Lq, q.heads * v.width});
  const Array row_lse = tape.array(type == DType::float64 ? DType::float64 : DType::float32, {B, q.heads, Lq});
  const auto lse_view = [=] { return View<3>(row_lse.data(), row_lse.dtype(), {B, q.heads, Lq}); };  // owns row_lse
  const Heads out_heads{{}, 0, q.heads, v.width};
  forward(sequence, q.view(), k.view(), v.view(), out_heads.view_of(data), lse_view(), options);
  if (lse) *lse = row_lse;

  Value y = tape.result("attention", data, {q.array, k.array, v.array, bias, sink});
  tape.record(y, [=, &tape] {
    HeadGradients gradients(tape);
    AttentionGradients to;
    to.dq = gradients.of(q, covered(q, {&q, &k, &v}));
    to.dk = gradients.of(k, covered(k, {&q, &k, &v}));
    to.dv = gradients.of(v, covered(v, {&q, &k, &v}));
    const LearnedScores::Gradients others = learned.gradients(tape, to);
    backward(sequence, q.view(), k.view(), v.view(), out_heads.view_of(y.data()), lse_view(),
             out_heads.view_of(y.gradient()), to, options);
    gradients.hand_over();
    // Each rank has the gradient of the sinks of the whole, and gradients of parameters are summed over the ranks.
    if (!sequence || sequence->ranks().rank() == 0) learned.hand_over(tape, others);
  });
  return y;
}

}  // namespace attn::autograd
