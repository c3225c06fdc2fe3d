"""Folders that transformers saved, opened by the program `parity`: logits, loss, every gradient and cached generation
next to transformers, of every family.

Gradients need no second map of names: the folder is opened once more with every number replaced by its place in the
file, and what then is in our parameters says where the gradient of each is to be found.
"""

import contextlib
import functools
import json
import os
import pathlib
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
import safetensors.torch
import torch
import torch.nn.functional as F
import transformers
from peers import draw
from test_parity import HALVES, TYPES, Tensors, run_program
from tolerance import UNIT, judge, yardstick_of

B, L, SOURCE = 3, 19, 13
VOCABULARY, IGNORED = 41, -100
LENGTHS, SOURCE_LENGTHS = torch.tensor([12, L, 1]), torch.tensor([SOURCE, 2, 7])

SMALL = {"vocab_size": VOCABULARY, "hidden_size": 32, "intermediate_size": 44, "num_hidden_layers": 3,
         "num_attention_heads": 4, "max_position_embeddings": 24, "pad_token_id": 1, "bos_token_id": 0,
         "eos_token_id": 2}
DECODER = SMALL | {"num_key_value_heads": 2}
TYPES_OF_ATTENTION = ["sliding_attention", "full_attention", "sliding_attention"]
ENCODER = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}


@dataclass
class Folder:
    name: str
    model: type
    config: object
    lengths: bool = True  # padded batches too
    types: bool = False
    in_half: bool = False
    cached: bool = True  # what a cache gives is the same
    task: str = ""
    renamed: tuple[tuple[str, str], ...] = ()  # parts of names in the file, and of the parameters
    logits: Callable = field(default=lambda out: out.logits)

    @property
    def sees(self) -> bool:
        return self.config.model_type == "vit"

    @property
    def hears(self) -> bool:
        return self.config.model_type == "whisper"

    @property
    def encodes(self) -> bool:
        return self.config.is_encoder_decoder

    @property
    def per_text(self) -> bool:
        return self.model.__name__.endswith(("SequenceClassification", "ImageClassification"))

    @property
    def causal(self) -> bool:
        return self.encodes or self.model.__name__.endswith(("CausalLM", "LMHeadModel"))


def folder(name: str, kind: str, ending: str, fields: dict, **more) -> Folder:
    config = getattr(transformers, f"{kind}Config")(**fields)
    return Folder(name, getattr(transformers, f"{kind}{ending}"), config, **more)


def scaled(name: str, cached: bool = True, **rope) -> Folder:
    fields = DECODER | {"rope_parameters": {"rope_theta": 100.0, **rope}, "max_position_embeddings": 16}
    return folder(f"llama, rope {name}", "Llama", "ForCausalLM", fields, lengths=False, cached=cached)


LONGROPE = {"rope_theta": 100.0, "rope_type": "longrope", "short_factor": [1.0, 1.25, 1.5, 2.0],
            "long_factor": [1.0, 3.0, 7.0, 9.5]}


def long_phi3(name: str, cached: bool = True, **fields) -> Folder:
    """Stretched from the original length to 64."""
    fields = DECODER | {"rope_parameters": dict(LONGROPE), "max_position_embeddings": 64} | fields
    return folder(f"phi3, longrope, {name}", "Phi3", "ForCausalLM", fields, cached=cached)


BERT = SMALL | ENCODER | {"type_vocab_size": 3}
DISTIL = {"vocab_size": VOCABULARY, "dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 44, "dropout": 0.0,
          "attention_dropout": 0.0, "max_position_embeddings": 24, "seq_classif_dropout": 0.0}
MODERN = SMALL | {"local_attention": 6, "layer_types": ["full_attention", *["sliding_attention"] * 2],
                  "classifier_pooling": "mean"}
DELTA = DECODER | {"head_dim": 8, "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 6,
                   "linear_value_head_dim": 5,
                   "layer_types": ["linear_attention", "full_attention", "linear_attention"]}
MAMBA2 = {"vocab_size": VOCABULARY, "hidden_size": 32, "num_hidden_layers": 2, "num_heads": 8, "head_dim": 8,
          "state_size": 6, "n_groups": 2, "pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2}
BAMBA = DECODER | {"attn_layer_indices": [1], "mamba_n_heads": 8, "mamba_d_state": 6, "mamba_n_groups": 2,
                   "mamba_d_head": "auto"}
T5 = {"vocab_size": VOCABULARY, "d_model": 32, "d_kv": 6, "d_ff": 44, "num_layers": 2, "num_decoder_layers": 3,
      "num_heads": 4, "dropout_rate": 0.0, "relative_attention_num_buckets": 8, "relative_attention_max_distance": 20}
BART = {"vocab_size": VOCABULARY, "d_model": 32, "encoder_layers": 2, "decoder_layers": 3, "encoder_attention_heads": 4,
        "decoder_attention_heads": 4, "encoder_ffn_dim": 44, "decoder_ffn_dim": 44, "max_position_embeddings": 24,
        "dropout": 0.0}
GPT2 = {"vocab_size": VOCABULARY, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 24, "resid_pdrop": 0.0,
        "embd_pdrop": 0.0, "attn_pdrop": 0.0}
LAST_TOKEN = {"num_labels": 3, "pad_token_id": 1}  # which no text of a test has
VIT = SMALL | ENCODER | {"image_size": 12, "patch_size": 4, "num_channels": 2}
OF_VIT = {"lengths": False, "renamed": (
    ("attention.attention.query", "attention.q_proj"), ("attention.attention.key", "attention.k_proj"),
    ("attention.attention.value", "attention.v_proj"), ("attention.output.dense", "attention.o_proj"),
    ("intermediate.dense", "mlp.fc1"), ("output.dense", "mlp.fc2"), ("encoder.layer.", "layers."))}
WHISPER = {"vocab_size": VOCABULARY, "d_model": 32, "encoder_layers": 2, "decoder_layers": 3,
           "encoder_attention_heads": 4, "decoder_attention_heads": 4, "encoder_ffn_dim": 44, "decoder_ffn_dim": 44,
           "num_mel_bins": 6, "max_source_positions": SOURCE, "max_target_positions": 24, "pad_token_id": 1,
           "bos_token_id": 2, "eos_token_id": 2, "decoder_start_token_id": 3}
FOLDERS = [
    folder("gpt2", "GPT2", "LMHeadModel", GPT2, in_half=True),
    folder("gpt_neox", "GPTNeoX", "ForCausalLM", SMALL | {"rope_parameters": {"rope_theta": 100.0,
           "partial_rotary_factor": 0.25}}),
    folder("gpt_neox, one branch after the other", "GPTNeoX", "ForCausalLM", SMALL | {"use_parallel_residual": False}),
    folder("llama", "Llama", "ForCausalLM", DECODER, in_half=True),
    folder("llama, tied, heads of another width", "Llama", "ForCausalLM", DECODER | {"tie_word_embeddings": True,
           "head_dim": 10}),
    scaled("linear", rope_type="linear", factor=3.0),
    scaled("dynamic", rope_type="dynamic", factor=3.0, cached=False),
    scaled("llama3", rope_type="llama3", factor=4.0, low_freq_factor=1.0, high_freq_factor=4.0,
           original_max_position_embeddings=40),
    scaled("yarn", rope_type="yarn", factor=4.0, original_max_position_embeddings=40, beta_fast=6.0),
    scaled("yarn, of its own magnitude", rope_type="yarn", factor=4.0, original_max_position_embeddings=40,
           attention_factor=1.5, beta_fast=6.0),
    folder("mistral", "Mistral", "ForCausalLM", DECODER | {"sliding_window": 5}),
    folder("gpt2, classes", "GPT2", "ForSequenceClassification", GPT2 | LAST_TOKEN, lengths=False),
    folder("qwen3, classes", "Qwen3", "ForSequenceClassification", DECODER | LAST_TOKEN, lengths=False),
    folder("gemma2, classes", "Gemma2", "ForSequenceClassification",
           DECODER | LAST_TOKEN | {"final_logit_softcapping": 0.5}, lengths=False),
    folder("qwen2", "Qwen2", "ForCausalLM", DECODER | {"use_sliding_window": True, "sliding_window": 5,
           "max_window_layers": 1}),
    folder("qwen3", "Qwen3", "ForCausalLM", DECODER | {"head_dim": 10}, in_half=True),
    folder("gemma2", "Gemma2", "ForCausalLM", DECODER | {"head_dim": 10, "sliding_window": 5,
           "query_pre_attn_scalar": 20, "attn_logit_softcapping": 2.0, "final_logit_softcapping": 3.0}, in_half=True),
    folder("phi3", "Phi3", "ForCausalLM", DECODER | {"rope_parameters": {"rope_theta": 100.0, "rope_type": "default",
           "partial_rotary_factor": 0.5}}),
    long_phi3("within", original_max_position_embeddings=L),
    long_phi3("beyond", cached=False, original_max_position_embeddings=L - 1),
    folder("phi3, longrope, of its own magnitude", "Phi3", "ForCausalLM", DECODER | {
        "original_max_position_embeddings": 10,
        "rope_parameters": LONGROPE | {"partial_rotary_factor": 0.5, "attention_factor": 1.5,
                                       "short_factor": [1.5, 2.0], "long_factor": [3.0, 9.0]}}),
    folder("olmo2", "Olmo2", "ForCausalLM", DECODER),
    folder("qwen3_next", "Qwen3Next", "ForCausalLM", DELTA | {"num_experts": 0}, in_half=True),
    Folder("qwen3_5_text", transformers.Qwen3_5ForCausalLM, transformers.Qwen3_5TextConfig(**DELTA)),
    folder("mamba2", "Mamba2", "ForCausalLM", MAMBA2, in_half=True),
    folder("mamba2, one group", "Mamba2", "ForCausalLM", MAMBA2 | {"n_groups": 1, "use_conv_bias": False}),
    folder("bamba", "Bamba", "ForCausalLM", BAMBA),
    folder("lfm2", "Lfm2", "ForCausalLM", DECODER | {"layer_types": ["conv", "full_attention", "conv"],
           "block_multiple_of": 8, "conv_bias": True}),
    folder("lfm2, wide", "Lfm2", "ForCausalLM", DECODER | {"full_attn_idxs": [1], "conv_L_cache": 4,
           "block_auto_adjust_ff_dim": False}),
    folder("bert, masked words", "Bert", "ForMaskedLM", BERT, types=True, in_half=True),
    folder("bert, classes", "Bert", "ForSequenceClassification", BERT | {"num_labels": 3}, types=True),
    folder("bert, classes of tokens", "Bert", "ForTokenClassification", BERT | {"num_labels": 3}),
    folder("bert, rows", "Bert", "Model", BERT, types=True, logits=lambda out: out.last_hidden_state),
    folder("bert, pooler", "Bert", "Model", BERT, types=True, task="Pooler", logits=lambda out: out.pooler_output),
    folder("roberta, pooler", "Roberta", "Model", BERT, task="Pooler", logits=lambda out: out.pooler_output),
    folder("roberta, masked words", "Roberta", "ForMaskedLM", BERT),
    folder("roberta, classes", "Roberta", "ForSequenceClassification", BERT | {"num_labels": 3}),
    folder("xlm-roberta", "XLMRoberta", "ForTokenClassification", BERT | {"num_labels": 3}),
    folder("mpnet, masked words", "MPNet", "ForMaskedLM", SMALL | ENCODER, in_half=True),
    folder("mpnet, classes", "MPNet", "ForSequenceClassification", SMALL | ENCODER | {"num_labels": 3}),
    folder("mpnet, rows", "MPNet", "Model", SMALL | ENCODER, logits=lambda out: out.last_hidden_state),
    folder("distilbert, masked words", "DistilBert", "ForMaskedLM", DISTIL),
    folder("distilbert, classes", "DistilBert", "ForSequenceClassification", DISTIL | {"num_labels": 3}),
    folder("electra, masked words", "Electra", "ForMaskedLM", BERT | {"embedding_size": 20}),
    folder("electra, classes", "Electra", "ForSequenceClassification", BERT | {"num_labels": 3}),
    folder("modernbert, masked words", "ModernBert", "ForMaskedLM", MODERN, in_half=True),
    folder("modernbert, classes", "ModernBert", "ForSequenceClassification", MODERN | {"num_labels": 3}),
    folder("t5", "T5", "ForConditionalGeneration", T5, in_half=True),
    folder("t5, not tied", "T5", "ForConditionalGeneration", T5 | {"tie_word_embeddings": False}),
    folder("t5 1.1", "T5", "ForConditionalGeneration", T5 | {"feed_forward_proj": "gated-gelu",
           "tie_word_embeddings": False}),
    folder("vit", "ViT", "ForImageClassification", VIT | {"num_labels": 3}, **OF_VIT),
    folder("vit, pooler", "ViT", "Model", VIT, task="Pooler", logits=lambda out: out.pooler_output, **OF_VIT),
    folder("whisper", "Whisper", "ForConditionalGeneration", WHISPER, lengths=False),
    folder("bart", "Bart", "ForConditionalGeneration", BART | {"scale_embedding": True}, in_half=True),
]
BY_NAME = {case.name: case for case in FOLDERS}


FLOAT32 = torch.float32
ZERO = "what is not in the file"  # number 0: a bias of keys, whose gradient is zero


@functools.lru_cache(maxsize=None)
def weights(name: str, shape: tuple[int, ...]) -> torch.Tensor:
    """The same numbers whatever the default type is."""
    default = torch.get_default_dtype()
    torch.set_default_dtype(FLOAT32)
    values = draw(name, shape).double()
    torch.set_default_dtype(default)
    return values


@contextlib.contextmanager
def float64_throughout():
    """What models compute in float32, whatever their type, is computed in float64."""
    saved = torch.float32, torch.float, torch.Tensor.float
    torch.float32 = torch.float = torch.float64
    torch.Tensor.float = torch.Tensor.double
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.float32, torch.float, torch.Tensor.float = saved
        torch.set_default_dtype(FLOAT32)


def built(case: Folder, fused: bool, moved: int = 0, precision: str = "float32") -> torch.nn.Module:
    case.config._attn_implementation = "sdpa" if fused and case.model._supports_sdpa else "eager"
    model = case.model(case.config).to(torch.get_default_dtype()).eval()
    random = torch.Generator().manual_seed(moved)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            values = weights(name, tuple(parameter.shape))
            if moved:
                sign = torch.randint(0, 2, parameter.shape, generator=random) * 2 - 1
                values = values * (1 + UNIT[precision] * sign)
            parameter.copy_(values)
            parameter.requires_grad_(True)  # Whisper's sinusoids too, which transformers does not train
    return model


def integers(seed: int, low: int, high: int, *shape: int) -> torch.Tensor:
    return torch.randint(low, high, shape, generator=torch.Generator().manual_seed(seed))


def given(case: Folder, padded: bool) -> Tensors:
    inputs = {"tokens": integers(1, 3, VOCABULARY, B, L)}
    if case.sees:
        size = case.config.image_size
        inputs = {"pixels": weights("pixels", (B, case.config.num_channels, size, size))}
    if case.hears:
        inputs["features"] = weights("features", (B, case.config.num_mel_bins, 2 * SOURCE))
    classes = getattr(case.config, "num_labels", 0) if case.model.__name__.endswith("Classification") else VOCABULARY
    if case.task != "Model" and not case.model.__name__.endswith("Model") or case.causal:
        inputs["targets"] = integers(2, 0, classes, B) if case.per_text else integers(2, 0, classes, B, L)
    if case.types:
        inputs["types"] = integers(3, 0, case.config.type_vocab_size, B, L)
    if case.encodes and not case.hears:
        inputs["source"] = integers(4, 3, VOCABULARY, B, SOURCE)
    if padded:
        inputs["lengths"] = LENGTHS
        if "targets" in inputs and not case.per_text:
            inputs["targets"][torch.arange(L) >= LENGTHS[:, None]] = IGNORED
        if case.encodes:
            inputs["source_lengths"] = SOURCE_LENGTHS
    return inputs


def rows_of(case: Folder, inputs: Tensors) -> Tensors:
    """What is before the layers of ViT and Whisper, without positions."""
    with float64_throughout(), torch.no_grad():
        model = built(case, False).double()
        if case.sees:
            embeddings = getattr(model, "vit", model).embeddings
            patches = embeddings.patch_embeddings(inputs["pixels"].double())
            return {"rows": torch.cat([embeddings.cls_token.expand(B, -1, -1), patches], 1)}
        encoder = model.model.encoder
        sound = F.gelu(encoder.conv1(inputs["features"].double()))
        return {"rows": F.gelu(encoder.conv2(sound)).transpose(1, 2)}


def there(lengths: torch.Tensor | None, length: int) -> torch.Tensor | None:
    return None if lengths is None else (torch.arange(length) < lengths[:, None]).long()


def without_padding(values: torch.Tensor, inputs: Tensors) -> torch.Tensor:
    if "lengths" not in inputs or values.dim() < 3 or values.shape[1] != L:
        return values
    return values * there(inputs["lengths"], L)[..., None]


@functools.lru_cache(maxsize=None)
def theirs(name: str, precision: str, padded: bool, fused: bool = False, moved: int = 0) -> tuple[Tensors, Tensors]:
    """Logits and loss, and gradients under their names."""
    case = BY_NAME[name]
    with float64_throughout() if precision == "float64" else contextlib.nullcontext():
        model = built(case, fused, moved, precision)
        inputs = given(case, padded)
        mask = there(inputs.get("lengths"), L)
        arguments = {"input_ids": inputs.get("tokens"), "attention_mask": mask}
        if case.sees:
            arguments = {"pixel_values": inputs["pixels"].to(torch.get_default_dtype())}
        elif case.hears:
            arguments = {"input_features": inputs["features"].to(torch.get_default_dtype()),
                         "decoder_input_ids": inputs["tokens"]}
        elif case.encodes:
            arguments = {"input_ids": inputs["source"], "decoder_input_ids": inputs["tokens"],
                         "decoder_attention_mask": mask,
                         "attention_mask": there(inputs.get("source_lengths"), SOURCE)}
        if case.types:
            arguments["token_type_ids"] = inputs["types"]
        with torch.autocast("cpu", HALVES.get(precision, torch.bfloat16), enabled=precision in HALVES):
            out = case.logits(model(**arguments))
        out = out.to(TYPES[precision])
        results = {"logits": without_padding(out, inputs)}
        if case.causal and not padded and case.cached:
            results["cached"] = out[:, -1:]
        gradients = {}
        if "targets" in inputs:
            loss = F.cross_entropy(out.flatten(0, -2), inputs["targets"].flatten(), ignore_index=IGNORED)
            loss.backward()
            results["loss"] = loss.reshape(1)
            for key, parameter in model.named_parameters():
                gradients[key] = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
            gradients[ZERO] = torch.zeros(1)
    return {key: value.detach() for key, value in results.items()}, gradients


def saved(case: Folder, where: str, numbered: bool) -> list[torch.Tensor]:
    """The folder, perhaps with every number replaced by four times its place in the list that is returned: of the
    parameters after the tensors."""
    model = built(case, False)
    model.save_pretrained(where)
    path = os.path.join(where, "model.safetensors")
    tensors, order, begin = safetensors.torch.load_file(path), [(ZERO, 1)], 1
    parameters = dict(model.named_parameters(remove_duplicate=False))
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    for key, tensor in tensors.items():
        if numbered and tensor.is_floating_point():
            tensors[key] = (4 * torch.arange(begin, begin + tensor.numel())).double().reshape(tensor.shape)
            named = {"embed_out.weight": "lm_head.weight"}.get(key, key)
            own = parameters.get(functools.reduce(lambda text, pair: text.replace(*pair), case.renamed, named))
            order.append((names[id(own)] if own is not None else "", tensor.numel()))
            begin += tensor.numel()
    if numbered:
        safetensors.torch.save_file(tensors, path)
    return order


@functools.lru_cache(maxsize=None)
def places(name: str) -> tuple[list, Tensors]:
    case = BY_NAME[name]
    with tempfile.TemporaryDirectory() as where:
        order = saved(case, where, True)
        token, row = torch.zeros(1, 1, dtype=torch.long), torch.zeros(1, 1, SMALL["hidden_size"])
        sent = {"input.rows": row} if case.sees else {"input.tokens": token}
        if case.encodes:
            sent |= {"input.rows": row} if case.hears else {"input.source": token.clone()}
        out = run_program({"folder": where, "precision": "float64", "task": case.task}, sent)
    prefix = "parameter."
    return order, {key[len(prefix):]: value for key, value in out.items() if key.startswith(prefix)}


def to_ours(name: str, gradients: Tensors) -> Tensors:
    """Without what is no parameter of theirs, but a buffer."""
    order, numbers = places(name)
    known = torch.cat([torch.full((count,), key != "") for key, count in order])
    numbers = {key: value for key, value in numbers.items() if known[(value / 4).long()].all()}
    line = torch.cat([gradients[key].flatten().double() if key else torch.zeros(count).double()
                      for key, count in order])
    return {f"gradient.{key}": line[(value / 4).long()] for key, value in numbers.items()}


def in_our_names(name: str, *arguments) -> Tensors:
    results, gradients = theirs(name, *arguments)
    return results | (to_ours(name, gradients) if gradients else {})


def compare(case: Folder, precision: str, padded: bool):
    inputs = given(case, padded)
    sent = {f"input.{key}": value for key, value in inputs.items() if key not in ("pixels", "features")}
    if case.sees or case.hears:
        sent |= {f"input.{key}": value.contiguous() for key, value in rows_of(case, inputs).items()}
    if "targets" in inputs:
        sent["input.targets"] = torch.where(inputs["targets"] == IGNORED, -1, inputs["targets"])
    with tempfile.TemporaryDirectory() as where:
        saved(case, where, False)
        out = run_program({"folder": where, "precision": precision, "task": case.task}, sent)
    ours = {key: value for key, value in out.items() if not key.startswith("parameter.")}
    ours["logits"] = without_padding(ours["logits"], inputs)
    if not case.cached:
        ours.pop("cached", None)
    moves = (0,) if precision in HALVES else (0, 1, 2)
    exact = in_our_names(case.name, "float64", padded)
    if case.model.__name__.startswith("Bart"):
        ours.pop("gradient.head.bias", None)  # which is a buffer there
    ways = [in_our_names(case.name, yardstick_of(precision), padded, fused, moved)
            for fused in (False, True) for moved in moves]
    return judge(ours, exact, ways, precision, B * L)


def expect_close(case: Folder, precision: str, padded: bool) -> None:
    bad = [str(verdict) for verdict in compare(case, precision, padded) if not verdict.good]
    assert not bad, "\n".join([f"{case.name} in {precision}", *bad])


@pytest.mark.parametrize("name", BY_NAME)
def test_float64(name: str) -> None:
    expect_close(BY_NAME[name], "float64", False)


@pytest.mark.parametrize("name", BY_NAME)
def test_float32(name: str) -> None:
    expect_close(BY_NAME[name], "float32", False)


@pytest.mark.parametrize("name", [case.name for case in FOLDERS if case.lengths])
def test_padded(name: str) -> None:
    expect_close(BY_NAME[name], "float64", True)


@pytest.mark.parametrize("name", [case.name for case in FOLDERS if case.in_half])
def test_bfloat16(name: str) -> None:
    expect_close(BY_NAME[name], "bfloat16", False)
