"""Computes a mask with a prefix that all rows attend to, in two calls over disjoint rows.

Row i attends to the prefix and to the keys up to its own. For rows inside the prefix this is the whole prefix; for
later rows it is causal. So each call has options of the operator, and its rows are rows of the result.
"""

from __future__ import annotations

import torch
from torch import Tensor

from . import autograd
from .options import Options
from .structure import Structure

Call = tuple[Tensor, Tensor, Tensor, Options]  # q, k, v and the options


def calls(q: Tensor, k: Tensor, v: Tensor, options: Options) -> list[Call]:
    """Returns the calls over consecutive rows for options that may be a Structure."""
    if not isinstance(options, Structure):
        return [(q, k, v, options)]
    prefix, later = options.prefix, options.options()
    if prefix == 0:
        return [(q, k, v, later)]
    before = later.without("causal", "alignment", "offset")
    if before.key_length is not None:
        before = before.having(key_length=before.key_length.clamp(max=prefix))
    if before.mask is not None:
        before = before.having(mask=before.mask[..., :prefix])
    offset = later.offset if later.alignment == "offset" else torch.zeros(len(q), dtype=torch.int64)
    rows = prefix - int(offset[0])
    return [(q[:, :, :rows], k[:, :, :prefix], v[:, :, :prefix], before),
            (q[:, :, rows:], k, v, later.having(alignment="offset", offset=offset + rows))]


def attention_output(q: Tensor, k: Tensor, v: Tensor, options: Options, simple: bool | None = None) -> Tensor:
    """Returns out [B, H, Lq, Dv], in memory in the order of q's axes. simple: autograd.is_simple_with(), if known."""
    if simple is None:
        simple = autograd.is_simple_with(q, k, v, options)
    results = [autograd.attention_output(*call, simple) for call in calls(q, k, v, options)]
    if len(results) == 1:
        return results[0]
    if q.stride(1) < q.stride(2):  # [B, L, H, D]
        return torch.cat([result.transpose(1, 2) for result in results], 1).transpose(1, 2)
    return torch.cat(results, 2)
