"""The wheel that pip builds: what is in it, what it links, and that it works with NumPy alone.

ATTN_WHEEL names it; tools/python_package.sh builds it.
"""

import os
import pathlib
import subprocess
import sys
import zipfile

import pytest

ROOT = pathlib.Path(__file__).parents[2]
WHEEL = os.environ.get("ATTN_WHEEL", "")
pytestmark = pytest.mark.skipif(not WHEEL, reason="ATTN_WHEEL names no wheel")


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheel")
    with zipfile.ZipFile(WHEEL) as archive:
        archive.extractall(folder)
    return folder


def test_contents(unpacked):
    names = {str(path.relative_to(unpacked)) for path in unpacked.rglob("*") if path.is_file()}
    modules = {name for name in names if name.startswith("attention_cpp/")}
    assert {f"attention_cpp/{name}" for name in ("__init__.py", "py.typed", "_core.pyi", "torch.py", "flash_attn.py",
                                                 "transformers.py", "jax.py")} <= modules
    assert sum(name.endswith(".so") for name in names) == 1
    outside = {name for name in names - modules if ".dist-info/" not in name}
    assert not outside and any(name.endswith("LICENSE") for name in names)


def test_no_openmp_and_no_foreign_library(unpacked):
    library, = unpacked.rglob("*.so")
    symbols = subprocess.run(["nm", "-D", library], capture_output=True, text=True, check=True).stdout
    assert "PyInit__core" in symbols
    assert not [line for line in symbols.splitlines() if any(mark in line for mark in ("GOMP_", "__kmpc_", "omp_"))]
    needed = subprocess.run(["readelf", "-d", library], capture_output=True, text=True, check=True).stdout
    libraries = {line.split("[")[1].rstrip("]") for line in needed.splitlines() if "(NEEDED)" in line}
    assert libraries <= {"libstdc++.so.6", "libm.so.6", "libgcc_s.so.1", "libc.so.6", "libpthread.so.0",
                         "ld-linux-x86-64.so.2", "ld-linux-aarch64.so.1"}


@pytest.fixture(scope="module")
def empty(tmp_path_factory):
    """A new environment with the wheel and NumPy: runs Python there."""
    folder = tmp_path_factory.mktemp("empty")
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    python = folder / "bin/python"
    subprocess.run([python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", WHEEL], check=True)
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return lambda *arguments: subprocess.run([python, *arguments], capture_output=True, text=True, env=environment,
                                             cwd=folder)


def test_works_with_numpy_alone(empty):
    program = (
        "import sys, numpy as np, attention_cpp\n"
        "x = np.random.default_rng(0).standard_normal((1, 2, 5, 4))\n"
        "out, lse = attention_cpp.attention(x, x, x, causal=True, return_lse=True)\n"
        "assert np.array_equal(out[:, :, 0], x[:, :, 0])\n"
        "attention_cpp.attention_backward(x, x, x, out, lse, out, causal=True)\n"
        "assert not {'torch', 'jax', 'transformers'} & set(sys.modules)\n"
        "print(attention_cpp.__file__)\n")
    result = empty("-c", program)
    assert result.returncode == 0, result.stderr
    assert "site-packages" in result.stdout and str(ROOT) not in result.stdout


def test_it_says_what_it_runs_on_and_tries_itself(empty):
    result = empty("-m", "attention_cpp")
    assert result.returncode == 0, result.stdout + result.stderr
    lines = dict(line.split(maxsplit=1) for line in result.stdout.splitlines() if line)
    assert {"attention_cpp", "processor", "python", "numpy", "instructions", "threads"} <= lines.keys()
    assert lines["torch"] == "not installed"
    names = lines["instructions"].split(" of ")[1].split(", ")
    tried = [line.split()[:3] for line in result.stdout.splitlines() if line.startswith("right")]
    assert tried == [["right", name, dtype] for name in names for dtype in ("float32", "float64")]


def test_a_wrong_result_is_said(monkeypatch, capsys):
    from attention_cpp import __main__ as program

    monkeypatch.setattr(program, "_plain", lambda *arrays: [x + 1e-3 for x in arrays])
    assert program.main() == 1 and "right" not in capsys.readouterr().out


def test_it_runs_on_other_systems():
    """The C library that it needs, as auditwheel judges it: a manylinux tag, and nothing that is to be added."""
    pytest.importorskip("auditwheel")
    shown = subprocess.run([sys.executable, "-m", "auditwheel", "show", WHEEL], capture_output=True, text=True)
    assert shown.returncode == 0, shown.stderr
    text = " ".join(shown.stdout.split())
    assert "manylinux" in text and "following external shared libraries are required" not in text, text
