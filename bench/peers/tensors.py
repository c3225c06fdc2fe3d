"""The inputs of a workload, as NumPy arrays that every library reads in place."""

from dataclasses import dataclass

import numpy as np

from workloads import Workload


@dataclass
class Array:
    """Numbers in memory of any strides: float32, or bfloat16 as the 16 bits that it is."""

    storage: np.ndarray

    @property
    def shape(self) -> tuple[int, ...]:
        return self.storage.shape

    def float32(self) -> np.ndarray:
        """The values; a copy for bfloat16."""
        if self.storage.dtype == np.float32:
            return self.storage
        return (np.ascontiguousarray(self.storage).astype(np.uint32) << 16).view(np.float32)


def to_bfloat16(values: np.ndarray) -> np.ndarray:
    """The upper halves of float32 values, rounded to nearest even."""
    bits = values.view(np.uint32)
    return ((bits + (0x7FFF + ((bits >> 16) & 1))) >> 16).astype(np.uint16)


def laid_out(values: np.ndarray, layout: str) -> Array:
    """The values [B, H, L, n] in memory of that order."""
    if layout == "bhld":
        return Array(np.ascontiguousarray(values))
    return Array(np.ascontiguousarray(values.swapaxes(1, 2)).swapaxes(1, 2))


def random(shape: tuple[int, ...], dtype: str, seed: int, layout: str = "bhld") -> Array:
    """Normal values of variance 1."""
    values = np.random.default_rng(seed).standard_normal(shape, np.float32)
    return laid_out(values if dtype == "float32" else to_bfloat16(values), layout)


def zeros(shape: tuple[int, ...], dtype: str, layout: str) -> Array:
    return laid_out(np.zeros(shape, np.float32 if dtype == "float32" else np.uint16), layout)


def fused(q: Array, k: Array, v: Array) -> tuple[Array, Array, Array]:
    """The same values as slices of one array [B, L, (H + 2 Hk) n], as one projection writes them."""
    tokens_first = [x.storage.swapaxes(1, 2) for x in (q, k, v)]
    memory = np.concatenate(tokens_first, axis=2)
    ends = np.cumsum([x.shape[2] for x in tokens_first])
    parts = (memory[:, :, end - x.shape[2]:end] for x, end in zip(tokens_first, ends))
    return tuple(Array(part.swapaxes(1, 2)) for part in parts)


class Tensors:
    """q, k, v, and what else the workload asks for."""

    def __init__(self, w: Workload) -> None:
        self.q = random((w.B, w.H, w.Lq, w.D), w.dtype, 1, w.layout)
        self.k = random((w.B, w.Hk, w.Lk, w.D), w.dtype, 2, w.layout)
        self.v = random((w.B, w.Hk, w.Lk, w.Dv), w.dtype, 3, w.layout)
        if w.layout == "qkv":
            self.q, self.k, self.v = fused(self.q, self.k, self.v)
        self.dout: Array | None = None
        self.bias: Array | None = None  # [1, H, Lq, Lk]
        self.mask: np.ndarray | None = None  # [B, 1, 1, Lk], True = attend
        if not w.is_forward:
            self.dout = random((w.B, w.H, w.Lq, w.Dv), w.dtype, 4, w.layout)
        if w.option == "bias":
            self.bias = random((1, w.H, w.Lq, w.Lk), w.dtype, 5)
        if w.lengths:
            self.mask = (np.arange(w.Lk) < np.array(w.lengths)[:, None])[:, None, None, :].copy()
