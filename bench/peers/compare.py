"""Compares attention.cpp with other libraries on this machine; ./run calls it."""

import argparse
import importlib
import os
import re
import sys

from measure import Bench, Row
from oracle import expected_results
from ours import Ours
from peers import Peer, first_line
from report import cpu_model, document, print_table, write_json, write_markdown
from tensors import Tensors
from workloads import DEFAULT, FULL, QUICK, all_workloads

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


def parse_flags() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--library", required=True, help="the C ABI of this library (set by run)")
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--quick", action="store_true", help="a dozen workloads, under two minutes")
    size.add_argument("--full", action="store_true", help="every size")
    cores = len(os.sched_getaffinity(0))
    parser.add_argument("--threads", default=str(cores), help="numbers of threads, as in 1,2")
    parser.add_argument("--filter", default="", help="regular expression on the workload's name")
    parser.add_argument("--peers", default=",".join(KNOWN), help=f"default: {','.join(KNOWN)}")
    parser.add_argument("--repeats", type=int, default=0, help="samples; default 7, quick 5")
    parser.add_argument("--json", help="file for everything measured")
    parser.add_argument("--markdown", help="file for the tables")
    parser.add_argument("--plot", help="folder for two pictures")
    flags = parser.parse_args()
    try:
        flags.pattern = re.compile(flags.filter)
        flags.threads = [int(count) for count in flags.threads.split(",")]
        if min(flags.threads) < 1 or flags.repeats < 0:
            raise ValueError("--threads must be positive, --repeats not negative")
        for file in filter(None, (flags.json, flags.markdown)):
            open(file, "a").close()  # now, not after minutes of measuring
        if flags.plot:
            os.makedirs(flags.plot, exist_ok=True)
    except (OSError, ValueError, re.error) as error:
        parser.error(f"--threads, --filter, --repeats or a file: {error}")
    return flags


def load_peers(names: list[str]) -> list[Peer]:
    unknown = set(names) - set(KNOWN)
    if unknown:
        sys.exit(f"unknown peer {', '.join(sorted(unknown))}; there are {', '.join(KNOWN)}")
    peers: list[Peer] = []
    for name, module, class_name in MODULES:
        if name in names:
            try:
                peers.append(getattr(importlib.import_module(module), class_name)())
            except Exception as error:  # a broken installation is like none
                print(f"{name}: not installed, {first_line(error)}")
    return peers


def main() -> int:
    flags = parse_flags()
    level = QUICK if flags.quick else FULL if flags.full else DEFAULT
    workloads = [w for w in all_workloads() if w.level <= level and flags.pattern.search(w.name)]
    if not workloads:
        sys.exit(f"no workload matches {flags.filter}")
    threads = flags.threads
    ours = Ours(flags.library)
    peers = load_peers(flags.peers.split(","))
    bench = Bench(ours, flags.repeats or (5 if flags.quick else 7))

    about: dict[str, object] = {"cpu": cpu_model(), "cores": len(os.sched_getaffinity(0))}
    about |= {peer.name: peer.version() for peer in peers}
    about["load"] = f"{os.getloadavg()[0]:.1f} programs at work, this one and its build included"
    overhead = bench.overhead_seconds() * 1e6
    about["our call from Python"] = f"{overhead:.1f} us, included in every time"
    for count in threads:
        ours.set_threads(count)
        for dtype in ("float32", "bfloat16"):
            rate = max(ours.peak_gflops(dtype) for _ in range(5))
            about[f"peak {dtype}, {count} thread{'s' * (count > 1)}"] = f"{rate:.0f} GFLOP/s"
    for key, value in about.items():
        print(f"{key}: {value}")

    rows: list[Row] = []
    for w in workloads:
        tensors = Tensors(w)
        expected = expected_results(w, tensors, ours.dropout_keeps)
        of_workload: list[Row] = []
        for count in threads:
            of_workload += bench.rows(w, tensors, expected, count, peers)
        print_table(w.name, of_workload)
        rows += of_workload

    if flags.json:
        write_json(flags.json, document(rows, about))
    if flags.markdown:
        write_markdown(flags.markdown, rows, about)
    if flags.plot:
        importlib.import_module("plot").write_plots(document(rows, about), flags.plot)
    wrong = sum(row.wrong for row in rows)
    print(f"\n{len(workloads)} workloads, {len(rows)} rows, {wrong} WRONG")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
