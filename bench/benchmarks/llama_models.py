"""Whole models for llama.cpp: those of transformers, written as GGUF files, and its rates.

Needs the packages llama-cpp-python, whose C library it calls, and gguf.
"""

import pathlib

import numpy as np
import torch

from .timing import stopwatch

BATCH = 512


def numbers(tensor: torch.Tensor) -> np.ndarray:
    return tensor.detach().float().contiguous().numpy()


def rotated_in_pairs(weight: torch.Tensor, heads: int) -> torch.Tensor:
    """transformers turns features d and d + D/2 of a head together, llama.cpp 2 d and 2 d + 1."""
    rows, columns = weight.shape
    return weight.view(heads, 2, rows // heads // 2, columns).transpose(1, 2).reshape(rows, columns)


def tensors_of_llama(model) -> dict[str, torch.Tensor]:
    config, weights = model.config, model.state_dict()
    names = {"attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm", "attn_v": "self_attn.v_proj",
             "attn_output": "self_attn.o_proj", "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj",
             "ffn_down": "mlp.down_proj"}
    tensors = {"token_embd.weight": weights["model.embed_tokens.weight"],
               "output_norm.weight": weights["model.norm.weight"], "output.weight": weights["lm_head.weight"]}
    for n in range(config.num_hidden_layers):
        at = f"model.layers.{n}."
        for name, theirs in names.items():
            tensors[f"blk.{n}.{name}.weight"] = weights[f"{at}{theirs}.weight"]
        for name, heads in (("q", config.num_attention_heads), ("k", config.num_key_value_heads)):
            tensors[f"blk.{n}.attn_{name}.weight"] = rotated_in_pairs(weights[f"{at}self_attn.{name}_proj.weight"],
                                                                      heads)
    return tensors


def tensors_of_gpt2(model) -> dict[str, torch.Tensor]:
    weights = model.state_dict()
    names = {"attn_norm": "ln_1", "attn_qkv": "attn.c_attn", "attn_output": "attn.c_proj", "ffn_norm": "ln_2",
             "ffn_up": "mlp.c_fc", "ffn_down": "mlp.c_proj"}
    tensors = {"token_embd.weight": weights["transformer.wte.weight"],
               "position_embd.weight": weights["transformer.wpe.weight"],
               "output_norm.weight": weights["transformer.ln_f.weight"],
               "output_norm.bias": weights["transformer.ln_f.bias"]}
    for n in range(model.config.n_layer):
        for name, theirs in names.items():
            weight = weights[f"transformer.h.{n}.{theirs}.weight"]
            tensors[f"blk.{n}.{name}.weight"] = weight.T if theirs.count(".") == 1 else weight
            tensors[f"blk.{n}.{name}.bias"] = weights[f"transformer.h.{n}.{theirs}.bias"]
    return tensors


def write_gguf(model, path: pathlib.Path, precision: str) -> None:
    """`precision`: of the matrices, float32 or bfloat16; norms and biases are float32."""
    import gguf

    config = model.config
    llama = config.model_type == "llama"
    writer = gguf.GGUFWriter(path, config.model_type)
    writer.add_vocab_size(config.vocab_size)
    writer.add_tokenizer_model("none")
    if llama:
        writer.add_context_length(config.max_position_embeddings)
        writer.add_embedding_length(config.hidden_size)
        writer.add_block_count(config.num_hidden_layers)
        writer.add_feed_forward_length(config.intermediate_size)
        writer.add_head_count(config.num_attention_heads)
        writer.add_head_count_kv(config.num_key_value_heads)
        writer.add_layer_norm_rms_eps(config.rms_norm_eps)
        writer.add_rope_dimension_count(config.hidden_size // config.num_attention_heads)
        writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    else:
        writer.add_context_length(config.n_positions)
        writer.add_embedding_length(config.n_embd)
        writer.add_block_count(config.n_layer)
        writer.add_feed_forward_length(4 * config.n_embd)
        writer.add_head_count(config.n_head)
        writer.add_layer_norm_eps(config.layer_norm_epsilon)
    for name, tensor in (tensors_of_llama if llama else tensors_of_gpt2)(model).items():
        array = numbers(tensor)
        if precision == "bfloat16" and array.ndim == 2 and name != "position_embd.weight":
            kind = gguf.GGMLQuantizationType.BF16
            writer.add_tensor(name, gguf.quants.quantize(array, kind), raw_dtype=kind)
        else:
            writer.add_tensor(name, array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


class LlamaCpp:
    """A GGUF file after llama.cpp's C interface."""

    def __init__(self, path: pathlib.Path, threads: int, context: int = 1024, cache: str | None = None) -> None:
        """`cache`: the type of keys and values, as Q8_0, with flash attention; None: as llama.cpp chooses."""
        import llama_cpp

        self.c = llama_cpp.llama_cpp
        self.c.llama_backend_init()
        self.quiet = self.c.llama_log_callback(lambda *_: None)  # kept alive as long as the library may call it
        self.c.llama_log_set(self.quiet, None)
        self.model = self.c.llama_model_load_from_file(str(path).encode(), self.c.llama_model_default_params())
        if not self.model:
            raise RuntimeError(f"llama.cpp does not read {path}")
        params = self.c.llama_context_default_params()
        params.n_ctx, params.n_batch, params.n_ubatch = context, BATCH, BATCH
        if cache:
            params.type_k = params.type_v = getattr(self.c, f"GGML_TYPE_{cache}")
            params.flash_attn_type = self.c.LLAMA_FLASH_ATTN_TYPE_ENABLED
        params.n_threads = params.n_threads_batch = threads
        self.context = self.c.llama_init_from_model(self.model, params)
        self.vocabulary = self.c.llama_vocab_n_tokens(self.c.llama_model_get_vocab(self.model))

    def close(self) -> None:
        self.c.llama_free(self.context)
        self.c.llama_model_free(self.model)

    def feed(self, ids: list[int]) -> np.ndarray:
        """The logits after the last of `ids`, which follow what was fed before."""
        tokens = (self.c.llama_token * len(ids))(*ids)
        if self.c.llama_decode(self.context, self.c.llama_batch_get_one(tokens, len(ids))) != 0:
            raise RuntimeError("llama_decode failed")
        logits = self.c.llama_get_logits_ith(self.context, -1)
        return np.ctypeslib.as_array(logits, (self.vocabulary,)).copy()

    def feed_all(self, ids: list[int]) -> None:
        """As many as fit at once."""
        for begin in range(0, len(ids), BATCH):
            self.feed(ids[begin:begin + BATCH])

    def forget(self, after: int = 0) -> None:
        """All tokens, but the first `after`."""
        self.c.llama_memory_seq_rm(self.c.llama_get_memory(self.context), 0, after, -1)

    def rates(self, prompt: int, new: int) -> tuple[float, float]:
        """Tokens a second of a prompt, and of tokens one after the other."""
        self.forget()
        elapsed = stopwatch()
        self.feed([5 + n % 1000 for n in range(prompt)])
        prefill = prompt / elapsed()
        self.forget()
        self.feed([7])
        elapsed = stopwatch()
        for n in range(new):
            self.feed([5 + n])
        return prefill, new / elapsed()
