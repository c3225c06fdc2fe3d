"""python -m benchmarks PART [FLAG ...]: runs a part, prints its rows, and writes them as CSV. bench/run calls it."""

import argparse
import importlib
import os
import pathlib
import re
import sys

from . import results

# Part: module, what it measures.
PARTS = {
    "operator": ("beside", "attention() beside PyTorch, ONNX Runtime, NumPy and llama.cpp"),
    "torch": ("beside", "attention_cpp.torch in place of torch's scaled_dot_product_attention"),
    "linear": ("linear", "linear attention beside the functions that models of transformers call"),
    "sparse": ("sparse", "Longformer's mask beside FlexAttention"),
    "calls": ("calls", "what a small call costs, piece by piece"),
    "sharing": ("sharing", "our attention and torch's products in turn, on shared threads and on two pools"),
    "transformers": ("transformers_models", "models of transformers with eager, sdpa and attention_cpp"),
    "watching": ("watching", "what watch() costs"),
    "training": ("training", "training and generation beside PyTorch"),
    "ranks": ("ranks", "training and generation over a network, beside PyTorch's"),
    "simulate": ("simulate", "attention over up to 4,096 ranks, simulated from measured parts"),
    "finetune": ("finetune", "fine-tuning of MiniLM on SST-2 beside PyTorch"),
    "tasks": ("tasks", "fine-tuning of MiniLM for each task of attn train"),
    "phonemes": ("phonemes", "an encoder-decoder that learns to pronounce, beside PyTorch"),
    "positions": ("positions", "losses of one small model with each kind of positions"),
    "pretrained": ("pretrained", "MiniLM, stories260K, GPT-2 and LLaMA shapes beside other programs"),
    "shrink": ("shrink", "MiniLM and SmolLM2 in 8 and 4 bits beside ONNX Runtime and llama.cpp"),
    "cache": ("cache", "SmolLM2 with a KV cache in 8 bits, beside an exact one and llama.cpp's"),
    "serve": ("serve", "attn serve with up to 64 clients, beside the server of llama.cpp"),
    "tokenizers": ("tokenizing", "text to ids beside the package tokenizers"),
    "neighbours": ("neighbours", "speed beside other programs on the same cores"),
    "pruning": ("pruning", "accuracy and perplexity against heads removed"),
    "heads": ("heads", "what the heads of two models do"),
    "pages": ("pages", "pages of attention beside BertViz's"),
}


def page(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="bench/run page", description="Prints a file of results as Markdown.")
    parser.add_argument("file")
    parser.add_argument("--summary", action="store_true", help="of `operator`: a row for each workload of summary")
    parser.add_argument("--plot", metavar="FOLDER", help="also draw its pictures (needs matplotlib)")
    options = parser.parse_args(arguments)
    from .workloads import names

    results.print_page(options.file, names("summary") if options.summary else None)
    if options.plot:
        from . import plots

        plots.draw(options.file, options.plot)


def main() -> int:
    known = "\n".join(f"  {name:14}{what}" for name, (_, what) in PARTS.items())
    if len(sys.argv) > 1 and sys.argv[1] == "page":
        page(sys.argv[2:])
        return 0
    if len(sys.argv) < 2 or sys.argv[1] not in PARTS:
        print(f"usage: bench/run PART [FLAG ...]      bench/run page FILE.csv\n\nparts:\n{known}")
        return 0 if sys.argv[1:] == ["--help"] else 2
    part = sys.argv[1]
    module = importlib.import_module(f".{PARTS[part][0]}", __package__)
    parser = argparse.ArgumentParser(prog=f"bench/run {part}", description=module.__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--csv", metavar="FILE", help="file for the rows")
    parser.add_argument("--filter", default="", type=re.compile, help="regular expression on what is measured")
    parser.add_argument("--repeats", type=int, default=0, help="samples of each figure; default: that of the part")
    parser.add_argument("--threads", default=[len(os.sched_getaffinity(0))], help="numbers of threads, as in 1,2",
                        type=lambda text: [int(count) for count in text.split(",")])
    parser.add_argument("--build", type=pathlib.Path, default=results.ROOT / "build/release", help="the build")
    parser.add_argument("--data", type=pathlib.Path, default=results.ROOT.parent / "shared/data",
                        help="folder with sst2, tinyshakespeare, stories260K and gpt2-tokenizer")
    if hasattr(module, "add_flags"):
        module.add_flags(parser)
    options = parser.parse_args(sys.argv[2:])
    options.part = part
    about = {"program": " ".join(["bench/run", *sys.argv[1:]])} | results.machine()
    return 0 if results.collect(module.run(options, about), about, options.csv) else 1


if __name__ == "__main__":
    sys.exit(main())
