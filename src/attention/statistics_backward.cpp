// attention_statistics_backward(): the backward's walks with g_ij of a loss by statistics of rows in place of dP.
#include <algorithm>
#include <cmath>

#include "attention/backward.h"
#include "attention/elements.h"
#include "attention/forward.h"
#include "attention/statistics.h"

namespace attn::detail {
namespace {

/// The element of a view [B, H, Lq, n].
double value_at(const ConstView<4>& view, int64_t b, int64_t h, int64_t i, int64_t n) {
  const int64_t offset = b * view.stride[0] + h * view.stride[1] + i * view.stride[2] + n * view.stride[3];
  return load_element(view.dtype, static_cast<const char*>(view.data) + offset * size_of(view.dtype));
}

}  // namespace

StatisticsLoss::StatisticsLoss(const Problem& p, const ConstView<3>& lse, const AttentionStatistics& statistics,
                               const RowStatisticsGradients& drows)
    : p_(p), lse_(lse), statistics_(statistics), drows_(drows) {
  if (drows.bands) bands_ = drows.bands.size[3];
  if (drows.labels) labels_ = drows.labels.size[3];
}

double StatisticsLoss::value(const ConstView<3>& view, int64_t b, int64_t h, int64_t i) const {
  return view ? load_row_value(view, b, h, i) : 0;
}

double StatisticsLoss::constant(int64_t b, int64_t h, int64_t i) const {
  return value(drows_.sum, b, h, i) - value(drows_.entropy, b, h, i);
}

double StatisticsLoss::delta(int64_t b, int64_t h, int64_t i) const {
  const double lse = load_row_value(lse_, b, h, i);
  if (lse == -kInfinity) return 0;
  const RowStatistics<3>& rows = statistics_.rows;
  const double sum = p_.options->sink.empty() ? 1 : 1 - std::exp(p_.options->sink[h] - lse);
  double result = constant(b, h, i) * sum;
  const auto add = [&](const ConstView<3>& gradient, const ConstView<3>& statistic, double factor) {
    if (gradient) result += factor * value(gradient, b, h, i) * value(statistic, b, h, i);
  };
  add(drows_.entropy, rows.entropy, 1);
  add(drows_.participation, rows.participation, -2);
  add(drows_.maximum, rows.maximum, 1);
  add(drows_.distance, rows.distance, 1);
  add(drows_.same_token, rows.same_token, 1);
  for (int64_t n = 0; n < bands_; ++n) result += value_at(drows_.bands, b, h, i, n) * value_at(rows.bands, b, h, i, n);
  for (int64_t n = 0; n < labels_; ++n)
    result += value_at(drows_.labels, b, h, i, n) * value_at(rows.labels, b, h, i, n);
  return result;
}

void StatisticsLoss::load(const TileKernels& tk, const Sequence& s, const Panel& panel, void* terms,
                          void* delta) const {
  const int width = panel.width;
  set_all(tk, terms, row_terms() * width, 0);
  for (int r = 0; r < panel.rows; ++r) {
    const int64_t b = s.batch, h = panel.head[r], i = panel.query[r];
    const auto put = [&](int64_t term, double x) { set(tk, terms, term * width + r, x); };
    const double participation = value(drows_.participation ? statistics_.rows.participation : View<3>(), b, h, i);
    put(kEntropy, value(drows_.entropy, b, h, i) / kScoreUnit);
    put(kSquare, -2 * participation * participation * value(drows_.participation, b, h, i));
    put(kDistance, value(drows_.distance, b, h, i));
    put(kSameToken, value(drows_.same_token, b, h, i));
    put(kMaximum, value(drows_.maximum, b, h, i));
    for (int64_t n = 0; n < bands_; ++n) put(kBands + n, value_at(drows_.bands, b, h, i, n));
    for (int64_t n = 0; n < labels_; ++n) put(kBands + bands_ + n, value_at(drows_.labels, b, h, i, n));
    set(tk, delta, r, this->delta(b, h, i) - constant(b, h, i));
  }
  for (int r = panel.rows; r < width; ++r) set(tk, delta, r, 0);
}

bool StatisticsLoss::fill(const TileKernels& tk, const Sequence& s, const Tile& tile, const void* terms,
                          void* other) const {
  if (!drows_.distance && !drows_.same_token && !drows_.maximum && bands_ == 0 && labels_ == 0) return false;
  if (tk.acc_bytes == 8) fill(s, tile, static_cast<const double*>(terms), static_cast<double*>(other));
  else fill(s, tile, static_cast<const float*>(terms), static_cast<float*>(other));
  return true;
}

template <class T>
void StatisticsLoss::fill(const Sequence& s, const Tile& tile, const T* terms, T* other) const {
  const Panel& panel = *tile.panel;
  const int64_t width = panel.width, count = tile.count, first_key = s.key_begin + tile.begin;
  const KeySets& sets = statistics_.sets;
  std::fill_n(other, count * width, T(0));
  const auto each_pair = [&](const auto& body) {
    for (int64_t j = 0; j < count; ++j)
      for (int r = 0; r < panel.rows; ++r) body(j, r, other[j * width + r]);
  };
  if (drows_.distance)
    each_pair([&](int64_t j, int r, T& g) {
      g += terms[kDistance * width + r] * static_cast<T>(std::abs(panel.place[r] - tile.begin - j));
    });
  if (drows_.same_token) {
    int64_t query[kernels::kMaxWidth], key[kernels::kMaxBlockKeys];
    for (int r = 0; r < panel.rows; ++r) query[r] = id_at(sets.query_token_ids, s.batch, panel.query[r]);
    for (int64_t j = 0; j < count; ++j) key[j] = id_at(sets.key_token_ids, s.batch, first_key + j);
    each_pair([&](int64_t j, int r, T& g) { g += query[r] == key[j] ? terms[kSameToken * width + r] : T(0); });
  }
  for (int64_t j = 0; labels_ > 0 && j < count; ++j) {
    const int64_t label = id_at(sets.labels, s.batch, first_key + j);
    if (label < 0) continue;
    for (int r = 0; r < panel.rows; ++r) other[j * width + r] += terms[(kBands + bands_ + label) * width + r];
  }
  for (int r = 0; r < panel.rows; ++r) fill_row(s, tile, r, terms, other);
}

/// What is of a few keys of row r: its bands and its maximum.
template <class T>
void StatisticsLoss::fill_row(const Sequence& s, const Tile& tile, int r, const T* terms, T* other) const {
  const Panel& panel = *tile.panel;
  const int64_t width = panel.width, last_key = tile.begin + tile.count - 1;
  for (int64_t n = 0; n < bands_; ++n) {
    const KeyBand& band = statistics_.sets.bands[n];
    const int64_t origin = band.relative ? panel.place[r] : 0;
    const int64_t begin = std::max(saturating_add(origin, band.low), tile.begin);
    const int64_t last = std::min(saturating_add(origin, band.high), last_key);
    for (int64_t j = begin; j <= last; ++j) other[(j - tile.begin) * width + r] += terms[(kBands + n) * width + r];
  }
  if (!drows_.maximum) return;
  const ConstView<3>& position = statistics_.argmax_key;
  const int64_t at = s.batch * position.stride[0] + panel.head[r] * position.stride[1];
  const int64_t key = static_cast<const int64_t*>(position.data)[at + panel.query[r] * position.stride[2]];
  const int64_t j = key - s.key_begin - tile.begin;
  if (j >= 0 && j < tile.count) other[j * width + r] += terms[kMaximum * width + r];
}

}  // namespace attn::detail

namespace attn {

void attention_statistics_backward(ConstView<4> q, ConstView<4> k, ConstView<3> lse,
                                   const AttentionStatistics& statistics, const RowStatisticsGradients& drows,
                                   const AttentionGradients& gradients, const AttentionOptions& options) {
  Checker checker("attention_statistics_backward");
  ConstView<4> values = k;  // none
  values.size[3] = 0;
  AttentionOptions kept = options;  // P is that before dropout
  kept.dropout = 0;
  const detail::Problem p = detail::make_problem(checker, q, k, values, kept);
  detail::check_statistics_backward(checker, p, lse, statistics, drows, gradients, detail::ValueTypes::of_lse);
  checker.done();
  const ProfileSpan span("attention_statistics_backward", [&] { return detail::scores_work(p); });
  ConstView<4> none = q;
  none.size[3] = 0;
  const detail::StatisticsLoss loss(p, lse, statistics, drows);
  detail::run_backward(p, {none, none, lse, {}, &loss}, gradients);
}

}  // namespace attn
