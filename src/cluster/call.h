// A call of all ranks: what they know together, what is visible from where, and the options of a pair of chunks.
#pragma once

#include <algorithm>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "attention/problem.h"
#include "attn/cluster.h"
#include "cluster/tree.h"

namespace attn::cluster {

/// The chunks of a rank: their places in the order, and where they begin in its arrays.
class RankChunks {
 public:
  RankChunks(const Placement& placement, int rank);
  int64_t first() const { return first_; }
  int64_t end() const { return first_ + static_cast<int64_t>(offset_.size()); }
  int64_t offset(int64_t place) const { return offset_[place - first_]; }

 private:
  int64_t first_;
  std::vector<int64_t> offset_;
};

/// The problem of all ranks together, as every one of them knows it: without masks and biases.
class Whole {
 public:
  /// Violated conditions go to `checker`. `options` borrows; mask and bias are left out.
  Whole(Checker& checker, const Sharding& sharding, const ClusterShape& shape, const AttentionOptions& options);
  Whole(const Whole&) = delete;
  Whole& operator=(const Whole&) = delete;

  const Sharding& sharding() const { return sharding_; }
  const ClusterShape& shape() const { return shape_; }
  const AttentionOptions& options() const { return options_; }
  int ranks() const { return sharding_.queries.ranks(); }

  /// False if no query of the chunk at a place may attend to a key of the other chunk, by position, segment or block.
  bool visible(int64_t query_place, int64_t key_place) const;
  /// The key places of rank `from` that queries of rank `to` may attend to.
  std::vector<int64_t> needed(int to, int from) const;
  /// Bytes of keys and values of a chunk.
  int64_t chunk_bytes(int64_t key_place) const;

 private:
  using Range = std::pair<int64_t, int64_t>;
  static std::vector<Range> ranges_of_ids(const ConstView<2>& ids, int64_t batch, const Placement& placement);
  bool visible_by_position(const TokenRange& queries, const TokenRange& keys) const;
  bool visible_by_segment(int64_t query_place, int64_t key_place) const;
  bool visible_by_block(const TokenRange& queries, const TokenRange& keys) const;

  Sharding sharding_;
  ClusterShape shape_;
  AttentionOptions options_;
  detail::Problem problem_;
  std::vector<Range> query_ids_, key_ids_;  // smallest and largest segment id: of batch element b, chunk c at b C + c
};

/// The type in which states and gradients are added up.
inline DType sum_type(DType dtype) { return dtype == DType::float64 ? DType::float64 : DType::float32; }

/// A node of the tree over chunks of queries that a rank computes by itself.
struct RankNode {
  TreeNode node;
  bool has_value;
};
/// Those of a rank, in the order in which they are exchanged; has_value(i): its chunk of queries at place i has a
/// value.
std::vector<RankNode> nodes_of_rank(const Placement& queries, int rank, const std::function<bool(int64_t)>& has_value);

/// The options of a call on one chunk of queries and one of keys. `rows` has the mask and the bias of the rank's
/// queries, of which the chunk begins at `first_row`. No sink: that is a state of its own.
AttentionOptions pair_options(const Whole& whole, const AttentionOptions& rows, int64_t query_place, int64_t first_row,
                              int64_t key_place);

/// The ranks of a group: 1 where heads are not exchanged.
inline int group_size(Schedule schedule, int ranks) { return schedule.heads_group == 0 ? ranks : schedule.heads_group; }

inline void check_groups(Checker& checker, Schedule schedule, int ranks) {
  const int group = group_size(schedule, ranks);
  checker.require(group >= 1 && ranks % group == 0, [&] {
    return "the schedule has groups of " + std::to_string(group) + " ranks, must divide the " + std::to_string(ranks) +
           " ranks";
  });
}

/// True if a view is given. On a rank without tokens it has no data, but its shape.
template <class Pointer, int Rank>
bool is_given(const BasicView<Pointer, Rank>& view) {
  return view.data || std::any_of(view.size.begin(), view.size.end(), [](int64_t n) { return n != 0; });
}

/// What a rank may want or have: gradients; a mask or a bias with one row, which is that of all queries of all ranks;
/// results that are rounded to the type of the inputs.
enum Want : uint32_t {
  kDq = 1,
  kDk = 2,
  kDv = 4,
  kDbias = 8,
  kDsink = 16,
  kDlse = 32,
  kOneMaskRow = 64,
  kOneBiasRow = 128,
  kRounded = 256
};
/// What a rank wants, and what of it it knows.
struct Wants {
  uint32_t bits = 0;
  uint32_t known = 0;
  void add(Want want, bool wanted, bool is_known = true) {
    if (wanted && is_known) bits |= want;
    if (is_known) known |= want;
  }
};

/// Throws the same Error on all ranks if a rank has reasons, or if their calls differ. Returns what all want. `rows`
/// has the mask and the bias of the rank.
uint32_t agree(Communicator& ranks, const char* operation, const std::vector<std::string>& reasons, const Whole& whole,
               const AttentionOptions& rows, Schedule schedule, Wants wants);

/// The same for a call of which only the shape of an array must agree.
void agree_on_shape(Communicator& ranks, const char* operation, const std::vector<std::string>& reasons,
                    const Shape<4>& size, DType dtype);

/// Starts the messages that have bytes: a transport is not given empty ones.
std::unique_ptr<Transfer> start(Communicator& ranks, std::vector<Message> sent, std::vector<Message> received, int tag);

/// The reasons of the Error that `check` throws.
std::vector<std::string> reasons_of(const std::function<void()>& check);

}  // namespace attn::cluster
