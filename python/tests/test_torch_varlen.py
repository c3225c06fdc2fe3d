"""torch.nn.attention.varlen and torch.nn.attention.bias after enable(), each against the sequences one by one."""

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402
from torch.nn.attention.bias import causal_lower_right, causal_upper_left  # noqa: E402
from torch.nn.attention.varlen import AuxRequest, varlen_attn, varlen_attn_out  # noqa: E402

import attention_cpp  # noqa: E402
import attention_cpp.torch as drop_in  # noqa: E402

torch_sdpa = F.scaled_dot_product_attention
EXACT = dict(rtol=1e-11, atol=1e-12)  # float64
QUERIES, KEYS = [3, 0, 5, 4], [6, 2, 5, 1]


@pytest.fixture(autouse=True)
def enabled():
    with drop_in.enabled(strict=True):
        yield


def starts(lengths):
    return torch.tensor([0, *torch.tensor(lengths).cumsum(0)], dtype=torch.int32)


CU_Q, CU_K = starts(QUERIES), starts(KEYS)


def draw(*shape, seed=0, grad=True, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype).requires_grad_(grad)


def qkv(heads=4, **kind):
    return draw(12, 4, 8, **kind), draw(14, heads, 8, seed=1, **kind), draw(14, heads, 8, seed=2, **kind)


def one_by_one(q, k, v, used=None, **options):
    """(out (T_q, H, D), lse (H, T_q)) by the operator, a sequence at a time."""
    results = []
    for n in range(4):
        rows, first = slice(CU_Q[n], CU_Q[n + 1]), int(CU_K[n])
        keys = slice(first, first + (KEYS[n] if used is None else int(used[n])))
        out, lse = drop_in.attention(*(x.transpose(0, 1) for x in (q[rows], k[keys], v[keys])), return_lse=True,
                                     alignment="bottom_right", **options)
        results.append((out.transpose(0, 1), lse))
    return tuple(torch.cat(parts, axis) for parts, axis in zip(zip(*results), (0, 1)))


OPTIONS = {
    "plain": ({}, {}),
    "causal": ({"window_size": (-1, 0)}, {"causal": True}),
    "window": ({"window_size": (2, 1)}, {"window": (2, 1)}),
    "scale": ({"scale": 0.3}, {"scale": 0.3}),
}


@pytest.mark.parametrize("heads", [4, 2])
@pytest.mark.parametrize("name", OPTIONS)
def test_values_and_gradients(name, heads):
    options, own = OPTIONS[name]
    inputs = qkv(heads)
    out, lse = varlen_attn(*inputs, CU_Q, CU_K, 5, 6, return_aux=AuxRequest(lse=True), enable_gqa=heads < 4, **options)
    expected, expected_lse = one_by_one(*inputs, **own)
    torch.testing.assert_close(out, expected, **EXACT)
    torch.testing.assert_close(lse, expected_lse, **EXACT)
    for ours, theirs in zip(*(torch.autograd.grad(x.sin().sum(), inputs) for x in (out, expected)), strict=True):
        torch.testing.assert_close(ours, theirs, **EXACT)


def test_into_a_tensor_that_is_there():
    inputs = [x.detach() for x in qkv()]
    out = torch.empty_like(inputs[0])
    assert varlen_attn_out(out, *inputs, CU_Q, CU_K, 5, 6, window_size=(-1, 0)) is out
    torch.testing.assert_close(out, one_by_one(*inputs, causal=True)[0], **EXACT)


def test_keys_that_are_in_use():
    inputs = [x.detach() for x in qkv()]
    used = torch.tensor([4, 2, 1, 0], dtype=torch.int32)
    out = varlen_attn(*inputs, CU_Q, CU_K, 5, 6, seqused_k=used, window_size=(-1, 0))
    torch.testing.assert_close(out, one_by_one(*inputs, used=used, causal=True)[0], **EXACT)


def test_pages_give_what_the_keys_in_them_give():
    q, k, v = (x.detach() for x in qkv())
    size, table = 2, torch.tensor([[5, 2, 0], [1, 9, 9], [3, 7, 4], [6, 9, 9]], dtype=torch.int32)
    pools = []
    for x in (k, v):
        pool = torch.full((8, size, 4, 8), torch.nan, dtype=x.dtype)
        for n, length in enumerate(KEYS):
            for place in range(length):
                pool[table[n, place // size], place % size] = x[CU_K[n] + place]
        pools.append(pool)
    used = torch.tensor(KEYS, dtype=torch.int32)
    out = varlen_attn(q, *pools, CU_Q, None, 5, 6, seqused_k=used, block_table=table, window_size=(-1, 0))
    torch.testing.assert_close(out, one_by_one(q, k, v, causal=True)[0], **EXACT)
    with pytest.raises(attention_cpp.Error, match="seqused_k must be given with block_table"):
        varlen_attn(q, *pools, CU_Q, None, 5, 6, block_table=table)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_other_types_are_as_accurate_as_their_rounding(dtype):
    inputs = qkv(dtype=dtype)
    out = varlen_attn(*inputs, CU_Q, CU_K, 5, 6)
    exact = one_by_one(*(x.double() for x in inputs))[0]
    assert out.dtype == dtype
    assert (out - exact).abs().max() <= 4 * torch.finfo(dtype).eps * exact.abs().max()
    assert torch.autograd.grad(out.float().sum(), inputs)[0].dtype == dtype


def test_compiled_calls_have_the_same_gradients():
    inputs = qkv(dtype=torch.float32)
    torch._dynamo.reset()
    function = lambda *x: varlen_attn(*x, CU_Q, CU_K, 5, 6, window_size=(-1, 0))  # noqa: E731
    compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
    for ours, plain in zip(*(torch.autograd.grad(f(*inputs).sin().sum(), inputs) for f in (compiled, function))):
        assert torch.equal(ours, plain)


def test_wrong_arguments_raise_the_reason():
    q, k, v = qkv()
    with pytest.raises(attention_cpp.Error, match="cu_seq_k must be given"):
        varlen_attn(q, k, v, CU_Q, None, 5, 6)
    with pytest.raises(attention_cpp.Error, match=r"key \(14, 4, 7\) must be \(total_k, Hk, D\)"):
        varlen_attn(q, k[..., :7], v, CU_Q, CU_K, 5, 6)
    with pytest.raises(attention_cpp.Error, match="cu_seq_q is torch.int64, must be torch.int32"):
        varlen_attn(q, k, v, CU_Q.long(), CU_K, 5, 6)


def test_disabled_it_is_torchs():
    drop_in.disable()
    with pytest.raises(NotImplementedError):
        varlen_attn(*qkv(), CU_Q, CU_K, 5, 6)


# -------------------------------------------------------------------------------------------------------- causal biases

@pytest.mark.parametrize("make", [causal_upper_left, causal_lower_right])
@pytest.mark.parametrize("imported", ["before", "after"])
@pytest.mark.parametrize("width", [8, 1100])
def test_causal_biases_of_earlier_imports_are_computed(make, imported, width):
    """Also where the function was imported before, and where it is left to torch: heads wider than 1024."""
    q, k, v = (draw(1, 2, n, width, seed=n) for n in (5, 7, 7))
    function = torch_sdpa if imported == "before" else F.scaled_dot_product_attention
    mask = torch.ones(5, 7, dtype=torch.bool).tril(2 if make is causal_lower_right else 0)
    expected = (q @ k.transpose(-1, -2) / width**0.5).masked_fill(~mask, -torch.inf).softmax(-1) @ v
    with drop_in.enabled(strict=width < 1024):
        out = function(q, k, v, make(5, 7))
    torch.testing.assert_close(out, expected, **EXACT)
    for a, b in zip(*(torch.autograd.grad(x.sin().sum(), (q, k, v)) for x in (out, expected)), strict=True):
        torch.testing.assert_close(a, b, **EXACT)


def test_causal_biases_after_disable():
    q, k, v = (draw(1, 2, n, 8, seed=n) for n in (5, 7, 7))
    ours = torch_sdpa(q, k, v, causal_lower_right(5, 7))
    drop_in.disable()
    torch.testing.assert_close(torch_sdpa(q, k, v, causal_lower_right(5, 7)), ours, **EXACT)
    with pytest.raises(ValueError, match="CausalBias"):
        torch_sdpa(q, k, v, causal_lower_right(5, 7), is_causal=True)
