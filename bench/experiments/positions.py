"""Position encodings: trained at one length, read at longer ones."""

import json
import pathlib
import re
from statistics import median

from benchmarks.programs import with_range

from . import plots
from .laboratory import SEEDS, Laboratory, Page, Row

SHAPE = "--layers 4 --embed-dim 128 --heads 4 --bias false"
KINDS = {
    "none": "--positions none",
    "learned": "--positions learned",
    "sinusoidal": "--positions sinusoidal",
    "relative, buckets of T5": "--positions relative",
    "ALiBi": "--positions alibi",
    "RoPE": "--positions rope",
}
# Fields of config.json that a trained model of rotary positions is read with; {factor} is length / context.
SCALINGS = {
    "RoPE, linear": {"rope_scaling": "linear", "rope_factor": "{factor}"},
    "RoPE, dynamic NTK": {"rope_scaling": "dynamic", "rope_factor": "{factor}"},
    "RoPE, YaRN": {"rope_scaling": "yarn", "rope_factor": "{factor}"},
}
READ_TOKENS = 65_536  # of the last tenth of the text, the same for all lengths


def run(lab: Laboratory) -> Page:
    context, count = (16, 4) if lab.quick else (256, 300)
    lengths = [context * factor for factor in ((1, 2) if lab.quick else (1, 2, 4, 8, 16))]
    seeds = SEEDS[:1] if lab.quick else SEEDS
    characters = (lab.folder / lab.text()).read_text()
    begin = int(0.9 * len(characters))  # attn train validates on what follows
    (lab.folder / "later.txt").write_text(characters[begin:begin + (300 if lab.quick else READ_TOKENS + 1)])

    def read(length: int) -> float:
        printed = lab.attn(f"eval model later.txt --context {length}").stdout
        return float(re.search(r"loss ([0-9.]+)", printed)[1])

    def trained(kind: str) -> list[Row]:
        rows = []
        for seed in seeds:
            lab.attn(f"train {lab.text()} --out model --overwrite --context {context} --batch {8 if lab.quick else 16} "
                     f"--steps {count} --eval-every 0 --learning-rate 0.003 --seed {seed} {SHAPE} {KINDS[kind]}")
            for length in lengths[:1] if kind == "learned" else lengths:
                rows.append({"kind": kind, "length": length, "seed": seed, "loss": read(length)})
            for name, fields in SCALINGS.items() if kind == "RoPE" else ():
                for length in lengths[1:]:
                    with changed(lab.folder / "model/config.json", fields, context, length):
                        rows.append({"kind": name, "length": length, "seed": seed, "loss": read(length)})
        return rows

    return page(lab, context, count, lengths,
                lab.measured([(kind, lambda kind=kind: trained(kind)) for kind in KINDS]))


class changed:
    """While it lasts, a config.json has these fields too."""

    def __init__(self, path: pathlib.Path, fields: dict[str, str], context: int, length: int) -> None:
        self.path, self.before = path, path.read_text()
        filled = {name: length / context if value == "{factor}" else value for name, value in fields.items()}
        self.after = json.dumps(json.loads(self.before) | filled | {"rope_context": context})

    def __enter__(self) -> None:
        self.path.write_text(self.after)

    def __exit__(self, *_: object) -> None:
        self.path.write_text(self.before)


def page(lab: Laboratory, context, count, lengths, rows) -> Page:
    def losses(kind: str, length: int) -> list[float]:
        # A scaling by 1 changes nothing.
        own = "RoPE" if kind in SCALINGS and length == context else kind
        return [row["loss"] for row in rows if row["kind"] == own and row["length"] == length]

    def loss(kind: str, length: int) -> float:
        return median(losses(kind, length))

    kinds = [*KINDS, *SCALINGS]
    extended = [kind for kind in kinds if kind != "learned"]
    longest = lengths[-1]
    page = Page(lab, "Position encodings, read beyond their training", (
        "Attention alone does not know the order of tokens: something has to say where each of them is. This page "
        f"trains one small model with each [position encoding](../models.md) on texts of {context} tokens, and then "
        f"reads texts of up to {longest:,} tokens with it: does it use what is further away than anything in its "
        "training, ignore it, or break?"))
    page.section("Question", (
        "Which position encodings learn best at the length of the training, and which of them can be read at "
        "longer lengths, with and without a scaling of rotary angles?"))
    page.section("Prediction, written before the run", (
        "At the length of the training the encodings will be close, RoPE, ALiBi and relative buckets first, since "
        "they give each head the distance; a causal model without any encoding finds positions by itself and comes "
        "last or next to last. Beyond the training ALiBi and relative buckets keep their loss, as far tokens only "
        "fade; sinusoidal positions and plain RoPE get worse with every doubling, since their angles were never "
        "seen; without an encoding the loss rises slowly. Linear scaling costs loss at once, because it moves near "
        "tokens together; dynamic NTK and YaRN keep most of it for a factor of 2 to 4. Learned positions cannot be "
        "read further at all."))
    page.section("Method", (
        f"A GPT of 4 layers, width 128 and 4 heads on the characters of Tiny Shakespeare; context {context}, 16 "
        f"sequences an update, {count} updates, AdamW at 0.003 with warm-up and cosine. `attn eval --context` reads "
        f"{READ_TOKENS:,} characters of the last tenth of the text in windows of each length: the loss is a mean "
        "over all characters of a window, so that a longer window that is understood lowers it. The three scalings "
        "are fields of the config.json of the same trained model with RoPE, with a factor of length / context and "
        "no further training, for which YaRN and linear scaling are meant. Seeds 1, 2 and 3; medians, in brackets "
        "the lowest and the highest."))
    page.section("Result", "Loss in nats a character, by the length that is read:")
    page.table([{"positions": kind} |
                {f"{n:,}": with_range(losses(kind, n), ".3f") if losses(kind, n) else "not possible" for n in lengths}
                for kind in kinds])
    figure, (left, right) = plots.panels(2, 4)
    for axis, own in ((left, KINDS), (right, ["RoPE", *SCALINGS, "ALiBi"])):
        plots.lines(axis, {kind: {n: losses(kind, n) for n in lengths if losses(kind, n)} for kind in own},
                    "tokens that are read at once", "nats a character")
    page.picture(figure, "positions", "Loss against the length that is read.")
    ranking = sorted(KINDS, key=lambda kind: loss(kind, context))
    best = min(extended, key=lambda kind: loss(kind, longest))
    kept = [kind for kind in extended if loss(kind, longest) <= loss(kind, context) + 0.02]
    worst = max(extended, key=lambda kind: loss(kind, longest))
    page.section("Conclusion", (
        "At the length of the training, from best to worst: "
        f"{', '.join(f'{kind} {loss(kind, context):.3f}' for kind in ranking)}. "
        f"At {longest:,} tokens, {longest // context} times the training, "
        f"{' and '.join(kept) if kept else 'none'} {'keep' if len(kept) != 1 else 'keeps'} the loss of the training "
        f"to 0.02 nats; the best is {best} with {loss(best, longest):.3f}, the worst {worst} with "
        f"{loss(worst, longest):.3f}. Of the two that were expected to keep it, "
        + " and ".join(f"{kind} changes by {loss(kind, longest) - loss(kind, context):+.3f}"
                       for kind in ("ALiBi", "relative, buckets of T5")) + "."), (
        "RoPE read at twice its training has "
        f"{loss('RoPE', lengths[1]):.3f} as it is, "
        + ", ".join(f"{loss(kind, lengths[1]):.3f} with {kind.removeprefix('RoPE, ')}" for kind in SCALINGS)
        + f"; at {longest:,} tokens {loss('RoPE', longest):.3f}, "
        + ", ".join(f"{loss(kind, longest):.3f} with {kind.removeprefix('RoPE, ')}" for kind in SCALINGS) + "."))
    return page
