// The tape: results, steps, the backward, recomputation.
#include <cmath>

#include "autograd/check.h"
#include "autograd/recycler.h"

namespace attn::autograd {
namespace {

std::string joined(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += name + ": ";
  return text;
}

/// The scopes of the step that runs, as spans: steps one after the other share those that they have in common.
class BackwardScopes {
 public:
  ~BackwardScopes() { leave(0); }
  void enter(const std::vector<std::string>& names) {
    size_t common = 0;
    while (common < std::min(names.size(), names_.size()) && names[common] == names_[common]) ++common;
    leave(common);
    for (size_t n = common; n < names.size(); ++n) {
      names_.push_back(names[n]);
      spans_.push_back(std::make_unique<ProfileSpan>(names[n]));
    }
  }

 private:
  void leave(size_t count) {
    while (spans_.size() > count) spans_.pop_back();  // the innermost first
    names_.resize(count);
  }
  std::vector<std::string> names_;
  std::vector<std::unique_ptr<ProfileSpan>> spans_;
};

}  // namespace

Tape::Tape(const TapeOptions& options, std::shared_ptr<Recycler> memory)
    : options_(options), memory_(memory ? std::move(memory) : std::make_shared<Recycler>()) {}

Tape::~Tape() {
  while (!steps_.empty()) steps_.pop_back();  // newest first, as the backward would
}

Array Tape::array(DType dtype, std::vector<int64_t> shape) const {
  const int64_t bytes = size_of(dtype);
  const int64_t count = count_of(shape.data(), static_cast<int>(shape.size()), std::max<int64_t>(bytes, 1));
  return Array(dtype, std::move(shape), memory_->take(count * bytes));
}

Value Tape::result(std::string_view operation, Array data, std::initializer_list<Value> inputs) {
  if (options_.check_finite && data.dtype() != DType::int64) {
    const double squares = ops::sum_of_squares(data.flat());
    if (!(squares - squares == 0))
      throw Error("train", {joined(scope_) + std::string(operation) + " gives a value that is not finite"});
  }
  bool wants = false;
  for (const Value& input : inputs) {
    if (!input.wants_gradient()) continue;
    wants = true;
    if (used_) used_->push_back(input);
  }
  return Value(std::move(data), wants && options_.record);
}

void Tape::push(const Value& result, std::function<void()> run) {
  if (!run) throw Error("record", {"the step is empty"});
  steps_.push_back({result, std::move(run), is_profiling() ? scope_ : std::vector<std::string>()});
}

void Tape::backward(const Value& root, double factor) {
  Checker checker("backward");
  const auto is_root = [&](const Step& step) { return step.result.state_ == root.state_; };
  checker.require(root.wants_gradient(), "the root does not depend on a value that requires a gradient");
  checker.require(!root || root.data().count() == 1,
                  [&] { return "the root is " + root.data().describe() + ", must have one element"; });
  checker.require(!root || root.dtype() == DType::float32 || root.dtype() == DType::float64,
                  [&] { return "the root is " + root.data().describe() + ", must be float32 or float64"; });
  checker.require(!root.wants_gradient() || std::find_if(steps_.rbegin(), steps_.rend(), is_root) != steps_.rend(),
                  "the root is not the result of a step of this tape, or the step has run: each runs once");
  checker.require(std::isfinite(factor),
                  [&] { return "the factor is " + std::to_string(factor) + ", must be finite"; });
  checker.done();
  Array one = array(root.dtype(), root.shape());
  if (root.dtype() == DType::float64) *static_cast<double*>(one.data()) = factor;
  else *static_cast<float*>(one.data()) = static_cast<float>(factor);
  add_gradient(root, one);
  backward();
}

void Tape::backward() {
  if (!recording()) throw Error("backward", {"the tape does not record"});
  if (steps_.empty() && has_run_) throw Error("backward", {"the steps of the tape have run: each runs once"});
  has_run_ = true;
  BackwardScopes scopes;
  while (!steps_.empty()) {
    {
      const Step step = std::move(steps_.back());  // lets go of what it held once it has run
      steps_.pop_back();
      if (step.result.gradient_is_empty()) continue;
      scopes.enter(step.scope);
      step.run();
    }
    if (options_.after_step) options_.after_step();
  }
}

Tape::NameScope::NameScope(Tape& tape, std::string_view name) : tape_(tape), span_(name) {
  tape_.scope_.emplace_back(name);
}

Tape::NameScope::~NameScope() { tape_.scope_.pop_back(); }

Value recompute(Tape& tape, const Value& x, std::function<Value(Tape&, const Value&)> function) {
  Checker checker("recompute");
  require_value(checker, "x", x);
  checker.require(function != nullptr, "the function is empty");
  checker.done();
  if (!tape.recording()) return function(tape, x);
  const uint64_t first_stream = tape.stream();
  TapeOptions options = tape.options();
  options.record = false;
  Value y;
  std::vector<Value> used;  // as a step that is recorded, this one has handles of what it adds gradients to
  {
    Tape forward(options, tape.memory());
    forward.set_stream(first_stream);
    forward.used_ = &used;
    y = Value(function(forward, x).data(), true);
    tape.set_stream(forward.stream());
  }
  options.record = true;
  tape.record(y, [=, used = std::move(used), memory = tape.memory(), function = std::move(function)] {
    Tape again(options, memory);
    again.set_stream(first_stream);
    const Value inner_x(x.data(), x.wants_gradient());
    again.add_gradient(function(again, inner_x), y.gradient());
    again.backward();
    if (x.wants_gradient() && !inner_x.gradient_is_empty()) again.add_gradient(x, inner_x.gradient());
  });
  return y;
}

}  // namespace attn::autograd
