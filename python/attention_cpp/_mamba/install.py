"""install(): these functions under the names of the package mamba_ssm."""

from __future__ import annotations

import importlib
import warnings
from types import ModuleType
from typing import Callable

from .._flash import package
from . import functions

_VERSION = "2.3.2"
FUNCTIONS = ["mamba_chunk_scan_combined", "mamba_split_conv1d_scan_combined", "selective_state_update"]
_MODULES = {"mamba_ssm": FUNCTIONS, "mamba_ssm.ops": [], "mamba_ssm.ops.triton": [],
            "mamba_ssm.ops.triton.ssd_combined": FUNCTIONS[:2],
            "mamba_ssm.ops.triton.selective_state_update": FUNCTIONS[2:]}
_undo: list[Callable[[], None]] = []  # the registry of install()


def install(*, force: bool = False) -> None:
    """Makes `import mamba_ssm` import these functions, as version 2.3.2 with mamba_ssm.ops.triton.ssd_combined and
    .selective_state_update. transformers looks them up when it imports the modeling file of a family, so that install()
    must be called before: it warns otherwise. These models look for causal_conv1d too: attention_cpp.causal_conv1d.

    Raises Error if another mamba_ssm can be imported, unless force is true. If that one works, its modules then stay in
    place with these functions in them, and tensors on other devices go to its own; otherwise it is hidden.
    """
    if _undo:
        return
    ours = {name: {function: getattr(functions, function) for function in names} for name, names in _MODULES.items()}
    theirs = _working_modules() if force else None
    if theirs:
        _undo.append(package.put_into(theirs, ours, functions.elsewhere))
    else:
        _undo.append(package.replace(ours, {"mamba_ssm": _VERSION}, force))
    late = package.looked_up_before(FUNCTIONS)
    if late:
        warnings.warn(f"attention_cpp.mamba_ssm.install() is too late for {', '.join(late)}: transformers looks for "
                      "mamba_ssm when it imports these files, so that they keep their slow functions. Call install() "
                      "before you import or load the model", stacklevel=2)


def uninstall() -> None:
    """Undoes install(). Modeling files of transformers that were imported meanwhile keep these functions."""
    while _undo:
        _undo.pop()()


def _working_modules() -> dict[str, ModuleType] | None:
    """The modules of another mamba_ssm, if it can be imported here."""
    try:
        return {name: importlib.import_module(name) for name in _MODULES}
    except Exception:  # whatever its import raises, as that of a missing triton
        return None
