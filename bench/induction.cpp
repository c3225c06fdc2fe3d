// Trains a model of two layers on texts in which segments repeat, and measures its heads while an induction head forms
// (Olsson et al. 2022, arXiv:2209.11895). One row a measurement.
#include <algorithm>

#include "attn/heads.h"
#include "attn/train.h"
#include "modes.h"

namespace bench {
namespace {

using attn::models::Batch;

constexpr int64_t kVocabulary = 256, kContext = 64, kBatch = 32;
constexpr uint64_t kValidation = uint64_t{1} << 40, kRepeats = 7;  // numbers and seeds that the training does not use

/// Texts of kContext tokens: a segment of 10 to 30 random tokens, repeated. Tokens of the first segment cannot be
/// predicted; those that repeat it can, from the text before them.
class Repeating : public attn::train::Dataset {
 public:
  explicit Repeating(uint64_t seed) : seed_(seed) {}
  Batch training(uint64_t number) const override { return batch(number, true, true); }
  Batch validation(int64_t number) const override { return part(number, true, true); }
  int64_t validation_batches() const override { return 4; }
  int64_t batches_per_epoch() const override { return 1; }
  std::string describe() const override { return "segments that repeat"; }

  /// A validation batch whose targets are tokens that cannot be predicted, tokens that repeat, or both.
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
        const bool repeats = i + 1 > segment;  // nor can the first token of a second segment
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
    sum += model.loss(tape, data.part(number, first, later)).item<float>();
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

/// The largest value of a measure among the heads of a layer, and that head.
struct Largest {
  double value = 0;
  int64_t head = 0;
};

Largest largest(const std::vector<attn::heads::HeadValues>& heads, const std::string& name, int64_t layer) {
  const auto& all = attn::heads::measures();
  const auto measure = std::find_if(all.begin(), all.end(), [&](const auto& one) { return one.name == name; });
  Largest found;
  for (const attn::heads::HeadValues& head : heads)
    if (const double value = head.values[static_cast<size_t>(measure - all.begin())];
        head.layer == layer && value > found.value)
      found = {value, head.head};
  return found;
}

void add_row(int64_t step, const attn::models::Model& model, const Repeating& data, Report& report) {
  const std::vector<attn::heads::HeadValues> heads = measured(model).table();
  const Largest induction = largest(heads, "induction", 1);
  report.add({{"step", step},
              {"loss", mean_loss(model, data, true, true)},
              {"loss of repeated tokens", mean_loss(model, data, false, true)},
              {"loss of other tokens", mean_loss(model, data, true, false)},
              {"previous of layer 0", largest(heads, "previous", 0).value},
              {"duplicate of layer 0", largest(heads, "duplicate", 0).value},
              {"induction of layer 0", largest(heads, "induction", 0).value},
              {"induction of layer 1", induction.value},
              {"head of layer 1", induction.head}});
}

}  // namespace

bool run_induction(const Settings& settings, Report& report) {
  attn::models::Config config = attn::models::family("gpt");
  config.vocab_size = kVocabulary;
  config.context = kContext;
  config.embed_dim = settings.width;
  config.layers = 2;
  config.heads = 8;
  config.positions = attn::models::PositionEncoding::rope;
  attn::models::Model model(config, attn::nn::Precision::float32, settings.seed);
  const Repeating data(settings.seed);
  attn::train::TrainerOptions options;
  options.steps = settings.steps;
  options.eval_every = 0;
  options.seed = settings.seed;
  attn::train::Trainer trainer(model, data, options, "");
  add_row(0, model, data, report);
  trainer.run({.step = [&](const attn::train::StepReport& row) {
    if (row.step % settings.every == 0) add_row(row.step, model, data, report);
  }});
  return true;
}

}  // namespace bench
