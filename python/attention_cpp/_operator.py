"""The operator on arrays. The functions allocate the results and call the extension."""

from __future__ import annotations

from typing import Any, Generic, Literal, NamedTuple, Protocol, Sequence, TypeVar, Unpack, overload

import numpy as np
import numpy.typing as npt

from . import _core
from ._arrays import FLOATING, as_array, copied, dtype_name, empty, exported, finished, wrong_types
from ._options import Array, OptionArguments, options_of, with_options


class _Shaped(Protocol):
    """An array whose library the results belong to. For an object without these attributes they are NumPy arrays."""

    @property
    def shape(self) -> Any: ...

    @property
    def dtype(self) -> Any: ...


A = TypeVar("A", bound=_Shaped)


class Gradients(NamedTuple, Generic[A]):
    """The result of attention_backward(): arrays of the library of q. A gradient that was not wanted is None, and so is
    that of an array that was not given."""

    dq: A | None
    dk: A | None
    dv: A | None
    dbias: A | None  # the shape of bias: summed over the axes that were broadcast
    dsink: A | None  # [H]


class Plan(NamedTuple):
    """What a call will do, as explain() returns it."""

    path: str  # the kernels: "avx512: ..."
    isa: str  # the instruction set in use
    tasks: int  # independent units of work
    scratch_bytes: int  # extra memory of all threads together
    flops: float  # a multiply-add on an allowed (query, key) pair counts as two


def of_all(plans: Sequence[Plan]) -> Plan:
    """Returns one plan for several calls that run one after the other."""
    return plans[0]._replace(tasks=sum(plan.tasks for plan in plans), flops=sum(plan.flops for plan in plans),
                             scratch_bytes=max(plan.scratch_bytes for plan in plans))


def _shape(array: Any) -> tuple[int, ...]:
    return tuple(getattr(array, "shape", ()))


def _lse_dtype(array: Any) -> str:
    return "float64" if dtype_name(array) == "float64" else "float32"


@overload
def attention(q: A, k: Array, v: Array, *, out: Array | None = None, return_lse: Literal[False] = False,
              **options: Unpack[OptionArguments]) -> A: ...


@overload
def attention(q: A, k: Array, v: Array, *, out: Array | None = None, return_lse: Literal[True],
              **options: Unpack[OptionArguments]) -> tuple[A, A]: ...


@overload
def attention(q: A, k: Array, v: Array, *, out: Array | None = None, return_lse: bool,
              **options: Unpack[OptionArguments]) -> A | tuple[A, A]: ...


@overload
def attention(q: memoryview, k: Array, v: Array, *, out: Array | None = None, return_lse: Literal[False] = False,
              **options: Unpack[OptionArguments]) -> npt.NDArray[Any]: ...


@with_options
def attention(q: Array, k: Array, v: Array, *, out: Array | None = None, return_lse: bool = False,
              **options: Unpack[OptionArguments]) -> Any:
    """Computes out_i = sum_j softmax_j(scale <q_i, k_j>) v_j exactly, in O(n) memory.

        >>> out, lse = attention(q, k, v, causal=True, return_lse=True)

    Arguments
        q           [B, H, Lq, D]; k [B, Hk, Lk, D]; v [B, Hk, Lk, Dv]: float32, float64, bfloat16 or float16, one type
                    for all, any strides. H is a multiple of Hk: query head h reads key head h / (H / Hk). All three may
                    lack leading axes: [L, D] is one head. D and Dv are at most 1024
        out         [B, H, Lq, Dv], an array for the result; it must not overlap an input. None: a new array
        return_lse  also return lse [B, H, Lq], the natural log of the sum of exp(scores): float32, or float64 for
                    float64. attention_backward() and attention_weights() take it
        <every option>

    All options compose. A row without an allowed key and without a sink gives exactly 0, with lse -inf.

    Returns out, or (out, lse): arrays of the library of q.

    Raises Error (a ValueError) or TypeError. The message names everything that is wrong, and nothing is written.
    """
    q, k, v = as_array(q), as_array(k), as_array(v)
    given = options_of("attention", options)
    lse, result, shape, of_v = None, out, _shape(q), _shape(v)
    # Otherwise the extension raises.
    if 2 <= len(shape) <= 4 and of_v and (dtype := dtype_name(q)) in FLOATING:
        if out is None:
            result = empty(q, (*shape[:-1], of_v[-1]), dtype)
        if return_lse:
            lse = empty(q, shape[:-1], _lse_dtype(q))
    _core.forward(exported(q, "q"), exported(k, "k"), exported(v, "v"), exported(result, "out", True), exported(lse),
                  given, out is not None)
    result = finished(result, q) if out is None else out
    return (result, finished(lse, q)) if return_lse else result


def attention_backward(
    q: A,
    k: Array,
    v: Array,
    out: Array,
    lse: Array,
    dout: Array,
    *,
    dlse: Array | None = None,
    wanted: Sequence[str] = ("dq", "dk", "dv", "dbias", "dsink"),
    **options: Unpack[OptionArguments],
) -> Gradients[A]:
    """Computes the gradients of attention(), in O(n) memory.

        >>> dq, dk, dv, _, _ = attention_backward(q, k, v, out, lse, dout, causal=True)

    Arguments
        q, k, v     the arrays of the forward; out and lse are its results
        dout        [B, H, Lq, Dv], the gradient of the loss with respect to out; dlse [B, H, Lq], the one with respect
                    to lse, or None
        wanted      the names of the gradients to compute; dbias needs the option bias, dsink the option sink
        options     the options of the forward; the seed repeats its dropout

    Returns Gradients(dq, dk, dv, dbias, dsink). Each has the type and shape of its array; dsink has the type of lse.

    Raises as attention() does.
    """
    q, k, v = as_array(q), as_array(k), as_array(v)
    given = options_of("attention_backward", options)
    wrong_types("attention_backward", wanted=(wanted, "list of strings"))
    unknown = sorted(set(wanted) - set(Gradients._fields))
    if unknown:
        raise _core.Error("[attention_backward] there is no gradient " + ", ".join(map(repr, unknown))
                          + "; there are " + ", ".join(Gradients._fields))
    shapes = {"dq": q, "dk": k, "dv": v, "dbias": options.get("bias"), "dsink": options.get("sink")}
    results: dict[str, Any] = {}
    for name, array in shapes.items():
        if name not in wanted or array is None:
            continue
        if name == "dsink" and hasattr(array, "__len__"):
            results[name] = empty(q, (len(array),), _lse_dtype(lse) if _shape(lse) else "float32")
        elif 2 <= len(_shape(array)) <= 4 and dtype_name(array) in FLOATING:
            results[name] = empty(q, _shape(array), dtype_name(array))
    _core.backward(
        exported(q, "q"), exported(k, "k"), exported(v, "v"), exported(out, "out"), exported(lse, "lse"),
        exported(dout, "dout"), exported(dlse, "dlse"),
        {name: exported(array) for name, array in results.items()}, given)
    return Gradients(*(finished(results[name], q) if name in results else None for name in Gradients._fields))


def _range_of(
    rows: slice | range | int | None, count: int, name: str, operation: str = "attention_weights"
) -> tuple[int, int]:
    """Returns (first, count) of a range of rows or columns, of which there are `count`."""
    if rows is None:
        return 0, count
    if isinstance(rows, int):
        rows = range(rows, rows + 1)
    if not isinstance(rows, (slice, range)):
        raise TypeError(f"[{operation}] {name} must be a slice, a range or an index, not {type(rows).__name__}")
    first, last, step = (rows.start, rows.stop, rows.step) if isinstance(rows, range) else rows.indices(count)
    if step != 1 or first < 0 or last > count:
        raise _core.Error(f"[{operation}] {name} must be a range of step 1 in [0, {count}), not {rows}")
    return first, max(last - first, 0)


@overload
def attention_weights(q: A, k: Array, lse: Array, rows: slice | range | int | None = None,
                      columns: slice | range | int | None = None, *, out: Array | None = None,
                      **options: Unpack[OptionArguments]) -> A: ...


@overload
def attention_weights(q: memoryview, k: Array, lse: Array, rows: slice | range | int | None = None,
                      columns: slice | range | int | None = None, *, out: Array | None = None,
                      **options: Unpack[OptionArguments]) -> npt.NDArray[Any]: ...


def attention_weights(q: Array, k: Array, lse: Array, rows: slice | range | int | None = None,
                      columns: slice | range | int | None = None, *, out: Array | None = None,
                      **options: Unpack[OptionArguments]) -> Any:
    """Computes a rectangle of the attention matrix P from q, k and lse. P itself is never stored.

        >>> last = attention_weights(q, k, lse, rows=range(990, 1000), causal=True)         # [B, H, 10, Lk]

    Arguments
        q, k, lse   those of attention(..., return_lse=True)
        rows        the queries: a slice, a range, one index, or None for all; columns selects the keys in the same way
        out         [B, H, rows, columns] float32 (float64 for float64), an array for the result. None: a new array
        options     the options of attention()

    Returns [B, H, rows, columns]: the weights before dropout. Over all keys, a row sums to 1 minus its sink's share.

    Raises as attention() does. Raises Error too if the weights of a row add up to more than 1, because lse then belongs
    to other arrays or options. (A sum below 1 can be correct: for some columns, or with the lse of more keys after
    merge().)
    """
    q, k = as_array(q), as_array(k)
    given = options_of("attention_weights", options)
    result = out
    first_query = first_key = 0
    if 2 <= len(_shape(q)) <= 4 and len(_shape(k)) >= 2:
        first_query, row_count = _range_of(rows, _shape(q)[-2], "rows")
        first_key, column_count = _range_of(columns, _shape(k)[-2], "columns")
        if out is None:
            result = empty(q, (*_shape(q)[:-2], row_count, column_count), _lse_dtype(q))
        elif _shape(out)[-2:] != (row_count, column_count):
            raise _core.Error(f"[attention_weights] out is {list(_shape(out))}, must be {row_count} x {column_count} "
                              "on its last axes, as rows and columns say")
    _core.weights(exported(q, "q"), exported(k, "k"), exported(lse, "lse"), exported(result, "out", True), first_query,
                  first_key, given)
    return finished(result, q) if out is None else out


def merge(out: A, lse: A, out_b: A, lse_b: A) -> tuple[A, A]:
    """Computes attention over the union of two disjoint sets of keys from the results over each set.

        >>> out, lse = merge(*attention(q, k_a, v_a, return_lse=True), *attention(q, k_b, v_b, return_lse=True))

    out, out_b [B, H, Lq, Dv]; lse, lse_b [B, H, Lq]. The operation is associative, and (0, -inf) is its identity. It
    changes no argument. Returns new arrays (out, lse).
    """
    out, lse, out_b, lse_b = (as_array(array) for array in (out, lse, out_b, lse_b))
    new_out, new_lse = copied(out), copied(lse)
    _core.merge(exported(new_out, "out"), exported(new_lse, "lse"), exported(out_b, "out_b"), exported(lse_b, "lse_b"))
    return finished(new_out, out), finished(new_lse, lse)


def explain(q: Array, k: Array, v: Array, **options: Unpack[OptionArguments]) -> Plan:
    """Returns what attention(q, k, v, **options) will do (path, scratch memory, arithmetic), without computing it.

        >>> explain(q, k, v, causal=True).scratch_bytes

    Raises as attention() does.
    """
    return _explain("explain", q, k, v, options)


def explain_backward(q: Array, k: Array, v: Array, **options: Unpack[OptionArguments]) -> Plan:
    """Returns what attention_backward() will do for such a call; with a bias the plan includes dbias. As explain()."""
    return _explain("explain_backward", q, k, v, options)


def _explain(function: str, q: Array, k: Array, v: Array, options: OptionArguments) -> Plan:
    q, k, v = as_array(q), as_array(k), as_array(v)
    given = options_of(function, options)
    backward = function == "explain_backward"
    return Plan(*_core.explain(exported(q, "q"), exported(k, "k"), exported(v, "v"), given, backward,
                               backward and given.bias is not None))


def dropout_keeps(
    seed: int, probability: float, shape: tuple[int, int, int, int], first_query: int = 0, first_key: int = 0
) -> npt.NDArray[np.bool_]:
    """Returns which weights dropout keeps: a boolean NumPy array [B, H, rows, columns] that starts at first_query and
    first_key.

    shape is (B, H, rows, columns), seed is in [0, 2^64), probability in [0, 1). Raises Error otherwise.
    """
    wrong_types("dropout_keeps", seed=(seed, "whole number"), probability=(probability, "number"),
                shape=(shape, "list of whole numbers"), first_query=(first_query, "whole number"),
                first_key=(first_key, "whole number"))
    rules = {f"seed is {seed}, must be in [0, 2^64)": 0 <= seed < 2**64,
             f"probability is {probability}, must be in [0, 1)": 0 <= probability < 1,
             f"shape is {tuple(shape)}, must be (B, H, rows, columns)": len(shape) == 4 and min(shape) >= 0,
             f"first_query and first_key are {first_query} and {first_key}, must not be negative":
                 min(first_query, first_key) >= 0}
    if not all(rules.values()):
        raise _core.Error("[dropout_keeps] " + "; ".join(rule for rule, holds in rules.items() if not holds))
    keep = np.empty(shape, np.bool_)
    _core.dropout_keeps(seed, probability, keep, first_query, first_key)
    return keep

