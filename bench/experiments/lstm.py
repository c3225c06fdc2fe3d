"""LSTM against attention: language modelling at equal parameters, at equal tokens and at equal time, and copying a text
over a distance."""

import math
import random
from statistics import median

from benchmarks.programs import with_range

from . import plots
from .laboratory import SEEDS, Laboratory, Page, Row, last_loss

CONTEXT, BATCH = 128, 16
BASE = "--bias false --learning-rate 0.003"
# Nearly equal numbers of parameters: 12 C^2 a layer of attention, 8 C^2 an LSTM.
KINDS = {
    "attention, 4 layers of 128": "--layers 4 --embed-dim 128 --heads 4 --positions rope",
    "LSTM, 6 layers of 128": "--layers 6 --embed-dim 128 --mixer lstm --feed-forward false --positions none",
    "LSTM, 2 layers of 224": "--layers 2 --embed-dim 224 --mixer lstm --feed-forward false --positions none",
}
LETTERS = 8  # of a word to copy


def copying_text(distance: int, lines: int, seed: int) -> str:
    """Lines of a random word, so many dots, and the same word."""
    draw = random.Random(seed)
    words = ("".join(draw.choices("abcdefghijklmnopqrstuvwxyz", k=LETTERS)) for _ in range(lines))
    return "".join(f"{word}{'.' * distance}>{word}\n" for word in words)


def run(lab: Laboratory) -> Page:
    context = 32 if lab.quick else CONTEXT
    tokens = 2000 if lab.quick else 400_000
    distances = [4, 8] if lab.quick else [8, 64]
    seeds = SEEDS[:1] if lab.quick else SEEDS
    attention = next(iter(KINDS))

    def language(table: str, kind: str, count: int) -> list[Row]:
        rows = lab.sweep(f"{lab.text()} --over tokens={context} --batch-tokens {BATCH * context} --train-tokens "
                         f"{count} --seeds {len(seeds)} {BASE} {KINDS[kind]}")
        return [row | {"table": table, "kind": kind, "seen": count} for row in rows]

    def copying(kind: str, distance: int) -> list[Row]:
        line = 2 * LETTERS + distance + 2
        (lab.folder / "copying.txt").write_text(copying_text(distance, 200 if lab.quick else 20_000, 1))
        found = []
        for seed in seeds:
            lab.attn(f"train copying.txt --out copying --overwrite --context {2 * line} --batch {2048 // (2 * line)} "
                     f"--steps {3 if lab.quick else 250} --eval-every 0 --seed {seed} {BASE} {KINDS[kind]}")
            loss = last_loss(lab.log("copying"))
            found.append({"table": "copying", "kind": kind, "distance": distance, "seed": seed,
                          "nats": (loss * line - LETTERS * math.log(26)) / LETTERS})
        return found

    rows = lab.measured([(f"{kind}, equal tokens", lambda kind=kind: language("equal tokens", kind, tokens))
                         for kind in KINDS])
    time = {kind: median(row["time"] for row in rows if row["kind"] == kind) for kind in KINDS}
    seen = {kind: int(tokens * time[attention] / time[kind]) for kind in KINDS if kind != attention}
    rows += lab.measured([(f"{kind}, equal time", lambda kind=kind: language("equal time", kind, seen[kind]))
                          for kind in seen])
    rows += lab.measured([(f"{kind}, copying over {distance}",
                           lambda kind=kind, distance=distance: copying(kind, distance))
                          for kind in list(KINDS)[:2] for distance in distances])
    return page(lab, context, tokens, distances, rows)


def page(lab: Laboratory, context, tokens, distances, rows) -> Page:
    def of(table: str, kind: str, **where: object) -> list[Row]:
        return [row for row in rows if row["table"] == table and row["kind"] == kind and
                all(row[name] == value for name, value in where.items())]

    def losses(table: str, kind: str) -> list[float]:
        return [row["loss"] for row in of(table, kind)]

    def nats(kind: str, distance: int) -> list[float]:
        return [row["nats"] for row in of("copying", kind, distance=distance)]

    attention, *recurrent = KINDS
    best = min(recurrent, key=lambda kind: median(losses("equal tokens", kind)))
    gap = median(losses("equal tokens", best)) - median(losses("equal tokens", attention))
    time = {kind: median(row["time"] for row in of("equal tokens", kind)) for kind in KINDS}
    page = Page(lab, "LSTM against attention", (
        "Before attention, language models were LSTMs: a state of fixed size goes from token to token. Attention "
        "instead looks at all earlier tokens. This page trains both by the same program, at equal numbers of "
        "parameters, and asks both to copy a word over a distance. The LSTM is a [mixer](../models.md): `--mixer "
        "lstm`."))
    page.section("Question", (
        "Is attention better than an LSTM of the same size, on the same tokens and in the same time, and over which "
        "distances can each of them copy?"))
    page.add("Texts that teach attention give perplexities of 35.8 for an LSTM and 29.4 for GPT-2, both of 124 million "
             "parameters: \"20 % better than LSTMs\".")
    page.section("Prediction, written before the run", (
        "At so small a size and context the two will be near each other on equal tokens, since most of what helps "
        "to predict a character is within the last few; the texts' 20 % in perplexity, 0.2 nats, are of words and "
        "of long contexts. In equal time the LSTM will lose: its steps run one after the other, each a product with "
        "as many rows as there are sequences, which uses the machine poorly. Copying is where attention wins at "
        "every distance, as it looks the letters up; the LSTM must carry eight letters in its state through the "
        "dots, and will fail at the longest distance."))
    page.section("Method", (
        f"`attn sweep` on the characters of Tiny Shakespeare, context {context}, {tokens:,} tokens in updates of "
        f"{BATCH * context:,}, AdamW at 0.003 with warm-up and cosine; loss on the last tenth. Pre-norm residual "
        "blocks in all models; those of the LSTM have no feed-forward and no positions. For equal time, the LSTMs "
        "see as many tokens as attention's time allows them. Copying: lines of eight random letters, dots, a sign, "
        "and the same eight letters; the loss on other lines of this kind, less the ln 26 of each letter that "
        f"cannot be predicted, is given for each letter of the copy: 0 is perfect, {math.log(26):.2f} is guessing. "
        "Seeds 1, 2 and 3; medians, the lowest and the highest."))
    page.section("Result", "Language modelling:")
    page.table([{"model": kind, "parameters": f"{row['parameters']:,}", "compared at": table,
                 "tokens": f"{row['seen']:,}", "loss": with_range(losses(table, kind), ".3f"),
                 "perplexity": f"{math.exp(median(losses(table, kind))):.2f}",
                 "us a token": f"{median(each['time'] for each in of(table, kind)):.1f}"}
                for table in ("equal tokens", "equal time") for kind in KINDS for row in of(table, kind)[:1]])
    page.add("Copying, nats a letter of the copy:")
    page.table([{"model": kind} | {f"{n} dots": with_range(nats(kind, n), ".3f") for n in distances}
                for kind in list(KINDS)[:2]])
    figure, (axis,) = plots.panels(1)
    plots.lines(axis, {kind: {n: nats(kind, n) for n in distances} for kind in list(KINDS)[:2]},
                "dots between the words", "nats a letter of the copy")
    page.picture(figure, "lstm", "Nats a letter of the copy against the distance.")
    perplexities = [math.exp(median(losses("equal tokens", kind))) for kind in (best, attention)]
    in_time = [f"{median(losses('equal time', kind)):.3f}" for kind in recurrent]
    guess, (near, far) = math.log(26), (distances[0], distances[-1])
    copied = [kind for kind in list(KINDS)[:2] if median(nats(kind, near)) < guess / 2]
    page.section("Conclusion", (
        f"On equal tokens the better LSTM ({best}) ends {abs(gap):.3f} nats {'above' if gap > 0 else 'below'} "
        f"attention: perplexity {perplexities[0]:.2f} against {perplexities[1]:.2f}. The texts' \"20 % better than "
        f"LSTMs\" {'holds in its sign' if gap > 0 else 'does not hold'} for models this small, so early in their "
        "training. An update of the LSTMs takes "
        f"{' and '.join(f'{time[kind] / time[attention]:.2f}' for kind in recurrent)} times as long as one of "
        f"attention; in equal time they end at {' and '.join(in_time)}, attention at "
        f"{median(losses('equal tokens', attention)):.3f}."), (
        f"Copying: {' and '.join(copied) if copied else 'neither of them'} learned to copy over {near} dots in 250 "
        f"updates. Attention has {median(nats(attention, near)):.3f} nats a letter over {near} dots and "
        f"{median(nats(attention, far)):.3f} over {far}, the LSTM {median(nats(recurrent[0], near)):.3f} and "
        f"{median(nats(recurrent[0], far)):.3f}, where guessing has {guess:.3f}. "
        f"{'' if copied else 'This run says nothing about the distance: a longer training would have to.'}"))
    return page
