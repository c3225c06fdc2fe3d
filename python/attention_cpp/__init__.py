"""Exact scaled dot-product attention on the CPU.

    >>> import numpy as np, attention_cpp
    >>> q = k = v = np.random.default_rng(0).standard_normal((1, 8, 1000, 64), dtype=np.float32)
    >>> out = attention_cpp.attention(q, k, v, causal=True)

`attention` takes NumPy, torch (CPU) and JAX (CPU) arrays, and every other array that supports DLPack or the buffer
protocol, with any strides and without a copy. It returns arrays of the same library. Memory is O(n): no option makes
the forward or the backward store an n x n matrix. Results are bitwise equal for any number of threads.

`linear_attention` is attention with a state of fixed size: RetNet, Mamba 2, DeltaNet, gated delta nets and others.

The integrations have the signatures and conventions of other libraries, and need these libraries:

    attention_cpp.torch          torch's scaled_dot_product_attention; enable() routes torch's own through it
    attention_cpp.flash_attn     flash-attention 2's functions; install() makes `import flash_attn` work
    attention_cpp.fla            flash-linear-attention's functions; install() makes `import fla` work
    attention_cpp.causal_conv1d  causal_conv1d's functions; install() makes `import causal_conv1d` work
    attention_cpp.mamba_ssm      mamba_ssm's functions of Mamba 2; install() makes `import mamba_ssm` work
    attention_cpp.transformers   register() adds attn_implementation="attention_cpp"
    attention_cpp.jax            jax.nn.dot_product_attention

profile() collects the time, work and memory of every call inside a with statement.

watch(model) records q, k and lse of every attention layer of a torch model while the model runs.

A wrong argument raises `Error` (a ValueError) or TypeError. The message names all wrong arguments at once.
"""

from typing import TYPE_CHECKING, Any

from ._core import Error
from ._cache import KVCache
from ._heads import (HEAD_MEASURES, Document, HeadCoreference, HeadDistances, HeadMeasures, HeadMentions, HeadRelation,
                     HeadSyntax, Mention, Sentence, attention_flow, attention_rollout, gradient_times_attention,
                     head_clusters, head_points, read_conllu, read_coreference, repeated_tokens)
from ._linear import LinearGradients, linear_attention, linear_attention_backward
from ._machine import float32_precision, isa, isas, threads
from ._operator import (Gradients, Plan, attention, attention_backward, attention_weights, dropout_keeps, explain,
                        explain_backward, merge)
from ._profile import Profile, profile, profile_scope
from ._statistics import attention_statistics

__version__ = "0.1.0"
__all__ = [
    "Document", "Error", "Gradients", "HEAD_MEASURES", "HeadCoreference", "HeadDistances", "HeadMeasures",
    "HeadMentions", "HeadRelation", "HeadSyntax", "KVCache", "LinearGradients", "Mention", "Plan", "Profile",
    "Sentence", "attention", "attention_backward", "attention_flow", "attention_rollout", "attention_statistics",
    "attention_weights", "dropout_keeps", "explain", "explain_backward", "float32_precision",
    "gradient_times_attention", "head_clusters", "head_points", "isa", "isas", "linear_attention",
    "linear_attention_backward", "merge", "profile", "profile_scope", "read_conllu", "read_coreference",
    "repeated_tokens", "threads",
]

if TYPE_CHECKING:
    from ._torch.watch import Seen as Seen, watch as watch


def __getattr__(name: str) -> Any:
    if name in ("Seen", "watch"):  # these need torch
        from ._torch import watch

        return getattr(watch, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
