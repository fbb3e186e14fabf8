"""What a sampler knows of the next work of its tasks: members that are with their environments, and how long environments take. Pure.

A member is away from when its turn was sent until its next prompt was stored. A sampler is not told which turn was a member's last: it
knows how often turns of that number were followed by another, and forgets members of older versions with the next version; with staleness,
and of evaluations, only those that have been away for longer than any that returned. A member whose next prompt goes to another sampler is
forgotten likewise.

A task is opening from when its new version is announced until the first prompt of a group of that version was stored. Members of groups
that are admitted at other times are not known before their first prompt.
"""

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Annotated

from pydantic import Field

from common.group_numbers import FIRST_EVALUATION_GROUP

TASKS = 32
"""Maximum tasks of a report: those of which a turn was sent, or a version announced, last."""
AGES = 4
"""Maximum members of a task in a report; they stand for all that are away."""
TIMES = 8
"""Maximum times of a kind of a task in a report: quantiles of those that are remembered."""
REMEMBERED = 32
"""Newest times of a kind that are remembered of a task."""
MEMBERS = 1024
"""Maximum members of a task that are remembered as away."""
TURNS = 16
"""Numbers of turns that are told apart; later ones count as the last of them."""
MAX_AWAY_S = 600.0
"""Time after which a member, an announcement or a task is forgotten."""
GUESS = 0.5
"""Chance that a turn is followed by another, before anything was seen."""

Milliseconds = Annotated[int, Field(ge=0)]
PerCent = Annotated[int, Field(ge=0, le=100)]
Times = Annotated[tuple[Milliseconds, ...], Field(max_length=TIMES)]


@dataclass(frozen=True)
class TaskAway:
    """A task of a report. Times since something are those at the report, in milliseconds."""

    task: str
    members: Annotated[int, Field(ge=0)]
    """Number of members that are away."""
    left_ms: Annotated[tuple[tuple[Milliseconds, PerCent], ...], Field(max_length=AGES)]
    """Of some of them, evenly chosen: since when, and how many in a hundred of such turns were followed by another."""
    sent_ms: Milliseconds | None
    """Since its newest turn was sent; None before the first."""
    opening_ms: Milliseconds | None
    """Since its new version was announced, while no prompt of it has come."""
    returned_ms: Times
    """Quantiles of the newest times that members were away, ascending."""
    opened_ms: Times
    """Quantiles of the newest times from an announcement to its first prompt, ascending."""


@dataclass(frozen=True)
class _Member:
    turn: int
    version: int
    since_s: float


@dataclass
class _Task:
    away: dict[tuple[int, int], _Member] = field(default_factory=dict[tuple[int, int], _Member])
    """By group and member, in the order in which they left."""
    returned_s: deque[float] = field(default_factory=lambda: deque[float](maxlen=REMEMBERED))
    opened_s: deque[float] = field(default_factory=lambda: deque[float](maxlen=REMEMBERED))
    followed: list[int] = field(default_factory=lambda: [0] * TURNS)
    """Turns that were followed by another, by their number."""
    final: list[int] = field(default_factory=lambda: [0] * TURNS)
    sent_s: float | None = None
    opening_s: float | None = None
    version: int = 0
    """The newest that was announced."""
    is_stale: bool = False
    """Whether a prompt of an older version has come since one was announced: the task is not strictly on policy."""
    heard_s: float = 0.0
    """Time of the newest that is known of it."""

    def forget(self, key: tuple[int, int]) -> None:
        self.final[_index(self.away.pop(key).turn)] += 1


class Away:
    def __init__(self, clock: Callable[[], float]) -> None:
        """`clock`: NATS's time, as are all times."""
        self._clock = clock
        self._began_s = clock()
        self._tasks: dict[str, _Task] = {}
        self.announcements = 0
        """Number of versions that were announced; this is reported at once, as their first prompts may be near."""
        self.changed: Callable[[], None] = lambda: None
        """Called at each of them."""

    def sent(self, task: str, group: int, version: int, turns: Iterable[tuple[int, int]]) -> None:
        """Turns of a group, each a member and its turn's number, are sent to their environment. `version`: the group's."""
        one, now_s = self._tasks.setdefault(task, _Task()), self._clock()
        one.sent_s = one.heard_s = now_s
        for member, turn in turns:
            one.away.pop((group, member), None)
            one.away[group, member] = _Member(turn, version, now_s)
        while len(one.away) > MEMBERS:
            one.forget(next(iter(one.away)))

    def came(self, task: str, group: int, version: int, turns: Iterable[tuple[int, int]], stored_s: float) -> None:
        """Prompts of a group have come, that were stored at `stored_s`; also those of a message that comes once more."""
        one = self._tasks.setdefault(task, _Task())
        one.heard_s = self._clock()
        one.is_stale |= version < one.version and group < FIRST_EVALUATION_GROUP
        for member, turn in turns:
            left = one.away.pop((group, member), None)
            if not turn:
                if one.opening_s is not None and version >= one.version:
                    one.opened_s.append(max(0.0, stored_s - one.opening_s))
                    one.opening_s = None
            elif left is None or left.turn < turn:
                one.followed[_index(turn - 1)] += 1
                if left is not None:
                    one.returned_s.append(max(0.0, stored_s - left.since_s))

    def announced(self, task: str, version: int, stored_s: float, *, opens: bool = True) -> None:
        """A version was announced at `stored_s`; older ones do nothing. With staleness, groups of older ones may be open still.

        `opens`: whether its groups' first prompts are expected here; those of a task that is at home elsewhere are not.
        """
        if not opens and task not in self._tasks:
            return
        one, now_s = self._tasks.setdefault(task, _Task()), self._clock()
        if version <= one.version:
            return
        one.version, one.heard_s = version, now_s
        # The first prompts of an older one than this process may have come before.
        one.opening_s = stored_s if opens and stored_s >= self._began_s else None
        longest_s = max(one.returned_s, default=0.0)
        for (group, member), each in [*one.away.items()]:
            kept_s = longest_s if one.is_stale or group >= FIRST_EVALUATION_GROUP else 0.0
            if each.version < version and now_s - each.since_s >= kept_s:
                one.forget((group, member))
        self.announcements += 1
        self.changed()

    def ended(self, task: str) -> None:
        self._tasks.pop(task, None)

    def report(self, now_s: float) -> list[TaskAway]:
        """At most TASKS tasks, each of bounded size."""
        self._tasks = {name: one for name, one in self._tasks.items() if now_s - one.heard_s <= MAX_AWAY_S}
        for one in self._tasks.values():
            _forget_old(one, now_s)
        known = [(name, one) for name, one in self._tasks.items() if one.sent_s is not None or one.opening_s is not None]
        known = sorted(known, key=lambda each: (-max(each[1].sent_s or 0.0, each[1].opening_s or 0.0), each[0]))[:TASKS]
        prior = _chance(sum(sum(one.followed) for _, one in known), sum(sum(one.final) for _, one in known), GUESS)
        return [_told(name, one, prior, now_s) for name, one in known]


def _told(name: str, one: _Task, prior: float, now_s: float) -> TaskAway:
    away = list(one.away.values())
    chosen = away if len(away) <= AGES else [away[(2 * number + 1) * len(away) // (2 * AGES)] for number in range(AGES)]
    left = tuple((_ms(now_s - each.since_s), _per_cent(one, each.turn, prior)) for each in chosen)
    sent = None if one.sent_s is None else _ms(now_s - one.sent_s)
    opening = None if one.opening_s is None else _ms(now_s - one.opening_s)
    return TaskAway(name, len(away), left, sent, opening, _quantiles(one.returned_s), _quantiles(one.opened_s))


def _per_cent(one: _Task, turn: int, prior: float) -> int:
    index = _index(turn)
    return round(100 * _chance(one.followed[index], one.final[index], prior))


def _chance(followed: int, final: int, prior: float) -> float:
    """Share of turns that were followed; what is assumed before counts as one turn."""
    return (followed + prior) / (followed + final + 1)


def _forget_old(one: _Task, now_s: float) -> None:
    while one.away and now_s - one.away[next(iter(one.away))].since_s > MAX_AWAY_S:
        one.forget(next(iter(one.away)))
    if one.sent_s is not None and now_s - one.sent_s > MAX_AWAY_S:
        one.sent_s = None
    if one.opening_s is not None and now_s - one.opening_s > MAX_AWAY_S:
        one.opening_s = None


def _quantiles(seconds: Sequence[float]) -> tuple[int, ...]:
    ordered = sorted(seconds)
    if len(ordered) > TIMES:
        ordered = [ordered[round(knot * (len(ordered) - 1) / (TIMES - 1))] for knot in range(TIMES)]
    return tuple(map(_ms, ordered))


def _index(turn: int) -> int:
    return min(turn, TURNS - 1)


def _ms(seconds: float) -> int:
    return max(0, round(1000 * seconds))
