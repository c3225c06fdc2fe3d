"""install(), which makes these functions importable as the packages flash_attn and flash_attn_interface."""

from __future__ import annotations

from types import ModuleType
from typing import Callable

from . import cache, functions, loadable, package, padding, private, rotary, version3

_INTERFACE = ["flash_attn_func", "flash_attn_kvpacked_func", "flash_attn_qkvpacked_func", "flash_attn_varlen_func",
              "flash_attn_varlen_kvpacked_func", "flash_attn_varlen_qkvpacked_func"]
_PRIVATE = ["_flash_attn_forward", "_flash_attn_varlen_forward", "_flash_attn_backward", "_flash_attn_varlen_backward"]
_PUBLIC: dict[ModuleType, list[str]] = {functions: _INTERFACE, cache: ["flash_attn_with_kvcache"]}
_VERSION = "2.8.3"
_MODULES: dict[str, dict[ModuleType, list[str]]] = {
    "flash_attn": _PUBLIC,
    "flash_attn.flash_attn_interface": {**_PUBLIC, private: _PRIVATE},
    "flash_attn.bert_padding": {padding: ["index_first_axis", "index_put_first_axis", "pad_input", "unpad_input",
                                          "unpad_input_for_concatenated_sequences"]},
    "flash_attn.layers": {},
    "flash_attn.layers.rotary": {rotary: ["apply_rotary_emb"]},
    "flash_attn_interface": {version3: version3.__all__},
}
_undo: list[Callable[[], None]] = []  # what uninstall() calls, the last one first


def install(*, force: bool = False) -> None:
    """Makes `import flash_attn` import these functions, for the whole process.

        >>> attention_cpp.flash_attn.install()
        >>> from flash_attn import flash_attn_func

    flash_attn then is version 2.8.3 with .flash_attn_interface, .bert_padding and .layers.rotary.apply_rotary_emb, and
    flash_attn_interface has the functions of flash-attention 3. importlib.metadata.version() finds both packages, and
    transformers loads models with attn_implementation="flash_attention_2".

    .flash_attn_interface also has the private functions that other packages use: _flash_attn_forward,
    _flash_attn_backward and their variable-length forms. They record no gradients.

    Raises Error if another installation of these packages can be imported, unless force is true.
    """
    if _undo:
        return
    modules = {name: {function: getattr(module, function) for module, names in parts.items() for function in names}
               for name, parts in _MODULES.items()}
    _undo.append(package.replace(modules, {"flash_attn": _VERSION, "flash_attn_interface": "3.0.0"}, force))
    _undo.append(loadable.make_loadable())


def uninstall() -> None:
    """Removes the modules of install() and restores those that it has replaced."""
    while _undo:
        _undo.pop()()
