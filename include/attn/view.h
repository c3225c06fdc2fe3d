// view: pictures of attention, exact, from queries, keys and lse; no n x n matrix is kept beyond the one that is drawn.
//
// A picture is of weights in [0, 1]: what rounding adds to 1 is drawn as 1, and anything else, NaN too, is an Error.
// Weight 0, whether a mask or the scores made it so, has the colour of the background. Text from outside cannot harm:
// control, format and direction characters appear as visible signs, malformed UTF-8 as U+FFFD.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "attn/attention.h"

#pragma GCC visibility push(default)
namespace attn::view {

/// The attention of one layer on one text: what attention_weights() needs, and names.
struct Layer {
  std::string name;       ///< "layer 0"
  ConstView<4> q = {};    ///< [1, H, Lq, D], after rotary positions
  ConstView<4> k = {};    ///< [1, Hk, Lk, D]
  ConstView<3> lse = {};  ///< [1, H, Lq]
  AttentionOptions options = {};
};

enum class Scale { linear, log };  ///< log: from 1e-4 to 1, so that small weights can be told apart

struct HeatmapOptions {
  Scale scale = Scale::linear;
  int64_t max_rows = 64;     ///< terminal and overview: beyond it rows and columns are pooled by their maximum, which
  int64_t max_columns = 64;  ///<   the terminal says
  bool colour = true;        ///< terminal: 24-bit colour, half blocks for many columns; otherwise shades of ASCII
  int64_t cell = 0;          ///< PNG: pixels a weight; 0 = so that the longer side is about 800
};

/// One head's weights [1, 1, Lq, Lk] (float32) as lines of text with token labels: at most 120 columns wide with the
/// default max_columns. Few columns show their digits.
std::string terminal_heatmap(ConstView<4> weights, const std::vector<std::string>& row_labels,
                             const std::vector<std::string>& column_labels, const HeatmapOptions& options = {});

/// The bytes of a PNG of one head's weights [1, 1, Lq, Lk], with a colour bar. At most 2^26 pixels.
std::string png_heatmap(ConstView<4> weights, const HeatmapOptions& options = {});
/// The bytes of a PNG with all heads of all layers, a row a layer. All layers have the same Lq and Lk.
std::string png_overview(const std::vector<Layer>& layers, const HeatmapOptions& options = {});

/// One self-contained page: thumbnails of all layers and heads and of their means, click to enlarge, hover for the pair
/// of tokens and its weight, linear or log scale, a row or a column highlighted, tokens coloured by weight. No network,
/// a strict content-security policy; every text is escaped. Each layer has a query and a key a token. Weights are kept
/// to 2^-25, at most 2^26 of them (4 bytes each). "page.html#layer=1&head=2" opens a head.
std::string html_page(const std::string& title, const std::vector<std::string>& tokens,
                      const std::vector<Layer>& layers);

}  // namespace attn::view
#pragma GCC visibility pop
