// Each class builds the tokenizer.json with the same meaning.
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

using RoleContents = std::initializer_list<std::pair<const char*, const char*>>;

void set_defaults(TokenizerConfig& config, RoleContents contents) {
  for (const auto& [role, content] : contents)
    config.set_default(role, AddedToken{.content = content, .is_plain = true});
}

// ---------------------------------------------------------------------------------------------------- special tokens

/// One item of a template: a text ('A' or 'B') or a special token.
struct TemplateItem {
  std::string token = {};
  int64_t id = 0;
  char text = 0;
  int type = 0;
};
using TemplateItems = std::vector<TemplateItem>;

Json template_of(const TemplateItems& single, const TemplateItems& pair) {
  Json specials = Json::object();
  const auto listed = [&](const TemplateItems& items) {
    Json list = Json::array();
    for (const TemplateItem& item : items) {
      const Json piece = {{"id", item.text ? std::string(1, item.text) : item.token}, {"type_id", item.type}};
      list.push_back({{item.text ? "Sequence" : "SpecialToken", piece}});
      if (!item.text) specials[item.token] = {{"id", item.token}, {"ids", {item.id}}, {"tokens", {item.token}}};
    }
    return list;
  };
  Json post_processor = {{"type", "TemplateProcessing"}, {"single", listed(single)}, {"pair", listed(pair)}};
  post_processor["special_tokens"] = std::move(specials);
  return post_processor;
}

constexpr auto text_item = [](char which, int type) { return TemplateItem{.text = which, .type = type}; };

TemplateItem token_item(const TokenizerConfig& config, const char* role, const IdOf& id_of) {
  const std::string& content = config.require(role);
  return {.token = content, .id = id_of(content)};
}

/// [CLS] A [SEP] and [CLS] A [SEP] B [SEP]; the last two have token type 1.
Json template_of_bert(const TokenizerConfig& config, const IdOf& id_of) {
  const TemplateItem cls = token_item(config, "cls_token", id_of), sep = token_item(config, "sep_token", id_of);
  TemplateItem last = sep;
  last.type = 1;
  return template_of({cls, text_item('A', 0), sep}, {cls, text_item('A', 0), sep, text_item('B', 1), last});
}

/// <s> A </s> and <s> A </s> </s> B </s>
Json separate_both(const TemplateItem& begin, const TemplateItem& end) {
  return template_of({begin, text_item('A', 0), end}, {begin, text_item('A', 0), end, end, text_item('B', 0), end});
}
Json template_of_cls_sep(const TokenizerConfig& config, const IdOf& id_of) {
  return separate_both(token_item(config, "cls_token", id_of), token_item(config, "sep_token", id_of));
}
Json template_of_bos_eos(const TokenizerConfig& config, const IdOf& id_of) {
  return separate_both(token_item(config, "bos_token", id_of), token_item(config, "eos_token", id_of));
}

Json template_of_t5(const TokenizerConfig& config, const IdOf& id_of) {
  const TemplateItem end = {.token = "</s>", .id = token_item(config, "eos_token", id_of).id};
  return template_of({text_item('A', 0), end}, {text_item('A', 0), end, text_item('B', 0), end});
}

Json template_of_neox(const TokenizerConfig& config, const IdOf& id_of) {
  return bos_eos_template(config, config.boolean("add_bos_token", false, false),
                          config.boolean("add_eos_token", false, false), id_of);
}

Json template_of_whisper(const TokenizerConfig& config, const IdOf& id_of) {
  TemplateItems items;
  const auto add = [&](const std::string& token) { items.push_back({.token = token, .id = id_of(token)}); };
  add("<|startoftranscript|>");
  if (const auto task = config.text("task")) {
    if (*task != "transcribe" && *task != "translate") config.refuse("task", "\"transcribe\", \"translate\" or null");
    add("<|" + *task + "|>");
  }
  if (!config.boolean("predict_timestamps", false, false)) add("<|notimestamps|>");
  items.push_back(text_item('A', 0));
  TemplateItems pair = items;
  pair.push_back(text_item('B', 1));
  TemplateItem end = token_item(config, "eos_token", id_of);
  items.push_back(end);
  end.type = 1;
  pair.push_back(end);
  return template_of(items, pair);
}

// ------------------------------------------------------------------------------------------------------- WordPiece

Json build_wordpiece(TokenizerConfig& config, VocabularyFile file) {
  const bool strips = config.has("strip_accents");
  const Json normalizer = {{"type", "BertNormalizer"},
                           {"clean_text", true},
                           {"handle_chinese_chars", config.boolean("tokenize_chinese_chars", true)},
                           {"strip_accents", strips ? Json(config.boolean("strip_accents", true)) : Json()},
                           {"lowercase", config.boolean("do_lower_case", true)}};
  const Json model = {{"type", "WordPiece"},
                      {"unk_token", config.require("unk_token")},
                      {"continuing_subword_prefix", "##"},
                      {"max_input_chars_per_word", 100},
                      {"vocab", std::move(file.vocab)}};
  return {{"normalizer", normalizer},
          {"pre_tokenizer", {{"type", "BertPreTokenizer"}}},
          {"decoder", {{"type", "WordPiece"}, {"prefix", "##"}, {"cleanup", true}}},
          {"model", model}};
}

Json build_bert(TokenizerConfig& config, VocabularyFile file) {
  set_defaults(config, {{"unk_token", "[UNK]"},
                        {"sep_token", "[SEP]"},
                        {"pad_token", "[PAD]"},
                        {"cls_token", "[CLS]"},
                        {"mask_token", "[MASK]"}});
  return build_wordpiece(config, std::move(file));
}

Json build_mpnet(TokenizerConfig& config, VocabularyFile file) {
  const RoleContents contents = {{"bos_token", "<s>"},    {"eos_token", "</s>"},  {"sep_token", "</s>"},
                                 {"cls_token", "<s>"},    {"unk_token", "[UNK]"}, {"pad_token", "<pad>"},
                                 {"mask_token", "<mask>"}};
  set_defaults(config, contents);
  for (const auto& [role, ignored] : contents)
    config.change_plain(role, [lstrip = std::string_view(role) == "mask_token"](const std::string& content) {
      return AddedToken{.content = content, .lstrip = lstrip};
    });
  return build_wordpiece(config, std::move(file));
}

// ------------------------------------------------------------------------------------------------- byte-level pairs

Json byte_level(bool add_prefix_space, bool cuts = true) {
  return {{"type", "ByteLevel"}, {"add_prefix_space", add_prefix_space}, {"trim_offsets", true}, {"use_regex", cuts}};
}

Json build_pairs(VocabularyFile file, const Json& pre_tokenizer, const char* normalizer = nullptr) {
  const Json model = {{"type", "BPE"}, {"vocab", std::move(file.vocab)}, {"merges", std::move(file.merges)}};
  Json root = {{"pre_tokenizer", pre_tokenizer}, {"decoder", byte_level(true)}, {"model", model}};
  if (normalizer) root["normalizer"] = {{"type", normalizer}};
  return root;
}

Json build_roberta(TokenizerConfig& config, VocabularyFile file) {
  set_defaults(config, {{"bos_token", "<s>"},
                        {"eos_token", "</s>"},
                        {"sep_token", "</s>"},
                        {"cls_token", "<s>"},
                        {"unk_token", "<unk>"},
                        {"pad_token", "<pad>"},
                        {"mask_token", "<mask>"}});
  return build_pairs(std::move(file), byte_level(config.boolean("add_prefix_space", false)));
}

constexpr const char* kEndOfText = "<|endoftext|>";

Json build_end_of_text(TokenizerConfig& config, VocabularyFile file) {
  set_defaults(config, {{"unk_token", kEndOfText}, {"bos_token", kEndOfText}, {"eos_token", kEndOfText}});
  return build_pairs(std::move(file), byte_level(config.boolean("add_prefix_space", false)));
}

Json build_gpt2(TokenizerConfig& config, VocabularyFile file) {
  config.set_default("pad_token", std::nullopt);
  return build_end_of_text(config, std::move(file));
}

Json build_neox(TokenizerConfig& config, VocabularyFile file) {
  set_defaults(
      config,
      {{"unk_token", kEndOfText}, {"bos_token", kEndOfText}, {"eos_token", kEndOfText}, {"pad_token", "<|padding|>"}});
  return build_pairs(std::move(file), byte_level(config.boolean("add_prefix_space", false)), "NFC");
}

Json build_whisper(TokenizerConfig& config, VocabularyFile file) {
  Json root = build_end_of_text(config, std::move(file));
  for (const char* role : {"unk_token", "bos_token", "eos_token"})
    config.change_plain(role, [](const std::string& content) { return special_token(content); });
  root["transcripts"] = true;
  return root;
}

Json build_qwen2(TokenizerConfig& config, VocabularyFile file) {
  constexpr const char* kWords =
      "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|"
      "\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";
  set_defaults(config, {{"unk_token", kEndOfText}, {"eos_token", kEndOfText}, {"pad_token", kEndOfText}});
  const Json split = {{"type", "Split"}, {"pattern", {{"Regex", kWords}}}, {"behavior", "Isolated"}, {"invert", false}};
  const Json bytes = byte_level(config.boolean("add_prefix_space", false, false), false);
  return build_pairs(std::move(file), {{"type", "Sequence"}, {"pretokenizers", {split, bytes}}}, "NFC");
}

// --------------------------------------------------------------------------------------------------- SentencePiece's

Json metaspace(const char* scheme, bool splits) {
  return {{"type", "Metaspace"}, {"replacement", kSpace}, {"prepend_scheme", scheme}, {"split", splits}};
}

Json build_unigram(VocabularyFile file, int64_t unknown, bool add_prefix_space) {
  const char* scheme = add_prefix_space ? "always" : "never";
  const Json model = {
      {"type", "Unigram"}, {"unk_id", unknown}, {"vocab", std::move(file.vocab)}, {"byte_fallback", false}};
  const Json cut = {{"type", "WhitespaceSplit"}};
  Json root = {{"pre_tokenizer", {{"type", "Sequence"}, {"pretokenizers", {cut, metaspace(scheme, true)}}}},
               {"decoder", metaspace(scheme, true)},
               {"model", model}};
  if (!file.charsmap.empty())
    root["normalizer"] = {{"type", "Precompiled"}, {"precompiled_charsmap", std::move(file.charsmap)}};
  return root;
}

constexpr RoleContents kFairseq = {{"bos_token", "<s>"},    {"eos_token", "</s>"},  {"sep_token", "</s>"},
                                   {"cls_token", "<s>"},    {"unk_token", "<unk>"}, {"pad_token", "<pad>"},
                                   {"mask_token", "<mask>"}};

/// Fairseq replaces the first `dropped` pieces with its own special tokens, and appends <mask>.
void shift(VocabularyFile& file, TokenizerConfig& config, const std::vector<std::pair<std::string, double>>& first,
           size_t dropped) {
  Json vocab = Json::array();
  for (const auto& [token, score] : first) vocab.push_back({token, score});
  for (size_t n = dropped; n < file.vocab.size(); ++n) vocab.push_back(std::move(file.vocab[n]));
  vocab.push_back({config.require("mask_token"), 0.0});
  file.vocab = std::move(vocab);
}

void shift_xlm_roberta(VocabularyFile& file, TokenizerConfig& config) {
  set_defaults(config, kFairseq);
  shift(file, config,
        {{config.require("bos_token"), 0},
         {config.require("pad_token"), 0},
         {config.require("eos_token"), 0},
         {config.require("unk_token"), 0}},
        3);
}

Json build_xlm_roberta(TokenizerConfig& config, VocabularyFile file) {
  set_defaults(config, kFairseq);
  return build_unigram(std::move(file), 3, config.boolean("add_prefix_space", true, false));
}

void shift_camembert(VocabularyFile& file, TokenizerConfig& config) {
  set_defaults(config, kFairseq);
  shift(file, config,
        {{"<s>NOTUSED", 0},
         {config.require("pad_token"), 0},
         {"</s>NOTUSED", 0},
         {config.require("unk_token"), 0},
         {"<unk>NOTUSED", -100}},
        1);
}

Json build_camembert(TokenizerConfig& config, VocabularyFile file) {
  set_defaults(config, kFairseq);
  config.change_plain("mask_token", [](const std::string& content) { return special_token(content, true); });
  if (!config.additional) {
    config.additional.emplace();
    for (const char* content : {"<s>NOTUSED", "</s>NOTUSED", "<unk>NOTUSED"})
      config.additional->push_back({.content = content, .is_plain = true});
  }
  const std::string& unknown = config.require("unk_token");
  int64_t id = 0, found = 0;
  for (auto entry = file.vocab.begin(); file.vocab.is_array() && entry != file.vocab.end(); ++entry, ++id)
    if (entry->is_array() && !entry->empty() && (*entry)[0] == unknown) {
      found = id;
      break;
    }
  return build_unigram(std::move(file), found, config.boolean("add_prefix_space", true, false));
}

std::string extra_id(int64_t n) { return "<extra_id_" + std::to_string(n) + ">"; }
int64_t extra_ids(const TokenizerConfig& config) { return config.number("extra_ids", 1 << 16, 100); }

void append_extra_ids(VocabularyFile& file, TokenizerConfig& config) {
  for (int64_t n = extra_ids(config) - 1; n >= 0; --n) file.vocab.push_back({extra_id(n), 0.0});
}

Json build_t5(TokenizerConfig& config, VocabularyFile file) {
  set_defaults(config, {{"eos_token", "</s>"}, {"unk_token", "<unk>"}, {"pad_token", "<pad>"}});
  const int64_t count = extra_ids(config);
  if (!config.additional) config.additional.emplace();
  const int64_t named =
      std::count_if(config.additional->begin(), config.additional->end(),
                    [](const AddedToken& token) { return token.content.find("<extra_id_") != std::string::npos; });
  if (named > 0 && count > 0 && named != count)
    config.refuse("extra_ids", std::to_string(named) + ", as many as additional_special_tokens has");
  for (int64_t n = 0; n < count && named == 0; ++n)
    config.additional->push_back({.content = extra_id(n), .is_plain = true});
  return build_unigram(std::move(file), 2, true);
}

/// BPE with byte_fallback.
Json build_byte_fallback(VocabularyFile file, const Json& unknown, bool strips) {
  Json decoders = {{{"type", "Replace"}, {"pattern", {{"String", kSpace}}}, {"content", " "}},
                   {{"type", "ByteFallback"}},
                   {{"type", "Fuse"}}};
  if (strips) decoders.push_back({{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}});
  const Json model = {
      {"type", "BPE"},    {"vocab", std::move(file.vocab)}, {"merges", std::move(file.merges)}, {"unk_token", unknown},
      {"fuse_unk", true}, {"byte_fallback", true}};
  return {{"model", model}, {"decoder", {{"type", "Sequence"}, {"decoders", decoders}}}};
}

Json build_llama(TokenizerConfig& config, VocabularyFile file) {
  set_defaults(config, {{"unk_token", "<unk>"}, {"bos_token", "<s>"}, {"eos_token", "</s>"}});
  const bool prefix = config.boolean("add_prefix_space", true, true), legacy = config.boolean("legacy", false, false);
  Json root = build_byte_fallback(std::move(file), nullptr, prefix);
  root["pre_tokenizer"] = metaspace(!prefix ? "never" : legacy ? "always" : "first", false);
  return root;
}

Json build_gemma(TokenizerConfig& config, VocabularyFile file) {
  set_defaults(config, {{"unk_token", "<unk>"},
                        {"bos_token", "<bos>"},
                        {"eos_token", "<eos>"},
                        {"pad_token", "<pad>"},
                        {"mask_token", "<mask>"}});
  Json root = build_byte_fallback(std::move(file), config.require("unk_token"), false);
  root["normalizer"] = {{"type", "Replace"}, {"pattern", {{"String", " "}}}, {"content", kSpace}};
  root["pre_tokenizer"] = {
      {"type", "Split"}, {"pattern", {{"String", " "}}}, {"behavior", "MergedWithPrevious"}, {"invert", false}};
  return root;
}

// ---------------------------------------------------------------------------------------------------------- by name

const TokenizerClass kClasses[] = {
    {"TokenizersBackend PreTrainedTokenizer BloomTokenizer", "tokenizer.model", false, false, nullptr, nullptr,
     nullptr},
    {"BertTokenizer ElectraTokenizer LayoutLMTokenizer LxmertTokenizer MobileBertTokenizer SqueezeBertTokenizer",
     "vocab.txt", true, false, nullptr, build_bert, template_of_bert},
    {"DistilBertTokenizer", "vocab.txt", false, false, nullptr, build_bert, template_of_bert},
    {"MPNetTokenizer", "vocab.txt", false, false, nullptr, build_mpnet, template_of_cls_sep},
    {"RobertaTokenizer BartTokenizer LEDTokenizer LongformerTokenizer MvpTokenizer", "vocab.json", false, false,
     nullptr, build_roberta, template_of_cls_sep},
    {"GPT2Tokenizer", "vocab.json", false, false, nullptr, build_gpt2, nullptr},
    {"GPTNeoXTokenizer", "vocab.json", false, false, nullptr, build_neox, template_of_neox},
    {"WhisperTokenizer", "vocab.json", false, false, nullptr, build_whisper, template_of_whisper},
    {"Qwen2Tokenizer", "vocab.json", false, false, nullptr, build_qwen2, nullptr},
    {"XLMRobertaTokenizer", "sentencepiece.bpe.model", false, false, shift_xlm_roberta, build_xlm_roberta,
     template_of_bos_eos},
    {"CamembertTokenizer", "sentencepiece.bpe.model", false, false, shift_camembert, build_camembert,
     template_of_bos_eos},
    {"T5Tokenizer", "spiece.model", false, false, append_extra_ids, build_t5, template_of_t5},
    {"LlamaTokenizer Phi3Tokenizer", "tokenizer.model", false, true, nullptr, build_llama, nullptr},
    {"GemmaTokenizer", "tokenizer.model", false, true, nullptr, build_gemma, nullptr}};

/// Classes of transformers that are not supported and differ from the general class, without the suffix "Tokenizer".
constexpr std::string_view kUnsupportedClasses =
    " Albert Barthez Bartpho BertGeneration BertJapanese Bertweet BigBird BioGpt Blenderbot BlenderbotSmall ByT5 CLIP "
    "CTRL Canine Character Clvp CodeGen CodeLlama Cohere ConvBert Cpm CpmAnt DPRContextEncoder DPRQuestionEncoder "
    "DPRReader Deberta DebertaV2 Dia Esm Esmc FNet FSMT FastSpeech2Conformer Flaubert Funnel GPTNeoXJapanese GPTSw3 "
    "Herbert Lasr LayoutLMv2 LayoutLMv3 LayoutXLM Luke M2M100 MBart MBart50 MLuke Marian MarkupLM Mecab Mgpstr MyT5 "
    "Nllb Nougat OpenAIGPT PLBart Parakeet Pegasus Perceiver Phobert Pop2Piano ProphetNet Qwen3_5 Rag Reformer RemBert "
    "RoCBert RoFormer SeamlessM4T Siglip Siglip2 Speech2Text SpeechT5 Splinter Tapas Tipsv2 Udop VideoPrism Vits "
    "Wav2Vec2CTC Wav2Vec2PhonemeCTC XGLM XLM XLNet ";

/// The class that AutoTokenizer takes for a model family whose files name none.
struct FamilyClass {
  const char* family;
  const char* tokenizer_class;
  bool overrules = false;  ///< even if the files name a class, because they often name a wrong one
};
constexpr FamilyClass kFamilies[] = {{"bert", "BertTokenizer"},
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
  if (stem.size() < name.size() && kUnsupportedClasses.find(" " + std::string(stem) + " ") != std::string_view::npos) {
    std::string known;
    for (const TokenizerClass& each : kClasses) known += (known.empty() ? "" : " ") + std::string(each.names);
    throw Error("open_tokenizer", {source + ": tokenizer_class is " + io::in_quotes(given) +
                                   ", which is not supported, must be one of " + known});
  }
  return general_class();
}

const TokenizerClass* choose_class(const std::string& name, const std::string& family, bool is_byte_level,
                                   const std::string& source) {
  const auto* found = std::find_if(std::begin(kFamilies), std::end(kFamilies),
                                   [&](const FamilyClass& each) { return each.family == family; });
  const bool is_known = found != std::end(kFamilies);
  if (name.empty() && family.empty()) return nullptr;
  if (name.empty()) return is_known ? &class_of_name(found->tokenizer_class, source) : &general_class();
  const bool overrules = is_known && found->overrules;
  if (without_fast(name) == "LlamaTokenizer" && is_byte_level && !overrules) return &general_class();
  if (!is_known || found->tokenizer_class == without_fast(name)) return &class_of_name(name, source);
  const TokenizerClass& of_family = class_of_name(found->tokenizer_class, source);
  return of_family.is_general() || overrules ? &of_family : &class_of_name(name, source);
}

Json bos_eos_template(const TokenizerConfig& config, bool begin, bool end, const IdOf& id_of) {
  TemplateItems single, pair;
  const auto add = [&](bool is_wanted, const char* role, int type) {
    if (!is_wanted || !config.role(role)) return;
    TemplateItem item = token_item(config, role, id_of);
    item.type = type;
    if (type == 0) single.push_back(item);
    pair.push_back(item);
  };
  for (const int type : {0, 1}) {
    add(begin, "bos_token", type);
    if (type == 0) single.push_back(text_item('A', 0));
    pair.push_back(text_item(type == 0 ? 'A' : 'B', type));
    add(end, "eos_token", type);
  }
  return template_of(single, pair);
}

}  // namespace attn::text
