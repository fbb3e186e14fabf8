"""The engine's figures in the replica's report."""

from common.messages.status import ERROR
from rollout_svc.coserving.figures import Figures


def busy_of(figures: Figures) -> dict[str, float]:
    """The engine's figures for the replica's report. Counts are since the engine's start."""
    return {
        "rollouts_held": figures.held,
        "rollouts_preempted": figures.preempted,
        "recomputed_tokens": figures.recomputed_tokens,
        "plan_faults": figures.faults,
        f"step_time{ERROR}": figures.median_error,
        f"step_time_p95{ERROR}": figures.p95_error,
        "goals_off": figures.goals_off,
    }
