"""What heads are worth: accuracy and perplexity against the share of heads removed, by each method of attn prune and at
random, of a classifier of SST-2 and of a text model, both trained here.

The tables: curve (nothing retrained), share (40 % removed, as it is and retrained) and cost (parameters, bytes, time).
Means over the models, with the lowest and the highest; at random three orders for each model.
"""

import argparse
import json
import math
import pathlib
import statistics
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from .programs import attn, with_range
from .results import Row

METHODS = ("gradient", "leave-one-out", "gates", "random")
SHARE = "40%"
RANDOM_SEEDS = 3  # orders at random for each model

CLASSIFIER = ("--embed-dim 64 --layers 3 --heads 8 --context 64 --batch 32 --epochs 4 --learning-rate 1e-3 "
              "--dropout 0.5 --eval-every 54").split()
TEXT = "--embed-dim 128 --layers 4 --heads 8 --context 64 --batch 12 --steps 2000 --bias false".split()

Runs = dict[tuple[str, bool], list[dict]]  # (method, retrained): what attn prune prints, of all models


@dataclass
class Task:
    """A model to train and prune, and the number that says how good it is."""

    name: str
    files: tuple
    flags: list[str]
    retrain: int
    number: Callable[[dict], float]
    unit: str


def add_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seeds", type=int, default=3, help="models of each kind")


def tasks(data: pathlib.Path) -> list[Task]:
    sst2, text = data / "sst2", data / "tinyshakespeare" / "input.txt"
    return [
        Task("SST-2 classifier", (sst2 / "train.tsv", "--validation", sst2 / "dev.tsv"), CLASSIFIER, 87,
             lambda row: 100 * row["accuracy"], "% right of the test set"),
        Task("text model", (text,), TEXT, 200, lambda row: math.exp(row["loss"]), "perplexity"),
    ]


def prune(options: argparse.Namespace, task: Task, model: pathlib.Path, method: str, *flags: object,
          heads: object = SHARE) -> dict:
    # The classifier's checkpoint was chosen by dev.tsv: another file judges.
    other = ("--validation", task.files[2].with_name("test.tsv")) if len(task.files) > 1 else ()
    return json.loads(attn(options, "prune", model, "--heads", heads, "--method", method, "--out",
                           model.with_name("pruned"), "--overwrite", "--json", *other, *flags).stdout)


def prune_all(options: argparse.Namespace, task: Task, folder: pathlib.Path) -> Runs:
    found: Runs = {}
    for seed in range(options.seeds):
        model = folder / f"{task.name.split()[0]}{seed}"
        attn(options, "train", *task.files, *task.flags, "--quiet", "--seed", 1337 + seed, "--out", model)
        for method in METHODS:
            for order in range(RANDOM_SEEDS if method == "random" else 1):
                flags = ("--seed", RANDOM_SEEDS * seed + order)
                found.setdefault((method, False), []).append(prune(options, task, model, method, *flags))
                found.setdefault((method, True), []).append(
                    prune(options, task, model, method, "--retrain", task.retrain, *flags))
        found.setdefault(("one head alone", True), []).append(
            prune(options, task, model, "leave-one-out", "--retrain", task.retrain, heads=1))
    return found


def curves(task: Task, found: Runs) -> Iterator[Row]:
    total = found["gradient", False][0]["before"]["heads"]
    for method in METHODS:
        points: dict[int, list[float]] = {}
        for run in found[method, False]:
            for row in run["curve"]:
                points.setdefault(row["heads"], []).append(task.number(row))
        for count, values in sorted(points.items()):
            yield {"table": "curve", "model": task.name, "method": method, "heads removed": count,
                   "% of heads": 100 * count / total, task.unit: statistics.mean(values), "lowest": min(values),
                   "highest": max(values)}


def shares(task: Task, found: Runs) -> Iterator[Row]:
    def shown(runs: list[dict], when: str = "after") -> str:
        return with_range([task.number(run[when]) for run in runs], ".2f", statistics.mean) if runs else ""

    def row(method: str, plain: str, trained: str) -> Row:
        return {"table": "share", "model": task.name, "method": method, "as it is": plain, "retrained": trained,
                "updates": task.retrain}

    yield row("nothing removed", shown(found["gradient", False], "before"), "")
    for method in (*METHODS, "one head alone"):
        yield row(method, shown(found.get((method, False), [])), shown(found[method, True]))


def costs(task: Task, found: Runs) -> Iterator[Row]:
    runs = [run for method in METHODS for run in found[method, False]]
    for when in ("before", "after"):
        first = runs[0][when]
        yield {"table": "cost", "model": task.name, "when": when, "heads": first["heads"],
               "parameters": first["parameters"], "bytes": first["bytes"],
               "ms a batch": statistics.median(run[when]["milliseconds"] for run in runs),
               "% saved": statistics.median(100 * (1 - run["after"]["milliseconds"] / run["before"]["milliseconds"])
                                            for run in runs)}


def run(options: argparse.Namespace, about: dict[str, object]) -> Iterator[Row]:
    about |= {"threads": options.threads[-1], "models": options.seeds}
    with tempfile.TemporaryDirectory() as folder:
        for task in tasks(options.data):
            if options.filter.search(task.name):
                found = prune_all(options, task, pathlib.Path(folder))
                for table in (curves, shares, costs):
                    yield from table(task, found)
