// text: the tokenizer of a model's folder. tests/tokenizers compares every field with transformers; here are small
// folders that can be followed by eye, what contradicts itself or is damaged, and what errors say.
#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "attn/text.h"
#include "support/arrays.h"
#include "support/folder.h"
#include "support/fuzz.h"
#include "support/sample.h"

namespace attn::test {
namespace {

using Ids = std::vector<int64_t>;

constexpr const char* kWords = "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\nb\nA\n##b\n";
constexpr const char* kBertClass = R"({"tokenizer_class": "BertTokenizer"})";
constexpr const char* kPairs =
    R"({"<s>":0,"<pad>":1,"</s>":2,"<unk>":3,"a":4,"b":5,"ab":6,"Ġ":7,"<mask>":8,"<|endoftext|>":9})";
constexpr const char* kMerges = "#version: 0.2\na b\n";

std::unique_ptr<text::Tokenizer> opened(const Folder& folder) { return text::open_tokenizer(folder.path()); }
std::string refusal(const Folder& folder) {
  return error_of([&] { opened(folder); });
}
Ids marked(const Folder& folder, const std::string& text) { return opened(folder)->encode(text).ids; }

/// A SentencePiece model: <unk>, <s>, </s>, then the pieces, of falling scores.
std::string pieces(const std::vector<std::string>& more, char model_type) {
  const auto field = [](int number, const std::string& bytes) {
    return std::string{static_cast<char>(number << 3 | 2), static_cast<char>(bytes.size())} + bytes;
  };
  std::string model;
  float score = 0;
  const auto add = [&](const std::string& text, char type) {
    std::string bytes(4, '\0');
    std::memcpy(bytes.data(), &score, 4);
    score -= 1;
    model += field(1, field(1, text) + std::string{2 << 3 | 5} + bytes + std::string{3 << 3, type});
  };
  add("<unk>", 2);
  add("<s>", 3);
  add("</s>", 3);
  for (const std::string& text : more) add(text, 1);
  return model + field(2, std::string{3 << 3, model_type});
}

TEST(TextFolders, TheClassDecides) {
  Folder bert, roberta, gpt2, fairseq, llama;
  bert.put("vocab.txt", kWords).put("tokenizer_config.json", kBertClass);
  EXPECT_EQ(marked(bert, "A [MASK]b"), (Ids{2, 5, 4, 6, 3}));
  bert.put("tokenizer_config.json", R"({"tokenizer_class":"BertTokenizer","do_lower_case":false})");
  EXPECT_EQ(marked(bert, "Ab"), (Ids{2, 7, 8, 3}));
  roberta.put("vocab.json", kPairs).put("merges.txt", kMerges).put("config.json", R"({"model_type":"roberta"})");
  EXPECT_EQ(marked(roberta, "ab<mask>a"), (Ids{0, 6, 8, 4, 2}));
  gpt2.put("encoder.json", kPairs).put("vocab.bpe", kMerges).put("config.json", R"({"model_type":"gpt2"})");
  EXPECT_EQ(marked(gpt2, "ab<|endoftext|> a"), (Ids{6, 9, 7, 4}));
  fairseq.put("config.json", R"({"model_type":"xlm-roberta"})");
  fairseq.put("sentencepiece.bpe.model", pieces({"▁", "▁a", "b"}, 1));
  EXPECT_EQ(marked(fairseq, "ab b"), (Ids{0, 5, 6, 4, 6, 2}));
  EXPECT_EQ(opened(fairseq)->token_to_id("<mask>"), 7);
  llama.put("tokenizer_config.json", R"({"tokenizer_class":"LlamaTokenizer","add_bos_token":true})");
  llama.put("tokenizer.model", pieces({"▁", "a", "▁a"}, 2));
  EXPECT_EQ(marked(llama, "aa"), (Ids{1, 5, 4}));
  EXPECT_EQ(opened(llama)->decode(Ids{1, 5, 4}), "aa");
}

TEST(TextFolders, TheNamesOfTheFirstRelease) {
  const Folder now, released;
  now.put("vocab.json", kPairs).put("merges.txt", kMerges);
  released.put("encoder.json", kPairs).put("vocab.bpe", kMerges).put("hparams.json", R"({"n_ctx": 1024})");
  EXPECT_EQ(opened(released)->to_json(), opened(now)->to_json());
  EXPECT_EQ(marked(released, "ab<|endoftext|> a"), marked(now, "ab<|endoftext|> a"));
  released.put("merges.txt", "#version: 0.2\n");  // of two files with one meaning, those that belong together count
  EXPECT_EQ(opened(released)->to_json(), opened(now)->to_json());
}

TEST(TextFolders, TokensOutsideTheVocabulary) {
  Folder folder;
  folder.put("vocab.txt", kWords).put("tokenizer_config.json", kBertClass);
  folder.put("added_tokens.json", R"({"<tool>":9,"<more>":10})");
  folder.put("special_tokens_map.json", R"({"extra_special_tokens":["<tool>","<last>"]})");
  const auto tokenizer = opened(folder);
  EXPECT_EQ(tokenizer->encode_ids("<tool>a<more><last>"), (Ids{9, 5, 10, 11}));
  EXPECT_EQ(tokenizer->decode(Ids{9, 5, 10}), "a <more>");
  EXPECT_TRUE(tokenizer->is_special(9) && !tokenizer->is_special(10));
  EXPECT_EQ(text::load_tokenizer(tokenizer->to_json(), "again")->encode_ids("a<last>"), (Ids{5, 11}));
}

TEST(TextFolders, TokenizerConfigGivesTheBatchOptions) {
  Folder folder;
  folder.put("vocab.txt", kWords).put("tokenizer_config.json", R"({"tokenizer_class":"BertTokenizer",
    "model_max_length":4,"truncation_side":"left","padding_side":"left","model_input_names":["input_ids"],
    "split_special_tokens":true})");
  const auto tokenizer = opened(folder);
  const text::BatchOptions options = tokenizer->batch_options();
  EXPECT_EQ(options.max_length, 4);
  EXPECT_EQ(options.pad_id, 0);
  EXPECT_TRUE(options.truncation_side == text::Side::left && options.padding_side == text::Side::left);
  EXPECT_EQ(tokenizer->encode_pair("a", "b").token_type_ids, (Ids{0, 0, 0, 0, 0}));
  EXPECT_EQ(tokenizer->encode_ids("[MASK]"), (Ids{1, 1, 1}));
}

/// TextStream holds back blanks that belong to the next token; Whisper's times are no text.
TEST(TextFolders, DecodingSkipsTimesAndHeldBackBlanks) {
  Folder whisper, clean;
  whisper.put("config.json", R"({"model_type":"whisper"})")
      .put("merges.txt", "#version: 0.2\n")
      .put("vocab.json",
           R"({"a":0,"b":1,"<|endoftext|>":2,"<|startoftranscript|>":3,"<|notimestamps|>":4,"<|0.02|>":5,)"
           R"("<|startofprev|>":6,)"
           R"("<|1":7,"|":8,".5|>":9})");
  const auto tokenizer = opened(whisper);
  EXPECT_EQ(tokenizer->encode("a").ids, (Ids{3, 4, 0, 2}));
  EXPECT_EQ(tokenizer->decode(Ids{6, 0, 3, 0, 5, 1, 7, 9, 7, 8}), "<|startoftranscript|>ab<|1|");
  text::TextStream stream(*tokenizer);
  EXPECT_EQ(stream.push(0), "a");
  EXPECT_EQ(stream.push(7), "");
  EXPECT_EQ(stream.push(8), "<|1|");
  EXPECT_EQ(stream.push(7), "");
  EXPECT_EQ(stream.finish(), "<|1");

  clean.put("config.json", R"({"model_type":"t5"})").put("spiece.model", pieces({"▁", "a", "▁.", "'s", "▁n"}, 1));
  clean.put("tokenizer_config.json", R"({"clean_up_tokenization_spaces":true,"extra_ids":0})");
  EXPECT_EQ(opened(clean)->decode(Ids{4, 5, 3, 6, 7}), "a.'s n");
}

TEST(TextFolders, UnsupportedFieldsAreRefused) {
  struct Case {
    std::vector<std::pair<const char*, std::string>> files;
    const char *file, *reason;
  };
  const std::string tokenizer_json = R"({"added_tokens":[{"id":3,"content":"<x>","special":true}],)"
                                     R"("model":{"type":"BPE","vocab":{"a":0,"b":1},"merges":[]}})";
  const auto config = [](const std::string& more) {
    return Case{
        {{"vocab.txt", kWords}, {"tokenizer_config.json", R"({"tokenizer_class":"BertTokenizer",)" + more + "}"}},
        "/tokenizer_config.json: ",
        ""};
  };
  const auto with = [&](const std::string& more, const char* reason) {
    Case one = config(more);
    one.reason = reason;
    return one;
  };
  const auto beside = [](const char* name, const char* bytes, const char* reason) {
    return Case{{{"vocab.txt", kWords}, {"tokenizer_config.json", kBertClass}, {name, bytes}}, "", reason};
  };
  const std::vector<Case> cases = {
      with(R"("do_lower_case":"no")", "do_lower_case is \"no\", must be true or false"),
      with(R"("strip_accents":3)", "strip_accents is 3, must be true"),
      with(R"("cls_token":null)", "cls_token is null, must be a token"),
      with(R"("unk_token":7)", "unk_token is 7, must be a token"),
      with(R"("sep_token":{"content":"x"})",
           "sep_token: __type is missing or has another value, must be \"AddedToken\""),
      with(R"("sep_token":{"__type":"AddedToken","content":"x","weight":1})",
           "has the field \"weight\", which a token cannot have"),
      with(R"("extra_special_tokens":"x")", "extra_special_tokens is \"x\", must be a list of tokens"),
      with(R"("extra_special_tokens":{"\u001b":3})", "is 3, must be a token"),
      with(R"("added_tokens_decoder":[])", "added_tokens_decoder is a list, must be an object of tokens by id"),
      with(R"("added_tokens_decoder":{"-1":{"content":"x"}})", "the id is \"-1\", must be from 0 to 4194303"),
      with(R"("added_tokens_decoder":{"9":{"content":5}})", "added_tokens_decoder.9: content is 5, must be a string"),
      with(R"("model_max_length":"long")", "model_max_length is \"long\", must be a number of tokens"),
      with(R"("model_max_length":2.5)", "model_max_length is 2.5, must be a whole number"),
      with(R"("padding_side":"up")", "padding_side is \"up\", must be \"left\" or \"right\""),
      with(R"("model_input_names":"x")", "model_input_names is \"x\", must be a list of names"),
      with(R"("auto_map":{"AutoTokenizer":["a.B",null]})",
           "auto_map is an object, must be left out: it is not supported"),
      with(R"("vocab":{"a":0})", "vocab is an object, must be null"),
      with(R"("fast_tokenizer_files":["tokenizer.4.0.0.json"])", "fast_tokenizer_files is a list, must be"),
      {{{"vocab.txt", kWords}, {"tokenizer_config.json", R"({"tokenizer_class":"AlbertTokenizer"})"}},
       "/tokenizer_config.json: ",
       "tokenizer_class is \"AlbertTokenizer\", which is not supported, must be one of Tokenizers"},
      {{{"vocab.txt", kWords}, {"tokenizer_config.json", R"({"tokenizer_class":5})"}},
       "/tokenizer_config.json: ",
       "tokenizer_class is 5, must be a string"},
      {{{"vocab.txt", kWords}, {"config.json", R"({"model_type":["bert"]})"}},
       "/config.json: ",
       "model_type is a list"},
      beside("tokenizer_config.json", "{\"tokenizer_class\":", "tokenizer_config.json: is not JSON at byte"),
      beside("tokenizer_config.json", "[]", "tokenizer_config.json: is a list, must be an object"),
      beside("special_tokens_map.json", "3", "special_tokens_map.json: is 3, must be an object"),
      beside("special_tokens_map.json", R"({"cls_token":{"content":[]}})",
             "special_tokens_map.json: cls_token: content is"),
      beside("added_tokens.json", R"({"x":-9})", "added_tokens.json: the id of \"x\" is -9, must be a whole number"),
      beside("added_tokens.json", R"({"x":9,"y":9})",
             "the id 9 is that of \"x\" and of \"y\", must be that of one token"),
      beside("added_tokens.json", R"({"x":12})", "\"x\" has the id 12, must be 9, the next id after the vocabulary"),
      beside("added_tokens.json", R"({"a":9})", "the added token \"a\" has the id 9, must be 5"),
      beside("tokenizer.model", "x", "tokenizer.model: not a SentencePiece model"),
      beside("tokenizer.model", "IQ== 0\nIg== 1\n", "tokenizer.model: is a vocabulary of tiktoken, which is not read"),
      beside("tekken.json", "{}", "/tekken.json: is a vocabulary of tiktoken, which is not read"),
      beside("vocab.txt", "version https://git-lfs.github.com/spec/v1\n", "vocab.txt: is a pointer of git-lfs"),
      beside("tokenizer.json", "{\"model\":{\"type\":\"WordPiece\"", "tokenizer.json: is not JSON at byte"),
      beside("tokenizer.json", "{\"model\":7}", "tokenizer.json: model: is 7, must be an object"),
      beside("tokenizer.json", "{\"model\":{}}", "tokenizer.json: model: has no vocab"),
      beside("tokenizer.json", "{\"model\":{\"vocab\":[]}}",
             "tokenizer.json: model: vocab is a list, must be an object"),
      {{{"tokenizer.json", tokenizer_json}, {"tokenizer_config.json", "{}"}},
       "",
       "\"<x>\" has the id 3, must be 2, the next id after"},
      {{{"vocab.json", kPairs}, {"config.json", R"({"model_type":"gpt2"})"}},
       "",
       "has no merges.txt and no tokenizer.json, must have one of them for GPT2Tokenizer"},
      {{{"merges.txt", kMerges}, {"config.json", R"({"model_type":"gpt2"})"}},
       "",
       "has no vocab.json and no tokenizer.json, must have one of them for GPT2Tokenizer"},
      {{{"vocab.json", kPairs}, {"config.json", R"({"model_type":"bert"})"}},
       "",
       "has no vocab.txt and no tokenizer.json, must have one of them for BertTokenizer"},
      {{{"vocab.json", "[]"}, {"merges.txt", kMerges}}, "/vocab.json: ", "model: vocab is a list, must be an object"},
      {{{"vocab.json", kPairs}, {"merges.txt", "a\n"}}, "/merges.txt, line 1: ", "the merge is \"a\""},
      {{{"vocab.txt", "\xff"}, {"tokenizer_config.json", kBertClass}},
       "/vocab.txt, line 1 ",
       "is not UTF-8 at its byte 0"}};
  for (const Case& one : cases) {
    Folder folder;
    for (const auto& [name, bytes] : one.files) folder.put(name, bytes);
    const std::string message = refusal(folder);
    EXPECT_TRUE(has(message, folder.path() + one.file)) << one.reason;
    EXPECT_TRUE(has(message, one.reason));
    EXPECT_TRUE(is_readable(message, folder.path()));
  }
}

/// Whatever damaged files say, the folder is refused with a word about it, or its tokenizer does its work.
TEST(TextFolders, Mutated) {
  std::vector<std::string_view> dictionary(std::begin(kJsonWords), std::end(kJsonWords));
  dictionary.insert(dictionary.end(),
                    {"\"__type\":\"AddedToken\"", "\"content\"", "\"cls_token\"", "\"<x>\"", "\"left\"",
                     "\"RobertaTokenizer\"", "\"TokenizersBackend\"", "\"extra_special_tokens\""});
  const std::pair<const char*, std::string> seeds[] = {
      {"tokenizer_config.json",
       R"({"tokenizer_class":"BertTokenizer","do_lower_case":true,)"
       R"("cls_token":{"__type":"AddedToken","content":"[CLS]",)"
       R"("lstrip":false},"extra_special_tokens":["<x>",{"__type":"AddedToken","content":"<y>"}],"model_max_length":9,)"
       R"("padding_side":"left","strip_accents":null,"model_input_names":["token_type_ids"],"an_image_token":"<z>"})"},
      {"special_tokens_map.json",
       R"({"mask_token":{"content":"[MASK]","lstrip":true},"extra_special_tokens":["<y>"]})"},
      {"added_tokens.json", R"({"<x>":9,"<w>":10})"},
      {"tokenizer.json", R"({"added_tokens":[{"id":1,"content":"[CLS]","special":true}],"normalizer":{"type":"NFC"},)"
                         R"("model":{"type":"WordPiece","vocab":{"[UNK]":0,"[CLS]":1,"[SEP]":2,"a":3}}})"},
      {"config.json", R"({"model_type":"bert","tokenizer_class":"BertTokenizer"})"}};
  int64_t accepted = 0;
  const int64_t rounds = sample(1'000'000, {.quick = 500, .normal = 1'000, .seconds = 30}, [&](int64_t n) {
    Random random(17, n);
    Folder folder;
    folder.put("vocab.txt", kWords);
    for (const auto& [name, bytes] : seeds) {
      if (random.below(3) == 0) continue;
      folder.put(name, random.below(3) == 0 ? mutated(bytes, random, dictionary) : bytes);
    }
    std::unique_ptr<text::Tokenizer> tokenizer;
    const std::string message = error_of([&] { tokenizer = opened(folder); });
    ASSERT_TRUE(tokenizer || is_readable(message, folder.path())) << message;
    if (!tokenizer) return;
    ++accepted;
    Ids ids;
    error_of([&] { ids = tokenizer->encode_pair("A <x> [MASK]b <z>", "a").ids; });
    for (int64_t id : ids) ASSERT_TRUE(id >= 0 && id < tokenizer->vocab_size());
    tokenizer->decode(ids);
    text::load_tokenizer(tokenizer->to_json(), "again");
  });
  EXPECT_GE(accepted, rounds / 100);
}

}  // namespace
}  // namespace attn::test
