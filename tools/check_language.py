#!/usr/bin/env python3
"""Fails unless each public C++ header stops a C++17 compiler with one sentence, not with a page of errors.

usage: check_language.py COMPILER      check_language.py COMPILER --self-test
"""

import pathlib
import re
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
SENTENCE = "attention.cpp needs C++20: compile with -std=c++20"


def errors(compiler, header):
    """The errors of a C++17 program that includes this header alone."""
    done = subprocess.run([compiler, "-std=c++17", "-fsyntax-only", "-x", "c++", "-I", ROOT / "include", "-"],
                          input=f'#include "{header}"\n', capture_output=True, text=True, check=False)
    return [line for line in done.stderr.splitlines() if "error: " in line]


def complaints(compiler, headers):
    for header in headers:
        found = errors(compiler, header)
        if not found or SENTENCE not in found[0] or len(found) > 2:
            yield f"{header} in C++17: {len(found)} errors, the first: {found[0] if found else ''}"


def self_test(compiler):
    with tempfile.TemporaryDirectory() as folder:
        bad = {"silent.h": "inline int x = 1;\n", "other.h": "#include <span>\nstd::span<int> x;\n"}
        for name, text in bad.items():
            (pathlib.Path(folder) / name).write_text(text)
            if not list(complaints(compiler, [pathlib.Path(folder) / name])):
                sys.exit(f"{name} passes")
        if list(complaints(compiler, ["attn/core.h"])):
            sys.exit("attn/core.h does not pass")


def main():
    if len(sys.argv) == 3 and sys.argv[2] == "--self-test":
        return self_test(sys.argv[1])
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    names = sorted(path.name for path in (ROOT / "include/attn").glob("*.h"))
    found = list(complaints(sys.argv[1], [f"attn/{name}" for name in names if not re.match(r"c(_\w+)?\.h", name)]))
    print("\n".join(found) or "check_language: ok")
    return sys.exit(bool(found))


main()
