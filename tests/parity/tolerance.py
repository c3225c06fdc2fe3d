"""How close is close enough, in one place; the rules of tests/support/tolerance.h.

The measure is PyTorch itself: what it gets wrong in float32 (or in mixed precision) on the same case, against its own
float64. That is partly luck, so it is the worst of several ways: attention written out and fused, and weights
that are off by one rounding, which shows what the case makes of any rounding. Ours may be wrong by FACTOR times that.
Both are maxima; over few tokens, which err independently, those are a matter of luck, which is given three standard
deviations. And where PyTorch adds in pairs, a sum over all tokens may drift by as many roundings of the largest element
as a random walk does: sqrt(tokens).
"""

import math
from dataclasses import dataclass

import torch

# Relative error of one rounding.
UNIT = {"float32": 2.0**-24, "float64": 2.0**-53, "bfloat16": 2.0**-8, "float16": 2.0**-11}
MIN_ROUNDINGS = 4

# Two for two orders of the same sums, and two for rows whose softmax is a tie, which make much of any rounding. On
# random weights two of 1,500 comparisons were above the bound with a factor of 2, by up to 1.7, and none with 4.
FACTOR = 4

# What float32 can cost in these small cases, relative to the largest element of all gradients. Where PyTorch's float32
# and float64 differ by more they do not compute the same thing, and say nothing about ours.
PLAUSIBLE = {"float32": 2.0**-12, "bfloat16": 2.0**-2, "float16": 2.0**-5}


def naive_factor(samples: int) -> float:
    return FACTOR * (1 + 3 / math.sqrt(samples))


def max_abs(values: torch.Tensor) -> float:
    return values.abs().max().item()


def is_printed(text: str, value: float, error: float) -> bool:
    """True where the text is a number that is `value`, off by at most `error`, as printed to the digits it has."""
    digits = len(text.partition(".")[2])
    return abs(float(text) - value) <= 0.5 * 10.0**-digits + error


Tensors = dict[str, torch.Tensor]


@dataclass
class Verdict:
    name: str
    error: float  # ours
    theirs: float  # PyTorch's, in the lower precision
    largest: float  # of the reference
    bound: float

    @property
    def good(self) -> bool:  # false for NaN
        return self.error <= self.bound

    def __str__(self) -> str:
        return (
            f"{self.name}: error {self.error:.3g}, bound {self.bound:.3g}, PyTorch's {self.theirs:.3g}, "
            f"largest {self.largest:.3g}"
        )


def yardstick_of(precision: str) -> str:
    """float64 is held to the float32 rule, scaled."""
    return "float32" if precision == "float64" else precision


def judge(ours: Tensors, reference: Tensors, theirs: list[Tensors], precision: str, tokens: int) -> list[Verdict]:
    """Every result of `ours`, computed in `precision`, against the float64 `reference`; `theirs` are PyTorch's own in
    yardstick_of(precision). In float64 twice the scaled rule: the reference's own rounding is as large as ours."""
    if ours.keys() != reference.keys():
        raise AssertionError(f"results differ: {sorted(ours.keys() ^ reference.keys())}")
    yardstick = yardstick_of(precision)
    roundings = max(MIN_ROUNDINGS, math.sqrt(tokens))
    scale = 2 * UNIT["float64"] / UNIT["float32"] if precision == "float64" else 1
    scale_of_all = max(max_abs(values) for values in reference.values())
    verdicts = []
    for name, expected in reference.items():
        actual = ours[name].double()
        if actual.shape != expected.shape:
            raise AssertionError(f"{name} is {list(actual.shape)}, must be {list(expected.shape)}")
        cost, largest = max(max_abs(way[name].double() - expected) for way in theirs), max_abs(expected)
        if not cost <= PLAUSIBLE[yardstick] * scale_of_all:
            raise AssertionError(f"{name}: PyTorch's {yardstick} and float64 do not mean the same: {cost}")
        bound = scale * (naive_factor(min(tokens, expected.numel())) * cost + roundings * UNIT[yardstick] * largest)
        verdicts.append(Verdict(name, max_abs(actual - expected), cost, largest, bound))
    return verdicts
