"""The one cause for which a task waits, in made situations of every kind."""

from dataclasses import replace

import pytest

from scheduler_svc.accelerators.decisions.waits import AcceleratorWait, misfit
from scheduler_svc.tenancy.decisions.shares import Capacity, InFlightLimits, Load
from scheduler_svc.training.decisions.waiting import (
    FullQueue,
    Kind,
    Limits,
    OverBudget,
    Places,
    Replicas,
    TrainerQueue,
    WaitingTask,
    cause_of,
)

TASK = WaitingTask("tiny", "sums", True, False, 0, Load(8, 800.0), 3, 1, 4, 10.0, 100.0, None)
MAY_OPEN = replace(TASK, allowance=2, open_groups=0)
ALL = Replicas(samplers=1, environments=2, trainers=1, sequences=64, sampled=64.0)
IDLE = replace(ALL, sampled=10.0)
ROOM = Places(Capacity(96, 10_000), Load(24, 2400.0), 24, 0, 24)
IN_POOL = replace(ROOM, in_pool=Load(24, 2400.0))
FULL = Places(Capacity(96, 10_000), Load(96, 9600.0), 8, 16, 24)
NONE = Limits()
PARKED = AcceleratorWait("a", wake_s=2.0, usual_s=30.0, waited_s=10.0)
LONG = AcceleratorWait("a", wake_s=2.0, usual_s=30.0, waited_s=100.0)
NEW = AcceleratorWait("a", wake_s=2.0, usual_s=None, waited_s=1.0)
TOO_LARGE = replace(PARKED, misfit=misfit("a", "rollout", "tiny", 5 * 2**30, 4.0))
HELD, POISONED, UNUSED = replace(PARKED, is_held=True), replace(PARKED, faults=3), replace(PARKED, has_work=False)


def full(sequences: int, own: int, siblings: int = 0, tokens: float = 0.0) -> Places:
    """A pool of 96 sequences and 10,000 tokens that has so much in flight."""
    return Places(Capacity(96, 10_000), Load(sequences, tokens), own, siblings, own + siblings)


def tokens(used: int, maximum: int) -> Limits:
    return Limits([("max_tokens", maximum, used)])


def stored(used: int, maximum: int) -> Limits:
    return Limits([("max_tokens", 9, 8), ("max_stored_bytes", maximum, used), ("max_adapters", 9, 8)])


def holding(limits: InFlightLimits) -> Limits:
    return Limits(in_flight=limits)


Situation = tuple[WaitingTask, Replicas, Places, Limits, Kind | None, float]
SITUATIONS: list[Situation] = [
    # Its pool is parked: its open groups, or the next one where the pool has what its slice begins with; or its step, the trainer.
    *[(replace(TASK, sampler_waits=wait), ALL, ROOM, NONE, Kind.ACCELERATOR, left) for wait, left in ((PARKED, 20), (LONG, 2), (NEW, 2))],
    (replace(MAY_OPEN, sampler_waits=PARKED), ALL, FULL, NONE, Kind.ACCELERATOR, 20),
    (replace(MAY_OPEN, sampler_waits=PARKED), ALL, FULL, tokens(9, 9), Kind.BUDGET, 9),
    (replace(MAY_OPEN, sampler_waits=PARKED), ALL, ROOM, NONE, None, 0),
    (replace(TASK, trainer_waits=PARKED, queue=TrainerQueue(2, 1.0)), ALL, ROOM, NONE, Kind.ACCELERATOR, 20),
    (replace(TASK, sampler_waits=PARKED, queue=TrainerQueue(2, 1.0)), ALL, ROOM, NONE, Kind.TRAINER, 3),
    (replace(TASK, sampler_waits=HELD), ALL, ROOM, NONE, Kind.ACCELERATOR, 1),
    (replace(TASK, sampler_waits=POISONED), ALL, ROOM, NONE, Kind.ACCELERATOR, 3),
    (replace(TASK, sampler_waits=UNUSED, oldest_s=40.0), ALL, ROOM, NONE, Kind.ENVIRONMENT, 40),
    (replace(MAY_OPEN, sampler_waits=UNUSED), ALL, FULL, NONE, Kind.SHARE, 88),
    *[(replace(one, trainer_waits=TOO_LARGE), ALL, ROOM, NONE, Kind.ACCELERATOR, 5) for one in (TASK, MAY_OPEN)],
    (replace(TASK, sampler_waits=replace(TOO_LARGE, faults=3), queue=TrainerQueue(2, 1.0)), ALL, ROOM, NONE, Kind.ACCELERATOR, 5),
    (replace(TASK, sampler_waits=TOO_LARGE, is_paused=True), ALL, ROOM, NONE, Kind.PAUSED, 3),
    # Paused, whatever else there is.
    *[(replace(TASK, is_paused=True, open_groups=number), ALL, ROOM, NONE, Kind.PAUSED, number) for number in (0, 1, 5)],
    (replace(MAY_OPEN, is_paused=True), ALL, FULL, tokens(9, 9), Kind.PAUSED, 0),
    (replace(TASK, is_paused=True, queue=TrainerQueue(2, 1.0)), ALL, ROOM, NONE, Kind.PAUSED, 3),
    (replace(TASK, is_paused=True), Replicas(0, 0, 0), ROOM, NONE, Kind.PAUSED, 3),
    # A budget has paused it.
    (replace(MAY_OPEN, is_paused=True, over_budget=OverBudget(700.0, "budget: 700 tokens a day")), ALL, FULL, NONE, Kind.BUDGET, 700),
    # No replica of the environment, the pool's samplers, the pool's trainers.
    (replace(TASK, is_accepted=False), replace(ALL, environments=0), ROOM, NONE, Kind.NO_REPLICA, 0),
    (TASK, replace(ALL, environments=0), ROOM, NONE, Kind.NO_REPLICA, 0),
    (MAY_OPEN, replace(ALL, samplers=0), ROOM, NONE, Kind.NO_REPLICA, 0),
    (MAY_OPEN, replace(ALL, samplers=0), FULL, tokens(9, 9), Kind.NO_REPLICA, 0),
    (TASK, replace(ALL, samplers=0), ROOM, NONE, Kind.NO_REPLICA, 0),
    (replace(TASK, queue=TrainerQueue(0, None)), replace(ALL, trainers=0), ROOM, NONE, Kind.NO_REPLICA, 0),
    (replace(TASK, queue=TrainerQueue(7, 2.0)), replace(ALL, trainers=0), ROOM, NONE, Kind.NO_REPLICA, 0),
    # The tenant's tokens are used up, exactly or by more; it does not matter for groups in flight.
    *[(MAY_OPEN, ALL, ROOM, tokens(used, 1000), Kind.BUDGET, 1000) for used in (1000, 1001, 5000)],
    (MAY_OPEN, ALL, FULL, replace(tokens(1000, 1000), in_flight=InFlightLimits(8)), Kind.BUDGET, 1000),
    (MAY_OPEN, ALL, FULL, tokens(0, 0), Kind.BUDGET, 0),
    (MAY_OPEN, ALL, ROOM, tokens(999, 1000), None, 0),
    (TASK, ALL, ROOM, tokens(1000, 1000), Kind.PACE, 3),
    # The tenant's sequences in flight, over all pools; the first group always may be.
    *[(MAY_OPEN, ALL, ROOM, holding(InFlightLimits(most)), Kind.QUOTA, most) for most in (1, 24, 31)],
    (MAY_OPEN, ALL, replace(ROOM, tenant=60), holding(InFlightLimits(64)), Kind.QUOTA, 64),
    (MAY_OPEN, ALL, FULL, holding(InFlightLimits(30)), Kind.QUOTA, 30),
    (MAY_OPEN, ALL, ROOM, holding(InFlightLimits(32)), None, 0),
    (MAY_OPEN, ALL, full(0, 0), holding(InFlightLimits(1)), None, 0),
    # The same in one pool, and its tokens there.
    (MAY_OPEN, ALL, IN_POOL, holding(InFlightLimits(max_pool_sequences=31)), Kind.QUOTA, 31),
    (MAY_OPEN, ALL, IN_POOL, holding(InFlightLimits(max_pool_sequences=32)), None, 0),
    (MAY_OPEN, ALL, IN_POOL, holding(InFlightLimits(max_pool_sequences=33)), None, 0),
    (MAY_OPEN, ALL, ROOM, holding(InFlightLimits(max_pool_sequences=1)), None, 0),
    (MAY_OPEN, ALL, IN_POOL, holding(InFlightLimits(max_pool_tokens=3199)), Kind.QUOTA, 3199),
    (MAY_OPEN, ALL, IN_POOL, holding(InFlightLimits(max_pool_tokens=3200)), None, 0),
    # What is stored.
    *[(MAY_OPEN, ALL, ROOM, stored(used, 1000), Kind.QUOTA, 1000) for used in (1000, 1001)],
    (MAY_OPEN, ALL, ROOM, stored(999, 1000), None, 0),
    (MAY_OPEN, ALL, ROOM, Limits([("max_adapters", 3, 3)]), Kind.QUOTA, 3),
    # As many checks as the tenant may have at once.
    (replace(TASK, is_accepted=False, checks=4), ALL, ROOM, NONE, Kind.QUOTA, 4),
    (replace(TASK, is_accepted=False, checks=4), replace(ALL, environments=0), ROOM, NONE, Kind.NO_REPLICA, 0),
    # Full, and others hold places: all places but the task's own.
    (MAY_OPEN, ALL, FULL, NONE, Kind.SHARE, 88),
    (MAY_OPEN, ALL, full(96, 0), NONE, Kind.SHARE, 96),
    (MAY_OPEN, ALL, full(96, 0, siblings=96), NONE, Kind.SHARE, 96),
    (MAY_OPEN, ALL, full(96, 95), NONE, Kind.SHARE, 1),
    (MAY_OPEN, ALL, full(89, 40), NONE, Kind.SHARE, 49),
    (MAY_OPEN, ALL, full(200, 100, siblings=50), NONE, Kind.SHARE, 100),
    (MAY_OPEN, ALL, full(40, 8, tokens=9900.0), NONE, Kind.SHARE, 32),
    (MAY_OPEN, ALL, FULL, replace(tokens(5, 10), in_flight=InFlightLimits(1000)), Kind.SHARE, 88),
    (MAY_OPEN, ALL, full(88, 8), NONE, None, 0),
    # Full with its own work: the pool is too small.
    (MAY_OPEN, ALL, full(96, 96), NONE, Kind.CAPACITY, 96),
    (MAY_OPEN, ALL, full(89, 89), NONE, Kind.CAPACITY, 96),
    (MAY_OPEN, ALL, full(8, 8, tokens=9900.0), NONE, Kind.CAPACITY, 10_000),
    (replace(MAY_OPEN, group=Load(97, 100.0)), ALL, full(1, 1), NONE, Kind.CAPACITY, 96),
    (replace(MAY_OPEN, group=Load(97, 100.0)), ALL, full(0, 0), NONE, None, 0),
    # Slow environments: old groups, and samplers with room.
    *[(replace(TASK, oldest_s=age), IDLE, ROOM, NONE, Kind.ENVIRONMENT, age) for age in (50.0, 75.0, 99.0)],
    (replace(TASK, oldest_s=31.0, timeout_s=60.0), IDLE, ROOM, NONE, Kind.ENVIRONMENT, 31),
    (replace(TASK, is_accepted=False), ALL, ROOM, NONE, Kind.ENVIRONMENT, 2),
    (replace(TASK, oldest_s=49.0), IDLE, ROOM, NONE, Kind.PACE, 3),
    (replace(TASK, oldest_s=99.0), ALL, ROOM, NONE, Kind.PACE, 3),
    # The trainers' queue: its position.
    *[(replace(TASK, queue=TrainerQueue(before, 2.0)), ALL, ROOM, NONE, Kind.TRAINER, before + 1) for before in (0, 1, 19)],
    (replace(TASK, queue=TrainerQueue(4, None)), ALL, ROOM, NONE, Kind.TRAINER, 5),
    (replace(TASK, queue=TrainerQueue(4, 3.0)), replace(ALL, samplers=0), ROOM, NONE, Kind.TRAINER, 5),
    (replace(MAY_OPEN, queue=TrainerQueue(0, 3.0)), ALL, FULL, tokens(9, 9), Kind.TRAINER, 1),
    # Pace: what the next step lacks.
    *[(replace(TASK, ready_groups=ready), ALL, ROOM, NONE, Kind.PACE, 4 - ready) for ready in (0, 1, 2, 3)],
    (replace(TASK, ready_groups=9), ALL, ROOM, NONE, Kind.PACE, 1),
    (replace(TASK, groups_per_step=64), ALL, FULL, NONE, Kind.PACE, 63),
    # Nothing holds it.
    (MAY_OPEN, ALL, ROOM, NONE, None, 0),
    (replace(TASK, open_groups=0, ready_groups=4), ALL, ROOM, NONE, None, 0),
    (MAY_OPEN, ALL, full(0, 0), NONE, None, 0),
]


def test_there_are_sixty_situations_with_every_kind() -> None:
    assert len(SITUATIONS) >= 60
    assert {kind for *_, kind, _ in SITUATIONS} == {*Kind, None} - {Kind.QUEUE}, "full streams are below"


@pytest.mark.parametrize(("task", "replicas", "places", "limits", "kind", "number"), SITUATIONS)
def test_the_cause_is_named_with_its_number(
    task: WaitingTask, replicas: Replicas, places: Places, limits: Limits, kind: Kind | None, number: float
) -> None:
    cause = cause_of(task, replicas, places, limits)
    assert (None if cause is None else cause.kind) == kind
    if cause is not None:
        assert cause.number == number
        assert cause.kind in (Kind.SHARE, Kind.PAUSED) or f"{number:.0f}" in cause.sentence


def test_executor_that_is_too_large_is_named_with_its_bytes_the_budget_and_the_way_out() -> None:
    found = misfit("a", "trainer", "big", 4 * 2**30 + 1, 4.0)
    assert found is not None
    assert found.sentence == (
        "trainer-big needs 4294967297 bytes (4.00 GiB) on the device, and accelerator 'a' has 4.00 GiB for all its executors, so it never"
        " wakes: raise memory_gib of [accelerator.a], or lower train_tokens of [big]"
    )
    assert misfit("a", "trainer", "big", 4 * 2**30, 4.0) is None and misfit("a", "trainer", "big", 4 * 2**30, None) is None


def test_a_share_is_told_in_numbers_only() -> None:
    cause = cause_of(MAY_OPEN, ALL, FULL, NONE)
    assert cause is not None
    assert cause.sentence == (
        "pool 'tiny' takes 96 sequences, 96 are in flight and its next group needs 8;"
        " of 96 sequences it holds 8, its tenant's other tasks 16, other tenants 72"
    )


def test_sequences_withheld_for_served_requests_are_named() -> None:
    for task, places in ((MAY_OPEN, FULL), (replace(TASK, groups_per_step=64), ROOM)):
        cause, beside = (cause_of(task, replace(ALL, withheld=withheld), places, NONE) for withheld in (0.4, 24.0))
        assert cause is not None and beside is not None and "served" not in cause.sentence
        assert "; served requests withhold 24 further sequences" in beside.sentence and (beside.kind, beside.number) == (
            cause.kind,
            cause.number,
        )


def test_the_trainers_queue_says_how_long_it_takes() -> None:
    cause = cause_of(replace(TASK, queue=TrainerQueue(5, 3.0)), replace(ALL, trainers=2), ROOM, NONE)
    assert cause is not None
    assert cause.sentence == "its step is number 6 in line for 2 trainers: about 9 s at 3.0 s a step"


FULL_QUEUES = {name: FullQueue(name, 95, 100, "env", 2) for name in ("PROMPTS", "TURNS", "SCORED", "BATCHES", "WEIGHTS")}
WITH_TRAINERS = replace(TASK, queue=TrainerQueue(0, 1.0))


@pytest.mark.parametrize(
    ("task", "replicas", "streams", "kind"),
    [
        *[(TASK, ALL, [name], Kind.QUEUE) for name in ("PROMPTS", "TURNS", "SCORED", "BATCHES")],
        (TASK, ALL, ["WEIGHTS"], Kind.PACE),
        *[(WITH_TRAINERS, ALL, [name], Kind.QUEUE) for name in ("PROMPTS", "BATCHES", "WEIGHTS")],
        *[(WITH_TRAINERS, ALL, [name], Kind.TRAINER) for name in ("TURNS", "SCORED")],
        (replace(TASK, is_accepted=False), ALL, ["PROMPTS"], Kind.QUEUE),
        (MAY_OPEN, replace(ALL, samplers=0), ["TURNS", "PROMPTS"], Kind.QUEUE),
        (replace(TASK, is_paused=True), ALL, ["PROMPTS"], Kind.PAUSED),
        (TASK, replace(ALL, environments=0), ["PROMPTS"], Kind.NO_REPLICA),
    ],
)
def test_a_full_stream_is_the_cause_where_the_task_needs_it(task: WaitingTask, replicas: Replicas, streams: list[str], kind: Kind) -> None:
    cause = cause_of(task, replicas, ROOM, NONE, [FULL_QUEUES[name] for name in streams])
    assert cause is not None and cause.kind == kind
    if kind == Kind.QUEUE:
        assert cause.number == 100
        assert cause.sentence.startswith(f"stream {streams[0]} has 95 of 100 bytes")
        assert "the service env, which has 2 live replicas" in cause.sentence
