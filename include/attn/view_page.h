// view_page: the page of attn/view.h for all inputs: two texts, texts of any length, and a program that answers it.
// docs/seeing.md says what the page shows, what it holds, and how exact that is.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "attn/heads.h"
#include "attn/view.h"

#pragma GCC visibility push(default)
namespace attn::view {

/// What a page calls the rows and columns of the matrices.
struct PageTexts {
  std::string title;
  std::vector<std::string> queries;     ///< a token a query
  std::vector<std::string> keys = {};   ///< a token a key; empty = the text looks at itself: the same tokens
  std::vector<heads::Kind> kinds = {};  ///< of a text that looks at itself, what each token is; empty = words
  int64_t second = -1;  ///< of a text that is a pair of sentences, the second one's first token; -1 = it is none
};

/// A rectangle of P: queries from the first one on, and keys. -1 = to the end.
struct PageWindow {
  int64_t query = 0, queries = -1, key = 0, keys = -1;
};

struct PageOptions {
  Selection selection = {};
  /// Of a page that is pooled. How fine its pictures are and how many weights of a row it holds follow from it.
  int64_t most_bytes = 20'000'000;
  /// Of a page that is pooled: of these it holds every weight of every head that it has, two bytes each before they are
  /// compressed, whatever else has to be coarser for it. A row is {i, 1}, a column {0, -1, j, 1}.
  std::vector<PageWindow> windows = {};
};

/// The page of html_page() of attn/view.h, where that is possible: at most 2^26 weights a head, 2^28 bytes. Otherwise a
/// pooled page, whose every head has, from one pass of attention_statistics():
///   - a picture, at most 2048 x 2048, of the largest weight of each rectangle, 8 bits a cell: each is off by at most
///     3.4 % of itself, and less than 2^-24 is 0; and one of half its side of the mean weights, within 4.5 %, 2^-32;
///   - all weights of options.windows, each off by at most 0.017 % of itself;
///   - if there is room, the entropy of each row and what each column receives, as float32;
///   - if there is room, the keys and weights of up to 16 largest of each row, and of a text that looks at itself up to
///     64 weights of each row around its own token, or up to it where the layer is causal, as exact as the windows.
/// Throws Error where a head's lse does not belong to q and k: its rows do not sum up to 1.
std::string html_page(const PageTexts& texts, const std::vector<Layer>& layers, const PageOptions& options = {});

/// A page that asks for what it shows, and the answers: any window at full resolution, computed from q, k and lse.
class ServedPage {
 public:
  /// Borrows what the layers borrow. Throws Error as html_page() does, but computes nothing.
  ServedPage(PageTexts texts, std::vector<Layer> layers, Selection selection = {});

  /// The page, which connects to where it came from and to nothing else.
  std::string page() const;

  using Parameters = std::multimap<std::string, std::string>;
  /// Little-endian float32, for "layer" and "head" as the page calls them:
  ///   /window   query, queries, key, keys, rows, columns -> [rows, columns]: the largest weights of that part of P in
  ///             as many bands, as AttentionPicture has them; the weights themselves where there is a band a token
  ///   /row      query -> [Lk]
  ///   /column   key -> [Lq]
  ///   /vectors  query, key, keys -> [1 + keys, D]: the query, then these keys
  ///   /measures -> one number a column of the page's table
  /// At most 2^22 numbers. Throws Error for another path, and for what is missing, unknown, twice, no number, or
  /// outside. May be called from several threads.
  std::string answer(std::string_view path, const Parameters& parameters) const;

 private:
  PageTexts texts_;
  std::vector<Layer> layers_;
  Selection selection_;
};

}  // namespace attn::view
#pragma GCC visibility pop
