"""With other libraries' thread runtimes in one process: any order of imports, all at once, after a fork."""

import itertools
import os
import random
import subprocess
import sys

import pytest

pytest.importorskip("torch")
pytest.importorskip("sklearn")

LIBRARIES = ("numpy", "torch", "sklearn.cluster", "attention_cpp")
ORDERS = list(itertools.permutations(LIBRARIES))
RUNS = 3 if os.environ.get("ATTN_EXHAUSTIVE") else 1
ORDERS = random.Random(int(os.environ.get("ATTN_SEED", "1"))).sample(ORDERS, 4)

PROGRAM = """
import importlib, os, sys, threading
for name in sys.argv[1:]:
    importlib.import_module(name)
import numpy, torch, sklearn.cluster, attention_cpp
if "torch" in sys.argv[1:3]:
    import attention_cpp.torch  # whose threads are torch's from now on

x = numpy.random.default_rng(0).standard_normal((1, 4, 200, 32), dtype=numpy.float32)
points = x[0, 0]
work = {
    "ours": lambda: attention_cpp.attention(x, x, x, causal=True).tobytes(),
    "numpy": lambda: (points @ points.T).tobytes(),
    "torch": lambda: torch.mm(torch.from_numpy(points), torch.from_numpy(points).T).numpy().tobytes(),
    "sklearn": lambda: sklearn.cluster.KMeans(3, n_init=1, random_state=0).fit(points).labels_.tobytes(),
}
expected = {name: function() for name, function in work.items()}
wrong = []

def repeat(name):
    for _ in range(10):
        if work[name]() != expected[name]:
            wrong.append(name)

threads = [threading.Thread(target=repeat, args=(name,)) for name in work for _ in range(2)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
assert "ours" not in wrong, wrong
count = len(os.listdir("/proc/self/task"))
assert count <= 16 * os.cpu_count() + 16, count

child = os.fork()  # the library works in the child; what torch's own runtime does there is torch's
if child == 0:
    os._exit(0 if attention_cpp.attention(x, x, x, causal=True).tobytes() == expected["ours"] else 1)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
"""


@pytest.mark.parametrize("order", ORDERS, ids=" ".join)
def test_any_order_of_imports(order):
    for _ in range(RUNS):
        result = subprocess.run([sys.executable, "-c", PROGRAM, *order], capture_output=True, text=True, timeout=120)
        assert result.returncode == 0, result.stderr


def test_the_borrowed_team_computes_the_same_bits():
    import numpy as np

    import attention_cpp
    import attention_cpp.torch as drop_in

    x = np.random.default_rng(0).standard_normal((1, 4, 300, 32), dtype=np.float32)
    assert drop_in.share_threads()
    theirs = attention_cpp.attention(x, x, x)
    assert not drop_in.share_threads(False)
    own = attention_cpp.attention(x, x, x)
    assert drop_in.share_threads()
    np.testing.assert_array_equal(theirs, own)


TILES = """
import hashlib, sys
import torch
import attention_cpp.torch as drop_in

torch.set_num_threads(1)
draw = torch.Generator().manual_seed(0)
a, b = (torch.randn(256, 320, generator=draw).bfloat16() for _ in range(2))
x = torch.randn(1, 4, 300, 64, generator=draw)
work = {
    "torch": lambda: a @ b.T,
    "bfloat16": lambda: drop_in.attention(x.bfloat16(), x.bfloat16(), x.bfloat16(), causal=True),
    "float32": lambda: drop_in.attention(x, x, x),
}
for name in sys.argv[1:]:
    print(hashlib.sha256(work[name]().float().numpy().tobytes()).hexdigest())
"""


def hashes(*names):
    result = subprocess.run([sys.executable, "-c", TILES, *names], capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stderr
    return result.stdout.split()


def test_matrix_tiles_of_torch_and_ours():
    """Both configure the tiles of one thread: neither sees what the other does there."""
    import attention_cpp

    if not any(isa.startswith("amx") for isa in attention_cpp.isas()):
        pytest.skip("this CPU has no matrix tiles")
    order = ["torch", "bfloat16", "torch", "float32", "torch", "torch", "float32", "bfloat16", "torch"]
    alone = {name: hashes(name)[0] for name in set(order)}
    assert hashes(*order) == [alone[name] for name in order]
