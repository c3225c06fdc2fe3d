"""attention_cpp.torch.attention_statistics(): values, and gradients by finite differences and by torch itself."""

import pytest

torch = pytest.importorskip("torch")

import attention_cpp  # noqa: E402
import attention_cpp.torch as drop_in  # noqa: E402


def draw(*shape, seed=0, dtype=torch.float64):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype).requires_grad_()


LABELS = torch.tensor([[0, -1, 2, 2, 0, 1, 0, 2, -1]])
SINK = draw(4, seed=3)
MASK = torch.rand(2, 1, 7, 9, generator=torch.Generator().manual_seed(4)) < 0.7
OPTIONS = {"plain": {}, "causal": {"causal": True, "alignment": "top_left"}, "mask": {"mask": MASK},
           "window": {"window": (2, 1), "alignment": "bottom_right"}, "sink": {"sink": SINK}, "scale": {"scale": 0.7}}


def naive(q, k, scale=None, causal=False, window=(-1, -1), alignment="top_left", mask=None, sink=None):
    """The same with n x n memory."""
    s = torch.einsum("bhid,bhjd->bhij", q, k.repeat_interleave(2, 1)) * (8 ** -0.5 if scale is None else scale)
    ahead = torch.arange(9) - torch.arange(7)[:, None] - (2 if alignment == "bottom_right" else 0)
    allowed = torch.ones(2, 1, 7, 9, dtype=torch.bool) if mask is None else mask
    if causal:
        allowed = allowed & (ahead <= 0)
    if window[0] >= 0:
        allowed = allowed & (ahead >= -window[0]) & (ahead <= window[1])
    s = s.masked_fill(~allowed, -torch.inf)
    if sink is not None:
        s = torch.cat([s, sink[None, :, None, None].expand(2, 4, 7, 1)], -1)
    p = torch.softmax(s, -1)[..., :9]
    entropy = -(p * torch.where(p > 0, p, 1).log()).sum(-1)  # torch.special.entr has no gradient at 0
    return entropy, torch.stack([(p * (LABELS[0] == n)).sum(-1) for n in range(3)], -1)


@pytest.mark.parametrize("name", OPTIONS)
def test_values_and_gradients_are_torchs(name):
    q, k = draw(2, 4, 7, 8), draw(2, 2, 9, 8, seed=1)
    actual, expected = drop_in.attention_statistics(q, k, LABELS, **OPTIONS[name]), naive(q, k, **OPTIONS[name])
    inputs = (q, k, SINK) if name == "sink" else (q, k)
    for a, b in zip(actual, expected):
        torch.testing.assert_close(a, b)
        weight = draw(*a.shape, seed=5).detach()
        torch.testing.assert_close(torch.autograd.grad((a * weight).sum(), inputs, retain_graph=True),
                                   torch.autograd.grad((b * weight).sum(), inputs, retain_graph=True))


def test_are_those_of_the_operator():
    q, k = draw(1, 2, 300, 16, dtype=torch.float32), draw(1, 2, 300, 16, seed=1, dtype=torch.float32)
    labels = torch.arange(300)[None] % 5
    entropy, masses = drop_in.attention_statistics(q, k, labels, causal=True)
    with torch.no_grad():
        _, lse = attention_cpp.attention(q, k, k, causal=True, return_lse=True)
        others = attention_cpp.attention_statistics(q, k, lse, ["entropy"], labels=labels, causal=True)
    torch.testing.assert_close(entropy, others["entropy"], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(masses, others["labels"], rtol=1e-5, atol=1e-6)
    half, _ = drop_in.attention_statistics(q.bfloat16(), k.bfloat16(), causal=True)
    assert half.dtype == torch.float32 and (half - entropy).abs().max() < 0.05


def test_rows_without_keys_and_refusals():
    q, k = draw(1, 1, 3, 4), draw(1, 1, 5, 4, seed=1)
    labels, none = torch.zeros(1, 5, dtype=torch.int64), torch.tensor([0])
    entropy, masses = drop_in.attention_statistics(q, k, labels, key_length=none)
    entropy.sum().backward()
    assert (entropy == 0).all() and (masses == 0).all() and (q.grad == 0).all()
    with pytest.raises(attention_cpp.Error, match="no gradients with bias, softcap; the allowed options are causal"):
        drop_in.attention_statistics(q, k, softcap=3.0, bias=None)
