"""What goes into attn and comes out: files of every kind, pipes, terminals, what cannot be written, and signals."""

import array
import csv
import json
import math
import os
import pty
import random
import re
import select
import signal
import struct
import subprocess
import time

from attn import SHAPE, TEXT

ROWS = [(f"{a} {b} film", "fine stuff" if a == "good" else 'awful, "really"') for a in ("good", "bad")
        for b in ("old", "new", "long", "short")] * 5


def trained(attn, *more):
    attn.file("text.txt", TEXT)
    attn.run("train", "text.txt", "--steps", 3, "--out", "gpt", *SHAPE, *more)


def classifier(attn):
    with open(attn.folder / "rows.csv", "w", newline="") as file:
        csv.writer(file).writerows(ROWS)
    attn.run("train", "rows.csv", "--steps", 80, "--out", "encoder", *SHAPE)


def through_pipe(attn, command, **more):
    return subprocess.run(["bash", "-c", command, "bash", attn.program], cwd=attn.folder, capture_output=True,
                          text=True, env=attn.environment, **more)


def test_pipes_are_inputs(attn):
    """`-` and pipes are files too."""
    trained(attn)
    attn.run("train", "-", "--steps", 3, "--out", "again", *SHAPE, stdin=TEXT)
    for name in ("config.json", "tokenizer.json", "step-3.safetensors"):
        assert (attn.folder / "gpt" / name).read_bytes() == (attn.folder / "again" / name).read_bytes(), name
    whole = attn.run("eval", "gpt", "text.txt").stdout
    assert attn.run("eval", "gpt", "-", stdin=TEXT).stdout == whole
    assert through_pipe(attn, '"$1" eval gpt <(cat text.txt)').stdout == whole
    said = attn.run("generate", "gpt", "--file", "-", "--max-new-tokens", 2, stdin="The cat").stdout
    assert said.startswith("The cat") and len(said) == len("The cat") + 3
    attn.run("train", "text.txt", "--config", "-", "--steps", 1, "--out", "c", *SHAPE, stdin='{"bias": false}')
    assert '"bias": false' in (attn.folder / "c" / "config.json").read_text()


def test_labels(attn):
    """Words as labels, in three formats, are the same model; the names stay with it."""
    classifier(attn)
    attn.file("rows.jsonl", "".join(json.dumps({"id": 1, "text": a, "label": b}) + "\n" for a, b in ROWS))
    attn.file("rows.tsv", "sentence\tlabel\n" + "".join(f"{a}\t{b}\n" for a, b in ROWS))
    weights = (attn.folder / "encoder" / "step-80.safetensors").read_bytes()
    for name in ("rows.jsonl", "rows.tsv"):
        attn.run("train", name, "--steps", 80, "--out", name + ".out", *SHAPE)
        assert (attn.folder / (name + ".out") / "step-80.safetensors").read_bytes() == weights, name
    names = ['awful, "really"', "fine stuff"]
    assert json.loads((attn.folder / "encoder" / "labels.json").read_text()) == names
    assert "100.00 % right" in attn.run("eval", "encoder", "rows.jsonl").stdout
    said = attn.run("classify", "encoder", stdin="good old film\nbad new film\n").stdout.splitlines()
    assert [row.split("\t")[0] for row in said] == names[::-1], said
    row = json.loads(attn.run("classify", "encoder", "--json", stdin="good old film\n").stdout)
    assert row["class"] == "fine stuff" and list(row["probabilities"]) == names
    assert row["probabilities"]["fine stuff"] > 0.5
    # In batches, in order.
    attn.file("lines.txt", "".join(f"{text}\n" for text, _ in ROWS))
    alone = [attn.run("classify", "encoder", stdin=text + "\n").stdout for text, _ in ROWS[:8]] * 5
    for flags in ((), ("--batch", 3)):
        lines = attn.run("classify", "encoder", "lines.txt", *flags).stdout.splitlines()
        for one, other in zip(map(str.split, alone), map(str.split, lines), strict=True):
            # Products of one row and of many add in another order: the last of four digits may be another.
            share = len(one) - 4  # after the name, before three words
            assert [*one[:share], *one[share + 1:]] == [*other[:share], *other[share + 1:]], (one, other)
            assert abs(float(one[share]) - float(other[share])) <= 1.5e-4, (one, other)

    attn.run("train", "--resume", "--out", "encoder")
    attn.file("other.tsv", "good film\tfine stuff\nbad film\tunknown\n")
    unknown = attn.run("eval", "encoder", "other.tsv", status=1).stderr
    assert 'other.tsv, line 2: unknown class "unknown"' in unknown, unknown
    attn.file("far.tsv", "good\t0\nbad\t3000000\n" * 20)
    attn.run("train", "far.tsv", "--steps", 1, "--out", "far", *SHAPE)
    assert json.loads((attn.folder / "far" / "labels.json").read_text()) == ["0", "3000000"]
    assert '"classes": 2' in (attn.folder / "far" / "config.json").read_text()
    attn.file("one.tsv", "good\tyes\n" * 20)
    assert "1 different labels" in attn.run("train", "one.tsv", "--out", "one", status=1).stderr
    assert not (attn.folder / "one").exists()
    attn.file("encoder/labels.json", '["a"]')
    assert "encoder/labels.json must be a list of 2 texts" in attn.run("classify", "encoder", status=1).stderr
    for arguments in (("classify", "far", "encoder"), ("eval", "far", "encoder"), ("train", "encoder", "--out", "x")):
        said = attn.run(*arguments, status=1).stderr
        assert "Is a directory" in said or "is a folder, must be a file" in said, said


def f1(labels, said, name):
    right = sum(a == b == name for a, b in zip(labels, said))
    return 2 * right / (labels.count(name) + said.count(name))


def test_accuracy_and_f1(attn):
    """Accuracy and F1 of what classify says, by their definitions; of a class that never occurs there is none."""
    for names in (("no", "yes"), ("a", "b", "c", "d")):
        texts = [f"{x} {y} film" for x in ("good", "old", "odd") for y in ("new", "long", "dull", "short")]
        rows = [(text, names[n % len(names)]) for n, text in enumerate(texts)]
        attn.file("rows.tsv", "".join(f"{a}\t{b}\n" for a, b in rows * 4 + [("last one", names[-1])] * 4))
        out = f"of{len(names)}"
        attn.run("train", "rows.tsv", "--model", "encoder", "--steps", 12, "--out", out, *SHAPE)
        rows += [(text, names[-2]) for text in texts[:7]]

        def classes_of(rows):
            lines = attn.run("classify", out, "--json", stdin="".join(f"{a}\n" for a, _ in rows)).stdout.splitlines()
            shares = [sorted(json.loads(line)["probabilities"].values())[-2:] for line in lines]
            # eval may have others beside a text, and adds in another order: no text may be between two classes.
            assert min(most - next_ for next_, most in shares) > 1e-5, shares
            return [json.loads(line)["class"] for line in lines]

        if len(names) > 2:  # a class that is said, but never there
            said = classes_of(rows)
            rows = [row for row in rows if row[1] != max(said, key=said.count)]
        attn.file("test.tsv", "".join(f"{a}\t{b}\n" for a, b in rows))
        said, labels = classes_of(rows), [label for _, label in rows]
        right = 100 * sum(a == b for a, b in zip(labels, said)) / len(rows)
        there = sorted({*labels, *said})
        macro = sum(f1(labels, said, name) for name in there) / len(there)
        expected = f", {right:.2f} % right, macro F1 {macro:.4f}"
        if len(names) == 2:
            expected += f", F1 of yes {f1(labels, said, 'yes'):.4f}"
        assert attn.run("eval", out, "test.tsv").stdout.strip().partition(";")[0].endswith(expected), expected
        assert right < 100 and macro > 0, expected


COMMANDS = ("--help", "--version", "info", "man", "completion bash", "generate gpt --max-new-tokens 40",
            "eval gpt text.txt", "see gpt --text The", "see gpt --text The --stats", "bench gpt -p 4 -n 2 -r 1",
            "bench gpt -p 4 -n 0 -r 1 -o json", "classify encoder rows.csv",
            " ".join(["train text.txt --steps 2 --sample-every 1 --overwrite --out more", *SHAPE]))


def test_unwritable(attn):
    """A full disk or a closed output is an error of one line, for every command."""
    trained(attn)
    classifier(attn)
    for command in COMMANDS:
        for output, reason in (("> /dev/full", "No space left on device"), (">&-", "Bad file descriptor")):
            done = through_pipe(attn, f'"$1" {command} {output}')
            assert done.returncode == 1, (command, output, done.returncode)
            last = done.stderr.splitlines()[-1]
            assert re.fullmatch(f"attn: standard output: ({reason}|cannot be written)", last), (command, done.stderr)


def test_closed_pipe(attn):
    """Nobody reads any more: no word, and the status of SIGPIPE, even where the caller ignores that signal."""
    trained(attn)
    classifier(attn)
    attn.file("many.txt", "good film\n" * 1000000)
    training = "train text.txt --steps 1000000 --quiet --sample-every 1 --overwrite --out more"
    for before in ("", "trap '' PIPE; "):
        for command in ("generate gpt --max-new-tokens 1000000000", "classify encoder many.txt",
                        " ".join([training, *SHAPE])):
            line = f'{before}"$1" {command} | head -c 10 > /dev/null; exit ${{PIPESTATUS[0]}}'
            done = through_pipe(attn, line, timeout=60)
            assert done.returncode == 141, (command, done)
            assert not done.stderr or ("train" in command and "stopped after step" in done.stderr), done.stderr
    assert list((attn.folder / "more").glob("step-*")), "a training that is left alone saves"


def stop(process, number, wait=0.0):
    time.sleep(wait)
    process.send_signal(number)
    return process.wait(60)


def test_stopped(attn):
    """128 + n after signal n, and a part is called a part."""
    attn.file("text.txt", TEXT)
    attn.run("train", "text.txt", "--steps", 3, "--out", "gpt", "--context", 64, "--layers", 6, "--batch", 4)
    attn.file("long.txt", TEXT * 400)
    rows = "".join(f"{a}\t{int(b[0] == 'f')}\n" for a, b in ROWS)
    attn.file("rows.tsv", rows)
    attn.file("many.tsv", rows * 5000)
    attn.run("train", "rows.tsv", "--steps", 3, "--out", "encoder", "--layers", 6, "--batch", 4)
    attn.file("lines.txt", "good old film\n" * 1000000)
    for number in (signal.SIGINT, signal.SIGTERM):
        for model, file, unit in (("gpt", "long.txt", "tokens"), ("encoder", "many.tsv", "sentences")):
            process = attn.start("eval", model, file, stdout=subprocess.PIPE)
            assert stop(process, number, 3) == 128 + number, file
            said = process.stdout.read()
            part = re.match(rf"partial: ([\d,]+) of ([\d,]+) {unit}: loss \d", said)
            assert part, (said, process.stderr.read())
            done, total = (int(group.replace(",", "")) for group in part.groups())
            assert 0 < done < total
        for arguments in (("classify", "encoder", "lines.txt"), ("generate", "gpt", "--max-new-tokens", 10**9),
                          ("bench", "gpt", "-p", 64, "-n", 64, "-r", 1000)):
            process = attn.start(*arguments)
            assert stop(process, number, 2) == 128 + number, arguments
        for arguments in (("classify", "encoder"), ("generate", "gpt", "--interactive")):  # while they wait for a line
            process = attn.start(*arguments, stdin=subprocess.PIPE)
            assert stop(process, number, 1.5) == 128 + number, arguments
    # What nohup does: an ignored signal stays ignored.
    process = attn.start("eval", "gpt", "text.txt", stdout=subprocess.PIPE,
                         preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN))
    assert stop(process, signal.SIGHUP, 0.3) == 0
    assert re.match(r"\d+ tokens: ", process.stdout.read())


def hub_bert(folder, layers=4, width=32, more=(), gain=0):
    """A folder with a random BERT of twelve tokens, and more."""
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *"good old film bad new one two three".split(), *more]
    numbers, tensors, data = random.Random(1), {}, b""
    shapes = {"embeddings.word_embeddings.weight": [len(words), width],
              "embeddings.position_embeddings.weight": [32, width],
              "embeddings.token_type_embeddings.weight": [2, width]}
    norms = ["embeddings.LayerNorm"]
    for n in range(layers):
        layer = f"encoder.layer.{n}."
        norms += [layer + "attention.output.LayerNorm", layer + "output.LayerNorm"]
        for part in ("attention.self.query", "attention.self.key", "attention.self.value", "attention.output.dense",
                     "intermediate.dense", "output.dense"):
            shapes[f"{layer}{part}.weight"] = [width, width]
            shapes[f"{layer}{part}.bias"] = [width]
    shapes |= {f"{norm}.{part}": [width] for norm in norms for part in ("weight", "bias")}
    for name, shape in shapes.items():
        mean = gain if name.endswith("LayerNorm.weight") else 0
        bytes_ = array.array("f", (numbers.gauss(mean, 0.3) for _ in range(math.prod(shape)))).tobytes()
        tensors[name] = {"dtype": "F32", "shape": shape, "data_offsets": [len(data), len(data) + len(bytes_)]}
        data += bytes_
    header = json.dumps(tensors).encode()
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + data)
    (folder / "vocab.txt").write_text("\n".join(words) + "\n")
    (folder / "config.json").write_text(json.dumps({
        "model_type": "bert", "architectures": ["BertModel"], "vocab_size": len(words), "hidden_size": width,
        "intermediate_size": width, "num_hidden_layers": layers, "num_attention_heads": 2,
        "max_position_embeddings": 32, "type_vocab_size": 2}))


def test_embedding_stopped(attn):
    """Ctrl-C amid many sentences: their progress was shown, and the vectors that are there are written."""
    hub_bert(attn.folder / "bert")
    lines = [f"good old film {'new ' * (n % 20)}" for n in range(300000)]
    attn.file("lines.txt", "".join(f"{line}\n" for line in lines))
    main_end, terminal = pty.openpty()

    def stopped(*flags):
        process = subprocess.Popen(attn.command("embed", "bert", "lines.txt", *flags), cwd=attn.folder,
                                   env=attn.environment, stdout=subprocess.PIPE, stderr=terminal)
        shown = ""
        while not re.search(r"[1-9][\d,]+ of 300,000 texts, [\d,]+/s, \d+:\d\d left", shown):
            shown += os.read(main_end, 1 << 16).decode()
        assert "0 of 300,000 texts\x1b" in shown and not re.search(r"\D0/s|-\d", shown), repr(shown)
        process.send_signal(signal.SIGINT)
        result = process.communicate(timeout=120)[0]
        assert process.returncode == 130
        while "stopped: " not in shown or not shown.endswith("\n"):
            shown += os.read(main_end, 1 << 16).decode()
        return result, shown

    written, shown = stopped()
    rows = [json.loads(line) for line in written.splitlines()]
    assert 0 < len(rows) < len(lines) and f"attn: stopped: {len(rows):,} of 300,000 texts were written" in shown, shown
    assert len({row["text"] for row in rows}) < 20  # the longest come first, and are as they stood in the file
    attn.file("few.txt", "".join(f"{row['text']}\n" for row in rows[:3]))
    for row, line in zip(rows, attn.run("embed", "bert", "few.txt").stdout.splitlines()):
        assert max(abs(a - b) for a, b in zip(row["embedding"], json.loads(line)["embedding"])) < 1e-4
    (attn.folder / "bert" / "vocab.txt").rename(attn.folder / "vocab.txt")
    assert "12, no tokenizer" in attn.run("info", "bert").stdout
    (attn.folder / "vocab.txt").rename(attn.folder / "bert" / "vocab.txt")
    _, shown = stopped("--out", "all.npy")
    assert "stopped: nothing was written" in shown and not (attn.folder / "all.npy").exists(), shown


def test_lines_as_they_come(attn):
    """A line that comes through a pipe is answered before the next one is there."""
    classifier(attn)
    process = attn.start("classify", "encoder", stdout=subprocess.PIPE, stdin=subprocess.PIPE)
    for text, label in ROWS[:3] + ROWS[-3:]:
        process.stdin.write(text + "\n")
        process.stdin.flush()
        assert select.select([process.stdout], [], [], 60)[0], "no answer"
        assert process.stdout.readline().startswith(label + "\t")
    process.stdin.write("good old film")  # no line break at the end
    process.stdin.close()
    assert process.stdout.read().startswith("fine stuff\t")
    assert process.wait(60) == 0


def test_eval_in_batches(attn):
    """Crops side by side are the crops alone, the short last one too."""
    trained(attn)
    losses = {}
    for batch in (1, 2, 7, 0):
        said = attn.run("eval", "gpt", "text.txt", "--batch", batch).stdout
        tokens, losses[batch] = re.match(r"(\d+) tokens: loss ([\d.]+),", said).groups()
        assert int(tokens) == len(TEXT) - 1 and int(tokens) % 16 != 0
    assert max(map(float, losses.values())) - min(map(float, losses.values())) < 2e-4, losses
    for size in (2, 16, 17, 18, 33):
        attn.file("short.txt", TEXT[:size])
        assert attn.run("eval", "gpt", "short.txt").stdout.startswith(f"{size - 1} tokens: ")


def test_terminal(attn):
    """On a terminal: a line of progress that goes away, and Ctrl-C while the program waits for a line."""
    attn.file("text.txt", TEXT)
    attn.run("train", "text.txt", "--steps", 1, "--out", "gpt", "--layers", 6)
    attn.file("long.txt", TEXT * 10)
    main_end, terminal = pty.openpty()
    process = subprocess.Popen(attn.command("eval", "gpt", "long.txt"), cwd=attn.folder, env=attn.environment,
                               stdin=terminal, stdout=subprocess.PIPE, stderr=terminal)
    result = process.communicate(timeout=120)[0]
    shown = ""
    while select.select([main_end], [], [], 1)[0]:  # the kernel may deliver the last bytes after the process has ended
        shown += os.read(main_end, 1 << 20).decode()
    assert re.search(r"[\d,]+ of [\d,]+ tokens, [\d,]+/s, \d+:\d\d left", shown), repr(shown)
    assert shown.endswith("\r\x1b[K") and b"partial" not in result, repr(shown)

    process = subprocess.Popen(attn.command("generate", "gpt", "--interactive"), cwd=attn.folder, env=attn.environment,
                               stdin=terminal, stdout=subprocess.PIPE, stderr=terminal, start_new_session=True)
    while "> " not in os.read(main_end, 1 << 16).decode():
        pass
    process.send_signal(signal.SIGINT)
    assert process.wait(30) == 130
