"""Loss, logits and every gradient next to PyTorch and transformers, on the same weights.

usage: ATTN_PARITY=PROGRAM build/venv/bin/python tests/parity/test_parity.py     prints the errors of all cases
"""

import functools
import json
import os
import pathlib
import subprocess
import tempfile

import pytest
import safetensors.torch
import torch
import torch.nn.functional as F
from cases import CASES, IGNORED, Case, model
from tolerance import UNIT, Verdict, judge, yardstick_of
from transformers.models.t5.modeling_t5 import T5Attention

import peers

Tensors = dict[str, torch.Tensor]
HALVES = {"bfloat16": torch.bfloat16, "float16": torch.float16}
TYPES = {"float64": torch.float64, "float32": torch.float32} | dict.fromkeys(HALVES, torch.float32)  # of leaves


def given_inputs(case: Case, dtype: torch.dtype) -> Tensors:
    return {name: t.to(dtype, copy=True) if t.is_floating_point() else t for name, t in case.inputs.items()}


@functools.lru_cache(maxsize=None)
def theirs(name: str, precision: str, fused: bool = False, moved: int = 0) -> Tensors:
    """Results of PyTorch under our names; 16 bits are its mixed precision. With `moved` every weight is off by one
    rounding, up or down by this seed."""
    case, dtype = BY_NAME[name], TYPES[precision]
    peer = case.peer({**case.config, "fused": fused}, dtype)
    if moved:
        random = torch.Generator().manual_seed(moved)
        with torch.no_grad():
            for parameter in peer.parameters.values():
                sign = torch.randint(0, 2, parameter.shape, generator=random) * 2 - 1
                parameter.copy_(parameter.double() * (1 + UNIT[precision] * sign))
    inputs = given_inputs(case, dtype)
    leaves = {key: inputs[key].requires_grad_() for key in ("x", "memory", "bias", "gates") if key in inputs}
    with torch.autocast("cpu", HALVES.get(precision, torch.bfloat16), enabled=precision in HALVES):
        out = peer.forward(inputs)
    if case.is_model:
        out = out.to(dtype)
        loss = F.cross_entropy(out.flatten(0, -2), inputs["targets"].flatten(), ignore_index=IGNORED)
        loss.backward()
        results = {"logits": out, "loss": loss.reshape(1)}
    else:
        out.backward(inputs["dout"])
        results = {"out": out}
    results |= {f"gradient.{key}": leaf.grad for key, leaf in leaves.items()}
    gradients = {key: torch.zeros_like(p) if p.grad is None else p.grad for key, p in peer.parameters.items()}
    results |= {f"gradient.{key}": value for key, value in peer.to_ours(gradients).items()}
    return {key: value.detach() for key, value in results.items()}


def run_program(config: dict, tensors: Tensors) -> Tensors:
    with tempfile.TemporaryDirectory() as folder:
        config_file, to, back = (pathlib.Path(folder, name) for name in ("config.json", "in", "out"))
        config_file.write_text(json.dumps(config))
        safetensors.torch.save_file({key: value.contiguous() for key, value in tensors.items()}, to)
        command = [os.environ["ATTN_PARITY"], config_file, to, back]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300)
        if done.returncode:
            raise AssertionError(f"the program failed: {done.stderr}")
        return safetensors.torch.load_file(back)


def ours(case: Case, precision: str) -> Tensors:
    dtype = TYPES[precision]
    peer = case.peer({**case.config, "fused": False}, dtype)
    tensors = {key: value.detach().clone() for key, value in peer.to_ours(peer.parameters).items()}
    tensors |= {f"input.{key}": value for key, value in given_inputs(case, dtype).items()}
    return run_program({**case.config, "precision": precision}, tensors)


def yardsticks(case: Case, precision: str) -> list[Tensors]:
    """PyTorch in the precision that is the measure of `precision`: two ways to write it, and for float32 weights in
    several roundings; 16 bits round so much on the way that luck evens out."""
    moves = (0,) if precision in HALVES else (0, 1, 2)
    return [theirs(case.name, yardstick_of(precision), fused, moved) for fused in (False, True) for moved in moves]


def compare(case: Case, precision: str) -> list[Verdict]:
    exact = theirs(case.name, "float64")
    return judge(ours(case, precision), exact, yardsticks(case, precision), precision, case.tokens)


BY_NAME = {case.name: case for case in CASES}
torch.set_num_threads(1)  # the cases are small


def expect_close(case: Case, precision: str) -> None:
    bad = [str(verdict) for verdict in compare(case, precision) if not verdict.good]
    assert not bad, "\n".join([f"{case.name} in {precision}", *bad])


@pytest.mark.parametrize("name", BY_NAME)
def test_float64(name: str) -> None:
    expect_close(BY_NAME[name], "float64")


@pytest.mark.parametrize("name", BY_NAME)
def test_float32(name: str) -> None:
    expect_close(BY_NAME[name], "float32")


@pytest.mark.parametrize("precision", HALVES)
@pytest.mark.parametrize("name", [case.name for case in CASES if case.in_half])
def test_16_bits(name: str, precision: str) -> None:
    expect_close(BY_NAME[name], precision)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"initial": 1024.0, "growth": 2.0, "backoff": 0.5, "interval": 3},
        {"initial": 3e30, "growth": 1.7, "backoff": 0.3, "interval": 1},
        {"initial": 2.0**127, "growth": 2.0, "backoff": 0.5, "interval": 2},
    ],
)
def test_scales_of_grad_scaler(options: dict) -> None:
    updates = 2500
    finite = torch.rand(updates, generator=torch.Generator().manual_seed(3)) < 0.9
    if not options:
        finite = torch.arange(updates) % 2100 > 5  # long enough for the growth after 2,000
    names = {"initial": "init_scale", "growth": "growth_factor", "backoff": "backoff_factor"}
    scaler = torch.amp.GradScaler("cpu", **{names.get(key, "growth_interval"): value for key, value in options.items()})
    weight = torch.nn.Parameter(torch.ones(1))
    optimizer = torch.optim.SGD([weight], lr=0)
    expected = []
    for good in finite.tolist():
        scaler.scale(torch.ones(1))
        expected.append(scaler.get_scale())
        weight.grad = torch.ones(1) if good else torch.full((1,), float("inf"))
        scaler.step(optimizer)
        scaler.update()
    found = run_program({"layer": "loss_scaler", **options}, {"input.finite": finite.long()})["scales"]
    reached_1 = next((n for n, scale in enumerate(expected) if scale < 1), updates)  # where ours stays
    assert reached_1 > updates // 2
    assert found.tolist()[:reached_1] == expected[:reached_1]


@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("buckets, max_distance", [(32, 128), (8, 40), (64, 1000)])
def test_buckets_of_t5(bidirectional: bool, buckets: int, max_distance: int) -> None:
    difference = torch.arange(-1200, 1201)
    config = {"layer": "buckets", "bidirectional": bidirectional, "buckets": buckets, "max_distance": max_distance}
    found = run_program(config, {"input.differences": difference})["buckets"]
    expected = T5Attention._relative_position_bucket(difference, bidirectional, buckets, max_distance)
    rows = zip(difference.tolist(), found.tolist(), expected.tolist())
    wrong = [f"{d}: {f}, must be {e}" for d, f, e in rows if f != e]
    assert not wrong, wrong


# ---------------------------------------------------------------------------------------- the comparison sees mistakes


def altered(change) -> list[str]:
    """Names that the comparison refuses, once `change` has been done to good results."""
    case = model("gpt2", peers.gpt2)
    good = {key: value.double().clone() for key, value in theirs(case.name, "float64").items()}
    change(good)
    verdicts = judge(good, theirs(case.name, "float64"), yardsticks(case, "float32"), "float32", case.tokens)
    return [verdict.name for verdict in verdicts if not verdict.good]


def test_comparison_accepts_the_reference() -> None:
    assert altered(lambda t: None) == []


@pytest.mark.parametrize("name", ["logits", "loss", "gradient.norm.bias", "gradient.blocks.1.attention.qkv.weight"])
def test_comparison_refuses(name: str) -> None:
    def nan(t: Tensors) -> None:
        t[name].flatten()[-1] = float("nan")

    def one_element(t: Tensors) -> None:
        t[name].view(-1)[0] += 1e-4 * t[name].abs().max()

    def factor(t: Tensors) -> None:
        t[name] *= 1 + 1e-4

    for change in (nan, one_element, factor):
        assert altered(change) == [name]


def test_comparison_refuses_what_is_missing() -> None:
    with pytest.raises(AssertionError, match="norm.bias"):
        altered(lambda t: t.pop("gradient.norm.bias"))


ZERO = 2.0**-20  # gradients that are nothing but rounding, as that of a key's bias; left out of what main() prints


def main() -> None:
    for precision in TYPES:
        for case in CASES:
            if precision in HALVES and not case.in_half:
                continue
            verdicts = compare(case, precision)
            worst = max(verdicts, key=lambda v: v.error / v.bound)
            real = [v for v in verdicts if v.largest > ZERO * max(other.largest for other in verdicts)]
            errors = [max(error(v) / v.largest for v in real) for error in (lambda v: v.error, lambda v: v.theirs)]
            print(f"{precision:9}{case.name:42}ours {errors[0]:7.1e}, PyTorch {errors[1]:7.1e}; nearest: {worst}")


if __name__ == "__main__":
    main()
