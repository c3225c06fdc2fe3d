// The files that tokenizers had before tokenizer.json, each written as what that would say of them.
#include "attn/core.h"
#include "io/json.h"
#include "text/said.h"
#include "text/tokenizers.h"
#include "text/unicode.h"

namespace attn::text {
namespace {

std::string_view without_blanks_behind(std::string_view line) {
  while (!line.empty()) {
    size_t begin = line.size() - 1, at;
    while (begin > 0 && (static_cast<uint8_t>(line[begin]) & 0xC0) == 0x80) --begin;
    if (at = begin; !is_space(next_character(line, at))) break;
    line = line.substr(0, begin);
  }
  return line;
}

/// The lines of a file, without the breaks; the last one may be without.
std::vector<std::string_view> lines_of(std::string_view text) {
  std::vector<std::string_view> lines;
  while (!text.empty()) {
    const size_t end = text.find('\n');
    std::string_view line = text.substr(0, end);
    if (!line.empty() && line.back() == '\r') line.remove_suffix(1);
    lines.push_back(line);
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
  }
  return lines;
}

void require_text(std::string_view operation, std::string_view text, const std::string& source) {
  if (const size_t at = malformed_at(text); at != std::string_view::npos)
    throw Error(operation, {source + ": not UTF-8 at byte " + std::to_string(at)});
}

}  // namespace

io::Json read_merges(std::string_view merges, const std::string& source) {
  require_text("load_gpt2", merges, source);
  io::Json list = io::Json::array();
  int64_t number = 0;
  for (std::string_view line : lines_of(merges)) {
    ++number;
    if (line.empty() || line.starts_with("#version")) continue;
    const size_t space = line.find(' ');
    if (space == std::string_view::npos || line.find(' ', space + 1) != std::string_view::npos)
      throw Error("load_gpt2", {source + ": line " + std::to_string(number) + " of the merges is " +
                                io::in_quotes(line) + ", must be two tokens with a space between"});
    list.push_back({line.substr(0, space), line.substr(space + 1)});
  }
  return list;
}

/// Of two equal lines the last counts.
io::Json read_vocabulary_lines(std::string_view vocab_txt, const std::string& source) {
  require_text("load_wordpiece", vocab_txt, source);
  io::Json vocab = io::Json::object();
  int64_t id = 0;
  for (std::string_view line : lines_of(vocab_txt)) vocab[std::string(without_blanks_behind(line))] = id++;
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
  const io::Json root = {{"added_tokens", added}, {"pre_tokenizer", bytes}, {"decoder", bytes}, {"model", model}};
  return load_tokenizer(root.dump(), source);
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
  return load_tokenizer(root.dump(), source);
}

}  // namespace attn::text
