// What operations report to a profile.
#pragma once

#include "attn/ops.h"
#include "attn/profile.h"

namespace attn::ops {

/// Of an operation without products: the shape of its rows and the bytes of its arrays.
template <class... Views>
OperationWork work_on(const Shape<2>& size, const Views&... arrays) {
  return {{size[0], size[1]}, 0, (bytes_of(arrays) + ...)};
}

/// Of a product [M, K] x [K, N] whose right factor has so many bytes.
inline OperationWork work_of_product(const ConstView<2>& a, double bytes_of_b, const View<2>& c,
                                     const MatmulOptions& options) {
  const double result = bytes_of(c) * (options.accumulate ? 2 : 1);
  return {{a.size[0], a.size[1], c.size[1]},
          2 * static_cast<double>(a.count()) * static_cast<double>(c.size[1]),
          bytes_of(a) + bytes_of_b + result + bytes_of(options.addend) + bytes_of(options.bias)};
}

}  // namespace attn::ops
