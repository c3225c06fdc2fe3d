"""mamba_ssm's functions of Mamba 2 on the CPU: same signatures and conventions.

    >>> import attention_cpp.causal_conv1d, attention_cpp.mamba_ssm
    >>> attention_cpp.causal_conv1d.install()
    >>> attention_cpp.mamba_ssm.install()      # before transformers imports the model: Mamba 2, Bamba, Falcon-H1

mamba_chunk_scan_combined computes prompts and training, with gradients. selective_state_update is a step of decoding,
for Mamba 1 too, and writes the state in place. mamba_split_conv1d_scan_combined returns None, upon which transformers
calls the parts: the convolution, the scan, the norm and the projection.

Types are float32, float64, bfloat16 and float16; dt, the decay and the states are float32 (float64 for float64). A must
be at most 0. Wrong arguments raise attention_cpp.Error (a ValueError) or TypeError.
"""

from ._mamba.functions import mamba_chunk_scan_combined, mamba_split_conv1d_scan_combined, selective_state_update
from ._mamba.install import install, uninstall

__all__ = ["install", "mamba_chunk_scan_combined", "mamba_split_conv1d_scan_combined", "selective_state_update",
           "uninstall"]
