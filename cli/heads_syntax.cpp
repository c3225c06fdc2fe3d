#include "heads_syntax.h"

#include <fmt/core.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "output.h"
#include "progress.h"
#include "signals.h"

namespace cli {
namespace {

using attn::heads::Relation;

/// An attention head by its index, and which of its rows decides.
struct Direction {
  const char* name;
  std::vector<double> Relation::*accuracy;
};
constexpr Direction kDirections[] = {{"to head", &Relation::to_head}, {"to dependent", &Relation::to_dependent}};

std::string syntax_table(const std::vector<Relation>& relations, const std::vector<std::string>& names) {
  std::string text = fmt::format("{:<16}{:>7}{:>10}{:>8}  {:>10}  {}\n", "relation", "arcs", "baseline", "offset",
                                 "best head", "looks from the word of the arc");
  for (const Relation& relation : relations) {
    const auto best = [&](const Direction& direction) {
      const std::vector<double>& all = relation.*direction.accuracy;
      return std::max_element(all.begin(), all.end()) - all.begin();
    };
    const Direction* which = &kDirections[0];
    for (const Direction& each : kDirections)
      if ((relation.*each.accuracy)[best(each)] > (relation.*which->accuracy)[best(*which)]) which = &each;
    text += fmt::format("{:<16}{:>7}{:>10.3f}{:>8}  {:>10.3f}  {} {}\n", relation.name, relation.arcs,
                        relation.baseline, relation.offset, (relation.*which->accuracy)[best(*which)],
                        names[static_cast<size_t>(best(*which))], which->name);
  }
  return text;
}

std::string syntax_csv(const std::vector<Relation>& relations, const std::vector<std::string>& names) {
  std::string text = "relation,arcs,offset,baseline,head,to_head,to_dependent\n";
  for (const Relation& relation : relations)
    for (size_t head = 0; head < names.size(); ++head)
      text += fmt::format("{},{},{},{:.9g},{},{:.9g},{:.9g}\n", quoted(relation.name), relation.arcs, relation.offset,
                          relation.baseline, names[head], relation.to_head[head], relation.to_dependent[head]);
  return text;
}

std::string syntax_json(const std::vector<Relation>& relations, const std::vector<std::string>& names,
                        int64_t sentences) {
  nlohmann::ordered_json all = {{"sentences", sentences}, {"heads", names}, {"relations", nlohmann::json::array()}};
  for (const Relation& relation : relations)
    all["relations"].push_back({{"name", relation.name},
                                {"arcs", relation.arcs},
                                {"offset", relation.offset},
                                {"baseline", relation.baseline},
                                {"to_head", relation.to_head},
                                {"to_dependent", relation.to_dependent}});
  return all.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

}  // namespace

std::vector<std::string> head_names(const std::vector<int64_t>& heads_of_layer) {
  std::vector<std::string> names;
  for (size_t layer = 0; layer < heads_of_layer.size(); ++layer)
    for (int64_t head = 0; head < heads_of_layer[layer]; ++head) names.push_back(fmt::format("{}.{}", layer, head));
  return names;
}

void heads_syntax(const HeadsReader& reader, const std::string& conllu, const std::string& csv,
                  const std::string& json) {
  const std::vector<attn::heads::Sentence> sentences = attn::heads::read_conllu(attn::io::read_input(conllu), conllu);
  attn::heads::Syntax syntax;
  std::vector<int64_t> heads_of_layer;
  int64_t done = 0, passed = 0;
  catch_signals();
  Meter meter("sentences", static_cast<int64_t>(sentences.size()));
  for (const attn::heads::Sentence& sentence : sentences) {
    if (signal_seen()) break;
    if (const auto tokens = reader.of_words(sentence.words)) {
      reader.look(tokens->first, [&](const std::vector<attn::heads::Layer>& layers, const attn::heads::Texts&) {
        syntax.add(layers, sentence, tokens->second);
        heads_of_layer.clear();
        for (const attn::heads::Layer& layer : layers) heads_of_layer.push_back(layer.q.size[1]);
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
  const std::vector<std::string> names = head_names(heads_of_layer);
  if (!csv.empty()) attn::io::write_output(csv, syntax_csv(relations, names));
  if (!json.empty()) attn::io::write_output(json, syntax_json(relations, names, done));
  if (csv.empty() && json.empty()) show(syntax_table(relations, names));
}

}  // namespace cli
