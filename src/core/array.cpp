// Arrays: their memory, their shapes, and what is wrong with a request.
#include <cstring>

#include "attn/core.h"

namespace attn {
namespace {

int64_t count_of_shape(DType dtype, const std::vector<int64_t>& shape) {
  const int64_t bytes = size_of(dtype);
  if (bytes == 0) throw Error("Array", {"unknown element type " + std::to_string(static_cast<int>(dtype))});
  return count_of(shape.data(), static_cast<int>(shape.size()), bytes);
}

}  // namespace

Array::Array(DType dtype, std::vector<int64_t> shape, bool zero)
    : dtype_(dtype), shape_(std::move(shape)), count_(count_of_shape(dtype_, shape_)) {
  auto buffer = std::make_shared<Buffer>(std::max<int64_t>(count_ * size_of(dtype_), 1), zero);
  memory_ = std::shared_ptr<void>(buffer, buffer->data());
}

Array::Array(DType dtype, std::vector<int64_t> shape, std::shared_ptr<void> owner)
    : dtype_(dtype), shape_(std::move(shape)), count_(count_of_shape(dtype_, shape_)), memory_(std::move(owner)) {
  if (!memory_ && count_ > 0) throw Error("Array", {"the array is " + describe() + ", but is given no memory"});
}

std::string Array::describe() const {
  return std::string(name_of(dtype_)) + " " + to_string(shape_.data(), static_cast<int>(shape_.size()));
}

void Array::require_type(DType wanted) const {
  if (dtype_ != wanted)
    throw Error("Array", {"the array is " + describe() + ", must be " + std::string(name_of(wanted))});
}

void Array::require_rank(int wanted) const {
  if (std::ssize(shape_) != wanted)
    throw Error("Array",
                {"the array is " + describe() + ", must have " + std::to_string(wanted) + " axes for this view"});
}

void Array::require_count(int64_t given) const {
  if (count_ != given)
    throw Error("Array", {"the array is " + describe() + ", must have " + std::to_string(given) +
                          (given == 1 ? " element" : " elements")});
}

double Array::other_number(int64_t n) const {
  switch (dtype_) {
    case DType::bfloat16: return float{static_cast<const bfloat16*>(data())[n]};
    case DType::float16: return float{static_cast<const float16*>(data())[n]};
    case DType::boolean: return static_cast<const bool*>(data())[n];
    case DType::int32: return static_cast<const int32_t*>(data())[n];
    default: return static_cast<double>(static_cast<const int64_t*>(data())[n]);
  }
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
    throw Error("reshaped", {"the array is " + describe() + ", must have as many elements as " + result.describe()});
  return result;
}

void Array::fill_zero() {
  if (count_ > 0) std::memset(data(), 0, static_cast<size_t>(count_ * size_of(dtype_)));
}

Array Array::clone() const {
  if (!memory_) return {};
  Array copy(dtype_, shape_, false);
  if (count_ > 0) std::memcpy(copy.data(), data(), static_cast<size_t>(count_ * size_of(dtype_)));
  return copy;
}

}  // namespace attn
