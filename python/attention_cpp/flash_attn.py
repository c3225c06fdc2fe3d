"""flash-attention 2's functions on the CPU: same signatures and conventions.

    >>> from attention_cpp.flash_attn import flash_attn_func
    >>> attention_cpp.flash_attn.install()      # and `from flash_attn import flash_attn_func` works anywhere

Tensors are (batch, seqlen, nheads, headdim), or (total, nheads, headdim) for packed sequences: float32, float64,
bfloat16 or float16. Everything has gradients, through softmax_lse too, except flash_attn_with_kvcache.

What the functions share

    dropout_p           the seed comes from torch's generator; pass 0 when evaluating
    softmax_scale       default 1 / sqrt(headdim)
    causal              aligned to the bottom right: query i sees keys j <= i + seqlen_k - seqlen_q
    window_size         (left, right) of the same place, inclusive; -1 = no limit. Composes with causal. Any two whole
                        numbers: a tuple, a list, a tensor
    softcap             c > 0: scores become c tanh(score / c)
    alibi_slopes        (nheads,) or (batch, nheads) float32: adds -slope |i + seqlen_k - seqlen_q - j|
    deterministic       accepted: results always are
    return_attn_probs   also return softmax_lse, (batch, nheads, seqlen_q) or (nheads, total_q), and None: S_dmask, the
                        n x n matrix that flash-attention has "for testing only", is never stored
    nheads_k            of k and v, divides nheads: query head h reads key head h / (nheads / nheads_k)

A query that sees no key gives 0, with softmax_lse -inf. Unlike the original, headdim may be anything up to 1024 and
another for v, and pages may have any size. Every wrong argument raises attention_cpp.Error (a ValueError) or TypeError.
"""

from ._flash.cache import flash_attn_with_kvcache
from ._flash.functions import (flash_attn_func, flash_attn_kvpacked_func, flash_attn_qkvpacked_func,
                               flash_attn_varlen_func, flash_attn_varlen_kvpacked_func,
                               flash_attn_varlen_qkvpacked_func)
from ._flash.install import install, uninstall
from ._flash.padding import (index_first_axis, index_put_first_axis, pad_input, unpad_input,
                             unpad_input_for_concatenated_sequences)
from ._flash.rotary import apply_rotary_emb

__all__ = ["flash_attn_func", "flash_attn_kvpacked_func", "flash_attn_qkvpacked_func", "flash_attn_varlen_func",
           "flash_attn_varlen_kvpacked_func", "flash_attn_varlen_qkvpacked_func", "flash_attn_with_kvcache",
           "index_first_axis", "index_put_first_axis", "pad_input", "unpad_input",
           "unpad_input_for_concatenated_sequences", "apply_rotary_emb", "install", "uninstall"]
