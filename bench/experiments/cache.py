"""What a KV cache saves: tokens are written with a cache and without one, for texts of growing length, and one cached
step is timed after ever more tokens."""

import json
import re
from statistics import median

from benchmarks.programs import with_range

from . import plots
from .laboratory import Laboratory, Page, Row

LAYERS, WIDTH = 4, 256
MODEL = f"--model llama --tokens bytes --layers {LAYERS} --embed-dim {WIDTH} --heads 4"


def matrices() -> int:
    """Numbers in the matrices that a token passes: four of attention, three of the feed-forward, the head."""
    hidden = (WIDTH * 8 // 3 + 31) // 32 * 32
    return LAYERS * (4 * WIDTH * WIDTH + 3 * WIDTH * hidden) + 256 * WIDTH


def step_products(keys: int) -> float:
    """Multiply-adds of one token after keys - 1 others: matrices, scores and the weighted sum."""
    return matrices() + 2 * LAYERS * WIDTH * keys


def computed(length: int) -> float:
    """How many times more multiply-adds a text of this length takes without a cache."""
    cached = sum(step_products(n) for n in range(1, length + 1))
    whole = sum(sum(step_products(k) for k in range(1, n + 1)) for n in range(1, length + 1))
    return whole / cached


def run(lab: Laboratory) -> Page:
    lengths = [32, 64] if lab.quick else [64, 128, 256, 512, 1024]
    depths = [0, 64] if lab.quick else [0, 512, 1024, 2048, 4096, 8192, 16384]
    repeats = 1 if lab.quick else 3

    def model() -> str:
        if not (lab.folder / "model").exists():
            lab.attn(f"train {lab.text()} --out model --steps 1 --batch 1 --context 64 --quiet {MODEL}")
        return "model"

    def write(length: int) -> list[Row]:
        rows = []
        for cached in (True, False):
            for _ in range(repeats):
                said = lab.attn(f"generate {model()} --prompt A --max-new-tokens {length} --context {length + 1} "
                                f"--stats {'' if cached else '--no-cache'}").stderr
                rate = float(re.search(r"then \d+ tokens, ([\d.,]+) tokens/s", said)[1].replace(",", ""))
                rows.append({"table": "text", "length": length, "cached": cached, "seconds": length / rate})
        return rows

    def deep() -> list[Row]:
        printed = lab.attn(f"bench {model()} -p 0 -n {16 if lab.quick else 64} -d {','.join(map(str, depths))} -r "
                           f"{repeats} -o json").stdout
        return [{"table": "step", "depth": depth, "samples": [1e6 / rate for rate in test["samples_ts"]]}
                for depth, test in zip(depths, json.loads(printed), strict=True)]

    steps = [(f"{length} tokens", lambda length=length: write(length)) for length in lengths]
    rows = lab.measured([*steps, ("one step after more and more tokens", deep)])
    texts = [row for row in rows if row["table"] == "text"]
    times = {(n, cached): [row["seconds"] for row in texts if (row["length"], row["cached"]) == (n, cached)]
             for n in lengths for cached in (True, False)}
    ratio = {n: median(times[n, False]) / median(times[n, True]) for n in lengths}
    after = {row["depth"]: row["samples"] for row in rows if row["table"] == "step"}
    return page(lab, lengths, times, ratio, after)


def page(lab: Laboratory, lengths, times, ratio, after) -> Page:
    longest, deepest = max(lengths), max(after)
    first, last = median(after[0]), median(after[deepest])
    cache_bytes = 2 * 4 * LAYERS * WIDTH  # of a token
    page = Page(lab, "What a KV cache saves", (
        "A model that writes a text needs, for each new token, the keys and values of all tokens before it. It can "
        "compute them again each time, or keep them: that is the KV cache. This page measures what keeping them saves, "
        "and what a step still costs that has them. [Generation](../models.md) uses the cache unless `--no-cache` is "
        "given."))
    page.section("Question", (
        "By what factor is writing N tokens faster with a KV cache, and does a cached step take the same time after "
        "any number of tokens?"))
    page.add("Texts that teach attention say: \"500x for N = 1000\", and that a cached step is \"O(1)\".")
    page.section("Prediction, written before the run", (
        "Without a cache step n multiplies n tokens with all matrices, with a cache one. The work of N tokens so "
        f"falls by a factor of about N / 2: {computed(longest):.0f} times for N = {longest}. The time will fall by "
        "much less. One token alone reads every matrix for a single multiply-add a number, at the speed of the "
        "cache or of the memory; many tokens at once use the multiply-add units fully. A cached step is not O(1): "
        "it reads the keys and values of all tokens before it, so that its time grows linearly, from a constant "
        "that is the matrices."))
    page.section("Method", (
        f"A LLaMA-like model of {LAYERS} layers and width {WIDTH} ({matrices() / 1e6:.1f} million numbers in its "
        "matrices), tokens are bytes, float32, weights as they were at initialisation: what the text says does not "
        "change the time. `attn generate --stats` writes N tokens after a prompt of one, with and without "
        "`--no-cache`; the table has medians, with the lowest and the highest run. The two ways write the same "
        "text. `attn bench -d` times single tokens after a text that is cached."))
    page.section("Result")
    page.table([{"N": str(n), "cached, s": with_range(times[n, True], ".3f"),
                 "not cached, s": with_range(times[n, False], ".3f"), "ratio of times": f"{ratio[n]:.1f}",
                 "ratio of multiply-adds": f"{computed(n):.1f}"} for n in lengths])
    page.add("One cached step:")
    page.table([{"tokens before": str(n), "us": with_range(samples, ".0f"),
                 "cache, MB": f"{1e-6 * cache_bytes * n:.1f}",
                 "us beyond the first row": f"{median(samples) - first:.0f}",
                 "GB/s of the cache": f"{1e-3 * cache_bytes * n / max(median(samples) - first, 1e-9):.1f}" if n else ""}
                for n, samples in sorted(after.items())])
    figure, (left, right) = plots.panels(2)
    plots.lines(left, {"multiply-adds": {n: [computed(n)] for n in lengths}, "time": {n: [ratio[n]] for n in lengths}},
                "tokens that are written", "without a cache / with a cache", log_y=True)
    plots.lines(right, {"one step": after}, "tokens before", "microseconds", log_x=False)
    page.picture(figure, "cache", "Left: ratios of work and time against the length of the text. Right: the time of "
                                  "one cached step against the tokens before it.")
    page.section("Conclusion", (
        f"For N = {longest} the cache saves a factor of {ratio[longest]:.0f} in time where it saves "
        f"{computed(longest):.0f} in work: the sentence \"500x for N = 1000\" counts multiply-adds, and "
        f"{'does not hold' if ratio[longest] < computed(longest) / 2 else 'holds'} for time on this processor. "
        f"\"O(1)\" does not hold either: after {deepest} tokens a step takes {last / first:.1f} times as long as the "
        f"first one ({last:.0f} against {first:.0f} us), because it reads {1e-6 * cache_bytes * deepest:.0f} MB of "
        "keys and values. What the cache removes is one power of N: N steps cost O(N^2) with it and O(N^3) in the "
        "scores without."))
    return page
