// explain(): what each rank sends and computes, from the same plan as the calls, and how long that takes.
#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <utility>

#include "cluster/by_heads.h"
#include "cluster/exchange.h"
#include "core/checker.h"

namespace attn::cluster {
namespace {

/// A number for each rank and step: in step t, rank r has the keys of rank r - t.
using Steps = std::vector<std::vector<double>>;

/// What happens in the steps of a call in which keys come to queries.
struct RingPlan {
  Steps flops, keys, gradients;  // operations; bytes that come; bytes that go back
  int64_t buffer_bytes = 0;      // of the rank that holds the most

  RingPlan(const Whole& whole, Schedule::Keys keys_come, bool backward);
  double bytes_sent(int rank) const;
  double seconds(int ahead, double flops_per_second, const ClusterCosts& costs) const;
  int ranks() const { return static_cast<int>(flops.size()); }
};

/// The operations of pairs of chunks. Unless an option names single tokens, they depend on lengths and distance alone.
class PairFlops {
 public:
  PairFlops(const Whole& whole, bool backward) : whole_(whole), backward_(backward) {}
  double operator()(int64_t i, int64_t j) {
    const AttentionOptions& o = whole_.options();
    const bool of_tokens = !o.key_length.empty() || !o.query_length.empty() || !o.cu_seqlens_q.empty() ||
                           o.query_segment_ids || o.blocks.given();
    if (of_tokens) return of(i, j);
    const TokenRange queries = whole_.sharding().queries.chunk(i), keys = whole_.sharding().keys.chunk(j);
    const Pair pair = {queries.begin - keys.begin, queries.end - queries.begin, keys.end - keys.begin};
    const auto found = known_.find(pair);
    return found != known_.end() ? found->second : known_[pair] = of(i, j);
  }

 private:
  using Pair = std::array<int64_t, 3>;
  double of(int64_t i, int64_t j) const;

  const Whole& whole_;
  bool backward_;
  std::map<Pair, double> known_;
};

double PairFlops::of(int64_t i, int64_t j) const {
  static const char kNothing[8] = {};  // of which nothing is read
  const ClusterShape& s = whole_.shape();
  const auto tensor = [&](int64_t heads, const TokenRange& range, int64_t n) {
    return ConstView<4>(kNothing, s.dtype, {s.B, heads, range.end - range.begin, n}, {0, 0, 0, 0});
  };
  const TokenRange queries = whole_.sharding().queries.chunk(i), keys = whole_.sharding().keys.chunk(j);
  const AttentionOptions options = pair_options(whole_, {}, i, 0, j);
  const ConstView<4> q = tensor(s.H, queries, s.D), k = tensor(s.Hk, keys, s.D), v = tensor(s.Hk, keys, s.Dv);
  return (backward_ ? attn::explain_backward(q, k, v, options) : attn::explain(q, k, v, options)).flops;
}

/// Gradients of keys that a rank sends to another, as nodes of the trees over its queries.
int64_t gradient_bytes(const Whole& whole, int from, int to) {
  const Placement &queries = whole.sharding().queries, &keys = whole.sharding().keys;
  const int64_t element = size_of(sum_type(whole.shape().dtype));
  int64_t bytes = 0;
  for (int64_t j = keys.first_place(to); j < keys.first_place(to + 1); ++j)
    for (const RankNode& node : nodes_of_rank(queries, from, [&](int64_t i) { return whole.visible(i, j); }))
      if (node.has_value) bytes += whole.chunk_bytes(j) / size_of(whole.shape().dtype) * element;
  return bytes;
}

RingPlan::RingPlan(const Whole& whole, Schedule::Keys keys_come, bool backward) {
  const int R = whole.ranks();
  const Sharding& sharding = whole.sharding();
  PairFlops pair_flops(whole, backward);
  for (Steps* steps : {&flops, &keys, &gradients}) steps->assign(R, std::vector<double>(R, 0));
  for (int rank = 0; rank < R; ++rank) {
    for (int step = 0; step < R; ++step) {
      const int source = (rank - step + R) % R;
      for (int64_t i = sharding.queries.first_place(rank); i < sharding.queries.first_place(rank + 1); ++i)
        for (int64_t j = sharding.keys.first_place(source); j < sharding.keys.first_place(source + 1); ++j)
          if (whole.visible(i, j)) flops[rank][step] += pair_flops(i, j);
      if (step == 0) continue;
      for (const int64_t place : whole.needed(rank, source))
        keys[rank][step] += static_cast<double>(whole.chunk_bytes(place));
      if (backward) gradients[rank][step] = static_cast<double>(gradient_bytes(whole, rank, source));
    }
    buffer_bytes = std::max(buffer_bytes, KeyExchange::buffer_bytes(whole, rank, steps_ahead(keys_come, R)));
  }
}

double RingPlan::bytes_sent(int rank) const {
  double bytes = 0;
  for (int step = 1; step < ranks(); ++step) bytes += keys[(rank + step) % ranks()][step] + gradients[rank][step];
  return bytes;
}

/// Wires of ranks, each with one message at a time in each direction.
class Wires {
 public:
  Wires(int ranks, const ClusterCosts& costs) : costs_(costs), sends_until_(ranks, 0), receives_until_(ranks, 0) {}
  /// When `to` has what `from` sends, which both have started at some time.
  double arrives(int from, int to, double started, double bytes) {
    if (bytes == 0) return started;
    const double begin = std::max({started, sends_until_[from], receives_until_[to]});
    sends_until_[from] = receives_until_[to] = begin + bytes / costs_.bytes_per_second;
    return sends_until_[from] + costs_.latency;
  }

 private:
  const ClusterCosts& costs_;
  std::vector<double> sends_until_, receives_until_;
};

/// The call, replayed: keys are started `ahead` steps before they are used, gradients after their step.
double RingPlan::seconds(int ahead, double flops_per_second, const ClusterCosts& costs) const {
  const int R = ranks();
  Wires wires(R, costs);
  std::vector<double> now(R, 0), returned(R, 0);
  Steps arrived(R, std::vector<double>(R, 0));
  for (int step = 0, started = 1; step < R; ++step) {
    for (; started < R && started <= step + ahead; ++started)
      for (int rank = 0; rank < R; ++rank) {
        const int source = (rank - started + R) % R;
        arrived[rank][started] = wires.arrives(source, rank, std::max(now[rank], now[source]), keys[rank][started]);
      }
    for (int rank = 0; rank < R; ++rank)
      now[rank] = std::max(now[rank], arrived[rank][step]) + flops[rank][step] / flops_per_second;
    if (step == 0) continue;
    std::vector<double> back(R);
    for (int rank = 0; rank < R; ++rank) {  // what the rank with the keys of this one has computed
      const int from = (rank + step) % R;
      back[rank] = wires.arrives(from, rank, std::max(now[rank], now[from]), gradients[from][step]);
    }
    for (int rank = 0; rank < R; ++rank) now[rank] = std::max(now[rank], returned[rank]);
    returned = back;
  }
  double last = 0;
  for (int rank = 0; rank < R; ++rank) last = std::max({last, now[rank], returned[rank]});
  return last;
}

/// An array that the members of a group exchange.
struct ExchangedArray {
  HeadAxis axis;
  int64_t width;
  DType dtype;
};
struct Exchanges {
  std::vector<ExchangedArray> to_heads, to_tokens;

  Exchanges(const ClusterShape& s, bool backward) {
    const DType sum = sum_type(s.dtype);
    to_heads = {{HeadAxis::query, s.D, s.dtype}, {HeadAxis::key, s.D, s.dtype}, {HeadAxis::key, s.Dv, s.dtype}};
    const ExchangedArray out = {HeadAxis::query, s.Dv, s.dtype}, lse = {HeadAxis::query, 1, sum};
    if (backward) to_heads.insert(to_heads.end(), {out, out, lse});
    if (backward) to_tokens = {{HeadAxis::query, s.D, sum}, {HeadAxis::key, s.D, sum}, {HeadAxis::key, s.Dv, sum}};
    else to_tokens = {out, lse};
  }
};

/// Bytes of an array, of the rows of a rank and the heads of a member.
double exchanged_bytes(const Whole& whole, const ExchangedArray& array, int rank, const MemberHeads& heads) {
  const Sharding& sharding = whole.sharding();
  const int64_t rows = (array.axis == HeadAxis::query ? sharding.queries : sharding.keys).tokens(rank);
  const TokenRange range = heads.of(array.axis);
  return static_cast<double>(whole.shape().B * (range.end - range.begin) * rows * array.width * size_of(array.dtype));
}

ClusterPlan plan_of_ring(const Whole& whole, Schedule::Keys keys, bool backward, const ClusterCosts& costs) {
  const RingPlan ring(whole, keys, backward);
  ClusterPlan plan;
  for (int rank = 0; rank < ring.ranks(); ++rank) {
    plan.bytes_sent.push_back(std::llround(ring.bytes_sent(rank)));
    double flops = 0;
    for (const double x : ring.flops[rank]) flops += x;
    plan.flops.push_back(flops);
  }
  plan.buffer_bytes = ring.buffer_bytes;
  const double rate = backward ? costs.backward_flops : costs.forward_flops;
  if (rate > 0) plan.seconds = ring.seconds(steps_ahead(keys, ring.ranks()), rate, costs);
  return plan;
}

/// What the members of all groups exchange: bytes that each rank sends and holds, and seconds.
void add_exchanges(ClusterPlan& plan, const Whole& whole, const std::vector<MemberHeads>& heads, bool backward,
                   const ClusterCosts& costs) {
  const Exchanges exchanges(whole.shape(), backward);
  const int members = static_cast<int>(heads.size());
  double most_to_heads = 0, most_to_tokens = 0, most_held = 0;
  for (int rank = 0; rank < whole.ranks(); ++rank) {
    const int own = rank % members;
    double to_heads = 0, to_tokens = 0, held = 0;
    for (int member = 0; member < members; ++member) {
      const int other = rank - own + member;
      for (const ExchangedArray& array : exchanges.to_heads) held += exchanged_bytes(whole, array, other, heads[own]);
      for (const ExchangedArray& array : exchanges.to_tokens) held += exchanged_bytes(whole, array, other, heads[own]);
      if (member == own) continue;
      for (const ExchangedArray& array : exchanges.to_heads)
        to_heads += exchanged_bytes(whole, array, rank, heads[member]);
      for (const ExchangedArray& array : exchanges.to_tokens)
        to_tokens += exchanged_bytes(whole, array, other, heads[own]);
    }
    plan.bytes_sent[rank] += std::llround(to_heads + to_tokens);
    most_to_heads = std::max(most_to_heads, to_heads);
    most_to_tokens = std::max(most_to_tokens, to_tokens);
    most_held = std::max(most_held, held);
  }
  plan.buffer_bytes += std::llround(most_held);
  if (costs.bytes_per_second > 0)
    plan.seconds += (most_to_heads + most_to_tokens) / costs.bytes_per_second + 2 * costs.latency;
}

ClusterPlan plan_by_heads(const Whole& whole, Schedule schedule, int members, bool backward,
                          const ClusterCosts& costs) {
  const ClusterShape& shape = whole.shape();
  const Sharding sharding(whole.sharding().queries.joined(members), whole.sharding().keys.joined(members));
  ClusterPlan plan = {std::vector<int64_t>(whole.ranks()), std::vector<double>(whole.ranks())};
  std::vector<MemberHeads> heads;
  std::map<std::pair<int64_t, int64_t>, ClusterPlan> known;  // by the heads of a piece
  for (int member = 0; member < members; ++member) {
    const MemberHeads& own = heads.emplace_back(shape.H, shape.Hk, member, members);
    double seconds = 0;
    int64_t buffer_bytes = 0;
    for (const HeadPiece& piece : own.pieces()) {
      const PieceOfWhole part(whole, sharding, whole.options(), piece, own);
      const std::pair heads_of_piece(part.whole->shape().H, part.whole->shape().Hk);
      // Blocks may allow other keys for each head.
      if (whole.options().blocks.given() || !known.contains(heads_of_piece))
        known[heads_of_piece] = plan_of_ring(*part.whole, schedule.keys, backward, costs);
      const ClusterPlan& of_piece = known[heads_of_piece];
      for (int group = 0; group < sharding.queries.ranks(); ++group) {
        plan.bytes_sent[group * members + member] += of_piece.bytes_sent[group];
        plan.flops[group * members + member] += of_piece.flops[group];
      }
      seconds += of_piece.seconds;
      buffer_bytes = std::max(buffer_bytes, of_piece.buffer_bytes);
    }
    plan.seconds = std::max(plan.seconds, seconds);
    plan.buffer_bytes = std::max(plan.buffer_bytes, buffer_bytes);
  }
  add_exchanges(plan, whole, heads, backward, costs);
  return plan;
}

}  // namespace

ClusterPlan explain(const Sharding& sharding, const ClusterShape& shape, const AttentionOptions& options, bool backward,
                    Schedule schedule, const ClusterCosts& costs) {
  Checker checker("cluster::explain");
  const Whole whole(checker, sharding, shape, options);
  check_groups(checker, schedule, sharding.queries.ranks());
  checker.done();
  const int members = group_size(schedule, whole.ranks());
  return members == 1 ? plan_of_ring(whole, schedule.keys, backward, costs)
                      : plan_by_heads(whole, schedule, members, backward, costs);
}

Schedule choose(const Sharding& sharding, const ClusterShape& shape, const ClusterCosts& costs,
                const AttentionOptions& options, bool backward) {
  const int R = sharding.queries.ranks();
  std::vector<Schedule> candidates = {Schedule::ring, Schedule::gather};
  for (int group = 2; group <= R && group <= shape.H; ++group)
    if (R % group == 0) candidates.push_back(Schedule::heads(group));
  Schedule best = Schedule::ring;
  double least = 0;
  for (const Schedule& schedule : candidates) {
    const double seconds = explain(sharding, shape, options, backward, schedule, costs).seconds;
    if (schedule == Schedule::ring || seconds < least) best = schedule, least = seconds;
  }
  return best;
}

}  // namespace attn::cluster
