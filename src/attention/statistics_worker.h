// The epilogue that makes statistics of tiles, and what it works on: rows of one head against all their keys.
#pragma once

#include <iterator>
#include <vector>

#include "attention/elements.h"
#include "attention/statistics.h"
#include "attention/tile.h"

namespace attn::detail {

/// A call with what is looked up in it, prepared once.
struct StatisticsCall {
  StatisticsCall(const Problem& p, const ConstView<3>& lse, const AttentionStatistics& wanted);

  const Problem& p;
  const ConstView<3>& lse;
  const AttentionStatistics& wanted;

  bool distance, maximum, same_token, columns, moments, picture;
  int64_t bands = 0, labels = 0, largest = 0;
  int64_t cell_columns = 0;
  Rectangle area;              // that the picture shows
  std::vector<int32_t> label;  // [B|1, Lk]; -1 = none
  std::vector<int32_t> query_token_ids,
      key_token_ids;                           // [B|1, Lq], [B|1, Lk]: numbers of the ids of keys; -1 = no key's
  int64_t tokens = 0;                          // such numbers
  std::vector<int32_t> row_band, column_band;  // [Lq], [Lk]: of the picture; -1 = not shown
  std::vector<double> sums;                    // [B, H, Lq]: of the rows of P, to be checked

  /// Numbers of a row: sum, entropy, participation, distance, same token, maximum, then bands, then labels.
  int64_t numbers() const { return kRowNumbers + bands + labels; }
  static constexpr int64_t kRowNumbers = 6;
  double& sum(int64_t b, int64_t h, int64_t i) { return sums[(b * p.H + h) * p.Lq + i]; }
};

template <int Rank>
int64_t offset_of(const View<Rank>& view, const Shape<Rank>& index) {
  int64_t offset = 0;
  for (int axis = 0; axis < Rank; ++axis) offset += index[axis] * view.stride[axis];
  return offset;
}
template <int Rank>
void store_value(const View<Rank>& view, const Shape<Rank>& index, double value) {
  store_element(view.dtype, static_cast<char*>(view.data) + offset_of<Rank>(view, index) * size_of(view.dtype), value);
}
template <int Rank>
void store_key(const View<Rank>& view, const Shape<Rank>& index, int64_t key) {
  static_cast<int64_t*>(view.data)[offset_of<Rank>(view, index)] = key;
}

/// Writes the numbers of a row, or the means of a head, where somebody wants them.
template <int Rank>
void store_numbers(const StatisticsCall& call, const RowStatistics<Rank>& to, const Shape<Rank>& index,
                   const double* numbers) {
  const View<Rank> views[] = {to.sum, to.entropy, to.participation, to.distance, to.same_token, to.maximum};
  static_assert(std::size(views) == StatisticsCall::kRowNumbers);
  for (const View<Rank>& view : views) {
    if (view) store_value<Rank>(view, index, *numbers);
    ++numbers;
  }
  const auto store_sets = [&](const View<Rank + 1>& view, int64_t count) {
    Shape<Rank + 1> in_set{};
    std::copy(index.begin(), index.end(), in_set.begin());
    for (; view && in_set[Rank] < count; ++in_set[Rank]) store_value<Rank + 1>(view, in_set, numbers[in_set[Rank]]);
    numbers += count;
  };
  store_sets(to.bands, call.bands);
  store_sets(to.labels, call.labels);
}

/// Row b of an array [B|1, n].
inline const int32_t* row_of(const std::vector<int32_t>& values, int64_t n, int64_t b) {
  return values.data() + (static_cast<int64_t>(values.size()) == n ? 0 : b * n);
}

/// Rows of one head and sequence, and what they add to the results of the head.
struct Slab {
  const Sequence* sequence = nullptr;
  int64_t head = 0, first = 0, rows = 0;  // inside the sequence
  std::vector<double> mass, moment;       // [key_count]: sums of P, and of P times the row's position
  std::vector<double> cells;              // [rows of cells from first_cell on][cell_columns]
  int64_t first_cell = 0;
  std::vector<double> means;  // [numbers]: sums over the rows with weight on a key
  double seeing = 0;          // such rows
};

class StatisticsWorker {
 public:
  StatisticsWorker(StatisticsCall& call, const TileKernels& tk);

  int64_t layout(void* base);
  void run(Slab& slab);

  // What walk_keys() calls.
  const Panel& panel(int i) const { return panels_[i].panel; }
  void start_block(int64_t begin, int64_t end) { scores_.start_block(keys_, begin, end); }
  void tile(int i, const Tile& tile);
  void end_block() {}

 private:
  /// A panel and what it has gathered.
  struct Rows {
    Panel panel;
    void *query = nullptr, *lse = nullptr;
    std::vector<double> sums;     // [slots][width]
    std::vector<double> maximum;  // [rows]
    std::vector<int64_t> key;     // its key
    std::vector<double> weight;   // [rows][largest], falling
    std::vector<int64_t> place;   // their keys
  };

  void start(Rows& rows, int64_t first, int64_t count);
  void add_rows(Rows& rows, const Tile& tile);
  void add(Rows& rows, int64_t slot, const void* sums);
  void add_columns(const Panel& panel, const Tile& tile);
  void add_cells(const Panel& panel, const Tile& tile);
  void clear_tokens();
  void add_same_token(Rows& rows, const Tile& tile);
  void add_bands(Rows& rows, const Tile& tile);
  void add_labels(Rows& rows, const Tile& tile);
  void add_largest(Rows& rows, const Tile& tile);
  void insert(Rows& rows, int r, double weight, int64_t key);
  void finish(const Rows& rows);
  void numbers(const Rows& rows, int r, double* to) const;
  void masked(Rows& rows, const Tile& tile, int64_t slot);
  void load_factors(int64_t key, int64_t count);

  StatisticsCall& call_;
  const Problem& p_;
  const TileKernels& tk_;
  Slab* slab_ = nullptr;
  const Sequence* s_ = nullptr;
  TileScores scores_;
  KeyRows keys_;
  std::vector<Rows> panels_;
  std::vector<double> row_;  // [numbers]
  void *tile_ = nullptr, *sums_ = nullptr, *pool_ = nullptr, *factors_ = nullptr;
  void *position_ = nullptr, *lane_ = nullptr, *maximum_ = nullptr, *place_ = nullptr, *threshold_ = nullptr;
  void *mass_ = nullptr, *moment_ = nullptr;
  uint64_t *allowed_ = nullptr, *mask_ = nullptr, *token_rows_ = nullptr;
};

}  // namespace attn::detail
