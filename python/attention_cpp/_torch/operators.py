"""Calls the extension on torch's tensors, and defines the torch operators attention and attention_backward over it.

torch.compile, modes and other transforms of graphs have one node for an operator. register_fake() gives them the shapes
and strides of its results, and a formula gives torch's flop counter its multiply-adds. Derivatives are in `autograd`.
"""

from __future__ import annotations

from typing import Any, Sequence

import torch
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

from .. import _core
from .options import NAMES, SCHEMA, Options, from_flat

DTYPES = {torch.float32: "float32", torch.float64: "float64", torch.bfloat16: "bfloat16", torch.float16: "float16",
          torch.bool: "boolean", torch.int32: "int32", torch.int64: "int64"}
FLOATING = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
DENSE = (Tensor, torch.nn.Parameter)
GRADIENTS = ("dq", "dk", "dv", "dbias", "dsink")

library = torch.library.Library("attention_cpp", "DEF")
library.define(f"attention(Tensor q, Tensor k, Tensor v, {SCHEMA}) -> (Tensor, Tensor)")
library.define(f"attention_backward(Tensor dout, Tensor? dlse, Tensor q, Tensor k, Tensor v, Tensor out, Tensor lse, "
               f"{SCHEMA}, bool[] wanted) -> (Tensor, Tensor, Tensor, Tensor, Tensor)")


# ------------------------------------------------------------------------------------------------------------ the calls

# From torch 2.10 on, the extension reads tensors of these types itself, in 20 ns. Others are passed to it as a tuple of
# their parts, in 1 us. (DLPack in Python takes 10 us.)
_READABLE = DENSE if _core.use_exchange(list(DENSE)) else ()


def readable(tensor: Tensor | None) -> Any:
    """Returns a tensor in a form that the extension reads."""
    if tensor is None or type(tensor) in _READABLE:
        return tensor
    dtype = tensor.dtype
    return tensor.data_ptr(), DTYPES.get(dtype) or str(dtype), tensor.shape, tensor.stride()


def _readable_option(name: str, value: Any) -> Any:
    if not isinstance(value, Tensor):
        return value
    return value.item() if name == "seed" else readable(value)


def readable_options(options: Options) -> Options:
    """Returns options in a form that the extension reads."""
    for name, value in vars(options).items():
        if name in ("blocks", "seed") or isinstance(value, Tensor) and type(value) not in _READABLE:
            return options.mapped(_readable_option)
    return options


def new_out(q: Tensor, v: Tensor) -> Tensor:
    """Allocates out [B, H, Lq, Dv], in memory in the order of q's axes if Dv = D, as torch does."""
    shape, Dv = q.shape, v.shape[-1]
    return torch.empty_like(q) if shape[-1] == Dv else q.new_empty((*shape[:-1], Dv))


def new_lse(q: Tensor) -> Tensor:
    """Allocates lse [B, H, Lq], float32 or float64."""
    return q.new_empty(q.shape[:-1], dtype=q.dtype if q.dtype in (torch.float32, torch.float64) else torch.float32)


def forward(q: Tensor, k: Tensor, v: Tensor, options: Options) -> tuple[Tensor, Tensor]:
    """Computes (out [B, H, Lq, Dv], lse [B, H, Lq]) without gradients."""
    out, lse = new_out(q, v), new_lse(q)
    _core.forward(readable(q), readable(k), readable(v), readable(out), readable(lse), readable_options(options))
    return out, lse


def backward(dout: Tensor, dlse: Tensor | None, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor,
             options: Options, wanted: Sequence[bool], adds_up: bool = False) -> list[Tensor | None]:
    """Computes (dq, dk, dv, dbias, dsink). A gradient that is not wanted is None.

    adds_up: k and v are one head that was expanded to all, and only the sum of their gradients over the heads matters.
    So the function computes the sum and gives every head the mean.
    """
    sources = (q, k[:, :1], v[:, :1], options.bias, options.sink) if adds_up else (q, k, v, options.bias, options.sink)
    results = [torch.empty_like(source) if is_wanted else None for source, is_wanted in zip(sources, wanted)]
    given = {name: readable(result) for name, result in zip(GRADIENTS, results) if result is not None}
    of_sink = None
    if "dsink" in given and options.sink.dtype != lse.dtype:
        of_sink = torch.empty_like(options.sink, dtype=lse.dtype)
        given["dsink"] = readable(of_sink)
    _core.backward(readable(q), readable(k), readable(v), readable(out), readable(lse), readable(dout), readable(dlse),
                   given, readable_options(options))
    if of_sink is not None:
        results[4].copy_(of_sink)
    if adds_up:
        heads = k.shape[1]
        results[1:3] = [None if x is None else x.div_(heads).expand(-1, heads, -1, -1) for x in results[1:3]]
    return results


# -------------------------------------------------------------------------------------------------------- the operators

def filled(gradients: Sequence[Tensor | None], q: Tensor) -> tuple[Tensor, ...]:
    """Replaces None, which operators cannot return, by empty tensors."""
    return tuple(q.new_empty(0) if gradient is None else gradient for gradient in gradients)


def _forward(q, k, v, *values):
    return forward(q, k, v, from_flat(values))


def _backward(dout, dlse, q, k, v, out, lse, *values):
    *values, wanted = values
    return filled(backward(dout, dlse, q, k, v, out, lse, from_flat(values), wanted), q)


library.impl("attention", _forward, "CPU")
library.impl("attention_backward", _backward, "CPU")


@torch.library.register_fake("attention_cpp::attention", lib=library)
def _(q, k, v, *values):
    return new_out(q, v), new_lse(q)


@torch.library.register_fake("attention_cpp::attention_backward", lib=library)
def _(dout, dlse, q, k, v, out, lse, bias, sink, *values):
    return filled([torch.empty_like(source) if is_wanted else None
                   for source, is_wanted in zip((q, k, v, bias, sink), values[-1])], q)


def _pairs(q: Tensor, k: Tensor, values: Sequence[Any]) -> int:
    """Returns the number of (query, key) pairs of all heads, for packed sequences of pairs inside a sequence."""
    B, H, Lq, _ = q.shape
    given = dict(zip(NAMES, values))
    starts, key_starts = given["cu_seqlens_q"], given["cu_seqlens_k"]
    if starts is None:
        return B * H * Lq * k.shape[2]
    return H * int((starts.long().diff() * key_starts.long().diff()).sum())


@register_flop_formula(torch.ops.attention_cpp.attention, get_raw=True)
def _(q, k, v, *values, out_val) -> int:
    return 2 * _pairs(q, k, values) * (q.shape[-1] + v.shape[-1])


@register_flop_formula(torch.ops.attention_cpp.attention_backward, get_raw=True)
def _(dout, dlse, q, k, v, out, lse, *values, out_val) -> int:
    return 2 * _pairs(q, k, values) * (3 * q.shape[-1] + 2 * v.shape[-1])
