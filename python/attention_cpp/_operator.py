"""The operator on arrays: allocates the results and calls the extension."""

from __future__ import annotations

from typing import Any, Generic, Literal, Mapping, NamedTuple, Protocol, Sequence, TypedDict, TypeVar, Unpack, overload

import numpy as np
import numpy.typing as npt

from . import _core
from ._arrays import FLOATING, as_array, copied, dtype_name, empty, exported, finished, refuse_unknown, wrong_types

Array = Any  # NumPy, torch or JAX on the CPU, or anything with DLPack or the buffer protocol


class _Shaped(Protocol):
    """What results are of the kind of; without these two attributes they are NumPy's."""

    @property
    def shape(self) -> Any: ...

    @property
    def dtype(self) -> Any: ...


A = TypeVar("A", bound=_Shaped)


class Options(TypedDict, total=False):
    """The keywords of attention() that say what is computed; None is as good as nothing."""

    scale: float | None
    softcap: float
    causal: bool
    window: tuple[int, int]
    alignment: str | None
    key_length: Sequence[int] | Array | None
    query_length: Sequence[int] | Array | None
    offset: Sequence[int] | Array | None
    mask: Array | None
    bias: Array | None
    alibi_slopes: Sequence[float] | Array | None
    query_segment_ids: Array | None
    key_segment_ids: Array | None
    cu_seqlens_q: Sequence[int] | Array | None
    cu_seqlens_k: Sequence[int] | Array | None
    blocks: tuple[Array, int, int] | None
    sink: Sequence[float] | Array | None
    dropout: float
    seed: Array | int | None
    float32_precision: str | None
    batch_invariant: bool


OPTIONS = frozenset(Options.__annotations__)


class Gradients(NamedTuple, Generic[A]):
    """Of attention_backward(), arrays of the kind of q; None where not wanted or not there."""

    dq: A | None
    dk: A | None
    dv: A | None
    dbias: A | None  # the shape of bias: summed over the axes that were broadcast
    dsink: A | None  # [H]


class Plan(NamedTuple):
    """What a call will do."""

    path: str  # "avx512: ..."
    isa: str
    tasks: int  # independent units of work
    scratch_bytes: int  # extra memory, all threads together
    flops: float  # multiply-adds on allowed (query, key) pairs, counted as two


def of_all(plans: Sequence[Plan]) -> Plan:
    """The plan of calls that follow one another."""
    return plans[0]._replace(tasks=sum(plan.tasks for plan in plans), flops=sum(plan.flops for plan in plans),
                             scratch_bytes=max(plan.scratch_bytes for plan in plans))


def _shape(array: Any) -> tuple[int, ...]:
    return tuple(getattr(array, "shape", ()))


def _lse_dtype(array: Any) -> str:
    return "float64" if dtype_name(array) == "float64" else "float32"


def _options(options: Mapping[str, Any], operation: str = "attention") -> dict[str, Any]:
    """As the extension takes them."""
    if not options:
        return {}
    if not options.keys() <= OPTIONS:
        refuse_unknown(operation, options, OPTIONS)
    given = {name: value if name == "blocks" else exported(value, name) for name, value in options.items()
             if value is not None}
    if isinstance(given.get("blocks"), tuple):
        given["blocks"] = tuple(exported(part, "blocks") for part in given["blocks"])
    return given


@overload
def attention(q: A, k: Array, v: Array, *, out: Array | None = None, return_lse: Literal[False] = False,
              **options: Unpack[Options]) -> A: ...


@overload
def attention(q: A, k: Array, v: Array, *, out: Array | None = None, return_lse: Literal[True],
              **options: Unpack[Options]) -> tuple[A, A]: ...


@overload
def attention(q: A, k: Array, v: Array, *, out: Array | None = None, return_lse: bool,
              **options: Unpack[Options]) -> A | tuple[A, A]: ...


@overload
def attention(q: memoryview, k: Array, v: Array, *, out: Array | None = None, return_lse: Literal[False] = False,
              **options: Unpack[Options]) -> npt.NDArray[Any]: ...


def attention(q: Array, k: Array, v: Array, *, out: Array | None = None, return_lse: bool = False,
              **options: Unpack[Options]) -> Any:
    """out_i = sum_j softmax_j(scale <q_i, k_j>) v_j, exact, in O(n) memory.

    Arguments
        q           [B, H, Lq, D]; k [B, Hk, Lk, D]; v [B, Hk, Lk, Dv]: float32, float64, bfloat16 or float16, one type
                    for all, any strides. H is a multiple of Hk: query head h reads key head h / (H / Hk). Leading axes
                    may be missing in all three: [L, D] is one head. D and Dv up to 1024.
        out         [B, H, Lq, Dv], written to if given; must not overlap an input
        return_lse  also return lse [B, H, Lq], the natural log of the sum of exp(scores): float32, or float64 for
                    float64. attention_backward() and weights() need it
        scale       the factor on <q, k>; default 1 / sqrt(D)
        softcap     c > 0: scores become c tanh(score / c), before bias and mask
        causal      query i sees no key after its place p_i
        window      (left, right): keys from p_i - left to p_i + right, both included; -1 = no limit
        alignment   p_i: "top_left" = i; "bottom_right" = i + key_length - query_length; "offset" = i + offset[b].
                    Must be named where it matters: if Lq != Lk with causal, window or ALiBi
        key_length  [B] keys that exist in each sequence; query_length [B] for bottom_right; offset [B] for "offset"
        mask        boolean [B|1, H|1, Lq|1, Lk|1], True = attend; read in place
        bias        floating [B|1, H|1, Lq|1, Lk|1], added to the scores; -inf masks
        alibi_slopes  [H]: subtracts slope |p_i - j|
        query_segment_ids, key_segment_ids   int [B|1, Lq] and [B|1, Lk]: only equal ids attend
        cu_seqlens_q, cu_seqlens_k   packed sequences (B = 1): where each starts in Lq and Lk, then the total
        blocks      (allowed, query_block, key_block): boolean [B|1, H|1, ceil(Lq / query_block), ceil(Lk / key_block)]
        sink        [H]: one more logit a row, in the denominator alone
        dropout     the probability of dropping a weight; which ones is a function of (seed, b, h, i, j) alone
        seed        in [0, 2^64), 0 at first
        float32_precision   how float32 numbers enter products on CPUs with matrix tiles: "full" (as accurate as float32
                    arithmetic), "high" (16 bits), "fast" (rounded to bfloat16); elsewhere all are full. None: what
                    attention_cpp.float32_precision() says, "full" at first
        batch_invariant   a row has the same bits however many rows the call has: a decoded token those of its prompt

    All options compose. A row that sees no key and has no sink gives exactly 0, with lse -inf.

    Returns out, or (out, lse): arrays of the kind of q.

    Raises Error (a ValueError) or TypeError, which name everything that is wrong; nothing is written then.
    """
    q, k, v = as_array(q), as_array(k), as_array(v)
    given = _options(options)
    lse, result, shape, of_v = None, out, _shape(q), _shape(v)
    # Otherwise the extension says what is wrong.
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
    **options: Unpack[Options],
) -> Gradients[A]:
    """The gradients of attention(), in O(n) memory.

    Arguments
        q, k, v     as in the forward; out and lse its results
        dout        [B, H, Lq, Dv], the gradient of the loss with respect to out; dlse [B, H, Lq] to lse, or None
        wanted      which to compute; dbias and dsink are only there if bias and sink are
        options     those of the forward, the same values: dropout is replayed from the seed

    Returns Gradients(dq, dk, dv, dbias, dsink), each in the type and shape of its array; dsink in that of lse.

    Raises as attention() does.
    """
    q, k, v = as_array(q), as_array(k), as_array(v)
    given = _options(options, "attention_backward")
    wrong_types("attention_backward", wanted=(wanted, "list of strings"))
    unknown = sorted(set(wanted) - set(Gradients._fields))
    if unknown:
        raise _core.Error("[attention_backward] there is no gradient " + ", ".join(map(repr, unknown)))
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
                      **options: Unpack[Options]) -> A: ...


@overload
def attention_weights(q: memoryview, k: Array, lse: Array, rows: slice | range | int | None = None,
                      columns: slice | range | int | None = None, *, out: Array | None = None,
                      **options: Unpack[Options]) -> npt.NDArray[Any]: ...


def attention_weights(q: Array, k: Array, lse: Array, rows: slice | range | int | None = None,
                      columns: slice | range | int | None = None, *, out: Array | None = None,
                      **options: Unpack[Options]) -> Any:
    """Computes a rectangle of the attention matrix P from q, k and lse. P itself is never stored.

    Arguments
        q, k, lse   of the forward, with return_lse=True
        rows        which queries: a slice, a range, one index, or None for all; columns which keys
        out         [B, H, rows, columns] float32 (float64 for float64), written to if given
        options     those of the forward

    Returns [B, H, rows, columns]: the weights before dropout. A row sums to 1 over all keys, less its sink's share.

    Raises as attention() does; Error too where the weights of a row add up to more than 1, since lse is not that of q,
    k and the options then. (Less than 1 may be right: of some columns, or where lse is that of more keys, as after
    merge().)
    """
    q, k = as_array(q), as_array(k)
    given = _options(options, "attention_weights")
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
    """Attention over the union of two disjoint sets of keys, from the results over each.

    out, out_b [B, H, Lq, Dv]; lse, lse_b [B, H, Lq]. Associative; (0, -inf) is the identity. Returns (out, lse).
    """
    out, lse, out_b, lse_b = (as_array(array) for array in (out, lse, out_b, lse_b))
    new_out, new_lse = copied(out), copied(lse)
    _core.merge(exported(new_out, "out"), exported(new_lse, "lse"), exported(out_b, "out_b"), exported(lse_b, "lse_b"))
    return finished(new_out, out), finished(new_lse, lse)


def _plan(function: str, backward: bool, q: Array, k: Array, v: Array, options: Options) -> Plan:
    q, k, v = as_array(q), as_array(k), as_array(v)
    with_dbias = backward and options.get("bias") is not None
    return Plan(*_core.explain(exported(q, "q"), exported(k, "k"), exported(v, "v"), _options(options, function),
                               backward, with_dbias))


def explain(q: Array, k: Array, v: Array, **options: Unpack[Options]) -> Plan:
    """Returns what attention(q, k, v, **options) will do: its path, scratch memory and arithmetic."""
    return _plan("explain", False, q, k, v, options)


def explain_backward(q: Array, k: Array, v: Array, **options: Unpack[Options]) -> Plan:
    """Returns what attention_backward() of attention(q, k, v, **options) will do, with the gradient of a bias."""
    return _plan("explain_backward", True, q, k, v, options)


def dropout_keeps(
    seed: int, probability: float, shape: tuple[int, int, int, int], first_query: int = 0, first_key: int = 0
) -> npt.NDArray[np.bool_]:
    """Which weights dropout keeps: a boolean NumPy array [B, H, rows, columns] from a first query and key on.

    The seed is in [0, 2^64), the probability in [0, 1).
    """
    wrong_types("dropout_keeps", seed=(seed, "whole number"), probability=(probability, "number"),
                shape=(shape, "list of whole numbers"), first_query=(first_query, "whole number"),
                first_key=(first_key, "whole number"))
    allowed = {"seed is in [0, 2^64)": 0 <= seed < 2**64, "probability is in [0, 1)": 0 <= probability < 1,
               "shape is (B, H, rows, columns)": len(shape) == 4 and min(shape) >= 0,
               "first_query and first_key are not negative": min(first_query, first_key) >= 0}
    if not all(allowed.values()):
        given = f"{seed}, {probability}, {tuple(shape)}, {first_query}, {first_key}"
        raise _core.Error(f"[dropout_keeps] given are {given}, but "
                          + " and ".join(rule for rule, holds in allowed.items() if not holds))
    keep = np.empty(shape, np.bool_)
    _core.dropout_keeps(seed, probability, keep, first_query, first_key)
    return keep

