// The normalizers. ASCII text takes shortcuts; utf8proc has the tables for all other text.
#include "text/normalizer.h"

#include <utf8proc.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>
#include <vector>

#include "attn/core.h"
#include "text/regex.h"
#include "text/unicode.h"
#include "text/vocabulary.h"

namespace attn::text {
namespace {

bool is_ascii(char byte) { return static_cast<uint8_t>(byte) < 0x80; }

/// Replaces each character with the text that `append(text, character)` appends.
template <class Append>
void map_characters(std::string& text, size_t& first, const Append& append) {
  std::string mapped;
  mapped.reserve(text.size() + text.size() / 8);
  size_t of_first = 0;
  for (size_t at = 0; at < text.size();) {
    const bool is_first = at < first;
    append(mapped, next_character(text, at));
    if (is_first) of_first = mapped.size();
  }
  text = std::move(mapped);
  first = of_first;
}

/// Bounds the memory that a file with replacements of replacements can take.
void limit_growth(size_t before, size_t now) {
  constexpr size_t kTimes = 64, kFree = size_t{1} << 20;
  if (now > kTimes * before + kFree)
    throw Error("encode", {"the normalizer turns " + std::to_string(before) + " bytes into " + std::to_string(now) +
                           ", must give at most " + std::to_string(kTimes * before + kFree)});
}

// ----------------------------------------------------------------------------------------------------- Unicode's forms

class UnicodeNormalizer final : public Normalizer {
 public:
  UnicodeNormalizer(bool composed, bool compatible)
      : composed_(composed),
        options_(static_cast<utf8proc_option_t>(UTF8PROC_STABLE | (composed ? UTF8PROC_COMPOSE : UTF8PROC_DECOMPOSE) |
                                                (compatible ? UTF8PROC_COMPAT : 0))) {}

  void apply(std::string& text, size_t& first) const override {
    std::string front = text.substr(0, first);
    form(text);
    form(front);
    if (first == 0) return;
    const size_t shared =
        static_cast<size_t>(std::mismatch(front.begin(), front.end(), text.begin(), text.end()).first - front.begin());
    first = 0;  // ends where a later mark has composed with the first character or was reordered
    for (size_t next = 0; next_character(text, next) >= 0 && (next <= shared || first == 0);) first = next;
  }

 private:
  /// ASCII is its own normal form. An ASCII character can compose with marks after it, never with text before it.
  void form(std::string& text) const {
    size_t at = std::find_if_not(text.begin(), text.end(), is_ascii) - text.begin();
    if (at == text.size()) return;
    std::string formed;
    formed.reserve(text.size() + text.size() / 8);
    std::vector<utf8proc_int32_t> buffer;
    for (size_t copied = 0; copied < text.size();) {
      const size_t begin = composed_ && at > copied ? at - 1 : at;
      formed.append(text, copied, begin - copied);
      const size_t end = std::find_if(text.begin() + static_cast<int64_t>(at), text.end(), is_ascii) - text.begin();
      append(formed, std::string_view(text).substr(begin, end - begin), buffer);
      copied = end;
      at = std::find_if_not(text.begin() + static_cast<int64_t>(end), text.end(), is_ascii) - text.begin();
      if (at == text.size()) {
        formed.append(text, copied, std::string::npos);
        break;
      }
    }
    text = std::move(formed);
  }

  void append(std::string& formed, std::string_view run, std::vector<utf8proc_int32_t>& buffer) const {
    const auto* bytes = reinterpret_cast<const utf8proc_uint8_t*>(run.data());
    const auto decompose = [&] {
      return utf8proc_decompose(bytes, static_cast<utf8proc_ssize_t>(run.size()), buffer.data(),
                                static_cast<utf8proc_ssize_t>(buffer.size()), options_);
    };
    buffer.resize(std::max(buffer.size(), 2 * run.size() + 1));
    utf8proc_ssize_t count = decompose();
    if (count >= static_cast<utf8proc_ssize_t>(buffer.size())) {
      buffer.resize(static_cast<size_t>(count) + 1);
      count = decompose();
    }
    const utf8proc_ssize_t length = count < 0 ? count : utf8proc_reencode(buffer.data(), count, options_);
    if (length < 0)
      throw Error("encode", {std::string("utf8proc cannot normalize the text: ") + utf8proc_errmsg(length)});
    formed.append(reinterpret_cast<const char*>(buffer.data()), static_cast<size_t>(length));
  }

  bool composed_;
  utf8proc_option_t options_;
};

void to_lower_case(std::string& text, size_t& first) {
  if (std::all_of(text.begin(), text.end(), is_ascii)) {
    for (char& c : text) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c;
    return;
  }
  map_characters(text, first, [](std::string& mapped, Character c) {
    if (c < 0x80) mapped += static_cast<char>(c >= 'A' && c <= 'Z' ? c + 32 : c);
    else append_lower_case(mapped, c);
  });
}

class LowercaseNormalizer final : public Normalizer {
 public:
  void apply(std::string& text, size_t& first) const override { to_lower_case(text, first); }
};

class StripAccentsNormalizer final : public Normalizer {
 public:
  void apply(std::string& text, size_t& first) const override {
    map_characters(text, first, [](std::string& mapped, Character c) {
      if (!is_accent(c)) append_character(mapped, c);
    });
  }
};

// --------------------------------------------------------------------------------------------------------------- BERT

class BertNormalizer final : public Normalizer {
 public:
  explicit BertNormalizer(const JsonFields& fields)
      : clean_(fields.boolean("clean_text", true)),
        ideographs_(fields.boolean("handle_chinese_chars", true)),
        lower_(fields.boolean("lowercase", true)),
        strip_(fields.boolean("strip_accents", lower_)) {}

  void apply(std::string& text, size_t& first) const override {
    if (clean_ || ideographs_)
      map_characters(text, first, [&](std::string& mapped, Character c) {
        if (c >= 0x21 && c < 0x7F) return void(mapped += static_cast<char>(c));
        if (clean_ && (c == 0 || c == 0xFFFD || is_control(c))) return;
        if (clean_ && is_space(c)) return void(mapped += ' ');
        const bool is_word = ideographs_ && is_ideograph(c);
        if (is_word) mapped += ' ';
        append_character(mapped, c);
        if (is_word) mapped += ' ';
      });
    if (strip_ && !std::all_of(text.begin(), text.end(), is_ascii)) {
      decomposed_.apply(text, first);
      map_characters(text, first, [](std::string& mapped, Character c) {
        if (!is_nonspacing_mark(c)) append_character(mapped, c);
      });
    }
    if (lower_) to_lower_case(text, first);
  }

 private:
  bool clean_, ideographs_, lower_, strip_;
  UnicodeNormalizer decomposed_{false, false};
};

// ---------------------------------------------------------------------------------------------------- small changes

/// SentencePiece's nmt rules for controls and spaces.
class NmtNormalizer final : public Normalizer {
 public:
  void apply(std::string& text, size_t& first) const override {
    map_characters(text, first, [](std::string& mapped, Character c) {
      if ((c >= 1 && c <= 8) || c == 0xB || (c >= 0xE && c <= 0x1F) || c == 0x7F || c == 0x8F || c == 0x9F) return;
      const bool is_blank = c == 9 || c == 0xA || c == 0xC || c == 0xD || c == 0x1680 || (c >= 0x200B && c <= 0x200F) ||
                            c == 0x2028 || c == 0x2029 || c == 0x2581 || c == 0xFEFF || c == 0xFFFD;
      append_character(mapped, is_blank ? ' ' : c);
    });
  }
};

class StripNormalizer final : public Normalizer {
 public:
  explicit StripNormalizer(const JsonFields& fields)
      : left_(fields.boolean("strip_left", true)), right_(fields.boolean("strip_right", true)) {}

  void apply(std::string& text, size_t& first) const override {
    size_t begin = 0, end = 0;
    bool is_inside = !left_;
    for (size_t at = 0; at < text.size();) {
      const size_t here = at;
      const bool is_blank = is_space(next_character(text, at));
      if (!is_inside && !is_blank) begin = here;
      is_inside |= !is_blank;
      if (!is_blank) end = at;
    }
    if (!is_inside) begin = end = text.size();
    if (right_) text.resize(std::max(begin, end));
    first -= std::min(begin, first);
    text.erase(0, begin);
  }

 private:
  bool left_, right_;
};

class PrependNormalizer final : public Normalizer {
 public:
  explicit PrependNormalizer(const JsonFields& fields)
      : what_(fields.text("prepend")), only_at_start_(fields.boolean("at_start", false)) {
    fields.require(what_.size() <= kMaxTokenBytes, "prepend", "at most 4096 bytes long");
  }
  void apply(std::string& text, size_t& first) const override {
    if (text.empty() || (first == 0 && only_at_start_)) return;
    text.insert(0, what_);
    if (first > 0) first += what_.size();
  }

 private:
  std::string what_;
  bool only_at_start_;
};

class ReplaceNormalizer final : public Normalizer {
 public:
  explicit ReplaceNormalizer(const JsonFields& fields) : content_(fields.text("content")) {
    const JsonFields pattern = fields.object("pattern");
    if (pattern.has("String")) literal_ = pattern.text("String");
    else regex_ = std::make_unique<Regex>(pattern.text("Regex"), pattern);
    if (!regex_ && literal_.empty()) pattern.refuse("String is empty");
  }

  void apply(std::string& text, size_t& first) const override {
    std::string replaced;
    size_t copied = 0, of_first = 0;
    const auto copy = [&](size_t end) {
      if (copied < first) of_first = replaced.size() + std::min(first, end) - copied;
      replaced.append(text, copied, end - copied);
    };
    const auto put = [&](size_t begin, size_t end) {  // the inserted text replaces the last character that is removed
      copy(begin);
      replaced += content_;
      limit_growth(text.size(), replaced.size());
      size_t last = end;
      while (last > begin && (static_cast<uint8_t>(text[--last]) & 0xC0) == 0x80) continue;
      if (begin < end ? last < first : begin <= first && first > 0) of_first = replaced.size();
      copied = end;
    };
    if (regex_) {
      for (Matches matches(*regex_, text); matches.next();) put(matches.begin(), matches.end());
    } else {
      for (size_t at = text.find(literal_); at != std::string::npos; at = text.find(literal_, at + literal_.size()))
        put(at, at + literal_.size());
    }
    if (copied == 0 && replaced.empty()) return;
    copy(text.size());
    text = std::move(replaced);
    first = of_first;
  }

 private:
  std::string content_, literal_;
  std::unique_ptr<Regex> regex_;
};

class ByteLevelNormalizer final : public Normalizer {
 public:
  void apply(std::string& text, size_t& first) const override {
    std::string mapped;
    size_t of_first = 0;
    for (size_t at = 0; at < text.size(); ++at) {
      append_byte_character(mapped, static_cast<uint8_t>(text[at]));
      if (at < first) of_first = mapped.size();
    }
    text = std::move(mapped);
    first = of_first;
  }
};

// ------------------------------------------------------------------------------------------------------------ charsmap

/// SentencePiece's table: a trie as a double array of 32-bit units, whose leaves are offsets in a list of
/// zero-terminated texts.
class CharsmapNormalizer final : public Normalizer {
 public:
  CharsmapNormalizer(const std::string& bytes, const JsonFields& fields)
      : takes_longest_(fields.boolean("longest", false)) {
    const auto word_at = [&](size_t at) {
      uint32_t word = 0;
      for (int n = 3; n >= 0; --n) word = word << 8 | static_cast<uint8_t>(bytes[at + static_cast<size_t>(n)]);
      return word;
    };
    if (bytes.size() < 4)
      fields.refuse("precompiled_charsmap has " + std::to_string(bytes.size()) + " bytes, must have at least 4");
    const size_t length = word_at(0);
    if (length > bytes.size() - 4 || length % 4 != 0 || length == 0)
      fields.refuse("precompiled_charsmap has a trie of " + std::to_string(length) +
                    " bytes, must be a positive multiple of 4 and at most " + std::to_string(bytes.size() - 4));
    for (size_t at = 4; at < 4 + length; at += 4) units_.push_back(word_at(at));
    texts_ = bytes.substr(4 + length);
    if (malformed_at(texts_) != std::string::npos) fields.refuse("precompiled_charsmap has texts that are not UTF-8");
  }

  /// The package `tokenizers` replaces a grapheme cluster of up to five bytes as a whole if it begins with an entry,
  /// and replaces each character of other clusters by itself. SentencePiece (takes_longest_) replaces the longest entry
  /// at each place.
  void apply(std::string& text, size_t& first) const override {
    std::string mapped;
    mapped.reserve(text.size() + text.size() / 8);
    size_t of_first = 0;
    const size_t characters = characters_in(std::string_view(text).substr(0, first));
    const auto move_first = [&](size_t end) {  // while nothing is left of the text, as the package does
      if (mapped.empty()) first = after(text, end, characters);
    };
    for (size_t at = 0; at < text.size();) {
      const size_t before = mapped.size(), end = takes_longest_ ? end_of_entry(text, at) : end_of_cluster(text, at);
      const std::string_view cluster = std::string_view(text).substr(at, end - at);
      if (cluster.size() == 1 && plain_[static_cast<uint8_t>(cluster[0])]) {
        mapped += cluster[0];
        if (at < first) of_first = mapped.size();
      } else if ((cluster.size() >= 6 && !takes_longest_) || !append(mapped, cluster)) {
        for (size_t next = 0; next < cluster.size();) {
          const size_t begin = next;
          next_character(cluster, next);
          const std::string_view one = cluster.substr(begin, next - begin);
          if (!append(mapped, one)) mapped += one;
          if (at + begin < first) of_first = mapped.size();
          move_first(at + next);
        }
      } else {
        if (at < first) of_first = before + front(std::string_view(mapped).substr(before), cluster, first - at);
        move_first(end);
      }
      limit_growth(text.size(), mapped.size());
      at = end;
    }
    text = std::move(mapped);
    first = of_first;
  }

  /// Finds the ASCII characters that no entry begins with.
  void find_plain() {
    for (int byte = 1; byte < 0x80; ++byte) {
      const char one = static_cast<char>(byte);
      std::string ignored;
      plain_[byte] = !append(ignored, {&one, 1});
    }
  }

 private:
  static size_t characters_in(std::string_view text) {
    return static_cast<size_t>(
        std::count_if(text.begin(), text.end(), [](char c) { return (static_cast<uint8_t>(c) & 0xC0) != 0x80; }));
  }

  /// The place after so many characters from `at`.
  static size_t after(std::string_view text, size_t at, size_t characters) {
    for (; characters > 0 && at < text.size(); --characters) next_character(text, at);
    return at;
  }

  /// The number of bytes of `replacement` that come from the first `first` bytes of the cluster: each character of the
  /// cluster gives one of the replacement, and the last gives the rest.
  static size_t front(std::string_view replacement, std::string_view cluster, size_t first) {
    if (first >= cluster.size()) return replacement.size();
    size_t end = 0;
    for (size_t at = 0; at < first && end < replacement.size(); next_character(replacement, end))
      next_character(cluster, at);
    return end;
  }

  static size_t end_of_cluster(std::string_view text, size_t at) {
    if (at + 1 < text.size() && is_ascii(text[at]) && is_ascii(text[at + 1]))
      return at + (text[at] == '\r' && text[at + 1] == '\n' ? 2 : 1);
    utf8proc_int32_t state = 0;
    Character before = next_character(text, at);
    while (at < text.size()) {
      size_t next = at;
      const Character character = next_character(text, next);
      if (utf8proc_grapheme_break_stateful(before, character, &state)) break;
      before = character;
      at = next;
    }
    return at;
  }

  /// The end of the longest entry at `at`, or of the one character.
  size_t end_of_entry(std::string_view text, size_t at) const {
    size_t end = at;
    next_character(text, end);
    walk(text.substr(at), [&](size_t length, size_t) {
      end = std::max(end, at + length);
      return true;
    });
    return end;
  }

  /// Appends the replacement of an entry that `text` begins with, and returns true if there is one: of the shortest
  /// entry or, if takes_longest_, of the one that is equal to `text`.
  bool append(std::string& mapped, std::string_view text) const {
    size_t place = SIZE_MAX;
    walk(text, [&](size_t length, size_t found) {
      if (!takes_longest_ || length == text.size()) place = found;
      return takes_longest_;
    });
    if (place == SIZE_MAX) return false;
    if (place < texts_.size()) mapped.append(texts_, place, texts_.find('\0', place) - place);
    return true;
  }

  /// Calls use(length, place) for each entry that `text` begins with, until it returns false.
  template <class Use>
  void walk(std::string_view text, const Use& use) const {
    const auto offset_of = [](uint32_t unit) { return (unit >> 10) << ((unit & 0x200) >> 6); };
    size_t at = offset_of(units_[0]);
    for (size_t n = 0; n < text.size() && text[n] != 0; ++n) {
      at ^= static_cast<uint8_t>(text[n]);
      if (at >= units_.size()) return;
      const uint32_t unit = units_[at];
      if ((unit & 0x800000FF) != static_cast<uint8_t>(text[n])) return;
      at ^= offset_of(unit);
      if (at >= units_.size()) return;
      if ((unit >> 8 & 1) != 0 && !use(n + 1, units_[at] & 0x7FFFFFFF)) return;
    }
  }

  bool takes_longest_;
  std::vector<uint32_t> units_;
  std::string texts_;
  std::array<bool, 256> plain_ = {};
};

std::string from_base64(const std::string& text, const JsonFields& fields) {
  std::string bytes;
  uint32_t bits = 0;
  int count = 0;
  for (char c : text.substr(0, text.find('='))) {
    int value = -1;
    if (c >= 'A' && c <= 'Z') value = c - 'A';
    else if (c >= 'a' && c <= 'z') value = c - 'a' + 26;
    else if (c >= '0' && c <= '9') value = c - '0' + 52;
    else if (c == '+') value = 62;
    else if (c == '/') value = 63;
    else fields.refuse("precompiled_charsmap is not base64");
    bits = bits << 6 | static_cast<uint32_t>(value);
    if ((count += 6) >= 8) bytes += static_cast<char>(bits >> (count -= 8));
  }
  return bytes;
}

class NormalizerSequence final : public Normalizer {
 public:
  explicit NormalizerSequence(const JsonFields& fields) { read(fields); }
  void apply(std::string& text, size_t& first) const override {
    const size_t before = text.size();
    for (const auto& part : parts_) {
      part->apply(text, first);
      limit_growth(before, text.size());
    }
  }

 private:
  void read(const JsonFields& fields) {
    for (const JsonFields& part : fields.list("normalizers"))
      if (part.type() == "Sequence") read(part);
      else parts_.push_back(read_normalizer(part));
  }

  std::vector<std::unique_ptr<Normalizer>> parts_;
};

}  // namespace

std::unique_ptr<Normalizer> read_charsmap(const JsonFields& fields) {
  auto charsmap =
      std::make_unique<CharsmapNormalizer>(from_base64(fields.text("precompiled_charsmap"), fields), fields);
  charsmap->find_plain();
  return charsmap;
}

std::unique_ptr<Normalizer> read_normalizer(const JsonFields& fields) {
  const std::string type = fields.type();
  if (type == "Sequence") return std::make_unique<NormalizerSequence>(fields);
  if (type == "NFC") return std::make_unique<UnicodeNormalizer>(true, false);
  if (type == "NFD") return std::make_unique<UnicodeNormalizer>(false, false);
  if (type == "NFKC") return std::make_unique<UnicodeNormalizer>(true, true);
  if (type == "NFKD") return std::make_unique<UnicodeNormalizer>(false, true);
  if (type == "Lowercase") return std::make_unique<LowercaseNormalizer>();
  if (type == "StripAccents") return std::make_unique<StripAccentsNormalizer>();
  if (type == "BertNormalizer") return std::make_unique<BertNormalizer>(fields);
  if (type == "Replace") return std::make_unique<ReplaceNormalizer>(fields);
  if (type == "Prepend") return std::make_unique<PrependNormalizer>(fields);
  if (type == "Strip") return std::make_unique<StripNormalizer>(fields);
  if (type == "Nmt") return std::make_unique<NmtNormalizer>();
  if (type == "Precompiled") return read_charsmap(fields);
  if (type == "ByteLevel") return std::make_unique<ByteLevelNormalizer>();
  fields.refuse_type({"BertNormalizer", "ByteLevel", "Lowercase", "NFC", "NFD", "NFKC", "NFKD", "Nmt", "Precompiled",
                      "Prepend", "Replace", "Sequence", "Strip", "StripAccents"});
}

}  // namespace attn::text
