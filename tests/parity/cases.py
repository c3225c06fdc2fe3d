"""What is compared: configurations, their inputs, and whom to compare them with."""

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

import peers
import written

B, L = 3, 19


@dataclass
class Case:
    name: str
    config: dict  # as the program `parity` reads it
    peer: Callable[[dict, torch.dtype], peers.Peer]
    inputs: dict[str, Tensor] = field(default_factory=dict)  # floats in float32
    in_half: bool = False  # also worth comparing in mixed precision, bfloat16 and float16

    @property
    def is_model(self) -> bool:
        return "layer" not in self.config

    @property
    def tokens(self) -> int:
        """As many as a gradient sums over, at most."""
        return max(math.prod(self.inputs[name].shape[:2]) for name in ("tokens", "x", "memory") if name in self.inputs)


def random_numbers(seed: int, *shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def random_integers(seed: int, low: int, high: int, *shape: int) -> Tensor:
    return torch.randint(low, high, shape, generator=torch.Generator().manual_seed(seed))


# ------------------------------------------------------------------------------------------------------------- models

VOCABULARY, IGNORED = 37, -1
LENGTHS = torch.tensor([12, L, 1])

# Every field of a model, so that nothing rests on defaults. Widths and lengths fill no vector.
MODEL = {
    "model": "gpt",
    "vocab_size": VOCABULARY,
    "context": 24,
    "embed_dim": 48,
    "layers": 2,
    "heads": 4,
    "kv_heads": 0,
    "hidden_dim": 84,
    "classes": 0,
    "pooling": "mean",
    "positions": "learned",
    "norm": "layer",
    "norm_placement": "pre",
    "norm_epsilon": 1e-5,
    "activation": "gelu_tanh",
    "gated": False,
    "bias": True,
    "causal": True,
    "window": 0,
    "tie_embeddings": True,
    "rope_theta": 1e4,
    "rope_interleaved": False,
}
LLAMA = {
    "model": "llama",
    "positions": "rope",
    "norm": "rms",
    "norm_epsilon": 1e-6,
    "activation": "silu",
    "gated": True,
    "bias": False,
}
ENCODER = {
    "model": "encoder",
    "causal": False,
    "norm_placement": "post",
    "norm_epsilon": 1e-12,
    "activation": "gelu",
    "classes": 5,
    "tie_embeddings": False,
}
SELFHEAD = {"model": "selfhead", "layers": 1, "heads": 1, "bias": False, "tie_embeddings": False}


def written_model(config: dict, dtype: torch.dtype) -> peers.Peer:
    width, hidden, vocabulary = config["embed_dim"], config["hidden_dim"], config["vocab_size"]
    shapes: dict[str, tuple[int, ...]] = {"tokens.weight": (vocabulary, width)}

    def add(name: str, *shape: int, bias: bool = config["bias"]) -> None:
        shapes[f"{name}.weight"] = shape
        if bias:
            shapes[f"{name}.bias"] = shape[:1]

    def add_norm(name: str) -> None:
        add(name, width, bias=config["bias"] and config["norm"] == "layer")

    if config["positions"] == "learned":
        add("positions", config["context"], width, bias=False)
    last = width
    if config["model"] == "selfhead":
        last = config.get("value_dim") or width
        for part in ("query", "key", "value"):
            add(f"attention.{part}", last if part == "value" else config.get("key_dim") or width, width)
        if config.get("output_projection"):
            add("attention.output", width, last)
            last = width
    else:
        head = config.get("head_dim") or width // config["heads"]
        for n in range(config["layers"]):
            block = f"blocks.{n}"
            add_norm(f"{block}.norm_attention")
            add_norm(f"{block}.norm_feed_forward")
            rows = config["heads"] + 2 * (config["kv_heads"] or config["heads"])
            add(f"{block}.attention.qkv", rows * head, width)
            add(f"{block}.attention.output", width, config["heads"] * head)
            if config["positions"] == "relative":
                shapes[f"{block}.attention.distance_bias"] = (32, config["heads"])
            add(f"{block}.feed_forward.up", hidden * (2 if config["gated"] else 1), width)
            add(f"{block}.feed_forward.down", width, hidden)
        add_norm("norm")
    if config["classes"]:
        add("head", config["classes"], last, bias=True)
    elif not config["tie_embeddings"]:
        add("head", vocabulary, last, bias=False)
    return peers.written_peer(shapes, lambda tensors, given: written.model(tensors, config, given), dtype)


def model(name: str, peer, *parts: dict, lengths: bool = False, shape=(B, L), in_half=False, **fields) -> Case:
    config = functools.reduce(dict.__or__, parts, MODEL) | fields
    batch, length = shape
    given = {"tokens": random_integers(1, 0, VOCABULARY, batch, length)}
    if config["classes"]:
        given["targets"] = random_integers(2, 0, config["classes"], batch)
    else:
        given["targets"] = random_integers(2, 0, VOCABULARY, batch, length)
        given["targets"][0, length // 2] = IGNORED
    if lengths:
        given["lengths"] = LENGTHS
        if not config["classes"]:
            given["targets"][torch.arange(length) >= LENGTHS[:, None]] = IGNORED
    return Case(name, config, peer, given, in_half)


MODELS = [
    model("gpt2", peers.gpt2, in_half=True),
    model("gpt2, untied head", peers.gpt2, tie_embeddings=False),
    model("gpt2, lengths", peers.gpt2, lengths=True),
    model("gpt2, one token", peers.gpt2, shape=(2, 1)),
    model("gpt2, over several blocks of keys", peers.gpt2, shape=(1, 300), context=300, layers=1),
    model("llama", peers.llama, LLAMA, in_half=True),
    model("llama, grouped queries, untied head", peers.llama, LLAMA, kv_heads=2, tie_embeddings=False,
          in_half=True),
    model("llama, one key head, theta 5e5, lengths", peers.llama, LLAMA, kv_heads=1, rope_theta=5e5, lengths=True),
    model("llama, biases", peers.llama, LLAMA, bias=True),
    model("llama, over several blocks of keys", peers.llama, LLAMA, shape=(1, 300), context=300, layers=1),
    model("encoder, mean", peers.encoder, ENCODER),
    model("encoder, mean, lengths", peers.encoder, ENCODER, lengths=True),
    model("encoder, first, lengths", peers.encoder, ENCODER, lengths=True, pooling="first"),
    model("selfhead", written_model, SELFHEAD, key_dim=10, value_dim=14),
    model("selfhead, tied head, biases", written_model, SELFHEAD, tie_embeddings=True, bias=True),
    model("selfhead, W_O, tied head", written_model, SELFHEAD, tie_embeddings=True, output_projection=True,
          value_dim=14),
    model("selfhead, no positions", written_model, SELFHEAD, positions="none"),
    model("selfhead, classes, lengths", written_model, SELFHEAD, classes=3, causal=False, lengths=True),
    model("alibi", written_model, positions="alibi"),
    model("sliding window", written_model, window=5),
    model("sinusoidal positions", written_model, positions="sinusoidal"),
    model("sinusoidal positions, tokens as they are", written_model, positions="sinusoidal", embedding_scale=1.0),
    model("heads of another width", written_model, LLAMA, head_dim=14, kv_heads=2),
    model("relative positions", written_model, positions="relative"),
    model("rope, interleaved", written_model, LLAMA, rope_interleaved=True, kv_heads=2),
    model("rope, interleaved, window, lengths", written_model, LLAMA, rope_interleaved=True, window=4, lengths=True),
    model("norm last, causal, relu", written_model, norm_placement="post", activation="relu"),
    model("encoder, two-sided window, rms, tanh", written_model, ENCODER, window=3, norm="rms", activation="tanh"),
    model("encoder, relative, gated gelu", written_model, ENCODER, positions="relative", gated=True, lengths=True),
    model("encoder, alibi, no bias, silu", written_model, ENCODER, positions="alibi", bias=False, activation="silu"),
    model("gpt that classifies", written_model, classes=4, lengths=True, pooling="first"),
]

# ------------------------------------------------------------------------------------------------------------- layers

WIDTH, HEADS, MEMORY, KEYS = 40, 4, 28, 23
SELF_MASK = random_numbers(5, B, 1, L, L) > 0
SELF_MASK[..., 0] = True  # every row sees something
CROSS_MASK = random_numbers(6, 1, HEADS, L, KEYS) > 0
CROSS_MASK[..., 3] = True


def written_attention(config: dict, dtype: torch.dtype) -> peers.Peer:
    width, heads = config["width"], config["heads"]
    kv_heads, head = config.get("kv_heads") or heads, config.get("head_dim") or width // heads
    shapes: dict[str, tuple[int, ...]] = {}
    if config.get("encoder_dim"):
        shapes["query.weight"], shapes["query.bias"] = (heads * head, width), (heads * head,)
        shapes["key_value.weight"] = 2 * kv_heads * head, config["encoder_dim"]
        shapes["key_value.bias"] = (2 * kv_heads * head,)
    else:
        rows = (heads + 2 * kv_heads) * head
        shapes["qkv.weight"], shapes["qkv.bias"] = (rows, width), (rows,)
    shapes["output.weight"], shapes["output.bias"] = (width, heads * head), (width,)
    if config.get("position") == "relative":
        shapes["distance_bias"] = config["buckets"], heads
    if config.get("sinks"):
        shapes["sink"] = (heads,)
    return peers.written_peer(
        shapes, lambda tensors, given: written.attention(written.Parameters(tensors), config, given["x"], given), dtype
    )


def written_head(config: dict, dtype: torch.dtype) -> peers.Peer:
    width, source = config["width"], config["width"]
    rows = {"query": config["key_width"], "key": config["key_width"], "value": config["value_width"]}
    shapes: dict[str, tuple[int, ...]] = {f"{part}.weight": (n, source) for part, n in rows.items()}
    if config.get("output_width"):
        rows["output"] = config["output_width"]
        shapes["output.weight"] = config["output_width"], config["value_width"]
    if config.get("bias"):
        shapes |= {f"{part}.bias": (n,) for part, n in rows.items()}
    return peers.written_peer(
        shapes, lambda tensors, given: written.single_head(written.Parameters(tensors), config, given["x"], given),
        dtype
    )


def layer(name: str, kind: str, peer, given: dict[str, Tensor] | None = None, length: int = L, **fields) -> Case:
    config = {"layer": kind, "width": WIDTH} | fields
    if kind in ("attention", "block"):
        config.setdefault("heads", HEADS)
    inputs = {"x": random_numbers(7, B, length, WIDTH)} | (given or {})
    if "encoder_dim" in config:
        inputs["memory"] = random_numbers(8, B, KEYS, config["encoder_dim"])
    inputs["dout"] = random_numbers(9, B, length, config.get("output_width") or config.get("value_width", WIDTH))
    return Case(name, config, peer, inputs)


def attention(name: str, given: dict[str, Tensor] | None = None, peer=peers.multihead_attention, **fields) -> Case:
    return layer(f"attention, {name}", "attention", peer, given, **fields)


def block(name: str, given: dict[str, Tensor] | None = None, **fields) -> Case:
    fields = {"hidden": 68, "norm_epsilon": 1e-5} | fields
    return layer(f"block, {name}", "block", peers.encoder_block, given, **fields)


PADDED = {"lengths": LENGTHS}
RELATIVE = {"position": "relative", "buckets": 8, "max_distance": 40, "peer": written_attention}
ROPE = {"position": "rope", "peer": written_attention}
LAYERS = [
    attention("self"),
    attention("self, no bias", bias=False, output_bias=False),
    attention("self, causal", causal=True),
    attention("self, lengths", PADDED),
    attention("self, mask", {"mask": SELF_MASK}),
    attention("self, bias of heads", {"bias": random_numbers(10, 1, HEADS, L, L)}),
    attention("self, bias of keys", {"bias": random_numbers(11, B, 1, 1, L)}),
    attention("cross", encoder_dim=MEMORY),
    attention("cross, no bias", encoder_dim=MEMORY, bias=False, output_bias=False),
    attention("cross, lengths", PADDED, encoder_dim=MEMORY),
    attention("cross, mask", {"mask": CROSS_MASK}, encoder_dim=MEMORY),
    attention("cross, bias", {"bias": random_numbers(12, B, HEADS, L, KEYS)}, encoder_dim=MEMORY),
    attention("cross, causal from the start", encoder_dim=MEMORY, causal=True),
    attention("grouped queries", peer=written_attention, kv_heads=2),
    attention("five heads of width 6", peer=written_attention, heads=5, head_dim=6, causal=True),
    attention("one key head, wide heads", peer=written_attention, kv_heads=1, head_dim=18),
    attention("cross, grouped queries", PADDED, peer=written_attention, kv_heads=2, encoder_dim=MEMORY),
    attention("window, causal", peer=written_attention, window=4, causal=True),
    attention("window, both sides", PADDED, peer=written_attention, window=4),
    attention("alibi, causal", peer=written_attention, position="alibi", causal=True),
    attention("alibi, both sides", PADDED, peer=written_attention, position="alibi"),
    attention("relative, causal", length=70, causal=True, **RELATIVE),
    attention("relative, both sides", length=70, **RELATIVE),
    attention("relative and a bias", {"bias": random_numbers(13, 1, HEADS, L, L)}, **RELATIVE),
    attention("rope", **ROPE),
    attention("rope, interleaved, causal", causal=True, rope_interleaved=True, **ROPE),
    attention("rope, part of a head", rotary_dim=6, kv_heads=2, **ROPE),
    attention("rope, interleaved, part of a head", rotary_dim=4, rope_interleaved=True, rope_theta=100.0, **ROPE),
    attention("sinks, causal, window, rope", kv_heads=2, window=5, causal=True, sinks=True, **ROPE),
    attention("sinks, lengths", PADDED, peer=written_attention, sinks=True),
    attention("gates of each sequence", {"gates": random_numbers(15, B, HEADS)}, peer=written_attention),
    attention("gates of groups", {"gates": random_numbers(16, 1, 2)}, peer=written_attention, kv_heads=2),
    block("norm last, gelu", activation="gelu", norm_placement="post"),
    block("norm last, relu, lengths", PADDED, activation="relu", norm_placement="post"),
    block("norm first, gelu, causal", activation="gelu", norm_placement="pre", causal=True),
    block("norm first, relu, no bias", activation="relu", norm_placement="pre", bias=False, output_bias=False),
    layer("one head", "self_attention", written_head, key_width=10, value_width=14),
    layer("one head, causal, bias", "self_attention", written_head, key_width=40, value_width=40, causal=True,
          bias=True),
    layer("one head, W_O, bias", "self_attention", written_head, key_width=10, value_width=14, output_width=22,
          bias=True),
    layer("one head, lengths", "self_attention", written_head, PADDED, key_width=12, value_width=6),
    layer(
        "one head, a second sequence",
        "self_attention",
        written_head,
        {"memory": random_numbers(14, B, KEYS, WIDTH)},
        key_width=12,
        value_width=20,
    ),
    layer("LSTM", "lstm", peers.lstm),
    layer("LSTM with a projection", "lstm", peers.lstm, hidden_dim=20),
]

CASES = MODELS + LAYERS
