"""attention_cpp.causal_conv1d against its definition and against transformers' reference, and install()."""

import inspect
import os
import pathlib
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402

import attention_cpp  # noqa: E402
import attention_cpp.causal_conv1d as ours  # noqa: E402

EXACT = dict(rtol=1e-12, atol=1e-12)  # float64
PACKAGE_ROOT = str(pathlib.Path(attention_cpp.__file__).parent.parent)


def draw(*shape, seed=0, dtype=torch.float64):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def channel_last(*shape, seed=0, dtype=torch.float64):
    """(batch, dim, seqlen) as models have it: a slice of a wider projection, transposed."""
    batch, dim, seqlen = shape
    return draw(batch, seqlen, 2 * dim, seed=seed, dtype=dtype)[..., :dim].transpose(1, 2)


def defined(x, weight, bias=None, activation=None, before=None):
    """(out, tokens) in x's type, computed in the weight's."""
    before = x.new_zeros(*x.shape[:2], weight.shape[1] - 1) if before is None else before
    tokens = torch.cat([before, x], -1)
    out = F.conv1d(tokens.to(weight.dtype), weight[:, None], bias, groups=len(weight))[..., -x.shape[-1]:]
    return (out if activation is None else F.silu(out)).to(x.dtype), tokens


@pytest.mark.parametrize("width", [2, 3, 4])
@pytest.mark.parametrize("activation", [None, "silu", "swish"])
@pytest.mark.parametrize("make", [draw, channel_last])
def test_fn(width, activation, make):
    inputs = [t.requires_grad_() for t in (make(2, 5, 20), draw(5, width, seed=1), draw(5, seed=2))]
    out, (expected, _) = ours.causal_conv1d_fn(*inputs, activation=activation), defined(*inputs, activation)
    torch.testing.assert_close(out, expected, **EXACT)
    assert out.stride() == torch.empty_like(inputs[0]).stride()
    for a, b in zip(*(torch.autograd.grad(o.sin().sum(), inputs) for o in (out, expected)), strict=True):
        torch.testing.assert_close(a, b, **EXACT)


def test_fn_in_gradcheck():
    inputs = [t.requires_grad_() for t in (channel_last(2, 3, 6), draw(3, 4, seed=1), draw(3, seed=2),
                                           draw(2, 3, 3, seed=3))]
    assert torch.autograd.gradcheck(
        lambda x, weight, bias, states: ours.causal_conv1d_fn(
            x, weight, bias, initial_states=states, return_final_states=True, activation="silu"), inputs)


def test_fn_of_packed_sequences():
    x, weight, bias = channel_last(1, 5, 20).requires_grad_(), draw(5, 4, seed=1), draw(5, seed=2)
    seq_idx = torch.tensor([[0] * 2 + [1] * 11 + [2] + [3] * 3 + [-1] * 3], dtype=torch.int32)
    out = ours.causal_conv1d_fn(x, weight, bias, seq_idx=seq_idx, activation="silu")
    parts = [defined(part, weight, bias, "silu")[0] for part in x.split([2, 11, 1, 3, 3], -1)[:4]]
    expected = torch.cat([*parts, torch.zeros(1, 5, 3, dtype=x.dtype)], -1)
    torch.testing.assert_close(out, expected, **EXACT)
    torch.testing.assert_close(*(torch.autograd.grad(o.sin().sum(), x)[0] for o in (out, expected)), **EXACT)


@pytest.mark.parametrize("seqlen", [1, 2, 9])
def test_fn_with_states(seqlen):
    x, weight, states = channel_last(2, 5, seqlen), draw(5, 4, seed=1), draw(2, 5, 3, seed=3)
    expected, tokens = defined(x, weight, None, "silu", states)
    given = torch.zeros_like(states)
    out, last = ours.causal_conv1d_fn(x, weight, initial_states=states, return_final_states=True,
                                      final_states_out=given, activation="silu")
    assert last is given and torch.equal(last, tokens[..., -3:])
    torch.testing.assert_close(out, expected, **EXACT)


@pytest.mark.parametrize("state_len", [3, 4, 7])
@pytest.mark.parametrize("seqlen", [None, 1, 2, 9])
def test_update(state_len, seqlen):
    weight, bias, state = draw(5, 4, seed=1), draw(5, seed=2), draw(2, 5, state_len, seed=3)
    x = draw(2, 5) if seqlen is None else channel_last(2, 5, seqlen)
    expected, tokens = defined(x.view(2, 5, -1) if seqlen is None else x, weight, bias, "silu", state)
    place = state.data_ptr()
    out = ours.causal_conv1d_update(x, state, weight, bias, "silu")
    torch.testing.assert_close(out, expected.squeeze(-1) if seqlen is None else expected, **EXACT)
    assert state.data_ptr() == place and torch.equal(state, tokens[..., -state_len:])


@pytest.mark.parametrize("state_len", [3, 5])
@pytest.mark.parametrize("seqlen", [1, 2, 7])
def test_update_of_a_ring(state_len, seqlen):
    """Step by step, each sequence with a place of its own."""
    weight, tokens = draw(5, 4, seed=1), draw(2, 5, 4 * seqlen)
    state, lengths = torch.zeros(2, 5, state_len, dtype=torch.float64), torch.tensor([0, 4], dtype=torch.int32)
    outs = []
    for step in tokens.split(seqlen, -1):
        outs.append(ours.causal_conv1d_update(step, state, weight, None, None, lengths))
        lengths = lengths + seqlen
    torch.testing.assert_close(torch.cat(outs, -1), defined(tokens, weight)[0], **EXACT)
    for n in range(2):
        for back in range(1, min(state_len, 4 * seqlen) + 1):
            assert torch.equal(state[n, :, (lengths[n] - back) % state_len], tokens[n, :, -back])


def test_update_of_chosen_rows():
    x, weight, states = draw(2, 5, 1), draw(5, 4, seed=1), draw(4, 5, 4, seed=3)
    before, rows = states.clone(), torch.tensor([3, 1], dtype=torch.int32)
    out = ours.causal_conv1d_update(x, states, weight, conv_state_indices=rows)
    expected, tokens = defined(x, weight, before=before[[3, 1]])
    torch.testing.assert_close(out, expected, **EXACT)
    assert torch.equal(states[[3, 1]], tokens[..., -4:]) and torch.equal(states[[0, 2]], before[[0, 2]])


def test_bfloat16():
    x, weight, bias = (draw(*shape, dtype=torch.bfloat16) for shape in ((2, 40, 30), (40, 4), (40,)))
    exact = defined(x.double(), weight.double(), bias.double(), "silu")[0]
    out = ours.causal_conv1d_fn(x, weight, bias, activation="silu")
    assert out.dtype == torch.bfloat16 and (out - exact).abs().max() <= 2**-8 * exact.abs().max()
    state = torch.zeros(2, 40, 4, dtype=torch.bfloat16)
    steps = [ours.causal_conv1d_update(step, state, weight, bias, "silu") for step in x.split(1, -1)]
    assert torch.equal(torch.cat(steps, -1), out) and torch.equal(state, x[..., -4:])


def test_compiled():
    x, weight, bias = channel_last(2, 5, 20), draw(5, 4, seed=1).requires_grad_(), draw(5, seed=2)
    torch._dynamo.reset()

    def function(x, state):
        with torch.no_grad():
            step = ours.causal_conv1d_update(x[..., :1], state, weight, bias, "silu")
        return ours.causal_conv1d_fn(x, weight, bias, activation="silu").sin().sum() + step.sum()

    results = []
    for run in (function, torch.compile(function, fullgraph=True, backend="aot_eager")):
        state = draw(2, 5, 4, seed=3)
        results.append((*torch.autograd.grad(run(x, state), weight), state))
    assert all(torch.equal(a, b) for a, b in zip(*results))


SIGNATURES = {
    "causal_conv1d_fn": "x, weight, bias=None, seq_idx=None, initial_states=None, return_final_states=False, "
                        "final_states_out=None, activation=None",
    "causal_conv1d_update": "x, conv_state, weight, bias=None, activation=None, cache_seqlens=None, "
                            "conv_state_indices=None",
}


@pytest.mark.parametrize("name", SIGNATURES)
def test_signatures(name):
    parameters = inspect.signature(getattr(ours, name)).parameters.values()
    assert ", ".join(str(p.replace(annotation=p.empty)) for p in parameters) == SIGNATURES[name]


def test_errors():
    x, weight, state = draw(2, 5, 6), draw(5, 4), draw(2, 5, 4)
    ids, wrong = torch.zeros(2, 6, dtype=torch.int32), torch.tensor([0, 2], dtype=torch.int32)
    with pytest.raises(NotImplementedError, match="activation is 'relu', must be None, 'silu' or 'swish'"):
        ours.causal_conv1d_fn(x, weight, activation="relu")
    with pytest.raises(attention_cpp.Error, match="initial_states cannot be given with seq_idx; return_final_states"):
        ours.causal_conv1d_fn(x, weight, seq_idx=ids, initial_states=state, return_final_states=True)
    with pytest.raises(attention_cpp.Error, match=r"weight \(4, 4\) must be \(dim, width\) with dim = 5, not 4"):
        ours.causal_conv1d_fn(x, weight[:4])
    with pytest.raises(attention_cpp.Error, match=r"must be \[N, C, W - 1 or more\] = \[2, 5, 3\]"):
        ours.causal_conv1d_update(x, state[..., :2], weight)
    with pytest.raises(attention_cpp.Error, match=r"conv_state_indices has 2, must be in \[0, 1\]"):
        ours.causal_conv1d_update(x, state, weight, conv_state_indices=wrong)
    with pytest.raises(attention_cpp.Error, match="conv_state has a state_len of 2, must be at least width - 1 = 3"):
        ours.causal_conv1d_update(x, state[..., :2], weight, cache_seqlens=wrong)


# ------------------------------------------------------------------------------------------------------------ install()

def test_install():
    import importlib.metadata

    ours.install()
    try:
        import causal_conv1d
        from causal_conv1d.causal_conv1d_interface import causal_conv1d_update

        assert causal_conv1d.causal_conv1d_fn is ours.causal_conv1d_fn
        assert causal_conv1d_update is ours.causal_conv1d_update
        assert importlib.metadata.version("causal-conv1d") == causal_conv1d.__version__ == "1.5.2"
    finally:
        ours.uninstall()
    with pytest.raises(ModuleNotFoundError):
        import causal_conv1d  # noqa: F811


MODEL = """
import inspect, sys, warnings
import attention_cpp.causal_conv1d as ours
early = sys.argv[1] == "early"
if early:
    ours.install()
import torch, transformers
from transformers.models.lfm2 import modeling_lfm2 as modeling
if not early:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        ours.install()
    assert "no effect on transformers.models.lfm2.modeling_lfm2" in str(caught[0].message)
    sys.exit()

calls = []
def counting(function):
    def call(*arguments):
        calls.append(function.__name__)
        return function(*arguments)
    return call

from attention_cpp._conv1d import functions
functions.convolve, functions.update = counting(functions.convolve), counting(functions.update)
torch.manual_seed(0)
config = transformers.Lfm2Config(vocab_size=50, hidden_size=32, intermediate_size=48, num_hidden_layers=3,
                                 num_attention_heads=4, num_key_value_heads=2, conv_bias=True, conv_L_cache=3,
                                 layer_types=["conv", "full_attention", "conv"])
model = transformers.Lfm2ForCausalLM(config).double().eval()
ids = torch.randint(0, 50, (2, 9))

def results():
    model.zero_grad()
    loss = model(ids, labels=ids).loss
    loss.backward()
    with torch.no_grad():
        steps = model.generate(ids, max_new_tokens=6, do_sample=False, output_logits=True, return_dict_in_generate=True)
    return [loss.detach(), *steps.logits, *(p.grad.clone() for p in model.parameters())]

mine = results()
assert calls.count("convolve") >= 4 and calls.count("update") >= 8, calls
count = len(calls)
for name in ("causal_conv1d_fn", "causal_conv1d_update"):
    setattr(modeling, name, inspect.unwrap(getattr(modeling, name)))
expected = results()
assert len(calls) == count
for a, b in zip(mine, expected, strict=True):
    torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)
"""


@pytest.mark.parametrize("when", ["early", "late"])
def test_a_model_of_transformers(when):
    pytest.importorskip("transformers")
    environment = {**os.environ, "PYTHONPATH": PACKAGE_ROOT, "OMP_WAIT_POLICY": "passive", "HF_HUB_OFFLINE": "1"}
    result = subprocess.run([sys.executable, "-c", MODEL, when], capture_output=True, text=True, env=environment)
    assert result.returncode == 0, result.stderr
