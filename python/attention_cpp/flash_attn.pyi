"""Types of flash_attn.py: a result is a tensor, or with return_attn_probs three of which the last is None."""

from typing import Literal, Sequence, overload

from torch import Tensor

from ._flash.rotary import apply_rotary_emb as apply_rotary_emb
from ._flash.padding import index_first_axis as index_first_axis
from ._flash.padding import index_put_first_axis as index_put_first_axis
from ._flash.padding import pad_input as pad_input
from ._flash.padding import unpad_input as unpad_input
from ._flash.padding import unpad_input_for_concatenated_sequences as unpad_input_for_concatenated_sequences

__all__ = [
    "flash_attn_func", "flash_attn_kvpacked_func", "flash_attn_qkvpacked_func", "flash_attn_varlen_func",
    "flash_attn_varlen_kvpacked_func", "flash_attn_varlen_qkvpacked_func", "flash_attn_with_kvcache",
    "index_first_axis", "index_put_first_axis", "pad_input", "unpad_input", "unpad_input_for_concatenated_sequences",
    "apply_rotary_emb", "install", "uninstall",
]

_Three = tuple[Tensor, Tensor, None]

@overload
def flash_attn_func(
    q: Tensor, k: Tensor, v: Tensor, dropout_p: float = ..., softmax_scale: float | None = ..., causal: bool = ...,
    window_size: Sequence[int] | Tensor = ..., softcap: float = ..., alibi_slopes: Tensor | None = ...,
    deterministic: bool = ..., return_attn_probs: Literal[False] = ...
) -> Tensor: ...
@overload
def flash_attn_func(
    q: Tensor, k: Tensor, v: Tensor, dropout_p: float = ..., softmax_scale: float | None = ..., causal: bool = ...,
    window_size: Sequence[int] | Tensor = ..., softcap: float = ..., alibi_slopes: Tensor | None = ...,
    deterministic: bool = ..., *, return_attn_probs: Literal[True]
) -> _Three: ...
@overload
def flash_attn_func(
    q: Tensor, k: Tensor, v: Tensor, dropout_p: float = ..., softmax_scale: float | None = ..., causal: bool = ...,
    window_size: Sequence[int] | Tensor = ..., softcap: float = ..., alibi_slopes: Tensor | None = ...,
    deterministic: bool = ..., return_attn_probs: bool = ...
) -> Tensor | _Three: ...
@overload
def flash_attn_kvpacked_func(
    q: Tensor, kv: Tensor, dropout_p: float = ..., softmax_scale: float | None = ..., causal: bool = ...,
    window_size: Sequence[int] | Tensor = ..., softcap: float = ..., alibi_slopes: Tensor | None = ...,
    deterministic: bool = ..., return_attn_probs: Literal[False] = ...
) -> Tensor: ...
@overload
def flash_attn_kvpacked_func(
    q: Tensor, kv: Tensor, dropout_p: float = ..., softmax_scale: float | None = ..., causal: bool = ...,
    window_size: Sequence[int] | Tensor = ..., softcap: float = ..., alibi_slopes: Tensor | None = ...,
    deterministic: bool = ..., *, return_attn_probs: Literal[True]
) -> _Three: ...
@overload
def flash_attn_kvpacked_func(
    q: Tensor, kv: Tensor, dropout_p: float = ..., softmax_scale: float | None = ..., causal: bool = ...,
    window_size: Sequence[int] | Tensor = ..., softcap: float = ..., alibi_slopes: Tensor | None = ...,
    deterministic: bool = ..., return_attn_probs: bool = ...
) -> Tensor | _Three: ...
@overload
def flash_attn_qkvpacked_func(
    qkv: Tensor, dropout_p: float = ..., softmax_scale: float | None = ..., causal: bool = ..., window_size:
    Sequence[int] | Tensor = ..., softcap: float = ..., alibi_slopes: Tensor | None = ..., deterministic: bool =
    ..., return_attn_probs: Literal[False] = ...
) -> Tensor: ...
@overload
def flash_attn_qkvpacked_func(
    qkv: Tensor, dropout_p: float = ..., softmax_scale: float | None = ..., causal: bool = ..., window_size:
    Sequence[int] | Tensor = ..., softcap: float = ..., alibi_slopes: Tensor | None = ..., deterministic: bool =
    ..., *, return_attn_probs: Literal[True]
) -> _Three: ...
@overload
def flash_attn_qkvpacked_func(
    qkv: Tensor, dropout_p: float = ..., softmax_scale: float | None = ..., causal: bool = ..., window_size:
    Sequence[int] | Tensor = ..., softcap: float = ..., alibi_slopes: Tensor | None = ..., deterministic: bool =
    ..., return_attn_probs: bool = ...
) -> Tensor | _Three: ...
@overload
def flash_attn_varlen_func(
    q: Tensor, k: Tensor, v: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor, max_seqlen_q: int, max_seqlen_k:
    int, dropout_p: float = ..., softmax_scale: float | None = ..., causal: bool = ..., window_size: Sequence[int] |
    Tensor = ..., softcap: float = ..., alibi_slopes: Tensor | None = ..., deterministic: bool = ...,
    return_attn_probs: Literal[False] = ..., block_table: Tensor | None = ...
) -> Tensor: ...
@overload
def flash_attn_varlen_func(
    q: Tensor, k: Tensor, v: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor, max_seqlen_q: int, max_seqlen_k:
    int, dropout_p: float = ..., softmax_scale: float | None = ..., causal: bool = ..., window_size: Sequence[int] |
    Tensor = ..., softcap: float = ..., alibi_slopes: Tensor | None = ..., deterministic: bool = ..., *,
    return_attn_probs: Literal[True], block_table: Tensor | None = ...
) -> _Three: ...
@overload
def flash_attn_varlen_func(
    q: Tensor, k: Tensor, v: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor, max_seqlen_q: int, max_seqlen_k:
    int, dropout_p: float = ..., softmax_scale: float | None = ..., causal: bool = ..., window_size: Sequence[int] |
    Tensor = ..., softcap: float = ..., alibi_slopes: Tensor | None = ..., deterministic: bool = ...,
    return_attn_probs: bool = ..., block_table: Tensor | None = ...
) -> Tensor | _Three: ...
@overload
def flash_attn_varlen_kvpacked_func(
    q: Tensor, kv: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor, max_seqlen_q: int, max_seqlen_k: int,
    dropout_p: float = ..., softmax_scale: float | None = ..., causal: bool = ..., window_size: Sequence[int] |
    Tensor = ..., softcap: float = ..., alibi_slopes: Tensor | None = ..., deterministic: bool = ...,
    return_attn_probs: Literal[False] = ...
) -> Tensor: ...
@overload
def flash_attn_varlen_kvpacked_func(
    q: Tensor, kv: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor, max_seqlen_q: int, max_seqlen_k: int,
    dropout_p: float = ..., softmax_scale: float | None = ..., causal: bool = ..., window_size: Sequence[int] |
    Tensor = ..., softcap: float = ..., alibi_slopes: Tensor | None = ..., deterministic: bool = ..., *,
    return_attn_probs: Literal[True]
) -> _Three: ...
@overload
def flash_attn_varlen_kvpacked_func(
    q: Tensor, kv: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor, max_seqlen_q: int, max_seqlen_k: int,
    dropout_p: float = ..., softmax_scale: float | None = ..., causal: bool = ..., window_size: Sequence[int] |
    Tensor = ..., softcap: float = ..., alibi_slopes: Tensor | None = ..., deterministic: bool = ...,
    return_attn_probs: bool = ...
) -> Tensor | _Three: ...
@overload
def flash_attn_varlen_qkvpacked_func(
    qkv: Tensor, cu_seqlens: Tensor, max_seqlen: int, dropout_p: float = ..., softmax_scale: float | None = ...,
    causal: bool = ..., window_size: Sequence[int] | Tensor = ..., softcap: float = ..., alibi_slopes: Tensor | None
    = ..., deterministic: bool = ..., return_attn_probs: Literal[False] = ...
) -> Tensor: ...
@overload
def flash_attn_varlen_qkvpacked_func(
    qkv: Tensor, cu_seqlens: Tensor, max_seqlen: int, dropout_p: float = ..., softmax_scale: float | None = ...,
    causal: bool = ..., window_size: Sequence[int] | Tensor = ..., softcap: float = ..., alibi_slopes: Tensor | None
    = ..., deterministic: bool = ..., *, return_attn_probs: Literal[True]
) -> _Three: ...
@overload
def flash_attn_varlen_qkvpacked_func(
    qkv: Tensor, cu_seqlens: Tensor, max_seqlen: int, dropout_p: float = ..., softmax_scale: float | None = ...,
    causal: bool = ..., window_size: Sequence[int] | Tensor = ..., softcap: float = ..., alibi_slopes: Tensor | None
    = ..., deterministic: bool = ..., return_attn_probs: bool = ...
) -> Tensor | _Three: ...
@overload
def flash_attn_with_kvcache(
    q: Tensor, k_cache: Tensor, v_cache: Tensor, k: Tensor | None = ..., v: Tensor | None = ..., rotary_cos: Tensor
    | None = ..., rotary_sin: Tensor | None = ..., cache_seqlens: int | Tensor | None = ..., cache_batch_idx: Tensor
    | None = ..., cache_leftpad: Tensor | None = ..., block_table: Tensor | None = ..., softmax_scale: float | None
    = ..., causal: bool = ..., window_size: Sequence[int] | Tensor = ..., softcap: float = ..., rotary_interleaved:
    bool = ..., alibi_slopes: Tensor | None = ..., num_splits: int = ..., return_softmax_lse: Literal[False] = ...
) -> Tensor: ...
@overload
def flash_attn_with_kvcache(
    q: Tensor, k_cache: Tensor, v_cache: Tensor, k: Tensor | None = ..., v: Tensor | None = ..., rotary_cos: Tensor
    | None = ..., rotary_sin: Tensor | None = ..., cache_seqlens: int | Tensor | None = ..., cache_batch_idx: Tensor
    | None = ..., cache_leftpad: Tensor | None = ..., block_table: Tensor | None = ..., softmax_scale: float | None
    = ..., causal: bool = ..., window_size: Sequence[int] | Tensor = ..., softcap: float = ..., rotary_interleaved:
    bool = ..., alibi_slopes: Tensor | None = ..., num_splits: int = ..., *, return_softmax_lse: Literal[True]
) -> tuple[Tensor, Tensor]: ...
@overload
def flash_attn_with_kvcache(
    q: Tensor, k_cache: Tensor, v_cache: Tensor, k: Tensor | None = ..., v: Tensor | None = ..., rotary_cos: Tensor
    | None = ..., rotary_sin: Tensor | None = ..., cache_seqlens: int | Tensor | None = ..., cache_batch_idx: Tensor
    | None = ..., cache_leftpad: Tensor | None = ..., block_table: Tensor | None = ..., softmax_scale: float | None
    = ..., causal: bool = ..., window_size: Sequence[int] | Tensor = ..., softcap: float = ..., rotary_interleaved:
    bool = ..., alibi_slopes: Tensor | None = ..., num_splits: int = ..., return_softmax_lse: bool = ...
) -> Tensor | tuple[Tensor, Tensor]: ...
def install(*, force: bool = False) -> None: ...
def uninstall() -> None: ...
