"""Types of the public names: annotated in full, and enough for a caller under mypy --strict."""

import importlib
import inspect
import subprocess
import sys

import pytest

FACES = ("", ".torch", ".flash_attn", ".transformers", ".jax")

PROGRAM = '''
import numpy as np
import attention_cpp
import attention_cpp.torch
from attention_cpp import Gradients, KVCache, Plan

x = np.ones((1, 2, 5, 4), np.float32)
out, lse = attention_cpp.attention(x, x, x, causal=True, return_lse=True)
gradients: Gradients = attention_cpp.attention_backward(x, x, x, out, lse, out, causal=True)
print(gradients.dq, attention_cpp.weights(x, x, lse, rows=3), attention_cpp.merge(out, lse, out, lse))
plan: Plan = attention_cpp.explain(x, x, x, backward=True, causal=True)
print(plan.scratch_bytes + 1, plan.path.upper(), attention_cpp.isa().upper(), attention_cpp.isas()[0].upper())
cache = KVCache(2, 4, page_size=16, max_pages=4)
sequence: int = cache.add()
print(attention_cpp.threads() + 1, attention_cpp.dropout_mask(1, 0.5, (1, 1, 2, 3)))
with attention_cpp.torch.enabled(strict=True):
    pass
'''


def functions_of(module):
    """The public functions of a module, and the methods of its public classes."""
    for name in module.__all__:
        value = getattr(module, name)
        if inspect.isfunction(value):
            yield name, value
        elif inspect.isclass(value):
            yield from ((f"{name}.{method}", function) for method, function in vars(value).items()
                        if inspect.isfunction(function) and not method.startswith("_"))


@pytest.mark.parametrize("face", FACES)
def test_public_functions_are_annotated(face):
    if face:
        pytest.importorskip(face.removeprefix(".").replace("flash_attn", "torch"))
    for name, function in functions_of(importlib.import_module(f"attention_cpp{face}")):
        signature = inspect.signature(function)
        bare = [parameter for parameter in signature.parameters.values()
                if parameter.annotation is parameter.empty and parameter.name != "self"]
        assert not bare and signature.return_annotation is not signature.empty, name


def test_a_caller_passes_mypy_strict(tmp_path):
    pytest.importorskip("mypy")
    (tmp_path / "caller.py").write_text(PROGRAM)
    (tmp_path / "wrong.py").write_text(PROGRAM + "attention_cpp.isa(3)\n")
    (tmp_path / "mypy.ini").write_text("[mypy-torch.*]\nfollow_imports = skip\n")
    results = [subprocess.run([sys.executable, "-m", "mypy", "--strict", "--config-file", "mypy.ini", name],
                              cwd=tmp_path, capture_output=True, text=True) for name in ("caller.py", "wrong.py")]
    assert results[0].returncode == 0, results[0].stdout + results[0].stderr
    assert results[1].returncode == 1 and 'incompatible type "int"' in results[1].stdout
