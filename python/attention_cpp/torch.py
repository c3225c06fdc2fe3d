"""torch's scaled_dot_product_attention on the CPU: same signature and meaning, one fused path for every argument.

    >>> import torch, attention_cpp.torch
    >>> attention_cpp.torch.enable()        # torch.nn.functional's own, and so every model that calls it

Dropout, a mask that requires a gradient, Dv != D and grouped heads with a mask stay fused, with O(n) memory; in torch
they fall back to n x n. Gradients of query, key, value and of a floating mask; higher derivatives and forward mode too,
with n x n memory. torch's threads do the work.

`_why_not` decides whether the library or torch computes a call; what the library refuses is left to torch too.
explain() tells, enable(warn=True) warns and enable(strict=True) raises of every call that is torch's.
"""

from __future__ import annotations

import contextlib
import warnings
from typing import Any, Callable, Iterator, NamedTuple

import torch
from torch import Tensor
from torch.nn.attention.bias import CausalBias, CausalVariant
from torch.overrides import handle_torch_function, has_torch_function_variadic
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from . import _torch_ops, _torch_prefix
from ._core import Error
from ._flex import explain_flex_attention, flex_attention
from ._flex import torchs as _original_flex
from ._operator import Plan, of_all
from ._operator import _plan
from ._torch_attention import attention
from ._torch_left import Wishes, set_wishes, tell
from ._torch_masks import add_mask, count_unread, is_worth_reading, mask_counts
from ._torch_modules import FusedModules
from ._torch_ops import PLAIN, autocast, share_threads
from ._torch_options import in_order
from ._torch_statistics import attention_statistics
from ._torch_structure import described
from ._torch_varlen import VarlenKernels
from ._torch_weights import attention_weights

__all__ = ["attention", "attention_statistics", "attention_weights", "disable", "enable", "enabled", "explain",
           "explain_flex_attention", "flex_attention", "mask_counts", "scaled_dot_product_attention", "share_threads"]

_FLOATING = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
_NUMBERS, _SCALES, _MASKS = (int, float), (float, type(None)), (Tensor, type(None))  # of simple calls
_CAUSAL = {"causal": True, "alignment": "top_left"}
_original = torch.nn.functional.scaled_dot_product_attention
_bias_function = CausalBias.__dict__["__torch_function__"]


# ------------------------------------------------------------------------------------------------------ who computes it

def _is_packed(tensor: Any) -> bool:
    """Whether it is a nested tensor [B, H, L, D] of sequences without holes."""
    return (tensor.layout is torch.jagged and tensor.dim() == 4 and isinstance(tensor.shape[2], torch.SymInt)
            and tensor.lengths() is None and not torch.compiler.is_compiling())


def _why_not_tensor(name: str, tensor: Any) -> str:
    if not isinstance(tensor, Tensor):
        return f"{name} is not a tensor"
    if type(tensor) not in PLAIN and is_traceable_wrapper_subclass(tensor) and not tensor.is_nested:
        return f"{name} is a {type(tensor).__name__}"
    if tensor.layout is not torch.strided and not _is_packed(tensor):
        return f"{name} is {tensor.layout}"
    if tensor.is_nested and not _is_packed(tensor):
        return f"{name} is nested"
    if not tensor.is_cpu:
        return f"{name} is on {tensor.device}"
    if tensor.dim() < 2:
        return f"{name} has fewer than 2 axes"
    return ""


def _why_not(query: Any, key: Any, value: Any, attn_mask: Any, dropout_p: Any, is_causal: Any, scale: Any) -> str:
    """Why this call is torch's to compute; empty if it is ours, as far as can be seen before the library checks it."""
    if torch.jit.is_tracing():
        return "torch.jit records the call for other programs"
    if torch.compiler.is_exporting():
        return "torch.export records the call for other programs"
    for name, tensor in (("query", query), ("key", key), ("value", value)):
        if reason := _why_not_tensor(name, tensor):
            return reason
        if tensor.dtype not in _FLOATING:
            return f"{name} is {tensor.dtype}"
    if attn_mask is not None and not isinstance(attn_mask, CausalBias):
        if reason := _why_not_tensor("attn_mask", attn_mask):
            return reason
        if attn_mask.dtype not in (torch.bool, torch.float32, query.dtype):
            return f"attn_mask is {attn_mask.dtype}"
    if len({tensor.is_nested for tensor in (query, key, value)}) > 1 or query.is_nested and attn_mask is not None:
        return "nested and dense tensors are mixed"
    if query.shape[-1] > 1024 or value.shape[-1] > 1024:
        return "heads are wider than 1024"
    if not (isinstance(dropout_p, (int, float)) and 0 <= dropout_p < 1):
        return f"dropout_p is {dropout_p!r}"
    if type(is_causal) is not bool:
        return f"is_causal is {is_causal!r}"
    if scale is not None and not isinstance(scale, (int, float, torch.SymFloat)):
        return f"scale is {scale!r}"
    return ""


def _four_axes(tensor: Tensor, batch: torch.Size) -> Tensor:
    """[..., H, L, D] as [B, H, L, D]: missing axes are 1, further ones are one batch."""
    while tensor.dim() < 4:
        tensor = tensor.unsqueeze(0)
    if len(batch) > 1:
        tensor = tensor.expand(*batch, *tensor.shape[-3:]).flatten(0, -4)
    return tensor


def _repeated(tensor: Tensor, heads: int) -> Tensor:
    """[..., Hk, S, D] with as many heads as the query."""
    if tensor.shape[-3] == 0 or heads % tensor.shape[-3]:
        raise Error(f"[scaled_dot_product_attention] {heads} query heads cannot share {tensor.shape[-3]}")
    return tensor.repeat_interleave(heads // tensor.shape[-3], -3)


def _problem(query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None, is_causal: bool, enable_gqa: bool):
    """The arguments as q, k, v [B, H, L, D] and options."""
    if isinstance(attn_mask, CausalBias) and is_causal:
        raise Error("[scaled_dot_product_attention] a causal bias and is_causal must not both be given")
    options: dict[str, Any] = {}
    if is_causal:
        options = {"causal": True, "alignment": "top_left"}
    elif isinstance(attn_mask, CausalBias):
        lower = attn_mask.variant == CausalVariant.LOWER_RIGHT
        options = {"causal": True, "alignment": "bottom_right" if lower else "top_left"}
        attn_mask = None
    if query.is_nested:
        if not torch.equal(key.offsets(), value.offsets()):
            raise Error("[scaled_dot_product_attention] key and value are nested differently")
        options.update(cu_seqlens_q=query.offsets(), cu_seqlens_k=key.offsets())
        query, key, value = (tensor.values().unsqueeze(0) for tensor in (query, key, value))
    query, key, value, attn_mask = autocast(query, key, value, attn_mask)
    if enable_gqa and min(query.dim(), key.dim(), value.dim()) > 2 and key.shape[-3] != value.shape[-3]:
        key, value = (_repeated(tensor, query.shape[-3]) for tensor in (key, value))

    if query.dim() == key.dim() == value.dim() == 4 and query.shape[0] == key.shape[0] == value.shape[0] and (
            enable_gqa or query.shape[1] == key.shape[1] == value.shape[1]):
        if attn_mask is not None:
            add_mask(options, _four_axes(attn_mask, torch.Size()), query, key, prefixes=True)
        return query, key, value, options, query.shape[:1]

    heads = [tensor.shape[-3] if tensor.dim() > 2 else 1 for tensor in (query, key, value)]
    if not enable_gqa and len(set(heads)) > 1:  # as torch broadcasts
        most = max(heads)
        if set(heads) != {1, most}:
            raise Error(f"[scaled_dot_product_attention] query, key and value have {heads} heads: without enable_gqa "
                        "they must be equal")
        query, key, value = (tensor.expand(*tensor.shape[:-3], most, -1, -1) for tensor in (query, key, value))
    batch = torch.broadcast_shapes(query.shape[:-3], key.shape[:-3], value.shape[:-3])
    if attn_mask is not None and len(batch) > 1 and attn_mask.dim() > 4:
        batch = torch.broadcast_shapes(batch, attn_mask.shape[:-3])
    q, k, v = (_four_axes(tensor, batch) for tensor in (query, key, value))
    if len(batch) <= 1:
        B = batch[0] if batch else 1
        q, k, v = (tensor if tensor.shape[0] == B else tensor.expand(B, -1, -1, -1) for tensor in (q, k, v))
    if attn_mask is not None:
        add_mask(options, _four_axes(attn_mask, batch if attn_mask.dim() > 4 else torch.Size()), q, k, prefixes=True)
    return q, k, v, options, batch


def scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    strict: bool = False,
) -> Tensor:
    """torch.nn.functional.scaled_dot_product_attention, fused for every argument.

    query [..., H, L, E], key [..., Hk, S, E], value [..., Hk, S, Ev]; returns [..., H, L, Ev].

    attn_mask   boolean (True = attend) or floating (added), broadcastable to [..., H, L, S]; gradients of the latter
    dropout_p   always applied: pass 0 when evaluating. The seed comes from torch's generator
    is_causal   top-left: query i sees keys 0 ... i; composes with attn_mask
    enable_gqa  query head h reads key head h / (H / Hk)
    strict      raise Error for what is torch's to compute (another device, dtype or layout) instead of calling torch

    Casts under torch.autocast, and raises for wrong arguments, as torch's does: they are left to it.
    In graphs that are made for other programs (torch.jit, torch.export, torch.onnx, torch.fx) it is torch's operator.
    """
    if torch.jit.is_scripting():
        return _original(query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)
    else:
        return _serve(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa, strict)


def _serve(query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None, dropout_p: float, is_causal: bool,
           scale: float | None, enable_gqa: bool, strict: bool) -> Tensor:
    if has_torch_function_variadic(query, key, value) and _speaks_torch_function(query, key, value):
        return handle_torch_function(
            scaled_dot_product_attention, (query, key, value), query, key, value, attn_mask=attn_mask,
            dropout_p=dropout_p, is_causal=is_causal, scale=scale, enable_gqa=enable_gqa)
    if (type(dropout_p) in _NUMBERS and dropout_p == 0 and type(is_causal) is bool and type(scale) in _SCALES
            and type(attn_mask) in _MASKS and _torch_ops.is_simple(query, key, value, attn_mask, enable_gqa)
            and (attn_mask is None or not is_worth_reading(query, key))):
        options = _CAUSAL if is_causal else {}
        if scale is not None:
            options = {**options, "scale": scale}
        try:
            out = _torch_ops.simple_attention(query, key, value, attn_mask, options)
            if attn_mask is not None:
                count_unread(attn_mask)
            return out
        except Error:  # torch says what is wrong
            pass
    reason = _why_not(query, key, value, attn_mask, dropout_p, is_causal, scale)
    if not reason:
        try:
            return _compute(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)
        except Error as error:  # torch says what is wrong in its own words, if it finds it wrong
            reason = str(error)
    return _leave_to_torch(reason, strict, query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)


def _speaks_torch_function(*tensors: Any) -> bool:
    """Whether a mode or a subclass is to see the call. Nested tensors and torch.fx know torch's own function alone."""
    return all(isinstance(tensor, Tensor) and (type(tensor) in PLAIN or not tensor.is_nested) for tensor in tensors)


def _compute(query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None, dropout_p: float, is_causal: bool,
             scale: float | None, enable_gqa: bool) -> Tensor:
    q, k, v, options, batch = _problem(query, key, value, attn_mask, is_causal, enable_gqa)
    out = _torch_prefix.attention_output(q, k, v, {**options, "scale": scale, "dropout": dropout_p})
    if query.is_nested:  # with the lengths that it knows, which to_padded_tensor() and others ask for
        return torch.nested.nested_tensor_from_jagged(
            out.squeeze(0), offsets=query.offsets(), jagged_dim=2, min_seqlen=query._get_min_seqlen(),
            max_seqlen=query._get_max_seqlen())
    if query.dim() < 4 and not batch:
        out = out.reshape(out.shape[4 - query.dim():])
    elif query.dim() != 4:
        out = out.reshape(*batch, *out.shape[1:])
    return out.contiguous() if _is_composed(query, key, value, attn_mask, dropout_p, enable_gqa) else out


def _is_composed(query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None, dropout_p: float,
                 enable_gqa: bool) -> bool:
    """Whether torch computes the call as products of matrices, whose result is contiguous. Otherwise it is laid out as
    query."""
    return (dropout_p > 0 or attn_mask is not None and attn_mask.requires_grad or key.shape[-2] == 0
            or not query.dim() == key.dim() == value.dim() == 4
            or not query.shape[0] == key.shape[0] == value.shape[0] or key.shape[1] != value.shape[1]
            or not enable_gqa and query.shape[1] != key.shape[1]
            or not query.stride(-1) == key.stride(-1) == value.stride(-1) == 1)


def explain(query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, dropout_p: float = 0.0,
            is_causal: bool = False, scale: float | None = None, enable_gqa: bool = False,
            *, backward: bool = False) -> Plan | str:
    """What scaled_dot_product_attention() will do with these arguments: a Plan, or why it leaves them to torch.

    With a mask the path tells what that was found to say, "causal, key lengths"; "mask" or "bias": nothing shorter.
    Where an argument is not finite the plan's path names the rule, which differs from torch's: what is masked is not
    read, a NaN reaches the rows that see it and no other, and a score of +infinity wins alone.
    """
    reason = _why_not(query, key, value, attn_mask, dropout_p, is_causal, scale)
    if reason:
        return f"left to torch: {reason}"
    try:
        q, k, v, options, _ = _problem(query.detach(), key.detach(), value.detach(), attn_mask, is_causal, enable_gqa)
        options = {name: option.detach() if isinstance(option, Tensor) else option for name, option in options.items()}
        plan = of_all([_plan("explain", backward, *qkv, {"scale": scale, "dropout": dropout_p, **given})
                       for *qkv, given in _torch_prefix.calls(q, k, v, options)])
    except Error as error:
        return f"left to torch: {error}"
    if isinstance(attn_mask, Tensor) and not isinstance(attn_mask, CausalBias):
        plan = plan._replace(path=f"{plan.path}; the mask is read as: {described(options)}")
    if all(bool(tensor.isfinite().all()) for tensor in (q, k, v)):
        return plan
    return plan._replace(path=plan.path + "; not finite: NaN stays in the rows that see it, +infinity wins alone")


# --------------------------------------------------------------------------------------------- in the place of torch's

class _State(NamedTuple):
    """What enable() has set."""

    wishes: Wishes
    kernels: tuple[FusedModules, VarlenKernels]


_state: _State | None = None


def _serve_bias(kind: type, function: Any, types: Any, arguments: tuple = (), options: dict | None = None) -> Any:
    """torch's own function, imported before enable(), with a causal bias: that would take the bias for a mask, since it
    knows itself by the name that is ours now."""
    if function is _original:
        return scaled_dot_product_attention(*arguments, **(options or {}))
    return _bias_function.__func__(kind, function, types, arguments, options)


def _leave_to_torch(reason: str, strict: bool, *arguments: Any) -> Tensor:
    tell(reason, strict)
    query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa = arguments
    if isinstance(attn_mask, CausalBias):
        return CausalBias._dispatch(*arguments)
    return _original(query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)


def enable(*, strict: bool = False, warn: bool = False) -> None:
    """Puts our functions in the place of torch.nn.functional.scaled_dot_product_attention and of
    torch.nn.attention.flex_attention.flex_attention.

    nn.MultiheadAttention and nn.TransformerEncoder call the first, and their fused inference path has ours in it too,
    nested tensors included; torch.nn.attention.varlen runs on the CPU. Code that imported a function by name before
    keeps torch's, but for causal biases (torch.nn.attention.bias), which are routed there too. strict: raise for what
    would be left to torch; warn: warn of it.
    """
    kernels = (FusedModules(tell), VarlenKernels()) if _state is None else _state.kernels
    _set_state(_State(Wishes(strict, warn), kernels))


def disable() -> None:
    """Puts torch's function back."""
    _set_state(None)


@contextlib.contextmanager
def enabled(*, strict: bool = False, warn: bool = False) -> Iterator[None]:
    """enable() for a with block; what was before it is put back."""
    before = _state
    enable(strict=strict, warn=warn)
    try:
        yield
    finally:
        _set_state(before)


@contextlib.contextmanager
def reporting(report: Callable[[str], object]) -> Iterator[None]:
    """enabled(), as it is already or anew; `report` is also called with the reason why a call is left to torch."""
    before = _state
    if before is None:
        enable()
    others = _state.wishes.reports
    try:
        _set_state(_state._replace(wishes=_state.wishes._replace(reports=(*others, report))))
        yield
    finally:
        _set_state(before)


def _set_state(state: _State | None) -> None:
    global _state
    if state is None and _state is not None:
        for kernels in _state.kernels:
            kernels.remove()
    _state = state
    set_wishes(Wishes() if state is None else state.wishes)
    torch.nn.functional.scaled_dot_product_attention = _original if state is None else scaled_dot_product_attention
    torch.nn.attention.flex_attention.flex_attention = _original_flex if state is None else flex_attention
    CausalBias.__torch_function__ = _bias_function if state is None else classmethod(_serve_bias)


# --------------------------------------------------------------------------------------------- torch's provider hook

def _flash_forward(query, key, value, dropout_p=0.0, is_causal=False, *, attn_mask=None, scale=None):
    options = {"mask" if attn_mask.dtype == torch.bool else "bias": attn_mask} if attn_mask is not None else {}
    with torch.no_grad():
        return _torch_ops.attention(query, key, value, scale=scale, causal=is_causal,
                                    alignment="top_left" if is_causal else None, **options)


def _flash_backward(grad_out, query, key, value, out, logsumexp, dropout_p, is_causal, *, attn_mask=None, scale=None):
    bias, mask = (None, attn_mask) if attn_mask is not None and attn_mask.dtype == torch.bool else (attn_mask, None)
    options = in_order({"bias": bias, "mask": mask, "scale": scale, "causal": is_causal,
                        "alignment": "top_left" if is_causal else None})
    gradients = torch.ops.attention_cpp.attention_backward(
        grad_out, None, query, key, value, out, logsumexp, *options, [True, True, True, False, False])
    return tuple(gradients[:3])


class _Handle:
    """Keeps the kernels in torch's dispatcher until remove()."""

    def __init__(self) -> None:
        self._library = torch.library.Library("aten", "IMPL")
        name = "_scaled_dot_product_flash_attention_for_cpu"
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # that kernels of torch are overridden, which is the point
            self._library.impl(name, _flash_forward, "CPU", allow_override=True)
            self._library.impl(name + "_backward", _flash_backward, "CPU", allow_override=True)

    def remove(self) -> None:
        self._library._destroy()


if hasattr(torch.nn.attention, "register_flash_attention_impl"):
    # torch.nn.attention.activate_flash_attention_impl("attention_cpp") then computes what torch's own choice of kernels
    # sends to its fused CPU kernel; enable() covers the rest too.
    torch.nn.attention.register_flash_attention_impl("attention_cpp", register_fn=_Handle)
