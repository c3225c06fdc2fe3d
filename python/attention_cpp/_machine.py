"""What the library runs on: instruction set, precision and threads."""

from __future__ import annotations

from . import _core
from ._arrays import wrong_types


def isas() -> list[str]:
    """The instruction sets that this CPU can run, best first: "avx512_bf16", "avx512", "avx2", ..., "baseline"."""
    return _core.available_isas()


def isa(name: str | None = None) -> str:
    """The instruction set in use; with a name, uses that one from now on.

    The best one is chosen at first use, or the one that the environment variable ATTN_ISA names.
    An unknown name raises Error, which lists the choices.
    """
    if name is not None:
        wrong_types("isa", name=(name, "string"))
        _core.set_isa(name)
    return _core.active_isa()


def float32_precision(name: str | None = None) -> str:
    """How float32 numbers enter products where a call does not say it; with a name, from now on.

    "full", at first, is as accurate as float32 arithmetic. On processors with matrix tiles "high" takes 16 bits of each
    number and "fast" rounds it to bfloat16, which is quicker; elsewhere all are full. It holds for all calls of this
    process: the functions here, what `attention_cpp.torch.enable()` routes, and integrations. A backward takes the
    one in force when it runs. torch.set_float32_matmul_precision() is about torch's own matrix products: it neither
    sets this nor is set by it.

    Raises Error for another name.
    """
    if name is not None:
        wrong_types("float32_precision", name=(name, "string"))
        _core.set_float32_precision(name)
    return _core.float32_precision()


def threads(count: int | None = None) -> int:
    """How many threads may work at a time; with a count, sizes the library's own pool, 0 = one a core.

    Once `attention_cpp.torch` is imported, torch's threads do the work: `torch.set_num_threads` then decides, and a
    count raises Error.
    """
    if count is not None:
        wrong_types("threads", count=(count, "whole number"))
        if _core.uses_openmp_team():
            raise _core.Error("[threads] torch's threads do the work: call torch.set_num_threads(), or "
                              "attention_cpp.torch.share_threads(False) first")
        _core.set_thread_count(count)
    return _core.thread_count()
