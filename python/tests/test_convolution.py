"""attention_cpp.torch.causal_convolution against torch's conv1d, in every layout, with gradients, compiled."""

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402

import attention_cpp  # noqa: E402
from attention_cpp.torch import causal_convolution  # noqa: E402

EXACT = dict(rtol=1e-12, atol=1e-12)  # float64


def draw(*shape, seed=0, dtype=torch.float64, grad=True):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype).requires_grad_(grad)


def arguments(B=2, L=9, C=5, W=4, **kind):
    return (draw(B, L, C, **kind), draw(C, W, seed=1, **kind), draw(C, seed=2, **kind),
            draw(B, C, W - 1, seed=3, **kind))


def by_torch(x, weight, bias=None, initial_state=None, silu=False):
    """(out, final_state) by conv1d, whose axes are (B, C, L)."""
    kept = weight.shape[1] - 1
    before = x.new_zeros(x.shape[0], x.shape[2], kept) if initial_state is None else initial_state
    tokens = torch.cat([before, x.transpose(1, 2)], -1)
    out = F.conv1d(tokens, weight[:, None], bias, groups=len(weight))
    return (F.silu(out) if silu else out).transpose(1, 2), tokens[..., tokens.shape[-1] - kept:]


def assert_same_gradients(ours, theirs, inputs, **tolerance):
    torch.testing.assert_close(ours, theirs, **tolerance)
    weights = [torch.linspace(-1, 1, out.numel(), dtype=out.dtype).view_as(out) for out in theirs]
    for mine, plain in zip(*(torch.autograd.grad(sum((w * out).sum() for w, out in zip(weights, outs)), inputs)
                             for outs in (ours, theirs)), strict=True):
        torch.testing.assert_close(mine, plain, **tolerance)


@pytest.mark.parametrize("W", [1, 2, 3, 4, 8])
@pytest.mark.parametrize("silu", [False, True])
@pytest.mark.parametrize("L", [1, 2, 9, 200])
def test_like_conv1d(W, silu, L):
    inputs = arguments(L=L, W=W)
    ours = causal_convolution(*inputs[:3], initial_state=inputs[3], silu=silu, return_final_state=True)
    assert_same_gradients(ours, by_torch(*inputs, silu=silu), inputs, **EXACT)
    ours = causal_convolution(*inputs[:2], silu=silu)
    assert_same_gradients((ours,), (by_torch(*inputs[:2], silu=silu)[0],), inputs[:2], **EXACT)


@pytest.mark.parametrize("layout", ["tokens", "slice", "apart"])
def test_layouts(layout):
    x, weight, bias, _ = arguments(L=70, C=40)
    views = {"tokens": x.detach().transpose(1, 2).contiguous().transpose(1, 2),
             "slice": torch.cat([x, x], -1).detach()[..., :40], "apart": x.detach().repeat(1, 2, 2)[:, :70, ::2]}
    view = views[layout].requires_grad_()
    with torch.no_grad():
        view.copy_(x)
    out, expected = causal_convolution(view, weight, bias, silu=True), causal_convolution(x, weight, bias, silu=True)
    assert torch.equal(out, expected)
    assert layout != "tokens" or out.stride() == view.stride()
    upstreams = (x.detach(), x.detach().transpose(1, 2).contiguous().transpose(1, 2),
                 torch.ones((), dtype=x.dtype).expand(2, 70, 40))
    for upstream in upstreams:
        ours, theirs = (torch.autograd.grad(o, (i, weight, bias), upstream, retain_graph=True)
                        for o, i in ((out, view), (expected, x)))
        assert all(torch.equal(a, b) for a, b in zip(ours, theirs))


def test_packed_is_each_sequence():
    x, weight, bias, _ = arguments(B=1, L=30)
    state = draw(3, 5, 3, seed=4)
    starts = [2, 4, 4, 25]
    for cu_seqlens in (torch.tensor(starts, dtype=torch.int32), torch.tensor(starts)):
        ours = causal_convolution(x, weight, bias, silu=True, initial_state=state, cu_seqlens=cu_seqlens,
                                  return_final_state=True)
        parts = [by_torch(x[:, a:b], weight, bias, state[n:n + 1], True) if b > a else (x[:, :0], state[n:n + 1])
                 for n, (a, b) in enumerate(zip(starts, starts[1:]))]
        zeros = torch.zeros(1, 2, 5, dtype=x.dtype), torch.zeros(1, 5, 5, dtype=x.dtype)
        expected = torch.cat([zeros[0], *(out for out, _ in parts), zeros[1]], 1), torch.cat([s for _, s in parts])
        assert_same_gradients(ours, expected, (x, weight, bias, state), **EXACT)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_segments(dtype):
    x, weight, bias, _ = arguments(B=2, L=20)
    ids = torch.tensor([[0] * 5 + [1] * 9 + [-1] * 6, [3] + [0] * 19], dtype=dtype)
    out = causal_convolution(x, weight, bias, silu=True, segment_ids=ids)
    runs = [[(0, 5), (5, 14)], [(0, 1), (1, 20)]]
    rows = [[by_torch(x[b:b + 1, first:end], weight, bias, None, True)[0] for first, end in of_row]
            for b, of_row in enumerate(runs)]
    rows[0].append(torch.zeros(1, 6, 5, dtype=x.dtype))
    expected = torch.cat([torch.cat(row, 1) for row in rows])
    assert_same_gradients((out,), (expected,), (x, weight, bias), **EXACT)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_other_types(dtype):
    inputs = arguments(L=100, C=30, dtype=dtype)
    outs = causal_convolution(*inputs[:3], initial_state=inputs[3], silu=True, return_final_state=True)
    assert all(out.dtype == dtype for out in outs)
    exact = [x.detach().double().requires_grad_() for x in inputs]
    expected = by_torch(*exact, silu=True)
    for x in (*outs, *torch.autograd.grad(outs[0].sum(), inputs)):
        assert x.dtype == dtype
    out = causal_convolution(*inputs[:3], initial_state=inputs[3], silu=True)
    for ours, theirs in ((outs[0], expected[0]), *zip(torch.autograd.grad(out.float().sum(), inputs),
                                                      torch.autograd.grad(expected[0].sum(), exact))):
        assert (ours - theirs).abs().max() <= 4 * torch.finfo(dtype).eps * theirs.abs().max()


def test_float32_weights_of_bfloat16_tokens():
    x, weight, bias, _ = arguments(L=40)
    half, single = x.detach().bfloat16().requires_grad_(), [p.detach().float().requires_grad_() for p in (weight, bias)]
    out = causal_convolution(half, *single, silu=True)
    dx, dweight, dbias = torch.autograd.grad(out.float().sum(), (half, *single))
    assert out.dtype == dx.dtype == torch.bfloat16 and dweight.dtype == dbias.dtype == torch.float32
    expected = by_torch(half.float(), *single, silu=True)[0]
    assert (out - expected).abs().max() <= torch.finfo(torch.bfloat16).eps * expected.abs().max()


def test_gradients_of_both_orders():
    x, weight, bias, state = arguments(L=5, C=2)
    ids = torch.tensor([[0, 0, 1, 1, 1], [0, 0, 0, 0, -1]])

    def with_state(*inputs):
        return causal_convolution(*inputs[:3], initial_state=inputs[3], silu=True, return_final_state=True)

    def of_segments(*inputs):
        return causal_convolution(*inputs, segment_ids=ids, silu=True)

    def packed(x, weight):
        return causal_convolution(x[:1], weight, cu_seqlens=torch.tensor([0, 2, 5]), silu=True)

    for function, inputs in ((with_state, (x, weight, bias, state)), (of_segments, (x, weight, bias)),
                             (packed, (x, weight))):
        assert torch.autograd.gradcheck(function, inputs)
        assert torch.autograd.gradgradcheck(function, inputs)


def test_compiled():
    inputs = arguments(L=20, dtype=torch.float32)
    torch._dynamo.reset()

    def function(*inputs):
        out, state = causal_convolution(*inputs[:3], initial_state=inputs[3], silu=True, return_final_state=True)
        return out.sin().sum() + state.cos().sum()

    compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
    for ours, plain in zip(*(torch.autograd.grad(f(*inputs), inputs) for f in (compiled, function)), strict=True):
        assert torch.equal(ours, plain)
    ids = torch.zeros(2, 20, dtype=torch.int32)
    operator = torch.ops.attention_cpp.causal_convolution
    for arguments_of in ((*inputs, None, None, True, True), (*inputs[:3], None, ids, None, False, False)):
        torch.library.opcheck(operator, arguments_of)


def test_transforms():
    x, weight, bias, state = (tensor.detach() for tensor in arguments(L=6))
    ids = torch.tensor([[0, 0, 1, 1, 1, -1]] * 2)

    def plain(x, weight, bias, state):
        return by_torch(x, weight, bias, state, True)[0]

    def ours(x, weight, bias, state):
        return causal_convolution(x, weight, bias, initial_state=state, silu=True)

    inputs = (x, weight, bias, state)
    tangents = tuple(torch.ones_like(tensor) for tensor in inputs)
    for a, b in ((torch.func.jvp(f, inputs, tangents) for f in (ours, plain)),
                 (torch.func.grad(lambda *given: f(*given).sin().sum(), (0, 1, 2, 3))(*inputs) for f in (ours, plain)),
                 ((torch.func.vmap(lambda x: f(x, *inputs[1:]))(torch.stack([x, x.cos()])),) for f in (ours, plain))):
        torch.testing.assert_close(a, b, **EXACT)
    value, tangent = torch.func.jvp(lambda x: causal_convolution(x, weight, segment_ids=ids), (x,), (x,))
    torch.testing.assert_close(value, tangent, **EXACT)  # it is linear in x
    torch.testing.assert_close(value, causal_convolution(x, weight, segment_ids=ids), **EXACT)


def test_one_thread_or_many():
    inputs = arguments(L=700, C=70, dtype=torch.float32)
    results, before = [], attention_cpp.threads()
    try:
        for count in (1, 2, 5):
            torch.set_num_threads(count)
            out = causal_convolution(*inputs[:3], initial_state=inputs[3], silu=True)
            results.append((out, *torch.autograd.grad(out.sum(), inputs)))
    finally:
        torch.set_num_threads(before)
    for result in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(result, results[0]))


def test_errors():
    x, weight, bias, state = (tensor.detach() for tensor in arguments())
    with pytest.raises(attention_cpp.Error, match=r"weight \(4, 4\) must be \(C, W\) with C = 5, not 4"):
        causal_convolution(x, weight[:4], bias)
    with pytest.raises(attention_cpp.Error, match="weight has a width of 9, must be 1 to 8"):
        causal_convolution(x, x.new_zeros(5, 9))
    with pytest.raises(attention_cpp.Error, match=r"initial_state has size \[2, 5, 2\], must be \[N, C, W - 1 or mo"):
        causal_convolution(x, weight, initial_state=state[..., :2])
    with pytest.raises(attention_cpp.Error, match="initial_state is torch.float32, must be torch.float64"):
        causal_convolution(x, weight, initial_state=state.float())
    with pytest.raises(attention_cpp.Error, match="segment_ids is torch.float64, must be torch.int32"):
        causal_convolution(x, weight, segment_ids=x[..., 0])
    with pytest.raises(attention_cpp.Error, match="cu_seqlens is for a batch of 1, but x has a batch of 2"):
        causal_convolution(x, weight, cu_seqlens=torch.tensor([0, 9]))
    with pytest.raises(attention_cpp.Error, match="initial_state cannot be given with segment_ids"):
        causal_convolution(x, weight, initial_state=state, segment_ids=torch.zeros(2, 9, dtype=torch.int32))
    with pytest.raises(TypeError, match="x must be a torch.Tensor, not ndarray"):
        causal_convolution(x.numpy(), weight)
