// What configurations cost: counted from shapes alone, and held against models that are made and trained.
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <ctime>
#include <filesystem>
#include <fstream>

#include "attn/train.h"
#include "support/folder.h"
#include "support/layers.h"

namespace attn::test {
namespace {

using namespace models;
namespace fs = std::filesystem;

struct Case {
  std::string name;
  Config config;
  nn::Precision precision = nn::Precision::float32;
  int64_t batch = 8;
  bool recompute = false;
};

Config shape_of(const std::string& name, int64_t vocabulary, int64_t context, int64_t width, int64_t layers) {
  Config config = family(name);
  config.vocab_size = vocabulary;
  config.context = context;
  config.embed_dim = width;
  if (name != "selfhead") {
    config.layers = layers;
    config.heads = width / 32;
  }
  return config;
}

/// Crops of random tokens, or sentences of them with random classes.
class RandomData : public train::Dataset {
 public:
  RandomData(const Config& config, int64_t batch) {
    Random random(3);
    batch_.sequences = batch;
    batch_.length = config.context;
    for (int64_t n = 0; n < batch * config.context; ++n) batch_.tokens.push_back(random.below(config.vocab_size));
    if (config.encoder_layers) {
      batch_.source = batch_.tokens;
      batch_.source_length = config.context;
    }
    for (int64_t n = 0; n < (config.classes ? batch : batch * config.context); ++n)
      batch_.targets.push_back(random.below(config.classes ? config.classes : config.vocab_size));
  }
  Batch training(uint64_t) const override { return batch_; }
  Batch validation(int64_t) const override { return batch_; }
  int64_t validation_batches() const override { return 1; }
  int64_t batches_per_epoch() const override { return 1; }
  std::string describe() const override { return ""; }

 private:
  Batch batch_;
};

/// Bytes by which the resident memory of a process of its own grows at its peak while it does `work`.
double peak_of(const std::function<void()>& work) {
  int ends[2];
  EXPECT_EQ(pipe(ends), 0);
  const pid_t child = fork();
  if (child == 0) {
    const auto peak = [] {
      rusage usage = {};
      getrusage(RUSAGE_SELF, &usage);
      return static_cast<double>(usage.ru_maxrss) * 1024;
    };
    const double before = peak();
    work();
    const double grown = peak() - before;
    _exit(write(ends[1], &grown, sizeof grown) == sizeof grown ? 0 : 1);
  }
  ::close(ends[1]);
  double grown = 0;
  EXPECT_EQ(read(ends[0], &grown, sizeof grown), static_cast<ssize_t>(sizeof grown));
  ::close(ends[0]);
  int status = 1;
  waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
  return grown;
}

/// An update, a validation and a checkpoint.
double peak_of_training(const Case& c) {
  const Folder folder;
  return peak_of([&] {
    Model model(c.config, c.precision);
    const RandomData data(c.config, c.batch);
    train::TrainerOptions options;
    options.steps = 1;
    options.recompute = c.recompute;
    train::Trainer trainer(model, data, options, folder.path());
    trainer.run({});
  });
}

std::vector<Case> trainings() {
  const Config gpt = shape_of("gpt", 300, 128, 128, 6), wide = shape_of("gpt", 20000, 32, 256, 2);
  Config llama = shape_of("llama", 4000, 256, 128, 4), dropped = gpt, relative = shape_of("gpt", 100, 256, 128, 4);
  llama.kv_heads = 2;
  dropped.dropout = 0.1;
  relative.positions = PositionEncoding::relative;
  Config hybrid = llama, mamba = llama;
  set_mixers(hybrid, "gated_delta", "4:full");
  set_mixers(mamba, "mamba2");
  mamba.feed_forward = false;
  return {{"gpt", gpt, nn::Precision::float32, 16},
          {"gpt, bfloat16", gpt, nn::Precision::bfloat16, 24},
          {"gpt, recomputed", gpt, nn::Precision::float32, 32, true},
          {"gpt with dropout", dropped, nn::Precision::float32, 16},
          {"gpt, mostly weights", wide, nn::Precision::float32, 4},
          {"llama", llama, nn::Precision::float32, 8},
          {"llama, bfloat16, recomputed", llama, nn::Precision::bfloat16, 12, true},
          {"hybrid", hybrid, nn::Precision::float32, 8},
          {"hybrid, recomputed", hybrid, nn::Precision::float32, 12, true},
          {"Mamba 2", mamba, nn::Precision::float32, 8},
          {"encoder", shape_of("encoder", 500, 128, 128, 6), nn::Precision::float32, 16},
          {"relative positions", relative, nn::Precision::float32, 8},
          {"seq2seq", shape_of("seq2seq", 300, 128, 128, 4), nn::Precision::float32, 16},
          {"seq2seq, recomputed", shape_of("seq2seq", 300, 128, 128, 4), nn::Precision::float32, 24, true},
          {"long", shape_of("gpt", 100, 2048, 128, 4), nn::Precision::float32, 2},
          {"selfhead", shape_of("selfhead", 2000, 256, 256, 1), nn::Precision::float32, 16}};
}

TEST(Footprint, TrainingMemoryIsWhatIsMeasured) {
  for (const Case& c : trainings()) {
    const double estimate = training_memory(c.config, c.precision, c.batch, c.config.context, c.recompute).total();
    const double measured = peak_of_training(c);
    EXPECT_TRUE(close_memory(estimate, measured)) << c.name;
  }
}

TEST(Footprint, RecomputationAndSmallerBatchesTakeLess) {
  const Config config = shape_of("gpt", 300, 128, 128, 6);
  const auto bytes = [&](int64_t batch, bool recompute) {
    return training_memory(config, nn::Precision::float32, batch, 128, recompute).total();
  };
  EXPECT_LT(bytes(32, true), bytes(32, false));
  EXPECT_LT(bytes(16, false), bytes(32, false));
}

// ------------------------------------------------------------------------------------------------- without any memory

/// Every family and what changes its parameters.
std::vector<Config> many_shapes() {
  std::vector<Config> all;
  for (const std::string& name : families())
    for (const PositionEncoding positions :
         {PositionEncoding::learned, PositionEncoding::sinusoidal, PositionEncoding::none})
      for (bool tied : {true, false}) {
        all.push_back(shape_of(name, 33, 16, 64, 3));
        all.back().positions = positions;
        all.back().tie_embeddings = tied;
      }
  for (const PositionEncoding positions : {PositionEncoding::rope, PositionEncoding::alibi,
                                           PositionEncoding::learned_relative, PositionEncoding::relative}) {
    all.push_back(shape_of("gpt", 33, 16, 64, 3));
    all.back().positions = positions;
  }
  all.back().bias = false;
  all.back().gated = true;
  all.back().classes = 5;
  all.back().causal = false;
  return all;
}

TEST(Footprint, ShapesAreThoseOfTheModel) {
  for (const Config& config : many_shapes()) {
    const Model model(config, nn::Precision::bfloat16, 1);
    const std::vector<ParameterShape> shapes = parameter_shapes(config);
    ASSERT_EQ(shapes.size(), model.parameters().all().size());
    for (size_t n = 0; n < shapes.size(); ++n) {
      const nn::Parameter& parameter = model.parameters().all()[n];
      EXPECT_EQ(shapes[n].name, parameter.name);
      EXPECT_EQ(shapes[n].shape, parameter.master.shape());
      EXPECT_EQ(shapes[n].decay, parameter.decay);
      EXPECT_EQ(shapes[n].count(), parameter.master.count());
    }
    EXPECT_EQ(count_parameters(config).total(), model.parameters().count());
  }
}

TEST(Footprint, PartsOfGpt) {
  Config config = shape_of("gpt", 50257, 1024, 768, 12);  // GPT-2, whose 124,439,808 are well known
  const ParameterCounts counts = count_parameters(config);
  EXPECT_EQ(counts.embedding, (50257 + 1024) * 768);
  EXPECT_EQ(counts.attention, 12 * (4 * 768 * 768 + 4 * 768));
  EXPECT_EQ(counts.feed_forward, 12 * (8 * 768 * 768 + 5 * 768));
  EXPECT_EQ(counts.norms, 25 * 2 * 768);
  EXPECT_EQ(counts.head, 0);
  EXPECT_EQ(counts.total(), 124439808);
  config.tie_embeddings = false;
  EXPECT_EQ(count_parameters(config).head, 50257 * 768);
}

TEST(Footprint, TheLargestModelIsCountedWithoutItsMemory) {
  Config config = shape_of("gpt", 1 << 24, 1 << 24, 1 << 16, 64);
  config.hidden_dim = 1 << 20;
  for (const PositionEncoding positions : {PositionEncoding::learned, PositionEncoding::sinusoidal}) {
    config.positions = positions;
    const double grown = peak_of([&] {
      const double weights = static_cast<double>(count_parameters(config).total());
      const double training = training_memory(config, nn::Precision::float32, 1 << 20, config.context).total();
      const double flops = forward_flops(config, config.context);
      if (!(weights > 0x1p42 && training > 16 * weights && flops > weights * 0x1p24 && std::isfinite(training)))
        _exit(1);
    });
    EXPECT_TRUE(at_most_memory(grown, 0)) << static_cast<int>(positions);
  }
}

// ------------------------------------------------------------------------------------------------------------- loading

/// A directory with a model and its moments, as a training leaves it.
void leave_model(const Config& config, const std::string& directory) {
  const auto save = [&] {
    const std::vector<std::string> texts = {"a b c d e f g"};
    const auto tokenizer = text::words_of(texts, {.min_count = 1});
    Config shape = config;
    shape.vocab_size = tokenizer->vocab_size();
    const Model made(shape, nn::Precision::float32, 5);
    std::vector<io::NamedTensor> tensors = made.tensors(), moments = made.tensors("adamw.m."),
                                 second = made.tensors("adamw.v.");
    tensors.insert(tensors.end(), moments.begin(), moments.end());
    tensors.insert(tensors.end(), second.begin(), second.end());
    Checkpoints checkpoints(directory);
    checkpoints.begin({{"config.json", to_json(shape)}, {"tokenizer.json", tokenizer->to_json()}}, {}, false);
    checkpoints.save(3, tensors, "{}", true, false);
  };
  peak_of(save);  // in a process of its own, so that none of its memory is here already
}

TEST(Footprint, LoadingTakesTheModelAndNoMore) {
  const Folder folder;
  const Config config = shape_of("gpt", 10, 128, 512, 4);
  leave_model(config, folder.path());
  for (nn::Precision precision : {nn::Precision::float32, nn::Precision::bfloat16}) {
    const double weights = training_memory(load_model(folder.path(), "last").model->config(), precision, 1, 1).weights;
    const double grown = peak_of([&] { load_model(folder.path(), "last", precision); });
    EXPECT_TRUE(at_most_memory(grown, weights));
  }
}

TEST(Footprint, LoadingDrawsNothingAndGivesTheSameNumbers) {
  const Folder folder;
  leave_model(shape_of("gpt", 10, 128, 512, 4), folder.path());
  const auto seconds_of = [](const auto& work) {
    const std::clock_t begin = std::clock();
    work();
    return static_cast<double>(std::clock() - begin);
  };
  Loaded loaded;
  const double load = seconds_of([&] { loaded = load_model(folder.path(), "last", nn::Precision::bfloat16); });
  EXPECT_EQ(loaded.step, 3);
  std::unique_ptr<Model> drawn;
  const double draw =
      seconds_of([&] { drawn = std::make_unique<Model>(loaded.model->config(), nn::Precision::bfloat16, 5); });
  EXPECT_LT(load, draw / 2) << "drawing and then reading takes longer than drawing alone";
  for (size_t n = 0; n < drawn->parameters().all().size(); ++n) {
    const nn::Parameter &a = drawn->parameters().all()[n], &b = loaded.model->parameters().all()[n];
    EXPECT_EQ(numbers(a.value.data()), numbers(b.value.data())) << a.name;
    EXPECT_EQ(b.master.data(), b.value.data().data()) << "nobody trains " << b.name << ": it has no master of its own";
    EXPECT_FALSE(b.value.wants_gradient()) << b.name;
  }
}

TEST(Footprint, AModelNeedsASource) {
  EXPECT_THROW(Model(shape_of("gpt", 10, 8, 32, 1), nn::Precision::float32, nn::ParameterSource()), Error);
}

// --------------------------------------------------------------------------------------------------------- the machine

class Machine : public Folder {
 public:
  void put(const std::string& name, const std::string& content) const {
    const fs::path file = path() + name;
    fs::create_directories(file.parent_path());
    std::ofstream(file) << content;
  }
};

TEST(Footprint, MemoryOfControlGroupsIsHonoured) {
  const Machine machine;
  const std::string root = machine.path();
  EXPECT_EQ(available_memory(root), kInf);
  machine.put("/proc/meminfo", "MemTotal:  2000 kB\nMemAvailable:  1000 kB\n");
  EXPECT_EQ(available_memory(root), 1000 * 1024);
  machine.put("/proc/self/cgroup", "4:memory:/job/one\n1:cpu:/\n0::/unit\n");
  EXPECT_EQ(available_memory(root), 1000 * 1024);
  machine.put("/sys/fs/cgroup/memory/job/memory.limit_in_bytes", "900000\n");
  machine.put("/sys/fs/cgroup/memory/job/memory.usage_in_bytes", "300000\n");
  EXPECT_EQ(available_memory(root), 600000);  // of the group above
  machine.put("/sys/fs/cgroup/memory/job/one/memory.limit_in_bytes", "9223372036854771712\n");
  machine.put("/sys/fs/cgroup/memory/job/one/memory.usage_in_bytes", "300000\n");
  EXPECT_EQ(available_memory(root), 600000);
  machine.put("/sys/fs/cgroup/memory/job/memory.stat", "cache 7\ntotal_inactive_file 100000\n");
  EXPECT_EQ(available_memory(root), 700000);
  machine.put("/sys/fs/cgroup/unit/memory.max", "max\n");
  machine.put("/sys/fs/cgroup/unit/memory.current", "100\n");
  EXPECT_EQ(available_memory(root), 700000);
  machine.put("/sys/fs/cgroup/memory.max", "500000\n");
  machine.put("/sys/fs/cgroup/memory.current", "100000\n");
  EXPECT_EQ(available_memory(root), 400000);
  machine.put("/sys/fs/cgroup/memory.current", "900000\n");
  EXPECT_EQ(available_memory(root), 0);
}

}  // namespace
}  // namespace attn::test
