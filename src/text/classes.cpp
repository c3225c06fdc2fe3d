// Each class as the tokenizer.json that says the same.
#include "text/classes.h"

#include <algorithm>
#include <initializer_list>
#include <map>
#include <string_view>
#include <utility>
#include <vector>

#include "attn/core.h"

namespace attn::text {
namespace {

using io::Json;

constexpr const char* kSpace = "\xE2\x96\x81";

using Contents = std::initializer_list<std::pair<const char*, const char*>>;

void set_defaults(Said& said, Contents contents) {
  for (const auto& [role, content] : contents) said.set_default(role, AddedToken{.content = content, .is_plain = true});
}

// ----------------------------------------------------------------------------------------------- what is around

/// A text ('A' or 'B'), or a token.
struct Slot {
  std::string token = {};
  int64_t id = 0;
  char text = 0;
  int type = 0;
};
using Slots = std::vector<Slot>;

Json template_of(const Slots& single, const Slots& pair) {
  Json specials = Json::object();
  const auto listed = [&](const Slots& slots) {
    Json list = Json::array();
    for (const Slot& slot : slots) {
      const Json piece = {{"id", slot.text ? std::string(1, slot.text) : slot.token}, {"type_id", slot.type}};
      list.push_back({{slot.text ? "Sequence" : "SpecialToken", piece}});
      if (!slot.text) specials[slot.token] = {{"id", slot.token}, {"ids", {slot.id}}, {"tokens", {slot.token}}};
    }
    return list;
  };
  Json post_processor = {{"type", "TemplateProcessing"}, {"single", listed(single)}, {"pair", listed(pair)}};
  post_processor["special_tokens"] = std::move(specials);
  return post_processor;
}

constexpr auto text_of = [](char which, int type) { return Slot{.text = which, .type = type}; };

Slot token_of(const Said& said, const char* role, const IdOf& id_of) {
  const std::string& content = said.require(role);
  return {.token = content, .id = id_of(content)};
}

/// [CLS] A [SEP], [CLS] A [SEP] B [SEP]; B and what follows it are of the type 1.
Json around_bert(const Said& said, const IdOf& id_of) {
  const Slot cls = token_of(said, "cls_token", id_of), sep = token_of(said, "sep_token", id_of);
  Slot last = sep;
  last.type = 1;
  return template_of({cls, text_of('A', 0), sep}, {cls, text_of('A', 0), sep, text_of('B', 1), last});
}

/// <s> A </s>, <s> A </s> </s> B </s>
Json around(const Slot& begin, const Slot& end) {
  return template_of({begin, text_of('A', 0), end}, {begin, text_of('A', 0), end, end, text_of('B', 0), end});
}
Json around_cls_sep(const Said& said, const IdOf& id_of) {
  return around(token_of(said, "cls_token", id_of), token_of(said, "sep_token", id_of));
}
Json around_bos_eos(const Said& said, const IdOf& id_of) {
  return around(token_of(said, "bos_token", id_of), token_of(said, "eos_token", id_of));
}

Json around_t5(const Said& said, const IdOf& id_of) {
  const Slot end = {.token = "</s>", .id = token_of(said, "eos_token", id_of).id};
  return template_of({text_of('A', 0), end}, {text_of('A', 0), end, text_of('B', 0), end});
}

Json around_neox(const Said& said, const IdOf& id_of) {
  return begin_and_end(said, said.boolean("add_bos_token", false, false), said.boolean("add_eos_token", false, false),
                       id_of);
}

Json around_whisper(const Said& said, const IdOf& id_of) {
  Slots slots;
  const auto add = [&](const std::string& token) { slots.push_back({.token = token, .id = id_of(token)}); };
  add("<|startoftranscript|>");
  if (const auto task = said.text("task")) {
    if (*task != "transcribe" && *task != "translate") said.refuse("task", "\"transcribe\", \"translate\" or null");
    add("<|" + *task + "|>");
  }
  if (!said.boolean("predict_timestamps", false, false)) add("<|notimestamps|>");
  slots.push_back(text_of('A', 0));
  Slots pair = slots;
  pair.push_back(text_of('B', 1));
  Slot end = token_of(said, "eos_token", id_of);
  slots.push_back(end);
  end.type = 1;
  pair.push_back(end);
  return template_of(slots, pair);
}

// ------------------------------------------------------------------------------------------------------- WordPiece

Json build_wordpiece(Said& said, Source source) {
  const bool strips = said.has("strip_accents");
  const Json normalizer = {{"type", "BertNormalizer"},
                           {"clean_text", true},
                           {"handle_chinese_chars", said.boolean("tokenize_chinese_chars", true)},
                           {"strip_accents", strips ? Json(said.boolean("strip_accents", true)) : Json()},
                           {"lowercase", said.boolean("do_lower_case", true)}};
  const Json model = {{"type", "WordPiece"},
                      {"unk_token", said.require("unk_token")},
                      {"continuing_subword_prefix", "##"},
                      {"max_input_chars_per_word", 100},
                      {"vocab", std::move(source.vocab)}};
  return {{"normalizer", normalizer},
          {"pre_tokenizer", {{"type", "BertPreTokenizer"}}},
          {"decoder", {{"type", "WordPiece"}, {"prefix", "##"}, {"cleanup", true}}},
          {"model", model}};
}

Json build_bert(Said& said, Source source) {
  set_defaults(said, {{"unk_token", "[UNK]"},
                      {"sep_token", "[SEP]"},
                      {"pad_token", "[PAD]"},
                      {"cls_token", "[CLS]"},
                      {"mask_token", "[MASK]"}});
  return build_wordpiece(said, std::move(source));
}

Json build_mpnet(Said& said, Source source) {
  const Contents contents = {{"bos_token", "<s>"},    {"eos_token", "</s>"},  {"sep_token", "</s>"},
                             {"cls_token", "<s>"},    {"unk_token", "[UNK]"}, {"pad_token", "<pad>"},
                             {"mask_token", "<mask>"}};
  set_defaults(said, contents);
  for (const auto& [role, ignored] : contents)
    said.change_plain(role, [lstrip = std::string_view(role) == "mask_token"](const std::string& content) {
      return AddedToken{.content = content, .lstrip = lstrip};
    });
  return build_wordpiece(said, std::move(source));
}

// ------------------------------------------------------------------------------------------------- byte-level pairs

Json byte_level(bool add_prefix_space, bool cuts = true) {
  return {{"type", "ByteLevel"}, {"add_prefix_space", add_prefix_space}, {"trim_offsets", true}, {"use_regex", cuts}};
}

Json build_pairs(Source source, const Json& pre_tokenizer, const char* normalizer = nullptr) {
  const Json model = {{"type", "BPE"}, {"vocab", std::move(source.vocab)}, {"merges", std::move(source.merges)}};
  Json root = {{"pre_tokenizer", pre_tokenizer}, {"decoder", byte_level(true)}, {"model", model}};
  if (normalizer) root["normalizer"] = {{"type", normalizer}};
  return root;
}

Json build_roberta(Said& said, Source source) {
  set_defaults(said, {{"bos_token", "<s>"},
                      {"eos_token", "</s>"},
                      {"sep_token", "</s>"},
                      {"cls_token", "<s>"},
                      {"unk_token", "<unk>"},
                      {"pad_token", "<pad>"},
                      {"mask_token", "<mask>"}});
  return build_pairs(std::move(source), byte_level(said.boolean("add_prefix_space", false)));
}

constexpr const char* kEndOfText = "<|endoftext|>";

Json build_of_text(Said& said, Source source) {
  set_defaults(said, {{"unk_token", kEndOfText}, {"bos_token", kEndOfText}, {"eos_token", kEndOfText}});
  return build_pairs(std::move(source), byte_level(said.boolean("add_prefix_space", false)));
}

Json build_gpt2(Said& said, Source source) {
  said.set_default("pad_token", std::nullopt);
  return build_of_text(said, std::move(source));
}

Json build_neox(Said& said, Source source) {
  set_defaults(
      said,
      {{"unk_token", kEndOfText}, {"bos_token", kEndOfText}, {"eos_token", kEndOfText}, {"pad_token", "<|padding|>"}});
  return build_pairs(std::move(source), byte_level(said.boolean("add_prefix_space", false)), "NFC");
}

Json build_whisper(Said& said, Source source) {
  Json root = build_of_text(said, std::move(source));
  for (const char* role : {"unk_token", "bos_token", "eos_token"})
    said.change_plain(role, [](const std::string& content) { return special_token(content); });
  root["transcripts"] = true;
  return root;
}

Json build_qwen2(Said& said, Source source) {
  constexpr const char* kWords =
      "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|"
      "\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";
  set_defaults(said, {{"unk_token", kEndOfText}, {"eos_token", kEndOfText}, {"pad_token", kEndOfText}});
  const Json split = {{"type", "Split"}, {"pattern", {{"Regex", kWords}}}, {"behavior", "Isolated"}, {"invert", false}};
  const Json bytes = byte_level(said.boolean("add_prefix_space", false, false), false);
  return build_pairs(std::move(source), {{"type", "Sequence"}, {"pretokenizers", {split, bytes}}}, "NFC");
}

// --------------------------------------------------------------------------------------------------- SentencePiece's

Json metaspace(const char* scheme, bool splits) {
  return {{"type", "Metaspace"}, {"replacement", kSpace}, {"prepend_scheme", scheme}, {"split", splits}};
}

Json build_unigram(Source source, int64_t unknown, bool add_prefix_space) {
  const char* scheme = add_prefix_space ? "always" : "never";
  const Json model = {
      {"type", "Unigram"}, {"unk_id", unknown}, {"vocab", std::move(source.vocab)}, {"byte_fallback", false}};
  const Json cut = {{"type", "WhitespaceSplit"}};
  Json root = {{"pre_tokenizer", {{"type", "Sequence"}, {"pretokenizers", {cut, metaspace(scheme, true)}}}},
               {"decoder", metaspace(scheme, true)},
               {"model", model}};
  if (!source.charsmap.empty())
    root["normalizer"] = {{"type", "Precompiled"}, {"precompiled_charsmap", std::move(source.charsmap)}};
  return root;
}

constexpr Contents kFairseq = {{"bos_token", "<s>"},    {"eos_token", "</s>"},  {"sep_token", "</s>"},
                               {"cls_token", "<s>"},    {"unk_token", "<unk>"}, {"pad_token", "<pad>"},
                               {"mask_token", "<mask>"}};

/// Fairseq has its own special tokens in front of the pieces and <mask> after them, instead of the first `dropped`.
void shift(Source& source, Said& said, const std::vector<std::pair<std::string, double>>& first, size_t dropped) {
  Json vocab = Json::array();
  for (const auto& [token, score] : first) vocab.push_back({token, score});
  for (size_t n = dropped; n < source.vocab.size(); ++n) vocab.push_back(std::move(source.vocab[n]));
  vocab.push_back({said.require("mask_token"), 0.0});
  source.vocab = std::move(vocab);
}

void shift_xlm_roberta(Source& source, Said& said) {
  set_defaults(said, kFairseq);
  shift(source, said,
        {{said.require("bos_token"), 0},
         {said.require("pad_token"), 0},
         {said.require("eos_token"), 0},
         {said.require("unk_token"), 0}},
        3);
}

Json build_xlm_roberta(Said& said, Source source) {
  set_defaults(said, kFairseq);
  return build_unigram(std::move(source), 3, said.boolean("add_prefix_space", true, false));
}

void shift_camembert(Source& source, Said& said) {
  set_defaults(said, kFairseq);
  shift(source, said,
        {{"<s>NOTUSED", 0},
         {said.require("pad_token"), 0},
         {"</s>NOTUSED", 0},
         {said.require("unk_token"), 0},
         {"<unk>NOTUSED", -100}},
        1);
}

Json build_camembert(Said& said, Source source) {
  set_defaults(said, kFairseq);
  said.change_plain("mask_token", [](const std::string& content) { return special_token(content, true); });
  if (!said.additional) {
    said.additional.emplace();
    for (const char* content : {"<s>NOTUSED", "</s>NOTUSED", "<unk>NOTUSED"})
      said.additional->push_back({.content = content, .is_plain = true});
  }
  const std::string& unknown = said.require("unk_token");
  int64_t id = 0, found = 0;
  for (auto entry = source.vocab.begin(); source.vocab.is_array() && entry != source.vocab.end(); ++entry, ++id)
    if (entry->is_array() && !entry->empty() && (*entry)[0] == unknown) {
      found = id;
      break;
    }
  return build_unigram(std::move(source), found, said.boolean("add_prefix_space", true, false));
}

std::string extra_id(int64_t n) { return "<extra_id_" + std::to_string(n) + ">"; }
int64_t extra_ids(const Said& said) { return said.number("extra_ids", 1 << 16, 100); }

void append_extra_ids(Source& source, Said& said) {
  for (int64_t n = extra_ids(said) - 1; n >= 0; --n) source.vocab.push_back({extra_id(n), 0.0});
}

Json build_t5(Said& said, Source source) {
  set_defaults(said, {{"eos_token", "</s>"}, {"unk_token", "<unk>"}, {"pad_token", "<pad>"}});
  const int64_t count = extra_ids(said);
  if (!said.additional) said.additional.emplace();
  const int64_t named = std::count_if(said.additional->begin(), said.additional->end(), [](const AddedToken& token) {
    return token.content.find("<extra_id_") != std::string::npos;
  });
  if (named > 0 && count > 0 && named != count)
    said.refuse("extra_ids", std::to_string(named) + ", as many as additional_special_tokens has");
  for (int64_t n = 0; n < count && named == 0; ++n)
    said.additional->push_back({.content = extra_id(n), .is_plain = true});
  return build_unigram(std::move(source), 2, true);
}

/// Pairs with bytes for what is in no token.
Json build_byte_fallback(Source source, const Json& unknown, bool strips) {
  Json decoders = {{{"type", "Replace"}, {"pattern", {{"String", kSpace}}}, {"content", " "}},
                   {{"type", "ByteFallback"}},
                   {{"type", "Fuse"}}};
  if (strips) decoders.push_back({{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}});
  const Json model = {{"type", "BPE"},
                      {"vocab", std::move(source.vocab)},
                      {"merges", std::move(source.merges)},
                      {"unk_token", unknown},
                      {"fuse_unk", true},
                      {"byte_fallback", true}};
  return {{"model", model}, {"decoder", {{"type", "Sequence"}, {"decoders", decoders}}}};
}

Json build_llama(Said& said, Source source) {
  set_defaults(said, {{"unk_token", "<unk>"}, {"bos_token", "<s>"}, {"eos_token", "</s>"}});
  const bool prefix = said.boolean("add_prefix_space", true, true), legacy = said.boolean("legacy", false, false);
  Json root = build_byte_fallback(std::move(source), nullptr, prefix);
  root["pre_tokenizer"] = metaspace(!prefix ? "never" : legacy ? "always" : "first", false);
  return root;
}

Json build_gemma(Said& said, Source source) {
  set_defaults(said, {{"unk_token", "<unk>"},
                      {"bos_token", "<bos>"},
                      {"eos_token", "<eos>"},
                      {"pad_token", "<pad>"},
                      {"mask_token", "<mask>"}});
  Json root = build_byte_fallback(std::move(source), said.require("unk_token"), false);
  root["normalizer"] = {{"type", "Replace"}, {"pattern", {{"String", " "}}}, {"content", kSpace}};
  root["pre_tokenizer"] = {
      {"type", "Split"}, {"pattern", {{"String", " "}}}, {"behavior", "MergedWithPrevious"}, {"invert", false}};
  return root;
}

// ----------------------------------------------------------------------------------------------------------- by name

const TokenizerClass kClasses[] = {
    {"TokenizersBackend PreTrainedTokenizer BloomTokenizer", "tokenizer.model", false, false, nullptr, nullptr,
     nullptr},
    {"BertTokenizer ElectraTokenizer LayoutLMTokenizer LxmertTokenizer MobileBertTokenizer SqueezeBertTokenizer",
     "vocab.txt", true, false, nullptr, build_bert, around_bert},
    {"DistilBertTokenizer", "vocab.txt", false, false, nullptr, build_bert, around_bert},
    {"MPNetTokenizer", "vocab.txt", false, false, nullptr, build_mpnet, around_cls_sep},
    {"RobertaTokenizer BartTokenizer LEDTokenizer LongformerTokenizer MvpTokenizer", "vocab.json", false, false,
     nullptr, build_roberta, around_cls_sep},
    {"GPT2Tokenizer", "vocab.json", false, false, nullptr, build_gpt2, nullptr},
    {"GPTNeoXTokenizer", "vocab.json", false, false, nullptr, build_neox, around_neox},
    {"WhisperTokenizer", "vocab.json", false, false, nullptr, build_whisper, around_whisper},
    {"Qwen2Tokenizer", "vocab.json", false, false, nullptr, build_qwen2, nullptr},
    {"XLMRobertaTokenizer", "sentencepiece.bpe.model", false, false, shift_xlm_roberta, build_xlm_roberta,
     around_bos_eos},
    {"CamembertTokenizer", "sentencepiece.bpe.model", false, false, shift_camembert, build_camembert, around_bos_eos},
    {"T5Tokenizer", "spiece.model", false, false, append_extra_ids, build_t5, around_t5},
    {"LlamaTokenizer Phi3Tokenizer", "tokenizer.model", false, true, nullptr, build_llama, nullptr},
    {"GemmaTokenizer", "tokenizer.model", false, true, nullptr, build_gemma, nullptr}};

/// Classes of transformers with a way of their own that is not supported, without "Tokenizer".
constexpr std::string_view kNotServed =
    " Albert Barthez Bartpho BertGeneration BertJapanese Bertweet BigBird BioGpt Blenderbot BlenderbotSmall ByT5 CLIP "
    "CTRL Canine Character Clvp CodeGen CodeLlama Cohere ConvBert Cpm CpmAnt DPRContextEncoder DPRQuestionEncoder "
    "DPRReader Deberta DebertaV2 Dia Esm Esmc FNet FSMT FastSpeech2Conformer Flaubert Funnel GPTNeoXJapanese GPTSw3 "
    "Herbert Lasr LayoutLMv2 LayoutLMv3 LayoutXLM Luke M2M100 MBart MBart50 MLuke Marian MarkupLM Mecab Mgpstr MyT5 "
    "Nllb Nougat OpenAIGPT PLBart Parakeet Pegasus Perceiver Phobert Pop2Piano ProphetNet Qwen3_5 Rag Reformer RemBert "
    "RoCBert RoFormer SeamlessM4T Siglip Siglip2 Speech2Text SpeechT5 Splinter Tapas Tipsv2 Udop VideoPrism Vits "
    "Wav2Vec2CTC Wav2Vec2PhonemeCTC XGLM XLM XLNet ";

/// What AutoTokenizer takes for a family whose files name no class; of some, whose files name a wrong one, always.
struct TokenizerFamily {
  const char* name;
  const char* of_class;
  bool overrules = false;
};
constexpr TokenizerFamily kFamilies[] = {{"bert", "BertTokenizer"},
                                         {"distilbert", "BertTokenizer"},
                                         {"electra", "BertTokenizer"},
                                         {"mpnet", "MPNetTokenizer"},
                                         {"roberta", "RobertaTokenizer"},
                                         {"bart", "RobertaTokenizer"},
                                         {"xlm-roberta", "XLMRobertaTokenizer"},
                                         {"camembert", "CamembertTokenizer"},
                                         {"modernbert", "TokenizersBackend", true},
                                         {"gpt2", "GPT2Tokenizer"},
                                         {"gpt_neox", "GPTNeoXTokenizer"},
                                         {"mistral", "TokenizersBackend"},
                                         {"qwen2", "Qwen2Tokenizer", true},
                                         {"qwen3", "Qwen2Tokenizer"},
                                         {"phi3", "TokenizersBackend", true},
                                         {"olmo2", "TokenizersBackend"},
                                         {"gemma2", "GemmaTokenizer"},
                                         {"t5", "T5Tokenizer"},
                                         {"whisper", "WhisperTokenizer"}};

std::string without_fast(const std::string& name) {
  return name.ends_with("Fast") ? name.substr(0, name.size() - 4) : name;
}

}  // namespace

const TokenizerClass& general_class() { return kClasses[0]; }

const TokenizerClass& class_of_name(const std::string& given, const std::string& source) {
  const std::string name = without_fast(given);
  const auto has = [&](std::string_view names) {
    return (" " + std::string(names) + " ").find(" " + name + " ") != std::string::npos;
  };
  for (const TokenizerClass& each : kClasses)
    if (has(each.names)) return each;
  const std::string_view stem = std::string_view(name).substr(0, name.size() - (name.ends_with("Tokenizer") ? 9 : 0));
  if (stem.size() < name.size() && kNotServed.find(" " + std::string(stem) + " ") != std::string_view::npos) {
    std::string known;
    for (const TokenizerClass& each : kClasses) known += (known.empty() ? "" : " ") + std::string(each.names);
    throw Error("open_tokenizer", {source + ": tokenizer_class is " + io::in_quotes(given) +
                                   ", which is not supported; supported are " + known});
  }
  return general_class();
}

const TokenizerClass* choose_class(const std::string& name, const std::string& family, bool bytes,
                                   const std::string& source) {
  const auto* found = std::find_if(std::begin(kFamilies), std::end(kFamilies),
                                   [&](const TokenizerFamily& each) { return each.name == family; });
  const bool is_known = found != std::end(kFamilies);
  if (name.empty() && family.empty()) return nullptr;
  if (name.empty()) return is_known ? &class_of_name(found->of_class, source) : &general_class();
  const bool overrules = is_known && found->overrules;
  if (without_fast(name) == "LlamaTokenizer" && bytes && !overrules) return &general_class();
  if (!is_known || found->of_class == without_fast(name)) return &class_of_name(name, source);
  const TokenizerClass& of_family = class_of_name(found->of_class, source);
  return of_family.is_general() || overrules ? &of_family : &class_of_name(name, source);
}

Json begin_and_end(const Said& said, bool begin, bool end, const IdOf& id_of) {
  Slots single, pair;
  const auto add = [&](bool is_wanted, const char* role, int type) {
    if (!is_wanted || !said.role(role)) return;
    Slot slot = token_of(said, role, id_of);
    slot.type = type;
    if (type == 0) single.push_back(slot);
    pair.push_back(slot);
  };
  for (const int type : {0, 1}) {
    add(begin, "bos_token", type);
    if (type == 0) single.push_back(text_of('A', 0));
    pair.push_back(text_of(type == 0 ? 'A' : 'B', type));
    add(end, "eos_token", type);
  }
  return template_of(single, pair);
}

}  // namespace attn::text
