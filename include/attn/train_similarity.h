// train: pairs of texts for sentence encoders, whose vectors of like texts should be near each other.
//
// ```cpp
// #include "attn/train_similarity.h"
// using namespace attn;
// int main() {
//   models::Config config = models::family("encoder");
//   config.vocab_size = 50, config.context = 16, config.layers = 1, config.head = false, config.classes = 0;
//   models::Model model(config, nn::Precision::float32, 1);
//   const std::vector<train::SentencePair> pairs = {{{{1, 2}}, {{1, 3}}}, {{{7, 8, 9}}, {{7, 9}}}};
//   const train::SentencePairs data(pairs, pairs, 16, 2, 1);
//   const train::SimilarityOptions how = {.loss = train::SimilarityLoss::contrastive};
//   train::Trainer trainer(model.parameters(), train::similarity_loss(model, data, how), {.steps = 5}, "",
//                          [&] { return train::validate_similarity(model, data, how); });
//   trainer.run();
// }
// ```
#pragma once

#include <vector>

#include "attn/models_embed.h"
#include "attn/train.h"

#pragma GCC visibility push(default)
namespace attn::train {

/// Two texts, and how alike they are.
struct SentencePair {
  text::Encoding first = {}, second = {};
  double score = 1;              ///< the cosine that SimilarityLoss::cosine wants
  text::Encoding negative = {};  ///< a text that is unlike the first, for SimilarityLoss::contrastive; may be empty
};

/// The columns of a file of pairs.
struct PairTexts {
  std::vector<std::string> first = {}, second = {};
  std::vector<double> scores = {};          ///< empty: the file has none
  std::vector<std::string> negatives = {};  ///< "" for a pair without one
  std::vector<int64_t> lines = {};          ///< of each row's begin, from 1
};
/// Reads pairs from files as read_labelled() has them, with the columns "text" ("sentence1", "anchor"), "text_pair"
/// ("sentence2", "positive") and perhaps "score" ("label", "similarity"), a number, and "negative". Without names a
/// third column is the score. Throws Error with the file and the line.
PairTexts read_pair_texts(const std::string& path);
/// Encodes them. Throws Error as encode_labelled(), and if there are no scores where `scores` wants some.
std::vector<SentencePair> encode_pair_texts(const PairTexts& texts, bool scores, const text::Tokenizer& tokenizer,
                                            const EncodingOptions& options = {});

/// Batches of sentence pairs, shuffled as by LabelledDataset and packed: all first texts, all second ones, and all
/// negatives if every pair has one. Batch::values are the scores.
class SentencePairs : public RowsDataset {
 public:
  /// Longer texts are truncated to `context` tokens. Throws Error for texts without tokens and for scores that are not
  /// finite.
  SentencePairs(std::vector<SentencePair> training, std::vector<SentencePair> validation, int64_t context,
                int64_t batch, uint64_t seed);
  std::string describe() const override;

 private:
  int64_t training_rows() const override { return std::ssize(training_); }
  int64_t validation_rows() const override { return std::ssize(validation_); }
  int64_t length_of(int64_t row) const override;
  models::Batch batch_of(bool training, std::span<const int64_t> rows) const override;
  std::vector<SentencePair> training_, validation_;
  int64_t context_;
  bool with_types_ = false, with_negatives_ = false;
};

enum class SimilarityLoss {
  cosine,      ///< the mean of (cosine - score)^2, as CosineSimilarityLoss of sentence-transformers
  contrastive  ///< each first text has to find its second one among all of the batch (van den Oord et al. 2018,
               ///< arXiv:1807.03748), as MultipleNegativesRankingLoss
};
struct SimilarityOptions {
  SimilarityLoss loss = SimilarityLoss::cosine;
  models::Pooling pooling = models::Pooling::mean;  ///< mean or first
  double scale = 20;                                ///< on cosines, for SimilarityLoss::contrastive
  bool recompute = false;                           ///< as models::ForwardOptions
  std::optional<Metric> metric = {};                ///< absent: spearman for cosine, accuracy for contrastive
};

/// One vector of length 1 for each text of a packed batch, [texts, C]. Throws Error for a pooling that is not
/// supported.
autograd::Value sentence_vectors(autograd::Tape& tape, const models::Model& model, const models::Batch& batch,
                                 const SimilarityOptions& options);
/// What a Trainer minimises. Borrows model and data.
LossFunction similarity_loss(const models::Model& model, const SentencePairs& data, const SimilarityOptions& options);
/// The loss, and the metric: correlations are of cosines and scores, accuracy is the share of first texts whose own
/// second text is the nearest of the batch.
Validation validate_similarity(const models::Model& model, const SentencePairs& data, const SimilarityOptions& options);

}  // namespace attn::train
#pragma GCC visibility pop
