"""Who pays for work that trained nothing. Pure (ADR 24)."""

from typing import Literal

Payer = Literal["tenant", "nobody"]

NOT_OF_THE_TASK = frozenset({"failed", "deadline", "stale"})
"""Reasons of void work that a task does not cause by what it learns, or that its owner did not ask for."""


def payer_of_void(reason: str, environment: str) -> Payer:
    """Who pays for a void group of a task with this environment.

    Failures of an operator's environment, an installed entry point, are the operator's, like those of the services. A tenant pays for
    what its own code (`module:attribute`) breaks, for groups of equal rewards, and for work that it cancels.
    """
    is_own = ":" in environment
    return "tenant" if is_own or reason not in NOT_OF_THE_TASK else "nobody"
