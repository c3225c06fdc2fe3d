"""attention_cpp_mask(), which turns mask functions of transformers that it recognises into options of the operator."""

from __future__ import annotations

import functools
import sys
import warnings
from typing import Any, Callable

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only
from transformers import PreTrainedModel, masking_utils
from transformers.utils.import_utils import is_tracing

from .._core import Error
from .._torch.options import NONE_GIVEN, Options

ATTRIBUTE = "attention_cpp_options"
_ALL = (-1, -1)
_AND = masking_utils.and_masks(masking_utils.causal_mask_function).__code__
_LEFT_WINDOW = masking_utils.sliding_window_overlay(1).__code__
_BOTH_WINDOW = masking_utils.sliding_window_bidirectional_overlay(1).__code__
OnDense = Callable[[str], None] | None  # called with the reason for each dense mask


def refuse_dense(reason: str) -> None:
    """Raises Error: the on_dense of register(strict=True)."""
    raise Error(f"[attention_cpp.transformers] a dense mask is needed: {reason}")


class WarnOfDense:
    """Warns once for each reason: the on_dense of register(warn=True)."""

    def __init__(self) -> None:
        self._reasons: set[str] = set()

    def __call__(self, reason: str) -> None:
        if not is_tracing() and reason not in self._reasons:
            self._reasons.add(reason)
            warnings.warn(f"attention_cpp: a dense mask is built: {reason}", stacklevel=3)


def _cells(function: Callable) -> dict[str, Any]:
    """Returns the variables that a function captures, by name."""
    cells = getattr(function, "__closure__", None) or ()
    return dict(zip(function.__code__.co_freevars, (cell.cell_contents for cell in cells)))


def _pattern(mask_function: Callable) -> tuple[bool, tuple[int, int]] | None:
    """Returns (causal, window) of a mask function of transformers, or None for one that is not recognised."""
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
    """Returns _pattern() under a compiler, which cannot read the variables that a function captures.

    It derives a window from the configuration instead. transformers sets the skip arguments only if the model's own
    window (or its own chunks) was not combined with another mask.
    """
    code = getattr(mask_function, "__code__", None)
    if code is not _AND or local_size is None or local_size != getattr(config, "sliding_window", None) or (
            local_size == getattr(config, "attention_chunk_size", None)):
        return None if code is _AND else _pattern(mask_function)
    if causal_skip:
        return True, (local_size - 1, -1)
    return (False, (local_size, local_size)) if bidirectional_skip else None


def _name(function: Callable) -> str:
    """Returns the name of a mask function with those that it combines: and_masks(chunked_overlay, ...)."""
    if is_tracing() or not hasattr(function, "__code__"):
        return getattr(function, "__name__", type(function).__name__)
    inner = []
    for value in _cells(function).values():
        for item in value if isinstance(value, tuple) else (value,):
            if callable(item) and hasattr(item, "__code__"):
                inner.append(_name(item))
    return function.__qualname__.split(".<locals>")[0] + (f"({', '.join(inner)})" if inner else "")


def _models_in(file: str) -> list[type[PreTrainedModel]]:
    """Returns the model classes in an imported modeling file, an empty list if the file is not imported."""
    return [value for value in vars(sys.modules.get(file, object)).values()
            if isinstance(value, type) and issubclass(value, PreTrainedModel) and value.__module__ == file]


@functools.cache
def _own_file(configuration: str) -> str:
    """Computes _computes_on_its_own() once for each configuration file."""
    name = configuration.replace(".configuration_", ".modeling_")
    models = _models_in(name)
    return name if models and not models[0]._can_set_attn_implementation() else ""


@torch.compiler.assume_constant_result
def _computes_on_its_own(configuration: str) -> str:
    """Returns the modeling file of a configuration file if its layers do not call attention functions, otherwise "".

    transformers loads such a model with any attn_implementation and makes masks for it, but its layers ignore it.
    """
    return _own_file(configuration)


@functools.cache
def _sdpa_of(file: str, configuration: str) -> bool:
    """Computes takes_sdpa(). Raises LookupError if there are no models: the cache must not keep that, because the file
    may be imported later."""
    models = _models_in(file.replace(".configuration_", ".modeling_"))
    own = [model for model in models if getattr(model.config_class, "__name__", None) == configuration] or models
    if not own:
        raise LookupError(file)
    return all(model._supports_sdpa for model in own)


@torch.compiler.assume_constant_result
def takes_sdpa(file: str, configuration: str = "") -> bool | None:
    """Whether transformers has "sdpa" for the models of a modeling or configuration file, or for those of one class of
    configurations if it is named. None if no models are found.

    Layers without "sdpa" expect the semantics of eager attention: masks are floating, and a call without a mask is not
    causal, whatever module.is_causal is.
    """
    try:
        return _sdpa_of(file, configuration)
    except LookupError:
        return None


def _is_for_sdpa(config: Any) -> bool:
    """Whether takes_sdpa() is true of a configuration and of its parts, whose layers may get its masks."""
    parts = [getattr(config, name, None) for name in getattr(config, "sub_configs", ())]
    return bool(takes_sdpa(type(config).__module__, type(config).__name__)) and all(
        _is_for_sdpa(part) for part in parts if part is not None)


def _whole(reason: str, on_dense: OnDense, arguments: dict[str, Any], eager: bool) -> Tensor:
    """Returns the dense mask [B, 1, Lq, Lk] of transformers: boolean, or the floating one of eager attention. Calls
    on_dense(reason) if there is a reason."""
    if reason and on_dense is not None:
        on_dense(reason)
    make = masking_utils.eager_mask if eager else masking_utils.sdpa_mask
    return make(**{**arguments, "allow_is_causal_skip": False, "allow_is_bidirectional_skip": False})


def _as_eager(allowed: Tensor, dtype: torch.dtype) -> Tensor:
    """Converts a boolean mask to the floating one of eager attention."""
    return torch.zeros(allowed.shape, dtype=dtype).masked_fill(~allowed, torch.finfo(dtype).min)


class Mask(Tensor):
    """A mask [B, 1, Lq, Lk] without memory, which models and generate() pass on to the layers.

    equal: options of the operator, or a boolean mask, that are equal to it. make: makes the mask of transformers, which
    the first operation on this tensor calls. The result is kept in `made`.
    """

    equal: Options | Tensor
    make: Callable[[], Tensor]
    made: Tensor | None

    @staticmethod
    def __new__(cls, equal: Options | Tensor, make: Callable[[], Tensor], size: tuple[int, int, int],
                dtype: torch.dtype, device: Any) -> "Mask":
        self = Tensor._make_wrapper_subclass(cls, (size[0], 1, *size[1:]), dtype=dtype, device=device)
        self.equal, self.make, self.made = equal, make, None
        return self

    @classmethod
    def __torch_dispatch__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given, options = tree_map_only(cls, cls.whole, (args, kwargs or {}))
        return function(*given, **options)

    def whole(self) -> Tensor:
        """Returns the mask in memory. The first call makes it."""
        if self.made is None:
            self.made = self.make()
        return self.made

    def content(self, needed: tuple[int, int, int]) -> Options | Tensor:
        """Returns `equal` for these B, Lq, Lk. Returns the whole mask for other sizes, and once it is made, because the
        model may write to it."""
        return self.equal if self.made is None and (self.shape[0], *self.shape[2:]) == needed else self.whole()

    def __repr__(self, **_: Any) -> str:
        return f"attention_cpp mask {list(self.shape)} of {self.equal}"


def _right_padded(allowed: Tensor) -> Tensor | None:
    """Returns the lengths [B] if every sequence of allowed [B, Lk] starts at key 0 and has no hole, otherwise None."""
    lengths = allowed.sum(-1)
    places = torch.arange(allowed.shape[1], device=allowed.device)
    return lengths if bool((allowed == (places < lengths[:, None])).all()) else None


def _traced(options: Options, allowed: Tensor | None, size: tuple[int, int, int], device: Any) -> Tensor:
    """Returns a mask under a compiler, with n entries: padding [B, 1, Lq, Lk], or a uint8 tensor [B, 1, 1, Lk] that has
    the options as an attribute.

    No other mask is uint8. So if a model computes with this one, the result has no options and is detected.
    """
    batch_size, q_length, kv_length = size
    if allowed is None:
        allowed = torch.ones(batch_size, kv_length, dtype=torch.bool, device=device)
    if "causal" not in vars(options):
        return allowed[:, None, None, :].expand(batch_size, 1, q_length, kv_length)
    carrier = allowed.to(torch.uint8)[:, None, None, :]
    setattr(carrier, ATTRIBUTE, (q_length, options))
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
    on_dense: OnDense = None,
    **kwargs: Any,
) -> Tensor | None:
    """Makes the mask for attention_cpp_forward(), in O(n) memory for transformers' own patterns. Models call it after
    register().

    Arguments
        batch_size, q_length, kv_length   B, Lq and Lk
        q_offset, kv_offset   the positions of the first query and of the first key
        mask_function   a mask function of transformers: causal, bidirectional, with a window, or another one
        attention_mask  boolean [B, kv_offset + Lk], True = not padding. None: no padding
        allow_is_causal_skip, allow_is_bidirectional_skip   the result may be None if module.is_causal replaces it
        on_dense    on_dense(reason) is called if a dense mask is needed
        kwargs      other arguments of transformers' mask functions, as config and dtype

    Returns a mask [B, 1, Lq, Lk]. It takes O(n) memory until the model computes with it; then it becomes the mask of
    "sdpa", or of "eager" if transformers has no "sdpa" for the model. Under a compiler the result is None if
    module.is_causal is equal to the mask.

    Raises Error for a model whose layers call no attention function, because they would get a mask of another kind.
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
        reason = 'the model is compiled, and transformers has no "sdpa" for it' if q_length > 1 else ""
        return _whole(reason, on_dense, arguments, eager)
    size, device = (batch_size, q_length, kv_length), kwargs.get("device", "cpu")
    equal, allowed = _equal_to(arguments, skips, eager, tracing, on_dense)
    if equal is None or not eager and isinstance(equal, Tensor):
        return equal
    if tracing:
        return _traced(equal, allowed, size, device)
    if q_length == 1 and isinstance(equal, Tensor) and not any(skips):
        return _as_eager(equal, kwargs.get("dtype", torch.float32))  # a step with a cache, which may be compiled
    dtype = kwargs.get("dtype", torch.float32) if eager else torch.bool
    if isinstance(q_offset, Tensor):
        arguments["q_offset"] = q_offset.clone()  # a static cache changes its own tensor
    make = functools.partial(_as_eager, equal, dtype) if isinstance(equal, Tensor) else functools.partial(
        _whole, "the model computes with its mask" if q_length > 1 else "", on_dense, arguments, eager)
    return Mask(equal, make, size, dtype, device)


def _equal_to(arguments: dict[str, Any], skips: tuple[bool, bool], eager: bool, tracing: bool,
              on_dense: OnDense) -> tuple[Options | Tensor | None, Tensor | None]:
    """Returns (equal, allowed). equal: options that are equal to the mask, a mask if there are none, or None under a
    compiler if module.is_causal is equal to it. allowed [B, Lk]: the keys that are not padding, or None for all."""
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

    shift = q_offset - kv_offset  # query i has the position of key i + shift
    plain = window == _ALL or max(q_length, kv_length) <= window[0] + 1
    at_end = not causal and plain or not isinstance(shift, Tensor) and shift + q_length == kv_length
    if allowed is None and plain and at_end:
        if tracing and skips[not causal]:
            return None, None
        if not tracing and q_length == 1:
            return NONE_GIVEN, None
    if q_length == 1:
        return _whole("", None, arguments, False), None  # one row, of n elements
    if tracing and causal and not skips[0]:
        reason = "the model needs the whole mask (allow_is_causal_skip=False)"
        return _whole(reason, on_dense, arguments, eager), None

    lengths = None if allowed is None or is_tracing(allowed) else _right_padded(allowed)
    options = NONE_GIVEN
    if lengths is not None:
        options = Options(key_length=lengths)
    elif allowed is not None:
        options = Options(mask=allowed[:, None, None, :])
    if causal or not plain:
        shift = shift.reshape(1).expand(batch_size) if isinstance(shift, Tensor) else torch.full((batch_size,), shift)
        options = options.having(causal=causal, window=window, alignment="offset", offset=shift)
    return options, allowed
