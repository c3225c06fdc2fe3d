"""generate_batch() of transformers: every token is that of its own paged attention, and of one text at a time."""

import os
from types import SimpleNamespace

os.environ["HF_HUB_OFFLINE"] = "1"

import pytest

torch = pytest.importorskip("torch")
hf = pytest.importorskip("transformers")
pytest.importorskip("transformers.generation.continuous_batching")
pytest.importorskip("psutil")

from transformers.generation.configuration_utils import ContinuousBatchingConfig  # noqa: E402
from transformers.utils import import_utils  # noqa: E402

import attention_cpp  # noqa: E402
import attention_cpp.flash_attn  # noqa: E402
import attention_cpp.transformers  # noqa: E402
from attention_cpp import _core  # noqa: E402

SMALL = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4,
         "num_key_value_heads": 2, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": None,
         "max_position_embeddings": 256}
MODELS = {  # with a window the keys that the cache gives are the last of each request; gemma2 has both kinds of layers
    "llama": lambda: hf.LlamaForCausalLM(hf.LlamaConfig(**SMALL)),
    "mistral": lambda: hf.MistralForCausalLM(hf.MistralConfig(**SMALL, sliding_window=5)),
    "gemma2": lambda: hf.Gemma2ForCausalLM(hf.Gemma2Config(
        **SMALL, head_dim=8, sliding_window=6, attn_logit_softcapping=2.0, query_pre_attn_scalar=8)),
    "gpt-oss": lambda: hf.GptOssForCausalLM(hf.GptOssConfig(
        **SMALL, head_dim=8, sliding_window=6, num_local_experts=2, num_experts_per_tok=1)),
}
GREEDY = hf.GenerationConfig(max_new_tokens=12, do_sample=False, eos_token_id=-1, pad_token_id=0)
TEXTS = [torch.randint(3, 64, (n,), generator=torch.Generator().manual_seed(n)).tolist() for n in (9, 3, 30, 14, 1)]


@pytest.fixture
def interfaces(monkeypatch):
    """Names that are registered in a test are forgotten after it."""
    for interface in (hf.AttentionInterface, hf.AttentionMaskInterface):
        monkeypatch.setattr(interface, "_global_mapping", dict(interface._global_mapping))


@pytest.fixture
def flash_attention():
    attention_cpp.flash_attn.install()
    yield
    attention_cpp.flash_attn.uninstall()


def batched(name, implementation, tokens_a_step):
    """What is generated, and the options of each call of ours."""
    torch.manual_seed(1)
    model = MODELS[name]().eval()
    model.set_attn_implementation(implementation)
    calls, forward = [], _core.forward
    _core.forward = lambda *x: (calls.append(set(vars(x[-1]))), forward(*x))[1]
    try:
        config = ContinuousBatchingConfig(num_blocks=64, max_batch_tokens=tokens_a_step, page_size=16,
                                          auto_switch_to_flash=False)
        results = model.generate_batch(TEXTS, generation_config=GREEDY, continuous_batching_config=config)
    finally:
        _core.forward = forward
    return [result.generated_tokens for result in results.values()], calls, {x.error for x in results.values()}


def one_by_one(name):
    torch.manual_seed(1)
    model = MODELS[name]().eval()
    model.set_attn_implementation("eager")
    return [model.generate(torch.tensor([text]), attention_mask=torch.ones(1, len(text), dtype=torch.long),
                           generation_config=GREEDY)[0, len(text):].tolist() for text in TEXTS]


@pytest.mark.parametrize("tokens_a_step", [16, 128])  # prompts in pieces, and whole
@pytest.mark.parametrize("name, implementation", [
    ("llama", "flash_attention_2"), ("mistral", "flash_attention_2"), ("gemma2", "flash_attention_2"),
    ("llama", "paged|eager"), ("gemma2", "paged|eager"), ("gpt-oss", "paged|eager")])
def test_tokens_are_those_of_each_request_alone(name, implementation, tokens_a_step, interfaces, flash_attention):
    expected = batched(name, "paged|eager", tokens_a_step)
    assert expected[1] == []
    attention_cpp.transformers.register("paged|eager", strict=True)
    tokens, calls, errors = batched(name, implementation, tokens_a_step)
    assert errors == {None} and len(calls) >= 3 * 12
    assert all({"cu_seqlens_q", "cu_seqlens_k", "causal"} <= call and not call & {"mask", "bias"} for call in calls)
    assert tokens == expected[0] == one_by_one(name)


def test_unsupported_calls_raise_the_reason(interfaces):
    attention_cpp.transformers.register()
    with pytest.raises(ValueError, match="attention_cpp is not supported for continuous batching"):  # transformers' own
        batched("llama", "attention_cpp", 16)
    cache = SimpleNamespace(update=lambda k, v, layer, given: (k, v))
    x, starts = torch.randn(1, 2, 16, 8), torch.tensor([0, 9, 13], dtype=torch.int32)
    options = dict(cache=cache, cu_seq_lens_q=starts, cu_seq_lens_k=starts)
    module = SimpleNamespace(layer_idx=0)
    with pytest.raises(attention_cpp.Error, match="query has 16 rows, but the requests have 13: .* not be compiled"):
        attention_cpp.transformers.attention_cpp_forward(module, x, x, x, None, **options)
    with pytest.raises(attention_cpp.Error, match="position_bias must be None"):
        attention_cpp.transformers.attention_cpp_forward(module, x, x, x, None, position_bias=x[:, :, :, :1], **options)


def test_uninstall_holds_for_modules_that_imported_the_check(flash_attention):
    """generate_batch() takes flash attention where that is there; its module may have been imported meanwhile."""
    question = import_utils.is_flash_attn_2_available
    assert question(kernels_fallback_ok=True)
    attention_cpp.flash_attn.uninstall()
    assert not question()
