"""The peer of ranks.py in attention: the zigzag ring of ring-flash-attention around PyTorch's attention for CPUs.

Each rank has the parts r and 2 R - 1 - r of 2 R. Keys and values go from rank to rank, the next while one is computed;
the states of a row are merged by their logarithms; in the backward the gradients of keys travel with them. mpirun
starts it, beside attention_cpp.torch.distributed in the same processes; rank 0 prints seconds and bytes.

usage: python -m benchmarks.torch_ring JOB      JOB: JSON with tokens, heads, head_dim, causal and samples
"""

import json
import os
import sys
import time

import torch
import torch.distributed as dist

from attention_cpp.torch.distributed import Placement, attention

FORWARD = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
BACKWARD = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward


SENT = {"bytes": 0}


def count_bytes():
    """Of all messages from here on."""
    isend = dist.isend

    def counted(x, *arguments, **more):
        SENT["bytes"] += x.nbytes
        return isend(x, *arguments, **more)

    dist.isend = counted


class Ring:
    """Tensors that go to the next rank while those of the one before come."""

    def __init__(self):
        self.rank, self.size = dist.get_rank(), dist.get_world_size()

    def start(self, tensors):
        received = [torch.empty_like(x) for x in tensors]
        works = [dist.isend(x, (self.rank + 1) % self.size) for x in tensors]
        works += [dist.irecv(x, (self.rank - 1) % self.size) for x in received]
        return received, works, tensors

    @staticmethod
    def finish(started):
        received, works, _ = started
        for work in works:
            work.wait()
        return received


def part_of(n, step, rank, causal):
    """Of n queries and the n keys that come in a step, those that are computed, and whether the mask divides them."""
    if step == 0 or not causal:
        return slice(n), slice(n), step == 0 and causal
    if step <= rank:  # keys of an earlier rank: the first half of them is before all queries
        return slice(n), slice(n // 2), False
    return slice(n // 2, n), slice(n), False


def forward(ring, q, k, v, causal):
    out, lse = torch.zeros_like(q), torch.full(q.shape[:3], -torch.inf)
    for step in range(ring.size):
        coming = ring.start((k, v)) if step + 1 < ring.size else None
        queries, keys, masked = part_of(q.shape[2], step, ring.rank, causal)
        new, new_lse = FORWARD(q[:, :, queries], k[:, :, keys], v[:, :, keys], 0.0, masked)
        old, old_lse = out[:, :, queries], lse[:, :, queries]
        both = torch.logaddexp(old_lse, new_lse)
        out[:, :, queries] = (old_lse - both).exp()[..., None] * old + (new_lse - both).exp()[..., None] * new
        lse[:, :, queries] = both
        if coming:
            k, v = ring.finish(coming)
    return out, lse


def backward(ring, q, k, v, out, lse, dout, causal):
    dq, dk, dv = torch.zeros_like(q), torch.zeros_like(k), torch.zeros_like(v)
    for step in range(ring.size):
        coming = ring.start((k, v)) if step + 1 < ring.size else None
        queries, keys, masked = part_of(q.shape[2], step, ring.rank, causal)
        dq_part, dk_part, dv_part = BACKWARD(dout[:, :, queries], q[:, :, queries], k[:, :, keys], v[:, :, keys],
                                             out[:, :, queries], lse[:, :, queries], 0.0, masked)
        dq[:, :, queries] += dq_part
        dk[:, :, keys] += dk_part
        dv[:, :, keys] += dv_part
        if ring.size > 1:
            dk, dv = ring.finish(ring.start((dk, dv)))
        if coming:
            k, v = ring.finish(coming)
    return dq, dk, dv


def main():
    job = json.loads(sys.argv[1])
    rank, ranks = int(os.environ["OMPI_COMM_WORLD_RANK"]), int(os.environ["OMPI_COMM_WORLD_SIZE"])
    os.environ |= {"MASTER_ADDR": "10.7.0.1", "MASTER_PORT": "29400", "GLOO_SOCKET_IFNAME": "wire"}
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=ranks)
    placement = Placement("zigzag", job["tokens"])
    torch.manual_seed(rank)
    q, k, v, dout = (torch.randn(1, job["heads"], job["tokens"] // ranks, job["head_dim"]) for _ in range(4))
    causal = job["causal"]
    ring = Ring()

    def peer():
        out, lse = forward(ring, q, k, v, causal)
        return out, *backward(ring, q, k, v, out, lse, dout, causal)

    def ours():
        inputs = [x.clone().requires_grad_() for x in (q, k, v)]
        out = attention(*inputs, placement, causal=causal)
        out.backward(dout)
        return out.detach(), *(x.grad for x in inputs)

    difference = max(float((a - b).abs().max() / b.abs().max()) for a, b in zip(ours(), peer()))
    count_bytes()
    programs = {"attention.cpp": ours, "PyTorch, ring": peer}
    taken, sent = {name: [] for name in programs}, {}
    for _ in range(job["samples"]):
        for name, call in programs.items():
            SENT["bytes"] = 0
            dist.barrier()
            start = time.perf_counter()
            call()
            dist.barrier()
            taken[name].append(time.perf_counter() - start)
            sent[name] = SENT["bytes"]
    if rank == 0:
        print(json.dumps({"seconds": taken, "sent": sent, "difference": difference}))
    dist.destroy_process_group()


main()
