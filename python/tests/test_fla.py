"""attention_cpp.fla: each function against the recurrence and transformers' own, its signature, install()."""

import importlib.metadata
import inspect
import sys
import warnings

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import attention_cpp  # noqa: E402
import attention_cpp.fla as ours  # noqa: E402
import reference  # noqa: E402
from attention_cpp._fla.install import FUNCTIONS  # noqa: E402

B, H, HV, K, V = 2, 2, 4, 8, 6


def draw(*shape, seed=0, dtype=torch.float64):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def heads_first(x):
    return x.detach().double().transpose(1, 2).numpy()


# ------------------------------------------------------------------------------------------------------------ functions

def _options(name, length):
    """What a function is given besides q, k and v, and the same for the recurrence."""
    g, by_row, beta = -draw(B, length, HV, seed=3).abs(), -draw(B, length, HV, K, seed=4).abs(), \
        draw(B, length, HV, seed=5).sigmoid()
    family = name.replace("chunk_", "").replace("fused_recurrent_", "")
    of_head = {"log_decay": heads_first(g)[..., None]}
    of_row, of_token = {"log_decay": heads_first(by_row)}, {"beta": heads_first(beta)}
    gamma = np.log1p(-(2.0 ** (-5 - np.arange(HV)))).astype(np.float32).reshape(1, HV, 1, 1)
    delta = {"delta": True, "l2norm": True}
    return {
        "gated_delta_rule": ({"g": g, "beta": beta, "use_qk_l2norm_in_kernel": True}, of_head | of_token | delta),
        "kda": ({"g": by_row, "beta": beta, "use_qk_l2norm_in_kernel": True}, of_row | of_token | delta),
        "delta_rule": ({"beta": beta, "use_qk_l2norm_in_kernel": True}, of_token | delta),
        "gla": ({"g" if name == "chunk_gla" else "gk": by_row}, of_row),
        "simple_gla": ({"g": g, "g_gamma": torch.from_numpy(gamma).double().flatten()},
                       {"log_decay": of_head["log_decay"] + gamma}),
        "retention": ({}, {"log_decay": gamma}),
        "linear_attn": ({"normalize": False}, {}),
    }[family]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_is_the_recurrence(name):
    length = 70
    q, k, v = draw(B, length, HV, K), draw(B, length, HV, K, seed=1), draw(B, length, HV, V, seed=2)
    state = draw(B, HV, K, V, seed=6)
    given, options = _options(name, length)
    o, final = getattr(ours, name)(q, k, v, **given, scale=0.5, initial_state=state, output_final_state=True)
    expected, expected_state = reference.linear_attention(*map(heads_first, (q, k, v)), **options, scale=0.5,
                                                          initial_state=state.numpy())
    # Sums over 70 tokens and 8 rows of the state, in float64.
    bound = dict(rtol=0, atol=length * K * 2.0**-53 * max(abs(expected).max(), abs(expected_state).max()))
    np.testing.assert_allclose(heads_first(o), expected, **bound)
    np.testing.assert_allclose(final, expected_state, **bound)
    assert getattr(ours, name)(q, k, v, **given)[1] is None
    if "state_v_first" in inspect.signature(getattr(ours, name)).parameters:
        turned = getattr(ours, name)(q, k, v, **given, scale=0.5, initial_state=state.transpose(2, 3).contiguous(),
                                     output_final_state=True, state_v_first=True)
        assert torch.equal(turned[0], o) and torch.equal(turned[1], final.transpose(2, 3))


def test_normalised_linear_attention():
    q, k, v = draw(B, 70, H, K).exp(), draw(B, 70, H, K, seed=1).exp(), draw(B, 70, H, V, seed=2)
    expected, state = reference.linear_attention(*map(heads_first, (q, k, v)), normalize=True)
    o, (kv, z) = ours.chunk_linear_attn(q, k, v, output_final_state=True)
    assert z.shape == (B, 1, H, K)
    np.testing.assert_allclose(heads_first(o), expected, rtol=1e-12)
    np.testing.assert_allclose(kv, state[..., :-1], rtol=0, atol=1e-12 * abs(state).max())
    np.testing.assert_allclose(z[:, 0], state[..., -1], rtol=1e-12)
    first, between = ours.chunk_linear_attn(*(x[:, :30] for x in (q, k, v)), output_final_state=True)
    second, _ = ours.chunk_linear_attn(*(x[:, 30:] for x in (q, k, v)), initial_state=between)
    torch.testing.assert_close(torch.cat([first, second], 1), o, rtol=1e-12, atol=1e-12)
    alone, none = ours.fused_recurrent_linear_attn(q, k, v, normalize=True)
    assert torch.equal(alone, o) and none is None
    from_zero, _ = ours.chunk_linear_attn(q, k, v, initial_state=torch.zeros(B, H, K, V, dtype=torch.float64))
    assert torch.equal(from_zero, o)


# ---------------------------------------------------------------------------------------------- transformers' functions

KIND = {"T": 70, "dtype": torch.float32, "state": False, "view": True, "g": 1.0, "zero": False}
CALLS = {
    "training, a view with fast tokens": {}, "prompt in bfloat16": {"dtype": torch.bfloat16, "T": 130},
    "a chunk onto a state": {"state": True, "T": 3}, "decode": {"T": 1, "state": True, "view": False},
    "decode in bfloat16": {"T": 1, "state": True, "view": False, "dtype": torch.bfloat16},
    "whole chunks": {"T": 128}, "strong decays": {"g": 100.0}, "padding": {"zero": True},
}


def recorded(kind, by_row=False):
    """The arguments of a call as a model makes it."""
    kind = KIND | CALLS[kind]
    T, dtype = kind["T"], kind["dtype"]
    heads = (HV, HV, HV) if by_row else (H, H, HV)
    tensors = [draw(B, T, n, d, seed=seed, dtype=dtype) for seed, (n, d) in enumerate(zip(heads, (K, K, V)))]
    if kind["zero"]:
        for x in tensors:
            x[1, :9] = 0
    if kind["view"]:
        tensors = [x.flatten(2).transpose(1, 2).contiguous().transpose(1, 2).view(x.shape) for x in tensors]
        assert tensors[0].stride(1) == 1
    g = -kind["g"] * draw(*((B, T, HV, K) if by_row else (B, T, HV)), seed=3).abs().float()
    beta = draw(B, T, HV, seed=4, dtype=dtype).sigmoid()
    state = draw(B, HV, K, V, seed=5, dtype=torch.float32) if kind["state"] else None
    return [*tensors, g, beta], state, T


def functions_of(by_row):
    if by_row:
        module = pytest.importorskip("transformers.models.kimi_linear.modeling_kimi_linear")
        return (ours.chunk_kda, module.chunk_kimi_delta_attention), (
            ours.fused_recurrent_kda, module.recurrent_kimi_delta_attention)
    module = pytest.importorskip("transformers.models.qwen3_next.modeling_qwen3_next")
    return (ours.chunk_gated_delta_rule, module.torch_chunk_gated_delta_rule), (
        ours.fused_recurrent_gated_delta_rule, module.torch_recurrent_gated_delta_rule)


def with_gradients(function, tensors, state):
    given = [x.detach().requires_grad_() for x in tensors]
    start = None if state is None else state.detach().requires_grad_()
    q, k, v, g, beta = given
    o, final = function(q, k, v, g=g, beta=beta, initial_state=start, output_final_state=True,
                        use_qk_l2norm_in_kernel=True)
    sources = given if start is None else [*given, start]
    loss = o.to(final.dtype).sin().sum() + final.cos().sum()
    return [o, final, *torch.autograd.grad(loss, sources)]


@pytest.mark.parametrize("by_row", [False, True], ids=["gated delta rule", "kda"])
@pytest.mark.parametrize("kind", CALLS)
def test_as_transformers_computes(kind, by_row):
    """Values and gradients are as near to those of float64 as transformers' are, up to a factor of 4 and 4 roundings of
    the largest number: of float32, or of the type of a tensor with 16 bits."""
    tensors, state, T = recorded(kind, by_row)
    chunk, recurrent = functions_of(by_row)
    exact = with_gradients(chunk[0], [x.double() for x in tensors], None if state is None else state.double())
    largest = max(x.abs().max() for x in exact)
    for mine, theirs in (chunk, recurrent) if T <= 3 else (chunk,):
        results = zip(with_gradients(mine, tensors, state), with_gradients(theirs, tensors, state), exact, strict=True)
        for actual, naive, expected in results:
            assert actual.dtype == naive.dtype and actual.shape == naive.shape and actual.isfinite().all()
            unit = torch.finfo(torch.float32).eps * largest + (
                torch.finfo(actual.dtype).eps * expected.abs().max() if actual.dtype == torch.bfloat16 else 0)
            error, bound = ((x.double() - expected).abs().max() for x in (actual, naive))
            assert error <= 4 * bound + 4 * unit


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_packed_sequences_are_the_sequences_alone(dtype):
    (q, k, v, g, beta), _, T = recorded("training, a view with fast tokens")
    q, k, v, g, beta = (x[:1] for x in (q, k, v, g, beta))
    starts, states = torch.tensor([0, 3, 3, 65, T], dtype=dtype), draw(4, HV, K, V, seed=5, dtype=torch.float32)
    o, final = ours.chunk_gated_delta_rule(q, k, v, g, beta, initial_state=states, output_final_state=True,
                                           use_qk_l2norm_in_kernel=True, cu_seqlens=starts)
    assert torch.equal(final[1], states[1])
    for n, (begin, end) in enumerate(zip(starts[:-1], starts[1:])):
        part = [x[:, begin:end] for x in (q, k, v, g, beta)]
        alone = ours.chunk_gated_delta_rule(*part, initial_state=states[n:n + 1], output_final_state=True,
                                            use_qk_l2norm_in_kernel=True)
        assert torch.equal(o[:, begin:end], alone[0]) and torch.equal(final[n:n + 1], alone[1])
    with pytest.raises(ValueError, match="cu_seqlens is for a batch of 1"):
        ours.chunk_gated_delta_rule(*(x.repeat(2, *(1,) * (x.dim() - 1)) for x in (q, k, v, g, beta)),
                                    cu_seqlens=starts)
    with pytest.raises(ValueError, match=r"\[chunk_gated_delta_rule\] initial_state has size \[3, .*must be .*\[4, "):
        ours.chunk_gated_delta_rule(q, k, v, g, beta, initial_state=states[:3], cu_seqlens=starts)


def test_the_initial_state_is_not_written_and_the_output_is_dense():
    tensors, state, _ = recorded("decode in bfloat16")
    before = state.clone()
    o, final = ours.fused_recurrent_gated_delta_rule(*tensors[:3], g=tensors[3], beta=tensors[4], initial_state=state,
                                                     output_final_state=True)
    assert torch.equal(state, before) and final.data_ptr() != state.data_ptr() and final.dtype == torch.float32
    views, _, _ = recorded("training, a view with fast tokens")
    assert o.is_contiguous() and ours.chunk_gated_delta_rule(*views)[0].is_contiguous()


def test_compiled_whole():
    tensors, state, _ = recorded("training, a view with fast tokens")
    torch._dynamo.reset()

    def call(q, k, v, g, beta):
        packed = ours.chunk_kda(q[:1], k[:1], v[:1, :, :H], g[:1, :, :H, None].expand(-1, -1, -1, K), beta[:1, :, :H])
        return ours.chunk_gated_delta_rule(q, k, v, g, beta, output_final_state=True), packed[0].sum()

    compiled = torch.compile(call, fullgraph=True, backend="aot_eager")
    assert all(map(torch.equal, compiled(*tensors)[0], call(*tensors)[0]))
    given = [x.requires_grad_() for x in tensors]
    losses = [o.sin().sum() + final.cos().sum() + rest for (o, final), rest in (compiled(*given), call(*given))]
    assert all(map(torch.equal, *(torch.autograd.grad(loss, given) for loss in losses)))


def test_autocast_leaves_the_types():
    tensors, _, _ = recorded("training, a view with fast tokens")
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(ours.chunk_gated_delta_rule(*tensors)[0], ours.chunk_gated_delta_rule(*tensors)[0].float())
        assert ours.chunk_gated_delta_rule(*tensors)[0].dtype == torch.float32
    mixed = ours.chunk_gated_delta_rule(tensors[0].bfloat16(), *tensors[1:])[0]
    assert mixed.dtype == torch.bfloat16


# -------------------------------------------------------------------------------------------------------------- options

def test_gates_and_logits_in_the_kernel():
    q, k, v = (draw(B, 9, HV, d, seed=seed) for seed, d in enumerate((K, K, V)))
    x, by_row, logit = draw(B, 9, HV, seed=3), draw(B, 9, HV, K, seed=4), draw(B, 9, HV, seed=5)
    A_log, bias, biases = draw(HV, seed=6).float(), draw(HV, seed=7).float(), draw(HV * K, seed=8).float()
    softplus = torch.nn.functional.softplus
    decay = -A_log.exp() * softplus(x.float() + bias)
    expected = ours.chunk_gated_delta_rule(q, k, v, decay, 2 * logit.float().sigmoid())[0]
    options = dict(use_beta_sigmoid_in_kernel=True, allow_neg_eigval=True, use_gate_in_kernel=True, A_log=A_log,
                   dt_bias=bias)
    assert torch.equal(ours.chunk_gated_delta_rule(q, k, v, x, logit, **options, chunk_size=32)[0], expected)
    assert torch.equal(ours.fused_recurrent_gated_delta_rule(q, k, v, x, beta=logit, **options)[0], expected)
    options |= {"dt_bias": biases, "allow_neg_eigval": False}
    for more, rows in (({}, -A_log.exp()[:, None] * softplus(by_row.float() + biases.view(HV, K))),
                       ({"lower_bound": -5.0},
                        -5 * torch.sigmoid(A_log.exp()[:, None] * (by_row.float() + biases.view(HV, K)))),
                       ({"lower_bound": -5.0, "A_log": None}, -5 * torch.sigmoid(by_row.float() + biases.view(HV, K)))):
        expected = ours.chunk_kda(q, k, v, rows, logit.float().sigmoid())[0]
        assert torch.equal(ours.chunk_kda(q, k, v, by_row, logit, **options | more)[0], expected)
        assert torch.equal(ours.fused_recurrent_kda(q, k, v, by_row, logit, **options | more)[0], expected)
    both = ours.fused_recurrent_gated_delta_rule(q, k, v, decay, gk=rows)[0]
    torch.testing.assert_close(both, ours.chunk_kda(q, k, v, rows + decay[..., None], torch.ones_like(x))[0],
                               rtol=1e-6, atol=1e-6)  # the sum of the decays is rounded to float32


REFUSED = {
    "chunk_gated_delta_rule": {"cp_context": object()},
    "fused_recurrent_gated_delta_rule": {"gv": torch.ones(B, 3, HV, V)},
    "chunk_kda": {"use_graph": True, "return_intermediate_states": True},
    "fused_recurrent_gla": {"reverse": True}, "fused_recurrent_simple_gla": {"reverse": True},
    "fused_recurrent_retention": {"reverse": True}, "fused_recurrent_linear_attn": {"reverse": True},
    "chunk_retention": {"head_first": True}, "chunk_simple_gla": {"offsets": 3},
}


@pytest.mark.parametrize("name", REFUSED)
def test_options_that_are_not_supported(name):
    q, k, v = (draw(B, 3, HV, d, seed=seed) for seed, d in enumerate((K, K, V)))
    given, _ = _options(name, 3)
    with pytest.raises(NotImplementedError, match=rf"^\[{name}\] ") as caught:
        getattr(ours, name)(q, k, v, **given, **REFUSED[name])
    assert all(option in str(caught.value) for option in REFUSED[name])


def test_wrong_arguments():
    q, k, v = (draw(B, 3, HV, d, seed=seed) for seed, d in enumerate((K, K, V)))
    g, beta = -draw(B, 3, HV).abs(), draw(B, 3, HV).sigmoid()
    for call, kind, message in (
            (lambda: ours.chunk_gated_delta_rule(q, k, v, g[..., None], beta), ValueError, "g has 4 axes, must have 3"),
            (lambda: ours.chunk_kda(q, k, v, g, beta), ValueError, "g of rows has 3 axes, must have 4"),
            (lambda: ours.chunk_delta_rule(q, k, v[0], beta), ValueError, "v has 3 axes, must have 4"),
            (lambda: ours.chunk_delta_rule(q, k.numpy(), v, beta), TypeError, "k must be a torch.Tensor, not ndarray"),
            (lambda: ours.chunk_delta_rule(q.to("meta"), k, v, beta), ValueError, "q is on meta, must be on the CPU"),
            (lambda: ours.chunk_delta_rule(q, k[:, :2], v, beta), ValueError, r"\[chunk_delta_rule\] k has size"),
            (lambda: ours.chunk_gated_delta_rule(q, k, v, -g, beta), ValueError, "the log decay g has the element"),
            (lambda: ours.chunk_gated_delta_rule(q, k, v, g, beta, allow_neg_eigval=True), ValueError,
             "requires use_beta_sigmoid_in_kernel"),
            (lambda: ours.chunk_kda(q, k, v, g, beta, use_gate_in_kernel=True), ValueError, "needs A_log"),
            (lambda: ours.chunk_kda(q, k, v, g, beta, use_gate_in_kernel=True, safe_gate=True), ValueError,
             "requires lower_bound"),
            (lambda: ours.chunk_gla(q, k, v, -k.abs(), scale="a"), TypeError, "scale must be a number")):
        with pytest.raises(kind, match=message):
            call()
    old = ours.chunk_simple_gla(q, k, v, g, output_final_state=True, transpose_state_layout=True)[1]
    assert old.shape == (B, HV, V, K)
    with pytest.raises(ValueError, match="are both given"):
        ours.chunk_simple_gla(q, k, v, g, state_v_first=True, transpose_state_layout=True)


# ----------------------------------------------------------------------------------------------------------- signatures

COMMON = "scale=None, initial_state=None, output_final_state=False"
SIGNATURES = {
    "chunk_gated_delta_rule": f"q, k, v, g, beta, {COMMON}, use_qk_l2norm_in_kernel=False, "
                              "use_beta_sigmoid_in_kernel=False, allow_neg_eigval=False, state_v_first=False, "
                              "cu_seqlens=None, cu_seqlens_cpu=None, chunk_indices=None, cp_context=None, **kwargs",
    "fused_recurrent_gated_delta_rule": f"q, k, v, g=None, gk=None, gv=None, beta=None, {COMMON}, "
                                        "use_qk_l2norm_in_kernel=False, use_gate_in_kernel=False, A_log=None, "
                                        "dt_bias=None, use_beta_sigmoid_in_kernel=False, allow_neg_eigval=False, "
                                        "state_v_first=False, cu_seqlens=None, **kwargs",
    "chunk_kda": f"q, k, v, g, beta, {COMMON}, use_qk_l2norm_in_kernel=False, use_gate_in_kernel=False, "
                 "use_beta_sigmoid_in_kernel=False, allow_neg_eigval=False, safe_gate=False, lower_bound=None, "
                 "disable_recompute=False, return_intermediate_states=False, state_v_first=False, cu_seqlens=None, "
                 "cu_seqlens_cpu=None, cp_context=None, use_graph=False, max_num_seqs=None, **kwargs",
    "fused_recurrent_kda": f"q, k, v, g, beta, A_log=None, dt_bias=None, {COMMON}, use_qk_l2norm_in_kernel=False, "
                           "use_gate_in_kernel=False, use_beta_sigmoid_in_kernel=False, allow_neg_eigval=False, "
                           "lower_bound=None, state_v_first=False, cu_seqlens=None, **kwargs",
    "chunk_delta_rule": f"q, k, v, beta, {COMMON}, use_qk_l2norm_in_kernel=False, cu_seqlens=None, "
                        "cu_seqlens_cpu=None, **kwargs",
    "fused_recurrent_delta_rule": f"q, k, v, beta=None, {COMMON}, use_qk_l2norm_in_kernel=False, cu_seqlens=None",
    "chunk_gla": f"q, k, v, g, {COMMON}, state_v_first=False, cu_seqlens=None, cu_seqlens_cpu=None",
    "fused_recurrent_gla": f"q, k, v, gk=None, gv=None, {COMMON}, reverse=False, state_v_first=False, cu_seqlens=None, "
                           "**kwargs",
    "chunk_simple_gla": f"q, k, v, g=None, g_gamma=None, {COMMON}, state_v_first=False, cu_seqlens=None, "
                        "cu_seqlens_cpu=None, **kwargs",
    "fused_recurrent_simple_gla": f"q, k, v, g=None, g_gamma=None, {COMMON}, reverse=False, state_v_first=False, "
                                  "cu_seqlens=None, **kwargs",
    "chunk_retention": f"q, k, v, {COMMON}, cu_seqlens=None, **kwargs",
    "fused_recurrent_retention": f"q, k, v, {COMMON}, reverse=False, state_v_first=False, cu_seqlens=None, **kwargs",
    "chunk_linear_attn": f"q, k, v, {COMMON}, normalize=True, cu_seqlens=None",
    "fused_recurrent_linear_attn": f"q, k, v, {COMMON}, reverse=False, normalize=False, cu_seqlens=None",
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_signatures_are_those_of_fla(name):
    parameters = inspect.signature(getattr(ours, name)).parameters.values()
    assert ", ".join(str(p.replace(annotation=p.empty)) for p in parameters) == SIGNATURES[name]
    assert inspect.getdoc(getattr(ours, name))


# -------------------------------------------------------------------------------------------------------------- install

@pytest.fixture
def quiet():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of modeling files that other tests have imported
        yield
    ours.uninstall()


def test_install(quiet):
    assert importlib.util.find_spec("fla") is None
    ours.install()
    ours.install()
    import fla
    from fla.ops.gated_delta_rule import chunk_gated_delta_rule
    from fla.ops.kda import fused_recurrent_kda

    assert fla.chunk_gated_delta_rule is fla.ops.chunk_gated_delta_rule is chunk_gated_delta_rule
    assert fused_recurrent_kda is ours.fused_recurrent_kda and fla.__version__ == "0.6.0"
    assert {importlib.metadata.version(name) for name in ("fla-core", "flash-linear-attention")} == {"0.6.0"}
    ours.uninstall()
    assert "fla" not in sys.modules and importlib.util.find_spec("fla") is None


def other_fla(folder, monkeypatch, text):
    """Another package fla that can be found, and imported if its text can."""
    for name in ("", *(f"ops/{family}" for family in ("gated_delta_rule", "kda", "delta_rule", "gla", "simple_gla",
                                                      "retention", "linear_attn")), "ops"):
        (folder / "fla" / name).mkdir(parents=True, exist_ok=True)
        (folder / "fla" / name / "__init__.py").write_text("")
    (folder / "fla/ops/kda/__init__.py").write_text(text)
    monkeypatch.syspath_prepend(str(folder))
    for name in [name for name in sys.modules if name.partition(".")[0] == "fla"]:
        monkeypatch.delitem(sys.modules, name)


def test_another_fla_that_works(tmp_path, monkeypatch, quiet):
    other_fla(tmp_path, monkeypatch, "def chunk_kda(q, *rest): return 'theirs', q.device.type\nother = 3\n")
    with pytest.raises(attention_cpp.Error, match="another installation of fla can be imported; force=True"):
        ours.install()
    ours.install(force=True)
    import fla.ops.kda as kda

    assert kda.chunk_kda is ours.chunk_kda and kda.other == 3
    q = torch.zeros(1, 2, 1, 4)
    assert ours.chunk_kda(q.to("meta"), q, q, q, q[..., 0]) == ("theirs", "meta")
    assert ours.chunk_kda(q, q, q, q, q[..., 0])[0].shape == q.shape
    ours.uninstall()
    assert kda.chunk_kda(q) == ("theirs", "cpu") and not hasattr(kda, "fused_recurrent_kda")
    with pytest.raises(attention_cpp.Error, match="q is on meta"):
        ours.chunk_kda(q.to("meta"), q, q, q, q[..., 0])
    for name in [name for name in sys.modules if name.partition(".")[0] == "fla"]:
        del sys.modules[name]


def test_another_fla_that_cannot_be_imported(tmp_path, monkeypatch, quiet):
    other_fla(tmp_path, monkeypatch, "import no_such_triton\n")
    ours.install(force=True)
    from fla.ops.kda import chunk_kda

    assert chunk_kda is ours.chunk_kda
    ours.uninstall()
    for name in [name for name in sys.modules if name.partition(".")[0] == "fla"]:
        del sys.modules[name]
