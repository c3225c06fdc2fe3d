"""attn profile: its tables, files and errors."""

import csv
import io
import json
import signal
import time
import xml.etree.ElementTree as xml

from attn import SHAPE, TEXT


def trained(attn, *flags):
    attn.file("text.txt", TEXT)
    attn.run("train", "text.txt", "--steps", 2, "--out", "gpt", *SHAPE, *flags)


def profile(attn, *flags, **more):
    return attn.run("profile", "gpt", "--text", "text.txt", "--tokens", 12, "--generate", 3, "-r", 2, *flags, **more)


def test_tables_and_files_agree(attn):
    trained(attn)
    said = profile(attn, "--json", "profile.json", "--roofline", "roof.svg").stdout
    for part in ("forward, one run", "decode, one run", "GFLOP/s of products", "memory in use at the peak", "KV cache",
                 "forward/block */attention", "train/backward/block */feed_forward/up", "train/optimizer"):
        assert part in said, part
    written = json.loads((attn.folder / "profile.json").read_text())
    assert [phase["phase"] for phase in written["phases"]] == ["forward", "prefill", "decode", "train"]
    for phase in written["phases"]:
        assert len(phase["seconds"]) == len(phase["profiled_seconds"]) == 2
        rows = phase["operations"]
        assert abs(sum(row["percent"] for row in rows) - 100) < 1e-6
        total = sum(row["milliseconds"] for row in rows) / 1000
        assert total <= sum(phase["profiled_seconds"]) / 2 * 1.001, phase["phase"]
        assert {"matmul", "(other)"} <= {row["operation"] for row in rows}
    heads = {row["shape"] for row in written["phases"][0]["operations"] if row["operation"] == "attention"}
    assert heads == {"1 x 2 x 12 x 12 x 8"}
    circles = xml.fromstring((attn.folder / "roof.svg").read_text()).findall(".//{*}circle/{*}title")
    assert len(circles) > 8 and "matmul" in circles[0].text
    profile(attn, "--roofline", "roof.png", "--phases", "forward")
    assert (attn.folder / "roof.png").read_bytes().startswith(b"\x89PNG")
    # The two models of the training are that of `attn info`: float32 weights, a gradient and two moments of each.
    rows = [line.split() for line in said.splitlines() if line.startswith("train ")]
    measured = {row[1]: float(row[2]) for row in rows if row[1] in ("weights", "gradients", "moments")}
    assert abs(measured["moments"] - 2 * measured["gradients"]) < 0.02, measured

    table = list(csv.DictReader(io.StringIO(profile(attn, "-o", "csv", "--rows", 0, "--layers").stdout)))
    assert {"forward/block 0/attention", "forward/block 1/attention"} <= {row["scope"] for row in table}
    few = profile(attn, "--rows", 3, "--phases", "forward", "-o", "csv").stdout.splitlines()
    assert len(few) == 5 and few[-1].startswith('"forward","the rest"'), few


def test_counters(attn):
    """Page faults are counted everywhere, cycles where the machine and the kernel let users count them."""
    trained(attn)
    said = profile(attn, "--counters", "--phases", "forward,train", "--json", "profile.json").stdout
    assert "counted in one run without the profiler" in said
    phases = json.loads((attn.folder / "profile.json").read_text())["phases"]
    for phase in phases:
        counted = phase["counted"]
        assert counted["phase"] == phase["phase"] and counted["page_faults"] >= 0 and counted["context_switches"] >= 0
        if counted["cycles"] is None:
            assert "not counted here: " in said and "cycles" in said.split("not counted here: ")[1].splitlines()[0]
        else:
            assert 1e6 < counted["cycles"] < 1e12 and 0.1 < counted["instructions_per_cycle"] < 8
    assert "counted" not in json.dumps(json.loads(profile(attn, "-o", "json", "--phases", "forward").stdout))


def test_compare(attn):
    trained(attn)
    profile(attn, "--phases", "forward", "--json", "a.json")
    attn.run("profile", "gpt", "-r", 2, "--phases", "forward", "--json", "b.json", "--tokens", 6)
    said = attn.run("profile", "--compare", "a.json", "b.json", "-o", "json").stdout
    rows = json.loads(said)
    assert {"first_milliseconds", "second_milliseconds", "ratio"} <= set(rows[0])
    apart = [abs(row["first_milliseconds"] - row["second_milliseconds"]) for row in rows]
    assert apart == sorted(apart, reverse=True)
    same = json.loads(attn.run("profile", "--compare", "a.json", "a.json", "-o", "json", "--rows", 0).stdout)
    assert all(row["ratio"] == 1 for row in same if row["first_milliseconds"] > 0)
    attn.file("c.json", "{}")
    said = attn.run("profile", "--compare", "a.json", "c.json", status=1).stderr
    assert said == "attn: [profile] c.json is not a profile: attn profile --json writes one\n"


def events_of(text):
    """The events of a trace, also of one that was cut off in a line."""
    lines = text.removeprefix("[\n").removesuffix("\n]\n").split("\n")
    if not text.endswith("]\n"):
        lines = lines[:-1]
    return [json.loads(line.removesuffix(",")) for line in lines]


def test_trace(attn):
    trained(attn)
    profile(attn, "--trace", "trace.json", "--threads", 2)
    text = (attn.folder / "trace.json").read_text()
    assert json.loads(text) == events_of(text)
    names = {event["tid"]: event["args"]["name"] for event in json.loads(text) if event["name"] == "thread_name"}
    assert names[0] == "main" and set(names.values()) <= {"main", "worker 1"}
    spans = [event for event in json.loads(text) if event["ph"] == "X"]
    assert {span["tid"] for span in spans} <= set(names)
    assert {"scope", "operation"} <= {span["cat"] for span in spans}
    for thread in names:  # on a thread, spans are inside each other or apart
        own = sorted((span for span in spans if span["tid"] == thread), key=lambda span: (span["ts"], -span["dur"]))
        open_until = []
        for span in own:
            while open_until and open_until[-1] <= span["ts"] + 1e-3:
                open_until.pop()
            end = span["ts"] + span["dur"]
            assert not open_until or end <= open_until[-1] + 1e-3, span
            open_until.append(end)
    product = next(span for span in spans if span["name"] == "matmul")
    m, k, n = map(int, product["args"]["shape"].split(" x "))
    assert product["args"]["flops"] == 2 * m * k * n


def test_killed_and_stopped(attn):
    """Whatever ends the program, the trace has what was done before."""
    trained(attn)
    for end in (signal.SIGKILL, signal.SIGINT):
        run = attn.start("profile", "gpt", "-r", 1000, "--trace", "trace.json", "--tokens", 12, "--phases", "train")
        trace = attn.folder / "trace.json"
        for _ in range(600):
            if trace.exists() and trace.stat().st_size > 300_000:
                break
            time.sleep(0.05)
        run.send_signal(end)
        _, said = run.communicate(timeout=60)
        text = trace.read_text()
        assert len(events_of(text)) > 500
        assert text.endswith("\n]\n") == (end == signal.SIGINT)
        if end == signal.SIGINT:
            assert run.returncode == 130 and "what is printed is a part" in said, said
        trace.unlink()


def test_other_models(attn):
    attn.file("rows.tsv", "good film\t1\nbad film\t0\n" * 20)
    attn.run("train", "rows.tsv", "--model", "encoder", "--steps", 2, "--out", "encoder", *SHAPE)
    said = attn.run("profile", "encoder", "-r", 1, "--tokens", 8).stdout
    assert "forward, one run" in said and "train, one run" in said and "decode" not in said
    attn.file("pairs.tsv", "good film\tfilm good\n" * 20)
    attn.run("train", "pairs.tsv", "--task", "seq2seq", "--model", "seq2seq", "--steps", 2, "--out", "pairs", *SHAPE)
    said = attn.run("profile", "pairs", "-r", 1, "--tokens", 8, "--rows", 0).stdout
    assert "encoder */attention" in said and "block */cross" in said, said


def test_errors(attn):
    assert "--roofline: 'roof.gif' must end in .svg or .png" in attn.run(
        "profile", "gpt", "--roofline", "roof.gif", status=2).stderr
    assert attn.run("profile", status=2).stderr == (
        "attn: attn profile needs a model folder, or --compare with two files\n")
    trained(attn, "--positions", "learned")
    said = attn.run("profile", "gpt", "--phases", "decode", "--generate", 16, status=2).stderr
    assert said == "attn: --generate 16 leaves no room for a prompt in 16 learned positions\n"
    said = attn.run("profile", "gpt", "--trace", "none/trace.json", "-r", 1, status=1).stderr
    assert said == "attn: [profile] none/trace.json cannot be written: No such file or directory\n"
    attn.file("empty.txt", "")
    said = attn.run("profile", "gpt", "--text", "empty.txt", "-r", 1, status=1).stderr
    assert said == "attn: [profile] empty.txt has no tokens\n"
    attn.file("bytes.txt", b"\xff\xfe")
    said = attn.run("profile", "gpt", "--text", "bytes.txt", "-r", 1, status=1).stderr
    assert said == "attn: [profile] bytes.txt: the text: not UTF-8 at byte 0 (0xFF)\n"
    assert "train" not in attn.run("profile", "gpt", "--precision", "int8", "-r", 1, "-o", "csv").stdout
    full = attn.run("profile", "gpt", "--trace", "/dev/full", "-r", 1, status=1)  # the tables are not lost
    assert "decode, one run" in full.stdout and "/dev/full cannot be written" in full.stderr
    both = attn.run("profile", "gpt", "--precision", "int8", "--phases", "forward,train", "-r", 1, status=1)
    assert "forward, one run" in both.stdout and "weights of int8 are for inference alone" in both.stderr
    said = attn.run("profile", "gpt", "--phases", "backward", status=2).stderr
    assert "backward" in said and "forward" in said
