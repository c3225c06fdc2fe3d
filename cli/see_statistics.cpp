#include "see_statistics.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>

#include "attn/attention_statistics.h"

namespace cli {
namespace {

/// One column of the table.
struct Number {
  const char* title;
  const char* name;  // in files
  double HeadStatistics::*value;
  bool positional;  // wants tokens that attend to their own text
};
constexpr Number kNumbers[] = {{"entropy", "entropy", &HeadStatistics::entropy, false},
                               {"maximum", "maximum", &HeadStatistics::maximum, false},
                               {"keys", "participation", &HeadStatistics::participation, false},
                               {"distance", "distance", &HeadStatistics::distance, true},
                               {"first", "first", &HeadStatistics::first, false},
                               {"self", "self", &HeadStatistics::self, true},
                               {"previous", "previous", &HeadStatistics::previous, true},
                               {"next", "next", &HeadStatistics::next, true},
                               {"same", "same_token", &HeadStatistics::same_token, false}};

template <class Body>
void each_number(bool own_text, const Body& body) {
  for (const Number& number : kNumbers)
    if (own_text || !number.positional) body(number);
}

/// Equal tokens have equal numbers.
attn::Tensor<int64_t, 2> numbered_tokens(const std::vector<std::string>& tokens,
                                         std::map<std::string, int64_t>& known) {
  attn::Tensor<int64_t, 2> ids({1, static_cast<int64_t>(tokens.size())});
  for (size_t n = 0; n < tokens.size(); ++n)
    ids[static_cast<int64_t>(n)] = known.emplace(tokens[n], static_cast<int64_t>(known.size())).first->second;
  return ids;
}

/// Of every head of a layer.
std::vector<HeadStatistics> layer_statistics(const attn::RecordedAttention& layer, attn::ConstView<2> row_tokens,
                                             attn::ConstView<2> column_tokens, const std::vector<std::string>& columns,
                                             bool own_text) {
  const int64_t H = layer.q.size[1], Lk = layer.k.size[2];
  const attn::DType dtype = layer.lse.dtype;
  const std::vector<attn::KeyBand> bands =
      own_text ? std::vector<attn::KeyBand>{attn::key_bands::first, attn::key_bands::self, attn::key_bands::previous,
                                            attn::key_bands::next}
               : std::vector<attn::KeyBand>{attn::key_bands::first};
  const auto sets = static_cast<int64_t>(bands.size());
  const attn::Array entropy(dtype, {1, H}), maximum(dtype, {1, H}), participation(dtype, {1, H}),
      distance(dtype, {1, H}), same_token(dtype, {1, H});
  const attn::Array masses(dtype, {1, H, sets}), received(dtype, {1, H, Lk});
  attn::AttentionStatistics wanted;
  wanted.means.entropy = entropy;
  wanted.means.maximum = maximum;
  wanted.means.participation = participation;
  wanted.means.same_token = same_token;
  wanted.means.bands = masses;
  if (own_text) wanted.means.distance = distance;
  wanted.column_mass = received;
  wanted.sets.bands = bands;
  wanted.sets.query_token_ids = row_tokens;
  wanted.sets.key_token_ids = column_tokens;
  attn::attention_statistics(layer.q, layer.k, layer.lse, wanted, layer.options);

  // The first token of a text has none before it, the last none after it: attn/heads.h leaves them out.
  const double n = static_cast<double>(layer.q.size[2]);
  const double with_neighbour = n > 1 ? n / (n - 1) : std::numeric_limits<double>::quiet_NaN();
  std::vector<HeadStatistics> heads;
  for (int64_t h = 0; h < H; ++h) {
    HeadStatistics head{.head = h,
                        .entropy = entropy.number(h),
                        .maximum = maximum.number(h),
                        .participation = participation.number(h),
                        .first = masses.number(h * sets),
                        .same_token = same_token.number(h),
                        .distance = distance.number(h)};
    if (own_text) {
      head.self = masses.number(h * sets + 1);
      head.previous = masses.number(h * sets + 2) * with_neighbour;
      head.next = masses.number(h * sets + 3) * with_neighbour;
    }
    double all = 0;
    for (int64_t j = 0; j < Lk; ++j) {
      all += received.number(h * Lk + j);
      if (received.number(h * Lk + j) > received.number(h * Lk + head.most_seen_at)) head.most_seen_at = j;
    }
    head.most_seen = columns[static_cast<size_t>(head.most_seen_at)];
    head.most_seen_share = all > 0 ? received.number(h * Lk + head.most_seen_at) / all : 0;
    heads.push_back(head);
  }
  return heads;
}

}  // namespace

std::vector<HeadStatistics> head_statistics(const std::vector<attn::RecordedAttention>& layers,
                                            const attn::Selection& selection, const std::vector<std::string>& rows,
                                            const std::vector<std::string>& columns, bool own_text) {
  std::map<std::string, int64_t> known;
  const attn::Tensor<int64_t, 2> row_tokens = numbered_tokens(rows, known);
  const attn::Tensor<int64_t, 2> column_tokens = numbered_tokens(columns, known);
  std::vector<int64_t> chosen = selection.layers;
  if (chosen.empty()) {
    chosen.resize(layers.size());
    std::iota(chosen.begin(), chosen.end(), 0);
  }
  std::vector<HeadStatistics> all;
  for (const int64_t n : chosen) {
    const attn::RecordedAttention& layer = layers[static_cast<size_t>(n)];
    std::vector<HeadStatistics> heads = layer_statistics(layer, row_tokens, column_tokens, columns, own_text);
    for (HeadStatistics& head : heads) head.layer = n;
    if (selection.heads.empty()) all.insert(all.end(), heads.begin(), heads.end());
    for (const int64_t h : selection.heads) all.push_back(heads[static_cast<size_t>(h)]);
  }
  return all;
}

Table statistics_table(const std::vector<HeadStatistics>& heads, bool own_text) {
  Table table{{{"layer", "{:>5}"}, {"head", "{:>6}"}}};
  each_number(own_text, [&](const Number& number) {
    table.columns.push_back({number.name, "{:>10.3f}", number.title});
  });
  for (const Column& column : {Column{"", "  {}", "most seen"}, {"most_seen"}, {"most_seen_at"}, {"most_seen_share"}})
    table.columns.push_back(column);
  for (const HeadStatistics& head : heads) {
    auto& row = table.rows.emplace_back(std::vector<Table::Cell>{head.layer, head.head});
    each_number(own_text, [&](const Number& number) { row.emplace_back(head.*number.value); });
    row.emplace_back(fmt::format("{:.3f} {} at {}", head.most_seen_share, head.most_seen, head.most_seen_at));
    row.insert(row.end(), {head.most_seen, head.most_seen_at, head.most_seen_share});
  }
  return table;
}

}  // namespace cli
