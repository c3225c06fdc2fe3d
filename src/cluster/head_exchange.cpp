#include "cluster/head_exchange.h"

#include <algorithm>
#include <cstring>

#include "cluster/arrays.h"
#include "core/checker.h"

namespace attn::cluster {
namespace {

constexpr int kHeadsTag = 7, kGatherTag = 8;

int64_t bytes_of(const View<4>& view) { return view.count() * size_of(view.dtype); }

}  // namespace

// --------------------------------------------------------------------------------------------------------------- ranks

std::unique_ptr<Transfer> SpacedRanks::start(std::span<const Message> sent, std::span<const Message> received,
                                             int tag) {
  std::vector<Message> to(sent.begin(), sent.end()), from(received.begin(), received.end());
  for (std::vector<Message>* messages : {&to, &from})
    for (Message& message : *messages) message.rank = of_all(message.rank);
  return all_.start(to, from, tag);
}

void SpacedRanks::all_gather(const void* from, int64_t bytes, void* to) {
  std::vector<Message> sent, received;
  for (int rank = 0; rank < size_; ++rank) {
    char* place = static_cast<char*>(to) + rank * bytes;
    if (rank == rank_) std::memcpy(place, from, static_cast<size_t>(bytes));
    else sent.push_back({rank, const_cast<void*>(from), bytes}), received.push_back({rank, place, bytes});
  }
  start(sent, received, kGatherTag)->wait();
}

// --------------------------------------------------------------------------------------------------------------- heads

MemberHeads::MemberHeads(int64_t H, int64_t Hk, int member, int members) {
  const int64_t group = Hk > 0 ? H / Hk : 1, end = H * (member + 1) / members;
  for (int64_t head = H * member / members; head < end;) {
    const bool whole_groups = head % group == 0 && end - head >= group;
    const int64_t heads = whole_groups ? (end - head) / group * group : std::min(end - head, group - head % group);
    pieces_.push_back({head, heads, head / group, whole_groups ? heads / group : 1});
    head += heads;
  }
}

TokenRange MemberHeads::of(HeadAxis axis) const {
  if (pieces_.empty()) return {};
  const HeadPiece &first = pieces_.front(), &last = pieces_.back();
  if (axis == HeadAxis::query) return {first.head, last.head + last.heads};
  return axis == HeadAxis::key ? TokenRange{first.kv_head, last.kv_head + last.kv_heads} : TokenRange{0, 1};
}

namespace {

AttentionOptions piece_options(const AttentionOptions& options, const HeadPiece& piece, const MemberHeads& own) {
  AttentionOptions o = options;
  const int64_t begin = piece.head, end = piece.head + piece.heads, first = own.of(HeadAxis::query).begin;
  o.shard.first_head += begin;
  for (std::span<const float>* of_heads : {&o.alibi_slopes, &o.sink})
    if (!of_heads->empty()) *of_heads = of_heads->subspan(static_cast<size_t>(begin), static_cast<size_t>(end - begin));
  if (o.blocks.allowed && o.blocks.allowed.size[1] != 1) o.blocks.allowed = o.blocks.allowed.slice(1, begin, end);
  if (o.blocks.offsets && o.blocks.offsets.size[1] != 1) o.blocks.offsets = o.blocks.offsets.slice(1, begin, end);
  for (ConstView<4>* pairs : {&o.mask, &o.bias})
    if (*pairs && pairs->size[1] != 1) *pairs = pairs->slice(1, begin - first, end - first);
  return o;
}

ClusterShape shape_of(const Whole& all, const HeadPiece& piece) {
  ClusterShape shape = all.shape();
  shape.H = piece.heads;
  shape.Hk = piece.kv_heads;
  return shape;
}

}  // namespace

PieceOfWhole::PieceOfWhole(const Whole& all, const Sharding& sharding, const AttentionOptions& of_own,
                           const HeadPiece& piece, const MemberHeads& own)
    : options(piece_options(of_own, piece, own)) {
  Checker checker("cluster");
  whole = std::make_unique<Whole>(checker, sharding, shape_of(all, piece), options);
  checker.done();
  const int64_t head = own.of(HeadAxis::query).begin, kv_head = own.of(HeadAxis::key).begin;
  heads = {piece.head - head, piece.head + piece.heads - head};
  kv_heads = {piece.kv_head - kv_head, piece.kv_head + piece.kv_heads - kv_head};
}

// -------------------------------------------------------------------------------------------------------------- groups

GroupRows::GroupRows(const Placement& placement, const Placement& of_groups, int group)
    : rows_(of_groups.tokens(group)) {
  const RankChunks in_group(of_groups, group);
  const int members = placement.ranks() / of_groups.ranks();
  for (int rank = group * members; rank < (group + 1) * members; ++rank) {
    const RankChunks in_rank(placement, rank);
    std::vector<Run>& runs = runs_.emplace_back();
    for (int64_t place = in_rank.first(); place < in_rank.end(); ++place) {
      const TokenRange tokens = placement.chunk(place);
      runs.push_back({in_rank.offset(place), in_group.offset(place), tokens.end - tokens.begin});
    }
  }
}

GroupRows GroupRows::of_one_row(int members) {
  GroupRows rows;
  rows.runs_.assign(members, {{0, 0, 1}});
  return rows;
}

int64_t GroupRows::rows(int member) const {
  int64_t sum = 0;
  for (const Run& run : runs_[member]) sum += run.rows;
  return sum;
}

HeadGroups::HeadGroups(Communicator& ranks, const Whole& whole, int size)
    : group_(ranks, ranks.rank() / size * size, 1, size),
      between_(ranks, ranks.rank() % size, size, ranks.size() / size),
      sharding_(whole.sharding().queries.joined(size), whole.sharding().keys.joined(size)),
      queries_(whole.sharding().queries, sharding_.queries, between_.rank()),
      keys_(whole.sharding().keys, sharding_.keys, between_.rank()) {
  for (int member = 0; member < size; ++member) heads_.emplace_back(whole.shape().H, whole.shape().Hk, member, size);
}

// ----------------------------------------------------------------------------------------------------------- exchanges

HeadExchange::HeadExchange(HeadGroups& groups, DType dtype, const std::vector<Shape<4>>& sent,
                           const std::vector<Shape<4>>& received)
    : groups_(groups) {
  int64_t count = 0;
  for (const std::vector<Shape<4>>* shapes : {&sent, &received})
    for (const Shape<4>& shape : *shapes) count += count_of(shape);
  memory_ = Buffer(count * size_of(dtype));
  char* next = static_cast<char*>(memory_.data());
  const auto place = [&](const Shape<4>& shape) {
    const View<4> view(next, dtype, shape);
    next += bytes_of(view);
    return view;
  };
  for (const Shape<4>& shape : sent) sent_.push_back(place(shape));
  for (int member = 0; member < std::ssize(received); ++member)
    received_.push_back(member == groups.member() ? sent_[member] : place(received[member]));
}

void HeadExchange::start() {
  std::vector<Message> to, from;
  for (int member = 0; member < groups_.members(); ++member) {
    if (member == groups_.member()) continue;
    to.push_back({member, sent_[member].data, bytes_of(sent_[member])});
    from.push_back({member, received_[member].data, bytes_of(received_[member])});
  }
  transfer_ = cluster::start(groups_.group(), std::move(to), std::move(from), kHeadsTag);
}

namespace {

int64_t extent(const TokenRange& range) { return range.end - range.begin; }

/// [B, heads of each member, rows of this rank, W].
std::vector<Shape<4>> for_heads(HeadGroups& groups, HeadAxis axis, const GroupRows& rows, Shape<4> size) {
  std::vector<Shape<4>> shapes;
  for (int member = 0; member < groups.members(); ++member)
    shapes.push_back({size[0], extent(groups.heads(member).of(axis)), rows.rows(groups.member()), size[3]});
  return shapes;
}
/// [B, own heads, rows of each member, W].
std::vector<Shape<4>> for_rows(HeadGroups& groups, HeadAxis axis, const GroupRows& rows, Shape<4> size) {
  std::vector<Shape<4>> shapes;
  for (int member = 0; member < groups.members(); ++member)
    shapes.push_back({size[0], extent(groups.own().of(axis)), rows.rows(member), size[3]});
  return shapes;
}

}  // namespace

ToHeads::ToHeads(HeadGroups& groups, const ConstView<4>& x, HeadAxis axis, const GroupRows& rows)
    : HeadExchange(groups, x.dtype, for_heads(groups, axis, rows, x.size), for_rows(groups, axis, rows, x.size)),
      rows_(rows),
      result_(x.dtype, {x.size[0], extent(groups.own().of(axis)), rows.rows(), x.size[3]}, false) {
  for (int member = 0; member < groups.members(); ++member) {
    const TokenRange heads = groups.heads(member).of(axis);
    copy(x.slice(1, heads.begin, heads.end), sent(member));
  }
  start();
}

Array ToHeads::finish() {
  wait();
  for (int member = 0; member < groups_.members(); ++member)
    for (const GroupRows::Run& run : rows_.runs(member))
      copy(received(member).slice(2, run.member_row, run.member_row + run.rows),
           result_.view<4>().slice(2, run.group_row, run.group_row + run.rows));
  release();
  return result_;
}

ToTokens::ToTokens(HeadGroups& groups, const Array& x, HeadAxis axis, int64_t heads, const GroupRows& rows)
    : HeadExchange(groups, x.dtype(), for_rows(groups, axis, rows, x.view<4>().size),
                   for_heads(groups, axis, rows, x.view<4>().size)),
      axis_(axis),
      result_(x.dtype(), {x.shape()[0], heads, rows.rows(groups.member()), x.shape()[3]}, false) {
  for (int member = 0; member < groups.members(); ++member)
    for (const GroupRows::Run& run : rows.runs(member))
      copy(x.view<4>().slice(2, run.group_row, run.group_row + run.rows),
           sent(member).slice(2, run.member_row, run.member_row + run.rows));
  start();
}

Array ToTokens::finish() {
  wait();
  int64_t filled = 0;  // heads of which there is a term
  for (int member = 0; member < groups_.members(); ++member) {
    const TokenRange heads = groups_.heads(member).of(axis_);
    const int64_t again = std::min(heads.end, filled);
    const auto part = [&](const View<4>& view, int64_t first, int64_t begin, int64_t end) {
      return view.slice(1, begin - first, end - first);
    };
    if (heads.begin < again)
      add(part(received(member), heads.begin, heads.begin, again), part(result_.view<4>(), 0, heads.begin, again));
    const int64_t begin = std::max(heads.begin, filled);
    if (begin < heads.end)
      copy(part(received(member), heads.begin, begin, heads.end), part(result_.view<4>(), 0, begin, heads.end));
    filled = std::max(filled, heads.end);
  }
  release();
  return result_;
}

}  // namespace attn::cluster
