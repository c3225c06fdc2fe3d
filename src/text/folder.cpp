// The tokenizer of a model's folder: what its files say, as one tokenizer.json.
#include <algorithm>
#include <filesystem>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "attn/core.h"
#include "attn/io.h"
#include "io/foreign.h"
#include "io/reader.h"
#include "text/added_tokens.h"
#include "text/classes.h"
#include "text/pipeline.h"
#include "text/said.h"
#include "text/sentencepiece.h"
#include "text/tokenizers.h"

namespace attn::text {
namespace {

using io::Json;

constexpr int64_t kMaxFile = int64_t{1} << 28;
constexpr const char *kVocab = "vocab.json", *kMerges = "merges.txt";

// ------------------------------------------------------------------------------------------------------- added tokens

/// Tokens of a model and those that are added to them, with the ids that the package tokenizers gives.
class Ids {
 public:
  explicit Ids(const Json& model) : vocab_(model.contains("vocab") ? model["vocab"] : kNone) {
    int64_t id = 0;
    if (vocab_.is_array())
      for (const Json& entry : vocab_) {
        if (entry.is_array() && !entry.empty() && entry[0].is_string()) by_place_[entry[0]] = id;
        ++id;
      }
  }

  std::optional<int64_t> find(const std::string& content) const {
    if (const auto added = added_.find(content); added != added_.end()) return added->second;
    if (const auto placed = by_place_.find(content); placed != by_place_.end()) return placed->second;
    const auto found = vocab_.is_object() ? vocab_.find(content) : vocab_.end();
    return found == vocab_.end() ? std::nullopt : io::whole_number(*found);
  }

  int64_t add(const std::string& content) {
    const auto count = static_cast<int64_t>(vocab_.size());
    const int64_t id = find(content).value_or(largest_ >= count ? largest_ + 1 : count);
    largest_ = std::max(largest_, id);
    return added_[content] = id;
  }

 private:
  static inline const Json kNone = {};
  const Json& vocab_;
  std::unordered_map<std::string, int64_t> by_place_, added_;
  int64_t largest_ = -1;
};

/// The list "added_tokens" with what the folder's files add, in the order of transformers' TokenizersBackend.
class Addition {
 public:
  /// `source` is where the root is from.
  Addition(Json& root, const Said& said, const std::string& folder, const std::string& source)
      : list_(root["added_tokens"]), folder_(folder), ids_(root["model"]) {
    if (list_.is_null()) list_ = Json::array();
    for (const JsonFields& fields : JsonFields(root, "", source).list("added_tokens")) {
      const AddedToken token = read_added_token(fields);
      if (token.content.empty()) continue;
      ids_.add(token.content);
      require_id(token.content, fields.number("id", kMaxTokens - 1));
      before_[token.content] = token;
    }
    std::unordered_set<std::string> named, known;
    for (const auto& [role, token] : said.roles())
      if (token) named.insert(token->content);
    for (const auto& [content, token] : before_) known.insert(content);
    for (const auto& [id, token] : said.added()) want(token, id);
    for (const auto& [token, id] : wanted_) known.insert(token.content);
    std::unordered_set<std::string> seen;
    const auto want_new = [&](const AddedToken& token) {
      if (!known.contains(token.content) &&
          seen.insert((token.is_plain ? "" : token.json(0).dump()) + token.content).second)
        want(token);
    };
    for (const auto& [role, token] : said.roles())
      if (token) want_new(*token);
    for (const AddedToken& token : said.extra()) want_new(token);
    for (auto& [token, id] : wanted_) {
      if (token.is_plain) token = special_token(token.content);
      else token.special = token.special || named.contains(token.content);
      const auto found = before_.find(token.content);
      if (found == before_.end() || found->second != token) add(token, id);
      else if (id) require_id(token.content, *id);
    }
  }

  /// As Qwen's class does: whatever else is said of them, special tokens are plain special ones.
  void add_again(const Said& said) {
    for (const auto& [role, token] : said.roles())
      if (token) add(special_token(token->content), std::nullopt);
    for (const AddedToken& token : said.extra()) add(special_token(token.content), std::nullopt);
  }

  const Ids& ids() const { return ids_; }

 private:
  void want(const AddedToken& token, std::optional<int64_t> id = std::nullopt) { wanted_.emplace_back(token, id); }

  void add(const AddedToken& token, std::optional<int64_t> id) {
    if (token.content.empty()) return;
    const int64_t given = ids_.add(token.content);
    if (id) require_id(token.content, *id);
    list_.push_back(token.json(given));
  }

  void require_id(const std::string& content, int64_t id) const {
    const int64_t given = ids_.find(content).value_or(-1);
    if (given != id)
      throw Error("open_tokenizer",
                  {folder_ + ": the added token " + io::in_quotes(content) + " has the id " + std::to_string(id) +
                   ", must be " + std::to_string(given) + ", which the vocabulary and the tokens before leave to it"});
  }

  Json& list_;
  const std::string& folder_;
  Ids ids_;
  std::unordered_map<std::string, AddedToken> before_;
  std::vector<std::pair<AddedToken, std::optional<int64_t>>> wanted_;
};

// ------------------------------------------------------------------------------------------------------------- files

/// A merge for each place where a piece is two others, pieces in the order of their ids.
Json merges_of(const std::vector<SentencePieces::Piece>& pieces) {
  std::unordered_map<std::string_view, size_t> ids;
  for (size_t id = 0; id < pieces.size(); ++id) ids[pieces[id].text] = id;
  Json merges = Json::array();
  for (size_t id = 0; id < pieces.size(); ++id) {
    const std::string_view text = pieces[id].text;
    if (ids[text] != id || text.size() > kMaxTokenBytes) continue;
    for (size_t at = 1; at < text.size(); ++at)
      if (ids.contains(text.substr(0, at)) && ids.contains(text.substr(at)))
        merges.push_back({text.substr(0, at), text.substr(at)});
  }
  return merges;
}

Json scored(const std::vector<SentencePieces::Piece>& pieces) {
  Json vocab = Json::array();
  for (const auto& piece : pieces) vocab.push_back({piece.text, piece.score});
  return vocab;
}

Json numbered(const std::vector<SentencePieces::Piece>& pieces) {
  Json vocab = Json::object();
  for (size_t id = 0; id < pieces.size(); ++id) vocab[pieces[id].text] = id;
  return vocab;
}

Json replaced(const char* what, const char* with) {
  return {{"type", "Replace"}, {"pattern", {{"String", what}}}, {"content", with}};
}

/// What the general class makes of a SentencePiece model.
Json general_pipeline(const SentencePieces& model, Said& said, const std::string& path) {
  constexpr const char* kSpace = "\xE2\x96\x81";
  const auto& [pieces, is_unigram, falls_back, charsmap, ids, names] = model;
  if (is_unigram && !said.added().empty())
    throw Error("open_tokenizer", {path + ": a unigram model of the general class with added tokens is not read"});
  Json vocab = is_unigram ? scored(pieces) : numbered(pieces), part;
  for (const auto& [id, token] : said.added())  // names for placeholders
    if (id < static_cast<int64_t>(pieces.size()) && !vocab.contains(token.content)) {
      vocab.erase(pieces[static_cast<size_t>(id)].text);
      vocab[token.content] = id;
    }
  if (is_unigram) part = {{"type", "Unigram"}, {"vocab", std::move(vocab)}, {"unk_id", ids[0]}};
  else part = {{"type", "BPE"}, {"vocab", std::move(vocab)}, {"merges", merges_of(pieces)}, {"unk_token", names[0]}};
  part["byte_fallback"] = falls_back;
  part["fuse_unk"] = true;
  Json normalizers = Json::array();
  if (!charsmap.empty()) normalizers.push_back({{"type", "Precompiled"}, {"precompiled_charsmap", charsmap}});
  normalizers.push_back(replaced(" ", kSpace));
  Json decoders = {replaced(kSpace, " ")};
  if (falls_back) decoders.insert(decoders.end(), {Json{{"type", "ByteFallback"}}, Json{{"type", "Fuse"}}});
  const char* roles[] = {"unk_token", "bos_token", "eos_token"};
  for (size_t n = 0; n < 3; ++n)
    if (ids[n] >= 0) said.set_default(roles[n], AddedToken{.content = names[n], .is_plain = true});
  return {{"model", std::move(part)},
          {"normalizer", {{"type", "Sequence"}, {"normalizers", normalizers}}},
          {"decoder", {{"type", "Sequence"}, {"decoders", decoders}}}};
}

std::string first_charsmap(const Json& file) {
  const Json none = Json::array(), normalizer = file.value("normalizer", Json());
  if (!normalizer.is_object()) return "";
  const Json parts = normalizer.value("normalizers", Json::array({normalizer}));
  for (const Json& part : parts.is_array() ? parts : none)
    if (part.is_object() && part.value("type", Json()) == "Precompiled" &&
        part.value("precompiled_charsmap", Json()).is_string())
      return part["precompiled_charsmap"];
  return "";
}

class Folder {
 public:
  explicit Folder(const std::string& path) : path_(path) {}

  std::unique_ptr<Tokenizer> tokenizer() {
    if (has("tokenizer.json")) {
      const std::string path = path_of("tokenizer.json"), bytes = io::read_file(path, kMaxFile);
      file_ = io::parse_json("load_tokenizer", path, bytes);
      if (!file_.is_object() || !file_.contains("model")) return load_tokenizer(bytes, path);
      JsonFields(file_, "", path).object("model");  // is an object
      is_byte_level_ = bytes.find("\"ByteLevel\"") != std::string::npos;
    }
    const TokenizerClass* named = find_class();
    if (named && !is_named_ && has("tokenizer.json") && !fits(*named)) named = nullptr;
    const bool has_more = has("tokenizer_config.json") || has("special_tokens_map.json") || has("added_tokens.json");
    if (!named && has("tokenizer.json") && !has_more) return finished(std::move(file_));
    kind_ = named ? named : &class_of_files();
    Said said(path_, has("tokenizer.json") ? &file_ : nullptr);
    const Json padding = file_.is_object() ? file_.value("padding", Json()) : Json();
    Json root = named || has("tokenizer.json") ? pipeline(said) : pipeline_of_files(said);
    if (padding.is_object() && padding.value("pad_token", Json()).is_string() && padding["pad_token"] != "")
      said.set_default("pad_token", AddedToken{.content = padding["pad_token"], .is_plain = true});
    Addition addition(root, said, path_, source());
    if (std::string_view(kind_->names) == "Qwen2Tokenizer") addition.add_again(said);
    surround(root, said, addition.ids());
    say_lengths(root, said, addition.ids(), named != nullptr);
    say_the_rest(root, said, named != nullptr);
    return finished(std::move(root));
  }

 private:
  bool has(const char* name) const { return io::exists(path_of(name)); }
  std::string path_of(const char* name) const { return path_ + "/" + name; }
  std::string read(const char* name) const {
    std::string bytes = io::read_file(path_of(name), kMaxFile);
    if (!bytes.empty()) io::require_vocabulary("open_tokenizer", path_of(name), bytes);  // merges may be none
    return bytes;
  }
  /// The file that errors name.
  std::string source() const {
    for (const char* name : {"tokenizer.json", kind_ ? kind_->file : kVocab})
      if (has(name)) return path_of(name);
    return path_;
  }

  std::unique_ptr<Tokenizer> finished(Json root) const {
    const std::string source = this->source(), text = root.dump();
    return read_pipeline(JsonFields(root, "", source), text);
  }

  /// Of SentencePiece's; null without one.
  const char* first_model() const {
    for (const char* name : {"tokenizer.model", "spiece.model", "sentencepiece.bpe.model"})
      if (has(name)) return name;
    return nullptr;
  }

  /// Where nothing names a class.
  const TokenizerClass& class_of_files() const {
    if (has("tokenizer.json") || first_model()) return general_class();
    const bool has_pairs = (has(kVocab) && has(kMerges)) || (has("encoder.json") && has("vocab.bpe"));
    return class_of_name(has_pairs || !has("vocab.txt") ? "GPT2Tokenizer" : "BertTokenizer", path_);
  }
  /// There a SentencePiece model is read as its own library reads it.
  Json pipeline_of_files(Said& said) {
    const char* name = first_model();
    return name ? sentencepiece_json(read(name), path_of(name)) : pipeline(said);
  }

  /// Whether tokenizer.json can be of a class that only the family suggests: its kind of model, the token it begins
  /// with.
  bool fits(const TokenizerClass& kind) const {
    if (kind.is_general()) return true;
    const std::string_view file = kind.file;
    const char* wanted = file == "vocab.txt" ? "WordPiece" : file.starts_with("s") ? "Unigram" : "BPE";
    const Json &model = file_["model"], type = model.value("type", Json());
    const bool begins =
        std::string_view(kind.names) != "MPNetTokenizer" || model.value("vocab", Json()).contains("<s>");
    return (!type.is_string() || type == wanted) && begins;
  }

  const TokenizerClass* find_class() {
    const auto text_in = [&](const char* file, const char* key) -> std::string {
      if (!has(file)) return "";
      const Json json = io::read_json("open_tokenizer", path_of(file), kMaxFile);
      const Json value = json.is_object() ? json.value(key, Json()) : Json();
      if (!value.is_null() && !value.is_string())
        throw Error("open_tokenizer",
                    {path_of(file) + ": " + key + " is " + io::as_shown(value) + ", must be a string"});
      return value.is_null() ? "" : value.get<std::string>();
    };
    const std::string family = text_in("config.json", "model_type");
    std::string source = "tokenizer_config.json", name = text_in("tokenizer_config.json", "tokenizer_class");
    if (name.empty() && !family.empty()) name = text_in((source = "config.json").c_str(), "tokenizer_class");
    is_named_ = !name.empty();
    return choose_class(name, family, is_byte_level_, path_ + "/" + source);
  }

  // ------------------------------------------------------------------------------------------------------- vocabulary

  Json pipeline(Said& said) {
    if (kind_->is_general() && has("tokenizer.json")) return std::move(file_);
    if (has("tokenizer.json")) return of_tokenizer_json(said);
    for (const char* name : {"tekken.json", "tiktoken.model"})
      if (has(name)) throw Error("open_tokenizer", {path_of(name) + ": is " + io::describe_foreign(path_of(name))});
    const std::string file = has("tokenizer.model") ? "tokenizer.model" : kind_->file;
    if (file.ends_with(".model")) return of_pieces(said, file);
    Source source;
    if (file == "vocab.txt") {
      require(file.c_str());
      source.vocab = read_vocabulary_lines(read(file.c_str()), path_of(file.c_str()));
    } else {
      const bool is_old = !has(kVocab) && has("encoder.json");
      const char *vocab = is_old ? "encoder.json" : kVocab, *merges = is_old ? "vocab.bpe" : kMerges;
      require(vocab);
      require(merges);
      source.vocab = io::parse_json("open_tokenizer", path_of(vocab), read(vocab));
      source.merges = read_merges(read(merges), path_of(merges));
    }
    return kind_->build(said, std::move(source));
  }

  void require(const char* name) const {
    if (!has(name))
      throw Error("open_tokenizer",
                  {path_ + ": has no " + name + ", which " + first_name() + " needs, nor tokenizer.json"});
  }
  std::string first_name() const { return std::string(kind_->names).substr(0, std::string(kind_->names).find(' ')); }

  /// A class of its own takes the vocabulary of the file, not the pipeline.
  Json of_tokenizer_json(Said& said) {
    JsonFields(file_["model"], "model", path_of("tokenizer.json")).at("vocab");  // is there
    Json& model = file_["model"];
    Source source{.charsmap = first_charsmap(file_)};
    source.vocab = std::move(model["vocab"]);
    if (model.contains("merges")) source.merges = std::move(model["merges"]);
    Json root = kind_->build(said, std::move(source));
    for (const char* key : {"post_processor", "truncation", "padding"})
      if (file_.contains(key)) root[key] = file_[key];
    return root;
  }

  Json of_pieces(Said& said, const std::string& name) const {
    require(name.c_str());
    const std::string path = path_of(name.c_str());
    SentencePieces model = read_sentencepiece(read(name.c_str()), path);
    said.additional.emplace();
    for (const auto& piece : model.pieces)
      if (piece.type == SentencePieces::Piece::kControl || piece.type == SentencePieces::Piece::kUserDefined)
        said.additional->push_back(
            {.content = piece.text, .special = piece.type == SentencePieces::Piece::kControl, .normalized = false});
    if (kind_->is_general()) return general_pipeline(model, said, path);
    const bool is_fairseq = std::string_view(kind_->file) == "sentencepiece.bpe.model";
    const bool takes_scores = is_fairseq || std::string_view(kind_->file) == "spiece.model";
    if (std::string_view(kind_->file) == "vocab.txt" || (is_fairseq && !model.is_unigram))
      throw Error("open_tokenizer", {path + ": is no vocabulary of " + first_name()});
    Source source{.vocab = takes_scores ? scored(model.pieces) : numbered(model.pieces),
                  .merges = takes_scores ? Json::array() : merges_of(model.pieces),
                  .charsmap = std::move(model.charsmap)};
    if (kind_->from_pieces) kind_->from_pieces(source, said);
    return kind_->build(said, std::move(source));
  }

  // --------------------------------------------------------------------------------------------------- what is around

  void surround(Json& root, const Said& said, const Ids& ids) const {
    const IdOf id_of = [&](const std::string& content) -> int64_t {
      const AddedToken* unknown = said.role("unk_token");
      if (const auto id = ids.find(content)) return *id;
      if (const auto id = unknown ? ids.find(unknown->content) : std::nullopt) return *id;
      throw Error("open_tokenizer", {path_ + ": has no token " + io::in_quotes(content) + ", which " + first_name() +
                                     " puts around a text"});
    };
    const bool has_around = root.contains("post_processor") && !root["post_processor"].is_null();
    if (kind_->surround) root["post_processor"] = kind_->surround(said, id_of);
    else if (!has_around || said.mentions("add_bos_token") || said.mentions("add_eos_token"))
      root["post_processor"] = begin_and_end(said, said.boolean("add_bos_token", false, false),
                                             said.boolean("add_eos_token", false, false), id_of);
  }

  /// "right" or "left"
  static std::string side(const Said& said, const char* key, const Json& file, bool is_left) {
    const Json of_file = file.is_object() ? file.value("direction", Json()) : Json();
    const std::string fallback = of_file.is_string() ? of_file == "Left" ? "left" : "right"
                                 : is_left           ? "left"
                                                     : "right";
    if (!said.mentions(key)) return fallback;
    const auto name = said.text(key);
    if (name != "left" && name != "right") said.refuse(key, "\"left\" or \"right\"");
    return *name;
  }

  /// Where a class is named, lengths are those of tokenizer_config.json.
  void say_lengths(Json& root, const Said& said, const Ids& ids, bool is_named) const {
    constexpr double kMost = 1e12;  // what is above means no limit
    const Json cutting = root.value("truncation", Json()), filling = root.value("padding", Json());
    const std::string cut = side(said, "truncation_side", cutting, false);
    const char* key = said.mentions("model_max_length") ? "model_max_length" : "max_len";
    const Json* longest = said.find(key);
    if (longest && (!longest->is_number() || longest->get<double>() < 0)) said.refuse(key, "a number of tokens");
    if (is_named || longest) root.erase("truncation");
    if (longest && longest->get<double>() < kMost)
      root["truncation"] = {{"max_length", said.number(key, static_cast<int64_t>(kMost), 0)},
                            {"strategy", "LongestFirst"},
                            {"stride", 0}};
    if (root.contains("truncation") && root["truncation"].is_object())
      root["truncation"]["direction"] = cut == "left" ? "Left" : "Right";
    else if (cut == "left") root["truncation_side"] = "left";
    const std::string fill = side(said, "padding_side", filling, kind_->pads_left);
    const AddedToken* pad = said.role("pad_token");
    Json padding = filling.is_object() && !is_named
                       ? filling
                       : Json{{"strategy", "BatchLongest"}, {"pad_to_multiple_of", nullptr}};
    root.erase("padding");
    if (!pad) return;
    padding["direction"] = fill == "left" ? "Left" : "Right";
    padding["pad_type_id"] = 0;
    padding["pad_token"] = pad->content;
    padding["pad_id"] = ids.find(pad->content).value_or(0);
    root["padding"] = std::move(padding);
  }

  void say_the_rest(Json& root, const Said& said, bool is_named) const {
    bool has_types = kind_->has_types || !is_named;
    if (said.mentions("model_input_names")) {
      const Json* names = said.find("model_input_names");
      if (!names || !names->is_array()) said.refuse("model_input_names", "a list of names");
      has_types = std::find(names->begin(), names->end(), "token_type_ids") != names->end();
    }
    if (!has_types) root["type_vocab_size"] = false;
    if (said.boolean("split_special_tokens", false)) root["split_special_tokens"] = true;
    const bool spoils =
        said.boolean("clean_up_tokenization_spaces_for_bpe_even_though_it_will_corrupt_output", false, false);
    if (said.boolean("clean_up_tokenization_spaces", false, false))
      root["clean_up_spaces"] = spoils || root["model"].value("type", Json()) != "BPE";
  }

  std::string path_;
  Json file_;
  bool is_byte_level_ = false, is_named_ = false;
  const TokenizerClass* kind_ = nullptr;
};

/// What cannot be read, and is known as something else, is named.
std::unique_ptr<Tokenizer> of_file(const std::string& path) {
  const std::string bytes = io::read_file(path, kMaxFile);
  if (io::is_sentencepiece(bytes)) return load_sentencepiece(bytes, path);
  const bool is_named = path.ends_with(".model") || path.ends_with(".spm");
  try {
    return is_named ? load_sentencepiece(bytes, path) : load_tokenizer(bytes, path);
  } catch (const Error&) {
    const bool is_own = is_named || path.ends_with("tokenizer.json");
    const std::string what = is_own ? io::kind_of_bytes(bytes) : io::describe_foreign(path);
    if (what.empty()) throw;
    throw Error("open_tokenizer", {path + ": is " + what});
  }
}

}  // namespace

std::unique_ptr<Tokenizer> find_tokenizer(const std::string& folder) {
  constexpr const char* kVocabularies[] = {
      "tokenizer.json",         "tokenizer.model", "spiece.model",   "vocab.txt",  "vocab.json",
      "encoder.json",           "tekken.json",     "tiktoken.model", "merges.txt", "vocab.bpe",
      "sentencepiece.bpe.model"};
  const auto has = [&](const char* name) { return io::exists(folder + "/" + name); };
  if (std::none_of(std::begin(kVocabularies), std::end(kVocabularies), has)) return nullptr;
  return Folder(folder).tokenizer();
}

std::unique_ptr<Tokenizer> open_tokenizer(const std::string& path) {
  io::require_path("open_tokenizer", path);
  if (const std::string reason = io::why_missing(path); !reason.empty()) throw Error("open_tokenizer", {reason});
  if (std::error_code unknown; !std::filesystem::is_directory(path, unknown)) return of_file(path);
  if (auto tokenizer = find_tokenizer(path)) return tokenizer;
  throw Error("open_tokenizer",
              {path +
               ": has no tokenizer.json, tokenizer.model, spiece.model, sentencepiece.bpe.model, vocab.json "
               "with merges.txt, encoder.json with vocab.bpe, or vocab.txt" +
               io::instead_in(path, io::Content::tokenizer)});
}

}  // namespace attn::text
