"""Hugging Face transformers (5; tested with 5.23) on the CPU: every model that takes an attention implementation.

    >>> import attention_cpp.transformers
    >>> attention_cpp.transformers.register()
    >>> model = AutoModelForCausalLM.from_pretrained(name, attn_implementation="attention_cpp")

or model.set_attn_implementation("attention_cpp"). Grouped heads are read in place. Windows, softcaps, sinks, position
biases, padding and caches stay fused, and neither scores nor masks are stored as n x n. If a model needs another mask
than causal, bidirectional, window or padding, the integration builds a dense one: register(warn=True) then warns, and
register(strict=True) raises. `output_attentions=True` returns the weights, with their gradient.
"""

from ._transformers.forward import attention_cpp_forward, register
from ._transformers.masks import attention_cpp_mask
from ._transformers.packed_encoder import packed_encoder

__all__ = ["attention_cpp_forward", "attention_cpp_mask", "packed_encoder", "register"]
