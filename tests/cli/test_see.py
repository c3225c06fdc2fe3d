"""attn see: what heads do in numbers, as a table, CSV and JSON; pages, from models and files, and from a server."""

import csv
import io
import json
import math
import re
import signal
import socket
import struct
import subprocess
import time
import urllib.request

from attn import SHAPE, TEXT
from test_streams import hub_bert


def test_statistics(attn):
    """A text of one token leaves nothing open; one of equal tokens little; what is selected comes in its order."""
    attn.file("text.txt", TEXT + '"')
    attn.run("train", "text.txt", "--steps", 2, "--out", "gpt", *SHAPE)
    table = attn.run("see", "gpt", "--text", "T", "--stats").stdout.splitlines()
    names = ["layer", "head", "entropy", "maximum", "keys", "distance", "first", "self", "previous", "next", "same"]
    assert table[0].split() == [*names, "most", "seen"], table[0]
    for n, line in enumerate(table[1:]):
        words = line.split()
        assert words[:2] == [str(n // 2), str(n % 2)] and words[-3:] == ["T", "at", "0"], line
        # Three digits of 0 and 1, which are one rounding of lse away from them: "-0.000" is 0 as well.
        # One token has none before it or after it.
        assert words[8:10] == ["-", "-"], line
        assert [round(abs(float(word)), 2) for word in words[2:8] + words[10:-3]] == [0, 1, 1, 0, 1, 1, 1, 1], line

    equal = json.loads(attn.run("see", "gpt", "--text", "tttt", "--json", "-", "--layer", "1,0", "--head", 1).stdout)
    assert [(row["layer"], row["head"]) for row in equal] == [(1, 1), (0, 1)]
    for row in equal:
        assert abs(row["same_token"] - 1) < 1e-5 and row["next"] == 0 and row["most_seen"] == "t", row
        # The first of four causal rows is sure; the others know at most their number.
        assert 0 < row["entropy"] < 0.7946 and 0.25 < row["self"] < 1 and 0 < row["distance"] < 1.5, row
        assert 1 <= row["participation"] <= 2.5 and 0.25 < row["most_seen_share"] < 1, row

    said = attn.run("see", "gpt", "--text", 'a "b"', "--csv", "a.csv", "--json", "a.json", "--no-terminal").stdout
    assert "a.csv: statistics" in said and "entropy" not in said, said
    rows = list(csv.DictReader(io.StringIO((attn.folder / "a.csv").read_text())))
    same = json.loads((attn.folder / "a.json").read_text())
    assert len(rows) == len(same) == 4 and list(rows[0]) == list(same[0])
    for row, other in zip(rows, same):
        for name, value in other.items():
            assert row[name] == value or abs(float(row[name]) - value) < 1e-8, (name, row, other)
    assert "only one of" in attn.run("see", "gpt", "--text", "a", "--csv", "-", "--json", "-", status=2).stderr


def test_saved(attn):
    """A file in a model's place gives the same pictures, statistics and page, but for what its tokens are: a file does
    not say which of them are punctuation."""
    attn.file("text.txt", TEXT)
    attn.run("train", "text.txt", "--steps", 2, "--out", "gpt", *SHAPE)
    asked = ["gpt", "--text", "To be, or", "--layer", "1,0"]
    said = attn.run("see", *asked, "--save", "seen.safetensors", "--json", "model.json", "--png", "model.png", "--html",
                    "gpt.html", "--plain").stdout
    assert "seen.safetensors: queries, keys and lse" in said, said
    attn.run("see", "seen.safetensors", "--layer", "1,0", "--json", "file.json", "--png", "file.png", "--html",
             "file.html", "--plain")
    for end in ("json", "png"):
        assert (attn.folder / f"model.{end}").read_bytes() == (attn.folder / f"file.{end}").read_bytes()
    pages = [re.sub(r'"measures":\[[^]]*\]', "", (attn.folder / f"{name}.html").read_text())
             for name in ("gpt", "file")]
    assert pages[0].replace('"title":"gpt"', '"title":"seen.safetensors"') == pages[1]
    shown = [attn.run("see", *part, *asked[3:], "--plain", "--head", 1).stdout
             for part in (asked[:3], ["seen.safetensors"])]
    assert shown[0] == shown[1] and "layer 1, head 1" in shown[0]
    attn.file("broken.safetensors", "no such thing")
    said = attn.run("see", "broken.safetensors", status=1).stderr
    assert "broken.safetensors" in said, said
    assert "are for models" in attn.run("see", "seen.safetensors", "--text", "a", status=2).stderr


def test_pair(attn):
    """A second text has marks and token types of its own, and pages and files know where it begins."""
    hub_bert(attn.folder / "bert", layers=1)
    found = {}
    for name, texts in (("pair", ("good old film", "--pair", "bad new")), ("one", ("good old film [SEP] bad new",))):
        attn.run("see", "bert", "--text", *texts, "--save", name, "--html", f"{name}.html", "--no-terminal")
        attn.run("see", name, "--html", f"{name} again.html", "--no-terminal")
        bytes_ = (attn.folder / name).read_bytes()
        end = 8 + struct.unpack("<Q", bytes_[:8])[0]
        header = json.loads(bytes_[8:end])
        assert header["layer 0.k"]["shape"] == [2, 8, 16]
        first, last = header["layer 0.k"]["data_offsets"]
        keys = struct.unpack("<256f", bytes_[end + first:end + last])
        found[name] = [[keys[head * 128 + 16 * token:][:16] for head in range(2)] for token in range(8)]
        for page in (f"{name}.html", f"{name} again.html"):
            second = re.search(r'"second":(\d+)', (attn.folder / page).read_text())
            assert (second and second[1]) == ("5" if name == "pair" else None), (page, second)
    same = [a == b for a, b in zip(found["pair"], found["one"])]
    assert same == [True] * 5 + [False] * 3, f"the second text has a type of its own: {same}"
    attn.file("text.txt", TEXT)
    attn.run("train", "text.txt", "--steps", 2, "--out", "gpt", *SHAPE)
    page = attn.run("see", "gpt", "--text", "To be", "--pair", "or not", "--html", "-").stdout
    assert '"second":5' in page, "without marks the first text's tokens"
    assert "--pair: the text is empty" in attn.run("see", "bert", "--text", "a", "--pair", "", status=2).stderr
    assert "--light is for the picture" in attn.run("see", "bert", "--text", "a", "--light", status=2).stderr
    assert "--text, --pair, --file" in attn.run("see", "pair", "--pair", "a", status=2).stderr
    long = attn.run("see", "bert", "--text", "good " * 20, "--pair", "bad " * 20, status=1).stderr
    assert "the pair has 43 tokens, must have at most 32\n" in long, long


def test_cross_attention(attn):
    """Of an answer's look at the text there are no distances."""
    attn.file("pairs.tsv", "".join(f"{a}{b}\tNo{a} No{b}\n" for a in "abc" for b in "abc"))
    attn.run("train", "pairs.tsv", "--validation", "pairs.tsv", "--model", "seq2seq", "--encoder-layers", 1, *SHAPE,
             "--steps", 2, "--out", "out")
    names = attn.run("see", "out", "--text", "ab", "--csv", "-").stdout.splitlines()[0].split(",")
    assert "entropy" in names and not {"self", "distance"} & set(names), names
    attn.run("generate", "out", "--prompt", "ab", "--max-new-tokens", 3, "--record", "cross", "--part", "cross")
    assert {row["most_seen"] for row in json.loads(attn.run("see", "cross", "--json", "-").stdout)} <= {"a", "b"}
    page = attn.run("see", "cross", "--html", "-").stdout
    assert '"tokens":["\\u003cstart\\u003e"' in page and '"key_tokens":["a","b"]' in page
    for part in ("encoder", "decoder"):
        rows = json.loads(attn.run("see", "out", "--text", "ab", "--part", part, "--json", "-").stdout)
        assert all((row["next"] > 0) == (part == "encoder") for row in rows), rows


def test_recorded(attn):
    """What a text was looking at while it was made is what attn see finds in the whole of it."""
    attn.file("text.txt", TEXT)
    attn.run("train", "text.txt", "--steps", 2, "--out", "gpt", *SHAPE)
    said = attn.run("generate", "gpt", "--prompt", "T", "--max-new-tokens", 9, "--record", "all.safetensors", "--layer",
                    1)
    text = said.stdout[:-2]  # neither the end of the line nor the last token, which was not looked after
    assert "all.safetensors: queries, keys and lse of 1 layers, 9 tokens" in said.stderr, said.stderr
    options = ["--json", "-", "--head", "1,0"]
    kept = json.loads(attn.run("see", "all.safetensors", *options).stdout)
    seen = json.loads(attn.run("see", "gpt", "--text", text, "--layer", 1, *options).stdout)
    assert len(kept) == len(seen) == 2
    for a, b in zip(kept, seen):
        # Which token is seen most is a matter of rounding where two are seen alike; then their shares are the same.
        assert all(abs(a[name] - b[name]) < 1e-5 for name in a if isinstance(a[name], float)), (a, b)
    few = ["generate", "gpt", "--prompt", "T", "--max-new-tokens", 3]
    assert "--layer requires" in attn.run(*few, "--layer", 1, status=2).stderr
    assert "layer 2, must be for one from 0 to 1" in attn.run(*few, "--record", "a", "--layer", 2, status=1).stderr
    assert "models with an encoder" in attn.run(*few, "--record", "a", "--part", "cross", status=1).stderr
    assert "cannot record a search of beams" in attn.run(*few, "--record", "a", "--num-beams", 2, status=2).stderr
    assert "--num-beams 1" in attn.run(*few, "--temperature", 1, "--num-beams", 2, status=2).stderr
    assert "is a folder" in attn.run(*few, "--record", ".", status=2).stderr
    assert "nowhere: cannot create a file" in attn.run(*few, "--record", "nowhere/a", status=1).stderr
    assert not list(attn.folder.glob(".attn*")) and not (attn.folder / "a").exists()


def npy(shape, numbers):
    """A .npy file of float32."""
    header = f"{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}, }}".ljust(117) + "\n"
    data = struct.pack(f"<{len(numbers)}f", *numbers)
    return b"\x93NUMPY\x01\0" + struct.pack("<H", len(header)) + header.encode() + data


def test_arrays(attn):
    """Queries and keys of NumPy's files, with and without their lse; one that is another's is refused."""
    rows, keys, width = 3, 5, 4
    q = [math.sin(n) for n in range(rows * width)]
    k = [math.cos(3 * n) for n in range(keys * width)]
    lse = []
    for i in range(rows):  # the last three of five tokens
        scores = [sum(q[i * width + d] * k[j * width + d] for d in range(width)) / 2 for j in range(i + 3)]
        lse.append(math.log(sum(map(math.exp, scores))))
    attn.file("q.npy", npy((rows, width), q))
    attn.file("k.npy", npy((keys, width), k))
    attn.file("lse.npy", npy((rows,), lse))
    attn.file("wrong.npy", npy((rows,), [value + 0.01 for value in lse]))
    both = ["see", "--q", "q.npy", "--k", "k.npy", "--causal"]
    computed, given = (attn.run(*both, *more, "--plain").stdout for more in ((), ("--lse", "lse.npy")))
    assert computed.rstrip().splitlines()[-1].split()[:2] == ["2", "4"], computed
    for one, other in zip(computed.split(), given.split(), strict=True):
        # lse is this program's or Python's: the last of three digits, and the shade beside it, may be the next one.
        shades = not re.search(r"\w", one + other)
        assert one == other or shades or abs(float(one.rstrip("+")) - float(other.rstrip("+"))) <= 0.0015, (one, other)
    page = attn.run(*both, "--lse", "lse.npy", "--html", "-").stdout
    assert '"key_tokens":["0","1","2","3","4"]' in page and '"tokens":["2","3","4"]' in page
    for output in ("--html", "--csv"):
        refused = attn.run(*both, "--lse", "wrong.npy", output, "-", status=1)
        assert "lse" in refused.stderr and refused.stdout == "", refused
    assert "none.npy" in attn.run("see", "--q", "q.npy", "--k", "none.npy", status=1).stderr
    for wrong in (("see",), ("see", "--q", "q.npy"), ("see", "gpt", "--causal"), ("see", "gpt", *both[1:])):
        assert "give a model's folder" in attn.run(*wrong, status=2).stderr, wrong
    assert "are for models, but q.npy is a file" in attn.run(*both, "--text", "a", status=2).stderr


def test_windows_of_a_long_page(attn):
    """A long text's page has the windows that are named; what makes no sense is said before anything is computed."""
    length = 8200  # beyond 2^26 weights a page is pooled
    attn.file("q.npy", npy((length, 1), [math.sin(n) for n in range(length)]))
    asked = ["see", "--q", "q.npy", "--k", "q.npy", "--causal", "--html", "-"]
    windows = [argument for window in ("100-199:0-99", "5:", ":7") for argument in ("--window", window)]
    page = attn.run(*asked, *windows).stdout
    assert f'"windows":[[100,0,100,100],[5,0,1,{length}],[0,7,{length},1]]' in page
    for wrong in ("5", "a:b", "9-5:", "1:2:3", "-3:", "99999999999999999999:"):
        assert "--window" in attn.run(*asked, "--window", wrong, status=2).stderr, wrong
    assert "windows[0] must be within 8200 queries" in attn.run(*asked, "--window", "8200:", status=1).stderr
    assert "--html" in attn.run(*asked[:-2], "--window", "5:", status=2).stderr


def test_serve(attn):
    """The page of a model at an address; one that is in use is refused, and Ctrl-C ends it."""
    attn.file("text.txt", TEXT)
    attn.run("train", "text.txt", "--steps", 2, "--out", "gpt", *SHAPE)
    program = attn.start("see", "gpt", "--text", "To be", "--serve", stdout=subprocess.PIPE)
    try:
        port = int(re.match(r"http://127\.0\.0\.1:(\d+)/", program.stdout.readline())[1])
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=20) as answer:
            page = answer.read().decode()
            assert "connect-src 'self'" in page and answer.headers["X-Content-Type-Options"] == "nosniff"
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/row?layer=1&head=1&query=2", timeout=20) as answer:
            row = struct.unpack("<5f", answer.read())
        assert abs(sum(row) - 1) < 1e-5 and row[3] == row[4] == 0, row
        said = attn.run("see", "gpt", "--text", "a", "--serve", port, status=1).stderr
        assert "is it in use" in said, said
    finally:
        program.send_signal(signal.SIGINT)
    assert program.wait(20) == 128 + signal.SIGINT
    assert "0 to 65535" in attn.run("see", "gpt", "--text", "a", "--serve", 65536, status=2).stderr


class Server:
    """The server of a small model's page, with requests by hand."""

    def __init__(self, attn):
        attn.file("text.txt", TEXT)
        attn.run("train", "text.txt", "--steps", 2, "--out", "gpt", *SHAPE)
        self.program = attn.start("see", "gpt", "--text", "To be", "--serve", stdout=subprocess.PIPE)
        self.port = int(re.match(r"http://127\.0\.0\.1:(\d+)/", self.program.stdout.readline())[1])

    def connect(self):
        return socket.create_connection(("127.0.0.1", self.port), timeout=60)

    def request(self, *headers, method="GET", path="/", host=None):
        host = host or f"127.0.0.1:{self.port}"
        return "".join(f"{line}\r\n" for line in (f"{method} {path} HTTP/1.1", f"Host: {host}", *headers, "")).encode()

    def all_of(self, client):
        """What comes until the other end closes; without an error where it does so with bytes still on their way."""
        said = b""
        try:
            while piece := client.recv(1 << 20):
                said += piece
        except ConnectionResetError:
            pass
        return said

    def ask(self, *headers, **more):
        """The status and the body of a connection of its own."""
        with self.connect() as client:
            client.sendall(self.request("Connection: close", *headers, **more))
            head, _, body = self.all_of(client).partition(b"\r\n\r\n")
        return int(head.split()[1]), body

    def memory(self):
        """In KiB."""
        return int(re.search(r"VmRSS:\s+(\d+)", open(f"/proc/{self.program.pid}/status").read())[1])

    def seconds_to_end(self):
        begun = time.monotonic()
        self.program.send_signal(signal.SIGINT)
        assert self.program.wait(60) == 128 + signal.SIGINT
        return time.monotonic() - begun


def test_rude_clients(attn):
    """Nobody keeps the page from others or the program from its end, and nobody is sent more than there is."""
    server = Server(attn)
    status, page = server.ask()
    assert status == 200 and len(page) > 10000
    for ranges, expected in (("0-10", (206, page[:11])), ("0-", (206, page)), ("-5", (206, page[-5:]))):
        assert server.ask(f"Range: bytes={ranges}") == expected, ranges
    for ranges in ("5-2", ",".join(["0-"] * 500), ",".join(f"{n}-{n}" for n in range(900)), "x"):
        status, body = server.ask(f"Range: bytes={ranges}")
        assert status == 416 and len(body) <= len(page), (ranges[:20], status, len(body))
    for status, headers, more in (
            (413, ["Content-Length: 100000000"], {"method": "POST"}), (404, ["Content-Length: 0"], {"method": "POST"}),
            (403, [], {"host": "example.org"}), (403, ["Host: example.org"], {}),
            (403, ["Sec-Fetch-Site: cross-site"], {}),
            (400, [], {"path": "/row?layer=9"}), (400, [], {"path": "/row?layer=0&layer=0"})):
        got, body = server.ask(*headers, **more)
        assert got == status and len(body) < 300, (status, headers[:2], more, got, body)
    assert server.ask(method="HEAD") == (200, b"")

    before = server.memory()
    silent = [server.connect() for _ in range(300)]
    slow = [server.connect() for _ in range(100)]
    for client in slow:
        client.sendall(b"GET / HTT")
    readers = [server.connect() for _ in range(100)]
    for client in readers:  # who ask and do not read
        client.sendall(server.request() * 20)
    begun = time.monotonic()
    assert server.ask() == (200, page) and time.monotonic() - begun < 10
    assert server.memory() - before < 256 * (len(page) + (1 << 16)) / 1024
    keep = server.connect()
    keep.sendall(server.request())
    assert keep.recv(1 << 10).startswith(b"HTTP/1.1 200 OK")
    # A second is what a person waits; loaded machines get ten.
    assert server.seconds_to_end() < 10
    del silent, slow, readers, keep


def test_full_disk(attn):
    """A page that cannot be written leaves the old one in place."""
    attn.file("text.txt", TEXT)
    attn.run("train", "text.txt", "--steps", 2, "--out", "gpt", *SHAPE)
    attn.run("see", "gpt", "--text", "To be", "--html", "a.html", "--no-terminal")
    before = (attn.folder / "a.html").read_bytes()
    limit = len(before) // 2  # of a file's bytes
    done = subprocess.run(["bash", "-c", f"trap '' XFSZ; ulimit -f {limit // 1024}; exec \"$@\"", "attn",
                           *attn.command("see", "gpt", "--text", "To be, or", "--html", "a.html")],
                          cwd=attn.folder, capture_output=True, text=True)
    assert done.returncode == 1 and "a.html" in done.stderr, done
    assert (attn.folder / "a.html").read_bytes() == before and not list(attn.folder.glob("*.tmp*"))
