"""What the parts have in common without an engine or a clock: what is asked, decisions of arms, goals met, quiet rounds, checks."""

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
    arms: tuple[str, ...] = ()
    """Of the part `arms`; empty: all."""
    day_s: float = 600.0
    """Of the compressed day, by HTTP and simulated."""
    overload_s: float = 120.0
    goals: Goals | None = None
    """By HTTP; None: multiples of what is measured alone."""
    rate: float | None = None
    """Requests a second that serving alone attains by HTTP; None: it is measured."""


@dataclass
class Asked:
    """A served request. Seconds from the moment at which it was due to be sent."""

    first_s: float | None = None
    last_s: float = 0.0
    tokens: int = 0
    gap_s: float = 0.0
    """Longest time between two tokens."""
    is_complete: bool = False
    """False: it failed, was refused or was cut off, and so has missed its goals."""

    def came(self, tokens: int, at_s: float) -> None:
        if self.first_s is None:
            self.first_s = at_s
        else:
            self.gap_s = max(self.gap_s, at_s - self.last_s)
        self.last_s, self.tokens = at_s, self.tokens + tokens

    @property
    def tpot_s(self) -> float:
        """Mean seconds from one further token to the next."""
        return (self.last_s - (self.first_s or 0.0)) / max(1, self.tokens - 1)

    def missed(self, goals: Goals) -> str | None:
        """Goal that it missed, `failed`, or None."""
        if not self.is_complete or self.first_s is None:
            return "failed"
        return "first" if self.first_s > goals.ttft_s else "next" if self.tpot_s > goals.tpot_s else None


@dataclass
class Window:
    """What one arm did in one round."""

    asked: Sequence[Asked]
    goals: Goals
    seconds: float = 1.0
    rollout_tokens: int = 0
    steps_s: Sequence[float] = ()
    """Of training steps that ended in it: from their first rollout's request to their last one's end."""
    grown: Mapping[str, float] = field(default_factory=dict[str, float])
    figures: Mapping[str, float] = field(default_factory=dict[str, float])
    """The engine's counts: what they grew by, and all at its end."""

    @property
    def missed(self) -> list[str | None]:
        return [one.missed(self.goals) for one in self.asked]

    @property
    def median_s(self) -> float:
        """Median seconds of a request, which rises with whatever else the machine does, and little with how requests meet. Infinite if one
        did not end."""
        whole = all(one.is_complete for one in self.asked)
        return percentile([one.last_s for one in self.asked], 0.5) if whole else float("inf")


def attained(windows: Sequence[Window]) -> float:
    """Share of the requests that met both goals; 1 without requests."""
    missed = [each for one in windows for each in one.missed]
    return missed.count(None) / len(missed) if missed else 1.0


def quiet(alone: Sequence[Window]) -> list[int]:
    """Numbers of the rounds that count: their own `alone` took at most `QUIET` times as long as that of the quietest one."""
    quietest_s = min(one.median_s for one in alone)
    return [number for number, one in enumerate(alone) if one.median_s <= QUIET * quietest_s]


def row(name: str, windows: Sequence[Window]) -> Row:
    """Figures of an arm over the rounds that count. Milliseconds; tokens a second."""
    asked, missed = [each for one in windows for each in one.asked], [each for one in windows for each in one.missed]
    steps = [took_s for one in windows for took_s in one.steps_s]
    found: Row = {"arm": name}
    if asked:
        found |= {"requests": len(asked), "attained": round(attained(windows), 4)}
        found |= {cause: missed.count(cause) for cause in ("first", "next", "failed")}
        first, further = [one.first_s for one in asked if one.first_s is not None], [one.tpot_s for one in asked if one.tokens > 1]
        for what, values in (("ttft", first), ("tpot", further), ("gap", [one.gap_s for one in asked])):
            found |= {f"{what}_{place}": round(1000 * percentile(values, share), 1) for place, share in (("p50", 0.5), ("p99", 0.99))}
    found["tokens_per_s"] = round(sum(one.rollout_tokens for one in windows) / sum(one.seconds for one in windows))
    return found | ({"step_p50_s": round(percentile(steps, 0.5), 2), "step_p90_s": round(percentile(steps, 0.9), 2)} if steps else {})


def best_cap(rows: Sequence[Row], bound: float) -> int:
    """Rollout tokens a second of the best constant cap that attains `bound`; 0 if none does."""
    return max((one["tokens_per_s"] for one in rows if one["arm"].startswith("cap-") and one["attained"] >= bound), default=0)


def at_least(name: str, found: float, bound: float) -> Row:
    return {"check": name, "found": round(found, 4), "goal": f">= {bound:g}", "holds": found >= bound}


def at_most(name: str, found: float, bound: float) -> Row:
    return {"check": name, "found": round(found, 4), "goal": f"<= {bound:g}", "holds": found <= bound}


def table(rows: Sequence[Row]) -> str:
    """Rows under their names, aligned; what a row lacks is left empty."""
    heads = list(dict.fromkeys(name for one in rows for name in one))
    lines = [heads, *([str(one.get(name, "")) for name in heads] for one in rows)]
    widths = [max(len(line[place]) for line in lines) for place in range(len(heads))]
    return "\n".join("  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip() for line in lines)


def capped(most: int) -> Callable[..., Plan]:
    """A `decide` of at most that many rollouts beside requests with goals. 0: time slices, whose rollouts get all the time between."""

    def decide(now_s: float, certain: Certain, wanted: Wanted, times: StepTime, *, guaranteed: bool) -> Plan:  # noqa: ARG001 (the product's)
        running = min(most, wanted.running)
        return Plan(running, min(most - running, len(wanted.prompts)))

    return decide


DECIDES: dict[str, Callable[..., Plan]] = {
    "ours": plan.decide,
    "slices": capped(0),
    **{f"cap-{most}": capped(most) for most in (8, 16, 32)},
}
"""By arm."""
