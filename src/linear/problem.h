// A checked call of linear_attention(): its sizes, and its sequences.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "attn/linear_attention.h"
#include "attn/profile.h"
#include "core/checker.h"
#include "linear/arrays.h"

namespace attn::linear {

struct LinearProblem {
  ConstView<4> q, k, v;
  const LinearAttentionOptions* options;
  int64_t B, H, Hv, L, Dk, Dv;
  int64_t group = 1;    // value heads of a key head
  int64_t columns = 0;  // of a state: Dv, and one where the output is normalised
  double scale = 1;
  bool decay_per_row = false;  // log_decay has a number for each row of the state
  DType state_type = DType::float32;
  std::vector<TokenRange> sequences = {};

  Shape<4> states() const { return {static_cast<int64_t>(sequences.size()), Hv, Dk, columns}; }
};

/// Checks what forward and backward share and fills the problem; violated conditions go to `checker`.
LinearProblem make_problem(Checker& checker, const ConstView<4>& q, const ConstView<4>& k, const ConstView<4>& v,
                           const LinearAttentionOptions& options);
/// Checks the arguments of the forward, and of the backward. The oracle takes results of any floating type.
void check_forward(Checker& checker, const LinearProblem& problem, const View<4>& out, const View<4>& final_state,
                   bool any_type);
void check_backward(Checker& checker, const LinearProblem& problem, const ConstView<4>& dout,
                    const LinearAttentionGradients& gradients, const ConstView<4>& dfinal_state);

/// What a call reports to a profile: `passes` times the multiply-adds of the recurrence, a token after the other, and
/// the bytes of its inputs and of `others`.
inline OperationWork work_of(const LinearProblem& p, double passes, double others) {
  const double products = (p.options->delta ? 3 : 2) * static_cast<double>(p.Dk * p.columns);
  return {{p.B, p.Hv, p.L, p.Dk, p.Dv},
          2 * passes * static_cast<double>(p.B * p.L * p.Hv) * products,
          bytes_of(p.q) + bytes_of(p.k) + bytes_of(p.v) + bytes_of(p.options->log_decay) + bytes_of(p.options->beta) +
              others};
}

/// The view's index on an axis that may be broadcast.
inline int64_t along(int64_t extent, int64_t index) { return extent == 1 ? 0 : index; }

}  // namespace attn::linear
