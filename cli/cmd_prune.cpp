// attn prune: which heads of a trained model matter, and the model without those that do not.
#include <algorithm>
#include <charconv>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <memory>

#include "attn/core_names.h"
#include "attn/train_prune.h"
#include "commands.h"
#include "config_flags.h"
#include "model_flags.h"
#include "numbers.h"
#include "options.h"
#include "output.h"
#include "progress.h"
#include "settings.h"
#include "signals.h"
#include "table.h"

namespace cli {
namespace {

using Json = nlohmann::ordered_json;
using attn::models::HeadLists;
using attn::models::Model;
using attn::train::HeadScores;
using attn::train::Scoring;

/// "40%" of so many heads, or their number.
int64_t heads_from(const std::string& text, int64_t total) {
  double value = 0;
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  const bool percent = stop != end && std::string(stop, end) == "%";
  if (error != std::errc() || !(stop == end || percent) || !(value > 0) || (!percent && value != std::floor(value)) ||
      value > (percent ? 100 : 1e9))
    throw UsageError("--heads is '" + text + "', must be a share, as 40%, or a number, as 12");
  return percent ? std::llround(value / 100 * static_cast<double>(total)) : static_cast<int64_t>(value);
}

/// A model as the table at the end shows it.
struct Measured {
  attn::train::Validation validation;
  int64_t heads = 0, parameters = 0, bytes = 0;
  double milliseconds = 0;  ///< of a forward over a batch
};

Measured measure(const Model& model, const attn::train::Dataset& data, const std::string& directory,
                 std::string_view which) {
  Measured measured;
  measured.validation = attn::train::validate(model, data);
  measured.heads = attn::train::count_heads(model.config());
  measured.parameters = attn::models::count_parameters(model.config()).total();
  const std::string path = attn::models::Checkpoints(directory).load(which, nullptr).path;
  measured.bytes = static_cast<int64_t>(std::filesystem::file_size(path));
  return measured;
}

/// The median over forwards of each, in turn: what disturbs one disturbs the other.
void time_batches(const Model& first, const Model& second, const attn::models::Batch& batch, Measured& before,
                  Measured& after) {
  constexpr int kRounds = 31;
  const auto memory = attn::autograd::Tape().memory();
  std::vector<double> times[2];
  for (int round = 0; round < kRounds; ++round)
    for (const auto& [model, to] : {std::pair(&first, &times[0]), std::pair(&second, &times[1])}) {
      attn::autograd::Tape tape({}, memory);
      const auto start = std::chrono::steady_clock::now();
      model->forward(tape, batch);
      to->push_back(1e3 * std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
    }
  for (auto [all, to] : {std::pair(&times[0], &before), std::pair(&times[1], &after)}) {
    std::nth_element(all->begin(), all->begin() + kRounds / 2, all->end());
    to->milliseconds = (*all)[kRounds / 2];
  }
}

/// The same data, with a line that tells how much of it scoring and retraining have read; a signal ends them.
class Watched : public attn::train::Dataset {
 public:
  Watched(const attn::train::Dataset& data, int64_t total) : data_(data), meter_("batches", total) {}
  attn::models::Batch training(uint64_t number) const override {
    if (signal_seen()) throw attn::Error("prune", {"stopped before there was a result"});
    meter_.show(++done_);
    return data_.training(number);
  }
  attn::models::Batch validation(int64_t number) const override { return data_.validation(number); }
  int64_t validation_batches() const override { return data_.validation_batches(); }
  int64_t batches_per_epoch() const override { return data_.batches_per_epoch(); }
  std::string describe() const override { return data_.describe(); }
  void hide() { meter_.hide(); }

 private:
  const attn::train::Dataset& data_;
  mutable Meter meter_;
  mutable int64_t done_ = 0;
};

struct Point {
  int64_t heads;
  attn::train::Validation validation;
};

struct Prune {
  std::string directory, which = "best", out, heads, method = "gradient";
  std::string data, validation;
  int64_t rounds = 1, retrain = 0, batches = attn::train::kScoreBatches;
  double learning_rate = 0;
  attn::train::GateOptions gates;
  uint64_t seed = 0;
  bool overwrite = false, json = false;

  /// The settings of the training that made the model, with what the command line says of the one that follows.
  Settings settings() const {
    Settings settings;
    each_stored(settings, directory,
                [](const std::string&, auto& field, const auto& stored, WhenResumed) { field = stored; });
    settings.out = out;
    settings.float32_precision = float32_precision();
    if (!data.empty()) {
      settings.data = data;
      settings.validation = validation;
    } else if (!validation.empty()) {
      settings.validation = validation;
    }
    if (settings.data == "-")
      throw UsageError("the model was trained from a pipe: give its data as a file with --data");
    attn::train::TrainerOptions& options = settings.options;
    options.decay_steps = 0;
    options.seed = seed;
    if (retrain) options.steps = retrain;
    options.warmup = std::min(options.warmup, options.steps / 10);
    options.learning_rate = learning_rate > 0 ? learning_rate : options.learning_rate / 4;
    options.min_learning_rate = std::min(options.min_learning_rate, options.learning_rate / 10);
    return settings;
  }

  attn::train::PruneOptions options(const Settings& settings, int64_t count) const {
    attn::train::PruneOptions options;
    options.heads = count;
    options.rounds = rounds;
    options.scoring = attn::from_name<Scoring>(method).value();
    options.batches = batches;
    options.gates = gates;
    options.gates.seed = options.seed = seed;
    options.retrain = retrain;
    options.training = settings.options;
    options.training.eval_every = 0;
    return options;
  }

  /// Batches of the training data that prune() will read, of a model with so many heads.
  int64_t batches_to_read(const attn::train::PruneOptions& how, int64_t total) const {
    int64_t all = rounds * retrain * how.training.accumulation;
    for (int64_t round = 0; round < rounds; ++round) {
      const int64_t left = total - how.heads * round / rounds;
      all += how.scoring == Scoring::gradient        ? batches
             : how.scoring == Scoring::leave_one_out ? batches * (left + 1)
             : how.scoring == Scoring::gates         ? gates.steps
                                                     : 0;
    }
    return all;
  }

  /// What validation says where gates close the heads of the lowest scores, a tenth of all more at each point.
  static std::vector<Point> curve(const Model& model, const attn::train::Dataset& data, const HeadScores& scores) {
    std::vector<Point> points;
    const int64_t total = attn::train::count_heads(model.config());
    for (int64_t tenth = 0; tenth < 10 && !signal_seen(); ++tenth) {
      const int64_t count = std::min((total * tenth + 5) / 10, attn::train::removable_heads(model.config()));
      if (!points.empty() && points.back().heads == count) continue;
      const auto gates = attn::models::gates_without(model.config(), attn::train::least_heads(scores, count));
      points.push_back({count, attn::train::validate(model, data, {.forward = {.gates = &gates}})});
    }
    return points;
  }

  /// A folder as attn train writes it, before its first step.
  void save(Model& model, const Settings& settings, const Prepared& prepared, FolderLock& lock) const {
    begin_directory(settings, model.config(), prepared, overwrite, lock);
    attn::train::Trainer(model, *prepared.data, settings.options, out).save();
  }

  void check_folders() const {
    std::error_code unknown;
    if (std::filesystem::equivalent(directory, out, unknown))
      throw UsageError("--out must not be the folder of the model");
    attn::models::read_config(directory);  // says what else it is
    if (!attn::models::Checkpoints(directory).last_step())
      throw attn::Error("prune", {directory + " holds no checkpoint: only models that attn train wrote can be pruned"});
    require_free(out, overwrite);
  }

  void run() const {
    check_folders();
    FolderLock lock;
    hold_folder(out, lock);
    const attn::models::Loaded loaded = attn::models::load_model(directory, which);
    for (const std::string& note : loaded.notes) say("attn: {}\n", note);
    const Model& model = *loaded.model;
    if (model.config().lora_rank)
      throw attn::Error("prune", {directory + " has adapters: attn lora merge writes a model without them"});
    const int64_t total = attn::train::count_heads(model.config()), count = heads_from(heads, total);
    const int64_t most = attn::train::removable_heads(model.config());
    if (count < 1 || count > most)
      throw UsageError(fmt::format("--heads {} would remove {} of {} heads, must remove 1 to {}: each layer keeps one",
                                   heads, count, total, most));
    if (heads.ends_with('%')) say("attn: --heads {} is {} of {} heads\n", heads, count, total);
    if (rounds > count)
      throw UsageError(fmt::format("--rounds is {}, must be at most {}, the number of heads to remove", rounds, count));
    const Settings trained = settings();
    attn::models::Config config = model.config();
    const Prepared prepared = prepare(trained, config, seed, directory);
    ContextOption::say_truncated(prepared.truncated, prepared.rows,
                                 trained.max_length ? trained.max_length : config.context, "");
    catch_signals();

    attn::train::PruneOptions how = options(trained, count);
    HeadScores scores;
    how.on_round = [&](int64_t round, const HeadScores& found, const HeadLists&) {
      if (round == 0) scores = found;
    };
    Measured before = measure(model, *prepared.data, directory, which);
    Watched watched(*prepared.data, batches_to_read(how, total));
    Model pruned = attn::train::prune(model, watched, how);
    watched.hide();
    save(pruned, trained, prepared, lock);
    Measured after = measure(pruned, *prepared.data, out, "best");
    time_batches(model, pruned, prepared.data->validation(0), before, after);
    const std::vector<Point> points = curve(model, *prepared.data, scores);
    if (json) print_json(model, pruned, scores, points, before, after);
    else print(model, pruned, scores, points, before, after);
  }

  // ------------------------------------------------------------------------------------------------------------ output

  /// One row a layer, a column for each head that the model had at first; those that are gone in brackets.
  void print_scores(const Model& model, const Model& pruned, const HeadScores& scores) const {
    const auto layers = attn::models::attention_layers(model.config());
    const auto left = attn::models::attention_layers(pruned.config());
    fmt::print("importance of each head, by {}; in brackets what is removed\n", method);
    for (size_t n = 0; n < layers.size(); ++n) {
      fmt::print("{:<22}", layers[n].name);
      for (size_t h = 0; h < layers[n].kept.size(); ++h) {
        const auto& stays = left[n].kept;
        const bool gone = !std::binary_search(stays.begin(), stays.end(), layers[n].kept[h]);
        fmt::print("{:>5} {:<11}", layers[n].kept[h],
                   gone ? fmt::format("[{:.4g}]", scores[n][h]) : fmt::format("{:.4g} ", scores[n][h]));
      }
      fmt::print("\n");
    }
  }

  static std::string shown(const Model& model, const attn::train::Validation& validation) {
    if (model.config().classes)
      return fmt::format("loss {:.4f}, {:.2f} % right", validation.loss, 100 * validation.accuracy);
    return fmt::format("loss {:.4f}, perplexity {:.3f}", validation.loss, std::exp(validation.loss));
  }

  void print(const Model& model, const Model& pruned, const HeadScores& scores, const std::vector<Point>& points,
             const Measured& before, const Measured& after) const {
    print_scores(model, pruned, scores);
    fmt::print("\nvalidation with the least important heads closed, nothing retrained\n");
    for (const Point& point : points)
      fmt::print("{:>5} of {} heads  {}\n", point.heads, before.heads, shown(model, point.validation));
    Table table{{{"", "{:<16}"}, {"before", "{:>24}"}, {"after", "{:>24}"}}};
    const auto row = [&](const char* name, const std::string& first, const std::string& second) {
      table.rows.push_back({name, first, second});
    };
    row("heads", grouped(before.heads), grouped(after.heads));
    row("loss", fmt::format("{:.4f}", before.validation.loss), fmt::format("{:.4f}", after.validation.loss));
    if (model.config().classes)
      row("right", fmt::format("{:.2f} %", 100 * before.validation.accuracy),
          fmt::format("{:.2f} %", 100 * after.validation.accuracy));
    else
      row("perplexity", fmt::format("{:.3f}", std::exp(before.validation.loss)),
          fmt::format("{:.3f}", std::exp(after.validation.loss)));
    row("parameters", grouped(before.parameters), grouped(after.parameters));
    row("file", grouped(before.bytes) + " bytes", grouped(after.bytes) + " bytes");
    row("time a batch", fmt::format("{:.2f} ms", before.milliseconds),
        fmt::format("{:.2f} ms ({:+.1f} %)", after.milliseconds, 100 * (after.milliseconds / before.milliseconds - 1)));
    fmt::print("\n{}", table.text());
  }

  static Json json_of(const Measured& measured) {
    return {{"heads", measured.heads},
            {"loss", measured.validation.loss},
            {"accuracy", measured.validation.accuracy},
            {"parameters", measured.parameters},
            {"bytes", measured.bytes},
            {"milliseconds", measured.milliseconds}};
  }

  void print_json(const Model& model, const Model& pruned, const HeadScores& scores, const std::vector<Point>& points,
                  const Measured& before, const Measured& after) const {
    Json layers = Json::array(), curve = Json::array();
    const auto all = attn::models::attention_layers(model.config());
    const auto left = attn::models::attention_layers(pruned.config());
    for (size_t n = 0; n < all.size(); ++n)
      layers.push_back({{"name", all[n].name}, {"heads", all[n].kept}, {"scores", scores[n]}, {"kept", left[n].kept}});
    for (const Point& point : points)
      curve.push_back(
          {{"heads", point.heads}, {"loss", point.validation.loss}, {"accuracy", point.validation.accuracy}});
    const Json object = {{"method", method}, {"rounds", rounds},          {"retrain", retrain},
                         {"layers", layers}, {"before", json_of(before)}, {"after", json_of(after)},
                         {"curve", curve}};
    fmt::print("{}\n", object.dump());
  }
};

}  // namespace

void add_prune(CLI::App& app) {
  CLI::App* command = app.add_subcommand("prune", "remove the least important heads of a trained model");
  command->footer(
      "Examples:\n  attn prune reviews --heads 40% --out smaller\n"
      "  attn prune model --heads 40% --method gates --rounds 4 --retrain 100 --out smaller");
  auto run = std::make_shared<Prune>();
  command->add_option("directory", run->directory, "a model folder: the output of attn train")
      ->required()
      ->type_name("FOLDER");
  command->add_option("--out", run->out, "the folder for the smaller model")->required()->type_name("FOLDER");
  command->add_option("--heads", run->heads, "how many heads to remove: a share, as 40%, or a number")->required();
  command->add_option("--method", run->method, "how the importance of a head is measured")
      ->check(one_of(attn::names_of<Scoring>()));
  command->add_option("--data", run->data, "training data; default: the data of the training")->type_name("FILE");
  command->add_option("--validation", run->validation, "validation data; default: that of the training")
      ->type_name("FILE");
  command->add_option("--rounds", run->rounds, "rounds of scoring and removal, each with an equal share")
      ->check(whole(1, 1 << 20));
  command->add_option("--retrain", run->retrain, "updates after each round; 0 = none")->check(whole(0, 1 << 30));
  command
      ->add_option("--learning-rate", run->learning_rate,
                   "learning rate of --retrain; default: a quarter of the training's")
      ->check(number(0, 1e6, "(]"))
      ->default_str("");
  command->add_option("--batches", run->batches, "batches of training data, for gradient and leave-one-out")
      ->check(whole(1, 1 << 30));
  command->add_option("--gate-steps", run->gates.steps, "updates of learned gates")->check(whole(1, 1 << 30));
  command->add_option("--gate-penalty", run->gates.penalty, "penalty on each open gate")->check(number(0, 1e6));
  command->add_option("--seed", run->seed, "seed of random scores, gates and data order")->check(whole(0));
  command->add_option("--checkpoint", run->which, "which checkpoint of the training")->check(one_of({"best", "last"}));
  command->add_flag("--overwrite", run->overwrite, "replace the model in --out");
  command->add_flag("--json", run->json, "print the result as one line of JSON");
  command->callback([=] { run->run(); });
}

}  // namespace cli
