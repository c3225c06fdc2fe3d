"""What heads attend to: shares of heads that look at the next token, the previous one, separators, punctuation, or at
nothing in particular, in MiniLM and in models trained here."""

import csv
from statistics import median

from benchmarks.programs import MINILM, with_range

from . import plots
from .laboratory import SEEDS, Laboratory, Page, Row

# Kind: the roles of attn heads that are it.
KINDS = {
    "next token": {"next"},
    "previous token": {"previous"},
    "itself": {"self"},
    "first token": {"first", "start"},
    "separators": {"separator"},
    "punctuation": {"punctuation"},
    "diffuse": {"entropy_relative"},
}
PRETRAINED, GPT, ENCODER = "MiniLM", "GPT on characters", "classifier of SST-2"


def run(lab: Laboratory) -> Page:
    (lab.folder / "train.tsv").write_text("".join(lab.sst2("train").open().readlines()[:400 if lab.quick else None]))
    most = 20 if lab.quick else 400
    lines = [line.rsplit("\t", 1)[0] for line in lab.sst2("test").read_text().splitlines()[:most]]
    (lab.folder / "lines.txt").write_text("\n".join(lines) + "\n")
    # The last tenth of a text is not trained on; each line of it that is long enough.
    speech = (lab.folder / lab.text()).read_text()
    speech = [line for line in speech[len(speech) * 9 // 10:].splitlines() if len(line) > 30][:most]
    (lab.folder / "speech.txt").write_text("\n".join(speech) + "\n")
    seeds = SEEDS[:1] if lab.quick else SEEDS

    def measure(name: str, model: object, texts: str, seed: int) -> list[Row]:
        printed = lab.attn(f"heads --file {texts} --csv -", model).stdout
        return [{"model": name, "seed": seed, "layer": int(row["layer"]), "roles": row["roles"].split()}
                for row in csv.DictReader(printed.splitlines())]

    def minilm() -> list[Row]:
        return measure(PRETRAINED, MINILM, "lines.txt", 0)

    def gpt() -> list[Row]:
        rows = []
        for seed in seeds:
            lab.attn(f"train {lab.text()} --out gpt --overwrite --layers 4 --heads 4 --embed-dim 128 --context 128 "
                     f"--batch 16 --steps {3 if lab.quick else 400} --learning-rate 0.003 --eval-every 0 --seed "
                     f"{seed} --quiet")
            rows += measure(GPT, "gpt", "speech.txt", seed)
        return rows

    def encoder() -> list[Row]:
        rows = []
        for seed in seeds:
            lab.attn("train train.tsv --out encoder --overwrite --model encoder --layers 4 --heads 4 --embed-dim 64 "
                     f"--dropout 0.2 --packed --batch 32 --epochs {1 if lab.quick else 6} --seed {seed} --quiet")
            rows += measure(ENCODER, "encoder", "lines.txt", seed)
        return rows

    rows = lab.measured([(PRETRAINED, minilm), (GPT, gpt), (ENCODER, encoder)])
    return page(lab, len(lines), rows)


def page(lab: Laboratory, sentences, rows) -> Page:
    def shares(model: str, kind: str) -> list[float]:
        """Percent of the heads, for each seed."""
        own = [row for row in rows if row["model"] == model]
        found = []
        for seed in dict.fromkeys(row["seed"] for row in own):
            heads = [row for row in own if row["seed"] == seed]
            found.append(100 * sum(bool(KINDS[kind] & set(row["roles"])) for row in heads) / len(heads))
        return found

    def unnamed(model: str) -> list[float]:
        own = [row for row in rows if row["model"] == model]
        named = set().union(*KINDS.values())
        return [100 * sum(row["seed"] == seed and not named & set(row["roles"]) for row in own) /
                sum(row["seed"] == seed for row in own) for seed in dict.fromkeys(row["seed"] for row in own)]

    models = list(dict.fromkeys(row["model"] for row in rows))
    claims = {"next token": "50", "previous token": "30", "separators": "10, with syntax", "punctuation": "5",
              "diffuse": "5"}
    page = Page(lab, "What heads attend to", (
        "Each head of a layer has its own attention weights, and many do something that has a name: they look at "
        "the token before, at the one after, at the first one, at separators, or at everything alike. This page "
        "counts them. The measures and their thresholds are those of the literature, as [what heads "
        "do](../heads.md) defines them."))
    page.section("Question", "Which share of the heads looks at what?")
    page.add("Texts that teach attention say of BERT: 50 % of the heads attend to the next token, 30 % to the "
             "previous one, 10 % to separators and syntax, 5 % to punctuation, and 5 % are diffuse.")
    page.section("Prediction, written before the run", (
        "The texts' shares add up to 100 %, as if each head did one of these things all the time. By thresholds "
        "that ask for half of the weight or more, most heads will have no name. Clark et al. (2019) found four "
        "heads of 144 of BERT that give more than half of their weight to the previous token and five to the next, "
        "and more than half of the weight of layers 6 to 10 on separators: so less than 10 % each for neighbours, "
        "and separators first. A causal model has no next token; of a small model of characters some heads of the "
        "first layers will be previous token heads."))
    page.section("Method", (
        f"`attn heads` on {sentences} sentences of SST-2 for all-MiniLM-L6-v2 (6 layers of 12 heads) and for "
        "classifiers of 4 layers of 4 heads and width 64, trained on SST-2 for 6 epochs; on as many lines of the "
        "last tenth of Tiny Shakespeare for GPTs of 4 layers of 4 heads and width 128, trained on its characters "
        "for 400 updates. A head is of a kind if the mean of its measure exceeds the threshold of the literature: "
        "0.5 for next, previous, itself and first token, 0.6 for separators and punctuation, 0.783 of the largest "
        "entropy for diffuse. A head may be of several kinds. Models trained here: seeds 1, 2 and 3, medians, the "
        "lowest and the highest."))
    page.section("Result", "Percent of all heads:")
    page.table([{"kind": kind, **{model: with_range(shares(model, kind), ".0f") for model in models},
                 "BERT, say the texts": claims.get(kind, "-")} for kind in KINDS]
               + [{"kind": "none of these", **{model: with_range(unnamed(model), ".0f") for model in models},
                   "BERT, say the texts": "0"}])
    figure, (axis,) = plots.panels(1)
    width = 0.8 / len(models)
    for n, model in enumerate(models):
        axis.barh([place + n * width for place in range(len(KINDS))],
                  [median(shares(model, kind)) for kind in KINDS], width, color=plots.STYLES[n][0], label=model)
    axis.set_yticks([place + width for place in range(len(KINDS))], list(KINDS), fontsize=8)
    axis.invert_yaxis()
    axis.set_xlabel("percent of the heads")
    axis.legend(frameon=False, fontsize=8)
    page.picture(figure, "kinds", "Shares of heads of each kind.")
    neighbours = median(shares(PRETRAINED, "next token")) + median(shares(PRETRAINED, "previous token"))
    page.section("Conclusion", (
        f"In MiniLM {neighbours:.0f} % of the heads attend to a neighbour, where the texts say 80 % of BERT; "
        f"{median(shares(PRETRAINED, 'separators')):.0f} % attend to separators, "
        f"{median(shares(PRETRAINED, 'diffuse')):.0f} % are diffuse, and {median(unnamed(PRETRAINED)):.0f} % do none "
        "of this most of the time. The shares of the texts do not hold for this model, and cannot hold as a "
        "partition: a head has a kind by a threshold, and most pass none. In the GPTs "
        f"{median(shares(GPT, 'previous token')):.0f} % are previous token heads, in the classifiers, which have "
        f"nothing to predict but a label, {median(shares(ENCODER, 'diffuse')):.0f} % are diffuse. What happens as "
        "heads are removed is measured in [pruning](../pruning.md)."))
    return page
