"""Recall of passages that follow themselves: the loss on a second copy beside that on the first."""

import dataclasses
import random
import re

from .laboratory import Laboratory, Row

CHARACTERS = 1_000_000  # of the passages to train on, without their copies


@dataclasses.dataclass
class Recall:
    """Passages of Tiny Shakespeare, each twice. A model reads those of the last tenth of the text and trains on those
    of the rest. On passages without copies it has the loss of a first copy; the second has what remains of the loss
    on both. That is so for long passages: a model that expects short ones to return is surprised where none does."""

    lab: Laboratory
    passage: int  # characters
    read: int  # characters of a sequence
    batch: int
    updates: int

    def measure(self, model: str, seed: int = 1) -> Row:
        """Trains a model of these flags; nats a character of the first copy and of the second."""
        self._write_passages()
        self.lab.attn(f"train repeated.txt --tokens bytes --out recall --overwrite --context {self.read} --batch "
                      f"{self.batch} --seed {seed} --steps {self.updates} --eval-every 0 {model}")
        first = self._loss("once.txt")
        return {"first": first, "second": 2 * self._loss("twice.txt") - first}

    def _loss(self, file: str) -> float:
        printed = self.lab.attn(f"eval recall {file} --context {self.read}").stdout
        return float(re.search(r"loss ([0-9.]+)", printed)[1])

    def _write_passages(self) -> None:
        text = (self.lab.folder / self.lab.text()).read_text()
        later = int(0.9 * len(text))
        count = (1000 if self.lab.quick else CHARACTERS) // self.passage
        for name, part, number, copies, seed in (("repeated", text[:later], count, 2, 1),
                                                 ("twice", text[later:], count // 20, 2, 2),
                                                 ("once", text[later:], count // 20, 1, 2)):
            draw = random.Random(seed)
            starts = [draw.randrange(len(part) - self.passage) for _ in range(number)]
            passages = (part[start:start + self.passage] * copies for start in starts)
            (self.lab.folder / f"{name}.txt").write_text("".join(passages))


def saved(row: Row) -> str:
    """Of the loss on a first copy, on the second."""
    return f"{max(0, 100 * (1 - row['second'] / row['first'])):.0f} %"
