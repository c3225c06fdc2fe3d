"""Statistics of attention that a loss may have: entropy of rows and mass on sets of keys, with gradients.

Both are attention over values of their own. With values v_j = (k_j, 1, [label_j = 0], [label_j = 1], ...) a row gives
sum_j P_ij v_j: its masses, and in

    - sum_j P_ij ln P_ij = lse_i sum_j P_ij - scale <q_i, sum_j P_ij k_j>        as s_ij = scale <q_i, k_j>

its entropy. So one call of the operator, and one of its backward, have all of them in O(n) memory.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from . import _torch_ops
from ._core import Error

_OPTIONS = ("causal", "window", "alignment", "key_length", "query_length", "offset", "mask", "cu_query", "cu_key",
            "sink")


class RowStatistics(NamedTuple):
    """Of attention_statistics()."""

    entropy: Tensor  # [B, H, Lq], in nats: - sum_j P_ij ln P_ij over the keys
    masses: Tensor  # [B, H, Lq, sets]: the weight on the keys of each label


def attention_statistics(
    query: Tensor, key: Tensor, labels: Tensor | None = None, *, label_sets: int | None = None,
    scale: float | None = None, **options: Any
) -> RowStatistics:
    """Entropy and masses of attention's rows with gradients of query and key, to be used in a loss; O(n) memory.

    Arguments
        query, key  [B, H, Lq, D], [B, Hk, Lk, D], as in attention_cpp.attention(); 16-bit numbers count as float32
        labels      int [B|1, Lk]: the set of each key from 0 on, negative = none; label_sets, default max + 1, and D
                    are less than 1024 together
        scale       the factor on <q, k>; default 1 / sqrt(D)
        options     causal, window, alignment, key_length, query_length, offset, mask, cu_query, cu_key, sink (a tensor
                    [H], which has a gradient too), as in attention(), arrays as tensors. All else is refused.

    Returns RowStatistics(entropy, masses). attention_cpp.attention_statistics() has more, without gradients.
    """
    refused = sorted(set(options) - set(_OPTIONS))
    if refused:
        raise Error(f"[attention_statistics] of {', '.join(refused)} there is no gradient; there are "
                    f"{', '.join(_OPTIONS)}")
    if query.dtype in (torch.bfloat16, torch.float16):
        query, key = query.float(), key.float()
    D = query.shape[-1]
    scale = D ** -0.5 if scale is None else scale
    values = [key, key.new_ones(1).expand(*key.shape[:-1], 1)]
    if labels is not None:
        sets = label_sets if label_sets is not None else max(int(labels.max()) + 1, 0)
        members = (labels[:, None, :, None] == torch.arange(sets)).to(key.dtype)
        values.append(members.expand(*key.shape[:-1], sets))
    out, lse = _torch_ops.attention(query, key, torch.cat(values, -1), scale=scale, **options)
    finite = torch.where(lse == -torch.inf, 0, lse)  # a row without keys has no weights either
    entropy = finite * out[..., D] - scale * (query * out[..., :D]).sum(-1)
    return RowStatistics(entropy, out[..., D + 1:])
