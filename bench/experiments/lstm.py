"""LSTM against attention: language modelling at equal parameters, at equal tokens and at equal time, and recall of a
repeated text over a distance."""

import math
from statistics import median

from benchmarks.programs import with_range

from . import plots
from .laboratory import SEEDS, Laboratory, Page, Row
from .recall import Recall

CONTEXT, BATCH = 128, 16
BASE = "--bias false --learning-rate 0.003"
# Nearly equal numbers of parameters: 12 C^2 a layer of attention, 8 C^2 an LSTM.
KINDS = {
    "attention, 4 layers of 128": "--layers 4 --embed-dim 128 --heads 4 --positions rope",
    "LSTM, 6 layers of 128": "--layers 6 --embed-dim 128 --mixer lstm --feed-forward false --positions none",
    "LSTM, 2 layers of 224": "--layers 2 --embed-dim 224 --mixer lstm --feed-forward false --positions none",
}
RECALLING = list(KINDS)[:2]
PASSAGES = (16, 128)  # characters
READ, READ_BATCH, UPDATES = 512, 8, 300  # of the trainings on passages


def run(lab: Laboratory) -> Page:
    context = 32 if lab.quick else CONTEXT
    tokens = 2000 if lab.quick else 400_000
    recalls = [Recall(lab, 8, 32, 2, 3)] if lab.quick else [Recall(lab, passage, READ, READ_BATCH, UPDATES)
                                                            for passage in PASSAGES]
    seeds = SEEDS[:1] if lab.quick else SEEDS
    attention = next(iter(KINDS))

    def language(table: str, kind: str, count: int) -> list[Row]:
        rows = lab.sweep(f"{lab.text()} --over tokens={context} --batch-tokens {BATCH * context} --train-tokens "
                         f"{count} --seeds {len(seeds)} {BASE} {KINDS[kind]}")
        return [row | {"table": table, "kind": kind, "seen": count} for row in rows]

    def recalled(kind: str, recall: Recall) -> list[Row]:
        return [{"table": "recall", "kind": kind, "passage": recall.passage, "seed": seed} |
                recall.measure(f"{BASE} {KINDS[kind]}", seed) for seed in seeds]

    rows = lab.measured([(f"{kind}, equal tokens", lambda kind=kind: language("equal tokens", kind, tokens))
                         for kind in KINDS])
    time = {kind: median(row["time"] for row in rows if row["kind"] == kind) for kind in KINDS}
    seen = {kind: int(tokens * time[attention] / time[kind]) for kind in KINDS if kind != attention}
    rows += lab.measured([(f"{kind}, equal time", lambda kind=kind: language("equal time", kind, seen[kind]))
                          for kind in seen])
    rows += lab.measured([(f"{kind}, recall of {recall.passage} characters",
                           lambda kind=kind, recall=recall: recalled(kind, recall))
                          for kind in RECALLING for recall in recalls])
    return page(lab, context, tokens, recalls, rows)


def page(lab: Laboratory, context, tokens, recalls, rows) -> Page:
    def of(table: str, kind: str, **where: object) -> list[Row]:
        return [row for row in rows if row["table"] == table and row["kind"] == kind and
                all(row[name] == value for name, value in where.items())]

    def losses(table: str, kind: str) -> list[float]:
        return [row["loss"] for row in of(table, kind)]

    def once(kind: str, recall: Recall) -> list[float]:
        """The losses on passages without copies."""
        return [row["first"] for row in of("recall", kind, passage=recall.passage)]

    def twice(kind: str, recall: Recall) -> list[float]:
        return [(row["first"] + row["second"]) / 2 for row in of("recall", kind, passage=recall.passage)]

    attention, *recurrent = KINDS
    best = min(recurrent, key=lambda kind: median(losses("equal tokens", kind)))
    gap = median(losses("equal tokens", best)) - median(losses("equal tokens", attention))
    time = {kind: median(row["time"] for row in of("equal tokens", kind)) for kind in KINDS}
    page = Page(lab, "LSTM against attention", (
        "Before attention, language models were LSTMs: a state of fixed size goes from token to token. Attention "
        "instead looks at all earlier tokens. This page trains both by the same program, at equal numbers of "
        "parameters, and asks both to repeat a passage that they have just read. The LSTM is a "
        "[mixer](../models.md): `--mixer lstm`."))
    page.section("Question", (
        "Is attention better than an LSTM of the same size, on the same tokens and in the same time, and passages of "
        "which length can each of them repeat?"))
    page.add("Texts that teach attention give perplexities of 35.8 for an LSTM and 29.4 for GPT-2, both of 124 million "
             "parameters: \"20 % better than LSTMs\".")
    page.section("Prediction, written before the run", (
        "At so small a size and context the two will be near each other on equal tokens, since most of what helps "
        "to predict a character is within the last few; the texts' 20 % in perplexity, 0.2 nats, are of words and "
        "of long contexts. In equal time the LSTM will lose: its steps run one after the other, each a product with "
        "as many rows as there are sequences, which uses the machine poorly. Recall is where attention wins: it finds "
        "the earlier copy by its last letters and looks up the letter that followed, whatever the distance. The LSTM "
        f"must carry the passage in its state: it may save a little of the loss on {recalls[0].passage} characters, "
        f"and nothing on {recalls[-1].passage}. (The prediction on recall was written after an earlier version of this "
        "page, in which neither model learned to copy random letters, and after the page on [mixers](mixers.md).)"))
    page.section("Method", (
        f"`attn sweep` on the characters of Tiny Shakespeare, context {context}, {tokens:,} tokens in updates of "
        f"{BATCH * context:,}, AdamW at 0.003 with warm-up and cosine; loss on the last tenth. Pre-norm residual "
        "blocks in all models; those of the LSTM have no feed-forward and no positions. For equal time, the LSTMs "
        "see as many tokens as attention's time allows them. Seeds 1, 2 and 3; medians, the lowest and the highest."),
        ("Recall: random passages of the text, each followed by itself, in sequences of "
         f"{recalls[0].read} characters, {recalls[0].updates} updates of {recalls[0].read * recalls[0].batch:,}. All "
         "passages to read are from the last tenth of the text, in one file once and in the other twice. A model that "
         "recalls nothing has one loss on both; one that foresees a whole second copy has half of it. No sign says "
         "where a copy begins: the first letters of it cannot be foreseen. And a model that expects a copy is "
         "surprised where none comes, the more often the shorter the passages are."))
    page.section("Result", "Language modelling:")
    page.table([{"model": kind, "parameters": f"{row['parameters']:,}", "compared at": table,
                 "tokens": f"{row['seen']:,}", "loss": with_range(losses(table, kind), ".3f"),
                 "perplexity": f"{math.exp(median(losses(table, kind))):.2f}",
                 "us a token": f"{median(each['time'] for each in of(table, kind)):.1f}"}
                for table in ("equal tokens", "equal time") for kind in KINDS for row in of(table, kind)[:1]])
    page.add("Recall, nats a character:")
    page.table([{"model": kind, "passage": f"{recall.passage} characters",
                 "once": with_range(once(kind, recall), ".3f"), "twice": with_range(twice(kind, recall), ".3f")}
                for kind in RECALLING for recall in recalls])
    figure, (axis,) = plots.panels(1)
    plots.lines(axis, {f"{kind}, {name}": {recall.passage: losses_on(kind, recall) for recall in recalls}
                       for kind in RECALLING for name, losses_on in (("once", once), ("twice", twice))},
                "characters of a passage", "nats a character")
    page.picture(figure, "lstm", "Nats a character of passages that are there once and twice, against their length.")
    perplexities = [math.exp(median(losses("equal tokens", kind))) for kind in (best, attention)]
    in_time = [f"{median(losses('equal time', kind)):.3f}" for kind in recurrent]
    page.section("Conclusion", (
        f"On equal tokens the better LSTM ({best}) ends {abs(gap):.3f} nats {'above' if gap > 0 else 'below'} "
        f"attention: perplexity {perplexities[0]:.2f} against {perplexities[1]:.2f}. The texts' \"20 % better than "
        f"LSTMs\" {'holds in its sign' if gap > 0 else 'does not hold'} for models this small, so early in their "
        "training. An update of the LSTMs takes "
        f"{' and '.join(f'{time[kind] / time[attention]:.2f}' for kind in recurrent)} times as long as one of "
        f"attention; in equal time they end at {' and '.join(in_time)}, attention at "
        f"{median(losses('equal tokens', attention)):.3f}."), (
        "Recall: " + "; ".join(
            f"passages of {recall.passage} characters, each twice, cost attention "
            f"{median(twice(attention, recall)):.3f} nats a character and the LSTM "
            f"{median(twice(recurrent[0], recall)):.3f}; once, "
            f"{median(once(attention, recall)):.3f} and {median(once(recurrent[0], recall)):.3f}"
            for recall in recalls) + "."))
    return page
