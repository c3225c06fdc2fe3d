"""Calls as torch means them: casts, masks and heads it composes, errors it raises, and who sees the call."""

import contextlib
import itertools
import re
import warnings

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402
from torch.nn.attention import SDPBackend, sdpa_kernel  # noqa: E402
from torch.overrides import TorchFunctionMode  # noqa: E402
from torch.utils.flop_counter import FlopCounterMode  # noqa: E402

import attention_cpp  # noqa: E402
import attention_cpp.torch as drop_in  # noqa: E402
from attention_cpp._torch import autograd, operators  # noqa: E402

torch_sdpa = F.scaled_dot_product_attention
sdpa = drop_in.scaled_dot_product_attention


def draw(*shape, seed=0, dtype=torch.float32, grad=False):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype).requires_grad_(grad)


def qkv(heads=4, key_heads=4, value_heads=None, **kind):
    value_heads = key_heads if value_heads is None else value_heads
    return (draw(2, heads, 6, 8, **kind), draw(2, key_heads, 6, 8, seed=1, **kind),
            draw(2, value_heads, 6, 8, seed=2, **kind))


def near(actual, expected, exact):
    """Twice as far from the exact result as torch's, or one rounding of the largest value."""
    assert actual.dtype == expected.dtype and actual.shape == expected.shape
    unit = torch.finfo(actual.dtype).eps * exact.abs().max()
    error = (actual.double() - exact).abs().max()
    assert error <= max(2 * (expected.double() - exact).abs().max(), 4 * unit)


def both(function, arguments, leaves, **options):
    """Results and gradients: of ours, of torch's, and of torch's in float64."""
    results = []
    for attend, cast in ((sdpa, None), (torch_sdpa, None), (torch_sdpa, torch.float64)):
        if cast is not None:
            with torch.autocast("cpu", enabled=False):
                copies = {id(x): x.detach().double().requires_grad_() for x in leaves}
                given = [copies.get(id(x), x) for x in arguments]
                given_options = {name: copies.get(id(x), x) for name, x in options.items()}
                out = function(attend, *given, **given_options)
                results.append((out, *torch.autograd.grad(out.sin().sum(), copies.values())))
        else:
            out = function(attend, *arguments, **options)
            results.append((out, *torch.autograd.grad(out.float().sin().sum(), leaves)))
    return zip(*results, strict=True)


# ------------------------------------------------------------------------------------------------------------- autocast

@pytest.mark.parametrize("lower", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("mask", ["none", "boolean", "floating"])
@pytest.mark.parametrize("types", [(torch.float32,) * 3, (torch.float32, torch.bfloat16, torch.float32)], ids=str)
def test_autocast_is_as_accurate_as_torchs(lower, mask, types):
    arguments = [x.detach().to(dtype).requires_grad_() for x, dtype in zip(qkv(), types)]
    leaves, options = list(arguments), {}
    if mask == "boolean":
        options["attn_mask"] = draw(6, 6, seed=3) > -0.5
    elif mask == "floating":
        options["attn_mask"] = draw(6, 6, seed=3, grad=True)
        leaves.append(options["attn_mask"])
    with torch.autocast("cpu", dtype=lower), drop_in.enabled(strict=True):
        for ours, theirs, exact in both(lambda f, *x, **y: f(*x, **y), arguments, leaves, **options):
            near(ours, theirs, exact)


def test_autocast_leaves_float64_alone():
    arguments = qkv(dtype=torch.float64)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert sdpa(*arguments).dtype == torch_sdpa(*arguments).dtype == torch.float64


@pytest.mark.parametrize("types", itertools.permutations([torch.float32, torch.bfloat16, torch.float64]), ids=str)
def test_mixed_types_are_refused_as_by_torch(types):
    arguments = [x.to(dtype) for x, dtype in zip(qkv(), types)]
    with pytest.raises(RuntimeError, match="same dtype"):
        sdpa(*arguments)


def test_a_float32_mask_with_lower_precision():
    arguments, mask = qkv(dtype=torch.bfloat16), draw(6, 6, seed=3)
    exact = torch_sdpa(*(x.double() for x in arguments), mask.double())
    with drop_in.enabled(strict=True):
        near(F.scaled_dot_product_attention(*arguments, mask), torch_sdpa(*arguments, mask), exact)


# ------------------------------------------------------------------------- what torch composed, and refuses since 2.15

@pytest.mark.parametrize("mask", [draw(6, 6, seed=3) > -1, draw(2, 1, 6, 6, seed=3)],
                         ids=["boolean", "floating"])
@pytest.mark.parametrize("is_causal", [False, True])
def test_masks_compose_with_causal(mask, is_causal):
    arguments = qkv()
    composed = mask
    if is_causal:
        earlier = torch.ones(6, 6, dtype=torch.bool).tril()
        composed = mask & earlier if mask.dtype == torch.bool else mask.masked_fill(~earlier, -torch.inf)
    exact = torch_sdpa(*(x.double() for x in arguments), composed if mask.dtype == torch.bool else composed.double())
    with drop_in.enabled(strict=True):
        near(F.scaled_dot_product_attention(*arguments, mask, is_causal=is_causal),
             torch_sdpa(*arguments, composed), exact)


@pytest.mark.parametrize("heads", [(8, 2, 4), (8, 4, 1), (8, 8, 2), (8, 1, 8)], ids=str)
def test_keys_and_values_of_different_heads(heads):
    arguments = [x.detach().requires_grad_() for x in qkv(*heads)]
    with drop_in.enabled(strict=True):
        for ours, theirs, exact in both(lambda f, *x: f(*x, enable_gqa=True), arguments, arguments):
            near(ours, theirs, exact)


@pytest.mark.parametrize("p", [1, 1.0])
def test_dropout_of_everything_is_zero(p):
    arguments = qkv(grad=True)
    out = sdpa(*arguments, dropout_p=p)
    assert torch.equal(out, torch.zeros_like(out))
    assert all((x == 0).all() for x in torch.autograd.grad(out.sum(), arguments))
    assert "dropout_p" in drop_in.explain(*arguments, dropout_p=p)


def test_values_that_are_not_finite_follow_the_documented_rule():
    """As docs/numerics.md has it: torch's two paths do not agree with one another here."""
    q, k, v = (torch.zeros(1, 1, 4, 2) for _ in range(3))
    q[..., 0] = 1
    v[0, 0, :, 0] = torch.arange(4.0)
    k[0, 0, 2, 0] = float("inf")
    out = sdpa(q, k, v, is_causal=True)
    assert out[0, 0, :, 0].tolist() == [0, 0.5, 2, 2]
    assert "+infinity wins alone" in drop_in.explain(q, k, v).path and "infinity" in drop_in.explain.__doc__
    v[0, 0, 2, 1] = float("nan")
    assert sdpa(q, k, v, is_causal=True)[0, 0].isnan().tolist() == [[False] * 2] * 2 + [[False, True]] * 2
    k[0, 0, 2, 0] = 0
    assert "infinity" not in drop_in.explain(q, k, q).path


# --------------------------------------------------------------------------------------------------------------- errors

x = draw(2, 4, 6, 8)
WRONG = {
    "dropout above 1": ((x, x, x), {"dropout_p": 1.5}),
    "dropout below 0": ((x, x, x), {"dropout_p": -0.5}),
    "dropout of text": ((x, x, x), {"dropout_p": "much"}),
    "scale of text": ((x, x, x), {"scale": "much"}),
    "causal by a number": ((x, x, x), {"is_causal": 3}),
    "mask of another length": ((x, x, x), {"attn_mask": torch.ones(6, 7, dtype=torch.bool)}),
    "mask of whole numbers": ((x, x, x), {"attn_mask": torch.ones(6, 6, dtype=torch.int32)}),
    "mask of float16": ((x, x, x), {"attn_mask": torch.ones(6, 6, dtype=torch.float16)}),
    "mask of float64": ((x, x, x), {"attn_mask": torch.ones(6, 6, dtype=torch.float64)}),
    "mask of one axis": ((x, x, x), {"attn_mask": torch.ones(6)}),
    "mask of text": ((x, x, x), {"attn_mask": "all"}),
    "three heads of four": ((x, x[:, :3], x[:, :3]), {}),
    "heads that do not divide": ((x, x[:, :3], x[:, :3]), {"enable_gqa": True}),
    "heads that divide once": ((x, x[:, :3], x[:, :2]), {"enable_gqa": True}),
    "another width of keys": ((x, x[..., :5], x), {}),
    "fewer values than keys": ((x, x, x[:, :, :4]), {}),
    "another type": ((x, x.double(), x), {}),
    "one axis": ((x[0, 0, 0], x, x), {}),
    "no tensor": ((1, x, x), {}),
    "whole numbers": ((x.int(), x.int(), x.int()), {}),
    "unknown argument": ((x, x, x), {"softcap": 3.0}),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_calls_raise_torchs_class(case):
    arguments, options = WRONG[case]
    try:
        expected = torch_sdpa(*arguments, **options)
    except Exception as error:  # noqa: BLE001: whatever it is, ours is the same
        with drop_in.enabled(), pytest.raises(type(error)) as caught:
            F.scaled_dot_product_attention(*arguments, **options)
        if case != "unknown argument":
            said, expected = (re.sub(r" \(position \d\)", "", str(e)) for e in (caught.value, error))
            assert said == expected
    else:  # torch reads past the values here, or over them; the call is its own
        assert F.scaled_dot_product_attention is torch_sdpa and case == "fewer values than keys"
        with drop_in.enabled(strict=True), pytest.raises(attention_cpp.Error):
            F.scaled_dot_product_attention(*arguments, **options)
        assert sdpa(*arguments, **options).shape == expected.shape


# ------------------------------------------------------------------------------------------------------ who sees a call

class Calls(TorchFunctionMode):
    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.seen.append(func)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("mask", [None, torch.nn.attention.bias.causal_lower_right(6, 6)], ids=["", "causal bias"])
def test_a_function_mode_sees_one_call(mask):
    arguments = qkv()
    with drop_in.enabled(strict=True), Calls() as calls:
        out = F.scaled_dot_product_attention(*arguments, mask)
        assert calls.seen == [F.scaled_dot_product_attention]
    assert torch.equal(out, sdpa(*arguments, mask))


def test_a_subclass_sees_the_call():
    class Named(torch.Tensor):
        pass

    arguments = [x.as_subclass(Named) for x in qkv()]
    with drop_in.enabled(strict=True):
        out = F.scaled_dot_product_attention(*arguments)
    assert type(out) is Named and torch.equal(out.as_subclass(torch.Tensor), sdpa(*qkv()))


@pytest.mark.parametrize("options", [{"dropout_p": 0.3}, {"attn_mask": draw(6, 6, seed=3, grad=True)}],
                         ids=["dropout", "bias"])
def test_a_recorded_result_may_be_changed_in_place(options):
    arguments = qkv(grad=True)
    gradients = []
    for change in (lambda out: out.mul_(2), lambda out: out * 2):
        torch.manual_seed(0)
        out = change(sdpa(*arguments, **options))
        gradients.append(torch.autograd.grad(out.sum(), [*arguments, *filter(torch.is_tensor, options.values())]))
    assert all(map(torch.equal, *gradients))


def test_the_profiler_shows_attention_and_its_shapes():
    arguments = qkv(grad=True)
    with torch.profiler.profile(record_shapes=True) as trace:
        sdpa(*arguments).sum().backward()
    shapes = {event.key: event.input_shapes for event in trace.key_averages(group_by_input_shape=True)}
    assert shapes["attention_cpp::attention"][:3] == [[2, 4, 6, 8]] * 3
    assert shapes["attention_cpp::attention_backward"][2:5] == [[2, 4, 6, 8]] * 3


def test_flops_are_those_of_the_products():
    from attention_cpp import flash_attn

    arguments = qkv(grad=True)
    with FlopCounterMode(display=False) as products, sdpa_kernel(SDPBackend.MATH):
        torch_sdpa(*arguments)
    with FlopCounterMode(display=False) as counter:
        out = sdpa(*arguments)
        assert counter.get_total_flops() == products.get_total_flops() > 0
        out.sum().backward()
    assert counter.get_total_flops() == 3.5 * products.get_total_flops()  # the backward has five products for two
    starts = torch.tensor([0, 2, 6], dtype=torch.int32)
    with FlopCounterMode(display=False) as counter:
        flash_attn.flash_attn_varlen_func(*(x[0].transpose(0, 1) for x in arguments), starts, starts, 4, 4)
    assert counter.get_total_flops() == 2 * 4 * (2 * 2 + 4 * 4) * (8 + 8)


# ---------------------------------------------------------------------------------------------------------------- state

def test_an_inner_block_leaves_the_outer_one_on():
    wide = draw(1, 1, 2, 1100)
    call = lambda: F.scaled_dot_product_attention(wide, wide, wide)  # noqa: E731
    with drop_in.enabled(strict=True):
        with drop_in.enabled(warn=True), warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            call()
        assert [str(warning.message) for warning in caught] == [
            "scaled_dot_product_attention is left to torch: heads are wider than 1024"]
        assert caught[0].filename == __file__
        assert F.scaled_dot_product_attention is sdpa
        with pytest.raises(attention_cpp.Error, match="wider"):
            call()
        with contextlib.suppress(ZeroDivisionError), drop_in.enabled():
            raise ZeroDivisionError
        assert F.scaled_dot_product_attention is sdpa
    assert F.scaled_dot_product_attention is torch_sdpa
    call()


# --------------------------------------------------------------------------------------------------- the simplest calls

@pytest.mark.parametrize("leaf", range(3))
def test_negated_views_are_read_as_they_are(leaf):
    """x.conj().imag is -imag without a copy: torch's dispatcher makes it real, which who reads memory has to do too."""
    arguments = list(qkv())
    arguments[leaf] = torch.complex(draw(2, 4, 6, 8), arguments[leaf]).conj().imag
    assert arguments[leaf].is_neg()
    near(sdpa(*arguments), torch_sdpa(*arguments), torch_sdpa(*[x.double() for x in arguments]))
    with pytest.raises(attention_cpp.Error, match="resolve_neg"):
        attention_cpp.attention(*arguments)


def test_a_negated_mask_is_read_as_it_is():
    q, k, v = qkv()
    mask = torch.complex(draw(6, 6), draw(6, 6, seed=7)).conj().imag
    near(sdpa(q, k, v, mask), torch_sdpa(q, k, v, mask), torch_sdpa(*[x.double() for x in (q, k, v, mask)]))


@pytest.mark.parametrize("mask", ["", "boolean", "bias"])
@pytest.mark.parametrize("options", [{}, {"is_causal": True}, {"scale": 0.5}, {"is_causal": True, "scale": 2.0}])
@pytest.mark.parametrize("key_heads", [4, 2])
def test_a_simple_call_has_the_bits_of_the_general_one(monkeypatch, key_heads, options, mask):
    """Results, gradients and second derivatives."""
    q, k, v = leaves = qkv(key_heads=key_heads, grad=True)
    masks = {"": None, "boolean": draw(6, 6) < 0.7, "bias": draw(2, 1, 6, 6)}

    def results():
        out = sdpa(q, k, v, masks[mask], enable_gqa=key_heads != 4, **options)
        first = torch.autograd.grad(out.sin().sum(), leaves, create_graph=True)
        with torch.no_grad():
            unrecorded = sdpa(q, k, v, masks[mask], enable_gqa=key_heads != 4, **options)
        return out, unrecorded, *first, *torch.autograd.grad(sum(x.sin().sum() for x in first), leaves)

    assert autograd.is_simple(q, k, v, masks[mask], key_heads != 4)
    simple = results()
    monkeypatch.setattr(autograd, "is_simple", lambda *_: False)
    assert all(torch.equal(a, b) for a, b in zip(simple, results(), strict=True))


def test_a_mask_that_changes_before_the_backward_is_found_out():
    q, k, v = qkv(grad=True)
    mask = draw(6, 6) < 0.7
    out = sdpa(q, k, v, mask)
    mask.logical_not_()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()


def test_tensors_are_read_without_dlpack_objects_or_by_their_parts(monkeypatch):
    """An older torch has no C functions for DLPack."""
    q, k, v = qkv(grad=True)
    expected = torch.autograd.grad(sdpa(q, k, v).sin().sum(), (q, k, v))
    monkeypatch.setattr(operators, "_READABLE", ())
    monkeypatch.setattr(autograd, "is_simple", lambda *_: False)
    actual = torch.autograd.grad(sdpa(q, k, v).sin().sum(), (q, k, v))
    assert all(torch.equal(a, b) for a, b in zip(expected, actual, strict=True))
