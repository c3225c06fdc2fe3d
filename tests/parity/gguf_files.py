"""Models of transformers written as GGUF files, as llama.cpp's converter lays them out.

`written()` quantizes a model's weights, puts the numbers that the file then holds back into the model, and writes the
file: both must compute the same.
"""

import pathlib

import gguf
import numpy as np
import torch
from gguf import GGMLQuantizationType as Type

ARCHITECTURES = {"llama": "llama", "qwen2": "qwen2", "qwen3": "qwen3", "gemma2": "gemma2"}
ADDS_ONE = {"gemma2"}  # the file has the gains themselves
# Blocks of 256: the package reads these types and does not write them. Where a block has its float16 numbers.
K_BLOCKS = {Type.Q4_K: (144, (0, 2)), Type.Q5_K: (176, (0, 2)), Type.Q6_K: (210, (208,))}


def random_blocks(kind: Type, rows: int, width: int, rng: np.random.Generator) -> np.ndarray:
    """Any bits, with scales that give weights of a usual size."""
    size, places = K_BLOCKS[kind]
    blocks = rng.integers(0, 256, (rows, width // 256, size), dtype=np.uint8)
    for place in places:
        scale = (rng.uniform(0.5, 1, blocks.shape[:2]) * 2e-5).astype(np.float16)
        blocks[..., place:place + 2] = scale[..., None].view(np.uint8)
    return blocks.reshape(rows, -1)


def in_pairs(weight: np.ndarray, heads: int) -> np.ndarray:
    """Rows of a query or key in the order of llama.cpp: the halves of a head that rotate together are neighbours."""
    return weight.reshape(heads, 2, -1, *weight.shape[1:]).swapaxes(1, 2).reshape(weight.shape)


def in_halves(weight: np.ndarray, heads: int) -> np.ndarray:
    return weight.reshape(heads, -1, 2, *weight.shape[1:]).swapaxes(1, 2).reshape(weight.shape)


def put_header(writer: gguf.GGUFWriter, config) -> None:
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_vocab_size(config.vocab_size)
    if width := getattr(config, "head_dim", None):
        writer.add_key_length(width)
        writer.add_value_length(width)
    if config.model_type == "gemma2":
        writer.add_sliding_window(config.sliding_window)
        writer.add_attn_logit_softcapping(config.attn_logit_softcapping)
        writer.add_final_logit_softcapping(config.final_logit_softcapping)


def written(model, path: pathlib.Path, type_of, tokenizer=lambda writer: None) -> None:
    """`type_of(name)` is the type of a weight matrix, by its name in the file; vectors are float32."""
    config = model.config
    kind = ARCHITECTURES[config.model_type]
    writer = gguf.GGUFWriter(path, kind)
    put_header(writer, config)
    tokenizer(writer)
    arch = next(key for key, name in gguf.MODEL_ARCH_NAMES.items() if name == kind)
    names = gguf.get_tensor_name_map(arch, config.num_hidden_layers)
    rng = np.random.default_rng(1)
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
    with torch.no_grad():
        for theirs, parameter in model.named_parameters():
            name = names.get_name(theirs, try_suffixes=(".weight", ".bias"))
            assert name, theirs
            weight = parameter.float().numpy().copy()
            turns = next((count for part, count in heads.items() if part in theirs), 0) if kind == "llama" else 0
            if weight.ndim == 1:
                if kind in ADDS_ONE:
                    weight += 1
                    parameter.copy_(torch.from_numpy(weight).double() - 1)
                writer.add_tensor(name, in_pairs(weight, turns) if turns else weight)
                continue
            if turns:
                weight = in_pairs(weight, turns)
            chosen = type_of(name)
            data = random_blocks(chosen, *weight.shape, rng) if chosen in K_BLOCKS else gguf.quantize(weight, chosen)
            kept = gguf.dequantize(data, chosen)
            parameter.copy_(torch.from_numpy((in_halves(kept, turns) if turns else kept).copy()))
            writer.add_tensor(name, data, raw_dtype=chosen)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
