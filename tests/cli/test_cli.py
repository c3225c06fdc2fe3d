"""attn as a person uses it: trained, stopped, killed, resumed, misused."""

import json
import os
import random
import re
import shutil
import signal
import subprocess
import time

from attn import SHAPE, TEXT


def test_first_command_of_a_student(attn):
    """The command that a student types, a few epochs of it, and a text from what is typed."""
    done = attn.run("train", "--model", "selfhead", "--embed-dim", 128, "--epochs", 3, "--learning-rate", "1e-4",
                    "--interactive", "--out", "student", stdin="The cat\n\n")
    assert "768 tokens an update (12 sequences x 64 x 1 accumulated)" in done.stderr, done.stderr
    assert re.search(r"selfhead: [\d,]+ parameters", done.stderr)
    assert done.stdout.startswith("The cat")
    assert len(done.stdout) > 200


def test_every_command(attn):
    attn.file("text.txt", TEXT)
    attn.run("train", "text.txt", "--steps", 60, "--eval-every", 30, "--out", "gpt", *SHAPE)
    said = attn.run("generate", "gpt", "--prompt", "The cat", "--max-new-tokens", 40, "--seed", 3, "--stats")
    assert said.stdout.startswith("The cat") and "tokens/s" in said.stderr
    for flags in ((), ("--no-cache",)):
        again = attn.run("generate", "gpt", "--prompt", "The cat", "--max-new-tokens", 40, "--seed", 3, *flags)
        assert again.stdout == said.stdout
    stopped = attn.run("generate", "gpt", "--prompt", "The cat", "--max-new-tokens", 400, "--seed", 3, "--stop",
                       " ").stdout
    assert " " not in stopped[len("The cat"):]
    assert "loss" in attn.run("eval", "gpt", "text.txt").stdout
    assert "FLOP a token" in attn.run("info", "gpt").stdout
    seen = attn.run("see", "gpt", "--text", "The cat sat", "--png", "a.png", "--html", "a.html", "--plain")
    assert "layer 0, head 0" in seen.stdout
    assert (attn.folder / "a.png").read_bytes().startswith(b"\x89PNG")
    page = (attn.folder / "a.html").read_text()
    assert "Content-Security-Policy" in page and "http" not in page.replace("http-equiv", "")
    seen = attn.run("see", "gpt", "--text", "The cat", "--layer", "1,0", "--head", 1, "--plain", "--log").stdout
    titles = [line.partition(":")[0] for line in seen.splitlines() if line.startswith("layer")]
    assert titles == ["layer 1, head 1", "layer 0, head 1"]
    page = attn.run("see", "gpt", "--text", "The cat", "--layer", 1, "--head", 0, "--html", "-").stdout
    drawn = json.loads(page.partition('id="data">')[2].partition("</script>")[0])["layers"]
    assert [(layer["index"], [head["name"] for head in layer["heads"]]) for layer in drawn] == [(1, ["0"])]
    rows = attn.run("bench", "gpt", "-p", 8, "-n", 4, "-r", 2, "-o", "json").stdout
    assert [row["test"] for row in json.loads(rows)] == ["pp8", "tg4"]

    rows = [f"{a} {b} film\t{int(a == 'good')}" for a in ("good", "bad") for b in ("old", "new", "long", "short")] * 10
    attn.file("rows.tsv", "\n".join(rows) + "\n")
    attn.run("train", "rows.tsv", "--model", "encoder", "--steps", 80, "--out", "encoder", *SHAPE)
    classes = attn.run("classify", "encoder", stdin="good old film\nbad new film\n").stdout.splitlines()
    assert [line.split("\t")[0] for line in classes] == ["1", "0"], classes
    line = json.loads(attn.run("classify", "encoder", "--json", stdin="good film\n").stdout)
    assert abs(sum(line["probabilities"].values()) - 1) < 1e-6 and list(line["probabilities"]) == ["0", "1"]
    assert "100.00 % right" in attn.run("eval", "encoder", "rows.tsv").stdout


def test_context_beyond_training(attn):
    """--context: tokens that the model sees at once; more than in training wherever positions are not learned."""
    attn.file("text.txt", TEXT)
    beginnings = ["The cat sat on the rug, and the tree", "looked at the dog.\nThe fox and the tree"]
    for positions in ("learned", "rope", "alibi"):
        attn.run("train", "text.txt", "--steps", 200, "--learning-rate", 0.02, "--out", positions, "--positions",
                 positions, *SHAPE)

        def continued(beginning, *flags):
            said = attn.run("generate", positions, "--prompt", beginning, "--max-new-tokens", 300, "--seed", 5,
                            *flags).stdout
            assert said.startswith(beginning) and len(said) == len(beginning) + 300 + 1, (positions, said)
            return said[len(beginning):]

        # A text that outgrows its context of 16 keeps 8 tokens, which here are the same.
        short = [continued(beginning) for beginning in beginnings]
        assert short[0] == short[1], (positions, "what is before the context is seen")
        for context in (0, 16):
            assert continued(beginnings[0], "--context", context) == short[0], (positions, context)
        single = [continued(beginning, "--context", 1) for beginning in ("The cat", "and that")]
        assert single[0] == single[1] != continued("The cat"), (positions, "more than one token is seen")
        if positions == "learned":
            done = attn.run("generate", positions, "--prompt", "The", "--context", 17, status=1)
            assert "context is 17, but the model has learned 16 positions" in done.stderr, done.stderr
            assert done.stderr.count("\n") == 1, done.stderr
            done = attn.run("eval", "learned", "text.txt", "--context", 17, status=2)
            assert "--context is 17, but the model has learned 16 positions" in done.stderr, done.stderr
            continue
        long = [continued(beginning, "--context", 512) for beginning in beginnings]
        assert len({*long, short[0]}) == 3, (positions, "a longer context is not seen")
        # Whatever is not outgrown gives the same text, with a cache and without.
        for flags in (("--context", 340), ("--context", 512, "--no-cache")):
            assert continued(beginnings[0], *flags) == long[0], (positions, flags)
        own, same, longer, windows, shorter = (
            float(re.search(r"loss ([\d.]+)", attn.run("eval", positions, "text.txt", *flags).stdout)[1]) for flags in
            ((), ("--context", 16), ("--context", 200), ("--context", 200, "--stride", 200), ("--context", 2)))
        assert abs(own - same) < 2e-4 and abs(longer - windows) < 2e-4, (positions, own, same, longer, windows)
        assert min(abs(own - longer), shorter - own) > 1e-3, (positions, own, longer, shorter)
    for wrong in (-1, "long"):
        done = attn.run("generate", "rope", "--context", wrong, status=2)
        assert "--context: must be a whole number from 0" in done.stderr, done.stderr


def test_streaming(attn):
    """--streaming: texts of any length, in whatever positions; what is evicted is forgotten."""
    attn.file("text.txt", TEXT)
    for positions in ("learned", "rope"):
        attn.run("train", "text.txt", "--steps", 30, "--out", positions, "--positions", positions, *SHAPE)

        def continued(beginning, *flags, count=100):
            said = attn.run("generate", positions, "--prompt", beginning, "--max-new-tokens", count, "--temperature", 0,
                            *flags).stdout
            return said[len(beginning):-1]

        assert len(continued("The cat", "--streaming", "2,9")) == 100, positions
        assert continued("The", "--streaming", "2,14", count=12) == continued("The", count=12), positions
    for wrong, status, message in (
            ("4", 2, "--streaming"), ("4,x", 2, "--streaming: must be a whole number"),
            ("4,0", 2, "--streaming keeps a window of 0 tokens, must be at least 1"), ("-1,4", 2, "--streaming"),
            ("4,13", 1, "sink tokens and window are 17 tokens, must be at most the context of 16")):
        done = attn.run("generate", "learned", "--prompt", "The", "--streaming", wrong, status=status)
        assert message in done.stderr and done.stderr.count("\n") == 1, (wrong, done.stderr)
    for flags in (("--no-cache",), ("--context", 8)):
        done = attn.run("generate", "rope", "--prompt", "The", "--streaming", "2,9", *flags, status=2)
        assert flags[0] in done.stderr, done.stderr
    done = attn.run("generate", "rope", "--prompt", "The", "--streaming", "2,9", "--record", "x.safetensors", status=1)
    assert "streaming does not support a recorder" in done.stderr, done.stderr


def test_kv_cache_in_8_bits(attn):
    """--kv-cache int8: about the same loss, the same text in a batch and alone, and no recording."""
    attn.file("text.txt", TEXT)
    attn.run("train", "text.txt", "--steps", 60, "--out", "model", *SHAPE)
    exact, rounded = (float(attn.run("eval", "model", "text.txt", *flags).stdout.split("loss ")[1].split(",")[0])
                      for flags in ((), ("--kv-cache", "int8")))
    assert abs(exact - rounded) < 0.01 * exact, (exact, rounded)
    strided = attn.run("eval", "model", "text.txt", "--stride", 8, "--kv-cache", "int8").stdout
    assert float(strided.split("loss ")[1].split(",")[0]) < 1.1 * exact, strided
    said = attn.run("generate", "model", "--prompt", "The", "--temperature", 0, "--max-new-tokens", 30, "--kv-cache",
                    "int8").stdout
    attn.file("prompts.jsonl", '{"prompt": "The"}\n{"prompt": "The c"}\n')
    batch = attn.run("generate", "model", "--batch", "prompts.jsonl", "--temperature", 0, "--max-new-tokens", 30,
                     "--kv-cache", "int8").stdout
    assert json.loads(batch.splitlines()[0])["text"] in said, (batch, said)
    attn.run("train", "text.txt", "--steps", 5, "--out", "linear", "--mixer", "retention", *SHAPE)
    done = attn.run("generate", "linear", "--prompt", "The", "--kv-cache", "int8", status=1)
    assert "no layer of the model has keys and values" in done.stderr, done.stderr
    attn.file("rows.tsv", "".join(f"{TEXT[n:n + 9].split(chr(10))[0]}\t{n % 2}\n" for n in range(30)))
    attn.run("train", "rows.tsv", "--steps", 3, "--out", "classes", *SHAPE)
    for flag, value in (("--kv-cache", "int8"), ("--context", 8), ("--stride", 4)):
        done = attn.run("eval", "classes", "rows.tsv", flag, value, status=2)
        assert f"{flag} is for models that continue texts; classes does not" in done.stderr, done.stderr
    done = attn.run("eval", "model", "text.txt", "--stride", 4, "--batch", 2, status=2)
    assert "--batch excludes --stride" in done.stderr, done.stderr
    done = attn.run("generate", "model", "--prompt", "The", "--kv-cache", "int4", status=2)
    assert "--kv-cache" in done.stderr and "exact, int8" in done.stderr, done.stderr
    done = attn.run("generate", "model", "--prompt", "The", "--kv-cache", "int8", "--record", "x.safetensors", status=1)
    assert "a recorder of self-attention needs the exact cache_storage" in done.stderr, done.stderr
    done = attn.run("generate", "model", "--prompt", "The", "--kv-cache", "int8", "--no-cache", status=1)
    assert "cache_storage needs the cache" in done.stderr, done.stderr


def train_arguments(out, *more):
    return ("train", "text.txt", "--out", out, "--steps", 40, "--save-every", 3, "--eval-every", 10, "--accumulation",
            2, *SHAPE, *more)


def same_training(attn, out, whole):
    assert attn.losses(out) == attn.losses(whole)
    assert attn.last_checkpoint(out, 40) == attn.last_checkpoint(whole, 40)


def test_signals(attn):
    """SIGTERM, SIGINT and SIGHUP finish the step and save; what is resumed is the unbroken run, bit for bit."""
    attn.file("text.txt", TEXT)
    attn.run(*train_arguments("whole"))
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        out = f"out{int(number)}"
        process = attn.start(*train_arguments(out))
        log = attn.folder / out / "log.jsonl"
        while not (log.exists() and len(log.read_text().splitlines()) > 5):
            assert process.poll() is None, process.stderr.read()
            time.sleep(0.002)
        process.send_signal(number)
        assert process.wait(30) == 128 + number
        assert "--resume" in process.stderr.read()
        assert max(attn.losses(out)) < 40, "it was over before the signal came"
        attn.run("train", "--resume", "--out", out)
        same_training(attn, out, "whole")


def test_float16(attn):
    """Overflows are reported, the scale resumes bit for bit, and every command computes in float16."""
    attn.file("text.txt", TEXT)
    half = ("--precision", "float16")
    scaling = ("--loss-scale", 2 ** 24, "--scale-interval", 5)
    said = attn.run(*train_arguments("whole", *half, *scaling)).stderr
    rows = [json.loads(line) for line in (attn.folder / "whole/log.jsonl").read_text().splitlines()]
    rows = [row for row in rows if "loss_scale" in row]
    assert rows[0]["loss_scale"] == 2 ** 24 and rows[0]["skipped"] and rows[0]["gradient_norm"] is None
    for row, following in zip(rows, rows[1:]):
        if row["skipped"]:
            assert following["loss_scale"] == row["loss_scale"] / 2
    assert any(following["loss_scale"] == 2 * row["loss_scale"] for row, following in zip(rows, rows[1:]))
    assert f"loss scale {rows[-1]['loss_scale']:.0f}  {sum(row['skipped'] for row in rows)} skipped" in said, said

    out = "broken"
    process = attn.start(*train_arguments(out, *half, *scaling))
    log = attn.folder / out / "log.jsonl"
    while not (log.exists() and len(log.read_text().splitlines()) > 5):
        assert process.poll() is None, process.stderr.read()
        time.sleep(0.002)
    process.send_signal(signal.SIGTERM)
    assert process.wait(30) == 128 + signal.SIGTERM
    attn.run("train", "--resume", "--out", out)
    same_training(attn, out, "whole")

    assert "The" in attn.run("generate", "whole", "--prompt", "The", "--max-new-tokens", 5, *half).stdout
    assert "loss" in attn.run("eval", "whole", "text.txt", *half).stdout
    assert "layer 0" in attn.run("see", "whole", "--text", "The cat", "--plain", *half).stdout
    assert "float16" in attn.run("bench", "whole", "-p", 8, "-n", 4, "-r", 2, *half).stdout
    attn.run("train", "text.txt", "--out", "off", "--steps", 2, *SHAPE, *half, "--loss-scaling", "off")
    assert '"loss_scale":1.0' in (attn.folder / "off/log.jsonl").read_text()


def test_killed_training_resumes(attn):
    """kill -9 at random moments: it always resumes, and what comes out is the unbroken run."""
    attn.file("text.txt", TEXT)
    started = time.monotonic()
    attn.run(*train_arguments("whole"))
    duration = time.monotonic() - started
    moments = random.Random(int(os.environ.get("ATTN_SEED", "1")))
    kills, wanted, round_ = 0, 30 if os.environ.get("ATTN_EXHAUSTIVE") else 3, 0
    while kills < wanted:
        out = f"killed{round_}"
        round_ += 1
        finished = False
        while not finished:
            resume = any((attn.folder / out).glob("step-*.safetensors"))
            arguments = ("train", "--resume", "--out", out) if resume else train_arguments(out, "--overwrite")
            process = attn.start(*arguments)
            try:
                status = process.wait(moments.uniform(0, duration) if kills < wanted else 60)
                assert status == 0, process.stderr.read()
                finished = True
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
                kills += 1
        same_training(attn, out, "whole")
    print(f"  {kills} kills, {round_} trainings", end="")


def test_damaged_checkpoints(attn):
    attn.file("text.txt", TEXT)
    attn.run(*train_arguments("out", "--keep-every", 30))
    path = attn.folder / "out" / "step-40.safetensors"
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 4
    path.write_bytes(content)
    said = attn.run("train", "--resume", "--out", "out").stderr
    assert "damaged" in said and "step-40" in said and "instead" in said, said
    attn.run(*train_arguments("whole"))
    same_training(attn, "out", "whole")


def test_full_disk(attn):
    """A file system of one megabyte: every save fails, the old files stay, one line says why."""
    disk = attn.folder / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", disk], capture_output=True).returncode:
        print("  (no tmpfs may be mounted here: not tested)", end="")
        return
    try:
        attn.file("text.txt", TEXT)
        failed = attn.run("train", "text.txt", "--out", "disk/model", "--steps", 6, "--save-every", 2, "--embed-dim",
                          128, "--context", 16, status=1)
        assert "No space left" in failed.stderr and "the training goes on" in failed.stderr, failed.stderr
        assert not list((disk / "model").glob("*tmp*")), "a temporary file was left"
        assert not list((disk / "model").glob("step-*"))
    finally:
        subprocess.run(["umount", disk], check=True)


def test_bad_input(attn):
    attn.file("text.txt", TEXT)
    attn.file("short.txt", "abc")
    attn.file("empty.txt", "")
    attn.file("latin.txt", "caf\xe9".encode("latin-1") * 100)
    attn.file("rows.tsv", "no tab here\n")
    attn.file("bad.json", '{"layers": "six", "colour": 1}')
    attn.run("train", "text.txt", "--steps", 2, "--out", "gpt", *SHAPE)
    cases = [
        (("train", "nothing.txt", "--out", "x"), 1, "nothing.txt"),
        (("train", ".", "--out", "x"), 1, "."),
        (("train", "empty.txt", "--out", "x"), 1, "empty"),
        (("train", "short.txt", "--out", "x"), 1, "too short"),
        (("train", "latin.txt", "--out", "x"), 1, "byte 3"),
        (("train", "rows.tsv", "--out", "x"), 1, "line 1"),
        (("train", "text.txt", "--model", "mamba", "--out", "x"), 2, "selfhead, encoder, gpt, llama"),
        (("train", "text.txt", "--layers", "six", "--out", "x"), 2, "--layers: must be a whole number from 1 to 4096"),
        (("train", "text.txt", "--config", "bad.json", "--out", "x"), 1, "colour"),
        (("train", "text.txt", "--heads", 3, "--out", "x"), 2, "must divide embed_dim"),
        (("train", "text.txt", "--learning-rate", -1, "--out", "x"), 2, "--learning-rate: must be a number in (0"),
        (("train", "text.txt", "--out", "gpt"), 2, "--resume"),
        (("train", "--resume", "--out", "x"), 2, "no checkpoint"),
        (("train", "text.txt", "--precision", "int4", "--out", "x"), 2, "one of float32, bfloat16, float16"),
        (("train", "text.txt", "--loss-scaling", "maybe", "--out", "x"), 2, "maybe"),
        (("train", "text.txt", "--scale-growth", 1, "--out", "x"), 2, "--scale-growth"),
        (("train", "text.txt", "--nonsense", "--out", "x"), 2, "nonsense"),
        ((), 2, "subcommand"),
        (("generate", "nowhere"), 1, "nowhere: there is no such file or folder"),
        (("generate", "gpt", "--prompt", "\u00e9"), 1, "must have only the"),
        (("generate", "gpt", "--temperature", -1, "--prompt", "The"), 2, "--temperature"),
        (("generate", "gpt", "--top-p", 0, "--prompt", "The"), 2, "--top-p: must be a number in (0, 1], not '0'"),
        (("classify", "gpt"), 2, "does not classify"),
        (("eval", "gpt", "nothing.txt"), 1, "nothing.txt"),
        (("eval", "gpt", "latin.txt"), 1, "latin.txt: the text: not UTF-8 at byte 3"),
        (("eval", "gpt", "latin.txt", "--stride", 2), 1, "latin.txt: the text: not UTF-8 at byte 3"),
        (("see", "gpt", "--text", "The cat sat on the mat and more"), 1, "context is 16"),
        (("see", "gpt", "--text", "The", "--head", 9), 2, "the head is 9, must be from 0 to 1"),
        (("see", "gpt", "--text", "The", "--layer", "1,2"), 2, "the layer is 2, must be from 0 to 1"),
        (("see", "gpt", "--text", "The", "--layer", "1,1"), 2, "layer 1 is given twice"),
        (("see", "gpt", "--text", "The", "--png", "-", "--html", "-"), 2, "only one of --png"),
        (("see", "gpt", "--text", "The", "--html", "nowhere/a.html"), 1, "nowhere/a.html"),
        (("see", "gpt", "--text", ""), 2, "empty"),
    ]
    for arguments, status, message in cases:
        done = attn.run(*arguments, status=status)
        lines = [line for line in done.stderr.splitlines() if line]
        assert message in done.stderr, (arguments, done.stderr)
        assert len(lines) == 1, (arguments, done.stderr)
        assert not done.stdout, (arguments, done.stdout)
    assert not (attn.folder / "x").exists() or not list((attn.folder / "x").iterdir())

    for name, damage in (("config.json", b"{"), ("tokenizer.json", b"[1]"), ("config.json", None)):
        shutil.copytree(attn.folder / "gpt", attn.folder / "broken")
        if damage is None:
            (attn.folder / "broken" / name).unlink()
        else:
            (attn.folder / "broken" / name).write_bytes(damage)
        done = attn.run("generate", "broken", "--prompt", "The", status=1)
        assert name in done.stderr, done.stderr
        shutil.rmtree(attn.folder / "broken")

    settings = attn.folder / "gpt" / "training.json"
    whole = settings.read_text()
    for damaged, message in ((whole.replace('"batch":', '"batch": 1, "batch":'), "twice"),
                             (whole.replace('"steps": ', '"steps": 1e'), "steps"), (whole[:-9], "not JSON"),
                             (whole.replace('"steps": ', '"steps": 9999999999999999999'), "steps")):
        assert damaged != whole
        settings.write_text(damaged)
        done = attn.run("train", "--resume", "--out", "gpt", status=1)
        assert "training.json" in done.stderr and message in done.stderr, done.stderr


def test_checkpoint_of_another_model(attn):
    """A directory whose checkpoint belongs to another model."""
    attn.file("text.txt", TEXT)
    attn.run("train", "text.txt", "--steps", 2, "--out", "gpt", *SHAPE)
    config = json.loads((attn.folder / "gpt" / "config.json").read_text())
    config["embed_dim"] = 32
    (attn.folder / "gpt" / "config.json").write_text(json.dumps(config))
    done = attn.run("generate", "gpt", "--prompt", "The", status=1)
    assert "tokens.weight" in done.stderr and "[" in done.stderr, done.stderr
