"""Finds options that are equal to a mask: it guesses them from a few rows and then compares every entry.

It reads a mask through a function from rows to booleans [B, rows, Lk]. So the mask may be a tensor, or be computed one
tile of rows at a time.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Callable, Iterator

import torch
from torch import Tensor

from .options import NONE_GIVEN, Options

TILE = 1 << 22  # the most entries that are compared at a time
_SAMPLE = 16  # the number of rows from which the options are guessed

Read = Callable[[Tensor], Tensor]  # from the indices of rows to their entries [B, rows, Lk], True = attend


@dataclasses.dataclass(frozen=True, init=False, repr=False, eq=False)
class Structure(Options):
    """Options with a prefix: every query attends to the first `prefix` keys too. `prefix.calls()` makes calls of it."""

    prefix: int = 0

    def options(self) -> Options:
        return Options(**{name: value for name, value in vars(self).items() if name != "prefix"})


def any_of(allowed: Tensor, axis: int) -> Tensor:
    """Returns allowed.any(axis). It reduces bytes, which is several times as fast in torch."""
    return allowed.view(torch.uint8).amax(axis).view(torch.bool) if allowed.shape[axis] else allowed.any(axis)


def _differs(a: Tensor, b: Tensor) -> bool:
    a, b = torch.broadcast_tensors(a, b)
    return a.numel() > 0 and bool(a.view(torch.uint8).bitwise_xor(b.view(torch.uint8)).amax())


def tiles(count: int, entries: int) -> Iterator[Tensor]:
    """Yields the indices of `count` rows in tiles of at most TILE entries; one row has `entries`."""
    step = max(1, TILE // max(entries, 1))
    return (torch.arange(first, min(first + step, count)) for first in range(0, count, step))


class _Rows:
    """Compares the rows of a mask with a guess."""

    def __init__(self, read: Read, batch: int, count: int, keys: int) -> None:
        self.read, self.batch, self.count = read, batch, count
        self.key = torch.arange(keys, dtype=torch.int32)
        self.sample = torch.linspace(0, count - 1, min(count, _SAMPLE)).round().long()
        self.of_sample = read(self.sample)

    def _tiles(self) -> Iterator[tuple[Tensor, Tensor]]:
        return ((rows, self.read(rows)) for rows in tiles(self.count, self.batch * self.key.numel()))

    def _differ(self, rows: Tensor, allowed: Tensor, keys: Tensor | None = None,
                segments: tuple[Tensor, Tensor] | None = None, low: Tensor | None = None, high: Tensor | None = None,
                prefix: Tensor | None = None) -> bool:
        """Whether an entry of those rows differs from the guess, the conjunction of the given parts."""
        guess = torch.ones(1, 1, 1, dtype=torch.bool)
        row = rows.to(torch.int32)[None, :, None]
        for limit, compare in ((high, torch.le), (low, torch.ge)):
            if limit is not None:
                limit = limit[:1] if bool((limit == limit[0]).all()) else limit
                guess = guess & compare(self.key, row + limit[:, None, None])
        if prefix is not None:
            guess = guess | (self.key < prefix[:, None, None])
        if keys is not None:
            guess = guess & keys[:, None]
        if segments is not None:
            guess = guess & (segments[0][:, rows, None] == segments[1][:, None])
        return _differs(allowed, guess)

    def are(self, **guess: Any) -> bool:
        """Whether every entry equals the guess. It compares the sample first, where most wrong guesses fail."""
        return not self._differ(self.sample, self.of_sample, **guess) and not any(
            self._differ(rows, allowed, **guess) for rows, allowed in self._tiles())

    def keys(self) -> Tensor:
        """Returns which keys a query attends to, [B, Lk]."""
        seen = torch.zeros(self.batch, self.key.numel(), dtype=torch.bool)
        for _, allowed in self._tiles():
            seen |= any_of(allowed, 1)
        return seen

    def limits(self) -> tuple[Tensor, Tensor]:
        """Returns the smallest and the largest j - i of the allowed pairs in the sample, [B] each."""
        distance = self.key - self.sample.to(torch.int32)[:, None]
        far = self.key.numel() + self.count
        low = torch.where(self.of_sample, distance, far).amin((1, 2))
        high = torch.where(self.of_sample, distance, -far).amax((1, 2))
        return torch.where(low == far, 0, low), torch.where(high == -far, 0, high)

    def prefix(self) -> tuple[int, int]:
        """Returns, over all sequences, the end of the keys that the first row attends to, and the largest j - i of the
        rows that attend further."""
        last = torch.where(self.of_sample, self.key, -1).amax(2)
        end = int(last[:, 0].amax()) + 1
        further = (last - self.sample)[last >= end]
        return end, int(further.amax()) if len(further) else -self.count

    def reached(self, high: Tensor, low: Tensor | None = None) -> Tensor:
        """Returns the keys [B, Lk] that some query would attend to without padding."""
        last = self.key <= high[:, None] + (self.count - 1)
        return last if low is None else last & (self.key >= low[:, None])

    def are_runs(self) -> bool:
        """Whether the allowed keys of each row of the sample are consecutive."""
        starts = self.of_sample[..., 1:] & ~self.of_sample[..., :-1]
        return bool((starts.sum(-1) + self.of_sample[..., 0] <= 1).all())

    def are_apart(self) -> bool:
        """Whether any two rows of the sample are disjoint, or one contains the other."""
        a, b = self.of_sample[:, :, None], self.of_sample[:, None]
        common, more = any_of(a & b, 3), any_of(a & ~b, 3)
        return bool((~common | ~more | ~more.transpose(1, 2)).all())

    def segments(self) -> tuple[Tensor, Tensor]:
        """Returns segment ids of queries and keys, if the mask consists of segments: of a query its first allowed key,
        of a key the id of its queries. -1 is a query without keys, -2 a key without queries."""
        of_queries = torch.full((self.batch, self.count), -1, dtype=torch.int32)
        of_keys = torch.full((self.batch, self.key.numel()), -2, dtype=torch.int32)
        for rows, allowed in self._tiles():
            first = torch.from_numpy(allowed.numpy().argmax(-1)).to(torch.int32)  # NumPy stops at the first one
            of_queries[:, rows] = first.masked_fill(~any_of(allowed, -1), -1)
            of_keys = torch.maximum(of_keys, torch.where(allowed, first[:, :, None], -2).amax(1))
        return of_queries, of_keys

    def neighbours(self, high: Tensor) -> tuple[Tensor, Tensor]:
        """Returns segment ids if the tokens of a segment are consecutive, also if a window hides its first tokens: a
        segment begins at each token that does not attend to the one before it."""
        starts = torch.ones(self.batch, self.count, dtype=torch.bool)
        for rows, allowed in self._tiles():
            before = rows + high[:, None] - 1
            inside = (before >= 0) & (before < self.key.numel())
            sees = allowed.gather(2, before.clamp(0, self.key.numel() - 1)[:, :, None]).squeeze(2)
            starts[:, rows] = ~(sees & inside)
        of_queries = starts.cumsum(1, dtype=torch.int32)
        query = self.key - high[:, None]  # the query whose own key this is
        inside = (query >= 0) & (query < self.count)
        return of_queries, of_queries.gather(1, query.clamp(0, self.count - 1).long()).masked_fill(~inside, -2)


def _of_keys(keys: Tensor, reached: Tensor | None = None) -> Options:
    """Returns options for the keys [B, Lk] that exist; NONE_GIVEN if these are all keys that are reached anyway."""
    if bool((keys if reached is None else keys | ~reached).all()):
        return NONE_GIVEN
    lengths = keys.sum(-1)
    is_first = bool((keys == (torch.arange(keys.shape[1]) < lengths[:, None])).all())
    return Options(key_length=lengths) if is_first else Options(mask=keys[:, None, None, :].contiguous())


def _of_band(high: Tensor, low: Tensor | None) -> Options:
    """Returns low <= j - i <= high as causal with an offset and a window."""
    options = Options(causal=True, alignment="offset", offset=high.long())
    if bool((high == 0).all()):
        options = Options(causal=True, alignment="top_left")
    return options if low is None else options.having(window=(int((high - low).max()), -1))


def _of_segments(segments: tuple[Tensor, Tensor]) -> Options:
    return Options(query_segment_ids=segments[0], key_segment_ids=segments[1])


def _both(a: Options, b: Options) -> Options:
    return a.having(**vars(b))


def _find_prefix(rows: _Rows) -> Structure | None:
    """Finds a prefix of one length for all sequences, with causal keys after it."""
    end, distance = rows.prefix()
    if not 0 < end - distance < rows.count:
        return None
    keys, high = rows.keys(), torch.full((rows.batch,), distance)
    if not rows.are(keys=keys, high=high, prefix=torch.full((rows.batch,), end)):
        return None
    return Structure(prefix=end, **vars(_both(_of_band(high, None), _of_keys(keys, rows.reached(high)))))


def find_whole(read: Read, batch: int, count: int, key_count: int) -> Options | None:
    """Returns the options that are equal to a mask of `count` rows, which may be a Structure, or None."""
    found = find(read, batch, count, key_count)
    return _find_prefix(_Rows(read, batch, count, key_count)) if found is None else found


def find(read: Read, batch: int, count: int, key_count: int) -> Options | None:
    """Returns the options that are equal to a mask of `count` rows, or None."""
    rows = _Rows(read, batch, count, key_count)
    keys = rows.keys()
    if count == 1 or rows.are(keys=keys):
        return _of_keys(keys)
    low, high = rows.limits()
    if rows.are(keys=keys, high=high):
        return _both(_of_band(high, None), _of_keys(keys, rows.reached(high)))
    low = high - (high - low).max()  # all sequences have one width, which a short sequence may not fill
    if rows.are(keys=keys, high=high, low=low):
        return _both(_of_band(high, low), _of_keys(keys, rows.reached(high, low)))
    if rows.are_apart():
        segments = rows.segments()
        if rows.are(segments=segments):
            return _of_segments(segments)
        if rows.are(segments=segments, high=high):
            return _both(_of_segments(segments), _of_band(high, None))
    if rows.are_runs():
        segments = rows.neighbours(high)
        if rows.are(segments=segments, high=high, low=low):
            return _both(_of_segments(segments), _of_band(high, low))
    return None


def find_parts(read: Read, batch: int, count: int, key_count: int) -> list[Options] | None:
    """Returns find() as a list, or two options over disjoint keys: a prefix that all queries attend to, and the other
    keys, causal."""
    whole = find(read, batch, count, key_count)
    if whole is not None:
        return [whole]
    rows = _Rows(read, batch, count, key_count)
    prefix = rows.of_sample[:, 0].cumprod(1).sum(1, dtype=torch.int32)
    key = rows.key.expand(batch, -1)
    high = torch.where(rows.of_sample[:, -1], key, 0).amax(1) - (count - 1)
    if not rows.are(prefix=prefix, high=high):
        return None
    return [Options(key_length=prefix.long()),
            _of_band(high, None).having(mask=(key >= prefix[:, None])[:, None, None, :])]


def described(options: Options) -> str:
    """Returns the options that limit the keys of a query in words: "causal, key lengths"."""
    names = {"prefix": "prefix", "causal": "causal", "window": "window", "query_segment_ids": "segments",
             "key_length": "key lengths", "mask": "mask", "bias": "bias"}
    is_row = options.mask is not None and options.mask.shape[2] == 1
    found = [name for option, name in names.items() if option in vars(options)]
    return ", ".join("keys" if name == "mask" and is_row else name for name in found) or "all"
