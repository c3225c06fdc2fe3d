"""CPU kernels for the operators of torch.nn.attention.varlen, for which torch has kernels on GPUs only.

Packed sequences are (T, heads, D) and aligned to the bottom right, as in flash-attention. The kernels are registered
with torch's dispatcher, so they also compute the calls of code that imported the functions earlier. As in torch, query,
key and value have gradients through out only.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import varlen as _varlen  # noqa: F401  (it defines the operators)

from . import autograd
from .._core import Error
from .._flash.arguments import check, fail
from .._flash.pages import gathered
from .options import Options


def _options(cu_seq_q: Tensor, cu_seq_k: Tensor, is_causal: bool, scale: float | None, window_size: list[int] | None,
             seqused_k: Tensor | None = None) -> Options:
    return Options(cu_seqlens_q=cu_seq_q, cu_seqlens_k=cu_seq_k, causal=is_causal, scale=scale,
                   alignment="bottom_right", key_length=seqused_k,
                   window=(-1, -1) if window_size is None else tuple(window_size))


def _forward(query: Tensor, key: Tensor, value: Tensor, cu_seq_q: Tensor, cu_seq_k: Tensor | None, max_q: int,
             max_k: int, is_causal: bool = False, scale: float | None = None, window_size: list[int] | None = None,
             enable_gqa: bool = False, seqused_k: Tensor | None = None, block_table: Tensor | None = None,
             num_splits: int | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """Computes out (T_q, Hq, D) and lse (Hq, T_q). The third result is the state of a random generator, always 0."""
    keys = "total_k" if block_table is None else "pages page_size"
    check("varlen_attn", query=(query, "total_q Hq D"), key=(key, f"{keys} Hk D"), value=(value, f"{keys} Hk Dv"),
          cu_seq_q=(cu_seq_q, "int32: batch+1"), cu_seq_k=(cu_seq_k, "?int32: batch+1"),
          seqused_k=(seqused_k, "?int32: batch"), block_table=(block_table, "?int32: batch pages_of_each"))
    if block_table is not None:
        if seqused_k is None:
            raise Error("[varlen_attn] seqused_k must be given with block_table")
        cu_seq_k = torch.nn.functional.pad(seqused_k.cumsum(0, dtype=torch.int32), (1, 0))
        key, value, cu_seq_k = gathered("varlen_attn", key, value, cu_seq_k, block_table)
    fail("varlen_attn", [] if cu_seq_k is not None else ["cu_seq_k must be given if block_table is None"])
    q, k, v = (x.transpose(0, 1).unsqueeze(0) for x in (query, key, value))
    out, lse = autograd.attention(q, k, v, _options(cu_seq_q, cu_seq_k, is_causal, scale, window_size, seqused_k))
    return out.squeeze(0).transpose(0, 1).contiguous(), lse.squeeze(0), torch.zeros(2, dtype=torch.uint64)


def _forward_out(out: Tensor, *arguments: Any) -> Tensor:
    result, lse, _ = _forward(*arguments)
    out.copy_(result)
    return lse


def _backward(grad_out: Tensor, query: Tensor, key: Tensor, value: Tensor, out: Tensor, lse: Tensor, cu_seq_q: Tensor,
              cu_seq_k: Tensor, max_q: int, max_k: int, is_causal: bool, rng_state: Tensor,
              scale: float | None = None, window_size: list[int] | None = None) -> tuple[Tensor, ...]:
    dout, q, k, v, result = (x.transpose(0, 1).unsqueeze(0) for x in (grad_out, query, key, value, out))
    gradients = autograd.run_backward(dout, None, q, k, v, result, lse.unsqueeze(0),
                                      _options(cu_seq_q, cu_seq_k, is_causal, scale, window_size),
                                      (True, True, True, False, False))
    return tuple(gradient.squeeze(0).transpose(0, 1).contiguous() for gradient in gradients[:3])


class VarlenKernels:
    """Keeps the kernels in torch's dispatcher until remove()."""

    def __init__(self) -> None:
        self._library = torch.library.Library("torch_attn", "IMPL")
        for name, kernel in (("_varlen_attn", _forward), ("_varlen_attn_out", _forward_out),
                             ("_varlen_attn_backward", _backward)):
            self._library.impl(name, kernel, "CPU")

    def remove(self) -> None:
        self._library._destroy()
