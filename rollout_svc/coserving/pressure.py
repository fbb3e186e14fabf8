"""KV cache pressure: if served requests lack blocks, rollouts give up half of theirs at once, and stay there for a while.

Source: ROSE, arXiv 2605.06534: one cut with a freeze preempts fewer rollouts than to take block after block from rollouts that grow.
"""

from dataclasses import dataclass

FROZEN_S = 60.0
"""Maximum seconds until rollouts may grow again."""


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
