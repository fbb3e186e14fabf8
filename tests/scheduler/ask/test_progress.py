"""What one task has come to: `spec`, `steps`, `evaluations` and `versions`, compared with the events that said the same."""

from pathlib import Path
from typing import Any

import pytest

from common.bus import Bus
from common.client_api.asking import Door
from common.client_api.training.progress import read_evaluations, read_steps, read_timeline, read_versions
from common.evaluation import EvaluationReport
from common.formats.step_times import MISSING, unpack_steps
from common.messages import EvaluationsAnswer, GroupContext, SpecAnswer, StepsAnswer, TimelineAnswer, VersionsAnswer, from_json
from common.spec import parse_spec
from scheduler_svc.reading import progress
from tests.support.scheduler.asking import asker, world_with_blobs
from tests.support.scheduler.finished import settled
from tests.support.scheduler.stages import World, spec
from tests.support.waiting import eventually

EVALUATED = {"every": 2, "prompts": 3, "seed": 7}
KEPT = {"checkpoints": 1, "best": 1, "every": 0, "adapters": "checkpoints"}
UNTIL_VERSION_4 = {"steps": 6, "evaluation": EVALUATED, "keep": KEPT}
TAKEN_BACK = """
INSERT INTO groups (size, task, number, version, state, void_reason, row, seed, charged_tokens, step, deadline_at)
VALUES (2, 'a', 99, 0, 'void', 'stale', 1, 1, 1, 0, now())
"""
"""A group that a step had, before it was lost and made of others."""
EVALUATION = 10**9
"""First number of an evaluation's groups."""


def reward(group: GroupContext, member: int) -> float:
    """Of evaluations: the highest at version 2, the same at all prompts of a version but the first."""
    if group.group < EVALUATION:
        return float(member) + group.group / 100
    return {0: 0.1, 2: 0.9}.get(group.version, 0.5) + (0.05 if group.row % 2 else 0.0)


async def test_steps_are_what_events_said(bus: Bus, nats_url: str, database_url: str, tmp_path: Path) -> None:
    async with world_with_blobs(bus, database_url, tmp_path, reward=reward) as world, asker(nats_url) as asks:
        await world.run("a")
        await world.run("b", spec(tenant="globex"))
        said = await world.events("a", "step")
        answer = await asks.ask(StepsAnswer, "acme", "steps", task="a")
        assert not answer.has_more and [one.version for one in answer.steps] == [1, 2, 3]
        for step, event in zip(answer.steps, said, strict=True):
            names = ("version", "reward", "staleness_mean", "staleness_max", "sampled_tokens", "trained_tokens", "metrics")
            assert {name: getattr(step, name) for name in names} == {name: event[name] for name in names}
            times = step.times.model_dump(exclude={"advanced_s"})
            assert times == pytest.approx(event["times"], abs=1e-5) and step.state == "trained"
            assert step.durations.training_s == pytest.approx(event["times"]["trained_s"] - event["times"]["started_s"], abs=1e-5)
            assert sum(step.durations.model_dump().values()) == pytest.approx(_of(step.times.advanced_s) - step.times.first_admitted_s)
        assert sorted(number for step in answer.steps for number in step.groups) == list(range(6)), "each group is in one step"
        after = await asks.ask(StepsAnswer, "acme", "steps", task="a", after=2)
        assert [one.version for one in after.steps] == [3]
        assert (await asks.ask(StepsAnswer, "acme", "steps", task="a", after=3)).steps == []
        assert [one.version for one in (await asks.ask(StepsAnswer, None, "steps", task="b")).steps] == [1, 2, 3]


async def test_step_that_is_with_the_trainer_has_no_end(bus: Bus, nats_url: str, database_url: str, tmp_path: Path) -> None:
    async with world_with_blobs(bus, database_url, tmp_path, untrained=["a"]) as world, asker(nats_url) as asks:
        await world.begin("a", batches=1)
        await world.execute(TAKEN_BACK)
        [step] = (await asks.ask(StepsAnswer, "acme", "steps", task="a")).steps
        assert (step.version, step.state, step.trained_tokens, step.metrics) == (1, "batched", None, {})
        assert (step.times.started_s, step.times.trained_s, step.times.advanced_s) == (None, None, None)
        assert (step.durations.wait_for_trainer_s, step.durations.training_s, step.durations.publishing_s) == (None, None, None)
        assert len(step.groups) == 2 and step.durations.wait_for_batch_s >= 0
        found = await asks.ask(VersionsAnswer, "acme", "versions", task="a")
        assert (found.versions, found.best, found.latest) == ([], None, None)


async def test_evaluations_are_what_events_said(bus: Bus, nats_url: str, database_url: str, tmp_path: Path) -> None:
    sampled = {"name": "sampled", "attempts": 2, "temperature": 0.7, "prompts": 2}
    two = {"every": 2, "prompts": 3, "protocol": [{"name": "greedy"}, sampled]}
    async with world_with_blobs(bus, database_url, tmp_path, reward=reward) as world, asker(nats_url) as asks:
        await world.run("a", spec(steps=4, evaluation=two, keep={"adapters": "all"}))
        said = {(one["protocol"], one["version"]): one for one in await world.events("a", "evaluation")}
        answer = await asks.ask(EvaluationsAnswer, "acme", "evaluations", task="a")
        keys = [(one.version, one.protocol) for one in answer.evaluations]
        assert keys == sorted(keys) == [(version, name) for version in (0, 2, 4) for name in ("greedy", "sampled")]
        for one in answer.evaluations:
            event = from_json(EvaluationReport, said[one.protocol, one.version])
            found = from_json(EvaluationReport, one.report)
            assert found.model_copy(update={"took_s": event.took_s}) == event, "by prompts, intervals and gains too"
            assert found.took_s == pytest.approx(event.took_s, abs=1e-5) and one.finished_s > found.took_s
            assert one.is_best == ((one.version, one.protocol) == (2, "greedy"))
        after = await asks.ask(EvaluationsAnswer, "acme", "evaluations", task="a", version=2, protocol="greedy")
        assert [(one.version, one.protocol) for one in after.evaluations] == keys[3:]
        since = await asks.ask(EvaluationsAnswer, "acme", "evaluations", task="a", version=4)
        assert [(one.version, one.protocol) for one in since.evaluations] == keys[4:]


async def test_versions_are_those_whose_adapters_are_stored(bus: Bus, nats_url: str, database_url: str, tmp_path: Path) -> None:
    async with world_with_blobs(bus, database_url, tmp_path, reward=reward) as world, asker(nats_url) as asks:
        await world.run("a", spec(**UNTIL_VERSION_4))
        await settled(world)
        await eventually(lambda: _stored(world, [2, *range(4, 7)]))
        steps = {one["version"]: one for one in await world.events("a", "step")}
        found = await asks.ask(VersionsAnswer, "acme", "versions", task="a")
        assert (found.best, found.latest, found.has_more) == (2, 6, False)
        assert [one.version for one in found.versions] == [2, *range(4, 7)]
        for one in found.versions:
            blob = steps[one.version]["stored"]["adapter"]["blob"]
            assert (one.adapter_bytes, one.sha256, one.rank) == (blob["size_bytes"], blob["sha256"], 8)
            assert (one.reward, one.is_best, one.is_latest) == (steps[one.version]["reward"], one.version == 2, one.version == 6)
        after = await asks.ask(VersionsAnswer, "acme", "versions", task="a", after=4)
        assert [one.version for one in after.versions] == [5, 6] and (after.best, after.latest) == (2, 6)


async def test_best_version_without_evaluations_has_the_highest_reward(bus: Bus, nats_url: str, database_url: str, tmp_path: Path) -> None:
    async with world_with_blobs(bus, database_url, tmp_path, reward=reward) as world, asker(nats_url) as asks:
        await world.run("a", spec(keep={"adapters": "all"}))
        await settled(world)
        rewards = {one["version"]: one["reward"] for one in await world.events("a", "step")}
        found = await asks.ask(VersionsAnswer, "acme", "versions", task="a")
        assert found.best == max(rewards, key=lambda version: rewards[version]) == 3


async def _stored(world: World, versions: list[int]) -> bool:
    rows = await world.rows("SELECT DISTINCT version FROM stored_blobs WHERE task = 'a' AND kind = 'adapter' ORDER BY 1")
    return [row.version for row in rows] == versions


async def test_spec_is_that_which_was_accepted(bus: Bus, nats_url: str, database_url: str, tmp_path: Path) -> None:
    async with world_with_blobs(bus, database_url, tmp_path) as world, asker(nats_url) as asks:
        given = spec(environment={"name": "toy", "options": {"size": 3}}, seed=5)
        accepted = await world.run("a", given, until="accepted")
        found = (await asks.ask(SpecAnswer, "acme", "spec", task="a")).spec
        assert found["environment"] == parse_spec(given).environment.model_dump(mode="json")
        assert accepted["spec"].items() <= {**found, "evaluation": accepted["spec"]["evaluation"]}.items()
        assert parse_spec({name: value for name, value in found.items() if value is not None}).seed == 5


async def test_the_door_reads_every_page(
    bus: Bus, nats_url: str, database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "PAGE_SIZE", 2)
    monkeypatch.setattr(progress, "EVALUATIONS_PAGE_SIZE", 2)
    async with world_with_blobs(bus, database_url, tmp_path, reward=reward) as world, asker(nats_url) as asks:
        await world.run("a", spec(steps=5, evaluation=EVALUATED, keep={"adapters": "all"}))
        await settled(world)
        for verb, answer, field in (
            ("steps", StepsAnswer, "steps"), ("versions", VersionsAnswer, "versions"), ("evaluations", EvaluationsAnswer, "evaluations"),
        ):  # fmt: skip
            first: Any = await asks.ask(answer, "acme", verb, task="a")
            assert len(getattr(first, field)) == 2 and first.has_more
        door = Door(bus, nats_url, "acme")
        assert [one.version for one in await read_steps(door, "a")] == [1, 2, 3, 4, 5]
        assert [one.version for one in await read_steps(door, "a", 3)] == [4, 5]
        versions = await read_versions(door, "a")
        assert [one.version for one in versions.versions] == [1, 2, 3, 4, 5] and (versions.best, versions.latest) == (2, 5)
        assert [one.version for one in await read_evaluations(door, "a")] == [0, 2, 4, 5]


def _of(value: float | None) -> float:
    assert value is not None
    return value


async def test_timeline_has_the_times_of_the_steps(bus: Bus, nats_url: str, database_url: str, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(progress, "TIMELINE_PAGE_SIZE", 2)
    async with world_with_blobs(bus, database_url, tmp_path, untrained=["c"]) as world, asker(nats_url) as asks:
        await world.begin("c", batches=1)
        await world.run("a")
        await world.run("b", spec(tenant="globex"))
        await world.run("d")
        door = Door(bus, nats_url, "acme")
        found, cursor = await read_timeline(door, None, tasks=100, steps=1000)
        assert [one.task for one in found] == ["d", "a", "c"] and cursor is None
        assert [len(unpack_steps(one.steps)) for one in found] == [3, 3, 1]
        for step, record in zip(await read_steps(door, "a"), unpack_steps(found[1].steps), strict=True):
            times = step.times
            ends = [times.last_sampled_s, times.batched_s, times.started_s, times.trained_s, times.advanced_s]
            assert (record["version"], record["admitted_s"]) == (step.version, pytest.approx(times.first_admitted_s, abs=1e-5))
            assert record["ms"].tolist() == pytest.approx([1000 * (_of(end) - times.first_admitted_s) for end in ends], abs=0.6)
        assert unpack_steps(found[2].steps)["ms"][0].tolist()[2:] == [MISSING] * 3
        first = await asks.ask(TimelineAnswer, "acme", "timeline", steps=2)
        assert [unpack_steps(one.steps)["version"].tolist() for one in first.tasks] == [[2, 3], [2, 3]] and first.cursor
        assert {one.task for one in (await read_timeline(Door(bus, nats_url), None, tasks=100, steps=1))[0]} == {"a", "b", "c", "d"}
