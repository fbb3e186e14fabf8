"""Injected stage times of turns, tool calls and steps.

A time depends only on (task, group, member, turn), so every scheduling policy meets the same work. Turns take between half and one
and a half times their mean, or as `spread` says. `LowerBounds` are times that no schedule can beat.
"""

import hashlib
from dataclasses import dataclass


@dataclass(frozen=True)
class Times:
    """Means, in seconds."""

    sample_s: float
    """One turn, for any size of the engine's batch."""
    environment_s: float
    """The tool call or grading after a turn."""
    train_s: float
    """One optimizer step; exact."""
    spread: float = 1.0
    """Turns take between 1 - spread/2 and 1 + spread/2 times their mean."""
    alike: bool = False
    """The members of a group take the same times, and so stay together."""


@dataclass(frozen=True)
class Work:
    """A set of equal tasks, strictly on policy."""

    tasks: int
    steps: int
    groups_per_step: int
    group_size: int
    turns: int
    places: int
    """Sequences that the sampler decodes at once."""


def turn_s(times: Times, task: str, group: int, member: int, turn: int) -> tuple[float, float]:
    """Seconds of sampling one turn, and of the environment after it (whole milliseconds: it travels in the reply)."""
    digest = hashlib.sha256(f"{task}:{group}:{0 if times.alike else member}:{turn}".encode()).digest()
    first, second = (1 + times.spread * (int.from_bytes(part, "big") / 2**32 - 0.5) for part in (digest[:4], digest[4:8]))
    return times.sample_s * first, round(times.environment_s * second * 1000) / 1000


@dataclass(frozen=True)
class LowerBounds:
    """Minimum seconds of the whole set, if messages and decisions were free."""

    sequential: float
    """One task after another: the sum of every step's R + E + T."""
    synchronous: float
    """Lockstep: every round waits for its slowest rollout, then trains each task in turn."""
    trainer: float
    """Steps are trained one at a time, and the first only after its rollout."""
    sampler: float
    """All sampling, with every place taken."""
    chain: float
    """The slowest task alone: on policy, a step follows a step."""
    closed_form: float | None
    """(R + E + T) / T: maximum gain of serialised updates over one task at a time (arXiv 2605.08527); None without T."""

    @property
    def asynchronous(self) -> float:
        return max(self.trainer, self.sampler, self.chain)

    @property
    def busiest(self) -> str:
        return max(("trainer", "sampler", "chain"), key=lambda name: getattr(self, name))


def lower_bounds(times: Times, work: Work, names: list[str]) -> LowerBounds:
    """Bounds of `work` by the tasks `names`."""
    rollouts = {name: [_rollout_s(times, work, name, step) for step in range(work.steps)] for name in names}
    sampling = sum(_sampling_s(times, work, name, step) for name in names for step in range(work.steps)) / work.places
    steps = work.steps * len(names)
    chains = [sum(rollouts[name]) + work.steps * times.train_s for name in names]
    total = sum(chains)
    rounds = [
        max(max(rollouts[name][step] for name in names), sum(_sampling_s(times, work, name, step) for name in names) / work.places)
        for step in range(work.steps)
    ]
    return LowerBounds(
        sequential=total,
        synchronous=sum(rounds) + steps * times.train_s,
        trainer=min(rollout[0] for rollout in rollouts.values()) + steps * times.train_s,
        sampler=sampling,
        chain=max(chains),
        closed_form=total / steps / times.train_s if times.train_s else None,
    )


def _rollout_s(times: Times, work: Work, task: str, step: int) -> float:
    """R + E of one step: its slowest member."""
    return max(sum(sum(turn_s(times, task, group, member, turn)) for turn in range(work.turns)) for group, member in _members(work, step))


def _sampling_s(times: Times, work: Work, task: str, step: int) -> float:
    return sum(turn_s(times, task, group, member, turn)[0] for group, member in _members(work, step) for turn in range(work.turns))


def _members(work: Work, step: int) -> list[tuple[int, int]]:
    first = step * work.groups_per_step
    return [(group, member) for group in range(first, first + work.groups_per_step) for member in range(work.group_size)]
