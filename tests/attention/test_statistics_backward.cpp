// attention_statistics_backward(): the oracle by finite differences, every kernel by the oracle, and its errors.
#include <gtest/gtest.h>

#include "support/checks.h"
#include "support/errors.h"
#include "support/statistics.h"

namespace attn::test {
namespace {

/// A loss that is linear in every statistic of rows, with random factors.
struct Loss {
  Array<3> sum, entropy, participation, maximum, distance, same_token;
  Array<4> bands, labels;

  Loss(const Question& question, uint64_t seed) {
    Random random(seed);
    const Dims& d = question.c.dims;
    const DType dtype = lse_type(question.c.dtype);
    for (Array<3>* row : {&sum, &entropy, &participation, &maximum, &distance, &same_token})
      *row = Array<3>(dtype, {d.B, d.H, d.Lq}).fill_normal(random);
    // Of the same size as the others where keys are far and many.
    for (int64_t n = 0; n < distance.count(); ++n) distance.set(n, distance.get(n) / static_cast<double>(d.Lk));
    for (int64_t n = 0; n < distance.count(); ++n)
      participation.set(n, participation.get(n) / static_cast<double>(d.Lk));
    bands = Array<4>(dtype, {d.B, d.H, d.Lq, static_cast<int64_t>(question.bands.size())}).fill_normal(random);
    labels = Array<4>(dtype, {d.B, d.H, d.Lq, question.label_sets}).fill_normal(random);
  }

  RowStatisticsGradients rows() const {
    return {.sum = sum.view(),
            .entropy = entropy.view(),
            .participation = participation.view(),
            .maximum = maximum.view(),
            .distance = distance.view(),
            .same_token = same_token.view(),
            .bands = bands.view(),
            .labels = labels.view()};
  }

  double value(const Answer& answer) const {
    double total = 0;
    const auto add = [&](const auto& factors, const auto& statistic) {
      for (int64_t n = 0; n < factors.count(); ++n) total += factors.get(n) * statistic.get(n);
    };
    add(sum, answer.sum), add(entropy, answer.entropy), add(participation, answer.participation);
    add(maximum, answer.maximum), add(distance, answer.distance), add(same_token, answer.same_token);
    add(bands, answer.bands), add(labels, answer.labels);
    return total;
  }
};

/// Gradients in the type of lse, all NaN until they are written.
Results empty_gradients(const Case& c, DType dtype) {
  Results r;
  r.dq = Array<4>(dtype, c.q.size()).fill_with_nan();
  r.dk = Array<4>(dtype, c.k.size()).fill_with_nan();
  if (c.bias.given()) r.dbias = Array<4>(dtype, c.bias.size()).fill_with_nan();
  if (!c.sink.empty()) r.dsink = Array<1>(dtype, {c.dims.H}).fill_with_nan();
  return r;
}

AttentionGradients wanted_of(Results& r) {
  AttentionGradients gradients = {.dq = r.dq.view(), .dk = r.dk.view()};
  if (r.dbias.given()) gradients.dbias = r.dbias.view();
  if (r.dsink.given()) gradients.dsink = r.dsink.view();
  return gradients;
}

/// The library, on its own statistics.
Results differentiate(const Question& question, const Loss& loss) {
  const Case& c = question.c;
  Answer answer = ask(question);
  Results r = empty_gradients(c, lse_type(c.dtype));
  attention_statistics_backward(c.q.view(), c.k.view(), run(c, false).lse.view(), answer.wanted(question), loss.rows(),
                                wanted_of(r), c.options());
  return r;
}

/// The oracle.
Results differentiate_reference(const Question& question, const Loss& loss) {
  const Case& c = question.c;
  Answer answer = ask_reference(question);
  Results r = empty_gradients(c, DType::float64);
  const Array<4> q = c.q.as(DType::float64), k = c.k.as(DType::float64);
  reference::attention_statistics_backward(q.view(), k.view(), run_reference(c, false).lse.view(),
                                           answer.wanted(question), loss.rows(), wanted_of(r), c.options());
  return r;
}

Question question_of(const Case& c, uint64_t seed) {
  Question question = make_question(c, seed);
  question.c.scalars.dropout = 0;  // statistics do not know it
  return question;
}

// --------------------------------------------------------------------------------------------------------- differences

/// Gradients against central differences of the loss, at about `samples` elements of each input.
void check_differences(Question question, const Loss& loss, const Results& gradients,
                       const std::function<Answer(const Question&)>& engine, int64_t samples) {
  Case& c = question.c;
  const auto slope = [&](const auto& set, double value, double step) {
    set(value + step);
    const double above = loss.value(engine(question));
    set(value - step);
    const double below = loss.value(engine(question));
    set(value);
    return (above - below) / (2 * step);
  };
  const auto check = [&](const char* what, Array<4>& input, const Array<4>& gradient) {
    const int64_t stride = std::max<int64_t>(1, input.count() / samples);
    for (auto n = static_cast<int64_t>(run_seed() % stride); n < input.count(); n += stride) {
      if (std::isinf(input.get(n))) continue;  // a forbidding bias has no neighbourhood
      const double expected = slope([&](double x) { input.set(n, x); }, input.get(n), kDifferenceStep);
      EXPECT_LE(std::abs(gradient.get(n) - expected), difference_bound(expected))
          << what << "[" << n << "] is " << gradient.get(n) << ", not " << expected << ", " << c.name();
    }
  };
  check("dq", c.q, gradients.dq);
  check("dk", c.k, gradients.dk);
  if (c.bias.given()) check("dbias", c.bias, gradients.dbias);
  for (size_t h = 0; h < c.sink.size(); ++h) {
    c.sink[h] = std::round(c.sink[h] * 64) / 64;  // float32 holds the steps
    const Results again = differentiate_reference(question, loss);
    const auto set = [&](double x) { c.sink[h] = static_cast<float>(x); };
    const double expected = slope(set, c.sink[h], kDifferenceStep);
    EXPECT_LE(std::abs(again.dsink.get(h) - expected), difference_bound(expected)) << "dsink of " << c.name();
  }
}

/// The oracle, and the kernels in float64.
TEST(StatisticsGradcheck, EveryOption) {
  const int64_t samples = by_effort(3, 6, 40);
  const Dims dims = {.B = 2, .H = 4, .Hk = 2, .Lq = 9, .Lk = 17, .D = 5, .Dv = 3};
  sample(feature_count(), {.quick = feature_count(), .normal = feature_count(), .seconds = 60}, [&](int64_t n) {
    const Question question = question_of(make_case(features()[n], dims, DType::float64, 500 + n), 501);
    const Loss loss(question, 502);
    check_differences(question, loss, differentiate_reference(question, loss), ask_reference, samples);
    check_differences(question, loss, differentiate(question, loss), ask, samples);
  });
}

// -------------------------------------------------------------------------------------------------------------- oracle

/// Holds gradients against the oracle's: each is a sum of terms, known to the sum of their magnitudes.
class GradientComparison {
 public:
  GradientComparison(const Question& question, const Loss& loss)
      : c_(question.c),
        loss_(loss),
        expected_(differentiate_reference(question, loss)),
        magnitude_(empty_gradients(c_, DType::float64)) {
    const Dims& d = c_.dims;
    for (auto* x : {&magnitude_.dq, &magnitude_.dk, &magnitude_.dbias}) x->fill(0);
    magnitude_.dsink.fill(0);
    const Array<4> q = c_.q.as(DType::float64), k = c_.k.as(DType::float64);
    const Array<3> lse = run_reference(c_, false).lse;
    Array<4> weights(DType::float64, {d.B, d.H, d.Lq, d.Lk});
    reference::attention_weights(q.view(), k.view(), lse.view(), weights.view(), 0, 0, c_.options());
    const Answer answer = ask_reference(question);
    for (int64_t b = 0; b < d.B; ++b)
      for (int64_t h = 0; h < d.H; ++h)
        for (int64_t i = 0; i < d.Lq; ++i) add_row({b, h, i}, answer, weights);
    error_ = statistic_gradient_bound(max_abs(lse.values()), std::max(d.Lk, d.Lq * d.H), c_.dtype);
  }

  void expect(const Results& actual, const std::string& isa) const {
    near("dq", actual.dq, expected_.dq, magnitude_.dq, isa);
    near("dk", actual.dk, expected_.dk, magnitude_.dk, isa);
    near("dbias", actual.dbias, expected_.dbias, magnitude_.dbias, isa);
    near("dsink", actual.dsink, expected_.dsink, magnitude_.dsink, isa);
  }

 private:
  /// |g_ij - delta_i| but for ln P_ij, at most.
  double slope(const Shape<3>& at, const Answer& answer) const {
    const int64_t row = loss_.sum.index(at), bands = loss_.bands.size()[3], sets = loss_.labels.size()[3];
    const auto of = [&](const Array<3>& factor) { return std::abs(factor.get(row)); };
    const double places = static_cast<double>(c_.dims.Lk + c_.dims.Lq), effective = answer.participation.get(row);
    double total = 2 * (of(loss_.sum) + of(loss_.maximum) + of(loss_.same_token) + places * of(loss_.distance));
    total += of(loss_.entropy) * (2 + answer.entropy.get(row));
    total += of(loss_.participation) * 2 * effective * (1 + effective * answer.maximum.get(row));
    for (int64_t n = 0; n < bands; ++n) total += 2 * std::abs(loss_.bands.get(row * bands + n));
    for (int64_t n = 0; n < sets; ++n) total += 2 * std::abs(loss_.labels.get(row * sets + n));
    return total;
  }

  void add_row(const Shape<3>& at, const Answer& answer, const Array<4>& weights) {
    const auto [b, h, i] = at;
    const Dims& d = c_.dims;
    const double scale = std::abs(c_.scalars.scale.value_or(1 / std::sqrt(static_cast<double>(d.D))));
    const double rest = slope(at, answer), entropy = std::abs(loss_.entropy.get(loss_.entropy.index(at)));
    if (!c_.sink.empty()) magnitude_.dsink.set(h, magnitude_.dsink.get(h) + rest);  // the sum of P is not exact
    for (int64_t j = 0; j < d.Lk; ++j) {
      const double P = weights.get({b, h, i, j});
      if (P == 0) continue;
      const double pair = (P + kLostWeights) * (rest + entropy * std::abs(std::log(P)));
      for (int64_t n = 0; n < d.D; ++n) {
        const Shape<4> query = {b, h, i, n}, key = {b, h * d.Hk / d.H, j, n};
        add(magnitude_.dq, query, pair * scale * std::abs(c_.k.get(key)));
        add(magnitude_.dk, key, pair * scale * std::abs(c_.q.get(query)));
      }
      const Shape<4>& size = c_.bias.size();
      const auto along = [&](int axis, int64_t index) { return size[axis] == 1 ? 0 : index; };
      if (c_.bias.given()) add(magnitude_.dbias, {along(0, b), along(1, h), along(2, i), along(3, j)}, pair);
      if (!c_.sink.empty()) magnitude_.dsink.set(h, magnitude_.dsink.get(h) + pair);
    }
  }
  static void add(Array<4>& to, const Shape<4>& at, double x) { to.set(at, to.get(at) + x); }

  template <int Rank>
  void near(const char* what, const Array<Rank>& actual, const Array<Rank>& expected, const Array<Rank>& magnitude,
            const std::string& isa) const {
    ASSERT_EQ(actual.count(), expected.count());
    for (int64_t n = 0; n < actual.count(); ++n)
      ASSERT_LE(std::abs(actual.get(n) - expected.get(n)), error_ * magnitude.get(n))
          << what << "[" << n << "] is " << actual.get(n) << ", not " << expected.get(n) << ", " << c_.name() << " on "
          << isa;
  }

  const Case& c_;
  const Loss& loss_;
  const Results expected_;
  Results magnitude_;
  double error_ = 0;
};

TEST(StatisticsBackward, IsTheOraclesForEveryOption) {
  sample_every_option(600, [](const Case& c) {
    const Question question = question_of(c, 601);
    const Loss loss(question, 602);
    const GradientComparison comparison(question, loss);
    for_each_isa([&](const std::string& isa) { comparison.expect(differentiate(question, loss), isa); });
  });
}

/// Several slabs of rows, blocks of keys and panels.
std::vector<Question> large_questions() {
  std::vector<Question> questions;
  const auto add = [&](const char* feature, const Dims& dims, DType dtype) {
    questions.push_back(question_of(make_case(feature_named(feature), dims, dtype, 610), 611));
  };
  add("none", {.B = 1, .H = 1, .Hk = 1, .Lq = 1100, .Lk = 300, .D = 24, .Dv = 4}, DType::float32);
  add("causal top_left", {.B = 1, .H = 2, .Hk = 1, .Lq = 700, .Lk = 700, .D = 16, .Dv = 4}, DType::bfloat16);
  add("packed causal", {.B = 1, .H = 2, .Hk = 1, .Lq = 320, .Lk = 320, .D = 16, .Dv = 4}, DType::float16);
  add("bias keys", {.B = 2, .H = 2, .Hk = 1, .Lq = 60, .Lk = 300, .D = 9, .Dv = 4}, DType::float64);
  return questions;
}

TEST(StatisticsBackward, OfManySlabs) {
  for (const Question& question : large_questions()) {
    const Loss loss(question, 612);
    const GradientComparison comparison(question, loss);
    for_each_isa([&](const std::string& isa) { comparison.expect(differentiate(question, loss), isa); });
  }
}

TEST(StatisticsBackward, IsTheSameBitsForAnyNumberOfThreads) {
  for (const Question& question : large_questions()) {
    const Loss loss(question, 613);
    for_each_isa([&](const std::string& isa) {
      set_thread_count(1);
      const Results serial = differentiate(question, loss);
      for (int threads : {2, 3, 8}) {
        set_thread_count(threads);
        EXPECT_TRUE(same_results(differentiate(question, loss), serial))
            << question.c.name() << " with " << threads << " threads on " << isa;
      }
      set_thread_count(0);
    });
  }
}

/// Without a sink every row sums up to 1, whatever the scores: nothing pulls at them. And what is not asked for is not
/// written, what is not given counts nothing.
TEST(StatisticsBackward, OfSumsAlone) {
  for_each_isa([](const std::string& isa) {
    const Question question = question_of(make_case(feature_named("none"), small_dims()[0], DType::float32, 620), 621);
    const Case& c = question.c;
    const Loss loss(question, 622);
    const Array<3> lse = run(c, false).lse;
    AttentionStatistics nothing;
    Results r = empty_gradients(c, DType::float32);
    AttentionGradients wanted = wanted_of(r);
    attention_statistics_backward(c.q.view(), c.k.view(), lse.view(), nothing, {.sum = loss.sum.view()}, wanted,
                                  c.options());
    EXPECT_EQ(max_abs(r.dq.values()) + max_abs(r.dk.values()), 0) << isa;
    Results one = empty_gradients(c, DType::float32);
    wanted.dq = {};
    wanted.dk = one.dk.view();
    attention_statistics_backward(c.q.view(), c.k.view(), lse.view(), nothing, {}, wanted, c.options());
    EXPECT_TRUE(std::isnan(one.dq.get(0)) && same_bits(one.dk, r.dk)) << isa;
  });
}

/// One loss alone, of every kind: what the terms of another would hide.
TEST(StatisticsBackward, OneStatisticAlone) {
  const Question question =
      question_of(make_case(feature_named("sink window"), small_dims()[1], DType::float32, 630), 631);
  const Loss all(question, 632);
  const auto alone = [&](const auto& choose) {
    Loss loss = all;
    for (auto* row : {&loss.sum, &loss.entropy, &loss.participation, &loss.maximum, &loss.distance, &loss.same_token})
      row->fill(0);
    loss.bands.fill(0);
    loss.labels.fill(0);
    choose(loss);
    const GradientComparison comparison(question, loss);
    for_each_isa([&](const std::string& isa) { comparison.expect(differentiate(question, loss), isa); });
  };
  alone([&](Loss& l) { l.sum = all.sum; });
  alone([&](Loss& l) { l.entropy = all.entropy; });
  alone([&](Loss& l) { l.participation = all.participation; });
  alone([&](Loss& l) { l.maximum = all.maximum; });
  alone([&](Loss& l) { l.distance = all.distance; });
  alone([&](Loss& l) { l.same_token = all.same_token; });
  alone([&](Loss& l) { l.bands = all.bands; });
  alone([&](Loss& l) { l.labels = all.labels; });
}

/// A row that sees nothing pulls at nothing; a masked key is not read, and has no NaN of a query that is one.
TEST(StatisticsBackward, RowsWithoutKeysAndNaN) {
  for_each_isa([](const std::string& isa) {
    Case c = make_case(feature_named("none"), {.B = 2, .H = 1, .Hk = 1, .Lq = 60, .Lk = 70, .D = 8, .Dv = 8},
                       DType::float32, 640);
    c.key_length = {69, 0};
    Question question = question_of(c, 641);
    const Loss loss(question, 642);
    const Results clean = differentiate(question, loss);
    for (int64_t n = 60 * 8; n < 2 * 60 * 8; ++n) ASSERT_EQ(clean.dq.get(n), 0) << isa;
    for (int64_t d = 0; d < 8; ++d) question.c.k.set({0, 0, 69, d}, kNaN);
    EXPECT_TRUE(same_results(differentiate(question, loss), clean)) << "a key beyond the length counts on " << isa;
    question.c.q.set({0, 0, 50, 3}, kNaN);
    const Results one = differentiate(question, loss);
    for (int64_t i = 0; i < 60; ++i) EXPECT_EQ(std::isnan(one.dq.get({0, 0, i, 0})), i == 50) << isa;
    question.c.scalars.causal = true;
    const Results causal = differentiate(question, loss);
    for (int64_t j = 0; j < 69; ++j) EXPECT_EQ(std::isnan(causal.dk.get({0, 0, j, 0})), j <= 50) << j << " on " << isa;
  });
}

TEST(StatisticsBackwardErrors, SayWhatIsWrong) {
  const Question question = question_of(make_case(feature_named("none"), small_dims()[0], DType::float32, 650), 651);
  const Case& c = question.c;
  const Array<3> lse = run(c, false).lse;
  const Loss loss(question, 652);
  const auto say =
      [&](const std::function<void(AttentionStatistics&, RowStatisticsGradients&, AttentionGradients&)>& spoil) {
        Answer answer(question, DType::float32);
        Results r = empty_gradients(c, DType::float32);
        AttentionStatistics statistics = answer.wanted(question);
        RowStatisticsGradients drows = loss.rows();
        AttentionGradients gradients = wanted_of(r);
        spoil(statistics, drows, gradients);
        return error_of([&] {
          attention_statistics_backward(c.q.view(), c.k.view(), lse.view(), statistics, drows, gradients, c.options());
        });
      };
  using S = AttentionStatistics;
  using R = RowStatisticsGradients;
  using G = AttentionGradients;
  EXPECT_EQ(say([](S&, R&, G&) {}), "");
  const auto expect = [&](const char* reason, const std::function<void(S&, R&, G&)>& spoil) {
    EXPECT_NE(say(spoil).find(reason), std::string::npos) << say(spoil);
  };
  expect("[attention_statistics_backward]", [](S&, R& r, G&) { r.sum.size[2] += 1; });
  expect("drows.sum has size", [](S&, R& r, G&) { r.sum.size[2] += 1; });
  expect("drows.entropy is given, but not statistics.entropy", [](S& s, R&, G&) { s.rows.entropy = {}; });
  expect("drows.maximum is given, but not", [](S& s, R&, G&) { s.argmax_key = {}; });
  expect("drows.labels has size", [](S&, R& r, G&) { r.labels.size[3] -= 1; });
  expect("dv is requested, but there are no values", [](S&, R&, G& g) { g.dv = g.dk; });
  expect("dsink is requested, but there is no sink",
         [](S&, R&, G& g) { g.dsink = View<1>(g.dq.data, DType::float32, {1}); });
  expect("dq overlaps drows.entropy", [](S&, R& r, G& g) { g.dq.data = const_cast<void*>(r.entropy.data); });
}

}  // namespace
}  // namespace attn::test
