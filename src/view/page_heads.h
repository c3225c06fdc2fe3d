// What one pass over a head finds for a page: its measures and, of a long text, all that stands in its q and k's place.
#pragma once

#include <string>
#include <vector>

#include "attn/view.h"

namespace attn::view {

/// A column of the table of heads.
struct Measure {
  const char* name;
  const char* meaning;
};
/// own_text: queries and keys are the same tokens, so that there are distances.
std::vector<Measure> page_measures(bool own_text);

/// How finely a head is to be described.
struct Fineness {
  int64_t rows = 0, columns = 0;  ///< of its picture
  bool lines = false;             ///< entropy of rows, mass of columns
  int64_t top = 0;                ///< weights a row
};

struct HeadFindings {
  std::vector<double> measures;          ///< one a column of page_measures()
  std::vector<double> peaks;             ///< [Lq], the largest weight of each row
  std::vector<float> cells;              ///< [rows, columns]
  std::vector<float> entropy, received;  ///< [Lq], [Lk]
  std::vector<int64_t> top_key;          ///< [Lq, top], -1 where there are fewer
  std::vector<double> top_weight;        ///< [Lq, top]
};

/// `head` is one head, as head_of() makes it. Throws Error where lse does not belong to q and k.
HeadFindings look_at_head(const Layer& head, bool own_text, const Fineness& fineness);

}  // namespace attn::view
