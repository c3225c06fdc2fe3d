// text: UTF-8 checked by its definition, the three tokenizers, labels that people can read, and vocabularies from
// files.
#include <gtest/gtest.h>

#include <set>
#include <string>
#include <unordered_set>
#include <vector>

#include "attn/text.h"
#include "support/arrays.h"
#include "support/fuzz.h"
#include "text/unicode.h"

namespace attn::test {
namespace {

using text::Character;
using text::Tokenizer;
using Ids = std::vector<int64_t>;

constexpr Character kCharacters = 0x110000;

bool is_surrogate(Character character) { return character >= 0xD800 && character < 0xE000; }

/// By the table of RFC 3629, and not by the library under test.
std::string utf8(Character c) {
  const auto tail = [&](int shift) { return static_cast<char>(0x80 | (c >> shift & 63)); };
  if (c < 0x80) return {static_cast<char>(c)};
  if (c < 0x800) return {static_cast<char>(0xC0 | c >> 6), tail(0)};
  if (c < 0x10000) return {static_cast<char>(0xE0 | c >> 12), tail(6), tail(0)};
  return {static_cast<char>(0xF0 | c >> 18), tail(12), tail(6), tail(0)};
}

/// All characters, or every so many of them where tests are slow.
std::vector<Character> many_characters() {
  std::vector<Character> characters;
  const Character step = static_cast<Character>(by_effort(31, 7, 1));
  for (Character c = 0; c < kCharacters; c += c < 0x3100 ? 1 : step)
    if (!is_surrogate(c)) characters.push_back(c);
  return characters;
}

std::string joined(const std::vector<Character>& characters, const std::string& between = "") {
  std::string text;
  for (Character c : characters) text += utf8(c) + between;
  return text;
}

/// Characters that labels must not hold: spaces, controls, and what has no width or turns the line around.
bool is_nasty(Character c) {
  static const Character kRanges[][2] = {{0, 0x20},        {0x7F, 0xA0},       {0xAD, 0xAD},       {0x34F, 0x34F},
                                         {0x61C, 0x61C},   {0x115F, 0x1160},   {0x1680, 0x1680},   {0x180B, 0x180F},
                                         {0x2000, 0x200F}, {0x2028, 0x202F},   {0x205F, 0x206F},   {0x2800, 0x2800},
                                         {0x3000, 0x3000}, {0x3164, 0x3164},   {0xD800, 0xF8FF},   {0xFDD0, 0xFDEF},
                                         {0xFE00, 0xFE0F}, {0xFEFF, 0xFEFF},   {0xFFA0, 0xFFA0},   {0xFFF0, 0xFFFB},
                                         {0xFFFE, 0xFFFF}, {0x1BCA0, 0x1BCA3}, {0x1D173, 0x1D17A}, {0xE0000, 0x10FFFF}};
  for (const auto& range : kRanges)
    if (c >= range[0] && c <= range[1]) return true;
  return false;
}

testing::AssertionResult is_fit_for_a_label(const std::string& label) {
  if (label.empty() || text::malformed_at(label) != std::string::npos)
    return testing::AssertionFailure() << "not UTF-8";
  for (size_t at = 0; at < label.size();)
    if (const Character c = text::next_character(label, at); is_nasty(c))
      return testing::AssertionFailure() << text::code_of(c) << " in '" << label << "'";
  return testing::AssertionSuccess();
}

testing::AssertionResult is_error(const std::string& message, const std::string& operation, const std::string& piece) {
  const testing::AssertionResult begins = has(message, "[" + operation + "] ");
  return begins ? has(message, piece) : begins;
}

/// The same vocabulary after a detour by JSON.
std::unique_ptr<Tokenizer> reloaded(const Tokenizer& tokenizer) {
  return text::load_tokenizer(tokenizer.to_json(), "tokenizer.json");
}

std::unique_ptr<Tokenizer> words(const std::vector<std::string>& texts, const text::WordOptions& options) {
  return text::words_of(texts, options);
}

std::vector<std::string> labels(const Tokenizer& tokenizer) {
  std::vector<std::string> all;
  for (int64_t id = 0; id < tokenizer.vocab_size(); ++id) all.push_back(tokenizer.label(id));
  return all;
}

// --------------------------------------------------------------------------------------------------------------- UTF-8

TEST(Utf8, MalformedSequences) {
  const struct {
    std::string bytes;
    int at;
  } cases[] = {{"\x80", 0},                       // a tail alone
               {"ab\xBF", 2},                     //
               {"a\xC0\x80", 1},                  // overlong: U+0000
               {"\xC1\xBF", 0},                   // overlong: U+007F
               {"\xE0\x80\x80", 0},               //
               {"\xE0\x9F\xBF", 0},               // overlong: U+07FF
               {"\xF0\x80\x80\x80", 0},           //
               {"\xF0\x8F\xBF\xBF", 0},           // overlong: U+FFFF
               {"é\xED\xA0\x80", 2},              // surrogate: U+D800
               {"\xED\xBF\xBF", 0},               // surrogate: U+DFFF
               {"x\xED\xA0\xBD\xED\xB8\x80", 1},  // a pair of them
               {"\xF4\x90\x80\x80", 0},           // U+110000
               {"\xF5\x80\x80\x80", 0},           //
               {"\xF7\xBF\xBF\xBF", 0},           //
               {"\xF8\x88\x80\x80\x80", 0},       // five bytes
               {"\xFC\x84\x80\x80\x80\x80", 0},   //
               {"\xFE", 0},                       //
               {"abc\xFF", 3},                    //
               {"\xC3", 0},                       // cut off
               {"é\xE2\x82", 2},                  //
               {"\xF0\x9F\x98", 0},               //
               {"€\xF0", 3},                      //
               {"\xC3(", 0},                      // cut off by the next character
               {"😀\xE2\x82z", 4},                 //
               {"\xF0\x9F(\x80", 0},              //
               {"\xE2(\xA1", 0}};
  for (const auto& [bytes, at] : cases) {
    const std::string message = error_of([&, &b = bytes] { text::require_utf8(b, "a.txt"); });
    EXPECT_TRUE(is_error(message, "require_utf8", "a.txt: not UTF-8 at byte " + std::to_string(at) + " (0x")) << bytes;
    EXPECT_TRUE(is_readable(message, "a.txt"));
  }
  EXPECT_EQ(error_of([] { text::require_utf8("", "a.txt"); }), "");
}

/// All characters are taken, and of other short sequences none.
TEST(Utf8, ByDefinition) {
  std::unordered_set<std::string> good;
  for (Character c = 0; c < kCharacters; ++c)
    if (!is_surrogate(c)) good.insert(utf8(c));
  for (const std::string& bytes : good) {
    size_t at = 0;
    const Character character = text::next_character(bytes, at);
    ASSERT_EQ(at, bytes.size());
    ASSERT_EQ(utf8(character), bytes);
  }
  const auto expected = [&](std::string_view bytes) {
    size_t at = 0;
    while (at < bytes.size()) {
      size_t length = 1;
      while (length <= 4 && !good.contains(std::string(bytes.substr(at, length)))) ++length;
      if (length > 4) return at;
      at += length;
    }
    return std::string_view::npos;
  };
  const std::string leads = "a\x7f\x80\x8f\x90\x9f\xa0\xbf\xc0\xc2\xdf\xe0\xe1\xed\xee\xef\xf0\xf1\xf4\xf5\xff";
  sample(10'000'000, {.quick = 20'000, .normal = 200'000, .seconds = 20}, [&](int64_t n) {
    Random random(1, n);
    std::string bytes;
    for (int64_t length = random.below(7); length > 0; --length)
      bytes += random.below(4) == 0 ? static_cast<char>(random.below(256))
                                    : leads[random.below(static_cast<int64_t>(leads.size()))];
    ASSERT_EQ(text::malformed_at(bytes), expected(bytes));
  });
}

// ------------------------------------------------------------------------------------------------ characters and bytes

TEST(Characters, OneTokenEach) {
  const std::string sample = "b😀a\u0301 e\u0301\nb";  // a smiley and combining accents
  const auto tokenizer = text::characters_of(sample);
  EXPECT_EQ(tokenizer->kind(), "characters");
  EXPECT_EQ(tokenizer->vocab_size(), 7);
  EXPECT_EQ(labels(*tokenizer), (std::vector<std::string>{"\\n", "␣", "a", "b", "e", "◌\u0301", "😀"}));
  EXPECT_EQ(tokenizer->encode_ids(sample), (Ids{3, 6, 2, 5, 1, 4, 5, 0, 3}));
  EXPECT_EQ(tokenizer->decode(tokenizer->encode_ids(sample)), sample);
  EXPECT_EQ(tokenizer->encode_ids(""), Ids{});
  EXPECT_EQ(tokenizer->decode({}), "");
}

TEST(Characters, Refuse) {
  const auto tokenizer = text::characters_of("abé");
  const auto refusal = [&](const std::string& sample) { return error_of([&] { tokenizer->encode_ids(sample); }); };
  EXPECT_TRUE(is_error(refusal("ééc"), "encode",
                       "has U+0063 (c) at byte 4, must have only the 3 characters of the vocabulary"));
  EXPECT_TRUE(is_error(refusal("a\u202E"), "encode", "has U+202E (U+202E) at byte 1, must have only"));
  EXPECT_TRUE(is_error(refusal("a\xC3"), "require_utf8", "not UTF-8 at byte 1 (0xC3)"));
  EXPECT_TRUE(is_error(error_of([] { text::characters_of(""); }), "characters_of", "empty"));
  EXPECT_TRUE(is_error(error_of([] { text::characters_of("\xff"); }), "require_utf8", "not UTF-8 at byte 0"));
  for (const auto& any : {text::characters_of("abé"), text::bytes(), words({"a b"}, {.min_count = 1})})
    for (int64_t id : {int64_t{-1}, any->vocab_size(), INT64_MAX, INT64_MIN}) {
      const std::string size = std::to_string(any->vocab_size());
      EXPECT_TRUE(
          is_error(error_of([&] {
                     any->decode(Ids{0, id});
                   }),
                   "decode",
                   "id " + std::to_string(id) + " at index 1 is outside the vocabulary, must be in [0, " + size + ")"));
      EXPECT_TRUE(is_error(error_of([&] { any->label(id); }), "decode", "is outside the vocabulary"));
    }
}

TEST(Characters, AllOfUnicode) {
  const std::vector<Character> characters = many_characters();
  const std::string all = joined(characters);
  const auto tokenizer = text::characters_of(joined({characters.rbegin(), characters.rend()}) + all);
  ASSERT_EQ(tokenizer->vocab_size(), static_cast<int64_t>(characters.size()));
  const Ids ids = tokenizer->encode_ids(all);
  for (size_t n = 0; n < ids.size(); ++n) ASSERT_EQ(ids[n], static_cast<int64_t>(n));
  EXPECT_EQ(tokenizer->decode(ids), all);
  EXPECT_EQ(reloaded(*tokenizer)->decode(ids), all);
  EXPECT_EQ(reloaded(*tokenizer)->to_json(), tokenizer->to_json());
  std::unordered_set<std::string> seen;
  for (int64_t id : ids) {
    ASSERT_TRUE(is_fit_for_a_label(tokenizer->label(id)));
    ASSERT_TRUE(seen.insert(tokenizer->label(id)).second) << "twice: " << tokenizer->label(id);
  }
}

TEST(Characters, Bytes) {
  std::string all;
  for (int byte = 0; byte < 256; ++byte) all += static_cast<char>(byte);
  const auto tokenizer = text::bytes();
  EXPECT_EQ(tokenizer->kind(), "bytes");
  EXPECT_EQ(tokenizer->vocab_size(), 256);
  const Ids ids = tokenizer->encode_ids(all);
  for (int64_t n = 0; n < 256; ++n) EXPECT_EQ(ids[n], n);
  EXPECT_EQ(tokenizer->decode(ids), all);
  EXPECT_EQ(tokenizer->decode(tokenizer->encode_ids("é").front() == 0xC3 ? Ids{0xC3} : Ids{}), "\xC3");
  EXPECT_EQ(reloaded(*tokenizer)->kind(), "bytes");
  std::set<std::string> seen;
  for (const std::string& label : labels(*tokenizer)) {
    EXPECT_TRUE(is_fit_for_a_label(label));
    EXPECT_TRUE(seen.insert(label).second) << label;
  }
  EXPECT_EQ(tokenizer->label('a'), "a");
  EXPECT_EQ(tokenizer->label(' '), "␣");
  EXPECT_EQ(tokenizer->label('\n'), "\\n");
  EXPECT_EQ(tokenizer->label('\t'), "\\t");
  EXPECT_EQ(tokenizer->label('\r'), "\\r");
  EXPECT_EQ(tokenizer->label(0), "U+0000");
  EXPECT_EQ(tokenizer->label(0x7F), "U+007F");
  EXPECT_EQ(tokenizer->label(0xE9), "0xE9");
}

TEST(Characters, LabelsOfNastyOnes) {
  const std::pair<const char*, const char*> cases[] = {
      {"\u00A0", "U+00A0"},  {"\u00AD", "U+00AD"}, {"\u200B", "U+200B"}, {"\u200D", "U+200D"},
      {"\u202E", "U+202E"},  {"\u2066", "U+2066"}, {"\u2028", "U+2028"}, {"\uFEFF", "U+FEFF"},
      {"\uFE0F", "U+FE0F"},  {"\u0085", "U+0085"}, {"\uE000", "U+E000"}, {"\u2423", "U+2423"},
      {"\uFFFF", "U+FFFF"},  {"\u3164", "U+3164"}, {"\x1b", "U+001B"},   {"\U000E0041", "U+E0041"},
      {"\u0301", "◌\u0301"}, {"\u05D0", "\u05D0"}, {"漢", "漢"},         {"\\", "\\"}};
  for (const auto& [character, label] : cases) EXPECT_EQ(text::characters_of(character)->label(0), label);
}

// --------------------------------------------------------------------------------------------------------------- words

TEST(Words, Splitting) {
  const std::pair<std::string, std::vector<std::string>> cases[] = {
      {"The film, frankly: GREAT!", {"the", "film", ",", "frankly", ":", "great", "!"}},
      {"don't 'tis dogs' rock'n'roll a''b", {"don't", "'", "tis", "dogs", "'", "rock'n'roll", "a", "'", "'", "b"}},
      {"l’été", {"l’été"}},
      {"4.5 stars/10, R2D2", {"4", ".", "5", "stars", "/", "10", ",", "r2d2"}},
      {"snake_case e-mail", {"snake", "_", "case", "e", "-", "mail"}},
      {"Straße ΣΊΣΥΦΟΣ İ", {"strasse", "σίσυφοσ", "i\u0307"}},
      {"e\u0301t \u0301t", {"e\u0301t", "\u0301", "t"}},
      {"हिन्दी", {"हिन्दी"}},
      {"👩\u200D🚀ok", {"👩", "\u200D", "🚀", "ok"}},
      {"a\u00A0b\u2003c\u0085d\u3000e\tf\vg\rh", {"a", "b", "c", "d", "e", "f", "g", "h"}},
      {std::string("a\0b", 3), {"a", std::string(1, '\0'), "b"}},
      {"<pad> <unk>", {"<", "pad", ">", "<", "unk", ">"}},
      {"'", {"'"}},
      {"a'", {"a", "'"}}};
  for (const auto& [sample, expected] : cases) {
    const auto tokenizer = words({sample}, {.min_count = 1});
    std::vector<std::string> tokens;
    for (int64_t id : tokenizer->encode_ids(sample)) {
      EXPECT_GE(id, 2) << sample;
      tokens.push_back(tokenizer->decode(Ids{id}));
    }
    EXPECT_EQ(tokens, expected) << sample;
  }
}

TEST(Words, ByFrequencyThenBytes) {
  const std::vector<std::string> texts = {"b z c", "B z d é", "z é a c"};  // z 3; b c é 2; a d 1
  const auto tokenizer = words(texts, {});
  EXPECT_EQ(tokenizer->kind(), "words");
  EXPECT_EQ(labels(*tokenizer), (std::vector<std::string>{"<pad>", "<unk>", "z", "b", "c", "é"}));
  EXPECT_EQ(tokenizer->encode_ids("É z d B <pad>"), (Ids{5, 2, 1, 3, 1, 1, 1}));
  EXPECT_EQ(tokenizer->decode(Ids{2, 0, 3, 1}), "z <pad> b <unk>");
  EXPECT_EQ(tokenizer->encode_ids(""), Ids{});
  EXPECT_EQ(labels(*words(texts, {.max_words = 2})), (std::vector<std::string>{"<pad>", "<unk>", "z", "b"}));
  EXPECT_EQ(words(texts, {.min_count = 1})->vocab_size(), 8);
  EXPECT_EQ(words(texts, {.min_count = 3})->vocab_size(), 3);
  const auto exact = words(texts, {.min_count = 1, .lower_case = false});
  EXPECT_EQ(exact->vocab_size(), 9);
  EXPECT_NE(exact->encode_ids("b"), exact->encode_ids("B"));
  EXPECT_EQ(exact->encode_ids("É"), Ids{1});
  for (const Tokenizer* any : {tokenizer.get(), exact.get()}) {
    const auto again = reloaded(*any);
    EXPECT_EQ(again->to_json(), any->to_json());
    EXPECT_EQ(again->encode_ids(texts[1]), any->encode_ids(texts[1]));
    EXPECT_EQ(labels(*again), labels(*any));
  }
}

TEST(Words, Refuse) {
  const auto refusal = [](const std::vector<std::string>& texts, const text::WordOptions& options) {
    return error_of([&] { text::words_of(texts, options); });
  };
  EXPECT_TRUE(is_error(refusal({"a"}, {.min_count = 0, .max_words = 0}), "words_of",
                       "min_count is 0, must be at least 1; max_words is 0, must be from 1 to 4194304"));
  EXPECT_TRUE(is_error(refusal({"a"}, {.max_words = INT64_MAX}), "words_of", "max_words is 9223372036854775807"));
  EXPECT_TRUE(is_error(refusal({}, {}), "words_of", "none of the 0 words occurs 2 times (min_count)"));
  EXPECT_TRUE(is_error(refusal({"a b"}, {}), "words_of", "none of the 2 words occurs 2 times (min_count)"));
  EXPECT_TRUE(is_error(refusal({"a a", "b\xff"}, {}), "require_utf8", "text 1: not UTF-8 at byte 1"));
  const auto tokenizer = words({"a a"}, {});
  EXPECT_TRUE(is_error(error_of([&] { tokenizer->encode_ids("a \xff"); }), "require_utf8", "not UTF-8 at byte 2"));
}

/// What was split and folded once is one token for ever: a vocabulary can be saved, whatever the text.
TEST(Words, AllOfUnicode) {
  const std::string all = joined(many_characters(), " ");
  for (bool lower_case : {true, false}) {
    const auto tokenizer = words({all}, {.min_count = 1, .max_words = 4'000'000, .lower_case = lower_case});
    const auto again = reloaded(*tokenizer);
    EXPECT_EQ(again->vocab_size(), tokenizer->vocab_size());
    EXPECT_EQ(again->encode_ids(all), tokenizer->encode_ids(all));
    for (int64_t id = 0; id < tokenizer->vocab_size(); ++id) ASSERT_TRUE(is_fit_for_a_label(tokenizer->label(id)));
  }
}

TEST(Words, AnyMixture) {
  const Character hard[] = {'a',     'Z',   '7',      '\'',   0x2019, ' ',   '\n',   '.',    0x301,
                            0x345,   0x130, 0xDF,     0x1E9E, 0x1F88, 0x3A3, 0xFB03, 0x200D, 0xFE0F,
                            0x1F600, 0x85,  0x10FFFF, 0x13A0, 0xAB70, 0x93F, 0};
  sample(100'000, {.quick = 300, .normal = 3000, .seconds = 20}, [&](int64_t n) {
    Random random(2, n);
    std::string mixture = "a";
    for (int64_t length = random.below(40); length > 0; --length)
      mixture += utf8(hard[random.below(static_cast<int64_t>(std::size(hard)))]);
    const bool lower_case = random.below(2) == 0;
    const auto tokenizer = words({mixture}, {.min_count = 1, .lower_case = lower_case});
    const Ids ids = tokenizer->encode_ids(mixture);
    ASSERT_EQ(std::count(ids.begin(), ids.end(), 1), 0) << mixture;
    ASSERT_EQ(reloaded(*tokenizer)->encode_ids(tokenizer->decode(ids)), ids) << mixture;
  });
}

/// A megabyte of what a careless splitter takes quadratic time for, which the time limit of the test would show.
TEST(Words, LongRuns) {
  for (const char* unit : {"a", "'", "a'", "'a", "\u0301", "a\u0301", " ", "İ", "\u200D", ".", "a ", "x'x "}) {
    std::string sample = "end end ";
    while (sample.size() < 1'000'000) sample += unit;
    const auto tokenizer = words({sample}, {});
    EXPECT_EQ(tokenizer->decode(Ids{tokenizer->encode_ids(sample).front()}), "end");
  }
}

// ------------------------------------------------------------------------------------------------------------- streams

/// The pieces of a stream, whole characters each, and the decode() of all ids that they add up to.
void expect_stream(const Tokenizer& tokenizer, const Ids& ids) {
  text::TextStream stream(tokenizer);
  for (int round = 0; round < 2; ++round) {
    std::string all;
    for (int64_t id : ids) {
      const std::string piece = stream.push(id);
      EXPECT_EQ(text::malformed_at(piece), std::string::npos) << piece;
      all += piece;
    }
    EXPECT_EQ(all + stream.finish(), tokenizer.decode(ids));
  }
}

TEST(Streams, OfOwnKinds) {
  const std::string sample = "don't é\u0301 stop: 漢字 👩\u200D🚀 ok";
  for (const auto& tokenizer : {text::bytes(), text::characters_of(sample), words({sample}, {.min_count = 1})})
    expect_stream(*tokenizer, tokenizer->encode_ids(sample));
}

TEST(Streams, CutOffAndMalformed) {
  const auto tokenizer = text::bytes();
  text::TextStream stream(*tokenizer);
  EXPECT_EQ(stream.push(0xF0), "");
  EXPECT_EQ(stream.push(0x9F), "");
  EXPECT_EQ(stream.finish(), "\xF0\x9F");
  EXPECT_EQ(stream.push(0xE2), "");
  EXPECT_EQ(stream.push('a'),
            "\xE2"
            "a");
  EXPECT_EQ(stream.push(0x80), "\x80");
  EXPECT_EQ(stream.push(0xFF), "\xFF");
}

TEST(Streams, DefaultsOfOwnKinds) {
  const auto tokenizer = words({"a b c"}, {.min_count = 1});
  const text::Encoding one = tokenizer->encode("a b"), two = tokenizer->encode_pair("a", "b c");
  EXPECT_EQ(one.ids, tokenizer->encode_ids("a b"));
  EXPECT_EQ(one.token_type_ids, (Ids{0, 0}));
  EXPECT_EQ(two.ids, tokenizer->encode_ids("a b c"));
  EXPECT_EQ(two.token_type_ids, (Ids{0, 1, 1}));
  EXPECT_EQ(tokenizer->token_to_id("<unk>"), 1);
  EXPECT_EQ(tokenizer->token_to_id("d"), std::nullopt);
  EXPECT_FALSE(tokenizer->is_special(0));
  EXPECT_FALSE(tokenizer->batch_options().max_length);
}

// ---------------------------------------------------------------------------------------------------------------- load

TEST(Load, HostileFilesAreRefused) {
  const std::string deep(100'000, '['), many_words = "{\"kind\":\"words\",\"lower_case\":true,\"words\":[";
  const auto of_words = [&](const std::string& list) { return many_words + list + "]}"; };
  const auto of_characters = [](const std::string& list) {
    return "{\"kind\":\"characters\",\"characters\":" + list + "}";
  };
  const std::pair<std::string, std::string> cases[] = {
      {"", "is an empty file"},
      {"null", "is null, must be an object"},
      {"[]", "is a list, must be an object"},
      {"\"bytes\"", "is \"bytes\", must be an object"},
      {"{", "not JSON at byte 1"},
      {"{}", "has no kind"},
      {"{\"kind\":\"bytes\"}x", "not JSON at byte 16"},
      {std::string("{\"kind\":\"bytes\"}\0", 17), "not JSON at byte 16: there is a zero byte"},
      {"{\"kind\":\"bytes\",\"kind\":\"bytes\"}", "the key \"kind\" occurs twice"},
      {"{\"kind\":7}", "kind is 7, must be a string"},
      {"{\"kind\":null}", "kind is null, must be a string"},
      {"{\"kind\":\"bpe\"}", "kind is \"bpe\", must be \"characters\", \"bytes\" or \"words\""},
      {"{\"kind\":\"" + std::string(100'000, 'x') + "\"}", "xxx\"..., must be"},
      {"{\"kind\":\"bytes\",\"size\":256}", "has the field \"size\", which a tokenizer of its kind cannot have"},
      {"{\"kind\":\"bytes\",\"\\u001b[2J\":256}", "has the field \"\\u001b[2J\", which"},
      {"{\"kind\":\"characters\"}", "has no characters"},
      {"{\"kind\":\"characters\",\"characters\":\"a\",\"words\":[]}", "has the field \"words\", which"},
      {of_characters("7"), "characters is 7, must be a string"},
      {of_characters("[\"a\"]"), "characters is a list, must be a string"},
      {of_characters("\"\""), "characters is empty"},
      {of_characters("\"ba\""), "U+0061 at index 1 follows U+0062"},
      {of_characters("\"abb\""), "U+0062 at index 2 follows U+0062"},
      {of_characters("\"a\\u0061\""), "U+0061 at index 1 follows U+0061"},
      {of_characters("\"\xff\""), "ill-formed UTF-8"},
      {of_characters("\"\xed\xa0\x80\""), "ill-formed UTF-8"},
      {of_characters("\"\\ud800\""), "surrogate"},
      {of_characters("\"a"), "not JSON at byte 37"},
      {"{\"kind\":\"words\"}", "has no lower_case"},
      {"{\"kind\":\"words\",\"lower_case\":true}", "has no words"},
      {"{\"kind\":\"words\",\"lower_case\":1,\"words\":[\"a\"]}", "lower_case is 1, must be true or false"},
      {"{\"kind\":\"words\",\"lower_case\":true,\"words\":\"a\"}", "words is \"a\", must be a list"},
      {"{\"kind\":\"words\",\"lower_case\":true,\"words\":{\"a\":2}}", "words is an object, must be a list"},
      {of_words(""), "words is empty"},
      {of_words("\"a\",7"), "word 1 is 7, must be a string"},
      {of_words("\"a\",[\"b\"]"), "word 1 is a list, must be a string"},
      {of_words("\"a\",\"b\",\"a\""), "word 2 is \"a\", must differ from the words before it"},
      {of_words("\"\""), "word 0 is \"\", must be a word that splitting a text can give"},
      {of_words("\" \""), "word 0 is \" \", must be a word that splitting a text can give"},
      {of_words("\"a b\""), "word 0 is \"a b\", must be a word"},
      {of_words("\"a.\""), "word 0 is \"a.\", must be a word"},
      {of_words("\"a'\""), "word 0 is \"a'\", must be a word"},
      {of_words("\"A\""), "word 0 is \"A\", must be a word"},
      {of_words("\"<pad>\""), "word 0 is \"<pad>\", must be a word"},
      {of_words(deep), "nested deeper than 64 levels"},
      {deep, "nested deeper than 64 levels"}};
  for (const auto& [json, piece] : cases) {
    const std::string message = error_of([&, &j = json] { text::load_tokenizer(j, "tokenizer.json"); });
    EXPECT_TRUE(is_error(message, "load_tokenizer", piece)) << json.substr(0, 200);
    EXPECT_TRUE(is_readable(message, "tokenizer.json: "));
  }
}

TEST(Load, TooManyBytesAreRefused) {
  if (effort() == Effort::quick) return;  // some hundred megabytes
  const auto refusal = [](const std::string& json) { return error_of([&] { text::load_tokenizer(json, "a"); }); };
  std::string many = "{\"kind\":\"words\",\"lower_case\":true,\"words\":[0";
  for (int64_t n = 0; n < int64_t{1} << 22; ++n) many += ",0";
  EXPECT_TRUE(is_error(refusal(many + "]}"), "load_tokenizer", "a: has 4194305 words, must have at most 4194304"));
  if (effort() == Effort::normal) return;  // some seconds
  for (int64_t n = 0; n < int64_t{3} << 22; ++n) many += ",0";
  EXPECT_TRUE(is_error(refusal(many + "]}"), "load_tokenizer", "a: more than 16777216 values"));
  const std::string long_text((size_t{1} << 28) + 1, ' ');
  EXPECT_TRUE(is_error(refusal(long_text), "load_tokenizer", "a: has 268435457 bytes, must have at most 268435456"));
}

TEST(Load, MutatedFiles) {
  std::vector<std::string_view> dictionary(std::begin(kJsonWords), std::end(kJsonWords));
  dictionary.insert(dictionary.end(),
                    {"\"kind\":\"words\"", "\"kind\":\"bytes\"", "\"characters\"", "\"words\"", "\\u00e9"});
  const std::string seeds[] = {text::characters_of("ab é😀\n")->to_json(), text::bytes()->to_json(),
                               words({"The best film don't é miss . 10"}, {.min_count = 1})->to_json(),
                               words({"The Best"}, {.min_count = 1, .lower_case = false})->to_json()};
  int64_t accepted = 0;
  const int64_t rounds = sample(1'000'000, {.quick = 20'000, .normal = 20'000, .seconds = 20}, [&](int64_t n) {
    Random random(3, n);
    std::string json = seeds[random.below(4)];
    for (int64_t changes = random.below(4); changes >= 0; --changes) json = mutated(json, random, dictionary);
    const std::string message = error_of([&] {
      const auto tokenizer = text::load_tokenizer(json, "a.json");
      for (const std::string& label : labels(*tokenizer)) ASSERT_TRUE(is_fit_for_a_label(label)) << json;
      ASSERT_EQ(reloaded(*tokenizer)->to_json(), tokenizer->to_json());
    });
    accepted += message.empty();
    ASSERT_TRUE(message.empty() || is_readable(message, "a.json"));
  });
  EXPECT_GE(accepted, rounds / 100);
}

}  // namespace
}  // namespace attn::test
