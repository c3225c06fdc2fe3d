"""attn sweep: its tables, exponents, charts and errors."""

import csv
import json
import math
import signal
import time
import xml.etree.ElementTree as xml

from attn import TEXT

SMALL = "--embed-dim 16 --layers 1 --heads 2 --vocab-size 40".split()


def rows_of(attn, name):
    return list(csv.DictReader((attn.folder / name).read_text().splitlines()))


def test_tables_charts_and_exponents(attn):
    said = attn.run(*"sweep --over tokens=8,16,32,64 --mixer-list full,gated_delta -r 2 --csv rows.csv --plots sweep "
                    "--measure time,memory,decode,cache".split(), *SMALL).stdout
    rows = rows_of(attn, "rows.csv")
    assert [(row["mixer"], int(row["tokens"])) for row in rows] == [
        (mixer, n) for mixer in ("full", "gated_delta") for n in (8, 16, 32, 64)]
    for row in rows:
        assert int(row["sequences"]) * int(row["length"]) == 64  # an update has as many tokens everywhere
        assert float(row["time_lowest"]) <= float(row["time"]) <= float(row["time_highest"])
        assert float(row["memory"]) > 4e-6 * 4 * int(row["parameters"])  # weights, gradients, both moments
    # Keys and values of 16 numbers each grow with the tokens; the state of a gated delta net does not.
    assert [float(row["cache"]) for row in rows[:4]] == [1e-3 * 4 * 32 * n for n in (8, 16, 32, 64)]
    assert len({row["cache"] for row in rows[4:]}) == 1
    assert "y = factor x tokens^exponent" in said
    laws = [line.split() for line in said.splitlines() if "keys, values and states" in line]
    assert [(law[0], float(law[-3]), float(law[-2])) for law in laws] == [("full", 1, 0), ("gated_delta", 0, 0)]
    for metric in ("time", "memory", "decode", "cache"):
        assert (attn.folder / f"sweep-{metric}.png").read_bytes().startswith(b"\x89PNG")
        chart = xml.fromstring((attn.folder / f"sweep-{metric}.svg").read_text())
        marks = [mark for mark in chart.findall(".//{*}circle") if len(mark)]
        assert [mark[0].text.split(":")[0] for mark in marks] == [
            f"{mixer}, tokens = {n}" for mixer in ("full", "gated_delta") for n in (8, 16, 32, 64)]


def test_losses_of_a_text(attn):
    attn.file("text.txt", TEXT)
    said = attn.run(*"sweep text.txt --over embed-dim=8,16,32 --mixer-list lstm --seeds 2 --layers 1 --heads 2 "
                    "--context 16 --batch-tokens 128 --train-tokens 12800 --learning-rate 0.01 --csv rows.csv "
                    "-o json".split()).stdout
    rows = rows_of(attn, "rows.csv")
    assert [(row["embed_dim"], row["seed"]) for row in rows] == [(n, seed) for n in ("8", "16", "32")
                                                                 for seed in ("1", "2")]
    assert all(float(row["loss"]) < 0.9 * math.log(len(set(TEXT))) for row in rows), rows  # it has learned something
    assert rows[0]["loss"] != rows[1]["loss"]
    tables = json.JSONDecoder().raw_decode(said)
    assert len(tables[0]) == 6 and abs(tables[0][0]["loss"] - float(rows[0]["loss"])) < 1e-6


def test_stopped(attn):
    """Ctrl-C leaves the models that were complete, in the file and in the tables."""
    run = attn.start("sweep", "--over", "tokens=8,16,1024", "-r", 1000, "--csv", "rows.csv", *SMALL, stdout=-1)
    rows = attn.folder / "rows.csv"
    for _ in range(1200):
        if rows.exists() and len(rows.read_text().splitlines()) > 2:
            break
        time.sleep(0.05)
    run.send_signal(signal.SIGINT)
    printed, said = run.communicate(timeout=60)
    assert run.returncode == 130 and "what is printed is a part" in said, said
    assert [row["tokens"] for row in rows_of(attn, "rows.csv")] == ["8", "16"] and "us a token" in printed


def test_errors(attn):
    def error(*flags):
        return attn.run("sweep", *flags, status=2).stderr

    assert error("--over", "tokens") == (
        "attn: --over is 'tokens', must be FIELD=VALUE,VALUE,... as tokens=512,1024 or heads=1,2,4\n")
    assert error("--over", "tokens=8,x") == "attn: --over: 'x' of tokens=8,x is no number\n"
    assert error("--over", "height=8").startswith("attn: model with height = 8: ")
    assert error("--over", "heads=3").startswith("attn: model with heads = 3: ")
    assert error("--mixer-list", "full,windy").startswith("attn: windy with tokens = 512: unknown mixer 'windy'")
    assert error("--measure", "loss") == "attn: --measure loss needs a text to train on\n"
    assert error("--train-tokens", 9) == "attn: --train-tokens needs a text to train on\n"
    assert error("--model", "encoder") == "attn: attn sweep measures models that continue texts, as gpt and llama\n"
    assert error("--measure", "cache", "--over", "tokens=1,2") == (
        "attn: --measure decode and cache need sequences of at least 2 tokens\n")
    for flags, wrong in (
            (("--over", "heads=1,2", "--heads", 4), "--heads 4 is given, but --over varies heads"),
            (("--over", "tokens=8", "--context", 16), "--context 16 is given, but --over varies tokens"),
            (("--over", "tokens=8,16,8"), "--over names 8 twice"),
            (("--over", "vocab_size=9", "--vocab-size", 8),
             "--over varies vocab_size: leave --vocab-size and the text out, which set it too"),
            (("--mixer", "full", "--mixer-list", "full"), "--mixer and --mixer-list are given: leave one of them out"),
            (("--mixer-list", ""), "--mixer-list has an empty name"),
            (("--tokens", "bytes"), "--tokens needs a text to train on")):
        assert error(*flags) == f"attn: {wrong}\n"
    rows = attn.run("sweep", "--over", "vocab_size=10,20", *SMALL[:-2], "--context", 8, "-r", 1, "-o", "csv").stdout
    assert len({row["parameters"] for row in csv.DictReader(rows.split("\n\n")[0].splitlines()[:3])}) == 2
    assert error("--seeds", 3) == "attn: --seeds needs a text to train on\n"
    said = attn.run("sweep", "--over", "tokens=8", "-r", 1, "--csv", "none/rows.csv", *SMALL, status=1)
    assert said.stderr.startswith("attn: [write_file] none/rows.csv: ") and said.stdout == ""  # before it is measured
    said = attn.run("sweep", "--over", "tokens=8", "-r", 1, "--plots", "none/rows", *SMALL, status=1)
    assert "none/rows-time.svg" in said.stderr and "us a token" in said.stdout  # what was measured is not lost
