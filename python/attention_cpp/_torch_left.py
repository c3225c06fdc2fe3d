"""Reports calls that are left to torch: enable(strict=True) raises, enable(warn=True) warns, watch() records why."""

from __future__ import annotations

import warnings
from typing import Callable, NamedTuple

from ._core import Error


class Wishes(NamedTuple):
    """What enable() was asked for."""

    strict: bool = False
    warn: bool = False
    reports: tuple[Callable[[str], object], ...] = ()  # hear why a call is left to torch


_wishes = Wishes()


def set_wishes(wishes: Wishes) -> None:
    global _wishes
    _wishes = wishes


def tell(reason: str, strict: bool = False, *, name: str = "scaled_dot_product_attention", depth: int = 4) -> None:
    """Raises or warns, where that is wanted, of a call of `name` that is torch's; depth counts the frames from its
    caller to here."""
    if strict or _wishes.strict:
        raise Error(f"[{name}] not computed by attention_cpp: {reason}")
    if _wishes.warn:
        warnings.warn(f"{name} left to torch: {reason}", stacklevel=depth + 1)
    report(reason)


def report(reason: str) -> None:
    """Lets watch() know why it does not see a call."""
    for hears in _wishes.reports:
        hears(reason)
