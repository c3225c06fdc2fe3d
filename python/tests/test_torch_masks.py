"""Masks of n x n entries that say less: what is found, that results are those of the mask, and what is kept."""

import gc

import hypothesis
import pytest
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402

import attention_cpp.torch as drop_in  # noqa: E402
from attention_cpp import _core  # noqa: E402
from attention_cpp._torch import masks as _masks, prefix as _prefix, structure as _structure  # noqa: E402
from attention_cpp._torch.composite import _allowed  # noqa: E402
from attention_cpp._torch.state import state  # noqa: E402

torch_sdpa = F.scaled_dot_product_attention
sdpa = drop_in.scaled_dot_product_attention
EXACT = dict(rtol=1e-11, atol=1e-12)  # float64
B, LQ, LK = 3, 40, 48


@pytest.fixture(autouse=True)
def small_calls_too(monkeypatch):
    monkeypatch.setattr(_masks, "WORTH_READING", 0)
    monkeypatch.setattr(_structure, "TILE", 7 * B * LK)  # tiles of 7 rows


def draw(*shape, seed=0, grad=False):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64).requires_grad_(grad)


def qkv(queries=LQ, keys=LK):
    return (draw(B, 4, queries, 8, grad=True), draw(B, 4, keys, 8, seed=1, grad=True),
            draw(B, 4, keys, 8, seed=2, grad=True))


i, j = torch.arange(LQ)[:, None], torch.arange(LK)
LENGTHS = torch.tensor([LK, 30, 5]).view(B, 1, 1, 1)
RIGHT, LEFT = j < LENGTHS, j >= LK - LENGTHS
BOTH = RIGHT & (j >= torch.tensor([0, 7, 3]).view(B, 1, 1, 1))
QUERY_ID, KEY_ID = torch.div(i, 13, rounding_mode="floor"), torch.div(j, 15, rounding_mode="floor")
MIXED = torch.tensor([0, 1, 2, 1, 0]).repeat(10)  # segments whose tokens are apart
PACKED_ID = torch.bucketize(torch.arange(LK), torch.tensor([5, 17, 31]), right=True)
MASKS = {
    "all": (torch.ones(1, 1, LQ, LK, dtype=torch.bool), "all"),
    "right padding of one row": (RIGHT, "key lengths"),
    "right padding": (RIGHT.expand(B, 1, LQ, LK).clone(), "key lengths"),
    "right padding, expanded": (RIGHT.expand(B, 1, LQ, LK), "key lengths"),
    "right padding, all heads": (RIGHT.expand(B, 4, LQ, LK), "key lengths"),
    "left padding": (LEFT.expand(B, 1, LQ, LK).clone(), "keys"),
    "causal": ((j <= i)[None, None], "causal"),
    "causal at the end": ((j <= i + LK - LQ)[None, None], "causal"),
    "causal, right padding": ((j <= i) & RIGHT, "causal, key lengths"),
    "causal, left padding": ((j <= i + 8) & LEFT, "causal, keys"),
    "causal, padding of both sides": ((j <= i + 8) & BOTH, "causal, keys"),
    "causal at its own place": (j <= i + torch.tensor([0, 8, 3]).view(B, 1, 1, 1), "causal"),
    "window": (((j <= i) & (j > i - 9))[None, None], "causal, window"),
    "window, left padding": ((j <= i + 8) & (j > i - 9) & LEFT, "causal, window, keys"),
    "window of both sides": ((abs(j - i) < 6)[None, None], "causal, window"),
    "segments": ((QUERY_ID == KEY_ID)[None, None], "segments"),
    "segments, causal": ((PACKED_ID[:LQ, None] == PACKED_ID)[None, None] & (j <= i), "causal, segments"),
    "mixed segments": ((MIXED[:LQ, None] == MIXED[:LK])[None, None], "segments"),
    "mixed segments, causal": ((MIXED[:LQ, None] == MIXED[:LK])[None, None] & (j <= i), "causal, segments"),
    "padded queries": ((j <= i) & (i < LENGTHS) & RIGHT, "causal, segments"),
    "segments of each sequence": ((torch.div(i, LENGTHS) == torch.div(j, LENGTHS)).roll(1, -1), None),
    "segments, window": ((PACKED_ID[:LQ, None] == PACKED_ID)[None, None] & (j <= i) & (j > i - 4),
                          "causal, window, segments"),
    "segments, window of both sides": ((PACKED_ID[:LQ, None] == PACKED_ID)[None, None] & (abs(j - i) < 4), None),
    "nothing": (torch.zeros(1, 1, LQ, LK, dtype=torch.bool), "key lengths"),
    "any": (draw(B, 1, LQ, LK, seed=4) > 0, "mask"),
    "causal but for one": ((j <= i)[None, None] ^ ((i == 29) & (j == 41)), "mask"),
    "prefix": (((j <= i) | (j < 12))[None, None], "prefix, causal"),
    "prefix at the end": (((j <= i + LK - LQ) | (j < 12))[None, None], "prefix, causal"),
    "prefix, right padding": (((j <= i) | (j < 12)) & RIGHT, "prefix, causal, key lengths"),
    "prefix, left padding": (((j <= i + 8) | (j < 20)) & LEFT, "prefix, causal, keys"),
    "prefix, window": (((j <= i) & (j > i - 9) | (j < 12))[None, None], "mask"),
    "prefix of each sequence": ((j <= i) | (j < torch.tensor([12, 3, 20]).view(B, 1, 1, 1)), "mask"),
    "windows of each sequence": ((j <= i) & (j > i - torch.tensor([9, 5, 3]).view(B, 1, 1, 1)), "mask"),
    "of each head": (draw(B, 4, LQ, LK, seed=4) > 0, "mask"),
}


def both(mask, **options):
    inputs = qkv()
    results = []
    for function in (sdpa, torch_sdpa):
        given = mask if mask.dtype == torch.bool or function is sdpa else mask.double()  # torch misreads other types
        out = function(*inputs, given, **options)
        results.append((out, *torch.autograd.grad(out.sin().sum(), inputs)))
    return zip(*results, strict=True)


def added(mask, value, dtype=torch.float64):
    if mask.shape[1] > 1 and mask.stride(1) == 0:
        return added(mask[:, :1], value, dtype).expand_as(mask)
    return torch.zeros(mask.shape, dtype=dtype).masked_fill(~mask, value)


@pytest.mark.parametrize("name", MASKS)
def test_what_is_found_and_what_comes_out(name):
    mask, expected = MASKS[name]
    plan = drop_in.explain(*qkv(), mask)
    assert expected is None or plan.path.endswith(f"; the mask is read as: {expected}")
    for ours, theirs in both(mask):
        torch.testing.assert_close(ours, theirs, **EXACT)


@pytest.mark.parametrize("name", MASKS)
def test_floating_masks_are_read_as_boolean_ones(name):
    """0 and -infinity say the same; the lowest number too, but not in a row that it fills: there it hides none."""
    mask, expected = MASKS[name]
    floating = added(mask, -torch.inf)
    path = drop_in.explain(*qkv(), floating).path
    assert expected in (None, "mask") or path.endswith(f"; the mask is read as: {expected}")
    for ours, theirs in both(floating):
        torch.testing.assert_close(ours, theirs, **EXACT)
    floating = added(mask, torch.finfo(torch.float32).min, torch.float32)
    path = drop_in.explain(*qkv(), floating).path
    full = not mask.any(-1).all()
    assert expected in (None, "mask") or path.endswith("bias" if full else f"read as: {expected}")
    for ours, theirs in both(floating):
        torch.testing.assert_close(ours, theirs, **EXACT)


@pytest.mark.parametrize("name", ["right padding", "left padding", "causal", "causal at the end", "window",
                                  "window, left padding", "segments", "any"])
def test_masks_beside_is_causal(name):
    mask = MASKS[name][0]
    inputs = qkv()
    out = sdpa(*inputs, mask, is_causal=True)
    torch.testing.assert_close(out, torch_sdpa(*inputs, mask & (j <= i)), **EXACT)


def test_other_numbers_stay_a_bias():
    for change in (0.5, torch.nan, -1e30, torch.inf):
        mask = added(MASKS["causal"][0], -torch.inf)
        mask[0, 0, 20, 3] = change
        assert drop_in.explain(*qkv(), mask).path.endswith("read as: bias")
    lowest = added(MASKS["causal"][0], torch.finfo(torch.float16).min, torch.float16)
    half = [x.detach().half() for x in qkv()]
    assert drop_in.explain(*half, lowest).path.endswith("read as: bias")  # -65504 is a score that there may be
    assert drop_in.explain(*half, lowest.masked_fill(lowest < 0, -torch.inf)).path.endswith("read as: causal")


def test_a_mask_with_a_gradient_stays_a_bias():
    mask = added(MASKS["causal"][0], -torch.inf).requires_grad_()
    assert drop_in.explain(*qkv(), mask).path.endswith("read as: bias")
    for ours, theirs in zip(*(torch.autograd.grad(f(*qkv(), mask).sin().sum(), mask) for f in (sdpa, torch_sdpa))):
        torch.testing.assert_close(ours, theirs, **EXACT)


# ------------------------------------------------------------------------------------------------------------- keeping

@pytest.fixture
def readings(monkeypatch):
    seen = []
    find = _masks.find_whole
    monkeypatch.setattr(_masks, "find_whole", lambda *x: (seen.append(1), find(*x))[1])
    return seen


def test_a_mask_is_read_once(readings):
    mask = MASKS["causal, left padding"][0].clone()
    inputs = qkv()
    for _ in range(3):
        sdpa(*inputs, mask)
        sdpa(*inputs, mask[:, :, :])  # another view of the same memory
    assert len(readings) == 1
    sdpa(*inputs, mask[:1])
    assert len(readings) == 2
    mask[0, 0, 20, 9] = False
    torch.testing.assert_close(sdpa(*inputs, mask), torch_sdpa(*inputs, mask), **EXACT)
    assert len(readings) == 3


def test_other_memory_is_read_again(readings):
    inputs = qkv()
    for n in range(5):  # each may be where the one before was
        mask = j <= i + n
        torch.testing.assert_close(sdpa(*inputs, mask), torch_sdpa(*inputs, mask), **EXACT)
        del mask
        gc.collect()
    assert len(readings) == 5


def test_masks_are_not_kept_alive():
    for n in range(3):
        sdpa(*qkv(), MASKS["causal"][0].clone())
    assert sum(not kept[0].expired() for kept in state.masks.values() if kept[2] is not None and
               vars(kept[2]).keys() == {"causal", "alignment"}) <= 1


def test_masks_of_inference_mode_are_read_in_each_call(readings):
    """There torch counts no changes."""
    inputs = [x.detach() for x in qkv()]
    with torch.inference_mode():
        mask = MASKS["causal"][0].clone()
        for _ in range(2):
            torch.testing.assert_close(sdpa(*inputs, mask), torch_sdpa(*inputs, mask), **EXACT)
            mask[0, 0, 30] = False
    assert len(readings) == 2
    mask = MASKS["segments, causal"][0].clone()
    with torch.inference_mode():
        sdpa(*inputs, mask)
    for ours, theirs in both(mask):  # what was kept is used by a call that is recorded
        torch.testing.assert_close(ours, theirs, **EXACT)


def test_calls_over_few_pairs_do_not_read(readings, monkeypatch):
    monkeypatch.setattr(_masks, "WORTH_READING", B * 4 * LQ * LK + 1)
    sdpa(*qkv(), MASKS["causal"][0])
    assert not readings


def test_where_nothing_can_be_read(readings):
    mask, inputs = MASKS["causal"][0], [x.detach() for x in qkv()]
    torch._dynamo.reset()
    torch.compile(lambda *x: sdpa(*x, mask), backend="aot_eager", fullgraph=True)(*inputs)
    torch.vmap(lambda m: sdpa(*inputs, m))(torch.stack([mask, mask]))
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        sdpa(*(torch.empty(B, 4, n, 8) for n in (LQ, LK, LK)), torch.empty(1, 1, LQ, LK, dtype=torch.bool))
    assert not readings


def test_mask_counts_count_calls_by_their_options():
    before = drop_in.mask_counts()
    for name in ("causal, left padding", "any", "any"):
        sdpa(*qkv(), MASKS[name][0])
    after = drop_in.mask_counts()
    assert after["causal, keys"] - before.get("causal, keys", 0) == 1 and after["mask"] - before.get("mask", 0) == 2


def test_no_lanes_are_computed_in_vain():
    """A causal mask costs what is_causal does."""
    inputs = qkv()
    assert drop_in.explain(*inputs, MASKS["causal"][0]).flops == drop_in.explain(*inputs, is_causal=True).flops
    prefix = MASKS["prefix"][0]
    assert drop_in.explain(*inputs, prefix).flops == 2 * B * 4 * prefix.sum() * (8 + 8)


def test_a_prefix_with_dropout_and_the_layout_of_the_query():
    mask = MASKS["prefix, right padding"][0]
    q, k, v = (x.detach().transpose(1, 2).contiguous().transpose(1, 2) for x in qkv())
    out = sdpa(q, k, v, mask)
    assert out.stride() == q.stride()
    torch.testing.assert_close(out, torch_sdpa(q, k, v, mask), **EXACT)
    torch.manual_seed(3)
    mean = torch.stack([sdpa(q, k, v, mask, dropout_p=0.3) for _ in range(800)])
    error = mean.std(0) / len(mean) ** 0.5
    assert ((mean.mean(0) - out).abs() <= 6 * error + 1e-12).all()


def test_masks_that_do_not_fit_are_errors():
    with pytest.raises(RuntimeError):
        sdpa(*qkv(), MASKS["causal"][0][..., :-1])
    with pytest.raises(RuntimeError):
        sdpa(*qkv(), MASKS["causal"][0][..., :-1, :])


def test_operators_see_lengths(monkeypatch):
    given = []
    forward = _core.forward
    monkeypatch.setattr(_core, "forward", lambda *x: (given.append(set(vars(x[-1]))), forward(*x))[1])
    sdpa(*qkv(), MASKS["causal, right padding"][0])
    assert given == [{"causal", "alignment", "key_length"}]


@hypothesis.settings(max_examples=300, deadline=None, suppress_health_check=list(hypothesis.HealthCheck))
@hypothesis.given(st.integers(0, 2**32 - 1))
def test_any_composition_is_the_mask(seed):
    """Masks of random parts, and some with a wrong entry: what is found allows what the mask allows."""
    random = torch.Generator().manual_seed(seed)

    def number(low, high):
        return int(torch.randint(low, high, (), generator=random))

    batch, queries, keys = number(1, 4), number(2, 34), number(1, 40)
    i, j = torch.arange(queries)[:, None], torch.arange(keys)
    allowed = torch.ones(batch, 1, queries, keys, dtype=torch.bool)
    for part in range(6):
        if number(0, 3) == 0:
            each = torch.randint(-3, 12, (batch, 1, 1, 1), generator=random) if number(0, 2) else number(-3, 12)
            ids = torch.randint(0, 3, (batch, queries + keys), generator=random)
            ids = ids.sort(-1).values if number(0, 2) else ids
            allowed = allowed & [j <= i + each, j > i - each, j < each * 3, j >= each,
                                 (ids[:, None, :queries, None] == ids[:, None, None, -keys:]), i < each * 3][part]
    if number(0, 3) == 0:
        end = number(0, keys + 1)
        allowed = (allowed | (j < end)) & (j < torch.randint(end, keys + 3, (batch, 1, 1, 1), generator=random))
    if number(0, 3) == 0:
        allowed[number(0, batch), 0, number(0, queries), number(0, keys)] ^= True
    found = _structure.find_whole(lambda rows: allowed[:, 0].index_select(1, rows), batch, queries, keys)
    if found is not None:
        q, k = torch.zeros(batch, 1, queries, 1), torch.zeros(batch, 1, keys, 1)
        parts = []
        for of_rows, seen, _, options in _prefix.calls(q, k, k, found):
            part = _allowed(of_rows, seen, options)[0].expand(batch, 1, of_rows.shape[2], seen.shape[2])
            parts.append(F.pad(part, (0, keys - seen.shape[2])))
        assert torch.equal(torch.cat(parts, 2), allowed)
