"""Pretrained models beside other programs on the same machine; results are compared before anything is timed.

The tables: embed (all-MiniLM-L6-v2 on sentences of SST-2, beside sentence-transformers and ONNX Runtime), stories
(stories260K beside transformers, with --with-llama llama.cpp and with --llama2c llama2.c's run), decode (random models
of GPT-2's and LLaMA's shapes beside transformers with sdpa and llama.cpp). Rates are medians, with the lowest and the
highest.
"""

import argparse
import itertools
import json
import pathlib
import re
import subprocess
import tempfile
from collections.abc import Callable, Iterator

import numpy as np
import torch

from .programs import MINILM, attn, attn_rate, with_range
from .results import ROOT, Row
from .timing import seconds_of


def add_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--sentences", type=int, default=1000, help="of embed")
    parser.add_argument("--llama2c", help="of stories: the program run of llama2.c")
    parser.add_argument("--with-llama", action="store_true", help="of stories and decode: llama.cpp too")
    parser.add_argument("--small", action="store_true", help="of decode: GPT-2's shape alone")


def rated(table: str, what: str, program: str, threads: int, rates: list[float]) -> Row:
    return {"table": table, "what": what, "program": program, "threads": threads, "a second": with_range(rates, ",.1f")}


def repeated(count: int, run_once: Callable[[], float]) -> list[float]:
    run_once()
    return [run_once() for _ in range(count)]


def rate_of(work: Callable[[], object], amount: int) -> float:
    return amount / seconds_of(work)


# -------------------------------------------------------------------------------------------------------------- embed


def pooled(rows: np.ndarray, mask: np.ndarray) -> np.ndarray:
    mean = (rows * mask[..., None]).sum(1) / mask.sum(1, keepdims=True)
    return mean / np.linalg.norm(mean, axis=1, keepdims=True)


INPUTS = ["input_ids", "attention_mask", "token_type_ids"]


class Rows(torch.nn.Module):
    """What is exported: three tensors in, the last layer's rows out."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: torch.Tensor, mask: torch.Tensor, types: torch.Tensor) -> torch.Tensor:
        return self.model(input_ids=ids, attention_mask=mask, token_type_ids=types).last_hidden_state


class Onnx:
    """The encoder, exported once; batches as given, padded to the longest of each."""

    def __init__(self, folder: pathlib.Path, threads: int) -> None:
        import onnxruntime
        import transformers

        self.tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
        path = ROOT / "build/minilm.onnx"
        if not path.exists():
            model = Rows(transformers.AutoModel.from_pretrained(folder, attn_implementation="eager").eval())
            sample = self.tokenizer(["a cat", "a cat sat on the mat"], return_tensors="pt", padding=True)
            axes = {0: "batch", 1: "length"}
            torch.onnx.export(model, tuple(sample[name] for name in INPUTS), path, input_names=INPUTS,
                              output_names=["rows"], dynamo=False,
                              dynamic_axes={name: axes for name in [*INPUTS, "rows"]})
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        self.session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        self.names = [each.name for each in self.session.get_inputs()]

    def __call__(self, texts: list[str], batch: int, by_length: bool) -> np.ndarray:
        order = sorted(range(len(texts)), key=lambda n: -len(texts[n])) if by_length else list(range(len(texts)))
        result = np.empty((len(texts), 384), np.float32)
        for at in range(0, len(order), batch):
            part = order[at:at + batch]
            inputs = self.tokenizer([texts[n] for n in part], return_tensors="np", padding=True, truncation=True,
                                    max_length=256)
            rows = self.session.run(None, {name: inputs[name] for name in self.names})[0]
            result[part] = pooled(rows, inputs["attention_mask"])
        return result


def sentences(options: argparse.Namespace) -> tuple[list[str], object, np.ndarray]:
    """Sentences of SST-2, sentence-transformers' model, and its vectors of them."""
    from sentence_transformers import SentenceTransformer

    lines = (options.data / "sst2/train.tsv").read_text().splitlines()[:options.sentences]
    texts = [line.split("\t")[0] for line in lines]
    peer = SentenceTransformer(str(MINILM), device="cpu")
    return texts, peer, peer.encode(texts, show_progress_bar=False)


def embed(options: argparse.Namespace) -> Iterator[Row]:
    texts, peer, expected = sentences(options)
    with tempfile.TemporaryDirectory() as where:
        file, out = pathlib.Path(where, "lines.txt"), pathlib.Path(where, "rows.npy")
        file.write_text("".join(f"{text}\n" for text in texts))
        for precision, threads in itertools.product(("float32", "bfloat16", "float16"), options.threads):
            torch.set_num_threads(threads)
            theirs = peer.to(getattr(torch, precision))

            def ours() -> float:
                return attn_rate(options, r"([\d.,]+) texts/s", "embed", MINILM, file, "--out", out, "--stats",
                                 "--precision", precision, threads=threads)

            def encoded(some: list[str] = texts) -> np.ndarray:
                return theirs.encode(some, batch_size=32, show_progress_bar=False)

            def unsorted() -> None:
                for at in range(0, len(texts), 32):  # encode() sorts what it is given
                    encoded(texts[at:at + 32])

            programs = {"attn embed": ours,
                        "sentence-transformers, sorted": lambda: rate_of(encoded, len(texts)),
                        "sentence-transformers, as they come": lambda: rate_of(unsorted, len(texts))}
            ours()
            results = {"attn": np.load(out)}
            if precision == "float32":
                onnx = Onnx(MINILM, threads)
                results["ONNX Runtime"] = onnx(texts, 32, True)
                programs |= {"ONNX Runtime, sorted": lambda: rate_of(lambda: onnx(texts, 32, True), len(texts)),
                             "ONNX Runtime, as they come": lambda: rate_of(lambda: onnx(texts, 32, False), len(texts))}
            for name, rows in results.items():
                cosine = (rows * expected).sum(1).min()
                assert cosine > (0.99999 if precision == "float32" else 0.999), f"{name}, {precision}: cosine {cosine}"
            for name, run_once in programs.items():
                yield rated("embed", f"sentences, {precision}", name, threads, repeated(options.repeats, run_once))


# ---------------------------------------------------------------------------------------------------------- llama.cpp


def beside_llama(options: argparse.Namespace, table: str, name: str, model: torch.nn.Module, precision: str,
                 prompt: int = 256, new: int = 64) -> Iterator[Row]:
    from .llama_models import LlamaCpp, write_gguf

    ids = [5, 17, 300, 44, 212, 9, 77]
    with torch.inference_mode():
        expected = model(torch.tensor([ids])).logits[0, -1].float().numpy()
    with tempfile.TemporaryDirectory() as where:
        path = pathlib.Path(where, "model.gguf")
        write_gguf(model, path, precision)
        for threads in options.threads:
            peer = LlamaCpp(path, threads)
            error = np.abs(peer.feed(ids) - expected).max() / np.abs(expected).max()
            assert error < (0.05 if precision == "bfloat16" else 0.01), f"llama.cpp differs by {error}"
            rates = [peer.rates(prompt, new) for _ in range(options.repeats)]
            for what, column in ((f"prefill of {prompt}", 0), (f"{new} tokens", 1)):
                yield rated(table, f"{name}, {what}", "llama.cpp", threads, [rate[column] for rate in rates])
            peer.close()


# ------------------------------------------------------------------------------------------------------------ stories


def stories(options: argparse.Namespace) -> Iterator[Row]:
    import transformers

    source, prompt, what = options.data / "stories260K", "Once upon a time", "stories260K, 200 tokens"
    with tempfile.TemporaryDirectory() as where:
        folder = pathlib.Path(where, "stories")
        attn(options, "convert", source / "stories260K.bin", "--tokenizer", source / "tok512.model", "--out", folder)
        generate = ["generate", folder, "--prompt", prompt, "--temperature", 0, "--max-new-tokens", 250]
        text = attn(options, *generate).stdout.strip()
        if options.llama2c:
            command = [options.llama2c, source / "stories260K.bin", "-z", source / "tok512.bin", "-t", "0", "-n", "256",
                       "-i", prompt]

            def llama2c() -> subprocess.CompletedProcess[str]:
                return subprocess.run(command, capture_output=True, text=True, check=True)

            theirs = llama2c().stdout.strip()
            assert text.startswith(theirs) or theirs.startswith(text), f"ours: {text}\nllama2.c: {theirs}"
            yield rated("stories", what, "llama2.c", 1, repeated(options.repeats, lambda: float(
                re.search(r"achieved tok/s: ([\d.]+)", llama2c().stderr)[1])))
        for threads in options.threads:
            yield rated("stories", what, "attn generate", threads, repeated(options.repeats, lambda: attn_rate(
                options, r"then \d+ tokens, ([\d.,]+) tokens/s", *generate, "--stats", threads=threads)))
        model = transformers.LlamaForCausalLM.from_pretrained(folder).eval()
        ids = torch.tensor([[1, 403, 407, 261, 378]])
        for threads in options.threads:
            torch.set_num_threads(threads)
            yield rated("stories", what, "transformers", threads, repeated(options.repeats, lambda: rate_of(
                lambda: model.generate(ids, max_new_tokens=200, min_new_tokens=200, do_sample=False, pad_token_id=0),
                200)))
        if options.with_llama:
            yield from beside_llama(options, "stories", "stories260K", model, "float32", new=200)


# ------------------------------------------------------------------------------------------------------------- decode


def decode(options: argparse.Namespace) -> Iterator[Row]:
    import transformers

    shapes = {"GPT-2 124M": lambda: transformers.GPT2LMHeadModel(transformers.GPT2Config())}
    if not options.small:
        shapes["LLaMA 1B"] = lambda: transformers.LlamaForCausalLM(transformers.LlamaConfig(
            vocab_size=32000, hidden_size=2048, intermediate_size=5632, num_hidden_layers=22, num_attention_heads=32,
            num_key_value_heads=4))
    for shape, make in shapes.items():
        model = make().eval()
        with tempfile.TemporaryDirectory() as where:
            model.save_pretrained(where)
            for precision, dtype in (("float32", torch.float32), ("bfloat16", torch.bfloat16)):
                name, peer = f"{shape}, {precision}", model.to(dtype)
                for threads in options.threads:
                    torch.set_num_threads(threads)
                    printed = attn(options, "bench", where, "-p", 512, "-n", 64, "--precision", precision, "-r",
                                   options.repeats, "-o", "json", threads=threads).stdout
                    for row in json.loads(printed):
                        what = {"pp512": "prefill of 512", "tg64": "64 tokens"}[row["test"]]
                        yield rated("decode", f"{name}, {what}", "attn bench", threads, row["samples_ts"])
                    ids = torch.randint(5, 1000, (1, 512))
                    with torch.inference_mode():
                        yield rated("decode", f"{name}, prefill of 512", "transformers", threads, repeated(
                            options.repeats, lambda: rate_of(lambda: peer(ids), 512)))
                        yield rated("decode", f"{name}, 64 tokens", "transformers", threads, repeated(
                            options.repeats, lambda: rate_of(lambda: peer.generate(
                                ids[:, :1], max_new_tokens=64, min_new_tokens=64, do_sample=False,
                                pad_token_id=0), 64)))
                if options.with_llama:
                    yield from beside_llama(options, "decode", name, peer, precision, prompt=512)
                del peer
                model = model.float()


def run(options: argparse.Namespace, about: dict[str, object]) -> Iterator[Row]:
    options.repeats = options.repeats or 5
    about["torch"] = torch.__version__
    for table in (embed, stories, decode):
        if options.filter.search(table.__name__):
            yield from table(options)
