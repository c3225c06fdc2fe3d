"""What flash_attn.py needs beside attention: checks of arguments, padding helpers and rotary embeddings."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ._arrays import wrong_types
from ._core import Error

FLOATING = (torch.float32, torch.float64, torch.bfloat16, torch.float16)


# --------------------------------------------------------------------------------------------------------------- checks

def fail(function: str, problems: list[str]) -> None:
    """Raises if there are any."""
    if problems:
        raise Error(f"[{function}] " + "; ".join(problems))


def check(function: str, **tensors: tuple[Any, str]) -> dict[str, int]:
    """Raises for everything that is wrong with the tensors of a call; returns the size of each axis by its name.

    Each comes with its axes, "batch 3 nheads": a name means one size, a number for itself, "batch+1" for one more.
    In front of them "?" if it may be None, and "int32:" its type, "floating:" any such; the others share one.
    """
    given = {name: (tensor, axes.lstrip("?").rpartition(":")) for name, (tensor, axes) in tensors.items()
             if tensor is not None or not axes.startswith("?")}
    wrong = [f"{name} must be a torch.Tensor, not {type(tensor).__name__}" for name, (tensor, _) in given.items()
             if not isinstance(tensor, Tensor)]
    if wrong:
        raise TypeError(f"[{function}] " + "; ".join(wrong))
    problems: list[str] = []
    sizes: dict[str, int] = {}
    shared = None
    for name, (tensor, (dtype, _, axes)) in given.items():
        if tensor.device.type != "cpu":
            problems.append(f"{name} is on {tensor.device}, must be on the CPU")
        if tensor.layout is not torch.strided or tensor.is_nested:
            problems.append(f"{name} must be a dense tensor")
            continue
        problems += _wrong_type(name, tensor.dtype, dtype, shared)
        if not dtype and shared is None and tensor.dtype in FLOATING:
            shared = tensor.dtype
        problems += _wrong_sizes(name, tensor.shape, axes.split(), sizes)
    fail(function, problems)
    return sizes


def _wrong_type(name: str, found: torch.dtype, wanted: str, shared: torch.dtype | None) -> list[str]:
    if wanted in ("", "floating"):
        if found not in FLOATING:
            return [f"{name} is {found}, must be float32, float64, bfloat16 or float16"]
        if wanted == "" and shared not in (None, found):
            return [f"{name} is {found}, must be {shared} as the others"]
        return []
    return [] if found == getattr(torch, wanted) else [f"{name} is {found}, must be torch.{wanted}"]


def _wrong_sizes(name: str, shape: torch.Size, axes: list[str], sizes: dict[str, int]) -> list[str]:
    if len(shape) != len(axes):
        return [f"{name} has {len(shape)} axes, must be ({', '.join(axes)})"]
    problems = []
    for axis, size in zip(axes, shape):
        extra = int(axis.endswith("+1"))
        wanted = int(axis) if axis.isdigit() else sizes.setdefault(axis.removesuffix("+1"), size - extra) + extra
        if size != wanted:
            problems.append(f"{name} {tuple(shape)} must be ({', '.join(axes)}) with {axis} = {wanted}, not {size}")
    return problems


def outside(name: str, values: Tensor, low: int, high: int | Tensor) -> list[str]:
    """The problem of values that are not in [low, high]."""
    wrong = (values < low) | (values > high)
    if not wrong.any():
        return []
    bound = high.expand_as(values)[wrong][0].item() if isinstance(high, Tensor) else high
    return [f"{name} has {values[wrong][0].item()}, must be in [{low}, {bound}]"]


# ---------------------------------------------------------------------------------------------------------------- pages

def lengths_of(function: str, name: str, cu_seqlens: Tensor, total: int | None = None) -> Tensor:
    """The length of each packed sequence."""
    lengths = cu_seqlens.long().diff()
    if len(cu_seqlens) < 2 or cu_seqlens[0] < 0 or (lengths < 0).any() or total is not None and cu_seqlens[-1] > total:
        fail(function, [f"{name} must rise from 0" + ("" if total is None else f" to at most {total}")])
    return lengths


def gathered(function: str, k: Tensor, v: Tensor, cu_seqlens_k: Tensor, block_table: Tensor) -> tuple[Tensor, ...]:
    """Packed copies of the keys and values that block_table names, and cu_seqlens_k from 0 on."""
    lengths = lengths_of(function, "cu_seqlens_k", cu_seqlens_k)
    cu_seqlens_k = cu_seqlens_k - cu_seqlens_k[0]
    page_size = k.shape[1]
    fail(function, outside("the lengths of cu_seqlens_k", lengths, 0, block_table.shape[1] * page_size))
    sequence = torch.arange(len(lengths)).repeat_interleave(lengths)
    place = torch.arange(len(sequence)) - cu_seqlens_k[sequence]
    pages, slots = block_table[sequence, place // max(page_size, 1)].long(), place % max(page_size, 1)
    fail(function, outside("block_table", pages, 0, len(k) - 1))
    return k[pages, slots], v[pages, slots], cu_seqlens_k


# -------------------------------------------------------------------------------------------------------------- padding

def _checked(function: str, name: str, tensor: Any, indices: Any, count: int | None = None) -> Tensor:
    """Indices (n,) of an axis, int32 or int64, as int64."""
    wrong = [f"{named} must be a torch.Tensor, not {type(value).__name__}"
             for named, value in ((name, tensor), ("indices", indices)) if not isinstance(value, Tensor)]
    if wrong:
        raise TypeError(f"[{function}] " + "; ".join(wrong))
    if tensor.dim() == 0 or indices.dim() != 1 or indices.dtype not in (torch.int32, torch.int64):
        fail(function, [f"{name} must have an axis, and indices (n,) be int32 or int64, "
                        f"not {tuple(indices.shape)} and {indices.dtype}"])
    problems = outside("indices", indices, 0, (len(tensor) if count is None else count) - 1)
    if count is not None and len(indices) != len(tensor):
        problems.append(f"indices has {len(indices)} entries, must have {len(tensor)}, one for each of {name}")
    fail(function, problems)
    return indices.long()


def _check_sizes(function: str, **sizes: int) -> None:
    wrong_types(function, **{name: (size, "whole number") for name, size in sizes.items()})
    fail(function, [f"{name} is {size}, must not be negative" for name, size in sizes.items() if size < 0])


def index_first_axis(input: Tensor, indices: Tensor) -> Tensor:
    """input[indices] on the first axis."""
    indices = _checked("index_first_axis", "input", input, indices)
    return input.index_select(0, indices)


def index_put_first_axis(values: Tensor, indices: Tensor, first_axis_dim: int) -> Tensor:
    """Zeros (first_axis_dim, ...), with values (n, ...) at the indices."""
    _check_sizes("index_put_first_axis", first_axis_dim=first_axis_dim)
    indices = _checked("index_put_first_axis", "values", values, indices, first_axis_dim)
    return values.new_zeros(first_axis_dim, *values.shape[1:]).index_copy(0, indices, values)


def pad_input(hidden_states: Tensor, indices: Tensor, batch: int, seqlen: int) -> Tensor:
    """hidden_states (total, ...), as of unpad_input(), as (batch, seqlen, ...): zero where there is no token."""
    _check_sizes("pad_input", batch=batch, seqlen=seqlen)
    indices = _checked("pad_input", "hidden_states", hidden_states, indices, batch * seqlen)
    return index_put_first_axis(hidden_states, indices, batch * seqlen).unflatten(0, (batch, seqlen))


def _check_mask(function: str, hidden_states: Any, mask: Any, name: str) -> None:
    if not isinstance(hidden_states, Tensor) or not isinstance(mask, Tensor):
        raise TypeError(f"[{function}] hidden_states and {name} must be torch tensors, not "
                        f"{type(hidden_states).__name__} and {type(mask).__name__}")
    if mask.dim() != 2 or hidden_states.shape[:2] != mask.shape:
        fail(function, [f"hidden_states {tuple(hidden_states.shape)} must start with the axes of {name} "
                        f"{tuple(mask.shape)}, (batch, seqlen)"])


def _unpadded(hidden_states: Tensor, is_token: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor, Tensor, int]:
    indices = is_token.flatten().nonzero().flatten()
    cu_seqlens = torch.nn.functional.pad(lengths.cumsum(0, dtype=torch.int32), (1, 0))
    longest = int(lengths.max()) if lengths.numel() else 0
    return index_first_axis(hidden_states.flatten(0, 1), indices), indices, cu_seqlens, longest


def unpad_input(hidden_states: Tensor, attention_mask: Tensor, unused_mask: Tensor | None = None
                ) -> tuple[Tensor, Tensor, Tensor, int, Tensor]:
    """The tokens of a padded batch, one sequence after the other.

    hidden_states (batch, seqlen, ...); attention_mask (batch, seqlen): 1 = a token; unused_mask: 1 = kept, but unused.
    Returns (tokens (total, ...), their indices (total,), cu_seqlens (batch + 1,) int32, the longest length,
    seqused (batch,): the lengths without the unused).
    """
    _check_mask("unpad_input", hidden_states, attention_mask, "attention_mask")
    if unused_mask is not None:
        _check_mask("unpad_input", hidden_states, unused_mask, "unused_mask")
    kept = attention_mask if unused_mask is None else attention_mask + unused_mask
    used = attention_mask.sum(-1, dtype=torch.int32)
    return (*_unpadded(hidden_states, kept, kept.sum(-1, dtype=torch.int32)), used)


def unpad_input_for_concatenated_sequences(hidden_states: Tensor, attention_mask_in_length: Tensor
                                           ) -> tuple[Tensor, Tensor, Tensor, int]:
    """The tokens of a padded batch whose rows each hold several sequences.

    hidden_states (batch, seqlen, ...); attention_mask_in_length (batch, seqlen): the lengths of the row's sequences,
    then zeros. Returns as unpad_input(), without seqused.
    """
    lengths = attention_mask_in_length
    _check_mask("unpad_input_for_concatenated_sequences", hidden_states, lengths, "attention_mask_in_length")
    is_token = torch.arange(lengths.shape[1]) < lengths.sum(-1, keepdim=True)
    return _unpadded(hidden_states, is_token, lengths[lengths != 0])


# --------------------------------------------------------------------------------------------------------------- rotary

def rotated(x: Tensor, cos: Tensor, sin: Tensor, places: Tensor, interleaved: bool) -> Tensor:
    """x (..., nheads, headdim), turned by the rows `places` (...) of cos and sin; rounded once."""
    width = 2 * cos.shape[-1]
    work = torch.float64 if x.dtype == torch.float64 else torch.float32
    c, s = (table[places].to(work).unsqueeze(-2) for table in (cos, sin))
    turned = x[..., :width].to(work)
    a, b = (turned[..., ::2], turned[..., 1::2]) if interleaved else turned.chunk(2, -1)
    pair = (a * c - b * s, a * s + b * c)
    turned = torch.stack(pair, -1).flatten(-2) if interleaved else torch.cat(pair, -1)
    return torch.cat([turned.to(x.dtype), x[..., width:]], -1)


def apply_rotary_emb(x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool = False, inplace: bool = False,
                     seqlen_offsets: int | Tensor = 0, cu_seqlens: Tensor | None = None,
                     max_seqlen: int | None = None) -> Tensor:
    """Rotary embedding of the first rotary_dim entries of each head.

    x               (batch, seqlen, nheads, headdim), or (total, nheads, headdim) with cu_seqlens (batch + 1,) int32
    cos, sin        (seqlen_ro, rotary_dim / 2)
    interleaved     pairs are (0, 1), (2, 3) ...; otherwise the first and the second half
    seqlen_offsets  int or (batch,): the place of each sequence's first token
    """
    function = "apply_rotary_emb"
    axes = "batch seqlen nheads headdim" if cu_seqlens is None else "total nheads headdim"
    offsets = None if isinstance(seqlen_offsets, int) else seqlen_offsets
    kind = "int64" if isinstance(offsets, Tensor) and offsets.dtype == torch.int64 else "int32"
    sizes = check(function, x=(x, axes), cos=(cos, "floating: seqlen_ro rotary_dim/2"),
                  sin=(sin, "floating: seqlen_ro rotary_dim/2"), cu_seqlens=(cu_seqlens, "?int32: batch+1"),
                  seqlen_offsets=(offsets, f"?{kind}: batch"))
    starts = torch.full((sizes["batch"],), seqlen_offsets) if offsets is None else offsets.long()
    if cu_seqlens is None:
        places = starts[:, None] + torch.arange(sizes["seqlen"])
    else:
        lengths = cu_seqlens.long().diff()
        if (lengths < 0).any() or cu_seqlens[0] != 0 or cu_seqlens[-1] != len(x):
            fail(function, [f"cu_seqlens must rise from 0 to {len(x)}"])
        places = torch.arange(len(x)) + (starts - cu_seqlens[:-1]).repeat_interleave(lengths)
    problems = outside("with seqlen_offsets the place of a token", places, 0, sizes["seqlen_ro"] - 1)
    if 2 * sizes["rotary_dim/2"] > sizes["headdim"]:
        problems.append(f"rotary_dim is {2 * sizes['rotary_dim/2']}, must be at most headdim = {sizes['headdim']}")
    fail(function, problems)
    turned = rotated(x, cos, sin, places, interleaved)
    return x.copy_(turned) if inplace else turned
