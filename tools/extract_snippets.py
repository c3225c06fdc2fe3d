#!/usr/bin/env python3
"""Finds the blocks of code on all pages (*.md), and gives them to the tests that run them.

A block is fenced, under the name of its language, or indented, which means commands of a shell:

  cpp      a program that docs/CMakeLists.txt compiles, named by the line before it, `<!-- run: NAME -->`; the block of
           `text` after it is what it prints; without one it runs among the commands of its page
  sh       tests/parity/test_pages.py runs the commands of a page, one after the other in one folder
  python   python/tests/test_documents.py runs the blocks of a page as one program
  cmake    tests/install/check.py builds a project that has them
  text     output, formulas and drawings: nothing to run

A block after `<!-- not run: REASON -->` is not run. A block after `<!-- from: FILE -->` quotes a file of the project.
Each public header has one example, a program of cpp or c in its first comment, which is compiled and run. The program
that is written includes the header first, so that a header which needs another one before it does not compile.

  extract_snippets.py check [ROOT]     fails for every block that is none of these; prints those that are not run
  extract_snippets.py self-test        shows that the check fails when it should
  extract_snippets.py programs DIR [HEADER...]
                                       writes the programs of pages and headers and their outputs as DIR/NAME.cpp,
                                       DIR/NAME.c and DIR/NAME.txt, and prints the file names, separated by ;
                                       given public headers, only programs that include no other header of attn
  extract_snippets.py compare PROGRAM FILE.txt
                                       runs the program; fails with a diff unless it prints exactly the file
"""

import difflib
import pathlib
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass

from check_links import files_of

ROOT = pathlib.Path(__file__).resolve().parent.parent
LANGUAGES = ("cpp", "sh", "python", "cmake", "text")
# The reasons that `not run:` can have. The test of such a block has to be impossible.
REASONS = ("downloads", "installs packages", "is the tests", "builds for minutes", "measures for minutes",
           "needs Slurm")
MARKER = re.compile(r"<!-- *(run|not run|from): *(.*?) *-->$")
FENCE = re.compile(r" {0,3}```(\w*)$")
COMMAND = re.compile(r"(attn|cmake|ctest|python3?|pip3?|cc|c\+\+|g\+\+|apt|apt-get|hf|\./\w+) +[-\w./]", re.MULTILINE)


@dataclass
class Block:
    place: str  # page:line
    language: str
    text: str
    marker: str = ""
    argument: str = ""
    output: str | None = None

    @property
    def runs(self):
        return self.marker not in ("not run", "from")


def block_at(lines, begin):
    """The language of the block that begins at a line, its text, and the line after it; None where none does."""
    end = begin
    if fence := FENCE.match(lines[begin]):
        while end + 1 < len(lines) and lines[end := end + 1].strip() != "```":
            pass
        return fence[1], lines[begin + 1 : end], end + 1
    before = lines[begin - 1] if begin else ""
    if not lines[begin].startswith("    ") or (before.strip() and not MARKER.match(before)):
        return None
    while end < len(lines) and (lines[end].startswith("    ") or not lines[end].strip()):
        end += 1
    return "sh", [line[4:] for line in lines[begin:end]], end


def blocks_of(page):
    """The blocks of a page, in their order."""
    lines, found, at = page.read_text().splitlines(), [], 0
    while at < len(lines):
        block = block_at(lines, at)
        if block is None:
            at += 1
            continue
        language, text, end = block
        last = found[-1] if found else None
        text = "\n".join(text).rstrip() + "\n"
        if language == "text" and last and last.language == "cpp" and not "".join(lines[behind:at]).strip():
            last.output = text
        else:
            marker = MARKER.match(lines[at - 1]) if at else None
            found.append(Block(f"{page}:{at + 1}", language, text, *(marker.groups() if marker else ())))
        at = behind = end
    return found


def pages_with(language, root=ROOT):
    """Page -> its blocks of a language that are run, of all pages that have any."""
    found = {page: [block for block in blocks_of(page) if block.language == language and block.runs]
             for page in files_of(root)}
    return {page: blocks for page, blocks in found.items() if blocks}


def complaint(root, block):
    """Why a block is neither run nor an exception; None where it is one of the two."""
    if block.language not in LANGUAGES:
        return f"nothing runs a block of '{block.language}'; there are {', '.join(LANGUAGES)}"
    if block.language == "text":
        command = COMMAND.match(block.text)
        return f"'{command[0]}' is a command in a block of text" if command else None
    if block.marker == "not run":
        return None if block.argument in REASONS else f"not run: '{block.argument}' is none of {', '.join(REASONS)}"
    if block.marker == "from":
        quoted = root / block.argument
        lines = {line.strip() for line in quoted.read_text().splitlines()} if quoted.is_file() else set()
        lost = [line for line in block.text.splitlines() if line.strip() not in lines]
        return f"{block.argument} has no line '{lost[0].strip()}'" if lost else None
    if block.language == "cpp" and not (block.marker and re.fullmatch(r"\w+", block.argument)):
        return "a block of cpp needs '<!-- run: NAME -->' before it"
    return None


def check(root):
    """What is wrong with the blocks of all pages, and those that are not run."""
    failures, skipped, names = [], [], set()
    for page in files_of(root):
        blocks = blocks_of(page)
        markers = len(re.findall(r"^<!-- *(?:not )?(?:run|from)\b", page.read_text(), re.MULTILINE))
        if markers != sum(bool(block.marker) for block in blocks):
            failures.append(f"{page}: a marker is before no block, or is none: {MARKER.pattern}")
        for block in blocks:
            reason = complaint(root, block)
            if block.marker == "run":
                reason = f"a second program is named '{block.argument}'" if block.argument in names else reason
                names.add(block.argument)
            failures += [f"{block.place}: {reason}"] if reason else []
            skipped += [block] if block.marker == "not run" else []
    return failures, skipped


def example_of(header):
    """The language and the text of the example in a public header; None where it has none, or more than one."""
    found = re.findall(r"^(?:// | \* )```(cpp|c)\n(.*?)^(?:// | \* )```", header.read_text(), re.MULTILINE | re.DOTALL)
    lines = found[0][1].splitlines() if len(found) == 1 else []
    return (found[0][0], "\n".join(line[3:] for line in lines) + "\n") if lines else None


def headers_of(root):
    return [path for path in sorted((root / "include/attn").glob("*.h")) if path.name != "attn.h"]


def check_headers(root):
    for header in headers_of(root):
        example = example_of(header)
        code = [line for line in (example or ("", ""))[1].splitlines()
                if re.search(r"\w", line) and not re.match(r"#include|using namespace", line)]
        if example is None or not re.search(r"^int main\(", example[1], re.MULTILINE):
            yield f"{header}: a header has one example, ```cpp or ```c, with its main()"
        elif len(code) > 12:
            yield f"{header}: its example has {len(code)} lines of code, at most 12"


def write_if_changed(path, text):
    """Keeps the time stamp of an unchanged file, so that nothing is compiled again."""
    if not path.exists() or path.read_text() != text:
        path.write_text(text)


def programs(directory, headers):
    directory.mkdir(parents=True, exist_ok=True)
    names = []
    for blocks in pages_with("cpp").values():
        for block in blocks:
            if headers and not set(re.findall(r'#include "(.*)"', block.text)) <= set(headers):
                continue
            names.append(f"{block.argument}.cpp")
            write_if_changed(directory / f"{block.argument}.cpp", block.text)
            output = directory / f"{block.argument}.txt"
            if block.output is None:
                output.unlink(missing_ok=True)
            else:
                write_if_changed(output, block.output)
    for header in headers_of(ROOT):
        language, text = example_of(header) or ("", "")
        if text and (not headers or set(re.findall(r'#include "(.*)"', text)) <= set(headers)):
            names.append(f"header_{header.stem}.{language}")
            write_if_changed(directory / names[-1], f'#include "attn/{header.name}"\n{text}')
    print(";".join(names), end="")


def compare(program, expected_file):
    run = subprocess.run([program], capture_output=True, text=True)
    if run.returncode != 0:
        sys.exit(f"{program} ended with {run.returncode}\n{run.stderr}")
    expected = expected_file.read_text()
    if run.stdout != expected:
        diff = difflib.unified_diff(expected.splitlines(True), run.stdout.splitlines(True), "documented", "printed")
        sys.exit("".join(diff))


def self_test():
    good = ["text", "a list\n    that goes on", "\n    attn info\n", "```sh\nattn info\n```", "```python\nx = 1\n```",
            "<!-- run: a -->\n```cpp\nint main() {}\n```\n```text\n1\n```", "```text\nattention\n```",
            "<!-- not run: downloads -->\n    hf download x", "<!-- from: src/a.cpp -->\n```cpp\nint b;\n```"]
    bad = ["```\nattn info\n```", "```json\n{}\n```", "```cpp\nint main() {}\n```", "<!-- run: a b -->\n```cpp\n```",
           "<!-- not run: no time -->\n    attn info", "<!-- not run: downloads -->\ntext",
           "```text\nattn see --x\n```",
           "<!-- not run downloads -->\n    hf download x", "<!-- from: src/a.cpp -->\n```cpp\nint c;\n```",
           "<!-- run: a -->\n```cpp\n```\n<!-- run: a -->\n```cpp\n```"]
    missed = []
    header = "// a: b.\n//\n// ```cpp\n// int main() {}\n// ```\n"
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder)
        (root / "include/attn").mkdir(parents=True)
        for text in (header, header * 2, "// a: b.\n", header.replace("main", "f"),
                     header.replace("// int", "// int a;\n" * 12 + "// int")):
            (root / "include/attn/a.h").write_text(text)
            if (list(check_headers(root)) == []) != (text == header):
                missed.append(f"wrong about the header\n{text}")
        (root / "src").mkdir()
        (root / "src/a.cpp").write_text("int a;\nint b;\n")
        for text in good + bad:
            (root / "page.md").write_text(f"# Page\n\n{text}\n")
            if (check(root)[0] == []) != (text in good):
                missed.append(f"wrong about\n{text}\n{check(root)[0]}")
    return missed


def main(arguments):
    failures = []
    if arguments[:1] == ["check"] and len(arguments) < 3:
        root = pathlib.Path(arguments[1]) if len(arguments) == 2 else ROOT
        failures, skipped = check(root)
        failures += check_headers(root)
        print(*[f"{block.place}: not run: {block.argument}" for block in skipped], sep="\n")
    elif arguments == ["self-test"]:
        failures = self_test()
    elif arguments[:1] == ["programs"] and len(arguments) >= 2:
        programs(pathlib.Path(arguments[1]), arguments[2:])
    elif arguments[:1] == ["compare"] and len(arguments) == 3:
        compare(arguments[1], pathlib.Path(arguments[2]))
    else:
        sys.exit(__doc__)
    sys.exit("\n".join(failures) or None)


if __name__ == "__main__":
    main(sys.argv[1:])
