#include "attention/rows.h"

#include <algorithm>

#include "core/numbers.h"

namespace attn::detail {
namespace {

void add_row(Panel& panel, const Problem& p, const Sequence& s, int64_t query, int64_t head) {
  const int r = panel.rows++;
  panel.query[r] = s.query_begin + query;
  panel.head[r] = head;
  panel.place[r] = query + s.shift;
  const int64_t begin = std::max<int64_t>(0, saturating_sub(panel.place[r], p.left));
  const int64_t end = std::min(s.key_count, saturating_add(saturating_add(panel.place[r], p.right), 1));
  const bool empty = begin >= end;
  panel.begin[r] = empty ? 0 : begin;
  panel.end[r] = empty ? 0 : end;
}

void summarise(Panel& panel, const Problem& p, const Sequence& s, int lanes) {
  panel.lists.set(p, s, panel.head, panel.query, panel.rows);
  panel.width = static_cast<int>(round_up(panel.rows, lanes));
  panel.low = panel.full_high = std::numeric_limits<int64_t>::max();
  panel.high = panel.full_low = 0;
  for (int r = 0; r < panel.rows; ++r) {
    panel.full_low = std::max(panel.full_low, panel.begin[r]);
    panel.full_high = std::min(panel.full_high, panel.end[r]);
    if (panel.begin[r] >= panel.end[r]) continue;
    panel.low = std::min(panel.low, panel.begin[r]);
    panel.high = std::max(panel.high, panel.end[r]);
  }
}

}  // namespace

void fill_panel(Panel& panel, const Problem& p, const Sequence& s, int64_t kv_head, int64_t first, int64_t rows,
                int lanes) {
  panel.rows = 0;
  int64_t query = first / p.G, head = first % p.G;  // counted on: divisions a row are felt in short calls
  for (int64_t row = 0; row < rows; ++row) {
    add_row(panel, p, s, query, kv_head * p.G + head);
    if (++head == p.G) {
      head = 0;
      ++query;
    }
  }
  summarise(panel, p, s, lanes);
}

void fill_head_panel(Panel& panel, const Problem& p, const Sequence& s, int64_t head, int64_t first_query, int64_t rows,
                     int lanes) {
  panel.rows = 0;
  for (int64_t query = first_query; query < first_query + rows; ++query) add_row(panel, p, s, query, head);
  summarise(panel, p, s, lanes);
}

}  // namespace attn::detail
