"""What a call costs besides its arithmetic, piece by piece, on one head of 8 x 8; and three kinds of calls: a decoded
token, padding as a mask, and one key head that is expanded to many. One thread.

Every number is the best of many rounds, in microseconds of this thread's time, which other programs do not disturb.
"""

import argparse
import itertools
import time
from collections.abc import Iterator

import torch
import torch.nn.functional as F

import attention_cpp
import attention_cpp.torch as drop_in
from attention_cpp import _core
from attention_cpp._options import NONE_GIVEN
from attention_cpp._torch import autograd, operators, sdpa

from .results import Row
from .timing import Call, seconds_of


class Nothing(torch.autograd.Function):
    """What torch takes for a recorded function of as many tensors, and its backward."""

    @staticmethod
    def forward(ctx, q, k, v):
        ctx.save_for_backward(q, k, v)
        return torch.empty_like(q)

    @staticmethod
    def backward(ctx, gradient):
        q, k, v = ctx.saved_tensors
        return torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)


class Timer:
    def __init__(self, rounds: int) -> None:
        self.rounds = rounds

    def us(self, call: Call, count: int = 1000) -> float:
        call()
        return min(seconds_of(call, count, time.thread_time) for _ in range(self.rounds)) * 1e6

    def rows(self, table: str, what: str, columns: tuple[str, ...], calls: dict[str, list[Call]], count: int = 1000
             ) -> Iterator[Row]:
        for name, of_name in calls.items():
            times = [self.us(call, count) for call in of_name]
            yield {"table": table, what: name} | dict(itertools.zip_longest(columns, times))


def operator(timer: Timer) -> Iterator[Row]:
    """The operator itself, which takes all options, beside our scaled_dot_product_attention."""
    q = torch.randn(1, 1, 8, 8)
    x, mask = q.numpy(), torch.ones(1, 1, 8, 8, dtype=torch.bool)
    recorded = q.clone().requires_grad_()
    calls = {
        "scaled_dot_product_attention": lambda: drop_in.scaled_dot_product_attention(q, q, q),
        "attention_cpp.torch.attention": lambda: drop_in.attention(q, q, q),
        "the same, causal": lambda: drop_in.attention(q, q, q, causal=True),
        "the same with a mask": lambda: drop_in.attention(q, q, q, mask=mask),
        "the same with lse": lambda: drop_in.attention(q, q, q, return_lse=True),
        "the same, recorded": lambda: drop_in.attention(recorded, q, q),
        "attention_cpp.attention of NumPy's arrays": lambda: attention_cpp.attention(x, x, x),
        "the same with lse, causal": lambda: attention_cpp.attention(x, x, x, causal=True, return_lse=True),
        "attention_cpp.attention of torch's": lambda: attention_cpp.attention(q, q, q),
    }
    return timer.rows("the operator", "call", ("us",), {name: [call] for name, call in calls.items()})


def two_ways(timer: Timer) -> Iterator[Row]:
    """Two ways to say the same; the second is the shorter one."""
    q, k = torch.randn(1, 8, 512, 64), torch.randn(1, 8, 512, 64)
    mask = (torch.arange(512) < 300).expand(1, 1, 512, 512).contiguous()
    x, y, hidden = q.numpy(), k.numpy(), mask.numpy()
    one = torch.randn(1, 1, 2048, 64)
    row, many = torch.randn(1, 16, 1, 64), one.expand(-1, 16, -1, -1)
    pairs = {
        "padding as a mask, key_length": (lambda: drop_in.attention(q, k, k, mask=mask),
                                          lambda: drop_in.attention(q, k, k, key_length=[300])),
        "the same of NumPy's arrays": (lambda: attention_cpp.attention(x, y, y, mask=hidden),
                                       lambda: attention_cpp.attention(x, y, y, key_length=[300])),
        "16 copies of a key head, enable_gqa": (
            lambda: drop_in.scaled_dot_product_attention(row, many, many),
            lambda: drop_in.scaled_dot_product_attention(row, one, one, enable_gqa=True)),
    }
    leaves = [x.clone().requires_grad_() for x in (row, one, one)]
    repeated = (x.expand(-1, 16, -1, -1) for x in leaves[1:])
    outs = [drop_in.scaled_dot_product_attention(leaves[0], *repeated),
            drop_in.scaled_dot_product_attention(*leaves, enable_gqa=True)]
    pairs["their backward"] = [lambda out=out: torch.autograd.grad(out.sum(), leaves, retain_graph=True)
                               for out in outs]
    return timer.rows("two ways to say it", "call", ("the first, us", "the second, us"), pairs, 5)


def decode(timer: Timer) -> Iterator[Row]:
    for dtype in (torch.bfloat16, torch.float32):
        q, k = torch.randn(1, 12, 1, 64).to(dtype), torch.randn(1, 12, 64, 64).to(dtype)
        out = torch.empty_like(q)
        calls = (lambda: drop_in.scaled_dot_product_attention(q, k, k),
                 lambda: _core.forward(q, k, k, out, None, NONE_GIVEN),
                 lambda: F.scaled_dot_product_attention(q, k, k))
        yield from timer.rows("a token, 12 heads of 64, 64 keys", "dtype",
                              ("ours, us", "the extension alone, us", "torch, us"),
                              {str(dtype).removeprefix("torch."): calls})


def small(timer: Timer) -> Iterator[Row]:
    q, k, v, upstream = (torch.randn(1, 1, 8, 8) for _ in range(4))
    recorded = [x.clone().requires_grad_() for x in (q, k, v)]
    out = operators.new_out(q, v)
    mask = torch.ones(1, 1, 8, 8, dtype=torch.bool)

    pieces = {
        "is it simple": lambda: autograd.is_simple(q, k, v, None, False),
        "result": lambda: operators.new_out(q, v),
        "the extension, with the arithmetic": lambda: _core.forward(q, k, v, out, None, NONE_GIVEN),
        "else: whether torch must compute it": lambda: sdpa.why_not(q, k, v, None, 0.0, False, None),
        "else: its arguments and options": lambda: sdpa.problem(q, k, v, None, False, False),
        "a recorded function that does nothing": lambda: Nothing.apply(*recorded),
    }
    yield from timer.rows("pieces of a call", "piece", ("us",), {name: [piece] for name, piece in pieces.items()})
    functions = (drop_in.scaled_dot_product_attention, F.scaled_dot_product_attention)
    outs = [function(*recorded) for function in functions]
    wholes = {
        "a call": [lambda f=f: f(q, k, v) for f in functions],
        "a call with a mask": [lambda f=f: f(q, k, v, mask) for f in functions],
        "a call with dropout": [lambda f=f: f(q, k, v, None, 0.1) for f in functions],
        "a call, recorded": [lambda f=f: f(*recorded) for f in functions],
        "its backward": [lambda x=x: torch.autograd.grad(x, recorded, upstream, retain_graph=True) for x in outs],
    }
    nothing = Nothing.apply(*recorded)
    wholes["backward of the function that does nothing"] = [
        lambda: torch.autograd.grad(nothing, recorded, upstream, retain_graph=True)]
    yield from timer.rows("whole calls", "call", ("ours, us", "torch, us"), wholes)


def run(options: argparse.Namespace, about: dict[str, object]) -> Iterator[Row]:
    about["torch"] = torch.__version__
    torch.set_num_threads(1)
    torch.manual_seed(0)
    timer = Timer(options.repeats or 25)
    for rows in (small, operator, two_ways, decode):
        yield from rows(timer)
