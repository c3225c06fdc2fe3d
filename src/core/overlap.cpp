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

/// The axes that move, the largest stride first. Axes that are one run of memory, as heads and their columns, and axes
/// of one stride become one.
Region merged(const Region& r) {
  Region m{r.name, r.data, r.dtype, 0};
  std::array<int, 4> order = {};
  int count = 0;
  for (int axis = 0; axis < r.rank; ++axis)
    if (r.size[axis] > 1 && r.stride[axis] != 0) order[count++] = axis;
  std::stable_sort(order.begin(), order.begin() + count,
                   [&](int x, int y) { return std::abs(r.stride[x]) > std::abs(r.stride[y]); });
  for (int n = 0; n < count; ++n) {
    const int64_t size = r.size[order[n]], stride = r.stride[order[n]];
    int64_t run = 0;
    const int last = m.rank - 1;
    if (m.rank > 0 && !__builtin_mul_overflow(size, stride, &run) && m.stride[last] == run) {
      m.size[last] *= size;
      m.stride[last] = stride;
    } else if (m.rank > 0 && m.stride[last] == stride) {
      m.size[last] += size - 1;
    } else {
      m.size[m.rank] = size;
      m.stride[m.rank++] = stride;
    }
  }
  return m;
}

int64_t size_along(const Region& r, int64_t stride) {
  for (int axis = 0; axis < r.rank; ++axis)
    if (r.stride[axis] == stride) return r.size[axis];
  return 1;
}
bool has_all_strides(const Region& r, const Region& of) {
  return std::all_of(of.stride.begin(), of.stride.begin() + of.rank,
                     [&](int64_t stride) { return size_along(r, stride) > 1; });
}

bool overlap(const Region& a, const Region& b) {
  if (is_empty(a) || is_empty(b)) return false;
  const Extent x = extent_of(a), y = extent_of(b);
  if (x.high <= y.low || y.high <= x.low) return false;
  // Interleaved ranges are distinguished where one has all strides of the other, as q, k, v slices do. An axis that one
  // of them has not got is one of extent 1.
  const int64_t element = size_of(a.dtype);
  if (size_of(b.dtype) != element) return true;
  const Region one = merged(a), other = merged(b);
  const bool more = has_all_strides(one, other);
  if (!more && !has_all_strides(other, one)) return true;
  const Region& all = more ? one : other;
  Axes axes;
  for (int axis = 0; axis < all.rank; ++axis) {
    const int64_t count_a = size_along(one, all.stride[axis]), count_b = size_along(other, all.stride[axis]);
    const int64_t stride = all.stride[axis] * element;
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
