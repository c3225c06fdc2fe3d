"""Exact attention over a sequence that the ranks of a process group share, on CPUs, with gradients.

    >>> torch.distributed.init_process_group("gloo")                    # under torchrun
    >>> from attention_cpp.torch.distributed import Placement, attention
    >>> placement = Placement("zigzag", tokens=65536)                   # which rank has which tokens
    >>> q, k, v = (placement.take(x, dim=2) for x in (q, k, v))         # or made there: [B, H, tokens of this rank, D]
    >>> out = attention(q, k, v, placement, causal=True)

attention() takes every option of the operator. Keys and values of other ranks come while a rank computes; results have
the same bits for any number of ranks with the same kind and chunk of placement. merge() joins what each rank has
computed with its part of a KV cache.

The other functions have the signatures of ring-flash-attention and DeepSpeed-Ulysses, whose placements follow from the
shapes. Every rank of the group must make each call, and its backward.
"""

from .._distributed.llama3 import (llama3_flash_attn_prepare_cu_seqlens, llama3_flash_attn_varlen_func,
                                   substitute_hf_flash_attn, update_ring_flash_attn_params)
from .._distributed.ranks import Placement, attention, merge
from .._distributed.ring import (ring_flash_attn_func, ring_flash_attn_kvpacked_func, ring_flash_attn_qkvpacked_func,
                                 ring_flash_attn_varlen_func, ring_flash_attn_varlen_kvpacked_func,
                                 ring_flash_attn_varlen_qkvpacked_func, stripe_flash_attn_func,
                                 stripe_flash_attn_kvpacked_func, stripe_flash_attn_qkvpacked_func,
                                 zigzag_ring_flash_attn_func,
                                 zigzag_ring_flash_attn_kvpacked_func, zigzag_ring_flash_attn_qkvpacked_func,
                                 zigzag_ring_flash_attn_varlen_func, zigzag_ring_flash_attn_varlen_kvpacked_func,
                                 zigzag_ring_flash_attn_varlen_qkvpacked_func)
from .._distributed.ulysses import DistributedAttention

__all__ = ["DistributedAttention", "Placement", "attention", "llama3_flash_attn_prepare_cu_seqlens",
           "llama3_flash_attn_varlen_func", "merge", "ring_flash_attn_func", "ring_flash_attn_kvpacked_func",
           "ring_flash_attn_qkvpacked_func", "ring_flash_attn_varlen_func", "ring_flash_attn_varlen_kvpacked_func",
           "ring_flash_attn_varlen_qkvpacked_func", "stripe_flash_attn_func", "stripe_flash_attn_kvpacked_func",
           "stripe_flash_attn_qkvpacked_func", "zigzag_ring_flash_attn_func",
           "zigzag_ring_flash_attn_kvpacked_func", "zigzag_ring_flash_attn_qkvpacked_func",
           "zigzag_ring_flash_attn_varlen_func", "zigzag_ring_flash_attn_varlen_kvpacked_func",
           "zigzag_ring_flash_attn_varlen_qkvpacked_func", "substitute_hf_flash_attn",
           "update_ring_flash_attn_params"]
