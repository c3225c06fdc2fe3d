#!/usr/bin/env python3
"""Fails if an object compiled for one instruction set could reach a CPU that lacks it.

Of two copies of an inline function the linker keeps any: were one in an AVX-512 object, all of the program might run
that one. A static initialiser runs on every CPU. So a kernel object isa_<name>.cpp.o has no weak symbol and no
initialiser, exports its table isa_<name> and nothing else, and calls only the C library.

usage: check_isa.py [--nm NM] [--readelf READELF] OBJECT...
       check_isa.py [--nm NM] [--readelf READELF] --self-test COMPILER
"""

import argparse
import pathlib
import re
import subprocess
import sys
import tempfile

C_MEMORY = {"memcpy", "memmove", "memset"}
C_MATH = {
    name + suffix
    for name in "exp exp2 expm1 log log2 log1p tanh pow sqrt fabs fma floor ceil rint nearbyint".split()
    for suffix in ("", "f")
}
LINKER = {"_GLOBAL_OFFSET_TABLE_"}
TABLE = re.compile(r"_ZN4attn7kernels\d+(isa_\w+?)E$")


def output_of(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def symbols(nm, path):
    """(name, type letter of nm) of every symbol."""
    for line in output_of(nm, "--format=posix", path).splitlines():
        name, letter = line.split()[:2]
        yield name, letter


def check(path, nm, readelf):
    failures = []
    tables = []
    for name, letter in symbols(nm, path):
        table = TABLE.match(name)
        if letter in "WwVvu":
            failures.append(f"weak symbol {name}")
        elif letter == "U":
            if not table and name not in C_MEMORY | C_MATH | LINKER:
                failures.append(f"undefined symbol {name}")
        elif letter.isupper():
            if table:
                tables.append(table[1])
            else:
                failures.append(f"exported symbol {name}")
    wanted = path.name.split(".")[0]
    if tables != [wanted]:
        failures.append(f"exports the tables {tables}, not just {wanted}")
    for section in (".init_array", ".ctors"):
        if section in output_of(readelf, "--sections", "--wide", path):
            failures.append(f"static initialiser in {section}")
    return [f"{path}: {failure}" for failure in failures]


GOOD = """
namespace attn::kernels {
struct Isa { void (*run)(float*, int); };
extern const Isa isa_other, isa_x;
namespace {
void clear(float* x, int n) { __builtin_memset(x, 0, sizeof(float) * n); x[0] = __builtin_expf(x[1]); }
}
extern const Isa isa_x = {clear};
}
"""
BAD = {
    "weak symbol": "inline int twice(int x) { return 2 * x; }\nauto keep() { return &twice; }\n",
    "undefined symbol": "int elsewhere();\n__attribute__((used)) static int user() { return elsewhere(); }\n",
    "exported symbol": "int stray = 1;\n",
    "exports the tables": "namespace attn::kernels { extern const Isa isa_y = {nullptr}; }\n",
    "static initialiser": "static int (*volatile f)() = nullptr;\nstatic volatile int at_start = f ? f() : 3;\n",
}


def self_test(compiler, nm, readelf):
    missed = []
    with tempfile.TemporaryDirectory() as folder:
        source, built = pathlib.Path(folder, "isa_x.cpp"), pathlib.Path(folder, "isa_x.cpp.o")

        def failures_of(text):
            source.write_text(text)
            subprocess.run([compiler, "-std=c++17", "-w", "-fPIC", "-c", source, "-o", built], check=True)
            return check(built, nm, readelf)

        if failures := failures_of(GOOD):
            missed.append(f"refused without cause: {failures}")
        for expected, text in BAD.items():
            failures = failures_of(GOOD + text)
            if not any(expected in failure for failure in failures):
                missed.append(f"not refused: {expected}: {failures}")
    return missed


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--nm", default="nm")
    parser.add_argument("--readelf", default="readelf")
    parser.add_argument("--self-test", metavar="COMPILER")
    parser.add_argument("objects", nargs="*", type=pathlib.Path)
    arguments = parser.parse_args()
    if arguments.self_test:
        failures = self_test(arguments.self_test, arguments.nm, arguments.readelf)
    elif not arguments.objects:
        failures = ["no objects were given"]
    else:
        failures = [line for path in arguments.objects for line in check(path, arguments.nm, arguments.readelf)]
    print("\n".join(failures) if failures else "check_isa: ok")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
