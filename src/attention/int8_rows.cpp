#include "attention/int8_rows.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "attention/elements.h"

namespace attn::detail {

void store_int8_row(DType dtype, const void* x, int64_t stride, int64_t n, void* row) {
  constexpr float kMost = 127;
  float numbers[1024];
  float largest = 0, check = 0;  // 0, or NaN after a number that is not finite
  for (int64_t d = 0; d < n; ++d) {
    const char* element = static_cast<const char*>(x) + d * stride * size_of(dtype);
    numbers[d] = static_cast<float>(load_element(dtype, element));
    largest = std::max(largest, std::abs(numbers[d]));
    check += numbers[d] * 0;
  }
  const bool is_finite = check == 0;
  const float scale = is_finite ? largest / kMost : std::numeric_limits<float>::quiet_NaN();
  auto* codes = static_cast<int8_t*>(row);
  for (int64_t d = 0; d < n; ++d) {
    const float code = scale > 0 ? std::nearbyint(numbers[d] / scale) : 0;
    codes[d] = static_cast<int8_t>(std::clamp(code, -kMost, kMost));  // a subnormal scale is not exact
  }
  std::memcpy(codes + n, &scale, sizeof scale);
}

}  // namespace attn::detail
