"""attn train, info and bench where it matters: whose files are replaced, what fits in memory, how a training goes on,
what is shown meanwhile."""

import fcntl
import json
import os
import pty
import random
import re
import resource
import signal
import struct
import subprocess
import termios
import time

from attn import SHAPE, TEXT

MODEL = {"config.json": '{"model_type": "llama"}', "tokenizer.json": "{}", "model.safetensors": "weights",
         "log.jsonl": "mine", "step-by-step.md": "mine", "step-9.safetensors": "mine"}


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


def one_line(done):
    lines = done.stderr.splitlines()
    assert len(lines) == 1 and lines[0].startswith("attn: "), done.stderr
    return lines[0]


def test_foreign_folder(attn):
    """A folder that holds somebody else's model is left as it is, to the byte."""
    attn.file("text.txt", TEXT)
    folder = attn.folder / "llama"
    folder.mkdir()
    for name, content in MODEL.items():
        (folder / name).write_text(content)
    for flags in ((), ("--overwrite",)) * 2:
        before = contents(folder)
        said = one_line(attn.run("train", "text.txt", "--out", "llama", "--steps", 2, *flags, *SHAPE, status=2))
        assert "llama is not empty" in said and "config.json" in said and "--out" in said, said
        assert contents(folder) == before
        (folder / "step-9.safetensors").unlink(missing_ok=True)
    assert "no checkpoint" in one_line(attn.run("train", "--resume", "--out", "gone", status=2))
    assert "is a file" in one_line(attn.run("train", "text.txt", "--out", "text.txt", *SHAPE, status=2))
    assert "is not empty" in one_line(attn.run("train", "text.txt", "--out", ".", *SHAPE, status=2))
    (attn.folder / "nowhere").symlink_to("nothing")
    assert "symbolic link" in one_line(attn.run("train", "text.txt", "--out", "nowhere", *SHAPE, status=2))
    assert "/proc/model" in one_line(attn.run("train", "text.txt", "--out", "/proc/model", *SHAPE, status=1))
    (attn.folder / "empty").mkdir()
    (attn.folder / "link").symlink_to("empty")
    attn.run("train", "text.txt", "--out", "link", "--steps", 2, *SHAPE)
    assert (attn.folder / "empty" / "step-2.safetensors").exists()


def test_own_folder(attn):
    """--overwrite replaces what the training wrote, and not before it is known that the new one can begin."""
    attn.file("text.txt", TEXT)
    attn.file("short.txt", "abc")
    train = ("train", "text.txt", "--out", "out", *SHAPE)
    attn.run(*train, "--steps", 8, "--save-every", 2)
    folder = attn.folder / "out"
    for name in ("step-by-step.md", "step-9.safetensors", "notes.txt"):
        (folder / name).write_text("mine")
    before = contents(folder)
    assert "--overwrite" in one_line(attn.run(*train, status=2))
    attn.run("train", "short.txt", "--out", "out", "--overwrite", *SHAPE, status=1)
    attn.run(*train, "--overwrite", "--kv-heads", 3, status=2)
    attn.run(*train, "--overwrite", "--batch", 10**6, "--context", 64, status=2)
    assert contents(folder) == before
    attn.run(*train, "--steps", 9, "--save-every", 3, "--overwrite")
    after = contents(folder)
    mine = {name for name, content in after.items() if content == b"mine"}
    assert mine == {"step-by-step.md", "step-9.safetensors", "notes.txt"}, after.keys()
    assert "step-8.safetensors" not in after and "step-6.safetensors" in after
    assert len(attn.losses("out")) == 9, "the old log is gone"
    assert attn.run("generate", "out", "--prompt", "The", "--max-new-tokens", 3, "--checkpoint", "last").stdout


def test_two_in_one_folder(attn):
    """A second training, or a pruning, is refused while the first one writes, which goes on and can be resumed."""
    attn.file("text.txt", TEXT)
    train = ("train", "text.txt", *SHAPE)
    attn.run(*train, "--out", "alone", "--steps", 3)
    first = attn.start(*train, "--out", "both", "--steps", 100000, "--eval-every", 0)
    while not (attn.folder / "both" / "log.jsonl").exists():
        assert first.poll() is None
        time.sleep(0.05)
    seen = contents(attn.folder / "both")
    for again in ((*train, "--out", "both"), (*train, "--out", "both", "--overwrite"),
                  ("prune", "alone", "--heads", 1, "--out", "both", "--overwrite")):
        said = one_line(attn.run(*again, status=1))
        assert "both: another program is writing into this folder" in said, said
    assert seen["config.json"] == (attn.folder / "both" / "config.json").read_bytes()
    first.send_signal(signal.SIGINT)
    assert first.wait(120) == 130
    steps = len(attn.losses("both"))
    attn.run("train", "--resume", "--out", "both", "--steps", steps + 1)
    assert len(attn.losses("both")) == steps + 1


def test_crash_at_begin(attn):
    """kill -9 while the directory is begun: the same command works afterwards, without --overwrite."""
    attn.file("text.txt", TEXT)
    train = ("train", "text.txt", "--steps", 3, *SHAPE)
    started = time.monotonic()
    attn.run(*train, "--out", "whole")
    duration = time.monotonic() - started
    moments = random.Random(5)
    for number in range(6):
        out = f"out{number}"
        kills = 0
        while not (attn.folder / out / "step-3.safetensors").exists():
            process = attn.start(*train, "--out", out)
            try:  # on a busy machine each would be killed: after some it may end
                limit = moments.uniform(0, 1.2 * duration) if kills < 8 else 120
                assert process.wait(limit) == 0, process.stderr.read()
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
                kills += 1
        assert attn.last_checkpoint(out, 3) == attn.last_checkpoint("whole", 3)


def test_memory(attn):
    attn.file("text.txt", TEXT * 20)
    begun = time.monotonic()
    said = one_line(attn.run("train", "text.txt", "--batch", 10**6, "--out", "out", *SHAPE[:-4], status=2))
    assert time.monotonic() - begun < 60
    numbers = re.search(r"needs about ([\d.]+ [GTP]B): .*; there are ([\d.]+ [MG]B)\. It fits with --batch (\d+)", said)
    assert numbers and "--force" in said and "--recompute" in said, said
    assert not (attn.folder / "out").exists()
    huge = ("--embed-dim", 65536, "--layers", 4096, "--heads", 4096)
    assert "B. Not even --batch 1" in one_line(attn.run("train", "text.txt", "--out", "out", *huge, status=2))
    wide = ("--context", 16777216, "--positions", "sinusoidal")
    assert "too short" in one_line(attn.run("train", "text.txt", "--out", "out", *wide, status=1))
    assert "the weights need" in one_line(attn.run("bench", *huge, status=2))
    attn.run("train", "text.txt", "--out", "out", "--steps", 2, "--force", *SHAPE)
    assert "memory: about" in attn.run("train", "text.txt", "--out", "two", "--steps", 2, *SHAPE).stderr


def test_info_needs_no_memory_of_the_model(attn):
    """Of any size at once and without its memory."""
    limits = (2 << 30, 2 << 30)
    llama = "--model llama --embed-dim 4096 --layers 32 --heads 32 --hidden-dim 11008 --vocab-size 32000 --context 2048"
    huge = "--model gpt --embed-dim 65536 --layers 4096 --heads 4096 --hidden-dim 1048576 --context 16777216"
    for arguments, total in ((llama + " --tie-embeddings false", "6,738,415,616"),
                             (huge + " --positions sinusoidal", "633,325,425,393,664"),
                             (huge, "634,424,937,021,440")):
        done = subprocess.run(attn.command("info", *arguments.split()), text=True, capture_output=True, timeout=60,
                              preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_DATA, limits))
        assert done.returncode == 0, done.stderr
        assert re.search(rf"parameters +{total}\n", done.stdout), done.stdout
        for part in ("embedding", "attention", "feed-forward", "norms", "head", "FLOP a token", "weights", "cache",
                     "training, float32", "training, bfloat16"):
            assert re.search(rf"^ *{part} +\S", done.stdout, re.M), (part, done.stdout)
    def gigabytes(*arguments):
        said = attn.run("info", *llama.split(), *arguments).stdout
        return float(re.search(r"with --recompute +([0-9.]+) GB", said)[1]), said

    alone, said = gigabytes()
    assert "ranks" not in said
    shared, said = gigabytes("--data-parallel", 2, "--sequence-parallel", 2, "--tensor-parallel", 4)
    refused = attn.run("info", *llama.split(), "--tensor-parallel", 64, status=1).stderr
    assert "64 ranks cannot share the 32 heads" in refused
    by_ring, at_once, unknown = (gigabytes("--sequence-parallel", 16, "--sequence-schedule", name)[0]
                                 for name in ("ring", "gather", "auto"))
    assert by_ring < at_once == unknown
    done = attn.run("info", *llama.split(), "--sequence-parallel", 4, "--sequence-schedule", "heads:3", status=1)
    assert "groups of 3 ranks, must divide the 4 ranks" in done.stderr and not done.stdout
    refused = attn.run("info", "--model", "encoder", "--sequence-parallel", 2, status=1).stderr
    assert "ranks share the sequences of models that predict tokens" in refused
    assert "each of 16 ranks" in said and shared < alone / 4, (alone, shared)
    attn.file("text.txt", TEXT)
    attn.run("train", "text.txt", "--steps", 2, "--out", "gpt", *SHAPE)
    said = attn.run("info", "gpt").stdout
    assert "step 2" in said and "blocks.*.attention.qkv.weight" in said, said
    (attn.folder / "gpt" / "step-2.safetensors").unlink()
    assert "no checkpoint" in attn.run("info", "gpt").stdout


def test_no_row_is_above_the_peak(attn):
    """No row is above the machine's own peak: a head of 50,257 tokens counts where it is computed."""
    for precision in ("float32", "bfloat16"):
        done = attn.run("bench", "--model", "gpt", "--embed-dim", 256, "--layers", 2, "--vocab-size", 50257, "-p", 256,
                        "-n", 8, "--train", 64, "--batch", 4, "-r", 3, "--precision", precision, "-o", "json")
        rows = json.loads(done.stdout)
        assert [row["test"] for row in rows] == ["pp256", "tg8", "train 4 x 64", "train 4 x 64, recomputed"]
        for row in rows:
            assert 0 < row["peak_share"] < 1.15, row


def test_stopped_bench(attn):
    """A signal ends a long measurement with its status; what was measured is printed and called a part."""
    for seconds in (3, 10, 30):  # a busy machine has measured nothing after the first of them
        process = subprocess.Popen(
            attn.command("bench", "--model", "gpt", "-p", 16, "-n", 0, "-r", 1000, "--train", 512),
            text=True, env=attn.environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        time.sleep(seconds)
        process.send_signal(signal.SIGINT)
        out, said = process.communicate(timeout=60)
        assert process.returncode == 130, (process.returncode, said)
        if "is a part" in said and "pp16" in out:
            return
    raise AssertionError((out, said))


def test_more_steps(attn):
    """More steps go on where the cosine had ended; --decay-steps stretches it."""
    attn.file("text.txt", TEXT)
    train = ("train", "text.txt", "--eval-every", 10, "--warmup", 4, *SHAPE)
    attn.run(*train, "--out", "whole", "--steps", 60, "--decay-steps", 40)
    attn.run(*train, "--out", "out", "--steps", 40)
    said = attn.run("train", "--resume", "--out", "out", "--steps", 60).stderr
    assert "at update 40 and stays there" in said, said
    assert attn.losses("out") == attn.losses("whole")
    assert attn.last_checkpoint("out", 60) == attn.last_checkpoint("whole", 60)
    again = attn.run("train", "--resume", "--out", "out").stderr
    assert "all 60 updates are done" in again, again
    said = attn.run("train", "--resume", "--out", "out", "--steps", 80, "--decay-steps", 80).stderr
    assert "at update 80\n" in said, said
    rates = {row["step"]: row["learning_rate"]
             for row in map(json.loads, (attn.folder / "out" / "log.jsonl").read_text().splitlines()) if "loss" in row}
    assert rates[60] == 1e-4 and rates[61] > 2e-4 and len(rates) == 80


def test_options_that_may_change(attn):
    """What must stay is named and refused; what may change is taken."""
    attn.file("text.txt", TEXT)
    attn.run("train", "text.txt", "--steps", 4, "--out", "out", *SHAPE)
    before = contents(attn.folder / "out")
    resume = ("train", "--resume", "--out", "out")
    said = one_line(attn.run(*resume, "--embed-dim", 32, "--model", "llama", "--batch", 5, "--seed", 3, status=2))
    for wrong in ("embed_dim is 16 in out/config.json, not 32", 'model is "gpt" in out/config.json, not "llama"',
                  "batch is 4 in out/training.json, not 5", "seed is 1337 in out/training.json, not 3"):
        assert wrong in said, said
    for place in (("--float32-precision", "fast", *resume), (*resume, "--float32-precision", "fast")):
        said = one_line(attn.run(*place, status=2))
        assert 'float32_precision is "full" in out/training.json, not "fast"' in said, said
    attn.file("other.json", '{"layers": 3, "heads": 2}')
    assert "layers is 2" in one_line(attn.run(*resume, "--config", "other.json", status=2))
    attn.run(*resume, "--overwrite", status=2)
    assert contents(attn.folder / "out") == before
    attn.run(*resume, "--embed-dim", 16, "--batch", 4, "--steps", 6, "--save-every", 1, "--eval-every", 3)
    assert max(attn.losses("out")) == 6


def test_resumed_from_another_folder(attn):
    """A training on a relative path is resumed from another folder."""
    attn.file("text.txt", TEXT)
    rows = [f"{a} film\t{int(a == 'good')}" for a in ("good", "bad")] * 20
    attn.file("rows.tsv", "\n".join(rows) + "\n")
    attn.file("held.tsv", "\n".join(rows[:4]) + "\n")
    attn.run("train", "text.txt", "--steps", 2, "--out", "out", *SHAPE)
    attn.run("train", "rows.tsv", "--validation", "held.tsv", "--steps", 2, "--out", "sentences", *SHAPE)
    folder, attn.folder = attn.folder, attn.folder / "deep"
    attn.folder.mkdir()
    for out in ("out", "sentences"):
        attn.run("train", "--resume", "--out", f"../{out}", "--steps", 4)
        assert (folder / out / "step-4.safetensors").exists()


class Terminal:
    """attn in a terminal of so many columns."""

    def __init__(self, attn, columns, *arguments):
        self.own, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 20, columns, 0, 0))
        self.process = subprocess.Popen(attn.command(*arguments), cwd=attn.folder, env=attn.environment,
                                        stdout=subprocess.DEVNULL, stderr=theirs)
        os.close(theirs)
        self.text = ""

    def read(self, until=None):
        """To the end, or until the text has been seen."""
        while until is None or until not in self.text:
            try:
                piece = os.read(self.own, 4096)
            except OSError:  # the other end is closed
                break
            if not piece:
                break
            self.text += piece.decode(errors="replace")


def test_progress(attn):
    """One line that is rewritten and fits; plain lines elsewhere; a new line before the last words."""
    attn.file("text.txt", TEXT)
    train = ("train", "text.txt", "--steps", 100000, "--eval-every", 100, "--overwrite", *SHAPE, "--out")
    for columns in (200, 30):
        terminal = Terminal(attn, columns, *train, f"out{columns}")
        terminal.read(until="\x1b[K\r")
        time.sleep(0.5)
        terminal.process.send_signal(signal.SIGINT)
        terminal.read()
        assert terminal.process.wait(60) == 130
        shown = re.findall(r"\r(step [^\r\n]*?)\x1b\[K", terminal.text)
        assert len(shown) > 2, terminal.text
        assert all(len(line) < columns for line in shown), shown
        if columns == 200:
            assert re.fullmatch(r"step \d+/100000  loss [\d.]+  [\d,]+ tokens/s  ETA [\d:]+.*", shown[-1]), shown
        assert re.search(r"\n(attn: )?stopped after step \d+;", terminal.text.replace("\r", "")), terminal.text[-400:]
    done = attn.run("train", "text.txt", "--steps", 40, "--eval-every", 20, "--out", "plain", *SHAPE).stderr
    assert "\r" not in done and "\x1b" not in done
    assert len([line for line in done.splitlines() if line.startswith("step ")]) == 2, done


def test_small_disk(attn):
    """Files that may not grow: every save fails with a word, the training ends with 1, nothing half is left."""
    attn.file("text.txt", TEXT)
    for limit in (20000, 0):  # room for the settings but not for a checkpoint; then not even for a longer log
        limit = limit or (attn.folder / "out20000/config.json").stat().st_size + 100
        command = attn.command("train", "text.txt", "--out", f"out{limit}", "--steps", 12, "--save-every", 4, *SHAPE)
        done = subprocess.run(command,
                              cwd=attn.folder, env=attn.environment, text=True, capture_output=True, timeout=120,
                              preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)))
        assert done.returncode == 1, done.stderr
        assert "File too large" in done.stderr and "the training goes on" in done.stderr, done.stderr
        assert done.stderr.count("log.jsonl") <= 1, done.stderr
        assert not [name for name in contents(attn.folder / f"out{limit}") if "tmp" in name or "step" in name]


def test_errors_come_before_training(attn):
    """What is wrong is said before the work, not after it."""
    attn.file("text.txt", TEXT)
    attn.file("empty.txt", "")
    attn.file("rows.tsv", "\n".join(f"{a} film\t{int(a == 'good')}" for a in ("good", "bad") * 20) + "\n")
    for arguments, message in ((("text.txt", "--validation-batches", 0), "validation"),
                               (("empty.txt",), "empty"),
                               (("text.txt", "--validation", "empty.txt"), "empty.txt is empty"),
                               (("text.txt", "--word-dropout", 0.5), "--word-dropout is for sentences"),
                               (("rows.tsv", "--interactive"), "--interactive"),
                               (("rows.tsv", "--sample-every", 1), "--sample-every"),
                               (("text.txt", "--sample-every", 1, "--sample-prompt", "\u00e9"), "must have only")):
        done = subprocess.run(attn.command("train", *arguments, "--out", "out", "--steps", 2, *SHAPE), text=True,
                              cwd=attn.folder, capture_output=True, timeout=60, env=attn.environment)
        assert done.returncode in (1, 2) and message in one_line(done), done.stderr
        assert not (attn.folder / "out").exists()


def test_validation_of_a_text(attn):
    """Another file holds the tokens to validate with; its characters are in the vocabulary."""
    attn.file("text.txt", TEXT)
    attn.file("held.txt", 2 * TEXT + "\u00e9")
    line = f"data: {len(TEXT)} tokens to train on, {2 * len(TEXT) + 1} to validate"
    for arguments in (("text.txt", "--validation", "held.txt", *SHAPE), ("--resume",)):
        done = attn.run("train", *arguments, "--out", "out", "--steps", 2)
        assert line in done.stderr, done.stderr
