"""Hugging Face transformers (5; tested with 5.23) on the CPU: every model that takes an attention implementation.

    >>> import attention_cpp.transformers
    >>> attention_cpp.transformers.register()
    >>> model = AutoModelForCausalLM.from_pretrained(name, attn_implementation="attention_cpp")

or model.set_attn_implementation("attention_cpp"). Grouped heads are read in place; windows, softcaps, sinks, position
biases, padding and caches stay fused; neither the scores nor the mask is stored as n x n. Where a model needs a mask
that is none of causal, bidirectional, window and padding, a dense one is made: register(warn=True) warns of it, and
register(strict=True) raises. `output_attentions=True` returns the weights, with their gradient.
"""

from ._transformers.forward import attention_cpp_forward, register
from ._transformers.masks import attention_cpp_mask
from ._transformers.packed_encoder import packed_encoder

__all__ = ["attention_cpp_forward", "attention_cpp_mask", "packed_encoder", "register"]
