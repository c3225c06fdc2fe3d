#!/usr/bin/env python3
"""Fails where a text uses a word that docs/glossary.md lists as not used, or where a library has two types of one name.

Texts are the prose of Markdown pages, comments, docstrings and string literals. Names in code are no text.

usage: check_words.py [ROOT]      check_words.py --self-test      check_words.py --count
"""

import collections
import io
import pathlib
import re
import sys
import tempfile
import tokenize

HOME = pathlib.Path(__file__).resolve().parent.parent

SOURCES = ("include", "src", "cli", "python", "examples", "tools", "tests", "bench", "docs")
LIBRARIES = {
    # kernels have one type of a name for each ISA
    "attn::attn": ("core", "attention", "linear", "peaks", "c", "record", "heads"),
    "attn::models": ("io", "text", "ops", "autograd", "nn", "models", "generate", "train"),
    "attn::view": ("view",),
}
C_TEXT = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"', re.S)
JS_TEXT = re.compile(r"//[^\n]*|/\*.*?\*/", re.S)
HASH_TEXT = re.compile(r"(?:^|(?<=\s))#[^\n]*|\"[^\"\n]*\"")
TYPE = re.compile(r"^(?:struct|class|enum(?: class)?)\s+(?:\[\[[^]]*\]\]\s*)?(\w+)(?:\s+final)?(?:\s*:[^:;]|\s*\{|\s*$)"
                  r"|^using (\w+) = (?!.*::\1;)", re.M)


def not_used(glossary):
    """The rows of the glossary's last table: what is not used, as a pattern, and what to write instead."""
    rows = re.findall(r"^\| ([^|]+) \| ([^|]+) \|$", glossary.partition("## Not used")[2], re.M)
    words = [(word.strip(), instead.strip()) for cell, instead in rows[1:] for word in cell.split(",")]
    return [(re.compile(rf"(?<![\w`-]){re.escape(word)}(?![\w`-])", re.I if word.islower() else 0), word, instead)
            for word, instead in words]


def python_texts(text):
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type in (tokenize.COMMENT, tokenize.STRING) and " " in token.string:
            yield token.start[0], token.string


def texts(path):
    """Pairs of a line number and a text that begins there."""
    text = path.read_text()
    if path.suffix == ".py":
        yield from python_texts(text)
    elif path.suffix == ".md":
        prose = re.sub(r"^```.*?^```|^    [^\n]*|`[^`\n]*`", lambda code: "\n" * code[0].count("\n"), text,
                       flags=re.S | re.M)
        yield 1, prose
    else:
        pattern = JS_TEXT if path.suffix == ".js" else C_TEXT if path.suffix in (".h", ".cpp", ".c") else HASH_TEXT
        for found in pattern.finditer(text):
            if " " in found[0]:  # a literal of one word is a name
                yield text.count("\n", 0, found.start()) + 1, re.sub(r"`[^`\n]*`", "", found[0])


def files(root):
    kinds = (".h", ".cpp", ".c", ".py", ".md", ".js", ".sh", ".cmake", ".txt")
    found = [path for folder in SOURCES for path in (root / folder).rglob("*") if path.suffix in kinds]
    for path in sorted(found + list(root.glob("*.md"))):
        if path.suffix != ".txt" or path.name == "CMakeLists.txt":
            yield path, path.relative_to(root).as_posix()


def wrong_words(root, words):
    for path, name in files(root):
        if name in ("docs/glossary.md", "docs/style.md", "tools/check_words.py"):
            continue
        for start, text in texts(path):
            for pattern, word, instead in words:
                for found in pattern.finditer(text):
                    yield f"{name}:{start + text.count(chr(10), 0, found.start())}: '{word}': write {instead}"


def twin_types(root):
    for library, modules in LIBRARIES.items():
        places = collections.defaultdict(set)
        for path, name in files(root):
            module = re.match(r"src/(\w+)/|include/attn/([a-z]+)(?:_\w+)?\.h", name)
            if module and (module[1] or module[2]) in modules and path.suffix != ".js":
                for found in TYPE.finditer(path.read_text()):
                    places[found[1] or found[2]].add(name)
        for word, where in sorted(places.items()):
            if len(where) > 1:
                yield f"{library} has {len(where)} types {word}: {', '.join(sorted(where))}"


def self_test():
    glossary = "## Not used\n\n| not used | write |\n|---|---|\n| told, asked for | given, prefetched |\n"
    good = {"src/a.cpp": 'int told = 1;  // is given\nconst char* x = "`told`";\n', "docs/a.md": "Prose.\n\n    told\n"}
    bad = {"src/b.cpp": "// what it is told\n", "cli/c.cpp": 'auto x = "Told so";\n',
           "docs/b.md": "It was asked for.\n", "python/d.py": 'def f():\n    """Told so."""\n',
           "src/e.js": "f('told');  // told\n"}
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder)
        for name, text in (good | bad).items():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text(text)
        found = sorted(line.partition(":")[0] for line in wrong_words(root, not_used(glossary)))
        if found != sorted(bad):
            sys.exit(f"found in {found}, not in {sorted(bad)}")
        for name, text in {"src/core/a.h": "struct Row {\n", "src/peaks/b.cpp": "class Row : Base {\n"}.items():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text(text)
        if len(list(twin_types(root))) != 1:
            sys.exit("two types of one name pass")


def main():
    if sys.argv[1:] == ["--self-test"]:
        return self_test()
    root = HOME if sys.argv[1:] in ([], ["--count"]) else pathlib.Path(sys.argv[1])
    words = not_used((root / "docs/glossary.md").read_text())
    if sys.argv[1:] == ["--count"]:
        found = list(wrong_words(root, words))
        for key in (lambda line: line.partition("'")[2].partition("'")[0], lambda line: "/".join(line.split("/")[:2])):
            print(*(f"{n:5} {what}" for what, n in collections.Counter(map(key, found)).most_common()), sep="\n")
        return None
    found = [*wrong_words(root, words), *twin_types(root)]
    print("\n".join(found) or "check_words: ok")
    return sys.exit(bool(found))


if __name__ == "__main__":
    main()
