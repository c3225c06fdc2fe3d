"""Two pictures of a comparison: the share of the peak over the length, the ratio to each peer.

compare.py --plot draws them; so does "plot.py rows.json folder", later.
"""

import json
import sys
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")  # no display
import matplotlib.pyplot as plt
from matplotlib.axes import Axes

# Okabe and Ito's colours, distinguishable for every eye; markers are for prints in grey.
STYLES = {
    "attention.cpp": ("#D55E00", "o"),
    "torch": ("#0072B2", "s"),
    "torch-flex": ("#56B4E9", "D"),
    "torch-eager": ("#CC79A7", "v"),
    "onnxruntime": ("#009E73", "^"),
    "numpy": ("#7F7F7F", "x"),
    "llama.cpp": ("#E69F00", "P"),
}
PANELS = [(operation, dtype) for operation in ("forward", "backward")
          for dtype in ("float32", "bfloat16")]

Record = dict[str, Any]  # a row of the JSON


def write_plots(content: dict[str, Any], folder: str) -> None:
    """peak.png and ratio.png, of the rows with most threads."""
    Path(folder).mkdir(parents=True, exist_ok=True)
    threads = max(row["threads"] for row in content["rows"])
    timed = [row for row in content["rows"] if row["our_seconds"] and row["threads"] == threads]
    _plot_peak([row for row in timed if _is_plain(row)], threads, Path(folder) / "peak.png")
    _plot_ratio(timed, threads, Path(folder) / "ratio.png")


def _is_plain(row: Record) -> bool:
    """Self-attention of the grid of sizes, without options."""
    w = row["workload"]
    return (w["operation"] in ("forward", "backward") and w["option"] in ("full", "causal")
            and w["H"] == w["Hk"] and w["D"] == w["Dv"])


def _kind(row: Record) -> str:
    """Workloads that go on one line of the picture of ratios."""
    w = row["workload"]
    if w["operation"] == "decode":
        return f"one token, {w['dtype']}, {w['H'] // w['Hk']} x {w['Hk']} heads"
    option = "short sentences" if w["option"] == "lengths" else w["option"]
    return f"{w['operation']}, {option}, {w['dtype']}"


def _plot_peak(rows: list[Record], threads: int, file: Path) -> None:
    """Causal; of the head counts at a length, the one with most work."""
    causal = [row for row in rows if row["workload"]["option"] == "causal"]
    if len({row["workload"]["Lk"] for row in causal}) < 2:
        return  # no line to draw
    depths = [row["workload"]["D"] for row in causal]
    depth = max(sorted(set(depths)), key=depths.count)
    figure, axes = plt.subplots(2, 2, figsize=(8, 5.5), sharex=True, sharey=True,
                                layout="constrained")
    for (operation, dtype), axis in zip(PANELS, axes.flat):
        wanted = (operation, dtype, depth)
        _draw_lines(axis, _points([
            row for row in causal
            if tuple(row["workload"][key] for key in ("operation", "dtype", "D")) == wanted]))
        axis.set_title(f"{operation}, {dtype}", fontsize=10)
    for axis in axes[1]:
        axis.set_xlabel("tokens")
    figure.supylabel("% of the measured multiply-add peak", fontsize=10)
    figure.suptitle(f"Causal attention, D = {depth}, {threads} threads", fontsize=11)
    _shared_legend(figure)
    figure.savefig(file, dpi=110)
    plt.close(figure)


def _points(rows: list[Record]) -> dict[str, dict[int, float]]:
    """Library -> length -> percent of peak."""
    points: dict[str, dict[int, float]] = {}
    for row in sorted(rows, key=lambda row: row["workload"]["B"] * row["workload"]["H"]):
        for name, percent in (("attention.cpp", row["our_percent_of_peak"]),
                              (row["peer"], row["their_percent_of_peak"])):
            if percent is not None:
                points.setdefault(name, {})[row["workload"]["Lk"]] = percent
    return points


def _draw_lines(axis: Axes, points: dict[str, dict[int, float]]) -> None:
    for name in [name for name in STYLES if name in points]:
        color, marker = STYLES[name]
        lengths = sorted(points[name])
        axis.plot(lengths, [points[name][n] for n in lengths], color=color, marker=marker,
                  markersize=5, label=name)
    axis.set_xscale("log", base=2)
    axis.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axis.set_ylim(0, 100)
    axis.grid(alpha=0.3)


def _plot_ratio(rows: list[Record], threads: int, file: Path) -> None:
    """A line a kind of workload, a mark a workload and peer: right of 1 the peer takes longer."""
    ratios = [row for row in rows if row["ratio"]]
    if not ratios:
        return
    kinds = list(dict.fromkeys(_kind(row) for row in ratios))
    peers = list(dict.fromkeys(row["peer"] for row in ratios))
    figure, axis = plt.subplots(figsize=(8, 1.4 + 0.3 * len(kinds)), layout="constrained")
    for i, peer in enumerate(peers):
        color, marker = STYLES[peer]
        own = [row for row in ratios if row["peer"] == peer]
        offset = 0.6 * ((i + 0.5) / len(peers) - 0.5)
        heights = [kinds.index(_kind(row)) + offset for row in own]
        axis.scatter([row["ratio"] for row in own], heights, color=color, marker=marker, s=14,
                     alpha=0.8, linewidth=0.8, label=peer, zorder=3)
    axis.axvline(1, color="black", linewidth=1)
    axis.set_xscale("log", base=2)
    axis.xaxis.set_major_formatter(lambda value, _: f"{value:g}x")
    axis.set_yticks(range(len(kinds)), kinds, fontsize=7)
    axis.set_ylim(len(kinds) - 0.5, -0.5)
    axis.grid(alpha=0.3)
    axis.set_xlabel("time of the peer / time of attention.cpp")
    count = len({row["name"] for row in ratios})
    axis.set_title(f"{count} workloads, {threads} threads; right of the line attention.cpp is faster",
                   fontsize=10)
    _shared_legend(figure)
    figure.savefig(file, dpi=110)
    plt.close(figure)


def _shared_legend(figure: plt.Figure) -> None:
    """One entry a library below all panels."""
    found = {label: handle for axis in figure.axes
             for handle, label in zip(*axis.get_legend_handles_labels())}
    figure.legend(found.values(), found.keys(), loc="outside lower center", ncols=len(found),
                  fontsize=8, frameon=False)


if __name__ == "__main__":
    write_plots(json.loads(Path(sys.argv[1]).read_text()), sys.argv[2])
