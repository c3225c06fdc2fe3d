"""The registry of enable() and watch(): everything of attention_cpp.torch that outlasts a call."""

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

    strict: bool  # a call that is left to torch raises
    warn: bool  # and warns
    reports: tuple[Callable[[str], object], ...]  # are called with the reason
    kernels: tuple[Removable, ...]  # in torch's dispatcher


class Removable(Protocol):
    def remove(self) -> None: ...


Observer = Callable[[Tensor, Tensor, Tensor, Options], None]  # of q, k, lse and the options of a call


class _State:
    """One instance for the process. Only `masks` is written by several threads, which hold `lock`."""

    def __init__(self) -> None:
        self.enabled: Enabled | None = None
        self.observers: tuple[Observer, ...] = ()
        self.watches: list[Any] = []  # that have begun and not ended, the last one at the end
        self.mask_counts: Counter[str] = Counter()  # calls with a mask, by what it was found to say
        self.masks: OrderedDict[tuple, tuple] = OrderedDict()  # what was found in them: masks.structure_of()
        self.flex_ways: list[tuple[list, Any]] = []  # what was found in functions: flex._way()
        self.lock = threading.Lock()


state = _State()


def left_to_torch(reason: str, strict: bool, name: str, depth: int) -> None:
    """Raises Error, warns or reports, as the caller (strict) or enable() wants, that torch computes a call of `name`.
    depth: how many calls are between the user's and this one, so that a warning shows the user's line."""
    enabled = state.enabled
    if strict or enabled and enabled.strict:
        raise Error(f"[{name}] not computed by attention_cpp: {reason}")
    if enabled and enabled.warn:
        warnings.warn(f"{name} left to torch: {reason}", stacklevel=depth + 1)
    report(reason)


def report(reason: str) -> None:
    """Gives watch() the reason why it does not see a call."""
    for report_to in state.enabled.reports if state.enabled else ():
        report_to(reason)


@contextlib.contextmanager
def observed(observer: Observer | None) -> Iterator[None]:
    """Calls observer(q, k, lse, options), besides the observers that there are, for every call in the with block that
    is neither compiled nor transformed; with None no observer is called."""
    before = state.observers
    state.observers = () if observer is None else (*before, observer)
    try:
        yield
    finally:
        state.observers = before
