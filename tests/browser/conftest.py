"""The tests of the page of attention in Debian's chromium, driven by Selenium.

usage: pytest tests/browser --pages FOLDER --attn PROGRAM [-k NAME]      FOLDER: what the program pages has written
"""

import os
import pathlib

import pytest


def pytest_addoption(parser):
    parser.addoption("--pages", required=True, type=pathlib.Path, help="the folder that the program pages has written")
    parser.addoption("--attn", required=True, type=os.path.abspath, help="the program attn")


@pytest.fixture
def folder(request):
    return request.config.getoption("--pages").resolve()


@pytest.fixture
def attn(request):
    return request.config.getoption("--attn")
