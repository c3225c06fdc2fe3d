"""Rotary embeddings with flash-attention's conventions."""

from __future__ import annotations

import torch
from torch import Tensor

from .arguments import check, fail, outside


def rotated(x: Tensor, cos: Tensor, sin: Tensor, places: Tensor, interleaved: bool) -> Tensor:
    """Rotates x (..., nheads, headdim) by the rows `places` (...) of cos and sin. The result is rounded once."""
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
    """Applies rotary embedding to the first rotary_dim entries of each head.

        >>> q = apply_rotary_emb(q, cos, sin, interleaved=True)

    x               (batch, seqlen, nheads, headdim), or (total, nheads, headdim) with cu_seqlens (batch + 1,) int32
    cos, sin        (seqlen_ro, rotary_dim / 2)
    interleaved     pairs are (0, 1), (2, 3) ...; otherwise the first and the second half
    inplace         write the result to x
    seqlen_offsets  int or (batch,), int32 or int64: the position of each sequence's first token
    max_seqlen      without effect

    Returns x if inplace, otherwise a new tensor. Raises Error or TypeError, which name everything that is wrong.
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
            fail(function, [f"cu_seqlens must rise from 0 to {len(x)}, the tokens of x"])
        places = torch.arange(len(x)) + (starts - cu_seqlens[:-1]).repeat_interleave(lengths)
    problems = outside("with seqlen_offsets the position of a token", places, 0, sizes["seqlen_ro"] - 1)
    if 2 * sizes["rotary_dim/2"] > sizes["headdim"]:
        problems.append(f"rotary_dim is {2 * sizes['rotary_dim/2']}, must be at most headdim = {sizes['headdim']}")
    fail(function, problems)
    turned = rotated(x, cos, sin, places, interleaved)
    return x.copy_(turned) if inplace else turned
