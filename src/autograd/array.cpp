// Arrays, the memory they recycle, and values with their gradients.
#include "autograd/recycler.h"
#include "core/checker.h"

namespace attn::autograd {
namespace {

int64_t count_of_shape(DType dtype, const std::vector<int64_t>& shape) {
  const int64_t bytes = size_of(dtype);
  if (bytes == 0) throw Error("Array", {"there is no element type " + std::to_string(static_cast<int>(dtype))});
  return count_of(shape.data(), static_cast<int>(shape.size()), bytes);
}

}  // namespace

// ------------------------------------------------------------------------------------------------------------ arrays

Array::Array(DType dtype, std::vector<int64_t> shape, bool zero)
    : dtype_(dtype), shape_(std::move(shape)), count_(count_of_shape(dtype_, shape_)) {
  auto buffer = std::make_shared<Buffer>(std::max<int64_t>(count_ * size_of(dtype_), 1), zero);
  memory_ = std::shared_ptr<void>(buffer, buffer->data());
}

Array::Array(DType dtype, std::vector<int64_t> shape, std::shared_ptr<void> owner)
    : dtype_(dtype), shape_(std::move(shape)), count_(count_of_shape(dtype_, shape_)), memory_(std::move(owner)) {
  if (!memory_ && count_ > 0) throw Error("Array", {describe() + " is given no memory"});
}

std::string Array::describe() const {
  return std::string(name_of(dtype_)) + " " + to_string(shape_.data(), static_cast<int>(shape_.size()));
}

View<2> Array::rows() const {
  int64_t rows = count_ > 0 || !shape_.empty() ? 1 : 0;
  for (size_t axis = 0; axis + 1 < shape_.size(); ++axis) rows *= shape_[axis];
  return {data(), dtype_, {rows, width()}};
}

Array Array::reshaped(std::vector<int64_t> shape) const {
  Array result = *this;
  result.shape_ = std::move(shape);
  if (count_of_shape(dtype_, result.shape_) != count_)
    throw Error("reshaped", {describe() + " has not the count of " + result.describe()});
  return result;
}

void Array::fill_zero() const {
  if (count_ > 0) std::memset(data(), 0, static_cast<size_t>(count_ * size_of(dtype_)));
}

Array Array::clone() const {
  if (!memory_) return {};
  Array copy(dtype_, shape_, false);
  if (count_ > 0) std::memcpy(copy.data(), data(), static_cast<size_t>(count_ * size_of(dtype_)));
  return copy;
}

// ------------------------------------------------------------------------------------------------------ recycled
// memory

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
  }
  struct Return {
    std::shared_ptr<Recycler> home;
    std::shared_ptr<Buffer> buffer;
    void operator()(void*) { home->free_[buffer->bytes()].push_back(std::move(*buffer)); }
  };
  void* data = buffer.data();
  return {data, Return{shared_from_this(), std::make_shared<Buffer>(std::move(buffer))}};
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

void Value::refuse_empty() { throw Error("Value", {"the value is empty: it has no array"}); }

void Value::pack() const {
  const View<2> weight = data().rows();
  state().packed = ops::PackedMatrix(
      {weight.data, weight.dtype, {weight.size[1], weight.size[0]}, {weight.stride[1], weight.stride[0]}});
}

Array Value::gradient_memory(const Tape& tape, bool* overwrite) const {
  Array& gradient = state().gradient;
  const bool keeps = state_->filled;
  if (!gradient || gradient.is_shared()) {
    const Array old = gradient;
    gradient = tape.array(state_->gradient_type, state_->data.shape());
    if (keeps) ops::convert(old.flat(), gradient.flat());
  }
  if (overwrite) *overwrite = !keeps;
  else if (!keeps) gradient.fill_zero();
  state_->filled = true;
  return gradient;
}

void Value::add_gradient(const Tape& tape, const Array& gradient) const {
  Checker checker("add_gradient");
  checker.require(gradient && gradient.shape() == shape() && is_floating(gradient.dtype()), [&] {
    return "the gradient is " + (gradient ? gradient.describe() : "no array") + ", must be of a floating type and " +
           to_string(shape().data(), static_cast<int>(shape().size()));
  });
  checker.done();
  if (!state_->filled && gradient.dtype() == state_->gradient_type) {
    state_->gradient = gradient;
    state_->filled = true;
    return;
  }
  bool overwrite = false;
  const Array total = gradient_memory(tape, &overwrite);
  if (overwrite) return ops::convert(gradient.flat(), total.flat());
  if (gradient.dtype() == total.dtype()) return ops::add(total.flat(), gradient.flat(), total.flat());
  const Array converted = tape.array(total.dtype(), gradient.shape());
  ops::convert(gradient.flat(), converted.flat());
  ops::add(total.flat(), converted.flat(), total.flat());
}

}  // namespace attn::autograd
