"""flash-linear-attention's functions, with its names of arguments."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .calls import State, attend, beta_of, gate, on_cpu, refuse, v_first

Result = tuple[Tensor, State]


@on_cpu
def chunk_gated_delta_rule(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, scale: float | None = None,
                           initial_state: Tensor | None = None, output_final_state: bool = False,
                           use_qk_l2norm_in_kernel: bool = False, use_beta_sigmoid_in_kernel: bool = False,
                           allow_neg_eigval: bool = False, state_v_first: bool = False,
                           cu_seqlens: Tensor | None = None, cu_seqlens_cpu: Tensor | None = None,
                           chunk_indices: Tensor | None = None, cp_context: Any = None, **kwargs: Any) -> Result:
    """The gated delta rule: S := exp(g_t) S, S := S + beta_t k_t (v_t - S^T k_t)^T, o_t = scale S^T q_t.

    q, k (B, T, H, K); v (B, T, HV, V); g <= 0 and beta (B, T, HV). use_gate_in_kernel=True, A_log and dt_bias are
    accepted: g is then the input of the gate.
    """
    name = "chunk_gated_delta_rule"
    is_v_first = v_first(name, state_v_first, kwargs)
    has_gate, A_log, dt_bias = (kwargs.pop(key, None) for key in ("use_gate_in_kernel", "A_log", "dt_bias"))
    refuse(name, {"cp_context": cp_context}, kwargs)
    return attend(name, q, k, v, g=gate(name, g, A_log, dt_bias) if has_gate else g,
                  beta=beta_of(name, beta, use_beta_sigmoid_in_kernel, allow_neg_eigval), scale=scale,
                  initial_state=initial_state, output_final_state=output_final_state, l2norm=use_qk_l2norm_in_kernel,
                  delta=True, state_v_first=is_v_first, cu_seqlens=cu_seqlens)


@on_cpu
def fused_recurrent_gated_delta_rule(q: Tensor, k: Tensor, v: Tensor, g: Tensor | None = None,
                                     gk: Tensor | None = None, gv: Tensor | None = None, beta: Tensor | None = None,
                                     scale: float | None = None, initial_state: Tensor | None = None,
                                     output_final_state: bool = False, use_qk_l2norm_in_kernel: bool = False,
                                     use_gate_in_kernel: bool = False, A_log: Tensor | None = None,
                                     dt_bias: Tensor | None = None, use_beta_sigmoid_in_kernel: bool = False,
                                     allow_neg_eigval: bool = False, state_v_first: bool = False,
                                     cu_seqlens: Tensor | None = None, **kwargs: Any) -> Result:
    """chunk_gated_delta_rule(), with gk (B, T, HV, K), decays of the rows of the state, besides g."""
    name = "fused_recurrent_gated_delta_rule"
    is_v_first = v_first(name, state_v_first, kwargs)
    refuse(name, {"gv": gv}, kwargs)
    return attend(name, q, k, v, g=gate(name, g, A_log, dt_bias) if use_gate_in_kernel else g, gk=gk,
                  beta=beta_of(name, beta, use_beta_sigmoid_in_kernel, allow_neg_eigval), scale=scale,
                  initial_state=initial_state, output_final_state=output_final_state, l2norm=use_qk_l2norm_in_kernel,
                  delta=True, state_v_first=is_v_first, cu_seqlens=cu_seqlens)


@on_cpu
def chunk_kda(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, scale: float | None = None,
              initial_state: Tensor | None = None, output_final_state: bool = False,
              use_qk_l2norm_in_kernel: bool = False, use_gate_in_kernel: bool = False,
              use_beta_sigmoid_in_kernel: bool = False, allow_neg_eigval: bool = False, safe_gate: bool = False,
              lower_bound: float | None = None, disable_recompute: bool = False,
              return_intermediate_states: bool = False, state_v_first: bool = False, cu_seqlens: Tensor | None = None,
              cu_seqlens_cpu: Tensor | None = None, cp_context: Any = None, use_graph: bool = False,
              max_num_seqs: int | None = None, **kwargs: Any) -> Result:
    """Kimi delta attention: the gated delta rule with a decay for each row of the state, g <= 0 (B, T, HV, K)."""
    name = "chunk_kda"
    is_v_first = v_first(name, state_v_first, kwargs)
    A_log, dt_bias = kwargs.pop("A_log", None), kwargs.pop("dt_bias", None)
    refuse(name, {"cp_context": cp_context, "return_intermediate_states": return_intermediate_states,
                  "use_graph": use_graph}, kwargs)
    if safe_gate and use_gate_in_kernel and lower_bound is None:
        raise ValueError(f"[{name}] safe_gate=True requires lower_bound with use_gate_in_kernel=True")
    return attend(name, q, k, v, gk=gate(name, g, A_log, dt_bias, lower_bound) if use_gate_in_kernel else g,
                  beta=beta_of(name, beta, use_beta_sigmoid_in_kernel, allow_neg_eigval), scale=scale,
                  initial_state=initial_state, output_final_state=output_final_state, l2norm=use_qk_l2norm_in_kernel,
                  delta=True, state_v_first=is_v_first, cu_seqlens=cu_seqlens)


@on_cpu
def fused_recurrent_kda(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, A_log: Tensor | None = None,
                        dt_bias: Tensor | None = None, scale: float | None = None,
                        initial_state: Tensor | None = None, output_final_state: bool = False,
                        use_qk_l2norm_in_kernel: bool = False, use_gate_in_kernel: bool = False,
                        use_beta_sigmoid_in_kernel: bool = False, allow_neg_eigval: bool = False,
                        lower_bound: float | None = None, state_v_first: bool = False,
                        cu_seqlens: Tensor | None = None, **kwargs: Any) -> Result:
    """chunk_kda(), with A_log and dt_bias as arguments of their own."""
    name = "fused_recurrent_kda"
    is_v_first = v_first(name, state_v_first, kwargs)
    refuse(name, {}, kwargs)
    return attend(name, q, k, v, gk=gate(name, g, A_log, dt_bias, lower_bound) if use_gate_in_kernel else g,
                  beta=beta_of(name, beta, use_beta_sigmoid_in_kernel, allow_neg_eigval), scale=scale,
                  initial_state=initial_state, output_final_state=output_final_state, l2norm=use_qk_l2norm_in_kernel,
                  delta=True, state_v_first=is_v_first, cu_seqlens=cu_seqlens)


@on_cpu
def chunk_delta_rule(q: Tensor, k: Tensor, v: Tensor, beta: Tensor, scale: float | None = None,
                     initial_state: Tensor | None = None, output_final_state: bool = False,
                     use_qk_l2norm_in_kernel: bool = False, cu_seqlens: Tensor | None = None,
                     cu_seqlens_cpu: Tensor | None = None, **kwargs: Any) -> Result:
    """The delta rule: S := S + beta_t k_t (v_t - S^T k_t)^T, o_t = scale S^T q_t, with beta (B, T, H)."""
    refuse("chunk_delta_rule", {}, kwargs)
    return attend("chunk_delta_rule", q, k, v, beta=beta, scale=scale, initial_state=initial_state,
                  output_final_state=output_final_state, l2norm=use_qk_l2norm_in_kernel, delta=True,
                  cu_seqlens=cu_seqlens)


@on_cpu
def fused_recurrent_delta_rule(q: Tensor, k: Tensor, v: Tensor, beta: Tensor | None = None, scale: float | None = None,
                               initial_state: Tensor | None = None, output_final_state: bool = False,
                               use_qk_l2norm_in_kernel: bool = False, cu_seqlens: Tensor | None = None) -> Result:
    """chunk_delta_rule(); beta is 1 if not given."""
    return attend("fused_recurrent_delta_rule", q, k, v, beta=beta, scale=scale, initial_state=initial_state,
                  output_final_state=output_final_state, l2norm=use_qk_l2norm_in_kernel, delta=True,
                  cu_seqlens=cu_seqlens)


@on_cpu
def chunk_gla(q: Tensor, k: Tensor, v: Tensor, g: Tensor, scale: float | None = None,
              initial_state: Tensor | None = None, output_final_state: bool = False, state_v_first: bool = False,
              cu_seqlens: Tensor | None = None, cu_seqlens_cpu: Tensor | None = None) -> Result:
    """Gated linear attention: S := diag(exp(g_t)) S + k_t v_t^T, o_t = scale S^T q_t, with g <= 0 (B, T, H, K)."""
    return attend("chunk_gla", q, k, v, gk=g, scale=scale, initial_state=initial_state,
                  output_final_state=output_final_state, state_v_first=state_v_first, cu_seqlens=cu_seqlens)


@on_cpu
def fused_recurrent_gla(q: Tensor, k: Tensor, v: Tensor, gk: Tensor | None = None, gv: Tensor | None = None,
                        scale: float | None = None, initial_state: Tensor | None = None,
                        output_final_state: bool = False, reverse: bool = False, state_v_first: bool = False,
                        cu_seqlens: Tensor | None = None, **kwargs: Any) -> Result:
    """chunk_gla() with the gates gk."""
    name = "fused_recurrent_gla"
    is_v_first = v_first(name, state_v_first, kwargs)
    refuse(name, {"gv": gv, "reverse": reverse}, kwargs)
    return attend(name, q, k, v, gk=gk, scale=scale, initial_state=initial_state,
                  output_final_state=output_final_state, state_v_first=is_v_first, cu_seqlens=cu_seqlens)


@on_cpu
def chunk_simple_gla(q: Tensor, k: Tensor, v: Tensor, g: Tensor | None = None, g_gamma: Tensor | None = None,
                     scale: float | None = None, initial_state: Tensor | None = None,
                     output_final_state: bool = False, state_v_first: bool = False, cu_seqlens: Tensor | None = None,
                     cu_seqlens_cpu: Tensor | None = None, **kwargs: Any) -> Result:
    """Linear attention with one decay a head and token: g (B, T, H), g_gamma (H), both at most 0, added."""
    name = "chunk_simple_gla"
    is_v_first = v_first(name, state_v_first, kwargs)
    refuse(name, {}, kwargs)
    return attend(name, q, k, v, g=g, g_gamma=g_gamma, scale=scale, initial_state=initial_state,
                  output_final_state=output_final_state, state_v_first=is_v_first, cu_seqlens=cu_seqlens)


@on_cpu
def fused_recurrent_simple_gla(q: Tensor, k: Tensor, v: Tensor, g: Tensor | None = None, g_gamma: Tensor | None = None,
                               scale: float | None = None, initial_state: Tensor | None = None,
                               output_final_state: bool = False, reverse: bool = False, state_v_first: bool = False,
                               cu_seqlens: Tensor | None = None, **kwargs: Any) -> Result:
    """chunk_simple_gla()."""
    name = "fused_recurrent_simple_gla"
    is_v_first = v_first(name, state_v_first, kwargs)
    refuse(name, {"reverse": reverse}, kwargs)
    return attend(name, q, k, v, g=g, g_gamma=g_gamma, scale=scale, initial_state=initial_state,
                  output_final_state=output_final_state, state_v_first=is_v_first, cu_seqlens=cu_seqlens)


def _of_retention(q: Tensor) -> Tensor:
    """log(1 - 2^(-5 - h)) of each head (H)."""
    return torch.log1p(-(2.0 ** (-5.0 - torch.arange(q.shape[2], dtype=torch.float32))))


@on_cpu
def chunk_retention(q: Tensor, k: Tensor, v: Tensor, scale: float | None = None, initial_state: Tensor | None = None,
                    output_final_state: bool = False, cu_seqlens: Tensor | None = None, **kwargs: Any) -> Result:
    """Retention: linear attention whose head h decays by 1 - 2^(-5 - h) a token."""
    refuse("chunk_retention", {}, kwargs)
    return attend("chunk_retention", q, k, v, g_gamma=_of_retention(q), scale=scale, initial_state=initial_state,
                  output_final_state=output_final_state, cu_seqlens=cu_seqlens)


@on_cpu
def fused_recurrent_retention(q: Tensor, k: Tensor, v: Tensor, scale: float | None = None,
                              initial_state: Tensor | None = None, output_final_state: bool = False,
                              reverse: bool = False, state_v_first: bool = False, cu_seqlens: Tensor | None = None,
                              **kwargs: Any) -> Result:
    """chunk_retention()."""
    name = "fused_recurrent_retention"
    is_v_first = v_first(name, state_v_first, kwargs)
    refuse(name, {"reverse": reverse}, kwargs)
    return attend(name, q, k, v, g_gamma=_of_retention(q), scale=scale, initial_state=initial_state,
                  output_final_state=output_final_state, state_v_first=is_v_first, cu_seqlens=cu_seqlens)


def _linear_attn(name: str, q: Tensor, k: Tensor, v: Tensor, scale: float | None, initial_state: Any,
                 output_final_state: bool, normalize: bool, cu_seqlens: Tensor | None) -> tuple[Tensor, Any]:
    """The normaliser, z (N, 1, H, K) of fla, is the last column of the operator's state."""
    if not normalize:
        return attend(name, q, k, v, scale=scale, initial_state=initial_state, output_final_state=output_final_state,
                      cu_seqlens=cu_seqlens)
    if initial_state is not None:
        state, z = initial_state if isinstance(initial_state, tuple) else (initial_state, None)
        column = torch.zeros_like(state[..., :1]) if z is None else z.squeeze(1).unsqueeze(-1)
        initial_state = torch.cat([state, column.to(state.dtype)], -1)
    out, final = attend(name, q, k, v, scale=scale, initial_state=initial_state, normalize=True,
                        output_final_state=output_final_state, cu_seqlens=cu_seqlens)
    return out, None if final is None else (final[..., :-1], final[..., -1].unsqueeze(1))


@on_cpu
def chunk_linear_attn(q: Tensor, k: Tensor, v: Tensor, scale: float | None = None, initial_state: Any = None,
                      output_final_state: bool = False, normalize: bool = True, cu_seqlens: Tensor | None = None
                      ) -> tuple[Tensor, Any]:
    """Linear attention: S := S + k_t v_t^T, o_t = scale S^T q_t, divided by the sum of its weights if normalize. The
    states are then (state, z) with z (N, 1, H, K), the sum of the keys."""
    return _linear_attn("chunk_linear_attn", q, k, v, scale, initial_state, output_final_state, normalize, cu_seqlens)


@on_cpu
def fused_recurrent_linear_attn(q: Tensor, k: Tensor, v: Tensor, scale: float | None = None,
                                initial_state: Any = None, output_final_state: bool = False, reverse: bool = False,
                                normalize: bool = False, cu_seqlens: Tensor | None = None) -> tuple[Tensor, Any]:
    """chunk_linear_attn(), without the division by default."""
    name = "fused_recurrent_linear_attn"
    refuse(name, {"reverse": reverse})
    return _linear_attn(name, q, k, v, scale, initial_state, output_final_state, normalize, cu_seqlens)
