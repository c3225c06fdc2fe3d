"""The lengths of packed sequences, and keys and values that are gathered from KV pages."""

from __future__ import annotations

import torch
from torch import Tensor

from .arguments import fail, outside


def lengths_of(function: str, name: str, cu_seqlens: Tensor, total: int | None = None) -> Tensor:
    """Returns the length of each packed sequence, (batch,) int64. Raises Error if cu_seqlens decreases or exceeds the
    total."""
    lengths = cu_seqlens.long().diff()
    if len(cu_seqlens) < 2 or cu_seqlens[0] < 0 or (lengths < 0).any() or total is not None and cu_seqlens[-1] > total:
        fail(function, [f"{name} must rise from 0" + ("" if total is None else f" to at most {total}")])
    return lengths


def gathered(function: str, k: Tensor, v: Tensor, cu_seqlens_k: Tensor, block_table: Tensor) -> tuple[Tensor, ...]:
    """Returns packed copies of the keys and values in the KV pages of block_table, and cu_seqlens_k from 0 on."""
    lengths = lengths_of(function, "cu_seqlens_k", cu_seqlens_k)
    cu_seqlens_k = cu_seqlens_k - cu_seqlens_k[0]
    page_size = k.shape[1]
    fail(function, outside("the lengths of cu_seqlens_k", lengths, 0, block_table.shape[1] * page_size))
    sequence = torch.arange(len(lengths)).repeat_interleave(lengths)
    place = torch.arange(len(sequence)) - cu_seqlens_k[sequence]
    pages, slots = block_table[sequence, place // max(page_size, 1)].long(), place % max(page_size, 1)
    fail(function, outside("block_table", pages, 0, len(k) - 1))
    return k[pages, slots], v[pages, slots], cu_seqlens_k
