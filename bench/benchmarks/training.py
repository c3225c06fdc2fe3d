"""Training and generation beside PyTorch: the same shapes and recipe, each in processes of its own, in turn.

The tables: recipe (characters of a text until the validation loss is 1.88), cache (the same text with and without the
key/value cache), steps (updates of a GPT-2 of 124 M), generation (tokens one by one), scaling (an update at longer
contexts).
"""

import argparse
import json
import pathlib
import re
import tempfile
from collections.abc import Iterator

from .programs import attn, torch_job
from .results import Row
from .timing import Samples

GPT2 = {"vocab": 50257, "context": 1024, "width": 768, "layers": 12, "heads": 12, "bias": True}
RECIPE = {"context": 64, "width": 128, "layers": 4, "heads": 4, "bias": False, "batch": 12, "steps": 2000,
          "warmup": 100, "goal": 1.88, "eval_every": 50}
REPEATS = 5  # of a process


def add_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--text", type=pathlib.Path, help="default: tinyshakespeare")
    parser.add_argument("--steps", type=int, default=RECIPE["steps"], help="updates of the recipe")
    parser.add_argument("--no-compile", action="store_true", help="without torch.compile, which takes minutes")


def bench(options: argparse.Namespace, *arguments: object) -> dict[str, dict]:
    """The rows of attn bench, by their names."""
    return {row["test"]: row
            for row in json.loads(attn(options, "bench", "-o", "json", "-r", REPEATS, *arguments).stdout)}


def shape_flags(shape: dict) -> list[object]:
    return ["--context", shape["context"], "--embed-dim", shape["width"], "--layers", shape["layers"], "--heads",
            shape["heads"], "--vocab-size", shape["vocab"], "--bias", str(shape["bias"]).lower()]


def train_recipe(options: argparse.Namespace, out: pathlib.Path, seed: int) -> list[dict]:
    """The rows of the log of attn train."""
    attn(options, "train", options.text, "--out", out, "--bias", "false", "--quiet", "--steps", options.steps,
         "--eval-every", RECIPE["eval_every"], "--save-every", options.steps, "--seed", seed)
    return [json.loads(line) for line in (out / "log.jsonl").read_text().splitlines()]


def seconds_to_goal(log: list[dict]) -> tuple[float | None, float]:
    """Seconds of updates until a validation reaches the goal, and of all updates but the first, which builds what
    later ones use."""
    total, reached = 0.0, None
    updates = [row for row in log if "seconds" in row]
    for row in log:
        if "seconds" in row:
            total += row["seconds"] if row is not updates[0] else 0
        elif reached is None and row["validation_loss"] <= RECIPE["goal"]:
            reached = total
    return reached, total


def recipe(options: argparse.Namespace, rounds: int, folder: pathlib.Path) -> Iterator[Row]:
    sides: dict[str, list[tuple]] = {"attention.cpp": [], "PyTorch": []}
    if not options.no_compile:
        sides["PyTorch, torch.compile"] = []
    errors = {}
    for number in range(rounds):
        log = train_recipe(options, folder / f"recipe{number}", 1337 + number)
        last = [row["validation_loss"] for row in log if "validation_loss" in row][-1]
        sides["attention.cpp"].append((last, *seconds_to_goal(log)))
        for side in list(sides)[1:]:
            job = {"kind": "recipe", "text": options.text, "compile": "compile" in side}
            run = torch_job(options, job | RECIPE | {"steps": options.steps})
            if "error" in run:
                errors[side] = run["error"]
            else:
                sides[side].append((run["curve"][-1][2], run["reached"], run["seconds"]))
    for side, runs in sides.items():
        losses, reached, seconds = zip(*runs) if runs else ((), (), ())
        known = [value for value in reached if value is not None]
        yield {"table": "recipe", "program": side, "validation loss": Samples(losses).median if runs else None,
               f"seconds to {RECIPE['goal']}": Samples(known).median if known else "not reached",
               f"seconds for {options.steps} updates": Samples(seconds).median if runs else None,
               "note": errors.get(side, "")}


def cache(options: argparse.Namespace, rounds: int, folder: pathlib.Path) -> Iterator[Row]:
    """A model of the recipe writes the same tokens with and without its cache."""
    out = folder / "recipe0"
    if not out.exists():
        options.steps = min(options.steps, 100)
        train_recipe(options, out, 1337)
    outputs = set()
    for what, flag in (("with cache", ()), ("whole context again for every token", ("--no-cache",))):
        done = attn(options, "generate", out, "--prompt", "T", "--max-new-tokens", 2000, "--seed", 1, "--stats", *flag)
        outputs.add(done.stdout)
        yield {"table": "cache", "2000 characters": what, "text": "the same" if len(outputs) == 1 else "WRONG: another",
               "tokens/s": float(re.search(r"then \d+ tokens, ([\d.,]+)", done.stderr)[1].replace(",", ""))}


def steps(options: argparse.Namespace, rounds: int, folder: pathlib.Path) -> Iterator[Row]:
    for batch, length in ((4, 64), (1, 1024)):
        for precision in ("float32", "bfloat16"):
            ours, again, share, theirs = Samples(), Samples(), Samples(), {False: Samples(), True: Samples()}
            for _ in range(rounds):
                rows = bench(options, "-p", 0, "-n", 0, "--train", length, "--batch", batch, "--precision", precision,
                             *shape_flags(GPT2))
                row, recomputed = (rows[f"train {batch} x {length}{end}"] for end in ("", ", recomputed"))
                ours += [1000 * batch * length / rate for rate in row["samples_ts"]]
                again += [1000 * batch * length / rate for rate in recomputed["samples_ts"]]
                share.append(row["peak_share"])
                for compiled in (False,) if options.no_compile else theirs:
                    job = {"kind": "step", "batch": batch, "length": length, "repeats": REPEATS, "compile": compiled,
                           "bfloat16": precision == "bfloat16"}
                    theirs[compiled] += [1000 * s for s in torch_job(options, job | GPT2).get("seconds", [])]
            medians = {compiled: samples.median for compiled, samples in theirs.items() if samples}
            yield {"table": "steps", "update of a 124M GPT-2": f"{batch} x {length}, {precision}",
                   "ours ms": ours.median, "% of peak": 100 * share.median, "recomputed ms": again.median,
                   "PyTorch ms": medians.get(False), "compiled ms": medians.get(True),
                   "ratio": min(medians.values()) / ours.median if medians else None}


def generation(options: argparse.Namespace, rounds: int, folder: pathlib.Path) -> Iterator[Row]:
    for precision in ("float32", "bfloat16"):
        ours, theirs = Samples(), Samples()
        for _ in range(rounds):
            rows = bench(options, "-p", 0, "-n", 128, "--precision", precision, *shape_flags(GPT2))
            ours += rows["tg128"]["samples_ts"]
            job = {"kind": "generate", "tokens": 128, "repeats": REPEATS, "compile": False,
                   "bfloat16": precision == "bfloat16"}
            theirs += [128 / s for s in torch_job(options, job | GPT2)["seconds"]]
        yield {"table": "generation", "124M GPT-2 writes": f"128 tokens, {precision}", "ours tokens/s": ours.median,
               "PyTorch tokens/s": theirs.median, "ratio": ours.median / theirs.median}


def scaling(options: argparse.Namespace, rounds: int, folder: pathlib.Path) -> Iterator[Row]:
    printed = attn(options, "sweep", "-r", 3, "--embed-dim", 256, "--layers", 4, "--heads", 4, "--vocab-size", 256,
                   "--batch-tokens", 1, "--measure", "time", "-o", "json").stdout
    decoder = json.JSONDecoder()
    rows, end = decoder.raw_decode(printed)
    laws, _ = decoder.raw_decode(printed[end:].strip())
    for row in rows:
        yield {"table": "scaling", "context": row["tokens"], "us a token": row["time"],
               "tokens/s": int(1e6 / row["time"]), "exponent": laws[0]["exponent"]}


def run(options: argparse.Namespace, about: dict[str, object]) -> Iterator[Row]:
    options.text = options.text or options.data / "tinyshakespeare/input.txt"
    about |= {"threads": options.threads[-1], "rounds": options.repeats or 3}
    with tempfile.TemporaryDirectory() as folder:
        for table in (recipe, cache, steps, generation, scaling):
            if options.filter.search(table.__name__):
                yield from table(options, options.repeats or 3, pathlib.Path(folder))
