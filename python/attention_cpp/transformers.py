"""Hugging Face transformers (5; tested with 5.23) on the CPU: every model that takes an attention implementation.

    >>> import attention_cpp.transformers
    >>> attention_cpp.transformers.register()
    >>> model = AutoModelForCausalLM.from_pretrained(name, attn_implementation="attention_cpp")

or model.set_attn_implementation("attention_cpp"). Grouped heads are read in place; windows, softcaps, sinks, position
biases, padding and caches stay fused; neither the scores nor the mask is stored as n x n. Where a model asks for a mask
that is none of causal, bidirectional, window and padding, a dense one is made: register(warn=True) tells, and
register(strict=True) raises. `output_attentions=True` returns the weights, with their gradient.
"""

from __future__ import annotations

import functools
import inspect
import sys
import warnings
from typing import Any, Callable

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel, masking_utils
from transformers.modeling_flash_attention_utils import FlashAttentionKwargs
from transformers.utils.generic import TransformersKwargs
from transformers.utils.import_utils import is_tracing
from transformers.utils.output_capturing import _active_collector

from . import _torch_ops, _torch_prefix
from ._core import Error
from ._torch_masks import add_mask
from ._torch_weights import weights_of

__all__ = ["attention_cpp_forward", "attention_cpp_mask", "packed_encoder", "register"]

_ATTRIBUTE = "attention_cpp_options"
# What transformers hands on to attention functions that changes nothing here: what other implementations need to know
# of packed sequences, places that are in query and key already, and what models are asked to return.
_WITHOUT_EFFECT = (TransformersKwargs.__annotations__.keys() | FlashAttentionKwargs.__annotations__.keys()) | {
    "cache_position", "deterministic", "input_ids", "logits_indices", "logits_processor_args", "logits_to_keep",
    "past_key_values", "read_index", "return_dict", "use_cache", "write_index"}
_ALL = (-1, -1)
_AND = masking_utils.and_masks(masking_utils.causal_mask_function).__code__
_LEFT_WINDOW = masking_utils.sliding_window_overlay(1).__code__
_BOTH_WINDOW = masking_utils.sliding_window_bidirectional_overlay(1).__code__
_warned: set[str] = set()  # reasons
_own: dict[str, str] = {}  # of _computes_on_its_own()
_sdpa: dict[tuple[str, str], bool] = {}  # of _takes_sdpa()


# ------------------------------------------------------------------------------------------------------------ the mask

def _cells(function: Callable) -> dict[str, Any]:
    """What a function has closed over."""
    cells = getattr(function, "__closure__", None) or ()
    return dict(zip(function.__code__.co_freevars, (cell.cell_contents for cell in cells)))


def _pattern(mask_function: Callable) -> tuple[bool, tuple[int, int]] | None:
    """(causal, window) of a mask function of transformers' own, None of any other."""
    if mask_function is masking_utils.causal_mask_function:
        return True, _ALL
    if mask_function is masking_utils.bidirectional_mask_function:
        return False, _ALL
    if getattr(mask_function, "__code__", None) is not _AND:
        return None
    parts = _cells(mask_function)["mask_functions"]
    if len(parts) != 2:
        return None
    overlay, base = parts
    code, width = getattr(overlay, "__code__", None), 0
    if code is _LEFT_WINDOW or code is _BOTH_WINDOW:
        width = _cells(overlay)["sliding_window"]
    if code is _LEFT_WINDOW and base is masking_utils.causal_mask_function and width >= 1:
        return True, (width - 1, -1)  # transformers counts the query's own key
    if code is _BOTH_WINDOW and base is masking_utils.bidirectional_mask_function and width >= 0:
        return False, (width, width)
    return None


def _traced_pattern(mask_function: Callable, local_size: int | None, config: Any, causal_skip: bool,
                    bidirectional_skip: bool) -> tuple[bool, tuple[int, int]] | None:
    """The same where a compiler looks on, which cannot see what a function has closed over.

    transformers allows to skip a mask only where nothing was combined with its own window (or its own chunks).
    """
    code = getattr(mask_function, "__code__", None)
    if code is not _AND or local_size is None or local_size != getattr(config, "sliding_window", None) or (
            local_size == getattr(config, "attention_chunk_size", None)):
        return None if code is _AND else _pattern(mask_function)
    if causal_skip:
        return True, (local_size - 1, -1)
    return (False, (local_size, local_size)) if bidirectional_skip else None


def _name(function: Callable) -> str:
    """A mask function as it was put together: and_masks(chunked_overlay, causal_mask_function)."""
    if is_tracing() or not hasattr(function, "__code__"):
        return getattr(function, "__name__", type(function).__name__)
    inner = []
    for value in _cells(function).values():
        for item in value if isinstance(value, tuple) else (value,):
            if callable(item) and hasattr(item, "__code__"):
                inner.append(_name(item))
    return function.__qualname__.split(".<locals>")[0] + (f"({', '.join(inner)})" if inner else "")


def _models_in(file: str) -> list[type[PreTrainedModel]]:
    """The classes of models in a file that has been imported."""
    return [value for value in vars(sys.modules.get(file, object)).values()
            if isinstance(value, type) and issubclass(value, PreTrainedModel) and value.__module__ == file]


@torch.compiler.assume_constant_result
def _computes_on_its_own(configuration: str) -> str:
    """The model file beside a configuration's if its layers do not call attention functions, otherwise empty.

    transformers lets such a model be loaded with any attn_implementation, makes masks for that, and ignores it.
    """
    if configuration not in _own:
        name = configuration.replace(".configuration_", ".modeling_")
        models = _models_in(name)
        _own[configuration] = name if models and not models[0]._can_set_attn_implementation() else ""
    return _own[configuration]


@torch.compiler.assume_constant_result
def _takes_sdpa(file: str, configuration: str = "") -> bool | None:
    """Whether transformers runs its "sdpa" for the models of a file, those of a configuration if this is named; None
    where there are none.

    The layers of the other models were written for what eager attention gets: a floating mask, and everything where
    there is none, whatever module.is_causal says.
    """
    if (file, configuration) not in _sdpa:
        models = _models_in(file.replace(".configuration_", ".modeling_"))
        own = [model for model in models if getattr(model.config_class, "__name__", None) == configuration] or models
        if not own:
            return None
        _sdpa[file, configuration] = all(model._supports_sdpa for model in own)
    return _sdpa[file, configuration]


def _is_for_sdpa(config: Any) -> bool:
    """_takes_sdpa() of a configuration and of all that it has inside, whose layers may get its masks."""
    parts = [getattr(config, name, None) for name in getattr(config, "sub_configs", ())]
    return bool(_takes_sdpa(type(config).__module__, type(config).__name__)) and all(
        _is_for_sdpa(part) for part in parts if part is not None)


def _whole(reason: str, on_dense: str, arguments: dict[str, Any], eager: bool) -> Tensor:
    """[B, 1, Lq, Lk] by transformers: boolean, or the floating one of eager attention."""
    if reason and on_dense == "raise":
        raise Error(f"[attention_cpp.transformers] a dense mask is needed: {reason}")
    if reason and on_dense == "warn" and not is_tracing() and reason not in _warned:
        _warned.add(reason)
        warnings.warn(f"attention_cpp: a dense mask is built: {reason}", stacklevel=2)
    make = masking_utils.eager_mask if eager else masking_utils.sdpa_mask
    return make(**{**arguments, "allow_is_causal_skip": False, "allow_is_bidirectional_skip": False})


def _as_eager(allowed: Tensor, dtype: torch.dtype) -> Tensor:
    """A boolean mask as the floating one of eager attention."""
    return torch.zeros(allowed.shape, dtype=dtype).masked_fill(~allowed, torch.finfo(dtype).min)


class _Mask(Tensor):
    """A mask [B, 1, Lq, Lk] that takes no memory: models and generate() pass it on to the layers.

    says: options of the operator, or a boolean mask. Who computes with it gets the mask of transformers' own that it
    stands for, made then, and kept.
    """

    says: dict[str, Any] | Tensor
    make: Callable[[], Tensor]
    made: Tensor | None

    @staticmethod
    def __new__(cls, says: dict[str, Any] | Tensor, make: Callable[[], Tensor], size: tuple[int, int, int],
                dtype: torch.dtype, device: Any) -> "_Mask":
        self = Tensor._make_wrapper_subclass(cls, (size[0], 1, *size[1:]), dtype=dtype, device=device)
        self.says, self.make, self.made = says, make, None
        return self

    @classmethod
    def __torch_dispatch__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given, options = tree_map_only(cls, cls.whole, (args, kwargs or {}))
        return function(*given, **options)

    def whole(self) -> Tensor:
        """The mask that this stands for."""
        if self.made is None:
            self.made = self.make()
        return self.made

    def content(self, needed: tuple[int, int, int]) -> dict[str, Any] | Tensor:
        """What it says of B, Lq, Lk; the whole mask for other sizes, and once it is there: somebody may write to it."""
        return self.says if self.made is None and (self.shape[0], *self.shape[2:]) == needed else self.whole()

    def __repr__(self, **_: Any) -> str:
        return f"attention_cpp mask {list(self.shape)} of {self.says}"


def _right_padded(allowed: Tensor) -> Tensor | None:
    """The lengths [B] if in allowed [B, Lk] every sequence starts at 0 and has no hole."""
    lengths = allowed.sum(-1)
    places = torch.arange(allowed.shape[1], device=allowed.device)
    return lengths if bool((allowed == (places < lengths[:, None])).all()) else None


def _traced(options: dict[str, Any], allowed: Tensor | None, size: tuple[int, int, int], device: Any) -> Tensor:
    """The same where a compiler looks on, of n entries: options on a tensor [B, 1, 1, Lk], or padding alone.

    uint8, as no mask is, so that a model that computes with it cannot go unnoticed: what comes out has no options.
    """
    batch_size, q_length, kv_length = size
    if allowed is None:
        allowed = torch.ones(batch_size, kv_length, dtype=torch.bool, device=device)
    if "causal" not in options:
        return allowed[:, None, None, :].expand(batch_size, 1, q_length, kv_length)
    carrier = allowed.to(torch.uint8)[:, None, None, :]
    setattr(carrier, _ATTRIBUTE, (q_length, options))
    return carrier


def attention_cpp_mask(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: int | Tensor = 0,
    kv_offset: int = 0,
    mask_function: Callable = masking_utils.causal_mask_function,
    attention_mask: Tensor | None = None,
    allow_is_causal_skip: bool = True,
    allow_is_bidirectional_skip: bool = False,
    *,
    on_dense: str = "",
    **kwargs: Any,
) -> Tensor | None:
    """What attention_cpp_forward() has to know of the mask, in O(n) memory where transformers' own patterns are used.

    Arguments are those of transformers' mask functions; attention_mask [B, kv_offset + Lk] boolean, True = not padding.
    on_dense: "raise" Error or "warn" where a dense mask is needed.

    Raises Error for models whose layers take no attention function, which would be handed a mask that is not theirs.

    Returns a mask [B, 1, Lq, Lk]: of O(n) memory as long as nobody computes with it, and otherwise that of "sdpa", or
    of "eager" where transformers has no "sdpa" for the model. Under a compiler None if module.is_causal says all.
    """
    config = kwargs.get("config")
    if own := _computes_on_its_own(type(config).__module__):
        raise Error(f"[attention_cpp.transformers] the layers of {own} take no attn_implementation: load the model "
                    'with "eager", or with "sdpa" and attention_cpp.torch.enable()')
    arguments = {"batch_size": batch_size, "q_length": q_length, "kv_length": kv_length, "q_offset": q_offset,
                 "kv_offset": kv_offset, "mask_function": mask_function, "attention_mask": attention_mask, **kwargs}
    eager, tracing = config is not None and not _is_for_sdpa(config), is_tracing(attention_mask)
    skips = allow_is_causal_skip, allow_is_bidirectional_skip
    if eager and tracing:
        reason = 'a compiler looks on, and transformers has no "sdpa" for the model' if q_length > 1 else ""
        return _whole(reason, on_dense, arguments, eager)
    size, device = (batch_size, q_length, kv_length), kwargs.get("device", "cpu")
    says, allowed = _what_it_says(arguments, skips, eager, tracing, on_dense)
    if says is None or not eager and isinstance(says, Tensor):
        return says
    if tracing:
        return _traced(says, allowed, size, device)
    if q_length == 1 and isinstance(says, Tensor) and not any(skips):
        return _as_eager(says, kwargs.get("dtype", torch.float32))  # one step of a cache that may be compiled
    dtype = kwargs.get("dtype", torch.float32) if eager else torch.bool
    if isinstance(q_offset, Tensor):
        arguments["q_offset"] = q_offset.clone()  # a static cache changes its own
    make = functools.partial(_as_eager, says, dtype) if isinstance(says, Tensor) else functools.partial(
        _whole, "the model computes with its mask" if q_length > 1 else "", on_dense, arguments, eager)
    return _Mask(says, make, size, dtype, device)


def _what_it_says(arguments: dict[str, Any], skips: tuple[bool, bool], eager: bool, tracing: bool,
                  on_dense: str) -> tuple[dict[str, Any] | Tensor | None, Tensor | None]:
    """(options of the operator; a boolean mask if there are none that say it; None under a compiler if module.is_causal
    says all; which keys are no padding, [B, Lk], where the options need that)."""
    batch_size, q_length, kv_length, q_offset, kv_offset, mask_function, attention_mask = (arguments[name] for name in (
        "batch_size", "q_length", "kv_length", "q_offset", "kv_offset", "mask_function", "attention_mask"))
    pattern = _traced_pattern(
        mask_function, arguments.get("local_size"), arguments.get("config"), *skips
    ) if tracing else _pattern(mask_function)
    if pattern is None:
        reason = f"mask function {_name(mask_function)}" if q_length > 1 else ""
        return _whole(reason, on_dense, arguments, False), None
    causal, window = pattern
    allowed = None  # [B, Lk]
    if attention_mask is not None:
        allowed = masking_utils.prepare_padding_mask(attention_mask, kv_length, kv_offset)[:, kv_offset:][:, :kv_length]
        if not is_tracing(allowed) and bool(allowed.all()):
            allowed = None

    shift = q_offset - kv_offset  # query i stands at key i + shift
    plain = window == _ALL or max(q_length, kv_length) <= window[0] + 1
    at_end = not causal and plain or not isinstance(shift, Tensor) and shift + q_length == kv_length
    if allowed is None and plain and at_end:
        if tracing and skips[not causal]:
            return None, None
        if not tracing and q_length == 1:
            return {}, None
    if q_length == 1:
        return _whole("", "", arguments, False), None  # of n elements
    if tracing and causal and not skips[0]:
        reason = "the model asks for the whole mask (allow_is_causal_skip=False)"
        return _whole(reason, on_dense, arguments, eager), None

    lengths = None if allowed is None or is_tracing(allowed) else _right_padded(allowed)
    options: dict[str, Any] = {}
    if lengths is not None:
        options["key_length"] = lengths
    elif allowed is not None:
        options["mask"] = allowed[:, None, None, :]
    if causal or not plain:
        shift = shift.reshape(1).expand(batch_size) if isinstance(shift, Tensor) else torch.full((batch_size,), shift)
        options.update(causal=causal, window=window, alignment="offset", offset=shift)
    return options, allowed


# ------------------------------------------------------------------------------------------------------- the attention

def _place(module: torch.nn.Module) -> str:
    """Where an error is: the class of the layer, and its number."""
    number = getattr(module, "layer_idx", None)
    layer = "" if number is None else f" of layer {number}"
    return f"[attention_cpp.transformers] {type(module).__name__}{layer}"


def _is_causal(module: torch.nn.Module) -> bool:
    """What no mask means: all keys for a model that transformers has no "sdpa" for, otherwise what the layer says, and
    causal if it says nothing, as in transformers' sdpa."""
    config, file = getattr(module, "config", None), type(module).__module__
    takes_sdpa = _takes_sdpa(file) if config is None else _takes_sdpa(type(config).__module__, type(config).__name__)
    return takes_sdpa is not False and bool(getattr(module, "is_causal", True))


def _content(mask: Any, module: torch.nn.Module, query: Tensor, key: Tensor) -> dict[str, Any] | Tensor:
    """The options that a mask of attention_cpp_mask() says, or another mask, boolean or floating, of four axes."""
    needed = (query.shape[0], query.shape[2], key.shape[2])
    if isinstance(mask, _Mask):
        mask = mask.content(needed)
        if not isinstance(mask, Tensor):
            return mask
    own = getattr(mask, _ATTRIBUTE, None)
    if own is not None:
        size = (mask.shape[0], own[0], mask.shape[3])
        if size != needed:
            raise Error(f"{_place(module)}: the mask is for B, Lq, Lk = {size}, query and key have {needed}")
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
                  sliding_window: int | None, position_bias: Tensor | None, prefixes: bool) -> dict[str, Any]:
    """The options of the operator (or with `prefixes` of `_torch_prefix`) that say which keys a query sees, and the
    bias."""
    options: dict[str, Any] = {} if position_bias is None else {"bias": position_bias}
    if mask is None:
        if _is_causal(module) if is_causal is None else is_causal:
            left = -1 if sliding_window is None else sliding_window - 1
            options.update(causal=True, window=(left, -1), alignment="bottom_right")
        return options
    content = _content(mask, module, query, key)
    if not isinstance(content, Tensor):
        options.update(content)
    elif content.dtype.is_floating_point and position_bias is not None:
        options["bias"] = position_bias + content
    else:
        add_mask(options, content, query, key, prefixes)
    return options


def _batched_options(query: Tensor, position_bias: Tensor | None, sliding_window: int | None,
                     given: dict[str, Any]) -> dict[str, Any]:
    """The options for requests in one sequence [1, H, Lq, D], as generate_batch() has them: its own mask says the same
    in n x n entries."""
    if position_bias is not None:
        raise Error("[attention_cpp.transformers] continuous batching has no position biases")
    starts, starts_of_keys = given["cu_seq_lens_q"], given["cu_seq_lens_k"]
    if int(starts[-1]) != query.shape[2]:
        raise Error(f"[attention_cpp.transformers] {query.shape[2]} queries of which requests have {int(starts[-1])}: "
                    "continuous batching must not be compiled")
    return {"cu_query": starts, "cu_key": starts_of_keys, "causal": True, "alignment": "bottom_right",
            "window": (-1 if sliding_window is None else sliding_window - 1, -1)}


def _wants_weights(module: torch.nn.Module, output_attentions: bool | None) -> bool:
    """Asked for by the argument, or by a hook of transformers that waits for them."""
    if output_attentions:
        return True
    if torch.compiler.is_compiling() and not _active_collector.compiling and not module._forward_hooks:
        return False  # a compiler cannot look into a context variable
    collected = _active_collector.get()
    return collected is not None and any("attentions" in key for key in collected)


def _weights(query: Tensor, key: Tensor, lse: Tensor, options: dict[str, Any]) -> Tensor:
    """[B, H, Lq, Lk]"""
    return weights_of(query, key, lse, options, (0, query.shape[2]), (0, key.shape[2])).to(query.dtype)


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
    """An attention function of transformers.

    Arguments
        query       [B, H, Lq, D]; key [B, Hk, Lk, D]; value [B, Hk, Lk, Dv]: not repeated to H heads
        attention_mask  from attention_cpp_mask(), or another's: boolean (True = attend) or floating (added), which then
                    says everything. None: causal if is_causal, or else module.is_causal, does, the last query seeing
                    all keys; for the layers of models without "sdpa" module.is_causal does not count, and None is all
        scaling     default 1 / sqrt(D)
        dropout     always applied: 0 when evaluating
        sliding_window  with no mask and causal: how many keys a query sees, its own included
        cache       of generate_batch(): keys and values are put into it, and what each request has is taken from it
        s_aux       [H], sinks; position_bias [B|1, H|1, Lq|1, Lk|1], added; gradients of both

    Returns (out [B, Lq, H, Dv], weights): the weights [B, H, Lq, Lk] if output_attentions, before dropout and with
    their gradient, otherwise None.

    Raises Error for another device than the CPU, for what does not fit together, and for an argument of another name
    that is not None, as it may change the result: `indices` of the keys that sparse attention leaves.
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
    if query.shape[0] != key.shape[0] and query.shape[0] == 1:  # learned queries, the same for all
        query = query.expand(key.shape[0], -1, -1, -1)
    query, key, value, position_bias = _torch_ops.autocast(query, key, value, position_bias)
    wants_weights = _wants_weights(module, output_attentions)
    if cache is None and kwargs.get("read_index") is None:
        options = _mask_options(attention_mask, module, query, key, is_causal, sliding_window, position_bias,
                                not wants_weights)
    else:
        if cache is not None:  # from transformers 5.24 on the model does that
            key, value = cache.update(key, value, module.layer_idx, kwargs)
        options = _batched_options(query, position_bias, sliding_window, kwargs)
    options.update(scale=scaling, softcap=softcap or 0.0, sink=s_aux, dropout=dropout)
    if not wants_weights:
        return _torch_prefix.attention_output(query, key, value, options).transpose(1, 2).contiguous(), None
    out, lse = _torch_ops.attention(query, key, value, **options)
    del options["dropout"]
    return out.transpose(1, 2).contiguous(), _weights(query, key, lse, options)


def register(name: str = "attention_cpp", *, strict: bool = False, warn: bool = False) -> None:
    """Makes attn_implementation=name known to transformers. May be called again, to change the options.

    A name of transformers' own is ours from then on: register("flex_attention") serves models that were loaded with it,
    with gradients, which torch's flex_attention has not on the CPU; register("paged|eager") is generate_batch() of
    models that were loaded with "eager" or that.

    strict: raise Error where a model needs a dense mask; warn: warn of it, once for each reason.
    """
    on_dense = "raise" if strict else "warn" if warn else ""
    if warn:
        _warned.clear()
    AttentionInterface.register(name, attention_cpp_forward)
    AttentionMaskInterface.register(name, functools.partial(attention_cpp_mask, on_dense=on_dense))


# ------------------------------------------------------------------------------------------------- encoders, unpadded

def _collects() -> bool:
    """Whether transformers keeps what single layers give (output_hidden_states, output_attentions)."""
    return bool(_active_collector.get())


def _computed_packed() -> Tensor:
    raise Error("[attention_cpp.transformers] a packed encoder's layers compute with their mask")


def _run_packed(stack: Callable, *args: Any, **kwargs: Any) -> Any:
    """stack(hidden_states [B, L, C], attention_mask) over the tokens that exist, as one sequence [1, T, C]."""
    given = {**dict(zip(("hidden_states", "attention_mask"), args)), **kwargs}
    hidden, mask = given["hidden_states"], given.get("attention_mask")
    padding = mask.says if isinstance(mask, _Mask) and isinstance(mask.says, dict) else {}
    if not padding or padding.keys() - {"key_length", "mask"} or len(args) > 2 or _collects() or (
            given.get("encoder_hidden_states") is not None):
        return stack(*args, **kwargs)
    exists = padding["mask"][:, 0, 0] if "mask" in padding else (
        torch.arange(hidden.shape[1]) < padding["key_length"][:, None])  # [B, L]
    lengths = exists.sum(-1, dtype=torch.int32)
    starts = torch.nn.functional.pad(lengths.cumsum(0, dtype=torch.int32), (1, 0))
    places = exists.flatten().nonzero().squeeze(1)  # [T] in [0, B L)
    T = len(places)
    given["hidden_states"] = hidden.flatten(0, 1).index_select(0, places)[None]
    given["attention_mask"] = _Mask({"cu_query": starts, "cu_key": starts}, _computed_packed, (1, T, T), torch.bool,
                                    hidden.device)
    result = stack(**given)

    def padded(packed: Tensor) -> Tensor:
        B, L, C = hidden.shape
        return packed.new_zeros(B * L, C).index_copy(0, places, packed[0]).view(B, L, C)

    if isinstance(result, Tensor):
        return padded(result)
    if isinstance(result, tuple):
        return (padded(result[0]), *result[1:])
    result.last_hidden_state = padded(result.last_hidden_state)
    return result


def _stack_of(model: PreTrainedModel) -> torch.nn.Module:
    """The one module of a model that runs a list of layers over (hidden_states, attention_mask)."""
    found = {}
    for name, module in model.named_modules():
        lists = [child for child in module.children() if isinstance(child, torch.nn.ModuleList) and len(child) > 0]
        parameters = inspect.signature(type(module).forward).parameters
        if len(lists) == 1 and {"hidden_states", "attention_mask"} <= parameters.keys():
            found[name] = module
    if len(found) != 1:
        raise Error(f"[attention_cpp.transformers] {type(model).__name__} has {len(found)} modules that run a list of "
                    f"layers over (hidden_states, attention_mask){': ' if found else ''}{', '.join(found)}; a packed "
                    "encoder has one")
    return found.popitem()[1]


def _check_packing(model: PreTrainedModel, stack: torch.nn.Module) -> None:
    """Runs two sequences of random numbers, one padded, with padding and without it.

    Layers that look at a token's place in the array (relative positions, convolutions) give something else.
    """
    weight = next(p for p in stack.parameters() if p.is_floating_point())
    generator = torch.Generator().manual_seed(0)
    exists = torch.tensor([[True] * 7, [True] * 3 + [False] * 4])
    hidden = torch.randn(2, 7, model.config.hidden_size, generator=generator).to(weight.dtype)
    mask = attention_cpp_mask(2, 7, 7, mask_function=masking_utils.bidirectional_mask_function, attention_mask=exists,
                              config=model.config)
    training = stack.training
    try:
        with torch.no_grad():
            stack.eval()
            results = [run(hidden, attention_mask=mask) for run in (stack, functools.partial(_run_packed, stack))]
    finally:
        stack.train(training)
    expected, actual = ((x if isinstance(x, Tensor) else x[0])[exists].double() for x in results)
    if not (actual - expected).abs().max() <= 16 * torch.finfo(weight.dtype).eps * expected.abs().max():
        raise Error(f"[attention_cpp.transformers] the layers of {type(model).__name__} do more than attention between "
                    "tokens: it cannot be packed")


def packed_encoder(model: PreTrainedModel) -> PreTrainedModel:
    """Removes padding from the layers of an encoder: BERT, RoBERTa, DistilBERT, ELECTRA and their like, with any head.

    From then on the tokens that exist in a batch pass through all layers as one sequence, forward and backward, each
    attending to its own text alone; the result is padded again, with zeros where no token is. The model is changed,
    and returned: it takes attn_implementation="attention_cpp", which register() has to have made known. Calls without
    padding, under a compiler, or that ask for the states or weights of single layers run as before.

    Raises Error for a model that is no such encoder, or whose layers give something else then: that is tried first.
    """
    if not isinstance(model, PreTrainedModel):
        raise TypeError(f"[attention_cpp.transformers] the model must be a PreTrainedModel, not {type(model).__name__}")
    if "attention_cpp" not in AttentionInterface().valid_keys():
        raise Error("[attention_cpp.transformers] call register() first")
    stack = _stack_of(model)
    before = model.config._attn_implementation
    model.set_attn_implementation("attention_cpp")
    try:
        _check_packing(model, stack)
    except Error:
        model.set_attn_implementation(before)
        raise
    stack.forward = functools.partial(_run_packed, stack.forward)
    return model
