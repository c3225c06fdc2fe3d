"""`python -m attention_cpp` prints the machine, the instruction set in use and the versions of related libraries, and
tests whether results are right. It exits with 1 if a result is wrong."""

from __future__ import annotations

import importlib.metadata
import platform
import sys

import numpy as np

from . import __version__, attention, attention_backward, isa, isas, threads

_LIBRARIES = ("numpy", "torch", "transformers", "jax", "flash_attn")


def _processor() -> str:
    try:
        with open("/proc/cpuinfo") as lines:
            return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def _plain(q: np.ndarray, k: np.ndarray, v: np.ndarray, dout: np.ndarray) -> list[np.ndarray]:
    """Computes out, dq, dk and dv of causal attention, with the whole matrix in memory."""
    scale = q.shape[-1] ** -0.5
    scores = np.where(np.tri(q.shape[-2], dtype=bool), scale * q @ k.swapaxes(-1, -2), -np.inf)
    p = np.exp(scores - scores.max(-1, keepdims=True))
    p /= p.sum(-1, keepdims=True)
    out = p @ v
    ds = p * (dout @ v.swapaxes(-1, -2) - (dout * out).sum(-1, keepdims=True))
    return [out, scale * ds @ k, scale * ds.swapaxes(-1, -2) @ q, p.swapaxes(-1, -2) @ dout]


def _error(dtype: type) -> float:
    """Returns the largest error of a causal call and its gradients, relative to the largest value."""
    rng = np.random.default_rng(0)
    q, k, v, dout = (rng.standard_normal((2, 3, 200, 40)).astype(dtype) for _ in range(4))
    out, lse = attention(q, k, v, causal=True, return_lse=True)
    results = [out, *attention_backward(q, k, v, out, lse, dout, causal=True)[:3]]
    exact = _plain(*(x.astype(np.float64) for x in (q, k, v, dout)))
    return max(float(abs(a - e).max() / abs(e).max()) for a, e in zip(results, exact))


def main() -> int:
    """Prints everything. Returns 0 if every result is right, otherwise 1."""
    print(f"attention_cpp  {__version__}\nprocessor      {_processor()}\npython         {platform.python_version()}")
    for name in _LIBRARIES:
        print(f"{name:<15}{_version(name)}")
    chosen = isa()
    print(f"instructions   {chosen}, of {', '.join(isas())}\nthreads        {threads()}\n")
    wrong = 0
    for name in isas():
        isa(name)
        for dtype in (np.float32, np.float64):
            # Sums of 200 products in any order, through a softmax and back, round a few hundred times by half an eps.
            error, bound = _error(dtype), 100 * float(np.finfo(dtype).eps)
            wrong += not error <= bound
            print(f"{'wrong' if not error <= bound else 'right':<7}{name:<14}{np.dtype(dtype).name}  error {error:.1e}")
    isa(chosen)
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
