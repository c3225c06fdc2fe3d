"""enable() and disable(), which replace torch's functions by the library's, and kernels for torch's provider hook."""

from __future__ import annotations

import contextlib
import warnings
from typing import Any, Callable, Iterator

import torch
from torch.nn.attention.bias import CausalBias

from . import autograd
from .flex import flex_attention, torchs as _original_flex
from .masks import with_mask
from .modules import FusedModules
from .options import Options
from .sdpa import original, scaled_dot_product_attention
from .state import Enabled, left_to_torch, state
from .varlen import VarlenKernels

_bias_function = CausalBias.__dict__["__torch_function__"]


def _take_bias(kind: type, function: Any, types: Any, arguments: tuple = (), options: dict | None = None) -> Any:
    """Computes calls with a causal bias of torch's own function, imported before enable(). Torch would take the bias
    for a mask, because it compares the function with the one that the name has now, which is ours."""
    if function is original:
        return scaled_dot_product_attention(*arguments, **(options or {}))
    return _bias_function.__func__(kind, function, types, arguments, options)


def _module_left_to_torch(reason: str) -> None:
    left_to_torch(reason, False, "scaled_dot_product_attention", 5)


def enable(*, strict: bool = False, warn: bool = False) -> None:
    """Replaces torch.nn.functional.scaled_dot_product_attention and torch.nn.attention.flex_attention.flex_attention by
    the functions of this library, for the whole process.

        >>> attention_cpp.torch.enable(warn=True)

    nn.MultiheadAttention and nn.TransformerEncoder then use the library, also in their fused inference path and with
    nested tensors, and torch.nn.attention.varlen runs on the CPU. Code that imported one of the functions by name
    earlier keeps torch's; only its calls with a causal bias (torch.nn.attention.bias) come here.

    strict: raise Error for a call that the library would leave to torch. warn: warn of such a call.
    """
    before = state.enabled
    kernels = (FusedModules(_module_left_to_torch), VarlenKernels()) if before is None else before.kernels
    _set(Enabled(strict, warn, (), kernels))


def disable() -> None:
    """Restores torch's functions, which enable() has replaced.

        >>> attention_cpp.torch.disable()
    """
    _set(None)


@contextlib.contextmanager
def enabled(*, strict: bool = False, warn: bool = False) -> Iterator[None]:
    """Calls enable() for a with block. The end of the block restores the earlier setting.

        >>> with attention_cpp.torch.enabled(strict=True):
        ...     model(x)
    """
    before = state.enabled
    enable(strict=strict, warn=warn)
    try:
        yield
    finally:
        _set(before)


@contextlib.contextmanager
def reporting(report: Callable[[str], object]) -> Iterator[None]:
    """Enables the library in a with block, with the present setting if there is one. Calls report(reason) for every
    call that is left to torch."""
    before = state.enabled
    if before is None:
        enable()
    now = state.enabled
    try:
        _set(now._replace(reports=(*now.reports, report)))
        yield
    finally:
        _set(before)


def _set(enabled: Enabled | None) -> None:
    if enabled is None and state.enabled is not None:
        for kernels in state.enabled.kernels:
            kernels.remove()
    state.enabled = enabled
    off = enabled is None
    torch.nn.functional.scaled_dot_product_attention = original if off else scaled_dot_product_attention
    torch.nn.attention.flex_attention.flex_attention = _original_flex if off else flex_attention
    CausalBias.__torch_function__ = _bias_function if off else classmethod(_take_bias)


# --------------------------------------------------------------------------------------------- torch's provider hook

def _options(is_causal, attn_mask, scale) -> Options:
    options = Options(scale=scale, causal=is_causal, alignment="top_left" if is_causal else None)
    return options if attn_mask is None else with_mask(options, attn_mask)


def _flash_forward(query, key, value, dropout_p=0.0, is_causal=False, *, attn_mask=None, scale=None):
    with torch.no_grad():
        return autograd.attention(query, key, value, _options(is_causal, attn_mask, scale))


def _flash_backward(grad_out, query, key, value, out, logsumexp, dropout_p, is_causal, *, attn_mask=None, scale=None):
    return tuple(autograd.run_backward(grad_out, None, query, key, value, out, logsumexp,
                                       _options(is_causal, attn_mask, scale), (True, True, True, False, False))[:3])


class _Handle:
    """Keeps the kernels in torch's dispatcher until remove()."""

    def __init__(self) -> None:
        self._library = torch.library.Library("aten", "IMPL")
        name = "_scaled_dot_product_flash_attention_for_cpu"
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # torch warns that its kernels are overridden
            self._library.impl(name, _flash_forward, "CPU", allow_override=True)
            self._library.impl(name + "_backward", _flash_backward, "CPU", allow_override=True)

    def remove(self) -> None:
        self._library._destroy()


if hasattr(torch.nn.attention, "register_flash_attention_impl"):
    # After torch.nn.attention.activate_flash_attention_impl("attention_cpp") the library computes the calls that torch
    # sends to its fused CPU kernel. enable() covers all other calls too.
    torch.nn.attention.register_flash_attention_impl("attention_cpp", register_fn=_Handle)
