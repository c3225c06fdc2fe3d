"""The wheel that pip builds: what is in it, what it links, and that it works with NumPy alone.

ATTN_WHEEL names it; tools/python_package.sh builds it.
"""

import os
import pathlib
import subprocess
import sys
import tarfile
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


def test_the_wheel_contains_every_module_and_one_extension(unpacked):
    names = {str(path.relative_to(unpacked)) for path in unpacked.rglob("*") if path.is_file()}
    modules = {name for name in names if name.startswith("attention_cpp/")}
    assert {f"attention_cpp/{name}" for name in ("__init__.py", "py.typed", "_core.pyi", "torch/__init__.py",
                                                 "flash_attn.py", "transformers.py", "jax.py")} <= modules
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


def new_environment(folder, package):
    """A new environment with a wheel or an sdist and what it requires: runs Python there."""
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}

    def run(*arguments):
        return subprocess.run([folder / "bin/python", *arguments], capture_output=True, text=True, env=environment,
                              cwd=folder)

    installed = run("-m", "pip", "install", "--quiet", "--disable-pip-version-check", package)
    assert installed.returncode == 0, installed.stderr
    return run


@pytest.fixture(scope="module")
def empty(tmp_path_factory):
    return new_environment(tmp_path_factory.mktemp("empty"), WHEEL)


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


@pytest.fixture(scope="module")
def sdist(tmp_path_factory):
    """The archive of sources, and the names in it without the folder that holds them."""
    build = pytest.importorskip("scikit_build_core.build")
    folder, before = tmp_path_factory.mktemp("sdist"), os.getcwd()
    os.chdir(ROOT)
    try:
        archive = folder / build.build_sdist(str(folder))
    finally:
        os.chdir(before)
    with tarfile.open(archive) as files:
        return archive, {name.partition("/")[2] for name in files.getnames()}


def test_sources_are_those_of_the_package(sdist):
    """None that is in a folder of the same name elsewhere, as in an environment of a build."""
    _, names = sdist
    assert {"CMakeLists.txt", "pyproject.toml", "LICENSE", "include/attn/attention.h", "python/CMakeLists.txt",
            "python/attention_cpp/torch/__init__.py", "src/kernels/table.h"} <= names
    assert {name.partition("/")[0] for name in names} == {
        "CMakeLists.txt", "pyproject.toml", "LICENSE", "PKG-INFO", "cmake", "include", "python", "src"}


@pytest.mark.skipif("ATTN_EXHAUSTIVE" not in os.environ, reason="compiles the library: minutes")
def test_an_empty_environment_builds_it_of_its_sources(sdist, tmp_path):
    run = new_environment(tmp_path / "empty", sdist[0])
    assert_it_tries_itself(run("-m", "attention_cpp"))


def test_python_m_prints_the_machine_and_checks_results(empty):
    assert_it_tries_itself(empty("-m", "attention_cpp"))


def assert_it_tries_itself(result):
    assert result.returncode == 0, result.stdout + result.stderr
    lines = dict(line.split(maxsplit=1) for line in result.stdout.splitlines() if line)
    assert {"attention_cpp", "processor", "python", "numpy", "instructions", "threads"} <= lines.keys()
    assert lines["torch"] == "not installed"
    names = lines["instructions"].split(" of ")[1].split(", ")
    tried = [line.split()[:3] for line in result.stdout.splitlines() if line.startswith("right")]
    assert tried == [["right", name, dtype] for name in names for dtype in ("float32", "float64")]


def test_python_m_fails_for_a_wrong_result(monkeypatch, capsys):
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
