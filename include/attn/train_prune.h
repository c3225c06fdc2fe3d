// train: which heads matter, and a model without those that do not.
//
// Heads are counted as models::AttentionLayer::kv_heads counts them: where heads share keys and values, what is scored
// and removed is a group of them.
#pragma once

#include "attn/models_prune.h"
#include "attn/train.h"

#pragma GCC visibility push(default)
namespace attn::train {

/// Of each of models::attention_layers() a number a head: the larger, the more it matters.
using HeadScores = std::vector<std::vector<double>>;

/// Scores read so many batches of the training data, from the first, and throw Error unless that is positive.
constexpr int64_t kScoreBatches = 20;

/// The mean over samples x of |dL(x) / dg|, g = 1 a gate on the head's output: by how much the loss of one sample
/// changes with the head, to first order (Michel et al. 2019, arXiv:1905.10650). `normalise` divides the scores of each
/// layer by their Euclidean norm, as the paper does. One backward a batch.
HeadScores gradient_scores(const models::Model& model, const Data& data, int64_t batches = kScoreBatches,
                           bool normalise = true);
/// By how much the mean loss rises without the head. A forward a batch and head.
HeadScores leave_one_out_scores(const models::Model& model, const Data& data, int64_t batches = kScoreBatches);
/// Uniform in [0, 1): what every other method has to beat.
HeadScores random_scores(const models::Config& config, uint64_t seed);

/// A gate that may be exactly 0 and has a gradient all the same: a Concrete variable stretched to (low, high) and
/// clipped to [0, 1] (Louizos et al. 2017, arXiv:1712.01312), as Voita et al. 2019, arXiv:1905.09418, take it.
struct HardConcrete {
  double temperature = 0.33, low = -0.1, high = 1.1;
  /// clip(s (high - low) + low), s = sigmoid((log(u / (1 - u)) + log_alpha) / temperature), for u in (0, 1).
  double sample(double log_alpha, double u) const;
  double sample_slope(double log_alpha, double u) const;  ///< by log_alpha
  /// The probability that the gate is not 0: sigmoid(log_alpha - temperature log(-low / high)).
  double open(double log_alpha) const;
  double open_slope(double log_alpha) const;  ///< by log_alpha
};
struct GateOptions {
  HardConcrete gate = {};
  int64_t steps = 200;  ///< updates by AdamW, a batch each
  double learning_rate = 0.1;
  double penalty = 0.02;  ///< of the sum of open(), added to the loss
  double first = 2;       ///< log_alpha at the beginning
  uint64_t seed = 0;
};
/// log_alpha of each head after training the gates alone: the loss with gates sampled for each sequence, and the
/// penalty; weights stay as they are. A head whose number is negative is closed more often than not: Voita et al.
/// remove these.
HeadScores learned_gates(const models::Model& model, const Data& data, const GateOptions& options = {});

/// The `count` heads of the lowest scores, of equal ones the first. The best head of each layer stays. Throws Error
/// where fewer can go, for a negative count, and for scores that are not finite.
models::HeadLists least_heads(const HeadScores& scores, int64_t count);
/// How many heads can go, and how many there are.
int64_t removable_heads(const models::Config& config);
int64_t count_heads(const models::Config& config);

enum class Scoring { gradient, leave_one_out, gates, random };
struct PruneOptions {
  int64_t heads = 0;   ///< that go, in all
  int64_t rounds = 1;  ///< each scores what is left, removes its part and retrains
  Scoring scoring = Scoring::gradient;
  int64_t batches = kScoreBatches;  ///< of gradient and leave_one_out
  bool normalise = true;            ///< of gradient
  GateOptions gates = {};
  uint64_t seed = 0;      ///< of random; the others take theirs from their options
  int64_t retrain = 0;    ///< updates after each round
  Options training = {};  ///< of these updates, but for `steps` and `seed`, which each round has of its own
  /// Hears of each round: its scores of the heads that there were, and which of them go.
  std::function<void(int64_t round, const HeadScores& scores, const models::HeadLists& removed)> on_round = {};
  Trainer::Events events = {};  ///< of the retraining; where `stop` says so, prune() throws Error
};
HeadScores scores(const models::Model& model, const Data& data, const PruneOptions& options);
/// The model without the heads that matter least, perhaps retrained. Throws Error for options that do not serve, before
/// anything is scored.
models::Model prune(const models::Model& model, const Data& data, const PruneOptions& options);

}  // namespace attn::train
#pragma GCC visibility pop
