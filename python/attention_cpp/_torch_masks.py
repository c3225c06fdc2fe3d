"""Masks of n x n entries that say what the operator takes in O(n): key lengths, causal, windows, documents.

A mask is read once: from a few of its rows comes a guess, and the guess is held against every entry. So results are
those of the mask. What was found is kept as long as the mask's memory lives and torch counts no change in it. (A change
that torch does not count, through NumPy or `.data`, is not seen; autograd would not see it either.)
"""

from __future__ import annotations

import threading
from collections import Counter, OrderedDict
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from . import _torch_ops

_TILE = 1 << 22  # entries that are compared at a time
_SAMPLE = 16  # rows that make the guess
_KEPT = 64  # masks that are remembered
WORTH_READING = 1 << 20  # (query, key) pairs of all heads: a call over fewer takes no longer than the reading

_counts: Counter[str] = Counter()

Structure = dict[str, Any]  # what a mask says, as options of the operator


# ------------------------------------------------------------------------------------------------------------- reading

def _differs(a: Tensor, b: Tensor) -> bool:
    """Of boolean tensors, as bytes, which torch compares several times as fast."""
    a, b = torch.broadcast_tensors(a, b)
    return a.numel() > 0 and bool(a.view(torch.uint8).bitwise_xor(b.view(torch.uint8)).amax())


def _any(allowed: Tensor, axis: int) -> Tensor:
    if allowed.shape[axis] == 0:
        return allowed.any(axis)
    return allowed.view(torch.uint8).amax(axis).view(torch.bool)


def as_allowed(mask: Tensor) -> Tensor | None:
    """A mask as a boolean one, True = attend; None of one that adds anything but 0 and -infinity.

    The lowest number serves as -infinity where it hides a key beside others; in a row that it fills it does not.
    """
    if mask.dtype == torch.bool:
        return mask
    lowest = -torch.inf if mask.dtype == torch.float16 else torch.finfo(mask.dtype).min
    allowed, hidden = mask == 0, mask <= lowest
    if not bool((allowed ^ hidden).view(torch.uint8).amin()):
        return None
    empty = ~_any(allowed, -1)
    return None if bool(empty.any()) and bool((mask[empty] != -torch.inf).any()) else allowed


class _Rows:
    """Rows of a mask [B, Lq, Lk], and what a guess would have in their place."""

    def __init__(self, allowed: Tensor) -> None:
        self.allowed = allowed
        count = allowed.shape[1]
        self.sample = torch.linspace(0, count - 1, min(count, _SAMPLE)).round().long()
        self.key = torch.arange(allowed.shape[2], dtype=torch.int32)

    def _has(self, rows: Tensor, of_rows: Tensor, keys: Tensor | None, documents: tuple[Tensor, Tensor] | None,
             low: Tensor | None, high: Tensor | None) -> bool:
        guess = torch.ones(1, 1, 1, dtype=torch.bool)
        row = rows.to(torch.int32)[None, :, None]
        for limit, compare in ((high, torch.le), (low, torch.ge)):
            if limit is not None:
                limit = limit[:1] if bool((limit == limit[0]).all()) else limit
                guess = guess & compare(self.key, row + limit[:, None, None])
        if keys is not None:
            guess = guess & keys[:, None]
        if documents is not None:
            guess = guess & (documents[0][:, rows, None] == documents[1][:, None])
        return not _differs(of_rows, guess)

    def are(self, **guess: Any) -> bool:
        """Whether every entry is what the guess says: the sample first, which refuses most that are not."""
        guess = {"keys": None, "documents": None, "low": None, "high": None, **guess}
        if not self._has(self.sample, self.allowed[:, self.sample], **guess):
            return False
        step = max(1, _TILE // max(self.allowed[:, 0].numel(), 1))
        return all(self._has(torch.arange(first, min(first + step, self.allowed.shape[1])),
                             self.allowed[:, first:first + step], **guess)
                   for first in range(0, self.allowed.shape[1], step))

    def limits(self) -> tuple[Tensor, Tensor]:
        """The least and the greatest j - i of an allowed pair in the sample, [B] each."""
        distance = self.key - self.sample.to(torch.int32)[:, None]
        rows, far = self.allowed[:, self.sample], self.key.numel() + self.allowed.shape[1]
        low = torch.where(rows, distance, far).amin((1, 2))
        high = torch.where(rows, distance, -far).amax((1, 2))
        return torch.where(low == far, 0, low), torch.where(high == -far, 0, high)

    def reached(self, high: Tensor, low: Tensor | None = None) -> Tensor:
        """Keys [B, Lk] that a query would see, were they all there."""
        last = self.key <= high[:, None] + (self.allowed.shape[1] - 1)
        return last if low is None else last & (self.key >= low[:, None])

    def documents(self) -> tuple[Tensor, Tensor]:
        """Ids of queries and keys, if these are documents: the first key that a query sees, of a key those of its
        queries. -1 and -2: nobody."""
        first = torch.from_numpy(self.allowed.numpy().argmax(-1)).to(torch.int32)  # NumPy's stops at the first
        of_keys = torch.full((self.allowed.shape[0], self.key.numel()), -2, dtype=torch.int32)
        step = max(1, _TILE // max(self.allowed[:, 0].numel(), 1))
        for start in range(0, self.allowed.shape[1], step):
            rows = slice(start, start + step)
            seen = torch.where(self.allowed[:, rows], first[:, rows, None], -2)
            of_keys = torch.maximum(of_keys, seen.amax(1))
        return first.masked_fill(~_any(self.allowed, -1), -1), of_keys


def _of_keys(keys: Tensor, reached: Tensor | None = None) -> dict[str, Any]:
    """Options for the keys [B, Lk] that there are, none where these are all that are reached anyway."""
    if bool((keys if reached is None else keys | ~reached).all()):
        return {}
    lengths = keys.sum(-1)
    is_first = bool((keys == (torch.arange(keys.shape[1]) < lengths[:, None])).all())
    return {"key_length": lengths} if is_first else {"mask": keys[:, None, None, :].contiguous()}


def described(options: dict[str, Any]) -> str:
    """Which options say who sees whom: "causal, key lengths"."""
    names = {"causal": "causal", "window": "window", "query_document": "documents", "key_length": "key lengths",
             "mask": "mask", "bias": "bias"}
    is_row = "mask" in options and options["mask"].shape[2] == 1
    found = [name for option, name in names.items() if option in options]
    return ", ".join("keys" if name == "mask" and is_row else name for name in found) or "all"


def _of_band(high: Tensor, low: Tensor | None) -> dict[str, Any]:
    """low <= j - i <= high is causal at an offset, with a window."""
    options: dict[str, Any] = {"causal": True, "alignment": "offset", "offset": high.long()}
    if bool((high == 0).all()):
        options = {"causal": True, "alignment": "top_left"}
    return options if low is None else {**options, "window": (int((high - low).max()), -1)}


def find(allowed: Tensor) -> Structure | None:
    """What a boolean mask [B, Lq, Lk] says, or None."""
    keys = _any(allowed[:, :1] if allowed.stride(1) == 0 else allowed, 1)
    rows = _Rows(allowed)
    if allowed.shape[1] == 1 or allowed.stride(1) == 0 or rows.are(keys=keys):
        return _of_keys(keys)
    low, high = rows.limits()
    if rows.are(keys=keys, high=high):
        return {**_of_band(high, None), **_of_keys(keys, rows.reached(high))}
    width = (high - low).max()  # the same for all sequences; in a shorter one it may not show
    if rows.are(keys=keys, high=high, low=high - width):
        return {**_of_band(high, high - width), **_of_keys(keys, rows.reached(high, high - width))}
    documents = rows.documents()
    named = dict(zip(("query_document", "key_document"), documents))
    if rows.are(documents=documents):
        return named
    return {**named, **_of_band(high, None)} if rows.are(documents=documents, high=high) else None


# ------------------------------------------------------------------------------------------------------------- keeping

# By the address of the memory, which is not given to another as long as a weak reference is there.
_kept: OrderedDict[tuple, tuple[StorageWeakRef, int, Structure | None]] = OrderedDict()
_lock = threading.Lock()


def _found(mask: Tensor) -> Structure | None:
    with torch.inference_mode(False), torch.no_grad():  # what is kept may serve a call that is recorded
        allowed = as_allowed(mask[:, 0])
        return None if allowed is None else find(allowed)


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


def add_mask(options: dict[str, Any], mask: Tensor, q: Tensor, k: Tensor) -> None:
    """Adds to the options what a mask [B|1, H|1, Lq|1, Lk|1] says: in O(n) where it can be, or else itself."""
    structure = structure_for(mask, q, k)
    if structure is None or structure.keys() & options.keys():
        structure = {"mask" if mask.dtype == torch.bool else "bias": mask}
    _counts[described(structure)] += 1
    options.update(structure)


def count_unread(mask: Tensor) -> None:
    """A call that takes its mask as it is."""
    _counts["mask" if mask.dtype == torch.bool else "bias"] += 1


def mask_counts() -> dict[str, int]:
    """How many calls with a mask there were, by what the mask was found to say: {"causal, key lengths": 24, "bias": 1}.

    "keys" is one row for all queries; "mask" and "bias" are masks of n x n entries that say nothing shorter, or calls
    over few pairs, where masks are not read.
    """
    return dict(_counts)
