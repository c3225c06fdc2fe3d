// dbias where the bias is broadcast: the sum of dS over every (b, h, i, j) that read the element.
//
//   for each region of dbias (a panel of its rows x a block of its keys)     a task, alone with its region
//     for every b, h that share it, every panel of queries, every block of keys:  region += dS
// S and dP are computed a second time (2 of 5 products); in return the memory is one tile and the order is fixed.
#include <algorithm>
#include <vector>

#include "attention/backward.h"
#include "attention/elements.h"
#include "attention/task.h"

namespace attn::detail {
namespace {

/// A range [begin, end) of an axis that one task owns; a broadcast axis is owned whole.
struct Range {
  int64_t begin = 0, end = 0;
};

/// The epilogue of the walks that gather one region of dbias.
class RegionWorker {
 public:
  RegionWorker(const Problem& p, const BackwardInputs& in, const TileKernels& tk)
      : p_(p), tk_(tk), gradient_(p, in, tk, true) {}

  int64_t layout(void* base) {
    Arena arena(base);
    gradient_.layout(arena);
    gradient_.layout_rows(arena, rows_);
    gradient_.layout_tile(arena, result_);
    sums_ = arena.take<double>(tk_.panel * tk_.gradient_keys * int64_t{sizeof(double)});
    allowed_ = arena.take<uint64_t>(tk_.gradient_keys * int64_t{sizeof(uint64_t)});
    return arena.used();
  }

  /// Adds everything that batch b, head h contribute to queries x keys; sums[i][j], broadcast axes with stride 0.
  void add(int64_t b, int64_t h, Range queries, Range keys, int64_t query_stride, int64_t key_stride) {
    queries_ = queries;
    keys_ = keys;
    query_stride_ = query_stride;
    key_stride_ = key_stride;
    for (const Sequence& s : p_.sequences)
      if (s.batch == b && s.key_count > 0) add(s, h);
  }

  double* sums() { return sums_; }

  // What walk_keys() calls.
  const Panel& panel(int) const { return rows_.panel; }
  void start_block(int64_t begin, int64_t end) { gradient_.start_block(key_rows_, value_rows_, begin, end); }
  void tile(int, const Tile& tile) {
    gradient_.compute(*s_, rows_, tile, result_);
    for (int64_t j = 0; j < tile.count; ++j) {
      const int64_t key = s_->key_begin + tile.begin + j;
      if (key < keys_.begin || key >= keys_.end) continue;
      double* sums = sums_ + (key - keys_.begin) * key_stride_;
      for (int r = 0; r < rows_.panel.rows; ++r)
        sums[(rows_.panel.query[r] - queries_.begin) * query_stride_] +=
            get(tk_, gradient_.ds(), j * rows_.panel.width + r);
    }
  }
  void end_block() {}

 private:
  void add(const Sequence& s, int64_t h) {
    s_ = &s;
    key_rows_ = KeyRows::keys(p_, s, h / p_.G);
    value_rows_ = KeyRows::values(p_, s, h / p_.G);
    const Walk walk{p_, s, tk_, tk_.gradient_keys, allowed_, keys_.begin - s.key_begin, keys_.end - s.key_begin};
    const int64_t first = std::max(queries_.begin - s.query_begin, int64_t{0});
    const int64_t last = std::min(queries_.end - s.query_begin, s.query_count);
    for (int64_t query = first; query < last; query += tk_.panel) {
      fill_head_panel(rows_.panel, p_, s, h, query, std::min<int64_t>(tk_.panel, last - query), tk_.lanes);
      gradient_.load(s, rows_);
      walk_keys(walk, 1, *this);
    }
  }

  const Problem& p_;
  const TileKernels& tk_;
  TileGradient gradient_;
  GradRows rows_;
  GradTile result_;
  const Sequence* s_ = nullptr;
  KeyRows key_rows_, value_rows_;
  Range queries_, keys_;
  int64_t query_stride_ = 0, key_stride_ = 0;
  double* sums_ = nullptr;
  uint64_t* allowed_ = nullptr;
};

/// The ranges of an axis: one panel (or block) each, or the whole axis where it is broadcast.
std::vector<Range> ranges(bool broadcast, int64_t length, int64_t step) {
  std::vector<Range> parts;
  if (broadcast) return {{0, length}};
  for (int64_t begin = 0; begin < length; begin += step) parts.push_back({begin, std::min(begin + step, length)});
  return parts;
}

}  // namespace

int64_t bias_gradient_bytes(const Problem& p, const BackwardInputs& in) {
  return RegionWorker(p, in, gradient_kernels(p)).layout(nullptr);
}

void run_bias_gradient(const Problem& p, const BackwardInputs& in, const View<4>& dbias) {
  const TileKernels& tk = gradient_kernels(p);
  const Shape<4>& size = dbias.size;
  // An axis is broadcast where it has extent 1; with a full extent of 1 both readings agree.
  const bool one_query = size[2] == 1, one_key = size[3] == 1;
  const std::vector<Range> queries = ranges(one_query, p.Lq, tk.panel), keys = ranges(one_key, p.Lk, tk.gradient_keys);
  const auto query_parts = static_cast<int64_t>(queries.size()), key_parts = static_cast<int64_t>(keys.size());
  const int64_t bytes = bias_gradient_bytes(p, in);
  parallel_for(size[0] * size[1] * query_parts * key_parts, [&](int64_t task) {
    const InKernels kernels(tk);
    const int64_t part = task % (query_parts * key_parts), plane = task / (query_parts * key_parts);
    const int64_t b = plane / size[1], h = plane % size[1];
    const Range i = queries[part / key_parts], j = keys[part % key_parts];
    const int64_t rows = one_query ? 1 : i.end - i.begin, columns = one_key ? 1 : j.end - j.begin;
    RegionWorker worker(p, in, tk);
    worker.layout(thread_scratch(bytes));
    std::fill(worker.sums(), worker.sums() + rows * columns, 0.0);
    const Range batches = size[0] == 1 ? Range{0, p.B} : Range{b, b + 1};
    const Range heads = size[1] == 1 ? Range{0, p.H} : Range{h, h + 1};
    for (int64_t batch = batches.begin; batch < batches.end; ++batch)
      for (int64_t head = heads.begin; head < heads.end; ++head)
        worker.add(batch, head, i, j, one_query ? 0 : columns, one_key ? 0 : 1);
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t c = 0; c < columns; ++c)
        store_element(dbias.dtype, at(dbias, b, h, one_query ? 0 : i.begin + r, one_key ? 0 : j.begin + c),
                      worker.sums()[r * columns + c]);
  });
}

}  // namespace attn::detail
