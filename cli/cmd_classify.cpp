// attn classify, attn eval: what a trained model says of sentences, and how good it is.
#include <algorithm>
#include <cmath>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "commands.h"
#include "lines.h"
#include "model_flags.h"
#include "numbers.h"
#include "options.h"
#include "output.h"
#include "pairs.h"
#include "progress.h"
#include "signals.h"

namespace cli {
namespace {

using Json = nlohmann::ordered_json;
using Tokens = attn::text::Encoding;

/// True for one that has a class for a text, not for each of its tokens.
bool classifies(const attn::models::Config& config) {
  return config.classes && config.pooling != attn::models::ClassifierPooling::each;
}

/// The logit of every class, a row a sentence.
class Classifier {
 public:
  /// Of texts that are cut to `longest` tokens.
  Classifier(const attn::models::Model& model, int64_t longest) : model_(model), longest_(longest) {}

  std::vector<std::vector<double>> operator()(std::span<const Tokens> sentences) const {
    attn::models::Batch batch;
    batch.sequences = static_cast<int64_t>(sentences.size());
    for (const Tokens& tokens : sentences) {
      batch.lengths.push_back(std::clamp<int64_t>(std::ssize(tokens.ids), 1, longest_));
      batch.length = std::max(batch.length, batch.lengths.back());
    }
    const auto laid_out = [&](std::vector<int64_t> Tokens::*part) {
      std::vector<int64_t> all(static_cast<size_t>(batch.sequences * batch.length), 0);
      for (size_t n = 0; n < sentences.size(); ++n)
        std::copy_n((sentences[n].*part).begin(), std::min<size_t>((sentences[n].*part).size(), batch.lengths[n]),
                    all.begin() + static_cast<int64_t>(n) * batch.length);
      return all;
    };
    batch.tokens = laid_out(&Tokens::ids);
    if (model_.config().type_vocab_size) batch.token_type_ids = laid_out(&Tokens::types);
    attn::autograd::Tape tape({}, memory_);
    const attn::autograd::Value logits = model_.forward(tape, batch);
    const float* value = static_cast<const float*>(logits.data().data());
    std::vector<std::vector<double>> rows;
    for (int64_t n = 0; n < batch.sequences; ++n, value += model_.config().classes)
      rows.emplace_back(value, value + model_.config().classes);
    return rows;
  }

 private:
  const attn::models::Model& model_;
  int64_t longest_;
  std::shared_ptr<attn::autograd::Recycler> memory_ = attn::autograd::Tape().memory();
};

/// ln of the probability of every class, of which a text has one.
std::vector<double> log_probabilities(std::vector<double> row) {
  const double largest = *std::max_element(row.begin(), row.end());
  double total = 0;
  for (double logit : row) total += std::exp(logit - largest);
  for (double& logit : row) logit -= largest + std::log(total);
  return row;
}

/// What a classifier says of every class: probabilities that add up to 1, one for each class by itself, or numbers.
std::vector<double> scores_of(std::vector<double> row, attn::models::ProblemType answers) {
  if (answers == attn::models::ProblemType::single_label) row = log_probabilities(std::move(row));
  for (double& each : row) {
    if (answers == attn::models::ProblemType::single_label) each = std::exp(each);
    if (answers == attn::models::ProblemType::multi_label) each = 1 / (1 + std::exp(-each));
  }
  return row;
}

/// A name for each class that is no other's: where several have the same, their numbers are after it.
std::vector<std::string> apart(const std::vector<std::string>& labels) {
  std::vector<std::string> names = labels;
  for (size_t n = 0; n < names.size(); ++n)
    if (std::count(labels.begin(), labels.end(), labels[n]) > 1) names[n] += fmt::format(" ({})", n);
  return names;
}

int64_t best_of(const std::vector<double>& row) { return std::max_element(row.begin(), row.end()) - row.begin(); }

// ----------------------------------------------------------------------------------------------------------- classify

struct Classify {
  ModelOptions model;
  std::string file = "-";
  int64_t batch = 32;
  double temperature = 1;
  ContextOption context;
  bool json = false;

  void print(const std::vector<std::string>& labels, const std::vector<double>& scores, int64_t number,
             const std::string& text) const {
    const int64_t best = best_of(scores);
    if (!json) return fmt::print("{}\t{:.4f}\t{}\n", for_output(labels[best]), scores[best], for_output(text));
    Json shares = Json::object();
    for (size_t n = 0; n < scores.size(); ++n) shares[labels[n]] = scores[n];
    const Json line = {{"line", number}, {"class", labels[best]}, {"probabilities", shares}, {"text", text}};
    fmt::print("{}\n", line.dump(-1, ' ', false, Json::error_handler_t::replace));
  }

  /// As many lines at once as there are without waiting, so that a person or a program beyond a pipe is answered.
  void run() const {
    const attn::models::Loaded loaded = model.load();
    const attn::models::Config& config = loaded.model->config();
    if (!classifies(config)) throw UsageError(model.directory + " does not classify texts, " + what_fits(config));
    if (temperature != 1 && loaded.problem_type == attn::models::ProblemType::regression)
      throw UsageError("--temperature is of probabilities, " + model.directory + " says numbers");
    const int64_t longest = context.of(config);
    const Classifier classifier(*loaded.model, longest);
    const std::vector<std::string> labels = apart(loaded.labels);
    Lines lines(file);
    catch_signals();
    std::vector<std::string> texts;
    std::vector<Tokens> tokens;
    int64_t answered = 0, cut = 0;
    const auto answer = [&] {
      if (texts.empty()) return;
      auto rows = classifier(tokens);
      for (size_t n = 0; n < rows.size(); ++n) {
        for (double& logit : rows[n]) logit /= temperature;
        print(labels, scores_of(std::move(rows[n]), loaded.problem_type), ++answered, texts[n]);
      }
      show("");
      texts.clear();
      tokens.clear();
    };
    const auto next = [&](std::string& line) {
      try {
        return lines.next(line);
      } catch (const attn::Error&) {
        answer();  // what is before a line that is no text
        throw;
      }
    };
    for (std::string line; next(line);) {
      try {
        tokens.push_back(loaded.tokenizer->encode_marked(line));
        if (std::ssize(tokens.back().ids) > longest) {
          tokens.back() = loaded.tokenizer->encode_within(longest, line);
          ++cut;
        }
      } catch (const attn::Error& error) {
        answer();
        throw attn::Error("classify", {lines.where() + ": " + error.reasons().front()});
      }
      texts.push_back(line);
      if (static_cast<int64_t>(texts.size()) == batch || !lines.ready()) answer();
    }
    answer();
    if (cut)
      say("attn: {} of {} texts were cut to {} tokens{}\n", cut, answered, longest, ContextOption::larger(config));
  }
};

// --------------------------------------------------------------------------------------------------------------- eval

constexpr double kLeastTemperature = 0.05, kLargestTemperature = 20;

/// What logits must be divided by so that their labels are as probable as possible, within these limits (Guo et al.
/// 2017, arXiv:1706.04599). The loss is convex in its inverse, and has no slope there.
double fitted_temperature(const std::vector<std::vector<double>>& logits, const std::vector<int64_t>& labels) {
  double low = 1 / kLargestTemperature, high = 1 / kLeastTemperature;
  for (int round = 0; round < 40; ++round) {
    const double middle = std::sqrt(low * high);
    double slope = 0;
    for (size_t n = 0; n < logits.size(); ++n) {
      std::vector<double> row = logits[n];
      for (double& logit : row) logit *= middle;
      row = log_probabilities(std::move(row));
      slope -= logits[n][labels[n]];
      for (size_t c = 0; c < row.size(); ++c) slope += std::exp(row[c]) * logits[n][c];
    }
    (slope < 0 ? low : high) = middle;
  }
  return 1 / low;
}

double mean_loss(const std::vector<std::vector<double>>& logits, const std::vector<int64_t>& labels,
                 double temperature) {
  double sum = 0;
  for (size_t n = 0; n < logits.size(); ++n) {
    std::vector<double> row = logits[n];
    for (double& logit : row) logit /= temperature;
    sum -= log_probabilities(std::move(row))[labels[n]];
  }
  return sum / static_cast<double>(logits.size());
}

/// The temperature that fits; "" where it is at a limit: the loss of a classifier that is always right falls with it.
std::string advice(const std::vector<std::vector<double>>& logits, const std::vector<int64_t>& labels) {
  const double fitted = fitted_temperature(logits, labels);
  if (fitted < 1.01 * kLeastTemperature || fitted > 0.99 * kLargestTemperature) return "";
  return fmt::format("; with attn classify --temperature {:.3g} the loss is {:.4f}", fitted,
                     mean_loss(logits, labels, fitted));
}

/// How often each class was right, said and there.
class Judged {
 public:
  explicit Judged(int64_t classes) : counts_(static_cast<size_t>(classes)) {}

  void add(int64_t label, int64_t said) {
    ++counts_[label].there;
    ++counts_[said].said;
    counts_[said].right += said == label;
  }
  /// F1 of a class, the harmonic mean of precision and recall; nothing of one that neither was there nor was said.
  std::optional<double> f1(size_t n) const {
    const Count& count = counts_[n];
    if (count.there + count.said == 0) return {};
    return 2 * static_cast<double>(count.right) / static_cast<double>(count.there + count.said);
  }
  /// The mean of F1 over the classes that have one.
  double macro_f1() const {
    double sum = 0, classes = 0;
    for (size_t n = 0; n < counts_.size(); ++n)
      if (const std::optional<double> each = f1(n)) {
        sum += *each;
        ++classes;
      }
    return sum / classes;
  }
  double accuracy() const {
    int64_t right = 0, all = 0;
    for (const Count& count : counts_) {
      right += count.right;
      all += count.there;
    }
    return static_cast<double>(right) / static_cast<double>(all);
  }

 private:
  struct Count {
    int64_t right = 0, said = 0, there = 0;
  };
  std::vector<Count> counts_;
};

struct Evaluate {
  ModelOptions model;
  std::string file;
  int64_t batch = 0, stride = 0;

  /// What the result is of: all, or the part that was done when a signal came.
  static std::string part(int64_t done, int64_t total, const char* unit) {
    if (done == 0) throw attn::Error("eval", {"stopped before there was a result"});
    return done == total ? fmt::format("{} {}", total, unit)
                         : fmt::format("partial: {} of {} {}", grouped(done), grouped(total), unit);
  }

  void sentences(const attn::models::Loaded& loaded) const {
    if (loaded.problem_type != attn::models::ProblemType::single_label)
      throw attn::Error("eval",
                        {model.directory + "/config.json: problem_type and the number of labels say that a text "
                                           "has not one class of several, which is what is judged"});
    const std::vector<attn::train::Labelled> rows =
        attn::train::encode_labelled(attn::train::read_labelled(file), *loaded.tokenizer, loaded.labels, file);
    const Classifier classifier(*loaded.model, loaded.model->config().context);
    const int64_t total = static_cast<int64_t>(rows.size()), size = batch ? batch : 32;
    catch_signals();
    Meter meter("sentences", total);
    std::vector<std::vector<double>> all_logits;
    std::vector<int64_t> labels;
    int64_t done = 0;
    Judged judged(loaded.model->config().classes);
    while (done < total && !signal_seen()) {
      const int64_t end = std::min(done + size, total);
      std::vector<Tokens> tokens;
      for (int64_t n = done; n < end; ++n)
        tokens.push_back({rows[n].tokens, std::vector<int64_t>(rows[n].tokens.size())});
      for (std::vector<double>& logits : classifier(tokens)) {
        labels.push_back(rows[done++].label);
        judged.add(labels.back(), best_of(logits));
        all_logits.push_back(std::move(logits));
      }
      meter.show(done);
    }
    meter.hide();
    const std::string what = part(done, total, "sentences");
    std::string of_second;  // of two classes the second is the one that is looked for
    if (loaded.labels.size() == 2)
      of_second = fmt::format(", F1 of {} {:.4f}", loaded.labels[1], judged.f1(1).value_or(0));
    fmt::print("{}: loss {:.4f}, {:.2f} % right, macro F1 {:.4f}{}{}\n", what, mean_loss(all_logits, labels, 1),
               100 * judged.accuracy(), judged.macro_f1(), of_second, advice(all_logits, labels));
  }

  /// Of the whole file, which an error names.
  std::vector<int64_t> tokens_of(const attn::models::Loaded& loaded, const std::string& content) const {
    try {
      return loaded.tokenizer->encode_marked(content).ids;
    } catch (const attn::Error& error) {
      throw attn::Error("eval", {file + ": " + error.reasons().front()});
    }
  }

  /// Windows of the context, each `stride` tokens after the one before: only tokens that no window has seen yet count,
  /// so that all but the first have at least context - stride tokens before them.
  void strided(const attn::models::Loaded& loaded) const {
    const std::string content = attn::io::read_input(file);
    const std::vector<int64_t> tokens = tokens_of(loaded, content);
    const int64_t context = loaded.model->config().context, total = static_cast<int64_t>(tokens.size()) - 1;
    if (total < 1) throw attn::Error("eval", {file + " has fewer than two tokens"});
    if (stride > context) throw UsageError(fmt::format("--stride {} is beyond the context of {}", stride, context));
    catch_signals();
    Meter meter("tokens", total);
    const auto memory = attn::autograd::Tape().memory();
    double sum = 0;
    int64_t done = 0;
    for (int64_t first = 0; done < total && !signal_seen(); first += stride) {
      attn::models::Batch window;
      const int64_t end = std::min(first + context, total);
      window.sequences = 1;
      window.length = end - first;
      window.tokens.assign(tokens.begin() + first, tokens.begin() + end);
      window.targets.assign(tokens.begin() + first + 1, tokens.begin() + end + 1);
      std::fill_n(window.targets.begin(), done - first, attn::ops::kIgnoreIndex);
      attn::autograd::Tape tape({}, memory);
      const attn::autograd::Value loss = loaded.model->loss(tape, window);
      sum += static_cast<double>(*static_cast<const float*>(loss.data().data())) * static_cast<double>(end - done);
      done = end;
      meter.show(done);
    }
    meter.hide();
    print_text(sum, done, total, content.size());
  }

  static void print_text(double sum, int64_t done, int64_t total, size_t size) {
    const double mean = sum / static_cast<double>(done);
    const double bytes = static_cast<double>(size) * static_cast<double>(done) / static_cast<double>(total);
    fmt::print("{}: loss {:.4f}, perplexity {:.3f}, {:.4f} bits a byte\n", part(done, total, "tokens"), mean,
               std::exp(mean), sum / std::log(2) / bytes);
  }

  /// Consecutive crops of the context, as many at once as their logits fit in 64 MB; the last one may be shorter.
  void text(const attn::models::Loaded& loaded) const {
    const attn::models::Config& config = loaded.model->config();
    const std::string content = attn::io::read_input(file);
    const std::vector<int64_t> tokens = tokens_of(loaded, content);
    const int64_t total = static_cast<int64_t>(tokens.size()) - 1;
    if (total < 1) throw attn::Error("eval", {file + " has fewer than two tokens"});
    const int64_t fitting = (int64_t{1} << 24) / (config.context * config.vocab_size);
    const int64_t most = batch ? batch : std::clamp<int64_t>(fitting, 1, 32);
    catch_signals();
    Meter meter("tokens", total);
    const auto memory = attn::autograd::Tape().memory();
    double sum = 0;
    int64_t done = 0;
    while (done < total && !signal_seen()) {
      attn::models::Batch crops;
      crops.length = std::min(config.context, total - done);
      crops.sequences = std::min(most, (total - done) / crops.length);
      const int64_t count = crops.sequences * crops.length;
      crops.tokens.assign(tokens.begin() + done, tokens.begin() + done + count);
      crops.targets.assign(tokens.begin() + done + 1, tokens.begin() + done + count + 1);
      attn::autograd::Tape tape({}, memory);
      const attn::autograd::Value loss = loaded.model->loss(tape, crops);
      sum += static_cast<double>(*static_cast<const float*>(loss.data().data())) * static_cast<double>(count);
      done += count;
      meter.show(done);
    }
    meter.hide();
    print_text(sum, done, total, content.size());
  }

  void run() const {
    const attn::models::Loaded loaded = model.load();
    const attn::models::Config& config = loaded.model->config();
    if (!writes(config) && !classifies(config) && !config.encoder_layers)
      throw UsageError(model.directory + " has no loss on texts, " + what_fits(config));
    if (config.encoder_layers) evaluate_pairs(loaded, file);
    else if (config.classes) sentences(loaded);
    else if (stride) strided(loaded);
    else text(loaded);
  }
};

}  // namespace

void add_classify(CLI::App& app) {
  CLI::App* command = app.add_subcommand("classify", "a class and its probability for every line");
  command->footer("Example:\n  attn classify reviews lines.txt");
  auto run = std::make_shared<Classify>();
  run->model.add(*command);
  command->add_option("file", run->file, "lines of text, an empty one too; - is standard input")->type_name("FILE");
  command->add_option("--batch", run->batch, "lines at once, of a file")->check(whole(1, 1 << 16));
  command->add_flag("--json", run->json, "all probabilities, as lines of JSON");
  command
      ->add_option("--temperature", run->temperature,
                   "logits are divided by it: above 1 for a model that is too sure; attn eval says which fits")
      ->check(number(0, 1e6, "(]"));
  run->context.add(*command);
  command->callback([=] { run->run(); });
}

void add_eval(CLI::App& app) {
  CLI::App* command = app.add_subcommand("eval", "loss of a model on a file");
  command->footer("Example:\n  attn eval model other.txt");
  auto run = std::make_shared<Evaluate>();
  run->model.add(*command);
  command->add_option("file", run->file, "a text; .tsv, .csv or .jsonl with labels, or of pairs; - is standard input")
      ->required()
      ->type_name("FILE");
  command->add_option("--batch", run->batch, "sequences at once; 0 = 32, or as many as have 64 MB of logits")
      ->check(whole(0, 1 << 16));
  command
      ->add_option("--stride", run->stride,
                   "tokens that a window moves on by, with what is before as context;"
                   " 0 = by the whole context")
      ->check(whole(0, 1 << 24));
  command->callback([=] { run->run(); });
}

}  // namespace cli
