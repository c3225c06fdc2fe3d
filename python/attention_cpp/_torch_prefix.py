"""Masks of a prefix that all see: two calls over disjoint rows, of which each is what the operator takes.

Row i sees the keys before the prefix's end and those up to its own. Before that end this is all of the prefix, after
it it is causal, so that the rows of the two calls are the rows of the result, and nothing has to be merged.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from . import _torch_ops
from ._torch_structure import Structure

Call = tuple[Tensor, Tensor, Tensor, dict[str, Any]]  # q, k, v and the options


def calls(q: Tensor, k: Tensor, v: Tensor, options: Structure) -> list[Call]:
    """The calls over rows that follow one another, for options that find_whole() or find() have given."""
    if "prefix" not in options:
        return [(q, k, v, options)]
    behind = dict(options)
    prefix = behind.pop("prefix")
    before = {name: value for name, value in behind.items() if name not in ("causal", "alignment", "offset")}
    if "key_length" in before:
        before["key_length"] = before["key_length"].clamp(max=prefix)
    if "mask" in before:
        before["mask"] = before["mask"][..., :prefix]
    offset = behind["offset"] if behind["alignment"] == "offset" else torch.zeros(len(q), dtype=torch.int64)
    rows = prefix - int(offset[0])
    behind.update(alignment="offset", offset=offset + rows)
    return [(q[:, :, :rows], k[:, :, :prefix], v[:, :, :prefix], before), (q[:, :, rows:], k, v, behind)]


def attention_output(q: Tensor, k: Tensor, v: Tensor, options: Structure) -> Tensor:
    """out [B, H, Lq, Dv], in memory in the order of q's axes."""
    results = [_torch_ops.attention_output(q, k, v, **given) for q, k, v, given in calls(q, k, v, options)]
    if len(results) == 1:
        return results[0]
    if q.stride(1) < q.stride(2):  # [B, L, H, D]
        return torch.cat([result.transpose(1, 2) for result in results], 1).transpose(1, 2)
    return torch.cat(results, 2)
