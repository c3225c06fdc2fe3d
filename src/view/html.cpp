// html_page(): which kind of page it is, and the frame that all kinds share: the page's own files, and what they draw
// as JSON.
#include <cmath>
#include <cstdio>

#include "attn/core_base64.h"
#include "view/colour.h"
#include "view/page.h"
#include "view/page_data.h"
#include "view/page_json.h"
#include "view/text.h"

namespace attn::view {
namespace {

constexpr double kMostWeights = 1 << 26;  // an open head is a matrix in the browser's memory: 256 MB
constexpr double kMostBytes = 1 << 28;    // a browser's longest string has 2^29 characters

/// "'sha256-...'" of a digest in hexadecimal.
std::string policy_source(std::string_view digest) {
  std::vector<uint8_t> bytes;
  for (size_t n = 0; n < digest.size(); n += 2)
    bytes.push_back(static_cast<uint8_t>(std::stoul(std::string(digest.substr(n, 2)), nullptr, 16)));
  return "'sha256-" + base64(bytes.data(), bytes.size()) + "'";
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

std::string texts_json(const std::vector<std::string>& texts) {
  std::string json = "[";
  for (size_t n = 0; n < texts.size(); ++n) json += (n ? "," : "") + json_string(texts[n]);
  return json + "]";
}

/// Four bytes an element of q and k: what an exact page is sure to need.
double least_bytes(const std::vector<RecordedAttention>& layers, const Selection& selection) {
  double elements = 0;
  for (int64_t l : selected(selection.layers, static_cast<int64_t>(layers.size()))) {
    const RecordedAttention& layer = layers[l];
    const double all = static_cast<double>(layer.q.size[1]), share = static_cast<double>(layer.k.size[1]) / all;
    const double heads = selection.heads.empty() ? all : static_cast<double>(selection.heads.size());
    const double rows = static_cast<double>(layer.q.size[2]) + share * static_cast<double>(layer.k.size[2]);
    elements += heads * rows * static_cast<double>(layer.q.size[3]);
  }
  return 4 * elements;
}

}  // namespace

std::string number_json(double number) {
  if (!std::isfinite(number)) return "null";
  char text[32];
  std::snprintf(text, sizeof text, "%.17g", number);
  return text;
}

std::string numbers_json(const std::vector<double>& numbers) {
  std::string json = "[";
  for (size_t n = 0; n < numbers.size(); ++n) {
    char text[32];
    std::snprintf(text, sizeof text, "%s%.6g", n ? "," : "", numbers[n]);
    json += std::isfinite(numbers[n]) ? text : n ? ",null" : "null";
  }
  return json + "]";
}

std::string scale_json(const std::vector<double>& peaks) {
  const ColourScale scale(Scale::linear, peaks);
  return "\"end\":" + number_json(scale.end) + ",\"ends\":\"" + scale.last_label() + "\"";
}

uint32_t LogCode::of(double weight) const {
  if (!(weight > 0)) return 0;
  const double code = largest() + std::log2(std::min(weight, 1.0)) * (largest() - 1) / range;
  return code < 0.5 ? 0 : static_cast<uint32_t>(std::lround(code));
}

std::string PageFrame::json() const {
  const auto Lq = static_cast<int64_t>(texts.queries.size()), Lk = static_cast<int64_t>(keys().size());
  const auto pair = [](int64_t a, int64_t b) { return "[" + std::to_string(a) + "," + std::to_string(b) + "]"; };
  const auto group = [](int64_t count, int64_t cells) { return cells ? (count + cells - 1) / cells : 1; };
  std::string json = "{\"title\":" + json_string(texts.title) + ",\"kind\":\"" + std::string(kind) +
                     "\",\"dark\":" + palette_json(Ground::dark) + ",\"light\":" + palette_json(Ground::light) + "," +
                     scale_json(peaks) + "," + more + "\"thumbnail\":" + pair(thumbnail_rows, thumbnail_columns) +
                     ",\"groups\":" + pair(group(Lq, thumbnail_rows), group(Lk, thumbnail_columns)) + ",\"measures\":[";
  for (const Measure& measure : page_measures(own_text()))
    json += (json.back() == '[' ? "{\"name\":" : ",{\"name\":") + json_string(measure.name) +
            ",\"meaning\":" + json_string(measure.meaning) + "}";
  json += "],\"tokens\":" + texts_json(texts.queries);
  if (!own_text()) json += ",\"key_tokens\":" + texts_json(texts.keys);
  if (texts.second >= 0) json += ",\"second\":" + std::to_string(texts.second);
  return json + ",\"layers\":[" + layers + "]}";
}

std::string PageFrame::html() const {
  const bool served = kind == "served";
  // The template is read once: nothing that is put in is searched for further marks.
  std::string page;
  std::string_view rest = kPageTemplate;
  for (size_t open; (open = rest.find("{{")) != std::string_view::npos;) {
    const size_t close = rest.find("}}", open);
    const std::string_view mark = rest.substr(open + 2, close - open - 2);
    page += rest.substr(0, open);
    if (mark == "policy")
      page += "script-src " + policy_source(served ? kServedScriptDigest : kScriptDigest) + "; style-src " +
              policy_source(kStyleDigest) + (served ? "; connect-src 'self'" : "");
    else if (mark == "style") page += kPageStyle;
    else if (mark == "script") page += served ? kServedScript : kPageScript;
    else page += json();
    rest.remove_prefix(close + 2);
  }
  return page += rest;
}

void check_page(std::string_view operation, const PageTexts& texts, const std::vector<RecordedAttention>& layers,
                const Selection& selection) {
  const auto Lq = static_cast<int64_t>(texts.queries.size()), Lk = static_cast<int64_t>(texts.keys.size());
  Checker checker(operation);
  checker.require(Lq > 0, "there must be a token");
  check_recorded(checker, layers, {.queries = Lq, .keys = Lk > 0 ? Lk : Lq});
  check_selection(checker, layers, selection);
  checker.require(texts.kinds.empty() || (Lk == 0 && static_cast<int64_t>(texts.kinds.size()) == Lq), [&] {
    return std::to_string(texts.kinds.size()) + " kinds, must be one a token of a text that attends to itself";
  });
  checker.require(texts.second == -1 || (Lk == 0 && texts.second > 0 && texts.second < Lq), [&] {
    return "second is " + std::to_string(texts.second) +
           ", must be -1, or in a text that attends to itself from 1 to " + std::to_string(Lq - 1);
  });
  checker.done();
}

std::string html_page(const PageTexts& texts, const std::vector<RecordedAttention>& layers, const PageOptions& options,
                      const Deflate& deflate) {
  check_page("html_page", texts, layers, options.selection);
  const double weights = static_cast<double>(layers[0].q.size[2]) * static_cast<double>(layers[0].k.size[2]);
  if (weights <= kMostWeights && least_bytes(layers, options.selection) <= kMostBytes) {
    PageFrame frame{.texts = texts, .kind = "exact"};
    fill_exact(frame, layers, options.selection);
    std::string page = frame.html();
    if (static_cast<double>(page.size()) <= kMostBytes) return page;  // masks and biases may be large
  }
  PageFrame frame{.texts = texts, .kind = "pooled"};
  fill_pooled(frame, layers, options, deflate);
  return frame.html();
}

}  // namespace attn::view
