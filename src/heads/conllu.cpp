#include "heads/conllu.h"

#include <algorithm>
#include <charconv>

#include "attn/core_lines.h"

namespace attn::heads {
namespace {

constexpr size_t kColumns = 10, kMostReasons = 20;

/// Line after line to sentences; what is wrong is collected.
class ConlluReader {
 public:
  explicit ConlluReader(ConlluReasons& reasons) : reasons_(reasons) {}

  ConlluFile read(std::string_view text) {
    LineCutter lines(reasons_.source());
    lines.feed(text);
    lines.finish();
    while (const std::optional<std::string_view> line = lines.next()) {
      line_ = lines.number();
      if (line->empty()) finish();
      else if (line->front() == '#') comment(*line);
      else add(*line);
    }
    finish();
    reasons_.done();
    if (file_.sentences.empty()) throw Error("conllu", {reasons_.source() + " has no sentence"});
    return std::move(file_);
  }

 private:
  void comment(std::string_view line) {
    constexpr std::string_view kDocument = "# newdoc", kEntity = "# global.Entity = ";
    if (line.starts_with(kDocument)) read_.begins_document = true;
    if (line.starts_with(kEntity)) file_.entity_fields = line.substr(kEntity.size());
  }

  void add(std::string_view line) {
    Sentence& sentence = read_.sentence;
    if (sentence.line == 0) sentence.line = line_;
    const std::vector<std::string_view> fields = fields_of(line, '\t');
    if (fields.size() != kColumns)
      return reasons_.wrong(
          line_, "the line has " + std::to_string(fields.size()) + " columns, must have 10 with tabs between them");
    const std::string_view id = fields[0];
    if (const size_t mark = id.find_first_of("-."); mark != std::string_view::npos) {
      if (!whole_number(id.substr(0, mark)) || !whole_number(id.substr(mark + 1)))
        reasons_.wrong(line_,
                       "the ID is " + ConlluReasons::quoted(id) + ", must be a number, a range as 1-2, or as 1.1");
      if (id[mark] == '.') add_node(-1, fields);  // a word that is not written; the other is a range of words
      return;
    }
    const auto expected = static_cast<int64_t>(sentence.words.size()) + 1;
    if (whole_number(id) != expected)
      reasons_.wrong(line_, "the ID is " + ConlluReasons::quoted(id) + ", must be " + std::to_string(expected));
    if (fields[1].empty()) reasons_.wrong(line_, "FORM is missing");
    if (fields[7].empty() || fields[7] == "_") reasons_.wrong(line_, "DEPREL is missing");
    const std::optional<int64_t> governor = whole_number(fields[6]);
    if (!governor)
      reasons_.wrong(line_, "HEAD is " + ConlluReasons::quoted(fields[6]) + ", must be the ID of a word, or 0");
    if (governor == expected) reasons_.wrong(line_, "the word is its own HEAD");
    sentence.words.emplace_back(fields[1]);
    sentence.governors.push_back(governor.value_or(0) - 1);
    sentence.relations.emplace_back(fields[7]);
    add_node(expected - 1, fields);
  }

  void add_node(int64_t word, const std::vector<std::string_view>& fields) {
    read_.nodes.push_back({word, std::string(fields[3]), std::string(fields[9]), line_});
  }

  void finish() {
    const Sentence& sentence = read_.sentence;
    const auto count = static_cast<int64_t>(sentence.words.size());
    for (const ConlluNode& node : read_.nodes)
      if (node.word >= 0 && sentence.governors[static_cast<size_t>(node.word)] >= count)
        reasons_.wrong(node.line, "HEAD is " + std::to_string(sentence.governors[static_cast<size_t>(node.word)] + 1) +
                                      ", must be at most " + std::to_string(count) + ", the number of words");
    if (count > 0) file_.sentences.push_back(std::move(read_));
    else if (sentence.line == 0) return;  // comments between empty lines are of what follows
    read_ = {};
  }

  ConlluReasons& reasons_;
  ConlluFile file_;
  ConlluSentence read_;
  int64_t line_ = 0;
};

}  // namespace

void ConlluReasons::wrong(int64_t line, const std::string& reason) {
  if (reasons_.size() == kMostReasons) reasons_.push_back("and more");
  if (reasons_.size() < kMostReasons) reasons_.push_back(source_ + ":" + std::to_string(line) + ": " + reason);
}

void ConlluReasons::done() const {
  if (!reasons_.empty()) throw Error("conllu", reasons_);
}

std::string ConlluReasons::quoted(std::string_view text) {
  std::string shown(text.substr(0, 40));
  std::replace_if(
      shown.begin(), shown.end(), [](char c) { return c < 32 || c >= 127; }, '?');
  return "'" + shown + "'";
}

std::optional<int64_t> whole_number(std::string_view text) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || text.empty() || value < 0) return {};
  return value;
}

std::vector<std::string_view> fields_of(std::string_view line, char separator) {
  std::vector<std::string_view> fields;
  for (size_t begin = 0; begin <= line.size();) {
    const size_t end = std::min(line.find(separator, begin), line.size());
    fields.push_back(line.substr(begin, end - begin));
    begin = end + 1;
  }
  return fields;
}

ConlluFile read_conllu_file(std::string_view text, ConlluReasons& reasons) { return ConlluReader(reasons).read(text); }

std::vector<Sentence> read_conllu(std::string_view text, const std::string& source) {
  ConlluReasons reasons(source);
  std::vector<Sentence> sentences;
  for (ConlluSentence& one : read_conllu_file(text, reasons).sentences) sentences.push_back(std::move(one.sentence));
  return sentences;
}

}  // namespace attn::heads
