// Rotary positions. A task turns a group of rows: sines and cosines once a row, in double, then all heads by them.
#include <cmath>
#include <vector>

#include "attn/ops.h"
#include "ops/blocks.h"
#include "ops/check.h"
#include "ops/work.h"

namespace attn::ops {
namespace {

/// Rounds the angles' sines and cosines of one row, in the layout that the kernel wants.
template <class T>
void lay_out(const double* cosine, const double* sine, int64_t pairs, const RopeOptions& options, T* c, T* s) {
  const double m = options.magnitude, sign = options.inverse ? -m : m;
  for (int64_t i = 0; i < pairs; ++i) {
    const T turn = static_cast<T>(sign * sine[i]), stay = static_cast<T>(m * cosine[i]);
    if (options.interleaved) {
      c[2 * i] = c[2 * i + 1] = stay;
      s[2 * i] = -turn;
      s[2 * i + 1] = turn;
    } else {
      c[i] = stay;
      s[i] = turn;
    }
  }
}

struct Rotation {
  ConstView<2> x;
  View<2> y;
  int64_t heads;
  std::span<const int64_t> positions;
  RopeOptions options;
  std::vector<double> frequency;  // of each pair

  template <class T>
  void run(const kernels::ElementKernels& k, const RowBlock& b) const {
    const int64_t pairs = static_cast<int64_t>(frequency.size());
    const int64_t angles = b.rows * pairs, table = options.interleaved ? 2 * pairs : pairs;
    double* cosine = static_cast<double*>(
        thread_scratch(2 * angles * size_of(DType::float64) + 2 * b.rows * table * static_cast<int64_t>(sizeof(T))));
    double* sine = cosine + angles;
    T* c = reinterpret_cast<T*>(sine + angles);
    T* s = c + b.rows * table;
    k.angles({.rows = b.rows,
              .pairs = pairs,
              .position = positions.data() + b.row,
              .frequency = frequency.data(),
              .cosine = cosine,
              .sine = sine});
    for (int64_t r = 0; r < b.rows; ++r)
      lay_out(cosine + r * pairs, sine + r * pairs, pairs, options, c + r * table, s + r * table);
    k.rotate({.rows = b.rows,
              .heads = heads,
              .width = x.size[1] / heads,
              .rotated = 2 * pairs,
              .interleaved = options.interleaved,
              .x = rows_at(x, b),
              .y = rows_at(y, b),
              .cosine = c,
              .sine = s});
  }
};

}  // namespace

void rope(ConstView<2> x, int64_t heads, std::span<const int64_t> positions, View<2> y, const RopeOptions& options) {
  Checker checker("rope");
  require_type(checker, "x", x.dtype);
  require_input(checker, "x", x, x.dtype, x.size);
  const bool divides = heads >= 1 && x.size[1] % heads == 0;
  checker.require(divides, [&] {
    return "x has " + std::to_string(x.size[1]) + " columns, must be a multiple of " + std::to_string(heads) + " heads";
  });
  const int64_t width = divides ? x.size[1] / heads : 0, n = options.rotary_dim ? options.rotary_dim : width;
  checker.require(!divides || (n >= 0 && n <= width && n % 2 == 0), [&] {
    return "the rotated width is " + std::to_string(n) + ", must be even and at most " + std::to_string(width);
  });
  checker.require(std::isfinite(options.theta) && options.theta > 0,
                  [&] { return "theta is " + std::to_string(options.theta) + ", must be positive"; });
  checker.require(options.frequencies.empty() || static_cast<int64_t>(options.frequencies.size()) == n / 2, [&] {
    return "there are " + std::to_string(options.frequencies.size()) + " frequencies for " + std::to_string(n / 2) +
           " pairs";
  });
  checker.require(std::isfinite(options.magnitude),
                  [&] { return "the magnitude is " + std::to_string(options.magnitude) + ", must be finite"; });
  checker.require(static_cast<int64_t>(positions.size()) == x.size[0], [&] {
    return "there are " + std::to_string(positions.size()) + " positions for " + std::to_string(x.size[0]) + " rows";
  });
  require_output(checker, "y", y, x.dtype, x.size);
  require_apart(checker, "y", y, "x", x, Sharing::same);
  checker.done();
  const ProfileSpan span("rope", [&] { return work_on(x.size, x, y); });

  Rotation rotation{x, y, heads, positions, options, {options.frequencies.begin(), options.frequencies.end()}};
  for (int64_t i = static_cast<int64_t>(rotation.frequency.size()); i < n / 2; ++i)
    rotation.frequency.push_back(std::pow(options.theta, -2 * static_cast<double>(i) / static_cast<double>(n)));
  const kernels::ElementKernels& k = kernels_for(x.dtype);
  for_row_blocks(x.size[0], x.size[1], [&](const RowBlock& b) {
    if (x.dtype == DType::float64) rotation.run<double>(k, b);
    else rotation.run<float>(k, b);
  });
}

}  // namespace attn::ops
