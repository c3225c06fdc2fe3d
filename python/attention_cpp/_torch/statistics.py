"""Statistics of attention for a loss: the entropy of rows and the mass on sets of keys, with gradients.

Both are attention over special values. With v_j = (k_j, 1, [label_j = 0], [label_j = 1], ...), sum_j P_ij v_j contains
the masses of row i, and its entropy follows from s_ij = scale <q_i, k_j>:

    - sum_j P_ij ln P_ij = lse_i sum_j P_ij - scale <q_i, sum_j P_ij k_j>

So one call of the operator, and one of its backward, compute all of them in O(n) memory.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from . import autograd
from .._arrays import wrong_types
from .._core import Error
from .attention import as_tensors, check_tensors

_FUNCTION = "attention_statistics"
_OPTIONS = ("causal", "window", "alignment", "key_length", "query_length", "offset", "mask", "cu_seqlens_q",
            "cu_seqlens_k", "sink")


class RowStatistics(NamedTuple):
    """The result of attention_statistics()."""

    entropy: Tensor  # [B, H, Lq], in nats: - sum_j P_ij ln P_ij over the keys
    masses: Tensor  # [B, H, Lq, sets]: the mass of the keys of each label


def _check(query: Tensor, key: Tensor, labels: Tensor | None, label_sets: int | None, scale: float | None) -> None:
    check_tensors(_FUNCTION, query=query, key=key, **({} if labels is None else {"labels": labels}))
    wrong_types(_FUNCTION, scale=(1 if scale is None else scale, "number"),
                label_sets=(label_sets or 0, "whole number"))
    problems = []
    if query.dim() != 4 or key.dim() != 4 or query.dtype != key.dtype or query.shape[::3] != key.shape[::3]:
        problems.append(f"query is {query.dtype} {tuple(query.shape)} and key {key.dtype} {tuple(key.shape)}, must be "
                        "of one type, (B, H, Lq, D) and (B, Hk, Lk, D)")
    elif labels is not None and (labels.dim() != 2 or labels.shape[0] not in (1, len(key)) or labels.is_floating_point()
                                 or labels.shape[1] != key.shape[2]):
        problems.append(f"labels are {labels.dtype} {tuple(labels.shape)}, must be whole numbers (B or 1, Lk = "
                        f"{key.shape[2]})")
    if label_sets is not None and not 0 <= label_sets + query.shape[-1] < 1024 or (label_sets or 0) < 0:
        problems.append(f"label_sets is {label_sets}, must not be negative, and with D less than 1024")
    if problems:
        raise Error(f"[{_FUNCTION}] " + "; ".join(problems))


def attention_statistics(
    query: Tensor, key: Tensor, labels: Tensor | None = None, *, label_sets: int | None = None,
    scale: float | None = None, **options: Any
) -> RowStatistics:
    """Computes entropy and masses of attention rows for a loss, with gradients of query and key, in O(n) memory.

        >>> loss = attention_statistics(q, k, causal=True).entropy.mean()

    Arguments
        query, key  [B, H, Lq, D], [B, Hk, Lk, D], as in attention_cpp.attention(); 16-bit types are computed as float32
        labels      int [B|1, Lk]: the set of each key from 0 on, negative = in no set. label_sets is by default
                    max + 1; label_sets + D must be less than 1024
        scale       the factor on <q, k>; default 1 / sqrt(D)
        options     causal, window, alignment, key_length, query_length, offset, mask, cu_seqlens_q, cu_seqlens_k and
                    sink (a tensor [H] with a gradient), as in attention(), with tensors for arrays

    Returns RowStatistics(entropy, masses). attention_cpp.attention_statistics() has more, without gradients.

    Raises Error (a ValueError) or TypeError, which name what is wrong, and Error for any other option.
    """
    _check(query, key, labels, label_sets, scale)
    refused = sorted(set(options) - set(_OPTIONS))
    if refused:
        raise Error(f"[{_FUNCTION}] there are no gradients with {', '.join(refused)}; the allowed options are "
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
    given = as_tensors(_FUNCTION, {**options, "scale": scale})
    out, lse = autograd.attention(query, key, torch.cat(values, -1), given)
    finite = torch.where(lse == -torch.inf, 0, lse)  # an empty row has entropy 0, not NaN
    entropy = finite * out[..., D] - scale * (query * out[..., :D]).sum(-1)
    return RowStatistics(entropy, out[..., D + 1:])
