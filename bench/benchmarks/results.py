"""Rows of results: aligned text on the terminal, CSV in a file, and Markdown made from such a file.

A CSV file begins with comments (# key: value) that name the machine, the commit and versions. A row is a dictionary;
the rows of one table have the same columns. Where a file has several tables, the first column, `table`, names them.
"""

import csv
import itertools
import os
import pathlib
import platform
import re
import subprocess
import sys
from collections.abc import Iterable

ROOT = pathlib.Path(__file__).resolve().parents[2]

Row = dict[str, object]


def machine() -> dict[str, object]:
    lines = pathlib.Path("/proc/cpuinfo").read_text().splitlines()
    cpu = next((line.split(": ", 1)[1] for line in lines if line.startswith("model name")), platform.machine())
    commit = subprocess.run(["git", "describe", "--always", "--dirty", "--tags"], cwd=ROOT, capture_output=True,
                            text=True).stdout.strip()
    return {"cpu": cpu, "cores": len(os.sched_getaffinity(0)), "commit": commit or "unknown"}


def text(value: object) -> str:
    return "" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)


def readable_bytes(count: float) -> str:
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.0f} {unit}"
        count /= 1024
    return f"{count:.1f} GiB"


class Printer:
    """Prints rows as they come, in columns that grow with what they hold."""

    def __init__(self) -> None:
        self._columns: tuple[str, ...] = ()
        self._table: object = None
        self._widths: dict[str, int] = {}

    def _line(self, row: Row, cells: dict[str, str]) -> str:
        return "  ".join(cell.ljust(self._widths[name]) if isinstance(row[name], str) else
                         cell.rjust(self._widths[name]) for name, cell in cells.items()).rstrip()

    def add(self, row: Row) -> None:
        cells = {name: text(value) for name, value in row.items() if name != "table"}
        is_new = tuple(cells) != self._columns or row.get("table") != self._table
        if is_new:
            self._widths = {}
            print(f"\n{row.get('table', '')}")
        self._columns, self._table = tuple(cells), row.get("table")
        self._widths = {name: max(self._widths.get(name, 0), len(name), len(cell), 7) for name, cell in cells.items()}
        if is_new:
            print(self._line(row, {name: name for name in cells}))
        print(self._line(row, cells), flush=True)


def write(path: str, about: dict[str, object], rows: list[Row]) -> None:
    columns = list(dict.fromkeys(name for row in rows for name in row))
    with open(path, "w", newline="") as file:
        file.writelines(f"# {key}: {value}\n" for key, value in about.items())
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(columns)
        writer.writerows([text(row.get(name)) for name in columns] for row in rows)


def read(path: str) -> tuple[dict[str, str], list[dict[str, str]]]:
    """What the comments say, and the rows, without cells that are empty."""
    lines = pathlib.Path(path).read_text().splitlines()
    about = dict(line.removeprefix("# ").split(": ", 1) for line in lines if line.startswith("# "))
    rows = csv.DictReader(line for line in lines if not line.startswith("# "))
    return about, [{name: cell for name, cell in row.items() if cell} for row in rows]


def markdown(rows: Iterable[dict[str, str]]) -> list[str]:
    """One table, without the columns that are empty in all rows."""
    rows = list(rows)
    columns = list(dict.fromkeys(name for row in rows for name in row))
    numbers = {name for name in columns if all(re.fullmatch(r"[-+.\de]*", row.get(name, "")) for row in rows)}

    def line(cells: Iterable[str]) -> str:
        return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"

    return [line(columns), line("---:" if name in numbers else "---" for name in columns),
            *(line(row.get(name, "") for name in columns) for row in rows)]


def quickest(rows: list[dict[str, str]], wanted: list[str]) -> list[dict[str, str]]:
    """Of the rows of `operator`, one for each of the wanted workloads: the quickest peer, and PyTorch."""
    found = []
    for name in wanted:
        timed = [row for row in rows if row["workload"] == name and "ratio" in row]
        if timed:
            best = min(timed, key=lambda row: float(row["ratio"]))
            torch = next(row for row in timed if row["peer"] == "torch")
            found.append({"workload": name, "ours ms": best["ours ms"], "% of peak": best["% of peak"],
                          "quickest peer": best["peer"], "ratio": best["ratio"], "torch": torch["ratio"]})
    return found


def print_page(path: str, summary: list[str] | None = None) -> None:
    """The file as Markdown on standard output; with a summary, one row for each of those workloads."""
    about, rows = read(path)
    print(f"# {pathlib.Path(path).stem}\n")
    print("\n".join(f"- {key}: {value}" for key, value in about.items()))
    if summary is not None:
        rows = quickest(rows, summary)
    for table, group in itertools.groupby(rows, lambda row: row.get("table")):
        print(f"\n## {table}\n" if table else "")
        print("\n".join(markdown({k: v for k, v in row.items() if k != "table"} for row in group)))


def collect(rows: Iterable[Row], about: dict[str, object], path: str | None) -> bool:
    """Prints the rows and writes them, also when they end early; whether none is WRONG. Who makes the rows may add to
    `about` before the first."""
    if path:
        open(path, "a").close()  # a file that cannot be written ends the program now, not after minutes
    kept: list[Row] = []
    printer = Printer()
    try:
        for row in rows:
            if not kept:
                print("\n".join(f"# {key}: {value}" for key, value in about.items()))
            kept.append(row)
            printer.add(row)
    finally:
        if path and kept:
            write(path, about, kept)
    wrong = sum("WRONG" in str(row) for row in kept)
    if wrong:
        print(f"\n{wrong} of {len(kept)} rows are WRONG", file=sys.stderr)
    return not wrong
