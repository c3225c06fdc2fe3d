#!/usr/bin/env python3
"""Installs the libraries and uses them from outside in every way that the README and docs/install.md show.

usage: check.py static|shared --build BUILD --work FOLDER --config CONFIG --generator NAME --cxx COMPILER

BUILD is the static build that the tests belong to. The shared libraries, and those that a project builds as part of
itself, are linked of the same objects (reuse.py).
"""

import argparse
import os
import pathlib
import re
import shutil
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
C_PROGRAM = ROOT / "examples/03_plain_c.c"
PROJECTS = ("find_package(attn", "FetchContent_Declare")  # in the blocks of CMake on the pages

sys.path.insert(0, str(ROOT / "tools"))
import extract_snippets  # noqa: E402


def run(*command, **options):
    """The output of a command, which must succeed."""
    print("$", *command, flush=True)
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False, **options)
    if done.returncode != 0:
        sys.exit(f"{done.stdout}{done.stderr}\nended with {done.returncode}")
    return done.stdout


def require(condition, message):
    if not condition:
        sys.exit(message)


def blocks_with(language, text):
    """The blocks of all pages in this language that have this text in them."""
    found = [block for blocks in extract_snippets.pages_with(language).values() for block in blocks]
    return [block.text for block in found if text in block.text]


def page_block(language, text):
    """The one of them."""
    found = blocks_with(language, text)
    require(len(found) == 1, f"one {language} block of the pages must have '{text}' in it, not {len(found)}")
    return found[0]


class Check:
    def __init__(self, arguments):
        self.a = arguments
        self.shared = arguments.kind == "shared"
        self.work = pathlib.Path(arguments.work)
        self.prefix = self.work / "moved"
        self.models = (pathlib.Path(arguments.build) / "cli").exists()
        shutil.rmtree(self.work, ignore_errors=True)
        self.work.mkdir(parents=True)
        os.environ["ATTN_REUSE"] = arguments.build

    def cmake(self, source, build, *definitions):
        """The command that configures, with the compiler and build type of the tests."""
        return ["cmake", "-S", source, "-B", build, "-G", self.a.generator, f"-DCMAKE_BUILD_TYPE={self.a.config}",
                f"-DCMAKE_CXX_COMPILER={self.a.cxx}", *definitions]

    def library_options(self):
        return [f"-DBUILD_SHARED_LIBS={'ON' if self.shared else 'OFF'}", "-DATTN_WARNINGS_AS_ERRORS=ON",
                f"-DATTN_BUILD_MODELS={'ON' if self.models else 'OFF'}",
                f"-DCMAKE_CXX_COMPILER_LAUNCHER={sys.executable};{HERE / 'reuse.py'}"]

    def install(self):
        """To a prefix that is moved afterwards: nothing that is installed may know where it was."""
        build = pathlib.Path(self.a.build)
        if self.shared:
            build = self.work / "build"
            run(*self.cmake(ROOT, build, "-DATTN_BUILD_EXAMPLES=OFF", *self.library_options()))
            run("cmake", "--build", build, "--config", self.a.config)
        run("cmake", "--install", build, "--config", self.a.config, "--prefix", self.work / "prefix")
        (self.work / "prefix").rename(self.prefix)

    def files(self):
        headers = {path.name for path in (self.prefix / "include/attn").iterdir()}
        missing = {path.name for path in (ROOT / "include/attn").glob("*.h")} - headers
        require(not missing, f"not installed: {missing}")
        require(list(self.prefix.glob("share/doc/*/LICENSE")), "LICENSE is not installed")
        if self.models:
            require(run(self.prefix / "bin/attn", "--version").startswith("attn "), "attn --version")

    def consume(self, name, block, *definitions):
        """Configures, builds and runs the project in consumer/ with the lines of the README in `block`."""
        build = self.work / name
        (self.work / f"{name}.cmake").write_text(block)
        run(*self.cmake(HERE / "consumer", build, f"-DREADME={self.work / name}.cmake", f"-DC_PROGRAM={C_PROGRAM}",
                        *definitions))
        run("cmake", "--build", build, "--config", self.a.config)
        programs = ["your_program", "c_program"] + (["models_program", "view_program"] if self.models else [])
        for program in programs:
            run(build / program)
        return build

    def find_package(self):
        block = page_block("cmake", PROJECTS[0])
        installed = f"-DCMAKE_PREFIX_PATH={self.prefix}"
        build = self.consume("find_package", block, installed)
        # A program that links the library needs the C++ runtime and nothing else.
        needed = re.findall(r"\(NEEDED\).*\[(.*)\]", run("readelf", "--dynamic", build / "your_program"))
        runtime = re.compile(r"lib(stdc\+\+|m|gcc_s|c|pthread|c\+\+|c\+\+abi)\.so|ld-linux")
        others = [library for library in needed if not runtime.match(library)]
        require(others == (["libattn.so.0.1"] if self.shared else []), f"the program needs {others}")

    def c_alone(self):
        """A project that has no C++ in it."""
        build = self.work / "c_alone"
        run("cmake", "-S", HERE / "c_alone", "-B", build, "-G", self.a.generator, f"-DCMAKE_PREFIX_PATH={self.prefix}",
            f"-DC_PROGRAM={C_PROGRAM}")
        run("cmake", "--build", build)
        printed = run(build / "c_program")
        require(printed == (ROOT / "examples/03_plain_c.expected").read_text(), f"03_plain_c printed\n{printed}")

    def components(self):
        """Without packages that a library needs, the others are found, and its own component says what is missing."""
        block = self.work / "components.cmake"
        for lines, missing, found, refusal in (
            ("find_package(attn REQUIRED)\n", "PNG", "models", None),
            ("find_package(attn REQUIRED)\n", "ZLIB", "", None),
            ("find_package(attn REQUIRED COMPONENTS attn)\n", "PNG", "", None),
            ("find_package(attn REQUIRED COMPONENTS models)\n", "PNG", "models", None),
            ("find_package(attn REQUIRED COMPONENTS models)\n", "ZLIB", "", "attn::models needs ZLIB"),
            ("find_package(attn REQUIRED COMPONENTS view)\n", "PNG", "", "attn::view needs PNG"),
            ("find_package(attn REQUIRED COMPONENTS view)\n", "ZLIB", "", "attn::view needs ZLIB"),
            ("find_package(attn REQUIRED COMPONENTS layers)\n", "PNG", "", "there is no component layers"),
            ("find_package(attn 0.2 REQUIRED)\n", "PNG", "", "0.2"),
        ):
            block.write_text(lines + "foreach(component models view)\n  if(TARGET attn::${component})\n"
                             "    list(APPEND found ${component})\n  endif()\nendforeach()\n"
                             f'if(NOT "${{found}}" STREQUAL "{found}")\n  message(FATAL_ERROR "found ${{found}}")\n'
                             "endif()\n")
            done = subprocess.run(self.cmake(HERE / "consumer", self.work / f"components_{missing}",
                                             f"-DREADME={block}", f"-DCMAKE_PREFIX_PATH={self.prefix}",
                                             f"-DCMAKE_DISABLE_FIND_PACKAGE_{missing}=ON", f"-DC_PROGRAM={C_PROGRAM}"),
                                  capture_output=True, text=True, check=False)
            require((done.returncode == 0) == (refusal is None), f"{lines}{done.stdout}{done.stderr}")
            require(refusal is None or refusal in " ".join(done.stderr.split()), f"{lines}{done.stderr}")

    def fetch_content(self):
        self.consume("fetch_content", page_block("cmake", PROJECTS[1]),
                     f"-DFETCHCONTENT_SOURCE_DIR_ATTN={ROOT}", *self.library_options())

    def pkg_config(self):
        folder = self.work / "pkg_config"
        shutil.copytree(HERE / "consumer", folder)
        libraries = next(self.prefix.glob("lib*/**/attn.pc")).parent
        environment = {**os.environ, "PKG_CONFIG_PATH": str(libraries), "LD_LIBRARY_PATH": str(libraries.parent)}
        static = "" if self.shared else "--static"
        strict = "-Wall -Wextra -Wpedantic -Werror"
        commands = {"program": page_block("sh", "c++ -std").strip(),
                    "c_program": f"cc -std=c11 {strict} {C_PROGRAM} -o c_program "
                                 f"$(pkg-config {static} --cflags --libs attn)"}
        if self.models:
            for library in ("models", "view"):
                commands[library] = (f"{self.a.cxx} -std=c++20 {strict} {library}.cpp -o {library} "
                                     f"$(pkg-config {static} --cflags --libs attn-{library})")
        for program, command in commands.items():
            run("sh", "-c", command, cwd=folder, env=environment)
            run(folder / program, env=environment)

    def symbols(self):
        """A shared library exports what the public headers declare, and what the libraries on top of it need."""
        headers = " ".join(path.read_text() for path in (ROOT / "include/attn").glob("*.h"))
        public = set(re.findall(r"\w+", headers)) | {
            "Checker", "RecordedNeeds", "SharedBuffer", "active_kernels", "as_shown", "check_recorded",
            "check_streaming", "control_groups", "count_memory", "in_quotes", "occupied_bytes", "parse_json",
            "thread_scratch"}
        for library in sorted(self.prefix.glob("lib*/**/libattn*.so")):
            soname = re.search(r"\(SONAME\).*\[(.*)\]", run("readelf", "--dynamic", library))
            require(soname and soname[1] == f"{library.name}.0.1", f"{library.name}: no versioned soname")
            symbols = run("nm", "--dynamic", "--defined-only", "--demangle", library)
            require("attn::" in symbols, f"{library.name} exports nothing")
            for line in symbols.splitlines():
                self.judge(library.name, line.split(" ", 2)[1:], public)
        c_functions = set(re.findall(r"\b(attn_\w+)\(", headers))
        exported = set(re.findall(r" T (attn_\w+)$", run("nm", "-D", next(self.prefix.glob("lib*/**/libattn.so"))),
                                  re.MULTILINE))
        require(exported == c_functions, f"attn/c.h and the library differ: {exported ^ c_functions}")

    @staticmethod
    def judge(library, symbol, public):
        kind, name = symbol
        words = [word for path in re.findall(r"attn::([\w:]+)", name) for word in path.split("::") if word]
        if kind in "VWu":  # what templates of the standard library leave after
            hidden = {"kernels", "detail"} & set(words)
            allowed = "attn::" in name or "std::" in name
        else:
            hidden = set(words) - public
            allowed = name.startswith(("attn::", "attn_"))
        require(allowed and not hidden, f"{library} exports {kind} {name}")

    def ctypes(self):
        library = next(self.prefix.glob("lib*/**/libattn.so"))
        printed = run(sys.executable, ROOT / "examples/04_ctypes.py", library)
        require(printed == (ROOT / "examples/04_ctypes.expected").read_text(), f"04_ctypes.py printed\n{printed}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("kind", choices=("static", "shared"))
    for name in ("build", "work", "config", "generator", "cxx"):
        parser.add_argument(f"--{name}", required=True)
    check = Check(parser.parse_args())
    require(len(blocks_with("cmake", "")) == len(PROJECTS), "a block of CMake on the pages is not built here")
    check.install()
    check.files()
    check.find_package()
    check.c_alone()
    check.fetch_content()
    check.pkg_config()
    if check.shared:
        check.symbols()
        check.ctypes()
    elif check.models:
        check.components()


main()
