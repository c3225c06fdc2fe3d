"""Libraries over torch and transformers, where they are installed: results and gradients are those of eager attention.

Models are tiny and random, in float64 where the library allows it.
"""

import copy
import importlib.util
import os
import subprocess
import sys
import textwrap

import pytest

torch = pytest.importorskip("torch")
hf = pytest.importorskip("transformers")

import attention_cpp.torch as drop_in  # noqa: E402
import attention_cpp.transformers  # noqa: E402
from attention_cpp import _core  # noqa: E402
from attention_cpp._torch import masks as _masks  # noqa: E402

SMALL = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
         "num_attention_heads": 4}


@pytest.fixture(autouse=True)
def small_calls_too(monkeypatch):
    monkeypatch.setattr(_masks, "WORTH_READING", 0)  # masks of tiny models are read as those of large ones
    attention_cpp.transformers.register()
    torch.manual_seed(0)


def same(actual, expected):
    """One formula in another order: norms and softmaxes of these models are float32, and there are few layers."""
    torch.testing.assert_close(actual, expected, rtol=0, atol=256 * torch.finfo(torch.float32).eps)


def served(what):
    """The result, and how many calls of ours there were, masked or not."""
    calls = []
    forward = _core.forward
    _core.forward = lambda *x: (calls.append(1), forward(*x))[1]
    try:
        return what(), len(calls)
    finally:
        _core.forward = forward


def llama(**options):
    config = hf.LlamaConfig(**SMALL, num_key_value_heads=2, max_position_embeddings=128, pad_token_id=0, bos_token_id=1,
                            eos_token_id=None, **options)
    torch.manual_seed(1)
    return hf.LlamaForCausalLM(config).eval()


@pytest.mark.parametrize("implementation", ["sdpa", "attention_cpp"])
@pytest.mark.parametrize("cache", ["dynamic", "static"])
@pytest.mark.parametrize("kind", ["llama", "mistral"])
def test_generation_gives_the_tokens_of_eager(kind, cache, implementation):
    """A padded batch; mistral has a window that is shorter than the prompt, and so a sliding cache."""
    if kind == "llama":
        model = llama()
    else:
        torch.manual_seed(1)
        model = hf.MistralForCausalLM(hf.MistralConfig(
            **SMALL, num_key_value_heads=2, sliding_window=5, pad_token_id=0, bos_token_id=1, eos_token_id=None)).eval()
    ids = torch.randint(3, 64, (2, 9))
    mask = torch.ones(2, 9, dtype=torch.long)
    mask[1, :4] = 0
    options = dict(attention_mask=mask, max_new_tokens=10, min_new_tokens=10, do_sample=False, pad_token_id=0,
                   cache_implementation=cache, output_logits=True, return_dict_in_generate=True, disable_compile=True)
    model.set_attn_implementation("eager")
    expected = model.generate(ids, **options)
    model.set_attn_implementation(implementation)
    with drop_in.enabled(strict=True):
        actual, calls = served(lambda: model.generate(ids, **options))
    assert calls >= 2 * 10
    assert torch.equal(actual.sequences, expected.sequences)
    same(torch.stack(actual.logits), torch.stack(expected.logits))


def test_a_prefix_that_all_see():
    ids, i = torch.randint(3, 64, (2, 12)), torch.arange(12)
    mask = ((i <= i[:, None]) | (i < 5)).expand(2, 1, 12, 12).clone()
    mask[1, :, :, 9:] = False
    model = llama()
    results = []
    for implementation in ("eager", "attention_cpp"):
        model.set_attn_implementation(implementation)
        before = drop_in.mask_counts().get("prefix, causal, key lengths", 0)
        given = mask if implementation != "eager" else torch.zeros(mask.shape).masked_fill(~mask, -torch.inf)
        results.append(model(ids, attention_mask=given).logits)
    assert drop_in.mask_counts()["prefix, causal, key lengths"] == before + 2
    same(results[1], results[0])
    assert len(model(ids, attention_mask=mask, output_attentions=True).attentions) == 2


def test_models_of_flex_attention(monkeypatch):
    """transformers compiles torch's function on its own, which has no gradients on the CPU: its name can be ours."""
    from torch.nn.attention.flex_attention import create_block_mask

    for interface in (hf.AttentionInterface, hf.AttentionMaskInterface):
        monkeypatch.setattr(interface, "_global_mapping", dict(interface._global_mapping))
    ids = torch.randint(3, 64, (2, 12))
    mask = torch.ones(2, 12, dtype=torch.long)
    mask[1, 8:] = 0
    model = llama().train()
    other = copy.deepcopy(model)
    model.set_attn_implementation("eager")
    other.set_attn_implementation("flex_attention")
    attention_cpp.transformers.register("flex_attention", strict=True)
    gradients = []
    for tuned in (model, other):
        loss, calls = served(lambda: tuned(input_ids=ids, attention_mask=mask, labels=ids).loss)
        loss.backward()
        gradients.append([x.grad for x in tuned.parameters()])
    assert calls == 2
    for expected, actual in zip(*gradients):
        same(actual, expected)
    with pytest.raises(attention_cpp.Error, match="the attention_mask is a BlockMask; it must be None, or a tensor"):
        other(ids, attention_mask=create_block_mask(lambda b, h, i, j: i >= j, 2, None, 12, 12, "cpu"))


def test_sentence_transformers_gives_the_same_embeddings(tmp_path):
    st = pytest.importorskip("sentence_transformers")
    from sentence_transformers.sentence_transformer.modules import Pooling, Transformer

    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"a b c d e f g".split()]
    (tmp_path / "vocab.txt").write_text("\n".join(words))
    config = hf.BertConfig(**{**SMALL, "vocab_size": len(words)}, max_position_embeddings=64)
    hf.BertModel(config).save_pretrained(tmp_path)
    hf.BertTokenizer(str(tmp_path / "vocab.txt")).save_pretrained(tmp_path)
    texts = ["a b c", "d", "e f g a b c d e f"]
    results = []
    for implementation in ("eager", "sdpa", "attention_cpp"):
        module = Transformer(str(tmp_path), model_kwargs={"attn_implementation": implementation})
        model = st.SentenceTransformer(modules=[module, Pooling(32)], device="cpu")
        with drop_in.enabled(strict=True):
            result, calls = served(lambda: model.encode(texts, convert_to_tensor=True))
        assert (calls > 0) == (implementation != "eager")
        results.append(result)
    same(results[1], results[0])
    same(results[2], results[0])


@pytest.mark.parametrize("implementation", ["sdpa", "attention_cpp"])
def test_peft_trains_adapters(implementation):
    peft = pytest.importorskip("peft")
    ids = torch.randint(3, 64, (2, 12))
    mask = torch.ones(2, 12, dtype=torch.long)
    mask[1, 8:] = 0
    model = peft.get_peft_model(llama(), peft.LoraConfig(target_modules=["q_proj", "v_proj"], r=4,
                                                         init_lora_weights=False))
    other = copy.deepcopy(model)
    model.base_model.model.set_attn_implementation("eager")
    other.base_model.model.set_attn_implementation(implementation)
    gradients = []
    for tuned in (model, other):
        with drop_in.enabled(strict=True):
            loss, calls = served(lambda: tuned(input_ids=ids, attention_mask=mask,
                                               labels=ids.masked_fill(mask == 0, -100)).loss)
            loss.backward()
        gradients.append({name: x.grad for name, x in tuned.named_parameters() if x.grad is not None})
    assert calls == 2 and gradients[0].keys() == gradients[1].keys() and gradients[0]
    for name, expected in gradients[0].items():
        same(gradients[1][name], expected)


def test_diffusers_gives_the_same_results():
    """A transformer of its attention dispatcher, and a UNet of its attention processors."""
    diffusers = pytest.importorskip("diffusers")
    flux = diffusers.FluxTransformer2DModel(
        patch_size=1, in_channels=4, num_layers=1, num_single_layers=1, attention_head_dim=16, num_attention_heads=2,
        joint_attention_dim=32, pooled_projection_dim=32, axes_dims_rope=[4, 4, 8]).eval()
    unet = diffusers.UNet2DConditionModel(
        block_out_channels=(32, 64), layers_per_block=1, sample_size=16, in_channels=4, out_channels=4,
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"), up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
        cross_attention_dim=32, norm_num_groups=8, attention_head_dim=8).eval()
    calls_of = {
        flux: dict(hidden_states=torch.randn(1, 16, 4), encoder_hidden_states=torch.randn(1, 6, 32),
                   pooled_projections=torch.randn(1, 32), timestep=torch.tensor([1.0]), img_ids=torch.zeros(16, 3),
                   txt_ids=torch.zeros(6, 3)),
        unet: dict(sample=torch.randn(1, 4, 16, 16), timestep=1, encoder_hidden_states=torch.randn(1, 5, 32)),
    }
    for model, arguments in calls_of.items():
        expected = model(**arguments).sample
        with drop_in.enabled(strict=True):
            actual, calls = served(lambda: model(**arguments).sample)
        assert calls >= 2
        same(actual, expected)
        parameter = next(model.parameters())
        for theirs, ours in zip(*(torch.autograd.grad(x.square().mean(), parameter) for x in (expected, actual))):
            same(ours, theirs)


def trained(train):
    """The gradients of a model whose attention is eager and of one that calls torch's function, after train(model)."""
    ids = torch.randint(3, 64, (2, 12))
    mask = torch.ones(2, 12, dtype=torch.long)
    mask[1, 8:] = 0
    results = []
    for implementation in ("eager", "sdpa"):
        model = llama().train()
        model.set_attn_implementation(implementation)
        with drop_in.enabled(strict=True):
            _, calls = served(lambda: train(model, {"input_ids": ids, "attention_mask": mask,
                                                    "labels": ids.masked_fill(mask == 0, -100)}))
        assert calls == (2 if implementation == "sdpa" else 0)
        results.append([x.grad for x in model.parameters()])
    for expected, actual in zip(*results):
        same(actual, expected)


def test_accelerate_trains_the_same():
    accelerate = pytest.importorskip("accelerate")

    def train(model, batch):
        accelerator = accelerate.Accelerator(cpu=True)
        prepared, _ = accelerator.prepare(model, torch.optim.SGD(model.parameters(), 0.1))
        accelerator.backward(prepared(**batch).loss)

    trained(train)


def test_lightning_trains_the_same(tmp_path):
    lightning = pytest.importorskip("lightning")

    class Module(lightning.LightningModule):
        def __init__(self, model):
            super().__init__()
            self.model = model

        def training_step(self, batch):
            return self.model(**batch).loss

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), 0.1)

    def train(model, batch):
        trainer = lightning.Trainer(accelerator="cpu", max_steps=1, logger=False, enable_checkpointing=False,
                                    enable_progress_bar=False, enable_model_summary=False, default_root_dir=tmp_path)
        trainer.fit(Module(model), torch.utils.data.DataLoader([batch], batch_size=None))

    trained(train)


TIMM = """
    import torch

    try:
        import torchvision
    except RuntimeError:  # linked with CUDA: its operators are not there, of which it wants to describe two
        library = torch.library.Library("torchvision", "FRAGMENT")
        for name in ("nms", "qnms"):
            library.define(name + "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    import timm

    import attention_cpp.torch
    from attention_cpp import _core as core

    forward = core.forward
    for name, size in (("vit_tiny_patch16_224", 64), ("eva02_tiny_patch14_224", 56)):
        networks = []
        for fused in (False, True):
            timm.layers.set_fused_attn(fused)
            networks.append(timm.create_model(name, img_size=size, num_classes=5).eval())
        networks[1].load_state_dict(networks[0].state_dict())
        images, calls = torch.randn(2, 3, size, size), []
        core.forward = lambda *x: (calls.append(1), forward(*x))[1]
        with attention_cpp.torch.enabled(strict=True):
            results = [network(images) for network in networks]
        core.forward = forward
        assert len(calls) == 12, len(calls)
        torch.testing.assert_close(*results, rtol=0, atol=256 * torch.finfo(torch.float32).eps)
        weights = [network.blocks[0].attn.proj.weight for network in networks]
        torch.testing.assert_close(*(torch.autograd.grad(x.square().mean(), weight)[0]
                                     for x, weight in zip(results, weights)))
    print("as without")
"""


def test_timm_gives_the_same_results():
    """In a process of its own, with the folder ATTN_TIMM: transformers looks for torchvision too, and would stumble
    over PyPI's, which is linked with CUDA."""
    folder = os.environ.get("ATTN_TIMM", "")
    if not os.path.isdir(folder) and importlib.util.find_spec("timm") is None:
        pytest.skip("timm is not installed")
    result = subprocess.run([sys.executable, "-c", textwrap.dedent(TIMM)], capture_output=True, text=True,
                            env={**os.environ, "PYTHONPATH": folder})
    assert result.returncode == 0 and result.stdout == "as without\n", result.stderr
