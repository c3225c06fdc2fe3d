"""Random arguments: an array, or a ValueError, TypeError, BufferError or MemoryError with words. Never a signal."""

import os

import numpy as np
from hypothesis import HealthCheck, given, seed, settings, strategies as st

import attention_cpp

CASES = 5_000 if os.environ.get("ATTN_EXHAUSTIVE") else 400
SEED = int(os.environ.get("ATTN_SEED", "1"))
REFUSED = (ValueError, TypeError, BufferError, MemoryError)

extents = st.integers(0, 6)
shapes = st.lists(extents, min_size=0, max_size=5).map(tuple)
dtypes = st.sampled_from(["f4", "f8", "f2", "i4", "i8", "?", "u1", "c8", ">f4", "O", "U1"])


@st.composite
def arrays(draw, shape=shapes, dtype=dtypes):
    values = np.zeros(draw(shape), draw(dtype))
    if draw(st.booleans()) and values.ndim > 1:
        values = values.transpose(draw(st.permutations(range(values.ndim))))
    if draw(st.booleans()) and values.ndim:
        values = values[::-1]
    return values


sane = st.shared(st.tuples(st.integers(1, 3), st.integers(1, 4), st.integers(0, 9), st.integers(1, 9)), key="shape")
good = sane.map(lambda shape: np.ones(shape, np.float32))
numbers = st.one_of(st.integers(-(2**70), 2**70), st.floats(), st.none(), st.text(max_size=3), st.booleans())
lists = st.one_of(st.lists(st.integers(-3, 12), max_size=5), st.lists(numbers, max_size=4), arrays(), numbers)
anything = st.one_of(good, good, good, arrays(), numbers, lists)

options = st.fixed_dictionaries({}, optional={
    "scale": numbers, "softcap": numbers, "causal": st.one_of(st.booleans(), numbers),
    "window": st.one_of(st.tuples(st.integers(-3, 9), st.integers(-3, 9)), lists),
    "alignment": st.one_of(st.sampled_from(["top_left", "bottom_right", "offset", "middle"]), numbers),
    "key_length": lists, "query_length": lists, "offset": lists,
    "mask": st.one_of(arrays(dtype=st.just("?")), anything),
    "bias": anything, "alibi_slopes": lists, "query_segment_ids": anything, "key_segment_ids": anything,
    "cu_seqlens_q": lists, "cu_seqlens_k": lists,
    "blocks": st.one_of(st.tuples(arrays(dtype=st.just("?")), st.integers(-1, 9), st.integers(-1, 9)), numbers),
    "sink": lists, "dropout": st.one_of(st.floats(0, 0.9), numbers), "seed": numbers,
})
sample = settings(max_examples=CASES, deadline=None, database=None,
                  suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])


def often(test):
    return seed(SEED)(sample(test))


def attempt(function, *arguments, **keywords):
    try:
        return function(*arguments, **keywords)
    except REFUSED as error:
        assert str(error) or isinstance(error, MemoryError)
        return None


@often
@given(anything, anything, anything, options, st.one_of(st.none(), anything))
def test_any_forward_and_what_follows_computes_or_raises(q, k, v, given_options, out):
    result = attempt(attention_cpp.attention, q, k, v, out=out, return_lse=True, **given_options)
    attempt(attention_cpp.explain, q, k, v, **given_options)
    if result is not None:
        attempt(attention_cpp.attention_backward, q, k, v, *result, result[0], **given_options)
        attempt(attention_cpp.attention_weights, q, k, result[1], **given_options)
        attempt(attention_cpp.attention_statistics, q, k, result[1], top=2, picture=(1, 1), **given_options)


@often
@given(anything, anything, anything, anything, anything, anything, options)
def test_any_backward_computes_or_raises(q, k, v, out, lse, dout, given_options):
    attempt(attention_cpp.attention_backward, q, k, v, out, lse, dout, **given_options)


@often
@given(anything, anything, anything, st.one_of(st.none(), st.integers(-9, 9), st.slices(9)), numbers)
def test_any_weights_statistics_and_merge_compute_or_raise(a, b, c, rows, columns):
    attempt(attention_cpp.attention_weights, a, b, c, rows, columns)
    attempt(attention_cpp.attention_statistics, a, b, c, ["same_token", "column_mass"], labels=b, query_token_ids=a,
            key_token_ids=c, key_factor=c, picture=(1, 2), picture_rows=rows, picture_columns=columns)
    attempt(attention_cpp.merge, a, b, a, c)


@often
@given(numbers, numbers, numbers, st.sampled_from(["float32", "float64", "float9"]), st.integers(-2, 70),
       st.lists(st.tuples(st.sampled_from(["add", "fork", "append", "truncate", "remove", "length", "attend"]),
                          st.integers(-1, 4), st.integers(-1, 9), anything), max_size=8))
def test_any_steps_of_a_cache_compute_or_raise(kv_heads, head_dim, value_dim, dtype, page_size, steps):
    cache = attempt(attention_cpp.KVCache, kv_heads, head_dim, value_dim, dtype=dtype, page_size=page_size)
    small = attempt(attention_cpp.KVCache, 2, 4, dtype="float32", page_size=2, max_pages=5)
    for target in (cache, small):
        if target is None:
            continue
        for name, sequence, number, array in steps:
            if name == "add":
                attempt(target.add)
            elif name == "append":
                attempt(target.append, sequence, array, array)
                attempt(target.append, sequence, *[np.ones((1, 2, max(number, 0), 4), np.float32)] * 2)
            elif name == "attend":
                attempt(target.attend, np.ones((1, 4, 1, 4), np.float32), [sequence])
                attempt(target.attend, array, [sequence, number], array)
                attempt(target.statistics, np.ones((1, 4, 1, 4), np.float32), array, [sequence], labels=array)
                attempt(target.statistics, array, array, [sequence, number], array, ["column_mass"], picture=(1, 1))
            elif name in ("fork", "truncate"):
                attempt(getattr(target, name), sequence, number)
            else:
                attempt(getattr(target, name), sequence)
