"""attention_cpp.transformers beside transformers' own eager attention, on tiny random models."""

import copy
import os
import warnings

os.environ["HF_HUB_OFFLINE"] = "1"

import pytest

pytest.importorskip("transformers")

import torch
import transformers as hf
from torch.overrides import TorchFunctionMode
from transformers import masking_utils

import attention_cpp
import attention_cpp.transformers as integration
from attention_cpp._torch import masks as _masks
from attention_cpp._transformers.masks import Mask, refuse_dense
from attention_cpp.torch import mask_counts

LENGTHS = (11, 7)  # of the sequences of a padded batch
L = max(LENGTHS)
NAME = "attention_cpp"

decoder = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
           "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64, "pad_token_id": 0,
           "bos_token_id": 1, "eos_token_id": None}
CONFIGS = {
    "bert": lambda: hf.BertConfig(vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=2,
                                  num_attention_heads=4, max_position_embeddings=64),
    "gpt2": lambda: hf.GPT2Config(vocab_size=64, n_embd=32, n_layer=2, n_head=4, n_positions=64, bos_token_id=1,
                                  eos_token_id=None, pad_token_id=0),
    "llama": lambda: hf.LlamaConfig(**decoder),
    "qwen2": lambda: hf.Qwen2Config(**decoder),
    "qwen2_moe": lambda: hf.Qwen2MoeConfig(**decoder, moe_intermediate_size=16, shared_expert_intermediate_size=16,
                                           num_experts=4, num_experts_per_tok=2, use_sliding_window=True,
                                           sliding_window=4, max_window_layers=0),
    "qwen3": lambda: hf.Qwen3Config(**decoder, head_dim=16),
    "mistral": lambda: hf.MistralConfig(**decoder, sliding_window=4),
    "gemma2": lambda: hf.Gemma2Config(**decoder, head_dim=16, sliding_window=4, attn_logit_softcapping=2.0,
                                      query_pre_attn_scalar=16),
    "gpt_oss": lambda: hf.GptOssConfig(**decoder, head_dim=16, num_local_experts=4, num_experts_per_tok=2,
                                       sliding_window=4),
    "modernbert": lambda: hf.ModernBertConfig(vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=3,
                                              num_attention_heads=4, local_attention=6, pad_token_id=0,
                                              bos_token_id=1, eos_token_id=2, cls_token_id=1, sep_token_id=2),
    "t5": lambda: hf.T5Config(vocab_size=64, d_model=32, d_kv=8, d_ff=48, num_layers=2, num_heads=4,
                              decoder_start_token_id=0, dropout_rate=0.0, eos_token_id=None),
    "vit": lambda: hf.ViTConfig(hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
                                image_size=16, patch_size=4),
    "whisper": lambda: hf.WhisperConfig(vocab_size=64, d_model=32, encoder_layers=2, decoder_layers=2,
                                        encoder_attention_heads=4, decoder_attention_heads=4, encoder_ffn_dim=48,
                                        decoder_ffn_dim=48, num_mel_bins=8, max_source_positions=12,
                                        max_target_positions=64, pad_token_id=0, bos_token_id=1, eos_token_id=None,
                                        decoder_start_token_id=1),
}
CLASSES = {"bert": hf.AutoModelForMaskedLM, "modernbert": hf.AutoModelForMaskedLM, "t5": hf.AutoModelForSeq2SeqLM,
           "vit": hf.AutoModelForImageClassification, "whisper": hf.AutoModelForSpeechSeq2Seq}
TEXT = [name for name in CONFIGS if name not in ("vit", "whisper", "t5")]
DECODERS = [name for name in TEXT if "bert" not in name]
PADDINGS = ["none", "right", "left"]


class Float64(TorchFunctionMode):
    """Lets no model round float64 to float32, as norms and softmaxes do on purpose: equality can then be exact."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        wide = args and isinstance(args[0], torch.Tensor) and args[0].dtype == torch.float64
        if wide and (func is torch.Tensor.float or func is torch.Tensor.to and torch.float32 in args[1:]):
            return args[0]
        if wide and kwargs.get("dtype") is torch.float32:
            kwargs["dtype"] = None if func is torch.nn.functional.softmax else torch.float64
        return func(*args, **kwargs)


@pytest.fixture(autouse=True)
def registered():
    """A dense mask is an error in every test that does not say otherwise."""
    torch.manual_seed(0)
    integration.register(strict=True)


def make(name, dtype=torch.float64):
    """The same model with eager attention and with ours; weights large enough that attention is not uniform."""
    torch.manual_seed(1)
    model = CLASSES.get(name, hf.AutoModelForCausalLM).from_config(CONFIGS[name](), attn_implementation="eager")
    if hasattr(model.config, "_experts_implementation"):
        model.set_experts_implementation("eager")
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            if parameter.dim() > 1 or "sinks" in key:
                parameter.normal_(0, 0.3)
    model = model.to(dtype).eval()  # parameters are float32 numbers: the library holds sinks as such
    ours = copy.deepcopy(model)
    ours.set_attn_implementation(NAME)
    assert ours.config._attn_implementation == NAME
    return model, ours


def make_mask(padding):
    """[2, L] of the batch, 1 = a token."""
    mask = torch.zeros(2, L, dtype=torch.long)
    for row, count in enumerate(LENGTHS):
        mask[row, slice(count) if padding == "right" else slice(L - count, L)] = 1
    return mask


def make_batch(name, padding):
    """(arguments of the model, which rows of its result count)."""
    if name == "vit":
        return {"pixel_values": torch.randn(2, 3, 16, 16, dtype=torch.float64)}, torch.ones(2, dtype=torch.bool)
    ids = torch.randint(3, 64, (2, L))
    mask = torch.ones(2, L, dtype=torch.long) if padding == "none" else make_mask(padding)
    ids = ids * mask
    batch = {"input_ids": ids} if padding == "none" else {"input_ids": ids, "attention_mask": mask}
    if name in DECODERS and padding == "left":
        batch["position_ids"] = (mask.cumsum(-1) - 1).clamp(min=0)
    if name in ("t5", "whisper"):
        batch["decoder_input_ids"] = torch.randint(3, 64, (2, L)) * mask
        if padding != "none":
            batch["decoder_attention_mask"] = mask
    if name == "whisper":
        batch.pop("input_ids")
        batch.pop("attention_mask", None)
        batch["input_features"] = torch.randn(2, 8, 24, dtype=torch.float64)
    return batch, mask.bool()


def run(model, batch, rows):
    """(logits of the rows, gradients of all parameters of a loss over them)."""
    model.zero_grad()
    with Float64():
        logits = model(**batch).logits[rows]
        generator = torch.Generator().manual_seed(2)
        (logits * torch.randn(logits.shape, generator=generator, dtype=logits.dtype)).sum().backward()
    return logits.detach(), {key: p.grad for key, p in model.named_parameters() if p.grad is not None}


def close(actual, expected, tolerance=1e-9):
    torch.testing.assert_close(actual, expected, rtol=tolerance, atol=tolerance)


CASES = [(name, padding) for name in CONFIGS for padding in PADDINGS if name != "vit" or padding == "none"]


@pytest.mark.parametrize("name, padding", CASES)
def test_logits_and_gradients_are_those_of_eager(name, padding):
    model, ours = make(name)
    batch, rows = make_batch(name, padding)
    expected, expected_gradients = run(model, batch, rows)
    actual, gradients = run(ours, batch, rows)
    assert actual.std() > 1e-3
    close(actual, expected)
    assert gradients.keys() == expected_gradients.keys()
    for key, gradient in gradients.items():
        scale = max(1.0, expected_gradients[key].abs().max().item())
        close(gradient / scale, expected_gradients[key] / scale)


@pytest.mark.parametrize("name", ["llama", "gpt_oss"])
def test_holes_in_the_padding_mask(name):
    model, ours = make(name)
    batch, _ = make_batch(name, "none")
    mask = torch.ones(2, L, dtype=torch.long)
    mask[0, 4:6] = 0
    mask[1, 0] = 0
    batch["attention_mask"] = mask
    close(run(ours, batch, mask.bool())[0], run(model, batch, mask.bool())[0])


@pytest.mark.parametrize("name, padding", CASES)
def test_output_attentions_are_those_of_eager(name, padding):
    model, ours = make(name)
    batch, rows = make_batch(name, padding)
    with torch.no_grad(), Float64():
        expected, actual = (m(**batch, output_attentions=True) for m in (model, ours))
        assert not any("attentions" in key for key in ours(**batch))
    keys = [key for key in expected if "attentions" in key and expected[key]]
    assert keys
    for key in keys:
        assert len(actual[key]) == len(expected[key])
        for a, e in zip(actual[key], expected[key]):
            assert a.shape == e.shape and a.dtype == e.dtype
            if a.shape[2] == rows.shape[-1] and name != "vit":
                a, e = a.transpose(1, 2)[rows], e.transpose(1, 2)[rows]
            close(a, e)


@pytest.mark.parametrize("name", ["llama", "gemma2", "gpt_oss", "t5"])
def test_a_loss_on_attentions_trains_the_model(name):
    """As in the distillation of attention: the gradients of every parameter are those of eager attention."""
    batch, _ = make_batch(name, "none")
    gradients = []
    for model in make(name):
        with Float64():
            result = model(**batch, output_attentions=True)
        maps = result.decoder_attentions if name == "t5" else result.attentions
        (result.logits.square().mean() + sum(p.square().sum() for p in maps)).backward()
        gradients.append({key: x.grad for key, x in model.named_parameters() if x.grad is not None})
    assert gradients[0].keys() == gradients[1].keys()
    for key, expected in gradients[0].items():
        close(gradients[1][key], expected)


def generate(model, **arguments):
    with torch.no_grad(), Float64():
        return model.generate(**arguments, max_new_tokens=12, min_new_tokens=12, do_sample=False, pad_token_id=0)


@pytest.mark.parametrize("cache", ["dynamic", "static"])
@pytest.mark.parametrize("padding", ["none", "left"])
@pytest.mark.parametrize("name", DECODERS)
def test_generation_with_a_cache(name, padding, cache):
    model, ours = make(name)
    ids = torch.randint(3, 64, (2, L))
    mask = torch.ones_like(ids) if padding == "none" else make_mask("left")
    arguments = {"input_ids": ids * mask, "attention_mask": mask, "cache_implementation": cache}
    expected = generate(model, **arguments)
    actual = generate(ours, **arguments)
    assert expected.shape == (2, L + 12) and len(expected[:, L:].unique()) > 1
    assert torch.equal(actual, expected)


@pytest.mark.parametrize("name", ["t5", "whisper"])
def test_generation_of_encoder_decoders(name):
    model, ours = make(name)
    batch, _ = make_batch(name, "right")
    arguments = {key: value for key, value in batch.items() if "decoder" not in key}
    expected = generate(model, **arguments)
    assert len(expected.unique()) > 2
    assert torch.equal(generate(ours, **arguments), expected)


@pytest.mark.parametrize("name", ["llama", "mistral"])
def test_chunks_of_a_prompt_continue_a_cache(name):
    model, ours = make(name)
    ids = torch.randint(3, 64, (2, L))
    with torch.no_grad(), Float64():
        expected = model(ids).logits
        cache, logits = hf.DynamicCache(config=ours.config), []
        for chunk in ids.split(3, dim=1):
            logits.append(ours(chunk, past_key_values=cache).logits)
    close(torch.cat(logits, 1), expected)


# ------------------------------------------------------------------------------------------------------ masks alone

def qkv(Lq, Lk, B=2, H=4, Hk=2, D=8):
    return [torch.randn(B, heads, n, D, dtype=torch.float64) for heads, n in ((H, Lq), (Hk, Lk), (Hk, Lk))]


class Layer(torch.nn.Module):
    is_causal = True


class Encoder(torch.nn.Module):
    is_causal = False


PATTERNS = {
    "causal": masking_utils.causal_mask_function,
    "window": masking_utils.sliding_window_causal_mask_function(3),
    "bidirectional": masking_utils.bidirectional_mask_function,
    "both sides": masking_utils.sliding_window_bidirectional_mask_function(2),
}
# (Lq, Lk, q_offset, kv_offset): training, continued, one query, static cache while it fills, sliding caches
PLACES = [(9, 9, 0, 0), (4, 9, 5, 0), (1, 9, 8, 0), (5, 9, 0, 0), (4, 9, 2, 0), (1, 9, 3, 0), (4, 6, 5, 3),
          (3, 9, torch.tensor(4), 0), (4, 4, 0, 0), (5, 3, 0, 0)]


@pytest.mark.parametrize("place", PLACES, ids=str)
@pytest.mark.parametrize("padding", ["unknown", "none", "right", "left", "holes", "short"])
@pytest.mark.parametrize("pattern", PATTERNS)
def test_masks_mean_what_transformers_own_mean(pattern, padding, place):
    Lq, Lk, q_offset, kv_offset = place
    total = Lk + kv_offset
    known = None if padding == "unknown" else torch.ones(2, total, dtype=torch.bool)
    if padding == "right":
        known[1, total - 2:] = False
    elif padding == "left":
        known[1, :kv_offset + 2] = False
    elif padding == "holes":
        known[0, kv_offset + 1] = known[1, kv_offset] = False
    elif padding == "short":
        known = known[:, :total - 1]
    arguments = {"batch_size": 2, "q_length": Lq, "kv_length": Lk, "q_offset": q_offset, "kv_offset": kv_offset,
                 "mask_function": PATTERNS[pattern], "attention_mask": known}
    dense = masking_utils.sdpa_mask(**arguments, allow_is_causal_skip=False)
    mask = integration.attention_cpp_mask(**arguments, allow_is_bidirectional_skip=True, on_dense=refuse_dense)
    if isinstance(q_offset, torch.Tensor):
        q_offset += Lq  # as a static cache does between the mask and the layers
        place[2].sub_(Lq)
    if isinstance(mask, Mask):
        assert mask.shape == dense.shape and mask.dtype == torch.bool and mask.made is None
    else:
        assert mask.untyped_storage().nbytes() <= 2 * total
    q, k, v = qkv(Lq, Lk)
    module = Layer() if pattern in ("causal", "window") else Encoder()
    out, _ = integration.attention_cpp_forward(module, q, k, v, mask)
    expected, _ = integration.attention_cpp_forward(module, q, k, v, dense)
    assert out.shape == (2, Lq, 4, 8) and out.is_contiguous()
    close(out, expected, 1e-12)
    if Lq == 1:
        assert torch.equal(mask & True, dense)  # of n elements
    elif isinstance(mask, Mask):  # who computes with it needs the whole
        with pytest.raises(attention_cpp.Error, match="dense mask is needed: the model computes with its mask"):
            mask[..., 0]


def test_masks_take_no_memory_until_a_model_computes_with_them():
    """And are then those of sdpa, or of eager attention for models that have no sdpa."""
    integration.register()
    padding = torch.ones(2, 9, dtype=torch.bool)
    padding[1, :3] = False
    for function, skip in ((PATTERNS[name], skip) for name in PATTERNS for skip in (True, False)):
        arguments = dict(mask_function=function, attention_mask=padding, allow_is_causal_skip=skip, dtype=torch.float64)
        for config, whole_mask in ((make("llama")[0].config, masking_utils.sdpa_mask),
                                   (make("gemma2")[0].config, masking_utils.eager_mask)):
            mask = integration.attention_cpp_mask(2, 9, 9, config=config, **arguments)
            whole = whole_mask(2, 9, 9, **arguments)
            assert mask.made is None and mask.shape == whole.shape and mask.dtype == whole.dtype
            assert torch.equal(mask[:, :, 2:, :7], whole[:, :, 2:, :7])
            assert torch.equal(torch.cat([mask, mask], -1), torch.cat([whole, whole], -1))


def test_what_a_model_writes_into_a_mask_counts():
    integration.register()
    q, k, v = qkv(9, 9)
    for write in (lambda mask: mask[:, :, :, 0].fill_(-torch.inf),
                  lambda mask: mask.masked_fill_(torch.arange(9) == 0, -torch.inf)):
        mask = integration.attention_cpp_mask(2, 9, 9, mask_function=PATTERNS["bidirectional"],
                                              config=CONFIGS["gemma2"](), dtype=torch.float64)
        write(mask)
        out, _ = integration.attention_cpp_forward(Encoder(), q, k, v, mask)
        close(out, integration.attention_cpp_forward(Encoder(), q, k[:, :, 1:], v[:, :, 1:], None)[0], 1e-12)


def test_masks_are_of_the_place_where_they_were_made():
    """A static cache moves the tensor that says where its queries are before the layers run."""
    integration.register()
    place = torch.tensor(4)
    mask, whole = integration.attention_cpp_mask(2, 3, 9, place), masking_utils.sdpa_mask(2, 3, 9, 4)
    place += 3
    assert torch.equal(mask & True, whole)


def test_no_mask_is_what_eager_makes_of_it_where_there_is_no_sdpa():
    """Layers of such models say nothing of causality, or something that eager attention does not read."""
    q, k, v = qkv(5, 9)
    layer = Layer()
    layer.config = make("gemma2")[0].config
    close(integration.attention_cpp_forward(layer, q, k, v, None)[0],
          integration.attention_cpp_forward(Encoder(), q, k, v, None)[0], 1e-12)
    layer.config = make("llama")[0].config
    close(integration.attention_cpp_forward(layer, q, k, v, None)[0],
          integration.attention_cpp_forward(Layer(), q, k, v, None)[0], 1e-12)


def test_autocast_is_that_of_sdpa():
    """Norms and rotary embeddings may leave query and key in float32 beside a lower value."""
    q, k, v = (x.float() for x in qkv(5, 9))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out, _ = integration.attention_cpp_forward(Encoder(), q, k, v.bfloat16(), None)
    expected, _ = integration.attention_cpp_forward(Encoder(), q.bfloat16(), k.bfloat16(), v.bfloat16(), None)
    assert torch.equal(out, expected)


def test_calls_without_a_mask_follow_is_causal():
    q, k, v = qkv(5, 9)

    def dense(function):
        return masking_utils.sdpa_mask(2, 5, 9, 4, mask_function=function, allow_is_causal_skip=False)

    def expect(mask, module, **options):
        actual, _ = integration.attention_cpp_forward(module, q, k, v, None, **options)
        close(actual, integration.attention_cpp_forward(module, q, k, v, mask)[0], 1e-12)

    causal, window, full = (dense(PATTERNS[name]) for name in ("causal", "window", "bidirectional"))
    expect(causal, Layer())
    expect(causal, torch.nn.Module())  # as in sdpa, a layer that says nothing is causal
    expect(causal, Encoder(), is_causal=True)
    expect(full, Encoder())
    expect(full, Layer(), is_causal=False)
    expect(window, Layer(), sliding_window=3)
    expect(full, Encoder(), sliding_window=3)


def test_a_decoder_made_bidirectional():
    model, ours = make("llama")
    for each in (model, ours):
        each.config.is_causal = False
    for padding in PADDINGS:
        batch, rows = make_batch("llama", padding)
        close(run(ours, batch, rows)[0], run(model, batch, rows)[0])


def test_masks_of_the_user_give_what_eager_gives():
    model, ours = make("llama")
    batch, rows = make_batch("llama", "none")
    mask = torch.rand(2, 1, L, L) < 0.6
    mask |= torch.eye(L, dtype=torch.bool)
    expected = run(model, {**batch, "attention_mask": torch.where(mask, 0.0, -torch.inf).double()}, rows)[0]
    close(run(ours, {**batch, "attention_mask": mask}, rows)[0], expected)
    close(run(ours, {**batch, "attention_mask": torch.where(mask, 0.0, -torch.inf).double()}, rows)[0], expected)


def packed():
    ids = torch.randint(3, 64, (1, 10))
    positions = torch.tensor([[0, 1, 2, 3, 4, 5, 0, 1, 2, 3]])
    return {"input_ids": ids, "position_ids": positions, "use_cache": False}, torch.ones(1, 10, dtype=torch.bool)


def test_packed_sequences_need_a_dense_mask():
    model, ours = make("mistral")
    batch, rows = packed()
    with pytest.raises(attention_cpp.Error, match="dense mask is needed.*packed_sequence_mask_function"):
        ours(**batch)
    integration.register(warn=True)
    with pytest.warns(UserWarning, match="packed_sequence_mask_function"):
        actual = run(ours, batch, rows)[0]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ours(**batch)  # once
    integration.register()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        close(run(ours, batch, rows)[0], actual)
    close(actual, run(model, batch, rows)[0])


def test_dense_masks_of_packed_sequences_run_as_segments(monkeypatch):
    monkeypatch.setattr(_masks, "WORTH_READING", 0)
    integration.register()
    model, ours = make("llama")
    batch, rows = packed()
    before = mask_counts()
    close(run(ours, batch, rows)[0], run(model, batch, rows)[0])
    after = mask_counts()
    assert {key: count - before.get(key, 0) for key, count in after.items() if count != before.get(key, 0)} == {
        "causal, segments": 2}  # of two layers, read once


def test_chunked_attention_needs_a_dense_mask():
    function = masking_utils.chunked_causal_mask_function(4, torch.zeros(2, dtype=torch.long))
    with pytest.raises(attention_cpp.Error, match=r"and_masks\(chunked_overlay, causal_mask_function\)"):
        integration.attention_cpp_mask(2, 9, 9, mask_function=function, on_dense=refuse_dense)
    three = masking_utils.and_masks(*[masking_utils.causal_mask_function] * 3)
    with pytest.raises(attention_cpp.Error, match="dense"):
        integration.attention_cpp_mask(2, 9, 9, mask_function=three, on_dense=refuse_dense)
    expected = masking_utils.sdpa_mask(2, 9, 9, mask_function=function, allow_is_causal_skip=False)
    assert torch.equal(integration.attention_cpp_mask(2, 9, 9, mask_function=function), expected)


# ------------------------------------------------------------------------------------------------------ the function

def test_every_option_at_once():
    q, k, v = (t.requires_grad_() for t in qkv(6, 9))
    bias = torch.randn(1, 4, 6, 9, dtype=torch.float64, requires_grad=True)
    sink = torch.randn(4).double().requires_grad_()  # the library holds sinks as float32
    mask = torch.rand(2, 1, 6, 9) < 0.7
    out, weights = integration.attention_cpp_forward(Layer(), q, k, v, mask, scaling=0.5, softcap=1.5, s_aux=sink,
                                                     position_bias=bias, output_attentions=True)
    scores = q @ k.repeat_interleave(2, 1).transpose(-1, -2) * 0.5
    scores = 1.5 * torch.tanh(scores / 1.5) + bias
    scores = scores.masked_fill(~mask, -torch.inf)
    full = torch.cat([scores, sink.view(1, 4, 1, 1).expand(2, 4, 6, 1)], -1).softmax(-1)[..., :-1]
    expected = (full @ v.repeat_interleave(2, 1)).transpose(1, 2)
    close(weights, full.detach(), 1e-12)
    close(out, expected, 1e-12)
    added = torch.zeros(2, 1, 6, 9, dtype=torch.float64).masked_fill(~mask, -torch.inf)
    close(integration.attention_cpp_forward(Layer(), q, k, v, added, scaling=0.5, softcap=1.5, s_aux=sink,
                                            position_bias=bias)[0], expected, 1e-12)
    given = (q, k, v, bias, sink)
    for actual, wanted in zip(torch.autograd.grad(out.sin().sum(), given),
                              torch.autograd.grad(expected.sin().sum(), given)):
        close(actual, wanted, 1e-11)


def test_learned_queries_are_the_same_for_all():
    q, k, v = qkv(5, 9)
    out, _ = integration.attention_cpp_forward(Encoder(), q[:1], k, v, None)
    close(out, integration.attention_cpp_forward(Encoder(), q[:1].expand(2, -1, -1, -1), k, v, None)[0], 0)


def test_dropout_repeats_with_the_seed():
    q, k, v = qkv(64, 64)
    plain, weights = integration.attention_cpp_forward(Encoder(), q, k, v, None, output_attentions=True)
    torch.manual_seed(3)
    dropped, kept = integration.attention_cpp_forward(Encoder(), q, k, v, None, dropout=0.5, output_attentions=True)
    torch.manual_seed(3)
    again, _ = integration.attention_cpp_forward(Encoder(), q, k, v, None, dropout=0.5)
    assert torch.equal(dropped, again) and not torch.allclose(dropped, plain)
    close(kept, weights, 0)


def test_bfloat16_is_as_accurate_as_eager():
    model, ours = make("llama", torch.bfloat16)
    batch, rows = make_batch("llama", "left")
    model.to(torch.float32)
    with torch.no_grad():
        exact = model(**batch).logits[rows]
        eager = copy.deepcopy(model).to(torch.bfloat16)(**batch).logits[rows].float()
        actual = ours(**batch).logits[rows]
    assert actual.dtype == torch.bfloat16
    error = (actual.float() - exact).norm()
    assert error <= 1.5 * (eager - exact).norm()  # attention is not what rounds most
    assert error <= 2**-8 * 24 * exact.norm()  # 2 layers of 12 rounded steps


@pytest.mark.parametrize("name", ["llama", "mistral", "gemma2"])
@pytest.mark.parametrize("padding", PADDINGS)
def test_compiled_models_give_the_same_logits(name, padding):
    integration.register()  # of models without sdpa a compiler gets the whole mask
    model, ours = make(name, torch.float32)
    batch, rows = make_batch(name, padding)
    batch["attention_mask"] = batch.get("attention_mask", torch.ones(2, L, dtype=torch.long))
    torch._dynamo.reset()
    with torch.no_grad():
        expected = ours(**batch, use_cache=False).logits[rows]
        actual = torch.compile(ours, backend="aot_eager", fullgraph=True)(**batch, use_cache=False).logits[rows]
    close(actual, expected, 1e-5)
    close(actual, model(**batch).logits[rows].detach(), 1e-4)


@pytest.mark.parametrize("reentrant", [False, True])
def test_activation_checkpointing_gives_the_same_gradients(reentrant):
    _, ours = make("mistral", torch.float32)
    batch, rows = make_batch("mistral", "left")

    def gradients():
        ours.zero_grad()
        ours(**batch, use_cache=False).logits[rows].sin().sum().backward()
        return [parameter.grad for parameter in ours.parameters()]

    expected = gradients()
    ours.train().activation_checkpointing_enable({"use_reentrant": reentrant})
    for actual, wanted in zip(gradients(), expected):
        assert torch.equal(actual, wanted)


def test_registering_twice_and_under_another_name():
    integration.register()
    integration.register()
    integration.register("other", strict=True)
    model = hf.AutoModelForCausalLM.from_config(CONFIGS["llama"](), attn_implementation="other")
    assert model.config._attn_implementation == "other"
    batch, _ = packed()
    with pytest.raises(attention_cpp.Error, match="dense"):
        model(**batch)
    model.set_attn_implementation(NAME)
    model(**batch)


def test_models_that_would_ignore_it():
    """transformers would compute bloom's own attention, with no mask, without a word."""
    model = hf.AutoModelForCausalLM.from_config(hf.BloomConfig(vocab_size=64, hidden_size=32, n_layer=1, n_head=4),
                                                attn_implementation=NAME)
    with pytest.raises(attention_cpp.Error, match="modeling_bloom take no attn_implementation"):
        model(torch.ones(1, 4, dtype=torch.long))


def test_wrong_arguments_raise_the_layer_and_the_reason():
    q, k, v = qkv(5, 9)
    integration.register()
    away = [t.to("meta") for t in (q, k, v)]
    numbered = Layer()
    numbered.layer_idx = 3
    with pytest.raises(attention_cpp.Error, match="must be on the CPU, not meta"):
        integration.attention_cpp_forward(Layer(), *away, None)
    with pytest.raises(attention_cpp.Error, match="must be on the CPU, not meta"):
        integration.attention_cpp_forward(Layer(), q, k, away[2], None)
    allowed = r"must be None, or a tensor \[2\|1, 4\|1, 5\|1, 9\|1\], boolean \(True = attend\) or floating"
    for mask, given in ((torch.ones(2, 1, 5, 9, dtype=torch.long), r"torch.int64 \[2, 1, 5, 9\]"),
                        (torch.ones(2, 1, 5, 8, dtype=torch.bool), r"torch.bool of shape \[2, 1, 5, 8\]"),
                        (torch.ones(1, 2, 1, 5, 9), r"torch.float32 of shape \[1, 2, 1, 5, 9\]"),
                        ([[True]], "a list"),
                        (integration.attention_cpp_mask(2, 5, 8, 3), r"torch.bool of shape \[2, 1, 5, 8\]")):
        with pytest.raises(attention_cpp.Error, match=f"Layer of layer 3: the attention_mask is {given}; it {allowed}"):
            integration.attention_cpp_forward(numbered, q, k, v, mask)
    with pytest.raises(attention_cpp.Error, match="Layer calls its attention with block_indices, indices, which"):
        integration.attention_cpp_forward(Layer(), q, k, v, None, indices=q, position_ids=q, block_indices=k,
                                          sinks=None)
