// The data of a training and the tokenizers that are made from them.
#include "prepare.h"

#include <fmt/core.h>

#include <algorithm>
#include <charconv>
#include <cmath>

#include "commands.h"
#include "output.h"
#include "primer.h"

namespace cli {
namespace {

using attn::models::Config;
using attn::text::Tokenizer;

/// What `attn train` is given besides its settings.
struct Job {
  const DataSettings& settings;
  const Config& config;
  uint64_t seed;
  std::string resumed;  ///< the directory; empty for a new training
  Origin& origin;
  bool is_new;  ///< neither resumed nor begun with another model
  /// The most tokens of a sequence.
  int64_t length() const { return settings.max_length ? settings.max_length : config.context; }
  const std::string& validation_path() const {
    return settings.validation.empty() ? settings.data : settings.validation;
  }
  attn::train::EncodingOptions encoding(const std::string& path) const {
    return {.max_length = length(), .with_types = config.type_vocab_size > 0, .source = path};
  }

  /// The tokenizer of a training that is resumed, of the model that it begins with, or that a file has; null for one
  /// that is made of the data.
  std::unique_ptr<Tokenizer> stored(const char* name) const {
    if (resumed.empty() && origin.tokenizer) return std::move(origin.tokenizer);
    if (resumed.empty()) return settings.tokenizer.empty() ? nullptr : attn::text::open_tokenizer(settings.tokenizer);
    const std::string path = path_in(resumed, name);
    return attn::text::load_tokenizer(attn::io::read_file(path, 1 << 28), path);
  }
  /// The names of the classes: those of the model that the training begins with, if the data have no other.
  std::vector<std::string> labels(std::vector<std::string> all) const;
  /// Another row of the data, whose longest text has so many tokens.
  void measure(Prepared& prepared, size_t tokens, bool truncated) const {
    ++prepared.rows;
    prepared.truncated += truncated;
    prepared.longest =
        std::max(prepared.longest, std::min<int64_t>((static_cast<int64_t>(tokens) + 7) / 8 * 8, length()));
  }
};

/// The rows to train on and those to validate with: another file, or the last tenth.
template <class Read>
auto split(const DataSettings& settings, const Read& read) {
  auto rows = read(settings.data);
  decltype(rows) held_out;
  if (!settings.validation.empty()) {
    held_out = read(settings.validation);
    return std::pair(std::move(rows), std::move(held_out));
  }
  constexpr size_t kLeast = 10;
  if (rows.size() < kLeast)
    throw UsageError(
        fmt::format("{} has {} rows, of which the last tenth validates: it must have at least {}, or "
                    "--validation names another file",
                    settings.data, rows.size(), kLeast));
  const size_t kept = rows.size() - rows.size() / kLeast;
  held_out.assign(std::make_move_iterator(rows.begin() + static_cast<int64_t>(kept)),
                  std::make_move_iterator(rows.end()));
  rows.resize(kept);
  return std::pair(std::move(rows), std::move(held_out));
}

template <class Row>
std::vector<Row> together(std::vector<Row> rows, const std::vector<Row>& more) {
  rows.insert(rows.end(), more.begin(), more.end());
  return rows;
}

std::vector<std::string> Job::labels(std::vector<std::string> all) const {
  if (!resumed.empty()) return attn::models::load_labels(resumed, config.classes);
  const auto is_known = [&](const std::string& label) {
    return std::find(origin.labels.begin(), origin.labels.end(), label) != origin.labels.end();
  };
  if (std::all_of(all.begin(), all.end(), is_known)) return origin.labels;
  if (is_new && static_cast<int64_t>(all.size()) < config.classes)
    throw attn::Error("train", {fmt::format("{} has {} different labels, but the model has {} classes", settings.data,
                                            all.size(), config.classes)});
  return all;
}

// ---------------------------------------------------------------------------------------------------------- sentences

/// The weight of each class: those that are given, or by how rare a class is, with mean 1 over the rows.
std::vector<double> weights_of(const std::string& given, const std::vector<std::string>& labels,
                               const std::vector<attn::train::Labelled>& rows) {
  std::vector<double> weights;
  if (given.empty()) return weights;
  if (given == "balanced") {
    std::vector<double> counts(labels.size(), 0);
    double total = 0;
    const auto count = [&](int64_t label) {
      if (label < 0) return;
      ++counts[static_cast<size_t>(label)];
      ++total;
    };
    for (const auto& row : rows) {
      if (row.token_labels.empty()) count(row.label);
      for (const int64_t label : row.token_labels) count(label);
    }
    for (const double each : counts)
      weights.push_back(each > 0 ? total / (static_cast<double>(counts.size()) * each) : 0);
    return weights;
  }
  for (const char *at = given.data(), *end = at + given.size(); at <= end; ++at) {
    double weight = -1;
    const auto [stop, error] = std::from_chars(at, end, weight);
    if (error != std::errc() || !(weight >= 0) || !std::isfinite(weight) || (stop != end && *stop != ','))
      throw UsageError("--class-weights is " + given + ", must be balanced or numbers from 0 with commas between them");
    weights.push_back(weight);
    at = stop;
  }
  if (std::all_of(weights.begin(), weights.end(), [](double weight) { return weight == 0; }))
    throw UsageError("--class-weights is " + given + ", must have a number above 0");
  if (weights.size() != labels.size())
    throw UsageError(fmt::format("--class-weights has {} numbers, but there are {} classes: {}", weights.size(),
                                 labels.size(), joined(labels, ", ")));
  return weights;
}

/// The tokenizer of a new model for sentences.
std::unique_ptr<Tokenizer> sentence_tokenizer(const DataSettings& settings, const std::vector<std::string>& texts) {
  if (settings.tokens == "bytes") return attn::text::bytes();
  if (settings.tokens.empty() || settings.tokens == "words")
    return attn::text::words_of(texts, {.min_count = settings.min_count});
  throw UsageError("--tokens is '" + settings.tokens + "', must be words or bytes for sentences");
}

/// The dataset of encoded rows, whose labels are known.
void set_labelled(const Job& job, std::vector<attn::train::Labelled> rows, std::vector<attn::train::Labelled> held_out,
                  Prepared& prepared) {
  const DataSettings& settings = job.settings;
  for (const auto* part : {&rows, &held_out})
    for (const auto& row : *part) job.measure(prepared, row.tokens.size(), row.truncated);
  attn::train::LabelledOptions options{.word_dropout = settings.word_dropout, .packed = settings.packed};
  options.class_weights = weights_of(settings.class_weights, prepared.labels, rows);
  prepared.data = std::make_unique<attn::train::LabelledDataset>(std::move(rows), std::move(held_out), job.length(),
                                                                 settings.batch, job.seed, options);
}

Prepared prepare_sentences(const Job& job, Task task) {
  const DataSettings& settings = job.settings;
  const bool numbers = task == Task::regression;
  const auto [rows, held_out] =
      split(settings, [&](const std::string& path) { return attn::train::read_labelled(path, numbers); });
  Prepared prepared;
  prepared.tokenizer = job.stored(kTokenizerFile);
  if (settings.word_dropout > 0 && settings.tokens == "bytes")
    throw UsageError("--word-dropout is for --tokens words, not bytes");
  if (!prepared.tokenizer) {
    std::vector<std::string> texts;
    for (const auto& row : rows) texts.push_back(row.text);
    prepared.tokenizer = sentence_tokenizer(settings, texts);
  }
  prepared.labels =
      numbers ? std::vector<std::string>{"value"}
              : job.labels(attn::train::classes_of(together(rows, held_out), job.is_new ? job.config.classes : 0));
  const auto encoded = [&](const auto& part, const std::string& path) {
    return numbers ? attn::train::encode_numbers(part, *prepared.tokenizer, job.encoding(path))
                   : attn::train::encode_labelled(part, *prepared.tokenizer, prepared.labels, job.encoding(path));
  };
  set_labelled(job, encoded(rows, settings.data), encoded(held_out, job.validation_path()), prepared);
  return prepared;
}

Prepared prepare_words(const Job& job) {
  const DataSettings& settings = job.settings;
  const auto [rows, held_out] = split(settings, attn::train::read_labelled_words);
  Prepared prepared;
  prepared.tokenizer = job.stored(kTokenizerFile);
  if (!prepared.tokenizer) {
    std::vector<std::string> texts;
    for (const auto& row : rows) texts.push_back(joined(row.words, " "));
    prepared.tokenizer = sentence_tokenizer(settings, texts);
  }
  prepared.labels = job.labels(attn::train::classes_of(together(rows, held_out)));
  const auto encoded = [&](const auto& part, const std::string& path) {
    return attn::train::encode_labelled_words(part, *prepared.tokenizer, prepared.labels, job.encoding(path));
  };
  set_labelled(job, encoded(rows, settings.data), encoded(held_out, job.validation_path()), prepared);
  return prepared;
}

Prepared prepare_similar(const Job& job, Task task) {
  const DataSettings& settings = job.settings;
  Prepared prepared;
  prepared.tokenizer = job.stored(kTokenizerFile);
  const bool scores = task == Task::similarity;
  auto [rows, held_out] = split(settings, [&](const std::string& path) {
    return attn::train::encode_pair_texts(attn::train::read_pair_texts(path), scores, *prepared.tokenizer,
                                          job.encoding(path));
  });
  for (const auto* part : {&rows, &held_out})
    for (const auto& pair : *part)
      job.measure(prepared, std::max(pair.first.ids.size(), pair.second.ids.size()),
                  pair.first.truncated || pair.second.truncated || pair.negative.truncated);
  prepared.data = std::make_unique<attn::train::SentencePairs>(std::move(rows), std::move(held_out), job.length(),
                                                               settings.batch, job.seed);
  return prepared;
}

// -------------------------------------------------------------------------------------------------------- texts, pairs

/// A tokenizer of the kind that --tokens names for these texts.
std::unique_ptr<Tokenizer> make_tokenizer(const std::string& kind, const std::vector<std::string>& texts,
                                          const attn::text::WordOptions& words) {
  if (kind == "bytes") return attn::text::bytes();
  if (kind == "words") return attn::text::words_of(texts, words);
  if (!kind.empty() && kind != "characters")
    throw UsageError("tokens must be characters, bytes or words, not '" + kind + "'");
  std::string all;
  for (const std::string& text : texts) all += text;
  return attn::text::characters_of(all);
}

/// Each side of a new model has its own tokenizer; words keep their case, as answers should. A model of the hub has one
/// for both.
Prepared prepare_pairs(const Job& job) {
  const DataSettings& settings = job.settings;
  const auto [rows, held_out] = split(settings, attn::train::read_pairs);
  Prepared prepared;
  prepared.tokenizer = job.stored(kTokenizerFile);
  if (!job.resumed.empty() && job.config.source_vocab_size)
    prepared.source_tokenizer = job.stored(attn::models::kSourceTokenizerFile);
  if (job.is_new) {
    std::vector<std::string> sources, targets;
    for (const auto* part : {&rows, &held_out})
      for (const auto& row : *part) {
        sources.push_back(row.source);
        targets.push_back(row.target);
      }
    const attn::text::WordOptions words = {.min_count = settings.min_count, .lower_case = false};
    prepared.tokenizer = make_tokenizer(settings.tokens, targets, words);
    prepared.source_tokenizer = make_tokenizer(settings.source_tokens, sources, words);
  }
  attn::models::DecoderTokens tokens = job.origin.decoder_tokens;
  if (!job.resumed.empty()) tokens = attn::models::read_decoder_tokens(job.resumed);
  else if (job.is_new) tokens.start = tokens.eos = prepared.tokenizer->vocab_size();
  const Tokenizer& source = prepared.source_tokenizer ? *prepared.source_tokenizer : *prepared.tokenizer;
  const auto encoded = [&](const auto& part, const std::string& path) {
    auto all = attn::train::encode_pairs(part, source, *prepared.tokenizer, path, tokens.eos, job.length());
    for (const auto& pair : all)
      job.measure(prepared, std::max(pair.source.size(), pair.target.size() + 1), pair.truncated);
    return all;
  };
  prepared.data =
      std::make_unique<attn::train::PairData>(encoded(rows, settings.data), encoded(held_out, job.validation_path()),
                                              tokens.eos, job.length(), settings.batch, job.seed, tokens.start);
  return prepared;
}

/// The mask of a tokenizer and what it puts around a text.
attn::train::MaskingOptions masking_of(const Tokenizer& tokenizer, const Job& job) {
  const int64_t all = tokenizer.vocab_size(), known = job.is_new ? all : std::min(all, job.config.vocab_size);
  attn::train::MaskingOptions masking{.mask_id = -1, .vocab_size = known, .share = job.settings.masked_share};
  for (const char* name : {"[MASK]", "<mask>"})
    if (const auto id = tokenizer.token_to_id(name); id && *id < known) masking.mask_id = *id;
  if (masking.mask_id < 0) throw UsageError("--task masked-lm needs a model with a token [MASK] or <mask>");
  const std::vector<std::string> word = {"a"};
  const attn::text::EncodedWords around = attn::text::encode_words(tokenizer, word);
  for (size_t n = 0, seen = 0; n < around.ids.size(); ++n)
    if (around.word_of[n] >= 0) ++seen;
    else (seen ? masking.after : masking.before).push_back(around.ids[n]);
  return masking;
}

Prepared prepare_text(const Job& job, Task task) {
  const DataSettings& settings = job.settings;
  const std::string text = settings.data.empty() ? std::string(kPrimer) : attn::io::read_input(settings.data);
  const std::string name = settings.data.empty() ? "the primer" : settings.data;
  const std::string held_out = settings.validation.empty() ? "" : attn::io::read_input(settings.validation);
  if (text.empty()) throw attn::Error("train", {name + " is empty"});
  if (held_out.empty() && !settings.validation.empty()) throw attn::Error("train", {settings.validation + " is empty"});
  Prepared prepared;
  prepared.tokenizer = job.stored(kTokenizerFile);
  if (!prepared.tokenizer) {
    if (settings.tokens != "bytes") {
      attn::text::require_utf8(text, name);
      attn::text::require_utf8(held_out, settings.validation);
    }
    prepared.tokenizer = make_tokenizer(settings.tokens, {text, held_out}, {.min_count = settings.min_count});
  }
  std::vector<int64_t> tokens = prepared.tokenizer->encode_ids(text);
  const std::vector<int64_t> last = prepared.tokenizer->encode_ids(held_out);
  tokens.insert(tokens.end(), last.begin(), last.end());
  prepared.longest = job.length();
  if (task == Task::masked_lm)
    prepared.data = std::make_unique<attn::train::MaskedTextDataset>(
        std::move(tokens), masking_of(*prepared.tokenizer, job), job.length(), settings.batch, job.seed,
        settings.validation_batches, std::ssize(last));
  else
    prepared.data = std::make_unique<attn::train::TextDataset>(std::move(tokens), job.length(), settings.batch,
                                                               job.seed, settings.validation_batches, std::ssize(last));
  return prepared;
}

bool of_sentences(Task task) {
  return task == Task::classification || task == Task::regression || task == Task::token_classification;
}

/// Settings that a task would ignore.
void check_settings(const DataSettings& settings, Task task) {
  const auto require = [&](bool holds, const char* flag, const char* allowed) {
    if (!holds) throw UsageError(fmt::format("{} is for {}, but --task is {}", flag, allowed, attn::name_of(task)));
  };
  require(settings.word_dropout == 0 || of_sentences(task), "--word-dropout", "sentences with labels");
  require(!settings.packed || of_sentences(task), "--packed", "sentences with labels");
  require(settings.class_weights.empty() || task == Task::classification || task == Task::token_classification,
          "--class-weights", "classes");
  require(settings.tokenizer.empty() || task != Task::seq2seq, "--tokenizer", "models with one tokenizer");
  if (!settings.tokenizer.empty() && !settings.tokens.empty())
    throw UsageError("--tokenizer and --tokens are two ways to say the same: give only one of them");
  require(settings.source_tokens.empty() || task == Task::seq2seq, "--source-tokens", "models with an encoder");
}

/// A task that the model can learn, and the data that it needs.
void check_task(const DataSettings& settings, const Config& config, Task task) {
  const auto require = [&](bool holds, const std::string& needed) {
    if (!holds) throw UsageError(fmt::format("--task {} needs {}", attn::name_of(task), needed));
  };
  const bool has_text_head = config.head && config.classes == 0;
  require((task == Task::seq2seq) == (config.encoder_layers > 0),
          task == Task::seq2seq ? "a model with an encoder and a decoder"
                                : "a model without an encoder beside it: --task seq2seq");
  if (task == Task::causal_lm) require(config.causal && has_text_head, "a model that continues texts");
  if (task == Task::masked_lm) require(!config.causal && has_text_head, "a model that predicts tokens from both sides");
  if (task != Task::causal_lm) require(!settings.data.empty(), "a file to learn from");
}

}  // namespace

std::string path_in(const std::string& directory, const char* name) { return directory + "/" + name; }

Task task_of(const DataSettings& settings, const Config& config) {
  if (const auto named = attn::from_name<Task>(settings.task)) return *named;
  if (config.encoder_layers) return Task::seq2seq;
  if (classifies_tokens(config)) return Task::token_classification;
  if (config.classes)
    return config.problem_type == attn::models::ProblemType::regression ? Task::regression : Task::classification;
  if (config.causal) return Task::causal_lm;
  return Task::masked_lm;
}

Prepared prepare(const DataSettings& settings, Config& config, uint64_t seed, const std::string& resumed,
                 Origin origin) {
  const bool answers = config.encoder_layers > 0;
  if (config.classes == 0 && !answers && settings.task.empty() && attn::train::is_labelled(settings.data))
    throw UsageError(settings.data + " has labels, which need --model encoder, or pairs, which need --model seq2seq");
  if (config.classes > 0 && settings.data.empty())
    throw UsageError("a classifier learns from a file with labels: .tsv, .csv or .jsonl");
  if (answers && settings.data.empty())
    throw UsageError("a model with an encoder learns from a file of pairs: .tsv, .csv or .jsonl");
  const Task task = task_of(settings, config);
  check_task(settings, config, task);
  check_settings(settings, task);
  const bool is_new = resumed.empty() && !origin.tokenizer;
  const Job job = {settings, config, seed, resumed, origin, is_new};
  const auto prepared_for = [&] {
    switch (task) {
      case Task::classification:
      case Task::regression: return prepare_sentences(job, task);
      case Task::token_classification: return prepare_words(job);
      case Task::similarity:
      case Task::contrastive: return prepare_similar(job, task);
      case Task::seq2seq: return prepare_pairs(job);
      case Task::causal_lm:
      case Task::masked_lm: break;
    }
    return prepare_text(job, task);
  };
  Prepared prepared = prepared_for();
  prepared.task = task;
  if (!resumed.empty()) return prepared;
  if (is_new) config.vocab_size = prepared.tokenizer->vocab_size() + answers;  // the last begins and ends answers
  if (is_new && answers) config.source_vocab_size = prepared.source_tokenizer->vocab_size();
  if (config.classes) config.classes = static_cast<int64_t>(prepared.labels.size());
  return prepared;
}

}  // namespace cli
