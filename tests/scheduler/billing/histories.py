"""Random histories of two tenants with prices and budgets, in which any transaction may be lost before it commits.

Lists that keep every message stand in for NATS, as in `test_interleavings.py`. After each step the books are compared with a count in
Python that knows the ledger's rows and the prices, and nothing of views, triggers or totals.
"""

import random
import time
import zlib
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from decimal import Context, Decimal, Inexact, localcontext
from typing import Any

from sqlalchemy import text

from common import streams
from common.bus import Delivery, Outgoing
from common.messages import (
    ControlTask,
    DeadLetter,
    EnvironmentChecked,
    GroupContext,
    OpenGroup,
    ServingEnded,
    SetPrice,
    SubmitTask,
    TrainBatch,
)
from common.messages.tenancy.billing import Kind
from common.spec import parse_spec
from scheduler_svc.base.audit import Actor
from scheduler_svc.base.database import Database
from scheduler_svc.base.scheduling_policy import SchedulingPolicy
from scheduler_svc.base.transaction import Transaction
from scheduler_svc.doctor.database_rules import examine_database
from scheduler_svc.tenancy.billing import budgets, prices, served
from scheduler_svc.tenancy.decisions.shares import Capacity
from scheduler_svc.training import admission, environment_checks
from scheduler_svc.training.budget_pauses import enforce_budgets
from scheduler_svc.training.results import dead_letters, scores, weight_updates
from scheduler_svc.training.submission import Catalog
from scheduler_svc.upkeep import outbox
from scheduler_svc.upkeep.deletion import deletion
from scheduler_svc.verbs import jobs
from tests.scheduler.billing.prices import SERVED, price_at, spent_by_unit
from tests.scheduler.pool_times import NEVER, never_parked
from tests.support.scheduler.stages import POOLS, scored, spec, updated

POLICY = SchedulingPolicy.ASYNCHRONOUS
CAPACITY = {"tiny": Capacity(sequences=12, kv_tokens=10**6)}
OFFER = Catalog(POOLS, {"toy"})
TENANTS = {"a": "acme", "b": "acme", "c": "globex"}
ENVIRONMENTS = {"a": "toy", "b": "toy:Own", "c": "toy"}
"""`b` is of an environment of its tenant's own."""
KINDS: tuple[Kind, ...] = ("prompt", "sampled", "trained", "env_ms", "served_prompt", "served_sampled")
EXACT = Context(prec=100, traps=[Inexact])
SHORT: dict[str, Any] = {"limits": {"max_prompt_tokens": 3, "episode_timeout_s": 100.0}, "sampling": {"max_tokens": 2}}
"""Limits that every attempt reaches (`stages.scored`): a group costs its worst case, but for its training and its environment's time."""
WORST, WORST_MS = parse_spec(spec(**SHORT)).trajectory_tokens * 2, 2 * 100_000
DOCTOR_EVERY = 4
"""Checks of the books for each one by the doctor, which takes most of the time."""


class Crash(Exception):
    """The process dies before it commits."""


@dataclass
class History:
    """One history; `run` raises AssertionError where the books are wrong."""

    database: Database
    seed: int
    opens: list[GroupContext] = field(default_factory=list[GroupContext])
    arrived: list[Delivery] = field(default_factory=list[Delivery])
    batches: list[TrainBatch] = field(default_factory=list[TrainBatch])
    sequence: int = 0
    transactions: int = 0
    kills: int = 0
    pauses: int = 0
    checks: int = 0
    served: dict[str, list[ServingEnded]] = field(default_factory=dict[str, list[ServingEnded]])
    """Reports of each request."""
    deleted: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    """Ledger rows of deleted tasks, as they were."""

    async def run(self, steps: int) -> dict[str, int | str]:
        """Numbers of what happened, and what was spent."""
        self.random = random.Random(self.seed)
        # `reasoning_gym:decimal_arithmetic` sets the precision of the whole process, wherever it was imported before.
        with localcontext(EXACT):
            return await self._run(steps)

    async def _run(self, steps: int) -> dict[str, int | str]:
        await self._begin()
        often = [self._admit, self._relay, self._settle, self._train, self._enforce]
        rules = [*often, *often, self._play, self._play, self._serve, self._lose_group, self._miss_deadlines, self._cheaper, self._control]
        for _ in range(steps):
            await self.random.choice(rules)()
            await self._check()
        await self._raise_and_finish()
        await self._delete_all()
        spent = await self._rows("SELECT sum(money) AS money FROM tenant_invoice")
        counts = {name: getattr(self, name) for name in ("seed", "transactions", "kills", "pauses", "checks")}
        trained = (await self._rows("SELECT sum(version) AS steps FROM deleted_tasks"))[0]["steps"]
        return counts | {"steps": int(trained), "money": format(spent[0]["money"] or Decimal(0), "f")}

    # ----------------------------------------------------------------------------------------------------- transactions

    async def _change(self, action: Callable[[Transaction], Awaitable[object]], *, may_die: bool = True) -> None:
        dies = may_die and self.random.random() < 0.2
        self.transactions += 1
        self.kills += dies
        with suppress(Crash):
            async with self.database.transaction() as tx:
                await action(tx)
                if dies:
                    raise Crash

    async def _rows(self, query: str) -> list[dict[str, Any]]:
        async with self.database.transaction() as tx:
            return [dict(row) for row in (await tx.connection.execute(text(query))).mappings()]

    def _store(self, out: Outgoing) -> Delivery:
        self.sequence += 1
        return Delivery(out.subject, {streams.KIND_HEADER: out.message.kind, **out.headers}, out.message.encode(), self.sequence, 1)

    # ------------------------------------------------------------------------------------------------------------ steps

    async def _begin(self) -> None:
        for task, tenant in TENANTS.items():
            algorithm = {"group_size": 2, "groups_per_step": 2, "max_staleness": self.random.randint(0, 2), "max_refills": 1}
            raw = spec(task, tenant=tenant, steps=4, algorithm=algorithm, environment={"name": ENVIRONMENTS[task]}, **SHORT)
            job = self._store(Outgoing(streams.job("submit", tenant), SubmitTask(task=task, tenant=tenant, spec=raw), ""))
            await self._change(lambda tx, job=job: jobs.take_job(tx, job, OFFER, POLICY), may_die=False)
            checked = EnvironmentChecked(tenant=tenant, task=task, objection=None)
            await self._change(lambda tx, checked=checked: environment_checks.environment_checked(tx, checked), may_die=False)
        for number, kind in enumerate(KINDS):
            await self._price(f"first-{number}", kind, Decimal(self.random.randint(0, 10**6)).scaleb(-self.random.randint(3, 9)))
        self.limits: dict[str, Decimal] = {}
        for unit in ("tokens", "money"):
            worst = Decimal(2 * WORST) if unit == "tokens" else await self._worst_case()
            await self._limit(unit, worst * self.random.choice([0, 1, 2, 4, 7]) + self.random.randint(0, 9))

    async def _worst_case(self) -> Decimal:
        each = {row["kind"]: row["each"] for row in await self._rows("SELECT kind, unit_price(kind, 'tiny', now()) AS each FROM prices")}
        return WORST * (max(each["prompt"], each["sampled"]) + each["trained"]) + WORST_MS * each["env_ms"]

    async def _limit(self, unit: str, amount: Decimal) -> None:
        self.limits[unit] = amount
        await self._change(lambda tx: budgets.put_budget(tx.connection, "acme", "total", unit, amount), may_die=False)  # type: ignore[arg-type]

    async def _price(self, request: str, kind: Any, price: Decimal) -> None:
        given = SetPrice(request=request, of=kind, price=price)
        await self._change(lambda tx: prices.add_price(tx.connection, given), may_die=False)

    async def _cheaper(self) -> None:
        """A price that rises while work is in flight may exceed a budget, and is not in these histories."""
        kind = self.random.choice(KINDS)
        [row] = await self._rows(f"SELECT unit_price('{kind}', 'tiny', now()) AS each")
        if row["each"].as_tuple().exponent > -17:
            await self._price(f"later-{self.transactions}", kind, row["each"] * Decimal("0.7"))

    async def _admit(self) -> None:
        await self._change(lambda tx: admission.admit(tx, CAPACITY, POLICY, never_parked(time.time())))

    async def _enforce(self) -> None:
        before = await self._rows("SELECT count(*) AS n FROM tasks WHERE over_budget")
        await self._change(lambda tx: enforce_budgets(tx, POLICY))
        self.pauses += max(0, (await self._rows("SELECT count(*) AS n FROM tasks WHERE over_budget"))[0]["n"] - before[0]["n"])

    async def _relay(self) -> None:
        async def publish(tx: Transaction) -> None:
            rows = await outbox.oldest_rows(tx.connection, 64)
            for row in rows:
                if row.subject.startswith("prompts.open."):
                    self.opens.append(OpenGroup.decode(row.body).group)
                elif row.subject.startswith("trajectories.batch."):
                    self.batches.append(TrainBatch.decode(row.body))
            if rows:
                await outbox.delivered(tx.connection, [row.id for row in rows])

        await self._change(publish)

    async def _play(self) -> None:
        for group in self.random.sample(self.opens, min(3, len(self.opens))):
            self._score(group, [self.random.choice([0.0, 1.0, 1.0, None]) for _ in range(group.size)])

    def _score(self, group: GroupContext, rewards: list[float | None]) -> None:
        for member, reward in enumerate(rewards):
            failure = "sandbox died" if reward is None else None
            env_ms = worked_ms(group.task, group.group, member)
            self.arrived.append(self._store(scored(group, member, reward=reward or 0.0, failure=failure, env_ms=env_ms)))

    async def _settle(self) -> None:
        if self.arrived:
            chosen = self.random.choices(self.arrived, k=self.random.randint(1, 8))
            await self._change(lambda tx: scores.trajectories_scored(tx, chosen, POLICY))

    async def _train(self) -> None:
        if self.batches:
            await self._trained(self.random.choice([*self.batches, *self._latest()]))

    async def _trained(self, batch: TrainBatch) -> None:
        message: Any = updated(batch).message
        await self._change(lambda tx: weight_updates.weights_updated(tx, [message], POLICY))

    def _latest(self) -> list[TrainBatch]:
        """Each task's latest batch."""
        return list({batch.task: batch for batch in self.batches}.values())

    async def _lose_group(self) -> None:
        if self.opens:
            group = self.random.choice(self.opens)
            body = OpenGroup(group=group).encode()
            lost = streams.open_group(group.family, group.task, group.group)
            letter = DeadLetter(stage="open", subject=lost, reason="poison", attempts=5, headers={}, body=body, sequence=1)
            delivery = self._store(Outgoing(streams.failed("open", group.task), letter, ""))
            await self._change(lambda tx: dead_letters.message_failed(tx, delivery))

    async def _serve(self) -> None:
        """Requests to versions and the base model end; some reports come once more, some by another attempt."""
        for _ in range(self.random.randint(1, 4)):
            task, prompt = self.random.choice([*TENANTS, None]), self.random.randint(0, 50)
            ended = ServingEnded(
                request=f"r{len(self.served)}",
                attempt=0,
                tenant=TENANTS[task] if task else "globex",
                key=None,
                pool=self.random.choice(["tiny", "large"]),
                task=task,
                version=1 if task else None,
                prompt_tokens=prompt,
                cached_tokens=self.random.randint(0, prompt),
                sampled_tokens=self.random.randint(0, 50),
            )
            self.served[ended.request] = [ended, ended.model_copy(update={"attempt": 1, "sampled_tokens": ended.sampled_tokens + 1})]
        chosen = [self.random.choice(self.served[request]) for request in self.random.choices(list(self.served), k=6)]
        await self._change(lambda tx: served.requests_ended(tx, chosen))

    async def _miss_deadlines(self) -> None:
        late = f"state = 'open' AND number % 7 = {self.random.randint(0, 6)}"
        past = f"UPDATE groups SET deadline_at = now() - interval '1 second', admitted_at = now() - interval '1 day' WHERE {late}"
        await self._change(lambda tx: tx.connection.execute(text(past)), may_die=False)
        for task in TENANTS:
            # Excused, so that no history ends by too many failures.
            await self._change(lambda tx, task=task: scores.void_overdue(tx, task, POLICY, time.time(), stable_for_s=NEVER), may_die=False)

    async def _control(self) -> None:
        verb, task = self.random.choice(["pause", "resume", "resume", "resume"]), self.random.choice(list(TENANTS))
        job = self._store(Outgoing(f"jobs.{verb}.{TENANTS[task]}", ControlTask(task=task, tenant=TENANTS[task]), ""))
        await self._change(lambda tx: jobs.take_job(tx, job, OFFER, POLICY))

    # ------------------------------------------------------------------------------------------------------------- ends

    async def _raise_and_finish(self) -> None:
        """With more money every task goes on and ends."""
        for unit in self.limits:
            await self._limit(unit, Decimal(10**15))
        for task, tenant in TENANTS.items():
            job = self._store(Outgoing(f"jobs.resume.{tenant}", ControlTask(task=task, tenant=tenant), ""))
            await self._change(lambda tx, job=job: jobs.take_job(tx, job, OFFER, POLICY), may_die=False)
        for _ in range(200):
            await self._enforce()
            await self._admit()
            await self._relay()
            for group in self.opens:
                self._score(group, [0.0, 1.0])
            self.opens, found = [], self.arrived[-256:]
            await self._change(lambda tx, found=found: scores.trajectories_scored(tx, found, POLICY))
            await self._relay()
            for batch in self._latest():
                await self._trained(batch)
            await self._check()
            if not await self._rows("SELECT id FROM tasks WHERE state IN ('submitted', 'running', 'paused')"):
                return
        raise AssertionError(f"seed {self.seed}: {await self._rows('SELECT id, state, reason FROM tasks')}")

    async def _delete_all(self) -> None:
        for task, tenant in TENANTS.items():
            before = await self._rows("SELECT * FROM tenant_invoice ORDER BY tenant, day, pool, kind")
            self.deleted += await self._rows(f"SELECT tenant, kind, tokens, at, paid_by FROM ledger WHERE task = '{task}'")
            job = ControlTask(task=task, tenant=tenant)
            await self._change(lambda tx, job=job: deletion.delete(tx, job, by=1, sender=Actor(job.tenant, "delete", "key")), may_die=False)
            assert await self._rows("SELECT * FROM tenant_invoice ORDER BY tenant, day, pool, kind") == before
            await self._serve()
            await self._check()

    # ------------------------------------------------------------------------------------------------------------ books

    async def _check(self) -> None:
        self.checks += 1
        booked = [*await self._rows("SELECT tenant, kind, tokens, at, paid_by FROM ledger"), *self.deleted, *await self._rows(SERVED)]
        known = await self._rows("SELECT id, kind, price, per, valid_from FROM prices ORDER BY valid_from, id")
        for tenant in ("acme", "globex"):
            rows = [row for row in booked if row["tenant"] == tenant and row["paid_by"] == "tenant"]
            money = sum((row["tokens"] * price_at(known, row) for row in rows), Decimal(0))
            invoice = await self._rows(f"SELECT coalesce(sum(money), 0) AS money FROM tenant_invoice WHERE tenant = '{tenant}'")
            assert invoice[0]["money"] == money, (self.seed, tenant, invoice, money)
            if tenant == "acme":
                in_all, given = ([row for row in rows if row["kind"].startswith(one)] for one in ("", "served"))
                await self._check_budgets(spent_by_unit(known, in_all), spent_by_unit(known, given))
        await self._check_served()
        await self._check_environments()
        if self.checks % DOCTOR_EVERY:
            return
        async with self.database.transaction() as tx:
            broken = await examine_database(tx.connection)
        assert not broken, (self.seed, broken)

    async def _check_environments(self) -> None:
        """The ledger has the time of each attempt that was settled in an ended group, once, and its group's payer."""
        settled = await self._rows(
            'SELECT m.task, m."group", m.member FROM trajectories m JOIN groups g ON g.task = m.task AND g.number = m."group"'
            " WHERE m.scored_at IS NOT NULL AND g.state <> 'open'"
        )
        counted = Counter[tuple[str, int]]()
        for row in settled:
            counted[row["task"], row["group"]] += worked_ms(row["task"], row["group"], row["member"])
        booked = await self._rows("SELECT task, number, tokens, paid_by FROM ledger WHERE kind = 'env_ms'")
        assert {(row["task"], row["number"]): row["tokens"] for row in booked} == dict(counted), self.seed
        sampled = await self._rows("SELECT task, number, paid_by FROM ledger WHERE kind = 'sampled'")
        payers = {(row["task"], row["number"]): row["paid_by"] for row in sampled}
        assert {(row["task"], row["number"]): row["paid_by"] for row in booked} == payers, self.seed

    async def _check_served(self) -> None:
        """Each request is there once at most, as one of its reports said."""
        columns = ("request", "attempt", "tenant", "key", "pool", "task", "version", "prompt_tokens", "cached_tokens", "sampled_tokens")
        for row in await self._rows(f"SELECT {', '.join(columns)} FROM served_requests"):
            assert ServingEnded(**row) in self.served[row["request"]], (self.seed, row)

    async def _check_budgets(self, spent: dict[str, Decimal], given: dict[str, Decimal]) -> None:
        """`given`: what was spent for served requests, which no budget holds up."""
        async with self.database.transaction() as tx:
            found = (await budgets.standings(tx.connection)).found
        assert {one.unit: one.spent for one in found} == spent, (self.seed, found, spent)
        in_flight = "SELECT count(*) AS n FROM groups g JOIN tasks t ON t.id = g.task WHERE t.tenant = 'acme' AND g.state = 'open'"
        worst = (await self._rows(in_flight))[0]["n"] * (await self._worst_case())
        for one in found:
            assert one.spent - given[one.unit] + one.reserved <= one.amount, (self.seed, one)
            assert one.unit != "money" or one.reserved >= worst, (self.seed, one, worst)


def worked_ms(task: str, group: int, member: int) -> int:
    """Milliseconds that the environment worked for one attempt, as env counts them: often until the deadline."""
    return 1 + min(zlib.crc32(f"{task}.{group}.{member}".encode()) % 120_000, 99_999)
