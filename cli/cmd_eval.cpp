// attn eval: the loss of a model on a file, and how often its classes or answers are right.
#include <algorithm>
#include <cmath>
#include <memory>
#include <optional>

#include "attn/models_classify.h"
#include "attn/train.h"
#include "commands.h"
#include "model_flags.h"
#include "numbers.h"
#include "options.h"
#include "output.h"
#include "pairs.h"
#include "progress.h"
#include "signals.h"

namespace cli {
namespace {

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
      row = attn::models::log_softmax(std::move(row));
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
    sum -= attn::models::log_softmax(std::move(row))[labels[n]];
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

  void sentences(attn::models::Loaded loaded) const {
    if (loaded.problem_type != attn::models::ProblemType::single_label)
      throw attn::Error("eval",
                        {model.directory + "/config.json: attn eval needs a model that gives each text one of several "
                                           "classes; problem_type and the number of labels say otherwise"});
    const std::vector<attn::train::Labelled> rows =
        attn::train::encode_labelled(attn::train::read_labelled(file), *loaded.tokenizer, loaded.labels, file);
    const attn::models::Classifier classifier(std::move(loaded));
    const int64_t total = static_cast<int64_t>(rows.size()), size = batch ? batch : 32;
    catch_signals();
    Meter meter("sentences", total);
    std::vector<std::vector<double>> all_logits;
    std::vector<int64_t> labels;
    int64_t done = 0;
    Judged judged(classifier.loaded().model->config().classes);
    while (done < total && !signal_seen()) {
      const int64_t end = std::min(done + size, total);
      std::vector<attn::text::Encoding> texts;
      for (int64_t n = done; n < end; ++n)
        texts.push_back({rows[n].tokens, std::vector<int64_t>(rows[n].tokens.size())});
      for (std::vector<double>& logits : classifier.logits(texts)) {
        labels.push_back(rows[done++].label);
        judged.add(labels.back(), std::max_element(logits.begin(), logits.end()) - logits.begin());
        all_logits.push_back(std::move(logits));
      }
      meter.show(done);
    }
    meter.hide();
    const std::string what = part(done, total, "sentences");
    std::string of_second;  // of two classes the second is the one that is looked for
    if (const std::vector<std::string>& names = classifier.loaded().labels; names.size() == 2)
      of_second = fmt::format(", F1 of {} {:.4f}", names[1], judged.f1(1).value_or(0));
    fmt::print("{}: loss {:.4f}, {:.2f} % right, macro F1 {:.4f}{}{}\n", what, mean_loss(all_logits, labels, 1),
               100 * judged.accuracy(), judged.macro_f1(), of_second, advice(all_logits, labels));
  }

  /// Of the whole file, which an error names.
  std::vector<int64_t> tokens_of(const attn::models::Loaded& loaded, const std::string& content) const {
    try {
      return loaded.tokenizer->encode(content).ids;
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
    if (stride > context)
      throw UsageError(fmt::format("--stride is {}, must be at most the context of {}", stride, context));
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
      sum += static_cast<double>(loss.item<float>()) * static_cast<double>(end - done);
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
      sum += static_cast<double>(loss.item<float>()) * static_cast<double>(count);
      done += count;
      meter.show(done);
    }
    meter.hide();
    print_text(sum, done, total, content.size());
  }

  void run() const {
    attn::models::Loaded loaded = model.load();
    const attn::models::Config config = loaded.model->config();
    if (!writes(config) && !classifies(config) && !config.encoder_layers)
      throw UsageError(model.directory + " has no loss on texts; " + what_fits(config));
    if (config.encoder_layers) evaluate_pairs(loaded, file);
    else if (config.classes) sentences(std::move(loaded));
    else if (stride) strided(loaded);
    else text(loaded);
  }
};

}  // namespace

void add_eval(CLI::App& app) {
  CLI::App* command = app.add_subcommand("eval", "compute the loss of a model on a file");
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
