"""flash-attention 2's functions on the CPU: same signatures and conventions.

    >>> from attention_cpp.flash_attn import flash_attn_func
    >>> attention_cpp.flash_attn.install()      # and `from flash_attn import flash_attn_func` works anywhere

Tensors are (batch, seqlen, nheads, headdim), or (total, nheads, headdim) for packed sequences: float32, float64,
bfloat16 or float16. Everything has gradients, through softmax_lse too, except flash_attn_with_kvcache.

What the functions share

    dropout_p           the seed comes from torch's generator; pass 0 when evaluating
    softmax_scale       default 1 / sqrt(headdim)
    causal              aligned to the bottom right: query i sees keys j <= i + seqlen_k - seqlen_q
    window_size         (left, right) of the same place, inclusive; -1 = no limit. Composes with causal. Any two whole
                        numbers: a tuple, a list, a tensor
    softcap             c > 0: scores become c tanh(score / c)
    alibi_slopes        (nheads,) or (batch, nheads) float32: adds -slope |i + seqlen_k - seqlen_q - j|
    deterministic       accepted: results always are
    return_attn_probs   also return softmax_lse, (batch, nheads, seqlen_q) or (nheads, total_q), and None: S_dmask, the
                        n x n matrix that flash-attention has "for testing only", is never stored
    nheads_k            of k and v, divides nheads: query head h reads key head h / (nheads / nheads_k)

A query that sees no key gives 0, with softmax_lse -inf. Unlike the original, headdim may be anything up to 1024 and
another for v, and pages may have any size. Every wrong argument raises attention_cpp.Error (a ValueError) or TypeError.
"""

from __future__ import annotations

import operator
import re
from typing import Any, Callable, NoReturn

import torch
from torch import Tensor

from . import _flash_package, _flash_transformers, _torch_ops
from ._core import Error
from ._flash_parts import (apply_rotary_emb, check, fail, gathered, index_first_axis, index_put_first_axis, lengths_of,
                           outside, pad_input, rotated, unpad_input, unpad_input_for_concatenated_sequences)

_INTERFACE = ["flash_attn_func", "flash_attn_kvpacked_func", "flash_attn_qkvpacked_func", "flash_attn_varlen_func",
              "flash_attn_varlen_kvpacked_func", "flash_attn_varlen_qkvpacked_func", "flash_attn_with_kvcache"]
_PADDING = ["index_first_axis", "index_put_first_axis", "pad_input", "unpad_input",
            "unpad_input_for_concatenated_sequences"]
__all__ = [*_INTERFACE, *_PADDING, "apply_rotary_emb", "install", "uninstall"]

Result = Any  # out, or (out, softmax_lse, None) with return_attn_probs
Results = tuple[Tensor, Tensor]

_OUR_WORDS = {"window": "window_size", "dropout": "dropout_p",
              "scale": "softmax_scale", "key_length": "cache_seqlens", "B": "batch", "H": "nheads", "Hk": "nheads_k",
              "Lq": "seqlen_q", "Lk": "seqlen_k"}


# ------------------------------------------------------------------------------------------------------------ the calls

def _raise(function: str, error: Exception) -> NoReturn:
    """The operator's message under the name of this function, with the names of its arguments."""
    message = re.sub(rf"\b({'|'.join(_OUR_WORDS)})\b", lambda word: _OUR_WORDS[word[0]], str(error))
    raise type(error)(f"[{function}] " + message.removeprefix("[attention] ")) from None


def _attend(function: str, q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Results:
    """out (batch, seqlen_q, nheads, headdim_v) and softmax_lse (batch, nheads, seqlen_q)."""
    try:
        out, lse = _torch_ops.attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2),
                                        alignment="bottom_right", **options)
    except (Error, TypeError) as error:
        _raise(function, error)
    return out.transpose(1, 2).contiguous(), lse


def _attend_packed(function: str, q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Results:
    """out (total_q, nheads, headdim_v) and softmax_lse (nheads, total_q)."""
    out, lse = _attend(function, q.unsqueeze(0), k.unsqueeze(0), v.unsqueeze(0), **options)
    return out.squeeze(0), lse.squeeze(0)


def _options(function: str, dropout_p: Any, softmax_scale: Any, causal: Any, window_size: Any, softcap: Any) -> dict:
    numbers = {"dropout_p": dropout_p, "softcap": softcap}
    if softmax_scale is not None:
        numbers["softmax_scale"] = softmax_scale
    wrong = [f"{name} must be a number, not {type(value).__name__}" for name, value in numbers.items()
             if not hasattr(value, "__float__") or getattr(value, "shape", ())]
    if wrong:
        raise TypeError(f"[{function}] " + "; ".join(wrong))
    if not isinstance(causal, (bool, int)):
        raise TypeError(f"[{function}] causal must be True or False, not {type(causal).__name__}")
    return {"dropout": float(dropout_p), "scale": None if softmax_scale is None else float(softmax_scale),
            "causal": bool(causal), "window": _sides(function, window_size), "softcap": float(softcap)}


def _sides(function: str, window_size: Any) -> tuple[int, int]:
    """(left, right) of a tuple, a list, an array or a tensor."""
    try:
        left, right = (operator.index(side) for side in window_size)
    except (TypeError, ValueError):
        raise TypeError(f"[{function}] window_size must be (left, right), not {window_size!r}") from None
    return left, right


def _slope_axes(alibi_slopes: Any) -> str:
    return "?float32: nheads" if getattr(alibi_slopes, "ndim", 1) == 1 else "?float32: batch nheads"


def _one_row(alibi_slopes: Tensor | None) -> Tensor | None:
    """Slopes that are those of each sequence as (nheads,)."""
    if alibi_slopes is not None and alibi_slopes.dim() == 2 and (
            len(alibi_slopes) == 1 or alibi_slopes.stride(0) == 0 and len(alibi_slopes) > 0):
        return alibi_slopes[0]
    return alibi_slopes


def _dense(function: str, q: Tensor, k: Tensor, v: Tensor, dropout_p: float, softmax_scale: float | None, causal: bool,
           window_size: tuple[int, int], softcap: float, alibi_slopes: Tensor | None,
           return_attn_probs: bool, **more: Any) -> Result:
    check(function, q=(q, "batch seqlen_q nheads headdim"), k=(k, "batch seqlen_k nheads_k headdim"),
          v=(v, "batch seqlen_k nheads_k headdim_v"), alibi_slopes=(alibi_slopes, _slope_axes(alibi_slopes)))
    options = {**_options(function, dropout_p, softmax_scale, causal, window_size, softcap), **more}
    slopes = _one_row(alibi_slopes)
    if slopes is None or slopes.dim() == 1:
        out, lse = _attend(function, q, k, v, alibi_slopes=slopes, **options)
    elif len(slopes) == 0:
        out, lse = _attend(function, q, k, v, **options)
    else:  # the operator has one slope a head
        rows = [_attend(function, *row, alibi_slopes=slope, **options)
                for *row, slope in zip(q.split(1), k.split(1), v.split(1), slopes)]
        out, lse = (torch.cat(parts) for parts in zip(*rows))
    return (out, lse, None) if return_attn_probs else out


def _varlen(function: str, q: Tensor, k: Tensor, v: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor,
            dropout_p: float, softmax_scale: float | None, causal: bool, window_size: tuple[int, int], softcap: float,
            alibi_slopes: Tensor | None, return_attn_probs: bool, block_table: Tensor | None = None,
            **more: Any) -> Result:
    keys = "total_k" if block_table is None else "pages page_size"
    check(function, q=(q, "total_q nheads headdim"), k=(k, f"{keys} nheads_k headdim"),
          v=(v, f"{keys} nheads_k headdim_v"), cu_seqlens_q=(cu_seqlens_q, "int32: batch+1"),
          cu_seqlens_k=(cu_seqlens_k, "int32: batch+1"), block_table=(block_table, "?int32: batch pages_a_sequence"),
          alibi_slopes=(alibi_slopes, _slope_axes(alibi_slopes)))
    options = {**_options(function, dropout_p, softmax_scale, causal, window_size, softcap), **more}
    if block_table is not None:
        k, v, cu_seqlens_k = gathered(function, k, v, cu_seqlens_k, block_table)
    slopes = _one_row(alibi_slopes)
    if slopes is None or slopes.dim() == 1:
        out, lse = _attend_packed(function, q, k, v, alibi_slopes=slopes, cu_seqlens_q=cu_seqlens_q,
                                  cu_seqlens_k=cu_seqlens_k, **options)
    else:  # one by one, and the queries before the first sequence and after the last with no keys
        queries = lengths_of(function, "cu_seqlens_q", cu_seqlens_q, len(q)).tolist()
        keys = lengths_of(function, "cu_seqlens_k", cu_seqlens_k, len(k)).tolist()
        start, key_start = int(cu_seqlens_q[0]), int(cu_seqlens_k[0])
        ks, vs = (packed[key_start:key_start + sum(keys)].split([0, *keys, 0]) for packed in (k, v))
        qs = q.split([start, *queries, len(q) - start - sum(queries)])
        rows = [_attend_packed(function, *row, alibi_slopes=slope, **options)
                for *row, slope in zip(qs, ks, vs, [slopes[0], *slopes, slopes[0]])]
        out, lse = torch.cat([row[0] for row in rows]), torch.cat([row[1] for row in rows], 1)
    return (out, lse, None) if return_attn_probs else out


# ------------------------------------------------------------------------------------------------------- one batch axis

def flash_attn_func(q: Tensor, k: Tensor, v: Tensor, dropout_p: float = 0.0, softmax_scale: float | None = None,
                    causal: bool = False, window_size: tuple[int, int] = (-1, -1), softcap: float = 0.0,
                    alibi_slopes: Tensor | None = None, deterministic: bool = False,
                    return_attn_probs: bool = False) -> Result:
    """q (batch, seqlen_q, nheads, headdim); k, v (batch, seqlen_k, nheads_k, headdim).

    Returns out as q, or (out, softmax_lse (batch, nheads, seqlen_q), None).
    """
    return _dense("flash_attn_func", q, k, v, dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes,
                  return_attn_probs)


def flash_attn_kvpacked_func(q: Tensor, kv: Tensor, dropout_p: float = 0.0, softmax_scale: float | None = None,
                             causal: bool = False, window_size: tuple[int, int] = (-1, -1), softcap: float = 0.0,
                             alibi_slopes: Tensor | None = None, deterministic: bool = False,
                             return_attn_probs: bool = False) -> Result:
    """flash_attn_func() with kv (batch, seqlen_k, 2, nheads_k, headdim)."""
    check("flash_attn_kvpacked_func", q=(q, "batch seqlen_q nheads headdim"),
          kv=(kv, "batch seqlen_k 2 nheads_k headdim"))
    return _dense("flash_attn_kvpacked_func", q, *kv.unbind(2), dropout_p, softmax_scale, causal, window_size, softcap,
                  alibi_slopes, return_attn_probs)


def flash_attn_qkvpacked_func(qkv: Tensor, dropout_p: float = 0.0, softmax_scale: float | None = None,
                              causal: bool = False, window_size: tuple[int, int] = (-1, -1), softcap: float = 0.0,
                              alibi_slopes: Tensor | None = None, deterministic: bool = False,
                              return_attn_probs: bool = False) -> Result:
    """flash_attn_func() with qkv (batch, seqlen, 3, nheads, headdim)."""
    check("flash_attn_qkvpacked_func", qkv=(qkv, "batch seqlen 3 nheads headdim"))
    return _dense("flash_attn_qkvpacked_func", *qkv.unbind(2), dropout_p, softmax_scale, causal, window_size, softcap,
                  alibi_slopes, return_attn_probs)


# ----------------------------------------------------------------------------------------------------- packed sequences

def flash_attn_varlen_func(q: Tensor, k: Tensor, v: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor,
                           max_seqlen_q: int, max_seqlen_k: int, dropout_p: float = 0.0,
                           softmax_scale: float | None = None, causal: bool = False,
                           window_size: tuple[int, int] = (-1, -1), softcap: float = 0.0,
                           alibi_slopes: Tensor | None = None, deterministic: bool = False,
                           return_attn_probs: bool = False, block_table: Tensor | None = None) -> Result:
    """Sequences of any lengths, one after the other: q (total_q, nheads, headdim); k, v (total_k, nheads_k, headdim).

    cu_seqlens_q, cu_seqlens_k   (batch + 1,) int32: where each sequence starts, then the total; empty ones are fine
    max_seqlen_q, max_seqlen_k   not needed
    block_table                  (batch, pages) int32: k and v are then pages (num_pages, page_size, nheads_k, headdim),
                                 and sequence b has its keys in the pages block_table[b]; they are gathered into a copy

    Returns out as q, or (out, softmax_lse (nheads, total_q), None).
    """
    return _varlen("flash_attn_varlen_func", q, k, v, cu_seqlens_q, cu_seqlens_k, dropout_p, softmax_scale, causal,
                   window_size, softcap, alibi_slopes, return_attn_probs, block_table)


def flash_attn_varlen_kvpacked_func(q: Tensor, kv: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor,
                                    max_seqlen_q: int, max_seqlen_k: int, dropout_p: float = 0.0,
                                    softmax_scale: float | None = None, causal: bool = False,
                                    window_size: tuple[int, int] = (-1, -1), softcap: float = 0.0,
                                    alibi_slopes: Tensor | None = None, deterministic: bool = False,
                                    return_attn_probs: bool = False) -> Result:
    """flash_attn_varlen_func() with kv (total_k, 2, nheads_k, headdim)."""
    check("flash_attn_varlen_kvpacked_func", q=(q, "total_q nheads headdim"), kv=(kv, "total_k 2 nheads_k headdim"))
    return _varlen("flash_attn_varlen_kvpacked_func", q, *kv.unbind(1), cu_seqlens_q, cu_seqlens_k, dropout_p,
                   softmax_scale, causal, window_size, softcap, alibi_slopes, return_attn_probs)


def flash_attn_varlen_qkvpacked_func(qkv: Tensor, cu_seqlens: Tensor, max_seqlen: int, dropout_p: float = 0.0,
                                     softmax_scale: float | None = None, causal: bool = False,
                                     window_size: tuple[int, int] = (-1, -1), softcap: float = 0.0,
                                     alibi_slopes: Tensor | None = None, deterministic: bool = False,
                                     return_attn_probs: bool = False) -> Result:
    """flash_attn_varlen_func() with qkv (total, 3, nheads, headdim)."""
    check("flash_attn_varlen_qkvpacked_func", qkv=(qkv, "total 3 nheads headdim"),
          cu_seqlens=(cu_seqlens, "int32: batch+1"))
    return _varlen("flash_attn_varlen_qkvpacked_func", *qkv.unbind(1), cu_seqlens, cu_seqlens, dropout_p, softmax_scale,
                   causal, window_size, softcap, alibi_slopes, return_attn_probs)


# ------------------------------------------------------------------------------------------------------------ the cache

def _keys_of(cache: Tensor, pages: list[int] | None, row: int, first: int, last: int) -> Tensor:
    """(1, last - first, nheads_k, headdim): a view, but a copy of pages that do not follow one another."""
    if pages is None:
        return cache[row, first:last].unsqueeze(0)
    pages = pages[:-(-last // max(cache.shape[1], 1))] or [0]
    in_line = pages == list(range(pages[0], pages[0] + len(pages)))
    tokens = cache[pages[0]:pages[-1] + 1] if in_line else cache[pages]
    return tokens.flatten(0, 1)[first:last].unsqueeze(0)


def _check_together(function: str, sizes: dict[str, int], k: bool, v: bool, rotary_cos: bool, rotary_sin: bool,
                    cache_seqlens: bool, cache_batch_idx: bool, paged: bool) -> None:
    """Which arguments of flash_attn_with_kvcache() are given must fit together."""
    fail(function, [text for is_wrong, text in (
        (k != v, "k and v must be given together"),
        (rotary_cos != rotary_sin, "rotary_cos and rotary_sin must be given together"),
        (k and not cache_seqlens, "cache_seqlens must be given with k and v"),
        (rotary_cos and not k, "rotary_cos and rotary_sin need k and v"),
        (2 * sizes.get("rotary_dim/2", 0) > sizes["headdim"], "rotary_dim must be at most headdim"),
        (paged and cache_batch_idx, "cache_batch_idx must not be given with block_table"),
        (not paged and not cache_batch_idx and sizes.get("batch_cache", 0) < sizes["batch"],
         f"the cache has {sizes.get('batch_cache')} rows, must have batch = {sizes['batch']} or cache_batch_idx"),
    ) if is_wrong])


def _attend_rows(function: str, q: Tensor, k_cache: Tensor, v_cache: Tensor, places: list[tuple], slopes: Any,
                 options: dict) -> Results:
    """One sequence at a time. places: of each its pages or None, its row of the cache, its first key and its end."""
    results = []
    for b, ((pages, row, first, last), slope) in enumerate(zip(places, slopes)):
        keys, values = (_keys_of(cache, pages, row, first, last) for cache in (k_cache, v_cache))
        results.append(_attend(function, q[b:b + 1], keys, values, alibi_slopes=slope, **options))
    out, lse = (torch.cat(parts) for parts in zip(*results))
    return out, lse


@torch.no_grad()
def flash_attn_with_kvcache(q: Tensor, k_cache: Tensor, v_cache: Tensor, k: Tensor | None = None,
                            v: Tensor | None = None, rotary_cos: Tensor | None = None,
                            rotary_sin: Tensor | None = None, cache_seqlens: int | Tensor | None = None,
                            cache_batch_idx: Tensor | None = None, cache_leftpad: Tensor | None = None,
                            block_table: Tensor | None = None, softmax_scale: float | None = None,
                            causal: bool = False, window_size: tuple[int, int] = (-1, -1), softcap: float = 0.0,
                            rotary_interleaved: bool = True, alibi_slopes: Tensor | None = None, num_splits: int = 0,
                            return_softmax_lse: bool = False) -> Tensor | Results:
    """Attention to a cache, after appending to it. No gradients, as in flash-attention.

    q                       (batch, seqlen_q, nheads, headdim)
    k_cache, v_cache        (batch_cache, seqlen_cache, nheads_k, headdim), or with block_table
                            (num_pages, page_size, nheads_k, headdim)
    k, v                    (batch, seqlen_new, nheads_k, headdim): written to the cache, from cache_seqlens on
    rotary_cos, rotary_sin  (seqlen_ro, rotary_dim / 2): turn k by its places, and q by cache_seqlens, + 1 ... if causal
                            or with a window, otherwise all of q by cache_seqlens
    rotary_interleaved      pairs are (0, 1), (2, 3) ...; otherwise the first and the second half
    cache_seqlens           int or (batch,) int32: what the cache holds before k; None: all of it
    cache_batch_idx         (batch,) int32: the row of the cache that is each sequence's
    cache_leftpad           (batch,) int32: the first key of each
    block_table             (batch, pages) int32: the pages of each sequence; those that do not follow one another are
                            copied, one sequence at a time
    num_splits              not needed

    Returns out as q, or (out, softmax_lse (batch, nheads, seqlen_q)). Nothing is written if an argument is wrong.
    """
    function = "flash_attn_with_kvcache"
    paged = block_table is not None
    cache = "pages page_size" if paged else "batch_cache seqlen_cache"
    is_int = isinstance(cache_seqlens, int)
    sizes = check(
        function, q=(q, "batch seqlen_q nheads headdim"), k_cache=(k_cache, f"{cache} nheads_k headdim"),
        v_cache=(v_cache, f"{cache} nheads_k headdim_v"), k=(k, "?batch seqlen_new nheads_k headdim"),
        v=(v, "?batch seqlen_new nheads_k headdim_v"), rotary_cos=(rotary_cos, "?floating: seqlen_ro rotary_dim/2"),
        rotary_sin=(rotary_sin, "?floating: seqlen_ro rotary_dim/2"),
        cache_seqlens=(None if is_int else cache_seqlens, "?int32: batch"),
        cache_batch_idx=(cache_batch_idx, "?int32: batch"), cache_leftpad=(cache_leftpad, "?int32: batch"),
        block_table=(block_table, "?int32: batch pages_a_sequence"),
        alibi_slopes=(alibi_slopes, _slope_axes(alibi_slopes)))
    _check_together(function, sizes, k is not None, v is not None, rotary_cos is not None, rotary_sin is not None,
                    cache_seqlens is not None, cache_batch_idx is not None, paged)
    options = _options(function, 0.0, softmax_scale, causal, window_size, softcap)
    slopes = _one_row(alibi_slopes)
    _attend(function, q[:0], k_cache[:0], v_cache[:0], **options)  # raises for the options, before anything is written

    batch, new = sizes["batch"], sizes.get("seqlen_new", 0)
    page_size = max(sizes.get("page_size", 1), 1)
    capacity = sizes["pages_a_sequence"] * sizes["page_size"] if paged else sizes["seqlen_cache"]
    start = cache_seqlens if is_int else capacity if cache_seqlens is None else 0
    starts = cache_seqlens.long() if isinstance(cache_seqlens, Tensor) else torch.full((batch,), start)
    ends = starts + new
    rows = torch.arange(batch) if cache_batch_idx is None else cache_batch_idx.long()
    places = starts[:, None] + torch.arange(new)
    is_local = causal or max(options["window"]) >= 0
    turns = starts[:, None] + torch.arange(sizes["seqlen_q"]) * int(is_local)
    problems = outside("cache_seqlens", starts, 0, capacity - new)
    if cache_batch_idx is not None:
        problems += outside("cache_batch_idx", rows, 0, sizes["batch_cache"] - 1)
    if cache_leftpad is not None:
        problems += outside("cache_leftpad", cache_leftpad, 0, ends)
    if paged:
        in_use = torch.arange(sizes["pages_a_sequence"]) * page_size < ends[:, None]
        problems += outside("block_table", block_table[in_use], 0, sizes["pages"] - 1)
    if rotary_cos is not None:
        problems += outside("a place to turn by", torch.cat([turns, places], 1), 0, sizes["seqlen_ro"] - 1)
    fail(function, problems)

    if rotary_cos is not None:
        q = rotated(q, rotary_cos, rotary_sin, turns, rotary_interleaved)
        k = rotated(k, rotary_cos, rotary_sin, places, rotary_interleaved)
    if k is not None:
        where = (block_table.long().gather(1, places // page_size), places % page_size) if paged else (
            rows[:, None], places)
        k_cache[where] = k
        v_cache[where] = v

    per_row = slopes is not None and slopes.dim() == 2
    if batch == 0 or not (paged or per_row or cache_batch_idx is not None or cache_leftpad is not None):
        out, lse = _attend(function, q, k_cache[:batch], v_cache[:batch], key_length=ends,
                           alibi_slopes=None if per_row else slopes, **options)
    else:
        firsts = [0] * batch if cache_leftpad is None else cache_leftpad.tolist()
        tables = block_table.tolist() if paged else [None] * batch
        places = list(zip(tables, rows.tolist(), firsts, ends.tolist()))
        out, lse = _attend_rows(function, q, k_cache, v_cache, places, slopes if per_row else [slopes] * batch, options)
    return (out, lse) if return_softmax_lse else out


# ------------------------------------------------------------------------------------------ in the place of the package

_VERSION = "2.8.3"
_PRIVATE = ["_flash_attn_forward", "_flash_attn_varlen_forward", "_flash_attn_backward", "_flash_attn_varlen_backward"]
_NAMES = {
    "flash_attn": _INTERFACE,
    "flash_attn.flash_attn_interface": [*_INTERFACE, *_PRIVATE],
    "flash_attn.bert_padding": _PADDING,
    "flash_attn.layers": [],
    "flash_attn.layers.rotary": ["apply_rotary_emb"],
}
_undo: list[Callable[[], None]] = []


def install(*, force: bool = False) -> None:
    """Makes `import flash_attn` find these functions, as version 2.8.3, with .flash_attn_interface, .bert_padding and
    .layers.rotary.apply_rotary_emb, and `import flash_attn_interface` those of flash-attention 3.
    importlib.metadata.version() knows both. Raises Error where another of these can be imported, unless force.

    .flash_attn_interface has what other packages build on too: _flash_attn_forward, _flash_attn_backward and these of
    packed sequences, which record no gradients.

    Where transformers is installed, it then loads models with attn_implementation="flash_attention_2".
    """
    if _undo:
        return
    from . import _flash_3, _flash_private

    of_2 = {**globals(), **{name: getattr(_flash_private, name) for name in _PRIVATE}}
    modules = {name: {function: of_2[function] for function in functions} for name, functions in _NAMES.items()}
    modules["flash_attn_interface"] = {name: getattr(_flash_3, name) for name in _flash_3.__all__}
    _undo.append(_flash_package.serve(modules, {"flash_attn": _VERSION, "flash_attn_interface": "3.0.0"}, force))
    _undo.append(_flash_transformers.serve())


def uninstall() -> None:
    """Undoes install()."""
    while _undo:
        _undo.pop()()
