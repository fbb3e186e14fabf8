"""Settlement, admission, batching and the outbox against a real PostgreSQL, under every kind of delivery.

Lists that keep every message stand in for NATS: a message may be delivered any number of times, in any order, next to any
other, late, and into a transaction that fails at its end. In every case the doctor finds no violation, settled members
stay settled, and every task ends.
"""

import asyncio
import math
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field

import hypothesis.strategies as st
from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule, run_state_machine_as_test
from sqlalchemy import text

from common import streams
from common.bus import Delivery, Outgoing
from common.messages import ControlTask, DeadLetter, EnvironmentChecked, GroupContext, Message, OpenGroup, SubmitTask, TrainBatch
from scheduler_svc.base.audit import Actor
from scheduler_svc.base.database import Database
from scheduler_svc.base.scheduling_policy import SchedulingPolicy
from scheduler_svc.base.transaction import Transaction
from scheduler_svc.doctor.database_rules import examine_database
from scheduler_svc.tenancy.decisions.shares import Capacity
from scheduler_svc.training import admission, environment_checks
from scheduler_svc.training.decisions.pool_load import PoolTimes
from scheduler_svc.training.results import dead_letters, scores, weight_updates
from scheduler_svc.training.submission import Catalog
from scheduler_svc.upkeep import outbox
from scheduler_svc.upkeep.deletion import deletion
from scheduler_svc.verbs import jobs
from tests.support.scheduler.stages import POOLS, scored, spec, updated

TASKS = ("a", "b", "c")
SEQUENCES = 8
CAPACITY = {"tiny": Capacity(sequences=SEQUENCES, kv_tokens=10**6)}
OFFER = Catalog(POOLS, {"toy"})
TABLES = "tenants, tasks, groups, trajectories, steps, ledger, events, outbox, dead_letters, deleted_tasks, stored_blobs"


def stable_for_s(pool: str) -> float:
    return math.inf


class Crash(Exception):
    """The process dies before it commits."""


@dataclass
class Streams:
    """All published messages, by the stage that reads them."""

    sequence: int = 0
    opens: list[GroupContext] = field(default_factory=list[GroupContext])
    scores: list[Delivery] = field(default_factory=list[Delivery])
    batches: list[TrainBatch] = field(default_factory=list[TrainBatch])

    def store(self, out: Outgoing) -> Delivery:
        self.sequence += 1
        headers = {streams.KIND_HEADER: out.message.kind, **out.headers}
        return Delivery(out.subject, headers, out.message.encode(), self.sequence, 1)


class Interleavings(RuleBasedStateMachine):
    """State machine of the scheduler's transactions."""

    def __init__(self, url: str) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.database = self.runner.run(Database.connect(url))
        self.streams = Streams()
        self.policy = SchedulingPolicy.ASYNCHRONOUS
        self.settled: dict[tuple[str, int, int], tuple[int, float]] = {}
        """Member → sequence and reward of the message that counted."""

    def teardown(self) -> None:
        try:
            self.finish_all_tasks()
        finally:
            self.runner.run(self.database.close())
            self.runner.close()

    def change(self, action: Callable[[Transaction], Awaitable[object]], *, crash: bool = False) -> None:
        """Run one transaction; a crash rolls it back."""

        async def transact() -> None:
            async with self.database.transaction() as tx:
                await action(tx)
                if crash:
                    raise Crash

        with suppress(Crash):
            self.runner.run(transact())

    def rows(self, query: str) -> list[tuple[object, ...]]:
        async def ask() -> list[tuple[object, ...]]:
            async with self.database.transaction() as tx:
                return [tuple(row) for row in (await tx.connection.execute(text(query))).all()]

        return self.runner.run(ask())

    # --------------------------------------------------------------------------------------------------------- rules

    @initialize(
        staleness=st.tuples(*[st.integers(0, 2)] * 3),
        refills=st.integers(0, 1),
        steps=st.integers(1, 3),
        policy=st.sampled_from(SchedulingPolicy),
    )
    def begin(self, staleness: tuple[int, ...], refills: int, steps: int, policy: SchedulingPolicy) -> None:
        self.policy = policy
        self.change(lambda tx: tx.connection.execute(text(f"TRUNCATE {TABLES} RESTART IDENTITY CASCADE")))
        for task, bound in zip(TASKS, staleness, strict=True):
            algorithm = {"group_size": 2, "groups_per_step": 2, "max_staleness": bound, "max_refills": refills}
            raw = spec(task, tenant="other" if task == "c" else "acme", steps=steps, algorithm=algorithm)
            job = self.streams.store(
                Outgoing(streams.job("submit", raw["tenant"]), SubmitTask(task=task, tenant=raw["tenant"], spec=raw), "")
            )
            for _ in range(2):
                self.change(lambda tx, job=job: jobs.take_job(tx, job, OFFER, self.policy))
            self.answer_check(TASKS.index(task), crash=False)

    @rule(which=st.integers(0, 2), crash=st.booleans())
    def answer_check(self, which: int, crash: bool) -> None:
        task = TASKS[which]
        answer = EnvironmentChecked(tenant="other" if task == "c" else "acme", task=task, objection=None)
        self.change(lambda tx: environment_checks.environment_checked(tx, answer), crash=crash)

    @rule(crash=st.booleans())
    def admit(self, crash: bool) -> None:
        self.change(lambda tx: admission.admit(tx, CAPACITY, self.policy, PoolTimes(time.time())), crash=crash)

    @rule(limit=st.integers(1, 8), crash=st.booleans())
    def relay(self, limit: int, crash: bool) -> None:
        """Publish some rows of the outbox; after a crash they remain and are republished."""

        async def publish(tx: Transaction) -> None:
            rows = await outbox.oldest_rows(tx.connection, limit)
            for row in rows:
                if row.subject.startswith("prompts.open."):
                    self.streams.opens.append(OpenGroup.decode(row.body).group)
                elif row.subject.startswith("trajectories.batch."):
                    self.streams.batches.append(TrainBatch.decode(row.body))
            if rows:
                await outbox.delivered(tx.connection, [row.id for row in rows])

        self.change(publish, crash=crash)

    @precondition(lambda self: self.streams.opens)
    @rule(data=st.data(), rewards=st.lists(st.sampled_from([0.0, 1.0, None]), min_size=2, max_size=2))
    def play(self, data: st.DataObject, rewards: list[float | None]) -> None:
        """Score a group's members, perhaps repeatedly, with any rewards."""
        self._play(data.draw(st.sampled_from(self.streams.opens)), rewards)

    def _play(self, group: GroupContext, rewards: list[float | None]) -> None:
        for member, reward in enumerate(rewards):
            failure = "sandbox died" if reward is None else None
            self.streams.scores.append(self.streams.store(scored(group, member, reward=reward or 0.0, failure=failure)))

    @precondition(lambda self: self.streams.scores)
    @rule(data=st.data(), crash=st.booleans())
    def settle(self, data: st.DataObject, crash: bool) -> None:
        """Settle any scores, in any order, some of them twice."""
        chosen = data.draw(st.lists(st.sampled_from(self.streams.scores), min_size=1, max_size=8))
        self.change(lambda tx: scores.trajectories_scored(tx, chosen, self.policy), crash=crash)

    @precondition(lambda self: self.streams.batches)
    @rule(data=st.data(), crash=st.booleans())
    def train(self, data: st.DataObject, crash: bool) -> None:
        """Train and announce a batch, perhaps an old one; equal batches have equal announcements."""
        batch = data.draw(st.sampled_from(self.streams.batches))
        self.change(lambda tx: weight_updates.weights_updated(tx, [updated(batch).message], self.policy), crash=crash)  # type: ignore[arg-type]

    @precondition(lambda self: self.streams.opens)
    @rule(data=st.data(), stage=st.sampled_from(["open", "turn", "settle"]), garbage=st.booleans(), crash=st.booleans())
    def give_up(self, data: st.DataObject, stage: str, garbage: bool, crash: bool) -> None:
        """Make a message about a group a dead letter, which is delivered twice."""
        group = data.draw(st.sampled_from(self.streams.opens))
        self._dead_letter(stage, group.task, OpenGroup(group=group), b"garbage" if garbage else None, crash)

    @precondition(lambda self: self.streams.batches)
    @rule(data=st.data(), crash=st.booleans())
    def give_up_training(self, data: st.DataObject, crash: bool) -> None:
        """Make a batch of the current or of an earlier version a dead letter."""
        batch = data.draw(st.sampled_from(self.streams.batches))
        self._dead_letter("train", batch.task, batch, None, crash)

    def _dead_letter(self, stage: str, task: str, message: Message, body: bytes | None, crash: bool) -> None:
        lost = {"open": "prompts.open.toy.{}.0", "turn": "trajectories.turn.toy.{}.0-0", "settle": "trajectories.scored.{}.0-0"}
        subject = lost.get(stage, "trajectories.batch.tiny.{}").format(task)
        letter = DeadLetter(
            stage=stage, subject=subject, reason="poison", attempts=5, headers={}, body=body or message.encode(), sequence=1
        )
        delivery = self.streams.store(Outgoing(streams.failed(stage, task), letter, ""))
        for lost in (crash, False):
            self.change(lambda tx: dead_letters.message_failed(tx, delivery), crash=lost)

    @rule(data=st.data(), crash=st.booleans())
    def miss_deadlines(self, data: st.DataObject, crash: bool) -> None:
        number = data.draw(st.integers(0, 6))
        past = text(
            "UPDATE groups SET deadline_at = now() - interval '1 second', admitted_at = now() - interval '1 day'"
            " WHERE state = 'open' AND number <= :number"
        )
        self.change(lambda tx: tx.connection.execute(past, {"number": number}))
        for lost in (crash, False) if crash else (False,):  # groups that stay overdue violate a rule
            for task in TASKS:
                self.change(
                    lambda tx, task=task: scores.void_overdue(tx, task, self.policy, time.time(), stable_for_s=stable_for_s),
                    crash=lost,
                )

    @rule(verb=st.sampled_from(["pause", "resume", "resume", "cancel"]), which=st.integers(0, 2), crash=st.booleans())
    def control(self, verb: str, which: int, crash: bool) -> None:
        tenant = "other" if which == 2 else "acme"
        job = self.streams.store(Outgoing(f"jobs.{verb}.{tenant}", ControlTask(task=TASKS[which], tenant=tenant), ""))
        self.change(lambda tx: jobs.take_job(tx, job, OFFER, self.policy), crash=crash)

    @rule(which=st.integers(0, 2), foreign=st.booleans(), crash=st.booleans())
    def delete(self, which: int, foreign: bool, crash: bool) -> None:
        """Delete as the owner or another tenant; live tasks stay, and the usage of a deleted one is kept."""
        tenant = "other" if (which == 2) != foreign else "acme"
        job = ControlTask(task=TASKS[which], tenant=tenant)
        before = self.consumed()
        self.streams.sequence += 1
        by = self.streams.sequence
        present = self.rows(f"SELECT id FROM tasks WHERE id = '{TASKS[which]}'")
        live = self.rows(f"SELECT id FROM tasks WHERE id = '{TASKS[which]}' AND ended_at IS NULL")
        for lost in (crash, False):  # the second is its redelivery
            self.change(lambda tx: deletion.delete(tx, job, by=by, sender=Actor(job.tenant, "delete", "key")), crash=lost)
        left = self.rows(f"SELECT id FROM tasks WHERE id = '{TASKS[which]}'")
        assert bool(left) or not present or (not foreign and not live)
        assert self.consumed() == before
        if not left:
            self.settled = {member: found for member, found in self.settled.items() if member[0] != TASKS[which]}

    def consumed(self) -> list[tuple[object, ...]]:
        return self.rows("SELECT tenant, prompt_tokens, sampled_tokens, trained_tokens FROM tenant_usage ORDER BY tenant")

    # ---------------------------------------------------------------------------------------------------- invariants

    @invariant()
    def settled_members_stay_settled(self) -> None:
        """A scored member keeps its message and reward, also once trained or void."""
        now = self.rows('SELECT task, "group", member, sequence, reward FROM trajectories WHERE reward IS NOT NULL')
        found = {(task, group, member): (sequence, reward) for task, group, member, sequence, reward in now}
        assert {member: found.get(member) for member in self.settled} == self.settled
        self.settled = found  # type: ignore[assignment]

    @invariant()
    def work_in_flight_fits_the_capacity(self) -> None:
        [(open_members,)] = self.rows("SELECT count(*) FROM trajectories WHERE state = 'open'")
        assert isinstance(open_members, int)
        assert open_members <= SEQUENCES

    @invariant()
    def batches_of_one_version_are_equal(self) -> None:
        first: dict[tuple[str, int], TrainBatch] = {}
        for batch in self.streams.batches:
            assert first.setdefault((batch.task, batch.version), batch) == batch

    @rule()
    def doctor_finds_nothing(self) -> None:
        async def examine() -> list[object]:
            async with self.database.transaction() as tx:
                return list(await examine_database(tx.connection))

        assert self.runner.run(examine()) == []

    # ----------------------------------------------------------------------------------------------------------- end

    def finish_all_tasks(self) -> None:
        """Handle every message until all tasks have ended."""
        for which in range(len(TASKS)):
            self.control("resume", which, crash=False)
        for _ in range(60):
            if self.rows("SELECT count(*) FROM tasks WHERE ended_at IS NULL") == [(0,)]:
                break
            self.admit(crash=False)
            self.relay(limit=1000, crash=False)
            opened = {(task, number) for task, number in self.rows("SELECT task, number FROM groups WHERE state = 'open'")}
            for group in [group for group in self.streams.opens if (group.task, group.group) in opened]:
                self._play(group, [0.0, 1.0])
            self.change(lambda tx: scores.trajectories_scored(tx, self.streams.scores[-200:], self.policy))
            self.relay(limit=1000, crash=False)
            for batch in self.streams.batches:
                self.change(lambda tx, batch=batch: weight_updates.weights_updated(tx, [updated(batch).message], self.policy))  # type: ignore[arg-type]
        self.doctor_finds_nothing()
        self.settled_members_stay_settled()
        assert self.rows("SELECT id, state FROM tasks WHERE ended_at IS NULL") == []


def test_any_delivery_order_loses_repeats_and_blocks_nothing(owner_url: str) -> None:
    """For the owner of the tables, who may truncate them."""
    run_state_machine_as_test(
        lambda: Interleavings(owner_url),
        settings=settings(
            max_examples=5, stateful_step_count=25, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much]
        ),
    )
