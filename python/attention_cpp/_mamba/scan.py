"""The recurrence of Mamba 2 as the operator linear_attention: q = C, k = B, v = x, beta = dt, log_decay = dt A."""

from __future__ import annotations

from typing import Any, Iterator

import torch
from torch import Tensor

from .. import _core
from .._core import Error
from .._flash.arguments import fail
from .._torch import linear
from .._torch.autograd import is_dispatched
from .._torch.operators import readable

State = Tensor | None


def precise(dtype: torch.dtype) -> torch.dtype:
    """The type of states and steps where the tokens have this type."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def steps(dt: Tensor, dt_bias: Tensor | None, dt_softplus: bool, dtype: torch.dtype) -> Tensor:
    """softplus(dt + dt_bias) in the type of states."""
    dt = dt.to(dtype)
    if dt_bias is not None:
        dt = dt + dt_bias.to(dtype)
    return torch.nn.functional.softplus(dt) if dt_softplus else dt


def skip_and_gate(y: Tensor, x: Tensor, D: Tensor | None, z: Tensor | None) -> Tensor:
    """(y + D x) silu(z) in x's type. D has the last axes of x."""
    if D is not None:
        y = torch.addcmul(y, x, D) if y.dtype == x.dtype == D.dtype else y + x.to(y.dtype) * D
    if z is not None:
        y = y * torch.nn.functional.silu(z.to(precise(x.dtype)))
    return y.to(x.dtype)


def _values(dt: Tensor, A: Tensor, initial_state: State, cu_seqlens: Tensor | None) -> dict[str, Any]:
    """The options of the operator for dt [b, L, h] and A [h]."""
    return {"log_decay": (dt * A.to(dt.dtype)).transpose(1, 2).unsqueeze(-1), "beta": dt.transpose(1, 2),
            "initial_state": initial_state, "cu_seqlens": cu_seqlens, "scale": 1.0, "delta": False, "l2norm": False,
            "l2norm_epsilon": 1e-6, "normalize": False}


def _renamed(function: str, error: Error) -> Error:
    message = str(error).removeprefix("[linear_attention] ").replace("log_decay", "dt A")
    return Error(f"[{function}] {message} (here q is C, k is B, v is x, beta is dt, and states are [N, h, n, p])")


def scan(function: str, x: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, initial_states: State = None,
         cu_seqlens: Tensor | None = None, return_state: bool = False) -> tuple[Tensor, State]:
    """(y [b, L, h, p], states [N, h, p, n]) of x [b, L, h, p], dt [b, L, h], A [h] and B, C [b, L, g, n], no copies."""
    common = torch.promote_types(torch.promote_types(x.dtype, B.dtype), C.dtype)
    q, k, v = (tokens.to(common).transpose(1, 2) for tokens in (C, B, x))
    before = None if initial_states is None else initial_states.to(precise(common)).transpose(-1, -2)
    given = _values(dt, A, before, cu_seqlens)
    linear.check(function, q, k, v, **given)
    try:
        out, state = linear.run(q, k, v, tuple(given.values()), return_state)
    except Error as error:
        raise _renamed(function, error) from None
    return out.transpose(1, 2), None if state is None else state.transpose(-1, -2)


def step(function: str, state: Tensor, x: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor) -> Tensor:
    """y [b, h, p] of x [b, h, p], dt [b, h], A [h] and B, C [b, g, n]; writes state [b, h, p, n]."""
    x, dt, B, C = (token.unsqueeze(1) for token in (x, dt, B, C))
    tensors = (state, x, dt, A, B, C)
    if (not x.dtype == B.dtype == C.dtype or state.dtype != precise(x.dtype) or torch.compiler.is_compiling()
            or is_dispatched(*tensors)):
        y, last = scan(function, x, dt, A, B, C, state, None, True)
        assert last is not None
        state.copy_(last)
        return y.squeeze(1)
    out = torch.empty_like(x, memory_format=torch.contiguous_format)
    memory = readable(state.transpose(-1, -2))  # read and written: the state is never copied
    options = {name: readable(value) if isinstance(value, Tensor) else value
               for name, value in _values(dt, A, None, None).items()}
    try:
        q, k, v, result = (readable(token.transpose(1, 2)) for token in (C, B, x, out))
        _core.linear_forward(q, k, v, result, memory, {**options, "initial_state": memory})
    except Error as error:
        raise _renamed(function, error) from None
    return out.squeeze(1)


# ----------------------------------------------------------------------------------------------------- packed sequences

def starts_of(seq_idx: Tensor) -> Tensor:
    """cu_seqlens [N + 1] of seq_idx [L]: a sequence is a run of one index."""
    changes = torch.nonzero(seq_idx[1:] != seq_idx[:-1]).view(-1) + 1
    ends = changes.new_tensor([0]), changes, changes.new_tensor([len(seq_idx)])
    return torch.cat(ends)


def check_starts(function: str, seq_idx: Tensor | None, cu_seqlens: Tensor) -> None:
    """Raises Error unless seq_idx [b, L], if given, has the sequences of cu_seqlens."""
    if seq_idx is not None:
        places = [sorted(set(starts.tolist())) for starts in (starts_of(seq_idx[0]), cu_seqlens)]
        fail(function, [] if places[0] == places[1] else [
            "seq_idx and cu_seqlens are both given, and have different sequences"])


def rows(seq_idx: Tensor, initial_states: State) -> Iterator[tuple[slice, Tensor, State]]:
    """(row, cu_seqlens, initial states [N, h, p, n] or None) of each row of seq_idx [b, L]. The first sequence of a row
    starts with the initial state of the row, the others with 0."""
    for b in range(len(seq_idx)):
        starts, row = starts_of(seq_idx[b]), slice(b, b + 1)
        before = None if initial_states is None else initial_states[row]
        if before is not None:
            before = torch.cat([before, before.new_zeros(len(starts) - 2, *before.shape[1:])])
        yield row, starts, before
