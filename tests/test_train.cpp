// Training: the schedule, data, exact resuming, what is not finite, damaged checkpoints.
#include "attn/train.h"

#include <cmath>
#include <filesystem>
#include <fstream>

#include "layers.h"

namespace attn::test {
namespace {

using namespace train;
namespace fs = std::filesystem;

/// A directory that is gone with the test.
class Folder {
 public:
  Folder()
      : path_(fs::temp_directory_path() / ("attn_train_" + std::to_string(getpid()) + "_" + std::to_string(++count_))) {
    fs::create_directories(path_);
  }
  ~Folder() {
    std::error_code ignored;
    fs::permissions(path_, fs::perms::owner_all, ignored);
    fs::remove_all(path_, ignored);
  }
  std::string path() const { return path_.string(); }
  std::string operator/(const std::string& name) const { return (path_ / name).string(); }

 private:
  static inline int count_ = 0;
  fs::path path_;
};

std::vector<int64_t> some_tokens(int64_t count, int64_t vocabulary) {
  Random random(4);
  std::vector<int64_t> tokens(static_cast<size_t>(count));
  for (int64_t n = 0; n < count; ++n)
    tokens[n] = n % 3 ? (tokens[n - 1] * 5 + 1) % vocabulary : random.below(vocabulary);
  return tokens;
}

models::Config tiny(double dropout = 0.1) {
  models::Config config = models::family("gpt");
  config.vocab_size = 11;
  config.context = 12;
  config.embed_dim = 16;
  config.layers = 2;
  config.heads = 2;
  config.dropout = dropout;
  return config;
}

Options short_run() {
  Options options;
  options.steps = 20;
  options.accumulation = 2;
  options.warmup = 3;
  options.eval_every = 7;
  options.save_every = 5;
  return options;
}

TextData text() { return TextData(some_tokens(600, 11), 12, 3, 5, 4); }

// ----------------------------------------------------------------------------------------------------------- schedule

TEST(Schedule, WarmsUpThenFallsAsACosine) {
  Options options;
  options.steps = 1100;
  options.warmup = 100;
  options.learning_rate = 1;
  options.min_learning_rate = 0.2;
  EXPECT_DOUBLE_EQ(learning_rate(options, 0), 1.0 / 101);
  EXPECT_DOUBLE_EQ(learning_rate(options, 99), 100.0 / 101);
  EXPECT_DOUBLE_EQ(learning_rate(options, 100), 1);
  EXPECT_DOUBLE_EQ(learning_rate(options, 600), 0.6);
  EXPECT_DOUBLE_EQ(learning_rate(options, 1100), 0.2);
  EXPECT_DOUBLE_EQ(learning_rate(options, 5000), 0.2);
}

TEST(Schedule, BadOptionsAreAllNamed) {
  models::Model model(tiny(), nn::Precision::float32);
  const TextData data = text();
  Options options;
  options.steps = 0;
  options.learning_rate = -1;
  options.beta2 = 1;
  options.clip = NAN;
  try {
    Trainer trainer(model, data, options, "");
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.reasons().size(), 5u) << error.what();
  }
}

/// The same batch once or twice an update: the same update.
TEST(Schedule, AccumulatedBatchesAreAveraged) {
  struct Same : TextData {
    using TextData::TextData;
    models::Batch training(uint64_t) const override { return TextData::training(0); }
  };
  const Same data(some_tokens(600, 11), 12, 3, 5, 4);
  const auto step = [&](int64_t accumulation) {
    models::Model model(tiny(0), nn::Precision::float64, 1);
    Options options = short_run();
    options.accumulation = accumulation;
    return Trainer(model, data, options, "").step();
  };
  const StepReport once = step(1), twice = step(2);
  EXPECT_EQ(once.loss, twice.loss);
  EXPECT_TRUE(close_float64({once.gradient_norm}, {twice.gradient_norm}));
}

// --------------------------------------------------------------------------------------------------------------- data

TEST(Data, TextCropsAreFunctionsOfTheirNumber) {
  const TextData data = text();
  const models::Batch a = data.training(3), b = data.training(3), c = data.training(4);
  EXPECT_EQ(a.tokens, b.tokens);
  EXPECT_NE(a.tokens, c.tokens);
  ASSERT_EQ(a.tokens.size(), 36u);
  for (size_t n = 0; n + 1 < 12; ++n) EXPECT_EQ(a.targets[n], a.tokens[n + 1]);
}

TEST(Data, ValidationIsNotTrainedOn) {
  std::vector<int64_t> tokens(200, 0);
  for (size_t n = 180; n < 200; ++n) tokens[n] = 1;
  const TextData data(tokens, 8, 2, 1);
  for (uint64_t number = 0; number < 50; ++number)
    for (int64_t token : data.training(number).targets) EXPECT_EQ(token, 0);
  for (int64_t number = 0; number < data.validation_batches(); ++number)
    for (int64_t token : data.validation(number).tokens) EXPECT_EQ(token, 1);
}

TEST(Data, TooShortATextIsAnError) {
  EXPECT_THROW(TextData(some_tokens(100, 11), 12, 3, 5), Error);
  EXPECT_NO_THROW(TextData(some_tokens(130, 11), 12, 3, 5));
}

TEST(Data, EveryEpochShowsEverySentenceOnce) {
  std::vector<Labelled> rows;
  for (int64_t n = 0; n < 50; ++n) rows.push_back({std::vector<int64_t>(static_cast<size_t>(n % 9 + 1), n + 1), n % 2});
  const LabelledData data(rows, rows, 20, 8, 3);
  ASSERT_EQ(data.batches_per_epoch(), 7);
  std::vector<std::vector<int64_t>> orders;
  for (uint64_t epoch = 0; epoch < 2; ++epoch) {
    std::vector<int64_t> seen;
    for (uint64_t n = 0; n < 7; ++n) {
      const models::Batch batch = data.training(epoch * 7 + n);
      for (int64_t b = 0; b < batch.sequences; ++b) {
        const int64_t sentence = batch.tokens[b * batch.length] - 1;
        EXPECT_EQ(batch.targets[b], sentence % 2);
        EXPECT_EQ(batch.lengths[b], sentence % 9 + 1);
        seen.push_back(sentence);
      }
    }
    orders.push_back(seen);
    std::sort(seen.begin(), seen.end());
    for (int64_t n = 0; n < 50; ++n) EXPECT_EQ(seen[n], n);
  }
  EXPECT_NE(orders[0], orders[1]);
}

TEST(Data, WordDropoutHidesOtherWordsEveryEpochAndNoneInValidation) {
  std::vector<Labelled> rows(40, {std::vector<int64_t>(25, 9), 1});
  const LabelledData data(rows, rows, 30, 40, 3, 0.3);
  const auto hidden = [](const models::Batch& batch) {
    return std::count(batch.tokens.begin(), batch.tokens.end(), 1);
  };
  EXPECT_EQ(hidden(data.validation(0)), 0);
  EXPECT_NEAR(static_cast<double>(hidden(data.training(0))) / 1000, 0.3, rate_bound(0.3, 1000));
  EXPECT_EQ(data.training(0).tokens, data.training(0).tokens);
  EXPECT_NE(data.training(0).tokens, data.training(1).tokens);
}

TEST(Data, BadLinesAreNamed) {
  const Folder folder;
  const auto message = [&](const std::string& content) {
    std::ofstream(folder / "data.tsv") << content;
    try {
      read_labelled(folder / "data.tsv");
    } catch (const Error& error) {
      return error.reasons().front().substr(folder.path().size() + 1);
    }
    return std::string("no error");
  };
  EXPECT_EQ(message("good\t1\nbad\n"), "data.tsv, line 2: must be text, a tab, and a class from 0");
  EXPECT_EQ(message("good\t1\r\nbad\t-1\n"), "data.tsv, line 2: must be text, a tab, and a class from 0");
  EXPECT_EQ(message("\t1\n"), "data.tsv, line 1: must be text, a tab, and a class from 0");
  EXPECT_EQ(message(""), "data.tsv is empty");
  EXPECT_EQ(message("a\tb\t0\n"), "no error");
}

// ------------------------------------------------------------------------------------------------------------- resume

struct Training {
  std::vector<double> losses, norms;
  std::string checkpoint;  // bytes of the last one
};

/// Trains in pieces: each stops after so many steps, and a new model and trainer resume.
Training train_in_pieces(const std::vector<int64_t>& stops, nn::Precision precision, bool recompute = false) {
  const Folder folder;
  const TextData data = text();
  Options options = short_run();
  options.recompute = recompute;
  Training run;
  for (size_t piece = 0; piece <= stops.size(); ++piece) {
    models::Model model(tiny(), precision, 77 + piece);  // a resumed model forgets how it was drawn
    if (piece == 0) model = models::Model(tiny(), precision, 1);
    Trainer trainer(model, data, options, folder.path());
    if (piece > 0) trainer.resume(nullptr);
    Trainer::Events events;
    events.step = [&](const StepReport& report) {
      run.losses.push_back(report.loss);
      run.norms.push_back(report.gradient_norm);
    };
    events.stop = [&] { return piece < stops.size() && trainer.steps_done() >= stops[piece]; };
    EXPECT_EQ(trainer.run(events), piece == stops.size());
  }
  run.checkpoint = io::read_file(folder / "step-20.safetensors");
  return run;
}

TEST(Resume, IsBitwiseTheUnbrokenRun) {
  for (nn::Precision precision : {nn::Precision::float32, nn::Precision::bfloat16}) {
    const Training whole = train_in_pieces({}, precision);
    EXPECT_EQ(whole.losses.size(), 20u);
    EXPECT_LT(whole.losses.back(), whole.losses.front());
    for (const std::vector<int64_t>& stops : {std::vector<int64_t>{1}, {7}, {13, 14}, {5, 19}}) {
      const Training broken = train_in_pieces(stops, precision);
      EXPECT_TRUE(broken.losses == whole.losses);
      EXPECT_TRUE(broken.norms == whole.norms);
      EXPECT_TRUE(broken.checkpoint == whole.checkpoint) << "stopped after " << stops[0];
    }
  }
}

TEST(Resume, RecomputationChangesNoBit) {
  const Training plain = train_in_pieces({}, nn::Precision::float32),
                 again = train_in_pieces({9}, nn::Precision::float32, true);
  EXPECT_EQ(plain.losses, again.losses);
  EXPECT_TRUE(plain.checkpoint == again.checkpoint);
}

TEST(Resume, OtherOptionsAndOtherModelsAreRefused) {
  const Folder folder;
  const TextData data = text();
  models::Model model(tiny(), nn::Precision::float32);
  Trainer(model, data, short_run(), folder.path()).save();
  Options other = short_run();
  other.beta1 = 0.8;
  other.seed = 9;
  try {
    Trainer(model, data, other, folder.path()).resume(nullptr);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.reasons().size(), 2u) << error.what();
  }
  models::Config wider = tiny();
  wider.embed_dim = 32;
  models::Model another(wider, nn::Precision::float32);
  EXPECT_THROW(Trainer(another, data, short_run(), folder.path()).resume(nullptr), Error);
}

// --------------------------------------------------------------------------------------------------------- not finite

/// Their bytes: NaN equals itself.
std::string parameters_of(const models::Model& model) { return io::format_safetensors(model.tensors(), {}); }

TEST(NonFinite, StopsBeforeTheUpdateAndNamesTheFirstTensor) {
  models::Model model(tiny(), nn::Precision::float32);
  const TextData data = text();
  Trainer trainer(model, data, short_run(), "");
  trainer.step();
  static_cast<float*>(model.parameters().find("blocks.1.attention.qkv.weight")->master.data())[5] = NAN;
  const std::string before = parameters_of(model);
  try {
    trainer.step();
    FAIL() << "the step went through";
  } catch (const Error& error) {
    EXPECT_EQ(std::string(error.what()),
              "[train] step 2: the loss is not finite; first: block 1: attention: linear gives a value that is not "
              "finite; nothing was updated since step 1");
  }
  EXPECT_TRUE(parameters_of(model) == before);
  EXPECT_EQ(trainer.steps_done(), 1);
}

TEST(NonFinite, AGradientAloneIsFoundToo) {
  models::Config config = tiny(0);
  config.norm = "rms";
  config.tie_embeddings = false;
  models::Model model(config, nn::Precision::float32);
  // Embeddings so small that the norm's gradient overflows while its value does not.
  const nn::Parameter* table = model.parameters().find("tokens.weight");
  const nn::Parameter* positions = model.parameters().find("positions.weight");
  for (const nn::Parameter* parameter : {table, positions})
    for (int64_t n = 0; n < parameter->master.count(); ++n) static_cast<float*>(parameter->master.data())[n] *= 1e-30f;
  const nn::Parameter* norm = model.parameters().find("norm.weight");
  for (int64_t n = 0; n < norm->master.count(); ++n) static_cast<float*>(norm->master.data())[n] = 1e38f;
  const TextData data = text();
  Trainer trainer(model, data, short_run(), "");
  const std::string before = parameters_of(model);
  EXPECT_THROW(trainer.step(), Error);
  EXPECT_TRUE(parameters_of(model) == before);
}

TEST(NonFinite, CanBeSkipped) {
  models::Model model(tiny(), nn::Precision::float32);
  const TextData data = text();
  Options options = short_run();
  options.skip_nonfinite = true;
  Trainer trainer(model, data, options, "");
  static_cast<float*>(model.parameters().find("norm.weight")->master.data())[0] = NAN;
  const std::string before = parameters_of(model);
  const StepReport report = trainer.step();
  EXPECT_TRUE(report.skipped);
  EXPECT_EQ(trainer.steps_done(), 1);
  EXPECT_TRUE(parameters_of(model) == before);
}

// ------------------------------------------------------------------------------------------------------------- damage

/// Three checkpoints of a real run; returns the names that are left.
std::vector<std::string> leave_checkpoints(const Folder& folder) {
  const TextData data = text();
  models::Model model(tiny(), nn::Precision::float32);
  Trainer trainer(model, data, short_run(), folder.path());
  EXPECT_TRUE(trainer.run({}));
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder.path())) names.push_back(entry.path().filename().string());
  std::sort(names.begin(), names.end());
  return names;
}

TEST(Damage, OnlyNamedCheckpointsStay) {
  const Folder folder;
  const std::vector<std::string> names = leave_checkpoints(folder);
  EXPECT_LE(names.size(), 4u);  // last, the one before, best, checkpoints.json
  EXPECT_TRUE(fs::exists(folder / "step-20.safetensors"));
}

TEST(Damage, EveryFlippedBitIsFoundAndThePreviousTaken) {
  const Folder folder;
  leave_checkpoints(folder);
  const std::string path = folder / "step-20.safetensors", good = io::read_file(path);
  sample(10'000, {.quick = 200, .normal = 200, .seconds = 20}, [&](int64_t n) {
    Random random(8, n);
    std::string bad = good;
    const int64_t header = 8 + 4096;  // half of the flips where the structure is
    const int64_t at = random.below(n % 2 ? std::min<int64_t>(header, bad.size()) : static_cast<int64_t>(bad.size()));
    bad[at] = static_cast<char>(bad[at] ^ 1 << random.below(8));
    std::ofstream(path, std::ios::binary) << bad;
    std::vector<std::string> notes;
    const models::Checkpoint checkpoint = models::Checkpoints(folder.path()).load("last", &notes);
    ASSERT_LT(checkpoint.step, 20) << "a flip in byte " << at << " went unseen";
    ASSERT_GE(notes.size(), 2u);
  });
}

TEST(Damage, AMissingListIsNoLoss) {
  const Folder folder;
  leave_checkpoints(folder);
  fs::remove(folder / "checkpoints.json");
  EXPECT_EQ(models::Checkpoints(folder.path()).load("last", nullptr).step, 20);
  std::ofstream(folder / "checkpoints.json") << "{\"last\": \"../../etc/passwd\"}";
  std::vector<std::string> notes;
  EXPECT_EQ(models::Checkpoints(folder.path()).load("last", &notes).step, 20);
  EXPECT_FALSE(notes.empty());
}

TEST(Damage, NothingLeftIsAnErrorThatNamesEveryFile) {
  const Folder folder;
  EXPECT_THROW(models::Checkpoints(folder.path()).load("last", nullptr), Error);
  leave_checkpoints(folder);
  size_t damaged = 0;
  for (const auto& entry : fs::directory_iterator(folder.path())) {
    if (entry.path().extension() != ".safetensors") continue;
    std::ofstream(entry.path(), std::ios::binary) << "x";
    ++damaged;
  }
  try {
    models::Checkpoints(folder.path()).load("last", nullptr);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.reasons().size(), damaged) << error.what();
  }
}

TEST(Damage, AFailedSaveLeavesTheOldOneAndTheTrainingGoesOn) {
  if (getuid() == 0) GTEST_SKIP() << "root may write anywhere; tests/cli fills a disk instead";
  const Folder folder;
  const TextData data = text();
  models::Model model(tiny(), nn::Precision::float32);
  Options options = short_run();
  Trainer trainer(model, data, options, folder.path());
  Trainer::Events events;
  std::vector<std::string> notes;
  events.note = [&](const std::string& note) { notes.push_back(note); };
  events.step = [&](const StepReport& report) {
    const bool locked = report.step > 5 && report.step < 20;
    fs::permissions(folder.path(), locked ? fs::perms::owner_read | fs::perms::owner_exec : fs::perms::owner_all);
  };
  EXPECT_TRUE(trainer.run(events));
  EXPECT_FALSE(notes.empty());
  EXPECT_EQ(models::Checkpoints(folder.path()).load("last", nullptr).step, 20);
}

}  // namespace
}  // namespace attn::test
