// heads: measures of small matrices that are known, and what they refuse. python/tests/test_heads.py holds all of them
// against NumPy on whole matrices.
#include "attn/heads.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <set>

#include "support/errors.h"
#include "support/pictures.h"
#include "support/tolerance.h"

namespace attn::test {
namespace {

using heads::Measures;
using heads::TokenKind;

/// Attention of one head whose rows are the given weights: keys are unit vectors.
struct Known {
  int64_t n;
  Tensor<double, 4> q, k;
  Tensor<double, 3> lse;

  Known(int64_t n_, const Values& weights) : n(n_), q({1, 1, n_, n_}), k({1, 1, n_, n_}), lse({1, 1, n_}) {
    for (int64_t i = 0; i < n * n; ++i)  // exp(-2000) is 0
      q[i] = (weights[i] > 0 ? std::log(weights[i]) : -2000) * std::sqrt(static_cast<double>(n));
    for (int64_t i = 0; i < n; ++i) k[i * n + i] = 1;
    Tensor<double, 4> out(q.size());
    attention(q, k, k, out, lse);
  }
  RecordedAttention layer() const { return {"layer", q, k, lse, {}}; }
};

struct Tokens {
  Tensor<int64_t, 2> ids, kinds;

  Tokens(const Values& ids_, const Values& kinds_)
      : ids({1, static_cast<int64_t>(ids_.size())}), kinds({1, static_cast<int64_t>(kinds_.size())}) {
    for (size_t n = 0; n < ids_.size(); ++n) ids[n] = static_cast<int64_t>(ids_[n]);
    for (size_t n = 0; n < kinds_.size(); ++n) kinds[n] = static_cast<int64_t>(kinds_[n]);
  }
  operator heads::Texts() const { return {ids, kinds}; }
};

double value_of(const heads::HeadValues& head, const std::string& name) {
  for (size_t m = 0; m < heads::measures().size(); ++m)
    if (heads::measures()[m].name == name) return head.values[m];
  ADD_FAILURE() << name;
  return kNaN;
}

TEST(HeadMeasures, ByHand) {
  // [CLS] a a . [SEP] [SEP]: the second a looks at the first, at what is after that, itself, and at its own next.
  const Known known(6, {1, 0, 0, 0, 0, 0, .5, .5, 0, 0, 0, 0, 0, .25, .5, .25, 0, 0,
                        0, 0, 0, 1, 0, 0, 0,  0,  0, 0, 1, 0, 0, 0,   0,  .5,  0, .5});
  const Tokens tokens({7, 5, 5, 9, 3, 3}, {2, 0, 0, 1, 3, 3});
  Measures measures;
  measures.add(std::vector{known.layer()}, tokens);
  const heads::HeadValues head = measures.table().at(0);
  const std::pair<const char*, double> expected[] = {{"previous", (.5 + .25) / 5},
                                                     {"next", .25 / 5},
                                                     {"self", (1 + .5 + .5 + 1 + 1 + .5) / 6},
                                                     {"first", 1.5 / 6},
                                                     {"first_four", (1 + 1 + 1 + 1 + 0 + .5) / 6},
                                                     {"sink", 0},
                                                     {"start", 1.5 / 6},
                                                     {"separator", 1.5 / 6},
                                                     {"separator_from_others", 0},
                                                     {"separator_from_separators", 1.5 / 2},
                                                     {"punctuation", (.25 + 1 + .5) / 6},
                                                     {"entropy", 3.5 * std::log(2) / 6},
                                                     {"entropy_of_first", 0},
                                                     {"entropy_uniform", std::log(6)},
                                                     {"distance", (.5 + .25 + .25 + 1) / 6},
                                                     {"confidence", (.5 + .5 + 1) / 3},
                                                     {"positional", 2. / 3},
                                                     {"offset", 0},
                                                     {"duplicate", .25},
                                                     {"induction", .5}};
  for (const auto& [name, value] : expected) EXPECT_TRUE(close_float64({value_of(head, name)}, {value})) << name;
  EXPECT_EQ(heads::roles(head), (std::vector<std::string>{"self"}));
}

/// Uniform attention is over the keys that the head's own lists allow.
TEST(HeadMeasures, ListsOfEachHead) {
  const Tensor<double, 4> q({1, 2, 6, 1}), k({1, 1, 6, 1});
  Tensor<double, 4> out(q.size());
  Tensor<double, 3> lse({1, 2, 6});
  std::vector<BlockLists> heads;
  heads.push_back(layouts::block_diagonal(6, 2));
  heads.push_back(layouts::local(6, 2, {-1, -1}));
  const BlockLists lists = layouts::by_head(heads);
  attention(q, k, k, out, lse, {.blocks = lists});
  Measures measures;
  measures.add(std::vector{RecordedAttention{"layer", q, k, lse, {.blocks = lists}}},
               Tokens({7, 5, 5, 9, 3, 3}, {2, 0, 0, 1, 3, 3}));
  const auto table = measures.table();
  EXPECT_TRUE(close_float64({value_of(table[0], "entropy_uniform"), value_of(table[1], "entropy_uniform")},
                            {std::log(2), std::log(6)}));
}

TEST(HeadMeasures, RefusesWhatIsWrongAndKeepsWhatWas) {
  const Known known(2, {1, 0, .5, .5}), other(3, {1, 0, 0, 1, 0, 0, 1, 0, 0});
  const Tokens tokens({1, 2}, {0, 0});
  Measures measures;
  const auto refused = [&](const std::vector<RecordedAttention>& layers, const heads::Texts& texts) {
    return error_of([&] { measures.add(layers, texts); });
  };
  EXPECT_EQ(error_of([&] { measures.table(); }), "[head_measures] no text was added");
  EXPECT_EQ(refused({}, tokens), "[head_measures] there must be at least one layer");
  EXPECT_EQ(refused({known.layer()}, {}),
            "[head_measures] ids are float32 [0, 0], must be int32 or int64 [1, 2]; ids must have data");
  EXPECT_EQ(refused({known.layer(), other.layer()}, tokens),
            "[head_measures] layers[1]: must have as many queries and keys as layers[0]");
  EXPECT_EQ(refused({known.layer()}, Tokens({1, 2}, {-1, 0})),
            "[head_measures] kinds[0, 0] is padding, which must be after the text");
  EXPECT_EQ(refused({known.layer()}, Tokens({1, 2}, {0, 4})), "[head_measures] kinds[0, 1] is 4, must be from -1 to 3");
  RecordedAttention packed = known.layer();
  const int64_t starts[] = {0, 1, 2};
  packed.options.cu_seqlens_q = packed.options.cu_seqlens_k = starts;
  EXPECT_EQ(refused({packed}, tokens), "[head_measures] layers[0]: packed texts must be given one by one");
  RecordedAttention empty;
  EXPECT_NE(refused({empty}, tokens).find("q, k and lse must have data"), std::string::npos);

  measures.add(std::vector{known.layer()}, tokens);
  const std::vector<double> before = measures.table()[0].values;
  RecordedAttention wrong = known.layer();
  Tensor<double, 3> lse = known.lse;
  lse[1] += 1;
  wrong.lse = lse;
  EXPECT_NE(refused({wrong}, tokens).find("add up to"), std::string::npos);
  EXPECT_NE(refused({known.layer(), known.layer()}, tokens).find("must have as many heads as in the texts before"),
            std::string::npos);
  EXPECT_EQ(measures.texts(), 1);
  for (size_t m = 0; m < before.size(); ++m) EXPECT_EQ(distance(measures.table()[0].values[m], before[m]) > 0, false);
  const Measures moved = std::move(measures);
  EXPECT_EQ(refused({known.layer()}, tokens), "[head_measures] these measures have been moved from");
}

TEST(HeadMeasures, TextsOfPaddingAloneCountNothing) {
  const Known known(2, {1, 0, .5, .5});
  Measures measures;
  measures.add(std::vector{known.layer()}, Tokens({1, 2}, {-1, -1}));
  EXPECT_EQ(measures.texts(), 0);
  EXPECT_EQ(error_of([&] { measures.table(); }), "[head_measures] no text was added");
}

TEST(HeadMeasures, RepeatedTokens) {
  const std::vector<int64_t> tokens = heads::repeated_tokens(3, 2, 4, 7, 1, 9);
  EXPECT_EQ(tokens.size(), 7u);
  EXPECT_EQ(tokens[0], 1);
  EXPECT_EQ(std::set<int64_t>(tokens.begin() + 1, tokens.begin() + 4), (std::set<int64_t>{4, 5, 6}));
  EXPECT_TRUE(std::equal(tokens.begin() + 1, tokens.begin() + 4, tokens.begin() + 4));
  EXPECT_EQ(heads::repeated_tokens(3, 2, 4, 7, -1, 9).size(), 6u);
  EXPECT_EQ(error_of([] { heads::repeated_tokens(0, 1, 5, 4, -1, 0); }),
            "[repeated_tokens] length is 0, must be at least 1; copies is 1, must be at least 2; "
            "the tokens are from [5, 4), must be at least 0 different ones, none negative");
}

TEST(HeadDistances, KnownRowsClustersAndPoints) {
  const Known alike(2, {1, 0, .5, .5}), apart(2, {0, 1, .5, .5});
  const Tokens tokens({1, 2}, {0, 0});
  heads::Distances distances;
  distances.add(std::vector{alike.layer(), apart.layer(), alike.layer()}, tokens);
  const double half = std::log(2) / 2;  // one row of two
  const Values expected = {0, half, 0, half, 0, half, 0, half, 0};
  EXPECT_TRUE(close_float64(distances.divergences(), expected));
  EXPECT_EQ(heads::clusters(expected, 2), (std::vector<int64_t>{0, 1, 0}));
  const double root = std::sqrt(half);  // two of three points are together
  EXPECT_TRUE(close_float64(heads::scaled(expected), {root / -3, 0, 2 * root / 3, 0, root / -3, 0}));
  EXPECT_TRUE(close_float64(heads::scaled(Values{0}), {0, 0}));
  // Padding is no row: what is left is the first.
  heads::Distances first;
  first.add(std::vector{alike.layer(), apart.layer()}, Tokens({1, 2}, {0, -1}));
  EXPECT_TRUE(close_float64(first.divergences(), {0, std::log(2), std::log(2), 0}));
  EXPECT_EQ(error_of([&] {
              heads::scaled(Values{0, 1, kNaN, 0});
            }),
            "[scaled] divergences[1, 0] is nan, must be that of [0, 1], a number, 0 on the diagonal");
  EXPECT_EQ(error_of([&] { heads::Distances().divergences(); }), "[head_distances] no text was added");
}

TEST(HeadFlow, KnownGraph) {
  // Token 1 looks at 0 alone in both layers: half of what reaches it is its own.
  const Known layer(2, {1, 0, 1, 0});
  const std::vector<RecordedAttention> layers = {layer.layer(), layer.layer()};
  EXPECT_TRUE(close_float64(heads::rollout(layers, 1), {.75, .25}));
  // From 1: .5 to 1 and .5 to 0, whose edge to 0 takes 1; of the first half .5 may go on to 0, so all of it can.
  EXPECT_TRUE(close_float64(heads::flow(layers, 1), {1, .5}));
  // The first path to token 1, over 0 and 0, has to give way: 2 reaches 1 over 0 alone, 0 over itself or 1.
  const Known bottom(3, {0, 1, 0, 0, 1, 0, 0, 0, 1}), middle(3, {0, 1, 0, 0, 1, 0, 1, 0, 0}),
      top(3, {1, 0, 0, 0, 1, 0, 1, 0, 0});
  EXPECT_TRUE(close_float64(heads::flow(std::vector{bottom.layer(), middle.layer(), top.layer()}, 2), {.5, 1, .5}));
  double missing = 0;
  EXPECT_TRUE(close_float64(heads::flow(layers, 1, .6, &missing), {0, 0}));
  EXPECT_EQ(missing, 1);
  EXPECT_EQ(error_of([&] { heads::flow(layers, -1, -1); }),
            "[flow] the token is -1, must be from 0 to 1; threshold is -1.000000, must be in [0, 1)");
}

TEST(HeadSyntax, KnownArcs) {
  // A word of two tokens, whose mean looks at word 1, and a token of no word that everybody looks at.
  const Known known(4, {0, .1, .2, .7, .3, 0, .1, .6, .05, .1, .05, .8, 0, 0, 0, 1});
  const heads::Sentence sentence{{"ab", "c"}, {1, -1}, {"nsubj", "root"}};
  heads::Syntax syntax;
  syntax.add(std::vector{known.layer()}, sentence, std::vector<int64_t>{0, 0, 1, -1});
  const std::vector<heads::Relation> relations = syntax.relations();
  ASSERT_EQ(relations.size(), 2u);
  EXPECT_EQ(relations[0].name, "all");
  EXPECT_EQ(relations[1].name, "nsubj");
  for (const heads::Relation& one : relations) {
    EXPECT_EQ(one.arcs, 1);
    EXPECT_EQ(one.offset, 1);
    EXPECT_EQ(one.baseline, 1);
    EXPECT_EQ(one.to_governor, Values{1});
    EXPECT_EQ(one.to_dependent, Values{1});
  }
  // To the last word both tokens of the first give 0.3, the second word 0.5: of these means the second is larger.
  const Known column(4, {.7, 0, 0, .3, .7, 0, 0, .3, .5, 0, 0, .5, 1, 0, 0, 0});
  const heads::Sentence longer{{"ab", "c", "d"}, {-1, 0, 1}, {"root", "obj", "det"}};
  heads::Syntax means;
  means.add(std::vector{column.layer()}, longer, std::vector<int64_t>{0, 0, 1, 2});
  EXPECT_EQ(means.relations()[1].name, "det");
  EXPECT_EQ(means.relations()[1].to_dependent, Values{1});
  EXPECT_EQ(means.relations()[1].to_governor, Values{0});
  EXPECT_EQ(error_of([&] {
              syntax.add(std::vector{known.layer()}, sentence, std::vector<int64_t>{0, 0, 0, -1});
            }),
            "[head_syntax] word 1 has no token");
  EXPECT_EQ(error_of([] { heads::read_conllu("# nothing\n\n", "file"); }), "[conllu] file has no sentence");
  EXPECT_EQ(error_of([] { heads::read_conllu("x\x1b\ta\t_\t_\t_\t_\t2\t_\t_\t_\n", "file"); }),
            "[conllu] file:1: the ID is 'x?', must be 1; file:1: DEPREL is missing; "
            "file:1: HEAD is 2, must be at most 1, the number of words");
}

/// "He sat . A cat sat by him": rows that attend to a known place; a mention is not its own antecedent.
TEST(HeadCoreference, KnownMentions) {
  const std::vector<heads::Document> documents = heads::read_coreference(
      "1\tHe\t_\tPRON\t_\t_\t2\tnsubj\t_\tEntity=(e1)\n2\tsat\t_\tVERB\t_\t_\t0\troot\t_\t_\n\n"
      "1\tA\t_\tDET\t_\t_\t2\tdet\t_\tEntity=(e2-x-2\n2\tcat\t_\tNOUN\t_\t_\t0\troot\t_\tEntity=e2)\n"
      "3\thim\t_\tPRON\t_\t_\t2\tdep\t_\tA=b|Entity=(e1)\n",
      "file");
  ASSERT_EQ(documents.size(), 1u);
  const heads::Document& document = documents[0];
  EXPECT_EQ(document.ends, (std::vector<int64_t>{2, 5}));
  ASSERT_EQ(document.mentions.size(), 3u);
  EXPECT_EQ(document.mentions[1].word, 3) << "the second word of the mention is its governor";
  const std::vector<int64_t> word_of = {0, 1, 2, 3, 4};
  for (const bool looks_back : {false, true}) {  // from the last word, at the first or at the one beside it
    std::vector<double> weights(25, .2);
    const std::vector<double> last =
        looks_back ? std::vector<double>{.6, .1, .1, .2, 0} : std::vector<double>{.1, .1, .1, .2, .5};
    std::copy(last.begin(), last.end(), weights.begin() + 20);
    const Known known(5, weights);
    heads::Coreference counts;
    counts.add(std::vector{known.layer()}, document, word_of);
    const std::vector<heads::MentionKind> kinds = counts.kinds();
    ASSERT_EQ(kinds.size(), 2u);
    EXPECT_EQ(kinds[0].name, "all");
    EXPECT_EQ(kinds[1].name, "PRON");
    for (const heads::MentionKind& kind : kinds) {
      EXPECT_EQ(kind.mentions, 1);
      EXPECT_EQ(kind.nearest, 0) << "the cat is nearer";
      EXPECT_EQ(kind.offset, -4);
      EXPECT_EQ(kind.baseline, 1);
      EXPECT_EQ(kind.to_antecedent, Values{looks_back ? 1.0 : 0.0});
    }
  }
}

}  // namespace
}  // namespace attn::test
