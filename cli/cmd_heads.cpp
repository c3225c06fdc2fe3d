// attn heads: what the heads of a model do on texts, measure by measure.
#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <nlohmann/json.hpp>

#include "common.h"
#include "heads_texts.h"
#include "progress.h"

namespace cli {
namespace {

using attn::heads::HeadValues;
using attn::heads::Measure;
using HeadTable = std::vector<HeadValues>;

// What the terminal has room for; files have all.
const std::vector<std::string> kShown = {"previous",    "next",      "self",     "first",      "separator",
                                         "punctuation", "entropy",   "distance", "confidence", "positional",
                                         "offset",      "duplicate", "induction"};

std::vector<std::string> measure_names() {
  std::vector<std::string> names;
  for (const Measure& measure : attn::heads::measures()) names.push_back(measure.name);
  return names;
}

/// The places of these measures among all.
std::vector<size_t> places_of(const std::vector<std::string>& named) {
  const std::vector<std::string> all = measure_names();
  std::vector<size_t> places;
  for (const std::string& name : named)
    places.push_back(static_cast<size_t>(std::find(all.begin(), all.end(), name) - all.begin()));
  return places;
}

std::string heads_table(const HeadTable& table, const std::vector<size_t>& shown) {
  std::string text = fmt::format("{:>5}{:>6}", "layer", "head");
  const auto width = [&](size_t place) { return std::max<size_t>(attn::heads::measures()[place].name.size() + 2, 9); };
  for (const size_t place : shown) text += fmt::format("{:>{}}", attn::heads::measures()[place].name, width(place));
  text += "  above its threshold\n";
  for (const HeadValues& head : table) {
    text += fmt::format("{:>5}{:>6}", head.layer, head.head);
    for (const size_t place : shown)
      text += std::isnan(head.values[place]) ? fmt::format("{:>{}}", "-", width(place))
                                             : fmt::format("{:>{}.3f}", head.values[place], width(place));
    text += "  " + joined(attn::heads::roles(head), ", ") + "\n";
  }
  return text;
}

std::string heads_csv(const HeadTable& table, const std::vector<size_t>& shown) {
  std::string text = "layer,head";
  for (const size_t place : shown) text += "," + attn::heads::measures()[place].name;
  text += ",roles\n";
  for (const HeadValues& head : table) {
    text += fmt::format("{},{}", head.layer, head.head);
    for (const size_t place : shown)
      text += std::isnan(head.values[place]) ? "," : fmt::format(",{:.9g}", head.values[place]);
    text += "," + joined(attn::heads::roles(head), " ") + "\n";
  }
  return text;
}

std::string heads_json(const HeadTable& table, const std::vector<size_t>& shown, int64_t texts) {
  using Json = nlohmann::ordered_json;
  const auto number = [](double value) { return std::isnan(value) ? Json(nullptr) : Json(value); };
  Json all = {{"texts", texts}, {"measures", Json::object()}, {"heads", Json::array()}};
  for (const size_t place : shown) {
    const Measure& measure = attn::heads::measures()[place];
    all["measures"][measure.name] = {{"unit", measure.unit},
                                     {"definition", measure.definition},
                                     {"source", measure.source},
                                     {"threshold", number(measure.threshold)}};
  }
  for (const HeadValues& head : table) {
    Json one = {{"layer", head.layer}, {"head", head.head}};
    for (const size_t place : shown) one[attn::heads::measures()[place].name] = number(head.values[place]);
    one["roles"] = attn::heads::roles(head);
    all["heads"].push_back(std::move(one));
  }
  return all.dump(2) + "\n";
}

struct Heads {
  ModelOptions model;
  std::string text, file, csv, json;
  std::vector<std::string> named;
  bool induction = false;
  int64_t length = 0, copies = 2, sequences = 10, most = 0;
  uint64_t seed = 0;

  /// Lines that are not empty, at most `most`.
  std::vector<HeadsText> read(const HeadsReader& reader) const {
    std::vector<HeadsText> texts;
    int64_t cut = 0;
    const auto add = [&](const std::string& line) {
      if (HeadsText one = reader.of_text(line, cut); !line.empty() && !one.ids.empty()) texts.push_back(std::move(one));
    };
    if (file.empty()) {
      add(text);
    } else {
      Lines lines(file);
      for (std::string line; (!most || static_cast<int64_t>(texts.size()) < most) && lines.next(line);) add(line);
    }
    if (texts.empty()) throw UsageError((file.empty() ? "--text" : file) + " is empty");
    if (cut) say("attn: {} of {} texts were cut to {} tokens\n", cut, texts.size(), reader.context());
    return texts;
  }

  /// Random tokens that repeat.
  std::vector<HeadsText> repeats(const HeadsReader& reader) const {
    const std::vector<int64_t> usable = reader.usable();
    const auto words = static_cast<int64_t>(usable.size());
    const int64_t fitting = std::min((reader.context() - reader.marks()) / copies, words);
    if (length > fitting || fitting < 1)
      throw UsageError(
          fmt::format("--length {} is too long: {} tokens a copy are possible with a context of {} and a "
                      "vocabulary of {}",
                      length, fitting, reader.context(), words));
    std::vector<HeadsText> texts;
    for (int64_t n = 0; n < sequences; ++n) {
      std::vector<int64_t> ids = attn::heads::repeated_tokens(length ? length : std::min<int64_t>(50, fitting), copies,
                                                              0, words, -1, seed + static_cast<uint64_t>(n));
      for (int64_t& id : ids) id = usable[static_cast<size_t>(id)];
      texts.push_back(reader.of_ids(ids));
    }
    return texts;
  }

  void check() const {
    const int sources = !text.empty() + !file.empty() + induction;
    if (sources != 1) throw UsageError("give one of --text TEXT, --file FILE and --induction");
    if (csv == "-" && json == "-") throw UsageError("only one of --csv and --json can be standard output");
  }

  void run() const {
    check();
    const attn::models::Loaded loaded = model.load();
    const HeadsReader reader(loaded);
    const std::vector<HeadsText> texts = induction ? repeats(reader) : read(reader);
    catch_signals();
    Meter meter("texts", static_cast<int64_t>(texts.size()));
    attn::heads::Measures measures;
    for (const HeadsText& one : texts) {
      if (signal_seen()) break;
      reader.look(one, [&](const auto& layers, const attn::heads::Texts& tokens) { measures.add(layers, tokens); });
      meter.show(measures.texts());
    }
    meter.hide();
    if (measures.texts() == 0) throw attn::Error("heads", {"stopped before there was a result"});
    if (signal_seen()) say("attn: stopped: of {} of {} texts\n", measures.texts(), texts.size());
    write(measures);
  }

  void write(const attn::heads::Measures& measures) const {
    const HeadTable table = measures.table();
    const std::vector<size_t> files = places_of(named.empty() ? measure_names() : named);
    if (!csv.empty()) attn::io::write_output(csv, heads_csv(table, files));
    if (!json.empty()) attn::io::write_output(json, heads_json(table, files, measures.texts()));
    if (csv.empty() && json.empty()) show(heads_table(table, places_of(named.empty() ? kShown : named)));
  }
};

}  // namespace

void add_heads(CLI::App& app) {
  CLI::App* command = app.add_subcommand("heads", "what each head does on texts, measure by measure");
  command->footer("Example:\n  attn heads all-MiniLM-L6-v2 --file sentences.txt --csv heads.csv");
  auto run = std::make_shared<Heads>();
  run->model.add(*command);
  command->add_option("--text", run->text, "one text");
  command->add_option("--file", run->file, "texts, one a line; - is standard input")->type_name("FILE");
  command->add_option("--most", run->most, "texts of the file; 0 = all")->check(whole(0));
  command->add_flag("--induction", run->induction, "random tokens that repeat, in place of texts");
  command->add_option("--length", run->length, "tokens of a copy; 0 = 50, or as many as the context takes")
      ->check(whole(0, 1 << 24));
  command->add_option("--copies", run->copies, "of these tokens in a row")->check(whole(2, 1 << 16));
  command->add_option("--sequences", run->sequences, "such texts")->check(whole(1, 1 << 24));
  command->add_option("--seed", run->seed, "of the random tokens");
  command->add_option("--measures", run->named, "only these: previous,induction (terminal: the usual ones; files: all)")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->check(one_of(measure_names()));
  command->add_option("--csv", run->csv, "write the table; - is standard output")->type_name("FILE");
  command->add_option("--json", run->json, "write it with definitions and sources; - is standard output")
      ->type_name("FILE");
  command->callback([=] { run->run(); });
}

}  // namespace cli
