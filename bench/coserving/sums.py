"""What the parts compute from what they saw: goals met, quiet rounds, checks. No engine, no clock."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from bench.harness.report import percentile
from common.pools import Goals
from rollout_svc.coserving import plan
from rollout_svc.coserving.plan import Certain, Plan, Wanted
from rollout_svc.coserving.step_time import StepTime

PROMPT, TOKENS = 160, 24
"""Tokens of a served request and of its answer."""
ROLLOUT_PROMPT, ROLLOUT_TOKENS = 24, (40, 200)
"""Tokens of a rollout's prompt, and fewest and most of its answer."""
TTFT, TPOT = 5.0, 2.0
"""Goals, as multiples of the medians alone."""
QUIET = 1.15
"""Maximum of a round's own `alone`, as a multiple of the quietest round's."""
Row = dict[str, Any]


@dataclass(frozen=True)
class Options:
    rounds: int
    seconds: float
    """Of one arm in a round."""
    device: str = "cpu"
    small: bool = False
    day_s: float = 600.0
    """Of the compressed day, by HTTP and simulated."""
    overload_s: float = 120.0
    goals: Goals | None = None
    """By HTTP; None: multiples of what is measured alone."""
    rate: float | None = None
    """Requests a second that serving alone attains by HTTP; None: it is measured."""


@dataclass
class Asked:
    """A served request. Seconds on one clock, from the moment at which it was due to be sent."""

    first_s: float | None = None
    last_s: float = 0.0
    tokens: int = 0
    longest_gap_s: float = 0.0
    is_complete: bool = False
    """False: it failed, was refused or was cut off, and so has missed its goals."""

    def came(self, tokens: int, at_s: float) -> None:
        """Tokens came together; a gap counts for the first of them."""
        if self.first_s is None:
            self.first_s = at_s
        else:
            self.longest_gap_s = max(self.longest_gap_s, at_s - self.last_s)
        self.last_s = at_s
        self.tokens += tokens

    @property
    def tpot_s(self) -> float:
        """Mean seconds from one further token to the next; 0 without a further one."""
        return (self.last_s - self.first_s) / (self.tokens - 1) if self.first_s is not None and self.tokens > 1 else 0.0

    def missed(self, goals: Goals) -> str | None:
        """Which goal it missed: failed, first, next; None: it met both."""
        if not self.is_complete or self.first_s is None:
            return "failed"
        return "first" if self.first_s > goals.ttft_s else "next" if self.tpot_s > goals.tpot_s else None


@dataclass
class Window:
    """What one arm did in one round."""

    asked: list[Asked]
    goals: Goals
    seconds: float
    rollout_tokens: int = 0
    steps_s: Sequence[float] = ()
    """Of training steps that ended in it: from their first rollout's request to their last one's end."""
    figures: Mapping[str, float] = field(default_factory=dict[str, float])
    """What the engine's counts grew by, and those of now at its end."""


def attained(windows: Sequence[Window], goals: Goals | None = None) -> float:
    """Share of the requests that met both goals, `goals` or those of their window; 1 without requests."""
    missed = [one.missed(goals or window.goals) for window in windows for one in window.asked]
    return 1.0 if not missed else missed.count(None) / len(missed)


def mean_s(window: Window) -> float:
    """Mean seconds of a request: what shows best that something else ran. Infinite if one did not end."""
    if not all(one.is_complete for one in window.asked):
        return float("inf")
    return sum(one.last_s for one in window.asked) / max(1, len(window.asked))


def quiet(alone_s: Sequence[float]) -> list[int]:
    """Numbers of the rounds that count: their own `alone` took at most `QUIET` times as long as that of the quietest one."""
    return [number for number, took_s in enumerate(alone_s) if took_s <= QUIET * min(alone_s) < float("inf")]


def row(name: str, windows: Sequence[Window]) -> Row:
    """Figures of an arm over the rounds that count. Milliseconds; tokens a second."""
    asked = [one for window in windows for one in window.asked]
    missed = [one.missed(window.goals) for window in windows for one in window.asked]
    first = [1000 * one.first_s for one in asked if one.first_s is not None]
    following = [1000 * one.tpot_s for one in asked if one.tokens > 1]
    gaps = [1000 * one.longest_gap_s for one in asked if one.tokens > 1]
    served = {
        "requests": len(asked),
        "attained": round(attained(windows), 4),
        **{f"missed_{cause}": missed.count(cause) for cause in ("first", "next", "failed")},
        **{f"ttft_{place}": round(percentile(first, share), 1) for place, share in (("p50", 0.5), ("p99", 0.99))},
        **{f"tpot_{place}": round(percentile(following, share), 2) for place, share in (("p50", 0.5), ("p99", 0.99))},
        "gap_p99": round(percentile(gaps, 0.99), 1),
    }
    steps = [took_s for window in windows for took_s in window.steps_s]
    return {
        "arm": name,
        **(served if asked else {}),
        "tokens_per_s": round(sum(window.rollout_tokens for window in windows) / max(1e-9, sum(window.seconds for window in windows))),
        **({"step_p50_s": round(percentile(steps, 0.5), 2), "step_p90_s": round(percentile(steps, 0.9), 2)} if steps else {}),
    }


def capped(most: int) -> Callable[..., Plan]:
    """A `decide` of at most that many rollouts beside requests with goals. 0: time slices, whose rollouts get all the time between."""

    def decide(now_s: float, certain: Certain, wanted: Wanted, times: StepTime, *, owed: bool) -> Plan:  # noqa: ARG001 (as the product's)
        running = min(most, wanted.running)
        return Plan(running, min(most - running, len(wanted.prompts)) if running == wanted.running else 0)

    return decide


DECIDES: dict[str, Callable[..., Plan]] = {
    "ours": plan.decide,
    "slices": capped(0),
    **{f"cap-{most}": capped(most) for most in (8, 16, 32)},
}
"""By arm."""


def check(name: str, found: float, holds: Callable[[float], bool], goal: str) -> Row:
    return {"check": name, "found": round(found, 4), "goal": goal, "holds": holds(found)}


def at_least(name: str, found: float, bound: float) -> Row:
    return check(name, found, lambda value: value >= bound, f">= {bound:g}")


def at_most(name: str, found: float, bound: float) -> Row:
    return check(name, found, lambda value: value <= bound, f"<= {bound:g}")


def best_cap(rows: Sequence[Row], bound: float = 0.99) -> int:
    """Rollout tokens a second of the best constant cap that attains `bound`; 0 if none does."""
    caps = [one for one in rows if str(one["arm"]).startswith("cap-") and one["attained"] >= bound]
    return max((int(one["tokens_per_s"]) for one in caps), default=0)


def table(rows: Sequence[Row]) -> str:
    """Rows under their names, aligned; what a row lacks is left empty."""
    heads = list(dict.fromkeys(name for one in rows for name in one))
    lines = [heads, *([str(one.get(name, "")) for name in heads] for one in rows)]
    widths = [max(len(line[place]) for line in lines) for place in range(len(heads))]
    return "\n".join("  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip() for line in lines)
