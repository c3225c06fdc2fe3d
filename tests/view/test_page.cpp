// html_page(): hostile text stays text, weights come back, nothing is loaded, and the policy fits the page.
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "attn/view_page.h"
#include "support/checks.h"
#include "support/pages.h"
#include "support/pictures.h"
#include "view/text.h"

namespace attn::test {
namespace {

using nlohmann::json;
using Strings = std::vector<std::string>;

/// `n` tokens, random queries and keys; layers of the given heads.
struct Sample {
  Texts texts;
  std::vector<RecordedAttention> layers;

  Sample(int64_t n, const std::vector<int64_t>& heads) {
    for (int64_t H : heads) {
      const AttentionOptions options = {.causal = texts.empty()};
      texts.push_back(std::make_unique<Text>("layer", n, H, H, DType::float32, 41 + texts.size(), options));
      layers.push_back(texts.back()->attend().layer());
    }
  }
};

const std::string kHighBidi = "\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069\u200e\u200f\u061c";

Strings payloads() {
  Strings list = {
      "<script>alert(1)</script>",
      "</script><script>alert(1)</script>",
      "</SCRIPT ><img src=x onerror=alert(1)>",
      "\"><img src=x onerror=alert(1)>",
      "'><svg/onload=alert(1)>",
      "<svg><script>alert(1)</script></svg>",
      "<iframe src=javascript:alert(1)>",
      "<body onload=alert(1)>",
      "<a href=\"javascript:alert(1)\">x</a>",
      "<math><mi//xlink:href=\"data:x,<script>alert(4)</script>\">",
      "<!--",
      "-->",
      "<!--<script>",
      "--!>",
      "]]>",
      "<![CDATA[",
      "<?xml version=\"1.0\"?>",
      "<!doctype html>",
      "</title><script>alert(1)</script>",
      "</style><script>alert(1)</script>",
      "</textarea><script>alert(1)</script>",
      "</noscript><script>x</script>",
      "<meta http-equiv=refresh content=\"0;url=//evil.example\">",
      "<base href=//evil.example/>",
      "<link rel=stylesheet href=//evil.example/x.css>",
      "<object data=x>",
      "<embed src=x>",
      "<form action=//evil>",
      "<input autofocus onfocus=alert(1)>",
      "<details open ontoggle=alert(1)>",
      "<video><source onerror=alert(1)>",
      "&lt;script&gt;alert(1)&lt;/script&gt;",
      "&#60;script&#62;",
      "&amp;",
      "&quot;&apos;",
      "\\u003cscript\\u003e",
      "\\x3cscript\\x3e",
      "\\",
      "\\\\",
      "\\\"",
      "\"",
      "'",
      "`",
      "${alert(1)}",
      "{{data}}",
      "{{constructor}}",
      "}}",
      "\"};alert(1);//",
      "\"],\"layers\":[],\"x\":[\"",
      "'+alert(1)+'",
      "*/alert(1)/*",
      "//comment",
      "javascript:alert(1)",
      "data:text/html,<script>alert(1)</script>",
      "http://evil.example/",
      "https://evil.example/?a=b&c=d",
      "expression(alert(1))",
      "url(//evil.example)",
      "@import '//evil.example';",
      "\u2028alert(1)\u2029",
      "\u2028",
      "\u2029",
      kHighBidi,
      "\u202egnp.exe",
      "\u2066abc\u2069",
      "\ufeff<script>",
      "\u00a0",
      "\u200b\u200c\u200d",
      "\uff1cscript\uff1e",
      "\U000e0001\U000e0041",
      "\U0001f468\u200d\U0001f469\u200d\U0001f467",
      "a\tb\nc\rd",
      "\x1b[31mred\x1b[0m",
      "\x01\x02\x7f",
      "\ufffe\uffff",
      "__proto__:1",
      "constructor()",
      "%3Cscript%3E",
      "+ADw-script+AD4-",
      "<%= 1 %>",
      "#{1}",
      "<script\n>",
      "<scr<script>ipt>",
      "e\u0301\u0301\u0301",
      "日本語",
      "שלום",
  };
  list.push_back(std::string("nul\0nul", 7));
  list.push_back(std::string("<\0script>", 9));
  return list;
}

/// JSON without any character that HTML gives a meaning to, and base 64.
const std::string kAllowed = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789 .,_-+/=\"\\{}[]:\n";

/// Quotes, backslashes and letters are what JSON itself is made of: text of these alone may look like an escape.
bool appears_raw(const std::string& payload, const std::string& data) {
  const bool like_json = std::all_of(payload.begin(), payload.end(), [](char c) {
    return c == '"' || c == '\\' || (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z');
  });
  return !like_json && data.find(payload) != std::string::npos;
}

TEST(Page, HostileTokensStayText) {
  Strings tokens = payloads();
  ASSERT_GE(tokens.size(), 60u);
  tokens.push_back(std::string(1 << 20, '<'));
  const auto n = static_cast<int64_t>(tokens.size());
  const Sample sample(n, {1});
  const Page harmless(view::html_page("t", Strings(tokens.size(), "t"), sample.layers));
  const Page page(view::html_page("t", tokens, sample.layers));
  EXPECT_TRUE(page.before == harmless.before && page.after == harmless.after) << "a token left the data";
  for (const std::string& token : tokens)
    EXPECT_FALSE(appears_raw(token, page.data)) << view::json_string(token.substr(0, 80));
  EXPECT_EQ(page.data.find_first_not_of(kAllowed), std::string::npos);
  EXPECT_EQ(json::parse(page.data)["tokens"].get<Strings>(), tokens);
}

TEST(Page, HostileTitlesAndLayerNamesStayText) {
  const Sample sample(2, {1});
  const Page harmless(view::html_page("t", {"a", "b"}, sample.layers));
  for (const std::string& payload : payloads()) {
    std::vector<RecordedAttention> layers = sample.layers;
    layers[0].name = payload;
    const Page page(view::html_page(payload, {"a", "b"}, layers));
    const std::string shown = view::json_string(payload);
    EXPECT_TRUE(page.before == harmless.before && page.after == harmless.after) << shown;
    EXPECT_FALSE(appears_raw(payload, page.data)) << shown;
    EXPECT_EQ(page.data.find_first_not_of(kAllowed), std::string::npos) << shown;
    const json data = json::parse(page.data);
    EXPECT_EQ(data["title"].get<std::string>(), payload);
    EXPECT_EQ(data["layers"][0]["name"].get<std::string>(), payload);
  }
}

/// One U+FFFD for each malformed part, as browsers decode.
TEST(Page, MalformedUtf8BecomesTheReplacementCharacter) {
  const std::string bad = "\ufffd";
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"\xff", bad},
      {"a\x80z", "a" + bad + "z"},
      {"\xc3", bad},
      {"\xc3(", bad + "("},
      {"\xc0\xaf", bad + bad},                      // a longer form of '/'
      {"\xe0\x80\xaf", bad + bad + bad},            // the same in three bytes
      {"\xed\xa0\x80", bad + bad + bad},            // a surrogate
      {"\xf4\x90\x80\x80", bad + bad + bad + bad},  // beyond U+10FFFF
      {"\xf0\x9f\x98", bad},                        // cut off
      {"\xe2\x82"
       "<",
       bad + "<"},
      {"\xf0\x9f\x98\x80", "\U0001f600"},
      {"\xef\xbf\xbf", "\uffff"},
  };
  for (const auto& [text, expected] : cases)
    EXPECT_EQ(json::parse(view::json_string(text)).get<std::string>(), expected) << view::json_string(text);
}

// ------------------------------------------------------------------------------------------------------------- weights

/// Queries or keys [n, D] as the page unpacks them.
Values vectors_of(const std::string& text, int64_t n) {
  const std::vector<uint8_t> bytes = bytes_of(text);
  const auto largest = numbers_of<double>(bytes);
  Values values = codes_of(bytes, static_cast<size_t>(8 * n));
  for (size_t at = 0; at < values.size(); ++at)
    values[at] = (values[at] - 0x1p23) / (0x1p23 - 1) * largest[at * static_cast<size_t>(n) / values.size()];
  return values;
}

/// What is added to the scores [queries, n].
Values added_of(const std::string& text, int64_t n) {
  const std::vector<uint8_t> bytes = bytes_of(text);
  const auto words = numbers_of<uint32_t>(bytes);
  const auto floats = numbers_of<float>(bytes);
  Values added;
  for (size_t at = 0; at < words.size();) {
    const uint32_t foretold = words[at], others = words[at + 1];
    for (uint32_t c = 0; c < foretold; ++c) {
      const auto place = static_cast<int64_t>(added.size()), i = place / n, j = place % n;
      added.push_back(place == 0 ? 0 : added[i == 0 ? place - 1 : j == 0 ? place - n : place - n - 1]);
    }
    for (uint32_t o = 0; o < others; ++o) added.push_back(floats[at + 2 + o]);
    at += 2 + others;
  }
  return added;
}

/// The weights [queries, n] of a head of a page.
Values weights_of(const json& layer, const json& head, int64_t queries, int64_t n) {
  const Values q = vectors_of(head["q"], queries), k = vectors_of(layer["keys"][head["keys"].get<size_t>()], n);
  const Values added = added_of(layer["added"][head["added"].get<size_t>()], n);
  const auto lse = numbers_of<double>(bytes_of(head["lse"]));
  const double scale = layer["scale"], softcap = layer["softcap"];
  const int64_t D = static_cast<int64_t>(q.size()) / queries;
  Values weights;
  for (int64_t i = 0; i < queries; ++i)
    for (int64_t j = 0; j < n; ++j) {
      double score = 0;
      for (int64_t d = 0; d < D; ++d) score += q[i * D + d] * k[j * D + d];
      score *= scale;
      if (softcap > 0) score = softcap * std::tanh(score / softcap);
      const bool hidden = std::isinf(added.at(static_cast<size_t>(i * n + j))) || !std::isfinite(lse[i]);
      const double weight = hidden ? 0 : std::exp(score + added[i * n + j] - lse[i]);
      weights.push_back(weight > 0 ? std::min(weight, 1.0) : 0);
    }
  return weights;
}

/// The largest score that leaves a weight in float32 (exp(-104) is none), or makes a row's lse.
double largest_score(const Text& text) {
  double largest = 0;
  for (int64_t n = 0; n < text.lse.count(); ++n)
    if (std::isfinite(text.lse.get(n))) largest = std::max(largest, std::abs(text.lse.get(n)) + 104);
  return largest;
}

TEST(Page, WeightsComeOfWhatIsStored) {
  constexpr int64_t kTokens = 30;
  for (const auto& text : texts_of_every_option(kTokens)) {
    const json data = json::parse(Page(view::html_page("t", Strings(kTokens, "t"), {text->layer()})).data);
    const json& layer = data["layers"][0];
    ASSERT_EQ(layer["heads"].size(), 5u);
    EXPECT_LT(data["error"].get<double>(), kPageMostSaid) << text->name;
    const double bound = page_weight_bound(data["error"], largest_score(*text), text->q.dtype());
    const Array<4> expected = text->weights();
    for (int64_t h = 0; h < 4; ++h) {
      const Values actual = weights_of(layer, layer["heads"][h], kTokens, kTokens);
      for (int64_t n = 0; n < kTokens * kTokens; ++n) {
        const double weight = std::min(expected.get(h * kTokens * kTokens + n), 1.0);
        ASSERT_TRUE(std::abs(actual[n] - weight) <= bound * weight + kPageLeastWeight)
            << text->name << ", head " << h << ", " << n << ": " << actual[n] << ", not " << weight;
      }
    }
  }
}

/// Of two texts, rows are of the one and columns of the other.
TEST(Page, TwoTexts) {
  constexpr int64_t kKeys = 9, kQueries = 5;
  Text text("cross", kKeys, 2, 1, DType::float32, 6);
  text.attend();
  RecordedAttention layer = text.layer();
  layer.q.size[2] = layer.lse.size[2] = kQueries;
  const Strings queries(kQueries, "a"), keys(kKeys, "b");
  const json data = json::parse(Page(view::html_page({.title = "t", .queries = queries, .keys = keys}, {layer})).data);
  EXPECT_EQ(data["tokens"].get<Strings>(), queries);
  EXPECT_EQ(data["key_tokens"].get<Strings>(), keys);
  EXPECT_EQ(data["thumbnail"], json({kQueries, kKeys}));
  for (const json& measure : data["measures"]) EXPECT_NE(measure["name"], "distance") << "there is none";
  const Array<4> expected = text.weights();
  for (int64_t h = 0; h < 2; ++h) {
    const json& head = data["layers"][0]["heads"][h];
    const Values actual = weights_of(data["layers"][0], head, kQueries, kKeys);
    const double bound = page_weight_bound(data["error"], largest_score(text), DType::float32);
    double most = 0;
    for (int64_t n = 0; n < kQueries * kKeys; ++n) {
      const double weight = expected.get(h * kKeys * kKeys + n);
      EXPECT_LE(std::abs(actual[n] - weight), bound * weight) << h << " " << n;
      most += weight * (n % kKeys == 0) / kQueries;
    }
    EXPECT_NEAR(head["measures"][3].get<double>(), most, kSixDigits) << "the mean weight on the first key";
  }
  EXPECT_EQ(reasons_of([&] { view::html_page({.queries = keys, .keys = queries}, {layer}); }),
            (Strings{"layers[0]: 5 queries and 9 keys, must be as many as 9 and 5 tokens"}));
}

/// A pair of sentences has a boundary.
TEST(Page, SaysWhereTheSecondSentenceBegins) {
  const Sample sample(4, {1});
  const view::PageTexts pair{.title = "t", .queries = Strings(4, "t"), .second = 3};
  EXPECT_EQ(json::parse(Page(view::html_page(pair, sample.layers)).data)["second"], 3);
  EXPECT_FALSE(json::parse(Page(view::html_page("t", pair.queries, sample.layers)).data).contains("second"));
  for (const int64_t second : {-2, 0, 4})
    EXPECT_EQ(reasons_of([&] { view::html_page({.queries = pair.queries, .second = second}, sample.layers); }),
              (Strings{"second is " + std::to_string(second) +
                       ", must be -1, or in a text that attends to itself from 1 to 3"}));
}

/// Masks that are regular take no room: what the heads share is there once, and the square nowhere.
TEST(Page, SizeGrowsWithTheTokens) {
  const auto size = [](int64_t n, const AttentionOptions& options, std::vector<float> slopes = {}) {
    Text text("t", n, 2, 1, DType::float32, 5, options, 8, 1);
    text.options.alibi_slopes = slopes;
    return static_cast<int64_t>(
        view::html_page("t", Strings(static_cast<size_t>(n), "t"), {text.attend().layer()}).size());
  };
  for (const AttentionOptions& options : {AttentionOptions{}, {.causal = true}, {.window = {.left = 9, .right = 3}}}) {
    const int64_t more = size(800, options) - size(400, options);
    EXPECT_LT(more, 400 * 200) << "three vectors of 8 elements in 4 bytes each, their sizes, lse and a name";
  }
  EXPECT_LT(size(800, {.causal = true}, {0.1f, 0.01f}) - size(400, {.causal = true}, {0.1f, 0.01f}), 400 * 260);
  const Sample sample(20, {4});
  const json layer = json::parse(Page(view::html_page("t", Strings(20, "t"), sample.layers)).data)["layers"][0];
  EXPECT_EQ(layer["added"].size(), 1u);
}

/// The largest weight of each group, for the heads and their mean.
TEST(Page, Thumbnails) {
  constexpr int64_t kTokens = 230, kGroup = 3, kSide = 77;  // more than one block of rows
  const Sample sample(kTokens, {3});
  const json data = json::parse(Page(view::html_page("t", Strings(kTokens, "t"), sample.layers)).data);
  EXPECT_EQ(data["groups"], json({kGroup, kGroup}));
  const Array<4> weights = sample.texts[0]->weights();
  for (int64_t h = 0; h < 4; ++h) {
    const json& head = data["layers"][0]["heads"][h];
    EXPECT_EQ(head["name"], h < 3 ? std::to_string(h) : "mean");
    const Values cells = codes_of(bytes_of(head["thumbnail"]), 0);
    ASSERT_EQ(cells.size(), static_cast<size_t>(kSide * kSide));
    Values largest(cells.size());
    for (int64_t i = 0; i < kTokens; ++i)
      for (int64_t j = 0; j < kTokens; ++j) {
        double weight = 0;
        for (int64_t one = 0; one < 3; ++one)
          if (h == one || h == 3) weight += weights.get({0, one, i, j}) / (h == 3 ? 3 : 1);
        double& cell = largest[i / kGroup * kSide + j / kGroup];
        cell = std::max(cell, std::min(weight, 1.0));
      }
    for (size_t n = 0; n < cells.size(); ++n)
      ASSERT_TRUE(std::abs(cells[n] / (0x1p24 - 1) - largest[n]) <= kPageThumbnailStep) << h << " " << n;
  }
}

TEST(Page, HasWhatIsSelected) {
  const Sample sample(4, {4, 4, 4});
  const json layers = json::parse(
      Page(view::html_page("t", Strings(4, "t"), sample.layers, {.layers = {2, 0}, .heads = {3, 1}})).data)["layers"];
  ASSERT_EQ(layers.size(), 2u);
  for (size_t l = 0; l < 2; ++l) {
    EXPECT_EQ(layers[l]["index"], l ? 0 : 2);
    ASSERT_EQ(layers[l]["heads"].size(), 3u);
    EXPECT_EQ(layers[l]["keys"].size(), 2u) << "keys of no selected head are left out";
    const Array<4> expected = sample.texts[l ? 0 : 2]->weights();
    for (size_t h = 0; h < 2; ++h) {
      EXPECT_EQ(layers[l]["heads"][h]["name"], h ? "1" : "3");
      const Values actual = weights_of(layers[l], layers[l]["heads"][h], 4, 4);
      for (int64_t n = 0; n < 16; ++n)
        EXPECT_TRUE(std::abs(actual[n] - expected.get((h ? 1 : 3) * 16 + n)) <=
                    page_weight_bound(kPageMostSaid, largest_score(*sample.texts[0]), DType::float32));
    }
  }
}

TEST(Page, LoadsNothing) {
  const Sample sample(3, {2, 2});
  const std::string page = view::html_page("http://a", {"https://b", "src=c", "d"}, sample.layers);
  for (const char* word : {"http:",
                           "https:",
                           "//www",
                           "src=",
                           "href=",
                           "url(",
                           "@import",
                           "innerHTML",
                           "outerHTML",
                           "insertAdjacent",
                           "document.write",
                           "eval(",
                           "Function(",
                           "fetch(",
                           "XMLHttp",
                           "WebSocket",
                           "import(",
                           "setAttribute('style",
                           "setAttribute('on",
                           " style=",
                           "onclick",
                           "unsafe"})
    EXPECT_EQ(page.find(word), std::string::npos) << word;
  EXPECT_EQ(page.find("{{"), std::string::npos) << "a mark was not filled in";
}

// -------------------------------------------------------------------------------------------------------------- policy

/// SHA-256 (FIPS 180-4) in base 64. Its constants are the fractions of cube and square roots of the first primes.
std::string sha256_base64(std::string message) {
  const auto fraction = [](long double root) { return static_cast<uint32_t>((root - std::floor(root)) * 0x1p32L); };
  std::vector<uint32_t> constants, state;
  for (int prime = 2; constants.size() < 64; ++prime) {
    bool composite = false;
    for (int d = 2; d * d <= prime; ++d) composite = composite || prime % d == 0;
    if (composite) continue;
    constants.push_back(fraction(std::cbrt(static_cast<long double>(prime))));
    if (state.size() < 8) state.push_back(fraction(std::sqrt(static_cast<long double>(prime))));
  }
  const uint64_t bits = 8 * message.size();
  message += '\x80';
  while (message.size() % 64 != 56) message += '\0';
  for (int shift = 56; shift >= 0; shift -= 8) message += static_cast<char>(bits >> shift);
  const auto turn = [](uint32_t x, int by) { return x >> by | x << (32 - by); };
  for (size_t block = 0; block < message.size(); block += 64) {
    uint32_t w[64];
    for (size_t t = 0; t < 16; ++t) {
      w[t] = 0;
      for (size_t byte = 0; byte < 4; ++byte) w[t] = w[t] << 8 | static_cast<uint8_t>(message[block + 4 * t + byte]);
    }
    for (size_t t = 16; t < 64; ++t)
      w[t] = w[t - 16] + w[t - 7] + (turn(w[t - 15], 7) ^ turn(w[t - 15], 18) ^ w[t - 15] >> 3) +
             (turn(w[t - 2], 17) ^ turn(w[t - 2], 19) ^ w[t - 2] >> 10);
    std::vector<uint32_t> v = state;
    for (size_t t = 0; t < 64; ++t) {
      const uint32_t first = v[7] + (turn(v[4], 6) ^ turn(v[4], 11) ^ turn(v[4], 25)) +
                             ((v[4] & v[5]) ^ (~v[4] & v[6])) + constants[t] + w[t];
      const uint32_t second =
          (turn(v[0], 2) ^ turn(v[0], 13) ^ turn(v[0], 22)) + ((v[0] & v[1]) ^ (v[0] & v[2]) ^ (v[1] & v[2]));
      v.insert(v.begin(), first + second);
      v.pop_back();
      v[4] += first;
    }
    for (size_t n = 0; n < 8; ++n) state[n] += v[n];
  }
  std::string text;
  for (int bit = 0; bit < 256; bit += 6) {
    uint32_t digit = 0;
    for (int b = bit; b < bit + 6; ++b) digit = digit << 1 | (b < 256 ? state[b / 32] >> (31 - b % 32) & 1 : 0);
    text += "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"[digit];
  }
  return text + "=";
}

/// The browser runs exactly the script whose digest the policy names; without it the page is blank.
TEST(Page, PolicyNamesTheScriptAndTheStyle) {
  ASSERT_EQ(sha256_base64("abc"), "ungWv48Bz+pBQUDeXa4iI7ADYaOWF3qctBD/YfIAFa0=");
  const Sample sample(2, {1});
  const std::string page = view::html_page("t", {"a", "b"}, sample.layers);
  const auto between = [&](const std::string& open, const std::string& close) {
    const size_t begin = page.find(open) + open.size();
    return page.substr(begin, page.find(close, begin) - begin);
  };
  EXPECT_EQ(between("http-equiv=\"Content-Security-Policy\" content=\"", "\""),
            "default-src 'none'; script-src 'sha256-" + sha256_base64(between("<script>", "</script>")) +
                "'; style-src 'sha256-" + sha256_base64(between("<style>", "</style>")) +
                "'; base-uri 'none'; form-action 'none'");
  EXPECT_LT(page.find("Content-Security-Policy"), page.find("<style>")) << "a policy rules what follows it";
}

}  // namespace
}  // namespace attn::test
