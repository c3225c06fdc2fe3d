"""What all functions of attention_cpp.fla do: which device a call is for, its options, the layout [B, T, H, D]."""

from __future__ import annotations

import functools
from typing import Any, Callable, Mapping, TypeVar

import torch
from torch import Tensor

from .._core import Error
from .._torch import linear

_F = TypeVar("_F", bound=Callable[..., Any])
State = Tensor | None

elsewhere: dict[str, Callable[..., Any]] = {}  # fla's own functions, by name, where install() has found them

_WITHOUT_EFFECT = ("chunk_size",)  # of **kwargs: how fla's kernels divide the work
_SUPPORTED = {
    "reverse": "False: flip q, k, v, the gates and the output on the axis T",
    "gv": "None: decays of the rows of the state (g, gk) are supported",
    "cp_context": "None: a sequence is computed by one process",
    "return_intermediate_states": "False: the final state is supported, output_final_state=True",
    "use_graph": "False: there are no graphs of a device on the CPU",
    "head_first": "not given: inputs are [B, T, H, D]",
}


def on_cpu(function: _F) -> _F:
    """Gives calls on other devices to fla's function of this name, if install() has found it."""
    name = function.__name__

    @functools.wraps(function)
    def call(*arguments: Any, **options: Any) -> Any:
        q = arguments[0] if arguments else options.get("q")
        if isinstance(q, Tensor) and q.device.type != "cpu" and name in elsewhere:
            return elsewhere[name](*arguments, **options)
        return function(*arguments, **options)

    return call  # type: ignore[return-value]


def refuse(function: str, options: Mapping[str, Any], rest: Mapping[str, Any] = {}) -> None:
    """Raises NotImplementedError for options without meaning here that are set, and for unknown names in `rest`."""
    wrong = [f"{name}={value!r} is not supported, must be {_SUPPORTED[name]}" if not isinstance(value, Tensor)
             else f"{name} is not supported, must be {_SUPPORTED[name]}"
             for name, value in options.items() if value is not None and value is not False]
    wrong += [f"{name} is not supported" + (f", must be {_SUPPORTED[name]}" if name in _SUPPORTED else "")
              for name in rest if name not in _WITHOUT_EFFECT]
    if wrong:
        raise NotImplementedError(f"[{function}] " + "; ".join(wrong))


def v_first(function: str, state_v_first: bool, rest: dict[str, Any]) -> bool:
    """state_v_first, which fla also takes by its old name."""
    if "transpose_state_layout" in rest:
        if state_v_first:
            raise ValueError(f"[{function}] state_v_first and transpose_state_layout, its old name, are both given")
        return bool(rest.pop("transpose_state_layout"))
    return state_v_first


def gate(function: str, g: Tensor | None, A_log: Tensor | None, dt_bias: Tensor | None,
         lower_bound: float | None = None) -> Tensor:
    """The log decay of use_gate_in_kernel, float32: -exp(A_log) softplus(g + dt_bias), or lower_bound
    sigmoid(exp(A_log) (g + dt_bias)). g is [B, T, HV] or [B, T, HV, K], A_log [HV], dt_bias [HV] or [HV K]."""
    if g is None or A_log is None and lower_bound is None:
        raise ValueError(f"[{function}] use_gate_in_kernel needs {'g' if g is None else 'A_log'}")
    of_heads = g.shape[2:]
    x = g.float()
    if dt_bias is not None:
        x = x + dt_bias.float().view(of_heads)
    factor = None if A_log is None else A_log.float().exp().view(of_heads[0], *(1,) * (len(of_heads) - 1))
    if lower_bound is None:
        return -factor * torch.nn.functional.softplus(x)
    return lower_bound * torch.sigmoid(x if factor is None else factor * x)


def beta_of(function: str, beta: Tensor | None, is_logit: bool, allow_neg_eigval: bool) -> Tensor | None:
    """beta of use_beta_sigmoid_in_kernel and allow_neg_eigval: sigmoid(beta) or 2 sigmoid(beta)."""
    if allow_neg_eigval and not is_logit:
        raise ValueError(f"[{function}] allow_neg_eigval=True requires use_beta_sigmoid_in_kernel=True")
    if not is_logit or beta is None:
        return beta
    factor = torch.sigmoid(beta.float())
    return 2 * factor if allow_neg_eigval else factor


def _heads_first(x: Tensor) -> Tensor:
    return x.transpose(1, 2)


def _decay(function: str, g: Tensor | None, gk: Tensor | None, g_gamma: Tensor | None) -> Tensor | None:
    """log_decay [B|1, HV, T|1, 1 or K]: the sum of g [B, T, HV], gk [B, T, HV, K] and g_gamma [HV]."""
    parts = [(name, x, axes) for name, x, axes in (("g", g, 3), ("g of rows", gk, 4), ("g_gamma", g_gamma, 1))
             if x is not None]
    wrong = [f"{name} has {x.dim()} axes, must have {axes}" for name, x, axes in parts if x.dim() != axes]
    if wrong:
        raise Error(f"[{function}] " + "; ".join(wrong))
    views = {3: lambda x: _heads_first(x).unsqueeze(-1), 4: _heads_first, 1: lambda x: x.view(1, -1, 1, 1)}
    terms = [views[axes](x) for _, x, axes in parts]
    return functools.reduce(torch.add, terms) if terms else None


def _check_axes(function: str, **tensors: tuple[Tensor | None, int]) -> None:
    wrong = [f"{name} must be a torch.Tensor, not {type(x).__name__}" for name, (x, _) in tensors.items()
             if x is not None and not isinstance(x, Tensor)]
    if wrong:
        raise TypeError(f"[{function}] " + "; ".join(wrong))
    wrong = [f"{name} has {x.dim()} axes, must have {axes}" for name, (x, axes) in tensors.items()
             if x is not None and x.dim() != axes]
    if wrong:
        raise Error(f"[{function}] " + "; ".join(wrong))


def _as_state(state: State, is_v_first: bool, dtype: torch.dtype) -> State:
    if state is None:
        return None
    return (state.transpose(-1, -2) if is_v_first else state).to(dtype)


def attend(function: str, q: Tensor, k: Tensor, v: Tensor, *, g: Tensor | None = None, gk: Tensor | None = None,
           g_gamma: Tensor | None = None, beta: Tensor | None = None, scale: float | None = None,
           initial_state: State = None, output_final_state: bool = False, l2norm: bool = False, delta: bool = False,
           normalize: bool = False, state_v_first: bool = False, cu_seqlens: Any = None) -> tuple[Tensor, State]:
    """(o [B, T, HV, V], final_state [N, HV, K, V] or None) of q, k [B, T, H, K] and v [B, T, HV, V], any strides."""
    _check_axes(function, q=(q, 4), k=(k, 4), v=(v, 4), beta=(beta, 3), initial_state=(initial_state, 4))
    dtype = q.dtype
    if not q.dtype == k.dtype == v.dtype:
        common = torch.promote_types(torch.promote_types(q.dtype, k.dtype), v.dtype)
        q, k, v = (x.to(common) for x in (q, k, v))
    if cu_seqlens is not None and not isinstance(cu_seqlens, Tensor):
        cu_seqlens = torch.as_tensor(cu_seqlens, dtype=torch.int64)
    given = {"log_decay": _decay(function, g, gk, g_gamma), "beta": None if beta is None else _heads_first(beta),
             "initial_state": _as_state(initial_state, state_v_first,
                                        torch.float64 if q.dtype == torch.float64 else torch.float32),
             "cu_seqlens": cu_seqlens, "scale": scale, "delta": delta, "l2norm": bool(l2norm),
             "l2norm_epsilon": 1e-6, "normalize": normalize}
    linear.check(function, q, k, v, **given)
    try:
        out, state = linear.run(_heads_first(q), _heads_first(k), _heads_first(v), tuple(given.values()),
                                bool(output_final_state))
    except Error as error:
        message = str(error).removeprefix("[linear_attention] ").replace("log_decay", "the log decay g")
        raise Error(f"[{function}] {message} (T is the axis L, and sizes have the heads before it)") from None
    if state is not None and state_v_first:
        state = state.transpose(-1, -2)
    return _heads_first(out).to(dtype), state
