"""jax.nn.dot_product_attention over the operator: checks its arguments and lets XLA call back, with gradients."""

from __future__ import annotations

from typing import Any, Literal, overload

import jax
import jax.numpy as jnp
import numpy as np

from .. import _operator
from .._arrays import FLOATING, wrong_types
from .._core import Error
from .._options import Options


def _heads_first(array: Any) -> np.ndarray:
    """Returns [B, L, H, D] as a view [B, H, L, D]."""
    return np.asarray(array).swapaxes(1, 2)


def _options(static: Options, arrays: dict[str, Any]) -> dict[str, Any]:
    return vars(static.having(**{name: np.asarray(array) for name, array in arrays.items()}))


def _call(static: Options, q: Any, k: Any, v: Any, arrays: dict[str, Any]) -> tuple[np.ndarray, np.ndarray]:
    q, k, v = (_heads_first(array) for array in (q, k, v))
    B, H, L, _ = q.shape
    out = np.empty((B, L, H, v.shape[-1]), q.dtype)
    _, lse = _operator.attention(q, k, v, out=out.swapaxes(1, 2), return_lse=True, **_options(static, arrays))
    return out, lse.swapaxes(1, 2)


def _call_back(static: Options, q: Any, k: Any, v: Any, arrays: dict[str, Any], out: Any, lse: Any, dout: Any,
               dlse: Any) -> tuple[np.ndarray, ...]:
    views = [_heads_first(array) for array in (q, k, v, out)]
    wanted = ("dq", "dk", "dv") + (("dbias",) if "bias" in arrays else ())
    gradients = _operator.attention_backward(
        *views, np.asarray(lse).swapaxes(1, 2), _heads_first(dout), dlse=np.asarray(dlse).swapaxes(1, 2), wanted=wanted,
        **_options(static, arrays))
    results = [gradient.swapaxes(1, 2) for gradient in gradients[:3]]
    return (*results, gradients.dbias) if "bias" in arrays else tuple(results)


def _differentiable(static: Options) -> Any:
    @jax.custom_vjp
    def run(q, k, v, arrays):
        lse_type = jnp.float64 if q.dtype == jnp.float64 else jnp.float32
        shapes = (jax.ShapeDtypeStruct((*q.shape[:3], v.shape[-1]), q.dtype),
                  jax.ShapeDtypeStruct(q.shape[:3], lse_type))
        return jax.pure_callback(lambda *x: _call(static, *x), shapes, q, k, v, arrays, vmap_method="sequential")

    def forward(q, k, v, arrays):
        out, lse = run(q, k, v, arrays)
        return (out, lse), (q, k, v, arrays, out, lse)

    def backward(saved, upstream):
        q, k, v, arrays, out, lse = saved
        like = [q, k, v] + ([arrays["bias"]] if "bias" in arrays else [])
        shapes = tuple(jax.ShapeDtypeStruct(array.shape, array.dtype) for array in like)
        results = jax.pure_callback(lambda *x: _call_back(static, *x), shapes, q, k, v, arrays, out, lse, *upstream,
                                    vmap_method="sequential")
        of_arrays = {name: results[3] if name == "bias" else None for name in arrays}
        return (*results[:3], of_arrays)

    run.defvjp(forward, backward)
    return run


# ------------------------------------------------------------------------------------------------------- the arguments

def _window(size: Any) -> tuple[int, int]:
    left, right = size if isinstance(size, (tuple, list)) and len(size) == 2 else (size, size)
    if not all(isinstance(side, (int, np.integer)) and side >= 0 for side in (left, right)):
        raise Error(f"[dot_product_attention] local_window_size is {size!r}, must be a whole number from 0 on, or two: "
                    "(left, right)")
    return int(left), int(right)


def _as_array(name: str, value: Any) -> jax.Array:
    try:
        return jnp.asarray(value)
    except (TypeError, ValueError):
        raise TypeError(f"[dot_product_attention] {name} must be an array, not {type(value).__name__}") from None


def _check(arrays: dict[str, jax.Array], lengths: dict[str, jax.Array]) -> None:
    """Raises Error for wrong shapes and types, before XLA raises one whose message has 40 lines."""
    query, key, value = (arrays[name] for name in ("query", "key", "value"))
    (B, T, N, H), (S, K) = query.shape, key.shape[1:3]
    problems = [f"{name} is {array.dtype}, must be float32, float64, bfloat16 or float16, one type for all"
                for name, array in arrays.items()
                if name in ("query", "key", "value") and (str(array.dtype) not in FLOATING
                                                          or array.dtype != query.dtype)]
    expected = {"key": (B, S, K, H), "value": (B, S, K, value.shape[3])}
    problems += [f"{name} is {arrays[name].shape}, must be {shape} beside query {query.shape}"
                 for name, shape in expected.items() if arrays[name].shape != shape]
    if K == 0 or N % K:
        problems.append(f"key has {K} heads, which must divide the {N} of query")
    if max(H, value.shape[3]) > 1024:
        problems.append(f"heads are {H} and {value.shape[3]} wide, must be at most 1024")
    for name in ("bias", "mask"):
        array, full = arrays.get(name), (B, N, T, S)
        if array is None:
            continue
        if array.ndim != 4 or any(size not in (1, most) for size, most in zip(array.shape, full)):
            problems.append(f"{name} is {array.shape}, must be {full} or 1 on an axis")
        if str(array.dtype) not in (FLOATING if name == "bias" else ("bool",)):
            problems.append(f"{name} is {array.dtype}, must be {'floating' if name == 'bias' else 'bool'}")
    problems += [f"{name} is {array.dtype} {array.shape}, must be whole numbers {(B,)}"
                 for name, array in lengths.items()
                 if array.shape != (B,) or not jnp.issubdtype(array.dtype, jnp.integer)]
    if problems:
        raise Error("[dot_product_attention] " + "; ".join(problems))


@overload
def dot_product_attention(
    query: Any, key: Any, value: Any, bias: Any = None, mask: Any = None, *, scale: float | None = None,
    is_causal: bool = False, query_seq_lengths: Any = None, key_value_seq_lengths: Any = None,
    local_window_size: int | tuple[int, int] | None = None, implementation: str | None = None,
    return_residual: Literal[False] = False,
) -> jax.Array: ...


@overload
def dot_product_attention(
    query: Any, key: Any, value: Any, bias: Any = None, mask: Any = None, *, scale: float | None = None,
    is_causal: bool = False, query_seq_lengths: Any = None, key_value_seq_lengths: Any = None,
    local_window_size: int | tuple[int, int] | None = None, implementation: str | None = None,
    return_residual: Literal[True],
) -> tuple[jax.Array, jax.Array]: ...


@overload
def dot_product_attention(
    query: Any, key: Any, value: Any, bias: Any = None, mask: Any = None, *, scale: float | None = None,
    is_causal: bool = False, query_seq_lengths: Any = None, key_value_seq_lengths: Any = None,
    local_window_size: int | tuple[int, int] | None = None, implementation: str | None = None,
    return_residual: bool,
) -> jax.Array | tuple[jax.Array, jax.Array]: ...


def dot_product_attention(
    query: Any, key: Any, value: Any, bias: Any = None, mask: Any = None, *, scale: float | None = None,
    is_causal: bool = False, query_seq_lengths: Any = None, key_value_seq_lengths: Any = None,
    local_window_size: int | tuple[int, int] | None = None, implementation: str | None = None,
    return_residual: bool = False,
) -> Any:
    """Computes jax.nn.dot_product_attention(), fused, in O(n) memory.

        >>> out = dot_product_attention(query, key, value, is_causal=True)

    Arguments
        query       [B, T, N, H]; key [B, S, K, H]; value [B, S, K, Hv], with N a multiple of K: float32, float64,
                    bfloat16 or float16. All three may lack the axis B
        bias, mask  [B|1, N|1, T|1, S|1]: bias is added to the scores; mask is boolean, True = attend
        scale       factor on the scores, default 1 / sqrt(H)
        is_causal   top-left: query t attends to keys 0 ... t
        query_seq_lengths, key_value_seq_lengths   whole numbers [B]: rows of padding give 0, keys of padding are masked
        local_window_size   w or (left, right): how many keys on each side of its own a query attends to
        implementation      None or "attention_cpp"
        return_residual     also return the log-sum-exp

    Returns out [B, T, N, Hv], or (out, log-sum-exp [B, T, N] in query's type). query, key, value and bias have
    gradients.

    Raises Error (a ValueError) or TypeError, which name everything that is wrong, also while jax.jit traces.
    """
    if implementation not in (None, "attention_cpp"):
        raise Error(f"[dot_product_attention] implementation is {implementation!r}, must be None or 'attention_cpp'")
    wrong_types("dot_product_attention", scale=(1.0 if scale is None else scale, "number"))
    query, key, value = (_as_array(name, array) for name, array in (("query", query), ("key", key), ("value", value)))
    single = query.ndim == 3
    if {query.ndim, key.ndim, value.ndim} not in ({3}, {4}):
        raise Error(f"[dot_product_attention] query, key and value have shapes {query.shape}, {key.shape} and "
                    f"{value.shape}: all must have 4 axes, or all 3")
    if single:
        query, key, value = query[None], key[None], value[None]

    static = Options(scale=scale, causal=bool(is_causal), alignment="top_left")
    if local_window_size is not None:
        static = static.having(window=_window(local_window_size))
    arrays: dict[str, Any] = {}
    for name, array in (("bias", bias), ("mask", mask)):
        if array is not None:
            array = _as_array(name, array)
            arrays[name] = array.reshape((1,) * (4 - array.ndim) + array.shape)
    lengths = {name: _as_array(name, array) for name, array in (
        ("query_seq_lengths", query_seq_lengths), ("key_value_seq_lengths", key_value_seq_lengths))
        if array is not None}
    _check({"query": query, "key": key, "value": value, **arrays}, lengths)
    if key_value_seq_lengths is not None:
        arrays["key_length"] = lengths["key_value_seq_lengths"].astype(jnp.int32)
    if query_seq_lengths is not None:
        rows = jnp.arange(query.shape[1])[None, :] < lengths["query_seq_lengths"][:, None]
        rows = rows[:, None, :, None]
        arrays["mask"] = rows & arrays["mask"] if "mask" in arrays else rows

    out, lse = _differentiable(static)(query, key, value, arrays)
    if single:
        out, lse = out[0], lse[0]
    return (out, lse.astype(out.dtype)) if return_residual else out
