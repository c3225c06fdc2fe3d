// Arrays, the memory they recycle, and values with their gradients.
#include "autograd/recycler.h"

namespace attn::autograd {
namespace {

int64_t count_of_shape(const std::vector<int64_t>& shape) {
  int64_t count = 1;
  for (int64_t extent : shape) count *= extent;
  return count;
}

}  // namespace

// ------------------------------------------------------------------------------------------------------------ arrays

Array::Array(DType dtype, std::vector<int64_t> shape, bool zero)
    : dtype_(dtype), shape_(std::move(shape)), count_(count_of_shape(shape_)) {
  auto buffer = std::make_shared<Buffer>(std::max<int64_t>(count_ * size_of(dtype_), 1), zero);
  memory_ = std::shared_ptr<void>(buffer, buffer->data());
}

Array::Array(DType dtype, std::vector<int64_t> shape, std::shared_ptr<void> owner)
    : dtype_(dtype), shape_(std::move(shape)), count_(count_of_shape(shape_)), memory_(std::move(owner)) {}

View<2> Array::rows() const {
  const int64_t columns = width();
  return {data(), dtype_, {columns ? count_ / columns : 0, columns}};
}

Array Array::reshaped(std::vector<int64_t> shape) const {
  Array result = *this;
  result.shape_ = std::move(shape);
  return result;
}

void Array::fill_zero() const { std::memset(data(), 0, static_cast<size_t>(count_ * size_of(dtype_))); }

Array Array::clone() const {
  Array copy(dtype_, shape_, false);
  std::memcpy(copy.data(), data(), static_cast<size_t>(count_ * size_of(dtype_)));
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
  state_->data = std::move(data);
  state_->wants_gradient = wants_gradient;
  state_->gradient_type = gradient_type;
}

Array Value::gradient_memory(const Tape& tape, bool* overwrite) const {
  Array& gradient = state_->gradient;
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
