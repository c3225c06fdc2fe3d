// html_page(): the page's own files, and what they draw as JSON: title, tokens, palettes, and of each head what its
// weights are computed from, a thumbnail and the end of its linear scale.
#include <cmath>
#include <cstdio>

#include "view/colour.h"
#include "view/page.h"
#include "view/page_data.h"
#include "view/text.h"

namespace attn::view {
namespace {

constexpr int64_t kMostTokens = 8192;   // an open head has the square of it in the browser's memory: 256 MB
constexpr double kMostBytes = 1 << 28;  // a browser's longest string has 2^29 characters
constexpr int64_t kThumbnail = 96;      // pixels a side, at most

/// "'sha256-...'" of a digest in hexadecimal.
std::string policy_source(std::string_view digest) {
  std::vector<uint8_t> bytes;
  for (size_t n = 0; n < digest.size(); n += 2)
    bytes.push_back(static_cast<uint8_t>(std::stoul(std::string(digest.substr(n, 2)), nullptr, 16)));
  return "'sha256-" + base64(bytes) + "'";
}

std::string number_json(double number) {
  char text[32];
  std::snprintf(text, sizeof text, "%.17g", number);
  return text;
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

/// The place of `text` among `texts`, which it joins if it is new.
size_t place_of(std::vector<std::string>& texts, std::string text) {
  const auto found = std::find(texts.begin(), texts.end(), text);
  if (found != texts.end()) return static_cast<size_t>(found - texts.begin());
  texts.push_back(std::move(text));
  return texts.size() - 1;
}

std::string list_json(const std::vector<std::string>& texts) {
  std::string json = "[";
  for (size_t n = 0; n < texts.size(); ++n) json += (n ? ",\"" : "\"") + texts[n] + "\"";
  return json + "]";
}

/// The page in the making.
class Data {
 public:
  explicit Data(int64_t tokens) : thumbnail_(tokens, tokens, kThumbnail, kThumbnail) {}

  void add_layer(const Layer& layer, int64_t index, const std::vector<int64_t>& heads) {
    const int64_t group = layer.q.size[1] / layer.k.size[1];
    std::vector<Pooled> thumbnails = draw(layer, index, heads);
    const double scale = layer.options.scale.value_or(1 / std::sqrt(static_cast<double>(layer.q.size[3])));
    std::vector<std::string> key_heads, added_kinds, added = pack_added(layer, index, heads);
    std::string json = "{\"index\":" + std::to_string(index) + ",\"name\":" + json_string(layer.name) +
                       ",\"scale\":" + number_json(scale) + ",\"softcap\":" + number_json(layer.options.softcap) +
                       ",\"heads\":[";
    for (size_t h = 0; h < heads.size(); ++h) {
      const int64_t key_head = heads[h] / group;
      const double product = largest_magnitude(layer.q, heads[h]) * largest_magnitude(layer.k, key_head);
      error_ = std::max(error_, 0x1p-23 * std::abs(scale) * static_cast<double>(layer.q.size[3]) * product);
      json += (h ? ",{" : "{") + drawn_json(std::to_string(heads[h]), thumbnails[h]) +
              ",\"keys\":" + std::to_string(place_of(key_heads, pack_vectors(layer.k, key_head))) +
              ",\"added\":" + std::to_string(place_of(added_kinds, std::move(added[h]))) + ",\"lse\":\"" +
              pack_lse(layer.lse, heads[h]) + "\",\"q\":\"" + pack_vectors(layer.q, heads[h]) + "\"}";
    }
    if (heads.size() > 1) json += ",{" + drawn_json("mean", thumbnails.back()) + "}";
    json += "],\"keys\":" + list_json(key_heads) + ",\"added\":" + list_json(added_kinds) + "}";
    layers_ += (layers_.empty() ? "\n" : ",\n") + json;
  }

  std::string json(const std::string& title, const std::vector<std::string>& tokens) const {
    std::string json = "{\"title\":" + json_string(title) + ",\"dark\":" + palette_json(Ground::dark) +
                       ",\"light\":" + palette_json(Ground::light) + "," + scale_json(peaks_) +
                       ",\"error\":" + number_json(error_) + ",\"group\":" + std::to_string(thumbnail_.row_group) +
                       ",\"tokens\":[";
    for (size_t n = 0; n < tokens.size(); ++n) json += (n ? "," : "") + json_string(tokens[n]);
    return json + "],\"layers\":[" + layers_ + "]}";
  }

 private:
  /// A thumbnail of each head, and behind them of their mean if there are several.
  std::vector<Pooled> draw(const Layer& layer, int64_t index, const std::vector<int64_t>& heads) {
    const auto H = static_cast<int64_t>(heads.size());
    const int64_t n = thumbnail_.Lk;
    std::vector<Pooled> thumbnails(static_cast<size_t>(H > 1 ? H + 1 : 1), thumbnail_);
    std::vector<double> mean(static_cast<size_t>(n));
    for_each_row("html_page", layer, index, heads, [&](int64_t row, const double* weights) {
      std::fill(mean.begin(), mean.end(), 0);
      for (int64_t h = 0; h < H; ++h) {
        thumbnails[h].add_row(row, weights + h * n);
        for (int64_t column = 0; column < n; ++column) mean[column] += weights[h * n + column] / static_cast<double>(H);
      }
      if (H > 1) thumbnails[H].add_row(row, mean.data());
    });
    for (const Pooled& thumbnail : thumbnails)
      peaks_.insert(peaks_.end(), thumbnail.peaks.begin(), thumbnail.peaks.end());
    return thumbnails;
  }

  static std::string scale_json(const std::vector<double>& peaks) {
    const ColourScale scale(Scale::linear, peaks);
    return "\"end\":" + number_json(scale.end) + ",\"ends\":\"" + scale.last_label() + "\"";
  }

  static std::string drawn_json(const std::string& name, const Pooled& thumbnail) {
    return "\"name\":\"" + name + "\"," + scale_json(thumbnail.peaks) + ",\"thumbnail\":\"" +
           pack_weights(thumbnail.cells) + "\"";
  }

  Pooled thumbnail_;  // empty
  std::vector<double> peaks_;
  double error_ = 0;
  std::string layers_;
};

void check_size(Checker& checker, double bytes) {
  checker.require(bytes <= kMostBytes, [&] {
    char reason[120];
    std::snprintf(reason, sizeof reason, "the page would have %.0f MB, at most %.0f", std::ceil(bytes / 1e6),
                  std::floor(kMostBytes / 1e6));
    return std::string(reason);
  });
  checker.done();
}

/// Four bytes an element of q and k: what is sure to be needed.
double least_bytes(const std::vector<Layer>& layers, const Selection& selection) {
  double elements = 0;
  for (int64_t l : selected(selection.layers, static_cast<int64_t>(layers.size()))) {
    const Layer& layer = layers[l];
    const double all = static_cast<double>(layer.q.size[1]), share = static_cast<double>(layer.k.size[1]) / all;
    const double heads = selection.heads.empty() ? all : static_cast<double>(selection.heads.size());
    elements += heads * (1 + share) * static_cast<double>(layer.q.size[2] * layer.q.size[3]);
  }
  return 4 * elements;
}

}  // namespace

std::string html_page(const std::string& title, const std::vector<std::string>& tokens,
                      const std::vector<Layer>& layers, const Selection& selection) {
  const auto n = static_cast<int64_t>(tokens.size());
  Checker checker("html_page");
  checker.require(!tokens.empty(), "there must be a token");
  checker.require(n <= kMostTokens, [&] {
    return std::to_string(n) + " tokens, at most " + std::to_string(kMostTokens) + " fit a page";
  });
  check_layers(checker, layers, n);
  check_selection(checker, layers, selection);
  checker.done();
  check_size(checker, least_bytes(layers, selection));
  Data data(n);
  for (int64_t l : selected(selection.layers, static_cast<int64_t>(layers.size())))
    data.add_layer(layers[l], l, selected(selection.heads, layers[l].q.size[1]));

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
    else page += data.json(title, tokens);
    rest.remove_prefix(close + 2);
  }
  page += rest;
  check_size(checker, static_cast<double>(page.size()));
  return page;
}

}  // namespace attn::view
