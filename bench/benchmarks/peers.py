"""What a peer is, and NumPy as the plainest one."""

import importlib.metadata
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from .results import readable_bytes
from .tensors import Tensors, whole_mask
from .timing import seconds_of, settle
from .workloads import Workload


@dataclass
class Prepared:
    """A call that is ready to be timed."""

    call: Callable[[], object]
    fetch: Callable[[object], dict[str, np.ndarray]]  # call()'s result as float32
    note: str = ""  # how the library does it
    way: str = ""  # which of several ways was the fastest
    extra_bytes: int | None = None  # extra memory, where it is known; else it is measured
    kept: object = None  # memory that must live as long as the call
    compared: bool = True  # False: random results, which no reference can have


class Peer(Protocol):
    """Another library."""

    name: str

    def version(self) -> str: ...

    def set_threads(self, threads: int) -> None: ...

    def supports(self, w: Workload) -> str | None:
        """None, or the reason why not; "" where a row would teach nothing."""

    def prepare(self, w: Workload, t: Tensors) -> Prepared:
        """May take its time: choose settings, compile, warm up."""


def fastest(candidates: dict[str, Callable[[], Prepared]]) -> Prepared:
    """The candidate whose second call is the quickest, prepared anew; raises if none works."""
    seconds: dict[str, float] = {}
    failures: dict[str, str] = {}
    for name, prepare in candidates.items():
        try:
            prepared = prepare()
            settle()
            prepared.call()
            seconds[name] = seconds_of(prepared.call, 1)
        except Exception as error:
            failures[name] = first_line(error)
    if not seconds:
        raise RuntimeError("; ".join(f"{name}: {text}" for name, text in failures.items()))
    best = min(seconds, key=seconds.__getitem__)
    prepared = candidates[best]()
    prepared.way = best
    prepared.note = best + (f" (best of {len(seconds)} ways)" if len(seconds) > 1 else "")
    for name, text in failures.items():
        prepared.note += f"; {name} fails: {text}"
    return prepared


def first_line(error: BaseException) -> str:
    lines = [line for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0] if lines else ''}"[:160]


def version_of(package: str) -> str:
    return importlib.metadata.version(package)


class NumPy:
    """softmax(q k^T) v as three lines of NumPy: what attention costs without a kernel for it."""

    name = "numpy"
    LONGEST = 2048  # n of the largest n x n

    def version(self) -> str:
        return version_of("numpy")

    def set_threads(self, threads: int) -> None:
        import threadpoolctl

        threadpoolctl.threadpool_limits(threads, user_api="blas")

    def supports(self, w: Workload) -> str | None:
        if not w.is_forward:
            return "has no gradients"
        if w.dtype != "float32":
            return "has no bfloat16"
        if w.Lq * w.Lk > self.LONGEST**2:
            return f"slow, left out beyond n = {self.LONGEST}"
        return None

    def prepare(self, w: Workload, t: Tensors) -> Prepared:
        q = t.q.numpy().reshape(w.B, w.Hk, w.group, w.Lq, w.D)
        k = t.k.numpy()[:, :, None]
        v = t.v.numpy()[:, :, None]
        scale = np.float32(w.D**-0.5)
        added = None  # to the scores
        if w.masked:
            added = np.where(whole_mask(w).numpy(), np.float32(0), np.float32(-np.inf))[:, :, None]
        if t.bias is not None:
            added = t.bias.numpy().reshape(1, w.Hk, w.group, w.Lq, w.Lk)

        def run() -> np.ndarray:
            s = np.matmul(q * scale, k.swapaxes(-1, -2))
            if added is not None:
                s += added
            s -= s.max(axis=-1, keepdims=True)
            np.exp(s, out=s)
            s /= s.sum(axis=-1, keepdims=True)
            return np.matmul(s, v)

        def fetch(result: object) -> dict[str, np.ndarray]:
            return {"out": np.asarray(result).reshape(w.B, w.H, w.Lq, w.Dv)}

        return Prepared(run, fetch, f"materialises n x n: {readable_bytes(w.square_bytes())}")
