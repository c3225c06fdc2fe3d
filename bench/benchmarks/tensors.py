"""The inputs of a workload as torch tensors, whose memory every library reads in place, and the results that are
expected of them, in float64."""

import pathlib
import sys

import numpy as np
import torch
from torch import Tensor

import attention_cpp

from .workloads import Workload

sys.path.append(str(pathlib.Path(__file__).resolve().parents[2] / "python/tests"))
import reference  # noqa: E402

SEED = 7  # of dropout
ROWS = 8  # of each sample of a large forward: at the start, in the middle and at the end
ALL_ROWS = 2**24  # scores of a head up to which all rows are compared
BLOCK = 512  # query rows at a time

Expected = list[tuple[str, tuple, np.ndarray]]  # result, where in it, values


def laid_out(values: Tensor, layout: str) -> Tensor:
    """The values [B, H, L, n] in memory of that order."""
    return values.contiguous() if layout == "bhld" else values.transpose(1, 2).contiguous().transpose(1, 2)


def random(shape: tuple[int, ...], dtype: str, seed: int, layout: str = "bhld") -> Tensor:
    """Normal values of variance 1."""
    values = np.random.default_rng(seed).standard_normal(shape, np.float32)
    return laid_out(torch.from_numpy(values).to(getattr(torch, dtype)), layout)


class Tensors:
    """q, k, v, and what the option and the operation need."""

    def __init__(self, w: Workload) -> None:
        self.q = random((w.B, w.H, w.Lq, w.D), w.dtype, 1, w.layout)
        self.k = random((w.B, w.Hk, w.Lk, w.D), w.dtype, 2, w.layout)
        self.v = random((w.B, w.Hk, w.Lk, w.Dv), w.dtype, 3, w.layout)
        if w.layout == "qkv":  # slices of one array, as one projection writes them
            heads = torch.cat([x.transpose(1, 2) for x in (self.q, self.k, self.v)], 2)
            self.q, self.k, self.v = (part.transpose(1, 2) for part in heads.split([w.H, w.Hk, w.Hk], 2))
        self.dout = None if w.is_forward else random((w.B, w.H, w.Lq, w.Dv), w.dtype, 4, w.layout)
        self.bias = random((1, w.H, w.Lq, w.Lk), w.dtype, 5) if w.option == "bias" else None
        self.padding: Tensor | None = None  # [B, 1, 1, Lk], True = attend
        if w.lengths:
            self.padding = (torch.arange(w.Lk) < torch.tensor(w.lengths)[:, None])[:, None, None, :].clone()


# ------------------------------------------------------------------------------------------------------------- masks

def allowed(w: Workload, b: int, first: int = 0, last: int | None = None) -> np.ndarray:
    """The boolean mask [queries first to last, Lk] of batch element b; True = attend."""
    i = np.arange(first, w.Lq if last is None else last)[:, None]
    j = np.arange(w.Lk)[None, :]
    place = i + w.Lk - w.Lq
    mask = np.ones((i.size, w.Lk), bool)
    if w.causal:
        mask &= j <= place
    if w.window:
        mask &= j > place - w.window
    if w.lengths:
        mask &= j < w.lengths[b]
    if w.packed:
        sequence = np.repeat(np.arange(len(w.packed)), w.packed)
        mask &= sequence[i] == sequence[j]
    return mask


def whole_mask(w: Workload) -> Tensor | None:
    """The boolean mask [B|1, 1, Lq, Lk]; None where all pairs attend."""
    if not w.masked:
        return None
    return torch.from_numpy(np.stack([allowed(w, b) for b in range(w.B if w.lengths else 1)])[:, None])


def flops(w: Workload) -> float:
    """Multiply-adds on pairs that attend, counted as two: two matrix products forward, five backward."""
    pairs = sum(int(allowed(w, b, first, min(first + 1024, w.Lq)).sum())
                for b in (range(w.B) if w.lengths else [0]) for first in range(0, w.Lq, 1024))
    forward, backward = w.D + w.Dv, 3 * w.D + 2 * w.Dv
    per_pair = {"backward": backward, "training": forward + backward}.get(w.operation, forward)
    return 2.0 * per_pair * pairs * w.H * (1 if w.lengths else w.B)


# ---------------------------------------------------------------------------------------------------------- expected

class Head:
    """One query head in float64."""

    def __init__(self, w: Workload, t: Tensors, b: int, h: int) -> None:
        self.w, self.b, self.scale = w, b, w.D**-0.5
        self.q, self.k, self.v = (x.double().numpy() for x in (t.q[b, h], t.k[b, h // w.group], t.v[b, h // w.group]))
        self.dout = None if t.dout is None else t.dout[b, h].double().numpy()
        self.bias = None if t.bias is None else t.bias[0, h].double().numpy()
        self.keep = None
        if w.dropout:
            self.keep = attention_cpp.dropout_keeps(SEED, w.dropout, (b + 1, h + 1, w.Lq, w.Lk))[b, h] / (1 - w.dropout)

    def weights(self, first: int, last: int) -> np.ndarray:
        """Of some rows, before dropout."""
        bias = None if self.bias is None else self.bias[None, None, first:last]
        mask = allowed(self.w, self.b, first, last)[None, None]
        return reference.weights(self.q[None, None, first:last], self.k[None, None], mask=mask, bias=bias)[0][0, 0]

    def factors(self, first: int, last: int) -> np.ndarray | float:
        """What dropout multiplies the weights by."""
        return 1.0 if self.keep is None else self.keep[first:last]


def blocks_of(w: Workload, all_rows: bool) -> list[tuple[int, int]]:
    if all_rows:
        return [(first, min(first + BLOCK, w.Lq)) for first in range(0, w.Lq, BLOCK)]
    return [(first, min(first + ROWS, w.Lq)) for first in sorted({0, max(0, w.Lq // 2 - ROWS), max(0, w.Lq - ROWS)})]


def expected_results(w: Workload, t: Tensors) -> Expected:
    """Of the query heads of the first and the last key head."""
    found: Expected = []
    for b, kv_head in sorted({(0, 0), (w.B - 1, w.Hk - 1)}):
        heads = {h: Head(w, t, b, h) for h in range(kv_head * w.group, (kv_head + 1) * w.group)}
        for h, head in heads.items():
            for first, last in blocks_of(w, w.Lq * w.Lk <= ALL_ROWS):
                p = head.weights(first, last) * head.factors(first, last)
                found.append(("out", (b, h, slice(first, last)), p @ head.v))
        if not w.is_forward:
            found += _gradients(w, heads, b, kv_head)
    return found


def _gradients(w: Workload, heads: dict[int, Head], b: int, kv_head: int) -> Expected:
    found: Expected = []
    dk, dv = np.zeros((w.Lk, w.D)), np.zeros((w.Lk, w.Dv))
    for h, head in heads.items():
        for first, last in blocks_of(w, True):
            q, dout, factors = head.q[first:last], head.dout[first:last], head.factors(first, last)
            p = head.weights(first, last)
            dp = (dout @ head.v.T) * factors
            ds = p * (dp - (p * dp).sum(axis=1, keepdims=True))
            dv += (p * factors).T @ dout
            dk += head.scale * (ds.T @ q)
            found.append(("dq", (b, h, slice(first, last)), head.scale * (ds @ head.k)))
            if head.bias is not None and w.B == 1:  # else it is a sum over batch elements
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
