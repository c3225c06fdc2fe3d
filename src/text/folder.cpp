// open_tokenizer() and find_tokenizer(): merge the files of a model folder into one tokenizer.json.
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
#include "text/gguf.h"
#include "text/pipeline.h"
#include "text/sentencepiece.h"
#include "text/tokenizer_config.h"
#include "text/tokenizers.h"

namespace attn::text {
namespace {

using io::Json;

constexpr int64_t kMaxFile = int64_t{1} << 28;
constexpr const char *kVocab = "vocab.json", *kMerges = "merges.txt";

// ------------------------------------------------------------------------------------------------------- added tokens

/// The ids of a model's tokens and of added tokens, which are those that the package `tokenizers` gives.
class TokenIds {
 public:
  explicit TokenIds(const Json& model) : vocab_(model.contains("vocab") ? model["vocab"] : kNone) {
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

/// Extends the list "added_tokens" with the tokens of the folder's files, in the order of transformers'
/// TokenizersBackend.
class AddedTokenList {
 public:
  /// `source` is the name of the file of `root` in messages.
  AddedTokenList(Json& root, const TokenizerConfig& config, const std::string& folder, const std::string& source)
      : list_(root["added_tokens"]), folder_(folder), ids_(root["model"]) {
    if (list_.is_null()) list_ = Json::array();
    for (const JsonFields& fields : JsonFields(root, "", source).list("added_tokens")) {
      const AddedToken token = read_added_token(fields);
      if (token.content.empty()) continue;
      ids_.add(token.content);
      require_id(token.content, fields.number("id", kMaxTokens - 1));
      existing_[token.content] = token;
    }
    std::unordered_set<std::string> named, known;
    for (const auto& [role, token] : config.roles())
      if (token) named.insert(token->content);
    for (const auto& [content, token] : existing_) known.insert(content);
    for (const auto& [id, token] : config.added()) request(token, id);
    for (const auto& [token, id] : requested_) known.insert(token.content);
    std::unordered_set<std::string> seen;
    const auto request_new = [&](const AddedToken& token) {
      if (!known.contains(token.content) &&
          seen.insert((token.is_plain ? "" : token.json(0).dump()) + token.content).second)
        request(token);
    };
    for (const auto& [role, token] : config.roles())
      if (token) request_new(*token);
    for (const AddedToken& token : config.extra()) request_new(token);
    for (auto& [token, id] : requested_) {
      if (token.is_plain) token = special_token(token.content);
      else token.special = token.special || named.contains(token.content);
      const auto found = existing_.find(token.content);
      if (found == existing_.end() || found->second != token) add(token, id);
      else if (id) require_id(token.content, *id);
    }
  }

  /// Adds all special tokens again as plain special tokens, whatever the files say about them, as Qwen's class does.
  void add_again(const TokenizerConfig& config) {
    for (const auto& [role, token] : config.roles())
      if (token) add(special_token(token->content), std::nullopt);
    for (const AddedToken& token : config.extra()) add(special_token(token.content), std::nullopt);
  }

  const TokenIds& ids() const { return ids_; }

 private:
  void request(const AddedToken& token, std::optional<int64_t> id = std::nullopt) {
    requested_.emplace_back(token, id);
  }

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
                   ", must be " + std::to_string(given) + ", the next id after the vocabulary and earlier tokens"});
  }

  Json& list_;
  const std::string& folder_;
  TokenIds ids_;
  std::unordered_map<std::string, AddedToken> existing_;
  std::vector<std::pair<AddedToken, std::optional<int64_t>>> requested_;
};

// ------------------------------------------------------------------------------------------------------------- files

/// One merge for each way to split a piece into two other pieces, in the order of the pieces' ids.
Json merges_of(const std::vector<SentencePiece>& pieces) {
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

Json scored(const std::vector<SentencePiece>& pieces) {
  Json vocab = Json::array();
  for (const auto& piece : pieces) vocab.push_back({piece.text, piece.score});
  return vocab;
}

Json numbered(const std::vector<SentencePiece>& pieces) {
  Json vocab = Json::object();
  for (size_t id = 0; id < pieces.size(); ++id) vocab[pieces[id].text] = id;
  return vocab;
}

Json replaced(const char* what, const char* with) {
  return {{"type", "Replace"}, {"pattern", {{"String", what}}}, {"content", with}};
}

/// The pipeline of the general class around a SentencePiece model.
Json general_pipeline(const SentencePieceModel& model, TokenizerConfig& config, const std::string& path) {
  constexpr const char* kSpace = "\xE2\x96\x81";
  const auto& [pieces, is_unigram, falls_back, charsmap, ids, names] = model;
  if (is_unigram && !config.added().empty())
    throw Error("open_tokenizer",
                {path + ": a unigram model with added tokens is not supported for the general tokenizer class"});
  Json vocab = is_unigram ? scored(pieces) : numbered(pieces), part;
  for (const auto& [id, token] : config.added())  // they replace placeholder pieces
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
    if (ids[n] >= 0) config.set_default(roles[n], AddedToken{.content = names[n], .is_plain = true});
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

class TokenizerFolder {
 public:
  explicit TokenizerFolder(const std::string& path) : path_(path) {}

  std::unique_ptr<Tokenizer> tokenizer() {
    if (has("tokenizer.json")) {
      const std::string path = path_of("tokenizer.json"), bytes = io::read_file(path, kMaxFile);
      file_ = io::parse_json("load_tokenizer", path, bytes);
      if (!file_.is_object() || !file_.contains("model")) return load_tokenizer(bytes, path);
      JsonFields(file_, "", path).object("model");  // throws unless it is an object
      is_byte_level_ = bytes.find("\"ByteLevel\"") != std::string::npos;
    }
    const TokenizerClass* named = find_class();
    if (named && !is_named_ && has("tokenizer.json") && !fits(*named)) named = nullptr;
    const bool has_more = has("tokenizer_config.json") || has("special_tokens_map.json") || has("added_tokens.json");
    if (!named && has("tokenizer.json") && !has_more) return read_pipeline(file_, source());
    class_ = named ? named : &class_of_files();
    TokenizerConfig config(path_, has("tokenizer.json") ? &file_ : nullptr);
    const Json padding = file_.is_object() ? file_.value("padding", Json()) : Json();
    Json root = named || has("tokenizer.json") ? pipeline(config) : pipeline_of_files(config);
    if (padding.is_object() && padding.value("pad_token", Json()).is_string() && padding["pad_token"] != "")
      config.set_default("pad_token", AddedToken{.content = padding["pad_token"], .is_plain = true});
    AddedTokenList addition(root, config, path_, source());
    if (std::string_view(class_->names) == "Qwen2Tokenizer") addition.add_again(config);
    set_post_processor(root, config, addition.ids());
    set_batch_options(root, config, addition.ids(), named != nullptr);
    set_other_options(root, config, named != nullptr);
    return read_pipeline(root, source());
  }

 private:
  bool has(const char* name) const { return io::exists(path_of(name)); }
  std::string path_of(const char* name) const { return path_ + "/" + name; }
  std::string read(const char* name) const {
    std::string bytes = io::read_file(path_of(name), kMaxFile);
    if (!bytes.empty())
      io::require_vocabulary("open_tokenizer", path_of(name), bytes);  // a file of merges may be empty
    return bytes;
  }
  /// The file that messages name.
  std::string source() const {
    for (const char* name : {"tokenizer.json", class_ ? class_->file : kVocab})
      if (has(name)) return path_of(name);
    return path_;
  }

  /// The name of the folder's SentencePiece model; null if there is none.
  const char* sentencepiece_file() const {
    for (const char* name : {"tokenizer.model", "spiece.model", "sentencepiece.bpe.model"})
      if (has(name)) return name;
    return nullptr;
  }

  /// The class for a folder that names neither a class nor a family.
  const TokenizerClass& class_of_files() const {
    if (has("tokenizer.json") || sentencepiece_file()) return general_class();
    const bool has_pairs = (has(kVocab) && has(kMerges)) || (has("encoder.json") && has("vocab.bpe"));
    return class_of_name(has_pairs || !has("vocab.txt") ? "GPT2Tokenizer" : "BertTokenizer", path_);
  }
  /// The pipeline of such a folder. A SentencePiece model is read as its own library reads it.
  Json pipeline_of_files(TokenizerConfig& config) {
    const char* name = sentencepiece_file();
    return name ? sentencepiece_json(read(name), path_of(name)) : pipeline(config);
  }

  /// True if tokenizer.json can belong to a class that only the family names, judged by its type of model and by <s>.
  bool fits(const TokenizerClass& candidate) const {
    if (candidate.is_general()) return true;
    const std::string_view file = candidate.file;
    const char* wanted = file == "vocab.txt" ? "WordPiece" : file.starts_with("s") ? "Unigram" : "BPE";
    const Json &model = file_["model"], type = model.value("type", Json());
    const bool begins =
        std::string_view(candidate.names) != "MPNetTokenizer" || model.value("vocab", Json()).contains("<s>");
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

  Json pipeline(TokenizerConfig& config) {
    if (class_->is_general() && has("tokenizer.json")) return std::move(file_);
    if (has("tokenizer.json")) return rebuild_tokenizer_json(config);
    for (const char* name : {"tekken.json", "tiktoken.model"})
      if (has(name)) throw Error("open_tokenizer", {path_of(name) + ": is " + io::describe_foreign(path_of(name))});
    const std::string file = has("tokenizer.model") ? "tokenizer.model" : class_->file;
    if (file.ends_with(".model")) return build_from_sentencepiece(config, file);
    VocabularyFile vocabulary;
    if (file == "vocab.txt") {
      require(file.c_str());
      vocabulary.vocab = read_vocabulary_lines(read(file.c_str()), path_of(file.c_str()));
    } else {
      const bool is_old = !has(kVocab) && has("encoder.json");
      const char *vocab = is_old ? "encoder.json" : kVocab, *merges = is_old ? "vocab.bpe" : kMerges;
      require(vocab);
      require(merges);
      vocabulary.vocab = io::parse_json("open_tokenizer", path_of(vocab), read(vocab));
      vocabulary.merges = read_merges(read(merges), path_of(merges));
    }
    return class_->build(config, std::move(vocabulary));
  }

  void require(const char* name) const {
    if (!has(name))
      throw Error("open_tokenizer",
                  {path_ + ": has no " + name + " and no tokenizer.json, must have one of them for " + class_name()});
  }
  std::string class_name() const { return std::string(class_->names).substr(0, std::string(class_->names).find(' ')); }

  /// The pipeline of a class other than the general one, around the vocabulary of tokenizer.json.
  Json rebuild_tokenizer_json(TokenizerConfig& config) {
    JsonFields(file_["model"], "model", path_of("tokenizer.json")).at("vocab");  // throws if it is missing
    Json& model = file_["model"];
    VocabularyFile vocabulary{.charsmap = first_charsmap(file_)};
    vocabulary.vocab = std::move(model["vocab"]);
    if (model.contains("merges")) vocabulary.merges = std::move(model["merges"]);
    Json root = class_->build(config, std::move(vocabulary));
    for (const char* key : {"post_processor", "truncation", "padding"})
      if (file_.contains(key)) root[key] = file_[key];
    return root;
  }

  Json build_from_sentencepiece(TokenizerConfig& config, const std::string& name) const {
    require(name.c_str());
    const std::string path = path_of(name.c_str());
    SentencePieceModel model = read_sentencepiece(read(name.c_str()), path);
    config.additional.emplace();
    for (const auto& piece : model.pieces)
      if (piece.type == SentencePiece::kControl || piece.type == SentencePiece::kUserDefined)
        config.additional->push_back(
            {.content = piece.text, .special = piece.type == SentencePiece::kControl, .normalized = false});
    if (class_->is_general()) return general_pipeline(model, config, path);
    const bool is_fairseq = std::string_view(class_->file) == "sentencepiece.bpe.model";
    const bool takes_scores = is_fairseq || std::string_view(class_->file) == "spiece.model";
    if (std::string_view(class_->file) == "vocab.txt" || (is_fairseq && !model.is_unigram))
      throw Error("open_tokenizer",
                  {path + ": is a SentencePiece model, which is not a vocabulary of " + class_name()});
    VocabularyFile vocabulary{.vocab = takes_scores ? scored(model.pieces) : numbered(model.pieces),
                              .merges = takes_scores ? Json::array() : merges_of(model.pieces),
                              .charsmap = std::move(model.charsmap)};
    if (class_->from_pieces) class_->from_pieces(vocabulary, config);
    return class_->build(config, std::move(vocabulary));
  }

  // --------------------------------------------------------------------------------------------- special tokens,
  // lengths

  void set_post_processor(Json& root, const TokenizerConfig& config, const TokenIds& ids) const {
    const IdOf id_of = [&](const std::string& content) -> int64_t {
      const AddedToken* unknown = config.role("unk_token");
      if (const auto id = ids.find(content)) return *id;
      if (const auto id = unknown ? ids.find(unknown->content) : std::nullopt) return *id;
      throw Error("open_tokenizer",
                  {path_ + ": has no token " + io::in_quotes(content) + ", which " + class_name() + " adds to a text"});
    };
    const bool has_post_processor = root.contains("post_processor") && !root["post_processor"].is_null();
    if (class_->build_post_processor) root["post_processor"] = class_->build_post_processor(config, id_of);
    else if (!has_post_processor || config.mentions("add_bos_token") || config.mentions("add_eos_token"))
      root["post_processor"] = bos_eos_template(config, config.boolean("add_bos_token", false, false),
                                                config.boolean("add_eos_token", false, false), id_of);
  }

  /// "right" or "left"
  static std::string side(const TokenizerConfig& config, const char* key, const Json& file, bool is_left) {
    const Json of_file = file.is_object() ? file.value("direction", Json()) : Json();
    const std::string fallback = of_file.is_string() ? of_file == "Left" ? "left" : "right"
                                 : is_left           ? "left"
                                                     : "right";
    if (!config.mentions(key)) return fallback;
    const auto name = config.text(key);
    if (name != "left" && name != "right") config.refuse(key, "\"left\" or \"right\"");
    return *name;
  }

  /// If the folder names a class, tokenizer_config.json decides about truncation and padding, else tokenizer.json does.
  void set_batch_options(Json& root, const TokenizerConfig& config, const TokenIds& ids, bool is_named) const {
    constexpr double kMost = 1e12;  // a larger number means no limit
    const Json truncation = root.value("truncation", Json()), padding_of_file = root.value("padding", Json());
    const std::string truncation_side = side(config, "truncation_side", truncation, false);
    const char* key = config.mentions("model_max_length") ? "model_max_length" : "max_len";
    const Json* max_length = config.find(key);
    if (max_length && (!max_length->is_number() || max_length->get<double>() < 0))
      config.refuse(key, "a number of tokens");
    if (is_named || max_length) root.erase("truncation");
    if (max_length && max_length->get<double>() < kMost)
      root["truncation"] = {{"max_length", config.number(key, static_cast<int64_t>(kMost), 0)},
                            {"strategy", "LongestFirst"},
                            {"stride", 0}};
    if (root.contains("truncation") && root["truncation"].is_object())
      root["truncation"]["direction"] = truncation_side == "left" ? "Left" : "Right";
    else if (truncation_side == "left") root["truncation_side"] = "left";
    const std::string padding_side = side(config, "padding_side", padding_of_file, class_->pads_left);
    const AddedToken* pad = config.role("pad_token");
    Json padding = padding_of_file.is_object() && !is_named
                       ? padding_of_file
                       : Json{{"strategy", "BatchLongest"}, {"pad_to_multiple_of", nullptr}};
    root.erase("padding");
    if (!pad) return;
    padding["direction"] = padding_side == "left" ? "Left" : "Right";
    padding["pad_type_id"] = 0;
    padding["pad_token"] = pad->content;
    padding["pad_id"] = ids.find(pad->content).value_or(0);
    root["padding"] = std::move(padding);
  }

  void set_other_options(Json& root, const TokenizerConfig& config, bool is_named) const {
    bool has_types = class_->has_types || !is_named;
    if (config.mentions("model_input_names")) {
      const Json* names = config.find("model_input_names");
      if (!names || !names->is_array()) config.refuse("model_input_names", "a list of names");
      has_types = std::find(names->begin(), names->end(), "token_type_ids") != names->end();
    }
    if (!has_types) root["token_types"] = false;
    if (config.boolean("split_special_tokens", false)) root["split_special_tokens"] = true;
    const bool even_for_bpe =
        config.boolean("clean_up_tokenization_spaces_for_bpe_even_though_it_will_corrupt_output", false, false);
    if (config.boolean("clean_up_tokenization_spaces", false, false))
      root["clean_up_spaces"] = even_for_bpe || root["model"].value("type", Json()) != "BPE";
  }

  std::string path_;
  Json file_;
  bool is_byte_level_ = false, is_named_ = false;
  const TokenizerClass* class_ = nullptr;
};

/// Opens a tokenizer.json or a SentencePiece model. Error names the format of a file that is neither.
std::unique_ptr<Tokenizer> open_file(const std::string& path) {
  if (io::is_gguf(path)) return read_pipeline(gguf_tokenizer(io::Gguf::map(path)), path);
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
  if (io::is_gguf(folder)) return open_file(folder);
  constexpr const char* kVocabularies[] = {
      "tokenizer.json",         "tokenizer.model", "spiece.model",   "vocab.txt",  "vocab.json",
      "encoder.json",           "tekken.json",     "tiktoken.model", "merges.txt", "vocab.bpe",
      "sentencepiece.bpe.model"};
  const auto has = [&](const char* name) { return io::exists(folder + "/" + name); };
  if (std::none_of(std::begin(kVocabularies), std::end(kVocabularies), has)) return nullptr;
  return TokenizerFolder(folder).tokenizer();
}

std::unique_ptr<Tokenizer> open_tokenizer(const std::string& path) {
  io::require_path("open_tokenizer", path);
  if (const std::string reason = io::why_missing(path); !reason.empty()) throw Error("open_tokenizer", {reason});
  if (std::error_code unknown; !std::filesystem::is_directory(path, unknown)) return open_file(path);
  if (auto tokenizer = find_tokenizer(path)) return tokenizer;
  throw Error("open_tokenizer",
              {path +
               ": has no tokenizer.json, tokenizer.model, spiece.model, sentencepiece.bpe.model, vocab.json "
               "with merges.txt, encoder.json with vocab.bpe, or vocab.txt" +
               io::instead_in(path, io::Content::tokenizer)});
}

}  // namespace attn::text
