#!/usr/bin/env python3
"""Fails on files that have grown beyond what a reader takes in: source files over 600 lines, public headers over 280,
ARCHITECTURE.md over 150, lines over 120 columns, and lines of dashes that clang-format has parted from their title.

usage: check_sizes.py [ROOT]      check_sizes.py --self-test
"""

import pathlib
import sys
import tempfile

FOLDERS = ("include", "src", "cli", "python", "examples", "tests", "bench", "tools", "cmake")
SUFFIXES = {".h", ".cpp", ".py", ".sh", ".cmake", ".txt", ".js", ".css"}
COLUMNS = 120
DASHES = "// " + 30 * "-"


def limit_of(path):
    if path.name == "ARCHITECTURE.md":
        return 150
    return 280 if path.parts[0] == "include" else 600


def checked_files(root):
    for folder in FOLDERS:
        yield from (path for path in sorted((root / folder).rglob("*")) if path.suffix in SUFFIXES and path.is_file())
    yield from sorted(root.rglob("ARCHITECTURE.md"))
    yield root / "CMakeLists.txt"


def check(root):
    failures = []
    for path in checked_files(root):
        if not path.exists():
            continue
        name = path.relative_to(root)
        lines = path.read_text().splitlines()
        if len(lines) > limit_of(name):
            failures.append(f"{name}: {len(lines)} lines, at most {limit_of(name)}")
        if path.suffix != ".md":
            failures += [f"{name}:{i}: {len(line)} columns" for i, line in enumerate(lines, 1) if len(line) > COLUMNS]
        if path.suffix in (".h", ".cpp"):
            failures += [f"{name}:{i}: a line of dashes without a title"
                         for i, line in enumerate(lines, 1) if line.startswith(DASHES) and line.endswith("-")]
    return failures


def self_test():
    limits = {"src/a.cpp": 600, "include/attn/a.h": 280, "ARCHITECTURE.md": 150, "tools/a.py": 600}
    missed = []
    for name, limit in limits.items():
        dashes = DASHES + 85 * "-" + " a"
        for text, good in (("x\n" * limit, True), ("x\n" * (limit + 1), False), ("x" * 121, name.endswith(".md")),
                           (dashes, True), (dashes[:-2] + "\n// a", not name.endswith((".cpp", ".h")))):
            with tempfile.TemporaryDirectory() as folder:
                path = pathlib.Path(folder, name)
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text)
                failures = check(pathlib.Path(folder))
                if (failures == []) != good:
                    missed.append(f"wrong about {name} with {len(text.splitlines())} lines: {failures}")
    return missed


def main():
    arguments = sys.argv[1:]
    root = pathlib.Path(__file__).resolve().parent.parent
    failures = self_test() if arguments == ["--self-test"] else check(pathlib.Path(arguments[0]) if arguments else root)
    print("\n".join(failures) if failures else "check_sizes: ok")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
