"""The operator with its gradients. All functions of attention_cpp.torch call it.

    attention()          (out, lse) for any options, with derivatives of any order, in every transform of torch
    simple_attention()   the same at a third of the cost, for calls of which is_simple() is true

q, k, v, a floating bias and a sink have gradients, through out and lse. Second derivatives and forward mode need n x n
memory; `composite` computes them with plain torch operations.

There are three autograd functions. torch.func transforms only functions with a setup_context, for which torch compares
20 arguments with a signature in each call (25 us). So _Transformed has one, and _Attention, for calls outside of
transforms, has none. _Gradient is the backward, which has derivatives itself.
"""

from __future__ import annotations

import weakref
from typing import Any, Sequence

import torch
from torch import Tensor
from torch._C._functorch import TransformType, get_interpreter_stack, is_legacy_batchedtensor
from torch.autograd import forward_ad

from .. import _core
from .composite import composite, cotangents_of, gradient, tangents_of
from .operators import DENSE, GRADIENTS, backward, filled, forward, library, new_lse, new_out
from .options import NONE_GIVEN, Options, flat, from_flat, seeded, tensors_of
from .state import state
from .vmap import map_backward, map_forward

PLAIN = (*DENSE, type(None))


# ------------------------------------------------------------------------------------------------- what torch is doing

def is_transformed() -> bool:
    """Whether torch.func or forward-mode differentiation is active."""
    return torch._C._are_functorch_transforms_active() or forward_ad._current_level >= 0


def _is_forward_twice() -> bool:
    return sum(level.key() == TransformType.Jvp for level in get_interpreter_stack() or ()) > 1


def _is_traced() -> bool:
    """Whether a compiler, a tracer, a mode or the profiler records the operators of this call."""
    return (torch.compiler.is_compiling() or torch._C._len_torch_dispatch_stack() > 0 or torch._C._is_tracing()
            or torch.autograd._profiler_enabled())


def is_dispatched(*tensors: Tensor | None) -> bool:
    """Whether a call must go through torch's dispatcher: it is traced, or a tensor wraps another one, or is a negated
    view, which the dispatcher resolves."""
    return _is_traced() or any([type(tensor) not in PLAIN or tensor is not None and tensor.is_neg()
                                for tensor in tensors])


def are_dispatched(*upstreams: Tensor | None) -> bool:
    """Whether is_dispatched() is true of upstream gradients, or is_grads_batched=True has batched them."""
    return is_dispatched(*upstreams) or any([
        upstream is not None and is_legacy_batchedtensor(upstream) for upstream in upstreams])


def autocast(*tensors: Tensor | None) -> Sequence[Tensor | None]:
    """Casts tensors as torch.autocast does, if it is on: all floating types except float64 to the lower precision."""
    if not torch.is_autocast_enabled("cpu"):
        return tensors
    dtype = torch.get_autocast_dtype("cpu")
    return [tensor.to(dtype) if tensor is not None and tensor.is_floating_point() and tensor.dtype != torch.float64
            else tensor for tensor in tensors]


# -------------------------------------------------------------------------------------------------- without gradients

def _run(q: Tensor, k: Tensor, v: Tensor, options: Options) -> tuple[Tensor, Tensor]:
    if is_dispatched(q, k, v, options.bias, options.sink):
        return torch.ops.attention_cpp.attention(q, k, v, *flat(options))
    return forward(q, k, v, options)


def run_backward(dout, dlse, q, k, v, out, lse, options: Options, wanted: Sequence[bool]) -> Sequence[Tensor | None]:
    """Returns (dq, dk, dv, dbias, dsink). A gradient that is not wanted is None or empty."""
    if is_dispatched(q, k, v, out, lse) or are_dispatched(dout, dlse):
        return torch.ops.attention_cpp.attention_backward(dout, dlse, q, k, v, out, lse, *flat(options), list(wanted))
    return backward(dout, dlse, q, k, v, out, lse, options, wanted)


# ------------------------------------------------------------------------------------------------ outside of transforms

def _kept(ctx, out: Tensor, options: Options) -> Tensor:
    """Returns out, or a copy if the caller may change out in place, because torch does not keep it for the backward."""
    return out.clone() if options.dropout or ctx.needs_input_grad[3] else out


def _expanded(k: Tensor, v: Tensor) -> tuple[weakref.ref, ...] | None:
    """Returns weak references to k and v if each is one head that torch's expand() repeats, otherwise None."""
    if k.stride(1) == 0 and v.stride(1) == 0 and k.shape[1] == v.shape[1] > 1:
        return weakref.ref(k), weakref.ref(v)
    return None


def _adds_up(ctx, k: Tensor, v: Tensor) -> bool:
    """Whether only the backward of expand() uses the gradients of k and v, by their sum over heads. Then one head is
    computed, in as little as a tenth of the time."""
    if ctx.expanded is None:
        return False
    for kept, keys, is_wanted in zip(ctx.expanded, (k, v), ctx.needs_input_grad[1:3]):
        tensor, node = kept(), keys.grad_fn
        if tensor is not None and (tensor.retains_grad or tensor._backward_hooks):
            return False
        if is_wanted and (node is None or node.name() != "ExpandBackward0"
                          or [1, *node._saved_self_sym_sizes][-3] != 1):
            return False
        try:
            if is_wanted and not torch._C._will_engine_execute_node(node.next_functions[0][0]):
                return False  # torch.autograd.grad() returns the gradient of the expanded tensor itself
        except RuntimeError:  # torch raises it for a leaf whose gradient it computes
            pass
    return True


class _Attention(torch.autograd.Function):
    """The operator outside of transforms: out, or (out, lse).

    is_simple: the call needs neither torch's dispatcher nor gradients of bias and sink. Torch saves the tensors among
    the options, so that it detects changes in place. bias and sink are arguments too because they have gradients.
    """

    @staticmethod
    def forward(ctx, q, k, v, bias, sink, options, with_lse, is_simple):
        if is_simple:
            out, lse = new_out(q, v), new_lse(q)
            _core.forward(q, k, v, out, lse, options)
            kept = out
        else:
            out, lse = _run(q, k, v, options)
            kept = _kept(ctx, out, options)
        ctx.options, ctx.is_simple, ctx.expanded = options, is_simple, _expanded(k, v)
        if is_simple and options.mask is None and options.bias is None:
            ctx.save_for_backward(q, k, v, kept, lse)
        else:
            tensors = tensors_of(options)
            ctx.save_for_backward(q, k, v, kept, lse, *tensors.values())
            ctx.names = tensors.keys()
            ctx.options = options.mapped(lambda name, value: None if name in tensors else value)
        if not with_lse:
            return out
        ctx.set_materialize_grads(False)
        return out, lse

    @staticmethod
    def backward(ctx, dout, dlse=None):
        q, k, v, out, lse, *tensors = ctx.saved_tensors
        options, wanted = ctx.options, ctx.needs_input_grad[:5]
        if tensors:
            kept = dict(zip(ctx.names, tensors))
            if "blocks" in kept:
                indices = [kept.pop("block_indices")] if "block_indices" in kept else []
                kept["blocks"] = (kept["blocks"], *indices, *options.blocks[-2:])
            options = options.having(**kept)
        if (dout is None or torch.is_grad_enabled() or is_transformed() or are_dispatched(dout, dlse)
                or not ((adds_up := _adds_up(ctx, k, v)) or ctx.is_simple)):
            gradients = _pull(dout, dlse, q, k, v, out, lse, options, wanted)
        else:
            gradients = backward(dout, dlse, q, k, v, out, lse, options, wanted, adds_up)
        return (*gradients, None, None, None)


def _pull(dout, dlse, q, k, v, out, lse, options: Options, wanted: Sequence[bool]) -> list[Tensor | None]:
    """Returns the gradients of q, k, v, bias and sink. They have derivatives themselves if create_graph=True or a
    transform may need them."""
    if dout is None and dlse is None:
        return [None] * len(GRADIENTS)
    if dout is None:
        dout = torch.zeros_like(out)
    if torch.is_grad_enabled() or is_transformed():
        gradients = _Gradient.apply(dout, dlse, q, k, v, out, lse, *flat(options), list(wanted))
    else:
        gradients = run_backward(dout, dlse, q, k, v, out, lse, options, wanted)
    return [gradient if is_wanted else None for gradient, is_wanted in zip(gradients, wanted)]


# ------------------------------------------------------------------------------------------------------- in transforms

def _save(ctx, inputs, output) -> None:
    """Saves a call: torch saves its tensors, ctx the rest."""
    ctx.rest = rest = [*inputs, *output]
    ctx.places, tensors = [], []
    for index, value in enumerate(rest):
        if isinstance(value, Tensor):
            ctx.places.append(index)
            tensors.append(value)
            rest[index] = None
    ctx.save_for_backward(*tensors)
    ctx.save_for_forward(*tensors)
    ctx.set_materialize_grads(False)


def _save_attention(ctx, inputs, output) -> None:
    out, lse = output
    _save(ctx, inputs, (_kept(ctx, out, from_flat(inputs[3:])), lse))


def _restore(ctx) -> list:
    """Returns the inputs of a saved call, followed by its outputs."""
    arguments = list(ctx.rest)
    for index, tensor in zip(ctx.places, ctx.saved_tensors):
        arguments[index] = tensor
    return arguments


def _differentiate(ctx, dout, dlse):
    q, k, v, *values, out, lse = _restore(ctx)
    gradients = _pull(dout, dlse, q, k, v, out, lse, from_flat(values), ctx.needs_input_grad[:5])
    return (*gradients, *[None] * (len(ctx.needs_input_grad) - len(gradients)))


def _tangent(ctx, *tangents):
    q, k, v, *values, _, _ = _restore(ctx)
    options = from_flat(values)
    return tangents_of(lambda q, k, v, bias, sink: composite(q, k, v, options.having(bias=bias, sink=sink)),
                       (q, k, v, options.bias, options.sink), tangents)


class _Transformed(torch.autograd.Function):
    """The operator with flat options under torch.func and in forward mode. Torch's operators can have neither forward
    mode nor a vmap of their own."""

    setup_context = staticmethod(_save_attention)
    backward = staticmethod(_differentiate)
    jvp = staticmethod(_tangent)

    @staticmethod
    def forward(q, k, v, *values):
        return _run(q, k, v, from_flat(values))

    @staticmethod
    def vmap(info, in_dims, *arguments):
        return map_forward(_apply_flat, info.batch_size, in_dims, arguments)


def _of_gradient(ctx):
    """Returns the gradient of a saved call as a function of (dout, dlse, q, k, v, bias, sink), and these arguments."""
    dout, dlse, q, k, v, _, _, *values, wanted = _restore(ctx)[:-5]
    options = from_flat(values)
    return (lambda dout, dlse, q, k, v, bias, sink: gradient(
        dout, dlse, q, k, v, options.having(bias=bias, sink=sink), wanted)), (
            dout, dlse, q, k, v, options.bias, options.sink)


def _differentiate_twice(ctx, *doubles):
    function, sources = _of_gradient(ctx)
    d_dout, d_dlse, d_q, d_k, d_v, d_bias, d_sink = cotangents_of(function, sources, doubles)
    results = (d_dout, d_dlse, d_q, d_k, d_v, None, None, d_bias, d_sink)
    return (*results, *[None] * (len(ctx.needs_input_grad) - len(results)))


def _tangent_of_gradient(ctx, d_dout, d_dlse, d_q, d_k, d_v, d_out, d_lse, d_bias, d_sink, *_):
    return tangents_of(*_of_gradient(ctx), (d_dout, d_dlse, d_q, d_k, d_v, d_bias, d_sink))


class _Gradient(torch.autograd.Function):
    """The backward, (dq, dk, dv, dbias, dsink), as a function that has derivatives."""

    setup_context = staticmethod(_save)
    backward = staticmethod(_differentiate_twice)
    jvp = staticmethod(_tangent_of_gradient)

    @staticmethod
    def forward(dout, dlse, q, k, v, out, lse, *values):
        *values, wanted = values
        return filled(run_backward(dout, dlse, q, k, v, out, lse, from_flat(values), wanted), q)

    @staticmethod
    def vmap(info, in_dims, *arguments):
        return map_backward(_Gradient.apply, info.batch_size, in_dims, arguments)


torch.library.register_autograd("attention_cpp::attention", _differentiate, setup_context=_save_attention, lib=library)
torch.library.register_autograd("attention_cpp::attention_backward", _differentiate_twice, setup_context=_save,
                                lib=library)


# ------------------------------------------------------------------------------------------------------------ the entry

def attention(q: Tensor, k: Tensor, v: Tensor, options: Options = NONE_GIVEN) -> tuple[Tensor, Tensor]:
    """Computes (out, lse) of torch tensors q [B, H, Lq, D], k and v, with gradients. Arrays among the options are
    tensors with all their axes. The function calls the observers of watch()."""
    options = seeded(options)
    out, lse = _apply(q, k, v, options)
    if state.observers and not torch.compiler.is_compiling() and not is_transformed():
        for observer in state.observers:
            observer(q, k, lse, options)
    return out, lse


def _apply_flat(q, k, v, *values) -> tuple[Tensor, Tensor]:
    return _apply(q, k, v, from_flat(values))


def _apply(q: Tensor, k: Tensor, v: Tensor, options: Options) -> tuple[Tensor, Tensor]:
    bias, sink = options.bias, options.sink
    if is_transformed():
        if torch.compiler.is_compiling() or _is_forward_twice():  # torch allows no operator of ours there
            return composite(q, k, v, options)
        return _Transformed.apply(q, k, v, *flat(options))
    if torch.compiler.is_compiling():
        return torch.ops.attention_cpp.attention(q, k, v, *flat(options))
    if torch.is_grad_enabled() and any([tensor is not None and tensor.requires_grad
                                        for tensor in (q, k, v, bias, sink)]):
        return _Attention.apply(q, k, v, bias, sink, options, True, False)
    return _run(q, k, v, options)


# --------------------------------------------------------------------------------------------- the most frequent call

def is_simple(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, is_grouped: bool) -> bool:
    """Whether simple_attention() may compute a call: its dense tensors fit together, the mask or bias needs no
    gradient, and there is no observer, compiler, mode, transform or autocast."""
    return (not state.observers and not _is_traced() and type(q) in DENSE and not q.is_nested
            and _core.fit_together(q, k, v, mask, is_grouped) and not (q.is_neg() or k.is_neg() or v.is_neg())
            and (mask is None or not (mask.requires_grad or mask.is_neg()))
            and not is_transformed() and not torch.is_autocast_enabled("cpu"))


def simple_attention(q: Tensor, k: Tensor, v: Tensor, options: Options, with_lse: bool = False) -> Any:
    """Computes out, or (out, lse), of a call of which is_simple() is true, at a third of the cost of attention(). q, k
    and v have gradients; the options have no dropout and no sink."""
    if torch.is_grad_enabled() and (q.requires_grad or k.requires_grad or v.requires_grad):
        return _Attention.apply(q, k, v, None, None, options, with_lse, True)
    out, lse = new_out(q, v), new_lse(q) if with_lse else None
    _core.forward(q, k, v, out, lse, options)
    return (out, lse) if with_lse else out


def is_simple_with(q: Tensor, k: Tensor, v: Tensor, options: Options) -> bool:
    """Returns is_simple() for a call with these options and any number of heads."""
    mask = options.bias if options.mask is None else options.mask
    return (not options.dropout and options.sink is None and (options.mask is None or options.bias is None)
            and type(mask) in PLAIN and is_simple(q, k, v, mask, True))


def attention_output(q: Tensor, k: Tensor, v: Tensor, options: Options, simple: bool) -> Tensor:
    """Returns out of attention(), or of simple_attention() if the call is simple."""
    return simple_attention(q, k, v, options) if simple else attention(q, k, v, options)[0]
