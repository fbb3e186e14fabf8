"""What a subject is about, and the subjects of what is stored about a task or a tenant."""

from common.streams.stores import BATCHES, EVENTS, FAILED, PROMPTS, REQUESTS, SAMPLES, SCORED, TURNS, WEIGHTS, Stream
from common.streams.subjects import check_package, package_checked, samples, serve


def in_flight(task: str) -> list[tuple[Stream, str]]:
    """Queued messages of one task: (stream, subject filter), for purging a cancelled task."""
    return [
        (PROMPTS, f"prompts.check.*.{task}"),
        (PROMPTS, f"prompts.open.*.{task}.>"),
        (PROMPTS, f"prompts.sample.*.{task}.>"),
        (TURNS, f"trajectories.turn.*.{task}.>"),
        (SCORED, f"trajectories.scored.{task}.>"),
        (BATCHES, f"trajectories.batch.*.{task}"),
    ]


def stored_reports(task: str) -> list[tuple[Stream, str]]:
    """Stored reports about a task, and requests to its versions: (stream, subject filter), for purging a deleted task."""
    return [
        (WEIGHTS, f"weight-updated.*.{task}"),
        (FAILED, f"failed.*.{task}"),
        (EVENTS, f"events.*.{task}"),
        (REQUESTS, serve("*", task, "*")),
        (SAMPLES, samples("*", task, "*")),
    ]


def token(subject: str, place: int) -> str | None:
    """A part of a subject; None where it has fewer, which a filter that ends in `>` admits."""
    parts = subject.split(".")
    return parts[place] if 0 <= place < len(parts) else None


def is_on(pattern: str, subject: str) -> bool:
    """Whether a subscription to `pattern` stands for `subject`, by NATS's rule: `*` is one part, a last `>` one or more."""
    if pattern == subject:
        return True
    wanted, given = pattern.split("."), subject.split(".")
    if wanted[-1] == ">":
        wanted, given = wanted[:-1], given[: len(wanted) - 1] if len(given) >= len(wanted) else []
    return len(wanted) == len(given) and all(part in ("*", found) for part, found in zip(wanted, given, strict=True))


def task_of(subject: str) -> str:
    """The task that a message of a stream IN_FLIGHT is about; empty when the subject is none of ours, or about a package."""
    if token(subject, 1) == "package":
        return ""
    return token(subject, 2 if token(subject, 1) in ("checked", "scored") else 3) or ""


def package_of(subject: str) -> tuple[str, str] | None:
    """Tenant and digest of the package that a message of a stream IN_FLIGHT is about; None where it is about a task."""
    parts = subject.split(".")
    return (parts[-2], parts[-1]) if token(subject, 1) == "package" and len(parts) >= 4 else None


def about_packages(tenant: str) -> list[tuple[Stream, str]]:
    """(stream, subject) of the messages about packages of one tenant."""
    return [(PROMPTS, check_package("*", tenant, "*")), (TURNS, package_checked(tenant, "*"))]
