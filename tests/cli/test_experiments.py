"""The experiments of docs/experiments in miniature: their pages have all parts, and what is there is not lost."""

import importlib.util
import json
import os
import pathlib
import re
import subprocess
import sys


ROOT = pathlib.Path(__file__).resolve().parents[2]
PARTS = ["Question", "Prediction, written before the run", "Method", "Result", "Conclusion",
         "Where these numbers come from"]

spec = importlib.util.spec_from_file_location("experiments_main", ROOT / "bench/experiments/__main__.py")
main = importlib.util.module_from_spec(spec)
spec.loader.exec_module(main)


def run(attn, name, *flags, status=0):
    build = pathlib.Path(attn.program).parents[1]
    command = [sys.executable, "-m", "experiments", name, "--quick", "--out", "pages", "--kept", "kept",
               "--build", build, "--data", ROOT.parent / "shared/data", *flags]
    done = subprocess.run(list(map(str, command)), cwd=attn.folder, capture_output=True, text=True, timeout=600,
                          env=os.environ | {"PYTHONPATH": str(ROOT / "bench")})
    assert done.returncode == status, done.stderr
    return done


def test_every_experiment_has_a_page_and_a_line():
    index = (ROOT / "docs/experiments/README.md").read_text()
    for name in main.NAMES:
        assert f"[{name}]({name}.md)" in index, name
        text = (ROOT / f"docs/experiments/{name}.md").read_text()
        assert re.findall(r"^## (.*)$", text, re.M) == PARTS, name
        for picture in re.findall(r"!\[[^]]+\]\(([^)]+)\)", text):
            assert (ROOT / "docs/experiments" / picture).stat().st_size > 1000, picture


def test_experiments_in_miniature(attn):
    for name in main.NAMES:
        done = run(attn, name)
        text = (attn.folder / f"pages/{name}.md").read_text()
        assert re.findall(r"^## (.*)$", text, re.M) == PARTS, name
        assert f"`bench/experiments/run {name} --quick`" in text and "nan" not in text.lower().split(), name
        assert len(re.findall(r"^\| ", text, re.M)) > 3, name
        for picture in re.findall(r"!\[[^]]+\]\(([^)]+)\)", text):
            assert (attn.folder / "pages" / picture).read_bytes().startswith(b"\x89PNG"), picture
        assert all(len(line) <= 120 for line in text.splitlines() if not line.startswith(("|", "!", "-"))), name
        assert "1 of" in done.stderr  # progress


def test_a_stopped_experiment_goes_on(attn):
    run(attn, "context")
    page, kept = attn.folder / "pages/context.md", attn.folder / "kept/context-quick.jsonl"
    first, lines = page.read_text(), kept.read_text().splitlines()
    kept.write_text("\n".join(lines[:-1]) + "\n")  # as after Ctrl-C in the last step
    done = run(attn, "context")
    assert "1 of 1: " in done.stderr and "2 of" not in done.stderr
    again = [json.loads(line) for line in kept.read_text().splitlines()]
    assert [each["step"] for each in again] == [json.loads(line)["step"] for line in lines]
    assert run(attn, "context").stderr == ""  # nothing is left to measure
    assert page.read_text().split("## Result")[0] == first.split("## Result")[0]


def test_errors_leave_the_old_page(attn):
    (attn.folder / "pages").mkdir()
    (attn.folder / "pages/context.md").write_text("old")
    done = run(attn, "context", "--data", attn.folder, status=1)
    assert "tinyshakespeare/input.txt is missing: --data names a folder with" in done.stderr
    assert (attn.folder / "pages/context.md").read_text() == "old"
    assert "/cli/attn is missing: build the target attn_cli" in run(attn, "context", "--build", "none", status=1).stderr
    (attn.folder / "file").touch()
    for flag in ("--out", "--kept"):
        said = run(attn, "context", flag, "file/folder", status=1).stderr
        assert said.endswith("file/folder: Not a directory\n"), said
    assert subprocess.run([sys.executable, "-m", "experiments", "height"], capture_output=True, text=True,
                          env=os.environ | {"PYTHONPATH": str(ROOT / "bench")}).returncode == 2


