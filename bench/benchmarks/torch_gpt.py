"""The peer: GPT-2's shape written in PyTorch as its users write it, with scaled_dot_product_attention.

usage: python -m benchmarks.torch_gpt JOB.json   prints one JSON object with the measurements

Job fields: kind (recipe, step, generate, or pairs: torch_pairs.py), threads, and the fields that the functions read.
"""

import json
import math
import sys

import torch
import torch.nn.functional as F
from torch import nn

from .timing import seconds_of, stopwatch


class Attention(nn.Module):
    def __init__(self, width, heads, bias):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width, bias=bias)
        self.output = nn.Linear(width, width, bias=bias)

    def forward(self, x, cache=None):
        B, L, C = x.shape
        q, k, v = (part.view(B, L, self.heads, C // self.heads).transpose(1, 2) for part in self.qkv(x).split(C, dim=2))
        if cache is None:
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:  # keys and values of a fixed size, filled up to `at`
            keys, values, at = cache
            keys[:, :, at : at + L], values[:, :, at : at + L] = k, v
            y = F.scaled_dot_product_attention(q, keys[:, :, : at + L], values[:, :, : at + L], is_causal=L > 1)
        return self.output(y.transpose(1, 2).reshape(B, L, C))


class Block(nn.Module):
    def __init__(self, width, heads, bias):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width, bias=bias), nn.LayerNorm(width, bias=bias)
        self.attention = Attention(width, heads, bias)
        self.up, self.down = nn.Linear(width, 4 * width, bias=bias), nn.Linear(4 * width, width, bias=bias)

    def forward(self, x, cache=None):
        x = x + self.attention(self.norm1(x), cache)
        return x + self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh"))


class Gpt(nn.Module):
    def __init__(self, vocab, context, width, layers, heads, bias):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocab, width), nn.Embedding(context, width)
        self.blocks = nn.ModuleList(Block(width, heads, bias) for _ in range(layers))
        self.norm = nn.LayerNorm(width, bias=bias)
        for name, parameter in self.named_parameters():
            if parameter.dim() == 2:
                residual = name.endswith(("output.weight", "down.weight"))
                nn.init.normal_(parameter, 0, 0.02 / math.sqrt(2 * layers) if residual else 0.02)
            elif name.endswith("bias"):
                nn.init.zeros_(parameter)

    def forward(self, ids, caches=None, at=0, last_only=False):
        x = self.tokens(ids) + self.positions(torch.arange(at, at + ids.shape[1]))
        for n, block in enumerate(self.blocks):
            x = block(x, None if caches is None else (*caches[n], at))
        if last_only:
            x = x[:, -1:]
        return F.linear(self.norm(x), self.tokens.weight)


def make(job):
    torch.manual_seed(1)
    return Gpt(job["vocab"], job["context"], job["width"], job["layers"], job["heads"], job["bias"])


def optimiser_of(model):
    groups = [{"params": [p for p in model.parameters() if p.dim() >= 2], "weight_decay": 0.1},
              {"params": [p for p in model.parameters() if p.dim() < 2], "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=1e-3, betas=(0.9, 0.99), fused=True)


def set_learning_rate(optimiser, step, steps, warmup, highest=1e-3):
    """Rises in `warmup` steps, then falls to a tenth along a cosine."""
    cosine = 0.1 + 0.45 * (1 + math.cos(math.pi * (step - warmup) / max(1, steps - warmup)))
    for group in optimiser.param_groups:
        group["lr"] = highest * ((step + 1) / (warmup + 1) if step < warmup else cosine)


def update(model, optimiser, ids, targets, autocast):
    optimiser.zero_grad(set_to_none=True)
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        logits = model(ids)
    loss = F.cross_entropy(logits.float().view(-1, logits.shape[-1]), targets.view(-1))
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimiser.step()
    assert math.isfinite(loss.item())


def recipe(job):
    """Characters of a text until the validation loss is reached; evaluation is not timed."""
    text = open(job["text"], encoding="utf-8").read()
    index = {c: n for n, c in enumerate(sorted(set(text)))}
    data = torch.tensor([index[c] for c in text])
    cut = len(data) - len(data) // 10
    train, held_out = data[:cut], data[cut:]
    job["vocab"] = len(index)
    model = make(job)
    run = torch.compile(model) if job["compile"] else model
    optimiser = optimiser_of(model)
    B, L = job["batch"], job["context"]

    def batch(part, starts):
        return (torch.stack([part[s : s + L] for s in starts]), torch.stack([part[s + 1 : s + L + 1] for s in starts]))

    def validation():
        places = torch.linspace(0, len(held_out) - L - 1, 20 * B).long().tolist()
        with torch.no_grad():
            losses = [F.cross_entropy(run(x).view(-1, job["vocab"]), y.view(-1)).item()
                      for x, y in (batch(held_out, places[n : n + B]) for n in range(0, len(places), B))]
        return sum(losses) / len(losses)

    seconds, curve, reached = 0.0, [], None
    for step in range(job["steps"]):
        set_learning_rate(optimiser, step, job["steps"], job["warmup"])
        elapsed = stopwatch()
        x, y = batch(train, torch.randint(len(train) - L - 1, (B,)).tolist())
        update(run, optimiser, x, y, False)
        if step > 0:  # the first step compiles
            seconds += elapsed()
        if (step + 1) % job["eval_every"] == 0:
            curve.append((step + 1, seconds, validation()))
            if reached is None and curve[-1][2] <= job["goal"]:
                reached = seconds
    return {"curve": curve, "reached": reached, "seconds": seconds, "steps": job["steps"]}


def step(job):
    model = make(job)
    run = torch.compile(model) if job["compile"] else model
    optimiser = optimiser_of(model)
    ids = torch.randint(job["vocab"], (job["batch"], job["length"]))
    targets = torch.randint(job["vocab"], (job["batch"], job["length"]))
    update(run, optimiser, ids, targets, job["bfloat16"])
    seconds = []
    for _ in range(job["repeats"]):
        seconds.append(seconds_of(lambda: update(run, optimiser, ids, targets, job["bfloat16"])))
    return {"seconds": seconds}


def generate(job):
    model = make(job).eval()
    if job["bfloat16"]:
        model = model.bfloat16()
    dtype = next(model.parameters()).dtype
    width = job["width"] // job["heads"]
    seconds = []
    with torch.inference_mode():
        for _ in range(job["repeats"] + 1):
            shape = (1, job["heads"], job["context"], width)
            caches = [(torch.zeros(shape, dtype=dtype), torch.zeros(shape, dtype=dtype)) for _ in range(job["layers"])]
            model(torch.randint(job["vocab"], (1, 8)), caches, 0, True)
            elapsed = stopwatch()
            token = torch.zeros(1, 1, dtype=torch.long)
            for n in range(job["tokens"]):
                token = model(token, caches, 8 + n, True).argmax(-1)
            seconds.append(elapsed())
    return {"seconds": seconds[1:]}


def main():
    job = json.loads(open(sys.argv[1]).read())
    torch.set_num_threads(job["threads"])
    torch.set_flush_denormal(True)
    if job["kind"] == "pairs":
        from .torch_pairs import pairs

        print(json.dumps(pairs(job)))
    else:
        print(json.dumps({"recipe": recipe, "step": step, "generate": generate}[job["kind"]](job)))


if __name__ == "__main__":
    main()
