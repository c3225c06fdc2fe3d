"""The options of the operator on torch tensors: the one list of integrations, operators and their maths."""

from __future__ import annotations

from typing import Any, Collection, Mapping

import torch
from torch import Tensor

from ._arrays import refuse_unknown
from ._core import Error
from ._operator import OPTIONS, Options as Options


# In the order in which operators take them: the name, the type in a schema, what it is if nothing is said. The two that
# have a gradient come first, the two of dropout last. A window is two numbers here and `blocks` three options.
_TABLE: tuple[tuple[str, str, Any], ...] = (
    ("bias", "Tensor?", None), ("sink", "Tensor?", None), ("mask", "Tensor?", None), ("alibi_slopes", "Tensor?", None),
    ("key_length", "Tensor?", None), ("query_length", "Tensor?", None), ("offset", "Tensor?", None),
    ("cu_seqlens_q", "Tensor?", None), ("cu_seqlens_k", "Tensor?", None), ("query_segment_ids", "Tensor?", None),
    ("key_segment_ids", "Tensor?", None), ("blocks", "Tensor?", None), ("scale", "float?", None),
    ("softcap", "float", 0.0), ("causal", "bool", False), ("window_left", "int", -1), ("window_right", "int", -1),
    ("alignment", "str?", None), ("query_block", "int", 0), ("key_block", "int", 0),
    ("float32_precision", "str?", None), ("batch_invariant", "bool", False), ("dropout", "float", 0.0),
    ("seed", "Tensor?", None),
)
NAMES = tuple(name for name, _, _ in _TABLE)
TENSORS = tuple(name for name, kind, _ in _TABLE if kind == "Tensor?" and name != "seed")
SCHEMA = ", ".join(f"{kind} {name}" for name, kind, _ in _TABLE)
_DEFAULTS = {name: default for name, _, default in _TABLE}


def new_seed() -> Tensor:
    """From torch's own generator, so that torch.manual_seed() decides and activation checkpointing repeats it."""
    return torch.randint(2**62, ())


def in_order(options: Mapping[str, Any]) -> Collection[Any]:
    """The values of an Options, in the order of NAMES; a seed is drawn where dropout needs one."""
    given = {**_DEFAULTS, **options}
    if "window" in options:
        window = given.pop("window")
        if not (isinstance(window, (tuple, list)) and len(window) == 2):
            raise TypeError(f"[attention] window must be (left, right), -1 = no limit, not {window!r}")
        given["window_left"], given["window_right"] = window
    if given["blocks"] is not None:
        given["blocks"], given["query_block"], given["key_block"] = given["blocks"]
    if not 0 <= given["dropout"] < 1:
        raise Error(f"[attention] dropout is {given['dropout']}, must be in [0, 1)")
    if given["dropout"] > 0 and given["seed"] is None:
        given["seed"] = new_seed()
    if len(given) != len(_DEFAULTS):
        refuse_unknown("attention", options, OPTIONS)
    return given.values()
