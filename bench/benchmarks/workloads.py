"""The workloads of bench/workloads.json.

A workload is one call of attention, given by its name: operation/option/dtype/B/H/n/D/layout, for instance
forward/causal/float32/B1/H32:8/n1024/D128/blhd. q is [B, H, Lq, D], k [B, Hk, Lk, D], v [B, Hk, Lk, Dv].

usage: workloads.py ATTN_BENCH     fails unless the program reads the same names from the file
"""

import json
import pathlib
import re
import subprocess
import sys
from dataclasses import dataclass

CONTENT = json.loads((pathlib.Path(__file__).resolve().parents[1] / "workloads.json").read_text())
OPERATIONS = ("forward", "backward", "training", "decode", "prefill")  # training is forward and backward
OPTIONS = ("full", "causal", "window", "bias", "dropout", "lengths", "packed")
NAME = re.compile(rf"({'|'.join(OPERATIONS)})/({'|'.join(OPTIONS)})/(float32|bfloat16)/B(\d+)/H(\d+)(?::(\d+))?"
                  r"/n(\d+)(?::(\d+))?/D(\d+)(?::(\d+))?/(blhd|bhld|qkv)")


@dataclass(frozen=True)
class Workload:
    operation: str
    option: str
    dtype: str
    B: int
    H: int
    Hk: int
    Lq: int
    Lk: int
    D: int
    Dv: int
    layout: str  # order of the memory: blhd, bhld, or qkv: slices of one [B, L, (H + 2 Hk) D] array

    @property
    def name(self) -> str:
        def two(first: int, second: int) -> str:
            return f"{first}" if first == second else f"{first}:{second}"

        shape = f"B{self.B}/H{two(self.H, self.Hk)}/n{two(self.Lq, self.Lk)}/D{two(self.D, self.Dv)}"
        return f"{self.operation}/{self.option}/{self.dtype}/{shape}/{self.layout}"

    @property
    def group(self) -> int:
        return self.H // self.Hk

    @property
    def is_forward(self) -> bool:
        return self.operation in ("forward", "decode", "prefill")

    @property
    def causal(self) -> bool:
        """The last query has the place of the last key."""
        return self.option in ("causal", "window", "packed")

    @property
    def window(self) -> int:
        """Keys that a query sees, its own among them; 0 = all."""
        return CONTENT["options"]["window"] if self.option == "window" else 0

    @property
    def dropout(self) -> float:
        return CONTENT["options"]["dropout"] if self.option == "dropout" else 0.0

    @property
    def lengths(self) -> tuple[int, ...]:
        """Keys that are not padding, one number for each batch element; () = all."""
        if self.option != "lengths":
            return ()
        if shares := CONTENT["options"]["lengths"].get(str(self.B)):
            return tuple(int(share * self.Lk) for share in shares)
        return tuple(self.Lk - b * self.Lk // (2 * self.B) for b in range(self.B))

    @property
    def packed(self) -> tuple[int, ...]:
        """Lengths of the packed sequences; () = one sequence."""
        return tuple(int(share * self.Lk) for share in CONTENT["options"]["packed"]) * (self.option == "packed")

    @property
    def masked(self) -> bool:
        return self.causal or bool(self.lengths)

    def cache_bytes(self) -> int:
        """Bytes of keys and values."""
        return self.B * self.Hk * self.Lk * (self.D + self.Dv) * (4 if self.dtype == "float32" else 2)

    def square_bytes(self) -> int:
        """Bytes of one float32 matrix of all scores."""
        return self.B * self.H * self.Lq * self.Lk * 4


def expanded(pattern: str) -> list[str]:
    before, found, rest = pattern.partition("{")
    inside, _, after = rest.partition("}")
    return [name for one in inside.split(",") for name in expanded(before + one + after)] if found else [pattern]


def names(which: str) -> list[str]:
    """The names of a set, or of several ("peers,peers-large"), each once."""
    if unknown := set(which.split(",")) - CONTENT["sets"].keys():
        raise SystemExit(f"there is no set {', '.join(unknown)} of workloads; there are {', '.join(CONTENT['sets'])}")
    return list(dict.fromkeys(name for one in which.split(",") for pattern in CONTENT["sets"][one]
                              for name in expanded(pattern)))


def parse(name: str) -> Workload:
    if not (part := NAME.fullmatch(name)):
        raise SystemExit(f"the Python package does not measure {name}")
    H, Lq, D = part[5], part[7], part[9]
    sizes = (part[4], H, part[6] or H, Lq, part[8] or Lq, D, part[10] or D)
    return Workload(part[1], part[2], part[3], *map(int, sizes), part[11])


def main() -> None:
    for which in CONTENT["sets"]:
        if which in ("operator", "quick", "layouts"):
            listed = subprocess.run([sys.argv[1], "--list", "--set", which], capture_output=True, text=True, check=True)
            read = listed.stdout.split()
        else:
            read = [parse(name).name for name in names(which)]
        if read != names(which):
            sys.exit(f"the names of the set {which} differ")


if __name__ == "__main__":
    main()
