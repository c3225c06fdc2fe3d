"""Replaces masks of n x n entries by options of O(n) that are equal to them: key lengths, causal, windows, segments.

A mask is read once (`structure`), and every entry is compared, so the results are those of the mask. `state` keeps the
options as long as the mask's memory is alive and torch counts no change of it. Torch does not count a change through
NumPy or `.data`, for autograd neither.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from . import autograd
from .options import Options
from .state import state
from .structure import Structure, any_of, described, find_whole

_KEPT = 64  # the most masks whose options are kept
WORTH_READING = 1 << 20  # pairs of all heads: a call over fewer takes no longer than reading the mask


def as_allowed(mask: Tensor) -> Tensor | None:
    """Returns the mask as booleans, True = attend, or None if it adds anything but 0 and -infinity.

    The lowest number of the type counts as -infinity, unless it fills a row.
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

def _found(mask: Tensor) -> Options | None:
    with torch.inference_mode(False), torch.no_grad():  # a later call with gradients may use what is kept
        allowed = as_allowed(mask[:, 0])
        if allowed is None:
            return None
        count = 1 if allowed.stride(1) == 0 else allowed.shape[1]
        return find_whole(lambda rows: allowed.index_select(1, rows), len(allowed), count, allowed.shape[2])


def structure_of(mask: Tensor) -> Options | None:
    """Returns the options that are equal to a mask [B, 1, Lq, Lk], boolean or floating, or None. Reads a mask once."""
    if mask.is_inference():  # torch counts no changes of such a tensor
        return _found(mask)
    storage, version = mask.untyped_storage(), mask._version
    # No other storage gets this address as long as there is a weak reference to it.
    key = (storage._cdata, mask.storage_offset(), mask.shape, mask.stride(), mask.dtype)
    masks = state.masks
    with state.lock:
        kept = masks.get(key)
        if kept is not None and kept[1] == version:
            return kept[2]
    result = _found(mask)
    with state.lock:
        masks[key] = (StorageWeakRef(storage), version, result)
        masks.move_to_end(key)
        for other in [other for other, kept in masks.items() if kept[0].expired()] + list(masks)[:-_KEPT]:
            masks.pop(other, None)
    return result


def is_worth_reading(q: Tensor, k: Tensor) -> bool:
    """Whether a call over q and k takes longer than reading its mask."""
    B, H, Lq, _ = q.shape
    return Lq > 1 and B * H * Lq * k.shape[2] >= WORTH_READING


def _is_readable(mask: Tensor, q: Tensor, k: Tensor) -> bool:
    """Whether the entries of a mask can be read, are the same for all heads, and are worth reading."""
    B, _, Lq, _ = q.shape
    return (is_worth_reading(q, k) and mask.dim() == 4 and mask.shape[0] in (1, B)
            and (mask.shape[1] == 1 or mask.stride(1) == 0) and mask.shape[2] in (1, Lq) and mask.shape[3] == k.shape[2]
            and not mask.requires_grad and not torch.compiler.is_compiling()
            and torch._C._len_torch_dispatch_stack() == 0 and type(mask) in autograd.PLAIN
            and not autograd.is_transformed())


def structure_for(mask: Tensor, q: Tensor, k: Tensor) -> Options | None:
    """Returns the options, for the whole batch, that are equal to a mask [B|1, H|1, Lq|1, Lk] of a call over q and k,
    or None."""
    if not _is_readable(mask, q, k):
        return None
    structure = structure_of(mask[:, :1])
    if structure is None or mask.shape[0] == q.shape[0]:
        return structure
    return structure.mapped(lambda name, value: value.expand(q.shape[0]) if name in ("key_length", "offset") else value)


def add_mask(options: Options, mask: Tensor, q: Tensor, k: Tensor, prefixes: bool = False) -> Options:
    """Adds a mask [B|1, H|1, Lq|1, Lk|1] to options: as options of O(n) that are equal to it, or as it is.

    prefixes: the result may be a Structure, for `prefix`.
    """
    structure = structure_for(mask, q, k)
    if isinstance(structure, Structure) and (not prefixes or state.observers):
        structure = None  # observers are called with whole calls
    if structure is not None and not vars(structure).keys() & vars(options).keys():
        count_mask(described(structure))
        return structure.having(**vars(options))
    count_unread(mask)
    return with_mask(options, mask)


def with_mask(options: Options, mask: Tensor) -> Options:
    """Adds a mask to options as it is: a boolean one as `mask`, a floating one as `bias`."""
    return options.having(mask=mask) if mask.dtype == torch.bool else options.having(bias=mask)


def count_unread(mask: Tensor) -> None:
    """Counts a call that takes its mask as it is."""
    count_mask("mask" if mask.dtype == torch.bool else "bias")


def count_mask(what: str) -> None:
    state.mask_counts[what] += 1  # without the lock, which torch.compile does not support


def mask_counts() -> dict[str, int]:
    """Returns the number of calls with a mask, by the options that are equal to the mask.

        >>> mask_counts()
        {'causal, key lengths': 24, 'bias': 1}

    "keys" is one row for all queries. "mask" and "bias" are masks that are equal to no such options, or that were not
    read: in calls with few pairs or with one query, and under a compiler or a transform.
    """
    return dict(state.mask_counts)
