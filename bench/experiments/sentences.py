"""Sentiment of sentences: bag of words, a convolution, an LSTM, one head, several heads, and a pretrained encoder's
embeddings with a linear layer."""

import pathlib
import re
from statistics import median

from benchmarks.programs import MINILM, with_range

from . import plots
from .laboratory import SEEDS, Laboratory, Page, Row

WIDTH = 64
SHARED = f"--model encoder --embed-dim {WIDTH} --dropout 0.2 --word-dropout 0.1"
KINDS = {
    "convolution, 2 layers": "--layers 2 --causal true --mixer convolution:5 --positions none",
    "LSTM, 2 layers": "--layers 2 --causal true --mixer lstm --positions none",
    "one head, 1 layer": "--layers 1 --heads 1",
    "4 heads, 1 layer": "--layers 1 --heads 4",
    "4 heads, 2 layers": "--layers 2 --heads 4",
}
BAG, PRETRAINED = "bag of words, linear", "MiniLM embeddings, linear"


def rows_of(path: pathlib.Path) -> tuple[list[str], list[int]]:
    pairs = [line.rsplit("\t", 1) for line in path.read_text().splitlines()]
    return [text for text, _ in pairs], [int(label) for _, label in pairs]


def run(lab: Laboratory) -> Page:
    count = 300 if lab.quick else None
    parts = {name: rows_of(lab.sst2(name)) for name in ("train", "dev", "test")}
    parts = {name: (texts[:count], labels[:count]) for name, (texts, labels) in parts.items()}
    for name, (texts, labels) in parts.items():
        (lab.folder / f"{name}.tsv").write_text("".join(f"{text}\t{label}\n" for text, label in zip(texts, labels)))
    seeds = SEEDS[:1] if lab.quick else SEEDS

    def train(kind: str) -> list[Row]:
        found = []
        for seed in seeds:
            said = lab.attn("train train.tsv --validation dev.tsv --out model --overwrite --packed --batch 32 "
                            f"--epochs {1 if lab.quick else 8} --seed {seed} {SHARED} {KINDS[kind]}").stderr
            parameters = int(re.search(r"([\d,]+) parameters", said)[1].replace(",", ""))
            seconds = sum(row.get("seconds", 0) for row in lab.log("model"))
            shown = lab.attn("eval model test.tsv").stdout
            accuracy = float(re.search(r"([\d.]+) % right", shown)[1]) / 100
            found.append({"kind": kind, "seed": seed, "parameters": parameters, "seconds": seconds,
                          "accuracy": accuracy})
        return found

    def linear(kind: str, features) -> Row:
        """Logistic regression; the strength of its penalty is chosen on the validation sentences."""
        from sklearn.linear_model import LogisticRegression

        best = max((LogisticRegression(C=strength, max_iter=2000).fit(features["train"], parts["train"][1])
                    for strength in (0.01, 0.1, 1, 10, 100, 1000)),
                   key=lambda model: model.score(features["dev"], parts["dev"][1]))
        return {"kind": kind, "seed": 0, "parameters": best.coef_.size + 1, "seconds": None,
                "accuracy": best.score(features["test"], parts["test"][1])}

    def bag() -> list[Row]:
        from sklearn.feature_extraction.text import CountVectorizer

        words = CountVectorizer(binary=True, min_df=2, token_pattern=r"\S+").fit(parts["train"][0])
        return [linear(BAG, {name: words.transform(texts) for name, (texts, _) in parts.items()})]

    def pretrained() -> list[Row]:
        import numpy as np

        features = {}
        for name, (texts, _) in parts.items():
            (lab.folder / "lines.txt").write_text("".join(f"{text}\n" for text in texts))
            lab.attn("embed --out embeddings.npy", MINILM, "lines.txt")
            features[name] = np.load(lab.folder / "embeddings.npy")
        return [linear(PRETRAINED, features)]

    rows = lab.measured([(BAG, bag), *((kind, lambda kind=kind: train(kind)) for kind in KINDS),
                         (PRETRAINED, pretrained)])
    return page(lab, {name: len(labels) for name, (_, labels) in parts.items()}, rows)


def page(lab: Laboratory, sizes, rows) -> Page:
    kinds = list(dict.fromkeys(row["kind"] for row in rows))

    def accuracies(kind: str) -> list[float]:
        return [100 * row["accuracy"] for row in rows if row["kind"] == kind]

    page = Page(lab, "Sentiment of sentences", (
        "Is a sentence about a film good or bad? One can count its words, read it with an LSTM or a convolution, or "
        "let its words attend to each other; or take a model that has read much text before. This page trains each "
        "on the same sentences. Classifiers are described in [classification](../tasks/classification.md)."))
    page.section("Question", (
        "How much does each kind of model get right, from nothing, and what does a pretrained encoder add?"))
    page.add("Texts that teach attention give, for SST-2: LSTM 89.2 %, BERT-base 93.5 %.")
    page.section("Prediction, written before the run", (
        f"With {sizes['train']:,} sentences and no word vectors from elsewhere, all models that begin with random "
        "numbers will be within a few percent of the bag of words, near 80 %: there is too little text to learn "
        "more than which words are good. The LSTM of the texts begins with vectors from billions of words and "
        "67,000 phrases. One head will do as well as four. MiniLM's embeddings, which no label has touched, will "
        "win with a linear layer alone."))
    page.section("Method", (
        f"SST-2, whole sentences: {sizes['train']:,} to train, {sizes['dev']:,} to validate, {sizes['test']:,} to "
        f"test. `attn train` trains encoders of width {WIDTH} on words, 8 epochs in packed batches of 32, dropout "
        "0.2, word dropout 0.1; the checkpoint that is the best on the validation sentences is tested. The mean of "
        "all tokens is classified. The bag of words is logistic regression on which words occur (scikit-learn); "
        "MiniLM is logistic regression on the output of `attn embed` for all-MiniLM-L6-v2. Their penalty is chosen "
        "on the validation sentences. Seeds 1, 2 and 3."))
    page.section("Result")
    page.table([{"model": kind, "accuracy, %": with_range(accuracies(kind), ".1f"),
                 "parameters that are trained": f"{own[0]['parameters']:,}",
                 "seconds of training": f"{median(row['seconds'] for row in own):.0f}" if own[0]["seconds"] else "-"}
                for kind in kinds for own in [[row for row in rows if row["kind"] == kind]]])
    figure, (axis,) = plots.panels(1)
    for place, kind in enumerate(kinds):
        own = accuracies(kind)
        axis.errorbar([median(own)], [place], xerr=[[median(own) - min(own)], [max(own) - median(own)]], fmt="o",
                      capsize=3, color="#0072B2")
    axis.set_yticks(range(len(kinds)), kinds, fontsize=8)
    axis.invert_yaxis()
    axis.set_xlabel("accuracy on the test sentences, %")
    axis.grid(alpha=0.3)
    page.picture(figure, "sentences", "Accuracy of each model.")
    own = {kind: median(accuracies(kind)) for kind in KINDS}
    best, worst = max(own, key=own.get), min(own, key=own.get)
    page.section("Conclusion", (
        f"From nothing, the best is {best} with {own[best]:.1f} %, the last {worst} with {own[worst]:.1f} %, and the "
        f"bag of words has {median(accuracies(BAG)):.1f} %. MiniLM's embeddings with a linear layer have "
        f"{median(accuracies(PRETRAINED)):.1f} %: what was read before is worth "
        f"{median(accuracies(PRETRAINED)) - own[best]:.1f} points more than any choice of layers here. One head has "
        f"{own['one head, 1 layer']:.1f} %, four have {own['4 heads, 1 layer']:.1f} %. The LSTM has "
        f"{own['LSTM, 2 layers']:.1f} %, where the texts say 89.2 %: theirs begins with pretrained word vectors."))
    return page
