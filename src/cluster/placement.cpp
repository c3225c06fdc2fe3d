// Placements: how a whole is cut into chunks, in which order they are, and how ranks share the order.
#include <algorithm>
#include <bit>
#include <numeric>

#include "attn/cluster.h"
#include "cluster/arrays.h"
#include "core/checker.h"
#include "core/numbers.h"

namespace attn::cluster {
namespace {

constexpr int64_t kChunk = 1024;

/// The chunk sizes 1024, 512 ..., until every rank has two.
int64_t default_chunk(int64_t tokens, int ranks) {
  int64_t chunk = kChunk;
  while (chunk > 1 && div_up(tokens, chunk) < 2 * int64_t{ranks}) chunk /= 2;
  return chunk;
}

std::vector<int64_t> even_edges(int64_t tokens, int64_t chunk) {
  std::vector<int64_t> edges = {0};
  while (edges.back() < tokens) edges.push_back(std::min(tokens, edges.back() + chunk));
  return edges;
}

std::vector<int64_t> even_cuts(int64_t chunks, int ranks) {
  std::vector<int64_t> cuts;
  for (int rank = 0; rank <= ranks; ++rank) cuts.push_back(chunks * rank / ranks);
  return cuts;
}

void check_copy(const char* name, const Placement& placement, int rank, const ConstView<4>& whole,
                const ConstView<4>& shard) {
  Checker checker(name);
  if (checker.require(rank >= 0 && rank < placement.ranks(), [&] {
        return "rank is " + std::to_string(rank) + ", must be one of the " + std::to_string(placement.ranks());
      })) {
    Shape<4> expected = whole.size;
    expected[2] = placement.tokens(rank);
    checker.require(whole.size[2] == placement.tokens() && shard.size == expected && shard.dtype == whole.dtype, [&] {
      return "the whole has size " + to_string<4>(whole.size) + " and the shard " + to_string<4>(shard.size) +
             ", must have one type and " + std::to_string(placement.tokens()) + " and " +
             std::to_string(placement.tokens(rank)) + " tokens";
    });
    checker.require((whole.data || whole.empty()) && (shard.data || shard.empty()), "whole and shard must have data");
  }
  checker.done();
}

/// visit(tokens of the whole, the same tokens of the shard) for each range of a rank.
template <class Whole, class Shard, class Visit>
void each_range(const Placement& placement, int rank, const Whole& whole, const Shard& shard, const Visit& visit) {
  int64_t row = 0;
  for (const TokenRange& range : placement.ranges(rank)) {
    const int64_t n = range.end - range.begin;
    visit(whole.slice(2, range.begin, range.end), shard.slice(2, row, row + n));
    row += n;
  }
}

}  // namespace

Placement Placement::even(const char* kind, int64_t tokens, int ranks, int64_t chunk) {
  Checker checker(kind);
  checker.require(tokens >= 0, [&] { return "there are " + std::to_string(tokens) + " tokens, must be 0 or more"; });
  checker.require(ranks >= 1, [&] { return "there are " + std::to_string(ranks) + " ranks, must be at least 1"; });
  checker.require(chunk >= 0, [&] { return "chunk is " + std::to_string(chunk) + ", must be 0 or more tokens"; });
  checker.done();
  std::vector<int64_t> edges = even_edges(tokens, chunk > 0 ? chunk : default_chunk(tokens, ranks));
  std::vector<int64_t> order(edges.size() - 1);
  std::iota(order.begin(), order.end(), 0);
  std::vector<int64_t> cuts = even_cuts(static_cast<int64_t>(order.size()), ranks);
  return {std::move(edges), std::move(order), std::move(cuts)};
}

Placement Placement::contiguous(int64_t tokens, int ranks, int64_t chunk) {
  return even("Placement::contiguous", tokens, ranks, chunk);
}

/// The order 0, C - 1, 1, C - 2 ...
Placement Placement::zigzag(int64_t tokens, int ranks, int64_t chunk) {
  Placement placement = even("Placement::zigzag", tokens, ranks, chunk);
  const int64_t chunks = placement.chunks();
  for (int64_t place = 0; place < chunks; ++place)
    placement.order_[place] = place % 2 == 0 ? place / 2 : chunks - 1 - place / 2;
  return placement;
}

/// The order of the numbers with their bits reversed: any consecutive few of it are spread over the whole.
Placement Placement::striped(int64_t tokens, int ranks, int64_t chunk) {
  Placement placement = even("Placement::striped", tokens, ranks, chunk);
  const auto chunks = static_cast<uint64_t>(placement.chunks());
  const uint64_t all = std::bit_ceil(std::max<uint64_t>(chunks, 1));
  placement.order_.clear();
  for (uint64_t place = 0; place < all; ++place) {
    uint64_t number = 0;
    for (uint64_t bit = 1; bit < all; bit *= 2) number |= place & bit ? all / 2 / bit : 0;
    if (number < chunks) placement.order_.push_back(static_cast<int64_t>(number));
  }
  return placement;
}

Placement Placement::joined(int group) const {
  if (group < 1 || ranks() % group != 0)
    throw Error("Placement::joined",
                {"group is " + std::to_string(group) + ", must divide the " + std::to_string(ranks()) + " ranks"});
  std::vector<int64_t> cuts;
  for (size_t rank = 0; rank < cuts_.size(); rank += static_cast<size_t>(group)) cuts.push_back(cuts_[rank]);
  return {edges_, order_, std::move(cuts)};
}

Placement Placement::of_shards(std::span<const int64_t> tokens, int64_t chunk) {
  Checker checker("Placement::of_shards");
  checker.require(!tokens.empty(), "there must be at least one rank");
  checker.require(std::all_of(tokens.begin(), tokens.end(), [](int64_t n) { return n >= 0; }),
                  "no rank may have fewer than 0 tokens");
  checker.require(chunk >= 1, [&] { return "chunk is " + std::to_string(chunk) + ", must be at least 1 token"; });
  checker.done();
  std::vector<int64_t> edges = {0}, cuts = {0};
  for (const int64_t n : tokens) {
    const int64_t end = edges.back() + n;
    while (edges.back() < end) edges.push_back(std::min(end, edges.back() + chunk));
    cuts.push_back(static_cast<int64_t>(edges.size()) - 1);
  }
  std::vector<int64_t> order(edges.size() - 1);
  std::iota(order.begin(), order.end(), 0);
  return {std::move(edges), std::move(order), std::move(cuts)};
}

Placement Placement::of_ranges(std::span<const std::vector<TokenRange>> ranges, int64_t chunk) {
  Checker checker("Placement::of_ranges");
  checker.require(!ranges.empty(), "there must be at least one rank");
  checker.require(chunk >= 1, [&] { return "chunk is " + std::to_string(chunk) + ", must be at least 1 token"; });
  std::vector<TokenRange> sorted;
  for (const std::vector<TokenRange>& of_rank : ranges)
    for (const TokenRange& range : of_rank)
      if (range.begin != range.end) sorted.push_back(range);
  const auto before = [](const TokenRange& a, const TokenRange& b) { return a.begin < b.begin; };
  std::sort(sorted.begin(), sorted.end(), before);
  int64_t end = 0;
  for (const TokenRange& range : sorted) {
    if (!checker.require(range.begin == end && range.begin < range.end, [&] {
          return "the range " + std::to_string(range.begin) + " to " + std::to_string(range.end) + " must begin at " +
                 std::to_string(end) + ", where the one before it ends, and not be reversed";
        }))
      break;
    end = range.end;
  }
  checker.done();
  std::vector<int64_t> edges = {0}, order, cuts = {0};
  for (const TokenRange& range : sorted)
    while (edges.back() < range.end) edges.push_back(std::min(range.end, edges.back() + chunk));
  for (const std::vector<TokenRange>& of_rank : ranges) {
    for (const TokenRange& range : of_rank) {
      if (range.begin == range.end) continue;
      for (auto edge = std::lower_bound(edges.begin(), edges.end(), range.begin); *edge < range.end; ++edge)
        order.push_back(edge - edges.begin());
    }
    cuts.push_back(static_cast<int64_t>(order.size()));
  }
  return {std::move(edges), std::move(order), std::move(cuts)};
}

int64_t Placement::tokens(int rank) const {
  int64_t count = 0;
  for (int64_t place = cuts_[rank]; place < cuts_[rank + 1]; ++place) count += chunk(place).end - chunk(place).begin;
  return count;
}

std::vector<TokenRange> Placement::ranges(int rank) const {
  std::vector<TokenRange> chunks, joined;
  for (int64_t place = cuts_[rank]; place < cuts_[rank + 1]; ++place) chunks.push_back(chunk(place));
  std::sort(chunks.begin(), chunks.end(), [](const TokenRange& a, const TokenRange& b) { return a.begin < b.begin; });
  for (const TokenRange& range : chunks) {
    if (joined.empty() || joined.back().end != range.begin) joined.push_back(range);
    else joined.back().end = range.end;
  }
  return joined;
}

void take_shard(const Placement& placement, int rank, ConstView<4> whole, View<4> shard) {
  check_copy("take_shard", placement, rank, whole, shard);
  each_range(placement, rank, whole, shard,
             [](const ConstView<4>& of_whole, const View<4>& of_shard) { copy(of_whole, of_shard); });
}

void put_shard(const Placement& placement, int rank, ConstView<4> shard, View<4> whole) {
  check_copy("put_shard", placement, rank, whole, shard);
  each_range(placement, rank, whole, shard,
             [](const View<4>& of_whole, const ConstView<4>& of_shard) { copy(of_shard, of_whole); });
}

}  // namespace attn::cluster
