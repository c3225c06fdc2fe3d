#!/usr/bin/env python3
"""Turns the C++ programs of the documentation into tests.

A program is a fenced block of `cpp` after the line `<!-- run: NAME -->`; the block of `text` after it is its output.

  extract_snippets.py extract DIR FILE...      writes DIR/NAME.cpp and DIR/NAME.txt, prints the names, ; between them
  extract_snippets.py check PROGRAM FILE.txt   runs the program; fails with a diff unless it prints exactly the file
"""

import difflib
import pathlib
import re
import subprocess
import sys

MARKER = re.compile(r"<!-- run: (\w+) -->\n")
SNIPPET = re.compile(r"```cpp\n(?P<program>.*?)^```\n\s*```text\n(?P<output>.*?)^```$", re.DOTALL | re.MULTILINE)


def snippets(page):
    """(name, program, output) of every marked block of a page."""
    text = page.read_text()
    for marker in MARKER.finditer(text):
        snippet = SNIPPET.match(text, marker.end())
        if not snippet:
            sys.exit(f"{page}: '{marker[1]}' must be followed by a cpp block and a text block")
        yield marker[1], snippet["program"], snippet["output"]


def write_if_changed(path, text):
    """Keeps the time stamp of an unchanged file, so that nothing is compiled again."""
    if not path.exists() or path.read_text() != text:
        path.write_text(text)


def extract(directory, pages):
    directory.mkdir(parents=True, exist_ok=True)
    names = []
    for page in pages:
        for name, program, output in snippets(page):
            if name in names:
                sys.exit(f"{page}: a second program is named '{name}'")
            names.append(name)
            write_if_changed(directory / f"{name}.cpp", program)
            write_if_changed(directory / f"{name}.txt", output)
    print(";".join(names), end="")


def check(program, expected_file):
    run = subprocess.run([program], capture_output=True, text=True)
    if run.returncode != 0:
        sys.exit(f"{program} ended with {run.returncode}\n{run.stderr}")
    expected = expected_file.read_text()
    if run.stdout != expected:
        diff = difflib.unified_diff(expected.splitlines(True), run.stdout.splitlines(True), "documented", "printed")
        sys.exit("".join(diff))


def main(arguments):
    if len(arguments) >= 3 and arguments[0] == "extract":
        extract(pathlib.Path(arguments[1]), [pathlib.Path(page) for page in arguments[2:]])
    elif len(arguments) == 3 and arguments[0] == "check":
        check(arguments[1], pathlib.Path(arguments[2]))
    else:
        sys.exit(__doc__)


main(sys.argv[1:])
