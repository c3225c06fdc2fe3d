// The way of a text through a tokenizer.json: added tokens, normalizer, pre-tokenizer, model, post-processor; and back
// through the decoder.
#include "text/pipeline.h"

#include <algorithm>
#include <cstdio>
#include <mutex>
#include <utility>

#include "attn/core.h"
#include "text/added_tokens.h"
#include "text/decoder.h"
#include "text/model.h"
#include "text/normalizer.h"
#include "text/post_processor.h"
#include "text/pre_tokenizer.h"
#include "text/tokenizers.h"

namespace attn::text {
namespace {

/// What calls leave to later ones: of two calls at a time each has its own.
struct Memory {
  WordCache words, parts;
  Pieces pieces;
  std::string spelt;  // a word in the alphabet of bytes
};

class Memories {
 public:
  std::unique_ptr<Memory> take() const {
    const std::lock_guard lock(mutex_);
    if (free_.empty()) return std::make_unique<Memory>();
    std::unique_ptr<Memory> memory = std::move(free_.back());
    free_.pop_back();
    return memory;
  }
  void give_back(std::unique_ptr<Memory> memory) const {
    constexpr size_t kMaxText = size_t{1} << 20;
    if (memory->pieces.text.capacity() > kMaxText) memory->pieces = Pieces();
    const std::lock_guard lock(mutex_);
    free_.push_back(std::move(memory));
  }

 private:
  mutable std::mutex mutex_;
  mutable std::vector<std::unique_ptr<Memory>> free_;
};

std::unique_ptr<TokenModel> read_model(const JsonFields& fields) {
  std::string type = fields.type();
  if (type.empty() && fields.has("merges")) type = "BPE";  // as files of old have it
  if (type.empty() && fields.has("unk_id")) type = "Unigram";
  if (type.empty() && fields.has("max_input_chars_per_word")) type = "WordPiece";
  if (type == "BPE") return read_bpe(fields);
  if (type == "WordPiece") return read_wordpiece(fields);
  if (type == "Unigram") return read_unigram(fields);
  if (type == "WordLevel") return read_wordlevel(fields);
  fields.refuse_type({"BPE", "Unigram", "WordLevel", "WordPiece"});
}

Lengths read_lengths(const JsonFields& root) {
  constexpr int64_t kMost = int64_t{1} << 40, kMostPadded = 1 << 24;
  Lengths lengths;
  lengths.cuts_left = root.choice("truncation_side", {"right", "left"}, 0) == 1;
  if (root.has("truncation")) {
    const JsonFields fields = root.object("truncation");
    lengths.longest = fields.number("max_length", kMost);
    lengths.cuts_left = fields.choice("direction", {"Right", "Left"}, 0) == 1;
  }
  if (root.has("padding")) {
    const JsonFields fields = root.object("padding");
    lengths.padding = fields.number("pad_id", kMaxTokens - 1, 0);
    lengths.padding_type = fields.number("pad_type_id", kMaxTokens - 1, 0);
    lengths.pads_left = fields.choice("direction", {"Right", "Left"}, 0) == 1;
    if (fields.has("strategy") && fields.at("strategy").is_object())
      lengths.padded = fields.object("strategy").number("Fixed", kMostPadded);
    else if (fields.has("strategy"))
      fields.require(fields.at("strategy") == "BatchLongest", "strategy", "\"BatchLongest\" or {\"Fixed\": LENGTH}");
    if (fields.has("pad_to_multiple_of")) lengths.multiple = fields.number("pad_to_multiple_of", kMostPadded);
  }
  return lengths;
}

class Pipeline final : public Tokenizer {
 public:
  Pipeline(const JsonFields& root, std::string_view json) : json_(json) {
    model_ = read_model(root.object("model"));
    if (root.has("normalizer")) normalizer_ = read_normalizer(root.object("normalizer"));
    if (root.has("pre_tokenizer")) pre_tokenizer_ = read_pre_tokenizer(root.object("pre_tokenizer"));
    if (root.has("post_processor")) post_processor_ = PostProcessor(root.object("post_processor"));
    if (root.has("decoder")) decoder_ = Decoder(root.object("decoder"));
    if (root.boolean("clean_up_spaces", false)) decoder_.clean_up_spaces();
    has_types_ = root.boolean("type_vocab_size", true);
    added_ = AddedTokens(root, model_->vocabulary(), normalizer_.get());
    lengths_ = read_lengths(root);
    if (root.boolean("transcripts", false)) read_transcripts();
    size_ = std::max(model_->vocabulary().size(), added_.size());
    const std::vector<int64_t> nothing;
    for (const Encoding& around : {post_processor_.apply(nothing, nullptr), post_processor_.apply(nothing, &nothing)})
      for (int64_t id : around.ids)
        if (!has(id)) root.refuse("post_processor: the id " + std::to_string(id) + " is that of no token");
  }

  std::string kind() const override { return model_->kind(); }
  int64_t size() const override { return size_; }
  std::string to_json() const override { return json_; }
  Lengths lengths() const override { return lengths_; }
  bool is_special(int64_t id) const override { return has(id) && added_.is_special(content(id)); }

  std::optional<int64_t> find(std::string_view token) const override {
    const auto added = added_.find(token);
    return added ? added : model_->vocabulary().id_of(token);
  }

  std::vector<int64_t> encode(std::string_view text) const override {
    require_utf8(text, "the text");
    std::vector<int64_t> ids;
    std::unique_ptr<Memory> memory = memories_.take();
    for (const AddedTokens::Part& part : added_.parts(text, false))
      if (part.id >= 0) ids.push_back(part.id);
      else encode_part(text.substr(part.begin, part.end - part.begin), part.begin, *memory, ids);
    memories_.give_back(std::move(memory));
    return ids;
  }

  Encoding encode_marked(std::string_view text) const override { return surrounded(encode(text), nullptr); }

  Encoding encode_marked(std::string_view first, std::string_view second) const override {
    const std::vector<int64_t> ids = encode(second);
    return surrounded(encode(first), &ids);
  }

  Encoding encode_within(int64_t longest, std::string_view text) const override {
    std::vector<int64_t> ids = encode(text);
    cut(ids, room(longest, false), lengths_.cuts_left);
    return surrounded(ids, nullptr);
  }

  Encoding encode_within(int64_t longest, std::string_view first, std::string_view second) const override {
    std::vector<int64_t> ids = encode(first), others = encode(second);
    cut_longer(ids, others, room(longest, true), lengths_.cuts_left);
    return surrounded(ids, &others);
  }

  std::string decode(std::span<const int64_t> ids) const override {
    require_ids(ids, size_);
    const std::unique_ptr<Decoding> decoding = this->decoding();
    std::string text;
    for (int64_t id : ids) text += decoding->push(id);
    return text + decoding->finish();
  }

  std::unique_ptr<Decoding> decoding() const override;

  std::string label(int64_t id) const override {
    require_ids({&id, 1}, size_);
    if (!has(id)) return "#" + std::to_string(id);
    const std::string token(content(id));
    if (token.empty()) return "\"\"";
    return decoder_.is_byte_level() && !added_.text(id) ? label_of_bytes(token) : label_of_text(token);
  }

 private:
  class Steps;

  bool has(int64_t id) const { return added_.text(id) || model_->vocabulary().has(id); }
  std::string_view content(int64_t id) const {
    const std::string* added = added_.text(id);
    return added ? *added : model_->vocabulary().token(id);
  }

  Encoding surrounded(const std::vector<int64_t>& first, const std::vector<int64_t>* second) const {
    Encoding encoding = post_processor_.apply(first, second);
    if (!has_types_) encoding.types.assign(encoding.ids.size(), 0);
    return encoding;
  }

  /// Whisper's tokens of time are no text, nor is what is between the first of these and the second.
  void read_transcripts() {
    decoder_.drop_times();
    prompt_ = {find("<|startofprev|>").value_or(-1), find("<|startoftranscript|>").value_or(-1)};
  }

  void encode_part(std::string_view part, size_t begin, Memory& memory, std::vector<int64_t>& ids) const {
    std::string text(part);
    size_t first = 0;
    if (begin == 0) next_character(text, first);
    if (normalizer_) normalizer_->apply(text, first);
    for (const AddedTokens::Part& inner : added_.parts(text, true))
      if (inner.id >= 0) ids.push_back(inner.id);
      else
        encode_text(std::string_view(text).substr(inner.begin, inner.end - inner.begin),
                    first - std::min(first, inner.begin), memory, ids);
  }

  void encode_text(std::string_view text, size_t first, Memory& memory, std::vector<int64_t>& ids) const {
    Pieces& pieces = memory.pieces;
    pieces.text = text;
    pieces.ranges = {{0, text.size()}};
    pieces.first = first;
    if (pre_tokenizer_) pre_tokenizer_->apply(pieces);
    const bool spells = pre_tokenizer_ && pre_tokenizer_->leaves_bytes();
    for (size_t n = 0; n < pieces.ranges.size(); ++n) {
      const std::string_view piece = pieces[n];
      uint64_t hash;
      if (memory.words.append(piece, ids, hash)) continue;
      const size_t before = ids.size();
      if (spells) {
        memory.spelt.clear();
        for (char byte : piece) append_byte_character(memory.spelt, static_cast<uint8_t>(byte));
      }
      model_->encode(spells ? memory.spelt : piece, memory.parts, ids);
      memory.words.remember(piece, hash, ids.data() + before, ids.size() - before);
    }
  }

  int64_t room(int64_t longest, bool two) const {
    const int64_t added = post_processor_.added(two);
    if (longest < added)
      throw Error("encode_within", {"longest is " + std::to_string(longest) + ", must be at least " +
                                    std::to_string(added) + ", as many tokens are around a text"});
    return longest - added;
  }

  static std::string label_of_text(std::string text) {
    constexpr std::string_view kMetaspace = "\xE2\x96\x81";
    for (size_t at; (at = text.find(kMetaspace)) != std::string::npos;) text.replace(at, kMetaspace.size(), " ");
    return visible(text);
  }

  /// Characters where the bytes are some, else their numbers: 0xE2.
  static std::string label_of_bytes(std::string_view token) {
    std::string bytes;
    for (size_t at = 0; at < token.size();) {
      const int byte = byte_of(next_character(token, at));
      if (byte < 0) return label_of_text(std::string(token));
      bytes += static_cast<char>(byte);
    }
    std::string label;
    for (size_t at = 0; at < bytes.size();) {
      const size_t begin = at;
      if (next_character(bytes, at) >= 0) {
        label += visible(bytes.substr(begin, at - begin));
        continue;
      }
      char code[8];
      std::snprintf(code, sizeof code, "0x%02X", static_cast<uint8_t>(bytes[at++]));
      label += code;
    }
    return label;
  }

  std::string json_;
  std::unique_ptr<TokenModel> model_;
  std::unique_ptr<Normalizer> normalizer_;
  std::unique_ptr<PreTokenizer> pre_tokenizer_;
  PostProcessor post_processor_;
  Decoder decoder_;
  AddedTokens added_;
  Lengths lengths_;
  int64_t size_ = 0;
  bool has_types_ = true;
  std::pair<int64_t, int64_t> prompt_ = {-1, -1};
  Memories memories_;
};

class Pipeline::Steps final : public Tokenizer::Decoding {
 public:
  explicit Steps(const Pipeline& pipeline) : pipeline_(pipeline), steps_(pipeline.decoder_.steps()) {}

  std::string push(int64_t id) override {
    require_ids({&id, 1}, pipeline_.size_);
    if (std::exchange(is_first_, false)) in_prompt_ = id == pipeline_.prompt_.first;
    in_prompt_ = in_prompt_ && id != pipeline_.prompt_.second;
    if (in_prompt_ || pipeline_.is_special(id) || !pipeline_.has(id)) return "";
    pass(0, std::string(pipeline_.content(id)));
    return std::exchange(text_, {});
  }

  std::string finish() override {
    is_first_ = true;
    for (size_t n = 0; n < steps_.size(); ++n)
      steps_[n]->finish([&](std::string token) { pass(n + 1, std::move(token)); });
    return std::exchange(text_, {});
  }

 private:
  void pass(size_t step, std::string token) {
    if (step == steps_.size()) return void(text_ += token);
    steps_[step]->push(std::move(token), [&](std::string changed) { pass(step + 1, std::move(changed)); });
  }

  const Pipeline& pipeline_;
  std::vector<std::unique_ptr<DecodeStep>> steps_;
  std::string text_;
  bool is_first_ = true, in_prompt_ = false;
};

std::unique_ptr<Tokenizer::Decoding> Pipeline::decoding() const { return std::make_unique<Steps>(*this); }

}  // namespace

std::unique_ptr<Tokenizer> read_pipeline(const JsonFields& root, std::string_view json) {
  return std::make_unique<Pipeline>(root, json);
}

}  // namespace attn::text
