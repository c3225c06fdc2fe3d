// An HTML page of a text that is too long for its q and k: of each head pictures of the largest and of mean weights,
// numbers of rows and columns, the largest weights of each row and those around its own token, as fine as the bytes
// allow, and the windows of P that the caller asked for. page/pooled.js reads them.
#include <cmath>
#include <cstdio>

#include "attn/core_base64.h"
#include "view/page_data.h"
#include "view/page_json.h"
#include "view/text.h"

namespace attn::view {
namespace {

constexpr int64_t kFinest = 2048;  // cells of a picture's side, at most
constexpr int64_t kCoarsest = 64;  // and where there are many heads
constexpr int64_t kMostTop = 16;   // largest weights of a row
constexpr int64_t kMostBand = 64;  // weights of a row around its own token
constexpr int64_t kTopBytes = 5;   // a key and a weight
constexpr int64_t kWeightBytes = 2;
constexpr int64_t kBandBlock = 256;  // of a band, at a time

/// In base 64 after deflate, which adds at most this to what it cannot make smaller.
double packed_bytes(double bytes) { return (bytes * 1.001 + 64) * 4 / 3 + 4; }

/// Byte after byte of all numbers: bytes that are alike are together, which deflate makes use of.
template <class T>
void append_planes(std::vector<uint8_t>& bytes, const std::vector<T>& numbers, int count) {
  for (int byte = 0; byte < count; ++byte)
    for (const T number : numbers) bytes.push_back(static_cast<uint8_t>(number >> (8 * byte)));
}

std::vector<uint8_t> cell_codes(const LogCode& code, const std::vector<float>& cells) {
  std::vector<uint8_t> codes;
  for (const float weight : cells) codes.push_back(static_cast<uint8_t>(code.of(weight)));
  return codes;
}

/// Which keys of a row are in the band around its own token: so many before it, itself, and so many after.
struct Band {
  int64_t before = 0, after = 0;

  /// Of `width` keys; a causal layer has no weights after the token.
  Band(int64_t width, bool causal) : before(causal ? width - 1 : width / 2), after(width - 1 - before) {}
  int64_t width() const { return before + 1 + after; }

  /// Of each key the distance from the token, the nearest first.
  std::vector<int64_t> distances() const {
    std::vector<int64_t> all = {0};
    for (int64_t d = 1; d <= std::max(before, after); ++d) {
      if (d <= before) all.push_back(-d);
      if (d <= after) all.push_back(d);
    }
    return all;
  }

  /// [Lq, width()], 0 where there is no such key.
  std::vector<float> weights(const RecordedAttention& head) const {
    const int64_t n = head.q.size[2];
    std::vector<float> all(static_cast<size_t>(n * width()));
    for (int64_t first = 0; first < n; first += kBandBlock) {
      const int64_t rows = std::min(kBandBlock, n - first), low = std::max<int64_t>(first - before, 0);
      const int64_t columns = std::min(first + rows + after, n) - low;
      const std::vector<float> block = exact_window("html_page", head, first, rows, low, columns);
      for (int64_t i = first; i < first + rows; ++i)
        for (int64_t j = std::max(i - before, low); j <= std::min(i + after, n - 1); ++j)
          all[i * width() + j - i + before] = block[(i - first) * columns + j - low];
    }
    return all;
  }
};

/// Arrays in base 64 after deflate.
class Packer {
 public:
  explicit Packer(const Deflate& deflate) : deflate_(deflate) {}

  std::string bytes(const std::vector<uint8_t>& bytes) const {
    const std::string packed = deflate_({reinterpret_cast<const char*>(bytes.data()), bytes.size()});
    return base64(packed.data(), packed.size());
  }

  std::string weights(const std::vector<float>& weights) const {
    std::vector<uint32_t> codes;
    for (const float weight : weights) codes.push_back(kWeightCode.of(weight));
    std::vector<uint8_t> planes;
    append_planes(planes, codes, kWeightBytes);
    return bytes(planes);
  }

  /// Of each row the key and the weight that follow `rank` larger ones.
  std::string rank(const HeadFindings& found, int64_t rank, int64_t top) const {
    std::vector<uint8_t> planes;
    std::vector<uint32_t> keys, weights;
    for (auto at = static_cast<size_t>(rank); at < found.top_key.size(); at += static_cast<size_t>(top)) {
      keys.push_back(static_cast<uint32_t>(found.top_key[at]));
      weights.push_back(kWeightCode.of(found.top_weight[at]));
    }
    append_planes(planes, keys, 3);
    append_planes(planes, weights, kWeightBytes);
    return bytes(planes);
  }

  std::string numbers(const std::vector<float>& numbers) const {
    std::vector<uint32_t> words;
    for (const float number : numbers) words.push_back(std::bit_cast<uint32_t>(number));
    std::vector<uint8_t> planes;
    append_planes(planes, words, 4);
    return bytes(planes);
  }

 private:
  const Deflate& deflate_;
};

double picture_bytes(const Fineness& fine) {
  return packed_bytes(static_cast<double>(fine.rows * fine.columns)) +
         packed_bytes(static_cast<double>(fine.mean_rows * fine.mean_columns));
}

/// As fine as `bytes` a head allow: half of them are for the pictures, all where the rest has no room for a weight of
/// each row. Numbers of lines and single weights are found as far as they may fit, if deflate makes them half as large.
Fineness fineness_for(double bytes, int64_t Lq, int64_t Lk) {
  const auto rows = static_cast<double>(Lq);
  const double for_picture = packed_bytes(rows * kTopBytes) <= bytes / 2 ? bytes / 2 : bytes;
  Fineness fine;
  for (int64_t side = kFinest; side >= kCoarsest; side /= 2) {
    fine.rows = std::min(side, Lq);
    fine.columns = std::min(side, Lk);
    fine.mean_rows = (fine.rows + 1) / 2;
    fine.mean_columns = (fine.columns + 1) / 2;
    if (picture_bytes(fine) <= for_picture) break;
  }
  const auto fitting = [&](double each, int64_t most) {
    return static_cast<int64_t>(std::clamp(2 * bytes / packed_bytes(each), 0.0, static_cast<double>(most)));
  };
  fine.lines = fitting(4 * (rows + static_cast<double>(Lk)), 1) == 1;
  fine.top = fitting(rows * kTopBytes, std::min(kMostTop, Lk));
  fine.band = fitting(rows * kWeightBytes, std::min(kMostBand, Lk));
  return fine;
}

/// What a query can see by its distance to keys, [first, last], null = no limit; where the layer's masks are no more.
std::string reach_json(const RecordedAttention& layer) {
  const AttentionOptions& options = layer.options;
  const int64_t apart = layer.k.size[2] - layer.q.size[2];
  if (!options.cu_seqlens_q.empty() || !options.key_length.empty() || !options.query_length.empty())
    return "[null,null]";
  const int64_t shift = options.alignment == Alignment::bottom_right ? apart
                        : options.alignment == Alignment::offset     ? options.offset[0]
                                                                     : 0;
  const int64_t right = options.causal ? 0 : options.window.right;
  return "[" + (options.window.left < 0 ? "null" : std::to_string(shift - options.window.left)) + "," +
         (right < 0 ? "null" : std::to_string(shift + right)) + "]";
}

/// Bytes of a head that it has whatever its fineness, and of its coarsest pictures.
double least_head_bytes(const Fineness& coarsest, const std::vector<PageWindow>& windows) {
  constexpr double kNames = 1000;  // its name, measures and scales
  double bytes = kNames + packed_bytes(kThumbnail * kThumbnail) + picture_bytes(coarsest);
  for (const PageWindow& window : windows)
    bytes += 100 + packed_bytes(static_cast<double>(kWeightBytes * window.queries * window.keys));
  return bytes;
}

/// With the ends of what goes to the end; reasons where a window is empty or leaves P.
std::vector<PageWindow> whole_windows(Checker& checker, std::vector<PageWindow> windows, int64_t Lq, int64_t Lk) {
  const auto fits = [](int64_t first, int64_t& count, int64_t all) {
    if (count == -1) count = all - first;
    return first >= 0 && first < all && count > 0 && count <= all - first;
  };
  for (size_t n = 0; n < windows.size(); ++n) {
    const bool rows = fits(windows[n].query, windows[n].queries, Lq), keys = fits(windows[n].key, windows[n].keys, Lk);
    checker.require(rows && keys, [&] {
      return "windows[" + std::to_string(n) + "] must be within " + std::to_string(Lq) + " queries and " +
             std::to_string(Lk) + " keys, and not empty";
    });
  }
  return windows;
}

/// A head in the making: what it has in any case, and what it gets as long as there are bytes.
class PooledHead {
 public:
  PooledHead(std::string begin, std::vector<int64_t> distances)
      : begin_(std::move(begin)), distances_(std::move(distances)) {}

  /// In the order in which they are wanted. Of ranks and of nearest weights the first are there whenever others are.
  void add_lines(std::string json) { parts_.push_back({kLines, std::move(json)}); }
  void add_rank(std::string base64) { parts_.push_back({kRank, "\"" + base64 + "\","}); }
  void add_nearest(std::string base64) { parts_.push_back({kNearest, "\"" + base64 + "\","}); }

  size_t parts() const { return parts_.size(); }
  double begin_bytes() const { return static_cast<double>(begin_.size()) + kMembers; }

  /// Takes a part if it fits.
  void take(size_t n, double& bytes) {
    if (n >= parts_.size()) return;
    const auto& [kind, json] = parts_[n];
    const auto size = static_cast<double>(json.size());
    if (closed_[kind] || size > bytes) {
      closed_[kind] = true;
      return;
    }
    bytes -= size;
    taken_[kind] += json;
    ++count_[kind];
  }

  std::string json() const {
    const auto list = [&](Kind kind) {
      return "[" + taken_[kind].substr(0, taken_[kind].size() - (count_[kind] > 0)) + "]";
    };
    std::string distances = "[";
    for (size_t n = 0; n < count_[kNearest]; ++n) distances += (n ? "," : "") + std::to_string(distances_[n]);
    return "{" + begin_ + taken_[kLines] + ",\"ranks\":" + list(kRank) + ",\"distances\":" + distances +
           "],\"nearest\":" + list(kNearest) + "}";
  }

 private:
  enum Kind { kLines, kRank, kNearest, kKinds };
  static constexpr double kMembers = 300;  // names of what it gets, and distances

  std::string begin_;
  std::vector<int64_t> distances_;
  std::vector<std::pair<Kind, std::string>> parts_;
  std::string taken_[kKinds];
  size_t count_[kKinds] = {};
  bool closed_[kKinds] = {};
};

class PooledLayers {
 public:
  PooledLayers(PageFrame& frame, const Fineness& fineness, const std::vector<PageWindow>& windows,
               const Deflate& deflate)
      : frame_(frame), tokens_(frame.texts), fineness_(fineness), windows_(windows), pack_(deflate) {
    const Pooled thumbnail(fineness.rows, fineness.columns, kThumbnail, kThumbnail);
    frame_.thumbnail_rows = thumbnail.rows;
    frame_.thumbnail_columns = thumbnail.columns;
    frame_.more = "\"pooled\":{\"rows\":" + std::to_string(fineness.rows) +
                  ",\"columns\":" + std::to_string(fineness.columns) +
                  ",\"mean_rows\":" + std::to_string(fineness.mean_rows) +
                  ",\"mean_columns\":" + std::to_string(fineness.mean_columns) + ",\"windows\":[";
    for (const PageWindow& window : windows)
      frame_.more += (frame_.more.back() == '[' ? "[" : ",[") + std::to_string(window.query) + "," +
                     std::to_string(window.key) + "," + std::to_string(window.queries) + "," +
                     std::to_string(window.keys) + "]";
    frame_.more += "]},";
  }

  void add_layer(const RecordedAttention& layer, int64_t index, const std::vector<int64_t>& heads) {
    layers_.push_back({"{\"index\":" + std::to_string(index) + ",\"name\":" + json_string(layer.name) +
                           ",\"reach\":" + reach_json(layer) + ",\"heads\":[",
                       {}});
    for (const int64_t h : heads) layers_.back().second.push_back(pooled_head(layer, index, h));
  }

  /// Gives every head its parts, one after the other, while the page has `bytes` for them, and puts all into the frame.
  void finish(double bytes) {
    size_t parts = 0;
    for (const auto& [begin, heads] : layers_) {
      bytes -= static_cast<double>(begin.size()) + 4;
      for (const PooledHead& head : heads) {
        bytes -= head.begin_bytes();
        parts = std::max(parts, head.parts());
      }
    }
    for (size_t n = 0; n < parts; ++n)
      for (auto& [begin, heads] : layers_)
        for (PooledHead& head : heads) head.take(n, bytes);
    for (const auto& [begin, heads] : layers_) {
      frame_.layers += (frame_.layers.empty() ? "\n" : ",\n") + begin;
      for (size_t h = 0; h < heads.size(); ++h) frame_.layers += (h ? "," : "") + heads[h].json();
      frame_.layers += "]}";
    }
  }

 private:
  PooledHead pooled_head(const RecordedAttention& layer, int64_t index, int64_t h) {
    const RecordedAttention head = head_of(layer, h);
    HeadFindings found;
    try {
      found = look_at_head(head, tokens_, fineness_);
    } catch (const Error& error) {
      std::vector<std::string> reasons;
      for (const std::string& reason : error.reasons())
        reasons.push_back("layers[" + std::to_string(index) + "], head " + std::to_string(h) + ": " + reason);
      throw Error("html_page", reasons);
    }
    frame_.peaks.insert(frame_.peaks.end(), found.peaks.begin(), found.peaks.end());
    for (float& cell : found.cells) cell = std::min(cell, 1.0f);
    std::vector<double> mean_peaks;
    for (auto row = found.mean_cells.begin(); row != found.mean_cells.end(); row += fineness_.mean_columns)
      mean_peaks.push_back(*std::max_element(row, row + fineness_.mean_columns));
    const ConstView<4> cells(found.cells.data(), DType::float32, {1, 1, fineness_.rows, fineness_.columns});
    const std::vector<uint8_t> thumbnail = cell_codes(kCellCode, Pooled(cells, kThumbnail, kThumbnail).cells);
    std::string json = "\"name\":\"" + std::to_string(h) + "\"," + scale_json(found.peaks) +
                       ",\"measures\":" + numbers_json(found.measures) + ",\"thumbnail\":\"" +
                       base64(thumbnail.data(), thumbnail.size()) +  // is there at once
                       "\",\"picture\":\"" + pack_.bytes(cell_codes(kCellCode, found.cells)) + "\",\"mean\":{" +
                       scale_json(mean_peaks) + ",\"picture\":\"" +
                       pack_.bytes(cell_codes(kMeanCode, found.mean_cells)) + "\"}";
    json += ",\"windows\":[";
    for (const PageWindow& window : windows_)
      json += (json.back() == '[' ? "\"" : ",\"") +
              pack_.weights(exact_window("html_page", head, window.query, window.queries, window.key, window.keys)) +
              "\"";
    return with_parts(std::move(json) + "]", head, found);
  }

  /// The numbers of lines; then in turn the largest weight of each row that is left, and two of those nearest its own
  /// token, which take about as many bytes.
  PooledHead with_parts(std::string json, const RecordedAttention& head, const HeadFindings& found) const {
    const int64_t n = head.q.size[2], width = frame_.own_text() ? fineness_.band : 0;
    const Band band(std::max<int64_t>(width, 1), head.options.causal);
    const std::vector<int64_t> distances = band.distances();
    const std::vector<float> weights = width > 0 ? band.weights(head) : std::vector<float>();
    PooledHead pooled(std::move(json), distances);
    if (fineness_.lines)
      pooled.add_lines(",\"entropy\":\"" + pack_.numbers(found.entropy) + "\",\"received\":\"" +
                       pack_.numbers(found.received) + "\"");
    for (int64_t rank = 0, near = 0; rank < fineness_.top || near < width; ++rank) {
      if (rank < fineness_.top) pooled.add_rank(pack_.rank(found, rank, fineness_.top));
      for (const int64_t end = std::min(near + 2, width); near < end; ++near) {
        std::vector<float> column;
        for (int64_t i = 0; i < n; ++i) column.push_back(weights[i * width + distances[near] + band.before]);
        pooled.add_nearest(pack_.weights(column));
      }
    }
    return pooled;
  }

  PageFrame& frame_;
  PageTokens tokens_;
  Fineness fineness_;
  const std::vector<PageWindow>& windows_;
  Packer pack_;
  std::vector<std::pair<std::string, std::vector<PooledHead>>> layers_;  // each with the JSON that it begins with
};

}  // namespace

void fill_pooled(PageFrame& frame, const std::vector<RecordedAttention>& layers, const PageOptions& options,
                 const Deflate& deflate) {
  const int64_t Lq = layers[0].q.size[2], Lk = layers[0].k.size[2];
  const std::vector<int64_t> chosen = selected(options.selection.layers, static_cast<int64_t>(layers.size()));
  double heads = 0, names = 0;
  for (const int64_t l : chosen) {
    const int64_t all = layers[l].q.size[1];
    heads += options.selection.heads.empty() ? static_cast<double>(all)
                                             : static_cast<double>(options.selection.heads.size());
    names += 100 + 6 * static_cast<double>(layers[l].name.size());  // every byte may be written as \uXXXX
  }
  Checker checker("html_page");
  const std::vector<PageWindow> windows = whole_windows(checker, options.windows, Lq, Lk);
  checker.done();
  const Fineness coarsest = fineness_for(0, Lq, Lk);
  constexpr double kMore = 1000;  // sizes, and the windows of P
  const double frame_bytes = kMore + names + static_cast<double>(frame.html().size() + 60 * windows.size());
  const double least = frame_bytes + heads * least_head_bytes(coarsest, windows);
  checker.require(Lk < 1 << 24,
                  [&] { return "there are " + std::to_string(Lk) + " keys, must be fewer than 2^24 for a page"; });
  checker.require(least <= static_cast<double>(options.most_bytes), [&] {
    char reason[200];
    std::snprintf(
        reason, sizeof reason, "%.0f heads of %lld x %lld weights%s need a page of %.1f MB, must be at most %.1f MB",
        heads, static_cast<long long>(Lq), static_cast<long long>(Lk), windows.empty() ? "" : ", with these windows,",
        std::ceil(least / 1e5) / 10, std::floor(static_cast<double>(options.most_bytes) / 1e5) / 10);
    return std::string(reason);
  });
  checker.done();
  const double spare = (static_cast<double>(options.most_bytes) - least) / heads;
  const Fineness fineness = fineness_for(spare + picture_bytes(coarsest), Lq, Lk);
  PooledLayers pooled(frame, fineness, windows, deflate);
  for (const int64_t l : chosen) pooled.add_layer(layers[l], l, selected(options.selection.heads, layers[l].q.size[1]));
  pooled.finish(static_cast<double>(options.most_bytes) - frame_bytes);
}

}  // namespace attn::view
