// Backward: each rank computes the gradients of its chunks of queries with every chunk of keys. Those of queries add up
// here; those of keys and values go back to the rank that has the keys, and add up there.
//
//   step t: keys of rank r - t come (KeyExchange)      dQ_i += pair(i, j);  dK_j, dV_j over the chunks i of this rank
//           dK_j, dV_j are sent to rank r - t          those of own keys come from rank r + t, which had them in step t
// All sums are trees over the places of the placement: in one order for any number of ranks.
#include <algorithm>

#include "cluster/arrays.h"
#include "cluster/exchange.h"
#include "cluster/query_sums.h"
#include "cluster/sharded.h"

namespace attn::cluster {
namespace {

/// Gradients of a chunk of keys; an array that is not wanted is empty.
struct KeyGradients {
  Array dk, dv;
};

void add_gradients(KeyGradients& left, const KeyGradients& right) {
  if (left.dk) add_arrays(left.dk, right.dk);
  if (left.dv) add_arrays(left.dv, right.dv);
}

Wants wants_of(const AttentionGradients& to, const ConstView<3>& dlse) {
  Wants wants;
  wants.add(kDq, is_given(to.dq));
  wants.add(kDk, is_given(to.dk));
  wants.add(kDv, is_given(to.dv));
  wants.add(kDbias, is_given(to.dbias));
  wants.add(kDsink, is_given(to.dsink));
  wants.add(kDlse, is_given(dlse));
  return wants;
}

class Backward {
 public:
  /// A rank computes dk and dv for others too, if all ranks have agreed to want them.
  Backward(Communicator& ranks, const Whole& whole, const AttentionOptions& rows, const BackwardArrays& in,
           uint32_t agreed)
      : ranks_(ranks),
        whole_(whole),
        rows_(rows),
        in_(in),
        to_(in.to),
        wants_dk_(agreed & kDk),
        wants_dv_(agreed & kDv),
        queries_(whole.sharding().queries, ranks.rank()),
        keys_(whole.sharding().keys, ranks.rank()),
        dtype_(sum_type(whole.shape().dtype)),
        dq_(queries_.end() - queries_.first(), FixedTree<Array>(whole.sharding().keys.chunks())),
        dkv_(keys_.end() - keys_.first(), FixedTree<KeyGradients>(whole.sharding().queries.chunks())),
        dbias_(whole, queries_, to_.dbias, agreed & kOneBiasRow, dtype_, ranks.rank()) {}

  /// All pairs with the keys of one step.
  void add(KeyExchange& exchange, int step) {
    const int source = exchange.source(step);
    const Placement& keys = whole_.sharding().keys;
    Return back;
    for (int64_t j = keys.first_place(source); j < keys.first_place(source + 1); ++j) {
      FixedTree<KeyGradients> tree(whole_.sharding().queries.chunks());
      for (int64_t i = queries_.first(); i < queries_.end(); ++i) {
        const bool visible = whole_.visible(i, j);
        Pair pair = visible ? compute(i, j, exchange.keys(j)) : Pair();
        if (visible) exchange.progress();
        dq_[i - queries_.first()].add({0, j}, std::move(pair.dq), add_arrays);
        dbias_.add(i, j, std::move(pair.dbias));
        tree.add({0, i}, std::move(pair.keys), add_gradients);
      }
      dbias_.end_keys(j);
      if (step == 0) add_nodes(j, tree.waiting());
      else if (wants_keys()) back.keep_sent(source, tree.waiting());
    }
    if (step > 0 && wants_keys()) give_back(std::move(back), step);
  }

  void write() {
    wait_for_return();
    for (int64_t i = queries_.first(); to_.dq && i < queries_.end(); ++i)
      store(dq_[i - queries_.first()].take_root().value_or(Array()),
            part(to_.dq, queries_, whole_.sharding().queries, i));
    for (int64_t j = keys_.first(); j < keys_.end(); ++j) {
      const KeyGradients sum = dkv_[j - keys_.first()].take_root().value_or(KeyGradients());
      if (to_.dk) store(sum.dk, part(to_.dk, keys_, whole_.sharding().keys, j));
      if (to_.dv) store(sum.dv, part(to_.dv, keys_, whole_.sharding().keys, j));
    }
    dbias_.write(ranks_);
    if (to_.dsink) write_dsink();
  }

 private:
  struct Pair {
    std::optional<Array> dq, dbias;
    std::optional<KeyGradients> keys;
  };

  /// Gradients of keys on their way: those that this rank has computed for another, and those that it receives.
  struct Return {
    struct Node {
      int64_t key_place;
      TreeNode node;
      std::optional<KeyGradients> value;
    };
    std::vector<KeyGradients> kept;  // until they have been sent
    std::vector<Message> sent, received;
    std::vector<Node> nodes;
    std::unique_ptr<Transfer> transfer;

    static void list(int rank, const KeyGradients& value, std::vector<Message>& messages) {
      for (const Array* array : {&value.dk, &value.dv})
        if (*array) messages.push_back({rank, array->data(), array->count() * size_of(array->dtype())});
    }
    void keep_sent(int rank, FixedTree<KeyGradients>::Nodes& nodes_of_key) {
      for (auto& [place, value] : nodes_of_key) {
        if (!value) continue;
        list(rank, *value, sent);
        kept.push_back(std::move(*value));
      }
    }
  };

  bool wants_keys() const { return wants_dk_ || wants_dv_; }

  template <class Pointer, int Rank>
  static BasicView<Pointer, Rank> part(const BasicView<Pointer, Rank>& view, const RankChunks& chunks,
                                       const Placement& placement, int64_t place) {
    const TokenRange range = placement.chunk(place);
    return view ? view.slice(2, chunks.offset(place), chunks.offset(place) + range.end - range.begin) : view;
  }
  template <class View>
  View rows(const View& view, int64_t i) const {
    return part(view, queries_, whole_.sharding().queries, i);
  }

  KeyGradients new_key_gradients(int64_t j) const {
    const ClusterShape& s = whole_.shape();
    const TokenRange range = whole_.sharding().keys.chunk(j);
    const int64_t n = range.end - range.begin;
    KeyGradients gradients;
    if (wants_dk_) gradients.dk = Array(dtype_, {s.B, s.Hk, n, s.D}, false);
    if (wants_dv_) gradients.dv = Array(dtype_, {s.B, s.Hk, n, s.Dv}, false);
    return gradients;
  }

  Pair compute(int64_t i, int64_t j, const ChunkKeys& keys) {
    const AttentionOptions options = pair_options(whole_, rows_, i, queries_.offset(i), j);
    const ConstView<4> q = rows(in_.q, i);
    Pair pair;
    AttentionGradients to;
    if (to_.dq) {
      pair.dq = Array(dtype_, {q.size[0], q.size[1], q.size[2], q.size[3]}, false);
      to.dq = pair.dq->view<4>();
    }
    pair.keys = new_key_gradients(j);
    if (wants_dk_) to.dk = pair.keys->dk.view<4>();
    if (wants_dv_) to.dv = pair.keys->dv.view<4>();
    to.dbias = dbias_.target(i, j, options.bias, pair.dbias);
    attn::attention_backward(q, keys.k, keys.v, rows(in_.out, i), rows(in_.lse, i), rows(in_.dout, i), to, options,
                             rows(in_.dlse, i));
    return pair;
  }

  void add_nodes(int64_t j, FixedTree<KeyGradients>::Nodes& nodes) {
    for (auto& [place, value] : nodes) dkv_[j - keys_.first()].add(place, std::move(value), add_gradients);
  }

  /// Sends what this step has computed, and receives what the rank that had the own keys in this step has.
  void give_back(Return back, int step) {
    const int from = (ranks_.rank() + step) % ranks_.size();
    const Placement& queries = whole_.sharding().queries;
    for (int64_t j = keys_.first(); j < keys_.end(); ++j) {
      for (const RankNode& node : nodes_of_rank(queries, from, [&](int64_t i) { return whole_.visible(i, j); })) {
        back.nodes.push_back({j, node.node, std::nullopt});
        if (!node.has_value) continue;
        back.nodes.back().value = new_key_gradients(j);
        Return::list(from, *back.nodes.back().value, back.received);
      }
    }
    back.transfer = start(ranks_, back.sent, back.received, kGradients);
    wait_for_return();
    return_ = std::move(back);
  }

  void wait_for_return() {
    if (return_.transfer) return_.transfer->wait();
    for (Return::Node& node : return_.nodes)
      dkv_[node.key_place - keys_.first()].add(node.node, std::move(node.value), add_gradients);
    return_ = {};
  }

  /// Without keys, delta and lse say it all.
  void write_dsink() {
    const ClusterShape& s = whole_.shape();
    AttentionOptions options;
    options.sink = rows_.sink;
    QuerySums sums(whole_.sharding().queries, {s.H}, dtype_);
    for (int64_t i = queries_.first(); i < queries_.end(); ++i) {
      Array dsink(dtype_, {s.H});
      const ConstView<4> k(nullptr, s.dtype, {s.B, s.Hk, 0, s.D}), v(nullptr, s.dtype, {s.B, s.Hk, 0, s.Dv});
      attn::attention_backward(rows(in_.q, i), k, v, rows(in_.out, i), rows(in_.lse, i), rows(in_.dout, i),
                               {.dsink = dsink.view<1>()}, options, rows(in_.dlse, i));
      sums.add(i, dsink);
    }
    const View<1>& to = to_.dsink;
    store(sums.of_all(ranks_), View<4>(to.data, to.dtype, {1, 1, 1, to.size[0]}, {0, 0, 0, to.stride[0]}));
  }

  Communicator& ranks_;
  const Whole& whole_;
  const AttentionOptions& rows_;
  const BackwardArrays in_;
  const AttentionGradients to_;
  const bool wants_dk_, wants_dv_;  // somewhere
  const RankChunks queries_, keys_;
  const DType dtype_;
  std::vector<FixedTree<Array>> dq_;
  std::vector<FixedTree<KeyGradients>> dkv_;
  BiasGradient dbias_;
  Return return_;
};

}  // namespace

void backward_over(Communicator& ranks, const Whole& whole, const AttentionOptions& rows, const BackwardArrays& arrays,
                   Schedule::Keys keys, uint32_t agreed) {
  KeyExchange exchange(ranks, whole, arrays.k, arrays.v, steps_ahead(keys, ranks.size()));
  Backward backward(ranks, whole, rows, arrays, agreed);
  for (int step = 0; step < ranks.size(); ++step) {
    exchange.enter(step);
    backward.add(exchange, step);
  }
  backward.write();
}

void attention_backward(Communicator& ranks, const Sharding& sharding, ConstView<4> q, ConstView<4> k, ConstView<4> v,
                        ConstView<4> out, ConstView<3> lse, ConstView<4> dout, const AttentionGradients& gradients,
                        const AttentionOptions& options, ConstView<3> dlse, Schedule schedule) {
  ShardedCall call("cluster::attention_backward", ranks, sharding, q, k, v, options);
  call.check_backward(out, lse, dout, gradients, dlse);
  const uint32_t agreed = call.agreed(schedule, wants_of(gradients, dlse));
  const BackwardArrays arrays = {q, k, v, out, dout, lse, dlse, gradients};
  if (group_size(schedule, ranks.size()) > 1) backward_by_heads(ranks, call.whole(), options, arrays, schedule, agreed);
  else backward_over(ranks, call.whole(), options, arrays, schedule.keys, agreed);
}

}  // namespace attn::cluster
