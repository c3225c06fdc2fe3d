"""attention_cpp.mamba_ssm against its recurrence and against transformers' reference, its signatures, install()."""

import inspect
import os
import pathlib
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402

import attention_cpp  # noqa: E402
import attention_cpp.mamba_ssm as ours  # noqa: E402

EXACT = dict(rtol=1e-10, atol=1e-10)  # float64
PACKAGE_ROOT = str(pathlib.Path(attention_cpp.__file__).parent.parent)
scan = ours.mamba_chunk_scan_combined


def draw(*shape, seed=0, dtype=torch.float64):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def inputs(b=2, L=70, h=4, p=6, g=2, n=5, dtype=torch.float64, is_length_fast=True, two_axes=False):
    """x, dt, A, B, C, D, z, dt_bias. x, B and C as a model splits them from its convolution, dt from its projection."""
    width = h * p + 2 * g * n
    mixed = draw(b, width, L, dtype=dtype).transpose(1, 2) if is_length_fast else draw(b, L, width, dtype=dtype)
    x, B, C = mixed.split([h * p, g * n, g * n], -1)
    dt = draw(b, L, h + 7, seed=1, dtype=dtype)[..., 7:]
    A = -draw(h, seed=2).exp().to(torch.float64 if dtype == torch.float64 else torch.float32)
    return (x.unflatten(-1, (h, p)), dt, A, B.unflatten(-1, (g, n)), C.unflatten(-1, (g, n)),
            draw(*((h, p) if two_axes else (h,)), seed=3, dtype=dtype), draw(b, L, h, p, seed=4, dtype=dtype),
            draw(h, seed=5, dtype=dtype))


def recurrence(x, dt, A, B, C, D=None, z=None, dt_bias=None, initial_states=None, dt_softplus=False,
               dt_limit=(0.0, float("inf"))):
    """(y, states), token by token, in float64."""
    x, dt, A, B, C = (t.double() for t in (x, dt, A, B, C))
    dt = dt if dt_bias is None else dt + dt_bias
    dt = (F.softplus(dt) if dt_softplus else dt).clamp(*dt_limit)
    B, C = (t.repeat_interleave(x.shape[2] // t.shape[2], 2) for t in (B, C))
    S = x.new_zeros(len(x), *x.shape[2:], B.shape[-1]) if initial_states is None else initial_states.double()
    ys = []
    for t in range(x.shape[1]):
        S = S * (dt[:, t] * A).exp()[..., None, None] + (dt[:, t, :, None] * x[:, t])[..., None] * B[:, t, :, None]
        ys.append((S * C[:, t, :, None]).sum(-1))
    y = torch.stack(ys, 1)
    if D is not None:
        y = y + x * (D if D.dim() == 2 else D[:, None])
    return y if z is None else y * F.silu(z.double()), S


def close(results, expected):
    for a, b in zip(results, expected, strict=True):
        torch.testing.assert_close(a, b, **EXACT)


def grads_of(results, tensors):
    return torch.autograd.grad(sum(result.sin().sum() for result in results), tensors)


# ------------------------------------------------------------------------------------------- mamba_chunk_scan_combined

@pytest.mark.parametrize("is_length_fast", [False, True])
@pytest.mark.parametrize("two_axes", [False, True])
@pytest.mark.parametrize("L", [1, 7, 130])
def test_scan_is_the_recurrence(is_length_fast, two_axes, L):
    given = [t.detach().requires_grad_() for t in inputs(L=L, is_length_fast=is_length_fast, two_axes=two_axes)]
    x, dt, A, B, C, D, z, dt_bias = given
    before = draw(2, 4, 6, 5, seed=6).requires_grad_()
    options = dict(D=D, z=z, dt_bias=dt_bias, initial_states=before, dt_softplus=True, dt_limit=(0.2, 1.5))
    results = scan(x, dt, A, B, C, 16, return_final_states=True, **options)
    expected = recurrence(x, dt, A, B, C, **options)
    assert results[0].is_contiguous()
    close(results, expected)
    close(grads_of(results, [*given, before]), grads_of(expected, [*given, before]))


def test_scan_with_the_least_arguments():
    x, dt, A, B, C, *_ = inputs()
    y = scan(x, dt, A, B, C, chunk_size=256)
    torch.testing.assert_close(y, recurrence(x, dt, A, B, C)[0], **EXACT)  # a negative dt counts as 0
    assert torch.equal(y, scan(x, dt, A, B, C, 1))


def test_scan_copies_no_tokens(monkeypatch):
    from attention_cpp._torch import linear

    seen, run = [], linear.run
    monkeypatch.setattr(linear, "run", lambda *arguments: seen.append(arguments) or run(*arguments))
    x, dt, A, B, C, *_ = inputs(dtype=torch.bfloat16)
    before = draw(2, 4, 6, 5, dtype=torch.float32)
    _, state = scan(x, dt, A, B, C, 16, initial_states=before, return_final_states=True)
    (q, k, v, values, _), = seen
    assert [t.data_ptr() for t in (q, k, v, values[2])] == [t.data_ptr() for t in (C, B, x, before)]
    assert q.stride(2) == k.stride(2) == v.stride(2) == 1
    assert values[0].shape == (2, 4, 70, 1) and values[0].dtype == values[1].dtype == torch.float32
    assert state.shape == before.shape and state.dtype == torch.float32


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("L", [1, 64, 70])
def test_scan_as_transformers_computes(dtype, L):
    reference = inspect.unwrap(pytest.importorskip("transformers.models.mamba2.modeling_mamba2").mamba2_chunk_scan)
    x, dt, A, B, C, D, _, dt_bias = inputs(L=L, dtype=dtype)
    options = dict(chunk_size=32, D=D, dt_bias=dt_bias, dt_softplus=True, return_final_states=True,
                   dt_limit=(0.0, float("inf")), initial_states=draw(2, 4, 6, 5, seed=6, dtype=torch.float32))
    y, state = scan(x, dt, A, B, C, **options)
    expected, last = reference(x, dt, A, B, C, **options)
    assert y.dtype == dtype and state.dtype == last.dtype == torch.float32
    bound = 1e-5 if dtype == torch.float32 else 2e-2  # the reference rounds dt to bfloat16
    for a, b in ((y.float(), expected.float()), (state, last)):
        assert (a - b).abs().max() <= bound * b.abs().max()


def test_scan_in_bfloat16_is_exact_but_for_rounding():
    x, dt, A, B, C, D, z, dt_bias = inputs(L=300, dtype=torch.bfloat16)
    options = dict(D=D, z=z, dt_bias=dt_bias, dt_softplus=True)
    y, state = scan(x, dt, A, B, C, 64, return_final_states=True, **options)
    expected, last = recurrence(x, dt, A, B, C, **options)
    assert y.dtype == torch.bfloat16 and (y - expected).abs().max() <= 2**-7 * expected.abs().max()
    assert state.dtype == torch.float32 and (state - last).abs().max() <= 2**-7 * last.abs().max()


LENGTHS = [1, 40, 2, 27]


def packed(row):
    x, dt, A, B, C, D, z, dt_bias = inputs()
    return [[t[row:row + 1, begin:begin + length] for t in (x, dt, B, C)]
            for begin, length in zip((0, 1, 41, 43), LENGTHS)], A, D, dt_bias


def separately(row, befores):
    parts, A, D, dt_bias = packed(row)
    results = [recurrence(x, dt, A, B, C, D, None, dt_bias, before, True)
               for (x, dt, B, C), before in zip(parts, befores)]
    return torch.cat([y for y, _ in results], 1), torch.cat([state for _, state in results])


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_sequences_by_index(dtype):
    """Each row has sequences of its own, the first of them with an initial state."""
    given = [t.detach().requires_grad_() for t in inputs()]
    x, dt, A, B, C, D, _, dt_bias = given
    before = draw(2, 4, 6, 5, seed=6)
    seq_idx = torch.stack([torch.repeat_interleave(torch.arange(4), torch.tensor(LENGTHS)), torch.zeros(70).long()])
    y, final = scan(x, dt, A, B, C, 16, D, None, dt_bias, before, seq_idx.to(dtype), dt_softplus=True,
                    return_final_states=True)
    first, states = separately(0, [before[:1], None, None, None])
    second, state = recurrence(x[1:], dt[1:], A, B[1:], C[1:], D, None, dt_bias, before[1:], True)
    close((y, final), (torch.cat([first, second]), torch.cat([states[-1:], state])))
    gradient, = torch.autograd.grad(y[0, 41:43].sum(), x)
    assert gradient[0, 41:43].abs().sum() > 0
    gradient[0, 41:43] = 0
    assert gradient.abs().sum() == 0


@pytest.mark.parametrize("with_index", [False, True])
def test_sequences_by_starts(with_index):
    x, dt, A, B, C, D, _, dt_bias = (t[:1] if t.dim() > 1 else t for t in inputs())
    befores = draw(4, 4, 6, 5, seed=6)
    starts = torch.tensor([0, 1, 41, 43, 70], dtype=torch.int32)
    seq_idx = torch.repeat_interleave(torch.arange(4), torch.tensor(LENGTHS))[None] if with_index else None
    y, final, states = scan(x, dt, A, B, C, 16, D, None, dt_bias, befores, seq_idx, starts, True,
                            return_final_states=True, return_varlen_states=True)
    expected = separately(0, befores.split(1))
    close((y, states, final), (*expected, expected[1][-1:]))
    only_varlen = scan(x, dt, A, B, C, 16, D, None, dt_bias, befores, seq_idx, starts, True, return_varlen_states=True)
    close(only_varlen, expected)


def test_scan_compiled_whole():
    given = [t.detach().requires_grad_() for t in inputs()[:5]]
    torch._dynamo.reset()

    def function(*tensors):
        y, state = scan(*tensors, 16, dt_softplus=True, return_final_states=True)
        return y.sin().sum() + state.sum()

    results = [torch.autograd.grad(run(*given), given)
               for run in (function, torch.compile(function, fullgraph=True, backend="aot_eager"))]
    close(*results)


# ---------------------------------------------------------------------------------------------- selective_state_update

def of_a_step(dtype=torch.float64, b=2):
    """Arguments of selective_state_update as Mamba 2 passes them: expanded views."""
    x, dt, A, B, C, D, z, dt_bias = inputs(b=b, L=1, dtype=dtype)
    return (x[:, 0], dt[:, 0, :, None].expand(-1, -1, 6), A[:, None, None].expand(-1, 6, 5), B[:, 0], C[:, 0],
            D[:, None].expand(-1, 6), z[:, 0], dt_bias[:, None].expand(-1, 6))


@pytest.mark.parametrize("is_expanded", [True, False])
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_update(is_expanded, dtype):
    given = of_a_step(dtype)
    x, dt, A, B, C, D, z, dt_bias = given if is_expanded else [t.contiguous() for t in given]
    state = draw(2, 4, 6, 5, seed=6, dtype=torch.float64 if dtype == torch.float64 else torch.float32)
    expected, last = recurrence(x[:, None], dt[:, None, :, 0], A[:, 0, 0], B[:, None], C[:, None], D.double(),
                                z[:, None], dt_bias[:, 0].double(), state, True)
    place = state.data_ptr()
    y = ours.selective_state_update(state, x, dt, A, B, C, D, z, dt_bias, True)
    bound = 1e-10 if dtype == torch.float64 else 2**-7
    assert y.shape == x.shape and y.dtype == dtype and state.data_ptr() == place
    assert (y - expected[:, 0]).abs().max() <= bound * expected.abs().max()
    assert (state - last).abs().max() <= min(bound, 1e-5) * last.abs().max()


@pytest.mark.parametrize("dtype, state_dtype", [(torch.float32, torch.float32), (torch.bfloat16, torch.float32),
                                                (torch.bfloat16, torch.bfloat16)])
def test_update_as_transformers_computes(dtype, state_dtype):
    modeling = pytest.importorskip("transformers.models.mamba2.modeling_mamba2")
    x, dt, A, B, C, D, _, dt_bias = of_a_step(dtype)
    mine = draw(2, 4, 6, 5, seed=6, dtype=state_dtype)
    theirs = mine.clone()
    y = ours.selective_state_update(mine, x, dt, A, B, C, D, z=None, dt_bias=dt_bias, dt_softplus=True)
    expected = inspect.unwrap(modeling.mamba2_selective_state_update)(theirs, x, dt, A, B, C, D, dt_bias=dt_bias,
                                                                      dt_softplus=True)
    for a, b in ((y, expected), (mine, theirs)):
        assert a.dtype == b.dtype
        assert (a.float() - b.float()).abs().max() <= (1e-5 if dtype == torch.float32 else 3e-2) * b.abs().max()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_update_of_mamba_1(dtype):
    reference = pytest.importorskip("transformers.models.mamba.modeling_mamba").mamba_selective_state_update
    x, dt, z = (draw(2, 8, seed=seed, dtype=dtype) for seed in range(3))
    A, dt_bias, D = -draw(8, 5, seed=3).exp().float(), draw(8, seed=4).float(), draw(8, seed=5).to(dtype)
    B, C = draw(2, 5, seed=6, dtype=dtype), draw(2, 5, seed=7, dtype=dtype)
    mine = draw(2, 8, 5, seed=8, dtype=torch.float32)
    theirs = mine.clone()
    y = ours.selective_state_update(mine, x, dt, A, B, C, D, z=z, dt_bias=dt_bias, dt_softplus=True)
    expected = inspect.unwrap(reference)(theirs, x, dt, A, B, C, D, z=z, dt_bias=dt_bias, dt_softplus=True)
    for a, b in ((y, expected), (mine, theirs)):
        assert a.dtype == b.dtype
        assert (a.float() - b.float()).abs().max() <= (1e-5 if dtype == torch.float32 else 3e-2) * b.abs().max()


def test_update_of_chosen_rows_and_steps_are_the_scan():
    x, dt, A, B, C, D, z, dt_bias = inputs(L=9)
    states, rows = draw(4, 4, 6, 5, seed=6), torch.tensor([3, 1], dtype=torch.int32)
    before = states.clone()
    expected = scan(x, dt, A, B, C, 16, D, z, dt_bias, states[[3, 1]], dt_softplus=True, return_final_states=True)
    wide = [D[:, None].expand(-1, 6), None, dt_bias[:, None].expand(-1, 6)]
    ys = [ours.selective_state_update(states, x[:, t], dt[:, t, :, None].expand(-1, -1, 6),
                                      A[:, None, None].expand(-1, 6, 5), B[:, t], C[:, t], wide[0], z[:, t], wide[2],
                                      dt_softplus=True, state_batch_indices=rows) for t in range(9)]
    close((torch.stack(ys, 1), states[[3, 1]]), expected)
    assert torch.equal(states[[0, 2]], before[[0, 2]])


def test_update_compiled():
    x, dt, A, B, C, D, z, dt_bias = of_a_step()
    torch._dynamo.reset()
    results = []
    for run in (ours.selective_state_update, torch.compile(ours.selective_state_update, backend="aot_eager")):
        state = draw(2, 4, 6, 5, seed=6)
        results.append((run(state, x, dt, A, B, C, D, z, dt_bias, True), state))
    close(*results)


# -------------------------------------------------------------------------------------------------- signatures, errors

SIGNATURES = {
    "mamba_chunk_scan_combined":
        "x, dt, A, B, C, chunk_size, D=None, z=None, dt_bias=None, initial_states=None, seq_idx=None, cu_seqlens=None, "
        "dt_softplus=False, dt_limit=(0.0, inf), return_final_states=False, return_varlen_states=False",
    "mamba_split_conv1d_scan_combined":
        "zxbcdt, conv1d_weight, conv1d_bias, dt_bias, A, D, chunk_size, initial_states=None, seq_idx=None, "
        "dt_limit=(0.0, inf), return_final_states=False, activation='silu', rmsnorm_weight=None, rmsnorm_eps=1e-06, "
        "outproj_weight=None, outproj_bias=None, headdim=None, ngroups=1, norm_before_gate=True",
    "selective_state_update":
        "state, x, dt, A, B, C, D=None, z=None, dt_bias=None, dt_softplus=False, state_batch_indices=None",
}


@pytest.mark.parametrize("name", SIGNATURES)
def test_signatures(name):
    parameters = inspect.signature(getattr(ours, name)).parameters.values()
    assert ", ".join(str(p.replace(annotation=p.empty)) for p in parameters) == SIGNATURES[name]


def test_errors():
    x, dt, A, B, C, D, z, dt_bias = inputs()
    starts, index = torch.tensor([0, 30, 70]), torch.zeros(1, 70, dtype=torch.int32)
    one = [t[:1] for t in (x, dt)] + [A] + [t[:1] for t in (B, C)]
    with pytest.raises(attention_cpp.Error, match="x has a batch of 2, must be 1 with cu_seqlens"):
        scan(x, dt, A, B, C, 16, cu_seqlens=starts)
    with pytest.raises(attention_cpp.Error, match="return_varlen_states needs cu_seqlens"):
        scan(x, dt, A, B, C, 16, return_varlen_states=True)
    with pytest.raises(attention_cpp.Error, match="both given, and have different sequences"):
        scan(*one, 16, cu_seqlens=starts, seq_idx=index)
    with pytest.raises(attention_cpp.Error, match=r"dt \(2, 70, 3\) must be \(batch, seqlen, nheads\) with nheads = 4"):
        scan(x, dt[..., :3], A, B, C, 16)
    with pytest.raises(attention_cpp.Error, match=r"mamba_chunk_scan_combined.*dt A"):
        scan(x, dt.abs(), -A, B, C, 16)
    with pytest.raises(NotImplementedError, match="return_final_states=True is not supported, must be False"):
        ours.mamba_split_conv1d_scan_combined(x, x, x, x, A, D, 16, return_final_states=True)
    x, dt, A, B, C, *_ = of_a_step()
    with pytest.raises(attention_cpp.Error, match=r"state_batch_indices has 2, must be in \[0, 1\]"):
        ours.selective_state_update(draw(2, 4, 6, 5), x, dt, A, B, C, state_batch_indices=torch.tensor([0, 2]))
    with pytest.raises(attention_cpp.Error, match="nheads = 4 must be a multiple of ngroups = 3"):
        ours.selective_state_update(draw(2, 4, 6, 5), x, dt, A, draw(2, 3, 5), draw(2, 3, 5))


# ------------------------------------------------------------------------------------------------------------ install()

@pytest.fixture
def quiet():
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
    ours.uninstall()


def test_install(quiet):
    import importlib.metadata

    ours.install()
    ours.install()
    import mamba_ssm
    from mamba_ssm.ops.triton.selective_state_update import selective_state_update
    from mamba_ssm.ops.triton.ssd_combined import mamba_chunk_scan_combined, mamba_split_conv1d_scan_combined

    assert mamba_ssm.mamba_chunk_scan_combined is mamba_chunk_scan_combined is ours.mamba_chunk_scan_combined
    assert mamba_split_conv1d_scan_combined is ours.mamba_split_conv1d_scan_combined
    assert selective_state_update is ours.selective_state_update
    assert importlib.metadata.version("mamba-ssm") == mamba_ssm.__version__
    ours.uninstall()
    with pytest.raises(ModuleNotFoundError):
        import mamba_ssm  # noqa: F811


def test_another_mamba_ssm_that_works(tmp_path, monkeypatch, quiet):
    triton = tmp_path / "mamba_ssm" / "ops" / "triton"
    triton.mkdir(parents=True)
    for folder in (triton, triton.parent, triton.parent.parent):
        (folder / "__init__.py").write_text("")
    (triton / "ssd_combined.py").write_text("def mamba_chunk_scan_combined(x, *rest):\n    return 'theirs'\n")
    (triton / "selective_state_update.py").write_text("def selective_state_update(*rest):\n    return 'theirs'\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(attention_cpp.Error, match="another installation of mamba_ssm can be imported; force=True"):
        ours.install()
    ours.install(force=True)
    from mamba_ssm.ops.triton import ssd_combined

    given = inputs()[:5]
    assert ssd_combined.mamba_chunk_scan_combined(*(t.to("meta") for t in given), 16) == "theirs"
    assert torch.equal(ssd_combined.mamba_chunk_scan_combined(*given, 16), scan(*given, 16))
    ours.uninstall()
    assert ssd_combined.mamba_chunk_scan_combined(given[0]) == "theirs"
    for name in [name for name in sys.modules if name.partition(".")[0] == "mamba_ssm"]:
        del sys.modules[name]


MODEL = """
import importlib, inspect, sys, warnings
import attention_cpp.mamba_ssm as ours
kind, when = sys.argv[1:]
if when == "early":
    ours.install()
import torch, transformers
modeling = importlib.import_module(f"transformers.models.{kind}.modeling_{kind}")
if when == "late":
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        ours.install()
    assert f"install() is too late for transformers.models.{kind}.modeling_{kind}" in str(caught[0].message)
    sys.exit()

calls = []
def counting(function):
    def call(*arguments, **options):
        calls.append(function.__name__)
        return function(*arguments, **options)
    return call

from attention_cpp._mamba import functions
functions.scan, functions.step = counting(functions.scan), counting(functions.step)
common = dict(vocab_size=50, hidden_size=32, num_hidden_layers=3)
attention = dict(intermediate_size=48, num_attention_heads=4, num_key_value_heads=2)
ssm = dict(mamba_n_heads=4, mamba_d_head=16, mamba_n_groups=2, mamba_d_state=8, mamba_chunk_size=16)
config = {"mamba2": lambda: transformers.Mamba2Config(**common, num_heads=4, head_dim=16, n_groups=2, state_size=8,
                                                      chunk_size=16),
          "bamba": lambda: transformers.BambaConfig(**common, **attention, **ssm, attn_layer_indices=[1]),
          "falcon_h1": lambda: transformers.FalconH1Config(**common, **attention, **ssm, mamba_d_ssm=64)}[kind]()
torch.manual_seed(0)
model = transformers.AutoModelForCausalLM.from_config(config)
ids = torch.randint(1, 50, (2, 21))

def results():
    model.train()
    model.zero_grad()
    loss = model(ids, labels=ids).loss
    loss.backward()
    model.eval()
    with torch.no_grad():
        logits = model(ids).logits
        steps = model.generate(ids, max_new_tokens=6, do_sample=False, output_logits=True, pad_token_id=0,
                               eos_token_id=None, return_dict_in_generate=True)
    return [loss.detach(), logits, *steps.logits, steps.sequences,
            *(p.grad.clone() for p in model.parameters() if p.grad is not None)]

mine = results()
assert calls.count("scan") >= 6 and calls.count("step") >= 10, calls
count = len(calls)
for name in ("mamba2_chunk_scan", "mamba2_selective_state_update", "mamba2_split_conv1d_scan_combined"):
    setattr(modeling, name, inspect.unwrap(getattr(modeling, name)))
expected = results()
assert len(calls) == count
for a, b in zip(mine, expected, strict=True):
    torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
"""


@pytest.mark.parametrize("kind, when", [("mamba2", "early"), ("mamba2", "late"), ("bamba", "early"),
                                        ("falcon_h1", "early")])
def test_a_model_of_transformers(kind, when):
    pytest.importorskip("transformers")
    environment = {**os.environ, "PYTHONPATH": PACKAGE_ROOT, "OMP_WAIT_POLICY": "passive", "HF_HUB_OFFLINE": "1"}
    result = subprocess.run([sys.executable, "-c", MODEL, kind, when], capture_output=True, text=True, env=environment)
    assert result.returncode == 0, result.stderr


PACKED = """
import attention_cpp.causal_conv1d, attention_cpp.mamba_ssm
attention_cpp.causal_conv1d.install()
attention_cpp.mamba_ssm.install()
import torch, transformers
from transformers.models.bamba.modeling_bamba import BambaMixer

torch.manual_seed(0)
config = transformers.BambaConfig(hidden_size=32, num_attention_heads=4, num_hidden_layers=1, mamba_n_heads=4,
                                  mamba_d_head=16, mamba_n_groups=2, mamba_d_state=8, mamba_chunk_size=16)
mixer = BambaMixer(config, 0)
for p in mixer.parameters():
    torch.nn.init.normal_(p, 0, 0.3)
tokens = torch.randn(2, 30, 32)
seq_idx = torch.tensor([[0] * 11 + [1] * 19, [0] * 5 + [1] * 25], dtype=torch.int32)
for training in (True, False):
    mixer.train(training)
    expected = [torch.cat([mixer(part) for part in row[None].split(lengths, 1)], 1)
                for row, lengths in zip(tokens, ([11, 19], [5, 25]))]
    torch.testing.assert_close(mixer(tokens, seq_idx=seq_idx), torch.cat(expected), rtol=1e-5, atol=1e-5)
"""


@pytest.mark.skipif(not hasattr(attention_cpp._core, "convolution_forward"), reason="built without the convolution")
def test_packed_sequences_in_a_model_of_transformers():
    pytest.importorskip("transformers")
    environment = {**os.environ, "PYTHONPATH": PACKAGE_ROOT, "OMP_WAIT_POLICY": "passive", "HF_HUB_OFFLINE": "1"}
    result = subprocess.run([sys.executable, "-c", PACKED], capture_output=True, text=True, env=environment)
    assert result.returncode == 0, result.stderr
