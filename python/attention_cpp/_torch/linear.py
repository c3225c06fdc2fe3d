"""attention_cpp.torch.linear_attention: linear attention with gradients, as the torch operators
attention_cpp::linear_attention and linear_attention_backward.

Outside of compilers, modes and transforms the calls go to the extension, without torch's dispatcher.
"""

from __future__ import annotations

from typing import Any, Literal, NoReturn, Sequence, Unpack, overload

import torch
from torch import Tensor

from .. import _core
from .._arrays import wrong_types
from .._core import Error
from .._linear import LinearOptionArguments
from .attention import check_tensors, with_axes
from .autograd import are_dispatched, autocast, is_dispatched, is_transformed
from .operators import filled, library, readable
from .vmap import one_by_one

_TENSORS = ("log_decay", "beta", "initial_state", "cu_seqlens")
_NAMES = (*_TENSORS, "scale", "delta", "l2norm", "l2norm_epsilon", "normalize")
_FLAGS = ("delta", "l2norm", "normalize")
_GRADIENTS = ("dq", "dk", "dv", "dlog_decay", "dbeta", "dinitial_state")
_SCHEMA = ("Tensor? log_decay, Tensor? beta, Tensor? initial_state, Tensor? cu_seqlens, float? scale, bool delta, "
           "bool l2norm, float l2norm_epsilon, bool normalize")
library.define(f"linear_attention(Tensor q, Tensor k, Tensor v, {_SCHEMA}, bool return_state) -> (Tensor, Tensor)")
library.define(f"linear_attention_backward(Tensor dout, Tensor? dstate, Tensor q, Tensor k, Tensor v, {_SCHEMA}, "
               "bool[] wanted) -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)")

Values = Sequence[Any]  # the options in the order of _NAMES


# ------------------------------------------------------------------------------------------------------------ the calls

def _with_fast_features(x: Tensor) -> Tensor:
    """New memory of the shape of x [B, H, L, D] in the order of its axes, or [B, L, H, D] if D is not its last one."""
    if x.stride(-1) == 1:
        return torch.empty_like(x)
    B, H, L, D = x.shape
    return x.new_empty((B, L, H, D)).transpose(1, 2)


def _new_state(q: Tensor, v: Tensor, cu_seqlens: Tensor | None, normalize: bool) -> Tensor:
    count = v.shape[0] if cu_seqlens is None else cu_seqlens.shape[0] - 1
    dtype = torch.float64 if q.dtype == torch.float64 else torch.float32
    return q.new_empty((count, v.shape[1], q.shape[3], v.shape[3] + normalize), dtype=dtype)


def _readable_options(values: Values) -> dict[str, Any]:
    return {name: readable(value) if isinstance(value, Tensor) else value for name, value in zip(_NAMES, values)}


def _forward(q: Tensor, k: Tensor, v: Tensor, values: Values, return_state: bool) -> tuple[Tensor, Tensor | None]:
    out = _with_fast_features(v)
    state = _new_state(q, v, values[3], values[-1]) if return_state else None
    _core.linear_forward(readable(q), readable(k), readable(v), readable(out), readable(state),
                         _readable_options(values))
    return out, state


def _backward(dout: Tensor, dstate: Tensor | None, q: Tensor, k: Tensor, v: Tensor, values: Values,
              wanted: Sequence[bool]) -> list[Tensor | None]:
    results = _new_gradients((q, k, v, *values[:3]), wanted)
    given = {name: readable(result) for name, result in zip(_GRADIENTS, results) if result is not None}
    _core.linear_backward(readable(q), readable(k), readable(v), readable(dout), readable(dstate), given,
                          _readable_options(values))
    return results


def _new_gradients(sources: Sequence[Tensor | None], wanted: Sequence[bool]) -> list[Tensor | None]:
    return [None if not is_wanted or source is None else _with_fast_features(source) if place < 3
            else torch.empty_like(source) for place, (source, is_wanted) in enumerate(zip(sources, wanted))]


# -------------------------------------------------------------------------------------------------------- the operators

def _forward_operator(q, k, v, *values):
    *values, return_state = values
    out, state = _forward(q, k, v, values, return_state)
    return filled((out, state), q.new_empty(0, dtype=torch.float32))


def _backward_operator(dout, dstate, q, k, v, *values):
    *values, wanted = values
    return filled(_backward(dout, dstate, q, k, v, values, wanted), q)


library.impl("linear_attention", _forward_operator, "CPU")
library.impl("linear_attention_backward", _backward_operator, "CPU")


@torch.library.register_fake("attention_cpp::linear_attention", lib=library)
def _(q, k, v, *values):
    *values, return_state = values
    state = _new_state(q, v, values[3], values[-1]) if return_state else q.new_empty(0, dtype=torch.float32)
    return _with_fast_features(v), state


@torch.library.register_fake("attention_cpp::linear_attention_backward", lib=library)
def _(dout, dstate, q, k, v, *values):
    *values, wanted = values
    return filled(_new_gradients((q, k, v, *values[:3]), wanted), q)


# ------------------------------------------------------------------------------------------------------------ gradients

def _keep(ctx, tensors: Sequence[Tensor | None], rest: Sequence[Any]) -> None:
    ctx.save_for_backward(*tensors)
    ctx.rest = rest
    ctx.set_materialize_grads(False)


def _differentiate(ctx, dout: Tensor | None, dstate: Tensor | None) -> tuple[Tensor | None, ...]:
    """The gradients of a kept call for its first six tensors, then None for cu_seqlens and everything else."""
    tensors, count = ctx.saved_tensors, len(ctx.needs_input_grad)
    wanted = [needed and tensor is not None for needed, tensor in zip(ctx.needs_input_grad[:6], tensors)]
    if dout is None and dstate is None:
        return (None,) * count
    q, k, v, *options = tensors
    if dout is None:
        dout = torch.zeros_like(v)
    values = (*options, *ctx.rest)
    if torch.is_grad_enabled() or is_transformed():
        results = _Gradient.apply(dout, dstate, q, k, v, *values, wanted)
    elif is_dispatched(*tensors) or are_dispatched(dout, dstate):
        results = torch.ops.attention_cpp.linear_attention_backward(dout, dstate, q, k, v, *values, wanted)
    else:
        results = _backward(dout, dstate, q, k, v, values, wanted)
    return (*(result if is_wanted else None for result, is_wanted in zip(results, wanted)), *(None,) * (count - 6))


def _no_second_derivative(*_: Any) -> NoReturn:
    raise NotImplementedError("[linear_attention] has first derivatives only: create_graph=True and other second "
                              "derivatives are not supported")


def _no_forward_mode(*_: Any) -> NoReturn:
    raise NotImplementedError("[linear_attention] has gradients, but no derivatives in forward mode")


class _LinearAttention(torch.autograd.Function):
    """The operator outside of transforms: (out, state), without a state unless return_state."""

    @staticmethod
    def forward(ctx, q, k, v, log_decay, beta, initial_state, cu_seqlens, rest, return_state):
        _keep(ctx, (q, k, v, log_decay, beta, initial_state, cu_seqlens), rest)
        return _forward(q, k, v, (log_decay, beta, initial_state, cu_seqlens, *rest), return_state)

    backward = staticmethod(_differentiate)


def _keep_operator(ctx, inputs, output) -> None:
    _keep(ctx, inputs[:7], inputs[7:-1])


class _Transformed(torch.autograd.Function):
    """The operator under torch.func, which asks for a setup_context."""

    setup_context = staticmethod(_keep_operator)
    backward = staticmethod(_differentiate)
    jvp = staticmethod(_no_forward_mode)

    @staticmethod
    def forward(*arguments):
        return torch.ops.attention_cpp.linear_attention(*arguments)

    @staticmethod
    def vmap(info, in_dims, *arguments):
        return one_by_one(_Transformed.apply, info.batch_size, in_dims, arguments)


class _Gradient(torch.autograd.Function):
    """The backward where second derivatives may be asked for, which there are not."""

    backward = staticmethod(_no_second_derivative)
    jvp = staticmethod(_no_forward_mode)

    @staticmethod
    def setup_context(ctx, inputs, output) -> None:
        pass

    @staticmethod
    def forward(*arguments):
        return torch.ops.attention_cpp.linear_attention_backward(*arguments)

    @staticmethod
    def vmap(info, in_dims, *arguments):
        return one_by_one(_Gradient.apply, info.batch_size, in_dims, arguments)


torch.library.register_autograd("attention_cpp::linear_attention", _differentiate, setup_context=_keep_operator,
                                lib=library)
torch.library.register_autograd("attention_cpp::linear_attention_backward", _no_second_derivative, lib=library)


# ------------------------------------------------------------------------------------------------------------ the entry

def run(q: Tensor, k: Tensor, v: Tensor, values: Values, return_state: bool) -> tuple[Tensor, Tensor | None]:
    """(out, state or None) with gradients. Tensors have all their axes; values are those of _NAMES."""
    tensors, rest = (q, k, v, *values[:4]), tuple(values[4:])
    transformed = is_transformed()
    if transformed or torch.compiler.is_compiling() or is_dispatched(*tensors):
        apply = _Transformed.apply if transformed else torch.ops.attention_cpp.linear_attention
        out, state = apply(q, k, v, *values, return_state)
        return out, state if return_state else None
    if torch.is_grad_enabled() and any([tensor is not None and tensor.requires_grad for tensor in tensors[:6]]):
        return _LinearAttention.apply(*tensors, rest, return_state)
    return _forward(q, k, v, values, return_state)


def check(function: str, q: Any, k: Any, v: Any, **options: Any) -> None:
    """Raises TypeError for arguments of other types, Error for tensors that are not dense and on the CPU."""
    given = {name: options[name] for name in _TENSORS if options[name] is not None}
    check_tensors(function, q=q, k=k, v=v, **given)
    scale, epsilon, flags = options["scale"], options["l2norm_epsilon"], [options[name] for name in _FLAGS]
    if torch.compiler.is_compiling() or type(epsilon) is float and all([type(flag) is bool for flag in flags]) and (
            scale is None or type(scale) is float):
        return
    wrong_types(function, scale=(0 if scale is None else scale, "number"), l2norm_epsilon=(epsilon, "number"),
                **{name: (flag, "True or False") for name, flag in zip(_FLAGS, flags)})


@overload
def linear_attention(q: Tensor, k: Tensor, v: Tensor, *, return_state: Literal[False] = False,
                     **options: Unpack[LinearOptionArguments]) -> Tensor: ...


@overload
def linear_attention(q: Tensor, k: Tensor, v: Tensor, *, return_state: Literal[True],
                     **options: Unpack[LinearOptionArguments]) -> tuple[Tensor, Tensor]: ...


@overload
def linear_attention(q: Tensor, k: Tensor, v: Tensor, *, return_state: bool, **options: Unpack[LinearOptionArguments]
                     ) -> Tensor | tuple[Tensor, Tensor]: ...


def linear_attention(q: Tensor, k: Tensor, v: Tensor, *, scale: float | None = None, log_decay: Tensor | None = None,
                     beta: Tensor | None = None, delta: bool = False, l2norm: bool = False,
                     l2norm_epsilon: float = 1e-6, normalize: bool = False, initial_state: Tensor | None = None,
                     cu_seqlens: Any = None, return_state: bool = False) -> Any:
    """attention_cpp.linear_attention() with gradients: linear recurrences with decay and the delta rule.

        >>> out, state = linear_attention(q, k, v, log_decay=g, beta=beta, delta=True, l2norm=True, return_state=True)

    Arguments are those of attention_cpp.linear_attention(), which its help() lists, as tensors: q, k [B, H, L, Dk],
    v [B, Hv, L, Dv] of one floating type, any strides, without a copy. log_decay and beta may be of any floating type.
    cu_seqlens may be a list.

    q, k, v, log_decay, beta and initial_state have gradients, through out and the state. Second derivatives raise
    NotImplementedError, forward mode is not supported. torch.compile sees one node. torch.autocast casts q, k and v.

    Returns out [B, Hv, L, Dv], or (out, state) with state [N, Hv, Dk, Dv], float32 (float64 for float64).

    Raises Error (a ValueError) or TypeError, which name what is wrong.
    """
    if cu_seqlens is not None and not isinstance(cu_seqlens, Tensor):
        wrong_types("linear_attention", cu_seqlens=(cu_seqlens, "list of whole numbers"))
        cu_seqlens = torch.as_tensor(cu_seqlens, dtype=torch.int64)
    if type(return_state) is not bool:
        wrong_types("linear_attention", return_state=(return_state, "True or False"))
    check("linear_attention", q, k, v, scale=scale, log_decay=log_decay, beta=beta, delta=delta, l2norm=l2norm,
          l2norm_epsilon=l2norm_epsilon, normalize=normalize, initial_state=initial_state, cu_seqlens=cu_seqlens)
    axes = q.dim()
    if not 2 <= axes <= 4 or k.dim() != axes or v.dim() != axes:
        raise Error(f"[linear_attention] q, k and v have {q.dim()}, {k.dim()} and {v.dim()} axes, must have 4, or all "
                    "of them 2 or 3")
    q, k, v = autocast(*(with_axes(tensor, 4) for tensor in (q, k, v)))
    log_decay, beta, initial_state = (tensor if tensor is None else with_axes(tensor, count)
                                      for tensor, count in ((log_decay, 4), (beta, 3), (initial_state, 4)))
    values = (log_decay, beta, initial_state, cu_seqlens, scale, delta, l2norm, l2norm_epsilon, normalize)
    out, state = run(q, k, v, values, return_state)
    if axes < 4:
        out = out.reshape(out.shape[4 - axes:])
    return (out, state) if return_state else out
