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
  bool json = false, pairs = false;

  void print(const attn::models::Classifier& classifier, const attn::models::Classification& found, int64_t number,
             const std::string& text) const {
    const std::vector<std::string>& labels = classifier.labels();
    const auto& [best, scores] = found;
    if (!json) return fmt::print("{}\t{:.4f}\t{}\n", for_output(labels[best]), scores[best], for_output(text));
    Json shares = Json::object();
    for (size_t n = 0; n < scores.size(); ++n) shares[labels[n]] = scores[n];
    const bool numbers = classifier.loaded().model->config().problem_type == attn::models::ProblemType::regression;
    Json line = {{"line", number}};
    if (!numbers) line["class"] = labels[best];
    line[numbers ? "values" : "probabilities"] = shares;
    line["text"] = text;
    fmt::print("{}\n", line.dump(-1, ' ', false, Json::error_handler_t::replace));
  }

  void print(const std::vector<attn::models::ClassifiedWord>& words, const std::vector<std::string>& labels,
             int64_t number) const {
    if (!json) {
      for (const auto& each : words) fmt::print("{}\t{}\n", for_output(each.word), for_output(labels[each.label]));
      return fmt::print("\n");
    }
    Json line = {
        {"line", number}, {"words", Json::array()}, {"classes", Json::array()}, {"probabilities", Json::array()}};
    for (const auto& each : words) {
      line["words"].push_back(each.word);
      line["classes"].push_back(labels[each.label]);
      line["probabilities"].push_back(each.probability);
    }
    fmt::print("{}\n", line.dump(-1, ' ', false, Json::error_handler_t::replace));
  }

  /// Calls take(line) for each line, and answer() as often as what is read without waiting is taken, so that a person
  /// at a terminal, or a program that reads the results, gets each answer at once.
  template <class Take, class Answer>
  void each_line(const Take& take, const Answer& answer) const {
    Lines lines(file);
    catch_signals();
    int64_t taken = 0;
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
        take(line);
      } catch (const attn::Error& error) {
        answer();
        throw attn::Error("classify", {lines.where() + ": " + error.reasons().front()});
      }
      if (++taken == options.batch_size || !lines.ready()) {
        answer();
        taken = 0;
      }
    }
    answer();
  }

  void texts(attn::models::Loaded loaded) const {
    if (options.temperature != 1 && loaded.model->config().problem_type == attn::models::ProblemType::regression)
      throw UsageError("--temperature is for probabilities, but " + model.directory + " predicts numbers");
    const attn::models::Config config = loaded.model->config();
    attn::models::Classifier classifier(std::move(loaded));
    classifier.options = options;
    classifier.options.max_length = context.of(config);
    std::vector<std::string> read;
    std::vector<attn::text::Encoding> encodings;
    int64_t answered = 0, truncated = 0;
    const auto take = [&](const std::string& line) {
      const size_t tab = pairs ? line.find('\t') : std::string::npos;
      if (pairs && tab == std::string::npos)
        throw attn::Error("classify", {"must be two texts with a tab between them"});
      encodings.push_back(tab == std::string::npos ? classifier.encode(line)
                                                   : classifier.encode(line.substr(0, tab), line.substr(tab + 1)));
      truncated += encodings.back().truncated;
      read.push_back(line);
    };
    each_line(take, [&] {
      if (read.empty()) return;
      auto rows = classifier.logits(encodings);
      for (size_t n = 0; n < rows.size(); ++n)
        print(classifier, classifier.classify(std::move(rows[n])), ++answered, read[n]);
      show("");
      read.clear();
      encodings.clear();
    });
    ContextOption::say_truncated(truncated, answered, classifier.options.max_length, ContextOption::larger(config));
  }

  void words(attn::models::Loaded loaded) const {
    if (options.temperature != 1 || pairs) throw UsageError("--temperature and --pairs are for classes of texts");
    const attn::models::Config config = loaded.model->config();
    attn::models::WordClassifier tagger(std::move(loaded));
    tagger.max_length = context.of(config);
    std::vector<std::vector<std::string>> read;
    int64_t answered = 0, truncated = 0;
    const auto take = [&](const std::string& line) { read.push_back(attn::models::words_of_text(line)); };
    each_line(take, [&] {
      const auto found = tagger(read);
      for (size_t n = 0; n < found.size(); ++n) {
        truncated += found[n].size() < read[n].size();
        print(found[n], tagger.labels(), ++answered);
      }
      show("");
      read.clear();
    });
    ContextOption::say_truncated(truncated, answered, tagger.max_length, ContextOption::larger(config));
  }

  void run() const {
    attn::models::Loaded loaded = model.load();
    const attn::models::Config& config = loaded.model->config();
    if (classifies_texts(config)) texts(std::move(loaded));
    else if (classifies_tokens(config)) words(std::move(loaded));
    else throw UsageError(model.directory + " does not classify texts; " + what_fits(config));
  }
};

}  // namespace

void add_classify(CLI::App& app) {
  CLI::App* command =
      app.add_subcommand("classify", "print the class of every line, or of its words, with probabilities");
  command->footer("Example:\n  attn classify reviews lines.txt");
  auto run = std::make_shared<Classify>();
  run->model.add(*command);
  command->add_option("file", run->file, "lines of text, an empty one too; - is standard input")->type_name("FILE");
  command->add_option("--batch", run->options.batch_size, "lines per batch, if the input is a file")
      ->check(whole(1, 1 << 16));
  command->add_flag("--pairs", run->pairs, "each line is two texts with a tab between them");
  command->add_flag("--json", run->json, "print all probabilities, one line of JSON per text");
  command
      ->add_option("--temperature", run->options.temperature,
                   "logits are divided by it: above 1 for a model that is too sure; attn eval says which fits")
      ->check(number(0, 1e6, "(]"));
  run->context.add(*command);
  command->callback([=] { run->run(); });
}

}  // namespace cli
