"""Heads, depth and grouped keys and values, at equal numbers of parameters and of tokens."""

import collections
import math
from statistics import median

from benchmarks.programs import with_range

from . import plots
from .laboratory import SEEDS, Laboratory, Page, Row, grouped

CONTEXT, WIDTH = 256, 128


def run(lab: Laboratory) -> Page:
    tokens = 2000 if lab.quick else 350_000
    context = 32 if lab.quick else CONTEXT
    heads = [1, 2, 4] if lab.quick else [1, 2, 4, 8, 16]
    groups = [1, 4] if lab.quick else [1, 2, 4, 8]
    # Depths with nearly equal numbers of parameters: 12 L C^2.
    depths = {1: 256, 4: 128} if lab.quick else {1: 256, 2: 176, 4: 128, 8: 88}

    def sweep(table: str, shape: str) -> list[Row]:
        rows = lab.sweep(f"{lab.text()} --context {context} --batch-tokens {16 * context} --train-tokens {tokens} "
                         f"--seeds {len(SEEDS)} --learning-rate 0.003 --measure time,decode,cache,loss --positions "
                         f"rope --bias false {shape}")
        return [{"table": table} | row for row in rows]

    base = f"--layers 4 --embed-dim {WIDTH}"
    shapes = {f"{n} heads": ("heads", f"{base} --over heads={n}") for n in heads}
    shapes |= {f"{n} key/value heads": ("groups", f"{base} --heads {max(groups)} --over kv_heads={n}") for n in groups}
    shapes |= {f"{n} layers": ("depth", f"--embed-dim {width} --heads 4 --over layers={n}")
               for n, width in depths.items()}
    rows = lab.measured([(name, lambda shape=shape: sweep(*shape)) for name, shape in shapes.items()])
    tables = {name: [row for row in rows if row["table"] == name] for name in ("heads", "groups", "depth")}
    return page(lab, tokens, context, depths, grouped(tables["heads"], "heads"), grouped(tables["groups"], "kv_heads"),
                grouped(tables["depth"], "layers"))


def pairs_loss(text: str) -> float:
    """Of the last tenth of a text, by how often each character follows each other one in the rest; one is added."""
    cut = len(text) * 9 // 10
    seen, follows = collections.Counter(text[:cut]), collections.Counter(zip(text[:cut], text[1:cut + 1]))
    kinds = len(set(text))
    return -sum(math.log((follows[pair] + 1) / (seen[pair[0]] + kinds))
                for pair in zip(text[cut:], text[cut + 1:])) / (len(text) - cut - 1)


def values(rows: list[Row], name: str) -> list[float]:
    return [row[name] for row in rows]


def page(lab: Laboratory, tokens, context, depths, heads, groups, layers) -> Page:
    def line(names: dict[str, str], rows: list[Row]) -> dict[str, str]:
        return names | {"parameters": f"{rows[0]['parameters']:,}", "loss": with_range(values(rows, "loss"), ".3f"),
                        "us a token": f"{median(values(rows, 'time')):.1f}",
                        "us to write one": f"{median(values(rows, 'decode')):.0f}",
                        "cache, KB": f"{median(values(rows, 'cache')):.0f}"}

    def loss(rows: list[Row]) -> float:
        return median(values(rows, "loss"))

    most, fewest = max(groups), min(groups)
    cache = {n: median(values(rows, "cache")) for n, rows in ((key[0], rows) for key, rows in groups.items())}
    spread = max(max(values(rows, "loss")) - min(values(rows, "loss")) for rows in heads.values())
    best_heads, worst_heads = (pick(heads, key=lambda key: loss(heads[key]))[0] for pick in (min, max))
    best_depth = min(layers, key=lambda key: loss(layers[key]))[0]
    page = Page(lab, "Heads, depth, and grouped keys and values", (
        "A layer of width C can have one head that compares C numbers a token, or H heads that compare C / H "
        "numbers each. The parameters are the same. Heads can also share keys and values, which makes the KV cache "
        "smaller: grouped-query attention (GQA), and multi-query attention (MQA) where all heads share. This page "
        "trains all of them on the same tokens. The options are `heads` and `kv_heads` of every "
        "[model](../models.md)."))
    page.section("Question", (
        "What do 1 to 16 heads, 1 to 8 layers and shared keys and values change in loss, time and cache, all else "
        "equal?"))
    page.add("Texts that teach attention say that GQA with 12 query and 4 key/value heads saves 67 % of the cache.")
    page.section("Prediction, written before the run", (
        "The cache has 2 D numbers for each key/value head, layer and token: a third of the heads saves exactly 67 "
        "%, and nothing else decides. One head will be worse than several, since it has one distribution over the "
        "tokens; very narrow heads will be worse again. Sharing keys and values will cost a little loss, within a "
        "few hundredths, beyond its fewer parameters. Depth will matter more than heads. Writing will hardly be "
        "faster with a smaller cache at this length, where the matrices are most of what a step reads."))
    page.section("Method", (
        f"`attn sweep` on the characters of Tiny Shakespeare: GPTs with rotary positions, width {WIDTH} and 4 layers "
        f"unless the table says otherwise, context {context}, {tokens:,} tokens in updates of {16 * context:,}, "
        "AdamW at 0.003 with warm-up and cosine. Loss on the last tenth of the text, seeds 1, 2 and 3, in brackets "
        "the lowest and the highest. Times are medians: a token of one update, and one token that is written at the "
        "end of the context. The widths of the depths are "
        f"{', '.join(f'{width} for {n}' for n, width in depths.items())}, which makes 12 L C^2 nearly equal."))
    page.section("Result", "Heads:")
    page.table([line({"heads": str(n), "width of a head": str(WIDTH // n)}, rows) for (n,), rows in heads.items()])
    page.add(f"Key/value heads of {most[0]} heads:")
    page.table([line({"key/value heads": str(n)}, rows) |
                {"of the full cache": f"{100 * cache[n] / cache[most[0]]:.1f} %"} for (n,), rows in groups.items()])
    page.add("Layers:")
    page.table([line({"layers": str(n), "width": str(depths[n])}, rows) for (n,), rows in layers.items()])
    figure, axes = plots.panels(3)
    for axis, table, label in zip(axes, (heads, groups, layers), ("heads", "key/value heads", "layers")):
        plots.lines(axis, {"loss": {key[0]: values(rows, "loss") for key, rows in table.items()}}, label,
                    "validation loss, nats a character")
    page.picture(figure, "heads", "Loss against heads, key/value heads and layers.")
    pairs = pairs_loss((lab.folder / lab.text()).read_text())
    predicted = loss(heads[min(heads)]) > loss(heads[best_heads,]) + spread
    page.section("Conclusion", (
        f"After {tokens // (16 * context)} updates these models are between "
        f"{pairs - max(map(loss, layers.values())):.2f} and {pairs - min(map(loss, layers.values())):.2f} nats "
        f"better than counting pairs of characters, which has {pairs:.3f}. So the tables say what is learned first, "
        "not what is best in the end."), (
        f"The best number of heads is {best_heads}, the worst {worst_heads}: {loss(heads[best_heads,]):.3f} against "
        f"{loss(heads[worst_heads,]):.3f}, where seeds alone differ by up to {spread:.3f}. That one head is worse "
        f"than several {'holds' if predicted else 'does not hold here'}; that very narrow heads are worse "
        f"{'holds' if worst_heads == max(heads)[0] else 'does not hold'}. Of the depths {best_depth} "
        f"{'layer is' if best_depth == 1 else 'layers are'} best, with {loss(layers[best_depth,]):.3f}; the worst "
        f"has {max(loss(rows) for rows in layers.values()):.3f}: "
        f"{'few wide layers learn sooner' if best_depth == min(layers)[0] else 'depth helps'}."), (
        f"Sharing keys and values saves what the arithmetic says: {fewest[0]} of {most[0]} key/value heads "
        f"{'has' if fewest[0] == 1 else 'have'} {100 * cache[fewest[0]] / cache[most[0]]:.1f} % of the cache, and 4 "
        f"of 12 would have 33.3 %: the texts' 67 % hold, for any model. The loss goes from {loss(groups[most]):.3f} "
        f"to {loss(groups[fewest]):.3f}, with {groups[most][0]['parameters'] - groups[fewest][0]['parameters']:,} "
        f"parameters fewer, and the time to write a token from {median(values(groups[most], 'decode')):.0f} to "
        f"{median(values(groups[fewest], 'decode')):.0f} us at a context of {context}."))
    return page
