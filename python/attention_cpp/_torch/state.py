"""The state of attention_cpp.torch that outlasts a call: what enable() and watch() have set, and what masks contain."""

from __future__ import annotations

import contextlib
import threading
import warnings
from collections import Counter, OrderedDict
from typing import Any, Callable, Iterator, NamedTuple, Protocol

from torch import Tensor

from .._core import Error
from .options import Options


class Enabled(NamedTuple):
    """What enable() has set."""

    strict: bool  # a call that is left to torch raises Error
    warn: bool  # a call that is left to torch warns
    reports: tuple[Callable[[str], object], ...]  # called with the reason for each such call
    kernels: tuple[Removable, ...]  # our kernels in torch's dispatcher


class Removable(Protocol):
    """Kernels in torch's dispatcher, which remove() takes out."""

    def remove(self) -> None: ...


Observer = Callable[[Tensor, Tensor, Tensor, Options], None]  # called with q, k, lse and the options of a call


class _State:
    """The one instance of the process. Several threads may write to `masks`, and hold `lock` for that."""

    def __init__(self) -> None:
        self.enabled: Enabled | None = None
        self.observers: tuple[Observer, ...] = ()
        self.watches: list[Any] = []  # the watch() blocks that are active, the innermost at the end
        self.mask_counts: Counter[str] = Counter()  # calls with a mask, by the options that are equal to it
        self.masks: OrderedDict[tuple, tuple] = OrderedDict()  # the results of masks.structure_of()
        self.flex_ways: list[tuple[list, Any]] = []  # the results of flex._way()
        self.lock = threading.Lock()


state = _State()


def left_to_torch(reason: str, strict: bool, name: str, depth: int) -> None:
    """Raises Error, warns or reports, as `strict` and enable() say, that torch computes a call of `name`.

    depth: the number of calls between the user's and this one, so that a warning shows the user's line.
    """
    enabled = state.enabled
    if strict or enabled and enabled.strict:
        raise Error(f"[{name}] attention_cpp cannot compute this call: {reason}")
    if enabled and enabled.warn:
        warnings.warn(f"{name} is left to torch: {reason}", stacklevel=depth + 1)
    report(reason)


def report(reason: str) -> None:
    """Passes watch() the reason why it cannot record a call."""
    for report_to in state.enabled.reports if state.enabled else ():
        report_to(reason)


@contextlib.contextmanager
def observed(observer: Observer | None) -> Iterator[None]:
    """Calls observer(q, k, lse, options), and the observers of outer blocks, for every call in the with block that is
    neither compiled nor transformed. With None the block calls no observer."""
    before = state.observers
    state.observers = () if observer is None else (*before, observer)
    try:
        yield
    finally:
        state.observers = before
