"""NATS's rule for subjects and patterns, as an independent statement for tests."""

from collections.abc import Iterable


def matches(pattern: str, subject: str) -> bool:
    """Whether every subject that `subject` stands for is one that `pattern` stands for."""
    wanted, given = pattern.split("."), subject.split(".")
    for place, part in enumerate(wanted):
        if part == ">":
            return len(given) > place
        if place >= len(given) or given[place] == ">" or (part != "*" and part != given[place]):
            return False
    return len(wanted) == len(given)


def covers(patterns: Iterable[str], subject: str) -> bool:
    return any(matches(pattern, subject) for pattern in patterns)
