"""attention_cpp.flash_attn against its formula in float64, with the n x n matrix."""

import math

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from attention_cpp import flash_attn as fa  # noqa: E402


# ------------------------------------------------------------------------------------------------------------ reference

def allowed_pairs(Lq, Lk, causal=False, window=(-1, -1)):
    place = torch.arange(Lq)[:, None] + Lk - Lq
    key = torch.arange(Lk)[None]
    right = 0 if causal else window[1]
    allowed = torch.ones(Lq, Lk, dtype=torch.bool)
    if window[0] >= 0:
        allowed &= key >= place - window[0]
    if right >= 0:
        allowed &= key <= place + right
    return allowed


def reference(q, k, v, causal=False, window_size=(-1, -1), softcap=0.0, alibi_slopes=None, softmax_scale=None):
    """One batch axis, flash-attention's layout: out (B, Lq, H, Dv), lse (B, H, Lq), in float64, differentiable."""
    q, k, v = (tensor.double() for tensor in (q, k, v))
    B, Lq, H, D = q.shape
    Lk = k.shape[1]
    k, v = (tensor.repeat_interleave(H // tensor.shape[2], 2) for tensor in (k, v))
    scores = torch.einsum("bihd,bjhd->bhij", q, k) * (softmax_scale or 1 / math.sqrt(D))
    if softcap > 0:
        scores = softcap * torch.tanh(scores / softcap)
    if alibi_slopes is not None:
        distance = (torch.arange(Lq)[:, None] + Lk - Lq - torch.arange(Lk)).abs()
        scores = scores - alibi_slopes.double().expand(B, H)[:, :, None, None] * distance
    allowed = allowed_pairs(Lq, Lk, causal, window_size)
    has_key = allowed.any(-1)
    # A finite low score for what is hidden keeps the gradients of rows without a key free of NaN.
    scores = scores.masked_fill(~allowed, -1e30)
    lse = torch.logsumexp(scores, -1).masked_fill(~has_key, -math.inf) if Lk else torch.full((B, H, Lq), -math.inf)
    weights = scores.softmax(-1) * has_key[:, None]
    return torch.einsum("bhij,bjhd->bihd", weights, v), lse.double()


def bound(dtype, expected, D):
    largest = expected.abs().max().item() if expected.numel() else 0.0
    return {torch.float64: 1e-10, torch.float32: 2e-6 * largest * math.sqrt(D), torch.bfloat16: 2**-7 * largest,
            torch.float16: 2**-10 * largest}[dtype]


def assert_close(actual, expected, D=8):
    assert actual.shape == expected.shape
    torch.testing.assert_close(actual.double(), expected.double(), rtol=0,
                               atol=max(bound(actual.dtype, expected.detach().nan_to_num(0, 0, 0), D), 1e-10))


def random(*shape, seed=0, dtype=torch.float64, grad=False):
    generator = torch.Generator().manual_seed(hash((shape, seed)) % 2**31)
    return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype).requires_grad_(grad)


def problem(B=2, Lq=5, Lk=7, H=4, Hk=2, D=8, Dv=8, dtype=torch.float64, grad=False):
    return (random(B, Lq, H, D, seed=1, dtype=dtype, grad=grad), random(B, Lk, Hk, D, seed=2, dtype=dtype, grad=grad),
            random(B, Lk, Hk, Dv, seed=3, dtype=dtype, grad=grad))


def slopes(*shape):
    return (torch.arange(1, math.prod(shape) + 1, dtype=torch.float32) / 8).reshape(shape)


def starts(lengths):
    return torch.tensor([0, *torch.tensor(lengths).cumsum(0).tolist()], dtype=torch.int32)


OPTIONS = {
    "plain": {},
    "causal": {"causal": True},
    "window": {"window_size": (2, 1)},
    "left": {"window_size": (1, -1)},
    "right": {"window_size": (-1, 2)},
    "causal and window": {"causal": True, "window_size": (2, 5)},
    "softcap": {"softcap": 0.5},
    "scale": {"softmax_scale": 0.7},
    "alibi": {"alibi_slopes": slopes(4)},
    "alibi a row": {"alibi_slopes": slopes(2, 4), "causal": True},
    "alibi one row": {"alibi_slopes": slopes(1, 4).expand(2, 4)},
    "all": {"causal": True, "window_size": (3, 3), "softcap": 2.0, "softmax_scale": 0.9, "alibi_slopes": slopes(2, 4)},
}
each_option = pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)


def assert_same_gradients(actual, expected, inputs):
    """Of out and lse where it is finite, against the reference."""
    results = []
    for out, lse in (actual, expected):
        weight = random(*out.shape, seed=9).to(out.dtype)
        lse_weight = random(*lse.shape, seed=10)
        loss = (out * weight).sum() + (lse.double().masked_fill(lse.isinf(), 0) * lse_weight).sum()
        results.append(torch.autograd.grad(loss, inputs))
    for got, wanted in zip(*results):
        assert_close(got, wanted)


# ---------------------------------------------------------------------------------------------------------- dense calls

@each_option
@pytest.mark.parametrize("lengths", [(5, 7), (7, 5), (6, 6)], ids=str)
def test_dense_values_and_gradients_are_those_of_the_reference(options, lengths):
    q, k, v = problem(Lq=lengths[0], Lk=lengths[1], grad=True)
    out, lse, nothing = fa.flash_attn_func(q, k, v, return_attn_probs=True, **options)
    expected = reference(q, k, v, **options)
    assert nothing is None
    assert_close(out, expected[0])
    assert_close(lse, expected[1])
    assert_same_gradients((out, lse), expected, (q, k, v))
    assert torch.equal(out, fa.flash_attn_func(q, k, v, deterministic=True, **options))


@pytest.mark.parametrize("window", [[2, 1], torch.tensor([2, 1]), np.array([2, 1]), (torch.tensor(2), np.int32(1))],
                         ids=["list", "tensor", "array", "numbers"])
def test_numbers_of_every_kind(window):
    q, k, v = problem()
    expected = fa.flash_attn_func(q, k, v, window_size=(2, 1), softcap=2.0, softmax_scale=0.5)
    assert torch.equal(expected, fa.flash_attn_func(q, k, v, window_size=window, softcap=np.float32(2),
                                                    softmax_scale=torch.tensor(0.5), dropout_p=torch.tensor(0.0)))
    assert torch.equal(expected, fa.flash_attn_with_kvcache(q, k, v, window_size=window, softcap=np.float32(2),
                                                            softmax_scale=torch.tensor(0.5)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_every_type_is_as_accurate_as_its_rounding(dtype):
    q, k, v = problem(dtype=dtype, D=16, Dv=16, grad=True)
    out, lse, _ = fa.flash_attn_func(q, k, v, causal=True, return_attn_probs=True)
    expected = reference(q, k, v, causal=True)
    assert out.dtype == dtype and lse.dtype == torch.float32
    assert_close(out, expected[0], 16)
    assert_close(lse, expected[1].float(), 16)
    weight = random(*out.shape, seed=9, dtype=dtype)
    for got, wanted in zip(torch.autograd.grad((out * weight).sum(), (q, k, v)),
                           torch.autograd.grad((expected[0] * weight.double()).sum(), (q, k, v))):
        # Of low precision the output that the backward reads is rounded too: twice the bound of the forward.
        scale = 1 if dtype == torch.float32 else 2
        torch.testing.assert_close(got.double(), wanted.double(), rtol=0, atol=scale * bound(dtype, wanted, 16))


@pytest.mark.parametrize("lengths, mask", [
    ((2, 5), [[1, 1, 1, 1, 0], [1, 1, 1, 1, 1]]),
    ((5, 2), [[0, 0], [0, 0], [0, 0], [1, 0], [1, 1]]),
], ids=str)
def test_the_causal_masks_of_the_readme(lengths, mask):
    """With equal scores and values that name the keys, out is the mask over its row's sum."""
    Lq, Lk = lengths
    q, k = torch.zeros(1, Lq, 1, 8), torch.zeros(1, Lk, 1, 8)
    v = torch.eye(Lk, 8).view(1, Lk, 1, 8)
    mask = torch.tensor(mask, dtype=torch.float32)
    expected = mask / mask.sum(1, keepdim=True).clamp(min=1)
    out, lse, _ = fa.flash_attn_func(q, k, v, causal=True, return_attn_probs=True)
    torch.testing.assert_close(out[0, :, 0, :Lk], expected)
    torch.testing.assert_close(lse[0, 0], mask.sum(1).log())
    cu = (starts([Lq]), starts([Lk]))
    packed = fa.flash_attn_varlen_func(q[0], k[0], v[0], *cu, Lq, Lk, causal=True)
    torch.testing.assert_close(packed[:, 0, :Lk], expected)
    cached = fa.flash_attn_with_kvcache(q, k, v, causal=True)
    torch.testing.assert_close(cached[0, :, 0, :Lk], expected)


def test_any_strides_in_and_contiguous_results():
    q, k, v = problem(dtype=torch.float32)
    wide = torch.randn(2, 5, 4, 16)[..., ::2]
    assert fa.flash_attn_func(q, k, v).is_contiguous()
    torch.testing.assert_close(fa.flash_attn_func(wide, k, v), fa.flash_attn_func(wide.contiguous(), k, v))


@pytest.mark.parametrize("Dv", [4, 12])
def test_values_of_another_width(Dv):
    q, k, v = problem(Dv=Dv)
    out = fa.flash_attn_func(q, k, v)
    assert out.is_contiguous()
    assert_close(out, reference(q, k, v)[0])


@pytest.mark.parametrize("shape", [(0, 5, 7), (2, 0, 7), (2, 5, 0)], ids=str)
@pytest.mark.parametrize("a_row", [False, True])
def test_empty_axes_give_zero(shape, a_row):
    B, Lq, Lk = shape
    q, k, v = problem(B=B, Lq=Lq, Lk=Lk)
    out, lse, _ = fa.flash_attn_func(q, k, v, alibi_slopes=slopes(B, 4) if a_row else None, return_attn_probs=True)
    assert torch.equal(out, torch.zeros(B, Lq, 4, 8)) and lse.shape == (B, 4, Lq) and (lse == -math.inf).all()


def test_packed_tensors_are_their_parts():
    qkv = random(2, 6, 3, 4, 8, grad=True)
    kv = random(2, 7, 2, 2, 8, grad=True)
    q = random(2, 5, 4, 8, grad=True)
    options = {"causal": True, "alibi_slopes": slopes(2, 4), "return_attn_probs": True}
    for packed, inputs, separate in (
        (fa.flash_attn_qkvpacked_func(qkv, **options), (qkv,), [qkv[:, :, i] for i in range(3)]),
        (fa.flash_attn_kvpacked_func(q, kv, **options), (q, kv), [q, kv[:, :, 0], kv[:, :, 1]]),
    ):
        expected = reference(*separate, causal=True, alibi_slopes=slopes(2, 4))
        assert_close(packed[0], expected[0])
        assert_close(packed[1], expected[1])
        assert_same_gradients(packed[:2], expected, inputs)


# -------------------------------------------------------------------------------------------------------------- dropout

def test_dropout_repeats_with_the_seed_and_keeps_the_expectation():
    q, k, _ = problem(Lq=6, Lk=40, dtype=torch.float32)
    v = torch.ones(2, 40, 2, 8)
    torch.manual_seed(3)
    first, second = (fa.flash_attn_func(q, k, v, dropout_p=0.3) for _ in range(2))
    torch.manual_seed(3)
    assert torch.equal(first, fa.flash_attn_func(q, k, v, dropout_p=0.3))
    assert not torch.equal(first, second)
    many = torch.stack([fa.flash_attn_func(q, k, v, dropout_p=0.3) for _ in range(200)])
    # A row's output is sum_j p_j keep_j / 0.7, of mean 1 and variance 3/7 sum_j p_j^2: five of its standard errors.
    weights = (reference(q, k, torch.eye(40).view(1, 40, 1, 40).expand(2, 40, 2, 40))[0] ** 2).sum(-1, keepdim=True)
    assert ((many.double().mean(0) - 1).abs() < 5 * (3 / 7 * weights / 200).sqrt()).all()
    lse = fa.flash_attn_func(q, k, v, dropout_p=0.3, return_attn_probs=True)[1]
    assert_close(lse, reference(q, k, v)[1].float())


def test_rows_of_their_own_slopes_drop_different_weights():
    q, k, v = (tensor[:1].expand(2, -1, -1, -1) for tensor in problem(Lk=40))
    out = fa.flash_attn_func(q, k, v, dropout_p=0.5, alibi_slopes=slopes(4).expand(2, 4).contiguous())
    assert not torch.equal(out[0], out[1])


@pytest.mark.parametrize("alibi_slopes", [None, slopes(2, 4)], ids=["", "a row"])
def test_gradients_with_dropout(alibi_slopes):
    q, k, v = problem(Lq=3, Lk=4, D=4, Dv=4, grad=True)

    def dense(q, k, v):
        torch.manual_seed(5)
        return fa.flash_attn_func(q, k, v, dropout_p=0.4, causal=True, alibi_slopes=alibi_slopes)

    def packed(q, k, v):
        torch.manual_seed(5)
        cu = (starts([1, 4, 1]), starts([3, 5, 0]))
        return fa.flash_attn_varlen_func(q.flatten(0, 1), k.flatten(0, 1), v.flatten(0, 1), *cu, 4, 5, dropout_p=0.4)

    assert torch.autograd.gradcheck(dense, (q, k, v))
    assert torch.autograd.gradcheck(packed, (q, k, v))


def test_second_derivatives_pass_gradgradcheck():
    q, k, v = problem(B=1, Lq=2, Lk=3, H=2, Hk=1, D=4, Dv=4, grad=True)
    assert torch.autograd.gradgradcheck(lambda *a: fa.flash_attn_func(*a, causal=True, softcap=3.0), (q, k, v))


def test_compiled_values_and_gradients_are_those_of_the_reference():
    q, k, v = problem(dtype=torch.float32, grad=True)
    torch._dynamo.reset()
    compiled = torch.compile(lambda *a: fa.flash_attn_func(*a, causal=True, window_size=(3, 0)), backend="aot_eager",
                             fullgraph=True)
    out, expected = compiled(q, k, v), reference(q, k, v, causal=True, window_size=(3, 0))[0]
    assert_close(out, expected)
    for got, wanted in zip(torch.autograd.grad(out.sum(), (q, k, v)), torch.autograd.grad(expected.sum(), (q, k, v))):
        assert_close(got, wanted)


# ----------------------------------------------------------------------------------------------------- packed sequences

LENGTHS = {"some": ([3, 5], [6, 2]), "empty": ([2, 0, 4], [0, 3, 4]), "first empty": ([0, 2], [4, 3]),
           "one": ([6], [6])}


def one_by_one(q, k, v, lengths, key_lengths, **options):
    """The sequences each by the reference: out (total, H, D), lse (H, total)."""
    alibi_slopes = options.pop("alibi_slopes", None)
    outs, lses = [], []
    for b, row in enumerate(zip(q.split(lengths), k.split(key_lengths), v.split(key_lengths))):
        slope = alibi_slopes if alibi_slopes is None or alibi_slopes.dim() == 1 else alibi_slopes[b]
        out, lse = reference(*(tensor.unsqueeze(0) for tensor in row), alibi_slopes=slope, **options)
        outs.append(out[0])
        lses.append(lse[0])
    return torch.cat(outs), torch.cat(lses, 1)


@each_option
@pytest.mark.parametrize("lengths", LENGTHS.values(), ids=LENGTHS)
def test_packed_sequences_are_the_sequences_alone(options, lengths):
    lengths, key_lengths = lengths
    options = dict(options)
    if options.get("alibi_slopes") is not None and options["alibi_slopes"].dim() == 2:
        options["alibi_slopes"] = slopes(len(lengths), 4)
    q = random(sum(lengths), 4, 8, seed=1, grad=True)
    k, v = (random(sum(key_lengths), 2, 8, seed=seed, grad=True) for seed in (2, 3))
    out, lse, nothing = fa.flash_attn_varlen_func(q, k, v, starts(lengths), starts(key_lengths), max(lengths),
                                                  max(key_lengths), return_attn_probs=True, **options)
    expected = one_by_one(q, k, v, lengths, key_lengths, **options)
    assert nothing is None
    assert_close(out, expected[0])
    assert_close(lse, expected[1])
    assert_same_gradients((out, lse), expected, (q, k, v))


@pytest.mark.parametrize("alibi_slopes", [None, slopes(2, 4)], ids=["", "a row"])
def test_varlen_leaves_out_what_is_in_no_sequence(alibi_slopes):
    q, k, v = random(9, 4, 8), random(8, 2, 8, seed=1), random(8, 2, 8, seed=2)
    cu, cu_k = torch.tensor([1, 4, 7], dtype=torch.int32), torch.tensor([2, 3, 7], dtype=torch.int32)
    out, lse, _ = fa.flash_attn_varlen_func(q, k, v, cu, cu_k, 3, 4, alibi_slopes=alibi_slopes, return_attn_probs=True)
    inside = one_by_one(q[1:7], k[2:7], v[2:7], [3, 3], [1, 4], alibi_slopes=alibi_slopes)
    assert_close(out[1:7], inside[0])
    assert_close(lse[:, 1:7], inside[1])
    for row in (0, 7, 8):
        assert (out[row] == 0).all() and (lse[:, row] == -math.inf).all()


def test_varlen_packed_tensors_are_their_parts():
    lengths, key_lengths = [3, 0, 4], [2, 3, 4]
    qkv, kv, q = random(7, 3, 4, 8, grad=True), random(9, 2, 2, 8, grad=True), random(7, 4, 8, grad=True)
    options = {"causal": True, "softcap": 2.0, "return_attn_probs": True}
    cu, cu_k = starts(lengths), starts(key_lengths)
    for packed, inputs, separate, keys in (
        (fa.flash_attn_varlen_qkvpacked_func(qkv, cu, 4, **options), (qkv,), [qkv[:, i] for i in range(3)], lengths),
        (fa.flash_attn_varlen_kvpacked_func(q, kv, cu, cu_k, 4, 4, **options), (q, kv), [q, kv[:, 0], kv[:, 1]],
         key_lengths),
    ):
        expected = one_by_one(*separate, lengths, keys, causal=True, softcap=2.0)
        assert_close(packed[0], expected[0])
        assert_close(packed[1], expected[1])
        assert_same_gradients(packed[:2], expected, inputs)


def in_pages(sequences, page_size, count, table_width, seed=0):
    """The sequences (n, H, D) in shuffled pages of one tensor, and the table: -1 where it is not needed."""
    order = torch.randperm(count, generator=torch.Generator().manual_seed(seed)).tolist()
    pages = torch.full((count, page_size, *sequences[0].shape[1:]), math.nan, dtype=sequences[0].dtype)
    table = torch.full((len(sequences), table_width), -1, dtype=torch.int32)
    for b, sequence in enumerate(sequences):
        for i, part in enumerate(sequence.split(page_size) if len(sequence) else ()):
            table[b, i] = order.pop()
            pages[table[b, i], :len(part)] = part
    return pages, table


@pytest.mark.parametrize("options", [{}, {"causal": True, "alibi_slopes": slopes(3, 4)}], ids=["plain", "alibi"])
def test_varlen_pages_give_what_the_keys_in_them_give(options):
    lengths, key_lengths = [3, 2, 1], [7, 0, 4]
    q, k, v = random(6, 4, 8), random(11, 2, 8, seed=1), random(11, 2, 8, seed=2)
    k_pages, table = in_pages(k.split(key_lengths), 3, 6, 4)
    v_pages, _ = in_pages(v.split(key_lengths), 3, 6, 4)
    k_pages.requires_grad_()
    out, lse, _ = fa.flash_attn_varlen_func(q, k_pages, v_pages, starts(lengths), starts(key_lengths), 3, 7,
                                            block_table=table, return_attn_probs=True, **options)
    expected = one_by_one(q, k, v, lengths, key_lengths, **options)
    assert_close(out, expected[0])
    assert_close(lse, expected[1])
    assert torch.equal(out, fa.flash_attn_varlen_func(q, k_pages, v_pages, starts(lengths), starts(key_lengths) + 5, 3,
                                                      7, block_table=table, **options))  # only the lengths matter
    out.sum().backward()
    assert k_pages.grad[table[0, 0]].abs().sum() > 0


# ------------------------------------------------------------------------------------------------------------ the cache

def turned(x, cos, sin, places, interleaved):
    """x (B, L, H, D) by complex numbers."""
    width = 2 * cos.shape[1]
    head, rest = x[..., :width], x[..., width:]
    pairs = head.unflatten(-1, (-1, 2)) if interleaved else torch.stack(head.chunk(2, -1), -1)
    spun = torch.view_as_complex(pairs.contiguous()) * torch.complex(cos, sin)[places].unsqueeze(-2)
    pairs = torch.view_as_real(spun)
    return torch.cat([pairs.flatten(-2) if interleaved else torch.cat(pairs.unbind(-1), -1), rest], -1)


def tables(rows=32, width=6):
    angles = torch.arange(rows)[:, None] / 10 ** torch.arange(width // 2)
    return angles.cos().double(), angles.sin().double()


def caches(rows=2, length=12, dtype=torch.float64):
    return random(rows, length, 2, 8, seed=4, dtype=dtype), random(rows, length, 2, 8, seed=5, dtype=dtype)


def int32(*values):
    return torch.tensor(values, dtype=torch.int32)


@each_option
def test_cache_is_read(options):
    q, (k_cache, v_cache) = random(2, 3, 4, 8), caches()
    before = k_cache.clone(), v_cache.clone()
    lengths = [9, 4]
    out, lse = fa.flash_attn_with_kvcache(q, k_cache, v_cache, cache_seqlens=int32(*lengths), return_softmax_lse=True,
                                          num_splits=3, **options)
    alibi_slopes = options.get("alibi_slopes")
    for b, length in enumerate(lengths):
        own = {**options, "alibi_slopes": alibi_slopes[b] if alibi_slopes is not None and alibi_slopes.dim() == 2
               else alibi_slopes}
        expected = reference(q[b:b + 1], k_cache[b:b + 1, :length], v_cache[b:b + 1, :length], **own)
        assert_close(out[b:b + 1], expected[0])
        assert_close(lse[b:b + 1], expected[1])
    assert torch.equal(k_cache, before[0]) and torch.equal(v_cache, before[1])


def test_cache_seqlens_may_be_absent_an_int_or_a_tensor():
    q, (k_cache, v_cache) = random(2, 3, 4, 8), caches(rows=3)
    assert_close(fa.flash_attn_with_kvcache(q, k_cache, v_cache), reference(q, k_cache[:2], v_cache[:2])[0])
    same = fa.flash_attn_with_kvcache(q, k_cache, v_cache, cache_seqlens=int32(5, 5))
    assert torch.equal(fa.flash_attn_with_kvcache(q, k_cache, v_cache, cache_seqlens=5), same)
    assert (fa.flash_attn_with_kvcache(q, k_cache, v_cache, cache_seqlens=0) == 0).all()
    for nobody in ({}, {"cache_batch_idx": int32()}):
        assert fa.flash_attn_with_kvcache(q[:0], k_cache, v_cache, **nobody).shape == (0, 3, 4, 8)


@pytest.mark.parametrize("given", ["rows", "batch_idx", "leftpad", "batch_idx, leftpad", "pages", "pages, leftpad"])
@pytest.mark.parametrize("rotary", [None, True, False], ids=["", "interleaved", "halves"])
@pytest.mark.parametrize("options", [{}, {"causal": True}, {"window_size": (4, -1), "alibi_slopes": slopes(2, 4)}],
                         ids=["plain", "causal", "window, alibi"])
def test_cache_is_appended_to(given, rotary, options):
    """Against the whole sequences written out: where each starts, its row or pages, what is turned by which place."""
    lengths, new, firsts = [9, 4], 3, [2, 4] if "leftpad" in given else [0, 0]
    q, k, v = random(2, 4, 4, 8), random(2, new, 2, 8, seed=6), random(2, new, 2, 8, seed=7)
    arguments = {"cache_seqlens": int32(*lengths), **options}
    k_cache, v_cache = caches(rows=4)
    rows = [3, 1] if "batch_idx" in given else [0, 1]
    olds = [tuple(cache[row, :length].clone() for cache in (k_cache, v_cache)) for row, length in zip(rows, lengths)]
    if "batch_idx" in given:
        arguments["cache_batch_idx"] = int32(*rows)
    if "leftpad" in given:
        arguments["cache_leftpad"] = int32(*firsts)
    if "pages" in given:
        rooms = [torch.cat([old[0], torch.zeros(new, 2, 8)]) for old in olds]
        k_cache, table = in_pages(rooms, 5, 8, 4)
        v_cache, _ = in_pages([torch.cat([old[1], torch.zeros(new, 2, 8)]) for old in olds], 5, 8, 4)
        arguments["block_table"] = table
    cos, sin = tables()
    if rotary is not None:
        arguments |= {"rotary_cos": cos, "rotary_sin": sin, "rotary_interleaved": rotary}
    before = k_cache.clone()
    out, lse = fa.flash_attn_with_kvcache(q, k_cache, v_cache, k, v, return_softmax_lse=True, **arguments)

    alibi_slopes = options.get("alibi_slopes")
    untouched = torch.ones(k_cache.shape[:2], dtype=torch.bool)
    for b, (length, first) in enumerate(zip(lengths, firsts)):
        turns = torch.arange(4) if options else torch.zeros(4, dtype=torch.long)
        own_q, own_k, own_v = q[b:b + 1], k[b:b + 1], v[b:b + 1]
        if rotary is not None:
            own_q = turned(own_q, cos, sin, length + turns, rotary)
            own_k = turned(own_k, cos, sin, length + torch.arange(new), rotary)
        keys, values = torch.cat([olds[b][0], own_k[0]]), torch.cat([olds[b][1], own_v[0]])
        places = [(int(table[b, i // 5]), i % 5) if "pages" in given else (rows[b], i) for i in range(length + new)]
        for i, place in enumerate(places):  # what the cache now holds
            assert_close(k_cache[place], keys[i])
            assert torch.equal(v_cache[place], values[i])
            untouched[place] = i < length
        own = {**options, "alibi_slopes": None if alibi_slopes is None else alibi_slopes[b]}
        expected = reference(own_q, keys[None, first:], values[None, first:], **own)
        assert_close(out[b:b + 1], expected[0])
        assert_close(lse[b:b + 1], expected[1])
    assert torch.equal(k_cache[untouched].nan_to_num(), before[untouched].nan_to_num())


@pytest.mark.parametrize("order", [[3, 4, 5], [3, 5, 4]], ids=["in line", "out of line"])
def test_pages_in_line_and_not(order):
    pages = torch.stack(caches(rows=8, length=4))
    out = fa.flash_attn_with_kvcache(random(1, 3, 4, 8), *pages, cache_seqlens=10, block_table=int32(order),
                                     cache_leftpad=int32(5))
    keys, values = (cache[order].flatten(0, 1)[None, 5:10] for cache in pages)
    assert_close(out, reference(random(1, 3, 4, 8), keys, values)[0])


@pytest.mark.parametrize("paged", [False, True])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_decoding_equals_prefill(paged, dtype):
    L, (cos, sin) = 9, tables()
    q, k, v = (random(2, L, heads, 8, seed=heads, dtype=dtype) for heads in (4, 2, 2))
    whole_q, whole_k = (fa.apply_rotary_emb(tensor, cos, sin, True) for tensor in (q, k))
    expected = reference(whole_q, whole_k, v, causal=True)[0]
    arguments = {"block_table": int32(5, 0, 2, 1, 3, 4).view(2, 3)} if paged else {}
    k_cache, v_cache = (torch.full((6, 4, 2, 8) if paged else (2, 16, 2, 8), math.nan, dtype=dtype) for _ in range(2))
    outs = [fa.flash_attn_with_kvcache(q[:, t:t + 1], k_cache, v_cache, k[:, t:t + 1], v[:, t:t + 1], cos, sin, t,
                                       causal=True, **arguments) for t in range(L)]
    assert_close(torch.cat(outs, 1), expected)
    k_cache.fill_(math.nan)
    prefill = fa.flash_attn_with_kvcache(q, k_cache, v_cache, k, v, cos, sin, 0, causal=True, **arguments)
    assert_close(prefill, expected)


def test_cache_has_no_gradients():
    q, (k_cache, v_cache) = random(2, 3, 4, 8, grad=True), caches()
    assert not fa.flash_attn_with_kvcache(q, k_cache, v_cache).requires_grad


# --------------------------------------------------------------------------------------------------- padding and rotary

def test_padding_round_trip():
    mask = torch.tensor([[1, 1, 0, 1], [0, 0, 0, 0], [0, 1, 1, 0]])
    hidden = random(3, 4, 2, 5, grad=True)
    tokens, indices, cu_seqlens, longest, used = fa.unpad_input(hidden, mask)
    assert torch.equal(tokens, hidden[mask.bool()])
    assert indices.tolist() == [0, 1, 3, 9, 10] and cu_seqlens.tolist() == [0, 3, 3, 5]
    assert cu_seqlens.dtype == used.dtype == torch.int32 and longest == 3 and used.tolist() == [3, 0, 2]
    back = fa.pad_input(tokens, indices, 3, 4)
    assert torch.equal(back, hidden * mask[:, :, None, None])
    weight = random(3, 4, 2, 5, seed=1)
    (gradient,) = torch.autograd.grad((back * weight).sum(), hidden)
    assert torch.equal(gradient, weight * mask[:, :, None, None])
    assert torch.autograd.gradcheck(lambda x: fa.pad_input(fa.unpad_input(x, mask.bool())[0], indices, 3, 4), hidden)


def test_unpad_with_unused():
    mask, unused = torch.tensor([[1, 1, 0, 0], [1, 0, 0, 0]]), torch.tensor([[0, 0, 1, 0], [0, 0, 0, 0]])
    tokens, indices, cu_seqlens, longest, used = fa.unpad_input(random(2, 4, 3), mask, unused)
    assert indices.tolist() == [0, 1, 2, 4] and cu_seqlens.tolist() == [0, 3, 4] and longest == 3
    assert used.tolist() == [2, 1] and tokens.shape == (4, 3)


def test_unpad_concatenated_sequences():
    lengths = torch.tensor([[2, 3, 0, 0, 0, 0], [3, 2, 0, 0, 0, 0], [6, 0, 0, 0, 0, 0]])
    hidden = random(3, 6, 4)
    tokens, indices, cu_seqlens, longest = fa.unpad_input_for_concatenated_sequences(hidden, lengths)
    assert cu_seqlens.tolist() == [0, 2, 5, 8, 10, 16] and longest == 6 and cu_seqlens.dtype == torch.int32
    assert torch.equal(tokens, torch.cat([hidden[0, :5], hidden[1, :5], hidden[2]]))
    assert torch.equal(fa.pad_input(tokens, indices, 3, 6)[2], hidden[2])


def test_indexing_of_the_first_axis():
    values, indices = random(3, 2, 2, grad=True), torch.tensor([4, 0, 2])
    put = fa.index_put_first_axis(values, indices, 6)
    assert torch.equal(put[indices], values) and (put[[1, 3, 5]] == 0).all()
    assert torch.equal(fa.index_first_axis(put, indices), values)
    assert torch.equal(fa.index_put_first_axis(values, indices.int(), 6), put)
    assert torch.equal(fa.index_first_axis(put, indices.int()), values)
    assert torch.autograd.gradcheck(lambda x: fa.index_put_first_axis(x, indices, 6), values)
    assert torch.autograd.gradcheck(lambda x: fa.index_first_axis(x, torch.tensor([2, 0, 2])), values)


@pytest.mark.parametrize("interleaved", [True, False])
def test_rotary_is_that_of_the_definition(interleaved):
    x, (cos, sin) = random(2, 5, 3, 8, grad=True), tables()
    for offsets, places in ((0, torch.arange(5).expand(2, 5)), (3, torch.arange(3, 8).expand(2, 5)),
                            (int32(1, 9), torch.tensor([[1], [9]]) + torch.arange(5))):
        expected = turned(x, cos, sin, places, interleaved)
        assert_close(fa.apply_rotary_emb(x, cos, sin, interleaved, seqlen_offsets=offsets), expected)
    packed = fa.apply_rotary_emb(x.flatten(0, 1)[:8], cos, sin, interleaved, cu_seqlens=int32(0, 5, 8), max_seqlen=5,
                                 seqlen_offsets=int32(1, 9))
    assert_close(packed, expected.flatten(0, 1)[:8])
    assert torch.autograd.gradcheck(lambda x: fa.apply_rotary_emb(x, cos, sin, interleaved), x)
    own = x.detach().clone()
    assert fa.apply_rotary_emb(own, cos, sin, interleaved, inplace=True, seqlen_offsets=int32(1, 9)) is own
    assert_close(own, expected)


def test_rotary_is_rounded_once():
    x, (cos, sin) = random(2, 5, 3, 8, dtype=torch.bfloat16), tables()
    exact = turned(x.double(), cos, sin, torch.arange(5).expand(2, 5), False)
    got = fa.apply_rotary_emb(x, cos.float(), sin.float())
    assert got.dtype == torch.bfloat16
    assert (got.double() - exact).abs().max() <= 2**-8 * exact.abs().max()
