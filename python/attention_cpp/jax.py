"""jax.nn.dot_product_attention on the CPU, with the same signature, fused, in O(n) memory, with gradients.

    >>> import attention_cpp.jax
    >>> out = attention_cpp.jax.dot_product_attention(query, key, value, is_causal=True)   # also under jax.jit

XLA calls back into Python, which passes the arrays to the library without a copy. query, key, value and bias have
gradients, first derivatives only. vmap makes one call for each element.

One result differs from that of jax.nn: a query without an allowed key gives 0, where XLA's finite substitute for -inf
gives the mean of all values.
"""

from ._jax.attention import dot_product_attention

__all__ = ["dot_product_attention"]
