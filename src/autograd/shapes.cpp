// The same numbers in other places: concat, slice, transpose, reshape, select_rows. They move bytes and compute
// nothing.
#include <algorithm>
#include <numeric>

#include "attn/autograd_operations.h"
#include "autograd/wide.h"

namespace attn::autograd {
namespace {

/// An array around one of its axes: [before, extent, after].
struct Around {
  Around(const std::vector<int64_t>& shape, int64_t axis) : extent(shape[static_cast<size_t>(axis)]) {
    const auto middle = shape.begin() + axis;
    before = std::accumulate(shape.begin(), middle, int64_t{1}, std::multiplies<>());
    after = std::accumulate(middle + 1, shape.end(), int64_t{1}, std::multiplies<>());
  }
  int64_t before = 1, extent = 1, after = 1;
};

/// to[.., to_begin + n, ..] = from[.., from_begin + n, ..] for n < count indices of an axis; one type.
void copy_indices(const Array& from, int64_t from_begin, const Array& to, int64_t to_begin, int64_t count,
                  int64_t axis) {
  const Around a(from.shape(), axis), b(to.shape(), axis);
  const int64_t unit = a.after * size_of(from.dtype());
  if (count * unit == 0) return;
  const ProfileSpan span("copy", [&] {
    return OperationWork{{a.before, count, a.after}, 0, 2 * static_cast<double>(a.before * count * unit)};
  });
  parallel_for(a.before, [&](int64_t n) {
    std::copy_n(static_cast<const char*>(from.data()) + (n * a.extent + from_begin) * unit, count * unit,
                static_cast<char*>(to.data()) + (n * b.extent + to_begin) * unit);
  });
}

std::vector<int64_t> with_extent(std::vector<int64_t> shape, int64_t axis, int64_t extent) {
  shape[static_cast<size_t>(axis)] = extent;
  return shape;
}

/// Rows of y in order; each gathers what is a stride apart in x.
Array transposed(const Tape& tape, const Array& x, int64_t axis, int64_t other) {
  std::vector<int64_t> shape = x.shape(), strides(shape.size(), 1);
  for (size_t n = shape.size(); n-- > 1;) strides[n - 1] = strides[n] * shape[n];
  std::swap(shape[static_cast<size_t>(axis)], shape[static_cast<size_t>(other)]);
  std::swap(strides[static_cast<size_t>(axis)], strides[static_cast<size_t>(other)]);
  const Array y = tape.array(x.dtype(), shape);
  const ProfileSpan span("transpose", [&] { return work_on({&x, &y}); });
  const int64_t width = y.width(), unit = size_of(x.dtype());
  if (y.count() == 0) return y;
  for_ranges(y.count() / width, width, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      int64_t offset = 0, rest = row;
      for (size_t n = shape.size() - 1; n-- > 0; rest /= shape[n]) offset += rest % shape[n] * strides[n];
      const char* from = static_cast<const char*>(x.data()) + offset * unit;
      char* to = static_cast<char*>(y.data()) + row * width * unit;
      for (int64_t c = 0; c < width; ++c) std::copy_n(from + c * strides.back() * unit, unit, to + c * unit);
    }
  });
  return y;
}

/// Values that can follow each other: of one type, and of the first one's shape but along the axis.
void check_concat(const std::vector<Value>& values, int64_t axis) {
  Checker checker("concat");
  checker.require(!values.empty(), "there are no values");
  for (size_t n = 0; n < values.size(); ++n) {
    const std::string name = "values[" + std::to_string(n) + "]";
    if (!require_floating(checker, name.c_str(), values[n]) || !values[0]) continue;
    if (n == 0) {
      require_axis(checker, values[0], axis);
      continue;
    }
    require_same_type(checker, name.c_str(), values[n], values[0].dtype());
    std::vector<int64_t> shape = values[0].shape();
    const bool has_axis = axis >= 0 && axis < static_cast<int64_t>(shape.size());
    if (has_axis && values[n].shape().size() == shape.size())
      shape[static_cast<size_t>(axis)] = values[n].shape()[static_cast<size_t>(axis)];
    if (has_axis && values[n].shape() != shape)
      refuse_form(checker, name.c_str(), values[n],
                  to_string(shape.data(), static_cast<int>(shape.size())) + " (free along the axis)");
  }
  checker.done();
}

}  // namespace

Value concat(Tape& tape, const std::vector<Value>& values, int64_t axis) {
  check_concat(values, axis);
  int64_t extent = 0;
  for (const Value& value : values) extent += value.shape()[static_cast<size_t>(axis)];
  const Array data = tape.array(values[0].dtype(), with_extent(values[0].shape(), axis, extent));
  const auto each = [values, axis](const auto& body) {
    int64_t begin = 0;
    for (const Value& value : values) {
      const int64_t count = value.shape()[static_cast<size_t>(axis)];
      body(value, begin, count);
      begin += count;
    }
  };
  each([&](const Value& value, int64_t begin, int64_t count) {
    copy_indices(value.data(), 0, data, begin, count, axis);
  });
  const auto wants = std::find_if(values.begin(), values.end(), [](const Value& v) { return v.wants_gradient(); });
  Value y = tape.result("concat", data, {wants != values.end() ? *wants : values[0]});
  tape.record(y, [=, &tape] {
    each([&](const Value& value, int64_t begin, int64_t count) {
      if (!value.wants_gradient()) return;
      const Array part = tape.array(y.dtype(), value.shape());
      copy_indices(y.gradient(), begin, part, 0, count, axis);
      tape.add_gradient(value, part);
    });
  });
  return y;
}

Value slice(Tape& tape, const Value& x, int64_t axis, int64_t begin, int64_t end) {
  Checker checker("slice");
  if (require_floating(checker, "x", x) && require_axis(checker, x, axis))
    checker.require(begin >= 0 && begin <= end && end <= x.shape()[static_cast<size_t>(axis)], [&] {
      return std::to_string(begin) + " to " + std::to_string(end) + ", the end not included, is not in axis " +
             std::to_string(axis) + " of x, " + x.data().describe();
    });
  checker.done();
  const Array data = tape.array(x.dtype(), with_extent(x.shape(), axis, end - begin));
  copy_indices(x.data(), begin, data, 0, end - begin, axis);
  Value y = tape.result("slice", data, {x});
  tape.record(y, [=, &tape] {
    Array dx = tape.array(y.dtype(), x.shape());
    dx.fill_zero();
    copy_indices(y.gradient(), 0, dx, begin, end - begin, axis);
    tape.add_gradient(x, dx);
  });
  return y;
}

Value transpose(Tape& tape, const Value& x, int64_t axis, int64_t other) {
  Checker checker("transpose");
  if (require_floating(checker, "x", x)) {
    require_axis(checker, x, axis);
    if (other != axis) require_axis(checker, x, other);
  }
  checker.done();
  Value y = tape.result("transpose", transposed(tape, x.data(), axis, other), {x});
  tape.record(y, [=, &tape] { tape.add_gradient(x, transposed(tape, y.gradient(), axis, other)); });
  return y;
}

Value reshape(Tape& tape, const Value& x, std::vector<int64_t> shape) {
  Checker checker("reshape");
  if (require_floating(checker, "x", x)) {
    const bool natural = std::all_of(shape.begin(), shape.end(), [](int64_t extent) { return extent >= 0; });
    checker.require(natural && count_of(shape.data(), static_cast<int>(shape.size())) == x.data().count(), [&] {
      return "x is " + x.data().describe() + ", must have as many elements as " +
             to_string(shape.data(), static_cast<int>(shape.size()));
    });
  }
  checker.done();
  Value y = tape.result("reshape", x.data().reshaped(std::move(shape)), {x});
  tape.record(y, [=, &tape] { tape.add_gradient(x, y.gradient().reshaped(x.shape())); });
  return y;
}

Value select_rows(Tape& tape, const Value& x, std::vector<int64_t> index, std::vector<int64_t> shape) {
  Checker checker("select_rows");
  const int64_t rows = require_rows(checker, "x", x) ? x.data().rows().size[0] : 0;
  for (size_t n = 0; n < index.size() && checker.ok(); ++n)
    checker.require(index[n] >= 0 && index[n] < rows, [&] {
      return "index[" + std::to_string(n) + "] is " + std::to_string(index[n]) + ", must be in [0, " +
             std::to_string(rows) + ")";
    });
  checker.done();
  return embedding(tape, std::move(index), reshape(tape, x, {rows, x.data().width()}), std::move(shape));
}

}  // namespace attn::autograd
