// Trains a model of two layers on texts in which segments repeat, and measures its heads while an induction head forms
// (Olsson et al. 2022, arXiv:2209.11895). One line of JSON a measurement, on standard output; induction.py draws them.
//
// usage: attn_induction [steps] [every] [seed] [width]
#include <cstdio>
#include <cstdlib>
#include <string>

#include "attn/heads.h"
#include "attn/train.h"

namespace {

using attn::models::Batch;

constexpr int64_t kVocabulary = 256, kContext = 64, kBatch = 32;
constexpr uint64_t kValidation = uint64_t{1} << 40, kRepeats = 7;  // numbers and seeds that the training does not use

/// Texts of kContext tokens: a segment of 10 to 30 random tokens, again and again. Nothing but what came before in the
/// text tells what a token will be: one of the first segment cannot be known, one that repeats can.
class Repeating : public attn::train::Dataset {
 public:
  explicit Repeating(uint64_t seed) : seed_(seed) {}
  Batch training(uint64_t number) const override { return batch(number, true, true); }
  Batch validation(int64_t number) const override { return part(number, true, true); }
  int64_t validation_batches() const override { return 4; }
  int64_t batches_per_epoch() const override { return 1; }
  std::string describe() const override { return "segments that repeat"; }

  /// A validation batch whose targets are tokens that cannot be known, tokens that repeat, or both.
  Batch part(int64_t number, bool first, bool later) const {
    return batch(kValidation + static_cast<uint64_t>(number), first, later);
  }

 private:
  Batch batch(uint64_t number, bool first, bool later) const {
    Batch batch;
    batch.sequences = kBatch;
    batch.length = kContext;
    for (int64_t b = 0; b < kBatch; ++b) {
      attn::Random random(seed_, number * kBatch + static_cast<uint64_t>(b));
      const auto segment = static_cast<size_t>(10 + random.below(21));
      std::vector<int64_t> text;
      while (text.size() <= kContext)
        text.push_back(text.size() < segment ? random.below(kVocabulary) : text[text.size() - segment]);
      for (size_t i = 0; i < kContext; ++i) {
        batch.tokens.push_back(text[i]);
        const bool repeats = i + 1 > segment;  // the first token of a second segment cannot be known either
        batch.targets.push_back((repeats ? later : first) ? text[i + 1] : attn::ops::kIgnoreIndex);
      }
    }
    return batch;
  }

  uint64_t seed_;
};

double mean_loss(const attn::models::Model& model, const Repeating& data, bool first, bool later) {
  double sum = 0;
  for (int64_t number = 0; number < data.validation_batches(); ++number) {
    attn::autograd::Tape tape;
    sum += *static_cast<const float*>(model.loss(tape, data.part(number, first, later)).data().data());
  }
  return sum / static_cast<double>(data.validation_batches());
}

/// Of all heads, on 25 random tokens, twice: ten such texts.
attn::heads::Measures measured(const attn::models::Model& model) {
  attn::heads::Measures measures;
  for (uint64_t text = 0; text < 10; ++text) {
    Batch batch;
    batch.tokens = attn::heads::repeated_tokens(25, 2, 0, kVocabulary, -1, kRepeats + text);
    batch.sequences = 1;
    batch.length = static_cast<int64_t>(batch.tokens.size());
    std::vector<attn::nn::AttentionTrace> traces;
    attn::models::ForwardOptions options;
    options.traces = &traces;
    attn::autograd::Tape tape;
    model.forward(tape, batch, options);
    std::vector<attn::RecordedAttention> layers;
    for (const attn::nn::AttentionTrace& trace : traces) layers.push_back(trace.recorded({}));
    measures.add(layers, {attn::ConstView<2>(batch.tokens.data(), {1, batch.length}), {}});
  }
  return measures;
}

void print(int64_t step, const attn::models::Model& model, const Repeating& data) {
  std::printf("{\"step\": %lld, \"loss\": %.6f, \"loss_first\": %.6f, \"loss_repeated\": %.6f, \"heads\": [",
              static_cast<long long>(step), mean_loss(model, data, true, true), mean_loss(model, data, true, false),
              mean_loss(model, data, false, true));
  const char* separator = "";
  for (const attn::heads::HeadValues& head : measured(model).table()) {
    std::printf("%s{\"layer\": %d, \"head\": %d", separator, static_cast<int>(head.layer), static_cast<int>(head.head));
    for (size_t m = 0; m < attn::heads::measures().size(); ++m)
      if (const std::string& name = attn::heads::measures()[m].name;
          name == "previous" || name == "duplicate" || name == "induction")
        std::printf(", \"%s\": %.6f", name.c_str(), head.values[m]);
    std::printf("}");
    separator = ", ";
  }
  std::printf("]}\n");
  std::fflush(stdout);
}

int run(int64_t steps, int64_t every, uint64_t seed, int64_t width) {
  attn::models::Config config = attn::models::family("gpt");
  config.vocab_size = kVocabulary;
  config.context = kContext;
  config.embed_dim = width;
  config.layers = 2;
  config.heads = 8;
  config.positions = attn::models::PositionEncoding::rope;
  attn::models::Model model(config, attn::nn::Precision::float32, seed);
  const Repeating data(seed);
  attn::train::TrainerOptions options;
  options.steps = steps;
  options.eval_every = 0;
  options.seed = seed;
  attn::train::Trainer trainer(model, data, options, "");
  print(0, model, data);
  trainer.run({.step = [&](const attn::train::StepReport& report) {
    if (report.step % every == 0) print(report.step, model, data);
  }});
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  const auto number = [&](int place, int64_t otherwise) { return argc > place ? std::atoll(argv[place]) : otherwise; };
  try {
    return run(number(1, 1500), number(2, 25), static_cast<uint64_t>(number(3, 1337)), number(4, 128));
  } catch (const std::exception& error) {
    std::fprintf(stderr, "attn_induction: %s\n", error.what());
    return 1;
  }
}
