"""attention_cpp.torch.linear_attention: gradients, compilers, transforms, types."""

import inspect

import pytest

torch = pytest.importorskip("torch")

from torch.autograd import gradcheck  # noqa: E402

import attention_cpp  # noqa: E402
import attention_cpp.torch as drop_in  # noqa: E402

B, H, HV, L, DK, DV = 2, 1, 2, 6, 3, 2


def draw(*shape, seed=0, dtype=torch.float64):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def inputs(length=L, batch=B, rows=1, dtype=torch.float64, grad=True):
    """q, k, v, log_decay, beta and initial_state."""
    state = torch.float64 if dtype == torch.float64 else torch.float32
    tensors = (draw(batch, H, length, DK, dtype=dtype), draw(batch, H, length, DK, seed=1, dtype=dtype),
               draw(batch, HV, length, DV, seed=2, dtype=dtype),
               -draw(batch, HV, length, rows, seed=3, dtype=dtype).abs(),
               draw(batch, HV, length, seed=4, dtype=dtype).sigmoid(), draw(batch, HV, DK, DV, seed=5, dtype=state))
    return tuple(tensor.requires_grad_(grad) for tensor in tensors)


def gated(q, k, v, log_decay, beta, state, **more):
    return drop_in.linear_attention(q, k, v, log_decay=log_decay, beta=beta, initial_state=state, return_state=True,
                                 **{"delta": True, "l2norm": True, **more})


KINDS = {"delta": {}, "plain": {"delta": False, "l2norm": False, "scale": 0.7},
         "packed": {"cu_seqlens": [0, 2, 2, 5]}}


@pytest.mark.parametrize("rows", [1, DK])
@pytest.mark.parametrize("name", KINDS)
def test_gradients(name, rows):
    given = inputs(batch=1, rows=rows) if name == "packed" else inputs(rows=rows)
    if name == "packed":
        given = (*given[:5], draw(3, HV, DK, DV, seed=5).requires_grad_())
    assert gradcheck(lambda *tensors: gated(*tensors, **KINDS[name]), given)


def test_gradients_of_a_normalised_output():
    q, k, v, log_decay, _, _ = inputs()
    assert gradcheck(lambda q, k, v, g: drop_in.linear_attention(q.exp(), k.exp(), v, log_decay=g, normalize=True),
                     (q, k, v, log_decay))


def test_values_are_those_of_numpy():
    given = inputs(length=70)
    arrays = [x.detach().numpy() for x in given]
    expected = attention_cpp.linear_attention(*arrays[:3], log_decay=arrays[3], beta=arrays[4], delta=True, l2norm=True,
                                              initial_state=arrays[5], return_state=True)
    for actual, array in zip(gated(*given), expected):
        assert (actual.detach().numpy() == array).all()


def gradients_of(function, given):
    out, state = function(*given)
    loss = out.float().sin().sum() + state.cos().sum()
    return (out, state, *torch.autograd.grad(loss, given))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_types(dtype):
    """Against float64 on the same numbers: what inputs and results of 16 bits round, in units of the largest number."""
    given = inputs(length=70, dtype=dtype)
    exact = gradients_of(gated, tuple(x.detach().double().requires_grad_() for x in given))
    for actual, expected, like in zip(gradients_of(gated, given), exact, (given[2], given[5], *given), strict=True):
        assert actual.dtype == like.dtype and actual.shape == expected.shape
        # The loss rounds dout to the type of out once more, and the gradient sums over 70 tokens.
        unit = max(torch.finfo(dtype).eps, 70 * torch.finfo(torch.float32).eps)
        assert (actual - expected).abs().max() <= 2 * unit * expected.abs().max()


@pytest.mark.parametrize("grad", [False, True])
def test_compiled_whole(grad):
    given = inputs(length=70, dtype=torch.float32, grad=grad)
    starts = torch.tensor([0, 30, 70])
    torch._dynamo.reset()

    def both(*tensors):
        out, state = gated(*tensors)
        packed = drop_in.linear_attention(*(x[:1] for x in tensors[:3]), cu_seqlens=starts, beta=tensors[4][:1])
        return out + packed.sum(), state

    compiled = torch.compile(both, fullgraph=True, backend="aot_eager")
    if not grad:
        assert all(torch.equal(a, b) for a, b in zip(compiled(*given), both(*given)))
        return
    for ours, plain in zip(gradients_of(compiled, given), gradients_of(both, given), strict=True):
        assert torch.equal(ours, plain)


def test_operators_are_registered_well():
    given = inputs()
    torch.library.opcheck(torch.ops.attention_cpp.linear_attention,
                          (*given, None, None, True, True, 1e-6, False, True))


def test_views_are_not_copied():
    """Gradients and results of views whose tokens are the fast axis, as the convolution of a model makes them."""
    given = inputs(length=70, dtype=torch.float32)
    views = tuple(x.detach().transpose(2, 3).contiguous().transpose(2, 3).requires_grad_() for x in given[:3])
    assert views[0].stride(2) == 1
    for actual, expected in zip(gradients_of(gated, (*views, *given[3:])), gradients_of(gated, given), strict=True):
        assert torch.equal(actual, expected)
    assert gated(*views, *given[3:])[0].stride(-1) == 1
    log_decay = torch.tensor([-0.5, -0.25]).view(1, HV, 1, 1)
    assert torch.equal(drop_in.linear_attention(*views, log_decay=log_decay),
                       drop_in.linear_attention(*given[:3], log_decay=log_decay.expand(B, HV, 70, 1)))


def test_transforms():
    given = inputs(length=70)
    of_q = lambda q: gated(q, *given[1:])[0].sin().sum()  # noqa: E731
    expected = torch.autograd.grad(of_q(given[0]), given[0])[0]
    assert torch.equal(torch.func.grad(of_q)(given[0].detach()), expected)
    both = torch.stack([given[0], 2 * given[0]]).detach()
    assert torch.equal(torch.vmap(torch.func.grad(of_q))(both)[0], expected)
    assert torch.equal(torch.vmap(lambda q: gated(q, *given[1:])[1])(both)[1], gated(both[1], *given[1:])[1])


def test_what_has_no_derivative():
    given = inputs()
    out, _ = gated(*given)
    first, = torch.autograd.grad(out.sin().sum(), given[0], create_graph=True)
    with pytest.raises(NotImplementedError, match="first derivatives only: create_graph=True"):
        first.sum().backward()
    with pytest.raises(NotImplementedError, match="no derivatives in forward mode"):
        torch.func.jvp(lambda q: gated(q, *given[1:])[0], (given[0].detach(),), (given[0].detach(),))


def test_autocast():
    q, k, v, log_decay, beta, _ = inputs(dtype=torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out, state = drop_in.linear_attention(q, k, v, log_decay=log_decay, beta=beta, return_state=True)
    assert out.dtype == torch.bfloat16 and state.dtype == torch.float32
    assert torch.autograd.grad(out.float().sum(), v)[0].dtype == torch.float32


def test_only_the_state_or_nothing_has_a_gradient():
    given = inputs()
    _, state = gated(*given)
    dq, dk = torch.autograd.grad(state.sum(), given[:2], allow_unused=True)
    assert dq is not None and not dq.any() and dk.any()


WRONG = {
    "no tensor": (lambda q, k, v: drop_in.linear_attention(q.numpy(), k, v), TypeError, "q must be a torch.Tensor"),
    "device": (lambda q, k, v: drop_in.linear_attention(q.to("meta"), k, v), ValueError, "q is on meta"),
    "axes": (lambda q, k, v: drop_in.linear_attention(q[0], k, v), ValueError, "3, 4 and 4 axes"),
    "beta": (lambda q, k, v: drop_in.linear_attention(q, k, v, beta=0.5), TypeError, "beta must be a torch.Tensor"),
    "scale": (lambda q, k, v: drop_in.linear_attention(q, k, v, scale="a"), TypeError, "scale must be a number"),
    "delta": (lambda q, k, v: drop_in.linear_attention(q, k, v, delta=1), TypeError, "delta must be True or False"),
    "starts": (lambda q, k, v: drop_in.linear_attention(q, k, v, cu_seqlens="a"), TypeError, "cu_seqlens must be"),
    "state": (lambda q, k, v: drop_in.linear_attention(q, k, v, initial_state=draw(B, HV, DK, DV, dtype=torch.float32)),
              ValueError, "initial_state is float32, must be float64"),
}


@pytest.mark.parametrize("name", WRONG)
def test_errors(name):
    call, kind, message = WRONG[name]
    with pytest.raises(kind, match=message):
        call(*inputs(grad=False)[:3])


def test_signatures_agree():
    ours, arrays = (inspect.signature(f).parameters for f in (drop_in.linear_attention, attention_cpp.linear_attention))
    assert [(p.name, p.kind, p.default) for p in ours.values()] == [
        (p.name, p.kind, p.default) for p in arrays.values()]
    assert "linear_attention" in drop_in.__all__
