// html_page(): the page's own files, and what they draw as JSON: title, tokens, palettes, and every head's weights.
//
// A weight is n / (2^24 - 1), four digits of base 64 (RFC 4648), highest first: off by at most 2^-25, which is how
// finely float32 tells numbers near 1 apart. Zero and one are exact.
#include <cmath>
#include <cstdio>

#include "view/colour.h"
#include "view/page.h"
#include "view/text.h"
#include "view/weights.h"

namespace attn::view {
namespace {

constexpr std::string_view kBase64 = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
constexpr uint32_t kUnit = (1u << 24) - 1;
// A browser's longest string has 2^29 characters; this is half of it, and 600 tokens in 144 heads still fit.
constexpr double kMostWeights = 1 << 26;

void append_weights(std::string& text, const double* weights, int64_t count) {
  for (int64_t n = 0; n < count; ++n) {
    const auto code = static_cast<uint32_t>(std::lround(weights[n] * kUnit));
    for (int shift = 18; shift >= 0; shift -= 6) text += kBase64[code >> shift & 63];
  }
}

/// "'sha256-...'" of a digest in hexadecimal.
std::string policy_source(std::string_view digest) {
  const auto nibble = [](char c) { return static_cast<uint32_t>(c <= '9' ? c - '0' : c - 'a' + 10); };
  std::string text = "'sha256-";
  for (size_t n = 0; n < digest.size(); n += 6) {  // three bytes at a time, four characters each; 32 bytes leave two
    uint32_t bits = 0;
    for (size_t d = n; d < n + 6; ++d) bits = bits << 4 | (d < digest.size() ? nibble(digest[d]) : 0);
    for (int shift = 18; shift >= 0; shift -= 6) text += kBase64[bits >> shift & 63];
  }
  text.back() = '=';
  return text + "'";
}

std::string palette_json(Ground ground) {
  std::string text = "\"";
  for (const Colour& c : palette(ground)) {
    char code[8];
    std::snprintf(code, sizeof code, "%02x%02x%02x", c.red, c.green, c.blue);
    text += code;
  }
  return text + "\"";
}

std::string layer_json(const Layer& layer, int64_t index) {
  const int64_t H = layer.q.size[1], Lq = layer.q.size[2], Lk = layer.k.size[2];
  std::vector<std::string> heads(static_cast<size_t>(H));
  for (std::string& head : heads) head.reserve(static_cast<size_t>(4 * Lq * Lk));
  for_each_row("html_page", layer, index,
               [&](int64_t head, int64_t, const double* weights) { append_weights(heads[head], weights, Lk); });
  std::string json = "{\"name\":" + json_string(layer.name) + ",\"heads\":[";
  for (size_t h = 0; h < heads.size(); ++h) json += (h ? ",\"" : "\"") + heads[h] + "\"";
  return json + "]}";
}

std::string data_json(const std::string& title, const std::vector<std::string>& tokens,
                      const std::vector<Layer>& layers) {
  std::string json = "{\"title\":" + json_string(title) + ",\"dark\":" + palette_json(Ground::dark) +
                     ",\"light\":" + palette_json(Ground::light) + ",\"tokens\":[";
  for (size_t n = 0; n < tokens.size(); ++n) json += (n ? "," : "") + json_string(tokens[n]);
  json += "],\"layers\":[";
  for (size_t n = 0; n < layers.size(); ++n)
    json += (n ? ",\n" : "\n") + layer_json(layers[n], static_cast<int64_t>(n));
  return json + "]}";
}

}  // namespace

std::string html_page(const std::string& title, const std::vector<std::string>& tokens,
                      const std::vector<Layer>& layers) {
  Checker checker("html_page");
  checker.require(!tokens.empty(), "there must be a token");
  check_layers(checker, layers, static_cast<int64_t>(tokens.size()));
  double count = 0;
  for (const Layer& layer : layers)
    count +=
        static_cast<double>(layer.q.size[1]) * static_cast<double>(tokens.size()) * static_cast<double>(tokens.size());
  checker.require(count <= kMostWeights, [&] {
    char reason[120];
    std::snprintf(reason, sizeof reason, "%.0f weights, at most %.0f fit a page", count, kMostWeights);
    return std::string(reason);
  });
  checker.done();

  // The template is read once: nothing that is put in is searched for further marks.
  std::string page;
  std::string_view rest = kPageTemplate;
  for (size_t open; (open = rest.find("{{")) != std::string_view::npos;) {
    const size_t close = rest.find("}}", open);
    const std::string_view mark = rest.substr(open + 2, close - open - 2);
    page += rest.substr(0, open);
    if (mark == "policy")
      page += "script-src " + policy_source(kScriptDigest) + "; style-src " + policy_source(kStyleDigest);
    else if (mark == "style") page += kPageStyle;
    else if (mark == "script") page += kPageScript;
    else page += data_json(title, tokens, layers);
    rest.remove_prefix(close + 2);
  }
  page += rest;
  return page;
}

}  // namespace attn::view
