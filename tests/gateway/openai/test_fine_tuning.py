"""Fine-tuning jobs with OpenAI's own client, against a real scheduler; environment, sampler and trainer are the test's."""

import asyncio
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI, OpenAI
from openai.types.fine_tuning import FineTuningJob, FineTuningJobEvent
from openai.types.fine_tuning.jobs import FineTuningJobCheckpoint

from common.client_api.asking import Door
from common.messages import AskTasks, TasksAnswer
from common.messages.asks import cursor_after
from tests.gateway.openai.clients import Opened
from tests.gateway.openai.fine_tuning import SMALL, ended, strictly
from tests.support.gateway.deltas import Source
from tests.support.scheduler.stages import World, spec

REINFORCE: Any = {"type": "reinforcement"}
NOTHING = Source(lambda _: None)


def tuned(**hyperparameters: Any) -> Any:
    return {"type": "reinforcement", "reinforcement": {"hyperparameters": hyperparameters}}


async def create(client: AsyncOpenAI, marlaas: dict[str, Any] = SMALL, **changes: Any) -> FineTuningJob:
    given: dict[str, Any] = {"model": "tiny", "training_file": "env:toy", "method": REINFORCE, "extra_body": {"marlaas": marlaas}}
    return await client.fine_tuning.jobs.create(**(given | changes))


async def test_a_job_from_its_creation_to_the_model_that_it_made(world: World, opened: Opened) -> None:
    async with opened(NOTHING) as client:
        created = strictly(await create(client, suffix="sums", seed=7, metadata={"team": "a"}))
        job = strictly(await ended(client, created.id))
        events = [event async for event in client.fine_tuning.jobs.list_events(job.id, limit=2)]
        checkpoints = [one async for one in client.fine_tuning.jobs.checkpoints.list(job.id, limit=2)]
        model = await client.models.retrieve(job.fine_tuned_model or "")

    assert created.status in ("queued", "running")
    assert (created.model, created.training_file, created.seed, created.metadata) == ("tiny", "env:toy", 7, {"team": "a"})
    assert created.id.startswith("sums-")
    assert (created.organization_id, created.hyperparameters.batch_size) == ("acme", 2)
    assert (job.status, job.fine_tuned_model, model.id) == ("succeeded", f"{job.id}@3", f"{job.id}@3")
    assert job.finished_at is not None
    assert job.trained_tokens
    for event in events:
        FineTuningJobEvent.model_validate_json(event.model_dump_json(), strict=True)
    names = [event.data["event"] for event in events]  # type: ignore[index]
    assert (names[0], names[-1], names.count("step")) == ("finished", "accepted", 3)
    assert len({event.id for event in events}) == len(events)
    for one in checkpoints:
        FineTuningJobCheckpoint.model_validate_json(one.model_dump_json(), strict=True)
    assert [one.step_number for one in checkpoints][:2] == [3, 2]
    assert checkpoints[0].fine_tuned_model_checkpoint == f"{job.id}@3"
    assert {"reward", "step"} <= set(checkpoints[0].metrics.model_dump())


async def test_the_client_without_asyncio(opened: Opened) -> None:
    async with opened(NOTHING) as client:

        def run() -> list[str]:
            with OpenAI(base_url=client.base_url, api_key="mk-none", default_query={"tenant": "acme"}) as sync:
                job = sync.fine_tuning.jobs.create(
                    model="tiny", training_file="env:toy", method={"type": "reinforcement"}, extra_body={"marlaas": SMALL}
                )
                sync.fine_tuning.jobs.cancel(job.id)
                found = sync.fine_tuning.jobs.retrieve(job.id)
                [*sync.fine_tuning.jobs.list_events(job.id)], [*sync.fine_tuning.jobs.checkpoints.list(job.id)]
                return [found.status, *(one.id for one in sync.fine_tuning.jobs.list())]

        status, *listed = await asyncio.to_thread(run)

    assert status in ("cancelled", "succeeded")
    assert len(listed) == 1


async def test_both_doors_see_the_same_tasks(world: World, opened: Opened) -> None:
    await world.run("sums-1", spec(metadata={"from": "file"}))
    async with opened(NOTHING) as client:
        job = strictly(await client.fine_tuning.jobs.retrieve("sums-1"))

    assert (job.status, job.metadata, job.fine_tuned_model) == ("succeeded", {"from": "file"}, "sums-1@3")


async def test_hyperparameters_are_fields_of_the_task_file(world: World, opened: Opened) -> None:
    method = tuned(batch_size=3, eval_interval=2, eval_samples=5, learning_rate_multiplier=0.5, compute_multiplier=0.5, n_epochs="auto")
    async with opened(NOTHING) as client:
        job = await create(client, {"steps": 2}, method=method)
        await client.fine_tuning.jobs.cancel(job.id)
    task = job.model_dump()["marlaas"]["spec"]

    assert task["algorithm"]["groups_per_step"] == 3
    assert (task["evaluation"]["every"], task["evaluation"]["prompts"]) == (2, 5)
    assert task["optimizer"]["learning_rate"] == pytest.approx(0.5e-3)
    assert task["algorithm"]["group_size"] == 4
    assert job.hyperparameters.model_dump()["eval_samples"] == 5


async def test_a_job_can_start_from_a_version(world: World, opened: Opened) -> None:
    await world.run("sums-1", spec())
    async with opened(NOTHING) as client:
        job = await create(client, model="sums-1@latest")

    assert job.model == "sums-1@3"
    assert job.model_dump()["marlaas"]["spec"]["start"] == {"task": "sums-1", "version": 3}


WRONG: list[tuple[dict[str, Any], str, str]] = [
    ({"method": {"type": "supervised"}}, "unsupported_parameter", "method.type"),
    ({"method": {"type": "dpo"}}, "unsupported_parameter", "method.type"),
    ({"method": openai.omit}, "missing_required_parameter", "method"),
    ({"training_file": "file-abc"}, "invalid_value", "training_file"),
    ({"validation_file": "file-abc"}, "unsupported_parameter", "validation_file"),
    ({"hyperparameters": {"n_epochs": 1}}, "unsupported_parameter", "hyperparameters"),
    ({"integrations": [{"type": "wandb", "wandb": {"project": "x"}}]}, "unsupported_parameter", "integrations"),
    ({"method": tuned(n_epochs=2)}, "unsupported_parameter", "method.reinforcement.hyperparameters.n_epochs"),
    ({"method": tuned(reasoning_effort="low")}, "unsupported_parameter", "method.reinforcement.hyperparameters.reasoning_effort"),
    ({"method": tuned(batch_size=0)}, "invalid_value", "method.reinforcement.hyperparameters.batch_size"),
    ({"method": tuned(batch_size=9)}, "invalid_value", "method.reinforcement.hyperparameters.batch_size"),
    (
        {"method": {"type": "reinforcement", "reinforcement": {"grader": {"type": "score_model"}}}},
        "unsupported_parameter",
        "method.reinforcement.grader",
    ),
    ({"seed": 3, "extra_body": {"marlaas": SMALL | {"seed": 4}}}, "invalid_value", "seed"),
    ({"extra_body": {"marlaas": {}}}, "missing_required_parameter", "marlaas.steps"),
    ({"extra_body": {"marlaas": SMALL | {"setps": 4}}}, "invalid_value", "marlaas.setps"),
    ({"extra_body": {"marlaas": SMALL | {"lora": {"rank": 64}}}}, "invalid_value", "marlaas.lora.rank"),
    ({"extra_body": {"marlas": SMALL}}, "unsupported_parameter", "marlas"),
    ({"suffix": "No Name"}, "invalid_value", "suffix"),
]


@pytest.mark.parametrize(("changes", "code", "param"), WRONG)
async def test_what_is_wrong_or_not_supported_is_named(opened: Opened, changes: dict[str, Any], code: str, param: str) -> None:
    async with opened(NOTHING) as client:
        with pytest.raises(openai.BadRequestError) as caught:
            await create(client, **changes)
        jobs = [job async for job in client.fine_tuning.jobs.list()]

    assert (caught.value.code, caught.value.param) == (code, param)
    assert [job.status for job in jobs if job.status != "failed"] == []


async def test_absent_models_and_jobs_are_404(opened: Opened) -> None:
    async with opened(NOTHING) as client:
        jobs = client.fine_tuning.jobs
        for call in (
            create(client, model="huge"),
            jobs.retrieve("none-1"),
            jobs.cancel("none-1"),
            jobs.pause("none-1"),
            jobs.resume("No Id"),
            jobs.list_events("none-1"),
            jobs.checkpoints.list("none-1"),
        ):
            with pytest.raises(openai.NotFoundError):
                await call


async def test_jobs_are_paused_resumed_and_cancelled(world: World, opened: Opened) -> None:
    await world.run("slow-1", spec(name="slow"), until="accepted")
    async with opened(NOTHING) as client:
        jobs = client.fine_tuning.jobs
        states = [(await jobs.pause("slow-1")).status, (await jobs.resume("slow-1")).status, (await jobs.cancel("slow-1")).status]
        with pytest.raises(openai.ConflictError) as caught:
            await client.with_options(max_retries=2).fine_tuning.jobs.pause("slow-1")

    assert states == ["paused", "queued", "cancelled"]
    assert caught.value.response.headers["x-should-retry"] == "false"
    assert caught.value.response.request.headers["x-stainless-retry-count"] == "0"


async def test_jobs_are_listed_newest_first_by_pages_and_metadata(world: World, opened: Opened) -> None:
    for number in range(5):
        await world.submit(f"slow-{number}", spec(name="slow", metadata={"odd": str(number % 2)} if number else {}))
        await world.event(f"slow-{number}", "accepted")
    async with opened(NOTHING) as client:
        everything = [job.id async for job in client.fine_tuning.jobs.list(limit=2)]
        odd = [job.id async for job in client.fine_tuning.jobs.list(limit=1, metadata={"odd": "1"})]
        without = [job.id async for job in client.fine_tuning.jobs.list(extra_query={"metadata": "null"})]
        with pytest.raises(openai.BadRequestError):
            await client.fine_tuning.jobs.list(after="none-1")
        with pytest.raises(openai.BadRequestError):
            await client.fine_tuning.jobs.list(extra_query={"order": "asc"})

    assert everything == [f"slow-{number}" for number in (4, 3, 2, 1, 0)]
    assert odd == ["slow-3", "slow-1"]
    assert without == ["slow-0"]


async def test_the_cursor_after_a_task_is_the_schedulers(world: World, nats_url: str) -> None:
    for number in range(2):
        await world.submit(f"slow-{number}", spec(name="slow"))
        await world.event(f"slow-{number}", "accepted")
    asked = AskTasks(sort="created", descending=True, most=1)
    page = await Door(world.bus, nats_url).ask("tasks", asked, TasksAnswer)

    assert page.cursor == cursor_after(page.tasks[0])


async def test_a_repeated_request_is_one_job_and_two_equal_ones_are_two(world: World, opened: Opened) -> None:
    slow = SMALL | {"name": "slow"}
    async with opened(NOTHING) as client:
        first, second = await create(client, slow), await create(client, slow)
        repeated = await create(client, slow, extra_headers={"x-stainless-retry-count": "1"})
        keyed = [(await create(client, slow, extra_headers={"Idempotency-Key": "k"})).id for _ in range(2)]
        listed = [job.id async for job in client.fine_tuning.jobs.list()]

    assert repeated.id == second.id != first.id
    assert keyed[0] == keyed[1]
    assert len(listed) == 3
