// attn generate, attn classify, attn eval: what a trained model does with text.
#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>

#include "common.h"

namespace cli {
namespace {

using Json = nlohmann::ordered_json;

// ----------------------------------------------------------------------------------------------------------- generate

struct Generate {
  ModelOptions model;
  GenerationOptions generation;
  std::string prompt, file;
  bool interactive = false, statistics = false;

  void run() const {
    const attn::models::Loaded loaded = model.load();
    if (loaded.model->config().classes) throw UsageError(model.directory + " is a classifier: attn classify");
    catch_signals();
    if (interactive) return generation.converse(loaded);
    std::string text = file.empty() ? prompt : attn::io::read_file(file);
    if (text.empty()) text = loaded.tokenizer->decode(std::vector<int64_t>{0});
    generation.stream(loaded, text, statistics);
    if (signal_seen()) set_exit_status(128 + signal_seen());
  }
};

// ----------------------------------------------------------------------------------------------------------- classify

struct Classify {
  ModelOptions model;
  std::string file;
  bool json = false;

  void run() const {
    const attn::models::Loaded loaded = model.load();
    if (!loaded.model->config().classes) throw UsageError(model.directory + " does not classify: attn generate");
    std::ifstream opened;
    if (!file.empty()) {
      opened.open(file);
      if (!opened) throw attn::Error("classify", {"cannot open " + file});
    }
    std::istream& in = file.empty() ? std::cin : opened;
    catch_signals();
    const auto memory = attn::autograd::Tape().memory();
    std::string line;
    for (int64_t number = 1; !signal_seen() && std::getline(in, line); ++number) {
      attn::models::Batch batch;
      batch.tokens = loaded.tokenizer->encode(line);
      if (batch.tokens.empty()) batch.tokens = {0};
      batch.tokens.resize(std::min<size_t>(batch.tokens.size(), loaded.model->config().context));
      batch.sequences = 1;
      batch.length = static_cast<int64_t>(batch.tokens.size());
      attn::autograd::Tape tape({}, memory);
      const attn::autograd::Value logits = loaded.model->forward(tape, batch);
      const float* value = static_cast<const float*>(logits.data().data());
      const int64_t classes = logits.data().count();
      const float largest = *std::max_element(value, value + classes);
      std::vector<double> share(static_cast<size_t>(classes));
      double total = 0;
      for (int64_t c = 0; c < classes; ++c) total += share[c] = std::exp(static_cast<double>(value[c] - largest));
      for (double& each : share) each /= total;
      const int64_t best = std::max_element(share.begin(), share.end()) - share.begin();
      if (json) {
        const Json row = {{"line", number}, {"class", best}, {"probabilities", share}, {"text", line}};
        fmt::print("{}\n", row.dump(-1, ' ', false, Json::error_handler_t::replace));
      } else {
        fmt::print("{}\t{:.4f}\t{}\n", best, share[best], line);
      }
    }
  }
};

// --------------------------------------------------------------------------------------------------------------- eval

struct Evaluate {
  ModelOptions model;
  std::string file;
  int64_t batch = 32;

  /// All of a text, in consecutive crops of the context.
  static attn::models::Batch crop(const std::vector<int64_t>& tokens, int64_t begin, int64_t length) {
    attn::models::Batch batch;
    batch.sequences = 1;
    batch.length = length;
    batch.tokens.assign(tokens.begin() + begin, tokens.begin() + begin + length);
    batch.targets.assign(tokens.begin() + begin + 1, tokens.begin() + begin + length + 1);
    return batch;
  }

  void run() const {
    const attn::models::Loaded loaded = model.load();
    const attn::models::Config& config = loaded.model->config();
    if (config.classes) {
      std::vector<attn::train::Labelled> rows;
      for (const auto& row : attn::train::read_labelled(file)) {
        rows.push_back({loaded.tokenizer->encode(row.text), row.label});
        if (rows.back().tokens.empty()) rows.back().tokens = {0};
        if (row.label >= config.classes)
          throw attn::Error("eval", {file + " has class " + std::to_string(row.label) + ", the model knows " +
                                     std::to_string(config.classes)});
      }
      const attn::train::LabelledData data(rows, rows, config.context, batch, 0);
      const attn::train::Validation result = attn::train::validate(*loaded.model, data);
      fmt::print("{} sentences: loss {:.4f}, {:.2f} % right\n", rows.size(), result.loss, 100 * result.accuracy);
      return;
    }
    const std::string text = attn::io::read_file(file);
    const std::vector<int64_t> tokens = loaded.tokenizer->encode(text);
    const int64_t total = static_cast<int64_t>(tokens.size()) - 1;
    if (total < 1) throw attn::Error("eval", {file + " has fewer than two tokens"});
    catch_signals();
    const auto memory = attn::autograd::Tape().memory();
    double sum = 0;
    int64_t counted = 0;
    while (counted < total && !signal_seen()) {
      const int64_t length = std::min(config.context, total - counted);
      attn::autograd::Tape tape({}, memory);
      const attn::autograd::Value loss = loaded.model->loss(tape, crop(tokens, counted, length));
      sum += static_cast<double>(*static_cast<const float*>(loss.data().data())) * static_cast<double>(length);
      counted += length;
    }
    const double mean = sum / static_cast<double>(counted);
    fmt::print("{} tokens: loss {:.4f}, perplexity {:.3f}, {:.4f} bits a byte\n", counted, mean, std::exp(mean),
               sum / std::log(2) /
                   (static_cast<double>(text.size()) * static_cast<double>(counted) / static_cast<double>(total)));
  }
};

}  // namespace

void add_generate(CLI::App& app) {
  CLI::App* command = app.add_subcommand("generate", "continue a text");
  auto run = std::make_shared<Generate>();
  run->model.add(*command);
  command->add_option("--prompt", run->prompt, "the beginning");
  command->add_option("--file", run->file, "a file with the beginning");
  command->add_flag("--interactive", run->interactive, "read beginnings line by line");
  command->add_flag("--stats", run->statistics, "print tokens a second");
  run->generation.add(*command);
  command->callback([=] { run->run(); });
}

void add_classify(CLI::App& app) {
  CLI::App* command = app.add_subcommand("classify", "a class and its probability for every line");
  auto run = std::make_shared<Classify>();
  run->model.add(*command);
  command->add_option("file", run->file, "lines of text; none: standard input");
  command->add_flag("--json", run->json, "all probabilities, as lines of JSON");
  command->callback([=] { run->run(); });
}

void add_eval(CLI::App& app) {
  CLI::App* command = app.add_subcommand("eval", "loss of a model on a file");
  auto run = std::make_shared<Evaluate>();
  run->model.add(*command);
  command->add_option("file", run->file, "text, or .tsv lines of text, tab, class")->required();
  command->callback([=] { run->run(); });
}

}  // namespace cli
