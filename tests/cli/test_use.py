"""attn as a newcomer types it: long texts, the command that fits a model, names from elsewhere, numbers that agree."""

import csv
import io
import json
import math
import re

from attn import SHAPE, TEXT
from test_flags import SUBCOMMANDS
from test_see import npy
from test_streams import ROWS, hub_bert

LONG = TEXT[:40]  # of models whose context is 16


def refused(attn, *arguments, status=2):
    """The one line of an error that comes before any answer."""
    done = attn.run(*arguments, status=status)
    assert not done.stdout and done.stderr.count("\n") == 1, (arguments, done)
    return done.stderr


def text_model(attn, out="gpt", *more):
    attn.file("text.txt", TEXT)
    attn.run("train", "text.txt", "--steps", 2, "--out", out, *SHAPE, *more)


def classifier(attn, out="encoder", *more):
    attn.file("rows.tsv", "".join(f"{text}\t{label[0]}\n" for text, label in ROWS))
    attn.run("train", "rows.tsv", "--model", "encoder", "--steps", 2, "--out", out, *SHAPE, *more)


def with_context(attn, folder, context):
    """The same weights as a model that was trained on longer texts."""
    path = attn.folder / folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"context": context}))


def test_long_texts(attn):
    """--context takes the first tokens, and where positions are not learned all of them, as a longer training would."""
    for positions in ("learned", "none", "rope", "alibi", "relative", "sinusoidal"):
        text_model(attn, positions, "--positions", positions)
        asked = {"see": ("see", positions, "--text", LONG, "--json", "-"),
                 "heads": ("heads", positions, "--text", LONG, "--json", "-")}
        said = refused(attn, *asked["see"], status=1)
        assert "the text has 40 tokens, the model's context is 16: --context 16 takes the first of them, " in said, said
        assert ("only without learned positions" if positions == "learned" else "--context 40 all") in said, said
        cut = attn.run(*asked["see"], "--context", 16)
        assert cut.stderr == "attn: the text was cut from 40 to 16 tokens\n", cut.stderr
        assert cut.stdout == attn.run("see", positions, "--text", LONG[:16], "--json", "-").stdout, positions
        shorter = attn.run(*asked["heads"], "--context", 9)
        assert "1 of 1 texts were cut to 9 tokens" in shorter.stderr, shorter.stderr
        if positions == "learned":
            for arguments in asked.values():
                assert "the model has learned 16 positions" in refused(attn, *arguments, "--context", 17), arguments
            assert "--context takes more" not in shorter.stderr
            continue
        assert "a larger --context takes more" in shorter.stderr
        longer = {name: attn.run(*arguments, "--context", 64) for name, arguments in asked.items()}
        with_context(attn, positions, 64)
        for name, arguments in asked.items():
            assert longer[name].stderr == "" and longer[name].stdout == attn.run(*arguments).stdout, (positions, name)
    line = "good old film " * 8
    classifier(attn, "encoder", "--positions", "rope")
    done = attn.run("classify", "encoder", "--json", stdin=line + "\ngood\n")
    assert done.stderr == "attn: 1 of 2 texts were cut to 16 tokens; a larger --context takes more\n", done.stderr
    whole = attn.run("classify", "encoder", "--json", "--context", 64, stdin=line)
    with_context(attn, "encoder", 64)
    assert whole.stderr == "" and whole.stdout == attn.run("classify", "encoder", "--json", stdin=line).stdout
    assert whole.stdout.splitlines()[0] != done.stdout.splitlines()[0]


def test_one_measure_is_one_number(attn):
    """What see, heads and the page call by one name is one number."""
    text_model(attn)
    text = "The cat sat."
    seen = json.loads(attn.run("see", "gpt", "--text", text, "--json", "-").stdout)
    heads = json.loads(attn.run("heads", "gpt", "--text", text, "--json", "-").stdout)["heads"]
    page = attn.run("see", "gpt", "--text", text, "--html", "-").stdout
    data = json.loads(page.partition('id="data">')[2].partition("</script>")[0])
    names = [measure["name"] for measure in data["measures"]]
    drawn = [head["measures"] for layer in data["layers"] for head in layer["heads"] if head["name"] != "mean"]
    assert len(seen) == len(heads) == len(drawn) == 4
    for one, two, three in zip(seen, heads, drawn):
        for name in ("previous", "next", "self", "first", "entropy", "distance"):
            values = (one[name], two[name], three[names.index(name)])
            # A page has six digits; half of the last one, and the roundings of float32 are a tenth of that.
            assert max(values) - min(values) <= 6e-6 * max(1, max(values)), (name, values)
    assert "mass on the token before, of tokens that have one" in page
    alone = json.loads(attn.run("see", "gpt", "--text", "T", "--json", "-").stdout)[0]
    assert alone["previous"] is None and alone["next"] is None and alone["self"] > 0.99
    assert attn.run("see", "gpt", "--text", "T", "--stats").stdout.splitlines()[1].split()[8:10] == ["-", "-"]
    assert ",1,,," in attn.run("see", "gpt", "--text", "T", "--csv", "-").stdout.splitlines()[1]


def test_the_fitting_command_is_named(attn):
    """A command that a model is not for says at once which one is."""
    text_model(attn)
    classifier(attn)
    hub_bert(attn.folder / "bert", layers=1)
    for arguments, message in (
            (("classify", "gpt"), "gpt does not classify texts; it continues texts: use attn generate"),
            (("classify", "bert"), "bert does not classify texts; it makes vectors: use attn embed"),
            (("generate", "bert", "--prompt", "good"), "bert does not generate text; it makes vectors: use attn embed"),
            (("generate", "encoder", "--prompt", "good"),
             "encoder does not generate text; it classifies: use attn classify"),
            (("fill", "gpt", "--text", "a"), "gpt does not fill gaps; it continues texts: use attn generate"),
            (("fill", "bert", "--text", "a"), "bert does not fill gaps; it makes vectors: use attn embed")):
        assert message in refused(attn, *arguments), arguments
    # Nothing of the answer is before an error.
    assert "learned 16 positions" in refused(attn, "generate", "gpt", "--prompt", "The", "--context", 17, status=1)
    rows = [json.loads(line) for line in attn.run("embed", "encoder", stdin="good film\n\nbad\n").stdout.splitlines()]
    assert [row["text"] for row in rows] == ["good film", "", "bad"]
    assert all(len(row["embedding"]) == 16 for row in rows) and any(rows[0]["embedding"])


def tests_of(attn, *arguments):
    done = attn.run("bench", *arguments, "-r", 1, "-o", "json")
    rows = json.loads(done.stdout)
    assert all(row["avg_ts"] > 0 and 0 < row["peak_share"] for row in rows), rows
    return [row["test"] for row in rows], done.stderr


def test_bench(attn):
    """Encoders are measured as they read; lengths are those that a model has positions for."""
    text_model(attn)
    classifier(attn)
    hub_bert(attn.folder / "bert", layers=1)
    assert tests_of(attn, "gpt") == (["pp16", "tg16"], "")
    assert tests_of(attn, "gpt", "-d", 4) == (["pp12 @ d4", "tg12 @ d4"], "")
    assert tests_of(attn, "bert") == tests_of(attn, "bert", "-d", 4) == (["encode 1 x 32"], "")
    assert tests_of(attn, "bert", "-p", "8,16", "--batch", "1,3")[0] == [
        "encode 1 x 8", "encode 3 x 8", "encode 1 x 16", "encode 3 x 16"]
    assert tests_of(attn, "encoder", "-p", 8, "--train", 8)[0] == ["encode 1 x 8", "train 1 x 8",
                                                                   "train 1 x 8, recomputed"]
    rows, said = tests_of(attn, "bert", "-n", 4)
    assert rows == ["encode 1 x 32"] and "does not generate text" in said, said
    for wrong in (("gpt", "-p", 17), ("gpt", "--train", 17), ("gpt", "-d", 16), ("gpt", "-p", 9, "-d", 8)):
        assert "the model has learned 16 positions" in refused(attn, "bench", *wrong), wrong
    for wrong in (("gpt", "-p", 0, "-n", 0), ("bert", "-p", 0), ("bert", "-p", 0, "-n", 9)):
        assert "there is nothing to measure" in attn.run("bench", *wrong, status=2).stderr, wrong
    assert "models that continue texts and encoders of texts" in refused(attn, "bench", "--model", "seq2seq")


def test_help(attn):
    """attn help NAME is what attn NAME --help says."""
    assert attn.run("help").stdout == attn.run("--help").stdout
    for command in SUBCOMMANDS:
        assert attn.run("help", command).stdout == attn.run(command, "--help").stdout, command
    assert "unknown subcommand 'trian'; did you mean train? Known are: train, gen" in refused(attn, "help", "trian")


def test_hints(attn):
    """What is unknown is named in its order, with the name that comes nearest."""
    for arguments, message in (
            (("generate", "gpt", "--temprature", 1),
             "unknown option '--temprature' of attn generate; did you mean --temp"),
            (("generate", "gpt", "--typical_p=0.5"),
             "unknown option '--typical-p' of attn generate; did you mean --min-p"),
            (("generate", "gpt", "--max-length", 9), "did you mean --max-new-tokens?"),
            (("train", "text.txt", "--lr", 1), "did you mean --learning-rate?"),
            (("see", "gpt", "--layers", 1), "unknown option '--layers' of attn see; did you mean --layer?"),
            (("see", "gpt", "--zzz", "--qqq"),
             "unknown option '--zzz' of attn see; unknown option '--qqq' of attn see (attn see --help lists the "
             "options)"),
            (("--layers", 3, "train"), "unknown option '--layers' of attn (attn --help"),
            (("see", "gpt", "-x"), "unknown option '-x' of attn see ("),
            (("trian", "text.txt"), "unknown subcommand 'trian'; did you mean train? Known are: train, gen"),
            (("info", "a", "b", "c"), "unexpected arguments: b, c (attn info --help"),
            (("see", "gpt", "The cat"), "unexpected argument: The cat; a text is given as --text TEXT (attn see"),
            (("generate", "gpt", "The cat"), "unexpected argument: The cat; a text is given as --prompt TEXT ("),
            (("generate", "gpt", "--stop", ""), "--stop: the text is empty"),
            (("heads", "gpt", "--text", ""), "give one of --text TEXT that is not empty, "),
            (("classify", "a", "b", "c", "d"), "unexpected arguments: c, d")):
        assert message in refused(attn, *arguments), (arguments, refused(attn, *arguments))


def test_names_of_transformers(attn):
    """The options of its generate() are ours, with hyphens and with underscores."""
    text_model(attn)

    def said(*flags):
        return attn.run("generate", "gpt", "--prompt", "The cat", *flags).stdout

    some = ("--max-new-tokens", 12)
    for theirs, ours in (
            (("--max_new_tokens", 9), ("--max-new-tokens=9",)),
            ((*some, "--min_new_tokens", 12), (*some, "--min-new-tokens", 12)),
            ((*some, "--num_beams", 3, "--early_stopping", "true", "--length_penalty", 0.5),
             (*some, "--num-beams", 3, "--length-penalty", 0.5)),
            ((*some, "--do_sample", "False"), (*some, "--temperature", 0)),
            ((*some, "--do_sample"), some),
            ((*some, "--no_repeat_ngram_size", 2, "--do_sample=false"),
             (*some, "--no-repeat-ngram-size", 2, "--temperature", 0)),
            ((*some, "--top_k", 3, "--top_p", 0.9, "--min_p", 0.01, "--repetition_penalty", 1.2, "--seed", 4),
             (*some, "--top-k", 3, "--top-p", 0.9, "--min-p", 0.01, "--repetition-penalty", 1.2, "--seed", 4))):
        assert said(*theirs) == said(*ours), (theirs, ours)
    said = refused(attn, "generate", "gpt", "--do-sample", "false", "--temperature", 1)
    assert "--temperature must be 0 or absent" in said, said
    assert "--num-beams 1" in refused(attn, "generate", "gpt", "--do-sample", "true", "--num-beams", 2)


def test_weights_as_csv(attn):
    """The matrix as CSV: rows that sum up to 1, with the tokens of both axes."""
    text_model(attn)
    table = list(csv.reader(io.StringIO(attn.run("see", "gpt", "--text", "at,t", "--weights", "-").stdout)))
    assert table[0] == ["layer", "head", "query", "token", "0 a", "1 t", "2 ,", "3 t"], table[0]
    assert [row[:3] for row in table[1:]] == [[str(layer), str(head), str(query)] for layer in (0, 1)
                                             for head in (0, 1) for query in range(4)]
    for row in table[1:]:
        weights, query = [float(weight) for weight in row[4:]], int(row[2])
        assert abs(sum(weights) - 1) < 1e-5 and not any(weights[query + 1:]), row
    whole = json.loads(attn.run("see", "gpt", "--text", "The cat", "--layer", 1, "--head", 0, "--json", "-").stdout)
    attn.run("see", "gpt", "--text", "The cat", "--layer", 1, "--head", 0, "--weights", "w.csv")
    rows = list(csv.reader(open(attn.folder / "w.csv")))[1:]
    before = [float(row[4 + int(row[2]) - 1]) for row in rows if row[2] != "0"]
    assert len(rows) == 7 and abs(sum(before) / 6 - whole[0]["previous"]) < 1e-5
    attn.file("q.npy", npy((8200, 1), [math.sin(n) for n in range(8200)]))
    said = refused(attn, "see", "--q", "q.npy", "--k", "q.npy", "--weights", "-")
    assert "67,240,000 weights" in said and "--layer and --head" in said, said
    attn.file("lse.npy", npy((3,), [9, 9, 9]))
    attn.file("q.npy", npy((3, 1), [1, 2, 3]))
    assert "lse" in refused(attn, "see", "--q", "q.npy", "--k", "q.npy", "--lse", "lse.npy", "--weights", "-", status=1)


def test_summary_and_map_of_heads(attn):
    """How many heads do what, and a map of their clusters with one sign a head."""
    text_model(attn)
    shown = attn.run("heads", "gpt", "--text", LONG[:16], "--clusters", 3).stdout
    table = json.loads(attn.run("heads", "gpt", "--text", LONG[:16], "--clusters", 3, "--json", "-").stdout)["heads"]
    roles = [role for head in table for role in head["roles"]]
    line = next((line for line in shown.splitlines() if " of 4 heads" in line), "no summary")
    assert line.endswith("."), line
    counts = [int(part.split()[0]) for part in line.split(", ")] if roles else []
    assert sum(counts) == len(roles), (line, roles)
    phrase = {"entropy_relative": "broadly", "first": "to the first token", "sink": "a sink of the first token"}
    for role in set(roles) & set(phrase):
        assert phrase[role] in line, (role, line)
    box = shown.split("+" + "-" * 72 + "+\n")[1]
    signs = re.sub(r"[|\s]", "", box)
    assert box.count("\n") == 20 and 1 <= len(signs) <= 4 and set(signs) <= set("012*"), box
    if len(signs) == 4:
        assert sorted(signs) == sorted(str(head["cluster"]) for head in table), box
    # Places are whole numbers.
    assert all(isinstance(head["offset"], int) for head in table), table
    columns = shown.splitlines()[0].split()
    assert re.fullmatch(r"-?\d+", shown.splitlines()[1].split()[columns.index("offset")]), shown


def test_temperature(attn):
    """The best checkpoint of a classifier has the fewest errors; a temperature has the loss that eval says."""
    words = "good bad old new long short fine awful".split()
    rows = [f"{a} {b} {c}\t{(n * n + 3 * m + k) % 5 % 2}" for n, a in enumerate(words) for m, b in enumerate(words)
            for k, c in enumerate(words[:3])]
    attn.file("rows.tsv", "\n".join(rows[::2]) + "\n")
    attn.file("held.tsv", "\n".join(rows[1::2]) + "\n")
    said = attn.run("train", "rows.tsv", "--validation", "held.tsv", "--steps", 120, "--eval-every", 10,
                    "--learning-rate", 0.01, "--out", "noise", *SHAPE).stderr
    log = [json.loads(line) for line in (attn.folder / "noise" / "log.jsonl").read_text().splitlines()]
    right = {row["step"]: row["validation_accuracy"] for row in log if "validation_loss" in row}
    best = max(right, key=right.get)
    assert json.loads((attn.folder / "noise" / "checkpoints.json").read_text())["best"].startswith(f"step-{best}.")
    assert f"best validation accuracy {right[best]:.4f}, of the checkpoint that is the best" in said, said
    texts, labels = zip(*(row.split("\t") for row in rows[1::2]))
    line = attn.run("eval", "noise", "held.tsv", "--checkpoint", "last").stdout
    loss, fitted, cooled = map(float, re.search(
        r"loss ([\d.]+),.*; with attn classify --temperature ([\d.]+) the loss is ([\d.]+)$", line).groups())
    for temperature, wanted in ((1, loss), (fitted, cooled)):
        said = attn.run("classify", "noise", "--checkpoint", "last", "--json", "--temperature", temperature,
                        stdin="\n".join(texts) + "\n").stdout
        got = [json.loads(row)["probabilities"][label] for row, label in zip(said.splitlines(), labels)]
        # Four digits are printed of a loss, three of a temperature, where the loss has no slope.
        assert abs(-sum(map(math.log, got)) / len(got) - wanted) < 1e-4, (temperature, wanted)
    assert 0.05 < fitted and cooled <= loss
