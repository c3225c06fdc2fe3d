#include "cluster/arrays.h"

#include <algorithm>
#include <cstring>

#include "attention/elements.h"
#include "core/numbers.h"

namespace attn::cluster {
namespace {

constexpr int64_t kTask = 1 << 16;  // elements

/// body(row, offset of its first element) for every row of the last axis.
template <class Pointer, class Body>
void for_each_row(const BasicView<Pointer, 4>& view, const Body& body) {
  const Shape<4>& n = view.size;
  parallel_for(n[0] * n[1], [&](int64_t head) {
    const int64_t first = head / n[1] * view.stride[0] + head % n[1] * view.stride[1];
    for (int64_t i = 0; i < n[2]; ++i) body(head * n[2] + i, first + i * view.stride[2]);
  });
}

template <class T>
void add_range(T* sum, const T* x, int64_t begin, int64_t end) {
  for (int64_t n = begin; n < end; ++n) sum[n] += x[n];
}

}  // namespace

void copy(const ConstView<4>& from, const View<4>& to) {
  const int64_t bytes = size_of(from.dtype), n = from.size[3];
  const auto* source = static_cast<const char*>(from.data);
  for_each_row(to, [&](int64_t row, int64_t offset) {
    const Shape<4>& size = from.size;
    const int64_t i = row % size[2], head = row / size[2];
    const char* in =
        source + (head / size[1] * from.stride[0] + head % size[1] * from.stride[1] + i * from.stride[2]) * bytes;
    char* out = static_cast<char*>(to.data) + offset * bytes;
    if (from.stride[3] == 1 && to.stride[3] == 1) std::memcpy(out, in, static_cast<size_t>(n * bytes));
    else
      for (int64_t d = 0; d < n; ++d)
        std::memcpy(out + d * to.stride[3] * bytes, in + d * from.stride[3] * bytes, static_cast<size_t>(bytes));
  });
}

void add(const ConstView<4>& from, const View<4>& to) {
  for_each_row(to, [&](int64_t row, int64_t offset) {
    const Shape<4>& size = from.size;
    const int64_t i = row % size[2], head = row / size[2];
    const int64_t first = head / size[1] * from.stride[0] + head % size[1] * from.stride[1] + i * from.stride[2];
    const auto as = [&]<class T>(T*) {
      add_range(static_cast<T*>(to.data) + offset, static_cast<const T*>(from.data) + first, 0, size[3]);
    };
    if (to.dtype == DType::float64) as(static_cast<double*>(nullptr));
    else as(static_cast<float*>(nullptr));
  });
}

void add_arrays(const Array& sum, const Array& x) {
  parallel_for(div_up(sum.count(), kTask), [&](int64_t task) {
    const int64_t begin = task * kTask, end = std::min(begin + kTask, sum.count());
    if (sum.dtype() == DType::float64) add_range(sum.data<double>(), x.data<double>(), begin, end);
    else add_range(sum.data<float>(), x.data<float>(), begin, end);
  });
}

void store(const Array& from, const View<4>& to) {
  const int64_t n = to.size[3];
  for_each_row(to, [&](int64_t row, int64_t offset) {
    for (int64_t d = 0; d < n; ++d) {
      const int64_t at = row * n + d;
      const double value = !from                            ? 0
                           : from.dtype() == DType::float64 ? from.data<double>()[at]
                                                            : from.data<float>()[at];
      detail::store_element(to.dtype, static_cast<char*>(to.data) + (offset + d * to.stride[3]) * size_of(to.dtype),
                            value);
    }
  });
}

void store(const Array& from, const View<3>& to) {
  store(from, View<4>(to.data, to.dtype, {to.size[0], to.size[1], 1, to.size[2]},
                      {to.stride[0], to.stride[1], 0, to.stride[2]}));
}

}  // namespace attn::cluster
