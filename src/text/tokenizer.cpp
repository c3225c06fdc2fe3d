// The parts that all tokenizers share: truncation, special tokens, batches, and TextStream.
#include <algorithm>
#include <utility>

#include "attn/core.h"
#include "core/checker.h"
#include "text/tokenizers.h"

namespace attn::text {
namespace {

/// For tokenizers whose tokens add text that depends on the token before and on nothing else.
class PairwiseDecoding final : public TokenDecoding {
 public:
  explicit PairwiseDecoding(const Tokenizer& tokenizer) : tokenizer_(tokenizer) {}

  std::string push(int64_t id) override {
    last_.push_back(id);
    std::string piece = tokenizer_.decode(last_);
    if (last_.size() == 1) return piece;
    piece.erase(0, tokenizer_.decode({last_.data(), 1}).size());
    last_.erase(last_.begin());
    return piece;
  }

  std::string finish() override {
    last_.clear();
    return "";
  }

 private:
  const Tokenizer& tokenizer_;
  std::vector<int64_t> last_;
};

/// The number of bytes at the end that may be the beginning of a character.
size_t incomplete_tail(std::string_view text) {
  for (size_t tail = 1; tail <= 3 && tail <= text.size(); ++tail) {
    const auto lead = static_cast<uint8_t>(text[text.size() - tail]);
    if (lead < 0x80) return 0;
    if (lead < 0xC0) continue;
    const size_t length = lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : 2;
    return lead < 0xF8 && tail < length ? tail : 0;
  }
  return 0;
}

/// True if there were more.
bool truncate(std::vector<int64_t>& ids, int64_t max_length, Side side) {
  const int64_t surplus = static_cast<int64_t>(ids.size()) - max_length;
  if (surplus <= 0) return false;
  if (side == Side::left) ids.erase(ids.begin(), ids.begin() + surplus);
  else ids.resize(static_cast<size_t>(max_length));
  return true;
}

/// Truncates the longer text first, and both once they have the same length. True if there were more tokens.
bool truncate_pair(std::vector<int64_t>& first, std::vector<int64_t>& second, int64_t max_length, Side side) {
  const auto a = static_cast<int64_t>(first.size()), b = static_cast<int64_t>(second.size());
  if (a + b <= max_length) return false;
  int64_t fewer = std::min(a, b), more = std::max(fewer, max_length - fewer);
  if (fewer + more > max_length) {
    fewer = max_length / 2;
    more = max_length - fewer;
  }
  truncate(first, a > b ? more : fewer, side);
  truncate(second, a > b ? fewer : more, side);
  return true;
}

}  // namespace

// ------------------------------------------------------------------------------------------------------------- encode

Encoding Tokenizer::encode(std::string_view text, const EncodeOptions& options) const {
  return truncate_and_join(encode_ids(text), nullptr, options);
}

Encoding Tokenizer::encode_pair(std::string_view first, std::string_view second, const EncodeOptions& options) const {
  std::vector<int64_t> first_ids = encode_ids(first), second_ids = encode_ids(second);
  return truncate_and_join(std::move(first_ids), &second_ids, options);
}

Encoding Tokenizer::truncate_and_join(std::vector<int64_t> first, std::vector<int64_t>* second,
                                      const EncodeOptions& options) const {
  bool truncated = false;
  if (options.max_length != 0) {
    const std::vector<int64_t> empty;
    const int64_t special = std::ssize(post_process(empty, second ? &empty : nullptr, options.add_special_tokens).ids);
    const int64_t least = std::max<int64_t>(special, 1), room = options.max_length - special;
    if (options.max_length < least)
      throw Error("encode",
                  {"max_length is " + std::to_string(options.max_length) + ", must be 0 or at least " +
                   std::to_string(least) + (special > 0 ? ", the number of special tokens that are added" : "")});
    const Side side = batch_options().truncation_side;
    truncated = second ? truncate_pair(first, *second, room, side) : truncate(first, room, side);
  }
  Encoding encoding = post_process(first, second, options.add_special_tokens);
  encoding.truncated = truncated;
  return encoding;
}

Encoding Tokenizer::post_process(const std::vector<int64_t>& first, const std::vector<int64_t>* second, bool) const {
  Encoding encoding = {.ids = first, .token_type_ids = std::vector<int64_t>(first.size(), 0)};
  if (!second) return encoding;
  encoding.ids.insert(encoding.ids.end(), second->begin(), second->end());
  encoding.token_type_ids.resize(encoding.ids.size(), 1);
  return encoding;
}

std::optional<int64_t> Tokenizer::token_to_id(std::string_view token) const {
  for (int64_t id = 0; id < vocab_size(); ++id)
    if (decode({&id, 1}) == token) return id;
  return std::nullopt;
}

bool Tokenizer::is_special(int64_t) const { return false; }

BatchOptions Tokenizer::batch_options() const { return {}; }

std::unique_ptr<TokenDecoding> Tokenizer::decoding() const { return std::make_unique<PairwiseDecoding>(*this); }

// -------------------------------------------------------------------------------------------------------------- batch

EncodedBatch encode_batch(const Tokenizer& tokenizer, std::span<const std::string> texts,
                          const std::optional<BatchOptions>& given) {
  const BatchOptions options = given ? *given : tokenizer.batch_options();
  Checker checker("encode_batch");
  checker.require(options.pad_id.has_value(), "pad_id is absent: neither the tokenizer nor the caller names a token");
  checker.require(!options.pad_id || (*options.pad_id >= 0 && *options.pad_id < tokenizer.vocab_size()), [&] {
    return "pad_id is " + std::to_string(*options.pad_id) + ", must be in [0, " +
           std::to_string(tokenizer.vocab_size()) + ")";
  });
  checker.require(!options.max_length || *options.max_length > 0, [&] {
    return "max_length is " + std::to_string(*options.max_length) + ", must be absent or at least 1";
  });
  for (const auto& [name, value] :
       {std::pair("pad_to_length", options.pad_to_length), std::pair("pad_to_multiple_of", options.pad_to_multiple_of)})
    checker.require(value >= 0, [&, name = name, value = value] {
      return std::string(name) + " is " + std::to_string(value) + ", must be at least 0";
    });
  checker.done();
  std::vector<Encoding> encodings;
  EncodedBatch batch{.sequences = std::ssize(texts), .length = options.pad_to_length};
  for (const std::string& text : texts) {
    encodings.push_back(tokenizer.encode(text, {.max_length = options.max_length.value_or(0)}));
    if (options.pad_to_length == 0) batch.length = std::max(batch.length, int64_t{std::ssize(encodings.back().ids)});
  }
  if (const int64_t multiple = options.pad_to_multiple_of; multiple > 0)
    batch.length = (batch.length + multiple - 1) / multiple * multiple;
  for (const Encoding& encoding : encodings) {
    const int64_t count = std::ssize(encoding.ids), padding = batch.length - count;
    if (padding < 0)
      throw Error("encode_batch", {"a text has " + std::to_string(count) + " tokens, must have at most " +
                                   std::to_string(batch.length) + ", the length that pad_to_length gives"});
    const auto put = [&](std::vector<int64_t>& to, const std::vector<int64_t>& tokens, int64_t filling) {
      to.insert(to.end(), options.padding_side == Side::left ? padding : 0, filling);
      to.insert(to.end(), tokens.begin(), tokens.end());
      to.insert(to.end(), options.padding_side == Side::left ? 0 : padding, filling);
    };
    put(batch.ids, encoding.ids, *options.pad_id);
    put(batch.token_type_ids, encoding.token_type_ids, options.pad_type_id);
    put(batch.attention_mask, std::vector<int64_t>(encoding.ids.size(), 1), 0);
  }
  return batch;
}

// ------------------------------------------------------------------------------------------------------------- stream

TextStream::TextStream(const Tokenizer& tokenizer) : tokenizer_(&tokenizer), decoding_(tokenizer.decoding()) {}
TextStream::TextStream(TextStream&&) noexcept = default;
TextStream& TextStream::operator=(TextStream&&) noexcept = default;
TextStream::~TextStream() = default;

std::string TextStream::push(int64_t id) {
  std::string text = std::exchange(held_, {}) + decoding_->push(id);
  held_ = text.substr(text.size() - incomplete_tail(text));
  text.resize(text.size() - held_.size());
  return text;
}

std::string TextStream::finish() {
  std::string text = std::exchange(held_, {}) + decoding_->finish();
  decoding_ = tokenizer_->decoding();
  return text;
}

}  // namespace attn::text
