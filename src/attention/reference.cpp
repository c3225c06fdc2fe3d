// The operator in float64, as plainly as it can be written: the oracle that every kernel is held against.
//
//   forward    s_ij = cap(scale <q_i, k_j>) + bias_ij - slope |p_i - j|      over the allowed keys j
//              P_ij = exp(s_ij) / (sum_j exp(s_ij) + exp(sink))              lse_i = log of that denominator
//              out_i = sum_j keep_ij P_ij v_j                                keep_ij = 0 or 1 / (1 - dropout)
//   backward   dP_ij = keep_ij <dout_i, v_j>
//              delta_i = sum_j P_ij dP_ij
//              ds_ij = P_ij (dP_ij - delta_i + dlse_i)
#include "attention/reference.h"

#include <vector>

namespace attn::reference {

// ------------------------------------------------------------------------------------------------------------- forward

void attention(ConstView<4> q, ConstView<4> k, ConstView<4> v, View<4> out, View<3> lse,
               const AttentionOptions& options) {
  Checks checks("reference::attention", q, k, v, options);
  checks.require_result("out", out, checks.outputs());
  checks.require_result("lse", lse, checks.rows());
  checks.done();
  const Scores scores(q, k, options);
  const Tensor<double, 4> values = read(v);
  Tensor<double, 4> sums(checks.outputs());
  Tensor<double, 3> lses({q.size[0], q.size[1], q.size[2]});
  int64_t row_number = 0;
  for_each_query(q.size, [&](int64_t b, int64_t h, int64_t i) {
    const Row row = scores.softmax(b, h, i);
    for (size_t n = 0; n < row.keys.size(); ++n) {
      const int64_t j = row.keys[n];
      const double weight = row.weights[n] * scores.keep(b, h, i, j);
      add_scaled(row_of(sums, b, h, i), weight, row_of(values, b, scores.key_head(h), j), v.size[3]);
    }
    lses[row_number++] = row.lse;
  });
  write(sums, out);
  write(lses, lse);
}

// ------------------------------------------------------------------------------------------------------------ backward

/// Takes nothing from the forward: P and delta are summed again, so that an error in out or lse cannot hide in them.
void attention_backward(ConstView<4> q, ConstView<4> k, ConstView<4> v, ConstView<4>, ConstView<3>, ConstView<4> dout,
                        const AttentionGradients& gradients, const AttentionOptions& options, ConstView<3> dlse) {
  Checks checks("reference::attention_backward", q, k, v, options);
  checks.require_array("dout", dout, checks.outputs());
  if (dlse) checks.require_array("dlse", dlse, checks.rows());
  checks.require_result("dq", gradients.dq, q.size);
  checks.require_result("dk", gradients.dk, k.size);
  checks.require_result("dv", gradients.dv, v.size);
  checks.require(!gradients.dbias || options.bias, "dbias is requested, but there is no bias");
  checks.require_result("dbias", gradients.dbias, options.bias.size);
  checks.require_result("dsink", gradients.dsink, {q.size[1]});
  checks.done();
  const Scores scores(q, k, options);
  const Tensor<double, 4> values = read(v), douts = read(dout);
  const Tensor<double, 3> dlses = read(dlse);
  Tensor<double, 4> dv(v.size);
  ScoreGradients sums(scores, q.size, k.size, options.bias.size);
  const int64_t Dv = v.size[3];
  int64_t row_number = 0;

  for_each_query(q.size, [&](int64_t b, int64_t h, int64_t i) {
    const int64_t kv_head = scores.key_head(h);
    const double dlse_i = dlse ? dlses[row_number] : 0;
    ++row_number;
    const double* dout_i = row_of(douts, b, h, i);
    const Row row = scores.softmax(b, h, i);

    std::vector<double> dP(row.keys.size());
    double delta = 0;
    for (size_t n = 0; n < row.keys.size(); ++n) {
      const int64_t j = row.keys[n];
      const double keep = scores.keep(b, h, i, j);
      add_scaled(row_of(dv, b, kv_head, j), keep * row.weights[n], dout_i, Dv);
      dP[n] = keep * dot(dout_i, row_of(values, b, kv_head, j), Dv);
      delta += row.weights[n] * dP[n];
    }

    for (size_t n = 0; n < row.keys.size(); ++n)
      sums.add_score(b, h, i, row.keys[n], row.weights[n] * (dP[n] - delta + dlse_i));
    sums.add_sink(h, row.sink_weight * (dlse_i - delta));
  });
  sums.write(gradients);
  write(dv, gradients.dv);
}

// ------------------------------------------------------------------------------------------------------------- weights

void attention_weights(ConstView<4> q, ConstView<4> k, ConstView<3> lse, View<4> weights, int64_t first_query,
                       int64_t first_key, const AttentionOptions& options) {
  Checks checks("reference::attention_weights", q, k, k, options);
  const int64_t rows = weights.size[2], columns = weights.size[3];
  checks.require_array("lse", lse, checks.rows());
  checks.require_array("weights", weights, {q.size[0], q.size[1], rows, columns});
  checks.require(first_query >= 0 && rows <= q.size[2] && first_query <= q.size[2] - rows, "the queries exceed Lq");
  checks.require(first_key >= 0 && columns <= k.size[2] && first_key <= k.size[2] - columns, "the keys exceed Lk");
  checks.done();
  const Scores scores(q, k, options);
  Tensor<double, 4> values(weights.size);
  for_each_query(weights.size, [&](int64_t b, int64_t h, int64_t r) {
    const int64_t i = first_query + r;
    const double lse_i = at<double, 3>(lse, {b, h, i});
    for (int64_t c = 0; c < weights.size[3]; ++c) {
      const int64_t j = first_key + c;
      if (scores.allowed(b, h, i, j)) row_of(values, b, h, r)[c] = exp_above(scores.score(b, h, i, j), lse_i);
    }
  });
  write(values, weights);
}

}  // namespace attn::reference
