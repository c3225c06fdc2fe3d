"""all-MiniLM-L6-v2, fine-tuned by attn train for each kind of task, on data that anybody can have: what it reaches on
rows that it has not seen, beside what is reached without a training. `--write FOLDER` leaves the files there and stops.

  regression            how positive a word is, -4 to 4: the lexicon of PyPI's package vaderSentiment
  token-classification  the punctuation after each word: Shakespeare without it
  classification        whether the first of two definitions is a kind of the second: WordNet's nouns
  similarity            how near two definitions are in WordNet's tree of nouns (Wu & Palmer 1994)
  contrastive           which word a definition defines: WordNet's first words
  masked-lm             the masked words of Shakespeare, with a new head

WordNet 3.0 is Debian's package wordnet-base. Rows are shuffled with a fixed seed, a tenth is for the test.
"""

import argparse
import collections
import functools
import json
import pathlib
import random
import re
import tempfile
from collections.abc import Iterator

from .programs import MINILM, attn
from .results import Row

WORDNET = pathlib.Path("/usr/share/wordnet")
MARKS = {",": "COMMA", ".": "PERIOD", "?": "QUESTION", "!": "EXCLAMATION", ":": "COLON", ";": "COLON"}
PAIRS = 12000  # of definitions


def add_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--write", type=pathlib.Path, metavar="FOLDER", help="write the data there and train nothing")


# ---------------------------------------------------------------------------------------------------------------- data

def lexicon(options: argparse.Namespace) -> list[str]:
    import vaderSentiment

    text = (pathlib.Path(vaderSentiment.__file__).parent / "vader_lexicon.txt").read_text()
    rows = [line.split("\t")[:2] for line in text.splitlines()]
    return [f"{word.strip()}\t{value}\n" for word, value in rows if word.strip()]


def punctuation(options: argparse.Namespace) -> list[str]:
    """Up to 40 words of a speech, in lower case, with the mark after each."""
    texts = []
    for speech in (options.data / "tinyshakespeare/input.txt").read_text().split("\n\n"):
        words = []
        for word in speech.partition("\n")[2].split():
            found = re.match(r"^(.*?)([,.?!:;]?)[-'\"]*$", word)
            if plain := re.sub(r"[^a-z']", "", found[1].lower()):
                words.append(f"{plain} {MARKS.get(found[2], 'O')}\n")
        texts += ["".join(words[n:n + 40]) + "\n" for n in range(0, len(words), 40) if len(words[n:n + 40]) >= 8]
    return texts


class Synset:
    def __init__(self, line: str) -> None:
        head, gloss = line.split("|", 1)
        fields = head.split()
        self.words = [word.split("(")[0].replace("_", " ") for word in fields[4:4 + 2 * int(fields[3], 16):2]]
        self.definition = re.sub(r'"[^"]*"', "", gloss).split(";")[0].strip()
        self.above = [fields[n + 1] for n, field in enumerate(fields) if field in ("@", "@i")]
        self.key = fields[0]


@functools.lru_cache(maxsize=None)
def synsets(kind: str) -> dict[str, Synset]:
    lines = (WORDNET / f"data.{kind}").read_text().splitlines()
    return {each.key: each for each in (Synset(line) for line in lines if not line.startswith("  "))}


def path_of(noun: Synset) -> list[str]:
    """From the noun up to the root, by the first of what is above."""
    path = [noun.key]
    while above := synsets("noun")[path[-1]].above:
        path.append(above[0])
    return path


def nouns(draw: random.Random) -> list[Synset]:
    long = [noun for noun in synsets("noun").values() if len(noun.definition) > 20 and len(noun.above) == 1]
    draw.shuffle(long)
    return long


def kinds(options: argparse.Namespace) -> list[str]:
    """Half of the rows are a noun and what it is a kind of; of the others half are these turned round, and half a noun
    and what another one is a kind of."""
    rows, chosen = [], nouns(random.Random(1))[:PAIRS]
    above = [synsets("noun")[noun.above[0]].definition for noun in chosen]
    for n, noun in enumerate(chosen):
        first, second, label = noun.definition, above[n], "kind"
        if n % 4 == 2:
            first, second, label = second, first, "other"
        elif n % 4 == 3:
            second, label = above[n - 1], "other"
        rows.append(f"{first}\t{second}\t{label}\n")
    return rows


def near(options: argparse.Namespace) -> list[str]:
    """Two depths of what is above both over the sum of their depths; relatives and strangers in turn."""
    draw, rows = random.Random(1), []
    chosen = nouns(draw)
    below = collections.defaultdict(list)
    for noun in chosen:
        for key in path_of(noun)[1:3]:
            below[key].append(noun)
    for n, noun in enumerate(chosen[:PAIRS]):
        others = below[path_of(noun)[1 + n % 2]] if n % 3 else chosen
        other = draw.choice(others)
        mine, theirs = path_of(noun), path_of(other)
        common = next((key for key in mine if key in theirs), None)
        depth = len(mine) - mine.index(common) if common else 0
        rows.append(f"{noun.definition}\t{other.definition}\t{2 * depth / (len(mine) + len(theirs)):.4f}\n")
    return rows


def definitions(options: argparse.Namespace) -> list[str]:
    rows = [f"{each.definition}\t{each.words[0]}\n" for kind in ("noun", "verb", "adj", "adv")
            for each in synsets(kind).values() if len(each.definition) > 20]
    random.Random(1).shuffle(rows)
    return rows[:22000]


# ------------------------------------------------------------------------------------------------------------ trainings

# Task: its rows, the name of its files, the flags of attn train, and what attn eval says of the test.
TASKS = {
    "regression": (lexicon, "words.tsv", ["--packed", "--epochs", 3, "--learning-rate", 1e-4, "--metric", "pearson"],
                   r"Pearson (\S+),"),
    "token-classification": (punctuation, "marks.txt", ["--packed", "--epochs", 3, "--learning-rate", 2e-4, "--metric",
                                                        "macro_f1"], r"macro F1 (\S+)"),
    "classification": (kinds, "kinds.tsv", ["--packed", "--epochs", 3, "--learning-rate", 1e-4], r"([\d.]+) % right"),
    "similarity": (near, "near.tsv", ["--epochs", 1, "--learning-rate", 5e-5], r"Spearman (\S+),"),
    "contrastive": (definitions, "definitions.tsv", ["--epochs", 1, "--batch", 64, "--learning-rate", 5e-5],
                    r"([\d.]+) % of the texts"),
    "masked-lm": (None, "", ["--max-length", 128, "--epochs", 2, "--learning-rate", 2e-4, "--batch", 16], ""),
}


def write(options: argparse.Namespace, task: str, folder: pathlib.Path) -> tuple[pathlib.Path, pathlib.Path]:
    """The rows to train on and those of the test."""
    make, name, _, _ = TASKS[task]
    if not make:
        text = (options.data / "tinyshakespeare/input.txt").read_text()
        parts, name = {"train": [text[:len(text) * 9 // 10]], "test": [text[len(text) * 9 // 10:]]}, "shakespeare.txt"
    else:
        rows = make(options)
        random.Random(2).shuffle(rows)
        cut = len(rows) // 10
        names = ["sentence1\tsentence2\tlabel\n"] if task == "classification" else []
        parts = {"train": names + rows[cut:], "test": names + rows[:cut]}
    for part, rows in parts.items():
        (folder / f"{part}_{name}").write_text("".join(rows))
    return folder / f"train_{name}", folder / f"test_{name}"


def measured(options: argparse.Namespace, task: str, model: pathlib.Path, test: pathlib.Path) -> float:
    return float(re.search(TASKS[task][3], attn(options, "eval", model, test).stdout)[1])


def trained(options: argparse.Namespace, task: str, folder: pathlib.Path) -> Row:
    train, test = write(options, task, folder)
    flags = TASKS[task][2]
    held_out = ["--validation", test] if task == "masked-lm" else []
    out = folder / task
    said = attn(options, "train", train, *held_out, "--from", MINILM, "--task", task, "--dropout", 0.1, "--out", out,
                *flags).stderr
    log = [json.loads(line) for line in (out / "log.jsonl").read_text().splitlines()]
    validations = [row for row in log if "validation_loss" in row]
    row = {"table": "tasks", "task": task, "threads": options.threads[-1],
           "data": re.search(r"data: (.*)", said)[1], "seconds": sum(row["seconds"] for row in log if "seconds" in row)}
    if task == "masked-lm":
        return row | {"measure": "masked tokens right, %", "test": 100 * validations[-1]["validation_accuracy"],
                      "untrained": None}
    measure = {"regression": "Pearson", "token-classification": "macro F1", "classification": "right, %",
               "similarity": "Spearman", "contrastive": "own word is the nearest of all, %"}[task]
    untrained = measured(options, task, MINILM, test) if task in ("similarity", "contrastive") else None
    return row | {"measure": measure, "test": measured(options, task, out, test), "untrained": untrained}


def run(options: argparse.Namespace, about: dict[str, object]) -> Iterator[Row]:
    names = [task for task in TASKS if options.filter.search(task)]
    if options.write:
        options.write.mkdir(exist_ok=True)
        for task in names:
            print(*write(options, task, options.write))
        return
    with tempfile.TemporaryDirectory() as where:
        for task in names:
            yield trained(options, task, pathlib.Path(where))
