"""The expected results of a workload, in float64 with NumPy: the first and last key/value head."""

from collections.abc import Callable

import numpy as np

from tensors import Tensors
from workloads import Workload

ROWS = 8  # of each sample of a forward: at the start, in the middle and at the end
BLOCK = 512  # query rows at a time in a backward

Expected = list[tuple[str, tuple, np.ndarray]]  # result, where in it, values
DropoutKeeps = Callable[[Workload, int, int], np.ndarray]


class Head:
    """One query head in float64."""

    def __init__(self, w: Workload, t: Tensors, b: int, h: int, keeps: DropoutKeeps) -> None:
        def head_of(storage: np.ndarray, head: int) -> np.ndarray:
            part = storage[b, head]
            if part.dtype == np.uint16:
                part = (part.astype(np.uint32) << 16).view(np.float32)
            return part.astype(np.float64)

        self.w, self.b = w, b
        self.scale = w.D**-0.5
        self.q = head_of(t.q.storage, h)
        self.k = head_of(t.k.storage, h // w.group)
        self.v = head_of(t.v.storage, h // w.group)
        self.dout = head_of(t.dout.storage, h) if t.dout else None
        self.bias = t.bias.float32()[0, h] if t.bias else None
        self.keep = keeps(w, b, h) / (1 - w.dropout) if w.dropout else None

    def weights(self, first: int, last: int) -> np.ndarray:
        """Softmax of the scores of some rows."""
        s = self.scale * (self.q[first:last] @ self.k.T)
        if self.bias is not None:
            s += self.bias[first:last]
        s[~self.w.allowed(self.b, first, last)] = -np.inf
        p = np.exp(s - s.max(axis=1, keepdims=True))
        return p / p.sum(axis=1, keepdims=True)

    def factors(self, first: int, last: int) -> np.ndarray | float:
        """What dropout multiplies the weights by."""
        return 1.0 if self.keep is None else self.keep[first:last]


def expected_results(w: Workload, t: Tensors, keeps: DropoutKeeps) -> Expected:
    found: Expected = []
    for b, kv_head in sorted({(0, 0), (w.B - 1, w.Hk - 1)}):
        heads = [Head(w, t, b, kv_head * w.group + g, keeps) for g in range(w.group)]
        for g, head in enumerate(heads):
            h = kv_head * w.group + g
            for first in sorted({0, max(0, w.Lq // 2 - ROWS), max(0, w.Lq - ROWS)}):
                last = min(first + ROWS, w.Lq)
                p = head.weights(first, last) * head.factors(first, last)
                found.append(("out", (b, h, slice(first, last)), p @ head.v))
        if not w.is_forward:
            found += _gradients(w, heads, b, kv_head)
    return found


def _gradients(w: Workload, heads: list[Head], b: int, kv_head: int) -> Expected:
    found: Expected = []
    dk, dv = np.zeros((w.Lk, w.D)), np.zeros((w.Lk, w.Dv))
    for g, head in enumerate(heads):
        h = kv_head * w.group + g
        for first in range(0, w.Lq, BLOCK):
            last = min(first + BLOCK, w.Lq)
            q, dout, factors = head.q[first:last], head.dout[first:last], head.factors(first, last)
            p = head.weights(first, last)
            dp = (dout @ head.v.T) * factors
            ds = p * (dp - (p * dp).sum(axis=1, keepdims=True))
            dv += (p * factors).T @ dout
            dk += head.scale * (ds.T @ q)
            found.append(("dq", (b, h, slice(first, last)), head.scale * (ds @ head.k)))
            if head.bias is not None:  # B = 1: nothing to sum over
                found.append(("dbias", (b, h, slice(first, last)), ds))
    return [*found, ("dk", (b, kv_head), dk), ("dv", (b, kv_head), dv)]


def error_of(results: dict[str, np.ndarray], expected: Expected) -> float:
    """The worst max |x - float64| / max |float64| among the results that there are."""
    worst: dict[str, float] = {}
    largest: dict[str, float] = {}
    for name, where, values in expected:
        if name in results:
            difference = float(np.abs(results[name][where] - values).max())
            if np.isnan(difference):
                return float("nan")
            worst[name] = max(worst.get(name, 0.0), difference)
            largest[name] = max(largest.get(name, 0.0), float(np.abs(values).max()))
    return max(worst[name] / largest[name] for name in worst)
