// attention_statistics(): by hand, against the oracle, against attention_weights(), and its errors.
#include "support/statistics.h"

#include <gtest/gtest.h>

#include "support/checks.h"
#include "support/errors.h"

namespace attn::test {
namespace {

/// Scores are ln of 1, 2 and 5, so that the rows of P are eighths; the second query weighs all keys alike.
Question by_hand() {
  const Dims dims = {.B = 1, .H = 1, .Hk = 1, .Lq = 2, .Lk = 3, .D = 1, .Dv = 1};
  Case c = make_case(feature_named("none"), dims, DType::float64, 1);
  c.q.fill(0);
  c.q.set(0, 1);
  for (int64_t j = 0; j < 3; ++j) c.k.set(j, std::log(static_cast<double>(j == 2 ? 5 : j + 1)));
  Question question = make_question(c, 1);
  question.bands = {key_bands::first, key_bands::self, key_bands::previous, key_bands::next, {1, 2, false}};
  const auto set = [](Array<2>& ids, std::initializer_list<double> values) {
    int64_t n = 0;
    for (double value : values) ids.set(n++, value);
  };
  set(question.labels, {0, -1, 2});
  set(question.query_token_ids, {7, 8});
  set(question.key_token_ids, {8, 7, 7});
  for (int64_t j = 0; j < 3; ++j) question.key_factor.set(j, static_cast<double>(j));
  question.area = {};
  question.cell_rows = 1;
  question.cell_columns = 2;
  return question;
}

void expect_by_hand(const Answer& answer) {
  const auto expect = [](const char* what, const Values& actual, const Values& expected) {
    EXPECT_TRUE(close_float64(actual, expected)) << what;
  };
  const double third = 1.0 / 3, ln2 = std::log(2.0), ln3 = std::log(3.0), ln5 = std::log(5.0);
  const double entropy = 3 * ln2 - 2.0 / 8 * ln2 - 5.0 / 8 * ln5;
  expect("sum", answer.sum.values(), {1, 1});
  expect("entropy", answer.entropy.values(), {entropy, ln3});
  expect("participation", answer.participation.values(), {64.0 / 30, 3});
  expect("maximum", answer.maximum.values(), {5.0 / 8, third});
  expect("argmax_key", answer.position.values(), {2, 0});
  expect("distance", answer.distance.values(), {12.0 / 8, 2 * third});
  expect("same token", answer.same_token.values(), {7.0 / 8, third});
  expect("bands", answer.bands.values(),
         {1.0 / 8, 1.0 / 8, 0, 2.0 / 8, 7.0 / 8, third, third, third, third, 2 * third});
  expect("labels", answer.labels.values(), {1.0 / 8, 0, 5.0 / 8, third, 0, third});
  expect("means", answer.mean_entropy.values(), {(entropy + ln3) / 2});
  expect("means of labels", answer.mean_labels.values(), {(1.0 / 8 + third) / 2, 0, (5.0 / 8 + third) / 2});
  expect("top weights", answer.top_weight.values(), {5.0 / 8, 2.0 / 8, 1.0 / 8, 0, third, third, third, 0});
  expect("top keys", answer.top_key.values(), {2, 1, 0, -1, 0, 1, 2, -1});
  const double mass[] = {1.0 / 8 + third, 2.0 / 8 + third, 5.0 / 8 + third};
  expect("column mass", answer.column_mass.values(), {0, mass[1], 2 * mass[2]});
  expect("column position", answer.column_position.values(), {third / mass[0], third / mass[1], third / mass[2]});
  expect("cells", answer.cells.values(), {mass[1] / 4, mass[2]});
}

TEST(StatisticsByHand, Reference) { expect_by_hand(ask_reference(by_hand())); }
TEST(StatisticsByHand, Kernels) {
  for_each_isa([](const std::string&) { expect_by_hand(ask(by_hand())); });
}

/// Holds an answer against the oracle's.
class Comparison {
 public:
  explicit Comparison(const Question& question)
      : question_(question),
        c_(question.c),
        expected_(ask_reference(question)),
        weights_(DType::float64, {c_.dims.B, c_.dims.H, c_.dims.Lq, c_.dims.Lk}) {
    const Array<4> q = c_.q.as(DType::float64), k = c_.k.as(DType::float64);
    const Array<3> lse = run_reference(c_, false).lse;
    reference::attention_weights(q.view(), k.view(), lse.view(), weights_.view(), 0, 0, c_.options());
    error_ = statistic_bound(max_abs(lse.values()), c_.dims.Lk, lse_type(c_.dtype));
  }

  void expect(const Answer& actual, const std::string& isa) const {
    const Answer& e = expected_;
    where_ = c_.name() + " on " + isa;
    near("sum", actual.sum, e.sum);
    near("entropy", actual.entropy, e.entropy, 1);
    near("participation", actual.participation, e.participation, 0, 3);
    near("maximum", actual.maximum, e.maximum);
    near("distance", actual.distance, e.distance);
    near("same token", actual.same_token, e.same_token);
    near("bands", actual.bands, e.bands);
    near("labels", actual.labels, e.labels);
    near("mean sum", actual.mean_sum, e.mean_sum);
    near("mean entropy", actual.mean_entropy, e.mean_entropy, 1);
    near("mean participation", actual.mean_participation, e.mean_participation, 0, 3);
    near("mean maximum", actual.mean_maximum, e.mean_maximum);
    near("mean distance", actual.mean_distance, e.mean_distance);
    near("mean same token", actual.mean_same_token, e.mean_same_token);
    near("mean bands", actual.mean_bands, e.mean_bands);
    near("mean labels", actual.mean_labels, e.mean_labels);
    near("column mass", actual.column_mass, e.column_mass);
    near("cells", actual.cells, e.cells);
    near("top weights", actual.top_weight, e.top_weight);
    columns(actual);
    keys("argmax_key", actual.position.values(), e.position.values(), 1);
    keys("top key", actual.top_key.values(), e.top_key.values(), question_.largest);
  }

 private:
  /// Relative to the numbers that add up, all of one sign, and to `beside`.
  template <int Rank>
  void near(const char* what, const Array<Rank>& actual, const Array<Rank>& expected, double beside = 0,
            double times = 1) const {
    ASSERT_EQ(actual.count(), expected.count());
    for (int64_t n = 0; n < actual.count(); ++n) {
      const double bound = times * error_ * (std::abs(expected.get(n)) + beside) + error_ * kLostWeights;
      ASSERT_LE(std::abs(actual.get(n) - expected.get(n)), bound)
          << what << "[" << n << "] is " << actual.get(n) << ", not " << expected.get(n) << ", " << where_;
    }
  }

  /// Where nobody looks there is no position, and where hardly anybody does weights are not known well.
  void columns(const Answer& actual) const {
    for (int64_t n = 0; n < actual.column_position.count(); ++n) {
      const double position = actual.column_position.get(n), expected = expected_.column_position.get(n);
      double mass = 0;
      const int64_t Lk = c_.dims.Lk, Lq = c_.dims.Lq;
      for (int64_t i = 0; i < Lq; ++i) mass += weights_.get((n / Lk * Lq + i) * Lk + n % Lk);
      ASSERT_TRUE(mass > 0 || std::isnan(position)) << "position of column " << n << ", " << where_;
      if (mass < kLostWeights) continue;
      const double range = 2 * static_cast<double>(Lq) + std::abs(expected);
      ASSERT_LE(std::abs(position - expected), error_ * range) << "position of column " << n << ", " << where_;
    }
  }

  /// Another key than the oracle's is right if its weight is as large.
  void keys(const char* what, const Values& actual, const Values& expected, int64_t each) const {
    const auto weight = [&](double key, int64_t row) {
      return key < 0 ? 0 : weights_.get(row * c_.dims.Lk + static_cast<int64_t>(key));
    };
    for (size_t n = 0; n < actual.size(); ++n) {
      const auto row = static_cast<int64_t>(n) / each;
      const double found = weight(actual[n], row), best = weight(expected[n], row);
      ASSERT_LE(std::abs(found - best), 2 * error_ * best + error_ * kLostWeights)
          << what << "[" << n << "] is " << actual[n] << ", not " << expected[n] << ", " << where_;
    }
  }

  const Question& question_;
  const Case& c_;
  const Answer expected_;
  Array<4> weights_;
  double error_;
  mutable std::string where_;
};

TEST(Statistics, AreTheOraclesForEveryOption) {
  sample_every_option(900, [](const Case& c) {
    const Question question = make_question(c, 901);
    const Comparison comparison(question);
    for_each_isa([&](const std::string& isa) { comparison.expect(ask(question), isa); });
  });
}

/// Many slabs, panels, blocks and chunks; keys and values that have to be packed.
std::vector<Question> large_questions() {
  std::vector<Question> questions;
  const auto add = [&](const char* feature, const Dims& dims, DType dtype) {
    questions.push_back(make_question(make_case(feature_named(feature), dims, dtype, 910), 911));
  };
  add("none", {.B = 1, .H = 1, .Hk = 1, .Lq = 700, .Lk = 530, .D = 24, .Dv = 24}, DType::float32);
  add("causal top_left", {.B = 1, .H = 1, .Hk = 1, .Lq = 1500, .Lk = 1500, .D = 8, .Dv = 8}, DType::bfloat16);
  add("packed causal", {.B = 1, .H = 2, .Hk = 1, .Lq = 640, .Lk = 640, .D = 16, .Dv = 16}, DType::float16);
  add("sink window", {.B = 2, .H = 2, .Hk = 1, .Lq = 20, .Lk = 2500, .D = 16, .Dv = 16}, DType::float64);
  return questions;
}

TEST(Statistics, OfManySlabs) {
  for (const Question& question : large_questions()) {
    const Comparison comparison(question);
    for_each_isa([&](const std::string& isa) { comparison.expect(ask(question), isa); });
  }
}

TEST(Statistics, AreTheSameBitsForAnyNumberOfThreads) {
  for (const Question& question : large_questions())
    for_each_isa([&](const std::string& isa) {
      set_thread_count(1);
      const Answer serial = ask(question);
      for (int threads : {2, 3, 8}) {
        set_thread_count(threads);
        EXPECT_TRUE(ask(question) == serial) << question.c.name() << " with " << threads << " threads on " << isa;
      }
      set_thread_count(0);
    });
}

/// The largest weights of a row are those of attention_weights(), to the bit, and in order.
TEST(Statistics, LargestAreThoseOfWeights) {
  for_each_isa([](const std::string& isa) {
    for (const char* name : {"none", "everything", "packed with gaps", "causal bottom_right", "mask rare"}) {
      const Case c = make_case(feature_named(name), {.B = 1, .H = 3, .Hk = 1, .Lq = 75, .Lk = 290, .D = 12, .Dv = 12},
                               DType::float32, 82);
      const Question question = make_question(c, 83);
      const Answer answer = ask(question);
      Array<4> weights(DType::float32, {c.dims.B, c.dims.H, c.dims.Lq, c.dims.Lk});
      attention_weights(c.q.view(), c.k.view(), run(c, false).lse.view(), weights.view(), 0, 0, c.options());
      const int64_t Lk = c.dims.Lk, n = question.largest;
      for (int64_t row = 0; row < answer.sum.count(); ++row) {
        std::vector<int64_t> keys;
        for (int64_t j = 0; j < Lk; ++j)
          if (weights.get(row * Lk + j) > 0) keys.push_back(j);
        std::stable_sort(keys.begin(), keys.end(),
                         [&](int64_t a, int64_t b) { return weights.get(row * Lk + a) > weights.get(row * Lk + b); });
        keys.resize(std::max<size_t>(keys.size(), n), -1);
        ASSERT_EQ(answer.position.get(row), static_cast<double>(keys[0]))
            << c.name() << " row " << row << " on " << isa;
        for (int64_t place = 0; place < n; ++place) {
          const int64_t key = keys[place];
          ASSERT_EQ(answer.top_key.get(row * n + place), static_cast<double>(key)) << c.name() << " row " << row;
          ASSERT_EQ(answer.top_weight.get(row * n + place), key < 0 ? 0 : weights.get(row * Lk + key)) << c.name();
        }
      }
    }
  });
}

/// The same questions of a cache that holds the packed sequences of the case in pages.
Answer ask_pages(const Question& question, int64_t page_size) {
  const Case& c = question.c;
  KVCache cache(
      {.kv_heads = c.dims.Hk, .head_dim = c.dims.D, .value_dim = c.dims.Dv, .dtype = c.dtype, .page_size = page_size});
  std::vector<int64_t> ids;
  int64_t longest = 0;
  for (size_t t = 0; t + 1 < c.cu_seqlens_k.size(); ++t) {
    const int64_t first = c.cu_seqlens_k[t], count = c.cu_seqlens_k[t + 1] - first;
    ids.push_back(cache.add());
    cache.append(ids[t], part_of(c.k.view(), 2, first, count), part_of(c.v.view(), 2, first, count));
    longest = std::max(longest, count);
  }
  AttentionOptions options = c.options();
  options.cu_seqlens_q = options.cu_seqlens_k = {};
  Array<4> bias;  // its keys count inside each sequence
  if (options.bias) {
    bias = Array<4>(c.bias.dtype(), {1, c.dims.H, c.dims.Lq, longest});
    for (size_t t = 0; t < ids.size(); ++t)
      for (int64_t h = 0; h < c.dims.H; ++h)
        for (int64_t i = c.cu_seqlens_q[t]; i < c.cu_seqlens_q[t + 1]; ++i)
          for (int64_t j = c.cu_seqlens_k[t]; j < c.cu_seqlens_k[t + 1]; ++j)
            bias.set({0, h, i, j - c.cu_seqlens_k[t]}, c.bias.get({0, h, i, j}));
    options.bias = bias.view();
  }
  Answer answer(question, lse_type(c.dtype));
  cache.statistics(ids, c.cu_seqlens_q, c.q.view(), run(c, false).lse.view(), answer.wanted(question), options);
  return answer;
}

/// Packed sequences, some of which do not fill their last page, with options of every kind that a cache takes.
std::vector<Question> paged_questions(DType dtype) {
  std::vector<Question> questions;
  const Dims dims = {.B = 1, .H = 6, .Hk = 2, .Lq = 150, .Lk = 330, .D = 16, .Dv = 12};
  for (const char* feature : {"packed", "packed causal", "packed window bottom_right alibi", "packed mask bias"}) {
    Case c = make_case(feature_named(feature), dims, dtype, 920);
    c.mask = {};
    if (c.scalars.causal) c.sink = std::vector<float>(6, 0.5F);
    else c.scalars.softcap = 3;
    questions.push_back(make_question(std::move(c), 921));
  }
  return questions;
}

TEST(Statistics, OfPagesAreThoseOfContiguousKeys) {
  for_each_isa([](const std::string& isa) {
    for (DType dtype : {DType::float32, DType::float64, DType::bfloat16, DType::float16})
      for (const Question& question : paged_questions(dtype)) {
        const Answer expected = ask(question);
        for (int64_t page_size : {1, 7, 64})
          EXPECT_TRUE(ask_pages(question, page_size) == expected)
              << question.c.name() << " in pages of " << page_size << " on " << isa;
      }
  });
}

/// By default the last query is the newest token, which sees all.
TEST(Statistics, OfTheNewestToken) {
  const Case c = make_case(feature_named("causal bottom_right"), {.H = 2, .Hk = 1, .Lq = 1, .Lk = 90, .D = 8, .Dv = 8},
                           DType::float32, 93);
  KVCache cache({.kv_heads = 1, .head_dim = 8, .page_size = 16});
  const int64_t sequence = cache.add();
  cache.append(sequence, c.k.view(), c.v.view());
  const Array<3> lse = run(c, false).lse;
  Array<3> entropy(DType::float32, {1, 2, 1}), expected = entropy;
  AttentionStatistics wanted;
  wanted.rows.entropy = entropy.view();
  const std::vector<int64_t> sequences = {sequence}, starts = {0, 1};
  cache.statistics(sequences, starts, c.q.view(), lse.view(), wanted);
  wanted.rows.entropy = expected.view();
  attention_statistics(c.q.view(), c.k.view(), lse.view(), wanted, c.options());
  EXPECT_TRUE(same_bits(entropy, expected));
}

/// One alone has the bits that it has among all.
TEST(Statistics, AloneOrTogether) {
  const Question question = large_questions()[0];
  const Case& c = question.c;
  const Array<3> lse = run(c, false).lse;
  const Answer together = ask(question);
  const auto alone = [&](const auto& choose) {
    Answer answer(question, lse_type(c.dtype));
    AttentionStatistics all = answer.wanted(question), one;
    one.sets = all.sets;
    one.key_factor = all.key_factor;
    choose(one, all);
    attention_statistics(c.q.view(), c.k.view(), lse.view(), one, c.options());
    return answer;
  };
  using S = AttentionStatistics;
  const Answer rows = alone([](S& one, const S& all) { one.rows.entropy = all.rows.entropy; });
  EXPECT_TRUE(same_bits(rows.entropy, together.entropy));
  EXPECT_TRUE(std::isnan(rows.sum.get(0))) << "what is not asked for is written";
  const Answer means = alone([](S& one, const S& all) { one.means.labels = all.means.labels; });
  EXPECT_TRUE(same_bits(means.mean_labels, together.mean_labels));
  const Answer columns = alone([](S& one, const S& all) { one.column_position = all.column_position; });
  EXPECT_TRUE(same_bits(columns.column_position, together.column_position));
  const Answer top = alone([](S& one, const S& all) { one.top_key = all.top_key; });
  EXPECT_TRUE(same_bits(top.top_key, together.top_key));
  // A picture alone is cut into other slabs, whose sums are float64, and rounded once.
  const Answer picture = alone([](S& one, const S& all) { one.picture = all.picture; });
  const Values cells = together.cells.values();
  EXPECT_LE(max_abs_error(picture.cells.values(), cells), kRoundings * kUnit32 * max_abs(cells));
}

/// Results and inputs are anywhere: heads innermost, rows backwards, one factor for all.
TEST(Statistics, AnyStrides) {
  Question question =
      make_question(make_case(feature_named("causal bottom_right"), small_dims()[1], DType::float32, 92), 93);
  const Dims& d = question.c.dims;
  question.key_factor.fill(0.5);
  const Answer expected = ask(question);
  Answer answer(question, DType::float32);
  AttentionStatistics wanted = answer.wanted(question);
  const int64_t sets = static_cast<int64_t>(question.bands.size());
  float* last = static_cast<float*>(wanted.rows.entropy.data) + (d.Lq - 1) * d.H;
  wanted.rows.entropy = View<3>(last, DType::float32, {d.B, d.H, d.Lq}, {d.H * d.Lq, 1, -d.H});
  wanted.rows.bands.stride = {d.H * d.Lq * sets, 1, d.H * sets, d.H};
  wanted.column_mass.stride = {d.H * d.Lk, 1, d.H};
  wanted.top_key.stride = {1, d.B, d.B * d.H, d.B * d.H * d.Lq};
  wanted.key_factor.stride = {0, 0, 0};
  attention_statistics(question.c.q.view(), question.c.k.view(), run(question.c, false).lse.view(), wanted,
                       question.c.options());
  for (int64_t b = 0; b < d.B; ++b)
    for (int64_t h = 0; h < d.H; ++h) {
      for (int64_t i = 0; i < d.Lq; ++i) {
        ASSERT_EQ(answer.entropy.get((b * d.Lq + d.Lq - 1 - i) * d.H + h), expected.entropy.get({b, h, i}));
        for (int64_t n = 0; n < sets; ++n)
          ASSERT_EQ(answer.bands.get(((b * d.Lq + i) * sets + n) * d.H + h), expected.bands.get({b, h, i, n}));
        for (int64_t n = 0; n < question.largest; ++n)
          ASSERT_EQ(answer.top_key.get(((n * d.Lq + i) * d.H + h) * d.B + b), expected.top_key.get({b, h, i, n}));
      }
      for (int64_t j = 0; j < d.Lk; ++j)
        ASSERT_EQ(answer.column_mass.get((b * d.Lk + j) * d.H + h), expected.column_mass.get({b, h, j}));
    }
}

/// A key that is masked is not read; a row of NaN is NaN and nobody else is.
TEST(Statistics, NaNStaysWhereItIs) {
  for_each_isa([](const std::string& isa) {
    Case c = make_case(feature_named("none"), {.B = 1, .H = 1, .Hk = 1, .Lq = 60, .Lk = 70, .D = 8, .Dv = 8},
                       DType::float32, 84);
    c.key_length = {69};
    Question question = make_question(c, 85);
    const Answer clean = ask(question);
    for (int64_t d = 0; d < 8; ++d) question.c.k.set({0, 0, 69, d}, kNaN);
    EXPECT_TRUE(ask(question) == clean) << "a key beyond the length counts on " << isa;
    question.c.q.set({0, 0, 50, 3}, kNaN);
    const Answer one = ask(question);
    for (int64_t i = 0; i < 60; ++i) {
      EXPECT_EQ(std::isnan(one.entropy.get(i)), i == 50) << isa;
      EXPECT_EQ(std::isnan(one.maximum.get(i)), i == 50) << isa;
    }
    EXPECT_EQ(one.position.get(50), -1) << isa;
  });
}

/// A score of -infinity is a weight of 0, and no lane without a row makes NaN of the key.
TEST(Statistics, InfiniteKeys) {
  for_each_isa([](const std::string& isa) {
    Case c = make_case(feature_named("none"), {.B = 1, .H = 1, .Hk = 1, .Lq = 50, .Lk = 70, .D = 8, .Dv = 8},
                       DType::float32, 88);
    for (int64_t i = 0; i < 50; ++i) c.q.set({0, 0, i, 0}, 1);
    c.k.set({0, 0, 5, 0}, -kInf);
    const Answer answer = ask(make_question(c, 89));
    EXPECT_EQ(answer.column_mass.get(5), 0) << isa;
    for (int64_t i = 0; i < 50; ++i) EXPECT_TRUE(answer.entropy.get(i) > 0) << isa;
  });
}

TEST(StatisticsErrors, AnLseOfOtherKeysIsRefused) {
  for_each_isa([](const std::string& isa) {
    for (const DType dtype : {DType::float32, DType::float64, DType::bfloat16}) {
      Case c =
          make_case(feature_named("none"), {.B = 2, .H = 2, .Hk = 1, .Lq = 60, .Lk = 70, .D = 8, .Dv = 8}, dtype, 86);
      const Array<3> lse = run(c, false).lse;
      Array<3> sum(lse.dtype(), lse.size());
      const auto say = [&](double by) {
        Array<3> wrong = lse;
        for (int64_t i : {41, 7}) wrong.set({1, 0, i}, std::isinf(by) ? by : lse.get({1, 0, i}) + by);
        AttentionStatistics wanted;
        wanted.rows.sum = sum.view();
        return error_of([&] { attention_statistics(c.q.view(), c.k.view(), wrong.view(), wanted, c.options()); });
      };
      for (double by : {0.01, -0.01, 5.0, -200.0, -1e6, -kInf})
        EXPECT_NE(say(by).find("the weights of row [1, 0, 7] add up to "), std::string::npos) << say(by) << by << isa;
      EXPECT_EQ(say(0), "") << isa;
      c.sink = {1, 0};  // that lse has no sink
      EXPECT_NE(say(0).find("the weights of row [0, 0, 0]"), std::string::npos) << isa;
    }
  });
}

/// Rounding alone is no error, however large the scores.
TEST(StatisticsErrors, LargeScoresAreNoError) {
  for_each_isa([](const std::string& isa) {
    for (const double scale : {10.0, 1000.0, 1e5}) {
      const Case c = make_case(feature_named("sink"), {.B = 1, .H = 2, .Hk = 1, .Lq = 60, .Lk = 300, .D = 64, .Dv = 8},
                               DType::float32, 87, scale);
      EXPECT_EQ(error_of([&] { ask(make_question(c, 88)); }), "") << scale << " on " << isa;
    }
  });
}

/// Products that cancel have errors that are large beside their score, and an exact lse has not.
TEST(StatisticsErrors, ScoresThatCancelAreNoError) {
  for_each_isa([](const std::string& isa) {
    Case c = make_case(feature_named("none"), {.B = 1, .H = 1, .Hk = 1, .Lq = 60, .Lk = 20, .D = 64, .Dv = 8},
                       DType::float32, 90, 1e5);
    for (int64_t i = 0; i < 60; ++i)
      for (int64_t d = 0; d < 64; d += 2) c.q.set({0, 0, i, d + 1}, c.q.get({0, 0, i, d}));
    for (int64_t j = 0; j < 20; ++j)
      for (int64_t d = 0; d < 64; d += 2)
        c.k.set({0, 0, j, d + 1}, 1e-5 * c.k.get({0, 0, j, d + 1}) - c.k.get({0, 0, j, d}));
    const Array<3> lse = run_reference(c, false).lse.as(DType::float32);
    Array<3> sum(DType::float32, lse.size());
    AttentionStatistics wanted;
    wanted.rows.sum = sum.view();
    EXPECT_EQ(error_of([&] { attention_statistics(c.q.view(), c.k.view(), lse.view(), wanted, c.options()); }), "")
        << isa;
  });
}

/// Products that are rounded more, as matrix tiles may do with many rows, give P that an exact lse fits less well.
TEST(StatisticsErrors, RoundedProductsAreNoError) {
  for_each_isa([](const std::string& isa) {
    for (const Float32Precision precision : {Float32Precision::high, Float32Precision::fast}) {
      Case c = make_case(feature_named("none"), {.B = 1, .H = 2, .Hk = 1, .Lq = 150, .Lk = 20, .D = 64, .Dv = 8},
                         DType::float32, 87, 4);
      const Array<3> exact = run(c, false).lse;
      c.scalars.float32_precision = precision;
      Array<3> sum(DType::float32, exact.size());
      AttentionStatistics wanted;
      wanted.rows.sum = sum.view();
      for (const Array<3>& lse : {exact, run(c, false).lse})
        EXPECT_EQ(error_of([&] { attention_statistics(c.q.view(), c.k.view(), lse.view(), wanted, c.options()); }), "")
            << isa;
    }
  });
}

TEST(StatisticsErrors, OfPages) {
  KVCache cache({.kv_heads = 1, .head_dim = 8, .page_size = 16});
  const Case c =
      make_case(feature_named("none"), {.H = 2, .Hk = 1, .Lq = 3, .Lk = 20, .D = 8, .Dv = 8}, DType::float32, 94);
  const std::vector<int64_t> sequences = {cache.add()}, starts = {0, 3};
  cache.append(sequences[0], c.k.view(), c.v.view());
  Array<3> sum(DType::float32, {1, 2, 3}), mass(DType::float32, {1, 2, 21}), lse(DType::float32, {1, 2, 3});
  Array<4> mask(DType::boolean, {1, 1, 1, 20});
  AttentionStatistics wanted;
  wanted.rows.sum = sum.view();
  AttentionOptions options;
  const auto say = [&](const std::vector<int64_t>& ids) {
    return error_of([&] { cache.statistics(ids, starts, c.q.view(), lse.view(), wanted, options); });
  };
  EXPECT_NE(say({5}).find("[KVCache::statistics] the cache has no sequence 5"), std::string::npos) << say({5});
  EXPECT_NE(say(sequences).find("the weights of row [0, 0, 0] add up to "), std::string::npos) << say(sequences);
  wanted.column_mass = mass.view();
  EXPECT_NE(say(sequences).find("column_mass has size [1, 2, 21], must be [1, 2, 20]"), std::string::npos);
  options.mask = mask.view();
  EXPECT_NE(say(sequences).find("mask, segment ids, blocks"), std::string::npos) << say(sequences);
}

TEST(StatisticsErrors, SayWhatIsWrong) {
  const Question question = large_questions()[0];
  const Array<3> lse = run(question.c, false).lse;
  const auto say = [&](const std::function<void(AttentionStatistics&, AttentionOptions&)>& spoil) {
    Answer answer(question, DType::float32);
    AttentionStatistics wanted = answer.wanted(question);
    AttentionOptions options = question.c.options();
    spoil(wanted, options);
    return error_of(
        [&] { attention_statistics(question.c.q.view(), question.c.k.view(), lse.view(), wanted, options); });
  };
  const auto expect = [&](const char* reason,
                          const std::function<void(AttentionStatistics&, AttentionOptions&)>& spoil) {
    EXPECT_NE(say(spoil).find(reason), std::string::npos) << say(spoil);
  };
  using S = AttentionStatistics;
  using O = AttentionOptions;
  const KeyBand backward = {3, 2};
  Array<3> other(DType::float64, {1, 1, 700}), factor(DType::float32, {1, 1, 530});
  factor.set(5, -1);
  expect("rows.entropy is float64, must be float32", [&](S& s, O&) { s.rows.entropy = other.view(); });
  expect("rows.sum has size [1, 1, 530], must be [1, 1, 700]", [](S& s, O&) { s.rows.sum = s.column_mass; });
  expect("argmax_key is float32, must be int64", [](S& s, O&) { s.argmax_key = s.rows.sum; });
  expect("rows.sum overlaps rows.entropy", [](S& s, O&) { s.rows.entropy = s.rows.sum; });
  expect("rows.entropy overlaps rows.bands", [](S& s, O&) {  // of which it is the fourth
    s.rows.entropy.data = static_cast<float*>(s.rows.bands.data) + 3;
    std::copy_n(s.rows.bands.stride.begin(), 3, s.rows.entropy.stride.begin());
  });
  expect("sets.bands[0] is 3 to 2", [&](S& s, O&) {
    s.sets.bands = {&backward, 1};
    s.rows.bands = {};
    s.means.bands = {};
  });
  expect("alignment must be given", [](S&, O& o) { o.alignment = Alignment::unspecified; });
  expect("there are no sets.labels", [](S& s, O&) { s.sets.labels = {}; });
  expect("sets.labels[0, ", [](S& s, O&) { s.rows.labels.size[3] = s.means.labels.size[2] = 1; });
  expect("same_token is requested", [](S& s, O&) { s.sets.query_token_ids = s.sets.key_token_ids = {}; });
  expect("query_token_ids and key_token_ids must be given together", [](S& s, O&) { s.sets.query_token_ids = {}; });
  expect("picture: the queries from 600, 101 of them", [](S& s, O&) {
    s.picture.first_query = 600;
    s.picture.queries = 101;
  });
  expect("rows of cells, must be at most the 1 queries", [](S& s, O&) { s.picture.first_query = 699; });
  expect("key_factor[0, 0, 5] is -1", [&](S& s, O&) { s.key_factor = factor.view(); });
  expect("at most 256", [](S& s, O&) {
    s.top_key.size[3] = s.top_weight.size[3] = 300;
    s.top_key.stride = s.top_weight.stride = {0, 0, 0, 0};
  });
}

}  // namespace
}  // namespace attn::test
