"""Loss and time against the context: one small model is trained with contexts of 128 to 4096 tokens, at equal numbers
of tokens, with full attention and with a window."""

import math
from statistics import median

from benchmarks.programs import with_range

from . import plots
from .laboratory import SEEDS, Laboratory, Page, Row, grouped

SHAPE = "--layers 3 --embed-dim 128 --heads 4 --positions rope --bias false"


def run(lab: Laboratory) -> Page:
    contexts = [16, 32, 64] if lab.quick else [128, 256, 512, 1024, 2048, 4096]
    window = 16 if lab.quick else 256
    tokens = 2000 if lab.quick else 400_000
    mixers = ["full", f"window:{window}"]

    def train(mixer: str, context: int) -> list[Row]:
        return lab.sweep(f"{lab.text()} --over tokens={context} --mixer-list {mixer} --batch-tokens {contexts[-1]} "
                         f"--train-tokens {tokens} --seeds {len(SEEDS)} --learning-rate 0.003 {SHAPE}")

    rows = lab.measured([(f"{mixer}, context {context}", lambda mixer=mixer, context=context: train(mixer, context))
                         for mixer in mixers for context in contexts])
    return page(lab, mixers, contexts, window, tokens, grouped(rows, "mixer", "tokens"))


def exponent(points: dict[int, float]) -> float:
    """Of the last two contexts: the exponent that the law approaches."""
    (x0, y0), (x1, y1) = sorted(points.items())[-2:]
    return math.log(y1 / y0) / math.log(x1 / x0)


def page(lab: Laboratory, mixers, contexts, window, tokens, groups) -> Page:
    def values(mixer: str, context: int, name: str) -> list[float]:
        return [row[name] for row in groups[mixer, context]]

    time = {mixer: {n: median(values(mixer, n, "time")) for n in contexts} for mixer in mixers}
    loss = {mixer: {n: median(values(mixer, n, "loss")) for n in contexts} for mixer in mixers}
    full, first, last = mixers[0], contexts[0], contexts[-1]
    parameters = groups[full, first][0]["parameters"]
    best = min(contexts, key=lambda n: loss[full][n])
    page = Page(lab, "Loss and time against the context", (
        "A language model predicts each token from those before it, as many as its context allows. A longer context "
        f"gives it more to go by and costs more time. This page trains one small model with contexts of {first} to "
        f"{last} characters and reports both. The [operator](../operators/attention.md) computes full attention and "
        "windows by one path."))
    page.section("Question", (
        "How much does the loss fall, and how much does the time a token grow, as the context doubles?"))
    page.add("Texts that teach attention give, for GPT-2 small: perplexity 31.2, 29.4, 28.1, 27.3 at contexts of "
             "512, 1024, 2048, 4096, and 1.0, 1.9, 3.7, 7.2 times the time, \"O(n^2) due to attention\".")
    page.section("Prediction, written before the run", (
        "Time a token is a + b n: the matrices cost the same at every context, scores and weighted sums grow with "
        "n. So the time a token will hardly grow at first and double with each doubling only where attention "
        "dominates. The texts' factors (1.9, 3.7, 7.2) would need attention to take nearly all of the time at 512 "
        "already, or they are times of a sequence and not of a token. At equal numbers of tokens the loss will fall "
        "with the context as long as the model is trained enough to use it; with so few updates a long context, "
        f"which gives fewer sequences a batch, may even lose. A window of {window} keeps the time a token constant "
        f"from n = {window} on, and costs little loss."))
    page.section("Method", (
        f"`attn sweep`: a GPT of 3 layers, width 128 and 4 heads with rotary positions ({parameters:,} parameters), "
        f"on the characters of Tiny Shakespeare. Each model sees {tokens:,} tokens in updates of {last:,}: "
        f"{last // first} sequences of {first}, or one of {last:,}. AdamW, learning rate 0.003 with warm-up and "
        "cosine. The loss is that of the last tenth of the text, cut into sequences of the same context, over all "
        "their tokens. Seeds 1, 2 and 3; in brackets the lowest and the highest. Time is the median of the updates."))
    page.section("Result")
    page.table([{"context": f"{n}", "mixer": mixer, "loss": with_range(values(mixer, n, "loss"), ".3f"),
                 "perplexity": f"{math.exp(loss[mixer][n]):.2f}", "us a token": f"{time[mixer][n]:.1f}",
                 "times the first": f"{time[mixer][n] / time[mixer][first]:.2f}",
                 "peak MB": f"{median(values(mixer, n, 'memory')):.0f}"} for mixer in mixers for n in contexts])
    figure, (left, right) = plots.panels(2)
    plots.lines(left, {mixer: {n: values(mixer, n, "loss") for n in contexts} for mixer in mixers}, "context",
                "validation loss, nats a character")
    plots.lines(right, {mixer: {n: values(mixer, n, "time") for n in contexts} for mixer in mixers}, "context",
                "us a token of one update", log_y=True)
    page.picture(figure, "context", "Left: loss against the context. Right: time a token against the context.")
    # Least squares of relative errors: time a token = constant + slope n.
    weights = [(1 / time[full][n] ** 2, n, time[full][n]) for n in contexts]
    total, along = sum(w for w, _, _ in weights), sum(w * n for w, n, _ in weights)
    slope = ((total * sum(w * n * t for w, n, t in weights) - along * sum(w * t for w, _, t in weights)) /
             (total * sum(w * n * n for w, n, _ in weights) - along ** 2))
    constant = (sum(w * t for w, _, t in weights) - slope * along) / total
    worst = max(abs((constant + slope * n) / time[full][n] - 1) for n in contexts)
    page.section("Conclusion", (
        f"From {first} to {last} the time a token grows {time[full][last] / time[full][first]:.1f} times with full "
        f"attention and {time[mixers[1]][last] / time[mixers[1]][first]:.1f} times with the window, where the "
        f"context itself grows {last // first} times. Between the last two contexts the exponent of full attention "
        f"is {exponent(time[full]):.2f}: on its way from 0 to 1, the exponent of a token (a sequence has one more). "
        f"A line fits all contexts within {100 * worst:.0f} %: {constant:.1f} us, and {1000 * slope:.1f} us more for "
        "each 1000 tokens of context. The factors of the texts are those of a sequence, or of attention alone."), (
        f"The best context at {tokens:,} tokens is {best}, with a loss of {loss[full][best]:.3f}; at {last} it is "
        f"{loss[full][last]:.3f}. At an equal number of tokens a longer context "
        f"{'keeps helping' if best == last else 'stops helping'} here: {last // first} times fewer sequences a "
        f"batch, and only {tokens // last} updates. The window of {window} has a loss of {loss[mixers[1]][last]:.3f} "
        f"at {last}. The perplexities of the texts are of a model trained to the end on other data, and cannot be "
        "compared with these."))
    return page
