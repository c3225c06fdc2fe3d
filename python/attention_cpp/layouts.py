"""The block-sparse layouts of papers, as lists of key blocks for the option `blocks`.

    >>> blocks = layouts.bigbird(len(tokens), 64, side=1, global_blocks=2, random_blocks=3, seed=7)
    >>> out = attention(q, k, v, blocks=blocks, causal=True)

`length` are the tokens of a sequence that attends to itself, `block` the tokens of a block; n is the number of a query
block and m of a key block. With block=1 they are positions of tokens. Add causal=True to a call for the causal variant.
docs/operators/sparse_attention.md has sources and a picture of each. Every function raises Error and TypeError.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Sequence

import numpy as np

from . import _core
from ._arrays import exported, wrong_types

__all__ = ["BlockLists", "bigbird", "block_diagonal", "by_head", "dilated", "fixed", "local", "longformer", "prefix",
           "select_blocks", "select_keys", "strided"]


class BlockLists(NamedTuple):
    """A layout: the key blocks of query block n are indices[offsets[b, h, n]:offsets[b, h, n + 1]], which rise."""

    offsets: np.ndarray  # int64 [B|1, H|1, query blocks + 1]
    indices: np.ndarray  # int64 [listed blocks]
    query_block: int
    key_block: int


def _lists(name: str, length: int, block: int, **parameters: int) -> BlockLists:
    given = {"length": length, "block": block, **parameters}
    wrong_types(f"layouts.{name}", **{key: (value, "whole number") for key, value in given.items()})
    return _read(getattr(_core, f"layout_{name}")(*given.values()), block)


def _read(lists: tuple[int, int, Any, Any], query_block: int, key_block: int | None = None) -> BlockLists:
    *axes, offsets, indices = lists
    return BlockLists(np.frombuffer(offsets, np.int64).reshape(*axes, -1), np.frombuffer(indices, np.int64),
                      query_block, query_block if key_block is None else key_block)


def local(length: int, block: int, left: int, right: int) -> BlockLists:
    """Sliding window, in blocks: n - left <= m <= n + right. -1 sets no limit on that side."""
    return _lists("local", length, block, left=left, right=right)


def dilated(length: int, block: int, side: int, dilation: int) -> BlockLists:
    """Dilated sliding window (Longformer): m = n + t dilation for -side <= t <= side."""
    return _lists("dilated", length, block, side=side, dilation=dilation)


def strided(length: int, block: int, stride: int) -> BlockLists:
    """Strided (Child et al. 2019): |n - m| <= stride, or stride divides n - m."""
    return _lists("strided", length, block, stride=stride)


def fixed(length: int, block: int, stride: int, summary: int) -> BlockLists:
    """Fixed (Child et al. 2019): n // stride == m // stride, or m % stride >= stride - summary."""
    return _lists("fixed", length, block, stride=stride, summary=summary)


def longformer(length: int, block: int, side: int, global_blocks: Sequence[int] = ()) -> BlockLists:
    """Sliding window and global blocks (Longformer): |n - m| <= side, or n or m is one of `global_blocks`."""
    wrong_types("layouts.longformer", length=(length, "whole number"), block=(block, "whole number"),
                side=(side, "whole number"), global_blocks=(global_blocks, "list of whole numbers"))
    return _read(_core.layout_longformer(length, block, side, [int(m) for m in global_blocks]), block)


def bigbird(length: int, block: int, side: int = 1, global_blocks: int = 2, random_blocks: int = 3, seed: int = 0,
            heads: int = 1) -> BlockLists:
    """BigBird: |n - m| <= side, or n or m < global_blocks, or m is one of `random_blocks` others that are drawn for
    (seed, head, n)."""
    return _lists("bigbird", length, block, side=side, global_blocks=global_blocks, random_blocks=random_blocks,
                  seed=seed, heads=heads)


def block_diagonal(length: int, block: int) -> BlockLists:
    """Blocks that attend to themselves only: n == m."""
    return _lists("block_diagonal", length, block)


def prefix(length: int, block: int, prefix_blocks: int) -> BlockLists:
    """Prefix: m < prefix_blocks, or m <= n. Inside the block n = m a query attends to later keys too."""
    return _lists("prefix", length, block, prefix_blocks=prefix_blocks)


def by_head(*heads: BlockLists) -> BlockLists:
    """One layout for each head, from layouts of one head each and of equal sizes."""
    sizes = {(lists.offsets.shape[1:], *lists[2:]) for lists in heads}
    if len(sizes) != 1:
        raise _core.Error(f"[layouts.by_head] heads have {len(sizes)} different sizes (offsets, query_block, "
                          "key_block), must have 1")
    shifts = np.cumsum([0, *(len(lists.indices) for lists in heads)])
    return BlockLists(np.concatenate([lists.offsets + shift for lists, shift in zip(heads, shifts)], axis=1),
                      np.concatenate([lists.indices for lists in heads]), *heads[0][2:])


# ----------------------------------------------------------------------------------------------- selected by contents

def select_blocks(q: Any, k: Any, key_block: int, count: int, *, query_block: int = 1, causal: bool = False
                  ) -> BlockLists:
    """Selects the `count` key blocks with the largest <mean of the queries of a query block, mean of the block's keys>.

    q [B, H, Lq, D], k [B, Hk, Lk, D]. causal: no block after the last query's, and always the blocks of the queries'
    positions p_i = i + Lk - Lq. Of equal scores the lower block is selected. No gradient flows through the selection.
    """
    wrong_types("select_blocks", key_block=(key_block, "whole number"), count=(count, "whole number"),
                query_block=(query_block, "whole number"), causal=(causal, "True or False"))
    lists = _core.select_blocks(exported(q, "q"), exported(k, "k"), query_block, key_block, count, causal)
    return _read(lists, query_block, key_block)


def select_keys(scores: Any, count: int, *, causal: bool = False) -> BlockLists:
    """Selects the `count` keys of each query with the largest scores [B, H|1, Lq, Lk]. Of equal scores the lower key is
    selected, and none that is NaN or -infinity. causal: no key after p_i = i + Lk - Lq."""
    wrong_types("select_keys", count=(count, "whole number"), causal=(causal, "True or False"))
    return _read(_core.select_keys(exported(scores, "scores"), count, causal), 1)
