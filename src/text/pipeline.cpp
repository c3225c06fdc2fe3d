// Encoding passes a text through added tokens, normalizer, pre-tokenizer, model and post-processor. Decoding passes the
// tokens through the decoder.
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

/// Memory that one call of encode_ids() reuses from earlier calls.
struct EncodeScratch {
  WordCache words, parts;
  Pieces pieces;
  std::string byte_characters;  // a word as append_byte_character() writes it
};

/// Gives each of several calls at the same time an EncodeScratch of its own.
class ScratchPool {
 public:
  std::unique_ptr<EncodeScratch> take() const {
    const std::lock_guard lock(mutex_);
    if (free_.empty()) return std::make_unique<EncodeScratch>();
    std::unique_ptr<EncodeScratch> scratch = std::move(free_.back());
    free_.pop_back();
    return scratch;
  }
  void give_back(std::unique_ptr<EncodeScratch> scratch) const {
    constexpr size_t kMaxText = size_t{1} << 20;
    if (scratch->pieces.text.capacity() > kMaxText) scratch->pieces = Pieces();
    const std::lock_guard lock(mutex_);
    free_.push_back(std::move(scratch));
  }

 private:
  mutable std::mutex mutex_;
  mutable std::vector<std::unique_ptr<EncodeScratch>> free_;
};

std::unique_ptr<TokenModel> read_model(const JsonFields& fields) {
  std::string type = fields.type();
  if (type.empty() && fields.has("merges")) type = "BPE";  // older files have no type
  if (type.empty() && fields.has("unk_id")) type = "Unigram";
  if (type.empty() && fields.has("max_input_chars_per_word")) type = "WordPiece";
  if (type == "BPE") return read_bpe(fields);
  if (type == "WordPiece") return read_wordpiece(fields);
  if (type == "Unigram") return read_unigram(fields);
  if (type == "WordLevel") return read_wordlevel(fields);
  fields.refuse_type({"BPE", "Unigram", "WordLevel", "WordPiece"});
}

BatchOptions read_batch_options(const JsonFields& root) {
  constexpr int64_t kMost = int64_t{1} << 40, kMostPadded = 1 << 24;
  const auto side = [](const JsonFields& fields, const char* key) {
    return fields.choice(key, {"right", "left"}, 0) == 1 ? Side::left : Side::right;
  };
  BatchOptions options;
  options.truncation_side = side(root, "truncation_side");
  if (root.has("truncation")) {
    const JsonFields fields = root.object("truncation");
    options.max_length = fields.number("max_length", kMost);
    options.truncation_side = side(fields, "direction");
  }
  if (root.has("padding")) {
    const JsonFields fields = root.object("padding");
    options.pad_id = fields.number("pad_id", kMaxTokens - 1, 0);
    options.pad_type_id = fields.number("pad_type_id", kMaxTokens - 1, 0);
    options.padding_side = side(fields, "direction");
    if (fields.has("strategy") && fields.at("strategy").is_object())
      options.pad_to_length = fields.object("strategy").number("Fixed", kMostPadded);
    else if (fields.has("strategy"))
      fields.require(fields.at("strategy") == "BatchLongest", "strategy", "\"BatchLongest\" or {\"Fixed\": LENGTH}");
    if (fields.has("pad_to_multiple_of")) options.pad_to_multiple_of = fields.number("pad_to_multiple_of", kMostPadded);
  }
  return options;
}

class TokenizerPipeline final : public Tokenizer {
 public:
  TokenizerPipeline(const JsonFields& root, std::string json) : json_(std::move(json)) {
    model_ = read_model(root.object("model"));
    if (root.has("normalizer")) normalizer_ = read_normalizer(root.object("normalizer"));
    if (root.has("pre_tokenizer")) pre_tokenizer_ = read_pre_tokenizer(root.object("pre_tokenizer"));
    if (root.has("post_processor")) post_processor_ = PostProcessor(root.object("post_processor"));
    if (root.has("decoder")) decoder_ = Decoder(root.object("decoder"));
    if (root.boolean("clean_up_spaces", false)) decoder_.clean_up_spaces();
    has_token_types_ = root.boolean("token_types", true);
    added_ = AddedTokens(root, model_->vocabulary(), normalizer_.get());
    batch_options_ = read_batch_options(root);
    if (root.boolean("transcripts", false)) read_transcripts();
    vocab_size_ = std::max(model_->vocabulary().size(), added_.size());
    const std::vector<int64_t> empty;
    for (const std::vector<int64_t>* second : {static_cast<const std::vector<int64_t>*>(nullptr), &empty})
      for (int64_t id : post_processor_.apply(empty, second, true).ids)
        if (!has(id)) root.refuse("post_processor: the id " + std::to_string(id) + " has no token");
  }

  std::string kind() const override { return model_->kind(); }
  int64_t vocab_size() const override { return vocab_size_; }
  std::string to_json() const override { return json_; }
  BatchOptions batch_options() const override { return batch_options_; }
  bool is_special(int64_t id) const override { return has(id) && added_.is_special(content(id)); }

  std::optional<int64_t> token_to_id(std::string_view token) const override {
    const auto added = added_.find(token);
    return added ? added : model_->vocabulary().id_of(token);
  }

  std::vector<int64_t> encode_ids(std::string_view text) const override {
    require_utf8(text, "the text");
    std::vector<int64_t> ids;
    std::unique_ptr<EncodeScratch> scratch = scratch_pool_.take();
    for (const AddedTokens::Segment& segment : added_.split(text, false))
      if (segment.id >= 0) ids.push_back(segment.id);
      else encode_segment(text.substr(segment.begin, segment.end - segment.begin), segment.begin, *scratch, ids);
    scratch_pool_.give_back(std::move(scratch));
    return ids;
  }

  std::string decode(std::span<const int64_t> ids) const override {
    require_ids(ids, vocab_size_);
    const std::unique_ptr<TokenDecoding> decoding = this->decoding();
    std::string text;
    for (int64_t id : ids) text += decoding->push(id);
    return text + decoding->finish();
  }

  std::string label(int64_t id) const override {
    require_ids({&id, 1}, vocab_size_);
    if (!has(id)) return "#" + std::to_string(id);
    const std::string token(content(id));
    if (token.empty()) return "\"\"";
    return decoder_.is_byte_level() && !added_.text(id) ? label_of_bytes(token) : label_of_text(token);
  }

 private:
  class PipelineDecoding;

  bool has(int64_t id) const { return added_.text(id) || model_->vocabulary().has(id); }
  std::string_view content(int64_t id) const {
    const std::string* added = added_.text(id);
    return added ? *added : model_->vocabulary().token(id);
  }

  Encoding post_process(const std::vector<int64_t>& first, const std::vector<int64_t>* second,
                        bool add_special_tokens) const override {
    Encoding encoding = post_processor_.apply(first, second, add_special_tokens);
    if (!has_token_types_) encoding.token_type_ids.assign(encoding.ids.size(), 0);
    return encoding;
  }

  std::unique_ptr<TokenDecoding> decoding() const override;

  /// Whisper: decoding leaves out timestamps, and the prompt from the first of these tokens to the second.
  void read_transcripts() {
    decoder_.drop_timestamps();
    prompt_ = {token_to_id("<|startofprev|>").value_or(-1), token_to_id("<|startoftranscript|>").value_or(-1)};
  }

  /// `begin` is the place of the segment in the caller's text.
  void encode_segment(std::string_view segment, size_t begin, EncodeScratch& scratch, std::vector<int64_t>& ids) const {
    std::string text(segment);
    size_t first = 0;
    if (begin == 0) next_character(text, first);
    if (normalizer_) normalizer_->apply(text, first);
    for (const AddedTokens::Segment& inner : added_.split(text, true))
      if (inner.id >= 0) ids.push_back(inner.id);
      else
        encode_text(std::string_view(text).substr(inner.begin, inner.end - inner.begin),
                    first - std::min(first, inner.begin), scratch, ids);
  }

  void encode_text(std::string_view text, size_t first, EncodeScratch& scratch, std::vector<int64_t>& ids) const {
    Pieces& pieces = scratch.pieces;
    pieces.text = text;
    pieces.ranges = {{0, text.size()}};
    pieces.first = first;
    if (pre_tokenizer_) pre_tokenizer_->apply(pieces);
    const bool is_byte_level = pre_tokenizer_ && pre_tokenizer_->leaves_bytes();
    for (size_t n = 0; n < pieces.ranges.size(); ++n) {
      const std::string_view piece = pieces[n];
      uint64_t hash;
      if (scratch.words.append(piece, ids, hash)) continue;
      const size_t before = ids.size();
      if (is_byte_level) {
        scratch.byte_characters.clear();
        for (char byte : piece) append_byte_character(scratch.byte_characters, static_cast<uint8_t>(byte));
      }
      model_->encode(is_byte_level ? scratch.byte_characters : piece, scratch.parts, ids);
      scratch.words.remember(piece, hash, ids.data() + before, ids.size() - before);
    }
  }

  static std::string label_of_text(std::string text) {
    constexpr std::string_view kMetaspace = "\xE2\x96\x81";
    for (size_t at; (at = text.find(kMetaspace)) != std::string::npos;) text.replace(at, kMetaspace.size(), " ");
    return visible(text);
  }

  /// The characters that the token's bytes spell; a byte of an incomplete character is shown as 0xE2.
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
  BatchOptions batch_options_;
  int64_t vocab_size_ = 0;
  bool has_token_types_ = true;
  std::pair<int64_t, int64_t> prompt_ = {-1, -1};
  ScratchPool scratch_pool_;
};

class TokenizerPipeline::PipelineDecoding final : public TokenDecoding {
 public:
  explicit PipelineDecoding(const TokenizerPipeline& pipeline)
      : pipeline_(pipeline), steps_(pipeline.decoder_.steps()) {}

  std::string push(int64_t id) override {
    require_ids({&id, 1}, pipeline_.vocab_size_);
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

  const TokenizerPipeline& pipeline_;
  std::vector<std::unique_ptr<DecodeStep>> steps_;
  std::string text_;
  bool is_first_ = true, in_prompt_ = false;
};

std::unique_ptr<TokenDecoding> TokenizerPipeline::decoding() const { return std::make_unique<PipelineDecoding>(*this); }

}  // namespace

std::unique_ptr<Tokenizer> read_pipeline(const io::Json& root, const std::string& source, std::string text) {
  if (text.empty()) text = root.dump();
  return std::make_unique<TokenizerPipeline>(JsonFields(root, "", source), std::move(text));
}

}  // namespace attn::text
