// Models that begin with a folder: new heads, adapters, merging, export, resumed fine-tuning.
#include <filesystem>

#include "attn/models_export.h"
#include "attn/models_finetune.h"
#include "attn/models_prune.h"
#include "support/errors.h"
#include "support/folder.h"
#include "support/training.h"

namespace attn::test {
namespace {

using models::Config;
using models::Model;

models::Config small_llama() {
  Config config = models::family("llama");
  config.vocab_size = 11;
  config.context = 12;
  config.embed_dim = 16;
  config.layers = 2;
  config.heads = 4;
  config.kv_heads = 2;
  return config;
}

Config adapted(Config config) {
  config.lora_rank = 2;
  config.lora_targets = "query,value,down";
  return config;
}

/// The folder of a training of no steps: the model as it is.
void save(const Model& model, const std::string& folder) {
  const auto tokenizer = text::characters_of("abcdefghijk");
  models::Checkpoints checkpoints(folder);
  checkpoints.begin({{"config.json", models::to_json(model.config())}, {"tokenizer.json", tokenizer->to_json()}}, {},
                    false);
  checkpoints.save(1, model.tensors(), "{}", true, false);
}

models::Batch some_batch() {
  return {.tokens = some_tokens(24, 11), .targets = some_tokens(24, 11), .sequences = 2, .length = 12};
}

Values logits_of(const Model& model) {
  Tape tape;
  return numbers(model.forward(tape, some_batch()).data());
}

TEST(FineTune, AFolderGetsANewHeadAndAdapters) {
  const Folder folder;
  const Model begun(small_llama(), nn::Precision::float32, 1);
  save(begun, folder.path());
  const models::Loaded loaded = models::open(folder.path(), {.purpose = nn::Purpose::training,
                                                             .adapt =
                                                                 [](Config& config) {
                                                                   config = adapted(config);
                                                                   config.classes = 3;
                                                                 },
                                                             .seed = 4});
  EXPECT_EQ(loaded.new_parameters.size(), 2 * 2 * 3u + 2);  // two layers of three adapters, and the head
  EXPECT_EQ(loaded.new_parameters.back(), "head.bias");
  const nn::Parameters& all = loaded.model->parameters();
  EXPECT_EQ(all.find("head.weight")->master.shape(), (std::vector<int64_t>{3, 16}));
  for (const nn::Parameter& parameter : begun.parameters().all())
    EXPECT_EQ(numbers(parameter.master), numbers(all.find(parameter.name)->master)) << parameter.name;
}

TEST(FineTune, WhatIsNoHeadMustBeThere) {
  const Folder folder;
  save(Model(small_llama(), nn::Precision::float32, 1), folder.path());
  const std::string error = error_of([&] {
    models::open(folder.path(), {.adapt = [](Config& config) { config.query_key_norm = nn::QueryKeyNorm::heads; }});
  });
  EXPECT_NE(error.find("blocks.0.attention.norm_query.weight"), std::string::npos) << error;
}

TEST(FineTune, MergedAdaptersComputeTheSame) {
  Model model(adapted(small_llama()), nn::Precision::float64, 1);
  stir(model.parameters(), 0.1);
  const Model merged = models::merge_adapters(model);
  EXPECT_EQ(merged.config().lora_rank, 0);
  EXPECT_EQ(merged.parameters().find("blocks.0.attention.qkv.lora.query.a"), nullptr);
  EXPECT_TRUE(close_float64(logits_of(merged), logits_of(model)));
}

TEST(FineTune, HeadsWithAdaptersStay) {
  const Model model(adapted(small_llama()), nn::Precision::float32, 1);
  EXPECT_EQ(error_of([&] {
              remove_heads(model, {{0}, {}});
            }),
            "[remove_heads] the model has adapters (LoRA), whose rows belong to heads: merge them first");
}

TEST(FineTune, ATargetThatNoLayerHas) {
  Config config = adapted(small_llama());
  config.lora_targets = "query,dense";
  EXPECT_EQ(error_of([&] { Model(config, nn::Precision::float32, 1); }),
            "[model] lora_targets names \"dense\", but no layer of this model has an adapter of this name");
}

using models::is_adapter;

Model adapter_model(nn::Precision precision) {
  return Model(adapted(small_llama()), {.precision = precision, .seed = 1, .trains = is_adapter}, nn::random_parameter);
}

TEST(FineTune, AdaptersLearnAndTheRestStays) {
  for (const nn::Precision precision : {nn::Precision::float32, nn::Precision::bfloat16}) {
    Model model = adapter_model(precision);
    const Model begun = adapter_model(precision);
    const SameBatch data = same_batch();
    TrainerOptions options = short_run();
    options.steps = 60;
    options.learning_rate = 0.1;
    Trainer trainer(model, data, options, "");
    std::vector<double> losses;
    trainer.run({.step = [&](const StepReport& report) { losses.push_back(report.loss); }});
    EXPECT_LT(losses.back(), losses.front() - 0.1);
    for (const nn::Parameter& parameter : model.parameters().all()) {
      const Values now = numbers(parameter.master), then = numbers(begun.parameters().find(parameter.name)->master);
      EXPECT_EQ(now == then, !is_adapter(parameter.name)) << parameter.name;
    }
  }
}

TEST(FineTune, AResumedTrainingOfAdaptersHasTheSameBits) {
  for (const nn::Precision precision : {nn::Precision::float32, nn::Precision::bfloat16}) {
    const Folder folder;
    const TextDataset data = text();
    const auto run = [&](Model& model, int64_t steps, bool resume, const std::string& where) {
      TrainerOptions options = short_run();
      options.steps = steps;
      options.decay_steps = 20;
      options.layer_decay = 0.5;
      Trainer trainer(model, data, options, where);
      if (resume) trainer.resume(nullptr);
      trainer.run();
    };
    Model whole = adapter_model(precision), first = adapter_model(precision), second = adapter_model(precision);
    run(whole, 20, false, "");
    run(first, 9, false, folder.path());
    run(second, 20, true, folder.path());
    EXPECT_EQ(parameters_of(whole), parameters_of(second));
  }
}

TEST(FineTune, PatienceEndsATraining) {
  Model model(tiny(0), nn::Precision::float32, 1);
  const TextDataset data = text();
  TrainerOptions options = short_run();
  options.steps = 100;
  options.learning_rate = options.min_learning_rate = 1e-30;  // the second validation is no better
  options.eval_every = 2;
  options.patience = 3;
  Trainer trainer(model, data, options, "");
  EXPECT_TRUE(trainer.run());
  EXPECT_TRUE(trainer.stopped_early());
  EXPECT_EQ(trainer.steps_done(), 8);
}

TEST(FineTune, FrozenParametersTakeLessMemory) {
  const Config config = adapted(small_llama());
  const models::TrainingMemory all = training_memory(config, nn::Precision::float32, 2, 12),
                               some = training_memory(config, nn::Precision::float32, 2, 12, false, is_adapter);
  EXPECT_LT(some.moments, all.moments / 4);
  EXPECT_LT(some.gradients, all.gradients / 4);
}

// -------------------------------------------------------------------------------------------------------------- export

TEST(Export, AModelOfOurOwnIsReadBack) {
  Config gpt = tiny(0);
  for (const Config& config : {small_llama(), gpt, adapted(small_llama())}) {
    const Folder folder;
    Model model(config, nn::Precision::float32, 1);
    stir(model.parameters(), 0.1);
    save(model, folder.path() + "/model");
    const models::Exported exported = models::export_folder(folder.path() + "/model", folder.path() + "/hub");
    EXPECT_EQ(exported.architecture, config.norm == models::NormKind::rms ? "LlamaForCausalLM" : "GPT2LMHeadModel");
    const models::Loaded read = models::open(folder.path() + "/hub");
    EXPECT_EQ(logits_of(*read.model), config.lora_rank ? logits_of(models::merge_adapters(model)) : logits_of(model));
    EXPECT_EQ(read.tokenizer->encode_ids("bad"), (std::vector<int64_t>{1, 0, 3}));
    EXPECT_EQ(read.tokenizer->decode(std::vector<int64_t>{1, 0, 3}), "bad");
  }
}

TEST(Export, SeveralFilesWithAnIndex) {
  const Folder folder;
  const Model model(small_llama(), nn::Precision::float32, 1);
  save(model, folder.path() + "/model");
  const models::Exported exported =
      models::export_folder(folder.path() + "/model", folder.path() + "/hub", {.file_bytes = 4000});
  EXPECT_TRUE(std::filesystem::exists(folder.path() + "/hub/model.safetensors.index.json"));
  EXPECT_GT(exported.files.size(), 4u);
  EXPECT_EQ(logits_of(*models::open(folder.path() + "/hub").model), logits_of(model));
}

TEST(Export, WhatTransformersDoesNotCompute) {
  const Folder folder;
  Config config = small_llama();
  config.softcap = 3;
  config.bias = true;
  save(Model(config, nn::Precision::float32, 1), folder.path() + "/model");
  const std::string error = error_of([&] { models::export_folder(folder.path() + "/model", folder.path() + "/hub"); });
  EXPECT_NE(error.find("llama is the nearest; bias is true, there false; softcap is 3.0, there 0.0"), std::string::npos)
      << error;
  EXPECT_FALSE(std::filesystem::exists(folder.path() + "/hub"));
}

TEST(Export, AFolderThatIsNotEmpty) {
  const Folder folder;
  save(Model(small_llama(), nn::Precision::float32, 1), folder.path() + "/model");
  EXPECT_EQ(error_of([&] { models::export_folder(folder.path() + "/model", folder.path() + "/model"); }),
            "[export] " + folder.path() + "/model is not empty: export needs a new folder");
}

}  // namespace
}  // namespace attn::test
