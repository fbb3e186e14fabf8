"""Lists of processor cores."""

from typing import Annotated

from pydantic import BeforeValidator


def _core_list(value: object) -> object:
    """`0,2-3` or `[0, 2, 3]`."""
    if not isinstance(value, str) or value.strip().startswith("["):
        return value
    ranges = [part.partition("-") for part in value.replace(" ", "").split(",") if part]
    return [core for first, _, last in ranges for core in range(int(first), int(last or first) + 1)]


Cores = Annotated[tuple[int, ...], BeforeValidator(_core_list)]
"""Processor cores, written as `0,2-3`."""
