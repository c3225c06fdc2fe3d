"""Lets transformers use "flash_attention_2" with the functions of install(), without a GPU.

transformers calls is_flash_attn_2_available() and reads a table of what each version of flash-attention needs. Both
have public names. This module replaces them, so that they accept the CPU after install().
"""

from __future__ import annotations

import importlib.util
import warnings
from typing import Any, Callable

_ASKING = ("transformers.utils.import_utils", "transformers.utils", "transformers.modeling_flash_attention_utils")
_QUESTION, _TABLE, _VERSION = "is_flash_attn_2_available", "FLASH_ATTENTION_COMPATIBILITY_MATRIX", 2


def make_loadable() -> Callable[[], None]:
    """Makes attn_implementation="flash_attention_2" loadable, if transformers is installed. Returns a function that
    undoes it."""
    if importlib.util.find_spec("transformers") is None:
        return lambda: None
    modules = [importlib.import_module(name) for name in _ASKING]
    table = getattr(modules[-1], _TABLE, {})
    needs = table.get(_VERSION, {})
    if not all(hasattr(module, _QUESTION) for module in modules) or "supported_devices" not in needs:
        warnings.warn('this version of transformers cannot load "flash_attention_2" on the CPU: call '
                      'attention_cpp.transformers.register() and use attn_implementation="attention_cpp"', stacklevel=3)
        return lambda: None
    questions = [getattr(module, _QUESTION) for module in modules]
    installed = True

    def is_available(*arguments: Any, **options: Any) -> bool:  # modules may have imported it, and call it after undo()
        return installed or questions[0](*arguments, **options)

    for module in modules:
        setattr(module, _QUESTION, is_available)
    table[_VERSION] = {**needs, "general_availability_check": is_available,
                       "supported_devices": (*needs["supported_devices"], (is_available, "cpu"))}

    def undo() -> None:
        nonlocal installed
        installed = False
        for module, question in zip(modules, questions):
            setattr(module, _QUESTION, question)
        table[_VERSION] = needs

    return undo
