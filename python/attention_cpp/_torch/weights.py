"""attention_cpp.torch.attention_weights: any rectangle of the attention matrix, with gradients.

The library computes W_ij = exp(s_ij - lse_i). The gradient needs this rectangle only: ds_ij = W_ij dW_ij for the score,
and -sum_j ds_ij for lse_i, through which the other keys of a row get theirs. It consists of torch's operations, so it
has derivatives itself.
"""

from __future__ import annotations

import math
from typing import Any, Sequence, Unpack

import torch
from torch import Tensor
from torch.nn.functional import pad

from . import autograd
from .. import _core
from .._arrays import wrong_types
from .._core import Error
from .._operator import _range_of
from .._options import axis_of
from .attention import as_tensors, check_tensors, with_axes
from .operators import readable, readable_options
from .options import SCHEMA, NAMES, OptionArguments, Options, flat, from_flat

_library = torch.library.Library("attention_cpp", "FRAGMENT")
_library.define(f"attention_weights(Tensor q, Tensor k, Tensor lse, {SCHEMA}, int first_query, int first_key, "
                "int rows, int columns) -> Tensor")


# -------------------------------------------------------------------------------------------------------- the operator

def _forward(q: Tensor, k: Tensor, lse: Tensor, *rest) -> Tensor:
    *values, first_query, first_key, rows, columns = rest
    weights = lse.new_empty((*q.shape[:2], rows, columns))
    _core.weights(readable(q), readable(k), readable(lse), readable(weights), first_query, first_key,
                  readable_options(from_flat(values)))
    return weights


def _save(ctx, inputs, output) -> None:
    q, k, lse, *rest = inputs
    options, ctx.rectangle = from_flat(rest), rest[len(NAMES):]
    ctx.scale, ctx.softcap, bias = options.scale, options.softcap, options.bias
    ctx.of_bias = None if bias is None else bias.shape
    ctx.bias_dtype = None if bias is None else bias.dtype
    ctx.length = lse.shape[2]
    ctx.save_for_backward(q, k, output)


def _grouped(of_heads: Tensor, kv_heads: int) -> Tensor:
    """Returns [B, H, rows, n] as [B, Hk, G rows, n]."""
    return of_heads.unflatten(1, (kv_heads, -1)).flatten(2, 3)


def _of_bias(ds: Tensor, shape: torch.Size, rectangle: Sequence[int]) -> Tensor:
    """Returns the gradient of the bias: that of the scores, summed over axes that were broadcast, 0 outside of the
    rectangle."""
    ds = ds.sum([axis for axis in range(4) if shape[axis] == 1], keepdim=True) if 1 in shape else ds
    around = []
    for axis, first in ((3, rectangle[1]), (2, rectangle[0])):
        around += [0, 0] if shape[axis] == 1 else [first, shape[axis] - first - ds.shape[axis]]
    return pad(ds, around)


def _backward(ctx, d_weights: Tensor):
    q, k, weights = ctx.saved_tensors
    first_query, first_key, rows, columns = ctx.rectangle
    kv_heads, work = k.shape[1], weights.dtype
    # Queries without allowed keys, and keys without queries, do not reach the gradients, not even as NaN.
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
    """Computes the weights before dropout, [B, H, rows, columns], for rows and columns (first, count)."""
    return torch.ops.attention_cpp.attention_weights(q, k, lse, *flat(options.without("dropout", "seed")), rows[0],
                                                     columns[0], rows[1], columns[1])


# ------------------------------------------------------------------------------------------------------ some rows alone

def options_of_heads(options: Options, index: Tensor) -> Options:
    """Returns the options of some heads."""
    def of_heads(name: str, value: Any) -> Any:
        axis = axis_of(name, "H")
        return value if axis is None or axis > 0 and value.shape[axis] == 1 else value.index_select(axis, index)

    return options.mapped(of_heads)


def options_of_rows(options: Options, q: Tensor, k: Tensor, first: int, count: int) -> Options | None:
    """Returns the options of `count` queries from `first` on, or None for packed sequences and blocks, which have no
    such options."""
    if options.cu_seqlens_q is not None or options.blocks is not None:
        return None

    def of_rows(name: str, value: Any) -> Any:
        axis = axis_of(name, "Lq")
        return value if axis is None or value.shape[axis] == 1 else value.narrow(axis, first, count)

    given = options.without("alignment", "query_length").mapped(of_rows)
    if options.alignment is None and q.shape[2] != k.shape[2]:
        return given  # no option depends on a query's position, or the operator raises Error
    position = torch.full((q.shape[0],), first)
    if options.alignment == "offset":
        position = position + options.offset
    elif options.alignment == "bottom_right":
        keys = k.shape[2] if options.key_length is None else options.key_length
        position = position + keys - (q.shape[2] if options.query_length is None else options.query_length)
    return given.having(alignment="offset", offset=position)


def _lse(q: Tensor, k: Tensor, options: Options, first: int, count: int) -> Tensor:
    """Computes lse [B, H, Lq] with gradients. If only some rows are wanted, the others are 0."""
    given = options_of_rows(options, q, k, first, count) if count < q.shape[2] else None
    value = k[..., :1].detach()
    if given is None:
        return autograd.attention(q, k, value, options)[1]
    lse = autograd.attention(q.narrow(2, first, count), k, value, given)[1]
    return pad(lse, (first, q.shape[2] - first - count))


def attention_weights(q: Tensor, k: Tensor, lse: Tensor | None = None, rows: slice | range | int | None = None,
                      columns: slice | range | int | None = None, *,
                      heads: int | slice | range | Sequence[int] | None = None, **options: Unpack[OptionArguments]
                      ) -> Tensor:
    """Computes any rectangle of the attention matrix P, with gradients of q, k, lse and bias, for losses on attention.

        >>> out, lse = attention(q, k, v, causal=True, return_lse=True)
        >>> last = attention_weights(q, k, lse, rows=range(990, 1000), causal=True)     # [B, H, 10, Lk]
        >>> loss = -(target * last.clamp_min(1e-12).log()).sum(-1).mean()

    Arguments
        q, k        [B, H, Lq, D] and [B, Hk, Lk, D], as in attention(). Both may lack leading axes
        lse         [B, H, Lq] of attention(..., return_lse=True). Its backward then takes the gradient of lse too, at
                    no cost if out has a gradient. None: computed here, for the wanted rows only, or for all rows of
                    packed sequences and blocks
        rows        the queries: a slice, a range, one index, or None for all; columns selects the keys in the same way
        heads       the query heads: as rows, or a list of indices
        options     the options of attention()

    Memory, forward and backward, is O(rows x columns) for each head, besides tensors of the size of q and k. An empty
    row is 0, with gradient 0.

    Returns [B, heads, rows, columns] float32 (float64 for float64): the weights before dropout. Over all keys, a row
    sums to 1 minus its sink's share.

    Raises Error (a ValueError) or TypeError, as attention() does.
    """
    given = as_tensors("attention_weights", {**options, "dropout": None, "seed": None})
    check_tensors("attention_weights", given, q=q, k=k, **({} if lse is None else {"lse": lse}))
    axes = q.dim()
    if not 2 <= axes <= 4 or k.dim() != axes or lse is not None and lse.dim() != axes - 1:
        raise Error(f"[attention_weights] q and k have {axes} and {k.dim()} axes, must have 4, or both of them 2 or 3, "
                    "and lse one less")
    q, k = autograd.autocast(with_axes(q, 4), with_axes(k, 4))
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
    """Returns the indices of the selected heads of `count`. Raises Error for one that does not exist."""
    if isinstance(heads, int):
        heads = [heads]
    if not isinstance(heads, slice):
        wrong_types("attention_weights", heads=(heads, "list of whole numbers"))
    index = torch.arange(count)[heads] if isinstance(heads, slice) else torch.as_tensor(list(heads), dtype=torch.int64)
    if index.numel() and not 0 <= int(index.min()) <= int(index.max()) < count:
        raise Error(f"[attention_weights] heads must be in [0, {count}), not {index.tolist()}")
    return index
