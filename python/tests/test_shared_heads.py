"""One key head that is expanded to many, and masks that are only padding, in every integration."""

import numpy as np
import pytest

import attention_cpp
from attention_cpp import _core

B, H, L, S, D = 2, 6, 9, 7, 8


def draw(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape)


def shared(seed=1):
    one = draw(B, 1, S, D, seed=seed)
    return one, np.broadcast_to(one, (B, H, S, D))


# ------------------------------------------------------------------------------------------------------- NumPy's arrays

def test_an_expanded_head_is_one_head():
    q, (k, all_k), (v, all_v) = draw(B, H, L, D), shared(), shared(2)
    many, one, copied = (attention_cpp.explain(q, *keys) for keys in ((all_k, all_v), (k, v),
                                                                      (all_k.copy(), all_v.copy())))
    assert many == one != copied
    for options in ({}, {"causal": True, "alignment": "bottom_right"}, {"bias": draw(1, H, L, S)}, {"dropout": 0.5}):
        a, b = (attention_cpp.attention(q, *keys, return_lse=True, **options) for keys in ((all_k, all_v), (k, v)))
        assert all(np.array_equal(x, y) for x, y in zip(a, b))
        a, b = (attention_cpp.attention_weights(q, keys, a[1], **{**options, "dropout": 0.0}) for keys in (all_k, k))
        assert np.array_equal(a, b)


def test_each_copy_of_a_head_has_its_own_gradient():
    q, (k, all_k), (v, all_v), dout = draw(B, H, L, D), shared(), shared(2), draw(B, H, L, D, seed=3)
    out, lse = attention_cpp.attention(q, k, v, return_lse=True)
    many, copied = (attention_cpp.attention_backward(q, *keys, out, lse, dout)
                    for keys in ((all_k, all_v), (all_k.copy(), all_v.copy())))
    one = attention_cpp.attention_backward(q, k, v, out, lse, dout)
    for name in ("dq", "dk", "dv"):
        np.testing.assert_array_equal(getattr(many, name), getattr(copied, name))
    np.testing.assert_allclose(many.dk.sum(1, keepdims=True), one.dk, rtol=1e-12, atol=1e-13)


def test_heads_that_do_not_divide_are_an_error_still():
    with pytest.raises(attention_cpp.Error, match="must divide"):
        attention_cpp.attention(draw(B, 5, L, D), *(np.broadcast_to(shared()[0], (B, 2, S, D)),) * 2)


def plan(mask, **options):
    q = np.zeros((B, H, L, D), np.float32)
    k = np.zeros((B, H, S, D), np.float32)
    return attention_cpp.explain(q, k, k, mask=mask, **options).path


LENGTHS = np.arange(S) < np.array([[4], [S]])  # [B, S]
PADDING = {
    "one row": LENGTHS[:, None, None], "one text": LENGTHS[:1, None, None],
    "all rows": np.repeat(LENGTHS[:, None, None], L, 2),
    "a view": np.broadcast_to(LENGTHS[:, None, None], (B, H, L, S)), "all of it": np.ones((1, 1, L, S), bool),
}
OTHERS = {
    "from the left": LENGTHS[:, None, None, ::-1].copy(), "with holes": (np.arange(S) % 2 == 0)[None, None, None],
    "causal": np.tri(L, S, dtype=bool)[None, None], "of heads": np.repeat(LENGTHS[:, None, None], H, 1),
    "the last row differs": np.concatenate([np.repeat(LENGTHS[:, None, None], L - 1, 2), ~LENGTHS[:, None, None]], 2),
}


@pytest.mark.parametrize("name", [*PADDING, *OTHERS])
def test_padding_is_found_in_masks(name):
    mask = (PADDING | OTHERS)[name]
    q, k, v, dout = draw(B, H, L, D), draw(B, H, S, D, seed=1), draw(B, H, S, D, seed=2), draw(B, H, L, D, seed=3)
    bias = np.where(mask, 0.0, -np.inf)  # which says the same, and is not read
    for options in ({}, {"causal": True, "alignment": "top_left"}, {"causal": True, "alignment": "bottom_right"},
                    {"window": (2, 1), "alignment": "top_left", "sink": [0.5] * H}):
        results = []
        for masked in ({"mask": mask}, {"bias": bias}):
            out, lse = attention_cpp.attention(q, k, v, return_lse=True, **masked, **options)
            gradients = attention_cpp.attention_backward(q, k, v, out, lse, dout, wanted=("dq", "dk", "dv"), **masked,
                                                         **options)
            results.append([out, lse, *gradients[:3], attention_cpp.attention_weights(q, k, lse, **masked, **options)])
        for actual, expected in zip(*results):
            np.testing.assert_allclose(actual, expected, rtol=1e-11, atol=1e-12)
    if name in PADDING:
        plain = {"key_length": LENGTHS.sum(1)[:1 if name == "one text" else 2].repeat(2 // 1)[:2]}
        assert plan(mask) == plan(None, **({} if name == "all of it" else plain))


def test_keys_that_a_mask_hides_are_not_read_not_even_nan():
    q, k = draw(B, H, L, D), draw(B, H, S, D, seed=1)
    k[0, :, 4:] = np.nan
    assert np.isfinite(attention_cpp.attention(q, k, k, mask=PADDING["all rows"])).all()


# -------------------------------------------------------------------------------------------------------- torch's calls

torch = pytest.importorskip("torch")

import attention_cpp.flash_attn as flash  # noqa: E402
import attention_cpp.torch as drop_in  # noqa: E402

FUNCTIONS = {
    "scaled_dot_product_attention": lambda q, k, v: drop_in.scaled_dot_product_attention(q, k, v),
    "dropout": lambda q, k, v: drop_in.attention(q, k, v, dropout=0.5, seed=3),
    "mask": lambda q, k, v: drop_in.scaled_dot_product_attention(q, k, v, torch.ones(L, S).tril().bool()),
    "attention": lambda q, k, v: drop_in.attention(q, k, v, sink=torch.zeros(H)),
    "lse": lambda q, k, v: torch.cat([x.flatten() for x in drop_in.attention(q, k, v, return_lse=True)]),
    "flex_attention": lambda q, k, v: drop_in.flex_attention(q, k, v),
    "flash_attn": lambda q, k, v: flash.flash_attn_func(*(x.transpose(1, 2) for x in (q, k, v))),
}



@pytest.fixture
def heads_of_calls(monkeypatch):
    """The heads of the gradients that are computed."""
    seen = []
    backward = _core.backward

    def watched(*arguments):
        seen.append([len(x.shape) and x.shape[1] for name, x in arguments[7].items() if name in ("dk", "dv")])
        return backward(*arguments)

    monkeypatch.setattr(_core, "backward", watched)
    return seen


def loss(result):
    return (result.double() * torch.arange(result.numel()).view(result.shape).cos()).sum()


def gradients(attend, expand, ask):
    torch.manual_seed(0)
    q, k, v = (torch.randn(B, heads, n, D, dtype=torch.float64, requires_grad=True)
               for heads, n in ((H, L), (1, S), (1, S)))
    many = [expand(x) for x in (k, v)]
    return ask(loss(attend(q, *many)), [q, k, v], many)


def of_sources(total, sources, many):
    return torch.autograd.grad(total, sources)


def of_copies(total, sources, many):
    return torch.autograd.grad(total, many)


def of_copies_kept(total, sources, many):
    total.backward()
    return [x.grad for x in many if x.retains_grad] + [x.grad for x in sources]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_gradients_of_an_expanded_head(name, heads_of_calls):
    expand = lambda x: x.expand(-1, H, -1, -1)  # noqa: E731
    copy = lambda x: x.repeat(1, H, 1, 1)  # noqa: E731
    for ask in (of_sources, of_copies):
        actual, expected = (gradients(FUNCTIONS[name], way, ask) for way in (expand, copy))
        for a, b in zip(actual, expected):
            torch.testing.assert_close(a, b, rtol=1e-11, atol=1e-12)
    if name != "flash_attn":  # which gets it transposed
        assert heads_of_calls == [[1, 1], [H, H], [H, H], [H, H]], "one head where the sum is asked for, else each"


@pytest.mark.parametrize("how", ["retained", "hooked"])
@pytest.mark.parametrize("name", ["scaled_dot_product_attention", "attention"])
def test_hooks_of_an_expanded_head_get_each_gradient(name, how):
    def ask(total, sources, many):
        seen = []
        for x in many:
            x.retain_grad() if how == "retained" else x.register_hook(seen.append)
        total.backward()
        return [x.grad for x in many] if how == "retained" else seen

    ways = [lambda x: x.expand(-1, H, -1, -1), lambda x: x.repeat(1, H, 1, 1)]
    for a, b in zip(*(sorted(gradients(FUNCTIONS[name], way, ask), key=lambda g: g.sum().item()) for way in ways)):
        torch.testing.assert_close(a, b, rtol=1e-11, atol=1e-12)


def test_an_expanded_leaf_has_its_own_gradient():
    q = torch.randn(B, H, L, D, dtype=torch.float64)
    k = torch.randn(B, 1, S, D, dtype=torch.float64).expand(-1, H, -1, -1).detach().requires_grad_()
    copied = k.detach().clone().requires_grad_()
    a, b = (torch.autograd.grad(loss(drop_in.scaled_dot_product_attention(q, x, x)), x)[0] for x in (k, copied))
    torch.testing.assert_close(a, b, rtol=1e-11, atol=1e-12)


# ------------------------------------------------------------------------------------------------- what a mask is found

N = 1100  # long enough that a mask is worth reading


def found(call):
    before = drop_in.mask_counts()
    result = call()
    return {name: count - before.get(name, 0) for name, count in drop_in.mask_counts().items()
            if count != before.get(name, 0)}, result


def test_the_operator_reads_masks_as_scaled_dot_product_attention_does():
    q = torch.randn(1, 1, N, 8)
    masks = {"causal": torch.ones(N, N).tril().bool(), "key lengths": (torch.arange(N) < 900).expand(N, N).contiguous(),
             "mask": torch.rand(N, N) < 0.9}
    for name, mask in masks.items():
        what, out = found(lambda: drop_in.attention(q, q, q, mask=mask))
        assert what == {name: 1}
        bias = torch.zeros(N, N).masked_fill(~mask, -torch.inf)
        torch.testing.assert_close(out, drop_in.attention(q, q, q, bias=bias, alibi_slopes=[0.0],
                                                          alignment="top_left"))
        what, _ = found(lambda: drop_in.attention(q, q, q, bias=torch.zeros(N, N).masked_fill(~mask, -torch.inf)))
        assert what == {"bias" if name == "mask" else name: 1}


@pytest.mark.parametrize("options", [{"alibi_slopes": [0.1], "alignment": "top_left"}, {"causal": True, "alignment":
                                     "bottom_right"}, {"key_length": [1000]}])
def test_a_mask_beside_options_of_places_stays(options):
    q = torch.randn(1, 1, N, 8)
    mask = (torch.arange(N) < 900).expand(N, N) & torch.ones(N, N).tril(5).bool()
    what, out = found(lambda: drop_in.attention(q, q, q, mask=mask, **options))
    assert what == {}
    bias = torch.zeros(N, N).masked_fill(~mask, -torch.inf)
    torch.testing.assert_close(out, drop_in.attention(q, q, q, bias=bias, **options))
