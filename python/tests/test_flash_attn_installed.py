"""What other packages build on in flash_attn, once install() has been called: private passes, version, module of 3."""

import importlib.metadata

import pytest

torch = pytest.importorskip("torch")

import attention_cpp  # noqa: E402
import attention_cpp.flash_attn as ours  # noqa: E402

EXACT = dict(rtol=1e-11, atol=1e-12)
STARTS = torch.tensor([0, 3, 7], dtype=torch.int32)


@pytest.fixture(autouse=True)
def installed():
    ours.install(force=True)
    yield
    ours.uninstall()


def draw(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_the_versions():
    import flash_attn
    import flash_attn_interface

    versions = {importlib.metadata.version(name) for name in ("flash_attn", "flash-attn")}
    assert versions == {flash_attn.__version__} == {"2.8.3"}
    assert importlib.metadata.version("flash-attn-interface") == flash_attn_interface.__version__ == "3.0.0"
    assert {d.metadata["Name"] for d in importlib.metadata.distributions()} >= {"flash_attn", "torch"}
    ours.uninstall()
    with pytest.raises(importlib.metadata.PackageNotFoundError):
        importlib.metadata.version("flash_attn")


OPTIONS = {"plain": {}, "causal": {"causal": True}, "window": {"window_size": (2, 1)}, "softcap": {"softcap": 2.0},
           "slopes": {"alibi_slopes": torch.tensor([0.1, 0.2, 0.3, 0.4])}, "scale": {"softmax_scale": 0.3},
           "dropout": {"dropout_p": 0.5}}


def private(options):
    given = dict(options)
    left, right = given.pop("window_size", (-1, -1))
    return {"dropout_p": 0.0, "softmax_scale": None, "causal": False, **given, "window_size_left": left,
            "window_size_right": right}


@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.parametrize("packed", [False, True])
def test_private_passes_are_those_of_the_public_functions(name, packed):
    from flash_attn import flash_attn_interface as interface

    lead = (7,) if packed else (2, 5)
    q, k, v = (draw(*lead, heads, 8, seed=seed).requires_grad_() for seed, heads in enumerate((4, 2, 2)))
    dout = draw(*lead, 4, 8, seed=3)
    where = (STARTS, STARTS, 4, 4) if packed else ()
    forward, backward, public = (
        (interface._flash_attn_varlen_forward, interface._flash_attn_varlen_backward, ours.flash_attn_varlen_func)
        if packed else (interface._flash_attn_forward, interface._flash_attn_backward, ours.flash_attn_func))
    options = private(OPTIONS[name])
    torch.manual_seed(3)
    out, lse, s_dmask, state = forward(q, k, v, *where, **options)
    assert not out.requires_grad and s_dmask.numel() == 0 and state.shape == (2,) and state.dtype == torch.int64
    torch.manual_seed(3)
    expected, expected_lse, _ = public(q, k, v, *where, return_attn_probs=True, **OPTIONS[name])
    torch.testing.assert_close((out, lse), (expected.detach(), expected_lse.detach()), **EXACT)
    wanted = torch.autograd.grad(expected, (q, k, v), dout)
    dq, dk, dv = (torch.full_like(x, torch.nan).detach() for x in (q, k, v))
    sums = backward(dout, q, k, v, out, lse, dq, dk, dv, *where, **options, deterministic=True, rng_state=state)
    torch.testing.assert_close((dq, dk, dv), wanted, **EXACT)
    rows = (dout * out).sum(-1).float()
    rows = rows.transpose(0, 1) if packed else rows.transpose(1, 2)
    torch.testing.assert_close(sums[..., :rows.shape[-1]], rows)
    assert sums.shape[-1] == (7 + 2 * 128 if packed else 128) and not sums[..., rows.shape[-1]:].any()
    only = torch.empty_like(dk)
    backward(dout, q, k, v, out, lse, None, only, None, *where, **options, rng_state=state)
    torch.testing.assert_close(only, dk)


def test_what_the_private_passes_do_not_take():
    from flash_attn.flash_attn_interface import _flash_attn_backward, _flash_attn_forward, _flash_attn_varlen_forward

    q = draw(2, 5, 4, 8)
    out, lse, _, _ = _flash_attn_forward(q, q, q, 0.0, None, False)
    arguments = (q, q, q, q, out, lse, q.clone(), None, None)
    with pytest.raises(attention_cpp.Error, match="rng_state of the forward must be given"):
        _flash_attn_backward(*arguments, 0.5, None, False)
    with pytest.raises(attention_cpp.Error, match=r"alibi_slopes is \(2, 4\), must be \(nheads,\)"):
        _flash_attn_backward(*arguments, 0.0, None, False, alibi_slopes=torch.zeros(2, 4))
    with pytest.raises(attention_cpp.Error, match="dq.*must be"):
        _flash_attn_backward(*arguments[:6], q[:, :2], None, None, 0.0, None, False)
    with pytest.raises(attention_cpp.Error, match="leftpad_k must be None"):
        _flash_attn_varlen_forward(q[0], q[0], q[0], STARTS, STARTS, 4, 4, 0.0, None, False, leftpad_k=STARTS)


def test_flash_attention_3():
    import flash_attn_interface as of_3

    q, k, v = draw(2, 5, 4, 8), draw(2, 5, 2, 8, seed=1), draw(2, 5, 2, 8, seed=2)
    out, lse, _ = ours.flash_attn_func(q, k, v, causal=True, window_size=(2, 0), return_attn_probs=True)
    results = [of_3.flash_attn_func(q, k, v, None, True, window_size=(2, 0), return_attn_probs=True),
               of_3.flash_attn_qkvpacked_func(torch.cat([q, k, v], 2), None, True, window_size=(2, 0), num_heads_q=4,
                                              return_attn_probs=True)]
    for result in results:
        torch.testing.assert_close(result, (out, lse), rtol=0, atol=0)
    same = torch.stack([q, q, q], 2)
    assert torch.equal(of_3.flash_attn_qkvpacked_func(same), ours.flash_attn_qkvpacked_func(same))
    packed = [x.flatten(0, 1)[:7] for x in (q, k, v)]
    assert torch.equal(of_3.flash_attn_varlen_func(*packed, STARTS, STARTS, 4, 4, causal=True),
                       ours.flash_attn_varlen_func(*packed, STARTS, STARTS, 4, 4, causal=True))
    used = torch.tensor([2, 1], dtype=torch.int32)
    fewer = of_3.flash_attn_varlen_func(*packed, STARTS, STARTS, 4, 4, seqused_k=used)
    one = ours.flash_attn_func(*(x[None, 3:7] if n == 0 else x[None, 3:4] for n, x in enumerate(packed)))
    torch.testing.assert_close(fewer[3:], one[0], **EXACT)
    cache = draw(2, 6, 2, 8, seed=4)
    assert torch.equal(of_3.flash_attn_with_kvcache(q[:, :1], cache, cache, cache_seqlens=4, causal=True),
                       ours.flash_attn_with_kvcache(q[:, :1], cache, cache, cache_seqlens=4, causal=True))
    with pytest.raises(attention_cpp.Error, match="does not support qv, q_descale, which must not be given"):
        of_3.flash_attn_func(q, k, v, qv=v, q_descale=q)
    with pytest.raises(attention_cpp.Error, match="does not support attention_chunk"):
        of_3.flash_attn_varlen_func(*packed, STARTS, STARTS, 4, 4, attention_chunk=2)
    with pytest.raises(attention_cpp.Error, match="num_heads_q is 7, which leaves 1 of 8 heads"):
        of_3.flash_attn_qkvpacked_func(torch.cat([q, k, v], 2), num_heads_q=7)
