#include "heads.h"

#include <nanobind/stl/string.h>

#include "attn/heads.h"
#include "recorded.h"

namespace bindings {
namespace {

using Row = std::tuple<int64_t, int64_t, std::vector<double>>;  // layer, head, values

/// Of Measures and of Distances.
template <class Sums>
void add(Sums& sums, const std::vector<GivenLayer>& given, nb::handle ids, nb::handle kinds) {
  Arguments in("heads");
  const std::vector<attn::RecordedAttention> layers = layers_of(in, given);
  const attn::heads::Texts texts{in.input<2>("ids", ids), in.input<2>("kinds", kinds)};
  in.done();
  const nb::gil_scoped_release unlocked;
  sums.add(layers, texts);
}

std::vector<double> rollout(const std::vector<GivenLayer>& given, int64_t query) {
  Arguments in("rollout");
  const std::vector<attn::RecordedAttention> layers = layers_of(in, given);
  in.done();
  const nb::gil_scoped_release unlocked;
  return attn::heads::rollout(layers, query);
}

std::tuple<std::vector<double>, double> flow(const std::vector<GivenLayer>& given, int64_t query, double threshold) {
  Arguments in("flow");
  const std::vector<attn::RecordedAttention> layers = layers_of(in, given);
  in.done();
  const nb::gil_scoped_release unlocked;
  double missing = 0;
  std::vector<double> flows = attn::heads::flow(layers, query, threshold, &missing);
  return {std::move(flows), missing};
}

std::vector<Row> table(const attn::heads::Measures& measures) {
  std::vector<Row> rows;
  for (attn::heads::HeadValues& head : measures.table()) rows.emplace_back(head.layer, head.head, head.values);
  return rows;
}

using GivenSentence = std::tuple<std::vector<std::string>, std::vector<int64_t>, std::vector<std::string>>;

std::vector<GivenSentence> read_conllu(const std::string& text, const std::string& source) {
  std::vector<GivenSentence> sentences;
  for (attn::heads::Sentence& one : attn::heads::read_conllu(text, source))
    sentences.emplace_back(std::move(one.words), std::move(one.governors), std::move(one.relations));
  return sentences;
}

void add_sentence(attn::heads::Syntax& syntax, const std::vector<GivenLayer>& given, const GivenSentence& sentence,
                  const std::vector<int64_t>& word_of) {
  Arguments in("head_syntax");
  const std::vector<attn::RecordedAttention> layers = layers_of(in, given);
  in.done();
  const auto& [words, governors, relations] = sentence;
  const nb::gil_scoped_release unlocked;
  syntax.add(layers, {words, governors, relations}, word_of);
}

/// name, arcs, offset, baseline, to_governor, to_dependent
using GivenRelation = std::tuple<std::string, int64_t, int64_t, double, std::vector<double>, std::vector<double>>;
std::vector<GivenRelation> relations(const attn::heads::Syntax& syntax) {
  std::vector<GivenRelation> list;
  for (const attn::heads::Relation& one : syntax.relations())
    list.emplace_back(one.name, one.arcs, one.offset, one.baseline, one.to_governor, one.to_dependent);
  return list;
}

using GivenMention = std::tuple<int64_t, std::string, std::string>;  // word, entity, upos
using GivenDocument = std::tuple<std::vector<std::string>, std::vector<int64_t>, std::vector<GivenMention>>;

std::vector<GivenDocument> read_coreference(const std::string& text, const std::string& source) {
  std::vector<GivenDocument> documents;
  for (attn::heads::Document& one : attn::heads::read_coreference(text, source)) {
    std::vector<GivenMention> mentions;
    for (attn::heads::Mention& mention : one.mentions)
      mentions.emplace_back(mention.word, std::move(mention.entity), std::move(mention.upos));
    documents.emplace_back(std::move(one.words), std::move(one.ends), std::move(mentions));
  }
  return documents;
}

void add_document(attn::heads::Coreference& counts, const std::vector<GivenLayer>& given, const GivenDocument& document,
                  const std::vector<int64_t>& word_of) {
  Arguments in("head_coreference");
  const std::vector<attn::RecordedAttention> layers = layers_of(in, given);
  in.done();
  attn::heads::Document text{std::get<0>(document), std::get<1>(document), {}, 0};
  for (const auto& [word, entity, upos] : std::get<2>(document)) text.mentions.push_back({word, entity, upos});
  const nb::gil_scoped_release unlocked;
  counts.add(layers, text, word_of);
}

/// name, mentions, nearest, offset, baseline, to_antecedent
using GivenKind = std::tuple<std::string, int64_t, double, int64_t, double, std::vector<double>>;
std::vector<GivenKind> mention_kinds(const attn::heads::Coreference& counts) {
  std::vector<GivenKind> list;
  for (const attn::heads::MentionKind& one : counts.kinds())
    list.emplace_back(one.name, one.mentions, one.nearest, one.offset, one.baseline, one.to_antecedent);
  return list;
}

/// name, unit, definition, source, threshold
std::vector<std::tuple<std::string, std::string, std::string, std::string, double>> measure_list() {
  std::vector<std::tuple<std::string, std::string, std::string, std::string, double>> list;
  for (const attn::heads::Measure& m : attn::heads::measures())
    list.emplace_back(m.name, m.unit, m.definition, m.source, m.threshold);
  return list;
}

}  // namespace

void add_heads(nb::module_& m) {
  nb::class_<attn::heads::Measures>(m, "HeadMeasures")
      .def(nb::init<>())
      .def("add", &add<attn::heads::Measures>, nb::arg("layers"), nb::arg("ids").none(), nb::arg("kinds").none())
      .def("texts", &attn::heads::Measures::texts)
      .def("table", &table);
  nb::class_<attn::heads::Distances>(m, "HeadDistances")
      .def(nb::init<>())
      .def("add", &add<attn::heads::Distances>, nb::arg("layers"), nb::arg("ids").none(), nb::arg("kinds").none())
      .def("divergences", &attn::heads::Distances::divergences);
  nb::class_<attn::heads::Syntax>(m, "HeadSyntax")
      .def(nb::init<>())
      .def("add", &add_sentence)
      .def("relations", &relations);
  nb::class_<attn::heads::Coreference>(m, "HeadCoreference")
      .def(nb::init<>())
      .def("add", &add_document)
      .def("kinds", &mention_kinds);
  m.def("read_conllu", &read_conllu);
  m.def("read_coreference", &read_coreference);
  m.def("head_measures", &measure_list);
  m.def("scaled", [](const std::vector<double>& divergences) { return attn::heads::scaled(divergences); });
  m.def("clusters", [](const std::vector<double>& divergences, int64_t count) {
    return attn::heads::clusters(divergences, count);
  });
  m.def("rollout", &rollout);
  m.def("flow", &flow);
  m.def("repeated_tokens", &attn::heads::repeated_tokens, nb::arg("length"), nb::arg("copies"), nb::arg("lowest"),
        nb::arg("highest"), nb::arg("start"), nb::arg("seed"));
}

}  // namespace bindings
