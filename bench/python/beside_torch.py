"""attention_cpp.torch beside torch's scaled_dot_product_attention in one process: time, ratio, peak extra memory.

Each workload is first checked against float64, then timed by turns (ours, torch's, ours, ...): medians, the spread as
half the distance of the quartiles. Memory is what the call allocates beyond its inputs, by torch's own profiler for
torch, and results plus scratch (explain) for ours.
"""

import argparse
import dataclasses
import statistics
import time

import torch
import torch.nn.functional as F
from torch.profiler import ProfilerActivity, profile

import attention_cpp
import attention_cpp.torch as face


@dataclasses.dataclass
class Workload:
    name: str
    B: int = 1
    H: int = 8
    Hk: int = 8
    L: int = 2048
    queries: int = 0  # as many as keys, if 0
    D: int = 64
    Dv: int = 64
    dtype: torch.dtype = torch.float32
    backward: bool = False
    mask: str = ""  # "padding", "window", "bias" (with its gradient)
    causal: bool = False
    dropout: float = 0.0


WORKLOADS = [
    Workload(f"{name}{', and backward' if backward else ''}", dtype=dtype, backward=backward, causal=causal)
    for dtype, kind in ((torch.float32, "float32"), (torch.bfloat16, "bfloat16"))
    for causal, name in ((False, f"{kind} full"), (True, f"{kind} causal"))
    for backward in (False, True)
] + [
    Workload("padding mask", mask="padding"),
    Workload("padding mask, and backward", mask="padding", backward=True),
    Workload("dropout 0.1, and backward", dropout=0.1, backward=True),
    Workload("bias with its gradient", mask="bias", backward=True),
    Workload("GQA 32/8 + mask", H=32, Hk=8, L=1024, mask="padding"),
    Workload("window 256 as a mask", mask="window", L=4096),
    Workload("Dv 128, D 64, and backward", Dv=128, backward=True),
] + [
    Workload(f"64 x {L} tokens, 12 heads, {kind}{', and backward' if backward else ''}", B=64, H=12, Hk=12, D=32, Dv=32,
             L=L, dtype=dtype, backward=backward)
    for L in (16, 32, 128) for dtype, kind in ((torch.float32, "float32"), (torch.bfloat16, "bfloat16"))
    for backward in (False, True)
] + [
    Workload(f"one token, {L} keys, {kind}", H=12, Hk=12, queries=1, L=L, dtype=dtype)
    for L in (64, 256, 1024, 4096) for dtype, kind in ((torch.float32, "float32"), (torch.bfloat16, "bfloat16"))
]


class Problem:
    def __init__(self, w: Workload) -> None:
        torch.manual_seed(0)
        self.w = w

        def heads(count, width, length=w.L):  # [B, L, H, D] in memory, as the projections of a model write it
            return torch.randn(w.B, length, count, width).to(w.dtype).transpose(1, 2)

        queries = w.queries or w.L
        self.q, self.k, self.v = heads(w.H, w.D, queries), heads(w.Hk, w.D), heads(w.Hk, w.Dv)
        for x in (self.q, self.k, self.v):
            x.requires_grad_(w.backward)
        self.dout = heads(w.H, w.Dv, queries)
        self.mask = None
        if w.mask == "padding":
            self.mask = (torch.arange(w.L) < w.L * 3 // 4).view(1, 1, 1, w.L).expand(w.B, 1, w.L, w.L)
        elif w.mask == "window":
            distance = torch.arange(w.L)[:, None] - torch.arange(w.L)
            self.mask = (distance >= 0) & (distance < 256)
        elif w.mask == "bias":
            self.mask = torch.randn(1, w.H, w.L, w.L).to(w.dtype).requires_grad_(w.backward)

    def inputs(self):
        return [x for x in (self.q, self.k, self.v, self.mask) if x is not None and x.requires_grad]

    def run(self, function):
        w = self.w
        out = function(self.q, self.k, self.v, self.mask, dropout_p=w.dropout, is_causal=w.causal,
                       enable_gqa=w.H != w.Hk)
        if not w.backward:
            return [out]
        return [out, *torch.autograd.grad(out, self.inputs(), self.dout)]

    def exact(self):
        other = Problem(dataclasses.replace(self.w, dtype=torch.float64))
        for name in ("q", "k", "v", "mask"):
            source = getattr(self, name)
            if source is not None and source.is_floating_point():
                setattr(other, name, source.detach().double().requires_grad_(source.requires_grad))
        other.dout = self.dout.double()
        return other.run(F.scaled_dot_product_attention)


def check(problem: Problem) -> str:
    """Both errors against float64, as a part of the largest value; with dropout there is nothing to compare."""
    if problem.w.dropout:
        return "-"
    worst = []
    for function in (face.scaled_dot_product_attention, F.scaled_dot_product_attention):
        pairs = zip(problem.run(function), problem.exact(), strict=True)
        worst.append(max(((a.double() - b).abs().max() / b.abs().max()).item() for a, b in pairs))
    ours, theirs = worst
    if not ours <= max(2 * theirs, 2.0**-7 if problem.w.dtype == torch.bfloat16 else 1e-5):
        raise SystemExit(f"{problem.w.name}: our error {ours:.1e}, torch's {theirs:.1e}")
    return f"{ours:.0e} / {theirs:.0e}"


def by_turns(functions, rounds: int):
    """[(median, spread)] in seconds."""
    samples = [[] for _ in functions]
    for function in functions:
        function()
    begin = time.perf_counter()
    functions[0]()
    calls = max(1, int(1e-3 / (time.perf_counter() - begin)))  # a sample takes a millisecond or more
    for _ in range(rounds):
        for column, function in zip(samples, functions):
            begin = time.perf_counter()
            for _ in range(calls):
                function()
            column.append((time.perf_counter() - begin) / calls)
    results = []
    for column in samples:
        low, middle, high = statistics.quantiles(column, n=4)
        results.append((middle, (high - low) / 2))
    return results


def peak_bytes(function) -> int:
    """The most that torch holds at a time in a call, beyond what it held before."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as trace:
        function()
    held = most = 0
    for event in trace.profiler.kineto_results.events():
        if event.name() == "[memory]":
            held += event.nbytes()
            most = max(most, held)
    return most


def ours_bytes(problem: Problem) -> int:
    w = problem.w
    arguments = (problem.q, problem.k, problem.v, problem.mask, w.dropout, w.causal, None, w.H != w.Hk)
    scratch = max(face.explain(*arguments, backward=backward).scratch_bytes for backward in {False, w.backward})
    return peak_bytes(lambda: problem.run(face.scaled_dot_product_attention)) + scratch


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--only", default="", help="workloads whose name contains this")
    options = parser.parse_args()
    print(f"{torch.get_num_threads()} threads, {attention_cpp.isa()}, torch {torch.__version__}; "
          f"{options.rounds} rounds\n")
    print("| workload | ours, ms | torch, ms | ratio | ours, MB | torch, MB | error of ours / torch |")
    print("|---|---:|---:|---:|---:|---:|---:|")
    for w in WORKLOADS:
        if options.only not in w.name:
            continue
        problem = Problem(w)
        error = check(problem)
        ours, theirs = by_turns([lambda: problem.run(face.scaled_dot_product_attention),
                                 lambda: problem.run(F.scaled_dot_product_attention)], options.rounds)
        memory = ours_bytes(problem), peak_bytes(lambda: problem.run(F.scaled_dot_product_attention))
        print(f"| {w.name} | {ours[0] * 1e3:.3g} ± {ours[1] * 1e3:.2g} | {theirs[0] * 1e3:.3g} ± {theirs[1] * 1e3:.2g} "
              f"| **{theirs[0] / ours[0]:.2f}** | {memory[0] / 1e6:.1f} | {memory[1] / 1e6:.1f} | {error} |",
              flush=True)


if __name__ == "__main__":
    main()
