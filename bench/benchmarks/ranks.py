"""Training on ranks of one core, in network namespaces that are joined at a given rate. For root; see bench/network.sh.

Table `batches`: each rank computes one batch an update, beside PyTorch's DistributedDataParallel over gloo. `scaling`
is the seconds of one rank divided by those of R ranks: 100 % is an exchange that costs nothing.

Table `sequences`: the ranks share the tokens of each sequence, beside one rank with a thread for each of their cores.
`memory` is the peak of a rank.

Table `attention`: a forward and a backward of one sequence that ranks share, beside the zigzag ring of
ring-flash-attention around PyTorch's attention, both over gloo in the same processes; results are compared first.

Table `layers`: the ranks share the heads and features of a GPT-2 of 86 M parameters, beside one rank with as many
threads: an update of one sequence, the tokens of a prompt, and new tokens one after the other.
"""

import argparse
import importlib.metadata
import json
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator

from .results import ROOT, Row

SHAPE = {"context": 256, "width": 256, "layers": 6, "heads": 4, "vocab": 256, "bias": False, "batch": 4}
SHARED = {"tokens": 8192, "heads": 8, "head_dim": 64}
LARGE = {"context": 512, "width": 768, "layers": 12, "heads": 12, "batch": 1}
WARMUP = 3  # updates that are not counted
NEW_TOKENS = 64


def add_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--text", type=pathlib.Path, help="default: tinyshakespeare")
    parser.add_argument("--rates", default="none,10gbit,1gbit,200mbit", help="of the network, as tc takes them")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--contexts", default="2048,8192", help="of the sequences that ranks share")
    parser.add_argument("--updates", type=int, default=12)
    parser.add_argument("--samples", type=int, default=5, help="of attention")


def on_network(rate: str, ranks: int, *command: object, cores: int = 1) -> str:
    """What the ranks write to standard output. Each has so many cores of its own."""
    pinned = ["bash", "-c", f'first=$((OMPI_COMM_WORLD_RANK * {cores} % $(nproc --all))); '
                            f'exec taskset -c $first-$((first + {cores} - 1)) "$@"', "rank"]
    done = subprocess.run([str(word) for word in [ROOT / "bench/network.sh", rate, ranks, *pinned, *command]],
                          capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{command}: {done.stderr}")
    return done.stdout


def training(options: argparse.Namespace, shape: dict[str, object], steps: int, folder: str) -> list[object]:
    """attn train of a model of this shape."""
    return [options.build / "cli/attn", "train", options.text, "--tokens", "bytes", "--embed-dim", shape["width"],
            "--layers", shape["layers"], "--heads", shape["heads"], "--context", shape["context"], "--batch",
            shape["batch"], "--bias", "false", "--dropout", "0", "--warmup", "0", "--steps", steps, "--eval-every",
            steps, "--validation-batches", 1, "--quiet", "--out", folder]


def train(options: argparse.Namespace, rate: str, ranks: int, threads: int, shape: dict[str, object],
          *arguments: object) -> tuple[list, float]:
    """Seconds of the updates of attn train, and the most memory of a rank."""
    with tempfile.TemporaryDirectory() as folder:
        said = on_network(rate, ranks, "env", f"PYTHONPATH={ROOT / 'bench'}", sys.executable, "-m", "benchmarks.peak",
                          *training(options, shape, options.updates + WARMUP, f"{folder}/model"), "--threads", threads,
                          *arguments, cores=threads)
        rows = [json.loads(line) for line in (pathlib.Path(folder) / "model/log.jsonl").read_text().splitlines()]
    return [row["seconds"] for row in rows if "seconds" in row][WARMUP:], max(map(float, said.split()))


def ours(options: argparse.Namespace, rate: str, ranks: int) -> list[float]:
    """Seconds of the updates of attn train."""
    return train(options, rate, ranks, 1, SHAPE, "--data-parallel", ranks)[0]


def generate(options: argparse.Namespace, rate: str, ranks: int, threads: int, folder: str) -> tuple[float, float]:
    """Tokens a second of a prompt, and of the tokens that follow it: the fastest of three runs."""
    prompt = pathlib.Path(folder) / "prompt.txt"
    prompt.write_text(options.text.read_text()[:LARGE["context"] - NEW_TOKENS])
    shared = ["--tensor-parallel", ranks] if ranks > 1 else []
    best = (0.0, 0.0)
    for _ in range(3):
        said = on_network(rate, ranks, "bash", "-c", '"$@" 2>&1', "generate", options.build / "cli/attn", "generate",
                          f"{folder}/model", "--file", prompt, "--max-new-tokens", NEW_TOKENS, "--temperature", 0,
                          "--stats", "--threads", threads, *shared, cores=threads)
        rates = re.findall(r"([0-9.]+) tokens/s", said)
        best = (max(best[0], float(rates[0])), max(best[1], float(rates[1])))
    return best


def torchs(options: argparse.Namespace, rate: str, ranks: int) -> list[float]:
    """Those of the same model in PyTorch."""
    job = SHAPE | {"updates": options.updates, "warmup": WARMUP}
    lines = on_network(rate, ranks, "env", f"PYTHONPATH={ROOT / 'bench'}", sys.executable, "-m",
                       "benchmarks.torch_ranks", json.dumps(job)).splitlines()
    return json.loads(lines[-1])


def run(options: argparse.Namespace, about: dict[str, object]) -> Iterator[Row]:
    about["torch"] = importlib.metadata.version("torch")
    options.text = options.text or options.data / "tinyshakespeare/input.txt"
    for name, measured in (("attention.cpp", ours), ("PyTorch DDP", torchs)):
        if not options.filter.search(f"batches {name}"):
            continue
        alone = statistics.median(measured(options, "none", 1))
        for ranks, rate in [(1, ""), *((options.ranks, rate) for rate in options.rates.split(","))]:
            seconds = measured(options, rate, ranks) if ranks > 1 else [alone]
            yield {"table": "batches", "program": name, "network": rate, "ranks": ranks,
                   **times(seconds, ranks * SHAPE["batch"] * SHAPE["context"]),
                   "scaling %": 100 * alone / statistics.median(seconds)}
    for context in map(int, options.contexts.split(",")):
        if not options.filter.search(f"sequences {context}"):
            continue
        shape = SHAPE | {"context": context, "batch": 1}
        for ranks, rate in [(1, "none"), *((options.ranks, rate) for rate in options.rates.split(","))]:
            how = ["--sequence-parallel", ranks] if ranks > 1 else []
            seconds, peak = train(options, rate, ranks, options.ranks // ranks, shape, *how)
            yield {"table": "sequences", "tokens": context, "network": rate if ranks > 1 else "", "ranks": ranks,
                   "threads": options.ranks // ranks, **times(seconds, context), "memory MB": peak / 1e6}
    if options.filter.search("ring"):
        yield from share_attention(options)
    if options.filter.search("layers"):
        yield from share_layers(options)


def share_attention(options: argparse.Namespace) -> Iterator[Row]:
    for causal in (True, False):
        for rate in options.rates.split(","):
            job = SHARED | {"causal": causal, "samples": options.samples}
            said = on_network(rate, options.ranks, "env", f"PYTHONPATH={ROOT / 'bench'}", sys.executable, "-m",
                              "benchmarks.torch_ring", json.dumps(job))
            result = json.loads(said.splitlines()[-1])
            if result["difference"] > 1e-4:
                raise SystemExit(f"the results differ by {result['difference']}")
            for program, seconds in result["seconds"].items():
                yield {"table": "attention", "mask": "causal" if causal else "none", "network": rate,
                       "program": program, **times(seconds, SHARED["tokens"]), "MB sent": result["sent"][program] / 1e6}


def share_layers(options: argparse.Namespace) -> Iterator[Row]:
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([str(word) for word in training(options, LARGE, 1, f"{folder}/model")], check=True,
                       capture_output=True)
        for ranks, rate in [(1, "none"), *((options.ranks, rate) for rate in options.rates.split(","))]:
            threads = options.ranks // ranks
            how = ["--tensor-parallel", ranks] if ranks > 1 else []
            seconds, peak = train(options, rate, ranks, threads, LARGE, *how)
            of_prompt, of_new = generate(options, rate, ranks, threads, folder)
            yield {"table": "layers", "network": rate if ranks > 1 else "", "ranks": ranks, "threads": threads,
                   **times(seconds, LARGE["context"]), "memory MB": peak / 1e6, "prompt tokens/s": of_prompt,
                   "new tokens/s": of_new}


def times(seconds: list[float], tokens: int) -> Row:
    middle = statistics.median(seconds)
    return {"seconds": middle, "spread %": 100 * (max(seconds) - min(seconds)) / middle, "tokens/s": tokens / middle}
