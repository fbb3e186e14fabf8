"""Requests to a running gateway that schemathesis makes from its OpenAPI document, and everything in the answers that contradicts it."""

import math
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import schemathesis
from schemathesis.config import SchemathesisConfig
from schemathesis.engine import Status, events, from_schema

EXAMPLES = 25
"""Generated requests of an operation in one round; those for the edges of its schema and for sequences of operations come on top."""
TIMEOUT_S = 60.0
ACCEPTED = ["2xx", 304, 400, 401, 403, 404, 406, 409, 413, 416, 429]
"""Answers to what the schema permits: 400 too, as no schema says which fields contradict each other, or which tasks fit a pool; 406 too, as
none says which media types an `Accept` may name."""
ENDLESS = "/v1/events"
"""Route that is left out: its stream ends only when its client goes, so that each request would take TIMEOUT_S."""
MAX_SHOWN = 50
"""Maximum failures that a result has in full."""


@dataclass
class Fuzzed:
    cases: int = 0
    statuses: Counter[str] = field(default_factory=Counter[str])
    """Status → answers."""
    phases: Counter[str] = field(default_factory=Counter[str])
    """Phase of schemathesis → requests."""
    checks: Counter[str] = field(default_factory=Counter[str])
    """Check → how often it was made."""
    failures: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    """The first of each kind: operation, check, message, and the request as a curl line."""
    rounds: int = 0
    took_s: float = 0.0

    @property
    def server_errors(self) -> int:
        return sum(count for status, count in self.statuses.items() if status.startswith("5"))

    def as_json(self) -> dict[str, Any]:
        return {
            "cases": self.cases,
            "rounds": self.rounds,
            "took_s": round(self.took_s, 1),
            "server_errors": self.server_errors,
            "statuses": dict(sorted(self.statuses.items())),
            "phases": dict(self.phases),
            "checks": dict(sorted(self.checks.items())),
            "failures": self.failures[:MAX_SHOWN],
        }


def added(one: dict[str, Any] | None, other: dict[str, Any] | None) -> dict[str, Any]:
    """Results of two runs, as `Fuzzed.as_json` has them, as one; empty where both are None."""
    if one is None or other is None:
        return one or other or {}
    found: dict[str, Any] = {}
    for name, value in one.items():
        if isinstance(value, dict):
            found[name] = dict(sorted((Counter[str](value) + Counter(other[name])).items()))
        elif isinstance(value, list):
            found[name] = [*value, *other[name]][:MAX_SHOWN]
        else:
            found[name] = round(value + other[name], 1)
    return found


def fuzz(
    url: str,
    key: str,
    known: Mapping[str, str],
    *,
    cases: int,
    seed: int = 0,
    examples: int = EXAMPLES,
    coverage: bool = True,
    max_s: float = math.inf,
) -> Fuzzed:
    """At least `cases` requests with the key, in rounds with seeds of their own.

    `known`: parameter → a value that there is; it is given in every other round, as nothing else is found by generated names. `coverage`:
    whether the first two rounds also try the edges of every schema. `max_s`: seconds after which a round is not continued.
    """
    found, began, seen = Fuzzed(), time.monotonic(), set[tuple[str, str]]()
    while found.cases < cases and time.monotonic() - began < max_s:
        given = known if found.rounds % 2 == 0 else {}
        for event in _round(url, key, given, seed + found.rounds, examples, coverage=coverage and found.rounds < 2):
            _count(found, seen, event)
            if time.monotonic() - began > max_s:
                break
        found.rounds += 1
    found.took_s = time.monotonic() - began
    return found


def _round(url: str, key: str, known: Mapping[str, str], seed: int, examples: int, *, coverage: bool) -> Iterator[Any]:
    config = SchemathesisConfig.from_dict(
        {
            "seed": seed,
            "base-url": url,
            "headers": {"Authorization": f"Bearer {key}"},
            "continue-on-failure": True,
            "request-timeout": TIMEOUT_S,
            "generation": {"max-examples": examples, "mode": "all", "database": "none", "no-shrink": True},
            "parameters": dict(known),
            "operations": [{"include-path": ENDLESS, "enabled": False}],
            "phases": {"coverage": {"enabled": coverage}},
            "checks": {"positive_data_acceptance": {"expected-statuses": ACCEPTED}},
        }
    )
    schema = schemathesis.openapi.from_url(f"{url}/openapi.json", config=config)
    yield from from_schema(schema).execute()


def _count(found: Fuzzed, seen: set[tuple[str, str]], event: Any) -> None:
    """`Any`: schemathesis's events have no common fields."""
    if isinstance(event, events.NonFatalError | events.FatalError):
        found.failures.append({"check": "error of the program", "message": str(getattr(event, "info", None) or event)})
    if not isinstance(event, events.ScenarioFinished):
        return
    for number, interaction in event.recorder.interactions.items():
        found.cases += 1
        found.phases[event.phase.name if hasattr(event.phase, "name") else str(event.phase)] += 1
        found.statuses[str(interaction.response.status_code if interaction.response is not None else "none")] += 1
        for check in event.recorder.checks.get(number, []):
            found.checks[check.name] += 1
            if check.status == Status.FAILURE and check.failure_info is not None:
                failure = check.failure_info.failure
                kind = (str(failure.operation), f"{check.name}: {failure.title} {getattr(failure, 'status_code', '')}")
                if kind not in seen:
                    seen.add(kind)
                    sent = check.failure_info.code_sample
                    found.failures.append(
                        {"operation": failure.operation, "check": kind[1], "message": failure.message[:2000], "sent": sent[:2000]}
                    )
