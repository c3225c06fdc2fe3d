"""Attention over ranks, simulated from measured parts: what many ranks would take over a network.

The schedule is that of src/cluster/forward.cpp and backward.cpp, replayed rank by rank: keys of the next two steps on
their way while a step is computed, gradients of keys that go back after each step, one message at a time on a wire. A
pair of chunks takes what it takes here, on one thread. The network is a latency and a rate for each rank, both ways.

Table `check`: two ranks in network namespaces that are joined at a rate, and the simulation of the same call. For root;
see bench/network.sh. Table `simulated`: more ranks, each a machine with so many of these cores that share its work
evenly; `efficiency` beside one rank that computes all pairs.

Table `model`: an update of a LLaMA of 7 B parameters by one long text, with recomputation. What its layers take besides
attention comes from updates of one such layer here; tensor ranks wait for the sums of their results.
"""

import argparse
import dataclasses
import json
import pathlib
import re
import subprocess
import tempfile
from collections.abc import Iterator

import numpy as np

import attention_cpp

from .ranks import on_network
from .results import Row
from .timing import in_turn

CHUNK = 1024
TESTED = {"tokens": 8192, "heads": 4, "kv_heads": 4, "head_dim": 64}
LARGE = {"heads": 32, "kv_heads": 8, "head_dim": 128}  # a layer of LLaMA 3 8B
MODEL = {"embed-dim": 4096, "layers": 32, "heads": 32, "hidden-dim": 11008}  # LLaMA 7B
LAYOUTS = ((2**15, 1, 1), (2**15, 4, 1), (2**15, 4, 4), (2**17, 4, 1), (2**17, 16, 1), (2**17, 16, 4), (2**20, 16, 4),
           (2**20, 64, 1), (2**20, 64, 4), (2**20, 256, 1))  # tokens, ranks that share them, ranks that share layers
BITS = {"200mbit": 2e8, "1gbit": 1e9, "10gbit": 1e10}


def add_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rates", default="10gbit,1gbit,200mbit", help="of the network that is checked")
    parser.add_argument("--cores", type=int, default=32, help="of each rank that is simulated")
    parser.add_argument("--samples", type=int, default=5)


@dataclasses.dataclass
class Pair:
    """Seconds of a chunk of queries with one of keys: all pairs, and with the causal mask of the same tokens."""

    full: float
    diagonal: float


def measure(heads: int, kv_heads: int, head_dim: int, samples: int) -> dict[str, Pair]:
    """A chunk of each head, forward and backward, in float32 on one thread."""
    random = np.random.default_rng(0)
    q, dout = (random.standard_normal((1, heads, CHUNK, head_dim), dtype=np.float32) for _ in range(2))
    k, v = (random.standard_normal((1, kv_heads, CHUNK, head_dim), dtype=np.float32) for _ in range(2))
    calls = []
    for causal in (False, True):
        out, lse = attention_cpp.attention(q, k, v, causal=causal, return_lse=True)
        calls.append(lambda causal=causal: attention_cpp.attention(q, k, v, causal=causal, return_lse=True))
        calls.append(lambda causal=causal, out=out, lse=lse: attention_cpp.attention_backward(
            q, k, v, out, lse, dout, causal=causal))
    seconds = [taken.median for taken in in_turn(calls, samples, sample_seconds=0.1)]
    return {"forward": Pair(seconds[0], seconds[2]), "backward": Pair(seconds[1], seconds[3])}


class Wires:
    """Full-duplex wires of ranks, each with one message at a time in each direction."""

    def __init__(self, ranks: int, bytes_per_second: float, latency: float) -> None:
        self.rate, self.latency = bytes_per_second, latency
        self.out_free, self.in_free = np.zeros(ranks), np.zeros(ranks)

    def send(self, posted: np.ndarray, source: np.ndarray, nbytes: np.ndarray) -> np.ndarray:
        """When each rank has what its source sends; posted by both."""
        start = np.maximum(np.maximum(posted, posted[source]), np.maximum(self.in_free, self.out_free[source]))
        end = start + nbytes / self.rate
        self.in_free = end.copy()
        self.out_free[source] = end
        return end + self.latency * (nbytes > 0)


def zigzag(ranks: int, step: int, chunks: int, causal: bool, pair: Pair) -> tuple[np.ndarray, np.ndarray]:
    """Of each rank in a step: seconds, and the half shards that come. A half shard has so many chunks."""
    rank = np.arange(ranks)
    source = (rank - step) % ranks
    whole = chunks * chunks * pair.full
    if not causal:
        return np.full(ranks, 4 * whole), np.full(ranks, 2.0)
    own = chunks * (chunks - 1) / 2 * pair.full + chunks * pair.diagonal
    # The first half of the source's keys is before the second half of this rank's queries, always.
    seconds = np.where(source == rank, 2 * own + whole, 2 * whole)
    return seconds, np.where(source >= rank, 2.0, 1.0)


def simulate(ranks: int, tokens: int, shape: dict[str, int], causal: bool, pairs: dict[str, Pair], rate: float,
             latency: float) -> tuple[float, float, float]:
    """Seconds of a forward and a backward, the bytes that the busiest rank sends, and those of its buffers."""
    chunks = tokens // (2 * ranks * CHUNK)
    half = tokens / (2 * ranks) * shape["kv_heads"] * 2 * shape["head_dim"] * 4  # bytes of its keys and values
    rank, sent, slowest = np.arange(ranks), np.zeros(ranks), 0.0
    for way, pair in pairs.items():
        wires = Wires(ranks, rate / 8, latency)
        now = np.zeros(ranks)
        arrived: dict[int, np.ndarray] = {}
        returned = np.zeros(ranks)
        started = 1
        for step in range(ranks):
            while started < ranks and started <= step + 1:
                source = (rank - started) % ranks
                halves = zigzag(ranks, started, chunks, causal, pair)[1]
                arrived[started] = wires.send(now, source, halves * half)
                np.add.at(sent, source, halves * half)
                started += 1
            if step > 0:
                now = np.maximum(now, arrived.pop(step))
            seconds, halves = zigzag(ranks, step, chunks, causal, pair)
            now = now + seconds
            if way == "backward" and step > 0:
                back = (rank + step) % ranks  # had the keys of this rank
                gradients = wires.send(now, back, halves[back] * half)
                sent += halves * half
                now = np.maximum(now, returned)
                returned = gradients
        slowest += float(np.maximum(now, returned).max())
    return slowest, float(sent.max()), 3 * 2 * half


def checked(options: argparse.Namespace, rate: str, causal: bool) -> tuple[float, float]:
    """Seconds and MB of attn_cluster_bench on two ranks."""
    said = on_network(rate, 2, options.build / "bench/attn_cluster_bench", f"--tokens={TESTED['tokens']}",
                      f"--heads={TESTED['heads']}", f"--kv-heads={TESTED['kv_heads']}",
                      f"--head-dim={TESTED['head_dim']}", f"--repeats={options.samples}",
                      *(["--causal"] if causal else []), cores=2)
    milliseconds = re.search(r"2 ranks of +\d+ threads, ring +([0-9.]+) ms", said)
    return float(milliseconds[1]) / 1e3, float(re.search(r"([0-9.]+) MB sent", said)[1])


def flags(shape: dict[str, int]) -> list[str]:
    return [word for name, value in shape.items() for word in (f"--{name}", str(value))]


def seconds_of_a_token(options: argparse.Namespace) -> float:
    """Of an update of one layer, on one thread, without attention: what more tokens take."""
    seconds = []
    for context in (256, 768):
        with tempfile.TemporaryDirectory() as folder:
            of_layer = flags(MODEL | {"layers": 1, "context": context, "batch": 1, "steps": 4, "warmup": 0,
                                      "validation-batches": 1, "threads": 1, "save-every": 100})
            subprocess.run([options.build / "cli/attn", "train", options.data / "tinyshakespeare/input.txt", "--model",
                            "llama", *of_layer, "--tokens", "bytes", "--quiet", "--out", f"{folder}/model"], check=True,
                           capture_output=True)
            rows = [json.loads(line) for line in pathlib.Path(f"{folder}/model/log.jsonl").read_text().splitlines()]
        seconds.append(min(row["seconds"] for row in rows if "seconds" in row))
    return (seconds[1] - seconds[0]) / (768 - 256)


def memory_of_a_rank(options: argparse.Namespace, tokens: int, sequence: int, tensor: int) -> str:
    """As attn info says."""
    shape = flags(MODEL | {"vocab-size": 32000, "context": tokens, "batch": 1, "sequence-parallel": sequence,
                           "tensor-parallel": tensor})
    said = subprocess.run([options.build / "cli/attn", "info", "--model", "llama", *shape], check=True,
                          capture_output=True, text=True).stdout
    return re.search(r"training, float32 .*; ([0-9.]+ [A-Z]+) with --recompute", said)[1]


def model(options: argparse.Namespace, about: dict[str, object]) -> Iterator[Row]:
    token = seconds_of_a_token(options)
    about["layer of 7B"] = f"{1e3 * token:.3g} ms a token"
    shape = {"heads": MODEL["heads"], "kv_heads": MODEL["heads"], "head_dim": 128}
    pairs = measure(**shape, samples=options.samples)
    rate = BITS["10gbit"]
    for tokens, sequence, tensor in LAYOUTS:
        own = {way: Pair(pair.full / options.cores / tensor, pair.diagonal / options.cores / tensor)
               for way, pair in pairs.items()}
        of_rank = shape | {"heads": shape["heads"] // tensor, "kv_heads": shape["kv_heads"] // tensor}
        again = {"forward": own["forward"]}
        attention = sum(simulate(sequence, tokens, of_rank, True, some, rate, 50e-6)[0] for some in (own, again))
        products = 4 / 3 * token * tokens / sequence / tensor / options.cores
        sums = 6 * 2 * (tensor - 1) / tensor * tokens / sequence * MODEL["embed-dim"] * 4 / (rate / 8)
        seconds = MODEL["layers"] * (attention + products + sums)
        yield {"table": "model", "tokens": tokens, "sequence": sequence, "tensor": tensor,
               "memory": memory_of_a_rank(options, tokens, sequence, tensor), "hours": seconds / 3600,
               "attention %": 100 * MODEL["layers"] * attention / seconds,
               "sums %": 100 * MODEL["layers"] * sums / seconds, "tokens/s": tokens / seconds}


def run(options: argparse.Namespace, about: dict[str, object]) -> Iterator[Row]:
    attention_cpp.threads(1)
    about["latency"] = "50 us"
    shape = {name: TESTED[name] for name in LARGE}
    pairs = measure(**shape, samples=options.samples)
    for causal in (True, False):
        for rate in options.rates.split(","):
            if not options.filter.search(f"check {rate}"):
                continue
            seconds, megabytes = checked(options, rate, causal)
            predicted, sent, _ = simulate(2, TESTED["tokens"], shape, causal, pairs, BITS[rate], 50e-6)
            yield {"table": "check", "mask": "causal" if causal else "none", "network": rate, "measured s": seconds,
                   "simulated s": predicted, "off %": 100 * (predicted / seconds - 1), "measured MB": megabytes,
                   "simulated MB": sent / 1e6}
    about["cores of a rank"] = options.cores
    if options.filter.search("model"):
        yield from model(options, about)
    if not options.filter.search("simulated"):
        return
    pairs = {way: Pair(pair.full / options.cores, pair.diagonal / options.cores)
             for way, pair in measure(**LARGE, samples=options.samples).items()}
    for tokens in (2**17, 2**20, 2**27):
        alone = simulate(1, tokens, LARGE, True, pairs, 1, 0)[0]
        for ranks in (4, 16, 64, 256, 1024, 4096):
            if tokens < 2 * ranks * CHUNK:
                continue
            for rate in ("1gbit", "10gbit"):
                seconds, sent, buffers = simulate(ranks, tokens, LARGE, True, pairs, BITS[rate], 50e-6)
                yield {"table": "simulated", "tokens": tokens, "ranks": ranks, "network": rate, "seconds": seconds,
                       "efficiency %": 100 * alone / (ranks * seconds), "GB sent": sent / 1e9,
                       "buffers MB": buffers / 1e6}
