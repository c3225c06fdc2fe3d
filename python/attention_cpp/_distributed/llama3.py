"""Packed sequences that consecutive ranks share, as ring-flash-attention's llama3 functions and its transformers
adapter take them."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from .. import _core
from .._core import Error
from .._flash.arguments import check
from .._flash.functions import options_of, slope_axes
from .._torch.options import Options
from .ranks import GroupRanks, Placement, over_ranks
from .ring import attend_packed, one_slope_each, placement_of

Prepared = tuple[Tensor, Tensor, int, int, slice]


def llama3_flash_attn_prepare_cu_seqlens(cu_seqlens: Tensor, causal: bool, rank: int, world_size: int) -> Prepared:
    """Returns what one rank needs of packed sequences that all ranks share, as many consecutive tokens on each.

        >>> cu_q, cu_k, longest_q, longest_k, keys = llama3_flash_attn_prepare_cu_seqlens(cu_seqlens, True, rank, size)

    cu_seqlens (batch + 1,): the starts of the sequences in the whole, then its length, a multiple of world_size.
    Returns (cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, local_k_slice): the starts of the parts of
    sequences that the rank has, those in the keys that they may attend to, the longest of both, and where these keys
    are in the whole.
    """
    total = int(cu_seqlens[-1])
    if total % world_size:
        raise Error(f"[llama3_flash_attn_prepare_cu_seqlens] the sequences have {total} tokens, must be a multiple of "
                    f"the {world_size} ranks")
    begin, end = (total // world_size * n for n in (rank, rank + 1))
    starts = cu_seqlens.tolist()
    inside = [(first, last) for first, last in zip(starts, starts[1:]) if first < end and last > begin]
    queries = [0, *(min(last, end) - begin for _, last in inside)]
    first_key = inside[0][0] if inside else begin
    keys = [0, *(last - first_key for _, last in inside)]
    if causal and inside:
        keys[-1] = end - first_key
    longest = [max((b - a for a, b in zip(list_, list_[1:])), default=0) for list_ in (queries, keys)]
    as_tensor = [torch.tensor(list_, dtype=cu_seqlens.dtype) for list_ in (queries, keys)]
    return *as_tensor, *longest, slice(first_key, first_key + keys[-1])


def _whole_starts(ranks: GroupRanks, group: dist.ProcessGroup | None, cu_seqlens_k: Tensor, first_key: int,
                  total: int) -> Tensor:
    """The starts of all sequences: of those of each rank, all but the end begin one."""
    _core.cluster_synchronize(ranks, "starts of sequences")
    own = [int(start) + first_key for start in cu_seqlens_k[:-1]]
    all_starts: list[Any] = [None] * ranks.size
    dist.all_gather_object(all_starts, own, group=group)
    return torch.tensor(sorted({0, total, *(start for starts in all_starts for start in starts)}))


def llama3_flash_attn_varlen_func(q: Tensor, k: Tensor, v: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor,
                                  max_seqlen_q: int, max_seqlen_k: int, heads_k_stride: int, local_k_slice: slice,
                                  dropout_p: float = 0.0, softmax_scale: float | None = None, causal: bool = False,
                                  window_size: tuple[int, int] = (-1, -1), alibi_slopes: Tensor | None = None,
                                  deterministic: bool = False, return_attn_probs: bool = False,
                                  group: dist.ProcessGroup | None = None) -> Any:
    """Packed sequences, of which each rank has as many consecutive tokens of the whole.

    q (total, nheads, headdim), k and v (total, nheads_k, headdim): the tokens of this rank. cu_seqlens_q, cu_seqlens_k
    and local_k_slice are those of llama3_flash_attn_prepare_cu_seqlens() for this rank; the lengths and heads_k_stride
    are not needed. Other arguments as in attention_cpp.flash_attn. Returns out, with gradients.
    """
    function = "llama3_flash_attn_varlen_func"
    ranks = GroupRanks.of(group)
    with ranks.refusing():
        check(function, q=(q, "total nheads headdim"), k=(k, "total nheads_k headdim"),
              v=(v, "total nheads_k headdim_v"), alibi_slopes=(alibi_slopes, slope_axes(alibi_slopes)),
              cu_seqlens_q=(cu_seqlens_q, "int32: batch+1"), cu_seqlens_k=(cu_seqlens_k, "int32: batch+1"))
        slopes = one_slope_each(function, alibi_slopes)
        if not isinstance(local_k_slice, slice):
            raise TypeError(f"[{function}] local_k_slice must be a slice, not {type(local_k_slice).__name__}")
        options = options_of(function, dropout_p, softmax_scale, causal, window_size, 0.0).having(alibi_slopes=slopes)
    starts = _whole_starts(ranks, group, cu_seqlens_k, local_k_slice.start, len(q) * ranks.size)
    return attend_packed(function, ranks, placement_of("ring", [len(q)], ranks.size), q, k, v,
                         options.having(cu_seqlens_q=starts, cu_seqlens_k=starts), return_attn_probs)


# --------------------------------------------------------------------------------------------------------- transformers

class _Shared:
    """The packed sequences of the batch that the ranks work on."""

    starts: Tensor | None = None
    group: dist.ProcessGroup | None = None


def update_ring_flash_attn_params(cu_seqlens: Tensor, process_group: dist.ProcessGroup | None = None) -> None:
    """Says how the tokens of the next batch are packed: the starts of all sequences in the whole, then its length, a
    multiple of the ranks. Every rank calls it, before the model."""
    size = GroupRanks.of(process_group).size
    if int(cu_seqlens[-1]) % size:
        raise Error(f"[update_ring_flash_attn_params] the sequences have {int(cu_seqlens[-1])} tokens, must be a "
                    f"multiple of the {size} ranks")
    _Shared.starts, _Shared.group = cu_seqlens.to(torch.int64), process_group


def _layer(module: torch.nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None,
           scaling: float | None = None, dropout: float = 0.0, is_causal: bool | None = None,
           sliding_window: int | None = None, softcap: float | None = None, s_aux: Tensor | None = None,
           **kwargs: Any) -> tuple[Tensor, None]:
    """Attention of a layer of transformers over the ranks: query [1, H, tokens of this rank, D]."""
    if _Shared.starts is None:
        raise Error("[ring_attention] call update_ring_flash_attn_params() before the model")
    ranks = GroupRanks.of(_Shared.group)
    total = int(_Shared.starts[-1])
    with ranks.refusing():
        if query.shape[0] != 1 or query.shape[2] * ranks.size != total:
            raise Error(f"[ring_attention] query has {query.shape[0]} rows of {query.shape[2]} tokens, must be one of "
                        f"{total // ranks.size}: the part of this rank of {total} packed tokens")
        causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
        options = Options(scale=scaling, dropout=dropout, causal=bool(causal), softcap=softcap or 0.0, sink=s_aux,
                          window=(-1 if sliding_window is None else sliding_window - 1, -1),
                          cu_seqlens_q=_Shared.starts, cu_seqlens_k=_Shared.starts)
    placement = placement_of("ring", [query.shape[2]], ranks.size)
    out, _ = over_ranks(ranks, placement, placement, query, key, value, options)
    return out.transpose(1, 2).contiguous(), None


def substitute_hf_flash_attn(process_group: dist.ProcessGroup | None = None, heads_k_stride: int = 1) -> None:
    """Lets models of transformers with attn_implementation "ring_attention", or "flash_attention_2", share a sequence.

        >>> substitute_hf_flash_attn(group)
        >>> model.set_attn_implementation("ring_attention")
        >>> update_ring_flash_attn_params(cu_seqlens, group)      # of the whole
        >>> model(input_ids=ids_of_this_rank, position_ids=positions_of_this_rank)

    Each rank has as many consecutive tokens of packed sequences, in a batch of one row, and passes their position_ids,
    counted in their sequences. heads_k_stride is not needed.
    """
    from transformers import AttentionInterface, AttentionMaskInterface

    for name in ("ring_attention", "flash_attention_2"):
        AttentionInterface.register(name, _layer)
        AttentionMaskInterface.register(name, lambda *arguments, **more: None)
