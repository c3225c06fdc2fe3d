#!/usr/bin/env python3
"""What heads are worth: accuracy and perplexity against the share of heads removed, by each method of attn prune and at
random, of a classifier of SST-2 and of a text model, both trained here.

usage: prune.py --attn=PROGRAM [--data=FOLDER] [--seeds=N] [--threads=N] [--picture=FILE.png] [--page=FILE.md]
"""

import argparse
import json
import math
import os
import pathlib
import platform
import statistics
import subprocess
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
METHODS = ("gradient", "leave-one-out", "gates", "random")
SHARE = "40%"
RANDOM_SEEDS = 3  # orders at random for each model
MARKS = "<!-- the tables of bench/pruning -->", "<!-- end of the tables -->"

CLASSIFIER = ("--embed-dim 64 --layers 3 --heads 8 --context 64 --batch 32 --epochs 4 --learning-rate 1e-3 "
              "--dropout 0.5 --eval-every 54").split()
TEXT = "--embed-dim 128 --layers 4 --heads 8 --context 64 --batch 12 --steps 2000 --bias false".split()


class Task:
    """A model to train and prune, and the number that says how good it is."""

    def __init__(self, name, files, flags, retrain, number, unit):
        self.name, self.files, self.flags, self.retrain = name, files, flags, retrain
        self.number, self.unit = number, unit


def tasks(data):
    sst2, text = data / "sst2", data / "tinyshakespeare" / "input.txt"
    return [
        Task("SST-2 classifier", (sst2 / "train.tsv", "--validation", sst2 / "dev.tsv"), CLASSIFIER, 87,
             lambda row: 100 * row["accuracy"], "% right of the test set"),
        Task("text model", (text,), TEXT, 200, lambda row: math.exp(row["loss"]), "perplexity"),
    ]


class Runner:
    def __init__(self, options, folder):
        self.options, self.folder = options, pathlib.Path(folder)

    def attn(self, *arguments):
        command = [self.options.attn, "--threads", self.options.threads, *arguments]
        done = subprocess.run([*map(str, command)], capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(f"{command}: {done.stderr}")
        return done.stdout

    def prune(self, task, model, method, *flags, heads=SHARE):
        # The classifier's checkpoint was chosen by dev.tsv: another file judges.
        other = ("--validation", task.files[2].with_name("test.tsv")) if len(task.files) > 1 else ()
        said = self.attn("prune", model, "--heads", heads, "--method", method, "--out", self.folder / "pruned",
                         "--overwrite", "--json", *other, *flags)
        return json.loads(said)

    def results(self, task):
        """A list of what attn prune says for each (method, retrained), over the seeds."""
        found = {}
        for seed in range(self.options.seeds):
            model = self.folder / f"{task.name.split()[0]}{seed}"
            self.attn("train", *task.files, *task.flags, "--quiet", "--seed", 1337 + seed, "--out", model)
            for method in METHODS:
                for order in range(RANDOM_SEEDS if method == "random" else 1):
                    flags = ("--seed", RANDOM_SEEDS * seed + order)
                    found.setdefault((method, False), []).append(self.prune(task, model, method, *flags))
                    found.setdefault((method, True), []).append(
                        self.prune(task, model, method, "--retrain", task.retrain, *flags))
                print(f"{task.name}, seed {seed}, {method}: done", flush=True)
            found.setdefault(("one", True), []).append(
                self.prune(task, model, "leave-one-out", "--retrain", task.retrain, heads=1))
        return found


def spread(values):
    middle = statistics.mean(values)
    return f"{middle:.2f}" if len(values) == 1 else f"{middle:.2f} ({min(values):.2f} to {max(values):.2f})"


def curve_of(task, runs):
    """Heads removed -> values, of all runs."""
    points = {}
    for run in runs:
        for row in run["curve"]:
            points.setdefault(row["heads"], []).append(task.number(row))
    return points


def tables(task, found):
    total = found["gradient", False][0]["before"]["heads"]
    yield f"### {task.name}: {task.unit}\n"
    yield f"Nothing retrained; of {total} heads so many removed:\n"
    counts = sorted(curve_of(task, found["gradient", False]))
    yield "| removed | " + " | ".join(f"{count} ({100 * count / total:.0f} %)" for count in counts) + " |"
    yield "| --- |" + " ---: |" * len(counts)
    for method in METHODS:
        points = curve_of(task, found[method, False])
        yield f"| {method} | " + " | ".join(f"{statistics.mean(points[count]):.2f}" for count in counts) + " |"
    whole = spread([task.number(run["before"]) for run in found["gradient", False]])
    gone = total - found["gradient", False][0]["after"]["heads"]
    yield f"\n{gone} heads ({SHARE}) removed; the whole model: {whole}.\n"
    yield f"| | as it is | after {task.retrain} updates |\n| --- | ---: | ---: |"
    for method in METHODS:
        plain, trained = ([task.number(run["after"]) for run in found[method, again]] for again in (False, True))
        yield f"| {method} | {spread(plain)} | {spread(trained)} |"
    alone = [task.number(run["after"]) for run in found["one", True]]
    yield f"| one head alone, for comparison | | {spread(alone)} |"
    runs = [run for method in METHODS for run in found[method, False]]
    row = runs[0]
    times = [100 * (1 - run["after"]["milliseconds"] / run["before"]["milliseconds"]) for run in runs]
    yield (f"\nParameters {row['before']['parameters']:,} to {row['after']['parameters']:,}, file "
           f"{row['before']['bytes']:,} to {row['after']['bytes']:,} bytes. A batch took "
           f"{statistics.median(run['before']['milliseconds'] for run in runs):.2f} ms before and "
           f"{statistics.median(run['after']['milliseconds'] for run in runs):.2f} ms after, the median of "
           f"{len(runs)} pairs: {statistics.median(times):.0f} % saved.\n")


def draw(all_found, file):
    import matplotlib

    matplotlib.use("Agg")  # no display
    import matplotlib.pyplot as plt

    # Okabe and Ito's colours, distinguishable for every eye; markers are for prints in grey.
    styles = {"gradient": ("#0072B2", "s"), "leave-one-out": ("#009E73", "^"), "gates": ("#D55E00", "o"),
              "random": ("#7F7F7F", "x")}
    figure, axes = plt.subplots(1, len(all_found), figsize=(5.5 * len(all_found), 4), layout="constrained")
    for axis, (task, found) in zip(axes, all_found):
        total = found["gradient", False][0]["before"]["heads"]
        for method, (colour, marker) in styles.items():
            points = sorted(curve_of(task, found[method, False]).items())
            shares = [100 * count / total for count, _ in points]
            axis.plot(shares, [statistics.mean(values) for _, values in points], color=colour, marker=marker,
                      label=method)
            if method == "random":
                axis.fill_between(shares, [min(values) for _, values in points], [max(values) for _, values in points],
                                  color=colour, alpha=0.15, linewidth=0)
            trained = statistics.mean(task.number(run["after"]) for run in found[method, True])
            gone = 100 * (1 - found[method, True][0]["after"]["heads"] / total)
            axis.plot([gone], [trained], color=colour, marker=marker, markersize=11, fillstyle="none", linestyle="none")
        axis.set(title=task.name, xlabel="heads removed, %", ylabel=task.unit)
        axis.axvline(40, color="black", linewidth=0.5, linestyle=":")
        axis.grid(alpha=0.3)
    axes[0].legend(title="large and hollow: retrained")
    file.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(file, dpi=110)


def write_page(page, lines):
    text = page.read_text()
    before, _, rest = text.partition(MARKS[0])
    after = rest.partition(MARKS[1])[2]
    page.write_text(f"{before}{MARKS[0]}\n" + "\n".join(lines) + f"\n{MARKS[1]}{after}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--attn", required=True)
    parser.add_argument("--data", default=os.environ.get("ATTN_SHARED"), type=pathlib.Path,
                        help="the folder with sst2 and tinyshakespeare; or ATTN_SHARED")
    parser.add_argument("--seeds", type=int, default=3, help="models of each kind")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--picture", type=pathlib.Path,
                        default=HERE.parent.parent / "docs" / "pictures" / "pruning.png")
    parser.add_argument("--page", type=pathlib.Path, help="whose tables are replaced, as docs/pruning.md")
    options = parser.parse_args()
    if options.data is None:
        parser.error("--data or ATTN_SHARED must name the folder of data")
    options.attn = str(pathlib.Path(options.attn).resolve())
    model = next((line.split(":")[1].strip() for line in open("/proc/cpuinfo") if line.startswith("model name")), "")
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=HERE, capture_output=True, text=True).stdout
    lines = [f"{model}, {platform.system()}, commit {commit.strip()}, {options.threads} threads; means over "
             f"{options.seeds} models of each kind, in brackets the smallest and the largest; at random {RANDOM_SEEDS} "
             "orders for each model.\n"]
    all_found = []
    with tempfile.TemporaryDirectory() as folder:
        runner = Runner(options, folder)
        for task in tasks(options.data):
            all_found.append((task, runner.results(task)))
            lines += tables(*all_found[-1])
    print("\n".join(lines))
    draw(all_found, options.picture)
    if options.page:
        write_page(options.page, lines)


if __name__ == "__main__":
    main()
