"""History of an executor: durations of past moves and operations, which limit future ones, and work since its last wake."""

import json
import math
from collections import Counter, deque
from contextlib import suppress
from pathlib import Path
from typing import Protocol

import structlog
from pydantic import TypeAdapter, ValidationError

from common.accelerators import Tier, WorkDone

MIN_LIMIT_S = 30.0
FACTOR = 10.0
"""Multiple of the 90th percentile of a kind's durations after which a move of that kind counts as hung."""
UNKNOWN_LIMIT_S = 600.0
"""Time limit in seconds for a kind of move that has never finished here, such as a large model's first start."""
KEPT = 50
"""Number of the newest moves of each kind that count."""
OPERATION = "operation"
"""Kind for operations, which are not moves: steps of a trainer, requests of a sampler."""

log = structlog.get_logger()
_ADAPTER = TypeAdapter(dict[str, list[float]])


class History:
    """Seconds of finished moves by kind, and of operations, kept in a file across restarts; losing it is harmless."""

    def __init__(self, file: Path | None = None, *, min_limit_s: float = MIN_LIMIT_S) -> None:
        self._min_limit_s = min_limit_s
        self._file = file
        self._seconds: dict[str, deque[float]] = {}
        with suppress(OSError, ValidationError):
            if file is not None:
                found = _ADAPTER.validate_json(file.read_bytes())
                self._seconds = {kind: deque(seconds, maxlen=KEPT) for kind, seconds in found.items()}

    def add(self, from_tier: Tier, tier: Tier, seconds: float) -> None:
        self._add(_kind(from_tier, tier), seconds)

    def add_operation(self, seconds: float) -> None:
        """Record the mean duration of the operations of a slice."""
        self._add(OPERATION, seconds)

    @property
    def operation_s(self) -> float | None:
        """Maximum of the stored mean durations, those of earlier processes included; None before the first."""
        return max(self._seconds.get(OPERATION, ()), default=None)

    def _add(self, kind: str, seconds: float) -> None:
        self._seconds.setdefault(kind, deque(maxlen=KEPT)).append(seconds)
        if self._file is None:
            return
        partial = self._file.with_suffix(".partial")
        try:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            partial.write_text(json.dumps({kind: list(each) for kind, each in self._seconds.items()}))
            partial.replace(self._file)
        except OSError as error:
            log.warning("moves_not_kept", file=str(self._file), error=str(error))

    def limit_s(self, from_tier: Tier, tier: Tier) -> float:
        """Seconds after which a move of this kind counts as hung."""
        known = sorted(self._seconds.get(_kind(from_tier, tier), ()))
        if not known:
            return UNKNOWN_LIMIT_S
        return max(self._min_limit_s, FACTOR * known[math.ceil(0.9 * len(known)) - 1])


def _kind(from_tier: Tier, tier: Tier) -> str:
    return f"{from_tier}>{tier}"


NEWEST_SHARE = 0.3
"""Weight of the newest measurement in the moving average of an operation's duration."""


class Measured(Protocol):
    """A Parkable, or its replacement in simulations."""

    def taken(self) -> WorkDone: ...


class Tally:
    """Sums of the results of a Parkable's `taken`. No other code may call `taken`."""

    def __init__(self, executable: Measured) -> None:
        self._executable = executable
        self.by_task = Counter[str]()
        """Sampled tokens, or milliseconds of steps, by task."""
        self.busy_s = 0.0
        self.score_s = 0.0
        """Part of `busy_s` spent in the function `score`."""
        self.pieces = 0
        self.piece_s: float | None = None
        """Moving average of the accelerator seconds of one operation; None before the first."""
        self._unfinished_s = 0.0
        """Busy seconds since the last operation ended."""

    def begin(self) -> None:
        """Reset the sums: count the work done from this wake on."""
        self._executable.taken()
        self.by_task.clear()
        self.busy_s, self.score_s, self.pieces, self._unfinished_s = 0.0, 0.0, 0, 0.0

    def look(self) -> None:
        """Add the work done since the previous call."""
        taken = self._executable.taken()
        self.by_task.update(taken.by_task)
        self.busy_s += taken.busy_s
        self.score_s += taken.score_s
        self.pieces += taken.pieces
        self._unfinished_s += taken.busy_s
        if taken.pieces:
            newest_s, self._unfinished_s = self._unfinished_s / taken.pieces, 0.0
            self.piece_s = newest_s if self.piece_s is None else self.piece_s + NEWEST_SHARE * (newest_s - self.piece_s)
