"""install(): these functions under the name of the package causal_conv1d."""

from __future__ import annotations

import re
import sys
import warnings
from typing import Callable

from .._flash import package
from . import functions

_FUNCTIONS = {name: getattr(functions, name) for name in ("causal_conv1d_fn", "causal_conv1d_update")}
_VERSION = "1.5.2"
_undo: list[Callable[[], None]] = []  # the registry of install()


def install(*, force: bool = False) -> None:
    """Makes `import causal_conv1d` import these functions, as version 1.5.2 with .causal_conv1d_interface.
    importlib.metadata.version() finds the package. transformers then uses them in the models that it imports after:
    it looks for the package when it imports the file of a model. install() warns of those that were imported before.

    Raises Error if another installation of the package can be imported, unless force is true.
    """
    if _undo:
        return
    modules = {"causal_conv1d": _FUNCTIONS, "causal_conv1d.causal_conv1d_interface": _FUNCTIONS}
    _undo.append(package.replace(modules, {"causal_conv1d": _VERSION}, force))
    late = [name for name, module in list(sys.modules.items())
            if re.fullmatch(r"transformers\.models\.\w+\.modeling_\w+", name) and hasattr(module, "causal_conv1d_fn")]
    if late:
        warnings.warn(f"install() of attention_cpp.causal_conv1d has no effect on {', '.join(sorted(late))}: imported "
                      "before", stacklevel=2)


def uninstall() -> None:
    """Undoes install()."""
    while _undo:
        _undo.pop()()
