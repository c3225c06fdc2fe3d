// Whole numbers for weights, and back.
#include <algorithm>
#include <atomic>
#include <cmath>

#include "ops/blocks.h"
#include "ops/check.h"
#include "ops/quantized_matmul.h"

namespace attn::ops {
namespace {

static_assert(255 * 127 * kMostGroup < int64_t{1} << 31);
constexpr int kZero8 = 128, kZero4 = 8;

bool is_group(int64_t group, int64_t terms) {
  return group > 0 && group <= kMostGroup && (group % 16 == 0 || group >= terms);
}

/// Codes of a group with this scale; returns the squared error.
double encode(const float* w, int64_t count, float scale, int lowest, int highest, int zero, uint8_t* codes) {
  const float inverse = scale == 0 ? 0 : 1 / scale;
  double error = 0;
  for (int64_t k = 0; k < count; ++k) {
    const float code =
        std::clamp(std::nearbyint(w[k] * inverse), static_cast<float>(lowest), static_cast<float>(highest));
    const double missed = w[k] - code * scale;
    error += missed * missed;
    codes[k] = static_cast<uint8_t>(static_cast<int>(code) + zero);
  }
  return error;
}

float quantize8(const float* w, int64_t count, uint8_t* codes) {
  float largest = 0;
  for (int64_t k = 0; k < count; ++k) largest = std::max(largest, std::abs(w[k]));
  const float scale = largest / 127;
  encode(w, count, scale, -127, 127, kZero8, codes);
  return scale;
}

/// There is one more code on one side of 0, where the largest magnitude goes; a scale that cuts the largest off may
/// have the least error.
float quantize4(const float* w, int64_t count, uint8_t* codes) {
  constexpr int kScales = 8;
  float extreme = 0;
  for (int64_t k = 0; k < count; ++k)
    if (std::abs(w[k]) > std::abs(extreme)) extreme = w[k];
  float best = 0;
  double least = -1;
  for (int n = 0; n < kScales; ++n) {
    const float scale = -extreme / (7 + 2.5f * static_cast<float>(n) / kScales);
    const double error = encode(w, count, scale, -8, 7, kZero4, codes);
    if (least < 0 || error < least) best = scale, least = error;
  }
  encode(w, count, best, -8, 7, kZero4, codes);
  return best;
}

}  // namespace

void check_quantized(std::string_view operation, const QuantizedMatrix& w) {
  const auto sized = [](const auto& numbers, int64_t rows, int64_t columns) {
    return static_cast<int64_t>(numbers.size()) == rows * columns;
  };
  const auto finite = [](const std::vector<float>& numbers) {
    return std::all_of(numbers.begin(), numbers.end(), [](float x) { return std::isfinite(x); });
  };
  Checker checker(operation);
  checker.require(w.rows > 0 && w.terms > 0, "rows and terms must be positive");
  checker.require(w.bits == 8 || w.bits == 4, [&] { return "bits is " + std::to_string(w.bits) + ", must be 8 or 4"; });
  checker.require(is_group(w.group, w.terms), [&] {
    return "group is " + std::to_string(w.group) + ", must be a multiple of 16 or all terms, of which there are " +
           std::to_string(w.terms) + ", and at most 32768";
  });
  checker.done();
  const int most = w.bits == 8 ? 255 : 15;
  checker.require(w.zero >= 0 && w.zero <= most, [&] {
    return "zero is " + std::to_string(w.zero) + ", must be in [0, " + std::to_string(most) + "]";
  });
  checker.require(sized(w.codes, w.rows, w.terms), "codes must be [rows, terms]");
  checker.require(sized(w.scales, w.rows, w.groups()), "scales must be [rows, groups]");
  checker.require(w.offsets.empty() || sized(w.offsets, w.rows, w.groups()), "offsets must be [rows, groups], or none");
  checker.require(finite(w.scales) && finite(w.offsets), "scales and offsets must be finite");
  checker.require(w.bits == 8 || std::all_of(w.codes.begin(), w.codes.end(), [](uint8_t code) { return code < 16; }),
                  "codes of 4 bits must be in [0, 15]");
  checker.done();
}

QuantizedMatrix quantize(ConstView<2> w, const QuantizeOptions& options) {
  const int64_t N = w.size[0], K = w.size[1];
  QuantizedMatrix q{.rows = N,
                    .terms = K,
                    .bits = options.bits,
                    .zero = options.bits == 8 ? kZero8 : kZero4,
                    .group = options.group ? options.group : K};
  Checker checker("quantize");
  require_type(checker, "w", w.dtype);
  require_input(checker, "w", w, w.dtype, w.size);
  checker.require(N > 0 && K > 0, "w is empty");
  checker.require(options.bits == 8 || options.bits == 4,
                  [&] { return "bits is " + std::to_string(options.bits) + ", must be 8 or 4"; });
  checker.require(is_group(q.group, K), [&] {
    return "group is " + std::to_string(options.group) +
           ", must be a multiple of 16 up to 32768, or 0 for rows of at most 32768 terms";
  });
  checker.done();
  q.codes.resize(static_cast<size_t>(N * K));
  q.scales.resize(static_cast<size_t>(N * q.groups()));
  std::atomic<bool> finite = true;
  for_row_blocks(N, K, [&](const RowBlock& b) {
    std::vector<float> row(static_cast<size_t>(K));
    for (int64_t n = b.row; n < b.row + b.rows; ++n) {
      kernels_for(DType::float32)
          .scale({.rows = 1,
                  .columns = K,
                  .x = rows_at(w, {.row = n}),
                  .factor = 1,
                  .y = {row.data(), K, kernels::kFloat32}});
      if (!std::all_of(row.begin(), row.end(), [](float x) { return std::isfinite(x); })) finite = false;
      if (!finite) return;
      for (int64_t first = 0; first < K; first += q.group) {
        const int64_t count = std::min(q.group, K - first);
        uint8_t* codes = q.codes.data() + n * K + first;
        q.scales[static_cast<size_t>(n * q.groups() + first / q.group)] =
            q.bits == 8 ? quantize8(row.data() + first, count, codes) : quantize4(row.data() + first, count, codes);
      }
    }
  });
  if (!finite) throw Error("quantize", {"w has numbers that are not finite"});
  return q;
}

void dequantize(const QuantizedMatrix& w, View<2> out) {
  check_quantized("dequantize", w);
  Checker checker("dequantize");
  require_type(checker, "out", out.dtype);
  require_output(checker, "out", out, out.dtype, {w.rows, w.terms});
  checker.done();
  for_row_blocks(w.rows, w.terms, [&](const RowBlock& b) {
    std::vector<float> row(static_cast<size_t>(w.terms));
    for (int64_t n = b.row; n < b.row + b.rows; ++n) {
      for (int64_t k = 0; k < w.terms; ++k) {
        const auto g = static_cast<size_t>(n * w.groups() + k / w.group);
        row[static_cast<size_t>(k)] =
            w.scales[g] * static_cast<float>(w.codes[static_cast<size_t>(n * w.terms + k)] - w.zero) +
            (w.offsets.empty() ? 0 : w.offsets[g]);
      }
      kernels_for(DType::float32)
          .scale({.rows = 1,
                  .columns = w.terms,
                  .x = {row.data(), w.terms, kernels::kFloat32},
                  .factor = 1,
                  .y = rows_at(out, {.row = n})});
    }
  });
}

}  // namespace attn::ops
