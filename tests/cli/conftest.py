"""The tests of the program attn as a person uses it; only files, outputs and exit statuses count.

usage: pytest tests/cli --attn PROGRAM [-k NAME]      ATTN_EXHAUSTIVE=1: 30 kills, not 3; ATTN_SEED: when
"""

import os
import pathlib
import tempfile

import pytest
from attn import Attn


def pytest_addoption(parser):
    parser.addoption("--attn", required=True, type=os.path.abspath, help="the program attn")


@pytest.fixture
def attn(request):
    with tempfile.TemporaryDirectory() as folder:
        yield Attn(request.config.getoption("--attn"), pathlib.Path(folder))
