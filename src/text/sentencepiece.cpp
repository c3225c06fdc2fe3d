// A SentencePiece model is a message of protobuf. This file converts it to the tokenizer.json with the same meaning.
#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <tuple>
#include <utility>

#include "attn/core.h"
#include "attn/core_base64.h"
#include "io/foreign.h"
#include "io/json.h"
#include "text/pipeline.h"
#include "text/sentencepiece.h"
#include "text/tokenizer_config.h"
#include "text/tokenizers.h"
#include "text/vocabulary.h"

namespace attn::text {
namespace {

using io::Json;

/// Reads the fields of a message one after the other.
class ProtobufMessage {
 public:
  ProtobufMessage(std::string_view bytes, const std::string& source) : bytes_(bytes), source_(source) {}

  /// Reads the next field; false at the end. Sets `field` to its number, and `number` or `text` to its value.
  bool next() {
    if (at_ == bytes_.size()) return false;
    const uint64_t key = varint();
    field = key >> 3;
    const int type = static_cast<int>(key & 7);
    text = {};
    number = 0;
    if (type == 0) number = varint();
    else if (type == 1) take(8);
    else if (type == 2) text = take(varint());
    else if (type == 5) text = take(4);
    else refuse("a field has the wire type " + std::to_string(type) + ", must be 0, 1, 2 or 5");
    return true;
  }

  [[noreturn]] void refuse(const std::string& what) const {
    throw Error("load_sentencepiece", {source_ + ": not a SentencePiece model: " + what});
  }

  uint64_t field = 0, number = 0;
  std::string_view text;

  /// The number as a token id; -1 if it is outside the range of ids.
  int64_t as_id() const { return number < static_cast<uint64_t>(kMaxTokens) ? static_cast<int64_t>(number) : -1; }

  float as_float() const {
    uint32_t bits = 0;
    if (text.size() != 4) refuse("a score has " + std::to_string(text.size()) + " bytes, must have 4");
    for (size_t n = 4; n-- > 0;) bits = bits << 8 | static_cast<uint8_t>(text[n]);
    float value;
    std::memcpy(&value, &bits, sizeof value);
    if (!(value > -1e30f && value < 1e30f)) refuse("a score is not finite or not between -1e30 and 1e30");
    return value;
  }

 private:
  uint64_t varint() {
    uint64_t value = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      const auto byte = static_cast<uint8_t>(take(1)[0]);
      value |= uint64_t{byte & 127u} << shift;
      if (byte < 128) return value;
    }
    refuse("a number has more than ten bytes");
  }

  std::string_view take(uint64_t count) {
    if (count > bytes_.size() - at_) refuse("it ends inside a field");
    at_ += count;
    return bytes_.substr(at_ - count, count);
  }

  std::string_view bytes_;
  const std::string& source_;
  size_t at_ = 0;
};

using enum SentencePiece::Type;

class SentencePieceReader {
 public:
  SentencePieceReader(std::string_view bytes, const std::string& source) : source_(source) {
    io::require_vocabulary("load_sentencepiece", source, bytes);
    for (ProtobufMessage message(bytes, source); message.next();) {
      if (message.field == 1) read_piece(message.text);
      else if (message.field == 2) read_trainer(message.text);
      else if (message.field == 3) read_normalizer(message.text);
    }
    if (pieces_.empty()) ProtobufMessage({}, source).refuse("it has no pieces");
    if (model_type_ != 1 && model_type_ != 2)
      throw Error("load_sentencepiece", {source + ": the model is of the type " + std::to_string(model_type_) +
                                         ", must be 1 (unigram) or 2 (bpe)"});
  }

  SentencePieceReader(std::vector<SentencePiece> pieces, bool adds_prefix, bool removes_spaces,
                      const std::string& source)
      : source_(source),
        pieces_(std::move(pieces)),
        model_type_(2),
        byte_fallback_(true),
        adds_prefix_(adds_prefix),
        removes_spaces_(removes_spaces) {
    for (size_t id = 0; id < pieces_.size(); ++id) ids_.emplace(pieces_[id].text, id);
  }

  Json json() const {
    Json root = {{"added_tokens", added_tokens()}, {"model", model_type_ == 1 ? unigram() : bpe()}};
    Json parts = Json::array();
    if (adds_prefix_) parts.push_back({{"type", "Prepend"}, {"prepend", " "}, {"at_start", true}});
    if (!charsmap_.empty())
      parts.push_back({{"type", "Precompiled"},
                       {"precompiled_charsmap", base64(charsmap_.data(), charsmap_.size())},
                       {"longest", true}});
    if (removes_spaces_) {  // a leading space is the prefix
      if (!adds_prefix_) parts.push_back(replacement("\\A +", ""));
      parts.push_back(replacement("[ \xE2\x96\x81]+\\z", ""));
      parts.push_back(replacement(" {2,}", " "));
    }
    parts.push_back(replacement(" ", kSpace));
    root["normalizer"] = {{"type", "Sequence"}, {"normalizers", parts}};
    Json decoders = {{{"type", "Replace"}, {"pattern", {{"String", kSpace}}}, {"content", " "}},
                     {{"type", "ByteFallback"}},
                     {{"type", "Fuse"}}};
    if (adds_prefix_)
      decoders.push_back(
          {{"type", "Strip"}, {"content", " "}, {"start", removes_spaces_ ? kMaxTokenBytes : 1}, {"stop", 0}});
    root["decoder"] = {{"type", "Sequence"}, {"decoders", decoders}};
    return root;
  }

  SentencePieceModel parts() && {
    for (const std::string& name : specials_)
      if (malformed_at(name) != std::string::npos)
        ProtobufMessage({}, source_).refuse("the name of a token is not UTF-8");
    return {std::move(pieces_), model_type_ == 1,
            byte_fallback_,     charsmap_.empty() ? "" : base64(charsmap_.data(), charsmap_.size()),
            ids_of_specials_,   std::move(specials_)};
  }

 private:
  static constexpr const char* kSpace = "\xE2\x96\x81";

  static Json replacement(const char* pattern, const char* content) {
    return {{"type", "Replace"}, {"pattern", {{"Regex", pattern}}}, {"content", content}};
  }

  void read_piece(std::string_view bytes) {
    SentencePiece piece;
    for (ProtobufMessage message(bytes, source_); message.next();) {
      if (message.field == 1) piece.text = message.text;
      else if (message.field == 2) piece.score = message.as_float();
      else if (message.field == 3) piece.type = static_cast<int>(std::min<uint64_t>(message.number, 99));
    }
    const std::string name = "piece " + std::to_string(pieces_.size());
    if (piece.text.empty() || malformed_at(piece.text) != std::string::npos)
      ProtobufMessage({}, source_).refuse(name + " is empty or not UTF-8");
    if (static_cast<int64_t>(pieces_.size()) >= kMaxTokens)
      ProtobufMessage({}, source_).refuse("it has more than " + std::to_string(kMaxTokens) + " pieces");
    ids_.emplace(piece.text, pieces_.size());
    pieces_.push_back(std::move(piece));
  }

  void read_trainer(std::string_view bytes) {
    for (ProtobufMessage message(bytes, source_); message.next();) {
      if (message.field == 3) model_type_ = message.number;
      else if (message.field == 35) byte_fallback_ = message.number != 0;
      else if (message.field == 24) treats_as_suffix_ = message.number != 0;
      else if (message.field >= 40 && message.field <= 42) ids_of_specials_[message.field - 40] = message.as_id();
      else if (message.field >= 45 && message.field <= 47) specials_[message.field - 45] = message.text;
    }
    if (treats_as_suffix_)
      throw Error("load_sentencepiece", {source_ + ": treat_whitespace_as_suffix is true, must be false"});
  }

  void read_normalizer(std::string_view bytes) {
    for (ProtobufMessage message(bytes, source_); message.next();) {
      if (message.field == 2) charsmap_ = message.text;
      else if (message.field == 3) adds_prefix_ = message.number != 0;
      else if (message.field == 4) removes_spaces_ = message.number != 0;
    }
  }

  Json added_tokens() const {
    Json list = Json::array();
    for (size_t id = 0; id < pieces_.size(); ++id)
      if (const int type = pieces_[id].type; type == kUnknown || type == kControl || type == kUserDefined)
        list.push_back(
            AddedToken{.content = pieces_[id].text, .special = type != kUserDefined, .normalized = false}.json(
                static_cast<int64_t>(id)));
    return list;
  }

  Json unigram() const {
    Json vocab = Json::array(), unknown, unmatched = Json::array();
    for (const SentencePiece& piece : pieces_) {
      if (piece.type != kNormal && piece.type != kUserDefined) unmatched.push_back(vocab.size());
      if (piece.type == kUnknown) unknown = vocab.size();
      vocab.push_back({piece.text, piece.score});
    }
    return {{"type", "Unigram"},      {"vocab", vocab}, {"unk_id", unknown}, {"byte_fallback", byte_fallback_},
            {"unmatched", unmatched}, {"float32", true}};
  }

  /// One merge for each way to split a piece into two other pieces, in the order of falling scores.
  Json bpe() const {
    std::vector<std::tuple<double, size_t, size_t, size_t>> merges;  // -score, the piece, its parts
    Json vocab = Json::object(), unknown;
    for (size_t id = 0; id < pieces_.size(); ++id) {
      const SentencePiece& piece = pieces_[id];
      if (piece.type == kUnknown) unknown = piece.text;
      vocab[piece.text] = id;
      if (piece.type != kNormal || piece.text.size() > kMaxTokenBytes) continue;
      for (size_t at = 1; at < piece.text.size(); ++at) {
        const auto left = ids_.find(std::string_view(piece.text).substr(0, at));
        if (left == ids_.end()) continue;
        const auto right = ids_.find(std::string_view(piece.text).substr(at));
        if (right != ids_.end()) merges.emplace_back(-piece.score, id, left->second, right->second);
      }
    }
    std::sort(merges.begin(), merges.end());
    Json list = Json::array();
    for (const auto& [score, id, left, right] : merges) list.push_back({pieces_[left].text, pieces_[right].text});
    return {{"type", "BPE"},        {"vocab", vocab},   {"merges", list},
            {"unk_token", unknown}, {"fuse_unk", true}, {"byte_fallback", byte_fallback_}};
  }

  const std::string& source_;
  std::vector<SentencePiece> pieces_;
  std::map<std::string, size_t, std::less<>> ids_;
  std::string charsmap_;
  std::array<int64_t, 3> ids_of_specials_ = {0, 1, 2};
  std::array<std::string, 3> specials_ = {"<unk>", "<s>", "</s>"};
  uint64_t model_type_ = 1;
  bool byte_fallback_ = false, treats_as_suffix_ = false, adds_prefix_ = true, removes_spaces_ = true;
};

}  // namespace

SentencePieceModel read_sentencepiece(std::string_view bytes, const std::string& source) {
  return SentencePieceReader(bytes, source).parts();
}

io::Json sentencepiece_json(std::string_view bytes, const std::string& source) {
  return SentencePieceReader(bytes, source).json();
}

io::Json sentencepiece_json(std::vector<SentencePiece> pieces, bool adds_prefix, bool removes_spaces,
                            const std::string& source) {
  return SentencePieceReader(std::move(pieces), adds_prefix, removes_spaces, source).json();
}

std::unique_ptr<Tokenizer> load_sentencepiece(std::string_view bytes, const std::string& source) {
  return read_pipeline(sentencepiece_json(bytes, source), source);
}

}  // namespace attn::text
