"""The operator from Python: every option by its name, results of every kind, what help() shows, errors."""

import inspect
import sys

import numpy as np
import pytest

import attention_cpp
import reference
from attention_cpp import _options

B, H, HK, LQ, LK, D, DV = 2, 4, 2, 7, 9, 8, 5
EXACT = dict(rtol=1e-12, atol=1e-13)  # float64: a few hundred roundings of 1.1e-16


def draw(*shape, seed=0, dtype=np.float64):
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


@pytest.fixture
def qkv():
    return draw(B, H, LQ, D), draw(B, HK, LK, D, seed=1), draw(B, HK, LK, DV, seed=2)


OPTIONS = {
    "plain": {},
    "scale": {"scale": 0.3},
    "softcap": {"softcap": 2.0},
    "causal": {"causal": True, "alignment": "bottom_right"},
    "top left": {"causal": True, "alignment": "top_left"},
    "window": {"window": (2, 1), "alignment": "top_left"},
    "lengths": {"key_length": [3, 9]},
    "query lengths": {"causal": True, "alignment": "bottom_right", "key_length": [3, 9], "query_length": [2, 7]},
    "offset": {"causal": True, "alignment": "offset", "offset": np.array([0, 2])},
    "mask": {"mask": np.random.default_rng(3).random((B, 1, LQ, LK)) < 0.7},
    "key mask": {"mask": np.random.default_rng(3).random((B, 1, 1, LK)) < 0.7},
    "bias": {"bias": draw(1, H, LQ, LK, seed=4)},
    "alibi": {"alibi_slopes": [0.5, 0.25, 0.125, 0.0625], "alignment": "top_left"},
    "segments": {"query_segment_ids": np.arange(B * LQ).reshape(B, LQ) % 2,
                  "key_segment_ids": np.arange(B * LK).reshape(B, LK) % 2},
    "sink": {"sink": [0.125, -0.5, 1.0, 0.0]},
    "all": {"scale": 0.3, "softcap": 3.0, "causal": True, "window": (4, -1), "alignment": "bottom_right",
            "key_length": np.array([5, 9], np.int32), "mask": np.random.default_rng(5).random((B, H, LQ, LK)) < 0.8,
            "bias": draw(B, 1, 1, LK, seed=6), "alibi_slopes": np.array([0.1, 0.2, 0.3, 0.4], np.float32),
            "sink": np.zeros(H, np.float32)},
}


@pytest.mark.parametrize("name", OPTIONS)
def test_every_option_is_as_in_the_reference(name, qkv):
    q, k, v = qkv
    out, lse = attention_cpp.attention(q, k, v, return_lse=True, **OPTIONS[name])
    expected, expected_lse = reference.attention(q, k, v, **OPTIONS[name])
    np.testing.assert_allclose(out, expected, **EXACT)
    np.testing.assert_allclose(lse, expected_lse, **EXACT)
    matrix = attention_cpp.attention_weights(q, k, lse, **OPTIONS[name])
    np.testing.assert_allclose(matrix, reference.weights(q, k, **OPTIONS[name])[0], **EXACT)


def test_every_option_of_the_signature_is_tested():
    tested = {option for options in OPTIONS.values() for option in options}
    elsewhere = {"dropout", "seed", "cu_seqlens_q", "cu_seqlens_k", "blocks",
                 "float32_precision", "batch_invariant", "shard"}
    assert _options.FIELDS.keys() == tested | elsewhere


def test_options_of_matrix_tiles():
    """Permissions and a promise: results stay near whatever the processor has, and few rows are exact in any case."""
    random = np.random.default_rng(1)
    q, k, v = (random.standard_normal((1, 2, 300, 16), np.float32) for _ in range(3))
    expected, _ = reference.attention(q, k, v)
    for precision, bound in (("full", 1e-5), ("high", 1e-4), ("fast", 5e-2)):
        out = attention_cpp.attention(q, k, v, float32_precision=precision)
        np.testing.assert_allclose(out, expected, rtol=bound, atol=bound)
    whole = attention_cpp.attention(q, k, v, batch_invariant=True)
    for i in (0, 299):
        np.testing.assert_array_equal(attention_cpp.attention(q[:, :, i:i + 1], k, v, batch_invariant=True),
                                      whole[:, :, i:i + 1])
    with pytest.raises(attention_cpp.Error, match="float32_precision is 'half', must be full, high or fast"):
        attention_cpp.attention(q, k, v, float32_precision="half")
    with pytest.raises(TypeError, match="batch_invariant must be True or False"):
        attention_cpp.attention(q, k, v, batch_invariant="yes")


@pytest.mark.parametrize("name", OPTIONS)
def test_gradient_is_the_slope(name, qkv):
    q, k, v = qkv
    options = dict(OPTIONS[name])
    if "sink" in options:
        options["sink"] = np.asarray(options["sink"], np.float32)
    out, lse = attention_cpp.attention(q, k, v, return_lse=True, **options)
    dout = draw(*out.shape, seed=7)
    gradients = attention_cpp.attention_backward(q, k, v, out, lse, dout, **options)
    arrays = {"dq": q, "dk": k, "dv": v} | ({"dbias": options["bias"]} if "bias" in options else {})
    for field, array in arrays.items():
        direction = draw(*array.shape, seed=8)
        step = 1e-5

        def loss(sign):
            moved = {"dq": q, "dk": k, "dv": v, "dbias": options.get("bias")} | {field: array + sign * step * direction}
            given = options | ({"bias": moved["dbias"]} if "bias" in options else {})
            return (reference.attention(moved["dq"], moved["dk"], moved["dv"], **given)[0] * dout).sum()

        slope = (loss(1) - loss(-1)) / (2 * step)
        np.testing.assert_allclose((getattr(gradients, field) * direction).sum(), slope, rtol=1e-7, atol=1e-8)
    assert (gradients.dsink is None) == ("sink" not in options)
    assert (gradients.dbias is None) == ("bias" not in options)


def test_packed_sequences_are_the_sequences_alone():
    lengths = [3, 0, 5]
    starts = [0, 3, 3, 8]
    q, k, v = (draw(1, H, 8, D, seed=seed) for seed in range(3))
    out = attention_cpp.attention(q, k, v, causal=True, alignment="top_left", cu_seqlens_q=starts,
                                  cu_seqlens_k=np.array(starts))
    for start, length in zip(starts, lengths):
        part = slice(start, start + length)
        alone = attention_cpp.attention(q[:, :, part], k[:, :, part], v[:, :, part], causal=True)
        np.testing.assert_array_equal(out[:, :, part], alone)


def test_shards_merge_to_the_whole(qkv):
    q, k, v = qkv
    options = {"causal": True, "alignment": "bottom_right", "dropout": 0.25, "seed": 3}
    whole, lse = attention_cpp.attention(q, k, v, return_lse=True, **options)
    query, cut = slice(2, 5), 4
    parts = [attention_cpp.attention(q[:, :, query], k[:, :, keys], v[:, :, keys], return_lse=True,
                                     shard=(0, 0, 2, keys.start, LQ, LK), **options)
             for keys in (slice(0, cut), slice(cut, LK))]
    out, out_lse = attention_cpp.merge(*parts[0], *parts[1])
    np.testing.assert_allclose(out, whole[:, :, query], **EXACT)
    np.testing.assert_allclose(out_lse, lse[:, :, query], **EXACT)
    with pytest.raises(TypeError, match="shard must be six whole numbers"):
        attention_cpp.attention(q, k, v, shard=(1, 2))
    with pytest.raises(attention_cpp.Error, match=r"shard.first_query \+ Lq is 17, must be at most 9"):
        attention_cpp.attention(q, k, v, shard=(0, 0, 10, 0, 9, 0))


def test_blocks_are_a_mask_of_rectangles(qkv):
    q, k, v = qkv
    allowed = np.array([[True, False, True], [False, True, True]])[None, None]
    mask = np.repeat(np.repeat(allowed, 4, axis=2), 3, axis=3)[:, :, :LQ, :LK]
    out = attention_cpp.attention(q, k, v, blocks=(allowed, 4, 3))
    np.testing.assert_allclose(out, reference.attention(q, k, v, mask=mask)[0], **EXACT)


def test_blocks_may_be_lists(qkv):
    q, k, v = qkv
    allowed = np.array([[True, False, True], [False, True, True]])[None, None]
    lists = np.array([[[0, 2, 4]]]), np.array([0, 2, 1, 2])
    expected = attention_cpp.attention(q, k, v, blocks=(allowed, 4, 3))
    np.testing.assert_array_equal(attention_cpp.attention(q, k, v, blocks=(*lists, 4, 3)), expected)
    with pytest.raises(attention_cpp.Error, match=r"blocks\.indices\[1\] is 0, must be in \[1, 2\]"):
        attention_cpp.attention(q, k, v, blocks=(lists[0], np.array([0, 0, 1, 2]), 4, 3))


def test_dropout_is_a_function_of_the_seed(qkv):
    q, k, v = qkv
    keep = attention_cpp.dropout_keeps(5, 0.4, (B, H, LQ, LK))
    out = attention_cpp.attention(q, k, v, dropout=0.4, seed=5)
    np.testing.assert_allclose(out, reference.attention(q, k, v, dropout=0.4, keep=keep)[0], **EXACT)
    assert not np.array_equal(out, attention_cpp.attention(q, k, v, dropout=0.4, seed=6))
    np.testing.assert_array_equal(keep[:, :, 2:5, 3:], attention_cpp.dropout_keeps(5, 0.4, (B, H, 3, LK - 3), 2, 3))


def test_a_part_of_the_weights(qkv):
    q, k, _ = qkv
    lse = attention_cpp.attention(*qkv, return_lse=True)[1]
    whole = attention_cpp.attention_weights(q, k, lse)
    np.testing.assert_array_equal(attention_cpp.attention_weights(q, k, lse, rows=slice(2, 5), columns=range(1, 4)),
                                  whole[:, :, 2:5, 1:4])
    np.testing.assert_array_equal(attention_cpp.attention_weights(q, k, lse, rows=6), whole[:, :, 6:])
    np.testing.assert_allclose(whole.sum(-1), 1, **EXACT)
    assert attention_cpp.attention_weights(q, k, lse, rows=slice(5, 3)).shape == (B, H, 0, LK)
    for rows in (slice(0, 4, 2), range(3, 99), range(-1, 2)):
        with pytest.raises(attention_cpp.Error, match="rows"):
            attention_cpp.attention_weights(q, k, lse, rows=rows)


def test_merge_joins_two_sets_of_keys(qkv):
    q, k, v = qkv
    first = attention_cpp.attention(q, k[:, :, :4], v[:, :, :4], return_lse=True)
    second = attention_cpp.attention(q, k[:, :, 4:], v[:, :, 4:], return_lse=True)
    before = first[0].copy()
    out, lse = attention_cpp.merge(*first, *second)
    np.testing.assert_allclose(out, reference.attention(q, k, v)[0], **EXACT)
    np.testing.assert_allclose(lse, reference.attention(q, k, v)[1], **EXACT)
    np.testing.assert_array_equal(first[0], before)


@pytest.mark.parametrize("axes", [2, 3])
def test_missing_axes_count_as_one(axes):
    q, k, v = (draw(1, 1, 6, D, seed=seed) for seed in range(3))
    index = (0,) * (4 - axes)
    out, lse = attention_cpp.attention(q[index], k[index], v[index], causal=True, return_lse=True)
    assert out.shape == q[index].shape and lse.shape == q[index].shape[:-1]
    whole = attention_cpp.attention(q, k, v, causal=True)
    np.testing.assert_array_equal(out, whole[index])
    assert attention_cpp.attention_weights(q[index], k[index], lse, causal=True).shape == (*q[index].shape[:-1], 6)


@pytest.mark.parametrize("dtype, lse_dtype", [("float32", "float32"), ("float16", "float32"), ("float64", "float64")])
def test_types_of_the_results(dtype, lse_dtype, qkv):
    q, k, v = (array.astype(dtype) for array in qkv)
    out, lse = attention_cpp.attention(q, k, v, return_lse=True)
    assert (out.dtype, lse.dtype) == (dtype, lse_dtype)
    gradients = attention_cpp.attention_backward(q, k, v, out, lse, out)
    assert {gradient.dtype for gradient in gradients[:3]} == {np.dtype(dtype)}
    unit = {"float32": 2.0**-23, "float16": 2.0**-10, "float64": 2.0**-52}[dtype]
    expected = reference.attention(q, k, v)[0]
    np.testing.assert_allclose(out, expected, rtol=0, atol=8 * unit * abs(expected).max())


def test_bfloat16_arrays_of_numpy(qkv):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    q, k, v = (array.astype(ml_dtypes.bfloat16) for array in qkv)
    out = attention_cpp.attention(q, k, v[:, :, :, ::-1])
    expected = reference.attention(q, k, v[:, :, :, ::-1])[0]
    assert out.dtype == ml_dtypes.bfloat16
    np.testing.assert_allclose(out.astype(np.float64), expected, rtol=0, atol=2.0**-7 * abs(expected).max())


def test_out_is_written_to(qkv):
    memory = np.zeros((B, LQ, H, DV))
    out = memory.transpose(0, 2, 1, 3)
    assert attention_cpp.attention(*qkv, out=out) is out
    np.testing.assert_array_equal(out, attention_cpp.attention(*qkv))


def test_wanted_gradients_alone(qkv):
    out, lse = attention_cpp.attention(*qkv, return_lse=True)
    gradients = attention_cpp.attention_backward(*qkv, out, lse, out, wanted=["dv"])
    assert [gradient is None for gradient in gradients] == [True, True, False, True, True]
    with pytest.raises(attention_cpp.Error, match="'dw'"):
        attention_cpp.attention_backward(*qkv, out, lse, out, wanted=["dw"])


def test_explain_names_path_and_memory(qkv):
    plan = attention_cpp.explain(*qkv, causal=True, alignment="top_left")
    assert plan.isa == attention_cpp.isa() and plan.isa in plan.path and plan.tasks >= 1
    pairs = B * H * sum(min(i + 1, LK) for i in range(LQ))
    assert plan.flops == 2 * pairs * (D + DV)
    backward = attention_cpp.explain_backward(*qkv)
    assert backward.flops > plan.flops
    long = np.zeros((1, 1, 10**6, 64), np.float32)
    assert attention_cpp.explain(long, long, long).scratch_bytes < 10**8  # n x n would be 4e12


def test_isa_is_read_and_forced(qkv):
    best = attention_cpp.isa()
    assert best in attention_cpp.isas() and "baseline" in attention_cpp.isas()
    try:
        results = {}
        for name in attention_cpp.isas():
            assert attention_cpp.isa(name) == name
            results[name] = attention_cpp.attention(*qkv)
        for result in results.values():
            np.testing.assert_allclose(result, results["baseline"], **EXACT)
        with pytest.raises(attention_cpp.Error, match="baseline"):
            attention_cpp.isa("mmx")
    finally:
        attention_cpp.isa(best)


@pytest.fixture
def precision_restored():
    yield
    attention_cpp.float32_precision("full")


def test_precision_of_the_process(precision_restored):
    """Seen on any processor: how far an lse may be from that of its q and k depends on the precision."""
    q, k, v = (np.random.default_rng(seed).standard_normal((1, 2, 40, 16), np.float32) for seed in range(3))
    _, lse = attention_cpp.attention(q, k, v, return_lse=True)
    off = lse + np.float32(1e-3)

    def is_taken(**options):
        try:
            attention_cpp.attention_statistics(q, k, off, **options)
        except attention_cpp.Error:
            return False
        return True

    assert attention_cpp.float32_precision() == "full" and not is_taken()
    assert is_taken(float32_precision="fast")
    assert attention_cpp.float32_precision("fast") == "fast"
    assert is_taken() and is_taken(float32_precision=None) and not is_taken(float32_precision="full")
    with pytest.raises(attention_cpp.Error, match="unknown precision 'medium'; known are: full, high or fast"):
        attention_cpp.float32_precision("medium")
    assert attention_cpp.float32_precision() == "fast"


def test_threads_do_not_change_bits():
    q, k, v = (draw(1, 3, 300, 16, seed=seed, dtype=np.float32) for seed in range(3))
    results = []
    torch = sys.modules.get("attention_cpp.torch")
    if torch:  # another test has imported it
        with pytest.raises(attention_cpp.Error, match="set_num_threads"):
            attention_cpp.threads(1)
        torch.share_threads(False)
    before = attention_cpp.threads()
    try:
        for count in (1, 2, 3, 7):
            assert attention_cpp.threads(count) == count
            results.append(attention_cpp.attention(q, k, v, causal=True).tobytes())
    finally:
        attention_cpp.threads(before)
        if torch:
            torch.share_threads()
    assert len(set(results)) == 1


def test_help_reads_well():
    for function in (attention_cpp.attention, attention_cpp.attention_backward, attention_cpp.attention_weights,
                     attention_cpp.attention_statistics,
                     attention_cpp.merge, attention_cpp.explain, attention_cpp.KVCache, attention_cpp.KVCache.attend,
                     attention_cpp.KVCache.statistics):
        text = inspect.getdoc(function)
        assert text and len(text.splitlines()[0]) < 130
    assert "[B, H, Lq, D]" in attention_cpp.attention.__doc__


def test_everything_wrong_is_named_at_once(qkv):
    q, k, v = qkv
    with pytest.raises(attention_cpp.Error) as caught:
        attention_cpp.attention(q, k[:, :, :, :3], v[:, :1], scale=np.inf, causal=True)
    text = str(caught.value)
    assert isinstance(caught.value, ValueError) and text.startswith("[attention]")
    for part in ("[2, 4, 7, 8]", "[2, 2, 9, 3]", "alignment"):
        assert part in text
    with pytest.raises(TypeError, match="q must be an array.*scale must be a number.*window must be"):
        attention_cpp.attention("q", k, v, scale="much", window=3)


# ------------------------------------------------------------------------------------------------------------ the cache

def test_cache_decodes_the_bits_of_the_whole():
    q, k, v = draw(1, H, 6, D), draw(1, HK, 6, D, seed=1), draw(1, HK, 6, DV, seed=2)
    whole = attention_cpp.attention(q, k, v, causal=True)
    cache = attention_cpp.KVCache(HK, D, DV, dtype="float64", page_size=2)
    sequence = cache.add()
    for t in range(6):
        cache.append(sequence, k[:, :, t:t + 1], v[:, :, t:t + 1])
        out = cache.attend(q[:, :, t:t + 1], [sequence])
        np.testing.assert_array_equal(out, whole[:, :, t:t + 1])
    assert cache.length(sequence) == 6 and cache.pages_in_use == 3


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("queries", [1, 4, 70])
def test_cache_in_8_bits_attends_to_rounded_rows(dtype, queries):
    """Attention, and its statistics, are those over rows rounded to multiples of max |x| / 127."""
    width, length = 32, 150
    q, k, v = (draw(1, heads, n, width, seed=s).astype(dtype) for s, (heads, n) in
               enumerate([(H, queries), (HK, length), (HK, length)]))
    cache = attention_cpp.KVCache(HK, width, dtype=dtype, storage="int8")
    sequence = cache.add()
    cache.append(sequence, k, v)
    assert cache.nbytes == 3 * 64 * HK * 2 * (width + 4)

    def rounded(x):
        numbers = x.astype(np.float32)
        scale = np.abs(numbers).max(-1, keepdims=True) / np.float32(127)
        return (scale * np.rint(numbers / scale)).astype(dtype)

    out, lse = cache.attend(q, [sequence], [0, queries], return_lse=True)
    given = {"causal": True, "alignment": "bottom_right"}
    expected = reference.attention(q, rounded(k), rounded(v), **given)[0]
    tolerance = {"float32": 4e-6, "float64": 1e-12}[dtype]
    np.testing.assert_allclose(out, expected, rtol=0, atol=tolerance)
    assert np.abs(out - reference.attention(q, k, v, **given)[0]).max() > 10 * tolerance
    entropy = cache.statistics(q, lse, [sequence], [0, queries], wanted=["entropy"])["entropy"]
    exact = attention_cpp.attention_statistics(q, rounded(k), lse, ["entropy"], **given)["entropy"]
    np.testing.assert_allclose(entropy, exact, rtol=0, atol=20 * tolerance)
    with pytest.raises(attention_cpp.Error, match="storage is 'int4', must be exact or int8"):
        attention_cpp.KVCache(HK, width, storage="int4")


def test_cache_computes_a_ragged_batch():
    cache = attention_cpp.KVCache(HK, D, dtype="float64")
    rows, starts, expected = [], [0], []
    ids = []
    for number, (queries, keys) in enumerate([(1, 4), (3, 3), (2, 7)]):
        q, k, v = (draw(1, heads, n, D, seed=10 * number + s)
                   for s, (heads, n) in enumerate([(H, queries), (HK, keys), (HK, keys)]))
        ids.append(cache.add())
        cache.append(ids[-1], k, v)
        rows.append(q)
        starts.append(starts[-1] + queries)
        expected.append(reference.attention(q, k, v, causal=True, alignment="bottom_right"))
    out, lse = cache.attend(np.concatenate(rows, 2), ids, starts, return_lse=True)
    np.testing.assert_allclose(out, np.concatenate([e[0] for e in expected], 2), **EXACT)
    np.testing.assert_allclose(lse, np.concatenate([e[1] for e in expected], 2), **EXACT)


def test_cache_takes_one_query_each():
    cache = attention_cpp.KVCache(1, D, dtype="float64")
    q, k = draw(1, 1, 2, D), draw(1, 1, 5, D, seed=1)
    ids = [cache.add(), cache.add()]
    for sequence, keys in zip(ids, (2, 5)):
        cache.append(sequence, k[:, :, :keys], k[:, :, :keys])
    out = cache.attend(q, ids)
    for row, keys in enumerate((2, 5)):
        alone = attention_cpp.attention(q[:, :, row:row + 1], k[:, :, :keys], k[:, :, :keys])
        np.testing.assert_array_equal(out[:, :, row:row + 1], alone)


def test_cache_forks_truncates_and_removes():
    cache = attention_cpp.KVCache(1, 2, dtype="float64", page_size=4)
    first = cache.add()
    cache.append(first, draw(1, 1, 6, 2), draw(1, 1, 6, 2))
    second = cache.fork(first, 5)
    assert (cache.length(second), cache.pages_in_use) == (5, 2)
    cache.append(second, draw(1, 1, 1, 2), draw(1, 1, 1, 2))  # into a page of its own
    assert (cache.length(first), cache.length(second), cache.pages_in_use) == (6, 6, 3)
    cache.truncate(second, 2)
    cache.remove(first)
    with pytest.raises(attention_cpp.Error):
        cache.length(first)
    with pytest.raises(attention_cpp.Error, match="float64"):
        cache.append(second, np.zeros((1, 1, 1, 2), np.float32), np.zeros((1, 1, 1, 2), np.float32))
    assert cache.length(second) == 2


def test_a_streaming_cache_keeps_first_and_last_tokens():
    sinks, window, tokens = 2, 3, 12
    q, k, v = draw(1, H, tokens, D), draw(1, HK, tokens, D, seed=1), draw(1, HK, tokens, DV, seed=2)
    cache = attention_cpp.KVCache(HK, D, DV, dtype="float64", page_size=2, sink_tokens=sinks, window=window)
    sequence = cache.add()
    for t in range(tokens):
        cache.append(sequence, k[:, :, t:t + 1], v[:, :, t:t + 1])
        kept = [j for j in range(t + 1) if j < sinks or j > t - window]
        expected = attention_cpp.attention(q[:, :, t:t + 1], k[:, :, kept], v[:, :, kept])
        np.testing.assert_allclose(cache.attend(q[:, :, t:t + 1], [sequence]), expected, **EXACT)
        sink_q = draw(1, H, 1, D, seed=3 + t)
        parts = [attention_cpp.attention(one, k[:, :, some], v[:, :, some], return_lse=True) for one, some in
                 ((sink_q, kept[:sinks]), (q[:, :, t:t + 1], kept[sinks:])) if some]
        if t >= sinks + window:
            np.testing.assert_allclose(cache.attend(q[:, :, t:t + 1], [sequence], sink_queries=sink_q),
                                       attention_cpp.merge(*parts[0], *parts[1])[0], **EXACT)
    assert cache.length(sequence) == tokens and cache.pages_in_use == 3
    with pytest.raises(attention_cpp.Error, match="tokens have been evicted"):
        cache.truncate(sequence, 3)


@pytest.mark.parametrize("forgotten", [{"causal": True, "alignment": "bottom_right"}, {"scale": 0.01},
                                       {"mask": np.arange(LK) < 2}, {"softcap": 0.2}])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_weights_of_other_options_are_refused(forgotten, dtype):
    q, k, v = (3 * draw(*shape, dtype=dtype) for shape in ((B, H, LQ, D), (B, HK, LK, D), (B, HK, LK, DV)))
    if "mask" in forgotten:
        forgotten = {"mask": forgotten["mask"][None]}
    _, lse = attention_cpp.attention(q, k, v, return_lse=True, **forgotten)
    attention_cpp.attention_weights(q, k, lse, **forgotten)
    with pytest.raises(attention_cpp.Error, match=r"lse does not belong to q, k and the options .*: the weights of row "
                       r"\[\d, \d, \d\] add up to [\d.]+, must be at most 1"):
        attention_cpp.attention_weights(q, k, lse)


def test_weights_of_a_part_of_the_keys_are_not_refused():
    q, k, v = draw(B, H, LQ, D), draw(B, HK, LK, D, seed=1), draw(B, HK, LK, DV, seed=2)
    _, lse = attention_cpp.attention(q, k, v, return_lse=True)
    whole = attention_cpp.attention_weights(q, k, lse)
    np.testing.assert_allclose(attention_cpp.attention_weights(q, k[:, :, 2:5], lse), whole[..., 2:5], **EXACT)


def test_weights_go_to_an_array_of_their_size():
    q, k, v = draw(B, H, LQ, D), draw(B, HK, LK, D, seed=1), draw(B, HK, LK, DV, seed=2)
    _, lse = attention_cpp.attention(q, k, v, return_lse=True)
    with pytest.raises(attention_cpp.Error, match=r"out is \[2, 4, 7, 8\], must be 7 x 9 on its last axes"):
        attention_cpp.attention_weights(q, k, lse, out=np.empty((B, H, LQ, LK - 1)))


def test_errors_name_the_given_arrays():
    q, k = draw(B, H, LQ, D), draw(B, HK, LK, D)
    for bad, reason in (((q, k, k[:1]), "must have the same batch B"), ((q, k[..., :2], k), "must have q's head width"),
                        ((q.astype(np.float32), k, k), "must have one type"), ((q, k, k[:, :, :3]), "k's heads Hk")):
        with pytest.raises(attention_cpp.Error, match=reason) as caught:
            attention_cpp.attention(*bad, return_lse=True)
        assert " out " not in f" {caught.value}".replace("[", " ").replace(";", " ") and "lse" not in str(caught.value)
    with pytest.raises(attention_cpp.Error, match=r"out has size \[2, 4, 7, 5\], must be \[2, 4, 7, 8\]"):
        attention_cpp.attention(q, k, k, out=np.empty((B, H, LQ, DV)))
