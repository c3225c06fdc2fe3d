// statistics: every result of attention_statistics() for a Case, by the library or by the oracle.
#pragma once

#include <string>
#include <vector>

#include "naive.h"

namespace attn::test {

/// What statistics are asked of a call beside its options.
struct Question {
  Case c;
  std::vector<KeyBand> bands;
  Array<2> labels, query_token_ids, key_token_ids;
  Array<3> key_factor;
  int64_t label_sets = 3, largest = 4, cell_rows = 1, cell_columns = 1;
  AttentionPicture area;  // without cells
};

/// Sets of every kind, some of them empty, and a picture of a part of the matrix.
inline Question make_question(Case c, uint64_t seed) {
  Random random(seed);
  // What an unnamed alignment means; distances want it named where the axes differ.
  if (c.scalars.alignment == Alignment::unspecified) c.scalars.alignment = Alignment::top_left;
  Question question;
  const Dims d = c.dims;
  question.bands = {key_bands::first, key_bands::self, key_bands::previous, key_bands::next, {-9, 2}, {5, 500, false}};
  const auto ids = [&](int64_t batch, int64_t length, int64_t below, int64_t from) {
    Array<2> array(random.below(2) ? DType::int32 : DType::int64, {batch, length});
    for (int64_t n = 0; n < array.count(); ++n) array.set(n, static_cast<double>(from + random.below(below)));
    return array;
  };
  question.labels = ids(1, d.Lk, question.label_sets + 1, -1);
  question.query_token_ids = ids(d.B, d.Lq, 6, 1000000);
  question.key_token_ids = ids(d.B, d.Lk, 6, 1000000);
  question.key_factor = Array<3>(lse_type(c.dtype), {1, d.Hk, d.Lk});
  for (int64_t n = 0; n < question.key_factor.count(); ++n) question.key_factor.set(n, random.uniform());
  question.area.maximum = random.below(2) == 1;
  question.area.first_query = random.below(d.Lq);
  question.area.first_key = random.below(d.Lk);
  if (random.below(2)) question.area.keys = 1 + random.below(d.Lk - question.area.first_key);
  const int64_t shown = question.area.keys < 0 ? d.Lk - question.area.first_key : question.area.keys;
  question.cell_rows = 1 + random.below(d.Lq - question.area.first_query);
  question.cell_columns = 1 + random.below(shown);
  question.c = std::move(c);
  return question;
}

/// Values of `dtype`, all NaN until they are written.
struct Answer {
  Array<3> sum, entropy, participation, maximum, distance, same_token, position, column_mass, column_position;
  Array<4> bands, labels, top_weight, top_key, cells;
  Array<2> mean_sum, mean_entropy, mean_participation, mean_maximum, mean_distance, mean_same_token;
  Array<3> mean_bands, mean_labels;

  explicit Answer(const Question& question, DType dtype) {
    const Dims& d = question.c.dims;
    const auto sets = static_cast<int64_t>(question.bands.size());
    for (Array<3>* row : {&sum, &entropy, &participation, &maximum, &distance, &same_token})
      *row = Array<3>(dtype, {d.B, d.H, d.Lq}).fill_with_nan();
    for (Array<2>* mean :
         {&mean_sum, &mean_entropy, &mean_participation, &mean_maximum, &mean_distance, &mean_same_token})
      *mean = Array<2>(dtype, {d.B, d.H}).fill_with_nan();
    for (Array<3>* column : {&column_mass, &column_position})
      *column = Array<3>(dtype, {d.B, d.H, d.Lk}).fill_with_nan();
    bands = Array<4>(dtype, {d.B, d.H, d.Lq, sets}).fill_with_nan();
    labels = Array<4>(dtype, {d.B, d.H, d.Lq, question.label_sets}).fill_with_nan();
    mean_bands = Array<3>(dtype, {d.B, d.H, sets}).fill_with_nan();
    mean_labels = Array<3>(dtype, {d.B, d.H, question.label_sets}).fill_with_nan();
    top_weight = Array<4>(dtype, {d.B, d.H, d.Lq, question.largest}).fill_with_nan();
    position = Array<3>(DType::int64, {d.B, d.H, d.Lq});
    top_key = Array<4>(DType::int64, {d.B, d.H, d.Lq, question.largest});
    cells = Array<4>(dtype, {d.B, d.H, question.cell_rows, question.cell_columns}).fill_with_nan();
  }

  AttentionStatistics wanted(const Question& question) {
    AttentionStatistics all;
    all.rows = {.sum = sum.view(),
                .entropy = entropy.view(),
                .participation = participation.view(),
                .maximum = maximum.view(),
                .distance = distance.view(),
                .same_token = same_token.view(),
                .bands = bands.view(),
                .labels = labels.view()};
    all.means = {.sum = mean_sum.view(),
                 .entropy = mean_entropy.view(),
                 .participation = mean_participation.view(),
                 .maximum = mean_maximum.view(),
                 .distance = mean_distance.view(),
                 .same_token = mean_same_token.view(),
                 .bands = mean_bands.view(),
                 .labels = mean_labels.view()};
    all.argmax_key = position.view();
    all.top_weight = top_weight.view();
    all.top_key = top_key.view();
    all.column_mass = column_mass.view();
    all.column_position = column_position.view();
    all.picture = question.area;
    all.picture.cells = cells.view();
    all.sets.bands = question.bands;
    all.sets.labels = question.labels.view();
    all.sets.query_token_ids = question.query_token_ids.view();
    all.sets.key_token_ids = question.key_token_ids.view();
    all.key_factor = question.key_factor.view();
    return all;
  }

  bool operator==(const Answer& o) const {
    return same_bits(sum, o.sum) && same_bits(entropy, o.entropy) && same_bits(participation, o.participation) &&
           same_bits(maximum, o.maximum) && same_bits(distance, o.distance) && same_bits(same_token, o.same_token) &&
           same_bits(position, o.position) && same_bits(column_mass, o.column_mass) &&
           same_bits(column_position, o.column_position) && same_bits(bands, o.bands) && same_bits(labels, o.labels) &&
           same_bits(top_weight, o.top_weight) && same_bits(top_key, o.top_key) && same_bits(cells, o.cells) &&
           same_bits(mean_sum, o.mean_sum) && same_bits(mean_entropy, o.mean_entropy) &&
           same_bits(mean_participation, o.mean_participation) && same_bits(mean_maximum, o.mean_maximum) &&
           same_bits(mean_distance, o.mean_distance) && same_bits(mean_same_token, o.mean_same_token) &&
           same_bits(mean_bands, o.mean_bands) && same_bits(mean_labels, o.mean_labels);
  }
};

/// The library, on its own lse.
inline Answer ask(const Question& question) {
  const Case& c = question.c;
  Answer answer(question, lse_type(c.dtype));
  attention_statistics(c.q.view(), c.k.view(), run(c, false).lse.view(), answer.wanted(question), c.options());
  return answer;
}

/// The oracle, on its own lse.
inline Answer ask_reference(const Question& question) {
  const Case& c = question.c;
  Answer answer(question, DType::float64);
  const Array<4> q = c.q.as(DType::float64), k = c.k.as(DType::float64);
  reference::attention_statistics(q.view(), k.view(), run_reference(c, false).lse.view(), answer.wanted(question),
                                  c.options());
  return answer;
}

}  // namespace attn::test
