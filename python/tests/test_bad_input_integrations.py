"""Wrong arguments of the integrations of torch and JAX: one error that names the argument and what is wrong with it."""

import re

import pytest

torch = pytest.importorskip("torch")

import attention_cpp  # noqa: E402
import attention_cpp.flash_attn as flash  # noqa: E402
import attention_cpp.torch as drop_in  # noqa: E402
from test_bad_input import ALIASES as OF_ARRAYS  # noqa: E402
from test_bad_input import LINEAR, NEEDS, OPTIONS, check_refusal  # noqa: E402

torch.manual_seed(0)
Q, K = torch.randn(1, 2, 5, 4), torch.randn(1, 1, 6, 4)
LSE = drop_in.attention(Q, K, K, return_lse=True)[1]
TENSORS = ["text", [1.0], 3, None, torch.zeros((2,) * 5), torch.zeros(1, 2, 5, 4, dtype=torch.complex64),
           torch.zeros(1, 2, 5, 4, device="meta"), torch.zeros(1, 2, 5, 4).to_sparse(), torch.zeros(1, 2, 5, 4).long()]
NUMBERS = ["text", [1.0]]
X, P = torch.randn(1, 5, 2, 4), torch.randn(5, 2, 4)
STARTS = torch.tensor([0, 2, 5], dtype=torch.int32)
OF_STARTS = ["text", [0, 2, 5], STARTS.long(), STARTS.float(), STARTS[None], torch.tensor([0, 9], dtype=torch.int32),
             torch.tensor([3, 1, 5], dtype=torch.int32), STARTS.to("meta")]
PLAIN = {"softmax_scale": ["text", [1.0], float("nan")], "causal": ["text", [True]],
         "window_size": ["text", 3, (1,), (0.5, 1)], "softcap": ["text", -1.0, float("nan")],
         "alibi_slopes": ["text", [1.0, 2.0], torch.zeros(3), torch.zeros(2).long(), torch.zeros(2).to("meta")]}
DROPOUT = {"dropout_p": ["text", -0.1, 1.0, float("nan")]}
CACHE = torch.zeros(1, 8, 2, 4)
INDEX = ["text", [0], torch.zeros(1), torch.zeros(1, dtype=torch.int64), torch.tensor([9], dtype=torch.int32)]
FLASH = {
    "flash_attn_func": (dict(q=X, k=X, v=X), {**dict.fromkeys("qkv", TENSORS), **PLAIN, **DROPOUT}),
    "flash_attn_kvpacked_func": (dict(q=X, kv=torch.stack([X, X], 2)),
                                 {"q": TENSORS, "kv": TENSORS, **PLAIN, **DROPOUT}),
    "flash_attn_qkvpacked_func": (dict(qkv=torch.stack([X, X, X], 2)), {"qkv": TENSORS, **PLAIN, **DROPOUT}),
    "flash_attn_varlen_func": (
        dict(q=P, k=P, v=P, cu_seqlens_q=STARTS, cu_seqlens_k=STARTS, max_seqlen_q=3, max_seqlen_k=3),
        {**dict.fromkeys("qkv", TENSORS), "cu_seqlens_q": OF_STARTS, "cu_seqlens_k": OF_STARTS, **PLAIN, **DROPOUT,
         "block_table": ["text", torch.zeros(2, 1), torch.tensor([[9], [9]], dtype=torch.int32)]}),
    "flash_attn_varlen_kvpacked_func": (
        dict(q=P, kv=torch.stack([P, P], 1), cu_seqlens_q=STARTS, cu_seqlens_k=STARTS, max_seqlen_q=3, max_seqlen_k=3),
        {"q": TENSORS, "kv": TENSORS, "cu_seqlens_q": OF_STARTS, "cu_seqlens_k": OF_STARTS, **PLAIN, **DROPOUT}),
    "flash_attn_varlen_qkvpacked_func": (
        dict(qkv=torch.stack([P, P, P], 1), cu_seqlens=STARTS, max_seqlen=3),
        {"qkv": TENSORS, "cu_seqlens": OF_STARTS, **PLAIN, **DROPOUT}),
    "flash_attn_with_kvcache": (
        dict(q=X[:, :1], k_cache=CACHE, v_cache=CACHE, cache_seqlens=3),
        {"q": TENSORS, "k_cache": TENSORS, "v_cache": TENSORS, **PLAIN, "k": TENSORS[:3], "v": TENSORS[:3],
         "cache_seqlens": ["text", 9, -1, *INDEX], "cache_batch_idx": INDEX, "cache_leftpad": INDEX,
         "block_table": INDEX, "rotary_cos": TENSORS[:3], "rotary_sin": TENSORS[:3]}),
    "index_first_axis": (dict(input=P, indices=torch.tensor([1])), {"input": ["text", 3],
                                                                  "indices": ["text", [1], torch.tensor([9])]}),
    "index_put_first_axis": (dict(values=P[:1], indices=torch.tensor([1]), first_axis_dim=3), {
        "values": ["text", 3], "indices": ["text", [1], torch.tensor([9])], "first_axis_dim": ["text", 1.5, -1]}),
    "pad_input": (dict(hidden_states=P[:1], indices=torch.tensor([1]), batch=1, seqlen=3), {
        "hidden_states": ["text", 3], "indices": ["text", [1], torch.tensor([9])], "batch": ["text", 1.5, -1],
        "seqlen": ["text", 1.5, -1]}),
    "unpad_input": (dict(hidden_states=X, attention_mask=torch.ones(1, 5).long()), {
        "hidden_states": ["text", 3, P], "attention_mask": ["text", 3, torch.ones(5).long()],
        "unused_mask": ["text", torch.ones(3)]}),
    "unpad_input_for_concatenated_sequences": (
        dict(hidden_states=X, attention_mask_in_length=torch.tensor([[2, 3, 0, 0, 0]])),
        {"hidden_states": ["text", 3], "attention_mask_in_length": ["text", 3, torch.ones(5).long()]}),
    "apply_rotary_emb": (dict(x=X, cos=torch.ones(8, 2), sin=torch.ones(8, 2)), {
        "x": TENSORS, "cos": ["text", torch.ones(8)], "sin": ["text", torch.ones(8)],
        "seqlen_offsets": ["text", 9, -1, torch.zeros(3).int()], "cu_seqlens": ["text", STARTS.float()]}),
    "install": None, "uninstall": None,  # take nothing but a switch
}
TORCH = {
    "attention": (dict(q=Q, k=K, v=K), {**dict.fromkeys("qkv", TENSORS), **OPTIONS}),
    "attention_weights": (dict(q=Q, k=K, lse=LSE), {
        "q": TENSORS, "k": TENSORS, "lse": [x for x in TENSORS if x is not None], "heads": ["text", 9, [0.5], ["a"]],
        "rows": ["text", slice(0, 4, 2), 9, 1.5], "columns": ["text", 9], **{
            name: values for name, values in OPTIONS.items() if name not in ("dropout", "seed")}}),
    "attention_statistics": (dict(query=Q, key=K), {
        "query": TENSORS, "key": TENSORS, "labels": ["text", 3, torch.zeros(1, 3).long()], "scale": NUMBERS,
        "label_sets": ["text", -1, 2000]}),
    "linear_attention": (dict(q=Q, k=Q, v=Q), {
        **dict.fromkeys("qkv", TENSORS), "return_state": ["text", 1],
        **{name: [torch.as_tensor(value) if hasattr(value, "shape") else value for value in values]
           for name, values in LINEAR.items()}}),
    "causal_convolution": (dict(x=torch.randn(1, 5, 4), weight=torch.randn(4, 3)), {
        "x": TENSORS, "weight": TENSORS, "bias": ["text", [1.0], torch.zeros(3)], "silu": ["text", 1],
        "initial_state": ["text", [1.0], torch.zeros(1, 4, 1)], "cu_seqlens": ["text", [0.5], torch.tensor([0, 9])],
        "segment_ids": ["text", [1], torch.zeros(1, 4).int(), torch.zeros(1, 5)], "return_final_state": ["text", 1]}),
}
# Of these torch says what is wrong.
LEFT = {"scaled_dot_product_attention", "flex_attention", "explain", "explain_backward", "explain_flex_attention",
        "explain_flex_attention_backward"}
SWITCHES = {"disable", "enable", "enabled", "mask_counts", "share_threads"}


def test_every_public_function_is_in_the_tables():
    assert set(flash.__all__) == set(FLASH)
    assert set(drop_in.__all__) == set(TORCH) | LEFT | SWITCHES


def refuse(module, name, entry):
    good, wrong = entry
    getattr(module, name)(**good)  # which is right
    for argument, values in [*wrong.items(), ("is_causal", [True])][:None if module is drop_in else -1]:
        for value in values:
            arguments = {**good, **({} if module is flash else NEEDS.get(argument, {})), argument: value}
            try:
                check_refusal(lambda: getattr(module, name)(**arguments), argument, value,
                              {**(OF_ARRAYS if module is drop_in else {}), **ALIASES})
            except BaseException as error:
                raise AssertionError(f"{name}({argument}={value!r}): {error}") from None


# Whose lengths, of queries or keys, are wrong is not said where there are two of them.
ALIASES = {"cu_seqlens_q": "cu_seqlens", "cu_seqlens_k": "cu_seqlens", "cu_seqlens": "cu_seqlens",
           "block_table": "block_table|pages"}


@pytest.mark.parametrize("name", TORCH)
def test_wrong_arguments_of_torch_are_named_in_one_error(name):
    refuse(drop_in, name, TORCH[name])


@pytest.mark.parametrize("name", [name for name, entry in FLASH.items() if entry])
def test_wrong_arguments_of_flash_attn_are_named_in_one_error(name):
    refuse(flash, name, FLASH[name])


@pytest.mark.parametrize("given, near", [("is_causal", "causal"), ("attn_mask", "mask"), ("dropout_p", "dropout"),
                                         ("softmax_scale", "scale"), ("window_size", "window"), ("casual", "causal"),
                                         ("soft_cap", "softcap"), ("cu_seq_q", "cu_seqlens_q"), ("sinks", "sink"),
                                         ("keylength", "key_length"), ("return_softmax_lse", "return_lse")])
def test_errors_of_unknown_options_give_their_names_here(given, near):
    x = Q.numpy()
    out, lse = attention_cpp.attention(x, x, x, return_lse=True)
    cache = attention_cpp.KVCache(2, 4)
    cache.append(cache.add(), x, x)
    for call in (lambda **o: attention_cpp.attention(x, x, x, **o), lambda **o: attention_cpp.explain(x, x, x, **o),
                 lambda **o: attention_cpp.attention_weights(x, x, lse, **o),
                 lambda **o: attention_cpp.attention_backward(x, x, x, out, lse, out, **o),
                 lambda **o: attention_cpp.attention_statistics(x, x, lse, **o),
                 lambda **o: cache.attend(x[:, :, :1], [0], **o),
                 lambda **o: drop_in.attention(Q, Q, Q, **o), lambda **o: drop_in.attention_weights(Q, Q, **o)):
        with pytest.raises(TypeError, match=rf"there is no option '{given}' \(here it is {near}"):
            call(**{given: 1})


def test_shapes_are_refused_before_jax_traces():
    jax = pytest.importorskip("jax")
    jnp = jax.numpy
    ours = importlib_jax()
    q, k = jnp.ones((2, 5, 4, 8)), jnp.ones((2, 6, 2, 8))
    wrong = {
        "key": [k[..., :3], k[:1], jnp.ones((2, 6, 3, 8)), k.astype(jnp.float16), "text"], "query": [q.astype(int), 3],
        "value": [k[:, :3], k[:, :, :1]], "bias": ["text", jnp.ones((3, 3)), jnp.ones((1, 1, 5, 6), bool)],
        "mask": ["text", jnp.ones((3, 3), bool), jnp.ones((1, 1, 5, 6))], "scale": ["text", [1.0]],
        "query_seq_lengths": ["text", jnp.ones(3, int), jnp.ones(2)],
        "local_window_size": ["text", -1, (1, 2, 3), (0, -2)],
        "key_value_seq_lengths": ["text", jnp.ones(3, int), jnp.ones(2)], "implementation": ["xla", 3],
    }
    good = {"query": q, "key": k, "value": k}
    ours(**good)
    for argument, values in wrong.items():
        for value in values:
            call = lambda **arrays: ours(**{**good, argument: value, **arrays})  # noqa: E731
            with pytest.raises((attention_cpp.Error, TypeError)) as caught:
                call()
            assert re.search(argument, str(caught.value)) and str(caught.value).startswith("[dot_product_attention]")
            if argument not in ("query", "key", "value"):
                with pytest.raises((attention_cpp.Error, TypeError), match=argument):
                    jax.jit(call)(**good)


def importlib_jax():
    import attention_cpp.jax

    return attention_cpp.jax.dot_product_attention
