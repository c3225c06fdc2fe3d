"""What is left of attn's speed beside other work on the same cores.

A small GPT trains (12 x 64 tokens an update) and generates (128 tokens, one by one), on as many threads as there are
cores:
  alone      nothing else runs
  busy       beside one endless loop a core, so that half of every core is its fair share
  twin       beside a second attn that does the same without end: half is the fair share again
`share` is the speed over the fair share of the speed alone: 1.00 where a neighbour takes its half and no more.
The scenes take turns; medians, with the lowest and the highest of the rounds.
"""

import argparse
import json
import os
import pathlib
import subprocess
import sys
from collections.abc import Iterator

from .programs import with_range
from .results import Row
from .timing import Samples

MODEL = ["--model", "gpt", "--context", "64", "--vocab-size", "65", "--bias", "false", "-p", "0", "-n", "128",
         "--train", "64", "--batch", "12"]
FAIR = {"alone": 1.0, "busy": 0.5, "twin": 0.5}
REPEATS = 10  # of attn bench, in a round


def add_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--other", type=pathlib.Path, action="append", default=[], help="the attn of another build")


def speeds(attn: pathlib.Path) -> dict[str, float]:
    """Tokens a second of each row of attn bench."""
    done = subprocess.run([attn, "bench", *MODEL, "-r", str(REPEATS), "-o", "json"], capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{attn}: {done.stderr}")
    return {row["test"]: row["avg_ts"] for row in json.loads(done.stdout)}


def measure(scene: str, attn: pathlib.Path) -> dict[str, float]:
    commands = {"alone": [], "busy": [[sys.executable, "-c", "while True: pass"]] * len(os.sched_getaffinity(0)),
                "twin": [[attn, "bench", *MODEL, "-r", "1000", "-o", "json"]]}[scene]
    others = [subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) for command in commands]
    try:
        return speeds(attn)
    finally:
        for other in others:
            other.kill()
            other.wait()


def run(options: argparse.Namespace, about: dict[str, object]) -> Iterator[Row]:
    rounds = options.repeats or 5
    about["rounds"] = rounds
    taken: dict[tuple[pathlib.Path, str], dict[str, Samples]] = {}
    for _ in range(rounds):
        for scene in FAIR:
            for attn in [options.build / "cli/attn", *options.other]:
                for test, speed in measure(scene, attn).items():
                    taken.setdefault((attn, test), {}).setdefault(scene, Samples()).append(speed)
    for (attn, test), scenes in taken.items():
        yield ({"program": str(attn), "test": test}
               | {f"{scene}, tokens/s": with_range(scenes[scene], ",.0f") for scene in FAIR}
               | {f"share {scene}": scenes[scene].median / (FAIR[scene] * scenes["alone"].median)
                  for scene in ("busy", "twin")})
