#include "linear/largest.h"

#include <algorithm>
#include <limits>
#include <vector>

#include "core/numbers.h"
#include "linear/rows.h"

namespace attn::linear {

double largest_element(const ConstView<4>& x) {
  constexpr double kNone = -std::numeric_limits<double>::infinity();
  const int64_t heads = x.size[0] * x.size[1];
  std::vector<double> largest(heads, kNone);
  parallel_for(heads, [&](int64_t n) {
    for (int64_t t = 0; t < x.size[2]; t += kChunkTokens) {
      const UserRows rows(x, n / x.size[1], n % x.size[1], t, std::min(kChunkTokens, x.size[2] - t));
      largest[n] = std::max(largest[n], rows.largest());
    }
  });
  return heads == 0 ? kNone : *std::max_element(largest.begin(), largest.end());
}

}  // namespace attn::linear
