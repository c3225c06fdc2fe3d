#include "heads_coreference.h"

#include <fmt/core.h>

#include <algorithm>

#include "output.h"
#include "progress.h"
#include "signals.h"
#include "table.h"

namespace cli {
namespace {

using attn::heads::Document;
using attn::heads::MentionKind;

/// The sentences first .. end - 1 as a document of their own.
Document part_of(const Document& document, size_t first, size_t end) {
  const int64_t begin = first > 0 ? document.ends[first - 1] : 0, stop = document.ends[end - 1];
  Document part{.words = {document.words.begin() + begin, document.words.begin() + stop}, .line = document.line};
  for (attn::heads::Mention mention : document.mentions)
    if (mention.word >= begin && mention.word < stop) {
      mention.word -= begin;
      part.mentions.push_back(std::move(mention));
    }
  return part;
}

/// A part of a document that a model reads at once, and its tokens.
struct Reading {
  Document part;
  std::pair<HeadsText, std::vector<int64_t>> tokens;
};

/// As many whole sentences at a time as the context takes; `passed` counts those that do not fit alone.
std::vector<Reading> readings_of(const HeadsReader& reader, const Document& document, int64_t& passed) {
  std::vector<Reading> readings;
  for (size_t first = 0; first < document.ends.size();) {
    size_t end = first;
    for (size_t next = first + 1; next <= document.ends.size(); ++next) {
      Document part = part_of(document, first, next);
      auto tokens = reader.of_words(part.words);
      if (!tokens) break;
      if (end == first) readings.emplace_back();
      readings.back() = {std::move(part), std::move(*tokens)};
      end = next;
    }
    if (end == first) ++passed;
    first = std::max(end, first + 1);
  }
  return readings;
}

/// The best head of each kind.
Table coreference_table(const std::vector<MentionKind>& kinds, const std::vector<std::string>& names) {
  Table table{{{"mentions", "{:<10}"},
               {"number", "{:>9}"},
               {"nearest", "{:>10.3f}"},
               {"baseline", "{:>10.3f}"},
               {"offset", "{:>8}"},
               {"best head", "  {:>10.3f}"},
               {"", "  {}"}}};
  for (const MentionKind& kind : kinds) {
    const auto best = std::max_element(kind.to_antecedent.begin(), kind.to_antecedent.end());
    table.rows.push_back({kind.name, kind.mentions, kind.nearest, kind.baseline, kind.offset, *best,
                          names[static_cast<size_t>(best - kind.to_antecedent.begin())]});
  }
  return table;
}

/// Every head of each kind.
Table coreference_heads(const std::vector<MentionKind>& kinds, const std::vector<std::string>& names) {
  Table table{
      {{"mentions"}, {"number"}, {"nearest"}, {"offset"}, {"baseline"}, {"head", "", "", "{}"}, {"to_antecedent"}}};
  for (const MentionKind& kind : kinds)
    for (size_t head = 0; head < names.size(); ++head)
      table.rows.push_back(
          {kind.name, kind.mentions, kind.nearest, kind.offset, kind.baseline, names[head], kind.to_antecedent[head]});
  return table;
}

std::string coreference_json(const std::vector<MentionKind>& kinds, const std::vector<std::string>& names,
                             int64_t texts) {
  Table::Cell all = {{"texts", texts}, {"heads", names}, {"mentions", Table::Cell::array()}};
  for (const MentionKind& kind : kinds)
    all["mentions"].push_back({{"name", kind.name},
                               {"number", kind.mentions},
                               {"nearest", kind.nearest},
                               {"offset", kind.offset},
                               {"baseline", kind.baseline},
                               {"to_antecedent", kind.to_antecedent}});
  return indented(all);
}

}  // namespace

void heads_coreference(const HeadsReader& reader, const std::string& file, const std::string& csv,
                       const std::string& json) {
  const std::vector<Document> documents = attn::heads::read_coreference(attn::io::read_input(file), file);
  attn::heads::Coreference counts;
  std::vector<std::string> names;
  int64_t texts = 0, passed = 0, done = 0;
  catch_signals();
  Meter meter("documents", static_cast<int64_t>(documents.size()));
  for (const Document& document : documents) {
    if (signal_seen()) break;
    for (const Reading& reading : readings_of(reader, document, passed)) {
      reader.look(reading.tokens.first,
                  [&](const std::vector<attn::RecordedAttention>& layers, const attn::heads::Texts&) {
                    counts.add(layers, reading.part, reading.tokens.second);
                    names = head_names(layers);
                  });
      ++texts;
    }
    meter.show(++done);
  }
  meter.hide();
  if (signal_seen()) say("attn: stopped: of {} of {} documents\n", done, documents.size());
  if (passed)
    say("attn: {} sentences were passed over: longer than {} tokens, or words that do not begin with a token\n", passed,
        reader.context());
  if (texts > done)
    say("attn: {} documents were read in {} parts: antecedents in the part before do not count\n", done, texts);
  const std::vector<MentionKind> kinds = counts.kinds();
  if (!csv.empty()) attn::io::write_output(csv, coreference_heads(kinds, names).csv());
  if (!json.empty()) attn::io::write_output(json, coreference_json(kinds, names, texts));
  if (csv.empty() && json.empty()) show(coreference_table(kinds, names).text());
}

}  // namespace cli
