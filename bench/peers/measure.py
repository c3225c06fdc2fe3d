"""Timing of one workload, ours and a peer in turn, with every result checked before it is timed."""

import math
import statistics
from collections.abc import Callable
from dataclasses import dataclass

from oracle import Expected, error_of
from ours import Ours
from peers import Peer, Prepared, first_line
from tensors import Tensors
from timing import extra_bytes, run_in, seconds_of, settle
from workloads import Workload

SAMPLE_SECONDS = 0.02  # a sample is as many calls as fill it
PAIR_SECONDS = 4.0  # beyond it fewer repeats, but at least 3
BOUNDS = {"float32": 1e-5, "bfloat16": 2e-2}  # no result below its bound is called wrong


@dataclass
class Timing:
    """Seconds of a call."""

    median: float
    spread: float  # (max - min) / median

    @staticmethod
    def of(samples: list[float]) -> "Timing":
        middle = statistics.median(samples)
        return Timing(middle, (max(samples) - min(samples)) / middle)


@dataclass
class Row:
    """One workload on some threads, against one peer."""

    workload: Workload
    threads: int
    peer: str
    note: str = ""  # how the peer does it, or why it does not
    ours: Timing | None = None
    theirs: Timing | None = None
    ratio: float | None = None  # theirs / ours, median of neighbouring samples
    peak_gflops: float | None = None
    our_error: float | None = None
    their_error: float | None = None
    our_bytes: int | None = None
    their_bytes: int | None = None

    @property
    def wrong(self) -> bool:
        if self.our_error is None:
            return False
        return is_wrong(self.workload, self.our_error, self.their_error)

    def percent_of_peak(self, timing: Timing | None) -> float | None:
        if timing is None or not self.peak_gflops:
            return None
        return 100 * self.workload.flops() / timing.median * 1e-9 / self.peak_gflops

    def cache_gbytes(self, timing: Timing | None) -> float | None:
        """GB/s at which keys and values are read, for decode."""
        if timing is None or not self.workload.reads_cache:
            return None
        return self.workload.cache_bytes() / timing.median * 1e-9


def is_wrong(w: Workload, ours: float, theirs: float | None) -> bool:
    """Beyond the bound, and not because the format or the problem makes the peer as inexact."""
    if math.isnan(ours):
        return True
    return ours > BOUNDS[w.dtype] and (theirs is None or not ours <= 4 * theirs)


class Bench:
    """Our library against the peers."""

    def __init__(self, ours: Ours, repeats: int) -> None:
        self._ours = ours
        self._repeats = repeats
        self._best_peak: dict[tuple[str, int], float] = {}

    def rows(self, w: Workload, t: Tensors, expected: Expected, threads: int,
             peers: list[Peer]) -> list[Row]:
        self._ours.set_threads(threads)
        prepared = self._ours.prepare(w, t)
        prepared.call()
        error = error_of(prepared.fetch(None), expected)
        rows = []
        for peer in peers:
            reason = peer.supports(w)
            if reason == "":
                continue
            row = Row(w, threads, peer.name, reason or "")
            rows.append(row)
            if reason:
                continue
            peer.set_threads(threads)
            theirs = self._prepare_peer(peer, row, t, expected)
            if theirs:
                row.our_error, row.our_bytes = error, prepared.scratch_bytes
                self._time(row, prepared.call, theirs.call)
        if all(row.theirs is None for row in rows):
            alone = Row(w, threads, "none", prepared.note, our_error=error,
                        our_bytes=prepared.scratch_bytes)
            self._time(alone, prepared.call, None)
            rows.insert(0, alone)
        return rows

    def overhead_seconds(self) -> float:
        """Time of a call with next to nothing to do: what crossing from Python costs."""
        w = Workload("forward", "full", "float32", 1, 1, 1, 1, 1, 8, 8)
        self._ours.set_threads(1)
        call = self._ours.prepare(w, Tensors(w)).call
        return min(seconds_of(call, 1000) for _ in range(5))

    def _prepare_peer(self, peer: Peer, row: Row, t: Tensors,
                      expected: Expected) -> Prepared | None:
        """The peer's call, checked; None if it has none, and then the row says why."""
        try:
            theirs = peer.prepare(row.workload, t)
            row.their_bytes = extra_bytes(theirs.call)
            result = theirs.call()
        except Exception as error:  # whatever it is, the others go on
            row.note = first_line(error)
            return None
        row.note = theirs.note
        if theirs.compared:
            row.their_error = error_of(theirs.fetch(result), expected)
        return theirs

    def _time(self, row: Row, ours: Callable[[], object],
              theirs: Callable[[], object] | None) -> None:
        """Samples ours, theirs, ours, theirs, ..., and the peak of the machine in between."""
        calls = [ours] if theirs is None else [ours, theirs]
        once = []
        for call in calls:
            settle()
            once.append(seconds_of(call, 1))
        counts = [max(1, math.ceil(SAMPLE_SECONDS / seconds)) for seconds in once]
        a_round = sum(count * seconds for count, seconds in zip(counts, once))
        repeats = max(3, min(self._repeats, int(PAIR_SECONDS / a_round)))
        samples: list[list[float]] = [[] for _ in calls]
        peaks = []
        for _ in range(repeats):
            settle()
            peaks.append(self._ours.peak_gflops(row.workload.dtype))
            for call, count, seconds, own in zip(calls, counts, once, samples):
                settle()
                if seconds < SAMPLE_SECONDS:
                    run_in(call)
                own.append(seconds_of(call, count))
        # The most that this run has seen: a peak measured in a slow spell would flatter us.
        best = max([*peaks, self._best_peak.get((row.workload.dtype, row.threads), 0)])
        self._best_peak[row.workload.dtype, row.threads] = row.peak_gflops = best
        row.ours = Timing.of(samples[0])
        if theirs is not None:
            row.theirs = Timing.of(samples[1])
            row.ratio = statistics.median(b / a for a, b in zip(*samples))
