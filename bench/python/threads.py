"""What alternating with torch costs: our attention and a torch product by turns, against each alone.

Both use all cores. torch's OpenMP workers spin for a while after each product; a pool of our own then shares the cores
with them. With --threads both the borrowed team (the default of attention_cpp.torch) and the own pool are measured.
"""

import statistics
import time

import torch

import attention_cpp
import attention_cpp.torch

ROUNDS = 30


def seconds(work, repeats):
    begin = time.perf_counter()
    for _ in range(repeats):
        work()
    return (time.perf_counter() - begin) / repeats


def measure(q, a, repeats):
    """Medians of (ours alone, torch alone, both by turns), in seconds a call."""

    def ours():
        attention_cpp.torch.scaled_dot_product_attention(q, q, q, is_causal=True)

    def theirs():
        torch.mm(a, a)

    def turns():
        ours()
        theirs()

    samples = []
    for _ in range(ROUNDS):
        for work in (ours, theirs, turns):
            work()
        samples.append([seconds(work, repeats) for work in (ours, theirs, turns)])
    return [statistics.median(column) for column in zip(*samples)]


def main():
    torch.manual_seed(0)
    print(f"{torch.get_num_threads()} threads, {attention_cpp.isa()}, torch {torch.__version__}\n")
    print("| threads | attention | ours alone, us | torch alone, us | by turns, us | more |")
    print("|---|---|---:|---:|---:|---:|")
    for shared in (True, False):
        if attention_cpp.torch.share_threads(shared) != shared:
            print("torch's OpenMP runtime was not found")
            continue
        for length, width in ((128, 256), (512, 512), (2048, 1024)):
            q, a = torch.randn(1, 8, length, 64), torch.randn(width, width)
            ours, theirs, turns = measure(q, a, max(1, 2048 // length))
            more = 100 * (turns / (ours + theirs) - 1)
            print(f"| {'of torch' if shared else 'own pool'} | 8 x {length} x 64 | {ours * 1e6:.0f} "
                  f"| {theirs * 1e6:.0f} | {turns * 1e6:.0f} | {more:+.1f} % |", flush=True)
    attention_cpp.torch.share_threads()


if __name__ == "__main__":
    main()
