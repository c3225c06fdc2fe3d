"""attention_statistics(): by name, against NumPy that stores P, in the kind of the caller's arrays."""

import numpy as np
import pytest

import attention_cpp
import reference
from test_attention import B, H, HK, LK, LQ, OPTIONS, draw

RANDOM = np.random.default_rng(9)
LABELS = RANDOM.integers(-1, 3, (1, LK))
QUERY_TOKEN, KEY_TOKEN = RANDOM.integers(0, 3, (B, LQ)), RANDOM.integers(0, 3, (B, LK)).astype(np.int32)
FACTOR = RANDOM.random((B, HK, LK))
ALL = ("sum", "entropy", "participation", "maximum", "argmax_key", "distance", "first", "self", "previous", "next",
       "same_token", "column_mass", "column_position")
SETS = {"bands": {"near": (-2, 1)}, "labels": LABELS, "query_token_ids": QUERY_TOKEN, "key_token_ids": KEY_TOKEN,
        "top": 3, "key_factor": FACTOR, "picture": (2, 3), "means": True}


def expected(p, place):
    """The same from P [B, H, Lq, Lk] and the places of the queries [B, 1, Lq, 1]."""
    j = np.arange(LK)
    ahead = j - place
    with np.errstate(divide="ignore", invalid="ignore"):
        logs = np.where(p > 0, np.log(p), 0)
        squares = (p ** 2).sum(-1)
        results = {
            "sum": p.sum(-1), "entropy": -(p * logs).sum(-1), "participation": np.where(squares > 0, 1 / squares, 0),
            "maximum": p.max(-1), "distance": (p * abs(ahead)).sum(-1), "first": p[..., 0],
            "self": (p * (ahead == 0)).sum(-1), "previous": (p * (ahead == -1)).sum(-1),
            "next": (p * (ahead == 1)).sum(-1), "near": (p * ((ahead >= -2) & (ahead <= 1))).sum(-1),
            "same_token": (p * (QUERY_TOKEN[:, None, :, None] == KEY_TOKEN[:, None, None])).sum(-1),
            "column_position": (p * place).sum(-2) / p.sum(-2),
        }
        results["labels"] = np.stack([(p * (LABELS[0] == n)).sum(-1) for n in range(LABELS.max() + 1)], -1)
    sees = p.sum(-1) > 0
    rows = np.maximum(sees.sum(-1), 1)
    for name in [name for name in results if name != "column_position"]:
        axis = -2 if name == "labels" else -1
        count = rows[..., None] if name == "labels" else rows
        results["mean_" + name] = results[name].sum(axis) / count
    weighted = p * np.repeat(FACTOR, H // HK, axis=1)[:, :, None]
    results["column_mass"] = weighted.sum(-2)
    bands = np.arange(LQ) * 2 // LQ, np.arange(LK) * 3 // LK
    results["picture"] = np.stack([np.stack([weighted[..., bands[0] == r, :][..., bands[1] == c].mean((-1, -2))
                                             for c in range(3)], -1) for r in range(2)], -2)
    results["top_weight"] = -np.sort(-p, -1)[..., :3]
    return results


def place_of(options):
    length = np.asarray(options.get("key_length", [LK] * B)) - np.asarray(options.get("query_length", [LQ] * B))
    first = {"bottom_right": length, "offset": np.asarray(options.get("offset", [0, 0]))}
    start = first.get(options["alignment"], np.zeros(B, int))
    return (np.arange(LQ) + start[:, None])[:, None, :, None]


@pytest.mark.parametrize("name", OPTIONS)
def test_statistics_of_every_option_are_those_of_the_matrix(name):
    q, k, v = draw(B, H, LQ, 8), draw(B, HK, LK, 8, seed=1), draw(B, HK, LK, 5, seed=2)
    options = {"alignment": "top_left"} | OPTIONS[name]
    p, lse = reference.weights(q, k, **options)
    statistics = attention_cpp.attention_statistics(q, k, lse, ALL, **SETS, **options)
    results = expected(p, place_of(options))
    assert set(statistics) == set(results) | {"argmax_key", "top_key"}
    for key, value in results.items():
        np.testing.assert_allclose(statistics[key], value, err_msg=key, rtol=1e-9, atol=1e-11)
    found = np.where(p.max(-1) > 0, p.argmax(-1), -1)
    np.testing.assert_array_equal(statistics["argmax_key"], found)
    np.testing.assert_array_equal(statistics["top_key"][..., 0], found)


def test_one_head_and_the_kind_of_the_arrays():
    torch = pytest.importorskip("torch")
    q, k, v = (torch.randn(40, 16, generator=torch.Generator().manual_seed(n)) for n in range(3))
    _, lse = attention_cpp.attention(q, k, v, causal=True, return_lse=True)
    statistics = attention_cpp.attention_statistics(q, k, lse, means=True, top=2, picture=(4, 5), causal=True)
    shapes = {name: tuple(array.shape) for name, array in statistics.items()}
    assert shapes["entropy"] == shapes["self"] == (40,) and shapes["mean_entropy"] == shapes["mean_self"] == ()
    assert shapes["top_key"] == (40, 2) and shapes["picture"] == (4, 5)
    assert all(isinstance(array, torch.Tensor) for array in statistics.values())
    p = torch.softmax((q @ k.T / 4).masked_fill(torch.ones(40, 40).triu(1).bool(), -torch.inf), -1)
    torch.testing.assert_close(statistics["entropy"], torch.special.entr(p).sum(-1), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(statistics["self"], p.diagonal(), rtol=1e-5, atol=1e-6)
    assert statistics["argmax_key"].dtype == torch.int64
    part = attention_cpp.attention_statistics(q, k, lse, [], picture=(10, 40), picture_of="max",
                                              picture_rows=range(30, 40), causal=True)["picture"]
    torch.testing.assert_close(part, p[30:], rtol=1e-5, atol=1e-6)


def test_wrong_arguments_raise_the_reason():
    q = k = v = draw(1, 1, 10, 4)
    _, lse = attention_cpp.attention(q, k, v, return_lse=True)
    call = attention_cpp.attention_statistics
    with pytest.raises(attention_cpp.Error, match="there is no statistic 'entrpy'; there are sum, entropy"):
        call(q, k, lse, ["entrpy"])
    with pytest.raises(TypeError, match="not one name"):
        call(q, k, lse, "entropy")
    with pytest.raises(attention_cpp.Error, match="a band must not be called 'self'"):
        call(q, k, lse, bands={"self": (0, 0)})
    with pytest.raises(attention_cpp.Error, match=r"bands\['near'\] must be \(low, high\)"):
        call(q, k, lse, bands={"near": 3})
    with pytest.raises(attention_cpp.Error, match=r"the weights of row \[0, 0, 0\] add up to"):
        call(q, k, lse + 1)
    with pytest.raises(attention_cpp.Error, match="same_token is requested"):
        call(q, k, lse, ["same_token"])
    for wrong, name in ((-1, "top"), (257, "top"), (2.5, "top"), (65, "label_sets")):
        with pytest.raises(attention_cpp.Error, match=f"{name} is {wrong}, must be a whole number"):
            call(q, k, lse, labels=np.zeros(10, int), **{name: wrong})
    with pytest.raises(attention_cpp.Error, match=r"picture is \(3, 4, 5\), must be \(rows, columns\)"):
        call(q, k, lse, [], picture=(3, 4, 5))
    with pytest.raises(attention_cpp.Error, match="rows of cells, must be at most the 10 queries"):
        call(q, k, lse, [], picture=(11, 1))
    with pytest.raises(attention_cpp.Error, match="picture_rows must be a range"):
        call(q, k, lse, [], picture=(1, 1), picture_rows=range(0, 10, 2))
    with pytest.raises(TypeError, match="labels"):
        call(q, k, lse, labels=[0] * 10, label_sets=1)


@pytest.mark.parametrize("kind", ["numpy", "torch"])
def test_statistics_of_a_cache_have_the_bits_of_packed_sequences(kind):
    """Bit for bit what packed sequences give, in the kind of the caller's arrays."""
    convert = pytest.importorskip("torch").from_numpy if kind == "torch" else np.asarray
    starts, key_starts = [0, 2, 5, 6], np.array([0, 9, 12, 30])
    q = convert(draw(1, H, 6, 8))
    k, v = (convert(draw(1, HK, 30, 8, seed=seed)) for seed in (1, 2))
    cache = attention_cpp.KVCache(HK, 8, dtype="float64", page_size=4)
    ids = [cache.add() for _ in starts[1:]]
    for sequence, first, end in zip(ids, key_starts, key_starts[1:]):
        cache.append(sequence, k[:, :, first:end], v[:, :, first:end])
    _, lse = cache.attend(q, ids, starts, return_lse=True, softcap=3.0)
    sets = {"bands": {"near": (-2, 1)}, "labels": convert(RANDOM.integers(-1, 3, (1, 30))), "top": 3, "means": True,
            "query_token_ids": convert(RANDOM.integers(0, 3, (1, 6))),
            "key_token_ids": convert(RANDOM.integers(0, 3, (1, 30))),
            "key_factor": convert(RANDOM.random((1, HK, 30))), "picture": (2, 3), "softcap": 3.0}
    actual = cache.statistics(q, lse, ids, starts, ALL, **sets)
    packed = {"cu_seqlens_q": starts, "cu_seqlens_k": key_starts, "causal": True, "alignment": "bottom_right"}
    expected = attention_cpp.attention_statistics(q, k, lse, ALL, **packed, **sets)
    assert set(actual) == set(expected) and all(type(array) is type(q) for array in actual.values())
    for name, array in expected.items():
        np.testing.assert_array_equal(np.asarray(actual[name]), np.asarray(array), err_msg=name)
    newest = cache.statistics(q[:, :, :3], cache.attend(q[:, :, :3], ids, return_lse=True)[1], ids, wanted=["entropy"])
    assert list(newest) == ["entropy"] and tuple(newest["entropy"].shape) == (1, H, 3)
    with pytest.raises(attention_cpp.Error, match="the cache has no sequence 7"):
        cache.statistics(q, lse, [7], [0, 6])
    with pytest.raises(attention_cpp.Error, match=r"the weights of row \[0, 0, 0\] add up to"):
        cache.statistics(q, lse + 1, ids, starts, softcap=3.0)
