// What layers refuse: every wrong use ends in an Error that names the layer and what is wrong, before anything is made.
#include <cmath>

#include "attn/nn.h"
#include "support/layers.h"

namespace attn::test {
namespace {

using namespace nn;
using attn::Array;

constexpr int64_t kB = 2, kL = 5, kC = 8, kHuge = int64_t{1} << 62;

/// "[layer] reason; reason", or what came instead.
std::string refusal(const std::function<void()>& use) {
  try {
    use();
  } catch (const Error& error) {
    return error.what();
  } catch (const std::exception& error) {
    return std::string("not an Error, but ") + error.what();
  }
  return "nothing";
}

/// A wrong use, and what its Error must hold: the layer's name first, then pieces of the reasons.
struct Wrong {
  const char* what;
  std::function<void()> use;
  std::string layer;
  std::vector<std::string> pieces;
};

void expect_refused(const std::vector<Wrong>& table) {
  for (const Wrong& wrong : table) {
    const std::string said = refusal(wrong.use);
    EXPECT_EQ(said.rfind("[" + wrong.layer + "] ", 0), 0u) << wrong.what << ": " << said;
    for (const std::string& piece : wrong.pieces)
      EXPECT_NE(said.find(piece), std::string::npos) << wrong.what << ": '" << piece << "' is not in: " << said;
  }
}

Value rows(std::vector<int64_t> shape, DType dtype = DType::float32) {
  return Value(random_array(dtype, std::move(shape), 11));
}

// ------------------------------------------------------------------------------------------------------- construction

/// Makes a layer under the name "model.part", and that of options that are wrong in one field.
template <class LayerType, class... Arguments>
std::function<void()> make(const Arguments&... arguments) {
  return [=] {
    nn::Parameters parameters({});
    try {
      const LayerType layer(Scope(parameters) / "model" / "part", arguments...);
    } catch (const Error&) {
      EXPECT_EQ(parameters.count(), 0) << "nothing may have been made";
      throw;
    }
  };
}

template <class Options, class Change>
Options with(const Change& change) {
  Options options;
  change(options);
  return options;
}

template <class Change>
std::function<void()> heads(int64_t width, const Change& change) {
  return make<MultiHeadAttention>(width, with<MultiHeadAttentionOptions>(change));
}

template <class Change>
std::function<void()> single(const Change& change) {
  return make<SelfAttention>(kC, with<SelfAttentionOptions>(change));
}

using Multi = MultiHeadAttentionOptions;

TEST(LayerChecks, SizesOfLayers) {
  const std::string layer = "model.part";
  expect_refused({
      {"-1 outputs", make<Linear>(kC, int64_t{-1}), layer, {"out is -1, must be in [1, 2147483648]"}},
      {"nothing at all", make<Linear>(int64_t{0}, int64_t{0}), layer, {"in is 0", "; out is 0"}},
      {"a product that overflows", make<Linear>(int64_t{1} << 31, int64_t{1} << 31), layer, {"2^63 bytes"}},
      {"no tokens", make<Embedding>(int64_t{0}, kC), layer, {"tokens is 0"}},
      {"an embedding without width", make<Embedding>(int64_t{5}, int64_t{-3}), layer, {"width is -3"}},
      {"a scale that is not finite",
       make<Embedding>(int64_t{5}, kC, EmbeddingOptions{.scale = INFINITY}),
       layer,
       {"scale"}},
      {"a norm of nothing", make<Norm>(int64_t{0}), layer, {"width is 0"}},
      {"a negative epsilon", make<Norm>(kC, NormOptions{.epsilon = -1e-5}), layer, {"epsilon is -0.00001"}},
      {"an epsilon of NaN", make<Norm>(kC, NormOptions{.epsilon = NAN}), layer, {"epsilon is nan"}},
      {"hidden below 0", make<FeedForward>(kC, FeedForwardOptions{.hidden_dim = -4}), layer, {"hidden_dim is -4"}},
      {"hidden that overflows",
       make<FeedForward>(kC, FeedForwardOptions{.hidden_dim = kHuge}),
       layer,
       {"hidden_dim is 4611"}},
      {"no positions", [] { sinusoids(0, kC, DType::float32); }, "sinusoids", {"positions is 0"}},
      {"sinusoids of whole numbers", [] { sinusoids(3, kC, DType::int64, -1); }, "sinusoids", {"int64", "first is -1"}},
  });
}

TEST(LayerChecks, OptionsOfAttention) {
  const std::string layer = "model.part";
  const auto rope = [](Multi& o) { o.heads = 2, o.position = AttentionPositions::rope; };
  const auto relative = [](Multi& o) { o.position = AttentionPositions::relative; };
  expect_refused({
      {"no heads", heads(kC, [](Multi& o) { o.heads = 0; }), layer, {"heads is 0, must be in [1, 1048576]"}},
      {"negative heads", heads(kC, [](Multi& o) { o.heads = -2; }), layer, {"heads is -2"}},
      {"kv_heads that do not divide",
       heads(12, [](Multi& o) { o.heads = 4, o.kv_heads = 3; }),
       layer,
       {"kv_heads 3 must divide heads 4"}},
      {"negative kv_heads", heads(kC, [](Multi& o) { o.kv_heads = -1; }), layer, {"kv_heads is -1"}},
      {"heads that do not divide",
       heads(32, [](Multi& o) { o.heads = 5; }),
       layer,
       {"heads 5 must divide width 32, or head_dim must be given"}},
      {"a negative head", heads(kC, [](Multi& o) { o.head_dim = -8; }), layer, {"head_dim is -8"}},
      {"heads wider than the operator's",
       heads(4096, [](Multi&) {}),
       layer,
       {"the width of a head is 4096, must be at most 1024"}},
      {"a negative window", heads(kC, [](Multi& o) { o.window = -3; }), layer, {"window is -3"}},
      {"negative width of the encoder states",
       heads(kC, [](Multi& o) { o.encoder_dim = -1; }),
       layer,
       {"encoder_dim is -1"}},
      {"dropout of everything", heads(kC, [](Multi& o) { o.dropout = 1; }), layer, {"dropout is 1"}},
      {"dropout of NaN", heads(kC, [](Multi& o) { o.dropout = NAN; }), layer, {"dropout is nan"}},
      {"rope on odd heads", heads(6, rope), layer, {"the width of a head is 3, must be even with rope"}},
      {"odd rotary_dim",
       heads(kC, [&](Multi& o) { rope(o), o.rope.rotary_dim = 3; }),
       layer,
       {"rotary_dim is 3, must be even and at most the 4"}},
      {"rotary_dim beyond the head",
       heads(kC, [&](Multi& o) { rope(o), o.rope.rotary_dim = 6; }),
       layer,
       {"rotary_dim is 6"}},
      {"rope over encoder states", heads(kC, [&](Multi& o) { rope(o), o.encoder_dim = 8; }), layer, {"self-attention"}},
      {"rope without an angle", heads(kC, [&](Multi& o) { rope(o), o.rope.theta = 0; }), layer, {"theta"}},
      {"no buckets", heads(kC, [&](Multi& o) { relative(o), o.buckets = 0; }), layer, {"buckets is 0"}},
      {"odd buckets both ways",
       heads(kC, [&](Multi& o) { relative(o), o.buckets = 5; }),
       layer,
       {"buckets is 5, must be even"}},
      {"a short max_distance",
       heads(kC, [&](Multi& o) { relative(o), o.max_distance = 8; }),
       layer,
       {"max_distance is 8, must be more than the 8"}},
      {"a negative key_width", single([](auto& o) { o.key_width = -1; }), layer, {"key_width is -1"}},
      {"a value_width beyond the operator",
       single([](auto& o) { o.value_width = 1025; }),
       layer,
       {"value_width is 1025"}},
      {"a negative output",
       single([](auto& o) { o.output_width = -1, o.dropout = -0.5; }),
       layer,
       {"output_width is -1", "; dropout is -0.5"}},
      {"a bucket of nothing", [] { relative_bucket(-3, true, 2, 128); }, "relative_bucket", {"buckets is 2"}},
  });
}

TEST(LayerChecks, ABlockIsMadeAsAWholeOrNotAtAll) {
  BlockOptions options;
  options.attention.heads = 3;
  options.feed_forward.hidden_dim = -1;
  options.norm.epsilon = -1;
  options.dropout = 2;
  expect_refused({{"everything",
                   make<nn::Block>(kC, options),
                   "model.part",
                   {"dropout is 2", "norm: epsilon is -1", "attention: heads 3 must divide width 8",
                    "feed_forward: hidden_dim is -1"}}});
}

TEST(LayerChecks, Names) {
  nn::Parameters parameters({});
  const Scope root(parameters);
  const Linear first(root / "head", kC, 3);
  EXPECT_EQ(first.name(), "head");
  EXPECT_EQ(Linear(root, kC, 3).name(), "Linear");
  const int64_t count = parameters.count();
  expect_refused({
      {"one name twice",
       [&] { Linear(root / "head", kC, 3); },
       "head",
       {"the name head.weight is already that of another parameter"}},
      {"one name twice, of parameters",
       [&] { root.variable("bias", {3}, ParameterRole::bias); },
       "parameters",
       {"the name bias is already"}},
      {"a name without a part",
       [&] { Linear(root / "a" / "" / "b", kC, 3); },
       "a..b",
       {"'a..b.weight' has an empty part"}},
      {"a weight without shape", [&] { root.variable("w", {}); }, "parameters", {"w cannot be []"}},
      {"a negative constant",
       [&] { root.variable("c", {-1}, ParameterRole::bias); },
       "parameters",
       {"c cannot be [-1]"}},
  });
  EXPECT_EQ(parameters.count(), count);
  EXPECT_EQ(parameters.find("head.weight")->value.shape(), (std::vector<int64_t>{3, kC}));
}

// -------------------------------------------------------------------------------------------------------------- calls

TEST(LayerChecks, LayersThatHaveNotBeenMade) {
  Tape tape;
  const Value x = rows({kB, kL, kC});
  const std::vector<std::string> reason = {"the layer has no parameters: make it with a Scope before it is called"};
  expect_refused({
      {"Linear", [&] { Linear()(tape, x); }, "Linear", reason},
      {"Embedding", [&] { Embedding()(tape, {1}, {1}); }, "Embedding", reason},
      {"Norm", [&] { Norm()(tape, x); }, "Norm", reason},
      {"FeedForward", [&] { FeedForward()(tape, x); }, "FeedForward", reason},
      {"SelfAttention", [&] { SelfAttention()(tape, x); }, "SelfAttention", reason},
      {"MultiHeadAttention", [&] { MultiHeadAttention()(tape, x); }, "MultiHeadAttention", reason},
      {"Block", [&] { nn::Block()(tape, x); }, "Block", reason},
      {"a trace of what continues a cache",
       [] {
         nn::Parameters parameters({.seed = 3});
         const MultiHeadAttention layer(Scope(parameters), 8, {.heads = 2, .causal = true});
         KVCache cache({.kv_heads = 2, .head_dim = 4});
         const std::vector<int64_t> sequences = {cache.add()};
         AttentionTrace trace;
         AttentionInputs inputs;
         inputs.cache = {&cache, sequences};
         inputs.trace = &trace;
         Tape cached;
         for (int n = 0; n < 2; ++n) layer(cached, Value(Array(DType::float32, {1, 3, 8})), inputs);
         trace.weights();
       },
       "AttentionTrace",
       {"a cache of 3 tokens"}},
      {"an empty trace", [] { AttentionTrace().weights(); }, "AttentionTrace", {"the trace is empty"}},
  });
}

TEST(LayerChecks, WhatEveryLayerIsGiven) {
  nn::Parameters parameters({});
  const Scope root = Scope(parameters) / "blocks" / "3";
  const Linear linear(root / "linear", kC, 3);
  const Norm norm(root / "norm", kC);
  const FeedForward feed_forward(root / "feed_forward", kC);
  const SelfAttention single(root / "single", kC);
  const MultiHeadAttention attention(root / "attention", kC, {.heads = 2});
  const nn::Block block(root / "block", kC, {});
  Tape tape;
  struct Each {
    const char* name;
    std::function<void(const Value&)> call;
    bool any_rank;
  };
  for (const Each& each : {Each{"blocks.3.linear", [&](const Value& x) { linear(tape, x); }, true},
                           Each{"blocks.3.norm", [&](const Value& x) { norm(tape, x); }, true},
                           Each{"blocks.3.feed_forward", [&](const Value& x) { feed_forward(tape, x); }, true},
                           Each{"blocks.3.single", [&](const Value& x) { single(tape, x); }, false},
                           Each{"blocks.3.attention", [&](const Value& x) { attention(tape, x); }, false},
                           Each{"blocks.3.block", [&](const Value& x) { block(tape, x); }, false}}) {
    const auto given = [&](const Value& x) { return [&each, x] { each.call(x); }; };
    const std::string wanted = each.any_rank ? "must be [.., 8] of float32" : "must be [B, L, 8] of float32";
    expect_refused({
        {"nothing", given({}), each.name, {"x is empty, " + wanted}},
        {"another width", given(rows({kB, kL, 7})), each.name, {"x is [2, 5, 7] of float32, " + wanted}},
        {"another type",
         given(rows({kB, kL, kC}, DType::float64)),
         each.name,
         {"x is [2, 5, 8] of float64, " + wanted}},
    });
    if (!each.any_rank)
      expect_refused({{"rank 2", given(rows({7, kC})), each.name, {"x is [7, 8] of float32, " + wanted}},
                      {"rank 4", given(rows({1, 1, 7, kC})), each.name, {"x is [1, 1, 7, 8]"}}});
  }
}

TEST(LayerChecks, EmptyTextsAreNoMistake) {
  nn::Parameters parameters({});
  const Scope root(parameters);
  const SelfAttention single(root / "single", kC, {.output_width = kC});
  const nn::Block plain(root / "plain", kC, {}),
      relative(root / "relative", kC, {.attention = {.position = AttentionPositions::relative}});
  for (const std::vector<int64_t>& shape : {std::vector<int64_t>{0, kL, kC}, std::vector<int64_t>{kB, 0, kC}}) {
    for (bool record : {false, true}) {
      Tape tape({.record = record});
      const Value x = rows(shape);
      EXPECT_EQ(single(tape, x).shape(), shape);
      EXPECT_EQ(plain(tape, x).shape(), shape);
      EXPECT_EQ(relative(tape, x).shape(), shape);
    }
  }
}

TEST(LayerChecks, TokensOfAnEmbedding) {
  nn::Parameters parameters({});
  const Embedding tokens(Scope(parameters) / "tokens", 7, kC);
  Tape tape;
  expect_refused({
      {"a token beyond the table",
       [&] {
         tokens(tape, {1, 7}, {2});
       },
       "tokens",
       {"ids[1] is 7, must be in [0, 7)"}},
      {"a negative token",
       [&] {
         tokens(tape, {-1, 7}, {2});
       },
       "tokens",
       {"ids[0] is -1"}},
      {"too few",
       [&] {
         tokens(tape, {1, 2}, {2, 2});
       },
       "tokens",
       {"there are 2 ids, must be as many as the elements of [2, 2]"}},
      {"a negative shape",
       [&] {
         tokens(tape, {1, 9}, {-1, -2});
       },
       "tokens",
       {"[-1, -2]", "; ids[1] is 9"}},
      {"a shape that overflows",
       [&] {
         tokens(tape, {}, {kHuge, 4});
       },
       "tokens",
       {"there are 0 ids"}},
  });
}

TEST(LayerChecks, InputsOfAttention) {
  nn::Parameters parameters({});
  const Scope root(parameters);
  const MultiHeadAttention self(root / "self", kC, {.heads = 2});
  const MultiHeadAttention cross(root / "cross", kC, {.heads = 2, .encoder_dim = 6});
  const MultiHeadAttention relative(root / "relative", kC, {.heads = 2, .position = AttentionPositions::relative});
  const SelfAttention single(root / "single", kC);
  Tape tape;
  const Value x = rows({kB, kL, kC}), memory = rows({kB, 3, 6}), narrow = rows({kB, 3, 5}), other = rows({3, 3, 6}),
              flat = rows({6}), none;
  const auto call = [&](const auto& layer, auto change) {
    return [&layer, &tape, x, change] {
      AttentionInputs inputs;
      change(inputs);
      layer(tape, x, inputs);
    };
  };
  using In = AttentionInputs;
  const std::vector<int64_t> few = {5}, wrong = {6, -1};
  std::vector<uint8_t> allowed(256, 1);
  const auto mask = [&](const Shape<4>& size, DType dtype = DType::boolean) {
    return ConstView<4>(allowed.data(), dtype, size);
  };
  expect_refused({
      {"encoder states for self-attention",
       call(self, [&](In& in) { in.encoder_states = &memory; }),
       "self",
       {"takes no encoder states"}},
      {"no encoder states for cross-attention",
       call(cross, [](In&) {}),
       "cross",
       {"cross-attention needs encoder states"}},
      {"encoder states of another width",
       call(cross, [&](In& in) { in.encoder_states = &narrow; }),
       "cross",
       {"encoder_states is [2, 3, 5] of float32, must be [B, L, 6]"}},
      {"encoder states of another batch",
       call(cross, [&](In& in) { in.encoder_states = &other; }),
       "cross",
       {"encoder_states is [3, 3, 6], must have as many sequences as x [2, 5, 8]"}},
      {"encoder states of rank 1",
       call(single, [&](In& in) { in.encoder_states = &flat; }),
       "single",
       {"encoder_states is [6]"}},
      {"empty encoder states",
       call(single, [&](In& in) { in.encoder_states = &none; }),
       "single",
       {"encoder_states is empty"}},
      {"gates of other heads",
       call(self,
            [&](In& in) {
              in.gates = rows({2, 3});
            }),
       "self",
       {"gates are [2, 3] of float32, must be [2, 2] (the first axis may be 1) of float32"}},
      {"gates of another batch",
       call(single,
            [&](In& in) {
              in.gates = rows({3, 1});
            }),
       "single",
       {"gates are [3, 1] of float32, must be [2, 1]"}},
      {"gates of another type",
       call(cross,
            [&](In& in) {
              in.encoder_states = &memory;
              in.gates = rows({1, 2}, DType::float64);
            }),
       "cross",
       {"gates are [1, 2] of float64, must be [2, 2]"}},
      {"gates of rank 1", call(self, [&](In& in) { in.gates = rows({2}); }), "self", {"gates are [2]"}},
      {"too few lengths",
       call(self, [&](In& in) { in.key_length = few; }),
       "self",
       {"key_length has 1 entries, must have B = 2"}},
      {"lengths out of range",
       call(single, [&](In& in) { in.key_length = wrong; }),
       "single",
       {"key_length[0] is 6, must be in [0, 5]", "; key_length[1] is -1"}},
      {"a mask of another size",
       call(self,
            [&](In& in) {
              in.mask = mask({1, 1, kL, 4});
            }),
       "self",
       {"mask is [1, 1, 5, 4], must be [2, 2, 5, 5] (each axis may be 1)"}},
      {"a mask of numbers",
       call(self,
            [&](In& in) {
              in.mask = mask({1, 1, 1, 1}, DType::float32);
            }),
       "self",
       {"mask is float32, must be boolean"}},
      {"a bias of another size",
       call(self,
            [&](In& in) {
              in.bias = rows({1, 3, kL, kL});
            }),
       "self",
       {"bias is [1, 3, 5, 5]"}},
      {"a bias of rank 2",
       call(self,
            [&](In& in) {
              in.bias = rows({kL, kL});
            }),
       "self",
       {"bias is [5, 5], must be [2, 2, 5, 5] (each axis may be 1)"}},
      {"a bias of whole numbers",
       call(self,
            [&](In& in) {
              in.bias = Value(Array(DType::int64, {1, 1, 1, 1}));
            }),
       "self",
       {"bias is int64, must be a floating type"}},
      {"a bias beside relative positions",
       call(relative,
            [&](In& in) {
              in.bias = rows({1, 1, kL, kL});
            }),
       "relative",
       {"bias is [1, 1, 5, 5] of float32, must be what it is added to"}},
      {"all at once",
       call(cross,
            [&](In& in) {
              in.encoder_states = &memory, in.key_length = few, in.mask = mask({3, 1, 1, 1});
            }),
       "cross",
       {"key_length has 1 entries", "; mask is [3, 1, 1, 1], must be [2, 2, 5, 3]"}},
  });
}

TEST(LayerChecks, Caches) {
  nn::Parameters parameters({});
  const Scope root(parameters);
  const MultiHeadAttention attention(root / "attention", kC, {.heads = 4, .kv_heads = 2, .causal = true});
  const MultiHeadAttention both_ways(root / "both_ways", kC, {.heads = 4, .kv_heads = 2});
  const Value x = rows({kB, kL, kC});
  KVCache fits({.kv_heads = 2, .head_dim = 2}), wide({.kv_heads = 2, .head_dim = 4}),
      half({.kv_heads = 2, .head_dim = 2, .dtype = DType::bfloat16});
  for (KVCache* cache : {&fits, &wide, &half}) cache->add(), cache->add();
  const std::vector<int64_t> both = {0, 1}, one = {0}, twice = {1, 1}, unknown = {0, 7};
  const auto call = [&](const MultiHeadAttention& layer, KVCache& cache, const std::vector<int64_t>& sequences,
                        auto change) {
    return [&, change] {
      AttentionInputs inputs;
      inputs.cache = {&cache, sequences};
      Tape tape({.record = change(inputs)});
      layer(tape, x, inputs);
    };
  };
  const auto plain = [](AttentionInputs&) { return false; };
  const std::vector<int64_t> lengths = {5, 5};
  expect_refused({
      {"wider heads",
       call(attention, wide, both, plain),
       "attention",
       {"the cache is for 2 heads of keys of width 4 and values of width 4 in float32, must be for 2 heads of keys of "
        "width 2"}},
      {"another type", call(attention, half, both, plain), "attention", {"in bfloat16, must be for"}},
      {"too few sequences",
       call(attention, fits, one, plain),
       "attention",
       {"cache.sequences has 1 entries, must have B = 2"}},
      {"an unknown sequence", call(attention, fits, unknown, plain), "attention", {"the cache has no sequence 7"}},
      {"a sequence twice", call(attention, fits, twice, plain), "attention", {"cache.sequences names 1 twice"}},
      {"a layer that looks ahead", call(both_ways, fits, both, plain), "both_ways", {"a cache needs a causal layer"}},
      {"recording",
       call(attention, fits, both, [](AttentionInputs&) { return true; }),
       "attention",
       {"inference only"}},
      {"lengths",
       call(attention, fits, both,
            [&](AttentionInputs& in) {
              in.key_length = lengths;
              return false;
            }),
       "attention",
       {"with encoder states, key_length, mask or bias"}},
      {"positions of other sequences",
       [&] {
         CacheSlot{&fits, one}.positions(std::vector<int64_t>{0, 3, 6});
       },
       "CacheSlot",
       {"has 1 entries"}},
      {"positions that fall",
       [] {
         CacheSlot{}.positions(std::vector<int64_t>{0, 3, 2});
       },
       "CacheSlot",
       {"cu_seqlens must rise from 0"}},
      {"positions of nothing", [] { CacheSlot{}.positions({}); }, "CacheSlot", {"cu_seqlens must rise from 0"}},
  });
  EXPECT_EQ(fits.length(0) + fits.length(1), 0) << "nothing may have been cached";
}

}  // namespace
}  // namespace attn::test
