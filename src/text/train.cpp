// train_tokenizer(): each kind is the tokenizer.json of a model family. Its normalizer and pre-tokenizer split the
// texts into words, from which the vocabulary is learned.
#include "text/train.h"

#include <algorithm>
#include <map>

#include "attn/core.h"
#include "core/checker.h"
#include "io/json.h"
#include "text/normalizer.h"
#include "text/pipeline.h"
#include "text/pre_tokenizer.h"
#include "text/tokenizer_config.h"
#include "text/tokenizers.h"
#include "text/vocabulary.h"

namespace attn::text {
namespace {

using io::Json;

constexpr size_t kMaxCharacters = 1000;  // an alphabet holds the most frequent ones

Json parse_object(const char* json) { return Json::parse(json); }

/// A tokenizer.json without its vocabulary.
Json frame_of(const TokenizerTrainingOptions& options) {
  if (options.kind == "bpe")
    return parse_object(R"({
      "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
      "decoder": {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true},
      "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
                "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "ignore_merges": false}})");
  if (options.kind == "wordpiece") {
    Json frame = parse_object(R"({
      "normalizer": {"type": "BertNormalizer", "clean_text": true, "handle_chinese_chars": true,
                     "strip_accents": null},
      "pre_tokenizer": {"type": "BertPreTokenizer"},
      "post_processor": {"type": "BertProcessing", "cls": ["[CLS]", 2], "sep": ["[SEP]", 3]},
      "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": true},
      "model": {"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##",
                "max_input_chars_per_word": 100}})");
    frame["normalizer"]["lowercase"] = options.lower_case;
    return frame;
  }
  return parse_object(R"({
    "normalizer": {"type": "NFKC"},
    "pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "WhitespaceSplit"},
                      {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": true}]},
    "post_processor": {"type": "TemplateProcessing",
      "single": [{"Sequence": {"id": "A", "type_id": 0}}, {"SpecialToken": {"id": "</s>", "type_id": 0}}],
      "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"SpecialToken": {"id": "</s>", "type_id": 0}},
               {"Sequence": {"id": "B", "type_id": 0}}, {"SpecialToken": {"id": "</s>", "type_id": 0}}],
      "special_tokens": {"</s>": {"id": "</s>", "ids": [1], "tokens": ["</s>"]}}},
    "decoder": {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": true},
    "model": {"type": "Unigram", "unk_id": 2, "byte_fallback": false}})");
}

std::vector<std::string> specials_of(const std::string& kind) {
  if (kind == "bpe") return {"<|endoftext|>"};
  if (kind == "wordpiece") return {"[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"};
  return {"<pad>", "</s>", "<unk>"};
}

WordCounts count_words(std::span<const std::string> texts, const Json& frame) {
  const std::string source = "train_tokenizer";
  const JsonFields fields(frame, "", source);
  std::unique_ptr<Normalizer> normalizer;
  if (fields.has("normalizer")) normalizer = read_normalizer(fields.object("normalizer"));
  const auto pre_tokenizer = read_pre_tokenizer(fields.object("pre_tokenizer"));
  std::map<std::string, int64_t, std::less<>> counts;
  for (const std::string& text : texts) {
    Pieces pieces{text, {}, 0};
    next_character(text, pieces.first);
    if (normalizer) normalizer->apply(pieces.text, pieces.first);
    pieces.ranges = {{0, pieces.text.size()}};
    pre_tokenizer->apply(pieces);
    for (size_t n = 0; n < pieces.ranges.size(); ++n) {
      std::string word;
      for (char byte : pieces[n])
        if (pre_tokenizer->leaves_bytes()) append_byte_character(word, static_cast<uint8_t>(byte));
        else word += byte;
      ++counts[word];
    }
  }
  return {counts.begin(), counts.end()};
}

/// The most frequent characters, in the order of their code points. Characters after the first of a word have `prefix`
/// before them; the alphabet may hold a character with and without it.
std::vector<std::string> alphabet_of(const WordCounts& words, const std::string& prefix) {
  std::map<std::string, int64_t> counts;
  for (const auto& [word, count] : words)
    for (size_t at = 0; at < word.size();) {
      const size_t begin = at;
      next_character(word, at);
      counts[(begin > 0 ? prefix : "") + word.substr(begin, at - begin)] += count;
    }
  std::vector<std::pair<int64_t, std::string>> order;
  for (const auto& [character, count] : counts) order.emplace_back(-count, character);
  std::sort(order.begin(), order.end());
  order.resize(std::min(order.size(), kMaxCharacters));
  std::vector<std::string> alphabet;
  for (const auto& [count, character] : order) alphabet.push_back(character);
  std::sort(alphabet.begin(), alphabet.end());
  return alphabet;
}

std::vector<std::string> byte_alphabet() {
  std::vector<std::string> alphabet(256);
  for (int byte = 0; byte < 256; ++byte) append_byte_character(alphabet[byte], static_cast<uint8_t>(byte));
  std::sort(alphabet.begin(), alphabet.end());
  return alphabet;
}

void check(std::span<const std::string> texts, const TokenizerTrainingOptions& options) {
  Checker checker("train_tokenizer");
  checker.require(options.kind == "bpe" || options.kind == "wordpiece" || options.kind == "unigram", [&] {
    return "kind is " + io::in_quotes(options.kind) + ", must be \"bpe\", \"wordpiece\" or \"unigram\"";
  });
  checker.require(options.vocab_size >= 1 && options.vocab_size <= kMaxTokens, [&] {
    return "vocab_size is " + std::to_string(options.vocab_size) + ", must be from 1 to " + std::to_string(kMaxTokens);
  });
  checker.require(options.min_count >= 1,
                  [&] { return "min_count is " + std::to_string(options.min_count) + ", must be at least 1"; });
  checker.done();
  for (size_t n = 0; n < texts.size(); ++n) require_utf8(texts[n], "text " + std::to_string(n));
}

}  // namespace

std::unique_ptr<Tokenizer> train_tokenizer(std::span<const std::string> texts,
                                           const TokenizerTrainingOptions& options) {
  check(texts, options);
  Json frame = frame_of(options);
  const WordCounts words = count_words(texts, frame);
  if (words.empty()) throw Error("train_tokenizer", {"the texts have no words, must have at least one"});
  const std::vector<std::string> specials = specials_of(options.kind);
  const std::string prefix = options.kind == "wordpiece" ? "##" : "";
  const std::vector<std::string> alphabet = options.kind == "bpe" ? byte_alphabet() : alphabet_of(words, prefix);
  const auto least = static_cast<int64_t>(specials.size() + alphabet.size());
  if (options.vocab_size < least)
    throw Error("train_tokenizer", {"vocab_size is " + std::to_string(options.vocab_size) + ", must be at least " +
                                    std::to_string(least) + ": " + std::to_string(specials.size()) +
                                    " special tokens and " + std::to_string(alphabet.size()) + " characters"});
  Json vocab, added = Json::array();
  for (size_t id = 0; id < specials.size(); ++id)
    added.push_back(special_token(specials[id]).json(static_cast<int64_t>(id)));
  if (options.kind == "unigram") {
    vocab = Json::array();
    for (const std::string& special : specials) vocab.push_back({special, 0.0});
    const auto room = options.vocab_size - static_cast<int64_t>(specials.size());
    for (const auto& [piece, score] : learn_pieces(words, alphabet, room)) vocab.push_back({piece, score});
  } else {
    std::vector<std::string> tokens = specials;
    tokens.insert(tokens.end(), alphabet.begin(), alphabet.end());
    const LearnedMerges learned = learn_merges(words, tokens, prefix, options.vocab_size, options.min_count);
    for (size_t id = 0; id < learned.tokens.size(); ++id) vocab[learned.tokens[id]] = id;
    if (options.kind == "bpe") frame["model"]["merges"] = learned.merges;
  }
  frame["model"]["vocab"] = std::move(vocab);
  frame["added_tokens"] = std::move(added);
  frame["version"] = "1.0";
  for (const char* key : {"truncation", "padding", "normalizer", "post_processor"})
    if (!frame.contains(key)) frame[key] = nullptr;
  return read_pipeline(frame, "train_tokenizer");
}

}  // namespace attn::text
