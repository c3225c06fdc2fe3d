// attn heads: what the heads of a model do on texts, measure by measure.
#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <optional>

#include "commands.h"
#include "heads_coreference.h"
#include "heads_syntax.h"
#include "heads_texts.h"
#include "lines.h"
#include "model_flags.h"
#include "options.h"
#include "output.h"
#include "progress.h"
#include "signals.h"
#include "table.h"

namespace cli {
namespace {

using attn::heads::HeadValues;
using attn::heads::Measure;
using Json = Table::Cell;

/// A row a head: its measures and, where they are asked for, its cluster and its place among the heads.
struct HeadTable {
  std::vector<HeadValues> heads = {};
  std::vector<int64_t> cluster = {};
  std::vector<double> points = {};
  int64_t texts = 0;
};

// What the terminal has room for; files have all.
const std::vector<std::string> kShown = {"previous",    "next",      "self",     "first",      "separator",
                                         "punctuation", "entropy",   "distance", "confidence", "positional",
                                         "offset",      "duplicate", "induction"};

std::vector<std::string> measure_names() {
  std::vector<std::string> names;
  for (const Measure& measure : attn::heads::measures()) names.push_back(measure.name);
  return names;
}

/// What heads above a threshold do, after "12 of 72 heads".
constexpr std::pair<std::string_view, const char*> kPhrases[] = {
    {"previous", "attend{} to the previous token"}, {"next", "attend{} to the next token"},
    {"self", "attend{} to the token itself"},       {"first", "attend{} to the first token"},
    {"sink", "make{} a sink of the first token"},   {"start", "attend{} to what starts a text"},
    {"separator", "attend{} to separators"},        {"punctuation", "attend{} to punctuation"},
    {"entropy_relative", "attend{} broadly"},       {"positional", "attend{} at one offset"}};

/// "12 of 72 heads attend to the previous token, 1 attends to separators."
std::string summary(const HeadTable& table) {
  std::vector<std::string> parts;
  for (size_t m = 0; m < attn::heads::measures().size(); ++m) {
    const Measure& measure = attn::heads::measures()[m];
    const auto above = std::count_if(table.heads.begin(), table.heads.end(),
                                     [&](const HeadValues& head) { return head.values[m] > measure.threshold; });
    if (above == 0) continue;
    const auto* const phrase = std::find_if(std::begin(kPhrases), std::end(kPhrases),
                                            [&](const auto& each) { return each.first == measure.name; });
    const std::string what = phrase == std::end(kPhrases) ? "{}" + measure.name : phrase->second;
    parts.push_back(fmt::format("{}{} {}", above, parts.empty() ? fmt::format(" of {} heads", table.heads.size()) : "",
                                fmt::format(fmt::runtime(what), above == 1 ? "s" : "")));
  }
  if (parts.empty()) return fmt::format("None of {} heads is above a threshold.\n", table.heads.size());
  return joined(parts, ", ") + ".\n";
}

/// The places of these measures among all.
std::vector<size_t> places_of(const std::vector<std::string>& named) {
  const std::vector<std::string> all = measure_names();
  std::vector<size_t> places;
  for (const std::string& name : named)
    places.push_back(static_cast<size_t>(std::find(all.begin(), all.end(), name) - all.begin()));
  return places;
}

/// Where the heads are beside one another, each drawn as the number of its cluster, from 10 on as a letter.
std::string map_of(const HeadTable& table) {
  constexpr size_t kWide = 72, kHigh = 20;
  std::vector<std::string> lines(kHigh, std::string(kWide, ' '));
  const auto place = [&](size_t n, size_t axis, size_t cells) {
    double least = table.points[axis], most = least;
    for (size_t at = axis; at < table.points.size(); at += 2) {
      least = std::min(least, table.points[at]);
      most = std::max(most, table.points[at]);
    }
    const double share = most > least ? (table.points[2 * n + axis] - least) / (most - least) : 0.5;
    return static_cast<size_t>(std::lround(share * static_cast<double>(cells - 1)));
  };
  for (size_t n = 0; n < table.heads.size(); ++n) {
    const int64_t cluster = table.cluster[n];
    const char sign = cluster < 10   ? static_cast<char>('0' + cluster)
                      : cluster < 36 ? static_cast<char>('a' + cluster - 10)
                                     : '#';
    char& cell = lines[kHigh - 1 - place(n, 1, kHigh)][place(n, 0, kWide)];
    cell = cell == ' ' || cell == sign ? sign : '*';
  }
  const std::string frame = "+" + std::string(kWide, '-') + "+\n";
  return "\nx to the right, y up; each head is the number of its cluster, * several of different ones\n" + frame + "|" +
         joined(lines, "|\n|") + "|\n" + frame;
}

/// A row a head, with these measures. The commonest offset is a whole number of tokens.
Table heads_table(const HeadTable& table, const std::vector<size_t>& shown) {
  Table result{{{"layer", "{:>5}"}, {"head", "{:>6}"}}};
  const auto is_whole = [](const Measure& measure) { return measure.name == "offset"; };
  for (const size_t place : shown) {
    const Measure& measure = attn::heads::measures()[place];
    result.columns.push_back({measure.name, fmt::format("{{:>{}.{}f}}", std::max<size_t>(measure.name.size() + 2, 9),
                                                        is_whole(measure) ? 0 : 3)});
  }
  if (!table.cluster.empty())
    for (const Column& column : {Column{"cluster", "{:>9}"}, {"x", "{:>8.3f}"}, {"y", "{:>8.3f}"}})
      result.columns.push_back(column);
  result.columns.push_back({"roles", "  {}", "above its threshold"});
  for (size_t n = 0; n < table.heads.size(); ++n) {
    const HeadValues& head = table.heads[n];
    auto& row = result.rows.emplace_back(std::vector<Json>{head.layer, head.head});
    for (const size_t place : shown) {
      const double value = head.values[place];
      if (is_whole(attn::heads::measures()[place]) && !std::isnan(value)) row.emplace_back(static_cast<int64_t>(value));
      else row.emplace_back(value);
    }
    if (!table.cluster.empty()) row.insert(row.end(), {table.cluster[n], table.points[2 * n], table.points[2 * n + 1]});
    row.emplace_back(attn::heads::roles(head));
  }
  return result;
}

std::string heads_json(const HeadTable& table, const std::vector<size_t>& shown) {
  Json all = {{"texts", table.texts}, {"measures", Json::object()}};
  for (const size_t place : shown) {
    const Measure& measure = attn::heads::measures()[place];
    all["measures"][measure.name] = {{"unit", measure.unit},
                                     {"definition", measure.definition},
                                     {"source", measure.source},
                                     {"threshold", measure.threshold}};
  }
  all["heads"] = heads_table(table, shown).json();
  return indented(all);
}

/// What reaches one token of the last layer: rollout and flow of each token of the text.
struct Reach {
  std::vector<std::string> tokens = {};
  std::vector<double> rollout = {}, flow = {};
};

Table reach_table(const Reach& reach) {
  Table table{{{"token", "{:>5}"}, {"rollout", "{:>10.4f}"}, {"flow", "{:>10.4f}"}, {"text", "  {}"}}};
  for (size_t n = 0; n < reach.tokens.size(); ++n)
    table.rows.push_back({n, reach.rollout[n], reach.flow[n], reach.tokens[n]});
  return table;
}

std::string reach_json(const Reach& reach) {
  return indented({{"tokens", reach.tokens}, {"rollout", reach.rollout}, {"flow", reach.flow}});
}

struct Heads {
  ModelOptions model;
  std::string text, file, conllu, coreference, csv, json;
  std::vector<std::string> named;
  ContextOption context;
  bool induction = false;
  int64_t length = 0, copies = 2, sequences = 10, most = 0, clusters = 0;
  std::optional<int64_t> reach;
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
      for (std::string line; (!most || static_cast<int64_t>(texts.size()) < most) && lines.next(line);) try {
          add(line);
        } catch (const attn::Error& error) {
          throw attn::Error("heads", {lines.where() + ": " + error.reasons().front()});
        }
    }
    if (texts.empty()) throw UsageError((file.empty() ? "--text" : file) + " is empty");
    ContextOption::say_truncated(cut, std::ssize(texts), reader.context(), ContextOption::larger(reader.config()));
    return texts;
  }

  /// Random tokens that repeat.
  std::vector<HeadsText> repeats(const HeadsReader& reader) const {
    const std::vector<int64_t> usable = reader.usable();
    const auto words = static_cast<int64_t>(usable.size());
    const int64_t fitting = std::min((reader.context() - reader.marks()) / copies, words);
    if (length > fitting || fitting < 1)
      throw UsageError(
          fmt::format("--length is {}, must be at most {} for each copy with a context of {} and a vocabulary "
                      "of {}",
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
    const int sources = !text.empty() + !file.empty() + !conllu.empty() + !coreference.empty() + induction;
    if (sources != 1)
      throw UsageError(
          "give one of --text TEXT that is not empty, --file FILE, --conllu FILE, --coreference FILE and --induction");
    if (csv == "-" && json == "-") throw UsageError("only one of --csv and --json can be standard output");
    if (reach && text.empty()) throw UsageError("--reach needs one text: give --text TEXT");
    if (clusters && (reach || !(conllu + coreference).empty()))
      throw UsageError("--clusters is for the table of measures, not for --reach, --conllu or --coreference");
  }

  void run() const {
    check();
    const attn::models::Loaded loaded = model.load(false);
    const HeadsReader reader(loaded, context);
    if (!conllu.empty()) heads_syntax(reader, conllu, csv, json);
    else if (!coreference.empty()) heads_coreference(reader, coreference, csv, json);
    else if (reach) show_reach(reader);
    else show_measures(reader, induction ? repeats(reader) : read(reader));
  }

  void show_reach(const HeadsReader& reader) const {
    const HeadsText one = read(reader).front();
    Reach found;
    reader.look(one, [&](const std::vector<attn::RecordedAttention>& layers, const attn::heads::Texts&) {
      found.rollout = attn::heads::rollout(layers, *reach);
      found.flow = attn::heads::flow(layers, *reach);
    });
    for (const int64_t id : one.ids) found.tokens.push_back(reader.tokenizer().label(id));
    if (!csv.empty()) attn::io::write_output(csv, reach_table(found).csv());
    if (!json.empty()) attn::io::write_output(json, reach_json(found));
    if (csv.empty() && json.empty()) show(reach_table(found).text());
  }

  void show_measures(const HeadsReader& reader, const std::vector<HeadsText>& texts) const {
    catch_signals();
    Meter meter("texts", static_cast<int64_t>(texts.size()));
    attn::heads::Measures measures;
    attn::heads::Distances distances;
    for (const HeadsText& one : texts) {
      if (signal_seen()) break;
      reader.look(one, [&](const std::vector<attn::RecordedAttention>& layers, const attn::heads::Texts& tokens) {
        measures.add(layers, tokens);
        if (clusters) distances.add(layers, tokens);
      });
      meter.show(measures.texts());
    }
    meter.hide();
    if (measures.texts() == 0) throw attn::Error("heads", {"stopped before there was a result"});
    if (signal_seen()) say("attn: stopped: of {} of {} texts\n", measures.texts(), texts.size());
    HeadTable table{.heads = measures.table(), .texts = measures.texts()};
    if (clusters) {
      const std::vector<double> divergences = distances.divergences();
      table.cluster =
          attn::heads::clusters(divergences, std::min<int64_t>(clusters, static_cast<int64_t>(table.heads.size())));
      table.points = attn::heads::scaled(divergences);
    }
    const std::vector<size_t> files = places_of(named.empty() ? measure_names() : named);
    if (!csv.empty()) attn::io::write_output(csv, heads_table(table, files).csv());
    if (!json.empty()) attn::io::write_output(json, heads_json(table, files));
    if (csv.empty() && json.empty())
      show(heads_table(table, places_of(named.empty() ? kShown : named)).text() + summary(table) +
           (table.cluster.empty() ? "" : map_of(table)));
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
  run->context.add(*command);
  command->add_flag("--induction", run->induction, "random tokens that repeat, in place of texts");
  command->add_option("--length", run->length, "tokens of a copy; 0 = 50, or as many as the context takes")
      ->check(whole(0, 1 << 24));
  command->add_option("--copies", run->copies, "copies of the random tokens in each text")->check(whole(2, 1 << 16));
  command->add_option("--sequences", run->sequences, "number of random texts")->check(whole(1, 1 << 24));
  command->add_option("--seed", run->seed, "seed of the random tokens");
  command
      ->add_option("--conllu", run->conllu,
                   "sentences with dependency arcs: of each relation the share that each head finds")
      ->type_name("FILE");
  command
      ->add_option(
          "--coreference", run->coreference,
          "documents with entities, CoNLL-U as CorefUD has it: of mentions the share whose antecedent each head"
          " finds")
      ->type_name("FILE");
  command->add_option("--clusters", run->clusters, "so many groups of heads that attend alike, and a map of them")
      ->check(whole(0, 1 << 16));
  command
      ->add_option("--reach", run->reach,
                   "what of the text reaches this token through all layers, from 0: attention rollout and flow")
      ->check(whole(0));
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
