// cluster: exact attention over a sequence that is sharded over ranks, forward and backward, with every option.
//
// ```cpp
// #include <cstdio>
// #include "attn/cluster.h"
// int main() {
//   const auto placement = attn::cluster::Placement::zigzag(262'144, 16);
//   for (const attn::cluster::TokenRange& range : placement.ranges(3))
//     std::printf("rank 3 has the tokens %ld to %ld\n", long(range.begin), long(range.end - 1));
//   const attn::cluster::ClusterShape shape = {.H = 32, .Hk = 8, .D = 128, .Dv = 128, .dtype = attn::DType::bfloat16};
//   const attn::cluster::ClusterPlan plan = attn::cluster::explain(placement, shape, {.causal = true});
//   std::printf("and sends %.0f MB\n", double(plan.bytes_sent[3]) / 1e6);
// }
// ```
//
// A rank is a process with a part of the queries, keys and values. The whole is cut into chunks, and a Placement says
// which rank has which. A rank computes the state (out, lse) of each of its chunks of queries over each chunk of keys,
// its own and those that it receives while it computes, and merges the states of a row in an order that the placement
// fixes: results have the same bits for any number of ranks, and for any number of threads. More: docs/cluster.md.
//
// Sources: Liu et al. 2023 (arXiv:2310.01889) rings; Brandon et al. 2023 (arXiv:2311.09431) stripes; Llama 3 2024
// (arXiv:2407.21783) shards of two chunks, from both ends; Jacobs et al. 2023 (arXiv:2309.14509) sequence to heads.
#pragma once

#include <algorithm>
#include <cstring>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include "attn/attention.h"
#include "attn/core.h"

#pragma GCC visibility push(default)
namespace attn::cluster {

// ------------------------------------------------------------------------------------------------------------ messages

/// Bytes from or to a rank.
struct Message {
  int rank = 0;
  void* data = nullptr;  ///< borrowed until the transfer is complete; read only where it is sent
  int64_t bytes = 0;     ///< at least 1
};

/// Messages that have been started.
class Transfer {
 public:
  virtual ~Transfer() = default;
  /// Lets messages proceed, without waiting; true if all have been sent and received.
  virtual bool progress() = 0;
  /// Returns when all have been sent and received. Throws Error if the connection fails.
  virtual void wait() = 0;
};

/// The ranks of a job, and how they exchange messages. attn/cluster_mpi.h has one over MPI; a program with a transport
/// of its own derives another.
class Communicator {
 public:
  virtual ~Communicator() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  /// Starts to send and to receive. Messages of one tag from a rank to another arrive in the order in which they were
  /// sent. The lists themselves are not borrowed.
  virtual std::unique_ptr<Transfer> start(std::span<const Message> sent, std::span<const Message> received,
                                          int tag) = 0;
  /// Gives every rank the same number of bytes, at least 1, from each rank: to [size() * bytes], in the order of ranks.
  virtual void all_gather(const void* from, int64_t bytes, void* to) = 0;
  /// The ranks that give the same color, at least 0, in the order of ranks. All ranks call it. The base class throws
  /// Error.
  virtual std::unique_ptr<Communicator> split(int color);
  /// The number of a rank in the job, which errors name: it differs from `rank` after split().
  virtual int job_rank(int rank) const { return rank; }
};

/// A job of this process alone, for code that is written for ranks.
Communicator& one_rank();

/// The Error of a call that fails for all ranks of a communicator: each throws it, with the same reasons, and none
/// waits for another.
class RanksError : public Error {
 public:
  RanksError(const Communicator& ranks, const std::string& operation, std::vector<std::string> reasons)
      : Error(operation, std::move(reasons)), known_to_({&ranks}) {}
  /// True if all ranks of the communicator throw it.
  bool is_known_to(const Communicator& ranks) const {
    return std::find(known_to_.begin(), known_to_.end(), &ranks) != known_to_.end();
  }
  /// Says that another communicator's ranks throw it too.
  void add(const RanksError& same) { known_to_.insert(known_to_.end(), same.known_to_.begin(), same.known_to_.end()); }

 private:
  std::vector<const Communicator*> known_to_;
};

// ----------------------------------------------------------------------------------------------------------- placement

/// Tokens begin .. end - 1 of the whole.
struct TokenRange {
  int64_t begin = 0;
  int64_t end = 0;
  bool operator==(const TokenRange&) const = default;
};

/// Which rank holds which tokens. The tokens are cut into chunks, the chunks are put in an order, and each rank has the
/// next few of that order. The arrays of a rank hold its tokens by rising position.
///
/// The order is also that in which the states of chunks are merged. So results depend on the kind of placement and on
/// the chunks, but not on the number of ranks. `chunk` is a number of tokens; with 0 it is 1024, or less where a rank
/// would get fewer than two chunks.
class Placement {
 public:
  /// Each rank has consecutive tokens. With a causal mask the last rank has the most work, the first the least.
  static Placement contiguous(int64_t tokens, int ranks, int64_t chunk = 0);
  /// Each rank has as many tokens from the end as from the beginning: with a causal mask all have the same work.
  static Placement zigzag(int64_t tokens, int ranks, int64_t chunk = 0);
  /// Each rank has chunks all over the whole, in turn: the same for masks of any shape.
  static Placement striped(int64_t tokens, int ranks, int64_t chunk = 0);
  /// Consecutive tokens, tokens[r] of them on rank r, each shard in chunks of its own.
  static Placement of_shards(std::span<const int64_t> tokens, int64_t chunk = 1024);
  /// Any tokens: ranges[r] are those of rank r, each in chunks of its own. All of them together are 0 .. n - 1.
  static Placement of_ranges(std::span<const std::vector<TokenRange>> ranges, int64_t chunk = 1024);

  int ranks() const { return static_cast<int>(cuts_.size()) - 1; }
  /// The length of the whole,
  int64_t tokens() const { return edges_.back(); }
  /// and of the arrays of a rank.
  int64_t tokens(int rank) const;
  /// The tokens of a rank, in the order of its arrays.
  std::vector<TokenRange> ranges(int rank) const;

  int64_t chunks() const { return static_cast<int64_t>(order_.size()); }
  /// The tokens of the chunk at a place of the order.
  TokenRange chunk(int64_t place) const { return {edges_[order_[place]], edges_[order_[place] + 1]}; }
  /// The places of a rank: from first_place(r) to first_place(r + 1).
  int64_t first_place(int rank) const { return cuts_[rank]; }
  /// The same order for ranks() / group ranks: each has the chunks of `group` consecutive ranks.
  Placement joined(int group) const;

 private:
  Placement(std::vector<int64_t> edges, std::vector<int64_t> order, std::vector<int64_t> cuts)
      : edges_(std::move(edges)), order_(std::move(order)), cuts_(std::move(cuts)) {}
  static Placement even(const char* kind, int64_t tokens, int ranks, int64_t chunk);

  std::vector<int64_t> edges_;  // of chunks, by position
  std::vector<int64_t> order_;  // chunk at each place
  std::vector<int64_t> cuts_;   // the first place of each rank
};

/// Copies the tokens of a rank: whole [B, H, L, D] -> shard [B, H, tokens(rank), D], of one type,
void take_shard(const Placement& placement, int rank, ConstView<4> whole, View<4> shard);
/// and back.
void put_shard(const Placement& placement, int rank, ConstView<4> shard, View<4> whole);

// ----------------------------------------------------------------------------------------------------------- attention

/// Where the queries and the keys of the whole are. In self-attention they have one placement.
struct Sharding {
  Placement queries;
  Placement keys;
  Sharding(Placement both) : queries(both), keys(std::move(both)) {}
  Sharding(Placement of_queries, Placement of_keys) : queries(std::move(of_queries)), keys(std::move(of_keys)) {}
};

/// How queries and keys meet.
struct Schedule {
  enum class Keys {
    ring,   ///< keys and values come from one rank after the other, the next while the last is computed
    gather  ///< from all at once: one wait, and memory of the whole
  };
  Keys keys = Keys::ring;
  /// Groups of so many consecutive ranks exchange tokens for heads before and after: each rank then has all tokens of
  /// its group for a part of the heads, and keys come from the ranks of other groups that have the same heads.
  /// 1: no exchange; 0: all ranks are one group.
  int heads_group = 1;

  static const Schedule ring, gather;
  static constexpr Schedule heads(int group = 0, Keys keys = Keys::ring) { return {keys, group}; }
  /// Of ring, gather, heads, or heads:n for groups of n ranks, whose keys come by ring. Throws Error for other names.
  static Schedule named(const std::string& name);
  std::string name() const;
  bool operator==(const Schedule&) const = default;
};
inline constexpr Schedule Schedule::ring = {};
inline constexpr Schedule Schedule::gather = {Keys::gather};

/// out = attention(q, k, v) of the whole. Every rank of `ranks` calls it with its shards:
///   q [B, H, Lq, D], k [B, Hk, Lk, D], v [B, Hk, Lk, Dv], out [B, H, Lq, Dv], lse [B, H, Lq] if wanted, with the Lq
///   and Lk of the rank, as in attn::attention().
/// Options are those of the whole, the same on all ranks: lengths, offsets, packed sequences, segment ids, blocks,
/// slopes, sinks and dropout. Only mask and bias have the queries of the rank, and the keys of the whole. Of
/// options.shard, first_batch and first_head may be given.
///
/// A chunk of keys that no query of a rank may attend to, by position, segment or block, is neither sent to it nor
/// computed. Throws RanksError, with the reasons of the first rank that has some, if an argument is wrong
/// anywhere or the ranks do not agree.
void attention(Communicator& ranks, const Sharding& sharding, ConstView<4> q, ConstView<4> k, ConstView<4> v,
               View<4> out, View<3> lse, const AttentionOptions& options = {}, Schedule schedule = Schedule::ring);

/// Gradients of a loss from this rank's dout and, if given, dlse; out and lse are the forward's results. The arrays are
/// shards, of a rank's queries and keys, as in attn::attention_backward(). dsink, and dbias where the bias has one row
/// for all queries, are sums over all ranks, the same on each.
void attention_backward(Communicator& ranks, const Sharding& sharding, ConstView<4> q, ConstView<4> k, ConstView<4> v,
                        ConstView<4> out, ConstView<3> lse, ConstView<4> dout, const AttentionGradients& gradients,
                        const AttentionOptions& options = {}, ConstView<3> dlse = {},
                        Schedule schedule = Schedule::ring);

/// Merges the attention states of all ranks: each has (out, lse) of the same queries over keys of its own, and gets
/// those over the keys of all. So ranks decode with a KV cache that they share: each attends to the tokens that it has.
///   out [B, H, Lq, Dv] and lse [B, H, Lq], of one shape on all ranks, both float32 or float64; a rank without keys has
///   (0, -infinity). A sink belongs to the state of one rank only.
/// A rank sends 2 (R - 1) / R states. The bits depend on which rank has which keys. Throws Error as attention() does.
void merge(Communicator& ranks, View<4> out, View<3> lse);

/// Replaces x of each rank, [R, C] float32 or float64, with the sum of those of all ranks, added in the order of ranks:
/// all get the same bits. A rank sends 2 (R - 1) / R times x. Throws Error as attention() does.
void all_reduce(Communicator& ranks, View<2> x);

/// A rank that lacks the arguments of a call calls this instead: all ranks, this one too, then throw RanksError with
/// the reason, and none waits for this rank.
[[noreturn]] void refuse(Communicator& ranks, const std::string& reason);
/// For a program that exchanges something of its own before a call: returns once all ranks have called it with the same
/// `step`. Throws RanksError if one calls refuse(), another step or a function of this header instead.
void synchronize(Communicator& ranks, const std::string& step);

/// What every rank gives, in the order of ranks, on each of them: any bytes, of any number. Throws as synchronize()
/// does.
std::vector<std::string> gather(Communicator& ranks, const std::string& mine);
/// The same for numbers, or structs of them.
template <class T>
requires std::is_trivially_copyable_v<T> std::vector<std::vector<T>> gather(Communicator& ranks,
                                                                            const std::vector<T>& mine) {
  std::vector<std::vector<T>> all;
  const std::string bytes(reinterpret_cast<const char*>(mine.data()), mine.size() * sizeof(T));
  for (const std::string& one : gather(ranks, bytes)) {
    all.emplace_back(one.size() / sizeof(T));
    if (!one.empty()) std::memcpy(all.back().data(), one.data(), one.size());
  }
  return all;
}
/// Throws RanksError, with two of the values, unless all give the same: a version, options, a sum of data.
void require_same(Communicator& ranks, const std::string& what, const std::string& mine);
/// Runs what each rank does by itself, and returns once all are done. If it throws on a rank, all throw RanksError with
/// the reason of the first such rank. A job of one rank lets the exception pass.
void on_all_ranks(Communicator& ranks, const std::string& step, const std::function<void()>& work);

/// Shapes and element type of the arrays of a call, but for their lengths.
struct ClusterShape {
  int64_t B = 1, H = 1, Hk = 1, D = 64, Dv = 64;
  DType dtype = DType::float32;
};
/// What a rank does in a second, and how long a message takes.
struct ClusterCosts {
  double forward_flops = 0, backward_flops = 0;
  double bytes_per_second = 0;  ///< to another rank, while as many come
  double latency = 0;           ///< seconds
};
/// Measured on all ranks at once, with chunks of this shape; the same on all ranks. Takes as long as six chunks of 1024
/// tokens, forward and backward, and a few messages of 4 and 16 MiB.
ClusterCosts measure_costs(Communicator& ranks, const ClusterShape& shape);

/// What a call does on each rank.
struct ClusterPlan {
  std::vector<int64_t> bytes_sent;
  std::vector<double> flops;  ///< of multiply-adds on allowed pairs, each counted as two; masks are not known
  int64_t buffer_bytes = 0;   ///< of arrays with numbers of other ranks, on the rank that holds the most
  double seconds = 0;         ///< that all ranks are expected to take; 0 without costs
};
/// Computed without messages, by any process. Options are those of the whole, without mask and bias.
ClusterPlan explain(const Sharding& sharding, const ClusterShape& shape, const AttentionOptions& options = {},
                    bool backward = false, Schedule schedule = Schedule::ring, const ClusterCosts& costs = {});
/// The schedule that is expected to take the least time: the ring, gather, or heads in groups of any size.
Schedule choose(const Sharding& sharding, const ClusterShape& shape, const ClusterCosts& costs,
                const AttentionOptions& options = {}, bool backward = false);

}  // namespace attn::cluster
#pragma GCC visibility pop
