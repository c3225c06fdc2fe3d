#!/usr/bin/env python3
"""Training and generation beside PyTorch in one run: the same shapes and recipe, each in processes of its own, in turn.

usage: compare.py --attn=PROGRAM [--text=FILE] [--threads=N] [--rounds=N] [--quick] [--only=WORD] [--output=FILE.md]
"""

import argparse
import json
import os
import pathlib
import platform
import re
import statistics
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
GPT2 = {"vocab": 50257, "context": 1024, "width": 768, "layers": 12, "heads": 12, "bias": True}
RECIPE = {"context": 64, "width": 128, "layers": 4, "heads": 4, "bias": False, "batch": 12, "steps": 2000,
          "warmup": 100, "goal": 1.88, "eval_every": 50}


class Runner:
    def __init__(self, options, folder):
        self.options, self.folder = options, pathlib.Path(folder)
        self.environment = os.environ | {"OMP_NUM_THREADS": str(options.threads)}

    def torch(self, job):
        path = self.folder / "job.json"
        path.write_text(json.dumps(job | {"threads": self.options.threads}))
        done = subprocess.run([sys.executable, HERE / "torch_gpt.py", path], capture_output=True, text=True,
                              env=self.environment)
        if done.returncode:
            return {"error": done.stderr.strip().splitlines()[-1]}
        return json.loads(done.stdout.splitlines()[-1])

    def attn(self, *arguments):
        command = [self.options.attn, "--threads", self.options.threads, *arguments]
        done = subprocess.run([*map(str, command)], capture_output=True, text=True, env=self.environment)
        if done.returncode:
            raise SystemExit(f"{command}: {done.stderr}")
        return done.stdout

    def bench(self, *arguments):
        return json.loads(self.attn("bench", "-o", "json", "-r", 5, *arguments))


def seconds_to_goal(folder, goal):
    """From the log of attn train: seconds of updates until a validation reaches the goal, and of all updates."""
    total, reached, first = 0.0, None, True
    for line in (folder / "log.jsonl").read_text().splitlines():
        row = json.loads(line)
        if "seconds" in row:
            total += 0 if first else row["seconds"]  # the first step builds what later ones use
            first = False
        elif reached is None and row["validation_loss"] <= goal:
            reached = total
    return reached, total


def recipe(runner, text, rounds):
    ours, theirs, compiled, losses = [], [], [], []
    for round_ in range(rounds):
        out = runner.folder / f"recipe{round_}"
        runner.attn("train", text, "--out", out, "--bias", "false", "--quiet", "--steps", RECIPE["steps"],
                    "--eval-every", RECIPE["eval_every"], "--save-every", RECIPE["steps"], "--seed", 1337 + round_)
        ours.append(seconds_to_goal(out, RECIPE["goal"]))
        rows = [json.loads(line) for line in (out / "log.jsonl").read_text().splitlines()]
        losses.append([row["validation_loss"] for row in rows if "validation_loss" in row][-1])
        theirs.append(runner.torch({"kind": "recipe", "text": text, "compile": False} | RECIPE))
        compiled.append(runner.torch({"kind": "recipe", "text": text, "compile": True} | RECIPE))
    yield "| | validation loss at the end | seconds to 1.88 | seconds for 2000 updates |\n| --- | ---: | ---: | ---: |"
    middle = statistics.median
    none = "not reached"

    def show(values):
        known = [value for value in values if value is not None]
        return f"{middle(known):.1f}" if known else none

    yield f"| attention.cpp | {middle(losses):.3f} | {show([o[0] for o in ours])} | {show([o[1] for o in ours])} |"
    for name, runs in (("PyTorch", theirs), ("PyTorch, torch.compile", compiled)):
        if errors := [run["error"] for run in runs if "error" in run]:
            yield f"| {name} | {errors[0]} | | |"
            continue
        yield (f"| {name} | {middle([run['curve'][-1][2] for run in runs]):.3f} | "
               f"{show([run['reached'] for run in runs])} | {show([run['seconds'] for run in runs])} |")


def row_of(rows, test):
    return next(row for row in rows if row["test"] == test)


def steps(runner, rounds):
    yield "| update of a 124M GPT-2 | ours, ms | of peak | PyTorch, ms | compiled, ms | ratio to the quicker |"
    yield "| --- | ---: | ---: | ---: | ---: | ---: |"
    for batch, length in ((4, 64), (1, 1024)):
        for precision in ("float32", "bfloat16"):
            ours, shares, again = [], [], []
            theirs = {False: [], True: []}
            for _ in range(rounds):
                rows = runner.bench("-p", 0, "-n", 0, "--train", length, "--batch", batch, "--precision", precision,
                                    *shape_flags(GPT2 | {"context": 1024}))
                row = row_of(rows, f"train {batch} x {length}")
                ours += [1000 * batch * length / rate for rate in row["samples_ts"]]
                shares.append(row["peak_share"])
                again += [1000 * batch * length / rate
                          for rate in row_of(rows, f"train {batch} x {length}, recomputed")["samples_ts"]]
                for compile_ in (False,) if runner.options.no_compile else theirs:
                    run = runner.torch({"kind": "step", "batch": batch, "length": length, "repeats": 5,
                                        "compile": compile_, "bfloat16": precision == "bfloat16"} | GPT2)
                    theirs[compile_] += [1000 * s for s in run.get("seconds", [])]
            yield comparison(f"{batch} x {length}, {precision}", ours, shares, theirs)
            yield f"| {batch} x {length}, {precision}, recomputed | {statistics.median(again):.0f} | | | | |"


def comparison(name, ours, shares, theirs):
    mine = statistics.median(ours)
    medians = {key: statistics.median(values) for key, values in theirs.items() if values}
    cells = [f"{medians[key]:.0f}" if key in medians else "-" for key in (False, True)]
    ratio = f"{min(medians.values()) / mine:.2f}" if medians else ""
    return f"| {name} | {mine:.0f} | {100 * statistics.median(shares):.0f} % | {cells[0]} | {cells[1]} | {ratio} |"


def generation(runner, rounds):
    yield "| 124M GPT-2, one token after another | ours, tokens/s | PyTorch, tokens/s | ratio |"
    yield "| --- | ---: | ---: | ---: |"
    for precision in ("float32", "bfloat16"):
        ours, theirs = [], []
        for _ in range(rounds):
            ours += row_of(runner.bench("-p", 0, "-n", 128, "--precision", precision, *shape_flags(GPT2)),
                           "tg128")["samples_ts"]
            run = runner.torch({"kind": "generate", "tokens": 128, "repeats": 5, "compile": False,
                                "bfloat16": precision == "bfloat16"} | GPT2)
            theirs += [128 / s for s in run["seconds"]]
        mine, other = statistics.median(ours), statistics.median(theirs)
        yield f"| 128 tokens, {precision} | {mine:.1f} | {other:.1f} | {mine / other:.2f} |"


def cache(runner, text):
    """A model of the recipe writes the same tokens with and without its cache."""
    out = runner.folder / "recipe0"
    if not out.exists():
        runner.attn("train", text, "--out", out, "--bias", "false", "--quiet", "--steps", 100, "--eval-every", 100)
    outputs, rates = [], []
    for flag in ((), ("--no-cache",)):
        command = [runner.options.attn, "--threads", str(runner.options.threads), "generate", str(out), "--prompt", "T",
                   "--max-new-tokens", "2000", "--seed", "1", "--stats", *flag]
        done = subprocess.run(command, capture_output=True, text=True, check=True, env=runner.environment)
        outputs.append(done.stdout)
        rates.append(float(re.search(r"then \d+ tokens, ([\d.]+)", done.stderr)[1]))
    assert outputs[0] == outputs[1], "the cache changed the text"
    yield "| 2000 characters, the recipe's model, the same text | tokens/s |\n| --- | ---: |"
    yield f"| with cache | {rates[0]:.0f} |\n| whole context again for every token | {rates[1]:.0f} |"


def shape_flags(shape):
    return ["--context", shape["context"], "--embed-dim", shape["width"], "--layers", shape["layers"], "--heads",
            shape["heads"], "--vocab-size", shape["vocab"], "--bias", str(shape["bias"]).lower()]


def scaling(runner):
    yield runner.attn("bench", "--scaling", "-r", 3, "--embed-dim", 256, "--layers", 4, "--heads", 4, "--vocab-size",
                      256)


def header():
    model = next((line.split(":")[1].strip() for line in open("/proc/cpuinfo") if line.startswith("model name")), "")
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=HERE, capture_output=True, text=True).stdout
    return f"{model}, {platform.system()}, commit {commit.strip()}"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--attn", required=True)
    parser.add_argument("--text", default="../shared/data/tinyshakespeare/input.txt")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--rounds", type=int, default=3, help="how often each side takes its turn")
    parser.add_argument("--quick", action="store_true", help="one round")
    parser.add_argument("--no-compile", action="store_true", help="steps: without torch.compile, which takes minutes")
    parser.add_argument("--only", default="", help="parts whose name has this word")
    parser.add_argument("--output", help="also write the tables to this file")
    options = parser.parse_args()
    rounds = 1 if options.quick else options.rounds
    lines = [f"{header()}, {options.threads} threads", ""]
    print(lines[0], flush=True)
    with tempfile.TemporaryDirectory() as folder:
        runner = Runner(options, folder)
        parts = {"recipe": lambda: recipe(runner, options.text, rounds), "cache": lambda: cache(runner, options.text),
                 "steps": lambda: steps(runner, rounds), "generation": lambda: generation(runner, rounds),
                 "scaling": lambda: scaling(runner)}
        for name, part in parts.items():
            if options.only not in name:
                continue
            lines.append(f"### {name}\n")
            print(f"\n### {name}\n")
            for line in part():
                print(line, flush=True)
                lines.append(line)
            lines.append("")
    if options.output:
        pathlib.Path(options.output).write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
