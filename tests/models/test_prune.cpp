// Models without some of their heads: what remains is what gates of 0 leave, in every kind of attention.
#include <cmath>
#include <numeric>

#include "attn/generate.h"
#include "attn/models_prune.h"
#include "support/errors.h"
#include "support/layers.h"

namespace attn::test {
namespace {

using namespace models;

Config small(const std::string& name, const std::function<void(Config&)>& change = {}) {
  Config config = family(name);
  config.vocab_size = 13;
  config.context = 16;
  config.embed_dim = 16;
  config.layers = 3;
  if (config.encoder_layers) config.encoder_layers = 2;
  config.heads = 4;
  config.kv_heads = name == "llama" ? 2 : 0;
  config.dropout = 0;
  if (change) change(config);
  return config;
}

struct Kind {
  std::string name;
  Config config;
};

/// Every feature that follows a head.
std::vector<Kind> kinds() {
  std::vector<Kind> all;
  for (const char* name : {"gpt", "llama", "encoder", "seq2seq"}) all.push_back({name, small(name)});
  const auto add = [&](const char* name, const char* family, const std::function<void(Config&)>& change) {
    all.push_back({name, small(family, change)});
  };
  add("alibi", "gpt", [](Config& c) { c.positions = PositionEncoding::alibi; });
  add("alibi, groups", "gpt", [](Config& c) {
    c.positions = PositionEncoding::alibi;
    c.kv_heads = 2;
  });
  add("relative", "gpt", [](Config& c) {
    c.positions = PositionEncoding::relative;
    c.buckets = 6;
    c.kv_heads = 2;
  });
  add("shared distances", "seq2seq", [](Config& c) {
    c.positions = PositionEncoding::relative;
    c.buckets = 8;
    c.max_distance = 12;
    c.shared_relative_bias = true;
  });
  add("sinks", "llama", [](Config& c) {
    c.sinks = true;
    c.window = 3;
  });
  add("norms of heads", "llama", [](Config& c) {
    c.query_key_norm = QueryKeyNorm::heads;
    c.head_dim = 6;
    c.qkv_bias = true;
  });
  add("norms on branches", "gpt", [](Config& c) {
    c.norm_placement = NormPlacement::sandwich;
    c.softcap = 5;
  });
  add("parallel", "gpt", [](Config& c) { c.parallel = true; });
  return all;
}

/// Of the attention layers in turn: none, the first, the last but one.
HeadLists some_heads(const Config& config) {
  HeadLists removed;
  for (const AttentionLayer& layer : attention_layers(config)) {
    const size_t n = removed.size() % 3;
    removed.push_back(n == 0 ? std::vector<int64_t>{} : std::vector<int64_t>{n == 1 ? 0 : layer.kv_heads - 2});
    if (n == 1 && layer.kv_heads > 2) removed.back().push_back(layer.kv_heads - 1);
  }
  return removed;
}

Batch random_batch(const Config& config, int64_t sequences, int64_t length, uint64_t seed) {
  Batch batch;
  batch.sequences = sequences;
  batch.length = length;
  Random random(seed);
  const auto draw = [&](int64_t count) {
    std::vector<int64_t> ids(static_cast<size_t>(count));
    for (int64_t& id : ids) id = random.below(config.vocab_size);
    return ids;
  };
  batch.tokens = draw(sequences * length);
  batch.targets = draw(sequences * length);
  if (config.classes) batch.targets = {0, 1};
  if (config.encoder_layers) {
    batch.source_length = length + 2;
    batch.source = draw(sequences * batch.source_length);
  }
  return batch;
}

Values logits(const Model& model, const Batch& batch, const ForwardOptions& options = {}) {
  Tape tape;
  return numbers(model.forward(tape, batch, options).data());
}

Model exact(const Config& config) {
  Model model(config, nn::Precision::float64, 5);
  stir(model.parameters());
  return model;
}

TEST(Prune, WithoutHeadsIsWithGatesOf0) {
  for (const Kind& kind : kinds()) {
    SCOPED_TRACE(kind.name);
    const Model whole = exact(kind.config);
    const HeadLists removed = some_heads(kind.config);
    const Model smaller = remove_heads(whole, removed);
    const Batch batch = random_batch(kind.config, 2, 7, 3);
    const std::vector<Value> gates = gates_without(kind.config, removed, DType::float64);
    const Values gated = logits(whole, batch, {.gates = &gates});
    EXPECT_TRUE(close_float64(logits(smaller, batch), gated));
    EXPECT_FALSE(close_float64(logits(whole, batch), gated)) << "the heads matter";
    EXPECT_LT(smaller.parameters().count(), whole.parameters().count());
    EXPECT_EQ(smaller.parameters().count(), count_parameters(smaller.config()).total());
  }
}

/// Heads of heads that are left are counted anew, and the configuration remembers which they were at first.
TEST(Prune, InTwoStepsAsInOne) {
  for (const Kind& kind : kinds()) {
    SCOPED_TRACE(kind.name);
    if (kind.config.kv_heads == 2) continue;  // two groups: only one can go
    const Model whole = exact(kind.config);
    const size_t layers = attention_layers(kind.config).size();
    const Model first = remove_heads(whole, HeadLists(layers, {1})), both = remove_heads(first, HeadLists(layers, {1}));
    const Model once = remove_heads(whole, HeadLists(layers, {1, 2}));
    EXPECT_EQ(both.config().kept_heads, HeadLists(layers, {0, 3}));
    EXPECT_EQ(to_json(both.config()), to_json(once.config()));
    for (size_t n = 0; n < once.parameters().all().size(); ++n)
      EXPECT_TRUE(numbers(both.parameters().all()[n].master) == numbers(once.parameters().all()[n].master));
  }
}

TEST(Prune, NothingRemovedIsTheSameModel) {
  const Model whole = exact(small("llama"));
  const Model same = remove_heads(whole, HeadLists(3));
  const Batch batch = random_batch(whole.config(), 2, 7, 3);
  EXPECT_TRUE(logits(same, batch) == logits(whole, batch));
}

TEST(Prune, ACacheHasTheHeadsOfEachLayer) {
  for (const Kind& kind : kinds()) {
    if (!kind.config.causal || kind.config.encoder_layers) continue;
    SCOPED_TRACE(kind.name);
    const Model smaller = remove_heads(exact(kind.config), some_heads(kind.config), nn::Purpose::inference);
    const Batch batch = random_batch(kind.config, 1, 9, 4);
    Batch first = batch, second = batch;
    first.tokens.resize(5);
    first.length = 5;
    second.tokens.erase(second.tokens.begin(), second.tokens.begin() + 5);
    second.length = 4;
    ModelCache cache = smaller.new_cache();
    Values cached = logits(smaller, first, {.cache = &cache});
    const Values rest = logits(smaller, second, {.cache = &cache});
    cached.insert(cached.end(), rest.begin(), rest.end());
    EXPECT_TRUE(close_float64(cached, logits(smaller, batch)));
    const Config& config = smaller.config();
    int64_t numbers_a_token = 0;
    for (const AttentionLayer& layer : attention_layers(config))
      numbers_a_token += 2 * layer.kv_heads * (config.head_dim ? config.head_dim : 4);
    EXPECT_EQ(cache_bytes_per_token(config, DType::float64), 8 * numbers_a_token);
  }
}

TEST(Prune, GenerationGoesOn) {
  const Model smaller = remove_heads(Model(small("llama"), nn::Precision::float32, 5), some_heads(small("llama")));
  generate::GenerateOptions options;
  options.sampling.temperature = 0;
  options.max_new_tokens = 9;
  const std::vector<int64_t> prompt = {1, 2, 3};
  const auto cached = generate::generate(smaller, prompt, options);
  options.cache = false;
  EXPECT_EQ(cached.tokens, generate::generate(smaller, prompt, options).tokens);
}

TEST(Prune, ACacheOfAnotherModelIsRefused) {
  const Model whole = exact(small("gpt")), smaller = remove_heads(whole, {{}, {1}, {}});
  ModelCache cache = whole.new_cache();
  EXPECT_EQ(reasons_of([&] { logits(smaller, random_batch(whole.config(), 1, 3, 1), {.cache = &cache}); }).front(),
            "the cache has 4 heads of width 4 in float64, must have 3 of width 4 in float64");
}

/// A quarter of the heads makes a quarter less of attention's own work: products and pairs.
TEST(Prune, CostsFollowTheHeads) {
  const Config config = small("gpt", [](Config& c) { c.bias = false; });
  const Config smaller = without_heads(config, {{0}, {1}, {2}});
  EXPECT_EQ(count_parameters(smaller).attention * 4, count_parameters(config).attention * 3);
  EXPECT_EQ(count_parameters(smaller).feed_forward, count_parameters(config).feed_forward);
  const int64_t tokens = 16, pairs = tokens * (tokens + 1) / 2, C = 16;
  const double saved = static_cast<double>(2 * 3 * (tokens * C * C + pairs * 2 * C / 4));
  EXPECT_EQ(forward_flops(config, tokens) - forward_flops(smaller, tokens), saved);
  EXPECT_LT(training_memory(smaller, nn::Precision::float32, 8, tokens).total(),
            training_memory(config, nn::Precision::float32, 8, tokens).total());
}

TEST(Prune, ConfigurationsAreReadBackAndChecked) {
  Config config = without_heads(small("seq2seq"), {{1}, {}, {0, 3}, {}, {2}, {}, {3}, {}}), read;
  apply_json(read, to_json(config), "config.json");
  EXPECT_EQ(read.kept_heads, config.kept_heads);
  check(read);
  set_field(read, "kept_heads", "[[0],[1,2]]");
  EXPECT_EQ(reasons_of([&] { check(read); }),
            std::vector<std::string>{"kept_heads has 2 lists, must have one for each of 8 attention layers"});
  Config gpt = small("gpt");
  gpt.kept_heads = {{0, 4}, {}, {1, 1}};
  const std::vector<std::string> wrong = reasons_of([&] { check(gpt); });
  ASSERT_EQ(wrong.size(), 3u);
  EXPECT_EQ(wrong[0], "kept_heads[0] must rise, from 0 to below the 4 key/value heads, and keep at least one");
  EXPECT_EQ(reasons_of([&] { set_field(gpt, "kept_heads", "[[0], 1]"); }).front(),
            "kept_heads must be a list of lists of whole numbers from 0 to 4096, not a list");
  EXPECT_EQ(reasons_of([&] { set_field(gpt, "kept_heads", "[[-1]]"); }).size(), 1u);
  for (const char* name : {"gpt", "encoder"}) {
    Config mixing = small(name);
    mixing.kept_heads = {{0}, {1}, {2}};
    mixing.query_key_norm = QueryKeyNorm::rows;
    EXPECT_EQ(reasons_of([&] { check(mixing); }).front(),
              "kept_heads cannot be combined with query_key_norm rows, which mixes all heads of a token");
  }
}

TEST(Prune, WrongHeadsAreErrors) {
  const Model model = exact(small("llama"));
  const auto reason = [&](const HeadLists& removed) { return reasons_of([&] { remove_heads(model, removed); }); };
  EXPECT_EQ(reason({{0}, {}}).front(), "2 lists of heads are given, must be one for each of 3 attention layers");
  const std::vector<std::string> all = reason({{2}, {1, 1}, {1, 0}});
  ASSERT_EQ(all.size(), 3u);
  EXPECT_EQ(all[0], "blocks.0.attention: the heads are [2], must be different ones in [0, 2)");
  EXPECT_EQ(all[2], "blocks.2.attention would keep no head");
  EXPECT_EQ(reasons_of([&] {
              gates_without(model.config(), {{2}, {}, {}});
            }).front(),
            "blocks.0.attention: the head is 2, must be in [0, 2)");
  Config one = family("selfhead");
  one.vocab_size = 5;
  EXPECT_EQ(reasons_of([&] { without_heads(one, {{}}); }).front(), "selfhead has one head, which cannot be removed");
  const Config rows = small("llama", [](Config& c) { c.query_key_norm = QueryKeyNorm::rows; });
  EXPECT_EQ(reasons_of([&] { without_heads(rows, {{}, {}, {}}); }).size(), 1u);
  const std::vector<Value> few = {Value()};
  EXPECT_EQ(reasons_of([&] { logits(model, random_batch(model.config(), 2, 3, 1), {.gates = &few}); }).front(),
            "gates are given for 1 attention layers, must be 3: those of attention_layers()");
}

}  // namespace
}  // namespace attn::test
