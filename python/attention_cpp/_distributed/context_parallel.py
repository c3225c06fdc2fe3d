"""torch's context_parallel on CPUs, where torch itself has no attention over ranks.

Inside it torch gives scaled_dot_product_attention() sharded tensors (DTensor): each rank has the same number of tokens,
consecutive ones, or as torch's balance of work under a causal mask arranges them: parts from both ends.
"""

from __future__ import annotations

from typing import Any, Callable

import torch
from torch import Tensor

from .._core import Error
from .._torch.options import Options
from .ranks import GroupRanks, over_ranks
from .ring import placement_of


def is_active_for(*tensors: Any) -> bool:
    """Whether torch's context_parallel gives these tensors, all on CPUs."""
    from torch.distributed.tensor import DTensor

    def is_on_cpus(x: Any) -> bool:
        return isinstance(x, DTensor) and x.device_mesh.ndim == 1 and x.device_mesh.device_type == "cpu"

    return _is_entered() and all(map(is_on_cpus, tensors))


def _is_entered() -> bool:
    """Whether torch's context_parallel has replaced the attention of sharded tensors."""
    from torch.distributed.tensor import DTensor

    handlers = getattr(getattr(DTensor, "_op_dispatcher", None), "_custom_op_handlers", {})
    return torch.ops.aten._scaled_dot_product_flash_attention.default in handlers


def _is_balanced() -> bool:
    """Whether a rank has parts from both ends of the sequence."""
    from torch.distributed.tensor.experimental import _attention

    try:
        return bool(_attention._cp_options.enable_load_balance)
    except AttributeError:
        raise Error("[scaled_dot_product_attention] this torch does not say how context_parallel has arranged the "
                    "tokens") from None


def attention(query: Any, key: Any, value: Any, attn_mask: Tensor | None,
              options: Callable[[], Options]) -> Tensor:
    """Computes attention of tensors that context_parallel gave, as one of them; options() may raise."""
    from torch.distributed.tensor import DTensor, Shard

    mesh, placements = query.device_mesh, query.placements
    ranks = GroupRanks.of(mesh.get_group())
    with ranks.refusing():
        if attn_mask is not None:
            raise Error("[scaled_dot_product_attention] context_parallel has no attn_mask, only is_causal")
        if not all(x.dim() == 4 and x.device_mesh == mesh and x.placements == (Shard(2),) for x in (query, key, value)):
            raise Error("[scaled_dot_product_attention] query, key and value must be [B, H, L, D], sharded in L, in "
                        "context_parallel")
        given = options()
        kind = "zigzag" if _is_balanced() else "ring"
    q, k, v = (x.to_local() for x in (query, key, value))
    queries, keys = (placement_of(kind, [x.shape[2]], ranks.size) for x in (q, k))
    out, _ = over_ranks(ranks, queries, keys, q, k, v, given)
    return DTensor.from_local(out, mesh, placements, run_check=False)
