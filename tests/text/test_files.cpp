// text: tokenizers from files of others. Ids next to the packages are compared in tests/tokenizers; here are small ones
// that can be followed by eye, what hostile files are refused with, and damage.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "attn/text.h"
#include "support/arrays.h"
#include "support/fuzz.h"
#include "support/sample.h"

namespace attn::test {
namespace {

using text::Tokenizer;
using Ids = std::vector<int64_t>;

/// A tokenizer.json of these fields.
std::string file_of(const std::string& model, const std::string& rest = "") {
  return R"({"version":"1.0","model":)" + model + (rest.empty() ? "" : "," + rest) + "}";
}

std::unique_ptr<Tokenizer> loaded(const std::string& json) { return text::load_tokenizer(json, "tokenizer.json"); }

constexpr const char* kBpe =
    R"({"type":"BPE","unk_token":"?","vocab":{"a":0,"b":1,"c":2,"ab":3,"abc":4,"bc":5,"?":6," ":7},)"
    R"("merges":["a b",["ab","c"],"b c"]})";
constexpr const char* kWordPiece =
    R"({"type":"WordPiece","unk_token":"[UNK]","vocab":{"[UNK]":0,"[CLS]":1,"[SEP]":2,"the":3,"##se":4,"#":5,)"
    R"("t":6,".":7}})";
constexpr const char* kUnigram =
    R"({"type":"Unigram","unk_id":0,"vocab":[["<unk>",0],["a",-1],["b",-2],["ab",-2.5],["▁",-3],["▁ab",-4],)"
    R"(["bb",-9]]})";
constexpr const char* kBert =
    R"("normalizer":{"type":"BertNormalizer"},"pre_tokenizer":{"type":"BertPreTokenizer"},)"
    R"("decoder":{"type":"WordPiece","prefix":"##","cleanup":true},)"
    R"("post_processor":{"type":"BertProcessing","cls":["[CLS]",1],"sep":["[SEP]",2]},)"
    R"("added_tokens":[{"id":1,"content":"[CLS]","special":true},{"id":2,"content":"[SEP]","special":true},)"
    R"({"id":9,"content":"[MASK]","special":true,"lstrip":true}],)"
    R"("truncation":{"max_length":512,"direction":"Left","strategy":"LongestFirst","stride":0},)"
    R"("padding":{"strategy":"BatchLongest","direction":"Left","pad_id":1,"pad_type_id":0,"pad_token":"[CLS]"})";

// --------------------------------------------------------------------------------------------------------------- kinds

TEST(TextFiles, BytePairsMergeByRank) {
  const auto tokenizer = loaded(file_of(kBpe));
  EXPECT_EQ(tokenizer->kind(), "bpe");
  EXPECT_EQ(tokenizer->vocab_size(), 8);
  EXPECT_EQ(tokenizer->encode_ids("abc"), (Ids{4}));
  EXPECT_EQ(tokenizer->encode_ids("bcabb"), (Ids{5, 3, 1}));
  EXPECT_EQ(tokenizer->encode_ids("axxb"), (Ids{0, 6, 6, 1}));
  const auto even = loaded(file_of(R"({"type":"BPE","vocab":{"a":0,"aa":1},"merges":["a a"]})"));
  EXPECT_EQ(even->encode_ids("aaa"), (Ids{1, 0}));
  EXPECT_EQ(tokenizer->token_to_id("abc"), 4);
  EXPECT_EQ(tokenizer->token_to_id("abcd"), std::nullopt);
  EXPECT_EQ(tokenizer->label(7), "␣");
  EXPECT_EQ(tokenizer->encode_pair("ab", "c").token_type_ids, (Ids{0, 1}));
}

/// Long pieces are cut where nothing merges, and many symbols merge by a heap: neither changes an id.
TEST(TextFiles, LongPiecesHaveTheIdsOfTheirWords) {
  const auto tokenizer = loaded(file_of(kBpe));
  sample(2000, {.quick = 200, .normal = 2000, .seconds = 20}, [&](int64_t n) {
    Random random(7, n);
    std::string text;
    Ids expected;
    for (int64_t words = random.below(40); words >= 0; --words) {
      std::string word;
      for (int64_t length = random.below(9); length > 0; --length) word += "abcx"[random.below(4)];
      const Ids ids = tokenizer->encode_ids(word + " ");
      expected.insert(expected.end(), ids.begin(), ids.end());
      text += word + " ";
    }
    ASSERT_EQ(tokenizer->encode_ids(text), expected) << text;
  });
  std::string many;
  for (int n = 0; n < 3000; ++n) many += "abc";
  EXPECT_EQ(tokenizer->encode_ids(many), Ids(3000, 4));
}

TEST(TextFiles, WordPieceTakesTheLongest) {
  const auto tokenizer = loaded(file_of(kWordPiece, kBert));
  EXPECT_EQ(tokenizer->kind(), "wordpiece");
  EXPECT_EQ(tokenizer->vocab_size(), 10);
  EXPECT_EQ(tokenizer->encode_ids("THESE thé. [MASK]x"), (Ids{3, 4, 3, 7, 9, 0}));
  EXPECT_EQ(tokenizer->encode_ids("thesee " + std::string(101, 't')), (Ids{0, 0}));
  EXPECT_EQ(tokenizer->decode(Ids{1, 3, 4, 7, 2}), "these.");
  const text::Encoding two = tokenizer->encode_pair("the", "t t");
  EXPECT_EQ(two.ids, (Ids{1, 3, 2, 6, 6, 2}));
  EXPECT_EQ(two.token_type_ids, (Ids{0, 0, 0, 1, 1, 1}));
  EXPECT_TRUE(tokenizer->is_special(9));
  EXPECT_FALSE(tokenizer->is_special(3));
  EXPECT_EQ(tokenizer->token_to_id("[MASK]"), 9);
  EXPECT_EQ(tokenizer->label(8), "#8");
  EXPECT_EQ(tokenizer->to_json(), file_of(kWordPiece, kBert));
}

TEST(TextFiles, TruncationAndPaddingGiveTheBatchOptions) {
  const auto tokenizer = loaded(file_of(kWordPiece, kBert));
  const text::BatchOptions options = tokenizer->batch_options();
  EXPECT_EQ(options.max_length, 512);
  EXPECT_EQ(options.pad_id, 1);
  EXPECT_TRUE(options.truncation_side == text::Side::left && options.padding_side == text::Side::left);
  const text::EncodedBatch batch = text::encode_batch(*tokenizer, std::vector<std::string>{"the", "the t ."});
  EXPECT_EQ(batch.length, 5);
  EXPECT_EQ(batch.sequences, 2);
  EXPECT_EQ(Ids(batch.ids.begin(), batch.ids.begin() + 2), (Ids{1, 1}));  // it fills up on the left
  EXPECT_EQ(batch.attention_mask, (Ids{0, 0, 1, 1, 1, 1, 1, 1, 1, 1}));
  const text::EncodedBatch right =
      text::encode_batch(*tokenizer, std::vector<std::string>{"the", "the t ."},
                         text::BatchOptions{.pad_id = 1, .pad_type_id = 3, .pad_to_multiple_of = 4});
  EXPECT_EQ(right.length, 8);
  EXPECT_EQ(right.ids, (Ids{1, 3, 2, 1, 1, 1, 1, 1, 1, 3, 6, 7, 2, 1, 1, 1}));
  EXPECT_EQ(right.token_type_ids, (Ids{0, 0, 0, 3, 3, 3, 3, 3, 0, 0, 0, 0, 0, 3, 3, 3}));
  EXPECT_EQ(right.attention_mask, (Ids{1, 1, 1, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 0, 0, 0}));
  EXPECT_EQ(
      error_of([&] { text::encode_batch(*tokenizer, std::vector<std::string>{"the t ."}, text::BatchOptions{}); }),
      "[encode_batch] pad_id is absent: neither the tokenizer nor the caller names a token");
  EXPECT_EQ(error_of([&] {
              text::encode_batch(*tokenizer, std::vector<std::string>{"the t ."},
                                 text::BatchOptions{.pad_id = 1, .pad_to_length = 4});
            }),
            "[encode_batch] a text has 5 tokens, must have at most 4, the length that pad_to_length gives");
  EXPECT_EQ(tokenizer->encode("the t .", {.max_length = 4}).ids, (Ids{1, 6, 7, 2}));
  EXPECT_EQ(tokenizer->encode_pair("the t . t .", "the", {.max_length = 6}).ids, (Ids{1, 6, 7, 2, 3, 2}));
  EXPECT_EQ(error_of([&] { tokenizer->encode("the", {.max_length = 1}); }),
            "[encode] max_length is 1, must be 0 or at least 2, the number of special tokens that are added");
  const auto bytes = text::bytes();
  EXPECT_EQ(bytes->encode_pair("abcd", "ef", {.max_length = 3}).ids, (Ids{'a', 'b', 'e'}));
  EXPECT_EQ(error_of([&] { bytes->encode("a", {.max_length = -1}); }),
            "[encode] max_length is -1, must be 0 or at least 1");
  EXPECT_EQ(error_of([&] {
              text::encode_batch(*bytes, std::vector<std::string>{"a"},
                                 {{.max_length = 0, .pad_id = 256, .pad_to_length = -1, .pad_to_multiple_of = -2}});
            }),
            "[encode_batch] pad_id is 256, must be in [0, 256); max_length is 0, must be absent or at least 1; "
            "pad_to_length is -1, must be at least 0; pad_to_multiple_of is -2, must be at least 0");
}

TEST(TextFiles, AnEncodingSaysWhetherItIsTruncated) {
  const auto tokenizer = loaded(file_of(kWordPiece, kBert));
  const std::vector<std::string> words = {"the", "t", "t"};
  for (const int64_t limit : {0, 5, 4}) {
    const bool fits = limit != 4;
    EXPECT_EQ(tokenizer->encode("the t t", {.max_length = limit}).truncated, !fits) << limit;
    EXPECT_EQ(text::encode_words(*tokenizer, words, {.max_length = limit}).truncated, !fits) << limit;
    const int64_t more = limit ? limit + 1 : 0;
    EXPECT_EQ(tokenizer->encode_pair("the t", "t", {.max_length = more}).truncated, !fits) << more;
    EXPECT_EQ(tokenizer->encode_pair("t", "the t", {.max_length = more}).truncated, !fits) << more;
  }
}

TEST(TextFiles, SpecialTokensAreAddedOnlyIfWanted) {
  constexpr text::EncodeOptions kWithout = {.add_special_tokens = false};
  const auto tokenizer = loaded(file_of(kWordPiece, kBert));
  EXPECT_EQ(tokenizer->encode("the t", kWithout).ids, tokenizer->encode_ids("the t"));
  const text::Encoding pair = tokenizer->encode_pair("the", "t t", kWithout);
  EXPECT_EQ(pair.ids, (Ids{3, 6, 6}));
  EXPECT_EQ(pair.token_type_ids, (Ids{0, 1, 1}));
  EXPECT_EQ(tokenizer->encode("the t .", {.add_special_tokens = false, .max_length = 2}).ids, (Ids{6, 7}));
  EXPECT_EQ(tokenizer->encode("the t .", {.add_special_tokens = false, .max_length = 1}).ids, (Ids{7}));
}

TEST(TextFiles, UnigramTakesTheBestSum) {
  const auto tokenizer =
      loaded(file_of(kUnigram, R"("pre_tokenizer":{"type":"Metaspace","replacement":"▁","prepend_scheme":"first"},)"
                               R"("decoder":{"type":"Metaspace","replacement":"▁","prepend_scheme":"first"})"));
  EXPECT_EQ(tokenizer->kind(), "unigram");
  EXPECT_EQ(tokenizer->encode_ids("ab b"), (Ids{5, 4, 2}));
  EXPECT_EQ(tokenizer->encode_ids("xya"), (Ids{4, 0, 1}));
  EXPECT_EQ(tokenizer->encode_ids("bb"), (Ids{4, 2, 2}));
  EXPECT_EQ(tokenizer->decode(Ids{5, 4, 2}), "ab b");
}

TEST(TextFiles, StreamsHoldBackWhatMayChange) {
  const std::string bytes = R"({"type":"BPE","vocab":{"Ã":0,"©":1,"a":2,"Ċ":3,"中":4},"merges":[]})";
  const auto level = loaded(file_of(bytes, R"("decoder":{"type":"ByteLevel"})"));
  text::TextStream stream(*level);
  EXPECT_EQ(stream.push(0), "");
  EXPECT_EQ(stream.push(1), "é");
  EXPECT_EQ(stream.push(0), "");
  EXPECT_EQ(stream.push(2), "\uFFFDa");
  EXPECT_EQ(stream.push(4), "中");
  EXPECT_EQ(stream.push(0), "");
  EXPECT_EQ(stream.finish(), "\uFFFD");
  EXPECT_EQ(level->label(3), "\\n");
  EXPECT_EQ(level->label(0), "0xC3");

  const std::string fallback = R"({"type":"BPE","vocab":{"<0xC3>":0,"<0xA9>":1,"▁a":2},"merges":[]})";
  const auto llama = loaded(file_of(
      fallback, R"("decoder":{"type":"Sequence","decoders":[{"type":"Replace","pattern":{"String":"▁"},"content":" "},)"
                R"({"type":"ByteFallback"},{"type":"Fuse"},{"type":"Strip","content":" ","start":1,"stop":0}]})"));
  text::TextStream other(*llama);
  EXPECT_EQ(other.push(2), "a");
  EXPECT_EQ(other.push(0), "");
  EXPECT_EQ(other.push(1), "");
  EXPECT_EQ(other.push(2), "é a");
  EXPECT_EQ(other.push(1), "");
  EXPECT_EQ(other.finish(), "\uFFFD");
  EXPECT_EQ(llama->decode(Ids{2, 0, 2}), "a\uFFFD a");
}

TEST(TextFiles, AddedTokens) {
  const std::string words = R"({"type":"WordLevel","unk_token":"?","vocab":{"?":0,"a":1}})";
  const auto blanks = loaded(file_of(
      words, R"("pre_tokenizer":{"type":"WhitespaceSplit"},"added_tokens":[{"id":2,"content":"<sep>","rstrip":true,)"
             R"("normalized":false},{"id":3,"content":"\n","lstrip":true,"normalized":false}])"));
  EXPECT_EQ(blanks->encode_ids("a<sep>\na\n a"), (Ids{1, 2, 1, 3, 1}));
  const auto lower =
      loaded(file_of(words, R"("normalizer":{"type":"Lowercase"},"pre_tokenizer":{"type":"Whitespace"},)"
                            R"("added_tokens":[{"id":2,"content":"[M]","special":true,"normalized":true},)"
                            R"({"id":3,"content":"[n]","special":true,"normalized":true}])"));
  EXPECT_EQ(lower->encode_ids("a [M] [N]"), (Ids{1, 2, 3}));
  EXPECT_EQ(lower->decode(Ids{1, 2, 3}), "a [m]");
  EXPECT_TRUE(!lower->is_special(2) && lower->is_special(3));
}

TEST(TextFiles, FirstOfWhatBecameOfACharacter) {
  const std::string words =
      R"({"type":"WordLevel","unk_token":"?","vocab":{"?":0,"▁e":1,"\u0301":2,"▁\u0301":3,"e":4}})";
  const auto tokenizer = loaded(file_of(
      words, R"("normalizer":{"type":"NFD"},"pre_tokenizer":{"type":"Sequence","pretokenizers":[{"type":"Split",)"
             R"("pattern":{"String":"e"},"behavior":"Isolated"},{"type":"Metaspace","replacement":"▁",)"
             R"("prepend_scheme":"first"}]})"));
  EXPECT_EQ(tokenizer->encode_ids("éé"), (Ids{1, 3, 4, 2}));
}

// -------------------------------------------------------------------------------------------------------- other files

/// A field of protobuf: a message or text, or a number.
std::string field(int number, const std::string& bytes) {
  std::string out{static_cast<char>(number << 3 | 2)};
  size_t left = bytes.size();
  for (; left > 127; left >>= 7) out += static_cast<char>(left | 128);
  return out + static_cast<char>(left) + bytes;
}
std::string field(int number, char value) { return {static_cast<char>(number << 3), value}; }

std::string piece(const std::string& text, float score, char type = 1) {
  std::string bytes(4, '\0');
  std::memcpy(bytes.data(), &score, 4);
  return field(1, field(1, text) + (std::string{static_cast<char>(2 << 3 | 5)} + bytes) + field(3, type));
}

std::string sentencepiece_bpe() {
  return piece("<unk>", 0, 2) + piece("</s>", 0, 3) + piece("<0x78>", 0, 6) + piece("ab", -0.5) + piece("▁ab", -1) +
         piece("▁", -2) + piece("a", -3) + piece("b", -4) + field(2, field(3, '\2') + std::string("\x98\x02\x01"));
}

TEST(TextFiles, SentencePieceModels) {
  const auto tokenizer = text::load_sentencepiece(sentencepiece_bpe(), "tokenizer.model");
  EXPECT_EQ(tokenizer->kind(), "bpe");
  EXPECT_EQ(tokenizer->encode_ids("  ab  bax "), (Ids{4, 5, 7, 6, 2}));
  EXPECT_EQ(tokenizer->encode_ids("b</s>b"), (Ids{5, 7, 1, 7}));
  EXPECT_EQ(tokenizer->decode(Ids{4, 5, 7, 6, 2, 1}), "ab bax");
  EXPECT_EQ(loaded(tokenizer->to_json())->encode_ids("ab"), (Ids{4}));
  const auto refusal = [](const std::string& bytes) {
    return error_of([&] { text::load_sentencepiece(bytes, "a.model"); });
  };
  EXPECT_TRUE(has(refusal(""), "[load_sentencepiece] a.model: is an empty file"));
  EXPECT_TRUE(has(refusal("GGUF"), "a.model: is a GGUF file of llama.cpp, which is read for inference alone"));
  EXPECT_TRUE(has(refusal("\x0a\x7f"), "it ends inside a field"));
  EXPECT_TRUE(has(refusal("\x0b"), "a field has the wire type 3"));
  EXPECT_TRUE(has(refusal(std::string(11, '\xff')), "a number has more than ten bytes"));
  EXPECT_TRUE(has(refusal(piece("", 0)), "piece 0 is empty or not UTF-8"));
  EXPECT_TRUE(has(refusal(piece("\xff", 0)), "piece 0 is empty or not UTF-8"));
  EXPECT_TRUE(has(refusal(piece("a", std::nanf(""))), "a score is not finite"));
  EXPECT_TRUE(has(refusal(piece("a", 0) + field(2, field(3, '\3'))), "must be 1 (unigram) or 2 (bpe)"));
}

/// "ab" and "c" are worth more than "a" and "bc" by 0.001, which a float32 sum of 101,000 no longer sees.
TEST(TextFiles, SumsOfLongTextsBeginAgain) {
  const std::string model = piece("<unk>", 0, 2) + piece("▁", -1) + piece("z", -1000) + piece("a", -5) +
                            piece("bc", -6) + piece("ab", -5) + piece("c", -5.999f) + field(2, field(3, '\1'));
  const auto tokenizer = text::load_sentencepiece(model, "a.model");
  Ids wanted(104, 2);
  wanted[0] = 1;
  wanted[102] = 5;
  wanted[103] = 6;
  EXPECT_EQ(tokenizer->encode_ids(std::string(101, 'z') + "abc"), wanted);
}

/// The largest scores that a file may have, and larger ones that only a tokenizer.json can: no token is lost.
TEST(TextFiles, SumsOfLargeScores) {
  const std::string text(99, 'a');
  for (const float score : {9e29f, -9e29f}) {
    const std::string model = piece("<unk>", 0, 2) + piece("▁", -1) + piece("a", score) + piece("aa", score / 2);
    const auto tokenizer = text::load_sentencepiece(model + field(2, field(3, '\1')), "a.model");
    EXPECT_EQ(tokenizer->decode(tokenizer->encode_ids(text)), text);
  }
  for (const std::string score : {"3e38", "-3e38", "1e308", "-1e308"}) {
    const std::string vocab = "[[\"<unk>\",0],[\"a\"," + score + "],[\"aa\"," + score + "]]";
    const auto tokenizer = loaded(file_of(R"({"type":"Unigram","unk_id":0,"float32":true,"vocab":)" + vocab + "}"));
    const Ids ids = tokenizer->encode_ids(text);
    EXPECT_EQ(std::count(ids.begin(), ids.end(), 1) + 2 * std::count(ids.begin(), ids.end(), 2), 99) << score;
  }
}

TEST(TextFiles, FoldersOfModels) {
  namespace fs = std::filesystem;
  const fs::path folder = fs::path(testing::TempDir()) / ("attn_tokenizers_" + std::to_string(getpid()));
  fs::create_directories(folder);
  const auto put = [&](const char* name, const std::string& bytes) { std::ofstream(folder / name) << bytes; };
  const auto open = [&] { return text::open_tokenizer(folder.string()); };
  EXPECT_TRUE(has(error_of(open), folder.string() + ": has no tokenizer.json, tokenizer.model"));
  put("vocab.txt", "[UNK]\n[CLS]\r\n[SEP]\na\nA\n##b");
  EXPECT_EQ(open()->encode("AB").ids, (Ids{1, 3, 5, 2}));
  put("tokenizer_config.json", R"({"do_lower_case":false})");
  EXPECT_EQ(open()->encode_ids("Ab"), (Ids{4, 5}));
  put("vocab.json", R"({"a":0,"b":1,"ab":2,"Ġ":3,"<|endoftext|>":4})");
  put("merges.txt", "#version: 0.2\na b\n");
  EXPECT_EQ(open()->encode_ids("ab a<|endoftext|>"), (Ids{2, 3, 0, 4}));
  put("merges.txt", "a b c\n");
  EXPECT_TRUE(has(error_of(open),
                  "merges.txt, line 1: the merge is \"a b c\", must be two tokens with one space between them"));
  put("spiece.model", sentencepiece_bpe());
  EXPECT_EQ(open()->encode_ids("ab"), (Ids{4}));
  put("tokenizer.json", file_of(kBpe));
  EXPECT_EQ(open()->encode_ids("ab"), (Ids{3}));
  fs::remove_all(folder);
}

// ------------------------------------------------------------------------------------------------------------- hostile

TEST(TextFiles, Hostile) {
  const auto with = [](const std::string& rest) { return file_of(kBpe, rest); };
  const auto normalizer = [&](const std::string& part) { return with("\"normalizer\":" + part); };
  const auto cutter = [&](const std::string& pattern) {
    return with(R"("pre_tokenizer":{"type":"Split","behavior":"Isolated","pattern":{"Regex":")" + pattern + "\"}}");
  };
  const std::string long_token(5000, 'a');
  const std::pair<std::string, std::string> cases[] = {
      {file_of("7"), "model: is 7, must be an object"},
      {file_of("{}"), "model: type is missing, must be one of BPE, Unigram, WordLevel, WordPiece"},
      {file_of(R"({"type":"Magic"})"), "model: type is \"Magic\", must be one of BPE"},
      {file_of(R"({"type":"BPE"})"), "model: has no vocab"},
      {file_of(R"({"type":"BPE","vocab":[]})"), "model: vocab is a list, must be an object"},
      {file_of(R"({"type":"BPE","vocab":{"a":-1}})"), "vocab: \"a\" is -1, must be a whole number"},
      {file_of(R"({"type":"BPE","vocab":{"a":4194304}})"), "the id of \"a\" is 4194304, must be from 0 to 4194303"},
      {file_of(R"({"type":"BPE","vocab":{"a":0,"b":0}})"), "the id 0 is that of \"a\" and of \"b\""},
      {file_of(R"({"type":"BPE","vocab":{")" + long_token + "\":0}}"), "has 5000 bytes, must have at most 4096"},
      {file_of(R"({"type":"BPE","vocab":{},"merges":["a b"]})"), "merge 0 is \"a b\", but the vocabulary has no \"a\""},
      {file_of(R"({"type":"BPE","vocab":{"a":0,"b":1},"merges":[["a","b"]]})"), "but the vocabulary has no \"ab\""},
      {file_of(R"({"type":"BPE","vocab":{},"merges":["a b c"]})"), "must be two tokens with one space between them"},
      {file_of(R"({"type":"BPE","vocab":{},"merges":[["a"]]})"), "merge 0 is a list, must be two tokens"},
      {file_of(R"({"type":"BPE","vocab":{},"merges":[],"dropout":0.1})"), "dropout is 0.1, must be 0 or null"},
      {file_of(R"({"type":"WordPiece","vocab":{}})"), "model: has no unk_token"},
      {file_of(R"({"type":"Unigram","vocab":[]})"), "vocab is a list, must be a list of tokens and scores"},
      {file_of(R"({"type":"Unigram","vocab":[["a"]]})"), "entry 0 is a list, must be a token and its score"},
      {file_of(R"({"type":"Unigram","vocab":[["a",0]],"unk_id":1})"),
       "unk_id is 1, must be a whole number from 0 to 0"},
      {normalizer(R"({"type":"Rot13"})"), "normalizer: type is \"Rot13\", must be one of BertNormalizer, ByteLevel"},
      {normalizer(R"({"type":"Sequence","normalizers":[{"type":"NFC"},{"type":"X"}]})"),
       "normalizer.normalizers[1]: type is \"X\""},
      {normalizer(R"({"type":"Sequence","normalizers":{}})"), "normalizers is an object, must be a list"},
      {normalizer(R"({"type":"Prepend"})"), "normalizer: has no prepend"},
      {normalizer(R"({"type":"Replace","content":"","pattern":{"String":""}})"), "String is empty"},
      {normalizer(R"({"type":"Precompiled","precompiled_charsmap":"!"})"), "precompiled_charsmap is not base64"},
      {normalizer(R"({"type":"Precompiled","precompiled_charsmap":"AAAA"})"),
       "precompiled_charsmap has 3 bytes, must have at least 4"},
      {normalizer(R"({"type":"Precompiled","precompiled_charsmap":"/////w=="})"), "has a trie of 4294967295 bytes"},
      {with(R"("pre_tokenizer":{"type":"Scissors"})"), "pre_tokenizer: type is \"Scissors\", must be one of"},
      {with(R"("pre_tokenizer":{"type":"Punctuation","behavior":"Loud"})"), "behavior is \"Loud\", must be one of Rem"},
      {with(R"("pre_tokenizer":{"type":"Metaspace","replacement":"ab"})"), "replacement is \"ab\", must be one char"},
      {cutter("("), "the pattern \"(\" does not compile: missing closing parenthesis"},
      {cutter("[a&&b]"), "has an intersection of sets at byte 2, which is not supported"},
      {cutter("[a[^b]]"), "has a negated set inside a set at byte 2, which"},
      {cutter("[\\\\Wa]"), "has \\W in a class at byte 1, which"},
      {cutter("\\\\h"), "has \\h at byte 0, which"},
      {cutter("(?m)a"), "has the option m at byte 0, which"},
      {cutter("[[:magic:]]"), "has an unknown class at byte 1, which"},
      {cutter(std::string(70'000, 'a')), "the pattern has 70000 bytes, must have at most 65536"},
      {cutter("((a{999}){999}){999}"), "does not compile: regular expression is too large"},
      {with(R"("post_processor":{"type":"Stamp"})"), "post_processor: type is \"Stamp\", must be one of"},
      {with(R"("post_processor":{"type":"BertProcessing","cls":["a",99],"sep":["b",1]})"),
       "post_processor: the id 99 has no token"},
      {with(R"("post_processor":{"type":"BertProcessing","cls":["a"],"sep":["b",1]})"),
       "cls is a list, must be a token and its id"},
      {with(R"("post_processor":{"type":"TemplateProcessing","single":[{"SpecialToken":{"id":"X"}}],"pair":[],)"
            R"("special_tokens":{}})"),
       "id is \"X\", must be a key of special_tokens"},
      {with(R"("decoder":{"type":"Enigma"})"), "decoder: type is \"Enigma\", must be one of BPEDecoder"},
      {with(R"("decoder":{"type":"Strip","content":"","start":0,"stop":0})"), "content is empty"},
      {with(R"("added_tokens":[{"id":1,"content":"a"}])"), "id is 1, must be 0, the id of \"a\" in the vocabulary"},
      {with(R"("added_tokens":[{"id":1,"content":"x"}])"), "id is 1, which is the id of \"b\""},
      {with(R"("added_tokens":[{"id":8,"content":"x"},{"id":8,"content":"y"}])"), "id is 8, which is the id of \"x\""},
      {with(R"("added_tokens":[{"id":8,"content":"x"},{"id":9,"content":"x"}])"), "\"x\", which already has the id 8"},
      {with(R"("truncation":{"max_length":-1})"), "truncation: max_length is -1, must be a whole number"},
      {with(R"("padding":7)"), "padding: is 7, must be an object"}};
  for (const auto& [json, reason] : cases) {
    const std::string message = error_of([&, &j = json] { loaded(j); });
    EXPECT_TRUE(has(message, "[load_tokenizer] tokenizer.json: ")) << json.substr(0, 200);
    EXPECT_TRUE(has(message, reason)) << json.substr(0, 200);
    EXPECT_TRUE(is_readable(message, "tokenizer.json"));
  }
}

TEST(TextFiles, TextsThatCannotBeEncodedAreErrors) {
  const auto refusal = [](const std::string& json, const std::string& text) {
    return error_of([&] { loaded(json)->encode_ids(text); });
  };
  EXPECT_TRUE(has(refusal(file_of(kBpe), "a\xff"), "the text: not UTF-8 at byte 1"));
  EXPECT_TRUE(has(refusal(file_of(R"({"type":"WordLevel","vocab":{"a":0},"unk_token":"?"})"), "b"),
                  "the vocabulary has no token for \"b\", and unk_token, which is \"?\", is not in it"));
  EXPECT_TRUE(has(refusal(file_of(R"({"type":"Unigram","vocab":[["a",0]]})"), "b"), "and the model has no unk_id"));
  EXPECT_TRUE(has(refusal(file_of(R"({"type":"BPE","vocab":{"a":0},"merges":[],"unk_token":"?"})"), "b"),
                  "and unk_token is not in it"));
  EXPECT_EQ(loaded(file_of(R"({"type":"BPE","vocab":{"a":0},"merges":[]})"))->encode_ids("ba"), (Ids{0}));
  const auto tokenizer = loaded(file_of(kBpe));
  EXPECT_TRUE(has(error_of([&] { tokenizer->decode(Ids{8}); }),
                  "id 8 at index 0 is outside the vocabulary, must be in [0, 8)"));
  EXPECT_TRUE(has(error_of([&] { tokenizer->label(-1); }), "id -1"));
  EXPECT_TRUE(has(error_of([&] { text::TextStream(*tokenizer).push(99); }), "id 99"));
}

/// A file cannot make encoding take for ever, or all memory.
TEST(TextFiles, TextsThatTakeTooMuchAreRefused) {
  const auto refusal = [](const std::string& rest, const std::string& text) {
    return error_of([&] { loaded(file_of(kBpe, rest))->encode_ids(text); });
  };
  EXPECT_TRUE(has(refusal(R"("pre_tokenizer":{"type":"Split","behavior":"Isolated","pattern":{"Regex":"(a|aa)+$"}})",
                          std::string(200, 'a') + "c"),
                  "tokenizer.json: the pattern \"(a|aa)+$\" takes more than 10000000 steps at byte 0"));
  std::string doubling;
  for (int n = 0; n < 25; ++n)
    doubling += std::string(n > 0 ? "," : "") + R"({"type":"Replace","pattern":{"String":"a"},"content":"aa"})";
  EXPECT_TRUE(has(refusal("\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":[" + doubling + "]}", "aaa"),
                  "the normalizer turns "));
  const std::string ten_megabytes(10'000'000, 'a');
  EXPECT_EQ(loaded(file_of(kBpe))->encode_ids(ten_megabytes).size(), ten_megabytes.size());
  EXPECT_EQ(loaded(file_of(kWordPiece, kBert))->encode_ids(ten_megabytes), Ids{0});
  EXPECT_EQ(loaded(file_of(kUnigram))->encode_ids(ten_megabytes).size(), ten_megabytes.size());
}

/// Whatever a damaged file says, it is refused with a word about it, or makes a tokenizer that does its work.
TEST(TextFiles, MutatedFiles) {
  std::vector<std::string_view> dictionary(std::begin(kJsonWords), std::end(kJsonWords));
  dictionary.insert(dictionary.end(),
                    {"\"type\":\"BPE\"", "\"type\":\"Sequence\"", "\"content\"", "\"vocab\"", "[^\\\\s]+", "(?!a)",
                     "\"ByteLevel\"", "\"Metaspace\"", "\"lstrip\":true", "\"Strip\""});
  const std::string rest =
      R"("normalizer":{"type":"Sequence","normalizers":[{"type":"NFKC"},{"type":"Strip"},{"type":"Replace",)"
      R"("pattern":{"Regex":"[aeiou]+"},"content":"a"}]},"pre_tokenizer":{"type":"Sequence","pretokenizers":[)"
      R"({"type":"Digits"},{"type":"Split","pattern":{"Regex":"\\w+|\\s"},"behavior":"Contiguous","invert":true},)"
      R"({"type":"ByteLevel","add_prefix_space":true,"use_regex":true}]},"decoder":{"type":"Sequence","decoders":[)"
      R"({"type":"ByteLevel"},{"type":"Strip","content":" ","start":1,"stop":1}]},"added_tokens":[{"id":9,)"
      R"("content":"<s>","rstrip":true,"special":true}],"post_processor":{"type":"TemplateProcessing","single":[)"
      R"({"SpecialToken":{"id":"<s>","type_id":0}},{"Sequence":{"id":"A","type_id":0}}],"pair":[],)"
      R"("special_tokens":{"<s>":{"id":"<s>","ids":[9],"tokens":["<s>"]}}})";
  const std::string seeds[] = {file_of(kBpe, rest), file_of(kWordPiece, kBert), file_of(kUnigram, rest)};
  int64_t accepted = 0;
  const int64_t rounds = sample(1'000'000, {.quick = 2'000, .normal = 10'000, .seconds = 30}, [&](int64_t n) {
    Random random(11, n);
    std::string json = seeds[random.below(3)];
    for (int64_t changes = random.below(3); changes >= 0; --changes) json = mutated(json, random, dictionary);
    std::unique_ptr<Tokenizer> tokenizer;
    const std::string message = error_of([&] { tokenizer = text::load_tokenizer(json, "a.json"); });
    ASSERT_TRUE(tokenizer || is_readable(message, "a.json")) << json;
    if (!tokenizer) return;
    ++accepted;
    Ids ids;
    error_of([&] { ids = tokenizer->encode_pair("The <s> best abc 12 é中 ▁ab", "a").ids; });
    for (int64_t id : ids) ASSERT_TRUE(id >= 0 && id < tokenizer->vocab_size());
    text::TextStream stream(*tokenizer);
    std::string all;
    for (int64_t id : ids) all += stream.push(id);
    ASSERT_EQ(all + stream.finish(), tokenizer->decode(ids)) << json;
  });
  EXPECT_GE(accepted, rounds / 100);
}

TEST(TextFiles, MutatedModels) {
  const std::vector<std::string_view> dictionary = {"\x0a", "\x12", "\xff\xff\xff\xff\x7f", "\x08", "\x1d", "\x18\x06"};
  int64_t accepted = 0;
  const int64_t rounds = sample(1'000'000, {.quick = 2'000, .normal = 10'000, .seconds = 30}, [&](int64_t n) {
    Random random(13, n);
    std::string bytes = sentencepiece_bpe();
    for (int64_t changes = random.below(3); changes >= 0; --changes) bytes = mutated(bytes, random, dictionary);
    const std::string message = error_of([&] {
      const auto tokenizer = text::load_sentencepiece(bytes, "a.model");
      ++accepted;
      error_of([&] { tokenizer->decode(tokenizer->encode_ids("ab xé</s>")); });
    });
    ASSERT_TRUE(message.empty() || is_readable(message, "a.model"));
  });
  EXPECT_GE(accepted, rounds / 100);
}

}  // namespace
}  // namespace attn::test
