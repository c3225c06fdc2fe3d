// The tokenizer of a GGUF file: byte-level byte-pair encoding ("gpt2"), whose words a named pre-tokenizer makes, or the
// byte-pair encoding of SentencePiece ("llama").
#include "text/gguf.h"

#include <algorithm>
#include <map>

#include "attn/core.h"
#include "text/added_tokens.h"
#include "text/sentencepiece.h"
#include "text/tokenizers.h"
#include "text/unicode.h"

namespace attn::text {
namespace {

using io::Json;

/// How the words of byte-level encoding are made.
struct Words {
  const char* name;     // of tokenizer.ggml.pre
  const char* pattern;  // of a Split before the bytes; null: GPT-2's own
  bool single_digits;   // each digit is a word
  bool composes;        // NFC
  bool whole_words;     // a word that is a token needs no merges
};
constexpr const char* kLlama3 = R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|)"
                                R"( ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr const char* kQwen2 = R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}|)"
                               R"( ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr Words kKnownWords[] = {{"gpt-2", nullptr, false, false, false},
                                 {"smollm", nullptr, true, false, false},
                                 {"llama-bpe", kLlama3, false, false, true},
                                 {"qwen2", kQwen2, false, true, false},
                                 {"deepseek-r1-qwen", kQwen2, false, true, false}};

class TokenizerOfGguf {
 public:
  explicit TokenizerOfGguf(const io::Gguf& file) : file_(file), entries_(file.metadata()) {
    if (!tokens().is_array()) refuse("tokenizer.ggml.tokens is missing: the file has no tokenizer");
    if (tokens().empty() || static_cast<int64_t>(tokens().size()) > kMaxTokens)
      refuse("tokenizer.ggml.tokens has " + std::to_string(tokens().size()) + " tokens, must have 1 to " +
             std::to_string(kMaxTokens));
    for (const Json& token : tokens())
      if (!token.is_string()) refuse("tokenizer.ggml.tokens has " + io::as_shown(token) + ", must be a list of texts");
  }

  Json json() const {
    const Json kind = entry("model");
    if (kind != "gpt2" && kind != "llama")
      refuse("tokenizer.ggml.model is " + io::as_shown(kind) + R"(, must be "gpt2" or "llama")");
    Json root = kind == "gpt2" ? byte_level() : by_scores();
    if (const Json special = specials_around(kind == "llama"); !special.is_null()) root["post_processor"] = special;
    return root;
  }

 private:
  [[noreturn]] void refuse(const std::string& reason) const {
    throw Error("open_tokenizer", {file_.path() + ": " + reason});
  }
  Json entry(const char* name) const { return entries_.value(std::string("tokenizer.ggml.") + name, Json()); }
  const Json& tokens() const {
    static const Json none;
    const auto found = entries_.find("tokenizer.ggml.tokens");
    return found == entries_.end() ? none : *found;
  }
  bool flag(const char* name, bool otherwise) const {
    const Json value = entry(name);
    if (value.is_null()) return otherwise;
    if (!value.is_boolean())
      refuse(std::string("tokenizer.ggml.") + name + " is " + io::as_shown(value) + ", must be true or false");
    return value.get<bool>();
  }

  /// Whole numbers or scores beside the tokens; empty where there are none.
  std::vector<double> beside_tokens(const char* name) const {
    const Json list = entry(name);
    std::vector<double> numbers;
    if (list.is_null()) return numbers;
    const bool fits = list.is_array() && list.size() == tokens().size();
    if (fits)
      for (const Json& number : list)
        if (number.is_number()) numbers.push_back(number.get<double>());
    if (numbers.size() != tokens().size())
      refuse(std::string("tokenizer.ggml.") + name + " must have a number for each of the " +
             std::to_string(tokens().size()) + " tokens");
    return numbers;
  }

  /// The types are those of SentencePiece.
  Json added_tokens() const {
    Json list = Json::array();
    const std::vector<double> types = beside_tokens("token_type");
    for (size_t id = 0; id < types.size(); ++id) {
      const bool special = types[id] == int{SentencePiece::kControl};
      if (special || types[id] == int{SentencePiece::kUserDefined})
        list.push_back(
            AddedToken{.content = tokens()[id].get<std::string>(), .special = special, .normalized = false}.json(
                static_cast<int64_t>(id)));
    }
    return list;
  }

  Json byte_level() const {
    const Json name = entry("pre");
    const Words* words = nullptr;
    std::string known;
    for (const Words& each : kKnownWords) {
      if (name == each.name) words = &each;
      known += (known.empty() ? "" : ", ") + std::string(each.name);
    }
    if (!words)
      refuse("tokenizer.ggml.pre is " + io::as_shown(name) + ", which is not supported; supported are: " + known);
    Json vocab = Json::object();
    for (size_t id = 0; id < tokens().size(); ++id) {
      if (!vocab.emplace(tokens()[id].get<std::string>(), id).second)
        refuse("tokenizer.ggml.tokens has " + io::as_shown(tokens()[id]) + " twice");
    }
    const Json merges = entry("merges");
    if (!merges.is_array()) refuse("tokenizer.ggml.merges is missing");
    Json parts = Json::array();
    if (words->pattern)
      parts.push_back(
          {{"type", "Split"}, {"pattern", {{"Regex", words->pattern}}}, {"behavior", "Isolated"}, {"invert", false}});
    if (words->single_digits) parts.push_back({{"type", "Digits"}, {"individual_digits", true}});
    const Json bytes = {{"type", "ByteLevel"},
                        {"add_prefix_space", false},
                        {"trim_offsets", true},
                        {"use_regex", words->pattern == nullptr}};
    parts.push_back(bytes);
    Json root = {{"added_tokens", added_tokens()},
                 {"pre_tokenizer", {{"type", "Sequence"}, {"pretokenizers", parts}}},
                 {"decoder", bytes},
                 {"model",
                  {{"type", "BPE"},
                   {"vocab", vocab},
                   {"merges", merges},
                   {"ignore_merges", words->whole_words},
                   {"fuse_unk", false},
                   {"byte_fallback", false}}}};
    if (words->composes) root["normalizer"] = {{"type", "NFC"}};
    return root;
  }

  Json by_scores() const {
    const std::vector<double> types = beside_tokens("token_type"), scores = beside_tokens("scores");
    if (types.empty() || scores.empty()) refuse("tokenizer.ggml.token_type and scores are missing");
    std::vector<SentencePiece> pieces;
    for (size_t id = 0; id < tokens().size(); ++id) {
      const auto text = tokens()[id].get<std::string>();
      if (text.empty()) refuse("tokenizer.ggml.tokens has an empty token, number " + std::to_string(id));
      if (!(types[id] >= 1 && types[id] <= 6))
        refuse("tokenizer.ggml.token_type has " + Json(types[id]).dump() + ", must be from 1 to 6");
      pieces.push_back({text, scores[id], static_cast<int>(types[id])});
    }
    return sentencepiece_json(std::move(pieces), flag("add_space_prefix", true),
                              flag("remove_extra_whitespaces", false), file_.path());
  }

  /// A token of a role, by its id; null if the role has none.
  Json special(const char* role) const {
    const Json id = entry(role);
    if (id.is_null()) return id;
    const std::optional<int64_t> number = io::whole_number(id);
    if (!number || *number >= static_cast<int64_t>(tokens().size()))
      refuse(std::string("tokenizer.ggml.") + role + " is " + io::as_shown(id) + ", must be below " +
             std::to_string(tokens().size()));
    return {{"id", tokens()[static_cast<size_t>(*number)]}, {"number", *number}};
  }

  /// The first and the last token of a text.
  Json specials_around(bool begins) const {
    const Json first = flag("add_bos_token", begins) ? special("bos_token_id") : Json();
    const Json last = flag("add_eos_token", false) ? special("eos_token_id") : Json();
    if (first.is_null() && last.is_null()) return {};
    Json single = Json::array(), pair = Json::array(), tokens = Json::object();
    const auto add = [&](const Json& token, int type) {
      if (token.is_null()) return;
      const Json part = {{"SpecialToken", {{"id", token["id"]}, {"type_id", type}}}};
      if (type == 0) single.push_back(part);
      pair.push_back(part);
      tokens[token["id"].get<std::string>()] = {
          {"id", token["id"]}, {"ids", {token["number"]}}, {"tokens", {token["id"]}}};
    };
    const auto text = [](const char* name, int type) { return Json{{"Sequence", {{"id", name}, {"type_id", type}}}}; };
    add(first, 0);
    single.push_back(text("A", 0)), pair.push_back(text("A", 0));
    add(last, 0);
    add(first, 1);
    pair.push_back(text("B", 1));
    add(last, 1);
    return {{"type", "TemplateProcessing"}, {"single", single}, {"pair", pair}, {"special_tokens", tokens}};
  }

  const io::Gguf& file_;
  const Json& entries_;
};

}  // namespace

Json gguf_tokenizer(const io::Gguf& file) { return TokenizerOfGguf(file).json(); }

// ------------------------------------------------------------------------------------------------------------- writing

namespace {

[[noreturn]] void refuse_writing(const std::string& reason) { throw Error("export", {"the tokenizer " + reason}); }

/// Tokens and what they are, by id; ids without a token are unused.
struct TokenList {
  std::vector<std::string> tokens;
  std::vector<int64_t> types;

  TokenList(const Json& tokenizer, int64_t size) {
    for (int64_t id = 0; id < size; ++id) tokens.push_back("[PAD" + std::to_string(id) + "]");
    types.assign(tokens.size(), int{SentencePiece::kUnused});
    const Json vocab = tokenizer.at("model").value("vocab", Json::object());
    for (const auto& [token, id] : vocab.items()) set(token, id, SentencePiece::kNormal);
    for (const Json& added : tokenizer.value("added_tokens", Json::array()))
      if (io::whole_number(added.at("id")).value_or(size) < size)  // no text of this model has a later one
        set(added.at("content"), added.at("id"),
            added.value("special", false) ? SentencePiece::kControl : SentencePiece::kUserDefined);
  }

  void set(const std::string& token, const Json& id, int type) {
    const auto number = io::whole_number(id);
    if (!number || *number >= std::ssize(tokens))
      refuse_writing("has the id " + io::as_shown(id) + ", must be below the vocab_size of " +
                     std::to_string(tokens.size()));
    tokens[static_cast<size_t>(*number)] = token;
    types[static_cast<size_t>(*number)] = type;
  }
};

/// "a b" of a merge, which newer files have as a list of two.
std::string merge_text(const Json& merge) {
  return merge.is_string() ? merge.get<std::string>()
                           : merge.at(0).get<std::string>() + " " + merge.at(1).get<std::string>();
}

/// The name for the way in which byte-level words are made.
std::string pre_tokenizer_name(const Json& tokenizer) {
  const Json before = tokenizer.value("pre_tokenizer", Json()), model = tokenizer.at("model");
  const Json parts =
      before.is_object() && before.value("type", "") == "Sequence" ? before.at("pretokenizers") : Json::array({before});
  std::string pattern;
  bool digits = false, bytes = false, own_regex = false, known = true;
  for (const Json& part : parts) {
    const std::string type = part.is_object() ? part.value("type", "") : "";
    if (type == "Split") pattern = part.at("pattern").value("Regex", "");
    else if (type == "Digits") digits = part.value("individual_digits", false);
    else if (type == "ByteLevel") {
      bytes = !part.value("add_prefix_space", true);
      own_regex = part.value("use_regex", true);
    } else known = false;
  }
  const Json normalizer = tokenizer.value("normalizer", Json());
  const bool composes = normalizer.is_object() && normalizer.value("type", "") == "NFC";
  for (const Words& words : kKnownWords) {
    const bool same_pattern = words.pattern ? pattern == words.pattern && !own_regex : pattern.empty() && own_regex;
    if (known && bytes && same_pattern && digits == words.single_digits &&
        (composes == words.composes && (composes || normalizer.is_null())) &&
        model.value("ignore_merges", false) == words.whole_words)
      return words.name;
  }
  refuse_writing("makes words in a way that llama.cpp has no name for here; known are gpt-2, smollm, llama-bpe, qwen2");
}

/// True if an object of this name and value is anywhere in a part of a tokenizer.json.
bool has_member(const Json& part, const char* name, const char* value) {
  if (part.is_object() && part.value(name, Json()) == value) return true;
  return part.is_structured() &&
         std::any_of(part.begin(), part.end(), [&](const Json& each) { return has_member(each, name, value); });
}

/// SentencePiece merges by the scores of what comes about: the earlier a merge, the higher.
Json scores_of(const Json& model, const TokenList& vocabulary) {
  std::map<std::string, double> ranks;
  double rank = 0;
  for (const Json& merge : model.value("merges", Json::array())) {
    std::string whole = merge_text(merge);
    whole.erase(whole.find(' '), 1);
    ranks.emplace(whole, -rank++);
  }
  Json scores = Json::array();
  for (const std::string& token : vocabulary.tokens) scores.push_back(ranks.contains(token) ? ranks[token] : -rank);
  return scores;
}

}  // namespace

Json gguf_entries(const Json& tokenizer, int64_t vocab_size) {
  const Json model = tokenizer.value("model", Json());
  if (!model.is_object() || model.value("type", "") != "BPE")
    refuse_writing("is no byte-pair encoding, which llama, qwen and gemma have");
  TokenList vocabulary(tokenizer, vocab_size);
  Json entries = Json::object();
  const auto set = [&](const char* name, const Json& value) { entries[std::string("tokenizer.ggml.") + name] = value; };
  if (!model.value("byte_fallback", false)) {
    set("model", "gpt2");
    set("pre", pre_tokenizer_name(tokenizer));
    Json merges = Json::array();
    for (const Json& merge : model.value("merges", Json::array())) merges.push_back(merge_text(merge));
    set("merges", merges);
  } else {
    set("model", "llama");
    for (size_t id = 0; id < vocabulary.tokens.size(); ++id)
      if (const std::string& token = vocabulary.tokens[id]; token.size() == 6 && token.starts_with("<0x"))
        vocabulary.types[id] = SentencePiece::kByte;
    if (const Json unknown = model.value("unk_token", Json()); unknown.is_string())
      for (size_t id = 0; id < vocabulary.tokens.size(); ++id)
        if (vocabulary.tokens[id] == unknown.get<std::string>()) {
          vocabulary.types[id] = SentencePiece::kUnknown;
          set("unknown_token_id", id);
        }
    set("scores", scores_of(model, vocabulary));
    set("add_space_prefix", has_member(tokenizer.value("normalizer", Json()), "type", "Prepend") ||
                                has_member(tokenizer.value("pre_tokenizer", Json()), "prepend_scheme", "first") ||
                                has_member(tokenizer.value("pre_tokenizer", Json()), "prepend_scheme", "always"));
  }
  set("tokens", vocabulary.tokens);
  set("token_type", vocabulary.types);
  return entries;
}

}  // namespace attn::text
