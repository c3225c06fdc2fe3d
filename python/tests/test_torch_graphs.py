"""Calls that torch records for other programs: the graph holds torch's own operator, or ours where that runs."""

import io

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402

import attention_cpp  # noqa: E402
import attention_cpp.torch as drop_in  # noqa: E402
from attention_cpp import flash_attn  # noqa: E402

torch_sdpa = F.scaled_dot_product_attention


@pytest.fixture(autouse=True)
def enabled():
    with drop_in.enabled():
        yield


class Attention(torch.nn.Module):
    def forward(self, q, k, v):
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def inputs(dtype=torch.float32, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return tuple(torch.randn(2, 4, 6, 8, generator=generator, dtype=dtype) for _ in range(3))


def expected(*arguments):
    return torch_sdpa(*arguments, is_causal=True)


def saved(module):
    memory = io.BytesIO()
    torch.jit.save(module, memory)
    memory.seek(0)
    return torch.jit.load(memory)


@pytest.mark.parametrize("make", [lambda: torch.jit.trace(Attention(), inputs(), check_trace=False),
                                  lambda: torch.jit.script(Attention()),
                                  lambda: torch.fx.symbolic_trace(Attention())], ids=["trace", "script", "fx"])
def test_torchs_operator_is_in_the_graph(make):
    graph = make()
    assert "scaled_dot_product_attention" in str(graph.graph) and "attention_cpp::" not in str(graph.graph)
    other = inputs(seed=1)
    assert torch.equal(graph(*other), expected(*other))
    if isinstance(graph, torch.jit.ScriptModule):
        assert torch.equal(saved(graph)(*other), expected(*other))


def test_modules_of_torch_are_scripted():
    layer = torch.nn.MultiheadAttention(16, 4, batch_first=True).train()
    x = torch.randn(2, 6, 16, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(torch.jit.script(layer)(x, x, x, need_weights=False)[0],
                               layer(x, x, x, need_weights=False)[0])


def test_a_trace_of_another_integration_holds_its_operator():
    def attend(q, k, v):
        return flash_attn.flash_attn_func(q, k, v, causal=True, softcap=2.0)

    graph = torch.jit.trace(attend, inputs(), check_trace=False)
    assert "attention_cpp::attention" in str(graph.graph)
    other = inputs(seed=1)
    assert torch.equal(graph(*other), attend(*other))


@pytest.mark.parametrize("strict", [False, True])
def test_exported_programs_hold_torchs_operator(strict):
    program = torch.export.export(Attention(), inputs(), strict=strict)
    assert "aten.scaled_dot_product_attention" in program.graph_module.code
    other = inputs(seed=1)
    torch.testing.assert_close(program.module()(*other), expected(*other))


def test_onnx_programs_give_the_same_results():
    pytest.importorskip("onnxscript")
    from onnx.reference import ReferenceEvaluator

    program = torch.onnx.export(Attention(), inputs(), dynamo=True, verbose=False)
    other = inputs(seed=1)
    names = [value.name for value in program.model_proto.graph.input]
    out, = ReferenceEvaluator(program.model_proto).run(None, dict(zip(names, (x.numpy() for x in other))))
    torch.testing.assert_close(torch.from_numpy(out), expected(*other))


def test_make_fx_holds_our_operator():
    from torch.fx.experimental.proxy_tensor import make_fx

    graph = make_fx(Attention())(*inputs())
    assert "attention_cpp.attention" in graph.code
    other = inputs(seed=1)
    torch.testing.assert_close(graph(*other), expected(*other))


def test_explain_names_the_recorder_of_the_graph():
    reasons = []

    def attend(*arguments):
        reasons.append(drop_in.explain(*arguments))
        with pytest.raises(attention_cpp.Error, match="torch.jit"):
            drop_in.scaled_dot_product_attention(*arguments, strict=True)
        return arguments[0]

    torch.jit.trace(attend, inputs(), check_trace=False)
    assert reasons == ["left to torch: torch.jit records the call for other programs"]
