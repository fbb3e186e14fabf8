"""Lists of processor cores."""

import re
from typing import Annotated

from pydantic import BeforeValidator

_PART = re.compile(r"([0-9]{1,4})(?:-([0-9]{1,4}))?")


def _core_list(value: object) -> list[int]:
    """Cores of `0,2-3` or `[0, 2, 3]`. Raises: ValueError."""
    parts = value.strip().strip("[]").split(",") if isinstance(value, str) else value if isinstance(value, list | tuple) else [None]
    ranges = [_PART.fullmatch(str(part).strip()) for part in parts if part != ""]
    cores = [core for one in ranges if one is not None for core in range(int(one[1]), int(one[2] or one[1]) + 1)]
    if None in ranges or len(set(cores)) < max(len(cores), len(ranges)):
        raise ValueError(f"must be numbers of cores such as '0' or '0,2-3', each once, not {value!r}")
    return cores


Cores = Annotated[tuple[int, ...], BeforeValidator(_core_list)]
"""Processor cores, written as `0,2-3`."""
