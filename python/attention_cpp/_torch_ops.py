"""torch custom operators over the library, with autograd: what every face that takes torch tensors calls.

`attention()` records gradients of q, k, v, a floating bias and a sink, and through lse. In eager mode it calls the
extension directly; under torch.compile and modes it goes through torch.ops.attention_cpp.attention and
attention_backward, which a compiler sees as one node each. Second derivatives and those of forward mode are computed
with n x n memory, in plain torch operations (`_torch_math`).
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import weakref
from typing import Any, Callable, Iterator, Mapping, Sequence, Unpack

import torch
from torch import Tensor
from torch._C._functorch import TransformType, get_interpreter_stack, is_legacy_batchedtensor
from torch.autograd import forward_ad
from torch.utils.flop_counter import register_flop_formula

from . import _core
from ._torch_math import composite, cotangents_of, gradient, tangents_of
from ._torch_options import SCHEMA, TENSORS, Options, in_order
from ._torch_vmap import map_backward, map_forward

DTYPES = {torch.float32: "float32", torch.float64: "float64", torch.bfloat16: "bfloat16", torch.float16: "float16",
          torch.bool: "boolean", torch.int32: "int32", torch.int64: "int64"}

_library = torch.library.Library("attention_cpp", "DEF")
_library.define(f"attention(Tensor q, Tensor k, Tensor v, {SCHEMA}) -> (Tensor, Tensor)")
_library.define(f"attention_backward(Tensor dout, Tensor? dlse, Tensor q, Tensor k, Tensor v, Tensor out, Tensor lse, "
                f"{SCHEMA}, bool[] wanted) -> (Tensor, Tensor, Tensor, Tensor, Tensor)")


# ------------------------------------------------------------------------------------------------------------ the calls

# From torch 2.10 on the extension reads tensors itself, in 20 ns. Before that it gets their parts, in 1 us (DLPack in
# Python takes 10 us).
_DENSE = (Tensor, torch.nn.Parameter)
_READABLE = (*_DENSE, type(None)) if _core.use_exchange(list(_DENSE)) else (type(None),)


def _raw(tensor: Tensor | None):
    """A tensor as the extension takes it."""
    if type(tensor) in _READABLE:
        return tensor
    dtype = tensor.dtype
    return tensor.data_ptr(), DTYPES.get(dtype) or str(dtype), tensor.shape, tensor.stride()


def _options(*options) -> dict:
    """As the extension takes them: those alone that say something, since each is read by its name."""
    given = {name: _raw(tensor) for name, tensor in zip(TENSORS, options) if tensor is not None}
    (scale, softcap, causal, window_left, window_right, alignment, query_block, key_block, float32_precision,
     batch_invariant, dropout, seed) = options[len(TENSORS):]
    if scale is not None:
        given["scale"] = scale
    if softcap != 0:
        given["softcap"] = softcap
    if causal:
        given["causal"] = causal
    if window_left != -1 or window_right != -1:
        given["window"] = (window_left, window_right)
    if alignment is not None:
        given["alignment"] = alignment
    if "blocks" in given:
        given["blocks"] = given["blocks"], query_block, key_block
    if float32_precision is not None:
        given["float32_precision"] = float32_precision
    if batch_invariant:
        given["batch_invariant"] = batch_invariant
    if dropout != 0:
        given["dropout"], given["seed"] = dropout, seed.item()
    return given


def _new_out(q: Tensor, v: Tensor) -> Tensor:
    """out [B, H, Lq, Dv], in memory in the order of q's axes where Dv = D, as torch does."""
    shape, Dv = q.shape, v.shape[-1]
    return torch.empty_like(q) if shape[-1] == Dv else q.new_empty((*shape[:-1], Dv))


def _new_results(q: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """out and lse [B, H, Lq]."""
    dtype = q.dtype if q.dtype in (torch.float32, torch.float64) else torch.float32
    return _new_out(q, v), q.new_empty(q.shape[:-1], dtype=dtype)


def _forward(q: Tensor, k: Tensor, v: Tensor, *options) -> tuple[Tensor, Tensor]:
    out, lse = _new_results(q, v)
    _core.forward(_raw(q), _raw(k), _raw(v), _raw(out), _raw(lse), _options(*options))
    return out, lse


def _backward(dout, dlse, q, k, v, out, lse, *options) -> list[Tensor | None]:
    """(dq, dk, dv, dbias, dsink), None where not wanted."""
    *options, wanted = options
    return _backward_of(dout, dlse, q, k, v, out, lse, options[0], options[1], wanted, _options(*options))


def _backward_of(dout, dlse, q, k, v, out, lse, bias, sink, wanted, options, adds_up=False) -> list[Tensor | None]:
    """The same; the options as the extension takes them. adds_up: of k and v each head may have the mean of all, as in
    _adds_up()."""
    sources = (q, k[:, :1], v[:, :1], bias, sink) if adds_up else (q, k, v, bias, sink)
    results = [torch.empty_like(source) if is_wanted else None for source, is_wanted in zip(sources, wanted)]
    given = {name: _raw(result) for name, result in zip(_GRADIENTS, results) if result is not None}
    of_sink = None
    if sink is not None and "dsink" in given and sink.dtype != lse.dtype:
        of_sink = torch.empty_like(sink, dtype=lse.dtype)
        given["dsink"] = _raw(of_sink)
    _core.backward(_raw(q), _raw(k), _raw(v), _raw(out), _raw(lse), _raw(dout), _raw(dlse), given, options)
    if of_sink is not None:
        results[4].copy_(of_sink)
    if adds_up:
        heads = k.shape[1]
        results[1:3] = [None if x is None else x.div_(heads).expand(-1, heads, -1, -1) for x in results[1:3]]
    return results


def _expanded(k: Tensor, v: Tensor) -> tuple[weakref.ref, ...] | None:
    """Keys and values that are one head for all heads of q, as torch's expand() makes them."""
    if k.stride(1) == 0 and v.stride(1) == 0 and k.shape[1] == v.shape[1] > 1:
        return weakref.ref(k), weakref.ref(v)
    return None


def _adds_up(ctx, k: Tensor, v: Tensor) -> bool:
    """Whether of the gradients of k and v only their sum over heads is asked for, by the expand() that made them.

    Then one head is computed, which takes up to a tenth of the time.
    """
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
                return False  # the gradient of the expanded tensor is asked for itself
        except RuntimeError:  # torch's answer for a leaf whose gradient is asked for
            pass
    return True


_GRADIENTS = ("dq", "dk", "dv", "dbias", "dsink")


def _filled(gradients: Sequence[Tensor | None], q: Tensor) -> tuple[Tensor, ...]:
    """With empty tensors for None, which operators cannot return."""
    return tuple(q.new_empty(0) if gradient is None else gradient for gradient in gradients)


_library.impl("attention", _forward, "CPU")
_library.impl("attention_backward", lambda *arguments: _filled(_backward(*arguments), arguments[2]), "CPU")


@torch.library.register_fake("attention_cpp::attention", lib=_library)
def _(q, k, v, *options):
    return _new_results(q, v)


@torch.library.register_fake("attention_cpp::attention_backward", lib=_library)
def _(dout, dlse, q, k, v, out, lse, bias, sink, *options):
    return _filled([torch.empty_like(source) if is_wanted else None
                    for source, is_wanted in zip((q, k, v, bias, sink), options[-1])], q)


# ---------------------------------------------------------------------------------------- what torch's counter counts

def _pairs(q: Tensor, k: Tensor, cu_seqlens_q: Tensor | None, cu_seqlens_k: Tensor | None) -> int:
    """(query, key) pairs of all heads."""
    B, H, Lq, _ = q.shape
    if cu_seqlens_q is None:
        return B * H * Lq * k.shape[2]
    return H * int((cu_seqlens_q.long().diff() * cu_seqlens_k.long().diff()).sum())


@register_flop_formula(torch.ops.attention_cpp.attention, get_raw=True)
def _(q, k, v, bias, sink, mask, alibi_slopes, key_length, query_length, offset, cu_seqlens_q, cu_seqlens_k, *_,
      out_val) -> int:
    return 2 * _pairs(q, k, cu_seqlens_q, cu_seqlens_k) * (q.shape[-1] + v.shape[-1])


@register_flop_formula(torch.ops.attention_cpp.attention_backward, get_raw=True)
def _(dout, dlse, q, k, v, out, lse, bias, sink, mask, alibi_slopes, key_length, query_length, offset, cu_seqlens_q,
      cu_seqlens_k, *_, out_val) -> int:
    return 2 * _pairs(q, k, cu_seqlens_q, cu_seqlens_k) * (3 * q.shape[-1] + 2 * v.shape[-1])


# ------------------------------------------------------------------------------------------------------------- autograd

def _run(*arguments) -> tuple[Tensor, Tensor]:
    """The forward, unrecorded: through torch's dispatcher where somebody looks on."""
    run = torch.ops.attention_cpp.attention if _is_watched(*arguments[:5]) else _forward
    return run(*arguments)


def _run_backward(*arguments) -> Sequence[Tensor | None]:
    watched = _is_watched(*arguments[2:7]) or _is_dispatched(*arguments[:2])
    return (torch.ops.attention_cpp.attention_backward if watched else _backward)(*arguments)


def _is_dispatched(*upstreams: Tensor | None) -> bool:
    """Whether upstream gradients have to go through torch's dispatcher; is_grads_batched is one reason."""
    return _is_watched(*upstreams) or any([
        upstream is not None and is_legacy_batchedtensor(upstream) for upstream in upstreams])


def _save(ctx, inputs, output) -> None:
    """Keeps a call: its tensors as torch wants to have them kept, the rest as it is."""
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


def _kept(ctx, out: Tensor, dropout: float) -> Tensor:
    """Where torch does not keep the result for the backward, it may be changed in place: then a copy is kept."""
    return out.clone() if dropout > 0 or ctx.needs_input_grad[3] else out


def _save_attention(ctx, inputs, output) -> None:
    out, lse = output
    _save(ctx, inputs, (_kept(ctx, out, inputs[-2]), lse))


def _restore(ctx) -> list:
    """The inputs of a kept call, and its outputs after them."""
    arguments = list(ctx.rest)
    for index, tensor in zip(ctx.places, ctx.saved_tensors):
        arguments[index] = tensor
    return arguments


def _pull(dout, dlse, q, k, v, out, lse, options, wanted) -> list[Tensor | None]:
    """The gradients of q, k, v, bias and sink."""
    if dout is None and dlse is None:
        return [None] * len(_GRADIENTS)
    if dout is None:
        dout = torch.zeros_like(out)
    # Recorded where a second derivative may be wanted: create_graph=True, and all transforms.
    run = _Gradient.apply if torch.is_grad_enabled() or _is_transformed() else _run_backward
    gradients = run(dout, dlse, q, k, v, out, lse, *options, wanted)
    return [gradient if is_wanted else None for gradient, is_wanted in zip(gradients, wanted)]


def _differentiate(ctx, dout, dlse):
    q, k, v, *options, out, lse = _restore(ctx)
    gradients = _pull(dout, dlse, q, k, v, out, lse, options, list(ctx.needs_input_grad[:5]))
    return (*gradients, *[None] * (len(ctx.needs_input_grad) - len(gradients)))


def _tangent(ctx, *tangents):
    q, k, v, bias, sink, *rest, _, _ = _restore(ctx)
    return tangents_of(lambda *sources: composite(*sources, *rest), (q, k, v, bias, sink), tangents)


class _Attention(torch.autograd.Function):
    """The operator with all its derivatives, which that of the dispatcher cannot have."""

    forward = staticmethod(_run)
    setup_context = staticmethod(_save_attention)
    backward = staticmethod(_differentiate)
    jvp = staticmethod(_tangent)

    @staticmethod
    def vmap(info, in_dims, *arguments):
        return map_forward(_apply, info.batch_size, in_dims, arguments)


class _Recorded(torch.autograd.Function):
    """The same where no transform is at work. It saves torch the comparison of 20 arguments with a signature, which it
    makes at each call of a function that has a setup_context: 25 us."""

    @staticmethod
    def forward(ctx, q, k, v, bias, sink, rest):
        out, lse = _run(q, k, v, bias, sink, *rest)
        tensors = [option for option in rest if isinstance(option, Tensor)]
        ctx.is_tensor = [isinstance(option, Tensor) for option in rest] if tensors else None
        ctx.rest = [None if isinstance(option, Tensor) else option for option in rest] if tensors else rest
        ctx.save_for_backward(q, k, v, bias, sink, _kept(ctx, out, rest[-2]), lse, *tensors)
        ctx.expanded = _expanded(k, v)
        ctx.set_materialize_grads(False)
        return out, lse

    @staticmethod
    def backward(ctx, dout, dlse):
        q, k, v, bias, sink, out, lse, *tensors = ctx.saved_tensors
        rest = ctx.rest
        if tensors:
            left = iter(tensors)
            rest = [next(left) if is_tensor else option for option, is_tensor in zip(rest, ctx.is_tensor)]
        if dout is not None and not torch.is_grad_enabled() and not _is_transformed() and not (
                _is_dispatched(dout, dlse)) and _adds_up(ctx, k, v):
            return (*_backward_of(dout, dlse, q, k, v, out, lse, bias, sink, ctx.needs_input_grad[:5],
                                  _options(bias, sink, *rest), True), None)
        return (*_pull(dout, dlse, q, k, v, out, lse, (bias, sink, *rest), list(ctx.needs_input_grad[:5])), None)


def _of_gradient(ctx):
    """The gradient of a kept call as a function of (dout, dlse, q, k, v, bias, sink), and these."""
    dout, dlse, q, k, v, _, _, bias, sink, *rest, wanted = _restore(ctx)[:-5]
    return (lambda *sources: gradient(*sources, wanted, *rest)), (dout, dlse, q, k, v, bias, sink)


def _differentiate_twice(ctx, *doubles):
    function, sources = _of_gradient(ctx)
    d_dout, d_dlse, d_q, d_k, d_v, d_bias, d_sink = cotangents_of(function, sources, doubles)
    results = (d_dout, d_dlse, d_q, d_k, d_v, None, None, d_bias, d_sink)
    return (*results, *[None] * (len(ctx.needs_input_grad) - len(results)))


def _tangent_of_gradient(ctx, d_dout, d_dlse, d_q, d_k, d_v, d_out, d_lse, d_bias, d_sink, *_):
    return tangents_of(*_of_gradient(ctx), (d_dout, d_dlse, d_q, d_k, d_v, d_bias, d_sink))


class _Gradient(torch.autograd.Function):
    """(dq, dk, dv, dbias, dsink), which has derivatives itself."""

    setup_context = staticmethod(_save)
    backward = staticmethod(_differentiate_twice)
    jvp = staticmethod(_tangent_of_gradient)

    @staticmethod
    def forward(*arguments):
        return _filled(_run_backward(*arguments), arguments[2])

    @staticmethod
    def vmap(info, in_dims, *arguments):
        return map_backward(_Gradient.apply, info.batch_size, in_dims, arguments)


torch.library.register_autograd("attention_cpp::attention", _differentiate, setup_context=_save_attention, lib=_library)
torch.library.register_autograd("attention_cpp::attention_backward", _differentiate_twice, setup_context=_save,
                                lib=_library)


# ------------------------------------------------------------------------------------------------------------ the entry

def autocast(*tensors: Tensor | None) -> Sequence[Tensor | None]:
    """As torch.autocast, where it is on, has the arguments of attention: floating ones but those of float64 lower."""
    if not torch.is_autocast_enabled("cpu"):
        return tensors
    dtype = torch.get_autocast_dtype("cpu")
    return [tensor.to(dtype) if tensor is not None and tensor.is_floating_point() and tensor.dtype != torch.float64
            else tensor for tensor in tensors]


def attention(q: Tensor, k: Tensor, v: Tensor, **options: Unpack[Options]) -> tuple[Tensor, Tensor]:
    """attention_cpp.attention() on torch tensors q [B, H, Lq, D], k, v: (out, lse), with gradients."""
    out, lse = _apply(q, k, v, *in_order(options))
    if _observers and not torch.compiler.is_compiling() and not _is_transformed():
        for observer in _observers:
            observer(q, k, lse, options)
    return out, lse


Observer = Callable[[Tensor, Tensor, Tensor, Options], None]
_observers: tuple[Observer, ...] = ()


def is_observed() -> bool:
    """Whether an observer sees the calls."""
    return bool(_observers)


@contextlib.contextmanager
def observed(observer: Observer | None) -> Iterator[None]:
    """Lets `observer`, beside those that do, see (q, k, lse, options) of every call that is neither compiled nor
    transformed; None: nobody sees them."""
    global _observers
    before = _observers
    _observers = () if observer is None else (*before, observer)
    try:
        yield
    finally:
        _observers = before


def _apply(*arguments) -> tuple[Tensor, Tensor]:
    if _is_transformed():  # where torch compiles a transform, or nests forward mode, it has no place for an operator
        run = composite if torch.compiler.is_compiling() or _is_forward_twice() else _Attention.apply
    elif torch.compiler.is_compiling():
        run = torch.ops.attention_cpp.attention
    elif torch.is_grad_enabled() and any([tensor is not None and tensor.requires_grad for tensor in arguments[:5]]):
        return _Recorded.apply(*arguments[:5], arguments[5:])
    else:
        run = _run
    return run(*arguments)


def _is_transformed() -> bool:
    """Whether torch.func or forward-mode differentiation is at work."""
    return torch._C._are_functorch_transforms_active() or forward_ad._current_level >= 0


def _is_forward_twice() -> bool:
    return sum(level.key() == TransformType.Jvp for level in get_interpreter_stack() or ()) > 1


PLAIN = (*_DENSE, type(None))


def _is_observed() -> bool:
    """Whether a compiler, a tracer, a mode or the profiler looks on."""
    return (torch.compiler.is_compiling() or torch._C._len_torch_dispatch_stack() > 0 or torch._C._is_tracing()
            or torch.autograd._profiler_enabled())


def _is_watched(*tensors: Tensor | None) -> bool:
    """The same, or a tensor is one that wraps another, or a negated view, which torch's dispatcher makes real."""
    return _is_observed() or any([type(tensor) not in PLAIN or tensor is not None and tensor.is_neg()
                                  for tensor in tensors])


# ------------------------------------------------------------------------------------------------- the call most made

def is_simple(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, is_grouped: bool) -> bool:
    """Whether simple_attention() may serve a call: dense tensors that fit together, and nobody looks on."""
    return (not _observers and not _is_observed() and type(q) in _DENSE and not q.is_nested
            and _core.fit_together(q, k, v, mask, is_grouped) and not (q.is_neg() or k.is_neg() or v.is_neg())
            and (mask is None or not (mask.requires_grad or mask.is_neg()))
            and not _is_transformed() and not torch.is_autocast_enabled("cpu"))


def attention_output(q: Tensor, k: Tensor, v: Tensor, *, mask: Tensor | None = None, bias: Tensor | None = None,
                     sink: Tensor | None = None, dropout: float = 0.0, **options) -> Tensor:
    """out of attention(), by the shortest way."""
    either = bias if mask is None else mask
    if (dropout == 0 and sink is None and (mask is None or bias is None) and type(either) in PLAIN
            and is_simple(q, k, v, either, True)):
        given = {name: value for name, value in options.items() if value is not None}
        return simple_attention(q, k, v, either, given)
    return attention(q, k, v, mask=mask, bias=bias, sink=sink, dropout=dropout, **options)[0]


def simple_attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, options: Mapping[str, Any],
                     with_lse: bool = False) -> Any:
    """out of attention() where is_simple(), or (out, lse), at a third of its cost; with gradients of q, k and v.

    mask is boolean, or a bias; options are those of the extension that are no mask, bias, sink or dropout.
    """
    if torch.is_grad_enabled() and (q.requires_grad or k.requires_grad or v.requires_grad):
        return _Simple.apply(q, k, v, mask, options, with_lse)
    if with_lse:
        out, lse = _new_results(q, v)
        _core.forward(q, k, v, out, lse, _with_mask(options, mask))
        return out, lse
    out = _new_out(q, v)
    _core.forward(q, k, v, out, None, _with_mask(options, mask))
    return out


def _with_mask(options: Mapping[str, Any], mask: Tensor | None) -> Mapping[str, Any]:
    return options if mask is None else {**options, "mask" if mask.dtype == torch.bool else "bias": mask}


class _Simple(torch.autograd.Function):
    """The same, recorded."""

    @staticmethod
    def forward(ctx, q, k, v, mask, options, with_lse):
        out, lse = _new_results(q, v)
        _core.forward(q, k, v, out, lse, _with_mask(options, mask))
        ctx.save_for_backward(q, k, v, out, lse, mask)
        ctx.options, ctx.expanded = options, _expanded(k, v)
        if not with_lse:
            return out
        ctx.set_materialize_grads(False)
        return out, lse

    @staticmethod
    def backward(ctx, dout, dlse=None):
        q, k, v, out, lse, mask = ctx.saved_tensors
        wanted, options = ctx.needs_input_grad[:3], _with_mask(ctx.options, mask)
        if dout is None or torch.is_grad_enabled() or _is_transformed() or _is_dispatched(dout, dlse):
            gradients = _pull(dout, dlse, q, k, v, out, lse, in_order(options), [*wanted, False, False])[:3]
        else:
            gradients = _backward_of(dout, dlse, q, k, v, out, lse, None, None, wanted, options,
                                     _adds_up(ctx, k, v))[:3]
        return (*gradients, None, None, None)


# ------------------------------------------------------------------------------------------------------------ threads

def _openmp_of_torch() -> str | None:
    """The path of the OpenMP runtime that torch runs on."""
    try:
        with open("/proc/self/maps") as maps:
            paths = {line.split(maxsplit=5)[5].strip() for line in maps if "omp" in line and ".so" in line}
    except OSError:
        return None
    home = os.path.realpath(os.path.dirname(torch.__file__))
    names = ("libgomp", "libiomp", "libomp")
    found = [path for path in sorted(paths) if os.path.basename(path).startswith(names)]
    return next((path for path in found if path.startswith(home)), found[0] if len(found) == 1 else None)


def share_threads(share: bool = True) -> bool:
    """Lets torch's threads do the library's work; False: the library's own. Returns whether they do.

    Both at a time would fight for the cores, since torch's workers spin for a while after each of its operations.
    """
    path = _openmp_of_torch() if share else None
    if path is None:
        _core.use_openmp_team(0, 0)
        return False
    runtime = ctypes.CDLL(path)
    address = [ctypes.cast(getattr(runtime, name), ctypes.c_void_p).value
               for name in ("GOMP_parallel", "omp_get_max_threads")]
    _core.use_openmp_team(*address)
    return True


share_threads()
