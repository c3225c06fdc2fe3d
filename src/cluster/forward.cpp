// Forward: the state of each chunk of queries over each chunk of keys, merged in the order of the placement.
#include <limits>

#include "cluster/arrays.h"
#include "cluster/exchange.h"
#include "cluster/sharded.h"

namespace attn::cluster {
namespace {

struct State {
  Array out;  // [B, H, n, Dv], float32 or float64
  Array lse;  // [B, H, n]
};

void merge_states(State& left, const State& right) {
  attn::merge(left.out.view<4>(), left.lse.view<3>(), right.out.view<4>(), right.lse.view<3>());
}

class Forward {
 public:
  Forward(Communicator& ranks, const Whole& whole, const AttentionOptions& rows, const ConstView<4>& q)
      : whole_(whole),
        rows_(rows),
        q_(q),
        own_(whole.sharding().queries, ranks.rank()),
        states_(own_.end() - own_.first(), FixedTree<State>(whole.sharding().keys.chunks())) {}

  /// The states over the keys of one step.
  void add(KeyExchange& exchange, int64_t first_place, int64_t end_place) {
    for (int64_t i = own_.first(); i < own_.end(); ++i) {
      for (int64_t j = first_place; j < end_place; ++j) {
        std::optional<State> state;
        if (whole_.visible(i, j)) {
          state = pair(i, j, exchange.keys(j));
          exchange.progress();
        }
        states_[i - own_.first()].add({0, j}, std::move(state), merge_states);
      }
    }
  }

  void write(const View<4>& out, const View<3>& lse) {
    for (int64_t i = own_.first(); i < own_.end(); ++i) {
      const TokenRange range = whole_.sharding().queries.chunk(i);
      const int64_t begin = own_.offset(i), end = begin + range.end - range.begin;
      std::optional<State> state = states_[i - own_.first()].take_root();
      if (!state) state = empty(range);
      if (!rows_.sink.empty()) merge_states(*state, sinks(range));
      store(state->out, out.slice(2, begin, end));
      if (lse) store(state->lse, lse.slice(2, begin, end));
    }
  }

 private:
  State new_state(const TokenRange& range, bool zero) const {
    const ClusterShape& s = whole_.shape();
    const DType dtype = sum_type(s.dtype);
    const int64_t n = range.end - range.begin;
    return {Array(dtype, {s.B, s.H, n, s.Dv}, zero), Array(dtype, {s.B, s.H, n}, zero)};
  }

  State pair(int64_t i, int64_t j, const ChunkKeys& keys) const {
    const TokenRange range = whole_.sharding().queries.chunk(i);
    const State state = new_state(range, false);
    attn::attention(q_.slice(2, own_.offset(i), own_.offset(i) + range.end - range.begin), keys.k, keys.v,
                    state.out.view<4>(), state.lse.view<3>(), pair_options(whole_, rows_, i, own_.offset(i), j));
    return state;
  }

  State empty(const TokenRange& range) const {
    const State state = new_state(range, true);
    fill_lse(state, [](int64_t) { return -std::numeric_limits<double>::infinity(); });
    return state;
  }

  /// A sink is a key without a value.
  State sinks(const TokenRange& range) const {
    const State state = new_state(range, true);
    const int64_t n = range.end - range.begin, H = whole_.shape().H;
    fill_lse(state, [&](int64_t row) { return rows_.sink[row / n % H]; });
    return state;
  }

  template <class Value>
  static void fill_lse(const State& state, const Value& value) {
    for (int64_t row = 0; row < state.lse.count(); ++row)
      if (state.lse.dtype() == DType::float64) state.lse.data<double>()[row] = value(row);
      else state.lse.data<float>()[row] = static_cast<float>(value(row));
  }

  const Whole& whole_;
  const AttentionOptions& rows_;
  const ConstView<4> q_;
  const RankChunks own_;
  std::vector<FixedTree<State>> states_;
};

}  // namespace

void forward_over(Communicator& ranks, const Whole& whole, const AttentionOptions& rows, const ForwardArrays& arrays,
                  Schedule::Keys keys) {
  const Placement& placement = whole.sharding().keys;
  KeyExchange exchange(ranks, whole, arrays.k, arrays.v, steps_ahead(keys, ranks.size()));
  Forward forward(ranks, whole, rows, arrays.q);
  for (int step = 0; step < ranks.size(); ++step) {
    exchange.enter(step);
    const int source = exchange.source(step);
    forward.add(exchange, placement.first_place(source), placement.first_place(source + 1));
  }
  forward.write(arrays.out, arrays.lse);
}

void attention(Communicator& ranks, const Sharding& sharding, ConstView<4> q, ConstView<4> k, ConstView<4> v,
               View<4> out, View<3> lse, const AttentionOptions& options, Schedule schedule) {
  ShardedCall call("cluster::attention", ranks, sharding, q, k, v, options);
  call.check_forward(out, lse);
  Wants wants;
  wants.add(kRounded, out.dtype == q.dtype);
  const uint32_t agreed = call.agreed(schedule, wants);
  const ForwardArrays arrays = {q, k, v, out, lse};
  if (group_size(schedule, ranks.size()) > 1) forward_by_heads(ranks, call.whole(), options, arrays, schedule, agreed);
  else forward_over(ranks, call.whole(), options, arrays, schedule.keys);
}

}  // namespace attn::cluster
