"""attention_cpp.layouts: lists of key blocks, against the papers' formulas on numbers of blocks."""

import numpy as np
import pytest

import attention_cpp
from attention_cpp import layouts

LENGTH, BLOCK = 45, 4
N = (LENGTH + BLOCK - 1) // BLOCK
n, m = np.arange(N)[:, None], np.arange(N)


def allowed(lists: layouts.BlockLists) -> np.ndarray:
    """Returns the layout as booleans, [H, N, N]."""
    result = np.zeros((lists.offsets.shape[1], N, N), bool)
    for head, offsets in enumerate(lists.offsets[0]):
        for row in range(N):
            result[head, row, lists.indices[offsets[row]:offsets[row + 1]]] = True
    return result


LAYOUTS = {
    "local": (layouts.local(LENGTH, BLOCK, 2, 1), (n - 2 <= m) & (m <= n + 1)),
    "dilated": (layouts.dilated(LENGTH, BLOCK, 2, 3), ((n - m) % 3 == 0) & (abs(n - m) <= 6)),
    "strided": (layouts.strided(LENGTH, BLOCK, 5), (abs(n - m) <= 5) | ((n - m) % 5 == 0)),
    "fixed": (layouts.fixed(LENGTH, BLOCK, 4, 1), (n // 4 == m // 4) | (m % 4 == 3)),
    "longformer": (layouts.longformer(LENGTH, BLOCK, 1, np.array([2])), (abs(n - m) <= 1) | (n == 2) | (m == 2)),
    "bigbird without random": (layouts.bigbird(LENGTH, BLOCK, 1, 2, 0), (abs(n - m) <= 1) | (n < 2) | (m < 2)),
    "block_diagonal": (layouts.block_diagonal(LENGTH, BLOCK), n == m),
    "prefix": (layouts.prefix(LENGTH, BLOCK, 3), (m < 3) | (m <= n)),
}


@pytest.mark.parametrize("lists, formula", LAYOUTS.values(), ids=LAYOUTS)
def test_layouts_are_their_formulas(lists, formula):
    np.testing.assert_array_equal(allowed(lists)[0], formula)
    q = np.random.default_rng(0).standard_normal((1, 2, LENGTH, 8))
    expected = attention_cpp.attention(q, q, q, blocks=(formula[None, None], BLOCK, BLOCK), causal=True)
    np.testing.assert_array_equal(attention_cpp.attention(q, q, q, blocks=lists, causal=True), expected)


def test_bigbird_draws_for_each_head():
    lists = layouts.bigbird(LENGTH, BLOCK, 1, 1, 2, seed=3, heads=2)
    first, second = allowed(lists)
    assert (first != second).any() and (first.sum(-1)[2:-1] == 6).all()
    np.testing.assert_array_equal(layouts.bigbird(LENGTH, BLOCK, 1, 1, 2, seed=3, heads=2).indices, lists.indices)


def test_layouts_by_head():
    parts = layouts.local(LENGTH, BLOCK, 3, 3), layouts.dilated(LENGTH, BLOCK, N, 3)
    np.testing.assert_array_equal(allowed(layouts.by_head(*parts)), [allowed(part)[0] for part in parts])
    with pytest.raises(attention_cpp.Error, match="heads have 2 different sizes"):
        layouts.by_head(parts[0], layouts.local(LENGTH, BLOCK + 1, 3, 3))


def test_layouts_refuse():
    with pytest.raises(attention_cpp.Error, match="stride is 0, must be at least 1; summary is -1, must be at least 0"):
        layouts.fixed(LENGTH, BLOCK, 0, -1)
    with pytest.raises(TypeError, match="length must be a whole number, not 1.5"):
        layouts.strided(1.5, BLOCK, 2)
    with pytest.raises(TypeError, match="global_blocks must be a list of whole numbers"):
        layouts.longformer(LENGTH, BLOCK, 1, 3)


def test_selected_blocks_are_those_of_the_largest_scores():
    random = np.random.default_rng(1)
    q, k = random.standard_normal((2, 4, LENGTH, 8)), random.standard_normal((2, 2, LENGTH, 8))
    lists = layouts.select_blocks(q, k, BLOCK, 3)
    means = np.stack([k[:, :, first:first + BLOCK].mean(2) for first in range(0, LENGTH, BLOCK)], 2)
    scores = q @ means.repeat(2, 1).swapaxes(-1, -2)
    expected = np.sort(np.argsort(-scores, -1)[..., :3], -1)
    np.testing.assert_array_equal(lists.indices.reshape(2, 4, LENGTH, 3), expected)
    np.testing.assert_array_equal(layouts.select_keys(scores, 3).indices, lists.indices)
    out = attention_cpp.attention(q, k, k, blocks=layouts.select_blocks(q, k, BLOCK, N, causal=True), causal=True)
    np.testing.assert_allclose(out, attention_cpp.attention(q, k, k, causal=True), rtol=1e-12)


def test_selections_refuse():
    q = np.zeros((1, 1, 3, 2))
    with pytest.raises(attention_cpp.Error, match="key_block is 0, must be at least 1; count is -1"):
        layouts.select_blocks(q, q, 0, -1)
    with pytest.raises(TypeError, match="q must be an array"):
        layouts.select_blocks("text", q, 4, 1)
    with pytest.raises(TypeError, match="causal must be True or False, not 1"):
        layouts.select_keys(q, 1, causal=1)
