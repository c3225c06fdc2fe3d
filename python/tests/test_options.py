"""There is one list of options, that of the library; the Python package and the documentation have the same."""

import pathlib

import attention_cpp
from attention_cpp import _core, _options

DOCUMENT = pathlib.Path(__file__).resolve().parents[2] / "docs" / "operators" / "attention.md"
OPTIONS = _core.option_list()


def test_python_has_the_options_of_the_library():
    """Names in order, also for type checkers and in the docstring."""
    names = [name for name, *_ in OPTIONS]
    assert names == list(_options.FIELDS) == list(_options.OptionArguments.__annotations__)
    assert all(f"        {name}  " in attention_cpp.attention.__doc__ for name in names)


def test_the_document_has_the_table_of_the_library():
    rows = ["| " + " | ".join(cell.replace("|", "\\|") for cell in option) + " |" for option in OPTIONS]
    table = "\n".join(["| option | type | shape | default | meaning |", "|---|---|---|---|---|", *rows])
    assert table.replace("|  |", "| |") in DOCUMENT.read_text(), f"docs/operators/attention.md must have:\n{table}"
