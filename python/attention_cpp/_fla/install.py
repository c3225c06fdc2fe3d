"""install(): these functions under the names of the package fla."""

from __future__ import annotations

import importlib
import warnings
from types import ModuleType
from typing import Callable

from .._flash import package
from . import calls, functions

_VERSION = "0.6.0"
_FAMILIES = ("gated_delta_rule", "kda", "delta_rule", "gla", "simple_gla", "retention", "linear_attn")
FUNCTIONS = [f"{kind}_{family}" for family in _FAMILIES for kind in ("chunk", "fused_recurrent")]
_MODULES = {"fla": FUNCTIONS, "fla.ops": FUNCTIONS,
            **{f"fla.ops.{family}": [f"chunk_{family}", f"fused_recurrent_{family}"] for family in _FAMILIES}}
_undo: list[Callable[[], None]] = []  # the registry of install()


def install(*, force: bool = False) -> None:
    """Makes `import fla` import these functions, as version 0.6.0 with fla.ops and fla.ops.<name> for gated_delta_rule,
    kda, delta_rule, gla, simple_gla, retention and linear_attn. transformers looks them up when it imports the modeling
    file of a family, so that install() must be called before: it warns otherwise.

    Raises Error if another fla can be imported, unless force is true. If that one works, its modules then stay in place
    with these functions in them, and tensors on other devices go to its own; otherwise it is hidden.
    """
    if _undo:
        return
    ours = {name: {function: getattr(functions, function) for function in names} for name, names in _MODULES.items()}
    theirs = _working_modules() if force else None
    if theirs:
        _undo.append(package.put_into(theirs, ours, calls.elsewhere))
    else:
        _undo.append(package.replace(ours, {"fla": _VERSION}, force, {"flash_linear_attention": _VERSION,
                                                                      "fla_core": _VERSION}))
    _warn_of(package.looked_up_before(FUNCTIONS))


def uninstall() -> None:
    """Undoes install(). Modeling files of transformers that were imported meanwhile keep these functions."""
    while _undo:
        _undo.pop()()


def _working_modules() -> dict[str, ModuleType] | None:
    """The modules of another fla, if it can be imported here."""
    try:
        return {name: importlib.import_module(name) for name in _MODULES}
    except Exception:  # whatever its import raises, as that of a missing triton
        return None


def _warn_of(late: list[str]) -> None:
    if late:
        warnings.warn(f"attention_cpp.fla.install() is too late for {', '.join(late)}: transformers looks for fla when "
                      "it imports these files, so that they keep their slow functions. Call install() before you "
                      "import or load the model", stacklevel=3)
