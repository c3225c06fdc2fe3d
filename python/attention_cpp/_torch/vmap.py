"""torch.vmap of the operator. The mapped axis becomes part of the batch."""

from __future__ import annotations

from typing import Any, Callable, Sequence

import torch
from torch import Tensor

from .._options import SHAPES
from .options import NAMES

# Options by their first axis: shared by the whole batch; one for all or one for each element; one for each element.
_OF_ALL = [name for name, axes in SHAPES.items() if axes and axes[0] not in ("B", "B|1")] + ["seed", "block_indices"]
_OF_ALL_OR_EACH = [name for name, axes in SHAPES.items() if axes and axes[0] == "B|1"]
_OF_EACH = [name for name, axes in SHAPES.items() if axes == ("B",)]

Mapped = tuple[tuple[Tensor, ...], tuple[int | None, ...]]  # the outputs, and the mapped axis of each


def _in_front(tensor: Tensor, dim: int | None, count: int) -> Tensor:
    return tensor.expand(count, *tensor.shape) if dim is None else tensor.movedim(dim, 0)


def _folded(tensors: Sequence[Tensor | None], dims: Sequence[int | None], count: int) -> list[Tensor | None]:
    """Returns tensors [B, ...] with the mapped axis as [count * B, ...]."""
    return [None if tensor is None else _in_front(tensor, dim, count).flatten(0, 1)
            for tensor, dim in zip(tensors, dims)]


def _folded_options(options: Sequence[Any], dims: Sequence[int | None], count: int, batch: int,
                    own_bias: bool) -> list | None:
    """Returns the options of a batch of count * batch, or None if one batch cannot have them."""
    given, dim_of = dict(zip(NAMES, options)), dict(zip(NAMES, dims))
    if given["cu_seqlens_q"] is not None or given["dropout"] > 0 or any(dim_of[name] is not None for name in _OF_ALL):
        return None
    for name in _OF_ALL_OR_EACH:
        tensor, dim = given[name], dim_of[name]
        if tensor is not None and (dim is not None or len(tensor) > 1 or own_bias and name == "bias"):
            rows = _in_front(tensor, dim, count)
            given[name] = rows.expand(count, batch, *rows.shape[2:]).flatten(0, 1)
    for name in _OF_EACH:
        if given[name] is not None:
            given[name] = _in_front(given[name], dim_of[name], count).flatten()
    return list(given.values())


def one_by_one(run: Callable, count: int, in_dims: Sequence[int | None], arguments: Sequence[Any]) -> Mapped:
    rows = [run(*(value.select(dim, i) if isinstance(dim, int) else value for value, dim in zip(arguments, in_dims)))
            for i in range(count)]
    outputs = tuple(torch.stack(parts) for parts in zip(*rows))
    return outputs, (0,) * len(outputs)


def map_forward(run: Callable, count: int, in_dims: Sequence[int | None], arguments: Sequence[Any]) -> Mapped:
    """Computes (out, lse) of run(q, k, v, *options), where some arguments have a mapped axis of `count` at in_dims."""
    q, k, v = _folded(arguments[:3], in_dims[:3], count)
    options = _folded_options(arguments[3:], in_dims[3:], count, len(q) // count, False)
    if options is None:
        return one_by_one(run, count, in_dims, arguments)
    return tuple(output.unflatten(0, (count, -1)) for output in run(q, k, v, *options)), (0, 0)


def map_backward(run: Callable, count: int, in_dims: Sequence[int | None], arguments: Sequence[Any]) -> Mapped:
    """Computes (dq, dk, dv, dbias, dsink) of run(dout, dlse, q, k, v, out, lse, *options, wanted) in the same way."""
    tensors, options, wanted = arguments[:7], arguments[7:-1], arguments[-1]
    wants_bias, wants_sink = wanted[3:]
    tensors = _folded(tensors, in_dims[:7], count)
    batch = len(tensors[2]) // count
    options = None if wants_sink else _folded_options(options, in_dims[7:-1], count, batch, wants_bias)
    if options is None:
        return one_by_one(run, count, in_dims, arguments)
    gradients = [gradient.unflatten(0, (count, batch)) if is_wanted else gradient
                 for gradient, is_wanted in zip(run(*tensors, *options, wanted), wanted)]
    if wants_bias:
        bias, dim = arguments[7], in_dims[7]
        if bias.shape[0 if dim != 0 else 1] == 1:  # one for the whole batch
            gradients[3] = gradients[3].sum(1, keepdim=True)
    return tuple(gradients), tuple(0 if is_wanted else None for is_wanted in wanted)
