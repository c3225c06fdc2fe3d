"""flash-attention 3's functions, which its module flash_attn_interface has, over those of flash-attention 2.

They have no dropout, return (out, softmax_lse) with return_attn_probs, and call the block table page_table. Arguments
for GPUs (num_splits, pack_gqa, sm_margin, scheduler_metadata) have no effect. An unsupported argument that would change
results raises Error.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from .._core import Error
from . import cache, functions
from .arguments import check

__all__ = ["flash_attn_func", "flash_attn_qkvpacked_func", "flash_attn_varlen_func", "flash_attn_with_kvcache"]

Result = Any  # out, or (out, softmax_lse)


def _refuse(function: str, attention_chunk: int = 0, **others: Any) -> None:
    """Raises Error if an argument that is not supported is given."""
    given = [name for name, value in others.items() if value is not None]
    if attention_chunk:
        given.append("attention_chunk")
    if given:
        raise Error(f"[{function}] attention_cpp does not support {', '.join(given)}, which must not be given")


def _two(result: Any) -> Result:
    return result[:2] if isinstance(result, tuple) else result


def flash_attn_func(q: Tensor, k: Tensor, v: Tensor, softmax_scale: float | None = None, causal: bool = False,
                    qv: Tensor | None = None, q_descale: Tensor | None = None, k_descale: Tensor | None = None,
                    v_descale: Tensor | None = None, window_size: tuple[int, int] = (-1, -1), attention_chunk: int = 0,
                    softcap: float = 0.0, num_splits: int = 1, pack_gqa: bool | None = None,
                    deterministic: bool = False, sm_margin: int = 0, return_attn_probs: bool = False) -> Result:
    """Computes attention of q (batch, seqlen_q, nheads, headdim) to k, v (batch, seqlen_k, nheads_k, headdim)."""
    _refuse("flash_attn_func", attention_chunk, qv=qv, q_descale=q_descale, k_descale=k_descale, v_descale=v_descale)
    return _two(functions.dense("flash_attn_func", q, k, v, 0.0, softmax_scale, causal, window_size, softcap, None,
                                return_attn_probs))


def flash_attn_qkvpacked_func(qkv: Tensor, softmax_scale: float | None = None, causal: bool = False,
                              q_descale: Tensor | None = None, k_descale: Tensor | None = None,
                              v_descale: Tensor | None = None, window_size: tuple[int, int] = (-1, -1),
                              attention_chunk: int = 0, softcap: float = 0.0, deterministic: bool = False,
                              num_heads_q: int | None = None, sm_margin: int = 0,
                              return_attn_probs: bool = False) -> Result:
    """Computes flash_attn_func() with q, k and v in one tensor, qkv (batch, seqlen, 3, nheads, headdim), or
    (batch, seqlen, nheads + 2 nheads_k, headdim) with num_heads_q."""
    function = "flash_attn_qkvpacked_func"
    _refuse(function, attention_chunk, q_descale=q_descale, k_descale=k_descale, v_descale=v_descale)
    if num_heads_q is None:
        check(function, qkv=(qkv, "batch seqlen 3 nheads headdim"))
        parts = qkv.unbind(2)
    else:
        check(function, qkv=(qkv, "batch seqlen heads headdim"))
        rest = qkv.shape[2] - num_heads_q
        if rest <= 0 or rest % 2:
            raise Error(f"[{function}] num_heads_q is {num_heads_q}, which leaves {rest} of {qkv.shape[2]} heads for "
                        "keys and values; it must leave an even number of them, at least 2")
        parts = qkv.split([num_heads_q, rest // 2, rest // 2], 2)
    return _two(functions.dense(function, *parts, 0.0, softmax_scale, causal, window_size, softcap, None,
                                return_attn_probs))


def flash_attn_varlen_func(q: Tensor, k: Tensor, v: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor,
                           max_seqlen_q: int, max_seqlen_k: int, seqused_q: Tensor | None = None,
                           seqused_k: Tensor | None = None, softmax_scale: float | None = None, causal: bool = False,
                           qv: Tensor | None = None, q_descale: Tensor | None = None, k_descale: Tensor | None = None,
                           v_descale: Tensor | None = None, window_size: tuple[int, int] = (-1, -1),
                           attention_chunk: int = 0, softcap: float = 0.0, num_splits: int = 1,
                           pack_gqa: bool | None = None, deterministic: bool = False, sm_margin: int = 0,
                           return_attn_probs: bool = False) -> Result:
    """Computes attention of packed sequences as in flash-attention 2. seqused_k (batch,) int32: the number of keys of
    each sequence that are used."""
    _refuse("flash_attn_varlen_func", attention_chunk, seqused_q=seqused_q, qv=qv, q_descale=q_descale,
            k_descale=k_descale, v_descale=v_descale)
    return _two(functions.varlen("flash_attn_varlen_func", q, k, v, cu_seqlens_q, cu_seqlens_k, 0.0, softmax_scale,
                                 causal, window_size, softcap, None, return_attn_probs, key_length=seqused_k))


def flash_attn_with_kvcache(q: Tensor, k_cache: Tensor, v_cache: Tensor, k: Tensor | None = None,
                            v: Tensor | None = None, qv: Tensor | None = None, rotary_cos: Tensor | None = None,
                            rotary_sin: Tensor | None = None, cache_seqlens: int | Tensor | None = None,
                            cache_batch_idx: Tensor | None = None, cache_leftpad: Tensor | None = None,
                            page_table: Tensor | None = None, cu_seqlens_q: Tensor | None = None,
                            cu_seqlens_k_new: Tensor | None = None, max_seqlen_q: int | None = None,
                            rotary_seqlens: Tensor | None = None, q_descale: Tensor | None = None,
                            k_descale: Tensor | None = None, v_descale: Tensor | None = None,
                            softmax_scale: float | None = None, causal: bool = False,
                            window_size: tuple[int, int] = (-1, -1), attention_chunk: int = 0, softcap: float = 0.0,
                            rotary_interleaved: bool = True, scheduler_metadata: Any = None, num_splits: int = 0,
                            pack_gqa: bool | None = None, sm_margin: int = 0,
                            return_softmax_lse: bool = False) -> Result:
    """Appends k and v to a KV cache and computes the attention of q to it, as in flash-attention 2."""
    _refuse("flash_attn_with_kvcache", attention_chunk, qv=qv, cu_seqlens_q=cu_seqlens_q,
            cu_seqlens_k_new=cu_seqlens_k_new, rotary_seqlens=rotary_seqlens, q_descale=q_descale, k_descale=k_descale,
            v_descale=v_descale)
    return cache.flash_attn_with_kvcache(
        q, k_cache, v_cache, k, v, rotary_cos, rotary_sin, cache_seqlens, cache_batch_idx, cache_leftpad, page_table,
        softmax_scale, causal, window_size, softcap, rotary_interleaved, None, num_splits, return_softmax_lse)
