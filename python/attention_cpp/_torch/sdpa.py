"""attention_cpp.torch.scaled_dot_product_attention, which turns torch's arguments into calls of the operator.

why_not() decides whether the library or torch computes a call. A call for which the library raises goes to torch too.
"""

from __future__ import annotations

from typing import Any, Callable

import torch
from torch import Tensor
from torch.nn.attention.bias import CausalBias, CausalVariant
from torch.overrides import handle_torch_function, has_torch_function_variadic
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from . import autograd, prefix
from .._core import Error
from .._operator import Plan, explain as _explain, explain_backward as _explain_backward, of_all
from .masks import add_mask, count_unread, is_worth_reading, with_mask
from .operators import FLOATING
from .options import NONE_GIVEN, Options, detached
from .state import left_to_torch
from .structure import described

_NUMBERS, _SCALES, _MASKS = (int, float), (float, type(None)), (Tensor, type(None))  # the types in simple calls
_CAUSAL = Options(causal=True, alignment="top_left")
original = torch.nn.functional.scaled_dot_product_attention


# ----------------------------------------------------------------------------------------------------- who computes it

def _is_packed(tensor: Any) -> bool:
    """Whether a tensor is nested, [B, H, L, D], and its sequences have no holes."""
    return (tensor.layout is torch.jagged and tensor.dim() == 4 and isinstance(tensor.shape[2], torch.SymInt)
            and tensor.lengths() is None and not torch.compiler.is_compiling())


def _why_not_tensor(name: str, tensor: Any) -> str:
    if not isinstance(tensor, Tensor):
        return f"{name} is not a tensor"
    if type(tensor) not in autograd.PLAIN and is_traceable_wrapper_subclass(tensor) and not tensor.is_nested:
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


def why_not(query: Any, key: Any, value: Any, attn_mask: Any, dropout_p: Any, is_causal: Any, scale: Any) -> str:
    """Returns why torch computes this call, or an empty string. The library may still find wrong arguments later."""
    if torch.jit.is_tracing():
        return "torch.jit records the call for other programs"
    if torch.compiler.is_exporting():
        return "torch.export records the call for other programs"
    for name, tensor in (("query", query), ("key", key), ("value", value)):
        if reason := _why_not_tensor(name, tensor):
            return reason
        if tensor.dtype not in FLOATING:
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
    """Returns [..., H, L, D] as [B, H, L, D]: missing axes have extent 1, and all batch axes become one."""
    while tensor.dim() < 4:
        tensor = tensor.unsqueeze(0)
    if len(batch) > 1:
        tensor = tensor.expand(*batch, *tensor.shape[-3:]).flatten(0, -4)
    return tensor


def _repeated(tensor: Tensor, heads: int) -> Tensor:
    """Repeats the heads of [..., Hk, S, D] so that there are as many as the query has."""
    if tensor.shape[-3] == 0 or heads % tensor.shape[-3]:
        raise Error(f"[scaled_dot_product_attention] query has {heads} heads, which must be a multiple of the "
                    f"{tensor.shape[-3]} heads of key or value")
    return tensor.repeat_interleave(heads // tensor.shape[-3], -3)


def problem(query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None, is_causal: bool, enable_gqa: bool
            ) -> tuple[Tensor, Tensor, Tensor, Options, torch.Size]:
    """Returns the arguments as q, k, v [B, H, L, D] and options, and the axes of the result before its last three."""
    if isinstance(attn_mask, CausalBias) and is_causal:
        raise Error("[scaled_dot_product_attention] a causal bias and is_causal must not both be given")
    options = _CAUSAL if is_causal else NONE_GIVEN
    if isinstance(attn_mask, CausalBias):
        lower = attn_mask.variant == CausalVariant.LOWER_RIGHT
        options = Options(causal=True, alignment="bottom_right" if lower else "top_left")
        attn_mask = None
    if query.is_nested:
        if not torch.equal(key.offsets(), value.offsets()):
            raise Error("[scaled_dot_product_attention] the nested tensors key and value have different offsets, must "
                        "have the same")
        options = options.having(cu_seqlens_q=query.offsets(), cu_seqlens_k=key.offsets())
        query, key, value = (tensor.values().unsqueeze(0) for tensor in (query, key, value))
    query, key, value, attn_mask = autograd.autocast(query, key, value, attn_mask)
    if enable_gqa and min(query.dim(), key.dim(), value.dim()) > 2 and key.shape[-3] != value.shape[-3]:
        key, value = (_repeated(tensor, query.shape[-3]) for tensor in (key, value))

    if query.dim() == key.dim() == value.dim() == 4 and query.shape[0] == key.shape[0] == value.shape[0] and (
            enable_gqa or query.shape[1] == key.shape[1] == value.shape[1]):
        if attn_mask is not None:
            options = add_mask(options, _four_axes(attn_mask, torch.Size()), query, key, prefixes=True)
        return query, key, value, options, query.shape[:1]

    heads = [tensor.shape[-3] if tensor.dim() > 2 else 1 for tensor in (query, key, value)]
    if not enable_gqa and len(set(heads)) > 1:  # as torch broadcasts
        most = max(heads)
        if set(heads) != {1, most}:
            raise Error(f"[scaled_dot_product_attention] query, key and value have {heads} heads: without enable_gqa "
                        "these numbers must be equal")
        query, key, value = (tensor.expand(*tensor.shape[:-3], most, -1, -1) for tensor in (query, key, value))
    batch = torch.broadcast_shapes(query.shape[:-3], key.shape[:-3], value.shape[:-3])
    if attn_mask is not None and len(batch) > 1 and attn_mask.dim() > 4:
        batch = torch.broadcast_shapes(batch, attn_mask.shape[:-3])
    q, k, v = (_four_axes(tensor, batch) for tensor in (query, key, value))
    if len(batch) <= 1:
        B = batch[0] if batch else 1
        q, k, v = (tensor if tensor.shape[0] == B else tensor.expand(B, -1, -1, -1) for tensor in (q, k, v))
    if attn_mask is not None:
        mask = _four_axes(attn_mask, batch if attn_mask.dim() > 4 else torch.Size())
        options = add_mask(options, mask, q, k, prefixes=True)
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
    """Computes torch.nn.functional.scaled_dot_product_attention(), fused for every argument, in O(n) memory.

        >>> out = scaled_dot_product_attention(q, k, v, is_causal=True)

    Arguments
        query       [..., H, L, E]; key [..., Hk, S, E]; value [..., Hk, S, Ev]: float32, float64, bfloat16 or float16
        attn_mask   boolean (True = attend) or floating (added, has a gradient), broadcastable to [..., H, L, S]
        dropout_p   probability of dropping a weight, applied in evaluation too: pass 0 there. Torch's generator gives
                    the seed
        is_causal   top-left: query i attends to keys 0 ... i; composes with attn_mask
        scale       factor on the scores, default 1 / sqrt(E)
        enable_gqa  H may be a multiple of Hk: query head h reads key head h / (H / Hk)
        strict      raise Error instead of leaving the call to torch

    Returns out [..., H, L, Ev], with gradients of query, key, value and a floating attn_mask.

    The function casts under torch.autocast as torch does. A call that the library cannot compute (another device, dtype
    or layout, wrong arguments) goes to torch, which raises its own errors. Graphs for other programs (torch.jit,
    torch.export, torch.onnx, torch.fx) contain torch's operator.
    """
    if torch.jit.is_scripting():
        return original(query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)
    else:
        return _computed(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa, strict)


def _computed(query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None, dropout_p: float, is_causal: bool,
              scale: float | None, enable_gqa: bool, strict: bool) -> Tensor:
    if has_torch_function_variadic(query, key, value) and _has_torch_function(query, key, value):
        return handle_torch_function(
            scaled_dot_product_attention, (query, key, value), query, key, value, attn_mask=attn_mask,
            dropout_p=dropout_p, is_causal=is_causal, scale=scale, enable_gqa=enable_gqa)
    refusal = ""
    if (type(dropout_p) in _NUMBERS and dropout_p == 0 and type(is_causal) is bool and type(scale) in _SCALES
            and type(attn_mask) in _MASKS and autograd.is_simple(query, key, value, attn_mask, enable_gqa)):
        options = _CAUSAL if is_causal else NONE_GIVEN
        if scale is not None:
            options = options.having(scale=scale)
        try:
            if attn_mask is None:
                return autograd.simple_attention(query, key, value, options)
            if is_worth_reading(query, key):
                options = add_mask(options, _four_axes(attn_mask, torch.Size()), query, key, prefixes=True)
                return prefix.attention_output(query, key, value, options, simple=True)
            out = autograd.simple_attention(query, key, value, with_mask(options, attn_mask))
            count_unread(attn_mask)
            return out
        except Error as error:  # torch raises its own error, or computes the call if it allows it
            refusal = str(error) if attn_mask is None or attn_mask.dim() > 1 else ""
    if any(type(tensor).__name__ == "DTensor" for tensor in (query, key, value)):
        return _shared(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa, strict)
    reason = why_not(query, key, value, attn_mask, dropout_p, is_causal, scale) or refusal
    if not reason:
        try:
            return _compute(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)
        except Error as error:
            reason = str(error)
    return _leave_to_torch(reason, strict, query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)


def _shared(query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None, dropout_p: float, is_causal: bool,
            scale: float | None, enable_gqa: bool, strict: bool) -> Tensor:
    """Of DTensors, which ranks share: those of torch's context_parallel, for which torch has nothing on CPUs."""
    from .._distributed import context_parallel

    if not context_parallel.is_active_for(query, key, value):
        return _leave_to_torch("query, key or value is a DTensor, and not of context_parallel on CPUs", strict, query,
                               key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)

    def options() -> Options:
        shared = problem(query, key, value, None, is_causal, enable_gqa)[3]
        return shared.having(dropout=float(dropout_p), scale=None if scale is None else float(scale))

    return context_parallel.attention(query, key, value, attn_mask, options)


def _leave_to_torch(reason: str, strict: bool, *arguments: Any) -> Tensor:
    left_to_torch(reason, strict, "scaled_dot_product_attention", 4)
    query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa = arguments
    if isinstance(attn_mask, CausalBias):
        return CausalBias._dispatch(*arguments)
    return original(query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)


def _has_torch_function(*tensors: Any) -> bool:
    """Whether a mode or a subclass handles the call. Nested tensors and torch.fx handle torch's own function alone."""
    return all(isinstance(tensor, Tensor) and (type(tensor) in autograd.PLAIN or not tensor.is_nested)
               for tensor in tensors)


def _compute(query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None, dropout_p: float, is_causal: bool,
             scale: float | None, enable_gqa: bool) -> Tensor:
    q, k, v, options, batch = problem(query, key, value, attn_mask, is_causal, enable_gqa)
    simple = False if q is query else None  # _computed() has found that a call with these tensors is not simple
    out = prefix.attention_output(q, k, v, options.having(scale=scale, dropout=dropout_p), simple)
    if query.is_nested:  # to_padded_tensor() and others need the lengths
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
    """Whether torch computes the call as matrix products, whose result is contiguous. Otherwise the result has the
    memory order of query."""
    return (dropout_p > 0 or attn_mask is not None and attn_mask.requires_grad or key.shape[-2] == 0
            or not query.dim() == key.dim() == value.dim() == 4
            or not query.shape[0] == key.shape[0] == value.shape[0] or key.shape[1] != value.shape[1]
            or not enable_gqa and query.shape[1] != key.shape[1]
            or not query.stride(-1) == key.stride(-1) == value.stride(-1) == 1)


def explain(query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, dropout_p: float = 0.0,
            is_causal: bool = False, scale: float | None = None, enable_gqa: bool = False) -> Plan | str:
    """Returns what scaled_dot_product_attention() will do: a Plan, or a string with the reason why torch computes it.

        >>> explain(q, k, v, attn_mask=mask).path

    With a mask, the path names the options that are equal to the mask, as "causal, key lengths"; "mask" or "bias" if
    there are none. If an argument is not finite, the path names the rule, which differs from torch's: masked entries
    are not read, a NaN affects only the rows that attend to it, and a score of +infinity gets all the weight.
    """
    return _explained(_explain, query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)


def explain_backward(query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None,
                     dropout_p: float = 0.0, is_causal: bool = False, scale: float | None = None,
                     enable_gqa: bool = False) -> Plan | str:
    """Returns what the backward of scaled_dot_product_attention() will do. As explain()."""
    return _explained(_explain_backward, query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)


def _explained(explained: Callable[..., Plan], query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None,
               dropout_p: float, is_causal: bool, scale: float | None, enable_gqa: bool) -> Plan | str:
    reason = why_not(query, key, value, attn_mask, dropout_p, is_causal, scale)
    if reason:
        return f"left to torch: {reason}"
    try:
        q, k, v, options, _ = problem(query.detach(), key.detach(), value.detach(), attn_mask, is_causal, enable_gqa)
        calls = prefix.calls(q, k, v, detached(options.having(scale=scale, dropout=dropout_p)))
        plan = of_all([explained(*qkv, **vars(given)) for *qkv, given in calls])
    except Error as error:
        return f"left to torch: {error}"
    if isinstance(attn_mask, Tensor) and not isinstance(attn_mask, CausalBias):
        plan = plan._replace(path=f"{plan.path}; the mask is read as: {described(options)}")
    if all(bool(tensor.isfinite().all()) for tensor in (q, k, v)):
        return plan
    return plan._replace(path=plan.path + "; not finite: NaN stays in the rows that see it, +infinity wins alone")
