"""A mutant of a rule, and the outcome of a rule's mutants."""

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Mutant:
    """A copy of a rule's source with one change."""

    rule: str
    """The rule, or the function that checks it."""
    change: str
    """The change, as `before → after`."""
    source: str
    """The changed query, or module."""


@dataclass
class MutantCounts:
    """Outcome of one rule's mutants."""

    caught: int = 0
    survived: list[Mutant] = field(default_factory=list[Mutant])

    @property
    def made(self) -> int:
        return self.caught + len(self.survived)
