// What operations on attention's heads share: where their gradients go, and scores that are learned.
#pragma once

#include <algorithm>
#include <vector>

#include "autograd/check.h"

namespace attn::autograd {

/// Gradient arrays of the values that q, k and v are in: one where they share one.
class HeadGradients {
 public:
  explicit HeadGradients(Tape& tape) : tape_(tape) {}

  /// Where the gradient of these heads goes. The columns that no heads cover stay zero.
  View<4> of(const Heads& part, int64_t covered_columns) {
    for (const auto& [value, gradient] : arrays_)
      if (value.data().data() == part.array.data().data()) return part.view_of(gradient);
    Array gradient = tape_.array(part.array.dtype(), part.array.shape());
    if (covered_columns < gradient.width()) gradient.fill_zero();
    arrays_.emplace_back(part.array, gradient);
    return part.view_of(gradient);
  }
  void hand_over() {
    for (const auto& [value, gradient] : arrays_)
      if (value.wants_gradient()) tape_.add_gradient(value, gradient);
  }

 private:
  Tape& tape_;
  std::vector<std::pair<Value, Array>> arrays_;
};

/// Columns of `part`'s array that the three together cover.
inline int64_t covered(const Heads& part, std::initializer_list<const Heads*> all) {
  int64_t columns = 0;
  for (const Heads* other : all)
    if (other->array.data().data() == part.array.data().data()) columns += other->heads * other->width;
  return columns;
}

/// The heads are inside an array of this shape.
inline void require_inside(Checker& checker, const char* name, const Heads& part, const Array& of) {
  if (!checker.require(of.shape().size() == 3, [&] { return name + of.describe() + ", must be [B, L, C]"; })) return;
  const int64_t columns = of.width();
  const bool inside = part.heads >= 1 && part.width >= 1 && part.first >= 0 && part.first <= columns &&
                      part.heads <= (columns - part.first) / part.width;
  checker.require(inside, [&] {
    return name + std::to_string(part.heads) + " heads of width " + std::to_string(part.width) + " from column " +
           std::to_string(part.first) + " are not inside " + of.describe();
  });
}

/// A bias and sinks that are values: put into the options of a call, which borrow this, and given their gradients.
class LearnedScores {
 public:
  LearnedScores(const Tape& tape, const Value& bias, const Value& sink, AttentionOptions& options)
      : bias_(bias), sink_(sink) {
    if (bias) {
      const std::vector<int64_t>& shape = bias.shape();
      options.bias = {bias.data().data(), bias.dtype(), {shape[0], shape[1], shape[2], shape[3]}};
    }
    if (!sink) return;
    sinks_ = tape.array(DType::float32, sink.shape());
    ops::convert(sink.data().flat(), sinks_.flat());
    options.sink = {static_cast<const float*>(sinks_.data()), static_cast<size_t>(sinks_.count())};
  }

  struct Gradients {
    Array bias, sink;
  };
  Gradients gradients(const Tape& tape, AttentionGradients& to) const {
    Gradients arrays;
    if (bias_.wants_gradient()) {
      const std::vector<int64_t>& shape = bias_.shape();
      arrays.bias = tape.array(bias_.dtype(), shape);
      to.dbias = {arrays.bias.data(), bias_.dtype(), {shape[0], shape[1], shape[2], shape[3]}};
    }
    if (sink_.wants_gradient()) {
      arrays.sink = tape.array(sink_.dtype(), sink_.shape());
      to.dsink = arrays.sink.vector();
    }
    return arrays;
  }
  void hand_over(Tape& tape, const Gradients& arrays) const {
    if (arrays.bias) tape.add_gradient(bias_, arrays.bias);
    if (arrays.sink) tape.add_gradient(sink_, arrays.sink);
  }

 private:
  Value bias_, sink_;
  Array sinks_;  // as the operator takes them
};

}  // namespace attn::autograd
