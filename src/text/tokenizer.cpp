// What all tokenizers do alike, and text that appears token by token.
#include <algorithm>
#include <utility>

#include "attn/core.h"
#include "core/checker.h"
#include "text/tokenizers.h"

namespace attn::text {
namespace {

/// Of tokenizers whose tokens add to the text what depends on the token before and on nothing else.
class StepByStep final : public Tokenizer::Decoding {
 public:
  explicit StepByStep(const Tokenizer& tokenizer) : tokenizer_(tokenizer) {}

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

/// How many bytes at the end may be the beginning of a character.
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

}  // namespace

// ----------------------------------------------------------------------------------------------------------- defaults

Encoding Tokenizer::encode_marked(std::string_view text) const {
  Encoding encoding{encode(text), {}};
  encoding.types.assign(encoding.ids.size(), 0);
  return encoding;
}

Encoding Tokenizer::encode_marked(std::string_view first, std::string_view second) const {
  Encoding encoding = encode_marked(first);
  const std::vector<int64_t> ids = encode(second);
  encoding.ids.insert(encoding.ids.end(), ids.begin(), ids.end());
  encoding.types.resize(encoding.ids.size(), 1);
  return encoding;
}

void cut(std::vector<int64_t>& ids, int64_t longest, bool at_beginning) {
  const int64_t surplus = static_cast<int64_t>(ids.size()) - longest;
  if (surplus <= 0) return;
  if (at_beginning) ids.erase(ids.begin(), ids.begin() + surplus);
  else ids.resize(static_cast<size_t>(longest));
}

void cut_longer(std::vector<int64_t>& first, std::vector<int64_t>& second, int64_t longest, bool at_beginning) {
  const auto a = static_cast<int64_t>(first.size()), b = static_cast<int64_t>(second.size());
  if (a + b <= longest) return;
  int64_t fewer = std::min(a, b), more = std::max(fewer, longest - fewer);
  if (fewer + more > longest) {
    fewer = longest / 2;
    more = longest - fewer;
  }
  cut(first, a > b ? more : fewer, at_beginning);
  cut(second, a > b ? fewer : more, at_beginning);
}

Encoding Tokenizer::encode_within(int64_t longest, std::string_view text) const {
  if (longest < 0) throw Error("encode_within", {"longest is " + std::to_string(longest) + ", must be at least 0"});
  Encoding encoding{encode(text), {}};
  cut(encoding.ids, longest, false);
  encoding.types.resize(encoding.ids.size());
  return encoding;
}

Encoding Tokenizer::encode_within(int64_t longest, std::string_view first, std::string_view second) const {
  if (longest < 0) throw Error("encode_within", {"longest is " + std::to_string(longest) + ", must be at least 0"});
  Encoding encoding{encode(first), {}};
  std::vector<int64_t> others = encode(second);
  cut_longer(encoding.ids, others, longest, false);
  encoding.types.resize(encoding.ids.size(), 0);
  encoding.types.resize(encoding.ids.size() + others.size(), 1);
  encoding.ids.insert(encoding.ids.end(), others.begin(), others.end());
  return encoding;
}

std::optional<int64_t> Tokenizer::find(std::string_view token) const {
  for (int64_t id = 0; id < size(); ++id)
    if (decode({&id, 1}) == token) return id;
  return std::nullopt;
}

bool Tokenizer::is_special(int64_t) const { return false; }

Lengths Tokenizer::lengths() const { return {}; }

EncodedBatch encode_batch(const Tokenizer& tokenizer, std::span<const std::string> texts,
                          const std::optional<Lengths>& lengths) {
  const Lengths how = lengths ? *lengths : tokenizer.lengths();
  Checker checker("encode_batch");
  checker.require(how.padding.has_value(),
                  "neither the tokenizer nor its caller says which token fills shorter texts up");
  checker.require(!how.padding || (*how.padding >= 0 && *how.padding < tokenizer.size()), [&] {
    return "padding is " + std::to_string(*how.padding) + ", must be in [0, " + std::to_string(tokenizer.size()) + ")";
  });
  checker.require(how.padded >= 0 && how.multiple >= 0, "padded and multiple must not be negative");
  checker.done();
  std::vector<Encoding> all;
  EncodedBatch batch{.sequences = std::ssize(texts), .length = how.padded};
  for (const std::string& text : texts) {
    all.push_back(how.longest ? tokenizer.encode_within(*how.longest, text) : tokenizer.encode_marked(text));
    batch.length = how.padded ? batch.length : std::max<int64_t>(batch.length, std::ssize(all.back().ids));
  }
  if (how.multiple > 0) batch.length = (batch.length + how.multiple - 1) / how.multiple * how.multiple;
  for (const Encoding& one : all) {
    const int64_t count = std::ssize(one.ids), more = batch.length - count;
    checker.require(more >= 0, [&] {
      return "a text has " + std::to_string(count) + " tokens, which are cut to none of the " +
             std::to_string(batch.length) + " that every text is filled up to";
    });
    checker.done();
    const auto put = [&](std::vector<int64_t>& to, const std::vector<int64_t>& tokens, int64_t filling) {
      to.insert(to.end(), how.pads_left ? more : 0, filling);
      to.insert(to.end(), tokens.begin(), tokens.end());
      to.insert(to.end(), how.pads_left ? 0 : more, filling);
    };
    put(batch.ids, one.ids, *how.padding);
    put(batch.types, one.types, how.padding_type);
    put(batch.mask, std::vector<int64_t>(one.ids.size(), 1), 0);
  }
  return batch;
}

std::unique_ptr<Tokenizer::Decoding> Tokenizer::decoding() const { return std::make_unique<StepByStep>(*this); }

// ------------------------------------------------------------------------------------------------------------- stream

TextStream::TextStream(const Tokenizer& tokenizer) : tokenizer_(&tokenizer), decoding_(tokenizer.decoding()) {}

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
