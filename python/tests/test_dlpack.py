"""DLPack from a producer of our own: each deleter runs exactly once, whatever happens, and nothing leaks."""

import ctypes
import gc
import os
import resource
import subprocess
import sys
import threading

import numpy as np
import pytest

import attention_cpp

CYCLES = 100_000 if os.environ.get("ATTN_EXHAUSTIVE") else 5_000


class Device(ctypes.Structure):
    _fields_ = [("type", ctypes.c_int32), ("id", ctypes.c_int32)]


class DType(ctypes.Structure):
    _fields_ = [("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16)]


class Tensor(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("device", Device), ("ndim", ctypes.c_int32), ("dtype", DType),
                ("shape", ctypes.POINTER(ctypes.c_int64)), ("strides", ctypes.POINTER(ctypes.c_int64)),
                ("byte_offset", ctypes.c_uint64)]


class Managed(ctypes.Structure):
    pass


Deleter = ctypes.CFUNCTYPE(None, ctypes.POINTER(Managed))
Managed._fields_ = [("tensor", Tensor), ("context", ctypes.c_void_p), ("deleter", Deleter)]

new_capsule = ctypes.pythonapi.PyCapsule_New
new_capsule.restype = ctypes.py_object
new_capsule.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
capsule_pointer = ctypes.pythonapi.PyCapsule_GetPointer
capsule_pointer.restype = ctypes.c_void_p
capsule_pointer.argtypes = [ctypes.py_object, ctypes.c_char_p]


class Producer:
    """An array that speaks nothing but DLPack, and counts what happens to its exports."""

    def __init__(self, values, *, device=1, code=2, bits=32, lanes=1, null=False, ndim=None, offset=0, strides=True):
        self.values = np.ascontiguousarray(values, np.float32)
        self.exports = self.deletions = 0
        self.device, self.dtype = device, (code, bits, lanes)
        self.null, self.ndim, self.offset, self.strides = null, ndim, offset, strides
        self.live = {}

    def __dlpack_device__(self):
        return self.device, 0

    def __dlpack__(self, **_):
        count = self.values.ndim
        shape = (ctypes.c_int64 * max(count, 1))(*self.values.shape)
        strides = (ctypes.c_int64 * max(count, 1))(*(s // 4 for s in self.values.strides))
        number = self.exports
        self.exports += 1

        def delete(_):
            self.deletions += 1
            self.live.pop(number)

        managed = Managed(
            Tensor(None if self.null else self.values.ctypes.data - self.offset, Device(self.device, 0),
                   count if self.ndim is None else self.ndim, DType(*self.dtype), shape,
                   strides if self.strides else None, self.offset), None, Deleter(delete))
        self.live[number] = (managed, shape, strides)
        return new_capsule(ctypes.addressof(managed), b"dltensor", None)


VALUES = np.random.default_rng(0).standard_normal((1, 2, 3, 4)).astype(np.float32)
EXPECTED = attention_cpp.attention(VALUES, VALUES, VALUES)


def test_consumed_once():
    producers = [Producer(VALUES) for _ in range(3)]
    out = attention_cpp.attention(*producers)
    np.testing.assert_array_equal(out, EXPECTED)
    gc.collect()
    for producer in producers:
        assert producer.exports >= 1 and producer.live == {} and producer.deletions == producer.exports


def test_byte_offset_and_missing_strides():
    for producer in (Producer(VALUES, offset=64), Producer(VALUES, strides=False)):
        np.testing.assert_array_equal(attention_cpp.attention(producer, VALUES, VALUES), EXPECTED)


@pytest.mark.parametrize("bad", [
    {"device": 2}, {"code": 5}, {"bits": 8}, {"lanes": 4}, {"code": 0}, {"code": 9}, {"ndim": 1}, {"ndim": 0},
    {"ndim": 99}, {"ndim": -1},
])
def test_refused_exports_are_given_back(bad):
    producer = Producer(VALUES, **bad)
    with pytest.raises((ValueError, TypeError, BufferError)):
        attention_cpp.attention(VALUES, producer, VALUES)
    gc.collect()
    assert producer.deletions <= producer.exports


def test_null_data_of_an_array_without_elements():
    producer = Producer(np.empty((1, 2, 0, 4)), null=True)
    out = attention_cpp.attention(VALUES, producer, producer)
    np.testing.assert_array_equal(out, np.zeros_like(out))


def test_an_error_after_taking_gives_back():
    producer = Producer(VALUES)
    with pytest.raises(attention_cpp.Error):
        attention_cpp.attention(producer, VALUES[:, :, :, :3], VALUES)
    gc.collect()
    assert producer.live == {} and producer.deletions == producer.exports


def test_a_producer_that_raises():
    class Raises:
        shape, dtype = VALUES.shape, VALUES.dtype

        def __dlpack__(self, **_):
            raise RuntimeError("out of order")

    with pytest.raises((TypeError, ValueError, BufferError)):
        attention_cpp.attention(VALUES, Raises(), VALUES)


def test_capsules_are_consumed_once():
    producer = Producer(VALUES)
    capsule = producer.__dlpack__()
    np.testing.assert_array_equal(attention_cpp.attention(VALUES, capsule, VALUES), EXPECTED)
    with pytest.raises((TypeError, ValueError, BufferError)):
        attention_cpp.attention(VALUES, capsule, VALUES)
    assert producer.deletions == 1


def test_given_back_on_another_thread():
    producer = Producer(VALUES)
    results = []
    thread = threading.Thread(target=lambda: results.append(attention_cpp.attention(producer, VALUES, VALUES)))
    thread.start()
    thread.join()
    gc.collect()
    np.testing.assert_array_equal(results[0], EXPECTED)
    assert producer.live == {}


def test_many_cycles_leak_nothing():
    producer = Producer(VALUES)

    def cycle(count):
        for _ in range(count):
            attention_cpp.attention(producer, VALUES, VALUES)

    cycle(500)
    gc.collect()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    cycle(CYCLES)
    gc.collect()
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before <= 1024  # KiB
    assert producer.live == {} and producer.exports == producer.deletions


def test_the_interpreter_may_end_with_an_array_alive():
    code = ("import numpy, attention_cpp; x = numpy.zeros((1, 1, 8, 4), 'f'); "
            "c = attention_cpp.KVCache(1, 4); s = c.add(); c.append(s, x, x); y = c.attend(x, [s], [0, 8])")
    assert subprocess.run([sys.executable, "-X", "dev", "-c", code], timeout=60).returncode == 0
