"""attention_cpp.torch.attention_weights: rectangles of the matrix, their gradients, and the memory they take."""

import pytest

torch = pytest.importorskip("torch")

from torch.autograd import gradcheck, gradgradcheck  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402
from torch.utils._pytree import tree_leaves  # noqa: E402

import attention_cpp  # noqa: E402
import attention_cpp.torch as drop_in  # noqa: E402
from test_torch_operator import EXACT, OPTIONS, PACKED, draw, qkv  # noqa: E402

each_option = pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
RECTANGLES = [(None, None), (slice(1, 4), None), (2, range(1, 5)), (range(3, 5), slice(0, 2))]


def rows_of(index, count):
    return slice(None) if index is None else slice(index, index + 1) if isinstance(index, int) else (
        index if isinstance(index, slice) else slice(index.start, index.stop))


@each_option
@pytest.mark.parametrize("rows, columns", RECTANGLES, ids=str)
def test_rectangles_are_parts_of_the_whole_matrix(options, rows, columns):
    q, k, v = qkv(grad=False)
    _, lse = drop_in.attention(q, k, v, return_lse=True, **options)
    with torch.no_grad():
        whole = attention_cpp.attention_weights(q, k, lse, **{**options, "dropout": 0.0, "seed": 0})
    expected = whole[:, :, rows_of(rows, 5), rows_of(columns, 6)]
    for given in (lse, None):
        actual = drop_in.attention_weights(q, k, given, rows, columns, **options)
        torch.testing.assert_close(actual, expected, **EXACT)


@each_option
@pytest.mark.parametrize("rows, columns", [(None, None), (slice(1, 4), slice(1, 5))], ids=str)
def test_gradients_pass_gradcheck(options, rows, columns):
    inputs = qkv()[:2]
    assert gradcheck(lambda q, k: drop_in.attention_weights(q, k, None, rows, columns, **options), inputs)
    lse = drop_in.attention(*qkv(grad=False), return_lse=True, **options)[1].clamp(min=-50).requires_grad_()
    bias = {"bias": options["bias"].clone().requires_grad_()} if "bias" in options else {}

    def function(q, k, lse, *bias):
        return drop_in.attention_weights(q, k, lse, rows, columns, **{**options, **dict(zip(("bias",), bias))})

    assert gradcheck(function, (*inputs, lse, *bias.values()))


@pytest.mark.parametrize("name", ["softcap", "all"])
def test_second_derivatives_pass_gradgradcheck(name):
    inputs = tuple(x.detach()[:, :2 * n, :, :2].requires_grad_() for n, x in zip((1, 1), qkv(batch=2)[:2]))
    options = {key: value for key, value in OPTIONS[name].items() if key not in ("mask", "sink", "alibi_slopes")}
    assert gradgradcheck(lambda q, k: drop_in.attention_weights(q, k, None, slice(1, 4), **options), inputs)


def test_against_the_softmax_of_torch():
    q, k, _ = qkv()
    causal = torch.ones(5, 6, dtype=torch.bool).tril(1)
    scores = 2 * torch.tanh(q @ k.repeat_interleave(2, 1).transpose(-1, -2) / 3**0.5 / 2)
    expected = scores.masked_fill(~causal, -torch.inf).softmax(-1)
    actual = drop_in.attention_weights(q, k, softcap=2.0, causal=True, alignment="bottom_right")
    torch.testing.assert_close(actual, expected, **EXACT)

    def entropy(p):
        return -(p * p.clamp_min(1e-30).log()).sum()

    for ours, theirs in zip(*(torch.autograd.grad(entropy(p), (q, k)) for p in (actual, expected)), strict=True):
        torch.testing.assert_close(ours, theirs, **EXACT)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_loss_on_weights_and_result_together(dtype):
    """lse of the forward carries the gradient of what the rectangle leaves out."""
    q, k, v = (x.detach().to(dtype).requires_grad_() for x in qkv())
    out, lse = drop_in.attention(q, k, v, return_lse=True)
    weights = drop_in.attention_weights(q, k, lse, rows=slice(3, 5), columns=slice(0, 2), heads=[2, 1])
    exact = [x.detach().double().requires_grad_() for x in (q, k, v)]
    whole = (exact[0] @ exact[1].repeat_interleave(2, 1).transpose(-1, -2) / 3**0.5).softmax(-1)
    reference = whole @ exact[2].repeat_interleave(2, 1)
    losses = (out.double().sin().sum() + weights.double().log().sum(),
              reference.sin().sum() + whole[:, [2, 1], 3:, :2].log().sum())
    gradients = (torch.autograd.grad(losses[0], (q, k, v)), torch.autograd.grad(losses[1], exact))
    assert weights.dtype == torch.float32
    unit = torch.finfo(dtype).eps
    for ours, theirs in zip(*gradients, strict=True):
        assert ours.dtype == dtype
        assert (ours.double() - theirs).abs().max() <= 8 * unit * max(theirs.abs().max().item(), 1)


@pytest.mark.parametrize("rows", [None, slice(1, 4), 4], ids=str)
def test_rectangles_of_packed_sequences_and_their_gradients(rows):
    q, k, v = qkv(batch=1)
    _, lse = drop_in.attention(q, k, v, return_lse=True, **PACKED)
    whole = attention_cpp.attention_weights(q.detach(), k.detach(), lse.detach(), **PACKED)
    actual = drop_in.attention_weights(q, k, None, rows, **PACKED)
    torch.testing.assert_close(actual, whole[:, :, rows_of(rows, 5)], **EXACT)
    assert gradcheck(lambda q, k: drop_in.attention_weights(q, k, None, rows, **PACKED), (q, k))


def test_selected_heads_are_those_of_the_whole_matrix():
    q, k, _ = qkv()
    options = {**OPTIONS["all"], "bias": draw(2, 4, 5, 6), "blocks": (draw(1, 4, 3, 6) > -1, 2, 1)}
    whole = drop_in.attention_weights(q, k, **options)
    for heads in (3, slice(1, 3), range(2, 4), [0, 3], torch.tensor([2])):
        index = [heads] if isinstance(heads, int) else heads
        torch.testing.assert_close(drop_in.attention_weights(q, k, heads=heads, **options), whole[:, index], **EXACT)
    assert gradcheck(lambda q, k: drop_in.attention_weights(q, k, heads=[3, 0], **options), (q, k))


def test_what_is_masked_is_not_read():
    q, k, _ = (x.detach() for x in qkv())
    k[:, :, 4:] = torch.nan
    q.requires_grad_(), k.requires_grad_()
    options = {"key_length": [4, 4], "softcap": 3.0}
    weights = drop_in.attention_weights(q, k, **options)
    gradients = torch.autograd.grad(weights.square().sum(), (q, k))
    clean = k.detach().nan_to_num(0).requires_grad_()
    expected = torch.autograd.grad(drop_in.attention_weights(q, clean, **options).square().sum(), (q, clean))
    for ours, theirs in zip(gradients, expected, strict=True):
        torch.testing.assert_close(ours, theirs, **EXACT)


class Largest(TorchDispatchMode):
    """The elements of the largest tensor that is made."""

    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, function, types, arguments=(), options=None):
        result = function(*arguments, **(options or {}))
        self.count = max([self.count, *(x.numel() for x in tree_leaves(result) if isinstance(x, torch.Tensor))])
        return result


def test_memory_is_that_of_the_rectangle():
    q, k = (draw(1, 2, 3000, 8, seed=seed, grad=True, dtype=torch.float32) for seed in range(2))
    with Largest() as largest:
        weights = drop_in.attention_weights(q, k, rows=slice(2990, 3000), causal=True)
        torch.autograd.grad(weights.square().sum(), (q, k))
    assert largest.count <= 2 * 10 * 3000


def test_rows_alone_cost_rows_alone(monkeypatch):
    from attention_cpp import _core

    lengths = []
    forward = _core.forward
    monkeypatch.setattr(_core, "forward", lambda q, *x: (lengths.append(q.shape[2]), forward(q, *x))[1])
    q, k, _ = qkv(grad=False)
    drop_in.attention_weights(q, k, rows=4, causal=True, alignment="bottom_right")
    assert lengths == [1]


def test_compiled_whole():
    q, k, _ = qkv()

    def loss(q, k):
        return drop_in.attention_weights(q, k, rows=slice(1, 3), causal=True, alignment="top_left").square().sum()

    torch._dynamo.reset()
    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    for ours, plain in zip(*(torch.autograd.grad(f(q, k), (q, k)) for f in (compiled, loss)), strict=True):
        torch.testing.assert_close(ours, plain, **EXACT)


def test_leading_axes_may_be_missing():
    q, k, _ = qkv(grad=False)
    whole = drop_in.attention_weights(q, k)
    torch.testing.assert_close(drop_in.attention_weights(q[1], k[1]), whole[1], **EXACT)
    torch.testing.assert_close(drop_in.attention_weights(q[1, 3], k[1, 1]), whole[1, 3], **EXACT)


WRONG = {
    "rows": (lambda q, k: drop_in.attention_weights(q, k, rows=slice(0, 4, 2)), ValueError, "rows must be a range"),
    "columns": (lambda q, k: drop_in.attention_weights(q, k, columns=6), ValueError, r"columns must .* \[0, 6\)"),
    "heads": (lambda q, k: drop_in.attention_weights(q, k, heads=4), ValueError, r"must be in \[0, 4\), not \[4\]"),
    "lse": (lambda q, k: drop_in.attention_weights(q, k, draw(2, 4)), ValueError, "lse one less"),
    "no tensor": (lambda q, k: drop_in.attention_weights(q.numpy(), k), TypeError, "q must be a torch.Tensor"),
    "alignment": (lambda q, k: drop_in.attention_weights(q, k, rows=range(5), causal=True), ValueError, "be given"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_arguments_raise_the_reason(name):
    call, kind, message = WRONG[name]
    with pytest.raises(kind, match=message):
        call(*qkv(grad=False)[:2])
