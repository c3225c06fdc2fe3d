"""flash-attention 2's private functions, which packages for distributed attention call.

They record no gradients: the forward returns everything that its backward needs. rng_state holds the seed of dropout.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .._core import Error
from .._torch import autograd
from .._torch.options import Options, new_seed
from .arguments import check, fail
from .functions import dense, options_of, raise_as, varlen

Parts = tuple[Tensor, Tensor, Tensor, Tensor]  # out, softmax_lse, S_dmask (empty), rng_state (2,) int64


def _state(dropout_p: float) -> Tensor:
    """Returns rng_state (2,) int64: a seed, or 0 without dropout, and 0."""
    return torch.stack([new_seed() if dropout_p else torch.zeros((), dtype=torch.int64),
                        torch.zeros((), dtype=torch.int64)])


@torch.no_grad()
def _flash_attn_forward(q: Tensor, k: Tensor, v: Tensor, dropout_p: float, softmax_scale: float | None, causal: bool,
                        window_size_left: int = -1, window_size_right: int = -1, softcap: float = 0.0,
                        alibi_slopes: Tensor | None = None, return_softmax: bool = False) -> Parts:
    """Computes flash_attn_func() without gradients; softmax_lse is (batch, nheads, seqlen_q)."""
    state = _state(dropout_p)
    out, lse, _ = dense("_flash_attn_forward", q, k, v, dropout_p, softmax_scale, causal,
                        (window_size_left, window_size_right), softcap, alibi_slopes, True, seed=state[0])
    return out, lse, q.new_empty(0), state


@torch.no_grad()
def _flash_attn_varlen_forward(q: Tensor, k: Tensor, v: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor,
                               max_seqlen_q: int, max_seqlen_k: int, dropout_p: float, softmax_scale: float | None,
                               causal: bool, window_size_left: int = -1, window_size_right: int = -1,
                               softcap: float = 0.0, alibi_slopes: Tensor | None = None, return_softmax: bool = False,
                               block_table: Tensor | None = None, leftpad_k: Tensor | None = None,
                               seqused_k: Tensor | None = None, zero_tensors: bool = False) -> Parts:
    """Computes flash_attn_varlen_func() without gradients; softmax_lse is (nheads, total_q)."""
    if leftpad_k is not None:
        raise Error("[_flash_attn_varlen_forward] leftpad_k must be None: begin the sequences later in cu_seqlens_k")
    state = _state(dropout_p)
    out, lse, _ = varlen("_flash_attn_varlen_forward", q, k, v, cu_seqlens_q, cu_seqlens_k, dropout_p, softmax_scale,
                         causal, (window_size_left, window_size_right), softcap, alibi_slopes, True, block_table,
                         seed=state[0], key_length=seqused_k)
    return out, lse, q.new_empty(0), state


def _pull(function: str, tensors: list[Tensor], results: tuple[Tensor | None, ...], rng_state: Tensor | None,
          alibi_slopes: Tensor | None, options: Options) -> None:
    """Computes the gradients for tensors (dout, q, k, v, out [B, H, L, D], lse) and writes them to the results that are
    not None."""
    if options.dropout > 0 and rng_state is None:
        fail(function, ["rng_state of the forward must be given if dropout_p is not 0"])
    if alibi_slopes is not None and alibi_slopes.dim() != 1:
        fail(function, [f"alibi_slopes is {tuple(alibi_slopes.shape)}, must be (nheads,) in a backward"])
    dout, q, k, v, out, lse = tensors
    given = options.having(alibi_slopes=alibi_slopes, seed=None if rng_state is None else rng_state[0])
    wanted = [result is not None for result in results]
    try:
        gradients = autograd.run_backward(dout, None, q, k, v, out, lse, given, [*wanted, False, False])
    except (Error, TypeError) as error:
        raise_as(function, error)
    for result, gradient in zip(results, gradients):
        if result is not None and gradient is not None:
            result.copy_(gradient)


def _row_sums(dout: Tensor, out: Tensor) -> Tensor:
    return (dout.float() * out.float()).sum(-1)


@torch.no_grad()
def _flash_attn_backward(dout: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, softmax_lse: Tensor,
                         dq: Tensor | None, dk: Tensor | None, dv: Tensor | None, dropout_p: float,
                         softmax_scale: float | None, causal: bool, window_size_left: int = -1,
                         window_size_right: int = -1, softcap: float = 0.0, alibi_slopes: Tensor | None = None,
                         deterministic: bool = False, rng_state: Tensor | None = None) -> Tensor:
    """Writes to dq, dk and dv if they are not None. Returns softmax_d (batch, nheads, seqlen_q rounded up to 128)."""
    function = "_flash_attn_backward"
    of_q, of_k, of_v = "batch seqlen_q nheads headdim", "batch seqlen_k nheads_k headdim", \
        "batch seqlen_k nheads_k headdim_v"
    of_out = "batch seqlen_q nheads headdim_v"
    check(function, q=(q, of_q), k=(k, of_k), v=(v, of_v), dout=(dout, of_out), out=(out, of_out),
          softmax_lse=(softmax_lse, "floating: batch nheads seqlen_q"), dq=(dq, "?" + of_q), dk=(dk, "?" + of_k),
          dv=(dv, "?" + of_v))
    options = options_of(function, dropout_p, softmax_scale, causal, (window_size_left, window_size_right), softcap)
    heads_first = [x.transpose(1, 2) for x in (dout, q, k, v, out)]
    results = tuple(None if x is None else x.transpose(1, 2) for x in (dq, dk, dv))
    _pull(function, [*heads_first, softmax_lse], results, rng_state, alibi_slopes, options)
    sums = _row_sums(dout, out).transpose(1, 2)
    return torch.nn.functional.pad(sums, (0, -q.shape[1] % 128))


@torch.no_grad()
def _flash_attn_varlen_backward(dout: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, softmax_lse: Tensor,
                                dq: Tensor | None, dk: Tensor | None, dv: Tensor | None, cu_seqlens_q: Tensor,
                                cu_seqlens_k: Tensor, max_seqlen_q: int, max_seqlen_k: int, dropout_p: float,
                                softmax_scale: float | None, causal: bool, window_size_left: int = -1,
                                window_size_right: int = -1, softcap: float = 0.0, alibi_slopes: Tensor | None = None,
                                deterministic: bool = False, rng_state: Tensor | None = None,
                                zero_tensors: bool = False) -> Tensor:
    """Computes _flash_attn_backward() of packed sequences. Returns softmax_d (nheads, total_q + 128 batch), with 0
    after the queries."""
    function = "_flash_attn_varlen_backward"
    of_q, of_k, of_v = "total_q nheads headdim", "total_k nheads_k headdim", "total_k nheads_k headdim_v"
    of_out = "total_q nheads headdim_v"
    check(function, q=(q, of_q), k=(k, of_k), v=(v, of_v), dout=(dout, of_out), out=(out, of_out),
          softmax_lse=(softmax_lse, "floating: nheads total_q"), dq=(dq, "?" + of_q), dk=(dk, "?" + of_k),
          dv=(dv, "?" + of_v), cu_seqlens_q=(cu_seqlens_q, "int32: batch+1"),
          cu_seqlens_k=(cu_seqlens_k, "int32: batch+1"))
    options = options_of(function, dropout_p, softmax_scale, causal, (window_size_left, window_size_right), softcap)
    options = options.having(cu_seqlens_q=cu_seqlens_q, cu_seqlens_k=cu_seqlens_k)
    heads_first = [x.transpose(0, 1)[None] for x in (dout, q, k, v, out)]
    results = tuple(None if x is None else x.transpose(0, 1)[None] for x in (dq, dk, dv))
    _pull(function, [*heads_first, softmax_lse[None]], results, rng_state, alibi_slopes, options)
    sums = _row_sums(dout, out).transpose(0, 1)
    return torch.nn.functional.pad(sums, (0, 128 * (len(cu_seqlens_q) - 1)))
