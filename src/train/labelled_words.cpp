// Files of words with labels.
#include <algorithm>
#include <set>

#include "attn/core_lines.h"
#include "attn/io.h"
#include "attn/train_data.h"
#include "io/json.h"
#include "train/columns.h"
#include "train/labels.h"

namespace attn::train {
namespace {

void add_word(LabelledWords& text, std::string word, std::string label, const std::string& path, int64_t line) {
  if (word.empty()) fail_at(path, line, "the word is empty");
  if (!models::is_label(label))
    fail_at(path, line, "the label must be 1 to 256 bytes of printable UTF-8, not " + io::in_quotes(label));
  if (text.words.empty()) text.line = line;
  text.words.push_back(std::move(word));
  text.labels.push_back(std::move(label));
}

/// Apart by tabs, or by spaces where the line has no tab.
std::vector<std::string> fields_of(std::string_view line) {
  const char separator = line.find('\t') != std::string_view::npos ? '\t' : ' ';
  std::vector<std::string> fields;
  for (size_t begin = 0; begin <= line.size();) {
    const size_t end = std::min(line.find(separator, begin), line.size());
    if (end > begin || separator == '\t') fields.emplace_back(line.substr(begin, end - begin));
    begin = end + 1;
  }
  return fields;
}

constexpr size_t kConlluColumns = 10;

/// A line of CoNLL-U or of CoNLL-2003.
void add_line(LabelledWords& text, std::string_view line, bool conllu, const std::string& path, int64_t number) {
  std::vector<std::string> fields = fields_of(line);
  if (conllu) {
    if (line.starts_with('#')) return;
    if (fields.size() != kConlluColumns)
      fail_at(path, number, "has " + std::to_string(fields.size()) + " columns, must have 10 with tabs between them");
    if (fields[0].find_first_of("-.") != std::string::npos) return;  // a range of words, or one that is not written
    return add_word(text, fields[1], fields[3], path, number);
  }
  if (fields.size() < 2) fail_at(path, number, "must be a word, a tab or a space, and its label");
  if (fields[0] == "-DOCSTART-") return;
  add_word(text, fields.front(), fields.back(), path, number);
}

std::vector<LabelledWords> by_lines(std::string_view content, const std::string& path) {
  std::vector<LabelledWords> rows(1);
  const bool conllu = path.ends_with(".conllu");
  LineCutter lines(path == "-" ? "standard input" : path);
  lines.feed(content);
  lines.finish();
  while (const std::optional<std::string_view> line = lines.next()) {
    if (!line->empty()) add_line(rows.back(), *line, conllu, path, lines.number());
    else if (!rows.back().words.empty()) rows.emplace_back();
  }
  if (rows.back().words.empty()) rows.pop_back();
  return rows;
}

bool is_texts(const io::Json& list) {
  return list.is_array() &&
         std::all_of(list.begin(), list.end(), [](const io::Json& each) { return each.is_string(); });
}

std::vector<LabelledWords> by_objects(std::string_view content, const std::string& path) {
  std::vector<LabelledWords> rows;
  LineCutter lines(path);
  lines.feed(content);
  lines.finish();
  while (const std::optional<std::string_view> line = lines.next()) {
    if (line->empty()) continue;
    const int64_t number = lines.number();
    const io::Json object = io::parse_json("data", path + ", line " + std::to_string(number), *line);
    const auto part = [&](const char* name) {
      return object.is_object() ? object.value(name, io::Json()) : io::Json();
    };
    const io::Json words = part("tokens"), tags = part("tags");
    if (!is_texts(words) || !is_texts(tags) || words.size() != tags.size() || words.empty())
      fail_at(path, number, "must be an object {\"tokens\": [...], \"tags\": [...]}, two lists of as many texts");
    rows.emplace_back();
    for (size_t n = 0; n < words.size(); ++n) add_word(rows.back(), words[n], tags[n], path, number);
  }
  return rows;
}

}  // namespace

std::vector<LabelledWords> read_labelled_words(const std::string& path) {
  const std::string content = io::read_input(path);
  std::vector<LabelledWords> rows = path.ends_with(".jsonl") ? by_objects(content, path) : by_lines(content, path);
  if (rows.empty()) throw Error("data", {(path == "-" ? "standard input" : path) + " has no words"});
  return rows;
}

std::vector<std::string> classes_of(std::span<const LabelledWords> rows) {
  std::set<std::string> names;
  for (const LabelledWords& row : rows) names.insert(row.labels.begin(), row.labels.end());
  std::vector<std::string> classes(names.begin(), names.end());
  std::stable_partition(classes.begin(), classes.end(), [](const std::string& name) { return name == "O"; });
  return classes;
}

std::vector<Labelled> encode_labelled_words(std::span<const LabelledWords> rows, const text::Tokenizer& tokenizer,
                                            std::span<const std::string> classes, const EncodingOptions& options) {
  const ClassIndex index(classes);
  std::vector<Labelled> result;
  for (const LabelledWords& row : rows) {
    text::EncodedWords text;
    try {
      text = text::encode_words(tokenizer, row.words, {.max_length = options.max_length});
    } catch (const Error& error) {
      fail_at(options.source, row.line, error.reasons().front());
    }
    Labelled labelled{.tokens = std::move(text.ids),
                      .token_labels = std::vector<int64_t>(text.word_of.size(), ops::kIgnoreIndex),
                      .truncated = text.truncated};
    int64_t last = -1;
    for (size_t n = 0; n < text.word_of.size(); ++n)
      if (const int64_t word = text.word_of[n]; word >= 0 && word != last) {
        labelled.token_labels[n] = index.of(row.labels[static_cast<size_t>(word)], options.source, row.line);
        last = word;
      }
    if (last < 0) fail_at(options.source, row.line, "no word has a token");
    result.push_back(std::move(labelled));
  }
  return result;
}

}  // namespace attn::train
