"""The integration of JAX against jax.nn.dot_product_attention: values, gradients, under jit, grad and vmap."""

import numpy as np
import pytest

jax = pytest.importorskip("jax")

import jax.numpy as jnp  # noqa: E402

import attention_cpp  # noqa: E402
import reference  # noqa: E402
from attention_cpp.jax import dot_product_attention as ours  # noqa: E402

jax.config.update("jax_enable_x64", True)
theirs = jax.nn.dot_product_attention
EXACT = dict(rtol=1e-10, atol=1e-11)  # float64


def assert_near(actual, expected):
    """JAX takes the softmax in float32, whatever the inputs: some roundings of 2^-24."""
    np.testing.assert_allclose(actual, expected, rtol=0, atol=64 * 2.0**-24 * float(abs(expected).max()))


def draw(*shape, seed=0, dtype=jnp.float64):
    return jnp.asarray(np.random.default_rng(seed).standard_normal(shape), dtype)


def qkv(dtype=jnp.float64, keys=9, kv_heads=2):
    return (draw(2, 7, 4, 8, dtype=dtype), draw(2, keys, kv_heads, 8, seed=1, dtype=dtype),
            draw(2, keys, kv_heads, 8, seed=2, dtype=dtype))


CASES = {
    "plain": {},
    "scale": {"scale": 0.3},
    "causal": {"is_causal": True},
    "bias": {"bias": draw(1, 4, 7, 9, seed=3)},
    "mask": {"mask": draw(2, 1, 7, 9, seed=4) > -1},
    "lengths": {"key_value_seq_lengths": jnp.array([4, 9], jnp.int32)},
    "window": {"local_window_size": 2},
    "window of two sides": {"local_window_size": (3, 1)},
    "all": {"bias": draw(2, 1, 1, 9, seed=3), "mask": draw(1, 4, 7, 9, seed=4) > -2, "is_causal": True, "scale": 0.5,
            "key_value_seq_lengths": jnp.array([7, 8], jnp.int32)},
}


@pytest.mark.parametrize("name", CASES)
def test_values_are_exact(name):
    options = dict(CASES[name])
    window = options.pop("local_window_size", None)
    given = {"window": window if isinstance(window, tuple) else (window, window)} if window else {}
    names = {"is_causal": "causal", "key_value_seq_lengths": "key_length"}
    given |= {names.get(key, key): value for key, value in options.items()}
    expected, _ = reference.attention(*(np.swapaxes(array, 1, 2) for array in qkv()), **given)
    np.testing.assert_allclose(ours(*qkv(), **CASES[name]), expected.swapaxes(1, 2), **EXACT)


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_values_and_gradients_are_jaxs(name, compiled):
    options = dict(CASES[name])
    bias = options.pop("bias", None)
    upstream = draw(2, 7, 4, 8, seed=9)

    def loss(function):
        return lambda q, k, v, bias: (function(q, k, v, bias, **options) * upstream).sum()

    wanted = (0, 1, 2) if bias is None else (0, 1, 2, 3)
    wrap = jax.jit if compiled else lambda function: function
    a = wrap(jax.value_and_grad(loss(ours), wanted))(*qkv(), bias)
    b = jax.value_and_grad(loss(theirs), wanted)(*qkv(), bias)
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        assert_near(x, y)


def test_one_sequence_and_the_residual():
    q, k, v = (array[0] for array in qkv())
    out, lse = ours(q, k, v, return_residual=True)
    expected, expected_lse = theirs(q, k, v, return_residual=True)
    assert_near(out, expected)
    assert_near(lse, expected_lse)


def test_gradient_through_the_residual():
    q, k, v = qkv()
    loss = lambda function: lambda q: jnp.sin(function(q, k, v, return_residual=True)[1]).sum()  # noqa: E731
    scores = lambda q: jnp.einsum("btkgh,bskh->btkgs", q.reshape(2, 7, 2, 2, 8), k) / np.sqrt(8)  # noqa: E731
    plain = lambda q: jnp.sin(jax.scipy.special.logsumexp(scores(q), axis=-1)).sum()  # noqa: E731
    np.testing.assert_allclose(jax.grad(loss(ours))(q), jax.grad(plain)(q), **EXACT)


def test_padding_of_queries_gives_zero():
    lengths = jnp.array([3, 7], jnp.int32)
    out = ours(*qkv(), query_seq_lengths=lengths)
    assert (out[0, 3:] == 0).all()
    assert_near(out[0, :3], theirs(*qkv())[0, :3])


def test_vmap_gives_what_jax_gives():
    q, k, v = (jnp.stack([array, 2 * array]) for array in qkv())
    assert_near(jax.vmap(ours)(q, k, v), jax.vmap(theirs)(q, k, v))


@pytest.mark.parametrize("dtype, unit", [(jnp.float32, 2.0**-23), (jnp.bfloat16, 2.0**-8), (jnp.float16, 2.0**-11)])
def test_every_type_is_as_accurate_as_its_rounding(dtype, unit):
    arrays = qkv(dtype)
    exact = theirs(*(array.astype(jnp.float64) for array in arrays))
    out = jax.jit(ours)(*arrays)
    assert out.dtype == dtype
    np.testing.assert_allclose(out.astype(jnp.float64), exact, rtol=0, atol=8 * unit * abs(exact).max())


def test_arrays_of_jax_at_the_operator():
    q, k, v = (array.swapaxes(1, 2) for array in qkv())
    out = attention_cpp.attention(q, k, v)
    assert isinstance(out, jax.Array)
    assert_near(out, theirs(*qkv()).swapaxes(1, 2))


@pytest.mark.parametrize("bad", [
    lambda q, k, v: ours(q[0], k, v),
    lambda q, k, v: ours(q[None], k[None], v[None]),
    lambda q, k, v: ours(q, k, v, implementation="cudnn"),
    lambda q, k, v: jax.block_until_ready(ours(q, k[:, :, :, :5], v)),
    lambda q, k, v: jax.block_until_ready(ours(q, k, v, mask=jnp.ones((3, 3, 3, 3), bool))),
])
def test_bad_arguments(bad):
    with pytest.raises(Exception, match="attention"):
        bad(*qkv())


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16", "float16"])
@pytest.mark.parametrize("options", [{}, {"is_causal": True}, {"mask": True}, {"bias": True}])
def test_results_have_jaxs_types(options, dtype):
    x = jnp.ones((2, 5, 4, 8), dtype)
    for name, array in (("mask", jnp.ones((1, 1, 5, 5), bool)), ("bias", jnp.ones((2, 4, 5, 5), dtype))):
        options = {**options, name: array} if name in options else options
    for query, key in ((x, x), (x[0], x[0]), (x, x[:, :, :2])):
        if key.ndim == 3 and "bias" in options:
            continue
        results = [function(query, key, key, return_residual=True, **options) for function in (ours, theirs)]
        for a, b in zip(*results, strict=True):
            assert (a.shape, a.dtype) == (b.shape, b.dtype)

    def loss(x):
        out, residual = ours(x, x, x, return_residual=True, **options)
        return out.astype("float32").sum() + residual.astype("float32").sum()

    assert jax.grad(loss)(x).dtype == x.dtype
