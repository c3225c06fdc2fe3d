"""Distances of heads, rollout and flow: against plain NumPy on whole matrices."""

import collections

import numpy as np
import pytest

import attention_cpp
import reference
from test_attention import draw
from test_heads import B, D, EXACT, H, HK, IDS, KINDS, LENGTHS, N, OPTIONS, layer_of

LAYERS = 3


def layers_with(options, dtype=np.float64, batch=B):
    return [(draw(batch, H, N, D, seed=2 * n, dtype=dtype), draw(batch, HK, N, D, seed=2 * n + 1, dtype=dtype), options)
            for n in range(LAYERS)]


def entropy(p):
    with np.errstate(divide="ignore", invalid="ignore"):
        return -np.where(p > 0, p * np.log(p), 0).sum(-1)


def divergences_of(layers, lengths):
    """[N, N] from rows of whole matrices, what a sink takes as one more key."""
    heads = []
    for q, k, options in layers:
        p, _ = reference.weights(q, k, **options)
        rest = 1 - p.sum(-1, keepdims=True) if "sink" in options else 0 * p[..., :1]
        p = np.concatenate([p, rest], -1)
        heads += [np.concatenate([p[b, h, :length] for b, length in enumerate(lengths)]) for h in range(p.shape[1])]
    return np.array([[(entropy((a + b) / 2) - (entropy(a) + entropy(b)) / 2).mean() for a in heads] for b in heads])


@pytest.mark.parametrize("name", ["plain", "padded", "both", "sink"])
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_divergences_are_those_of_the_reference(name, dtype):
    layers = layers_with(OPTIONS[name], dtype)
    distances = attention_cpp.HeadDistances()
    distances.add([layer_of(*layer) for layer in layers], IDS, KINDS)
    expected = divergences_of(layers, LENGTHS)
    np.testing.assert_allclose(distances.divergences(), expected, **EXACT[dtype])
    distances.add([layer_of(q[:1], k[:1], {}) for q, k, _ in layers], IDS[:1])
    both = expected * sum(LENGTHS) + divergences_of([(q[:1], k[:1], {}) for q, k, _ in layers], [N]) * N
    np.testing.assert_allclose(distances.divergences(), both / (sum(LENGTHS) + N), **EXACT[dtype])


def test_heads_that_never_agree():
    """Rows on different keys are ln 2 apart, equal ones 0; two groups of heads are two clusters, far apart."""
    p = np.zeros((4, 5, 5))
    p[[0, 2], :, 0] = p[[1, 3], :, 1] = 1
    with np.errstate(divide="ignore"):
        q = np.maximum(np.log(p), -2000)[None] * np.sqrt(5)
    distances = attention_cpp.HeadDistances()
    distances.add([layer_of(q, np.eye(5)[None, None], {})], [[0] * 5])
    found = distances.divergences()
    np.testing.assert_allclose(found, np.log(2) * (np.arange(4)[:, None] % 2 != np.arange(4) % 2), rtol=0, atol=1e-14)
    assert attention_cpp.head_clusters(found, 2).tolist() == [0, 1, 0, 1]
    points = attention_cpp.head_points(found)
    np.testing.assert_allclose(np.linalg.norm(points[0] - points[1]), np.log(2) ** 0.5, rtol=1e-12)
    np.testing.assert_allclose(points[:2], points[2:], rtol=0, atol=1e-7)


@pytest.mark.parametrize("count", [1, 2, 3, 30])
def test_points_keep_distances(count):
    """Of points in a plane scaling finds all distances; of others, what the eigenvalues say."""
    places = np.random.default_rng(count).standard_normal((count, 2)) * [3, 1]
    squares = ((places[:, None] - places) ** 2).sum(-1)
    found = attention_cpp.head_points(squares)
    kept = ((found[:, None] - found) ** 2).sum(-1)
    np.testing.assert_allclose(kept, squares, rtol=0, atol=1e-12 * (1 + squares.max()))
    other = divergences_of(layers_with({}), LENGTHS)
    other = (other + other.T) / 2
    np.fill_diagonal(other, 0)
    middle = np.eye(len(other)) - 1 / len(other)
    values, vectors = np.linalg.eigh(-middle @ other @ middle / 2)
    expected = vectors[:, [-1, -2]] * np.sqrt(values[[-1, -2]])
    expected *= np.sign(expected[abs(expected).argmax(0), [0, 1]])
    np.testing.assert_allclose(attention_cpp.head_points(other), expected, rtol=0, atol=1e-10)
    assert (values > -1e-12).all()  # the roots of divergences are a metric that has points


def test_clusters_are_those_of_scipy():
    hierarchy = pytest.importorskip("scipy.cluster.hierarchy")
    places = np.random.default_rng(5).standard_normal((40, 3))
    squares = ((places[:, None] - places) ** 2).sum(-1)
    joined = hierarchy.linkage(np.sqrt(squares)[np.triu_indices(40, 1)], "average")
    for count in (1, 2, 7, 39, 40):
        ours = attention_cpp.head_clusters(squares, count)
        theirs = hierarchy.fcluster(joined, count, "maxclust")
        assert len(set(zip(ours, theirs))) == len(set(ours)) == count
        assert [*dict.fromkeys(ours.tolist())] == [*range(count)]


def edges_of(layers):
    """Abnar and Zuidema's matrices, one a layer."""
    matrices = []
    for q, k, options in layers:
        mixed = reference.weights(q, k, **options)[0][0].mean(0) + np.eye(q.shape[2])
        matrices.append(mixed / mixed.sum(-1, keepdims=True))
    return matrices


@pytest.mark.parametrize("name", ["plain", "causal", "window", "sink"])
def test_rollout_is_the_product_of_the_layers(name):
    layers = layers_with(OPTIONS[name], batch=1)
    expected = np.eye(N)
    for matrix in edges_of(layers):
        expected = matrix @ expected
    for query in (0, 4, N - 1):
        found = attention_cpp.attention_rollout([layer_of(*layer) for layer in layers], query)
        np.testing.assert_allclose(found, expected[query], **EXACT[np.float64])
        assert abs(found.sum() - 1) < 1e-12


def maximum_flow(capacity, source, sink):
    """Edmonds and Karp: the shortest path that takes more, until there is none."""
    free, total = capacity.copy(), 0
    while True:
        parents, queue = {source: source}, collections.deque([source])
        while queue and sink not in parents:
            node = queue.popleft()
            for other in np.flatnonzero(free[node] > 1e-15):
                if other not in parents:
                    parents[other] = node
                    queue.append(other)
        if sink not in parents:
            return total
        path = [sink]
        while path[-1] != source:
            path.append(parents[path[-1]])
        steps = [*zip(path[1:], path)]
        most = min(free[step] for step in steps)
        for a, b in steps:
            free[a, b] -= most
            free[b, a] += most
        total += most


def flows_of(matrices, query, threshold=0.0):
    n = len(matrices[0])
    capacity = np.zeros((n * (len(matrices) + 1),) * 2)
    for layer, matrix in enumerate(matrices):
        capacity[(layer + 1) * n:(layer + 2) * n, layer * n:(layer + 1) * n] = np.where(matrix < threshold, 0, matrix)
    return [maximum_flow(capacity, len(matrices) * n + query, token) for token in range(n)]


@pytest.mark.parametrize("name", ["plain", "causal", "window", "sink"])
def test_flow_is_the_maximum_flow_of_edmonds_and_karp(name):
    layers = layers_with(OPTIONS[name], batch=1)
    given, matrices = [layer_of(*layer) for layer in layers], edges_of(layers)
    for query in (0, 4, N - 1):
        found, missing = attention_cpp.attention_flow(given, query)
        np.testing.assert_allclose(found, flows_of(matrices, query), **EXACT[np.float64])
        assert missing == 0
    for threshold in (0.02, 0.1):
        pruned, missing = attention_cpp.attention_flow(given, N - 1, threshold)
        np.testing.assert_allclose(pruned, flows_of(matrices, N - 1, threshold), **EXACT[np.float64])
        left_out = sum(matrix[matrix < threshold].sum() for matrix in matrices)
        assert abs(missing - min(left_out, 1)) < 1e-12 and (found - pruned <= missing + 1e-12).all()


def test_wrong_arguments_raise_the_reason():
    layers = [layer_of(*layer) for layer in layers_with({})]
    one = [layer_of(*layer) for layer in layers_with({}, batch=1)]
    error = attention_cpp.Error
    with pytest.raises(error, match="must be one text"):
        attention_cpp.attention_rollout(layers, 0)
    with pytest.raises(error, match=r"\[flow\] the token is 11, must be from 0 to 10; threshold is 1.0"):
        attention_cpp.attention_flow(one, 11, 1)
    long = draw(1, 1, 513, 2)
    with pytest.raises(error, match="the text has 513 tokens, must have at most 512"):
        attention_cpp.attention_flow([layer_of(long, long, {})], 0)
    with pytest.raises(error, match="no text was added"):
        attention_cpp.HeadDistances().divergences()
    with pytest.raises(error, match="divergences has 3 elements, must be a matrix"):
        attention_cpp.head_points([1, 2, 3])
    with pytest.raises(error, match=r"divergences\[1, 0\] is 2.0"):
        attention_cpp.head_points([[0, 1], [2, 0]])
    with pytest.raises(error, match="the number of clusters is 3, must be from 1 to the 2 heads"):
        attention_cpp.head_clusters([[0, 1], [1, 0]], 3)
