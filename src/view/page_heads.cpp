#include "view/page_heads.h"

#include <cmath>
#include <limits>
#include <map>

#include "attn/attention_statistics.h"

namespace attn::view {
namespace {

constexpr KeyBand kFirst[] = {key_bands::first};

/// The measures of attn/heads.h; not known of a packed text, which that refuses.
std::vector<double> text_measures(const RecordedAttention& head, const PageTokens& tokens) {
  if (!head.options.cu_seqlens_q.empty())
    return std::vector<double>(heads::measures().size(), std::numeric_limits<double>::quiet_NaN());
  heads::Measures measures;
  measures.add(std::span(&head, 1), tokens.texts());
  return measures.table()[0].values;
}

/// A second pass: attention_statistics() makes one picture at a time.
std::vector<float> mean_picture(const RecordedAttention& head, const Fineness& fineness) {
  const Array cells(head.lse.dtype, {1, 1, fineness.mean_rows, fineness.mean_columns});
  attention_statistics(head.q, head.k, head.lse, {.picture = {.cells = cells}}, head.options);
  return cells.values<float>();
}

}  // namespace

std::vector<Measure> page_measures(bool own_text) {
  std::vector<Measure> measures = {{"maximum", "mean of the rows' largest weights"},
                                   {"keys", "to how many keys a row attends: 1 / the sum of squared weights"}};
  if (!own_text) {
    measures.push_back({"entropy", "mean entropy of a row, in nats"});
    measures.push_back({"first", "mean weight on the first key"});
    return measures;
  }
  for (const heads::Measure& measure : heads::measures())
    measures.push_back({measure.name, measure.definition + "; " + measure.unit + " (" + measure.source + ")"});
  return measures;
}

PageTokens::PageTokens(const PageTexts& texts) {
  if (!texts.keys.empty()) return;
  const auto n = static_cast<int64_t>(texts.queries.size());
  ids_ = Tensor<int64_t, 2>({1, n});
  std::map<std::string_view, int64_t> known;  // equal tokens have equal numbers
  for (int64_t i = 0; i < n; ++i)
    ids_[i] = known.emplace(texts.queries[static_cast<size_t>(i)], static_cast<int64_t>(known.size())).first->second;
  if (texts.kinds.empty()) return;
  kinds_ = Tensor<int64_t, 2>({1, n});
  for (int64_t i = 0; i < n; ++i) kinds_[i] = static_cast<int64_t>(texts.kinds[static_cast<size_t>(i)]);
}

HeadFindings look_at_head(const RecordedAttention& head, const PageTokens& tokens, const Fineness& fineness) {
  const int64_t Lq = head.q.size[2], Lk = head.k.size[2];
  const bool own_text = tokens.own_text();
  const DType dtype = head.lse.dtype;
  const Array entropy(dtype, {1, 1}), maximum(dtype, {1, 1}), keys(dtype, {1, 1});
  const Array first(dtype, {1, 1, 1}), peaks(dtype, {1, 1, Lq});
  const Array row_entropy(dtype, {1, 1, fineness.lines ? Lq : 0}), received(dtype, {1, 1, fineness.lines ? Lk : 0});
  const Array cells(dtype, {1, 1, fineness.rows, fineness.columns}), weight(dtype, {1, 1, Lq, fineness.top});
  HeadFindings found;
  found.top_key.resize(static_cast<size_t>(Lq * fineness.top));

  AttentionStatistics wanted;
  wanted.means.maximum = maximum;
  wanted.means.participation = keys;
  wanted.rows.maximum = peaks;
  if (!own_text) {
    wanted.means.entropy = entropy;
    wanted.means.bands = first;
    wanted.sets.bands = kFirst;
  }
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

  found.measures = {maximum.number(0), keys.number(0)};
  const std::vector<double> more =
      own_text ? text_measures(head, tokens) : std::vector<double>{entropy.number(0), first.number(0)};
  found.measures.insert(found.measures.end(), more.begin(), more.end());
  if (fineness.mean_rows) found.mean_cells = mean_picture(head, fineness);
  found.peaks = peaks.values();
  found.cells = cells.values<float>();
  found.entropy = row_entropy.values<float>();
  found.received = received.values<float>();
  found.top_weight = weight.values();
  return found;
}

}  // namespace attn::view
