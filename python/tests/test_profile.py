"""profile(): what the package's calls report."""

import json

import numpy as np
import pytest
import torch

import attention_cpp
import attention_cpp.torch


def some_heads(*shape):
    return np.random.default_rng(0).standard_normal(shape, dtype=np.float32)


def test_calls_have_their_scopes_and_their_work():
    q = some_heads(1, 4, 64, 32)
    with attention_cpp.profile() as seen:
        with attention_cpp.profile_scope("outer"):
            attention_cpp.attention(q, q, q, causal=True)
        attention_cpp.attention(q, q, q)
    attention_cpp.attention(q, q, q)  # after the end
    assert [(span.name, span.kind) for span in seen.spans] == [
        ("attention", "operation"), ("outer", "scope"), ("attention", "operation")]
    first, outer, last = seen.spans
    assert first.parent == outer.id and last.parent == 0
    assert outer.begin <= first.begin <= first.end <= outer.end <= last.begin
    assert first.shape == "1 x 4 x 64 x 64 x 32"
    assert first.flops == 4 * (64 * 65 // 2) * 4 * 32 and last.flops == 4 * 64 * 64 * 4 * 32
    assert first.flops == attention_cpp.explain(q, q, q, causal=True).flops
    assert {(row.scope, row.operation): row.calls for row in seen.rows} == {
        ("outer", ""): 1, ("outer", "attention"): 1, ("", "attention"): 1}
    assert "outer attention 1 x 4 x 64 x 64 x 32" in seen.table() and len(seen.table(rows=1).splitlines()) == 2


def test_calls_of_torch_after_enable():
    q = torch.randn(1, 2, 40, 16, requires_grad=True)
    attention_cpp.torch.enable()
    try:
        with attention_cpp.profile() as seen:
            torch.nn.functional.scaled_dot_product_attention(q, q, q).sum().backward()
    finally:
        attention_cpp.torch.disable()
    assert {span.name for span in seen.spans} == {"attention", "attention_backward"}
    assert {span.shape for span in seen.spans} == {"1 x 2 x 40 x 40 x 16"}


def test_trace(tmp_path):
    q = some_heads(1, 2, 32, 16)
    with attention_cpp.profile() as seen, attention_cpp.profile_scope("a \"scope\""):
        attention_cpp.attention(q, q, q)
    seen.save_trace(tmp_path / "trace.json")
    events = json.loads((tmp_path / "trace.json").read_text())
    assert "main" in {event["args"]["name"] for event in events if event["ph"] == "M"}
    spans = {event["name"]: event for event in events if event["ph"] == "X"}
    assert set(spans) == {"attention", 'a "scope"'}
    outer, inner = spans['a "scope"'], spans["attention"]
    assert outer["ts"] <= inner["ts"] and inner["ts"] + inner["dur"] <= outer["ts"] + outer["dur"] + 1e-6
    assert inner["args"]["flops"] == 4 * 32 * 32 * 2 * 16


def test_an_error_ends_the_profile():
    with pytest.raises(ZeroDivisionError), attention_cpp.profile() as seen, attention_cpp.profile_scope("fails"):
        1 / 0
    assert [span.name for span in seen.spans] == ["fails"]
    with attention_cpp.profile() as outer:
        with pytest.raises(attention_cpp.Error, match="there is one at a time"), attention_cpp.profile():
            pass
        attention_cpp.attention(*[some_heads(1, 1, 4, 8)] * 3)
    assert len(outer.spans) == 1
    with pytest.raises(TypeError, match="tasks"):
        with attention_cpp.profile(tasks="yes"):
            pass
