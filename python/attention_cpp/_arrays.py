"""Arrays of several libraries: converts them for the extension, allocates results, and checks other arguments."""

from __future__ import annotations

import difflib
import functools
import operator
import sys
from typing import Any, Iterable

import numpy as np

from . import _core
from ._core import Error

FLOATING = ("float32", "float64", "bfloat16", "float16")


@functools.cache
def _library_of(kind: type) -> str:
    name = kind.__module__.partition(".")[0]
    return {"torch": "torch", "jax": "jax", "jaxlib": "jax"}.get(name, "numpy")


def library_of(array: Any) -> str:
    """Returns the library of results for `array`: 'torch', 'jax', or 'numpy' for arrays of all other libraries."""
    return _library_of(type(array))


def as_array(value: Any) -> Any:
    """Returns an array with shape and dtype over the memory of `value`, or `value` itself if it is not an array."""
    if type(value) is np.ndarray or library_of(value) == "torch" or hasattr(value, "shape") and hasattr(value, "dtype"):
        return value
    try:
        return np.from_dlpack(value) if hasattr(value, "__dlpack__") else np.asarray(memoryview(value))
    except (TypeError, ValueError, BufferError, RuntimeError):
        return value


def _raw_bfloat16(name: str, array: np.ndarray[Any, Any], writable: bool) -> tuple[Any, ...]:
    """Exports an array of ml_dtypes, which NumPy does not export, with the checks that NumPy makes for others."""
    if not array.dtype.isnative or not array.flags.aligned:
        raise TypeError(f"{name} is bfloat16 in another byte order or not aligned, must be native and aligned")
    if writable and not array.flags.writeable:
        raise Error(f"{name} is read-only, must be writable")
    return array.ctypes.data, "bfloat16", array.shape, tuple(stride // 2 for stride in array.strides)


_AS_IT_IS = (type(None), bool, int, float, str)


def exported(array: Any, name: str = "an array", writable: bool = False) -> Any:
    """Returns `array` in a form that the extension reads. `name` is for error messages."""
    if type(array) in _AS_IT_IS or type(array) is np.ndarray and array.dtype.kind != "V":  # bfloat16 is of kind V
        return array
    if library_of(array) == "torch":
        return _exported_tensor(name, array)
    if isinstance(array, np.ma.MaskedArray):
        raise TypeError(f"{name} is a masked array, which hides elements from NumPy alone: pass its data, and mask=")
    if isinstance(array, tuple) and len(array) == 4 and isinstance(array[1], str):
        raise TypeError(f"{name} must be an array, not a tuple")  # the extension would take it for a raw address
    if isinstance(array, np.ndarray) and array.dtype.name == "bfloat16":
        return _raw_bfloat16(name, array, writable)
    return array


@functools.cache
def _read_by_extension() -> None:
    """Lets the extension read torch's tensors itself if torch is new enough: in 20 ns instead of 10 us."""
    torch = sys.modules["torch"]
    _core.use_exchange([torch.Tensor, torch.nn.Parameter])


def _exported_tensor(name: str, tensor: Any) -> Any:
    _read_by_extension()
    if tensor.is_neg():
        raise Error(f"{name} is a negated view of another tensor: pass its resolve_neg()")
    if tensor.requires_grad:
        if sys.modules["torch"].is_grad_enabled():
            raise Error(f"{name} requires a gradient, which only attention_cpp.torch records: call its functions, or "
                        "this one under torch.no_grad()")
        return tensor.detach()
    return tensor


@functools.cache
def _dtype_name(dtype: Any) -> str:
    return str(dtype).removeprefix("torch.")


def dtype_name(array: Any) -> str:
    """Returns the name of an array's element type: 'float32', 'bfloat16', ..."""
    try:
        return _dtype_name(array.dtype)
    except TypeError:  # the dtype of a foreign object may have no hash
        return str(array.dtype)


@functools.cache
def _numpy_dtype(name: str) -> np.dtype[Any]:
    if name == "bfloat16":
        import ml_dtypes  # it is installed, because the caller has an array of it

        return np.dtype(ml_dtypes.bfloat16)
    return np.dtype(name)


def empty(like: Any, shape: tuple[int, ...], dtype: str) -> Any:
    """Allocates writable memory for a result in the library of `like`. finished() turns it into the result."""
    if library_of(like) == "torch":
        torch = sys.modules["torch"]
        return torch.empty(shape, dtype=getattr(torch, dtype))
    return np.empty(shape, _numpy_dtype(dtype))


def copied(array: Any) -> Any:
    """Returns writable memory with the values of `array`, as empty() allocates it, or `array` itself if it is not an
    array."""
    if library_of(array) == "torch":
        return array.clone()
    return np.array(array) if getattr(array, "shape", ()) else array


def finished(array: Any, like: Any) -> Any:
    """Returns the result for memory of empty() that has been filled. JAX arrays cannot be written to, so the function
    makes them here."""
    if library_of(like) == "jax" and isinstance(array, np.ndarray):
        return sys.modules["jax"].numpy.asarray(array)
    return array


# -------------------------------------------------------------------------------------------- other arguments

def wrong_types(operation: str, **values: tuple[Any, str]) -> None:
    """Raises TypeError, which names every value that is not of its kind: "whole number", "number", "string",
    "True or False", "list of ...". A tuple or an array with one axis counts as a list."""
    wrong = [f"{name} must be {'' if kind.startswith('True') else 'a '}{kind}, not {_described(value)}"
             for name, (value, kind) in values.items() if not _is(kind, value)]
    if wrong:
        raise TypeError(f"[{operation}] " + "; ".join(wrong))


def _described(value: Any) -> str:
    return repr(value) if isinstance(value, (int, float, str)) and len(repr(value)) < 60 else type(value).__name__


def _is(kind: str, value: Any) -> bool:
    if kind.startswith("list of "):
        one = kind.removeprefix("list of ").rstrip("s")
        return not isinstance(value, (str, bytes)) and hasattr(value, "__iter__") and hasattr(value, "__len__") and all(
            _is(one, item) for item in value)
    if kind == "string":
        return isinstance(value, str)
    if kind == "True or False":
        return isinstance(value, (bool, np.bool_))
    if kind == "number":
        return hasattr(value, "__float__") and not getattr(value, "shape", ())
    try:
        operator.index(value)
    except TypeError:
        return False
    return True


# The names of options in other libraries.
_PEERS = {
    "is_causal": "causal", "attn_mask": "mask (boolean, True = attend) or bias (added)",
    "attention_mask": "mask (boolean, True = attend) or bias (added)",
    "key_padding_mask": "key_length, or mask (True = attend)", "attn_bias": "bias",
    "position_bias": "bias", "dropout_p": "dropout", "p_dropout": "dropout",
    "softmax_scale": "scale", "sm_scale": "scale", "scaling": "scale", "window_size": "window",
    "local_window_size": "window", "sliding_window": "window", "soft_cap": "softcap", "logits_soft_cap": "softcap",
    "logit_softcapping": "softcap", "cu_seq_q": "cu_seqlens_q",
    "cu_seq_k": "cu_seqlens_k", "seqused_k": "key_length", "cache_seqlens": "key_length",
    "key_value_seq_lengths": "key_length", "query_seq_lengths": "query_length", "q_offset": "offset",
    "s_aux": "sink", "sinks": "sink", "block_mask": "blocks", "segment_ids": "query_segment_ids and key_segment_ids",
    "position_ids": "offset", "return_softmax_lse": "return_lse", "return_attn_probs": "return_lse",
    "return_residual": "return_lse", "need_weights": "attention_weights(), a function",
    "output_attentions": "attention_weights(), a function",
    "enable_gqa": "nothing: k and v may always have fewer heads",
}


def refuse_unknown(operation: str, given: Iterable[str], known: Iterable[str]) -> None:
    """Raises TypeError for options that do not exist, with the names that they have here."""
    known = list(known)
    texts = []
    for name in sorted(set(given) - set(known)):
        near = difflib.get_close_matches(name, known, 1)
        hint = _PEERS.get(name) or (near[0] if near else "")
        texts.append(repr(name) + (f" (here it is {hint})" if hint else ""))
    if texts:
        raise TypeError(f"[{operation}] there is no option " + ", ".join(texts))
