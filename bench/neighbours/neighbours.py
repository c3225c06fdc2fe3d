#!/usr/bin/env python3
"""What is left of attn's speed beside other work on the same cores.

A small GPT trains (12 x 64 tokens an update) and writes (128 tokens, one by one), on as many threads as there are
cores:
  alone      nothing else runs
  busy       beside one endless loop a core, so that half of every core is ours by right
  twin       beside a second attn that does the same for ever: half is ours again
`share` is the speed over the fair part of the speed alone: 1.00 where a neighbour takes what is due to it and no more.
Scenes take turns, rounds times; medians, and the range of the rounds after them.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys

MODEL = ["--model", "gpt", "--context", "64", "--vocab-size", "65", "--bias", "false", "-p", "0", "-n", "128",
         "--train", "64", "--batch", "12"]
FAIR = {"alone": 1.0, "busy": 0.5, "twin": 0.5}


def speeds(attn, repeats):
    """Tokens a second of each row of attn bench."""
    done = subprocess.run([attn, "bench", *MODEL, "-r", str(repeats), "-o", "json"], capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{attn}: {done.stderr}")
    return {row["test"]: row["avg_ts"] for row in json.loads(done.stdout)}


def neighbours_of(scene, attn):
    if scene == "busy":
        return [[sys.executable, "-c", "while True: pass"]] * len(os.sched_getaffinity(0))
    if scene == "twin":
        return [[attn, "bench", *MODEL, "-r", "1000", "-o", "json"]]
    return []


def measure(scene, attn, repeats):
    others = [subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
              for command in neighbours_of(scene, attn)]
    try:
        return speeds(attn, repeats)
    finally:
        for other in others:
            other.kill()
            other.wait()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--attn", required=True, help="the program")
    parser.add_argument("--other", action="append", default=[], help="another build of it, measured in turn")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--repeats", type=int, default=10, help="of attn bench, in a round")
    options = parser.parse_args()
    programs = [options.attn, *options.other]
    taken = {}
    for number in range(options.rounds):
        for scene in FAIR:
            for attn in programs:
                print(f"\rround {number + 1}/{options.rounds}: {scene:6} {attn}\x1b[K", end="", file=sys.stderr)
                for row, speed in measure(scene, attn, options.repeats).items():
                    taken.setdefault((attn, row), {}).setdefault(scene, []).append(speed)
    print("\r\x1b[K", end="", file=sys.stderr)
    print("| program | test | " + " | ".join(f"{scene}, tokens/s" for scene in FAIR) + " | share busy | share twin |")
    print("| --- | --- |" + " ---: |" * (len(FAIR) + 2))
    for (attn, row), scenes in taken.items():
        middle = {scene: statistics.median(values) for scene, values in scenes.items()}
        cells = [f"{middle[scene]:,.0f} ({min(scenes[scene]):,.0f} to {max(scenes[scene]):,.0f})" for scene in FAIR]
        shares = [f"{middle[scene] / (FAIR[scene] * middle['alone']):.2f}" for scene in ("busy", "twin")]
        print(f"| {attn} | {row} | " + " | ".join(cells + shares) + " |")


if __name__ == "__main__":
    main()
