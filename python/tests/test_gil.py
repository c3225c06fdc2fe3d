"""The GIL is released while the library computes, and Ctrl-C ends a long call."""

import multiprocessing
import signal
import subprocess
import sys
import threading
import time

import numpy as np

import attention_cpp


def draw(length):
    return np.random.default_rng(0).standard_normal((1, 4, length, 64), dtype=np.float32)


def test_other_threads_go_on():
    running = True
    ticks = []

    def tick():
        while running:
            ticks.append(time.perf_counter())
            time.sleep(0.001)

    thread = threading.Thread(target=tick)
    thread.start()
    long = draw(8192)
    begin = time.perf_counter()
    attention_cpp.attention(long, long, long)
    end = time.perf_counter()
    running = False
    thread.join()
    inside = sum(begin < tick < end for tick in ticks)
    assert inside >= 5, f"{inside} ticks during a call of {end - begin:.2f} s"


LONG_CALL = """
import signal
import numpy as np, attention_cpp
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job is born deaf to it
x = np.zeros((1, 8, 200_000, 64), np.float32)  # minutes
print("started", flush=True)
try:
    attention_cpp.attention(x, x, x)
except KeyboardInterrupt:
    print("interrupted", flush=True)
small = x[:, :, :64]
print(attention_cpp.attention(small, small, small).sum(), flush=True)
"""


def test_ctrl_c_ends_a_long_call_and_leaves_the_library_usable():
    with subprocess.Popen([sys.executable, "-c", LONG_CALL], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "started\n"
        time.sleep(0.5)
        process.send_signal(signal.SIGINT)
        begin = time.perf_counter()
        assert process.stdout.readline() == "interrupted\n"
        taken = time.perf_counter() - begin
        assert process.stdout.readline() == "0.0\n" and process.wait() == 0
    assert taken < 5, f"{taken:.2f} s"  # within 1 s on a quiet machine


def _child(queue):
    x = draw(64)
    queue.put(attention_cpp.attention(x, x, x).tobytes())


def test_a_forked_child_computes_the_same():
    x = draw(64)
    expected = attention_cpp.attention(x, x, x).tobytes()
    context = multiprocessing.get_context("fork")
    for _ in range(5):
        queue = context.SimpleQueue()
        child = context.Process(target=_child, args=(queue,))
        child.start()
        assert queue.get() == expected
        child.join(30)
        assert child.exitcode == 0


def test_callers_on_many_threads_get_the_bits_of_one():
    x = draw(96)
    expected = attention_cpp.attention(x, x, x, causal=True).tobytes()
    wrong = []

    def caller():
        for _ in range(50):
            if attention_cpp.attention(x, x, x, causal=True).tobytes() != expected:
                wrong.append(1)

    threads = [threading.Thread(target=caller) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_a_cache_has_many_readers_or_one_writer():
    """Whether or not the interpreter has a GIL: a writer that finds a reader gets an error, and nothing is lost."""
    cache = attention_cpp.KVCache(2, 64)
    sequence = cache.add()
    keys = draw(30_000)[:, :2]
    cache.append(sequence, keys, keys)
    queries, results, refused = draw(512), [], 0

    def read():
        results.append(cache.attend(queries, [sequence], [0, 512]))

    readers = [threading.Thread(target=read) for _ in range(3)]
    for reader in readers:
        reader.start()
    while any(reader.is_alive() for reader in readers):
        try:
            cache.remove(cache.add())
        except attention_cpp.Error as error:
            assert "another thread is reading the cache" in str(error)
            refused += 1
        time.sleep(0.001)
    assert refused > 0 and len(results) == 3
    assert all(np.array_equal(result, results[0]) for result in results)
    cache.append(sequence, keys[:, :, :1], keys[:, :, :1])
    assert cache.length(sequence) == 30_001
