// naive: three ways to compute one Case. run() is the library; run_reference() is the float64 oracle; run_naive() is
// the textbook algorithm in the precision of the case, whose error is the yardstick of tolerance.h.
#pragma once

#include <vector>

#include "sweep.h"

namespace attn::test {

struct Results {
  Array<4> out;
  Array<3> lse;
  Array<4> dq, dk, dv, dbias;
  Array<1> dsink;
};

inline DType lse_type(DType dtype) { return dtype == DType::float64 ? DType::float64 : DType::float32; }

/// Results of the right shapes, all NaN until they are written.
Results empty_results(const Case& c, DType dtype, bool backward);

AttentionGradients gradients_of(Results& r);

/// The library.
Results run(const Case& c, bool backward = true);

/// The oracle: the same inputs, float64 arithmetic and float64 results.
Results run_reference(const Case& c, bool backward = true);

/// True where a pair is allowed.
std::vector<bool> allowed_pairs(const Case& c);

/// Equally naive ways to write the same algorithm. A single small case is a matter of luck: what one way happens to get
/// exactly right, another does not. The yardstick is the worst of them.
enum class Way {
  textbook,  // sums from first to last, exp, weights kept for the backward, delta = <dout, out>
  reversed,  // sums from last to first, scale folded into q, 2^x, weights from the rounded lse, delta = sum of P dP
  odd_even,  // even terms, then odd ones; exp; weights from the rounded lse; delta = <dout, out> from first to last
};

/// The naive algorithm: the whole score matrix, one softmax, plain sums. Arithmetic in float32; with 16-bit storage the
/// weights and score gradients pass through that type on their way into the next product, as results do on their way
/// out.
Results run_naive(const Case& c, Way way, bool backward = true);

}  // namespace attn::test
