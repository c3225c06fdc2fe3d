"""The pictures of pages: lines with bars from the lowest to the highest seed."""

from collections.abc import Iterable, Sequence

import matplotlib

matplotlib.use("Agg")  # no display
import matplotlib.pyplot as plt  # noqa: E402

# Okabe and Ito's colours, which every eye tells apart; the markers are for prints in grey.
STYLES = [("#0072B2", "o"), ("#D55E00", "s"), ("#009E73", "^"), ("#CC79A7", "D"), ("#E69F00", "v"), ("#56B4E9", "P"),
          ("#7F7F7F", "x"), ("#000000", "*")]

Points = dict[float, Sequence[float]]  # x -> samples of y


def panels(count: int, height: float = 3.6):
    figure, axes = plt.subplots(1, count, figsize=(4.6 * count, height), layout="constrained", squeeze=False)
    return figure, list(axes[0])


def lines(axis, series: dict[str, Points], x_label: str, y_label: str, log_x: bool = True, log_y: bool = False) -> None:
    for (name, points), (colour, marker) in zip(series.items(), STYLES):
        x = sorted(points)
        middles = [sorted(points[each])[len(points[each]) // 2] for each in x]
        below = [m - min(points[each]) for m, each in zip(middles, x)]
        above = [max(points[each]) - m for m, each in zip(middles, x)]
        axis.errorbar(x, middles, yerr=[below, above], color=colour, marker=marker, markersize=5, capsize=3, label=name)
    if log_x:
        axis.set_xscale("log", base=2)
        axis.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    if log_y:
        axis.set_yscale("log")
        axis.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
        low, high = axis.get_ylim()
        axis.yaxis.set_minor_formatter(lambda value, _: f"{value:g}" if high < 10 * low else "")
    axis.set_xlabel(x_label)
    axis.set_ylabel(y_label)
    axis.grid(alpha=0.3)
    if len(series) > 1:
        axis.legend(frameon=False, fontsize=8)


def curves(axis, series: dict[str, Iterable[tuple[float, float]]], x_label: str, y_label: str) -> None:
    """A line for each list of points, without marks."""
    for (name, points), (colour, _) in zip(series.items(), STYLES):
        x, y = zip(*points)
        axis.plot(x, y, color=colour, label=name, linewidth=1.3)
    axis.set_xlabel(x_label)
    axis.set_ylabel(y_label)
    axis.grid(alpha=0.3)
    axis.legend(frameon=False, fontsize=8)
