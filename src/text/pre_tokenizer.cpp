// The pre-tokenizers. Each finds the matches in a piece; split() then splits the piece in the same way for all.
#include "text/pre_tokenizer.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "attn/core.h"
#include "text/regex.h"
#include "text/unicode.h"
#include "text/vocabulary.h"

namespace attn::text {
namespace {

// ---------------------------------------------------------------------------------------------------------- splitting

enum class Behavior { removed, isolated, merged_with_previous, merged_with_next, contiguous };

Behavior behavior_of(const JsonFields& fields, std::optional<size_t> fallback = std::nullopt) {
  return static_cast<Behavior>(fields.choice(
      "behavior", {"Removed", "Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous"}, fallback));
}

/// A part of a piece, which is a match or the text between two matches.
struct MatchSpan {
  size_t begin, end;
  bool matches;
};

void append(std::vector<ByteRange>& ranges, size_t begin, size_t end) {
  if (begin < end) ranges.push_back({begin, end});
}

/// Joins each match with its neighbour as `behavior` says. Of two adjacent matches the second is a piece by itself.
void merge(const std::vector<MatchSpan>& parts, Behavior behavior, std::vector<ByteRange>& ranges) {
  const size_t first = ranges.size();
  const auto at = [&](size_t n) { return behavior == Behavior::merged_with_next ? parts.size() - 1 - n : n; };
  bool previous = false;
  for (size_t n = 0; n < parts.size(); ++n) {
    const MatchSpan& part = parts[at(n)];
    const bool has_last = ranges.size() > first;
    const bool joins = behavior == Behavior::contiguous ? part.matches == previous : part.matches && !previous;
    if (joins && has_last && behavior == Behavior::merged_with_next) ranges.back().begin = part.begin;
    else if (joins && has_last) ranges.back().end = part.end;
    else ranges.push_back({part.begin, part.end});
    previous = part.matches;
  }
  if (behavior == Behavior::merged_with_next) std::reverse(ranges.begin() + static_cast<int64_t>(first), ranges.end());
  ranges.erase(std::remove_if(ranges.begin() + static_cast<int64_t>(first), ranges.end(),
                              [](const ByteRange& range) { return range.begin == range.end; }),
               ranges.end());
}

/// Splits each piece at its matches, for which `find(piece, use)` calls use(begin, end) from left to right.
template <class Find>
void split(Pieces& pieces, Behavior behavior, bool inverted, const Find& find) {
  std::vector<ByteRange> ranges;
  ranges.reserve(pieces.ranges.size() + pieces.text.size() / 4);
  std::vector<MatchSpan> parts;
  const bool is_simple = behavior == Behavior::isolated || behavior == Behavior::removed;
  const bool keeps_matches = behavior == Behavior::isolated || inverted;
  const bool keeps_others = behavior == Behavior::isolated || !inverted;
  for (const ByteRange& piece : pieces.ranges) {
    size_t last = piece.begin;
    parts.clear();
    const auto use = [&](size_t begin, size_t end) {
      begin += piece.begin;
      end += piece.begin;
      if (is_simple) {
        if (keeps_others) append(ranges, last, begin);
        if (keeps_matches) append(ranges, begin, end);
      } else {
        if (last < begin) parts.push_back({last, begin, inverted});
        parts.push_back({begin, end, !inverted});
      }
      last = end;
    };
    find(std::string_view(pieces.text).substr(piece.begin, piece.end - piece.begin), use);
    if (is_simple && keeps_others) append(ranges, last, piece.end);
    if (is_simple) continue;
    if (last < piece.end) parts.push_back({last, piece.end, inverted});
    merge(parts, behavior, ranges);
  }
  pieces.ranges = std::move(ranges);
}

template <class Is>
void split_at(Pieces& pieces, Behavior behavior, const Is& is) {
  split(pieces, behavior, false, [&](std::string_view piece, const auto& use) {
    for (size_t at = 0; at < piece.size();) {
      const size_t begin = at;
      if (is(next_character(piece, at))) use(begin, at);
    }
  });
}

/// Replaces each piece with the text that `append(text, piece, n)` appends. Also calls it with the beginning of a
/// piece, to find the new value of `first`.
template <class Append>
void rewrite(Pieces& pieces, const Append& append) {
  std::string text;
  text.reserve(pieces.text.size() + pieces.text.size() / 4);
  size_t first = 0;
  for (size_t n = 0; n < pieces.ranges.size(); ++n) {
    const size_t begin = text.size();
    const ByteRange piece = pieces.ranges[n];
    if (piece.begin < pieces.first) {
      append(text, pieces[n].substr(0, pieces.first - piece.begin), n);
      first = text.size();
      text.resize(begin);
    }
    append(text, pieces[n], n);
    pieces.ranges[n] = {begin, text.size()};
  }
  pieces.text = std::move(text);
  pieces.first = first;
}

// -------------------------------------------------------------------------------------------------------------- kinds

class SplitPreTokenizer final : public PreTokenizer {
 public:
  explicit SplitPreTokenizer(const JsonFields& fields)
      : behavior_(behavior_of(fields)), inverted_(fields.boolean("invert", false)) {
    const JsonFields pattern = fields.object("pattern");
    if (pattern.has("String")) literal_ = pattern.text("String");
    else regex_ = std::make_unique<Regex>(pattern.text("Regex"), pattern);
    if (!regex_ && literal_.empty()) pattern.refuse("String is empty");
  }

  void apply(Pieces& pieces) const override {
    split(pieces, behavior_, inverted_, [&](std::string_view piece, const auto& use) {
      if (regex_) {
        for (Matches matches(*regex_, piece); matches.next();) use(matches.begin(), matches.end());
      } else {
        for (size_t at = piece.find(literal_); at != std::string_view::npos;
             at = piece.find(literal_, at + literal_.size()))
          use(at, at + literal_.size());
      }
    });
  }

 private:
  Behavior behavior_;
  bool inverted_;
  std::string literal_;
  std::unique_ptr<Regex> regex_;
};

/// The type "Whitespace", whose pieces are runs of word characters and runs of other characters.
class WhitespacePreTokenizer final : public PreTokenizer {
 public:
  void apply(Pieces& pieces) const override {
    static const Regex kWords(
        "[\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}\\p{Join_Control}]+|"
        "[^\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}\\p{Join_Control}\\t-\\r\\x{85}\\p{Z}]+");
    split(pieces, Behavior::removed, true, [&](std::string_view piece, const auto& use) {
      for (Matches matches(kWords, piece); matches.next();) use(matches.begin(), matches.end());
    });
  }
};

/// Splits at the characters of a class.
class CharacterPreTokenizer final : public PreTokenizer {
 public:
  CharacterPreTokenizer(std::function<bool(Character)> is, Behavior behavior)
      : is_(std::move(is)), behavior_(behavior) {}
  void apply(Pieces& pieces) const override { split_at(pieces, behavior_, is_); }

 private:
  std::function<bool(Character)> is_;
  Behavior behavior_;
};

class BertPreTokenizer final : public PreTokenizer {
 public:
  void apply(Pieces& pieces) const override {
    std::vector<ByteRange> ranges;
    ranges.reserve(pieces.ranges.size() + pieces.text.size() / 4);
    for (const ByteRange& piece : pieces.ranges) {
      const std::string_view text = std::string_view(pieces.text).substr(0, piece.end);
      size_t last = piece.begin;
      for (size_t at = piece.begin; at < piece.end;) {
        const size_t begin = at;
        const auto byte = static_cast<uint8_t>(text[at]);
        if ((byte >= 'a' && byte <= 'z') || (byte >= 'A' && byte <= 'Z') || (byte >= '0' && byte <= '9')) {
          ++at;
          continue;
        }
        const Character character = next_character(text, at);
        const bool is_mark = is_punctuation(character);
        if (!is_mark && !is_space(character)) continue;
        append(ranges, last, begin);
        if (is_mark) append(ranges, begin, at);
        last = at;
      }
      append(ranges, last, piece.end);
    }
    pieces.ranges = std::move(ranges);
  }
};

class MetaspacePreTokenizer final : public PreTokenizer {
 public:
  explicit MetaspacePreTokenizer(const JsonFields& fields)
      : replacement_(fields.text("replacement")),
        split_(fields.boolean("split", true)),
        prepends_(fields.choice("prepend_scheme", {"always", "first", "never"},
                                fields.boolean("add_prefix_space", true) ? 0 : 2)) {
    size_t at = 0;
    const bool is_character = !replacement_.empty() && next_character(replacement_, at) >= 0;
    fields.require(is_character && at == replacement_.size(), "replacement", "one character");
  }

  void apply(Pieces& pieces) const override {
    const size_t first = pieces.first;
    rewrite(pieces, [&](std::string& text, std::string_view piece, size_t n) {
      const bool begins = piece[0] == ' ' || piece.starts_with(replacement_);
      if (!begins && (prepends_ == 0 || (prepends_ == 1 && pieces.ranges[n].begin < first))) text += replacement_;
      for (char byte : piece) {
        if (byte == ' ') text += replacement_;
        else text += byte;
      }
    });
    if (split_)
      split(pieces, Behavior::merged_with_next, false, [&](std::string_view piece, const auto& use) {
        for (size_t at = piece.find(replacement_); at != std::string_view::npos;
             at = piece.find(replacement_, at + replacement_.size()))
          use(at, at + replacement_.size());
      });
  }

 private:
  std::string replacement_;
  bool split_;
  size_t prepends_;
};

class ByteLevelPreTokenizer final : public PreTokenizer {
 public:
  explicit ByteLevelPreTokenizer(const JsonFields& fields)
      : prefix_(fields.boolean("add_prefix_space", true)), uses_regex_(fields.boolean("use_regex", true)) {}

  void apply(Pieces& pieces) const override {
    if (prefix_)
      rewrite(pieces, [&](std::string& text, std::string_view piece, size_t) {
        if (piece[0] != ' ') text += ' ';
        text += piece;
      });
    if (!uses_regex_) return;
    static const Regex kPattern(
        "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\t-\\r\\x{85}\\p{Z}\\p{L}\\p{N}]+|"
        "[\\t-\\r\\x{85}\\p{Z}]+(?![^\\t-\\r\\x{85}\\p{Z}])|[\\t-\\r\\x{85}\\p{Z}]+");
    split(pieces, Behavior::isolated, false, [&](std::string_view piece, const auto& use) {
      for (Matches matches(kPattern, piece); matches.next();) use(matches.begin(), matches.end());
    });
  }
  bool leaves_bytes() const override { return true; }

  static void write_bytes(Pieces& pieces) {
    rewrite(pieces, [](std::string& text, std::string_view piece, size_t) {
      for (char byte : piece) append_byte_character(text, static_cast<uint8_t>(byte));
    });
  }

 private:
  bool prefix_, uses_regex_;
};

class PreTokenizerSequence final : public PreTokenizer {
 public:
  explicit PreTokenizerSequence(const JsonFields& fields) { read(fields); }

  void apply(Pieces& pieces) const override {
    const size_t before = pieces.text.size();
    for (const auto& part : parts_) {
      part->apply(pieces);
      if (part->leaves_bytes() && part != parts_.back()) ByteLevelPreTokenizer::write_bytes(pieces);
      if (const size_t most = 64 * before + (size_t{1} << 20); pieces.text.size() > most)
        throw Error("encode", {"the pre-tokenizer turns " + std::to_string(before) + " bytes into " +
                               std::to_string(pieces.text.size()) + ", must give at most " + std::to_string(most)});
    }
  }
  bool leaves_bytes() const override { return !parts_.empty() && parts_.back()->leaves_bytes(); }

 private:
  void read(const JsonFields& fields) {
    for (const JsonFields& part : fields.list("pretokenizers"))
      if (part.type() == "Sequence") read(part);
      else parts_.push_back(read_pre_tokenizer(part));
  }

  std::vector<std::unique_ptr<PreTokenizer>> parts_;
};

std::unique_ptr<PreTokenizer> read_delimiter_split(const JsonFields& fields) {
  const std::string text = fields.text("delimiter");
  size_t at = 0;
  const Character delimiter = text.empty() ? -1 : next_character(text, at);
  fields.require(delimiter >= 0 && at == text.size(), "delimiter", "one character");
  return std::make_unique<CharacterPreTokenizer>([=](Character c) { return c == delimiter; }, Behavior::removed);
}

}  // namespace

std::unique_ptr<PreTokenizer> read_pre_tokenizer(const JsonFields& fields) {
  const std::string type = fields.type();
  if (type == "Sequence") return std::make_unique<PreTokenizerSequence>(fields);
  if (type == "ByteLevel") return std::make_unique<ByteLevelPreTokenizer>(fields);
  if (type == "Metaspace") return std::make_unique<MetaspacePreTokenizer>(fields);
  if (type == "Split") return std::make_unique<SplitPreTokenizer>(fields);
  if (type == "BertPreTokenizer") return std::make_unique<BertPreTokenizer>();
  if (type == "Whitespace") return std::make_unique<WhitespacePreTokenizer>();
  if (type == "WhitespaceSplit")
    return std::make_unique<CharacterPreTokenizer>([](Character c) { return is_space(c); }, Behavior::removed);
  if (type == "Punctuation")
    return std::make_unique<CharacterPreTokenizer>([](Character c) { return is_punctuation(c); },
                                                   behavior_of(fields, 1));
  if (type == "Digits")
    return std::make_unique<CharacterPreTokenizer>(
        [](Character c) { return is_number(c); },
        fields.boolean("individual_digits", false) ? Behavior::isolated : Behavior::contiguous);
  if (type == "CharDelimiterSplit") return read_delimiter_split(fields);
  fields.refuse_type({"BertPreTokenizer", "ByteLevel", "CharDelimiterSplit", "Digits", "Metaspace", "Punctuation",
                      "Sequence", "Split", "Whitespace", "WhitespaceSplit"});
}

}  // namespace attn::text
