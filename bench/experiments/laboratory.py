"""What all experiments share: running attn, keeping what was measured, progress, and the page.

What a step measured is kept in build/experiments/NAME.jsonl, so that a run that was stopped goes on where it was. It is
measured anew where the program attn, the machine or what the experiment's module measures has changed: the whole module
but its function page().
"""

import dataclasses
import hashlib
import inspect
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time
import types
from collections.abc import Callable, Iterable, Iterator, Sequence

from benchmarks.results import machine, markdown

SEEDS = (1, 2, 3)

Row = dict[str, object]


class MissingData(SystemExit):
    """Data that no package here brings: says where it comes from."""


@dataclasses.dataclass
class Settings:
    name: str
    quick: bool  # a miniature, for tests
    out: pathlib.Path  # the folder of the pages
    data: pathlib.Path
    program: pathlib.Path  # attn
    kept: pathlib.Path  # the folder of what was measured
    threads: int = len(os.sched_getaffinity(0))


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]


class Laboratory:
    """Runs the steps of one experiment."""

    def __init__(self, settings: Settings, module: types.ModuleType) -> None:
        self.settings = settings
        self.quick = settings.quick
        self._about = machine()
        measuring = inspect.getsource(module).replace(inspect.getsource(module.page), "")
        self._key = {"program": digest(settings.program.read_bytes()), "measuring": digest(measuring.encode()),
                     "cpu": self._about["cpu"], "threads": settings.threads}
        self._file = settings.kept / f"{settings.name}{'-quick' if settings.quick else ''}.jsonl"
        self._kept = {record["step"]: record for record in self._records() if record["key"] == self._key}
        self._folder = tempfile.TemporaryDirectory()
        self.folder = pathlib.Path(self._folder.name)  # where attn runs
        self.seconds = 0.0  # that the steps took, when they were measured

    def _records(self) -> Iterator[dict]:
        """Those of the file, without one that was cut off."""
        if not self._file.exists():
            return
        for line in self._file.read_text().splitlines():
            try:
                yield json.loads(line)
            except json.JSONDecodeError:
                print(f"{self._file.name}: a line is damaged, its step is measured again", file=sys.stderr)

    def about(self) -> dict[str, object]:
        commits = dict.fromkeys(record["commit"] for record in self._kept.values())
        return {"Processor": self._about["cpu"], "Threads": self.settings.threads, "Commit": ", ".join(commits)}

    def data(self, name: str, what: str) -> pathlib.Path:
        """A file of --data; `what` says in an error what it is and where it comes from."""
        path = self.settings.data / name
        if not path.exists():
            raise MissingData(f"{path} is missing: --data names a folder with {name}, {what}")
        return path

    def text(self) -> str:
        """The name of a file in the folder: Tiny Shakespeare, 1.1 MB."""
        path = self.data("tinyshakespeare/input.txt", "the text of github.com/karpathy/char-rnn, data/tinyshakespeare")
        if not (self.folder / "text.txt").exists():
            (self.folder / "text.txt").symlink_to(path)
        return "text.txt"

    def sst2(self, part: str) -> pathlib.Path:
        """Sentences, each with a tab and its label: train, dev or test."""
        return self.data(f"sst2/{part}.tsv", "sentences of the Stanford Sentiment Treebank with the labels 0 and 1")

    def attn(self, command: str, *more: object) -> subprocess.CompletedProcess[str]:
        """Runs `attn COMMAND`, split at blanks, with more arguments as they are, in the folder of this run."""
        arguments = [*command.split(), *map(str, more)]
        done = subprocess.run([self.settings.program, "--threads", str(self.settings.threads), *arguments],
                              capture_output=True, text=True, errors="replace", cwd=self.folder)
        if done.returncode:
            raise SystemExit(f"attn {' '.join(arguments)}: {done.stderr.strip()}")
        return done

    def log(self, model: str) -> list[Row]:
        """The lines that `attn train` wrote for a model of this folder: updates, which have a "loss", and
        validations, which have a "validation_loss"."""
        return [json.loads(line) for line in (self.folder / model / "log.jsonl").read_text().splitlines()]

    def sweep(self, command: str) -> list[Row]:
        """The rows of `attn sweep COMMAND`, numbers as numbers."""
        printed = self.attn(f"sweep {command} -o json").stdout
        return json.JSONDecoder().raw_decode(printed)[0]

    def measured(self, steps: Sequence[tuple[str, Callable[[], list[Row]]]]) -> list[Row]:
        """The rows of all steps, in their order; those that are kept are not measured again."""
        todo = [name for name, _ in steps if name not in self._kept]
        begin, rows = time.monotonic(), []
        for name, measure in steps:
            if name not in self._kept:
                done = len(todo) - sum(each not in self._kept for each in todo)
                passed = time.monotonic() - begin
                left = f"   about {passed / done * (len(todo) - done) / 60:.0f} minutes left" if done else ""
                print(f"{done + 1} of {len(todo)}: {name}{left}", file=sys.stderr, flush=True)
                start = time.monotonic()
                record = {"key": self._key, "commit": self._about["commit"], "step": name, "rows": measure()}
                record["seconds"] = time.monotonic() - start
                self._keep(record)
            rows += self._kept[name]["rows"]
        self.seconds += sum(self._kept[name]["seconds"] for name, _ in steps)
        return rows

    def _keep(self, record: dict[str, object]) -> None:
        self._file.parent.mkdir(parents=True, exist_ok=True)
        with open(self._file, "a") as file:
            file.write(json.dumps(record) + "\n")
        self._kept[record["step"]] = record


def last_loss(log: list[Row]) -> float:
    """The loss of the last validation."""
    return [row["validation_loss"] for row in log if "validation_loss" in row][-1]


def grouped(rows: Iterable[Row], *names: str) -> dict[tuple, list[Row]]:
    groups: dict[tuple, list[Row]] = {}
    for row in rows:
        groups.setdefault(tuple(row[name] for name in names), []).append(row)
    return groups


# ----------------------------------------------------------------------------------------------------------------- page

class Page:
    """The Markdown of an experiment; written at once at the end, so that a failure leaves the old page."""

    def __init__(self, laboratory: Laboratory, title: str, summary: str) -> None:
        self._laboratory = laboratory
        self._parts = [f"# {title}", summary]
        self._pictures: dict[str, object] = {}

    def section(self, title: str, *paragraphs: str) -> None:
        self._parts += [f"## {title}", *paragraphs]

    def add(self, *paragraphs: str) -> None:
        self._parts += paragraphs

    def table(self, rows: list[dict[str, str]]) -> None:
        self._parts.append("\n".join(markdown(rows)))

    def picture(self, figure, name: str, alternative: str) -> None:
        self._pictures[name] = figure
        self._parts.append(f"![{alternative}]({name}.png)")

    def write(self) -> pathlib.Path:
        laboratory, settings = self._laboratory, self._laboratory.settings
        command = f"bench/experiments/run {settings.name}{' --quick' if settings.quick else ''}"
        about = [f"- {name}: {value}" for name, value in laboratory.about().items()]
        self.section("Where these numbers come from", "\n".join([
            *about, f"- Program: `{command}`, which prints every number of this page, in "
                    f"{laboratory.seconds / 60:.0f} minutes"]))
        settings.out.mkdir(parents=True, exist_ok=True)
        for name, figure in self._pictures.items():
            figure.savefig(settings.out / f"{name}.tmp.png", dpi=110, metadata={"Software": None})
            os.replace(settings.out / f"{name}.tmp.png", settings.out / f"{name}.png")
        path = settings.out / f"{settings.name}.md"
        temporary = path.with_suffix(".tmp")
        temporary.write_text("\n\n".join(wrapped(part) for part in self._parts) + "\n")
        os.replace(temporary, path)
        return path


def wrapped(part: str, width: int = 120) -> str:
    """A paragraph in lines; tables, lists, titles and pictures stay as they are."""
    if part.startswith(("|", "#", "-", "!", " ")):
        return part
    lines, line = [], ""
    for word in part.split():
        if line and len(line) + 1 + len(word) > width:
            lines.append(line)
            line = word
        else:
            line = f"{line} {word}" if line else word
    return "\n".join([*lines, line])
