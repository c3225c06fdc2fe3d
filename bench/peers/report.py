"""Rows as text, Markdown and JSON."""

import itertools
import json
import math
import platform
from dataclasses import asdict
from pathlib import Path

from measure import Row, Timing
from peers import readable_bytes

HEADER = ("threads", "peer", "ours ms", "spread", "of peak", "peer ms", "spread", "ratio", "error",
          "peer error", "extra", "peer extra", "GB/s", "peer GB/s", "how the peer does it")
LEFT = ("peer", "how the peer does it")


def _number(value: float | None, pattern: str) -> str:
    return "" if value is None else format(value, pattern)


def _milliseconds(timing: Timing | None) -> str:
    return _number(timing and timing.median * 1e3, "#.4g").rstrip(".")


def _spread(timing: Timing | None) -> str:
    return _number(timing and 100 * timing.spread, ".0f") + (" %" if timing else "")


def cells(row: Row) -> list[str]:
    peak = row.percent_of_peak(row.ours)
    return [
        str(row.threads),
        row.peer,
        _milliseconds(row.ours),
        _spread(row.ours),
        "" if peak is None else f"{peak:.1f} %",
        _milliseconds(row.theirs),
        _spread(row.theirs),
        _number(row.ratio, ".2f") + ("x" if row.ratio else ""),
        _number(row.our_error, ".1e"),
        _number(row.their_error, ".1e"),
        "" if row.our_bytes is None else readable_bytes(row.our_bytes),
        "" if row.their_bytes is None else readable_bytes(row.their_bytes),
        _number(row.cache_gbytes(row.ours), ".1f"),
        _number(row.cache_gbytes(row.theirs), ".1f"),
        ("WRONG; " if row.wrong else "") + row.note,
    ]


def table(rows: list[Row]) -> list[tuple[str, ...]]:
    """A header and the rows, without the columns that are empty in all of them."""
    lines = [HEADER, *map(cells, rows)]
    return list(zip(*(column for column in zip(*lines) if any(column[1:]))))


def print_table(name: str, rows: list[Row]) -> None:
    """One workload on the terminal."""
    lines = table(rows)
    widths = [max(map(len, column)) for column in zip(*lines)]
    print(f"\n{name}")
    for line in lines:
        padded = [cell.ljust(width) if title in LEFT else cell.rjust(width)
                  for cell, width, title in zip(line, widths, lines[0])]
        print("  " + "  ".join(padded).rstrip(), flush=True)


def cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.split(": ", 1)[1] for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def _finite(value: object) -> object:
    """JSON has no NaN."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


def document(rows: list[Row], about: dict[str, object]) -> dict[str, object]:
    """Everything measured, as JSON can hold it."""
    records = []
    for row in rows:
        record = {key: value for key, value in asdict(row).items() if key not in ("ours", "theirs")}
        for side, timing in (("our", row.ours), ("their", row.theirs)):
            record[f"{side}_seconds"] = timing and timing.median
            record[f"{side}_spread"] = timing and timing.spread
            record[f"{side}_percent_of_peak"] = row.percent_of_peak(timing)
            record[f"{side}_cache_gbytes_per_second"] = row.cache_gbytes(timing)
        record["name"], record["wrong"] = row.workload.name, row.wrong
        records.append({key: _finite(value) for key, value in record.items()})
    return {"about": about, "rows": records}


def write_json(file: str, content: dict[str, object]) -> None:
    Path(file).write_text(json.dumps(content, indent=1) + "\n")


def write_markdown(file: str, rows: list[Row], about: dict[str, object]) -> None:
    lines = ["# attention.cpp and its peers", ""]
    lines += [f"- {key}: {value}" for key, value in about.items()]
    for name, group in itertools.groupby(rows, lambda row: row.workload.name):
        header, *body = table(list(group))
        rule = tuple("---" if title in LEFT else "---:" for title in header)
        lines += ["", f"## {name}", "", *map(_markdown_line, (header, rule, *body))]
    Path(file).write_text("\n".join(lines) + "\n")


def _markdown_line(cells_of_row: tuple[str, ...]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells_of_row) + " |"
