#include "cluster/by_heads.h"

#include "cluster/arrays.h"

namespace attn::cluster {
namespace {

HeadAxis axis_of(const ConstView<4>& pairs) { return pairs.size[1] == 1 ? HeadAxis::shared : HeadAxis::query; }

template <class Pointer>
BasicView<Pointer, 4> with_columns(const BasicView<Pointer, 3>& rows) {
  return {rows.data,
          rows.dtype,
          {rows.size[0], rows.size[1], rows.size[2], 1},
          {rows.stride[0], rows.stride[1], rows.stride[2], 1}};
}

/// [B, H, n] of an array [B, H, n, 1], of some heads.
View<3> rows_of(const Array& x, const TokenRange& heads) {
  const View<4> part = x.view<4>().slice(1, heads.begin, heads.end);
  return {part.data,
          part.dtype,
          {part.size[0], part.size[1], part.size[2]},
          {part.stride[0], part.stride[1], part.stride[2]}};
}
View<4> heads_of(const Array& x, const TokenRange& heads) {
  return x ? x.view<4>().slice(1, heads.begin, heads.end) : View<4>();
}

}  // namespace

CallByHeads::CallByHeads(Communicator& ranks, const Whole& whole, const AttentionOptions& rows, int size,
                         uint32_t agreed)
    : whole_(whole), groups_(ranks, whole, size), options_(whole.options()), one_bias_row_(agreed & kOneBiasRow) {
  options_.mask = own_pairs(rows.mask, agreed & kOneMaskRow, masks_);
  options_.bias = own_pairs(rows.bias, one_bias_row_, biases_);
}

/// The heads of this rank, of pairs with one row; others start to come.
ConstView<4> CallByHeads::own_pairs(const ConstView<4>& pairs, bool one_row, std::optional<ToHeads>& exchange) {
  if (!is_given(pairs)) return {};
  if (!one_row) exchange.emplace(groups_, pairs, axis_of(pairs), groups_.queries());
  const TokenRange heads = groups_.own().of(axis_of(pairs));
  return pairs.slice(1, heads.begin, heads.end);
}

Array CallByHeads::array(HeadAxis axis, DType dtype, int64_t width) const {
  const TokenRange heads = groups_.own().of(axis);
  const GroupRows& rows = axis == HeadAxis::query ? groups_.queries() : groups_.keys();
  return {dtype, {whole_.shape().B, heads.end - heads.begin, rows.rows(), width}, false};
}

Array CallByHeads::bias_gradient(DType dtype) const {
  const Shape<4>& size = options_.bias.size;
  return {dtype, {size[0], size[1], one_bias_row_ ? 1 : groups_.queries().rows(), size[3]}};
}

Array CallByHeads::sink_gradient(DType dtype) const {
  const TokenRange heads = groups_.own().of(HeadAxis::query);
  return {dtype, {1, heads.end - heads.begin, 1, 1}};
}

void CallByHeads::each_piece(const std::function<void(const PieceOfWhole&)>& visit) {
  if (masks_) options_.mask = (mask_ = masks_->finish()).view<4>();
  if (biases_) options_.bias = (bias_ = biases_->finish()).view<4>();
  for (const HeadPiece& piece : groups_.own().pieces())
    visit(PieceOfWhole(whole_, groups_.sharding(), options_, piece, groups_.own()));
}

void forward_by_heads(Communicator& ranks, const Whole& whole, const AttentionOptions& rows,
                      const ForwardArrays& arrays, Schedule schedule, uint32_t agreed) {
  CallByHeads call(ranks, whole, rows, group_size(schedule, ranks.size()), agreed);
  HeadGroups& groups = call.groups();
  ToHeads queries(groups, arrays.q, HeadAxis::query, groups.queries());
  ToHeads keys(groups, arrays.k, HeadAxis::key, groups.keys()), values(groups, arrays.v, HeadAxis::key, groups.keys());
  const Array q = queries.finish(), k = keys.finish(), v = values.finish();
  const Array out = call.array(HeadAxis::query, arrays.out.dtype, whole.shape().Dv),
              lse = call.array(HeadAxis::query, sum_type(q.dtype()), 1);
  call.each_piece([&](const PieceOfWhole& piece) {
    forward_over(groups.between(), *piece.whole, piece.options,
                 {heads_of(q, piece.heads), heads_of(k, piece.kv_heads), heads_of(v, piece.kv_heads),
                  heads_of(out, piece.heads), rows_of(lse, piece.heads)},
                 schedule.keys);
  });
  ToTokens outs(groups, out, HeadAxis::query, whole.shape().H, groups.queries());
  ToTokens lses(groups, lse, HeadAxis::query, whole.shape().H, groups.queries());
  copy(outs.finish().view<4>(), arrays.out);
  const Array sums = lses.finish();
  if (arrays.lse) copy(sums.view<4>(), with_columns(arrays.lse));
}

namespace {

/// The gradients of a call by heads, in the type of sums.
struct HeadGradients {
  Array dq, dk, dv, dbias, dsink;

  HeadGradients(const CallByHeads& call, const ClusterShape& shape, uint32_t agreed) {
    const DType dtype = sum_type(shape.dtype);
    if (agreed & kDq) dq = call.array(HeadAxis::query, dtype, shape.D);
    if (agreed & kDk) dk = call.array(HeadAxis::key, dtype, shape.D);
    if (agreed & kDv) dv = call.array(HeadAxis::key, dtype, shape.Dv);
    if (agreed & kDbias) dbias = call.bias_gradient(dtype);
    if (agreed & kDsink) dsink = call.sink_gradient(dtype);
  }

  /// Of a piece; `shared` is its dbias where all heads have the same bias.
  AttentionGradients of(const PieceOfWhole& piece, const Array& shared) const {
    AttentionGradients to = {heads_of(dq, piece.heads), heads_of(dk, piece.kv_heads), heads_of(dv, piece.kv_heads)};
    to.dbias = shared ? shared.view<4>() : heads_of(dbias, piece.heads);
    const View<4> sinks = heads_of(dsink, piece.heads);
    to.dsink = View<1>(sinks.data, sinks.dtype, {sinks.size[1]});
    return to;
  }
};

}  // namespace

void backward_by_heads(Communicator& ranks, const Whole& whole, const AttentionOptions& rows,
                       const BackwardArrays& arrays, Schedule schedule, uint32_t agreed) {
  CallByHeads call(ranks, whole, rows, group_size(schedule, ranks.size()), agreed);
  HeadGroups& groups = call.groups();
  const GroupRows &of_queries = groups.queries(), &of_keys = groups.keys();
  ToHeads queries(groups, arrays.q, HeadAxis::query, of_queries), keys(groups, arrays.k, HeadAxis::key, of_keys),
      values(groups, arrays.v, HeadAxis::key, of_keys), outs(groups, arrays.out, HeadAxis::query, of_queries),
      douts(groups, arrays.dout, HeadAxis::query, of_queries),
      lses(groups, with_columns(arrays.lse), HeadAxis::query, of_queries);
  std::optional<ToHeads> dlses;
  if (agreed & kDlse) dlses.emplace(groups, with_columns(arrays.dlse), HeadAxis::query, of_queries);
  const Array q = queries.finish(), k = keys.finish(), v = values.finish(), out = outs.finish(), dout = douts.finish(),
              lse = lses.finish(), dlse = dlses ? dlses->finish() : Array();
  const HeadGradients gradients(call, whole.shape(), agreed);
  const bool shares_bias = gradients.dbias && axis_of(rows.bias) == HeadAxis::shared;
  call.each_piece([&](const PieceOfWhole& piece) {
    Array shared;
    if (shares_bias)
      shared = piece.heads.begin == 0 ? gradients.dbias : Array(gradients.dbias.dtype(), gradients.dbias.shape());
    backward_over(groups.between(), *piece.whole, piece.options,
                  {heads_of(q, piece.heads), heads_of(k, piece.kv_heads), heads_of(v, piece.kv_heads),
                   heads_of(out, piece.heads), heads_of(dout, piece.heads), rows_of(lse, piece.heads),
                   dlse ? rows_of(dlse, piece.heads) : View<3>(), gradients.of(piece, shared)},
                  schedule.keys, agreed);
    if (shares_bias && piece.heads.begin > 0) add_arrays(gradients.dbias, shared);
  });
  const GroupRows one_row = GroupRows::of_one_row(groups.members());
  const auto give_back = [&](const Array& x, HeadAxis axis, const GroupRows& of_rows, const View<4>& to,
                             int64_t heads) {
    if (!x) return;
    const Array mine = ToTokens(groups, x, axis, heads, of_rows).finish();
    if (to) store(mine, to);
  };
  const ClusterShape& s = whole.shape();
  give_back(gradients.dq, HeadAxis::query, of_queries, arrays.to.dq, s.H);
  give_back(gradients.dk, HeadAxis::key, of_keys, arrays.to.dk, s.Hk);
  give_back(gradients.dv, HeadAxis::key, of_keys, arrays.to.dv, s.Hk);
  give_back(gradients.dbias, axis_of(rows.bias), agreed & kOneBiasRow ? one_row : of_queries, arrays.to.dbias,
            rows.bias.size[1]);
  const View<1>& dsink = arrays.to.dsink;
  give_back(gradients.dsink, HeadAxis::query, one_row,
            View<4>(dsink.data, dsink.dtype, {1, dsink.size[0], 1, 1}, {0, dsink.stride[0], 0, 0}), s.H);
}

}  // namespace attn::cluster
