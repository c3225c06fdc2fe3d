"""python -m experiments NAME: runs an experiment and writes its page. bench/experiments/run calls it."""

import argparse
import importlib
import pathlib
import sys

# Name: what it asks.
NAMES = {
    "cache": "what a KV cache saves, against the length of the text",
    "context": "loss and time against the context, at equal numbers of tokens",
    "heads": "heads and depth at equal parameters, and grouped keys and values",
    "lstm": "LSTM against attention: language modelling and copying",
    "sentences": "sentiment: bag of words, convolution, LSTM, attention and a pretrained encoder",
    "positions": "position encodings, read beyond the length of their training",
    "choices": "scaling of scores, place of the norm, warm-up, dropout, recomputation, packing",
    "mixers": "dense, window, selecting and linear mixers at 4,096 tokens: loss, time, recall",
    "precision": "float32, bfloat16 and float16: loss, time, memory",
    "projections": "queries, keys and values by one product or by three",
    "kinds": "what heads attend to, beside what texts say of BERT",
}


def main() -> int:
    if len(sys.argv) < 2 or sys.argv[1] not in NAMES:
        listed = "\n".join(f"  {name:12}{what}" for name, what in NAMES.items())
        print(f"usage: bench/experiments/run NAME [--quick] [--out FOLDER]\n\n{listed}")
        return 0 if len(sys.argv) < 2 or sys.argv[1] == "--help" else 2
    from benchmarks.results import ROOT

    from .laboratory import Laboratory, Settings

    name = sys.argv[1]
    module = importlib.import_module(f".{name}", __package__)
    parser = argparse.ArgumentParser(prog=f"bench/experiments/run {name}", description=module.__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a miniature of seconds, for tests")
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "docs/experiments", help="folder of the page")
    parser.add_argument("--data", type=pathlib.Path, default=ROOT.parent / "shared/data",
                        help="folder with tinyshakespeare and sst2")
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build/release", help="the build")
    parser.add_argument("--kept", type=pathlib.Path, default=ROOT / "build/experiments",
                        help="folder of what was measured, from which a stopped run goes on")
    options = parser.parse_args(sys.argv[2:])
    settings = Settings(name, options.quick, options.out.resolve(), options.data.resolve(),
                        (options.build / "cli/attn").resolve(), options.kept.resolve())
    if not settings.program.exists():
        sys.exit(f"{settings.program} is missing: build the target attn_cli, or --build names another build")
    try:
        for folder in (settings.out, settings.kept):  # what cannot be written is found out before anything is measured
            folder.mkdir(parents=True, exist_ok=True)
        print(module.run(Laboratory(settings, module)).write())
    except OSError as error:
        sys.exit(f"{error.filename}: {error.strerror}")
    except KeyboardInterrupt:
        print("\nstopped: the same command goes on where it was", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
