"""Data-parallel training on two ranks of one core, in network namespaces that are joined at a given rate, beside one
rank, and beside PyTorch's DistributedDataParallel over gloo. For root; see bench/network.sh.

Each rank computes one batch an update. `scaling` is R times the seconds of one rank with one batch an update, divided
by R ranks' seconds with R batches, as percent of R: 100 % is an exchange that costs nothing.
"""

import argparse
import importlib.metadata
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator

from .results import ROOT, Row

SHAPE = {"context": 256, "width": 256, "layers": 6, "heads": 4, "vocab": 256, "bias": False, "batch": 4}
WARMUP = 3  # updates that are not counted


def add_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--text", type=pathlib.Path, help="default: tinyshakespeare")
    parser.add_argument("--rates", default="none,10gbit,1gbit,200mbit", help="of the network, as tc takes them")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--updates", type=int, default=12)


def on_network(rate: str, ranks: int, *command: object) -> str:
    """What the ranks write to standard output. Each has a core of its own."""
    pinned = ["bash", "-c", 'exec taskset -c $((OMPI_COMM_WORLD_RANK % $(nproc --all))) "$@"', "rank"]
    done = subprocess.run([str(word) for word in [ROOT / "bench/network.sh", rate, ranks, *pinned, *command]],
                          capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{command}: {done.stderr}")
    return done.stdout


def ours(options: argparse.Namespace, rate: str, ranks: int) -> list[float]:
    """Seconds of the updates of attn train."""
    with tempfile.TemporaryDirectory() as folder:
        on_network(rate, ranks, options.build / "cli/attn", "train", options.text, "--tokens", "bytes", "--context",
                   SHAPE["context"], "--embed-dim", SHAPE["width"], "--layers", SHAPE["layers"], "--heads",
                   SHAPE["heads"], "--bias", "false", "--batch", SHAPE["batch"], "--dropout", "0", "--warmup", "0",
                   "--steps", options.updates + WARMUP, "--eval-every", options.updates + WARMUP,
                   "--validation-batches", 1, "--data-parallel", ranks, "--threads", 1, "--quiet", "--out",
                   f"{folder}/model")
        rows = [json.loads(line) for line in (pathlib.Path(folder) / "model/log.jsonl").read_text().splitlines()]
    return [row["seconds"] for row in rows if "seconds" in row][WARMUP:]


def torchs(options: argparse.Namespace, rate: str, ranks: int) -> list[float]:
    """Those of the same model in PyTorch."""
    job = SHAPE | {"updates": options.updates, "warmup": WARMUP}
    lines = on_network(rate, ranks, "env", f"PYTHONPATH={ROOT / 'bench'}", sys.executable, "-m",
                       "benchmarks.torch_ranks", json.dumps(job)).splitlines()
    return json.loads(lines[-1])


def run(options: argparse.Namespace, about: dict[str, object]) -> Iterator[Row]:
    about["torch"] = importlib.metadata.version("torch")
    options.text = options.text or options.data / "tinyshakespeare/input.txt"
    tokens = SHAPE["batch"] * SHAPE["context"]
    for name, measured in (("attention.cpp", ours), ("PyTorch DDP", torchs)):
        alone = statistics.median(measured(options, "none", 1))
        yield row(name, "", 1, [alone], alone, tokens)
        for rate in options.rates.split(","):
            yield row(name, rate, options.ranks, measured(options, rate, options.ranks), alone, tokens)


def row(name: str, rate: str, ranks: int, seconds: list[float], alone: float, tokens: int) -> Row:
    middle = statistics.median(seconds)
    return {"table": "training over ranks", "program": name, "network": rate, "ranks": ranks, "seconds": middle,
            "spread %": 100 * (max(seconds) - min(seconds)) / middle, "tokens/s": ranks * tokens / middle,
            "scaling %": 100 * alone / middle}
