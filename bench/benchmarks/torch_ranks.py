"""The peer of ranks.py: a rank of a data-parallel training in PyTorch. mpirun starts it; rank 0 prints the seconds.

usage: python -m benchmarks.torch_ranks JOB      JOB: JSON with a shape, updates and warmup
"""

import json
import os
import sys
import time

import torch
import torch.distributed
import torch.nn.functional as F

from .torch_gpt import make, optimiser_of


def main() -> None:
    job = json.loads(sys.argv[1])
    rank, ranks = int(os.environ["OMPI_COMM_WORLD_RANK"]), int(os.environ["OMPI_COMM_WORLD_SIZE"])
    os.environ |= {"MASTER_ADDR": "10.7.0.1", "MASTER_PORT": "29400", "GLOO_SOCKET_IFNAME": "wire"}
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", rank=rank, world_size=ranks)
    model = make(job)
    trained = torch.nn.parallel.DistributedDataParallel(model) if ranks > 1 else model
    optimiser = optimiser_of(model)
    torch.manual_seed(rank)
    seconds = []
    for _ in range(job["updates"] + job["warmup"]):
        text = torch.randint(job["vocab"], (job["batch"], job["context"] + 1))
        torch.distributed.barrier()
        start = time.perf_counter()
        optimiser.zero_grad(set_to_none=True)
        logits = trained(text[:, :-1])
        F.cross_entropy(logits.flatten(0, 1), text[:, 1:].flatten()).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1)
        optimiser.step()
        seconds.append(time.perf_counter() - start)
    if rank == 0:
        print(json.dumps(seconds[job["warmup"]:]))
    torch.distributed.destroy_process_group()


main()
