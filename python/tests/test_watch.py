"""watch(): the weights of running models are those that eager attention returns."""

import json
import os
import shutil
import subprocess

os.environ["HF_HUB_OFFLINE"] = "1"

import pytest

pytest.importorskip("transformers")

import torch
import torch.nn.functional as F
import transformers as hf
from torch.nn.attention import flex_attention as flex

import attention_cpp
import attention_cpp.torch as drop_in
import attention_cpp.transformers
from attention_cpp._torch import masks as _masks
from attention_cpp._torch.state import state
from attention_cpp._torch.watch import STATISTICS

DECODER = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3,
           "num_attention_heads": 4, "max_position_embeddings": 64, "pad_token_id": 0, "bos_token_id": 1,
           "eos_token_id": None}
CONFIGS = {
    "bert": lambda: hf.BertConfig(vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=3,
                                  num_attention_heads=4, max_position_embeddings=64),
    "gpt2": lambda: hf.GPT2Config(vocab_size=64, n_embd=32, n_layer=3, n_head=4, n_positions=64, bos_token_id=1,
                                  eos_token_id=None, pad_token_id=0),
    "llama": lambda: hf.LlamaConfig(**DECODER, num_key_value_heads=2),
    "mistral": lambda: hf.MistralConfig(**DECODER, num_key_value_heads=2, sliding_window=4),
    "gemma2": lambda: hf.Gemma2Config(**DECODER, num_key_value_heads=2, head_dim=8, sliding_window=4,
                                      attn_logit_softcapping=2.0, query_pre_attn_scalar=8),
}
KINDS = {"bert": hf.AutoModel}


def model_of(name, implementation="sdpa"):
    torch.manual_seed(0)
    attention_cpp.transformers.register()
    kind = KINDS.get(name, hf.AutoModelForCausalLM)
    return kind.from_config(CONFIGS[name](), attn_implementation=implementation).eval()


def batch(padded=False):
    ids = torch.randint(5, 64, (2, 9), generator=torch.Generator().manual_seed(0))
    mask = torch.ones_like(ids)
    if padded:
        mask[1, :4] = 0
    return {"input_ids": ids, "attention_mask": mask}


def expected_of(name, inputs):
    with torch.no_grad():
        return model_of(name, "eager")(**inputs, output_attentions=True).attentions


def near(actual, expected):
    """Weights of at most 1, each after some ten roundings a layer."""
    return (actual - expected).abs().max() <= 256 * torch.finfo(torch.float32).eps


@pytest.mark.parametrize("implementation", ["sdpa", "attention_cpp"])
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("name", ["bert", "gpt2", "llama"])
def test_weights_are_those_of_eager_attention(name, padded, implementation):
    inputs = batch(padded)
    expected = expected_of(name, inputs)
    model = model_of(name, implementation)
    with torch.no_grad(), attention_cpp.watch(model) as seen:
        model(**inputs)
    assert len(seen.layers) == len(expected) == 3 and not seen.missed
    rows = inputs["attention_mask"].bool()
    for number, weights in enumerate(expected):
        actual = seen.weights(number)
        assert near(actual.transpose(1, 2)[rows], weights.transpose(1, 2)[rows])
        assert torch.equal(seen.weights(number, 2, range(3, 7), slice(1, 5)), actual[:, 2, 3:7, 1:5])


@pytest.mark.parametrize("name", ["mistral", "gemma2"])
def test_windows_and_softcaps_come_along(name):
    expected = expected_of(name, batch())
    model = model_of(name, "attention_cpp")
    with torch.no_grad(), attention_cpp.watch(model) as seen:
        model(**batch())
    assert all(near(seen.weights(number), weights) for number, weights in enumerate(expected))


@pytest.mark.parametrize("implementation", ["sdpa", "attention_cpp"])
@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_a_generated_text_is_one_run(name, implementation):
    inputs = {key: value[:1] for key, value in batch().items()}
    model = model_of(name, implementation)
    with attention_cpp.watch(model) as seen:
        text = model.generate(**inputs, max_new_tokens=6, min_new_tokens=6, do_sample=False)
    expected = expected_of(name, {"input_ids": text[:, :-1]})  # nothing was asked about the last token
    for number, weights in enumerate(expected):
        layer = seen.layer(number)
        assert [call.q.shape[2] for call in layer.run(-1)] == [9, 1, 1, 1, 1, 1] and len(layer.runs) == 1
        assert near(seen.weights(number), weights)
        assert near(seen.weights(number, 1, range(7, 12), range(8, 11)), weights[:, 1, 7:12, 8:11])
        assert len({call.k.untyped_storage().data_ptr() for call in layer.run(0)}) == 1  # one copy of the keys


def test_each_text_is_a_run():
    model = model_of("gpt2")
    with torch.no_grad(), attention_cpp.watch(model) as seen:
        for _ in range(2):
            model(**batch())
    assert [len(layer.runs) for layer in seen.layers] == [2, 2, 2]
    assert torch.equal(seen.weights(0, run=0), seen.weights(0, run=1))
    with pytest.raises(attention_cpp.Error, match="has 2 runs: there is no run 2"):
        seen.weights(0, run=2)


def test_layers_and_heads_are_chosen():
    model = model_of("llama")
    with torch.no_grad(), attention_cpp.watch(model) as all_:
        model(**batch())
    names = [layer.name for layer in all_.layers]
    assert names == [f"model.layers.{n}.self_attn" for n in range(3)]
    for wanted in ([1], ["*.1.*"]):
        with torch.no_grad(), attention_cpp.watch(model, layers=wanted, heads=[3, 0]) as seen:
            model(**batch())
        assert [layer.name for layer in seen.layers] == names[1:2]
        assert torch.equal(seen.weights(0), all_.weights(names[1])[:, [3, 0]])
    with pytest.raises(attention_cpp.Error, match=r"no layer 7; the recorded layers are: model.layers.1.self_attn"):
        seen.weights(7)


def test_what_is_not_there_is_an_error():
    model = model_of("gpt2")
    with torch.no_grad(), attention_cpp.watch(model) as seen:
        model(**batch())
    with pytest.raises(attention_cpp.Error, match=r"head must be in \[0, 4\), not 4"):
        seen.weights(0, 4)
    pytest.importorskip("matplotlib")
    with pytest.raises(attention_cpp.Error, match=r"batch must be in \[0, 2\), not 2"):
        seen.plot(0, 0, batch=2)
    with pytest.raises(IndexError, match=r"transformer.h.0.attn: .*heads must be in \[0, 4\), not \[7\]"), \
            attention_cpp.watch(model, heads=[7]):
        model(**batch())
    with pytest.raises(TypeError, match="must be a torch.nn.Module, not int"), attention_cpp.watch(3):
        pass


def test_nothing_changes_and_nothing_stays(monkeypatch):
    model = model_of("gpt2", "attention_cpp")
    before = F.scaled_dot_product_attention
    plain = model(**batch(), labels=batch()["input_ids"])
    gradients = torch.autograd.grad(plain.loss, list(model.parameters()))
    with attention_cpp.watch(model):
        watched = model(**batch(), labels=batch()["input_ids"])
    assert torch.equal(plain.logits, watched.logits)
    assert all(torch.equal(a, b) for a, b in zip(gradients, torch.autograd.grad(watched.loss, model.parameters())))
    assert F.scaled_dot_product_attention is before
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
    with pytest.raises(KeyError), attention_cpp.watch(model):
        raise KeyError
    assert F.scaled_dot_product_attention is before and not state.observers
    with drop_in.enabled(strict=True):
        enabled = F.scaled_dot_product_attention
        with attention_cpp.watch(model):
            pass
        assert F.scaled_dot_product_attention is enabled and state.enabled.strict


def test_a_call_that_fails_is_forgotten():
    model = model_of("gpt2")
    with torch.no_grad(), attention_cpp.watch(model) as seen:
        with pytest.raises(IndexError):
            model(torch.tensor([[99]]))
        model.transformer.h[1].attn(torch.randn(1, 4, 32))
    assert [layer.name for layer in seen.layers] == ["transformer.h.1.attn"]
    assert not seen._running


def test_dropout_is_not_part_of_weights():
    q, k, v = (torch.randn(1, 2, 5, 4) for _ in range(3))

    class Attend(torch.nn.Module):
        def forward(self, dropout):
            return F.scaled_dot_product_attention(q, k, v, dropout_p=dropout)

    with attention_cpp.watch(Attend()) as seen:
        for dropout in (0.0, 0.5):
            Attend()(dropout)
    assert torch.equal(seen.weights("", run=0), seen.weights("", run=1))


def test_what_torch_computes_is_named():
    class Attend(torch.nn.Module):
        def forward(self, x):
            return F.scaled_dot_product_attention(x, x, x)

    with pytest.warns(UserWarning, match="recorded no attention of this Attend: .*heads are wider than 1024"), \
            attention_cpp.watch(Attend()) as seen:
        Attend()(torch.randn(1, 1, 2, 1025))
    assert seen.missed == ["heads are wider than 1024"]
    model = model_of("gpt2", "eager")
    with pytest.warns(UserWarning, match='no attention of this GPT2LMHeadModel: .*attn_implementation="sdpa"'), \
            attention_cpp.watch(model):
        model(**batch())


class Prefix(torch.nn.Module):
    """Attention of 40 tokens, of which all see the first 12: by a mask, or by flex_attention."""

    def __init__(self, flex, prefix):
        super().__init__()
        self.flex, self.prefix = flex, prefix

    def forward(self, x):
        i = torch.arange(40)
        if not self.flex:
            return F.scaled_dot_product_attention(x, x, x, (i <= i[:, None]) | (i < self.prefix))
        block_mask = flex.create_block_mask(lambda b, h, i, j: (j <= i) | (j < self.prefix), None, None, 40, 40, "cpu")
        return flex.flex_attention(x, x, x, block_mask=block_mask)


def test_calls_that_are_cut_are_seen_whole_or_named(monkeypatch):
    monkeypatch.setattr(_masks, "WORTH_READING", 0)
    x, i = torch.randn(1, 2, 40, 8), torch.arange(40)
    for by_flex, prefix in ((False, 12), (False, 0), (True, 0)):
        model = Prefix(by_flex, prefix)
        with attention_cpp.watch(model) as seen:
            model(x)
        allowed = (i <= i[:, None]) | (i < prefix)
        expected = torch.softmax((x @ x.mT / 8**0.5).masked_fill(~allowed, -torch.inf), -1)
        assert near(seen.weights(0), expected)
        assert near(seen.statistics()["entropy"][0], torch.special.entr(expected).sum(-1))
        assert len(seen._layer("").runs[-1]) == 1
    model = Prefix(True, 12)
    with pytest.warns(UserWarning, match="needs several calls"), attention_cpp.watch(model):
        model(x)


@pytest.mark.parametrize("implementation", ["sdpa", "attention_cpp"])
def test_statistics_are_those_of_the_weights(implementation):
    model = model_of("llama", implementation)
    inputs = {key: value[:1] for key, value in batch().items()}
    with attention_cpp.watch(model) as seen:
        model.generate(**inputs, max_new_tokens=4, min_new_tokens=4, do_sample=False)
    weights = torch.stack([seen.weights(number) for number in range(3)])
    statistics = seen.statistics((*STATISTICS, "column_mass"))
    n = weights.shape[-1]
    distance = (torch.arange(n)[:, None] - torch.arange(n)).abs()
    expected = {"entropy": torch.special.entr(weights).sum(-1), "maximum": weights.amax(-1),
                "distance": (weights * distance).sum(-1), "first": weights[..., 0],
                "self": weights.diagonal(dim1=-2, dim2=-1), "column_mass": weights.sum(-2),
                "previous": F.pad(weights.diagonal(-1, -2, -1), (1, 0))}
    assert statistics.keys() == expected.keys()
    for name, value in expected.items():
        assert statistics[name].shape == value.shape == (3, 1, 4, n)
        assert (statistics[name] - value).abs().max() <= 64 * n * torch.finfo(torch.float32).eps, name
    assert torch.equal(seen.statistics(["self"], layers=[2])["self"], statistics["self"][2:])
    table = seen._repr_html_()
    assert table.count("<tr>") == 1 + 3 * 4 and f"<td>{expected['entropy'][1, 0, 2].mean():.3f}</td>" in table


@pytest.mark.parametrize("name, implementation", [("gpt2", "sdpa"), ("mistral", "attention_cpp")])
def test_a_text_is_saved(tmp_path, name, implementation):
    safetensors = pytest.importorskip("safetensors")
    model = model_of(name, implementation)
    inputs = {key: value[:1] for key, value in batch().items()}
    with attention_cpp.watch(model, heads=[1, 2]) as seen:
        model.generate(**inputs, max_new_tokens=3, min_new_tokens=3, do_sample=False)
    for second in (0, 11, -1):
        with pytest.raises(attention_cpp.Error, match=rf"second must be in \[1, \d+\), not {second}"):
            seen.save(tmp_path / "seen.safetensors", second=second)
    seen.save(tmp_path / "seen.safetensors", tokens=list("abcdefghijk"), second=3)
    with safetensors.safe_open(tmp_path / "seen.safetensors", "pt") as file:
        assert json.loads(file.metadata()["tokens"]) == list("abcdefghijk") and file.metadata()["second"] == "3"
        options = json.loads(file.metadata()["attention"])
        assert sorted(options) == sorted(layer.name for layer in seen.layers)
        for number, layer in enumerate(seen.layers):
            q, k, lse = (file.get_tensor(f"{layer.name}.{part}")[None] for part in ("q", "k", "lse"))
            assert torch.equal(attention_cpp.attention_weights(q, k, lse, **options[layer.name]), seen.weights(number))


def test_a_page_contains_layers_tokens_and_title(tmp_path):
    """The extension module makes it, without safetensors and the program."""
    model = model_of("gpt2")
    with torch.no_grad(), attention_cpp.watch(model) as seen:
        model(**{key: value[:1] for key, value in batch().items()})
    seen.page(tmp_path / "page.html", tokens=[f"<{n}>" for n in range(9)], second=4)
    page = (tmp_path / "page.html").read_text()
    assert "transformer.h.1.attn" in page and "<script" in page and "<8>" not in page and '"second":4' in page
    assert '"title":"page"' in page
    for second in (0, 9):
        with pytest.raises(attention_cpp.Error, match=rf"second must be in \[1, 9\), not {second}"):
            seen.page(tmp_path / "other.html", second=second)
    with pytest.raises(attention_cpp.Error, match="there are 2 tokens and 9 keys"):
        seen.page(tmp_path / "other.html", tokens=["a", "b"])
    with pytest.raises(FileNotFoundError):
        seen.page(tmp_path / "nowhere" / "page.html")
    assert [path.name for path in tmp_path.iterdir()] == ["page.html"]


def test_the_page_is_that_of_the_program(tmp_path):
    """Of a generated text, whose queries are not all tokens of one call, and of a long one, whose page is pooled."""
    program = os.environ.get("ATTN_PROGRAM", "attn")
    if shutil.which(program) is None:
        pytest.skip("the program attn is not there")
    pytest.importorskip("safetensors")
    model = model_of("mistral", "attention_cpp")
    with attention_cpp.watch(model, layers=[0], heads=[1]) as seen:
        model.generate(**{key: value[:1] for key, value in batch().items()}, max_new_tokens=3, min_new_tokens=3,
                       do_sample=False)
    x = torch.randn(1, 1, 8200, 4)
    with attention_cpp.watch(torch.nn.Identity()) as long:
        attention_cpp.torch.attention(x, x, x, causal=True)
    for one in (seen, long):
        one.save(tmp_path / "page")
        subprocess.run([program, "see", "page", "--html", "theirs.html", "--no-terminal"], cwd=tmp_path, check=True,
                       capture_output=True)
        one.page(tmp_path / "page.html")
        assert (tmp_path / "page.html").read_bytes() == (tmp_path / "theirs.html").read_bytes()


def test_masks_are_not_saved(tmp_path):
    model = model_of("gpt2")
    with torch.no_grad(), attention_cpp.watch(model) as seen:
        model(**batch(padded=True))
    with pytest.raises(attention_cpp.Error, match="0.attn has mask, which neither a file nor a page can store"):
        seen.save(tmp_path / "seen.safetensors")
    assert not list(tmp_path.iterdir())


def test_plot_draws_the_weights():
    pyplot = pytest.importorskip("matplotlib.pyplot")
    model = model_of("gpt2")
    with torch.no_grad(), attention_cpp.watch(model) as seen:
        model(**batch())
    axes = seen.plot(1, 2, batch=1, rows=range(2, 8), columns=range(1, 5), tokens=[f"t{n}" for n in range(9)])
    drawn = axes.images[0]
    assert torch.equal(torch.as_tensor(drawn.get_array()), seen.weights(1, 2, range(2, 8), range(1, 5))[1])
    assert drawn.get_extent() == [0.5, 4.5, 7.5, 1.5]
    assert [label.get_text() for label in axes.get_xticklabels()] == ["t1", "t2", "t3", "t4"]
    assert axes.get_title() == "transformer.h.1.attn, head 2"
    pyplot.close(axes.figure)


@pytest.mark.parametrize("name", ["bert", "llama"])
def test_heads_of_a_watched_model(name):
    """The measures are those of the weights that eager attention returns."""
    inputs = {"input_ids": batch()["input_ids"]}
    expected = expected_of(name, inputs)
    model = model_of(name)
    with torch.no_grad(), attention_cpp.watch(model) as seen:
        model(**inputs)
    table = seen.heads(inputs["input_ids"])
    assert len(table["head"]) == 12
    for layer, weights in enumerate(expected):
        rows = slice(4 * layer, 4 * layer + 4)
        for measure, diagonal in (("previous", -1), ("next", 1), ("self", 0)):
            means = weights.diagonal(diagonal, -2, -1).mean((0, -1))
            assert near(torch.from_numpy(table[measure][rows]), means.double()), measure
        assert near(torch.from_numpy(table["confidence"][rows]), weights.amax(-1).mean((0, -1)).double())
    text = [(q[:1], k[:1], lse[:1], options) for q, k, lse, options in seen.inputs()]
    mixed = torch.eye(9)
    for weights in expected:
        mixed = (weights[0].mean(0) + torch.eye(9)) / 2 @ mixed
    assert near(torch.from_numpy(attention_cpp.attention_rollout(text, 5)), mixed[5].double())


def test_heads_of_a_generated_text():
    inputs = {"input_ids": batch()["input_ids"]}
    model = model_of("llama")
    with torch.no_grad(), attention_cpp.watch(model) as seen:
        ids = model.generate(**inputs, max_new_tokens=4, do_sample=False)
    with torch.no_grad(), attention_cpp.watch(model) as whole:
        model(input_ids=ids[:, :-1])
    tables = [one.heads(ids[:, :-1]) for one in (seen, whole)]
    for measure, values in tables[0].items():
        if measure not in ("offset", "positional"):  # ties of weights that differ by a rounding
            assert abs(torch.from_numpy(values - tables[1][measure])).nan_to_num().max() < 1e-5, measure


def test_nested_watches_see_what_their_own_models_compute():
    first, second = model_of("gpt2"), model_of("llama")
    with torch.no_grad(), attention_cpp.watch(first) as outer:
        first(**batch())
        with attention_cpp.watch(second) as inner, attention_cpp.watch(first, layers=[0]) as again:
            second(**batch())
            first(**batch())
        first(**batch())
    assert [len(layer.runs) for layer in outer.layers] == [3, 3, 3] and "transformer" in outer.layers[0].name
    assert [len(layer.runs) for layer in inner.layers] == [1, 1, 1] and "self_attn" in inner.layers[0].name
    assert [len(layer.runs) for layer in again.layers] == [1] and not (outer.missed or inner.missed or again.missed)
    assert torch.equal(outer.weights(0, run=1), again.weights(0))


def test_nested_watches_name_what_torch_computes():
    class Left(torch.nn.Module):
        def forward(self, x):
            return F.scaled_dot_product_attention(x, x, x)

    first, second, x = Left(), Left(), torch.zeros(1, 1, 2, 2, dtype=torch.complex64)
    with pytest.warns(UserWarning, match="recorded no attention of this Left: query is torch.complex64"):
        with attention_cpp.watch(first) as outer:
            with pytest.warns(UserWarning, match="recorded no attention of this Left: it called no scaled_dot_product"):
                with attention_cpp.watch(second) as inner:
                    with pytest.raises(RuntimeError):
                        first(x)
    assert outer.missed and not inner.missed


def test_repr_names_what_was_recorded():
    model = model_of("gpt2")
    with torch.no_grad(), attention_cpp.watch(model) as seen:
        assert repr(seen) == "<attention_cpp.Seen: no attention>"
        model(**batch())
    assert repr(seen) == ("<attention_cpp.Seen: 3 layers (transformer.h.0.attn, transformer.h.1.attn, "
                          "transformer.h.2.attn), 1 runs; the last of 2 texts, 4 heads, 9 keys>")


def test_statistics_are_of_a_layer_as_weights_are():
    model = model_of("gpt2")
    with torch.no_grad(), attention_cpp.watch(model) as seen:
        model(**batch())
    every = seen.statistics()
    for layer in (1, "transformer.h.1.attn"):
        one = seen.statistics(layer=layer)
        part = seen.statistics(layer=layer, head=2, rows=range(3, 7))
        weights = seen.weights(layer=layer, head=2, rows=range(3, 7))
        for name, values in every.items():
            assert torch.equal(one[name], values[1]) and torch.equal(part[name], values[1, :, 2, 3:7])
        assert near(part["maximum"], weights.amax(-1)) and part["maximum"].shape == weights.shape[:2]
    received = seen.statistics(["column_mass"], layer=1, head=0)["column_mass"]
    assert near(received, seen.weights(1, 0).sum(1))
    for wrong, message in (({"layer": 7}, "no layer 7"), ({"layer": 0, "head": 4}, r"head must be in \[0, 4\)"),
                           ({"head": 1}, "give layer too"), ({"layer": 0, "layers": [0]}, "not both"),
                           ({"layer": 0, "rows": 9}, "rows must be")):
        with pytest.raises(attention_cpp.Error, match=message):
            seen.statistics(**wrong)


@pytest.mark.parametrize("wrong", [{"layers": 3}, {"layers": "*.1.*"}, {"heads": "text"}, {"heads": [0.5]}])
def test_what_is_watched_is_a_list(wrong):
    with pytest.raises(TypeError, match=rf"\[watch\] {next(iter(wrong))} must be"), \
            attention_cpp.watch(model_of("gpt2"), **wrong):
        pass
