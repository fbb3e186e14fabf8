"""What is wrong."""

from dataclasses import dataclass


@dataclass(frozen=True, order=True)
class Violation:
    """One thing that breaks a rule."""

    rule: str
    """The sentence that does not hold."""
    where: str
    """Which row, message or blob, and what it says."""
