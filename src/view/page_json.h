// What HTML pages of every kind have in common: their texts and palettes as JSON, and the frame that JSON is put into.
#pragma once

#include "attn/view_page.h"
#include "view/page_heads.h"

namespace attn::view {

/// A number as JSON; null for what is not finite.
std::string number_json(double number);
std::string numbers_json(const std::vector<double>& numbers);
/// The end of the linear scale of a picture whose rows have these largest weights: "end":0.02,"ends":"0.02+".
std::string scale_json(const std::vector<double>& peaks);

/// From weights to `bits` bits, by their logarithm: 0 is less than 2^-range, c means 2^(range (c - c1) / (c1 - 1)) with
/// c1 = 2^bits - 1.
struct LogCode {
  int bits, range;
  uint32_t largest() const { return (1u << bits) - 1; }
  uint32_t of(double weight) const;
};
inline constexpr LogCode kCellCode = {8, 24}, kMeanCode = {8, 32}, kWeightCode = {16, 32};

inline constexpr int64_t kThumbnail = 96;  ///< pixels of a thumbnail's side, at most

struct PageFrame {
  const PageTexts& texts;
  std::string_view kind;  ///< `exact`, `pooled` or `served`
  int64_t thumbnail_rows = 0, thumbnail_columns = 0;
  std::vector<double> peaks = {};  ///< of the rows of all heads
  std::string more = {};           ///< members of its kind: "name":value,
  std::string layers = {};         ///< objects with "index", "name" and "heads"

  const std::vector<std::string>& keys() const { return own_text() ? texts.queries : texts.keys; }
  bool own_text() const { return texts.keys.empty(); }
  std::string json() const;
  /// The whole HTML page.
  std::string html() const;
};

/// Throws Error, under the name `operation`, for what no HTML page shows.
void check_page(std::string_view operation, const PageTexts& texts, const std::vector<RecordedAttention>& layers,
                const Selection& selection);

/// The frame with thumbnails, layers and what goes with them.
void fill_exact(PageFrame& frame, const std::vector<RecordedAttention>& layers, const Selection& selection);
void fill_pooled(PageFrame& frame, const std::vector<RecordedAttention>& layers, const PageOptions& options,
                 const Deflate& deflate);

}  // namespace attn::view
