"""attention_cpp_forward, an attention function of transformers, and its registration."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.modeling_flash_attention_utils import FlashAttentionKwargs
from transformers.utils.generic import TransformersKwargs
from transformers.utils.output_capturing import _active_collector

from .._core import Error
from .._torch import autograd, prefix
from .._torch.masks import add_mask
from .._torch.options import NONE_GIVEN, Options
from .._torch.weights import weights_of
from .masks import ATTRIBUTE, Mask, WarnOfDense, attention_cpp_mask, refuse_dense, takes_sdpa

# Arguments of attention functions that have no effect here: what other implementations need for packed sequences,
# positions that query and key already contain, and what else models return.
_WITHOUT_EFFECT = (TransformersKwargs.__annotations__.keys() | FlashAttentionKwargs.__annotations__.keys()) | {
    "cache_position", "deterministic", "input_ids", "logits_indices", "logits_processor_args", "logits_to_keep",
    "past_key_values", "read_index", "return_dict", "use_cache", "write_index"}


def _place(module: torch.nn.Module) -> str:
    """Returns the place of an error for its message: the class and the number of the layer."""
    number = getattr(module, "layer_idx", None)
    layer = "" if number is None else f" of layer {number}"
    return f"[attention_cpp.transformers] {type(module).__name__}{layer}"


def _is_causal(module: torch.nn.Module) -> bool:
    """Whether a call without a mask is causal. It is not in a model without "sdpa". Otherwise module.is_causal decides,
    with the default True, as in transformers' sdpa."""
    config, file = getattr(module, "config", None), type(module).__module__
    known = takes_sdpa(file) if config is None else takes_sdpa(type(config).__module__, type(config).__name__)
    return known is not False and bool(getattr(module, "is_causal", True))


def _content(mask: Any, module: torch.nn.Module, query: Tensor, key: Tensor) -> Options | Tensor:
    """Returns the options of a mask of attention_cpp_mask(), or another mask, boolean or floating, with four axes."""
    needed = (query.shape[0], query.shape[2], key.shape[2])
    if isinstance(mask, Mask):
        mask = mask.content(needed)
        if not isinstance(mask, Tensor):
            return mask
    own = getattr(mask, ATTRIBUTE, None)
    if own is not None:
        size = (mask.shape[0], own[0], mask.shape[3])
        if size != needed:
            raise Error(f"{_place(module)}: the mask is for B, Lq, Lk = {size}, but query and key have {needed}")
        return own[1]
    sizes = (query.shape[0], query.shape[1], query.shape[2], key.shape[2])
    if not isinstance(mask, Tensor):
        given = f"a {type(mask).__name__}"
    elif mask.dtype != torch.bool and not mask.dtype.is_floating_point:
        given = f"{mask.dtype} {list(mask.shape)}"
    elif mask.dim() > 4 or any(n not in (1, size) for n, size in zip(reversed(mask.shape), reversed(sizes))):
        given = f"{mask.dtype} of shape {list(mask.shape)}"
    else:
        return mask.reshape((1,) * (4 - mask.dim()) + mask.shape)
    expected = ", ".join(f"{size}|1" for size in sizes)
    raise Error(f"{_place(module)}: the attention_mask is {given}; it must be None, or a tensor [{expected}], boolean "
                "(True = attend) or floating (added to the scores)")


def _mask_options(mask: Any, module: torch.nn.Module, query: Tensor, key: Tensor, is_causal: bool | None,
                  sliding_window: int | None, position_bias: Tensor | None, prefixes: bool) -> Options:
    """Returns the options that limit the keys of a query, and the bias. prefixes: the result may be a Structure."""
    options = NONE_GIVEN if position_bias is None else Options(bias=position_bias)
    if mask is None:
        if _is_causal(module) if is_causal is None else is_causal:
            left = -1 if sliding_window is None else sliding_window - 1
            return options.having(causal=True, window=(left, -1), alignment="bottom_right")
        return options
    content = _content(mask, module, query, key)
    if not isinstance(content, Tensor):
        return options.having(**vars(content))
    if content.dtype.is_floating_point and position_bias is not None:
        return options.having(bias=position_bias + content)
    return add_mask(options, content, query, key, prefixes)


def _batched_options(query: Tensor, position_bias: Tensor | None, sliding_window: int | None,
                     given: dict[str, Any]) -> Options:
    """Returns the options for requests in one packed sequence [1, H, Lq, D], as generate_batch() passes them. They are
    equal to its own n x n mask."""
    if position_bias is not None:
        raise Error("[attention_cpp.transformers] position_bias must be None in continuous batching")
    starts, starts_of_keys = given["cu_seq_lens_q"], given["cu_seq_lens_k"]
    if int(starts[-1]) != query.shape[2]:
        raise Error(f"[attention_cpp.transformers] query has {query.shape[2]} rows, but the requests have "
                    f"{int(starts[-1])}: continuous batching must not be compiled")
    return Options(cu_seqlens_q=starts, cu_seqlens_k=starts_of_keys, causal=True, alignment="bottom_right",
                   window=(-1 if sliding_window is None else sliding_window - 1, -1))


def _wants_weights(module: torch.nn.Module, output_attentions: bool | None) -> bool:
    """Whether the caller, or a hook of transformers that collects them, needs the weights."""
    if output_attentions:
        return True
    if torch.compiler.is_compiling() and not _active_collector.compiling and not module._forward_hooks:
        return False  # a compiler cannot read a context variable
    collected = _active_collector.get()
    return collected is not None and any("attentions" in key for key in collected)


def attention_cpp_forward(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    is_causal: bool | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    position_bias: Tensor | None = None,
    output_attentions: bool | None = None,
    cache: Any = None,
    **kwargs: Any,
) -> tuple[Tensor, Tensor | None]:
    """Computes the attention of a layer of transformers. Models call it after register().

    Arguments
        module      the layer, whose config and is_causal are read
        query       [B, H, Lq, D]; key [B, Hk, Lk, D]; value [B, Hk, Lk, Dv], with their own number of heads Hk
        attention_mask  a mask of attention_cpp_mask(), or another one: boolean (True = attend) or floating (added).
                    None: causal, aligned to the last key, if is_causal is true, or module.is_causal if is_causal is
                    None. In models without "sdpa" None allows every key, whatever module.is_causal is
        scaling     factor on the scores, default 1 / sqrt(D)
        dropout     probability of dropping a weight, applied in evaluation too: pass 0 there
        sliding_window  without a mask, in a causal call: how many keys a query attends to, its own included
        cache       the cache of generate_batch(): the function stores key and value there and reads those of each
                    request
        softcap     c > 0: scores become c tanh(score / c)
        s_aux       [H], sinks; position_bias [B|1, H|1, Lq|1, Lk|1], added to the scores; both have gradients
        output_attentions  also return the weights

    Returns (out [B, Lq, H, Dv], weights): the weights [B, H, Lq, Lk] before dropout, with gradients, or None.

    Raises Error for another device than the CPU, for shapes that do not fit together, and for an unknown argument that
    is not None, because it may change the result, as `indices` of sparse attention does.
    """
    unknown = sorted(name for name, value in kwargs.items() if value is not None and name not in _WITHOUT_EFFECT)
    if unknown and cache is None:
        raise Error(f"{_place(module)} calls its attention with {', '.join(unknown)}, which \"attention_cpp\" "
                    'does not know and must not ignore: load the model with "eager", or with "sdpa" and '
                    "attention_cpp.torch.enable() if it has that")
    devices = sorted({str(t.device) for t in (query, key, value) if t.device.type != "cpu"})
    if devices:
        raise Error(f"[attention_cpp.transformers] query, key and value must be on the CPU, not {', '.join(devices)}: "
                    'use another implementation, as in model.set_attn_implementation("sdpa")')
    if query.shape[0] != key.shape[0] and query.shape[0] == 1:  # learned queries, the same for the whole batch
        query = query.expand(key.shape[0], -1, -1, -1)
    query, key, value, position_bias = autograd.autocast(query, key, value, position_bias)
    wants_weights = _wants_weights(module, output_attentions)
    if cache is None and kwargs.get("read_index") is None:
        options = _mask_options(attention_mask, module, query, key, is_causal, sliding_window, position_bias,
                                not wants_weights)
    else:
        if cache is not None:  # from transformers 5.24 on, the model updates the cache itself
            key, value = cache.update(key, value, module.layer_idx, kwargs)
        options = _batched_options(query, position_bias, sliding_window, kwargs)
    options = options.having(scale=scaling, softcap=softcap or 0.0, sink=s_aux, dropout=dropout)
    if not wants_weights:
        return prefix.attention_output(query, key, value, options).transpose(1, 2).contiguous(), None
    out, lse = autograd.attention(query, key, value, options)
    weights = weights_of(query, key, lse, options, (0, query.shape[2]), (0, key.shape[2])).to(query.dtype)
    return out.transpose(1, 2).contiguous(), weights


def register(name: str = "attention_cpp", *, strict: bool = False, warn: bool = False) -> None:
    """Registers attention_cpp_forward() and attention_cpp_mask() in transformers as attn_implementation=name. Call it
    again to change the options.

        >>> register(warn=True)
        >>> model = AutoModelForCausalLM.from_pretrained(name, attn_implementation="attention_cpp")

    You may replace a name of transformers: register("flex_attention") covers models that were loaded with it, with
    gradients, which torch's flex_attention lacks on the CPU. register("paged|eager") covers generate_batch() of models
    that were loaded with "eager" or "paged|eager".

    strict: raise Error if a model needs a dense mask. warn: warn of it, once for each reason.
    """
    on_dense = refuse_dense if strict else WarnOfDense() if warn else None
    AttentionInterface.register(name, attention_cpp_forward)
    AttentionMaskInterface.register(name, functools.partial(attention_cpp_mask, on_dense=on_dense))
