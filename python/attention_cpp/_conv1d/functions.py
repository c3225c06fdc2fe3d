"""causal_conv1d's two functions, over attention_cpp.torch.causal_convolution."""

from __future__ import annotations

from typing import Literal, overload

import torch
from torch import Tensor

from .._flash.arguments import check, fail, outside
from .._torch.convolution import convolve, update


def _is_silu(activation: str | None) -> bool:
    if activation not in (None, "silu", "swish"):
        raise NotImplementedError(f"activation is {activation!r}, must be None, 'silu' or 'swish'")
    return activation is not None


@overload
def causal_conv1d_fn(x: Tensor, weight: Tensor, bias: Tensor | None = ..., seq_idx: Tensor | None = ...,
                     initial_states: Tensor | None = ..., return_final_states: Literal[False] = ...,
                     final_states_out: Tensor | None = ..., activation: str | None = ...) -> Tensor: ...


@overload
def causal_conv1d_fn(x: Tensor, weight: Tensor, bias: Tensor | None = ..., seq_idx: Tensor | None = ...,
                     initial_states: Tensor | None = ..., *, return_final_states: Literal[True],
                     final_states_out: Tensor | None = ..., activation: str | None = ...) -> tuple[Tensor, Tensor]: ...


@overload
def causal_conv1d_fn(x: Tensor, weight: Tensor, bias: Tensor | None = ..., seq_idx: Tensor | None = ...,
                     initial_states: Tensor | None = ..., return_final_states: bool = ...,
                     final_states_out: Tensor | None = ..., activation: str | None = ...
                     ) -> Tensor | tuple[Tensor, Tensor]: ...


def causal_conv1d_fn(x: Tensor, weight: Tensor, bias: Tensor | None = None, seq_idx: Tensor | None = None,
                     initial_states: Tensor | None = None, return_final_states: bool = False,
                     final_states_out: Tensor | None = None, activation: str | None = None
                     ) -> Tensor | tuple[Tensor, Tensor]:
    """act(bias + sum of weight[:, j] x[..., t - (width - 1) + j]), with gradients of x, weight, bias, initial_states.

    x                 (batch, dim, seqlen), any strides; a transposed view of (batch, seqlen, dim) is not copied
    weight, bias      (dim, width), width from 1 to 8, and (dim,), of any floating types
    seq_idx           (batch, seqlen) int32: a token reads only tokens of its own index. A negative index is padding,
                      whose output is 0. Not together with states
    initial_states    (batch, dim, width - 1): the tokens before x
    final_states_out  (batch, dim, width - 1): where the last tokens are written, with return_final_states
    activation        None, "silu" or "swish"

    Returns out (batch, dim, seqlen) in x's order in memory, or (out, final_states) with return_final_states.
    """
    silu = _is_silu(activation)
    check("causal_conv1d_fn", x=(x, "batch dim seqlen"), weight=(weight, "floating: dim width"),
          bias=(bias, "?floating: dim"), seq_idx=(seq_idx, "?int32: batch seqlen"),
          initial_states=(initial_states, "? batch dim width_minus_1"),
          final_states_out=(final_states_out, "? batch dim width_minus_1"))
    fail("causal_conv1d_fn", [f"{name} cannot be given with seq_idx" for name, is_given in (
        ("initial_states", initial_states is not None), ("return_final_states", return_final_states))
        if is_given and seq_idx is not None])
    out, final_states = convolve(x.transpose(1, 2), weight, bias, initial_states, seq_idx, None, silu,
                                 bool(return_final_states))
    out = out.transpose(1, 2)
    if not return_final_states:
        return out
    return out, final_states if final_states_out is None else final_states_out.copy_(final_states)


def causal_conv1d_update(x: Tensor, conv_state: Tensor, weight: Tensor, bias: Tensor | None = None,
                         activation: str | None = None, cache_seqlens: Tensor | None = None,
                         conv_state_indices: Tensor | None = None) -> Tensor:
    """The next tokens of a sequence whose last tokens are in conv_state, which is written in place. Without gradients.

    x                   (batch, dim) or (batch, dim, seqlen)
    conv_state          (batch, dim, state_len) of x's type, state_len at least width - 1: the last tokens, the newest
                        at the end
    weight, bias        (dim, width) and (dim,), of any floating types
    cache_seqlens       (batch,) int32: conv_state is a ring, and the next token's place is cache_seqlens % state_len
    conv_state_indices  (batch,) int32: the rows of conv_state, which then may have more, in the order of x's

    Returns out in the shape of x.
    """
    silu = _is_silu(activation)
    with torch.no_grad():
        tokens = x.unsqueeze(-1) if x.dim() == 2 else x
        rows = "batch" if conv_state_indices is None else "rows"
        sizes = check("causal_conv1d_update", x=(tokens, "batch dim seqlen"),
                      conv_state=(conv_state, f"{rows} dim state_len"), weight=(weight, "floating: dim width"),
                      bias=(bias, "?floating: dim"), cache_seqlens=(cache_seqlens, "?int32: batch"),
                      conv_state_indices=(conv_state_indices, "?int32: batch"))
        if conv_state_indices is None:
            out = _next(tokens, conv_state, weight, bias, silu, cache_seqlens)
        else:
            fail("causal_conv1d_update", outside("conv_state_indices", conv_state_indices, 0, sizes["rows"] - 1))
            chosen = conv_state_indices.long()
            states = conv_state[chosen]
            out = _next(tokens, states, weight, bias, silu, cache_seqlens)
            conv_state[chosen] = states
        return out.squeeze(-1) if x.dim() == 2 else out


def _next(x: Tensor, state: Tensor, weight: Tensor, bias: Tensor | None, silu: bool, cache_seqlens: Tensor | None
          ) -> Tensor:
    if cache_seqlens is None:
        return update(x.transpose(1, 2), state, weight, bias, silu).transpose(1, 2)
    dim, length = x.shape[1], state.shape[2]
    fail("causal_conv1d_update", [] if length >= max(weight.shape[1] - 1, 1) else [
        f"conv_state has a state_len of {length}, must be at least width - 1 = {weight.shape[1] - 1}"])

    def places(first: int, count: int) -> Tensor:
        steps = torch.arange(first, count) + cache_seqlens[:, None].long()
        return (steps % length)[:, None].expand(-1, dim, -1)

    before = state.gather(2, places(1 - weight.shape[1], 0))
    out, _ = convolve(x.transpose(1, 2), weight, bias, before, None, None, silu, False)
    newest = max(x.shape[2] - length, 0)  # what comes before has left the ring
    state.scatter_(2, places(newest, x.shape[2]), x[..., newest:])
    return out.transpose(1, 2)
