"""Types of the public names: annotated in full, and known to a caller under mypy --strict."""

import importlib
import inspect
import re
import subprocess
import sys

import pytest

MODULES = ("", ".torch", ".flash_attn", ".fla", ".causal_conv1d", ".mamba_ssm", ".transformers", ".jax")

PREAMBLE = """
import numpy as np
import numpy.typing as npt
import torch
import attention_cpp
import attention_cpp.causal_conv1d as conv1d
import attention_cpp.fla as fla
import attention_cpp.flash_attn as flash
import attention_cpp.mamba_ssm as mamba
import attention_cpp.torch as drop_in
from attention_cpp import Document, Gradients, HeadMentions, HeadRelation, LinearGradients, Mention, Plan, Sentence

gradients: Gradients[torch.Tensor]
of_linear: LinearGradients[torch.Tensor]
n = np.ones((1, 2, 5, 4), np.float32)
t = torch.ones(1, 2, 5, 4)
flag = bool(n.sum())
starts = torch.zeros(2, dtype=torch.int32)
layers = [(n, n, n)]
sentence = Sentence(["a"], [-1], ["root"])
document = Document(["a"], [1], [Mention(0, "e", "PRON")])
cache = attention_cpp.KVCache(2, 4, page_size=16, max_pages=4)
measures, distances = attention_cpp.HeadMeasures(), attention_cpp.HeadDistances()
syntax, coreference = attention_cpp.HeadSyntax(), attention_cpp.HeadCoreference()
module = torch.nn.Linear(2, 2)
seen = attention_cpp.Profile()
"""
N, T = "n", "t"
NUMPY = r"ndarray\[tuple\[int, int, int, int\], .*float.*"
TENSOR = r"torch\._tensor\.Tensor"
TWO, THREE = rf"tuple\[{TENSOR}, {TENSOR}\]", rf"tuple\[{TENSOR}, {TENSOR}, None\]"
STATE = rf"tuple\[{TENSOR}, {TENSOR} \| None\]|tuple\[{TENSOR}, Union\[{TENSOR}, None\]\]"
FLASH = {"flash_attn_func": "t, t, t", "flash_attn_kvpacked_func": "t, t", "flash_attn_qkvpacked_func": "t",
         "flash_attn_varlen_func": "t, t, t, starts, starts, 1, 1", "flash_attn_varlen_kvpacked_func":
         "t, t, starts, starts, 1, 1", "flash_attn_varlen_qkvpacked_func": "t, starts, 1"}
# An expression with each public name, and what mypy has to know of it.
EXPRESSIONS = {
    "attention_cpp.attention(n, n, n, causal=True)": NUMPY,
    "attention_cpp.attention(n, n, n, return_lse=True)": rf"tuple\[.*{NUMPY}, .*{NUMPY}",
    "attention_cpp.attention(n, n, n, return_lse=flag)": rf"Union|\|",
    "attention_cpp.attention(t, t, t, window=(1, 2), scale=None)": TENSOR,
    "attention_cpp.attention(t, t, t, return_lse=True)": TWO,
    "attention_cpp.attention(memoryview(b''), n, n)": r"ndarray\[",
    "attention_cpp.attention_backward(n, n, n, n, n, n, causal=True)": r"Gradients\[numpy.ndarray\[.*float",
    "attention_cpp.attention_backward(t, t, t, t, t, t).dk": rf"{TENSOR} \| None|Union\[{TENSOR}, None\]",
    "attention_cpp.attention_weights(t, t, t, rows=3)": TENSOR,
    "attention_cpp.attention_weights(n, n, n, range(2), causal=True)": NUMPY,
    "attention_cpp.linear_attention(n, n, n, delta=True)": NUMPY,
    "attention_cpp.linear_attention(t, t, t, scale=1.0, return_state=True)": TWO,
    "attention_cpp.linear_attention(n, n, n, return_state=flag)": r"Union|\|",
    "attention_cpp.linear_attention_backward(t, t, t, t).dbeta": rf"{TENSOR} \| None|Union\[{TENSOR}, None\]",
    "attention_cpp.merge(t, t, t, t)": TWO, "attention_cpp.explain(n, n, n, causal=True)": "Plan",
    "attention_cpp.profile(tasks=True)": r"ContextManager\[.*Profile",
    "attention_cpp.profile_scope('layer')": r"ContextManager\[None",
    "seen.table(rows=3)": r"\bstr", "seen.save_trace('trace.json')": "None", "seen.spans[0].begin": r"\bint",
    "attention_cpp.explain_backward(n, n, n, causal=True)": "Plan",
    "attention_cpp.attention_statistics(t, t, t, ['entropy'], top=3, causal=True)": rf"dict\[.*str, {TENSOR}\]",
    "attention_cpp.gradient_times_attention(t, t, t, t, t, causal=True)": TENSOR,
    "attention_cpp.dropout_keeps(1, 0.5, (1, 1, 2, 3))": r"ndarray\[.*bool", "attention_cpp.isa()": r"\bstr",
    "attention_cpp.isas()": r"list\[.*str", "attention_cpp.float32_precision()": r"\bstr",
    "attention_cpp.threads()": r"\bint", "attention_cpp.HEAD_MEASURES": r"dict\[.*str, .*HeadMeasure",
    "attention_cpp.head_points(n)": r"ndarray\[.*float64|floating", 
    "attention_cpp.head_clusters(n, 2)": r"ndarray\[.*int",
    "attention_cpp.attention_rollout(layers, 1)": r"ndarray\[.*float", "attention_cpp.attention_flow(layers, 1)":
    r"tuple\[.*ndarray.*float", "attention_cpp.repeated_tokens(3, 0, 9)": r"list\[.*int",
    "attention_cpp.read_conllu('')": r"list\[.*Sentence", "attention_cpp.read_coreference('')": r"list\[.*Document",
    "attention_cpp.Error('a')": "Error", "cache": "KVCache", "cache.add()": r"\bint", "cache.fork(0, 1)": r"\bint",
    "cache.append(0, n, n)": "None", "cache.truncate(0, 1)": "None", "cache.remove(0)": "None",
    "cache.length(0)": r"\bint", "cache.pages_in_use": r"\bint", "cache.attend(t, [0])": TENSOR,
    "cache.attend(t, [0], return_lse=True)": TWO, "cache.attend(n, [0], causal=False)": NUMPY,
    "cache.statistics(t, t, [0])": rf"dict\[.*str, {TENSOR}\]",
    "measures": "HeadMeasures", "measures.add(layers, n)": "None", "measures.texts": r"\bint",
    "measures.table()": "dict",
    "distances": "HeadDistances", "distances.add(layers, n)": "None", "distances.divergences()": r"ndarray\[.*float",
    "syntax": "HeadSyntax", "syntax.add(layers, sentence, [0])": "None", "syntax.relations()": r"dict\[.*HeadRelation",
    "coreference": "HeadCoreference", "coreference.add(layers, document, [0])": "None",
    "coreference.kinds()": r"dict\[.*HeadMentions",
    "attention_cpp.watch(module, layers=[0])": r"ContextManager\[.*Seen",
    "drop_in.attention(t, t, t, sink=[0.0])": TENSOR, "drop_in.attention(t, t, t, return_lse=True)": TWO,
    "drop_in.attention(t, t, t, return_lse=flag)": rf"{TENSOR}.*{TWO}",
    "drop_in.attention_weights(t, t, heads=[0])": TENSOR,
    "drop_in.attention_statistics(t, t)": "RowStatistics", "drop_in.attention_statistics(t, t).entropy": TENSOR,
    "drop_in.linear_attention(t, t, t, l2norm=True)": TENSOR,
    "drop_in.linear_attention(t, t, t, beta=None, return_state=True)": TWO,
    "drop_in.linear_attention(t, t, t, return_state=flag)": rf"{TENSOR}.*{TWO}",
    "drop_in.scaled_dot_product_attention(t, t, t, is_causal=True)": TENSOR, "drop_in.flex_attention(t, t, t)": TENSOR,
    "drop_in.flex_attention(t, t, t, return_lse=True)": TWO, "drop_in.explain(t, t, t)": r"Plan.*str",
    "drop_in.explain_backward(t, t, t)": r"Plan.*str", "drop_in.explain_flex_attention_backward(t, t, t)": r"Plan.*str",
    "drop_in.explain_flex_attention(t, t, t)": r"Plan.*str", "drop_in.mask_counts()": r"dict\[.*str, .*int",
    "drop_in.share_threads()": r"\bbool", "drop_in.enable(warn=True)": "None", "drop_in.disable()": "None",
    "drop_in.enabled(strict=True)": r"ContextManager\[None", "flash.install()": "None", "flash.uninstall()": "None",
    **{f"flash.{name}({given})": TENSOR for name, given in FLASH.items()},
    **{f"flash.{name}({given}, return_attn_probs=True)": THREE for name, given in FLASH.items()},
    **{f"flash.{name}({given}, return_attn_probs=flag)": rf"{TENSOR}.*{THREE}" for name, given in FLASH.items()},
    "flash.flash_attn_func(t, t, t, 0.0, None, True, (1, 0), 0.0, None, False, False)": TENSOR,
    "flash.flash_attn_with_kvcache(t, t, t)": TENSOR,
    "flash.flash_attn_with_kvcache(t, t, t, return_softmax_lse=True)": TWO,
    "flash.index_first_axis(t, t)": TENSOR, "flash.index_put_first_axis(t, t, 1)": TENSOR,
    "flash.pad_input(t, t, 1, 1)": TENSOR, "flash.unpad_input(t, t)": rf"tuple\[{TENSOR}, .*int, {TENSOR}\]",
    "flash.unpad_input_for_concatenated_sequences(t, t)": rf"tuple\[{TENSOR}.*int\]",
    "flash.apply_rotary_emb(t, t, t)": TENSOR,
    "drop_in.causal_convolution(t, t, silu=True)": TENSOR,
    "drop_in.causal_convolution(t, t, return_final_state=True)": TWO,
    "drop_in.causal_convolution(t, t, return_final_state=flag)": rf"{TENSOR}.*{TWO}",
    "conv1d.causal_conv1d_fn(t, t, activation='silu')": TENSOR,
    "conv1d.causal_conv1d_fn(t, t, return_final_states=True)": TWO,
    "conv1d.causal_conv1d_fn(t, t, return_final_states=flag)": rf"{TENSOR}.*{TWO}",
    "conv1d.causal_conv1d_update(t, t, t)": TENSOR, "conv1d.install()": "None", "conv1d.uninstall()": "None",
    "mamba.mamba_chunk_scan_combined(t, t, t, t, t, 64, dt_softplus=True)": TENSOR,
    "mamba.mamba_chunk_scan_combined(t, t, t, t, t, 64, return_final_states=True)": TWO,
    "mamba.mamba_chunk_scan_combined(t, t, t, t, t, 64, return_final_states=flag)":
    rf"{TENSOR}.*tuple\[{TENSOR}, \.\.\.",
    "mamba.mamba_split_conv1d_scan_combined(t, t, t, t, t, t, 64)": "None",
    "mamba.selective_state_update(t, t, t, t, t, t)": TENSOR, "mamba.install()": "None", "mamba.uninstall()": "None",
    "fla.install()": "None", "fla.uninstall()": "None",
    "fla.chunk_gated_delta_rule(t, t, t, t, t)": STATE, "fla.chunk_kda(t, t, t, t, beta=t)": STATE,
}
WRONG = ("attention_cpp.isa(3)", "attention_cpp.attention(n, n, n, is_causal=True)",
         "attention_cpp.attention(n, n, n, causal='yes')", "drop_in.attention(t, t, t, softmax_scale=1.0)",
         "drop_in.attention(n, t, t)", "flash.flash_attn_func(t, t, t, return_attn_probs=3)")
IN_PREAMBLE = {"Document", "Gradients", "HeadMentions", "HeadRelation", "LinearGradients", "Mention", "Plan",
               "Sentence", "HEAD_MEASURES"}


def functions_of(module):
    """The public functions of a module, and the methods of its public classes."""
    for name in module.__all__:
        value = getattr(module, name)
        if inspect.isfunction(value):
            yield name, value
        elif inspect.isclass(value):
            yield from ((f"{name}.{method}", function) for method, function in vars(value).items()
                        if inspect.isfunction(function) and not method.startswith("_"))


@pytest.mark.parametrize("module", MODULES)
def test_public_functions_are_annotated(module):
    if module:
        pytest.importorskip(re.sub("flash_attn|causal_conv1d|mamba_ssm|fla$", "torch", module.removeprefix(".")))
    for name, function in functions_of(importlib.import_module(f"attention_cpp{module}")):
        signature = inspect.signature(function)
        bare = [parameter for parameter in signature.parameters.values()
                if parameter.annotation is parameter.empty and parameter.name != "self"]
        assert not bare and signature.return_annotation is not signature.empty, name


@pytest.mark.parametrize("module, name", [("", "attention_cpp"), (".torch", "drop_in"), (".flash_attn", "flash"),
                                          (".causal_conv1d", "conv1d"), (".mamba_ssm", "mamba")])
def test_every_public_name_has_an_expression(module, name):
    if module:
        pytest.importorskip("torch")
    public = importlib.import_module(f"attention_cpp{module}")
    text = PREAMBLE + "\n".join(EXPRESSIONS)
    for function in public.__all__:
        assert re.search(rf"\b{name}\.{function}\b", text) or not module and function in IN_PREAMBLE, function
    objects = {"KVCache": "cache", "HeadMeasures": "measures", "HeadDistances": "distances", "HeadSyntax": "syntax",
               "HeadCoreference": "coreference", "Profile": "seen"}
    for function, _ in functions_of(public):
        owner, _, method = function.partition(".")
        assert not method or f"{objects[owner]}.{method}(" in text, function


def run_mypy(folder, program, file):
    (folder / file).write_text(program)
    (folder / "mypy.ini").write_text("[mypy-transformers.*]\nfollow_imports = skip\n")
    return subprocess.run([sys.executable, "-m", "mypy", "--strict", "--config-file", "mypy.ini", file], cwd=folder,
                          capture_output=True, text=True)


def test_a_caller_passes_mypy_strict(tmp_path):
    pytest.importorskip("mypy")
    pytest.importorskip("torch")
    first = PREAMBLE.count("\n") + 1
    result = run_mypy(tmp_path, PREAMBLE + "".join(f"reveal_type({one})\n" for one in EXPRESSIONS), "caller.py")
    revealed = dict(re.findall(r"caller\.py:(\d+): note: Revealed type is \"(.*)\"", result.stdout))
    errors = [line for line in result.stdout.splitlines() if ": error:" in line
              and not ("does not return a value" in line)]
    assert not errors, errors
    for number, (expression, expected) in enumerate(EXPRESSIONS.items()):
        found = revealed[str(first + number)]
        assert re.search(expected, found), f"{expression}: {found}"
        # NumPy's dtype[Any] of what has no dtype in its type is the one Any that may be: a memoryview's, and tables'.
        assert "Any" not in found or "memoryview" in expression or "ndarray[tuple[Any, ...], " in found, (
            f"{expression}: {found}")
    wrong = run_mypy(tmp_path, PREAMBLE + "\n".join(WRONG) + "\n", "wrong.py").stdout
    for number, expression in enumerate(WRONG):
        assert f"wrong.py:{first + number}: error:" in wrong, f"{expression}: {wrong}"


def test_types_of_the_jax_integration(tmp_path):
    pytest.importorskip("mypy")
    pytest.importorskip("jax")
    program = """import jax.numpy as jnp
from attention_cpp.jax import dot_product_attention

x = jnp.ones((1, 5, 2, 4))
reveal_type(dot_product_attention(x, x, x))
reveal_type(dot_product_attention(x, x, x, return_residual=True))
dot_product_attention(x, x, x, is_causal=3, scale="1")
"""
    result = run_mypy(tmp_path, program, "caller.py").stdout
    assert re.search(r'caller.py:5: note: Revealed type is "jax.*Array"', result), result
    assert re.search(r'caller.py:6: note: Revealed type is "tuple\[jax.*Array, jax.*Array\]"', result), result
    assert "caller.py:7: error" in result and "caller.py:5: error" not in result
