// Numbers as the tape's own loops compute with them: float32 or float64, converted from 16 bits before and to them
// after.
#pragma once

#include <string>

#include "autograd/check.h"

namespace attn::autograd {

inline DType wide_type(DType dtype) { return dtype == DType::float64 ? DType::float64 : DType::float32; }

/// The same memory where it is wide already.
inline Array widened(const Tape& tape, const Array& x) {
  if (x.dtype() == wide_type(x.dtype())) return x;
  const Array wide = tape.array(wide_type(x.dtype()), x.shape());
  ops::convert(x.flat(), wide.flat());
  return wide;
}
inline Array narrowed(const Tape& tape, const Array& wide, DType dtype) {
  if (wide.dtype() == dtype) return wide;
  const Array x = tape.array(dtype, wide.shape());
  ops::convert(wide.flat(), x.flat());
  return x;
}

/// What a loop of the tape's own reports to a profile: the last array is its result.
inline OperationWork work_on(std::initializer_list<const Array*> arrays) {
  OperationWork work;
  for (const Array* array : arrays) work.bytes += static_cast<double>(array->count() * size_of(array->dtype()));
  const View<2> rows = (*(arrays.end() - 1))->rows();
  work.shape = {rows.size[0], rows.size[1]};
  return work;
}

/// body(T()) for the T of a wide type.
template <class Body>
auto with_wide(DType dtype, const Body& body) {
  return dtype == DType::float64 ? body(double()) : body(float());
}
template <class T>
T* elements(const Array& array) {
  return static_cast<T*>(array.data());
}

/// Tasks of a loop over elements: some 10 us each.
template <class Body>
void for_ranges(int64_t count, int64_t cost, const Body& body) {
  const int64_t share = std::max<int64_t>(1, 16384 / std::max<int64_t>(1, cost));
  parallel_for((count + share - 1) / share,
               [&](int64_t task) { body(task * share, std::min(count, (task + 1) * share)); });
}

inline bool require_floating(Checker& checker, const char* name, const Value& x) {
  return require_value(checker, name, x) && checker.require(is_floating(x.dtype()), [&] {
    return std::string(name) + " is " + x.data().describe() + ", must be of a floating type";
  });
}
inline bool require_same_type(Checker& checker, const char* name, const Value& x, DType dtype) {
  return checker.require(x.dtype() == dtype, [&] {
    return std::string(name) + " is " + x.data().describe() + ", must be " + std::string(name_of(dtype));
  });
}
inline bool require_axis(Checker& checker, const Value& x, int64_t axis) {
  const auto rank = static_cast<int64_t>(x.shape().size());
  return checker.require(axis >= 0 && axis < rank, [&] {
    return "axis is " + std::to_string(axis) + ", must be in [0, " + std::to_string(rank) + ") for x, " +
           x.data().describe();
  });
}

/// `of` summed over the axes that are 1 in `shape`, or not there, times `factor`: in float64, in the order of memory.
Array summed_to(const Tape& tape, const Array& of, const std::vector<int64_t>& shape, double factor = 1);
/// x, a broadcast part of `shape`, as an array of that shape, times `factor`.
Array spread_to(const Tape& tape, const Array& x, const std::vector<int64_t>& shape, double factor = 1);

/// y = a op b with broadcasting; `name` is the operation's.
enum class Arithmetic { add, subtract, multiply };
Value arithmetic(Tape& tape, const char* name, Arithmetic op, const Value& a, const Value& b);

}  // namespace attn::autograd
