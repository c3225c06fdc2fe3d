"""What a call of attention_cpp.torch costs beside its arithmetic, part by part, on one head of 8 x 8.

Every number is the best of many rounds, in microseconds of this thread's time: what the code takes, not its neighbours.
"""

import argparse
import time
import timeit

import torch
import torch.nn.functional as F

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


def best(function, rounds: int) -> float:
    """Microseconds a call."""
    function()
    return min(timeit.repeat(function, number=1000, repeat=rounds, timer=time.thread_time)) * 1e3


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
        "else: who serves it": lambda: face._why_not(q, k, v, None, 0.0, False, None),
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


if __name__ == "__main__":
    main()
