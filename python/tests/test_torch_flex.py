"""flex_attention beside torch's own (eager): what is found, results and gradients, and the memory they take."""

import functools
import math
import operator

import pytest

torch = pytest.importorskip("torch")

from torch._higher_order_ops.flex_attention import math_attention  # noqa: E402
from torch.nn.attention import flex_attention as torchs  # noqa: E402
from torch.nn.attention.flex_attention import (AuxRequest, BlockMask, and_masks, create_block_mask,  # noqa: E402
                                                or_masks)

import attention_cpp  # noqa: E402
import attention_cpp.torch as drop_in  # noqa: E402
from attention_cpp import _core  # noqa: E402
from attention_cpp._torch import autograd, flex, structure  # noqa: E402
from attention_cpp.torch import flex_attention  # noqa: E402
from test_torch_weights import Largest  # noqa: E402

EXACT = dict(rtol=1e-10, atol=1e-11)  # float64
B, H, LQ, LK = 2, 4, 40, 48


@pytest.fixture(autouse=True)
def small_tiles(monkeypatch):
    monkeypatch.setattr(structure, "TILE", 9 * B * H * LK)  # tiles of 9 rows
    monkeypatch.setattr(torchs, "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", True)  # torch's operations, not its compiler


def draw(*shape, seed=0, grad=False, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype).requires_grad_(grad)


def qkv(heads=H, queries=LQ, keys=LK, batch=B, **kind):
    return (draw(B, H, queries, 8, grad=True, **kind), draw(batch, heads, keys, 8, seed=1, grad=True, **kind),
            draw(batch, heads, keys, 5, seed=2, grad=True, **kind))


def causal(b, h, i, j):
    return i >= j


def window(b, h, i, j):
    return (i - j).abs() <= 6


def prefix(b, h, i, j):
    return j < 12


DOCUMENT = torch.bucketize(torch.arange(LK), torch.tensor([7, 20, 33]), right=True)
MIXED = torch.tensor([0, 1, 2, 1, 0]).repeat(10)
LENGTHS = torch.tensor([LK, 29])
TABLE = draw(H, LQ + LK, seed=5)
SLOPES = 2.0 ** -torch.arange(1.0, H + 1, dtype=torch.float64)
HEADS = torch.tensor([3, 9, 20, 50])


def segments(b, h, i, j):
    return DOCUMENT[i] == DOCUMENT[j]


def lengths(b, h, i, j):
    return j < LENGTHS[b]


MASKS = {
    "causal": (causal, "causal"),
    "causal at the end": (lambda b, h, i, j: i + (LK - LQ) >= j, "causal"),
    "sliding window": (and_masks(causal, lambda b, h, i, j: i - j < 5), "causal, window"),
    "window of both sides": (window, "causal, window"),
    "prefix": (or_masks(causal, prefix), "key lengths and causal, keys"),
    "prefix of each sequence": (lambda b, h, i, j: (j <= i) | (j < LENGTHS[b] - 20), "key lengths and causal, keys"),
    "segments": (segments, "segments"),
    "segments, causal": (and_masks(segments, causal), "causal, segments"),
    "segments, sliding window": (and_masks(segments, causal, window), "causal, window, segments"),
    "mixed segments": (lambda b, h, i, j: MIXED[i] == MIXED[j], "segments"),
    "padding": (lengths, "key lengths"),
    "padding, causal": (and_masks(lengths, causal), "causal, key lengths"),
    "nothing": (lambda b, h, i, j: j < 0, "key lengths"),
    "all": (torchs.noop_mask, "all"),
    "any": (lambda b, h, i, j: (i * 7 + j * 13) % 5 != 0, "mask"),
    "of each head": (lambda b, h, i, j: i - j < HEADS[h], "mask"),
    "chunks": (lambda b, h, i, j: (i // 9 == j // 9) & (i >= j), "causal, segments"),
    "dilated": (lambda b, h, i, j: ((i - j) % 3 == 0) & (i >= j), "causal, segments"),
}


def after(what):
    """What mask_counts() gains by a call."""
    before = drop_in.mask_counts()
    what()
    return {name: count - before.get(name, 0) for name, count in drop_in.mask_counts().items()
            if count != before.get(name, 0)}


def eager(q, k, v, score_mod=None, block_mask=None, scale=None, enable_gqa=False, return_lse=False):
    """torch's flex_attention in torch's operations, which have gradients; its own entry refuses these on the CPU."""
    block_mask = torchs._create_empty_block_mask(q, k) if block_mask is None else block_mask
    out, lse, _ = math_attention(q, k, v, score_mod or torchs._identity, block_mask.as_tuple(),
                                 q.shape[-1] ** -0.5 if scale is None else scale, {})
    return (out, lse * math.log(2)) if return_lse else out


def both(inputs, others=(), **options):
    """Results and gradients of ours and of torch's."""
    results = []
    for function in (flex_attention, eager):
        out, lse = function(*inputs, return_lse=True, **options)
        loss = out.sin().sum() + lse.masked_fill(lse == -torch.inf, 0).cos().sum()
        results.append((out, lse, *torch.autograd.grad(loss, (*inputs, *others), allow_unused=True)))
    return zip(*results, strict=True)


@pytest.mark.parametrize("name", MASKS)
def test_masks_are_found_and_results_are_torchs(name):
    mask_mod, expected = MASKS[name]
    inputs = qkv()
    block_mask = create_block_mask(mask_mod, B, H, LQ, LK, "cpu", BLOCK_SIZE=16)
    counted = after(lambda: flex_attention(*inputs, block_mask=block_mask))
    assert counted == {"flex: " + expected: 1}
    for ours, theirs in both(inputs, block_mask=block_mask):
        torch.testing.assert_close(ours, theirs, **EXACT)


def alibi(score, b, h, i, j):
    return score + SLOPES[h] * (j - i)


def test_alibi_is_found():
    inputs = qkv()
    block_mask = create_block_mask(causal, None, None, LQ, LK, "cpu")
    slopes = lambda s, b, h, i, j: s - (i - j).abs() * SLOPES[h]  # noqa: E731
    for score_mod, block in ((alibi, block_mask), (slopes, None), (slopes, block_mask)):
        counted = after(lambda: flex_attention(*inputs, score_mod=score_mod, block_mask=block))
        assert list(counted) == ["flex: " + ("all" if block is None else "causal") + ", slopes"]
        for ours, theirs in both(inputs, score_mod=score_mod, block_mask=block):
            torch.testing.assert_close(ours, theirs, **EXACT)
    thirds = torch.full((H,), 1 / 3, dtype=torch.float64)
    third = lambda s, b, h, i, j: s - (i - j).abs() * thirds[h]  # noqa: E731
    for score_mod in (alibi, third):  # which grows after the query; whose slope is no float32
        assert list(after(lambda: flex_attention(*inputs, score_mod=score_mod))) == ["flex: all, bias"]
    for ours, theirs in both(inputs, score_mod=third):
        torch.testing.assert_close(ours, theirs, **EXACT)


def masked(score, b, h, i, j):
    return torch.where(i >= j, score, -float("inf"))


SCORES = {
    "same": (lambda s, b, h, i, j: s, "all"),
    "softcap": (lambda s, b, h, i, j: 2 * torch.tanh(s / 2), "all"),
    "softcap by a tensor": (lambda s, b, h, i, j: torch.tensor(3.0) * (s / 3).tanh(), "all"),
    "stretched softcap": (lambda s, b, h, i, j: -2.5 * torch.tanh(s * 0.5), "all"),
    "scale": (lambda s, b, h, i, j: s * 0.5 - s.new_zeros(()) if False else -s / 3, "all"),
    "causal": (masked, "causal"),
    "causal the other way round": (lambda s, b, h, i, j: torch.where(j > i, float("-inf"), s), "causal"),
    "filled": (lambda s, b, h, i, j: s.masked_fill(j > i, float("-inf")), "causal"),
    "table": (lambda s, b, h, i, j: s + TABLE[h, i - j + LK], "all, bias"),
    "row of a table": (lambda s, b, h, i, j: s + TABLE[h][i - j + LK], "all, bias"),
    "table, softcap, causal": (lambda s, b, h, i, j: masked(2 * torch.tanh(s / 2) + TABLE[h, i - j + LK], b, h, i, j),
                               "causal, bias"),
    "table, any mask": (lambda s, b, h, i, j: torch.where((i * 7 + j) % 3 > 0, TABLE[h, j] - s, -float("inf")),
                        "mask, bias"),
    "alibi where it is causal": (lambda s, b, h, i, j: masked(alibi(s, b, h, i, j), b, h, i, j), "causal, slopes"),
    "bias in places": (lambda s, b, h, i, j: torch.where(i - j > 3, s + 1, s), "all, bias"),
    "of batch": (lambda s, b, h, i, j: s + b * 0.5 * (i % 3), "all, bias"),
    "number": (lambda s, b, h, i, j: 1 + s, "all, bias"),
    "squared": (lambda s, b, h, i, j: s * s, None),
    "of heads": (lambda s, b, h, i, j: s * (h + 1), None),
    "threshold": (lambda s, b, h, i, j: torch.where(s > 0, s, -1.0), None),
    "replaced": (lambda s, b, h, i, j: torch.where(i >= j, s, -5.0), None),
    "stretched in places": (lambda s, b, h, i, j: torch.where(i - j > 3, 2 * s, s), None),
    "cap after bias": (lambda s, b, h, i, j: torch.tanh(s + TABLE[h, i]), None),
    "independent": (lambda s, b, h, i, j: TABLE[h, i - j + LK], None),
}


@pytest.mark.parametrize("name", SCORES)
def test_score_mods_are_found_and_results_are_torchs(name):
    score_mod, expected = SCORES[name]
    inputs = qkv()
    counted = after(lambda: flex_attention(*inputs, score_mod=score_mod))
    assert counted == {"flex: torch's operations" if expected is None else "flex: " + expected: 1}
    for ours, theirs in both(inputs, score_mod=score_mod):
        torch.testing.assert_close(ours, theirs, **EXACT)


@pytest.mark.parametrize("mask", ["causal", "segments", "prefix", "any", "of each head"])
@pytest.mark.parametrize("name", ["table", "softcap", "squared", "causal"])
def test_score_mods_compose_with_masks(name, mask):
    block_mask = create_block_mask(MASKS[mask][0], B, H, LQ, LK, "cpu", BLOCK_SIZE=(16, 8))
    for ours, theirs in both(qkv(), score_mod=SCORES[name][0], block_mask=block_mask):
        torch.testing.assert_close(ours, theirs, **EXACT)


@pytest.mark.parametrize("mask", ["all", "causal", "any"])
def test_gradient_of_what_is_captured(mask):
    table, slope = draw(H, LQ + LK, seed=5, grad=True), SLOPES.clone().requires_grad_()
    block_mask = create_block_mask(MASKS[mask][0], None, None, LQ, LK, "cpu")
    for score_mod, others in ((lambda s, b, h, i, j: s + table[h, i - j + LK], (table,)),
                              (lambda s, b, h, i, j: s + slope[h] * (i - j).abs(), (slope,)),
                              (lambda s, b, h, i, j: s * slope[h], (slope,))):
        for ours, theirs in both(qkv(), others, score_mod=score_mod, block_mask=block_mask):
            torch.testing.assert_close(ours, theirs, **EXACT)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_other_types_are_as_accurate_as_torch(dtype):
    inputs = qkv(dtype=dtype)
    exact = [x.detach().double() for x in inputs]
    table = TABLE.float()
    for score_mod in (lambda s, b, h, i, j: 3 * torch.tanh(s / 3), lambda s, b, h, i, j: s + table[h, i - j + LK]):
        ours, theirs = (f(*inputs, score_mod=score_mod) for f in (flex_attention, eager))
        best = eager(*exact, score_mod=score_mod)
        assert ours.dtype == theirs.dtype == dtype
        assert (ours - best).abs().max() <= max(2 * (theirs - best).abs().max(), 4 * torch.finfo(dtype).eps)


def test_grouped_heads_and_one_batch_of_keys():
    block_mask = create_block_mask(causal, B, None, LQ, LK, "cpu")
    for ours, theirs in both(qkv(heads=2), enable_gqa=True, block_mask=block_mask, scale=0.3):
        torch.testing.assert_close(ours, theirs, **EXACT)
    for ours, theirs in both(qkv(batch=1), block_mask=block_mask):
        torch.testing.assert_close(ours, theirs, **EXACT)


def test_blocks_without_a_function():
    """Compiled, torch's computes the blocks that are listed; so do we."""
    listed = torch.tensor([[1, 0, 1], [0, 1, 1], [1, 1, 0]], dtype=torch.bool)
    number = listed.sum(-1, dtype=torch.int32)
    order = listed.int().argsort(dim=-1, descending=True, stable=True).int()
    block_mask = BlockMask.from_kv_blocks(number[None, None], order[None, None], BLOCK_SIZE=16, seq_lengths=(LQ, LK))
    inputs = qkv()
    mask = listed.repeat_interleave(16, 0).repeat_interleave(16, 1)[:LQ, :LK]
    expected = torch.nn.functional.scaled_dot_product_attention(*inputs, mask)
    torch.testing.assert_close(flex_attention(*inputs, block_mask=block_mask), expected, **EXACT)


def test_mask_mod_is_not_evaluated_in_full_blocks():
    inputs = qkv(queries=LK)
    whole = create_block_mask(causal, None, None, LK, LK, "cpu", BLOCK_SIZE=16)
    whole.mask_mod = lambda b, h, i, j: (i >= j) & (i // 16 == j // 16)  # false in the full blocks
    expected = torch.nn.functional.scaled_dot_product_attention(*inputs, is_causal=True)
    torch.testing.assert_close(flex_attention(*inputs, block_mask=whole), expected, **EXACT)


def test_auxiliary_results_are_torchs():
    inputs = [x.detach() for x in qkv()]
    (a, ours), (b, theirs) = (f(*inputs, score_mod=masked, return_aux=AuxRequest(lse=True))
                              for f in (flex_attention, torchs.flex_attention))
    torch.testing.assert_close(a, b, **EXACT)
    torch.testing.assert_close(ours.lse, theirs.lse, **EXACT)
    out, aux = flex_attention(*inputs, score_mod=masked, return_aux=AuxRequest(max_scores=True))
    scores = (inputs[0] @ inputs[1].transpose(-1, -2) / 8**0.5).masked_fill(
        torch.arange(LQ)[:, None] < torch.arange(LK), -torch.inf)
    torch.testing.assert_close(out, a, **EXACT)
    torch.testing.assert_close(aux.max_scores, scores.amax(-1), **EXACT)
    assert aux.lse is None


# ------------------------------------------------------------------------------------------------------- what is kept

def test_a_block_mask_is_read_once(monkeypatch):
    seen = []
    find = flex.find_parts
    monkeypatch.setattr(flex, "find_parts", lambda *x: (seen.append(1), find(*x))[1])
    ids = DOCUMENT.clone()
    block_mask = create_block_mask(lambda b, h, i, j: ids[i] == ids[j], None, None, LQ, LK, "cpu", BLOCK_SIZE=64)
    inputs = qkv()
    for _ in range(3):
        flex_attention(*inputs, block_mask=block_mask)
    assert len(seen) == 1
    ids[:12] = 9  # the function says another thing now
    out = flex_attention(*inputs, block_mask=block_mask)
    assert len(seen) == 2
    torch.testing.assert_close(out, eager(*inputs, block_mask=block_mask), **EXACT)
    for width in (4, 4, 5):  # functions that are made anew for each call, of the same code and numbers
        other = functools.partial(lambda n, s, b, h, i, j: torch.where(i - j < n, s, -float("inf")), width)
        torch.testing.assert_close(flex_attention(*inputs, score_mod=other), eager(*inputs, score_mod=other), **EXACT)
    assert len(seen) == 4
    for sign in (operator.lt, operator.gt, operator.gt):  # of other code that is captured
        other = lambda s, b, h, i, j: torch.where(sign(i - j, 4), s, -float("inf"))  # noqa: E731,B023
        torch.testing.assert_close(flex_attention(*inputs, score_mod=other), eager(*inputs, score_mod=other), **EXACT)
    assert len(seen) == 6
    for table in (LENGTHS, LENGTHS + 3):
        other = lambda s, b, h, i, j: torch.where(j < table[b], s, -float("inf"))  # noqa: E731,B023
        torch.testing.assert_close(flex_attention(*inputs, score_mod=other), eager(*inputs, score_mod=other), **EXACT)
    assert len(seen) == 8


def test_a_captured_number_may_change():
    width = 3

    def score_mod(score, b, h, i, j):
        return torch.where(i - j < width, score, -float("inf"))

    inputs = qkv()
    for width in (3, 8):
        torch.testing.assert_close(flex_attention(*inputs, score_mod=score_mod),
                                   eager(*inputs, score_mod=score_mod), **EXACT)


@pytest.mark.parametrize("name", ["bias", "product"])
def test_memory_is_that_of_tiles(name, monkeypatch):
    n, tile = 1000, 1 << 17
    monkeypatch.setattr(structure, "TILE", tile)
    monkeypatch.setattr(torch._C, "_len_torch_dispatch_stack", lambda: 0)  # the mode below may look on
    monkeypatch.setattr(autograd, "is_dispatched", lambda *_: False)
    q, k, v = (draw(1, 2, n, 8, seed=seed, grad=True, dtype=torch.float32) for seed in range(3))
    table = draw(2, 2 * n, dtype=torch.float32, grad=True)
    score_mod = {"bias": lambda s, b, h, i, j: s + table[h, i - j + n],
                 "product": lambda s, b, h, i, j: s * table[h, i - j + n]}[name]
    with Largest() as largest:
        out = flex_attention(q, k, v, score_mod=score_mod, block_mask=None)
        torch.autograd.grad(out.sum(), (q, table))
    assert largest.count <= tile


def test_tiles_are_as_large_as_what_they_evaluate(monkeypatch):
    """A mask that is the same for all heads is no reason for a call for every few rows."""
    lengths, forward = [], _core.forward
    monkeypatch.setattr(_core, "forward", lambda q, *x: (lengths.append(q.shape[2]), forward(q, *x))[1])
    monkeypatch.setattr(structure, "TILE", 16 * LK)
    inputs = qkv()
    for name, expected in (("any", [16, 16, 8]), ("of each head", [4] * 10)):
        lengths.clear()
        flex_attention(*inputs, block_mask=create_block_mask(MASKS[name][0], None, H, LQ, LK, "cpu"))
        assert lengths == expected


# ------------------------------------------------------------------------------------------------------------- refusals

def test_strict_raises_for_what_no_option_expresses():
    inputs = qkv()
    any_mask = create_block_mask(MASKS["any"][0], None, None, LQ, LK, "cpu")
    flex_attention(*inputs, score_mod=alibi, strict=True)
    with pytest.raises(attention_cpp.Error, match="the mask is none of causal, window"):
        flex_attention(*inputs, block_mask=any_mask, strict=True)
    with pytest.raises(attention_cpp.Error, match="score_mod multiplies the score by something that is not one number"):
        flex_attention(*inputs, score_mod=lambda s, b, h, i, j: s * h, strict=True)
    with pytest.raises(attention_cpp.Error, match="query is a str"):
        flex_attention("q", *inputs[1:], strict=True)


WRONG = {
    "heads": lambda q, k, v: dict(query=q, key=k[:, :2], value=v[:, :2]),
    "batch": lambda q, k, v: dict(query=q, key=k[:1], value=v[:1]),
    "width": lambda q, k, v: dict(query=q[..., :4], key=k, value=v),
    "axes": lambda q, k, v: dict(query=q[0], key=k[0], value=v[0]),
    "block mask": lambda q, k, v: dict(query=q, key=k, value=v, block_mask=create_block_mask(
        causal, None, None, LQ - 1, LK, "cpu")),
    "sliced": lambda q, k, v: dict(query=q, key=k, value=v, block_mask=create_block_mask(
        causal, None, None, LQ, LK, "cpu")[:, :, :1]),
    "lse twice": lambda q, k, v: dict(query=q, key=k, value=v, return_lse=True, return_aux=AuxRequest()),
}


@pytest.mark.parametrize("name", WRONG)
def test_errors_are_torchs(name):
    arguments = WRONG[name](*qkv())
    errors = []
    for function in (flex_attention, torchs.flex_attention):
        with pytest.raises(Exception) as caught:
            function(**arguments)
        errors.append((caught.type, str(caught.value)))
    assert errors[0] == errors[1]
