// What a training learns from: a text, labelled sentences or pairs of texts, with the tokenizers for it.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "attn/train_pairs.h"

namespace cli {

/// The part of a training's settings that is about its data.
struct DataSettings {
  std::string data, validation, tokens, source_tokens;
  int64_t batch = 12, validation_batches = 20, min_count = 2;
  double word_dropout = 0;
  int64_t max_length = 0;  // tokens of a sequence; 0 = the model's context
};

// The tokenizer, and the classes, of a model that was trained before.
struct Origin {
  std::unique_ptr<attn::text::Tokenizer> tokenizer = {};
  std::vector<std::string> labels = {};
};

struct Prepared {
  std::unique_ptr<attn::text::Tokenizer> tokenizer, source_tokenizer;  // the second of pairs alone
  std::unique_ptr<attn::train::Dataset> data;
  std::vector<std::string> labels = {};  // of a classifier
  int64_t longest = 0;                   // tokens of a sequence of a batch
};

// The tokenizer's file in a model's directory.
inline constexpr const char* kTokenizerFile = "tokenizer.json";

std::string path_in(const std::string& directory, const char* name);

/// A new model takes its sizes from the data; the data of the one that is resumed in the directory `resumed` must fit
/// it. With a tokenizer in `origin` only the number of classes comes from the data.
Prepared prepare(const DataSettings& settings, attn::models::Config& config, uint64_t seed, const std::string& resumed,
                 Origin origin = {});

}  // namespace cli
