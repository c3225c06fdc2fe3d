"""Errors of float32 products and attention, ours and PyTorch's, next to float64: the table of docs/numerics.md.

usage: ATTN_PARITY=PROGRAM build/venv/bin/python tests/parity/test_precisions.py     prints the table

The unit is the usual bound of one rounding: of a product 2^-24 sum |a| |b|, of attention 2^-24 sum P |v|. Matrix
tiles are their software twin, which has the bits of the hardware: any processor with AVX-512 prints the table.
"""

from dataclasses import dataclass
from typing import Callable

import pytest
import torch
import torch.nn.functional as F
from test_parity import run_program
from torch import Tensor

OURS = {"FMA": {"isa": "avx512"}} | {
    f"tiles, {name}": {"isa": "amx_emulated", "float32_precision": name} for name in ("full", "high", "fast")}


@dataclass
class Problem:
    """Something that is computed by us and by PyTorch."""

    name: str
    config: dict
    inputs: dict[str, Tensor]
    exact: Tensor
    unit: Tensor  # of each element
    theirs: Callable[..., Tensor]

    def errors(self, result: Tensor) -> tuple[float, float]:
        """rms and worst, in units."""
        error = (result.double() - self.exact) / self.unit
        return error.square().mean().sqrt().item(), error.abs().max().item()

    def ours(self, **how) -> tuple[float, float]:
        inputs = {f"input.{name}": value for name, value in self.inputs.items()}
        return self.errors(run_program({**self.config, **how}, inputs)["out"])

    def of_torch(self, precision: str = "highest") -> tuple[float, float]:
        """Of a precision of its products; as to "medium", on processors without bfloat16 tiles that is float32."""
        torch.set_float32_matmul_precision(precision)
        result = self.theirs(**self.inputs)
        torch.set_float32_matmul_precision("highest")
        return self.errors(result)

    def of_torch_bfloat16(self) -> tuple[float, float]:
        """Tensors of bfloat16, the result too."""
        return self.errors(self.theirs(**{name: value.bfloat16() for name, value in self.inputs.items()}))


def drawn(seed: int, *shape: int, positive: bool = False) -> Tensor:
    values = torch.randn(shape, generator=torch.Generator().manual_seed(seed))
    return values.abs() if positive else values


def product(K: int, positive: bool = False, size: int = 192) -> Problem:
    """[size, K] times [K, size], so large that tiles take it."""
    a, b = drawn(1, size, K, positive=positive), drawn(2, K, size, positive=positive)
    unit = 2.0**-24 * (a.double().abs() @ b.double().abs())
    return Problem(f"product, K = {K:,}{', of one sign' if positive else ''}", {"layer": "product"}, {"a": a, "b": b},
                   a.double() @ b.double(), unit, lambda a, b: a @ b)


def attention(D: int, n: int = 1024) -> Problem:
    q, k, v = (drawn(seed, 1, 2, n, D) for seed in range(3))
    weights = torch.softmax(q.double() @ k.double().mT / D**0.5, -1)
    return Problem(f"attention, n = {n:,}, D = {D}", {"layer": "operator"}, {"q": q, "k": k, "v": v},
                   weights @ v.double(), 2.0**-24 * (weights @ v.double().abs()),
                   lambda q, k, v: F.scaled_dot_product_attention(q, k, v))


def table(problems: list[Problem]) -> str:
    """In Markdown: rms / worst."""
    names = [*OURS, "PyTorch", 'PyTorch, "medium"', "PyTorch, bfloat16"]
    lines = ["| | " + " | ".join(names) + " |", "|---" * (len(names) + 1) + "|"]
    for problem in problems:
        errors = [problem.ours(**how) for how in OURS.values()]
        errors += [problem.of_torch(), problem.of_torch("medium"), problem.of_torch_bfloat16()]
        cells = [" / ".join(f"{error:,.3g}" if error < 100 else f"{error:,.0f}" for error in pair) for pair in errors]
        lines.append(f"| {problem.name} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


@pytest.mark.skipif("AVX512" not in torch.backends.cpu.get_cpu_capability(), reason="the twin needs AVX-512")
def test_products_are_within_their_bounds() -> None:
    """Of each precision those of attn/ops.h, beyond the roundings of a sum in float32."""
    problem = product(128)
    full, high, fast = (problem.ours(**OURS[f"tiles, {name}"]) for name in ("full", "high", "fast"))
    roundings = 128
    assert max(full[1], problem.ours(**OURS["FMA"])[1], problem.of_torch()[1]) <= roundings
    assert high[1] <= roundings + 2**10 and fast[1] <= roundings + 2**18
    assert full[0] < high[0] < fast[0] < problem.of_torch_bfloat16()[0]  # whose result is rounded once more
    rows = table([problem]).splitlines()
    assert [row.count("|") for row in rows] == [9] * 3 and rows[2].startswith("| product, K = 128 |")


if __name__ == "__main__":
    print(table([product(128), product(768), product(3072), product(50304), product(3072, positive=True),
                 product(50304, positive=True), attention(64), attention(128)]))
