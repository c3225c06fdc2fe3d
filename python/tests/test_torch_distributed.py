"""attention_cpp.torch.distributed under torchrun: several processes over gloo."""

import os
import pathlib
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")
if not torch.distributed.is_available():
    pytest.skip("this torch has no torch.distributed", allow_module_level=True)

import attention_cpp  # noqa: E402
from attention_cpp.torch import distributed  # noqa: E402

WORKER = pathlib.Path(__file__).with_name("distributed_worker.py")


def run(ranks, *cases):
    """The worker's cases on so many ranks; a rank that fails ends them all."""
    done = subprocess.run([sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(ranks),
                           "--master-port", "0", "--standalone", str(WORKER), *cases], capture_output=True, text=True,
                          timeout=600, env=os.environ | {"OMP_NUM_THREADS": "1"})
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.split("\n")[:-1] == [f"{case}: ok" for case in cases]


def test_three_ranks():
    run(3, "options", "ring_functions", "varlen", "llama3", "ulysses", "merge", "dropout_without_seed", "errors")


def test_one_and_two_ranks():
    run(1, "ring_functions")
    run(2, "ring_functions", "varlen", "ulysses")


def test_batches_and_sequences_over_ranks():
    run(2, "wrappers")
    run(4, "wrappers")


def test_context_parallel_of_torch():
    run(2, "context_parallel", "context_parallel_options")
    run(3, "context_parallel")


def test_a_model_of_transformers():
    pytest.importorskip("transformers")
    run(2, "transformers", "context_parallel_model")


def test_without_a_process_group():
    x = torch.zeros(1, 1, 4, 2)
    with pytest.raises(attention_cpp.Error, match="there is no process group"):
        distributed.attention(x, x, x, distributed.Placement("zigzag", 4))
    with pytest.raises(attention_cpp.Error, match="there is no process group"):
        distributed.ring_flash_attn_func(x, x, x)
