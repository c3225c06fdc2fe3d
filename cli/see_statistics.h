// attn see --stats: what the heads of a model do on a text, in numbers.
#pragma once

#include <string>
#include <vector>

#include "attn/record.h"
#include "attn/view.h"
#include "table.h"

namespace cli {

/// Means over the tokens that look, of previous and next over those that have such a neighbour, as attn/heads.h has
/// them: NaN of a single token.
struct HeadStatistics {
  int64_t layer = 0, head = 0;
  double entropy = 0, maximum = 0, participation = 0, first = 0, same_token = 0;
  double distance = 0, self = 0, previous = 0, next = 0;  // where tokens attend to their own text
  std::string most_seen = {};                             // the token that receives most,
  int64_t most_seen_at = 0;                               // its place,
  double most_seen_share = 0;                             // and its share of all weight
};

/// Of the selected heads. own_text: rows and columns are the same tokens.
std::vector<HeadStatistics> head_statistics(const std::vector<attn::RecordedAttention>& layers,
                                            const attn::Selection& selection, const std::vector<std::string>& rows,
                                            const std::vector<std::string>& columns, bool own_text);

Table statistics_table(const std::vector<HeadStatistics>& heads, bool own_text);

}  // namespace cli
