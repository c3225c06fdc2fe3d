// Tokens for heads: consecutive ranks form groups, and the members of a group exchange them before and after a call, so
// that each has all tokens of the group for a part of the heads.
#pragma once

#include <memory>
#include <vector>

#include "cluster/call.h"

namespace attn::cluster {

/// Ranks of a communicator at equal distances, as a communicator. Unlike split(), it needs no message and no transport
/// that can split.
class SpacedRanks : public Communicator {
 public:
  SpacedRanks(Communicator& all, int first, int step, int size)
      : all_(all), first_(first), step_(step), size_(size), rank_((all.rank() - first) / step) {}
  int rank() const override { return rank_; }
  int size() const override { return size_; }
  std::unique_ptr<Transfer> start(std::span<const Message> sent, std::span<const Message> received, int tag) override;
  void all_gather(const void* from, int64_t bytes, void* to) override;
  int job_rank(int rank) const override { return all_.job_rank(of_all(rank)); }

 private:
  int of_all(int rank) const { return first_ + rank * step_; }

  Communicator& all_;
  const int first_, step_, size_, rank_;
};

/// Consecutive query heads and the key/value heads that they read, each of which is read by equally many.
struct HeadPiece {
  int64_t head, heads, kv_head, kv_heads;
};
/// What an axis of an array counts: query heads, key/value heads, or nothing, as it has extent 1 for all heads.
enum class HeadAxis { query, key, shared };

/// The heads of one member of a group.
class MemberHeads {
 public:
  MemberHeads(int64_t H, int64_t Hk, int member, int members);
  const std::vector<HeadPiece>& pieces() const { return pieces_; }
  /// Those that it needs of an axis; none of any axis if it has no query head.
  TokenRange of(HeadAxis axis) const;

 private:
  std::vector<HeadPiece> pieces_;
};

/// Where the rows of each member are in the arrays of its group.
class GroupRows {
 public:
  struct Run {
    int64_t member_row, group_row, rows;
  };
  /// Of a group, which is a rank of `of_groups`.
  GroupRows(const Placement& placement, const Placement& of_groups, int group);
  /// Of an array with one row, which all members have.
  static GroupRows of_one_row(int members);
  const std::vector<Run>& runs(int member) const { return runs_[member]; }
  int64_t rows(int member) const;
  int64_t rows() const { return rows_; }

 private:
  GroupRows() = default;
  std::vector<std::vector<Run>> runs_;
  int64_t rows_ = 1;
};

/// The group of a rank, and the ranks of other groups that have the same heads.
class HeadGroups {
 public:
  HeadGroups(Communicator& ranks, const Whole& whole, int size);
  Communicator& group() { return group_; }
  Communicator& between() { return between_; }
  const Sharding& sharding() const { return sharding_; }  ///< over the ranks of between()
  const GroupRows& queries() const { return queries_; }
  const GroupRows& keys() const { return keys_; }
  const MemberHeads& heads(int member) const { return heads_[member]; }
  const MemberHeads& own() const { return heads_[member()]; }
  int members() const { return group_.size(); }
  int member() const { return group_.rank(); }

 private:
  SpacedRanks group_, between_;
  Sharding sharding_;
  GroupRows queries_, keys_;
  std::vector<MemberHeads> heads_;
};

/// An array that the members of a group exchange; the constructors start to send it.
class HeadExchange {
 public:
  HeadExchange(const HeadExchange&) = delete;
  HeadExchange& operator=(const HeadExchange&) = delete;

 protected:
  /// A block for and one from each member.
  HeadExchange(HeadGroups& groups, DType dtype, const std::vector<Shape<4>>& sent,
               const std::vector<Shape<4>>& received);
  ~HeadExchange() = default;
  View<4> sent(int member) const { return sent_[member]; }
  View<4> received(int member) const { return received_[member]; }
  void start();
  void wait() { transfer_->wait(); }
  void release() { memory_ = {}; }  ///< of all blocks

  HeadGroups& groups_;

 private:
  Buffer memory_;
  std::vector<View<4>> sent_, received_;  // one memory for that of this rank
  std::unique_ptr<Transfer> transfer_;
};

/// x [B, heads of the axis, rows of this rank, W] becomes [B, own heads of the axis, rows of the group, W].
class ToHeads : HeadExchange {
 public:
  ToHeads(HeadGroups& groups, const ConstView<4>& x, HeadAxis axis, const GroupRows& rows);
  Array finish();

 private:
  const GroupRows& rows_;
  const Array result_;
};

/// And back: of heads that several members have, the sum in the order of members, for which the type is float32 or
/// float64.
class ToTokens : HeadExchange {
 public:
  ToTokens(HeadGroups& groups, const Array& x, HeadAxis axis, int64_t heads, const GroupRows& rows);
  Array finish();

 private:
  const HeadAxis axis_;
  const Array result_;
};

/// A call on a piece of the heads, for the ranks of a sharding.
struct PieceOfWhole {
  /// Mask and bias of the options have the heads `own` of a member.
  PieceOfWhole(const Whole& all, const Sharding& sharding, const AttentionOptions& of_own, const HeadPiece& piece,
               const MemberHeads& own);
  AttentionOptions options;
  std::unique_ptr<Whole> whole;
  TokenRange heads, kv_heads;  ///< in arrays with the heads of the member
};

}  // namespace attn::cluster
