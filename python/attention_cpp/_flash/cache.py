"""flash_attn_with_kvcache(), flash-attention 2's attention to a KV cache, dense or in KV pages."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .._torch.options import Options
from .arguments import check, fail, outside
from .functions import Results, attend, one_row, options_of, slope_axes
from .rotary import rotated


def _keys_of(cache: Tensor, pages: list[int] | None, row: int, first: int, last: int) -> Tensor:
    """Returns (1, last - first, nheads_k, headdim): a view, or a copy if the KV pages are not consecutive."""
    if pages is None:
        return cache[row, first:last].unsqueeze(0)
    pages = pages[:-(-last // max(cache.shape[1], 1))] or [0]
    in_line = pages == list(range(pages[0], pages[0] + len(pages)))
    tokens = cache[pages[0]:pages[-1] + 1] if in_line else cache[pages]
    return tokens.flatten(0, 1)[first:last].unsqueeze(0)


def _check_together(function: str, sizes: dict[str, int], k: bool, v: bool, rotary_cos: bool, rotary_sin: bool,
                    cache_seqlens: bool, cache_batch_idx: bool, paged: bool) -> None:
    """Raises Error if arguments of flash_attn_with_kvcache() are given that exclude or lack one another."""
    fail(function, [text for is_wrong, text in (
        (k != v, "k and v must be given together"),
        (rotary_cos != rotary_sin, "rotary_cos and rotary_sin must be given together"),
        (k and not cache_seqlens, "cache_seqlens must be given with k and v"),
        (rotary_cos and not k, "rotary_cos and rotary_sin must not be given without k and v"),
        (2 * sizes.get("rotary_dim/2", 0) > sizes["headdim"],
         f"rotary_dim is {2 * sizes.get('rotary_dim/2', 0)}, must be at most headdim = {sizes['headdim']}"),
        (paged and cache_batch_idx, "cache_batch_idx must not be given with block_table"),
        (not paged and not cache_batch_idx and sizes.get("batch_cache", 0) < sizes["batch"],
         f"the cache has {sizes.get('batch_cache')} rows, must have batch = {sizes['batch']} unless cache_batch_idx is "
         "given"),
    ) if is_wrong])


def _attend_rows(function: str, q: Tensor, k_cache: Tensor, v_cache: Tensor, places: list[tuple], slopes: Any,
                 options: Options) -> Results:
    """Computes one sequence at a time. places: for each its KV pages or None, its row of the cache, its first key and
    the end of its keys."""
    results = []
    for b, ((pages, row, first, last), slope) in enumerate(zip(places, slopes)):
        keys, values = (_keys_of(cache, pages, row, first, last) for cache in (k_cache, v_cache))
        results.append(attend(function, q[b:b + 1], keys, values, options.having(alibi_slopes=slope)))
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
    """Appends k and v to a KV cache and computes the attention of q to it. No gradients, as in flash-attention.

        >>> out = flash_attn_with_kvcache(q, k_cache, v_cache, k, v, cache_seqlens=lengths, causal=True)

    q                       (batch, seqlen_q, nheads, headdim)
    k_cache, v_cache        (batch_cache, seqlen_cache, nheads_k, headdim), or with block_table
                            (num_pages, page_size, nheads_k, headdim)
    k, v                    (batch, seqlen_new, nheads_k, headdim): written to the cache, from cache_seqlens on
    rotary_cos, rotary_sin  (seqlen_ro, rotary_dim / 2): rotate k by its positions. They rotate q by cache_seqlens,
                            cache_seqlens + 1 ... if causal or with a window, otherwise all of q by cache_seqlens
    rotary_interleaved      pairs are (0, 1), (2, 3) ...; otherwise the first and the second half
    cache_seqlens           int or (batch,) int32: the tokens in the cache before k is appended. None: all of it
    cache_batch_idx         (batch,) int32: the row of the cache for each sequence
    cache_leftpad           (batch,) int32: the first key of each sequence
    block_table             (batch, pages) int32: the KV pages of each sequence. If they are not consecutive, the
                            function copies them, one sequence at a time
    num_splits              without effect

    Returns out as q, or (out, softmax_lse (batch, nheads, seqlen_q)). Raises Error or TypeError, which name everything
    that is wrong; then nothing is written.
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
        alibi_slopes=(alibi_slopes, slope_axes(alibi_slopes)))
    _check_together(function, sizes, k is not None, v is not None, rotary_cos is not None, rotary_sin is not None,
                    cache_seqlens is not None, cache_batch_idx is not None, paged)
    options = options_of(function, 0.0, softmax_scale, causal, window_size, softcap)
    slopes = one_row(alibi_slopes)
    attend(function, q[:0], k_cache[:0], v_cache[:0], options)  # raises for wrong options before anything is written

    batch, new = sizes["batch"], sizes.get("seqlen_new", 0)
    page_size = max(sizes.get("page_size", 1), 1)
    capacity = sizes["pages_a_sequence"] * sizes["page_size"] if paged else sizes["seqlen_cache"]
    start = cache_seqlens if is_int else capacity if cache_seqlens is None else 0
    starts = cache_seqlens.long() if isinstance(cache_seqlens, Tensor) else torch.full((batch,), start)
    ends = starts + new
    rows = torch.arange(batch) if cache_batch_idx is None else cache_batch_idx.long()
    places = starts[:, None] + torch.arange(new)
    is_local = causal or max(options.window) >= 0
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
        problems += outside("the list of rotary positions", torch.cat([turns, places], 1), 0, sizes["seqlen_ro"] - 1)
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
        out, lse = attend(function, q, k_cache[:batch], v_cache[:batch], options.having(
            key_length=ends, alibi_slopes=None if per_row else slopes))
    else:
        firsts = [0] * batch if cache_leftpad is None else cache_leftpad.tolist()
        tables = block_table.tolist() if paged else [None] * batch
        places = list(zip(tables, rows.tolist(), firsts, ends.tolist()))
        out, lse = _attend_rows(function, q, k_cache, v_cache, places, slopes if per_row else [slopes] * batch, options)
    return (out, lse) if return_softmax_lse else out
