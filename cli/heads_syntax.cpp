#include "heads_syntax.h"

#include <fmt/core.h>

#include <algorithm>

#include "output.h"
#include "progress.h"
#include "signals.h"
#include "table.h"

namespace cli {
namespace {

using attn::heads::Relation;

/// Whether a head finds the governor from the dependent, or the dependent from the governor.
struct Direction {
  const char* name;
  std::vector<double> Relation::*accuracy;
};
constexpr Direction kDirections[] = {{"to governor", &Relation::to_governor},
                                     {"to dependent", &Relation::to_dependent}};

/// The best head of each relation.
Table syntax_table(const std::vector<Relation>& relations, const std::vector<std::string>& names) {
  Table table{{{"relation", "{:<16}"},
               {"arcs", "{:>7}"},
               {"baseline", "{:>10.3f}"},
               {"offset", "{:>8}"},
               {"best head", "  {:>10.3f}"},
               {"looks from the word of the arc", "  {}"}}};
  for (const Relation& relation : relations) {
    const auto best = [&](const Direction& direction) {
      const std::vector<double>& all = relation.*direction.accuracy;
      return std::max_element(all.begin(), all.end()) - all.begin();
    };
    const Direction* which = &kDirections[0];
    for (const Direction& each : kDirections)
      if ((relation.*each.accuracy)[best(each)] > (relation.*which->accuracy)[best(*which)]) which = &each;
    table.rows.push_back({relation.name, relation.arcs, relation.baseline, relation.offset,
                          (relation.*which->accuracy)[best(*which)],
                          names[static_cast<size_t>(best(*which))] + " " + which->name});
  }
  return table;
}

/// Every head of each relation.
Table syntax_heads(const std::vector<Relation>& relations, const std::vector<std::string>& names) {
  Table table{
      {{"relation"}, {"arcs"}, {"offset"}, {"baseline"}, {"head", "", "", "{}"}, {"to_governor"}, {"to_dependent"}}};
  for (const Relation& relation : relations)
    for (size_t head = 0; head < names.size(); ++head)
      table.rows.push_back({relation.name, relation.arcs, relation.offset, relation.baseline, names[head],
                            relation.to_governor[head], relation.to_dependent[head]});
  return table;
}

std::string syntax_json(const std::vector<Relation>& relations, const std::vector<std::string>& names,
                        int64_t sentences) {
  Table::Cell all = {{"sentences", sentences}, {"heads", names}, {"relations", Table::Cell::array()}};
  for (const Relation& relation : relations)
    all["relations"].push_back({{"name", relation.name},
                                {"arcs", relation.arcs},
                                {"offset", relation.offset},
                                {"baseline", relation.baseline},
                                {"to_governor", relation.to_governor},
                                {"to_dependent", relation.to_dependent}});
  return indented(all);
}

}  // namespace

void heads_syntax(const HeadsReader& reader, const std::string& conllu, const std::string& csv,
                  const std::string& json) {
  const std::vector<attn::heads::Sentence> sentences = attn::heads::read_conllu(attn::io::read_input(conllu), conllu);
  attn::heads::Syntax syntax;
  std::vector<std::string> names;
  int64_t done = 0, passed = 0;
  catch_signals();
  Meter meter("sentences", static_cast<int64_t>(sentences.size()));
  for (const attn::heads::Sentence& sentence : sentences) {
    if (signal_seen()) break;
    if (const auto tokens = reader.of_words(sentence.words)) {
      reader.look(tokens->first, [&](const std::vector<attn::RecordedAttention>& layers, const attn::heads::Texts&) {
        syntax.add(layers, sentence, tokens->second);
        names = head_names(layers);
      });
      ++done;
    } else {
      ++passed;
    }
    meter.show(done + passed);
  }
  meter.hide();
  if (done + passed == 0) throw attn::Error("heads", {"stopped before there was a result"});
  if (signal_seen()) say("attn: stopped: of {} of {} sentences\n", done + passed, sentences.size());
  if (passed)
    say("attn: {} of {} sentences were passed over: longer than {} tokens, or words that do not begin with a token\n",
        passed, sentences.size(), reader.context());
  const std::vector<Relation> relations = syntax.relations();
  if (!csv.empty()) attn::io::write_output(csv, syntax_heads(relations, names).csv());
  if (!json.empty()) attn::io::write_output(json, syntax_json(relations, names, done));
  if (csv.empty() && json.empty()) show(syntax_table(relations, names).text());
}

}  // namespace cli
