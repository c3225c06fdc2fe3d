"""flash-attention's helpers, which turn a padded batch into packed sequences and back."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .._arrays import wrong_types
from .arguments import fail, outside


def _checked(function: str, name: str, tensor: Any, indices: Any, count: int | None = None) -> Tensor:
    """Checks indices (n,) of the first axis of a tensor, int32 or int64, and returns them as int64."""
    wrong = [f"{named} must be a torch.Tensor, not {type(value).__name__}"
             for named, value in ((name, tensor), ("indices", indices)) if not isinstance(value, Tensor)]
    if wrong:
        raise TypeError(f"[{function}] " + "; ".join(wrong))
    if tensor.dim() == 0 or indices.dim() != 1 or indices.dtype not in (torch.int32, torch.int64):
        fail(function, [f"indices are {indices.dtype} {tuple(indices.shape)}, must be int32 or int64 (n,), and {name} "
                        "must have at least one axis"])
    problems = outside("indices", indices, 0, (len(tensor) if count is None else count) - 1)
    if count is not None and len(indices) != len(tensor):
        problems.append(f"indices has {len(indices)} entries, must have {len(tensor)}, one for each of {name}")
    fail(function, problems)
    return indices.long()


def _check_sizes(function: str, **sizes: int) -> None:
    wrong_types(function, **{name: (size, "whole number") for name, size in sizes.items()})
    fail(function, [f"{name} is {size}, must not be negative" for name, size in sizes.items() if size < 0])


def index_first_axis(input: Tensor, indices: Tensor) -> Tensor:
    """Returns input[indices], of input (n, ...) and indices (total,), int32 or int64. It has a gradient."""
    indices = _checked("index_first_axis", "input", input, indices)
    return input.index_select(0, indices)


def index_put_first_axis(values: Tensor, indices: Tensor, first_axis_dim: int) -> Tensor:
    """Returns zeros (first_axis_dim, ...) with values (n, ...) at the indices (n,), int32 or int64. It has a
    gradient."""
    _check_sizes("index_put_first_axis", first_axis_dim=first_axis_dim)
    indices = _checked("index_put_first_axis", "values", values, indices, first_axis_dim)
    return values.new_zeros(first_axis_dim, *values.shape[1:]).index_copy(0, indices, values)


def pad_input(hidden_states: Tensor, indices: Tensor, batch: int, seqlen: int) -> Tensor:
    """Undoes unpad_input(): returns hidden_states (total, ...) as (batch, seqlen, ...), with zeros for padding.

        >>> padded = pad_input(tokens, indices, batch, seqlen)
    """
    _check_sizes("pad_input", batch=batch, seqlen=seqlen)
    indices = _checked("pad_input", "hidden_states", hidden_states, indices, batch * seqlen)
    return index_put_first_axis(hidden_states, indices, batch * seqlen).unflatten(0, (batch, seqlen))


def _check_mask(function: str, hidden_states: Any, mask: Any, name: str) -> None:
    if not isinstance(hidden_states, Tensor) or not isinstance(mask, Tensor):
        raise TypeError(f"[{function}] hidden_states and {name} must be torch tensors, not "
                        f"{type(hidden_states).__name__} and {type(mask).__name__}")
    if mask.dim() != 2 or hidden_states.shape[:2] != mask.shape:
        fail(function, [f"hidden_states {tuple(hidden_states.shape)} must start with the axes of {name} "
                        f"{tuple(mask.shape)}, (batch, seqlen)"])


def _unpadded(hidden_states: Tensor, is_token: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor, Tensor, int]:
    indices = is_token.flatten().nonzero().flatten()
    cu_seqlens = torch.nn.functional.pad(lengths.cumsum(0, dtype=torch.int32), (1, 0))
    longest = int(lengths.max()) if lengths.numel() else 0
    return index_first_axis(hidden_states.flatten(0, 1), indices), indices, cu_seqlens, longest


def unpad_input(hidden_states: Tensor, attention_mask: Tensor, unused_mask: Tensor | None = None
                ) -> tuple[Tensor, Tensor, Tensor, int, Tensor]:
    """Removes padding: returns the tokens of a padded batch, one sequence after the other.

        >>> tokens, indices, cu_seqlens, longest, seqused = unpad_input(hidden_states, attention_mask)

    hidden_states   (batch, seqlen, ...)
    attention_mask  (batch, seqlen): 1 = a token, 0 = padding
    unused_mask     (batch, seqlen): 1 = a token that is kept but not counted in seqused

    Returns (tokens (total, ...), their indices (total,), cu_seqlens (batch + 1,) int32, the longest length,
    seqused (batch,): the lengths without unused tokens). Raises Error or TypeError for wrong arguments.
    """
    _check_mask("unpad_input", hidden_states, attention_mask, "attention_mask")
    if unused_mask is not None:
        _check_mask("unpad_input", hidden_states, unused_mask, "unused_mask")
    kept = attention_mask if unused_mask is None else attention_mask + unused_mask
    used = attention_mask.sum(-1, dtype=torch.int32)
    return (*_unpadded(hidden_states, kept, kept.sum(-1, dtype=torch.int32)), used)


def unpad_input_for_concatenated_sequences(hidden_states: Tensor, attention_mask_in_length: Tensor
                                           ) -> tuple[Tensor, Tensor, Tensor, int]:
    """Removes padding from a batch whose rows contain several sequences each.

    hidden_states (batch, seqlen, ...); attention_mask_in_length (batch, seqlen): the lengths of the row's sequences,
    then zeros. Returns and raises as unpad_input() does, without seqused.
    """
    lengths = attention_mask_in_length
    _check_mask("unpad_input_for_concatenated_sequences", hidden_states, lengths, "attention_mask_in_length")
    is_token = torch.arange(lengths.shape[1]) < lengths.sum(-1, keepdim=True)
    return _unpadded(hidden_states, is_token, lengths[lengths != 0])
