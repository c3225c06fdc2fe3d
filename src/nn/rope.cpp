// The angles of rope for texts longer than those of the first training.
#include <algorithm>
#include <cmath>
#include <numbers>

#include "nn/check.h"

namespace attn::nn {
namespace {

/// By the turns that a pair makes within the context: few are slowed by the factor, many are kept.
double llama3(double angle, const RopeScalingOptions& scaling) {
  const double turns = static_cast<double>(scaling.context) * angle / (2 * std::numbers::pi);
  const double kept = std::clamp((turns - scaling.low) / (scaling.high - scaling.low), 0.0, 1.0);
  return angle * (kept + (1 - kept) / scaling.factor);
}

/// The pair, not always a whole one, that makes so many turns within the context.
double pair_of(double turns, double theta, double width, double context) {
  return width * std::log(context / (turns * 2 * std::numbers::pi)) / (2 * std::log(theta));
}

double yarn(double angle, int64_t pair, double theta, double width, const RopeScalingOptions& scaling) {
  const double context = static_cast<double>(scaling.context);
  double first = pair_of(scaling.fast, theta, width, context), last = pair_of(scaling.slow, theta, width, context);
  if (scaling.whole) {
    first = std::floor(first);
    last = std::ceil(last);
  }
  first = std::max(first, 0.0);
  last = std::min(last, width - 1);
  if (first == last) last += 0.001;
  const double slowed = std::clamp((static_cast<double>(pair) - first) / (last - first), 0.0, 1.0);
  return angle * (1 - slowed + slowed / scaling.factor);
}

}  // namespace

double rope_magnitude(const RopeScalingOptions& scaling) {
  const double growth = std::log(scaling.factor);
  const bool has_own = scaling.kind == RopeScaling::yarn || scaling.kind == RopeScaling::longrope;
  if (!has_own || (scaling.magnitude == 0 && growth <= 0)) return 1;
  if (scaling.magnitude > 0) return scaling.magnitude;
  if (scaling.kind == RopeScaling::yarn) return 0.1 * growth + 1;
  return std::sqrt(1 + growth / std::log(static_cast<double>(scaling.context)));
}

std::vector<double> rope_frequencies(double theta, int64_t width, const RopeScalingOptions& scaling, int64_t length) {
  Checker checker("rope_frequencies");
  check_rope_scaling(checker, "", scaling, width / 2);
  checker.require(width >= 2 && width % 2 == 0,
                  [&] { return "width is " + std::to_string(width) + ", must be even and at least 2"; });
  checker.require(std::isfinite(theta) && theta > 1, "theta must be more than 1");
  checker.done();
  const double n = static_cast<double>(width), context = static_cast<double>(scaling.context);
  if (scaling.kind == RopeScaling::dynamic && length > scaling.context && width > 2)
    theta *= std::pow(scaling.factor * static_cast<double>(length) / context - (scaling.factor - 1), n / (n - 2));
  std::vector<double> angles(static_cast<size_t>(width / 2));
  for (int64_t i = 0; i < width / 2; ++i) {
    const double angle = std::pow(theta, -2 * static_cast<double>(i) / n);
    switch (scaling.kind) {
      case RopeScaling::linear: angles[i] = angle / scaling.factor; break;
      case RopeScaling::llama3: angles[i] = llama3(angle, scaling); break;
      case RopeScaling::yarn: angles[i] = yarn(angle, i, theta, n, scaling); break;
      case RopeScaling::longrope:
        angles[i] = angle / (length > scaling.context ? scaling.beyond : scaling.within)[i];
        break;
      default: angles[i] = angle;
    }
  }
  return angles;
}

}  // namespace attn::nn
