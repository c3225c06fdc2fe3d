"""Arrays of every kind in the place of every argument: the right value, or ValueError, TypeError or BufferError."""

import array
import itertools

import numpy as np
import pytest

import attention_cpp

B, H, L, D = 2, 3, 5, 4
BASE = {name: np.random.default_rng(seed).standard_normal((B, H, L, D)).astype(np.float32)
        for seed, name in enumerate(("q", "k", "v"))}
BASE["bias"] = np.random.default_rng(5).standard_normal((B, H, L, L)).astype(np.float32)
BASE["mask"] = np.random.default_rng(6).random((B, H, L, L)) < 0.8
BASE["out"] = np.zeros((B, H, L, D), np.float32)
INPUTS = ("q", "k", "v", "bias", "mask")
REFUSED = (ValueError, TypeError, BufferError)


def laid_out(values, order):
    """The same values in another order of memory."""
    back = np.argsort(order)
    return np.ascontiguousarray(values.transpose(order)).transpose(back)


def padded(values):
    whole = np.full((*values.shape[:-1], values.shape[-1] + 3), 7).astype(values.dtype)
    whole[..., :-3] = values
    return whole[..., :-3]


def unaligned(values):
    memory = bytearray(values.nbytes + 1)
    view = np.frombuffer(memory, np.uint8, values.nbytes, 1).view(values.dtype).reshape(values.shape)
    view[...] = values
    return view


def read_only(values):
    copy = values.copy()
    copy.flags.writeable = False
    return copy


def every_other(values):
    whole = np.repeat(values, 2, axis=-1)
    return whole[..., ::2]


SAME = {  # these mean the same values
    **{f"order {order}": lambda values, order=order: laid_out(values, order)
       for order in itertools.permutations(range(4))},
    "padded rows": padded,
    "every other": every_other,
    "reversed": lambda values: np.ascontiguousarray(values[:, :, ::-1, ::-1])[:, :, ::-1, ::-1],
    "all reversed": lambda values: np.ascontiguousarray(values[::-1, ::-1, ::-1, ::-1])[::-1, ::-1, ::-1, ::-1],
    "fortran": np.asfortranarray,
    "memoryview": lambda values: memoryview(values.copy()),
    "subclass": lambda values: values.copy().view(np.matrix.__mro__[1]),
}
OTHER = {  # these mean something else, or nothing
    "zero stride": lambda values: np.broadcast_to(values[:, :1], values.shape),
    "read-only": read_only,
    "unaligned": unaligned,
    "byte-swapped": lambda values: values.astype(values.dtype.newbyteorder()),
    "object": lambda values: values.astype(object),
    "float16": lambda values: values.astype(np.float16),
    "float64": lambda values: values.astype(np.float64),
    "int32": lambda values: values.astype(np.int32),
    "uint8": lambda values: values.astype(np.uint8),
    "bool": lambda values: values.astype(np.bool_),
    "complex": lambda values: values.astype(np.complex64),
    "text": lambda values: values.astype("U4"),
    "dates": lambda values: np.zeros(values.shape, "M8[s]"),
    "structured": lambda values: np.zeros(values.shape, [("a", "f4")]),
    "five axes": lambda values: values[None],
    "one axis": lambda values: values.ravel(),
    "no axes": lambda values: np.float32(1),
    "0-dim": lambda values: np.array(1, values.dtype),
    "empty": lambda values: values[:0],
    "no rows": lambda values: values[:, :, :0],
    "no columns": lambda values: values[..., :0],
    "too long": lambda values: np.concatenate([values, values], -2),
    "too wide": lambda values: np.concatenate([values, values], -1),
    "bytes": lambda values: values.tobytes(),
    "bytearray": lambda values: bytearray(values.tobytes()),
    "array.array": lambda values: array.array("f", [1.0, 2.0]),
    "list": lambda values: values.tolist(),
    "tuple": lambda values: tuple(values.tolist()),
    "an address": lambda values: (4096, "float32", values.shape, (60, 20, 4, 1)),
    "generator": lambda values: (row for row in values),
    "dict": lambda values: {"data": values},
    "class": lambda values: np.ndarray,
    "masked": lambda values: np.ma.masked_array(values),
    "None": lambda values: None,
    "a number": lambda values: 3.5,
    "text alone": lambda values: "array",
}


def call(**changed):
    given = {name: changed.get(name, BASE[name]) for name in INPUTS}
    return attention_cpp.attention(given["q"], given["k"], given["v"], bias=given["bias"], mask=given["mask"])


EXPECTED = call()


@pytest.mark.parametrize("kind", SAME)
@pytest.mark.parametrize("name", INPUTS)
def test_the_layout_does_not_change_a_bit(name, kind):
    np.testing.assert_array_equal(call(**{name: SAME[kind](BASE[name])}), EXPECTED)


@pytest.mark.parametrize("kind", OTHER)
@pytest.mark.parametrize("name", INPUTS)
def test_the_right_value_or_an_error(name, kind):
    changed = OTHER[kind](BASE[name])
    try:
        out = call(**{name: changed})
    except REFUSED as error:
        assert str(error)
        return
    if changed is None:  # an option that is not given
        assert name in ("bias", "mask")
        return
    dense = np.array(changed, dtype=BASE[name].dtype)
    np.testing.assert_array_equal(out, call(**{name: dense}))


@pytest.mark.parametrize("kind", [*SAME, *OTHER])
def test_out_is_written_or_refused(kind):
    out = {**SAME, **OTHER}[kind](BASE["out"])
    try:
        attention_cpp.attention(BASE["q"], BASE["k"], BASE["v"], bias=BASE["bias"], mask=BASE["mask"], out=out)
    except REFUSED as error:
        assert str(error)
        return
    if out is not None:
        assert kind in SAME
        np.testing.assert_array_equal(np.asarray(out), EXPECTED)


@pytest.mark.parametrize("kind", OTHER)
@pytest.mark.parametrize("name", ["q", "k", "v", "out", "lse", "dout", "dlse", "bias", "mask"])
def test_backward_takes_or_refuses(name, kind):
    lse = np.zeros((B, H, L), np.float32)
    given = {**BASE, "out": EXPECTED, "lse": lse, "dout": EXPECTED, "dlse": lse}
    given[name] = OTHER[kind](given[name])
    try:
        attention_cpp.attention_backward(*(given[n] for n in ("q", "k", "v", "out", "lse", "dout")), dlse=given["dlse"],
                                         bias=given["bias"], mask=given["mask"])
    except REFUSED as error:
        assert str(error)


@pytest.mark.parametrize("kind", OTHER)
@pytest.mark.parametrize("name", ["key_length", "cu_seqlens_q", "alibi_slopes", "sink", "blocks", "query_segment_ids",
                                  "window", "scale", "seed", "dropout", "causal", "alignment", "softcap", "offset",
                                  "float32_precision", "batch_invariant"])
def test_options_take_or_refuse(name, kind):
    try:
        attention_cpp.attention(BASE["q"], BASE["k"], BASE["v"], **{name: OTHER[kind](BASE["bias"])})
    except REFUSED as error:
        assert str(error)


def test_out_may_not_overlap_an_input():
    memory = np.zeros((2, 3, 5, 4), np.float32)
    with pytest.raises(attention_cpp.Error, match="overlap"):
        attention_cpp.attention(memory, BASE["k"], BASE["v"], out=memory)


def test_offsets_beyond_31_bits():
    """Row 1 of k is 2^31 + elements after row 0, in memory that is reserved but never touched."""
    import mmap

    stride = 2**31 // 4 + 64
    memory = np.frombuffer(mmap.mmap(-1, 2 * 4 * stride, flags=mmap.MAP_PRIVATE | mmap.MAP_NORESERVE
                                     if hasattr(mmap, "MAP_NORESERVE") else mmap.MAP_PRIVATE), np.float32)
    far = np.lib.stride_tricks.as_strided(memory, (1, 1, 2, 4), (0, 0, 4 * stride, 4))
    far[...] = BASE["k"][:1, :1, :2]
    near = np.ascontiguousarray(far)
    q = BASE["q"][:1, :1]
    np.testing.assert_array_equal(attention_cpp.attention(q, far, far), attention_cpp.attention(q, near, near))


def test_a_size_beyond_memory_is_refused():
    huge = np.broadcast_to(np.float32(0), (1, 1, 2**40, 64))
    with pytest.raises((ValueError, MemoryError)):
        attention_cpp.attention(huge, BASE["k"][:1, :1], BASE["v"][:1, :1])


# ------------------------------------------------------------------------------------------------------ other elements

def every_type():
    ml_dtypes = pytest.importorskip("ml_dtypes")
    return {"float32": np.float32, "float64": np.float64, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16}


def field_of_a_record(values):
    records = np.zeros(values.shape, [("number", values.dtype), ("after", "u1")])
    records["number"] = values
    return records["number"]


ODD = {  # the same values where no number of this type may be, or otherwise written
    "field of a record": field_of_a_record,
    "unaligned": unaligned,
    "byte-swapped": lambda values: values.astype(values.dtype.newbyteorder()),
}


@pytest.mark.parametrize("kind", ODD)
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
@pytest.mark.parametrize("name", ["q", "k", "v", "bias"])
def test_every_type_is_right_or_refused(name, dtype, kind):
    given = {n: BASE[n].astype(every_type()[dtype]) for n in ("q", "k", "v", "bias")}

    def run(q, k, v, bias):
        return attention_cpp.attention(q, k, v, bias=bias)

    expected = run(**given)
    try:
        out = run(**{**given, name: ODD[kind](given[name])})
    except REFUSED as error:
        assert str(error)
        return
    np.testing.assert_array_equal(out, expected)


@pytest.mark.parametrize("kind", [*ODD, "read-only"])
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
def test_out_of_every_type_is_refused(dtype, kind):
    q, k, v = (BASE[n].astype(every_type()[dtype]) for n in ("q", "k", "v"))
    weights = np.zeros((B, H, L, L), np.float32)
    out = {**ODD, "read-only": read_only}[kind](np.zeros((B, H, L, D), q.dtype))
    with pytest.raises(REFUSED):
        attention_cpp.attention(q, k, v, out=out)
    assert not out.any()
    _, lse = attention_cpp.attention(q, k, v, return_lse=True)
    with pytest.raises(REFUSED):
        attention_cpp.attention_weights(q, k, lse, out=read_only(weights))


def test_steps_of_whole_elements_are_taken():
    q, k, v = (BASE[n].astype(every_type()["bfloat16"]) for n in ("q", "k", "v"))
    records = np.zeros(q.shape, [("number", q.dtype), ("after", "u2")])
    records["number"] = q
    np.testing.assert_array_equal(attention_cpp.attention(records["number"], k, v), attention_cpp.attention(q, k, v))
    attention_cpp.attention(q, k, v, out=records["number"])
    np.testing.assert_array_equal(records["number"], attention_cpp.attention(q, k, v))
