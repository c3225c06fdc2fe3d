"""attn train as ranks of a job of mpirun: the same files for any number of ranks, one error, signals, killed ranks."""

import json
import os
import pathlib
import random
import re
import shutil
import signal
import subprocess
import time

import pytest
from attn import SHAPE, TEXT

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
    assert "ranks: 3, 4 of the 12 batches of an update each" in said[3]
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
    run(job, 2, "train", "--resume", "--steps", "12", "--out", "shared", option="--sequence-parallel")
    assert max(job.losses("shared")) == 12


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
    (3, ["--accumulation", "4"], "accumulation is 4, must be a multiple of the ranks, of which there are 3"),
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

    assert "there are 2 processes: --data-parallel 2 makes them train one model" in error_of([LAUNCHER, "-n", "2"])
    assert "--data-parallel 3 needs as many processes, and there are 2" in error_of([LAUNCHER, "-n", "2"],
                                                                                     "--data-parallel", "3")
    assert "mpirun -n 2 attn train" in error_of([], "--data-parallel", "2")


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
