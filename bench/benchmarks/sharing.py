"""What alternating with torch costs: our attention and a torch product in turn, against each alone.

Both use all cores. torch's OpenMP workers spin for a while after each product; a pool of our own then shares the cores
with them. Measured are torch's team, which attention_cpp.torch uses by default, and our own pool.
"""

import argparse
from collections.abc import Iterator

import torch

import attention_cpp.torch

from .results import Row
from .timing import in_turn


def run(options: argparse.Namespace, about: dict[str, object]) -> Iterator[Row]:
    about["torch"] = torch.__version__
    torch.manual_seed(0)
    for shared in (True, False):
        if attention_cpp.torch.share_threads(shared) != shared:
            about["sharing"] = "torch's OpenMP runtime was not found"
            continue
        for length, width in ((128, 256), (512, 512), (2048, 1024)):
            q, a = torch.randn(1, 8, length, 64), torch.randn(width, width)

            def ours(q=q):
                attention_cpp.torch.scaled_dot_product_attention(q, q, q, is_causal=True)

            def theirs(a=a):
                torch.mm(a, a)

            def both():
                ours()
                theirs()

            taken = in_turn([ours, theirs, both], options.repeats or 30, sample_seconds=0.01)
            alone, torchs, turns = (samples.median * 1e6 for samples in taken)
            yield {"threads": "of torch" if shared else "own pool", "attention": f"8 x {length} x 64",
                   "ours alone, us": alone, "torch alone, us": torchs, "in turn, us": turns,
                   "more %": 100 * (turns / (alone + torchs) - 1)}
    attention_cpp.torch.share_threads()
