"""Pages of the attention of all-MiniLM-L6-v2 (6 layers, 12 heads) by attn see and by BertViz: bytes, seconds, memory.

Up to the model's 512 tokens both run the model on the same text. For longer texts both get random queries and keys of
the same shape; the last lengths are of one head alone. The browser has no network: it only reads BertViz's pages, which
load require.js, D3 and jQuery from a CDN, and does not draw them; that time is theirs.
"""

import argparse
import pathlib
import resource
import subprocess
import sys
import tempfile
from collections.abc import Iterator

import numpy
from selenium.common.exceptions import WebDriverException

from .programs import MINILM
from .results import ROOT, Row
from .timing import stopwatch

sys.path += [str(ROOT / "build/bertviz"), str(ROOT / "tests/browser")]
SENTENCE = "The cat sat on the mat because it was warm, and the dog watched the birds in the garden. "
CONTEXT = 512
LENGTHS = [64, 128, 256, 512, 1024, 2048]
ONE_HEAD = [4096, 8192, 32768, 100000]
MEMORY = 12 << 30  # bytes that a program may use
SECONDS = 600  # that it may take

BERTVIZ = """
import sys
sys.path.insert(0, sys.argv.pop(1))
import bertviz, numpy, torch
kind, source, out = sys.argv[1:]
if source.endswith(".npz"):
    arrays = numpy.load(source)
    q, k = torch.tensor(arrays["q"]), torch.tensor(arrays["k"])
    attention = [torch.softmax(a @ b.transpose(-1, -2) / q.shape[-1] ** 0.5, -1)[None] for a, b in zip(q, k)]
    tokens = [str(n) for n in range(q.shape[2])]
else:
    from transformers import AutoModel, AutoTokenizer
    folder, text = source.split("|")
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModel.from_pretrained(folder, attn_implementation="eager")
    inputs = tokenizer(open(text).read(), return_tensors="pt", truncation=True)
    with torch.no_grad():
        attention = model(**inputs, output_attentions=True).attentions
    tokens = tokenizer.convert_ids_to_tokens(inputs["input_ids"][0])
view = bertviz.model_view if kind == "model" else bertviz.head_view
page = view(attention, tokens, html_action="return").data
open(out, "w").write(page)
"""


def limit():
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))


def timed(command):
    """The seconds that a program took, or why it ended early."""
    elapsed = stopwatch()
    program = subprocess.Popen([str(word) for word in command], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
                               text=True, preexec_fn=limit)
    try:
        _, said = program.communicate(timeout=SECONDS)
    except subprocess.TimeoutExpired:
        program.kill()
        program.communicate()
        return f"over {SECONDS} s"
    if program.returncode != 0:
        out_of_memory = any(word in said for word in ("MemoryError", "memory", "alloc"))
        return f"over {MEMORY >> 30} GB of memory" if out_of_memory else said.strip().splitlines()[-1][:60]
    return elapsed()


def opened(path):
    """Seconds until a browser has read the page and, of ours, drawn a head."""
    from browser import Page
    try:
        with Page(path.parent) as page:
            page.driver.set_page_load_timeout(SECONDS)
            elapsed = stopwatch()
            page.driver.get(f"file://{path}#layer=0&head=0")
            if page.run("return document.getElementById('detail') !== null"):
                page.wait(SECONDS)
            assert page.run("return document.readyState") == "complete"
            return f"{elapsed():.1f} s"
    except WebDriverException as error:
        return "breaks: " + str(error.msg).splitlines()[0][:40]


def written(program: str, tokens: int, heads: int, command: list, path: pathlib.Path) -> Row:
    path.unlink(missing_ok=True)
    took = timed(command)
    row: Row = {"tokens": tokens, "heads": heads, "page": program, "MB": None, "to write": took, "to open": ""}
    if not isinstance(took, str):
        row |= {"MB": path.stat().st_size / 1e6, "to write": f"{took:.1f} s", "to open": opened(path)}
    path.unlink(missing_ok=True)
    return row


def text_of(folder, tokens):
    """A text of so many tokens of the model, with its marks."""
    from transformers import AutoTokenizer
    tokenizer = AutoTokenizer.from_pretrained(MINILM)
    words = (SENTENCE * (tokens // 10 + 1)).split()
    low, high = 1, len(words)
    while low < high:
        middle = (low + high + 1) // 2
        if len(tokenizer(" ".join(words[:middle]), truncation=False)["input_ids"]) <= tokens:
            low = middle
        else:
            high = middle - 1
    path = folder / f"{tokens}.txt"
    path.write_text(" ".join(words[:low]))
    return path


def random_heads(folder, layers, heads, tokens):
    from safetensors.numpy import save_file
    generator = numpy.random.default_rng(7)
    q, k = (generator.standard_normal((layers, heads, tokens, 32), numpy.float32) for _ in range(2))
    numpy.savez(folder / "random.npz", q=q, k=k)
    save_file({f"layer {n}.{name}": numpy.ascontiguousarray(array[n]) for n in range(layers)
               for name, array in (("q", q), ("k", k))}, folder / "random.safetensors")
    return folder / "random.npz", folder / "random.safetensors"


def add_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--lengths", type=lambda text: [int(length) for length in text.split(",")],
                        default=LENGTHS + ONE_HEAD, help="of texts, in tokens")


def run(options: argparse.Namespace, about: dict[str, object]) -> Iterator[Row]:
    about["limits"] = f"{MEMORY >> 30} GB of memory, {SECONDS} s"
    alive = {"model": True, "head": True}  # a view that has failed is not tried on longer texts
    one_head = sorted(set(options.lengths) & set(ONE_HEAD))
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        page = folder / "page.html"
        for tokens in options.lengths:
            layers, heads = (1, 1) if tokens in ONE_HEAD else (6, 12)
            if one_head and tokens == one_head[0]:
                alive = {"model": False, "head": True}
            if tokens <= CONTEXT:
                text = text_of(folder, tokens)
                ours, theirs = [MINILM, "--file", text], f"{MINILM}|{text}"
            else:
                theirs, saved = random_heads(folder, layers, heads, tokens)
                ours = [saved]
            yield written("attn see", tokens, layers * heads,
                          [options.build / "cli/attn", "see", *ours, "--html", page, "--no-terminal"], page)
            for kind in [kind for kind in alive if alive[kind]]:
                command = [sys.executable, "-c", BERTVIZ, ROOT / "build/bertviz", kind, str(theirs), page]
                row = written(f"BertViz {kind} view", tokens, layers * heads, command, page)
                alive[kind] = row["MB"] is not None
                yield row
