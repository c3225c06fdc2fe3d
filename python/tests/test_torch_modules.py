"""torch's modules after enable(): dense and nested, in training and on their fused inference path; jagged tensors."""

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402

import attention_cpp  # noqa: E402
import attention_cpp.torch as drop_in  # noqa: E402
from attention_cpp import _core  # noqa: E402
from attention_cpp._torch import masks as _masks, modules as _modules  # noqa: E402

torch_sdpa = F.scaled_dot_product_attention
LENGTHS = (6, 4, 1)
PADDING = torch.arange(6) >= torch.tensor(LENGTHS)[:, None]
CAUSAL = torch.nn.Transformer.generate_square_subsequent_mask(6, dtype=torch.float64)


def draw(*shape, seed=0, grad=False):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64).requires_grad_(grad)


def same(actual, expected):
    """Float64 of two orders of operations: at most 256 roundings, on values up to the largest."""
    largest = max(expected.abs().max().item(), 1)
    torch.testing.assert_close(actual, expected, rtol=0, atol=256 * torch.finfo(torch.float64).eps * largest)


@pytest.fixture
def calls(monkeypatch):
    """How often the library has run."""
    seen = []
    forward = _core.forward
    monkeypatch.setattr(_core, "forward", lambda *x: (seen.append(1), forward(*x))[1])
    return seen


@pytest.fixture(scope="module")
def modules():
    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(16, 4, 32, dropout=0.0, batch_first=True, dtype=torch.float64)
    encoder = torch.nn.TransformerEncoder(layer, 2)
    return encoder, torch.nn.MultiheadAttention(16, 4, batch_first=True, dtype=torch.float64)


def nested(layout=torch.strided):
    return torch.nested.nested_tensor([draw(n, 16, seed=n) for n in LENGTHS], layout=layout)


X = draw(3, 6, 16)
RUNS = {
    "encoder": (2, lambda encoder, attention: encoder(X)),
    "encoder, padding": (2, lambda encoder, attention: encoder(X, src_key_padding_mask=PADDING)),
    "encoder, causal": (2, lambda encoder, attention: encoder(X, mask=CAUSAL, is_causal=True)),
    "encoder, causal and padding": (2, lambda encoder, attention: encoder(X, mask=CAUSAL < 0,
                                                                         src_key_padding_mask=PADDING)),
    "attention": (1, lambda encoder, attention: attention(X, X, X, need_weights=False)[0]),
    "attention, padding": (1, lambda encoder, attention: attention(X, X, X, key_padding_mask=PADDING,
                                                                  need_weights=False)[0]),
    "attention to another": (1, lambda encoder, attention: attention(X, X[:, :4], X[:, :4], need_weights=False)[0]),
    "attention, mask": (1, lambda encoder, attention: attention(X, X, X, attn_mask=CAUSAL, need_weights=False)[0]),
}


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("name", RUNS)
def test_modules_run_on_the_library(name, training, modules, calls):
    count, run = RUNS[name]
    for module in modules:
        module.train(training)
    with torch.set_grad_enabled(training):
        expected = run(*modules)
        with drop_in.enabled(strict=True):
            actual = run(*modules)
    assert len(calls) == count
    kept = ~PADDING if "padding" in name else slice(None)
    same(actual[kept], expected[kept])
    if "padding" in name and not training:
        assert actual.shape == expected.shape


@pytest.mark.parametrize("average", [True, False])
def test_weights_of_the_fused_path(average, modules, calls):
    attention = modules[1].eval()
    with torch.no_grad():
        expected = attention(X, X, X, key_padding_mask=PADDING, average_attn_weights=average)
        with drop_in.enabled(strict=True):
            actual = attention(X, X, X, key_padding_mask=PADDING, average_attn_weights=average)
    assert len(calls) == 1
    for a, b in zip(actual, expected, strict=True):
        same(a, b)


def test_a_floating_mask_is_added_on_the_fused_path(modules):
    """torch takes it for a boolean there, and gives another result than in training."""
    encoder = modules[0]
    mask = draw(6, 6, seed=5)
    expected = encoder.train()(X, mask=mask)
    with torch.no_grad(), drop_in.enabled(strict=True):
        same(encoder.eval()(X, mask=mask), expected)


def test_masks_of_the_fused_path_are_read(modules, monkeypatch):
    monkeypatch.setattr(_masks, "WORTH_READING", 0)
    encoder = modules[0].eval()
    before = drop_in.mask_counts().get("causal", 0)
    with torch.no_grad():
        expected = encoder(X, mask=CAUSAL)
        with drop_in.enabled(strict=True):
            same(encoder(X, mask=CAUSAL), expected)
    assert drop_in.mask_counts()["causal"] == before + 2  # layers


def test_nested_tensors_of_modules(modules, calls):
    encoder, attention = (module.eval() for module in modules)
    x = nested()
    with torch.no_grad():
        expected = [encoder(x), attention(x, x, x, need_weights=False)[0]]
        with drop_in.enabled(strict=True):
            actual = [encoder(x), attention(x, x, x, need_weights=False)[0]]
            assert len(calls) == 3
            with pytest.raises(attention_cpp.Error, match="weights of nested"):
                attention(x, x, x)
        with drop_in.enabled():
            attention(x, x, x)
    for a, b in zip(actual, expected):
        assert a.is_nested and a.layout == torch.strided
        for row, expected_row in zip(a.unbind(), b.unbind(), strict=True):
            same(row, expected_row)


def test_padding_is_not_computed(modules, monkeypatch):
    """As by torch's fused path: what a padded batch costs is what its tokens cost."""
    rows = []
    project = _modules.linear
    monkeypatch.setattr(_modules, "linear", lambda x, *w: (rows.append(x.shape[:-1]), project(x, *w))[1])
    with torch.no_grad(), drop_in.enabled(strict=True):
        modules[0].eval()(X, src_key_padding_mask=PADDING)
    assert rows == [(1, sum(LENGTHS))] * 4


def test_the_fused_path_is_torchs_again(modules, calls):
    with drop_in.enabled():
        assert torch.backends.mha.get_fastpath_enabled()
    with torch.no_grad():
        modules[0].eval()(X)
    assert not calls and F.scaled_dot_product_attention is torch_sdpa


# --------------------------------------------------------------------------------------------------------------- jagged

def jagged(lengths, *shape, seed=0):
    parts = [draw(n, *shape, seed=seed + n) for n in lengths]
    return torch.nested.nested_tensor(parts, layout=torch.jagged, requires_grad=True)


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("grouped", [False, True])
def test_jagged_tensors_are_packed_sequences(is_causal, grouped, calls):
    q, k, v = (jagged(LENGTHS, heads, 8, seed=seed) for seed, heads in enumerate((4, 2 if grouped else 4,
                                                                                  2 if grouped else 4)))
    with drop_in.enabled(strict=True):
        out = F.scaled_dot_product_attention(*(x.transpose(1, 2) for x in (q, k, v)), is_causal=is_causal,
                                             enable_gqa=grouped)
    assert len(calls) == 1 and out.layout == torch.jagged and (out.transpose(1, 2) + q).shape == q.shape
    gradients = torch.autograd.grad(out.values().sin().sum(), (q, k, v))
    for b, row in enumerate(out.unbind()):
        rows = [x.unbind()[b].detach().transpose(0, 1).requires_grad_() for x in (q, k, v)]
        expected = torch_sdpa(*(x.unsqueeze(0) for x in rows), is_causal=is_causal, enable_gqa=grouped)[0]
        same(row, expected)
        for gradient, wanted in zip(gradients, torch.autograd.grad(expected.sin().sum(), rows)):
            same(gradient.unbind()[b].transpose(0, 1), wanted)


def test_jagged_keys_of_other_lengths():
    q, k = jagged(LENGTHS, 4, 8), jagged((2, 5, 3), 4, 8, seed=1)
    out = drop_in.scaled_dot_product_attention(*(x.transpose(1, 2) for x in (q, k, k * 1)))
    for row, *parts in zip(out.unbind(), q.unbind(), k.unbind()):
        a, b = (x.transpose(0, 1)[None] for x in parts)
        same(row, torch_sdpa(a, b, b)[0])


def test_what_is_not_packed_is_left_to_torch():
    x = jagged(LENGTHS, 4, 8).transpose(1, 2)
    dense = draw(3, 4, 6, 8)
    strided = torch.nested.nested_tensor([draw(4, n, 8) for n in LENGTHS])
    for arguments, reason in (((x, dense, dense), "mixed"), ((strided,) * 3, "nested"),
                              ((x.transpose(1, 2),) * 3, "jagged")):
        assert reason in drop_in.explain(*arguments)
    assert drop_in.scaled_dot_product_attention(strided, strided, strided).is_nested
    assert drop_in.explain(x, x, x).isa == attention_cpp.isa()
