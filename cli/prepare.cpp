// The data of a training and the tokenizers that are made from them.
#include "prepare.h"

#include <fmt/core.h>

#include <algorithm>

#include "commands.h"
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
  bool is_new() const { return resumed.empty() && !origin.tokenizer; }
  /// The most tokens of a sequence.
  int64_t length() const { return settings.max_length ? settings.max_length : config.context; }

  /// The tokenizer of a training that is resumed, or of the model that it begins with; null for a new one.
  std::unique_ptr<Tokenizer> stored(const char* name) const {
    if (resumed.empty()) return std::move(origin.tokenizer);
    const std::string path = path_in(resumed, name);
    return attn::text::load_tokenizer(attn::io::read_file(path, 1 << 28), path);
  }
  const std::string& validation_path() const {
    return settings.validation.empty() ? settings.data : settings.validation;
  }
  /// The names of the classes: those of the model that the training begins with, if the data have no other.
  std::vector<std::string> labels(const std::vector<attn::train::LabelledText>& rows,
                                  const std::vector<attn::train::LabelledText>& held_out) const;
  void measure(Prepared& prepared, size_t tokens) const {
    prepared.longest =
        std::max(prepared.longest, std::min<int64_t>((static_cast<int64_t>(tokens) + 7) / 8 * 8, length()));
  }
};

/// The rows to train on and those to validate with: another file, or the last tenth.
template <class Row, class Read>
std::pair<std::vector<Row>, std::vector<Row>> split(const DataSettings& settings, const Read& read) {
  std::vector<Row> rows = read(settings.data), held_out;
  if (!settings.validation.empty()) return {std::move(rows), read(settings.validation)};
  const size_t kept = rows.size() - rows.size() / 10;
  held_out.assign(std::make_move_iterator(rows.begin() + static_cast<int64_t>(kept)),
                  std::make_move_iterator(rows.end()));
  rows.resize(kept);
  return {std::move(rows), std::move(held_out)};
}

std::vector<std::string> classes_of_all(std::vector<attn::train::LabelledText> rows,
                                        const std::vector<attn::train::LabelledText>& held_out, int64_t least) {
  rows.insert(rows.end(), held_out.begin(), held_out.end());
  return attn::train::classes_of(rows, least);
}

std::vector<std::string> Job::labels(const std::vector<attn::train::LabelledText>& rows,
                                     const std::vector<attn::train::LabelledText>& held_out) const {
  if (!resumed.empty()) return attn::models::load_labels(resumed, config.classes);
  std::vector<std::string> all = classes_of_all(rows, held_out, is_new() ? config.classes : 0);
  const auto is_known = [&](const std::string& label) {
    return std::find(origin.labels.begin(), origin.labels.end(), label) != origin.labels.end();
  };
  if (std::all_of(all.begin(), all.end(), is_known)) return origin.labels;
  if (is_new() && static_cast<int64_t>(all.size()) < config.classes)
    throw attn::Error("train", {fmt::format("{} has {} different labels, but the model has {} classes", settings.data,
                                            all.size(), config.classes)});
  return all;
}

Prepared prepare_sentences(const Job& job) {
  const DataSettings& settings = job.settings;
  const auto [rows, held_out] = split<attn::train::LabelledText>(settings, attn::train::read_labelled);
  Prepared prepared;
  prepared.tokenizer = job.stored(kTokenizerFile);
  if (settings.word_dropout > 0 && settings.tokens == "bytes")
    throw UsageError("--word-dropout is for --tokens words, not bytes");
  if (!prepared.tokenizer) {
    std::vector<std::string> texts;
    for (const auto& row : rows) texts.push_back(row.text);
    if (settings.tokens == "bytes") prepared.tokenizer = attn::text::bytes();
    else if (settings.tokens.empty() || settings.tokens == "words")
      prepared.tokenizer = attn::text::words_of(texts, {.min_count = settings.min_count});
    else throw UsageError("--tokens is '" + settings.tokens + "', must be words or bytes for sentences");
  }
  prepared.labels = job.labels(rows, held_out);
  const auto encoded = [&](const auto& part, const std::string& path) {
    auto all = attn::train::encode_labelled(part, *prepared.tokenizer, prepared.labels, path);
    for (const auto& row : all) job.measure(prepared, row.tokens.size());
    return all;
  };
  prepared.data = std::make_unique<attn::train::LabelledDataset>(encoded(rows, settings.data),
                                                                 encoded(held_out, job.validation_path()), job.length(),
                                                                 settings.batch, job.seed, settings.word_dropout);
  return prepared;
}

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

/// Each side has its own tokenizer; words keep their case, as answers should.
Prepared prepare_pairs(const Job& job) {
  const DataSettings& settings = job.settings;
  if (settings.word_dropout > 0) throw UsageError("--word-dropout is for sentences with labels");
  const auto [rows, held_out] = split<attn::train::PairText>(settings, attn::train::read_pairs);
  Prepared prepared;
  prepared.tokenizer = job.stored(kTokenizerFile);
  prepared.source_tokenizer = job.stored(attn::models::kSourceTokenizerFile);
  if (job.resumed.empty()) {
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
  const auto encoded = [&](const auto& part, const std::string& path) {
    auto all = attn::train::encode_pairs(part, *prepared.source_tokenizer, *prepared.tokenizer, path);
    for (const auto& pair : all) job.measure(prepared, std::max(pair.source.size(), pair.target.size() + 1));
    return all;
  };
  prepared.data =
      std::make_unique<attn::train::PairData>(encoded(rows, settings.data), encoded(held_out, job.validation_path()),
                                              prepared.tokenizer->vocab_size(), job.length(), settings.batch, job.seed);
  return prepared;
}

Prepared prepare_text(const Job& job) {
  const DataSettings& settings = job.settings;
  if (settings.word_dropout > 0) throw UsageError("--word-dropout is for sentences with labels");
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
  prepared.data = std::make_unique<attn::train::TextDataset>(std::move(tokens), job.length(), settings.batch, job.seed,
                                                             settings.validation_batches, std::ssize(last));
  prepared.longest = job.length();
  return prepared;
}

}  // namespace

std::string path_in(const std::string& directory, const char* name) { return directory + "/" + name; }

Prepared prepare(const DataSettings& settings, Config& config, uint64_t seed, const std::string& resumed,
                 Origin origin) {
  const bool answers = config.encoder_layers > 0;
  if (config.classes == 0 && !answers && attn::train::is_labelled(settings.data))
    throw UsageError(settings.data + " has labels, which need --model encoder, or pairs, which need --model seq2seq");
  if (config.classes > 0 && settings.data.empty())
    throw UsageError("a classifier learns from a file with labels: .tsv, .csv or .jsonl");
  if (answers && settings.data.empty())
    throw UsageError("a model with an encoder learns from a file of pairs: .tsv, .csv or .jsonl");
  if (!answers && !settings.source_tokens.empty()) throw UsageError("--source-tokens is for models with an encoder");
  const Job job = {settings, config, seed, resumed, origin};
  const bool is_new = job.is_new();
  Prepared prepared = answers ? prepare_pairs(job) : config.classes ? prepare_sentences(job) : prepare_text(job);
  if (!resumed.empty()) return prepared;
  if (is_new) config.vocab_size = prepared.tokenizer->vocab_size() + answers;  // the last begins and ends answers
  if (answers) config.source_vocab_size = prepared.source_tokenizer->vocab_size();
  if (config.classes) config.classes = static_cast<int64_t>(prepared.labels.size());
  return prepared;
}

}  // namespace cli
