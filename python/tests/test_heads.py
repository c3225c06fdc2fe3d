"""What heads do: every measure against plain NumPy on whole matrices."""

import numpy as np
import pytest

import attention_cpp
import reference
from attention_cpp import HEAD_MEASURES
from test_attention import draw

B, H, HK, N, D = 3, 4, 2, 11, 8
RANDOM = np.random.default_rng(21)
IDS = RANDOM.integers(0, 5, (B, N))
KINDS = RANDOM.choice([0, 0, 0, 1], (B, N))
KINDS[:, 0], KINDS[:, -1] = 2, 3
KINDS[1, 6:] = [0, 3, 1, 3, -1]
KINDS[2, 4:] = -1
LENGTHS = (KINDS >= 0).sum(1)
# 11 keys of a row, 11 rows, 3 texts: sums of a few hundred numbers up to 11, each with some ten roundings.
EXACT = {np.float64: dict(rtol=0, atol=2.0**-53 * 2**14), np.float32: dict(rtol=0, atol=2.0**-24 * 2**11)}

OPTIONS = {
    "plain": {},
    "padded": {"key_length": LENGTHS},
    "causal": {"causal": True},
    "window": {"window": (3, 1)},
    "both": {"causal": True, "window": (4, -1), "key_length": LENGTHS, "softcap": 2.0},
    "mask": {"mask": RANDOM.random((B, H, N, N)) < 0.6},
    "documents": {"query_segment_ids": np.arange(B * N).reshape(B, N) // 4 % 2,
                  "key_segment_ids": np.arange(B * N).reshape(B, N) // 4 % 2},
    "bias": {"bias": draw(1, H, N, N, seed=4), "alibi_slopes": [0.5, 0.25, 0.125, 0.0625]},
    "sink": {"causal": True, "sink": [0.125, -0.5, 1.0, 0.0]},
}


def mean(rows):
    """Of the rows that there are; None of a text without any."""
    return np.mean(rows) if len(rows) else None


def measures_of_text(whole, allowed, ids, kinds):
    """Of one head on one text of n tokens: rows of P [n, N], with the padding that no mask hides, what the masks allow
    [n, N], ids and kinds of the tokens."""
    n = len(ids)
    p, i, j = whole[:, :n], np.arange(n)[:, None], np.arange(n)
    words, separators = (kinds == 0) | (kinds == 1), kinds == 3
    repeated = words & np.array([ids[row] in ids[:row] for row in range(n)])
    same = (ids[:, None] == ids) & (i != j)
    behind = np.zeros((n, n), bool)
    behind[:, 1:] = same[:, :-1]
    choices = allowed.sum(1)
    with np.errstate(divide="ignore", invalid="ignore"):
        entropy = -np.where(whole > 0, whole * np.log(whole), 0).sum(1)
        relative = (entropy / np.log(choices))[choices > 1]

    def to(kind, rows=slice(None)):
        return mean(p[:, kinds == kind].sum(1)[rows]) if (kinds == kind).any() else None

    return {
        "previous": mean(np.diagonal(p, -1)), "next": mean(np.diagonal(p, 1)), "self": mean(np.diagonal(p)),
        "first": mean(p[:, 0]), "first_four": mean(whole[:, :4].sum(1)), "sink": float(p[:, 0].mean() > 0.3),
        "start": to(2), "separator": to(3), "separator_from_others": to(3, ~separators),
        "separator_from_separators": to(3, separators), "punctuation": to(1),
        "entropy": mean(entropy), "entropy_of_first": entropy[0],
        "entropy_uniform": mean(np.log(np.maximum(choices, 1))), "entropy_relative": mean(relative),
        "distance": mean((whole * abs(i - np.arange(whole.shape[1]))).sum(1)), "confidence": mean(whole.max(1)[words]),
        "duplicate": mean((p * same).sum(1)[repeated]), "induction": mean((p * behind).sum(1)[repeated]),
    }


def measures_of_texts(p, allowed, ids, kinds):
    """Of one head on texts: P and `allowed` [B, n, n]."""
    found, offsets = [], []
    for text, text_allowed, text_ids, text_kinds in zip(p, allowed, ids, kinds):
        n = (text_kinds >= 0).sum()
        found.append(measures_of_text(text[:n], text_allowed[:n], text_ids[:n], text_kinds[:n]))
        offsets += [text[i].argmax() - i for i in range(n) if text_kinds[i] < 2 and text[i].max() > 0]
    values = {}
    for name in found[0]:
        known = [text[name] for text in found if text[name] is not None]
        values[name] = np.mean(known) if known else np.nan
    places, counts = np.unique(offsets, return_counts=True)
    return values | {"offset": places[counts.argmax()], "positional": counts.max() / counts.sum()}


def expected_table(layers, ids, kinds):
    table = {name: [] for name in HEAD_MEASURES}
    for q, k, options in layers:
        p, _ = reference.weights(q, k, **options)
        allowed = reference.scores_and_mask(q, k, **options)[1]
        for h in range(q.shape[1]):
            for name, value in measures_of_texts(p[:, h], allowed[:, h], ids, kinds).items():
                table[name].append(value)
    return table


def layer_of(q, k, options):
    _, lse = attention_cpp.attention(q, k, k, return_lse=True, **options)
    return q, k, lse, options


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("name", OPTIONS)
def test_measures_are_those_of_the_reference(name, dtype):
    options = OPTIONS[name]
    if "bias" in options:
        options = options | {"bias": options["bias"].astype(dtype)}
    layers = [(draw(B, H, N, D, seed=2 * n, dtype=dtype), draw(B, HK, N, D, seed=2 * n + 1, dtype=dtype), options)
              for n in range(2)]
    measures = attention_cpp.HeadMeasures()
    measures.add([layer_of(*layer) for layer in layers], IDS, KINDS)
    table = measures.table()
    assert measures.texts == B and list(table) == ["layer", "head", *HEAD_MEASURES]
    assert table["layer"].tolist() == [0] * H + [1] * H and table["head"].tolist() == [*range(H)] * 2
    for measure, values in expected_table(layers, IDS, KINDS).items():
        np.testing.assert_allclose(table[measure], values, err_msg=measure, **EXACT[dtype])


def test_texts_one_by_one_are_a_batch():
    q, k = draw(B, H, N, D), draw(B, HK, N, D, seed=1)
    options = {"causal": True}
    together, apart = attention_cpp.HeadMeasures(), attention_cpp.HeadMeasures()
    together.add([layer_of(q, k, options)], IDS, KINDS)
    for b, length in enumerate(LENGTHS):
        part = (np.ascontiguousarray(array[b:b + 1, :, :length]) for array in (q, k))
        apart.add([layer_of(*part, options)], IDS[b:b + 1, :length], KINDS[b:b + 1, :length].tolist())
    for (name, one), other in zip(together.table().items(), apart.table().values(), strict=True):
        np.testing.assert_allclose(one, other, err_msg=name, **EXACT[np.float64])


def head_with(p):
    """q and k whose weights are nearly the rows of P."""
    n = len(p)
    return np.log(p + 1e-30)[None, None] * np.sqrt(n), np.eye(n)[None, None]


def test_heads_that_do_one_thing():
    """A head that looks at the token before, one that looks after the last occurrence, one at the first token."""
    ids = attention_cpp.repeated_tokens(10, 100, 200, start=7, seed=3)
    n = len(ids)
    before, behind, first = np.zeros((3, n, n))
    before[np.arange(n), np.maximum(np.arange(n) - 1, 0)] = 1
    behind[np.arange(n), np.where(np.arange(n) > 10, np.arange(n) - 9, 0)] = 1
    first[:, 0] = 1
    heads = [head_with(p) for p in (before, behind, first)]
    q, k = (np.concatenate([head[n] for head in heads], 1) for n in range(2))
    measures = attention_cpp.HeadMeasures()
    measures.add([layer_of(q, k, {"causal": True})], [ids])
    table = measures.table()
    near = dict(rtol=0, atol=1e-12)
    np.testing.assert_allclose(table["previous"], [1, 1 / (n - 1), 1 / (n - 1)], **near)
    np.testing.assert_allclose(table["induction"], [0, 1, 0], **near)
    np.testing.assert_allclose(table["duplicate"], 0, **near)
    np.testing.assert_allclose(table["first"], [2 / n, 11 / n, 1], **near)
    assert table["offset"][0] == -1 and table["positional"][0] == 20 / 21 and table["sink"].tolist() == [0, 1, 1]
    assert np.isnan(table["separator"]).all()


def test_clark_smooths():
    """The entropy of 0.9999 P + 0.0001 / n, which Clark et al. take, is within 0.0001 ln n + 0.0011 of that of P."""
    p = RANDOM.random((40, 40)) ** 20
    p /= p.sum(1, keepdims=True)
    smooth = 0.9999 * p + 0.0001 / 40
    entropies = [-(np.where(rows > 0, rows * np.log(np.maximum(rows, 1e-300)), 0)).sum(1) for rows in (p, smooth)]
    assert abs(entropies[0] - entropies[1]).max() < 0.0001 * np.log(40) + 0.0011


def test_repeated_tokens_are_different_and_repeated():
    tokens = attention_cpp.repeated_tokens(25, 1000, 2000, copies=4, start=1, seed=5)
    assert len(tokens) == 101 and tokens[0] == 1 and tokens[1:26] == tokens[26:51] == tokens[76:]
    assert len(set(tokens[1:26])) == 25 and min(tokens[1:]) >= 1000 and max(tokens) < 2000
    assert sorted(attention_cpp.repeated_tokens(6, 10, 16, seed=2)[:6]) == [*range(10, 16)]
    assert tokens != attention_cpp.repeated_tokens(25, 1000, 2000, copies=4, start=1, seed=6)
    with pytest.raises(attention_cpp.Error, match=r"the tokens are from \[10, 16\), must be at least 7 different ones"):
        attention_cpp.repeated_tokens(7, 10, 16)


def test_wrong_arguments_raise_the_reason():
    q, k = draw(B, H, N, D), draw(B, HK, N, D, seed=1)
    layer = layer_of(q, k, {})
    measures = attention_cpp.HeadMeasures()
    with pytest.raises(attention_cpp.Error, match="no text was added"):
        measures.table()
    with pytest.raises(attention_cpp.Error, match=r"ids are int64 \[3, 10\], must be int32 or int64 \[3, 11\]"):
        measures.add([layer], IDS[:, 1:])
    with pytest.raises(attention_cpp.Error, match=r"kinds\[1, 2\] is padding, which must be after the text"):
        kinds = KINDS.copy()
        kinds[1, 2] = -1
        measures.add([layer], IDS, kinds)
    with pytest.raises(attention_cpp.Error, match=r"kinds\[0, 0\] is 4, must be from -1 to 3"):
        measures.add([layer], IDS, np.where(KINDS == 2, 4, KINDS))
    with pytest.raises(attention_cpp.Error, match="11 queries and 10 keys"):
        measures.add([(q, k[:, :, 1:], layer[2], {"alignment": "top_left"})], IDS)
    with pytest.raises(TypeError, match=r"a layer must be \(q, k, lse\)"):
        measures.add([layer[0]], IDS)
    with pytest.raises(attention_cpp.Error, match="add up to"):
        measures.add([layer, (q, k, layer[2] + 1, {})], IDS)
    measures.add([layer], IDS, KINDS)
    assert measures.texts == B  # the first layer of what failed was not counted
    with pytest.raises(attention_cpp.Error, match="must have as many heads as in the texts before"):
        measures.add([layer, layer], IDS)
