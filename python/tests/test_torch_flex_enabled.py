"""torch's own flex_attention under enable(): ours wherever the function is imported then, torch's again afterwards."""

import warnings

import pytest

torch = pytest.importorskip("torch")

from torch._dynamo.testing import CompileCounter  # noqa: E402
from torch.nn.attention import flex_attention as torchs  # noqa: E402
from torch.nn.attention.flex_attention import create_block_mask  # noqa: E402

import attention_cpp  # noqa: E402
import attention_cpp.torch as drop_in  # noqa: E402
from attention_cpp._torch.enabling import reporting  # noqa: E402
from test_torch_flex import B, EXACT, H, LK, LQ, MASKS, SCORES, after, causal, draw, eager, qkv  # noqa: E402

ORIGINAL = torchs.flex_attention


@pytest.fixture(autouse=True)
def operations_of_torch(monkeypatch):
    monkeypatch.setattr(torchs, "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", True)


def block_mask():
    return create_block_mask(causal, None, None, LQ, LK, "cpu")


def test_an_import_after_enable_has_gradients():
    inputs = qkv()
    with drop_in.enabled():
        from torch.nn.attention.flex_attention import flex_attention

        with drop_in.enabled(warn=True):
            pass
        assert torchs.flex_attention is flex_attention is drop_in.flex_attention
        results = []
        assert after(lambda: results.append(flex_attention(*inputs, block_mask=block_mask()))) == {"flex: causal": 1}
        expected = eager(*inputs, block_mask=block_mask())
        torch.testing.assert_close(results[0], expected, **EXACT)
        for ours, theirs in zip(*(torch.autograd.grad(x.sin().sum(), inputs) for x in (*results, expected))):
            torch.testing.assert_close(ours, theirs, **EXACT)
    assert torchs.flex_attention is ORIGINAL
    with pytest.raises(NotImplementedError, match="does not support backward on CPU"):
        torchs.flex_attention(*inputs)


def squared(score, b, h, i, j):
    return score * score


def test_what_is_left_to_torch_warns_raises_or_is_reported():
    inputs = [x.detach() for x in qkv()]
    meta = [x.to("meta") for x in inputs]
    expected = eager(*inputs, score_mod=squared)
    with drop_in.enabled(warn=True), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.testing.assert_close(torchs.flex_attention(*inputs, score_mod=squared), expected, **EXACT)
        with pytest.raises(ValueError, match="only supported on"):
            torchs.flex_attention(*meta)
        torchs.flex_attention(*inputs, score_mod=SCORES["table"][0])
    warned = [warning for warning in caught if "flex_attention is left to torch" in str(warning.message)]
    assert [str(warning.message).split(": ")[-1] for warning in warned] == [
        "score_mod multiplies the score by something that is not one number for all entries",
        "query is not a dense tensor of 4 axes on the CPU"]
    assert {warning.filename for warning in warned} == {__file__}
    with drop_in.enabled(strict=True):
        torchs.flex_attention(*inputs, block_mask=create_block_mask(MASKS["any"][0], None, None, LQ, LK, "cpu"))
        for arguments, what in (((*inputs, squared), "no option of the operator"), (meta, "on the CPU")):
            with pytest.raises(attention_cpp.Error, match=what):
                torchs.flex_attention(*arguments)
    reasons = []
    with reporting(reasons.append):
        torchs.flex_attention(*inputs, score_mod=squared)
    assert len(reasons) == 1 and "no option of the operator" in reasons[0]


def test_explain_names_the_options_and_the_calls():
    inputs = qkv()
    plan = drop_in.explain_flex_attention(*inputs, block_mask=block_mask())
    assert plan.path.endswith("read as: causal; one call")
    pairs = (torch.arange(LQ)[:, None] >= torch.arange(LK)).sum().item()
    assert plan.flops == 2 * B * H * pairs * (8 + 5)
    prefix = create_block_mask(MASKS["prefix"][0], None, None, LQ, LK, "cpu")
    plan = drop_in.explain_flex_attention(*inputs, block_mask=prefix)
    assert plan.path.endswith("key lengths and causal, keys; 2 calls")
    table = draw(H, LQ + LK, seed=5, grad=True)
    plans = [explain(*inputs, lambda s, b, h, i, j: s + table[h, i - j + LK])
             for explain in (drop_in.explain_flex_attention, drop_in.explain_flex_attention_backward)]
    assert "read as: all, bias" in plans[0].path and plans[1].flops > 2 * plans[0].flops
    assert drop_in.explain_flex_attention(*inputs, squared).startswith("left to torch: no option of the operator")
    assert drop_in.explain_flex_attention(*(x.to("meta") for x in inputs)).startswith("left to torch: query is not")


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_compiled_without_gradients_it_is_torchs(backend):
    inputs = [x.detach() for x in qkv(dtype=torch.float32)]
    expected = eager(*inputs, score_mod=squared, block_mask=block_mask())
    with drop_in.enabled(strict=True):
        run = torch.compile(torchs.flex_attention, fullgraph=True, backend=backend)
        counted = after(lambda: torch.testing.assert_close(
            run(*inputs, score_mod=squared, block_mask=block_mask()), expected))
    assert counted == {}


def test_compiled_with_gradients_it_is_ours():
    """torch refuses these on the CPU; what is before and after stays compiled."""
    inputs = qkv()

    def model(q, k, v, mask):
        return (torchs.flex_attention(q * 2, k, v, block_mask=mask) + 1).sin().sum()

    expected = (eager(inputs[0] * 2, *inputs[1:], block_mask=block_mask()) + 1).sin().sum()
    with drop_in.enabled():
        backend = CompileCounter()
        run = torch.compile(model, backend=backend)
        results = []
        assert after(lambda: results.append(run(*inputs, block_mask()))) == {"flex: causal": 1}
    assert backend.op_count >= 4
    for ours, theirs in zip(*(torch.autograd.grad(x, inputs) for x in (*results, expected))):
        torch.testing.assert_close(ours, theirs, **EXACT)
