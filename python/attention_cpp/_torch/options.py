"""Converts options to the flat list of tensors and numbers that torch's operators take: a schema has no objects."""

from __future__ import annotations

from typing import Any, Callable, Iterable

import torch
from torch import Tensor

from .._core import Error
from .._options import FIELDS, NONE_GIVEN as NONE_GIVEN, OptionArguments as OptionArguments, Options as Options

GRADIENTS = ("bias", "sink")  # options with a gradient, which come first
_KINDS = {"float": "float", "float | None": "float?", "bool": "bool", "str | None": "str?", "tuple[int, int]": "int[]",
          "Shard": "int[]"}
_DEFAULTS: dict[str, Any] = {}
_SCHEMA: list[str] = []
for _name in (*GRADIENTS, *(name for name in FIELDS if name not in GRADIENTS)):
    _DEFAULTS[_name] = FIELDS[_name].default
    _SCHEMA.append(f"{_KINDS.get(str(FIELDS[_name].type), 'Tensor?')} {_name}")
    if _name == "blocks":
        _DEFAULTS |= {"block_indices": None, "query_block": 0, "key_block": 0}
        _SCHEMA += ["Tensor? block_indices", "int query_block", "int key_block"]
NAMES = tuple(_DEFAULTS)
SCHEMA = ", ".join(_SCHEMA)


def flat(options: Options) -> tuple[Any, ...]:
    """Returns the values of options in the order of NAMES."""
    given = {name: value for name, value in vars(options).items() if value is not None}
    if "blocks" in given:
        given["blocks"], *indices, given["query_block"], given["key_block"] = given["blocks"]
        given["block_indices"] = indices[0] if indices else None
    return tuple({**_DEFAULTS, **given}.values())


def from_flat(values: Iterable[Any]) -> Options:
    """Returns the options of a list of flat()."""
    given = {name: value for name, value in zip(NAMES, values) if value is not None}
    sizes = given.pop("query_block"), given.pop("key_block")
    indices = [given.pop("block_indices")] if "block_indices" in given else []
    if "blocks" in given:
        given["blocks"] = (given["blocks"], *indices, *sizes)
    return Options(**given)


def tensors_of(options: Options) -> dict[str, Tensor]:
    """Returns the options that are tensors, by name, and the arrays of `blocks`."""
    found: dict[str, Tensor] = {}

    def find(name: str, value: Any) -> None:
        if isinstance(value, Tensor):
            found[name] = value

    options.mapped(find)
    return found


def with_tensors(options: Options, change: Callable[[Tensor], Any]) -> Options:
    """Returns the options with every tensor replaced by change(tensor)."""
    return options.mapped(lambda _, value: change(value) if isinstance(value, Tensor) else value)


def detached(options: Options) -> Options:
    return with_tensors(options, Tensor.detach)


def new_seed() -> Tensor:
    """Draws a seed from torch's generator, so that torch.manual_seed() and activation checkpointing repeat it."""
    return torch.randint(2**62, ())


def seeded(options: Options) -> Options:
    """Adds a seed to the options if dropout needs one. Raises Error for a dropout outside [0, 1)."""
    if not options.dropout:
        return options
    if not 0 <= options.dropout < 1:
        raise Error(f"[attention] dropout is {options.dropout}, must be in [0, 1)")
    return options if options.seed is not None else options.having(seed=new_seed())
