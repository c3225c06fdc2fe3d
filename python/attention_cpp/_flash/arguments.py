"""Checks of the arguments of flash-attention's functions."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .._core import Error

_FLOATING = (torch.float32, torch.float64, torch.bfloat16, torch.float16)


def fail(function: str, problems: list[str]) -> None:
    """Raises Error with all problems, if there are any."""
    if problems:
        raise Error(f"[{function}] " + "; ".join(problems))


def check(function: str, **tensors: tuple[Any, str]) -> dict[str, int]:
    """Checks the tensors of a call and returns the size of each axis by its name.

    Each tensor comes with its axes, "batch 3 nheads": equal names are equal sizes, a number is itself, and "batch+1" is
    one more than batch. "?" before the axes allows None. "int32:" is the type and "floating:" any floating type; all
    tensors without a type share one floating type.

    Raises TypeError or Error, which names everything that is wrong.
    """
    given = {name: (tensor, axes.lstrip("?").rpartition(":")) for name, (tensor, axes) in tensors.items()
             if tensor is not None or not axes.startswith("?")}
    wrong = [f"{name} must be a torch.Tensor, not {type(tensor).__name__}" for name, (tensor, _) in given.items()
             if not isinstance(tensor, Tensor)]
    if wrong:
        raise TypeError(f"[{function}] " + "; ".join(wrong))
    problems: list[str] = []
    sizes: dict[str, int] = {}
    shared = None
    for name, (tensor, (dtype, _, axes)) in given.items():
        if tensor.device.type != "cpu":
            problems.append(f"{name} is on {tensor.device}, must be on the CPU")
        if tensor.layout is not torch.strided or tensor.is_nested:
            problems.append(f"{name} is sparse or nested, must be a dense tensor")
            continue
        problems += _wrong_type(name, tensor.dtype, dtype, shared)
        if not dtype and shared is None and tensor.dtype in _FLOATING:
            shared = tensor.dtype
        problems += _wrong_sizes(name, tensor.shape, axes.split(), sizes)
    fail(function, problems)
    return sizes


def _wrong_type(name: str, found: torch.dtype, wanted: str, shared: torch.dtype | None) -> list[str]:
    if wanted in ("", "floating"):
        if found not in _FLOATING:
            return [f"{name} is {found}, must be float32, float64, bfloat16 or float16"]
        if wanted == "" and shared not in (None, found):
            return [f"{name} is {found}, must be {shared} as the other tensors"]
        return []
    return [] if found == getattr(torch, wanted) else [f"{name} is {found}, must be torch.{wanted}"]


def _wrong_sizes(name: str, shape: torch.Size, axes: list[str], sizes: dict[str, int]) -> list[str]:
    if len(shape) != len(axes):
        return [f"{name} has {len(shape)} axes, must be ({', '.join(axes)})"]
    problems = []
    for axis, size in zip(axes, shape):
        extra = int(axis.endswith("+1"))
        wanted = int(axis) if axis.isdigit() else sizes.setdefault(axis.removesuffix("+1"), size - extra) + extra
        if size != wanted:
            problems.append(f"{name} {tuple(shape)} must be ({', '.join(axes)}) with {axis} = {wanted}, not {size}")
    return problems


def outside(name: str, values: Tensor, low: int, high: int | Tensor) -> list[str]:
    """Returns the problem that `values` has an element outside of [low, high], or an empty list."""
    wrong = (values < low) | (values > high)
    if not wrong.any():
        return []
    bound = high.expand_as(values)[wrong][0].item() if isinstance(high, Tensor) else high
    return [f"{name} has {values[wrong][0].item()}, must be in [{low}, {bound}]"]
