"""jax.nn.dot_product_attention on the CPU: same signature, one fused path, O(n) memory, with gradients.

    >>> import attention_cpp.jax
    >>> out = attention_cpp.jax.dot_product_attention(query, key, value, is_causal=True)   # also under jax.jit

XLA calls back into Python, which hands the arrays to the library without a copy. Gradients of query, key, value and
bias; first derivatives alone. Under vmap one call follows the other.

One result differs from jax.nn's: a query that sees no key gives 0, where XLA's finite stand-in for -inf gives the mean
of all values.
"""

from ._jax.attention import dot_product_attention

__all__ = ["dot_product_attention"]
