"""What the command line of attn takes: flags, their help, their limits, completion and the manual."""

import os
import pathlib
import re
import shutil
import subprocess

from attn import SHAPE, TEXT

SUBCOMMANDS = ("train generate chat classify eval embed fill convert export quantize lora prune see heads serve bench "
               "profile sweep tokenizer info completion man help").split()


def flags(attn, command):
    return re.findall(r"^  (?:-\w, )?(--[\w-]+)(?: ([A-Z]+))?", attn.run(command, "--help").stdout, re.M)


def test_underscores(attn):
    attn.file("text.txt", TEXT)
    attn.run("train", "text.txt", "--model", "selfhead", "--embed_dim", 32, "--epochs", 1, "--learning_rate", 0.01,
             "--eval_every=7", "--sample_prompt", "The", "--interactive", "--quiet", stdin="The cat\n")
    assert '"eval_every": 7' in (attn.folder / "model" / "training.json").read_text()
    assert '"embed_dim": 32' in (attn.folder / "model" / "config.json").read_text()
    said = attn.run("generate", "--top_k", 1, "model", "--prompt", "The_cat", status=1).stderr
    assert "'_'" in said or "_" in said, "a value must stay as it is: " + said
    assert "unexpected" not in attn.run("generate", "model", "--top_k=1", "--max-new-tokens", 3).stderr
    for command in SUBCOMMANDS:
        for flag, value in flags(attn, command):
            if "-" not in flag[2:] or not value or flag == "--do-sample":  # which may be alone
                continue
            done = attn.run(command, flag.replace("-", "_").replace("__", "--"), status=2)
            assert f"{flag}: the value is missing" in done.stderr, (command, flag, done.stderr)


def test_help_is_complete(attn):
    """Every option has a description; every one that takes a value its default, if there is one, and its choices."""
    for command in SUBCOMMANDS:
        shown = re.sub(r"\n {28}", "  ", attn.run(command, "--help").stdout.split("\nExample")[0])
        rows = re.findall(r"^  (-\S.*?|[a-z]+)  +(\S.*)$", shown, re.M)
        assert len(rows) >= len(flags(attn, command)), (command, shown)
        for name, text in rows:
            assert len(re.sub(r"[\[(].*", "", text)) >= 4, (command, name, text)
    shown = re.sub(r"\s+", " ", attn.run("train", "--help").stdout)
    for row in ("--embed-dim INT width of the model, C (1 to 65536) [default 128]",
                "--layers INT blocks (1 to 4096) [default 4; selfhead 1; seq2seq 3]",
                "(one of relu, gelu, gelu_tanh, silu, tanh) [default gelu_tanh; encoder gelu; llama silu]",
                "--model TEXT the family, whose defaults the other options change (one of selfhead, encoder, gpt, ",
                "--steps INT updates (1 to 1099511627776) [default 2000]",
                "--learning-rate FLOAT at its highest, in (0, 1000000] [default 0.001]"):
        assert row in shown, (row, shown)


def test_wrong_values(attn):
    attn.file("text.txt", TEXT)
    attn.run("train", "text.txt", "--steps", 1, "--out", "gpt", *SHAPE)
    cases = [(("train", "text.txt", "--out", "x", *wrong.split()), wrong.split()[0]) for wrong in (
        "--epochs nan", "--epochs 1e30", "--epochs -1", "--epochs 0", "--validation-batches -3", "--seed -1",
        "--min-learning-rate 1", "--learning-rate inf", "--learning-rate 0", "--beta1 1", "--word-dropout 1",
        "--steps 0", "--steps 1.5", "--batch 0", "--clip -1", "--dropout 1", "--context 0",
        "--positions nowhere", "--bias maybe",
        "--tokens letters", "--warmup -1", "--steps 99999999999999999999", "--model gtp", "--threads -1",
        "--precision float8", "--float32-precision medium", "--steps 1 --epochs 1", "--min_learning_rate nan")]
    cases += [(("generate", "gpt", *wrong.split()), wrong.split()[0]) for wrong in (
        "--temperature -1", "--temperature nan", "--top-k -1", "--top-p 0", "--top-p 1.5", "--min-p 2",
        "--max-new-tokens 0", "--repetition-penalty 0", "--seed x", "--checkpoint newest", "--file a --prompt b",
        "--threads 2000")]
    cases += [(("finetune", "x"), "unknown subcommand 'finetune': to fine-tune, attn train DATA --from FOLDER"),
              (("foo",), "unknown subcommand 'foo'; known are: train, generate, chat, classify, eval"),
              (("--threads", 2, "trian", "x"), "unknown subcommand 'trian'"),
              ((), "subcommands: train, generate"), (("train", "a", "b"), "unexpected argument: b"),
              (("train", "--layers"), "--layers: the value is missing"), (("eval", "gpt"), "file is required"),
              (("train", ""), "data: the name of the file is empty"),
              (("bench", "-p", "x"), "--prompts"), (("bench", "-p", -5), "--prompts"),
              (("info", "--vocab-size", 0), "--vocab-size"), (("completion", "fish"), "one of bash, zsh")]
    for arguments, message in cases:
        done = attn.run(*arguments, status=2)
        assert message.replace("_", "-") in done.stderr, (arguments, done.stderr)
        assert done.stderr.count("\n") == 1 and not done.stdout, (arguments, done.stderr)
    assert not (attn.folder / "x").exists()
    for place in (("--threads", 1, "info"), ("info", "--threads", 1), ("info", "--threads=1")):
        assert re.search(r"^threads +1$", attn.run(*place).stdout, re.M), place


def test_float32_precision(attn):
    """Asked for before or after a subcommand, and stays what it was in a training that is resumed."""
    attn.file("text.txt", TEXT)
    high = ("--float32-precision", "high")
    assert re.search(r"^float32 precision +full$", attn.run("info").stdout, re.M)
    for place in ((*high, "info"), ("info", *high), ("info", "--float32_precision=high")):
        assert re.search(r"^float32 precision +high$", attn.run(*place).stdout, re.M), place
    attn.run("train", "text.txt", "--steps", 2, "--out", "high", *SHAPE, *high)
    attn.run("train", "text.txt", "--steps", 2, "--out", "full", *SHAPE)
    for name, out in (("high", "high"), ("full", "full")):
        attn.run("train", "--resume", "--out", out, "--steps", 4)
        assert f'"float32_precision": "{name}"' in (attn.folder / out / "training.json").read_text()
    # Small products take no tiles anywhere.
    assert attn.losses("high") == attn.losses("full")
    rows = attn.run("bench", "full", "-p", 4, "-n", 0, "-r", 1, "-o", "csv", *high).stdout
    assert ",float32 high," in rows, rows
    assert ",float32," in attn.run("bench", "full", "-p", 4, "-n", 0, "-r", 1, "-o", "csv").stdout
    damaged = attn.folder / "high" / "training.json"
    damaged.write_text(damaged.read_text().replace('"high"', '"medium"'))
    done = attn.run("train", "--resume", "--out", "high", status=2)
    assert "unknown float32_precision 'medium'" in done.stderr, done.stderr


def completions(attn, shell_words):
    """What bash offers for the last of the words, of which `=` is one as readline cuts them."""
    script = 'source ./attn.bash; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _attn; printf "%s\\n" "${COMPREPLY[@]}"'
    done = subprocess.run(["bash", "-c", script, "bash", *shell_words], cwd=attn.folder, capture_output=True, text=True)
    assert done.returncode == 0 and not done.stderr, done.stderr
    return done.stdout.split()


def test_bash_completion(attn):
    attn.file("attn.bash", attn.run("completion", "bash").stdout)
    (attn.folder / "afolder").mkdir()
    assert completions(attn, ["attn", ""]) == SUBCOMMANDS
    assert completions(attn, ["attn", "--threads", "2", "tr"]) == ["train"]
    assert completions(attn, ["attn", "train", "--positions", "r"]) == ["relative", "rope"]
    assert completions(attn, ["attn", "train", "--positions", "=", "al"]) == ["alibi"]
    assert completions(attn, ["attn", "train", "--positions", "="])[:2] == ["none", "learned"]
    assert completions(attn, ["attn", "train", "--embed_"]) == ["--embed-dim"]
    assert completions(attn, ["attn", "generate", "--min"]) == ["--min-new-tokens", "--min-p"]
    assert completions(attn, ["attn", "train", "--layers", ""]) == []
    assert completions(attn, ["attn", "train", "--out", "a"]) == ["afolder"]
    assert completions(attn, ["attn", "see", "--thr"]) == ["--threads"]
    for command in SUBCOMMANDS:
        assert set(completions(attn, ["attn", command, "--"])) >= {flag for flag, _ in flags(attn, command)}, command


ZSH = r"""
zmodload zsh/zpty
zpty shell 'zsh -f -i'
zpty -w shell "PS1=; fpath=($1 \$fpath); autoload -U compinit; compinit -u -d $1/dump; echo re''ady"
zpty -r shell line '*ready*'
zpty -w shell ": ; stty rows 100 cols 200"
zpty -w -n shell "attn $2"$'\t'
sleep ${3:-2}
zpty -w -n shell $'\x15'"echo do""ne"$'\n'
zpty -r shell line '*done*'
print -r -- "$line"
"""


def test_zsh_completion(attn):
    if not shutil.which("zsh"):
        print("  (no zsh here: not tested)", end="")
        return
    attn.file("_attn", attn.run("completion", "zsh").stdout)
    for words, whole in (("tra", "attn train "), ("train --positions ali", "--positions alibi"),
                         ("eval --checkpoint la", "--checkpoint last"), ("train --embed-d", "train --embed-dim")):
        done = subprocess.run(["zsh", "-f", "-c", ZSH, "zsh", str(attn.folder), words], capture_output=True, text=True,
                              timeout=60)
        assert whole in re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", done.stdout), (words, done.stdout, done.stderr)


def test_manual(attn):
    page = attn.file("attn.1", attn.run("man").stdout)
    text = page.read_text().replace("\\-", "-")
    for command in SUBCOMMANDS:
        assert f".SS attn {command}\n" in text
        for flag, _ in flags(attn, command):
            assert flag in text.split(f".SS attn {command}\n")[1].split(".SS")[0], (command, flag)
    for checker in (["groff", "-man", "-ww", "-z"], ["mandoc", "-Tlint", "-Werror"]):
        if not shutil.which(checker[0]):
            print(f"  (no {checker[0]} here)", end="")
            continue
        done = subprocess.run([*checker, page], capture_output=True, text=True)
        assert done.returncode == 0 and not done.stdout + done.stderr, (checker, done.stdout, done.stderr)


def test_version(attn):
    """One number, the CMake project's, wherever a version is said."""
    root = pathlib.Path(__file__).resolve().parents[2]
    number = re.search(r"^project\(attention_cpp VERSION (\S+)", (root / "CMakeLists.txt").read_text(), re.M)[1]
    assert attn.run("--version").stdout == f"attn {number}\n"
    assert f"attention.cpp {number}" in attn.run("man").stdout.splitlines()[0]
    for name in ("pyproject.toml", "python/attention_cpp/__init__.py"):
        said = re.search(r'^(?:__version__|version) = "(.*)"$', (root / name).read_text(), re.M)[1]
        assert said == number, name


def test_installed(attn):
    prefix = attn.folder / "usr"
    subprocess.run(["cmake", "--install", os.path.dirname(attn.program), "--prefix", prefix], check=True,
                   capture_output=True)
    attn.program = prefix / "bin" / "attn"
    for path, command in (("bash-completion/completions/attn", ("completion", "bash")),
                          ("zsh/site-functions/_attn", ("completion", "zsh")), ("man/man1/attn.1", ("man",))):
        assert (prefix / "share" / path).read_text() == attn.run(*command).stdout, path
