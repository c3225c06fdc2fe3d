"""float32, bfloat16 and float16: loss, time and memory of the same training."""

from statistics import median

from benchmarks.programs import with_range

from . import plots
from .laboratory import SEEDS, Laboratory, Page, Row

TYPES = ("float32", "bfloat16", "float16")


def run(lab: Laboratory) -> Page:
    context, tokens = (32, 2000) if lab.quick else (128, 400_000)
    seeds = SEEDS[:1] if lab.quick else SEEDS

    def train(precision: str) -> list[Row]:
        rows = lab.sweep(f"{lab.text()} --over tokens={context} --batch-tokens {16 * context} --train-tokens {tokens} "
                         f"--seeds {len(seeds)} --learning-rate 0.003 --measure time,memory,decode,cache,loss "
                         f"--precision {precision} --layers 4 --embed-dim 128 --heads 4 --positions rope --bias false")
        return [row | {"precision": precision} for row in rows]

    rows = lab.measured([(precision, lambda precision=precision: train(precision)) for precision in TYPES])
    return page(lab, context, tokens, rows)


def page(lab: Laboratory, context, tokens, rows) -> Page:
    def values(precision: str, name: str) -> list[float]:
        return [row[name] for row in rows if row["precision"] == precision]

    page = Page(lab, "float32, bfloat16 and float16", (
        "A number of 16 bits takes half the memory of one of 32, and where the processor multiplies 16 bits it can "
        "multiply twice as many. bfloat16 keeps the range of float32 with 8 bits of precision; float16 has 11 bits "
        "and a small range, so that gradients are scaled. This page trains the same model in each. "
        "[Training](../models.md) keeps float32 originals of all weights."))
    page.section("Question", "What do 16 bits cost in loss, and what do they save in time and memory?")
    page.section("Prediction, written before the run", (
        "The loss will be the same within the spread of seeds. Memory falls by less than half: weights, gradients "
        "and moments stay float32, only activations and the cache have 16 bits. Time depends on the processor: "
        "without instructions for products of 16 bits every number is converted, so that this training is a little "
        "slower than in float32; with them, or with matrix tiles, it is faster."))
    page.section("Method", (
        f"`attn sweep --precision`: a GPT of 4 layers, width 128, 4 heads, rotary positions, context {context}, on "
        f"the characters of Tiny Shakespeare; {tokens:,} tokens in updates of {16 * context:,}, AdamW at 0.003 with "
        "warm-up and cosine, dynamic loss scaling for float16. Loss on the last tenth of the text. Seeds 1, 2 and "
        "3; medians, the lowest and the highest."))
    page.section("Result")
    page.table([{"type": each, "loss": with_range(values(each, "loss"), ".4f"),
                 "us a token": with_range(values(each, "time"), ".1f"),
                 "peak MB": f"{median(values(each, 'memory')):.1f}",
                 "us to write one": f"{median(values(each, 'decode')):.0f}",
                 "cache, KB": f"{median(values(each, 'cache')):.0f}"}
                for each in TYPES])
    figure, (left, right) = plots.panels(2)
    for axis, name, label in ((left, "loss", "validation loss"), (right, "time", "us a token of one update")):
        for place, each in enumerate(TYPES):
            own = values(each, name)
            axis.errorbar([place], [median(own)], yerr=[[median(own) - min(own)], [max(own) - median(own)]], fmt="o",
                          capsize=3, color="#0072B2")
        axis.set_xticks(range(len(TYPES)), TYPES)
        axis.set_ylabel(label)
        axis.grid(alpha=0.3)
    page.picture(figure, "precision", "Loss and time of each type.")
    spread = max(values("float32", "loss")) - min(values("float32", "loss"))
    base = {name: median(values("float32", name)) for name in ("loss", "time", "memory")}
    def against(each: str) -> str:
        gap = median(values(each, "loss")) - base["loss"]
        return (f"{each} ends {abs(gap):.4f} nats {'below' if gap < 0 else 'above'} float32, whose seeds differ by "
                f"{spread:.4f}; it takes {median(values(each, 'time')) / base['time']:.2f} times as long and "
                f"{median(values(each, 'memory')) / base['memory']:.2f} of the memory.")

    slower = all(median(values(each, "time")) > base["time"] for each in TYPES[1:])
    within = all(abs(median(values(each, "loss")) - base["loss"]) <= spread for each in TYPES[1:])
    page.section("Conclusion", " ".join(map(against, TYPES[1:])), (
        f"That the loss stays within the spread of seeds {'holds' if within else 'does not hold'}. More time in 16 "
        "bits was the prediction for processors without products of 16 bits, such as those with AVX2 alone; here 16 "
        f"bits {'take more time' if slower else 'do not take more time'}."))
    return page
