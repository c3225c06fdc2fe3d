"""The options of attention(): one frozen object, which the functions pass to the extension."""

from __future__ import annotations

import dataclasses
import textwrap
from typing import Any, Callable, Mapping, Self, Sequence, TypedDict, TypeVar, Unpack

from . import _core
from ._arrays import exported, refuse_unknown

Array = Any  # NumPy, torch or JAX on the CPU, or anything with DLPack or the buffer protocol
Integers = Sequence[int] | Array
Numbers = Sequence[float] | Array
Shard = tuple[int, int, int, int, int, int]  # first_batch, first_head, first_query, first_key, queries, keys


class OptionArguments(TypedDict, total=False):
    """The keyword arguments that are options, for type checkers. None is the same as an option that is not given."""

    scale: float | None
    softcap: float
    causal: bool
    window: tuple[int, int]
    alignment: str | None
    key_length: Integers | None
    query_length: Integers | None
    offset: Integers | None
    mask: Array | None
    bias: Array | None
    alibi_slopes: Numbers | None
    query_segment_ids: Array | None
    key_segment_ids: Array | None
    cu_seqlens_q: Integers | None
    cu_seqlens_k: Integers | None
    blocks: tuple[Array, int, int] | tuple[Array, Array, int, int] | None
    sink: Numbers | None
    dropout: float
    seed: Array | int | None
    float32_precision: str | None
    batch_invariant: bool
    shard: Shard


@dataclasses.dataclass(frozen=True, init=False, repr=False, eq=False)
class Options:
    """The options of one call. Arrays are borrowed. `_core.option_list()` has shapes and meanings.

    An instance stores only the options that were given, and the extension reads its vars(). An attribute that was not
    given has the default below.
    """

    scale: float | None = None
    softcap: float = 0.0
    causal: bool = False
    window: tuple[int, int] = (-1, -1)
    alignment: str | None = None
    key_length: Integers | None = None
    query_length: Integers | None = None
    offset: Integers | None = None
    mask: Array | None = None
    bias: Array | None = None
    alibi_slopes: Numbers | None = None
    query_segment_ids: Array | None = None
    key_segment_ids: Array | None = None
    cu_seqlens_q: Integers | None = None
    cu_seqlens_k: Integers | None = None
    blocks: tuple[Array, int, int] | tuple[Array, Array, int, int] | None = None
    sink: Numbers | None = None
    dropout: float = 0.0
    seed: Array | int | None = None
    float32_precision: str | None = None
    batch_invariant: bool = False
    shard: Shard = (0, 0, 0, 0, 0, 0)

    def __init__(self, **given: Any) -> None:
        self.__dict__.update(given)

    def having(self, **changes: Any) -> Self:
        """Returns these options with changes, which replace options of the same name."""
        result = object.__new__(type(self))
        result.__dict__.update(self.__dict__)
        result.__dict__.update(changes)
        return result

    def without(self, *names: str) -> Self:
        """Returns these options without those of the names."""
        return type(self)(**{name: value for name, value in vars(self).items() if name not in names})

    def mapped(self, change: Callable[[str, Any], Any]) -> Self:
        """Returns these options with every given value replaced by change(name, value), in `blocks` its arrays, of
        which the indices are called "block_indices"."""
        def changed(name: str, value: Any) -> Any:
            if name != "blocks":
                return change(name, value)
            *arrays, query_block, key_block = value
            return *(change(*part) for part in zip(("blocks", "block_indices"), arrays)), query_block, key_block

        return type(self)(**{name: changed(name, value) for name, value in vars(self).items() if value is not None})


FIELDS = {field.name: field for field in dataclasses.fields(Options)}
NONE_GIVEN = Options()
# The axes of each array, as ("B|1", "H|1", "Lq|1", "Lk|1"); () for single values.
SHAPES: dict[str, tuple[str, ...]] = {
    name: tuple(shape[1:-1].split(", ")) if shape else () for name, _, shape, _, _ in _core.option_list()}


def axis_of(name: str, letter: str) -> int | None:
    """Returns the axis of an option for batch elements ("B"), heads ("H"), queries ("Lq") or keys ("Lk"), or None."""
    return next((number for number, axis in enumerate(SHAPES.get(name, ())) if axis.split("|")[0] == letter), None)


def options_of(operation: str, given: Mapping[str, Any]) -> Options:
    """Converts keyword arguments to options that the extension reads. Raises TypeError for a name that is not an
    option, and as exported() does."""
    if not given:
        return NONE_GIVEN
    if not given.keys() <= FIELDS.keys():
        refuse_unknown(operation, given, FIELDS)
    values = {name: value if name == "blocks" else exported(value, name) for name, value in given.items()
              if value is not None}
    if isinstance(values.get("blocks"), tuple):
        values["blocks"] = tuple(exported(part, "blocks") for part in values["blocks"])
    return Options(**values)


# ------------------------------------------------------------------------------------------------------- documentation

_F = TypeVar("_F", bound=Callable[..., Any])


def option_lines() -> str:
    """Returns a paragraph for every option: its name, type, shape, default and meaning."""
    lines = []
    for name, kind, shape, otherwise, meaning in _core.option_list():
        default = "" if otherwise == "none" else f", default {otherwise}"
        text = f"{name + '  ':<12}{kind}{shape and ' ' + shape}{default}: {meaning}"
        lines.append(textwrap.fill(text, 120, initial_indent=" " * 8, subsequent_indent=" " * 20))
    return "\n".join(lines)


def with_options(function: _F) -> _F:
    """Replaces the line "<every option>" of a docstring by the list of options."""
    if function.__doc__:
        function.__doc__ = function.__doc__.replace("        <every option>", option_lines())
    return function
