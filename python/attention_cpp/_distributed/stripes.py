"""Stripes: rank r of R has the tokens r, r + R, r + 2 R ... (Brandon et al. 2023, arXiv:2311.09431).

A placement has chunks of many tokens. So the tokens move to one before attention, and the results back after it.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from .ranks import GroupRanks, Placement


def _places(placement: Placement | None, tokens: int, rank: int, group: dist.ProcessGroup | None, size: int) -> Tensor:
    """The tokens of a rank, in the order of its arrays: stripes where there is no placement."""
    if placement is None:
        return torch.arange(tokens)[rank::size]
    return torch.cat([torch.arange(0), *(torch.arange(*tokens) for tokens in placement.ranges(group, rank))])


class _Moved(torch.autograd.Function):
    """Tokens, on axis 1, from stripes to a placement, or back: the backward moves them in the other direction."""

    @staticmethod
    def forward(ctx: Any, group: dist.ProcessGroup | None, placement: Placement,  # type: ignore[override]
                to_stripes: bool, x: Tensor) -> Tensor:
        ctx.arguments = group, placement, not to_stripes
        ranks = GroupRanks.of(group)
        tokens = placement.tokens
        places = [[_places(kind, tokens, rank, group, ranks.size) for rank in range(ranks.size)]
                  for kind in ((placement, None) if to_stripes else (None, placement))]
        mine_before, mine_after = places[0][ranks.rank], places[1][ranks.rank]
        result = x.new_empty(x.shape[0], len(mine_after), *x.shape[2:])
        sent, received, comes = {}, {}, {}
        for rank in range(ranks.size):
            comes[rank] = torch.isin(mine_after, places[0][rank]).nonzero()[:, 0]
            sent[rank] = x[:, torch.isin(mine_before, places[1][rank]).nonzero()[:, 0]].contiguous()
            received[rank] = x.new_empty(x.shape[0], len(comes[rank]), *x.shape[2:])
        received[ranks.rank] = sent.pop(ranks.rank)
        ranks.exchange(sent, {rank: part for rank, part in received.items() if rank != ranks.rank})
        for rank, part in received.items():
            result[:, comes[rank]] = part
        return result

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Any, ...]:  # type: ignore[override]
        return None, None, None, _Moved.apply(*ctx.arguments, gradient)


def from_stripes(group: dist.ProcessGroup | None, placement: Placement, x: Tensor) -> Tensor:
    """x (batch, tokens of this rank by stripes, ...) -> (batch, tokens of this rank by the placement, ...)."""
    return _Moved.apply(group, placement, False, x)


def to_stripes(group: dist.ProcessGroup | None, placement: Placement, x: Tensor) -> Tensor:
    """The other direction."""
    return _Moved.apply(group, placement, True, x)
