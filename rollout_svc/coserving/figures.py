"""Counts of the engine's process, which the service reads without waiting for an engine step: one record in a file."""

import os
import struct
from contextlib import suppress
from dataclasses import astuple, dataclass, fields
from pathlib import Path

from common.messages.status import ERROR


@dataclass(frozen=True)
class Figures:
    """Counts since the engine's start, then values of now."""

    steps: float = 0.0
    """Engine steps while the pool has goals."""
    rollout_steps: float = 0.0
    """Sum over steps of the rollouts that could run in it: those that ran and those that were held."""
    withheld_steps: float = 0.0
    """Sum over steps of the rollouts that were held in it."""
    preempted: float = 0.0
    """Preemptions of rollouts."""
    recomputed_tokens: float = 0.0
    """Tokens whose KV cache they lost, and compute once more."""
    faults: float = 0.0
    """Steps that went by vLLM's order because planning failed."""
    held: float = 0.0
    """Rollouts held in the last step."""
    serving_blocks: float = 0.0
    """KV cache blocks of served requests."""
    blocks: float = 0.0
    """KV cache blocks of the engine."""
    margin: float = 0.0
    """Factor by which the step time model's estimates are raised."""
    median_error: float = 0.0
    """Median relative error of the step time model's latest estimates."""
    p95_error: float = 0.0
    """95th percentile of the same errors."""
    goals_off: float = 0.0
    """1 after planning failed too many times in a row, else 0."""

    @property
    def busy(self) -> dict[str, float]:
        """Those in the replica's report."""
        return {
            "rollouts_held": self.held,
            "rollouts_preempted": self.preempted,
            "recomputed_tokens": self.recomputed_tokens,
            "plan_faults": self.faults,
            f"step_time{ERROR}": self.median_error,
            f"step_time_p95{ERROR}": self.p95_error,
            "goals_off": self.goals_off,
        }


RECORD = struct.Struct(f"=Q{len(fields(Figures))}dQ")
"""Sequence number, the fields of `Figures` in order, and the same sequence number."""


class FigureFile:
    """Writer of one file, which it creates."""

    def __init__(self, path: Path) -> None:
        """`path`: of a file of any content, or of none; afterwards it is empty."""
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("wb", buffering=0)
        self._number = 0

    def write(self, figures: Figures) -> None:
        """Overwrite the record. It is copied from its first number to its last, and a reader compares both."""
        self._number += 1
        os.pwrite(self._file.fileno(), RECORD.pack(self._number, *astuple(figures), self._number), 0)


def read(path: Path) -> Figures | None:
    """Return the last record; None if there is none yet, or if two reads met a write in progress."""
    for _ in range(2):
        with suppress(FileNotFoundError, struct.error):
            first, *values, last = RECORD.unpack(path.read_bytes())
            if first == last:
                return Figures(*values)
    return None
