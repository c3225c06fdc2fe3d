"""torch's scaled_dot_product_attention on the CPU, with the same signature and meaning, fused for every argument.

    >>> import torch, attention_cpp.torch
    >>> attention_cpp.torch.enable()        # torch.nn.functional's own, and so every model that calls it

Dropout, a mask that requires a gradient, Dv != D and grouped heads with a mask stay fused, with O(n) memory; torch
needs n x n memory for them. query, key, value and a floating mask have gradients. Higher derivatives and forward mode
need n x n memory. The library runs on torch's threads.

A call that the library cannot compute (another device, other dtypes, wrong arguments) goes to torch: explain() returns
the reason, enable(warn=True) warns and enable(strict=True) raises.
"""

from .._torch.attention import attention
from .._torch.convolution import causal_convolution
from .._torch.flex import explain_flex_attention, explain_flex_attention_backward, flex_attention
from .._torch.linear import linear_attention
from .._torch.masks import mask_counts
from .._torch.enabling import disable, enable, enabled
from .._torch.sdpa import explain, explain_backward, scaled_dot_product_attention
from .._torch.statistics import attention_statistics
from .._torch.threads import share_threads
from .._torch.weights import attention_weights

__all__ = ["attention", "attention_statistics", "attention_weights", "causal_convolution", "disable", "enable",
           "enabled", "explain", "explain_backward", "explain_flex_attention", "explain_flex_attention_backward",
           "flex_attention", "linear_attention", "mask_counts", "scaled_dot_product_attention", "share_threads"]
