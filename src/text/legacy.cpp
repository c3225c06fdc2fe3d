// The vocabulary files that are older than tokenizer.json. Each is converted to the tokenizer.json with the same
// meaning.
#include "attn/core.h"
#include "attn/core_lines.h"
#include "io/json.h"
#include "text/pipeline.h"
#include "text/tokenizer_config.h"
#include "text/tokenizers.h"
#include "text/unicode.h"

namespace attn::text {
namespace {

std::string_view without_trailing_spaces(std::string_view line) {
  while (!line.empty()) {
    size_t begin = line.size() - 1, at;
    while (begin > 0 && (static_cast<uint8_t>(line[begin]) & 0xC0) == 0x80) --begin;
    if (at = begin; !is_space(next_character(line, at))) break;
    line = line.substr(0, begin);
  }
  return line;
}

/// A byte order mark is a part of the first token, as in the package `tokenizers`.
LineCutter lines_of(std::string_view text, const std::string& source) {
  LineCutter lines(source, LineCutter::ByteOrderMark::keep);
  lines.feed(text);
  lines.finish();
  return lines;
}

}  // namespace

io::Json read_merges(std::string_view merges, const std::string& source) {
  io::Json list = io::Json::array();
  LineCutter lines = lines_of(merges, source);
  while (const auto line = lines.next()) {
    if (line->empty() || line->starts_with("#version")) continue;
    const size_t space = line->find(' ');
    if (space == std::string_view::npos || line->find(' ', space + 1) != std::string_view::npos)
      throw Error("load_gpt2", {lines.where() + ": the merge is " + io::in_quotes(*line) +
                                ", must be two tokens with one space between them"});
    list.push_back({line->substr(0, space), line->substr(space + 1)});
  }
  return list;
}

/// Of two equal lines the later gives the id.
io::Json read_vocabulary_lines(std::string_view vocab_txt, const std::string& source) {
  io::Json vocab = io::Json::object();
  LineCutter lines = lines_of(vocab_txt, source);
  while (const auto line = lines.next()) vocab[std::string(without_trailing_spaces(*line))] = lines.number() - 1;
  return vocab;
}

std::unique_ptr<Tokenizer> load_gpt2(std::string_view encoder_json, std::string_view merges,
                                     const std::string& source) {
  io::Json list = read_merges(merges, source);
  io::Json vocab = io::parse_json("load_gpt2", source, encoder_json), added = io::Json::array();
  if (vocab.is_object() && vocab.contains("<|endoftext|>"))
    if (const auto id = io::whole_number(vocab["<|endoftext|>"]))
      added.push_back(special_token("<|endoftext|>").json(*id));
  const io::Json bytes = {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}};
  const io::Json model = {{"type", "BPE"}, {"vocab", std::move(vocab)}, {"merges", std::move(list)}};
  return read_pipeline({{"added_tokens", added}, {"pre_tokenizer", bytes}, {"decoder", bytes}, {"model", model}},
                       source);
}

std::unique_ptr<Tokenizer> load_wordpiece(std::string_view vocab_txt, bool lower_case, const std::string& source) {
  const io::Json vocab = read_vocabulary_lines(vocab_txt, source);
  io::Json added = io::Json::array();
  for (const char* content : {"[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"})
    if (vocab.contains(content)) added.push_back(special_token(content).json(vocab[content].get<int64_t>()));
  const io::Json model = {{"type", "WordPiece"},
                          {"unk_token", "[UNK]"},
                          {"continuing_subword_prefix", "##"},
                          {"max_input_chars_per_word", 100},
                          {"vocab", vocab}};
  io::Json root = {{"added_tokens", added},
                   {"normalizer",
                    {{"type", "BertNormalizer"},
                     {"clean_text", true},
                     {"handle_chinese_chars", true},
                     {"strip_accents", nullptr},
                     {"lowercase", lower_case}}},
                   {"pre_tokenizer", {{"type", "BertPreTokenizer"}}},
                   {"decoder", {{"type", "WordPiece"}, {"prefix", "##"}, {"cleanup", true}}},
                   {"model", model}};
  if (vocab.contains("[CLS]") && vocab.contains("[SEP]"))
    root["post_processor"] = {
        {"type", "BertProcessing"}, {"cls", {"[CLS]", vocab["[CLS]"]}}, {"sep", {"[SEP]", vocab["[SEP]"]}}};
  return read_pipeline(root, source);
}

}  // namespace attn::text
