"""For install(): replaces the modules of a package, and its entry in importlib.metadata, or adds to its modules."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import pathlib
import re
import sys
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, Callable, Collection, Iterator, Mapping

from .._core import Error


class _Distribution(importlib.metadata.Distribution):
    """Metadata with the name and the version of a package."""

    def __init__(self, name: str, version: str) -> None:
        self._text = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"

    def read_text(self, filename: str) -> str | None:
        return self._text if filename == "METADATA" else None

    def locate_file(self, path: Any) -> Any:
        return pathlib.Path(path)


class _Finder(importlib.metadata.DistributionFinder):
    """Lets importlib.metadata find the packages; it imports nothing."""

    def __init__(self, versions: Mapping[str, str]) -> None:
        self._versions = versions

    def find_spec(self, *_: Any) -> None:
        return None

    def find_distributions(self, context: Any = importlib.metadata.DistributionFinder.Context()
                           ) -> Iterator[importlib.metadata.Distribution]:
        wanted = None if context.name is None else re.sub(r"[-_.]+", "_", context.name).lower()
        return (_Distribution(name, version) for name, version in self._versions.items() if wanted in (None, name))


def _make(modules: Mapping[str, Mapping[str, Any]], versions: Mapping[str, str]) -> dict[str, ModuleType]:
    made: dict[str, ModuleType] = {}
    for name, functions in modules.items():
        is_package = any(other.startswith(name + ".") for other in modules)
        module = ModuleType(name, "attention_cpp in the place of " + name)
        module.__spec__ = ModuleSpec(name, None, is_package=is_package)
        vars(module).update(functions, __version__=versions[name.partition(".")[0]])
        if is_package:
            module.__path__ = []
        parent, _, child = name.rpartition(".")
        if parent:
            setattr(made[parent], child, module)
        made[name] = module
    return made


def replace(modules: Mapping[str, Mapping[str, Any]], versions: Mapping[str, str], force: bool,
            distributions: Mapping[str, str] | None = None) -> Callable[[], None]:
    """Makes modules with these functions importable, in packages of these versions. Returns a function that undoes it.
    importlib.metadata finds the packages, or the distributions whose names are not those of packages.

    Raises Error if one of the packages can be imported already, unless force is true.
    """
    found = [name for name in versions if name in sys.modules or importlib.util.find_spec(name) is not None]
    if found and not force:
        raise Error(f"[install] another installation of {' and '.join(found)} can be imported; force=True hides it")
    displaced = {name: sys.modules.pop(name) for name in list(sys.modules) if name.partition(".")[0] in versions}
    made, finder = _make(modules, versions), _Finder(distributions or versions)
    sys.modules.update(made)
    sys.meta_path.insert(0, finder)

    def undo() -> None:
        sys.meta_path.remove(finder)
        for name, module in made.items():
            if sys.modules.get(name) is module:
                del sys.modules[name]
        sys.modules.update(displaced)

    return undo


def put_into(theirs: Mapping[str, ModuleType], ours: Mapping[str, Mapping[str, Any]],
             elsewhere: dict[str, Callable[..., Any]]) -> Callable[[], None]:
    """Sets our functions in the modules of another package, and its own in `elsewhere`; returns a function that
    restores both."""
    before = {name: {function: vars(theirs[name])[function] for function in functions if function in vars(theirs[name])}
              for name, functions in ours.items()}
    for name, module in theirs.items():
        elsewhere.update({function: own for function, own in before[name].items() if callable(own)})
        vars(module).update(ours[name])

    def undo() -> None:
        elsewhere.clear()
        for name, module in theirs.items():
            for function in ours[name]:
                del vars(module)[function]
            vars(module).update(before[name])

    return undo


def looked_up_before(functions: Collection[str]) -> list[str]:
    """Modeling files of transformers that have looked for these functions already, and found none."""
    return [name for name, module in list(sys.modules.items())
            if name.startswith("transformers.models.") and ".modeling_" in name
            and any([_found_none(value, functions) for value in list(vars(module).values())])]


def _found_none(function: Any, names: Collection[str]) -> bool:
    """Whether transformers has replaced this function of its own by a look-up, which found nothing."""
    cells = dict(zip(getattr(getattr(function, "__code__", None), "co_freevars", ()),
                     getattr(function, "__closure__", None) or ()))
    found = cells.get("func_name"), cells.get("implementation"), cells.get("torch_function")
    if found[0] is None or found[1] is None or found[2] is None or found[0].cell_contents not in names:
        return False
    return found[1].cell_contents is found[2].cell_contents
