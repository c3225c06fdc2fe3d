#include "attention/statistics_worker.h"

#include <algorithm>
#include <cstring>

#include "attention/states.h"

namespace attn::detail {
namespace {

// What row_sums() adds up, then what is added beside it: the masses of the same token, of bands, of labels.
enum Slot : int64_t { kSum, kEntropy, kSquares, kDistance, kRowSums, kSameToken = kRowSums, kSets };

constexpr int64_t kCandidateKeys = 32;

}  // namespace

StatisticsWorker::StatisticsWorker(StatisticsCall& call, const TileKernels& tk)
    : call_(call), p_(call.p), tk_(tk), scores_(call.p, tk), panels_(tk.group_panels), row_(call.numbers()) {}

int64_t StatisticsWorker::layout(void* base) {
  Arena arena(base);
  const int64_t lanes = tk_.panel * tk_.acc_bytes, keys = tk_.block_keys;
  for (Rows& rows : panels_) {
    rows.query = arena.take(tk_.query_bytes(p_.D, tk_.panel));
    rows.lse = arena.take(lanes);
  }
  tile_ = arena.take(keys * lanes);
  sums_ = arena.take(kRowSums * lanes);
  pool_ = arena.take(std::max(keys, kMaxKeySets) * lanes);
  for (void** row : {&position_, &lane_, &maximum_, &place_, &threshold_}) *row = arena.take(lanes);
  for (void** column : {&factors_, &mass_, &moment_}) *column = arena.take(keys * tk_.acc_bytes);
  allowed_ = arena.take<uint64_t>(keys * int64_t{sizeof(uint64_t)});
  mask_ = arena.take<uint64_t>(keys * int64_t{sizeof(uint64_t)});
  token_rows_ = arena.take<uint64_t>(call_.tokens * int64_t{sizeof(uint64_t)});
  scores_.layout(arena, keys, false);
  return arena.used();
}

void StatisticsWorker::run(Slab& slab) {
  slab_ = &slab;
  s_ = slab.sequence;
  keys_ = KeyRows::keys(p_, *s_, slab.head / p_.G);
  for (int lane = 0; lane < tk_.panel; ++lane) set(tk_, lane_, lane, lane);
  if (call_.same_token) clear_tokens();
  const int64_t group = static_cast<int64_t>(panels_.size()) * tk_.panel;
  for (int64_t first = 0; first < slab.rows; first += group) {
    const int64_t rows = std::min(group, slab.rows - first);
    const int panels = static_cast<int>(div_up(rows, tk_.panel));
    for (int i = 0; i < panels; ++i)
      start(panels_[i], slab.first + first + i * tk_.panel, std::min<int64_t>(tk_.panel, rows - i * tk_.panel));
    walk_keys({p_, *s_, tk_, tk_.block_keys, allowed_}, panels, *this);
    for (int i = 0; i < panels; ++i) finish(panels_[i]);
  }
}

void StatisticsWorker::start(Rows& rows, int64_t first, int64_t count) {
  const Panel& panel = rows.panel;
  fill_head_panel(rows.panel, p_, *s_, slab_->head, first, count, tk_.lanes);
  pack_query(tk_, p_.q, *s_, panel, score_scale(p_), rows.query);
  load_lse(tk_, call_.lse, *s_, panel, rows.lse);
  for (int r = 0; r < panel.rows; ++r) {
    // A row that saw nothing has no pair, which any weight but infinity would hide; +infinity has no weights.
    const double lse = load_row_value(call_.lse, s_->batch, panel.head[r], panel.query[r]);
    if (lse == -kInfinity) set(tk_, rows.lse, r, -highest_score(tk_));
    if (lse == kInfinity) set(tk_, rows.lse, r, std::numeric_limits<double>::quiet_NaN());
  }
  rows.sums.assign((kSets + call_.bands + call_.labels) * panel.width, 0);
  rows.maximum.assign(panel.rows, 0);
  rows.key.assign(panel.rows, -1);
  rows.weight.assign(panel.rows * call_.largest, 0);
  rows.place.assign(panel.rows * call_.largest, -1);
}

void StatisticsWorker::tile(int i, const Tile& tile) {
  Rows& rows = panels_[i];
  scores_.start_tile(*s_, tile);
  scores_.masked_scores(rows.query, tile_);
  add_rows(rows, tile);
  if (call_.columns) add_columns(rows.panel, tile);
  if (call_.picture) add_cells(rows.panel, tile);
  if (call_.same_token) add_same_token(rows, tile);
  if (call_.bands > 0) add_bands(rows, tile);
  if (call_.labels > 0) add_labels(rows, tile);
  if (call_.largest > 0) add_largest(rows, tile);
}

/// Scores become weights.
void StatisticsWorker::add_rows(Rows& rows, const Tile& tile) {
  const Panel& panel = rows.panel;
  for (int r = 0; call_.distance && r < panel.width; ++r)
    set(tk_, position_, r, r < panel.rows ? static_cast<double>(panel.place[r] - tile.begin) : 0);
  tk_.row_sums({.tile = tile_,
                .width = panel.width,
                .rows = panel.rows,
                .count = tile.count,
                .lse = rows.lse,
                .position = call_.distance ? position_ : nullptr,
                .sums = sums_,
                .maximum = call_.maximum ? maximum_ : nullptr,
                .place = place_});
  const int64_t sums = call_.distance ? kRowSums : kDistance;
  for (int64_t n = 0; n < sums * panel.width; ++n) rows.sums[n] += get(tk_, sums_, n);
  for (int r = 0; call_.maximum && r < panel.rows; ++r) {
    const double maximum = get(tk_, maximum_, r);
    if (!(maximum > rows.maximum[r])) continue;
    rows.maximum[r] = maximum;
    rows.key[r] = s_->key_begin + tile.begin + static_cast<int64_t>(get(tk_, place_, r));
  }
}

/// Adds acc [width] to a slot of the rows' sums.
void StatisticsWorker::add(Rows& rows, int64_t slot, const void* sums) {
  double* to = rows.sums.data() + slot * rows.panel.width;
  for (int r = 0; r < rows.panel.width; ++r) to[r] += get(tk_, sums, r);
}

void StatisticsWorker::add_columns(const Panel& panel, const Tile& tile) {
  tk_.column_sums({.weights = tile_,
                   .width = panel.width,
                   .count = tile.count,
                   .place = lane_,
                   .sum = mass_,
                   .moment = call_.moments ? moment_ : nullptr});
  double* mass = slab_->mass.data() + tile.begin;
  for (int64_t j = 0; j < tile.count; ++j) mass[j] += get(tk_, mass_, j);
  if (!call_.moments) return;
  double* moment = slab_->moment.data() + tile.begin;
  const double first = static_cast<double>(panel.place[0]);
  for (int64_t j = 0; j < tile.count; ++j) moment[j] += first * get(tk_, mass_, j) + get(tk_, moment_, j);
}

void StatisticsWorker::load_factors(int64_t key, int64_t count) {
  const ConstView<3>& factor = call_.wanted.key_factor;
  const int64_t b = factor.size[0] == 1 ? 0 : s_->batch, h = slab_->head * factor.size[1] / p_.H;
  for (int64_t j = 0; j < count; ++j) set(tk_, factors_, j, key_factor_at(factor, b, h, key + j));
}

/// Keys of one column of cells are added in lanes, then the rows of each row of cells.
void StatisticsWorker::add_cells(const Panel& panel, const Tile& tile) {
  const int64_t begin = std::max(s_->key_begin + tile.begin, call_.area.key_begin);
  const int64_t end = std::min(s_->key_begin + tile.begin + tile.count, call_.area.key_end);
  if (begin >= end) return;
  const bool weighted = bool(call_.wanted.key_factor), largest = call_.wanted.picture.maximum;
  if (weighted) load_factors(begin, end - begin);
  const int32_t* column = call_.column_band.data() + begin;
  const int64_t columns = column[end - begin - 1] - column[0] + 1;
  std::memset(pool_, 0, columns * panel.width * tk_.acc_bytes);
  const int64_t skipped = (begin - s_->key_begin - tile.begin) * panel.width * tk_.acc_bytes;
  tk_.label_sums({.weights = static_cast<const char*>(tile_) + skipped,
                  .width = panel.width,
                  .count = end - begin,
                  .label = column,
                  .first_label = column[0],
                  .factor = weighted ? factors_ : nullptr,
                  .largest = largest,
                  .out = pool_});
  for (int r = 0; r < panel.rows; ++r) {
    const int32_t band = call_.row_band[panel.query[r]];
    if (band < 0) continue;
    double* cells = slab_->cells.data() + (band - slab_->first_cell) * call_.cell_columns + column[0];
    for (int64_t c = 0; c < columns; ++c) {
      const double x = get(tk_, pool_, c * panel.width + r);
      cells[c] = largest ? std::max(x, cells[c]) : cells[c] + x;
    }
  }
}

/// Adds the mass on the keys that mask_ names.
void StatisticsWorker::masked(Rows& rows, const Tile& tile, int64_t slot) {
  tk_.masked_sums({.weights = tile_, .width = rows.panel.width, .count = tile.count, .mask = mask_, .sum = sums_});
  add(rows, slot, sums_);
}

/// Of the whole table only what the slab and its keys will look at: packed sequences are many and short.
void StatisticsWorker::clear_tokens() {
  const int32_t* query = row_of(call_.query_token_ids, p_.Lq, s_->batch) + s_->query_begin + slab_->first;
  const int32_t* key = row_of(call_.key_token_ids, p_.Lk, s_->batch) + s_->key_begin;
  for (int64_t j = 0; j < s_->key_count; ++j) token_rows_[key[j]] = 0;
  for (int64_t i = 0; i < slab_->rows; ++i)
    if (query[i] >= 0) token_rows_[query[i]] = 0;
}

/// A table by token has the rows of the panel that have it, for as long as the tile lasts.
void StatisticsWorker::add_same_token(Rows& rows, const Tile& tile) {
  const Panel& panel = rows.panel;
  const int32_t* query = row_of(call_.query_token_ids, p_.Lq, s_->batch);
  const int32_t* key = row_of(call_.key_token_ids, p_.Lk, s_->batch) + s_->key_begin + tile.begin;
  const auto each_row = [&](const auto& body) {
    for (int r = 0; r < panel.rows; ++r)
      if (query[panel.query[r]] >= 0) body(token_rows_[query[panel.query[r]]], uint64_t{1} << r);
  };
  each_row([](uint64_t& lanes, uint64_t lane) { lanes |= lane; });
  for (int64_t j = 0; j < tile.count; ++j) mask_[j] = token_rows_[key[j]];
  each_row([](uint64_t& lanes, uint64_t) { lanes = 0; });
  masked(rows, tile, kSameToken);
}

void StatisticsWorker::add_bands(Rows& rows, const Tile& tile) {
  const Panel& panel = rows.panel;
  const int64_t tile_end = tile.begin + tile.count;
  for (int64_t n = 0; n < call_.bands; ++n) {
    const KeyBand& band = call_.wanted.sets.bands[n];
    int64_t begin[kernels::kMaxWidth], end[kernels::kMaxWidth];
    bool any = false;
    for (int r = 0; r < panel.rows; ++r) {
      const int64_t origin = band.relative ? panel.place[r] : 0;
      begin[r] = saturating_add(origin, band.low);
      end[r] = saturating_add(saturating_add(origin, band.high), 1);
      any = any || (begin[r] < tile_end && end[r] > tile.begin);
    }
    if (!any) continue;
    interval_masks(begin, end, panel.rows, tile.begin, tile_end, mask_);
    masked(rows, tile, kSets + n);
  }
}

void StatisticsWorker::add_labels(Rows& rows, const Tile& tile) {
  const int width = rows.panel.width;
  std::memset(pool_, 0, call_.labels * width * tk_.acc_bytes);
  tk_.label_sums({.weights = tile_,
                  .width = width,
                  .count = tile.count,
                  .label = row_of(call_.label, p_.Lk, s_->batch) + s_->key_begin + tile.begin,
                  .first_label = 0,
                  .factor = nullptr,
                  .largest = false,
                  .out = pool_});
  for (int64_t n = 0; n < call_.labels; ++n)
    add(rows, kSets + call_.bands + n, static_cast<const char*>(pool_) + n * width * tk_.acc_bytes);
}

/// Slices of a tile are held against what the row has by then: at first most weights are among its largest, later few.
void StatisticsWorker::add_largest(Rows& rows, const Tile& tile) {
  const Panel& panel = rows.panel;
  const int64_t n = call_.largest;
  bool any = false;
  for (int r = 0; r < panel.width; ++r) {
    set(tk_, threshold_, r, r < panel.rows ? rows.weight[r * n + n - 1] : kInfinity);
    any = any || (r < panel.rows && get(tk_, maximum_, r) > rows.weight[r * n + n - 1]);
  }
  for (int64_t done = 0; any && done < tile.count; done += kCandidateKeys) {
    const int64_t count = std::min(kCandidateKeys, tile.count - done);
    tk_.above({.weights = static_cast<const char*>(tile_) + done * panel.width * tk_.acc_bytes,
               .width = panel.width,
               .count = count,
               .threshold = threshold_,
               .above = mask_});
    uint64_t keys = 0;  // first which keys, without a branch: few have a lane
    for (int64_t j = 0; j < count; ++j) keys |= uint64_t{mask_[j] != 0} << j;
    for (; keys != 0; keys &= keys - 1) {
      const int j = __builtin_ctzll(keys);
      for (uint64_t lanes = mask_[j]; lanes != 0; lanes &= lanes - 1) {
        const int r = __builtin_ctzll(lanes);
        insert(rows, r, get(tk_, tile_, (done + j) * panel.width + r), s_->key_begin + tile.begin + done + j);
      }
    }
  }
}

/// Puts a weight among the largest of row r, after its equals.
void StatisticsWorker::insert(Rows& rows, int r, double weight, int64_t key) {
  const int64_t n = call_.largest;
  double* weights = rows.weight.data() + r * n;
  int64_t* keys = rows.place.data() + r * n;
  if (!(weight > weights[n - 1])) return;
  int64_t at = n - 1;
  for (; at > 0 && weights[at - 1] < weight; --at) {
    weights[at] = weights[at - 1];
    keys[at] = keys[at - 1];
  }
  weights[at] = weight;
  keys[at] = key;
  set(tk_, threshold_, r, weights[n - 1]);
}

/// Of row r: sum, entropy, participation, distance, same token, maximum, bands, labels.
void StatisticsWorker::numbers(const Rows& rows, int r, double* to) const {
  const int width = rows.panel.width;
  const auto sum = [&](int64_t slot) { return rows.sums[slot * width + r]; };
  const double squares = sum(kSquares);
  to[0] = sum(kSum);
  to[1] = std::max(-sum(kEntropy) / kScoreUnit, 0.0) + 0.0;  // rounding alone makes it negative; NaN stays
  to[2] = squares == 0 ? 0 : 1 / squares;
  to[3] = sum(kDistance);
  to[4] = sum(kSameToken);
  to[5] = rows.maximum[r];
  for (int64_t n = 0; n < call_.bands + call_.labels; ++n) to[StatisticsCall::kRowNumbers + n] = sum(kSets + n);
}

void StatisticsWorker::finish(const Rows& rows) {
  const Panel& panel = rows.panel;
  const AttentionStatistics& wanted = call_.wanted;
  for (int r = 0; r < panel.rows; ++r) {
    const int64_t b = s_->batch, h = panel.head[r], i = panel.query[r];
    numbers(rows, r, row_.data());
    call_.sum(b, h, i) = row_[0];
    const double lse = load_row_value(call_.lse, b, h, i);
    if (lse != lse || lse == kInfinity) std::fill(row_.begin(), row_.end(), std::numeric_limits<double>::quiet_NaN());
    store_numbers<3>(call_, wanted.rows, {b, h, i}, row_.data());
    if (wanted.argmax_key) store_key<3>(wanted.argmax_key, {b, h, i}, rows.key[r]);
    for (int64_t n = 0; n < call_.largest; ++n) {
      if (wanted.top_weight) store_value<4>(wanted.top_weight, {b, h, i, n}, rows.weight[r * call_.largest + n]);
      if (wanted.top_key) store_key<4>(wanted.top_key, {b, h, i, n}, rows.place[r * call_.largest + n]);
    }
    if (row_[0] == 0) continue;
    ++slab_->seeing;
    for (size_t n = 0; n < row_.size(); ++n) slab_->means[n] += row_[n];
  }
}

}  // namespace attn::detail
