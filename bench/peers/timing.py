"""Seconds and bytes of a call, in a process where several libraries have threads."""

import ctypes
import gc
import time
from collections.abc import Callable

STEP_SECONDS = 0.005
LONGEST_SECONDS = 0.5
# Threads woken beside what another library's just left may share a core at first, some systems' tens
# of milliseconds: after one call only, 12 heads of 1024 keys took 0.16 ms or 0.08, so 0.08.
RUN_IN_SECONDS = 0.05


def settle() -> None:
    """Waits until no thread works.

    The workers of some libraries go on spinning for up to a tenth of a second after a call, on the
    cores that the next library is timed on.
    """
    end = time.perf_counter() + LONGEST_SECONDS
    while time.perf_counter() < end:
        before = time.process_time()
        time.sleep(STEP_SECONDS)
        if time.process_time() - before < 0.1 * STEP_SECONDS:
            return


def run_in(call: Callable[[], object]) -> None:
    """Calls until the caches hold what they can and the threads have found their cores."""
    end = time.perf_counter() + RUN_IN_SECONDS
    while time.perf_counter() < end:
        call()


def seconds_of(call: Callable[[], object], count: int) -> float:
    """Of one call, from so many."""
    start = time.perf_counter()
    for _ in range(count):
        call()
    return (time.perf_counter() - start) / count


def extra_bytes(call: Callable[[], object]) -> int | None:
    """How far the process grows during a call, where the system tells it (Linux)."""
    def status(field: str) -> int:
        with open("/proc/self/status") as file:
            line = next(line for line in file if line.startswith(field))
        return int(line.split()[1]) * 1024

    gc.collect()
    try:
        ctypes.CDLL(None).malloc_trim(0)
        with open("/proc/self/clear_refs", "w") as file:
            file.write("5")  # peak = now
        before = status("VmRSS")
        call()
        return max(0, status("VmHWM") - before)
    except (OSError, AttributeError):
        return None
