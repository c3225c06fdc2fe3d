"""The operator on arrays: allocates the results and calls the extension."""

from __future__ import annotations

from typing import Any, NamedTuple, Sequence

import numpy as np

from . import _core
from ._arrays import FLOATING, as_array, copied, dtype_name, empty, exported, finished

Array = Any  # NumPy, torch or JAX on the CPU, or anything with DLPack or the buffer protocol


class Gradients(NamedTuple):
    """Of attention_backward(); None where not wanted or not there."""

    dq: Array | None
    dk: Array | None
    dv: Array | None
    dbias: Array | None  # the shape of bias: summed over the axes that were broadcast
    dsink: Array | None  # [H]


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


def _options(options: dict[str, Any]) -> dict[str, Any]:
    given = {name: exported(value) for name, value in options.items() if value is not None}
    if isinstance(given.get("blocks"), tuple):
        given["blocks"] = tuple(exported(part) for part in given["blocks"])
    return given


def attention(
    q: Array,
    k: Array,
    v: Array,
    *,
    out: Array | None = None,
    return_lse: bool = False,
    scale: float | None = None,
    softcap: float = 0.0,
    causal: bool = False,
    window: tuple[int, int] = (-1, -1),
    alignment: str | None = None,
    key_length: Sequence[int] | Array | None = None,
    query_length: Sequence[int] | Array | None = None,
    offset: Sequence[int] | Array | None = None,
    mask: Array | None = None,
    bias: Array | None = None,
    alibi_slopes: Sequence[float] | Array | None = None,
    query_document: Array | None = None,
    key_document: Array | None = None,
    cu_query: Sequence[int] | Array | None = None,
    cu_key: Sequence[int] | Array | None = None,
    blocks: tuple[Array, int, int] | None = None,
    sink: Sequence[float] | Array | None = None,
    dropout: float = 0.0,
    seed: int = 0,
    float32_precision: str | None = None,
    same_bits: bool = False,
) -> Any:
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
        query_document, key_document   int [B|1, Lq] and [B|1, Lk]: only equal ids attend
        cu_query, cu_key   packed sequences (B = 1): where each starts in Lq and Lk, then the total
        blocks      (allowed, query_block, key_block): boolean [B|1, H|1, ceil(Lq / query_block), ceil(Lk / key_block)]
        sink        [H]: one more logit a row, in the denominator alone
        dropout     the probability of dropping a weight; which ones is a function of (seed, b, h, i, j) alone
        seed        in [0, 2^64)
        float32_precision   how float32 numbers enter products on CPUs with matrix tiles: "full" (as accurate as float32
                    arithmetic), "high" (16 bits), "fast" (rounded to bfloat16); elsewhere all are full. None: what
                    attention_cpp.float32_precision() says, "full" at first
        same_bits   a row has the same bits however many rows the call has: a decoded token those of its prompt

    All options compose. A row that sees no key and has no sink gives exactly 0, with lse -inf.

    Returns out, or (out, lse): arrays of the kind of q.

    Raises Error (a ValueError) or TypeError, which name everything that is wrong; nothing is written then.
    """
    q, k, v = as_array(q), as_array(k), as_array(v)
    options = _options({
        "scale": scale, "softcap": softcap, "causal": causal, "window": window, "alignment": alignment,
        "key_length": key_length, "query_length": query_length, "offset": offset, "mask": mask, "bias": bias,
        "alibi_slopes": alibi_slopes, "query_document": query_document, "key_document": key_document,
        "cu_query": cu_query, "cu_key": cu_key, "blocks": blocks, "sink": sink, "dropout": dropout, "seed": seed,
        "float32_precision": float32_precision, "same_bits": same_bits,
    })
    lse = None
    result = out
    if _shape(q) and _shape(v) and dtype_name(q) in FLOATING:  # otherwise the extension says what is wrong
        rows = _shape(q)[:-1]
        if out is None:
            result = empty(q, (*rows, _shape(v)[-1]), dtype_name(q))
        if return_lse:
            lse = empty(q, rows, _lse_dtype(q))
    _core.forward(exported(q), exported(k), exported(v), exported(result, writable=True), lse, options)
    result = finished(result, q) if out is None else out
    return (result, finished(lse, q)) if return_lse else result


def attention_backward(
    q: Array,
    k: Array,
    v: Array,
    out: Array,
    lse: Array,
    dout: Array,
    *,
    dlse: Array | None = None,
    wanted: Sequence[str] = ("dq", "dk", "dv", "dbias", "dsink"),
    **options: Any,
) -> Gradients:
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
    unknown = sorted(set(wanted) - set(Gradients._fields))
    if unknown:
        raise _core.Error("[attention_backward] there is no gradient " + ", ".join(map(repr, unknown)))
    shapes = {"dq": q, "dk": k, "dv": v, "dbias": options.get("bias"), "dsink": options.get("sink")}
    results: dict[str, Any] = {}
    for name, array in shapes.items():
        if name not in wanted or array is None:
            continue
        if name == "dsink":
            results[name] = empty(q, (len(array),), _lse_dtype(lse) if _shape(lse) else "float32")
        elif _shape(array) and dtype_name(array) in FLOATING:
            results[name] = empty(q, _shape(array), dtype_name(array))
    _core.backward(
        exported(q), exported(k), exported(v), exported(out), exported(lse), exported(dout), exported(dlse),
        {name: exported(array) for name, array in results.items()}, _options(options))
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


def weights(
    q: Array,
    k: Array,
    lse: Array,
    rows: slice | range | int | None = None,
    columns: slice | range | int | None = None,
    *,
    out: Array | None = None,
    **options: Any,
) -> Any:
    """Any rectangle of the attention matrix P, recomputed from q, k and lse: nothing else of it is ever stored.

    Arguments
        q, k, lse   of the forward, with return_lse=True
        rows        which queries: a slice, a range, one index, or None for all; columns which keys
        out         [B, H, rows, columns] float32 (float64 for float64), written to if given
        options     those of the forward

    Returns [B, H, rows, columns]: the weights before dropout. A row sums to 1 over all keys, less its sink's share.

    Raises as attention() does.
    """
    q, k = as_array(q), as_array(k)
    result = out
    first_query = first_key = 0
    if len(_shape(q)) >= 2 and len(_shape(k)) >= 2:
        first_query, row_count = _range_of(rows, _shape(q)[-2], "rows")
        first_key, column_count = _range_of(columns, _shape(k)[-2], "columns")
        if out is None:
            result = empty(q, (*_shape(q)[:-2], row_count, column_count), _lse_dtype(q))
    _core.weights(exported(q), exported(k), exported(lse), exported(result, writable=True), first_query, first_key,
                  _options(options))
    return finished(result, q) if out is None else out


def merge(out: Array, lse: Array, out_b: Array, lse_b: Array) -> tuple[Array, Array]:
    """Attention over the union of two disjoint sets of keys, from the results over each.

    out, out_b [B, H, Lq, Dv]; lse, lse_b [B, H, Lq]. Associative; (0, -inf) is the identity. Returns (out, lse).
    """
    out, lse = as_array(out), as_array(lse)
    new_out, new_lse = copied(out), copied(lse)
    _core.merge(exported(new_out), exported(new_lse), exported(out_b), exported(lse_b))
    return finished(new_out, out), finished(new_lse, lse)


def explain(q: Array, k: Array, v: Array, *, backward: bool = False, **options: Any) -> Plan:
    """What attention(q, k, v, **options) will do, or attention_backward(): its path, scratch memory and arithmetic."""
    q, k, v = as_array(q), as_array(k), as_array(v)
    with_dbias = backward and options.get("bias") is not None
    return Plan(*_core.explain(exported(q), exported(k), exported(v), _options(options), backward, with_dbias))


def dropout_mask(
    seed: int, probability: float, shape: tuple[int, int, int, int], first_query: int = 0, first_key: int = 0
) -> Any:
    """Which weights dropout keeps: a boolean NumPy array [B, H, rows, columns] from a first query and key on."""
    keep = np.empty(shape, np.bool_)
    _core.dropout_mask(seed, probability, keep, first_query, first_key)
    return keep

