// Layers that ranks share: the results, gradients and trainings of one process, and what cannot be shared.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>

#include "attn/generate.h"
#include "attn/models_ranks.h"
#include "ranks.h"
#include "support/errors.h"
#include "support/folder.h"
#include "support/training.h"

namespace attn::test {
namespace {

constexpr int64_t kTokens = 24;
constexpr int kFirstTrainingTag = 16;  // of messages: lower tags are those of layers and attention
constexpr cluster::GridShape kShape = {.data = 1, .tensor = 0};  // all ranks share the layers

models::Config config_of(const std::string& family) {
  models::Config config = models::family(family);
  config.vocab_size = 23;
  config.context = kTokens;
  config.embed_dim = 48;
  config.hidden_dim = 40;
  config.layers = 2;
  config.heads = 8;
  config.head_dim = 6;
  config.dropout = 0.1;
  return config;
}

/// All ranks share a few models.
const bool kQuick = std::getenv("ATTN_QUICK") != nullptr;
int fewest_ranks() { return kQuick ? world().size() : 1; }

/// What differs in how ranks share it.
std::vector<std::pair<std::string, models::Config>> models_to_share() {
  models::Config gpt = config_of("gpt"), llama = config_of("llama");
  llama.kv_heads = 2;
  models::Config multi_query = llama, sinks = llama, norm = llama, rows = llama, gate = llama, alibi = llama,
                 relative = gpt, softcap = gpt, untied = gpt, both_sides = gpt, adapters = llama, fused = llama;
  multi_query.kv_heads = 1;
  sinks.sinks = true;
  norm.query_key_norm = nn::QueryKeyNorm::heads;
  rows.query_key_norm = nn::QueryKeyNorm::rows;
  gate.attention_gate = true;
  alibi.positions = models::PositionEncoding::alibi;
  relative.positions = models::PositionEncoding::relative;
  softcap.logit_softcap = 5;
  untied.tie_embeddings = false;
  untied.head_bias = true;
  both_sides.model = "bert";
  both_sides.causal = false;
  adapters.lora_rank = fused.lora_rank = 3;
  adapters.lora_targets = "query,key,value,output,gate,down";
  fused.lora_targets = "qkv,gate_up";
  return {{"gpt", gpt},
          {"grouped heads", llama},
          {"one key/value head", multi_query},
          {"sinks", sinks},
          {"head norms", norm},
          {"norms of rows", rows},
          {"gate", gate},
          {"ALiBi", alibi},
          {"relative", relative},
          {"softcap", softcap},
          {"untied", untied},
          {"no causal mask", both_sides},
          {"adapters", adapters},
          {"adapters of fused layers", fused}};
}

TextDataset some_text() { return TextDataset(some_tokens(900, 23), kTokens, 2, 5, 2); }

TrainerOptions short_training(const cluster::RankGrid* ranks) {
  TrainerOptions options;
  options.steps = 3;
  options.warmup = 1;
  options.accumulation = 6;
  options.learning_rate = 0.1;
  options.epsilon = 1;  // then an update is nearly linear in the gradient, and its error is that of the gradient
  options.eval_every = 0;
  options.ranks = ranks;
  return options;
}

models::Model model_of(const models::Config& config, const cluster::RankGrid* ranks,
                       nn::Precision precision = nn::Precision::float64) {
  return {config,
          {.precision = precision, .seed = 1, .tensor_ranks = ranks ? &ranks->tensor() : nullptr},
          nn::random_parameter};
}

struct Trained {
  std::map<std::string, attn::Array> parameters;
  std::vector<double> numbers;
};

Trained train(const models::Config& config, const cluster::RankGrid* ranks) {
  models::Model model = model_of(config, ranks);
  const TextDataset data = some_text();
  Trained result;
  Trainer(model, data, short_training(ranks), "")
      .run({.step =
                [&](const StepReport& report) {
                  result.numbers.insert(result.numbers.end(),
                                        {report.loss, report.gradient_norm, double(report.tokens)});
                },
            .validation =
                [&](int64_t, const Validation& found, bool) {
                  result.numbers.insert(result.numbers.end(), {found.loss, found.accuracy});
                }});
  for (const nn::Parameter& parameter : model.parameters().all())
    result.parameters[parameter.name] = parameter.master.clone();
  return result;
}

/// The parameters of a rank are its slices of those of one process.
void expect_near(const std::string& what, const models::Config& config, const Trained& got, const Trained& expected,
                 const cluster::RankGrid& ranks) {
  EXPECT_TRUE(close_float64(got.numbers, expected.numbers)) << what;
  const models::Model model = model_of(config, &ranks);
  for (const nn::Parameter& parameter : model.parameters().all()) {
    const attn::Array part = slice_of(expected.parameters.at(parameter.name), parameter.slice);
    EXPECT_TRUE(close_float64(numbers(got.parameters.at(parameter.name)), numbers(part)))
        << what << ", " << parameter.name;
  }
}

// --------------------------------------------------------------------------------------------------------------- parts

TEST(ClusterTensor, SharesOfHeadsAreTheWhole) {
  for (const auto& [heads, kv_heads] : {std::pair(8, 8), {8, 4}, {12, 3}, {7, 1}, {16, 2}, {1, 1}})
    for (int ranks = 1; ranks <= heads; ++ranks) {
      int64_t next = 0, group = heads / kv_heads;
      std::vector<int> first(static_cast<size_t>(kv_heads), 0);
      for (int rank = 0; rank < ranks; ++rank) {
        const nn::HeadShare share = nn::share_of_heads(heads, kv_heads, rank, ranks);
        EXPECT_EQ(share.heads.begin, next);
        EXPECT_GT(share.heads.count(), 0);
        EXPECT_EQ(share.heads.count() % share.kv_heads.count(), 0);
        EXPECT_EQ(share.kv_heads.begin, share.heads.begin / group);
        EXPECT_EQ(share.kv_heads.end, (share.heads.end - 1) / group + 1);
        for (int64_t kv = share.kv_heads.begin; kv < share.kv_heads.end; ++kv) first[kv] += share.is_first;
        next = share.heads.end;
      }
      EXPECT_EQ(next, heads);
      EXPECT_EQ(first, std::vector<int>(static_cast<size_t>(kv_heads), 1)) << heads << " " << kv_heads << " " << ranks;
    }
  EXPECT_THROW(nn::share_of_heads(4, 2, 0, 5), Error);
}

TEST(ClusterTensor, SlicesOfBothAxes) {
  const attn::Array whole({1., 2., 3., 4., 5., 6.}, {2, 3});
  const nn::Slice rows = {.axis = 0, .ranges = {{1, 2}}}, columns = {.axis = 1, .ranges = {{0, 1}, {2, 3}}};
  const attn::Array one = slice_of(whole, rows), two = slice_of(whole, columns);
  EXPECT_EQ(numbers(one), (Values{4, 5, 6}));
  EXPECT_EQ(numbers(two), (Values{1, 3, 4, 6}));
  const attn::Array back(DType::float64, {2, 3});
  put_slice(two, columns, back);
  EXPECT_EQ(numbers(back), (Values{1, 0, 3, 4, 0, 6}));
  int64_t next = 0;
  for (int rank = 0; rank < 5; ++rank) {
    const nn::IndexRange share = nn::share_of(50257, rank, 5);
    EXPECT_EQ(share.begin, next);
    next = share.end;
  }
  EXPECT_EQ(next, 50257);
}

/// The sum in the order of ranks, for few elements and for many.
TEST(ClusterTensor, SumsHaveTheBitsOfTheOrderOfRanks) {
  for (const DType dtype : {DType::float32, DType::float64})
    for (const int64_t count : {int64_t{1}, int64_t{5}, int64_t{4096}, int64_t{4097}, int64_t{50'001}}) {
      const auto of_rank = [&](int rank) { return random_array(dtype, {1, count}, uint64_t(7 + rank)); };
      attn::Array expected = of_rank(0).clone();
      for (int rank = 1; rank < world().size(); ++rank)
        ops::add(expected.flat(), of_rank(rank).flat(), expected.flat());
      const attn::Array mine = of_rank(world().rank()).clone();
      cluster::all_reduce(world(), mine.flat());
      EXPECT_EQ(numbers(mine), numbers(expected)) << count;
    }
}

TEST(ClusterTensor, GridsHaveThreeAxes) {
  for (const cluster::GridShape& shape : {cluster::GridShape{1, 1, 0}, {0, 1, 2}, {0, 2, 1}, {2, 0, 2}, {1, 2, 0}}) {
    const int known = std::max(1, shape.data) * std::max(1, shape.sequence) * std::max(1, shape.tensor);
    const int n = world().size() / known * known;
    if (n == 0) continue;
    const auto ranks = first_ranks(n);
    if (!ranks) continue;
    const cluster::RankGrid grid(*ranks, shape);
    const auto [D, S, T] = grid.shape();
    EXPECT_EQ(D * S * T, n);
    EXPECT_EQ(grid.tensor().size(), T);
    EXPECT_EQ(grid.sequence().size(), S);
    EXPECT_EQ(grid.replicas().size(), D * S);
    EXPECT_EQ((grid.data_place() * S + grid.sequence().rank()) * T + grid.tensor().rank(), ranks->rank());
    for (const cluster::Communicator* axis : {&grid.tensor(), &grid.sequence(), &grid.replicas()})
      if (axis->size() > 1) {
        EXPECT_EQ(axis->job_rank(axis->rank()), ranks->rank());
      }
  }
  EXPECT_NE(error_of([&] {
              cluster::RankGrid(world(), {.data = 1, .sequence = 1, .tensor = world().size() + 1});
            }).find("must multiply to the number of ranks"),
            std::string::npos);
}

// ------------------------------------------------------------------------------------------------------------ training

TEST(ClusterTensor, ModelsAreTrainedAsByOneProcess) {
  for (const auto& [name, config] : models_to_share()) {
    if (kQuick && name != "grouped heads" && name != "relative" && name != "adapters") continue;
    const Trained expected = train(config, nullptr);
    for (int n = fewest_ranks(); n <= world().size(); ++n)
      if (const auto ranks = first_grid(n, kShape))
        expect_near(name + ", " + std::to_string(n) + " ranks", config, train(config, ranks.get()), expected, *ranks);
  }
}

/// Grids of two and three axes.
TEST(ClusterTensor, ProductsOfTheAxes) {
  models::Config config = config_of("llama");
  config.kv_heads = 2;
  config.dropout = 0;  // ranks that share sequences draw other numbers
  const Trained expected = train(config, nullptr);
  for (const cluster::GridShape& shape : {cluster::GridShape{1, 2, 2}, {2, 1, 2}, {3, 1, 2}, {2, 2, 1}, {1, 2, 3}}) {
    const int n = shape.data * shape.sequence * shape.tensor;
    if (n > world().size()) continue;
    if (const auto ranks = first_grid(n, shape))
      expect_near(
          std::to_string(shape.data) + " x " + std::to_string(shape.sequence) + " x " + std::to_string(shape.tensor),
          config, train(config, ranks.get()), expected, *ranks);
  }
}

/// In any grid, with layers recomputed or not, and without other bits.
TEST(ClusterTensor, GradientsAreSentWhileTheBackwardRuns) {
  models::Config config = config_of("llama");
  config.hidden_dim = 8000;  // a bucket for each layer, on two ranks too
  config.kv_heads = 1;       // which two ranks have: its gradient is sent after the backward
  const TextDataset data = some_text();
  for (const cluster::GridShape& shape : {cluster::GridShape{1, 1, 2}, {1, 2, 1}, {1, 2, 2}, {2, 1, 2}, {2, 2, 1}}) {
    const int n = shape.data * shape.sequence * shape.tensor;
    if (n > world().size()) continue;
    const auto ranks = first_ranks(n);
    if (!ranks) continue;
    std::vector<int> tags;
    Watching watching(*ranks, tags);
    const cluster::RankGrid grid(watching, shape);
    for (const bool recompute : {false, true}) {
      std::vector<std::string> parameters;
      for (const bool overlap : {false, true}) {
        models::Model model = model_of(config, &grid);
        TrainerOptions options = short_training(&grid);
        options.accumulation = shape.data;
        options.recompute = recompute;
        options.overlap = overlap;
        Trainer trainer(model, data, options, "");
        trainer.step();  // after which the ranks know which gradients there are
        tags.clear();
        trainer.step();
        parameters.push_back(parameters_of(model));
        const auto of_layers = [](int tag) { return tag < kFirstTrainingTag; };
        const auto last_of_layers = std::find_if(tags.rbegin(), tags.rend(), of_layers).base();
        const bool overlapped = !std::all_of(tags.begin(), last_of_layers, of_layers);
        const bool sends = grid.replicas().size() > 1;
        EXPECT_EQ(overlapped, overlap && sends) << shape.data << shape.sequence << shape.tensor << recompute;
      }
      EXPECT_TRUE(parameters[0] == parameters[1]) << shape.data << shape.sequence << shape.tensor << recompute;
    }
  }
}

/// An encoder and a decoder, with cross-attention and relative positions.
TEST(ClusterTensor, LossesOfAnEncoderAndADecoder) {
  models::Config config = models::family("seq2seq");
  config.vocab_size = config.source_vocab_size = 23;
  config.context = kTokens;
  config.embed_dim = 48;
  config.layers = config.encoder_layers = 2;
  config.heads = 8;
  config.dropout = 0;
  models::Batch batch;
  batch.source = some_tokens(16, 23), batch.tokens = some_tokens(10, 23), batch.targets = some_tokens(10, 23);
  batch.targets[3] = ops::kIgnoreIndex;
  batch.target_weights = {1, 2, 1, 1, 0.5, 1, 1, 0, 1, 3};
  batch.sequences = 2, batch.length = 5, batch.source_length = 8;
  const auto loss_of = [&](models::Model& model) {
    autograd::Tape tape({.record = true, .training = true});
    const Value loss = model.loss(tape, batch);
    tape.backward(loss);
    model.parameters().add_up_gradients();
    return loss.data().number(0);
  };
  models::Model whole = model_of(config, nullptr);
  const double expected = loss_of(whole);
  for (int n = 1; n <= world().size(); ++n) {
    const auto ranks = first_grid(n, kShape);
    if (!ranks) continue;
    models::Model model = model_of(config, ranks.get());
    EXPECT_TRUE(close_float64({loss_of(model)}, {expected})) << n;
    for (const nn::Parameter& parameter : model.parameters().all()) {
      const attn::Array part = slice_of(whole.parameters().find(parameter.name)->value.gradient(), parameter.slice);
      EXPECT_TRUE(close_float64(numbers(parameter.value.gradient()), numbers(part))) << n << " " << parameter.name;
    }
  }
}

/// Masters and moments in float32; logits that differ by the rounding of bfloat16.
TEST(ClusterTensor, SixteenBits) {
  models::Config config = config_of("llama");
  config.kv_heads = 2;
  config.dropout = 0;
  config.query_key_norm = nn::QueryKeyNorm::rows;
  config.lora_rank = 2;
  config.lora_targets = "query,output,down";
  const models::Batch batch = some_text().training(0);
  const models::Model whole = model_of(config, nullptr, nn::Precision::bfloat16),
                      exact = model_of(config, nullptr, nn::Precision::float32);
  const auto loss_of = [&](const models::Model& model) {
    autograd::Tape tape;
    return model.loss(tape, batch).data().number(0);
  };
  const double rounding = std::abs(loss_of(whole) - loss_of(exact));
  if (const auto ranks = first_grid(std::min(2, world().size()), kShape)) {
    const models::Model model = model_of(config, ranks.get(), nn::Precision::bfloat16);
    EXPECT_NEAR(loss_of(model), loss_of(exact), 4 * rounding + 0.01);
  }
}

// --------------------------------------------------------------------------------------------- checkpoints, generation

/// A checkpoint has the whole model, whichever ranks have written it.
TEST(ClusterTensor, AnotherGridResumes) {
  models::Config config = config_of("llama");
  config.kv_heads = 2;
  config.dropout = 0;
  const Trained expected = train(config, nullptr);
  const TextDataset data = some_text();
  const std::vector<cluster::GridShape> shapes = {{1, 1, 2}, {2, 1, 2}, {3, 1, 1}, {1, 1, 4}, {1, 2, 2}};
  for (size_t at = 0; at < shapes.size(); ++at) {
    const Folder own;
    const std::string folder = cluster::gather(world(), own.path()).front();
    const auto run = [&](const cluster::GridShape& shape, bool resumes) {
      const int n = shape.data * shape.sequence * shape.tensor;
      const auto ranks = n <= world().size() ? first_grid(n, shape) : nullptr;
      if (ranks) {
        models::Model model = model_of(config, ranks.get());
        Trainer trainer(model, data, short_training(ranks.get()), folder);
        if (resumes) trainer.resume(nullptr);
        trainer.run({.stop = [&] { return !resumes && trainer.steps_done() == 2; }});
        for (const nn::Parameter& parameter : model.parameters().all()) {
          const attn::Array part = slice_of(expected.parameters.at(parameter.name), parameter.slice);
          if (resumes) {
            EXPECT_TRUE(close_float64(numbers(parameter.master), numbers(part))) << at << ", " << parameter.name;
          }
        }
      }
      cluster::synchronize(world(), "trained");
      return n <= world().size();
    };
    if (run(shapes[at], false)) run(shapes[(at + 1) % shapes.size()], true) || run({1, 1, 1}, true);
  }
}

TEST(ClusterTensor, TextsAreThoseOfOneProcess) {
  for (const auto& [name, config] : models_to_share()) {
    if (!config.causal) continue;
    const std::vector<int64_t> prompt = {3, 1, 4, 1, 5};
    const generate::GenerateOptions options = {.sampling = {.temperature = 0.8}, .max_new_tokens = 12};
    const models::Model whole = model_of(config, nullptr);
    const std::vector<int64_t> expected = generate::generate(whole, prompt, options).tokens;
    for (int n = std::max(2, fewest_ranks()); n <= world().size(); ++n)
      if (const auto ranks = first_grid(n, kShape)) {
        const models::Model model = model_of(config, ranks.get());
        EXPECT_EQ(generate::generate(model, prompt, options).tokens, expected) << name << ", " << n << " ranks";
      }
  }
}

/// The logits after a prompt, and after one more token.
Values logits_of(const models::Model& model, models::ModelCache cache, const std::vector<int64_t>& prompt) {
  Values all;
  for (const std::vector<int64_t>& tokens : {prompt, {7}}) {
    autograd::Tape tape;
    const models::Batch batch{.tokens = tokens, .sequences = 1, .length = std::ssize(tokens)};
    const Values last = numbers(model.forward(tape, batch, {.cache = &cache, .last_only = true}).data());
    all.insert(all.end(), last.begin(), last.end());
  }
  return all;
}

/// Ranks that share the tokens of a text, and perhaps the layers: prompts that they divide, and that are too short, and
/// new tokens that one rank after the other keeps.
TEST(ClusterTensor, TextsWithASharedCache) {
  for (const auto& [name, given] : models_to_share()) {
    models::Config config = given;
    config.context = 400;
    if (!config.causal || config.positions == models::PositionEncoding::alibi ||
        config.positions == models::PositionEncoding::relative)
      continue;
    const models::Model whole = model_of(config, nullptr);
    for (const int64_t length : {3, 250}) {
      const std::vector<int64_t> prompt = some_tokens(length, 23);
      generate::GenerateOptions options = {.sampling = {.temperature = 0.8}, .max_new_tokens = 20};
      const std::vector<int64_t> expected = generate::generate(whole, prompt, options).tokens;
      const Values logits = logits_of(whole, whole.new_cache(), prompt);
      for (const cluster::GridShape& shape : {cluster::GridShape{1, 0, 1}, {1, 2, 2}, {1, 3, 2}}) {
        const int n = shape.sequence == 0 ? world().size() : shape.sequence * shape.tensor;
        const auto ranks = n <= world().size() ? first_grid(n, shape) : nullptr;
        if (!ranks) continue;
        const models::Model model = model_of(config, ranks.get());
        options.sequence_ranks = &ranks->sequence();
        EXPECT_TRUE(close_float64(logits_of(model, model.new_shared_cache(ranks->sequence()), prompt), logits))
            << name << ", " << length << " tokens, " << shape.sequence << " x " << shape.tensor;
        EXPECT_EQ(generate::generate(model, prompt, options).tokens, expected)
            << name << ", " << length << " tokens, " << shape.sequence << " x " << shape.tensor;
      }
    }
  }
}

/// Each rank has about as many keys and values as the others.
TEST(ClusterTensor, ASharedCacheIsDivided) {
  models::Config config = config_of("llama");
  config.context = 2000;
  const models::Model model = model_of(config, nullptr, nn::Precision::bfloat16);
  models::ModelCache whole = model.new_cache(), shared = model.new_shared_cache(world());
  models::Batch batch{.tokens = some_tokens(1792, 23), .sequences = 1, .length = 1792};
  const auto last = [&](models::ModelCache& cache) {
    autograd::Tape tape;
    return numbers(model.forward(tape, batch, {.cache = &cache, .last_only = true}).data());
  };
  const Values expected = last(whole), got = last(shared);
  for (size_t n = 0; n < expected.size(); ++n) EXPECT_NEAR(got[n], expected[n], 0.05);
  EXPECT_EQ(shared.length(), 1792);
  EXPECT_LE(shared.bytes(), whole.bytes() / world().size() * 3 / 2);
  batch = {.tokens = {5}, .sequences = 1, .length = 1};
  const Values next = last(whole), of_ranks = last(shared);
  for (size_t n = 0; n < next.size(); ++n) EXPECT_NEAR(of_ranks[n], next[n], 0.05);
  if (world().size() == 1) return;
  EXPECT_THROW(shared.truncate(5), Error);
  EXPECT_THROW(shared.fork(0, 5), Error);
  shared.truncate(0);
  EXPECT_EQ(shared.length(), 0);
}

// -------------------------------------------------------------------------------------------------------------- errors

TEST(ClusterTensor, CachesThatRanksCannotShare) {
  models::Config window = config_of("llama"), alibi = window, both = window;
  window.window = 8;
  alibi.positions = models::PositionEncoding::alibi;
  models::set_mixers(both, "linear");
  for (const models::Config& config : {window, alibi, both}) {
    const std::string error = error_of([&] { model_of(config, nullptr).new_shared_cache(world()); });
    EXPECT_NE(error.find("without windows, ALiBi and relative positions"), std::string::npos) << error;
  }
  const models::Model model = model_of(config_of("llama"), nullptr);
  generate::GenerateOptions beams = {.max_new_tokens = 2, .sequence_ranks = &world()};
  beams.beam.num_beams = 2;
  const std::vector<int64_t> prompt = {1, 2};
  EXPECT_NE(error_of([&] { generate::generate(model, prompt, beams); }).find("without beams"), std::string::npos);
}

TEST(ClusterTensor, WhatRanksCannotShare) {
  if (world().size() == 1) return;
  models::Config few = config_of("gpt"), linear = few;
  few.heads = 1;
  models::set_mixers(linear, "linear");
  const auto ranks = first_grid(2, kShape);
  if (!ranks) return;
  const auto error = [&](const models::Config& config) { return error_of([&] { model_of(config, ranks.get()); }); };
  EXPECT_NE(error(few).find("2 ranks cannot share the 1 heads of a layer"), std::string::npos) << error(few);
  EXPECT_NE(error(linear).find("with multi-head attention alone"), std::string::npos) << error(linear);
  const models::Model model = model_of(config_of("gpt"), ranks.get());
  std::vector<nn::AttentionTrace> traces;
  autograd::Tape tape;
  EXPECT_NE(error_of([&] { model.forward(tape, some_text().training(0), {.traces = &traces}); }).find("no recorder"),
            std::string::npos);
}

/// A target that is in the columns of no rank, or of several, is an error on all.
TEST(ClusterTensor, TargetsThatOneRankMustHave) {
  const int64_t own = 4 * world().rank();
  const Value logits(random_array(DType::float32, {2, 4}, 3));
  autograd::Tape tape;
  const auto error = [&](int64_t target, int64_t first) {
    return error_of([&] { cross_entropy_over_ranks(tape, logits, {1, target}, {}, first, world()); });
  };
  EXPECT_EQ(error(2, own), "");
  EXPECT_NE(error(4 * world().size(), own).find("targets[1] is in the columns of 0 ranks"), std::string::npos);
  if (world().size() > 1) {
    EXPECT_NE(error(2, 0).find("targets[0] is in the columns of"), std::string::npos);
  }
}

/// Parameters and grid must have the same ranks.
TEST(ClusterTensor, ModelsThatAreMadeForOtherRanks) {
  if (world().size() == 1) return;
  const auto ranks = first_grid(2, kShape);
  if (!ranks) return;
  const TextDataset data = some_text();
  models::Model whole = model_of(config_of("gpt"), nullptr);
  const std::string error = error_of([&] { Trainer(whole, data, short_training(ranks.get()), ""); });
  EXPECT_NE(error.find("made for 1 tensor ranks, and the grid has 2"), std::string::npos) << error;
}

[[noreturn]] void fail() { throw Error("loss", {"the disk is gone"}); }

/// The loss, whose backward fails.
Value failing_backward(autograd::Tape& tape, const Value& loss) {
  const Value same = tape.result("failing", loss.data(), {loss});
  tape.record(same, fail);
  return same;
}

/// One rank of a grid fails in a forward or in a backward, in the second step: all end, with its number and reason.
TEST(ClusterTensor, OneRankOfAGridFails) {
  for (const cluster::GridShape& shape : {cluster::GridShape{1, 1, 0}, {1, 2, 2}, {2, 1, 2}, {1, 2, 3}, {2, 2, 1}}) {
    const int n = shape.tensor ? shape.data * shape.sequence * shape.tensor : world().size();
    if (n > world().size() || n == 1) continue;
    const auto ranks = first_grid(n, shape);
    if (!ranks) continue;
    for (const bool in_backward : {false, true}) {
      models::Config config = config_of("gpt");
      config.dropout = 0;
      models::Model model = model_of(config, ranks.get());
      const TextDataset data = some_text();
      const TrainerOptions options = short_training(ranks.get());
      models::Batch batch;
      std::optional<autograd::SharedSequence> sequence;
      Trainer trainer(
          model.parameters(),
          [&](autograd::Tape& tape, uint64_t number) -> BatchLoss {
            const bool fails = ranks->all().rank() == n - 1 && number >= static_cast<uint64_t>(options.accumulation);
            if (fails && !in_backward) fail();
            models::ForwardOptions forward;
            batch = data.training(number);
            if (ranks->sequence().size() > 1) {
              sequence.emplace(ranks->sequence(), cluster::Placement::zigzag(kTokens, ranks->sequence().size()));
              batch = models::shard_of(batch, *sequence);
              forward.sequence = &*sequence;
            }
            const Value loss = model.loss(tape, batch, forward);
            return fails ? failing_backward(tape, loss) : loss;
          },
          options);
      trainer.step();
      const std::string error = error_of([&] { trainer.step(); });
      EXPECT_NE(error.find("rank " + std::to_string(n - 1) + ": the disk is gone"), std::string::npos) << error;
      EXPECT_EQ(error.find("rank", error.find("rank") + 1), std::string::npos) << error;
    }
  }
}

/// A weight that is not finite on one rank.
TEST(ClusterTensor, ALossThatIsNotFinite) {
  const auto ranks = first_grid(std::min(2, world().size()), kShape);
  if (!ranks) return;
  models::Model model = model_of(config_of("gpt"), ranks.get());
  const TextDataset data = some_text();
  Trainer trainer(model, data, short_training(ranks.get()), "");
  trainer.step();
  if (ranks->all().rank() == ranks->all().size() - 1)
    model.parameters().find("blocks.1.attention.output.weight")->value.data().data<double>()[0] = NAN;
  const std::string error = error_of([&] { trainer.step(); });
  EXPECT_NE(error.find("step 2: the loss is not finite; first: block 1: attention"), std::string::npos) << error;
}

}  // namespace
}  // namespace attn::test
