// Scores of heads by gradient, by leaving one out and by learned gates; rounds of removal and retraining.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "attn/train_prune.h"
#include "core/checker.h"

namespace attn::train {
namespace {

using autograd::Tape;
using autograd::Value;
using models::AttentionLayer;
using models::HeadLists;

void require_positive(std::string_view operation, const char* name, int64_t value) {
  if (value < 1)
    throw Error(std::string(operation), {std::string(name) + " is " + std::to_string(value) + ", must be positive"});
}

/// As many numbers as there are heads, all the same.
HeadScores filled(const models::Config& config, double value) {
  HeadScores all;
  for (const AttentionLayer& layer : models::attention_layers(config))
    all.emplace_back(static_cast<size_t>(layer.kv_heads), value);
  return all;
}

DType gate_type(const models::Model& model) {
  return model.parameters().dtype() == DType::float64 ? DType::float64 : DType::float32;
}

/// Gates of each sequence that want their gradients, the content of sequence b and head h by value(layer, h).
template <class Number>
std::vector<Value> gates_of(const models::Model& model, int64_t sequences, const Number& value) {
  std::vector<Value> gates;
  for (const AttentionLayer& layer : models::attention_layers(model.config())) {
    const size_t n = gates.size();
    std::vector<double> numbers(static_cast<size_t>(sequences * layer.kv_heads));
    for (int64_t b = 0; b < sequences; ++b)
      for (int64_t h = 0; h < layer.kv_heads; ++h) numbers[b * layer.kv_heads + h] = value(n, b, h);
    const Array array(gate_type(model), {sequences, layer.kv_heads}, false);
    ops::convert(View<2>(numbers.data(), {1, array.count()}), array.flat());
    gates.emplace_back(array, true);
  }
  return gates;
}

/// Calls visit(layer, b, h, derivative of the batch's loss) for every gate of every sequence.
template <class Visit>
void for_each_gradient(const std::vector<Value>& gates, const Visit& visit) {
  for (size_t n = 0; n < gates.size(); ++n) {
    const int64_t sequences = gates[n].shape()[0], heads = gates[n].shape()[1];
    std::vector<double> gradient(static_cast<size_t>(sequences * heads), 0);
    if (!gates[n].gradient_is_empty())
      ops::convert(gates[n].gradient().flat(), View<2>(gradient.data(), {1, sequences * heads}));
    for (int64_t b = 0; b < sequences; ++b)
      for (int64_t h = 0; h < heads; ++h) visit(n, b, static_cast<size_t>(h), gradient[b * heads + h]);
  }
}

/// How many targets of each sequence take part.
std::vector<int64_t> counted(const models::Batch& batch) {
  std::vector<int64_t> counts(static_cast<size_t>(batch.sequences), 0);
  const size_t each = batch.targets.size() / counts.size();
  for (size_t n = 0; n < batch.targets.size(); ++n) counts[n / each] += batch.targets[n] != ops::kIgnoreIndex;
  return counts;
}

double number_of(const Value& loss) {
  double value = 0;
  ops::convert(loss.data().flat(), View<2>(&value, {1, 1}));
  return value;
}

/// The mean loss of a target over the first batches of the training data.
double mean_loss(const models::Model& model, const Dataset& data, int64_t batches, const std::vector<Value>& gates) {
  const auto memory = Tape().memory();
  double total = 0, targets = 0;
  for (int64_t n = 0; n < batches; ++n) {
    const models::Batch batch = data.training(static_cast<uint64_t>(n));
    const std::vector<int64_t> counts = counted(batch);
    const auto count = static_cast<double>(std::accumulate(counts.begin(), counts.end(), int64_t{0}));
    Tape tape({}, memory);
    total += count * number_of(model.loss(tape, batch, {.gates = &gates}));
    targets += count;
  }
  return total / targets;
}

double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

}  // namespace

// -------------------------------------------------------------------------------------------------------------- scores

HeadScores gradient_scores(const models::Model& model, const Dataset& data, int64_t batches, bool normalise) {
  require_positive("gradient_scores", "batches", batches);
  HeadScores scores = filled(model.config(), 0);
  const auto memory = Tape().memory();
  double samples = 0;
  for (int64_t number = 0; number < batches; ++number) {
    const models::Batch batch = data.training(static_cast<uint64_t>(number));
    const std::vector<int64_t> counts = counted(batch);
    const auto all = static_cast<double>(std::accumulate(counts.begin(), counts.end(), int64_t{0}));
    const std::vector<Value> gates = gates_of(model, batch.sequences, [](size_t, int64_t, int64_t) { return 1.0; });
    Tape tape({.record = true}, memory);
    tape.backward(model.loss(tape, batch, {.gates = &gates}));
    // The batch's loss is a mean over all targets, a sample's one over its own.
    for_each_gradient(gates, [&](size_t n, int64_t b, size_t h, double gradient) {
      if (counts[b]) scores[n][h] += std::abs(gradient) * all / static_cast<double>(counts[b]);
    });
    samples += static_cast<double>(std::count_if(counts.begin(), counts.end(), [](int64_t c) { return c > 0; }));
  }
  for (std::vector<double>& layer : scores) {
    const double length = std::sqrt(std::inner_product(layer.begin(), layer.end(), layer.begin(), 0.0));
    const double divisor = normalise && length > 0 ? length : samples;
    for (double& score : layer) score /= divisor;
  }
  return scores;
}

HeadScores leave_one_out_scores(const models::Model& model, const Dataset& data, int64_t batches) {
  require_positive("leave_one_out_scores", "batches", batches);
  HeadScores scores = filled(model.config(), 0);
  HeadLists removed(scores.size());
  const auto loss = [&] {
    return mean_loss(model, data, batches, models::gates_without(model.config(), removed, gate_type(model)));
  };
  const double whole = loss();
  for (size_t n = 0; n < scores.size(); ++n)
    for (size_t h = 0; h < scores[n].size(); ++h) {
      removed[n] = {static_cast<int64_t>(h)};
      scores[n][h] = loss() - whole;
      removed[n].clear();
    }
  return scores;
}

HeadScores random_scores(const models::Config& config, uint64_t seed) {
  HeadScores scores = filled(config, 0);
  Random random(seed);
  for (std::vector<double>& layer : scores)
    for (double& score : layer) score = random.uniform();
  return scores;
}

// ------------------------------------------------------------------------------------------------------- learned gates

double HardConcrete::sample(double log_alpha, double u) const {
  const double s = sigmoid((std::log(u / (1 - u)) + log_alpha) / temperature);
  return std::clamp(s * (high - low) + low, 0.0, 1.0);
}

double HardConcrete::sample_slope(double log_alpha, double u) const {
  const double s = sigmoid((std::log(u / (1 - u)) + log_alpha) / temperature), stretched = s * (high - low) + low;
  return stretched > 0 && stretched < 1 ? s * (1 - s) * (high - low) / temperature : 0;
}

double HardConcrete::open(double log_alpha) const { return sigmoid(log_alpha - temperature * std::log(-low / high)); }

double HardConcrete::open_slope(double log_alpha) const { return open(log_alpha) * (1 - open(log_alpha)); }

HeadScores learned_gates(const models::Model& model, const Dataset& data, const GateOptions& options) {
  const HardConcrete& gate = options.gate;
  Checker checker("learned_gates");
  checker.require(options.steps > 0, "steps is " + std::to_string(options.steps) + ", must be positive");
  checker.require(options.learning_rate > 0 && std::isfinite(options.learning_rate),
                  "learning_rate is " + std::to_string(options.learning_rate) + ", must be positive and finite");
  checker.require(options.penalty >= 0 && std::isfinite(options.penalty) && std::isfinite(options.first),
                  "penalty is " + std::to_string(options.penalty) + " and first " + std::to_string(options.first) +
                      ", must be finite, and penalty not negative");
  checker.require(gate.temperature > 0 && gate.low < 0 && gate.high > 1,
                  "a gate has temperature " + std::to_string(gate.temperature) + ", low " + std::to_string(gate.low) +
                      " and high " + std::to_string(gate.high) + ", must be positive, below 0 and above 1");
  checker.done();
  HeadScores alphas = filled(model.config(), options.first), first = filled(model.config(), 0), second = first;
  const auto memory = Tape().memory();
  for (int64_t step = 0; step < options.steps; ++step) {
    const models::Batch batch = data.training(static_cast<uint64_t>(step));
    Random random(options.seed, static_cast<uint64_t>(step));
    std::vector<std::vector<double>> drawn(alphas.size());  // u of each gate, in the order of gates_of()
    const std::vector<Value> gates = gates_of(model, batch.sequences, [&](size_t n, int64_t, int64_t h) {
      drawn[n].push_back((random.uniform() * 0x1p32 + 0.5) * 0x1p-32);  // neither 0 nor 1
      return gate.sample(alphas[n][static_cast<size_t>(h)], drawn[n].back());
    });
    Tape tape({.record = true}, memory);
    tape.backward(model.loss(tape, batch, {.gates = &gates}));
    HeadScores gradient = filled(model.config(), 0);
    for_each_gradient(gates, [&](size_t n, int64_t b, size_t h, double each) {
      gradient[n][h] += each * gate.sample_slope(alphas[n][h], drawn[n][b * alphas[n].size() + h]);
    });
    for (size_t n = 0; n < alphas.size(); ++n) {
      const auto row = [](std::vector<double>& x) { return View<2>(x.data(), {1, static_cast<int64_t>(x.size())}); };
      for (size_t h = 0; h < alphas[n].size(); ++h) gradient[n][h] += options.penalty * gate.open_slope(alphas[n][h]);
      ops::adamw(row(alphas[n]), row(gradient[n]), row(first[n]), row(second[n]),
                 {.learning_rate = options.learning_rate, .step = step + 1});
    }
  }
  return alphas;
}

// ------------------------------------------------------------------------------------------------------------- removal

int64_t count_heads(const models::Config& config) {
  int64_t count = 0;
  for (const AttentionLayer& layer : models::attention_layers(config)) count += layer.kv_heads;
  return count;
}

int64_t removable_heads(const models::Config& config) {
  return count_heads(config) - static_cast<int64_t>(models::attention_layers(config).size());
}

HeadLists least_heads(const HeadScores& scores, int64_t count) {
  struct Place {
    double score;
    size_t layer;
    int64_t head;
  };
  std::vector<Place> all;
  bool finite = true;
  for (size_t n = 0; n < scores.size(); ++n) {
    const auto best = std::max_element(scores[n].begin(), scores[n].end());
    for (auto score = scores[n].begin(); score != scores[n].end(); ++score) {
      finite = finite && std::isfinite(*score);
      if (score != best) all.push_back({*score, n, score - scores[n].begin()});
    }
  }
  Checker checker("least_heads");
  checker.require(finite, "a score is not finite");
  checker.require(count >= 0 && count <= static_cast<int64_t>(all.size()), [&] {
    return "the number of heads to remove is " + std::to_string(count) + ", must be from 0 to " +
           std::to_string(all.size()) + ": each layer keeps one";
  });
  checker.done();
  std::stable_sort(all.begin(), all.end(), [](const Place& a, const Place& b) { return a.score < b.score; });
  HeadLists lists(scores.size());
  for (int64_t n = 0; n < count; ++n) lists[all[n].layer].push_back(all[n].head);
  for (std::vector<int64_t>& list : lists) std::sort(list.begin(), list.end());
  return lists;
}

HeadScores scores(const models::Model& model, const Dataset& data, const PruneOptions& options) {
  switch (options.scoring) {
    case Scoring::gradient: return gradient_scores(model, data, options.batches, options.normalize);
    case Scoring::leave_one_out: return leave_one_out_scores(model, data, options.batches);
    case Scoring::gates: return learned_gates(model, data, options.gates);
    default: return random_scores(model.config(), options.seed);
  }
}

namespace {

/// Of the updates after a round.
TrainerOptions training_of(const PruneOptions& options, int64_t round) {
  TrainerOptions training = options.training;
  training.steps = options.retrain;
  training.decay_steps = 0;
  training.warmup = std::min(training.warmup, options.retrain / 10);
  training.seed += static_cast<uint64_t>(round);
  return training;
}

}  // namespace

models::Model prune(const models::Model& model, const Dataset& data, const PruneOptions& options) {
  const int64_t most = removable_heads(model.config());
  Checker checker("prune");
  checker.require(options.heads >= 1 && options.heads <= most, [&] {
    return "heads is " + std::to_string(options.heads) + ", must be from 1 to " + std::to_string(most) +
           ": of the model's " + std::to_string(count_heads(model.config())) + " heads each layer keeps one";
  });
  checker.require(options.rounds >= 1 && options.rounds <= std::max<int64_t>(options.heads, 1),
                  "rounds is " + std::to_string(options.rounds) + ", must be from 1 to the number of heads to remove");
  checker.require(options.retrain >= 0, "retrain is " + std::to_string(options.retrain) + ", must not be negative");
  checker.done();
  if (options.retrain > 0) learning_rate(training_of(options, 0), 0);  // which checks them
  models::Model left = remove_heads(model, HeadLists(models::attention_layers(model.config()).size()));
  for (int64_t round = 0; round < options.rounds; ++round) {
    const int64_t before = options.heads * round / options.rounds, after = options.heads * (round + 1) / options.rounds;
    const HeadScores found = scores(left, data, options);
    const HeadLists removed = least_heads(found, after - before);
    if (options.on_round) options.on_round(round, found, removed);
    left = remove_heads(left, removed);
    if (options.retrain == 0) continue;
    Trainer trainer(left, data, training_of(options, round), "");
    if (!trainer.run(options.events)) throw Error("prune", {"stopped in round " + std::to_string(round + 1)});
  }
  return left;
}

}  // namespace attn::train
