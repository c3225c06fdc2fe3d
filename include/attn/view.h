// view: pictures of recorded attention (attn/record.h) as terminal text, PNG and HTML, and files of it. These
// functions are in the library attn::view. Every picture is exact: the weights that it shows are computed from queries,
// keys and lse, a few rows at a time. A layer is the RecordedAttention of one text, B = 1, read during the call only.
//
// ```cpp
// #include <cstdio>
// #include "attn/view.h"
// int main() {
//   attn::Tensor<float, 4> q({1, 1, 3, 8}), out({1, 1, 3, 8});
//   attn::Random random(1);
//   attn::fill_normal(q, random);
//   attn::Tensor<float, 3> lse({1, 1, 3});
//   attn::attention(q, q, q, out, lse);
//   const attn::RecordedAttention layer{.name = "layer 0", .q = q, .k = q, .lse = lse};
//   std::fputs(attn::view::terminal_heatmap(layer, 0, {"a", "b", "c"}, {"a", "b", "c"}).c_str(), stdout);
// }
// ```
//
// A picture shows weights in [0, 1]: a weight that rounding puts above 1 is drawn as 1; any other value, also NaN, is
// an Error. Weight 0, by a mask or by its score, has the background colour. Text is untrusted: control, format and
// direction characters are shown as visible signs, malformed UTF-8 as U+FFFD.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "attn/record.h"

#pragma GCC visibility push(default)
namespace attn::view {

/// The scale of colours. Every picture shows the ends of its scale.
enum class Scale {
  linear,  ///< from 0 to the largest weight drawn; if few rows are much sharper than the others, to twice the median of
           ///<   the rows' largest weights, shown as "0.02+": larger weights have the last colour
  log      ///< from 1e-4 to 1, which separates small weights
};

struct HeatmapOptions {
  Scale scale = Scale::linear;
  int64_t max_rows = 64;     ///< terminal and overview: more rows or columns are pooled by their maximum; the
  int64_t max_columns = 64;  ///<   terminal says so
  bool colour = true;        ///< terminal: 24-bit colour, half blocks for many columns; otherwise shades of ASCII
  int64_t cell = 0;          ///< PNG: pixels per weight; 0 = a longer side of about 800 pixels
  bool light = false;        ///< PNG: on a white background
  std::string title = "";    ///< PNG of one head: its title; empty = the names of layer and head
  std::vector<std::string> rows = {};     ///< PNG of one head: labels of rows [Lq] and columns [Lk], or none; drawn if
  std::vector<std::string> columns = {};  ///<   a weight has 12 pixels; characters outside ASCII are drawn as boxes
};

/// One head's weights [1, 1, Lq, Lk] (float32) as lines of text, with labels of rows [Lq] and columns [Lk]: at most 120
/// characters wide with the default max_columns. With few columns the digits are shown.
std::string terminal_heatmap(ConstView<4> weights, const std::vector<std::string>& row_labels,
                             const std::vector<std::string>& column_labels, const HeatmapOptions& options = {});
/// The same for one head of a layer; other heads are not computed.
std::string terminal_heatmap(const RecordedAttention& layer, int64_t head, const std::vector<std::string>& row_labels,
                             const std::vector<std::string>& column_labels, const HeatmapOptions& options = {});

/// The bytes of a PNG of one head's weights [1, 1, Lq, Lk] (float32), with a colour bar. At most 2^26 pixels.
std::string png_heatmap(ConstView<4> weights, const HeatmapOptions& options = {});
/// The same for one head of a layer.
std::string png_heatmap(const RecordedAttention& layer, int64_t head, const HeatmapOptions& options = {});
/// The bytes of a PNG of the selected heads, one row per layer, with one scale. All layers must have the same Lq and
/// Lk.
std::string png_overview(const std::vector<RecordedAttention>& layers, const HeatmapOptions& options = {},
                         const Selection& selection = {});

/// One self-contained HTML page: thumbnails of the selected heads and of each layer's mean, which a click enlarges;
/// zoom; the pair of tokens and its weight under the pointer; linear and log scale; highlighted rows and columns;
/// tokens coloured by weight. The page needs no network, has a strict content-security policy and escapes every text.
/// Each layer has one query and one key per token, tokens [n]. "page.html#layer=1&head=2" opens a head.
///
/// Up to 8192 tokens and 2^28 bytes the page contains q, k and lse, 3 bytes per element of q and k, and computes the
/// weights that it shows: O(n D) per head. The error of a weight w is at most w (exp(d) - 1), d = 2^-23 scale D
/// max|q_i| max|k_j|, plus float32 rounding; the page shows the largest d. Masks and biases that depend on i - j only
/// take O(n) bytes, others 4 bytes per pair. Larger inputs are pooled, see attn/view_page.h, which also has pages of
/// two texts and pages for a server.
std::string html_page(const std::string& title, const std::vector<std::string>& tokens,
                      const std::vector<RecordedAttention>& layers, const Selection& selection = {});

/// The content of a file of recorded attention.
struct SavedAttention {
  std::vector<std::string> tokens = {};        ///< one per key, or none
  std::vector<std::string> queries = {};       ///< one per query, if they are other tokens than the keys
  int64_t second = -1;                         ///< first token of the second sentence of a pair; -1 = no pair
  std::vector<RecordedAttention> layers = {};  ///< with equal Lq and Lk, sorted by name, 2 before 10
  std::shared_ptr<const void> memory = {};     ///< owns what the layers borrow

  // These throw Error if a member does not fit the others.

  /// True if queries and keys are the same tokens.
  bool is_own_text() const;
  /// A label for each key: its token, or its number.
  std::vector<std::string> key_labels() const;
  /// A label for each query: its token, or the token of the key at the query's position. Queries are at the last
  /// positions of the keys, unless the options say otherwise. A query without a key at its position has its number.
  std::vector<std::string> query_labels() const;
};

/// Reads a safetensors file with NAME.q [H, Lq, D], NAME.k [Hk, Lk, D] and optionally NAME.lse [H, Lq] for each layer;
/// a missing lse is computed. Its metadata can have, as JSON: "tokens" and "query_tokens", lists of strings; "second",
/// a number; "attention", {"NAME": {"scale", "softcap", "causal", "window": [left, right], "alignment", "offset",
/// "key_length"}}. attention_cpp.watch() in Python saves such files for any model. Throws Error that names the file and
/// what is wrong.
SavedAttention read_attention(const std::string& path);
/// Reads one layer from NumPy files (.npy), without tokens: q [H, Lq, D] or [Lq, D], k [Hk, Lk, D] or [Lk, D], lse
/// [H, Lq] or [Lq], computed if the path is empty; float16, float32 or float64.
SavedAttention read_arrays(const std::string& q, const std::string& k, const std::string& lse = "",
                           const AttentionOptions& options = {});
/// The bytes of a file for read_attention(). Throws Error for options that such a file cannot store: masks, biases,
/// slopes, segment ids, packed sequences and blocks. A sink is part of lse.
std::string saved_attention(const std::vector<std::string>& tokens, const std::vector<RecordedAttention>& layers,
                            const std::vector<std::string>& queries = {}, int64_t second = -1);
/// Writes these bytes as io::write_file() does, without holding all of them in memory.
void save_attention(const std::string& path, const std::vector<std::string>& tokens,
                    const std::vector<RecordedAttention>& layers, const std::vector<std::string>& queries = {},
                    int64_t second = -1);

}  // namespace attn::view
#pragma GCC visibility pop
