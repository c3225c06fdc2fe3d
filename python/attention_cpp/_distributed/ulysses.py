"""From shards of the sequence to shards of the heads and back (Jacobs et al. 2023, arXiv:2309.14509)."""

from __future__ import annotations

from typing import Any, Callable

import torch
import torch.distributed as dist
from torch import Tensor

from .. import _core
from .._core import Error
from .ranks import GroupRanks


class _Exchange(torch.autograd.Function):
    """Cuts axis `scatter` in as many parts as there are ranks, sends each to its rank, and joins what comes along axis
    `gather`. The backward is the exchange in the other direction."""

    @staticmethod
    def forward(ctx: Any, group: dist.ProcessGroup | None, x: Tensor, scatter: int,  # type: ignore[override]
                gather: int) -> Tensor:
        ctx.group, ctx.axes = group, (scatter, gather)
        ranks = GroupRanks.of(group)
        sent = [part.contiguous() for part in x.chunk(ranks.size, scatter)]
        received = [torch.empty_like(part) for part in sent]
        received[ranks.rank] = sent[ranks.rank]
        others = [rank for rank in range(ranks.size) if rank != ranks.rank]
        ranks.exchange({rank: sent[rank] for rank in others}, {rank: received[rank] for rank in others})
        return torch.cat(received, gather)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Any, ...]:  # type: ignore[override]
        scatter, gather = ctx.axes
        return None, _Exchange.apply(ctx.group, gradient, gather, scatter), None, None


class DistributedAttention(torch.nn.Module):
    """DeepSpeed-Ulysses' module: each rank has consecutive tokens of all heads, and computes some heads of all tokens.

        >>> attend = DistributedAttention(flash_attn_func, group)
        >>> out = attend(q, k, v, causal=True)      # (batch, tokens of this rank, nheads, headdim)

    local_attention             a function of query, key and value, and of the further arguments of a call
    sequence_process_group      the ranks that share the sequence; None: all
    scatter_idx, gather_idx     the axes of heads and of tokens
    The ranks must have equally many tokens, and their number must divide the heads of query, key and value. Results
    have the bits of one rank.
    """

    def __init__(self, local_attention: Callable[..., Tensor],
                 sequence_process_group: dist.ProcessGroup | None = None, scatter_idx: int = 2,
                 gather_idx: int = 1) -> None:
        super().__init__()
        self.local_attn = local_attention
        self.spg = sequence_process_group
        self.scatter_idx, self.gather_idx = scatter_idx, gather_idx

    def forward(self, query: Tensor, key: Tensor, value: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        ranks = GroupRanks.of(self.spg)
        inputs = (query, key, value)
        with ranks.refusing():
            for name, x in zip(("query", "key", "value"), inputs):
                if not isinstance(x, Tensor):
                    raise TypeError(f"[DistributedAttention] {name} must be a torch.Tensor, not {type(x).__name__}")
                if x.shape[self.scatter_idx] % ranks.size:
                    raise Error(f"[DistributedAttention] {name} has {x.shape[self.scatter_idx]} heads, must be a "
                                f"multiple of the {ranks.size} ranks")
        _core.cluster_synchronize(ranks, f"exchange of heads of {[(x.dtype, tuple(x.shape)) for x in inputs]}")
        parts = [_Exchange.apply(self.spg, x, self.scatter_idx, self.gather_idx) for x in inputs]
        return _Exchange.apply(self.spg, self.local_attn(*parts, *args, **kwargs), self.gather_idx, self.scatter_idx)
