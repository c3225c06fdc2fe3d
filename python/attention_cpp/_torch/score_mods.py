"""Runs the functions of flex_attention (score_mod, mask_mod) to find the options of the operator that express them.

A mask_mod runs on the indices of a tile of rows. A score_mod runs on the same indices and on a Score, an object that
records what is done to it: products with numbers, tanh, sums, where(..., -inf). The recorded factor, cap, bias and mask
hold for every entry, and the bias has the gradients of the tensors that score_mod captures.
"""

from __future__ import annotations

import functools
import math
import types
import weakref
from typing import Any, Callable, NamedTuple

import torch
from torch import Tensor
from torch._dynamo._trace_wrapped_higher_order_op import TransformGetItemToIndex


class Unreadable(Exception):
    """No option of the operator expresses what a score_mod does to the score."""


def mapped(function: Callable, prefix: tuple = ()) -> Callable:
    """Turns a function of single indices b, h, i, j into one of index tensors, which returns [B, H, Lq, Lk].

    prefix: for each argument before the indices, 0 if it has these axes too, None if it has not.
    """
    for axes in ((None, None, None, 0), (None, None, 0, None), (None, 0, None, None), (0, None, None, None)):
        function = torch.vmap(function, in_dims=prefix + axes)

    def run(*arguments):
        with TransformGetItemToIndex():  # allows table[h] for a tensor h, as torch's own flex_attention does
            return function(*arguments)

    return run


def narrowed(tensor: Tensor) -> Tensor:
    """Returns the tensor with extent 1 on axes on which all entries share memory."""
    for axis in range(tensor.dim()):
        if tensor.stride(axis) == 0 and tensor.shape[axis] > 1:
            tensor = tensor.narrow(axis, 0, 1)
    return tensor


# ------------------------------------------------------------------------------------------------------------ the score

def _number(value: Any) -> float:
    """Returns a factor, which must be the same for all entries."""
    if isinstance(value, Tensor):
        if value.dim() or value.requires_grad or torch._C._functorch.is_batchedtensor(value):
            raise Unreadable("score_mod multiplies the score by something that is not one number for all entries")
        return value.item()
    if isinstance(value, (int, float)):
        return float(value)
    raise Unreadable("score_mod multiplies the score by something that is not one number for all entries")


def _is_minus_infinity(value: Any) -> bool:
    if isinstance(value, Tensor):
        if value.dim() or torch._C._functorch.is_batchedtensor(value):
            return False
        value = value.item()
    return value == -math.inf


class Score:
    """Records factor * score, or factor * tanh(inner * score), plus bias, and -infinity where it is not allowed."""

    def __init__(self, dtype: torch.dtype, factor: float = 1.0, inner: float | None = None, bias: Any = None,
                 allowed: Tensor | None = None) -> None:
        self.dtype, self.device, self.requires_grad, self.shape = dtype, torch.device("cpu"), False, torch.Size()
        self.factor, self.inner, self.bias, self.allowed = factor, inner, bias, allowed

    def _with(self, **changes: Any) -> Score:
        return Score(**{"dtype": self.dtype, "factor": self.factor, "inner": self.inner, "bias": self.bias,
                        "allowed": self.allowed, **changes})

    def _plus(self, other: Any, sign: float = 1.0) -> Score:
        if isinstance(other, Score) or not isinstance(other, (int, float, Tensor)):
            raise Unreadable("score_mod adds something that depends on the score to the score")
        added = other if sign == 1 else sign * other
        return self._with(bias=added if self.bias is None else self.bias + added)

    def _times(self, number: Any) -> Score:
        number = _number(number)
        if self.allowed is not None and not number > 0:
            raise Unreadable("score_mod multiplies a score of -infinity by a number that is not positive")
        return self._with(factor=self.factor * number, bias=None if self.bias is None else self.bias * number)

    def _over(self, number: Any) -> Score:
        number = _number(number)
        if number == 0:
            raise Unreadable("score_mod divides the score by 0")
        if self.allowed is not None and not number > 0:
            raise Unreadable("score_mod divides a score of -infinity by a number that is not positive")
        return self._with(factor=self.factor / number, bias=None if self.bias is None else self.bias / number)

    def _tanh(self) -> Score:
        if self.inner is not None or self.bias is not None or self.allowed is not None:
            raise Unreadable("score_mod applies tanh after a sum, a mask or another tanh")
        return self._with(factor=1.0, inner=self.factor)

    def _only_where(self, condition: Tensor) -> Score:
        return self._with(allowed=condition if self.allowed is None else self.allowed & condition)

    def _or(self, condition: Tensor, other: Score) -> Score:
        """Returns self where the condition holds and the other score elsewhere."""
        if (self.factor, self.inner) != (other.factor, other.inner):
            raise Unreadable("score_mod applies different factors or caps at different places")
        bias, allowed = None, None
        if self.bias is not None or other.bias is not None:
            bias = torch.where(condition, *(0.0 if x.bias is None else x.bias for x in (self, other)))
        if self.allowed is not None or other.allowed is not None:
            allowed = torch.where(condition, *(True if x.allowed is None else x.allowed for x in (self, other)))
        return self._with(bias=bias, allowed=allowed)

    def __add__(self, other):
        return self._plus(other)

    def __sub__(self, other):
        return self._plus(other, -1.0)

    def __rsub__(self, other):
        return self._times(-1.0)._plus(other)

    def __mul__(self, other):
        return self._times(other)

    def __truediv__(self, other):
        return self._over(other)

    def __neg__(self):
        return self._times(-1.0)

    __radd__, __rmul__ = __add__, __mul__

    def tanh(self):
        return self._tanh()

    def masked_fill(self, condition, value):
        return _where(~condition, self, value)

    def where(self, condition, other):
        return _where(condition, self, other)

    def to(self, *_, **__):
        return self

    float = double = clone = contiguous = to

    def dim(self):
        return 0

    def __getattr__(self, name: str):
        raise Unreadable(f"score_mod uses the attribute {name} of the score")

    def __bool__(self):
        raise Unreadable("score_mod has a condition that depends on the score")

    @classmethod
    def __torch_function__(cls, function, kinds, arguments=(), options=None):
        name = getattr(function, "__name__", "").strip("_")
        if name not in _FUNCTIONS or options and options.keys() - {"dtype", "device"}:
            raise Unreadable(f"score_mod passes the score to torch's {name}")
        return _FUNCTIONS[name](*arguments)


def _where(condition, a, b):
    if isinstance(condition, Score):
        raise Unreadable("score_mod has a condition that depends on the score")
    if isinstance(a, Score) and isinstance(b, Score):
        return a._or(condition, b)
    if isinstance(a, Score) and _is_minus_infinity(b):
        return a._only_where(condition)
    if isinstance(b, Score) and _is_minus_infinity(a):
        return b._only_where(~condition)
    raise Unreadable("score_mod replaces the score by another number than -infinity")


def _divided(a, b):
    if not isinstance(a, Score):
        raise Unreadable("score_mod divides by the score")
    return a._over(b)


_FUNCTIONS = {
    "add": lambda a, b: a + b if isinstance(a, Score) else b + a,
    "radd": lambda a, b: a + b if isinstance(a, Score) else b + a,
    "sub": lambda a, b: a - b if isinstance(a, Score) else b.__rsub__(a),
    "rsub": lambda a, b: b - a if isinstance(b, Score) else a.__rsub__(b),
    "mul": lambda a, b: a * b if isinstance(a, Score) else b * a,
    "rmul": lambda a, b: a * b if isinstance(a, Score) else b * a,
    "div": _divided,
    "tanh": lambda a: a._tanh(),
    "where": _where,
    "masked_fill": lambda a, condition, value: _where(~condition, a, value),
    "zeros_like": lambda a: torch.zeros((), dtype=a.dtype),
    "ones_like": lambda a: torch.ones((), dtype=a.dtype),
    "full_like": lambda a, value: torch.full((), value, dtype=a.dtype),
}


class Reading(NamedTuple):
    """What a score_mod does to scores: factor and cap hold for all rows, bias and mask for the rows that were read."""

    factor: float
    softcap: float  # 0: none
    bias: Tensor | None  # [B|1, H|1, rows|1, Lk|1]
    allowed: Tensor | None


def read_score(score_mod: Callable, dtype: torch.dtype, indices: tuple[Tensor, ...]) -> Reading:
    """Runs a score_mod on (b, h, rows, keys). Raises Unreadable if no option of the operator expresses it."""
    found: list[Score] = []

    def of(*index):
        result = score_mod(Score(dtype), *index)
        if not isinstance(result, Score):
            raise Unreadable("score_mod returns something that does not depend on the score")
        found.append(result)
        nothing = torch.zeros((), dtype=dtype)
        bias = nothing if result.bias is None else torch.as_tensor(result.bias, dtype=dtype)
        return bias, nothing if result.allowed is None else result.allowed

    try:
        bias, allowed = mapped(of)(*indices)
    except TypeError as error:  # for example of a comparison, which Score does not have
        raise Unreadable(str(error)) from error
    result = found[0]
    factor, softcap = result.factor, 0.0
    if result.inner is not None:  # factor tanh(inner s) = c tanh(factor' s / c)
        if result.factor * result.inner == 0:
            raise Unreadable("score_mod multiplies the score by 0")
        softcap, factor = abs(result.factor), result.factor * result.inner
    return Reading(factor, softcap, None if result.bias is None else narrowed(bias),
                   None if result.allowed is None else narrowed(allowed))


# -------------------------------------------------------------------------------------------------------- what it holds

class _Seen:
    """A tensor and its version: equal to a later one of the same tensor if nothing was written in between."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor, self.state = weakref.ref(tensor), (tensor._version, tensor.requires_grad)

    def __eq__(self, other: object) -> bool:
        tensor = self.tensor()
        return (isinstance(other, _Seen) and tensor is not None and tensor is other.tensor()
                and self.state == other.state)


def _names(code: types.CodeType) -> set[str]:
    """Returns the names that a function, or a function defined inside it, may look up in its module."""
    return set(code.co_names).union(*(_names(inner) for inner in code.co_consts if isinstance(inner, types.CodeType)))


def captured(value: Any, depth: int = 0) -> list | None:
    """Returns all that the results of a function depend on: code, numbers, tensors with their versions. None: unknown.

    Two functions with equal lists compute the same, so a caller may create a new closure for each call.
    """
    if value is None or isinstance(value, (int, float, str, torch.dtype, torch.device, types.ModuleType, type,
                                           types.BuiltinFunctionType)):
        return [(type(value), value)]
    if isinstance(value, Tensor):
        return None if value.is_inference() else [_Seen(value)]
    if depth > 8:
        return None
    if isinstance(value, functools.partial):
        parts = [value.func, *value.args, *value.keywords.values()]
    elif isinstance(value, (tuple, list)):
        parts = list(value)
    elif isinstance(value, types.FunctionType):
        if (value.__module__ or "").startswith("torch.") and value.__closure__ is None:
            return [value.__code__]
        names = sorted(_names(value.__code__))
        try:
            parts = [cell.cell_contents for cell in value.__closure__ or ()]
        except ValueError:  # a captured variable has no value yet
            return None
        parts += [value.__globals__[name] for name in names if name in value.__globals__]
        parts += value.__defaults__ or ()
    else:
        return None
    result: list = [value.__code__] if isinstance(value, types.FunctionType) else [len(parts)]
    for part in parts:
        inner = captured(part, depth + 1)
        if inner is None:
            return None
        result += inner
    return result
