"""Queries, keys and values by one product or by three: time of training, of a prompt, and of a new token."""

import json

from . import plots
from .laboratory import Laboratory, Page, Row

REPEATS = 7


def run(lab: Laboratory) -> Page:
    widths, tokens = ([32], 16) if lab.quick else ([256, 768, 1536], 512)

    def products(phase: dict, layer: str) -> float:
        """Milliseconds of a projection in all layers."""
        return sum(row["milliseconds"] for row in phase["operations"]
                   if row["operation"] == "matmul" and row["scope"].endswith(layer))

    def measure(width: int) -> list[Row]:
        lab.attn(f"train {lab.text()} --out wide --overwrite --layers 2 --embed-dim {width} --heads {width // 32} "
                 f"--context {2 * tokens} --batch 1 --steps 1 --eval-every 0 --validation-batches 1 --quiet")
        lab.attn(f"profile wide --text {lab.text()} --tokens {tokens} --generate {tokens // 16} --repeats "
                 f"{2 if lab.quick else REPEATS} --phases forward,train,decode --json wide.json")
        return [{"width": width, "phase": phase["phase"], "tokens": 1 if phase["phase"] == "decode" else tokens,
                 "fused": products(phase, "attention/qkv"), "apart": 3 * products(phase, "attention/output")}
                for phase in json.loads((lab.folder / "wide.json").read_text())["phases"]]

    return page(lab, tokens, lab.measured([(f"width {width}", lambda width=width: measure(width)) for width in widths]))


def page(lab: Laboratory, tokens, rows) -> Page:
    page = Page(lab, "One product for queries, keys and values", (
        "Each layer of attention multiplies its input by three matrices, for queries, keys and values. They have the "
        "same input, so that one product by a matrix of three times the width can replace the three. All models here "
        "do that; this page asks what it saves."))
    page.section("Question", "Is one product of C x 3C faster than three of C x C?")
    page.add("Texts say that the fused product is 1.3 times as fast.")
    page.section("Prediction, written before the run", (
        "One product reads the same weights and does the same operations as three. It reads the input once instead of "
        "three times, and starts once. With hundreds of tokens that is less than 5 %. For a single new token the "
        "weights come from memory, and the narrowest model will gain most, since there the cost of a call is largest: "
        "up to 1.2 times; the wide ones nothing. The texts' 1.3 is of GPUs, where starting a small product takes as "
        "long as the product."))
    page.section("Method", (
        "The output projection of a layer is a product of C x C with as many rows as that of C x 3C: three times its "
        f"time is that of three products. `attn profile` of models of 2 layers with random weights: a forward of "
        f"{tokens} tokens, an update of the training with as many, whose products of the backward count too, and "
        f"{tokens // 16} new tokens after a prompt of {tokens}; milliseconds of all layers, means of {REPEATS} runs, "
        "float32."))
    page.section("Result")
    page.table([{"C": str(row["width"]), "phase": row["phase"], "rows of a product": str(row["tokens"]),
                 "one product, ms": f"{row['fused']:.2f}", "three, ms": f"{row['apart']:.2f}",
                 "speed-up": f"{row['apart'] / row['fused']:.2f} x"} for row in rows])
    figure, (axis,) = plots.panels(1)
    plots.lines(axis, {phase: {row["width"]: [row["apart"] / row["fused"]] for row in rows if row["phase"] == phase}
                       for phase in dict.fromkeys(row["phase"] for row in rows)}, "C", "speed-up of one product")
    page.picture(figure, "projections", "Speed-up of one product against the width.")
    ratios = [row["apart"] / row["fused"] for row in rows]
    best = max(rows, key=lambda row: row["apart"] / row["fused"])
    page.section("Conclusion", (
        f"One product is {min(ratios):.2f} to {max(ratios):.2f} times as fast as three; the most is that of "
        f"{best['phase']} with a width of {best['width']}. The texts' 1.3 "
        f"{'is reached' if max(ratios) >= 1.3 else 'is not reached'} on this processor."))
    return page
