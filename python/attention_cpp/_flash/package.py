"""For install(): replaces the modules of a package, and its entry in importlib.metadata, or adds to its modules."""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import pathlib
import re
import sys
import warnings
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


class DropIn:
    """Functions under the names of a package that transformers looks up when it imports the modeling file of a family.

    modules maps each module of the package to the names of its functions, which `functions` has. `elsewhere` receives
    the package's own functions, for tensors on other devices.
    """

    def __init__(self, version: str, modules: Mapping[str, Collection[str]], functions: ModuleType,
                 elsewhere: dict[str, Callable[..., Any]], distributions: Collection[str] = ()) -> None:
        self._version, self._functions, self._elsewhere = version, functions, elsewhere
        self._modules, self._distributions = modules, distributions
        self._name = next(iter(modules))
        self._undo: list[Callable[[], None]] = []

    def install(self, force: bool) -> None:
        if self._undo:
            return
        ours = {module: {name: getattr(self._functions, name) for name in names}
                for module, names in self._modules.items()}
        theirs = self._working_modules() if force else None
        if theirs:
            self._undo.append(put_into(theirs, ours, self._elsewhere))
        else:
            distributions = dict.fromkeys(self._distributions, self._version) or None
            self._undo.append(replace(ours, {self._name: self._version}, force, distributions))
        late = looked_up_before(self._modules[self._name])
        if late:
            warnings.warn(f"attention_cpp.{self._name}.install() is too late for {', '.join(late)}: transformers looks "
                          f"for {self._name} when it imports these files, so that they keep their slow functions. Call "
                          "install() before you import or load the model", stacklevel=3)

    def uninstall(self) -> None:
        while self._undo:
            self._undo.pop()()

    def _working_modules(self) -> dict[str, ModuleType] | None:
        """The modules of another installation of the package, if it can be imported here."""
        try:
            return {module: importlib.import_module(module) for module in self._modules}
        except Exception:  # whatever its import raises, as that of a missing triton
            return None
