"""Every program that a reader is shown runs: the snippets of python/README.md in order, and examples/python."""

import pathlib
import re
import subprocess
import sys

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("jax")

ROOT = pathlib.Path(__file__).resolve().parents[2]


def run(*arguments):
    result = subprocess.run([sys.executable, *arguments], capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_snippets_of_the_readme():
    snippets = re.findall(r"```python\n(.*?)```", (ROOT / "python/README.md").read_text(), re.S)
    assert len(snippets) == 11
    assert run("-c", "".join(snippets)).startswith("(1, 8, 1000, 64)")


def test_a_training_loop_learns():
    output = run(ROOT / "examples/python/01_torch_training_loop.py")
    assert float(re.search(r"([\d.]+) % of the second half", output)[1]) > 95


def test_transformers_in_one_line():
    output = run(ROOT / "examples/python/02_transformers_in_one_line.py")
    assert "the same as eager: True" in output


def test_rows_of_a_long_input():
    output = run(ROOT / "examples/python/03_rows_of_a_long_input.py")
    assert "sum to 1.00000" in output and "on token 12345" in output and "64 MB: True" in output


def test_a_head_learns_where_to_look():
    output = run(ROOT / "examples/python/04_teaching_a_head_where_to_look.py")
    assert float(re.search(r"step 60: the token before has ([\d.]+)", output)[1]) > 0.3
