"""packed_encoder(), which removes padding from the layers of encoders of transformers."""

from __future__ import annotations

import functools
import inspect
from typing import Any, Callable

import torch
from torch import Tensor
from transformers import AttentionInterface, PreTrainedModel, masking_utils
from transformers.utils.output_capturing import _active_collector

from .._core import Error
from .._torch.options import Options
from .masks import Mask, attention_cpp_mask


def _collects() -> bool:
    """Whether transformers collects the results of single layers (output_hidden_states, output_attentions)."""
    return bool(_active_collector.get())


def _computed_packed() -> Tensor:
    raise Error("[attention_cpp.transformers] the layers of a packed encoder must not compute with attention_mask")


def _run_packed(stack: Callable, *args: Any, **kwargs: Any) -> Any:
    """Calls stack(hidden_states [B, L, C], attention_mask) with the T tokens that are not padding, as [1, T, C]."""
    given = {**dict(zip(("hidden_states", "attention_mask"), args)), **kwargs}
    hidden, mask = given["hidden_states"], given.get("attention_mask")
    padding = mask.equal if isinstance(mask, Mask) and isinstance(mask.equal, Options) else None
    names = set() if padding is None else vars(padding).keys()
    if not names or names - {"key_length", "mask"} or len(args) > 2 or _collects() or (
            given.get("encoder_hidden_states") is not None):
        return stack(*args, **kwargs)
    exists = padding.mask[:, 0, 0] if padding.mask is not None else (
        torch.arange(hidden.shape[1]) < padding.key_length[:, None])  # [B, L]
    lengths = exists.sum(-1, dtype=torch.int32)
    starts = torch.nn.functional.pad(lengths.cumsum(0, dtype=torch.int32), (1, 0))
    places = exists.flatten().nonzero().squeeze(1)  # [T] in [0, B L)
    T = len(places)
    given["hidden_states"] = hidden.flatten(0, 1).index_select(0, places)[None]
    given["attention_mask"] = Mask(Options(cu_seqlens_q=starts, cu_seqlens_k=starts), _computed_packed, (1, T, T),
                                   torch.bool, hidden.device)
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
    """Returns the module of a model that runs a list of layers over (hidden_states, attention_mask). Raises Error if
    the model has none or several."""
    found = {}
    for name, module in model.named_modules():
        lists = [child for child in module.children() if isinstance(child, torch.nn.ModuleList) and len(child) > 0]
        parameters = inspect.signature(type(module).forward).parameters
        if len(lists) == 1 and {"hidden_states", "attention_mask"} <= parameters.keys():
            found[name] = module
    if len(found) != 1:
        raise Error(f"[attention_cpp.transformers] {type(model).__name__} has {len(found)} modules that run a list of "
                    f"layers over (hidden_states, attention_mask){': ' if found else ''}{', '.join(found)}; a packed "
                    "encoder has one. Models that give their layers positions or windows too, as ModernBERT, keep "
                    'their padding: attn_implementation="attention_cpp" alone supports them')
    return found.popitem()[1]


def _check_packing(model: PreTrainedModel, stack: torch.nn.Module) -> None:
    """Runs two sequences of random numbers, one of them padded, with padding and packed. Raises Error if the results
    differ, as for layers that use the index of a token in the array (relative positions, convolutions)."""
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
                    "tokens, so the model cannot be packed")


def _unpacked(model: PreTrainedModel, stack: torch.nn.Module) -> PreTrainedModel:
    """Restores what packed_encoder() has changed."""
    forward = vars(stack).pop("forward")
    if forward.is_own:
        stack.forward = forward.args[0]
    model.set_attn_implementation(forward.implementation)
    return model


def packed_encoder(model: PreTrainedModel, packed: bool = True) -> PreTrainedModel:
    """Removes padding from the layers of an encoder: BERT, RoBERTa, DistilBERT, ELECTRA and their like, with any head.

        >>> attention_cpp.transformers.register()
        >>> model = attention_cpp.transformers.packed_encoder(AutoModel.from_pretrained(name))

    It changes the model in place and returns it. The tokens of a batch then pass through all layers as one packed
    sequence, forward and backward, and each token attends to its own text only. The result is padded with zeros again.
    The model gets attn_implementation="attention_cpp"; call register() before. Calls without padding, under a compiler,
    or that return the states or weights of single layers run as before.

    packed=False restores the model and its attn_implementation. A model that is already in the wanted state is returned
    unchanged.

    Raises Error for a model that is not such an encoder, and for one whose layers give different results without
    padding, which the function tests on random numbers first. Raises TypeError if the model is not a PreTrainedModel.
    """
    if not isinstance(model, PreTrainedModel):
        raise TypeError(f"[attention_cpp.transformers] the model must be a PreTrainedModel, not {type(model).__name__}")
    if "attention_cpp" not in AttentionInterface().valid_keys():
        raise Error('[attention_cpp.transformers] "attention_cpp" is not registered in transformers: call register() '
                    "first")
    stack = _stack_of(model)
    own = vars(stack).get("forward")
    is_packed = isinstance(own, functools.partial) and own.func is _run_packed
    if is_packed == packed:
        return model
    if is_packed:
        return _unpacked(model, stack)
    before = model.config._attn_implementation
    model.set_attn_implementation("attention_cpp")
    try:
        _check_packing(model, stack)
    except Error:
        model.set_attn_implementation(before)
        raise
    run = functools.partial(_run_packed, stack.forward)
    run.implementation, run.is_own = before, own is not None  # type: ignore[attr-defined]
    stack.forward = run
    return model
