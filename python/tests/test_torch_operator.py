"""attention_cpp.torch.attention: every option of the operator, its gradients, and what it refuses."""

import inspect
import sys

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch.autograd import gradcheck, gradgradcheck  # noqa: E402

import attention_cpp  # noqa: E402
import attention_cpp.torch as drop_in  # noqa: E402
import reference  # noqa: E402
from attention_cpp._options import FIELDS  # noqa: E402
from attention_cpp._torch.attention import as_tensors  # noqa: E402
from attention_cpp._torch.composite import composite  # noqa: E402
from attention_cpp._torch.options import NAMES, flat, from_flat  # noqa: E402

EXACT = dict(rtol=1e-11, atol=1e-12)  # float64


def draw(*shape, seed=0, grad=False, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype).requires_grad_(grad)


def qkv(batch=2, queries=5, keys=6, grad=True, **kind):
    return (draw(batch, 4, queries, 3, grad=grad, **kind), draw(batch, 2, keys, 3, seed=1, grad=grad, **kind),
            draw(batch, 2, keys, 2, seed=2, grad=grad, **kind))


BLOCKS = torch.tensor([[1, 0, 1], [0, 1, 1]], dtype=torch.bool)
OPTIONS = {
    "plain": {},
    "scale": {"scale": 0.3},
    "softcap": {"softcap": 1.5},
    "causal": {"causal": True, "alignment": "bottom_right"},
    "window": {"window": (2, 1), "alignment": "top_left"},
    "key lengths": {"key_length": [3, 6]},
    "query lengths": {"causal": True, "alignment": "bottom_right", "key_length": [6, 5], "query_length": [4, 5]},
    "offset": {"causal": True, "alignment": "offset", "offset": np.array([0, 2])},
    "mask": {"mask": draw(2, 1, 5, 6, seed=3) > -1},
    "mask without axes": {"mask": draw(5, 6, seed=3) > -1},
    "bias": {"bias": draw(1, 4, 5, 6, seed=4)},
    "slopes": {"alibi_slopes": [0.5, 0.25, 0.125, 0.0625], "alignment": "top_left"},
    "segments": {"query_segment_ids": torch.tensor([[0, 0, 1, 1, 1], [2, 2, 2, 2, 2]]),
                  "key_segment_ids": torch.tensor([[0, 0, 0, 1, 1, 1], [0, 2, 0, 2, 2, 2]])},
    "blocks": {"blocks": (BLOCKS, 3, 2)},
    "block lists": {"blocks": (torch.tensor([0, 2, 4]), torch.tensor([0, 2, 1, 2]), 3, 2)},
    "sink": {"sink": [0.5, -0.5, 1.0, 0.0]},
    "dropout": {"dropout": 0.3, "seed": 2**64 - 1},
    "precision": {"float32_precision": "high", "batch_invariant": True},
    "shard": {"shard": (1, 2, 3, 2, 9, 10), "causal": True, "alignment": "bottom_right", "key_length": [7, 9],
               "blocks": (torch.tensor([[1, 0, 1], [0, 1, 1], [1, 1, 0]], dtype=torch.bool), 3, 4), "dropout": 0.3,
               "seed": 4},
    "all": {"scale": 0.4, "softcap": 2.0, "causal": True, "window": (3, -1), "alignment": "bottom_right",
            "key_length": [6, 5], "mask": draw(2, 4, 5, 6, seed=5) > -1.5, "bias": draw(2, 1, 1, 6, seed=6),
            "alibi_slopes": [0.125, 0.25, 0.375, 0.5], "query_segment_ids": torch.zeros(5, dtype=torch.int32),
            "key_segment_ids": torch.tensor([0, 0, 1, 0, 0, 0], dtype=torch.int32),
            "sink": draw(4, seed=7, dtype=torch.float32),
            "blocks": (torch.ones(1, 1, 3, 6, dtype=torch.bool), 2, 1), "dropout": 0.2, "seed": 5},
}
PACKED = {"cu_seqlens_q": [0, 2, 5], "cu_seqlens_k": [0, 3, 6], "causal": True, "alignment": "bottom_right"}
each_option = pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)


def as_arrays(options):
    """As the NumPy reference takes them."""
    given = {name: value.detach().numpy() if isinstance(value, torch.Tensor) else value
             for name, value in options.items()}
    batch, head, query, key, *_ = given.get("shard", (0, 0, 0, 0))
    if "blocks" in given:
        *blocks, rows, columns = given.pop("blocks")
        allowed = (blocks[0] if len(blocks) == 1 else BLOCKS).numpy()  # the lists of the table mean BLOCKS
        allowed = np.broadcast_to(allowed, (1, 1, *allowed.shape[-2:]))
        allowed = np.repeat(np.repeat(allowed, rows, 2), columns, 3)[:, :, query:query + 5, key:key + 6]
        given["mask"] = allowed & given.get("mask", True)
    if "query_segment_ids" in given:
        given["query_segment_ids"] = np.broadcast_to(given["query_segment_ids"], (2, 5))
        given["key_segment_ids"] = np.broadcast_to(given["key_segment_ids"], (2, 6))
    if "dropout" in given:
        keep = attention_cpp.dropout_keeps(given.pop("seed"), given["dropout"], (batch + 2, head + 4, 5, 6), query, key)
        given["keep"] = keep[batch:, head:]
    return given


@each_option
def test_values_of_every_option_are_those_of_the_reference(options):
    q, k, v = qkv(grad=False)
    out, lse = drop_in.attention(q, k, v, return_lse=True, **options)
    expected, expected_lse = reference.attention(q.numpy(), k.numpy(), v.numpy(), **as_arrays(options))
    np.testing.assert_allclose(out, expected, **EXACT)
    np.testing.assert_allclose(lse, expected_lse, **EXACT)
    assert torch.equal(drop_in.attention(q, k, v, **options), out)


def with_sources(options):
    """The function of all that has a difference quotient (a sink is read as float32), and these: for torch's checks."""
    sources = {name: options[name].detach().clone().requires_grad_() for name in ("bias",) if name in options}

    def function(q, k, v, *rest):
        out, lse = drop_in.attention(q, k, v, return_lse=True, **{**options, **dict(zip(sources, rest))})
        return out, lse.clamp(min=-100)  # -inf has no difference quotient

    return function, tuple(sources.values())


@each_option
def test_gradients_of_every_option_pass_gradcheck(options):
    function, rest = with_sources(options)
    assert gradcheck(function, (*qkv(), *rest))


def test_packed_sequences_are_the_sequences_alone():
    sink = draw(4, dtype=torch.float32)
    function, rest = with_sources({**PACKED, "sink": sink, "bias": draw(1, 4, 5, 6)})
    inputs = (*qkv(batch=1), *rest)
    assert gradcheck(function, inputs)
    out, _ = function(*inputs)
    for rows, keys in ((slice(0, 2), slice(0, 3)), (slice(2, 5), slice(3, 6))):
        alone = drop_in.attention(inputs[0][:, :, rows], inputs[1][:, :, keys], inputs[2][:, :, keys], causal=True,
                                  alignment="bottom_right", sink=sink, bias=rest[0][:, :, rows, keys])
        torch.testing.assert_close(out[:, :, rows], alone, **EXACT)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", ["sink", "all"])
def test_gradient_of_the_sink_is_that_of_plain_operations(name, dtype):
    """Against torch's own differentiation of the softmax, which sees the sink as one more key."""
    options = OPTIONS[name]
    sink = torch.as_tensor(options["sink"], dtype=dtype).clone().requires_grad_()
    inputs = (*qkv(), sink)
    given = as_tensors("attention", {**options, "sink": sink})
    results = []
    for out, lse in (drop_in.attention(*inputs[:3], return_lse=True, **{**options, "sink": sink}),
                     composite(*inputs[:3], given)):
        loss = out.sin().sum() + lse.clamp(min=-100).cos().sum()
        results.append(torch.autograd.grad(loss, inputs))
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs, **(EXACT if dtype == torch.float64 else dict(rtol=1e-6, atol=1e-6)))


@pytest.mark.parametrize("name", ["all", "segments", "blocks", "block lists"])
def test_second_derivatives_pass_gradgradcheck(name):
    function, rest = with_sources(OPTIONS[name])
    assert gradgradcheck(function, (*(x.detach()[:, -2:].requires_grad_() if name != "all" else x for x in qkv()),
                                    *rest), check_fwd_over_rev=True)


@pytest.mark.parametrize("mapped", ["query_segment_ids", "key_segment_ids"])
def test_vmap_of_segments(mapped):
    q, k, v = qkv(grad=False)
    options = dict(OPTIONS["segments"])
    values = torch.stack([options.pop(mapped), torch.ones_like(OPTIONS["segments"][mapped])])
    actual = torch.vmap(lambda x: drop_in.attention(q, k, v, **options, **{mapped: x}))(values)
    expected = torch.stack([drop_in.attention(q, k, v, **options, **{mapped: x}) for x in values])
    torch.testing.assert_close(actual, expected, **EXACT)


def test_vmap_of_blocks():
    q, k, v = qkv(grad=False)
    values = torch.stack([BLOCKS, ~BLOCKS])
    actual = torch.vmap(lambda x: drop_in.attention(q, k, v, blocks=(x, 3, 2)))(values)
    expected = torch.stack([drop_in.attention(q, k, v, blocks=(x, 3, 2)) for x in values])
    torch.testing.assert_close(actual, expected, **EXACT)


@pytest.mark.parametrize("dims", [(0, None), (None, 0), (0, 0)])
def test_vmap_of_block_lists(dims):
    q, k, v = qkv(grad=False)
    offsets, indices, *sizes = OPTIONS["block lists"]["blocks"]
    stacked = torch.stack([offsets, torch.tensor([0, 2, 2])]), torch.stack([indices, torch.tensor([0, 1, 0, 1])])
    lists = [one if dim is None else both for one, both, dim in zip((offsets, indices), stacked, dims)]
    rows = [[part if dim is None else part[row] for part, dim in zip(lists, dims)] for row in range(2)]
    actual = torch.vmap(lambda *x: drop_in.attention(q, k, v, blocks=(*x, *sizes)), dims)(*lists)
    expected = torch.stack([drop_in.attention(q, k, v, blocks=(*x, *sizes)) for x in rows])
    torch.testing.assert_close(actual, expected, **EXACT)


def test_leading_axes_may_be_missing():
    q, k, v = qkv()
    whole, lse = drop_in.attention(q, k, v, return_lse=True)
    for rows, at in ((q[1], (1,)), (q[1, 3], (1, 3))):
        keys, values = (x[1] if len(at) == 1 else x[1, 1] for x in (k, v))
        out, own = drop_in.attention(rows, keys, values, return_lse=True)
        torch.testing.assert_close(out, whole[at], **EXACT)
        torch.testing.assert_close(own, lse[at], **EXACT)
        assert torch.autograd.grad(out.sum(), values)[0].shape == values.shape


def test_dropout_follows_torchs_generator():
    q, k, v = qkv(grad=False)
    torch.manual_seed(3)
    first, second = (drop_in.attention(q, k, v, dropout=0.5) for _ in range(2))
    torch.manual_seed(3)
    assert torch.equal(first, drop_in.attention(q, k, v, dropout=0.5)) and not torch.equal(first, second)


def test_compiled_whole():
    function, rest = with_sources({**OPTIONS["all"], "seed": torch.tensor(5)})
    inputs = (*qkv(), *rest)
    torch._dynamo.reset()
    compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
    for ours, plain in zip(compiled(*inputs), function(*inputs), strict=True):
        torch.testing.assert_close(ours, plain, **EXACT)
    losses = [sum(x.sin().sum() for x in f(*inputs)) for f in (compiled, function)]
    for ours, plain in zip(*(torch.autograd.grad(loss, inputs) for loss in losses), strict=True):
        torch.testing.assert_close(ours, plain, **EXACT)


def test_autocast_lowers_out_and_not_lse():
    q, k, v = qkv(dtype=torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out, lse = drop_in.attention(q, k, v, return_lse=True)
    assert out.dtype == torch.bfloat16 and lse.dtype == torch.float32
    assert torch.autograd.grad(out.float().sum(), v)[0].dtype == torch.float32


# --------------------------------------------------------------------------------------------------------- the one list

def test_options_are_those_of_the_operator():
    assert FIELDS.keys() <= set(NAMES)
    tested = {name for options in (*OPTIONS.values(), PACKED) for name in options}
    assert FIELDS.keys() == tested


def test_flat_options_come_back():
    """As torch's operators take them."""
    for options in (*OPTIONS.values(), PACKED):
        given = as_tensors("attention", options)
        again = from_flat(flat(given))
        for name in FIELDS:
            same = getattr(given, name), getattr(again, name)
            assert same[0] is same[1] or same[0] == same[1], name


# --------------------------------------------------------------------------------------------------------------- errors

WRONG = {
    "no tensor": (lambda q, k, v: drop_in.attention(q.numpy(), k, v), TypeError, "q must be a torch.Tensor, not nd"),
    "device": (lambda q, k, v: drop_in.attention(q.to("meta"), k, v), ValueError, "q is on meta, must be on the CPU"),
    "layout": (lambda q, k, v: drop_in.attention(q.to_sparse(), k, v), ValueError, "q must be a dense tensor"),
    "axes": (lambda q, k, v: drop_in.attention(q[0], k, v), ValueError, "3, 4 and 4 axes"),
    "unknown": (lambda q, k, v: drop_in.attention(q, k, v, sinks=1), TypeError, "there is no option 'sinks'"),
    "slopes": (lambda q, k, v: drop_in.attention(q, k, v, alibi_slopes=draw(4, grad=True), alignment="top_left"),
               ValueError, r"alibi_slopes requires a gradient, which attention\(\) does not compute: pass"),
    "alignment": (lambda q, k, v: drop_in.attention(q, k, v, causal=True), ValueError, "alignment must be given"),
    "every reason": (lambda q, k, v: drop_in.attention(q, k[..., :2], v, dropout=1.5), ValueError, "dropout is 1.5"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_arguments_raise_the_reason(name):
    call, kind, message = WRONG[name]
    with pytest.raises(kind, match=message):
        call(*qkv(grad=False))


def test_help_names_the_options():
    assert "every option of attention_cpp.attention()" in inspect.getdoc(drop_in.attention)
    assert "torch" in sys.modules and "attention" in drop_in.__all__


@pytest.mark.parametrize("window", ["a", 3, (1, 2, 3)])
def test_a_window_is_two_numbers(window):
    q, k, v = qkv(grad=False)
    with pytest.raises(TypeError, match=r"window must be \(left, right\)"):
        drop_in.attention(q, k, v, window=window)
