// attn eval: the loss of a model on a file, and how often its classes or answers are right.
#include <algorithm>
#include <cmath>
#include <memory>
#include <numeric>

#include "attn/models_classify.h"
#include "attn/models_embed.h"
#include "attn/models_finetune.h"
#include "attn/models_ranks.h"
#include "attn/ops.h"
#include "attn/train_similarity.h"
#include "commands.h"
#include "config_flags.h"
#include "job.h"
#include "model_flags.h"
#include "numbers.h"
#include "options.h"
#include "output.h"
#include "pairs.h"
#include "progress.h"
#include "signals.h"

namespace cli {
namespace {

using attn::train::Labelled;
using attn::train::Metric;
using attn::train::metric_value;
using attn::train::Predictions;

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

/// How often a first vector's own second vector is the nearest of all, and the mean of 1 / its rank; vectors [n, C] of
/// length 1.
std::pair<double, double> retrieval(const attn::Array& first, const attn::Array& second) {
  constexpr int64_t kRows = 256;  // of cosines at once
  const attn::ConstView<2> queries = first.rows(), texts = second.rows();
  const attn::ConstView<2> columns(texts.data, texts.dtype, {texts.size[1], texts.size[0]},
                                   {texts.stride[1], texts.stride[0]});
  const int64_t count = texts.size[0];
  double right = 0, reciprocal = 0;
  for (int64_t begin = 0; begin < count; begin += kRows) {
    const int64_t end = std::min(begin + kRows, count);
    const attn::Array cosines(attn::DType::float32, {end - begin, count}, false);
    attn::ops::matmul(queries.slice(0, begin, end), columns, cosines.rows());
    for (int64_t n = begin; n < end; ++n) {
      const float *row = cosines.data<float>() + (n - begin) * count, own = row[n];
      const auto nearer = std::count_if(row, row + count, [own](float cosine) { return cosine > own; });
      right += nearer == 0;
      reciprocal += 1 / static_cast<double>(nearer + 1);
    }
  }
  return {right / static_cast<double>(count), reciprocal / static_cast<double>(count)};
}

/// The cosine of each pair of vectors [n, C] of length 1.
std::vector<double> cosines_of_pairs(const attn::Array& first, const attn::Array& second) {
  const int64_t width = first.width();
  std::vector<double> cosines;
  for (const float *a = first.data<float>(), *b = second.data<float>(), *end = a + first.count(); a < end;
       a += width, b += width)
    cosines.push_back(std::inner_product(a, a + width, b, 0.0));
  return cosines;
}

struct Evaluate {
  ModelOptions model;
  Parallel parallel;
  Job* job = nullptr;
  std::string file;
  ContextOption context;
  CacheOption kv_cache;
  int64_t batch = 0, stride = 0;

  /// What the result is of: all, or the part that was done when a signal came.
  static std::string part(int64_t done, int64_t total, const char* unit) {
    if (done == 0) throw attn::Error("eval", {"stopped before there was a result"});
    return done == total ? fmt::format("{} {}", total, unit)
                         : fmt::format("partial: {} of {} {}", grouped(done), grouped(total), unit);
  }

  static void say_truncated(std::span<const Labelled> rows, const attn::models::Config& config) {
    const auto truncated = std::count_if(rows.begin(), rows.end(), [](const Labelled& row) { return row.truncated; });
    ContextOption::say_truncated(truncated, std::ssize(rows), config.context, "");
  }

  void sentences(attn::models::Loaded loaded) const {
    if (loaded.model->config().problem_type != attn::models::ProblemType::single_label)
      throw attn::Error("eval",
                        {model.directory + "/config.json: attn eval needs a model that gives each text one of several "
                                           "classes; problem_type and the number of labels say otherwise"});
    const std::vector<Labelled> rows = attn::train::encode_labelled(attn::train::read_labelled(file), *loaded.tokenizer,
                                                                    loaded.labels, encoding(loaded));
    say_truncated(rows, loaded.model->config());
    const attn::models::Classifier classifier(std::move(loaded));
    const int64_t total = static_cast<int64_t>(rows.size()), size = batch ? batch : 32;
    Meter meter("sentences", total);
    std::vector<std::vector<double>> all_logits;
    Predictions judged;
    int64_t done = 0;
    while (done < total && !signal_seen()) {
      const int64_t end = std::min(done + size, total);
      std::vector<attn::text::Encoding> texts;
      for (int64_t n = done; n < end; ++n) {
        texts.push_back({rows[n].tokens, rows[n].token_type_ids});
        texts.back().token_type_ids.resize(rows[n].tokens.size());
      }
      for (std::vector<double>& logits : classifier.logits(texts)) {
        judged.expected.push_back(rows[done++].label);
        judged.predicted.push_back(std::max_element(logits.begin(), logits.end()) - logits.begin());
        all_logits.push_back(std::move(logits));
      }
      meter.show(done);
    }
    meter.hide();
    const std::string what = part(done, total, "sentences");
    std::string of_second;  // of two classes the second is the one that is looked for
    if (const std::vector<std::string>& names = classifier.loaded().labels; names.size() == 2)
      of_second = fmt::format(", F1 of {} {:.4f}", names[1], attn::train::f1_of_class(judged, 1).value_or(0));
    fmt::print("{}: loss {:.4f}, {:.2f} % right, macro F1 {:.4f}{}{}\n", what,
               mean_loss(all_logits, judged.expected, 1), 100 * metric_value(Metric::accuracy, judged),
               metric_value(Metric::macro_f1, judged), of_second, advice(all_logits, judged.expected));
  }

  attn::train::EncodingOptions encoding(const attn::models::Loaded& loaded) const {
    const attn::models::Config& config = loaded.model->config();
    return {.max_length = config.context, .with_types = config.type_vocab_size > 0, .source = file};
  }

  /// What the model says of rows; returns how many were done before a signal. The loss is the mean.
  int64_t predict(const attn::models::Model& model_of_rows, std::span<const Labelled> rows, Predictions& said) const {
    const int64_t total = std::ssize(rows), size = batch ? batch : 32;
    Meter meter("texts", total);
    const auto memory = attn::autograd::Tape().memory();
    double weight = 0;
    int64_t done = 0;
    while (done < total && !signal_seen()) {
      const int64_t count = std::min(size, total - done);
      weight += attn::train::add_predictions(
          model_of_rows, attn::train::packed_batch(rows.subspan(static_cast<size_t>(done), static_cast<size_t>(count))),
          said, {}, memory);
      done += count;
      meter.show(done);
    }
    meter.hide();
    said.loss /= std::max(weight, 1.0);
    return done;
  }

  void numbers(const attn::models::Loaded& loaded) const {
    const std::vector<Labelled> rows =
        attn::train::encode_numbers(attn::train::read_labelled(file, true), *loaded.tokenizer, encoding(loaded));
    say_truncated(rows, loaded.model->config());
    Predictions said;
    const std::string what = part(predict(*loaded.model, rows, said), std::ssize(rows), "texts");
    fmt::print("{}: mean squared error {:.4f}, Pearson {:.4f}, Spearman {:.4f}\n", what, said.loss,
               metric_value(Metric::pearson, said), metric_value(Metric::spearman, said));
  }

  void words(const attn::models::Loaded& loaded) const {
    const std::vector<Labelled> rows = attn::train::encode_labelled_words(
        attn::train::read_labelled_words(file), *loaded.tokenizer, loaded.labels, encoding(loaded));
    say_truncated(rows, loaded.model->config());
    Predictions said;
    const std::string what = part(predict(*loaded.model, rows, said), std::ssize(rows), "texts");
    const bool spans = std::all_of(loaded.labels.begin(), loaded.labels.end(), [](const std::string& label) {
      return label == "O" ||
             (label.size() > 2 && label[1] == '-' && std::string("BIES").find(label[0]) != std::string::npos);
    });
    fmt::print("{}, {} words: loss {:.4f}, {:.2f} % right, macro F1 {:.4f}{}\n", what,
               grouped(std::ssize(said.expected)), said.loss, 100 * metric_value(Metric::accuracy, said),
               metric_value(Metric::macro_f1, said),
               spans ? fmt::format(", F1 of spans {:.4f}", metric_value(Metric::span_f1, said, loaded.labels)) : "");
  }

  /// Of pairs: how cosines of vectors follow the scores, or how often a text's own second text is the nearest.
  void similar() const {
    attn::models::OpenOptions how{.which = model.which};
    set_precision(how, model.precision);
    attn::models::Embedder embed(model.directory, how);
    embed.options.normalize = true;
    const attn::train::PairTexts pairs = attn::train::read_pair_texts(file);
    const int64_t count = std::ssize(pairs.first);
    catch_signals();
    Meter meter("texts", 2 * count);
    const auto on_progress = [&](int64_t before) {
      return [&meter, before](int64_t done) {
        meter.show(before + done);
        return !signal_seen();
      };
    };
    const attn::Array first = embed(pairs.first, on_progress(0)), second = embed(pairs.second, on_progress(count));
    meter.hide();
    if (signal_seen()) throw attn::Error("eval", {"stopped before there was a result"});
    if (!pairs.scores.empty()) {
      const Predictions said{.expected_values = pairs.scores, .predicted_values = cosines_of_pairs(first, second)};
      return fmt::print("{} pairs: Spearman {:.4f}, Pearson {:.4f}\n", grouped(count),
                        metric_value(Metric::spearman, said), metric_value(Metric::pearson, said));
    }
    const auto [right, reciprocal] = retrieval(first, second);
    fmt::print("{} pairs: {:.2f} % of the texts find their own among all, mean reciprocal rank {:.4f}\n",
               grouped(count), 100 * right, reciprocal);
  }

  /// Of the whole file, which an error names.
  std::vector<int64_t> tokens_of(const attn::models::Loaded& loaded, const std::string& content) const {
    try {
      return loaded.tokenizer->encode(content).ids;
    } catch (const attn::Error& error) {
      throw attn::Error("eval", {file + ": " + error.reasons().front()});
    }
  }

  /// The loss of a text as the model generates it: where the KV cache rounds, attention is to rounded keys and values.
  double loss_of(const attn::models::Model& of, attn::autograd::Tape& tape, const attn::models::Batch& tokens) const {
    if (job->grid().sequence().size() > 1) return shared_loss_of(of, tape, tokens);
    if (kv_cache.of() == attn::KVStorage::exact) return static_cast<double>(of.loss(tape, tokens).item<float>());
    attn::models::ModelCache cache = of.new_cache(tokens.sequences, {}, kv_cache.of());
    return static_cast<double>(of.loss(tape, tokens, {.cache = &cache}).item<float>());
  }

  /// Of ranks that have some tokens each, at both ends, unless there are too few.
  double shared_loss_of(const attn::models::Model& of, attn::autograd::Tape& tape,
                        const attn::models::Batch& tokens) const {
    attn::cluster::Communicator& ranks = job->grid().sequence();
    if (tokens.length < 2 * ranks.size()) return static_cast<double>(of.loss(tape, tokens).item<float>());
    const attn::autograd::SharedSequence sequence(
        ranks, attn::models::placement_for(of.config(), tokens.length, ranks.size()), 0, job->grid().schedule());
    const attn::models::Batch shard = shard_of(tokens, sequence);
    double loss = static_cast<double>(of.loss(tape, shard, {.sequence = &sequence}).item<float>());
    attn::cluster::all_reduce(ranks, attn::View<2>(&loss, {1, 1}));
    return loss;
  }

  /// Windows of the context, each `stride` tokens after the one before: only tokens that no window has seen yet count,
  /// so that all but the first have at least length - stride tokens before them.
  void strided(const attn::models::Loaded& loaded) const {
    const std::string content = attn::io::read_input(file);
    const std::vector<int64_t> tokens = tokens_of(loaded, content);
    const int64_t length = context.of(loaded.model->config()), total = static_cast<int64_t>(tokens.size()) - 1;
    if (total < 1) throw attn::Error("eval", {file + " has fewer than two tokens"});
    if (stride > length)
      throw UsageError(fmt::format("--stride is {}, must be at most the context of {}", stride, length));
    Meter meter("tokens", total);
    const auto memory = attn::autograd::Tape().memory();
    double sum = 0;
    int64_t done = 0;
    for (int64_t first = 0; done < total && !signal_seen(); first += stride) {
      attn::models::Batch window;
      const int64_t end = std::min(first + length, total);
      window.sequences = 1;
      window.length = end - first;
      window.tokens.assign(tokens.begin() + first, tokens.begin() + end);
      window.targets.assign(tokens.begin() + first + 1, tokens.begin() + end + 1);
      std::fill_n(window.targets.begin(), done - first, attn::ops::kIgnoreIndex);
      attn::autograd::Tape tape({}, memory);
      sum += loss_of(*loaded.model, tape, window) * static_cast<double>(end - done);
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
    const int64_t length = context.of(config), fitting = (int64_t{1} << 24) / (length * config.vocab_size);
    const int64_t most = batch ? batch : std::clamp<int64_t>(fitting, 1, 32);
    Meter meter("tokens", total);
    const auto memory = attn::autograd::Tape().memory();
    double sum = 0;
    int64_t done = 0;
    while (done < total && !signal_seen()) {
      attn::models::Batch crops;
      crops.length = std::min(length, total - done);
      crops.sequences = std::min(most, (total - done) / crops.length);
      const int64_t count = crops.sequences * crops.length;
      crops.tokens.assign(tokens.begin() + done, tokens.begin() + done + count);
      crops.targets.assign(tokens.begin() + done + 1, tokens.begin() + done + count + 1);
      attn::autograd::Tape tape({}, memory);
      sum += loss_of(*loaded.model, tape, crops) * static_cast<double>(count);
      done += count;
      meter.show(done);
    }
    meter.hide();
    print_text(sum, done, total, content.size());
  }

  /// A given option that only the loss of a text has; "" where there is none.
  std::string flag_for_texts() const {
    if (kv_cache.of() != attn::KVStorage::exact) return "--kv-cache";
    return context.tokens ? "--context" : stride ? "--stride" : "";
  }

  void run(const CLI::App& command) {
    Job ranks("eval", parallel);
    job = &ranks;
    ranks.run([&] {
      attn::cluster::on_all_ranks(ranks.grid(), "eval", [&] {
        if (ranks.is_shared()) prepare(command);
        evaluate();
      });
    });
  }

  void prepare(const CLI::App& command) const {
    if (file == "-") throw UsageError("file: ranks cannot share standard input");
    if (parallel.sequence && kv_cache.of() != attn::KVStorage::exact)
      throw UsageError("--kv-cache is for ranks that have whole sequences");
    job->require_same("the file", std::to_string(std::hash<std::string>()(attn::io::read_input(file))));
    job->share_threads(command);
  }

  void evaluate() const {
    if (model.adapter.empty()) {  // which may have the head that the folder lacks
      const attn::models::Config config = attn::models::read_config(model.directory);
      const bool embeds = !config.head && !config.encoder_layers && !config.takes_embeddings;
      if (embeds && batch) throw UsageError("--batch has no effect on models that make vectors");
      if (embeds && parallel.is_given())
        throw UsageError("ranks do not share models that make vectors: " + parallel.text() + " is for other models");
      if (embeds && flag_for_texts().empty()) return similar();
    }
    attn::models::Loaded loaded = model.load(true, job->tensor_ranks());
    if (!job->is_shared()) catch_signals();  // the launcher ends all ranks at once
    const attn::models::Config config = loaded.model->config();
    const bool fills = !config.causal && config.head && !config.classes;
    if (fills || config.takes_embeddings)
      throw UsageError(model.directory + " has no loss on texts; " + what_fits(config));
    const bool continues = writes(config) && !config.encoder_layers;
    if (parallel.sequence && !continues)
      throw UsageError("--sequence-parallel is for models that continue texts; " + model.directory + " does not");
    if (const std::string flag = flag_for_texts(); !flag.empty() && !continues)
      throw UsageError(fmt::format("{} is for models that continue texts; {} does not", flag, model.directory));
    if (batch && config.encoder_layers) throw UsageError("--batch has no effect on models that answer texts");
    job->set_schedule(parallel, [&] {
      return attn::models::choose_schedule(config, context.of(config), loaded.model->parameters().dtype(), job->grid(),
                                           false);
    });
    if (config.encoder_layers) evaluate_pairs(loaded, file);
    else if (config.classes == 1 && config.problem_type == attn::models::ProblemType::regression) numbers(loaded);
    else if (classifies_tokens(config)) words(loaded);
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
  command
      ->add_option("file", run->file,
                   "a text; .tsv, .csv or .jsonl with labels, or of pairs; words with labels; - is standard input")
      ->required()
      ->type_name("FILE");
  run->context.add(*command, "tokens of the text that the model reads at once");
  run->kv_cache.add(*command);
  CLI::Option* batch =
      command->add_option("--batch", run->batch, "sequences at once; 0 = 32, or as many as have 64 MB of logits")
          ->check(whole(0, 1 << 16));
  command
      ->add_option("--stride", run->stride,
                   "tokens that a window moves on by, with what is before as context;"
                   " 0 = by the whole context")
      ->check(whole(0, 1 << 24))
      ->excludes(batch);
  run->parallel.add_sequence(*command);
  run->parallel.add_schedule(*command);
  run->parallel.add_tensor(*command);
  run->parallel.add_wait_limit(*command);
  command->callback([=] { run->run(*command); });
}

}  // namespace cli
