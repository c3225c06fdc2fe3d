"""Attention with Longformer's mask, a window of 512 tokens and 16 global tokens, beside FlexAttention of torch: 4 heads
of 128, at lengths that double. Each result is compared before it is timed.

attention_cpp takes the mask as lists of blocks of 16 tokens. FlexAttention takes it as a function and a block mask,
which is made of lists before the clock starts, since create_block_mask() makes n x n booleans. It is compiled, and has
no backward on a CPU.
"""

import argparse
from collections.abc import Iterator

import torch
from torch.nn.attention.flex_attention import BlockMask, flex_attention

from .results import Row
from .timing import in_turn, ratio

HEADS, DEPTH = 4, 128
GLOBAL, SIDE = 16, 16  # tokens of a block, of which the first is global; blocks of the window on each side
FLEX_BLOCK = 128
BOUND = {torch.float32: 1e-4, torch.bfloat16: 2**-5}  # of the largest element


def allowed(b: torch.Tensor, h: torch.Tensor, i: torch.Tensor, j: torch.Tensor) -> torch.Tensor:
    """attention_cpp.layouts.longformer(), token by token."""
    n, m = i // GLOBAL, j // GLOBAL
    return ((n - m).abs() <= SIDE) | (n == 0) | (m == 0)


def listed(blocks: torch.Tensor) -> list[torch.Tensor]:
    """The numbers of listed blocks of each row, and the blocks, these first."""
    count = blocks.sum(-1).int()
    return [x[None, None] for x in (count, blocks.int().argsort(dim=-1, descending=True, stable=True).int())]


def block_mask(length: int) -> BlockMask:
    """What create_block_mask() finds: blocks with some pairs that attend, and those with all."""
    n = torch.arange(length // FLEX_BLOCK)
    distance, inner = (n[:, None] - n).abs() * (FLEX_BLOCK // GLOBAL), FLEX_BLOCK // GLOBAL - 1
    full = distance + inner <= SIDE
    some = (distance - inner <= SIDE) | (n[:, None] == 0) | (n == 0)
    return BlockMask.from_kv_blocks(*listed(some & ~full), *listed(full), BLOCK_SIZE=FLEX_BLOCK, mask_mod=allowed)


def row(length: int, dtype: torch.dtype, options: argparse.Namespace) -> Row:
    from attention_cpp import layouts
    from attention_cpp.torch import attention

    torch._dynamo.reset()  # else the shapes count against its limit
    compiled = torch.compile(flex_attention, dynamic=False)
    blocks = layouts.longformer(length, GLOBAL, side=SIDE, global_blocks=[0])
    mask = block_mask(length)
    q, k, v = torch.randn((3, 1, HEADS, length, DEPTH)).to(dtype)
    calls = [lambda: attention(q, k, v, blocks=blocks), lambda: compiled(q, k, v, block_mask=mask)]
    a, b = (call().float() for call in calls)
    error = ((a - b).abs().max() / b.abs().max()).item()
    found: Row = {"what": "forward", "dtype": str(dtype).removeprefix("torch."), "tokens": length, "error": error}
    if not error <= BOUND[dtype]:
        return found | {"ours ms": None, "peer ms": None, "spread %": None, "ratio": None, "verdict": "WRONG"}
    mine, theirs = in_turn(calls, options.repeats or 7, most_seconds=30)
    return found | {"ours ms": 1e3 * mine.median, "peer ms": 1e3 * theirs.median, "spread %": 100 * mine.spread,
                    "ratio": ratio(mine, theirs), "verdict": "ok"}


def add_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--lengths", default=[8192, 32768, 131072], help="multiples of 128, as in 4096,8192",
                        type=lambda text: [int(length) for length in text.split(",")])


def run(options: argparse.Namespace, about: dict[str, object]) -> Iterator[Row]:
    import attention_cpp

    about |= {"torch": torch.__version__, "threads": options.threads[-1], "peer": "FlexAttention, compiled"}
    torch.set_num_threads(options.threads[-1])
    attention_cpp.threads(options.threads[-1])
    torch.manual_seed(1)
    for length in options.lengths:
        for dtype in BOUND:
            if options.filter.search(str(dtype)):
                with torch.inference_mode():
                    yield row(length, dtype, options)
