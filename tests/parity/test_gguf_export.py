"""attn export and attn quantize to a GGUF file, beside the package gguf, transformers and llama.cpp."""

import copy
import json
import os
import pathlib
import subprocess

import gguf
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Type
from gguf_files import in_pairs
from test_gguf import CONFIGS, PROMPTS, TEXT, attn, byte_level, logits_of, small_model
from test_parity import run_program
from tokenizers import Tokenizer, decoders, models, normalizers, trainers
from tolerance import UNIT

EXPORTS = [(name, "float32", Type.F32) for name in CONFIGS] + [
    ("llama", "float16", Type.F16), ("llama", "bfloat16", Type.BF16), ("qwen2", "int8", Type.Q8_0),
    ("gemma2", "int8", Type.Q8_0), ("llama", "int4", Type.Q4_0), ("qwen3", "int4", Type.Q4_0)]


def with_bytes(adds_space: bool) -> Tokenizer:
    """As LLaMA 2 has it: pieces by merges, bytes for unknown characters, and a space before the text; or as Gemma."""
    tokenizer = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    replace = normalizers.Replace(" ", "▁")
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), replace]) if adds_space else replace
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    bytes_ = [f"<0x{n:02X}>" for n in range(256)]
    tokenizer.train_from_iterator(["Most of the words here are short, and it is not. " * 3], trainers.BpeTrainer(
        vocab_size=320, special_tokens=["<pad>", "<eos>", "<bos>", "<unk>", "<s>", "</s>", *bytes_]))
    whole = json.loads(tokenizer.to_str())
    whole["added_tokens"] = [each for each in whole["added_tokens"] if not each["content"].startswith("<0x")]
    return Tokenizer.from_str(json.dumps(whole))


def folder_of(name: str, folder: pathlib.Path, tokenizer: Tokenizer) -> torch.nn.Module:
    model = small_model(name)
    with torch.no_grad():
        for parameter in model.parameters():
            is_gain = name == "gemma2" and parameter.ndim == 1  # which a GGUF file has without its distance from 1
            parameter.copy_(parameter.float() + 1 - 1 if is_gain else parameter.float())
    copy.deepcopy(model).float().save_pretrained(folder)
    tokenizer.save(str(folder / "tokenizer.json"))
    return model


def exported(folder: pathlib.Path, kind: str) -> pathlib.Path:
    path = folder / f"{kind}.gguf"
    if kind.startswith("int"):
        attn("quantize", folder, "--to", kind, "--out", path)
    else:
        attn("export", folder, "--to", path, "--precision", kind)
    return path


@pytest.mark.parametrize("name, kind, stored", EXPORTS, ids=[f"{name}-{kind}" for name, kind, _ in EXPORTS])
def test_the_numbers_of_a_file(name: str, kind: str, stored: Type, tmp_path: pathlib.Path) -> None:
    """Each tensor has the bytes that the package gguf makes of the weights; what opens it computes the model."""
    tokenizer = with_bytes(False) if name == "gemma2" else byte_level("gpt-2")
    model = folder_of(name, tmp_path, tokenizer)
    path = exported(tmp_path, kind)
    reader = gguf.GGUFReader(path)
    kind_of = model.config.model_type
    arch = next(key for key, value in gguf.MODEL_ARCH_NAMES.items() if value == kind_of)
    names = gguf.get_tensor_name_map(arch, model.config.num_hidden_layers)
    tensors = {tensor.name: tensor for tensor in reader.tensors}
    heads = {"q_proj": model.config.num_attention_heads, "k_proj": model.config.num_key_value_heads}
    parameters = dict(model.named_parameters())
    for theirs, parameter in parameters.items():
        tensor = tensors.pop(names.get_name(theirs, try_suffixes=(".weight", ".bias")))
        weight = parameter.detach().float().numpy()
        turns = next((count for part, count in heads.items() if part in theirs), 0) if kind_of == "llama" else 0
        is_gain = kind_of == "gemma2" and weight.ndim == 1
        weight = in_pairs(weight, turns) if turns else weight + 1 if is_gain else weight
        is_table = tensor.name in ("token_embd.weight", "output.weight")
        wanted = Type.F32 if weight.ndim == 1 else Type.Q8_0 if stored == Type.Q4_0 and is_table else stored
        assert tensor.tensor_type == wanted, (tensor.name, tensor.tensor_type)
        expected = np.ascontiguousarray(gguf.quantize(np.ascontiguousarray(weight), wanted))
        assert np.array_equal(tensor.data.reshape(-1).view(np.uint8), expected.reshape(-1).view(np.uint8)), tensor.name
    assert not tensors, tensors.keys()
    if kind == "float32":
        tokens = torch.randint(0, 300, (2, 20), generator=torch.Generator().manual_seed(1))
        found = run_program({"folder": str(path), "precision": "float64"}, {"input.tokens": tokens})
        expected = logits_of(model, tokens)
        assert (found["logits"] - expected).abs().max() < 2**12 * UNIT["float64"] * expected.abs().max().item()


@pytest.mark.parametrize("kind", ["gpt-2", "smollm", "llama-bpe", "qwen2"])
def test_a_byte_level_tokenizer(kind: str, tmp_path: pathlib.Path) -> None:
    tokenizer = byte_level(kind)
    folder_of("llama", tmp_path, tokenizer)
    path = exported(tmp_path, "float16")
    fields = gguf.GGUFReader(path).fields
    assert fields["tokenizer.ggml.pre"].contents() == kind
    for text in (TEXT, TEXT[::-1], "<|start|>a<|end|>", "", " 12 345"):
        (tmp_path / "text").write_bytes(text.encode())
        ids = [int(word) for word in attn("tokenizer", "encode", path, tmp_path / "text").split()]
        assert ids == tokenizer.encode(text).ids, text


@pytest.mark.parametrize("name", ["llama", "gemma2"])
def test_a_tokenizer_with_bytes_for_unknown_characters(name: str, tmp_path: pathlib.Path) -> None:
    tokenizer = with_bytes(name == "llama")
    folder_of(name, tmp_path, tokenizer)
    path = exported(tmp_path, "float16")
    for text in ("Most of the words", "  two  spaces ", "Café 🙂 日本", "it is not"):
        (tmp_path / "line").write_bytes(text.encode())
        ids = [int(word) for word in attn("tokenizer", "encode", path, tmp_path / "line").split()]
        assert ids == tokenizer.encode(text).ids, text


def test_llama_cpp_opens_it(tmp_path: pathlib.Path) -> None:
    """The eight most probable next tokens of a small LLaMA, as transformers computes them."""
    peer = pytest.importorskip("xllamacpp")
    tokenizer = byte_level("llama-bpe")
    model = folder_of("llama", tmp_path, tokenizer)
    params = peer.CommonParams()
    params.model.path = str(exported(tmp_path, "float32"))
    params.n_ctx, params.n_parallel, params.verbosity = 256, 1, 0
    server = peer.Server(params)
    for text in PROMPTS[:3]:
        answer = server.handle_completions({"prompt": text, "max_tokens": 1, "temperature": 0, "logprobs": 8})
        top = answer["choices"][0]["logprobs"]["content"][0]["top_logprobs"]
        ids = torch.tensor([tokenizer.encode(text).ids])
        with torch.no_grad():
            expected = model(ids).logits[0, -1].log_softmax(0)[[entry["id"] for entry in top]]
        said = torch.tensor([entry["logprob"] for entry in top])
        assert (said - expected).abs().max() < 0.02, (said, expected)  # its cache of keys and values is in float16


def test_what_has_no_place(tmp_path: pathlib.Path) -> None:
    def refused(*arguments) -> str:
        done = subprocess.run([os.environ["ATTN"], *map(str, arguments)], capture_output=True, text=True)
        assert done.returncode == 1 and len(done.stderr.splitlines()) == 1, done.stderr
        return done.stderr

    tokenizer = byte_level("gpt-2")
    folder_of("llama", tmp_path / "llama", tokenizer)
    path = tmp_path / "model.gguf"
    path.write_bytes(b"mine")
    assert "exists: export needs a new file" in refused("export", tmp_path / "llama", "--to", path)
    assert path.read_bytes() == b"mine"
    path.unlink()
    whole = json.loads(tokenizer.to_str())
    whole["pre_tokenizer"] = {"type": "Split", "pattern": {"Regex": "[0-9]"}, "behavior": "Isolated", "invert": False}
    (tmp_path / "llama/tokenizer.json").write_text(json.dumps(whole))
    assert "makes words in a way that llama.cpp has no name for" in refused("export", tmp_path / "llama", "--to", path)
    assert not path.exists()
