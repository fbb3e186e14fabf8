from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.rollout import coserving


@pytest.fixture(scope="module")
def configured() -> Callable[[Path], Any]:
    return coserving.configured()
