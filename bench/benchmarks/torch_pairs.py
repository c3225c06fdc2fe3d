"""The peer of phonemes.py: the same encoder and decoder written in PyTorch as its users write them.

Job fields: train, validation, test (files of pairs), seconds (of training), and the shape: width, layers, heads,
context, batch, dropout, learning_rate, warmup, seed.
"""

import math
import random

import torch
import torch.nn.functional as F
from torch import nn

from .timing import stopwatch
from .torch_gpt import optimiser_of, set_learning_rate

IGNORED = -100


class Attention(nn.Module):
    def __init__(self, width, heads, dropout):
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.query, self.key_value = nn.Linear(width, width), nn.Linear(width, 2 * width)
        self.output = nn.Linear(width, width)

    def forward(self, x, memory, mask=None, causal=False):
        B, L, C = x.shape
        split = lambda rows: rows.view(B, -1, self.heads, C // self.heads).transpose(1, 2)
        k, v = self.key_value(memory).chunk(2, dim=-1)
        y = F.scaled_dot_product_attention(split(self.query(x)), split(k), split(v), attn_mask=mask, is_causal=causal,
                                           dropout_p=self.dropout if self.training else 0.0)
        return self.output(y.transpose(1, 2).reshape(B, L, C))


class Block(nn.Module):
    def __init__(self, shape, cross):
        super().__init__()
        width = shape["width"]
        self.norm = nn.ModuleList(nn.LayerNorm(width) for _ in range(3 if cross else 2))
        self.attention = Attention(width, shape["heads"], shape["dropout"])
        self.cross = Attention(width, shape["heads"], shape["dropout"]) if cross else None
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.dropout = nn.Dropout(shape["dropout"])

    def forward(self, x, mask=None, memory=None, memory_mask=None):
        y = self.norm[0](x)
        x = x + self.dropout(self.attention(y, y, mask, causal=self.cross is not None))
        if self.cross is not None:
            x = x + self.dropout(self.cross(self.norm[1](x), memory, memory_mask))
        return x + self.dropout(self.down(F.gelu(self.up(self.norm[-1](x)), approximate="tanh")))


class Stack(nn.Module):
    def __init__(self, shape, tokens, cross):
        super().__init__()
        width = shape["width"]
        self.tokens, self.positions = nn.Embedding(tokens, width), nn.Embedding(shape["context"], width)
        self.blocks = nn.ModuleList(Block(shape, cross) for _ in range(shape["layers"]))
        self.norm, self.dropout = nn.LayerNorm(width), nn.Dropout(shape["dropout"])

    def forward(self, ids, *arguments):
        x = self.dropout(self.tokens(ids) + self.positions(torch.arange(ids.shape[1])))
        for block in self.blocks:
            x = block(x, *arguments)
        return self.norm(x)


class Seq2Seq(nn.Module):
    def __init__(self, shape, source_tokens, target_tokens):
        super().__init__()
        self.encoder, self.decoder = Stack(shape, source_tokens, False), Stack(shape, target_tokens, True)
        for name, parameter in self.named_parameters():
            if parameter.dim() == 2:
                residual = name.endswith(("output.weight", "down.weight"))
                nn.init.normal_(parameter, 0, 0.02 / math.sqrt(2 * shape["layers"]) if residual else 0.02)
            elif name.endswith("bias"):
                nn.init.zeros_(parameter)

    def encode(self, source, lengths):
        mask = (torch.arange(source.shape[1]) < lengths[:, None])[:, None, None]
        return self.encoder(source, mask), mask

    def decode(self, tokens, memory, mask):
        return F.linear(self.decoder(tokens, None, memory, mask), self.decoder.tokens.weight)


def read(path):
    rows = [line.rstrip("\n").split("\t") for line in open(path, encoding="utf-8")]
    return [(list(source), target.split()) for source, target in rows]


def tokens_of(rows, index):
    return [[index[token] for token in row] for row in rows]


def padded(rows, fill):
    """In steps of eight, so that few shapes of products come about."""
    longest = (max(map(len, rows)) + 7) // 8 * 8
    return torch.tensor([row + [fill] * (longest - len(row)) for row in rows])


class Batches:
    """Shuffled, then sorted by length within groups of 16 batches, whose order is shuffled again."""

    def __init__(self, sources, targets, end, size, seed):
        self.sources, self.targets, self.end, self.size, self.random = sources, targets, end, size, random.Random(seed)

    def of(self, which):
        sources, targets = ([rows[n] for n in which] for rows in (self.sources, self.targets))
        return (padded(sources, 0), torch.tensor([len(row) for row in sources]),
                padded([[self.end, *row] for row in targets], self.end),
                padded([[*row, self.end] for row in targets], IGNORED))

    def epoch(self):
        order = list(range(len(self.sources)))
        self.random.shuffle(order)
        group = 16 * self.size
        order = [n for begin in range(0, len(order), group)
                 for n in sorted(order[begin:begin + group], key=lambda n: len(self.sources[n]))]
        batches = [order[begin:begin + self.size] for begin in range(0, len(order), self.size)]
        self.random.shuffle(batches)
        return batches

    def forever(self):
        while True:
            for which in self.epoch():
                yield self.of(which)


def loss_of(model, batch):
    source, lengths, tokens, targets = batch
    logits = model.decode(tokens, *model.encode(source, lengths))
    return F.cross_entropy(logits.view(-1, logits.shape[-1]), targets.view(-1), ignore_index=IGNORED)


def train(model, batches, job, steps):
    """Seconds of `steps` updates, without the first."""
    optimiser, elapsed = optimiser_of(model), stopwatch()
    model.train()
    for step, batch in zip(range(steps), batches.forever()):
        if step == 1:
            elapsed = stopwatch()
        set_learning_rate(optimiser, step, steps, job["warmup"], job["learning_rate"])
        optimiser.zero_grad(set_to_none=True)
        loss = loss_of(model, batch)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        assert math.isfinite(loss.item())
    return elapsed()


@torch.no_grad()
def answers(model, sources, end, longest, size=256):
    """The most probable token after each, until all rows have ended."""
    result = []
    for begin in range(0, len(sources), size):
        rows = sources[begin:begin + size]
        memory, mask = model.encode(padded(rows, 0), torch.tensor([len(row) for row in rows]))
        tokens = torch.full((len(rows), 1), end)
        for _ in range(longest - 1):
            tokens = torch.cat([tokens, model.decode(tokens, memory, mask)[:, -1:].argmax(-1)], dim=1)
            if (tokens[:, 1:] == end).any(1).all():
                break
        for row in tokens[:, 1:].tolist():
            result.append(row[:row.index(end)] if end in row else row)
    return result


def distance(a, b):
    row = list(range(len(b) + 1))
    for n, x in enumerate(a, 1):
        diagonal, row[0] = row[0], n
        for m, y in enumerate(b, 1):
            diagonal, row[m] = row[m], min(diagonal + (x != y), row[m] + 1, row[m - 1] + 1)
    return row[-1]


def rates(model, rows, index, end, job):
    """Shares of wrong tokens and of right answers; of several targets of one source the nearest counts."""
    wanted = {}
    for source, target in rows:
        wanted.setdefault(tuple(index[0][c] for c in source), []).append([index[1][t] for t in target])
    wrong = tokens = right = 0
    for answer, targets in zip(answers(model, [list(s) for s in wanted], end, job["context"]), wanted.values()):
        least, length = min((distance(answer, target), len(target)) for target in targets)
        wrong, tokens, right = wrong + least, tokens + length, right + (least == 0)
    return wrong / tokens, right / len(wanted)


def pairs(job):
    torch.manual_seed(job["seed"])
    parts = {name: read(job[name]) for name in ("train", "validation", "test")}
    kinds = [sorted({token for part in parts.values() for row in part for token in row[side]}) for side in (0, 1)]
    index = [{token: n for n, token in enumerate(side)} for side in kinds]
    end = len(index[1])
    sources, targets = ([row[side] for row in parts["train"]] for side in (0, 1))
    batches = Batches(tokens_of(sources, index[0]), tokens_of(targets, index[1]), end, job["batch"], job["seed"])
    shape = (job, len(index[0]), end + 1)
    steps = job.get("steps")
    if not steps:
        steps = max(2, int(job["seconds"] * 60 / train(Seq2Seq(*shape), batches, job, 61)))
    model = Seq2Seq(*shape)
    seconds = train(model, batches, job, steps)
    model.eval()
    wrong, right = rates(model, parts["test"], index, end, job)
    return {"steps": steps, "seconds": seconds, "wrong": wrong, "right": right}
