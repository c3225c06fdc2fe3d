"""The configured model in plain PyTorch, written out: every option by its definition, on full attention matrices.

Parameters are a dict of tensors under our own names, weights [out, in]. Shapes: x [B, L, C]; scores [B, H, Lq, Lk].
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers.models.t5.modeling_t5 import T5Attention

ACTIVATIONS = {
    "relu": F.relu,
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "silu": F.silu,
    "tanh": torch.tanh,
}


class Parameters:
    """Parameters below a prefix."""

    def __init__(self, tensors: dict[str, Tensor], prefix: str = "") -> None:
        self.tensors, self.prefix = tensors, prefix

    def __truediv__(self, name: str) -> "Parameters":
        return Parameters(self.tensors, f"{self.prefix}{name}.")

    def get(self, name: str) -> Tensor | None:
        return self.tensors.get(self.prefix + name)

    def __getitem__(self, name: str) -> Tensor:
        return self.tensors[self.prefix + name]

    def linear(self, name: str, x: Tensor) -> Tensor:
        return F.linear(x, (self / name)["weight"], (self / name).get("bias"))

    def norm(self, name: str, x: Tensor, rms: bool, epsilon: float) -> Tensor:
        weight, bias = (self / name)["weight"], (self / name).get("bias")
        if rms:
            return x / (x.pow(2).mean(-1, keepdim=True) + epsilon).sqrt() * weight
        centred = x - x.mean(-1, keepdim=True)
        y = centred / (centred.pow(2).mean(-1, keepdim=True) + epsilon).sqrt() * weight
        return y if bias is None else y + bias


def rotate(x: Tensor, theta: float, interleaved: bool, rotated: int) -> Tensor:
    """x [B, H, L, D]: the first `rotated` features by pairs, as complex numbers."""
    n = rotated or x.shape[-1]
    frequency = theta ** (-torch.arange(0, n, 2, dtype=x.dtype) / n)
    angle = torch.arange(x.shape[-2], dtype=x.dtype)[:, None] * frequency
    a, b = (x[..., 0:n:2], x[..., 1:n:2]) if interleaved else (x[..., : n // 2], x[..., n // 2 : n])
    real, imaginary = a * angle.cos() - b * angle.sin(), a * angle.sin() + b * angle.cos()
    if interleaved:
        turned = torch.stack((real, imaginary), -1).flatten(-2)
    else:
        turned = torch.cat((real, imaginary), -1)
    return torch.cat((turned, x[..., n:]), -1)


def visible(config: dict, queries: int, keys: int, lengths: Tensor | None) -> Tensor:
    """[B|1, 1, Lq, Lk]: who sees whom."""
    i, j = torch.arange(queries)[:, None], torch.arange(keys)[None, :]
    seen = torch.ones(queries, keys, dtype=torch.bool)
    if config.get("causal"):
        seen &= j <= i
    if window := config.get("window", 0):
        seen &= (i - j).abs() < window
    seen = seen[None, None]
    return seen if lengths is None else seen & (j < lengths[:, None, None, None])


def distance_bias(p: Parameters, config: dict, queries: int, keys: int) -> Tensor:
    """T5's: a learned number a head and bucket of distances. [1, H, Lq, Lk]"""
    difference = torch.arange(keys)[None, :] - torch.arange(queries)[:, None]
    bucket = T5Attention._relative_position_bucket(
        difference, not config.get("causal", False), config.get("buckets", 32), config.get("max_distance", 128)
    )
    return p["distance_bias"][bucket].permute(2, 0, 1)[None]


def softmax_values(q: Tensor, k: Tensor, v: Tensor, seen: Tensor, bias: Tensor | None, fused: bool,
                   sink: Tensor | None = None) -> Tensor:
    """[B, H, Lq, Dv], joined to [B, Lq, H Dv]; by the definition, or `fused` in PyTorch's own operator. A sink [H] is
    one more key, of this score and of value zero."""
    if sink is not None:
        scores = sink[None, :, None, None].expand(*q.shape[:3], 1)
        added = torch.zeros((), dtype=q.dtype).masked_fill(~seen, -math.inf) + (0 if bias is None else bias)
        scores = torch.cat((q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1]) + added, scores), -1)
        return (scores.softmax(-1)[..., :-1] @ v).transpose(1, 2).flatten(2)
    blind = ~seen.any(-1, keepdim=True)  # rows that see nothing: their result is zero
    hidden = torch.zeros((), dtype=q.dtype).masked_fill(~(seen | blind), -math.inf)
    added = hidden if bias is None else hidden + bias
    if fused:
        values = F.scaled_dot_product_attention(q, k, v, attn_mask=added)
    else:
        values = (q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1]) + added).softmax(-1) @ v
    return values.masked_fill(blind, 0).transpose(1, 2).flatten(2)


def single_head(p: Parameters, config: dict, x: Tensor, given: dict[str, Tensor]) -> Tensor:
    source = given.get("memory", x)
    q, k, v = p.linear("query", x), p.linear("key", source), p.linear("value", source)
    seen = visible(config, x.shape[1], source.shape[1], given.get("lengths"))
    values = softmax_values(q[:, None], k[:, None], v[:, None], seen, None, config["fused"])
    return p.linear("output", values) if (p / "output").get("weight") is not None else values


def attention(p: Parameters, config: dict, x: Tensor, given: dict[str, Tensor]) -> Tensor:
    heads, source = config["heads"], given.get("memory", x)
    kv_heads = config.get("kv_heads") or heads
    width = config.get("head_dim") or x.shape[-1] // heads
    if "memory" in given:
        parts = (p.linear("query", x), *p.linear("key_value", source).chunk(2, -1))
    else:
        parts = p.linear("qkv", x).split([heads * width, kv_heads * width, kv_heads * width], -1)
    q, k, v = (part.unflatten(-1, (-1, width)).transpose(1, 2) for part in parts)
    position = config.get("position", "none")
    if position == "rope":
        turn = config.get("rope_theta", 1e4), config.get("rope_interleaved", False), config.get("rotary_dim", 0)
        q, k = rotate(q, *turn), rotate(k, *turn)
    k, v = (part.repeat_interleave(heads // kv_heads, 1) for part in (k, v))

    queries, keys = x.shape[1], source.shape[1]
    bias = given.get("bias")
    if position == "relative":
        distances = distance_bias(p, config, queries, keys)
        bias = distances if bias is None else bias + distances
    if position == "alibi":
        slopes = torch.tensor([2.0 ** (-8 * (h + 1) / heads) for h in range(heads)], dtype=x.dtype)
        distance = (torch.arange(queries)[:, None] - torch.arange(keys)).abs()
        bias = -slopes[:, None, None] * distance
    seen = visible(config, queries, keys, given.get("lengths"))
    if "mask" in given:
        seen = seen & given["mask"]
    values = softmax_values(q, k, v, seen, bias, config["fused"], p.get("sink"))
    if "gates" in given:
        gates = given["gates"].repeat_interleave(values.shape[-1] // given["gates"].shape[1], 1)
        values = values * gates[:, None]
    return p.linear("output", values)


def feed_forward(p: Parameters, config: dict, x: Tensor) -> Tensor:
    f, up = ACTIVATIONS[config["activation"]], p.linear("up", x)
    if config.get("gated"):
        gate, up = up.chunk(2, -1)
        return p.linear("down", f(gate) * up)
    return p.linear("down", f(up))


def block(p: Parameters, config: dict, x: Tensor, given: dict[str, Tensor]) -> Tensor:
    def norm(name: str, at: Tensor) -> Tensor:
        return p.norm(name, at, config.get("norm") == "rms", config["norm_epsilon"])

    if config["norm_placement"] == "pre":
        x = x + attention(p / "attention", config, norm("norm_attention", x), given)
        return x + feed_forward(p / "feed_forward", config, norm("norm_feed_forward", x))
    x = norm("norm_attention", x + attention(p / "attention", config, x, given))
    return norm("norm_feed_forward", x + feed_forward(p / "feed_forward", config, x))


def sinusoids(length: int, width: int, dtype: torch.dtype) -> Tensor:
    angle = torch.arange(length, dtype=dtype)[:, None] / 10000 ** (torch.arange(0, width, 2, dtype=dtype) / width)
    return torch.stack((angle.sin(), angle.cos()), -1).flatten(-2)[:, :width]


def model(tensors: dict[str, Tensor], config: dict, given: dict[str, Tensor]) -> Tensor:
    """Logits; `config` has every field that it is asked for."""
    p, tokens, lengths = Parameters(tensors), given["tokens"], given.get("lengths")
    length, table = tokens.shape[1], tensors["tokens.weight"]
    x = table[tokens]
    if config["positions"] == "learned":
        x = x + tensors["positions.weight"][:length]
    if config["positions"] == "sinusoidal":
        scale = config.get("embedding_scale") or x.shape[-1] ** 0.5
        x = scale * x + sinusoids(length, x.shape[-1], x.dtype)

    def norm(at: Tensor) -> Tensor:
        return p.norm("norm", at, config["norm"] == "rms", config["norm_epsilon"])

    inner = {} if lengths is None else {"lengths": lengths}
    if config["model"] == "selfhead":
        x = single_head(p / "attention", config, x, inner)
    else:
        if config["norm_placement"] == "post":
            x = norm(x)
        for n in range(config["layers"]):
            x = block(p / "blocks" / str(n), {**config, "position": config["positions"]}, x, inner)
        if config["norm_placement"] == "pre":
            x = norm(x)
    if not config.get("classes"):
        return x @ (table if config["tie_embeddings"] else tensors["head.weight"]).T
    if config["pooling"] == "first":
        return p.linear("head", x[:, 0])
    count = torch.full(tokens.shape[:1], length) if lengths is None else lengths
    inside = (torch.arange(length) < count[:, None])[..., None]
    return p.linear("head", (x * inside).sum(1) / count[:, None])
