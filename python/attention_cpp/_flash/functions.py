"""flash-attention 2's functions for dense and packed sequences, over the operator."""

from __future__ import annotations

import operator
import re
from typing import Any, NoReturn

import torch
from torch import Tensor

from .._core import Error
from .._torch import autograd
from .._torch.options import Options
from .arguments import check
from .pages import gathered, lengths_of

Result = Any  # out, or (out, softmax_lse, None) with return_attn_probs
Results = tuple[Tensor, Tensor]

_OUR_WORDS = {"window": "window_size", "dropout": "dropout_p",
              "scale": "softmax_scale", "key_length": "cache_seqlens", "B": "batch", "H": "nheads", "Hk": "nheads_k",
              "Lq": "seqlen_q", "Lk": "seqlen_k"}


def raise_as(function: str, error: Exception) -> NoReturn:
    """Raises the operator's error again, with the names of flash-attention's function and arguments."""
    message = re.sub(rf"\b({'|'.join(_OUR_WORDS)})\b", lambda word: _OUR_WORDS[word[0]], str(error))
    raise type(error)(f"[{function}] " + message.removeprefix("[attention] ")) from None


def attend(function: str, q: Tensor, k: Tensor, v: Tensor, options: Options) -> Results:
    """Computes out (batch, seqlen_q, nheads, headdim_v) and softmax_lse (batch, nheads, seqlen_q)."""
    try:
        out, lse = autograd.attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), options)
    except (Error, TypeError) as error:
        raise_as(function, error)
    return out.transpose(1, 2).contiguous(), lse


def _attend_packed(function: str, q: Tensor, k: Tensor, v: Tensor, options: Options) -> Results:
    """Computes out (total_q, nheads, headdim_v) and softmax_lse (nheads, total_q)."""
    out, lse = attend(function, q.unsqueeze(0), k.unsqueeze(0), v.unsqueeze(0), options)
    return out.squeeze(0), lse.squeeze(0)


def options_of(function: str, dropout_p: Any, softmax_scale: Any, causal: Any, window_size: Any, softcap: Any
               ) -> Options:
    """Converts arguments to options. Raises TypeError, which names the arguments of a wrong type."""
    numbers = {"dropout_p": dropout_p, "softcap": softcap}
    if softmax_scale is not None:
        numbers["softmax_scale"] = softmax_scale
    wrong = [f"{name} must be a number, not {type(value).__name__}" for name, value in numbers.items()
             if not hasattr(value, "__float__") or getattr(value, "shape", ())]
    if wrong:
        raise TypeError(f"[{function}] " + "; ".join(wrong))
    if not isinstance(causal, (bool, int)):
        raise TypeError(f"[{function}] causal must be True or False, not {type(causal).__name__}")
    return Options(dropout=float(dropout_p), scale=None if softmax_scale is None else float(softmax_scale),
                   causal=bool(causal), window=_sides(function, window_size), softcap=float(softcap),
                   alignment="bottom_right")


def _sides(function: str, window_size: Any) -> tuple[int, int]:
    """Returns (left, right) of a tuple, a list, an array or a tensor."""
    try:
        left, right = (operator.index(side) for side in window_size)
    except (TypeError, ValueError):
        raise TypeError(f"[{function}] window_size must be (left, right), not {window_size!r}") from None
    return left, right


def slope_axes(alibi_slopes: Any) -> str:
    return "?float32: nheads" if getattr(alibi_slopes, "ndim", 1) == 1 else "?float32: batch nheads"


def one_row(alibi_slopes: Tensor | None) -> Tensor | None:
    """Returns slopes (batch, nheads) as (nheads,) if all sequences have the same ones."""
    if alibi_slopes is not None and alibi_slopes.dim() == 2 and (
            len(alibi_slopes) == 1 or alibi_slopes.stride(0) == 0 and len(alibi_slopes) > 0):
        return alibi_slopes[0]
    return alibi_slopes


def dense(function: str, q: Tensor, k: Tensor, v: Tensor, dropout_p: float, softmax_scale: float | None, causal: bool,
          window_size: tuple[int, int], softcap: float, alibi_slopes: Tensor | None,
          return_attn_probs: bool, **more: Any) -> Result:
    """Computes flash_attn_func() for the function of this name; `more` are further options of the operator."""
    check(function, q=(q, "batch seqlen_q nheads headdim"), k=(k, "batch seqlen_k nheads_k headdim"),
          v=(v, "batch seqlen_k nheads_k headdim_v"), alibi_slopes=(alibi_slopes, slope_axes(alibi_slopes)))
    options = options_of(function, dropout_p, softmax_scale, causal, window_size, softcap).having(**more)
    slopes = one_row(alibi_slopes)
    if slopes is None or slopes.dim() == 1:
        out, lse = attend(function, q, k, v, options.having(alibi_slopes=slopes))
    elif len(slopes) == 0:
        out, lse = attend(function, q, k, v, options)
    else:  # the operator has one slope for each head: one call for each sequence
        rows = [attend(function, *row, options.having(alibi_slopes=slope))
                for *row, slope in zip(q.split(1), k.split(1), v.split(1), slopes)]
        out, lse = (torch.cat(parts) for parts in zip(*rows))
    return (out, lse, None) if return_attn_probs else out


def varlen(function: str, q: Tensor, k: Tensor, v: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor,
           dropout_p: float, softmax_scale: float | None, causal: bool, window_size: tuple[int, int], softcap: float,
           alibi_slopes: Tensor | None, return_attn_probs: bool, block_table: Tensor | None = None,
           **more: Any) -> Result:
    """Computes flash_attn_varlen_func() for the function of this name; `more` are further options of the operator."""
    keys = "total_k" if block_table is None else "pages page_size"
    check(function, q=(q, "total_q nheads headdim"), k=(k, f"{keys} nheads_k headdim"),
          v=(v, f"{keys} nheads_k headdim_v"), cu_seqlens_q=(cu_seqlens_q, "int32: batch+1"),
          cu_seqlens_k=(cu_seqlens_k, "int32: batch+1"), block_table=(block_table, "?int32: batch pages_a_sequence"),
          alibi_slopes=(alibi_slopes, slope_axes(alibi_slopes)))
    options = options_of(function, dropout_p, softmax_scale, causal, window_size, softcap).having(**more)
    if block_table is not None:
        k, v, cu_seqlens_k = gathered(function, k, v, cu_seqlens_k, block_table)
    slopes = one_row(alibi_slopes)
    if slopes is None or slopes.dim() == 1:
        out, lse = _attend_packed(function, q, k, v, options.having(
            alibi_slopes=slopes, cu_seqlens_q=cu_seqlens_q, cu_seqlens_k=cu_seqlens_k))
    else:  # one call for each sequence; queries before the first and after the last sequence have no keys
        queries = lengths_of(function, "cu_seqlens_q", cu_seqlens_q, len(q)).tolist()
        keys = lengths_of(function, "cu_seqlens_k", cu_seqlens_k, len(k)).tolist()
        start, key_start = int(cu_seqlens_q[0]), int(cu_seqlens_k[0])
        ks, vs = (packed[key_start:key_start + sum(keys)].split([0, *keys, 0]) for packed in (k, v))
        qs = q.split([start, *queries, len(q) - start - sum(queries)])
        rows = [_attend_packed(function, *row, options.having(alibi_slopes=slope))
                for *row, slope in zip(qs, ks, vs, [slopes[0], *slopes, slopes[0]])]
        out, lse = torch.cat([row[0] for row in rows]), torch.cat([row[1] for row in rows], 1)
    return (out, lse, None) if return_attn_probs else out


# ------------------------------------------------------------------------------------------------------- one batch axis

def flash_attn_func(q: Tensor, k: Tensor, v: Tensor, dropout_p: float = 0.0, softmax_scale: float | None = None,
                    causal: bool = False, window_size: tuple[int, int] = (-1, -1), softcap: float = 0.0,
                    alibi_slopes: Tensor | None = None, deterministic: bool = False,
                    return_attn_probs: bool = False) -> Result:
    """Computes attention of q (batch, seqlen_q, nheads, headdim) to k, v (batch, seqlen_k, nheads_k, headdim).

        >>> out = flash_attn_func(q, k, v, causal=True)

    Returns out as q, or (out, softmax_lse (batch, nheads, seqlen_q), None). The help of attention_cpp.flash_attn
    describes the other arguments. Raises Error or TypeError, which name everything that is wrong.
    """
    return dense("flash_attn_func", q, k, v, dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes,
                 return_attn_probs)


def flash_attn_kvpacked_func(q: Tensor, kv: Tensor, dropout_p: float = 0.0, softmax_scale: float | None = None,
                             causal: bool = False, window_size: tuple[int, int] = (-1, -1), softcap: float = 0.0,
                             alibi_slopes: Tensor | None = None, deterministic: bool = False,
                             return_attn_probs: bool = False) -> Result:
    """Computes flash_attn_func() with k and v in one tensor, kv (batch, seqlen_k, 2, nheads_k, headdim)."""
    check("flash_attn_kvpacked_func", q=(q, "batch seqlen_q nheads headdim"),
          kv=(kv, "batch seqlen_k 2 nheads_k headdim"))
    return dense("flash_attn_kvpacked_func", q, *kv.unbind(2), dropout_p, softmax_scale, causal, window_size, softcap,
                 alibi_slopes, return_attn_probs)


def flash_attn_qkvpacked_func(qkv: Tensor, dropout_p: float = 0.0, softmax_scale: float | None = None,
                              causal: bool = False, window_size: tuple[int, int] = (-1, -1), softcap: float = 0.0,
                              alibi_slopes: Tensor | None = None, deterministic: bool = False,
                              return_attn_probs: bool = False) -> Result:
    """Computes flash_attn_func() with q, k and v in one tensor, qkv (batch, seqlen, 3, nheads, headdim)."""
    check("flash_attn_qkvpacked_func", qkv=(qkv, "batch seqlen 3 nheads headdim"))
    return dense("flash_attn_qkvpacked_func", *qkv.unbind(2), dropout_p, softmax_scale, causal, window_size, softcap,
                 alibi_slopes, return_attn_probs)


# ----------------------------------------------------------------------------------------------------- packed sequences

def flash_attn_varlen_func(q: Tensor, k: Tensor, v: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor,
                           max_seqlen_q: int, max_seqlen_k: int, dropout_p: float = 0.0,
                           softmax_scale: float | None = None, causal: bool = False,
                           window_size: tuple[int, int] = (-1, -1), softcap: float = 0.0,
                           alibi_slopes: Tensor | None = None, deterministic: bool = False,
                           return_attn_probs: bool = False, block_table: Tensor | None = None) -> Result:
    """Computes attention of packed sequences: q (total_q, nheads, headdim); k, v (total_k, nheads_k, headdim).

        >>> out = flash_attn_varlen_func(q, k, v, starts, starts, longest, longest, causal=True)

    cu_seqlens_q, cu_seqlens_k   (batch + 1,) int32: where each sequence starts, then the total. Sequences may be empty
    max_seqlen_q, max_seqlen_k   without effect
    block_table                  (batch, pages) int32: k and v are then KV pages (num_pages, page_size, nheads_k,
                                 headdim), and block_table[b] are the pages of sequence b, of which the function makes a
                                 copy

    Returns out as q, or (out, softmax_lse (nheads, total_q), None). Raises as flash_attn_func() does.
    """
    return varlen("flash_attn_varlen_func", q, k, v, cu_seqlens_q, cu_seqlens_k, dropout_p, softmax_scale, causal,
                  window_size, softcap, alibi_slopes, return_attn_probs, block_table)


def flash_attn_varlen_kvpacked_func(q: Tensor, kv: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor,
                                    max_seqlen_q: int, max_seqlen_k: int, dropout_p: float = 0.0,
                                    softmax_scale: float | None = None, causal: bool = False,
                                    window_size: tuple[int, int] = (-1, -1), softcap: float = 0.0,
                                    alibi_slopes: Tensor | None = None, deterministic: bool = False,
                                    return_attn_probs: bool = False) -> Result:
    """Computes flash_attn_varlen_func() with k and v in one tensor, kv (total_k, 2, nheads_k, headdim)."""
    check("flash_attn_varlen_kvpacked_func", q=(q, "total_q nheads headdim"), kv=(kv, "total_k 2 nheads_k headdim"))
    return varlen("flash_attn_varlen_kvpacked_func", q, *kv.unbind(1), cu_seqlens_q, cu_seqlens_k, dropout_p,
                  softmax_scale, causal, window_size, softcap, alibi_slopes, return_attn_probs)


def flash_attn_varlen_qkvpacked_func(qkv: Tensor, cu_seqlens: Tensor, max_seqlen: int, dropout_p: float = 0.0,
                                     softmax_scale: float | None = None, causal: bool = False,
                                     window_size: tuple[int, int] = (-1, -1), softcap: float = 0.0,
                                     alibi_slopes: Tensor | None = None, deterministic: bool = False,
                                     return_attn_probs: bool = False) -> Result:
    """Computes flash_attn_varlen_func() with q, k and v in one tensor, qkv (total, 3, nheads, headdim)."""
    check("flash_attn_varlen_qkvpacked_func", qkv=(qkv, "total 3 nheads headdim"),
          cu_seqlens=(cu_seqlens, "int32: batch+1"))
    return varlen("flash_attn_varlen_qkvpacked_func", *qkv.unbind(1), cu_seqlens, cu_seqlens, dropout_p, softmax_scale,
                  causal, window_size, softcap, alibi_slopes, return_attn_probs)
