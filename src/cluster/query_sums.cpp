#include "cluster/query_sums.h"

#include <algorithm>
#include <cstring>

#include "cluster/arrays.h"

namespace attn::cluster {
namespace {

/// The nodes of a rank, all of which have a value.
std::vector<RankNode> nodes_of(const Placement& queries, int rank) {
  return nodes_of_rank(queries, rank, [](int64_t) { return true; });
}

}  // namespace

void QuerySums::add(int64_t place, const Array& x) { own_.add({0, place}, x, add_arrays); }
void QuerySums::add_node(TreeNode node, const Array& x) { own_.add(node, x, add_arrays); }

Array QuerySums::of_all(Communicator& ranks) {
  const int64_t bytes = count_of(shape_.data(), static_cast<int>(shape_.size())) * size_of(dtype_);
  size_t most = 0;
  for (int rank = 0; rank < ranks.size(); ++rank) most = std::max(most, nodes_of(queries_, rank).size());
  const int64_t rank_bytes = static_cast<int64_t>(most) * bytes;
  const Buffer mine(rank_bytes, true), all(rank_bytes * ranks.size());
  char* to = static_cast<char*>(mine.data());
  for (const auto& [place, value] : own_.waiting()) {
    if (bytes > 0) std::memcpy(to, value->data(), static_cast<size_t>(bytes));
    to += bytes;
  }
  if (rank_bytes > 0) ranks.all_gather(mine.data(), rank_bytes, all.data());
  FixedTree<Array> sum(queries_.chunks());
  for (int rank = 0; rank < ranks.size(); ++rank) {
    const char* from = static_cast<const char*>(all.data()) + rank * rank_bytes;
    for (const RankNode& of_rank : nodes_of(queries_, rank)) {
      const Array value(dtype_, shape_, false);
      if (bytes > 0) std::memcpy(value.data(), from, static_cast<size_t>(bytes));
      from += bytes;
      sum.add(of_rank.node, value, add_arrays);
    }
  }
  return sum.take_root().value_or(Array(dtype_, shape_));
}

// ----------------------------------------------------------------------------------------------------------- biases

BiasGradient::BiasGradient(const Whole& whole, const RankChunks& queries, const View<4>& to, bool one_row, DType dtype,
                           int rank)
    : whole_(whole),
      queries_(queries),
      to_(to),
      one_row_(one_row),
      dtype_(dtype),
      of_keys_(whole.sharding().queries.chunks()) {
  if (!to_) return;
  const Sharding& sharding = whole.sharding();
  if (!one_row_ && for_all_keys())
    of_queries_.assign(queries.end() - queries.first(), FixedTree<Array>(sharding.keys.chunks()));
  else if (!one_row_) store(Array(), to_);  // of pairs that are not visible
  if (!one_row_) return;
  const int64_t columns = for_all_keys() ? sharding.keys.chunks() : sharding.keys.tokens();
  for (const RankNode& of_rank : nodes_of(sharding.queries, rank))
    nodes_.emplace(of_rank.node, Array(dtype, {to.size[0], to.size[1], 1, columns}));
}

View<4> BiasGradient::target(int64_t i, int64_t j, const ConstView<4>& part, std::optional<Array>& own) const {
  if (!to_) return {};
  if (!one_row_ && !for_all_keys()) {
    const int64_t begin = queries_.offset(i);
    const TokenRange keys = whole_.sharding().keys.chunk(j);
    const View<4> rows = to_.slice(2, begin, begin + part.size[2]);
    return to_.size[3] == 1 ? rows : rows.slice(3, keys.begin, keys.end);
  }
  own = Array(dtype_, {part.size[0], part.size[1], part.size[2], part.size[3]}, false);
  return own->view<4>();
}

void BiasGradient::add(int64_t i, int64_t j, std::optional<Array> own) {
  if (!of_queries_.empty()) of_queries_[i - queries_.first()].add({0, j}, std::move(own), add_arrays);
  else if (one_row_) of_keys_.add({0, i}, std::move(own), add_arrays);
}

void BiasGradient::end_keys(int64_t j) {
  if (!one_row_) return;
  const TokenRange keys = for_all_keys() ? TokenRange{j, j + 1} : whole_.sharding().keys.chunk(j);
  for (const auto& [place, value] : of_keys_.waiting())
    if (value) copy(value->view<4>(), nodes_.at(place).view<4>().slice(3, keys.begin, keys.end));
  of_keys_.waiting().clear();
}

void BiasGradient::write(Communicator& ranks) {
  if (!to_) return;
  const Placement& queries = whole_.sharding().queries;
  for (size_t n = 0; n < of_queries_.size(); ++n) {
    const int64_t place = queries_.first() + static_cast<int64_t>(n), begin = queries_.offset(place);
    const TokenRange range = queries.chunk(place);
    store(of_queries_[n].take_root().value_or(Array()), to_.slice(2, begin, begin + range.end - range.begin));
  }
  if (!one_row_) return;
  const Placement& keys = whole_.sharding().keys;
  const int64_t columns = for_all_keys() ? keys.chunks() : keys.tokens();
  QuerySums sums(queries, {to_.size[0], to_.size[1], 1, columns}, dtype_);
  for (const auto& [place, value] : nodes_) sums.add_node(place, value);
  const Array sum = sums.of_all(ranks);
  if (!for_all_keys()) return store(sum, to_);
  FixedTree<Array> over_keys(columns);  // in the order of their places
  for (int64_t j = 0; j < columns; ++j) {
    const Array column(dtype_, {to_.size[0], to_.size[1], 1, 1}, false);
    copy(sum.view<4>().slice(3, j, j + 1), column.view<4>());
    over_keys.add({0, j}, column, add_arrays);
  }
  store(over_keys.take_root().value_or(Array()), to_);
}

}  // namespace attn::cluster
