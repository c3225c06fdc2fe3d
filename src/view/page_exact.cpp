// A page that holds what its weights are computed from: q, k, lse and what the options add; page/weights.js computes.
#include <cmath>

#include "view/page_data.h"
#include "view/page_json.h"
#include "view/text.h"
#include "view/weights.h"

namespace attn::view {
namespace {

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

/// The layers in the making.
class ExactLayers {
 public:
  explicit ExactLayers(PageFrame& frame)
      : frame_(frame),
        tokens_(frame.texts),
        thumbnail_(static_cast<int64_t>(frame.texts.queries.size()), static_cast<int64_t>(frame.keys().size()),
                   kThumbnail, kThumbnail) {
    frame_.thumbnail_rows = thumbnail_.rows;
    frame_.thumbnail_columns = thumbnail_.columns;
  }

  void add_layer(const RecordedAttention& layer, int64_t index, const std::vector<int64_t>& heads) {
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
      const HeadFindings found = look_at_head(head_of(layer, heads[h]), tokens_, {});
      json += (h ? ",{" : "{") + drawn_json(std::to_string(heads[h]), thumbnails[h]) +
              ",\"measures\":" + numbers_json(found.measures) +
              ",\"keys\":" + std::to_string(place_of(key_heads, pack_vectors(layer.k, key_head))) +
              ",\"added\":" + std::to_string(place_of(added_kinds, std::move(added[h]))) + ",\"lse\":\"" +
              pack_lse(layer.lse, heads[h]) + "\",\"q\":\"" + pack_vectors(layer.q, heads[h]) + "\"}";
    }
    if (heads.size() > 1) json += ",{" + drawn_json("mean", thumbnails.back()) + "}";
    json += "],\"keys\":" + list_json(key_heads) + ",\"added\":" + list_json(added_kinds) + "}";
    frame_.layers += (frame_.layers.empty() ? "\n" : ",\n") + json;
    frame_.more = "\"error\":" + number_json(error_) + ",";
  }

 private:
  /// A thumbnail of each head, and after them of their mean if there are several.
  std::vector<Pooled> draw(const RecordedAttention& layer, int64_t index, const std::vector<int64_t>& heads) {
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
      frame_.peaks.insert(frame_.peaks.end(), thumbnail.peaks.begin(), thumbnail.peaks.end());
    return thumbnails;
  }

  static std::string drawn_json(const std::string& name, const Pooled& thumbnail) {
    return "\"name\":\"" + name + "\"," + scale_json(thumbnail.peaks) + ",\"thumbnail\":\"" +
           pack_weights(thumbnail.cells) + "\"";
  }

  PageFrame& frame_;
  PageTokens tokens_;
  Pooled thumbnail_;  // empty
  double error_ = 0;
};

}  // namespace

void fill_exact(PageFrame& frame, const std::vector<RecordedAttention>& layers, const Selection& selection) {
  ExactLayers exact(frame);
  for (int64_t l : selected(selection.layers, static_cast<int64_t>(layers.size())))
    exact.add_layer(layers[l], l, selected(selection.heads, layers[l].q.size[1]));
}

}  // namespace attn::view
