"""Models and layers of PyTorch and transformers, each with the way from its parameters to ours.

The way maps a dict of tensors under their names to one under ours. It is linear, so it holds for weights and gradients.
config["fused"] asks for PyTorch's fused attention in place of matrices of weights, where there is the choice.
"""

import zlib
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM
from transformers.models.llama.modeling_llama import LlamaRMSNorm

Tensors = dict[str, Tensor]


@dataclass
class Peer:
    """Something to run: leaves, the function of the inputs, and the way to our names."""

    parameters: Tensors
    forward: Callable[[Tensors], Tensor]
    to_ours: Callable[[Tensors], Tensors]


def draw(name: str, shape: tuple[int, ...]) -> Tensor:
    """float32 numbers that depend on the name alone: weights that keep the size of what they multiply, biases that are
    not zero, norms that are not one."""
    values = torch.randn(shape, generator=torch.Generator().manual_seed(zlib.crc32(name.encode())))
    if len(shape) > 1:
        return values * 1.5 / shape[-1] ** 0.5
    return 0.2 * values + (name.endswith("weight"))


def written_peer(shapes: dict[str, tuple[int, ...]], forward: Callable[[Tensors, Tensors], Tensor], dtype: torch.dtype):
    """A function of parameters that already have our names."""
    parameters = {name: draw(name, shape).to(dtype).requires_grad_() for name, shape in shapes.items()}
    return Peer(parameters, lambda given: forward(parameters, given), dict)


def module_peer(module: nn.Module, forward, to_ours, dtype: torch.dtype) -> Peer:
    """`forward` is of the module and the inputs. Dropout is off by its probability: eval() would let PyTorch's layers
    take another path."""
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            parameter.copy_(draw(name, parameter.shape))
    module.to(dtype)
    return Peer(dict(module.named_parameters()), lambda given: forward(module, given), to_ours)


# ------------------------------------------------------------------------------------------------------- transformers


def padding(given: Tensors) -> Tensor | None:
    """[B, L], 1 where there is a token."""
    if "lengths" not in given:
        return None
    return (torch.arange(given["tokens"].shape[1]) < given["lengths"][:, None]).long()


def causal_forward(model: nn.Module, given: Tensors) -> Tensor:
    return model(input_ids=given["tokens"], attention_mask=padding(given), use_cache=False).logits


def gpt2(config: dict, dtype: torch.dtype) -> Peer:
    model = GPT2LMHeadModel(
        GPT2Config(
            vocab_size=config["vocab_size"],
            n_positions=config["context"],
            n_embd=config["embed_dim"],
            n_layer=config["layers"],
            n_head=config["heads"],
            n_inner=config["hidden_dim"],
            layer_norm_epsilon=config["norm_epsilon"],
            activation_function="gelu_new",
            resid_pdrop=0,
            embd_pdrop=0,
            attn_pdrop=0,
            tie_word_embeddings=config["tie_embeddings"],
            attn_implementation="sdpa" if config["fused"] else "eager",
            bos_token_id=0,
            eos_token_id=0,
        )
    )

    def to_ours(t: Tensors) -> Tensors:
        ours = {"tokens.weight": t["transformer.wte.weight"], "positions.weight": t["transformer.wpe.weight"]}
        names = {
            "norm_attention": "ln_1",
            "attention.qkv": "attn.c_attn",
            "attention.output": "attn.c_proj",
            "norm_feed_forward": "ln_2",
            "feed_forward.up": "mlp.c_fc",
            "feed_forward.down": "mlp.c_proj",
        }
        for n in range(config["layers"]):
            for our, their in names.items():  # weights of Conv1D are [in, out]
                ours[f"blocks.{n}.{our}.weight"] = t[f"transformer.h.{n}.{their}.weight"].t().contiguous()
                ours[f"blocks.{n}.{our}.bias"] = t[f"transformer.h.{n}.{their}.bias"]
        ours["norm.weight"], ours["norm.bias"] = t["transformer.ln_f.weight"], t["transformer.ln_f.bias"]
        if not config["tie_embeddings"]:
            ours["head.weight"] = t["lm_head.weight"]
        return ours

    return module_peer(model, causal_forward, to_ours, dtype)


def make_exact(model: LlamaForCausalLM) -> None:
    """transformers computes norms, angles and softmax in float32, whatever the model's type: for a reference in
    float64 they are put back as their definitions say."""
    model.set_attn_implementation("sdpa")  # eager's softmax is in float32
    for module in model.modules():
        if isinstance(module, LlamaRMSNorm):
            module.forward = lambda x, m=module: F.rms_norm(x, x.shape[-1:], m.weight, m.variance_epsilon)
    width = model.config.hidden_size // model.config.num_attention_heads
    frequency = model.config.rope_parameters["rope_theta"] ** (-torch.arange(0, width, 2).double() / width)

    def rotary(x: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor]:
        angle = (position_ids[..., None] * frequency).repeat(1, 1, 2)
        return angle.cos(), angle.sin()

    model.model.rotary_emb.forward = rotary


def llama(config: dict, dtype: torch.dtype) -> Peer:
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=config["vocab_size"],
            hidden_size=config["embed_dim"],
            intermediate_size=config["hidden_dim"],
            num_hidden_layers=config["layers"],
            num_attention_heads=config["heads"],
            num_key_value_heads=config.get("kv_heads") or config["heads"],
            hidden_act="silu",
            max_position_embeddings=config["context"],
            rms_norm_eps=config["norm_epsilon"],
            rope_parameters={"rope_type": "default", "rope_theta": config["rope_theta"]},
            tie_word_embeddings=config["tie_embeddings"],
            attention_bias=config["bias"],
            mlp_bias=config["bias"],
            attn_implementation="sdpa" if config["fused"] else "eager",
            bos_token_id=0,
            eos_token_id=0,
        )
    )
    if dtype == torch.float64:
        make_exact(model)

    def to_ours(t: Tensors) -> Tensors:
        ours = {"tokens.weight": t["model.embed_tokens.weight"], "norm.weight": t["model.norm.weight"]}
        for n in range(config["layers"]):
            our, their = f"blocks.{n}", f"model.layers.{n}"
            ours[f"{our}.norm_attention.weight"] = t[f"{their}.input_layernorm.weight"]
            ours[f"{our}.norm_feed_forward.weight"] = t[f"{their}.post_attention_layernorm.weight"]
            for part in ("weight", "bias") if config["bias"] else ("weight",):

                def joined(*names: str) -> Tensor:
                    return torch.cat([t[f"{their}.{name}_proj.{part}"] for name in names])

                ours[f"{our}.attention.qkv.{part}"] = joined("self_attn.q", "self_attn.k", "self_attn.v")
                ours[f"{our}.attention.output.{part}"] = joined("self_attn.o")
                ours[f"{our}.feed_forward.up.{part}"] = joined("mlp.gate", "mlp.up")
                ours[f"{our}.feed_forward.down.{part}"] = joined("mlp.down")
        if not config["tie_embeddings"]:
            ours["head.weight"] = t["lm_head.weight"]
        return ours

    return module_peer(model, causal_forward, to_ours, dtype)


# ------------------------------------------------------------------------------------------------------------ PyTorch


def padded(given: Tensors, keys: int) -> Tensor | None:
    """[B, Lk], true where PyTorch is to look away."""
    return torch.arange(keys) >= given["lengths"][:, None] if "lengths" in given else None


def encoder_layer(config: dict, width: int) -> nn.TransformerEncoderLayer:
    return nn.TransformerEncoderLayer(
        width,
        config["heads"],
        config["hidden"],
        dropout=0,
        activation=config["activation"],
        layer_norm_eps=config["norm_epsilon"],
        batch_first=True,
        norm_first=config["norm_placement"] == "pre",
        bias=config.get("bias", True),
    )


ENCODER_LAYER = {
    "norm_attention.weight": "norm1.weight",
    "norm_attention.bias": "norm1.bias",
    "attention.qkv.weight": "self_attn.in_proj_weight",
    "attention.qkv.bias": "self_attn.in_proj_bias",
    "attention.output.weight": "self_attn.out_proj.weight",
    "attention.output.bias": "self_attn.out_proj.bias",
    "norm_feed_forward.weight": "norm2.weight",
    "norm_feed_forward.bias": "norm2.bias",
    "feed_forward.up.weight": "linear1.weight",
    "feed_forward.up.bias": "linear1.bias",
    "feed_forward.down.weight": "linear2.weight",
    "feed_forward.down.bias": "linear2.bias",
}


def encoder_block(config: dict, dtype: torch.dtype) -> Peer:
    def forward(layer: nn.Module, given: Tensors) -> Tensor:
        length = given["x"].shape[1]
        mask = torch.ones(length, length, dtype=torch.bool).triu(1) if config.get("causal") else None
        return layer(given["x"], src_mask=mask, src_key_padding_mask=padded(given, length))

    def to_ours(t: Tensors) -> Tensors:
        return {our: t[their] for our, their in ENCODER_LAYER.items() if their in t}

    return module_peer(encoder_layer(config, config["width"]), forward, to_ours, dtype)


class Encoder(nn.Module):
    """As BERT: token and position embeddings, a norm, blocks that norm last, and a classifier."""

    def __init__(self, config: dict) -> None:
        super().__init__()
        width, layer = config["embed_dim"], {**config, "hidden": config["hidden_dim"]}
        self.tokens = nn.Embedding(config["vocab_size"], width)
        self.positions = nn.Embedding(config["context"], width)
        self.norm = nn.LayerNorm(width, config["norm_epsilon"])
        self.layers = nn.ModuleList(encoder_layer(layer, width) for _ in range(config["layers"]))
        self.head = nn.Linear(width, config["classes"])
        self.pooling = config["pooling"]

    def forward(self, given: Tensors) -> Tensor:
        length = given["tokens"].shape[1]
        ignored = padded(given, length)
        x = self.norm(self.tokens(given["tokens"]) + self.positions(torch.arange(length)))
        for layer in self.layers:
            x = layer(x, src_key_padding_mask=ignored)
        if self.pooling == "first":
            return self.head(x[:, 0])
        if ignored is None:
            return self.head(x.mean(1))
        return self.head(x.masked_fill(ignored[..., None], 0).sum(1) / given["lengths"][:, None])


def encoder(config: dict, dtype: torch.dtype) -> Peer:
    def to_ours(t: Tensors) -> Tensors:
        ours = {name: value for name, value in t.items() if not name.startswith("layers.")}
        for n in range(config["layers"]):
            for our, their in ENCODER_LAYER.items():
                ours[f"blocks.{n}.{our}"] = t[f"layers.{n}.{their}"]
        return ours

    return module_peer(Encoder(config), lambda module, given: module(given), to_ours, dtype)


def lstm(config: dict, dtype: torch.dtype) -> Peer:
    """torch.nn.LSTM with one bias, and a linear layer after it where the hidden width is another one."""
    width, hidden = config["width"], config.get("hidden_dim") or config["width"]
    module = nn.ModuleDict({"lstm": nn.LSTM(width, hidden, batch_first=True)})
    if "hidden_dim" in config:
        module["output"] = nn.Linear(hidden, width, bias=False)

    def forward(modules: nn.ModuleDict, given: Tensors) -> Tensor:
        out = modules["lstm"](given["x"])[0]
        return modules["output"](out) if "output" in modules else out

    def to_ours(tensors: Tensors) -> Tensors:
        names = {"lstm.weight_ih_l0": "lstm.input.weight", "lstm.bias_ih_l0": "lstm.input.bias",
                 "lstm.weight_hh_l0": "lstm.recurrent.weight", "output.weight": "lstm.output.weight"}
        return {ours: tensors[theirs] for theirs, ours in names.items() if theirs in tensors}

    peer = module_peer(module, forward, to_ours, dtype)
    with torch.no_grad():
        module["lstm"].bias_hh_l0.zero_()
    del peer.parameters["lstm.bias_hh_l0"]
    return peer


def multihead_attention(config: dict, dtype: torch.dtype) -> Peer:
    memory, heads = config.get("encoder_dim"), config["heads"]
    layer = nn.MultiheadAttention(
        config["width"], heads, bias=config.get("bias", True), kdim=memory, vdim=memory, batch_first=True
    )

    def forward(module: nn.Module, given: Tensors) -> Tensor:
        x, source = given["x"], given.get("memory", given["x"])
        every = (x.shape[0], heads, x.shape[1], source.shape[1])
        mask = None
        if "mask" in given:
            mask = ~given["mask"].expand(every).flatten(0, 1)
        elif "bias" in given:
            mask = given["bias"].expand(every).flatten(0, 1)
        elif config.get("causal"):
            mask = torch.ones(every[2:], dtype=torch.bool).triu(1)
        return module(x, source, source, padded(given, every[3]), not config["fused"], mask)[0]

    def to_ours(t: Tensors) -> Tensors:
        ours = {}
        if memory:
            ours["query.weight"] = t["q_proj_weight"]
            ours["key_value.weight"] = torch.cat((t["k_proj_weight"], t["v_proj_weight"]))
        else:
            ours["qkv.weight"] = t["in_proj_weight"]
        if "in_proj_bias" in t:
            bias = t["in_proj_bias"]
            ours.update({"query.bias": bias[: config["width"]], "key_value.bias": bias[config["width"] :]} if memory
                        else {"qkv.bias": bias})
        present = [part for part in ("weight", "bias") if f"out_proj.{part}" in t]
        return ours | {f"output.{part}": t[f"out_proj.{part}"] for part in present}

    return module_peer(layer, forward, to_ours, dtype)
