"""Pictures of a file of results: of `operator` the share of the peak over the length and the ratio to each peer, of
`heads` how an induction head forms, of `pruning` the curves."""

import pathlib
from collections.abc import Callable

import matplotlib

matplotlib.use("Agg")  # no display
import matplotlib.pyplot as plt  # noqa: E402
from matplotlib.axes import Axes  # noqa: E402

from . import results  # noqa: E402
from .workloads import Workload, parse  # noqa: E402

# Okabe and Ito's colours, which every eye tells apart; the markers are for prints in grey.
STYLES = {
    "attention.cpp": ("#D55E00", "o"),
    "torch": ("#0072B2", "s"),
    "torch-flex": ("#56B4E9", "D"),
    "torch-eager": ("#CC79A7", "v"),
    "onnxruntime": ("#009E73", "^"),
    "numpy": ("#7F7F7F", "x"),
    "llama.cpp": ("#E69F00", "P"),
    "gates": ("#D55E00", "o"),
    "gradient": ("#0072B2", "s"),
    "leave-one-out": ("#009E73", "^"),
    "random": ("#7F7F7F", "x"),
}

Row = dict[str, str]


def draw(file: str, folder: str) -> None:
    about, rows = results.read(file)
    pictures: dict[str, Callable[[list[Row], pathlib.Path], None]] = {
        "operator": operator, "heads": induction, "pruning": pruning}
    part = about["program"].split()[1]
    if part not in pictures:
        raise SystemExit(f"{part} has no pictures; {', '.join(pictures)} have")
    pathlib.Path(folder).mkdir(parents=True, exist_ok=True)
    pictures[part](rows, pathlib.Path(folder))


def save(figure: plt.Figure, file: pathlib.Path) -> None:
    figure.savefig(file, dpi=110, metadata={"Software": None})
    plt.close(figure)


def shared_legend(figure: plt.Figure) -> None:
    """One entry a library below all panels."""
    found = {label: handle for axis in figure.axes for handle, label in zip(*axis.get_legend_handles_labels())}
    figure.legend(found.values(), found.keys(), loc="outside lower center", ncols=len(found), fontsize=8, frameon=False)


# ------------------------------------------------------------------------------------------------------------ operator

def operator(rows: list[Row], folder: pathlib.Path) -> None:
    """peak.png and ratio.png, of the rows with most threads."""
    threads = max(int(row["threads"]) for row in rows)
    timed = [(parse(row["workload"]), row) for row in rows if "ours ms" in row and int(row["threads"]) == threads]
    plain = [(w, row) for w, row in timed if w.operation in ("forward", "backward") and w.option == "causal"
             and w.H == w.Hk and w.D == w.Dv]
    draw_peak(plain, threads, folder / "peak.png")
    draw_ratio([(w, row) for w, row in timed if "ratio" in row], threads, folder / "ratio.png")


def draw_peak(rows: list[tuple[Workload, Row]], threads: int, file: pathlib.Path) -> None:
    """Of the head counts at a length, the one with most work."""
    if len({w.Lk for w, _ in rows}) < 2:
        return  # no line to draw
    depths = [w.D for w, _ in rows]
    depth = max(sorted(set(depths)), key=depths.count)
    figure, axes = plt.subplots(2, 2, figsize=(8, 5.5), sharex=True, sharey=True, layout="constrained")
    panels = [(operation, dtype) for operation in ("forward", "backward") for dtype in ("float32", "bfloat16")]
    for (operation, dtype), axis in zip(panels, axes.flat):
        draw_lines(axis, points_of([(w, row) for w, row in rows
                                    if (w.operation, w.dtype, w.D) == (operation, dtype, depth)]))
        axis.set_title(f"{operation}, {dtype}", fontsize=10)
    for axis in axes[1]:
        axis.set_xlabel("tokens")
    figure.supylabel("% of the measured multiply-add peak", fontsize=10)
    figure.suptitle(f"Causal attention, D = {depth}, {threads} threads", fontsize=11)
    shared_legend(figure)
    save(figure, file)


def points_of(rows: list[tuple[Workload, Row]]) -> dict[str, dict[int, float]]:
    """Library -> length -> percent of peak."""
    points: dict[str, dict[int, float]] = {}
    for w, row in sorted(rows, key=lambda pair: pair[0].B * pair[0].H):
        share = float(row["% of peak"])
        points.setdefault("attention.cpp", {})[w.Lk] = share
        if "peer ms" in row:
            points.setdefault(row["peer"], {})[w.Lk] = share * float(row["ours ms"]) / float(row["peer ms"])
    return points


def draw_lines(axis: Axes, points: dict[str, dict[int, float]]) -> None:
    for name in [name for name in STYLES if name in points]:
        color, marker = STYLES[name]
        lengths = sorted(points[name])
        axis.plot(lengths, [points[name][n] for n in lengths], color=color, marker=marker, markersize=5, label=name)
    axis.set_xscale("log", base=2)
    axis.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axis.set_ylim(0, 100)
    axis.grid(alpha=0.3)


def kind_of(w: Workload) -> str:
    """Workloads that go on one line of the picture of ratios."""
    if w.operation == "decode":
        return f"one token, {w.dtype}, {w.group} x {w.Hk} heads"
    option = {"lengths": "short sentences" if w.B > 4 else "padding"}.get(w.option, w.option)
    return f"{w.operation}, {option}, {w.dtype}"


def draw_ratio(rows: list[tuple[Workload, Row]], threads: int, file: pathlib.Path) -> None:
    """A line a kind of workload, a mark a workload and peer: right of 1 the peer takes longer."""
    if not rows:
        return
    kinds = list(dict.fromkeys(kind_of(w) for w, _ in rows))
    peers = list(dict.fromkeys(row["peer"] for _, row in rows))
    figure, axis = plt.subplots(figsize=(8, 1.4 + 0.3 * len(kinds)), layout="constrained")
    for i, peer in enumerate(peers):
        color, marker = STYLES[peer]
        own = [(w, row) for w, row in rows if row["peer"] == peer]
        offset = 0.6 * ((i + 0.5) / len(peers) - 0.5)
        axis.scatter([float(row["ratio"]) for _, row in own], [kinds.index(kind_of(w)) + offset for w, _ in own],
                     color=color, marker=marker, s=14, alpha=0.8, linewidth=0.8, label=peer, zorder=3)
    axis.axvline(1, color="black", linewidth=1)
    axis.set_xscale("log", base=2)
    axis.xaxis.set_major_formatter(lambda value, _: f"{value:g}x")
    axis.set_yticks(range(len(kinds)), kinds, fontsize=7)
    axis.set_ylim(len(kinds) - 0.5, -0.5)
    axis.grid(alpha=0.3)
    axis.set_xlabel("time of the peer / time of attention.cpp")
    axis.set_title(f"{len({w.name for w, _ in rows})} workloads, {threads} threads; right of the line attention.cpp is "
                   "faster", fontsize=10)
    shared_legend(figure)
    save(figure, file)


# ------------------------------------------------------------------------------------------------------------ induction

def induction(rows: list[Row], folder: pathlib.Path) -> None:
    rows = [row for row in rows if row["table"] == "induction"]
    steps = [int(row["step"]) for row in rows]
    figure, (losses, scores) = plt.subplots(2, 1, sharex=True, figsize=(8, 6.5), layout="constrained")
    for axes, labels in (
            (losses, {"loss": "all tokens", "loss of repeated tokens": "tokens that repeat",
                      "loss of other tokens": "tokens that cannot be predicted"}),
            (scores, {"previous of layer 0": "previous token, best head of layer 0",
                      "duplicate of layer 0": "duplicate token, best head of layer 0",
                      "induction of layer 0": "induction, best head of layer 0",
                      "induction of layer 1": "induction, best head of layer 1"})):
        for column, label in labels.items():
            axes.plot(steps, [float(row[column]) for row in rows], label=label)
        axes.legend(frameon=False)
        axes.grid(alpha=0.3)
    losses.set(ylabel="validation loss, nats a token", ylim=(0, None))
    scores.set(xlabel="training step", ylabel="score", ylim=(0, 1))
    save(figure, folder / "induction.png")


# -------------------------------------------------------------------------------------------------------------- pruning

def pruning(rows: list[Row], folder: pathlib.Path) -> None:
    models = list(dict.fromkeys(row["model"] for row in rows))
    figure, all_axes = plt.subplots(1, len(models), figsize=(5.5 * len(models), 4), layout="constrained", squeeze=False)
    for axis, model in zip(all_axes[0], models):
        curve = [row for row in rows if row["model"] == model and row["table"] == "curve"]
        unit = next(name for name in curve[0] if name in ("% right of the test set", "perplexity"))
        heads = {row["when"]: int(row["heads"]) for row in rows if row["model"] == model and row["table"] == "cost"}
        gone = 100 * (1 - heads["after"] / heads["before"])
        for method in dict.fromkeys(row["method"] for row in curve):
            colour, marker = STYLES[method]
            own = [row for row in curve if row["method"] == method]
            shares = [float(row["% of heads"]) for row in own]
            axis.plot(shares, [float(row[unit]) for row in own], color=colour, marker=marker, label=method)
            if method == "random":
                axis.fill_between(shares, [float(row["lowest"]) for row in own], [float(row["highest"]) for row in own],
                                  color=colour, alpha=0.15, linewidth=0)
            trained = next(row for row in rows if row["model"] == model and row["table"] == "share"
                           and row["method"] == method)
            axis.plot([gone], [float(trained["retrained"].split()[0])], color=colour, marker=marker, markersize=11,
                      fillstyle="none", linestyle="none")
        axis.set(title=model, xlabel="heads removed, %", ylabel=unit)
        axis.axvline(40, color="black", linewidth=0.5, linestyle=":")
        axis.grid(alpha=0.3)
    all_axes[0][0].legend(title="large and hollow: retrained")
    save(figure, folder / "pruning.png")
