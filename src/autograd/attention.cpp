// attention() on the tape: the operator in place on the heads inside [B, L, C], and its backward.
#include <algorithm>

#include "autograd/check.h"

namespace attn::autograd {
namespace {

/// Gradient arrays of the values that q, k and v lie in: one where they share one.
class HeadGradients {
 public:
  explicit HeadGradients(const Tape& tape) : tape_(tape) {}

  /// Where the gradient of these heads goes. The columns that no heads cover stay zero.
  View<4> of(const Heads& part, int64_t covered_columns) {
    for (const auto& [value, gradient] : arrays_)
      if (value.data().data() == part.array.data().data()) return part.view_of(gradient);
    const Array gradient = tape_.array(part.array.dtype(), part.array.shape());
    if (covered_columns < gradient.width()) gradient.fill_zero();
    arrays_.emplace_back(part.array, gradient);
    return part.view_of(gradient);
  }
  void hand_over() const {
    for (const auto& [value, gradient] : arrays_)
      if (value.wants_gradient()) value.add_gradient(tape_, gradient);
  }

 private:
  const Tape& tape_;
  std::vector<std::pair<Value, Array>> arrays_;
};

/// Columns of `part`'s array that the three together cover.
int64_t covered(const Heads& part, std::initializer_list<const Heads*> all) {
  int64_t columns = 0;
  for (const Heads* other : all)
    if (other->array.data().data() == part.array.data().data()) columns += other->heads * other->width;
  return columns;
}

}  // namespace

namespace {

/// The heads lie inside an array of this shape.
void require_inside(Checker& checker, const char* name, const Heads& part, const Array& of) {
  if (!checker.require(of.shape().size() == 3, [&] { return name + of.describe() + ", must be [B, L, C]"; })) return;
  const int64_t columns = of.width();
  const bool inside = part.heads >= 1 && part.width >= 1 && part.first >= 0 && part.first <= columns &&
                      part.heads <= (columns - part.first) / part.width;
  checker.require(inside, [&] {
    return name + std::to_string(part.heads) + " heads of width " + std::to_string(part.width) + " from column " +
           std::to_string(part.first) + " are not inside " + of.describe();
  });
}

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
  const int64_t B = of.shape()[0], L = of.shape()[1], C = of.shape()[2];
  void* start = static_cast<char*>(of.data()) + first * size_of(of.dtype());
  return {start, of.dtype(), {B, heads, L, width}, {L * C, width, C, 1}};
}

Value attention(Tape& tape, const Heads& q, const Heads& k, const Heads& v, AttentionOptions options, const Value& bias,
                Array* lse, const Value& sink) {
  check_arguments(q, k, v, bias);
  const DType type = q.array.dtype();
  const int64_t B = q.array.shape()[0], Lq = q.array.shape()[1];
  if (bias) {
    const std::vector<int64_t>& shape = bias.shape();
    options.bias = {bias.data().data(), bias.dtype(), {shape[0], shape[1], shape[2], shape[3]}};
  }
  Array sinks;  // as the operator takes them
  if (sink) {
    sinks = tape.array(DType::float32, sink.shape());
    ops::convert(sink.data().flat(), sinks.flat());
    options.sink = {static_cast<const float*>(sinks.data()), static_cast<size_t>(sinks.count())};
  }
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
    Array dbias;
    if (bias.wants_gradient()) {
      dbias = tape.array(bias.dtype(), bias.shape());
      to.dbias = {dbias.data(), dbias.dtype(), options.bias.size};
    }
    Array dsink;
    if (sink.wants_gradient()) {
      dsink = tape.array(sink.dtype(), sink.shape());
      to.dsink = dsink.vector();
    }
    attention_backward(q.view(), k.view(), v.view(), out_heads.view_of(y.data()), lse_view(),
                       out_heads.view_of(y.gradient()), to, options);
    gradients.hand_over();
    if (dbias) bias.add_gradient(tape, dbias);
    if (dsink) sink.add_gradient(tape, dsink);
    static_cast<void>(sinks);  // options.sink borrows it
  });
  return y;
}

}  // namespace attn::autograd
