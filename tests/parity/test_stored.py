"""Folders whose weights have 4 or 8 bits, by compressed-tensors, GPTQ and AWQ: the model of transformers has the
numbers of the codes, scales and zero points, in float64.
"""

import json
import pathlib

import numpy as np
import pytest
import safetensors.torch
import torch
import transformers
from peers import draw
from test_folders import float64_throughout
from test_gguf import attn, logits_of
from test_parity import run_program
from tolerance import UNIT

CONFIG = transformers.LlamaConfig(vocab_size=304, hidden_size=64, intermediate_size=160, num_hidden_layers=2,
                                  num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=64)
AWQ_ORDER = [0, 2, 4, 6, 1, 3, 5, 7]
CASES = [(method, bits, group, zeros) for method in ("compressed-tensors", "gptq", "gptq_v2", "awq")
         for bits in (4, 8) for group in (-1, 32) for zeros in (False, True)
         if not (method == "awq" and bits == 8) and not (zeros and group == -1)]


def packed(codes: np.ndarray, bits: int, axis: int) -> np.ndarray:
    """Whole numbers [.., n, ..] as int32 [.., n bits / 32, ..], the first in the lowest bits."""
    codes = np.moveaxis(codes, axis, -1).astype(np.uint64)
    codes = np.pad(codes, [(0, 0)] * (codes.ndim - 1) + [(0, -codes.shape[-1] % (32 // bits))])
    words = codes.reshape(*codes.shape[:-1], -1, 32 // bits)
    words = (words << np.arange(0, 32, bits, dtype=np.uint64)).sum(-1).astype(np.uint32).view(np.int32)
    return np.ascontiguousarray(np.moveaxis(words, -1, axis))


def stored(method: str, bits: int, codes: np.ndarray, scales: np.ndarray, zeros: np.ndarray | None,
           group: int) -> dict[str, np.ndarray]:
    """Tensors of W = scales (codes - zeros); codes [N, K], scales and zeros [N, groups]."""
    N, K = codes.shape
    if method == "compressed-tensors":
        tensors = {"weight_packed": packed(codes, bits, 1), "weight_scale": scales, "weight_shape": np.array([N, K])}
        return tensors | ({} if zeros is None else {"weight_zero_point": packed(zeros, bits, 0)})
    if zeros is None:
        zeros = np.full(scales.shape, 1 << (bits - 1))
    if method == "awq":
        def turned(x: np.ndarray) -> np.ndarray:
            return packed(x.T.reshape(x.shape[1], -1, 8)[..., AWQ_ORDER].reshape(x.shape[1], -1), 4, 1)

        return {"qweight": turned(codes), "qzeros": turned(zeros), "scales": scales.T}
    return {"qweight": packed(codes.T, bits, 0), "qzeros": packed(zeros.T - (method == "gptq"), bits, 1),
            "scales": scales.T, "g_idx": (np.arange(K) // (K if group == -1 else group)).astype(np.int32)}


def about(method: str, bits: int, group: int, zeros: bool) -> dict[str, object]:
    """quantization_config of config.json."""
    if method == "compressed-tensors":
        weights = {"num_bits": bits, "type": "int", "symmetric": not zeros, "dynamic": False, "actorder": None,
                   "strategy": "channel" if group == -1 else "group", "group_size": None if group == -1 else group}
        scheme = {"targets": ["Linear"], "weights": weights, "input_activations": None, "output_activations": None}
        return {"quant_method": method, "format": "pack-quantized", "quantization_status": "compressed",
                "config_groups": {"group_0": scheme}, "ignore": ["lm_head"], "kv_cache_scheme": None}
    if method == "awq":
        return {"quant_method": "awq", "bits": 4, "group_size": group, "zero_point": True, "version": "gemm"}
    return {"quant_method": "gptq", "bits": bits, "group_size": group, "sym": not zeros, "desc_act": False,
            "checkpoint_format": method}


def written(folder: pathlib.Path, method: str, bits: int, group: int, zeros: bool) -> torch.nn.Module:
    """Writes a folder; returns the model of its numbers."""
    with float64_throughout():
        model = transformers.AutoModelForCausalLM.from_config(CONFIG, dtype=torch.float64).eval()
    tensors, most = {}, (1 << bits) - 1
    for name, parameter in model.named_parameters():
        value = draw(name, tuple(parameter.shape)).numpy().astype(np.float32).astype(np.float64)
        if "_proj" not in name:
            tensors[name] = value.astype(np.float32)
        else:
            size = value.shape[1] if group == -1 else group
            groups = value.reshape(value.shape[0], -1, size)
            scales = (np.abs(groups).max(-1) / (most // 2)).astype(np.float16)
            middle = np.full(scales.shape, 1 << (bits - 1))
            points = middle + np.arange(scales.size).reshape(scales.shape) % 5 - 2 if zeros else middle
            codes = np.clip(np.round(groups / scales[..., None].astype(np.float64)) + points[..., None], 0, most)
            value = ((codes - points[..., None]) * scales[..., None].astype(np.float64)).reshape(value.shape)
            parts = stored(method, bits, codes.reshape(value.shape).astype(np.int64), scales,
                           points if zeros else None, group)
            tensors |= {name.removesuffix("weight") + end: np.ascontiguousarray(part) for end, part in parts.items()}
        with torch.no_grad():
            parameter.copy_(torch.from_numpy(value))
    CONFIG.save_pretrained(folder)
    config = json.loads((folder / "config.json").read_text())
    config |= {"architectures": ["LlamaForCausalLM"], "quantization_config": about(method, bits, group, zeros)}
    (folder / "config.json").write_text(json.dumps(config))
    safetensors.torch.save_file({name: torch.from_numpy(value) for name, value in tensors.items()},
                                folder / "model.safetensors")
    return model


TOKENS = torch.randint(0, 300, (2, 20), generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("method, bits, group, zeros", CASES)
def test_the_numbers_are_those_of_the_layout(method: str, bits: int, group: int, zeros: bool,
                                             tmp_path: pathlib.Path) -> None:
    model = written(tmp_path, method, bits, group, zeros)
    expected = logits_of(model, TOKENS)
    scale = expected.abs().max().item()
    found = run_program({"folder": str(tmp_path), "precision": "float64"}, {"input.tokens": TOKENS})["logits"]
    assert (found - expected).abs().max() < 2**12 * UNIT["float64"] * scale
    # Packed, products quantize the rows too: to 8 bits, so that a logit is off by some hundredths of what is typical.
    quick = run_program({"folder": str(tmp_path), "precision": "float32"}, {"input.tokens": TOKENS})["logits"]
    assert (quick - expected).abs().mean() < 0.03 * expected.abs().mean()


@pytest.mark.parametrize("bits", (4, 8))
def test_packed_as_compressed_tensors_packs(bits: int) -> None:
    helpers = pytest.importorskip("compressed_tensors.compressors.pack_quantized.helpers")
    codes = np.random.default_rng(1).integers(0, 1 << bits, (24, 40))
    signed = torch.from_numpy((codes - (1 << (bits - 1))).astype(np.int8))
    for axis in (0, 1):
        assert (packed(codes, bits, axis) == helpers.pack_to_int32(signed, bits, packed_dim=axis).numpy()).all()


@pytest.mark.parametrize("kind", ("int8", "int4"))
def test_what_attn_quantize_writes(kind: str, tmp_path: pathlib.Path) -> None:
    pytest.importorskip("compressed_tensors")
    plain, small, back = tmp_path / "plain", tmp_path / "small", tmp_path / "back"
    model = transformers.AutoModelForCausalLM.from_config(CONFIG, dtype=torch.float32).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(draw(name, tuple(parameter.shape)))
    model.save_pretrained(plain)
    attn("quantize", plain, "--to", kind, "--out", small)
    peer = transformers.AutoModelForCausalLM.from_pretrained(small, dtype=torch.float32).eval()
    with torch.no_grad():
        expected = peer(TOKENS).logits
    found = run_program({"folder": str(small), "precision": "float64"}, {"input.tokens": TOKENS})["logits"]
    scale = expected.abs().max().item()
    # Scales of float16 times codes are exact in float32; two layers of sums of at most 160 terms.
    assert (found - expected.double()).abs().max() < 2**10 * UNIT["float32"] * scale
    packed_file, plain_file = (folder / "model.safetensors" for folder in (small, plain))
    assert packed_file.stat().st_size < plain_file.stat().st_size
    # Back to numbers.
    attn("export", small, "--to", tmp_path / "half", "--precision", "bfloat16")
    half = safetensors.torch.load_file(tmp_path / "half/model.safetensors")
    assert {tensor.dtype for tensor in half.values() if tensor.dim() == 2} == {torch.bfloat16}
    attn("export", small, "--to", back)
    assert "quantization_config" not in json.loads((back / "config.json").read_text())
    numbers = run_program({"folder": str(back), "precision": "float64"}, {"input.tokens": TOKENS})["logits"]
    assert (numbers - found).abs().max() < 2**10 * UNIT["float32"] * scale
    tensors = safetensors.torch.load_file(back / "model.safetensors")
    for name, parameter in model.named_parameters():
        if "_proj" in name:
            groups, close = (each.detach().double().reshape(-1, 32) for each in (parameter, tensors[name]))
            most, error = groups.abs().amax(1, keepdim=True), close - groups
            # Half a step, and a scale that is rounded to 11 bits. Four bits are at least as close as those with the
            # scale of the largest number.
            if kind == "int8":
                assert (error.abs() <= (0.5 + 127 * 2.0**-11) * most / 127).all()
            else:
                plain_error = torch.round(groups / (most / 7)) * (most / 7) - groups
                assert ((error**2).sum(1) <= 1.01 * (plain_error**2).sum(1)).all()


def changed(folder: pathlib.Path, **fields: object) -> str:
    """What attn says after the fields of quantization_config have changed."""
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] |= fields
    (folder / "config.json").write_text(json.dumps(config))
    return refused(folder)


def refused(folder: pathlib.Path) -> str:
    with pytest.raises(AssertionError) as error:
        attn("info", folder)
        attn("eval", folder, folder / "config.json")
    return str(error.value)


@pytest.mark.parametrize("method, fields, reason", [
    ("gptq", {"bits": 3}, "bits is 3, only 4 or 8 is supported"),
    ("gptq", {"group_size": 7}, "group_size is 7, must be -1 or a multiple of 16"),
    ("gptq", {"quant_method": "bitsandbytes"}, 'quantized by "bitsandbytes", which is not read'),
    ("gptq", {"quant_method": None}, "the weights are quantized, which is not read"),
    ("awq", {"version": "gemv"}, 'version is "gemv", only null or "gemm" or "GEMM" is supported'),
    ("compressed-tensors", {"format": "float-quantized"}, 'format is "float-quantized", only "pack-quantized"'),
    ("compressed-tensors", {"config_groups": {}}, "config_groups must have one entry"),
])
def test_what_is_not_read(method: str, fields: dict, reason: str, tmp_path: pathlib.Path) -> None:
    written(tmp_path, method, 4, 32, True)
    assert reason in changed(tmp_path, **fields)


def test_shapes_that_do_not_fit(tmp_path: pathlib.Path) -> None:
    written(tmp_path, "compressed-tensors", 4, 32, True)
    tensors = safetensors.torch.load_file(tmp_path / "model.safetensors")
    base = "model.layers.0.self_attn.q_proj.weight_"
    for shape in ([64, -5], [64, 72], [64, 56], [-64, 64], [63, 64], [2**62, 2**62]):
        tensors[base + "shape"] = torch.tensor(shape)
        safetensors.torch.save_file(tensors, tmp_path / "model.safetensors")
        assert f"{base}shape does not fit {base}packed" in refused(tmp_path), shape
    tensors[base + "shape"] = torch.tensor([64])
    safetensors.torch.save_file(tensors, tmp_path / "model.safetensors")
    assert f"{base}shape must be two numbers of int64" in refused(tmp_path)


def test_tensors_that_do_not_fit(tmp_path: pathlib.Path) -> None:
    written(tmp_path, "gptq", 4, 32, True)
    tensors = safetensors.torch.load_file(tmp_path / "model.safetensors")
    base = "model.layers.1.mlp.up_proj."

    def said(**parts: torch.Tensor | None) -> str:
        content = {name: value for name, value in tensors.items()
                   if parts.get(name.removeprefix(base), value) is not None}
        content |= {base + name: value for name, value in parts.items() if value is not None}
        safetensors.torch.save_file(content, tmp_path / "model.safetensors")
        return refused(tmp_path)

    whole = {name.removeprefix(base): value for name, value in tensors.items() if name.startswith(base)}
    assert f"there is {base}qweight, but no {base}scales" in said(scales=None)
    assert f"there is {base}qweight, but no {base}qzeros" in said(qzeros=None)
    assert f"{base}scales is float16 [2, 159], must be a floating type [2, 160]" in said(
        scales=whole["scales"][:, :159].contiguous())
    assert f"{base}qweight is int64" in said(qweight=whole["qweight"].long())
    assert "desc_act" in said(g_idx=whole["g_idx"].flip(0).contiguous())
    shorter = {name: whole[name][:count].contiguous()
               for name, count in (("qweight", 4), ("scales", 1), ("qzeros", 1), ("g_idx", 32))}
    assert "must make blocks.1.feed_forward" in said(**shorter)
