"""Every program that a reader is shown runs: the blocks of a page, one after the other, and examples/python."""

import pathlib
import re
import subprocess
import sys

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("jax")

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))
import extract_snippets  # noqa: E402


def run(*arguments):
    result = subprocess.run([sys.executable, *arguments], capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stderr
    return result.stdout


PAGES = extract_snippets.pages_with("python")
# What a page takes for granted: models of the reader's own, and a batch.
GIVEN = """
import torch
import transformers
torch.manual_seed(0)
sizes = dict(vocab_size=100, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4)
encoder = transformers.BertModel(transformers.BertConfig(**sizes)).eval()
model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes, eos_token_id=None)).eval()
inputs = {"input_ids": torch.randint(3, 100, (2, 9)), "attention_mask": torch.ones(2, 9, dtype=torch.int64)}
kinds = None
"""


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_python_blocks_of_pages_run(page):
    given = "" if page == ROOT / "python/README.md" else GIVEN
    run("-c", given + "".join(block.text for block in PAGES[page]))


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
