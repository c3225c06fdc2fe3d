#include "cluster/sharded.h"

#include "core/overlap.h"

namespace attn::cluster {
namespace {

void check_tokens(Checker& checker, const char* name, const ConstView<4>& view, const Placement& placement, int rank) {
  checker.require(view.size[2] == placement.tokens(rank), [&] {
    return std::string(name) + " has " + std::to_string(view.size[2]) + " tokens, must have the " +
           std::to_string(placement.tokens(rank)) + " of its rank, of " + std::to_string(placement.tokens());
  });
}

}  // namespace

ShardedCall::ShardedCall(const char* operation, Communicator& ranks, const Sharding& sharding, const ConstView<4>& q,
                         const ConstView<4>& k, const ConstView<4>& v, const AttentionOptions& options)
    : operation_(operation), ranks_(ranks), options_(options), checker_(operation) {
  of_rows_.mask = options.mask;
  of_rows_.bias = options.bias;
  of_rows_.sink = options.sink;
  static const AttentionOptions kNone;
  own_ = detail::make_problem(checker_, q, k, v, kNone);
  const ClusterShape shape = {own_.B, own_.H, own_.Hk, own_.D, own_.Dv, q.dtype};
  whole_ = std::make_unique<Whole>(checker_, sharding, shape, options);
  const auto match = [&](const Placement& placement) {
    return checker_.require(placement.ranks() == ranks.size(), [&] {
      return "the sharding is for " + std::to_string(placement.ranks()) + " ranks, must be for the " +
             std::to_string(ranks.size()) + " of the communicator";
    });
  };
  if (!match(sharding.queries) || !match(sharding.keys)) return;
  check_tokens(checker_, "q", q, sharding.queries, ranks.rank());
  check_tokens(checker_, "k", k, sharding.keys, ranks.rank());
  AttentionOptions masks;
  masks.mask = options.mask;
  masks.bias = options.bias;
  detail::Problem rows = own_;  // against the keys of the whole
  rows.Lk = sharding.keys.tokens();
  detail::resolve_options(checker_, rows, masks);
}

void ShardedCall::check_forward(const View<4>& out, const View<3>& lse) {
  using detail::region;
  detail::check_tensor(checker_, "out", out, {own_.B, own_.H, own_.Lq, own_.Dv});
  checker_.require(out.data || out.empty(), "out must have data");
  if (lse) detail::check_row_values(checker_, "lse", lse, own_);
  if (checker_.ok())
    detail::check_overlap(checker_, {region("out", out), region("lse", lse)},
                          {region("q", own_.q), region("k", own_.k), region("v", own_.v), region("mask", options_.mask),
                           region("bias", options_.bias)});
}

void ShardedCall::check_backward(const ConstView<4>& out, const ConstView<3>& lse, const ConstView<4>& dout,
                                 const AttentionGradients& gradients, const ConstView<3>& dlse) {
  using detail::region;
  const Shape<4> rows = {own_.B, own_.H, own_.Lq, own_.Dv};
  detail::check_tensor(checker_, "out", out, rows);
  detail::check_tensor(checker_, "dout", dout, rows);
  checker_.require(out.dtype == own_.q.dtype && dout.dtype == own_.q.dtype, "out and dout must have q's type");
  detail::check_row_values(checker_, "lse", lse, own_);
  checker_.require((out.data && dout.data && lse.data) || dout.empty(), "out, lse and dout must have data");
  if (dlse) detail::check_row_values(checker_, "dlse", dlse, own_);
  own_.options = &of_rows_;  // dbias and dsink are those of the rank's bias and sink
  detail::check_gradients(checker_, own_, gradients);
  if (checker_.ok())
    detail::check_overlap(
        checker_,
        {region("dq", gradients.dq), region("dk", gradients.dk), region("dv", gradients.dv),
         region("dbias", gradients.dbias), region("dsink", gradients.dsink)},
        {region("q", own_.q), region("k", own_.k), region("v", own_.v), region("out", out), region("lse", lse),
         region("dout", dout), region("dlse", dlse), region("mask", options_.mask), region("bias", options_.bias)});
}

uint32_t ShardedCall::agreed(Schedule schedule, Wants wants) {
  check_groups(checker_, schedule, ranks_.size());
  // A rank with one query cannot tell whether its row is that of all.
  const bool by_heads = group_size(schedule, ranks_.size()) > 1, knows = own_.Lq != 1;
  if (by_heads) wants.add(kOneMaskRow, options_.mask.size[2] == 1, knows && is_given(options_.mask));
  wants.add(kOneBiasRow, options_.bias.size[2] == 1,
            knows && is_given(options_.bias) && (by_heads || wants.bits & kDbias));
  return agree(ranks_, operation_, reasons_of([&] { checker_.done(); }), *whole_, of_rows_, schedule, wants);
}

}  // namespace attn::cluster
