"""Models of transformers with attn_implementation="attention_cpp": docs/families.md says what becomes of each class.

A sample of the families, those that have been wrong in it always; with ATTN_EXHAUSTIVE=1 all of them.
"""

import os
import random

os.environ["HF_HUB_OFFLINE"] = "1"

import pytest

pytest.importorskip("transformers")

import torch
import transformers as hf

import attention_cpp
import attention_cpp.transformers as integration
import families

# Sparse attention, masks that models compute with, layers that say nothing or something else of causality, refusals.
ALWAYS = ["axk2", "deepseek_v32", "dots3_note", "glm_moe_dsa", "hy_v4", "inkling2", "mistral_large4", "minimax_m3_vl",
          "deepseek_v4", "diffusion_gemma", "doge", "gemma4", "longformer", "t5gemma2", "vit_mae",
          "align", "bigbird_pegasus", "clap", "nllb_moe", "paligemma", "pegasus_x", "phi4_multimodal", "splinter",
          "falcon", "gemma2", "got_ocr2", "gpt_oss", "nemotron_asr_streaming", "t5gemma"]
SAMPLE = 40  # families beside these

PAGE, VERSION = families.read()
IS_OF_PAGE = hf.__version__ == VERSION


def chosen():
    """(family, name) of the classes to run."""
    of_page = sorted({family for family, _ in PAGE})
    if os.environ.get("ATTN_EXHAUSTIVE"):
        wanted = set(of_page)
    else:
        seed = int(os.environ.get("ATTN_SEED", 1))
        wanted = {*ALWAYS, *random.Random(seed).sample(of_page, SAMPLE)}
    return [key for key in PAGE if key[0] in wanted]


def test_the_page_names_every_class():
    """Of the version of transformers that it is of. It is written by python/tests/families.py."""
    if not IS_OF_PAGE:
        pytest.skip(f"the page is of transformers {VERSION}")
    everything = {(family, name) for family in families.families() for name in families.classes(family)}
    assert everything == PAGE.keys()
    assert {family for family, _ in PAGE} >= set(ALWAYS)
    assert not [what for what in PAGE.values() if what.startswith("WRONG")]
    assert families.written(PAGE).splitlines() == families.PAGE.read_text().splitlines()


@pytest.mark.parametrize("family, name", chosen())
def test_a_class_does_what_the_page_says(family, name):
    model_class = families.classes(family).get(name)
    if model_class is None:
        pytest.skip(f"transformers {hf.__version__} has no {name}")
    actual, expected = families.outcome(model_class), PAGE[family, name]
    if IS_OF_PAGE and not expected.startswith("not run"):
        assert actual == expected
    else:  # another version may need other sizes, or agree with itself by now
        assert actual.partition(":")[0] in {expected.partition(":")[0], "equal", "as sdpa", "without", "not run"}


@pytest.mark.parametrize("family", sorted(set(families.families()) - {family for family, _ in PAGE}))
def test_families_of_a_newer_version_are_not_wrong(family):
    for model_class in families.classes(family).values():
        assert not families.outcome(model_class).startswith("WRONG")


# --------------------------------------------------------------------------------------- what small sizes do not reach

def same(configuration, model_class, check=families.check):
    """A model of a configuration with eager attention and with ours, checked."""
    integration.register()
    torch.manual_seed(0)
    model = model_class._from_config(configuration(), attn_implementation="eager").eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(0, 0.15)
        ours = model_class._from_config(configuration(), attn_implementation="attention_cpp").eval()
        ours.load_state_dict(model.state_dict())
        check(model, ours, lambda *arguments: families.inputs(model, "plain", *arguments))


DECODER = {"vocab_size": 99, "hidden_size": 64, "intermediate_size": 64, "num_attention_heads": 4,
           "num_key_value_heads": 2, "head_dim": 16, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}


def test_gemma4_layers_that_share_keys():
    """The layers that share keys see those of the last one that does not, and its mask."""
    types = ["sliding_attention", "full_attention"] * 3
    same(lambda: hf.Gemma4TextConfig(**DECODER, num_hidden_layers=6, layer_types=types, num_kv_shared_layers=2,
                                     sliding_window=8, global_head_dim=16, vocab_size_per_layer_input=99,
                                     hidden_size_per_layer_input=16), hf.Gemma4ForCausalLM)


def test_gemma4_sound():
    """Its tower cuts a floating mask into blocks."""
    from transformers.models.gemma4.modeling_gemma4 import Gemma4AudioModel

    def check(model, ours, _):
        sound, heard = torch.randn(2, 96, 128), torch.ones(2, 96, dtype=torch.bool)
        heard[1, 50:] = False
        families.compare("sound", ours(sound, heard), model(sound, heard))

    same(lambda: hf.Gemma4AudioConfig(hidden_size=32, num_hidden_layers=2, num_attention_heads=4, output_proj_dims=32),
         Gemma4AudioModel, check)


def test_sparse_layers_are_refused():
    """Which the sizes above leave out."""
    configuration = hf.MiniMaxM3VLTextConfig(
        **DECODER, num_hidden_layers=2, layer_types=["full_attention", "minimax_m3_sparse"], num_local_experts=4,
        num_experts_per_tok=2, dense_intermediate_size=64, shared_intermediate_size=64, index_head_dim=16, rotary_dim=8,
        index_n_heads=2, index_block_size=8, index_topk_blocks=2)
    integration.register()
    model = hf.MiniMaxM3VLForCausalLM._from_config(configuration, attn_implementation="attention_cpp").eval()
    with pytest.raises(attention_cpp.Error, match="VLAttention of layer 1 calls its attention with block_indices"):
        model(torch.randint(4, 99, (1, 40)))
