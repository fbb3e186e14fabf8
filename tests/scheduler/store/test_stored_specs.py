"""An accepted task is stored with every field, so defaults of a newer version change no task that is already there."""

import json

import pytest
from sqlalchemy import text

from common.messages import as_json
from common.spec import TaskSpec, parse_spec
from scheduler_svc.base.database import Database
from scheduler_svc.training.queries import tasks
from tests.support.scheduler.stages import spec

NEW = {"overlong": ["per"]}
"""Section → fields that no version stored when the bounds of all losses were those of PPO."""


def fields(value: object) -> object:
    return {name: fields(part) for name, part in value.items()} if isinstance(value, dict) else None


async def test_stored_task_keeps_the_bounds_that_it_was_accepted_with(database: Database) -> None:
    wanted = parse_spec(spec("a", algorithm={"loss": "gspo"}))
    older = as_json(wanted)
    older["algorithm"] |= {"clip_low": 0.2, "clip_high": 0.28, "normalize": "token"}
    for section, names in NEW.items():
        for name in names:
            del older[section][name]
    async with database.transaction() as tx:
        await tasks.add_task(tx.connection, "a", wanted, submission="")
        stored = (await tx.connection.execute(text("SELECT spec FROM tasks"))).scalar_one()
        assert fields(stored) == fields(TaskSpec.model_validate(stored).model_dump(mode="json")), "nothing is left to a default"
        assert stored["algorithm"].items() >= {"clip_low": 3e-4, "clip_high": 4e-4, "normalize": "sequence"}.items()
        await tx.connection.execute(text("UPDATE tasks SET spec = CAST(:older AS jsonb)"), {"older": json.dumps(older)})
        found = await tasks.find_task(tx.connection, "a")
    assert found is not None
    algorithm = found.spec.algorithm
    assert (algorithm.clip_low, algorithm.clip_high, algorithm.normalize, found.spec.overlong.per) == (0.2, 0.28, "token", "trajectory")


async def test_spec_is_parsed_once_and_again_when_what_is_stored_has_changed(database: Database) -> None:
    async with database.transaction() as tx:
        await tasks.add_task(tx.connection, "a", parse_spec(spec("a")), submission="")
        [first], [second] = [await tasks.lock_tasks(tx.connection, ["a"]) for _ in range(2)]
        await tx.connection.execute(text("UPDATE tasks SET spec = jsonb_set(spec, '{priority}', '7')"))
        [changed] = await tasks.lock_tasks(tx.connection, ["a"])
    assert second.spec is first.spec
    assert (first.spec.priority, changed.spec.priority) == (0, 7)


async def test_specs_of_more_tasks_than_are_kept_are_parsed_when_they_are_read(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks, "SPECS_KEPT", 2)
    monkeypatch.setattr(tasks, "_specs", {})
    async with database.transaction() as tx:
        for task in "abc":
            await tasks.add_task(tx.connection, task, parse_spec(spec(task, priority=ord(task))), submission="")
        found = [await tasks.lock_tasks(tx.connection, "abc") for _ in range(2)]
    assert [[task.spec.priority for task in read] for read in found] == [[97, 98, 99]] * 2
    assert len(tasks._specs) == 2
