// What a training learns from: a text, labelled sentences or pairs of texts, with the tokenizers for it.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "attn/core_names.h"
#include "attn/models_finetune.h"
#include "attn/train_pairs.h"
#include "attn/train_similarity.h"

namespace cli {

/// What a model learns of its data.
enum class Task {
  causal_lm,
  masked_lm,
  classification,
  regression,
  token_classification,
  similarity,
  contrastive,
  seq2seq
};
constexpr auto enum_names(Task) {
  return std::to_array<std::string_view>({"causal-lm", "masked-lm", "classification", "regression",
                                          "token-classification", "similarity", "contrastive", "seq2seq"});
}

/// The part of a training's settings that is about its data.
struct DataSettings {
  std::string data, validation, tokens, source_tokens;
  std::string tokenizer;      // a tokenizer.json for a new model, in place of `tokens`
  std::string task, metric;   // names of Task and of attn::train::Metric; empty: as data and model suggest
  std::string class_weights;  // numbers with commas between them, or "balanced"
  bool packed = false;        // batches of sentences without padding
  int64_t batch = 12, validation_batches = 20, min_count = 2;
  double word_dropout = 0, masked_share = 0.15;
  int64_t max_length = 0;  // tokens of a sequence; 0 = the model's context
};

// What a model that was trained before brings to a training that begins with it.
struct Origin {
  std::unique_ptr<attn::text::Tokenizer> tokenizer = {};
  std::vector<std::string> labels = {};
  attn::models::DecoderTokens decoder_tokens = {};  // of an encoder-decoder
};

struct Prepared {
  std::unique_ptr<attn::text::Tokenizer> tokenizer, source_tokenizer;  // the second of pairs alone
  std::unique_ptr<attn::train::Dataset> data;
  std::vector<std::string> labels = {};  // of a classifier
  int64_t longest = 0;                   // tokens of a sequence of a batch
  int64_t rows = 0, truncated = 0;       // of labelled texts or pairs: all, and those that are longer
  Task task = Task::causal_lm;
};

// The tokenizer's file in a model's directory.
inline constexpr const char* kTokenizerFile = "tokenizer.json";

std::string path_in(const std::string& directory, const char* name);

/// The task that the settings name or, without one, that the model's configuration and the name of the file suggest.
/// Throws UsageError where the model cannot learn it.
Task task_of(const DataSettings& settings, const attn::models::Config& config);

/// A new model takes its sizes from the data; the data of the one that is resumed in the directory `resumed` must fit
/// it. With a tokenizer in `origin` only the number of classes comes from the data.
Prepared prepare(const DataSettings& settings, attn::models::Config& config, uint64_t seed, const std::string& resumed,
                 Origin origin = {});

}  // namespace cli
