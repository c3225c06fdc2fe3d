// Validation: what a model says of held-out batches, which ranks share.
#include <algorithm>
#include <cstring>

#include "attn/models_ranks.h"
#include "attn/train.h"

namespace attn::train {

using autograd::Tape;

namespace {

/// What the model says of the targets of a batch, added to the predictions; returns the sum of the losses' weights.
double add_classes(Tape& tape, const models::Model& model, const models::Batch& batch,
                   const models::ForwardOptions& options, Predictions& predictions) {
  const models::TargetLogits found = model.target_logits(tape, batch, options);
  const double loss = cross_entropy(tape, found.logits, found.targets, found.weights).data().number(0);
  const View<2> rows = found.logits.data().rows();
  Array wide(DType::float32, {rows.size[0], rows.size[1]}, false);
  ops::convert(rows, wide.rows());
  double weight = 0;
  for (int64_t r = 0; r < rows.size[0]; ++r) {
    const auto n = static_cast<size_t>(r);
    if (found.targets[n] == ops::kIgnoreIndex) continue;
    const float* row = static_cast<const float*>(wide.data()) + r * rows.size[1];
    predictions.expected.push_back(found.targets[n]);
    predictions.predicted.push_back(std::max_element(row, row + rows.size[1]) - row);
    weight += found.weights.empty() ? 1 : found.weights[n];
  }
  predictions.loss += loss * weight;
  return weight;
}

/// Where each text of a batch with a target for each token ends among the predictions.
void add_ends(const models::Batch& batch, int64_t first, Predictions& predictions) {
  const auto per_text = std::ssize(batch.targets) / batch.sequences;
  for (int64_t b = 0; b < batch.sequences; ++b) {
    const auto n = static_cast<size_t>(b);
    const int64_t begin = batch.cu_seqlens.empty() ? b * per_text : batch.cu_seqlens[n];
    const int64_t end = batch.cu_seqlens.empty() ? begin + per_text : batch.cu_seqlens[n + 1];
    const auto targets = batch.targets.begin();
    first += end - begin - std::count(targets + begin, targets + end, ops::kIgnoreIndex);
    predictions.ends.push_back(first);
  }
}

double add_numbers(Tape& tape, const models::Model& model, const models::Batch& batch,
                   const models::ForwardOptions& options, Predictions& predictions) {
  const std::vector<double> said = model.forward(tape, batch, options).data().values();
  for (size_t n = 0; n < said.size(); ++n) {
    predictions.expected_values.push_back(batch.values[n]);
    predictions.predicted_values.push_back(said[n]);
    predictions.loss += (said[n] - batch.values[n]) * (said[n] - batch.values[n]);
  }
  return static_cast<double>(said.size());
}

}  // namespace

double add_predictions(const models::Model& model, const models::Batch& batch, Predictions& predictions,
                       const models::ForwardOptions& options, std::shared_ptr<autograd::Recycler> memory) {
  Tape tape({}, std::move(memory));
  if (!batch.values.empty()) return add_numbers(tape, model, batch, options, predictions);
  const int64_t before = std::ssize(predictions.expected);
  const double weight = add_classes(tape, model, batch, options, predictions);
  if (classifies_tokens(model.config())) add_ends(batch, before, predictions);
  return weight;
}

namespace {

template <class T>
void append(std::string& bytes, const std::vector<T>& list) {
  const int64_t n = std::ssize(list);
  bytes.append(reinterpret_cast<const char*>(&n), sizeof n);
  bytes.append(reinterpret_cast<const char*>(list.data()), list.size() * sizeof(T));
}

/// Takes what append() has written from the front of `bytes`. Adds `offset` to each element.
template <class T>
void take(std::string_view& bytes, std::vector<T>& list, T offset = 0) {
  int64_t n = 0;
  std::memcpy(&n, bytes.data(), sizeof n);
  bytes.remove_prefix(sizeof n);
  const size_t begin = list.size();
  list.resize(begin + static_cast<size_t>(n));
  if (n > 0) std::memcpy(list.data() + begin, bytes.data(), static_cast<size_t>(n) * sizeof(T));
  bytes.remove_prefix(static_cast<size_t>(n) * sizeof(T));
  for (size_t m = begin; m < list.size(); ++m) list[m] += offset;
}

/// The predictions of a batch and the weight of its loss.
std::string bytes_of(const Predictions& batch, double weight) {
  std::string bytes;
  append(bytes, std::vector{batch.loss, weight});
  append(bytes, batch.expected);
  append(bytes, batch.predicted);
  append(bytes, batch.expected_values);
  append(bytes, batch.predicted_values);
  append(bytes, batch.ends);
  return bytes;
}

/// Adds a batch to what precedes it; returns the weight of its loss.
double take_batch(std::string_view& bytes, Predictions& all) {
  std::vector<double> loss_and_weight;
  const int64_t before = std::ssize(all.expected);
  take(bytes, loss_and_weight);
  take(bytes, all.expected);
  take(bytes, all.predicted);
  take(bytes, all.expected_values);
  take(bytes, all.predicted_values);
  take(bytes, all.ends, before);
  all.loss += loss_and_weight[0];
  return loss_and_weight[1];
}

}  // namespace

Validation validate(const models::Model& model, const Dataset& data, const ValidationOptions& options) {
  static const cluster::RankGrid alone;
  const cluster::RankGrid& ranks = options.ranks ? *options.ranks : alone;
  const int64_t batches = data.validation_batches(), S = ranks.shape().sequence, T = ranks.shape().tensor;
  std::string mine;
  cluster::on_all_ranks(ranks, "validate", [&] {
    const auto memory = Tape().memory();
    for (int64_t n = ranks.data_place(); n < batches; n += ranks.shape().data) {
      Predictions predictions;
      models::Batch batch = data.validation(n);
      models::ForwardOptions forward = options.forward;
      std::optional<autograd::SharedSequence> shared;
      if (S > 1) {
        shared.emplace(ranks.sequence(), models::placement_for(model.config(), batch.length, static_cast<int>(S)), 0,
                       ranks.schedule());
        batch = shard_of(batch, *shared);
        forward.sequence = &*shared;
      }
      const double weight = add_predictions(model, batch, predictions, forward, memory);
      mine += bytes_of(predictions, weight);
    }
  });
  const std::vector<std::string> of_ranks = cluster::gather(ranks.all(), mine);
  std::vector<std::string_view> rest(of_ranks.begin(), of_ranks.end());
  Predictions predictions;
  double weight = 0;
  for (int64_t n = 0; n < batches; ++n)
    for (int64_t part = 0; part < S; ++part)
      weight += take_batch(rest[static_cast<size_t>((n % ranks.shape().data * S + part) * T)], predictions);
  if (predictions.expected.empty() && predictions.expected_values.empty())
    throw Error("validate", {"there is nothing to validate with: no target takes part"});
  predictions.loss = weight > 0 ? predictions.loss / weight : 0;
  const bool of_classes = !predictions.expected.empty();
  const Metric metric = options.metric.value_or(model.config().classes && of_classes ? Metric::accuracy : Metric::loss);
  return {.loss = predictions.loss,
          .accuracy = of_classes ? metric_value(Metric::accuracy, predictions) : 0,
          .metric = metric,
          .score = metric_value(metric, predictions, options.labels)};
}

}  // namespace attn::train
