"""attn train as ranks of a job of mpirun: the same files for any number of ranks, one error, signals, killed ranks."""

import contextlib
import http.client
import json
import os
import pathlib
import random
import re
import shutil
import signal
import socket
import subprocess
import time

import pytest
from attn import SHAPE, TEXT
from test_chat import talker
from test_serve import ask, metric

LAUNCHER = os.environ.get("ATTN_MPIEXEC", "mpirun")
MANY_RANKS = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
              "OMPI_MCA_rmaps_base_oversubscribe": "1"}
TRAIN = ["train", "text.txt", *SHAPE, "--accumulation", "12", "--warmup", "0"]
KILLS = 50 if os.environ.get("ATTN_EXHAUSTIVE") else 2


@pytest.fixture
def job(attn):
    if shutil.which(LAUNCHER) is None or not (pathlib.Path(attn.program).parent / "attn_mpi.so").exists():
        pytest.skip("attn is built without MPI")
    attn.environment = os.environ | MANY_RANKS
    attn.file("text.txt", TEXT)
    return attn


def command(job, ranks, *arguments, option="--data-parallel"):
    return [LAUNCHER, "-n", str(ranks), *job.command(*arguments, option, ranks)]


def run(job, ranks, *arguments, status=0, option="--data-parallel"):
    done = subprocess.run(command(job, ranks, *arguments, option=option), cwd=job.folder, env=job.environment,
                          text=True, capture_output=True, timeout=120)
    assert done.returncode == status, done.stderr
    return done.stderr


def launch(job, ranks, *arguments, fails=False, stream="stderr"):
    """What the ranks say. Alone without a launcher."""
    launcher = [LAUNCHER, "-n", str(ranks)] if ranks > 1 else []
    done = subprocess.run([*launcher, *job.command(*arguments)], cwd=job.folder, env=job.environment, text=True,
                          capture_output=True, timeout=120)
    assert (done.returncode != 0) == fails, done.stderr
    return getattr(done, stream)


def start(job, ranks, *arguments):
    return subprocess.Popen(command(job, ranks, *arguments), cwd=job.folder, env=job.environment, text=True,
                            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)


def wait_for(job, out, steps, process):
    """Until the log has so many steps."""
    log = job.folder / out / "log.jsonl"
    for _ in range(600):
        if log.exists() and log.read_text().count('"gradient_norm"') >= steps:
            return
        assert process.poll() is None, process.stderr.read()
        time.sleep(0.05)
    raise AssertionError(f"{out} has not done {steps} steps")


def pids_of(launched):
    """The processes that a launcher has started."""
    return [int(pid) for pid in subprocess.run(["pgrep", "-P", str(launched.pid)], text=True, capture_output=True)
            .stdout.split()]


def test_any_number_of_ranks_writes_the_same_files(job):
    said = {}
    for ranks in (1, 2, 3, 4):
        said[ranks] = run(job, ranks, *TRAIN, "--steps", "8", "--eval-every", "4", "--out", f"out{ranks}")
        assert job.last_checkpoint(f"out{ranks}", 8) == job.last_checkpoint("out1", 8), f"{ranks} ranks"
        assert job.losses(f"out{ranks}") == job.losses("out1")
    assert "ranks: 3, which share the batches of an update (4 of 12 each)" in said[3]
    assert said[4].count("saved in out4") == 1, "only one rank writes"
    job.run(*TRAIN, "--steps", "8", "--eval-every", "4", "--out", "alone", "--quiet")
    assert job.losses("alone")[8] == pytest.approx(job.losses("out1")[8], rel=1e-4)


def test_a_labelled_task_and_an_accumulation_by_default(job):
    rows = [f"{'good' if n % 2 else 'bad'} film number {n},{'yes' if n % 2 else 'no'}" for n in range(60)]
    job.file("rows.csv", "text,label\n" + "\n".join(rows) + "\n")
    for ranks in (1, 3):
        run(job, ranks, "train", "rows.csv", "--model", "encoder", *SHAPE, "--tokens", "words", "--steps", "4", "--out",
            f"rows{ranks}", *(["--accumulation", "3"] if ranks == 1 else []))
    assert json.loads((job.folder / "rows3/training.json").read_text())["accumulation"] == 3
    assert job.last_checkpoint("rows3", 4) == job.last_checkpoint("rows1", 4)
    validations = [[row for line in (job.folder / f"rows{ranks}/log.jsonl").read_text().splitlines()
                    if "validation_score" in (row := json.loads(line))] for ranks in (1, 3)]
    assert validations[0] == validations[1]


def test_ranks_that_share_sequences(job):
    text = [*TRAIN[:2], *SHAPE[:-1], "0", "--warmup", "0"]  # without dropout
    job.run(*text, "--steps", "8", "--eval-every", "4", "--quiet", "--out", "alone")
    said = run(job, 3, *text, "--steps", "8", "--eval-every", "4", "--out", "shared", option="--sequence-parallel")
    assert "ranks: 3, which share the tokens of each sequence" in said
    for step, found in job.losses("shared").items():
        assert found == pytest.approx(job.losses("alone")[step], rel=1e-4)
    job.run("train", "--resume", "--steps", "10", "--out", "shared", "--quiet")
    said = run(job, 2, "train", "--resume", "--steps", "12", "--out", "shared", "--sequence-schedule", "heads",
               option="--sequence-parallel")
    assert "(schedule: heads)" in said
    assert max(job.losses("shared")) == 12


def test_any_schedule_of_shared_sequences(job):
    text = [*TRAIN[:2], *SHAPE[:-1], "0", "--warmup", "0", "--steps", "4", "--eval-every", "2"]
    losses = {}
    for schedule in ("ring", "gather", "heads", "auto"):
        said = run(job, 2, *text, "--out", schedule, "--sequence-schedule", schedule, option="--sequence-parallel")
        assert f"(schedule: {schedule})" in said or schedule == "auto", said
        losses[schedule] = job.losses(schedule)
    assert losses["gather"] == losses["heads"] == losses["ring"]  # groups of 2 ranks divide the 2 heads: the same bits
    shown = [launch(job, 2, "eval", "ring", "text.txt", "--sequence-parallel", 2, "--sequence-schedule", schedule,
                    stream="stdout") for schedule in losses]
    assert len({re.search(r"loss (\S+),", line)[1] for line in shown}) == 1, shown


def test_ranks_that_share_layers(job):
    text = [*TRAIN[:2], *SHAPE[:-1], "0", "--warmup", "0", "--accumulation", "2"]  # without dropout
    job.run(*text, "--steps", "8", "--eval-every", "4", "--quiet", "--out", "alone")
    grids = {2: ["--tensor-parallel", "2"], 4: ["--tensor-parallel", "2", "--data-parallel", "2"]}
    for ranks, grid in grids.items():
        out = f"grid{ranks}"
        said = launch(job, ranks, *text, *grid, "--steps", "8", "--eval-every", "4", "--out", out)
        assert f"ranks: {'2 x ' if ranks == 4 else ''}2, which share" in said
        for step, found in job.losses(out).items():
            assert found == pytest.approx(job.losses("alone")[step], rel=1e-4)
    job.run("train", "--resume", "--steps", "10", "--out", "grid4", "--quiet")
    launch(job, 4, "train", "--resume", "--steps", "12", "--out", "grid4", "--sequence-parallel", "2",
           "--tensor-parallel", "2")
    assert max(job.losses("grid4")) == 12


def loss_of(shown):
    return float(re.search(r"loss (\S+),", shown)[1])


def test_adapters_of_shared_layers(job):
    job.run("export", grouped(job), "--to", "hub")
    tune = ["train", "text.txt", "--from", "hub", "--lora-rank", "4", "--lora-targets", "query,value,output,gate,down",
            "--accumulation", "2", "--batch", "2", "--steps", "6", "--eval-every", "3", "--learning-rate", "0.01",
            "--dropout", "0"]
    job.run(*tune, "--quiet", "--out", "alone")
    for ranks, grid in ((2, ["--tensor-parallel", "2"]), (4, ["--data-parallel", "2", "--tensor-parallel", "2"])):
        said = launch(job, ranks, *tune, *grid, "--out", f"tuned{ranks}")
        assert "heads and features of each layer" in said
        for step, found in job.losses(f"tuned{ranks}").items():
            assert found == pytest.approx(job.losses("alone")[step], rel=1e-4)
    job.run("train", "--resume", "--steps", "8", "--out", "tuned4", "--quiet")
    job.run("lora", "save", "tuned2", "--to", "adapter")
    job.run("lora", "merge", "tuned2", "--to", "merged")
    merged = loss_of(job.run("eval", "merged", "text.txt").stdout)
    for options in ([], ["--tensor-parallel", 2]):
        shown = launch(job, 2 if options else 1, "eval", "hub", "--adapter", "adapter", "text.txt", *options,
                       stream="stdout")
        assert loss_of(shown) == pytest.approx(merged, rel=1e-3)


def test_a_batch_of_texts_over_ranks(job):
    model = grouped(job)
    job.file("prompts.jsonl", "".join(json.dumps({"prompt": word, "seed": n, "max_new_tokens": 3 + n}) + "\n"
                                      for n, word in enumerate(["the cat", "a", "sat on the mat", "rug"])))
    options = ["generate", model, "--batch", "prompts.jsonl", "--temperature", "0", "--max-requests", "2"]
    expected = job.run(*options).stdout
    assert launch(job, 2, *options, "--tensor-parallel", 2, stream="stdout") == expected
    launch(job, 3, *options, "--tensor-parallel", 3, "--out", "texts.jsonl")
    assert (job.folder / "texts.jsonl").read_text() == expected


def converse(job, ranks, lines, *arguments, pause=0):
    """The process of a command that reads `lines` from standard input, and what it writes."""
    parallel = ["--tensor-parallel", ranks, "--rank-timeout", 2] if ranks > 1 else []
    launcher = [LAUNCHER, "-n", str(ranks)] if ranks > 1 else []
    process = subprocess.Popen([*launcher, *job.command(*arguments, *parallel)], cwd=job.folder, env=job.environment,
                               stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    process.stdin.write(lines[0])
    process.stdin.flush()
    time.sleep(pause)
    return process, *(stream.decode() for stream in process.communicate(b"".join(lines[1:]), timeout=60))


def test_a_conversation_of_ranks(job):
    """Ranks that share the model's layers answer as one process does, and wait for the user without limit."""
    talker(job)
    chat = ["chat", "hub", "--temperature", 0, "--max-new-tokens", 6, "--stats", "--system", "Be brief."]
    lines = [b"Hi\n", b"/retry\nAnd?\n" + 600 * b"long" + b"\n/save talk.txt\n/nonsense\n/undo\n/undo\nHi\n/quit\nx\n"]
    _, expected, said_by_one = converse(job, 1, lines, *chat)
    talk = (job.folder / "talk.txt").read_text()
    (job.folder / "talk.txt").unlink()
    process, shown, said = converse(job, 2, lines, *chat, pause=5)
    assert process.returncode == 0 and shown == expected, said
    assert (job.folder / "talk.txt").read_text() == talk
    for what in ("attn: ", "tokens/s", "unknown command /nonsense", "a text of 2"):
        assert said.count(what) == said_by_one.count(what) > 0, said
    process, shown, said = converse(job, 2, [b"Hi\n", b"\xff\n"], *chat)
    assert process.returncode == 1 and said.count("attn: ") == 1 and "standard input, line 2" in said
    assert converse(job, 2, [b"Hi\n"], *chat)[1] == converse(job, 1, [b"Hi\n"], *chat)[1]


def test_prompts_of_ranks_line_by_line(job):
    model = grouped(job)
    write = ["generate", model, "--interactive", "--temperature", 0, "--max-new-tokens", 5]
    lines = [b"the cat\n", b"sat on\n\nthe rug\n"]
    for ranks in (2, 3):
        process, shown, said = converse(job, ranks, lines, *write)
        assert process.returncode == 0 and shown == converse(job, 1, lines, *write)[1], said


def test_a_server_of_ranks(job):
    """Its texts, clients that leave, and its end; idle ranks are not taken for ranks that hang."""
    model = grouped(job)
    prompts = ["the cat", "a", "sat on the mat", "rug"]
    expected = [job.run("generate", model, "--prompt", each, "--temperature", 0, "--max-new-tokens", 9).stdout
                for each in prompts]
    served = subprocess.Popen([LAUNCHER, "-n", "2", *job.command("serve", model, "--tensor-parallel", 2, "--port", 0,
                                                                 "--rank-timeout", 4, "--max-requests", 3)],
                              cwd=job.folder, env=job.environment, text=True, stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE)
    try:
        port = int(re.search(r":(\d+)/v1", served.stdout.readline())[1])
        question = {"prompt": prompts, "max_tokens": 9, "temperature": 0, "n": 2}
        texts = [each["text"] for each in ask(port, "/v1/completions", question)[1]["choices"]]
        assert [prompt + text + "\n" for prompt, text in zip(prompts, texts[::2])] == expected
        assert texts[::2] == texts[1::2]
        drawn = [ask(port, "/v1/completions", {"prompt": "a", "seed": seed, "temperature": 2, "max_tokens": 20})
                 [1]["choices"][0]["text"] for seed in (5, 5, 6)]
        assert drawn[0] == drawn[1] != drawn[2]
        for refused in ("a " * 100, ""):  # by rank 0 alone, and by every rank
            assert ask(port, "/v1/completions", {"prompt": refused})[0] == 400
        with socket.create_connection(("127.0.0.1", port)) as leaving:
            body = json.dumps({"prompt": "a", "max_tokens": 60, "stream": True, "temperature": 2})
            leaving.sendall(f"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Length: {len(body)}"
                            f"\r\n\r\n{body}".encode())
            leaving.recv(100)
        time.sleep(6)
        assert served.poll() is None, served.stderr.read()
        assert ask(port, "/v1/completions", question)[1]["choices"][0]["text"] == texts[0]
        assert metric(port, "attn_texts_failed_total") == 1  # the empty prompt
        served.send_signal(signal.SIGUSR1)
        said = served.communicate(timeout=30)[1]
        assert said.count("attn: ") == 0, said
    finally:
        served.kill()


def test_a_server_ends_with_a_rank(job):
    """A rank is killed, or hangs, before a request or after it has begun."""
    model = grouped(job)
    question = {"prompt": "a", "max_tokens": 60, "temperature": 2, "n": 8}
    for sent in (signal.SIGKILL, signal.SIGSTOP):
        served = subprocess.Popen([LAUNCHER, "-n", "3", *job.command("serve", model, "--tensor-parallel", 3, "--port",
                                                                     0, "--rank-timeout", 2)],
                                  cwd=job.folder, env=job.environment, text=True, stdout=subprocess.PIPE,
                                  stderr=subprocess.PIPE)
        port = int(re.search(r":(\d+)/v1", served.stdout.readline())[1])
        os.kill(pids_of(served)[1], sent)
        begun = time.monotonic()
        with contextlib.suppress(OSError, http.client.HTTPException):
            status, answer = ask(port, "/v1/completions", question)
            assert status == 500 and "rank 1 hangs" in answer["error"]["message"]
        said = served.communicate(timeout=30)[1]
        assert time.monotonic() - begun < 20
        assert served.returncode != 0
        if sent == signal.SIGSTOP:
            assert said.count("attn: rank 0: ranks have waited for 2 s, which is the limit: rank 1 hangs") == 1, said


def grouped(job):
    """A model of 8 heads over 4 key/value heads."""
    job.run("tokenizer", "train", "text.txt", "--vocab-size", 300, "--out", "tokens.json")
    job.run("train", "text.txt", "--tokenizer", "tokens.json", "--model", "llama", "--embed-dim", "64", "--heads", "8",
            "--kv-heads", "4", "--layers", "2", "--context", "64", "--steps", "40", "--warmup", "0", "--learning-rate",
            "0.01", "--quiet", "--out", "model")
    return "model"


def test_texts_and_losses_of_ranks_that_share_layers(job):
    model = grouped(job)
    for precision in ([], ["--precision", "int8"], ["--precision", "bfloat16"]):
        write = ["generate", model, "--prompt", "The cat", "--temperature", "0", "--max-new-tokens", "40",
                 *precision]
        alone = job.run(*write).stdout
        for ranks in (2, 3, 8):  # 4 key/value heads
            if precision == ["--precision", "int8"] and ranks == 3:
                continue
            said = launch(job, ranks, *write, "--tensor-parallel", ranks, stream="stdout")
            assert said == alone if not precision else said.startswith("The cat"), f"{ranks} {precision}"
    for ranks, grid in ((3, ["--sequence-parallel", "3"]), (4, ["--sequence-parallel", "2", "--tensor-parallel", "2"])):
        write = ["generate", model, "--file", "text.txt", "--context", "4000", "--temperature", "0", "--max-new-tokens",
                 "20"]
        assert launch(job, ranks, *write, *grid, stream="stdout") == job.run(*write).stdout, grid
    job.run("quantize", model, "--to", "int8", "--out", "model.gguf")
    job.run("quantize", model, "--to", "int8", "--out", "packed")
    for folder in ("model.gguf", "packed"):  # each rank takes its codes and scales
        whole, shared = (float(launch(job, ranks, "eval", folder, "text.txt", *options, stream="stdout")
                               .split("loss ")[1].split(",")[0])
                         for ranks, options in ((1, []), (2, ["--tensor-parallel", "2"])))
        assert shared == pytest.approx(whole, rel=0.02), folder
    losses = {}
    for ranks, options in ((1, []), (2, ["--tensor-parallel", "2"]), (3, ["--sequence-parallel", "3"]),
                           (4, ["--sequence-parallel", "2", "--tensor-parallel", "2"])):
        said = launch(job, ranks, "eval", model, "text.txt", *options, stream="stdout")
        losses[ranks] = float(said.split("loss ")[1].split(",")[0])
    assert all(loss == pytest.approx(losses[1], abs=2e-4) for loss in losses.values()), losses


@pytest.mark.parametrize("ranks, arguments, said", [
    (2, ["generate", "model", "--tensor-parallel", "3"], "--tensor-parallel 3 needs 3 processes, and there are 2"),
    (2, ["generate", "model", "--prompt", "a"], "--tensor-parallel 2 makes them work together"),
    (2, ["generate", "model", "--file", "-", "--tensor-parallel", "2"], "ranks share texts: --record, and - as"),
    (2, ["generate", "model", "--batch", "text.txt", "--sequence-parallel", "2"], "is for one text; --tensor-parallel"),
    (2, ["generate", "model", "--num-beams", "2", "--temperature", "0", "--sequence-parallel", "2"], "without beams"),
    (2, ["eval", "model", "-", "--tensor-parallel", "2"], "ranks cannot share standard input"),
    (2, ["eval", "model", "text.txt", "--sequence-parallel", "2", "--kv-cache", "int8"], "--kv-cache is for ranks"),
    (9, ["generate", "model", "--prompt", "a", "--tensor-parallel", "9"], "9 ranks cannot share the 8 heads"),
    (4, [*TRAIN, "--out", "out", "--data-parallel", "2", "--tensor-parallel", "3"],
     "needs 6 processes, and there are 4"),
    (2, [*TRAIN, "--out", "out", "--sequence-parallel", "2", "--sequence-schedule", "rings"],
     "the name is 'rings', must be ring, gather, heads, or heads:n for groups of n ranks; or auto"),
    (2, [*TRAIN, "--out", "out", "--sequence-parallel", "2", "--sequence-schedule", "heads:3"],
     "the schedule has groups of 3 ranks, must divide the 2 ranks"),
    (2, [*TRAIN, "--out", "out", "--tensor-parallel", "2", "--sample-every", "2"], "--sample-every is for ranks"),
    (2, [*TRAIN, "--out", "out", "--tensor-parallel", "2", "--mixer", "linear"], "with multi-head attention alone"),
])
def test_what_ranks_cannot_share_is_one_message(job, ranks, arguments, said):
    if "model" in arguments:
        grouped(job)
    shown = launch(job, ranks, *arguments, fails=True)
    assert said in shown
    assert len(re.findall("^attn: ", shown, re.MULTILINE)) == 1, shown
    assert not (job.folder / "out").exists()


def test_a_killed_rank_of_a_grid_ends_the_job(job):
    process = subprocess.Popen([LAUNCHER, "-n", "4", *job.command(*TRAIN, "--steps", "100000", "--out", "out",
                                                                  "--data-parallel", "2", "--tensor-parallel", "2")],
                               cwd=job.folder, env=job.environment, text=True, stdout=subprocess.PIPE,
                               stderr=subprocess.PIPE)
    wait_for(job, "out", 3, process)
    os.kill(pids_of(process)[2], signal.SIGKILL)
    killed = time.monotonic()
    process.communicate(timeout=30)
    assert time.monotonic() - killed < 10


@pytest.mark.parametrize("hangs", [0, 2])
def test_a_rank_that_hangs_ends_the_job(job, hangs):
    process = start(job, 3, *TRAIN, "--steps", "100000", "--eval-every", "2", "--out", "out", "--rank-timeout", "5")
    wait_for(job, "out", 5, process)
    os.kill(pids_of(process)[hangs], signal.SIGSTOP)
    stopped = time.monotonic()
    said = process.communicate(timeout=60)[1]
    assert time.monotonic() - stopped < 25
    assert process.returncode != 0
    assert f"ranks have waited for 5 s, which is the limit: rank {hangs} hangs" in said
    assert len(re.findall("^attn: ", said, re.MULTILINE)) == 1, said
    run(job, 2, "train", "--resume", "--out", "out", "--steps", "8", "--decay-steps", "100000", "--force")


def test_models_that_ranks_cannot_share(job):
    for arguments, said in ((["--mixer", "linear"], "models that predict tokens with attention alone"),
                            (["--positions", "relative"], "models that predict tokens with attention alone"),
                            (["--interactive"], "--interactive is for one process")):
        shown = run(job, 2, *TRAIN, "--out", "out", *arguments, option="--sequence-parallel", status=1)
        assert said in shown
        assert len(re.findall("^attn: ", shown, re.MULTILINE)) == 1, shown


def test_another_number_of_ranks_resumes(job):
    run(job, 1, *TRAIN, "--steps", "12", "--eval-every", "4", "--out", "whole")
    run(job, 2, *TRAIN, "--steps", "4", "--decay-steps", "12", "--eval-every", "4", "--out", "out")
    for ranks, steps in ((4, 8), (3, 12)):
        run(job, ranks, "train", "--resume", "--steps", steps, "--decay-steps", "12", "--out", "out")
    assert job.last_checkpoint("out", 12) == job.last_checkpoint("whole", 12)


@pytest.mark.parametrize("ranks, arguments, said", [
    (2, ["--data", "parallel"], "attn train --help"),
    (3, ["--accumulation", "4"], "accumulation is 4, must be a multiple of the ranks that share the batches, 3"),
    (2, ["--interactive"], "--interactive is for one process"),
    (2, ["--validation", "missing.txt"], "missing.txt: there is no such file"),
])
def test_one_rank_says_what_is_wrong(job, ranks, arguments, said):
    shown = subprocess.run(command(job, ranks, "train", "text.txt", *SHAPE, "--out", "out", *arguments), cwd=job.folder,
                           env=job.environment, text=True, capture_output=True, timeout=60)
    assert shown.returncode != 0
    assert said in shown.stderr
    assert len(re.findall("^attn: ", shown.stderr, re.MULTILINE)) == 1, shown.stderr
    assert not (job.folder / "out").exists()


def test_processes_that_do_not_fit(job):
    def error_of(launched, *arguments):
        done = subprocess.run([*launched, *job.command(*TRAIN, "--out", "out", *arguments)], cwd=job.folder,
                              env=job.environment, text=True, capture_output=True, timeout=60)
        assert done.returncode == 2, done.stderr
        assert done.stderr.count("attn: ") == 1, done.stderr
        return done.stderr

    assert "there are 2 processes: --data-parallel 2 makes them work together" in error_of([LAUNCHER, "-n", "2"])
    assert "--data-parallel 3 needs 3 processes, and there are 2" in error_of([LAUNCHER, "-n", "2"],
                                                                                     "--data-parallel", "3")
    assert "mpirun -n 2 attn train" in error_of([], "--data-parallel", "2")
    assert "--rank-timeout is for ranks" in error_of([], "--rank-timeout", "5")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGUSR1])
def test_a_signal_to_the_launcher_saves(job, number):
    run(job, 1, *TRAIN, "--steps", "60", "--eval-every", "0", "--out", "whole")
    process = start(job, 2, *TRAIN, "--steps", "60", "--eval-every", "0", "--out", "out")
    wait_for(job, "out", 5, process)
    process.send_signal(number)
    said = process.communicate(timeout=30)[1]
    if "saved in out" not in said:  # else it was done before the signal came
        assert process.returncode != 0
        assert "attn train --resume --out out continues" in said
        run(job, 3, "train", "--resume", "--out", "out")
    assert job.last_checkpoint("out", 60) == job.last_checkpoint("whole", 60)


def test_a_killed_rank_ends_the_job_and_another_number_resumes(job):
    run(job, 1, *TRAIN, "--steps", "40", "--eval-every", "4", "--out", "whole")
    when = random.Random(int(os.environ.get("ATTN_SEED", "1")))
    arguments = [*TRAIN, "--steps", "40", "--eval-every", "4", "--out", "out"]
    for _ in range(KILLS):
        ranks = when.choice([2, 3, 4])
        process = start(job, ranks, *arguments)
        time.sleep(when.uniform(0.3, 1.5))
        for pid in when.sample(pids_of(process), 1) if process.poll() is None else []:
            os.kill(pid, signal.SIGKILL)
        killed = time.monotonic()
        process.communicate(timeout=30)
        assert time.monotonic() - killed < 10
        if any((job.folder / "out").glob("step-*")):
            arguments = ["train", "--resume", "--out", "out"]
        else:
            shutil.rmtree(job.folder / "out", ignore_errors=True)
    run(job, 2, *arguments)
    assert job.last_checkpoint("out", 40) == job.last_checkpoint("whole", 40)
