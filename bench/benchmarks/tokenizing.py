"""How fast texts become ids, beside the package tokenizers, on one thread: one long text, its lines one by one, and a
text in ten scripts.

The ids of all texts are compared first; what differs is not timed. The package is timed by the quicker of encode() and
encode_batch_fast(). Best of five.
"""

import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile
from collections.abc import Iterator

os.environ["TOKENIZERS_PARALLELISM"] = "false"
from .programs import MINILM
from .results import ROOT, Row
from .timing import in_turn

sys.path.append(str(ROOT / "tests/tokenizers"))
import families  # noqa: E402
import samples  # noqa: E402
from tokenizers import Tokenizer, models  # noqa: E402

ROUNDS = 5


def add_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--text", type=pathlib.Path, help="default: tinyshakespeare")


def ask(options, path, **request):
    done = subprocess.run([options.build / "tests/tokenizers/tokenize", path], input=json.dumps(request),
                          capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def compare(options, name: str, package: Tokenizer, path: str, texts: list[str], what: str) -> Row:
    row: Row = {"tokenizer": name, "text": what, "ours MB/s": None, "tokenizers MB/s": None, "ratio": None,
                "ids": "WRONG"}
    expected = [each.ids for each in package.encode_batch(texts, add_special_tokens=False)]
    if [each["ids"] for each in ask(options, path, texts=texts)] != expected:
        return row
    size = sum(len(text.encode()) for text in texts) / 1e6
    taken = in_turn([lambda: [package.encode(text, add_special_tokens=False) for text in texts],
                     lambda: package.encode_batch_fast(texts, add_special_tokens=False)], ROUNDS)
    theirs, ours = min(map(min, taken)), ask(options, path, texts=texts, rounds=ROUNDS)
    return row | {"ours MB/s": size / ours, "tokenizers MB/s": size / theirs, "ratio": theirs / ours, "ids": "equal"}


def all_tokenizers(data: pathlib.Path) -> Iterator[tuple[str, Tokenizer]]:
    corpus = samples.corpus()
    gpt2 = Tokenizer(models.BPE.from_file(*(str(data / "gpt2-tokenizer" / name)
                                            for name in ("encoder.json", "vocab.bpe"))))
    gpt2.pre_tokenizer = families.P.ByteLevel(add_prefix_space=False)
    yield "GPT-2", gpt2
    yield "MiniLM (BERT)", Tokenizer.from_file(str(MINILM / "tokenizer.json"))
    for family in (families.llama3, families.qwen2, families.llama2, families.mistral, families.gemma):
        yield family.__name__ + " kind", family(corpus)
    yield "t5 kind", families.unigram(corpus, families.N.NFKC(), families.metaspaced(), ["<pad>", "</s>", "<unk>"])


def run(options: argparse.Namespace, about: dict[str, object]) -> Iterator[Row]:
    whole = (options.text or options.data / "tinyshakespeare/input.txt").read_text()
    mixed = samples.MIXED * (len(whole) // len(samples.MIXED) // 2)
    with tempfile.TemporaryDirectory() as folder:
        for name, package in all_tokenizers(options.data):
            if not options.filter.search(name):
                continue
            package.no_truncation()
            package.no_padding()
            path = f"{folder}/tokenizer.json"
            package.save(path)
            for texts, what in (([whole], "one text"), (whole.splitlines(), "its lines"), ([mixed], "ten scripts")):
                yield compare(options, name, package, path, texts, what)
