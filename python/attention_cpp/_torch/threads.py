"""Selects the threads that do the work: those of torch's OpenMP runtime, or the library's own."""

from __future__ import annotations

import ctypes
import os

import torch

from .. import _core


def _openmp_of_torch() -> str | None:
    """Returns the path of the OpenMP runtime that torch runs on, or None if it cannot be found."""
    try:
        with open("/proc/self/maps") as maps:
            paths = {line.split(maxsplit=5)[5].strip() for line in maps if "omp" in line and ".so" in line}
    except OSError:
        return None
    home = os.path.realpath(os.path.dirname(torch.__file__))
    names = ("libgomp", "libiomp", "libomp")
    found = [path for path in sorted(paths) if os.path.basename(path).startswith(names)]
    return next((path for path in found if path.startswith(home)), found[0] if len(found) == 1 else None)


def share_threads(share: bool = True) -> bool:
    """Runs the library on torch's threads; with False, on its own threads. Returns whether torch's threads are used.

        >>> attention_cpp.torch.share_threads(False)

    Two pools would compete for the cores, because torch's workers spin for a while after each operation.
    """
    path = _openmp_of_torch() if share else None
    if path is None:
        _core.use_openmp_team(0, 0)
        return False
    runtime = ctypes.CDLL(path)
    address = [ctypes.cast(getattr(runtime, name), ctypes.c_void_p).value
               for name in ("GOMP_parallel", "omp_get_max_threads")]
    _core.use_openmp_team(*address)
    return True
