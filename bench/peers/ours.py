"""attention.cpp through the C ABI of capi.cpp."""

import ctypes
from ctypes import c_double, c_int32, c_int64, c_uint8, c_uint64, c_void_p

import numpy as np

from peers import Prepared
from tensors import Tensors, zeros
from workloads import Workload

SEED = 7
DTYPE_CODES = {"float32": 0, "bfloat16": 1}


class CArray(ctypes.Structure):
    """struct PeersArray."""

    _fields_ = [("data", c_void_p), ("size", c_int64 * 4), ("stride", c_int64 * 4)]


class Call(ctypes.Structure):
    """struct PeersCall, field for field."""

    _fields_ = [
        ("dtype", c_int32),
        *((name, CArray) for name in ("q", "k", "v", "out", "dout", "dq", "dk", "dv", "dbias")),
        ("lse", c_void_p),
        ("causal", c_int32), ("bottom_right", c_int32),
        ("window_left", c_int64), ("window_right", c_int64),
        ("mask", CArray), ("bias", CArray),
        ("key_length", c_void_p), ("cu_seqlens_q", c_void_p), ("cu_seqlens_k", c_void_p),
        ("sequences", c_int64),
        ("dropout", c_double), ("seed", c_uint64),
    ]


def _described(values: np.ndarray | None) -> CArray:
    if values is None:
        return CArray()
    strides = [stride // values.itemsize for stride in values.strides]
    return CArray(values.ctypes.data, (c_int64 * 4)(*values.shape), (c_int64 * 4)(*strides))


class Ours:
    """The library under test."""

    name = "attention.cpp"

    def __init__(self, library: str) -> None:
        self._library = ctypes.CDLL(library)
        self._library.peers_error.restype = ctypes.c_char_p
        self._library.peers_path.restype = ctypes.c_char_p
        self._library.peers_scratch_bytes.restype = c_int64
        self._library.peers_peak_gflops.restype = c_double
        self._library.peers_dropout_keeps.argtypes = [
            c_uint64, c_double, c_int64, c_int64, c_int64, c_int64, c_void_p]
        self._library.peers_dropout_keeps.restype = None

    def set_threads(self, threads: int) -> None:
        self._check(self._library.peers_set_threads(threads))

    def peak_gflops(self, dtype: str) -> float:
        """The multiply-add rate that the arithmetic units reach right now, on all threads."""
        return self._library.peers_peak_gflops(DTYPE_CODES[dtype])

    def dropout_keeps(self, w: Workload, b: int, h: int) -> np.ndarray:
        """The weights [Lq, Lk] of a head that dropout keeps."""
        keep = np.empty((w.Lq, w.Lk), c_uint8)
        self._library.peers_dropout_keeps(SEED, w.dropout, b, h, w.Lq, w.Lk, keep.ctypes.data)
        return keep.astype(bool)

    def prepare(self, w: Workload, t: Tensors) -> Prepared:
        """The call with its outputs allocated, as a C++ program would hold them."""
        results = {"out": zeros((w.B, w.H, w.Lq, w.Dv), w.dtype, w.layout)}
        call = self._describe(w, t)
        call.out = _described(results["out"].storage)
        kept: list[object] = [t]
        if w.lengths:
            lengths = np.array(w.lengths, np.int64)
            call.key_length = lengths.ctypes.data
            kept.append(lengths)
        if w.documents:
            starts = np.cumsum([0, *w.documents], dtype=np.int64)
            call.cu_seqlens_q = call.cu_seqlens_k = starts.ctypes.data
            call.sequences = len(w.documents)
            kept.append(starts)
        if not w.is_forward:
            lse = np.empty((w.B, w.H, w.Lq), np.float32)
            call.lse, call.dout = lse.ctypes.data, _described(t.dout.storage)
            kept.append(lse)
            sources = {"dq": t.q, "dk": t.k, "dv": t.v, "dbias": t.bias}
            for name, source in sources.items():
                if source is not None:
                    layout = "bhld" if name == "dbias" else w.layout
                    results[name] = zeros(source.shape, w.dtype, layout)
                    setattr(call, name, _described(results[name].storage))
            self._check(self._library.peers_forward(ctypes.byref(call)))

        pointer = ctypes.pointer(call)
        forward, backward = self._library.peers_forward, self._library.peers_backward

        def run() -> None:
            if w.operation != "backward":
                self._check(forward(pointer))
            if not w.is_forward:
                self._check(backward(pointer))

        def fetch(_: object) -> dict[str, np.ndarray]:
            return {name: array.float32() for name, array in results.items()}

        note = self._library.peers_path(pointer).decode()
        scratch = self._library.peers_scratch_bytes(pointer, int(not w.is_forward))
        return Prepared(run, fetch, note, scratch_bytes=scratch, kept=[kept, call])

    def _describe(self, w: Workload, t: Tensors) -> Call:
        return Call(
            dtype=DTYPE_CODES[w.dtype],
            q=_described(t.q.storage), k=_described(t.k.storage), v=_described(t.v.storage),
            causal=w.causal, bottom_right=1,
            window_left=w.window - 1 if w.window else -1, window_right=-1,
            bias=_described(t.bias.storage if t.bias else None),
            dropout=w.dropout, seed=SEED)

    def _check(self, code: int) -> None:
        if code:
            raise RuntimeError(self._library.peers_error().decode())
