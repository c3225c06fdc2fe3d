"""Tiny models of transformers whose layers look for fla, before and after attention_cpp.fla.install()."""

import importlib
import warnings

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

import attention_cpp.fla as ours  # noqa: E402
from attention_cpp._fla import functions  # noqa: E402

SIZES = dict(vocab_size=50, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=2,
             num_key_value_heads=1, head_dim=16, max_position_embeddings=256, pad_token_id=0, bos_token_id=1,
             eos_token_id=2, layer_types=["linear_attention", "full_attention"])
LINEAR = dict(linear_num_key_heads=2, linear_num_value_heads=4, linear_key_head_dim=8, linear_value_head_dim=6,
              linear_conv_kernel_dim=4)
EXPERTS = dict(num_experts=2, num_experts_per_tok=2, moe_intermediate_size=16, shared_expert_intermediate_size=16)
LATENT = dict(kv_lora_rank=8, qk_rope_head_dim=8, qk_nope_head_dim=8, v_head_dim=8)
GATED_DELTA = {"chunk_gated_delta_rule", "fused_recurrent_gated_delta_rule"}
FAMILIES = {
    "qwen3_next": ("Qwen3NextConfig", "Qwen3NextForCausalLM", {**SIZES, **LINEAR, **EXPERTS}, GATED_DELTA),
    "qwen3_5": ("Qwen3_5TextConfig", "Qwen3_5ForCausalLM", {**SIZES, **LINEAR}, GATED_DELTA),
    "qwen3_5_moe": ("Qwen3_5MoeTextConfig", "Qwen3_5MoeForCausalLM", {**SIZES, **LINEAR, **EXPERTS}, GATED_DELTA),
    "olmo_hybrid": ("OlmoHybridConfig", "OlmoHybridForCausalLM",
                    {**SIZES, "linear_num_key_heads": 2, "linear_num_value_heads": 2, "linear_key_head_dim": 8,
                     "linear_value_head_dim": 16}, GATED_DELTA),
    "kimi_linear": ("KimiLinearConfig", "KimiLinearForCausalLM",
                    {**SIZES, **EXPERTS, **LATENT, "num_key_value_heads": 2, "linear_head_dim": 8,
                     "linear_num_heads": 2}, {"chunk_kda", "fused_recurrent_kda"}),
}


def modeling(family):
    return importlib.import_module(f"transformers.models.{family}.modeling_{family}")


def make(family, dtype):
    config_name, model_name, given, _ = FAMILIES[family]
    config = getattr(importlib.import_module(f"transformers.models.{family}"), config_name)(**given)
    config._experts_implementation = "eager"  # torch has no grouped products of float64
    torch.manual_seed(0)
    return getattr(modeling(family), model_name)(config).to(dtype)


def compute(family, dtype):
    """Logits of a padded batch of 70 tokens, gradients of the parameters, tokens and logits of generation."""
    model = make(family, dtype)
    ids = torch.randint(3, 50, (2, 70), generator=torch.Generator().manual_seed(1))
    mask = torch.ones_like(ids)
    mask[1, :9] = 0
    logits = model(input_ids=ids, attention_mask=mask, use_cache=False).logits
    (logits[0].square().mean() + logits[1, 9:].square().mean()).backward()
    gradients = {name: parameter.grad for name, parameter in model.named_parameters() if parameter.grad is not None}
    model.eval()
    with torch.no_grad():
        generated = model.generate(ids[:, :12], max_new_tokens=5, attention_mask=mask[:1, :12].expand(2, -1),
                                   do_sample=False, return_dict_in_generate=True, output_logits=True, eos_token_id=None)
        whole = model(input_ids=generated.sequences, use_cache=False).logits[:, 11:-1]
    return {"logits": logits.detach()[mask.bool()], "tokens": generated.sequences, "whole": whole,
            "generated": torch.stack(generated.logits, 1)}, gradients


@pytest.fixture
def installed(monkeypatch):
    """install(family) installs fla and loads the modeling file again; returns the names of functions as they are
    called."""
    loaded, called, attend = [], set(), functions.attend

    def counting(name, *arguments, **options):
        called.add(name)
        return attend(name, *arguments, **options)

    def install(family):
        monkeypatch.setattr(functions, "attend", counting)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of modeling files that other tests have imported
            ours.install()
        loaded.append(importlib.reload(modeling(family)))
        return called

    yield install
    ours.uninstall()
    for module in loaded:
        importlib.reload(module)


def assert_close(actual, theirs, exact, largest):
    """As near to float64 as transformers' own functions, up to a factor of 4 and 4 roundings of the largest number."""
    error, naive = ((x.double() - exact.double()).abs().max() for x in (actual, theirs))
    assert error <= 4 * naive + 4 * torch.finfo(torch.float32).eps * largest


@pytest.mark.parametrize("family", FAMILIES)
def test_a_model_computes_the_same(family, installed):
    try:
        modeling(family)
    except ImportError:
        pytest.skip(f"this transformers has no {family}")
    theirs, their_gradients = compute(family, torch.float32)
    called = installed(family)
    results, gradients = compute(family, torch.float32)
    assert called == FAMILIES[family][-1]
    exact, exact_gradients = compute(family, torch.float64)  # transformers' own functions compute in float32 always
    assert torch.equal(results.pop("tokens"), theirs.pop("tokens"))
    for name, result in results.items():
        assert_close(result, theirs[name], exact[name], exact[name].abs().max())
    # The gradients of decays are small differences of the others.
    largest = max(gradient.abs().max() for gradient in exact_gradients.values())
    assert gradients.keys() == their_gradients.keys()
    for name, gradient in gradients.items():
        assert_close(gradient, their_gradients[name], exact_gradients[name], largest)
    assert_close(results["generated"], results["whole"], exact["whole"], exact["whole"].abs().max())


def test_a_compiled_model(installed):
    installed("qwen3_next")
    model = make("qwen3_next", torch.float32).eval()
    layer = model.model.layers[0].linear_attn
    x = torch.randn(2, 70, 32, generator=torch.Generator().manual_seed(2))
    torch._dynamo.reset()
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x), layer(x), rtol=0, atol=4 * torch.finfo(torch.float32).eps)


def test_too_late():
    modeling("qwen3_next")
    with pytest.warns(UserWarning, match="too late for .*transformers.models.qwen3_next.modeling_qwen3_next"):
        ours.install()
    ours.uninstall()
