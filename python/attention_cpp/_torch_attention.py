"""The operator itself for torch tensors: attention_cpp.torch.attention, every option and its gradient."""

from __future__ import annotations

from typing import Any, Unpack

import torch
from torch import Tensor

from . import _torch_ops
from ._core import Error
from ._torch_options import Options

_AXES = {"bias": 4, "mask": 4, "query_document": 2, "key_document": 2}
_LISTS = {"sink": torch.float32, "alibi_slopes": torch.float32, "key_length": torch.int64, "query_length": torch.int64,
          "offset": torch.int64, "cu_query": torch.int64, "cu_key": torch.int64}
_WITH_GRADIENT = ("q", "k", "v", "lse", "bias", "sink")


def with_axes(tensor: Tensor, count: int) -> Tensor:
    """With the leading axes that may be missing."""
    return tensor.reshape((1,) * (count - tensor.dim()) + tuple(tensor.shape)) if tensor.dim() < count else tensor


def as_tensors(options: Options) -> dict[str, Any]:
    """Options as the operator takes them: lists and numbers as tensors, with all their axes."""
    given: dict[str, Any] = {name: value for name, value in options.items() if value is not None}
    for name, dtype in _LISTS.items():
        if name in given and not isinstance(given[name], Tensor):
            given[name] = torch.as_tensor(given[name], dtype=None if hasattr(given[name], "dtype") else dtype)
    for name, count in _AXES.items():
        if name in given:
            given[name] = with_axes(torch.as_tensor(given[name]), count)
    if "blocks" in given:
        allowed, *sizes = given["blocks"]
        given["blocks"] = (with_axes(torch.as_tensor(allowed), 4), *sizes)
    if isinstance(given.get("seed"), int):
        given["seed"] = torch.tensor(given["seed"], dtype=torch.uint64)
    return given


def check_tensors(function: str, **tensors: Any) -> None:
    """Raises for whatever is no dense tensor on the CPU, and for a gradient that is wanted but not there is."""
    others = {name: type(tensor).__name__ for name, tensor in tensors.items() if not isinstance(tensor, Tensor)}
    if others:
        raise TypeError(f"[{function}] " + "; ".join(f"{name} must be a torch.Tensor, not {kind}"
                                                     for name, kind in others.items()))
    problems = []
    for name, tensor in tensors.items():
        if tensor.device.type != "cpu":
            problems.append(f"{name} is on {tensor.device}, must be on the CPU")
        if tensor.layout is not torch.strided or tensor.is_nested:
            problems.append(f"{name} must be a dense tensor")
        if tensor.requires_grad and name not in _WITH_GRADIENT and torch.is_grad_enabled():
            problems.append(f"{name} requires a gradient, which it does not have" + (
                ": give the product of slopes and distances as a bias" if name == "alibi_slopes" else ""))
    if problems:
        raise Error(f"[{function}] " + "; ".join(problems))


def tensors_of(options: dict[str, Any]) -> dict[str, Tensor]:
    """Those options that are tensors, by their names."""
    found = {name: value for name, value in options.items() if isinstance(value, Tensor) and name != "seed"}
    return found | ({"blocks": options["blocks"][0]} if "blocks" in options else {})


def attention(q: Tensor, k: Tensor, v: Tensor, *, return_lse: bool = False, **options: Unpack[Options]
              ) -> Tensor | tuple[Tensor, Tensor]:
    """attention_cpp.attention() with gradients: out_i = sum_j softmax_j(scale <q_i, k_j>) v_j, in O(n) memory.

        >>> out, lse = attention(q, k, v, causal=True, window=(256, -1), sink=sink, return_lse=True)

    Arguments
        q           [B, H, Lq, D]; k [B, Hk, Lk, D]; v [B, Hk, Lk, Dv]: float32, float64, bfloat16 or float16, one type
                    for all, any strides. H is a multiple of Hk. Leading axes may be missing in all three
        return_lse  also return lse [B, H, Lq], the natural log of the sum of exp(scores): float32, or float64 for
                    float64
        options     every option of attention_cpp.attention(), by the same names: help() of that tells them. Where it
                    takes lists they may be tensors. dropout without a seed draws one from torch's generator

    Gradients of q, k, v, bias and sink, through out and lse; higher derivatives, forward mode and torch.func with n x n
    memory; torch.compile sees one node. Under torch.autocast q, k and v are cast.

    Returns out [B, H, Lq, Dv], or (out, lse). A row that sees no key and has no sink gives exactly 0, with lse -inf.

    Raises Error (a ValueError) or TypeError, which name what is wrong: also where a tensor without a gradient, as
    alibi_slopes, requires one.
    """
    given = as_tensors(options)
    check_tensors("attention", q=q, k=k, v=v, **tensors_of(given))
    axes = q.dim()
    if not 2 <= axes <= 4 or k.dim() != axes or v.dim() != axes:
        raise Error(f"[attention] q, k and v have {q.dim()}, {k.dim()} and {v.dim()} axes, must have 4, or all of them "
                    "2 or 3")
    q, k, v = _torch_ops.autocast(*(with_axes(tensor, 4) for tensor in (q, k, v)))
    out, lse = _torch_ops.attention(q, k, v, **given)
    out, lse = out.reshape(out.shape[4 - axes:]), lse.reshape(lse.shape[4 - axes:])
    return (out, lse) if return_lse else out
