"""Linear attention from Python: values and gradients of every option against the recurrence, types, views, errors."""

import inspect

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import attention_cpp
import reference

B, H, HV, L, DK, DV = 2, 2, 4, 70, 5, 3  # a chunk of 64 tokens and a part of one


def draw(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape)


def qkv(batch=B, length=L):
    return (draw(batch, H, length, DK), draw(batch, H, length, DK, seed=1) / np.sqrt(DK),
            draw(batch, HV, length, DV, seed=2))


def decays(*shape, seed=3):
    return -np.random.default_rng(seed).random(shape)


def factors(*shape, seed=4):
    return np.random.default_rng(seed).random(shape)


STATE = draw(B, HV, DK, DV, seed=5)
OPTIONS = {
    "plain": {},
    "scale": {"scale": 0.3},
    "a constant a head": {"log_decay": np.log(1 - 2.0 ** (-5 - np.arange(HV))).reshape(1, HV, 1, 1)},
    "a decay a token": {"log_decay": decays(B, HV, L, 1)},
    "a decay a row": {"log_decay": decays(1, HV, L, DK)},
    "strong decays": {"log_decay": 100 * decays(B, HV, L, 1)},
    "beta": {"beta": factors(B, HV, L)},
    "delta": {"delta": True, "l2norm": True},
    "l2norm": {"l2norm": True, "l2norm_epsilon": 0.5},
    "state": {"initial_state": STATE},
    "gated delta": {"delta": True, "l2norm": True, "log_decay": decays(B, HV, L, 1), "beta": factors(B, HV, L),
                    "initial_state": STATE},
    "delta by row": {"delta": True, "l2norm": True, "log_decay": decays(B, HV, L, DK), "beta": 2 * factors(B, HV, L),
                     "initial_state": STATE},
}
PACKED = {"cu_seqlens": [0, 3, 3, 68], "delta": True, "l2norm": True, "log_decay": decays(1, HV, L, 1),
          "beta": factors(1, HV, L), "initial_state": draw(3, HV, DK, DV, seed=6)}


def arguments(name):
    """q, k, v and options of a case."""
    if name == "packed":
        return qkv(batch=1), PACKED
    if name == "normalize":
        q, k, v = qkv()
        state = np.abs(draw(B, HV, DK, DV + 1, seed=5))
        return (np.abs(q), np.abs(k), v), {"normalize": True, "initial_state": state}
    return qkv(), OPTIONS[name]


CASES = [*OPTIONS, "packed", "normalize"]
each_case = pytest.mark.parametrize("name", CASES)


def assert_close(actual, given, options, place, unit, of_result=0.0):
    """Within four times what plain loops in the same precision get wrong, plus four roundings of the largest number and
    the rounding of the result: the rule of the tests in C++. Twice that with the delta rule, where a chunk's updates
    are the solution of a triangular system, and round once more each."""
    work = np.float64 if unit < 1e-12 else np.float32
    better = np.longdouble if work == np.float64 else np.float64
    exact = reference.linear_attention(*given, **options, work=better)[place]
    naive = reference.linear_attention(*given, **options, work=work)[place]
    largest = abs(exact).max(initial=0)
    terms = 8 if options.get("delta") else 4
    bound = terms * abs(naive - exact).max(initial=0) + (terms * unit + of_result) * largest
    error = abs(np.asarray(actual, np.float64) - exact).max(initial=0)
    assert actual.shape == exact.shape and error <= bound, f"{error} > {bound}"


@each_case
def test_values(name):
    given, options = arguments(name)
    out, state = attention_cpp.linear_attention(*given, return_state=True, **options)
    assert_close(out, given, options, 0, 2.0**-53)
    assert_close(state, given, options, 1, 2.0**-53)
    np.testing.assert_array_equal(attention_cpp.linear_attention(*given, **options), out)


@pytest.mark.parametrize("dtype, unit", [(np.float32, 2.0**-24), (np.float16, 2.0**-11)])
@pytest.mark.parametrize("name", ["plain", "gated delta", "delta by row", "packed"])
def test_types_of_the_results(name, dtype, unit):
    given, options = arguments(name)
    given = [x.astype(dtype) for x in given]
    options = {key: value.astype(np.float32 if key == "initial_state" else dtype)
               if isinstance(value, np.ndarray) else value for key, value in options.items()}
    out, state = attention_cpp.linear_attention(*given, return_state=True, **options)
    assert out.dtype == dtype and state.dtype == np.float32
    assert_close(out, given, options, 0, 2.0**-24, unit)
    assert_close(state, given, options, 1, 2.0**-24)


@each_case
def test_gradient_is_the_slope(name):
    """Each gradient times a direction is the difference quotient of the recurrence, whose error is step^2 and the
    rounding of the losses divided by the step: 1e-10 and 1e-11 of terms of size 1 to 100."""
    given, options = arguments(name)
    arrays = dict(zip(("q", "k", "v"), given)) | {
        key: value for key, value in options.items() if isinstance(value, np.ndarray)}
    rest = {key: value for key, value in options.items() if key not in arrays}
    out, state = reference.linear_attention(**arrays, **rest)
    dout, dstate = draw(*out.shape, seed=7), draw(*state.shape, seed=8)
    gradients = attention_cpp.linear_attention_backward(*given, dout, dstate=dstate, **options)
    for field, gradient in zip(gradients._fields, gradients):
        key = field.removeprefix("d")
        assert (gradient is None) == (key not in arrays)
        if gradient is None:
            continue
        assert gradient.shape == arrays[key].shape and gradient.dtype == np.float64
        direction, step = draw(*gradient.shape, seed=9) * np.abs(arrays[key]).clip(max=1), 1e-5

        def loss(sign):
            moved = arrays | {key: arrays[key] + sign * step * direction}
            out, state = reference.linear_attention(**moved, **rest)
            return (out * dout).sum() + (state * dstate).sum()

        slope = (loss(1) - loss(-1)) / (2 * step)
        size = abs(gradient * direction).sum()
        assert abs((gradient * direction).sum() - slope) <= 1e-8 * size, field


def test_gradients_that_are_wanted():
    given, options = arguments("gated delta")
    gradients = attention_cpp.linear_attention_backward(*given, given[2], wanted=["dv", "dbeta"], **options)
    assert [gradient is None for gradient in gradients] == [True, True, False, True, False, True]
    with pytest.raises(attention_cpp.Error, match="there is no gradient 'dg'"):
        attention_cpp.linear_attention_backward(*given, given[2], wanted=["dg"], **options)


@settings(max_examples=40, deadline=None)
@given(length=st.integers(0, 130), cut=st.integers(0, 130), features=st.integers(1, 9), values=st.integers(1, 9),
       heads=st.sampled_from([(1, 1), (1, 3), (2, 4)]), by_row=st.booleans(), delta=st.booleans(),
       seed=st.integers(0, 2**32 - 1))
def test_a_state_continues_a_sequence(length, cut, features, values, heads, by_row, delta, seed):
    """Any shape: out and the state are those of the recurrence, also if the sequence is cut in two."""
    cut = min(cut, length)
    q, k = (draw(1, heads[0], length, features, seed=seed + n) for n in range(2))
    v = draw(1, heads[1], length, values, seed=seed + 2)
    options = {"log_decay": decays(1, heads[1], length, features if by_row else 1, seed=seed), "l2norm": True,
               "beta": factors(1, heads[1], length, seed=seed), "delta": delta}
    out, state = attention_cpp.linear_attention(q, k, v, return_state=True, **options)
    assert_close(out, (q, k, v), options, 0, 2.0**-53)
    assert_close(state, (q, k, v), options, 1, 2.0**-53)

    def part(where, **more):
        return attention_cpp.linear_attention(
            *(x[:, :, where] for x in (q, k, v)), **options | {
                "log_decay": options["log_decay"][:, :, where], "beta": options["beta"][:, :, where]} | more,
            return_state=True)

    first, between = part(slice(cut))
    second, last = part(slice(cut, None), initial_state=between)
    joined = np.concatenate([first, second], 2)
    assert_close(joined, (q, k, v), options, 0, 2.0**-53)
    assert_close(last, (q, k, v), options, 1, 2.0**-53)


def test_views_of_any_order_and_missing_axes():
    given, options = arguments("gated delta")
    expected = attention_cpp.linear_attention(*given, **options)
    views = [np.moveaxis(np.ascontiguousarray(np.moveaxis(x, 2, -1)), -1, 2) for x in given]  # L is the fast axis
    np.testing.assert_array_equal(attention_cpp.linear_attention(*views, **options), expected)
    reverse = [np.ascontiguousarray(x[:, :, ::-1])[:, :, ::-1] for x in given]
    np.testing.assert_array_equal(attention_cpp.linear_attention(*reverse, **options), expected)
    one = [x[0, 0] for x in given]
    out, state = attention_cpp.linear_attention(*one, return_state=True)
    whole, states = attention_cpp.linear_attention(*(x[None, None] for x in one), return_state=True)
    np.testing.assert_array_equal(out, whole[0, 0])
    np.testing.assert_array_equal(state, states)


def test_neither_inputs_nor_the_initial_state_are_written():
    given, options = arguments("gated delta")
    before = [x.copy() for x in (*given, options["initial_state"])]
    attention_cpp.linear_attention(*given, return_state=True, **options)
    for array, copy in zip((*given, options["initial_state"]), before):
        np.testing.assert_array_equal(array, copy)


def test_everything_wrong_is_named_at_once():
    q, k, v = qkv()
    with pytest.raises(attention_cpp.Error) as caught:
        attention_cpp.linear_attention(q, k[:, :1], v[:, :3], scale=np.inf, beta=np.ones((B, HV, 1)))
    for part in ("[linear_attention]", "k has size [2, 1, 70, 5]", "v has 3 heads", "scale is inf", "beta has size"):
        assert part in str(caught.value)
    with pytest.raises(TypeError, match="k must be an array.*scale must be a number.*delta must be True or False"):
        attention_cpp.linear_attention(q, 3, v, scale="a", delta=2)
    with pytest.raises(attention_cpp.Error, match="log_decay has the element 0.5.*must be at most 0"):
        attention_cpp.linear_attention(q, k, v, log_decay=np.full((1, 1, 1, 1), 0.5))
    with pytest.raises(attention_cpp.Error, match=r"initial_state has size \[3, 4, 5, 3\], must be"):
        attention_cpp.linear_attention(q, k, v, initial_state=draw(3, HV, DK, DV))
    with pytest.raises(TypeError, match="return_state must be True or False"):
        attention_cpp.linear_attention(q, k, v, return_state=1)
    with pytest.raises(TypeError, match="there is no option 'gate'"):
        attention_cpp.linear_attention_backward(q, k, v, v, gate=1)


def test_help_reads_well():
    for function in (attention_cpp.linear_attention, attention_cpp.linear_attention_backward):
        text = inspect.getdoc(function)
        assert text and len(text.splitlines()[0]) < 130
