"""Settings of the process: instruction set, precision and threads."""

from __future__ import annotations

from . import _core
from ._arrays import wrong_types


def isas() -> list[str]:
    """Returns the instruction sets that this CPU supports, best first: "avx512_bf16", "avx512", ..., "baseline"."""
    return _core.available_isas()


def isa(name: str | None = None) -> str:
    """Returns the instruction set in use. With a name, all later calls use that one.

        >>> attention_cpp.isa("avx2")

    Without a name the first use chooses the best one, or the one in the environment variable ATTN_ISA. An unknown name
    raises Error, which lists the choices.
    """
    if name is not None:
        wrong_types("isa", name=(name, "string"))
        _core.set_isa(name)
    return _core.active_isa()


def float32_precision(name: str | None = None) -> str:
    """Returns the precision of float32 products for calls without the option float32_precision. With a name, sets it.

        >>> attention_cpp.float32_precision("high")

    The default "full" is as accurate as float32 arithmetic. On processors with matrix tiles, "high" uses 16 bits of
    each number and "fast" rounds it to bfloat16; both are faster. Other processors always compute in full precision.
    The setting holds for all calls of this process, also those of the integrations and of
    `attention_cpp.torch.enable()`. A backward uses the setting of the time when it runs.
    torch.set_float32_matmul_precision() sets torch's own matrix products only.

    Raises Error for another name.
    """
    if name is not None:
        wrong_types("float32_precision", name=(name, "string"))
        _core.set_float32_precision(name)
    return _core.float32_precision()


def threads(count: int | None = None) -> int:
    """Returns how many threads the library uses. With a count, sets the size of its pool; 0 means one for each core.

        >>> attention_cpp.threads(4)

    After `import attention_cpp.torch` the library runs on torch's threads. Then set their number with
    `torch.set_num_threads`; a count given here raises Error.
    """
    if count is not None:
        wrong_types("threads", count=(count, "whole number"))
        if _core.uses_openmp_team():
            raise _core.Error("[threads] the library runs on torch's threads: call torch.set_num_threads(), or "
                              "attention_cpp.torch.share_threads(False) first")
        _core.set_thread_count(count)
    return _core.thread_count()
