"""The operator beside other libraries, in one process, on the same arrays; each result is checked before it is timed.

`operator` times attention_cpp.attention() with its own options and threads, beside the quickest way that each library
has. `torch` times attention_cpp.torch.scaled_dot_product_attention() beside torch's, both called with the same
arguments, on torch's threads.
"""

import argparse
import importlib
import math
import os
from collections.abc import Iterator

from . import results
from .ours import Operator, peak_gflops
from .peers import Peer, Prepared, first_line
from .tensors import Expected, Tensors, error_of, expected_results, flops
from .timing import extra_bytes, in_turn, ratio, seconds_of
from .workloads import Workload, names, parse

# Name in --peers, module, class. A module that cannot be imported is a peer that is not installed.
MODULES = [
    ("torch", "torch_peers", "TorchSdpa"),
    ("flex", "torch_peers", "TorchFlex"),
    ("eager", "torch_peers", "TorchEager"),
    ("ort", "onnx_peer", "OnnxRuntime"),
    ("llama", "llama_peer", "LlamaCpp"),
    ("numpy", "peers", "NumPy"),
]
KNOWN = [name for name, _, _ in MODULES]
SAMPLE_SECONDS = 0.02
PAIR_SECONDS = 4.0  # ours and a peer; beyond it fewer rounds, but at least 3
BOUNDS = {"float32": 1e-5, "bfloat16": 2**-7}  # no result below its bound is called wrong


def add_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--set", help="sets of workloads.json; default: peers, or torch")
    parser.add_argument("--peers", default=",".join(KNOWN), help=f"of `operator`; default: {','.join(KNOWN)}")
    parser.add_argument("--with-llama", action="store_true", help="of `operator`: compile llama.cpp too")


def load_peers(wanted: list[str], about: dict[str, object]) -> list[Peer]:
    if unknown := set(wanted) - set(KNOWN):
        raise SystemExit(f"unknown peer {', '.join(sorted(unknown))}; there are {', '.join(KNOWN)}")
    peers: list[Peer] = []
    for name, module, class_name in MODULES:
        if name in wanted:
            try:
                peers.append(getattr(importlib.import_module(f".{module}", __package__), class_name)())
                about[peers[-1].name] = peers[-1].version()
            except Exception as error:  # a broken installation is like none
                about[name] = f"not installed, {first_line(error)}"
    return peers


def is_wrong(w: Workload, ours: float | None, theirs: float | None) -> bool:
    """Beyond the bound, and not because the format or the problem makes the peer as inexact."""
    if ours is None:  # random: no reference can have it
        return False
    return math.isnan(ours) or ours > BOUNDS[w.dtype] and (theirs is None or not ours <= 2 * theirs)


class Comparison:
    """Our library against the peers."""

    def __init__(self, ours: Peer, peers: list[Peer], rounds: int) -> None:
        self._ours, self._peers, self._rounds = ours, peers, rounds
        self._best_peak: dict[tuple[str, int], float] = {}

    def rows(self, w: Workload, threads: int) -> Iterator[results.Row]:
        t = Tensors(w)
        expected = expected_results(w, t)
        self._ours.set_threads(threads)
        ours = self._ours.prepare(w, t)
        error = error_of(ours.fetch(ours.call()), expected) if ours.compared else None
        timed = 0
        for peer in self._peers:
            reason = peer.supports(w)
            if reason == "":
                continue
            theirs = their_error = their_bytes = None
            if not reason:
                try:
                    peer.set_threads(threads)
                    theirs = peer.prepare(w, t)
                    their_bytes = extra_bytes(theirs.call) if theirs.extra_bytes is None else theirs.extra_bytes
                    their_error = error_of(theirs.fetch(theirs.call()), expected) if theirs.compared else None
                    reason = theirs.note
                except Exception as problem:  # whatever it is, the others go on
                    theirs, reason = None, first_line(problem)
            timed += theirs is not None
            yield self._row(w, threads, peer.name, ours, error, theirs, their_error, their_bytes, reason)
        if not timed:
            yield self._row(w, threads, "none", ours, error, None, None, None, ours.note, alone=True)

    def _row(self, w: Workload, threads: int, peer: str, ours: Prepared, error: float | None, theirs: Prepared | None,
             their_error: float | None, their_bytes: int | None, note: str, alone: bool = False) -> results.Row:
        row: results.Row = dict.fromkeys(("workload", "threads", "peer", "ours ms", "spread %", "% of peak", "peer ms",
                                          "peer spread %", "ratio", "error", "peer error", "MiB", "peer MiB", "GB/s",
                                          "peer GB/s", "how"))
        row |= {"workload": w.name, "threads": threads, "peer": peer, "how": note}
        if theirs is None and not alone:
            return row
        if is_wrong(w, error, their_error):
            row["how"] = f"WRONG; {note}"
        peaks = [self._best_peak.get((w.dtype, threads), 0.0)]
        taken = in_turn([ours.call] + ([theirs.call] if theirs else []), self._rounds, sample_seconds=SAMPLE_SECONDS,
                        most_seconds=PAIR_SECONDS, settled=True,
                        before_round=lambda: peaks.append(peak_gflops(w.dtype)))
        # The most that this run has seen: a peak measured in a slow spell would flatter us.
        self._best_peak[w.dtype, threads] = max(peaks)
        seconds = taken[0].median
        row |= {"ours ms": seconds * 1e3, "spread %": 100 * taken[0].spread, "error": error,
                "% of peak": 100 * flops(w) / seconds * 1e-9 / max(peaks), "MiB": ours.extra_bytes / 2**20}
        if w.operation == "decode":
            row["GB/s"] = w.cache_bytes() / seconds * 1e-9
        if theirs:
            row |= {"peer ms": taken[1].median * 1e3, "peer spread %": 100 * taken[1].spread, "ratio": ratio(*taken),
                    "peer error": their_error, "peer MiB": their_bytes and their_bytes / 2**20}
            if w.operation == "decode":
                row["peer GB/s"] = w.cache_bytes() / taken[1].median * 1e-9
        return row


def describe(ours: Peer, threads: list[int], about: dict[str, object]) -> None:
    """What crossing from Python costs, and what the arithmetic units reach."""
    w = parse("forward/full/float32/B1/H1/n1/D8/blhd")
    ours.set_threads(1)
    call = ours.prepare(w, Tensors(w)).call
    fastest = min(seconds_of(call, 1000) for _ in range(5))
    about["our call from Python"] = f"{fastest * 1e6:.1f} us, included in every time"
    for count in threads:
        ours.set_threads(count)
        for dtype in ("float32", "bfloat16"):
            rate = max(peak_gflops(dtype) for _ in range(5))
            about[f"peak {dtype}, threads {count}"] = f"{rate:.0f} GFLOP/s"


def run(options: argparse.Namespace, about: dict[str, object]) -> Iterator[results.Row]:
    is_drop_in = options.part == "torch"
    chosen = names(options.set or ("torch" if is_drop_in else "peers"))
    workloads = [parse(name) for name in chosen if options.filter.search(name)]
    about["load"] = f"{os.getloadavg()[0]:.1f} programs at work, this one included"
    if is_drop_in:
        from .torch_peers import DropIn, SameArguments, torch

        ours: Peer = DropIn()
        peers: list[Peer] = [SameArguments("torch", torch.nn.functional.scaled_dot_product_attention)]
        about["torch"] = torch.__version__
    else:
        ours, peers = Operator(), load_peers(options.peers.split(","), about)
    describe(ours, options.threads, about)
    comparison = Comparison(ours, peers, options.repeats or 7)
    for w in workloads:
        for threads in options.threads:
            yield from comparison.rows(w, threads)
