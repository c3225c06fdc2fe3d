"""The program attn in a folder of its own, as the tests of this folder run it."""

import json
import os
import subprocess

TEXT = "".join(f"The {a} sat on the {b}, and the {b} looked at the {a}.\n" for a in ("cat", "dog", "bird", "fox")
               for b in ("mat", "rug", "tree", "hill") for _ in range(4))
SHAPE = "--embed-dim 16 --layers 2 --heads 2 --context 16 --batch 4 --dropout 0.1".split()


class Attn:
    def __init__(self, program, folder):
        self.program, self.folder = program, folder
        self.environment = os.environ

    def command(self, *arguments):
        return [self.program, *map(str, arguments)]

    def run(self, *arguments, status=0, stdin="", environment=None, limit=120):
        done = subprocess.run(self.command(*arguments), cwd=self.folder, input=stdin, text=True, capture_output=True,
                              env=self.environment | (environment or {}), timeout=limit, errors="replace")
        assert done.returncode == status, f"attn {arguments}: status {done.returncode}, not {status}\n{done.stderr}"
        return done

    def start(self, *arguments, stdout=subprocess.DEVNULL, **more):
        return subprocess.Popen(self.command(*arguments), cwd=self.folder, text=True, env=self.environment,
                                stdout=stdout, stderr=subprocess.PIPE, **more)

    def file(self, name, content):
        path = self.folder / name
        if isinstance(content, bytes):
            path.write_bytes(content)
        else:
            path.write_text(content)
        return path

    def losses(self, out):
        """Step -> loss and norm of the last time the step was done: a resumed training repeats steps."""
        rows = {}
        for line in (self.folder / out / "log.jsonl").read_text().splitlines():
            row = json.loads(line)
            if "loss" in row:
                rows[row["step"]] = (row["loss"], row["gradient_norm"])
        return rows

    def last_checkpoint(self, out, step):
        return (self.folder / out / f"step-{step}.safetensors").read_bytes()
