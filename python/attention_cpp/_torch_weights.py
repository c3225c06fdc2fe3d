"""attention_cpp.torch.attention_weights: any rectangle of the attention matrix, with gradients.

W_ij = exp(s_ij - lse_i) comes from the library. Its gradient needs what was asked for and nothing else of the matrix:
ds_ij = W_ij dW_ij for the score, -sum_j ds_ij for lse_i, through which a row's other keys matter. It is made of torch's
operations, and so has derivatives itself.
"""

from __future__ import annotations

import math
from typing import Any, Sequence, Unpack

import torch
from torch import Tensor
from torch.nn.functional import pad

from . import _core, _torch_ops
from ._arrays import wrong_types
from ._core import Error
from ._operator import _range_of
from ._torch_attention import as_tensors, check_tensors, tensors_of, with_axes
from ._torch_options import NAMES, SCHEMA, Options, in_order

_library = torch.library.Library("attention_cpp", "FRAGMENT")
_library.define(f"attention_weights(Tensor q, Tensor k, Tensor lse, {SCHEMA}, int first_query, int first_key, "
                "int rows, int columns) -> Tensor")


# -------------------------------------------------------------------------------------------------------- the operator

def _forward(q: Tensor, k: Tensor, lse: Tensor, *rest) -> Tensor:
    *options, first_query, first_key, rows, columns = rest
    weights = lse.new_empty((*q.shape[:2], rows, columns))
    _core.weights(_torch_ops._raw(q), _torch_ops._raw(k), _torch_ops._raw(lse), _torch_ops._raw(weights), first_query,
                  first_key, _torch_ops._options(*options))
    return weights


def _save(ctx, inputs, output) -> None:
    q, k, lse, *rest = inputs
    options, ctx.rectangle = dict(zip(NAMES, rest)), rest[len(NAMES):]
    ctx.scale, ctx.softcap = options["scale"], options["softcap"]
    bias = options["bias"]
    ctx.of_bias = None if bias is None else bias.shape
    ctx.bias_dtype = None if bias is None else bias.dtype
    ctx.length = lse.shape[2]
    ctx.save_for_backward(q, k, output)


def _grouped(of_heads: Tensor, kv_heads: int) -> Tensor:
    """[B, H, rows, n] as [B, Hk, G rows, n]."""
    return of_heads.unflatten(1, (kv_heads, -1)).flatten(2, 3)


def _of_bias(ds: Tensor, shape: torch.Size, rectangle: Sequence[int]) -> Tensor:
    """The gradient of the scores, summed over the axes that were broadcast, and 0 around the rectangle."""
    ds = ds.sum([axis for axis in range(4) if shape[axis] == 1], keepdim=True) if 1 in shape else ds
    around = []
    for axis, first in ((3, rectangle[1]), (2, rectangle[0])):
        around += [0, 0] if shape[axis] == 1 else [first, shape[axis] - first - ds.shape[axis]]
    return pad(ds, around)


def _backward(ctx, d_weights: Tensor):
    q, k, weights = ctx.saved_tensors
    first_query, first_key, rows, columns = ctx.rectangle
    kv_heads, work = k.shape[1], weights.dtype
    # What no one sees is not read, not even NaN.
    queries = q.narrow(2, first_query, rows).to(work).masked_fill((weights == 0).all(3, keepdim=True), 0)
    unseen = _grouped(weights == 0, kv_heads).all(2).unsqueeze(-1)
    keys = k.narrow(2, first_key, columns).to(work).masked_fill(unseen, 0)
    queries = _grouped(queries, kv_heads)
    scale = 1 / math.sqrt(q.shape[-1]) if ctx.scale is None else ctx.scale
    ds = weights * d_weights
    dr = _grouped(ds, kv_heads)
    if ctx.softcap > 0:
        dr = dr * (1 - torch.tanh(scale / ctx.softcap * queries @ keys.transpose(-1, -2)).square())
    dq = (scale * dr @ keys).unflatten(2, (-1, rows)).flatten(1, 2)
    dk = scale * dr.transpose(-1, -2) @ queries
    gradients = [pad(dq, (0, 0, first_query, q.shape[2] - first_query - rows)).to(q.dtype),
                 pad(dk, (0, 0, first_key, k.shape[2] - first_key - columns)).to(k.dtype),
                 pad(-ds.sum(-1), (first_query, ctx.length - first_query - rows)),
                 None if ctx.of_bias is None else _of_bias(ds, ctx.of_bias, ctx.rectangle).to(ctx.bias_dtype)]
    return (*gradients, *[None] * (len(ctx.needs_input_grad) - len(gradients)))


_library.impl("attention_weights", _forward, "CPU")
torch.library.register_autograd("attention_cpp::attention_weights", _backward, setup_context=_save, lib=_library)


@torch.library.register_fake("attention_cpp::attention_weights", lib=_library)
def _(q, k, lse, *rest):
    return lse.new_empty((*q.shape[:2], *rest[-2:]))


def weights_of(q: Tensor, k: Tensor, lse: Tensor, options: Options, rows: tuple[int, int], columns: tuple[int, int]
               ) -> Tensor:
    """[B, H, rows, columns] for rows and columns (first, count)."""
    return torch.ops.attention_cpp.attention_weights(q, k, lse, *in_order({**options, "dropout": 0.0, "seed": None}),
                                                     rows[0], columns[0], rows[1], columns[1])


# ------------------------------------------------------------------------------------------------------ some rows alone

def options_of_heads(options: dict[str, Any], index: Tensor) -> dict[str, Any]:
    """The options of those heads alone."""
    given = dict(options)
    for name, axis in (("mask", 1), ("bias", 1), ("alibi_slopes", 0), ("sink", 0)):
        if name in given and (axis == 0 or given[name].shape[axis] > 1):
            given[name] = given[name].index_select(axis, index)
    if "blocks" in given and given["blocks"][0].shape[1] > 1:
        given["blocks"] = (given["blocks"][0].index_select(1, index), *given["blocks"][1:])
    return given


def options_of_rows(options: dict[str, Any], q: Tensor, k: Tensor, first: int, count: int) -> dict[str, Any] | None:
    """The options of those queries alone; None where they do not say it: in packed sequences and blocks."""
    if "cu_seqlens_q" in options or "blocks" in options:
        return None
    given = dict(options)
    for name, axis in (("mask", 2), ("bias", 2), ("query_segment_ids", 1)):
        if name in given and given[name].shape[axis] > 1:
            given[name] = given[name].narrow(axis, first, count)
    alignment, query_length = given.pop("alignment", None), given.pop("query_length", q.shape[2])
    if alignment is None and q.shape[2] != k.shape[2]:
        return given  # no option asks where a query is, or the call is refused
    place = torch.full((q.shape[0],), first)
    if alignment == "offset":
        place = place + given["offset"]
    elif alignment == "bottom_right":
        place = place + given.get("key_length", k.shape[2]) - query_length
    return {**given, "alignment": "offset", "offset": place}


def _lse(q: Tensor, k: Tensor, options: dict[str, Any], first: int, count: int) -> Tensor:
    """[B, H, Lq] with gradients; of few rows those alone, the others 0."""
    given = options_of_rows(options, q, k, first, count) if count < q.shape[2] else None
    value = k[..., :1].detach()
    if given is None:
        return _torch_ops.attention(q, k, value, **options)[1]
    lse = _torch_ops.attention(q.narrow(2, first, count), k, value, **given)[1]
    return pad(lse, (first, q.shape[2] - first - count))


def attention_weights(q: Tensor, k: Tensor, lse: Tensor | None = None, rows: slice | range | int | None = None,
                      columns: slice | range | int | None = None, *,
                      heads: int | slice | range | Sequence[int] | None = None, **options: Unpack[Options]) -> Tensor:
    """Any rectangle of the attention matrix P, with gradients of q, k, lse and bias: losses on attention itself.

        >>> out, lse = attention(q, k, v, causal=True, return_lse=True)
        >>> last = attention_weights(q, k, lse, rows=range(990, 1000), causal=True)     # [B, H, 10, Lk]
        >>> loss = -(target * last.clamp_min(1e-12).log()).sum(-1).mean()

    Arguments
        q, k        [B, H, Lq, D] and [B, Hk, Lk, D], as in attention(). Leading axes may be missing in both
        lse         [B, H, Lq] of attention(..., return_lse=True), which also takes the gradient of lse, at no cost if
                    out has one as well. None: computed here, of the rows that are asked for alone unless there are
                    packed sequences or blocks
        rows        which queries: a slice, a range, one index, or None for all; columns which keys
        heads       which query heads: as rows, or a list of them
        options     those of attention()

    Memory, forward and backward, is O(rows x columns) for each head, besides tensors of the size of q and k. A row
    that sees no key is 0, with gradient 0.

    Returns [B, heads, rows, columns] float32 (float64 for float64): the weights before dropout. A row sums to 1 over
    all keys, less its sink's share.

    Raises Error (a ValueError) or TypeError, as attention() does.
    """
    given = as_tensors("attention_weights", {**options, "dropout": 0.0, "seed": None})
    check_tensors("attention_weights", q=q, k=k, **({} if lse is None else {"lse": lse}), **tensors_of(given))
    axes = q.dim()
    if not 2 <= axes <= 4 or k.dim() != axes or lse is not None and lse.dim() != axes - 1:
        raise Error(f"[attention_weights] q and k have {axes} and {k.dim()} axes, must have 4, or both of them 2 or 3, "
                    "and lse one less")
    q, k = _torch_ops.autocast(with_axes(q, 4), with_axes(k, 4))
    lse = None if lse is None else with_axes(lse, 3)
    if heads is not None:
        index = head_index(heads, q.shape[1])
        given = options_of_heads(given, index)
        lse = None if lse is None else lse.index_select(1, index)
        k = k.index_select(1, index // max(q.shape[1] // max(k.shape[1], 1), 1))
        q = q.index_select(1, index)
    first_query, row_count = _range_of(rows, q.shape[2], "rows")
    first_key, column_count = _range_of(columns, k.shape[2], "columns")
    if lse is None:
        lse = _lse(q, k, given, first_query, row_count)
    weights = weights_of(q, k, lse, given, (first_query, row_count), (first_key, column_count))
    return weights.reshape(weights.shape[4 - axes:])


def head_index(heads: int | slice | range | Sequence[int], count: int) -> Tensor:
    if isinstance(heads, int):
        heads = [heads]
    if not isinstance(heads, slice):
        wrong_types("attention_weights", heads=(heads, "list of whole numbers"))
    index = torch.arange(count)[heads] if isinstance(heads, slice) else torch.as_tensor(list(heads), dtype=torch.int64)
    if index.numel() and not 0 <= int(index.min()) <= int(index.max()) < count:
        raise Error(f"[attention_weights] heads must be in [0, {count}), not {index.tolist()}")
    return index
