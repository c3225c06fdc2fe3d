"""Files of lines, which every command cuts in one way, and what of texts from outside reaches a terminal."""

import json
import os
import pty
import re
import subprocess

from attn import SHAPE, TEXT
from test_streams import ROWS, hub_bert

MARK = b"\xef\xbb\xbf"
# What is in a file, and the lines of it.
FILES = [
    (b"good film\nbad film\n", ["good film", "bad film"]),
    (b"good film\r\nbad film\r\n", ["good film", "bad film"]),
    (b"good film\r\nbad film", ["good film", "bad film"]),
    (b"good film\nbad film\r", ["good film", "bad film"]),
    (MARK + b"good film\nbad film\n", ["good film", "bad film"]),
    (MARK + b"good film\r\n" + MARK + b"bad film", ["good film", "\ufeffbad film"]),
    (b"\ngood film\n\n\nbad film\n\n", ["", "good film", "", "", "bad film", ""]),
    (b"\r\n\r\n", ["", ""]),
    (b"good\rfilm\n\rbad\r\r\n", ["good\rfilm", "\rbad\r"]),
    (b"good\0film\n\0\n", ["good\0film", "\0"]),
    ("good f\u00edlm\nb\u00e4d \U0001f600\n".encode(), ["good f\u00edlm", "b\u00e4d \U0001f600"]),
    (b"good \x1b[31mfilm\n", ["good \x1b[31mfilm"]),
    (b"", []), (MARK, []), (b"\n", [""]), (MARK + b"\n", [""]),
]
# What is no UTF-8, its line and its byte.
BROKEN = [
    (b"good\n\xff\n", 2, 0), (MARK + b"good\nb\xc3", 2, 1), (b"good\r\n\r\nfilm \xed\xa0\x80\r\n", 3, 5),
    (b"\xc0\xaf", 1, 0),
    (b"good\xf4\x90\x80\x80\n", 1, 4), (b"bad\n\nfilm \xe2\x82\n", 3, 5), (b"bad \xf0\x8f\xbf\xbf", 1, 4),
    ("b\u00e4d\n".encode("latin-1"), 1, 1), ("good\n".encode("utf-16"), 1, 0),
]


def embedded(attn, *arguments, stdin=b""):
    done = subprocess.run(attn.command("embed", "bert", *arguments), cwd=attn.folder, input=stdin, capture_output=True)
    return [json.loads(line)["text"] for line in done.stdout.splitlines()], done.stderr.decode()


def classified(attn, *arguments, stdin=b""):
    done = subprocess.run(attn.command("classify", "encoder", "--json", *arguments), cwd=attn.folder, input=stdin,
                          capture_output=True)
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert [row["line"] for row in rows] == list(range(1, len(rows) + 1))
    return [row["text"] for row in rows], done.stderr.decode()


def byte_classifier(attn):
    """Whose tokenizer takes any text, bytes that are no UTF-8 too."""
    attn.file("rows.tsv", "".join(f"{a}\t{b[0]}\n" for a, b in ROWS))
    attn.run("train", "rows.tsv", "--tokens", "bytes", "--model", "encoder", "--steps", 2, "--out", "encoder", *SHAPE)


def test_lines(attn):
    """The same lines for every command, from a file and from standard input."""
    hub_bert(attn.folder / "bert", layers=1)
    byte_classifier(attn)
    for content, lines in FILES:
        attn.file("lines.txt", content)
        for run in (embedded, classified):
            assert run(attn, "lines.txt") == (lines, ""), (run, content, run(attn, "lines.txt"))
            assert run(attn, stdin=content) == (lines, ""), (run, content)
        full = [line for line in lines if line]
        if full:
            said = json.loads(attn.run("heads", "encoder", "--file", "lines.txt", "--json", "-").stdout)
            assert said["texts"] == len(full), content
        else:
            said = attn.run("heads", "encoder", "--file", "lines.txt", "--csv", "-", status=2).stderr
            assert "lines.txt is empty" in said, (content, said)


def test_lines_that_are_no_text(attn):
    """One message, with the number of the line; what is before it is answered where answers come one by one."""
    hub_bert(attn.folder / "bert", layers=1)
    byte_classifier(attn)
    for content, line, byte in BROKEN:
        attn.file("lines.txt", content)
        for source, arguments in (("lines.txt", ("lines.txt",)), ("standard input", ())):
            expected = f"attn: [read] {source}, line {line} is not UTF-8 at its byte {byte}\n"
            stdin = b"" if arguments else content
            texts, said = classified(attn, *arguments, stdin=stdin)
            assert said == expected and len(texts) == line - 1, (content, said, texts)
            assert embedded(attn, *arguments, stdin=stdin) == ([], expected), content
        expected = f"attn: [read] lines.txt, line {line} is not UTF-8 at its byte {byte}\n"
        assert attn.run("heads", "encoder", "--file", "lines.txt", status=1).stderr == expected, content


def test_rows_of_files_with_any_line_end(attn):
    """Labelled texts, pairs and CoNLL-U: the same rows whatever ends a line, and the same numbers in messages."""
    byte_classifier(attn)
    rows = {"tsv": ["good film\tf", "bad film\ta"], "csv": ['"good, film",f', "bad film,a"],
            "jsonl": ['{"text": "good film", "label": "f"}', '{"text": "bad film", "label": "a"}']}
    for kind, lines in rows.items():
        wanted = None
        for before, end, last in ((b"", b"\n", b"\n"), (MARK, b"\r\n", b"\r\n"), (MARK, b"\n", b""),
                                  (b"", b"\r\n", b""), (b"", b"\n\n", b"\n\n"), (b"\r\n", b"\r\n\r\n", b"\r\n")):
            attn.file(f"rows.{kind}", before + end.join(line.encode() for line in lines) + last)
            said = attn.run("eval", "encoder", f"rows.{kind}").stdout
            wanted = wanted or said
            assert said == wanted and said.startswith("2 sentences"), (kind, before, end, said)
        for content, line, byte in BROKEN:
            fill = {"tsv": b"\tf", "csv": b",f", "jsonl": b""}[kind]
            attn.file(f"rows.{kind}", content.replace(b"\n", fill + b"\n") if kind != "jsonl" else content)
            said = attn.run("eval", "encoder", f"rows.{kind}", status=1).stderr
            if kind != "jsonl":
                assert f"rows.{kind}, line {line} is not UTF-8 at its byte {byte}" in said, (kind, content, said)
            assert f"rows.{kind}, line " in said and said.count("\n") == 1, (kind, content, said)
        attn.file(f"rows.{kind}", "\r\n\r\n" + lines[0] + "\r\n\r\n" + lines[1].replace("a", "unknown").replace(
            "bunknownd", "bad") + "\r\n")
        said = attn.run("eval", "encoder", f"rows.{kind}", status=1).stderr
        assert f"rows.{kind}, line 5: " in said, (kind, said)
    content = (attn.folder / "rows.tsv").read_text()
    assert "standard input, line 5: " in attn.run("eval", "encoder", "-", stdin=content, status=1).stderr

    words = "1\tThe\tthe\tDET\t_\t_\t2\tdet\t_\t_\n2\tend\tend\tNOUN\t_\t_\t0\troot\t_\t_\n\n"
    tables = set()
    for text in (words, "\ufeff" + words, words.replace("\n", "\r\n"), words.rstrip("\n")):
        attn.file("a.conllu", text.encode())
        tables.add(attn.run("heads", "encoder", "--conllu", "a.conllu", "--csv", "-").stdout)
    assert len(tables) == 1, tables
    attn.file("a.conllu", words.encode().replace(b"end", b"\xffnd", 1))
    assert "a.conllu, line 2 is not UTF-8 at its byte 2" in attn.run("heads", "encoder", "--conllu", "a.conllu",
                                                                      status=1).stderr


def test_wrong_texts_have_their_line(attn):
    """What a tokenizer cannot take of a line has the same number everywhere."""
    attn.file("rows.tsv", "aab b\tx\nbba a\ty\n" * 10)
    attn.run("train", "rows.tsv", "--tokens", "bytes", "--model", "encoder", "--steps", 1, "--out", "encoder", *SHAPE)
    hub_bert(attn.folder / "bert", layers=1)
    (attn.folder / "bert" / "sentence_bert_config.json").write_text('{"max_seq_length": 512}')
    (attn.folder / "bert" / "modules.json").write_text(json.dumps([
        {"name": str(n), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for n, (path, kind) in enumerate((("", "Transformer"), ("1_Normalize", "Normalize")))]))
    attn.file("lines.txt", b"\r\ngood\n" + b"film " * 40 + b"\n")
    said = attn.run("embed", "bert", "lines.txt", "--pooling", "mean", status=1).stderr
    assert said.startswith("attn: [embed] lines.txt, line 3: its 42 tokens are more than the 32 positions"), said
    said = attn.run("embed", "bert", "--pooling", "mean", stdin="film " * 40, status=1).stderr
    assert "standard input, line 1: " in said, said
    attn.run("embed", "bert", "lines.txt", "--pooling", "mean", "--max-length", 32)


# ------------------------------------------------------------------------------------------------------- on a terminal

NASTY = "a\x1b[31mb\x07c\x9bd\x7fe\rf\x08g"
CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f\x80-\x9f]")


def on_terminal(attn, *arguments, both=True):
    """What a terminal is sent, and the status."""
    main_end, terminal = pty.openpty()
    process = subprocess.Popen(attn.command(*arguments), cwd=attn.folder, env=attn.environment, stderr=terminal,
                               stdin=subprocess.DEVNULL, stdout=terminal if both else subprocess.DEVNULL)
    os.close(terminal)
    shown = b""
    try:
        while piece := os.read(main_end, 1 << 16):
            shown += piece
    except OSError:  # the other end is closed
        pass
    os.close(main_end)
    # The terminal itself writes a carriage return before each line feed; the line of progress is the program's own.
    text = re.sub(r"\r?\n", "\n", shown.decode(errors="surrogateescape"))
    return re.sub(r"\r[^\x1b\r\n]*\x1b\[K", "", text), process.wait(60)


def test_terminal(attn):
    """Control characters of names, texts and files are shown, never sent."""
    attn.file("text.txt", TEXT)
    attn.run("train", "text.txt", "--steps", 1, "--out", "gpt", *SHAPE)
    attn.run("train", "text.txt", "--steps", 1, "--tokens", "bytes", "--out", f"of {NASTY}", *SHAPE)
    byte_classifier(attn)
    hub_bert(attn.folder / "bert", layers=1)
    attn.file(f"broken {NASTY}.txt", b"good\n\xff\n")
    attn.file(f"wrong {NASTY}.tsv", f"{NASTY}\t{NASTY}\n")
    (attn.folder / NASTY).mkdir()
    attn.file(f"{NASTY}/config.json", json.dumps({"model_type": NASTY}))
    wrong = [
        ("generate", NASTY), ("info", NASTY), ("embed", f"no {NASTY}"), ("embed", NASTY), ("classify", f"no {NASTY}"),
        ("embed", "bert", f"broken {NASTY}.txt"), ("embed", "bert", f"no {NASTY}.txt"), ("eval", "gpt", f"no {NASTY}"),
        ("eval", "encoder", f"wrong {NASTY}.tsv"), ("heads", "encoder", "--file", f"broken {NASTY}.txt"),
        ("see", f"no {NASTY}.safetensors", "--text", "a"), ("tokenizer", "encode", f"no {NASTY}"), (NASTY,),
        ("info", f"--{NASTY}"), ("train", f"no {NASTY}"), ("generate", "gpt", "--max-new-tokens", NASTY),
        ("embed", "bert", "--prompt-name", NASTY), ("train", "text.txt", "--config", f"no {NASTY}"),
        ("prune", f"no {NASTY}", "--out", "x", "--heads", 1), ("generate", "gpt", "--prompt", NASTY)]
    for arguments in wrong:
        shown, status = on_terminal(attn, *arguments)
        assert status in (1, 2) and not CONTROL.search(shown), (arguments, shown)
        assert any(sign in shown for sign in ("\\x1b[31m", "\\u001b[31m", "U+001B")), (arguments, shown)
    right = [
        ("generate", f"of {NASTY}", "--prompt", NASTY, "--max-new-tokens", 40), ("info", f"of {NASTY}"),
        ("see", f"of {NASTY}", "--text", NASTY[:9], "--stats"), ("heads", f"of {NASTY}", "--text", NASTY, "--reach", 1),
        ("see", "gpt", "--text", "The", "--png", f"{NASTY}.png", "--no-terminal"),
        ("train", "text.txt", "--tokens", "bytes", "--steps", 1, "--sample-every", 1, "--out", f"out {NASTY}", *SHAPE)]
    for arguments in right:
        shown, status = on_terminal(attn, *arguments)
        assert status == 0 and shown and not CONTROL.search(shown), (arguments, shown)
    # What is no terminal gets a text as it is.
    said = subprocess.run(attn.command("generate", f"of {NASTY}", "--prompt", NASTY, "--max-new-tokens", 1),
                          cwd=attn.folder, capture_output=True).stdout
    assert said.startswith(NASTY.encode())
