"""Replaces the modules of a package, and its entry in importlib.metadata, for install()."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import pathlib
import re
import sys
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, Callable, Iterator, Mapping

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
