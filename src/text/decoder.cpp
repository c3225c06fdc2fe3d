// The decoders. A step passes on the text that is certain, and holds back the text that a later token can change. Steps
// after Fuse, which joins all tokens, wait for the end of the text, except Strip as the last step.
#include "text/decoder.h"

#include <algorithm>
#include <utility>

#include "attn/core.h"
#include "text/regex.h"
#include "text/unicode.h"
#include "text/vocabulary.h"

namespace attn::text {
namespace {

void replace_all(std::string& text, std::string_view what, std::string_view with) {
  if (text.find(what) == std::string::npos) return;
  std::string replaced;
  size_t copied = 0;
  for (size_t at = text.find(what); at != std::string::npos; at = text.find(what, copied)) {
    replaced.append(text, copied, at - copied).append(with);
    copied = at + what.size();
  }
  text = replaced.append(text, copied, std::string::npos);
}

/// A step that changes each token by itself, given whether it is the first.
class PerTokenStep final : public DecodeStep {
 public:
  using Change = std::function<void(std::string& token, bool is_first)>;
  explicit PerTokenStep(const Change& change) : change_(change) {}
  void push(std::string token, const Next& next) override {
    change_(token, std::exchange(is_first_, false));
    next(std::move(token));
  }
  void finish(const Next&) override { is_first_ = true; }

 private:
  const Change& change_;
  bool is_first_ = true;
};

class ByteLevelStep final : public DecodeStep {
 public:
  void push(std::string token, const Next& next) override {
    std::string bytes = std::move(held_);
    const size_t before = bytes.size();
    for (size_t at = 0; at < token.size();) {
      const int byte = byte_of(next_character(token, at));
      if (byte < 0) {  // a token that is text itself
        bytes.resize(before);
        bytes += token;
        break;
      }
      bytes += static_cast<char>(byte);
    }
    std::string text;
    const size_t left = append_valid_utf8(text, bytes, false);
    held_ = bytes.substr(bytes.size() - left);
    next(std::move(text));
  }
  void finish(const Next& next) override {
    std::string text;
    append_valid_utf8(text, std::exchange(held_, {}), true);
    next(std::move(text));
  }

 private:
  std::string held_;
};

/// A run of tokens such as <0xE2> is text if its bytes are UTF-8; else each token becomes U+FFFD.
class ByteFallbackStep final : public DecodeStep {
 public:
  void push(std::string token, const Next& next) override {
    if (const int byte = byte_named(token); byte >= 0) {
      held_ += static_cast<char>(byte);
      return;
    }
    finish(next);
    next(std::move(token));
  }
  void finish(const Next& next) override {
    const std::string bytes = std::exchange(held_, {});
    if (bytes.empty()) return;
    if (malformed_at(bytes) == std::string::npos) return next(bytes);
    for (size_t n = 0; n < bytes.size(); ++n) next("\xEF\xBF\xBD");
  }

 private:
  static int byte_named(const std::string& token) {
    if (token.size() != 6 || !token.starts_with("<0x") || token[5] != '>') return -1;
    int byte = 0;
    for (char c : {token[3], token[4]}) {
      const bool is_digit = c >= '0' && c <= '9', is_small = c >= 'a' && c <= 'f', is_big = c >= 'A' && c <= 'F';
      if (!is_digit && !is_small && !is_big) return -1;
      byte = 16 * byte + (is_digit ? c - '0' : is_small ? c - 'a' + 10 : c - 'A' + 10);
    }
    return byte;
  }
  std::string held_;
};

/// Joins all tokens into one.
class FuseStep final : public DecodeStep {
 public:
  void push(std::string token, const Next&) override { held_ += token; }
  void finish(const Next& next) override { next(std::exchange(held_, {})); }

 private:
  std::string held_;
};

/// BPEDecoder: replaces the suffix at the end of each word with a space, and that of the last word with nothing.
class WordSuffixStep final : public DecodeStep {
 public:
  explicit WordSuffixStep(const std::string& suffix) : suffix_(suffix) {}
  void push(std::string token, const Next& next) override {
    give(" ", next);
    held_ = std::move(token);
  }
  void finish(const Next& next) override { give("", next); }

 private:
  void give(const char* with, const Next& next) {
    if (!held_) return;
    if (!suffix_.empty()) replace_all(*held_, suffix_, with);
    next(std::move(*held_));
    held_.reset();
  }
  const std::string& suffix_;
  std::optional<std::string> held_;
};

struct StripOptions {
  std::string content;
  size_t start, stop;  // the largest number of removals at the beginning and at the end
};

/// Strips the beginning and the end of the whole text while it arrives in tokens.
class StripTextStep final : public DecodeStep {
 public:
  explicit StripTextStep(const StripOptions& ends) : ends_(ends), left_(ends.start) {}
  void push(std::string token, const Next& next) override {
    size_t begin = 0;
    for (; left_ > 0 && begin < token.size(); --left_) {
      if (token.compare(begin, ends_.content.size(), ends_.content) == 0) begin += ends_.content.size();
      else left_ = 1;
    }
    held_.append(token, begin, std::string::npos);
    size_t end = held_.size();
    for (size_t n = 0; n < ends_.stop && std::string_view(held_).substr(0, end).ends_with(ends_.content); ++n)
      end -= ends_.content.size();
    std::string text = held_.substr(0, end);
    held_.erase(0, end);
    next(std::move(text));
  }
  void finish(const Next&) override {
    held_.clear();
    left_ = ends_.start;
  }

 private:
  const StripOptions& ends_;
  size_t left_;
  std::string held_;
};

/// Replaces `what` in the whole text while it arrives in tokens; holds back text that can be the beginning of `what`.
class ReplaceTextStep final : public DecodeStep {
 public:
  ReplaceTextStep(std::string_view what, std::string_view with) : what_(what), with_(with) {}
  void push(std::string token, const Next& next) override {
    held_ += token;
    std::string text;
    size_t done = 0;
    for (size_t at; (at = held_.find(what_, done)) != std::string::npos; done = at + what_.size())
      text.append(held_, done, at - done).append(with_);
    size_t waits = std::min(what_.size() - 1, held_.size() - done);
    while (waits > 0 && !std::string_view(held_).ends_with(what_.substr(0, waits))) --waits;
    text.append(held_, done, held_.size() - waits - done);
    held_.erase(0, held_.size() - waits);
    next(std::move(text));
  }
  void finish(const Next& next) override { next(std::exchange(held_, {})); }

 private:
  std::string_view what_, with_;
  std::string held_;
};

/// Removes each <|digits.digits|> from the whole text while it arrives in tokens.
class DropTimestampsStep final : public DecodeStep {
 public:
  void push(std::string token, const Next& next) override {
    held_ += token;
    next(without_timestamps(false));
  }
  void finish(const Next& next) override { next(without_timestamps(true)); }

 private:
  /// Takes the certain text out of held_.
  std::string without_timestamps(bool at_end) {
    std::string text;
    size_t at = 0;
    while (at < held_.size()) {
      const size_t end = end_of_timestamp(at);
      if (end == std::string::npos && !at_end) break;
      if (end == std::string::npos || end == at) text += held_[at++];
      else at = end;
    }
    held_.erase(0, at);
    return text;
  }

  /// The end of the timestamp at `at`; `at` if there is none; npos if the text ends before this is certain.
  size_t end_of_timestamp(size_t at) const {
    size_t next = at;
    const auto takes = [&](std::string_view what) {
      const std::string_view here = std::string_view(held_).substr(next, what.size());
      if (what.starts_with(here) && here.size() < what.size()) return false;
      next = here == what ? next + what.size() : std::string::npos;
      return next != std::string::npos;
    };
    const auto digits = [&] {
      const size_t begin = next;
      while (next < held_.size() && held_[next] >= '0' && held_[next] <= '9') ++next;
      if (next == begin && next < held_.size()) next = std::string::npos;
      return next != std::string::npos && next > begin;
    };
    const bool matches = takes("<|") && digits() && takes(".") && digits() && takes("|>");
    return matches ? next : next == std::string::npos ? at : std::string::npos;
  }

  std::string held_;
};

void strip(std::string& token, const StripOptions& ends) {
  for (size_t n = 0; n < ends.start && token.starts_with(ends.content); ++n) token.erase(0, ends.content.size());
  for (size_t n = 0; n < ends.stop && token.ends_with(ends.content); ++n)
    token.resize(token.size() - ends.content.size());
}

void clean_up(std::string& token) {
  static constexpr std::pair<const char*, const char*> kChanges[] = {
      {" .", "."},   {" ?", "?"},           {" !", "!"},   {" ,", ","},     {" ' ", "'"},   {" n't", "n't"},
      {" 'm", "'m"}, {" do not", " don't"}, {" 's", "'s"}, {" 've", "'ve"}, {" 're", "'re"}};
  for (const auto& [what, with] : kChanges) replace_all(token, what, with);
}

PerTokenStep::Change wordpiece(const JsonFields& fields) {
  const std::string prefix = fields.text("prefix", "##");
  const bool cleans = fields.boolean("cleanup", true);
  return [=](std::string& token, bool is_first) {
    if (!is_first && token.starts_with(prefix)) token.erase(0, prefix.size());
    else if (!is_first) token.insert(0, " ");
    if (cleans) clean_up(token);
  };
}

PerTokenStep::Change metaspace(const JsonFields& fields) {
  const std::string replacement = fields.text("replacement");
  if (replacement.empty()) fields.refuse("replacement is empty");
  const bool drops = fields.choice("prepend_scheme", {"always", "first", "never"},
                                   fields.boolean("add_prefix_space", true) ? 0 : 2) != 2;
  return [=](std::string& token, bool is_first) { replace_all(token, replacement, is_first && drops ? "" : " "); };
}

PerTokenStep::Change replace(const JsonFields& fields) {
  const std::string content = fields.text("content");
  fields.require(content.size() <= kMaxTokenBytes, "content", "at most 4096 bytes long");
  const JsonFields pattern = fields.object("pattern");
  if (pattern.has("String")) {
    const std::string literal = pattern.text("String");
    if (literal.empty()) pattern.refuse("String is empty");
    return [=](std::string& token, bool) { replace_all(token, literal, content); };
  }
  const Regex regex(pattern.text("Regex"), pattern);
  return [=](std::string& token, bool) {
    std::string replaced;
    size_t copied = 0;
    for (Matches matches(regex, token); matches.next(); copied = matches.end())
      replaced.append(token, copied, matches.begin() - copied).append(content);
    token = replaced.append(token, copied, std::string::npos);
  };
}

StripOptions ends_of(const JsonFields& fields) {
  constexpr int64_t kMost = 1 << 16;
  StripOptions ends{fields.text("content"), static_cast<size_t>(fields.number("start", kMost)),
                    static_cast<size_t>(fields.number("stop", kMost))};
  if (ends.content.empty()) fields.refuse("content is empty");
  return ends;
}

Decoder::MakeStep each(PerTokenStep::Change change) {
  return [change = std::make_shared<const PerTokenStep::Change>(std::move(change))] {
    return std::make_unique<PerTokenStep>(*change);
  };
}

}  // namespace

struct Decoder::StepConfig {
  std::string type;
  MakeStep make;
  StripOptions ends;
};

void Decoder::read(const JsonFields& fields, std::vector<StepConfig>& parts) {
  const std::string type = fields.type();
  if (type == "Sequence") {
    for (const JsonFields& part : fields.list("decoders")) read(part, parts);
    return;
  }
  StepConfig part{type, {}, {}};
  if (type == "ByteLevel") part.make = [] { return std::make_unique<ByteLevelStep>(); };
  else if (type == "WordPiece") part.make = each(wordpiece(fields));
  else if (type == "Metaspace") part.make = each(metaspace(fields));
  else if (type == "Replace") part.make = each(replace(fields));
  else if (type == "ByteFallback") part.make = [] { return std::make_unique<ByteFallbackStep>(); };
  else if (type == "Fuse") part.make = [] { return std::make_unique<FuseStep>(); };
  else if (type == "BPEDecoder")
    part.make = [suffix = std::make_shared<std::string>(fields.text("suffix", "</w>"))] {
      return std::make_unique<WordSuffixStep>(*suffix);
    };
  else if (type == "Strip") {
    part.ends = ends_of(fields);
    part.make = each([ends = part.ends](std::string& token, bool) { strip(token, ends); });
  } else {
    fields.refuse_type(
        {"BPEDecoder", "ByteFallback", "ByteLevel", "Fuse", "Metaspace", "Replace", "Sequence", "Strip", "WordPiece"});
  }
  parts.push_back(std::move(part));
}

Decoder::Decoder()
    : steps_{each([](std::string& token, bool is_first) {
        if (!is_first) token.insert(0, " ");
      })} {}

Decoder::Decoder(const JsonFields& fields) {
  std::vector<StepConfig> parts;
  read(fields, parts);
  for (size_t n = 0; n < parts.size(); ++n) {
    const size_t left = parts.size() - n - 1;
    is_byte_level_ = is_byte_level_ || parts[n].type == "ByteLevel";
    if (parts[n].type == "Fuse" && left == 0) break;  // the pieces of the text are joined in any case
    if (parts[n].type == "Fuse" && left == 1 && parts[n + 1].type == "Strip") {
      steps_.push_back([ends = std::make_shared<const StripOptions>(parts[n + 1].ends)] {
        return std::make_unique<StripTextStep>(*ends);
      });
      break;
    }
    steps_.push_back(std::move(parts[n].make));
    if (parts[n].type == "ByteLevel" && left > 0) steps_.push_back([] { return std::make_unique<FuseStep>(); });
  }
}

void Decoder::clean_up_spaces() {
  static constexpr std::pair<std::string_view, std::string_view> kChanges[] = {
      {" .", "."},     {" ?", "?"},   {" !", "!"},   {" ,", ","},     {" ' ", "'"},
      {" n't", "n't"}, {" 'm", "'m"}, {" 's", "'s"}, {" 've", "'ve"}, {" 're", "'re"}};
  for (const auto& [what, with] : kChanges)
    steps_.push_back([what, with] { return std::make_unique<ReplaceTextStep>(what, with); });
}

void Decoder::drop_timestamps() {
  steps_.push_back([] { return std::make_unique<DropTimestampsStep>(); });
}

std::vector<std::unique_ptr<DecodeStep>> Decoder::steps() const {
  std::vector<std::unique_ptr<DecodeStep>> steps;
  for (const MakeStep& make : steps_) steps.push_back(make());
  return steps;
}

}  // namespace attn::text
