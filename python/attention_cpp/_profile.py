"""What the calls of this package spend their time and memory on."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from typing import NamedTuple

from . import _core
from ._arrays import wrong_types


class Span(NamedTuple):
    """One call of an operation, or a scope around some."""

    name: str  #: "attention", "attention_backward", ..., or the name of a scope
    kind: str  #: "operation", "scope", or "task": what one thread of the library's pool did of an operation
    id: int
    parent: int  #: id of the innermost span that was open on its thread; 0 = none
    thread: int  #: index into `Profile.threads`
    begin: int  #: nanoseconds since the profile began
    end: int
    shape: str  #: the extents that decide the work: "1 x 8 x 512 x 512 x 64" is B x H x Lq x Lk x D of attention
    flops: float  #: multiply-adds of its products, each counted as two
    bytes: float  #: of its arguments and results, each counted once
    peak: int  #: the largest memory of the library's own arrays and scratch while it was open, in bytes


class Row(NamedTuple):
    """All calls of an operation with one shape in one scope."""

    scope: str  #: names of the scopes around it, joined by "/"
    operation: str  #: "" for the time of a scope that none of its operations took
    shape: str
    calls: int
    seconds: float
    flops: float
    bytes: float
    peak: int


class Profile:
    """What `profile()` has seen; complete when its with statement has ended."""

    spans: list[Span]
    rows: list[Row]
    threads: list[str]

    def __init__(self) -> None:
        self.spans, self.rows, self.threads = [], [], []

    def table(self, rows: int = 20) -> str:
        """Returns the slowest operations as lines of text: calls, milliseconds, share of the time, GFLOP/s, GB/s."""
        wrong_types("table", rows=(rows, "whole number"))
        if rows < 0:
            raise _core.Error(f"[table] rows is {rows}, must not be negative")
        total = sum(row.seconds for row in self.rows) or 1.0
        lines = [f"{'operation':<60}{'calls':>8}{'ms':>12}{'%':>7}{'GFLOP/s':>10}{'GB/s':>8}"]
        for row in sorted(self.rows, key=lambda row: -row.seconds)[:rows]:
            name = " ".join(part for part in (row.scope, row.operation or "(other)", row.shape) if part)
            rates = [f"{1e-9 * work / row.seconds:.1f}" if work and row.seconds else "-"
                     for work in (row.flops, row.bytes)]
            lines.append(f"{name:<60}{row.calls:>8}{1e3 * row.seconds:>12.3f}{100 * row.seconds / total:>7.1f}"
                         f"{rates[0]:>10}{rates[1]:>8}")
        return "\n".join(lines) + "\n"

    def save_trace(self, path: str | os.PathLike[str]) -> None:
        """Writes the spans as a Chrome trace, which Perfetto (ui.perfetto.dev) and chrome://tracing open."""
        wrong_types("save_trace", path=(os.fspath(path) if isinstance(path, os.PathLike) else path, "string"))
        events: list[dict[str, object]] = [
            {"ph": "M", "pid": 1, "tid": number, "name": "thread_name", "args": {"name": name}}
            for number, name in enumerate(self.threads)]
        for span in self.spans:
            work = {"shape": span.shape, "flops": span.flops, "bytes": span.bytes}
            events.append({"ph": "X", "pid": 1, "tid": span.thread, "ts": span.begin / 1e3,
                           "dur": (span.end - span.begin) / 1e3, "cat": span.kind, "name": span.name,
                           "args": {name: value for name, value in work.items() if value}})
        with open(path, "w", encoding="utf-8") as file:
            json.dump(events, file)


@contextlib.contextmanager
def _collecting(tasks: bool) -> Iterator[Profile]:
    collecting = _core.Profile(tasks)
    seen = Profile()
    try:
        yield seen
    finally:
        collecting.stop()
        seen.spans = [Span(*span) for span in collecting.spans()]
        seen.rows = [Row(*row) for row in collecting.rows()]
        seen.threads = collecting.threads()


def profile(*, tasks: bool = False) -> contextlib.AbstractContextManager[Profile]:
    """Collects every operation of the library inside a with statement, on all threads of the process.

        >>> with attention_cpp.profile() as seen:
        ...     model(inputs)
        >>> print(seen.table())
        >>> seen.save_trace("trace.json")

    Calls from the integrations are seen as well: after `attention_cpp.torch.enable()` those of torch's
    scaled_dot_product_attention, forward and backward. tasks=True also records what each thread of the library's own
    pool did; torch's threads are not seen. A span costs 0.1 to 0.2 microseconds.

    Raises Error inside another profile(): there is one at a time.
    """
    wrong_types("profile", tasks=(tasks, "True or False"))
    return _collecting(tasks)


@contextlib.contextmanager
def _named(name: str) -> Iterator[None]:
    scope = _core.ProfileScope(name)
    scope.enter()
    try:
        yield
    finally:
        scope.leave()


def profile_scope(name: str) -> contextlib.AbstractContextManager[None]:
    """Names what happens inside a with statement, for `profile()`.

        >>> with attention_cpp.profile_scope("encoder"):
        ...     encoder(inputs)
    """
    wrong_types("profile_scope", name=(name, "string"))
    return _named(name)
