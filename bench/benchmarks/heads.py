"""What the heads of two models do: all-MiniLM-L6-v2 on sentences of SST-2, and a model of two layers while it learns to
continue what repeats.

The tables: heads (measures on the sentences, and the heads' clusters and places), repeats (induction and duplicates on
50 random tokens, twice, ten texts), induction (losses and scores during the training).
"""

import argparse
import json
import subprocess
import tempfile
from collections.abc import Iterator

from . import results
from .programs import MINILM, attn

COUNT = 1000  # sentences
SHOWN = ("previous", "next", "self", "start", "separator", "punctuation", "entropy", "entropy_of_first",
         "entropy_relative", "distance", "confidence", "positional", "offset", "sink")


def add_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--steps", type=int, default=1500, help="of the training")


def of_sentences(options: argparse.Namespace) -> Iterator[results.Row]:
    lines = (options.data / "sst2/train.tsv").read_text().splitlines()[:COUNT]
    sentences = "".join(line.split("\t")[0] + "\n" for line in lines)
    printed = attn(options, "heads", MINILM, "--file", "-", "--json", "-", "--clusters", 4, text=sentences).stdout
    for head in json.loads(printed)["heads"]:
        yield ({"table": "heads", "head": f"{head['layer']}.{head['head']}"} | {name: head[name] for name in SHOWN}
               | {name: head[name] for name in ("cluster", "x", "y")} | {"above thresholds": " ".join(head["roles"])})


def of_repeats(options: argparse.Namespace) -> Iterator[results.Row]:
    for head in json.loads(attn(options, "heads", MINILM, "--induction", "--json", "-").stdout)["heads"]:
        yield {"table": "repeats", "head": f"{head['layer']}.{head['head']}", "induction": head["induction"],
               "duplicate": head["duplicate"]}


def of_training(options: argparse.Namespace) -> Iterator[results.Row]:
    with tempfile.NamedTemporaryFile() as file:
        subprocess.run([options.build / "bench/attn_bench", "induction", f"--steps={options.steps}",
                        f"--csv={file.name}"], check=True, stdout=subprocess.DEVNULL)
        _, rows = results.read(file.name)
    for row in rows:
        yield {"table": "induction"} | {name: float(cell) if "." in cell else int(cell) for name, cell in row.items()}


def run(options: argparse.Namespace, about: dict[str, object]) -> Iterator[results.Row]:
    for table in (of_sentences, of_repeats, of_training):
        if options.filter.search(table.__name__):
            yield from table(options)
