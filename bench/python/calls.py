"""What a call costs beside its arithmetic, part by part, on one head of 8 x 8; and three calls that cost what they say:
a decoded token, padding as a mask, and one key head that is expanded to many.

Every number is the best of many rounds, in microseconds of this thread's time: what the code takes, not its neighbours.
"""

import argparse
import time
import timeit

import torch
import torch.nn.functional as F

import attention_cpp
import attention_cpp.torch as face
from attention_cpp import _core, _torch_ops


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


def best(function, rounds: int, number: int = 1000) -> float:
    """Microseconds a call."""
    function()
    return min(timeit.repeat(function, number=number, repeat=rounds, timer=time.thread_time)) / number * 1e6


def print_operator(rounds: int) -> None:
    """The operator itself, which takes all options, beside scaled_dot_product_attention of ours."""
    q = torch.randn(1, 1, 8, 8)
    x, mask = q.numpy(), torch.ones(1, 1, 8, 8, dtype=torch.bool)
    recorded = q.clone().requires_grad_()
    calls = {
        "scaled_dot_product_attention": lambda: face.scaled_dot_product_attention(q, q, q),
        "attention_cpp.torch.attention": lambda: face.attention(q, q, q),
        "the same, causal": lambda: face.attention(q, q, q, causal=True),
        "the same with a mask": lambda: face.attention(q, q, q, mask=mask),
        "the same with lse": lambda: face.attention(q, q, q, return_lse=True),
        "the same, recorded": lambda: face.attention(recorded, q, q),
        "attention_cpp.attention of NumPy's arrays": lambda: attention_cpp.attention(x, x, x),
        "the same with lse, causal": lambda: attention_cpp.attention(x, x, x, causal=True, return_lse=True),
        "attention_cpp.attention of torch's": lambda: attention_cpp.attention(q, q, q),
    }
    print("\n| the operator | us |\n|---|---:|")
    for name, call in calls.items():
        print(f"| {name} | {best(call, rounds):.1f} |")


def print_what_it_says(rounds: int) -> None:
    """Calls of which the shorter way to say the same is in the second column."""
    q, k = torch.randn(1, 8, 512, 64), torch.randn(1, 8, 512, 64)
    mask = (torch.arange(512) < 300).expand(1, 1, 512, 512).contiguous()
    x, y, hidden = q.numpy(), k.numpy(), mask.numpy()
    one = torch.randn(1, 1, 2048, 64)
    row, many = torch.randn(1, 16, 1, 64), one.expand(-1, 16, -1, -1)
    pairs = {
        "padding as a mask, key_length": (lambda: face.attention(q, k, k, mask=mask),
                                          lambda: face.attention(q, k, k, key_length=[300])),
        "the same of NumPy's arrays": (lambda: attention_cpp.attention(x, y, y, mask=hidden),
                                       lambda: attention_cpp.attention(x, y, y, key_length=[300])),
        "16 copies of a key head, enable_gqa": (
            lambda: face.scaled_dot_product_attention(row, many, many),
            lambda: face.scaled_dot_product_attention(row, one, one, enable_gqa=True)),
    }
    print("\n| two ways to say it | the first | the second |\n|---|---:|---:|")
    for name, calls in pairs.items():
        print(f"| {name} | {' | '.join(f'{best(call, rounds, 5):.0f}' for call in calls)} |")
    q, k, v = (row.requires_grad_(), one.requires_grad_(), one.clone().requires_grad_())
    outs = [face.scaled_dot_product_attention(q, k.expand(-1, 16, -1, -1), v.expand(-1, 16, -1, -1)),
            face.scaled_dot_product_attention(q, k, v, enable_gqa=True)]
    times = [best(lambda out=out: torch.autograd.grad(out.sum(), (q, k, v), retain_graph=True), rounds, 5)
             for out in outs]
    print(f"| their backward | {times[0]:.0f} | {times[1]:.0f} |")


def print_decode(rounds: int) -> None:
    print("\n| a token, 12 heads of 64, 64 keys | ours | the extension alone | torch |\n|---|---:|---:|---:|")
    for dtype in (torch.bfloat16, torch.float32):
        q, k = torch.randn(1, 12, 1, 64).to(dtype), torch.randn(1, 12, 64, 64).to(dtype)
        out = torch.empty_like(q)
        calls = (lambda: face.scaled_dot_product_attention(q, k, k), lambda: _core.forward(q, k, k, out, None, {}),
                 lambda: F.scaled_dot_product_attention(q, k, k))
        print(f"| {str(dtype).removeprefix('torch.')} | {' | '.join(f'{best(call, rounds):.1f}' for call in calls)} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=25)
    rounds = parser.parse_args().rounds
    torch.set_num_threads(1)
    torch.manual_seed(0)
    q, k, v, upstream = (torch.randn(1, 1, 8, 8) for _ in range(4))
    recorded = [x.clone().requires_grad_() for x in (q, k, v)]
    results = _torch_ops._new_results(q, v)
    mask = torch.ones(1, 1, 8, 8, dtype=torch.bool)

    print(f"torch {torch.__version__}, 1 x 1 x 8 x 8, best of {rounds}, us\n\n| part of a call | us |\n|---|---:|")
    parts = {
        "is it simple": lambda: _torch_ops.is_simple(q, k, v, None, False),
        "result": lambda: _torch_ops._new_out(q, v),
        "the extension, with the arithmetic": lambda: _core.forward(q, k, v, results[0], None, {}),
        "else: who computes it": lambda: face._why_not(q, k, v, None, 0.0, False, None),
        "else: its problem": lambda: face._problem(q, k, v, None, False, False),
        "a recorded function that does nothing": lambda: Nothing.apply(*recorded),
    }
    for name, part in parts.items():
        print(f"| {name} | {best(part, rounds):.1f} |")

    print("\n| whole | ours | torch |\n|---|---:|---:|")
    functions = (face.scaled_dot_product_attention, F.scaled_dot_product_attention)
    outs = [function(*recorded) for function in functions]
    wholes = {
        "a call": [lambda f=f: f(q, k, v) for f in functions],
        "a call with a mask": [lambda f=f: f(q, k, v, mask) for f in functions],
        "a call with dropout": [lambda f=f: f(q, k, v, None, 0.1) for f in functions],
        "a call, recorded": [lambda f=f: f(*recorded) for f in functions],
        "its backward": [lambda x=x: torch.autograd.grad(x, recorded, upstream, retain_graph=True) for x in outs],
    }
    for name, calls in wholes.items():
        ours, theirs = (best(call, rounds) for call in calls)
        print(f"| {name} | {ours:.1f} | {theirs:.1f} |")
    nothing = Nothing.apply(*recorded)
    empty = best(lambda: torch.autograd.grad(nothing, recorded, upstream, retain_graph=True), rounds)
    print(f"| backward of the function that does nothing | {empty:.1f} | |")
    print_operator(rounds)
    print_what_it_says(rounds)
    print_decode(rounds)


if __name__ == "__main__":
    main()
