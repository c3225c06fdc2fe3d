"""flash-attention 2's functions on the CPU, with the same signatures and conventions.

    >>> from attention_cpp.flash_attn import flash_attn_func
    >>> attention_cpp.flash_attn.install()      # and `from flash_attn import flash_attn_func` works anywhere

Tensors are (batch, seqlen, nheads, headdim), or (total, nheads, headdim) for packed sequences: float32, float64,
bfloat16 or float16. All functions except flash_attn_with_kvcache have gradients, through softmax_lse too.

Common arguments

    dropout_p           probability of dropping a weight; torch's generator gives the seed. Pass 0 in evaluation
    softmax_scale       factor on the scores, default 1 / sqrt(headdim)
    causal              aligned to the bottom right: query i attends to keys j <= i + seqlen_k - seqlen_q
    window_size         (left, right) keys around i + seqlen_k - seqlen_q, both ends included; -1 = no limit. It
                        composes with causal. A tuple, a list or a tensor of two integers
    softcap             c > 0: scores become c tanh(score / c)
    alibi_slopes        (nheads,) or (batch, nheads) float32: adds -slope |i + seqlen_k - seqlen_q - j|
    deterministic       without effect: results are always deterministic
    return_attn_probs   also return softmax_lse, (batch, nheads, seqlen_q) or (nheads, total_q), and None in the place
                        of S_dmask, an n x n matrix that flash-attention has "for testing only"
    nheads_k            the heads of k and v; divides nheads. Query head h reads key head h / (nheads / nheads_k)

A query without an allowed key gives 0, with softmax_lse -inf. Unlike in flash-attn, headdim may be any size up to 1024,
v may have another one, and pages may have any size. Wrong arguments raise attention_cpp.Error (a ValueError) or
TypeError.
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
