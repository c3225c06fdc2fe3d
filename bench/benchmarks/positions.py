"""Trains one small model with each kind of positions, all else equal, and prints their losses on the last tenth of a
text: cut into texts of the training's context, and into texts twice as long where the positions are defined there.

Losses are counted, not time: it may run beside other work. A few minutes on two cores.
"""

import argparse
import json
import pathlib
import re
import shutil
import statistics
import tempfile
from collections.abc import Iterator

from .programs import attn, with_range
from .results import Row

CONTEXT = 64
MODEL = ["--context", CONTEXT, "--embed-dim", 128, "--layers", 4, "--heads", 4, "--bias", "false"]
RECIPE = ["--batch", 12, "--learning-rate", 1e-3, "--warmup", 50, "--quiet"]
KINDS = {
    "none": ["--positions", "none"],
    "learned": ["--positions", "learned"],
    "sinusoidal": ["--positions", "sinusoidal"],
    "sinusoidal, embedding_scale 1": ["--positions", "sinusoidal", "--embedding-scale", 1],
    "relative": ["--positions", "relative"],
    "alibi": ["--positions", "alibi"],
    "rope": ["--positions", "rope"],
}


def add_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--text", type=pathlib.Path, help="default: tinyshakespeare")
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--seeds", type=int, default=1)


def loss_at(options: argparse.Namespace, model: pathlib.Path, text: pathlib.Path, context: int) -> float | None:
    """The loss on a file, cut into texts of `context` tokens."""
    config = json.loads((model / "config.json").read_text())
    if context > config["context"] and config["positions"] == "learned":
        return None
    copy = model.with_name("longer")
    shutil.copytree(model, copy)
    (copy / "config.json").write_text(json.dumps(config | {"context": context}))
    printed = attn(options, "eval", copy, text).stdout
    shutil.rmtree(copy)
    return float(re.search(r"loss ([0-9.]+)", printed)[1])


def losses(options: argparse.Namespace, folder: pathlib.Path, kind: str, seed: int) -> list[float | None]:
    model = folder / "model"
    attn(options, "train", folder / "text.txt", "--out", model, *MODEL, *RECIPE, *KINDS[kind], "--seed", seed,
         "--steps", options.steps, "--eval-every", options.steps)
    found = [loss_at(options, model, folder / "last_tenth.txt", context) for context in (CONTEXT, 2 * CONTEXT)]
    shutil.rmtree(model)
    return found


def run(options: argparse.Namespace, about: dict[str, object]) -> Iterator[Row]:
    about["recipe"] = f"{options.steps} steps of 12 x {CONTEXT} characters, {options.seeds} seeds"
    text = (options.text or options.data / "tinyshakespeare/input.txt").read_text()
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        (folder / "text.txt").write_text(text)
        (folder / "last_tenth.txt").write_text(text[len(text) - len(text) // 10:])
        for kind in filter(options.filter.search, KINDS):
            found = zip(*(losses(options, folder, kind, seed) for seed in range(1, options.seeds + 1)))
            shown = ["not defined" if None in values else with_range(values, ".3f", statistics.mean)
                     for values in found]
            yield {"positions": kind, f"loss at {CONTEXT}": shown[0], f"loss at {2 * CONTEXT}": shown[1]}
