"""The library's attention in the fused inference path of torch.nn.MultiheadAttention and TransformerEncoder.

Without gradients these modules call one operator of torch for projections and attention together, and pass nested
tensors to skip padding. This module replaces the operator: it computes the same projections, and between them attention
in O(n) memory, for a nested tensor over its packed sequences.
"""

from __future__ import annotations

import warnings
from typing import Callable

import torch
from torch import Tensor
from torch.nn.functional import linear

from . import autograd
from .._operator import attention_weights
from .masks import add_mask
from .operators import FLOATING
from .options import NONE_GIVEN, Options

_NAME = "_native_multi_head_attention"
_PADDING = 1  # mask_type of a mask [B, Lk]


def _why_not(query: Tensor, embed_dim: int, num_head: int, is_self: bool, need_weights: bool) -> str:
    """Returns why torch computes the operator, or an empty string."""
    if query.dtype not in FLOATING:
        return f"a module's query is {query.dtype}"
    if embed_dim // num_head > 1024:
        return "heads are wider than 1024"
    if query.is_nested and need_weights:
        return "need_weights asks for the weights of nested tensors"
    if query.is_nested and not (is_self and query.is_contiguous()):
        return "a module's query is nested, but has holes or is not its key and value"
    return ""


def _mask_options(mask: Tensor | None, mask_type: int | None, q: Tensor, k: Tensor) -> Options:
    """Returns the options of a module's mask. A boolean one is True where a key is hidden; a floating one is added."""
    if mask is None:
        return NONE_GIVEN
    if mask_type == _PADDING:
        mask = mask[:, None, None, :]
    mask = mask.reshape((1,) * (4 - mask.dim()) + mask.shape)
    if mask.is_floating_point():
        return add_mask(NONE_GIVEN, mask, q, k)
    return Options(mask=~mask.bool())  # not add_mask(): it would read the inverted mask in each call, as a new tensor


def _projected(query: Tensor, key: Tensor, value: Tensor, weight: Tensor, bias: Tensor, num_head: int) -> list[Tensor]:
    """Projects query, key and value [B, L, E] to q, k and v [B, H, L, D]."""
    if query is key is value:
        parts = linear(query, weight, bias).chunk(3, -1)
    else:
        parts = [linear(x, w, b) for x, w, b in zip((query, key, value), weight.chunk(3), bias.chunk(3))]
    return [part.unflatten(-1, (num_head, -1)).transpose(1, 2) for part in parts]


def _attend(query, key, value, num_head, qkv_weight, qkv_bias, proj_weight, proj_bias, mask, need_weights, average,
            mask_type) -> tuple[Tensor, Tensor | None]:
    sizes = None
    if query.is_nested:
        sizes = query._nested_tensor_size()
        starts = torch.nn.functional.pad(sizes[:, 0].cumsum(0), (1, 0))
        query = key = value = query.values().view(1, -1, query.size(-1))
    q, k, v = _projected(query, key, value, qkv_weight, qkv_bias, num_head)
    options = _mask_options(mask, mask_type, q, k) if sizes is None else Options(cu_seqlens_q=starts,
                                                                                 cu_seqlens_k=starts)
    out, lse = autograd.attention(q, k, v, options)
    result = linear(out.transpose(1, 2).flatten(2), proj_weight, proj_bias)
    if sizes is not None:
        strides, offsets = torch.ops.aten._nested_compute_contiguous_strides_offsets(sizes)
        result = torch._nested_view_from_buffer(result.flatten(), sizes, strides, offsets)
    if not need_weights:
        return result, None
    weights = attention_weights(q, k, lse, **vars(options)).to(q.dtype)
    return result, weights.mean(1) if average else weights


class FusedModules:
    """Replaces torch's operator until remove(). Calls left(reason) for a call that is left to torch."""

    def __init__(self, left: Callable[[str], None]) -> None:
        self._library = torch.library.Library("aten", "IMPL")
        for dispatch_key in ("CPU", "NestedTensorCPU"):
            self._register(dispatch_key, left)

    def _register(self, dispatch_key: str, left: Callable[[str], None]) -> None:
        torchs = torch.library.get_kernel("aten::" + _NAME, dispatch_key)

        def kernel(keys, query, key, value, embed_dim, num_head, qkv_weight, qkv_bias, proj_weight, proj_bias,
                   mask=None, need_weights=True, average=True, mask_type=None):
            rest = (num_head, qkv_weight, qkv_bias, proj_weight, proj_bias, mask, need_weights, average, mask_type)
            reason = _why_not(query, embed_dim, num_head, query is key is value, need_weights)
            if reason:
                left(reason)
                return torchs.call_boxed(keys, query, key, value, embed_dim, *rest)
            return _attend(query, key, value, *rest)

        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # torch warns that its kernel is overridden
            self._library.impl(_NAME, kernel, dispatch_key, with_keyset=True, allow_override=True)

    def remove(self) -> None:
        self._library._destroy()
