"""Fine-tuning of all-MiniLM-L6-v2 on the sentences of SST-2, beside the same recipe in PyTorch.

Both train a BertForSequenceClassification with a new head: batches of sentences of similar length, which ours packs,
AdamW, linear warm-up, a cosine to zero, dropout 0.1. Ours also trains adapters (LoRA) alone. `seconds` are those of the
updates; accuracy is that of 1,821 test sentences, which neither side has seen, after the last update.
"""

import argparse
import json
import math
import pathlib
import random
import re
import tempfile
import time
from collections.abc import Iterator

import torch

from .programs import MINILM, attn
from .results import Row
from .timing import Samples

RECIPE = {"batch": 32, "epochs": 3, "rate": 1e-4, "warmup": 0.1, "decay": 0.01, "clip": 1.0, "betas": (0.9, 0.999)}


def add_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--epochs", type=int, default=RECIPE["epochs"])
    parser.add_argument("--seeds", type=int, default=1, help="trainings of each kind")
    parser.add_argument("--no-peer", action="store_true", help="without PyTorch")


def ours(options: argparse.Namespace, out: pathlib.Path, seed: int, *flags: object) -> dict[str, float]:
    data = options.data / "sst2"
    said = attn(options, "train", data / "train.tsv", "--validation", data / "dev.tsv", "--from", MINILM, "--out", out,
                "--epochs", options.epochs, "--batch", RECIPE["batch"], "--dropout", 0.1, "--warmup", 100000,
                "--weight-decay", RECIPE["decay"], "--seed", seed, *flags).stderr
    log = [json.loads(line) for line in (out / "log.jsonl").read_text().splitlines()]
    printed = attn(options, "eval", out, data / "test.tsv", "--checkpoint", "last").stdout
    found = re.search(r"from \S+: ([\d,]+) of ([\d,]+) parameters", said)
    return {"seconds": sum(row["seconds"] for row in log if "seconds" in row),
            "accuracy": float(re.search(r"([\d.]+) % right", printed)[1]),
            "trained": int(found[1].replace(",", "")), "of": int(found[2].replace(",", ""))}


def rows_of(path: pathlib.Path) -> tuple[list[str], list[int]]:
    rows = [line.split("\t") for line in path.read_text().splitlines()]
    return [text for text, _ in rows], [int(label) for _, label in rows]


def batches_of(ids: list[list[int]], size: int, draw: random.Random) -> list[list[int]]:
    """Shuffled, then by length within groups of 16 batches, then shuffled again: as attn train does it."""
    order = list(range(len(ids)))
    draw.shuffle(order)
    for at in range(0, len(order), 16 * size):
        order[at:at + 16 * size] = sorted(order[at:at + 16 * size], key=lambda n: len(ids[n]))
    batches = [order[at:at + size] for at in range(0, len(order), size)]
    draw.shuffle(batches)
    return batches


class Torch:
    def __init__(self, options: argparse.Namespace, seed: int, bfloat16: bool) -> None:
        import transformers

        torch.manual_seed(seed)
        self.draw, self.epochs, self.bfloat16 = random.Random(seed), options.epochs, bfloat16
        self.tokenizer = transformers.AutoTokenizer.from_pretrained(MINILM)
        self.model = transformers.AutoModelForSequenceClassification.from_pretrained(MINILM, num_labels=2)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=RECIPE["rate"], betas=RECIPE["betas"],
                                           weight_decay=RECIPE["decay"], fused=True)
        self.train = rows_of(options.data / "sst2/train.tsv")
        self.test = rows_of(options.data / "sst2/test.tsv")

    def logits(self, ids: list[list[int]]) -> torch.Tensor:
        batch = self.tokenizer.pad({"input_ids": ids}, return_tensors="pt", pad_to_multiple_of=8)
        with torch.autocast("cpu", torch.bfloat16, enabled=self.bfloat16):
            return self.model(**batch).logits.float()

    def updates(self) -> float:
        ids, labels = self.tokenizer(self.train[0])["input_ids"], torch.tensor(self.train[1])
        steps = self.epochs * math.ceil(len(ids) / RECIPE["batch"])
        warmup = max(1, int(RECIPE["warmup"] * steps))
        self.model.train()
        step, begin = 0, time.perf_counter()
        for _ in range(self.epochs):
            for batch in batches_of(ids, RECIPE["batch"], self.draw):
                part = (step - warmup) / max(1, steps - warmup)
                rate = (step + 1) / (warmup + 1) if step < warmup else (1 + math.cos(math.pi * part)) / 2
                self.optimizer.param_groups[0]["lr"] = RECIPE["rate"] * rate
                loss = torch.nn.functional.cross_entropy(self.logits([ids[n] for n in batch]), labels[batch])
                loss.backward()
                torch.nn.utils.clip_grad_norm_(self.model.parameters(), RECIPE["clip"])
                self.optimizer.step()
                self.optimizer.zero_grad(set_to_none=True)
                step += 1
        return time.perf_counter() - begin

    def accuracy(self) -> float:
        ids, labels = self.tokenizer(self.test[0])["input_ids"], self.test[1]
        self.model.eval()
        with torch.inference_mode():
            found = [at for first in range(0, len(ids), 64)
                     for at in self.logits(ids[first:first + 64]).argmax(1).tolist()]
        return 100 * sum(a == b for a, b in zip(found, labels)) / len(labels)


WHOLE = ["--learning-rate", RECIPE["rate"], "--packed"]
KINDS = {"all parameters, float32": WHOLE, "all parameters, bfloat16": [*WHOLE, "--precision", "bfloat16"],
         "adapters of rank 16, float32": ["--lora-rank", 16, "--lora-alpha", 32, "--lora-targets",
                                          "query,key,value,output,up,down", "--learning-rate", 1e-3]}


def sst2(options: argparse.Namespace) -> Iterator[Row]:
    threads = options.threads[-1]
    torch.set_num_threads(threads)
    with tempfile.TemporaryDirectory() as where:
        for kind, flags in KINDS.items():
            if not options.filter.search(kind):
                continue
            seconds, accuracy, peer_seconds, peer_accuracy, found = Samples(), Samples(), Samples(), Samples(), {}
            for seed in range(1, options.seeds + 1):
                found = ours(options, pathlib.Path(where, f"{kind} {seed}"), seed, *flags)
                seconds += [found["seconds"]]
                accuracy += [found["accuracy"]]
                if not options.no_peer and kind.startswith("all"):
                    peer = Torch(options, seed, "bfloat16" in kind)
                    peer_seconds += [peer.updates()]
                    peer_accuracy += [peer.accuracy()]
            yield {"table": "sst2", "trained": kind, "threads": threads,
                   "parameters": f"{found['trained']:,} of {found['of']:,}", "seconds": seconds.median,
                   "accuracy": accuracy.median, "PyTorch seconds": peer_seconds.median if peer_seconds else None,
                   "PyTorch accuracy": peer_accuracy.median if peer_accuracy else None,
                   "ratio": peer_seconds.median / seconds.median if peer_seconds else None}


def run(options: argparse.Namespace, about: dict[str, object]) -> Iterator[Row]:
    about["torch"] = torch.__version__
    yield from sst2(options)
