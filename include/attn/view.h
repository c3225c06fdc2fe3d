// view: pictures of attention, exact, from queries, keys and lse; weights are computed for what is drawn, a few rows at
// a time.
//
// A picture is of weights in [0, 1]: what rounding adds to 1 is drawn as 1, and anything else, NaN too, is an Error.
// Weight 0, whether a mask or the scores made it so, has the colour of the background. Text from outside cannot harm:
// control, format and direction characters appear as visible signs, malformed UTF-8 as U+FFFD.
#pragma once

#include <cstdint>
#include <memory>
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

/// Which heads are drawn: those of `heads` in each layer of `layers`, in this order; empty = all. What does not exist,
/// or is named twice, is an Error that says what there is.
struct Selection {
  std::vector<int64_t> layers = {};
  std::vector<int64_t> heads = {};
};

/// From weights to colours. Every picture writes the ends of its scale beside its colours.
enum class Scale {
  linear,  ///< from 0 to the largest weight drawn, or, where few rows are much sharper than the others, to twice the
           ///<   median of the rows' largest weights: "0.02+" says that larger ones have the last colour too
  log      ///< from 1e-4 to 1, so that small weights can be told apart
};

struct HeatmapOptions {
  Scale scale = Scale::linear;
  int64_t max_rows = 64;     ///< terminal and overview: beyond it rows and columns are pooled by their maximum, which
  int64_t max_columns = 64;  ///<   the terminal says
  bool colour = true;        ///< terminal: 24-bit colour, half blocks for many columns; otherwise shades of ASCII
  int64_t cell = 0;          ///< PNG: pixels a weight; 0 = so that the longer side is about 800
  bool light = false;        ///< PNG: on white ground
  std::string title = "";    ///< PNG of one head: what stands above it; none = of a layer its name and the head
  std::vector<std::string> rows = {};  ///< PNG of one head: a label a row [Lq] and a column [Lk], or none; drawn where
  std::vector<std::string> columns = {};  ///<   a weight has 12 pixels; other signs than ASCII's are boxes
};

/// One head's weights [1, 1, Lq, Lk] (float32) as lines of text, with a label a row [Lq] and a column [Lk]: at most 120
/// columns wide with the default max_columns. Few columns show their digits.
std::string terminal_heatmap(ConstView<4> weights, const std::vector<std::string>& row_labels,
                             const std::vector<std::string>& column_labels, const HeatmapOptions& options = {});
/// The same of one head of a layer; nothing is computed for the others.
std::string terminal_heatmap(const Layer& layer, int64_t head, const std::vector<std::string>& row_labels,
                             const std::vector<std::string>& column_labels, const HeatmapOptions& options = {});

/// The bytes of a PNG of one head's weights [1, 1, Lq, Lk] (float32), with a colour bar. At most 2^26 pixels.
std::string png_heatmap(ConstView<4> weights, const HeatmapOptions& options = {});
/// The same of one head of a layer.
std::string png_heatmap(const Layer& layer, int64_t head, const HeatmapOptions& options = {});
/// The bytes of a PNG of the selected heads, a row a layer, all on one scale. All layers have the same Lq and Lk.
std::string png_overview(const std::vector<Layer>& layers, const HeatmapOptions& options = {},
                         const Selection& selection = {});

/// One self-contained page: thumbnails of the selected heads and of each layer's mean of them, click to enlarge, zoom,
/// hover for the pair of tokens and its weight, linear or log scale, a row or a column highlighted, tokens coloured by
/// weight. No network, a strict content-security policy; every text is escaped. Each layer has a query and a key a
/// token, tokens [n]. "page.html#layer=1&head=2" opens a head.
///
/// Up to 8192 tokens and 2^28 bytes the page holds q, k and lse, 3 bytes an element of q and k, and computes the
/// weights it shows: O(n D) a head. A weight w is off by at most w (exp(d) - 1) with d = 2^-23 scale D max|q_i|
/// max|k_j|, beyond rounding in float32; the page says the largest d. Masks and biases come along as far as they are
/// irregular: what is a function of i - j costs O(n), what is not 4 bytes a pair. Beyond, it is pooled:
/// attn/view_page.h, which has two texts and pages that are served, too.
std::string html_page(const std::string& title, const std::vector<std::string>& tokens,
                      const std::vector<Layer>& layers, const Selection& selection = {});

/// Attention that was kept in a file.
struct SavedAttention {
  std::vector<std::string> tokens;     ///< one a key; none where the file names none
  std::vector<std::string> queries;    ///< one a query, where these are other tokens than the keys
  int64_t second = -1;                 ///< of a pair of sentences, the second one's first token; -1 = it is none
  std::vector<Layer> layers;           ///< as many queries and keys in each, 2 before 10 by their names
  std::shared_ptr<const void> memory;  ///< what the layers borrow from
};

/// Reads a safetensors file that has, of each layer, NAME.q [H, Lq, D], NAME.k [Hk, Lk, D] and, perhaps, NAME.lse
/// [H, Lq], which is computed where it is not there. Its metadata may have "tokens" and "query_tokens", lists of
/// texts, "second", a whole number, and "attention", {"NAME": {"scale", "softcap", "causal", "window": [left, right],
/// "alignment", "offset", "key_length"}}, all as JSON. attention_cpp.watch() in Python saves such files of any model.
/// Throws Error that names the file and what is wrong.
SavedAttention read_attention(const std::string& path);
/// The same of arrays that NumPy saved (.npy), one layer of one text without tokens: q [H, Lq, D] or [Lq, D], k
/// [Hk, Lk, D] or [Lk, D], lse [H, Lq] or [Lq], computed where no file is named; float16, float32 or float64.
SavedAttention read_arrays(const std::string& q, const std::string& k, const std::string& lse = "",
                           const AttentionOptions& options = {});
/// The bytes of such a file of read_attention(). Throws Error for what it has no place for: masks, biases, slopes,
/// documents, packed sequences and blocks; a sink is part of lse.
std::string saved_attention(const std::vector<std::string>& tokens, const std::vector<Layer>& layers,
                            const std::vector<std::string>& queries = {}, int64_t second = -1);
/// io::write_file() of these bytes, which are never in memory as a whole.
void save_attention(const std::string& path, const std::vector<std::string>& tokens, const std::vector<Layer>& layers,
                    const std::vector<std::string>& queries = {}, int64_t second = -1);

}  // namespace attn::view
#pragma GCC visibility pop
