"""attention_cpp.torch.causal_convolution: the short convolution along the tokens, with gradients.

The operators are what torch.compile sees. Second derivatives, and calls inside torch.func and forward mode, are the
same sums in plain torch operations.
"""

from __future__ import annotations

from typing import Literal, Sequence, overload

import torch
from torch import Tensor

from .. import _core
from .._arrays import wrong_types
from .._flash.arguments import check
from . import autograd
from .composite import cotangents_of
from .operators import library, readable

_FUNCTION = "causal_convolution"
_GRADIENTS = ("dx", "dweight", "dbias", "dinitial_state")
_INPUTS = ("Tensor x, Tensor weight, Tensor? bias, Tensor? initial_state, Tensor? segment_ids, Tensor? cu_seqlens, "
           "bool silu")
Results = tuple[Tensor, Tensor]

library.define(f"causal_convolution({_INPUTS}, bool with_final_state) -> (Tensor, Tensor)")
library.define(f"causal_convolution_backward(Tensor dout, Tensor? dfinal_state, {_INPUTS}, bool[] wanted) -> "
               "(Tensor, Tensor, Tensor, Tensor)")
library.define("causal_convolution_update(Tensor x, Tensor(a!) state, Tensor weight, Tensor? bias, bool silu) -> "
               "Tensor")


# ------------------------------------------------------------------------------------------------------------ the calls

def _new_state(x: Tensor, weight: Tensor, cu_seqlens: Tensor | None, is_wanted: bool) -> Tensor:
    """[N, C, W - 1]; empty where it is not wanted."""
    if not is_wanted:
        return x.new_empty(0)
    return x.new_empty((x.shape[0] if cu_seqlens is None else cu_seqlens.shape[0] - 1, x.shape[2], weight.shape[1] - 1))


def _forward(x: Tensor, weight: Tensor, bias: Tensor | None, initial_state: Tensor | None, segment_ids: Tensor | None,
             cu_seqlens: Tensor | None, silu: bool, with_final_state: bool) -> Results:
    out, final_state = torch.empty_like(x), _new_state(x, weight, cu_seqlens, with_final_state)
    _core.convolution_forward(readable(x), readable(weight), readable(bias), silu, readable(initial_state),
                              readable(cu_seqlens), readable(segment_ids), readable(out),
                              readable(final_state) if with_final_state else None)
    return out, final_state


def _filled(gradients: Sequence[Tensor | None], x: Tensor) -> tuple[Tensor, ...]:
    return tuple(x.new_empty(0) if gradient is None else gradient for gradient in gradients)


def _empty_gradients(x: Tensor, weight: Tensor, bias: Tensor | None, initial_state: Tensor | None,
                     wanted: Sequence[bool]) -> list[Tensor | None]:
    return [torch.empty_like(source) if source is not None and is_wanted else None
            for source, is_wanted in zip((x, weight, bias, initial_state), wanted)]


def _backward(dout: Tensor, dfinal_state: Tensor | None, x: Tensor, weight: Tensor, bias: Tensor | None,
              initial_state: Tensor | None, segment_ids: Tensor | None, cu_seqlens: Tensor | None, silu: bool,
              wanted: Sequence[bool]) -> tuple[Tensor, ...]:
    gradients = _empty_gradients(x, weight, bias, initial_state, wanted)
    _core.convolution_backward(
        readable(x), readable(weight), readable(bias), silu, readable(initial_state), readable(cu_seqlens),
        readable(segment_ids), readable(dout), readable(dfinal_state),
        {name: readable(gradient) for name, gradient in zip(_GRADIENTS, gradients) if gradient is not None})
    return _filled(gradients, x)


def _update(x: Tensor, state: Tensor, weight: Tensor, bias: Tensor | None, silu: bool) -> Tensor:
    out = torch.empty_like(x)
    _core.convolution_forward(readable(x), readable(weight), readable(bias), silu, readable(state), None, None,
                              readable(out), readable(state))
    return out


library.impl("causal_convolution", _forward, "CPU")
library.impl("causal_convolution_backward", _backward, "CPU")
library.impl("causal_convolution_update", _update, "CPU")


@torch.library.register_fake("attention_cpp::causal_convolution", lib=library)
def _(x, weight, bias, initial_state, segment_ids, cu_seqlens, silu, with_final_state):
    return torch.empty_like(x), _new_state(x, weight, cu_seqlens, with_final_state)


@torch.library.register_fake("attention_cpp::causal_convolution_backward", lib=library)
def _(dout, dfinal_state, x, weight, bias, initial_state, segment_ids, cu_seqlens, silu, wanted):
    return _filled(_empty_gradients(x, weight, bias, initial_state, wanted), x)


@torch.library.register_fake("attention_cpp::causal_convolution_update", lib=library)
def _(x, state, weight, bias, silu):
    return torch.empty_like(x)


# ---------------------------------------------------------------------------------------------------------- derivatives

def composite(x: Tensor, weight: Tensor, bias: Tensor | None, initial_state: Tensor | None,
              segment_ids: Tensor | None, cu_seqlens: Tensor | None, silu: bool) -> Results:
    """(out, final_state) in plain torch operations, each tap a product of its own."""
    if cu_seqlens is not None:
        return _composite_packed(x, weight, bias, initial_state, segment_ids, cu_seqlens, silu)
    (B, L, C), kept = x.shape, weight.shape[1] - 1
    before = x.new_zeros(B, kept, C) if initial_state is None else initial_state.transpose(1, 2)
    tokens = torch.cat([before.to(x.dtype), x], 1)
    dtype = torch.float64 if x.dtype == torch.float64 else torch.float32
    z = torch.zeros(B, L, C, dtype=dtype) if bias is None else bias.to(dtype).expand(B, L, C)
    for j in range(kept + 1):
        term = tokens[:, j:j + L].to(dtype) * weight[:, j].to(dtype)
        if segment_ids is not None:
            ids = torch.nn.functional.pad(segment_ids, (kept, 0), value=-1)
            term = term.where((ids[:, j:j + L] == segment_ids)[..., None], torch.zeros_like(term))
        z = z + term
    out = torch.nn.functional.silu(z) if silu else z
    if segment_ids is not None:
        out = out.where((segment_ids >= 0)[..., None], torch.zeros_like(out))
    return out.to(x.dtype), tokens[:, L:].transpose(1, 2)


def _composite_packed(x, weight, bias, initial_state, segment_ids, cu_seqlens, silu) -> Results:
    starts = cu_seqlens.tolist()
    outs, states = [torch.zeros_like(x[:, :starts[0]])], []
    for n, (begin, end) in enumerate(zip(starts, starts[1:])):
        out, state = composite(x[:, begin:end], weight, bias, None if initial_state is None else initial_state[n:n + 1],
                               None if segment_ids is None else segment_ids[:, begin:end], None, silu)
        outs.append(out)
        states.append(state)
    outs.append(torch.zeros_like(x[:, starts[-1]:]))
    return torch.cat(outs, 1), torch.cat(states) if states else x.new_empty(0, x.shape[2], weight.shape[1] - 1)


def _save(ctx, inputs, output) -> None:
    ctx.save_for_backward(*inputs[:6])
    ctx.rest = inputs[6:]
    ctx.set_materialize_grads(False)


def _differentiate(ctx, dout, dfinal_state):
    inputs, (silu, with_final_state) = ctx.saved_tensors, ctx.rest
    if dout is None and dfinal_state is None:
        return (None,) * 8
    wanted = [bool(needed) for needed in ctx.needs_input_grad[:4]]
    gradients = torch.ops.attention_cpp.causal_convolution_backward(
        torch.zeros_like(inputs[0]) if dout is None else dout, dfinal_state if with_final_state else None, *inputs,
        silu, wanted)
    return *(gradient if is_wanted else None for gradient, is_wanted in zip(gradients, wanted)), None, None, None, None


def _save_gradient(ctx, inputs, output) -> None:
    ctx.save_for_backward(*inputs[:8])
    ctx.rest = inputs[8:]
    ctx.set_materialize_grads(False)


def _differentiate_twice(ctx, *doubles):
    *sources, segment_ids, cu_seqlens = ctx.saved_tensors
    silu, wanted = ctx.rest

    def gradient(dout, dfinal_state, *inputs):
        chosen = [n for n, is_wanted in enumerate(wanted) if is_wanted and inputs[n] is not None]

        def run(*tensors):
            given = list(inputs)
            for n, tensor in zip(chosen, tensors):
                given[n] = tensor
            return composite(*given, segment_ids, cu_seqlens, silu)

        (_, final_state), pull = torch.func.vjp(run, *(inputs[n] for n in chosen))
        results = dict(zip(chosen, pull((dout, torch.zeros_like(final_state) if dfinal_state is None
                                         else dfinal_state))))
        return tuple(results.get(n, dout.new_empty(0)) for n in range(4))

    return *cotangents_of(gradient, sources, doubles), None, None, None, None


torch.library.register_autograd("attention_cpp::causal_convolution", _differentiate, setup_context=_save, lib=library)
torch.library.register_autograd("attention_cpp::causal_convolution_backward", _differentiate_twice,
                                setup_context=_save_gradient, lib=library)


# ------------------------------------------------------------------------------------------------------------ the entry

def _needs_dispatch(*tensors: Tensor | None) -> bool:
    """Whether torch has to see the operator: for gradients, or because a mode or a tracer is active."""
    return autograd.is_dispatched(*tensors) or torch.is_grad_enabled() and any(
        tensor is not None and tensor.requires_grad for tensor in tensors)


def convolve(x: Tensor, weight: Tensor, bias: Tensor | None, initial_state: Tensor | None,
             segment_ids: Tensor | None, cu_seqlens: Tensor | None, silu: bool, with_final_state: bool) -> Results:
    """(out, final_state) of checked tensors; x is [B, L, C]."""
    if autograd.is_transformed():
        return composite(x, weight, bias, initial_state, segment_ids, cu_seqlens, silu)
    arguments = (x, weight, bias, initial_state, segment_ids, cu_seqlens, silu, with_final_state)
    if torch.compiler.is_compiling() or _needs_dispatch(x, weight, bias, initial_state):
        return torch.ops.attention_cpp.causal_convolution(*arguments)
    return _forward(*arguments)


def update(x: Tensor, state: Tensor, weight: Tensor, bias: Tensor | None, silu: bool) -> Tensor:
    """out of checked tensors; the state [B, C, W - 1 or more] is written in place."""
    if torch.compiler.is_compiling() or _needs_dispatch(x, state, weight, bias):
        return torch.ops.attention_cpp.causal_convolution_update(x, state, weight, bias, silu)
    return _update(x, state, weight, bias, silu)


@overload
def causal_convolution(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, *, silu: bool = ..., initial_state: Tensor | None = ...,
    segment_ids: Tensor | None = ..., cu_seqlens: Tensor | None = ..., return_final_state: Literal[False] = ...
) -> Tensor: ...


@overload
def causal_convolution(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, *, silu: bool = ..., initial_state: Tensor | None = ...,
    segment_ids: Tensor | None = ..., cu_seqlens: Tensor | None = ..., return_final_state: Literal[True]
) -> Results: ...


@overload
def causal_convolution(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, *, silu: bool = ..., initial_state: Tensor | None = ...,
    segment_ids: Tensor | None = ..., cu_seqlens: Tensor | None = ..., return_final_state: bool
) -> Tensor | Results: ...


def causal_convolution(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, *, silu: bool = False, initial_state: Tensor | None = None,
    segment_ids: Tensor | None = None, cu_seqlens: Tensor | None = None, return_final_state: bool = False
) -> Tensor | Results:
    """Computes out[b, t, c] = act(bias[c] + sum over j < W of weight[c, j] x[b, t - (W - 1) + j, c]), with gradients of
    x, weight, bias and initial_state, of second order too. Inside torch.func and in forward mode the call runs in plain
    torch operations.

        >>> out = attention_cpp.torch.causal_convolution(x, convolution.weight[:, 0], convolution.bias, silu=True)

    x              (B, L, C), any strides; of (B, C, L) give x.transpose(1, 2), which is not copied
    weight         (C, W), W from 1 to 8; weight[c, W - 1] multiplies the token itself
    bias           (C,)
    silu           act(z) = z sigmoid(z); otherwise act(z) = z
    initial_state  (N, C, W - 1), x's type: the tokens before each sequence. N is B, or the sequences of cu_seqlens
    segment_ids    (B, L) int32 or int64: a token reads only tokens of its own id; a negative id is padding, whose out
                   is 0. Not together with states
    cu_seqlens     (N + 1,) int32 or int64: where each packed sequence starts, then the end; B = 1

    Returns out (B, L, C), of x's type and order in memory, or (out, final_state (N, C, W - 1)) with return_final_state.
    Raises Error or TypeError for arguments that do not fit.
    """
    wrong_types(_FUNCTION, silu=(silu, "True or False"), return_final_state=(return_final_state, "True or False"))
    whole, starts = ("int64" if getattr(numbers, "dtype", None) == torch.int64 else "int32"
                     for numbers in (segment_ids, cu_seqlens))
    check(_FUNCTION, x=(x, "B L C"), weight=(weight, "floating: C W"), bias=(bias, "?floating: C"),
          initial_state=(initial_state, "? N C taps"), segment_ids=(segment_ids, f"?{whole}: B L"),
          cu_seqlens=(cu_seqlens, f"?{starts}: starts"))
    out, final_state = convolve(x, weight, bias, initial_state, segment_ids, cu_seqlens, silu, return_final_state)
    return (out, final_state) if return_final_state else out
