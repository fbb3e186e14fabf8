"""Samples in their stream: who is shown them, how many are kept, and that they go with their task."""

from pathlib import Path

import pytest

from common import streams
from common.bus import Bus, Outgoing
from common.messages import SamplesAnswer
from common.messages.progress import KEPT_STEPS
from scheduler_svc.base.samples import superseded
from scheduler_svc.doctor.stream_rules import DELETED
from scheduler_svc.upkeep.deletion.garbage_collector import GarbageCollector
from tests.support.samples import keep, kept_attempt, step_samples
from tests.support.scheduler.asking import asker, world_with_blobs
from tests.support.scheduler.finished import broken_rules
from tests.support.scheduler.stages import spec
from tests.support.waiting import eventually_equals


async def test_samples_of_a_step_are_shown_to_its_tenant_alone(bus: Bus, nats_url: str, database_url: str, tmp_path: Path) -> None:
    async with world_with_blobs(bus, database_url, tmp_path) as world, asker(nats_url) as asks:
        await world.run("a")
        await world.run("foreign", spec(tenant="globex"))
        none = await asks.ask(SamplesAnswer, "acme", "samples", task="a")
        first, last = step_samples("a", 1), step_samples("a", 3, [kept_attempt(), kept_attempt(member=1)], left_out=2)
        await keep(bus, first, last, step_samples("foreign", 1, tenant="globex"))
        latest = await asks.ask(SamplesAnswer, "acme", "samples", task="a")
        asked = await asks.ask(SamplesAnswer, "acme", "samples", task="a", step=1)
        every = await asks.ask(SamplesAnswer, None, "samples", task="foreign")
        absent = await asks.refused("acme", "samples", task="a", step=2)
        foreign, nothing = await asks.refused("acme", "samples", task="foreign"), await asks.refused("acme", "samples", task="other")
        await bus.publish(Outgoing(streams.samples("tiny", "a", 2), step_samples("a", 9), "of another step"))
        wrong = await asks.refused("acme", "samples", task="a", step=2)

    assert (none.steps, none.samples) == ([], None)
    assert (latest.steps, latest.samples) == ([1, 3], last)
    assert asked.samples == first
    assert every.steps == [1]
    assert absent == ("unknown", "task a has no samples of step 2; steps with some: 1, 3")
    assert [code for code, _ in (foreign, nothing)] == ["unknown", "unknown"]
    assert foreign[1].replace("foreign", "other") == nothing[1]
    assert wrong[0] == "unknown"


async def test_last_steps_are_kept(bus: Bus, database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("scheduler_svc.base.samples.KEPT_STEPS", 2)
    async with world_with_blobs(bus, database_url, tmp_path) as world:
        await keep(bus, *(step_samples("a", version) for version in (1, 2, 3)))
        await world.run("a")
        await eventually_equals(lambda: subjects(bus), {"samples.tiny.a.2", "samples.tiny.a.3"})


async def test_sweep_finds_what_steps_have_left(bus: Bus, database_url: str, tmp_path: Path) -> None:
    async with world_with_blobs(bus, database_url, tmp_path) as world:
        await keep(bus, *(step_samples("a", version) for version in (1, 2, KEPT_STEPS + 1)), step_samples("b", 1))
        await GarbageCollector(world.database, bus, 3600).sweep()
        assert await subjects(bus) == {"samples.tiny.a.2", f"samples.tiny.a.{KEPT_STEPS + 1}", "samples.tiny.b.1"}


async def test_samples_go_with_their_task_also_late_ones(bus: Bus, database_url: str, tmp_path: Path) -> None:
    async with world_with_blobs(bus, database_url, tmp_path) as world:
        await world.run("a")
        await keep(bus, step_samples("a", 1), step_samples("a", 2), step_samples("b", 1))
        await world.control("delete", "a", until="deleted")
        assert await subjects(bus) == {"samples.tiny.b.1"}
        await keep(bus, step_samples("a", 3))
        assert await broken_rules(world) == [DELETED]
        await GarbageCollector(world.database, bus, 3600).sweep()
        assert await subjects(bus) == {"samples.tiny.b.1"}


def test_subjects_of_nobody_are_left_alone() -> None:
    assert superseded(["samples.tiny.a.x", "samples.tiny.a", "samples.tiny.a.99", f"samples.tiny.a.{99 - KEPT_STEPS}"]) == [
        f"samples.tiny.a.{99 - KEPT_STEPS}"
    ]


async def subjects(bus: Bus) -> set[str]:
    return set(await bus.streams.subjects(streams.SAMPLES))


async def test_world_of_samples_breaks_no_rule(bus: Bus, database_url: str, tmp_path: Path) -> None:
    async with world_with_blobs(bus, database_url, tmp_path) as world:
        await world.run("a")
        await keep(bus, step_samples("a", 1))
        await eventually_equals(lambda: broken_rules(world), [])
