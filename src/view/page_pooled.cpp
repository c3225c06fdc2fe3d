// A page of a text that is too long for its q and k: of each head a picture of the largest weights, numbers of rows and
// columns, and the largest weights of each row, as fine as the bytes allow. page/pooled.js reads them.
#include <zlib.h>

#include <cmath>
#include <cstdio>

#include "view/page_data.h"
#include "view/page_json.h"
#include "view/text.h"

namespace attn::view {
namespace {

constexpr int64_t kFinest = 2048;      // cells of a picture's side, at most
constexpr int64_t kCoarsest = 64;      // and where there are many heads
constexpr int64_t kMostTop = 16;       // largest weights of a row
constexpr int64_t kTopBytes = 5;       // a key and a weight
constexpr double kFrameBytes = 1.6e5;  // more than the page's own files and palettes

/// In base 64 after deflate, which adds at most this to what it cannot make smaller.
double packed_bytes(double bytes) { return (bytes * 1.001 + 64) * 4 / 3 + 4; }

std::string deflated(const std::vector<uint8_t>& bytes) {
  uLongf size = compressBound(static_cast<uLong>(bytes.size()));
  std::vector<uint8_t> packed(size);
  if (compress2(packed.data(), &size, bytes.data(), static_cast<uLong>(bytes.size()), Z_DEFAULT_COMPRESSION) != Z_OK)
    throw Error("html_page", {"zlib cannot compress a picture"});
  packed.resize(size);
  return base64(packed);
}

/// Byte after byte of all numbers: bytes that are alike stand together, which deflate makes use of.
template <class T>
void append_planes(std::vector<uint8_t>& bytes, const std::vector<T>& numbers, int count) {
  for (int byte = 0; byte < count; ++byte)
    for (const T number : numbers) bytes.push_back(static_cast<uint8_t>(number >> (8 * byte)));
}

std::vector<uint8_t> cell_codes(const std::vector<float>& cells) {
  std::vector<uint8_t> codes;
  for (const float weight : cells) codes.push_back(static_cast<uint8_t>(kCellCode.of(weight)));
  return codes;
}

std::string pack_top(const HeadFindings& found) {
  std::vector<uint8_t> bytes;
  std::vector<uint32_t> weights;
  for (const double weight : found.top_weight) weights.push_back(kTopCode.of(weight));
  append_planes(bytes, found.top_key, 3);
  append_planes(bytes, weights, kTopCode.bits / 8);
  return deflated(bytes);
}

std::string pack_numbers(const std::vector<float>& numbers) {
  std::vector<uint32_t> words;
  for (const float number : numbers) words.push_back(std::bit_cast<uint32_t>(number));
  std::vector<uint8_t> bytes;
  append_planes(bytes, words, 4);
  return deflated(bytes);
}

/// As fine as `bytes` a head allow: half of them are for the picture, the rest for numbers of rows and columns and for
/// the largest weights; all are for the picture where the rest has no room for these numbers.
Fineness fineness_for(double bytes, int64_t Lq, int64_t Lk) {
  const double lines = 2 * packed_bytes(2.0 * static_cast<double>(Lq + Lk));
  const double for_picture = lines <= bytes / 2 ? bytes / 2 : bytes;
  Fineness fine;
  for (int64_t side = kFinest; side >= kCoarsest; side /= 2) {
    fine.rows = std::min(side, Lq);
    fine.columns = std::min(side, Lk);
    if (packed_bytes(static_cast<double>(fine.rows * fine.columns)) <= for_picture) break;
  }
  bytes -= packed_bytes(static_cast<double>(fine.rows * fine.columns));
  if (lines > bytes) return fine;
  fine.lines = true;
  const auto top_bytes = [&](int64_t top) { return packed_bytes(static_cast<double>(Lq * kTopBytes * top)); };
  for (fine.top = std::min(kMostTop, Lk); fine.top > 0 && top_bytes(fine.top) > bytes - lines;) --fine.top;
  return fine;
}

/// Bytes of a head that it has whatever its fineness, and of its coarsest picture.
double least_head_bytes(const Fineness& coarsest) {
  constexpr double kNames = 400;  // its name, measures and scale
  return kNames + packed_bytes(kThumbnail * kThumbnail) +
         packed_bytes(static_cast<double>(coarsest.rows * coarsest.columns));
}

class PooledLayers {
 public:
  PooledLayers(PageFrame& frame, const Fineness& fineness) : frame_(frame), fineness_(fineness) {
    const Pooled thumbnail(fineness.rows, fineness.columns, kThumbnail, kThumbnail);
    frame_.thumbnail_rows = thumbnail.rows;
    frame_.thumbnail_columns = thumbnail.columns;
    frame_.more = "\"pooled\":{\"rows\":" + std::to_string(fineness.rows) +
                  ",\"columns\":" + std::to_string(fineness.columns) + ",\"top\":" + std::to_string(fineness.top) +
                  ",\"lines\":" + (fineness.lines ? "true" : "false") + "},";
  }

  void add_layer(const Layer& layer, int64_t index, const std::vector<int64_t>& heads) {
    std::string json = "{\"index\":" + std::to_string(index) + ",\"name\":" + json_string(layer.name) + ",\"heads\":[";
    for (const int64_t h : heads) json += (json.back() == '[' ? "{" : ",{") + head_json(layer, index, h) + "}";
    frame_.layers += (frame_.layers.empty() ? "\n" : ",\n") + json + "]}";
  }

 private:
  std::string head_json(const Layer& layer, int64_t index, int64_t h) {
    HeadFindings found;
    try {
      found = look_at_head(head_of(layer, h), frame_.own_text(), fineness_);
    } catch (const Error& error) {
      std::vector<std::string> reasons;
      for (const std::string& reason : error.reasons())
        reasons.push_back("layers[" + std::to_string(index) + "], head " + std::to_string(h) + ": " + reason);
      throw Error("html_page", reasons);
    }
    frame_.peaks.insert(frame_.peaks.end(), found.peaks.begin(), found.peaks.end());
    for (float& cell : found.cells) cell = std::min(cell, 1.0f);
    const ConstView<4> cells(found.cells.data(), DType::float32, {1, 1, fineness_.rows, fineness_.columns});
    std::string json = "\"name\":\"" + std::to_string(h) + "\"," + scale_json(found.peaks) +
                       ",\"measures\":" + numbers_json(found.measures) + ",\"thumbnail\":\"" +
                       base64(cell_codes(Pooled(cells, kThumbnail, kThumbnail).cells)) + "\",\"picture\":\"" +
                       deflated(cell_codes(found.cells)) + "\"";  // a thumbnail is there at once
    if (fineness_.lines)
      json +=
          ",\"entropy\":\"" + pack_numbers(found.entropy) + "\",\"received\":\"" + pack_numbers(found.received) + "\"";
    if (fineness_.top) json += ",\"top\":\"" + pack_top(found) + "\"";
    return json;
  }

  PageFrame& frame_;
  Fineness fineness_;
};

}  // namespace

void fill_pooled(PageFrame& frame, const std::vector<Layer>& layers, const PageOptions& options) {
  const int64_t Lq = layers[0].q.size[2], Lk = layers[0].k.size[2];
  const std::vector<int64_t> chosen = selected(options.selection.layers, static_cast<int64_t>(layers.size()));
  double heads = 0, names = 0;
  for (const int64_t l : chosen) {
    const int64_t all = layers[l].q.size[1];
    heads += options.selection.heads.empty() ? static_cast<double>(all)
                                             : static_cast<double>(options.selection.heads.size());
    names += 100 + 6 * static_cast<double>(layers[l].name.size());  // every byte may be written as \uXXXX
  }
  const Fineness coarsest = fineness_for(0, Lq, Lk);
  const double frame_bytes = kFrameBytes + names + static_cast<double>(frame.json().size());
  const double least = frame_bytes + heads * least_head_bytes(coarsest);
  Checker checker("html_page");
  checker.require(Lk < 1 << 24, "a page shows fewer than 2^24 keys");
  checker.require(least <= static_cast<double>(options.most_bytes), [&] {
    char reason[200];
    std::snprintf(reason, sizeof reason, "%.0f heads of %lld x %lld weights need a page of %.1f MB, at most %.1f",
                  heads, static_cast<long long>(Lq), static_cast<long long>(Lk), std::ceil(least / 1e5) / 10,
                  std::floor(static_cast<double>(options.most_bytes) / 1e5) / 10);
    return std::string(reason);
  });
  checker.done();
  const double spare = (static_cast<double>(options.most_bytes) - least) / heads;
  const double picture = packed_bytes(static_cast<double>(coarsest.rows * coarsest.columns));
  PooledLayers pooled(frame, fineness_for(spare + picture, Lq, Lk));
  for (const int64_t l : chosen) pooled.add_layer(layers[l], l, selected(options.selection.heads, layers[l].q.size[1]));
}

}  // namespace attn::view
