// view_page: HTML pages for two texts, for texts of any length, and for a server. docs/seeing.md describes what a page
// shows and contains, and its accuracy.
//
// ```cpp
// #include "attn/view_page.h"
// int main() {
//   attn::Tensor<float, 4> q({1, 1, 2, 8}), k({1, 1, 3, 8}), v({1, 1, 3, 8}), out({1, 1, 2, 8});
//   attn::Tensor<float, 3> lse({1, 1, 2});
//   attn::attention(q, k, v, out, lse, {});
//   const attn::RecordedAttention cross{.name = "cross", .q = q, .k = k, .lse = lse};
//   const attn::view::PageTexts texts{.title = "t", .queries = {"le", "chat"}, .keys = {"the", "cat", "."}};
//   const std::string page = attn::view::html_page(texts, {cross});
// }
// ```
#pragma once

#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "attn/heads.h"
#include "attn/view.h"

#pragma GCC visibility push(default)
namespace attn::view {

/// The labels of a page.
struct PageTexts {
  std::string title = {};
  std::vector<std::string> queries = {};     ///< one token per query
  std::vector<std::string> keys = {};        ///< one token per key; empty = self-attention: the same tokens
  std::vector<heads::TokenKind> kinds = {};  ///< of self-attention, the kind of each token; empty = words
  int64_t second = -1;                       ///< first token of the second sentence of a pair; -1 = no pair
};

/// The labels of a page of saved attention.
PageTexts page_texts(const std::string& title, const SavedAttention& attention);

/// A rectangle of P: `queries` rows from `query` on, `keys` columns from `key` on. -1 = to the end.
struct PageWindow {
  int64_t query = 0, queries = -1, key = 0, keys = -1;
};

struct PageOptions {
  Selection selection = {};
  /// The size of a pooled page; the resolution of its pictures and the weights that it contains follow from it.
  int64_t most_bytes = 20'000'000;
  /// Rectangles of which a pooled page contains every weight of every head, two bytes each before compression; the rest
  /// becomes coarser to keep the size. A row is {i, 1}, a column {0, -1, j, 1}.
  std::vector<PageWindow> windows = {};
};

/// The page of html_page() in attn/view.h if it has at most 2^26 weights per head and 2^28 bytes. Otherwise a pooled
/// page with, for every head, from one pass of attention_statistics():
///   - a picture of at most 2048 x 2048 cells with the largest weight of each rectangle, 8 bits per cell: relative
///     error 3.4 %, weights below 2^-24 are 0; and one of half the side with the mean weights: 4.5 %, 2^-32;
///   - all weights of options.windows with a relative error of 0.017 %;
///   - if there is room, the entropy of each row and the mass of each column, as float32;
///   - if there is room, up to 16 largest weights of each row with their keys, and for self-attention up to 64 weights
///     around the row's own token (causal: before it), with the accuracy of the windows.
/// Throws Error if a head's lse does not belong to q and k, so that its rows do not sum up to 1.
std::string html_page(const PageTexts& texts, const std::vector<RecordedAttention>& layers,
                      const PageOptions& options = {});
/// Compresses bytes to the format of zlib (RFC 1950).
using Deflate = std::function<std::string(std::string_view)>;
/// The same page, compressed by `deflate` in place of zlib's compress2(): for programs that do not link zlib.
std::string html_page(const PageTexts& texts, const std::vector<RecordedAttention>& layers, const PageOptions& options,
                      const Deflate& deflate);

/// A page that requests its data from a server, and the answers to these requests: any window at full resolution,
/// computed from q, k and lse.
class ServedPage {
 public:
  /// Borrows what the layers borrow. Throws Error as html_page() does; computes nothing.
  ServedPage(PageTexts texts, std::vector<RecordedAttention> layers, Selection selection = {});

  /// The HTML page. It connects only to the server that sent it.
  std::string page() const;

  using Parameters = std::multimap<std::string, std::string>;
  /// The answer to one request for a "layer" and "head", little-endian float32:
  ///   /window   query, queries, key, keys, rows, columns -> [rows, columns]: the largest weights of that part of P,
  ///             pooled as by AttentionPicture; the weights themselves if no pooling is needed
  ///   /row      query -> [Lk]
  ///   /column   key -> [Lq]
  ///   /vectors  query, key, keys -> [1 + keys, D]: the query, then these keys
  ///   /measures -> one number per column of the page's table
  /// At most 2^22 numbers. Throws Error for another path, and for parameters that are missing, unknown, repeated, not a
  /// number or out of range. Several threads may call it at once.
  std::string answer(std::string_view path, const Parameters& parameters) const;

 private:
  PageTexts texts_;
  std::vector<RecordedAttention> layers_;
  Selection selection_;
};

}  // namespace attn::view
#pragma GCC visibility pop
