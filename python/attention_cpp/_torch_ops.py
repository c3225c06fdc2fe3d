"""torch custom operators over the library, with autograd: what every face that takes torch tensors calls.

`attention()` records gradients of q, k, v, a floating bias and a sink, and through lse. In eager mode it calls the
extension directly; under torch.compile and modes it goes through torch.ops.attention_cpp.attention and
attention_backward, which a compiler sees as one node each. Second derivatives and those of forward mode are computed
with n x n memory, in plain torch operations (`_torch_math`).
"""

from __future__ import annotations

import ctypes
import os
from typing import Sequence

import torch
from torch import Tensor
from torch._C._functorch import TransformType, get_interpreter_stack, is_legacy_batchedtensor
from torch.autograd import forward_ad
from torch.utils.flop_counter import register_flop_formula

from . import _core
from ._torch_math import composite, cotangents_of, gradient, tangents_of
from ._torch_vmap import map_backward, map_forward

DTYPES = {torch.float32: "float32", torch.float64: "float64", torch.bfloat16: "bfloat16", torch.float16: "float16",
          torch.bool: "boolean", torch.int32: "int32", torch.int64: "int64"}

_OPTIONS = ("Tensor? bias, Tensor? sink, Tensor? mask, Tensor? alibi_slopes, Tensor? key_length, Tensor? query_length, "
            "Tensor? offset, Tensor? cu_query, Tensor? cu_key, float? scale, float softcap, bool causal, "
            "int window_left, int window_right, str? alignment, float dropout, Tensor? seed")

_library = torch.library.Library("attention_cpp", "DEF")
_library.define(f"attention(Tensor q, Tensor k, Tensor v, {_OPTIONS}) -> (Tensor, Tensor)")
_library.define(f"attention_backward(Tensor dout, Tensor? dlse, Tensor q, Tensor k, Tensor v, Tensor out, Tensor lse, "
                f"{_OPTIONS}, bool[] wanted) -> (Tensor, Tensor, Tensor, Tensor, Tensor)")


# ------------------------------------------------------------------------------------------------------------ the calls

def _raw(tensor: Tensor | None):
    """A tensor as the extension takes it, at a tenth of the cost of DLPack."""
    if tensor is None:
        return None
    return tensor.data_ptr(), DTYPES.get(tensor.dtype, str(tensor.dtype)), tensor.shape, tensor.stride()


def _options(bias, sink, mask, alibi_slopes, key_length, query_length, offset, cu_query, cu_key, scale, softcap, causal,
             window_left, window_right, alignment, dropout, seed) -> dict:
    options = {"scale": scale, "softcap": softcap, "causal": causal, "window": (window_left, window_right),
               "alignment": alignment, "dropout": dropout}
    for name, tensor in (("bias", bias), ("sink", sink), ("mask", mask), ("alibi_slopes", alibi_slopes),
                         ("key_length", key_length), ("query_length", query_length), ("offset", offset),
                         ("cu_query", cu_query), ("cu_key", cu_key)):
        if tensor is not None:
            options[name] = _raw(tensor)
    if seed is not None:
        options["seed"] = int(seed)
    return options


def _lse_dtype(q: Tensor) -> torch.dtype:
    return torch.float64 if q.dtype == torch.float64 else torch.float32


def _new_results(q: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """out [B, H, Lq, Dv], in memory in the order of q's axes where Dv = D, as torch does; lse [B, H, Lq]."""
    B, H, Lq, D = q.shape
    Dv = v.shape[-1]
    out = torch.empty_like(q) if Dv == D else q.new_empty((B, H, Lq, Dv))
    return out, q.new_empty((B, H, Lq), dtype=_lse_dtype(q))


def _forward(q: Tensor, k: Tensor, v: Tensor, *options) -> tuple[Tensor, Tensor]:
    out, lse = _new_results(q, v)
    _core.forward(_raw(q), _raw(k), _raw(v), _raw(out), _raw(lse), _options(*options))
    return out, lse


def _new_gradients(q, k, v, bias, sink, wanted) -> list[Tensor]:
    sources = (q, k, v, bias, sink)
    return [torch.empty_like(source) if source is not None and is_wanted else q.new_empty(0)
            for source, is_wanted in zip(sources, wanted)]


def _backward(dout, dlse, q, k, v, out, lse, *options) -> list[Tensor]:
    *options, wanted = options
    bias, sink = options[:2]
    results = _new_gradients(q, k, v, bias, sink, wanted)
    names = ("dq", "dk", "dv", "dbias", "dsink")
    gradients = {name: result for name, result, is_wanted in zip(names, results, wanted) if is_wanted}
    own_sink = gradients.get("dsink")
    if own_sink is not None and own_sink.dtype != lse.dtype:
        gradients["dsink"] = torch.empty_like(own_sink, dtype=lse.dtype)
    _core.backward(_raw(q), _raw(k), _raw(v), _raw(out), _raw(lse), _raw(dout), _raw(dlse),
                   {name: _raw(tensor) for name, tensor in gradients.items()}, _options(*options))
    if own_sink is not None and gradients["dsink"] is not own_sink:
        own_sink.copy_(gradients["dsink"])
    return results


_library.impl("attention", _forward, "CPU")
_library.impl("attention_backward", _backward, "CPU")


@torch.library.register_fake("attention_cpp::attention", lib=_library)
def _(q, k, v, *options):
    return _new_results(q, v)


@torch.library.register_fake("attention_cpp::attention_backward", lib=_library)
def _(dout, dlse, q, k, v, out, lse, *options):
    *options, wanted = options
    return _new_gradients(q, k, v, options[0], options[1], wanted)


# ---------------------------------------------------------------------------------------- what torch's counter counts

def _pairs(q: Tensor, k: Tensor, cu_query: Tensor | None, cu_key: Tensor | None) -> int:
    """(query, key) pairs of all heads."""
    B, H, Lq, _ = q.shape
    if cu_query is None:
        return B * H * Lq * k.shape[2]
    return H * int((cu_query.long().diff() * cu_key.long().diff()).sum())


@register_flop_formula(torch.ops.attention_cpp.attention, get_raw=True)
def _(q, k, v, bias, sink, mask, alibi_slopes, key_length, query_length, offset, cu_query, cu_key, *_, out_val) -> int:
    return 2 * _pairs(q, k, cu_query, cu_key) * (q.shape[-1] + v.shape[-1])


@register_flop_formula(torch.ops.attention_cpp.attention_backward, get_raw=True)
def _(dout, dlse, q, k, v, out, lse, bias, sink, mask, alibi_slopes, key_length, query_length, offset, cu_query, cu_key,
      *_, out_val) -> int:
    return 2 * _pairs(q, k, cu_query, cu_key) * (3 * q.shape[-1] + 2 * v.shape[-1])


# ------------------------------------------------------------------------------------------------------------- autograd

def _run(*arguments) -> tuple[Tensor, Tensor]:
    """The forward, unrecorded: through torch's dispatcher where somebody looks on."""
    run = torch.ops.attention_cpp.attention if _is_watched(*arguments[:5]) else _forward
    return run(*arguments)


def _run_backward(*arguments) -> tuple[Tensor, ...]:
    watched = _is_watched(*arguments[:7]) or any(
        upstream is not None and is_legacy_batchedtensor(upstream) for upstream in arguments[:2])  # is_grads_batched
    return tuple((torch.ops.attention_cpp.attention_backward if watched else _backward)(*arguments))


def _save(ctx, inputs, output) -> None:
    """Keeps a call: its tensors as torch wants to have them kept, the rest as it is."""
    arguments = (*inputs, *output)
    ctx.rest = [None if isinstance(value, Tensor) else value for value in arguments]
    tensors = [value for value in arguments if isinstance(value, Tensor)]
    ctx.places = [index for index, value in enumerate(arguments) if isinstance(value, Tensor)]
    ctx.save_for_backward(*tensors)
    ctx.save_for_forward(*tensors)
    ctx.set_materialize_grads(False)


def _save_attention(ctx, inputs, output) -> None:
    """Where torch does not keep the result for the backward, it may be changed in place: then a copy is kept."""
    out, lse = output
    dropout = inputs[-2]
    _save(ctx, inputs, (out.clone() if dropout > 0 or ctx.needs_input_grad[3] else out, lse))


def _restore(ctx) -> list:
    """The inputs of a kept call, and its outputs after them."""
    arguments = list(ctx.rest)
    for index, tensor in zip(ctx.places, ctx.saved_tensors):
        arguments[index] = tensor
    return arguments


def _differentiate(ctx, dout, dlse):
    q, k, v, *options, out, lse = _restore(ctx)
    nothing = [None] * (3 + len(options))
    if dout is None and dlse is None:
        return tuple(nothing)
    if dout is None:
        dout = torch.zeros_like(out)
    wanted = list(ctx.needs_input_grad[:5])
    # Recorded where a second derivative may be wanted: create_graph=True, and all transforms.
    run = _Gradient.apply if torch.is_grad_enabled() or _is_transformed() else _run_backward
    gradients = run(dout, dlse, q, k, v, out, lse, *options, wanted)
    results = [gradient if is_wanted else None for gradient, is_wanted in zip(gradients, wanted)]
    return (*results, *nothing[5:])


def _tangent(ctx, *tangents):
    q, k, v, bias, sink, *rest, _, _ = _restore(ctx)
    return tangents_of(lambda *sources: composite(*sources, *rest), (q, k, v, bias, sink), tangents)


class _Attention(torch.autograd.Function):
    """The operator with all its derivatives: what the one that is registered cannot have, or has 100 us slower."""

    forward = staticmethod(_run)
    setup_context = staticmethod(_save_attention)
    backward = staticmethod(_differentiate)
    jvp = staticmethod(_tangent)

    @staticmethod
    def vmap(info, in_dims, *arguments):
        return map_forward(_apply, info.batch_size, in_dims, arguments)


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

    forward = staticmethod(_run_backward)
    setup_context = staticmethod(_save)
    backward = staticmethod(_differentiate_twice)
    jvp = staticmethod(_tangent_of_gradient)

    @staticmethod
    def vmap(info, in_dims, *arguments):
        return map_backward(_Gradient.apply, info.batch_size, in_dims, arguments)


torch.library.register_autograd("attention_cpp::attention", _differentiate, setup_context=_save_attention, lib=_library)
torch.library.register_autograd("attention_cpp::attention_backward", _differentiate_twice, setup_context=_save,
                                lib=_library)


# ------------------------------------------------------------------------------------------------------------ the entry

def new_seed() -> Tensor:
    """From torch's own generator, so that torch.manual_seed() decides and activation checkpointing repeats it."""
    return torch.randint(2**62, ())


def autocast(*tensors: Tensor | None) -> Sequence[Tensor | None]:
    """As torch.autocast, where it is on, has the arguments of attention: floating ones but those of float64 lower."""
    if not torch.is_autocast_enabled("cpu"):
        return tensors
    dtype = torch.get_autocast_dtype("cpu")
    return [tensor.to(dtype) if tensor is not None and tensor.is_floating_point() and tensor.dtype != torch.float64
            else tensor for tensor in tensors]


def attention(q: Tensor, k: Tensor, v: Tensor, *, bias=None, sink=None, mask=None, alibi_slopes=None, key_length=None,
              query_length=None, offset=None, cu_query=None, cu_key=None, scale=None, softcap=0.0, causal=False,
              window=(-1, -1), alignment=None, dropout=0.0, seed=None) -> tuple[Tensor, Tensor]:
    """attention_cpp.attention() on torch tensors q [B, H, Lq, D], k, v: (out, lse), with gradients."""
    if dropout > 0 and seed is None:
        seed = new_seed()
    return _apply(q, k, v, bias, sink, mask, alibi_slopes, key_length, query_length, offset, cu_query, cu_key, scale,
                  softcap, causal, window[0], window[1], alignment, dropout, seed)


def _apply(*arguments) -> tuple[Tensor, Tensor]:
    if _is_transformed():  # where torch compiles a transform, or nests forward mode, it has no place for an operator
        run = composite if torch.compiler.is_compiling() or _is_forward_twice() else _Attention.apply
    elif torch.compiler.is_compiling():
        run = torch.ops.attention_cpp.attention
    elif torch.is_grad_enabled() and any(tensor is not None and tensor.requires_grad for tensor in arguments[:5]):
        run = _Attention.apply
    else:
        run = _run
    return run(*arguments)


def _is_transformed() -> bool:
    """Whether torch.func or forward-mode differentiation is at work."""
    return torch._C._are_functorch_transforms_active() or forward_ad._current_level >= 0


def _is_forward_twice() -> bool:
    return sum(level.key() == TransformType.Jvp for level in get_interpreter_stack() or ()) > 1


_PLAIN = (Tensor, torch.nn.Parameter, type(None))


def _is_watched(*tensors: Tensor | None) -> bool:
    """Whether a compiler, a tracer, a mode or the profiler looks on, or a tensor is one that wraps another."""
    return (torch.compiler.is_compiling() or torch._C._len_torch_dispatch_stack() > 0 or torch._C._is_tracing()
            or torch.autograd._profiler_enabled()
            or any(type(tensor) not in _PLAIN for tensor in tensors))


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
