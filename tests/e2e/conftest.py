"""A folder for a stack that ends with its test."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from marlaas.stack import control as stacks


@pytest.fixture
def data(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "stack"
    try:
        yield folder
    finally:
        stacks.stop(folder)
