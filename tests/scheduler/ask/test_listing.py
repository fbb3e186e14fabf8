"""Listings of tasks: filters, orders, and pages while tasks come, go and change; and live replicas."""

from random import Random
from typing import Any

import pytest
from sqlalchemy import text

from common.bus import Bus
from common.messages import AskDeployment, ReplicaReport, ReplicasAnswer, TasksAnswer
from scheduler_svc.base.audit import Actor
from scheduler_svc.base.database import Database
from scheduler_svc.tenancy.question import Question, Sources
from scheduler_svc.verbs.asks import VERBS
from tests.support.scheduler.asking import Asker, answering, asker

STATES = ("submitted", "running", "paused", "finished", "failed", "cancelled", "rejected")
TASK = """
INSERT INTO tasks (submission, id, tenant, name, pool, spec, state, reason, priority, steps, group_size, groups_per_step, max_staleness,
                   trajectory_tokens, version, submitted_at)
VALUES ('', :id, :tenant, :name, :pool, '{}', :state, 'r', 0, 9, 2, 2, 0, 9, :version,
    timestamptz '2026-01-01' + make_interval(secs => :age))
"""
STEP = """
INSERT INTO steps (task, version, state, reward, staleness_mean, staleness_max, sampled_tokens, adapter, checkpoint,
                   first_admitted_at, first_scored_at, last_scored_at, trained_at)
VALUES (:id, :version, 'trained', :reward, 0, 0, 1, '{}', '{}', now(), now(), now(), now())
"""


async def add(database: Database, number: int, random: Random, tenant: str = "acme") -> dict[str, Any]:
    row = {
        "id": f"{tenant}-{number:04}",
        "tenant": tenant,
        "name": random.choice(["letters", "sums", "more-letters"]),
        "pool": random.choice(["tiny", "large"]),
        "state": random.choice(STATES),
        "age": random.choice([0.0, 1.0, 2.000001, 2.000002]),
        "version": 0,
        "reward": random.choice([None, -0.25, 0.1, 1 / 3, 1e-17, 12345678.125]),
    }
    async with database.transaction() as tx:
        if row["reward"] is not None:
            row["version"] = 2
        await tx.connection.execute(text("INSERT INTO tenants (id) VALUES (:tenant) ON CONFLICT DO NOTHING"), {"tenant": tenant})
        await tx.connection.execute(text(TASK), row)
        for version in range(row["version"]):  # the latest step's counts
            await tx.connection.execute(text(STEP), {**row, "version": version, "reward": row["reward"] if version else 99.0})
    return row


async def pages(asks: Asker, **fields: Any) -> list[list[str]]:
    found, cursor = list[list[str]](), None
    while cursor is not None or not found:
        answer = await asks.ask(TasksAnswer, "acme", "tasks", **fields, cursor=cursor)
        found, cursor = [*found, [one.task for one in answer.tasks]], answer.cursor
    return found


KEYS = {
    "id": lambda row: "",
    "created": lambda row: row["age"],
    "reward": lambda row: float("-inf") if row["reward"] is None else row["reward"],
    "state": lambda row: row["state"],
}


@pytest.mark.parametrize("order", KEYS)
@pytest.mark.parametrize("descending", [False, True])
async def test_every_order_holds_each_task_once(bus: Bus, nats_url: str, database: Database, order: str, descending: bool) -> None:
    random = Random(7)
    rows = [await add(database, number, random) for number in range(40)]
    await add(database, 0, random, "globex")
    expected = [row["id"] for row in sorted(rows, key=lambda row: (KEYS[order](row), row["id"]), reverse=descending)]
    async with answering(bus, database), asker(nats_url) as asks:
        for most in (7, 40, 200):
            found = await pages(asks, sort=order, descending=descending, most=most)
            assert [task for page in found for task in page] == expected
            assert all(len(page) <= most for page in found)


async def test_filters_are_combined(bus: Bus, nats_url: str, database: Database) -> None:
    random = Random(3)
    rows = [await add(database, number, random) for number in range(60)]
    async with answering(bus, database), asker(nats_url) as asks:
        for _ in range(60):
            fields: dict[str, Any] = {
                "states": random.choice([[], ["running"], ["finished", "failed"]]),
                "pool": random.choice([None, "tiny", "other"]),
                "name": random.choice([None, "letters", "letter"]),
                "text": random.choice([None, "LETTERS", "-000", "acme", "%", "_", "sum"]),
            }
            expected = [row["id"] for row in rows if matches(row, fields)]
            found = await pages(asks, **fields, most=random.choice([3, 200]), sort="id")
            assert [task for page in found for task in page] == expected, fields


def matches(row: dict[str, Any], fields: dict[str, Any]) -> bool:
    part = (fields["text"] or "").lower()
    return (
        (not fields["states"] or row["state"] in fields["states"])
        and fields["pool"] in (None, row["pool"])
        and fields["name"] in (None, row["name"])
        and (part in row["id"] or part in row["name"])
    )


@pytest.mark.parametrize("order", KEYS)
async def test_pages_stay_exact_while_tasks_come_and_go(bus: Bus, nats_url: str, database: Database, order: str) -> None:
    """Tasks that stay as they are, are on one page each, whatever is added, deleted, or moves to another place meanwhile."""
    random = Random(11)
    rows = {number: await add(database, number, random) for number in range(30)}
    async with answering(bus, database), asker(nats_url) as asks:
        unchanged, found, cursor, added = {row["id"] for row in rows.values()}, list[str](), None, 30
        while cursor is not None or not found:
            answer = await asks.ask(TasksAnswer, "acme", "tasks", sort=order, most=4, cursor=cursor)
            found, cursor = [*found, *(one.task for one in answer.tasks)], answer.cursor
            await add(database, added, random)
            added += 1
            changed, gone = random.sample(sorted(unchanged), 2)
            unchanged -= {changed, gone}
            async with database.transaction() as tx:
                await tx.connection.execute(text("UPDATE tasks SET state = 'paused' WHERE id = :id"), {"id": changed})
                await tx.connection.execute(text("UPDATE steps SET reward = 5 WHERE task = :id"), {"id": changed})
                await tx.connection.execute(text("DELETE FROM tasks WHERE id = :id"), {"id": gone})
        assert unchanged <= set(found)
        assert [found.count(task) for task in unchanged] == [1] * len(unchanged)


async def test_replicas_are_counted_for_tenants_and_named_for_the_operator(bus: Bus, database: Database) -> None:
    def sampler(name: str, pool: str, sequences: float) -> ReplicaReport:
        return ReplicaReport(replica=name, service="rollout", pool=pool, sequences=8, kv_tokens=100, busy={"sequences": sequences})

    reports = [
        sampler("host-b", "tiny", 3.0),
        ReplicaReport(replica="host-e", service="env", environments=["own:secret"], families=["own"], busy={"workers": 2.0}),
        sampler("host-c", "large", 8.0),
        sampler("host-a", "tiny", 1.5),
        ReplicaReport(replica="host-t", service="trainer", pool="tiny", busy={"steps": 1.0, "residents": 4.0}),
    ]
    sources = Sources(database, {}, None, None, None, lambda: reports, dict, None)  # pyright: ignore[reportArgumentType]
    answers: dict[str | None, ReplicasAnswer] = {}
    for tenant in ("acme", None):
        question = Question(tenant, sources, Actor(tenant or "_all", "replicas", "ask"))
        answers[tenant] = await VERBS["replicas"](question, AskDeployment())  # pyright: ignore
    found = [(one.service, one.pool, one.replicas, one.sequences, one.kv_tokens, one.busy) for one in answers["acme"].replicas]
    assert found == [
        ("env", None, 1, 0, 0, {"workers": 2.0}),
        ("rollout", "large", 1, 8, 100, {"sequences": 8.0}),
        ("rollout", "tiny", 2, 16, 200, {"sequences": 4.5}),
        ("trainer", "tiny", 1, 0, 0, {"residents": 4.0, "steps": 1.0}),
    ]
    assert b"host-" not in answers["acme"].encode() and b"own" not in answers["acme"].encode()
    assert [one.names for one in answers[None].replicas] == [["host-e"], ["host-c"], ["host-a", "host-b"], ["host-t"]]
