"""install(): these functions under the names of the package fla."""

from __future__ import annotations

from .._flash import package
from . import calls, functions

_FAMILIES = ("gated_delta_rule", "kda", "delta_rule", "gla", "simple_gla", "retention", "linear_attn")
FUNCTIONS = [f"{kind}_{family}" for family in _FAMILIES for kind in ("chunk", "fused_recurrent")]
_MODULES = {"fla": FUNCTIONS, "fla.ops": FUNCTIONS,
            **{f"fla.ops.{family}": [f"chunk_{family}", f"fused_recurrent_{family}"] for family in _FAMILIES}}
_drop_in = package.DropIn("0.6.0", _MODULES, functions, calls.elsewhere, ("flash_linear_attention", "fla_core"))


def install(*, force: bool = False) -> None:
    """Makes `import fla` import these functions, as version 0.6.0 with fla.ops and fla.ops.<name> for gated_delta_rule,
    kda, delta_rule, gla, simple_gla, retention and linear_attn. transformers looks them up when it imports the modeling
    file of a family, so that install() must be called before: it warns otherwise.

    Raises Error if another fla can be imported, unless force is true. If that one works, its modules then stay in place
    with these functions in them, and tensors on other devices go to its own; otherwise it is hidden.
    """
    _drop_in.install(force)


def uninstall() -> None:
    """Undoes install(). Modeling files of transformers that were imported meanwhile keep these functions."""
    _drop_in.uninstall()
