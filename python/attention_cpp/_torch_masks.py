"""Masks of n x n entries that say what the operator takes in O(n): key lengths, causal, windows, documents, prefixes.

A mask is read once (`_torch_structure`), with every entry compared, so results are those of the mask. What was found is
kept as long as the mask's memory lives and torch counts no change in it. (A change that torch does not count, through
NumPy or `.data`, is not seen; autograd would not see it either.)
"""

from __future__ import annotations

import threading
from collections import Counter, OrderedDict
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from . import _torch_ops
from ._torch_structure import Structure, any_of, described, find_whole

_KEPT = 64  # masks that are remembered
WORTH_READING = 1 << 20  # (query, key) pairs of all heads: a call over fewer takes no longer than the reading

_counts: Counter[str] = Counter()


def as_allowed(mask: Tensor) -> Tensor | None:
    """A mask as a boolean one, True = attend; None of one that adds anything but 0 and -infinity.

    The lowest number counts as -infinity where it hides a key beside others; in a row that it fills it does not.
    """
    if mask.dtype == torch.bool:
        return mask
    lowest = -torch.inf if mask.dtype == torch.float16 else torch.finfo(mask.dtype).min
    allowed, hidden = mask == 0, mask <= lowest
    if not bool((allowed ^ hidden).view(torch.uint8).amin()):
        return None
    empty = ~any_of(allowed, -1)
    return None if bool(empty.any()) and bool((mask[empty] != -torch.inf).any()) else allowed


# ------------------------------------------------------------------------------------------------------------- keeping

# By the address of the memory, which is not given to another as long as a weak reference is there.
_kept: OrderedDict[tuple, tuple[StorageWeakRef, int, Structure | None]] = OrderedDict()
_lock = threading.Lock()


def _found(mask: Tensor) -> Structure | None:
    with torch.inference_mode(False), torch.no_grad():  # what is kept may serve a call that is recorded
        allowed = as_allowed(mask[:, 0])
        if allowed is None:
            return None
        count = 1 if allowed.stride(1) == 0 else allowed.shape[1]
        return find_whole(lambda rows: allowed.index_select(1, rows), len(allowed), count, allowed.shape[2])


def structure_of(mask: Tensor) -> Structure | None:
    """What a mask [B, 1, Lq, Lk] says, boolean or added; None if nothing shorter. Read once."""
    if mask.is_inference():  # torch counts no changes of these
        return _found(mask)
    storage, version = mask.untyped_storage(), mask._version
    key = (storage._cdata, mask.storage_offset(), mask.shape, mask.stride(), mask.dtype)
    with _lock:
        kept = _kept.get(key)
        if kept is not None and kept[1] == version:
            return kept[2]
    result = _found(mask)
    with _lock:
        _kept[key] = (StorageWeakRef(storage), version, result)
        _kept.move_to_end(key)
        for other in [other for other, kept in _kept.items() if kept[0].expired()] + list(_kept)[:-_KEPT]:
            _kept.pop(other, None)
    return result


def is_worth_reading(q: Tensor, k: Tensor) -> bool:
    """Whether a call over q and k takes longer than the reading of a mask."""
    B, H, Lq, _ = q.shape
    return Lq > 1 and B * H * Lq * k.shape[2] >= WORTH_READING


def _is_readable(mask: Tensor, q: Tensor, k: Tensor) -> bool:
    """Whether its entries are there to be looked at, say the same of all heads, and are worth it."""
    B, _, Lq, _ = q.shape
    return (is_worth_reading(q, k) and mask.dim() == 4 and mask.shape[0] in (1, B)
            and (mask.shape[1] == 1 or mask.stride(1) == 0) and mask.shape[2] in (1, Lq) and mask.shape[3] == k.shape[2]
            and not mask.requires_grad and not torch.compiler.is_compiling()
            and torch._C._len_torch_dispatch_stack() == 0 and type(mask) in _torch_ops.PLAIN
            and not _torch_ops._is_transformed())


def structure_for(mask: Tensor, q: Tensor, k: Tensor) -> Structure | None:
    """What a mask [B|1, H|1, Lq|1, Lk] says in a call over q and k, for its whole batch."""
    if not _is_readable(mask, q, k):
        return None
    structure = structure_of(mask[:, :1])
    if structure is None or mask.shape[0] == q.shape[0]:
        return structure
    return {name: value.expand(q.shape[0]) if name in ("key_length", "offset") else value
            for name, value in structure.items()}


def add_mask(options: dict[str, Any], mask: Tensor, q: Tensor, k: Tensor, prefixes: bool = False) -> None:
    """Adds to the options what a mask [B|1, H|1, Lq|1, Lk|1] says: in O(n) where it can be, or else itself.

    prefixes: the options may be those that `_torch_prefix` takes.
    """
    structure = structure_for(mask, q, k)
    if structure is not None and "prefix" in structure and (not prefixes or _torch_ops.is_observed()):
        structure = None  # who watches sees whole calls
    if structure is not None and not structure.keys() & options.keys():
        count_mask(described(structure))
        options.update(structure)
        return
    count_unread(mask)
    options["mask" if mask.dtype == torch.bool else "bias"] = mask


def count_unread(mask: Tensor) -> None:
    """A call that takes its mask as it is."""
    count_mask("mask" if mask.dtype == torch.bool else "bias")


def count_mask(what: str) -> None:
    _counts[what] += 1  # without the lock, which torch.compile does not know


def mask_counts() -> dict[str, int]:
    """How many calls with a mask there were, by what the mask was found to say: {"causal, key lengths": 24, "bias": 1}.

    "keys" is one row for all queries; "mask" and "bias" are masks of which nothing shorter was found, or which were not
    read: in calls over few pairs, of one query, and where a compiler or a transform looks on.
    """
    return dict(_counts)
