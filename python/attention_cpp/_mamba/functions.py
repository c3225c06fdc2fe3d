"""The functions of mamba_ssm, with its names of arguments: transformers passes only what it finds by name."""

from __future__ import annotations

import functools
from typing import Any, Callable, Literal, TypeVar, overload

import torch
from torch import Tensor

from .._flash.arguments import check, fail, outside
from .scan import check_starts, precise, rows, scan, skip_and_gate, step, steps

_F = TypeVar("_F", bound=Callable[..., Any])
_SCAN, _UPDATE = "mamba_chunk_scan_combined", "selective_state_update"
_INFINITY = float("inf")

elsewhere: dict[str, Callable[..., Any]] = {}  # mamba_ssm's own functions, by name, where install() has found them


def _on_cpu(function: _F) -> _F:
    """Gives calls on other devices to mamba_ssm's function of this name, if install() has found it."""
    name = function.__name__

    @functools.wraps(function)
    def call(*arguments: Any, **options: Any) -> Any:
        first = arguments[0] if arguments else next(iter(options.values()), None)
        if isinstance(first, Tensor) and first.device.type != "cpu" and name in elsewhere:
            return elsewhere[name](*arguments, **options)
        return function(*arguments, **options)

    return call  # type: ignore[return-value]


def _whole_numbers(tensor: Any, axes: str) -> tuple[Any, str]:
    """For check(): int32 or int64."""
    dtype = "int64" if isinstance(tensor, Tensor) and tensor.dtype == torch.int64 else "int32"
    return tensor, f"?{dtype}: {axes}"


@overload
def mamba_chunk_scan_combined(x: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, chunk_size: int,
                              D: Tensor | None = ..., z: Tensor | None = ..., dt_bias: Tensor | None = ...,
                              initial_states: Tensor | None = ..., seq_idx: Tensor | None = ...,
                              cu_seqlens: Tensor | None = ..., dt_softplus: bool = ...,
                              dt_limit: tuple[float, float] = ..., return_final_states: Literal[False] = ...,
                              return_varlen_states: Literal[False] = ...) -> Tensor: ...


@overload
def mamba_chunk_scan_combined(x: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, chunk_size: int,
                              D: Tensor | None = ..., z: Tensor | None = ..., dt_bias: Tensor | None = ...,
                              initial_states: Tensor | None = ..., seq_idx: Tensor | None = ...,
                              cu_seqlens: Tensor | None = ..., dt_softplus: bool = ...,
                              dt_limit: tuple[float, float] = ..., *, return_final_states: Literal[True],
                              return_varlen_states: Literal[False] = ...) -> tuple[Tensor, Tensor]: ...


@overload
def mamba_chunk_scan_combined(x: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, chunk_size: int,
                              D: Tensor | None = ..., z: Tensor | None = ..., dt_bias: Tensor | None = ...,
                              initial_states: Tensor | None = ..., seq_idx: Tensor | None = ...,
                              cu_seqlens: Tensor | None = ..., dt_softplus: bool = ...,
                              dt_limit: tuple[float, float] = ..., return_final_states: bool = ...,
                              return_varlen_states: bool = ...) -> Tensor | tuple[Tensor, ...]: ...


@_on_cpu
def mamba_chunk_scan_combined(x: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, chunk_size: int,
                              D: Tensor | None = None, z: Tensor | None = None, dt_bias: Tensor | None = None,
                              initial_states: Tensor | None = None, seq_idx: Tensor | None = None,
                              cu_seqlens: Tensor | None = None, dt_softplus: bool = False,
                              dt_limit: tuple[float, float] = (0.0, _INFINITY), return_final_states: bool = False,
                              return_varlen_states: bool = False) -> Tensor | tuple[Tensor, ...]:
    """S := exp(dt A) S + dt x B^T, y = (S C + D x) silu(z), with gradients of all floating tensors.

    x               (batch, seqlen, nheads, headdim); x, B and C may have any strides and are not copied
    dt              (batch, seqlen, nheads): becomes softplus(dt + dt_bias) if dt_softplus, then at least dt_limit[0]
                    and at most dt_limit[1]
    A               (nheads), at most 0
    B, C            (batch, seqlen, ngroups, dstate): head h reads group h // (nheads / ngroups)
    D               (nheads) or (nheads, headdim)
    z               as x; dt_bias (nheads)
    initial_states  (batch, nheads, headdim, dstate); with cu_seqlens one for each sequence in place of the batch
    seq_idx         (batch, seqlen) int32 or int64: a change of the index starts a sequence. Initial states belong to
                    the first sequence of a row, final states to the last
    cu_seqlens      (sequences + 1) int32 or int64, batch 1: the start of each sequence, and the end. Unlike in
                    mamba_ssm it separates the sequences without seq_idx too
    chunk_size      without effect on results

    Returns y of x's shape and type; (y, final states) with return_final_states; and, with return_varlen_states, after
    these the states of all sequences of cu_seqlens. States are (n, nheads, headdim, dstate), float32 (float64 for
    float64).
    """
    skip = "nheads headdim" if isinstance(D, Tensor) and D.dim() == 2 else "nheads"
    tokens = "batch seqlen"
    check(_SCAN, x=(x, f"{tokens} nheads headdim"), dt=(dt, f"floating: {tokens} nheads"), A=(A, "floating: nheads"),
          B=(B, f"floating: {tokens} ngroups dstate"), C=(C, f"floating: {tokens} ngroups dstate"),
          D=(D, f"?floating: {skip}"), z=(z, f"?floating: {tokens} nheads headdim"),
          dt_bias=(dt_bias, "?floating: nheads"), seq_idx=_whole_numbers(seq_idx, tokens),
          cu_seqlens=_whole_numbers(cu_seqlens, "sequences+1"),
          initial_states=(initial_states, f"?floating: {'batch' if cu_seqlens is None else 'sequences'} nheads headdim "
                                          "dstate"))
    fail(_SCAN, [problem for problem, is_wrong in (
        ("return_varlen_states needs cu_seqlens", return_varlen_states and cu_seqlens is None),
        (f"x has a batch of {len(x)}, must be 1 with cu_seqlens", cu_seqlens is not None and len(x) != 1)) if is_wrong])
    dt = torch.clamp(steps(dt, dt_bias, dt_softplus, precise(x.dtype)), *dt_limit)
    with_states = bool(return_final_states or return_varlen_states)
    if cu_seqlens is not None:
        check_starts(_SCAN, seq_idx, cu_seqlens)
        y, states = scan(_SCAN, x, dt, A, B, C, initial_states, cu_seqlens, with_states)
        final = None if states is None else states[-1:]
    elif seq_idx is not None:
        parts = [scan(_SCAN, x[row], dt[row], A, B[row], C[row], before, starts, with_states)
                 for row, starts, before in rows(seq_idx, initial_states)]
        y, states = torch.cat([out for out, _ in parts]), None
        final = torch.cat([last[-1:] for _, last in parts if last is not None]) if with_states else None
    else:
        y, states = scan(_SCAN, x, dt, A, B, C, initial_states, None, with_states)
        final = states
    y = skip_and_gate(y, x, D if D is None or D.dim() == 2 else D.unsqueeze(-1), z)
    wanted = [state for state, is_wanted in ((final, return_final_states), (states, return_varlen_states))
              if is_wanted and state is not None]
    return (y, *wanted) if wanted else y


@_on_cpu
def mamba_split_conv1d_scan_combined(zxbcdt: Tensor, conv1d_weight: Tensor, conv1d_bias: Tensor | None,
                                     dt_bias: Tensor, A: Tensor, D: Tensor, chunk_size: int,
                                     initial_states: Tensor | None = None, seq_idx: Tensor | None = None,
                                     dt_limit: tuple[float, float] = (0.0, _INFINITY),
                                     return_final_states: bool = False, activation: str = "silu",
                                     rmsnorm_weight: Tensor | None = None, rmsnorm_eps: float = 1e-6,
                                     outproj_weight: Tensor | None = None, outproj_bias: Tensor | None = None,
                                     headdim: int | None = None, ngroups: int = 1, norm_before_gate: bool = True
                                     ) -> None:
    """Returns None: transformers then calls causal_conv1d_fn, mamba_chunk_scan_combined, its norm and its projection.

    Raises NotImplementedError with return_final_states, which no model of transformers asks for.
    """
    if return_final_states:
        raise NotImplementedError("[mamba_split_conv1d_scan_combined] return_final_states=True is not supported, must "
                                  "be False: call causal_conv1d_fn and mamba_chunk_scan_combined")


def _is_one_a_head(x: Tensor | None, axes: tuple[int, ...]) -> bool:
    """Whether x repeats one number along these axes, as a view without memory of its own."""
    return x is None or all([x.stride(axis) == 0 or x.shape[axis] == 1 for axis in axes])


@_on_cpu
def selective_state_update(state: Tensor, x: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor,
                           D: Tensor | None = None, z: Tensor | None = None, dt_bias: Tensor | None = None,
                           dt_softplus: bool = False, state_batch_indices: Tensor | None = None) -> Tensor:
    """The next token: state := exp(dt A) state + dt x B^T, in place; y = (state C + D x) silu(z). Without gradients.

    state                (batch, nheads, headdim, dstate), or (batch, dim, dstate) as in Mamba 1
    x, dt, z             (batch, nheads, headdim), or (batch, dim); dt becomes softplus(dt + dt_bias) if dt_softplus
    A                    (nheads, headdim, dstate), or (dim, dstate)
    B, C                 (batch, ngroups, dstate), or (batch, dstate)
    D, dt_bias           (nheads, headdim), or (dim)
    state_batch_indices  (batch) int32 or int64: the rows of state, which then may have more, in the order of x's

    If A, dt and dt_bias are expanded from one number a head, as in Mamba 2, the operator runs: it reads and writes the
    state once. Otherwise these are torch operations.

    Returns y of x's shape and type.
    """
    with torch.no_grad():
        head = "nheads headdim" if x.dim() == 3 else "dim"
        group = "ngroups dstate" if x.dim() == 3 else "dstate"
        sizes = check(_UPDATE, x=(x, f"batch {head}"), dt=(dt, f"floating: batch {head}"),
                      A=(A, f"floating: {head} dstate"), B=(B, f"floating: batch {group}"),
                      C=(C, f"floating: batch {group}"), D=(D, f"?floating: {head}"),
                      z=(z, f"?floating: batch {head}"), dt_bias=(dt_bias, f"?floating: {head}"),
                      state_batch_indices=_whole_numbers(state_batch_indices, "batch"),
                      state=(state, f"floating: {'batch' if state_batch_indices is None else 'rows'} {head} dstate"))
        if state_batch_indices is None:
            return _next(state, x, dt, A, B, C, D, z, dt_bias, dt_softplus)
        fail(_UPDATE, outside("state_batch_indices", state_batch_indices, 0, sizes["rows"] - 1))
        chosen = state_batch_indices.long()
        states = state[chosen]
        y = _next(states, x, dt, A, B, C, D, z, dt_bias, dt_softplus)
        state[chosen] = states
        return y


def _next(state: Tensor, x: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor | None, z: Tensor | None,
          dt_bias: Tensor | None, dt_softplus: bool) -> Tensor:
    dtype = precise(x.dtype)
    if (x.dim() == 3 and dt_softplus and _is_one_a_head(A, (1, 2)) and _is_one_a_head(dt, (2,))
            and _is_one_a_head(dt_bias, (1,))):  # without softplus dt may be negative, which the operator refuses
        dt = steps(dt[..., 0], None if dt_bias is None else dt_bias[..., 0], True, dtype)
        return skip_and_gate(step(_UPDATE, state, x, dt, A[:, 0, 0], B, C), x, D, z)
    dt = steps(dt, dt_bias, dt_softplus, dtype)
    B, C = (weights.to(dtype).unsqueeze(1 if x.dim() == 2 else 2) for weights in (B, C))
    if x.dim() == 3:
        fail(_UPDATE, [] if x.shape[1] % B.shape[1] == 0 else [
            f"nheads = {x.shape[1]} must be a multiple of ngroups = {B.shape[1]}"])
        B, C = (weights.repeat_interleave(x.shape[1] // weights.shape[1], 1) for weights in (B, C))
    after = state.to(dtype) * torch.exp(dt.unsqueeze(-1) * A.to(dtype)) + (dt * x.to(dtype)).unsqueeze(-1) * B
    state.copy_(after)
    return skip_and_gate((after * C).sum(-1), x, D, z)
