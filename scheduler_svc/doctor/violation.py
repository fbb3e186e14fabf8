"""A violation of a rule."""

from dataclasses import dataclass


@dataclass(frozen=True, order=True)
class Violation:
    """A row, message or blob that breaks a rule."""

    rule: str
    """Sentence of the broken rule."""
    where: str
    """Identity of the row, message or blob, with its values."""
