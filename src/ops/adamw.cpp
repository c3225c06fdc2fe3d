// AdamW in one pass over parameter, gradient and both moments, and the norm that gradients are clipped by.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "attn/ops.h"
#include "ops/blocks.h"
#include "ops/check.h"
#include "ops/work.h"

namespace attn::ops {

void adamw(View<2> parameter, ConstView<2> gradient, View<2> first_moment, View<2> second_moment,
           const AdamWOptions& options, View<2> copy) {
  Checker checker("adamw");
  const DType dtype = parameter.dtype;
  checker.require(dtype == DType::float32 || dtype == DType::float64,
                  [&] { return "parameter is " + std::string(name_of(dtype)) + ", must be float32 or float64"; });
  require_output(checker, "parameter", parameter, dtype, parameter.size);
  require_input(checker, "gradient", gradient, dtype, parameter.size);
  require_output(checker, "first_moment", first_moment, dtype, parameter.size);
  require_output(checker, "second_moment", second_moment, dtype, parameter.size);
  const auto require_number = [&](const char* name, double value, bool good, const char* range) {
    checker.require(good && std::isfinite(value),
                    [&] { return std::string(name) + " is " + std::to_string(value) + ", must be " + range; });
  };
  require_number("learning_rate", options.learning_rate, true, "finite");
  require_number("beta1", options.beta1, options.beta1 >= 0 && options.beta1 < 1, "in [0, 1)");
  require_number("beta2", options.beta2, options.beta2 >= 0 && options.beta2 < 1, "in [0, 1)");
  require_number("epsilon", options.epsilon, options.epsilon >= 0, "finite and not negative");
  require_number("weight_decay", options.weight_decay, true, "finite");
  require_number("gradient_factor", options.gradient_factor, true, "finite");
  checker.require(options.step >= 1,
                  [&] { return "step is " + std::to_string(options.step) + ", must be at least 1"; });
  require_apart(checker, "parameter", parameter, "gradient", gradient, Sharing::none);
  require_apart(checker, "parameter", parameter, "first_moment", first_moment, Sharing::none);
  require_apart(checker, "parameter", parameter, "second_moment", second_moment, Sharing::none);
  require_apart(checker, "first_moment", first_moment, "gradient", gradient, Sharing::none);
  require_apart(checker, "first_moment", first_moment, "second_moment", second_moment, Sharing::none);
  require_apart(checker, "second_moment", second_moment, "gradient", gradient, Sharing::none);
  if (copy) {
    checker.require(size_of(copy.dtype) == 2 && dtype == DType::float32, [&] {
      return "copy is " + std::string(name_of(copy.dtype)) + ", must be bfloat16 or float16 beside a float32 parameter";
    });
    require_output(checker, "copy", copy, copy.dtype, parameter.size);
    require_apart(checker, "copy", copy, "parameter", parameter, Sharing::none);
    require_apart(checker, "copy", copy, "gradient", gradient, Sharing::none);
    require_apart(checker, "copy", copy, "first_moment", first_moment, Sharing::none);
    require_apart(checker, "copy", copy, "second_moment", second_moment, Sharing::none);
  }
  checker.done();
  const ProfileSpan span("adamw", [&] {
    return work_on(parameter.size, parameter, parameter, gradient, first_moment, first_moment, second_moment,
                   second_moment, copy);
  });
  const double step = static_cast<double>(options.step);
  const bool dense = is_dense(parameter) && is_dense(gradient) && is_dense(first_moment) && is_dense(second_moment) &&
                     (!copy || is_dense(copy));
  const kernels::ElementKernels& k = kernels_for(dtype);
  for_blocks(parameter.size, dense, [&](const RowBlock& b) {
    k.adam({.rows = b.rows,
            .columns = b.columns,
            .parameter = rows_at(parameter, b),
            .gradient = rows_at(gradient, b),
            .first = rows_at(first_moment, b),
            .second = rows_at(second_moment, b),
            .copy = rows_at(copy, b),
            .gradient_factor = options.gradient_factor,
            .keep = 1 - options.learning_rate * options.weight_decay,
            .beta1 = options.beta1,
            .beta2 = options.beta2,
            .step = options.learning_rate / (1 - std::pow(options.beta1, step)),
            .root_scale = 1 / std::sqrt(1 - std::pow(options.beta2, step)),
            .epsilon = options.epsilon});
  });
}

double sum_of_squares(ConstView<2> x) {
  Checker checker("sum_of_squares");
  require_type(checker, "x", x.dtype);
  require_input(checker, "x", x, x.dtype, x.size);
  checker.done();
  const ProfileSpan span("sum_of_squares", [&] { return work_on(x.size, x); });
  const bool dense = is_dense(x);
  const int64_t blocks = count_blocks(x.size, dense);
  double* partial = static_cast<double*>(thread_scratch(blocks * size_of(DType::float64)));
  const kernels::ElementKernels& k = kernels_for(x.dtype);
  for_blocks(x.size, dense, [&](const RowBlock& b) {
    partial[b.task] = k.sum_of_squares({.rows = b.rows, .columns = b.columns, .x = rows_at(x, b)});
  });
  double total = 0;
  for (int64_t n = 0; n < blocks; n += kSumPiece / kBlock)
    total += std::accumulate(partial + n, partial + std::min(n + kSumPiece / kBlock, blocks), 0.0);
  return total;
}

}  // namespace attn::ops
