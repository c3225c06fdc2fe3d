"""attn heads: what heads do on texts, as a table, CSV and JSON."""

import csv
import io
import json

from attn import SHAPE, TEXT

ALL = ["previous", "next", "self", "first", "first_four", "sink", "start", "separator", "separator_from_others",
       "separator_from_separators", "punctuation", "entropy", "entropy_of_first", "entropy_uniform", "entropy_relative",
       "distance", "confidence", "positional", "offset", "duplicate", "induction"]


def model(attn):
    attn.file("text.txt", TEXT)
    attn.run("train", "text.txt", "--steps", 2, "--out", "gpt", *SHAPE)


def test_measures(attn):
    """The mean over texts; tables and files say the same; what is asked for comes in its order."""
    model(attn)
    attn.file("lines.txt", "The cat sat.\n\nt\ntttt\n")
    together = json.loads(attn.run("heads", "gpt", "--file", "lines.txt", "--json", "-").stdout)
    assert together["texts"] == 3 and list(together["measures"]) == ALL
    assert together["measures"]["previous"]["source"] == "Clark et al. 2019"
    assert [(head["layer"], head["head"]) for head in together["heads"]] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    alone = [json.loads(attn.run("heads", "gpt", "--text", text, "--json", "-").stdout)["heads"]
             for text in ("The cat sat.", "t", "tttt")]
    for number, head in enumerate(together["heads"]):
        for name in set(ALL) - {"offset", "positional"}:  # of these a word weighs the same, not a text
            values = [text[number][name] for text in alone if text[number][name] is not None]
            assert head[name] is None if not values else abs(head[name] - sum(values) / len(values)) < 1e-12, name
        # Its tokenizer has no special tokens; one token leaves nothing open; equal tokens are all that is seen.
        # Of one key the weight is exp(score - lse), where lse has one rounding of a number of the size of the score.
        assert head["separator"] is None and abs(alone[1][number]["entropy"]) < 1e-5
        assert abs(alone[1][number]["self"] - 1) < 1e-5
        assert alone[1][number]["previous"] is None and alone[1][number]["entropy_relative"] is None
        assert abs(4 * alone[2][number]["self"] + 3 * alone[2][number]["duplicate"] - 4) < 1e-5, alone[2][number]
        assert head["next"] == 0
        for name, threshold in (("first", 0.5), ("sink", 0.5), ("entropy_relative", 0.783)):
            assert (name in head["roles"]) == (head[name] > threshold), head

    rows = list(csv.DictReader(io.StringIO(attn.run("heads", "gpt", "--file", "lines.txt", "--csv", "-").stdout)))
    assert list(rows[0]) == ["layer", "head", *ALL, "roles"]
    for row, head in zip(rows, together["heads"], strict=True):
        for name in ALL:
            assert row[name] == "" if head[name] is None else abs(float(row[name]) - head[name]) < 1e-8, name
        assert row["roles"].split() == head["roles"]
    lines = attn.run("heads", "gpt", "--file", "-", "--measures", "offset,previous", "--most", 1,
                     stdin="t\nThe cat\n").stdout.splitlines()
    assert lines[0].split()[:4] == ["layer", "head", "offset", "previous"] and len(lines) == 6
    for n, line in enumerate(lines[1:5]):
        layer, head, offset, previous = line.split()[:4]
        assert (layer, head, previous) == (str(n // 2), str(n % 2), "-") and offset == "0", line


def test_repeated_random_tokens(attn):
    """Random tokens that repeat: the same for a seed, as long as the context takes."""
    model(attn)
    runs = [attn.run("heads", "gpt", "--induction", "--measures", "induction,duplicate,entropy_uniform", "--json", "-",
                     "--sequences", 3, *more).stdout for more in ((), ("--seed", 0), ("--seed", 1), ("--length", 8))]
    assert runs[0] == runs[1] == runs[3] != runs[2]
    for head in json.loads(runs[0])["heads"]:
        assert 0 < head["induction"] < 1 and 0 < head["duplicate"] < 1
        # 16 causal rows: the mean of ln 1 .. ln 16.
        assert abs(head["entropy_uniform"] - 30.6718601 / 16) < 1e-6
    said = attn.run("heads", "gpt", "--induction", "--length", 9, status=2).stderr
    assert "--length is 9, must be at most 8 for each copy with a context of 16" in said, said


ARCS = """# a comment
1\tThe\tthe\tDET\t_\t_\t2\tdet\t_\t_
2\tcat\tcat\tNOUN\t_\t_\t3\tnsubj\t_\t_
3\tsat\tsit\tVERB\t_\t_\t0\troot\t_\t_

"""


def test_syntax(attn):
    """Arcs of a file; what does not fit is passed over and said; what is wrong has its line."""
    model(attn)
    attn.file("arcs.conllu", ARCS + ARCS.replace("sat", "sat" * 9))
    done = attn.run("heads", "gpt", "--conllu", "arcs.conllu", "--json", "-")
    assert "1 of 2 sentences were passed over" in done.stderr, done.stderr
    found = json.loads(done.stdout)
    assert found["sentences"] == 1 and found["heads"] == ["0.0", "0.1", "1.0", "1.1"]
    assert [(one["name"], one["arcs"], one["offset"], one["baseline"]) for one in found["relations"]] == [
        ("all", 2, 1, 1), ("det", 1, 1, 1), ("nsubj", 1, 1, 1)]
    for one in found["relations"]:  # causal: no word sees a later governor, but a governor may look at its dependent
        assert one["to_governor"] == [0] * 4 and len(one["to_dependent"]) == 4
    lines = attn.run("heads", "gpt", "--conllu", "arcs.conllu").stdout.splitlines()
    assert lines[0].split()[:3] == ["relation", "arcs", "baseline"] and lines[1].split()[:3] == ["all", "2", "1.000"]
    rows = list(csv.DictReader(io.StringIO(attn.run("heads", "gpt", "--conllu", "arcs.conllu", "--csv", "-").stdout)))
    assert len(rows) == 12 and rows[0]["relation"] == "all" and rows[3]["head"] == "1.1"
    attn.file("wrong.conllu", ARCS.replace("2\tdet", "7\tdet"))
    said = attn.run("heads", "gpt", "--conllu", "wrong.conllu", status=1).stderr
    assert "wrong.conllu:2: HEAD is 7, must be at most 3, the number of words" in said, said


ENTITIES = """# newdoc
1\tthe\t_\tPRON\t_\t_\t2\tnsubj\t_\tEntity=(e1)
2\tsat\t_\tVERB\t_\t_\t0\troot\t_\t_

1\ta\t_\tDET\t_\t_\t2\tdet\t_\tEntity=(e2--2
2\tcat\t_\tNOUN\t_\t_\t0\troot\t_\tEntity=e2)
3\the\t_\tPRON\t_\t_\t2\tdep\t_\tEntity=(e1)

# newdoc
1\tit\t_\tPRON\t_\t_\t2\tnsubj\t_\tEntity=(e1)
2\tsat\t_\tVERB\t_\t_\t0\troot\t_\t_
3\tit\t_\tPRON\t_\t_\t2\tobj\t_\tEntity=(e1)

1\tlong\t_\tADJ\t_\t_\t2\tamod\t_\t_
2\tsentence\t_\tNOUN\t_\t_\t0\troot\t_\t_

"""


def test_coreference(attn):
    """Antecedents of a file's mentions; a document is read in parts as large as the context, which is said."""
    model(attn)
    attn.file("entities.conllu", ENTITIES)
    done = attn.run("heads", "gpt", "--coreference", "entities.conllu", "--json", "-")
    assert "2 documents were read in 3 parts" in done.stderr, done.stderr
    found = json.loads(done.stdout)
    assert found["texts"] == 3 and found["heads"] == ["0.0", "0.1", "1.0", "1.1"]
    every = found["mentions"][0]
    assert (every["name"], every["number"], every["nearest"]) == ("all", 2, 0.5)
    assert every["baseline"] == 0.5 and every["offset"] in (-4, -2) and len(every["to_antecedent"]) == 4
    lines = attn.run("heads", "gpt", "--coreference", "entities.conllu").stdout.splitlines()
    assert lines[0].split()[:4] == ["mentions", "number", "nearest", "baseline"] and lines[2].split()[0] == "PRON"
    table = attn.run("heads", "gpt", "--coreference", "entities.conllu", "--csv", "-").stdout
    assert len(list(csv.DictReader(io.StringIO(table)))) == 8
    attn.file("wrong.conllu", ENTITIES.replace("e2)", "e3)"))
    said = attn.run("heads", "gpt", "--coreference", "wrong.conllu", status=1).stderr
    assert "wrong.conllu:6: mention 'e3' was not opened" in said, said
    attn.file("none.conllu", ARCS)
    assert "no mention" in attn.run("heads", "gpt", "--coreference", "none.conllu", status=1).stderr


def test_reach_and_clusters(attn):
    model(attn)
    found = json.loads(attn.run("heads", "gpt", "--text", "The cat", "--reach", 3, "--json", "-").stdout)
    assert len(found["tokens"]) == 7 and abs(sum(found["rollout"]) - 1) < 1e-5
    assert found["rollout"][4:] == found["flow"][4:] == [0] * 3 and min(found["flow"][:4]) > 0  # causal
    table = attn.run("heads", "gpt", "--text", "The cat", "--reach", 3).stdout.splitlines()
    assert table[0].split() == ["token", "rollout", "flow", "text"] and len(table) == 8
    assert "the token is 9, must be from 0 to 6" in attn.run("heads", "gpt", "--text", "The cat", "--reach", 9,
                                                         status=1).stderr
    assert "--reach needs one text" in attn.run("heads", "gpt", "--induction", "--reach", 0, status=2).stderr
    attn.file("lines.txt", "The cat sat.\nThe dog\n")
    heads = json.loads(attn.run("heads", "gpt", "--file", "lines.txt", "--clusters", 2, "--json", "-").stdout)["heads"]
    assert {head["cluster"] for head in heads} == {0, 1} and abs(sum(head["x"] for head in heads)) < 1e-6
    row = attn.run("heads", "gpt", "--file", "lines.txt", "--clusters", 4, "--csv", "-").stdout.splitlines()[0]
    assert row.endswith(",induction,cluster,x,y,roles"), row


def test_refused(attn):
    model(attn)
    for arguments in ([], ["--text", "a", "--induction"], ["--text", "a", "--file", "b"]):
        assert "give one of" in attn.run("heads", "gpt", *arguments, status=2).stderr
    assert "is empty" in attn.run("heads", "gpt", "--file", "-", stdin="\n\n", status=2).stderr
    assert "only one of" in attn.run("heads", "gpt", "--text", "a", "--csv", "-", "--json", "-", status=2).stderr
    said = attn.run("heads", "gpt", "--text", "a", "--measures", "entrpy", status=2).stderr
    assert "must be one of previous, next" in said and "entrpy" in said, said
    cut = attn.run("heads", "gpt", "--text", "The cat sat on the mat.").stderr
    assert "1 of 1 texts were cut to 16 tokens" in cut, cut
