#!/usr/bin/env python3
"""Trains one small model a kind of position, all else equal, and prints their losses on the last tenth of the text: cut
into texts of the training's context, and into texts twice as long where the positions are defined there.

usage: positions.py --attn=PROGRAM --text=FILE [--steps=N] [--seeds=N] [--threads=N]

Losses are counted, not time: it may run beside other work. A few minutes on two cores.
"""

import argparse
import json
import os
import pathlib
import platform
import re
import shutil
import statistics
import subprocess
import tempfile

CONTEXT = 64
MODEL = ["--context", CONTEXT, "--embed-dim", 128, "--layers", 4, "--heads", 4, "--bias", "false"]
RECIPE = ["--batch", 12, "--learning-rate", 1e-3, "--warmup", 50, "--quiet"]
KINDS = {
    "none": ["--positions", "none"],
    "learned": ["--positions", "learned"],
    "sinusoidal": ["--positions", "sinusoidal"],
    "sinusoidal, embedding_scale 1": ["--positions", "sinusoidal", "--embedding-scale", 1],
    "relative": ["--positions", "relative"],
    "alibi": ["--positions", "alibi"],
    "rope": ["--positions", "rope"],
}


def run(options, *arguments):
    command = [str(part) for part in (options.attn, "--threads", options.threads, *arguments)]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"OMP_WAIT_POLICY": "passive"})
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}: {done.stderr}")
    return done.stdout


def loss_at(options, model, text, context):
    """The loss on a file, cut into texts of `context` tokens."""
    config = json.loads((model / "config.json").read_text())
    if context > config["context"] and config["positions"] == "learned":
        return None
    copy = model.with_name("longer")
    shutil.copytree(model, copy)
    (copy / "config.json").write_text(json.dumps(config | {"context": context}))
    printed = run(options, "eval", copy, text)
    shutil.rmtree(copy)
    return float(re.search(r"loss ([0-9.]+)", printed)[1])


def losses(options, folder, kind, seed):
    model = folder / "model"
    run(options, "train", folder / "text.txt", "--out", model, *MODEL, *RECIPE, *KINDS[kind], "--seed", seed,
        "--steps", options.steps, "--eval-every", options.steps)
    found = [loss_at(options, model, folder / "last_tenth.txt", context) for context in (CONTEXT, 2 * CONTEXT)]
    shutil.rmtree(model)
    return found


def shown(values):
    if None in values:
        return "not defined"
    spread = f" ({min(values):.3f} to {max(values):.3f})" if len(values) > 1 else ""
    return f"{statistics.mean(values):.3f}{spread}"


def main():
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("--attn", required=True, type=pathlib.Path)
    parser.add_argument("--text", required=True, type=pathlib.Path)
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    processor = re.search(r"model name\s*: (.*)", pathlib.Path("/proc/cpuinfo").read_text())
    print(f"{processor[1] if processor else platform.machine()}; {options.steps} steps of 12 x {CONTEXT} characters\n")
    print(f"| positions | loss at {CONTEXT} | at {2 * CONTEXT} |\n|---|---|---|", flush=True)
    text = options.text.read_text()
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        (folder / "text.txt").write_text(text)
        (folder / "last_tenth.txt").write_text(text[len(text) - len(text) // 10:])
        for kind in KINDS:
            found = [losses(options, folder, kind, seed) for seed in range(1, options.seeds + 1)]
            print(f"| {kind} | {' | '.join(shown(column) for column in zip(*found))} |", flush=True)


if __name__ == "__main__":
    main()
