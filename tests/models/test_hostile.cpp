// models, train and generate under calls that nobody should make: each is an Error that says what is wrong.
#include <cmath>
#include <filesystem>
#include <limits>

#include "attn/generate_text.h"
#include "attn/train.h"
#include "support/hostile.h"

namespace attn::test {
namespace {

using namespace models;

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr int64_t kLargest = std::numeric_limits<int64_t>::max();

Config tiny(const std::string& name = "gpt") {
  Config config = family(name);
  config.vocab_size = 11;
  config.context = 8;
  config.embed_dim = 8;
  config.heads = 2;
  config.layers = 2;
  return config;
}

Model model(const Config& config = tiny()) { return Model(config, nn::Precision::float32); }

Model moved_away() {
  Model first = model();
  const Model second = std::move(first);
  return first;  // NOLINT: on purpose
}

/// Two texts of three tokens, and the tokens after each.
Batch good() {
  Batch batch;
  batch.sequences = 2;
  batch.length = 3;
  batch.tokens = {1, 2, 3, 4, 5, 6};
  batch.targets = {2, 3, 4, 5, 6, 7};
  return batch;
}

void forward(const Batch& batch, const ForwardOptions& options = {}, const Config& config = tiny()) {
  Tape tape;
  model(config).forward(tape, batch, options);
}

void loss(const Batch& batch, const Config& config = tiny()) {
  Tape tape;
  model(config).loss(tape, batch);
}

template <class Change>
Batch changed(const Change& change) {
  Batch batch = good();
  change(batch);
  return batch;
}

TEST(HostileModels, Configurations) {
  expect_refused({
      {"no such family", [] { family("bert"); }, {"[model]", "bert", "gpt"}},
      {"a default configuration", [] { check(Config()); }, {"[model]", "vocab_size"}},
      {"zeros",
       [] {
         Config config = tiny();
         config.heads = config.kv_heads = config.embed_dim = config.layers = config.context = 0;
         check(config);
       },
       {"[model]", "heads", "embed_dim", "layers", "context"}},
      {"negative numbers",
       [] {
         Config config = tiny();
         config.heads = config.kv_heads = config.hidden_dim = config.classes = config.window = -1;
         check(config);
       },
       {"[model]", "heads", "kv_heads", "hidden_dim", "classes", "window"}},
      {"NaN",
       [] {
         Config config = tiny();
         config.norm_epsilon = config.rope_theta = config.dropout = kNaN;
         check(config);
       },
       {"[model]", "norm_epsilon", "rope_theta", "dropout"}},
      {"names that there are not",
       [] {
         Config config = tiny();
         config.model = "x";
         config.pooling = static_cast<ClassifierPooling>(9);
         config.positions = static_cast<PositionEncoding>(-1);
         config.norm = static_cast<NormKind>(2);
         config.activation = static_cast<Activation>(99);
         config.init = static_cast<Initialization>(7);
         check(config);
       },
       {"[model]", "model", "pooling", "positions", "norm", "activation", "init"}},
      {"text that JSON cannot hold",
       [] {
         Config config = tiny();
         config.model = "\xff";
         to_json(config);
       },
       {"[config]", "model"}},
      {"NaN as JSON",
       [] {
         Config config = tiny();
         config.dropout = kNaN;
         to_json(config);
       },
       {"[config]", "dropout"}},
      {"JSON of a list",
       [] {
         Config config;
         apply_json(config, "[]", "here");
       },
       {"[config]", "here"}},
      {"a field that there is not",
       [] {
         Config config;
         set_field(config, "\xff", "\xff");
       },
       {"[config]", "unknown field"}},
      {"a value beyond all limits",
       [] {
         Config config;
         set_field(config, "layers", std::string(100000, '9'));
       },
       {"[config]", "layers"}},
  });
}

TEST(HostileModels, Batches) {
  expect_refused({
      {"a default batch", [] { forward(Batch()); }, {"[model]", "0 sequences of 0 tokens"}},
      {"negative sizes",
       [] { forward(changed([](Batch& b) { b.sequences = -2, b.length = -3; })); },
       {"[model]", "-2 sequences of -3 tokens"}},
      {"sizes that overflow",
       [] { forward(changed([](Batch& b) { b.sequences = b.length = kLargest / 2; })); },
       {"[model]", "6 tokens"}},
      {"tokens too few", [] { forward(changed([](Batch& b) { b.tokens.pop_back(); })); }, {"[model]", "5 tokens"}},
      {"a token outside",
       [] { forward(changed([](Batch& b) { b.tokens[4] = 11; })); },
       {"[model]", "tokens[4] is 11", "[0, 11)"}},
      {"a negative token",
       [] { forward(changed([](Batch& b) { b.tokens[0] = -1; })); },
       {"[model]", "tokens[0] is -1"}},
      {"a length too few", [] { forward(changed([](Batch& b) { b.lengths = {3}; })); }, {"[model]", "1 lengths"}},
      {"a length 0",
       [] { forward(changed([](Batch& b) {
              b.lengths = {3, 0};
            })); },
       {"[model]", "lengths[1] is 0", "[1, 4)"}},
      {"a length beyond L",
       [] { forward(changed([](Batch& b) {
              b.lengths = {4, 3};
            })); },
       {"[model]", "lengths[0] is 4"}},
      {"more tokens than the context",
       [] {
         Batch batch;
         batch.sequences = 1;
         batch.length = 9;
         batch.tokens.assign(9, 1);
         forward(batch);
       },
       {"[model]", "9 tokens", "context of 8"}},
      {"a target too few", [] { loss(changed([](Batch& b) { b.targets.pop_back(); })); }, {"[model]", "5 targets"}},
      {"no targets", [] { loss(changed([](Batch& b) { b.targets.clear(); })); }, {"[model]", "0 targets"}},
      {"a target outside", [] { loss(changed([](Batch& b) { b.targets[1] = 11; })); }, {"[model]", "targets[1] is 11"}},
      {"a class outside",
       [] {
         loss(changed([](Batch& b) { b.targets = {0, 2}; }), tiny("encoder"));
       },
       {"[model]", "targets[1] is 2"}},
      {"all is wrong at once",
       [] { forward(changed([](Batch& b) {
              b.tokens[0] = -1, b.lengths = {9, 9};
            })); },
       {"tokens[0]", "lengths[0]"}},
      {"the model has been moved from",
       [] {
         Tape tape;
         moved_away().forward(tape, good());
       },
       {"[model]", "moved from"}},
      {"parameters of a model that has been moved from", [] { moved_away().parameters(); }, {"[model]", "moved"}},
      {"tensors of a model that has been moved from", [] { moved_away().tensors(); }, {"[model]", "moved"}},
      {"FLOPs of a negative length", [] { forward_flops(model().config(), -1); }, {"[model]", "-1"}},
      {"FLOPs after a negative cache", [] { forward_flops(model().config(), 1, -2); }, {"[model]", "-2"}},
      {"the cache of no heads", [] { cache_bytes_per_token({.heads = 0}, DType::float32); }, {"[model]", "heads"}},
      {"the memory of no sequences",
       [] { training_memory(model().config(), nn::Precision::float32, 0, -4); },
       {"[model]", "sequences is 0 and length -4"}},
      {"an empty file", [] { model().load(io::Safetensors()); }, {"[load]", "tokens.weight", "norm.weight"}},
  });
}

/// All but one of the parameters of another model.
TEST(HostileModels, AFileThatLacksAParameterChangesNothing) {
  const Model other(tiny(), nn::Precision::float32, 7);
  std::vector<io::NamedTensor> tensors = other.tensors();
  tensors.pop_back();
  const io::Safetensors file = io::Safetensors::parse(io::format_safetensors(tensors, {}), "here");
  Model own = model();
  const std::string before = io::format_safetensors(own.tensors(), {});
  EXPECT_THROW(own.load(file), Error);
  EXPECT_EQ(io::format_safetensors(own.tensors(), {}), before);
}

/// Two packed sequences that continue these of a cache of two.
void step_of(const std::vector<int64_t>& sequences) {
  const Model gpt = model();
  ModelCache cache = gpt.new_cache(2);
  Tape tape;
  gpt.forward(tape, {.tokens = {1, 2, 3}, .sequences = 2, .length = 3, .cu_seqlens = {0, 1, 3}},
              {.cache = &cache, .cache_sequences = sequences});
}

TEST(HostileModels, Caches) {
  expect_refused({
      {"for no sequences", [] { model().new_cache(0); }, {"[model]", "sequences is 0"}},
      {"for negative sequences", [] { model().new_cache(-3); }, {"[model]", "sequences is -3"}},
      {"of a model that has been moved from", [] { moved_away().new_cache(); }, {"[model]", "moved"}},
      {"of a model that is not causal", [] { model(tiny("encoder")).new_cache(); }, {"[model]", "causal"}},
      {"a default one",
       [] {
         ModelCache cache;
         forward(good(), {.cache = &cache});
       },
       {"[model]", "cache"}},
      {"one for another number of sequences",
       [] {
         ModelCache cache = model().new_cache(3);
         forward(good(), {.cache = &cache});
       },
       {"[model]", "3 sequences", "2"}},
      {"one of a deeper model",
       [] {
         Config deep = tiny();
         deep.layers = 3;
         ModelCache cache = model(deep).new_cache(2);
         forward(good(), {.cache = &cache});
       },
       {"[model]", "3 layers", "2"}},
      {"one of a wider model",
       [] {
         Config wide = tiny();
         wide.embed_dim = 16;
         ModelCache cache = model(wide).new_cache(2);
         forward(good(), {.cache = &cache});
       },
       {"[model]", "heads of width 8", "4"}},
      {"one that has been moved from",
       [] {
         ModelCache cache = model().new_cache(2);
         const ModelCache other = std::move(cache);
         forward(good(), {.cache = &cache});  // NOLINT: on purpose
       },
       {"[model]", "cache"}},
      {"one that is full",
       [] {
         const Model gpt = model();
         ModelCache cache = gpt.new_cache(2);
         for (int n = 0; n < 3; ++n) {
           Tape tape;
           gpt.forward(tape, good(), {.cache = &cache});
         }
       },
       {"[model]", "9 tokens", "context of 8"}},
      {"of unequal texts and a batch that is not packed",
       [] {
         const Model gpt = model();
         ModelCache cache = gpt.new_cache(2);
         Tape tape;
         gpt.forward(tape, good(), {.cache = &cache});
         cache.truncate(1, 1);
         gpt.forward(tape, good(), {.cache = &cache});
       },
       {"[model]", "sequence 1 of the cache has 1 tokens and the first 3", "equal unless the batch is packed"}},
      {"with sequences that it does not have",
       [] {
         step_of({0, 2});
       },
       {"[model]", "cache_sequences[1] is 2", "[0, 2)"}},
      {"with a sequence twice",
       [] {
         step_of({1, 1});
       },
       {"[model]", "name a sequence twice"}},
      {"with too few sequences", [] { step_of({1}); }, {"[model]", "1 cache_sequences are given for 2"}},
      {"truncated in a sequence that it does not have",
       [] { model().new_cache().truncate(1, 0); },
       {"[ModelCache]", "the sequence is 1", "[0, 1)"}},
      {"forked beyond its end", [] { model().new_cache().fork(0, 1); }, {"length is 1, must be in [0, 0]"}},
      {"a default one grows", [] { ModelCache().add(); }, {"[ModelCache]", "attention in all layers"}},
      {"with lengths",
       [] {
         ModelCache cache = model().new_cache(2);
         forward(changed([](Batch& b) { b.lengths = {1, 3}; }), {.cache = &cache});
       },
       {"[model]", "lengths"}},
      {"while the tape records",
       [] {
         ModelCache cache = model().new_cache(2);
         Tape tape({.record = true});
         model().forward(tape, good(), {.cache = &cache});
       },
       {"[model]", "record"}},
      {"truncated beyond its end",
       [] {
         ModelCache cache = model().new_cache();
         cache.truncate(1);
       },
       {"[ModelCache]", "[0, 0]"}},
      {"a default one is truncated", [] { ModelCache().truncate(1); }, {"[ModelCache]", "1"}},
  });
}

TEST(HostileModels, Checkpoints) {
  expect_refused({
      {"neither last nor best",
       [] { Checkpoints("/no/such/folder").load("foo", nullptr); },
       {"[checkpoint]", "\"foo\"", "last"}},
      {"load from nowhere",
       [] { Checkpoints("/no/such/folder").load("last", nullptr); },
       {"[checkpoint]", "/no/such/folder"}},
      {"load from a file", [] { Checkpoints("/etc/passwd").load("last", nullptr); }, {"[checkpoint]", "/etc/passwd"}},
      {"load from a path beyond all limits",
       [] { Checkpoints("/" + std::string(10000, 'x')).load("best", nullptr); },
       {"[checkpoint]"}},
      {"a directory without a name", [] { Checkpoints(""); }, {"[checkpoint]", "directory"}},
      {"save nowhere", [] { Checkpoints("/no/such/folder").save(1, {}, "{}", false, false); }, {"/no/such/folder"}},
      {"save a negative step",
       [] { Checkpoints("/no/such/folder").save(-1, {}, "{}", false, false); },
       {"[checkpoint]", "-1"}},
      {"save a tensor without data",
       [] {
         Checkpoints("/no/such/folder")
             .save(1, std::vector<io::NamedTensor>{{"x", DType::float32, {2}}}, "{}", false, false);
       },
       {"\"x\"", "no data"}},
      {"save a tensor of a negative extent",
       [] {
         Checkpoints("/no/such/folder")
             .save(1, std::vector<io::NamedTensor>{{"x", DType::float32, {-2}, "abc"}}, "{}", false, false);
       },
       {"\"x\"", "[-2]"}},
      {"save a state that is not UTF-8",
       [] { Checkpoints("/no/such/folder").save(1, {}, "\xff", false, false); },
       {"not UTF-8"}},
      {"a model from nowhere", [] { load_model("/no/such/folder"); }, {"[load] /no/such/folder: there is no such"}},
      {"a model from nothing", [] { load_model(""); }, {"the path is empty"}},
      {"a model neither last nor best", [] { load_model("/no/such/folder", "foo"); }, {"\"foo\""}},
  });
  EXPECT_FALSE(Checkpoints("/no/such/folder").last_step());
  EXPECT_FALSE(Checkpoints("/etc/passwd").last_step());
}

// ---------------------------------------------------------------------------------------------------------- generation

int64_t sample(std::vector<float> logits, std::vector<int64_t> seen, const generate::SamplingOptions& options = {}) {
  Random random(1);
  return generate::sample(logits, seen, options, random);
}

generate::Generated generated(const std::vector<int64_t>& prompt, const generate::GenerateOptions& options = {}) {
  return generate::generate(model(), prompt, options);
}

TEST(HostileModels, Generation) {
  expect_refused({
      {"no logits", [] { sample({}, {}); }, {"[sample]", "no logits"}},
      {"a logit that is NaN",
       [] {
         sample({0, std::nanf("")}, {});
       },
       {"[sample]", "token 1 is NaN"}},
      {"an id seen outside",
       [] {
         sample({0, 0}, {0, 2});
       },
       {"[sample]", "seen[1] is 2", "[0, 2)"}},
      {"a negative id seen",
       [] {
         sample({0, 0}, {-1}, {.repetition_penalty = 2});
       },
       {"[sample]", "seen[0] is -1"}},
      {"options that are NaN",
       [] {
         sample({0}, {}, {.temperature = kNaN, .top_k = -1, .top_p = kNaN, .min_p = kNaN, .repetition_penalty = kNaN});
       },
       {"[sample]", "temperature", "top_k", "top_p", "min_p", "repetition_penalty"}},
      {"an infinite penalty",
       [] { sample({0}, {}, {.repetition_penalty = kInfinity}); },
       {"[sample]", "repetition_penalty"}},
      {"no prompt", [] { generated({}); }, {"[generate]", "at least one token"}},
      {"a prompt of a token outside",
       [] {
         generated({1, 11});
       },
       {"[generate]", "prompt[1] is 11"}},
      {"a negative number of tokens", [] { generated({1}, {.max_new_tokens = -1}); }, {"[generate]", "max_new_tokens"}},
      {"options of sampling", [] { generated({1}, {.sampling = {.top_p = 0}, .max_new_tokens = 0}); }, {"top_p"}},
      {"a classifier",
       [] {
         Config config = tiny();
         config.classes = 3;
         generate::generate(model(config), std::vector<int64_t>{1}, {});
       },
       {"[generate]", "classifie"}},
      {"a model that has been moved from",
       [] { generate::generate(moved_away(), std::vector<int64_t>{1}, {}); },
       {"[model]", "moved"}},
      {"an empty stop text",
       [] {
         generate::StopFilter({"a", ""});
       },
       {"[StopFilter]", "empty"}},
  });
}

// ------------------------------------------------------------------------------------------------------------ training

using namespace train;

TextDataset text(int64_t batch = 2) { return TextDataset(std::vector<int64_t>(200, 1), 8, batch, 1); }
LabelledDataset labelled(std::vector<Labelled> rows) { return LabelledDataset(rows, {{{1}, 0}}, 8, 2, 1); }

TEST(HostileTraining, Data) {
  expect_refused({
      {"no text", [] { TextDataset({}, 8, 2, 1); }, {"[data]", "too short"}},
      {"a negative token", [] { TextDataset(std::vector<int64_t>(200, -1), 8, 2, 1); }, {"[data]", "tokens[0] is -1"}},
      {"negative sizes",
       [] { TextDataset(std::vector<int64_t>(200, 1), -8, -2, 1); },
       {"[data]", "batch is -2 and context -8"}},
      {"a batch beyond all memory", [] { text(kLargest); }, {"[data]", "batch"}},
      {"no validation",
       [] { TextDataset(std::vector<int64_t>(200, 1), 8, 2, 1, 0); },
       {"[data]", "validation_batches"}},
      {"validation of all tokens", [] { TextDataset(std::vector<int64_t>(200, 1), 8, 2, 1, 1, 195); }, {"[data]", "5"}},
      {"validation of less than none",
       [] { TextDataset(std::vector<int64_t>(200, 1), 8, 2, 1, 1, INT64_MIN); },
       {"[data]"}},
      {"validation beyond the last batch", [] { text().validation(999); }, {"[data]", "validation batch is 999"}},
      {"validation before the first batch", [] { text().validation(-1); }, {"[data]", "validation batch is -1"}},
      {"text that has been moved from",
       [] {
         TextDataset first = text();
         const TextDataset second = std::move(first);
         first.training(0);  // NOLINT: on purpose
       },
       {"[data]", "moved from"}},
      {"no sentences",
       [] { LabelledDataset({}, {}, 0, 0, 1, {.word_dropout = kNaN}); },
       {"train on", "validate with", "word_dropout"}},
      {"a label -1",
       [] {
         labelled({{{1}, 0}, {{1}, -1}});
       },
       {"[data]", "training[1]", "label -1"}},
      {"a sentence of no tokens",
       [] {
         labelled({{{}, 0}});
       },
       {"[data]", "training[0]", "no tokens"}},
      {"a negative token in a sentence",
       [] {
         labelled({{{1, -4}, 0}});
       },
       {"[data]", "training[0]", "-4"}},
      {"validation sentences are checked too",
       [] {
         LabelledDataset({{{1}, 0}}, {{{}, -1}}, 8, 2, 1);
       },
       {"[data]", "validation[0]", "no tokens", "label -1"}},
      {"sentences: a batch beyond all memory",
       [] {
         LabelledDataset({{{1}, 0}}, {{{1}, 0}}, 8, kLargest, 1);
       },
       {"[data]", "batch"}},
      {"sentences: validation beyond the last batch",
       [] {
         labelled({{{1}, 0}}).validation(999);
       },
       {"[data]", "validation batch is 999"}},
      {"sentences: validation before the first batch",
       [] {
         labelled({{{1}, 0}}).validation(-1);
       },
       {"[data]", "validation batch is -1"}},
      {"sentences that have been moved away",
       [] {
         LabelledDataset first = labelled({{{1}, 0}});
         const LabelledDataset second = std::move(first);
         first.training(0);  // NOLINT: on purpose
       },
       {"[data]", "moved from"}},
      {"labels from nowhere", [] { read_labelled("/no/such/file"); }, {"/no/such/file"}},
  });
}

/// Data that a program wrote wrongly.
struct Wrong : TextDataset {
  explicit Wrong(int64_t batches = 1) : TextDataset(text()), batches_(batches) {}
  Batch validation(int64_t number) const override {
    Batch batch = TextDataset::validation(number);
    batch.targets.pop_back();
    return batch;
  }
  int64_t validation_batches() const override { return batches_; }
  int64_t batches_;
};

void train_in(const std::string& directory, const TrainerOptions& options = {}) {
  Model gpt = model();
  const TextDataset data = text();
  Trainer trainer(gpt, data, options, directory);
}

TEST(HostileTraining, Trainer) {
  expect_refused({
      {"a rate before the first step", [] { learning_rate({}, -1); }, {"[learning_rate]", "-1"}},
      {"a rate of nonsense", [] { learning_rate({.steps = -5, .learning_rate = kNaN}, 0); }, {"[train]", "steps"}},
      {"options that are NaN",
       [] {
         train_in("", {.learning_rate = kNaN,
                       .min_learning_rate = kNaN,
                       .beta1 = kNaN,
                       .epsilon = kNaN,
                       .weight_decay = kNaN,
                       .clip = kNaN});
       },
       {"[train]", "learning_rate is", "beta1", "epsilon", "weight_decay"}},
      {"an infinite learning rate",
       [] { train_in("", {.learning_rate = kInfinity}); },
       {"[train]", "learning_rate is"}},
      {"a directory that is a file", [] { train_in("/etc/passwd"); }, {"[train]", "/etc/passwd"}},
      {"a directory that is not there",
       [] {
         Model gpt = model();
         const TextDataset data = text();
         Trainer(gpt, data, {}, "/no/such/folder").run({});
       },
       {"[train]", "/no/such/folder", "does not exist"}},
      {"resume without a directory",
       [] {
         Model gpt = model();
         const TextDataset data = text();
         Trainer(gpt, data, {}, "").resume(nullptr);
       },
       {"[checkpoint]", "directory"}},
      {"validate with nothing", [] { validate(model(), Wrong(0)); }, {"[validate]", "nothing"}},
      {"validate with targets too few", [] { validate(model(), Wrong()); }, {"targets"}},
      {"a step on tokens outside the vocabulary",
       [] {
         Model gpt = model();
         const TextDataset data(std::vector<int64_t>(200, 11), 8, 2, 1);
         Trainer(gpt, data, {}, "").step();
       },
       {"[model]", "tokens[0] is 11", "targets[0] is 11"}},
      {"a model that has been moved from",
       [] {
         Model gone = moved_away();
         const TextDataset data = text();
         Trainer(gone, data, {}, "");
       },
       {"[model]", "moved"}},
  });
}

}  // namespace
}  // namespace attn::test
