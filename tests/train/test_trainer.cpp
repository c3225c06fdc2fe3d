// Training: the schedule, data, exact resuming, what is not finite, damaged checkpoints.
#include <cmath>
#include <filesystem>
#include <fstream>

#include "support/folder.h"
#include "support/training.h"

namespace attn::test {
namespace {

namespace fs = std::filesystem;

// ----------------------------------------------------------------------------------------------------------- schedule

TEST(Schedule, WarmsUpThenFallsAsACosine) {
  TrainerOptions options;
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
  const TextDataset data = text();
  TrainerOptions options;
  options.steps = 0;
  options.learning_rate = -1;
  options.beta2 = 1;
  options.clip = NAN;
  options.scaling = {.initial = 0, .growth = 1, .backoff = 1, .interval = 0};
  try {
    Trainer trainer(model, data, options, "");
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.reasons().size(), 9u) << error.what();
  }
}

/// The same batch once or twice an update: the same update.
TEST(Schedule, AccumulatedBatchesAreAveraged) {
  const SameBatch data = same_batch();
  const auto step = [&](int64_t accumulation) {
    models::Model model(tiny(0), nn::Precision::float64, 1);
    TrainerOptions options = short_run();
    options.accumulation = accumulation;
    return Trainer(model, data, options, "").step();
  };
  const StepReport once = step(1), twice = step(2);
  EXPECT_EQ(once.loss, twice.loss);
  EXPECT_TRUE(close_float64({once.gradient_norm}, {twice.gradient_norm}));
}

// --------------------------------------------------------------------------------------------------------------- data

TEST(Data, TextCropsAreFunctionsOfTheirNumber) {
  const TextDataset data = text();
  const models::Batch a = data.training(3), b = data.training(3), c = data.training(4);
  EXPECT_EQ(a.tokens, b.tokens);
  EXPECT_NE(a.tokens, c.tokens);
  ASSERT_EQ(a.tokens.size(), 36u);
  for (size_t n = 0; n + 1 < 12; ++n) EXPECT_EQ(a.targets[n], a.tokens[n + 1]);
}

TEST(Data, ValidationIsNotTrainedOn) {
  std::vector<int64_t> tokens(200, 0);
  for (size_t n = 180; n < 200; ++n) tokens[n] = 1;
  const TextDataset data(tokens, 8, 2, 1);
  for (uint64_t number = 0; number < 50; ++number)
    for (int64_t token : data.training(number).targets) EXPECT_EQ(token, 0);
  for (int64_t number = 0; number < data.validation_batches(); ++number)
    for (int64_t token : data.validation(number).tokens) EXPECT_EQ(token, 1);
}

TEST(Data, TooShortATextIsAnError) {
  EXPECT_THROW(TextDataset(some_tokens(600, 11), 12, 3, 5, 0), Error);
  EXPECT_THROW(TextDataset(some_tokens(100, 11), 12, 3, 5), Error);
  EXPECT_NO_THROW(TextDataset(some_tokens(130, 11), 12, 3, 5));
}

TEST(Data, EveryEpochShowsEverySentenceOnce) {
  std::vector<Labelled> rows;
  for (int64_t n = 0; n < 50; ++n) rows.push_back({std::vector<int64_t>(static_cast<size_t>(n % 9 + 1), n + 1), n % 2});
  const LabelledDataset data(rows, rows, 20, 8, 3);
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
  const LabelledDataset data(rows, rows, 30, 40, 3, {.word_dropout = 0.3});
  const auto hidden = [](const models::Batch& batch) {
    return std::count(batch.tokens.begin(), batch.tokens.end(), 1);
  };
  EXPECT_EQ(hidden(data.validation(0)), 0);
  EXPECT_NEAR(static_cast<double>(hidden(data.training(0))) / 1000, 0.3, rate_bound(0.3, 1000));
  EXPECT_EQ(data.training(0).tokens, data.training(0).tokens);
  EXPECT_NE(data.training(0).tokens, data.training(1).tokens);
}

std::string rows_or_error(const std::string& path, const std::string& content) {
  std::ofstream(path) << content;
  std::string text;
  try {
    for (const LabelledText& row : read_labelled(path))
      text += std::to_string(row.line) + "[" + row.text + "|" + row.label + "]";
  } catch (const Error& error) {
    return error.reasons().front().substr(path.rfind('/') + 1);
  }
  return text;
}

TEST(Data, LabelledFilesAreRead) {
  const Folder folder;
  const auto tsv = [&](const std::string& content) { return rows_or_error(folder / "a.tsv", content); };
  EXPECT_EQ(tsv("good\t1\r\n\na\tb\tfine film\n"), "1[good|1]3[a\tb|fine film]");
  EXPECT_EQ(tsv("\xef\xbb\xbfsentence\tlabel\na \t0\n"), "2[a |0]");
  EXPECT_EQ(tsv("Label\tidx\tText\n-1\t7\ta\n"), "2[a|-1]");
  const auto csv = [&](const std::string& content) { return rows_or_error(folder / "a.csv", content); };
  EXPECT_EQ(csv("\"say \"\"so\"\", he\r\nsaid\",no\r\nb, yes"), "1[say \"so\", he\r\nsaid|no]3[b|yes]");
  EXPECT_EQ(csv("label,text\n\"0\",\"\"\"\"\n\n1,c\n"), "2[\"|0]4[c|1]");
  const auto jsonl = [&](const std::string& content) { return rows_or_error(folder / "a.jsonl", content); };
  EXPECT_EQ(jsonl("{\"text\": \"a\\nb\", \"label\": 3}\n\n{\"label\": \"x\", \"id\": 1, \"sentence\": \"c\"}"),
            "1[a\nb|3]3[c|x]");
}

TEST(Data, BadLinesAreNamed) {
  const Folder folder;
  const auto tsv = [&](const std::string& content) { return rows_or_error(folder / "a.tsv", content); };
  EXPECT_EQ(tsv("good\t1\nbad\n"), "a.tsv, line 2: must be text, a tab, and a label");
  EXPECT_EQ(tsv("\t1\n"), "a.tsv, line 1: the text is empty");
  EXPECT_EQ(tsv("a\t\n"), "a.tsv, line 1: the label must be 1 to 256 bytes of printable UTF-8, not \"\"");
  EXPECT_EQ(tsv("a\t\x1b[2J\n"),
            "a.tsv, line 1: the label must be 1 to 256 bytes of printable UTF-8, not \"\\u001b[2J\"");
  EXPECT_EQ(tsv(""), "a.tsv has no rows");
  EXPECT_EQ(tsv("index\tsentence\n0\ta\n"), "a.tsv, line 1: one of the column names must be 'label'");
  EXPECT_EQ(tsv("text\tlabel\na\t0\t1\n"), "a.tsv, line 2: must have 2 fields as the first row, not 3");
  const auto csv = [&](const std::string& content) { return rows_or_error(folder / "a.csv", content); };
  EXPECT_EQ(csv("a,0\n\n\"b\nc,1\n"), "a.csv, line 3: the quotes of a field are not closed");
  EXPECT_EQ(csv("\"a\nb\",0\n\"c\"d,1\n"), "a.csv, line 3: a comma must follow the closing quote of a field");
  EXPECT_EQ(csv("a,b,0\n"), "a.csv, line 1: must be text, a comma, and a label");
  const auto jsonl = [&](const std::string& content) { return rows_or_error(folder / "a.jsonl", content); };
  for (const char* line :
       {"[1]", "{\"text\": \"a\"}", "{\"text\": 1, \"label\": 1}", "{\"text\": \"a\", \"label\": 1.5}"})
    EXPECT_EQ(jsonl(line),
              "a.jsonl, line 1: must be an object {\"text\": \"...\", \"label\": ...}, the label a text or a "
              "whole number");
  EXPECT_TRUE(jsonl("\n{\"text\"\n").starts_with("a.jsonl, line 2: "));
}

TEST(Data, ClassesAreTheLabels) {
  const auto classes = [](const std::vector<std::string>& labels, int64_t least = 0) {
    std::vector<LabelledText> rows;
    for (const std::string& label : labels) rows.push_back({"a", label, 1});
    std::string text;
    for (const std::string& name : classes_of(rows, least)) text += name + " ";
    return text;
  };
  EXPECT_EQ(classes({"pos", "neg", "pos", "10"}), "10 neg pos ");
  EXPECT_EQ(classes({"10", "9", "0", "1", "2", "3", "4", "5", "6", "7", "8"}), "0 1 2 3 4 5 6 7 8 9 10 ");
  EXPECT_EQ(classes({"3000000", "0"}), "0 3000000 ");
  EXPECT_EQ(classes({"1", "-1"}), "-1 1 ");
  EXPECT_EQ(classes({"0", "2"}), "0 2 ");
  EXPECT_EQ(classes({"0", "2"}, 3), "0 1 2 ");
  EXPECT_EQ(classes({"0"}, 2), "0 1 ");
  EXPECT_EQ(classes({"01", "1"}, 2), "01 1 ");

  const std::vector<LabelledText> rows = {{"ab", "pos", 1}, {"b", "neg", 2}};
  const auto tokenizer = text::characters_of("ab");
  const std::vector<std::string> names = {"neg", "pos"};
  const std::vector<Labelled> encoded = encode_labelled(rows, *tokenizer, names, {.source = "a.tsv"});
  EXPECT_EQ(encoded[0].tokens, (std::vector<int64_t>{0, 1}));
  EXPECT_EQ(encoded[0].label, 1);
  EXPECT_EQ(encoded[1].label, 0);
  const auto message = [&](const LabelledText& row) {
    try {
      encode_labelled(std::span(&row, 1), *tokenizer, names, {.source = "a.tsv"});
    } catch (const Error& error) {
      return error.reasons().front();
    }
    return std::string("no error");
  };
  EXPECT_EQ(message({"a", "good", 7}), "a.tsv, line 7: unknown class \"good\"; the model's are: neg, pos");
  EXPECT_TRUE(message({"c", "pos", 8}).starts_with("a.tsv, line 8: "));
}

// ------------------------------------------------------------------------------------------------------------- resume

struct Training {
  std::vector<double> losses, norms, scales;
  int64_t skipped = 0;
  std::string checkpoint;  // bytes of the last one
};

/// Trains in pieces: each stops after so many steps, and a new model and trainer resume.
Training train_in_pieces(const std::vector<int64_t>& stops, nn::Precision precision, bool recompute = false) {
  const Folder folder;
  const TextDataset data = text();
  TrainerOptions options = short_run();
  options.recompute = recompute;
  options.scaling = {.initial = 0x1p24, .interval = 3};  // overflows in float16, grows and overflows again
  Training run;
  for (size_t piece = 0; piece <= stops.size(); ++piece) {
    models::Model model(tiny(), precision, 77 + piece);  // a resumed model forgets how it was drawn
    if (piece == 0) model = models::Model(tiny(), precision, 1);
    Trainer trainer(model, data, options, folder.path());
    if (piece > 0) trainer.resume(nullptr);
    Trainer::Events events;
    events.step = [&](const StepReport& report) {
      run.losses.push_back(report.loss);
      run.norms.push_back(report.skipped ? 0 : report.gradient_norm);  // infinite or NaN, which equals nothing
      run.scales.push_back(report.loss_scale);
      run.skipped += report.skipped;
    };
    events.stop = [&] { return piece < stops.size() && trainer.steps_done() >= stops[piece]; };
    EXPECT_EQ(trainer.run(events), piece == stops.size());
  }
  run.checkpoint = io::read_file(folder / "step-20.safetensors");
  return run;
}

TEST(Resume, IsBitwiseTheUnbrokenRun) {
  for (nn::Precision precision : {nn::Precision::float32, nn::Precision::bfloat16, nn::Precision::float16}) {
    const Training whole = train_in_pieces({}, precision);
    EXPECT_EQ(whole.losses.size(), 20u);
    EXPECT_LT(whole.losses.back(), whole.losses.front());
    EXPECT_EQ(whole.skipped > 0, precision == nn::Precision::float16);
    for (const std::vector<int64_t>& stops : {std::vector<int64_t>{1}, {7}, {13, 14}, {5, 19}}) {
      const Training broken = train_in_pieces(stops, precision);
      EXPECT_TRUE(broken.losses == whole.losses);
      EXPECT_TRUE(broken.norms == whole.norms);
      EXPECT_TRUE(broken.scales == whole.scales);
      EXPECT_TRUE(broken.checkpoint == whole.checkpoint) << "stopped after " << stops[0];
    }
  }
}

TEST(Resume, AnyNumberOfThreadsGivesTheSameBits) {
  for (nn::Precision precision : {nn::Precision::float32, nn::Precision::bfloat16}) {
    set_thread_count(1);
    const Training one = train_in_pieces({}, precision);
    set_thread_count(3);
    const Training three = train_in_pieces({7}, precision);
    set_thread_count(0);
    EXPECT_TRUE(one.losses == three.losses);
    EXPECT_TRUE(one.checkpoint == three.checkpoint);
  }
}
TEST(Resume, RecomputationChangesNoBit) {
  for (nn::Precision precision : {nn::Precision::float32, nn::Precision::float16}) {
    const Training plain = train_in_pieces({}, precision), again = train_in_pieces({9}, precision, true);
    EXPECT_EQ(plain.losses, again.losses);
    EXPECT_TRUE(plain.checkpoint == again.checkpoint);
  }
}

TEST(Resume, OtherOptionsAndOtherModelsAreRefused) {
  const Folder folder;
  const TextDataset data = text();
  models::Model model(tiny(), nn::Precision::float32);
  Trainer(model, data, short_run(), folder.path()).save();
  TrainerOptions other = short_run();
  other.beta1 = 0.8;
  other.seed = 9;
  other.scaling.on = true;
  try {
    Trainer(model, data, other, folder.path()).resume(nullptr);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.reasons().size(), 3u) << error.what();
  }
  models::Config wider = tiny();
  wider.embed_dim = 32;
  models::Model another(wider, nn::Precision::float32);
  EXPECT_THROW(Trainer(another, data, short_run(), folder.path()).resume(nullptr), Error);
}

// --------------------------------------------------------------------------------------------------------- not finite

TEST(NonFinite, StopsBeforeTheUpdateAndNamesTheFirstTensor) {
  models::Model model(tiny(), nn::Precision::float32);
  const TextDataset data = text();
  Trainer trainer(model, data, short_run(), "");
  trainer.step();
  static_cast<float*>(model.parameters().find("blocks.1.attention.qkv.weight")->master.data())[5] = NAN;
  const std::string before = parameters_of(model);
  try {
    trainer.step();
    FAIL() << "the step went through";
  } catch (const Error& error) {
    EXPECT_EQ(
        std::string(error.what()),
        "[train] step 2: the loss is not finite; first: block 1: attention: qkv: linear gives a value that is not "
        "finite; nothing was updated since step 1");
  }
  EXPECT_TRUE(parameters_of(model) == before);
  EXPECT_EQ(trainer.steps_done(), 1);
}

TEST(NonFinite, AGradientAloneIsFoundToo) {
  models::Config config = tiny(0);
  config.norm = models::NormKind::rms;
  config.tie_embeddings = false;
  models::Model model(config, nn::Precision::float32);
  // Embeddings so small that the norm's gradient overflows while its value does not.
  const nn::Parameter* table = model.parameters().find("tokens.weight");
  const nn::Parameter* positions = model.parameters().find("positions.weight");
  for (const nn::Parameter* parameter : {table, positions})
    for (int64_t n = 0; n < parameter->master.count(); ++n) static_cast<float*>(parameter->master.data())[n] *= 1e-30f;
  const nn::Parameter* norm = model.parameters().find("norm.weight");
  for (int64_t n = 0; n < norm->master.count(); ++n) static_cast<float*>(norm->master.data())[n] = 1e38f;
  const TextDataset data = text();
  Trainer trainer(model, data, short_run(), "");
  const std::string before = parameters_of(model);
  EXPECT_THROW(trainer.step(), Error);
  EXPECT_TRUE(parameters_of(model) == before);
}

TEST(NonFinite, CanBeSkipped) {
  models::Model model(tiny(), nn::Precision::float32);
  const TextDataset data = text();
  TrainerOptions options = short_run();
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
  const TextDataset data = text();
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
  EXPECT_THROW(models::Checkpoints(folder.path()).load("first", nullptr), Error);
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
  const TextDataset data = text();
  models::Model model(tiny(), nn::Precision::float32);
  TrainerOptions options = short_run();
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

// ---------------------------------------------------------------------------------------------- whose the files are

const std::vector<std::string> kNames = {"config.json", "log.jsonl"};

std::vector<std::string> listing(const Folder& folder) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder.path())) names.push_back(entry.path().filename().string());
  std::sort(names.begin(), names.end());
  return names;
}

void put(const std::string& path, const std::string& content) { std::ofstream(path) << content; }

/// A training in the folder, stopped after so many steps.
void train_in(const Folder& folder, int64_t steps) {
  const TextDataset data = text();
  models::Model model(tiny(), nn::Precision::float32);
  TrainerOptions options = short_run();
  options.steps = steps;
  options.save_every = 2;
  EXPECT_TRUE(Trainer(model, data, options, folder.path()).run({}));
}

TEST(Directory, WhatIsNotATrainingsIsRefused) {
  const Folder folder;
  const models::Checkpoints checkpoints(folder / "a");
  EXPECT_EQ(checkpoints.obstacle(kNames, false), "");
  put(folder / "a", "x");
  EXPECT_EQ(checkpoints.obstacle(kNames, true), folder / "a" + " is a file, not a directory");
  fs::remove(folder / "a");
  fs::create_symlink("nowhere", folder / "a");
  EXPECT_EQ(checkpoints.obstacle(kNames, true), folder / "a" + " is a symbolic link to nothing");
  fs::remove(folder / "a");
  fs::create_directory(folder / "a");
  put(folder / "a/.attn-0123456789abcdef.tmp", "left by a crash");
  EXPECT_EQ(checkpoints.obstacle(kNames, false), "");
  put(folder / "a/config.json", "{}");
  put(folder / "a/step-1.txt", "mine");
  const std::string reason = folder / "a" + " is not empty and holds no training, but config.json, step-1.txt";
  for (bool replace : {false, true}) {
    EXPECT_EQ(checkpoints.obstacle(kNames, replace), reason);
    EXPECT_THROW(models::Checkpoints(folder / "a").begin({{"config.json", "new"}}, {}, replace), Error);
  }
  EXPECT_EQ(io::read_file(folder / "a/config.json"), "{}");
  put(folder / "a/checkpoints.json", "{\"mine\": 1}");
  EXPECT_NE(checkpoints.obstacle(kNames, true).find("is not a list of checkpoints"), std::string::npos);
}

TEST(Directory, OnlyItsOwnFilesAreReplaced) {
  const Folder folder;
  models::Checkpoints checkpoints(folder.path());
  checkpoints.begin({{"config.json", "one"}}, std::vector<std::string>{"log.jsonl"}, false);
  train_in(folder, 6);
  put(folder / "log.jsonl", "of the training");
  put(folder / "step-by-step.md", "mine");
  put(folder / "step-2.safetensors", "mine");
  EXPECT_NE(checkpoints.obstacle(kNames, false).find("holds a model already"), std::string::npos);
  EXPECT_THROW(checkpoints.begin({{"config.json", "two"}}, {}, false), Error);
  EXPECT_EQ(io::read_file(folder / "config.json"), "one");
  checkpoints.begin({{"config.json", "two"}}, std::vector<std::string>{"log.jsonl"}, true);
  EXPECT_EQ(listing(folder),
            (std::vector<std::string>{"checkpoints.json", "config.json", "step-2.safetensors", "step-by-step.md"}));
  EXPECT_EQ(io::read_file(folder / "config.json"), "two");

  put(folder / "log.jsonl", "of the training, which has no checkpoint yet");
  put(folder / "tokenizer.json", "mine");
  EXPECT_EQ(checkpoints.obstacle(kNames, false), "");
  const std::vector<std::string> more = {"config.json", "tokenizer.json"};
  EXPECT_NE(checkpoints.obstacle(more, true).find("holds tokenizer.json"), std::string::npos);
}

TEST(Directory, ACheckpointIsNotWrittenOverSomebodyElses) {
  const Folder folder;
  put(folder / "step-2.safetensors", "mine");
  put(folder / "step-4.safetensors", "mine");
  train_in(folder, 6);
  EXPECT_EQ(io::read_file(folder / "step-2.safetensors"), "mine");
  EXPECT_EQ(io::read_file(folder / "step-4.safetensors"), "mine");
  EXPECT_TRUE(fs::exists(folder / "step-04.safetensors"));
  fs::remove(folder / "step-6.safetensors");
  EXPECT_EQ(models::Checkpoints(folder.path()).load("last", nullptr).step, 4);
}

TEST(Directory, ADamagedListIsSetAsideAndNothingIsRemoved) {
  const Folder folder;
  train_in(folder, 4);
  put(folder / "checkpoints.json", "{");
  train_in(folder, 4);
  EXPECT_EQ(io::read_file(folder / "checkpoints.json.damaged"), "{");
  EXPECT_TRUE(fs::exists(folder / "step-4.safetensors"));
  EXPECT_TRUE(fs::exists(folder / "step-04.safetensors"));
}

/// After the first file, the list, and after the second one.
TEST(Directory, ACrashWhileItBeginsIsNoObstacle) {
  const Folder folder;
  models::Checkpoints checkpoints(folder.path());
  const std::vector<std::string> names = {"config.json", "log.jsonl"};
  put(folder / "checkpoints.json", R"({"files": ["log.jsonl", "config.json"]})");
  for (const char* content : {"1", "2"}) {
    EXPECT_EQ(checkpoints.obstacle(names, false), "");
    checkpoints.begin({{"config.json", content}}, names, false);
    EXPECT_EQ(io::read_file(folder / "config.json"), content);
  }
  EXPECT_THROW(checkpoints.begin({{"../config.json", "3"}}, names, false), Error);
}

TEST(Resume, MoreStepsGoOnWhereTheCosineHadEnded) {
  const TextDataset data = text();
  TrainerOptions options = short_run();
  options.decay_steps = 20;
  const auto losses_of = [&](const Folder& folder, std::vector<int64_t> stops) {
    std::vector<double> losses;
    for (int64_t steps : stops) {
      models::Model model(tiny(), nn::Precision::float32, 1);
      TrainerOptions longer = options;
      longer.steps = steps;
      Trainer trainer(model, data, longer, folder.path());
      if (steps != stops.front()) trainer.resume(nullptr);
      Trainer::Events events;
      events.step = [&](const StepReport& report) { losses.push_back(report.loss); };
      trainer.run(events);
    }
    return losses;
  };
  const Folder whole, broken;
  EXPECT_EQ(losses_of(whole, {30}), losses_of(broken, {20, 30}));
  models::Model model(tiny(), nn::Precision::float32, 1);
  options.steps = 40;
  options.decay_steps = 0;  // would move the end of the cosine, unsaid
  EXPECT_THROW(Trainer(model, data, options, whole.path()).resume(nullptr), Error);
}

}  // namespace
}  // namespace attn::test
