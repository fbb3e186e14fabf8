"""What a sampler reports of members that are with their environments."""

import hypothesis.strategies as st
from hypothesis import given, settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from pydantic import TypeAdapter

from common.accelerators.away import AGES, MAX_AWAY_S, MEMBERS, TASKS, TIMES, Away, TaskAway
from common.group_numbers import FIRST_EVALUATION_GROUP

TASK = "t"


class Clock:
    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


def begun() -> tuple[Clock, Away]:
    clock = Clock()
    return clock, Away(clock)


def told(away: Away, clock: Clock) -> TaskAway:
    [found] = away.report(clock.now_s)
    return found


def play_step(clock: Clock, away: Away, version: int, turns: int, seconds: float) -> None:
    """A group of one member goes through its turns, each of which takes its environment so long; the last one's reply is no prompt."""
    for turn in range(turns):
        away.came(TASK, version, version, [(0, turn)], clock.now_s)
        away.sent(TASK, version, version, [(0, turn)])
        clock.now_s += seconds
    away.announced(TASK, version + 1, clock.now_s)


def test_member_is_away_from_its_turn_until_its_next_prompt_was_stored() -> None:
    clock, away = begun()
    away.came(TASK, 0, 0, [(0, 0), (1, 0)], clock.now_s)
    assert away.report(clock.now_s) == []
    away.sent(TASK, 0, 0, [(0, 0), (1, 0)])
    clock.now_s += 4.0
    assert (told(away, clock).members, told(away, clock).sent_ms) == (2, 4000)
    assert [ago_ms for ago_ms, _ in told(away, clock).left_ms] == [4000, 4000]
    clock.now_s += 60.0  # the prompt waited in the queue while the sampler was parked
    away.came(TASK, 0, 0, [(1, 1)], clock.now_s - 59.0)
    assert (told(away, clock).members, told(away, clock).returned_ms) == (1, (5000,))


def test_prompt_that_comes_once_more_is_no_return() -> None:
    clock, away = begun()
    away.sent(TASK, 0, 0, [(0, 0), (1, 1)])
    away.came(TASK, 0, 0, [(0, 0), (1, 1)], clock.now_s)
    assert (told(away, clock).members, told(away, clock).returned_ms) == (0, ())
    away.sent(TASK, 0, 0, [(0, 0)])
    assert told(away, clock).left_ms == ((0, 50),)  # as before anything was seen


def test_how_often_turns_are_followed_is_known_by_their_number() -> None:
    """Each episode has three turns: the first two are always followed by another, the last never."""
    clock, away = begun()
    for version in range(30):
        play_step(clock, away, version, 3, 1.0)
    found: list[int] = []
    for turn in range(3):
        away.sent(TASK, 30, 30, [(0, turn)])
        found.append(told(away, clock).left_ms[0][1])
    assert found[0] > 95 and found[1] > 95 and found[2] < 5


def test_members_of_older_versions_are_forgotten_with_the_next_one() -> None:
    clock, away = begun()
    away.sent(TASK, 0, 0, [(0, 0)])
    away.announced(TASK, 1, clock.now_s)
    assert told(away, clock).members == 0


def test_with_staleness_members_that_may_return_are_kept() -> None:
    clock, away = begun()
    away.sent(TASK, 0, 0, [(0, 0)])
    clock.now_s += 10.0
    away.came(TASK, 0, 0, [(0, 1)], clock.now_s)
    away.announced(TASK, 1, clock.now_s)
    away.came(TASK, 1, 0, [(0, 0)], clock.now_s)  # of version 0, after version 1
    away.sent(TASK, 1, 0, [(0, 0)])
    clock.now_s += 6.0
    away.sent(TASK, 2, 0, [(0, 0)])
    clock.now_s += 6.0
    away.announced(TASK, 2, clock.now_s)
    assert [ago_ms for ago_ms, _ in told(away, clock).left_ms] == [6000]  # the other is away for longer than any was


def test_task_opens_from_its_announcement_until_the_first_prompt_of_that_version() -> None:
    clock, away = begun()
    away.announced(TASK, 3, clock.now_s)
    clock.now_s += 2.0
    away.came(TASK, 7, 2, [(0, 0)], clock.now_s)
    assert told(away, clock).opening_ms == 2000
    away.came(TASK, 8, 3, [(0, 0)], clock.now_s)
    away.sent(TASK, 8, 3, [(0, 0)])
    assert (told(away, clock).opening_ms, told(away, clock).opened_ms) == (None, (2000,))
    away.announced(TASK, 3, clock.now_s)
    assert told(away, clock).opening_ms is None  # it comes twice


def test_announcement_from_before_this_process_opens_nothing() -> None:
    clock, away = begun()
    away.announced(TASK, 3, clock.now_s - 1.0)
    assert away.report(clock.now_s) == []


def test_version_that_opens_elsewhere_forgets_members_and_opens_nothing_here() -> None:
    clock, away = begun()
    away.announced("elsewhere", 1, clock.now_s, opens=False)
    assert away.report(clock.now_s) == []
    away.announced(TASK, 1, clock.now_s)
    away.sent(TASK, 0, 0, [(0, 0)])
    away.announced(TASK, 2, clock.now_s, opens=False)
    assert (told(away, clock).members, told(away, clock).opening_ms) == (0, None)


def test_evaluations_of_an_older_version_do_not_make_a_task_stale_and_their_members_may_return() -> None:
    clock, away = begun()
    away.sent(TASK, 0, 0, [(0, 0)])
    clock.now_s += 10.0
    away.came(TASK, 0, 0, [(0, 1)], clock.now_s)
    away.announced(TASK, 1, clock.now_s)
    away.announced(TASK, 2, clock.now_s)
    away.came(TASK, FIRST_EVALUATION_GROUP, 1, [(0, 0)], clock.now_s)
    away.sent(TASK, FIRST_EVALUATION_GROUP, 1, [(0, 0)])
    away.sent(TASK, 2, 2, [(0, 0), (1, 0)])
    clock.now_s += 5.0
    away.announced(TASK, 3, clock.now_s)
    assert told(away, clock).members == 1, "the evaluation's"


def test_announcement_is_told_at_once() -> None:
    clock, away = begun()
    changes: list[int] = []
    away.changed = lambda: changes.append(away.announcements)
    away.announced(TASK, 1, clock.now_s)
    away.announced(TASK, 1, clock.now_s)
    assert changes == [1]


def test_nothing_counts_for_ever() -> None:
    clock, away = begun()
    away.sent(TASK, 0, 0, [(0, 0)])
    away.announced("other", 1, clock.now_s)
    clock.now_s += MAX_AWAY_S + 1
    assert away.report(clock.now_s) == [] and away._tasks == {}
    away.sent(TASK, 1, 0, [(0, 0)])
    away.ended(TASK)
    assert away.report(clock.now_s) == []
    away.came("first turns take long", 0, 0, [(0, 0)], clock.now_s)
    clock.now_s += MAX_AWAY_S - 1
    away.report(clock.now_s)
    assert list(away._tasks) == ["first turns take long"]


def test_report_of_many_tasks_and_members_is_bounded() -> None:
    clock, away = begun()
    for task in range(TASKS + 5):
        clock.now_s += 1.0
        for group in range(MEMBERS // 16 + 5):
            away.sent(f"t{task}", group, 0, [(member, 0) for member in range(16)])
            clock.now_s += 0.001
    found = away.report(clock.now_s)
    assert [one.task for one in found] == [f"t{task}" for task in range(TASKS + 4, 4, -1)]
    assert {one.members for one in found} == {MEMBERS}
    oldest, *_, newest = [ago_ms for ago_ms, _ in found[0].left_ms]
    assert len(found[0].left_ms) == AGES and oldest > 2 * newest  # of the whole range


class Histories(RuleBasedStateMachine):
    """Random prompts and turns of an on-policy task against a plain set of who is away."""

    def __init__(self) -> None:
        super().__init__()
        self.clock, self.away = begun()
        self.version = 0
        self.here: dict[tuple[int, int], int] = {}
        self.gone: dict[tuple[int, int], tuple[int, float]] = {}
        self.times_s: list[float] = []

    @rule(seconds=st.floats(0, 20))
    def time_passes(self, seconds: float) -> None:
        self.clock.now_s += seconds

    @rule(group=st.integers(0, 3), size=st.integers(1, 4))
    def group_comes(self, group: int, size: int) -> None:
        number = 10 * self.version + group
        new = [member for member in range(size) if (number, member) not in {*self.here, *self.gone}]
        self.away.came(TASK, number, self.version, [(member, 0) for member in new], self.clock.now_s)
        self.here |= {(number, member): 0 for member in new}

    @precondition(lambda self: self.here)
    @rule(data=st.data())
    def turn_is_sent(self, data: st.DataObject) -> None:
        key = data.draw(st.sampled_from(sorted(self.here)))
        turn = self.here.pop(key)
        self.away.sent(TASK, key[0], self.version, [(key[1], turn)])
        self.gone[key] = turn, self.clock.now_s

    @precondition(lambda self: self.gone)
    @rule(data=st.data())
    def member_returns(self, data: st.DataObject) -> None:
        key = data.draw(st.sampled_from(sorted(self.gone)))
        turn, since_s = self.gone.pop(key)
        self.away.came(TASK, key[0], self.version, [(key[1], turn + 1)], self.clock.now_s)
        self.here[key] = turn + 1
        self.times_s.append(self.clock.now_s - since_s)

    @rule()
    def version_comes(self) -> None:
        self.version += 1
        self.here, self.gone = {}, {}
        self.away.announced(TASK, self.version, self.clock.now_s)

    @invariant()
    def report_is_right(self) -> None:
        found = [one for one in self.away.report(self.clock.now_s) if one.task == TASK]
        recent = {key: since_s for key, (_, since_s) in self.gone.items() if self.clock.now_s - since_s <= MAX_AWAY_S}
        self.gone = {key: each for key, each in self.gone.items() if key in recent}
        assert sum(one.members for one in found) == len(recent)
        for one in found:
            assert TypeAdapter(TaskAway).validate_python(one) == one
            ages_ms = {round(1000 * (self.clock.now_s - since_s)) for since_s in recent.values()}
            assert all(any(abs(ago_ms - each) <= 1 for each in ages_ms) for ago_ms, _ in one.left_ms)
            assert len(one.left_ms) == min(AGES, one.members)
            assert len(one.returned_ms) == min(TIMES, len(self.times_s)) and list(one.returned_ms) == sorted(one.returned_ms)
            if self.times_s:
                assert one.returned_ms[-1] == round(1000 * max(self.times_s[-32:]))


TestHistories = Histories.TestCase
TestHistories.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 3), st.integers(0, 40), st.booleans()), max_size=60), st.floats(0, 2000))
def test_any_order_of_messages_gives_a_valid_report(events: list[tuple[int, int, int, bool]], later_s: float) -> None:
    """Messages may come twice, late, from another sampler, or of a version that nobody announced here."""
    clock, away = begun()
    for group, member, turn, comes in events:
        clock.now_s += 0.5
        if comes:
            away.came(TASK, group, group % 3, [(member, turn)], clock.now_s - 1.0)
        else:
            away.sent(TASK, group, group % 3, [(member, turn)])
        if turn == 7:
            away.announced(TASK, group, clock.now_s)
    for one in away.report(clock.now_s + later_s):
        assert TypeAdapter(TaskAway).validate_python(one) == one
