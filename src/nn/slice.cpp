// Which part of a parameter a rank has, and copies of it.
#include <algorithm>
#include <cstring>

#include "attn/nn_parameters.h"

namespace attn::nn {
namespace {

/// An array as [outer, extent of the axis, inner bytes].
struct Axis {
  int64_t outer = 1, extent, inner;

  Axis(const Array& array, int axis) : extent(array.shape()[static_cast<size_t>(axis)]), inner(size_of(array.dtype())) {
    for (int n = 0; n < static_cast<int>(array.shape().size()); ++n)
      if (n != axis) (n < axis ? outer : inner) *= array.shape()[static_cast<size_t>(n)];
  }
};

void copy_slice(const Array& whole, const Slice& slice, const Array& part, bool take) {
  if (slice.ranges.empty()) {
    const Array &from = take ? whole : part, &to = take ? part : whole;
    std::memcpy(to.data(), from.data(), static_cast<size_t>(from.count() * size_of(from.dtype())));
    return;
  }
  const Axis of_whole(whole, slice.axis), of_part(part, slice.axis);
  parallel_for(of_whole.outer, [&](int64_t n) {
    char *all = static_cast<char*>(whole.data()) + n * of_whole.extent * of_whole.inner,
         *some = static_cast<char*>(part.data()) + n * of_part.extent * of_part.inner;
    for (const IndexRange& range : slice.ranges) {
      const int64_t bytes = range.count() * of_whole.inner;
      char* at = all + range.begin * of_whole.inner;
      std::memcpy(take ? some : at, take ? at : some, static_cast<size_t>(bytes));
      some += bytes;
    }
  });
}

}  // namespace

std::vector<int64_t> Slice::shape_of(std::vector<int64_t> whole) const {
  if (ranges.empty()) return whole;
  int64_t& extent = whole[static_cast<size_t>(axis)];
  extent = 0;
  for (const IndexRange& range : ranges) extent += range.count();
  return whole;
}

Array slice_of(const Array& whole, const Slice& slice) {
  if (slice.ranges.empty()) return whole;
  Array part(whole.dtype(), slice.shape_of(whole.shape()), false);
  copy_slice(whole, slice, part, true);
  return part;
}

void put_slice(const Array& part, const Slice& slice, const Array& whole) { copy_slice(whole, slice, part, false); }

IndexRange share_of(int64_t n, int rank, int ranks) {
  int64_t unit = 256;  // of groups of quantized weights; the shares then differ by a sixteenth at most
  while (unit > 1 && n < 16 * ranks * unit) unit /= 2;
  const auto end_of = [&](int64_t before) { return std::min(n, (n + unit - 1) / unit * before / ranks * unit); };
  return {end_of(rank), end_of(rank + 1)};
}

}  // namespace attn::nn
