#include "core/overlap.h"

#include <algorithm>
#include <cstdlib>
#include <string>

namespace attn::detail {
namespace {

struct Extent {
  const char* low;
  const char* high;
};

Extent extent_of(const Region& r) {
  Extent e{static_cast<const char*>(r.data), static_cast<const char*>(r.data) + size_of(r.dtype)};
  for (int axis = 0; axis < r.rank; ++axis) {
    const int64_t span = (r.size[axis] - 1) * r.stride[axis] * size_of(r.dtype);
    (span < 0 ? e.low : e.high) += span;
  }
  return e;
}

/// Axes along which a walk through memory moves, by rising stride, each so many steps back or forth.
struct Axes {
  struct Axis {
    int64_t stride, lowest, highest;
  };
  std::array<Axis, 4> axis;
  int count = 0;

  void add(int64_t stride, int64_t lowest, int64_t highest) {
    int place = count++;
    for (; place > 0 && axis[place - 1].stride > stride; --place) axis[place] = axis[place - 1];
    axis[place] = {stride, lowest, highest};
  }
};

/// Is `distance` (bytes) a sum of stride * steps? Exact where strides nest, as in slices of one array; of the first
/// `count` axes.
bool reachable(int64_t distance, const Axes& axes, int count, int64_t element) {
  if (count == 0) return std::abs(distance) < element;
  const auto [stride, lowest, highest] = axes.axis[count - 1];
  const int64_t nearest = distance / stride;
  for (int64_t steps = nearest - 1; steps <= nearest + 1; ++steps)
    if (steps >= lowest && steps <= highest && reachable(distance - steps * stride, axes, count - 1, element))
      return true;
  return false;
}

bool is_empty(const Region& r) {
  return r.data == nullptr || std::any_of(r.size.begin(), r.size.begin() + r.rank, [](int64_t n) { return n == 0; });
}

bool overlap(const Region& a, const Region& b) {
  if (is_empty(a) || is_empty(b)) return false;
  const Extent x = extent_of(a), y = extent_of(b);
  if (x.high <= y.low || y.high <= x.low) return false;
  // Interleaved ranges are distinguished where both have the same strides, as q, k, v slices do. An axis
  // that one of them has not got is one of extent 1.
  const int64_t element = size_of(a.dtype);
  if (size_of(b.dtype) != element) return true;
  Axes axes;
  for (int axis = 0; axis < std::max(a.rank, b.rank); ++axis) {
    const int64_t count_a = axis < a.rank ? a.size[axis] : 1, count_b = axis < b.rank ? b.size[axis] : 1;
    if (count_a == 1 && count_b == 1) continue;
    if (a.stride[axis] != b.stride[axis] && count_a != 1 && count_b != 1) return true;
    const int64_t stride = (count_a != 1 ? a.stride[axis] : b.stride[axis]) * element;
    // One address: start of a - start of b = the sum of stride * (index in b - index in a).
    if (stride > 0) axes.add(stride, 1 - count_a, count_b - 1);
    if (stride < 0) axes.add(-stride, 1 - count_b, count_a - 1);
  }
  return reachable(static_cast<const char*>(a.data) - static_cast<const char*>(b.data), axes, axes.count, element);
}

/// Two elements at one address: the smaller axes together reach the next larger stride.
bool overlaps_itself(const Region& r) {
  if (is_empty(r)) return false;
  Axes axes;
  for (int axis = 0; axis < r.rank; ++axis)
    if (r.size[axis] > 1) axes.add(std::abs(r.stride[axis]), 0, r.size[axis] - 1);
  int64_t reach = 0;
  for (int i = 0; i < axes.count; ++i) {
    if (axes.axis[i].stride <= reach) return true;
    reach += axes.axis[i].stride * axes.axis[i].highest;
  }
  return false;
}

}  // namespace

void check_overlap(Checker& checker, std::initializer_list<Region> outputs, std::initializer_list<Region> inputs) {
  for (const Region* output = outputs.begin(); output != outputs.end(); ++output) {
    checker.require(!overlaps_itself(*output), [&] {
      return std::string(output->name) + " overlaps itself: its strides map several elements to one address";
    });
    const auto distinct = [&](const Region& other) {
      checker.require(!overlap(*output, other), [&] { return std::string(output->name) + " overlaps " + other.name; });
    };
    std::for_each(output + 1, outputs.end(), distinct);
    std::for_each(inputs.begin(), inputs.end(), distinct);
  }
}

}  // namespace attn::detail
