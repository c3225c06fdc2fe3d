#!/usr/bin/env python3
"""A compiler launcher: copies the object that the build in ATTN_REUSE made with the same command, or else compiles. So
the library is configured, linked and installed in other ways without waiting for its kernels again.

usage: reuse.py COMPILER ARGUMENT...
"""

import json
import os
import pathlib
import shlex
import shutil
import subprocess
import sys

PLACES = ("-o", "-MT", "-MF")  # options whose argument is another in every build


def parts(command):
    """The arguments of a compiler without paths; and the paths."""
    told, places = [], {}
    words = iter(command)
    for word in words:
        if word in PLACES:
            places[word] = next(words)
        elif word != "-MD":
            told.append(word)
    return told, places


def same_source(one, other):
    """True for one file, and for two that CMake has joined of the same files, each in its own build."""
    one, other = pathlib.Path(one), pathlib.Path(other)
    joined = one.parent.name == other.parent.name == "Unity" and one.parts[-3:] == other.parts[-3:]
    return one == other or (joined and one.read_text() == other.read_text())


def made_before(command):
    """The object of the other build that the same command made, or None."""
    build = pathlib.Path(os.environ["ATTN_REUSE"])
    commands = build / "compile_commands.json"
    told, _ = parts(command)
    for entry in json.loads(commands.read_text()) if commands.exists() else ():
        if same_source(entry["file"], command[-1]):
            other, places = parts(shlex.split(entry["command"]))
            made = build / places["-o"]
            if other[:-1] == told[:-1] and made.exists():
                return made
    return None


def main():
    command = sys.argv[1:]
    made = made_before(command) if "-c" in command else None
    if made is None:
        sys.exit(subprocess.run(command, check=False).returncode)
    _, places = parts(command)
    shutil.copyfile(made, places["-o"])
    if "-MF" in places:
        pathlib.Path(places["-MF"]).write_text(f"{places['-MT']}:\n")


main()
