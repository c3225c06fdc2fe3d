"""attention_cpp.torch.attention: the operator on torch tensors, with every option and with gradients."""

from __future__ import annotations

from typing import Any, Literal, Mapping, Unpack, overload

import torch
from torch import Tensor

from . import autograd
from .._arrays import refuse_unknown, wrong_types
from .._core import Error
from .._options import FIELDS, SHAPES
from .masks import add_mask, count_unread, is_worth_reading
from .operators import FLOATING
from .options import NONE_GIVEN, OptionArguments, Options, tensors_of

_AXES = {name: len(SHAPES[name]) for name, field in FIELDS.items() if str(field.type) == "Array | None"}
_LISTS = {name: torch.int64 if "Integers" in str(field.type) else torch.float32 for name, field in FIELDS.items()
          if str(field.type).startswith(("Integers", "Numbers"))}
_KINDS = {"float": "number", "float | None": "number", "bool": "True or False", "str | None": "string",
          "tuple[int, int]": "list of whole numbers", "Shard": "list of whole numbers"}
_SCALARS = {name: _KINDS[str(field.type)] for name, field in FIELDS.items() if str(field.type) in _KINDS}
_WITH_GRADIENT = ("q", "k", "v", "lse", "bias", "sink", "query", "key", "log_decay", "beta", "initial_state")
_MUST_BE_FLOATING = ("q", "k", "v", "lse", "query", "key")
_SIMPLE = frozenset(_SCALARS.keys() - {"dropout"} | {"mask", "bias"})  # options that the extension takes as they are
_OF_POSITIONS = ("causal", "window", "alignment", "key_length", "query_length", "offset", "alibi_slopes",
                 "query_segment_ids", "key_segment_ids", "cu_seqlens_q", "cu_seqlens_k",
                 "blocks", "shard")  # options whose meaning changes with the options that a mask is equal to


def with_axes(tensor: Tensor, count: int) -> Tensor:
    """Adds missing leading axes of extent 1, up to `count` axes."""
    return tensor.reshape((1,) * (count - tensor.dim()) + tuple(tensor.shape)) if tensor.dim() < count else tensor


def _tensor(function: str, name: str, value: Any, dtype: torch.dtype | None = None) -> Tensor:
    try:
        return torch.as_tensor(value, dtype=None if hasattr(value, "dtype") else dtype)
    except (TypeError, ValueError, RuntimeError, OverflowError):
        kind = "a torch.Tensor" if dtype is None else "numbers: a torch.Tensor or a list"
        raise TypeError(f"[{function}] {name} must be {kind}, not {type(value).__name__}") from None


def _check_kinds(function: str, given: dict[str, Any]) -> None:
    """Raises TypeError for options of wrong types. Torch's own error would name the position of an argument only."""
    wrong_types(function, **{name: (given[name], kind) for name, kind in _SCALARS.items() if name in given})
    wrong_types(function, **{name: (given[name], "list of whole numbers" if dtype == torch.int64 else "list of numbers")
                             for name, dtype in _LISTS.items() if isinstance(given.get(name), (list, tuple))})
    if "window" in given and len(given["window"]) != 2:
        raise TypeError(f"[{function}] window must be (left, right), -1 = no limit, not {given['window']!r}")
    if "shard" in given and len(given["shard"]) != 6:
        raise TypeError(f"[{function}] shard must be six whole numbers: (first_batch, first_head, first_query, "
                        f"first_key, queries, keys), not {given['shard']!r}")


def as_tensors(function: str, options: Mapping[str, Any]) -> Options:
    """Converts keyword arguments to options: lists and numbers become tensors with all their axes.

    Raises TypeError for unknown names and wrong types, and Error for a seed outside [0, 2^64).
    """
    if not options.keys() <= FIELDS.keys():
        refuse_unknown(function, options, FIELDS)
    given: dict[str, Any] = {name: value for name, value in options.items() if value is not None}
    if not torch.compiler.is_compiling():
        _check_kinds(function, given)
    for name, dtype in _LISTS.items():
        if name in given and not isinstance(given[name], Tensor):
            given[name] = _tensor(function, name, given[name], dtype)
    for name, count in _AXES.items():
        if name in given:
            given[name] = with_axes(_tensor(function, name, given[name]), count)
    if "blocks" in given:
        blocks = given["blocks"]
        if not (isinstance(blocks, tuple) and len(blocks) in (3, 4)):
            raise TypeError(f"[{function}] blocks must be (allowed, query_block, key_block) or (offsets, indices, "
                            f"query_block, key_block), not {type(blocks).__name__}")
        *arrays, query_block, key_block = blocks
        arrays = [_tensor(function, "blocks", array) for array in arrays]
        arrays[0] = with_axes(arrays[0], 4 if len(arrays) == 1 else 3)
        given["blocks"] = (*arrays, query_block, key_block)
    if isinstance(given.get("seed"), int):
        if not 0 <= given["seed"] < 2**64:
            raise Error(f"[{function}] seed is {given['seed']}, must be in [0, 2^64)")
        given["seed"] = torch.tensor(given["seed"], dtype=torch.uint64)
    elif "seed" in given and not isinstance(given["seed"], Tensor):
        wrong_types(function, seed=(given["seed"], "whole number"))
    return Options(**given)


def check_tensors(function: str, options: Options = NONE_GIVEN, **tensors: Any) -> None:
    """Checks the arguments and options of a function.

    Raises TypeError for an argument that is not a tensor. Raises Error for arguments and options that are not dense and
    on the CPU, or that require a gradient which the operator does not compute.
    """
    others = {name: type(tensor).__name__ for name, tensor in tensors.items() if not isinstance(tensor, Tensor)}
    if others:
        raise TypeError(f"[{function}] " + "; ".join(f"{name} must be a torch.Tensor, not {kind}"
                                                     for name, kind in others.items()))
    problems = []
    for name, tensor in {**tensors, **tensors_of(options.without("seed"))}.items():
        if tensor.device.type != "cpu":
            problems.append(f"{name} is on {tensor.device}, must be on the CPU")
        if tensor.layout is not torch.strided or tensor.is_nested:
            problems.append(f"{name} must be a dense tensor")
        if name in _MUST_BE_FLOATING and tensor.dtype not in FLOATING:
            problems.append(f"{name} is {tensor.dtype}, must be float32, float64, bfloat16 or float16")
        if tensor.requires_grad and name not in _WITH_GRADIENT and torch.is_grad_enabled():
            problems.append(f"{name} requires a gradient, which {function}() does not compute" + (
                ": pass the product of slopes and distances as bias" if name == "alibi_slopes" else ""))
    if problems:
        raise Error(f"[{function}] " + "; ".join(problems))


def _with_mask_read(options: Options, q: Tensor, k: Tensor) -> Options:
    """Replaces the mask by options that are equal to it, if no other option limits the keys."""
    name = "mask" if options.mask is not None else "bias"
    mask = getattr(options, name)
    given = vars(options)
    if mask is None or (mask.dtype == torch.bool) != (name == "mask") or any(
            option in given and given[option] is not False for option in _OF_POSITIONS):
        return options
    return add_mask(options.without(name), mask, q, k)


def _quick(q: Tensor, k: Tensor, v: Tensor, return_lse: bool, options: Mapping[str, Any]
           ) -> Tensor | tuple[Tensor, Tensor] | None:
    """Computes the most frequent kind of call at a third of the cost. Returns None for other calls."""
    if not options:
        if torch.compiler.is_compiling() or not autograd.is_simple(q, k, v, None, True):
            return None
        return autograd.simple_attention(q, k, v, NONE_GIVEN, return_lse)
    if torch.compiler.is_compiling() or not options.keys() <= _SIMPLE:
        return None
    mask, bias = options.get("mask"), options.get("bias")
    either = bias if mask is None else mask
    if either is not None and not (
            isinstance(either, Tensor) and either.dim() == 4 and (mask is None or bias is None)
            and (either.dtype == torch.bool) == (bias is None) and not is_worth_reading(q, k)) or (
            not autograd.is_simple(q, k, v, either, True)):
        return None
    if either is not None:
        count_unread(either)
    return autograd.simple_attention(q, k, v, Options(**options), return_lse)


@overload
def attention(q: Tensor, k: Tensor, v: Tensor, *, return_lse: Literal[False] = False, **options: Unpack[OptionArguments]
              ) -> Tensor: ...


@overload
def attention(q: Tensor, k: Tensor, v: Tensor, *, return_lse: Literal[True], **options: Unpack[OptionArguments]
              ) -> tuple[Tensor, Tensor]: ...


@overload
def attention(q: Tensor, k: Tensor, v: Tensor, *, return_lse: bool, **options: Unpack[OptionArguments]
              ) -> Tensor | tuple[Tensor, Tensor]: ...


def attention(q: Tensor, k: Tensor, v: Tensor, *, return_lse: bool = False, **options: Unpack[OptionArguments]
              ) -> Tensor | tuple[Tensor, Tensor]:
    """Computes attention_cpp.attention() with gradients: out_i = sum_j softmax_j(scale <q_i, k_j>) v_j, in O(n) memory.

        >>> out, lse = attention(q, k, v, causal=True, window=(256, -1), sink=sink, return_lse=True)

    Arguments
        q           [B, H, Lq, D]; k [B, Hk, Lk, D]; v [B, Hk, Lk, Dv]: float32, float64, bfloat16 or float16, one type
                    for all, any strides. H is a multiple of Hk. All three may lack leading axes
        return_lse  also return lse [B, H, Lq], the natural log of the sum of exp(scores): float32, or float64 for
                    float64
        options     every option of attention_cpp.attention(), by the same names; its help() lists them. Tensors are
                    allowed where it takes lists. dropout without a seed draws one from torch's generator

    q, k, v, bias and sink have gradients, through out and lse. Higher derivatives, forward mode and torch.func need
    n x n memory. torch.compile has one node for the call. torch.autocast casts q, k and v.

    Returns out [B, H, Lq, Dv], or (out, lse). A row without an allowed key and without a sink gives exactly 0, with lse
    -inf.

    If no other option limits the keys, the function reads an n x n mask (boolean, or of 0 and -infinity) once. A mask
    that is equal to causal, a window, padding or segments then runs as that option.

    Raises Error (a ValueError) or TypeError, which name what is wrong. It raises too if an option that has no gradient,
    such as alibi_slopes, requires one.
    """
    if (results := _quick(q, k, v, return_lse, options)) is not None:
        return results
    given = as_tensors("attention", options)
    check_tensors("attention", given, q=q, k=k, v=v)
    axes = q.dim()
    if not 2 <= axes <= 4 or k.dim() != axes or v.dim() != axes:
        raise Error(f"[attention] q, k and v have {q.dim()}, {k.dim()} and {v.dim()} axes, must have 4, or all of them "
                    "2 or 3")
    q, k, v = autograd.autocast(*(with_axes(tensor, 4) for tensor in (q, k, v)))
    out, lse = autograd.attention(q, k, v, _with_mask_read(given, q, k))
    out, lse = out.reshape(out.shape[4 - axes:]), lse.reshape(lse.shape[4 - axes:])
    return (out, lse) if return_lse else out
