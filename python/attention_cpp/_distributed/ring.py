"""ring-flash-attention's functions over attention over ranks: the same signatures, layouts and placements."""

from __future__ import annotations

from typing import Any, Callable, Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from .. import _core
from .._core import Error
from .._flash.arguments import check
from .._flash.functions import one_row, options_of, raise_as, slope_axes
from .._flash.pages import lengths_of
from .._torch.options import Options
from .ranks import GroupRanks, Placement, over_ranks
from .stripes import from_stripes, to_stripes

_CHUNK = 1024
_Part = tuple[int, int]


def _contiguous(begin: int, tokens: int, rank: int, size: int) -> list[_Part]:
    """The tokens of a rank, of a sequence that begins at `begin` and has `tokens` of them on every rank."""
    return [(begin + rank * tokens, begin + (rank + 1) * tokens)]


def _zigzag(begin: int, tokens: int, rank: int, size: int) -> list[_Part]:
    half = tokens // 2
    return [(begin + part * half, begin + (part + 1) * half) for part in (rank, 2 * size - 1 - rank)]


_PLACES: dict[str, Callable[[int, int, int, int], list[_Part]]] = {"ring": _contiguous, "zigzag": _zigzag}


def placement_of(kind: str, lengths: Sequence[int], size: int) -> Placement:
    """Sequences one after the other, lengths[n] tokens of the n-th on each rank."""
    starts = [0]
    for length in lengths:
        starts.append(starts[-1] + length * size)
    place = _PLACES[kind]
    return Placement.of_ranges([[part for start, length in zip(starts, lengths)
                                 for part in place(start, length, rank, size)] for rank in range(size)], _CHUNK)


def _attend(function: str, ranks: GroupRanks, placement: Placement, q: Tensor, k: Tensor, v: Tensor, options: Options,
            return_attn_probs: bool) -> Any:
    """(batch, tokens, heads, headdim) -> out of this layout, and softmax_lse (batch, heads, tokens)."""
    try:
        out, lse = over_ranks(ranks, placement, placement, q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2),
                              options)
    except (Error, TypeError) as error:
        raise_as(function, error)
    out = out.transpose(1, 2).contiguous()
    return (out, lse, None) if return_attn_probs else out


def one_slope_each(function: str, alibi_slopes: Tensor | None) -> Tensor | None:
    slopes = one_row(alibi_slopes)
    if slopes is not None and slopes.dim() != 1:
        raise Error(f"[{function}] alibi_slopes has a row for each sequence, must be the same for all: (nheads,)")
    return slopes


def _even(function: str, what: str, tokens: int, kind: str) -> None:
    if kind == "zigzag" and tokens % 2:
        raise Error(f"[{function}] {what} has {tokens} tokens on a rank, must have an even number: two parts of the "
                    "whole")


def dense(function: str, kind: str, q: Tensor, k: Tensor, v: Tensor, dropout_p: float, softmax_scale: float | None,
          causal: bool, window_size: tuple[int, int], alibi_slopes: Tensor | None, return_attn_probs: bool,
          group: dist.ProcessGroup | None) -> Any:
    ranks = GroupRanks.of(group)
    with ranks.refusing():
        check(function, q=(q, "batch seqlen nheads headdim"), k=(k, "batch seqlen nheads_k headdim"),
              v=(v, "batch seqlen nheads_k headdim_v"), alibi_slopes=(alibi_slopes, slope_axes(alibi_slopes)))
        _even(function, "q", q.shape[1], kind)
        options = options_of(function, dropout_p, softmax_scale, causal, window_size, 0.0).having(
            alibi_slopes=one_slope_each(function, alibi_slopes))
    if kind == "stripe":
        return _attend_stripes(function, ranks, q, k, v, options, return_attn_probs, group)
    return _attend(function, ranks, placement_of(kind, [q.shape[1]], ranks.size), q, k, v, options, return_attn_probs)


def _attend_stripes(function: str, ranks: GroupRanks, q: Tensor, k: Tensor, v: Tensor, options: Options,
                    return_attn_probs: bool, group: dist.ProcessGroup | None) -> Any:
    _core.cluster_synchronize(ranks, f"{function} of {[(x.dtype, tuple(x.shape)) for x in (q, k, v)]}")
    placement = Placement("zigzag", q.shape[1] * ranks.size)
    q, k, v = (from_stripes(group, placement, x) for x in (q, k, v))
    out, lse, _ = _attend(function, ranks, placement, q, k, v, options, True)
    out = to_stripes(group, placement, out)
    if not return_attn_probs:
        return out
    return out, to_stripes(group, placement, lse.transpose(1, 2)).transpose(1, 2), None


def varlen(function: str, kind: str, q: Tensor, k: Tensor, v: Tensor, cu_seqlens: Tensor, dropout_p: float,
           softmax_scale: float | None, causal: bool, window_size: tuple[int, int], alibi_slopes: Tensor | None,
           return_attn_probs: bool, group: dist.ProcessGroup | None) -> Any:
    ranks = GroupRanks.of(group)
    with ranks.refusing():
        check(function, q=(q, "total nheads headdim"), k=(k, "total nheads_k headdim"),
              v=(v, "total nheads_k headdim_v"), cu_seqlens=(cu_seqlens, "int32: batch+1"),
              alibi_slopes=(alibi_slopes, slope_axes(alibi_slopes)))
        lengths = lengths_of(function, "cu_seqlens", cu_seqlens, len(q)).tolist()
        for n, length in enumerate(lengths):
            _even(function, f"sequence {n}", length, kind)
        starts = cu_seqlens.to(torch.int64) * ranks.size
        options = options_of(function, dropout_p, softmax_scale, causal, window_size, 0.0).having(
            alibi_slopes=one_slope_each(function, alibi_slopes), cu_seqlens_q=starts, cu_seqlens_k=starts)
    return attend_packed(function, ranks, placement_of(kind, lengths, ranks.size), q, k, v, options, return_attn_probs)


def attend_packed(function: str, ranks: GroupRanks, placement: Placement, q: Tensor, k: Tensor, v: Tensor,
                  options: Options, return_attn_probs: bool) -> Any:
    """(tokens, heads, headdim) -> out of this layout, and softmax_lse (heads, tokens)."""
    out, lse, _ = _attend(function, ranks, placement, q.unsqueeze(0), k.unsqueeze(0), v.unsqueeze(0), options, True)
    out, lse = out.squeeze(0), lse.squeeze(0)
    return (out, lse, None) if return_attn_probs else out


# ------------------------------------------------------------------------------------------------- the public functions

def ring_flash_attn_func(q: Tensor, k: Tensor, v: Tensor, dropout_p: float = 0.0, softmax_scale: float | None = None,
                         causal: bool = False, window_size: tuple[int, int] = (-1, -1),
                         alibi_slopes: Tensor | None = None, deterministic: bool = False,
                         return_attn_probs: bool = False, group: dist.ProcessGroup | None = None) -> Any:
    """Attention over a sequence of which each rank has consecutive tokens.

    q (batch, seqlen, nheads, headdim), k and v (batch, seqlen, nheads_k, headdim): the tokens of this rank, as many on
    every rank. Other arguments as in attention_cpp.flash_attn. Returns out, with gradients.
    """
    return dense("ring_flash_attn_func", "ring", q, k, v, dropout_p, softmax_scale, causal, window_size,
                 alibi_slopes, return_attn_probs, group)


def zigzag_ring_flash_attn_func(q: Tensor, k: Tensor, v: Tensor, dropout_p: float = 0.0,
                                softmax_scale: float | None = None, causal: bool = False,
                                window_size: tuple[int, int] = (-1, -1), alibi_slopes: Tensor | None = None,
                                deterministic: bool = False, return_attn_probs: bool = False,
                                group: dist.ProcessGroup | None = None) -> Any:
    """ring_flash_attn_func() where rank r of R has the parts r and 2 R - 1 - r of 2 R: equal work if causal."""
    return dense("zigzag_ring_flash_attn_func", "zigzag", q, k, v, dropout_p, softmax_scale, causal, window_size,
                 alibi_slopes, return_attn_probs, group)


def stripe_flash_attn_func(q: Tensor, k: Tensor, v: Tensor, dropout_p: float = 0.0, softmax_scale: float | None = None,
                           causal: bool = False, window_size: tuple[int, int] = (-1, -1),
                           alibi_slopes: Tensor | None = None, deterministic: bool = False,
                           return_attn_probs: bool = False, group: dist.ProcessGroup | None = None) -> Any:
    """ring_flash_attn_func() where rank r of R has the tokens r, r + R, r + 2 R and so on.

    The tokens move to another placement and the results back, which sends about as much again as attention without
    groups of heads does. zigzag_ring_flash_attn_func() has the same work on each rank without that.
    """
    return dense("stripe_flash_attn_func", "stripe", q, k, v, dropout_p, softmax_scale, causal, window_size,
                 alibi_slopes, return_attn_probs, group)


def ring_flash_attn_varlen_func(q: Tensor, k: Tensor, v: Tensor, cu_seqlens: Tensor, max_seqlen: int,
                                dropout_p: float = 0.0, softmax_scale: float | None = None, causal: bool = False,
                                window_size: tuple[int, int] = (-1, -1), alibi_slopes: Tensor | None = None,
                                deterministic: bool = False, return_attn_probs: bool = False,
                                group: dist.ProcessGroup | None = None) -> Any:
    """Packed sequences, of each of which every rank has as many consecutive tokens.

    q (total, nheads, headdim), k and v (total, nheads_k, headdim); cu_seqlens (batch + 1,) int32: where each sequence
    starts in the arrays of a rank, then the total. max_seqlen is not needed.
    """
    return varlen("ring_flash_attn_varlen_func", "ring", q, k, v, cu_seqlens, dropout_p, softmax_scale, causal,
                  window_size, alibi_slopes, return_attn_probs, group)


def zigzag_ring_flash_attn_varlen_func(q: Tensor, k: Tensor, v: Tensor, cu_seqlens: Tensor, max_seqlen: int,
                                       dropout_p: float = 0.0, softmax_scale: float | None = None,
                                       causal: bool = False, window_size: tuple[int, int] = (-1, -1),
                                       alibi_slopes: Tensor | None = None, deterministic: bool = False,
                                       return_attn_probs: bool = False, group: dist.ProcessGroup | None = None) -> Any:
    """ring_flash_attn_varlen_func() with two parts of each sequence on a rank, as in zigzag_ring_flash_attn_func()."""
    return varlen("zigzag_ring_flash_attn_varlen_func", "zigzag", q, k, v, cu_seqlens, dropout_p, softmax_scale, causal,
                  window_size, alibi_slopes, return_attn_probs, group)


def _qkvpacked(function: Callable[..., Any]) -> Callable[..., Any]:
    def packed(qkv: Tensor, *arguments: Any, **more: Any) -> Any:
        return function(*qkv.unbind(-3), *arguments, **more)

    packed.__name__ = packed.__qualname__ = function.__name__.replace("_func", "_qkvpacked_func")
    packed.__doc__ = f"{function.__name__}() of qkv (..., 3, nheads, headdim)."
    return packed


def _kvpacked(function: Callable[..., Any]) -> Callable[..., Any]:
    def packed(q: Tensor, kv: Tensor, *arguments: Any, **more: Any) -> Any:
        return function(q, *kv.unbind(-3), *arguments, **more)

    packed.__name__ = packed.__qualname__ = function.__name__.replace("_func", "_kvpacked_func")
    packed.__doc__ = f"{function.__name__}() of q and kv (..., 2, nheads_k, headdim)."
    return packed


ring_flash_attn_qkvpacked_func = _qkvpacked(ring_flash_attn_func)
ring_flash_attn_kvpacked_func = _kvpacked(ring_flash_attn_func)
zigzag_ring_flash_attn_qkvpacked_func = _qkvpacked(zigzag_ring_flash_attn_func)
zigzag_ring_flash_attn_kvpacked_func = _kvpacked(zigzag_ring_flash_attn_func)
stripe_flash_attn_qkvpacked_func = _qkvpacked(stripe_flash_attn_func)
stripe_flash_attn_kvpacked_func = _kvpacked(stripe_flash_attn_func)
ring_flash_attn_varlen_qkvpacked_func = _qkvpacked(ring_flash_attn_varlen_func)
ring_flash_attn_varlen_kvpacked_func = _kvpacked(ring_flash_attn_varlen_func)
zigzag_ring_flash_attn_varlen_qkvpacked_func = _qkvpacked(zigzag_ring_flash_attn_varlen_func)
zigzag_ring_flash_attn_varlen_kvpacked_func = _kvpacked(zigzag_ring_flash_attn_varlen_func)
