"""A folder for a stack that ends with its test."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from marlaas.stack import control


@pytest.fixture
def data(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path
    control.stop(tmp_path)
