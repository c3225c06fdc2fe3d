#!/usr/bin/env python3
"""attn see --stats: what heads do in numbers, as a table, CSV and JSON.

usage: test_see.py ATTN [TEST...]
"""

import csv
import io
import json
import sys

from test_cli import SHAPE, TEXT, main


def test_statistics(attn):
    """A text of one token leaves nothing open; one of equal tokens little; what is selected comes in its order."""
    attn.file("text.txt", TEXT + '"')
    attn.run("train", "text.txt", "--steps", 2, "--out", "gpt", *SHAPE)
    table = attn.run("see", "gpt", "--text", "T", "--stats").stdout.splitlines()
    names = ["layer", "head", "entropy", "maximum", "keys", "distance", "first", "self", "previous", "next", "same"]
    assert table[0].split() == [*names, "most", "seen"], table[0]
    alone = ["0.000", "1.000", "1.000", "0.000", "1.000", "1.000", "0.000", "0.000", "1.000", "1.000", "T", "at", "0"]
    assert [line.split() for line in table[1:]] == [[str(n // 2), str(n % 2), *alone] for n in range(4)], table

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
    """A file in a model's place gives the same pictures, statistics and page."""
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
    pages = [(attn.folder / f"{name}.html").read_text() for name in ("gpt", "file")]
    assert pages[0].replace('"title":"gpt"', '"title":"seen.safetensors"') == pages[1]
    shown = [attn.run("see", *part, *asked[3:], "--plain", "--head", 1).stdout
             for part in (asked[:3], ["seen.safetensors"])]
    assert shown[0] == shown[1] and "layer 1, head 1" in shown[0]
    attn.file("broken.safetensors", "no such thing")
    said = attn.run("see", "broken.safetensors", status=1).stderr
    assert "broken.safetensors" in said, said
    assert "are for models" in attn.run("see", "seen.safetensors", "--text", "a", status=2).stderr


def test_cross(attn):
    """Of an answer's look at the text there are no distances."""
    attn.file("pairs.tsv", "".join(f"{a}{b}\tNo{a} No{b}\n" for a in "abc" for b in "abc"))
    attn.run("train", "pairs.tsv", "--validation", "pairs.tsv", "--model", "seq2seq", "--encoder-layers", 1, *SHAPE,
             "--steps", 2, "--out", "out")
    names = attn.run("see", "out", "--text", "ab", "--csv", "-").stdout.splitlines()[0].split(",")
    assert "entropy" in names and not {"self", "distance"} & set(names), names
    attn.run("generate", "out", "--prompt", "ab", "--tokens", 3, "--record", "cross", "--part", "cross")
    assert {row["most_seen"] for row in json.loads(attn.run("see", "cross", "--json", "-").stdout)} <= {"a", "b"}
    for part in ("encoder", "decoder"):
        rows = json.loads(attn.run("see", "out", "--text", "ab", "--part", part, "--json", "-").stdout)
        assert all((row["next"] > 0) == (part == "encoder") for row in rows), rows


def test_recorded(attn):
    """What a text was looking at while it was made is what attn see finds in the whole of it."""
    attn.file("text.txt", TEXT)
    attn.run("train", "text.txt", "--steps", 2, "--out", "gpt", *SHAPE)
    said = attn.run("generate", "gpt", "--prompt", "T", "--tokens", 9, "--record", "all.safetensors", "--layer", 1)
    text = said.stdout[:-2]  # neither the end of the line nor the last token, which was not looked behind
    assert "all.safetensors: queries, keys and lse of 1 layers, 9 tokens" in said.stderr, said.stderr
    options = ["--json", "-", "--head", "1,0"]
    kept = json.loads(attn.run("see", "all.safetensors", *options).stdout)
    seen = json.loads(attn.run("see", "gpt", "--text", text, "--layer", 1, *options).stdout)
    assert len(kept) == len(seen) == 2
    for a, b in zip(kept, seen):
        assert a["most_seen"] == b["most_seen"]
        assert all(abs(a[name] - b[name]) < 1e-5 for name in a if isinstance(a[name], float)), (a, b)
    few = ["generate", "gpt", "--prompt", "T", "--tokens", 3]
    assert "--layer requires" in attn.run(*few, "--layer", 1, status=2).stderr
    assert "layer 2, there are 0 to 1" in attn.run(*few, "--record", "a", "--layer", 2, status=1).stderr
    assert "models with an encoder" in attn.run(*few, "--record", "a", "--part", "cross", status=1).stderr
    assert "nowhere: create a file" in attn.run(*few, "--record", "nowhere/a", status=1).stderr
    assert not list(attn.folder.glob(".attn*")) and not (attn.folder / "a").exists()


if __name__ == "__main__":
    sys.exit(main(globals()))
