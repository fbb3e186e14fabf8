"""Shared accelerators on a page."""

from collections.abc import Sequence
from dataclasses import dataclass

from common.messages import ExecutorOf, SliceOf


@dataclass(frozen=True)
class Shared:
    executors: Sequence[ExecutorOf]
    slices: Sequence[SliceOf]
    """The newest first. A tenant's: those that served its tasks."""
