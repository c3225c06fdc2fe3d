// train: scores how much each attention head matters, and removes those that matter least.
//
// ```cpp
// #include "attn/train_prune.h"
// using namespace attn;
// int main() {
//   models::Config config = models::family("gpt");
//   config.vocab_size = 50, config.context = 16, config.layers = 2, config.embed_dim = 32;
//   const models::Model model(config, nn::Precision::float32, 1);
//   const train::TextDataset data(std::vector<int64_t>(2000, 7), 16, 8, 1);
//   const models::Model smaller = train::prune(model, data, {.heads = 2, .batches = 1});  // 2 of 8 heads go
// }
// ```
//
// Heads are key/value heads (models::AttentionLayer::kv_heads): query heads that share one are scored and removed
// together.
#pragma once

#include "attn/models_prune.h"
#include "attn/train.h"

#pragma GCC visibility push(default)
namespace attn::train {

/// A score for each head of each of models::attention_layers(). A larger score means that the head matters more.
using HeadScores = std::vector<std::vector<double>>;

/// The default number of training batches that scores read, from the first. Scores throw Error unless it is positive.
constexpr int64_t kScoreBatches = 20;

/// The mean over samples x of |dL(x) / dg|, where g = 1 is a gate on the head's output: the first-order change of a
/// sample's loss without the head (Michel et al. 2019, arXiv:1905.10650). `normalize` divides the scores of each layer
/// by their Euclidean norm, as the paper does. Costs one backward per batch.
HeadScores gradient_scores(const models::Model& model, const Dataset& data, int64_t batches = kScoreBatches,
                           bool normalize = true);
/// The increase of the mean loss without the head. Costs one forward per batch and head.
HeadScores leave_one_out_scores(const models::Model& model, const Dataset& data, int64_t batches = kScoreBatches);
/// Uniform in [0, 1): the baseline of the other methods.
HeadScores random_scores(const models::Config& config, uint64_t seed);

/// A gate that can be exactly 0 and still has a gradient: a Concrete variable stretched to (low, high) and clipped to
/// [0, 1] (Louizos et al. 2017, arXiv:1712.01312), as in Voita et al. 2019, arXiv:1905.09418.
struct HardConcrete {
  double temperature = 0.33, low = -0.1, high = 1.1;
  /// clip(s (high - low) + low), s = sigmoid((log(u / (1 - u)) + log_alpha) / temperature), for u in (0, 1).
  double sample(double log_alpha, double u) const;
  double sample_slope(double log_alpha, double u) const;  ///< its derivative with respect to log_alpha
  /// The probability that the gate is not 0: sigmoid(log_alpha - temperature log(-low / high)).
  double open(double log_alpha) const;
  double open_slope(double log_alpha) const;  ///< its derivative with respect to log_alpha
};
struct GateOptions {
  HardConcrete gate = {};
  int64_t steps = 200;  ///< updates of AdamW, one batch each
  double learning_rate = 0.1;
  double penalty = 0.02;  ///< factor on the sum of open(), added to the loss
  double first = 2;       ///< initial log_alpha
  uint64_t seed = 0;
};
/// Trains only the gates, on the loss with gates sampled for each sequence plus the penalty, and returns log_alpha of
/// each head. Voita et al. remove heads with a negative value, whose gate is closed more often than open.
HeadScores learned_gates(const models::Model& model, const Dataset& data, const GateOptions& options = {});

/// The `count` heads with the lowest scores, of equal ones the first. The best head of each layer stays. Throws Error
/// for a negative count, for one above removable_heads(), and for scores that are not finite.
models::HeadLists least_heads(const HeadScores& scores, int64_t count);
/// The number of heads that can be removed, and of all heads.
int64_t removable_heads(const models::Config& config);
int64_t count_heads(const models::Config& config);

enum class Scoring { gradient, leave_one_out, gates, random };
constexpr auto enum_names(Scoring) {
  return std::to_array<std::string_view>({"gradient", "leave-one-out", "gates", "random"});
}
struct PruneOptions {
  int64_t heads = 0;   ///< heads to remove, in all rounds together
  int64_t rounds = 1;  ///< each round scores, removes its share and retrains
  Scoring scoring = Scoring::gradient;
  int64_t batches = kScoreBatches;  ///< of gradient and leave_one_out
  bool normalize = true;            ///< of gradient
  GateOptions gates = {};
  uint64_t seed = 0;             ///< of random; the others take theirs from their options
  int64_t retrain = 0;           ///< updates after each round
  TrainerOptions training = {};  ///< of these updates; each round has its own `steps` and `seed`
  /// Called in each round with the scores of its heads and those that it removes.
  std::function<void(int64_t round, const HeadScores& scores, const models::HeadLists& removed)> on_round = {};
  Trainer::Events events = {};  ///< of the retraining; prune() throws Error if stop() returns true
};
/// The scores of the heads by options.scoring.
HeadScores scores(const models::Model& model, const Dataset& data, const PruneOptions& options);
/// Returns the model without the heads that matter least, retrained if options.retrain > 0. Throws Error for invalid
/// options before it scores anything.
models::Model prune(const models::Model& model, const Dataset& data, const PruneOptions& options);

}  // namespace attn::train
#pragma GCC visibility pop
