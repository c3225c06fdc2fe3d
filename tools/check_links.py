#!/usr/bin/env python3
"""Fails on what Markdown files name and what is not there: files and headings that are linked to, paths in the text
that begin with a folder of the project, and public headers.

usage: check_links.py [ROOT]      check_links.py --self-test
"""

import pathlib
import re
import sys
import tempfile

FOLDERS = "bench|cli|cmake|docs|examples|include|python|src|tests|tools"
SKIPPED = {"build", ".git", ".pytest_cache"}
LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")
PATH = re.compile(rf"(?<![\w/.$<>*-])(?:{FOLDERS})/[\w./*<>-]*[\w*>]")  # with stars, and <words> that mean one
HEADER = re.compile(r"(?<![\w/])attn/\w+\.h\b")


def files_of(root):
    return sorted(path for path in root.rglob("*.md") if not SKIPPED & set(path.relative_to(root).parts))


def anchors_of(path):
    """What GitHub makes of headings; those in blocks of code are none."""
    text = re.sub(r"^```.*?^```", "", path.read_text(), flags=re.M | re.S)
    seen, anchors = {}, set()
    for heading in re.findall(r"^#+ +(.*?)\s*$", text, re.M):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower()
        slug = re.sub(r"[^\w\- ]", "", plain).replace(" ", "-")
        seen[slug] = seen.get(slug, -1) + 1
        anchors.add(f"{slug}-{seen[slug]}" if seen[slug] else slug)
    return anchors


def broken_link(path, link):
    """Why the link leads nowhere; others' pages are not asked."""
    if re.match(r"\w+:", link):
        return None
    name, _, anchor = link.partition("#")
    target = (path.parent / name) if name else path
    if not target.exists():
        return f"links to {link}, which is not there"
    if anchor and anchor not in anchors_of(target):
        return f"links to {link}, a heading that is not there"
    return None


def is_there(root, path, name):
    pattern = re.sub(r"<\w+>", "*", name)
    return any(any(folder.glob(pattern)) for folder in (root, path.parent))


def check(root):
    failures = []
    for path in files_of(root):
        for number, line in enumerate(path.read_text().splitlines(), 1):
            found = [broken_link(path, link) for link in LINK.findall(line)]
            line = LINK.sub("", line)
            found += [f"names {name}, which is not there" for name in PATH.findall(line)
                      if not is_there(root, path, name)]
            found += [f"names {name}, which is no public header" for name in HEADER.findall(line)
                      if not (root / "include" / name).exists()]
            failures += [f"{path.relative_to(root)}:{number}: {reason}" for reason in found if reason]
    return failures


def self_test():
    good = ["[a](b.md)", "[a](docs/a.md#two-words)", "[a](#one)", "[a](docs/a.md#one-1)", "[a](https://x.y/z#w)",
            "`src/a.cpp --quick`", "src/*.cpp", "src/<name>.cpp", "build/src/none.cpp", "attn/core.h",
            "include/attn/core.h"]
    bad = ["[a](c.md)", "[a](docs/a.md#three)", "![a](x.png)", "`src/b.cpp`", "src/*.h", "src/<name>.h", "attn/none.h",
           "[a](#code)", "see tests/none"]
    missed = []
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder)
        for name in ("docs/a.md", "b.md", "src/a.cpp", "include/attn/core.h"):
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text("# One\n## Two words!\n# One\n")
        for text in good + bad:
            (root / "b.md").write_text(f"# One\n```\n# Code\n```\n{text}\n")
            if (check(root) == []) != (text in good):
                missed.append(f"wrong about {text}: {check(root)}")
    return missed


def main():
    arguments = sys.argv[1:]
    root = pathlib.Path(__file__).resolve().parent.parent
    failures = self_test() if arguments == ["--self-test"] else check(pathlib.Path(arguments[0]) if arguments else root)
    print("\n".join(failures) if failures else "check_links: ok")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
