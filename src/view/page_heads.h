// What one pass over a head finds for a page: its measures and, of a long text, all that is in its q and k's place.
#pragma once

#include <string>
#include <vector>

#include "attn/tensor.h"
#include "attn/view_page.h"

namespace attn::view {

/// A column of the table of heads.
struct Measure {
  std::string name, meaning;
};
/// Those of attn/heads.h where the text attends to itself, and what needs no text.
std::vector<Measure> page_measures(bool own_text);

/// The tokens of a text as attn/heads.h takes them; nothing of two texts.
class PageTokens {
 public:
  explicit PageTokens(const PageTexts& texts);
  bool own_text() const { return ids_.count() > 0; }
  heads::Texts texts() const {
    return {.ids = ids_, .kinds = kinds_.count() > 0 ? ConstView<2>(kinds_) : ConstView<2>()};
  }

 private:
  Tensor<int64_t, 2> ids_, kinds_;
};

/// How finely a head is to be described.
struct Fineness {
  int64_t rows = 0, columns = 0;            ///< of its picture
  int64_t mean_rows = 0, mean_columns = 0;  ///< of that of mean weights
  bool lines = false;                       ///< entropy of rows, mass of columns
  int64_t top = 0;                          ///< weights a row, at most, if they fit
  int64_t band = 0;                         ///< weights around a row's own token, at most, if they fit
};

struct HeadFindings {
  std::vector<double> measures;          ///< one a column of page_measures()
  std::vector<double> peaks;             ///< [Lq], the largest weight of each row
  std::vector<float> cells;              ///< [rows, columns]
  std::vector<float> mean_cells;         ///< [mean_rows, mean_columns]
  std::vector<float> entropy, received;  ///< [Lq], [Lk]
  std::vector<int64_t> top_key;          ///< [Lq, top], -1 where there are fewer
  std::vector<double> top_weight;        ///< [Lq, top]
};

/// `head` is one head, as head_of() makes it. Throws Error where lse does not belong to q and k.
HeadFindings look_at_head(const RecordedAttention& head, const PageTokens& tokens, const Fineness& fineness);

}  // namespace attn::view
