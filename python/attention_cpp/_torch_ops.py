"""torch custom operators over the library, with autograd: what every face that takes torch tensors calls.

`attention()` records gradients of q, k, v, a floating bias and a sink, and through lse. In eager mode it calls the
extension directly; under torch.compile, transforms and modes it goes through torch.ops.attention_cpp.attention and
attention_backward, which a compiler sees as one node each. The second derivative is the one thing that is computed with
n x n memory, in plain torch operations (`composite`).
"""

from __future__ import annotations

import ctypes
import math
import os

import torch
from torch import Tensor

from . import _core

DTYPES = {torch.float32: "float32", torch.float64: "float64", torch.bfloat16: "bfloat16", torch.float16: "float16",
          torch.bool: "boolean", torch.int32: "int32", torch.int64: "int64"}

_OPTIONS = ("Tensor? bias, Tensor? sink, Tensor? mask, Tensor? alibi_slopes, Tensor? key_length, Tensor? query_length, "
            "Tensor? offset, Tensor? cu_query, Tensor? cu_key, float? scale, float softcap, bool causal, "
            "int window_left, int window_right, str? alignment, float dropout, Tensor? seed")
_NAMES = [part.split()[-1] for part in _OPTIONS.split(", ")]

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
    """out [B, H, Lq, Dv], in memory [B, Lq, H, Dv], as torch's own kernels leave it; lse [B, H, Lq]."""
    B, H, Lq, _ = q.shape
    out = q.new_empty((B, Lq, H, v.shape[-1])).transpose(1, 2)
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


# ------------------------------------------------------------------------------------------------------------- autograd

def _save(ctx, inputs, output):
    q, k, v, *options = inputs
    ctx.is_tensor = [isinstance(option, Tensor) for option in options]
    ctx.others = [None if is_tensor else option for option, is_tensor in zip(options, ctx.is_tensor)]
    ctx.save_for_backward(q, k, v, *output, *(option for option in options if isinstance(option, Tensor)))
    ctx.set_materialize_grads(False)


def _restore(ctx):
    q, k, v, out, lse, *tensors = ctx.saved_tensors
    tensors = iter(tensors)
    options = [next(tensors) if is_tensor else other for is_tensor, other in zip(ctx.is_tensor, ctx.others)]
    return q, k, v, out, lse, options


def _differentiate(ctx, dout, dlse):
    q, k, v, out, lse, options = _restore(ctx)
    nothing = [None] * (3 + len(options))
    if dout is None and dlse is None:
        return tuple(nothing)
    if dout is None:
        dout = torch.zeros_like(out)
    wanted = list(ctx.needs_input_grad[:5])
    # Recorded where a second derivative may be wanted (create_graph=True), and where a compiler looks on.
    backward = torch.ops.attention_cpp.attention_backward if torch.is_grad_enabled() or not _is_eager() else _backward
    gradients = backward(dout, dlse, q, k, v, out, lse, *options, wanted)
    results = [gradient if is_wanted else None for gradient, is_wanted in zip(gradients, wanted)]
    return (*results, *nothing[5:])


torch.library.register_autograd("attention_cpp::attention", _differentiate, setup_context=_save, lib=_library)


class _Recorded(torch.autograd.Function):
    """The same as the operator, without the 100 us that its way through the dispatcher takes."""

    forward = staticmethod(_forward)
    setup_context = staticmethod(_save)
    backward = staticmethod(_differentiate)


def _save_backward(ctx, inputs, output):
    ctx.arguments = [None if isinstance(value, Tensor) else value for value in inputs]
    ctx.places = [index for index, value in enumerate(inputs) if isinstance(value, Tensor)]
    ctx.save_for_backward(*(inputs[index] for index in ctx.places))
    ctx.set_materialize_grads(False)


def _differentiate_twice(ctx, *doubles):
    """The gradients of (dq, dk, dv, dbias, dsink) with respect to dout, dlse, q, k, v, bias and sink."""
    inputs = list(ctx.arguments)
    for index, tensor in zip(ctx.places, ctx.saved_tensors):
        inputs[index] = tensor
    dout, dlse, q, k, v, _, _, bias, sink, *rest, wanted = inputs
    with torch.enable_grad():
        leaves = [None if tensor is None else tensor.detach().requires_grad_() for tensor in (dout, dlse, q, k, v, bias,
                                                                                            sink)]
        dout, dlse, *of_forward = leaves
        out, lse = composite(*of_forward, *rest)
        outputs, upstream = ([out], [dout]) if dlse is None else ([out, lse], [dout, dlse])
        sources = [tensor for tensor, is_wanted in zip(of_forward, wanted) if is_wanted]
        first = torch.autograd.grad(outputs, sources, upstream, create_graph=True, allow_unused=True)
        pairs = [(gradient, double) for gradient, double in
                 zip(first, [d for d, is_wanted in zip(doubles, wanted) if is_wanted])
                 if gradient is not None and gradient.requires_grad and double is not None]
        given = [leaf for leaf in leaves if leaf is not None]
        second = torch.autograd.grad([p[0] for p in pairs], given, [p[1] for p in pairs],
                                     allow_unused=True) if pairs else [None] * len(given)
    second = iter(second)
    d_dout, d_dlse, *d_forward = [None if leaf is None else next(second) for leaf in leaves]
    results = [d_dout, d_dlse, *d_forward[:3], None, None, *d_forward[3:]]
    return (*results, *([None] * (len(inputs) - len(results))))


torch.library.register_autograd("attention_cpp::attention_backward", _differentiate_twice,
                                setup_context=_save_backward, lib=_library)


# -------------------------------------------------------------------------------------------------- with n x n memory

def _places(count, starts):
    """Of each of `count` packed rows its sequence, the row's place in it, and whether it belongs to one at all."""
    starts = starts.long()
    row = torch.arange(count)
    sequence = torch.bucketize(row, starts, right=True) - 1
    inside = (sequence >= 0) & (sequence < len(starts) - 1)
    sequence = sequence.clamp(0, len(starts) - 2)
    return sequence, row - starts[sequence], inside


def _allowed(q, k, mask, key_length, query_length, offset, cu_query, cu_key, causal, window_left, window_right,
             alignment):
    """Boolean [B|1, H|1, Lq, Lk], and the distance p_i - j for ALiBi."""
    B, _, Lq, _ = q.shape
    Lk = k.shape[2]
    if cu_query is None:
        i, j = torch.arange(Lq).view(1, 1, Lq, 1), torch.arange(Lk).view(1, 1, 1, Lk)
        counts, lengths = torch.full((B,), Lq), torch.full((B,), Lk)
        allowed = torch.ones(1, 1, Lq, Lk, dtype=torch.bool)
        of_rows = of_keys = torch.arange(B).view(B, 1, 1, 1)
    else:
        sequence, place, inside = _places(Lq, cu_query)
        key_sequence, key_place, key_inside = _places(Lk, cu_key)
        of_rows, i = sequence.view(1, 1, Lq, 1), place.view(1, 1, Lq, 1)
        of_keys, j = key_sequence.view(1, 1, 1, Lk), key_place.view(1, 1, 1, Lk)
        counts, lengths = cu_query.long().diff(), cu_key.long().diff()
        allowed = (of_rows == of_keys) & inside.view(1, 1, Lq, 1) & key_inside.view(1, 1, 1, Lk)
    if key_length is not None:
        lengths = torch.minimum(lengths, key_length.long())
        allowed = allowed & (j < lengths[of_keys])
    p = i
    if alignment == "bottom_right":
        p = i + (lengths - (counts if query_length is None else query_length.long()))[of_rows]
    elif alignment == "offset":
        p = i + offset.long()[of_rows]
    if causal:
        allowed = allowed & (j <= p)
    if window_left >= 0:
        allowed = allowed & (j >= p - window_left)
    if window_right >= 0:
        allowed = allowed & (j <= p + window_right)
    return (allowed if mask is None else allowed & mask), p - j


def composite(q, k, v, bias, sink, mask, alibi_slopes, key_length, query_length, offset, cu_query, cu_key, scale,
              softcap, causal, window_left, window_right, alignment, dropout, seed) -> tuple[Tensor, Tensor]:
    """The operator as plain differentiable torch operations, which store n x n: for second derivatives and tests."""
    B, H, Lq, D = q.shape
    Lk = k.shape[2]
    group = H // max(k.shape[1], 1)
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    s = q @ k.transpose(-1, -2) * (1 / math.sqrt(D) if scale is None else scale)
    if softcap > 0:
        s = softcap * torch.tanh(s / softcap)
    allowed, distance = _allowed(q, k, mask, key_length, query_length, offset, cu_query, cu_key, causal, window_left,
                                 window_right, alignment)
    if bias is not None:
        s = s + bias
    if alibi_slopes is not None:
        s = s - alibi_slopes.to(s.dtype).view(1, H, 1, 1) * distance.abs()
    s = s.masked_fill(~allowed, -math.inf)
    if sink is not None:
        s = torch.cat([s, sink.to(s.dtype).view(1, H, 1, 1).expand(B, H, Lq, 1)], -1)
    lse = s.logsumexp(-1, keepdim=True)
    p = torch.where(torch.isinf(s), 0.0, torch.exp(s - lse))[..., :Lk]
    if dropout > 0:
        keep = torch.empty(B, H, Lq, Lk, dtype=torch.bool)
        _core.dropout_mask(int(seed), dropout, _raw(keep), 0, 0)
        p = p * keep / (1 - dropout)
    return p @ v, lse.squeeze(-1)


# ------------------------------------------------------------------------------------------------------------ the entry

def new_seed() -> Tensor:
    """From torch's own generator, so that torch.manual_seed() decides and activation checkpointing repeats it."""
    return torch.randint(2**62, ())


def attention(q: Tensor, k: Tensor, v: Tensor, *, bias=None, sink=None, mask=None, alibi_slopes=None, key_length=None,
              query_length=None, offset=None, cu_query=None, cu_key=None, scale=None, softcap=0.0, causal=False,
              window=(-1, -1), alignment=None, dropout=0.0, seed=None) -> tuple[Tensor, Tensor]:
    """attention_cpp.attention() on torch tensors q [B, H, Lq, D], k, v: (out, lse), with gradients."""
    if dropout > 0 and seed is None:
        seed = new_seed()
    arguments = (q, k, v, bias, sink, mask, alibi_slopes, key_length, query_length, offset, cu_query, cu_key, scale,
                 softcap, causal, window[0], window[1], alignment, dropout, seed)
    if not _is_eager() or any(type(tensor) not in _PLAIN for tensor in (q, k, v, bias, sink)):
        return torch.ops.attention_cpp.attention(*arguments)
    if torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in (q, k, v, bias, sink)):
        return _Recorded.apply(*arguments)
    return _forward(*arguments)


_PLAIN = (Tensor, torch.nn.Parameter, type(None))


def _is_eager() -> bool:
    """True where no compiler, tracer, transform or mode looks on."""
    return not (torch.compiler.is_compiling() or torch._C._len_torch_dispatch_stack() or torch._C._is_tracing()
                or torch._C._functorch.peek_interpreter_stack())


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
