"""packed_encoder(): the same results as with padding, for the tokens that exist."""

import os

os.environ["HF_HUB_OFFLINE"] = "1"

import pytest

pytest.importorskip("transformers")

import torch
import transformers as hf

import attention_cpp
import attention_cpp.transformers as integration
from attention_cpp._torch import autograd

SIZES = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
         "max_position_embeddings": 64}
CONFIGS = {
    "bert": lambda: hf.BertConfig(**SIZES),
    "roberta": lambda: hf.RobertaConfig(**SIZES),
    "electra": lambda: hf.ElectraConfig(**SIZES, embedding_size=16),
    "distilbert": lambda: hf.DistilBertConfig(vocab_size=64, dim=32, hidden_dim=48, n_layers=2, n_heads=4),
}
PATTERNS = {
    "right": [[1] * 9, [1] * 4 + [0] * 5, [1] + [0] * 8],
    "left": [[1] * 9, [0] * 5 + [1] * 4, [0] * 8 + [1]],
    "holes": [[1, 0, 1, 1, 0, 1, 1, 1, 0], [1] * 9, [0, 1, 0, 1, 0, 0, 0, 0, 1]],
}


@pytest.fixture(autouse=True)
def registered():
    torch.manual_seed(0)
    integration.register(strict=True)


def models(name, kind=hf.AutoModel):
    """A model in float64, and its packed copy."""
    plain = kind.from_config(CONFIGS[name](), attn_implementation="attention_cpp").double().eval()
    packed = kind.from_config(CONFIGS[name](), attn_implementation="attention_cpp").double().eval()
    packed.load_state_dict(plain.state_dict())
    return plain, integration.packed_encoder(packed)


def batch(pattern):
    return torch.randint(5, 64, (3, 9)), torch.tensor(PATTERNS[pattern])


def close(actual, expected):
    """Two sums of at most 48 x 2 numbers in another order, twice a layer."""
    return (actual - expected).abs().max() <= 1024 * torch.finfo(torch.float64).eps * expected.abs().max()


@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("name", CONFIGS)
def test_states_are_the_same_where_tokens_are(name, pattern):
    plain, packed = models(name)
    ids, mask = batch(pattern)
    expected, actual = (model(ids, attention_mask=mask).last_hidden_state for model in (plain, packed))
    assert close(actual[mask.bool()], expected[mask.bool()])
    assert not actual[~mask.bool()].any()


@pytest.mark.parametrize("name", CONFIGS)
def test_a_training_step_is_the_same(name):
    plain, packed = models(name, hf.AutoModelForSequenceClassification)
    ids, mask = batch("right")
    results = []
    for model in (plain, packed):
        loss = model(ids, attention_mask=mask, labels=torch.tensor([0, 1, 0])).loss
        loss.backward()
        results.append([loss, *[p.grad for p in model.parameters() if p.grad is not None]])
    assert len(results[0]) == len(results[1]) > 10
    largest = max(gradient.abs().max() for gradient in results[0])
    assert all((a - b).abs().max() <= 1024 * torch.finfo(a.dtype).eps * largest for a, b in zip(*results, strict=True))


def test_layers_see_the_tokens_that_exist_alone(monkeypatch):
    _, packed = models("bert")
    ids, mask = batch("right")
    seen = []
    attend = autograd.attention_output

    def watched(q, k, v, options, simple):
        seen.append((tuple(q.shape), options.cu_seqlens_q.tolist(), options.cu_seqlens_k.tolist()))
        return attend(q, k, v, options, simple)

    monkeypatch.setattr(autograd, "attention_output", watched)
    packed(ids, attention_mask=mask)
    assert seen == [((1, 4, 14, 8), [0, 9, 13, 14], [0, 9, 13, 14])] * 2


@pytest.mark.parametrize("asked", ["hidden_states", "attentions"])
def test_what_single_layers_give_is_padded(asked):
    plain, packed = models("bert")
    ids, mask = batch("right")
    expected, actual = (model(ids, attention_mask=mask, **{f"output_{asked}": True})[asked]
                        for model in (plain, packed))
    assert len(expected) == len(actual) > 1
    assert all(torch.equal(a, b) for a, b in zip(expected, actual))


def test_no_padding_is_no_change():
    plain, packed = models("roberta")
    ids, _ = batch("right")
    for options in ({}, {"attention_mask": torch.ones_like(ids)}):
        assert torch.equal(*(model(ids, **options).last_hidden_state for model in (plain, packed)))


def test_a_tuple_is_padded_too():
    plain, packed = models("bert")
    ids, mask = batch("right")
    expected, actual = (model(ids, attention_mask=mask, return_dict=False) for model in (plain, packed))
    assert close(actual[0][mask.bool()], expected[0][mask.bool()]) and close(actual[1], expected[1])


def test_a_model_in_training_stays_so():
    model = hf.AutoModel.from_config(CONFIGS["bert"](), attn_implementation="attention_cpp").train()
    assert integration.packed_encoder(model).encoder.training


def test_models_that_cannot_be_packed(monkeypatch):
    with pytest.raises(TypeError, match="must be a PreTrainedModel, not int"):
        integration.packed_encoder(3)
    with monkeypatch.context() as patch:
        patch.setattr(hf.AttentionInterface, "valid_keys", lambda *_: ["sdpa"])
        with pytest.raises(attention_cpp.Error, match=r"call register\(\) first"):
            integration.packed_encoder(hf.AutoModel.from_config(CONFIGS["bert"]()))
    gpt2 = hf.AutoModel.from_config(hf.GPT2Config(n_embd=32, n_layer=2, n_head=4))
    with pytest.raises(attention_cpp.Error, match="GPT2Model has 0 modules that run a list"):
        integration.packed_encoder(gpt2)

    class Neighbours(torch.nn.Module):
        """A layer that looks at the row before."""

        def forward(self, hidden_states, *_, **__):
            return hidden_states + hidden_states.roll(1, 1)

    model = hf.AutoModel.from_config(CONFIGS["bert"]())
    before = model.config._attn_implementation
    model.encoder.layer.append(Neighbours())
    with pytest.raises(attention_cpp.Error, match="BertModel do more than attention between tokens"):
        integration.packed_encoder(model)
    assert "forward" not in vars(model.encoder) and model.config._attn_implementation == before


def test_a_second_call_changes_nothing_and_there_is_a_way_back():
    model = hf.AutoModel.from_config(CONFIGS["bert"](), attn_implementation="sdpa").eval()
    ids, mask = batch("right")
    before = model(ids, attention_mask=mask).last_hidden_state
    assert integration.packed_encoder(model, False) is model and "forward" not in vars(model.encoder)
    assert integration.packed_encoder(model) is model  # in place
    run = vars(model.encoder)["forward"]
    packed = model(ids, attention_mask=mask).last_hidden_state
    assert not packed[~mask.bool()].any()
    assert integration.packed_encoder(model) is model and vars(model.encoder)["forward"] is run
    assert torch.equal(model(ids, attention_mask=mask).last_hidden_state, packed)
    assert integration.packed_encoder(model, False) is model and "forward" not in vars(model.encoder)
    assert model.config._attn_implementation == "sdpa"
    assert torch.equal(model(ids, attention_mask=mask).last_hidden_state, before)


def test_modernbert_is_refused_clearly():
    config = hf.ModernBertConfig(vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=2,
                                 num_attention_heads=4, pad_token_id=0, cls_token_id=1, sep_token_id=2)
    model = hf.AutoModel.from_config(config, attn_implementation="sdpa")
    with pytest.raises(attention_cpp.Error, match="positions or windows too, as ModernBERT, keep their padding"):
        integration.packed_encoder(model)
    assert model.config._attn_implementation == "sdpa"
