#include "view/page_heads.h"

#include "attn/attention_statistics.h"

namespace attn::view {
namespace {

constexpr KeyBand kBands[] = {key_bands::first, key_bands::self, key_bands::previous, key_bands::next};

}  // namespace

std::vector<Measure> page_measures(bool own_text) {
  std::vector<Measure> measures = {{"entropy", "mean entropy of a row, in nats"},
                                   {"maximum", "mean of the rows' largest weights"},
                                   {"keys", "to how many keys a row attends: 1 / the sum of squared weights"},
                                   {"first", "mean weight on the first key"}};
  if (own_text) {
    measures.push_back({"self", "mean weight on the token itself"});
    measures.push_back({"previous", "mean weight on the token before"});
    measures.push_back({"next", "mean weight on the token behind"});
    measures.push_back({"distance", "mean distance, in tokens"});
  }
  return measures;
}

HeadFindings look_at_head(const Layer& head, bool own_text, const Fineness& fineness) {
  const int64_t Lq = head.q.size[2], Lk = head.k.size[2], bands = own_text ? 4 : 1;
  const DType dtype = head.lse.dtype;
  const ResultTensor<2> entropy(dtype, {1, 1}), maximum(dtype, {1, 1}), keys(dtype, {1, 1}), distance(dtype, {1, 1});
  const ResultTensor<3> masses(dtype, {1, 1, bands}), peaks(dtype, {1, 1, Lq});
  const ResultTensor<3> row_entropy(dtype, {1, 1, fineness.lines ? Lq : 0}),
      received(dtype, {1, 1, fineness.lines ? Lk : 0});
  const ResultTensor<4> cells(dtype, {1, 1, fineness.rows, fineness.columns}), weight(dtype, {1, 1, Lq, fineness.top});
  HeadFindings found;
  found.top_key.resize(static_cast<size_t>(Lq * fineness.top));

  AttentionStatistics wanted;
  wanted.means.entropy = entropy;
  wanted.means.maximum = maximum;
  wanted.means.participation = keys;
  wanted.means.bands = masses;
  wanted.sets.bands = std::span(kBands, static_cast<size_t>(bands));
  wanted.rows.maximum = peaks;
  if (own_text) wanted.means.distance = distance;
  if (fineness.lines) {
    wanted.rows.entropy = row_entropy;
    wanted.column_mass = received;
  }
  if (fineness.rows) wanted.picture = {.cells = cells, .maximum = true};
  if (fineness.top) {
    wanted.top_weight = weight;
    wanted.top_key = View<4>(found.top_key.data(), DType::int64, {1, 1, Lq, fineness.top});
  }
  attention_statistics(head.q, head.k, head.lse, wanted, head.options);

  const std::vector<double> mass = masses.values();
  for (const ResultTensor<2>* mean : {&entropy, &maximum, &keys}) found.measures.push_back((*mean)[0]);
  found.measures.insert(found.measures.end(), mass.begin(), mass.end());
  if (own_text) found.measures.push_back(distance[0]);
  found.peaks = peaks.values();
  found.cells = cells.values<float>();
  found.entropy = row_entropy.values<float>();
  found.received = received.values<float>();
  found.top_weight = weight.values();
  return found;
}

}  // namespace attn::view
