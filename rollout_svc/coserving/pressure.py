"""KV cache pressure: rollouts enter as far as all requests can grow, and give up half of their blocks if served requests lack some.

Sources: for the first, the Past-Future scheduler, arXiv 2507.10150: without it a full cache preempts rollouts that have just entered. For
the second, ROSE, arXiv 2605.06534: one cut with a freeze preempts fewer rollouts than to take block after block from rollouts that grow.
"""

from bisect import bisect_right
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

FROZEN_S = 60.0
"""Maximum seconds until rollouts may grow again."""
LENGTHS = 128
"""Latest requests from whose lengths those of others are estimated."""


class Lengths:
    """Tokens sampled for the latest requests that ended."""

    def __init__(self) -> None:
        self._latest: deque[int] = deque(maxlen=LENGTHS)
        self._ordered: list[int] | None = []

    def add(self, tokens: int) -> None:
        self._latest.append(tokens)
        self._ordered = None

    def left(self, tokens: int, most: int) -> int:
        """Estimated tokens after the first `tokens`: the median of requests that sampled more; if none did, another `tokens`.

        `most`: maximum of the request, these included. Returns: 0 as long as no request has ended.
        """
        ordered = self._ordered = sorted(self._latest) if self._ordered is None else self._ordered
        longer = bisect_right(ordered, tokens)
        expected = ordered[(longer + len(ordered)) // 2] if longer < len(ordered) else 2 * tokens
        return min(expected, most) - tokens if ordered else 0


def growth(requests: Iterable[tuple[int, int]]) -> int:
    """Maximum tokens that requests will hold concurrently beyond their present ones, if each samples one in each step.

    `requests`: of each, tokens left, and present ones that it releases when it ends.
    """
    ordered = sorted(requests)
    most = released = 0
    for ended, (left, held) in enumerate(ordered):
        most = max(most, left * (len(ordered) - ended) - released)
        released += held
    return most


class Peak:
    """Highest of the values of the last `FROZEN_S`."""

    def __init__(self) -> None:
        self._falling: deque[tuple[float, int]] = deque()  # values that no later one reaches, with their times

    def of(self, value: int, now_s: float) -> int:
        """Add a value. Returns: the highest."""
        while self._falling and self._falling[-1][1] <= value:
            self._falling.pop()
        self._falling.append((now_s, value))
        while self._falling[0][0] <= now_s - FROZEN_S:
            self._falling.popleft()
        return self._falling[0][1]


@dataclass(frozen=True)
class Cut:
    """A limit on rollouts' KV cache blocks."""

    blocks: int
    """Blocks that rollouts may have: above it none enters. Those that run grow on, as to hold them would free nothing."""
    adapter: int
    """Number of the newest adapter of a rollout, when it was made."""
    since_s: float


def cut(before: Cut | None, held_blocks: int, short_blocks: int, newest_adapter: int, now_s: float) -> Cut | None:
    """The limit from now on; None: there is none.

    It ends with the first rollout of a newer adapter, which is the next training step of a task, and after `FROZEN_S`.
    `held_blocks`: blocks of rollouts. `short_blocks`: blocks that served requests lack in the next step.
    `newest_adapter`: highest number of a rollout's adapter so far; numbers are never reused.
    """
    if short_blocks > 0:
        return Cut(min(held_blocks // 2, max(0, held_blocks - short_blocks)), newest_adapter, now_s)
    if before is None or newest_adapter > before.adapter or now_s - before.since_s >= FROZEN_S:
        return None
    return before
