"""attention_cpp.flash_attn: wrong arguments, signatures, and install() in the place of the package."""

import inspect
import os
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from test_flash_attn import caches, int32, problem, random, slopes, starts, tables  # noqa: E402

import attention_cpp  # noqa: E402
from attention_cpp import flash_attn as fa  # noqa: E402

PACKAGE_ROOT = str(Path(attention_cpp.__file__).resolve().parent.parent)


# ------------------------------------------------------------------------------------------------------- bad arguments

def bad_calls():
    q, k, v = problem(dtype=torch.float32)
    cu, cu_k = starts([5, 5]), starts([7, 7])
    tq, tk, tv = q.flatten(0, 1), k.flatten(0, 1), v.flatten(0, 1)
    k_cache, v_cache = caches(dtype=torch.float32)
    new = torch.zeros(2, 1, 2, 8)
    cos, sin = (table.float() for table in tables())
    pages = torch.zeros(4, 5, 2, 8)
    dense, varlen, cached = fa.flash_attn_func, fa.flash_attn_varlen_func, fa.flash_attn_with_kvcache
    error, wrong = attention_cpp.Error, TypeError
    return [
        (dense, (None, k, v), {}, wrong, "q must be a torch.Tensor, not NoneType"),
        (dense, (q, k.numpy(), v), {}, wrong, "k must be a torch.Tensor, not ndarray"),
        (dense, (q.to("meta"), k, v), {}, error, "q is on meta, must be on the CPU"),
        (dense, (q[0], k, v), {}, error, "q has 3 axes"),
        (dense, (q, k, v[:, :3]), {}, error, "seqlen_k = 7, not 3"),
        (dense, (q, k[:1], v[:1]), {}, error, "batch = 2, not 1"),
        (dense, (q.long(), k.long(), v.long()), {}, error, "q is torch.int64"),
        (dense, (q, k.double(), v), {}, error, "k is torch.float64, must be torch.float32"),
        (dense, (q, *[torch.zeros(2, 7, 3, 8)] * 2), {}, error, "nheads_k = 3 heads, which must divide nheads = 4"),
        (dense, (q.to_sparse(), k, v), {}, error, "q is sparse or nested, must be a dense tensor"),
        (dense, (q, k, v), {"dropout_p": 1.0}, error, "dropout_p is 1"),
        (dense, (q, k, v), {"dropout_p": "0"}, wrong, "dropout_p must be a number, not str"),
        (dense, (q, k, v), {"softcap": -1.0}, error, "softcap is -1.000000, must be"),
        (dense, (q, k, v), {"softcap": None}, wrong, "softcap must be a number"),
        (dense, (q, k, v), {"softmax_scale": "1"}, wrong, "softmax_scale must be a number"),
        (dense, (q, k, v), {"window_size": 3}, wrong, "window_size must be (left, right)"),
        (dense, (q, k, v), {"window_size": (1,)}, wrong, "window_size must be (left, right)"),
        (dense, (q, k, v), {"window_size": (-2, 0)}, error, "window_size is"),
        (dense, (q, k, v), {"causal": "yes"}, wrong, "causal must be"),
        (dense, (q, k, v), {"alibi_slopes": slopes(3)}, error, "nheads = 4, not 3"),
        (dense, (q, k, v), {"alibi_slopes": slopes(3, 4)}, error, "batch = 2, not 3"),
        (dense, (q, k, v), {"alibi_slopes": slopes(4).double()}, error, "alibi_slopes is torch.float64"),
        (dense, (q, k, v), {"alibi_slopes": [1.0] * 4}, wrong, "alibi_slopes must be a torch.Tensor, not list"),
        (fa.flash_attn_qkvpacked_func, (torch.zeros(2, 5, 2, 4, 8),), {}, error, "3 = 3, not 2"),
        (fa.flash_attn_qkvpacked_func, (q,), {}, error, "qkv has 4 axes"),
        (fa.flash_attn_kvpacked_func, (q, torch.zeros(2, 5, 3, 4, 8)), {}, error, "2 = 2, not 3"),
        (fa.flash_attn_varlen_kvpacked_func, (tq, tk, cu, cu_k, 5, 7), {}, error, "kv has 3 axes"),
        (fa.flash_attn_varlen_qkvpacked_func, (torch.zeros(5, 3, 4, 8), cu.long(), 5), {}, error,
         "cu_seqlens is torch.int64"),
        (varlen, (tq, tk, tv, cu.long(), cu_k, 5, 7), {}, error, "cu_seqlens_q is torch.int64, must be torch.int32"),
        (varlen, (tq, tk, tv, [0, 5, 10], cu_k, 5, 7), {}, wrong, "cu_seqlens_q must be a torch.Tensor"),
        (varlen, (tq, tk, tv, cu, cu_k[:2], 5, 7), {}, error, "batch+1 = 3, not 2"),
        (varlen, (tq, tk, tv, int32(0, 6, 5), cu_k, 5, 7), {}, error, "cu_seqlens_q must rise"),
        (varlen, (tq, tk, tv, cu, int32(0, 7, 15), 5, 7), {}, error, "cu_seqlens_k must rise"),
        (varlen, (tq, tk, tv, cu, int32(0, 7, 15), 5, 7), {"alibi_slopes": slopes(2, 4)}, error,
         "cu_seqlens_k must rise"),
        (varlen, (tq, tk, tv, cu, cu_k, 5, 7), {"block_table": int32(0, 1).view(2, 1)}, error, "k has 3 axes"),
        (varlen, (tq, pages, pages, cu, cu_k, 5, 7), {"block_table": int32(0, 1).view(2, 1)}, error,
         "cu_seqlens_k has 7"),
        (varlen, (tq, pages, pages, cu, cu_k, 5, 7), {"block_table": int32(0, 1, 2, 4).view(2, 2)}, error,
         "block_table has 4, must be in [0, 3]"),
        (varlen, (tq, pages, pages, cu, int32(0, 7, 3), 5, 7), {"block_table": int32(0, 1, 2, 3).view(2, 2)}, error,
         "cu_seqlens_k must rise"),
        (cached, (q, k_cache.double(), v_cache), {}, error, "k_cache is torch.float64"),
        (cached, (q, k_cache[:1], v_cache[:1]), {}, error, "the cache has 1 rows"),
        (cached, (q, k_cache, v_cache, new), {"cache_seqlens": 0}, error, "k and v must be given together"),
        (cached, (q, k_cache, v_cache, new, new), {}, error, "cache_seqlens must be given"),
        (cached, (q, k_cache, v_cache, new, new), {"cache_seqlens": 12}, error,
         "cache_seqlens has 12, must be in [0, 11]"),
        (cached, (q, k_cache, v_cache, new, new), {"cache_seqlens": int32(3, -1)}, error, "cache_seqlens has -1"),
        (cached, (q, k_cache, v_cache, new, new), {"cache_seqlens": torch.tensor([3, 4])}, error, "torch.int64"),
        (cached, (q, k_cache, v_cache, new, new), {"cache_seqlens": 3.0}, wrong, "cache_seqlens must be"),
        (cached, (q, k_cache, v_cache, new, new, cos), {"cache_seqlens": 0}, error, "rotary_cos and rotary_sin must"),
        (cached, (q, k_cache, v_cache, None, None, cos, sin), {"cache_seqlens": 0}, error,
         "rotary_sin must not be given without k and v"),
        (cached, (q, k_cache, v_cache, new, new, cos[:8], sin[:8]), {"cache_seqlens": 8}, error,
         "rotary positions has 8"),
        (cached, (q, k_cache, v_cache, new, new, *[torch.ones(20, 5)] * 2), {"cache_seqlens": 8}, error, "rotary_dim"),
        (cached, (q, k_cache, v_cache, new, new), {"cache_seqlens": 0, "cache_batch_idx": int32(0, 2)}, error,
         "cache_batch_idx has 2, must be in [0, 1]"),
        (cached, (q, k_cache, v_cache, new, new), {"cache_seqlens": 3, "cache_leftpad": int32(0, 5)}, error,
         "cache_leftpad has 5, must be in [0, 4]"),
        (cached, (q, k_cache, v_cache, new, new), {"cache_seqlens": 3, "softcap": -1.0}, error, "softcap is -1"),
        (cached, (q, pages, pages, new, new), {"cache_seqlens": 5, "block_table": int32(0, -1, 2, 3).view(2, 2)}, error,
         "block_table has -1"),
        (cached, (q, pages, pages, new, new),
         {"cache_seqlens": 9, "block_table": int32(0, 1, 2, 3).view(2, 2), "cache_batch_idx": int32(0, 1)}, error,
         "must not be given with"),
        (fa.apply_rotary_emb, (q, cos[:4], sin[:4]), {}, error, "the position of a token has 4"),
        (fa.apply_rotary_emb, (tq, cos, sin), {"cu_seqlens": int32(0, 5, 9)}, error, "must rise from 0 to 10"),
        (fa.apply_rotary_emb, (q[..., :4], cos, sin), {}, error, "rotary_dim is 6, must be at most headdim = 4"),
        (fa.unpad_input, (q, torch.ones(2, 4)), {}, error, "must start with the axes of attention_mask"),
        (fa.unpad_input, (q, [[1] * 5] * 2), {}, wrong, "must be torch tensors"),
        (fa.unpad_input_for_concatenated_sequences, (q, torch.ones(2, 4)), {}, error, "attention_mask_in_length"),
        (fa.index_first_axis, (q, int32(2)), {}, error, "indices has 2, must be in [0, 1]"),
        (fa.index_first_axis, (q, torch.ones(2, dtype=torch.bool)), {}, error, "be int32 or int64"),
        (fa.index_first_axis, (q, [0]), {}, wrong, "indices must be a torch.Tensor, not list"),
        (fa.index_put_first_axis, (q, int32(0, 9), 9), {}, error, "indices has 9, must be in [0, 8]"),
        (fa.pad_input, (q, int32(0, 1, 2), 2, 4), {}, error, "indices has 3 entries, must have 2"),
    ]


@pytest.mark.parametrize("index", range(len(bad_calls())))
def test_wrong_arguments_raise_and_change_nothing(index):
    function, arguments, options, kind, text = bad_calls()[index]
    before = [tensor.clone() for tensor in arguments[1:3] if isinstance(tensor, torch.Tensor) and not tensor.is_sparse]
    with pytest.raises(kind) as caught:
        function(*arguments, **options)
    message = str(caught.value)
    assert message.startswith(f"[{function.__name__}] ") and text in message and "[attention]" not in message
    after = [tensor for tensor in arguments[1:3] if isinstance(tensor, torch.Tensor)]
    assert all(torch.equal(old, now) for old, now in zip(before, after) if old.device.type == "cpu")


def test_there_is_no_dropout_with_a_cache():
    with pytest.raises(TypeError):
        fa.flash_attn_with_kvcache(random(2, 3, 4, 8), *caches(), dropout_p=0.1)


def test_several_problems_are_named_at_once():
    q, k, v = problem()
    with pytest.raises(attention_cpp.Error) as caught:
        fa.flash_attn_func(q[0], k.to("meta"), v.float())
    assert all(text in str(caught.value) for text in ("q has 3 axes", "k is on meta", "v is torch.float32"))


# ------------------------------------------------------------------------------------------- in the place of flash_attn

SIGNATURES = {  # of flash-attention 2.8.3
    "flash_attn_func": "q, k, v, dropout_p=0.0, softmax_scale=None, causal=False, window_size=(-1, -1), softcap=0.0, "
                       "alibi_slopes=None, deterministic=False, return_attn_probs=False",
    "flash_attn_kvpacked_func": "q, kv, dropout_p=0.0, softmax_scale=None, causal=False, window_size=(-1, -1), "
                                "softcap=0.0, alibi_slopes=None, deterministic=False, return_attn_probs=False",
    "flash_attn_qkvpacked_func": "qkv, dropout_p=0.0, softmax_scale=None, causal=False, window_size=(-1, -1), "
                                 "softcap=0.0, alibi_slopes=None, deterministic=False, return_attn_probs=False",
    "flash_attn_varlen_func": "q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, dropout_p=0.0, "
                              "softmax_scale=None, causal=False, window_size=(-1, -1), softcap=0.0, alibi_slopes=None, "
                              "deterministic=False, return_attn_probs=False, block_table=None",
    "flash_attn_varlen_kvpacked_func": "q, kv, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, dropout_p=0.0, "
                                       "softmax_scale=None, causal=False, window_size=(-1, -1), softcap=0.0, "
                                       "alibi_slopes=None, deterministic=False, return_attn_probs=False",
    "flash_attn_varlen_qkvpacked_func": "qkv, cu_seqlens, max_seqlen, dropout_p=0.0, softmax_scale=None, causal=False, "
                                        "window_size=(-1, -1), softcap=0.0, alibi_slopes=None, deterministic=False, "
                                        "return_attn_probs=False",
    "flash_attn_with_kvcache": "q, k_cache, v_cache, k=None, v=None, rotary_cos=None, rotary_sin=None, "
                               "cache_seqlens=None, cache_batch_idx=None, cache_leftpad=None, block_table=None, "
                               "softmax_scale=None, causal=False, window_size=(-1, -1), softcap=0.0, "
                               "rotary_interleaved=True, alibi_slopes=None, num_splits=0, return_softmax_lse=False",
    "unpad_input": "hidden_states, attention_mask, unused_mask=None",
    "pad_input": "hidden_states, indices, batch, seqlen",
    "apply_rotary_emb": "x, cos, sin, interleaved=False, inplace=False, seqlen_offsets=0, cu_seqlens=None, "
                        "max_seqlen=None",
}


@pytest.mark.parametrize("name", SIGNATURES)
def test_signatures(name):
    parameters = inspect.signature(getattr(fa, name)).parameters.values()
    assert ", ".join(str(p.replace(annotation=p.empty)) for p in parameters) == SIGNATURES[name]


def run(script, *arguments):
    """In a process of its own, in an empty directory; what it prints."""
    environment = {**os.environ, "PYTHONPATH": PACKAGE_ROOT, "OMP_WAIT_POLICY": "passive", "HF_HUB_OFFLINE": "1"}
    result = subprocess.run([sys.executable, "-c", script, *arguments], capture_output=True, text=True, env=environment)
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_install():
    run("""
import importlib, importlib.util, sys
import attention_cpp.flash_attn as ours
assert importlib.util.find_spec("flash_attn") is None
ours.install()
ours.install()
import flash_attn
from flash_attn import flash_attn_func, flash_attn_with_kvcache
from flash_attn.flash_attn_interface import flash_attn_varlen_func, flash_attn_kvpacked_func
from flash_attn.bert_padding import index_first_axis, pad_input, unpad_input
from flash_attn.layers.rotary import apply_rotary_emb
assert flash_attn_func is ours.flash_attn_func and pad_input is ours.pad_input
assert flash_attn.bert_padding.unpad_input is unpad_input and flash_attn.__version__ == "2.8.3"
for name in ("flash_attn", "flash_attn.bert_padding", "flash_attn.layers.rotary"):
    assert importlib.util.find_spec(name).name == name
assert importlib.util.find_spec("flash_attn.cute") is None
assert importlib.import_module("flash_attn.layers") is flash_attn.layers
ours.uninstall()
assert importlib.util.find_spec("flash_attn") is None
assert not [name for name in sys.modules if name.split(".")[0] == "flash_attn"]
ours.uninstall()
""")


def test_install_does_not_hide_another_unasked():
    run("""
import sys, types
import attention_cpp, attention_cpp.flash_attn as ours
theirs = sys.modules["flash_attn"] = types.ModuleType("flash_attn")
inner = sys.modules["flash_attn.utils"] = types.ModuleType("flash_attn.utils")
try:
    ours.install()
except attention_cpp.Error as error:
    assert "force" in str(error)
else:
    raise SystemExit("installed")
ours.install(force=True)
import flash_attn
assert flash_attn.flash_attn_func is ours.flash_attn_func and "flash_attn.utils" not in sys.modules
ours.uninstall()
assert sys.modules["flash_attn"] is theirs and sys.modules["flash_attn.utils"] is inner
""")


FLASH_ATTENTION_2 = """
import sys
import torch
import attention_cpp.flash_attn as ours
if sys.argv[1:] == ["later"]:
    ours.install()
import transformers.modeling_flash_attention_utils as utils
from transformers import AutoModelForCausalLM, LlamaConfig
from transformers.utils import is_flash_attn_2_available
before = utils.FLASH_ATTENTION_COMPATIBILITY_MATRIX[2]
ours.install()
calls = []
from attention_cpp import _core
forward = _core.forward
_core.forward = lambda *x: (calls.append(1), forward(*x))[1]
config = LlamaConfig(vocab_size=50, hidden_size=32, intermediate_size=32, num_hidden_layers=2, num_attention_heads=4,
                     num_key_value_heads=2)
ids = torch.randint(0, 50, (2, 9), generator=torch.Generator().manual_seed(0))
mask = torch.ones(2, 9, dtype=torch.long)
mask[1, :4] = 0
results = []
for implementation in ("eager", "flash_attention_2"):
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, attn_implementation=implementation).eval()
    assert model.config._attn_implementation == implementation
    out = model(input_ids=ids, attention_mask=mask, labels=ids).logits
    out[mask.bool()].square().sum().backward()
    text = model.generate(ids, attention_mask=mask, max_new_tokens=4, do_sample=False)
    results.append((out[mask.bool()], model.model.layers[0].self_attn.k_proj.weight.grad.clone(), text))
assert calls
for eager, flash in zip(*results):
    torch.testing.assert_close(flash, eager, rtol=1e-4, atol=1e-5)
q = torch.randn(2, 9, 4, 8)
out = utils._flash_attention_forward(q, q, q, None, 9, is_causal=True)  # as models call it that are not of transformers
assert torch.equal(out, ours.flash_attn_func(q, q, q, causal=True))
ours.uninstall()
assert not utils.is_flash_attn_2_available()
try:
    AutoModelForCausalLM.from_config(config, attn_implementation="flash_attention_2")
except (ImportError, ValueError):
    print("as before")
"""


@pytest.mark.parametrize("order", ["later", "before"])
def test_transformers_loads_flash_attention_2(order):
    """A LLaMA beside its eager path: logits, a gradient, text; transformers is imported before install() or after."""
    pytest.importorskip("transformers")
    assert "as before" in run(FLASH_ATTENTION_2, order)


def test_an_unknown_transformers_is_warned_of(monkeypatch):
    utils = pytest.importorskip("transformers.modeling_flash_attention_utils")
    monkeypatch.setitem(utils.FLASH_ATTENTION_COMPATIBILITY_MATRIX, 2, {})
    with pytest.warns(UserWarning, match='attn_implementation="attention_cpp"'):
        fa.install()
    fa.uninstall()
    assert utils.FLASH_ATTENTION_COMPATIBILITY_MATRIX[2] == {}
