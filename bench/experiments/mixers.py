"""Mixers at 4,096 tokens: loss at equal tokens and at equal time, and recall of a repeated text."""

from statistics import median

from benchmarks.programs import with_range

from . import plots
from .laboratory import SEEDS, Laboratory, Page, Row
from .recall import Recall, saved

SHAPE = "--layers 2 --embed-dim 128 --heads 2 --positions rope --bias false --learning-rate 0.003"
MIXERS = {
    "dense attention": "--mixer full",
    "window": "--mixer window:{window}",
    "window + dense": "--mixer window:{window} --mixer-every 2:full",
    "selected blocks (MoBA)": "--mixer moba:{block}",
    "linear (elu)": "--mixer elu",
    "Performer": "--mixer performer",
    "gated delta net": "--mixer gated_delta",
    "gated delta net + dense": "--mixer gated_delta --mixer-every 2:full",
}
DENSE = next(iter(MIXERS))
PASSAGE, READ, UPDATES = 512, 2048, 300  # characters of a passage that is repeated, and of a sequence of them; updates


def run(lab: Laboratory) -> Page:
    length, tokens = (64, 1280) if lab.quick else (4096, 393_216)
    recall = Recall(lab, 16, 64, 2, 2) if lab.quick else Recall(lab, PASSAGE, READ, 2, UPDATES)
    sizes = {"window": 8, "block": 8} if lab.quick else {"window": 256, "block": 64}
    seeds = SEEDS[:1] if lab.quick else SEEDS

    def model(mixer: str) -> str:
        return f"{SHAPE} {MIXERS[mixer].format(**sizes)}"

    def language(table: str, mixer: str, count: int, repeats: int) -> list[Row]:
        rows = lab.sweep(f"{lab.text()} --over tokens={length} --batch-tokens {length} --train-tokens {count} "
                         f"--seeds {repeats} {model(mixer)}")
        return [row | {"table": table, "mixer": mixer, "seen": count} for row in rows]

    rows = lab.measured([(f"{mixer}, equal tokens",
                          lambda mixer=mixer: language("equal tokens", mixer, tokens, len(seeds))) for mixer in MIXERS])
    time = {mixer: median(row["time"] for row in rows if row["mixer"] == mixer) for mixer in MIXERS}
    seen = {mixer: int(tokens * time[DENSE] / time[mixer]) // length * length for mixer in MIXERS if mixer != DENSE}
    rows += lab.measured([(f"{mixer}, equal time",
                           lambda mixer=mixer: language("equal time", mixer, max(length, seen[mixer]), 1))
                          for mixer in seen])
    rows += lab.measured([(f"{mixer}, recall",
                           lambda mixer=mixer: [{"table": "recall", "mixer": mixer} | recall.measure(model(mixer))])
                          for mixer in MIXERS])
    return page(lab, length, tokens, recall, sizes, rows)


def page(lab: Laboratory, length, tokens, recall, sizes, rows) -> Page:
    def of(table: str, mixer: str) -> list[Row]:
        return [row for row in rows if row["table"] == table and row["mixer"] == mixer]

    def losses(table: str, mixer: str) -> list[float]:
        return [row["loss"] for row in of(table, mixer)]

    def in_time(mixer: str) -> list[float]:
        return losses("equal tokens", mixer)[:1] if mixer == DENSE else losses("equal time", mixer)

    def time(mixer: str) -> float:
        return median(row["time"] for row in of("equal tokens", mixer))

    def against_dense(mixer: str) -> str:
        nats = median(losses("equal tokens", mixer)) - median(losses("equal tokens", DENSE))
        return (f"{mixer} ends {abs(nats):.3f} nats {'above' if nats > 0 else 'below'} it and saves "
                f"{saved(copies[mixer])}")

    copies = {mixer: of("recall", mixer)[0] for mixer in MIXERS}
    page = Page(lab, f"Mixers at {length:,} tokens", (
        "In dense attention every token looks at all earlier ones, so that its work grows with the square of the "
        "length. Windows, selected blocks and linear attention do less. This page trains the same small model with "
        "each of these [mixers](../models.md#mixers), and asks what they cost in loss at equal tokens and at equal "
        "time, and whether they can still repeat what is far back in the text."))
    page.section("Question", (
        f"Which mixer has the lowest loss at {length:,} tokens for the same tokens and for the same time, and which "
        f"of them recall a text of {recall.passage} characters?"))
    page.add("Texts on efficient attention say that sparse, low-rank and linear attention approximate dense attention "
             "at a linear cost, and that hybrids with a few dense layers keep its quality.")
    page.section("Prediction, written before the run", (
        "Next characters depend on the last few words: on equal tokens dense attention, the window and MoBA will be "
        "within 0.05 nats of each other. The gated delta net will be ahead, because its short convolution sees the "
        "last letters from the first update on. Linear attention with elu and Performer will lose to dense attention, "
        "as their weights are nearly uniform. In equal time dense attention will be last of all but those two. Recall "
        "will turn this around: only models with a dense or a selecting layer find the letter that followed; the "
        f"window of {sizes['window']} does not reach back, and a state of fixed size holds no passage. The hybrids "
        "will be best in both. (Two trial trainings on repeated text at other sizes, of dense attention and of the "
        "gated delta net, came before this prediction; dense attention was ahead.)"))
    page.section("Method", (
        "A GPT of 2 layers, width 128 and 2 heads with rotary positions on the characters of Tiny Shakespeare, one "
        f"sequence of {length:,} an update, {tokens:,} tokens, AdamW at 0.003 with warm-up and cosine; loss on the "
        f"last tenth; seeds 1, 2 and 3. The window has {sizes['window']} tokens, MoBA the best blocks of "
        f"{sizes['block']}; \"window + dense\" has one layer of each, and so has \"gated delta net + dense\". For "
        "equal time, each mixer sees as many tokens as the time of dense attention allows it (seed 1). Mixers are "
        "taken as they are published: the gated delta net has its convolution and gates. Transformer-XL is a "
        "[layer](../low-rank-and-memory.md) and not a mixer of `attn`, and is not here."), (
        f"Recall: random passages of {recall.passage} characters, each followed by itself, in sequences of "
        f"{recall.read:,}, {recall.updates} updates (seed 1). All passages to read are from the last tenth of the "
        "text. The loss on passages without copies is that of the first copy; the second copy has what remains of the "
        "loss on both."))
    page.section("Result", "Language modelling:")
    page.table([{"mixer": mixer, "parameters": f"{of('equal tokens', mixer)[0]['parameters']:,}",
                 "us a token": f"{time(mixer):.0f}",
                 "loss, equal tokens": with_range(losses("equal tokens", mixer), ".3f"),
                 "tokens in equal time": f"{(of('equal time', mixer) or of('equal tokens', mixer))[0]['seen']:,}",
                 "loss, equal time": f"{in_time(mixer)[0]:.3f}"} for mixer in MIXERS])
    page.add("Recall, nats a character:")
    page.table([{"mixer": mixer, "first copy": f"{row['first']:.3f}", "second copy": f"{row['second']:.3f}",
                 "saved": saved(row)} for mixer, row in copies.items()])
    figure, (left, right) = plots.panels(2, 4)
    for axis, x, label in ((left, time, "us a token"),
                           (right, lambda mixer: copies[mixer]["second"], "nats a character of a second copy")):
        plots.lines(axis, {mixer: {x(mixer): losses("equal tokens", mixer)} for mixer in MIXERS}, label,
                    "loss, equal tokens", log_x=False)
    page.picture(figure, "mixers", "Loss against the time of a token, and against the loss of a second copy.")

    def ranking(value) -> str:
        return ", ".join(f"{mixer} {value(mixer):.3f}" for mixer in sorted(MIXERS, key=value))

    fastest = min(MIXERS, key=time)
    page.section("Conclusion", (
        f"Equal tokens, from best to worst: {ranking(lambda mixer: median(losses('equal tokens', mixer)))}. Equal "
        f"time: {ranking(lambda mixer: in_time(mixer)[0])}. At {length:,} tokens a token of dense attention takes "
        f"{time(DENSE) / time(fastest):.1f} times as long as one of {fastest}."), (
        "A second copy, from best to worst: " + ranking(lambda mixer: copies[mixer]["second"]) + "."), (
        "Each mixer against dense attention, which saves "
        f"{saved(copies[DENSE])} of the loss on a second copy, at equal tokens: "
        + "; ".join(against_dense(mixer) for mixer in MIXERS if mixer != DENSE) + "."))
    return page
