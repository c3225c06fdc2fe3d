"""The one timer of the Python benchmarks: samples of several calls, taken in turn, so that a slow spell of the machine
falls on all of them."""

import ctypes
import gc
import math
import statistics
import time
from collections.abc import Callable

Call = Callable[[], object]

STEP_SECONDS = 0.005
LONGEST_SECONDS = 0.5
# Threads that wake beside those of another library may share a core at first, for tens of milliseconds: after one call
# only, 12 heads of 1024 keys took 0.16 ms or 0.08, after this time 0.08.
RUN_IN_SECONDS = 0.05


class Samples(list[float]):
    """Seconds of one call each, or rates."""

    @property
    def median(self) -> float:
        return statistics.median(self)

    @property
    def spread(self) -> float:
        """(highest - lowest) / median."""
        return (max(self) - min(self)) / self.median

    @property
    def quartiles(self) -> float:
        """Half the distance of the quartiles."""
        low, _, high = statistics.quantiles(self, n=4) if len(self) > 1 else (0.0, 0.0, 0.0)
        return (high - low) / 2


def settle() -> None:
    """Waits until no thread works: those of some libraries go on spinning for up to a tenth of a second after a call,
    on the cores on which the next library is timed."""
    elapsed = stopwatch()
    while elapsed() < LONGEST_SECONDS:
        before = time.process_time()
        time.sleep(STEP_SECONDS)
        if time.process_time() - before < 0.1 * STEP_SECONDS:
            return


def run_in(call: Call) -> None:
    """Calls until the caches hold what they can and the threads have found their cores."""
    elapsed = stopwatch()
    while elapsed() < RUN_IN_SECONDS:
        call()


def stopwatch(clock: Callable[[], float] = time.perf_counter) -> Callable[[], float]:
    """A function that returns the seconds since now."""
    start = clock()
    return lambda: clock() - start


def seconds_of(call: Call, count: int = 1, clock: Callable[[], float] = time.perf_counter) -> float:
    """Seconds of one call, the mean of `count`."""
    elapsed = stopwatch(clock)
    for _ in range(count):
        call()
    return elapsed() / count


def in_turn(calls: list[Call], rounds: int, *, sample_seconds: float = 0.0, most_seconds: float = math.inf,
            before_round: Call | None = None, settled: bool = False,
            clock: Callable[[], float] = time.perf_counter) -> list[Samples]:
    """Samples of each call: a, b, a, b, ... The first call of each is not counted.

    sample_seconds   a sample is as many calls as fill this time
    most_seconds     when the rounds would take longer there are fewer, at least 3
    before_round     called before each round, for instance to measure a peak
    settled          before each sample, wait until no thread works, and run short calls in
    """
    once = []
    for call in calls:
        call()
        if settled:
            settle()
        once.append(seconds_of(call))
    counts = [max(1, math.ceil(sample_seconds / seconds)) for seconds in once]
    if most_seconds < math.inf:
        a_round = sum(count * seconds for count, seconds in zip(counts, once))
        rounds = max(3, min(rounds, int(most_seconds / a_round)))
    taken = [Samples() for _ in calls]
    for _ in range(rounds):
        if before_round:
            before_round()
        for call, count, seconds, samples in zip(calls, counts, once, taken):
            if settled:
                settle()
                if seconds < sample_seconds:
                    run_in(call)
            samples.append(seconds_of(call, count, clock))
    return taken


def ratio(samples: Samples, others: Samples) -> float:
    """others / samples, the median over neighbouring samples."""
    return statistics.median(b / a for a, b in zip(samples, others))


def resident_bytes(field: str) -> int:
    """A field of /proc/self/status: VmRSS is what is resident, VmHWM the most that was."""
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith(field))


def extra_bytes(call: Call) -> int | None:
    """How far the process grows during a call, where the system tells it (Linux)."""
    gc.collect()
    try:
        ctypes.CDLL(None).malloc_trim(0)
        with open("/proc/self/clear_refs", "w") as file:
            file.write("5")  # VmHWM = VmRSS
        before = resident_bytes("VmRSS")
        call()
        return max(0, resident_bytes("VmHWM") - before)
    except (OSError, AttributeError):
        return None
