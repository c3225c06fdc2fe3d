// Values with their gradients, and the memory that arrays of a tape recycle.
#include "autograd/recycler.h"
#include "core/checker.h"
#include "core/profile.h"

namespace attn::autograd {
namespace {

/// The sizes that are kept: eight steps to a doubling, so that a text that grows by a token finds its memory again.
int64_t size_class(int64_t bytes) {
  int64_t step = 64;
  while (step * 16 < bytes) step *= 2;
  return (std::max<int64_t>(bytes, 1) + step - 1) / step * step;
}

}  // namespace

std::shared_ptr<void> Recycler::take(int64_t bytes) {
  const int64_t size = size_class(bytes);
  std::vector<Buffer>& free = free_[size];
  Buffer buffer;
  if (free.empty()) {
    buffer = Buffer(size);
  } else {
    buffer = std::move(free.back());
    free.pop_back();
    count_memory(occupied_bytes(size));
  }
  struct Return {
    std::shared_ptr<Recycler> home;
    std::shared_ptr<Buffer> buffer;
    void operator()(void*) {
      count_memory(-occupied_bytes(buffer->bytes()));
      home->free_[buffer->bytes()].push_back(std::move(*buffer));
    }
  };
  void* data = buffer.data();
  return {data, Return{shared_from_this(), std::make_shared<Buffer>(std::move(buffer))}};
}

Recycler::~Recycler() {  // buffers count themselves out as well
  for (const auto& [size, free] : free_) count_memory(occupied_bytes(size) * std::ssize(free));
}

// ------------------------------------------------------------------------------------------------------------ values

Value::Value(Array data, bool wants_gradient) : Value(data, wants_gradient, data.dtype()) {}

Value::Value(Array data, bool wants_gradient, DType gradient_type) : state_(std::make_shared<State>()) {
  Checker checker("Value");
  checker.require(static_cast<bool>(data), "there is no array");
  checker.require(!wants_gradient || (is_floating(data.dtype()) && is_floating(gradient_type)), [&] {
    return "a gradient of " + std::string(name_of(gradient_type)) + " for " + data.describe() +
           ": both must be of a floating type";
  });
  checker.done();
  state_->data = std::move(data);
  state_->wants_gradient = wants_gradient;
  state_->gradient_type = gradient_type;
}

namespace {

/// Of an array that has a shape and a type alone: nobody reads it.
std::shared_ptr<void> no_memory() {
  static char nothing;
  return {std::shared_ptr<void>(), &nothing};
}

}  // namespace

Value::Value(ops::PackedMatrix weight, DType dtype) : state_(std::make_shared<State>()) {
  Checker checker("Value");
  checker.require(static_cast<bool>(weight) && !weight.reads_matrix(),
                  "the packed weight is empty or reads its matrix");
  checker.done();
  state_->data = Array(dtype, {weight.size()[1], weight.size()[0]}, no_memory());
  state_->gradient_type = dtype;
  state_->freed = true;
  state_->packed = std::move(weight);
}

void Value::refuse_empty() { throw Error("Value", {"the value is empty: it has no array"}); }

void Value::pack() {
  const View<2> weight = data().rows();
  state().packed = ops::PackedMatrix(
      {weight.data, weight.dtype, {weight.size[1], weight.size[0]}, {weight.stride[1], weight.stride[0]}});
}

void Value::pack_and_free() {
  if (is_freed()) return;
  Checker checker("pack_and_free");
  checker.require(!wants_gradient(), "the weight wants a gradient");
  checker.done();
  pack();
  if (packed().reads_matrix()) return;
  state().data = Array(dtype(), shape(), no_memory());
  state().freed = true;
}

void Value::unpack() {
  if (is_freed()) throw Error("unpack", {"the matrix of the packed weight was freed"});
  state().packed = {};
}

Array Tape::gradient_memory(const Value& x, bool* overwrite) {
  Value::State& state = x.state();
  Array& gradient = state.gradient;
  const bool keeps = state.filled;
  if (!gradient || gradient.is_shared()) {
    const Array old = gradient;
    gradient = array(state.gradient_type, state.data.shape());
    if (keeps) ops::convert(old.flat(), gradient.flat());
  }
  if (overwrite) *overwrite = !keeps;
  else if (!keeps) gradient.fill_zero();
  state.filled = true;
  ++state.additions;
  return gradient;
}

void Tape::add_gradient(const Value& x, const Array& gradient) {
  Checker checker("add_gradient");
  checker.require(gradient && gradient.shape() == x.shape() && is_floating(gradient.dtype()), [&] {
    return "the gradient is " + (gradient ? gradient.describe() : "no array") + ", must be of a floating type and " +
           to_string(x.shape().data(), static_cast<int>(x.shape().size()));
  });
  checker.done();
  Value::State& state = x.state();
  if (!state.filled && gradient.dtype() == state.gradient_type) {
    state.gradient = gradient;
    state.filled = true;
    ++state.additions;
    return;
  }
  bool overwrite = false;
  const Array total = gradient_memory(x, &overwrite);
  if (overwrite) return ops::convert(gradient.flat(), total.flat());
  if (gradient.dtype() == total.dtype()) return ops::add(total.flat(), gradient.flat(), total.flat());
  const Array converted = array(total.dtype(), gradient.shape());
  ops::convert(gradient.flat(), converted.flat());
  ops::add(total.flat(), converted.flat(), total.flat());
}

}  // namespace attn::autograd
