"""Arrays of several libraries: what the extension takes for one, and new ones of the same kind."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from ._core import Error

FLOATING = ("float32", "float64", "bfloat16", "float16")


def library_of(array: Any) -> str:
    """'torch', 'jax' or 'numpy'; what belongs to neither of the first two is answered with NumPy arrays."""
    name = type(array).__module__.partition(".")[0]
    return {"torch": "torch", "jax": "jax", "jaxlib": "jax"}.get(name, "numpy")


def as_array(value: Any) -> Any:
    """An object with shape and dtype over the same memory; `value` itself where there is none."""
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        return value
    try:
        return np.from_dlpack(value) if hasattr(value, "__dlpack__") else np.asarray(memoryview(value))
    except (TypeError, ValueError, BufferError, RuntimeError):
        return value


def _raw_bfloat16(array: np.ndarray, writable: bool) -> tuple:
    """An array of ml_dtypes, which NumPy does not export, under the conditions on which it exports others."""
    if not array.dtype.isnative or not array.flags.aligned:
        raise TypeError("the elements of a bfloat16 array must be native numbers that lie at multiples of their size")
    if writable and not array.flags.writeable:
        raise Error("an array to write to is read-only")
    return array.ctypes.data, "bfloat16", array.shape, tuple(stride // 2 for stride in array.strides)


def exported(array: Any, writable: bool = False) -> Any:
    """`array` as the extension takes it."""
    if isinstance(array, np.ma.MaskedArray):
        raise TypeError("a masked array hides elements from NumPy alone: pass its data, and mask=")
    if isinstance(array, tuple) and len(array) == 4 and isinstance(array[1], str):
        raise TypeError("an array must not be a tuple")  # which would be taken for a raw address
    if isinstance(array, np.ndarray) and array.dtype.name == "bfloat16":
        return _raw_bfloat16(array, writable)
    return _exported_tensor(array) if library_of(array) == "torch" else array


def _exported_tensor(tensor: Any) -> Any:
    if tensor.is_neg() or tensor.is_conj():
        raise Error("an array is a negated view of another: pass its resolve_neg()")
    if tensor.requires_grad:
        if sys.modules["torch"].is_grad_enabled():
            raise Error("an array requires a gradient, which is recorded by attention_cpp.torch alone: call that, or "
                        "this under torch.no_grad()")
        return tensor.detach()
    return tensor


def dtype_name(array: Any) -> str:
    """'float32', 'bfloat16', ..."""
    return str(array.dtype).removeprefix("torch.")


def _numpy_dtype(name: str) -> np.dtype:
    if name == "bfloat16":
        import ml_dtypes  # there, because the caller has an array of it

        return np.dtype(ml_dtypes.bfloat16)
    return np.dtype(name)


def empty(like: Any, shape: tuple[int, ...], dtype: str) -> Any:
    """Writable memory for a result of the kind of `like`; finished() turns it into what the caller gets."""
    if library_of(like) == "torch":
        return like.new_empty(shape, dtype=getattr(sys.modules["torch"], dtype), device="cpu")
    return np.empty(shape, _numpy_dtype(dtype))


def copied(array: Any) -> Any:
    """Writable memory with the values of `array`, as empty() makes it; `array` itself if it is none."""
    if library_of(array) == "torch":
        return array.clone()
    return np.array(array) if getattr(array, "shape", ()) else array


def finished(array: Any, like: Any) -> Any:
    """The filled result of empty(): JAX arrays cannot be written to, so they are made afterwards."""
    if library_of(like) == "jax" and isinstance(array, np.ndarray):
        return sys.modules["jax"].numpy.asarray(array)
    return array
