"""causal_conv1d's functions on the CPU: same signatures and conventions.

    >>> from attention_cpp.causal_conv1d import causal_conv1d_fn
    >>> attention_cpp.causal_conv1d.install()      # and `from causal_conv1d import causal_conv1d_fn` works anywhere

causal_conv1d_fn has gradients of x, weight, bias and initial_states. causal_conv1d_update is a step of decoding, which
writes the state in place. Types are float32, float64, bfloat16 and float16; sums run in float32, or float64. Unlike in
causal_conv1d, width may be 1 to 8. Wrong arguments raise attention_cpp.Error (a ValueError) or TypeError, another
activation NotImplementedError.
"""

from ._conv1d.functions import causal_conv1d_fn, causal_conv1d_update
from ._conv1d.install import install, uninstall

__all__ = ["causal_conv1d_fn", "causal_conv1d_update", "install", "uninstall"]
