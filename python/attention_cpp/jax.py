"""jax.nn.dot_product_attention on the CPU: same signature, one fused path, O(n) memory, with gradients.

    >>> import attention_cpp.jax
    >>> out = attention_cpp.jax.dot_product_attention(query, key, value, is_causal=True)   # also under jax.jit

XLA calls back into Python, which hands the arrays to the library without a copy. Gradients of query, key, value and
bias; first derivatives alone. Under vmap one call follows the other.

One result differs from jax.nn's: a query that sees no key gives 0, where XLA's finite stand-in for -inf gives the mean
of all values.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from . import _operator
from ._core import Error

__all__ = ["dot_product_attention"]


def _heads_first(array: Any) -> np.ndarray:
    """[B, L, H, D] as a view [B, H, L, D]."""
    return np.asarray(array).swapaxes(1, 2)


def _options(static: dict[str, Any], arrays: dict[str, Any]) -> dict[str, Any]:
    return static | {name: np.asarray(array) for name, array in arrays.items()}


def _call(static: dict[str, Any], q: Any, k: Any, v: Any, arrays: dict[str, Any]) -> tuple[np.ndarray, np.ndarray]:
    q, k, v = (_heads_first(array) for array in (q, k, v))
    B, H, L, _ = q.shape
    out = np.empty((B, L, H, v.shape[-1]), q.dtype)
    _, lse = _operator.attention(q, k, v, out=out.swapaxes(1, 2), return_lse=True, **_options(static, arrays))
    return out, lse.swapaxes(1, 2)


def _call_back(static: dict[str, Any], q: Any, k: Any, v: Any, arrays: dict[str, Any], out: Any, lse: Any, dout: Any,
               dlse: Any) -> tuple[np.ndarray, ...]:
    views = [_heads_first(array) for array in (q, k, v, out)]
    wanted = ("dq", "dk", "dv") + (("dbias",) if "bias" in arrays else ())
    gradients = _operator.attention_backward(
        *views, np.asarray(lse).swapaxes(1, 2), _heads_first(dout), dlse=np.asarray(dlse).swapaxes(1, 2), wanted=wanted,
        **_options(static, arrays))
    results = [gradient.swapaxes(1, 2) for gradient in gradients[:3]]
    return (*results, gradients.dbias) if "bias" in arrays else tuple(results)


def _differentiable(static: dict[str, Any]) -> Any:
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


def dot_product_attention(
    query: Any,
    key: Any,
    value: Any,
    bias: Any = None,
    mask: Any = None,
    *,
    scale: float | None = None,
    is_causal: bool = False,
    query_seq_lengths: Any = None,
    key_value_seq_lengths: Any = None,
    local_window_size: int | tuple[int, int] | None = None,
    implementation: str | None = None,
    return_residual: bool = False,
) -> Any:
    """jax.nn.dot_product_attention, fused.

    query [B, T, N, H], key and value [B, S, K, H] with N a multiple of K; without B for one sequence; returns
    [B, T, N, H] and, with return_residual, the log-sum-exp [B, T, N].

    bias, mask         [B|1, N|1, T|1, S|1]: added to the scores; boolean, True = attend
    is_causal          top-left: query t sees keys 0 ... t
    query_seq_lengths, key_value_seq_lengths   [B]: rows of padding give 0, keys of padding are not seen
    local_window_size  w or (left, right): how many keys beside its own a query sees
    implementation     None or "attention_cpp"
    """
    if implementation not in (None, "attention_cpp"):
        raise Error(f"[dot_product_attention] implementation is {implementation!r}, must be None or 'attention_cpp'")
    query, key, value = (jnp.asarray(array) for array in (query, key, value))
    single = query.ndim == 3
    if {query.ndim, key.ndim, value.ndim} not in ({3}, {4}):
        raise Error(f"[dot_product_attention] query, key and value have shapes {query.shape}, {key.shape} and "
                    f"{value.shape}: all must have 4 axes, or all 3")
    if single:
        query, key, value = query[None], key[None], value[None]

    static: dict[str, Any] = {"scale": scale, "causal": bool(is_causal), "alignment": "top_left"}
    if local_window_size is not None:
        left, right = (local_window_size,) * 2 if isinstance(local_window_size, int) else local_window_size
        static["window"] = (left, right)
    arrays: dict[str, Any] = {}
    for name, array in (("bias", bias), ("mask", mask)):
        if array is not None:
            array = jnp.asarray(array)
            arrays[name] = array.reshape((1,) * (4 - array.ndim) + array.shape)
    if key_value_seq_lengths is not None:
        arrays["key_length"] = jnp.asarray(key_value_seq_lengths, jnp.int32)
    if query_seq_lengths is not None:
        rows = jnp.arange(query.shape[1])[None, :] < jnp.asarray(query_seq_lengths)[:, None]
        rows = rows[:, None, :, None]
        arrays["mask"] = rows & arrays["mask"] if "mask" in arrays else rows

    out, lse = _differentiable(static)(query, key, value, arrays)
    if single:
        out, lse = out[0], lse[0]
    return (out, lse) if return_residual else out
