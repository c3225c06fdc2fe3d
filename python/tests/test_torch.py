"""attention_cpp.torch against torch: values, gradients, second derivatives, compilation, transforms and modules."""

import warnings

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402
from torch.nn.attention.bias import causal_lower_right, causal_upper_left  # noqa: E402

import attention_cpp  # noqa: E402
import attention_cpp.torch as drop_in  # noqa: E402
from attention_cpp import _core  # noqa: E402
from attention_cpp._torch.autograd import attention  # noqa: E402
from attention_cpp._torch.composite import composite  # noqa: E402
from attention_cpp._torch.options import Options, flat, from_flat  # noqa: E402

sdpa = drop_in.scaled_dot_product_attention
torch_sdpa = F.scaled_dot_product_attention
EXACT = dict(rtol=1e-11, atol=1e-12)  # float64
SMALL = dict(rtol=0, atol=2e-5)  # float32, values of order 1: torch's own exp is good to 1e-6


def draw(*shape, seed=0, dtype=torch.float64, grad=False):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype).requires_grad_(grad)


def qkv(heads=4, kv_heads=4, queries=7, keys=9, width=8, value_width=8, **kind):
    return (draw(2, heads, queries, width, **kind), draw(2, kv_heads, keys, width, seed=1, **kind),
            draw(2, kv_heads, keys, value_width, seed=2, **kind))


BOOLEAN = draw(2, 1, 7, 9, seed=3) > -0.5
CASES = {
    "plain": ({}, {}),
    "scale": ({}, {"scale": 0.2}),
    "causal": ({}, {"is_causal": True}),
    "grouped": ({"kv_heads": 2}, {"enable_gqa": True}),
    "grouped, masked": ({"kv_heads": 2}, {"enable_gqa": True, "attn_mask": BOOLEAN}),
    "one key head": ({"kv_heads": 1}, {}),
    "other width of values": ({"value_width": 5}, {"is_causal": True}),
    "boolean": ({}, {"attn_mask": BOOLEAN}),
    "boolean of two axes": ({}, {"attn_mask": BOOLEAN[0, 0]}),
    "boolean of three axes": ({}, {"attn_mask": BOOLEAN[0]}),
    "floating": ({}, {"attn_mask": draw(2, 4, 7, 9, seed=4)}),
    "floating, one row": ({}, {"attn_mask": draw(4, 1, 9, seed=4)}),
    "upper left": ({}, {"attn_mask": causal_upper_left(7, 9)}),
    "lower right": ({}, {"attn_mask": causal_lower_right(7, 9)}),
}


def both(arguments, options):
    mask = options.get("attn_mask")
    inputs = list(arguments)
    if isinstance(mask, torch.Tensor) and mask.is_floating_point() and type(mask) is torch.Tensor:
        mask = mask.to(arguments[0].dtype).detach().requires_grad_()
        options = {**options, "attn_mask": mask}
        inputs.append(mask)
    results = []
    for function in (sdpa, torch_sdpa):
        out = function(*arguments, **options)
        upstream = draw(*out.shape, seed=9, dtype=out.dtype)
        results.append((out, *torch.autograd.grad(out, inputs, upstream)))
    return results


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_values_and_gradients_are_torchs(name, dtype):
    shape, options = CASES[name]
    ours, theirs = both(qkv(**shape, dtype=dtype, grad=True), options)
    for a, b in zip(ours, theirs, strict=True):
        assert a.dtype == b.dtype and a.shape == b.shape
        torch.testing.assert_close(a, b, **(EXACT if dtype == torch.float64 else SMALL))


@pytest.mark.parametrize("axes", [2, 3, 4, 5, 6])
def test_any_number_of_axes(axes):
    shape = (2, 3, 2, 4)[6 - axes:]
    q, k, v = (draw(*shape, length, 8, seed=length, grad=True) for length in (7, 9, 9))
    for mask in (None, draw(7, 9, seed=4), draw(*shape[-1:], 7, 9, seed=5), draw(*shape, 7, 9, seed=6)):
        ours, theirs = both((q, k, v), {} if mask is None else {"attn_mask": mask})
        for a, b in zip(ours, theirs, strict=True):
            torch.testing.assert_close(a, b, **EXACT)


def test_batches_are_broadcast():
    q, k, v = draw(2, 4, 7, 8, grad=True), draw(1, 4, 9, 8, grad=True), draw(1, 4, 9, 8, grad=True)
    for a, b in zip(*both((q, k, v), {}), strict=True):
        torch.testing.assert_close(a, b, **EXACT)
    q, k, v = draw(2, 3, 2, 7, 8, grad=True), draw(1, 3, 2, 9, 8, grad=True), draw(2, 1, 2, 9, 8, grad=True)
    for a, b in zip(*both((q, k, v), {"attn_mask": draw(2, 1, 1, 7, 9)}), strict=True):
        torch.testing.assert_close(a, b, **EXACT)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_sixteen_bits_are_as_accurate_as_torch(dtype):
    arguments = qkv(dtype=dtype)
    exact = torch_sdpa(*(x.double() for x in arguments))
    ours, theirs = sdpa(*arguments), torch_sdpa(*arguments)
    assert ours.dtype == dtype
    unit = 2.0**-8 if dtype == torch.bfloat16 else 2.0**-11
    assert (ours - exact).abs().max() <= max(2 * (theirs - exact).abs().max().item(), 2 * unit * exact.abs().max())


def test_rows_that_see_nothing_are_zero():
    q, k, v = qkv(grad=True)
    mask = torch.ones(7, 9, dtype=torch.bool)
    mask[3] = False
    out = sdpa(q, k, v, mask)
    assert (out[:, :, 3] == 0).all()
    out.sum().backward()
    assert torch.isfinite(q.grad).all() and (q.grad[:, :, 3] == 0).all()


LAYOUTS = {
    "contiguous": lambda x: x.contiguous(),
    "heads joined": lambda x: x.transpose(1, 2).contiguous().transpose(1, 2),
    "packed": lambda x: torch.stack([x.transpose(1, 2)] * 3, 2).unbind(2)[1].transpose(1, 2),
    "length first": lambda x: x.permute(2, 0, 1, 3).contiguous().permute(1, 2, 0, 3),
    "expanded": lambda x: x[:1].expand_as(x),
    "every other": lambda x: torch.stack([x, x], -1).flatten(-2)[..., ::2],
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("options", [{}, {"is_causal": True}, {"attn_mask": BOOLEAN[..., :7]}], ids=str)
@pytest.mark.parametrize("grad", [False, True])
def test_memory_order_of_the_result_is_torchs(layout, options, grad):
    q, k, v = (LAYOUTS[layout](x).requires_grad_(grad) for x in qkv(keys=7))
    ours, theirs = sdpa(q, k, v, **options), torch_sdpa(q, k, v, **options)
    assert ours.stride() == theirs.stride()
    if layout == "contiguous":
        ours.view(8, 7, 8)
    if layout in ("heads joined", "packed"):
        assert ours.transpose(1, 2).is_contiguous()


def test_memory_order_of_other_widths_is_torchs():
    q, k, v = qkv(value_width=5)
    q = LAYOUTS["heads joined"](q)
    assert sdpa(q, k, v).is_contiguous() and torch_sdpa(q, k, v).is_contiguous()


# -------------------------------------------------------------------------------------------------------------- dropout

def test_dropout_follows_torchs_seed():
    q, k, v = qkv(queries=40, keys=50)
    torch.manual_seed(1)
    first = sdpa(q, k, v, dropout_p=0.3)
    second = sdpa(q, k, v, dropout_p=0.3)
    torch.manual_seed(1)
    assert torch.equal(first, sdpa(q, k, v, dropout_p=0.3)) and not torch.equal(first, second)


def test_dropout_keeps_the_mean_and_its_gradient_is_the_slope():
    q, k, v = qkv(grad=True, value_width=3)
    with torch.no_grad():
        mean = torch.stack([sdpa(q, k, v, dropout_p=0.5) for _ in range(4000)]).mean(0)
        deviation = torch.stack([sdpa(q, k, v, dropout_p=0.5) for _ in range(400)]).std(0)
        assert ((mean - sdpa(q, k, v)).abs() <= 5 * deviation / 4000**0.5 + 1e-12).all()
    seed = torch.tensor(7)
    assert torch.autograd.gradcheck(lambda *x: attention(*x, Options(dropout=0.5, seed=seed))[0], (q, k, v))


# ---------------------------------------------------------------------------------------------------------- derivatives

def general(q, k, v, bias, sink):
    return attention(q, k, v, Options(bias=bias, sink=sink, causal=True, alignment="bottom_right", softcap=2.0,
                                      window=(5, -1), alibi_slopes=torch.tensor([0.5, 0.25]), dropout=0.2,
                                      seed=torch.tensor(3), key_length=torch.tensor([5])))


@pytest.fixture
def everything():
    sink = torch.tensor([0.5, -0.25], dtype=torch.float32)
    return (draw(1, 2, 4, 3, grad=True), draw(1, 1, 6, 3, seed=1, grad=True), draw(1, 1, 6, 2, seed=2, grad=True),
            draw(1, 2, 1, 6, seed=3, grad=True), sink)


def test_first_and_second_derivatives(everything):
    *inputs, sink = everything
    function = lambda *x: general(*x, sink)  # noqa: E731
    assert torch.autograd.gradcheck(function, inputs)
    assert torch.autograd.gradgradcheck(function, inputs)


def test_the_composite_is_the_operator(everything):
    q, k, v, bias, sink = everything
    slopes = torch.tensor([0.5, 0.25])
    causal = {"causal": True, "alignment": "bottom_right", "alibi_slopes": slopes}
    cases = [{**causal, "bias": bias, "sink": sink, "key_length": torch.tensor([5]), "softcap": 2.0, "window": (5, -1),
              "dropout": 0.2, "seed": torch.tensor(3)}]
    for starts, key_starts, lengths in (([0, 2, 2, 4], [0, 1, 3, 6], None), ([0, 2, 3], [0, 2, 5], None),
                                        ([1, 2, 4], [1, 4, 6], None), ([0, 1, 4], [0, 3, 6], torch.tensor([2, 3]))):
        cases.append({**causal, "key_length": lengths, "window": (1, -1), "cu_seqlens_q": torch.tensor(starts),
                      "cu_seqlens_k": torch.tensor(key_starts)})
    for options in cases:
        given = Options(**options)
        for ours, plain in zip(attention(q, k, v, given), composite(q, k, v, given)):
            torch.testing.assert_close(ours, plain, **EXACT)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_gradient_of_the_sink_and_through_lse(dtype):
    q, k, v = (draw(1, 2, 5, 4, seed=seed, dtype=dtype, grad=True) for seed in range(3))
    sink = torch.tensor([0.5, -0.25], requires_grad=True)
    arguments = (q, k, v, *flat(Options(sink=sink)))
    results = []
    for function in (torch.ops.attention_cpp.attention, lambda q, k, v, *x: composite(q, k, v, from_flat(x))):
        out, lse = function(*arguments)
        results.append(torch.autograd.grad(out.square().sum() + lse.sin().sum(), (q, k, v, sink)))
    for ours, plain in zip(*results):
        torch.testing.assert_close(ours, plain, rtol=1e-4, atol=1e-6)


# --------------------------------------------------------------------------------------------- compilers and transforms

def test_operators_pass_torchs_own_checks():
    q, k, v = (draw(1, 2, 5, 4, seed=seed, grad=True) for seed in range(3))
    bias = draw(1, 2, 5, 5, grad=True)
    options = flat(Options(bias=bias, causal=True, alignment="top_left"))
    torch.library.opcheck(torch.ops.attention_cpp.attention.default, (q, k, v, *options))
    out, lse = torch.ops.attention_cpp.attention(q, k, v, *options)
    arguments = (out.detach(), None, q, k, v, out.detach(), lse.detach(), *options, [True] * 4 + [False])
    torch.library.opcheck(torch.ops.attention_cpp.attention_backward.default, arguments,
                          test_utils=("test_schema", "test_faketensor"))


@pytest.mark.parametrize("dynamic", [False, True])
def test_compiled_whole(dynamic):
    def loss(q, k, v, mask):
        return (sdpa(q, k, v, is_causal=True) + sdpa(q, k, v, mask, dropout_p=0.0)).square().sum()

    compiled = torch.compile(loss, fullgraph=True, dynamic=dynamic, backend="aot_eager")
    for length in (7, 9):
        q, k, v = (draw(1, 2, length, 8, seed=seed, grad=True) for seed in range(3))
        mask = draw(1, 2, length, length, grad=True)
        expected = torch.autograd.grad(loss(q, k, v, mask), (q, k, v, mask))
        for a, b in zip(torch.autograd.grad(compiled(q, k, v, mask), (q, k, v, mask)), expected):
            torch.testing.assert_close(a, b, **EXACT)


def test_fake_tensors_have_the_shapes():
    from torch._subclasses.fake_tensor import FakeTensorMode

    real = sdpa(*qkv(value_width=5))
    with FakeTensorMode():
        fake = sdpa(torch.empty(2, 4, 7, 8), torch.empty(2, 4, 9, 8), torch.empty(2, 4, 9, 5))
    assert fake.shape == real.shape and fake.stride() == real.stride()


# ------------------------------------------------------------------------------------------------- in torch's own place

def calls_of(monkeypatch):
    seen = []
    forward = _core.forward
    monkeypatch.setattr(_core, "forward", lambda *x: (seen.append(1), forward(*x))[1])
    return seen


def test_what_is_not_ours_goes_to_torch():
    wide = draw(1, 1, 3, 1100)
    torch.testing.assert_close(sdpa(wide, wide, wide), torch_sdpa(wide, wide, wide))
    assert "wider than 1024" in drop_in.explain(wide, wide, wide)
    meta = torch.empty(1, 1, 3, 8, device="meta")
    assert sdpa(meta, meta, meta).device.type == "meta"
    with pytest.raises(attention_cpp.Error, match="meta"):
        sdpa(meta, meta, meta, strict=True)
    with drop_in.enabled(warn=True), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        F.scaled_dot_product_attention(wide, wide, wide)
    assert any("is left to torch" in str(warning.message) for warning in caught)
    with drop_in.enabled(strict=True), pytest.raises(attention_cpp.Error, match="wider"):
        F.scaled_dot_product_attention(wide, wide, wide)


def test_explain_returns_a_plan():
    plan = drop_in.explain(*qkv(grad=True), is_causal=True)
    assert plan.isa == attention_cpp.isa()
    assert drop_in.explain_backward(*qkv(), attn_mask=draw(7, 9, grad=True)).scratch_bytes > 0


def test_the_precision_is_that_of_the_process_unless_a_call_says_it(monkeypatch):
    given, forward = [], _core.forward
    monkeypatch.setattr(_core, "forward", lambda *x: (given.append(x[-1]), forward(*x))[1])
    with drop_in.enabled():
        F.scaled_dot_product_attention(*qkv(), is_causal=True)
    for options in ({}, {"float32_precision": None}, {"float32_precision": "full"}):
        drop_in.attention(*qkv(), **options)
    assert [options.float32_precision for options in given] == [None, None, None, "full"]


def test_the_provider_hook_computes_with_the_library(monkeypatch):
    q, k, v = qkv(keys=7, dtype=torch.float32, grad=True)
    expected = sdpa(q, k, v, is_causal=True)
    gradients = torch.autograd.grad(expected.square().sum(), (q, k, v))
    assert "attention_cpp" in torch.nn.attention.list_flash_attention_impls()
    torch.nn.attention.activate_flash_attention_impl("attention_cpp")
    try:
        out = torch_sdpa(q, k, v, is_causal=True)
        assert torch.equal(out, expected)
        assert all(map(torch.equal, torch.autograd.grad(out.square().sum(), (q, k, v)), gradients))
        mask = BOOLEAN[..., :7]
        torch.testing.assert_close(torch_sdpa(q, k, v, mask), sdpa(q, k, v, mask), **SMALL)
    finally:
        torch.nn.attention.restore_flash_attention_impl()
    seen = calls_of(monkeypatch)
    torch.testing.assert_close(torch_sdpa(q, k, v, is_causal=True), expected, **SMALL)
    assert not seen


def test_gradients_are_never_lost_in_silence():
    q, k, v = qkv(grad=True)
    with pytest.raises(attention_cpp.Error, match="attention_cpp.torch"):
        attention_cpp.attention(q, k, v)
    with torch.no_grad():
        assert not attention_cpp.attention(q, k, v).requires_grad


def test_arrays_of_torch_and_numpy_share_memory():
    q, k, v = qkv()
    out = torch.empty(2, 7, 4, 8, dtype=torch.float64).transpose(1, 2)
    assert attention_cpp.attention(q.numpy(), k, v, out=out) is out
    np.testing.assert_array_equal(out.numpy(), attention_cpp.attention(q, k, v).numpy())
