#!/usr/bin/env python3
"""Shows that the tests fail when they should: puts each bug of operator.txt and the other tables into a copy of the
sources, one at a time, and demands that the test named beside it goes red. Ends with 'N/N killed'.

usage: run.py [NAME...]            all mutants, or those named
       run.py --sample SECONDS     20 that ATTN_SEED draws, or as many of them as that time allows
       run.py --list               their names and bugs
       run.py --check              only that the table fits the sources
       run.py --self-test          that --check refuses what it should
"""

import os
import pathlib
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
TABLES = ["operator.txt", "tiles.txt", "c.txt", "layers.txt", "checks.txt", "text.txt", "hub.txt", "statistics.txt",
          "view.txt", "heads.txt", "prune.txt", "decode.txt", "generate.txt", "core.txt",
          "linear.txt", "memory.txt", "sparse.txt", "products.txt", "training.txt", "cluster.txt"]
REQUIRED = ["name", "bug", "file", "find", "put", "test"]
OPTIONAL = ["cpu", "ranks"]  # a flag of the processor, without which it is not run; ranks of MPI that run the test
SAMPLE = 20
MPI = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
       "OMPI_MCA_rmaps_base_oversubscribe": "1"}  # Open MPI: more ranks than cores, and in a container
TIMEOUT = 1800  # seconds: a test that takes longer hangs, which is a failure too


# ------------------------------------------------------------------------------------------------------------ the table

def parse(text):
    """Records of `key: value` lines, apart by empty lines; a repeated key adds a line to its value."""
    records = []
    for block in re.split(r"\n\s*\n", text):
        record = {}
        for line in block.splitlines():
            if not line.strip() or line.startswith("#"):
                continue
            key, separator, value = line.partition(": ")
            if not separator:
                sys.exit(f"mutants: not 'key: value': {line}")
            record[key] = f"{record[key]}\n{value}" if key in record else value
        if record:
            records.append(record)
    return records


def pattern_of(text):
    """Matches the text however it is broken into lines."""
    return re.compile(r"\s+".join(re.escape(word) for word in text.split()))


def has_test(executable, test):
    """True if a source of the executable has a test that the filter selects: Suite.Name or Suite.*"""
    tests = ROOT / "tests"
    sources = [*(tests / executable.removeprefix("test_")).glob("test_*.cpp"), *tests.glob(f"*/{executable}.cpp")]
    suite, _, name = test.partition(".")
    pattern = r"TEST(_F)?\(" + suite + ", " + name.replace("*", r"\w+") + r"\)"
    return any(re.search(pattern, source.read_text()) for source in sources)


def faults(mutants):
    """Why the table does not fit the sources."""
    found = []
    for i, mutant in enumerate(mutants):
        name = mutant.get("name", f"mutant {i + 1}")
        missing = [key for key in REQUIRED if key not in mutant]
        unknown = [key for key in mutant if key not in REQUIRED + OPTIONAL]
        if missing or unknown:
            found.append(f"{name}: lacks {missing}, does not know {unknown}")
            continue
        if name in (other["name"] for other in mutants[:i] if "name" in other):
            found.append(f"{name}: occurs twice")
        path = ROOT / mutant["file"]
        count = len(pattern_of(mutant["find"]).findall(path.read_text())) if path.exists() else 0
        if count != 1:
            found.append(f"{name}: {mutant['file']} has its text {count} times, must be 1: {mutant['find']}")
        if mutant["find"] == mutant["put"]:
            found.append(f"{name}: changes nothing")
        executable, _, test = mutant["test"].partition(" ")
        if not has_test(executable, test):
            found.append(f"{name}: {executable} has no test {test}")
    return found


def self_test():
    good = {"name": "a", "bug": "b", "file": "src/attention/dropout.cpp", "find": "return words[j % 4] >= threshold;",
            "put": "return true;", "test": "test_attention Forward.LongRows"}
    bad = [{"find": "no such text"}, {"find": "threshold"}, {"put": good["find"]}, {"file": "src/none.cpp"},
           {"test": "test_attention Forward.None"}, {"test": "test_none Forward.LongRows"}, {"color": "red"}]
    wrong = faults([good])
    wrong += [f"not refused: {change}" for change in bad if not faults([{**good, **change}])]
    wrong += [f"not refused: no {key}" for key in REQUIRED if not faults([{k: v for k, v in good.items() if k != key}])]
    wrong += [] if faults([good, good]) else ["not refused: the same name twice"]
    return wrong


# ------------------------------------------------------------------------------------------------------------- the runs

def run_command(command, **options):
    """A command that somebody else ended has no verdict: taken for a failure, it would be a kill that never was."""
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True, "errors": "replace", **options}
    done = subprocess.run(command, **options)
    if -done.returncode in (signal.SIGINT, signal.SIGKILL, signal.SIGTERM):
        sys.exit(f"ended from outside by signal {-done.returncode}: {' '.join(map(str, command))}")
    return done


class Tree:
    """A copy of the project with one build directory."""

    def __init__(self, folder):
        self.source, self.build = folder / "source", folder / "build"
        shutil.copytree(ROOT, self.source, ignore=shutil.ignore_patterns("build", ".git"))
        command = ["cmake", "-S", self.source, "-B", self.build, "-G", "Ninja", "-D", "CMAKE_BUILD_TYPE=Release",
                   "-D", "ATTN_KERNEL_OPTIMIZATION=-O1",
                   "-D", "ATTN_BUILD_BENCH=OFF", "-D", "ATTN_BUILD_EXAMPLES=OFF"]
        configured = run_command(command)
        if configured.returncode != 0:
            sys.exit(configured.stdout)

    def compile(self, target):
        """The compiler's complaint, or nothing."""
        done = run_command(["cmake", "--build", self.build, "--target", target])
        return "" if done.returncode == 0 else f"does not build, {done.returncode}\n{done.stdout}"

    def passes(self, executable, tests, ranks):
        """Runs tests up to the first failure, as an ordinary run does: what that misses is missed."""
        environment = {key: value for key, value in os.environ.items() if not key.startswith("ATTN_")} | MPI
        command = [*(["mpirun", "-n", ranks] if ranks else []), self.build / "tests" / executable,
                   "--gtest_throw_on_failure", "--gtest_filter=" + tests]
        try:
            return run_command(command, env=environment, timeout=TIMEOUT).returncode == 0
        except subprocess.TimeoutExpired:
            return False

    def verdict(self, mutant):
        """killed, SURVIVED, or INVALID with the reason."""
        path = self.source / mutant["file"]
        original = path.read_text()
        path.write_text(pattern_of(mutant["find"]).sub(lambda _: mutant["put"], original))
        try:
            executable, _, tests = mutant["test"].partition(" ")
            complaint = self.compile(executable)
            if complaint:
                return f"INVALID, {complaint}"
            return "SURVIVED" if self.passes(executable, tests, mutant.get("ranks")) else "killed"
        finally:
            path.write_text(original)


def red_without_mutants(tree, mutants):
    """The executables of which some test fails anyway, and would kill every mutant."""
    tests = {}
    for mutant in mutants:
        executable, _, test = mutant["test"].partition(" ")
        tests.setdefault((executable, mutant.get("ranks", "")), set()).add(test)
    red = set()
    for (executable, ranks), names in sorted(tests.items()):
        complaint = tree.compile(executable)
        if complaint or not tree.passes(executable, ":".join(sorted(names)), ranks):
            red.add(executable)
        verdict = complaint or ("RED" if executable in red else "green")
        print(f"{executable} without mutants: {verdict}", flush=True)
    return red


def run(mutants, seconds=float("inf")):
    end = time.monotonic() + seconds
    mutants = sorted(mutants, key=lambda mutant: mutant["file"])  # neighbours share what has to be compiled again
    killed = tried = 0
    with tempfile.TemporaryDirectory(prefix="attn_mutants_") as folder:
        tree = Tree(pathlib.Path(folder))
        red = red_without_mutants(tree, mutants)
        for tried, mutant in enumerate(mutants, 1):
            anyway = mutant["test"].split()[0] in red
            verdict = "INVALID, its test fails without it" if anyway else tree.verdict(mutant)
            killed += verdict == "killed"
            print(f"[{tried}/{len(mutants)}] {mutant['name']}: {verdict}", flush=True)
            if time.monotonic() > end:
                break
    print(f"{killed}/{tried} killed")
    return 0 if killed == tried else 1


def said_to_run_here(mutant):
    """False, with a word about it, where this processor never reaches the changed code."""
    flags = pathlib.Path("/proc/cpuinfo")
    here = "cpu" not in mutant or not flags.exists() or mutant["cpu"] in flags.read_text().split()
    if not here:
        print(f"{mutant['name']}: skipped, this processor has no {mutant['cpu']}")
    return here


def drawn(mutants, seed):
    """Successive seeds deal out a shuffled pack, so that all have had their turn after len / SAMPLE of them."""
    pack = sorted(mutants, key=lambda mutant: mutant["name"])
    random.Random(0).shuffle(pack)
    first = seed * SAMPLE % len(pack)
    return (pack + pack)[first:first + min(SAMPLE, len(pack))]


def main(arguments):
    mutants = [mutant for table in TABLES for mutant in parse((HERE / table).read_text())]
    wrong = self_test() if arguments == ["--self-test"] else faults(mutants)
    if wrong or arguments in (["--check"], ["--self-test"]):
        print("\n".join(wrong) if wrong else "mutants: ok")
        return 1 if wrong else 0
    if arguments == ["--list"]:
        for mutant in mutants:
            print(f"{mutant['name']:34} {mutant['bug']}")
        return 0
    seconds = float("inf")
    if arguments[:1] == ["--sample"] and len(arguments) == 2:
        seed, seconds = int(os.environ.get("ATTN_SEED", "1")), float(arguments[1])
        print(f"{SAMPLE} of {len(mutants)} mutants, ATTN_SEED={seed}", flush=True)
        chosen = drawn(mutants, seed)
    else:
        unknown = set(arguments) - {mutant["name"] for mutant in mutants}
        if unknown:
            sys.exit(f"{__doc__}\nno mutant is called {', '.join(sorted(unknown))}")
        chosen = [mutant for mutant in mutants if mutant["name"] in arguments or not arguments]
    return run([mutant for mutant in chosen if said_to_run_here(mutant)], seconds)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
