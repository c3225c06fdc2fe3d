"""install(): these functions under the names of the package mamba_ssm."""

from __future__ import annotations

from .._flash import package
from . import functions

FUNCTIONS = ["mamba_chunk_scan_combined", "mamba_split_conv1d_scan_combined", "selective_state_update"]
_MODULES = {"mamba_ssm": FUNCTIONS, "mamba_ssm.ops": [], "mamba_ssm.ops.triton": [],
            "mamba_ssm.ops.triton.ssd_combined": FUNCTIONS[:2],
            "mamba_ssm.ops.triton.selective_state_update": FUNCTIONS[2:]}
_drop_in = package.DropIn("2.3.2", _MODULES, functions, functions.elsewhere)


def install(*, force: bool = False) -> None:
    """Makes `import mamba_ssm` import these functions, as version 2.3.2 with mamba_ssm.ops.triton.ssd_combined and
    .selective_state_update. transformers looks them up when it imports the modeling file of a family, so that install()
    must be called before: it warns otherwise. These models look for causal_conv1d too: attention_cpp.causal_conv1d.

    Raises Error if another mamba_ssm can be imported, unless force is true. If that one works, its modules then stay in
    place with these functions in them, and tensors on other devices go to its own; otherwise it is hidden.
    """
    _drop_in.install(force)


def uninstall() -> None:
    """Undoes install(). Modeling files of transformers that were imported meanwhile keep these functions."""
    _drop_in.uninstall()
