// attn classify: the class that a model gives each line of a file.
#include <memory>
#include <nlohmann/json.hpp>

#include "attn/models_classify.h"
#include "commands.h"
#include "lines.h"
#include "model_flags.h"
#include "options.h"
#include "output.h"
#include "signals.h"

namespace cli {
namespace {

using Json = nlohmann::ordered_json;

struct Classify {
  ModelOptions model;
  std::string file = "-";
  attn::models::ClassifyOptions options;
  ContextOption context;
  bool json = false;

  void print(const std::vector<std::string>& labels, const attn::models::Classification& found, int64_t number,
             const std::string& text) const {
    const auto& [best, scores] = found;
    if (!json) return fmt::print("{}\t{:.4f}\t{}\n", for_output(labels[best]), scores[best], for_output(text));
    Json shares = Json::object();
    for (size_t n = 0; n < scores.size(); ++n) shares[labels[n]] = scores[n];
    const Json line = {{"line", number}, {"class", labels[best]}, {"probabilities", shares}, {"text", text}};
    fmt::print("{}\n", line.dump(-1, ' ', false, Json::error_handler_t::replace));
  }

  /// Computes as many lines at once as can be read without waiting, so that a person at a terminal, or a program that
  /// reads the results, gets each answer at once.
  void run() const {
    attn::models::Loaded loaded = model.load();
    const attn::models::Config config = loaded.model->config();
    if (!classifies(config)) throw UsageError(model.directory + " does not classify texts; " + what_fits(config));
    if (options.temperature != 1 && loaded.problem_type == attn::models::ProblemType::regression)
      throw UsageError("--temperature is for probabilities, but " + model.directory + " predicts numbers");
    attn::models::Classifier classifier(std::move(loaded));
    classifier.options = options;
    classifier.options.max_length = context.of(config);
    Lines lines(file);
    catch_signals();
    std::vector<std::string> texts;
    std::vector<attn::text::Encoding> encodings;
    int64_t answered = 0, truncated = 0;
    const auto answer = [&] {
      if (texts.empty()) return;
      auto rows = classifier.logits(encodings);
      for (size_t n = 0; n < rows.size(); ++n)
        print(classifier.labels(), classifier.classify(std::move(rows[n])), ++answered, texts[n]);
      show("");
      texts.clear();
      encodings.clear();
    };
    const auto next = [&](std::string& line) {
      try {
        return lines.next(line);
      } catch (const attn::Error&) {
        answer();  // the lines before one that is not UTF-8
        throw;
      }
    };
    for (std::string line; next(line);) {
      try {
        bool is_cut = false;
        encodings.push_back(classifier.encode(line, &is_cut));
        truncated += is_cut;
      } catch (const attn::Error& error) {
        answer();
        throw attn::Error("classify", {lines.where() + ": " + error.reasons().front()});
      }
      texts.push_back(line);
      if (std::ssize(texts) == options.batch_size || !lines.ready()) answer();
    }
    answer();
    if (truncated)
      say("attn: {} of {} texts were cut to {} tokens{}\n", truncated, answered, classifier.options.max_length,
          ContextOption::larger(config));
  }
};

}  // namespace

void add_classify(CLI::App& app) {
  CLI::App* command = app.add_subcommand("classify", "print a class and its probability for every line");
  command->footer("Example:\n  attn classify reviews lines.txt");
  auto run = std::make_shared<Classify>();
  run->model.add(*command);
  command->add_option("file", run->file, "lines of text, an empty one too; - is standard input")->type_name("FILE");
  command->add_option("--batch", run->options.batch_size, "lines per batch, if the input is a file")
      ->check(whole(1, 1 << 16));
  command->add_flag("--json", run->json, "print all probabilities, one line of JSON per text");
  command
      ->add_option("--temperature", run->options.temperature,
                   "logits are divided by it: above 1 for a model that is too sure; attn eval says which fits")
      ->check(number(0, 1e6, "(]"));
  run->context.add(*command);
  command->callback([=] { run->run(); });
}

}  // namespace cli
