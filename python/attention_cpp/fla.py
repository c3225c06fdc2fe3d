"""flash-linear-attention's functions on the CPU: same signatures and conventions.

    >>> import attention_cpp.fla
    >>> attention_cpp.fla.install()      # before transformers imports the model: Qwen3-Next, Kimi Linear, OLMo Hybrid

Tensors are (B, T, H, K) for q and k and (B, T, HV, V) for v: float32, float64, bfloat16 or float16. They may have any
strides, and are not copied. HV is a multiple of H. All functions have gradients of all tensors, also the
fused_recurrent_ ones, through the final state too.

Common arguments

    scale               of the output, default 1 / sqrt(K)
    initial_state       (N, HV, K, V), N = B or the number of packed sequences, in float32 (float64 for float64)
    output_final_state  also return the state after the last token, (N, HV, K, V) in float32; the result is always a
                        tuple (o, final_state), with None in place of a state that is not wanted
    use_qk_l2norm_in_kernel   divides q and k by sqrt(sum of squares + 1e-6)
    use_gate_in_kernel  computes the decay from g: -exp(A_log) softplus(g + dt_bias)
    use_beta_sigmoid_in_kernel, allow_neg_eigval   beta becomes sigmoid(beta), and 2 sigmoid(beta)
    state_v_first       states are (N, HV, V, K)
    cu_seqlens          (N + 1,) int32 or int64: packed sequences, B = 1
    cu_seqlens_cpu, chunk_indices, chunk_size, safe_gate, disable_recompute, max_num_seqs   without effect on results

reverse, gv, cp_context, return_intermediate_states and use_graph raise NotImplementedError. Unlike in fla, a log decay
above 0 is an error. Wrong arguments raise attention_cpp.Error (a ValueError) or TypeError.
"""

from ._fla.functions import (chunk_delta_rule, chunk_gated_delta_rule, chunk_gla, chunk_kda, chunk_linear_attn,
                             chunk_retention, chunk_simple_gla, fused_recurrent_delta_rule,
                             fused_recurrent_gated_delta_rule, fused_recurrent_gla, fused_recurrent_kda,
                             fused_recurrent_linear_attn, fused_recurrent_retention, fused_recurrent_simple_gla)
from ._fla.install import install, uninstall

__all__ = ["chunk_delta_rule", "chunk_gated_delta_rule", "chunk_gla", "chunk_kda", "chunk_linear_attn",
           "chunk_retention", "chunk_simple_gla", "fused_recurrent_delta_rule", "fused_recurrent_gated_delta_rule",
           "fused_recurrent_gla", "fused_recurrent_kda", "fused_recurrent_linear_attn", "fused_recurrent_retention",
           "fused_recurrent_simple_gla", "install", "uninstall"]
