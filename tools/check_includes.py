#!/usr/bin/env python3
"""Fails on any #include that the layout of ARCHITECTURE.md does not allow.

A module sees itself and the modules named in its row; beyond them the standard library, and the foreign headers of its
row. Kernel files that are compiled once per instruction set see four C headers and each other, nothing else: an inline
function of the standard library, compiled for a newer CPU, may be the copy that the linker keeps for all.

usage: check_includes.py [ROOT]      check_includes.py --self-test
"""

import pathlib
import re
import sys
import tempfile

# module: (modules it may include, prefixes of foreign headers it may include)
MODULES = {
    "core": ((), ("cpuid.h", "pthread.h", "sched.h", "signal.h", "sys/mman.h", "unistd.h")),
    "kernels": (("core",), ("cpuid.h", "sys/auxv.h", "sys/syscall.h", "unistd.h")),
    "attention": (("core", "kernels"), ()),
    "linear": (("core", "kernels"), ()),
    "c": (("core", "attention", "linear"), ()),
    "cluster": (("core", "attention"), ("mpi.h",)),
    "record": (("core", "attention"), ("fcntl.h", "sys/mman.h", "unistd.h")),
    "heads": (("core", "attention", "record"), ()),
    "peaks": (("core", "attention"), ()),
    "ops": (("core", "kernels"), ()),
    "io": (("core",), ("nlohmann/", "fcntl.h", "sys/file.h", "sys/mman.h", "sys/stat.h", "unistd.h", "zlib.h")),
    "text": (("core", "io"), ("pcre2.h", "utf8proc.h")),
    "autograd": (("core", "attention", "linear", "cluster", "ops"), ()),
    "view": (("core", "attention", "record", "heads", "io"), ("png.h", "utf8proc.h", "zlib.h")),
    "nn": (("core", "attention", "linear", "record", "autograd", "io"), ()),
    "models": (("core", "attention", "cluster", "record", "ops", "autograd", "nn", "io", "text"), ("nlohmann/",)),
    "generate": (("core", "autograd", "cluster", "models", "text"), ()),
    "train": (("core", "cluster", "autograd", "nn", "models", "io", "text"), ("nlohmann/",)),
}

# Foreign headers that a public header includes.
PUBLIC = {"cluster_mpi": ("mpi.h",)}

# A second public header of a module.
PREFIXES = {"tensor": "core", "profile": "core"}

# Programs see the public headers, and the foreign (or generated) headers with these prefixes.
PROGRAMS = {
    "cli": (
        "CLI/", "fmt/", "httplib.h", "linux/", "nlohmann/", "dlfcn.h", "fcntl.h", "malloc.h", "poll.h", "sched.h",
        "sys/", "unistd.h",
    ),
    "python": ("nanobind/", "unistd.h"),
    "examples": (),
    "bench": (
        "CLI/", "commit.h", "sched.h", "malloc.h", "nlohmann/", "omp.h", "oneapi/dnnl/", "regex", "sys/",
    ),
    "tests": (
        "gtest/", "gmock/", "linux/", "nlohmann/", "png.h", "sys/", "unistd.h", "malloc.h", "sched.h", "pthread.h",
        "signal.h", "omp.h", "zlib.h",
    ),
}

ISA_FILE = re.compile(
    r"(isa_.*\.cpp|.*\.kernel\.h|(vec|unit)_.*\.h|((elements|products|linear)_)?table\.h|portable\.h|dot\.h)$"
)
ISA_HEADERS = {"stddef.h", "stdint.h", "immintrin.h", "arm_neon.h"}

STANDARD = set(
    """
    algorithm any array atomic barrier bit bitset charconv chrono compare complex concepts condition_variable coroutine
    deque exception execution filesystem format forward_list fstream functional future initializer_list iomanip ios
    iosfwd iostream istream iterator latch limits list locale map memory memory_resource mutex new numbers numeric
    optional ostream queue random ranges ratio scoped_allocator semaphore set shared_mutex source_location span sstream
    stack stdexcept stop_token streambuf string string_view syncstream system_error thread tuple type_traits typeindex
    typeinfo unordered_map unordered_set utility valarray variant vector version cassert cctype cerrno cfenv cfloat
    cinttypes climits clocale cmath csetjmp csignal cstdarg cstddef cstdint cstdio cstdlib cstring ctime cuchar cwchar
    cwctype
    """.split()
)

# A C program, and the header that C reads, see C's own headers in their stead.
C_STANDARD = {f"{name}.h" for name in "assert inttypes math stddef stdint stdio stdlib string".split()}

INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]')
SOURCES = {".h", ".hpp", ".cpp", ".cc", ".c"}


def sources(root):
    for top in ("include", "src", *PROGRAMS):
        for path in sorted((root / top).rglob("*")):
            if path.suffix in SOURCES:
                yield path.relative_to(root)


def includes(path):
    for number, line in enumerate(path.read_text().splitlines(), 1):
        if match := INCLUDE.match(line):
            yield number, match[1] == '"', match[2]


def resolve(root, path, name):
    """The project file that an include means, as the compiler searches for it; None if it is not the project's."""
    tests = [pathlib.Path("tests")] if path.parts[0] == "tests" else []
    for folder in (path.parent, *tests, pathlib.Path("src"), pathlib.Path("include")):
        if (root / folder / name).is_file():
            return pathlib.Path((folder / name).as_posix())
    return None


def module_of(path):
    """The module a project file belongs to; of a public header, <module>.h or <module>_<part>.h, the one whose
    interface it is."""
    if path.parts[0] == "src":
        return path.parts[1]
    if path.parts[0] == "include":
        module = PREFIXES.get(path.stem, path.stem.split("_")[0])
        return module if module in MODULES else None
    return None


def is_public(path):
    return path.parts[0] == "include"


def standard_headers(path):
    return C_STANDARD if path.suffix == ".c" or (is_public(path) and re.match(r"c(_\w+)?\.h$", path.name)) else STANDARD


def own_modules(path):
    """The tests of a module, tests/MODULE/, may also include its private headers; bench/kernels.cpp times the kernels,
    tests/support/main.cpp and the program of tests/parity offer one more set of them."""
    if path.as_posix() in ("bench/kernels.cpp", "tests/support/main.cpp", "tests/parity/parity.cpp"):
        return {"kernels"}
    return {path.parts[1]} if path.parts[0] == "tests" else set()


def refusal(path, name, target):
    """Why `path` may not include `name`, or None. `target` is the project file that the name means."""
    top, module = path.parts[0], module_of(path)
    if (module == "kernels" or top == "tests") and ISA_FILE.match(path.name):
        near = target and (target.parts[:2] == ("src", "kernels") or target.parent == path.parent)
        allowed = near if target else name in ISA_HEADERS
        return None if allowed else "a kernel file sees four C headers and its own folder"
    if name == "attn/needs C++20":  # which ends the compilation of an older language
        return None
    if target is None:
        public = PUBLIC.get(path.stem, ())
        foreign = PROGRAMS[top] if top in PROGRAMS else MODULES[module][1] if top == "src" else public
        allowed = name in standard_headers(path) or any(name.startswith(prefix) for prefix in foreign)
        return None if allowed else "not a header of the standard library, nor of its table row"

    wanted = module_of(target)
    if top in PROGRAMS:
        own = target.parts[0] == top or (top in ("tests", "bench") and wanted in own_modules(path))
        return None if own or is_public(target) else "a program sees public headers only"
    if top == "include" and not is_public(target):
        return "a public header sees public headers only"
    if module is None:  # attn.h, which includes them all
        return None
    if wanted is None:
        return "a module names the headers it needs, one by one"
    return None if wanted == module or wanted in MODULES[module][0] else f"{module} may not see {wanted}"


def check(root):
    failures = []
    for path in sources(root):
        if path.parts[0] == "src" and (len(path.parts) < 3 or path.parts[1] not in MODULES):
            failures.append(f"{path}: no such module in the table")
            continue
        for number, quoted, name in includes(root / path):
            own = quoted or name.startswith("attn/")
            reason = refusal(path, name, resolve(root, path, name) if own else None)
            if reason:
                failures.append(f"{path}:{number}: includes {name}: {reason}")
    return failures


def self_test():
    good = {
        "include/attn/core.h": '#include <vector>\n#include "attn/tensor.h"\n',
        "include/attn/tensor.h": "#include <array>\n",
        "include/attn/attention.h": '#include "attn/core.h"\n#include "attn/attention_extra.h"\n',
        "include/attn/attention_extra.h": '#include "attn/core.h"\n',
        "include/attn/attn.h": '#include "attn/attention.h"\n',
        "include/attn/c.h": "#include <stdint.h>\n",
        "src/core/a.cpp": '#include <pthread.h>\n#include "attn/core.h"\n',
        "src/core/scratch.h": "#include <cstdint>\n",
        "src/kernels/table.h": "#include <stdint.h>\n",
        "src/kernels/vec_x.h": '#include <immintrin.h>\n#include "kernels/table.h"\n',
        "src/kernels/dispatch.cpp": '#include <atomic>\n#include "attn/core.h"\n#include "kernels/table.h"\n',
        "src/attention/mask.h": '#include "attn/attention.h"\n',
        "src/attention/mask.cpp": '#include "mask.h"\n#include "kernels/table.h"\n#include "core/scratch.h"\n',
        "tests/kernels/isa_y.cpp": '#include "kernels/table.h"\n#include "unit_y.h"\n',
        "tests/kernels/unit_y.h": "#include <stdint.h>\n",
        "tests/attention/test_mask.cpp": '#include <gtest/gtest.h>\n#include "attention/mask.h"\n',
        "examples/a.cpp": '#include "attn/attn.h"\n',
        "examples/b.c": '#include <stdio.h>\n#include "attn/c.h"\n',
    }
    bad = {
        "include/attn/core.h": '#include "attn/attention.h"\n',
        "include/attn/c.h": "#include <vector>\n",
        "examples/b.c": "#include <unistd.h>\n",
        "include/attn/attention.h": '#include "core/scratch.h"\n',
        "include/attn/core_extra.h": '#include "attn/attention.h"\n',
        "src/core/a.cpp": '#include "attn/attention.h"\n',
        "src/core/b.cpp": '#include "attention/mask.h"\n',
        "src/core/c.cpp": "#include <boost/any.hpp>\n",
        "src/kernels/isa_x.cpp": "#include <algorithm>\n",
        "src/kernels/gemm.kernel.h": '#include "attn/core.h"\n',
        "src/kernels/dispatch.cpp": '#include "attention/mask.h"\n',
        "src/attention/mask.cpp": '#include "attn/attn.h"\n',
        "src/unknown/a.cpp": "#include <vector>\n",
        "tests/attention/test_mask.cpp": '#include "core/scratch.h"\n',
        "examples/a.cpp": '#include "core/scratch.h"\n',
        "bench/a.cpp": "#include <gtest/gtest.h>\n",
    }

    def write(root, files):
        for name, text in files.items():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text(text)

    missed = []
    with tempfile.TemporaryDirectory() as folder:
        write(pathlib.Path(folder), good)
        missed += [f"refused without cause: {failure}" for failure in check(pathlib.Path(folder))]
    for name, text in bad.items():
        with tempfile.TemporaryDirectory() as folder:
            write(pathlib.Path(folder), {**good, name: text})
            failures = check(pathlib.Path(folder))
            if len(failures) != 1 or not failures[0].startswith(name):
                missed.append(f"not refused: {name}: {text.strip()} {failures}")
    return missed


def main():
    arguments = sys.argv[1:]
    root = pathlib.Path(__file__).resolve().parent.parent
    failures = self_test() if arguments == ["--self-test"] else check(pathlib.Path(arguments[0]) if arguments else root)
    print("\n".join(failures) if failures else "check_includes: ok")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
