"""The operator in plain torch operations with n x n memory, for second derivatives, forward mode and tests."""

from __future__ import annotations

import math
from typing import Callable, Sequence

import torch
from torch import Tensor

from .._operator import dropout_keeps
from .options import Options


def _places(count, first, starts):
    """Returns for each of `count` packed rows from `first` on its sequence, its position there, and whether it is in a
    sequence."""
    starts = starts.long()
    row = torch.arange(first, first + count)
    sequence = torch.bucketize(row, starts, right=True) - 1
    inside = (sequence >= 0) & (sequence < len(starts) - 1)
    sequence = sequence.clamp(0, len(starts) - 2)
    return sequence, row - starts[sequence], inside


def _listed(offsets: Tensor, indices: Tensor, key_blocks: int) -> Tensor:
    """Returns the lists of key blocks as a boolean layout, [B|1, H|1, query blocks, key blocks]."""
    entry = torch.arange(len(indices))
    has_entry = (offsets[..., :-1, None] <= entry) & (entry < offsets[..., 1:, None])
    return (has_entry.unsqueeze(-1) & (indices[:, None] == torch.arange(key_blocks))).any(-2)


def _allowed(q: Tensor, k: Tensor, given: Options) -> tuple[Tensor, Tensor]:
    """Returns the allowed pairs, boolean [B|1, H|1, Lq, Lk], and the distance p_i - j for ALiBi."""
    B, _, Lq, _ = q.shape
    Lk = k.shape[2]
    _, _, first_query, first_key, queries, keys = given.shard
    row, column = torch.arange(first_query, first_query + Lq), torch.arange(first_key, first_key + Lk)
    if given.cu_seqlens_q is None:
        i, j = row.view(1, 1, Lq, 1), column.view(1, 1, 1, Lk)
        counts, lengths = torch.full((B,), queries or first_query + Lq), torch.full((B,), keys or first_key + Lk)
        allowed = torch.ones(1, 1, Lq, Lk, dtype=torch.bool)
        of_rows = of_keys = torch.arange(B).view(B, 1, 1, 1)
    else:
        sequence, place, inside = _places(Lq, first_query, given.cu_seqlens_q)
        key_sequence, key_place, key_inside = _places(Lk, first_key, given.cu_seqlens_k)
        of_rows, i = sequence.view(1, 1, Lq, 1), place.view(1, 1, Lq, 1)
        of_keys, j = key_sequence.view(1, 1, 1, Lk), key_place.view(1, 1, 1, Lk)
        counts, lengths = given.cu_seqlens_q.long().diff(), given.cu_seqlens_k.long().diff()
        allowed = (of_rows == of_keys) & inside.view(1, 1, Lq, 1) & key_inside.view(1, 1, 1, Lk)
    if given.key_length is not None:
        lengths = torch.minimum(lengths, given.key_length.long())
        allowed = allowed & (j < lengths[of_keys])
    p = i
    if given.alignment == "bottom_right":
        p = i + (lengths - (counts if given.query_length is None else given.query_length.long()))[of_rows]
    elif given.alignment == "offset":
        p = i + given.offset.long()[of_rows]
    if given.causal:
        allowed = allowed & (j <= p)
    left, right = given.window
    if left >= 0:
        allowed = allowed & (j >= p - left)
    if right >= 0:
        allowed = allowed & (j <= p + right)
    if given.query_segment_ids is not None:
        allowed = allowed & (given.query_segment_ids[:, None, :, None] == given.key_segment_ids[:, None, None, :])
    if given.blocks is not None:
        *blocks, query_block, key_block = given.blocks
        rows, columns = row // query_block, column // key_block
        listed = blocks[0] if len(blocks) == 1 else _listed(*blocks, int(columns[-1]) + 1 if Lk else 0)
        allowed = allowed & listed[:, :, rows[:, None], columns]
    return (allowed if given.mask is None else allowed & given.mask), p - j


def composite(q: Tensor, k: Tensor, v: Tensor, given: Options) -> tuple[Tensor, Tensor]:
    """Computes (out, lse), differentiable any number of times."""
    B, H, Lq, D = q.shape
    Lk = k.shape[2]
    work = torch.float64 if q.dtype == torch.float64 else torch.float32
    group = H // max(k.shape[1], 1)
    keys, values = k.to(work).repeat_interleave(group, 1), v.to(work).repeat_interleave(group, 1)
    s = q.to(work) @ keys.transpose(-1, -2) * (1 / math.sqrt(D) if given.scale is None else given.scale)
    if given.softcap > 0:
        s = given.softcap * torch.tanh(s / given.softcap)
    allowed, distance = _allowed(q, k, given)
    if given.bias is not None:
        s = s + given.bias.to(work)
    if given.alibi_slopes is not None:
        s = s - given.alibi_slopes.to(work).view(1, H, 1, 1) * distance.abs()
    s = s.masked_fill(~allowed, -math.inf)
    last = s.new_full((H,), -math.inf) if given.sink is None else given.sink.to(work)
    s = torch.cat([s, last.view(1, H, 1, 1).expand(B, H, Lq, 1)], -1)
    highest = s.detach().amax(-1, keepdim=True)
    highest = highest.masked_fill(highest == -math.inf, 0)
    e = torch.exp(s - highest)
    total = e.sum(-1, keepdim=True)
    sees_none = total == 0
    total = total.masked_fill(sees_none, 1)
    p = (e / total)[..., :Lk]
    if given.dropout > 0:
        batch, head, query, key, *_ = given.shard
        keep = dropout_keeps(given.seed.item(), given.dropout, (batch + B, head + H, Lq, Lk), query, key)
        p = p * torch.from_numpy(keep[batch:, head:]) / (1 - given.dropout)
    lse = (highest + total.log()).masked_fill(sees_none, -math.inf)
    return (p @ values).to(q.dtype), lse.squeeze(-1)


# ---------------------------------------------------------------------------------------------------------- derivatives

def _of_given(function: Callable, sources: Sequence[Tensor | None]) -> tuple[Callable, list[Tensor]]:
    """Returns `function` as one of the sources that are not None, and these sources."""
    def of_given(*tensors):
        tensors = iter(tensors)
        return function(*(None if source is None else next(tensors) for source in sources))

    return of_given, [source for source in sources if source is not None]


def cotangents_of(function: Callable, sources: Sequence[Tensor | None], cotangents: Sequence[Tensor | None]) -> list:
    """Computes the vector-Jacobian product: the gradient of each source, None for a source that is None."""
    with torch.autocast("cpu", enabled=False):
        of_given, given = _of_given(function, sources)
        outputs, pull = torch.func.vjp(of_given, *given)
        results = iter(pull(tuple(torch.zeros_like(output) if cotangent is None else cotangent
                                  for output, cotangent in zip(outputs, cotangents))))
    return [None if source is None else next(results) for source in sources]


def tangents_of(function: Callable, sources: Sequence[Tensor | None], tangents: Sequence[Tensor | None]) -> tuple:
    """Computes the Jacobian-vector product as the transpose of the transpose, which works inside forward mode too."""
    with torch.autocast("cpu", enabled=False):
        of_given, given = _of_given(function, sources)
        outputs, pull = torch.func.vjp(of_given, *given)
        _, push = torch.func.vjp(lambda *cotangents: pull(cotangents), *(torch.zeros_like(x) for x in outputs))
        return push(tuple(torch.zeros_like(source) if tangent is None else tangent
                          for source, tangent in zip(sources, tangents) if source is not None))


def gradient(dout, dlse, q, k, v, options: Options, wanted: Sequence[bool]) -> tuple[Tensor, ...]:
    """Computes (dq, dk, dv, dbias, dsink) of composite(). A gradient that is not wanted is empty."""
    sources = (q, k, v, options.bias, options.sink)

    def run(*tensors):
        q, k, v, bias, sink = (source if tensor is None else tensor for source, tensor in zip(sources, tensors))
        return composite(q, k, v, options.having(bias=bias, sink=sink))

    of_wanted, chosen = _of_given(run, [source if is_wanted else None for source, is_wanted in zip(sources, wanted)])
    (_, lse), pull = torch.func.vjp(of_wanted, *chosen)
    results = iter(pull((dout, torch.zeros_like(lse) if dlse is None else dlse)))
    return tuple(next(results) if is_wanted else q.new_empty(0) for is_wanted in wanted)
