"""The choices that texts on attention explain, one curve each: scaling of scores, place of the norm and warm-up,
dropout, recomputation, packing."""

import csv
from statistics import median

from benchmarks.programs import with_range

from . import plots
from .laboratory import SEEDS, Laboratory, Page, Row, last_loss

MODEL = "--layers 4 --embed-dim 128 --heads 2 --positions rope --bias false"
SCALING = "Scaling of scores"
SENTENCE = "First Citizen: before we proceed any further, hear me speak."
# Each choice: its name and flags, against the first of its group.
GROUPS: dict[str, dict[str, str]] = {
    SCALING: {
        "1 / sqrt(D)": "",
        "no scaling": "--attention-scale 1",
        "1 / D": "--attention-scale 0.015625",
    },
    "Place of the norm, and warm-up": {
        "pre-norm, warm-up": "",
        "pre-norm, no warm-up": "--warmup 0",
        "post-norm, warm-up": "--norm-placement post",
        "post-norm, no warm-up": "--norm-placement post --warmup 0",
    },
    "Dropout": {
        "none": "",
        "0.1": "--dropout 0.1",
        "0.3": "--dropout 0.3",
    },
}


def run(lab: Laboratory) -> Page:
    context, batch, count = (16, 4, 12) if lab.quick else (128, 16, 250)
    seeds = SEEDS[:1] if lab.quick else SEEDS

    def train(group: str, choice: str) -> list[Row]:
        rows = []
        for seed in seeds:
            lab.attn(f"train {lab.text()} --out model --overwrite --context {context} --batch {batch} --steps {count} "
                     f"--eval-every 0 --learning-rate 0.003 --seed {seed} {MODEL}",
                     *GROUPS[group][choice].split())
            log = lab.log("model")
            steps = [row for row in log if "loss" in row]
            rows.append({"table": group, "choice": choice, "seed": seed,
                         "losses": [row["loss"] for row in steps], "norms": [row["gradient_norm"] for row in steps],
                         "loss": last_loss(log)})
        return rows

    def entropy(choice: str) -> list[Row]:
        """Of the softmax of a model that has just been initialised, as a share of the largest possible."""
        shares = []
        for seed in seeds:
            lab.attn(f"train {lab.text()} --out fresh --overwrite --context {context} --batch 1 --steps 1 "
                     f"--learning-rate 1e-12 --warmup 0 --seed {seed} --quiet {MODEL} {GROUPS[SCALING][choice]}")
            printed = lab.attn("heads fresh --measures entropy_relative --csv - --text", SENTENCE).stdout
            table = list(csv.DictReader(printed.splitlines()))
            shares.append(sum(float(row["entropy_relative"]) for row in table) / len(table))
        return [{"table": "entropy", "choice": choice, "share": median(shares)}]

    def recompute() -> list[Row]:
        rows = []
        for again in (False, True):
            found = lab.sweep(f"--over layers={'2,4' if lab.quick else '4,8,16'} --embed-dim 128 --heads 4 --context "
                              f"{context} --batch-tokens {16 * context} {'--recompute' if again else ''}")
            rows += [{"table": "recompute", "again": again} | row for row in found]
        return rows

    def packing() -> list[Row]:
        """SST-2 in batches of sentences, padded to the longest of each batch or one after the other."""
        rows = []
        for packed in (False, True):
            for seed in seeds:
                lab.attn(f"train {lab.sst2('train')} --validation {lab.sst2('dev')} --out sentences --overwrite "
                         f"--context 64 --batch 32 --steps {3 if lab.quick else 100} --eval-every 0 --seed {seed} "
                         f"--layers 4 --embed-dim 128 --heads 4 --learning-rate 0.001 {'--packed' if packed else ''}")
                log = lab.log("sentences")
                steps = [row for row in log if "loss" in row]
                rows.append({"table": "packing", "packed": packed, "seed": seed,
                             "time": 1e6 * sum(row["seconds"] for row in steps) / (32 * len(steps)),
                             "tokens": sum(row["tokens"] for row in steps) / (32 * len(steps)),
                             "loss": last_loss(log)})
        return rows

    rows = lab.measured([(f"{group}: {choice}", lambda group=group, choice=choice: train(group, choice))
                         for group, choices in GROUPS.items() for choice in choices]
                        + [(f"entropy: {choice}", lambda choice=choice: entropy(choice)) for choice in GROUPS[SCALING]]
                        + [("recomputation", recompute), ("packing", packing)])
    return page(lab, context, batch, count, rows)


def page(lab: Laboratory, context, batch, count, rows) -> Page:
    def of(group: str, choice: str) -> list[Row]:
        return [row for row in rows if row["table"] == group and row["choice"] == choice]

    def final(group: str, choice: str) -> float:
        return median(row["loss"] for row in of(group, choice))

    again = {(row["layers"], row["again"]): row for row in rows if row["table"] == "recompute"}
    layers = sorted({n for n, _ in again})
    page = Page(lab, "Choices that texts explain", (
        "Texts on transformers explain why scores are divided by sqrt(D), why norms come first, why the learning "
        "rate warms up, what dropout is for, that activations can be computed again to save memory, and that padding "
        "wastes work. This page trains one small model with each choice and draws the loss. All of them are fields "
        "of a [model](../models.md) or flags of `attn train`."))
    page.section("Question", "What does each of these choices change in the loss of a small language model?")
    page.section("Prediction, written before the run", (
        "Scaling: at initialisation queries and keys are small, with weights of deviation 0.02 after a norm, so "
        "that scores are small with every factor; training grows them as it needs. The choice will matter little in "
        "this model, less than texts say, whose argument assumes entries of variance 1. Post-norm without warm-up "
        "will be the worst or fail; pre-norm will not care. Dropout will cost loss, since so few updates see the text "
        "little more than once and do not overfit. Recomputation will cost about a third of the time and, of this "
        "model, more than half of the memory of activations. Packing will save the share of padding, about half."))
    page.section("Method", (
        "A GPT of 4 layers, width 128 and 2 heads of 64, rotary positions, on the characters of Tiny Shakespeare: "
        f"context {context}, {batch} sequences an update, {count} updates, AdamW at 0.003 with a warm-up of "
        f"{count // 10} updates and a cosine, gradients clipped to norm 1. The first row of each table is the "
        "default. Loss on the last tenth of the text; seeds 1, 2 and 3, medians, the lowest and the highest. The "
        "entropy is that of the attention of a new model, a mean over heads and tokens, as a share of that of equal "
        "weights (`attn heads`). Curves are of seed 1, averaged over ten updates. Recomputation: `attn sweep`, with "
        "and without `--recompute`. Packing: a classifier of the same size on SST-2, batches of 32 sentences, each "
        "padded to the longest of its batch, or packed one after the other with `--packed`; 100 updates."))
    page.section("Result")
    figure, axes = plots.panels(len(GROUPS))
    for axis, (group, choices) in zip(axes, GROUPS.items()):
        page.add(f"{group}:")
        page.table([{"choice": choice, "validation loss": with_range([row["loss"] for row in of(group, choice)], ".3f"),
                     "gradient norm of the first update": f"{median(row['norms'][0] for row in of(group, choice)):.2f}",
                     **({"entropy at initialisation": f"{100 * of('entropy', choice)[0]['share']:.2f} %"}
                        if group == SCALING else {}),
                     "largest gradient norm": f"{median(max(row['norms']) for row in of(group, choice)):.2f}"}
                    for choice in choices])
        plots.curves(axis, {choice: smoothed(of(group, choice)[0]["losses"]) for choice in choices}, "update",
                     "training loss")
        axis.set_title(group, fontsize=10)
    page.picture(figure, "choices", "Training loss of each choice.")
    page.add("Recomputation:")
    page.table([{"layers": str(n), **{f"{name}{suffix}": f"{again[n, flag][column]:.1f}"
                                      for flag, suffix in ((False, ""), (True, ", recomputed"))
                                      for name, column in (("us a token", "time"), ("peak MB", "memory"))},
                 "time": f"{again[n, True]['time'] / again[n, False]['time']:.2f} x",
                 "memory": f"{again[n, True]['memory'] / again[n, False]['memory']:.2f} x"} for n in layers])
    packing = {packed: [row for row in rows if row["table"] == "packing" and row["packed"] == packed]
               for packed in (False, True)}
    page.add("Padding and packing:")
    page.table([{"batches": "packed" if packed else "padded",
                 "tokens a sentence": f"{median(row['tokens'] for row in packing[packed]):.1f}",
                 "us a sentence": with_range([row["time"] for row in packing[packed]], ".0f"),
                 "validation loss": with_range([row["loss"] for row in packing[packed]], ".4f")}
                for packed in (False, True)])
    norms, dropout = "Place of the norm, and warm-up", "Dropout"
    scaling = [final(SCALING, choice) for choice in GROUPS[SCALING]]
    worst = max(GROUPS[norms], key=lambda choice: final(norms, choice))
    most = layers[-1]
    page.section("Conclusion", (
        f"The three scalings end within {max(scaling) - min(scaling):.3f} nats of each other: {scaling[0]:.3f} with "
        f"1 / sqrt(D), {scaling[1]:.3f} without, {scaling[2]:.3f} with 1 / D. Of the norms the worst is {worst}, "
        f"with {final(norms, worst):.3f} against {final(norms, 'pre-norm, warm-up'):.3f} of pre-norm with warm-up. "
        f"Post-norm without warm-up, which was expected to be the worst, ends at "
        f"{final(norms, 'post-norm, no warm-up'):.3f}. "
        f"Dropout of 0.3 ends at {final(dropout, '0.3'):.3f} against {final(dropout, 'none'):.3f} without."), (
        f"With {most} layers recomputation takes {again[most, True]['time'] / again[most, False]['time']:.2f} times "
        f"as long and {again[most, True]['memory'] / again[most, False]['memory']:.2f} of the memory. A packed batch "
        f"takes {median(row['time'] for row in packing[True]) / median(row['time'] for row in packing[False]):.2f} of "
        "the time of a padded one."))
    return page


def smoothed(losses: list[float], width: int = 10) -> list[tuple[float, float]]:
    return [(n, sum(losses[n:n + width]) / len(losses[n:n + width])) for n in range(0, len(losses), width)]
