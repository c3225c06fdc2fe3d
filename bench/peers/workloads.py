"""What is measured: a call, described by operation, type, shape and option; and lists of them."""

from dataclasses import dataclass

import numpy as np

QUICK, DEFAULT, FULL = 0, 1, 2

# (n, (B, H)) of the grid: by default for D = 64, for D = 128, and with --full for both.
USUAL_DEEP = {(512, (8, 16)), (1024, (1, 8)), (2048, (1, 8))}
USUAL = USUAL_DEEP | {(512, (1, 1)), (512, (1, 8)), (4096, (1, 1))}
RARE = {(1024, (1, 1)), (2048, (1, 1)), (4096, (1, 8)), (1024, (8, 16)), (16384, (1, 1))}


@dataclass(frozen=True)
class Workload:
    """One call of attention. Shapes: q [B, H, Lq, D], k [B, Hk, Lk, D], v [B, Hk, Lk, Dv]."""

    operation: str  # forward, backward, training (both), decode (one query), prefill (onto a cache)
    option: str  # full, causal, window, mask, bias, dropout, documents
    dtype: str  # float32, bfloat16
    B: int
    H: int
    Hk: int
    Lq: int
    Lk: int
    D: int
    Dv: int
    level: int = DEFAULT  # the smallest list that has it
    layout: str = "blhd"  # order of the memory: blhd, bhld, or qkv: slices of [B, L, (H + 2 Hk) D]
    causal: bool = False  # the last query is on the last key
    window: int = 0  # keys that a query sees, its own among them; 0 = all
    dropout: float = 0.0
    lengths: tuple[int, ...] = ()  # keys that are not padding, one a batch element
    documents: tuple[int, ...] = ()  # lengths of the packed documents

    @property
    def name(self) -> str:
        heads = f"H{self.H}" if self.H == self.Hk else f"H{self.H}:{self.Hk}"
        length = f"n{self.Lk}" if self.Lq == self.Lk else f"n{self.Lq}:{self.Lk}"
        depth = f"D{self.D}" if self.D == self.Dv else f"D{self.D}:{self.Dv}"
        shape = f"B{self.B}/{heads}/{length}/{depth}"
        return f"{self.operation}/{self.option}/{self.dtype}/{shape}/{self.layout}"

    @property
    def group(self) -> int:
        return self.H // self.Hk

    @property
    def is_forward(self) -> bool:
        return self.operation in ("forward", "decode", "prefill")

    @property
    def reads_cache(self) -> bool:
        return self.operation == "decode"

    @property
    def itemsize(self) -> int:
        return 4 if self.dtype == "float32" else 2

    def allowed(self, b: int, first: int = 0, last: int | None = None) -> np.ndarray:
        """The boolean mask [queries first to last, Lk] of batch element b; True = attend."""
        i = np.arange(first, self.Lq if last is None else last)[:, None]
        j = np.arange(self.Lk)[None, :]
        place = i + self.Lk - self.Lq
        mask = np.ones((i.size, self.Lk), bool)
        if self.causal:
            mask &= j <= place
        if self.window:
            mask &= j > place - self.window
        if self.lengths:
            mask &= j < self.lengths[b]
        if self.documents:
            document = np.repeat(np.arange(len(self.documents)), self.documents)
            mask &= document[i] == document[j]
        return mask

    def whole_mask(self) -> np.ndarray:
        """The boolean mask [B|1, 1, Lq, Lk]."""
        return np.stack([self.allowed(b) for b in range(self.B if self.lengths else 1)])[:, None]

    @property
    def masked(self) -> bool:
        return bool(self.causal or self.window or self.lengths or self.documents)

    def pairs(self) -> int:
        """(query, key) pairs that attend, all batch elements and heads together."""
        count = sum(
            int(self.allowed(b, first, min(first + 1024, self.Lq)).sum())
            for b in (range(self.B) if self.lengths else [0])
            for first in range(0, self.Lq, 1024)
        )
        return count * self.H * (1 if self.lengths else self.B)

    def flops(self) -> float:
        """Multiply-adds counted as two: two matrix products forward, five backward."""
        forward, backward = self.D + self.Dv, 3 * self.D + 2 * self.Dv
        per_pair = {"backward": backward, "training": forward + backward}
        return 2.0 * per_pair.get(self.operation, forward) * self.pairs()

    def cache_bytes(self) -> int:
        """Bytes of keys and values."""
        return self.B * self.Hk * self.Lk * (self.D + self.Dv) * self.itemsize

    def square_bytes(self) -> int:
        """Bytes of one float32 matrix of all scores."""
        return self.B * self.H * self.Lq * self.Lk * 4


def _square(operation: str, option: str, dtype: str, heads: tuple[int, int], n: int, depth: int,
            level: int = DEFAULT, **options: object) -> Workload:
    batch, count = heads
    return Workload(operation, option, dtype, batch, count, count, n, n, depth, depth, level,
                    **options)


def _grid() -> list[Workload]:
    """Full and causal, forward and backward, over types, sizes and heads."""
    quick = {("forward", "full", "float32"), ("forward", "causal", "bfloat16"),
             ("backward", "causal", "float32")}
    grid = []
    for operation in ("forward", "backward"):
        for option in ("full", "causal"):
            for dtype in ("float32", "bfloat16"):
                for depth in (64, 128):
                    for n, heads in sorted(USUAL | RARE):
                        usual = (n, heads) in (USUAL if depth == 64 else USUAL_DEEP)
                        level = DEFAULT if usual else FULL
                        chosen = (operation, option, dtype) in quick
                        if chosen and depth == 64 and n == 1024 and heads == (1, 8):
                            level = QUICK
                        grid.append(_square(operation, option, dtype, heads, n, depth, level,
                                            causal=option == "causal"))
    return grid


def _options() -> list[Workload]:
    """One workload an option."""
    lengths = (1024, 768, 512, 640)
    documents = (1024, 512, 1536, 256, 768)
    return [
        Workload("forward", "causal", "float32", 1, 32, 8, 1024, 1024, 128, 128, QUICK,
                 causal=True),
        Workload("backward", "causal", "float32", 1, 32, 8, 1024, 1024, 128, 128, causal=True),
        _square("forward", "mask", "float32", (4, 8), 1024, 64, QUICK, lengths=lengths),
        _square("forward", "bias", "float32", (1, 8), 1024, 64),
        _square("backward", "bias", "float32", (1, 8), 1024, 64, QUICK),
        _square("training", "dropout", "float32", (1, 8), 1024, 64, QUICK, dropout=0.1),
        _square("forward", "window", "float32", (1, 1), 2048, 64, QUICK, causal=True, window=256),
        _square("forward", "window", "float32", (1, 1), 16384, 64, causal=True, window=256),
        _square("forward", "documents", "float32", (1, 8), 4096, 64, causal=True,
                documents=documents),
        Workload("forward", "full", "float32", 1, 8, 8, 1024, 1024, 64, 128, QUICK),
        Workload("backward", "full", "float32", 1, 8, 8, 1024, 1024, 64, 128),
        Workload("prefill", "causal", "float32", 1, 32, 8, 512, 4608, 128, 128, causal=True),
        Workload("prefill", "causal", "bfloat16", 1, 32, 8, 512, 4608, 128, 128, causal=True),
    ]


def _decode() -> list[Workload]:
    """One new token on a cache of 8 key/value heads; one query each also with contiguous heads, as ONNX Runtime always
    has its cache."""
    contiguous = [
        Workload("decode", "causal", "float32", 1, heads, heads, 1, keys, 128, 128, DEFAULT, "bhld", causal=True)
        for heads, keys in ((12, 1024), (12, 4096), (8, 4096), (8, 32768))
    ]
    return contiguous + [
        Workload("decode", "causal", dtype, 1, 8 * group, 8, 1, keys, 128, 128,
                 QUICK if keys == 4096 and group in (1, 8) and dtype == "float32" else DEFAULT,
                 causal=True)
        for dtype in ("float32", "bfloat16")
        for keys in (4096, 32768)
        for group in (1, 4, 8)
    ]


def _layouts() -> list[Workload]:
    """Long sequences of a model's shape in every order of the memory."""
    return [
        Workload(operation, "causal", dtype, 1, heads, kv_heads, n, n, depth, depth, DEFAULT, layout, causal=True)
        for operation in ("forward", "backward")
        for dtype in ("float32", "bfloat16")
        for heads, kv_heads, n, depth in ((16, 16, 2048, 64), (32, 8, 1024, 128))
        for layout in ("blhd", "bhld", "qkv")
    ]


def _sentences() -> list[Workload]:
    """Batches of short sentences, padded to the longest."""
    return [
        _square(operation, "lengths", dtype, (batch, 12), n, depth,
                lengths=tuple(n - i * n // (2 * batch) for i in range(batch)))
        for operation in ("forward", "backward")
        for dtype in ("float32", "bfloat16")
        for batch, depth in ((64, 32), (32, 64))
        for n in (8, 16, 32, 64, 128)
    ]


def _single_tokens() -> list[Workload]:
    """One new token, as chat writes them."""
    return [
        Workload("decode", "causal", dtype, 1, heads, kv_heads, 1, keys, depth, depth, causal=True)
        for dtype in ("float32", "bfloat16")
        for heads, kv_heads in ((12, 12), (32, 8))
        for depth in (64, 128)
        for keys in (64, 256, 1024, 4096)
    ]


def all_workloads() -> list[Workload]:
    """Each once, though several lists have it."""
    first: dict[str, Workload] = {}
    for w in _grid() + _options() + _decode() + _layouts() + _sentences() + _single_tokens():
        first.setdefault(w.name, w)
    return list(first.values())
