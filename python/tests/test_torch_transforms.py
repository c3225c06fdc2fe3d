"""Derivatives of every kind and torch.func's transforms, held against the composite in float64, and torch's checks."""

import pytest

torch = pytest.importorskip("torch")

import torch.autograd.forward_ad as forward_ad  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from torch.autograd import gradcheck, gradgradcheck  # noqa: E402
from torch.autograd.functional import hvp, vhp  # noqa: E402
from torch.func import grad, hessian, jacfwd, jacrev, jvp, vjp, vmap  # noqa: E402

import attention_cpp.torch as drop_in  # noqa: E402
from attention_cpp import _core, flash_attn  # noqa: E402
from attention_cpp._torch.autograd import attention  # noqa: E402
from attention_cpp._torch.composite import composite  # noqa: E402
from attention_cpp._torch.options import Options  # noqa: E402

sdpa = drop_in.scaled_dot_product_attention


def draw(*shape, seed=0, grad=False):
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(*shape, generator=generator, dtype=torch.float64)
    return values.requires_grad_() if grad else values


def same(actual, expected):
    """Float64 of two orders of operations: each of at most 64 roundings, on values up to the largest."""
    largest = expected.abs().max().item()
    torch.testing.assert_close(actual, expected, rtol=0, atol=64 * torch.finfo(torch.float64).eps * max(largest, 1))


OPTIONS = {
    "plain": {},
    "causal": {"causal": True, "alignment": "bottom_right"},
    "softcap, window, slopes": {"softcap": 2.0, "window": (2, 1), "alignment": "top_left",
                                "alibi_slopes": torch.tensor([0.5, 0.25])},
    "mask": {"mask": draw(2, 1, 4, 5, seed=6) > 0},  # with a row that sees no key
    "lengths": {"key_length": torch.tensor([3, 5])},
    "dropout": {"dropout": 0.4, "seed": torch.tensor(5)},
}
OPTIONS["mask"]["mask"][0, 0, 1] = False
each_option = pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)


def arguments(grad=False):
    return (draw(2, 2, 4, 3, grad=grad), draw(2, 1, 5, 3, seed=1, grad=grad), draw(2, 1, 5, 2, seed=2, grad=grad),
            draw(1, 2, 1, 5, seed=3, grad=grad), torch.tensor([0.5, -0.25], dtype=torch.float64, requires_grad=grad))


def ours(options):
    return lambda q, k, v, bias, sink: attention(q, k, v, Options(bias=bias, sink=sink, **options))


def plain(options):
    return lambda q, k, v, bias, sink: composite(q, k, v, Options(bias=bias, sink=sink, **options))


def loss(function):
    def of(*inputs):
        out, lse = function(*inputs)
        return (out.sin() * torch.arange(out.numel()).cos().view(out.shape)).sum() + lse.nan_to_num(0, 0, 0).cos().sum()

    return of


# ------------------------------------------------------------------------------------------------------ torch's checks

@each_option
def test_every_check_of_first_derivatives(options):
    """Without and with a batch of upstream gradients or of tangents, and with one that is not there."""
    def function(*inputs):
        return attention(*inputs, Options(**options))

    q, k, v, _, _ = arguments(grad=True)
    if "mask" in options:  # where lse is -inf there is no difference quotient
        assert gradcheck(lambda *x: function(*x)[0], (q, k, v), check_forward_ad=True, check_batched_grad=True,
                         check_batched_forward_grad=True)
    else:
        assert gradcheck(function, (q, k, v), check_forward_ad=True, check_batched_grad=True,
                         check_batched_forward_grad=True)


def test_every_check_of_second_derivatives():
    q, k, v, bias, _ = (x[:1].detach().requires_grad_() for x in arguments())
    assert gradgradcheck(lambda *x: sdpa(*x[:3], x[3]), (q, k, v, bias), check_fwd_over_rev=True,
                         check_rev_over_rev=True, check_batched_grad=True)


# ---------------------------------------------------------------------------------------------------------- transforms

@each_option
def test_grad_vjp_and_jvp_are_those_of_plain_operations(options):
    inputs = arguments()
    every = tuple(range(5))
    same_all(grad(loss(ours(options)), every)(*inputs), grad(loss(plain(options)), every)(*inputs))
    _, pull = vjp(lambda *x: ours(options)(*x)[0], *inputs)
    _, expected_pull = vjp(lambda *x: plain(options)(*x)[0], *inputs)
    upstream = draw(2, 2, 4, 2, seed=8)
    same_all(pull(upstream), expected_pull(upstream))
    tangents = tuple(draw(*x.shape, seed=20) for x in inputs)
    for actual, expected in zip(*(jvp(lambda *x: f(options)(*x)[0], inputs, tangents) for f in (ours, plain))):
        same(actual, expected)


def same_all(actual, expected):
    for a, b in zip(actual, expected, strict=True):
        same(a, b)


JACOBIANS = {"jacrev": jacrev, "jacfwd": jacfwd, "hessian": hessian, "jacrev twice": lambda f: jacrev(jacrev(f)),
             "jacfwd twice": lambda f: jacfwd(jacfwd(f))}


@pytest.mark.parametrize("transform", JACOBIANS.values(), ids=JACOBIANS)
@pytest.mark.parametrize("argument", [0, 1, 3])
def test_jacobians_and_hessians_are_those_of_plain_operations(transform, argument):
    inputs = [x[:1] for x in arguments()]
    inputs[-1] = arguments()[-1]

    def of_one(function):
        return lambda x: loss(function)(*inputs[:argument], x, *inputs[argument + 1:])

    options = {"causal": True, "alignment": "bottom_right", "softcap": 3.0}
    same(transform(of_one(ours(options)))(inputs[argument]), transform(of_one(plain(options)))(inputs[argument]))


@pytest.mark.parametrize("product", [hvp, vhp])
def test_products_with_the_hessian(product):
    q, k, v, bias, _ = arguments()
    direction = tuple(draw(*x.shape, seed=30) for x in (q, k, v, bias))
    results = []
    for function in (ours({}), plain({})):
        results.append(product(lambda *x: loss(function)(*x, None), (q, k, v, bias), direction)[1])
    assert results[0][0].abs().max() > 0
    same_all(*results)


def test_dual_numbers_are_those_of_plain_operations():
    q, k, v, _, _ = arguments()
    tangent = draw(*q.shape, seed=7)
    results = []
    for function in (lambda x: sdpa(x, k, v, enable_gqa=True), lambda x: plain({})(x, k, v, None, None)[0],
                     lambda x: flash_attn.flash_attn_func(*(y.transpose(1, 2) for y in (x, k, v))).transpose(1, 2)):
        with forward_ad.dual_level():
            out = forward_ad.unpack_dual(function(forward_ad.make_dual(q, tangent)))
            results.append((out.primal, out.tangent))
    for result in (results[0], results[2]):
        same_all(result, results[1])


def test_a_gradient_with_a_tangent():
    q, k, v, _, _ = arguments(grad=True)
    results = []
    for function in (ours({}), plain({})):
        with forward_ad.dual_level():
            dual = forward_ad.make_dual(q, draw(*q.shape, seed=7))
            gradient, = torch.autograd.grad(loss(function)(dual, k, v, None, None), k)
            results.append(forward_ad.unpack_dual(gradient).tangent)
    same(*results)


def test_third_derivatives_are_those_of_plain_operations():
    q, k, v = (x[:1, :1] for x in arguments()[:3])
    results = []
    for function in (ours({}), plain({})):
        x = q.clone().requires_grad_()
        value = loss(function)(x, k[:, :, :2], v[:, :, :2], None, None)
        for _ in range(3):
            value = torch.autograd.grad(value, x, create_graph=True)[0].square().sum()
        results.append(value)
    same(*results)


# ---------------------------------------------------------------------------------------------------------------- vmap

@pytest.mark.parametrize("dims", [(0, 0, 0), (0, None, None), (None, 2, 1), (3, 0, None)], ids=str)
@each_option
def test_vmap_is_a_larger_batch(options, dims, monkeypatch):
    inputs = [x if dim is None else torch.stack([x, x + 1, x * 2], dim) for x, dim in zip(arguments(), dims)]
    calls = []
    forward = _core.forward
    monkeypatch.setattr(_core, "forward", lambda *x: (calls.append(1), forward(*x))[1])

    def function(*x):
        return attention(*x, Options(**options))

    actual = vmap(function, dims)(*inputs)
    assert len(calls) == (3 if "dropout" in options else 1)
    rows = [function(*(x if dim is None else x.select(dim, i) for x, dim in zip(inputs, dims))) for i in range(3)]
    same_all((x.nan_to_num(0, 0, 0) for x in actual), (torch.stack(x).nan_to_num(0, 0, 0) for x in zip(*rows)))


@pytest.mark.parametrize("mapped", ["bias", "mask", "lengths", "slopes", "sink"])
def test_vmap_of_options(mapped):
    q, k, v, bias, sink = arguments()
    values = {"bias": torch.stack([bias, bias * 2]), "mask": draw(2, 2, 1, 4, 5, seed=6) > -1,
              "lengths": torch.tensor([[3, 5], [2, 1]]), "slopes": torch.tensor([[0.5, 0.25], [1.0, 0.125]]),
              "sink": torch.stack([sink, sink + 1])}
    name = {"lengths": "key_length", "slopes": "alibi_slopes"}.get(mapped, mapped)
    options = {"alignment": "top_left"}
    actual = vmap(lambda x: attention(q, k, v, Options(**{name: x}, **options))[0])(values[mapped])
    same(actual, torch.stack([attention(q, k, v, Options(**{name: x}, **options))[0] for x in values[mapped]]))


def test_gradients_of_each_sample():
    q, k, v, bias, sink = arguments()
    q = torch.stack([q, q + 1, q * 2])
    for chosen in ((0, 1, 2), (0, 3), (3, 4)):
        gradients = vmap(grad(loss(ours({})), chosen), (0, None, None, None, None))(q, k, v, bias, sink)
        rows = [grad(loss(plain({})), chosen)(x, k, v, bias, sink) for x in q]
        same_all(gradients, (torch.stack(x) for x in zip(*rows)))


def test_vmap_under_a_gradient():
    q, k, v, _, _ = arguments(grad=True)
    out = vmap(lambda x: sdpa(x, k, v, enable_gqa=True))(torch.stack([q, q * 2]))
    expected = torch.stack([sdpa(x, k, v, enable_gqa=True) for x in (q, q * 2)])
    same_all(torch.autograd.grad(out.sin().sum(), (q, k, v)), torch.autograd.grad(expected.sin().sum(), (q, k, v)))


def test_vmap_of_dropout_needs_a_randomness():
    x = torch.ones(1, 1, 20, 4, dtype=torch.float64).expand(2, -1, -1, -1, -1)
    call = lambda t: sdpa(t, t, t, dropout_p=0.5)  # noqa: E731
    with pytest.raises(RuntimeError, match="randomness"):
        vmap(call)(x)
    first, second = vmap(call, randomness="same")(x)
    assert torch.equal(first, second)
    first, second = vmap(call, randomness="different")(x)
    assert not torch.equal(first, second)


def test_transforms_after_enable():
    q, k, v = (draw(1, 1, 3, 2, seed=seed) for seed in range(3))
    with drop_in.enabled(strict=True):
        actual = hessian(lambda x: F.scaled_dot_product_attention(x, k, v).sin().sum())(q)
    same(actual, hessian(lambda x: plain({})(x, k, v, None, None)[0].sin().sum())(q))


@pytest.mark.parametrize("transform", [grad, lambda f: lambda x: vmap(f)(torch.stack([x, x])),
                                       lambda f: lambda x: jvp(f, (x,), (x,))[1]], ids=["grad", "vmap", "jvp"])
def test_compiled_transforms(transform):
    q, k, v, _, _ = arguments()
    function = transform(lambda x: sdpa(x, k, v, enable_gqa=True).sin().sum())
    torch._dynamo.reset()
    same(torch.compile(function, backend="aot_eager")(q), function(q))
